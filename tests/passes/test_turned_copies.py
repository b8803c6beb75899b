"""Tiles turned over by matrix loads, where they can be, with the same result everywhere."""

from __future__ import annotations

import numpy as np
import pytest

from tests.cuda.tile_programs import turning
from tilewright import interp
from tilewright.ir.op import Intrinsic, walk_ops
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower


@pytest.mark.parametrize("arch", ["sm_90a", "sm_80"])
@pytest.mark.parametrize(
    ("kind", "m", "n", "matrices"),
    [
        ("bfloat16", 64, 64, True),
        ("int16", 128, 32, True),
        ("float16", 32, 64, True),
        ("float32", 64, 64, False),  # matrix loads transpose 16 bits
        ("bfloat16", 36, 64, False),  # rows of the result that are no whole vectors
    ],
)
def test_turned_by_matrix_loads(kind, m, n, matrices, arch):
    found = lower(turning(kind, m, n), Target.parse(f"cuda -arch={arch}")).result
    loads = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Intrinsic)]
    texts = [op.text for op in loads if op.name == "ldmatrix"]
    assert texts == (["count=4 trans=1"] if matrices else [])
    x = np.arange((m + 5) * n).reshape(m + 5, n).astype(kind)
    args = {"X": x, "Y": np.zeros((n, 2 * m), kind)}
    interp.run_threads(found, args)
    want = np.zeros((2 * m, n), kind)
    want[: m + 5] = x
    assert args["Y"].tobytes() == np.ascontiguousarray(want.T).tobytes()
