"""Formulas, and the streams that compute them, written by hand."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.formula.streams.stream import (
    Center,
    Fold,
    Level,
    Result,
    Shift,
    Stage,
    Stream,
    Sum,
    old,
)
from tilewright.ir.arith import Call, Expr, Var, compare, const, power, select
from tilewright.ir.dtype import FLOAT32, INT32

INF = float("inf")
LOW, MEAN = -1e30, -1e18  # where centers start: maxima, and means, which are squared in float32


def var(name: str) -> Var:
    return Var(name, FLOAT32)


def call(name: str, a: Expr) -> Expr:
    return Call(name, (a,), a.dtype)


def exp(a: Expr) -> Expr:
    return call("exp", a)


def log(a: Expr) -> Expr:
    return call("log", a)


def sqrt(a: Expr) -> Expr:
    return call("sqrt", a)


@dataclass(frozen=True)
class Case:
    levels: tuple[Level, ...]
    stream: Stream
    extent: Var | None = None


x, y, v, w = var("x"), var("y"), var("v"), var("w")
j, i, t = Var("j", INT32), Var("i", INT32), Var("t", INT32)
m, l, o, R, S = var("m"), var("l"), var("o"), var("R"), var("S")
A, B, W, M, mu = var("A"), var("B"), var("W"), var("M"), var("mu")
mx, my, lx, ly = var("mx"), var("my"), var("lx"), var("ly")
top, low, c, k, s0, s1, s2 = (var(name) for name in "top low c k s0 s1 s2".split())
n, N = var("n"), var("N")
ONE, ZERO = const(1.0, FLOAT32), const(0.0, FLOAT32)
p = exp(x - m) / l


def stream(*stages: Stage, elements: tuple[Var, ...] = (x, v)) -> Stream:
    return Stream(frozenset((*elements, j)), j, stages)


def moved(center: Var) -> Expr:
    """How far elements less their center move, when that does."""
    return old(center) - center


def softmax(score: Expr = x) -> tuple[Stage, ...]:
    """The maximum and the sum of a softmax, its center `c`."""
    return (
        Fold(top, "max", score, -INF),
        Result(m, top),
        Center(c, m, LOW),
        Sum(s0, exp(score - c), (Shift(s0, exp(moved(c))),)),
        Result(l, s0),
    )


def weighed(name: Var, term: Expr) -> Sum:
    """A sum of terms with the softmax's weight."""
    return Sum(name, exp(x - c) * term, (Shift(name, exp(moved(c))),))


SOFTMAX = (Level(m, "max", x), Level(l, "sum", exp(x - m)))

attention = Case(
    (*SOFTMAX, Level(o, "sum", p * v)),
    stream(*softmax(), weighed(s1, v), Result(o, s1 / l)),
)

by_logsumexp = Case(
    (*SOFTMAX, Level(o, "sum", exp(x - (m + log(l))) * v)),
    stream(*softmax(), weighed(s1, v), Result(o, s1 / l)),
)

_seen = select(j < i, x, const(-INF, FLOAT32))
causal = Case(
    (
        Level(m, "max", _seen),
        Level(l, "sum", exp(_seen - m)),
        Level(o, "sum", exp(_seen - m) / l * v),
    ),
    stream(
        *softmax(_seen),
        Sum(s1, exp(_seen - c) * v, (Shift(s1, exp(moved(c))),)),
        Result(o, s1 / l),
    ),
)

variance = Case(
    (Level(S, "sum", x), Level(R, "sum", (x - S / N) * (x - S / N) / N)),
    stream(
        Fold(n, "count", ONE, 0.0),
        Fold(s0, "sum", x, 0.0),
        Result(S, s0),
        Center(c, s0 / n, MEAN),
        Sum(s2, (x - c) * (x - c), (Shift(s2, ONE), Shift(n, moved(c) * moved(c)))),
        Result(R, s2 / n),
        elements=(x,),
    ),
    extent=N,
)

weighted_mean = Case(
    (
        Level(W, "sum", w),
        Level(M, "sum", w * x / W),
        Level(R, "sum", w * (x - M) * (x - M) / W),
    ),
    stream(
        Fold(s0, "sum", w, 0.0),
        Result(W, s0),
        Fold(s1, "sum", w * x, 0.0),
        Result(M, s1 / W),
        Center(c, M, MEAN),
        Sum(s2, w * (x - c) * (x - c), (Shift(s2, ONE), Shift(s0, moved(c) * moved(c)))),
        Result(R, s2 / W),
        elements=(x, w),
    ),
)

entropy = Case(
    (*SOFTMAX, Level(R, "sum", -(p * log(p)))),
    stream(
        *softmax(),
        Sum(
            s1,
            exp(x - c) * (x - c),
            (Shift(s1, exp(moved(c))), Shift(s0, exp(moved(c)) * moved(c))),
        ),
        Result(R, log(l) - s1 / l),
        elements=(x,),
    ),
)

covariance = Case(
    (
        Level(n, "count", ONE),
        Level(A, "sum", x / n),
        Level(B, "sum", y / n),
        Level(R, "sum", (x - A) * (y - B)),
    ),
    stream(
        Fold(var("seen"), "count", ONE, 0.0),
        Result(n, var("seen")),
        Fold(s0, "sum", x, 0.0),
        Result(A, s0 / n),
        Fold(s1, "sum", y, 0.0),
        Result(B, s1 / n),
        Center(c, A, MEAN),
        Center(k, B, MEAN),
        Sum(s2, (x - c) * (y - k), (Shift(s2, ONE), Shift(var("seen"), moved(c) * moved(k)))),
        Result(R, s2),
        elements=(x, y),
    ),
)

softmax_variance = Case(
    (*SOFTMAX, Level(mu, "sum", p * v), Level(R, "sum", p * (v - mu) * (v - mu))),
    stream(
        *softmax(),
        weighed(s1, v),
        Result(mu, s1 / l),
        Center(k, mu, MEAN),
        Sum(
            s2,
            exp(x - c) * (v - k) * (v - k),
            (Shift(s2, exp(moved(c))), Shift(s0, exp(moved(c)) * moved(k) * moved(k))),
        ),
        Result(R, s2 / l),
    ),
)

first, best = Var("first", INT32), Var("best", INT32)
argmax = Case(
    (*SOFTMAX, Level(first, "argmax", p)),
    stream(*softmax(), Fold(best, "argmax", x, -INF), Result(first, best), elements=(x,)),
)

cosine = Case(
    (
        Level(A, "sum", x * x),
        Level(B, "sum", y * y),
        Level(R, "sum", x / sqrt(A) * (y / sqrt(B))),
    ),
    stream(
        Fold(s0, "sum", x * x, 0.0),
        Result(A, s0),
        Fold(s1, "sum", y * y, 0.0),
        Result(B, s1),
        Fold(s2, "sum", x * y, 0.0),
        Result(R, s2 / (sqrt(A) * sqrt(B))),
        elements=(x, y),
    ),
)

_px, _py = exp(x - mx) / lx, exp(y - my) / ly
_ey, _cy = var("ey"), var("cy")
divergence = Case(
    (
        Level(mx, "max", x),
        Level(lx, "sum", exp(x - mx)),
        Level(my, "max", y),
        Level(ly, "sum", exp(y - my)),
        Level(R, "sum", _px * (log(_px) - log(_py))),
    ),
    stream(
        Fold(top, "max", x, -INF),
        Result(mx, top),
        Center(c, mx, LOW),
        Sum(s0, exp(x - c), (Shift(s0, exp(moved(c))),)),
        Result(lx, s0),
        Fold(low, "max", y, -INF),
        Result(my, low),
        Center(_cy, my, LOW),
        Sum(_ey, exp(y - _cy), (Shift(_ey, exp(moved(_cy))),)),
        Result(ly, _ey),
        Sum(
            s1,
            exp(x - c) * ((x - c) - (y - _cy)),
            (
                Shift(s1, exp(moved(c))),
                Shift(s0, exp(moved(c)) * (moved(c) - moved(_cy))),
            ),
        ),
        Result(R, s1 / lx + (log(ly) - log(lx))),
        elements=(x, y),
    ),
)

softmin = Case(
    (
        Level(m, "min", x),
        Level(l, "sum", exp(m - x)),
        Level(o, "sum", exp(m - x) / l * v),
    ),
    stream(
        Fold(low, "min", x, INF),
        Result(m, low),
        Center(c, m, -LOW),
        Sum(s0, exp(c - x), (Shift(s0, exp(-moved(c))),)),
        Result(l, s0),
        Sum(s1, exp(c - x) * v, (Shift(s1, exp(-moved(c))),)),
        Result(o, s1 / l),
    ),
)

_label = compare("==", j, t)
_far = ONE - p
_at = var("at")
_pt = exp(_at - m) / l
focal = Case(
    (*SOFTMAX, Level(R, "sum", select(_label, -(_far * _far * log(p)), ZERO))),
    stream(
        *softmax(),
        Fold(_at, "sum", select(_label, x, ZERO), 0.0),
        Fold(n, "sum", select(_label, ONE, ZERO), 0.0),
        Result(
            R,
            select(compare("!=", n, ZERO), -((ONE - _pt) * (ONE - _pt) * (_at - m - log(l))), ZERO),
        ),
        elements=(x,),
    ),
)

product = Case(
    (Level(m, "max", call("abs", x)), Level(R, "prod", x / m)),
    stream(
        Fold(top, "max", call("abs", x), -INF),
        Result(m, top),
        Fold(s0, "prod", x, 1.0),
        Fold(n, "count", ONE, 0.0),
        Result(R, s0 / power(m, n)),
        elements=(x,),
    ),
)

CASES = {
    "attention": attention,
    "by logsumexp": by_logsumexp,
    "causal": causal,
    "variance": variance,
    "weighted mean": weighted_mean,
    "entropy": entropy,
    "covariance": covariance,
    "softmax variance": softmax_variance,
    "argmax": argmax,
    "cosine": cosine,
    "divergence": divergence,
    "softmin": softmin,
    "focal": focal,
    "product": product,
}
