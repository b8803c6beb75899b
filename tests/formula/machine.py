"""What levels and streams mean, in NumPy: levels one after the other over the whole axis, streams
by blocks, and by combining the states of parts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from tilewright.formula.streams.stream import Center, Fold, Result, Sum, old, value_of
from tilewright.ir.arith import Bin, Call, Cast, Cmp, Const, Expr, Select, Var

UNARY = {
    **{name: getattr(np, name) for name in "exp exp2 expm1 log log2 log10 log1p sqrt".split()},
    **{name: getattr(np, name) for name in "tanh sin cos floor ceil trunc sinh".split()},
    "exp10": lambda a: np.power(10.0, a),
    "rsqrt": lambda a: 1 / np.sqrt(a),
    "sigmoid": lambda a: 1 / (1 + np.exp(-a)),
    "round": np.rint,
    "neg": np.negative,
    "abs": np.abs,
    "not": np.logical_not,
}
BINARY = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "min": np.minimum,
    "max": np.maximum, "//": np.floor_divide, "%": np.mod, "and": np.logical_and,
    "or": np.logical_or, "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal,
    ">": np.greater, ">=": np.greater_equal, "pow": np.power, "max_nan": np.maximum,
}  # fmt: skip


def is_exponential(expr):
    """Whether a zero of `expr` is that of an exp."""
    match expr:
        case Call("exp" | "exp2" | "exp10", _):
            return True
        case Call("pow", (Const(), _)):
            return True
        case Call("neg", (a,)) | Bin("/", a, _):
            return is_exponential(a)
        case Bin("*", a, b):
            return is_exponential(a) or is_exponential(b)
    return False


class Evaluator:
    """Evaluates expressions in one float type."""

    def __init__(self, kind=np.float64):
        self.kind = kind
        self.known = {}

    def __call__(self, expr, env):
        return self.compiled(expr)(env)

    def compiled(self, expr: Expr):
        found = self.known.get(expr)
        if found is None:
            found = self.known[expr] = self.compile(expr)
        return found

    def compile(self, expr):
        match expr:
            case Const(value):
                number = self.kind(value) if expr.dtype.is_float else value
                return lambda env: number
            case Var():
                return lambda env: env[expr]
            case Cast(dtype, a):
                inner = self.compiled(a)
                if dtype.is_float and dtype.bits < 32:
                    return lambda env: np.asarray(inner(env)).astype(dtype.numpy).astype(self.kind)
                if dtype.is_float:
                    return lambda env: np.asarray(inner(env)).astype(self.kind)
                return lambda env: np.asarray(inner(env)).astype(dtype.numpy)
            case Select(condition, a, b):
                parts = [self.compiled(part) for part in (condition, a, b)]
                return lambda env: np.where(*(part(env) for part in parts))
            case Bin("*", a, b):
                return self.times(a, b)
            case Bin(op, a, b) | Cmp(op, a, b):
                rule, left, right = BINARY[op], self.compiled(a), self.compiled(b)
                return lambda env: rule(left(env), right(env))
            case Call(name, (a,)):
                rule, inner = UNARY[name.removeprefix("__")], self.compiled(a)
                return lambda env: rule(inner(env))
            case Call(name, (a, b)):
                rule, left, right = BINARY[name], self.compiled(a), self.compiled(b)
                return lambda env: rule(left(env), right(env))
            case Call("fma", (a, b, c)):
                return self.compiled(a * b + c)
        raise NotImplementedError(repr(expr))

    def times(self, a, b):
        left, right = self.compiled(a), self.compiled(b)
        if is_exponential(a):
            return lambda env: _guarded(left(env), right(env))
        if is_exponential(b):
            return lambda env: _guarded(right(env), left(env))
        return lambda env: left(env) * right(env)


def _guarded(exp, other):
    return np.where(np.equal(exp, 0), np.zeros_like(exp), exp * other)


def direct(levels, elements, constants, evaluate):
    """The value of each level."""
    n = len(next(iter(elements.values())))
    env = {**constants, **elements}
    for level in levels:
        terms = np.broadcast_to(evaluate(level.body, env), (n,))
        env[level.name] = reduce(level.monoid, terms)
    return {level.name: env[level.name] for level in levels}


def reduce(monoid, terms):
    match monoid:
        case "sum":
            return np.sum(terms)
        case "prod":
            return np.prod(terms)
        case "count":
            return float(len(terms))
    return {"max": np.max, "min": np.min, "argmax": np.argmax, "argmin": np.argmin}[monoid](terms)


class Machine:
    """Runs a stream. A state is a dictionary of its variables, results among them."""

    def __init__(self, stream, constants, kind=np.float64):
        self.stream, self.constants, self.kind = stream, constants, kind
        self.evaluate = Evaluator(kind)

    def start(self):
        empty = {}
        for stage in self.stream.stages:
            if isinstance(stage, Fold) and stage.monoid.startswith("arg"):
                empty[stage.var], empty[value_of(stage)] = 0, self.kind(stage.start)
            elif isinstance(stage, Sum):
                empty[stage.var] = self.kind(0)
            elif not isinstance(stage, Result):
                empty[stage.var] = self.kind(stage.start)
        return empty

    def step(self, state, block):
        return self.advance([state], block)

    def combine(self, a, b):
        return self.advance([a, b], None)

    def advance(self, states, block):
        """The state of all of `states` and of the elements of a block."""
        new = {}
        for stage in self.stream.stages:
            env = {**self.constants, **new}
            match stage:
                case Fold():
                    self.fold(stage, states, block, new)
                case Center(var, value, start):
                    found = self.evaluate(value, env)
                    new[var] = found if np.isfinite(found) else self.kind(start)
                case Sum():
                    new[stage.var] = self.sum(stage, states, block, env)
                case Result(level, value):
                    new[level] = self.evaluate(value, env)
        return new

    def fold(self, fold, states, block, new):
        terms = self.terms(fold.term, block, {})
        if fold.monoid.startswith("arg"):
            value = value_of(fold)
            pairs = [(state[value], state[fold.var]) for state in states]
            pairs += zip(terms, block[self.stream.index]) if block else []
            sign = 1 if fold.monoid == "argmax" else -1
            new[value], new[fold.var] = max(pairs, key=lambda pair: (sign * pair[0], -pair[1]))
            return
        monoid = "sum" if fold.monoid == "count" else fold.monoid
        new[fold.var] = reduce(monoid, np.array([*(s[fold.var] for s in states), *terms]))

    def sum(self, stage, states, block, env):
        total = self.kind(0)
        for state in states:
            moved = dict(env)
            for center in self.stream.stages:
                if isinstance(center, Center):
                    moved[old(center.var)] = state[center.var]
            for shift in stage.shifts:
                total = total + self.evaluate(shift.coefficient, moved) * state[shift.of]
        return total + np.sum(self.terms(stage.term, block, env), dtype=self.kind)

    def terms(self, term, block, env):
        if block is None:
            return np.zeros(0, self.kind)
        n = len(block[self.stream.index])
        return np.broadcast_to(self.evaluate(term, {**self.constants, **env, **block}), (n,))

    # --- ways to read an axis ---------------------------------------------------------------------

    def by_blocks(self, elements, rng, state=None):
        n = len(elements[self.stream.index])
        state, at = state or self.start(), 0
        while at < n:
            end = at + int(rng.integers(1, 10))
            state = self.step(state, {var: values[at:end] for var, values in elements.items()})
            at = end
        return state

    def by_parts(self, elements, rng):
        """The states of parts, some of them empty, combined in a random tree."""
        n = len(elements[self.stream.index])
        cuts = [0, *sorted(rng.integers(0, n, 4)), n]
        states = [
            self.by_blocks({var: values[a:b] for var, values in elements.items()}, rng)
            for a, b in pairwise(cuts)
        ]
        while len(states) > 1:
            at = int(rng.integers(len(states) - 1))
            states[at : at + 2] = [self.combine(*states[at : at + 2])]
        return states[0]
