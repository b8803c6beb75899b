"""What the demo shows and the CPU's benchmark times, on a GPU against the same references.
`pytest -m gpu`."""

from __future__ import annotations

import pytest

from tests.roads import DEVICE
from zoo.cases import bench_cases

# a block's rows of 576 float32 twice over are more than a multiprocessor's shared memory
CASES = {f"{c.name} {c.shape}": c for c in bench_cases() if not c.name.startswith("MLA")}


@pytest.mark.gpu
@pytest.mark.parametrize("name", CASES)
def test_case(name):
    case = CASES[name]
    assert case.error(case.build(DEVICE["gpu-sm_90a"])()) <= max(case.bound, 0)
