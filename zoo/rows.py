"""How kernels that work row by row cut their rows: threads, rows of a block, blocks of a row.

Blocks that come and go and hold little stream memory best, so a block holds 16 to 32 KB in
registers and several of them fit a multiprocessor: while one reduces, others load and store. A row
that one block cannot hold that way is spread over a cluster, which reads it once; where there are
no clusters, or a row is too long for one, it is walked in pieces, twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import Any

import tilewright as tw
import tilewright.language as T

ROWS = T.dynamic("m", min=1)

VECTOR = 8  # elements of 16 bits in the widest access
SHORT = 4096  # columns up to which a block takes several rows, 16 KB together
BLOCK = 8192  # elements of a block of 256 threads
HELD = 16384  # columns of a block: 64 values in each of 256 threads, two or more blocks resident
PART = 8192  # columns of a block of a cluster
VALUES = (16, 24, 32, 40, 48, 56, 64)  # of a thread
THREADS = (
    256  # few threads with many values beat many with few: 0.97 against 0.93 of a copy at 8192
)
CLUSTER = 16  # blocks at most: what Hopper has room for


@T.macro
def sum_over_cluster(part, rank, cluster, block_M):
    """part = the sum of every block's, in order of rank: the same bits in each of them."""
    slots = T.alloc_shared((cluster, block_M), "float32")
    T.cluster_sync()
    for peer in tuple(range(cluster)):
        T.copy_cluster(part, slots[rank, :], dst_block=peer)
    T.cluster_sync()
    for i in T.Parallel(block_M):
        part[i] = sum([slots[p, i] for p in tuple(range(cluster))])


def choose(columns: int, clusters: bool = True) -> dict[str, Any]:
    """The variant of a row kernel and its sizes for rows of `columns` elements of 16 bits."""
    if columns <= SHORT:
        # a power of two: the threads of a row are then a part of a warp, or whole warps
        width = max(VECTOR, 1 << (columns - 1).bit_length())
        return {
            "variant": "rows",
            "block_M": BLOCK // width,
            "block_N": width,
            "threads": THREADS,
            "cluster": 1,
        }
    cluster = 1
    while clusters and columns > HELD and cluster < CLUSTER and columns > cluster * PART:
        cluster *= 2
    if columns > (HELD if cluster == 1 else cluster * PART):
        return {"variant": "pieces", "block_M": 1, "block_N": 16384, "threads": 512}
    threads, width = spread(ceil(columns / cluster))
    return {
        "variant": "rows",
        "block_M": 1,
        "block_N": width,
        "threads": threads,
        "cluster": cluster,
    }


def spread(columns: int) -> tuple[int, int]:
    """Threads for one row, and the columns they cover: the fewest idle, then the most values."""
    found = []
    for values in VALUES:
        threads = 32 * ceil(columns / (32 * values))
        if threads <= THREADS:
            found.append((threads * values - columns, -values, threads))
    _, values, threads = min(found)
    return threads, -threads * values


def build(
    variants: Mapping[str, Any],
    columns: int,
    dtype: str,
    target: str,
    choice: Mapping[str, Any],
    **more: Any,
) -> tw.JITKernel:
    """The kernel of a family for rows of `columns`, any number of them; `choice` overrides."""
    kind = tw.resolve(target).kind
    if choice.get("variant"):
        plan = {}  # the sizes that the variant has by itself
    elif kind == "cpu":  # no clusters, and nothing gained by whole vectors
        whole = columns <= SHORT
        plan = {"variant": "rows" if whole else "pieces", "block_N": columns if whole else SHORT}
    else:
        plan = choose(columns)
    if "cluster" in choice or "block_N" in choice:  # one follows from the other
        plan = {k: v for k, v in plan.items() if k not in ("cluster", "block_N")}
    plan = {**plan, **choice}
    if plan["variant"] == "rows" and plan.get("block_N"):
        covered = plan["block_N"] * plan.get("cluster", 1)
        if covered < columns:
            raise ValueError(f"{covered} columns in a cluster's blocks, {columns} in a row")
    return variants[plan.pop("variant")].on(target)(ROWS, columns, dtype=dtype, **more, **plan)
