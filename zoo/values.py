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
        x = T.load(X[r, :])
        e = T.exp2((x - T.max(x, dim=1, keepdim=True)) * LOG2E)
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
        x, w, b = T.load(X[r, :]), T.load(weight[:]), T.load(bias[:])
        mean, var = T.mean(x, dim=1, keepdim=True), T.var(x, dim=1, keepdim=True)
        Y[r, :] = (x - mean) * T.rsqrt(var + eps) * w + b
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
        lse = top + T.log(T.sum(T.exp(x - top[:, None]), dim=1))
        Y[r] = T.where(label == ignore, 0, lse - T.load(X[r.index, label], fill=0))
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
