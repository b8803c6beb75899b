"""Cross entropy of each row with its label: log of the row's exponentials' sum, less one logit.

Reads the logits once and writes one number a row, however long the rows are.
"""

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
def cross_entropy_whole(
    M, N, block_M=4, block_N=None, threads=128, cluster=1, ignore=-100,
    labels="int64", dtype="float32",
):  # fmt: skip
    """Each block holds `block_N` columns of `block_M` rows in registers.

    The blocks of a cluster share their rows; each tells the first its maximum and its sum.
    """
    block_N = block_N or ceil(N / cluster)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")
    slots = partial(T.alloc_shared, (cluster, block_M), "float32")
    peers = tuple(range(cluster))

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), labels), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block_M) * cluster, threads=threads, cluster_dims=cluster) as bx:
            row, rank, column = bx // cluster * block_M, bx % cluster, bx % cluster * block_N
            x = T.alloc_fragment((block_M, block_N), "float32")
            top, total = per_row(), per_row()
            T.copy(X[row, column], x)
            if cluster * block_N != N:
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(column + j < N, x[i, j], -inf)
            T.fill(top, LOWEST)
            T.reduce_max(x, top, dim=1, clear=False)
            for i, j in T.Parallel(block_M, block_N):
                x[i, j] = T.exp2((x[i, j] - top[i]) * LOG2E)
            T.reduce_sum(x, total, dim=1)
            if cluster > 1:
                tops, sums = slots(), slots()
                T.cluster_sync()
                T.copy_cluster(top, tops[rank, :], dst_block=0)
                T.copy_cluster(total, sums[rank, :], dst_block=0)
                T.cluster_sync()
            if rank == 0:
                for i in T.Parallel(block_M):
                    if cluster > 1:
                        top[i] = reduce(T.max, [tops[p, i] for p in peers])
                        parts = [sums[p, i] * T.exp2((tops[p, i] - top[i]) * LOG2E) for p in peers]
                        total[i] = sum(parts)
                    loss = T.log(total[i]) + top[i] - X[row + i, L[row + i]]
                    Y[row + i] = T.if_then_else(L[row + i] == ignore, 0.0, loss)

    return main


@tw.jit
def cross_entropy_pieces(
    M, N, block_M=4, block_N=1024, threads=128, ignore=-100, labels="int64", dtype="float32"
):  # fmt: skip
    """Long rows in pieces of `block_N`: the maximum and the sum so far follow the largest piece."""
    pieces = ceil(N / block_N)
    per_row = partial(T.alloc_fragment, (block_M,), "float32")

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), labels), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), "float32")
            top, before, total = per_row(), per_row(), per_row()
            T.fill(top, LOWEST)
            T.clear(total)
            for k in T.serial(pieces):
                T.copy(X[row, k * block_N], x)
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
            for i in T.Parallel(block_M):
                loss = T.log(total[i]) + top[i] - X[row + i, L[row + i]]
                Y[row + i] = T.if_then_else(L[row + i] == ignore, 0.0, loss)

    return main


VARIANTS = {"rows": cross_entropy_whole, "pieces": cross_entropy_pieces}


def cross_entropy_rows(N, labels="int64", dtype="bfloat16", target="auto", **choice):
    """The kernel (X, labels, Y) for rows of `N`, any number of them, a loss for each.

    Rows whose label is `ignore` have none. A mean over the others is the caller's. Nothing is
    written back, so pieces cost no second read: they serve all rows that one block cannot hold.
    """
    if N > rows.HELD and not choice.get("variant"):
        choice = {"variant": "pieces", "block_M": 1, "block_N": 8192, "threads": 512, **choice}
    return rows.build(VARIANTS, N, dtype, target, choice, labels=labels)


def reference(x: np.ndarray, labels: np.ndarray, ignore: int = -100) -> np.ndarray:
    x = x.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis=-1)) + top[:, 0]
    kept = labels != ignore
    return np.where(kept, total - x[np.arange(len(x)), np.where(kept, labels, 0)], 0.0)
