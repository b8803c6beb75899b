"""What is right and slow is said: as a warning at the kernel's line, and by `explain()`."""

import warnings

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads


def costs_of(program, target="cuda"):
    """The warnings of compiling `program`, and its explanation."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        kernel = tw.compile(program, target=target)
    found = [w for w in caught if issubclass(w.category, tw.PerformanceWarning)]
    return found, kernel


def product(m=64, n=64, k=64, dtype="float16", acc="float32", threads=128, **more):
    transpose = more.get("transpose_B", False)
    shape = (n, k) if transpose else (k, n)

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor(shape, dtype), C: T.Tensor((m, n), acc)):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), dtype)
            b = T.alloc_shared(shape, dtype)
            c = T.alloc_fragment((m, n), acc)
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True, **more)
            T.copy(c, C)

    return main


@pytest.mark.parametrize(
    "program, said",
    [
        (
            lambda: product(m=32),
            "operands swapped: of 32×64, only the columns are a multiple of 64",
        ),
        (lambda: product(m=32, n=96), "no wgmma: C has 32 rows: make them a multiple of 64"),
        (lambda: product(k=24), "no wgmma: K is 24: make it a multiple of 16 for float16"),
        (lambda: product(threads=64), "no wgmma: 64 threads are not whole warpgroups of 128"),
        (
            lambda: product(dtype="int8", acc="int32"),
            "no wgmma: b of int8 must lie with K innermost: load it so, transpose_B=True",
        ),
        (
            lambda: product(dtype="float32"),
            'a is float32, whose products are exact: precision="tf32"',
        ),
    ],
)
def test_a_product_says_what_keeps_it_from_the_fast_instruction_or_how_it_has_it(program, said):
    _, kernel = costs_of(program())
    assert said in kernel.explain()


def test_the_fastest_instruction_has_nothing_against_it():
    found, kernel = costs_of(product())
    assert not found and "no wgmma" not in kernel.explain()


def test_a_product_without_tensor_cores_is_a_warning_at_its_line():
    program = product(m=24, n=20)
    found, kernel = costs_of(program)
    (warning,) = found
    assert warning.filename == __file__
    assert "without tensor cores" in str(warning.message)
    assert "no mma: C is 24×20: make its rows a multiple of 16" in str(warning.message)
    assert f"slow at line {warning.lineno}: this product runs without" in kernel.explain()


def test_exact_float32_products_are_no_warning():
    found, _ = costs_of(product(dtype="float32"))
    assert not found


def test_spills_are_a_warning_with_the_figure():
    @T.prim_func
    def main(A: T.Tensor((300, 128), "float32"), B: T.Tensor((300, 128), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((300, 128), "float32")
            y = T.alloc_fragment((128,), "float32")
            T.copy(A, x)
            T.reduce_sum(x, y, dim=0)
            for i, j in T.Parallel(300, 128):
                B[i, j] = x[i, j] / y[j]

    found, kernel = costs_of(main)
    spilled = kernel.resources["spill_bytes"]
    assert spilled > 0
    assert any(f"{spilled} bytes of register spills" in str(w.message) for w in found)
    assert f"{spilled} bytes spilled" in kernel.explain()


def test_a_warning_comes_once():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            tw.compile(product(m=40, n=20), target="cuda")
    assert len([w for w in caught if issubclass(w.category, tw.PerformanceWarning)]) == 1


def tall(rows, reduced):
    @T.prim_func
    def main(A: T.Tensor((rows, 128), "float32"), B: T.Tensor((rows, 128), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((rows, 128), "float32")
            y = T.alloc_fragment((128,), "float32")
            T.copy(A, x)
            if reduced:
                T.reduce_sum(x, y, dim=0)
            else:
                T.clear(y)
            for i, j in T.Parallel(rows, 128):
                B[i, j] = x[i, j] - y[j]

    return main


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize", *on_threads(), *on_gpu()])
@pytest.mark.parametrize("rows, reduced", [(288, False), (544, True)])
def test_fragments_above_255_registers_compute(target, rows, reduced):
    a = np.random.default_rng(0).integers(-8, 8, (rows, 128)).astype(np.float32)
    b = np.zeros_like(a)
    tw.compile(tall(rows, reduced), target=target)(a, b)
    np.testing.assert_array_equal(b, a - a.sum(0) if reduced else a)


@pytest.mark.parametrize(
    "rows, reduced, said",
    [
        (288, False, "x takes 288 registers per thread, of 255: it is kept in shared memory"),
        (544, True, "fragments take 545 registers per thread, of 255: the rest spills"),
    ],
)
def test_fragments_above_255_registers_are_a_warning(rows, reduced, said):
    found, kernel = costs_of(tall(rows, reduced))
    assert any(said in str(w.message) for w in found)
    assert said in kernel.explain()
