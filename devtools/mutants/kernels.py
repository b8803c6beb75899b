"""Right kernels, small, and with everything that can be got wrong: barriers, clears, guards,
atomics, shuffles, masks. The last parameter is what a call makes, where it is called Y."""

from __future__ import annotations

import tilewright.language as T

N = 64


@T.prim_func
def reverse(X: T.Tensor((128,), "float32"), Y: T.Tensor((128,), "float32")):
    with T.Kernel(2, threads=N) as bx:
        t = T.get_thread_binding()
        s = T.alloc_shared((N,), "float32")
        s[t] = X[bx * N + t]
        T.sync_threads()
        Y[bx * N + t] = s[N - 1 - t]


@T.prim_func
def tree_sum(X: T.Tensor((256,), "float32"), Y: T.Tensor((4,), "float32")):
    with T.Kernel(4, threads=N) as bx:
        t = T.get_thread_binding()
        s = T.alloc_shared((N,), "float32")
        s[t] = X[bx * N + t]
        T.sync_threads()
        for k in T.serial(6):
            if t < 32 >> k:
                s[t] = s[t] + s[t + (32 >> k)]
            T.sync_threads()
        if t == 0:
            Y[bx] = s[0]


@T.prim_func
def warp_sum(X: T.Tensor((128,), "float32"), Y: T.Tensor((1,), "float32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        v = T.alloc_var("float32")
        parts = T.alloc_shared((4,), "float32")
        v = X[t]
        for k in T.serial(5):
            v = v + T.shfl_down(v, 16 >> k)
        if t % 32 == 0:
            parts[t // 32] = v
        T.sync_threads()
        if t == 0:
            Y[0] = parts[0] + parts[1] + parts[2] + parts[3]


@T.prim_func
def butterfly(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        v = T.alloc_var("float32")
        v = X[t]
        for k in T.serial(5):
            v = T.max(v, T.shfl_xor(v, 1 << k))
        Y[t] = v


@T.prim_func
def segments(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        first = T.shfl_sync(X[t], 0, width=8)
        if t % 32 < 16:
            Y[t] = X[t] - first + T.shfl_down(X[t], 4, width=16)
        else:
            Y[t] = first


@T.prim_func
def histogram(X: T.Tensor((256,), "int32"), H: T.Tensor((4,), "int32")):
    with T.Kernel(4, threads=N) as bx:
        t = T.get_thread_binding()
        s = T.alloc_shared((4,), "int32")
        if t < 4:
            s[t] = 0
        T.sync_threads()
        T.atomic_add(s[X[bx * N + t]], 1)
        T.sync_threads()
        if t < 4:
            T.atomic_add(H[t], s[t])


@T.prim_func
def scan(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        s = T.alloc_shared((N,), "float32")
        v = T.alloc_var("float32")
        s[t] = X[t]
        T.sync_threads()
        for k in T.serial(6):
            v = s[t]
            if t >= 1 << k:
                v = v + s[t - (1 << k)]
            T.sync_threads()
            s[t] = v
            T.sync_threads()
        Y[t] = s[t]


@T.prim_func
def matmul_by_threads(
    A: T.Tensor((16, 16), "float32"),
    B: T.Tensor((16, 16), "float32"),
    Y: T.Tensor((16, 16), "float32"),
):
    with T.Kernel(2, 2, threads=(8, 8)) as (bx, by):
        i = T.get_thread_binding(1)
        j = T.get_thread_binding(0)
        a = T.alloc_shared((8, 8), "float32")
        b = T.alloc_shared((8, 8), "float32")
        total = T.alloc_var("float32", init=0.0)
        for k in T.serial(2):
            a[i, j] = A[by * 8 + i, k * 8 + j]
            b[i, j] = B[k * 8 + i, bx * 8 + j]
            T.sync_threads()
            for x in T.serial(8):
                total += a[i, x] * b[x, j]
            T.sync_threads()
        Y[by * 8 + i, bx * 8 + j] = total


@T.prim_func
def transpose_by_threads(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((32, 16), "float32")):
    with T.Kernel(2, threads=(16, 16)) as bx:
        i = T.get_thread_binding(1)
        j = T.get_thread_binding(0)
        s = T.alloc_shared((16, 17), "float32")
        s[i, j] = X[i, bx * 16 + j]
        T.sync_threads()
        Y[bx * 16 + i, j] = s[j, i]


@T.prim_func
def stencil(X: T.Tensor((128,), "float32"), Y: T.Tensor((128,), "float32")):
    with T.Kernel(2, threads=N) as bx:
        t = T.get_thread_binding()
        s = T.alloc_shared((N + 2,), "float32")
        s[t + 1] = X[bx * N + t]
        if t == 0:
            s[0] = X[bx * N - 1]
        if t == N - 1:
            s[N + 1] = X[bx * N + N]
        T.sync_threads()
        Y[bx * N + t] = s[t] + s[t + 1] * 2 + s[t + 2]


@T.prim_func
def double_buffer(X: T.Tensor((4, 64), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        s = T.alloc_shared((2, N), "float32")
        total = T.alloc_var("float32", init=0.0)
        s[0, t] = X[0, t]
        for k in T.serial(4):
            T.sync_threads()
            if k < 3:
                s[(k + 1) % 2, t] = X[k + 1, t]
            total += s[k % 2, N - 1 - t]
        Y[t] = total


@T.prim_func
def tail(X: T.Tensor((100,), "float32"), Y: T.Tensor((100,), "float32")):
    with T.Kernel(2, threads=N) as bx:
        t = T.get_thread_binding()
        s = T.alloc_shared((N,), "float32")
        if bx * N + t < 100:
            s[t] = X[bx * N + t] * 2
        T.sync_threads()
        if bx * N + t < 100:
            if t > 0:
                Y[bx * N + t] = s[t - 1]
            else:
                Y[bx * N + t] = 0


@T.prim_func
def softmax(X: T.Tensor((20, 40), "float32"), Y: T.Tensor((20, 40), "float32")):
    with T.Kernel(2, threads=N) as bx:
        x = T.alloc_fragment((16, 64), "float32")
        m = T.alloc_fragment((16,), "float32")
        d = T.alloc_fragment((16,), "float32")
        T.copy(X[bx * 16, 0], x)
        for i, j in T.Parallel(16, 64):
            x[i, j] = T.if_then_else(j < 40, x[i, j], -T.infinity("float32"))
        T.reduce_max(x, m, dim=1)
        for i, j in T.Parallel(16, 64):
            x[i, j] = T.exp(x[i, j] - m[i])
        T.reduce_sum(x, d, dim=1)
        for i, j in T.Parallel(16, 64):
            x[i, j] = x[i, j] / d[i]
        T.copy(x, Y[bx * 16, 0])


@T.prim_func
def column_min(X: T.Tensor((20, 16), "float32"), Y: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=N):
        x = T.alloc_shared((32, 16), "float32")
        m = T.alloc_fragment((16,), "float32")
        T.fill(x, 100.0)
        for i, j in T.Parallel(32, 16):
            if i < 20:
                x[i, j] = X[i, j]
        T.reduce_min(x, m, dim=0)
        T.copy(m, Y)


@T.prim_func
def gemm(
    A: T.Tensor((32, 48), "float16"),
    B: T.Tensor((48, 32), "float16"),
    Y: T.Tensor((32, 32), "float32"),
):
    with T.Kernel(2, threads=N) as bx:
        a = T.alloc_shared((32, 16), "float16")
        b = T.alloc_shared((16, 16), "float16")
        c = T.alloc_fragment((32, 16), "float32")
        T.clear(c)
        for k in T.Pipelined(3, num_stages=2):
            T.copy(A[0, k * 16], a)
            T.copy(B[k * 16, bx * 16], b)
            T.gemm(a, b, c)
        for i, j in T.Parallel(32, 16):
            c[i, j] = T.max(c[i, j], 0)
        T.copy(c, Y[0, bx * 16])


@T.prim_func
def split_k(A: T.Tensor((4, 64), "float32"), Y: T.Tensor((64,), "float32")):
    parts = T.alloc_global((4, 64), "float32")
    with T.Kernel(4, threads=N) as bx:
        for i in T.Parallel(64):
            parts[bx, i] = A[bx, i] * 2
    with T.Kernel(1, threads=N):
        f = T.alloc_fragment((64,), "float32")
        T.clear(f)
        for k in T.serial(4):
            for i in T.Parallel(64):
                f[i] += parts[k, i]
        T.copy(f, Y)


@T.prim_func
def added_up(A: T.Tensor((4, 64), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        T.clear(Y)
    with T.Kernel(4, threads=N) as bx:
        for i in T.Parallel(64):
            T.atomic_add(Y[i], A[bx, i])


@T.prim_func
def column_sums(X: T.Tensor((32, 16), "float32"), Y: T.Tensor((16,), "float32")):
    with T.Kernel(1, threads=N):
        s = T.alloc_shared((16,), "float32")
        T.clear(s)
        for i, j in T.Parallel(32, 16):
            T.atomic_add(s[j], X[i, j])
        for j in T.Parallel(16):
            Y[j] = s[15 - j]


@T.prim_func
def dots(
    X: T.Tensor((64, 8), "float32"), W: T.Tensor((8,), "float32"), Y: T.Tensor((64,), "float32")
):
    with T.Kernel(2, threads=32) as bx:
        for i in T.Parallel(32):
            total = T.alloc_var("float32", init=0.0)
            for k in T.serial(8):
                total += X[bx * 32 + i, k] * W[k]
            Y[bx * 32 + i] = total


@T.prim_func
def norm(X: T.Tensor((8, 48), "float32"), Y: T.Tensor((8, 48), "float32")):
    with T.Kernel(8, threads=32) as bx:
        x = T.alloc_fragment((1, 64), "float32")
        q = T.alloc_fragment((1, 64), "float32")
        s = T.alloc_fragment((1,), "float32")
        T.copy(X[bx, 0], x)
        for i, j in T.Parallel(1, 64):
            q[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(q, s, dim=1)
        for i, j in T.Parallel(1, 64):
            x[i, j] = x[i, j] / T.sqrt(s[i] / 48 + 1.0)
        T.copy(x, Y[bx, 0])


@T.prim_func
def attention(
    Q: T.Tensor((16, 16), "float32"),
    K: T.Tensor((40, 16), "float32"),
    V: T.Tensor((40, 16), "float32"),
    Y: T.Tensor((16, 16), "float32"),
):
    with T.Kernel(1, threads=N):
        q = T.alloc_shared((16, 16), "float32")
        k = T.alloc_shared((32, 16), "float32")
        v = T.alloc_shared((32, 16), "float32")
        s = T.alloc_fragment((16, 32), "float32")
        p = T.alloc_shared((16, 32), "float32")
        o = T.alloc_fragment((16, 16), "float32")
        new = T.alloc_fragment((16,), "float32")
        old = T.alloc_fragment((16,), "float32")
        part = T.alloc_fragment((16,), "float32")
        total = T.alloc_fragment((16,), "float32")
        T.copy(Q, q)
        T.clear(o)
        T.clear(total)
        T.fill(new, -1.0e4)
        for n in T.serial(2):
            T.copy(K[n * 32, 0], k)
            T.copy(V[n * 32, 0], v)
            T.clear(s)
            T.gemm(q, k, s, transpose_B=True)
            for i, j in T.Parallel(16, 32):
                s[i, j] = T.if_then_else(n * 32 + j < 40, s[i, j], -1.0e4)
            T.copy(new, old)
            T.reduce_max(s, new, dim=1, clear=False)
            for i, j in T.Parallel(16, 32):
                s[i, j] = T.exp(s[i, j] - new[i])
            T.reduce_sum(s, part, dim=1)
            for i in T.Parallel(16):
                total[i] = total[i] * T.exp(old[i] - new[i]) + part[i]
            for i, j in T.Parallel(16, 16):
                o[i, j] = o[i, j] * T.exp(old[i] - new[i])
            T.copy(s, p)
            T.gemm(p, v, o)
        for i, j in T.Parallel(16, 16):
            o[i, j] = o[i, j] / total[i]
        T.copy(o, Y)


@T.prim_func
def gathered(
    X: T.Tensor((32,), "float32"), I: T.Tensor((64,), "int32"), Y: T.Tensor((64,), "float32")
):
    with T.Kernel(2, threads=32) as bx:
        x = T.alloc_shared((32,), "float32")
        T.copy(X, x)
        for i in T.Parallel(32):
            Y[bx * 32 + i] = x[I[bx * 32 + i]]


@T.prim_func
def pooled(X: T.Tensor((16, 20), "float32"), Y: T.Tensor((8, 10), "float32")):
    with T.Kernel(1, threads=N):
        x = T.alloc_shared((16, 20), "float32")
        y = T.alloc_fragment((8, 10), "float32")
        T.copy(X, x)
        for i, j in T.Parallel(8, 10):
            y[i, j] = T.max(
                T.max(x[2 * i, 2 * j], x[2 * i + 1, 2 * j]),
                T.max(x[2 * i, 2 * j + 1], x[2 * i + 1, 2 * j + 1]),
            )
        T.copy(y, Y)


@T.prim_func
def counted(X: T.Tensor((64,), "int32"), Y: T.Tensor((2,), "int32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        s = T.alloc_shared((2,), "int32")
        word = T.ballot(X[t] > 1)
        if t % 32 == 0:
            s[t // 32] = T.popcount(T.cast(word, "int32"))
        T.sync_threads()
        if t < 2:
            Y[t] = s[t] + s[1 - t] * 100


@T.prim_func
def neighbours(X: T.Tensor((64,), "float32"), Y: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=N):
        t = T.get_thread_binding()
        s = T.alloc_shared((N,), "float32")
        s[t] = X[t]
        T.sync_warp()
        Y[t] = s[t ^ 1] + T.shfl_up(X[t], 1)


KERNELS = [
    reverse, tree_sum, warp_sum, butterfly, segments, histogram, scan, matmul_by_threads,
    transpose_by_threads, stencil, double_buffer, tail, softmax, column_min, gemm, split_k,
    added_up, column_sums, dots, norm, attention, gathered, pooled, counted, neighbours,
]  # fmt: skip
