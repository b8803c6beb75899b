"""Cross entropy of each row with its label: log of the row's exponentials' sum, less one logit.

Reads the logits once and writes one number a row, however long the rows are.
"""

from __future__ import annotations

from functools import partial
from math import ceil, inf

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows

LOG2E = 1.4426950408889634
LOWEST = -3e38  # the least maximum: a part of a row that is all -inf makes zeros, not NaN


@tw.jit
def cross_entropy_whole(
    M, N, block_M=4, block_N=None, threads=128, ignore=-100, labels="int64", dtype="float32"
):  # fmt: skip
    """Each block holds `block_M` rows in registers as they are in memory, `block_N` wide."""
    block_N = block_N or N
    per_row = partial(T.alloc_fragment, (block_M,), "float32")

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), labels), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row = bx * block_M
            x = T.alloc_fragment((block_M, block_N), dtype)
            y = T.alloc_fragment((block_M, block_N), "float32")
            top, total, one = per_row(), per_row(), per_row()
            T.copy(X[row, 0], x)
            for i in T.Parallel(block_M):
                one[i] = X[row + i, L[row + i]]
            if block_N != N:
                for i, j in T.Parallel(block_M, block_N):
                    x[i, j] = T.if_then_else(j < N, x[i, j], -inf)
            T.fill(top, LOWEST)
            T.reduce_max(x, top, dim=1, clear=False)
            for i, j in T.Parallel(block_M, block_N):
                y[i, j] = T.__exp2((x[i, j] - top[i]) * LOG2E)
            T.reduce_sum(y, total, dim=1)
            for i in T.Parallel(block_M):
                loss = T.log(total[i]) + top[i] - one[i]
                Y[row + i] = T.if_then_else(L[row + i] == ignore, 0.0, loss)

    return main


@tw.jit
def cross_entropy_walked(
    M, N, block_M=4, threads=128, vectors=4, ignore=-100, labels="int64", dtype="float32"
):  # fmt: skip
    """Rows of any length, in steps: every lane of a vector keeps the maximum and the sum of what it
    has seen, and threads only meet at the row's end."""
    lanes = max(threads * vectors // block_M, 1)
    tile = (block_M, lanes, rows.VECTOR)
    per_lane, per_row = (partial(T.alloc_fragment, s, "float32") for s in (tile[:2], tile[:1]))
    steps = ceil(N / (lanes * rows.VECTOR))

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), L: T.Tensor((M,), labels), Y: T.Tensor((M,), "float32")):
        with T.Kernel(T.ceildiv(M, block_M), threads=threads) as bx:
            row, x = bx * block_M, T.alloc_fragment(tile, "float32")
            best, before, sums = per_lane(), per_lane(), per_lane()
            top, total = per_row(), per_row()
            T.fill(best, LOWEST)
            T.clear(sums)
            for k in T.serial(steps):
                for i, u, v in T.Parallel(*tile):
                    x[i, u, v] = X[row + i, (k * lanes + u) * rows.VECTOR + v]
                if N % (lanes * rows.VECTOR):
                    for i, u, v in T.Parallel(*tile):
                        at = (k * lanes + u) * rows.VECTOR + v
                        x[i, u, v] = T.if_then_else(at < N, x[i, u, v], -inf)
                T.copy(best, before)
                T.reduce_max(x, best, dim=2, clear=False)
                for i, u, v in T.Parallel(*tile):
                    x[i, u, v] = T.__exp2((x[i, u, v] - best[i, u]) * LOG2E)
                for i, u in T.Parallel(block_M, lanes):
                    sums[i, u] = sums[i, u] * T.__exp2((before[i, u] - best[i, u]) * LOG2E)
                T.reduce_sum(x, sums, dim=2, clear=False)
            T.reduce_max(best, top, dim=1)
            for i, u in T.Parallel(block_M, lanes):
                sums[i, u] = sums[i, u] * T.__exp2((best[i, u] - top[i]) * LOG2E)
            T.reduce_sum(sums, total, dim=1)
            for i in T.Parallel(block_M):
                loss = T.log(total[i]) + top[i] - X[row + i, L[row + i]]
                Y[row + i] = T.if_then_else(L[row + i] == ignore, 0.0, loss)

    return main


VARIANTS = {"rows": cross_entropy_whole, "walked": cross_entropy_walked}


def cross_entropy_rows(N, labels="int64", dtype="bfloat16", target="auto", **choice):
    """The kernel (X, labels, Y) for rows of `N`, any number of them, a loss for each.

    Rows whose label is `ignore` have none. A mean over the others is the caller's. Nothing is
    written back, so a row is read once however long it is.
    """
    if N > rows.SHORT and not choice.get("variant"):
        block_M, threads = (2, 64) if N < 4096 else (1, 128) if N < 65536 else (1, 256)
        plan = {"variant": "walked", "block_M": block_M, "threads": threads, "vectors": 4}
        choice = {**plan, **choice}
    return rows.build(VARIANTS, N, dtype, target, choice, labels=labels)


def reference(x: np.ndarray, labels: np.ndarray, ignore: int = -100) -> np.ndarray:
    x = x.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis=-1)) + top[:, 0]
    kept = labels != ignore
    return np.where(kept, total - x[np.arange(len(x)), np.where(kept, labels, 0)], 0.0)
