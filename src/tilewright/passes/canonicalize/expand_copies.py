"""Copies, fills and tile atomics as nests of element operations.

A nest is a `Map`, or plain loops where a local buffer takes part: a thread's own memory would be
private to each iteration of a `Map`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Const, Expr, Load, Var, cast, const
from tilewright.ir.op import (
    Atomic,
    Copy,
    Fill,
    For,
    Map,
    Op,
    Program,
    Relayout,
    Store,
)
from tilewright.ir.rewrite import fresh_name, map_kernels, map_ops, program_names
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError


class Fresh(Protocol):
    """Whoever gives a variable a name of its own."""

    def var(self, stem: str, /) -> Var: ...


class Names:
    """Names that nothing else in the program has."""

    def __init__(self, program: Program) -> None:
        self.taken = program_names(program)

    def __call__(self, stem: str) -> str:
        return fresh_name(stem, self.taken)

    def var(self, stem: str) -> Var:
        return Var(self(stem))


def expand_copies(program: Program, target: Target) -> Program:
    """`Copy`, `Fill`, `Relayout` and atomics on tiles become nests of loads and stores."""
    names = Names(program)
    return map_kernels(program, lambda kernel: map_ops(kernel, lambda op: expand_op(op, names)))


def expand_op(op: Op, names: Fresh) -> Op | None:
    """`op` as a nest; None where it is no tile operation of these."""
    match op:
        case Copy():
            return _copy(op, names)
        case Relayout():
            return _copy(Copy(op.src, op.dst, loc=op.loc), names)
        case Fill():
            return _fill(op, names)
        case Atomic() if op.src is not None or op.dst.tile:
            return _atomic(op, names)
    return None


def _copy(op: Copy, names: Fresh) -> Op:
    if op.barrier is not None or op.multicast is not None:
        raise CompileError(
            "a copy that completes on a barrier belongs to a scheduled program",
            loc=op.loc,
            fix="run it with target='interp', or compile it for cuda",
        )
    if op.atom is not None and op.atom not in ATOMS:
        raise CompileError(f"unknown copy instruction {op.atom!r}", loc=op.loc)
    for region in (op.src, op.dst):
        _own(region, op)
    source, target, vars_, extents = _paired(op.src, op.dst, names, op)
    value = cast(Load(op.src.buffer, source, op.loc), op.dst.dtype)
    inner: Op = Store(op.dst.buffer, target, value, loc=op.loc)
    if op.reduce is not None:
        place = Region(op.dst.buffer, target, tuple(const(1) for _ in target))
        inner = Atomic(op.reduce, place, value, loc=op.loc)
    return _nest((op.src, op.dst), vars_, extents, inner)


def _fill(op: Fill, names: Fresh) -> Op:
    _own(op.dst, op)
    place, vars_, extents = _spread(op.dst, names, "f")
    value = cast(op.value, op.dst.dtype)
    inner = Store(op.dst.buffer, place, value, loc=op.loc)
    return _nest((op.dst,), vars_, extents, inner)


def _atomic(op: Atomic, names: Fresh) -> Op:
    _own(op.dst, op)
    if op.result is not None:
        raise CompileError("only an atomic on one element has a result", loc=op.loc)
    value = op.value
    if op.src is not None:
        source, place, vars_, extents = _paired(op.src, op.dst, names, op)
        value = cast(Load(op.src.buffer, source, op.loc), op.dst.dtype)
    else:
        place, vars_, extents = _spread(op.dst, names, "a")
    dst = Region(op.dst.buffer, place, tuple(const(1) for _ in place))
    regions = (op.dst,) if op.src is None else (op.src, op.dst)
    return _nest(regions, vars_, extents, replace(op, dst=dst, value=value, src=None))


def _own(region: Region, op: Op) -> None:
    if region.cta is not None:
        raise CompileError(
            f"{region.buffer.name} of another block of the cluster cannot be reached here",
            loc=op.loc,
            fix="run it with target='interp', or compile it for cuda",
        )


def _spread(
    region: Region, names: Fresh, stem: str
) -> tuple[tuple[Expr, ...], tuple[Var, ...], tuple[Expr, ...]]:
    """Indices of the region's elements over fresh variables, one per extent that is not 1."""
    indices: list[Expr] = []
    vars_: list[Var] = []
    for start, extent in zip(region.starts, region.extents, strict=True):
        if isinstance(extent, Const) and extent.value == 1:
            indices.append(start)
            continue
        vars_.append(names.var(stem))
        indices.append(start + vars_[-1])
    return tuple(indices), tuple(vars_), region.tile


def _paired(
    src: Region, dst: Region, names: Fresh, op: Op
) -> tuple[tuple[Expr, ...], tuple[Expr, ...], tuple[Var, ...], tuple[Expr, ...]]:
    """Indices of both regions over one set of variables."""
    target, vars_, extents = _spread(dst, names, "c")
    if len(src.tile) != len(extents) or any(
        isinstance(a, Const) and isinstance(b, Const) and a.value != b.value
        for a, b in zip(src.tile, extents, strict=False)
    ):
        raise CompileError(
            "the shapes of a copy do not match",
            loc=op.loc,
            expected=f"{[str(e) for e in dst.extents]} as in {dst.buffer.name}",
            got=f"{[str(e) for e in src.extents]} of {src.buffer.name}",
        )
    left = iter(vars_)
    source = tuple(
        start if isinstance(extent, Const) and extent.value == 1 else start + next(left)
        for start, extent in zip(src.starts, src.extents, strict=True)
    )
    known = tuple(a if isinstance(a, Const) else b for a, b in zip(src.tile, extents, strict=True))
    return source, target, vars_, known


def _nest(
    regions: tuple[Region, ...],
    vars_: tuple[Var, ...],
    extents: tuple[Expr, ...],
    inner: Op,
) -> Op:
    local = any(r.buffer.space is Space.LOCAL for r in regions)
    if vars_ and not local:
        return Map(vars_, extents, (inner,), loc=inner.loc)
    for var, extent in zip(reversed(vars_), reversed(extents), strict=True):
        inner = For(var, const(0), extent, (inner,), loc=inner.loc)
    return inner
