"""Direct evaluation of integer expressions, and a maker of random ones, for property tests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping

from tilewright.ir.analysis.linear import is_ring
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Select,
    Var,
    logical_not,
)


class Undefined(Exception):
    """A division by zero, a shift too far, or an index that overflows."""


def wrapped(value: int, to: DType) -> int:
    value &= (1 << to.bits) - 1
    return value - (1 << to.bits) if value > to.max_value else value


def evaluate(expr: Expr, env: Mapping[Var, int], index: bool = False) -> int:
    """The value of `expr`. With `index`, a whole int32 or int64 sum that overflows is undefined."""
    if is_ring(expr):
        exact = _ring(expr, env, index)
        result = wrapped(exact, expr.dtype)
        if result != exact and index and expr.dtype.name in ("int32", "int64"):
            raise Undefined
        return result
    match expr:
        case Const(value):
            return int(value)
        case Var():
            return env[expr]
        case Bin("and", a, b):
            return evaluate(a, env, index) and evaluate(b, env, index)
        case Bin("or", a, b):
            return evaluate(a, env, index) or evaluate(b, env, index)
        case Select(c, a, b):
            return evaluate(a if evaluate(c, env, index) else b, env, index)
        case Call("not", (a,)):
            return 1 - evaluate(a, env, index)
        case Call("abs", (a,)):
            return _checked(abs(evaluate(a, env, index)), expr.dtype, index)
        case Cast(to, a):
            value = evaluate(a, env, index)
            return int(value != 0) if to.is_bool else wrapped(value, to)
        case Cmp(op, a, b):
            x, y = evaluate(a, env, index), evaluate(b, env, index)
            return int(
                {"<": x < y, "<=": x <= y, "==": x == y, "!=": x != y, ">": x > y, ">=": x >= y}[op]
            )
        case Bin(op, a, b):
            x, y = evaluate(a, env, index), evaluate(b, env, index)
            if (op in ("//", "%") and y == 0) or (op in ("<<", ">>") and not 0 <= y < a.dtype.bits):
                raise Undefined
            if op == "<<":
                return _checked(x << y, expr.dtype, index)
            if op == "//":
                return _checked(x // y, expr.dtype, index)
            if op == "%":
                return x % y
            return {"min": min(x, y), "max": max(x, y), "&": x & y, "|": x | y, "^": x ^ y}.get(
                op, x >> y if op == ">>" else 0
            )
    raise AssertionError(expr)


def _checked(exact: int, to: DType, index: bool) -> int:
    if index and to.name in ("int32", "int64") and wrapped(exact, to) != exact:
        raise Undefined
    return wrapped(exact, to)


def _ring(expr: Expr, env: Mapping[Var, int], index: bool) -> int:
    if not is_ring(expr):
        return evaluate(expr, env, index)
    parts = [_ring(child, env, index) for child in expr.children]
    match expr:
        case Bin("+"):
            return parts[0] + parts[1]
        case Bin("-"):
            return parts[0] - parts[1]
        case Bin("*"):
            return parts[0] * parts[1]
        case Bin("<<"):
            return parts[0] << parts[1]
        case Call("neg"):
            return -parts[0]
    return -parts[0] - 1


Spec = tuple[int, int, int, int]


def assignments(
    specs: Mapping[Var, Spec], most: int = 400, seed: int = 0
) -> Iterator[dict[Var, int]]:
    """Every assignment within the ranges, or a sample with the corners when there are many."""
    domains = {
        var: [v for v in range(lo, hi + 1) if v % multiple == offset % multiple]
        if hi - lo < 5000
        else sorted(
            {lo + (offset - lo) % multiple + multiple * k for k in (0, 1, 2, 3, 17, 1000)}
            | {hi - (hi - offset) % multiple - multiple * k for k in (0, 1, 2, 3, 17, 1000)}
            | {v + (offset - v) % multiple for v in (0, 1, 2, 5, 100) if lo <= v <= hi - multiple}
        )
        for var, (lo, hi, multiple, offset) in specs.items()
    }
    total = 1
    for domain in domains.values():
        total *= len(domain)
    if total <= most:
        for values in itertools.product(*domains.values()):
            yield dict(zip(domains, values))
        return
    rng = random.Random(seed)
    for pick in (0, -1):
        yield {var: domain[pick] for var, domain in domains.items()}
    for _ in range(most):
        yield {
            var: rng.choice((domain[0], domain[-1], rng.choice(domain)))
            for var, domain in domains.items()
        }


class Maker:
    """Random expressions of one integer type over a few variables, and ranges for these.

    A seeded generator, not a composite strategy: the latter takes milliseconds per node.
    """

    def __init__(self, seed: int, kind: str, wide: bool = False) -> None:
        self.rng = random.Random(seed)
        self.kind = dtype(kind)
        self.wide = wide
        self.vars = tuple(Var(name, self.kind) for name in "xyz")
        self.specs: dict[Var, Spec] = {var: self.spec() for var in self.vars}

    def spec(self) -> Spec:
        """A small range of either sign, or (`wide`) one that may reach the type's limits."""
        rng, low, high = self.rng, int(self.kind.min_value), int(self.kind.max_value)
        if self.wide and rng.random() < 0.6:
            lo = max(rng.choice([low, low + 1, -1, 0, 0, 1, high - 40]), low)
            hi = max(min(rng.choice([high, high - 1, high // 2, lo + 5]), high), lo)
        else:
            lo = max(rng.choice([0, 0, 0, 1, 3, -1, -4, -9, -32]), low)
            hi = min(lo + rng.randint(0, 12), high)
        multiple = rng.choice([1, 1, 1, 2, 4, 3])
        offset = rng.randrange(multiple)
        if lo + (offset - lo) % multiple > hi:
            multiple, offset = 1, 0
        return lo, hi, multiple, offset

    def literal(self, *choices: int) -> Const:
        low, high = int(self.kind.min_value), int(self.kind.max_value)
        fitting = [c for c in choices if low <= c <= high]
        return Const(self.rng.choice(fitting), self.kind)

    def integer(self, depth: int) -> Expr:
        rng = self.rng
        if depth == 0 or rng.random() < 0.1:
            if rng.random() < 0.7:
                return rng.choice(self.vars)
            if self.wide and rng.random() < 0.3:
                high = int(self.kind.max_value)
                return self.literal(high, high - 1, high // 2, high // 2 + 1, -high - 1, -high)
            return self.literal(1, 2, 3, 4, 5, 8, 16, 7, 12, 32, 64, 0, -1, -2, -4, -5)

        def inner() -> Expr:
            return self.integer(depth - 1)

        match rng.randrange(16):
            case 0 | 1 | 2:
                return Bin(rng.choice("+-+*"), inner(), inner())
            case 3 | 4:
                return Bin("*", inner(), self.literal(2, 3, 4, 8, 16, -1, -3, -4))
            case 5 | 6 | 7:
                return Bin(rng.choice(["//", "%"]), inner(), self.literal(1, 2, 3, 4, 6, 8, 16, -3))
            case 8:
                return Bin(rng.choice(["//", "%"]), inner(), inner())
            case 9:
                return Bin(rng.choice(["min", "max"]), inner(), inner())
            case 10:
                return Bin(rng.choice(["<<", ">>"]), inner(), self.literal(0, 1, 2, 3))
            case 11:
                mask = self.literal(0, 1, 3, 7, 15, 5, 12)
                return Bin(rng.choice("&|^"), inner(), rng.choice([mask, inner()]))
            case 12:
                return Call(rng.choice(["neg", "invert", "abs"]), (inner(),), self.kind)
            case 13:
                return Select(self.condition(depth - 1), inner(), inner())
            case 14:
                mid = dtype(rng.choice(["int8", "uint8", "int16", "int32", "int64"]))
                return Cast(self.kind, Cast(mid, inner()))
            case _:
                # divisions that undo one another, the shape of real indices
                x, c = inner(), self.literal(2, 4, 8)
                parts = Bin("*", Bin("//", x, c), c), Bin("%", x, c)
                return Bin(rng.choice("+-"), *parts)

    def condition(self, depth: int) -> Expr:
        rng = self.rng
        if depth <= 0 or rng.random() < 0.5:
            op = rng.choice(["<", "<=", "==", "!=", ">", ">="])
            return Cmp(op, self.integer(max(depth, 1)), self.integer(max(depth - 1, 0)))
        match rng.randrange(3):
            case 0:
                op = rng.choice(["and", "or"])
                return Bin(op, self.condition(depth - 1), self.condition(depth - 1))
            case 1:
                return logical_not(self.condition(depth - 1))
        return Select(*(self.condition(depth - 2) for _ in range(3)))
