"""Products of one row, one column or one step: any side of `@` may be a 1 that was written."""

import ml_dtypes
import numpy as np
import pytest

import tests.roads  # noqa: F401  (cuda_threads)
import tilewright as tw
import tilewright.language as T

TYPES = {"float32": np.float32, "bfloat16": ml_dtypes.bfloat16, "int8": np.int8}


@tw.jit
def column(A, B):
    M, K = T.const("M, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, 1))
    C = T.empty((M, 1), "float32")
    for m in T.tile(M):
        acc = T.zeros((m, 1), "int32" if A.dtype == "int8" else "float32")
        for k in T.tile(K):
            acc += A[m, k] @ B[k, :]
        C[m, :] = acc
    return C


@tw.jit
def row(A, B):
    N, K = T.const("N, K")
    A: T.Tensor((1, K))
    B: T.Tensor((K, N))
    C = T.empty((1, N), "float32")
    for n in T.tile(N):
        acc = T.zeros((1, n), "int32" if A.dtype == "int8" else "float32")
        for k in T.tile(K):
            acc += A[:, k] @ B[k, n]
        C[:, n] = acc
    return C


@tw.jit
def transposed(A, B):
    M, K = T.const("M, K")
    A: T.Tensor((M, K))
    B: T.Tensor((1, K))
    C = T.empty((M, 1), "float32")
    for m in T.tile(M):
        C[m, :] = A[m, :] @ B[:, :].T
    return C


@tw.jit
def both(A, B):
    K = T.const("K")
    A: T.Tensor((1, K))
    B: T.Tensor((K, 1))
    C = T.empty((1, 1), "float32")
    for _ in T.tile():
        C[:, :] = A[:, :] @ B[:, :]
    return C


@tw.jit
def outer(A, B):
    M, N = T.const("M, N")
    A: T.Tensor((M, 1))
    B: T.Tensor((1, N))
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        C[m, n] = A[m, :] @ B[:, n]
    return C


KERNELS = {
    column: ((50, 300), (300, 1)),
    row: ((1, 300), (300, 70)),
    transposed: ((50, 300), (1, 300)),
    both: ((1, 300), (300, 1)),
    outer: ((50, 1), (1, 70)),
}


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.__name__)
def test_a_line_times_a_matrix(kernel, kind):
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(TYPES[kind]) for shape in KERNELS[kernel])
    want = a.astype(np.float32) @ (b.T if kernel is transposed else b).astype(np.float32)
    for target in ("interp -sanitize", "cpu", "cuda_threads"):
        assert (np.asarray(kernel.on(target)(a, b)) == want).all()
    assert kernel.on("cuda -arch=sm_90a").compile(a, b).ptx


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_the_sum_of_bfloat16_is_float32(target):
    a = np.full((3, 300), 1.0078125, ml_dtypes.bfloat16)  # its square needs 15 bits
    b = np.full((300, 1), 1.0078125, ml_dtypes.bfloat16)
    np.testing.assert_allclose(column.on(target)(a, b), 300 * 1.0078125**2, rtol=1e-6)


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_a_sum_of_one_of_two_equal_dimensions_is_a_side(target):
    """Both dimensions of 4 are padded to 16: they are one axis, but two places."""

    @tw.jit(target=target)
    def kernel(X, Y):
        X: T.Tensor((4, 16, 4), "float32")
        Y: T.Tensor((16, 16), "float16")
        A = T.empty((4, 16), "float32")
        for n in T.tile(16):
            A[:, n] = T.cast(T.sum(X[:, :, :], dim=2), "float16") @ Y[:, n]
        return A

    rng = np.random.default_rng(0)
    x = rng.integers(-3, 4, (4, 16, 4)).astype(np.float32)
    y = rng.integers(-3, 4, (16, 16)).astype(np.float16)
    np.testing.assert_array_equal(kernel(x, y), x.sum(2) @ y.astype(np.float32))
