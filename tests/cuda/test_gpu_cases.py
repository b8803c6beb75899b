"""What the demo shows and the CPU's benchmark times, on a GPU against the same references.
`pytest -m gpu`."""

from __future__ import annotations

from functools import cache

import pytest

from tests.roads import DEVICE
from zoo.cases import bench_cases

COUNT = 19


@cache
def cases():
    """Their data are seconds of random numbers: nothing to be made where tests are collected."""
    # a block's rows of 576 float32 twice over are more than a multiprocessor's shared memory
    return [case for case in bench_cases() if not case.name.startswith("MLA")]


@pytest.mark.gpu
@pytest.mark.parametrize("number", range(COUNT))
def test_case(number):
    assert len(cases()) == COUNT
    case = cases()[number]
    assert case.error(case.build(DEVICE["gpu-sm_90a"])()) <= max(case.bound, 0)
