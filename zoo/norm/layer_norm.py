"""y = (x - mean) / deviation * w + b: whole rows in registers or in shared memory, or long rows in
pieces."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import ceil, gcd

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows


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
            T.copy(y, Y[row, 0])

    return main


@dataclass(frozen=True)
class Parts:
    """Rows of `N` columns, `part` of them in each block of a cluster."""

    N: int
    part: int
    cluster: int

    def size(self, p, least=0):
        whole = self.part * self.cluster == self.N
        return self.part if whole else T.clamp(self.N - p * self.part, least, self.part)

    def squares(self, x, mean, column):
        """Of the distances from the mean, by row and column; none behind the row's end."""

        def square(i, j):
            far = x[i, j] - mean[i]
            if self.part * self.cluster > self.N:
                far = T.if_then_else(column + j < self.N, far, 0.0)
            return far * far

        return square


@T.macro
def join(part_of, means, fars, mean, scale, eps, loop=T.serial):
    """The row's mean, and what its deviation scales by, from the parts' means and squares: a
    loop over the parts needs 40 registers where all written out needed 56."""
    few = gcd(part_of.cluster, 4)
    T.copy(means[0, :], mean)
    for p in loop(part_of.cluster // few):
        for i in T.Parallel(*mean.shape):
            far = [part_of.size(q) * (means[q, i] - means[0, i]) for q in some(p, few)]
            mean[i] += sum(far) / part_of.N
    T.clear(scale)
    for p in loop(part_of.cluster // few):
        for i in T.Parallel(*mean.shape):
            scale[i] += sum([fars[q, i] for q in some(p, few)])
            for q in some(p, few):
                scale[i] += part_of.size(q) * (means[q, i] - mean[i]) * (means[q, i] - mean[i])
    for i in T.Parallel(*mean.shape):
        scale[i] = T.rsqrt(scale[i] / part_of.N + eps)


def scaled(x, mean, scale, w, b):
    return lambda i, j: (x[i, j] - mean[i]) * scale[i] * w[i, j] + b[i, j]


def some(p, few):
    return [p * few + q for q in range(few)]


@tw.jit
def layer_norm_held(
    M, N, block_M=1, cluster=1, threads=128, vectors=1, eps=1e-5, dtype="float32"
):  # fmt: skip
    """The blocks of a cluster hold `block_M` rows in shared memory: one read, one write. Each tells
    all of its cluster its part's mean and the squares about it."""
    part, width, steps = rows.cut(N, block_M, cluster, threads, vectors)
    tile, part_of = (block_M, width), Parts(N, part, cluster)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    slots = partial(T.alloc_shared, (cluster, block_M), "float32")
    columns = partial(T.alloc_fragment, (width,), dtype)
    matrix, vector = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)

    @T.prim_func
    def main(X: matrix, W: vector, B: vector, Y: matrix):
        with T.Kernel(T.ceildiv(M, block_M) * cluster, threads=threads, cluster_dims=cluster) as bx:
            row, rank, column = bx // cluster * block_M, bx % cluster, bx % cluster * part
            held, x = T.alloc_shared((block_M, part), dtype), T.alloc_fragment(tile, "float32")
            mean, far, scale, means, fars = per_row(), per_row(), per_row(), slots(), slots()
            w, b = columns(), columns()
            T.copy(X[row, column], held, cache=rows.STREAM)
            rows.meet(cluster)  # all are there to be told; the copy goes on meanwhile
            rows.total(lambda i, j: held[i, j], x, mean, steps)
            for i in T.Parallel(block_M):
                mean[i] = mean[i] / part_of.size(rank, 1)
            rows.total(part_of.squares(held, mean, column), x, far, steps)
            rows.tell(mean, means, rank, cluster)
            rows.tell(far, fars, rank, cluster)
            rows.meet(cluster)
            join(part_of, means, fars, mean, scale, eps)
            for k in T.serial(steps):
                T.copy(W[column + k * width], w)
                T.copy(B[column + k * width], b)
                for i, j in T.Parallel(*tile):
                    x[i, j] = (held[i, k * width + j] - mean[i]) * scale[i] * w[j] + b[j]
                T.copy(x, Y[row, column + k * width])

    return main


@tw.jit
def layer_norm_kept(
    M, N, clusters=15, cluster=1, threads=128, vectors=1, eps=1e-5, dtype="float32"
):  # fmt: skip
    """`clusters` stay, each block of them with its part of W and B in shared memory. They take a
    row after the other: to registers, and the next one is on its way to where it was."""
    part, width, steps = rows.cut(N, 1, cluster, threads, vectors)
    part_of, shared = Parts(N, part, cluster), partial(T.alloc_shared, (1, part), dtype)
    fragment, slots = T.alloc_fragment, partial(T.alloc_shared, (cluster, 1))
    matrix, vector = T.Tensor((M, N), dtype), T.Tensor((N,), dtype)

    @T.prim_func
    def main(X: matrix, W: vector, B: vector, Y: matrix):
        turn = T.alloc_global((1,), "int32")
        with T.Kernel(1, threads=32):
            T.fill(turn, 2 * clusters)  # the first row to be drawn
        with T.Kernel(clusters * cluster, threads=threads, cluster_dims=cluster) as bx:
            rank, column, first = bx % cluster, bx % cluster * part, bx // cluster
            row, after = T.alloc_var("int32", first), T.alloc_var("int32", first + clusters)
            held, w, b, x = shared(), shared(), shared(), fragment((1, part), dtype)
            mean, far, scale = fragment((1,)), fragment((1,)), fragment((1,))
            means, fars, numbers = slots("float32"), slots("float32"), slots("int32")
            y, number = fragment((1, width)), fragment((threads,), "int32")
            T.copy(W[column], w[0, :])
            T.copy(B[column], b[0, :])
            T.copy(X[row, column], held, cache=rows.STREAM)
            while row < M:
                rows.take(held, x, X[after, column], number, turn, rank, cluster)
                rows.total(lambda i, j: x[i, j], y, mean, steps, T.unroll)
                for i in T.Parallel(1):
                    mean[i] = mean[i] / part_of.size(rank, 1)
                rows.total(part_of.squares(x, mean, column), y, far, steps, T.unroll)
                rows.tell(mean, means, rank, cluster)
                rows.tell(far, fars, rank, cluster)
                rows.tell(number[0:1], numbers, rank, cluster)
                rows.meet(cluster)
                join(part_of, means, fars, mean, scale, eps, T.unroll)
                rows.put(scaled(x, mean, scale, w, b), y, Y, row, column, steps)
                row = after
                after = numbers[0, 0]

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


VARIANTS = {
    "rows": layer_norm_whole,
    "held": layer_norm_held,
    "kept": layer_norm_kept,
    "pieces": layer_norm_pieces,
}

# Columns from which on W and B no longer fit the L1 cache beside the rows. As a part of a copy's
# speed on an H200, and with clusters that come and go: 0.98 and 0.93 at 16384 columns, 0.98 and
# 0.93 at 65536, 0.98 and 0.91 at 131072, 0.98 and 0.84 at 262144.
KEEP = 8192
# Columns from which on a block holds one row, 128 threads of it: at 4096 0.99 of a copy's speed,
# four rows by 256 threads 0.95.
SINGLE = 4096


def layer_norm_rows(N, eps=1e-5, dtype="bfloat16", target="auto", **choice):
    """The kernel (X, W, B, Y) for rows of `N`, any number of them; see `zoo.rows` for what is
    chosen."""
    return rows.build(VARIANTS, N, dtype, target, choice, single=SINGLE, keep=KEEP, eps=eps)


def reference(x: np.ndarray, w: np.ndarray, b: np.ndarray, eps: float = 1e-5) -> np.ndarray:
    x, w, b = (a.astype(np.float64) for a in (x, w, b))
    far = x - x.mean(axis=-1, keepdims=True)
    return far / np.sqrt((far * far).mean(axis=-1, keepdims=True) + eps) * w + b
