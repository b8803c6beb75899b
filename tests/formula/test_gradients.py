"""Gradients of formulas agree with differences of what the formulas compute."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tilewright.formula.front.trace import trace
from tilewright.formula.gradients.derivatives import FLAT, PARTIALS, RULES
from tilewright.formula.gradients.vjp import vjp
from tilewright.formula.meaning import evaluate
from tilewright.ir.core import FLOAT32, Call, Load, Var
from tilewright.ir.formula import Axis, Formula, array, tensor
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.support.errors import CompileError

STEP = 1e-6


def traced(function, arrays, dtype="float64"):
    inputs = [
        (f"x{n}", np.shape(x), dtype if np.asarray(x).dtype.kind == "f" else np.asarray(x).dtype)
        for n, x in enumerate(arrays)
    ]
    return trace(function, inputs)


def differences(formula, arrays, cotangents):
    """The change of the outputs along the cotangents, per change of each element of floats."""

    def loss(given):
        outputs = evaluate(formula, given, exactly=True)
        floats = [o for o in outputs if o.dtype.kind == "f"]
        return sum(np.sum(o * c) for o, c in zip(floats, cotangents, strict=True))

    found = []
    for n, x in enumerate(arrays):
        if np.asarray(x).dtype.kind != "f":
            continue
        slope = np.zeros(x.shape)
        for at in np.ndindex(x.shape):
            ends = []
            for step in (STEP, -STEP):
                moved = x.astype(np.float64)
                moved[at] += step
                ends.append(loss([*arrays[:n], moved, *arrays[n + 1 :]]))
            slope[at] = (ends[0] - ends[1]) / (2 * STEP)
        found.append(slope)
    return found


def check(function, *arrays, tolerance=1e-6):
    arrays = [np.asarray(x) for x in arrays]
    formula = traced(function, arrays)
    backward = vjp(formula)
    rng = np.random.default_rng(99)
    floats = [b for b in formula.outputs if b.dtype.is_float]
    cotangents = [rng.standard_normal(b.static_shape) for b in floats]
    got = evaluate(backward, [*arrays, *cotangents], exactly=True)
    want = differences(formula, arrays, cotangents)
    for g, w in zip(got, want, strict=True):
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, tolerance, tolerance)
    return backward


def drawn(*shape, seed=0, low=None, high=None):
    rng = np.random.default_rng(seed + sum(shape))
    if low is not None:
        return rng.uniform(low, high, shape)
    return rng.standard_normal(shape)


# ── functions of elements ────────────────────────────────────────────────────────────────────

UNIT = {"acos", "asin", "atanh"}
ABOVE_ONE = {"acosh"}
POSITIVE = {"log", "log10", "log1p", "log2", "reciprocal", "rsqrt", "sqrt"}
UNARY = """abs acos acosh asin asinh atan atanh ceil cos cosh erf exp expm1 floor gelu log log10
log1p log2 negative positive reciprocal relu round rsqrt sigmoid sign silu sin sinh softplus sqrt
square tan tanh trunc""".split()
BINARY = """add atan2 copysign divide floor_divide hypot logaddexp maximum minimum multiply pow
remainder subtract""".split()


def domain(name):
    if name in UNIT:
        return {"low": -0.8, "high": 0.8}
    if name in ABOVE_ONE:
        return {"low": 1.2, "high": 3}
    return {"low": 0.3, "high": 2} if name in POSITIVE else {"low": -1.4, "high": 1.4}


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_element(name):
    check(getattr(tm, name), drawn(7, **domain(name)))


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_elements(name):
    low = 0.3 if name == "pow" else -2
    check(getattr(tm, name), drawn(5, low=low, high=2), drawn(5, seed=1, low=-2, high=2))


@pytest.mark.parametrize("power", [-2, -1, -0.5, 0.5, 1, 2, 3, 2.5, 9])
def test_powers(power):
    check(lambda x: x**power, drawn(5, low=0.4, high=2))


def test_every_function_that_targets_have_is_in_the_tables_or_refused():
    of_bits = {"invert", "popcount", "clz", "reinterpret", "dp4a", "pack_bfloat16", "pack_float16"}
    tests = {"not", "isnan", "isinf", "isfinite"}
    names = {name.removeprefix("__") for name in FUNCTIONS} - of_bits - tests
    assert names <= set(PARTIALS) | set(RULES) | FLAT


def at(function, *values):
    """The gradient at one point."""
    arrays = [np.array([float(v)]) for v in values]
    backward = vjp(traced(function, arrays))
    return [float(g[0]) for g in evaluate(backward, [*arrays, np.ones(1)], exactly=True)]


def test_functions_have_the_right_slope_where_their_parts_have_none():
    assert at(tm.softplus, 0) == [0.5]
    assert at(tm.logaddexp, 1, 1) == [0.5, 0.5]
    assert at(tm.asinh, 0) == [1]
    assert at(tm.atanh, 0) == [1]
    np.testing.assert_allclose(at(tm.asinh, 1e30), 1e-30)
    assert at(tm.sign, 0) == [0]
    assert at(tm.abs, 0) == [0]
    np.testing.assert_allclose(at(tm.hypot, 2, 2), [0.5**0.5] * 2)
    assert at(lambda x: x**2, 0) == [0]
    assert at(lambda x: x**2.5, 0) == [0]


def test_ties_are_shared_evenly():
    assert at(tm.maximum, 1, 1) == [0.5, 0.5]
    x = np.array([[1.0, 3.0, 3.0], [2.0, 0.0, 1.0]])
    backward = vjp(traced(lambda x: tm.max(x, axis=1), [x]))
    (got,) = evaluate(backward, [x, np.ones(2)])
    assert got.tolist() == [[0, 0.5, 0.5], [1, 0, 0]]


def test_the_side_that_is_not_chosen_does_not_matter():
    x = np.array([0.0, 4.0])

    def inverse(x):
        return tm.array((2,), lambda i: tm.where(x[i] > 0, 1 / x[i], 0.0))

    (got,) = evaluate(vjp(traced(inverse, [x])), [x, np.ones(2)])
    assert got.tolist() == [0, -1 / 16]


# ── formulas ─────────────────────────────────────────────────────────────────────────────────


def layer_norm(x, g, b):
    mean = tm.mean(x, axis=-1, keepdims=True)
    var = tm.mean((x - mean) ** 2, axis=-1, keepdims=True)
    return (x - mean) / (var + 1e-5) ** 0.5 * g + b


def norm_and_product(x, g, w):
    r = tm.mean(x * x, axis=-1, keepdims=True)
    return (x / (r + 1e-6) ** 0.5 * g) @ w


def cross_entropy(x, label):
    rows = tm.arange(x.shape[0])
    return tm.logsumexp(x, axis=-1) - x[rows, label]


def gated(x, up, gate, down):
    return (tm.silu(x @ gate.T) * (x @ up.T)) @ down


def masked_rows(q, k, v):
    found = tm.softmax(q @ k.T, axis=-1) @ v  # its gradient is asked of the mask's result
    return tm.where((q[:, 0] < 0)[:, None], found, 0)


def attention(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    s = tm.where(j <= i, s, -tm.inf)
    return tm.softmax(s, axis=-1) @ v


def convolution(x, f):
    n, c, h, w = x.shape
    return tm.array(
        (n, f.shape[0], h, w),
        lambda b, o, i, j: tm.sum(
            (c, 3, 3), lambda k, r, s: x[b, k, i + r - 1, j + s - 1] * f[o, k, r, s]
        ),
    )


def strided(x, f):
    return tm.array((4, 3), lambda i, o: tm.sum((3,), lambda r: tm.exp(x[2 * i + r - 1]) * f[o, r]))


def pooling(x):
    return tm.array((3, 2), lambda i, j: tm.max((2, 2), lambda r, s: x[2 * i + r, 2 * j + s]))


LABELS = np.array([2, 0, 2], np.int32)
CASES = {
    "softmax": (lambda x: tm.softmax(x, axis=-1), drawn(2, 5)),
    "softmax of the first axis": (lambda x: tm.softmax(x, axis=0), drawn(4, 3)),
    "log_softmax": (lambda x: tm.log_softmax(x, axis=-1), drawn(2, 5)),
    "logsumexp": (lambda x: tm.logsumexp(x, axis=1), drawn(2, 3, 2)),
    "layer norm": (layer_norm, drawn(3, 6), drawn(6), drawn(6, seed=1)),
    "norm and product": (norm_and_product, drawn(3, 4), drawn(4), drawn(4, 2)),
    "cross entropy": (cross_entropy, drawn(3, 4), LABELS),
    "embedding": (lambda t, i: t[i] * t[i], drawn(3, 2), np.array([[0, 2, 5], [2, 2, -1]])),
    "take along an axis": (
        lambda x, i: tm.take_along_axis(x, i, axis=1), drawn(2, 4), np.array([[0, 3], [3, 3]]),
    ),
    "product": (lambda x, y: x @ y, drawn(3, 4), drawn(4, 2)),
    "product of batches": (lambda x, y: x @ y, drawn(2, 1, 3, 4), drawn(3, 4, 2)),
    "product with a vector": (lambda x, y: x @ y, drawn(3, 4), drawn(4)),
    "einsum": (lambda x, y: tm.einsum("bij,bkj->bik", x, y), drawn(2, 3, 4), drawn(2, 2, 4)),
    "broadcast": (lambda x, y: x * y + y, drawn(3, 1), drawn(1, 4)),
    "gated": (gated, drawn(3, 4), drawn(5, 4), drawn(5, 4, seed=3), drawn(5, 2)),
    "attention": (attention, drawn(2, 4, 3), drawn(2, 4, 3, seed=1), drawn(2, 4, 2)),
    "masked rows": (masked_rows, drawn(4, 3), drawn(5, 3, seed=1), drawn(5, 2)),
    "convolution": (convolution, drawn(1, 2, 4, 3), drawn(2, 2, 3, 3)),
    "strided convolution": (strided, drawn(8), drawn(3, 3)),
    "pooling": (pooling, drawn(6, 4)),
    "max": (lambda x: tm.max(x * x, axis=0), drawn(4, 3)),
    "min": (tm.min, drawn(3, 3)),
    "prod": (lambda x: tm.prod(x, axis=1), np.array([[1.5, 2, 3], [0, 2, 3], [0, 0, 3.0]])),
    "cumulative_sum": (lambda x: tm.cumulative_sum(x * x, axis=1), drawn(3, 4)),
    "cumulative_sum from zero": (lambda x: tm.cumulative_sum(x, include_initial=True), drawn(4)),
    "cumulative_prod": (
        lambda x: tm.cumulative_prod(x, axis=1), np.array([[1.5, 2, 3, 4], [2, 0, 3, 0]]),
    ),
    "variance": (lambda x: tm.std(x, axis=-1, correction=1), drawn(2, 4)),
    "slices": (lambda x: x[1:, ::2] * x[:-1, 1::2], drawn(3, 4)),
    "slice from the end": (lambda x: x[::-2] * x[1], drawn(5)),
    "reshape": (lambda x: tm.reshape(x, (3, 4)) ** 2, drawn(2, 6)),
    "reshape and transpose": (
        lambda x: tm.reshape(tm.permute_dims(tm.reshape(x, (4, 2, 3)), (1, 0, 2)), (8, 3)) ** 2,
        drawn(4, 6),
    ),
    "flat": (lambda x: tm.reshape(x, (-1,)) ** 2, drawn(2, 3, 2)),
    "flip and roll": (lambda x: tm.flip(x) * tm.roll(x, 2), drawn(5)),
    "repeat and tile": (lambda x: tm.repeat(x, 3) * tm.tile(x, 3), drawn(4)),
    "concat": (lambda x, y: tm.concat([x, y * y, x]) ** 2, drawn(2, 3), drawn(1, 3)),
    "stack": (lambda x, y: tm.stack([x, y], axis=1), drawn(3), drawn(3)),
    "diagonal": (lambda x: tm.array((3,), lambda i: x[i, i] ** 2), drawn(3, 3)),
    "where": (lambda x, y: tm.where(x > y, x * y, y), drawn(6), drawn(6, seed=1)),
    "tril": (lambda x: tm.tril(x) @ x, drawn(3, 3)),
    "clip": (lambda x: tm.clip(x, -0.5, 0.5) * x, drawn(8)),
    "two outputs": (lambda x, y: (x * y, tm.argmax(x), tm.sum(x)), drawn(3), drawn(3)),
    "linear attention": (lambda q, k, v: q @ (k.T @ v), drawn(3, 2), drawn(4, 2), drawn(4, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_gradients_agree_with_differences(name):
    check(*CASES[name])


def test_gradients_have_gradients():
    x = drawn(2, 3)
    backward = vjp(traced(lambda x: tm.softmax(x) * x, [x]))
    cotangents = [drawn(2, 3, seed=5)]
    second = vjp(backward)
    given = [drawn(2, 3, seed=6)]
    got = evaluate(second, [x, *cotangents, *given], exactly=True)
    want = differences(backward, [x, *cotangents], given)
    for g, w in zip(got, want, strict=True):
        np.testing.assert_allclose(g, w, 1e-6, 1e-6)


def test_the_maximum_of_a_softmax_gets_no_gradient():
    for function in (tm.softmax, tm.log_softmax, lambda x: tm.logsumexp(x, axis=1)):
        formula = vjp(traced(function, [drawn(2, 5)]))
        assert not any("ties" in a.name or a.name == "d_max" for a in formula.arrays)


def test_a_maximum_that_matters_keeps_its_gradient():
    def scaled(x):
        return x / tm.max(x, axis=1, keepdims=True)

    assert any("ties" in a.name for a in vjp(traced(scaled, [drawn(2, 5)])).arrays)
    check(scaled, drawn(2, 5))
    check(lambda x: tm.exp(x - 2 * tm.max(x, axis=1, keepdims=True)), drawn(2, 3))


def test_indices_that_are_no_data_are_solved():
    formula = vjp(traced(CASES["cross entropy"][0], CASES["cross entropy"][1:]))
    assert [a.name for a in formula.arrays if not a.is_pointwise] == ["max", "sum"]
    check(lambda x: x[tm.arange(2) + 1, tm.arange(2) * 2], drawn(3, 4))


def test_gradients_are_rounded_to_the_type_of_the_input():
    formula = vjp(traced(lambda x, w: x @ w, [drawn(3, 4), drawn(4, 2)], "float16"))
    assert [b.dtype.name for b in formula.outputs] == ["float16", "float16"]
    assert [b.dtype.name for b in formula.inputs] == ["float16"] * 3


def test_what_is_not_asked_for_is_not_computed():
    formula = vjp(traced(lambda x, y: x * tm.exp(y), [drawn(3), drawn(3)]), wrt=["x0"])
    assert [b.name for b in formula.outputs] == ["d_x0"]
    assert len(formula.arrays) == 2
    unused = vjp(traced(lambda x, y: x * 2, [drawn(3), drawn(2)]))
    assert evaluate(unused, [np.ones(3), np.ones(2), np.ones(3)])[1].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("function", "arrays", "wrt", "message"),
    [
        (lambda x: x * 2, [np.arange(3)], None, "no float inputs"),
        (lambda x: tm.argmax(x), [drawn(3)], None, "no float outputs"),
        (lambda x: x, [drawn(3)], ["y"], "y is no float input"),
    ],
)
def test_what_has_no_gradient_is_refused(function, arrays, wrt, message):
    with pytest.raises(CompileError, match=message):
        vjp(traced(function, arrays), wrt)


def test_functions_and_folds_without_a_rule_are_refused():
    x, i = tensor("x", (4,), FLOAT32), Axis(Var("i"), 4)
    bits = array("y", (i,), Call("reinterpret", (Load(x, (i.var,)),), FLOAT32))
    with pytest.raises(CompileError, match="derivative of reinterpret is not known"):
        vjp(Formula("f", (x,), (bits,), (bits.buffer,)))
    running = array("y", (i,), Load(x, (i.var,)), monoid="max", over=(i,), scan=True)
    with pytest.raises(CompileError, match="gradient of scan max is not known"):
        vjp(Formula("f", (x,), (running,), (running.buffer,)))


# ── as functions ─────────────────────────────────────────────────────────────────────────────


def run(function, *arrays, wrt=None, tolerance=2e-5):
    """On the CPU, against the formula."""
    arrays = [np.asarray(x, np.float32) if x.dtype.kind == "f" else x for x in arrays]
    gradient = tm.vjp(function, wrt=wrt, target="cpu")
    cotangents = [
        drawn(*b.static_shape, seed=7).astype(np.float32)
        for b in traced(function, arrays, "float32").outputs
    ]
    found = gradient(*arrays, *cotangents)
    want = evaluate(gradient.formula(*arrays, *cotangents), [*arrays, *cotangents], exactly=True)
    for g, w in zip(found if isinstance(found, tuple) else (found,), want, strict=True):
        np.testing.assert_allclose(g, w, tolerance, tolerance)
    return gradient.tile(*arrays, *cotangents)


RUNS = """softmax|cross entropy|layer norm|norm and product|product of batches|gated|convolution|
strided convolution|pooling|cumulative_sum|concat|reshape and transpose|embedding"""


@pytest.mark.parametrize("name", [each.strip() for each in RUNS.split("|")])
def test_gradients_run(name):
    run(*CASES[name])


def test_the_gradient_of_attentions_queries_is_one_loop():
    text = run(*CASES["attention"], wrt=["q"])
    assert text.count("for ") == 2 and text.count(" @ ") == 4


def test_the_gradients_of_attention_are_three_loops_of_nine_products():
    wide = run(*CASES["attention"])
    function, *arrays = CASES["attention"]
    half = [x.astype(np.float16) for x in (*arrays, arrays[2])]
    text = tm.vjp(function, target="cpu").tile(*half)
    for each in (wide, text):
        assert each.count(" @ ") == 2 + 3 + 4  # none twice, to correct a sum by another
        assert "D_sum = T.alloc_global" in each
    assert text.count("alloc_global") == 2 and "Log_sum = T.alloc_global" in text
    assert wide.count("alloc_global") == 3  # float32 keeps the center of each row


def test_rows_of_a_norm_are_kept_for_its_columns():
    text = run(layer_norm, drawn(24, 8), drawn(8), drawn(8, seed=1))
    assert text.count("for ") == 2 and "T.tile()" not in text  # rows, then columns
    assert "Sum1_row[i] = " in text and "Sum1_row[:]" in text  # 1 / sqrt(…), not what it is of
    text = run(norm_and_product, drawn(24, 8), drawn(8), drawn(8, 6))
    assert "T.tile()" not in text


def test_gradients_of_a_math_function():
    @tw.math(target="cpu")
    def scaled(x, w, power=2):
        return tm.sum(x**power * w, axis=-1)

    x, w = drawn(3, 4).astype(np.float32), drawn(4).astype(np.float32)
    gradient = tm.vjp(scaled)
    assert gradient.__name__ == "scaled_vjp"
    dx, dw = gradient(x, w, np.ones(3, np.float32))
    np.testing.assert_allclose(dx, 2 * x * w, 1e-5)
    np.testing.assert_allclose(dw, np.sum(x * x, 0), 1e-5)
    (dx, _) = gradient(x, w, np.ones(3, np.float32), power=1)
    np.testing.assert_allclose(dx, np.broadcast_to(w, x.shape), 1e-5)
    assert "def scaled_vjp(" in gradient.tile(x, w, np.ones(3, np.float32))


def test_gradients_of_arrays_with_defaults_and_in_trees():
    def layer(p, x, q=None, d_0=1):
        return d_0 * x @ p["w"] + (0 if q is None else q[0] * q[1])

    w, x, a, b, d = (drawn(*s).astype(np.float32) for s in ((4, 2), (3, 4), *[(3, 2)] * 3))
    gradient = tm.vjp(tw.math(layer, target="cpu"))
    wanted = (2 * x).T @ d, 2 * d @ w.T, d * b, d * a  # as the parameters stand
    _, kept = gradient.forward({"w": w}, x, (a, b), 2)
    for found in (gradient({"w": w}, x, d, q=(a, b), d_0=2), gradient.backward(kept, d)):
        for got, want in zip(found, wanted, strict=True):
            np.testing.assert_allclose(got, want, 1e-4, 1e-5)


def test_cotangents_that_do_not_fit_are_refused():
    gradient = tm.vjp(lambda x: x * 2)
    x = np.ones(3, np.float32)
    for given in ([], [np.ones(4, np.float32)], [np.ones(3)], [x, x]):
        with pytest.raises(CompileError, match="a cotangent for each"):
            gradient(x, *given)
    with pytest.raises(CompileError, match="gradients of gradients"):
        tm.vjp(gradient)
    with pytest.raises(CompileError, match="whose parameters are named"):
        tm.vjp(lambda *xs: xs[0])(x, x)
    with pytest.raises(CompileError, match="inside a formula"):
        tw.math(lambda x: tm.vjp(lambda x, y=1: x * y)(x, x))(x)


def run_kept(function, *arrays, tolerance=2e-5):
    """The values and what is kept, then gradients of that."""
    arrays = [np.asarray(x, np.float32) if x.dtype.kind == "f" else x for x in arrays]
    gradient = tm.vjp(function, target="cpu")
    values, kept = gradient.forward(*arrays)
    values = values if isinstance(values, tuple) else (values,)
    floats = [np.asarray(v) for v in values if v.dtype.kind == "f"]
    cotangents = [drawn(*v.shape, seed=7).astype(np.float32).reshape(v.shape) for v in floats]
    found = gradient.backward(kept, *cotangents)
    want = evaluate(traced(function, arrays, "float32"), arrays, exactly=True)
    want += evaluate(gradient.formula(*arrays, *cotangents), [*arrays, *cotangents], exactly=True)
    got = (*values, *(found if isinstance(found, tuple) else (found,)))
    for g, w in zip(got, want, strict=True):
        assert np.shape(g) == np.shape(w)
        np.testing.assert_allclose(g, w, tolerance, tolerance)
    return kept


RUNS_KEPT = """softmax|cross entropy|layer norm|norm and product|gated|convolution|attention
|masked rows|two outputs|concat|max"""


@pytest.mark.parametrize("name", [each.strip() for each in RUNS_KEPT.split("|")])
def test_gradients_of_what_was_kept_run(name):
    run_kept(*CASES[name])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("axis", [-1, None])
def test_the_extreme_of_what_is_computed_again_keeps_its_gradient(dtype, axis):
    """The product that `backward` computes again is not what was rounded and kept."""
    a, b = drawn(7, 16).astype(dtype), drawn(16, 9, seed=1).astype(dtype)
    gradient = tm.vjp(lambda a, b: tm.max(a @ b, axis=axis), target="cpu")
    y, kept = gradient.forward(a, b)
    found = gradient.backward(kept, np.ones(y.shape, dtype))[0]
    product = a.astype(float) @ b
    rows = product.argmax(-1)
    want = b.T[rows]
    if axis is None:
        want = np.where((product.max(-1) == product.max())[:, None], want, 0)
    np.testing.assert_allclose(found, want, rtol=1e-2)


def test_attention_keeps_its_result_and_the_sums_of_its_rows():
    kept = run_kept(attention, *drawn(3, 2, 64, 16))
    forward, backward = kept.pair.values, kept.pair.rest
    assert [b.name for b in backward.formula.inputs] == ["q", "k", "v", "out", "log_sum", "d_out"]
    assert [b.name for b in forward.formula.outputs] == ["out", "log_sum"]
    text = backward.program.text
    assert text.count(" @ ") == 3 + 4 and text.count("exp2(") == 2
    assert "T.max(" not in text  # no center: the sums are known
    assert text.count("D_sum = T.alloc_global") == 1  # sum(dO · O), left by the kernel of dQ


def test_results_are_read_as_they_were_stored():
    def rounded(q, k, v):
        return tm.astype(tm.astype(attention(q, k, v), tm.float16), q.dtype)

    pair, _ = tm.vjp(rounded).pair(*drawn(3, 2, 64, 16).astype(np.float16))
    assert [b.name for b in pair.values.formula.outputs] == ["out", "log_sum"]


def test_what_is_kept_is_what_costs_more_to_compute():
    def two_products(x, w, u):
        return tm.tanh(x @ w) @ u

    for depth, names in ((64, ["x", "w", "u"]), (2048, ["x", "matmul", "w", "u"])):
        shapes = (4096, depth), (depth, 4096), (4096, 64)
        arrays = [np.broadcast_to(np.float16(0), shape) for shape in shapes]
        pair, _ = tm.vjp(two_products).pair(*arrays)
        found = [b.name for b in pair.rest.formula.inputs]
        assert sorted(found) == sorted([*names, "d_out"]), depth
    pair, _ = tm.vjp(layer_norm).pair(*(np.zeros(s, np.float16) for s in ((64, 512), 512, 512)))
    kept = {a.name: str(a.body) for a in pair.values.formula.arrays}
    assert [b.name for b in pair.values.formula.outputs] == ["out", "sum", "sum1_row"]
    assert kept["sum1_row"] == "rsqrt(sum1[i0] / 512.0 + 1e-05)"
    pair, _ = tm.vjp(lambda x: tm.softmax(x)).pair(np.zeros((64, 512), np.float16))
    assert [b.name for b in pair.rest.formula.inputs] == ["x", "log_sum", "d_out"]


def test_what_was_kept_has_no_say_in_the_type_of_products():
    arrays = np.zeros((64, 16), np.float16), np.zeros((16, 512), np.float16)
    pair, _ = tm.vjp(lambda x, w: tm.logsumexp(x @ w, axis=-1)).pair(*arrays)
    text = pair.rest.program.text
    assert "Log_sum: T.Tensor" in text and text.count('"float16") @') == 2


def test_what_was_kept_takes_cotangents_that_fit():
    gradient = tm.vjp(lambda x: x * 2, target="cpu")
    _, kept = gradient.forward(np.ones(3, np.float32))
    with pytest.raises(CompileError, match="a cotangent for each"):
        gradient.backward(kept, np.ones(4, np.float32))


# ── PyTorch ──────────────────────────────────────────────────────────────────────────────────


def with_torch(torch):
    f = torch.nn.functional

    def causal(q, k, v):
        return f.scaled_dot_product_attention(q, k, v, is_causal=True)

    return {
        "attention": causal,
        "softmax": lambda x: torch.softmax(x, -1),
        "layer norm": lambda x, g, b: f.layer_norm(x, x.shape[-1:], g, b),
        "cross entropy": lambda x, i: f.cross_entropy(x, i.long(), reduction="none"),
        "convolution": lambda x, w: f.conv2d(x, w, padding=1),
        "gated": lambda x, u, g, d: (f.silu(x @ g.T) * (x @ u.T)) @ d,
        "pooling": lambda x: f.max_pool2d(x[None], 2)[0],
        "prod": lambda x: torch.prod(x, 1),
        "cumulative_prod": lambda x: torch.cumprod(x, 1),
        "variance": lambda x: torch.std(x, -1),
        "max": lambda x: torch.amax(x * x, 0),
    }


def test_gradients_agree_with_torch():
    torch = pytest.importorskip("torch")
    for name, theirs in with_torch(torch).items():
        function, *arrays = CASES[name]
        formula = traced(function, arrays)
        given = drawn(*formula.outputs[0].static_shape, seed=3)
        got = evaluate(vjp(formula), [*arrays, given], exactly=True)
        inputs = [torch.tensor(x, requires_grad=x.dtype.kind == "f") for x in arrays]
        theirs(*inputs).backward(torch.tensor(given))
        want = [x.grad.numpy() for x in inputs if x.requires_grad]
        for g, w in zip(got, want, strict=True):
            np.testing.assert_allclose(g, w, 1e-9, 1e-9, err_msg=name)
