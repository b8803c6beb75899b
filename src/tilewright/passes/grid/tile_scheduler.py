"""How long a grid takes when its tiles differ, by who deals them out to the multiprocessors.

Lengths are in iterations of the tiles' pipelined loops. The hardware gives the next tile to
whichever block is done first (`handed_out`), and every tile begins and ends with nobody computing.
Blocks that stay walk over tiles that are theirs from the start (`in_waves`): what ends one tile and
begins the next is hidden, but nobody helps a block that has more to do than others, or is slower.

On an H200, causal attention of 1024 to 16384 keys with heads of 64 and 128, staying against not:
1.13, 1.09, 1.03, 1.00, 0.99 and 1.13, 1.05, 1.03, 1.01, 1.00. A tile's beginning and end are then
worth 0.4 to 0.9 iterations, and even shares 1 % less than they seem.
"""

from __future__ import annotations

import heapq
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Var
from tilewright.ir.op import Alloc, Body, For, Gemm, Hint, If, Kernel, Let, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.grid.cluster_blocks import cluster_loop
from tilewright.passes.layout.addresses import evaluate
from tilewright.support.errors import CompileError

Lengths = np.ndarray[Any, np.dtype[np.int64]]

MOST = 1 << 14  # tiles that are looked at
ENDS = 0.5  # iterations that a tile's beginning and end take
UNEVEN = 1.01  # of their shares of the work, what blocks that stay take


def cluster_size(kernel: Kernel) -> int:
    loop = cluster_loop(kernel)
    return 1 if loop is None else int(loop.stop)


def blocks_of(kernel: Kernel, target: Target) -> int:
    """Blocks, or clusters of them, that run at the same time: for kernels with products, whose
    registers and rings are not known yet, one per multiprocessor unless they say more; for others,
    what threads and shared memory leave room for."""
    chip, ops = target.chip, list(walk_ops(kernel))
    asked = [int(op.detail[0]) for op in ops if isinstance(op, Hint) and op.name == "min_blocks"]
    if asked or any(isinstance(op, Gemm) for op in ops):
        return max(1, chip.multiprocessors * max(asked, default=1) // cluster_size(kernel))
    deep = max((op.stages for op in ops if isinstance(op, For)), default=1)
    shared = sum(
        op.buffer.bytes
        for op in ops
        if isinstance(op, Alloc) and op.buffer.space is Space.SHARED and op.buffer.is_static
    )
    room = chip.shared_per_sm // (shared * max(1, deep) + chip.reserved)
    threads = chip.threads_per_sm // prod(kernel.threads)
    resident = max(1, min(chip.blocks_per_sm, threads, room))
    return max(1, chip.multiprocessors * resident // cluster_size(kernel))


def tile_lengths(kernel: Kernel) -> Lengths | None:
    """Iterations of each of a kernel's tiles, in the order of their numbers; None where they are
    not known in advance, or too many."""
    sizes = [int(n.value) for n in kernel.grid if isinstance(n, Const)]
    total = prod(sizes)
    if len(sizes) < len(kernel.grid) or not 0 < total <= MOST:
        return None
    places, rest = dict[Var, Any](), np.arange(total)
    for var, size in zip(kernel.blocks, sizes, strict=True):
        rest, places[var] = np.divmod(rest, size)
    try:
        return np.broadcast_to(_iterations(kernel.body, places), (total,))
    except (CompileError, KeyError):  # read from memory, or from a register
        return None


def _iterations(body: Body, values: dict[Var, Any]) -> Any:
    """Of all pipelined loops in `body`, for arrays of values."""
    total: Any = np.int64(0)
    for op in body:
        match op:
            case Let():
                try:
                    values[op.var] = evaluate(op.value, values)
                except (CompileError, KeyError):
                    continue  # an unknown one, unless it counts, does no harm
            case For():
                inside = _iterations(op.body, values)
                each = np.maximum(inside, 1) if op.kind == "pipelined" else inside
                if np.any(each):
                    start, stop, step = (evaluate(e, values) for e in (op.start, op.stop, op.step))
                    total = total + each * np.maximum(0, -((start - stop) // step))
            case If():
                total = total + np.maximum(
                    _iterations(op.then, values), _iterations(op.orelse, values)
                )
    return total


def handed_out(lengths: Lengths, blocks: int) -> float:
    """Iterations until all tiles are done, the next one going to the first block that is free."""
    busy = [0.0] * blocks
    for length in lengths.tolist():
        heapq.heapreplace(busy, busy[0] + length + ENDS)
    return max(busy)


def in_waves(lengths: Lengths, blocks: int) -> float:
    """The same where wave after wave of tiles is dealt to blocks that stay, there and back."""
    waves = np.pad(lengths, (0, -len(lengths) % blocks)).reshape(-1, blocks)
    shares = waves[::2].sum(axis=0) + waves[1::2, ::-1].sum(axis=0)
    return UNEVEN * float(shares.max())


__all__ = ["blocks_of", "cluster_size", "handed_out", "in_waves", "tile_lengths"]
