"""Products read factors where they lie: a tile that only carries them there goes.

On a GPU operands must be in shared memory, or in fragments of a certain layout. A CPU packs them as
it multiplies, so a copy before that is one more trip through the caches.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.bounds import Ranges, prove
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Const, compare, is_pure
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Gemm,
    Kernel,
    Op,
    Program,
    op_loads,
    operands,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import map_body, map_kernels, rebuild
from tilewright.ir.scope import after, entry, map_inside
from tilewright.ir.target import Target
from tilewright.passes.reasons import because

_TILES = (Space.SHARED, Space.FRAGMENT)


def forward_copies(program: Program, target: Target) -> Program:
    """Of the whole program, because the contracts of its sizes stand there."""
    return map_kernels(program, lambda kernel: _Forward(kernel).run(entry(kernel, program.dims)))


class _Forward:
    """Tiles of one kernel that a single copy fills and only products read."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        ops = list(walk_ops(kernel))
        self.uses = _uses(ops)
        self.written = {buffer.name for op in ops for buffer in written_buffers(op)}
        self.viewed = aliases(kernel).viewed
        self.gone: set[str] = set()

    def run(self, ranges: Ranges) -> Kernel:
        body = self._body(self.kernel.body, ranges)
        if not self.gone:
            return self.kernel

        def drop(op: Op) -> Body | None:
            return () if isinstance(op, Alloc) and op.buffer.name in self.gone else None

        return rebuild(self.kernel, body=map_body(body, drop))

    def _body(self, body: Body, ranges: Ranges) -> Body:
        done: list[Op] = []
        left = body
        while left:
            op, left = left[0], left[1:]
            if isinstance(op, Copy) and self._carries(op, left, ranges):
                tile, source = op.dst.buffer.name, op.src.buffer.name
                self.gone.add(tile)
                because(self.kernel.name, tile, f"no tile: products read {source} where it lies")
                left = _reading(left, op)
                continue
            done.append(map_inside(op, ranges, self._body))
            ranges = after(op, ranges)
        return tuple(done)

    def _carries(self, op: Copy, later: Body, ranges: Ranges) -> bool:
        """The copy only brings something to products, all there and not changed meanwhile."""
        src, tile = op.src, op.dst.buffer
        special = (op.barrier, op.multicast, op.atom, op.reduce, src.cta)
        if any(each is not None for each in special) or not op.dst.is_whole:
            return False
        if src.dtype != tile.dtype or src.dtype.packed or len(src.tile) != 2:
            return False
        if tile.space not in _TILES or self.viewed & {tile.name, src.buffer.name}:
            return False
        factors = [each for each in walk_ops(later) if _is_factor(each, tile)]
        # its allocation, this copy and the products are all there is
        if self.uses[tile.name] != 2 + len(factors):
            return False
        if not self._stays(src.buffer, tile, later):
            return False
        return all(map(is_pure, src.starts)) and _inside(src, ranges)

    def _stays(self, source: Buffer, tile: Buffer, later: Body) -> bool:
        """Nothing writes `source` before the last product by `tile`."""
        if source.space is Space.GLOBAL:
            return source.name not in self.written
        last = max(
            (i for i, op in enumerate(later) if any(_is_factor(x, tile) for x in walk_ops(op))),
            default=-1,
        )
        between = walk_ops(later[: last + 1])
        return source.space in _TILES and not any(
            buffer.name == source.name for op in between for buffer in written_buffers(op)
        )


def _uses(ops: Iterable[Op]) -> Counter[str]:
    """How many ops name each buffer."""
    found: Counter[str] = Counter()
    for op in ops:
        found.update({buffer.name for buffer in _named(op)})
    return found


def _named(op: Op) -> Iterator[Buffer]:
    for operand in operands(op):
        if isinstance(operand, Region):
            yield operand.buffer
        elif isinstance(operand, Buffer):
            yield operand
    yield from (load.buffer for load in op_loads(op))


def _is_factor(op: Op, tile: Buffer) -> bool:
    """`op` multiplies by the whole tile, and does nothing else with it."""
    if not isinstance(op, Gemm) or op.meta is not None or op.c.buffer.name == tile.name:
        return False
    named = [r for r in (op.a, op.b) if r.buffer.name == tile.name]
    return bool(named) and all(r.is_whole for r in named) and not op_loads(op)


def _inside(region: Region, ranges: Ranges) -> bool:
    return all(
        isinstance(extent, Const)
        and prove(compare(">=", start, 0), ranges) is True
        and prove(compare("<=", start + extent, size), ranges) is True
        for start, extent, size in zip(
            region.starts, region.extents, region.buffer.shape, strict=True
        )
    )


def _reading(body: Body, copy: Copy) -> Body:
    """`body` with products that read the copy's source instead of its tile."""

    def place(region: Region) -> Region:
        return copy.src if region.buffer.name == copy.dst.buffer.name else region

    def rule(op: Op) -> Op | None:
        return (
            dataclasses.replace(op, a=place(op.a), b=place(op.b)) if isinstance(op, Gemm) else None
        )

    return map_body(body, rule)
