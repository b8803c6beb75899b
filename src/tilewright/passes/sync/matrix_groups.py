"""When asynchronous matrix instructions are waited for.

Every run of them is closed by a `commit`; groups complete in order. A scan of the program keeps,
for each instruction that may be in flight, how many groups have been closed since: that many may
stay open in the wait that its first reader needs. Around loops the scan runs to a fixed point; at
joins the smaller number holds. What a program already has (commits, waits, fences) counts, so the
scan adds only what is missing.

A target may ask for earlier waits (`waits`). By default a wait is `late`: where a result or a
register is needed. The assembler keeps instructions asynchronous only where it can tell which of
them are under way, and serializes all of a kernel otherwise. What it was seen to refuse:

- Products are under way where a loop begins again, and threads computed registers of a later one
  (an operand: C7513, an accumulator: C7514) while an earlier one was. The same inside an
  iteration is fine. dV and dK of attention's gradient are such a pair.
- What products hold across the end of an iteration leaves too few registers (C7512).

With `iteration` nothing is under way where a loop begins again; threads still compute while
products of the same iteration run. With `each`, all are waited for before threads touch a fragment.
The CUDA target tries them in this order when the assembler objects. `insert_syncs` asks for them,
on top of the late waits that `pipeline_loops` has put: before threads read an accumulator the
assembler wants a wait even where all is over, and adds one otherwise (C7517).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, compare
from tilewright.ir.op import (
    Alloc,
    Body,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Gemm,
    If,
    Let,
    Map,
    Op,
    View,
    Wait,
    WaitGroup,
    While,
    attr,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.support.errors import Loc

UNIT = "wgmma"
OPEN = -1  # issued, its group not closed yet
MOST_OPEN = 7  # groups beyond this many are waited for a little early


@dataclass(frozen=True)
class NumberedGemm(Gemm):
    """A product that other ops of this pass refer to."""

    number: int = attr(default=-1)


@dataclass(frozen=True)
class Release(Op):
    """The products `numbers` must be over here: their latest run, or with `lag` the one before."""

    syntax = "release {numbers}"
    numbers: tuple[int, ...] = attr()
    lag: int = attr(default=0)


def number_gemms(body: Body) -> Body:
    """`body` with each asynchronous product numbered."""
    count = 0

    def rule(op: Op) -> Op | None:
        nonlocal count
        if not is_matrix(op) or isinstance(op, NumberedGemm):
            return None
        count += 1
        return NumberedGemm(**_fields(op), number=count)

    return map_body(body, rule)


def unnumber(body: Body) -> Body:
    def rule(op: Op) -> Op | None:
        return Gemm(**_fields(op)) if isinstance(op, NumberedGemm) else None

    return map_body(body, rule)


def _fields(op: Op) -> dict[str, Any]:
    return {f.name: getattr(op, f.name) for f in dataclasses.fields(Gemm)}


def is_matrix(op: Op) -> bool:
    return isinstance(op, Gemm) and op.atom == UNIT


def settle_matrix_groups(
    body: Body, is_ring_fill: Callable[[Op], bool], waits: str = "auto"
) -> Body:
    """`body`, its products numbered, with every commit, wait and fence that they need.

    `is_ring_fill`: copies whose slots are known to be free where they stand. `waits`: what the
    target was told.
    """
    roots = {op.buffer.name: op.source.name for op in walk_ops(body) if isinstance(op, View)}
    scan = _Scan(_close_groups(body), roots, is_ring_fill, waits)
    return scan.run()


def _close_groups(body: Body) -> Body:
    """A `commit` behind each run of products into one tile: results are waited for one by one."""
    found: list[Op] = []
    run: list[Gemm] = []

    def close(loc: Loc | None) -> None:
        if run:
            found.append(Commit(UNIT, loc=loc))
            run.clear()

    for op in body:
        if isinstance(op, Gemm) and is_matrix(op):
            if run and (run[-1].c.buffer != op.c.buffer or _reads(op, run[-1].c.buffer)):
                close(run[-1].loc)
            run.append(op)
        elif isinstance(op, Commit) and op.unit == UNIT:
            run.clear()
        elif not isinstance(op, (Let, Wait)):
            close(run[-1].loc if run else None)
        changes = {
            f: _close_groups(getattr(op, f)) for f in ("body", "then", "orelse") if hasattr(op, f)
        }
        found.append(rebuild(op, **changes) if changes and not isinstance(op, Map) else op)
    close(run[-1].loc if run else None)
    found = _early_commits(found)
    return tuple(found) if len(found) != len(body) or _differ(found, body) else body


def _early_commits(found: list[Op]) -> list[Op]:
    """A group is closed behind its last product, not behind the waits that follow it."""
    result: list[Op] = []
    for op in found:
        at = len(result)
        if isinstance(op, Commit) and op.unit == UNIT:
            while at and isinstance(result[at - 1], (Let, Wait)):
                at -= 1
        result.insert(at, op)
    return result


def _reads(op: Gemm, result: Buffer) -> bool:
    return result.name in (op.a.buffer.name, op.b.buffer.name)


def _differ(found: list[Op], body: Body) -> bool:
    return any(a is not b for a, b in zip(found, body, strict=True))


Key = tuple[int, int]  # a product's number; 0 its latest run, 1 the one before


@dataclass
class _State:
    """`ages`: groups closed since each product in flight was; `dirty`: registers that ordinary
    code has touched since the last fence."""

    ages: dict[Key, int] = field(default_factory=dict)
    dirty: frozenset[str] = frozenset()

    def copy(self) -> _State:
        return _State(dict(self.ages), self.dirty)

    def joined(self, others: Iterable[_State]) -> _State:
        ages, dirty = dict(self.ages), self.dirty
        for other in others:
            for key, age in other.ages.items():
                ages[key] = min(age, ages.get(key, age))
            dirty |= other.dirty
        return _State(ages, dirty)


class _Scan:
    def __init__(
        self, body: Body, roots: dict[str, str], is_ring_fill: Callable[[Op], bool], waits: str
    ) -> None:
        self.source = body
        self.roots = roots
        self.is_ring_fill = is_ring_fill
        self.by_iteration = waits in ("iteration", "each")
        self.each = waits == "each"
        self.gemms = {
            op.number: op for op in walk_ops(body) if isinstance(op, NumberedGemm)
        }  # fmt: skip
        self.jumps: list[list[_State]] = []

    def run(self) -> Body:
        state = _State()
        body = self.body(self.source, state)
        end: list[Op] = []
        if state.ages:
            self.wait(state, state.ages, end, self.gemms[max(state.ages)[0]].loc)
        return (*body, *end)

    def root(self, name: str) -> str:
        while name in self.roots:
            name = self.roots[name]
        return name

    # ── bodies ───────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, state: _State) -> Body:
        found: list[Op] = []
        for k, op in enumerate(body):
            self.op(op, state, found, waited=_waits_for_all(body[k + 1 : k + 2]))
        return tuple(found)

    def op(self, op: Op, state: _State, found: list[Op], waited: bool) -> None:
        """`waited`: the program waits for everything right behind `op`."""
        match op:
            case Release():
                keys = [(n, op.lag) for n in op.numbers if (n, op.lag) in state.ages]
                self.wait(state, keys, found, op.loc)
                return
            case NumberedGemm():
                self.gemm(op, state, found)
                return
            case Commit(unit="wgmma"):
                state.ages = {k: min(age + 1, MOST_OPEN) for k, age in state.ages.items()}
            case WaitGroup(unit="wgmma"):
                if self.each and op.pending:
                    # two waits, the first of which leaves something open, are misread (C7514)
                    op = rebuild(op, pending=0)
                state.ages = {k: age for k, age in state.ages.items() if age < op.pending}
            case Fence(kind="wgmma"):
                state.dirty = frozenset()
            case Break() | Continue():
                self.wait(state, state.ages, found, op.loc)
                if self.jumps:
                    self.jumps[-1].append(state.copy())
            case If():
                self.touch(op, state, found)
                other = state.copy()
                open_before = set(state.ages)
                then = self.closed(self.body(op.then, state), state, open_before, op.loc)
                orelse = self.closed(self.body(op.orelse, other), other, open_before, op.loc)
                both = state.joined((other,))
                state.ages, state.dirty = both.ages, both.dirty
                op = rebuild(op, then=_same(then, op.then), orelse=_same(orelse, op.orelse))
            case For() | While():
                self.touch(op, state, found)
                before = dict(state.ages)
                body = self.loop(op.body, state)
                op = rebuild(op, body=_same(body, op.body))
                opened = state.ages.keys() - before.keys()
                if isinstance(op, For) and opened and not waited and _may_skip(op):
                    # a path around the loop must not meet instructions in flight: the assembler
                    # would see their registers defined by others (C7515)
                    inside: list[Op] = [op]
                    self.wait(state, list(state.ages), inside, op.loc)
                    state.ages = before
                    op = If(compare("<", op.start, op.stop), tuple(inside), loc=op.loc)
            case _:
                self.touch(op, state, found)
        found.append(op)

    def closed(self, body: Body, state: _State, before: set[Key], loc: Loc | None) -> Body:
        """A branch that leaves no product in flight that was not before it: the assembler would
        see registers defined by one path while they are another's (C7515)."""
        found = list(body)
        self.wait(state, [key for key in state.ages if key not in before], found, loc)
        return tuple(found)

    def loop(self, body: Body, state: _State) -> Body:
        while True:
            self.jumps.append([])
            inner = state.copy()
            found = self.body(body, inner)
            if self.by_iteration:
                found = self.closed(found, inner, set(), body[-1].loc if body else None)
            around = state.joined((inner, *self.jumps.pop()))
            if around == state:
                return found
            state.ages, state.dirty = around.ages, around.dirty

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def gemm(self, op: NumberedGemm, state: _State, found: list[Op]) -> None:
        own = {self.root(op.c.buffer.name)}
        inputs = {self.root(r.buffer.name) for r in (op.a, op.b)}
        keys = []
        for key in state.ages:
            other = self.gemms[key[0]]
            result, registers = self.registers(other)
            if result in inputs or own & registers:
                keys.append(key)
        self.wait(state, keys, found, op.loc)
        result, registers = self.registers(op)
        if (registers | {result}) & state.dirty:
            found.append(Fence(UNIT, loc=op.loc))
            state.dirty = frozenset()
        latest = state.ages.pop((op.number, 0), None)
        if latest is not None:
            state.ages[op.number, 1] = latest
        state.ages[op.number, 0] = OPEN
        found.append(op)

    def registers(self, op: Gemm) -> tuple[str, set[str]]:
        """Where the result goes, and the operands that are read from registers."""
        operands = {
            self.root(r.buffer.name) for r in (op.a, op.b) if r.buffer.space is Space.FRAGMENT
        }
        return self.root(op.c.buffer.name), operands

    def touch(self, op: Op, state: _State, found: list[Op]) -> None:
        """An ordinary op, or the head of one with bodies."""
        inner = list(walk_ops(op)) if isinstance(op, Map) else [op]
        read = {self.root(b.name) for o in inner for b in read_buffers(o)}
        written = {self.root(b.name) for o in inner for b in written_buffers(o)}
        if isinstance(op, Alloc):
            written.add(op.buffer.name)
        keys = []
        for key in state.ages:
            gemm = self.gemms[key[0]]
            result, registers = self.registers(gemm)
            held = registers | {result}
            shared = {self.root(r.buffer.name) for r in (gemm.a, gemm.b)} - held
            overwrites = written & shared and not self.is_ring_fill(op)
            if held & (read | written) or overwrites:
                keys.append(key)
        names = {
            self.root(b.name)
            for o in inner
            for b in (*read_buffers(o), *written_buffers(o), *_allocated(o))
            if b.space is Space.FRAGMENT
        }
        self.wait(state, state.ages if self.each and names else keys, found, op.loc)
        state.dirty |= names

    def wait(self, state: _State, keys: Iterable[Key], found: list[Op], loc: Loc | None) -> None:
        ages = [state.ages[key] for key in keys]
        if not ages:
            return
        pending = max(min(ages), 0)
        if found and isinstance(found[-1], WaitGroup) and found[-1].unit == UNIT:
            found.pop()  # this one waits for more
        found.append(WaitGroup(UNIT, pending, loc=loc))
        state.ages = {k: age for k, age in state.ages.items() if age < pending}


def _may_skip(op: For) -> bool:
    """Whether a loop may run no iteration."""
    known = isinstance(op.start, Const) and isinstance(op.stop, Const)
    return not (known and int(op.start) < int(op.stop))


def _waits_for_all(following: Body) -> bool:
    return any(isinstance(op, WaitGroup) and op.unit == UNIT and not op.pending for op in following)


def _same(new: Body, old: Body) -> Body:
    same = len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True))
    return old if same else new


def _allocated(op: Op) -> list[Buffer]:
    return [op.buffer] if isinstance(op, Alloc) else []


__all__ = [
    "NumberedGemm", "Release", "is_matrix", "number_gemms", "settle_matrix_groups", "unnumber",
]  # fmt: skip
