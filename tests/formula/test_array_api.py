"""Every function means what the Array API says: shapes, types and values against array-api-strict.

What the standard leaves open (integers that overflow, zero divisors, mixed kinds) is not compared.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import tilewright.math as tm
from tests.formula.common import run

xp = pytest.importorskip("array_api_strict")

FLOATS = ("float32", "float64")
SIGNED = ("int8", "int16", "int32", "int64")
INTS = (*SIGNED, "uint8", "uint16", "uint32", "uint64")
NUMERIC = (*FLOATS, *INTS)
ALL = (*NUMERIC, "bool")
SPECIAL = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.0, -2.5, 3.5, 1e-8, 1e-30, 1e8,
    -1e18, 3e25, 87.5,
]  # fmt: skip
ULPS = {"float32": 8 * 2.0**-23, "float64": 8 * 2.0**-52}

# of the standard, and not here
LEFT_OUT = {
    "nonzero unique_all unique_counts unique_inverse unique_values": "data decide their shapes",
    "asarray from_dlpack empty empty_like": "a formula's arrays are arguments and definitions",
    "conj imag real complex64 complex128": "no complex numbers",
    "nextafter": "no target has it",
    "finfo iinfo isdtype": "questions about types, which NumPy answers",
}
MACHINERY = (
    "ArrayAPIStrictFlags Device ModuleType get_array_api_strict_flags "
    "reset_array_api_strict_flags set_array_api_strict_flags"
)


def test_nothing_else_is_left_out():
    theirs = {name for name in dir(xp) if not name.startswith("_")}
    known = " ".join([*LEFT_OUT, MACHINERY]).split()
    assert theirs - set(tm.__all__) == set(known)
    for name in " ".join(LEFT_OUT).split():
        assert name in tm.__doc__, name


def data(dtype, shape=None, low=-100, seed=0):
    """Random numbers; of floats without a shape, the special ones too."""
    rng = np.random.default_rng(seed)
    kind = np.dtype(dtype)
    if kind.kind == "b":
        return rng.random(shape or 9) < 0.5
    if kind.kind == "f":
        found = rng.normal(size=shape or 24) * 3
        return (found if shape else np.concatenate([found, SPECIAL])).astype(kind)
    low = 0 if kind.kind == "u" else low
    return rng.integers(low, 100, shape or 24).astype(kind)


def check(got, want, ulps=1.0):
    want = np.asarray(want)
    assert got.shape == want.shape
    assert got.dtype == want.dtype
    if want.dtype.kind != "f":
        np.testing.assert_array_equal(got, want)
        return
    tiny = 1e-37 if want.dtype == np.float32 else 1e-300
    rtol = ulps * ULPS[want.dtype.name]
    np.testing.assert_allclose(got, want, rtol=rtol, atol=tiny, equal_nan=True)


def compare(function, *arrays, ulps=1.0):
    """`function(module, *arrays)` of both."""
    with np.errstate(all="ignore"):
        want = function(xp, *(xp.asarray(x) for x in arrays))
    got = run(lambda *values: function(tm, *values), *arrays)
    for ours, theirs in zip(
        got if isinstance(got, tuple) else [got],
        want if isinstance(want, (tuple, list)) else [want],
        strict=True,
    ):
        check(ours, theirs, ulps)


# ── element by element ───────────────────────────────────────────────────────────────────────

UNARY = {
    "abs negative": (*FLOATS, *SIGNED),
    "positive square": NUMERIC,
    "ceil floor round trunc sign isfinite isinf isnan": NUMERIC,
    "acos acosh asin asinh atan atanh cos cosh exp expm1 log log1p log2 log10 reciprocal sin sinh "
    "sqrt tan tanh signbit": FLOATS,
    "bitwise_invert": (*INTS, "bool"),
    "logical_not": ("bool",),
}
BINARY = {
    "add subtract multiply maximum minimum": NUMERIC,
    "divide atan2 copysign hypot logaddexp": FLOATS,
    "floor_divide remainder": NUMERIC,
    "pow": FLOATS,
    "equal not_equal": ALL,
    "less less_equal greater greater_equal": NUMERIC,
    "bitwise_and bitwise_or bitwise_xor": (*INTS, "bool"),
    "logical_and logical_or logical_xor": ("bool",),
}


def cases(table):
    return [
        (name, kind) for names, kinds in table.items() for name in names.split() for kind in kinds
    ]


@pytest.mark.parametrize(("name", "dtype"), cases(UNARY))
def test_unary(name, dtype):
    x = data(dtype)
    compare(lambda m, v: getattr(m, name)(v), x)


def pairs(dtype):
    """All pairs of special values, and random ones."""
    if dtype not in FLOATS:
        return data(dtype), data(dtype, seed=1)
    special = np.array(list(itertools.product(SPECIAL, SPECIAL)), dtype).T
    return tuple(np.concatenate([s, data(dtype, 40, seed=n)]) for n, s in enumerate(special))


@pytest.mark.parametrize(("name", "dtype"), cases(BINARY))
def test_binary(name, dtype):
    a, b = pairs(dtype)
    if name in ("floor_divide", "remainder") and dtype in INTS:
        b = np.where(b == 0, b.dtype.type(1), b)
    if name == "floor_divide" and dtype in FLOATS:
        # the standard lets an infinity by a number be NaN or an infinity, and so a large quotient
        with np.errstate(all="ignore"):
            small = ~(np.abs(a / b) > 1e6)
        keep = np.isfinite(a) & ((b != 0) | np.isnan(b)) & small
        a, b = a[keep], b[keep]
    compare(lambda m, v, w: getattr(m, name)(v, w), a, b)


@pytest.mark.parametrize("dtype", INTS)
def test_powers_of_integers(dtype):
    base, exponent = data(dtype) % 5, data(dtype, seed=1) % 4
    compare(lambda m, v, w: m.pow(v, w), base.astype(dtype), exponent.astype(dtype))


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("name", ["bitwise_left_shift", "bitwise_right_shift"])
def test_shifts(name, dtype):
    counts = data("uint8", seed=1) % 6
    compare(lambda m, v, w: getattr(m, name)(v, w), data(dtype), counts.astype(dtype))


def test_zeros_keep_their_signs():
    zeros = np.array([0.0, -0.0], np.float32)
    for name in "sin tan asin atan sinh tanh asinh atanh expm1 log1p sqrt ceil floor trunc".split():
        found = run(getattr(tm, name), zeros)
        assert np.signbit(found).tolist() == [False, True], name


@pytest.mark.parametrize("a", [*NUMERIC])
def test_promotion(a):
    for b in NUMERIC:
        mixed = (a in FLOATS) != (b in FLOATS)
        if mixed or ("uint64" in (a, b) and {a, b} & set(SIGNED)):
            continue
        want = np.asarray(xp.zeros(1, dtype=xp.result_type(getattr(xp, a), getattr(xp, b)))).dtype
        assert tm.result_type(a, b).numpy == want
        assert tm.can_cast(a, b) == xp.can_cast(getattr(xp, a), getattr(xp, b)), (a, b)
        compare(lambda m, v, w: v + w, data(a, (3,)), data(b, (3,)))


OPERATORS = {
    "add": lambda a, b: a + b,
    "radd": lambda a, b: 3 + a,
    "rsub": lambda a, b: 3 - a,
    "mul": lambda a, b: a * b * 2,
    "rmul": lambda a, b: 2 * a,
    "lt": lambda a, b: a < 2,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != 5,
    "gt": lambda a, b: a < 5,
    "ge": lambda a, b: a >= b,
    "pos": lambda a, b: +a,
    "pow": lambda a, b: a**2,
}
ON_FLOATS = {
    "truediv": lambda a, b: a / b,
    "rtruediv": lambda a, b: 1 / a,
    "neg": lambda a, b: -abs(a),
    "rpow": lambda a, b: 2**b,
    "floordiv": lambda a, b: a // 2.0,
    "mod": lambda a, b: a % 1.5,
    "matmul": lambda a, b: a @ b,
}
ON_INTS = {
    "and": lambda a, b: a & b,
    "ror": lambda a, b: 3 | a,
    "xor": lambda a, b: a ^ b,
    "invert": lambda a, b: ~a,
    "lshift": lambda a, b: a << 2,
    "rshift": lambda a, b: a >> 1,
    "mod": lambda a, b: a % 7,
    "floordiv": lambda a, b: a // 3,
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "uint8"])
def test_operators(dtype):
    table = {**OPERATORS, **(ON_FLOATS if dtype in FLOATS else ON_INTS)}
    x, y = data(dtype, (7,), low=0), data(dtype, (7,), low=0, seed=3)
    for name, op in table.items():
        if not (dtype == "uint8" and name == "rsub"):
            compare(lambda m, a, b: op(a, b), x, y, ulps=4)


def test_clip():
    x, low = data("float32"), data("float32", (42,), seed=2)
    compare(lambda m, v: m.clip(v, -1.0, 2.0), x)
    compare(lambda m, v: m.clip(v, max=0.5), x)
    compare(lambda m, v, w: m.clip(v, w, w + 1.0), x, low)
    compare(lambda m, v: m.clip(v, -3, 20), data("int8"))


@pytest.mark.parametrize("dtype", ALL)
def test_where(dtype):
    condition = data("bool", (4, 1))
    compare(lambda m, c, a, b: m.where(c, a, b), condition, data(dtype, (3,)), data(dtype, (4, 3)))


# ── folds ────────────────────────────────────────────────────────────────────────────────────

AXES = [None, 0, -1, (0, 2), (0, 1, 2)]


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std"])
def test_folds(name, dtype):
    if name in ("mean", "var", "std") and dtype not in FLOATS:
        return
    x = data(dtype, (2, 3, 4), low=-3)
    for axis, keep in itertools.product(AXES, [False, True]):
        compare(lambda m, v: getattr(m, name)(v, axis=axis, keepdims=keep), x, ulps=4)


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean"])
def test_folds_of_special_values(name):
    rows = np.array(list(itertools.product([np.nan, np.inf, -np.inf, 1.0], repeat=3)), np.float32)
    compare(lambda m, v: getattr(m, name)(v, axis=1), rows)


def test_folds_of_nothing():
    x = np.zeros((3, 0), np.float32)
    for name in ("sum", "prod", "any", "all"):
        compare(lambda m, v: getattr(m, name)(v, axis=1), x)
    compare(lambda m, v: m.sum(v), np.float32(3.0))


def test_types_of_folds():
    x = data("int8", (4, 5))
    compare(lambda m, v: m.sum(v, axis=0, dtype=xp.int32 if m is xp else "int32"), x)
    compare(lambda m, v: m.var(v, correction=1.0), data("float64", (9,)), ulps=4)


@pytest.mark.parametrize("dtype", ALL)
def test_questions(dtype):
    x = data(dtype, (2, 3, 4), low=-1)
    for axis, keep in itertools.product(AXES, [False, True]):
        for name in ("any", "all", "count_nonzero"):
            compare(lambda m, v: getattr(m, name)(v, axis=axis, keepdims=keep), x)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_places(dtype):
    x = data(dtype, (2, 3, 4), low=-2)
    for axis, keep in itertools.product([None, 0, -1], [False, True]):
        for name in ("argmax", "argmin"):
            compare(lambda m, v: getattr(m, name)(v, axis=axis, keepdims=keep), x)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_sorting(dtype):
    x = data(dtype, (2, 9, 3), low=-2)  # with equal ones
    for axis, descending in itertools.product([0, 1, -1], [False, True]):
        for name in ("sort", "argsort"):
            compare(lambda m, v: getattr(m, name)(v, axis=axis, descending=descending), x)
    keys, order = np.sort(x[0, :, 0]), np.argsort(x[1, :, 1])
    for side in ("left", "right"):
        compare(lambda m, v, w: m.searchsorted(v, w, side=side), keys, x[:1])
        compare(lambda m, v, w, o: m.searchsorted(v, w, side=side, sorter=o),
                x[1, :, 1], x[0, :2], order)  # fmt: skip


def test_sorting_of_special_values():
    x = np.float32([[2, np.nan, -np.inf, 0, np.nan, np.inf, -0.0, 2], [1] * 8])
    for part in (np.s_[:, :], np.s_[:, :1], np.s_[:0, :]):
        compare(lambda m, v: m.sort(v[part], axis=1), x)
        compare(lambda m, v: m.argsort(v[part], axis=1), x)
    keys = np.float32([-np.inf, 0, 2, np.inf, np.nan, np.nan])
    for side in ("left", "right"):
        compare(lambda m, v, w: m.searchsorted(v, w, side=side), keys, x[0])


@pytest.mark.parametrize("dtype", NUMERIC)
@pytest.mark.parametrize("name", ["cumulative_sum", "cumulative_prod"])
def test_scans(name, dtype):
    x = data(dtype, (3, 5), low=-2)
    for axis, initial in itertools.product([0, -1], [False, True]):
        compare(lambda m, v: getattr(m, name)(v, axis=axis, include_initial=initial), x, ulps=4)
    compare(lambda m, v: getattr(m, name)(v), x[0], ulps=4)


# ── shapes ───────────────────────────────────────────────────────────────────────────────────

X, Y = data("float32", (2, 3, 4)), data("float32", (2, 3, 4), seed=1)
SHAPES = {
    "broadcast_to": lambda m, x, y: m.broadcast_to(x[:, :1, :], (5, 2, 3, 4)),
    "broadcast_arrays": lambda m, x, y: m.broadcast_arrays(x[:, :1, :], y[0, ...]),
    "concat": lambda m, x, y: m.concat([x, y, x[:, :1, :]], axis=1),
    "concat flat": lambda m, x, y: m.concat([x, y], axis=None),
    "diff": lambda m, x, y: m.diff(x, axis=1, n=2),
    "diff longer": lambda m, x, y: m.diff(x, axis=1, prepend=y[:, :1, :], append=y[:, -2:, :]),
    "expand_dims": lambda m, x, y: m.expand_dims(x, axis=-2),
    "flip": lambda m, x, y: m.flip(x, axis=(0, 2)),
    "flip all": lambda m, x, y: m.flip(x),
    "matrix_transpose": lambda m, x, y: m.matrix_transpose(x) + y.mT,
    "T": lambda m, x, y: x[0, :, :].T,
    "meshgrid": lambda m, x, y: m.meshgrid(x[0, 0, :], y[0, :, 0]),
    "meshgrid ij": lambda m, x, y: m.meshgrid(x[0, 0, :], y[0, :, 0], x[:, 0, 0], indexing="ij"),
    "moveaxis": lambda m, x, y: m.moveaxis(x, 0, -1),
    "moveaxis 2": lambda m, x, y: m.moveaxis(x, (0, 1), (2, 0)),
    "permute_dims": lambda m, x, y: m.permute_dims(x, (2, 0, 1)),
    "repeat": lambda m, x, y: m.repeat(x, 3, axis=1),
    "repeat flat": lambda m, x, y: m.repeat(x, 2),
    "reshape split": lambda m, x, y: m.reshape(x, (2, 3, 2, 2)),
    "reshape merge": lambda m, x, y: m.reshape(x, (6, -1)),
    "reshape both": lambda m, x, y: m.reshape(x, (1, 4, 1, 6)),
    "reshape flat": lambda m, x, y: m.reshape(m.matrix_transpose(x), (-1,)),
    "roll": lambda m, x, y: m.roll(x, (1, -5), axis=(0, 2)),
    "roll flat": lambda m, x, y: m.roll(x, 7),
    "squeeze": lambda m, x, y: m.squeeze(x[:, None, :1, :], axis=(1, 2)),
    "stack": lambda m, x, y: m.stack([x, y], axis=-1),
    "tile": lambda m, x, y: m.tile(x, (2, 1, 3, 1)),
    "tile short": lambda m, x, y: m.tile(x, (2,)),
    "tril": lambda m, x, y: m.tril(x, k=1),
    "triu": lambda m, x, y: m.triu(x, k=-1),
    "unstack": lambda m, x, y: m.unstack(x, axis=1),
    "zeros_like": lambda m, x, y: m.zeros_like(x) + m.ones_like(y) + m.full_like(x, 2.5),
    "int": lambda m, x, y: x[1, -1, 0],
    "slices": lambda m, x, y: x[::-1, 1:, 3:0:-2],
    "ellipsis": lambda m, x, y: x[..., 1] + y[0, ..., 2],
    "newaxis": lambda m, x, y: x[:, m.newaxis, 1, :, None],
    "empty": lambda m, x, y: x[:, 3:, :],
}


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name):
    compare(lambda m, x, y: SHAPES[name](m, x, y), X, Y)


@pytest.mark.parametrize("dtype", NUMERIC)
def test_isin(dtype):
    x = data(dtype, (5, 7), low=-3)
    among = x[:2, 1:3].copy()
    for invert in (False, True):  # which array-api-strict forgets
        found = run(lambda v, w: tm.isin(v, w, invert=invert), x, among)
        np.testing.assert_array_equal(found, np.isin(x, among, invert=invert))


def test_gathers():
    i = np.array([[2, 0], [1, 1]])
    compare(lambda m, x, k: m.take(x, k[0, :], axis=1), X, i)
    compare(lambda m, x, k: m.take_along_axis(x, k[:, None, :], axis=2), X, i)
    compare(lambda m, x, k: x[k % 2, k, k], X, i)
    np.testing.assert_array_equal(run(lambda x, k: x[:, k, 0], X, i), X[:, i, 0])
    np.testing.assert_array_equal(run(lambda x, k: x[..., k], X, i), X[..., i])
    np.testing.assert_array_equal(run(lambda x, k: x[k[0] % 2, k], X, i), X[i[0] % 2, i])


@pytest.mark.parametrize("dtype", NUMERIC)
def test_creation(dtype):
    of = {xp: getattr(xp, dtype), tm: dtype}
    one = np.ones((3, 1), dtype)
    made = {
        "zeros": lambda m: m.zeros((3, 2), dtype=of[m]),
        "ones": lambda m: m.ones(2, dtype=of[m]),
        "full": lambda m: m.full((2,), 7, dtype=of[m]),
        "eye": lambda m: m.eye(3, 4, k=1, dtype=of[m]),
        "arange": lambda m: m.arange(2, 20, 3, dtype=of[m]),
        "arange down": lambda m: m.arange(9, 2, -2, dtype=of[m]),
    }
    for name, make in made.items():
        if not (name == "arange down" and dtype.startswith("u")):
            compare(lambda m, v: make(m), one)
    if dtype in FLOATS:
        compare(lambda m, v: m.linspace(-1.0, 2.0, 7, dtype=of[m]), one, ulps=2)
        compare(lambda m, v: m.linspace(0, 1, 5, dtype=of[m], endpoint=False), one, ulps=2)


def test_defaults_of_creation():
    one = np.ones(3, np.float32)
    assert run(lambda v: tm.arange(5), one).dtype == np.int64
    assert run(lambda v: tm.zeros(5), one).dtype == np.float32
    assert run(lambda v: tm.full(5, True), one).dtype == bool


@pytest.mark.parametrize("source", ALL)
def test_astype(source):
    for target in ALL:
        x = data(source, (9,), low=0) if source not in FLOATS else np.float32([0, -0.0, 1.7, 90.2])
        compare(
            lambda m, v: m.astype(v, getattr(xp, target) if m is xp else target), x.astype(source)
        )


# ── products ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("dtype", ["float32", "float64", "int8", "int32", "uint8"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((3, 4), (4, 5)), ((4,), (4, 5)), ((3, 4), (4,)), ((4,), (4,)), ((2, 3, 4), (4, 5)),
        ((2, 1, 3, 4), (6, 4, 2)), ((1, 1), (1, 1)), ((3, 0), (0, 2)),
    ],
)  # fmt: skip
def test_matmul(a, b, dtype):
    x, y = data(dtype, a, low=-5), data(dtype, b, low=-5, seed=1)
    compare(lambda m, v, w: m.matmul(v, w), x, y, ulps=64)


def test_products():
    x, y = data("float64", (3, 4)), data("float64", (4, 3), seed=1)
    compare(lambda m, v, w: m.tensordot(v, w, axes=1), x, y, ulps=64)
    compare(lambda m, v, w: m.tensordot(v, w), x, y.T.copy(), ulps=64)
    compare(lambda m, v, w: m.tensordot(v, w, axes=((1, 0), (0, 1))), x, y, ulps=64)
    compare(lambda m, v, w: m.tensordot(v, w, axes=0), x, y)
    compare(lambda m, v, w: m.vecdot(v, m.matrix_transpose(w)), x, y, ulps=64)
    compare(lambda m, v, w: m.vecdot(v, w[:, :1], axis=-2), x, x, ulps=64)


# ── views of views ───────────────────────────────────────────────────────────────────────────


def some_view(rng, shape):
    """A random view that fits `shape`."""
    ndim = len(shape)
    order = tuple(int(d) for d in rng.permutation(ndim))
    axis = int(rng.integers(ndim))
    cut = tuple(
        slice(*sorted(rng.integers(0, n + 1, 2)), int(rng.integers(1, 3))) if n > 3 else slice(None)
        for n in (int(n) for n in shape)
    )
    reverse = (*[slice(None)] * axis, slice(None, None, -1), ...)
    size = int(np.prod(shape))
    half = (2, -1) if size and size % 2 == 0 else (-1,)
    return [
        lambda m, x: m.permute_dims(x, order),
        lambda m, x: x[cut],
        lambda m, x: x[reverse],
        lambda m, x: m.reshape(x, half),
        lambda m, x: m.reshape(x, (*shape[:axis], 1, *shape[axis:])),
        lambda m, x: m.roll(x, 2, axis=axis),
        lambda m, x: m.repeat(x, 2, axis=axis) if size < 60 else x,
        lambda m, x: m.tile(x, (2,)) if size < 60 else x,
        lambda m, x: m.expand_dims(x, axis=axis),
        lambda m, x: m.broadcast_to(x, (2, *shape)) if size < 60 else x,
        lambda m, x: m.flip(x, axis=axis),
        lambda m, x: m.sum(x, axis=axis, keepdims=True) if ndim > 2 else x,
        lambda m, x: m.concat([x, x + x], axis=axis) if size < 60 else x,
    ]


@pytest.mark.parametrize("seed", range(40))
def test_views_of_views(seed):
    rng = np.random.default_rng(seed)
    x = xp.reshape(xp.arange(48, dtype=xp.int64), (4, 2, 6))
    chain, value = [], x
    for _ in range(7):
        views = some_view(rng, value.shape)
        chain.append(views[rng.integers(len(views))])
        value = chain[-1](xp, value)

    def all_of(m, v):
        for each in chain:
            v = each(m, v)
        return v

    compare(all_of, np.asarray(x))
