"""Where statements run: placements and branches on whole warps as roles, or as hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod

from tilewright.ir.expr import (
    Const,
    Expr,
    const,
    is_pure,
    substitute,
    variables,
)
from tilewright.ir.marks import attr, body
from tilewright.ir.op import (
    Arrive,
    Atomic,
    Body,
    Copy,
    Fill,
    For,
    Gemm,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Reduce,
    Relayout,
    Role,
    Scan,
    Store,
    Sync,
    Wait,
    While,
    bodies,
    walk_ops,
)
from tilewright.ir.rewrite import map_body
from tilewright.ir.simplify import simplify
from tilewright.lang.builder import KernelState

WARP = 32


class Placed(Op):
    """Statements under `T.ws`, until the kernel's end shows who controls their order."""

    syntax = "placed {first} + {warps} {body}"
    first: int = attr()
    warps: int = attr()
    body: Body = body()


_TILE_OPS = (Copy, Fill, Gemm, Reduce, Scan, Relayout, Map)


def _orders(op: Op) -> bool:
    """Whether `op` is a barrier by which some threads wait for others."""
    return isinstance(op, (Arrive, Wait)) or _is_named(op)


def _is_named(op: Op) -> bool:
    return isinstance(op, Sync) and op.scope == "named"


def _is_by_thread(ops: Body) -> bool:
    """Whether a branch around `ops` says which threads do something, each by itself."""
    return any(
        isinstance(op, (Atomic, Intrinsic, Store))
        or (not isinstance(op, Map) and any(map(_is_by_thread, bodies(op))))
        for op in ops
    )


def place(ops: Body, kernel: KernelState) -> Body:
    """Placements as roles when the kernel's own barriers order them, as hints otherwise.

    A branch on the thread index that takes whole warps, with tile ops inside or named barriers that
    others come to as well, is a placement too where barriers are used.
    """
    if any(_orders(op) for op in walk_ops(ops)):
        branches = _place_branches(ops, kernel)
        placements = [op for op in walk_ops(branches) if isinstance(op, Placed)]
        if any(_orders(o) for p in placements for o in walk_ops(p.body)):
            return _as_roles(branches, kernel)
        if not any(_is_by_thread(p.body) for p in placements):
            ops = branches
    return map_body(ops, _as_hints)


def _inside(op: Op, change: Callable[[Body], Body]) -> Op:
    if isinstance(op, If):
        return replace(op, then=change(op.then), orelse=change(op.orelse))
    if isinstance(op, (For, While, Placed)):
        return replace(op, body=change(op.body))
    return op


def _place_branches(ops: Body, kernel: KernelState) -> Body:
    found: list[Op] = []
    for op in ops:
        placed: list[Op] | None = [op] if isinstance(op, Placed) else None
        if isinstance(op, If) and (
            any(isinstance(o, _TILE_OPS) for o in walk_ops(op)) or _meets_others(op, kernel)
        ):
            placed = _place_branch(op, kernel, range(kernel.num_threads))
        if placed is None:
            placed = [_inside(op, lambda inner: _place_branches(inner, kernel))]
        found += placed
    return tuple(found)


def _meets_others(op: If, kernel: KernelState) -> bool:
    """Whether a branch has a named barrier of other threads than those that take it."""
    named = [[o for o in walk_ops(side) if _is_named(o)] for side in (op.then, op.orelse)]
    if not any(named) or not on_threads([op.cond], kernel):
        return False
    taken = len(threads_where([op.cond], kernel))
    return any(
        isinstance(o, Sync) and (o.arrive or (o.threads or 0) > count)
        for side, count in zip(named, (taken, kernel.num_threads - taken), strict=True)
        for o in side
    )


def _place_branch(op: If, kernel: KernelState, threads: range) -> list[Op] | None:
    """`op` as one placement per side, when each side is run by whole, neighbouring warps."""
    if not on_threads([op.cond], kernel):
        return None
    chosen = set(threads_where([op.cond], kernel))
    found: list[Op] = []
    for side, side_ops in (
        ([t for t in threads if t in chosen], op.then),
        ([t for t in threads if t not in chosen], op.orelse),
    ):
        if not side_ops or not side:
            continue
        span = range(side[0], side[-1] + 1)
        if len(span) != len(side) or span.start % WARP or len(span) % WARP:
            return None
        only = side_ops[0]
        if len(side_ops) == 1 and isinstance(only, If) and on_threads([only.cond], kernel):
            inner = _place_branch(only, kernel, span)
            if inner is None:
                return None
            found += inner
        else:
            found.append(Placed(span.start // WARP, len(span) // WARP, side_ops, loc=op.loc))
    return found


def _as_hints(op: Op) -> Body | None:
    if not isinstance(op, Placed):
        return None
    groups = tuple(range(op.first // 4, (op.first + op.warps) // 4))
    return (Hint("ws", detail=groups, loc=op.loc), *op.body, Hint("ws", loc=op.loc))


def _as_roles(ops: Body, kernel: KernelState) -> Body:
    found: list[Op] = []
    for op in ops:
        if isinstance(op, Placed):
            found.append(_role(op))
        elif any(isinstance(o, Placed) for o in walk_ops(op)):
            found.append(_inside(op, lambda inner: _as_roles(inner, kernel)))
        elif any(_is_collective(o) for o in walk_ops(op)):
            # all warps together
            warps = -(-kernel.num_threads // WARP)
            last = found[-1] if found else None
            if isinstance(last, Role) and last.name == "all":
                found[-1] = replace(last, body=(*last.body, op))
            else:
                found.append(Role("all", 0, warps, (op,), loc=op.loc))
        else:
            found.append(op)
    return tuple(found)


def _is_collective(op: Op) -> bool:
    """Whether `op` outside placements is one deed of all threads, not one of each."""
    if isinstance(op, (Atomic, Intrinsic)):
        return op.result is None
    return isinstance(op, (*_TILE_OPS, Arrive))


def _role(op: Placed) -> Role:
    limits = [h for h in op.body if isinstance(h, Hint) and h.name == "max_nreg"]
    registers = next((int(h.detail[0]) for h in limits), None)
    kept = tuple(o for o in op.body if o not in limits)
    return Role(f"warps{op.first}", op.first, op.warps, kept, registers=registers, loc=op.loc)


def on_threads(conds: list[Expr], kernel: Kernel | KernelState) -> bool:
    """Whether conditions depend on the thread's index and on nothing else."""
    names = set(kernel.thread_vars)
    return all(is_pure(c) and variables(c) and variables(c) <= names for c in conds)


def threads_where(conds: list[Expr], kernel: Kernel | KernelState) -> list[int]:
    """The threads, in linear order, for which all conditions hold."""
    found = []
    for linear in range(prod(kernel.threads)):
        rest, values = linear, {}
        for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True):
            values[var] = const(rest % extent)
            rest //= extent
        tests = (simplify(substitute(c, dict(values)), index=False) for c in conds)
        if all(isinstance(test, Const) and bool(test.value) for test in tests):
            found.append(linear)
    return found
