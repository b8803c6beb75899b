"""Functions over symbolic arrays: what they become, what it means, and what is refused."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tests.formula.common import run
from tilewright.formula.front.trace import trace
from tilewright.formula.meaning import evaluate
from tilewright.ir.dtype import DTYPES, FLOAT32
from tilewright.ir.formula import tensor
from tilewright.support.errors import CompileError

RNG = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    return RNG.normal(size=shape).astype(dtype)


def near(got, want, rtol=1e-5):
    np.testing.assert_allclose(got, want, rtol=rtol, atol=1e-5)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


# ── formulas that people write ───────────────────────────────────────────────────────────────


def attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    s = tm.where(j <= i, s, -tm.inf)
    return tm.softmax(s, axis=-1) @ v


def test_attention():
    q, k, v = normal(3, 5, 8), normal(3, 5, 8), normal(3, 5, 8)
    s = q @ k.swapaxes(1, 2) / np.sqrt(8)
    s = np.where(np.tril(np.ones((5, 5), bool)), s, -np.inf)
    near(run(attention, q, k, v), softmax(s) @ v)


def test_attention_reads():
    """The names are the user's, the product sums over one axis, and only the result is rounded."""
    formula = trace(attention, [(name, (2, 4, 8), "bfloat16") for name in "qkv"])
    assert [a.name for a in formula.arrays] == [
        "matmul", "s", "i", "j", "less_equal", "s1", "max", "exp", "sum", "softmax", "matmul1",
        "out",
    ]  # fmt: skip
    assert [a.name for a in formula.arrays if a.monoid] == ["matmul", "max", "sum", "matmul1"]
    product = formula.arrays[0]
    assert str(product) == (
        "matmul[i1 < 2, j1 < 4, k1 < 4]: float32 = "
        "sum{l < 8} float32(q[i1, j1, l]) * float32(k[i1, k1, l])"
    )
    assert {str(a.buffer.dtype) for a in formula.arrays[:-1]} == {"float32", "int32", "bool"}
    assert str(formula.outputs[0].dtype) == "bfloat16"


def layer_norm(x, weight, bias):
    center = tm.mean(x, axis=-1, keepdims=True)
    spread = tm.var(x, axis=-1, keepdims=True)
    return (x - center) * tm.rsqrt(spread + 1e-5) * weight + bias


def test_layer_norm():
    x, w, b = normal(4, 16), normal(16), normal(16)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5) * w + b
    near(run(layer_norm, x, w, b), want)
    shapes = [("x", (4, 16), "float32"), ("weight", (16,), "float32"), ("bias", (16,), "float32")]
    formula = trace(layer_norm, shapes)
    assert [axis.extent for a in formula.arrays for axis in a.axes].count(1) == 0
    assert {"center", "spread"} <= {a.name for a in formula.arrays}


def cross_entropy(logits, labels):
    rows = tm.arange(logits.shape[0])
    return tm.mean(tm.logsumexp(logits, axis=-1) - logits[rows, labels])


def test_cross_entropy():
    x, labels = normal(6, 11), RNG.integers(0, 11, 6)
    want = np.mean(-np.log(softmax(x)[np.arange(6), labels]))
    near(run(cross_entropy, x, labels), want)


def conv(X, Wt):
    N, C, H, W = X.shape
    return tm.array(
        (N, Wt.shape[0], H, W),
        lambda n, o, y, x: tm.sum(
            (C, 3, 3), lambda c, r, s: X[n, c, y + r - 1, x + s - 1] * Wt[o, c, r, s]
        ),
    )


def test_convolution():
    x, w = normal(2, 3, 6, 5), normal(4, 3, 3, 3)
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    near(run(conv, x, w), np.einsum("nchwrs,ocrs->nohw", windows, w))
    formula = trace(conv, [("X", x.shape, "float32"), ("Wt", w.shape, "float32")])
    assert [str(a) for a in formula.arrays] == [
        "out[n < 2, o < 4, y < 6, x < 5]: float32 = sum{c < 3, r < 3, s < 3} "
        "X[n, c, y + r - 1, x + s - 1] * Wt[o, c, r, s]"
    ]


def test_arrays_inside_comprehensions():
    """What depends on the indices becomes an array over them too."""
    x, table = normal(4, 6), RNG.integers(0, 4, 5)

    def pooled(v, rows):
        return tm.array((5,), lambda n: tm.max(tm.exp(v[rows[n]]) - n) * 2)

    near(run(pooled, x, table), (np.exp(x[table]) - np.arange(5)[:, None]).max(1) * 2)

    def shifted(v):
        parts = [tm.array((3, 4), lambda *at, k=k: v[at[0], at[1] + k]) for k in range(2)]
        return parts[0] + parts[1]

    near(run(shifted, x), x[:3, :4] + x[:3, 1:5])

    def rows_of(v):
        return tm.array((3,), lambda n: v[n + 1, :] * (n + 1))

    near(run(rows_of, x), x[1:] * np.arange(1, 4)[:, None])

    def nested(v):
        return tm.array(
            (4, 2), lambda a, b: tm.sum(tm.array((3,), lambda c: v[a, b + c] * (c + b)))
        )

    want = [[sum(x[a, b + c] * (c + b) for c in range(3)) for b in range(2)] for a in range(4)]
    near(run(nested, x), want)


def test_an_axis_of_one_element_ends():
    x = normal(4)
    found = run(lambda v: tm.array((4, 3), lambda i, j: v[:, None][i, j - 1]), x)
    np.testing.assert_array_equal(found, np.stack([0 * x, x, 0 * x], 1))
    inner = run(lambda v: tm.array((3,), lambda i: tm.sum(v, axis=0, keepdims=True)[i - 1]), x)
    near(inner, [0, x.sum(), 0])


VIEWS = [
    lambda x, m: x[2:6],
    lambda x, m: m.reshape(x, (2, 4))[1],
    lambda x, m: x[::2],
    lambda x, m: m.flip(x)[:4],
]


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_ends_where_it_ends(view):
    """Not where the array ends that it is a view of."""
    x = np.arange(1, 9, dtype=np.float32)
    found = run(lambda v: tm.array((6,), lambda i: view(v, tm)[i - 1]), x)
    assert found.tolist() == [0.0, *view(x, np).tolist(), 0.0]


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "any", "all"])
def test_folds_over_indices(name):
    x = normal(4, 5)
    fold = getattr(tm, name)
    found = run(lambda v: tm.array((4,), lambda i: fold((5,), lambda j: v[i, j] * (j > 0))), x)
    near(found, getattr(np, name)(x * (np.arange(5) > 0), axis=1))


EINSUMS = [
    ("ij,jk->ik", (3, 4), (4, 5)), ("ij,jk", (3, 4), (4, 5)), ("ii->i", (4, 4)), ("ii", (4, 4)),
    ("bij,bkj->bik", (2, 3, 4), (2, 5, 4)), ("...ij,...jk->...ik", (2, 3, 4), (4, 5)),
    ("ij->ji", (3, 4)),
    ("i,j->ij", (3,), (4,)), ("ij,j,jk->ik", (3, 4), (4,), (4, 5)), ("b...->...", (3, 4, 5)),
    ("bhqd,bhkd->bhqk", (2, 2, 3, 4), (2, 2, 5, 4)), ("...i,i", (2, 3), (3,)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes"), [(text, shapes) for text, *shapes in EINSUMS])
def test_einsum(text, shapes):
    arrays = [normal(*shape) for shape in shapes]
    near(run(lambda *values: tm.einsum(text, *values), *arrays), np.einsum(text, *arrays))


def test_activations():
    x = np.linspace(-9, 9, 41, dtype=np.float32)
    erf = np.vectorize(__import__("math").erf)
    want = {
        tm.sigmoid: 1 / (1 + np.exp(-x)),
        tm.relu: np.maximum(x, 0),
        tm.silu: x / (1 + np.exp(-x)),
        tm.gelu: x * 0.5 * (1 + erf(x / np.sqrt(2))),
        tm.softplus: np.log1p(np.exp(x)),
        tm.erf: erf(x),
        tm.log_softmax: np.log(softmax(x.astype(np.float64))),
        tm.logsumexp: np.log(np.exp(x).sum()),
    }
    for function, expected in want.items():
        near(run(function, x), expected)
    inner = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    near(run(lambda v: tm.gelu(v, approximate="tanh"), x), 0.5 * x * (1 + np.tanh(inner)))
    near(run(lambda v: tm.outer(v, v), x), np.outer(x, x))


def test_softmax_does_not_overflow():
    x = np.float32([[1e30, 1e30, 0], [-1e30, -1e30, -np.inf]])
    near(run(tm.softmax, x), [[0.5, 0.5, 0], [0.5, 0.5, 0]])


# ── types ────────────────────────────────────────────────────────────────────────────────────


def test_narrow_floats_are_rounded_at_the_end():
    x = normal(64, dtype=ml_dtypes.bfloat16)
    wide = x.astype(np.float32)
    got = run(lambda v: v * v - v * 3, x)
    assert got.dtype == x.dtype
    np.testing.assert_array_equal(got, (wide * wide - wide * 3).astype(x.dtype))
    pinned = run(lambda v: tm.astype(v * v, "bfloat16") - v * 3, x)
    rounded = (wide * wide).astype(x.dtype).astype(np.float32)
    np.testing.assert_array_equal(pinned, (rounded - wide * 3).astype(x.dtype))
    assert (got != pinned).any()


TYPES = [
    ("bfloat16", "bfloat16", "bfloat16"), ("bfloat16", "float16", "float32"),
    ("float8_e4m3fn", "float8_e4m3fn", "float32"), ("float8_e5m2", "float16", "float32"),
    ("float16", "float32", "float32"), ("int32", "bfloat16", "bfloat16"), ("int4", "int4", "int8"),
    ("uint4", "int8", "int16"), ("bool", "float32", "float32"), ("bool", "bool", "int32"),
    ("bool", "uint8", "uint8"),
]  # fmt: skip


@pytest.mark.parametrize(("a", "b", "want"), TYPES)
def test_promotion_of_narrow_types(a, b, want):
    formula = trace(lambda x, y: x * y, [("x", (4,), a), ("y", (4,), b)])
    assert formula.outputs[0].dtype == DTYPES[want]


def test_types_of_types():
    assert tm.result_type(np.float32, tm.int8) is tm.float32
    assert tm.can_cast(np.int8, "int16") and not tm.can_cast(tm.float32, np.int64)


def test_numbers_take_the_type_of_arrays():
    for dtype, number, want in [
        ("bfloat16", 2.0, "bfloat16"), ("int8", 2, "int8"), ("int8", 2.0, "float32"),
        ("bool", 2, "int32"), ("float32", True, "float32"), ("float64", np.float32(2), "float64"),
    ]:  # fmt: skip
        for op in (lambda x: x + number, lambda x: number + x):
            assert trace(op, [("x", (4,), dtype)]).outputs[0].dtype == DTYPES[want]


# ── names, outputs, places ───────────────────────────────────────────────────────────────────


def test_functions_of_numbers_are_numbers():
    def f(x):
        n = x.shape[0]
        i, j = tm.indices((n, n), 0, 1)
        kept = tm.sum(tm.where(j <= i, x, 0.0), axis=1)
        return kept * tm.log(2.0) / tm.sqrt(n), x[: tm.maximum(1, 2)] + tm.add(2**40, -(2**40))

    x = np.arange(4, dtype=np.float32)
    first, second = run(f, x)
    np.testing.assert_allclose(first, np.cumsum(x) * np.log(2.0) / 2, rtol=1e-6)
    assert second.tolist() == [0, 1]


def test_names():
    def several(x):
        a, (b, c) = x + 1, (x + 2, x + 3)
        total: object = a * b
        total += c
        total = total[None]
        if (w := total * 2).ndim:
            _ = w - 1
        return w, total

    formula = trace(several, [("x", (4,), "float32")])
    assert [a.name for a in formula.arrays] == [
        "a", "b", "c", "total", "add", "multiply", "w", "total1",
    ]  # fmt: skip
    assert [b.name for b in formula.outputs] == ["w", "total1"]


def test_a_name_that_folds_with_kept_axes():
    def centered(x):
        top = tm.max(x, axis=-1, keepdims=True)
        return x - top

    formula = trace(centered, [("x", (4, 8), "float32")])
    assert [a.name for a in formula.arrays] == ["top", "out"]


def test_closures_defaults_and_methods_are_traced():
    factor = 3

    class Model:
        def forward(self, x, bias=1.0):
            y = x * factor
            return y + bias

    formula = trace(Model().forward, [("x", (2,), "float32")])
    near(evaluate(formula, [np.float32([1, 2])])[0], [4, 7])
    assert [a.name for a in formula.arrays] == ["y", "out"]

    def scaled(x, *, by=factor):
        y = x * by * factor
        return y

    formula = trace(scaled, [tensor("x", (2,), FLOAT32)])
    assert [a.name for a in formula.arrays] == ["multiply", "y"]
    near(evaluate(formula, [np.float32([1, 2])])[0], [9, 18])


def test_outputs():
    def parts(x):
        y = x * 2
        unused = tm.exp(x)
        return x, y, y, y.mT, tm.reshape(y, (-1,))

    formula = trace(parts, [("x", (2, 3), "float16")])
    assert "exp" not in str(formula) and "unused" not in str(formula)
    x = np.float16([[1, 2, 3], [4, 5, 6]])
    found = evaluate(formula, [x])
    for got, want in zip(found, [x, x * 2, x * 2, x.T * 2, x.ravel() * 2], strict=True):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == np.float16
    assert len({b.name for b in formula.outputs}) == 5


def test_places_are_the_users():
    formula = trace(attention, [(name, (2, 4, 8), "float32") for name in "qkv"])
    texts = [a.loc.source.strip() for a in formula.arrays]
    assert texts[0].startswith("s = q @ ") and texts[-1].startswith("return tm.softmax")
    assert all(a.loc.file == __file__ for a in formula.arrays)


def test_namespace():
    seen = []
    run(lambda x: (seen.append(x.__array_namespace__()), x + 1)[1], normal(3))
    assert seen == [tm]


# ── what is refused ──────────────────────────────────────────────────────────────────────────

REFUSED = {
    "do not broadcast": lambda x, i: x + x[:, :3],
    "(4, 8) and (4, 8)": lambda x, i: x @ x,
    "sizes 8 and 3": lambda x, i: x + x[:, :3],
    "no axis 2": lambda x, i: tm.sum(x, axis=2),
    "folded twice": lambda x, i: tm.sum(x, axis=(0, -2)),
    "no index 4": lambda x, i: x[4],
    "3 indices": lambda x, i: x[0, 0, 0],
    "more than one ...": lambda x, i: x[..., ...],
    "of integers, not of bool": lambda x, i: x[x > 0],
    "not of float32": lambda x, i: x[x],
    "list is no index": lambda x, i: x[[0, 1]],
    "bounds of a slice": lambda x, i: x[: i[0]],
    "step of a slice": lambda x, i: x[::0],
    "axis between them": lambda x, i: x[:, None][i, :, 0],
    "Python's if": lambda x, i: x if x[0, 0] > 0 else i,
    "Python loop": lambda x, i: [row for row in x],
    "float()": lambda x, i: float(x[0, 0]),
    "int()": lambda x, i: int(x[0, 0]),
    "list, range or size": lambda x, i: range(i[0]),
    "Python's in": lambda x, i: 3.0 in x,
    "not assigned": lambda x, i: x.__setitem__(0, 1.0),
    "no 'sum'": lambda x, i: x.sum(),
    "not ndarray": lambda x, i: tm.where(x > 0, x, np.zeros(8)),
    "which (5, -1)": lambda x, i: tm.reshape(x, (5, -1)),
    "add takes arrays of the formula": lambda x, i: x + np.zeros(8),
    "multiply takes arrays": lambda x, i: np.zeros(8) * x,
    "not tuple": lambda x, i: tm.sum((3, 4)),
    "takes an array, not the number": lambda x, i: tm.sum(3.0),
    "takes integers and bools": lambda x, i: x & 1,
    "uint64 have no common": lambda x, i: i + tm.astype(i, "uint64"),
    "returns arrays": lambda x, i: 3,
    "matrix has two axes": lambda x, i: i.mT,
    "transpose of a matrix": lambda x, i: x[None].T,
    "einsum does not fit": lambda x, i: tm.einsum("ij,jk->ik", x),
    "outside of the comprehension": lambda x, i: leaked(x),
    "over 1 indices": lambda x, i: tm.array((3,), lambda a, b: x[a, b]),
    "over 2 indices": lambda x, i: tm.array((3, 4), lambda a: x[a, a]),
    "come in pairs": lambda x, i: tm.moveaxis(x, (0, 1), (1,)),
    "one count": lambda x, i: tm.repeat(x, (1, 2, 1, 1), axis=0),
    "negative size": lambda x, i: tm.zeros((-1, 3)),
    "takes Python numbers": lambda x, i: tm.arange(i[0]),
    "step of arange": lambda x, i: tm.arange(0, 3, 0),
    "needs an axis": lambda x, i: tm.cumulative_sum(x),
    "gives a number, not an array": lambda x, i: tm.sum((3,), lambda a: x[a]),
    r"write tm.sum\(…, axis=0\)": lambda x, i: tm.sum(x, 0),
    r"write tm.maximum\(x, y\)": lambda x, i: tm.max(x, x),
    "Python integers are needed for the shifts and axes of roll": lambda x, i: tm.roll(x, 1.5),
    "Python integers are needed for a shape": lambda x, i: tm.zeros((i[0], 3)),
    "more than one element": lambda x, i: tm.squeeze(x, axis=0),
    "concat of shapes": lambda x, i: tm.concat([x, x[:, :3]]),
    "unknown dtype": lambda x, i: tm.astype(x, "flaot32"),
}


def leaked(x):
    seen = []
    tm.array((3,), lambda a: (seen.append(a), x[a, 0])[1])
    return x + seen[0]


@pytest.mark.parametrize("message", REFUSED)
def test_refused(message):
    with pytest.raises(CompileError) as raised:
        trace(REFUSED[message], [("x", (4, 8), "float32"), ("i", (2,), "int32")])
    assert message in str(raised.value)
    assert raised.value.diagnostic.fix
    assert raised.value.loc.file == __file__


def test_only_in_a_trace():
    with pytest.raises(CompileError, match="inside a function"):
        tm.zeros(3)


def test_an_axis_that_is_split_twice():
    """Its parts have names of their own: two axes were one."""

    @tw.math
    def f(x, w):
        return tm.array((24,), lambda i: x[i // 6, i % 6 // 3] * w[i % 6])

    i = np.arange(24)
    x, w = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(6, dtype=np.float32)
    np.testing.assert_array_equal(f(x, w), x[i // 6, i % 6 // 3] * w[i % 6])
    axes = f.tile(x, w).partition("for ")[2].partition(" in ")[0].split(", ")
    assert len(set(axes)) == len(axes) == 3
