"""How kernels that work row by row cut their rows: threads, rows of a block, blocks of a row.

Blocks that come and go and hold little stream memory best: while one reduces, others load and
store. Short rows are held in registers, several in a block. Longer ones, up to 64 KB of them, lie
in shared memory, where one bulk copy puts them, so that a block needs few registers and three or
more fit a multiprocessor; a row that is longer still is shared by the blocks of a cluster, which
read it once and tell each other what they found. Where there are no clusters, or a row is too long
for one, it is walked in pieces, twice.

What a kernel reads beside its rows comes from the L2 cache for each of them once it does not fit
the L1 cache. There, clusters stay: each block keeps its part of that in shared memory and takes a
row after the other, in whose place the next one is loaded as soon as the row lies in registers.
Clusters draw their rows from a counter, in the order of memory: assigned in turn they drift apart,
which costs 5 % of a copy's speed.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import tilewright as tw
import tilewright.language as T

ROWS = T.dynamic("m", min=1)
VECTOR = 8  # elements of 16 bits in the widest access
SHORT = 1024  # columns up to which rows are held in registers
BLOCK = 8192  # elements in the registers of a block of 256 threads
PART = 32768  # columns at most that a block holds in shared memory: three such blocks are resident
FEW = 16384  # elements of a block whose rows are shorter than 8192 columns
WIDE = 16384  # columns above which a block takes 512 threads: 0.97 against 0.96 of a copy at 32768
CLUSTER = 16  # blocks at most, where a chip has room for them
# Clusters that run on an H200 at a time, by their blocks, one on a multiprocessor; threads of one.
STAY = {1: (132, 1024), 2: (66, 1024), 4: (30, 1024), 8: (15, 512)}
# What the L2 cache is told of matrices that are read once: it gives up what was stored before them.
# On an H200, with inputs and outputs too large and too many to be found there again, as a part of
# the speed of a copy that says so too (one that does not: 0.982), without and with it: RMSNorm
# 0.957 and 0.995 at 1024 columns, 0.943 and 0.976 at 16384, 0.950 and 0.966 at 131072; softmax
# 0.961 and 0.993, 0.947 and 0.980, 0.951 and 0.988; SwiGLU 1.007 and 1.016. Losses only read, and
# gain nothing.
STREAM = "evict_last"


def cut(columns: int, block_M: int, cluster: int, threads: int, vectors: int) -> tuple[int, ...]:
    """(columns of a block, of a step, steps) of rows held in shared memory. In a step every thread
    takes `vectors` vectors; the last one may pass the row's end."""
    width = max(threads * vectors // block_M, 1) * VECTOR
    steps = ceil(columns / cluster / width)
    return steps * width, width, steps


@T.macro
def total(value, x, out, steps, loop=T.serial):
    """out[i] = the sum of value(i, j) over a row, its steps added up in the tile `x` first."""
    T.clear(x)
    for k in loop(steps):
        for i, j in T.Parallel(*x.shape):
            x[i, j] += value(i, k * x.shape[1] + j)
    T.reduce_sum(x, out, dim=1)


@T.macro
def meet(cluster):
    """All blocks of the cluster have come here, and what they told each other is known."""
    if cluster > 1:
        T.cluster_sync()


@T.macro
def take(held, x, after, number, turn, rank, cluster):
    """The row in `held` goes to registers, `after` it comes into its place, and rank 0 draws the
    number of the row behind that from the counter `turn`. Each thread has an element of `number`,
    so that none waits for the answer before it is told."""
    T.copy(held, x)
    T.copy(after, held, cache=STREAM)
    meet(cluster)  # all have read what they were told
    for i in T.Parallel(*number.shape):
        number[i] = 0
        if i == 0 and rank == 0:
            number[i] = T.atomic_add(turn[0], 1, return_prev=True)


@T.macro
def put(value, y, Y, row, column, steps):
    """Y[row, column + j] = value(0, j), a step at a time through the tile `y`."""
    for k in T.unroll(steps):
        for i, j in T.Parallel(*y.shape):
            y[i, j] = value(i, k * y.shape[1] + j)
        T.copy(y, Y[row, column + k * y.shape[1]])


@T.macro
def tell(value, slots, rank, cluster):
    """slots[rank] = value in every block of the cluster."""
    if cluster == 1:
        T.copy(value, slots[0, :])
    else:
        for peer in tuple(range(cluster)):
            T.copy_cluster(value, slots[rank, :], dst_block=peer)


def choose(
    columns: int, clusters: int = CLUSTER, block: int = BLOCK, single: int = BLOCK,
    keep: int | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The variant of a row kernel and its sizes for rows of `columns` elements of 16 bits; `block`
    of them in the registers of a block, and at most `clusters` blocks in a cluster. From `single`
    columns on a block holds one row. Rows of more than `keep` columns are drawn by clusters that
    stay, where there are some that are large enough and bulk copies of such rows."""
    if columns <= SHORT:
        # a power of two: the threads of a row are then a part of a warp, or whole warps
        width = max(VECTOR, 1 << (columns - 1).bit_length())
        return {"variant": "rows", "block_M": block // width, "block_N": width, "threads": 256}
    if keep is not None and clusters > 1 and columns > keep and columns % VECTOR == 0:
        for cluster, (count, threads) in STAY.items():
            if columns <= cluster * PART:
                blocks = 2 if columns <= PART // 2 else 1  # of a multiprocessor
                sizes = {"clusters": count * blocks, "threads": threads // blocks, "vectors": 1}
                return {"variant": "kept", "cluster": cluster, **sizes}
    cluster = 1
    while cluster < min(clusters, CLUSTER) and columns > cluster * PART:
        cluster *= 2
    if columns > cluster * PART:
        return {"variant": "pieces", "block_M": 1, "block_N": 16384, "threads": 512}
    part = ceil(columns / cluster)
    block_M = max(FEW // part, 1) if part < single else 1
    threads = 512 if part > WIDE else 256 if block_M * part >= BLOCK else 128
    return {
        "variant": "held", "block_M": block_M, "cluster": cluster, "threads": threads, "vectors": 2
    }  # fmt: skip


def build(
    variants: Mapping[str, Any],
    columns: int,
    dtype: str,
    target: str,
    choice: Mapping[str, Any],
    block: int = BLOCK,
    single: int = BLOCK,
    keep: int | None = None,
    **more: Any,
) -> tw.JITKernel:
    """The kernel of a family for rows of `columns`, any number of them; `choice` overrides."""
    found = tw.resolve(target)
    if choice.get("variant"):
        plan = {}  # the sizes that the variant has by itself
    elif found.kind == "cpu":  # no clusters, and nothing gained by whole vectors
        whole = columns <= 4096
        plan = {"variant": "rows" if whole else "pieces", "block_N": columns if whole else 4096}
    else:
        gpu = found if found.arch else tw.Target.parse("cuda")
        clusters = gpu.chip.cluster if tw.Feature.CLUSTER in gpu.features else 1
        # sizes that somebody names are those of rows that blocks hold; and how many clusters stay
        # is known of chips with as many multiprocessors as an H200
        narrow, known = dtype in ("float16", "bfloat16"), gpu.chip.multiprocessors == STAY[1][0]
        keep = keep if narrow and known and not choice else None
        plan = choose(columns, clusters, block, single, keep)
    plan = {**plan, **choice}
    if plan["variant"] == "rows" and (plan.get("block_N") or columns) < columns:
        raise ValueError(f"{plan['block_N']} columns in a block, {columns} in a row")
    return variants[plan.pop("variant")].on(target)(ROWS, columns, dtype=dtype, **more, **plan)
