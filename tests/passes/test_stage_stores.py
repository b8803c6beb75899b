"""Results on their way to memory through shared tiles: whole, in pieces, on a condition."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import ROLES, numbers
from tilewright import machine
from tilewright.ir.op import Alloc, Copy, WaitGroup, walk_ops
from tilewright.targets.cuda.backend import lower


def product(stages, guarded=False, view=False, wide=256):
    """128×256 of a product: 48 KB a stage, 64 KB of results."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 128), "float16"),
        B: T.Tensor((2, 64, wide), "float16"),
        C: T.Tensor((128, wide), "float16"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, wide), "float16")
            c = T.alloc_fragment((128, wide), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=stages):
                T.copy(A[0, k * 64], a)
                if view:
                    rows = T.reshape(B, (128, wide))
                    T.copy(rows[k * 64, 0], b)
                else:
                    T.copy(B[k, :, :], b)
                T.gemm(a, b, c)
            if guarded:
                for i, j in T.Parallel(128, wide):
                    if i < 100:
                        C[i, j] = c[i, j] + 1
            else:
                T.copy(c, C)

    return main.program


def staged(program):
    trace = lower(program, ROLES)
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    ops = list(walk_ops(scheduled.kernels[0]))
    tiles = [
        op.buffer.static_shape for op in ops if isinstance(op, Alloc) and "_stage" in op.buffer.name
    ]
    return tiles, ops, trace


def test_a_whole_tile():
    tiles, ops, _ = staged(product(3))
    assert tiles == [(128, 256)]
    assert sum(isinstance(op, Copy) and op.atom == "bulk_store" for op in ops) == 1


def test_pieces_take_turns_in_two_tiles():
    tiles, ops, _ = staged(product(4))
    assert tiles == [(128, 64)] * 2
    assert sum(isinstance(op, Copy) and op.atom == "bulk_store" for op in ops) == 4
    # a tile is filled again when its own store has read it, not when the other's has
    waits = [op.pending for op in ops if isinstance(op, WaitGroup) and op.unit == "bulk"]
    assert waits == [1, 1, 0]


def test_short_pieces_where_long_ones_do_not_divide_a_row():
    tiles, ops, _ = staged(product(4, wide=224))
    assert tiles == [(128, 32)] * 2
    assert sum(isinstance(op, Copy) and op.atom == "bulk_store" for op in ops) == 7


def test_switched_off():
    off = lower(product(4), ROLES.choosing(stage_stores=False))
    found = next(s.program for s in off if s.name == "order_warpgroups")
    assert not any(isinstance(op, Alloc) and "_stage" in op.buffer.name for op in walk_ops(found))


@pytest.mark.parametrize("stages", [3, 4])
@pytest.mark.parametrize("more", [{}, {"guarded": True}, {"view": True}, {"wide": 224}])
def test_the_same_numbers(stages, more):
    program, wide = product(stages, **more), more.get("wide", 256)
    given = {
        "A": numbers(128, 128),
        "B": numbers(2, 64, wide, seed=1),
        "C": np.zeros((128, wide), np.float16),
    }
    want = {n: a.copy() for n, a in given.items()}
    machine.run(program, want)
    _, _, trace = staged(program)
    machine.run_threads(trace.result, given)
    np.testing.assert_array_equal(given["C"], want["C"])
