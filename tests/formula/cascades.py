"""Formulas of which the compiler knows none."""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.formula.streams.stream import Level
from tilewright.ir.arith import Bin, Call, Expr, Var, cast, compare, const, select
from tilewright.ir.dtype import DTYPES, INT32

REAL = DTYPES["float64"]
INF = float("inf")


def real(names):
    return [Var(name, REAL) for name in names.split()]


def function(name):
    return lambda *args: Call(name, args, REAL)


exp, exp2, log, log2, sqrt, rsqrt, tanh, sigmoid, rint, floor, cos, sin, pow_, log1p = map(
    function, "exp exp2 log log2 sqrt rsqrt tanh sigmoid round floor cos sin pow log1p".split()
)


def relu(a):
    return Bin("max", a, const(0, REAL))


def where(condition, a, b):
    return select(condition, a, const(b, REAL) if isinstance(b, (int, float)) else b)


def eq(a, b):
    return compare("==", a, b)


def half(a):
    return cast(cast(a, DTYPES["float16"]), REAL)


x, y, z, v, w, k, g = real("x y z v w k g")
m, l, S, A, B, R, o, mu, mx, my, lx, ly, T = real("m l S A B R o mu mx my lx ly T")
q, scale, N = real("q scale N")
j, t, n0, i = (Var(name, INT32) for name in "j t n0 i".split())

ELEMENTS = {x, y, z, v, w, k, g}
CONSTANTS = {q: 0.7, scale: 1.25, t: 11, n0: 17}

MILD = ("random", "ascending")
ALL = ("random", "offset", "ascending")
MASKED = (*ALL, "masked")


@dataclass(frozen=True)
class Case:
    """`data`: what it is run on. `refused`: a part of the factor it is refused for."""

    name: str
    levels: tuple[Level, ...]
    data: tuple[str, ...] = ALL
    refused: str = ""
    extent: Expr = N
    positive: tuple[Var, ...] = ()
    state: str = ""  # folds, centers and sums, as far as they are worth fixing


CASES: list[Case] = []


def case(name, *levels, **options):
    CASES.append(Case(name, tuple(Level(*level) for level in levels), **options))


MAX = (m, "max", x)
SUM = (l, "sum", exp(x - m))
p = exp(x - m) / l
masked = where(j < n0, x, -INF)
soft = 30.0 * tanh(x / 30.0)

case("softmax denominator", MAX, SUM, data=MASKED, state="1 1 1")
case("attention", MAX, SUM, (o, "sum", p * v), data=MASKED, state="1 1 2")
case("attention by quotients", MAX, (l, "sum", exp(x) / exp(m)),
     (o, "sum", v * exp(x) / (exp(m) * l)), data=MILD, state="1 1 2")  # fmt: skip
case("attention of scaled scores", (m, "max", q * k / 8.0), (l, "sum", exp(q * k / 8.0 - m)),
     (o, "sum", exp(q * k / 8.0 - m) / l * v), state="1 1 2")  # fmt: skip
case("attention, scaled later", MAX, (l, "sum", exp((x - m) * 0.125)),
     (o, "sum", exp((x - m) * 0.125) / l * v), data=MASKED, state="1 1 2")  # fmt: skip
case("attention, scaled by a variable", MAX, (l, "sum", exp((x - m) * scale)),
     positive=(scale,), data=MASKED, state="1 1 1")  # fmt: skip
case("attention with a bias", (m, "max", x * q + y), (l, "sum", exp(x * q + y - m)),
     (R, "sum", exp(x * q + y - m) * (x * q + y - m) / l), state="1 1 2")  # fmt: skip
case("masked attention", (m, "max", masked), (l, "sum", exp(masked - m)),
     (o, "sum", exp(masked - m) / l * v), data=MASKED, state="1 1 2")  # fmt: skip
case("attention that masks weights", (m, "max", masked), (l, "sum", where(j < n0, exp(x - m), 0)),
     (o, "sum", where(j < n0, exp(x - m), 0) / l * v), state="1 1 2")  # fmt: skip
case("soft-capped attention", (m, "max", soft), (l, "sum", exp(soft - m)),
     (o, "sum", exp(soft - m) / l * v), state="1 1 2")  # fmt: skip
case("softmin attention", (m, "min", x), (l, "sum", exp(m - x)),
     (o, "sum", exp(m - x) / l * v), state="1 1 2")  # fmt: skip
case("sigmoid attention", (o, "sum", sigmoid(x) * v), state="1 0 0")
case("gate by the sum", (S, "sum", exp(-x)), (o, "sum", sigmoid(y) * v / (S + 1.0)), data=MILD)
case("linear attention", (l, "sum", relu(q) * relu(k)), (o, "sum", relu(q) * relu(k) / l * v),
     state="2 0 0")  # fmt: skip
case("differential attention", (mx, "max", x), (my, "max", y), (lx, "sum", exp(x - mx)),
     (ly, "sum", exp(y - my)), (o, "sum", (exp(x - mx) / lx - q * exp(y - my) / ly) * v),
     state="2 2 4")  # fmt: skip
case("log-softmax, summed", MAX, SUM, (R, "sum", x - m - log(l)))
case("variance", (S, "sum", x), (R, "sum", (x - S / N) ** 2), state="2 1 1")
case("variance by its mean", (mu, "sum", x / N), (R, "sum", (x - mu) * (x - mu) / N), state="2 1 1")
case("variance of 40", (S, "sum", x), (R, "sum", (x - S / 40.0) ** 2), extent=const(40),
     state="2 1 1")  # fmt: skip
case("variance from moments", (S, "sum", x), (A, "sum", x * x), (R, "sum", (A / N - (S / N) ** 2)))
case("deviations add up to nothing", (S, "sum", x), (R, "sum", x - S / N))
case("third central moment", (S, "sum", x), (R, "sum", (x - S / N) ** 3), state="2 1 2")
case("fourth central moment", (S, "sum", x), (R, "sum", (x - S / N) ** 4), state="2 1 3")
case("covariance", (A, "sum", x), (B, "sum", y), (R, "sum", (x - A / N) * (y - B / N)),
     state="3 2 1")  # fmt: skip
case("weighted mean", MAX, (A, "sum", exp(x - m) * v), SUM, (R, "sum", exp(x - m) * v * (A / l)))
case("expected score", MAX, SUM, (R, "sum", p * x))
case("weighted variance", MAX, SUM, (mu, "sum", p * v), (R, "sum", p * (v - mu) ** 2),
     data=MASKED, state="1 2 3")  # fmt: skip
case("variance of scores", MAX, SUM, (mu, "sum", p * x), (R, "sum", p * (x - mu) ** 2))
case("cross-entropy", MAX, SUM, (R, "sum", where(eq(j, t), -(x - m - log(l)), 0)))
case("label-smoothed cross-entropy", MAX, SUM,
     (R, "sum", -(where(eq(j, t), const(0.9, REAL), 0) + 0.1 / N) * (x - m - log(l))))  # fmt: skip
case("focal loss", MAX, SUM, (R, "sum", where(eq(j, t), (1.0 - p) ** 2 * -log(p), 0)))
case("entropy", MAX, SUM, (R, "sum", -p * log(p)), data=MASKED, state="1 1 2")
case("entropy in bits", MAX, SUM, (R, "sum", -p * log2(p)), data=MASKED, state="1 1 2")
case("Kullback-Leibler", (mx, "max", x), (my, "max", y), (lx, "sum", exp(x - mx)),
     (ly, "sum", exp(y - my)),
     (R, "sum", exp(x - mx) / lx * (log(exp(x - mx) / lx) - log(exp(y - my) / ly))))  # fmt: skip
case("Rényi entropy", MAX, SUM, (R, "sum", p**2), data=MASKED, state="1 1 2")
case("Tsallis entropy", MAX, SUM, (R, "sum", pow_(p, const(1.5, REAL))), data=MASKED, state="1 1 2")
case("root mean square, then a product", (S, "sum", x**2),
     (R, "sum", x * rsqrt(S / N + 1e-6) * w), state="3 0 0")  # fmt: skip
case("layer norm, then a product", (S, "sum", x), (A, "sum", (x - S / N) ** 2),
     (R, "sum", (x - S / N) * rsqrt(A / N + 1e-5) * w), state="3 1 2")  # fmt: skip
case("layer norm with a bias, squared", (S, "sum", x), (A, "sum", (x - S / N) ** 2),
     (R, "sum", ((x - S / N) * rsqrt(A / N + 1e-5) * w + q) ** 2), state="4 1 4")  # fmt: skip
case("cosine similarity", (A, "sum", x**2), (B, "sum", y**2),
     (R, "sum", x / sqrt(A) * y / sqrt(B)), state="3 0 0")  # fmt: skip
case("normalized by its maximum", (m, "max", abs(x)), (R, "sum", x / m), state="2 0 0")
case("relu of a normalized row", (m, "max", abs(x)), (R, "sum", relu(x / m) * w), state="2 0 0")
case("distance from a constant, normalized", (S, "sum", abs(x)), (R, "sum", (x - q) ** 2 / S),
     state="2 0 0")  # fmt: skip
case("greatest probability", MAX, SUM, (R, "max", p), (i, "argmax", p), data=MASKED)
case("Gumbel", MAX, SUM, (i, "argmax", log(p) + g), (R, "max", log(p) + g))
case("greatest deviation", (S, "sum", x), (R, "max", x - S / N), (i, "argmin", x - S / N))
case("greatest absolute deviation", (S, "sum", x), (R, "max", abs(x - S / N)))
case("capped probability", MAX, SUM, (R, "max", Bin("min", p, const(0.25, REAL))), data=MASKED)
case("count, then a mean", (i, "sum", select(j < t, const(1), const(0))), (R, "sum", x / i))
case("maximum times a sum", (S, "sum", x), (R, "max", x * S), (i, "argmax", x * S), data=MILD)
case("maximum of a step", (S, "sum", x), (R, "max", floor(x - S)))
case("maximum of tanh", (S, "sum", x**2), (R, "max", tanh(x / S)), (i, "argmax", tanh(x / S)))
case("count of maxima", MAX, (R, "sum", where(eq(x, m), const(1, REAL), 0)))
case("waves around the mean", (S, "sum", x), (R, "sum", cos(x - S / N) + sin(x - S / N)))
case("product of a normalized row", (m, "max", abs(x)), (R, "prod", x / m))
case("product of probabilities", MAX, SUM, (R, "prod", exp((x - m) / 40.0) * l), data=MILD)
case("likelihood", MAX, SUM, (R, "prod", exp((x - m) / 64.0) / pow_(l, const(1 / 64, REAL))))
case("exp around the mean", (S, "sum", x), (R, "sum", exp(x - S / N)))
case("exp without a maximum", (l, "sum", exp(x)), (R, "sum", exp(x) / l * v), data=MILD)
case("log1p of a sum", (S, "sum", x**2), (R, "sum", log1p(S) * x))
case("rounded values", MAX, SUM, (o, "sum", p * half(v)), data=MASKED)

case("quantized by the maximum", (m, "max", abs(x)), (R, "sum", rint(x * 127.0 / m) * w),
     refused="round(127.0 * x / m)")  # fmt: skip
case("rounded weights", MAX, SUM, (o, "sum", half(p) * v), refused="float16(exp(x - m) / l)")
case("temperature from a sum", (T, "sum", x**2), (m, "max", x / T), (l, "sum", exp(x / T - m)),
     refused="exp(x / T)")  # fmt: skip
case("mean absolute deviation", (S, "sum", x), (R, "sum", abs(x - S / N)), refused="abs(x - S / N)")
case("count of the likely", MAX, SUM, (R, "sum", where(p > 0.1, const(1, REAL), 0)), refused="0.1")
case("softmax twice", MAX, SUM, (R, "sum", exp(p)), refused="exp(exp(x - m) / l)")
case("sigmoid of deviations", (S, "sum", x), (R, "sum", sigmoid(x - S / N)),
     refused="sigmoid(x - S / N)")  # fmt: skip
case("maximum of two running scales", (A, "sum", x), (B, "sum", y), (R, "max", x * A + y * B),
     refused="A * x + B * y")  # fmt: skip
case("value at the maximum's place", (i, "argmax", x), (R, "sum", where(eq(j, i), v, 0)),
     refused="j == i")  # fmt: skip
