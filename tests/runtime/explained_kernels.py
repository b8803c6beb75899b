"""Kernels whose explanation is kept word for word: a product, attention, and rows of a softmax."""

import tilewright.language as T


@T.prim_func
def gemm(
    A: T.Tensor((256, 192), "float16"),
    B: T.Tensor((192, 256), "float16"),
    C: T.Tensor((256, 256), "float16"),
):
    with T.Kernel(2, 2, threads=128) as (bx, by):
        a = T.alloc_shared((128, 64), "float16")
        b = T.alloc_shared((64, 128), "float16")
        c = T.alloc_fragment((128, 128), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=3):
            T.copy(A[by * 128, k * 64], a)
            T.copy(B[k * 64, bx * 128], b)
            T.gemm(a, b, c)
        T.copy(c, C[by * 128, bx * 128])


@T.prim_func
def attention(
    Q: T.Tensor((128, 64), "float16"),
    K: T.Tensor((256, 64), "float16"),
    V: T.Tensor((256, 64), "float16"),
    O: T.Tensor((128, 64), "float16"),
):
    with T.Kernel(2, threads=128) as bx:
        q = T.alloc_shared((64, 64), "float16")
        k = T.alloc_shared((64, 64), "float16")
        v = T.alloc_shared((64, 64), "float16")
        s = T.alloc_fragment((64, 64), "float32")
        p = T.alloc_fragment((64, 64), "float16")
        o = T.alloc_fragment((64, 64), "float32")
        top = T.alloc_fragment((64,), "float32")
        before = T.alloc_fragment((64,), "float32")
        part = T.alloc_fragment((64,), "float32")
        total = T.alloc_fragment((64,), "float32")
        T.copy(Q[bx * 64, 0], q)
        T.clear(o)
        T.clear(total)
        T.fill(top, -1e30)
        for i in T.Pipelined(4, num_stages=2):
            T.copy(K[i * 64, 0], k)
            T.gemm(q, k, s, transpose_B=True, clear_accum=True)
            T.copy(top, before)
            T.reduce_max(s, top, dim=1, clear=False)
            for r, j in T.Parallel(64, 64):
                s[r, j] = T.exp2(s[r, j] - top[r])
            T.reduce_sum(s, part, dim=1)
            for r in T.Parallel(64):
                total[r] = total[r] * T.exp2(before[r] - top[r]) + part[r]
            for r, j in T.Parallel(64, 64):
                o[r, j] = o[r, j] * T.exp2(before[r] - top[r])
            T.copy(s, p)
            T.copy(V[i * 64, 0], v)
            T.gemm(p, v, o)
        for r, j in T.Parallel(64, 64):
            o[r, j] = o[r, j] / total[r]
        T.copy(o, O[bx * 64, 0])


@T.prim_func
def softmax(X: T.Tensor((64, 1000), "bfloat16"), Y: T.Tensor((64, 1000), "bfloat16")):
    with T.Kernel(16, threads=128) as b:
        x = T.alloc_fragment((4, 1000), "float32")
        top = T.alloc_fragment((4,), "float32")
        total = T.alloc_fragment((4,), "float32")
        T.copy(X[b * 4, 0], x)
        T.reduce_max(x, top, dim=1)
        for i, j in T.Parallel(4, 1000):
            x[i, j] = T.exp(x[i, j] - top[i])
        T.reduce_sum(x, total, dim=1)
        for i, j in T.Parallel(4, 1000):
            x[i, j] = x[i, j] / total[i]
        T.copy(x, Y[b * 4, 0])


KERNELS = {"gemm": gemm, "attention": attention, "softmax": softmax}
