"""How kernels that work row by row cut their rows: threads, rows of a block, blocks of a row.

Blocks that come and go and hold little stream memory best: while one reduces, others load and
store. Short rows are held in registers, several in a block. Longer ones, up to 64 KB of them, lie
in shared memory, where one bulk copy puts them, so that a block needs few registers and three or
more fit a multiprocessor; a row that is longer still is shared by the blocks of a cluster, which
read it once and tell each other what they found. Where there are no clusters, or a row is too long
for one, it is walked in pieces, twice.
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
CLUSTER = 16  # blocks at most: what Hopper has room for


def cut(columns: int, block_M: int, cluster: int, threads: int, vectors: int) -> tuple[int, ...]:
    """(columns of a block, of a step, steps) of rows held in shared memory. In a step every thread
    takes `vectors` vectors; the last one may pass the row's end."""
    width = max(threads * vectors // block_M, 1) * VECTOR
    steps = ceil(columns / cluster / width)
    return steps * width, width, steps


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


def choose(columns: int, clusters: bool = True, block: int = BLOCK) -> dict[str, Any]:
    """The variant of a row kernel and its sizes for rows of `columns` elements of 16 bits; `block`
    of them in the registers of a block."""
    if columns <= SHORT:
        # a power of two: the threads of a row are then a part of a warp, or whole warps
        width = max(VECTOR, 1 << (columns - 1).bit_length())
        return {"variant": "rows", "block_M": block // width, "block_N": width, "threads": 256}
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
        plan = choose(columns, found.kind != "cuda" or "cluster" in found.features, block)
    plan = {**plan, **choice}
    if plan["variant"] == "rows" and (plan.get("block_N") or columns) < columns:
        raise ValueError(f"{plan['block_N']} columns in a block, {columns} in a row")
    return variants[plan.pop("variant")].on(target)(ROWS, columns, dtype=dtype, **more, **plan)
