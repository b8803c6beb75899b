"""Give every shared buffer and barrier of a kernel its place in the block's shared memory.

Swizzled tiles begin on 1024 bytes, so that address bits and offset bits agree; other buffers on
128, which is what bulk copies ask for; barriers come last. The places are `hint place` ops.
`reuse_shared` lays buffers over one another where that is worth it; otherwise each has its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from types import MappingProxyType
from typing import Any

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.layout.layout import ComposedLayout, Layout
from tilewright.ir.op import Alloc, Kernel, View, placed, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError, Loc

SWIZZLE_ALIGNMENT = 1024
BULK_ALIGNMENT = 128
BARRIER_BYTES = 8


class TooMuchShared(CompileError):
    """A kernel needs more shared memory than a block has; `tiles` are the bytes that those in its
    way take, by name."""

    code = "shared-memory"
    tiles: Mapping[str, int] = MappingProxyType({})


def too_much(what: str, tiles: Mapping[str, int], loc: Loc | None, **said: Any) -> TooMuchShared:
    """The error for tiles that together are more than there is."""
    error = TooMuchShared(what, loc=loc, fix="use fewer stages or smaller tiles", **said)
    error.tiles = dict(tiles)
    return error


def place_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with a `hint place` for each of its shared buffers that has none (`reuse_shared`
    gives some), one behind the other."""
    tiles, barriers = shared_allocs(kernel)
    places, offset = stacked(kernel)
    limit = target.chip.shared
    if offset > limit:
        sizes = {op.buffer.name: shared_bytes(op.buffer) for op in (*tiles, *barriers)}
        raise too_much(
            f"kernel {kernel.name} needs more shared memory than a block has",
            sizes,
            kernel.loc,
            expected=f"at most {limit} bytes on {target.arch}",
            got=f"{offset} bytes",
        )
    return with_places(kernel, places)


def shared_allocs(kernel: Kernel) -> tuple[list[Alloc], list[Alloc]]:
    """Where shared tiles are allocated, those that begin on most bytes first, and barriers."""
    allocs = [op for op in walk_ops(kernel) if isinstance(op, Alloc)]
    tiles = [op for op in allocs if op.buffer.space is Space.SHARED]
    aligned = alignments(kernel)
    tiles.sort(key=lambda op: -aligned[op.buffer.name])  # stable: declared order within
    return tiles, [op for op in allocs if op.buffer.space is Space.BARRIER]


def stacked(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Places of shared buffers one behind the other, behind those that have one, and how many
    bytes all of them take."""
    tiles, barriers = shared_allocs(kernel)
    aligned = alignments(kernel)
    ends = (place + shared_bytes(buffer) for buffer, place in placed(kernel).items())
    offset, places = max(ends, default=0), dict[str, int]()
    for op in (*tiles, *barriers):
        if op.place is not None:
            continue
        align = aligned[op.buffer.name]
        offset = -(-offset // align) * align
        places[op.buffer.name] = offset
        offset += shared_bytes(op.buffer)
    return places, offset


def with_places(kernel: Kernel, places: Mapping[str, int]) -> Kernel:
    """`kernel` with its shared buffers at these places. What is allocated inside loops and branches
    comes to the front: it is one per block however often the op runs."""
    allocs = [op for op in walk_ops(kernel) if isinstance(op, Alloc)]

    top = {op.buffer.name for op in kernel.body if isinstance(op, Alloc)}
    inner = {name for name in places if name not in top}
    if inner:
        front = tuple(op for op in allocs if op.buffer.name in inner)
        rest = map_body(
            kernel.body,
            lambda op: () if isinstance(op, Alloc) and op.buffer.name in inner else op,
        )
        kernel = rebuild(kernel, body=(*front, *rest))
    body = (
        rebuild(op, place=places[op.buffer.name])
        if isinstance(op, Alloc) and op.buffer.name in places
        else op
        for op in kernel.body
    )
    return rebuild(kernel, body=tuple(body))


def sharing(kernel: Kernel) -> dict[str, str]:
    """Of placed buffers that share bytes with others: by name, one that stands for all of them."""
    spans: list[tuple[int, int, str]] = []
    for buffer, start in placed(kernel).items():
        spans.append((start, start + shared_bytes(buffer), buffer.name))
    groups: list[tuple[int, list[str]]] = []
    for start, end, name in sorted(spans):
        if groups and start < groups[-1][0]:
            groups[-1][1].append(name)
            groups[-1] = (max(end, groups[-1][0]), groups[-1][1])
        else:
            groups.append((end, [name]))
    return {name: names[0] for _, names in groups if len(names) > 1 for name in names}


def alignments(kernel: Kernel) -> dict[str, int]:
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
