"""The verifier's rules for structure: kernels, loops, roles and maps; and for synchronisation that
cannot work whatever the timing: barriers nobody initialises, fills or arrives at, and asynchronous
ops whose completion nothing can wait for.

Only facts that hold for every run are reported; the interpreter finds the rest by running.
Barriers handed to an intrinsic are left alone, as it may do anything to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.atoms import ATOMS, GROUP_UNITS
from tilewright.ir.gather import gather_of
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.verify.core import *

MAX_THREADS = 1024
REGISTERS_PER_BLOCK = 65536


@rule
def _kernel(op: Kernel, context: Context) -> None:
    if context.enclosing:
        context.fail("a kernel inside another op", fix="kernels stand side by side")
    for names, extents, what in (
        (op.blocks, op.grid, "grid"),
        (op.thread_vars, op.threads, "threads"),
    ):
        if len(names) != len(extents) or len(names) > 3:
            context.fail(
                f"{what}: one variable for each of at most 3 axes",
                got=f"{len(names)} variables, {len(extents)} extents",
            )
    for extent in op.grid:
        context.integer(extent, "a grid extent")
    if min(op.threads, default=1) < 1 or op.thread_count > MAX_THREADS:
        context.fail(
            "the number of threads is out of range",
            expected=f"1 … {MAX_THREADS}",
            got=op.thread_count,
        )
    if op.rank is not None and not op.cluster:
        context.fail("rank= in a kernel without a cluster", fix="give cluster=(…)")
    if op.cluster and (
        len(op.cluster) > max(1, len(op.grid)) or min(op.cluster) < 1 or op.cluster_size > 16
    ):
        context.fail(
            "the cluster does not fit",
            expected="positive, at most one extent per grid axis, at most 16 blocks",
            got=op.cluster,
            fix="use a smaller cluster: cluster_dims=(2, 1, 1)",
        )
    _registers(op, context)


def _registers(op: Kernel, context: Context) -> None:
    """Registers moved between roles must have been there at entry, or the kernel hangs."""
    roles = [r for r in walk_ops(op, Role) if r.registers is not None]
    groups = op.warps // GROUP
    if not roles or not groups:
        return
    entry = min(REGISTERS_PER_BLOCK // op.thread_count // 8 * 8, 256)
    held = [entry] * groups
    for group in range(groups):
        moved = [r.registers or 0 for r in roles if r.first <= group * 4 < r.first + r.warps]
        held[group] = max(moved, default=entry)
    if sum(held) > entry * groups:
        context.fail(
            "the roles take more registers than the block has",
            op=roles[-1],
            expected=f"at most {entry * groups} over {groups} warpgroups ({entry} each at entry)",
            got=" + ".join(map(str, held)) + f" = {sum(held)}",
        )


@rule
def _for(op: For, context: Context) -> None:
    kinds = ("serial", "unroll", "vectorized", "pipelined", "persistent", "cluster")
    context.one_of(op.kind, kinds, "loop kind")
    context.integer(op.var, "a loop variable")
    for name, bound in (("start", op.start), ("stop", op.stop), ("step", op.step)):
        if bound.dtype != op.var.dtype and not (name == "step" and isinstance(bound, Const)):
            context.fail(
                f"the loop's {name} has another type than {op.var.name}",
                expected=op.var.dtype,
                got=bound.dtype,
            )
    if isinstance(op.step, Const) and op.step.value < 1:
        context.fail("a loop's step must be positive", got=op.step.value)
    unsaid = op.kind == "pipelined" and op.stages == -1
    if op.stages < 0 and not unsaid:
        context.fail("stages must not be negative", got=op.stages)
    if op.unroll < 1:
        context.fail("unroll must be 1 at least", got=op.unroll)
    if op.order is not None and op.stage is not None and len(op.order) != len(op.stage):
        context.fail(
            "order and stage pin the same statements",
            expected=f"{len(op.order)} stages",
            got=len(op.stage),
        )


@rule
def _condition(op: If | While, context: Context) -> None:
    context.boolean(op.cond, "the condition")


@rule
def _in_loop(op: Break | Continue, context: Context) -> None:
    word = type(op).__name__.lower()
    inner = context.inside(For, While, Map, Role)
    if not isinstance(inner, (For, While)):
        why = f" (a {type(inner).__name__.lower()} lies between)" if inner else ""
        context.fail(f"{word} outside a loop{why}", expected="a for or while around it")


@rule
def _let(op: Let, context: Context) -> None:
    context.dtype(op.value.dtype, op.var.dtype, f"the value of {op.var.name}")


@rule
def _role(op: Role, context: Context) -> None:
    outer = context.inside(Role, Map)
    if outer is not None:
        context.fail(f"a role inside a {type(outer).__name__.lower()}")
    assert context.kernel is not None
    warps = context.kernel.warps + (op.warps if op.derived else 0)
    if op.first < 0 or op.warps < 1 or op.first + op.warps > warps:
        context.fail(
            f"role {op.name} wants warps the block does not have",
            expected=f"warps within 0 … {warps - 1}",
            got=f"{op.first} … {op.first + op.warps - 1}",
        )
    if op.instances < 1 or op.warps % op.instances:
        context.fail(
            f"role {op.name}: its warps do not divide among its instances",
            got=f"{op.warps} warps, {op.instances} instances",
        )
    if op.registers is None:
        return
    if op.registers % 8 or not 24 <= op.registers <= 256:
        context.fail(
            f"role {op.name}: registers cannot be moved in this amount",
            expected="a multiple of 8 in 24 … 256",
            got=op.registers,
        )
    if op.first % GROUP or op.warps % GROUP:
        context.fail(
            f"role {op.name}: registers are moved by whole warpgroups",
            expected="first and warps multiples of 4",
            got=f"warps {op.first} + {op.warps}",
        )


_IN_MAP = (Let, Store, For, While, If, Break, Continue, Alloc, Atomic, Intrinsic, Hint)


@rule
def _map(op: Map, context: Context) -> None:
    if len(op.vars) != len(op.extents) or not op.vars:
        context.fail(
            "a map needs one variable per extent",
            got=f"{len(op.vars)} variables, {len(op.extents)} extents",
        )
    for extent in op.extents:
        context.integer(extent, "an extent of a map")
        if isinstance(extent, Const) and extent.value < 0:
            context.fail("an extent of a map is negative", got=extent.value)
    if op.atom is not None and (op.atom != "cp_async" or gather_of(op) is None):
        context.fail(
            f"atom {op.atom} does not serve this map",
            expected="cp_async, for one store of a tensor's elements, or zeros, to a shared tile",
        )
    for inner in walk_ops(op.body):
        if isinstance(inner, Map):
            context.fail("a map inside a map", op=inner, fix="make it one map over all the extents")
        if not isinstance(inner, _IN_MAP):
            context.fail(
                f"{type(inner).__name__} inside a map: it needs all threads together",
                op=inner,
                fix="move it out of the map",
            )
        if isinstance(inner, Alloc) and not inner.buffer.is_local:
            context.fail(
                f"{inner.buffer.name} is allocated inside a map",
                op=inner,
                expected="local: private to an iteration",
                got=inner.buffer.space.value,
            )


# ── synchronisation that cannot work whatever the timing ─────────────────────────────────────────


JUMPS = (Break, Continue)


def _with_roles(body: Body, role: Role | None = None) -> Iterator[tuple[Op, Role | None]]:
    """Every op in text order, and the role that it stands in."""
    for op in body:
        around = op if isinstance(op, Role) else role
        yield op, around
        for inner in bodies(op):
            yield from _with_roles(inner, around)


def check_sync(kernel: Kernel, context: Context) -> None:
    """Raise for synchronisation that no run of `kernel` can get right."""
    roots = aliases(kernel)
    barriers: dict[str, dict[type[Op], list[Any]]] = {}  # by name: what is done with one
    handed: set[str] = set()  # to an intrinsic
    issued: dict[str, list[tuple[Op, Role | None]]] = {}  # by unit
    closed: set[tuple[type[Op], str, int | None]] = set()
    foreign = False
    for op, role in _with_roles(kernel.body):
        if (barrier := getattr(op, "barrier", None)) is not None:
            uses = barriers.setdefault(roots[barrier.buffer.name], {})
            uses.setdefault(type(op), []).append(op)
        if isinstance(op, (Copy, Gemm)) and op.atom is not None:
            issued.setdefault(ATOMS[op.atom].completion, []).append((op, role))
        elif isinstance(op, (Commit, WaitGroup)):
            closed.add((type(op), op.unit, None if role is None else id(role)))
        elif isinstance(op, Intrinsic):
            foreign = foreign or INTRINSICS[op.name].opaque
            handed |= {roots[x.buffer.name] for x in op.args if isinstance(x, Region)}
    for name, uses in barriers.items():
        if name not in handed:
            _check_barrier(name, uses, context)
    if foreign:  # it may commit and wait by itself
        return
    for unit in GROUP_UNITS:
        if context.laid_out or any(unit == each for _, each, _ in closed):
            for op, role in issued.get(unit, ()):  # else who waits for what is decided later
                _check_group(unit, op, role, closed, context)


def _check_barrier(name: str, uses: dict[type[Op], list[Any]], context: Context) -> None:
    inits, arrivals, waits, copies = (uses.get(t, []) for t in (BarrierInit, Arrive, Wait, Copy))
    if not inits:
        context.fail(
            f"barrier {name} is never initialised",
            op=min((*arrivals, *waits, *copies), key=_position),
            fix=f"add `barrier_init {name} count …` before the roles",
        )
    # a fresh barrier lets parity 1 pass, so only other waits depend on somebody arriving
    blocking = [w for w in waits if not (isinstance(w.phase, Const) and w.phase.value)]
    arriving = [a for a in arrivals if not _is_zero(a.count)]
    if blocking and not arriving:
        context.fail(
            f"nobody arrives at barrier {name}, so this wait never ends",
            op=blocking[0],
            fix=f"arrive at it where what is waited for is done: T.barrier_arrive({name}), or "
            f"`arrive {name}[…]`",
        )
    expecting = [a for a in arrivals if a.bytes is not None and not _is_zero(a.bytes)]
    if copies and not expecting:
        context.fail(
            f"this copy counts its bytes on {name}, but nobody there expects bytes",
            op=copies[0],
            fix=f"add `arrive {name}[…] bytes=…` before the copy",
        )
    if copies and not waits:
        context.fail(
            f"nobody waits on {name}, so nothing may use what this copy brings",
            op=copies[0],
            fix=f"wait before the first use: T.barrier_wait({name}, parity), or "
            f"`wait {name}[…] phase …`",
        )
    if expecting and waits and not copies:
        context.fail(
            f"this arrival expects bytes on {name}, but no copy completes there",
            op=expecting[0],
            fix=f"give the copy barrier={name}[…], or drop bytes=",
        )


_SPELT = {  # by words of Python
    ("wgmma", WaitGroup): "T.wait_wgmma(0), or ",
    ("bulk", WaitGroup): "T.tma_store_wait(0), or ",
    ("bulk", Commit): "T.tma_store_arrive(), or ",
}


def _check_group(
    unit: str,
    op: Op,
    role: Role | None,
    closed: set[tuple[type[Op], str, int | None]],
    context: Context,
) -> None:
    for end, word, why in (
        (Commit, f"commit {unit}", "its group is never closed"),
        (WaitGroup, f"wait_group {unit}", "nothing waits for it"),
    ):
        seen = {where for kind, each, where in closed if kind is end and each == unit}
        if not (seen if role is None else seen & {None, id(role)}):
            where = f" in role {role.name}" if role is not None else ""
            context.fail(
                f"this op is asynchronous on {unit}, but {why}{where}",
                op=op,
                expected=f"`{word}` after it",
                fix=f"add {_SPELT.get((unit, end), '')}"
                f"`{word}{' pending 0' if end is WaitGroup else ''}`",
            )


def check_turns(kernel: Kernel, context: Context) -> None:
    """Raise where sections of turns do not begin and end by turns on every path through a role."""
    for role in walk_ops(kernel):
        if isinstance(role, Role):
            left = _turns(role.body, None, None, context)
            if left is not None:
                context.fail(
                    f"this turn may still last at the end of role {role.name}",
                    op=left,
                    fix="add `turn end` after the last op of the section",
                )


def _turns(body: Body, began: Turn | None, around: Turn | None, context: Context) -> Turn | None:
    """The turn that lasts after `body`, given the one before it and the one that lasts where the
    loop around goes on."""
    for op in body:
        if isinstance(op, Turn):
            if (op.edge == "begin") == (began is not None):
                word = "begins inside another" if began is not None else "ends that has not begun"
                last = f"the last one began {_where(began)}" if began is not None else ""
                context.fail(
                    f"a turn {word}",
                    op=op,
                    got=last,
                    fix="let `turn begin` and `turn end` alternate",
                )
            began = op if op.edge == "begin" else None
        elif isinstance(op, If):
            left = [
                (_turns(side, began, around, context), bool(side) and isinstance(side[-1], JUMPS))
                for side in (op.then, op.orelse)
            ]
            sides = [turn for turn, jumps in left if not jumps]  # those that go on after it
            if len({turn is None for turn in sides}) > 1:
                context.fail(
                    "a turn begins or ends on one side of this branch only",
                    op=op,
                    fix="do the same on both sides, or move it out of the branch",
                )
            began = sides[0] if sides else began
        elif isinstance(op, (For, While)):
            behind = _turns(op.body, began, began, context)
            if (behind is None) != (began is None):
                word = "begins a turn that it does not end"
                if behind is None:
                    word = "ends a turn and does not begin the next one"
                context.fail(
                    f"an iteration of this loop {word}",
                    op=op,
                    fix="let an iteration leave turns as it finds them",
                )
        elif isinstance(op, JUMPS) and (began is None) != (around is None):
            context.fail(
                f"{type(op).__name__.lower()} in the middle of a turn",
                op=op,
                fix="begin and end turns on every path through the loop",
            )
    return began


def _where(op: Op) -> str:
    return f"at {op.loc}" if op.loc is not None else "before"


def _is_zero(expr: object) -> bool:
    return isinstance(expr, Const) and expr.value == 0


def _position(op: Op) -> tuple[int, int]:
    return (op.loc.line, op.loc.column) if op.loc else (0, 0)
