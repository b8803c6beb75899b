"""Give every shared buffer and barrier of a kernel its place in the block's shared memory.

Swizzled tiles begin on 1024 bytes, so that address bits and offset bits agree; other buffers on
128, which is what bulk copies ask for; barriers come last. The places are `hint place` ops.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.layout import ComposedLayout, Layout
from tilewright.ir.op import Alloc, Body, Hint, Kernel, Op, View, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError

SWIZZLE_ALIGNMENT = 1024
BULK_ALIGNMENT = 128
BARRIER_BYTES = 8
SHARED_BYTES = 232448


def place_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a `hint place` for each of its shared buffers. What is allocated inside loops
    and branches comes to the front: it is one per block however often the op runs."""
    allocs = [op for op in walk_ops(kernel) if isinstance(op, Alloc)]
    tiles = [op for op in allocs if op.buffer.space is Space.SHARED]
    barriers = [op for op in allocs if op.buffer.space is Space.BARRIER]
    aligned = _alignments(kernel)
    tiles.sort(key=lambda op: -aligned[op.buffer.name])  # stable: declared order within
    offset, places = 0, dict[str, int]()
    for op in (*tiles, *barriers):
        align = aligned[op.buffer.name]
        offset = -(-offset // align) * align
        places[op.buffer.name] = offset
        offset += shared_bytes(op.buffer)
    if offset > SHARED_BYTES:
        each = [op.buffer for op in (*tiles, *barriers)]
        sizes = ", ".join(f"{b.name} {shared_bytes(b)}" for b in each)
        raise CompileError(
            f"kernel {kernel.name} needs more shared memory than a block has",
            loc=kernel.loc,
            expected=f"at most {SHARED_BYTES} bytes",
            got=f"{offset} bytes: {sizes}",
            fix="use fewer stages or smaller tiles",
        )

    def placed(op: Op) -> Body:
        if not isinstance(op, Alloc) or op.buffer.name not in places:
            return (op,)
        return op, Hint("place", op.buffer, detail=(places[op.buffer.name],), loc=op.loc)

    top = {op.buffer.name for op in kernel.body if isinstance(op, Alloc)}
    inner = {name for name in places if name not in top}
    if inner:
        front = tuple(op for op in allocs if op.buffer.name in inner)
        rest = map_body(
            kernel.body,
            lambda op: () if isinstance(op, Alloc) and op.buffer.name in inner else op,
        )
        kernel = rebuild(kernel, body=(*front, *rest))
    return rebuild(kernel, body=tuple(new for op in kernel.body for new in placed(op)))


def _alignments(kernel: Kernel) -> dict[str, int]:
    """By buffer: what its own layout and those of its views need."""
    found: dict[str, int] = {}
    source: dict[str, str] = {}
    for op in walk_ops(kernel):
        if isinstance(op, (Alloc, View)):
            name, align = op.buffer.name, _alignment(op.buffer)
            found[name] = align
            if isinstance(op, View):
                source[name] = op.source.name
                while name in source:
                    name = source[name]
                    found[name] = max(found.get(name, 1), align)
    return found


def _alignment(buffer: Buffer) -> int:
    if buffer.space is Space.BARRIER:
        return BARRIER_BYTES
    swizzled = isinstance(buffer.layout, ComposedLayout)
    return SWIZZLE_ALIGNMENT if swizzled else BULK_ALIGNMENT


def shared_bytes(buffer: Buffer) -> int:
    """What a shared buffer, or the barriers of one, takes."""
    if buffer.space is Space.BARRIER:
        return BARRIER_BYTES * prod(buffer.static_shape)
    layout = buffer.layout
    if isinstance(layout, (Layout, ComposedLayout)):
        return buffer.dtype.storage_bytes(layout.cosize())
    return buffer.bytes
