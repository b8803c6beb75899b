"""Matrix products over tile values: transposed, batched, scaled, grouped, and a convolution.

Tiles are left open: `kernel.with_schedule(tiles={"m": 128})` pins them.
"""

import tilewright as tw
import tilewright.language as T


@tw.jit
def matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def linear(A, B, bias, activation=T.gelu):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = activation(acc + bias[n])
    return C


@tw.jit
def matmul_relu(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "bfloat16")
    B: T.Tensor((K, N), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = T.relu(acc)
    return C


@tw.jit
def matmul_transposed(A, B, transpose_A=False, transpose_B=True):
    """A and B as they are stored, transposed or not."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M) if transpose_A else (M, K), "bfloat16")
    B: T.Tensor((N, K) if transpose_B else (K, N), "bfloat16")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            a = A[k, m].T if transpose_A else A[m, k]
            acc += a @ (B[n, k].T if transpose_B else B[k, n])
        C[m, n] = acc
    return C


@tw.jit
def matmul_batched(A, B):
    batch, M, N, K = T.const("batch, M, N, K")
    A: T.Tensor((batch, M, K), "bfloat16")
    B: T.Tensor((batch, K, N), "bfloat16")
    C = T.empty((batch, M, N), "bfloat16")
    for b, m, n in T.tile(T.each(batch), M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[b, m, k] @ B[b, k, n]
        C[b, m, n] = acc
    return C


@tw.jit
def matmul_scaled(A, B, A_scale, B_scale, group=128):
    """A · Bᵀ, where a row of A has a scale for every `group` of K, and B one for every square of
    `group`. Each group's product begins anew and is scaled in float32 as it is added."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float8_e4m3fn")
    B: T.Tensor((N, K), "float8_e4m3fn")
    A_scale: T.Tensor((M, -(-K // group)), "float32")
    B_scale: T.Tensor((-(-N // group), -(-K // group)), "float32")
    C = T.empty((M, N), "bfloat16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K, size=group):
            g = k.start // group
            acc += A[m, k] @ B[n, k].T * (A_scale[m, g][:, None] * B_scale[n.index // group, g])
        C[m, n] = acc
    return C


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
def convolution(X, F):
    """3×3, with zeros around."""
    N, H, W, C, O = T.const("N, H, W, C, O")
    X: T.Tensor((N, H, W, C), "bfloat16")
    F: T.Tensor((3, 3, C, O), "bfloat16")
    Y = T.empty((N, H, W, O), "bfloat16")
    for p, o in T.tile(N * H * W, O):
        n, y, x = p.index // (H * W), p.index // W % H, p.index % W
        acc = T.zeros((p, o))
        for dy, dx, c in T.tile(T.each(3), T.each(3), C):
            acc += X[n, y + dy - 1, x + dx - 1, c] @ F[dy, dx, c, o]
        Y[n, y, x, o] = acc
    return Y
