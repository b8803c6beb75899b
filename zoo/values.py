"""Kernels over tile values: one text for every size.

Tiles are left open: `kernel.with_schedule(tiles={"m": 128})` pins them.
"""

import tilewright as tw
import tilewright.language as T

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
def linear(A, B, bias):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n), "float32")
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = T.gelu(acc + bias[n])
    return C


@tw.jit
def matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n), "float32")
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def attention(Q, K, V):
    B, H, S, D = T.const("B, H, S, D")
    Q: T.Tensor((B, H, S, D), "bfloat16")
    K: T.Tensor((B, H, S, D), "bfloat16")
    V: T.Tensor((B, H, S, D), "bfloat16")
    O = T.empty((B, H, S, D), "bfloat16")
    for b, h, i in T.tile(T.each(B), T.each(H), S):
        q, scale = T.load(Q[b, h, i, :]), D**-0.5 * LOG2E
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        for j in T.tile(i.stop):
            s = T.where(j.index <= i.index[:, None], q @ K[b, h, j, :].T, -T.inf)
            new = T.maximum(top, T.max(s, dim=1))
            p = T.__exp2(s * scale - (new * scale)[:, None])
            fix = T.__exp2((top - new) * scale)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[b, h, j, :]
            top = new
        O[b, h, i, :] = acc * (1 / total)[:, None]
    return O


@tw.jit
def convolution(X, F):
    """3×3, with zeros around."""
    N, H, W, C, O = T.const("N, H, W, C, O")
    X: T.Tensor((N, H, W, C), "bfloat16")
    F: T.Tensor((3, 3, C, O), "bfloat16")
    Y = T.empty((N, H, W, O), "bfloat16")
    for p, o in T.tile(N * H * W, O):
        n, y, x = p.index // (H * W), p.index // W % H, p.index % W
        acc = T.zeros((p, o))
        for dy in range(3):
            for dx in range(3):
                for c in T.tile(C):
                    acc += X[n, y + dy - 1, x + dx - 1, c] @ F[dy, dx, c, o]
        Y[n, y, x, o] = acc
    return Y


@tw.jit
def grouped(A, B, offset, most: int):
    """The rows of A between two offsets, times the expert's matrix; `most` rows at the most."""
    S, E, K, N = T.const("S, E, K, N")
    A: T.Tensor((S, K), "bfloat16")
    B: T.Tensor((E, K, N), "bfloat16")
    offset: T.Tensor((E + 1,), "int32")
    C = T.empty((S, N), "bfloat16", partial=True)
    for e, m, n in T.tile(T.each(E), most, N):
        m = m.within(offset[e], offset[e + 1])
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[e, k, n]
        C[m, n] = acc
    return C


@tw.jit
def paged_decode(Q, K, V, table, lens, splits: int):
    """Attention of one query over pages of keys, in `splits` parts with their log-sum-exp."""
    B, G, H, D = T.const("B, G, H, D")
    pages, P, most = T.const("pages, P, most")
    Q: T.Tensor((B, G, H, D), "bfloat16")
    K: T.Tensor((pages, P, G, D), "bfloat16")
    V: T.Tensor((pages, P, G, D), "bfloat16")
    table: T.Tensor((B, most), "int32")
    lens: T.Tensor((B,), "int32")
    part = T.empty((B, G, splits, H, D), "float32")
    lse = T.empty((B, G, splits, H), "float32")
    for b, g, s in T.tile(T.each(B), T.each(G), T.each(splits)):
        run, q = T.ceildiv(lens[b], splits), T.load(Q[b, g, :, :])
        top, total, acc = T.full((H,), -1e30), T.zeros((H,)), T.zeros((H, D))
        for j in T.tile((s * run, T.min(s * run + run, lens[b]))):
            page, slot = table[b, j.index // P], j.index % P
            x = q @ K[page, slot, g, :].T * D**-0.5
            new = T.maximum(top, T.max(x, dim=1))
            p, fix = T.exp(x - new[:, None]), T.exp(top - new)
            total, top, acc = (
                total * fix + T.sum(p, dim=1),
                new,
                acc * fix[:, None] + T.cast(p, V.dtype) @ V[page, slot, g, :],
            )
        part[b, g, s, :, :] = T.where(total[:, None] > 0, acc / total[:, None], 0)
        lse[b, g, s, :] = top + T.log(total)
    return part, lse
