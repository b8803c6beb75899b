"""Copies, fills and tile atomics as maps of element operations.

A map is a `Map`, or plain loops where a local buffer takes part: a thread's own memory would be
private to each iteration of a `Map`.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Region, Space, element
from tilewright.ir.expr import Const, Expr, Load, Var, cast, const
from tilewright.ir.op import Atomic, Copy, Fill, For, Map, Op, Relayout, Store
from tilewright.ir.rewrite import fresh_var
from tilewright.passes.canonicalize.rules import Facts, rule
from tilewright.support.errors import CompileError


@rule(Copy, Fill, Relayout, Atomic)
def expand_copies(op: Op, at: Facts) -> Op | None:
    """Copies become maps, which everything after understands."""
    return expand_op(op, at.names)


def expand_op(op: Op, names: set[str], stem: str = "c") -> Op | None:
    """`op` as a map; None where it is no tile operation of these. `stem` names the variables of
    copies, `{}` in it the dimension."""
    src, value = None, None
    match op:
        case Copy() | Relayout():
            src = op.src
        case Fill():
            value, stem = op.value, "f"
        case Atomic() if op.src is not None or op.dst.tile:
            src, value = op.src, op.value
            stem = stem if src is not None else "a"
        case _:
            return None
    _check(op)
    vars_ = variables_of(op.dst, names, stem)
    place, extents = op.dst.at(vars_), op.dst.tile
    if src is not None:
        extents = _matched(src, op.dst, op)
        value = cast(Load(src.buffer, src.at(vars_), op.loc), op.dst.dtype)
    inner: Op
    match op:
        case Atomic():
            inner = replace(op, dst=element(op.dst.buffer, *place), value=value, src=None)
        case Copy(reduce=str(how)):
            inner = Atomic(how, element(op.dst.buffer, *place), value, loc=op.loc)
        case _:
            assert value is not None
            inner = Store(op.dst.buffer, place, cast(value, op.dst.dtype), loc=op.loc)
    return map_over(vars_, extents, inner, op.dst, src or op.dst)


def variables_of(region: Region, names: set[str], stem: str) -> tuple[Var, ...]:
    """Fresh variables, one for each extent of the region's tile."""
    return tuple(fresh_var(stem.format(d), names) for d in range(len(region.tile)))


def map_over(vars_: tuple[Var, ...], extents: tuple[Expr, ...], inner: Op, *sides: Region) -> Op:
    """`inner` for all elements of the sides' tile."""
    if vars_ and not any(r.buffer.space is Space.LOCAL for r in sides):
        return Map(vars_, extents, (inner,), loc=inner.loc)
    for var, extent in zip(reversed(vars_), reversed(extents), strict=True):
        inner = For(var, const(0), extent, (inner,), loc=inner.loc)
    return inner


def _check(op: Copy | Relayout | Fill | Atomic) -> None:
    """Refuse what only a scheduled program can say."""
    fix = "run it with target='interp', or compile it for cuda"
    if isinstance(op, Copy):
        if op.barrier is not None or op.multicast is not None:
            raise CompileError(
                "a copy that completes on a barrier belongs to a scheduled program",
                loc=op.loc,
                fix=fix,
            )
        if op.atom is not None and op.atom not in ATOMS:
            raise CompileError(f"unknown copy instruction {op.atom!r}", loc=op.loc)
    for region in (getattr(op, "src", None), op.dst):
        if region is not None and region.cta is not None:
            raise CompileError(
                f"{region.buffer.name} of another block of the cluster cannot be reached here",
                loc=op.loc,
                fix=fix,
            )
    if isinstance(op, Atomic) and op.result is not None:
        raise CompileError("only an atomic on one element has a result", loc=op.loc)


def _matched(src: Region, dst: Region, op: Op) -> tuple[Expr, ...]:
    """The extents of both, the constant ones where one of them is."""
    pairs = list(zip(src.tile, dst.tile, strict=False))
    if len(src.tile) != len(dst.tile) or any(
        isinstance(a, Const) and isinstance(b, Const) and a.value != b.value for a, b in pairs
    ):
        raise CompileError(
            "the shapes of a copy do not match",
            loc=op.loc,
            expected=f"{[str(e) for e in dst.extents]} as in {dst.buffer.name}",
            got=f"{[str(e) for e in src.extents]} of {src.buffer.name}",
        )
    return tuple(a if isinstance(a, Const) else b for a, b in pairs)
