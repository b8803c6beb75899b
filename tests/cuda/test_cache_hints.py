"""What `T.copy(…, cache=)` says, every instruction that touches a tensor is told."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import from_device, to_device
from tilewright import machine
from tilewright.ir.dtype import dtype as dtype_of
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.targets.cuda.backend import lower

HINTS = ("evict_first", "evict_last", "no_allocate")
ROWS = 48


def moved(hints, columns, dtype, held, spread):
    """A copy by each hint, in tiles of 32×64: the last rows are half of one, and the last columns
    may be."""

    @T.prim_func
    def main(X: T.Tensor((ROWS, columns), dtype), Y: T.Tensor((len(hints), ROWS, columns), dtype)):
        with T.Kernel(T.ceildiv(ROWS, 32), T.ceildiv(columns, 64), threads=64) as (by, bx):
            for k, cache in enumerate(hints):
                tile = (T.alloc_fragment if spread else T.alloc_shared)((32, 64), held)
                T.copy(X[by * 32, bx * 64], tile, cache=cache, prefer="sync")
                T.copy(tile, Y[k, by * 32, bx * 64], cache=cache, prefer="sync")

    return main


def accesses(kernel):
    return [line.strip() for line in kernel.ptx.splitlines() if ".global." in line]


KINDS = [
    ("bfloat16", "bfloat16"), ("float32", "bfloat16"), ("bfloat16", "float32"), ("int8", "int8"),
    ("float64", "float64"), ("float8_e4m3fn", "float8_e4m3fn"), ("bool", "bool"),
]  # fmt: skip
over_kinds = pytest.mark.parametrize("dtype, held", KINDS)
# whole vectors; single elements, of which the last are outside
over_columns = pytest.mark.parametrize("columns", [128, 61])


@over_columns
@over_kinds
@pytest.mark.parametrize("arch, spread", [("sm_80", True), ("sm_90a", False)])
def test_threads_tell_the_cache(dtype, held, columns, arch, spread):
    program = moved(HINTS, columns, dtype, held, spread)
    found = accesses(tw.compile(program, target=f"cuda -arch={arch}"))
    for verb in ("ld.global.nc.", "st.global."):
        lines = [line for line in found if verb in line]
        policies = [line for line in lines if f"{verb}L2::cache_hint." in line]
        plain = [line for line in lines if f"{verb}L1::no_allocate." in line]
        assert lines and len(policies) == 2 * len(plain) == 2 * len(lines) // 3


@over_columns
@over_kinds
@pytest.mark.parametrize("spread", [False, True])
def test_hints_change_no_result(dtype, held, columns, spread):
    numbers = np.random.default_rng(0).integers(0, 2, (ROWS, columns))
    x = numbers.astype(dtype_of(dtype).numpy)
    program = moved(HINTS, columns, dtype, held, spread).program
    threads = lower(program, Target.parse("cuda")).result
    text = print_program(threads)
    assert all(text.count(f"cache={cache}") == 2 for cache in HINTS)
    assert print_program(parse_program(text)) == text
    for run, code in ((machine.run, program), (machine.run_threads, threads)):
        y = np.zeros((len(HINTS), ROWS, columns), x.dtype)
        run(code, {"X": x, "Y": y})
        for each in y:
            np.testing.assert_array_equal(each, x)


@pytest.mark.parametrize("columns, count", [(128, 8), (61, 1)])
def test_source(columns, count):
    kernel = tw.compile(moved(HINTS, columns, "bfloat16", "bfloat16", True), target="cuda")
    lines = [line.strip() for line in kernel.get_kernel_source().splitlines()]
    assert [line.partition("(")[0] for line in lines if "_global<" in line] == [
        f"tw::{verb}_global<tw::bfloat16, {count}, tw::{cache}{more}>"
        for cache in HINTS
        for verb, more in (("load", ", true"), ("store", ""))
    ]


def ring(cache, dtype, columns):
    @T.prim_func
    def main(X: T.Tensor((64, 8 * columns), dtype), Y: T.Tensor((64, columns), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_shared((64, columns), dtype)
            total = T.alloc_fragment((64, columns), "float32")
            T.clear(total)
            for k in T.Pipelined(8, num_stages=3):
                T.copy(X[0, k * columns], x, cache=cache)
                for i, j in T.Parallel(64, columns):
                    total[i, j] += x[i, j]
            T.copy(total, Y)

    return main


@pytest.mark.parametrize("columns, mode", [(64, "cg"), (2, "ca")])
@pytest.mark.parametrize("cache", [*HINTS, None])
def test_asynchronous_copies_of_threads_tell_the_cache(cache, columns, mode):
    kernel = tw.compile(ring(cache, "float16", columns), target="cuda -arch=sm_80")
    found = [line for line in kernel.ptx.splitlines() if f"cp.async.{mode}" in line]
    told = cache in ("evict_first", "evict_last")
    assert found and all(("L2::cache_hint" in line) == told for line in found)


def test_a_row_with_a_hint_is_copied_as_it_says():
    """Without one, its elements would be loaded where they are used."""

    @T.prim_func
    def main(
        A: T.Tensor((8, 64, 64), "float16"), S: T.Tensor((8, 64), "float32"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((64,), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=2):
                T.copy(A[k, 0, 0], a)
                T.copy(S[k, 0], s, cache="evict_last")
                for i, j in T.Parallel(64, 64):
                    c[i, j] += a[i, j] * s[i]
            T.copy(c, C)

    kernel = tw.compile(main, target="cuda")
    assert any("ld.global.nc.L2::cache_hint" in line for line in accesses(kernel))


def test_explained():
    told = tw.compile(moved(HINTS, 128, "bfloat16", "bfloat16", False), target="cuda").explain()
    assert all(told.count(f" cache        {cache}: ") == 2 for cache in HINTS)
    silent = tw.compile(moved((None,), 128, "bfloat16", "bfloat16", False), target="cuda")
    assert " cache   " not in silent.explain()


def test_machine_code_carries_the_policy():
    """In uniform registers: no thread computes it."""
    kernel = tw.compile(moved(("evict_last",), 128, "bfloat16", "bfloat16", True), target="cuda")
    assert "0x14f00000" in kernel.sass


@pytest.mark.gpu
@over_columns
@over_kinds
@pytest.mark.parametrize("spread", [False, True])
def test_on_a_gpu(dtype, held, columns, spread):
    kind = dtype_of(dtype)
    x = np.random.default_rng(0).integers(0, 2, (ROWS, columns)).astype(kind.numpy)
    y = np.zeros((len(HINTS), ROWS, columns), x.dtype)
    args = [to_device(a, kind) for a in (x, y)]
    tw.compile(moved(HINTS, columns, dtype, held, spread), target="cuda")(*args)
    for each in from_device(args[1], y, kind):
        np.testing.assert_array_equal(each, x)
