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
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, TypeGuard

from tilewright.ir.analysis.flow import Flow, Loop, same
from tilewright.ir.marks import attr
from tilewright.passes.core import *

UNIT = "wgmma"
OPEN = -1  # issued, its group not closed yet
MOST_OPEN = 7  # groups beyond this many are waited for a little early


class NumberedGemm(Gemm):
    """A product that other ops of this pass refer to."""

    number: int = attr(default=-1)


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


def is_matrix(op: Op) -> TypeGuard[Gemm]:
    return isinstance(op, Gemm) and op.atom == UNIT


def settle_matrix_groups(
    body: Body,
    is_ring_fill: Callable[[Op], bool],
    waits: str = "auto",
    roots: Aliases | None = None,
) -> Body:
    """`body`, its products numbered, with every commit, wait and fence that they need.

    `is_ring_fill`: copies whose slots are known to be free where they stand. `waits`: what the
    target was told. `roots`: those of the kernel whose part `body` is.
    """
    closed = close_groups(body, UNIT, is_matrix, _into_one_tile, (Let, Wait))
    return _Scan(closed, is_ring_fill, waits, roots or aliases(body)).run()


def close_groups(
    body: Body,
    unit: str,
    is_one: Callable[[Op], bool],
    joined: Callable[[Any, Any], bool] = lambda last, op: True,
    through: tuple[type[Op], ...] = (),
) -> Body:
    """A `commit` after each run of asynchronous ops of a unit that has none. `joined`: whether two
    of them are of one run; `through`: what may stand in one."""
    found: list[Op] = []
    last: Op | None = None  # of a run that is not closed

    def close(commit: Commit) -> None:
        """After the last op of the run, not after the waits that follow it."""
        at = len(found)
        while at and isinstance(found[at - 1], through):
            at -= 1
        found.insert(at, commit)

    for op in body:
        if isinstance(op, Commit) and op.unit == unit:
            close(op)
            last = None
            continue
        if (
            last is not None
            and not isinstance(op, through)
            and not (is_one(op) and joined(last, op))
        ):
            close(Commit(unit))
            last = None
        last = op if is_one(op) else last
        inner = partial(close_groups, unit=unit, is_one=is_one, joined=joined, through=through)
        found.append(op if isinstance(op, Map) else map_bodies(op, inner))
    if last is not None:
        close(Commit(unit))
    return same(found, body)


def _into_one_tile(last: Gemm, op: Gemm) -> bool:
    """Results are waited for one by one."""
    return op.c.buffer == last.c.buffer and last.c.buffer not in (op.a.buffer, op.b.buffer)


Key = tuple[int, int]  # a product's number; 0 its latest run, 1 the one before


class _State(NamedTuple):
    """`ages`: groups closed since each product in flight was; `dirty`: registers that ordinary
    code has touched since the last fence."""

    ages: Mapping[Key, int]
    dirty: frozenset[str] = frozenset()


class _Product(NamedTuple):
    """Where a product's result goes, and the operands that it reads from registers and memory."""

    result: str
    registers: set[str]
    shared: set[str]


class _Scan(Flow[_State]):
    def __init__(
        self, body: Body, is_ring_fill: Callable[[Op], bool], waits: str, roots: Aliases
    ) -> None:
        super().__init__()
        self.source = body
        self.roots = roots
        self.is_ring_fill = is_ring_fill
        self.by_iteration = waits in ("iteration", "each")
        self.each = waits == "each"
        self.gemms = {op.number: self.product(op) for op in walk_ops(body, NumberedGemm)}
        # ops right after which the program waits for everything
        self.waited = {
            id(op)
            for op, after in followed(body)
            if isinstance(after, WaitGroup) and after.unit == UNIT and not after.pending
        }

    def product(self, op: Gemm) -> _Product:
        parts: dict[bool, set[str]] = {True: set(), False: set()}
        for r in (op.a, op.b):
            parts[r.buffer.is_fragment].add(self.roots[r.buffer.name])
        return _Product(self.roots[op.c.buffer.name], parts[True], parts[False])

    def run(self) -> Body:
        held = {name for gemm in self.gemms.values() for name in (gemm.result, *gemm.registers)}
        body, state = self.body(self.source, _State({}, frozenset(held)))
        end: list[Op] = []
        if state.ages:
            self.wait(state, state.ages, end)
        return (*body, *end)

    # ── control ──────────────────────────────────────────────────────────────────────────────

    def join(self, a: _State, b: _State) -> _State:
        both = {key: min(age, a.ages.get(key, age)) for key, age in b.ages.items()}
        return _State({**a.ages, **both}, a.dirty | b.dirty)

    def op(self, op: Op, state: _State, out: list[Op]) -> _State:
        if isinstance(op, Release):
            keys = [(n, op.lag) for n in op.numbers if (n, op.lag) in state.ages]
            return self.wait(state, keys, out)
        if isinstance(op, WaitGroup) and op.unit == UNIT and self.each:
            # two waits, the first of which leaves something open, are misread (C7514)
            op = rebuild(op, pending=0)
        return super().op(op, state, out)

    def arm(self, op: If, body: Body, state: _State) -> tuple[Body, _State]:
        """A branch leaves no product in flight that was not before it: the assembler would see
        registers defined by one path while they are another's (C7515)."""
        found, end = super().arm(op, body, state)
        out = list(found)
        end = self.wait(end, [key for key in end.ages if key not in state.ages], out)
        return same(out, found), end

    def again(self, loop: Loop, state: _State, out: list[Op]) -> _State:
        if not self.by_iteration:
            return state
        return self.wait(state, state.ages, out)

    def loop(self, loop: Loop, state: _State) -> tuple[Op, _State]:
        op, end = super().loop(loop, state)
        opened = end.ages.keys() - state.ages.keys()
        if not isinstance(op, For) or not opened or id(loop) in self.waited or values_of(op):
            return op, end
        # a path around the loop must not meet instructions in flight: the assembler would see
        # their registers defined by others (C7515)
        inside: list[Op] = [op]
        end = self.wait(end, end.ages, inside)
        skipped = If(op.start < op.stop, tuple(inside))
        return skipped, end._replace(ages=state.ages)

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def visit(self, op: Op, state: _State, out: list[Op]) -> _State:
        match op:
            case NumberedGemm():
                return self.gemm(op, state, out)
            case Commit(unit="wgmma"):
                older = {k: min(age + 1, MOST_OPEN) for k, age in state.ages.items()}
                return state._replace(ages=older)
            case WaitGroup(unit="wgmma"):
                return _open(state, op.pending)
            case Fence(kind="wgmma"):
                return state._replace(dirty=frozenset())
            case Break() | Continue():
                return self.wait(state, state.ages, out)
        return self.touch(op, state, out)

    def gemm(self, op: NumberedGemm, state: _State, out: list[Op]) -> _State:
        result, registers, shared = self.gemms[op.number]
        keys = []
        for key in state.ages:
            other = self.gemms[key[0]]
            if other.result in registers | shared or result in other.registers:
                keys.append(key)
        state = self.wait(state, keys, out)
        if (registers | {result}) & state.dirty:
            out.append(Fence(UNIT))
            state = state._replace(dirty=frozenset())
        ages = dict(state.ages)
        if (op.number, 0) in ages:
            ages[op.number, 1] = ages.pop((op.number, 0))
        return state._replace(ages={**ages, (op.number, 0): OPEN})

    def touch(self, op: Op, state: _State, out: list[Op]) -> _State:
        """An ordinary op, or the head of one with bodies."""
        inner = list(walk_ops(op)) if isinstance(op, Map) else [op]
        changed = [b for o in inner for b in written_buffers(o)]
        changed += [o.buffer for o in inner if isinstance(o, Alloc)]
        buffers = [b for o in inner for b in read_buffers(o)] + changed
        touched = {self.roots[b.name] for b in buffers}
        written = set() if self.is_ring_fill(op) else {self.roots[b.name] for b in changed}
        keys: Iterable[Key] = [
            key
            for key in state.ages
            for result, registers, shared in (self.gemms[key[0]],)
            if (registers | {result}) & touched or shared & written
        ]
        names = {self.roots[b.name] for b in buffers if b.is_fragment}
        state = self.wait(state, state.ages if self.each and names else keys, out)
        return state._replace(dirty=state.dirty | names)

    def wait(self, state: _State, keys: Iterable[Key], out: list[Op]) -> _State:
        ages = [state.ages[key] for key in keys]
        if not ages:
            return state
        pending = max(min(ages), 0)
        if out and isinstance(out[-1], WaitGroup) and out[-1].unit == UNIT:
            out.pop()  # this one waits for more
        out.append(WaitGroup(UNIT, pending))
        return _open(state, pending)


def _open(state: _State, pending: int) -> _State:
    """After a wait that leaves so many groups open."""
    return state._replace(ages={k: age for k, age in state.ages.items() if age < pending})


def followed(body: Body) -> Iterator[tuple[Op, Op | None]]:
    """Ops, wherever they stand in `body`, and what stands right after them."""
    for inner in (body, *(b for op in walk_ops(body) for b in bodies(op))):
        yield from zip(inner, (*inner[1:], None), strict=False)
