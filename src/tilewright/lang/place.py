"""Where statements run: placements and branches on whole warps as roles or hints, and `T.Parallel`
loops out of branches on the thread index."""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.analysis.uniform import TILE_OPS, is_collective, per_thread
from tilewright.ir.core import *
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.marks import attr, body
from tilewright.ir.simplify import simplify


class Placed(Op):
    """Statements under `T.ws`, until the kernel's end shows who controls their order."""

    syntax = "placed {first} + {warps} {body}"
    first: int = attr()
    warps: int = attr()
    body: Body = body()


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


def place(kernel: Kernel) -> Kernel:
    """Placements as roles when the kernel's own barriers order them, as hints otherwise.

    A branch on the thread index that takes whole warps, with tile ops inside or named barriers that
    others come to as well, is a placement too where barriers are used.
    """
    ops = kernel.body
    if any(_orders(op) for op in walk_ops(ops)):
        branches = _place_branches(ops, kernel)
        placements = list(walk_ops(branches, Placed))
        if any(_orders(o) for p in placements for o in walk_ops(p.body)):
            return replace(kernel, body=_as_roles(branches, kernel))
        if not any(_is_by_thread(p.body) for p in placements):
            ops = branches
    return replace(kernel, body=map_body(ops, _as_hints))


def _place_branches(ops: Body, kernel: Kernel) -> Body:
    found: list[Op] = []
    for op in ops:
        placed: list[Op] | None = [op] if isinstance(op, Placed) else None
        if isinstance(op, If) and (
            any(type(o) in TILE_OPS for o in walk_ops(op)) or _meets_others(op, kernel)
        ):
            placed = _place_branch(op, kernel, range(kernel.thread_count))
        if placed is None:
            placed = [map_bodies(op, lambda inner: _place_branches(inner, kernel))]
        found += placed
    return tuple(found)


def _meets_others(op: If, kernel: Kernel) -> bool:
    """Whether a branch has a named barrier of other threads than those that take it."""
    named = [[o for o in walk_ops(side) if _is_named(o)] for side in (op.then, op.orelse)]
    if not any(named) or not on_threads(op.cond, kernel):
        return False
    taken = len(threads_where(op.cond, kernel))
    return any(
        isinstance(o, Sync) and (o.arrive or (o.threads or 0) > count)
        for side, count in zip(named, (taken, kernel.thread_count - taken), strict=True)
        for o in side
    )


def _place_branch(op: If, kernel: Kernel, threads: range) -> list[Op] | None:
    """`op` as one placement per side, when each side is run by whole, neighbouring warps."""
    if not on_threads(op.cond, kernel):
        return None
    chosen = set(threads_where(op.cond, kernel))
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
        if len(side_ops) == 1 and isinstance(only, If) and on_threads(only.cond, kernel):
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


def _as_roles(ops: Body, kernel: Kernel) -> Body:
    found: list[Op] = []
    for op in ops:
        if isinstance(op, Placed):
            found.append(_role(op))
        elif any(walk_ops(op, Placed)):
            found.append(map_bodies(op, lambda inner: _as_roles(inner, kernel)))
        elif any(is_collective(o) for o in walk_ops(op)):
            # all warps together
            warps = kernel.warps
            last = found[-1] if found else None
            if isinstance(last, Role) and last.name == "all":
                found[-1] = replace(last, body=(*last.body, op))
            else:
                found.append(Role("all", 0, warps, (op,), loc=op.loc))
        else:
            found.append(op)
    return tuple(found)


def _role(op: Placed) -> Role:
    limits = [h for h in op.body if isinstance(h, Hint) and h.name == "max_nreg"]
    registers = next((int(h.detail[0]) for h in limits), None)
    kept = tuple(o for o in op.body if o not in limits)
    return Role(f"warps{op.first}", op.first, op.warps, kept, registers=registers, loc=op.loc)


def on_threads(cond: Expr, kernel: Kernel) -> bool:
    """Whether a condition depends on the thread's index and on nothing else."""
    return is_pure(cond) and bool(variables(cond)) and variables(cond) <= {*kernel.thread_vars}


def threads_where(cond: Expr, kernel: Kernel) -> list[int]:
    """The threads, in linear order, for which a condition holds."""
    found = []
    for linear in range(kernel.thread_count):
        rest, values = linear, {}
        for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True):
            values[var] = const(rest % extent)
            rest //= extent
        if simplify(substitute(cond, dict(values)), index=False) is TRUE:
            found.append(linear)
    return found


# ── T.Parallel under a branch on the thread index ────────────────────────────────────────────────

# Each iteration runs once, and which thread runs it makes no difference: values of one thread are
# refused inside. So under `if t < 32` it stays a loop that all threads share, and the branch moves
# to the statements around it. From then on it is a tile op beside thread-level code like any other,
# which the compiler orders.


def lift_loops(kernel: Kernel) -> Kernel:
    """`kernel` with its `T.Parallel` loops out of branches on the thread index."""
    names = set(kernel.thread_vars)
    branches = (op for op in walk_ops(kernel, If) if variables(op.cond) & names)
    if not any(_has_loop(op) for op in branches):
        return kernel
    return replace(kernel, body=_Lift(kernel).body(kernel.body, TRUE))


class _Lift:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.found = per_thread(kernel)
        self.role: Role | None = None  # around
        memory = {b for op in walk_ops(kernel) for b in written_buffers(op)}
        self.written = {b for b in memory if b.space in (Space.GLOBAL, Space.SHARED)}
        # a wait by some threads orders what these threads do, not what all of them do
        self.waits = [op for op in walk_ops(kernel) if id(op) in self.found.controls and _waits(op)]

    def body(self, ops: Body, guard: Expr) -> Body:
        """`ops`, of which all but loops belong to the threads for which `guard` holds."""
        if guard is not TRUE and not self.reaching(guard):
            return ()
        found: list[Op] = []
        kept: list[Op] = []
        names: set[Var | Buffer] = set()  # of `found`, inside a branch of its own by now

        def close() -> None:
            if kept:
                names.update(n for op in kept for n in _defined(op))
                found.append(If(guard, tuple(kept), loc=kept[0].loc))
                kept.clear()

        for op in ops:
            if _has_loop(op) or guard is TRUE or self.is_for_all(op):
                close()
                self.check_names(op, names)
                found += self.lifted(op, guard)
            else:
                self.check_names(op, names)
                kept.append(op)
        close()
        return tuple(found)

    def lifted(self, op: Op, guard: Expr) -> list[Op]:
        if isinstance(op, Map):
            if guard is not TRUE:
                self.check(op, self.reaching(guard))
            return [op]
        if isinstance(op, If) and _has_loop(op):
            return self.branch(op, guard)
        if isinstance(op, Role):
            self.role = op
            role = replace(op, body=self.body(op.body, guard))
            self.role = None
            return [role]
        if isinstance(op, (For, While)) and _has_loop(op):
            return [replace(op, body=self.body(op.body, guard))]
        if guard is TRUE or self.role is not None or not self.reads(op):
            return [op]
        return [Sync("block", loc=op.loc), op, Sync("block", loc=op.loc)]

    def branch(self, op: If, guard: Expr) -> list[Op]:
        mine: Expr = TRUE
        rest: Expr = TRUE
        for test in conjuncts(op.cond):
            if on_threads(test, self.kernel):
                mine = logical_and(mine, test)
            else:
                rest = logical_and(rest, test)
        inner = logical_and(guard, mine)
        if inner is not TRUE and self.reads(op):
            raise _refusal(
                next(walk_ops(op, Map)),
                "a condition that reads memory which the kernel writes",
                "compute the condition on a line of its own, before the branch",
            )
        if mine is TRUE:
            then, orelse = self.body(op.then, guard), self.body(op.orelse, guard)
            return [replace(op, then=then, orelse=orelse)]
        if rest is not TRUE:
            if op.orelse:
                return [op]
            return [replace(op, cond=rest, then=self.body(op.then, inner))]
        outer = logical_and(guard, logical_not(op.cond))
        return [*self.body(op.then, inner), *self.body(op.orelse, outer)]

    def is_for_all(self, op: Op) -> bool:
        """Whether `op` only names something, which is the same in all threads."""
        named = isinstance(op, (Alloc, Let, View)) or (isinstance(op, Hint) and op.name == "ws")
        return named and self.found.source(expressions(op)) is None

    def reads(self, op: Op) -> bool:
        """Whether `op` reads what threads may write: for all to do so in place of some, they
        have to meet before and after."""
        return any(x.buffer in self.written for x in op_loads(op))

    def reaching(self, guard: Expr) -> list[int]:
        """The threads that `guard` lets through, of those that the role around has."""
        found = threads_where(guard, self.kernel)
        if self.role is None:
            return found
        first, count = self.role.first, self.role.warps
        return [t for t in found if first <= t // WARP < first + count]

    def check(self, loop: Map, some: list[int]) -> None:
        """All threads may run the loop in place of `some`."""
        if some[-1] - some[0] >= len(some):
            gap = next(t for t in range(some[0], some[-1]) if t not in some)
            raise _refusal(
                loop,
                f"a branch that threads {some[0]} and {some[-1]} take, and thread {gap} does not",
                "test for threads that follow each other: `if lo <= t < hi`, with constants",
            )
        touched = [b for op in walk_ops(loop) for b in (*read_buffers(op), *written_buffers(op))]
        fragment = next((b for b in touched if b.is_fragment), None)
        if fragment is not None:
            raise _refusal(
                loop,
                f"{fragment.name}, a fragment, which all threads hold parts of",
                f"allocate {fragment.name} with T.alloc_shared, or move the loop out of the branch",
            )
        if self.waits:
            raise _refusal(
                loop,
                f"a kernel in which some threads wait on their own, at {self.waits[0].loc}",
                "let all threads wait, outside of branches on the thread index, or branch "
                "by whole warps that meet at barriers",
            )

    def check_names(self, op: Op, names: set[Var | Buffer]) -> None:
        for each in walk_ops(op) if names else ():
            used = {v for e in expressions(each) for v in variables(e)}
            lost = names & {*used, *read_buffers(each), *written_buffers(each)}
            if lost:
                name = min(n.name for n in lost)
                raise CompileError(
                    f"{name} is a value of some threads, and used in a T.Parallel loop under their "
                    "branch, or after one",
                    loc=each.loc,
                    fix=f"after the loop, read {name} again or keep it in a T.alloc_var from "
                    "before the branch; in the loop, read it from shared memory",
                    code="not-uniform",
                )


def _refusal(loop: Map, got: str, fix: str) -> CompileError:
    return CompileError(
        "a T.Parallel loop is done by all threads together, but not all of them reach this one",
        loc=loop.loc,
        got=got,
        fix=fix + "; or give each thread its own elements: `for i in T.serial(t, n, 32)` "
        "under `if t < 32`",
        code="not-uniform",
    )


def _has_loop(op: Op) -> bool:
    return any(walk_ops(op, Map))


def _defined(op: Op) -> tuple[Var | Buffer, ...]:
    if isinstance(op, (Alloc, View)):
        return (op.buffer,)
    return bound(op)


def _waits(op: Op) -> bool:
    """Whether what follows `op` may rely on other threads, blocks or engines."""
    if isinstance(op, Sync):
        return op.scope != "warp"
    if isinstance(op, Atomic):
        return op.order != "relaxed"
    if isinstance(op, Intrinsic):
        effect = INTRINSICS.get(op.name)
        return op.name not in _ALONE and not (effect is not None and effect.convergent)
    return isinstance(op, (Arrive, Commit, Fence, Wait, WaitGroup, While))


_ALONE = ("print", "device_assert")
