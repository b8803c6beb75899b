"""Ways to get a kernel wrong, as changes of its tile IR.

Each operator looks at one op (or at a kernel) and yields what might stand there instead: nothing, a
neighbour's place, a plain store for an atomic. Whether the changed program is wrong at all is for
`judge.py` to find out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import (
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    compare,
    const,
    transform,
    variables,
    walk,
)
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Copy,
    Fill,
    For,
    If,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Program,
    Reduce,
    Store,
    Sync,
    marked,
)

Place = tuple[tuple[str, int], ...]  # fields and positions, from the kernel down


@dataclass(frozen=True)
class Mutant:
    """A program that may be wrong, how it was made, and of what."""

    operator: str
    of: Op
    program: Program


@dataclass(frozen=True)
class Around:
    """What an op stands in: its kernel, the index variables of maps around it."""

    kernel: Kernel
    points: tuple[Var, ...] = ()


Change = Callable[[Op, Around], Iterator[Body]]
OPERATORS: dict[str, Change] = {}


def operator(name: str) -> Callable[[Change], Change]:
    def register(fn: Change) -> Change:
        OPERATORS[name] = fn
        return fn

    return register


def mutants(program: Program) -> Iterator[Mutant]:
    """Every change of one op of `program`."""
    for number, kernel in enumerate(program.kernels):
        for place, op, around in _places(kernel, (), Around(kernel)):
            for name, change in OPERATORS.items():
                for new in change(op, around):
                    found = _replaced(kernel, place, new)
                    kernels = list(program.kernels)
                    kernels[number] = found  # type: ignore[call-overload]
                    yield Mutant(name, op, dataclasses.replace(program, kernels=tuple(kernels)))
        for name, other in _grids(kernel):
            kernels = list(program.kernels)
            kernels[number] = other
            yield Mutant(name, kernel, dataclasses.replace(program, kernels=tuple(kernels)))


def _places(op: Op, at: Place, around: Around) -> Iterator[tuple[Place, Op, Around]]:
    inside = dataclasses.replace(around, points=op.vars) if isinstance(op, Map) else around
    for f in marked(op, "body"):
        for index, inner in enumerate(getattr(op, f.name)):
            here = (*at, (f.name, index))
            yield here, inner, inside
            yield from _places(inner, here, inside)


def _replaced(op: Op, place: Place, new: Body) -> Op:
    (name, index), *rest = place
    old = getattr(op, name)
    body = (_replaced(old[index], tuple(rest), new),) if rest else new
    return _with(op, **{name: (*old[:index], *body, *old[index + 1 :])})


def _with(op: Op, **fields: Any) -> Op:
    return dataclasses.replace(op, **fields)


# ── things left out ──────────────────────────────────────────────────────────────────────────


@operator("drop a barrier")
def drop_barrier(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Sync):
        yield ()


@operator("drop a clear")
def drop_clear(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Fill):
        yield ()
    elif isinstance(op, Reduce) and op.clear:
        yield (_with(op, clear=False),)


@operator("drop an initial value")
def drop_init(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Alloc) and op.init is not None:
        yield (_with(op, init=None),)


@operator("drop a copy")
def drop_copy(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Copy):
        yield ()


@operator("drop a store")
def drop_store(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Store):
        yield ()


@operator("drop a guard")
def drop_guard(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, If) and not op.orelse:
        yield op.then


@operator("drop a mask")
def drop_mask(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Store):
        for node in walk(op.value):
            if isinstance(node, Select):
                yield (_with(op, value=_swap(op.value, node, node.a)),)


# ── things in the wrong place ────────────────────────────────────────────────────────────────


@operator("shift an index")
def shift_index(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Store) and op.buffer.space is not Space.LOCAL:
        for dim in range(len(op.indices)):
            yield (_with(op, indices=_plus_one(op.indices, dim)),)
    if isinstance(op, Store):
        for node in walk(op.value):
            if isinstance(node, Load) and node.indices and node.buffer.space is not Space.LOCAL:
                moved = Load(node.buffer, _plus_one(node.indices, -1), node.loc)
                yield (_with(op, value=_swap(op.value, node, moved)),)
    if isinstance(op, Copy):
        yield (_with(op, src=_moved(op.src)),)
        yield (_with(op, dst=_moved(op.dst)),)


@operator("swap who writes")
def swap_writers(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Store) and op.buffer.space is not Space.LOCAL:
        for var in (*around.points, *around.kernel.thread_vars):
            if any(var in variables(i) for i in op.indices):
                half = binary("//", var, 2)
                yield (_with(op, indices=tuple(_swap(i, var, half) for i in op.indices)),)
    for var in around.kernel.blocks:
        none = const(0, var.dtype)
        if isinstance(op, Store) and any(var in variables(i) for i in op.indices):
            yield (_with(op, indices=tuple(_swap(i, var, none) for i in op.indices)),)
        if isinstance(op, Copy) and any(var in variables(s) for s in op.dst.starts):
            starts = tuple(_swap(s, var, none) for s in op.dst.starts)
            yield (_with(op, dst=dataclasses.replace(op.dst, starts=starts)),)


@operator("one iteration more")
def one_more(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, For):
        yield (_with(op, stop=op.stop + 1),)
    if isinstance(op, Map):
        yield (_with(op, extents=(op.extents[0] + 1, *op.extents[1:])),)


@operator("one iteration less")
def one_less(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, (For, Map)):
        old = op.extents[0] if isinstance(op, Map) else op.stop - op.start
        if isinstance(old, Const) and old.value > 1:
            if isinstance(op, Map):
                yield (_with(op, extents=(old - 1, *op.extents[1:])),)
            else:
                yield (_with(op, stop=op.stop - 1),)


# ── threads ──────────────────────────────────────────────────────────────────────────────────


@operator("make an atomic plain")
def plain_atomic(op: Op, around: Around) -> Iterator[Body]:
    if not isinstance(op, Atomic) or op.op != "add" or op.value is None or op.result is not None:
        return
    if all(isinstance(e, Const) and e.value == 1 for e in op.dst.extents):
        old = Load(op.dst.buffer, op.dst.starts)
        yield (Store(op.dst.buffer, op.dst.starts, old + op.value, loc=op.loc),)


@operator("shuffle from another lane")
def other_lane(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Intrinsic) and op.name.startswith("shfl_"):
        value, lane = op.args
        if isinstance(lane, Expr):
            yield (_with(op, args=(value, lane + 1)),)
            yield (_with(op, args=(value, lane + 32)),)
        if op.width:
            yield (_with(op, width=None),)


@operator("only some threads come")
def some_come(op: Op, around: Around) -> Iterator[Body]:
    if isinstance(op, Sync) and around.kernel.thread_vars:
        thread = around.kernel.thread_vars[0]
        half = const(max(around.kernel.threads[0] // 2, 1), thread.dtype)
        yield (If(compare("<", thread, half), (op,), loc=op.loc),)


def _grids(kernel: Kernel) -> Iterator[tuple[str, Kernel]]:
    first = kernel.grid[0]
    if isinstance(first, Const) and first.value > 1:
        less = dataclasses.replace(kernel, grid=(first - 1, *kernel.grid[1:]))
        yield "one block less", less
    if isinstance(first, Const):
        more = dataclasses.replace(kernel, grid=(first + 1, *kernel.grid[1:]))
        yield "one block more", more


# ── helpers ──────────────────────────────────────────────────────────────────────────────────


def _swap(expr: Expr, old: Expr, new: Expr) -> Expr:
    return transform(expr, lambda node: new if node is old else None)


def _plus_one(indices: tuple[Expr, ...], dim: int) -> tuple[Expr, ...]:
    found = list(indices)
    found[dim] = found[dim] + 1
    return tuple(found)


def _moved(region: Region) -> Region:
    if not region.starts:
        return region
    return dataclasses.replace(region, starts=_plus_one(region.starts, -1))


__all__ = ["OPERATORS", "Mutant", "mutants"]
