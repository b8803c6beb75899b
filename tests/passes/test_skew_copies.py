"""Products that begin anew beside what threads make of the one before: the same numbers, the order
of statements, what registers allow."""

from __future__ import annotations

import re
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from tests.passes.overlap import ROLES, overlapped
from tests.passes.scaled_products import WAYS, arguments, results, said, scaled_product, stage
from tests.passes.test_skew import body_of, statements
from tests.schedules.harness import mutants
from tilewright.ir.analysis.aliases import Aliases
from tilewright.ir.analysis.lifetimes import overwrites
from tilewright.ir.op import Alloc, For, Gemm, Map, WaitGroup, walk_ops
from tilewright.ir.text import print_op
from tilewright.ir.verify import Stage, verify
from tilewright.passes.overlap.prefetch_loads import prefetch_loads
from tilewright.passes.overlap.skew import _Statements
from tilewright.support.errors import TilewrightError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel

SKEWED = ROLES.choosing(skew=True)


@pytest.mark.parametrize("way", WAYS)
def test_the_same_numbers(way):
    program = scaled_product.prim_func(7, way).program
    trace = lower(program, SKEWED)
    assert "skewed by one iteration: " in said(trace) and "no skew" not in said(trace)
    for count in (0, 1, 2, 3, 4, 7):
        args = arguments(program, count)
        want = results(program, args)
        for seed in range(2):
            got = results(stage(trace), args, seed=seed, explicit=True)
            np.testing.assert_array_equal(got, want)
        if count in (0, 1, 4):
            np.testing.assert_array_equal(results(trace.result, args, threads=True), want)


@pytest.mark.parametrize("steps", [1, 2, 5, 6])
def test_with_pieces(steps):
    """The second piece's product is late, and reads what the first one, which is not, has read."""
    program = scaled_product.prim_func(steps, known=True, block=(128, 128, 32)).program
    trace = lower(program, SKEWED.choosing(split_gemms=True))
    assert "product at" in said(trace) and "skewed by" in said(trace)
    args = arguments(program, steps)
    want = results(program, args)
    for seed in range(3):
        got = results(stage(trace), args, seed=seed, explicit=True)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("stages", [2, 3])
def test_known_trip_counts(steps, stages):
    program = scaled_product.prim_func(steps, stages=stages, known=True, tiles=3).program
    trace = lower(program, SKEWED)
    args = arguments(program, steps)
    want = results(program, args)
    for seed in range(3):
        got = results(stage(trace), args, seed=seed, explicit=True)
        np.testing.assert_array_equal(got, want)
    # what is left of the last iteration is known, so there is no branch
    assert "if k" not in "".join(print_op(op) for op in stage(trace).kernels[0].body)


def test_two_iterations_at_a_time():
    program = scaled_product.prim_func(8, "by the engine").program
    found = stage(lower(program, SKEWED.choosing(stages="text")))
    loop = next(
        op
        for op in walk_ops(found.kernels[0])
        if isinstance(op, For) and sum(isinstance(each, Gemm) for each in op.body) == 2
    )
    kept = ("gemm", "commit", "wait", "map", "arrive")
    heads = [print_op(op).strip().split("\n")[0].split(" layout")[0] for op in loop.body]
    heads = [re.sub(r"k_(slot|done)\w*", r"\1", head) for head in heads]
    assert [head for head in heads if head.startswith(kept)] == [
        "wait a_full[slot] phase k_count // 3 % 2",
        "gemm a[slot, :, :], b[slot, :, :] -> part_1 clear=true transpose_b=true atom=wgmma",
        "commit wgmma",
        "wait s_full[done] phase (k_count - 1) // 3 % 2",
        "wait_group wgmma pending 1",
        "arrive a_free[done] count=8 by=warps",
        "map (i, j) in (128, 64)",
        "arrive s_free[done] count=8 by=warps",
        "wait a_full[slot] phase k_count // 3 % 2",
        "gemm a[slot, :, :], b[slot, :, :] -> part clear=true transpose_b=true atom=wgmma",
        "commit wgmma",
        "wait s_full[done] phase (k_count - 1) // 3 % 2",
        "wait_group wgmma pending 1",
        "arrive a_free[done] count=8 by=warps",
        "map (i_1, j_1) in (128, 64)",
        "arrive s_free[done] count=8 by=warps",
        "wait_group wgmma pending 0",
    ]
    assert print_op(loop).strip().startswith("for k in 1 .. count - 1 step=2")


def test_nothing_is_dispensable():
    """But for the wait at the loop's end, which is the assembler's."""
    program = scaled_product.prim_func(5, "by the engine", tiles=2).program
    found = overlapped(prefetch_loads(program, SKEWED), SKEWED)
    given = [arguments(program, count) for count in (5, 4, 2, 1)]
    wanted = [results(program, args) for args in given]

    def noticed(mutant):
        try:
            verify(mutant, Stage.TILE)
            return any(
                (results(mutant, args, seed=seed, explicit=True) != want).any()
                for args, want in zip(given, wanted, strict=True)
                for seed in range(3)
            )
        except TilewrightError:
            return True

    missed = [name for name, mutant in mutants(found) if not noticed(mutant)]
    loop = next(op for op in walk_ops(program.kernels[0]) if getattr(op, "kind", "") == "pipelined")
    assert missed == [f"line {loop.loc.line}: wait_group wgmma pending 0"]


@pytest.mark.parametrize(
    "block, threads, fits",
    [((128, 128, 64), 256, True), ((128, 192, 64), 256, False), ((192, 128, 64), 384, False)],
)
def test_as_far_as_registers_go(block, threads, fits):
    program = scaled_product.prim_func(4, block=block, threads=threads, stages=2).program
    kernel = CudaKernel(program, SKEWED)
    assert kernel.serialized is None
    assert all(r.spill_bytes == 0 for r in kernel.resources.values())
    tiles = [op.buffer.name for op in walk_ops(stage(kernel.trace).kernels[0])
             if isinstance(op, Alloc) and op.buffer.name.startswith("part")]  # fmt: skip
    assert tiles == (["part", "part_1"] if fits else ["part"])
    assert fits or "two of part would take" in said(kernel.trace)


def test_one_slot_is_not_enough():
    program = scaled_product.prim_func(4, stages=1).program
    trace = lower(program, SKEWED.choosing(stages="text"))
    assert "no skew: it has fewer than two gemms" in said(trace)


def test_it_is_given_unasked():
    program = scaled_product.prim_func(4).program
    assert "no skew: other warpgroups already hide" not in said(lower(program, ROLES))
    assert " skewed by" in said(lower(program, ROLES))
    alone = scaled_product.prim_func(4, block=(64, 128, 64), threads=128).program
    assert "no skew: no order of its statements takes less" in said(lower(alone, ROLES))


def test_products_end_with_the_loop_unless_told():
    def ends(target):
        found = stage(lower(scaled_product.prim_func(8).program, target))
        loops = [op for op in walk_ops(found.kernels[0]) if isinstance(op, For)]
        loop = next(op for op in loops if sum(isinstance(i, Gemm) for i in op.body) == 2)
        return isinstance(loop.body[-1], WaitGroup) and not loop.body[-1].pending

    assert ends(SKEWED) and not ends(SKEWED.choosing(waits="late"))


def test_what_is_used_behind_the_loop_has_no_copy():
    """A result of the last iteration that is needed later, and one that is not begun anew."""
    body = body_of([("gemm", "a", "b"), ("map", "b", "c")])
    assert not overwrites(body[0], body[0].c.buffer.name)
    assert isinstance(body[1], Map)


@settings(max_examples=150, deadline=None)
@given(statements, statements)
def test_every_order_keeps_every_dependence(first, then):
    """With a tile for each of two iterations, only those of the same one are in the way."""
    body = body_of([*first, ("fill", "a", "d"), ("gemm", "a", "d"), *then])
    work = _Statements(body, range(len(body)), Aliases())
    at = len(first) + 1
    tile = body[at].c.buffer
    if any("d" in work.touched[k] for k in range(len(first))):
        return  # it lives on
    work.renewed = {tile.name: tile}
    late = work.following(at) - {at}
    order = work.ordered(late, copies=True)
    assert order is not None and sorted(order) == work.all
    names = {b.name for b in work.copies(order, late)}
    turns = 5
    run_at = {}
    for time in range(turns + 1):
        for k in order:
            turn = time - (k in late)
            if 0 <= turn < turns:
                run_at[turn, k] = len(run_at)
    for (t, a), (u, b) in product(run_at, run_at):
        if (t, a) < (u, b) and (a == b or b in work.conflicts[a]):
            if (t - u) % 2 and a != b and work.apart(a, b, names):
                continue
            assert run_at[t, a] < run_at[u, b]
