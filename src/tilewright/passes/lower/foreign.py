"""Instructions of single threads outside tile ops: shuffles and votes, printing, assertions,
foreign code."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import TRUE, Expr, Load
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import If, Intrinsic, Op, written_buffers
from tilewright.ir.rewrite import rebuild
from tilewright.passes.lower.lowering import MEMORY, Lowering
from tilewright.passes.lower.print_rows import PrintRows

Rewrite = Callable[[Expr], Expr]


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
        rows = PrintRows(
            op,
            lambda: low.var("i"),
            lambda spot: _element(low, spot, op, index),
            lambda head: foreign(low, head, expr, index),
            low,
            expr,
        )
        lines = tuple(rows.lines())
        yield from lines if once is TRUE else (If(once, lines, loc=op.loc),)
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
    yield new if once is TRUE or kept else If(once, (new,), loc=op.loc)


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
