"""Synchronisation that cannot work whatever the timing: barriers nobody initialises, fills or
arrives at, and asynchronous ops whose completion nothing can wait for.

Only facts that hold for every run are reported; the interpreter finds the rest by running.
Barriers handed to an intrinsic are left alone, as it may do anything to them.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.ir.atoms import ATOMS, GROUP_UNITS
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Const
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Body,
    Break,
    Commit,
    Continue,
    Copy,
    For,
    Gemm,
    If,
    Intrinsic,
    Kernel,
    Op,
    Role,
    Turn,
    View,
    Wait,
    WaitGroup,
    While,
    bodies,
    walk_ops,
)
from tilewright.ir.verify.core import Context

JUMPS = (Break, Continue)


@dataclass
class _Barrier:
    """Who does what with one barrier buffer."""

    inits: list[BarrierInit] = field(default_factory=list)
    arrivals: list[Arrive] = field(default_factory=list)
    waits: list[Wait] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)
    touched: bool = False

    @property
    def users(self) -> list[Op]:
        return [*self.arrivals, *self.waits, *self.copies]


@dataclass
class _Groups:
    """What one group unit is used for, and in which role (None: outside roles)."""

    issued: list[tuple[Op, Role | None]] = field(default_factory=list)
    committed: set[int | None] = field(default_factory=set)
    waited: set[int | None] = field(default_factory=set)


class _Survey:
    """One walk over a kernel that collects the above."""

    def __init__(self, kernel: Kernel) -> None:
        self.roots: dict[str, str] = {}
        self.barriers: dict[str, _Barrier] = {}
        self.groups = {unit: _Groups() for unit in GROUP_UNITS}
        self.opaque = False
        self._visit(kernel, None)

    def barrier(self, region: Region) -> _Barrier:
        name = region.buffer.name
        return self.barriers.setdefault(self.roots.get(name, name), _Barrier())

    def _visit(self, op: Op, role: Role | None) -> None:
        if isinstance(op, Role):
            role = op
        elif isinstance(op, (Alloc, View)) and op.buffer.space is Space.BARRIER:
            source = op.source.name if isinstance(op, View) else op.buffer.name
            self.roots[op.buffer.name] = self.roots.get(source, source)
        elif isinstance(op, BarrierInit):
            self.barrier(op.barrier).inits.append(op)
        elif isinstance(op, Arrive):
            self.barrier(op.barrier).arrivals.append(op)
        elif isinstance(op, Wait):
            self.barrier(op.barrier).waits.append(op)
        elif isinstance(op, (Copy, Gemm)):
            if isinstance(op, Copy) and op.barrier is not None:
                self.barrier(op.barrier).copies.append(op)
            unit = ATOMS[op.atom].completion if op.atom is not None else ""
            if unit in self.groups:
                self.groups[unit].issued.append((op, role))
        elif isinstance(op, Commit):
            self.groups[op.unit].committed.add(None if role is None else id(role))
        elif isinstance(op, WaitGroup):
            self.groups[op.unit].waited.add(None if role is None else id(role))
        elif isinstance(op, Intrinsic):
            self.opaque = self.opaque or INTRINSICS[op.name].opaque
            for operand in op.args:
                if isinstance(operand, Region) and operand.buffer.space is Space.BARRIER:
                    self.barrier(operand).touched = True
        for body in bodies(op):
            for inner in body:
                self._visit(inner, role)


def check_sync(kernel: Kernel, context: Context) -> None:
    """Raise for synchronisation that no run of `kernel` can get right."""
    survey = _Survey(kernel)
    for name, barrier in survey.barriers.items():
        if not barrier.touched:
            _check_barrier(name, barrier, context)
    # foreign code may commit and wait by itself
    if not survey.opaque:
        for unit, groups in survey.groups.items():
            _check_groups(unit, groups, context)


def _check_barrier(name: str, barrier: _Barrier, context: Context) -> None:
    if barrier.users and not barrier.inits:
        context.fail(
            f"barrier {name} is never initialised",
            op=min(barrier.users, key=_position),
            fix=f"add `barrier_init {name} count …` before the roles",
        )
    # a fresh barrier lets parity 1 pass, so only other waits depend on somebody arriving
    blocking = [w for w in barrier.waits if not (isinstance(w.phase, Const) and w.phase.value)]
    arriving = [a for a in barrier.arrivals if not _is_zero(a.count)]
    if blocking and not arriving:
        context.fail(
            f"nobody arrives at barrier {name}, so this wait never ends",
            op=blocking[0],
            fix=f"arrive at it where what is waited for is done: T.barrier_arrive({name}), or "
            f"`arrive {name}[…]`",
        )
    expecting = [a for a in barrier.arrivals if a.bytes is not None and not _is_zero(a.bytes)]
    if barrier.copies and not expecting:
        context.fail(
            f"this copy counts its bytes on {name}, but nobody there expects bytes",
            op=barrier.copies[0],
            fix=f"add `arrive {name}[…] bytes=…` before the copy",
        )
    if barrier.copies and not barrier.waits:
        context.fail(
            f"nobody waits on {name}, so nothing may use what this copy brings",
            op=barrier.copies[0],
            fix=f"add `wait {name}[…] phase …` before the first use",
        )
    if expecting and barrier.waits and not barrier.copies:
        context.fail(
            f"this arrival expects bytes on {name}, but no copy completes there",
            op=expecting[0],
            fix=f"give the copy barrier={name}[…], or drop bytes=",
        )


def _check_groups(unit: str, groups: _Groups, context: Context) -> None:
    if not context.laid_out and not groups.committed and not groups.waited:
        return  # who waits for what is decided later
    for op, role in groups.issued:
        for places, word, why in (
            (groups.committed, "commit", "its group is never closed"),
            (groups.waited, "wait_group", "nothing waits for it"),
        ):
            seen = places if role is None else places & {None, id(role)}
            if not seen:
                where = f" in role {role.name}" if role is not None else ""
                pending = " pending 0" if word == "wait_group" else ""
                context.fail(
                    f"this op is asynchronous on {unit}, but {why}{where}",
                    op=op,
                    expected=f"`{word} {unit}` after it",
                    fix=f"add `{word} {unit}{pending}`",
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
                    fix="add `turn end` behind the last op of the section",
                )


def _turns(body: Body, began: Turn | None, around: Turn | None, context: Context) -> Turn | None:
    """The turn that lasts behind `body`, given the one before it and the one that lasts where the
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
            sides = [turn for turn, jumps in left if not jumps]  # those that go on behind it
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
