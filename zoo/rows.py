"""How kernels that work row by row cut their rows: threads, rows of a block, blocks of a row.

Blocks that come and go and hold little stream memory best: while one reduces, others load and
store. Short rows are held in registers, several in a block. Longer ones, up to 64 KB of them, lie
in shared memory, where one bulk copy puts them, so that a block needs few registers and three or
more fit a multiprocessor; a row that is longer still is shared by the blocks of a cluster, which
read it once and tell each other what they found. A kernel that reads much beside its rows may take
two of them at once, the same columns of both in a thread. Where there are no clusters, or a row is
too long for one, it is walked in pieces, twice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import tilewright as tw
import tilewright.language as T
from tilewright.layout import Fragment, Layout

ROWS = T.dynamic("m", min=1)
VECTOR = 8  # elements of 16 bits in the widest access
SHORT = 1024  # columns up to which rows are held in registers
BLOCK = 8192  # elements in the registers of a block of 256 threads
PART = 32768  # columns at most that a block holds in shared memory: three such blocks are resident
FEW = 16384  # elements of a block whose rows are shorter than 8192 columns
WIDE = 16384  # columns above which a block takes 512 threads: 0.97 against 0.96 of a copy at 32768
CLUSTER = 16  # blocks at most: what Hopper has room for
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


def together(block_M: int, width: int, threads: int) -> Fragment:
    """A step's tile where each thread has the same columns of all rows, a vector at a time."""
    vectors = width // (threads * VECTOR)
    of_thread = (VECTOR, vectors, block_M), (1, threads * VECTOR, width)
    return Fragment((block_M, width), Layout((threads, of_thread[0]), (VECTOR, of_thread[1])))


@T.macro
def total(value, x, out, steps):
    """out[i] = the sum of value(i, j) over a row, its steps added up in the tile `x` first."""
    T.clear(x)
    for k in T.serial(steps):
        for i, j in T.Parallel(*x.shape):
            x[i, j] += value(i, k * x.shape[1] + j)
    T.reduce_sum(x, out, dim=1)


@T.macro
def meet(cluster):
    """All blocks of the cluster have come here, and what they told each other is known."""
    if cluster > 1:
        T.cluster_sync()


@T.macro
def tell(value, slots, rank, cluster):
    """slots[rank] = value in every block of the cluster."""
    if cluster == 1:
        T.copy(value, slots[0, :])
    else:
        for peer in tuple(range(cluster)):
            T.copy_cluster(value, slots[rank, :], dst_block=peer)


Long = Sequence[tuple[int, Mapping[str, Any]]]


def choose(
    columns: int, clusters: bool = True, block: int = BLOCK, long: Long = ()
) -> dict[str, Any]:
    """The variant of a row kernel and its sizes for rows of `columns` elements of 16 bits; `block`
    of them in the registers of a block. `long`: sizes for rows of more than `BLOCK` and up to so
    many columns, where they leave no block of a cluster without any."""
    if columns <= SHORT:
        # a power of two: the threads of a row are then a part of a warp, or whole warps
        width = max(VECTOR, 1 << (columns - 1).bit_length())
        return {"variant": "rows", "block_M": block // width, "block_N": width, "threads": 256}
    for most, sizes in long if clusters and columns > BLOCK else ():
        cluster = sizes["cluster"]
        part, *_ = cut(columns, 1, cluster, sizes["threads"], sizes["vectors"])
        if (cluster - 1) * part < columns <= most:
            return {"variant": "held", **sizes}
    cluster = 1
    while clusters and cluster < CLUSTER and columns > cluster * PART:
        cluster *= 2
    if columns > cluster * PART:
        return {"variant": "pieces", "block_M": 1, "block_N": 16384, "threads": 512}
    part = ceil(columns / cluster)
    return {
        "variant": "held",
        "block_M": max(FEW // part, 1) if part < BLOCK else 1,
        "cluster": cluster,
        "threads": 512 if part > WIDE else 256,
        "vectors": 2,
    }


def build(
    variants: Mapping[str, Any],
    columns: int,
    dtype: str,
    target: str,
    choice: Mapping[str, Any],
    block: int = BLOCK,
    long: Long = (),
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
        plan = choose(columns, found.kind != "cuda" or "cluster" in found.features, block, long)
    plan = {**plan, **choice}
    if plan["variant"] == "rows" and (plan.get("block_N") or columns) < columns:
        raise ValueError(f"{plan['block_N']} columns in a block, {columns} in a row")
    return variants[plan.pop("variant")].on(target)(ROWS, columns, dtype=dtype, **more, **plan)
