"""Which scalars differ between threads, and what is refused because of it."""

from __future__ import annotations

import pytest

from tilewright.ir.analysis.uniform import check_uniform, per_thread
from tilewright.ir.buffer import Buffer, Space, element, whole
from tilewright.ir.dtype import FLOAT32, INT32
from tilewright.ir.expr import Load, Var, compare, const
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Break,
    Continue,
    Copy,
    Fill,
    For,
    Gemm,
    If,
    Intrinsic,
    Kernel,
    Let,
    Map,
    Op,
    Store,
    Sync,
    View,
    While,
)
from tilewright.support.errors import CompileError, Loc

bx, tx, ty, i, j, v, w = (Var(name) for name in ("bx", "tx", "ty", "i", "j", "v", "w"))
n = Var("n")
A = Buffer("A", (const(64), const(64)), FLOAT32, Space.GLOBAL)
IDX = Buffer("IDX", (const(64),), INT32, Space.GLOBAL)
S = Buffer("S", (const(64), const(64)), FLOAT32, Space.SHARED)
F = Buffer("F", (const(64), const(64)), FLOAT32, Space.FRAGMENT)
L = Buffer("L", (const(4),), FLOAT32, Space.LOCAL)
X = Buffer("X", (), INT32, Space.LOCAL)
Y = Buffer("Y", (), INT32, Space.LOCAL)
HERE = Loc("kernel.py", 7, 5)


def kernel(*body: Op, threads: tuple[int, ...] = (128,)) -> Kernel:
    return Kernel("k", (bx,), (const(8),), (tx, ty)[: len(threads)], threads, body)


def at(buffer: Buffer, *indices: object) -> Load:
    return Load(buffer, tuple(const(x) if isinstance(x, int) else x for x in indices))


def names(*body: Op, **kwargs: tuple[int, ...]) -> set[str]:
    found = per_thread(kernel(*body, **kwargs))
    return {x.name for x in (*found.vars, *found.buffers)}


class TestAnalysis:
    def test_thread_indices_are_the_source(self) -> None:
        assert names() == {"tx"}
        assert names(threads=(32, 1)) == {"tx"}  # a dimension of one thread is the same in all

    def test_lets_follow_their_value(self) -> None:
        assert names(Let(v, tx // 32), Let(w, bx + 1)) == {"tx", "v"}

    def test_loads_follow_their_indices(self) -> None:
        assert names(Let(v, at(IDX, bx))) == {"tx"}
        assert names(Let(v, at(IDX, tx))) == {"tx", "v"}
        value = Var("f", FLOAT32)
        assert names(Let(value, at(F, bx, 0))) == {"tx"}

    def test_local_buffers_follow_values_indices_and_control(self) -> None:
        assert names(Store(X, (), bx)) == {"tx"}
        assert names(Store(X, (), tx)) == {"tx", "X"}
        assert names(Store(L, (tx % 4,), const(0.0))) == {"tx", "L"}
        assert names(If(tx < 3, (Store(X, (), bx),))) == {"tx", "X"}
        assert names(If(bx < 3, (Store(X, (), bx),))) == {"tx"}
        assert names(Alloc(X, init=tx)) == {"tx", "X"}
        assert names(Store(S, (tx, const(0)), const(1.0))) == {"tx"}  # shared memory is one

    def test_fixed_point_through_a_loop(self) -> None:
        # X is read before the store that makes it per-thread
        body = (Let(v, at(X)), Store(Y, (), v), Store(X, (), tx))
        assert names(For(i, const(0), const(4), body)) == {"tx", "v", "X", "Y"}

    def test_loop_bounds_and_conditions(self) -> None:
        assert names(For(i, tx, const(9), (Store(X, (), bx),))) == {"tx", "i", "X"}
        assert names(For(i, const(0), n, (Store(X, (), i),))) == {"tx"}
        assert names(While(at(Y) < 3, (Store(Y, (), tx),))) == {"tx", "Y"}

    def test_a_break_of_some_threads_splits_the_whole_loop(self) -> None:
        body = (Store(X, (), bx), If(compare("==", i, tx), (Break(),)))
        assert names(For(i, const(0), const(4), body)) == {"tx", "X"}
        body = (Store(X, (), bx), If(compare("==", i, bx), (Break(),)))
        assert names(For(i, const(0), const(4), body)) == {"tx"}

    def test_a_continue_of_some_threads_splits_what_follows(self) -> None:
        skip = If(compare("==", i, tx), (Continue(),))
        loop = For(i, const(0), const(4), (Store(X, (), bx), skip, Store(Y, (), bx)))
        assert names(loop) == {"tx", "Y"}
        assert names(For(i, const(0), const(4), (skip,)), Store(X, (), bx)) == {"tx"}

    def test_atomics(self) -> None:
        assert names(Atomic("add", element(IDX, 0), const(1), result=v)) == {"tx"}
        assert names(Atomic("add", element(IDX, tx), const(1), result=v)) == {"tx", "v"}
        once = Atomic("add", element(IDX, 0), const(1), result=v)
        assert names(If(tx < 1, (once,))) == {"tx", "v"}

    def test_shuffles_and_foreign_code(self) -> None:
        assert names(Intrinsic("shfl_xor", (bx, const(1)), result=v)) == {"tx", "v"}
        assert names(Intrinsic("ptx", (whole(L),), result=v, text="…")) == {"tx", "v", "L"}

    def test_views_share_their_memory(self) -> None:
        other = Buffer("M", (const(2), const(2)), FLOAT32, Space.LOCAL)
        store = Store(other, (const(0), const(0)), at(A, tx, 0))
        assert names(View(other, L), store) == {"tx", "M", "L"}

    def test_iterations_of_a_map_are_no_threads(self) -> None:
        body = (Store(X, (), i), Store(S, (i, j), at(A, i, j)))
        assert names(Map((i, j), (const(64), const(64)), body)) == {"tx"}
        assert names(Map((i,), (const(64),), (Store(X, (), tx),))) == {"tx", "X"}

    def test_why_names_the_chain(self) -> None:
        found = per_thread(kernel(Let(v, tx // 32), Let(w, v * 2)))
        assert [cause.name for cause in found.why(w + 1)] == [w, v, tx]
        assert found.explain(w) == (
            "`w`, which depends on `v`, which depends on `tx`, a thread index"
        )
        assert found.why(bx) == () and found.source(bx + 1) is None


class TestCheck:
    def test_a_plain_kernel_passes(self) -> None:
        check_uniform(
            kernel(
                Fill(whole(F), const(0.0)),
                For(i, const(0), const(4), (Copy(whole(S), whole(F)),), kind="pipelined"),
                If(bx < 3, (Gemm(whole(S), whole(S), whole(F)), Sync())),
                If(tx < 32, (Store(S, (tx, const(0)), const(1.0)), Sync("warp"))),
                Fill(whole(L), const(0.0)),
            )
        )

    @pytest.mark.parametrize(
        ("body", "message", "source"),
        [
            (
                [Let(v, tx // 32), Copy(element(A, v, 0), element(S, 0, 0), loc=HERE)],
                "an operand of a copy must be the same in all threads",
                "`v`, which depends on `tx`, a thread index",
            ),
            (
                [If(tx < 32, (Fill(whole(S), const(0.0), loc=HERE),))],
                "a fill is done by all threads together, but not all of them reach this one",
                "`tx`, a thread index",
            ),
            (
                [While(at(X) < 3, (Store(X, (), tx), Gemm(*map(whole, (S, S, F)), loc=HERE)))],
                "a gemm is done by all threads together",
                "`X`, which depends on `tx`, a thread index",
            ),
            (
                [If(tx < 32, (Sync(loc=HERE),))],
                "a block barrier that not all of its threads reach",
                "`tx`, a thread index",
            ),
            (
                [For(i, const(0), tx, (), kind="pipelined", loc=HERE)],
                "the bounds of a pipelined loop must be the same in all threads",
                "`tx`, a thread index",
            ),
            (
                [Map((i,), (tx,), (), loc=HERE)],
                "the extents of a T.Parallel loop must be the same in all threads",
                "`tx`, a thread index",
            ),
            (
                [Map((i,), (const(4),), (Store(S, (i, const(0)), at(L, 0), loc=HERE),)),
                 Store(L, (const(0),), at(A, tx, 0))],
                "a value used inside T.Parallel must be the same in all threads",
                "`L`, which depends on `tx`, a thread index",
            ),
            (
                [Intrinsic("ballot", (bx,), result=v), Copy(element(A, v, 0), element(S, 0, 0),
                                                            loc=HERE)],
                "an operand of a copy",
                "`v`, the result of `ballot`",
            ),
            (
                [For(i, const(0), const(4), (If(compare("==", i, tx), (Break(),)),
                                             Sync(loc=HERE)))],
                "a block barrier",
                "`tx`, a thread index",
            ),
        ],
    )  # fmt: skip
    def test_refusals(self, body: list[Op], message: str, source: str) -> None:
        with pytest.raises(CompileError) as error:
            check_uniform(kernel(*body))
        assert message in error.value.message
        assert source in error.value.diagnostic.got
        assert error.value.diagnostic.fix
        assert error.value.loc == HERE
