"""Tensors that may end within a vector: vectors as far as they are whole, the rest element by
element; nothing outside is read or written."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilewright as tw
import tilewright.language as T
from tests.roads import THREADS, on_threads
from tilewright import machine
from tilewright.ir.op import Hint, If, Intrinsic, is_rare, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.targets.cuda.backend import alignments, lower

GOLDEN = Path(__file__).parent / "golden" / "ragged.tw"
HOPPER = Target.parse("cuda")
TILE = 2048
SIZES = (1, 7, 8, 9, 2047, 2048, 2049, 4099)


def of(body, dtype="float16", out=None, threads=256):
    """A kernel over tensors of n elements, a tile a block."""
    n = T.dynamic("n")
    out = out or dtype

    @T.prim_func
    def main(
        A: T.Tensor((n,), dtype),
        B: T.Tensor((n,), dtype),
        table: T.Tensor((4,), "int32"),
        C: T.Tensor((n,), out),
    ):
        with T.Kernel(T.ceildiv(n, TILE), threads=threads) as bx:
            body(A, B, table, C, bx, n)

    return main


@T.macro
def add(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = A[bx * TILE + i] + B[bx * TILE + i]


@T.macro
def within(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        if bx * TILE + i < n:
            C[bx * TILE + i] = A[bx * TILE + i] + B[bx * TILE + i]


@T.macro
def chosen_within(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = T.if_then_else(bx * TILE + i < n, A[bx * TILE + i] * 2, 1)


@T.macro
def within_all_but_one(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        if bx * TILE + i < n - 1:
            C[bx * TILE + i] = A[bx * TILE + i] + B[bx * TILE + i]


@T.macro
def in_place(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = C[bx * TILE + i] + B[bx * TILE + i]


@T.macro
def copied(A, B, table, C, bx, n):
    a = T.alloc_fragment((TILE,), A.dtype)
    T.copy(A[bx * TILE], a)
    for i in T.Parallel(TILE):
        a[i] = a[i] + a[i]
    T.copy(a, C[bx * TILE])


@T.macro
def converted(A, B, table, C, bx, n):
    a = T.alloc_fragment((TILE,), C.dtype)
    b = T.alloc_fragment((TILE,), A.dtype)
    T.copy(A[bx * TILE], a)
    T.copy(B[bx * TILE], b)
    for i in T.Parallel(TILE):
        b[i] = b[i] + a[i].astype(A.dtype)
    T.copy(b, C[bx * TILE])


@T.macro
def shared(A, B, table, C, bx, n):
    a = T.alloc_shared((TILE,), A.dtype)
    T.copy(A[bx * TILE], a, prefer_instruction="sync")
    T.copy(a, C[bx * TILE], prefer_instruction="sync")


@T.macro
def filled(A, B, table, C, bx, n):
    T.fill(C[bx * TILE : (bx + 1) * TILE], 3)


@T.macro
def guarded(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        if table[bx % 4] > 0:
            C[bx * TILE + i] = A[bx * TILE + i] + (B[bx * TILE + i] if table[1] > 0 else 5)


@T.macro
def chosen(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        if (table[bx % 4] > 0) & (table[3] > 0):
            C[bx * TILE + i] = A[bx * TILE + i] if table[1] > 0 else B[bx * TILE + i]


@T.macro
def back(A, B, table, C, bx, n):
    # a tile earlier: groups begin on vectors, in front of the tensor too
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = A[(bx - 1) * TILE + i] + B[bx * TILE + i]


@T.macro
def shifted(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = A[bx * TILE + i - 1] + A[bx * TILE + i + 1]


@T.macro
def asked(A, B, table, C, bx, n):
    for i in T.Parallel(TILE):
        if bx * TILE + i < n - 3:
            C[bx * TILE + i] = A[bx * TILE + i]


@T.macro
def far(A, B, table, C, bx, n):
    # a place that a table names
    for i in T.Parallel(TILE):
        C[bx * TILE + i] = A[table[2] * 8 + bx * TILE + i]


@T.macro
def some_threads(A, B, table, C, bx, n):
    # others have none, or the same
    for i in T.Parallel(200 * 8):
        C[bx * TILE + i] = A[bx * TILE + i]


@T.macro
def reversed_within(A, B, table, C, bx, n):
    # the guard keeps the index inside the tile, too
    a = T.alloc_shared((TILE,), A.dtype)
    for i in T.Parallel(TILE):
        a[i] = A[bx * TILE + i]
    for i in T.Parallel(TILE):
        if bx * TILE + i < n:
            C[bx * TILE + i] = a[T.min(n - bx * TILE, TILE) - 1 - i]


@T.macro
def named_within(A, B, table, C, bx, n):
    a = T.alloc_shared((TILE,), A.dtype)
    for i in T.Parallel(TILE):
        a[i] = A[bx * TILE + i]
    for i in T.Parallel(TILE):
        if table[bx % 4] > 0:
            C[bx * TILE + i] = a[(table[bx % 4] - 1) * 4 + i // 8]


CASES = {  # kernel, dtypes, and how many elements its vectors have
    "add": (add, {}, {8}),
    "float32": (add, {"dtype": "float32"}, {4}),
    "int8": (add, {"dtype": "int8"}, {8}),
    "int8 16": (add, {"dtype": "int8", "threads": 128}, {16}),
    "fp8": (copied, {"dtype": "float8_e4m3fn"}, {8}),
    "in place": (in_place, {}, {8}),
    "within": (within, {}, {8}),
    "chosen within": (chosen_within, {}, {8}),
    "within all but one": (within_all_but_one, {}, {8}),
    "copied": (copied, {}, {8}),
    "wider": (converted, {"out": "float32"}, {8, 4}),
    "narrower": (converted, {"dtype": "float32", "out": "float16"}, {4}),
    "shared": (shared, {}, {8}),
    "filled": (filled, {}, {8}),
    "guarded": (guarded, {}, {8}),
    "chosen": (chosen, {}, {8}),
    "back": (back, {}, {8}),
    "shifted": (shifted, {}, {8}),
    "asked": (asked, {}, {8}),
    "far": (far, {}, {8}),
    "reversed within": (reversed_within, {}, {8}),
    "named within": (named_within, {}, {8}),
    "some threads": (some_threads, {}, {8}),
}


def vectors(program, buffer=None):
    """Lengths of accesses of tensors."""
    found = [op for k in program.kernels for op in walk_ops(k) if isinstance(op, Intrinsic)]
    return {
        int(op.text.split("count=")[1].split()[0])
        for op in found
        if op.name in ("load_global", "store_global")
        and buffer in (None, *(region.buffer.name for region in op.args))
    }


def given_arrays(n, dtypes, seed=0, table=(1, -1, 2, 1)):
    """Tensors of n elements with NaNs (or ones) around them, in memory of their own."""
    random = np.random.default_rng(seed)
    found = []
    for kind in dtypes:
        around = np.full(n + 64, np.nan if np.dtype(kind).kind != "i" else 99).astype(kind)
        around[16 : 16 + n] = random.integers(-20, 20, n)
        found.append(around)
    *read, written = found
    return [*(a[16 : 16 + n] for a in read), np.array(table, np.int32), written[16 : 16 + n]], found


def check(kernel, n, dtypes, target, **more):
    results = []
    for road in ("interp", target):
        args, memory = given_arrays(n, dtypes, **more)
        tw.compile(kernel, target=road)(*args)
        results.append([m.astype(np.float64) for m in memory])
    for ours, want in zip(*reversed(results), strict=True):
        np.testing.assert_array_equal(ours, want)
        for around in (ours[:16], ours[16 + n :]):
            assert (np.isnan(around) | (around == 99)).all()


def numpy_of(name):
    import ml_dtypes

    return np.dtype(getattr(ml_dtypes, name) if name.startswith("float8") else name)


@pytest.mark.parametrize("target", on_threads())
@pytest.mark.parametrize("name", CASES)
def test_as_the_interpreter(name, target):
    body, kinds, _ = CASES[name]
    read = kinds.get("dtype", "float16")
    dtypes = [numpy_of(read), numpy_of(read), numpy_of(kinds.get("out", read))]
    kernel = of(body, **kinds)
    for n in SIZES:
        check(kernel, n, dtypes, target)


@pytest.mark.parametrize("name", CASES)
def test_vectors_where_they_are_whole(name):
    body, kinds, widths = CASES[name]
    program = lower(of(body, **kinds).program, HOPPER).result
    assert vectors(program) == widths
    if name == "shifted":
        assert vectors(program, "A") == set()


def test_one_question_for_several_tensors():
    """The text of the lowering: one branch for what is loaded, one for what is stored."""
    text = print_program(lower(of(add, threads=128).program, HOPPER).result)
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text(), "thread code changed; TILEWRIGHT_UPDATE_GOLDEN=1"
    assert print_program(parse_program(text)) == text


def test_rows_in_whole_vectors_have_one_form():
    """Groups that are inside or outside as a whole are not asked for twice."""
    m, n = T.dynamic("m"), T.dynamic("n", multiple_of=8)

    @T.prim_func
    def main(A: T.Tensor((m, n), "float16"), C: T.Tensor((m, n), "float16")):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 8), threads=64) as (bx, by):
            for i, j in T.Parallel(8, 64):
                C[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j] + 1

    program = lower(main.program, HOPPER).result
    assert vectors(program) == {8}
    assert not any(isinstance(op, If) and is_rare(op.orelse) for op in walk_ops(program.kernels[0]))
    for rows, columns in ((1, 8), (9, 72)):
        a = np.arange(rows * columns, dtype=np.float16).reshape(rows, columns)
        c = np.zeros_like(a)
        tw.compile(main, target=THREADS["threads-sm_90a"])(a, c)
        np.testing.assert_array_equal(c, a + 1)


@pytest.mark.parametrize("by_copy", [True, False])
def test_rows_that_begin_anywhere_have_none(by_copy):
    m, n, p = T.dynamic("m"), T.dynamic("n", multiple_of=8), T.dynamic("p")

    @T.prim_func
    def main(A: T.Tensor((m, p), "float16"), C: T.Tensor((m, n), "float16")):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 8), threads=64) as (bx, by):
            if by_copy:
                a = T.alloc_fragment((8, 64), "float16")
                T.copy(A[by * 8, bx * 64], a)
                T.copy(a, C[by * 8, bx * 64])
            else:
                for i, j in T.Parallel(8, 64):
                    C[by * 8 + i, bx * 64 + j] = A[by * 8 + i, bx * 64 + j]

    program = lower(main.program, HOPPER).result
    assert vectors(program, "A") == set() and vectors(program, "C") == {8}
    assert alignments(program) == {"C": 16}


def rows_apart(by_copy):
    m, n, s = T.dynamic("m"), T.dynamic("n"), T.dynamic("s", multiple_of=8)
    kind = T.StridedTensor((m, n), (s, 1), "float16")

    @T.prim_func
    def main(A: kind, C: kind):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 4), threads=32) as (bx, by):
            if by_copy:
                a = T.alloc_fragment((4, 64), "float16")
                T.copy(A[by * 4, bx * 64], a)
                T.copy(a, C[by * 4, bx * 64])
            else:
                for i, j in T.Parallel(4, 64):
                    C[by * 4 + i, bx * 64 + j] = A[by * 4 + i, bx * 64 + j]

    return main


@pytest.mark.parametrize("by_copy", [True, False])
def test_rows_that_lie_apart(by_copy):
    """Rows begin on vectors and end anywhere."""
    kernel = rows_apart(by_copy)
    assert vectors(lower(kernel.program, HOPPER).result) == {8}
    for m, n in ((1, 1), (3, 7), (4, 64), (5, 67), (6, 125)):
        memory = [np.full((m, 128), x, np.float16) for x in (np.nan, -1)]
        a, c = (x[:, :n] for x in memory)
        a[...] = np.arange(m * n).reshape(m, n) % 251
        tw.compile(kernel, target=THREADS["threads-sm_90a"])(a, c)
        np.testing.assert_array_equal(c, a)
        assert (memory[1][:, n:] == -1).all()


@pytest.mark.parametrize("size, widths", [(5001, set()), (1000, {8}), (5, set()), (1, set())])
def test_odd_sizes_known_at_compile_time(size, widths):
    @T.prim_func
    def main(A: T.Tensor((size,), "float16"), C: T.Tensor((size,), "float16")):
        with T.Kernel(T.ceildiv(size, TILE), threads=64) as bx:
            for i in T.Parallel(TILE):
                C[bx * TILE + i] = A[bx * TILE + i] + 1

    assert vectors(lower(main.program, HOPPER).result) == widths
    a, c = np.arange(size).astype(np.float16), np.zeros(size, np.float16)
    tw.compile(main, target=THREADS["threads-sm_90a"])(a, c)
    np.testing.assert_array_equal(c, a + 1)


def ahead(gathers, dtype="float32"):
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), dtype), C: T.Tensor((TILE,), dtype)):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((TILE,), dtype)
            s = T.alloc_fragment((TILE,), dtype)
            T.clear(s)
            for k in T.Pipelined(T.ceildiv(n, TILE), num_stages=2):
                if gathers:
                    for i in T.Parallel(TILE):
                        a[i] = A[k * TILE + i]
                else:
                    T.copy(A[k * TILE], a, prefer_instruction="cp_async")
                for i in T.Parallel(TILE):
                    s[i] += a[i]
            T.copy(s, C)

    return main


@pytest.mark.parametrize("gathers", [True, False])
@pytest.mark.parametrize("target", on_threads())
def test_asynchronous_copies_are_told_how_much(gathers, target):
    """What fills up with zeros needs no second form."""
    kernel = ahead(gathers)
    program = lower(kernel.program, replace(target, kind="cuda")).result
    copies = [op for op in walk_ops(program.kernels[0]) if isinstance(op, Intrinsic)]
    assert {op.text for op in copies if op.name == "cp_async"} == {"bytes=16"}
    assert not any(
        isinstance(op, Hint) and op.name == "rare" for op in walk_ops(program.kernels[0])
    )
    for n in SIZES:
        (a, *_), _ = given_arrays(n, [np.dtype("float32")] * 2)
        c = np.full(TILE, np.nan, np.float32)
        tw.compile(kernel, target=target)(a, c)
        want = np.pad(a, (0, -n % TILE)).reshape(-1, TILE).sum(axis=0)
        np.testing.assert_array_equal(c, want)


def test_sums_stay_single():
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, TILE), threads=64) as bx:
            for i in T.Parallel(TILE):
                T.atomic_add(C[bx * TILE + i], A[bx * TILE + i])

    program = lower(main.program, HOPPER).result
    assert not vectors(program) and not alignments(program)
    for n in SIZES:
        (a, _, c), memory = given_arrays(n, [np.dtype("float32")] * 2)
        want = a + c
        tw.compile(main, target=THREADS["threads-sm_90a"])(a, c)
        np.testing.assert_array_equal(c, want)
        assert np.isnan(memory[1][16 + n :]).all()


@pytest.mark.parametrize("n", [2, 6, 8, 10, 1022, 1024, 1026])
def test_packed_elements(n):
    size = T.dynamic("n", multiple_of=2)

    @T.prim_func
    def main(A: T.Tensor((size,), "int4"), C: T.Tensor((size,), "float16")):
        with T.Kernel(T.ceildiv(size, 1024), threads=64) as bx:
            for i in T.Parallel(1024):
                C[bx * 1024 + i] = A[bx * 1024 + i].astype("float16")

    assert vectors(lower(main.program, HOPPER).result, "A") == {4}
    values = np.random.default_rng(0).integers(-8, 8, n)
    bits = (values & 15).astype(np.uint8)
    c = np.full(n, np.nan, np.float16)
    tw.compile(main, target=THREADS["threads-sm_90a"])(bits[::2] | bits[1::2] << 4, c)
    np.testing.assert_array_equal(c, values)


def test_explained_as_what_most_threads_do():
    text = str(tw.compile(of(add), target="cuda -arch=sm_90a").explain())
    for about in ("reads A      ld", "reads B      ld", "writes C     st"):
        assert f"{about}.global, 16 bytes a lane, once, 16 sectors a request, all used\n" in text


def test_launches_ask_where_tensors_begin():
    program = lower(of(add).program, HOPPER).result
    assert alignments(program) == {"A": 16, "B": 16, "C": 16}


@given(
    n=st.integers(1, 700),
    tile=st.sampled_from([32, 96, 256]),
    threads=st.sampled_from([32, 64]),
    shift=st.sampled_from([-32, -8, -4, -1, 0, 2, 8]),
    step=st.sampled_from([8, 4, 1]),
    dtype=st.sampled_from(["float32", "float16", "int8"]),
    copies=st.booleans(),
    seed=st.integers(0, 9),
)
def test_any_place(n, tile, threads, shift, step, dtype, copies, seed):
    """Tiles that begin anywhere, of tensors that end anywhere."""
    size = T.dynamic("n", multiple_of=step)
    n = -(-n // step) * step

    @T.prim_func
    def main(A: T.Tensor((size,), dtype), B: T.Tensor((4,), "int32"), C: T.Tensor((size,), dtype)):
        with T.Kernel(T.ceildiv(size, tile) + 1, threads=threads) as bx:
            if copies:
                a = T.alloc_fragment((tile,), dtype)
                T.copy(A[bx * tile + shift], a)
                T.copy(a, C[bx * tile + shift])
            else:
                for i in T.Parallel(tile):
                    C[bx * tile + i + shift] = A[bx * tile + i + shift] + A[bx * tile + i]

    check(main, n, [np.dtype(dtype)] * 2, THREADS["threads-sm_90a"], seed=seed)


@pytest.mark.parametrize("form", range(4))
def test_guards_by_an_element_whose_place_is_an_element(form):
    """`i < Q[P[0]]`: the guard of a vector is computed where the vector is moved."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float32"),
        P: T.Tensor((4,), "int32"),
        Q: T.Tensor((4,), "int32"),
        B: T.Tensor((64, 64), "float32"),
    ):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((64, 64), "float32")
            T.copy(A, x)
            for i, j in T.Parallel(64, 64):
                if form == 0:
                    if i < Q[P[0]]:
                        B[i, j] = x[i, j]
                elif form == 1:
                    B[i, j] = T.if_then_else(i + P[1] < Q[P[0]], A[i, j], x[i, j] * 2)
                elif form == 2:
                    if i < Q[P[0]] and j < Q[P[1]]:
                        B[i, j] = x[i, j]
                else:
                    if i * 2 < Q[P[0]] + P[1]:
                        B[i, j] = A[Q[P[2]], j]

    def arrays():
        rng = np.random.default_rng(form)
        return {
            "A": rng.integers(-9, 9, (64, 64)).astype(np.float32),
            "P": np.array([2, 1, 3, 0], np.int32),
            "Q": np.array([7, 20, 37, 11], np.int32),
            "B": np.zeros((64, 64), np.float32),
        }

    want, got = arrays(), arrays()
    machine.run(main.program, want)
    machine.run_threads(lower(main.program, Target.parse("cuda")).result, got)
    np.testing.assert_array_equal(got["B"], want["B"])
