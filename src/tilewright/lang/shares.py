"""A loop that adds up products, its steps shared by several blocks.

The blocks of a cluster tell each other their sums, and the first one goes on with them. Or blocks
of a grid that has an axis more write their sums to memory: what stands after the loop is then a
second kernel, which begins with the total. The text is traced once for each of the two.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.analysis.effects import does_more
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.lang.builder import Builder, Position, Sizes
from tilewright.lang.pieces import gathered

WIDE = 128  # columns of the second kernel's tiles
LEAST, MOST = 1024, 8192  # elements of one
THREADS = 128  # of its blocks
BLOCKS = 512  # that it has at least, while its tiles are large


@dataclass(frozen=True)
class Share:
    """What a block does of a loop that adds up products: `blocks` have as many steps each, of which
    the last ones may lie past the end. Sums of all of them are always added in the same order: in
    the first block of a cluster, or by `memory` in a second kernel."""

    blocks: int = 1
    steps: int = 0
    rank: Var | None = None
    is_padded: bool = False
    memory: bool = False

    @staticmethod
    def of(builder: Builder, names: Sequence[str], trips: Sequence[Expr]) -> Share:
        loop = builder.number, names[-1]
        memory = loop in builder.sizes.parts
        blocks = builder.sizes.parts.get(loop, builder.sizes.shares.get(loop, 1))
        if blocks == 1:
            return Share()
        (steps,) = trips if len(trips) == 1 else (const(1),)
        alone = isinstance(steps, Const) and len(builder.bodies) == 1
        alone = alone and not (memory and builder.kernels)
        if not alone or (blocks & (blocks - 1) and not memory):
            raise CompileError(
                f"{blocks} blocks cannot share the steps of {names[-1]}",
                expected="a loop that stands alone in its kernel, of a known number of steps, and "
                "a power of two of blocks",
                fix="leave the choice open",
            )
        each = -(-int(steps) // blocks)
        padded, kernel = each * blocks != int(steps), builder.require_kernel()
        return Share(blocks, each, kernel.blocks[-1] if memory else kernel.rank, padded, memory)

    def length(self, trips: Expr) -> Expr:
        return trips if self.rank is None else const(self.steps, trips.dtype)

    def count(self, var: Expr) -> Expr:
        return var if self.rank is None else cast(self.rank, var.dtype) * self.steps + var

    def emit(self, builder: Builder, loop: For, since: Position) -> None:
        """The loop, and what becomes of its sums."""
        if self.rank is None:
            builder.emit(loop)
            return
        sums = _sums(loop)
        if self.memory:
            _check_effects(builder)
        if self.memory and builder.sizes.is_rest:
            for held in sums:
                self._add_parts(builder, held)
            return
        if self.memory:
            for held in sums:
                builder.emit(Fill(whole(held), const(0, held.dtype)), seen=False)
            builder.emit(loop)
            for held in sums:
                builder.emit(Copy(whole(held), self._place(builder, held, self.rank)))
            builder.open()  # what the second kernel does: `drop_rest` ends it
            return
        for held in sums:  # the first block begins with what is there
            clear = Fill(whole(held), const(0, held.dtype))
            builder.emit(If(compare("!=", self.rank, const(0)), (clear,)), seen=False)
        builder.emit(loop)
        for held in sums:
            gathered(builder, held, self.blocks, since)

    def _add_parts(self, builder: Builder, held: Buffer) -> None:
        """held = what it is and the sums of all blocks, as many at a time as registers hold."""
        together = self.blocks if prod(held.static_shape) <= MOST else 1
        tiles = [builder.tile(None, "part", held.shape, held.dtype) for _ in range(together)]
        for first in range(0, self.blocks, together):
            vars = tuple(builder.var("i") for _ in held.shape)
            total: Expr = Load(held, vars)
            for n, tile in enumerate(tiles):
                builder.emit(Copy(self._place(builder, held, const(first + n)), whole(tile)))
                total = total + Load(tile, vars)
            builder.emit(Map(vars, held.shape, (Store(held, vars, total),)), seen=False)

    def _place(self, builder: Builder, held: Buffer, block: Expr) -> Region:
        """Where the sum of a block lies among all of the grid."""
        kernel, number = builder.require_kernel(), builder.number
        sides = [axes for at, axes, _ in builder.products if at == number]
        rows, columns, _ = sides[0]
        here = {axis.key for axis in (rows, columns)}
        lengths = [builder.lengths.get(axis.key) for axis in (rows, columns)]
        starts = [cast(axis.start, INT32) for axis in (rows, columns)]
        told = {var for start in starts for var in variables(start)}
        # the last axis of the first kernel's grid are the parts
        grid = kernel.blocks if builder.sizes.is_rest else kernel.blocks[:-1]
        fits = all({a.key, b.key} == here for a, b, _ in sides) and None not in lengths
        fits = fits and told <= set(grid) and len(told) == len(grid) <= 2
        if not fits or any(evaluate(start, dict.fromkeys(told, 0)) for start in starts):
            raise CompileError(
                "sums of a loop whose steps blocks share have no place in memory",
                expected="a grid of the rows and the columns of one product",
                fix="leave the choice open",
            )
        name = f"sums_{held.name}"
        shape = (const(self.blocks), *(const(int(n or 0)) for n in lengths))
        known = [buffer for buffer in builder.scratch if buffer.name == name]
        if not known:
            known = [Buffer(name, shape, held.dtype, Space.GLOBAL)]
            builder.scratch += known
        return Region(known[0], (block, *starts), (const(1), *held.shape))


def blocks_of_steps(builder: Builder, number: int) -> int:
    """How many blocks have a part of the steps of a kernel's loop, which is not its second half."""
    parts = [n for (kernel, _), n in builder.sizes.parts.items() if kernel == number]
    return 1 if builder.sizes.is_rest else max(parts, default=1)


def drop_rest(builder: Builder, depth: int, loc: Loc | None) -> None:
    """Leave out what stands after a loop whose sums go to memory."""
    if len(builder.bodies) > depth and builder.bodies[depth].guard is None:
        builder.close_skipped(depth + 1, loc)
        builder.close()


def rest_sizes(sizes: Sizes, builder: Builder) -> Sizes:
    """For the trace of the second kernel: small tiles, so that all multiprocessors add up."""
    number = next(iter(sizes.parts))[0]
    (rows, columns, _) = next(axes for at, axes, _ in builder.products if at == number)
    loops = [builder.axes.get(axis.key) for axis in (rows, columns)]
    high, wide = (builder.lengths.get(axis.key, 1) for axis in (rows, columns))
    width = min(WIDE, 1 << (wide - 1).bit_length())
    size = LEAST
    while size < MOST and high * wide > 2 * size * BLOCKS:
        size *= 2
    chosen = dict(zip(loops, (max(1, size // width), width), strict=True))
    tiles = {loop: n for loop, n in chosen.items() if loop is not None and loop in sizes.tiles}
    threads = {number: THREADS} if len(tiles) == len(loops) else {}  # some may be pinned
    return replace(
        sizes, tiles=sizes.tiles | tiles, threads=sizes.threads | threads, clusters={}, is_rest=True
    )


def add_rest(first: Builder, second: Builder) -> None:
    """The kernels of both traces, as one program."""
    if len(first.kernels) > 1:
        raise CompileError(
            "parts of a loop in a text of several kernels",
            expected="one kernel",
            fix="leave the choice open",
        )
    (one,), (other,) = first.kernels, second.kernels
    other = rename_unique(other, first.names)
    first.kernels = [one, replace(other, name=f"{one.name}_sum")]


def _check_effects(builder: Builder) -> None:
    """What stands before a loop is done by all blocks of both kernels."""
    for op in (inner for each in builder.trail for inner in walk_ops(each)):
        if does_more(op):
            raise CompileError(
                "what stands before a loop whose steps blocks share is done more than once",
                loc=op.loc,
                fix="leave the choice open",
            )


def _sums(loop: For) -> list[Buffer]:
    """What a loop adds products to, and does nothing else with."""
    own = {op.buffer for op in walk_ops(loop.body, Alloc)}
    found: list[Buffer] = []
    for op in walk_ops(loop.body):
        for region in regions(op, writes=True):
            if region.buffer in own:
                continue
            adds = isinstance(op, Gemm) and op.clear is FALSE and region.buffer is op.c.buffer
            if not adds or not region.buffer.is_fragment or not region.is_whole:
                raise _not_only_sums(op)
            found += [region.buffer] * (region.buffer not in found)
    for op in walk_ops(loop.body):
        others = {r.buffer for r in regions(op, reads=True)} | {x.buffer for x in op_loads(op)}
        others -= {op.c.buffer} if isinstance(op, Gemm) else set()
        more = isinstance(op, Break) or (isinstance(op, Store) and op.buffer not in own)
        if more or others & set(found):
            raise _not_only_sums(op)
    return found


def _not_only_sums(op: Op) -> CompileError:
    return CompileError(
        "a loop whose steps blocks share does more than to add up products",
        loc=op.loc,
        fix="leave the choice open",
    )
