"""Tiles that threads write only for a product's left side, in registers.

    copy s -> p (shared);  acc += p · v          map (i, j) { p[i, j] = f(s[i, j]) };  acc += p · v

A matrix instruction of a warpgroup takes its left operand from the registers of the same threads
that hold the result of another: what they compute of one for the next need not go through shared
memory, where they would have to meet. So where such a tile is written from results of products, an
element from the same element, and nobody but products reads it, whole and from the left, it is a
fragment. Every warpgroup must have rows of its own, and threads registers to spare: three quarters
of theirs hold all fragments.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.analysis.effects import mentioned
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Load, loads
from tilewright.ir.op import (
    Alloc,
    Copy,
    Gemm,
    Hint,
    Kernel,
    Let,
    Map,
    Op,
    Store,
    expressions,
    named_buffers,
    outside_nests,
    walk_ops,
)
from tilewright.ir.rewrite import rebuild, replace_buffers
from tilewright.ir.target import Target
from tilewright.passes.overlap.roles import MOST, WARPGROUP, placed
from tilewright.passes.reasons import because

ROWS = 64  # of a matrix instruction


def keep_operands(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with tiles in registers that need not be in shared memory."""
    threads = prod(kernel.threads)
    if Feature.WGMMA not in target.features or threads % WARPGROUP or placed(kernel):
        return kernel
    ops = list(walk_ops(kernel.body))
    results = {op.c.buffer for op in ops if isinstance(op, Gemm) and op.c.is_whole}
    held: dict[Buffer, Buffer] = {}
    room = min(target.chip.registers // threads, MOST) * 3 // 4
    room -= sum(
        _words(op.buffer, threads) for op in ops if isinstance(op, Alloc) and _is_fragment(op)
    )
    for op in ops:
        if isinstance(op, Alloc) and _could_be(op.buffer, threads // WARPGROUP):
            users = _users(kernel, op.buffer)
            writers = [each for each in users if not isinstance(each, Gemm)]
            if len(writers) != 1 or len(users) < 2:
                continue
            reads = all(_reads(each, op.buffer) for each in users if isinstance(each, Gemm))
            words = _words(op.buffer, threads)
            if reads and words <= room and _writes(writers[0], op.buffer, results):
                room -= words
                held[op.buffer] = replace(op.buffer, space=Space.FRAGMENT)
                because(kernel.name, op.buffer.name, "in registers: products alone read it")
    return rebuild(kernel, body=replace_buffers(kernel.body, held)) if held else kernel


def _is_fragment(op: Alloc) -> bool:
    return op.buffer.space is Space.FRAGMENT and op.buffer.is_static


def _words(buffer: Buffer, threads: int) -> int:
    """Registers of a thread that a tile takes, spread over all of them."""
    return -(-prod(int(e) for e in buffer.shape) * buffer.dtype.bits // 32 // threads)


def _could_be(buffer: Buffer, groups: int) -> bool:
    return (
        buffer.space is Space.SHARED
        and buffer.is_static
        and len(buffer.shape) == 2
        and int(buffer.shape[0]) % (ROWS * groups) == 0
        and buffer.dtype.is_float
        and buffer.dtype.bits == 16  # of others, results and left operands lie differently
        and buffer.layout is None
    )


def _users(kernel: Kernel, buffer: Buffer) -> list[Op]:
    """The ops that have to do with a tile, nests as a whole, others that have bodies where they
    ask for its elements themselves."""
    found: list[Op] = []
    for op in outside_nests(kernel.body):
        if isinstance(op, (Alloc, Hint)):
            continue
        names = {each.name for each in named_buffers(op)}
        if buffer.name in (mentioned(op) if isinstance(op, Map) else names):
            found.append(op)
    return found


def _reads(op: Gemm, buffer: Buffer) -> bool:
    return (
        op.a.buffer == buffer
        and op.a.is_whole
        and not op.transpose_a
        and buffer not in (op.b.buffer, op.c.buffer)
        and op.b.buffer.space is Space.SHARED
        and op.policy != "full_col"
        and op.atom is None
        and op.meta is None
    )


def _writes(op: Op, buffer: Buffer, results: set[Buffer]) -> bool:
    """Whether `op` computes all of a tile from results of products, element by element."""

    def is_result(other: Buffer) -> bool:
        return other in results and other.shape == buffer.shape and other.dtype.bits == 32

    if isinstance(op, Copy):
        whole = op.dst.buffer == buffer and op.dst.is_whole and op.src.is_whole
        return whole and is_result(op.src.buffer)
    if not isinstance(op, Map) or op.layout is not None or op.extents != buffer.shape:
        return False
    *names, store = op.body
    if not isinstance(store, Store) or not all(isinstance(each, Let) for each in names):
        return False
    if store.buffer != buffer or store.indices != op.vars:
        return False
    read: list[Load] = [x for each in op.body for e in expressions(each) for x in loads(e)]
    if any(x.buffer.space not in (Space.FRAGMENT, Space.LOCAL) for x in read):
        return False
    return any(is_result(x.buffer) and x.indices == op.vars for x in read)


__all__ = ["keep_operands"]
