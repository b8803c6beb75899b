"""What the packing of elements of less than a byte carries along: which shared tiles are packed,
what stands for each buffer, values as they are computed with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import INT32, dtype
from tilewright.ir.expr import Const, Expr, Load, Var, cast, const
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Copy,
    Fill,
    Gemm,
    Hint,
    Intrinsic,
    Kernel,
    Op,
    Reduce,
    Scan,
    Store,
    View,
    marked,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_operands, rebuild
from tilewright.ir.simplify import simplify
from tilewright.passes.canonicalize.packed_values import computed, held_in, of_bits, per_byte
from tilewright.support.errors import CompileError

UINT8 = dtype("uint8")
Rule = Callable[["Packing", Any, Ranges], "Iterable[Op]"]


# ── which tiles are packed ───────────────────────────────────────────────────────────────────


def packed_tiles(kernel: Kernel) -> set[str]:
    """Shared tiles whose elements share bytes: those that are seen as another type too, and those
    that nothing fills but copies of packed tensors, and that no product reads."""
    ops = list(walk_ops(kernel))
    tiles = {
        op.buffer.name
        for op in ops
        if isinstance(op, (Alloc, View))
        and op.buffer.space is Space.SHARED
        and op.buffer.dtype.packed
    }
    views = [op for op in ops if isinstance(op, View) and op.buffer.space is Space.SHARED]
    forced = {b.name for op in views for b in (op.buffer, op.source) if _differ(op)} & tiles
    filled: set[str] = set()
    other = {b.name for op in views for b in (op.buffer, op.source)}
    for op in ops:
        if isinstance(op, Copy) and op.dst.buffer.name in tiles:
            source = op.src.buffer
            plain = source.space is Space.GLOBAL and source.dtype == op.dst.dtype
            plain = plain and whole_bytes(op.dst) and whole_bytes(op.src)
            (filled if plain else other).add(op.dst.buffer.name)
        elif isinstance(op, (Store, Hint)) and op.buffer is not None:
            other.add(op.buffer.name)
        elif isinstance(op, (Gemm, Reduce, Scan, Atomic, Intrinsic, Fill)):
            other |= {r.buffer.name for r in regions(op, reads=True, writes=True)}
            if isinstance(op, Intrinsic):
                other |= {a.buffer.name for a in op.args if isinstance(a, Region)}
        if isinstance(op, Alloc) and op.buffer.layout is not None:
            other.add(op.buffer.name)
    return forced | (filled - other)


def _differ(view: View) -> bool:
    return view.buffer.dtype != view.source.dtype


def whole_bytes(region: Region, ranges: Ranges | None = None) -> bool:
    """Whether a region begins and ends between bytes. Starts that are known only with `ranges`
    are taken for such without."""
    per = per_byte(region.dtype)
    start, extent = region.starts[-1], region.extents[-1]
    if not isinstance(extent, Const) or int(extent.value) % per:
        return False
    if ranges is None and not isinstance(start, Const):
        return True
    return multiple_of(start, ranges or Ranges()) % per == 0


# ── rewriting ────────────────────────────────────────────────────────────────────────────────


class Packing:
    """The rewriting of one kernel; `tiles` are the shared tiles that are packed, `rules` those for
    ops that are more than what they are made of."""

    def __init__(
        self, names: set[str], tiles: set[str], rules: Mapping[type[Op], Rule] | None = None
    ) -> None:
        self.names, self.tiles, self.rules = names, tiles, rules or {}
        self.buffers: dict[str, Buffer] = {}
        self.words: dict[str, tuple[Buffer, Buffer]] = {}  # bytes of tensors as words of 32 bits
        self.ranges = Ranges()

    def is_packed(self, buffer: Buffer) -> bool:
        """Whether elements of `buffer` share bytes."""
        return buffer.dtype.packed and (buffer.space is Space.GLOBAL or buffer.name in self.tiles)

    def buffer(self, buffer: Buffer) -> Buffer:
        """What stands for `buffer`."""
        if not buffer.dtype.packed:
            return buffer
        found = self.buffers.get(buffer.name)
        if found is None:
            if self.is_packed(buffer):
                held_in(buffer.dtype)
                row = simplify(buffer.shape[-1] // per_byte(buffer.dtype))
                found = dataclasses.replace(
                    buffer, dtype=UINT8, shape=(*buffer.shape[:-1], row), layout=None
                )
            else:
                found = dataclasses.replace(buffer, dtype=held_in(buffer.dtype))
            self.buffers[buffer.name] = found
        return found

    # ── expressions ──────────────────────────────────────────────────────────────────────────

    def value(self, e: Expr) -> Expr:
        """`e`, held."""
        children = tuple(self.value(c) for c in e.children)
        if isinstance(e, Load):
            return self.load(e, children)
        return computed(e, children)

    def load(self, e: Load, indices: tuple[Expr, ...]) -> Expr:
        buffer, kind = self.buffer(e.buffer), e.buffer.dtype
        if not self.is_packed(e.buffer):
            return Load(buffer, indices, e.loc)
        per, last = per_byte(kind), indices[-1]
        byte = Load(buffer, (*indices[:-1], self.plain(last // per)), e.loc)
        shift = self.plain(last % per) * kind.bits
        bits = (cast(byte, INT32) >> cast(shift, INT32)) & const((1 << kind.bits) - 1)
        return of_bits(bits, kind)

    def plain(self, e: Expr) -> Expr:
        return simplify(e, self.ranges)

    def bytes_of(self, region: Region) -> Region | None:
        """A region of packed memory in bytes; None where it begins or ends within one."""
        if not whole_bytes(region, self.ranges):
            return None
        per = per_byte(region.dtype)
        starts = tuple(self.value(s) for s in region.starts)
        first = self.plain(starts[-1] // per)
        row = const(int(region.extents[-1]) // per)
        return Region(
            self.buffer(region.buffer),
            (*starts[:-1], first),
            (*region.extents[:-1], row),
            region.cta,
        )

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, ranges: Ranges) -> Body:
        found: list[Op] = []
        for op in body:
            self.ranges = ranges
            found += self.op(op, ranges)
            ranges = scope.after(op, ranges)
        self.ranges = ranges
        return tuple(found)

    def op(self, op: Op, ranges: Ranges) -> Iterable[Op]:
        rule = self.rules.get(type(op))
        if rule is not None:
            return tuple(rule(self, op, ranges))
        return (self.generic(op, ranges),)

    def generic(self, op: Op, ranges: Ranges) -> Op:
        inner = {
            f.name: self.body(getattr(op, f.name), scope.inside(op, f.name, ranges))
            for f in marked(op, "body")
        }
        self.ranges = ranges
        new = map_operands(op, self.value, self.buffer)
        changes: dict[str, Any] = dict(inner)
        for f in marked(op, "binds"):
            var = getattr(op, f.name)
            if isinstance(var, Var) and var.dtype.packed:
                changes[f.name] = Var(var.name, held_in(var.dtype))
        return rebuild(new, **changes)

    def refuse(self, op: Op, region: Region, what: str) -> CompileError:
        kind = region.dtype
        return CompileError(
            f"{what} {region.buffer.name} reaches {kind} elements that share bytes",
            loc=op.loc,
            fix=f"T.copy it into a tile of {held_in(kind)} first",
        )
