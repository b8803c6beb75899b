"""Instructions of single threads outside tile ops: shuffles and votes, printing, assertions,
foreign code."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, const
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import For, If, Intrinsic, Op
from tilewright.ir.rewrite import rebuild
from tilewright.passes.lowering import MEMORY, Lowering

Rewrite = Callable[[Expr], Expr]
PRINTED = "_printed"  # how the names of shared copies end from which fragments are printed


def lower_intrinsic(low: Lowering, op: Intrinsic) -> Iterable[Op]:
    """As it stands, its operands found where they lie. What is the same in all threads is printed
    once."""
    if INTRINSICS[op.name].convergent:
        apart = low.differs is not None and id(op) in low.differs.controls
        if apart and op.name.startswith("warp_reduce"):
            raise low.unsupported(
                op,
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
        yield from _print_tiles(low, op, expr, index)
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
    yield new if once is TRUE or op.result is not None else If(once, (new,), loc=op.loc)


def _place(low: Lowering, region: Region, op: Op, index: Rewrite) -> Region:
    """Where the region begins."""
    buffer = region.buffer
    if buffer.space is Space.FRAGMENT:
        raise low.unsupported(op, f"{buffer.name} is spread over threads and has no address")
    starts = tuple(index(s) for s in region.starts)
    if buffer.space is Space.SHARED:
        return low.span(buffer, low.offset(buffer, starts, op.loc), 1, region.cta)
    return Region(low.flat(buffer), starts, region.extents, region.cta)


def _element(low: Lowering, region: Region, op: Op, index: Rewrite) -> Expr:
    if region.buffer.space is Space.FRAGMENT:
        raise low.unsupported(
            op, f"{region.buffer.name} is a fragment: its elements are read in maps"
        )
    load = Load(region.buffer, region.starts, op.loc)
    return low.load(load, tuple(index(s) for s in region.starts))


def _print_tiles(low: Lowering, op: Intrinsic, expr: Rewrite, index: Rewrite) -> Iterable[Op]:
    """The elements of tiles in memory, one line each, in row-major order."""
    for arg in op.args:
        if not isinstance(arg, Region) or not arg.tile:
            text = op.text if arg is op.args[0] else ""
            yield from foreign(low, rebuild(op, args=(arg,), text=text), expr, index)
            continue
        names = tuple(low.var(f"i{d}") for d in range(len(arg.tile)))
        inner = iter(names)
        pairs = zip(arg.starts, arg.extents, strict=True)
        starts = tuple(s if int(e) == 1 else s + next(inner) for s, e in pairs)
        spot = Region(arg.buffer, starts, tuple(const(1) for _ in starts))
        ranges = low.ranges
        for name, extent in zip(names, arg.tile, strict=True):
            low.ranges = low.ranges.where(name, 0, int(extent) - 1)
        value = _element(low, spot, op, index)
        low.ranges = ranges
        title = re.sub(PRINTED + r"(_\d+)?$", "", arg.buffer.name)
        text = " ".join(filter(None, (op.text, title)))
        body: Op = rebuild(op, args=(*names, value), text=text)
        for name, extent in reversed(list(zip(names, arg.tile, strict=True))):
            body = For(name, const(0), extent, (body,), loc=op.loc)
        yield body
