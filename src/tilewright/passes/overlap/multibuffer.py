"""Tiles that threads fill for products, iteration after iteration, in slots that take turns.

What no engine can bring as the product needs it (numbers to be unpacked or scaled, rows that a
table names) threads write to shared memory themselves. With one tile they would wait until the
product of the iteration before has read it; with two they write the next one under it, and with
three the product after that is queued when it ends.

    for k { tile = f(k); C += A[k] · tile }

    for k { tile[k % 3] = f(k); wait for the product of k - 2; meet; C += A[k] · tile[k % 3] }

All threads meet between the writes and the product. Who has met them there has ended the products
of `slots` turns ago, so that the next turn's slot is free in every warpgroup.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.analysis.effects import leaves_early, mentioned, written_in
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Var
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Fill,
    For,
    Kernel,
    Map,
    Op,
    Store,
    bodies,
    op_loads,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.passes.sync.matrix_groups import NumberedGemm

THREADS = "threads"  # how such a ring is filled
MOST = 3  # slots


@dataclass(frozen=True)
class Turning:
    """A tile of a pipelined loop that statement `last` has filled; `numbers` are the products that
    read it."""

    buffer: Buffer
    last: int
    numbers: tuple[int, ...]
    slots: int


def find_turning(kernel: Kernel, loop: For, others: set[str], room: int) -> list[Turning]:
    """Tiles of `loop` that may take turns in several slots, in `room` bytes. `others`: buffers that
    cannot (rings, views)."""
    found: list[Turning] = []
    if loop.kind != "pipelined" or loop.stages < 2 or leaves_early(loop.body):
        return found
    outside = used_outside(kernel.body, loop.var)
    allocated = {op.buffer for op in walk_ops(kernel, Alloc)}
    for buffer in sorted(allocated, key=lambda b: b.name):
        if buffer.space is not Space.SHARED or not buffer.is_static:
            continue
        if buffer.name in others or buffer.name in outside:
            continue
        uses = [k for k, op in enumerate(loop.body) if buffer.name in mentioned(op)]
        uses = [k for k in uses if not isinstance(loop.body[k], Alloc)]
        writes = [k for k in uses if buffer.name in written_in((loop.body[k],))]
        reads = [k for k in uses if k not in writes]
        if not reads or not writes or max(writes) > min(reads):
            continue
        products = [op for k in reads if isinstance(op := loop.body[k], NumberedGemm)]
        if len(products) != len(reads) or not _fills(loop.body[writes[0]], buffer):
            continue
        if any(_multiplies(loop.body[k], buffer) for k in writes):
            continue  # written again under a product of the same turn
        slots = min(MOST, loop.stages, 1 + room // buffer.bytes)
        if slots < 2:
            continue
        room -= (slots - 1) * buffer.bytes
        found.append(Turning(buffer, writes[-1], tuple(p.number for p in products), slots))
    return found


def used_outside(body: Body, var: Var) -> set[str]:
    """Buffers that are used elsewhere than in the loop over `var`."""
    found: set[str] = set()
    for op in body:
        if isinstance(op, Alloc) or (isinstance(op, For) and op.var is var):
            continue
        found |= {b.name for b in (*read_buffers(op), *written_buffers(op))}
        for inner in bodies(op):
            found |= used_outside(inner, var)
    return found


def _multiplies(op: Op, buffer: Buffer) -> bool:
    """Whether a product within a statement reads the tile."""
    return any(buffer in (inner.a.buffer, inner.b.buffer) for inner in walk_ops(op, NumberedGemm))


def _fills(op: Op, buffer: Buffer) -> bool:
    """Whether a statement writes every element, and reads none."""
    if any(load.buffer == buffer for inner in walk_ops(op) for load in op_loads(inner)):
        return False
    if isinstance(op, Copy):
        # by threads, who meet the others behind it: what an engine brings nobody meets for
        by_threads = op.src.buffer.space is not Space.GLOBAL and op.src.buffer != buffer
        return by_threads and op.dst.is_whole and op.dst.buffer == buffer
    if isinstance(op, Fill):
        return op.dst.is_whole
    if not isinstance(op, Map):
        return False
    own = [each for each in op.body if isinstance(each, Store) and each.buffer == buffer]
    return (
        len(own) == 1
        and own[0].indices == op.vars
        and all(a is b for a, b in zip(op.extents, buffer.shape, strict=True))
    )
