"""What levels and streams mean, in any model of numbers.

`direct` evaluates a formula level by level over all elements. `Machine` runs a stream as
`stream.py` says: from a start, block by block, states of disjoint parts combined, and the levels'
values at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TypeAlias

from tilewright.formula.check.models import Model, Value, evaluate
from tilewright.formula.streams.stream import (
    Center,
    Fold,
    Level,
    Result,
    Stream,
    Sum,
    old,
    value_of,
)
from tilewright.ir.arith import Bin, Call, Const, Expr, Select, Var
from tilewright.ir.expr import variables

Values: TypeAlias = "Mapping[Var, Value]"
State: TypeAlias = "dict[Var, Value]"
ARG = ("argmax", "argmin")


class Scopes:
    """What is known of each of some elements, and what expressions came to there."""

    def __init__(self, model: Model, elements: Sequence[Values], known: Values) -> None:
        self.model = model
        self.envs = [{**known, **element} for element in elements]
        self.memos: list[dict[Expr, Value]] = [{} for _ in elements]

    def learn(self, var: Var, value: Value) -> None:
        for env in self.envs:
            env[var] = value

    def of(self, expr: Expr) -> list[Value]:
        return [
            evaluate(expr, env, self.model, memo)
            for env, memo in zip(self.envs, self.memos, strict=True)
        ]


def direct(
    levels: Sequence[Level],
    index: Var,
    elements: Sequence[Values],
    constants: Values,
    model: Model,
    shared: Values | None = None,
) -> dict[Var, Value]:
    """The levels' values, evaluated as they stand; those of `shared` are taken from there."""
    out: dict[Var, Value] = {}
    scopes = Scopes(model, elements, constants)
    for level in levels:
        if shared is not None and level.name in shared:
            value = shared[level.name]
        elif level.monoid == "count":
            value = model.constant(len(elements))
        elif level.monoid in ARG:
            places = [env[index] for env in scopes.envs]
            pairs = list(zip(scopes.of(level.body), places, strict=True))
            value = model.best(level.monoid, pairs)[1]
        else:
            value = model.fold(level.monoid, scopes.of(level.body))
        out[level.name] = value
        scopes.learn(level.name, value)
    return out


class Machine:
    """A stream over one model. `constants`: what stays the same along the axis.

    A state holds a value for each fold, center and sum, and of an argmax its value too.
    """

    def __init__(self, stream: Stream, model: Model, constants: Values) -> None:
        self.stream, self.model, self.constants = stream, model, constants
        self.running = _running(stream)
        self.positive = {fold.var: nonnegative(fold.term) for fold in stream.of(Fold)}
        self.before = {s.var: old(s.var) for s in stream.of(Center)}

    def start(self) -> State:
        """The state before any element."""
        state: State = {}
        for stage in self.stream.state:
            begin = 0.0 if isinstance(stage, Sum) else stage.start
            state[stage.var] = self.model.constant(begin)
            if isinstance(stage, Fold) and stage.monoid in ARG:
                state[value_of(stage)] = self.model.constant(begin)
                state[stage.var] = self.model.constant(0)
        return state

    def step(self, state: State, block: Sequence[Values]) -> State:
        """The state after another block of elements."""
        return self._advance([state], block)

    def combine(self, a: State, b: State) -> State:
        """The state of two disjoint parts."""
        return self._advance([a, b], [])

    def finish(self, state: State) -> dict[Var, Value]:
        """The levels' values."""
        env = {**self.constants, **state}
        memo: dict[Expr, Value] = {}
        out: dict[Var, Value] = {}
        for stage in self.stream.of(Result):
            out[stage.level] = env[stage.level] = evaluate(stage.value, env, self.model, memo)
        return out

    def _advance(self, states: Sequence[State], block: Sequence[Values]) -> State:
        """All of `states` and the elements of `block` together."""
        model, new = self.model, {}
        known: dict[Var, Value] = dict(self.constants)
        memo: dict[Expr, Value] = {}
        scopes = Scopes(model, block, self.constants)
        sides: list[tuple[dict[Var, Value], dict[Expr, Value]]] = [
            ({**self.constants}, {}) for _ in states
        ]

        def learn(var: Var, value: Value) -> None:
            new[var] = known[var] = value

        for stage in self.stream.stages:
            if isinstance(stage, Fold):
                for var, value in self._folded(stage, states, scopes).items():
                    learn(var, value)
            elif isinstance(stage, Center):
                value = evaluate(stage.value, known, model, memo)
                value = model.select(model.finite(value), value, model.constant(stage.start))
                before = self.before[stage.var]
                learn(stage.var, value)
                scopes.learn(stage.var, value)
                scopes.learn(before, states[0][stage.var])
                for (env, _), state in zip(sides, states, strict=True):
                    env[stage.var], env[before] = value, state[stage.var]
            elif isinstance(stage, Sum):
                terms = scopes.of(stage.term)
                for (env, coefficients), state in zip(sides, states, strict=True):
                    for shift in stage.shifts:
                        factor = evaluate(shift.coefficient, env, model, coefficients)
                        terms.append(model.mul(factor, state[shift.of]))
                learn(stage.var, model.fold("sum", terms))
            elif stage.level in self.running:
                known[stage.level] = evaluate(stage.value, known, model, memo)
        return new

    def _folded(self, fold: Fold, states: Sequence[State], scopes: Scopes) -> State:
        before = [state[fold.var] for state in states]
        if fold.monoid == "count":
            seen = self.model.constant(len(scopes.envs))
            return {fold.var: self.model.fold("sum", [*before, seen])}
        terms = scopes.of(fold.term)
        if fold.monoid in ARG:
            kept = value_of(fold)
            pairs = [(state[kept], state[fold.var]) for state in states]
            places = [env[self.stream.index] for env in scopes.envs]
            pairs += zip(terms, places, strict=True)
            value, place = self.model.best(fold.monoid, pairs)
            return {fold.var: place, kept: value}
        positive = self.positive[fold.var]
        return {fold.var: self.model.fold(fold.monoid, before + terms, positive)}


@lru_cache(maxsize=4096)
def nonnegative(expr: Expr) -> bool:
    """Whether `expr` is evidently never negative."""
    if isinstance(expr, Const):
        return expr.value >= 0
    if isinstance(expr, Select):
        return nonnegative(expr.a) and nonnegative(expr.b)
    if isinstance(expr, Bin):
        both = [nonnegative(expr.a), nonnegative(expr.b)]
        if expr.op == "*" and expr.a is expr.b:
            return True
        return any(both) if expr.op == "max" else expr.op in ("+", "*", "/", "min") and all(both)
    return isinstance(expr, Call) and expr.name in ("abs", "exp", "exp2", "sqrt", "sigmoid")


def _running(stream: Stream) -> frozenset[Var]:
    """The levels whose value before the end some center needs."""
    needed: set[Var] = set()
    for stage in reversed(stream.stages):
        if isinstance(stage, Center) or (isinstance(stage, Result) and stage.level in needed):
            needed |= variables(stage.value)
    return frozenset(needed)
