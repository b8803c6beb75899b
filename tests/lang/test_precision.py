"""How float32 operands multiply: as IEEE says, or rounded for the tensor core, where asked."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.machine.numbers import round_tf32


@tw.jit
def by_values(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


def by_words(precision=None):
    @tw.jit
    def multiply(A, B):
        A: T.Tensor((16, 32), "float32")
        B: T.Tensor((32, 16), "float32")
        C = T.empty((16, 16), "float32")
        with T.Kernel(1, threads=32):
            a, b = T.alloc_shared((16, 32), "float32"), T.alloc_shared((32, 16), "float32")
            c = T.alloc_fragment((16, 16), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True, precision=precision)
            T.copy(c, C)
        return C

    return multiply


def operands(m=16, n=16, k=32):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(np.float32) for shape in ((m, k), (k, n))]


@pytest.mark.parametrize("target", ["interp", "cpu"])
@pytest.mark.parametrize(
    ("kernel", "said", "is_rounded"),
    [
        (by_values, "", False),
        (by_values, " -precision=tf32", True),
        (by_words(), "", False),
        (by_words(), " -precision=tf32", True),
        (by_words("ieee"), " -precision=tf32", False),
        (by_words("tf32"), "", True),
    ],
)
def test_products(target, kernel, said, is_rounded):
    a, b = operands()
    found = kernel.on(target + said)(a, b)
    near = round_tf32(a) @ round_tf32(b) if is_rounded else a @ b
    assert np.allclose(found, near, rtol=1e-5, atol=1e-5)
    assert np.allclose(found, a @ b, rtol=1e-5, atol=1e-5) != is_rounded


def test_other_types_stay():
    import ml_dtypes

    a, b = (x.astype(ml_dtypes.bfloat16) for x in operands())
    plain, asked = (by_values.on(f"interp{said}")(a, b) for said in ("", " -precision=tf32"))
    assert np.array_equal(plain, asked)


def test_tensor_cores_multiply_them():
    told = by_values.on("cuda -arch=sm_90a -precision=tf32").compile(*operands(256, 256, 256))
    assert "wgmma, A from registers" in told.explain()


def test_unknown():
    with pytest.raises(tw.CompileError, match=r"-precision=ieee\|tf32"):
        by_values.on("cuda -precision=half").compile(*operands())
