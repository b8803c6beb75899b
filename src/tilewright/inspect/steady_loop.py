"""The loop in which a kernel spends its time, and what is known of it before a launch: values of
expressions, trip counts, and how many of the blocks that run at once read the same tile.

What is not known is taken as large (`ENOUGH`).
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from operator import truediv
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.analysis.points import evaluate
from tilewright.ir.arith import FOLD
from tilewright.ir.core import *
from tilewright.passes.overlap import unit_times as rates
from tilewright.support.errors import CompileError

ENOUGH = 1 << 13

Env: TypeAlias = dict[Any, Any]  # of variables, and of scalars by name

_BIN = {**FOLD, "/": truediv}


def value(e: Expr, env: Env) -> Any:
    match e:
        case Const():
            return e.value
        case Var():
            return env.get(e, ENOUGH)
        case Bin() | Cmp():
            try:
                return _BIN[e.op](value(e.a, env), value(e.b, env))
            except (TypeError, ValueError, ArithmeticError):
                return 0
        case Select():
            return value(e.a if value(e.cond, env) else e.b, env)
        case Cast():
            return value(e.a, env)
        case Load():
            return env.get(e.buffer.name, ENOUGH)
        case Call(name="neg"):
            return -value(e.args[0], env)
        case Call(name="not"):
            return not value(e.args[0], env)
    return ENOUGH


def trips(op: For, env: Env) -> range:
    start, stop, step = (int(value(e, env)) for e in (op.start, op.stop, op.step))
    return range(start, stop, max(step, 1))


# ── what is asked about ──────────────────────────────────────────────────────────────────────

_LOUD = (Wait, Arrive, Commit, WaitGroup, Sync, Turn, Break, Continue, While, Atomic)


def is_quiet(op: Op) -> bool:
    """Whether nobody else has to do with an op: no barriers, nothing asynchronous, no tensors."""
    return not any(
        isinstance(inner, _LOUD)
        or (isinstance(inner, Gemm) and inner.atom == "wgmma")
        or any(b.space is Space.GLOBAL for b in (*read_buffers(inner), *written_buffers(inner)))
        for inner in walk_ops(op)
    )


def _works(op: Op) -> bool:
    return any(
        isinstance(inner, (Gemm, Reduce)) or (isinstance(inner, Map) and not _only_moves(inner))
        for inner in walk_ops(op)
    )


def _only_moves(op: Map) -> bool:
    """A nest that copies, or loads what copies ask for: who fills rings has such ones."""
    stored = [i.value for i in walk_ops(op.body, Store)]
    return op.atom is not None or all(
        isinstance(e, Load) and e.buffer.space is Space.GLOBAL for e in stored
    )


def _asked(op: Op) -> bool:
    """A loop that has products, or waits for what runs ahead, and computes."""
    if not isinstance(op, For) or op.kind == "unroll" or is_quiet(op) or not _works(op):
        return False
    return any(isinstance(i, (Gemm, Wait, WaitGroup)) for i in walk_ops(op.body))


def computing_loops(body: Body) -> Iterator[For]:
    """Loops with products or rings that have no such loop inside."""
    for op in body:
        found = [each for inner in bodies(op) for each in computing_loops(inner)]
        if found:
            yield from found
        elif isinstance(op, For) and _asked(op):
            yield op


def _dry(body: Body, env: Env, seen: dict[int, int]) -> None:
    """Trip counts of loops as they are reached first."""
    for op in body:
        if isinstance(op, Let):
            env[op.var] = value(op.value, env)
        elif isinstance(op, Alloc) and op.init is not None:
            env[op.buffer.name] = value(op.init, env)
        elif isinstance(op, For):
            turns = trips(op, env)
            seen.setdefault(id(op), len(turns))
            env[op.var] = turns[0] if turns else value(op.start, env)
            _dry(op.body, env, seen)
        elif not isinstance(op, Map):
            for inner in bodies(op):
                _dry(inner, env, seen)


def steady_loop(kernel: Kernel, known: Env) -> tuple[For, Env, int] | None:
    """The innermost loop with products or rings that takes longest, with what block indices are
    taken to be, and its trip count. Blocks of one grid may differ: the longest counts."""
    loops = list(computing_loops(kernel.body))
    best: tuple[float, For, Env, int] | None = None
    for last in (False, True):
        env = dict(known)
        for var, size in zip(kernel.blocks, kernel.grid, strict=True):
            env[var] = int(value(size, known)) - 1 if last else 0
        if kernel.rank is not None:
            env[kernel.rank] = 0
        env.update((var, 0) for var in kernel.thread_vars)
        seen: dict[int, int] = {}
        _dry(kernel.body, dict(env), seen)
        for loop in loops:
            count = seen.get(id(loop), 0)
            cost = count * sum(rates.cycles(op) for op in loop.body)
            if count and (best is None or cost > best[0]):
                best = (cost, loop, env, count)
    return best[1:] if best is not None else None


# ── what blocks share ────────────────────────────────────────────────────────────────────────


def sharing(kernel: Kernel, env: Env, running: int, sizes: set[str]) -> dict[int, float]:
    """How many of the first `running` blocks read the same tile, by the copy's id: one of them
    finds it in memory, the others in the L2 cache. All of them, where the grid is not known; it
    may depend on `sizes`."""
    if any(v.name not in sizes for g in kernel.grid for v in variables(g)):
        return {id(op): float(running) for op in walk_ops(kernel, Copy)}
    counts = [max(1, int(value(g, env))) for g in kernel.grid]
    running = min(running, prod(counts))
    values: dict[Var, Any] = {v: np.int64(n) for v, n in env.items() if isinstance(n, int)}
    rest = np.arange(running, dtype=np.int64)
    for var, size in zip(kernel.blocks, counts, strict=True):
        values[var] = rest % size
        rest = rest // size
    found: dict[int, float] = {}
    _share(kernel.body, values, running, found)
    return found


def _share(body: Body, values: dict[Var, Any], running: int, found: dict[int, float]) -> None:
    def now(e: Expr) -> Any:
        try:
            return evaluate(e, values)
        except (CompileError, KeyError):
            return np.int64(0)

    for op in body:
        if isinstance(op, Let):
            values[op.var] = now(op.value)
        elif isinstance(op, For):
            values[op.var] = now(op.start)
        if isinstance(op, Copy) and op.src.buffer.space is Space.GLOBAL:
            starts = [np.broadcast_to(now(s), (running,)).tolist() for s in op.src.starts]
            found[id(op)] = running / max(1, len(set(zip(*starts, strict=True))))
        elif isinstance(op, Map) and op.atom is not None:
            asked = {v for i in walk_ops(op.body) for e in expressions(i) for v in variables(e)}
            told = [np.broadcast_to(now(v), (running,)).tolist() for v in asked - set(op.vars)]
            found[id(op)] = running / max(1, len(set(zip(*told, strict=True))))
        elif not isinstance(op, Map):
            for inner in bodies(op):
                _share(inner, values, running, found)
