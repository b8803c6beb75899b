"""Indices of tiles that are surely out of range: a compile error on every target.

Outside a tensor reads give zero and stores do nothing; outside a tile there is nothing. An index is
refused when a point of the loops around it is found where it leaves the tile and every condition
that concerns those loops holds. What only a run can tell is left to the interpreter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, NoReturn, TypeAlias

import numpy as np

from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.analysis.effects import leaves_early
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    is_pure,
    variables,
)
from tilewright.ir.op import (
    Break,
    For,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    While,
    bodies,
    operands,
    walk_ops,
)
from tilewright.support.errors import CompileError, Loc

POINTS = 4096  # at most so many are tried; of larger domains the ends and the middle
Array: TypeAlias = Any


def check_inside(program: Program) -> None:
    """Raise `CompileError` where an index of a tile is surely outside of it."""
    if not program.__dict__.get("_inside"):
        for kernel in program.kernels:
            _walk_kernel(kernel)
        program.__dict__["_inside"] = True


@dataclass(frozen=True)
class _Place:
    """What is known where an op stands: constant ranges of variables, names of values, and the
    conditions that hold."""

    domains: dict[Var, range] = field(default_factory=dict)
    lets: dict[Var, Expr] = field(default_factory=dict)
    conditions: tuple[tuple[Expr, bool], ...] = ()

    def given(self, cond: Expr, holds: bool) -> _Place:
        return replace(self, conditions=(*self.conditions, (cond, holds)))

    def over(self, found: dict[Var, range]) -> _Place:
        return replace(self, domains=self.domains | found)

    @cached_property
    def ranges(self) -> Ranges:
        found = Ranges({v: (min(d), max(d)) for v, d in self.domains.items() if d})
        for var, value in self.lets.items():
            found = found.let(var, value)
        return found

    def named(self, expr: Expr) -> set[Var] | None:
        """The loops' variables that `expr` depends on; None where it depends on anything else."""
        found: set[Var] = set()
        pending = [expr]
        while pending:
            each = pending.pop()
            if not is_pure(each):
                return None
            for var in variables(each):
                if var in self.domains:
                    found.add(var)
                elif var in self.lets:
                    pending.append(self.lets[var])
                else:
                    return None
        return found

    def touches(self, expr: Expr, these: set[Var]) -> bool:
        """Whether `expr` may depend on one of `these`."""
        pending, seen = [expr], set(self.domains) - these
        while pending:
            for var in variables(pending.pop()) - seen:
                if var in these:
                    return True
                seen.add(var)
                if var in self.lets:
                    pending.append(self.lets[var])
        return False


def _walk_kernel(kernel: Kernel) -> None:
    threads = {v: range(n) for v, n in zip(kernel.thread_vars, kernel.threads, strict=True)}
    if any(walk_ops(kernel, Role)):
        threads = {}  # who of them comes to an op is not worked out
    place = _Place(threads).over(_constant(zip(kernel.blocks, kernel.grid, strict=True)))
    _walk(kernel.body, place)


def _constant(extents: Any) -> dict[Var, range]:
    return {v: range(int(e.value)) for v, e in extents if isinstance(e, Const)}


def _walk(body: tuple[Op, ...], place: _Place) -> None:
    for op in body:
        _check(op, place)
        match op:
            case Let(var=var, value=value):
                if var.dtype.is_int or var.dtype.is_bool:
                    place = replace(place, lets=place.lets | {var: value})
            case If():
                for side, holds in ((op.then, True), (op.orelse, False)):
                    if not isinstance(op.cond, Const) or bool(op.cond.value) is holds:
                        _walk(side, place.given(op.cond, holds))
                if leaves_early((op,)):
                    return  # whether what follows runs is not known
            case For():
                ends = [int(e.value) for e in (op.start, op.stop, op.step) if isinstance(e, Const)]
                values = range(*ends) if len(ends) == 3 and ends[2] != 0 else None
                if values is None or leaves_early(op.body, Break):
                    # which iterations there are is not known
                    _walk(op.body, place)
                elif values:
                    _walk(op.body, place.over({op.var: values}))
            case Map():
                extents = _constant(zip(op.vars, op.extents, strict=True))
                if all(extents.values()):
                    _walk(op.body, place.over(extents))
            case While():
                _walk(op.body, place.given(op.cond, True))
            case _:
                for inner_body in bodies(op):
                    _walk(inner_body, place)


def _check(op: Op, place: _Place) -> None:
    if isinstance(op, Store):
        for axis, index in enumerate(op.indices):
            _require(op.buffer, axis, index, 1, place, op.loc)
    for operand in operands(op):
        if isinstance(operand, Region):
            for axis, (start, extent) in enumerate(
                zip(operand.starts, operand.extents, strict=True)
            ):
                size = int(extent.value) if isinstance(extent, Const) else 1
                _require(operand.buffer, axis, start, size, place, op.loc)
                _loads(start, place)
        elif isinstance(operand, Expr):
            _loads(operand, place)


def _loads(expr: Expr, place: _Place) -> None:
    """The elements that an expression reads, under the conditions that it reads them."""
    if isinstance(expr, (Const, Var)) or is_pure(expr):
        return
    if isinstance(expr, Load):
        for axis, index in enumerate(expr.indices):
            _require(expr.buffer, axis, index, 1, place, expr.loc)
            _loads(index, place)
        return
    if isinstance(expr, Select):
        _loads(expr.cond, place)
        _loads(expr.a, place.given(expr.cond, True))
        _loads(expr.b, place.given(expr.cond, False))
        return
    if isinstance(expr, Bin) and expr.op in ("and", "or"):
        _loads(expr.a, place)
        _loads(expr.b, place.given(expr.a, expr.op == "and"))
        return
    for child in expr.children:
        _loads(child, place)


def _require(
    buffer: Buffer, axis: int, index: Expr, extent: int, place: _Place, loc: Loc | None
) -> None:
    size = buffer.shape[axis]
    if buffer.space is Space.GLOBAL or isinstance(index, Const) or not isinstance(size, Const):
        return
    last = int(size.value) - extent
    loops = place.named(index)
    if not loops or not all(place.domains[v] for v in loops):
        return
    known = bounds(index, place.ranges)
    if known.lo >= 0 and known.hi <= last:
        return
    conditions = [(c, h) for c, h in place.conditions if place.touches(c, loops)]
    for cond, _ in conditions:
        found = place.named(cond)
        if found is None:
            return
        loops |= found
    for points in _points(place, sorted(loops, key=lambda v: v.name)):
        values = _value(index, points, place)
        if values is None:
            return
        wrong = (values < 0) | (values > last)
        for cond, holds in conditions:
            truth = _value(cond, points, place)
            if truth is None:
                return
            wrong = wrong & ((truth != 0) == holds)
        if np.any(wrong):
            at = int(np.argmax(np.broadcast_to(wrong, values.shape)))
            where = {v.name: int(p[at]) for v, p in points.items()}
            _refuse(buffer, axis, int(values[at]), extent, where, loc)


def _points(place: _Place, loops: list[Var]) -> Iterator[dict[Var, Array]]:
    """Values of the loops' variables, in the order that they run."""
    domains = [np.array(place.domains[v], np.int64) if len(place.domains[v]) <= POINTS
               else np.array(_ends(place.domains[v]), np.int64) for v in loops]  # fmt: skip
    while prod(len(d) for d in domains) > POINTS:
        widest = max(range(len(domains)), key=lambda k: len(domains[k]))
        if len(domains[widest]) <= 5:
            return
        domains[widest] = np.array(_ends(domains[widest]), np.int64)
    grid = np.meshgrid(*domains, indexing="ij")
    yield {v: g.reshape(-1) for v, g in zip(loops, grid, strict=True)}


def _ends(domain: Any) -> list[int]:
    n = len(domain)
    return [int(domain[k]) for k in sorted({0, 1 % n, n // 2, max(n - 2, 0), n - 1})]


_BINARY: dict[str, Any] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod,
    "min": np.minimum, "max": np.maximum, "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor, "and": np.logical_and, "or": np.logical_or, "<": np.less,
    "<=": np.less_equal, ">": np.greater, ">=": np.greater_equal, "==": np.equal,
    "!=": np.not_equal,
}  # fmt: skip


def _value(expr: Expr, points: dict[Var, Array], place: _Place) -> Array | None:
    """The values at all points; None of what is not worked out here, or would overflow."""
    if not (expr.dtype.is_int or expr.dtype.is_bool):
        return None
    found = _compute(expr, points, place)
    if found is None or expr.dtype.is_bool:
        return found
    low, high = max(expr.dtype.min_value, -(1 << 31)), min(expr.dtype.max_value, (1 << 31) - 1)
    return found if np.all((found >= low) & (found <= high)) else None


def _compute(expr: Expr, points: dict[Var, Array], place: _Place) -> Array | None:
    if isinstance(expr, Const):
        value = int(expr.value)
        return np.array(value, np.int64) if abs(value) < 1 << 31 else None
    if isinstance(expr, Var):
        if expr in points:
            return points[expr]
        return _value(place.lets[expr], points, place) if expr in place.lets else None
    if not isinstance(expr, (Bin, Cmp, Select, Cast, Call)):
        return None
    if not all(c.dtype.is_int or c.dtype.is_bool for c in expr.children):
        return None
    parts: list[Any] = [_value(child, points, place) for child in expr.children]
    if any(part is None for part in parts):
        return None
    if isinstance(expr, (Bin, Cmp)):
        if expr.op not in _BINARY or (expr.op in ("//", "%") and np.any(parts[1] == 0)):
            return None
        return _BINARY[expr.op](*parts)
    if isinstance(expr, Select):
        return np.where(parts[0], parts[1], parts[2])
    if isinstance(expr, Cast):
        return parts[0] != 0 if expr.dtype.is_bool else parts[0].astype(np.int64)
    return {"not": np.logical_not, "neg": np.negative}.get(expr.name, lambda *_: None)(*parts)


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
