"""Tiles turned over by matrix loads, where they can be, with the same result everywhere."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
from tests.cuda.tile_programs import turning
from tilewright import machine
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
    assert _texts(found, "ldmatrix") == (["count=4 trans=1"] if matrices else [])
    _check(found, kind, m, n)


@pytest.mark.parametrize(
    ("m", "n", "threads", "both"),
    [
        (128, 64, 128, True),
        (64, 128, 256, True),
        (64, 64, 512, True),  # two warps along a row
        (64, 8, 128, True),
        (64, 24, 64, True),
        (32, 8, 256, False),  # more warps than matrices
    ],
)
def test_turned_between_shared_tiles(m, n, threads, both):
    """Held as matrices, the tile is loaded and stored by them, and no access meets another."""
    program = turning("bfloat16", m, n, threads, staged=True)
    found = lower(program, Target.parse("cuda")).result
    assert bool(_texts(found, "ldmatrix") and _texts(found, "stmatrix")) == both
    _check(found, "bfloat16", m, n)
    if both:
        assert "extra wavefronts" not in tw.compile(program, target="cuda").explain()


def _texts(found, name):
    ops = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Intrinsic)]
    return [op.text for op in ops if op.name == name]


def _check(found, kind, m, n):
    x = np.arange((m + 5) * n).reshape(m + 5, n).astype(kind)
    args = {"X": x, "Y": np.zeros((n, 2 * m), kind)}
    machine.run_threads(found, args)
    want = np.zeros((2 * m, n), kind)
    want[: m + 5] = x
    assert args["Y"].tobytes() == np.ascontiguousarray(want.T).tobytes()
