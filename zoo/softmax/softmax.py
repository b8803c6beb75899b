"""Row softmax: whole rows in registers, or in the shared memory of a block or of a cluster; and
long rows in pieces."""

from __future__ import annotations

from functools import partial, reduce
from math import ceil, inf

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows

LOG2E = 1.4426950408889634
LOWEST = -3e38  # the least maximum: a part of a row that is all -inf makes zeros, not NaN


@tw.jit
def softmax(M, N, block_M=4, block_N=None, threads=128, dtype="float32"):
    """Each block holds `block_M` rows in registers, `block_N` columns wide: one read, one write."""
    block_N = block_N or N
    per_row = partial(T.alloc_fragment, (block_M,), "float32")

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), "float32")
            top, total = per_row(), per_row()
            T.copy(X[row, 0], x, cache=rows.STREAM)
            if block_N != N:
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(j < N, x[i, j], -inf)
            T.fill(top, LOWEST)
            T.reduce_max(x, top, dim=1, clear=False)
            for i, j in T.Parallel(block_M, block_N):
                x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E)
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(block_M, block_N):
                x[i, j] = x[i, j] * (1.0 / total[i])
            T.copy(x, Y[row, 0])

    return main


@tw.jit
def softmax_held(M, N, block_M=1, cluster=1, threads=128, vectors=1, dtype="float32"):
    """The blocks of a cluster hold `block_M` rows in shared memory: one read, one write.

    They walk their part in steps, for its maximum, its sum and the result; in between each tells
    all of its cluster what it found.
    """
    part, width, steps = rows.cut(N, block_M, cluster, threads, vectors)
    tile, peers = (block_M, width), tuple(range(cluster))
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    slots = partial(T.alloc_shared, (cluster, block_M), "float32")

    def value(held, i, j, column):
        x = T.cast(held[i, j], "float32")
        return x if part * cluster == N else T.if_then_else(column + j < N, x, -inf)

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M) * cluster, threads=threads, cluster_dims=cluster) as bx:
            row, rank, column = bx // cluster * block_M, bx % cluster, bx % cluster * part
            held, x = T.alloc_shared((block_M, part), dtype), T.alloc_fragment(tile, "float32")
            top, total, tops, totals = per_row(), per_row(), slots(), slots()
            T.copy(X[row, column], held, cache=rows.STREAM)
            rows.meet(cluster)  # all are there to be told; the copy goes on meanwhile
            T.fill(x, LOWEST)
            for k in T.serial(steps):
                for i, j in T.Parallel(*tile):
                    x[i, j] = T.max(x[i, j], value(held, i, k * width + j, column))
            T.reduce_max(x, top, dim=1)
            T.clear(x)
            for k in T.serial(steps):
                for i, j in T.Parallel(*tile):
                    x[i, j] += T.__exp2((value(held, i, k * width + j, column) - top[i]) * LOG2E)
            T.reduce_sum(x, total, dim=1)
            rows.tell(top, tops, rank, cluster)
            rows.tell(total, totals, rank, cluster)
            rows.meet(cluster)
            for i in T.Parallel(block_M):
                top[i] = reduce(T.max, [tops[p, i] for p in peers])
                shifts = [T.__exp2((tops[p, i] - top[i]) * LOG2E) for p in peers]
                total[i] = sum([totals[p, i] * shifts[p] for p in peers])
            for k in T.serial(steps):
                for i, j in T.Parallel(*tile):
                    y = T.__exp2((value(held, i, k * width + j, column) - top[i]) * LOG2E)
                    Y[row + i, column + k * width + j] = y * (1.0 / total[i])

    return main


@tw.jit
def online_softmax(M, N, block_M=4, block_N=1024, threads=128, staged=False, dtype="float32"):
    """Rows too long for registers: one pass finds maximum and sum together, a second one writes.

    The second pass reads again, from the last piece back: those are still in the cache. With
    `staged` it reads the copy that the first one left in shared memory. A piece outside the row
    reads zero, so its elements are masked to minus infinity.
    """
    pieces = ceil(N / block_N)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), "float32")
            top, before, total = per_row(), per_row(), per_row()
            kept = T.alloc_shared((block_M, pieces * block_N), dtype) if staged else None
            T.fill(top, LOWEST)
            T.clear(total)
            for k in T.serial(pieces):
                T.copy(X[row, k * block_N], x)
                if staged:
                    T.copy(x, kept[0, k * block_N])
                if N % block_N:
                    for i, j in T.Parallel(block_M, block_N):
                        x[i, j] = T.if_then_else(k * block_N + j < N, x[i, j], -inf)
                T.copy(top, before)
                T.reduce_max(x, top, dim=1, clear=False)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E)
                for i in T.Parallel(block_M):
                    total[i] = total[i] * T.exp2((before[i] - top[i]) * LOG2E)
                T.reduce_sum(x, total, dim=1, clear=False)
            for k in T.serial(pieces):
                at = (pieces - 1 - k) * block_N
                T.copy(kept[0, at] if staged else X[row, at], x)
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E) * (1.0 / total[i])
                T.copy(x, Y[row, at])

    return main


VARIANTS = {"rows": softmax, "held": softmax_held, "pieces": online_softmax}


def softmax_rows(N, dtype="bfloat16", target="auto", **choice):
    """The kernel (X, Y) for rows of `N`, any number of them; see `zoo.rows` for what is chosen."""
    return rows.build(VARIANTS, N, dtype, target, choice)


def reference(x: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)
