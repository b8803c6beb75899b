"""Scans over tile values, along rows and along columns of any length: pieces, and what comes before
them.

`T.sum` of a piece that was scanned costs nothing: it is the scan's total. Tiles are left open:
`kernel.with_schedule(tiles={"r": 4, "n": 1024})` pins them.
"""

import tilewright as tw
import tilewright.language as T


@tw.jit
def cumsum_rows(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for r in T.tile(M):
        before = T.zeros((r,))
        for n in T.tile(N):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=1) + before[:, None]
            before += T.sum(x, dim=1)
    return Y


@tw.jit
def cumsum_columns(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for n in T.tile(N):
        before = T.zeros((n,))
        for r in T.tile(M):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=0) + before
            before += T.sum(x, dim=0)
    return Y


@tw.jit
def masked_cumsum_rows(X, mask, dtype: str = "float32"):
    """Of the elements where `mask`."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    mask: T.Tensor((M, N), "bool")
    Y = T.empty((M, N), dtype)
    for r in T.tile(M):
        before = T.zeros((r,))
        for n in T.tile(N):
            x = T.where(mask[r, n], X[r, n], 0)
            Y[r, n] = T.cumsum(x, dim=1) + before[:, None]
            before += T.sum(x, dim=1)
    return Y


@tw.jit
def reverse_cumsum_rows(X, dtype: str = "float32"):
    """From the end of each row."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for r in T.tile(M):
        after = T.zeros((r,))
        for n in reversed(T.tile(N)):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=1, reverse=True) + after[:, None]
            after += T.sum(x, dim=1)
    return Y


@tw.jit
def cumprod_rows(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for r in T.tile(M):
        before = T.ones((r,))
        for n in T.tile(N):
            x = T.load(X[r, n])
            Y[r, n] = T.cumprod(x, dim=1) * before[:, None]
            before *= T.prod(x, dim=1)
    return Y


@tw.jit
def cumprod_columns(X, dtype: str = "float32"):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), dtype)
    Y = T.empty((M, N), dtype)
    for n in T.tile(N):
        before = T.ones((n,))
        for r in T.tile(M):
            x = T.load(X[r, n])
            Y[r, n] = T.cumprod(x, dim=0) * before
            before *= T.prod(x, dim=0)
    return Y


@tw.jit
def recurrence_rows(A, B, dtype: str = "float32"):
    """h[n] = A[n] · h[n - 1] + B[n], from 0: the state of a linear recurrence."""
    M, N = T.const("M, N")
    A: T.Tensor((M, N), dtype)
    B: T.Tensor((M, N), dtype)
    H = T.empty((M, N), dtype)
    for r in T.tile(M):
        state = T.zeros((r,))
        for n in T.tile(N):
            a, b = T.load(A[r, n]), T.load(B[r, n])
            factor, h = T.scan((a, b), _then, dim=1)
            H[r, n] = h + factor * state[:, None]
            factor, h = T.reduce((a, b), _then, dim=1)
            state = h + factor * state
    return H


def _then(x, y):
    """One step of the recurrence after another."""
    return x[0] * y[0], x[1] * y[0] + y[1]
