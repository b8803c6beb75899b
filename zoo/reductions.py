"""Reductions over tile values, along rows and along columns of any length."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def argmax_rows(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M,), "int32")
    for r in T.tile(M):
        Y[r] = T.argmax(X[r, :], dim=1)
    return Y


@tw.jit
def argmax_columns(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((N,), "int32")
    for n in T.tile(N):
        Y[n] = T.argmax(X[:, n], dim=0)
    return Y


@tw.jit
def norm_rows(X, dtype: str = "float32"):
    """Each row over its Euclidean length."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for r in T.tile(M):
        x = T.load(X[r, :])
        Y[r, :] = x * T.rsqrt(T.sum(x * x, dim=1, keepdim=True))
    return Y


@tw.jit
def norm_columns(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for n in T.tile(N):
        x = T.load(X[:, n])
        Y[:, n] = x * T.rsqrt(T.sum(x * x, dim=0, keepdim=True))
    return Y
