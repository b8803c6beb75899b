"""y = x / rms(x) * w, and silu of it: whole rows in registers or in shared memory, or long rows in
pieces."""

from __future__ import annotations

from functools import partial
from math import ceil

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows


@tw.jit
def rms_norm_whole(
    M, N, block_M=4, block_N=None, threads=128, silu=False, eps=1e-6, dtype="float32"
):  # fmt: skip
    """Each block holds `block_M` rows in registers, `block_N` columns wide: one read, one write."""
    block_N = block_N or N

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), dtype)
            w = T.alloc_fragment((block_N,), dtype)
            y = T.alloc_fragment((block_M, block_N), "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            T.copy(X[row, 0], x, cache=rows.STREAM)
            T.copy(W[0], w)
            for i, j in T.Parallel(block_M, block_N):
                y[i, j] = T.cast(x[i, j], "float32") * T.cast(x[i, j], "float32")
            T.reduce_sum(y, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for i, j in T.Parallel(block_M, block_N):
                n = x[i, j] * scale[i] * w[j]
                y[i, j] = n * T.__sigmoid(n) if silu else n
            T.copy(y, Y[row, 0])

    return main


@tw.jit
def rms_norm_held(
    M, N, block_M=1, cluster=1, threads=128, vectors=1, silu=False, eps=1e-6, dtype="float32"
):  # fmt: skip
    """The blocks of a cluster hold `block_M` rows in shared memory: one read, one write. Each tells
    all of its cluster its sum of squares."""
    part, width, steps = rows.cut(N, block_M, cluster, threads, vectors)
    tile, peers = (block_M, width), tuple(range(cluster))

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M) * cluster, threads=threads, cluster_dims=cluster) as bx:
            row, rank, column = bx // cluster * block_M, bx % cluster, bx % cluster * part
            held, x = T.alloc_shared((block_M, part), dtype), T.alloc_fragment(tile, "float32")
            scale = T.alloc_fragment((block_M,), "float32")
            scales = T.alloc_shared((cluster, block_M), "float32")
            T.copy(X[row, column], held, cache=rows.STREAM)
            rows.meet(cluster)  # all are there to be told; the copy goes on meanwhile
            T.clear(x)
            for k in T.serial(steps):
                for i, j in T.Parallel(*tile):
                    v = T.cast(held[i, k * width + j], "float32")
                    x[i, j] += v * v
            T.reduce_sum(x, scale, dim=1)
            rows.tell(scale, scales, rank, cluster)
            rows.meet(cluster)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(sum([scales[p, i] for p in peers]) / N + eps)
            for k in T.serial(steps):
                for i, j in T.Parallel(*tile):
                    n = held[i, k * width + j] * scale[i] * W[column + k * width + j]
                    Y[row + i, column + k * width + j] = n * T.__sigmoid(n) if silu else n

    return main


def square(x):
    return T.cast(x, "float32") * T.cast(x, "float32")


def scaled(x, scale, w, i, j, silu):
    n = x[i, j] * scale[i] * w[i, j]
    return n * T.__sigmoid(n) if silu else n


@tw.jit
def rms_norm_kept(
    M, N, clusters=15, cluster=1, threads=128, vectors=1, silu=False, eps=1e-6, dtype="float32"
):  # fmt: skip
    """`clusters` stay, each block of them with its part of W in shared memory. They take a row
    after the other: to registers, and the next one is on its way to where it was."""
    part, width, steps = rows.cut(N, 1, cluster, threads, vectors)
    slots = partial(T.alloc_shared, (cluster, 1))

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        turn = T.alloc_global((1,), "int32")
        with T.Kernel(1, threads=32):
            T.fill(turn, 2 * clusters)  # the first row to be drawn
        with T.Kernel(clusters * cluster, threads=threads, cluster_dims=cluster) as bx:
            rank, column, first = bx % cluster, bx % cluster * part, bx // cluster
            row, after = T.alloc_var("int32", first), T.alloc_var("int32", first + clusters)
            held, w = T.alloc_shared((1, part), dtype), T.alloc_shared((1, part), dtype)
            x, y = T.alloc_fragment((1, part), dtype), T.alloc_fragment((1, width), "float32")
            scale, number = T.alloc_fragment((1,), "float32"), T.alloc_fragment((threads,), "int32")
            scales, numbers = slots("float32"), slots("int32")
            T.copy(W[column], w[0, :])
            T.copy(X[row, column], held, cache=rows.STREAM)
            while row < M:
                rows.take(held, x, X[after, column], number, turn, rank, cluster)
                rows.total(lambda i, j: square(x[i, j]), y, scale, steps, T.unroll)
                rows.tell(scale, scales, rank, cluster)
                rows.tell(number[0:1], numbers, rank, cluster)
                rows.meet(cluster)
                for i in T.Parallel(1):
                    scale[i] = T.rsqrt(sum([scales[p, i] for p in range(cluster)]) / N + eps)
                rows.put(lambda i, j: scaled(x, scale, w, i, j, silu), y, Y, row, column, steps)
                row = after
                after = numbers[0, 0]

    return main


@tw.jit
def rms_norm_pieces(
    M, N, block_M=4, block_N=256, threads=128, staged=False, silu=False, eps=1e-6, dtype="float32"
):  # fmt: skip
    """Any number of columns: walk the row twice in pieces of `block_N`, the last one partial.

    The second walk reads again, from the last piece back: those are still in the cache. With
    `staged` it reads the copy that the first one left in shared memory.
    """
    pieces = ceil(N / block_N)

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), W: T.Tensor((N,), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            w = T.alloc_fragment((block_N,), dtype)
            scale = T.alloc_fragment((block_M,), "float32")
            kept = T.alloc_shared((block_M, pieces * block_N), dtype) if staged else None
            T.clear(scale)
            for k in T.serial(pieces):
                T.copy(X[bx * block_M, k * block_N], x)
                if staged:
                    T.copy(x, kept[0, k * block_N])
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, scale, dim=1, clear=False)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for k in T.serial(pieces):
                at = (pieces - 1 - k) * block_N
                T.copy(W[at], w)
                T.copy(kept[0, at] if staged else X[bx * block_M, at], x)
                for i, j in T.Parallel(block_M, block_N):
                    n = x[i, j] * scale[i] * w[j]
                    x[i, j] = n * T.__sigmoid(n) if silu else n
                T.copy(x, Y[bx * block_M, at])

    return main


VARIANTS = {
    "rows": rms_norm_whole,
    "held": rms_norm_held,
    "kept": rms_norm_kept,
    "pieces": rms_norm_pieces,
}


# Columns from which on clusters that stay are ahead: with SiLU 0.98 against 0.95 of a copy's speed
# on an H200 at 131072, 0.97 against 0.94 at 262144.
KEEP = 65536


def rms_norm_rows(N, eps=1e-6, dtype="bfloat16", target="auto", silu=False, **choice):
    """The kernel (X, W, Y) for rows of `N`, any number of them; `zoo.rows` says what is chosen."""
    # more to compute in a thread: fewer values, 0.98 of a copy's speed against 0.92 at 1024 columns
    block = rows.BLOCK // 2 if silu else rows.BLOCK
    return rows.build(VARIANTS, N, dtype, target, choice, block, keep=KEEP, eps=eps, silu=silu)


def reference(x: np.ndarray, w: np.ndarray, eps: float = 1e-6, silu: bool = False) -> np.ndarray:
    x, w = x.astype(np.float64), w.astype(np.float64)
    y = x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w
    return y / (1 + np.exp(-y)) if silu else y
