"""Kernels over tile values that move and reduce: one text for every size. Products are in
`zoo/gemm/values.py`, attention in `zoo/attention/values.py` and `zoo/mla/values.py`.

Tiles are left open: `kernel.with_schedule(tiles={"m": 128})` pins them.
"""

import tilewright as tw
import tilewright.language as T
from zoo.rows import STREAM

LOG2E = 1.4426950408889634


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    Y = T.empty((M, N), "bfloat16")
    for r in T.tile(M):
        x = T.load(X[r, :], cache="evict_last")
        e = T.__exp2(x * LOG2E - T.max(x, dim=1, keepdim=True) * LOG2E)
        Y[r, :] = e * (1 / T.sum(e, dim=1, keepdim=True))
    return Y


@tw.jit
def layer_norm(X, weight, bias, eps=1e-5):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    weight: T.Tensor((N,), "bfloat16")
    bias: T.Tensor((N,), "bfloat16")
    Y = T.empty((M, N), "bfloat16")
    for r in T.tile(M):
        x, w, b = T.load(X[r, :], cache="evict_last"), T.load(weight[:]), T.load(bias[:])
        mean, scale = T.mean(x, dim=1, keepdim=True), T.var(x, dim=1, keepdim=True)
        scale = T.rsqrt(scale + eps)
        Y[r, :] = (x * scale - mean * scale) * w + b
    return Y


@tw.jit
def rms_norm(X, weight, eps=1e-6, silu: bool = False):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    weight: T.Tensor((N,), "bfloat16")
    Y = T.empty((M, N), "bfloat16")
    for r in T.tile(M):
        x, w = T.load(X[r, :], cache="evict_last"), T.load(weight[:])
        y = x * T.rsqrt(T.mean(x * x, dim=1, keepdim=True) + eps) * w
        Y[r, :] = y * T.__sigmoid(y) if silu else y
    return Y


@tw.jit
def group_norm(X, weight, bias, eps=1e-5):
    """The channels of a group, and all of their places, have one mean and one deviation."""
    B, G, C, L = T.const("B, G, C, L")
    X: T.Tensor((B, G, C, L), "bfloat16")
    weight: T.Tensor((G, C), "bfloat16")
    bias: T.Tensor((G, C), "bfloat16")
    Y = T.empty((B, G, C, L), "bfloat16")
    for b, g in T.tile(T.each(B), T.each(G)):
        x = T.load(X[b, g, :, :], cache="evict_last")
        mean, scale = T.mean(x, dim=(0, 1)), T.rsqrt(T.var(x, dim=(0, 1)) + eps)
        Y[b, g, :, :] = (x - mean) * scale * weight[g, :][:, None] + bias[g, :][:, None]
    return Y


@tw.jit
def cross_entropy(X, L, ignore=-1):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    L: T.Tensor((M,), "int32")
    Y = T.empty((M,), "float32")
    for r in T.tile(M):
        x, label = T.load(X[r, :]), T.load(L[r])
        top = T.max(x, dim=1)
        total = T.sum(T.__exp2(x * LOG2E - (top * LOG2E)[:, None]), dim=1)
        Y[r] = T.where(label == ignore, 0, top + T.log(total) - T.load(X[r.index, label], fill=0))
    return Y


@tw.jit
def vector_add(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    for n in T.tile(N):
        C[n] = A[n] + B[n]
    return C


@tw.jit
def swiglu(A, B):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "bfloat16")
    B: T.Tensor((M, N), "bfloat16")
    Y = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        a, b = T.load(A[m, n], cache=STREAM), T.load(B[m, n], cache=STREAM)
        Y[m, n] = a * T.__sigmoid(a) * b
    return Y


@tw.jit
def transpose(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "bfloat16")
    Y = T.empty((N, M), "bfloat16")
    for n, m in T.tile(N, M):
        Y[n, m] = T.load(X[m, n], cache=STREAM).T
    return Y
