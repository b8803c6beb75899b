"""Indices of tiles that are surely out of range: a compile error on every target.

Outside a tensor reads give zero and stores do nothing; outside a tile there is nothing. An index is
refused when a point of the loops around it is found where it leaves the tile and every condition
that concerns those loops holds. What only a run can tell is left to the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.analysis.effects import leaves_early
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.analysis.trips import values_of
from tilewright.ir.core import *

POINTS = 4096  # at most so many are tried; of larger domains the ends and the middle
Array: TypeAlias = Any


def check_inside(program: Program) -> None:
    """Raise `CompileError` where an index of a tile is surely outside of it."""
    if not program.__dict__.get("_inside"):
        for kernel in program.kernels:
            place = _Place().over(zip(kernel.blocks, kernel.grid, strict=True))
            if not any(walk_ops(kernel, Role)):  # who of them comes to an op is not worked out
                place = place.over(zip(kernel.thread_vars, kernel.threads, strict=True))
            _walk(kernel.body, place)
        program.__dict__["_inside"] = True


@dataclass(frozen=True)
class _Place:
    """What is known where an op stands: constant ranges of variables, names of values, and the
    conditions that hold."""

    domains: dict[Var, range] = field(default_factory=dict)
    lets: dict[Var, Expr] = field(default_factory=dict)
    conditions: tuple[tuple[Expr, bool], ...] = ()

    def given(self, cond: Expr, holds: bool) -> _Place:
        return replace(self, conditions=(*self.conditions, (self.resolved(cond), holds)))

    def over(self, extents: Iterable[tuple[Var, Expr | int]]) -> _Place:
        found = {v: range(int(e)) for v, e in extents if isinstance(e, (int, Const))}
        return replace(self, domains=self.domains | found)

    def resolved(self, expr: Expr) -> Expr:
        """`expr` with the names in it put in."""
        return substitute(expr, self.lets)

    @cached_property
    def ranges(self) -> Ranges:
        return Ranges({v: (min(d), max(d)) for v, d in self.domains.items() if d})

    def is_known(self, expr: Expr) -> bool:
        """Whether loops' variables decide it alone."""
        return is_pure(expr) and variables(expr) <= self.domains.keys()


def _walk(body: tuple[Op, ...], place: _Place) -> None:
    for op in body:
        _check(op, place)
        match op:
            case Let(var=var, value=value):
                if var.dtype.is_int or var.dtype.is_bool:
                    place = replace(place, lets=place.lets | {var: place.resolved(value)})
            case If():
                for side, holds in ((op.then, True), (op.orelse, False)):
                    if not isinstance(op.cond, Const) or bool(op.cond.value) is holds:
                        _walk(side, place.given(op.cond, holds))
                if leaves_early((op,)):
                    return  # whether what follows runs is not known
            case For():
                values = None if leaves_early(op.body, Break) else values_of(op)
                if values is None:  # which iterations there are is not known
                    _walk(op.body, place)
                elif values:
                    _walk(op.body, replace(place, domains=place.domains | {op.var: values}))
            case Map():
                inside = place.over(zip(op.vars, op.extents, strict=True))
                if all(inside.domains.get(v, True) for v in op.vars):
                    _walk(op.body, inside)
            case While():
                _walk(op.body, place.given(op.cond, True))
            case _:
                for inner in bodies(op):
                    _walk(inner, place)


def _check(op: Op, place: _Place) -> None:
    if isinstance(op, Store):
        for axis, index in enumerate(op.indices):
            _require(op.buffer, axis, index, 1, place, op.loc)
    for operand in operands(op):
        if isinstance(operand, Region):
            box = zip(operand.starts, operand.extents, strict=True)
            for axis, (start, extent) in enumerate(box):
                size = int(extent.value) if isinstance(extent, Const) else 1
                _require(operand.buffer, axis, start, size, place, op.loc)
                _loads(start, place)
        elif isinstance(operand, Expr):
            _loads(operand, place)


def _loads(expr: Expr, place: _Place) -> None:
    """The elements that an expression reads, under the conditions that it reads them."""
    if is_pure(expr):
        return
    places = [place] * len(expr.children)
    match expr:
        case Load():
            for axis, index in enumerate(expr.indices):
                _require(expr.buffer, axis, index, 1, place, expr.loc)
        case Select(cond):
            places[1:] = place.given(cond, True), place.given(cond, False)
        case Bin("and" | "or", a):
            places[1] = place.given(a, expr.op == "and")
    for child, inner in zip(expr.children, places, strict=True):
        _loads(child, inner)


def _require(
    buffer: Buffer, axis: int, index: Expr, extent: int, place: _Place, loc: Loc | None
) -> None:
    size = buffer.shape[axis]
    if buffer.is_global or isinstance(index, Const) or not isinstance(size, Const):
        return
    last = int(size.value) - extent
    index = place.resolved(index)
    loops = variables(index)
    if not loops or not place.is_known(index) or not all(place.domains[v] for v in loops):
        return
    known = bounds(index, place.ranges)
    if known.lo >= 0 and known.hi <= last:
        return
    conditions = [(c, h) for c, h in place.conditions if loops & variables(c)]
    for cond, _ in conditions:
        if not place.is_known(cond):
            return
        loops |= variables(cond)
    points = _points(place, sorted(loops, key=lambda v: v.name))
    values = _value(index, points)
    if values is None:
        return
    wrong = (values < 0) | (values > last)
    for cond, holds in conditions:
        truth = _value(cond, points)
        if truth is None:
            return
        wrong = wrong & ((truth != 0) == holds)
    if np.any(wrong):
        at = int(np.argmax(np.broadcast_to(wrong, values.shape)))
        where = {v.name: int(p[at]) for v, p in points.items()}
        _refuse(buffer, axis, int(values[at]), extent, where, loc)


def _points(place: _Place, loops: list[Var]) -> dict[Var, Array]:
    """Values of the loops' variables, in the order that they run; none where there are too many."""
    domains: list[Any] = [place.domains[v] for v in loops]
    while prod(map(len, domains)) > POINTS:
        widest = max(range(len(domains)), key=lambda k: len(domains[k]))
        n = len(domains[widest])
        ends = sorted({0, 1 % n, n // 2, max(n - 2, 0), n - 1}) if n > 5 else ()
        domains[widest] = [domains[widest][k] for k in ends]
    grid = np.meshgrid(*(np.array(d, np.int64) for d in domains), indexing="ij")
    return {v: g.reshape(-1) for v, g in zip(loops, grid, strict=True)}


def _value(expr: Expr, points: dict[Var, Array]) -> Array | None:
    """The values at all points; None of what is not worked out here, or would overflow."""
    try:
        return evaluate(expr, points, _held)
    except CompileError:
        return None


def _held(found: Array, kind: DType) -> Array:
    low, high = max(kind.min_value, -(1 << 31)), min(kind.max_value, (1 << 31) - 1)
    if np.any((found < low) | (found > high)):
        raise CompileError("it overflows")
    return found


def _refuse(
    buffer: Buffer, axis: int, value: int, extent: int, where: dict[str, int], loc: Loc | None
) -> NoReturn:
    size = int(buffer.shape[axis])
    what = f"index {value}" if extent == 1 else f"{value}:{value + extent}"
    point = ", ".join(f"{name} = {v}" for name, v in where.items())
    raise CompileError(
        f"{what} is outside dimension {axis} of {buffer.name}",
        loc=loc,
        expected=f"0 … {size - 1}" if extent == 1 else f"0 … {size}",
        got=f"{what}, where {point}",
        fix=f"guard the access with an `if`, or make {buffer.name} larger",
        code="index",
    )
