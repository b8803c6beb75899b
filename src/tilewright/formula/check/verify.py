"""Whether a stream computes the levels that it claims to.

`verify` evaluates both, the levels as they stand and the stream in random blocks, parts and orders
of combining (empty parts among them), and compares every level:

    series, pair       algebraic models: agreement is a proof but for chance below 10⁻⁸. They know
                       no order, so they take maxima from the stream and say nothing of them
    decimals           order, on every kind of data that floats see
    float64, float32   rounding, range and start values, on hard data

An algebraic model that lacks a law which the formula may need (`Algebra.lacks`) proves what agrees
there, and leaves to decimals what does not. The bound of decimals and floats is the formula's own
condition: `Measured` adds up the absolute values of what each operation of the formula rounds, for
numbers that were rounded themselves, and `SLACK` times that, in units of eps, is allowed.
"""

from __future__ import annotations

import decimal
import math
import random
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import cached_property, partial
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from tilewright.formula.check.algebra import Algebra, Pair, Series
from tilewright.formula.check.machine import ARG, Machine, State, Values, direct, nonnegative
from tilewright.formula.check.models import (
    EXACT,
    Decimals,
    Discard,
    Floats,
    Measured,
    Model,
    Value,
)
from tilewright.formula.check.needs import GROWS, exprs, needs
from tilewright.formula.streams.stream import Center, Fold, Level, Result, Stream, Sum, made
from tilewright.ir.arith import Bin, Call, Const, Expr, Var, cast
from tilewright.ir.dtype import INT32
from tilewright.ir.expr import transform, variables, walk

# how often an operation of the formula may round in a stream: each of its sums is moved by a
# coefficient once a block and once a combine, and each move is a handful of operations
SLACK = 4
# of 60 digits; the rest is for cancellation, which is the floats' to see
DECIMAL_EPS = Decimal("1e-40")
TRIALS = 3  # in each algebraic model
MOST_DISCARDS = 120  # a formula with two roots has a value once in four trials
LENGTH, MASKED = 6, 3  # of the axis in tests, and of a masked prefix

ORDERED = ("max", "min", *ARG)


@dataclass(frozen=True)
class Proof:
    """`levels` agree in an algebraic model, in all `trials`; `discards` had to be drawn anew."""

    model: str
    levels: tuple[str, ...]
    trials: int
    discards: int


@dataclass(frozen=True)
class Test:
    """All levels agree on each of `kinds` of data. `error` is the largest, by what is allowed."""

    model: str
    kinds: tuple[str, ...]
    error: float


@dataclass(frozen=True)
class Open:
    """Nothing was learnt from a model, because of `why`."""

    model: str
    why: str


@dataclass(frozen=True)
class Mismatch:
    """A level that the stream does not compute. `model` is 'form' where a stage uses what is not
    known there."""

    model: str
    kind: str
    level: str
    want: str
    got: str

    def __str__(self) -> str:
        where = f"{self.model}, {self.kind}" if self.kind else self.model
        return f"{self.level} should be {self.want}, the stream gives {self.got} ({where})"


@dataclass(frozen=True)
class Verdict:
    """What is known of a stream that no model rejects."""

    proved: tuple[Proof, ...]
    tested: tuple[Test, ...]
    open: tuple[Open, ...] = ()

    def __str__(self) -> str:
        lines = [
            f"proved in {p.model}: {', '.join(p.levels)} ({p.trials} trials, {p.discards} discards)"
            for p in self.proved
        ]
        lines += [
            f"tested in {t.model}: {', '.join(t.kinds)} (at most {t.error:.2g} of the bound)"
            for t in self.tested
        ]
        return "\n".join(lines + [f"open in {o.model}: {o.why}" for o in self.open])


Outcome: TypeAlias = "Proof | Test | Open | Mismatch"


def verify(
    levels: Sequence[Level],
    stream: Stream,
    seed: int = 0,
    extent: Expr | None = None,
    positive: Collection[Var] = (),
) -> Verdict | Mismatch:
    """What is known of `stream` as a computation of `levels`, or where it differs. `extent` is
    the length of the axis, if it has a name (a variable) or is fixed (a constant); `positive`
    variables are nowhere negative."""
    if extent is None or isinstance(extent, Var):
        return Problem(levels, stream, seed, extent, positive).verdict()
    # a divisor that is the extent is one, or just a number: agreement on any length either way
    assert isinstance(extent, Const), "an extent is a variable or a constant"
    length = Var("extent", INT32)
    general = [replace(x, body=_divided(x.body, extent.value, length)) for x in levels]
    found = Problem(general, stream, seed, length, positive).verdict()
    if isinstance(found, Mismatch):
        other = Problem(levels, stream, seed, None, positive).verdict()
        found = found if isinstance(other, Mismatch) else other
    return found


def _divided(body: Expr, number: float, length: Var) -> Expr:
    """`body` with `length` for each divisor `number`."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Bin) and node.op == "/" and isinstance(node.b, Const):
            return node.a / cast(length, node.dtype) if node.b.value == number else None
        return None

    return transform(body, rule)


class Problem:
    """Levels, the stream, and the data that they are tried on."""

    def __init__(
        self,
        levels: Sequence[Level],
        stream: Stream,
        seed: int = 0,
        extent: Var | None = None,
        positive: Collection[Var] = (),
    ) -> None:
        self.levels, self.stream, self.seed, self.extent = tuple(levels), stream, seed, extent
        self.positive = frozenset(positive)
        self.machine: type[Machine] = Machine
        self._wanted: dict[Data, dict[Var, Any]] = {}

    def verdict(self) -> Verdict | Mismatch:
        found: list[Proof | Test | Open] = []
        for check in CHECKS.values():
            outcome = check(self)
            if isinstance(outcome, Mismatch):
                return outcome
            if outcome is not None:
                found.append(outcome)
        return Verdict(
            tuple(f for f in found if isinstance(f, Proof)),
            tuple(f for f in found if isinstance(f, Test)),
            tuple(f for f in found if isinstance(f, Open)),
        )

    @cached_property
    def exprs(self) -> list[Expr]:
        found = [level.body for level in self.levels]
        for stage in self.stream.stages:
            found += exprs(stage)
        return found

    @cached_property
    def constants(self) -> list[Var]:
        """What stays the same along the axis, but the extent."""
        given = {level.name for level in self.levels} | {self.extent} | self.stream.elements
        for stage in self.stream.stages:
            given |= made(stage)
        free = {var for expr in self.exprs for var in variables(expr)}
        return sorted(free - given, key=lambda var: var.name)

    @cached_property
    def elements(self) -> list[Var]:
        return sorted(self.stream.elements - {self.stream.index}, key=lambda var: var.name)

    @cached_property
    def needs(self) -> frozenset[str]:
        """The laws that not every algebraic model has, and this may use."""
        return frozenset(needs(self.levels, self.stream, self.extent))

    @cached_property
    def divisors(self) -> set[Var]:
        """What levels divide by. Where one of these is zero, as the weights of a row that is
        masked throughout add up to, the formula has no value to compare with."""
        return {
            var
            for level in self.levels
            for node in walk(level.body)
            if isinstance(node, Bin) and node.op == "/"
            for var in variables(node.b)
        }

    @cached_property
    def data(self) -> list[Data]:
        return list(_data(self, random.Random(self.seed)))

    def wanted(self, data: Data) -> dict[Var, Any]:
        """The levels' values on one of `data`, and their condition."""
        found = self._wanted.get(data)
        if found is None:
            model, index = Measured(), self.stream.index
            found = direct(self.levels, index, *data.given(self, model), model)
            undone = False
            for name, (value, _) in found.items():
                if undone:
                    found[name] = model.constant(math.nan)
                undone = undone or (name in self.divisors and not value)
            self._wanted[data] = found
        return found

    def given(
        self, model: Model, number: Callable[[Var, int], Value], count: int
    ) -> tuple[list[Values], Values]:
        """Elements and constants; `number` of a variable and an index, -1 for constants."""
        index, extent = self.stream.index, self.extent
        elements: list[Values] = [
            {index: model.constant(i), **{var: number(var, i) for var in self.elements}}
            for i in range(count)
        ]
        constants = {var: number(var, -1) for var in self.constants}
        return elements, constants | ({} if extent is None else {extent: model.constant(count)})


def run(machine: Machine, elements: Sequence[Values], rng: random.Random, tree: bool) -> Any:
    """The levels' values by the stream: in one part, or in several that combine in any order."""
    count = len(elements)
    cuts = {0, count}
    if tree and count > 1:
        cuts |= {rng.randrange(1, min(MASKED, count)), rng.randrange(1, count)}
    ends = sorted(cuts)
    parts = [_part(machine, elements[i:j], rng) for i, j in pairwise(ends)]
    if tree:
        parts += [machine.start(), machine.start()]
    while len(parts) > 1:
        rng.shuffle(parts)
        parts.append(machine.combine(parts.pop(), parts.pop()))
    return machine.finish(parts[0])


def _part(machine: Machine, elements: Sequence[Values], rng: random.Random) -> State:
    state, at, size = machine.start(), 0, rng.choice((1, 2))
    while at < len(elements):
        state = machine.step(state, elements[at : at + size])
        at, size = at + size, rng.choice((1, 2, 3))
    return state


# ---------------------------------------------------------------- form


def check_form(problem: Problem) -> Mismatch | None:
    """Each level has a result, and each stage uses what is known when it is reached."""
    stream = problem.stream
    results = {stage.level for stage in stream.of(Result)}
    for level in problem.levels:
        if level.name not in results:
            return Mismatch("form", "", level.name.name, "a result", "none")
    running = set().union(*(made(stage) for stage in stream.stages))
    sums = {stage.var for stage in stream.state if not isinstance(stage, Center)}
    centers: set[Var] = set()
    known: set[Var] = set()
    for stage in stream.stages:
        if isinstance(stage, (Center, Result)):
            allowed = [known]
        else:
            allowed = [centers if isinstance(stage, Sum) else set()] * len(exprs(stage))
        name = (stage.level if isinstance(stage, Result) else stage.var).name
        for k, (expr, names) in enumerate(zip(exprs(stage), allowed, strict=True)):
            inside = isinstance(stage, (Fold, Sum)) and k == 0
            for var in sorted(variables(expr), key=lambda var: var.name):
                if (var in running and var not in names) or (var in stream.elements and not inside):
                    return Mismatch("form", "", name, "what is known before it", var.name)
        if isinstance(stage, Sum) and not sums.issuperset(shift.of for shift in stage.shifts):
            return Mismatch("form", "", name, "sums to shift", "something else")
        known |= made(stage)
        centers |= made(stage) if isinstance(stage, Center) else set()
    return None


# ---------------------------------------------------------------- algebra


def check_algebra(make: type[Algebra], problem: Problem) -> Proof | Open | Mismatch:
    """Whether all levels but maxima agree in an algebraic model."""
    compared = tuple(level for level in problem.levels if level.monoid not in ORDERED)
    lacks = sorted(problem.needs & make.lacks)
    trials = discards = 0
    while trials < TRIALS:
        model = make((problem.seed << 10) + trials + discards)
        try:
            found = _trial(problem, model, compared)
        except Discard:
            discards += 1
            if discards > MOST_DISCARDS:
                return Open(make.name, f"{discards} of {discards + trials} trials without a value")
            continue
        if found is not None:
            return Open(make.name, f"does not know {', '.join(lacks)}") if lacks else found
        trials += 1
    return Proof(make.name, tuple(level.name.name for level in compared), trials, discards)


def _trial(problem: Problem, model: Algebra, compared: Sequence[Level]) -> Mismatch | None:
    rng = model.random
    count = rng.choice((4, 5, 6))

    def number(var: Var, at: int) -> Value:
        if var.dtype.is_bool:
            return rng.random() < 0.5
        if not var.dtype.is_float:
            return model.constant(rng.randrange(count + 1))
        return model.arbitrary(var in problem.positive)

    elements, constants = problem.given(model, number, count)
    got = run(problem.machine(problem.stream, model, constants), elements, rng, tree=True)
    shared = {x.name: got[x.name] for x in problem.levels if x.monoid in ORDERED}
    want = direct(problem.levels, problem.stream.index, elements, constants, model, shared)
    for level in compared:
        value = want[level.name]
        if level.name in problem.divisors and model.same(value, model.constant(0)):
            raise Discard
        signed = "signs" in problem.needs and level.monoid == "sum" and nonnegative(level.body)
        if not model.finite(value) or (signed and model.negative(value)):
            raise Discard
    nothing = any(model.same(want[level.name], model.constant(0)) for level in compared)
    for level in compared:
        a, b = want[level.name], got[level.name]
        if nothing and not model.finite(b):
            raise Discard  # a mask left no element, and 0 / 0 is what the formula says it is
        if not model.same(a, b):
            return Mismatch(model.name, "random", level.name.name, str(a), str(b))
    return None


# ---------------------------------------------------------------- data


@dataclass(frozen=True, eq=False)
class Data:
    """Numbers that float32 has, of one kind: `elements` of each index, and `constants`."""

    kind: str
    elements: tuple[dict[Var, float | bool], ...]
    constants: dict[Var, float | bool]

    def given(self, problem: Problem, model: Model) -> tuple[list[Values], Values]:
        def number(var: Var, at: int) -> Value:
            value = (self.constants if at < 0 else self.elements[at])[var]
            if isinstance(value, bool):
                return value
            if isinstance(model, Measured):
                return model.given(Decimal(value), exact=not var.dtype.is_float)
            return model.constant(value)

        return problem.given(model, number, len(self.elements))


def _scores(problem: Problem) -> dict[Var, float]:
    """The elements that hard data are for: what is compared or stands in exp, else all. Each with
    what masks it, 0.0 if nothing does."""
    elements = {var for var in problem.elements if var.dtype.is_float}
    found: dict[Var, float] = {}
    for level in problem.levels:
        for node in walk(level.body):
            if isinstance(node, Call) and node.name in GROWS:
                found |= dict.fromkeys(variables(node) & elements, 0.0)
    for level in problem.levels:
        if level.monoid in ORDERED:
            mask = float("-inf" if level.monoid in ("max", "argmax") else "inf")
            found |= dict.fromkeys(variables(level.body) & elements, mask)
    return found or dict.fromkeys(elements, 0.0)


def _weights(problem: Problem) -> set[Var]:
    """The elements that add up to a divisor. They are positive in data: of weights of any sign
    some prefix may add up to almost nothing, whatever all of them do."""
    sums = [x for x in problem.levels if x.name in problem.divisors and x.monoid == "sum"]
    bodies = [level.body for level in sums if not nonnegative(level.body)]
    return set().union(*map(variables, bodies)) & set(problem.elements)


# of an index, a normal random number and the mask: what a score is
_KINDS: dict[str, Callable[[int, float, float], float]] = {
    "mild": lambda i, r, mask: r,
    "large": lambda i, r, mask: 1000 + r + (9 if i == 0 else 0),  # the least is not the first,
    "very negative": lambda i, r, mask: -1e4 + r - (9 if i == 0 else 0),  # nor the greatest
    "masked prefix": lambda i, r, mask: mask if mask and i < MASKED else r,
    "ascending": lambda i, r, mask: 3.0 * i + 0.1 * r,
    "small": lambda i, r, mask: 0.01 * r if i else 0.0001 * r,
    "equal maxima": lambda i, r, mask: 3.0 if mask <= 0 and (i % 3 or r > 0) else -1.0,
    "positive": lambda i, r, mask: abs(r) + 0.1,
}


def _data(problem: Problem, rng: random.Random) -> Iterator[Data]:
    """One of each kind. Where whole numbers, the ends of masks perhaps, leave the formula without
    a value, others are drawn."""
    whole = any(not var.dtype.is_float for var in problem.elements + problem.constants)
    scores, positive = _scores(problem), _weights(problem) | problem.positive
    singles = ("mild", "large", "very negative")
    for kind, count in [(k, LENGTH) for k in _KINDS] + [(k, 1) for k in singles]:
        if kind == "masked prefix" and not any(scores.values()):
            continue
        for _ in range(4):
            data = _drawn(problem, kind, count, scores, positive, rng)
            if not whole or all(v.is_finite() for v, _ in problem.wanted(data).values()):
                break
        yield data
        if data.kind in ("mild", "small"):
            flips = {var for var in problem.elements if var.dtype.is_float} - positive
            turned = [{v: -a if v in flips else a for v, a in e.items()} for e in data.elements]
            yield Data(f"{kind}, mirrored", tuple(turned), data.constants)


def _drawn(
    problem: Problem,
    kind: str,
    count: int,
    scores: dict[Var, float],
    positive: Collection[Var],
    rng: random.Random,
) -> Data:
    def number(var: Var, at: int) -> float | bool:
        if var.dtype.is_bool:
            return rng.random() < 0.5
        if not var.dtype.is_float:
            return float(rng.randrange(count + 1))  # an index, or one past the end
        value = rng.gauss(0, 1)
        if kind == "positive" or var in positive:
            value = abs(value) + 0.1
        elif at >= 0 and var in scores:
            value = _KINDS[kind](at, value, scores[var])
        return float(np.float32(value))

    elements = tuple({v: number(v, i) for v in problem.elements} for i in range(count))
    constants = {var: number(var, -1) for var in problem.constants}
    return Data(kind if count > 1 else f"single, {kind}", elements, constants)


# ---------------------------------------------------------------- decimals and floats


def check_decimals(problem: Problem) -> Test | Mismatch | Open:
    """Whether all levels agree in decimals, wherever the formula has a value."""
    model, rng = Decimals(), random.Random(problem.seed)
    worst = 0.0
    kinds = []
    for data in problem.data:
        want = problem.wanted(data)
        elements, constants = data.given(problem, model)
        machine = problem.machine(problem.stream, model, constants)
        got = run(machine, elements, rng, tree=True)
        for level in problem.levels:
            value, error = want[level.name]
            if not (value.is_finite() and error.is_finite()):
                continue
            off = _off(got[level.name], value, error)
            if not off <= 1:
                return _mismatch(model, data, level, value, got[level.name])
            worst = max(worst, off)
            kinds.append(data.kind)
    if not kinds:
        return Open(model.name, "the formula has no value on any kind of data")
    return Test(model.name, tuple(dict.fromkeys(kinds)), worst)


def _off(got: Decimal, want: Decimal, error: Decimal) -> float:
    """The difference by what is allowed."""
    if not got.is_finite():
        return float("inf")
    with decimal.localcontext(EXACT):
        difference = abs(got - want)
        return float(difference / (error * SLACK * DECIMAL_EPS)) if difference else 0.0


def check_floats(dtype: type[np.floating[Any]], problem: Problem) -> Test | Mismatch | Open:
    """Whether all levels agree in floats within the formula's own condition. Data of one length
    are evaluated side by side."""
    model, rng = Floats(dtype), random.Random(problem.seed)
    worst = 0.0
    kinds: dict[str, None] = {}
    for count in (LENGTH, 1):
        chosen = [data for data in problem.data if len(data.elements) == count]
        elements, constants = _stacked(chosen, problem, model)
        machine = problem.machine(problem.stream, model, constants)
        for tree in (False, True):
            with np.errstate(all="ignore"):
                got = run(machine, elements, rng, tree)
            for level in problem.levels:
                values = np.broadcast_to(got[level.name], (len(chosen),)).tolist()
                for data, value in zip(chosen, values, strict=True):
                    want = problem.wanted(data)[level.name]
                    off = _float_off(dtype, value, *want)
                    if off is None:
                        continue
                    if not off <= 1:
                        return _mismatch(model, data, level, want[0], value)
                    worst = max(worst, off)
                    kinds[data.kind] = None
    if not kinds:
        return Open(model.name, "the formula has no value on any kind of data")
    return Test(model.name, tuple(kinds), worst)


def _float_off(
    dtype: type[np.floating[Any]], got: float, want: Decimal, error: Decimal
) -> float | None:
    """The difference by what is allowed, None where floats have no such number."""
    info = np.finfo(dtype)
    allowed = SLACK * (float(info.eps) * float(error) + float(info.tiny))
    if not (want.is_finite() and allowed < float(info.max) and abs(float(want)) < float(info.max)):
        return None
    return abs(got - float(want)) / allowed


def _stacked(
    chosen: Sequence[Data], problem: Problem, model: Floats
) -> tuple[list[Values], Values]:
    def number(var: Var, at: int) -> Value:
        values = [(data.constants if at < 0 else data.elements[at])[var] for data in chosen]
        return np.array(values, bool if var.dtype.is_bool else model.dtype)

    return problem.given(model, number, len(chosen[0].elements))


def _mismatch(model: Model, data: Data, level: Level, want: Decimal, got: object) -> Mismatch:
    return Mismatch(model.name, data.kind, level.name.name, f"{want:.12g}", f"{got:.12g}")


CHECKS: dict[str, Callable[[Problem], Outcome | None]] = {
    "form": check_form,
    "series": partial(check_algebra, Series),
    "pair": partial(check_algebra, Pair),
    "decimals": check_decimals,
    "float64": partial(check_floats, np.float64),
    "float32": partial(check_floats, np.float32),
}
