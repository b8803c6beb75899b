"""Algebraic models: rings in which random numbers tell functions apart.

They know no order: a running maximum is any number there, and what is positive is a convention
that products respect.
"""

from __future__ import annotations

import hashlib
import math
import random
from abc import abstractmethod
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import NamedTuple

from tilewright.formula.check.models import LOWERED, SMALL, Discard, Model, Number, Value
from tilewright.ir.arith import FOLD

_INFINITE = object()  # -inf, +inf and what comes of them; exp of it is zero


class Algebra(Model):
    """A ring in which random numbers tell functions apart. A running maximum is any number."""

    ordered = False
    order: int  # of the ring whose squares are the positive numbers
    lacks: frozenset[str]  # laws that hold of real numbers and not here: see `verify`

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self._constants: dict[Number, Value] = {}

    @abstractmethod
    def ratio(self, value: Fraction) -> Value: ...
    @abstractmethod
    def arbitrary(self, positive: bool = False) -> Value: ...
    @abstractmethod
    def leading(self, a: Value) -> int:
        """The number in the ring of `order` that says whether `a` is positive, or zero."""

    @abstractmethod
    def oracle(self, bits: Callable[[int], int]) -> Value:
        """A number made of random `bits`."""

    @abstractmethod
    def same(self, a: Value, b: Value) -> bool: ...
    @abstractmethod
    def _add(self, a: Value, b: Value) -> Value: ...
    @abstractmethod
    def _mul(self, a: Value, b: Value) -> Value: ...
    @abstractmethod
    def _neg(self, a: Value) -> Value: ...
    @abstractmethod
    def _power(self, a: Value, exponent: Fraction) -> Value: ...
    @abstractmethod
    def _exp(self, a: Value) -> Value: ...
    @abstractmethod
    def _log(self, a: Value) -> Value: ...

    def constant(self, value: Number) -> Value:
        found = self._constants.get(value)
        if found is None:
            infinite = isinstance(value, float) and not math.isfinite(value)
            found = _INFINITE if infinite else self.ratio(Fraction(value))
            self._constants[value] = found
        return found

    def add(self, a: Value, b: Value) -> Value:
        return _INFINITE if a is _INFINITE or b is _INFINITE else self._add(a, b)

    def mul(self, a: Value, b: Value) -> Value:
        return _INFINITE if a is _INFINITE or b is _INFINITE else self._mul(a, b)

    def neg(self, a: Value) -> Value:
        return _INFINITE if a is _INFINITE else self._neg(a)

    def power(self, a: Value, exponent: Fraction) -> Value:
        if a is _INFINITE:
            return self.constant(0) if exponent < 0 else _INFINITE
        if exponent < 0 and not self.leading(a):
            return _INFINITE
        if exponent.denominator > 1 and not self.positive(a):
            raise Discard
        return self._power(a, exponent)

    def exp(self, a: Value) -> Value:
        return self.constant(0) if a is _INFINITE else self._exp(a)

    def log(self, a: Value) -> Value:
        if a is _INFINITE or not self.leading(a):
            return _INFINITE
        number = self.whole(a)
        if number is None:
            return self._log(a)
        return self.constant(0) if number == 1 else self.function("ln", (a,))

    def finite(self, a: Value) -> bool:
        return a is not _INFINITE

    def positive(self, a: Value) -> bool:
        return pow(self.leading(a), (self.order - 1) // 2, self.order) == 1

    def negative(self, a: Value) -> bool:
        return bool(self.leading(a)) and not self.positive(a)

    def compare(self, op: str, a: Value, b: Value) -> bool:
        if a is _INFINITE or b is _INFINITE:
            return bool(FOLD[op](a is not _INFINITE, b is not _INFINITE))
        if self.same(a, b):
            return op in ("==", "<=", ">=")
        if op in ("==", "!="):
            return op == "!="
        left, right = self.whole(a), self.whole(b)
        if left is not None and right is not None:
            return bool(FOLD[op](left, right))
        return self.positive(self._add(b, self._neg(a))) == (op in ("<", "<="))

    def function(self, name: str, args: Sequence[Value]) -> Value:
        if name in LOWERED:
            return LOWERED[name](self, *args)
        numbers = [None if a is _INFINITE else self.whole(a) for a in args]
        if name in FOLD and None not in numbers:
            return self.constant(FOLD[name](*numbers))
        if _INFINITE in args and name not in ("ln", "sin", "cos"):
            return _INFINITE
        said = repr((self.seed, name, args)).encode()
        stream = random.Random(hashlib.blake2b(said, digest_size=16).digest())
        return self.oracle(stream.randrange)

    def fold(self, monoid: str, values: Sequence[Value], positive: bool = False) -> Value:
        if monoid in ("max", "min"):
            return self.arbitrary(positive)
        return super().fold(monoid, values)

    def best(self, monoid: str, pairs: Sequence[tuple[Value, Value]]) -> tuple[Value, Value]:
        """Any: some order puts it first."""
        real = [pair for pair in pairs if pair[0] is not _INFINITE]
        return self.random.choice(real) if real else pairs[0]


def _signed(value: int, modulus: int) -> int:
    return value if 2 * value < modulus else value - modulus


MERSENNE = (1 << 61) - 1
TERMS = 6
_INVERSE = [0] + [pow(k, -1, MERSENNE) for k in range(1, TERMS + 1)]


class Series(Algebra):
    """Σ cₖ εᵏ over Z_{2⁶¹ - 1}, as the coefficients that are known. exp(u) is the series of
    exp(εu) and knows one more than u; log knows one less, and cannot see a constant factor. Of a
    number alone it is an oracle."""

    name = "series"
    order = MERSENNE
    lacks = frozenset(("log in exp", "log of a number", "signs"))

    def ratio(self, value: Fraction) -> Value:
        number = value.numerator * pow(value.denominator, -1, MERSENNE) % MERSENNE
        return (number,) + (0,) * (TERMS - 1)

    def arbitrary(self, positive: bool = False) -> Value:
        number = self.random.randrange(1, MERSENNE)
        return self.ratio(Fraction(number * number if positive else number))

    def oracle(self, bits: Callable[[int], int]) -> Value:
        return self.ratio(Fraction(bits(MERSENNE)))

    def leading(self, a: Value) -> int:
        return int(a[0])

    def whole(self, a: Value) -> int | None:
        number = _signed(a[0], MERSENNE)
        return number if abs(number) < SMALL and not any(a[1:]) else None

    def same(self, a: Value, b: Value) -> bool:
        if a is _INFINITE or b is _INFINITE:
            return a is b
        return all(x == y for x, y in zip(a, b, strict=False))

    def _add(self, a: Value, b: Value) -> Value:
        return tuple([(x + y) % MERSENNE for x, y in zip(a, b, strict=False)])

    def _neg(self, a: Value) -> Value:
        return tuple([-x % MERSENNE for x in a])

    def _mul(self, a: Value, b: Value) -> Value:
        known = min(len(a), len(b))
        if not any(b[1:]):
            a, b = b, a
        if not any(a[1:]):
            return tuple([a[0] * y % MERSENNE for y in b[:known]])
        return tuple(
            [sum([a[i] * b[k - i] for i in range(k + 1)]) % MERSENNE for k in range(known)]
        )

    def _exp(self, a: Value) -> Value:
        moved = (0, *a)[:TERMS]
        out = [1]
        for k in range(1, len(moved)):  # of f = exp(w): f' = w' f
            total = sum([i * moved[i] * out[k - i] for i in range(1, k + 1)])
            out.append(total * _INVERSE[k] % MERSENNE)
        return tuple(out)

    def _unit(self, a: Value) -> list[int]:
        """`a` by its first coefficient."""
        scale = pow(a[0], -1, MERSENNE)
        return [x * scale % MERSENNE for x in a]

    def _log(self, a: Value) -> Value:
        unit = self._unit(a)
        if len(unit) < 2:
            raise Discard
        out = [0]
        for k in range(1, len(unit)):  # of f = log(1 + w): (1 + w) f' = w'
            total = sum([i * out[i] * unit[k - i] for i in range(1, k)])
            out.append((unit[k] - total * _INVERSE[k]) % MERSENNE)
        return tuple(out[1:])

    def _power(self, a: Value, exponent: Fraction) -> Value:
        if exponent.denominator == 1 and exponent >= 0:
            out = self.constant(1)[: len(a)]
            for _ in range(int(exponent)):
                out = self._mul(out, a)
            return out
        odd = (MERSENNE - 1) // 2  # how many squares there are; one root of each is a square
        if exponent.denominator == 1:
            scale = pow(a[0], int(exponent), MERSENNE)
        elif math.gcd(exponent.denominator, odd) > 1:
            raise Discard
        else:
            turn = exponent.numerator * pow(exponent.denominator, -1, odd) % odd
            scale = pow(a[0], turn, MERSENNE)
        times = self.ratio(exponent)[0]
        unit, series = self._unit(a), [1]
        for k in range(1, len(unit)):  # of f = (1 + w)ᵉ: (1 + w) f' = e w' f
            total = sum([(times * i - (k - i)) * unit[i] * series[k - i] for i in range(1, k + 1)])
            series.append(total * _INVERSE[k] % MERSENNE)
        return tuple([x * scale % MERSENNE for x in series])

    def function(self, name: str, args: Sequence[Value]) -> Value:
        if name in ("sin", "cos") and _INFINITE not in args:
            moved = (0, *args[0])[:TERMS]
            sine, cosine = [0], [1]
            for k in range(1, len(moved)):
                parts = [i * moved[i] for i in range(k + 1)]
                grow = sum([parts[i] * cosine[k - i] for i in range(1, k + 1)])
                fall = sum([parts[i] * sine[k - i] for i in range(1, k + 1)])
                sine.append(grow * _INVERSE[k] % MERSENNE)
                cosine.append(-fall * _INVERSE[k] % MERSENNE)
            return tuple(sine if name == "sin" else cosine)
        return super().function(name, args)


Q = 1073741789
P = 2 * Q + 1
GENERATOR = 4  # of the squares modulo P, of which there are Q


class PairValue(NamedTuple):
    """A number modulo P, and modulo Q what exp makes of it: the exponent itself where it is known
    as a number, else what exp gives, else neither."""

    number: int | None
    grown: int | None
    value: int


class Pair(Algebra):
    """exp(x) = 4ˣ: it takes sums modulo Q to products modulo P. The logarithm leads back, but
    modulo P it is an oracle: nothing there turns products into sums."""

    name = "pair"
    order = P
    lacks = frozenset(("log", "exp in exp", "signs", "waves"))

    def ratio(self, value: Fraction) -> Value:
        top, bottom = value.numerator, value.denominator
        return PairValue(top * pow(bottom, -1, Q) % Q, None, top * pow(bottom, -1, P) % P)

    def arbitrary(self, positive: bool = False) -> Value:
        number, value = self.random.randrange(1, Q), self.random.randrange(1, P)
        return PairValue(number, None, value * value % P if positive else value)

    def oracle(self, bits: Callable[[int], int]) -> Value:
        return PairValue(bits(Q), None, bits(P))

    def leading(self, a: Value) -> int:
        return int(a.value)

    def whole(self, a: Value) -> int | None:
        number = _signed(a.value, P)
        known = a.number is not None and _signed(a.number, Q) == number
        return number if known and abs(number) < SMALL else None

    def same(self, a: Value, b: Value) -> bool:
        if a is _INFINITE or b is _INFINITE:
            return a is b
        unknown = a.number is None or b.number is None
        return bool(a.value == b.value and (unknown or a.number == b.number))

    def _grown(self, a: Value) -> int | None:
        return a.grown if a.number is None else pow(GENERATOR, a.number, P)

    def _add(self, a: Value, b: Value) -> Value:
        value = (a.value + b.value) % P
        if a.number is not None and b.number is not None:
            return PairValue((a.number + b.number) % Q, None, value)
        left, right = self._grown(a), self._grown(b)
        both = left is not None and right is not None
        return PairValue(None, left * right % P if both else None, value)  # type: ignore[operator]

    def _neg(self, a: Value) -> Value:
        return self._mul(a, self.constant(-1))

    def _mul(self, a: Value, b: Value) -> Value:
        value = a.value * b.value % P
        if a.number is not None and b.number is not None:
            return PairValue(a.number * b.number % Q, None, value)
        if a.number is None:
            a, b = b, a
        known = a.number is not None and b.grown is not None
        return PairValue(None, pow(b.grown, a.number, P) if known else None, value)

    def _power(self, a: Value, exponent: Fraction) -> Value:
        if exponent.denominator == 1:
            turn = int(exponent)
            known = a.number is not None and (turn >= 0 or a.number)
            grown = a.grown if turn == 1 else None
            return PairValue(
                pow(a.number, turn, Q) if known else None, grown, pow(a.value, turn, P)
            )
        turn = exponent.numerator * pow(exponent.denominator, -1, Q) % Q
        return PairValue(None, None, pow(a.value, turn, P))

    def _exp(self, a: Value) -> Value:
        grown = self._grown(a)
        if grown is None:
            return super().function("exp", (PairValue(None, None, a.value),))
        return PairValue(None, None, grown)

    def _log(self, a: Value) -> Value:
        if not self.positive(a):
            raise Discard
        unknown = super().function("log", (PairValue(None, None, a.value),))
        return PairValue(None, a.value, unknown.value)

    def function(self, name: str, args: Sequence[Value]) -> Value:
        if name not in LOWERED and name not in FOLD:  # as `same` says, where only one is known
            args = [a if a is _INFINITE else PairValue(None, None, a.value) for a in args]
        found = super().function(name, args)
        if name in ("tanh", "sigmoid") and found is not _INFINITE:  # which stand in exponents too
            there = super().function("exponent", (PairValue(None, None, found.value),))
            return PairValue(there.number, None, found.value)
        return found
