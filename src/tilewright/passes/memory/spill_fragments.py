"""Fragments of which control asks for single elements.

An element of a fragment is in the registers of some threads; a guard, a loop or the place of a copy
needs it in all of them. What a copy has brought from a tensor that nobody writes is asked for
there, and any other fragment that nests and copies fill is a shared tile instead:

    copy Mask[b, :] -> used;  for k { if used[k] { … } }

    for k { if Mask[b, k] { … } }

A small one that other ops need in registers, such as a sum, is copied to shared memory where
it is asked for.

Nor can a fragment of more than 255 registers in each thread be one. Where copies, fills and maps
alone use it and the block has room, it is a shared tile; else the assembler keeps what does not fit
in local memory (`fit_registers` says so). Both are slow, and a warning names the fragment.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.effects import mentioned, written_by
from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.buffer import Buffer, Space, long_dims, whole
from tilewright.ir.expr import Expr, Load, loads, transform
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Fill,
    Hint,
    Kernel,
    Map,
    Op,
    Role,
    While,
    named_buffers,
    op_loads,
    outside_nests,
    regions,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import (
    defined_names,
    fresh_name,
    map_bodies,
    map_exprs,
    rebuild,
    replace_buffers,
)
from tilewright.ir.target import Target
from tilewright.passes.reasons import because, costs

MOST = 255  # registers of a thread
SMALL = 4096  # bytes of a fragment that is copied for single elements of it


def spill_fragments(kernel: Kernel, target: Target) -> Kernel:
    """`kernel`, its control asking for elements of memory only, as far as they can be there."""
    viewed = aliases(kernel).viewed
    asked = {
        load.buffer.name: load.buffer
        for op in outside_nests(kernel.body)
        for load in op_loads(op)
        if load.buffer.space is Space.FRAGMENT and load.buffer.name not in viewed
    }
    if not asked:
        return kernel
    written = written_by(kernel)
    for buffer in asked.values():
        source = _source(kernel, buffer, written)
        if source is not None:
            kernel = _asked_there(kernel, buffer, source)
        elif _movable(kernel, buffer):
            because(kernel.name, buffer.name, "control asks for its elements")
            shared = replace(buffer, space=Space.SHARED)
            kernel = rebuild(kernel, body=replace_buffers(kernel.body, {buffer: shared}))
        elif buffer.bytes <= SMALL and not buffer.dtype.packed:
            kernel = _shown(kernel, buffer)
    return kernel


def _shown(kernel: Kernel, buffer: Buffer) -> Kernel:
    """`kernel` with a copy of the fragment in shared memory before every op that reads elements."""
    differs = per_thread(kernel)
    name = fresh_name(f"{buffer.name}.shown", defined_names(kernel))
    shared = Buffer(name, buffer.shape, buffer.dtype, Space.SHARED)

    def there(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == buffer:
            return Load(shared, e.indices, e.loc)
        return None

    def rule(op: Op) -> Body | None:
        if isinstance(op, (Map, While)) or id(op) in differs.controls:
            return None
        if not any(load.buffer == buffer for load in op_loads(op)):
            return None
        copy = Copy(whole(buffer), whole(shared), loc=op.loc)
        return copy, map_exprs(op, lambda e: transform(e, there))

    def each(body: Body) -> Body:
        found: list[Op] = []
        for op in body:
            if not isinstance(op, Map):
                found += rule(op) or (op,)
                found[-1] = map_bodies(found[-1], each)
            else:
                found.append(op)
        return tuple(found)

    because(kernel.name, buffer.name, "control asks for its elements")
    return rebuild(kernel, body=(Alloc(shared, loc=kernel.loc), *each(kernel.body)))


def _source(kernel: Kernel, buffer: Buffer, written: set[str]) -> Copy | None:
    """The copy that alone fills a fragment, before anything asks for it, with what stays the same
    in memory."""
    writers = [op for op in walk_ops(kernel) if buffer in written_buffers(op)]
    users = [op for op in kernel.body if buffer.name in mentioned(op)]
    users = [op for op in users if not isinstance(op, Alloc)]
    if len(writers) != 1 or not users or users[0] is not writers[0]:
        return None
    op = users[0]
    if (
        not isinstance(op, Copy)
        or not op.dst.is_whole
        or op.src.buffer.space is not Space.GLOBAL
        or op.src.buffer.dtype != buffer.dtype
        or len(long_dims(op.src.extents)) != len(long_dims(buffer.shape))
    ):
        return None
    read = {load.buffer for start in op.src.starts for load in loads(start)}
    steady = all(b.space is Space.GLOBAL and b.name not in written for b in (op.src.buffer, *read))
    return op if steady else None


def _asked_there(kernel: Kernel, buffer: Buffer, copy: Copy) -> Kernel:
    """`kernel` with elements outside nests read where `copy` reads them; without the copy where
    nobody else needs it."""
    places = dict(zip(long_dims(copy.src.extents), long_dims(buffer.shape), strict=True))

    def there(e: Expr) -> Expr | None:
        if not (isinstance(e, Load) and e.buffer.name == buffer.name):
            return None
        starts = enumerate(copy.src.starts)
        indices = tuple(s + e.indices[places[d]] if d in places else s for d, s in starts)
        return Load(copy.src.buffer, indices, e.loc)

    def each(body: Body) -> Body:
        found: list[Op] = []
        for op in body:
            new = op
            if not isinstance(op, Map) and buffer.name in mentioned(op):
                new = map_exprs(map_bodies(op, each), lambda e: transform(e, there))
            found.append(new)
        return tuple(found)

    new = each(kernel.body)
    left = tuple(op for op in new if op != copy and not _is_about(op, buffer))
    if not any(buffer in named_buffers(op) for op in walk_ops(left)):
        new = left
    return rebuild(kernel, body=new)


def _is_about(op: Op, buffer: Buffer) -> bool:
    """What says that a tile exists, or how it should lie."""
    return isinstance(op, (Alloc, Hint)) and op.buffer == buffer


def _movable(kernel: Kernel, buffer: Buffer) -> bool:
    """Whether all that use a fragment as a tile could use shared memory as well."""
    for op in outside_nests(kernel.body):
        if isinstance(op, (Alloc, Copy, Fill, Map)):
            continue
        if isinstance(op, Hint) and op.buffer == buffer:
            return False
        if any(r.buffer == buffer for r in regions(op, reads=True, writes=True)):
            return False
        if buffer in written_buffers(op):
            return False
    return True


def move_large_fragments(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` without fragments that no thread has registers for, as far as they can move."""
    if any(walk_ops(kernel, Role)):
        return kernel
    threads = prod(kernel.threads)
    most = min(MOST, target.chip.registers // threads)
    allocs = list(walk_ops(kernel, Alloc))
    shared = sum(op.buffer.bytes for op in allocs if op.buffer.space is Space.SHARED)
    viewed = aliases(kernel).viewed
    for op in allocs:
        buffer, words = op.buffer, -(-op.buffer.bytes // (4 * threads))
        if buffer.space is not Space.FRAGMENT or words <= most or buffer.name in viewed:
            continue
        if shared + buffer.bytes > target.chip.shared or not _movable(kernel, buffer):
            continue
        shared += buffer.bytes
        because(kernel.name, buffer.name, f"{words} registers of a thread, which has {most}")
        costs(
            kernel.name,
            op.loc,
            f"{buffer.name} takes {words} registers of a thread, which has {most}: it lies in "
            "shared memory",
        )
        new = replace(buffer, space=Space.SHARED)
        kernel = rebuild(kernel, body=replace_buffers(kernel.body, {buffer: new}))
    return kernel


__all__ = ["move_large_fragments", "spill_fragments"]
