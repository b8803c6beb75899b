"""When products by warpgroups are waited for: late, by the end of an iteration, one by one. The
results are the same; what is under way is not."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, ROLES, check_same, numbers, overlapped, unnoticed
from tests.passes.two_products import FORMS, two_products
from tilewright.ir.op import Body, Commit, For, Gemm, Map, Op, Program, WaitGroup, walk_ops

WAITS = ("late", "iteration", "each")


def given(form: str, threads: int = 128) -> Program:
    return two_products.prim_func(form, threads=threads).program


def arguments(program: Program) -> dict[str, np.ndarray]:
    made = {
        t.name: numbers(*t.static_shape, dtype=t.dtype.numpy, seed=k)
        for k, t in enumerate(program.tensors)
    }
    made["F"] = np.array([1, 2, -1, 1], np.float32)
    return made


def loop_of(program: Program) -> Body:
    """The loop with the products."""
    (found,) = (
        op.body
        for kernel in program.kernels
        for op in walk_ops(kernel)
        if isinstance(op, For) and any(isinstance(inner, Gemm) for inner in op.body)
    )
    return found


def is_wait(op: Op) -> bool:
    return isinstance(op, WaitGroup) and op.unit == "wgmma"


def open_at_end(body: Body) -> int:
    """Products of `body` that may be under way behind it."""
    count = 0
    for op in body:
        count += isinstance(op, Commit) and op.unit == "wgmma"
        count = min(count, op.pending) if is_wait(op) else count
    return count


@pytest.mark.parametrize("waits", WAITS)
@pytest.mark.parametrize(("target", "threads"), [(HOPPER, 128), (ROLES, 256)])
@pytest.mark.parametrize("form", FORMS)
def test_results(form, target, threads, waits):
    program = given(form, threads)
    check_same(program, arguments(program), target.choosing(waits=waits), seeds=range(2))


@pytest.mark.parametrize("target", [HOPPER, ROLES])
@pytest.mark.parametrize("form", FORMS)
def test_where_they_stand(form, target):
    by = {w: loop_of(overlapped(given(form), target.choosing(waits=w))) for w in WAITS}
    assert open_at_end(by["late"]) > 0 or target is ROLES  # handed back there, if all is over
    assert open_at_end(by["iteration"]) == open_at_end(by["each"]) == 0
    assert not any(op.pending for op in by["each"] if is_wait(op))
    left = 0
    for op in by["each"]:
        assert not (isinstance(op, Map) and left), "threads compute under a product"
        left = 1 if isinstance(op, Gemm) else 0 if is_wait(op) else left


def test_threads_still_compute_under_products_of_their_iteration():
    body = loop_of(overlapped(given("two operands"), HOPPER.choosing(waits="iteration")))
    names = [type(op).__name__ for op in body if isinstance(op, (Gemm, Map)) or is_wait(op)]
    pending = [op.pending for op in body if is_wait(op)]
    assert names[-5:] == ["Gemm", "WaitGroup", "Map", "Gemm", "WaitGroup"]
    assert pending[-2:] == [1, 0]


def test_late_is_the_default():
    for form in FORMS:
        assert overlapped(given(form)) == overlapped(given(form), HOPPER.choosing(waits="late"))


@pytest.mark.parametrize("waits", ["iteration", "each"])
def test_what_is_needed_cannot_be_dropped(waits):
    """Earlier waits make others and bounds of groups superfluous, nothing else."""
    program = given("two operands")
    found = overlapped(program, HOPPER.choosing(waits=waits))
    missed = unnoticed(program, found, arguments(program))
    assert all("wgmma" in name for name in missed), missed
