"""Neighbouring elementwise nests over one box become one nest: fewer trips through memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Expr, Load, Var
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Hint,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Store,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import map_bodies, map_ops, rebuild, substitute_vars
from tilewright.ir.target import Target

Place = tuple[Expr, ...]
Places: TypeAlias = tuple[dict[str, set[Place]], dict[str, set[Place]]]  # read, written


def fuse_maps(kernel: Kernel, target: Target) -> Kernel:
    """Fuse where every element that one nest writes is met by the other at the same point."""
    viewed = aliases(kernel).viewed

    def fuse(body: Body) -> Body:
        done: list[Op] = []
        last: int | None = None  # the nest that the next one may join
        places: Places = {}, {}  # what it touches, found once as it grows
        for op in body:
            if isinstance(op, Map) and last is not None:
                first = done[last]
                assert isinstance(first, Map)
                joined = _join(first, op, places, viewed)
                if joined is not None:
                    # what stood between only brings memory into being
                    done.pop(last)
                    done.append(joined)
                    last = len(done) - 1
                    continue
            done.append(op)
            if isinstance(op, Map):
                if any(walk_ops(op, Intrinsic)):
                    last = None
                else:
                    last, places = len(done) - 1, _accesses(op.body)
            elif not isinstance(op, Hint) and not (isinstance(op, Alloc) and op.init is None):
                last = None
        return tuple(done) if len(done) != len(body) else body

    def visit(op: Op) -> Op | None:
        if isinstance(op, Map):
            return None
        return map_bodies(op, fuse)

    inner = map_ops(kernel, visit)
    return rebuild(inner, body=fuse(inner.body))


def _join(first: Map, second: Map, places: Places, viewed: set[str]) -> Map | None:
    """Both as one nest; `places`, what `first` touches, grows with it."""
    if first.extents != second.extents:
        return None
    if any(walk_ops(second, Intrinsic)):
        return None
    names: dict[Var, Expr] = dict(zip(second.vars, first.vars, strict=True))
    moved = substitute_vars(second.body, names)
    more = _accesses(moved)
    if not _meet(places, more, viewed):
        return None
    for mine, its in zip(places, more, strict=True):
        for name, touched in its.items():
            mine.setdefault(name, set()).update(touched)
    return replace(first, body=first.body + moved, layout=None)


def _accesses(body: Body) -> Places:
    """(reads, writes): the places touched, per buffer that others can see."""
    reads: dict[str, set[Place]] = {}
    writes: dict[str, set[Place]] = {}

    def note(table: dict[str, set[Place]], buffer: Buffer, at: Place) -> None:
        if buffer.space is not Space.LOCAL:
            table.setdefault(buffer.name, set()).add(at)

    for op in walk_ops(body):
        for load in op_loads(op):
            note(reads, load.buffer, load.indices)
        if isinstance(op, Store):
            note(writes, op.buffer, op.indices)
        elif isinstance(op, Atomic):
            note(writes, op.dst.buffer, op.dst.starts)
    return reads, writes


def _meet(
    a: Places,
    b: Places,
    viewed: set[str],
) -> bool:
    """Wherever one side writes what the other touches, both do so at one and the same place."""
    for (_, writes), (others_r, others_w) in ((a, b), (b, a)):
        for name, places in writes.items():
            touched = others_r.get(name, set()) | others_w.get(name, set())
            if touched and len(places | touched) != 1:
                return False
            if touched and any(_depends_on_memory(p) for p in places):
                return False
            if name in viewed and any(n in viewed for n in (*others_r, *others_w)):
                return False
    return True


def _depends_on_memory(place: Place) -> bool:
    return any(isinstance(node, Load) for e in place for node in (e, *e.children))
