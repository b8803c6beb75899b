"""y = (x - mean) / deviation * w + b: whole rows in registers or in shared memory, or long rows in
pieces."""

from __future__ import annotations

from functools import partial
from math import ceil, gcd

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows

# What the L2 cache is told of results. On an H200 0.970 of a copy's speed with it against 0.952 at
# 4096 columns; elsewhere within 0.006.
STORED = "evict_first"


@tw.jit
def layer_norm_whole(M, N, block_M=4, block_N=None, threads=128, eps=1e-5, dtype="float32"):
    """Each block holds `block_M` rows in registers, `block_N` columns wide: one read, one write."""
    block_N = block_N or N
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    matrix, vector = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)

    @T.prim_func
    def main(X: matrix, W: vector, B: vector, Y: matrix):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), dtype)
            w, b = T.alloc_fragment((block_N,), dtype), T.alloc_fragment((block_N,), dtype)
            y = T.alloc_fragment((block_M, block_N), "float32")
            mean, scale = per_row(), per_row()
            T.copy(X[row, 0], x, cache=rows.STREAM)
            T.copy(W[0], w)
            T.copy(B[0], b)
            T.copy(x, y)
            T.reduce_sum(y, mean, dim=1)
            for i in T.Parallel(block_M):
                mean[i] = mean[i] / N
            for i, j in T.Parallel(block_M, block_N):
                y[i, j] = T.if_then_else(j < N, x[i, j] - mean[i], 0.0)
            for i, j in T.Parallel(block_M, block_N):
                y[i, j] = y[i, j] * y[i, j]
            T.reduce_sum(y, scale, dim=1)
            for i in T.Parallel(block_M):
                scale[i] = T.rsqrt(scale[i] / N + eps)
            for i, j in T.Parallel(block_M, block_N):
                y[i, j] = (x[i, j] - mean[i]) * scale[i] * w[j] + b[j]
            T.copy(y, Y[row, 0], cache=STORED)

    return main


@tw.jit
def layer_norm_held(
    M, N, block_M=1, cluster=1, threads=128, vectors=1, together=False, eps=1e-5, dtype="float32"
):  # fmt: skip
    """The blocks of a cluster hold `block_M` rows in shared memory: one read, one write. Each tells
    all of its cluster its part's mean and the squares about it. With `together` a thread takes the
    same columns of all rows, so that W and B are read once for them; otherwise it takes one row."""
    part, width, steps = rows.cut(N, 1 if together else block_M, cluster, threads, vectors)
    tile, whole, few = (block_M, width), part * cluster == N, gcd(cluster, 4)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    slots = partial(T.alloc_shared, (cluster, block_M), "float32")
    columns = partial(T.alloc_fragment, (width,), dtype)
    beside = rows.STREAM if together else None
    matrix, vector = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)

    def size(p, least=0):
        return part if whole else T.clamp(N - p * part, least, part)

    def square(x):
        return x * x

    def distance(held, mean, i, j, column):
        x = held[i, j] - mean[i]
        return x if whole else T.if_then_else(column + j < N, x, 0.0)

    def some(p):
        return [p * few + q for q in range(few)]

    @T.macro
    def read(W, B, w, b, column):
        T.copy(W[column], w, cache=beside)
        T.copy(B[column], b, cache=beside)

    @T.macro
    def join(means, fars, mean, scale):
        """The row's mean, and what its deviation scales by, from the parts' means and squares: a
        loop over the parts needs 40 registers where all written out needed 56."""
        T.copy(means[0, :], mean)
        for p in T.serial(cluster // few):
            for i in T.Parallel(block_M):
                mean[i] += sum([size(q) * (means[q, i] - means[0, i]) for q in some(p)]) / N
        T.clear(scale)
        for p in T.serial(cluster // few):
            for i in T.Parallel(block_M):
                far = [fars[q, i] + size(q) * square(means[q, i] - mean[i]) for q in some(p)]
                scale[i] += sum(far)
        for i in T.Parallel(block_M):
            scale[i] = T.rsqrt(scale[i] / N + eps)

    @T.prim_func
    def main(X: matrix, W: vector, B: vector, Y: matrix):
        with T.Kernel(T.ceildiv(M, block_M) * cluster, threads=threads, cluster_dims=cluster) as bx:
            row, rank, column = bx // cluster * block_M, bx % cluster, bx % cluster * part
            held, x = T.alloc_shared((block_M, part), dtype), T.alloc_fragment(tile, "float32")
            mean, far, scale, means, fars = per_row(), per_row(), per_row(), slots(), slots()
            w, b = columns(), columns()
            T.annotate_layout({x: rows.together(*tile, threads) if together else None})
            T.copy(X[row, column], held, cache=rows.STREAM)
            rows.meet(cluster)  # all are there to be told; the copy goes on meanwhile
            rows.total(lambda i, j: held[i, j], x, mean, steps)
            for i in T.Parallel(block_M):
                mean[i] = mean[i] / size(rank, 1)
            rows.total(lambda i, j: square(distance(held, mean, i, j, column)), x, far, steps)
            rows.tell(mean, means, rank, cluster)
            rows.tell(far, fars, rank, cluster)
            if together:  # those of the first step are there when all have met
                read(W, B, w, b, column)
            rows.meet(cluster)
            join(means, fars, mean, scale)
            for k in T.serial(steps):
                if not together or k > 0:
                    read(W, B, w, b, column + k * width)
                for i, j in T.Parallel(*tile):
                    x[i, j] = (held[i, k * width + j] - mean[i]) * scale[i] * w[j] + b[j]
                T.copy(x, Y[row, column + k * width], cache=STORED)

    return main


@tw.jit
def layer_norm_pieces(
    M, N, block_M=4, block_N=256, threads=128, staged=False, eps=1e-5, dtype="float32"
):  # fmt: skip
    """Any number of columns: walk the row twice in pieces of `block_N`, the last one partial.

    The first walk joins each piece's mean and squares about it to those so far. The second one
    reads again, from the last piece back: those are still in the cache. With `staged` it reads the
    copy that the first one left in shared memory.
    """
    pieces = ceil(N / block_N)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    matrix, vector = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)

    @T.prim_func
    def main(X: matrix, W: vector, B: vector, Y: matrix):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            x = T.alloc_fragment((block_M, block_N), "float32")
            mean, scale, part = per_row(), per_row(), per_row()
            kept = T.alloc_shared((block_M, pieces * block_N), dtype) if staged else None
            T.clear(mean)
            T.clear(scale)
            for k in T.serial(pieces):
                size = T.cast(T.min(block_N, N - k * block_N), "float32")
                T.copy(X[bx * block_M, k * block_N], x)
                if staged:
                    T.copy(x, kept[0, k * block_N])
                T.reduce_sum(x, part, dim=1)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(k * block_N + j < N, x[i, j] - part[i] / size, 0.0)
                    x[i, j] = x[i, j] * x[i, j]
                T.reduce_sum(x, scale, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    far = (part[i] / size - mean[i]) * (size / (k * block_N + size))
                    scale[i] = scale[i] + far * (part[i] / size - mean[i]) * (k * block_N)
                    mean[i] = mean[i] + far
            for k in T.serial(pieces):
                at = (pieces - 1 - k) * block_N
                T.copy(kept[0, at] if staged else X[bx * block_M, at], x)
                for i, j in T.Parallel(block_M, block_N):
                    y = (x[i, j] - mean[i]) * T.rsqrt(scale[i] / N + eps)
                    x[i, j] = y * W[at + j] + B[at + j]
                T.copy(x, Y[bx * block_M, at])

    return main


VARIANTS = {"rows": layer_norm_whole, "held": layer_norm_held, "pieces": layer_norm_pieces}

# Up to so many columns, where W and B no longer fit the L1 cache beside the rows: two rows at once.
# As a part of a copy's speed on an H200, and with a row a block: 0.96 and 0.92 at 32768 columns,
# 0.94 and 0.91 at 65536, 0.92 and 0.87 at 131072. Clusters of 16, for longer ones, lose more. At
# 16384 columns, of a copy whose loads stay in the L2 cache as X, W and B do: 0.977, 0.970 with X
# alone, 0.956 with nothing said; a row a block 0.918, 0.919 and 0.941.
LONG = (
    (16384, {"block_M": 2, "cluster": 2, "threads": 128, "vectors": 2, "together": True}),
    (32768, {"block_M": 2, "cluster": 4, "threads": 128, "vectors": 2, "together": True}),
    (65536, {"block_M": 2, "cluster": 8, "threads": 128, "vectors": 2, "together": True}),
    (131072, {"block_M": 2, "cluster": 8, "threads": 512, "vectors": 1, "together": True}),
)


def layer_norm_rows(N, eps=1e-5, dtype="bfloat16", target="auto", **choice):
    """The kernel (X, W, B, Y) for rows of `N`, any number of them; see `zoo.rows` for what is
    chosen."""
    return rows.build(VARIANTS, N, dtype, target, choice, long=LONG, eps=eps)


def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    x, w, b = (a.astype(np.float64) for a in (x, w, b))
    far = x - x.mean(axis=-1, keepdims=True)
    return far / np.sqrt((far * far).mean(axis=-1, keepdims=True) + eps) * w + b
