"""Rewriting ops, derived from their field marks.

Nothing here knows an op class by name except what declares a buffer (`Alloc`, `View`). Functions
that change nothing return the object they were given, so `is` tells whether anything happened,
and positions are kept: an op made anew from another, or while that is rewritten, has its `loc`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from operator import is_
from typing import Any, TypeVar

from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.dtype import INT32, DType
from tilewright.ir.expr import Expr, Load, Var, loads, substitute, transform, variables
from tilewright.ir.op import Alloc, Body, Kernel, Let, Op, Program, View, bound, marked, walk_ops
from tilewright.support.errors import here

OpT = TypeVar("OpT", bound=Op)
_Code = TypeVar("_Code", Op, Body, Kernel)
OpRule = Callable[[Any], "Op | Body | None"]


def rebuild(op: OpT, **changes: Any) -> OpT:
    """`op` with some fields changed; itself when none differs. The position stays."""
    if all(getattr(op, name) is value for name, value in changes.items()):
        return op
    return dataclasses.replace(op, **changes)


# ── operands ─────────────────────────────────────────────────────────────────────────────────


def map_region(
    region: Region,
    expr: Callable[[Expr], Expr],
    buffer: Callable[[Buffer], Buffer] | None = None,
) -> Region:
    """`region` with every start, extent and rank put through `expr`."""
    new = (
        region.buffer if buffer is None else buffer(region.buffer),
        _each(region.starts, expr),
        _each(region.extents, expr),
        None if region.cta is None else expr(region.cta),
    )
    old = (region.buffer, region.starts, region.extents, region.cta)
    return region if all(map(is_, new, old)) else Region(*new)


def map_operands(
    op: OpT,
    expr: Callable[[Expr], Expr],
    buffer: Callable[[Buffer], Buffer] | None = None,
    region: Callable[[Region], Region] = lambda region: region,
) -> OpT:
    """`op` with its expressions (those inside regions too), its buffers and then its regions
    replaced. Loads are expressions: `expr` sees them. Bodies and bound variables are left alone."""

    def one(value: Any) -> Any:
        if isinstance(value, Expr):
            return expr(value)
        if isinstance(value, Region):
            return region(map_region(value, expr, buffer))
        return buffer(value) if isinstance(value, Buffer) and buffer is not None else value

    given = {f.name: getattr(op, f.name) for f in marked(op, "arg")}
    return rebuild(
        op, **{n: _each(v, one) if isinstance(v, tuple) else one(v) for n, v in given.items()}
    )


def map_exprs(op: OpT, fn: Callable[[Expr], Expr]) -> OpT:
    """`op` with `fn` applied to each of its expressions, those inside regions and tuples too."""
    return map_operands(op, fn)


def map_loads(op: OpT, fn: Callable[[Load], Expr | None]) -> OpT:
    """`op` with what `fn` gives in place of its loads, which stay where that is None."""
    return map_exprs(op, lambda e: transform(e, lambda x: fn(x) if isinstance(x, Load) else None))


def _each(values: tuple[Any, ...], fn: Callable[[Any], Any]) -> tuple[Any, ...]:
    new = tuple(fn(v) for v in values)
    return values if all(map(is_, new, values)) else new


# ── bodies ───────────────────────────────────────────────────────────────────────────────────


def map_body(body: Body, fn: OpRule) -> Body:
    """`body` rewritten bottom-up: `fn(op)` sees each op with its new bodies and gives an op, a
    body to put in its place (`()` drops it), or None to keep it. New ops have the `loc` of `op`."""
    found: list[Op] = []
    same = True
    before = here.set(here.get())
    try:  # as `at(None)`, which takes longer than most of the ops
        for op in body:
            inner = map_ops(op, fn)
            here.set(inner.loc or here.get())
            new = fn(inner)
            if new is None:
                new = inner
            same = same and new is op
            if isinstance(new, tuple):
                found += new
            else:
                found.append(new)
    finally:
        here.reset(before)
    return body if same else tuple(found)


def map_bodies(op: OpT, fn: Callable[[Body], Body]) -> OpT:
    """`op` with `fn` applied to each of its bodies."""
    return rebuild(op, **{f.name: fn(getattr(op, f.name)) for f in marked(op, "body")})


def map_ops(op: OpT, fn: OpRule) -> OpT:
    """`op` itself with the ops inside its bodies rewritten by `map_body`."""
    fields = marked(op, "body")
    if not fields:
        return op
    return rebuild(op, **{f.name: map_body(getattr(op, f.name), fn) for f in fields})


def map_kernels(program: Program, fn: Callable[[Kernel], Kernel]) -> Program:
    """`program` with `fn` applied to each kernel."""
    kernels = _each(program.kernels, fn)
    if kernels is program.kernels:
        return program
    return dataclasses.replace(program, kernels=kernels)


# ── names ────────────────────────────────────────────────────────────────────────────────────


def substitute_vars(code: _Code, values: Mapping[Var, Expr]) -> _Code:
    """`code` with variables replaced by expressions wherever they are read."""
    return _replaced(code, values, {})


def replace_buffers(code: _Code, buffers: Mapping[Buffer, Buffer]) -> _Code:
    """`code` with buffers replaced wherever they are allocated, viewed, read or written."""
    return _replaced(code, {}, {old.name: new for old, new in buffers.items()})


def _replaced(
    code: _Code, values: Mapping[Var, Expr], buffers: Mapping[str, Buffer], rebind: bool = False
) -> _Code:
    """`code`, and what it binds too where it is to `rebind`."""
    rule = _substitution(values, buffers)

    def one(op: Op) -> Op:
        new = map_operands(op, rule, lambda buffer: buffers.get(buffer.name, buffer))
        return _rebind(new, values) if rebind else new

    new: Any = map_body(code, one) if isinstance(code, tuple) else one(map_ops(code, one))
    return new  # type: ignore[no-any-return]


def _substitution(
    values: Mapping[Var, Expr], buffers: Mapping[str, Buffer]
) -> Callable[[Expr], Expr]:
    def node(e: Expr) -> Expr | None:
        if isinstance(e, Var):
            return values.get(e)
        if isinstance(e, Load) and e.buffer.name in buffers:
            return Load(buffers[e.buffer.name], e.indices, e.loc)
        return None

    # expressions are shared between ops; each tree is rewritten once
    memo: dict[int, tuple[Expr, Expr]] = {}

    def rule(e: Expr) -> Expr:
        found = memo.get(id(e))
        if found is None:
            asks = not values.keys().isdisjoint(variables(e)) or any(
                load.buffer.name in buffers for load in loads(e)
            )
            found = memo[id(e)] = (e, transform(e, node) if asks else e)
        return found[1]

    return rule


def let_values(ops: Iterable[Op], known: Mapping[Var, Expr] | None = None) -> dict[Var, Expr]:
    """What the names stand for that `ops` bind, and those that are `known` before."""
    values = dict(known or {})
    for op in ops:
        if isinstance(op, Let):
            values[op.var] = substitute(op.value, values)
    return values


def defined_names(code: Op | Body) -> set[str]:
    """The names of all variables and buffers that `code` defines."""
    names: set[str] = set()
    for op in walk_ops(code):
        names |= {var.name for var in bound(op)}
        if isinstance(op, (Alloc, View)):
            names.add(op.buffer.name)
    return names


def program_names(program: Program) -> set[str]:
    """Every name that `program` uses."""
    names = {p.name for p in program.params} | {b.name for b in program.scratch}
    names |= {dim.var.name for dim in program.dims}
    return TakenNames(names.union(*(defined_names(kernel) for kernel in program.kernels)))


class TakenNames(set[str]):
    """Names that are taken, none of which is given up. `last`: by name, its last `name_N`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        super().__init__(names)
        self.last: dict[str, int] = {}


_taken: ContextVar[Callable[[], set[str]]] = ContextVar("taken")


@contextmanager
def naming(program: Program) -> Iterator[None]:
    """Names made inside that do not say of whom they differ differ from those of `program`."""
    token = _taken.set(cache(lambda: program_names(program)))
    try:
        yield
    finally:
        _taken.reset(token)


def taken_names() -> set[str]:
    """Those of the program that is being rewritten, and those made since."""
    return _taken.get()()


def fresh_name(name: str, taken: set[str] | None = None) -> str:
    """`name`, or the first `name_N` that is free; it is taken from then on."""
    taken = taken_names() if taken is None else taken
    last = taken.last if isinstance(taken, TakenNames) else {}
    n = last.get(name, 0)
    found = f"{name}_{n}" if n else name
    while found in taken:
        n += 1
        found = f"{name}_{n}"
    taken.add(found)
    last[name] = n
    return found


def fresh_var(name: str, taken: set[str] | None = None, dtype: DType = INT32) -> Var:
    """A variable with a fresh name."""
    return Var(fresh_name(name, taken), dtype)


def rename_unique(code: _Code, taken: set[str] | None = None) -> _Code:
    """A copy of `code` in which whatever it defines has a name not in `taken` (which grows)."""
    body = code if isinstance(code, tuple) else (code,)
    values: dict[Var, Expr] = {}
    buffers: dict[str, Buffer] = {}
    for op in walk_ops(body):
        for var in bound(op):
            values[var] = fresh_var(var.name, taken, var.dtype)
        if isinstance(op, (Alloc, View)):
            new = fresh_name(op.buffer.name, taken)
            buffers[op.buffer.name] = dataclasses.replace(op.buffer, name=new)
    return _replaced(code, values, buffers, rebind=True)


def _rebind(op: Op, values: Mapping[Var, Expr]) -> Op:
    def one(bound: Any) -> Any:
        return _each(bound, one) if isinstance(bound, tuple) else values.get(bound, bound)

    return rebuild(op, **{f.name: one(getattr(op, f.name)) for f in marked(op, "binds")})
