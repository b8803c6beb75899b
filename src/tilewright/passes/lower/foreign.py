"""Instructions of single threads outside tile ops: shuffles, votes, assertions, foreign code, and
printing: tiles as lines that a thread prints, where one operation prints a few values at most.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import TRUE, Const, Expr, Load, Var, binary, compare, const, select
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import For, If, Intrinsic, Op, written_buffers
from tilewright.ir.rewrite import rebuild
from tilewright.passes.lower.lowering import MEMORY, Lowering
from tilewright.support.show import EDGE, left_out

PRINTED = "_printed"  # how the names of shared copies end from which fragments are printed
ROW = 16  # elements on a line; printf takes 32 operands
Rewrite = Callable[[Expr], Expr]
At = tuple[Expr, ...]


def lower_intrinsic(low: Lowering, op: Intrinsic) -> Iterable[Op]:
    """As it stands, its operands found where they lie. What is the same in all threads is printed
    once."""
    if INTRINSICS[op.name].convergent:
        apart = low.differs is not None and id(op) in low.differs.controls
        if apart and op.name.startswith("warp_reduce"):
            raise low.unsupported(
                f"{op.name} where only some threads come: all lanes of a warp take part",
                "reduce in all threads, with the neutral value in those that have none",
            )
        op = rebuild(op, text="mask=active" if apart else "")
    found = foreign(low, op, low.value, low.index)
    if op.name == "print" and not low.by_each_thread(op):
        return low.by_leader(*found)
    return found


def foreign(
    low: Lowering, op: Intrinsic, expr: Rewrite, index: Rewrite, once: Expr = TRUE
) -> Iterable[Op]:
    """`op` with its operands rewritten: values, and where regions lie."""
    if op.name == "print" and any(isinstance(a, Region) and a.tile for a in op.args):
        rows = PrintRows(
            op,
            lambda: low.var("i"),
            lambda spot: _element(low, spot, op, index),
            lambda head: foreign(low, head, expr, index),
            low,
            expr,
        )
        lines = tuple(rows.lines())
        yield from lines if once is TRUE else (If(once, lines),)
        return
    args: list[Expr | Region] = []
    for arg in op.args:
        if isinstance(arg, Region):
            value = op.name not in ("ptx", "call_extern")
            args.append(_element(low, arg, op, index) if value else _place(low, arg, op, index))
        else:
            args.append(expr(arg))
        low.touched = low.touched or (isinstance(arg, Region) and arg.buffer.space in MEMORY)
    new = rebuild(op, args=tuple(args))
    # each thread that holds the iteration needs what is left in its registers
    kept = op.result is not None or any(b.space is Space.LOCAL for b in written_buffers(op))
    yield new if once is TRUE or kept else If(once, (new,))


def _place(low: Lowering, region: Region, op: Op, index: Rewrite) -> Region:
    """Where the region begins."""
    buffer = region.buffer
    if buffer.space is Space.FRAGMENT:
        raise low.unsupported(f"{buffer.name} is spread over threads and has no address")
    starts = tuple(index(s) for s in region.starts)
    if buffer.space is Space.SHARED:
        return low.span(buffer, low.offset(buffer, starts), 1, region.cta)
    return Region(low.flat(buffer), starts, region.extents, region.cta)


def _element(low: Lowering, region: Region, op: Op, index: Rewrite) -> Expr:
    if region.buffer.space is Space.FRAGMENT:
        raise low.unsupported(f"{region.buffer.name} is a fragment: its elements are read in maps")
    load = Load(region.buffer, region.starts, op.loc)
    return low.load(load, tuple(index(s) for s in region.starts))


# ── tiles as lines ───────────────────────────────────────────────────────────────────────────


class Scope(Protocol):
    """Where it is known what values variables take."""

    ranges: Ranges


@dataclass
class PrintRows:
    """The lines of one labelled print of tiles in memory: one that says what is printed, then the
    elements, up to `ROW` on a line. Each names its block and its place: lines of other blocks may
    come between."""

    op: Intrinsic
    var: Callable[[], Var]  # one with a name of its own
    element: Callable[[Region], Expr]  # its value
    plain: Callable[[Intrinsic], Iterable[Op]]  # a print without tiles
    scope: Scope
    expr: Callable[[Expr], Expr] = lambda e: e

    def lines(self) -> Iterable[Op]:
        op = self.op
        places, rest = op.args[: op.width or 0], op.args[op.width or 0 :]
        tiles = [a for a in rest if isinstance(a, Region) and a.tile]
        scalars = [a for a in rest if not (isinstance(a, Region) and a.tile)]
        short = len(rest) == 1 and len(tiles[0].tile) == 1 and _size(tiles[0].tile[0])
        if short and short <= ROW:
            values = [self._value(tiles[0], (const(k),)) for k in range(short)]
            shown = [self.expr(p) for p in places if isinstance(p, Expr)]
            yield rebuild(op, args=(*shown, *values))
            return
        head = op.text.removesuffix(" =") + "".join(_note(tile) for tile in tiles)
        yield from self.plain(rebuild(op, args=(*places, *scalars), text=head))
        self.who, _, _ = op.text.partition(":")
        speaker = places[: self.who.count("{}")]
        self.speaker = [self.expr(p) for p in speaker if isinstance(p, Expr)]
        for tile in tiles:
            yield from self._rows(tile, ())

    def _value(self, tile: Region, at: At) -> Expr:
        """The element `at` coordinates of the tile."""
        starts = tile.at(at)
        return self.element(Region(tile.buffer, starts, tuple(const(1) for _ in starts), tile.cta))

    def _rows(self, tile: Region, at: At) -> list[Op]:
        """Loops over all dimensions but the last."""
        if len(at) == len(tile.tile) - 1:
            return self._parts(tile, at)
        extent = tile.tile[len(at)]
        count = extent
        if not _size(extent):
            count = binary("min", extent, const(2 * EDGE))
        elif _is_large(tile) and _size(extent) > 2 * EDGE:
            count = const(2 * EDGE)
        return self._loop(extent, count, lambda k: self._rows(tile, (*at, k)))

    def _parts(self, tile: Region, at: At) -> list[Op]:
        """The last dimension, in as many lines as it takes."""
        extent = tile.tile[-1]
        size = _size(extent)
        if not size:
            few = binary("min", extent, const(2 * EDGE))
            return self._loop(extent, few, lambda k: self._line(tile, at, k, 1))
        if _is_large(tile) and size > 2 * EDGE:
            first = self._line(tile, at, const(0), EDGE)
            return first + self._line(tile, at, const(size - EDGE), EDGE)
        full, left = divmod(size, ROW)
        found: list[Op] = []
        if full > 1:
            rows = const(full)
            found += self._loop(rows, rows, lambda k: self._line(tile, at, k * ROW, ROW))
        elif full:
            found += self._line(tile, at, const(0), ROW)
        return found + (self._line(tile, at, const(full * ROW), left) if left else [])

    def _loop(self, extent: Expr, count: Expr, body: Callable[[Expr], list[Op]]) -> list[Op]:
        """`body` for `count` elements of a dimension: all, or as many from either end."""
        var, ranges = self.var(), self.scope.ranges
        self.scope.ranges = ranges.loop(var, const(0), count, const(1))
        at: Expr = var
        if count is not extent:
            last = var + (extent - 2 * EDGE)
            at = select(compare("<", var, EDGE), var, last)
            if not _size(extent):
                at = select(compare("<=", extent, 2 * EDGE), var, at)
        inner = tuple(body(at))
        self.scope.ranges = ranges
        return [For(var, const(0), self.expr(count), inner)]

    def _line(self, tile: Region, at: At, first: Expr, count: int) -> list[Op]:
        spots = [self.expr(p) for p in tile.at((*at, first))]
        last = max(k for k, e in enumerate(tile.extents) if _size(e) != 1)
        numbers = [(p, p + count) if k == last and count > 1 else (p,) for k, p in enumerate(spots)]
        spots = [p for pair in numbers for p in pair if not isinstance(p, Const)]
        holes = [
            ":".join(str(p.value) if isinstance(p, Const) else "{}" for p in pair)
            for pair in numbers
        ]
        name = re.sub(PRINTED + r"(_\d+)?$", "", tile.buffer.name)
        values = [self._value(tile, (*at, first + k)) for k in range(count)]
        args = (*self.speaker, *spots, *values)
        text = f"{self.who}: {name}[{', '.join(holes)}] ="
        width = len(self.speaker) + len(spots)
        return [rebuild(self.op, args=args, text=text, width=width)]


def _size(extent: Expr) -> int:
    """A constant extent; 0 for one that is known at launch."""
    return int(extent.value) if isinstance(extent, Const) else 0


def _is_large(tile: Region) -> bool:
    sizes = [_size(e) for e in tile.tile]
    return 0 in sizes or bool(left_out(sizes))


def _note(tile: Region) -> str:
    sizes = [_size(e) for e in tile.tile]
    if 0 in sizes:
        return f" (the first and last {EDGE} of each dimension)"
    return f" {left_out(sizes)}" if _is_large(tile) else ""
