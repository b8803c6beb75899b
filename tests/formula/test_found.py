"""Formulas that random ones showed to be wrong once."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from devtools.fuzz.formula_draw import Formula, Param, drawn
from devtools.fuzz.formulas import differs, judge

FOUND = {}


def found(*arrays):
    """A formula, and (shape, type) of each argument."""

    def keep(function):
        given = [drawn(shape, dtype, seed) for seed, (shape, dtype) in enumerate(arrays)]
        FOUND[function.__name__] = function, given
        return function

    return keep


@found(((4, 7), "float16"), ((7, 7), "float32"))
def product_of_two_types(x, y):
    return x @ y.mT


@found(((17, 8), "bfloat16"), ((17, 8), "bfloat16"), ((8, 2), "bfloat16"))
def product_of_a_product(x, y, z):
    return tm.softmax(x @ y.T, axis=-1) @ y @ z


@found(((40, 40), "float32"))
def fold_of_a_part(x):
    return tm.sum(x[:, :37], axis=-1), tm.max(x[:13], axis=0)


@found(((7, 4), "float32"))
def fold_of_joined(x):
    return tm.sum(tm.concat([x, -x, x], axis=0), axis=0)


@found(((3, 5, 2), "float32"))
def read_where_the_largest_is(x):
    at = tm.argmax(x, axis=1, keepdims=True)
    return tm.take_along_axis(x, at, axis=1)


@found(((20, 16), "float32"), ((16, 65), "float32"))
def product_beside_its_operand(x, y):
    return x @ y, 1 - y


@found(((5, 3), "float32"), ((3, 4), "float32"))
def running_sum_of_a_product(x, y):
    return tm.cumulative_sum(x @ y, axis=-1)


@found(((2, 50, 3), "float32"), ((11, 50), "float32"))
def product_of_what_is_folded_along_its_batch(x, y):
    return y @ tm.softmax(x, axis=0)


@found(((20, 65), "float32"), ((65, 2), "float32"))
def total_of_a_product(x, y):
    return tm.sum(tm.relu(x @ y))


@found(((3, 2, 9), "float32"), ((5, 2, 3), "float32"))
def norm_of_a_convolution(x, y):
    s = tm.array(
        (3, 5, 9),
        lambda b, o, t: tm.sum((2, 3), lambda c, r: x[b, c, t + r - 1] * y[o, c, r]),
    )
    return tm.sqrt(tm.sum(s**2, axis=-1))


@found(((1, 65, 17), "float32"), ((17, 40), "float32"))
def fold_of_a_constant(x, y):
    return tm.sum(tm.argmax(x @ y, axis=0) + 1, axis=-1), tm.sum(
        tm.broadcast_to(x, (3, 65, 17)), axis=0
    )


@found(((8, 33), "float32"))
def spread_of_a_running_sum(x):
    return tm.var(tm.cumulative_sum(x, axis=0), axis=0)


@found(((8, 4), "float32"), ((4, 33), "float32"))
def spread_of_a_running_sum_of_a_product(x, w):
    return tm.var(tm.cumulative_sum(x @ w, axis=0), axis=0)


@found(((3, 5, 8), "float32"), ((3, 33, 8), "float32"), ((3, 33, 16), "float32"))
def attention_by_squares(q, k, v):
    return tm.relu(q @ tm.matrix_transpose(k) / 8**0.5) ** 2 @ v


@found(((20, 8), "float16"), ((8, 20), "float16"))
def product_of_lengths(x, y):
    return tm.hypot(x, x) @ y


@found(((1, 2, 6, 7), "float32"), ((4, 2, 1, 2), "float32"))
def strided_convolution(x, y):
    return tm.array(
        (1, 4, 6, 3),
        lambda b, o, u, t: tm.sum(
            (2, 1, 2), lambda c, r, s: x[b, c, u + r, t * 2 + s * 2] * y[o, c, r, s]
        ),
    )


@found(((17, 8), "float32"), ((17, 8), "float32"), ((8, 2), "float32"))
def product_of_attention_with_large_scores(x, y, z):
    return tm.softmax(x @ y.T * 100, axis=-1) @ y @ z


@found(((8, 33), "float16"), ((8, 33), "float32"))
def product_of_what_is_chosen(x, y):
    return tm.stack([x, x], axis=0) @ y.T


@found(((5, 16), "float32"), ((16, 40), "float32"))
def fold_of_what_a_loop_leaves(x, y):
    s = x @ y
    return tm.sum(tm.stack([s, s * s], axis=1), axis=1)


@found(((7, 20, 20), "float32"), ((20, 8), "float32"), ((8,), "float32"))
def fold_of_what_two_loops_leave(x, y, z):
    return tm.tanh(tm.min(x @ y, axis=-2)) @ z


@found(((16,), "float16"))
def numbers_that_a_stored_type_lacks(x):
    a, b = tm.where(x > 0, x, 1e6) * 1e-4, tm.clip(x, -0.1, 0.3) - 0.3
    return tm.astype(a, tm.float32), tm.astype(b, tm.float32)


@found(((17, 11, 2), "float32"), ((2, 8), "float32"))
def product_of_exponentials(x, y):
    s = tm.exp(tm.minimum(x, 2.5))
    return tm.logaddexp(s, s) @ y


@found(((1, 5, 6), "float32"), ((6, 7), "float32"))
def product_of_zero(x, y):
    return (x - tm.mean(x, axis=0)) @ y


@found(((2, 5, 4), "float16"), ((2, 50, 4), "float16"), ((2, 50, 8), "float16"))
def spread_of_attention_by_squares(q, k, v):
    s = tm.relu(q @ tm.matrix_transpose(k) / 2) ** 2
    return tm.std(s @ v, axis=-1)


@found(((5, 40), "float32"), ((40, 50), "float32"))
def spread_of_a_product(x, y):
    s = x @ y
    return tm.var(s, axis=-1), tm.mean(s, axis=-1)


@found(((5, 7), "float32"), ((9, 11, 7), "float32"))
def spread_of_a_product_over_two_axes(x, y):
    s = tm.einsum("ik,jlk->ijl", x, y)
    return tm.var(s, axis=(1, 2))


@found(((20, 40), "int8"), ((40, 30), "int8"))
def product_of_bytes(x, y):
    s = x @ y
    return s, s + 1


@found(((5, 5), "float32"))
def repeated_running_sum(x):
    return tm.repeat(tm.cumulative_sum(x, axis=1), 3, axis=-2)


@found(((5, 7), "float32"))
def repeated_columns(x):
    return tm.repeat(tm.cumulative_sum(x, axis=0).T, 3, axis=-1)


@found(((9, 33), "float32"), ((33, 17), "float32"))
def product_of_rows_and_columns_as_small_integers(x, w):
    s = tm.max(tm.abs(x), axis=-1, keepdims=True) / 100.3
    t = tm.max(tm.abs(w), axis=0, keepdims=True) / 100.3
    a, b = (tm.astype(tm.round(each), tm.int8) for each in (x / s, w / t))
    return tm.matmul(tm.astype(a, tm.int32), tm.astype(b, tm.int32)) * s * t


@found(((8, 16), "int8"), ((16, 9), "float32"))
def product_of_integers_and_rounded_numbers(x, w):
    return tm.matmul(tm.astype(x, tm.int32), tm.astype(tm.round(w * 2), tm.int32)) * 0.5


@found(((9, 16), "float32"), ((13, 16), "float32"), ((21, 16), "float32"), ((9,), "float32"))
def attention_of_two_tables_and_a_sink(q, k, m, z):
    s = tm.concat([q @ k.T, q @ m.T, z[:, None]], axis=-1) * 0.25
    p = tm.softmax(s, axis=-1)
    return p[:, :13] @ k + p[:, 13:-1] @ m


@found(((9, 16), "float32"), ((16, 16), "float32"))
def softmax_and_minimum_of_joined(x, y):
    s = tm.concat([x @ y, x], axis=-1)
    return tm.softmax(s, axis=-1), tm.min(s, axis=-1)


@found(((7, 7), "float32"), ((7, 7), "float32"))
def square_of_a_symmetric_sum(x, y):
    a = 0.05 * (x + x.mT)
    return tm.einsum("ij,ik->kj", y / 6, a @ a)


@found(((40, 9), "float32"))
def tanh_of_what_is_no_softplus(x):
    """Beyond 20 it is another number than the logarithm."""
    y = x * 30
    return tuple(tm.tanh(tm.where(y > 20, z, tm.log1p(tm.exp(z)))) for z in (y, -y, y * 0.01))


@found(((9, 12), "float32"))
def entropy_of_what_a_mask_leaves(x):
    """Where no power is, its logarithm is infinite."""
    i, j = tm.indices(x)
    s = tm.where(j <= i + 2, x, -tm.inf)
    s = s - tm.logsumexp(s, axis=-1, keepdims=True)
    return tm.sum(tm.where(j <= i + 2, tm.exp(s) * s, 0), axis=-1)


@found(((4, 8), "float32"), ((8, 16), "float32"))
def joined_where_the_row_says(x, y):
    i, j = tm.indices(s := x @ y)
    return tm.max(tm.where(j + i < 7, s, x[:, :1]), axis=-1)


@found(((5, 9), "float32"), ((9, 3), "float32"))
def forty_steps_that_read_the_last_twice(x, w):
    """Written out, a tree of 2^40 operations that is 120 deep."""
    y = tm.abs(x) + 1
    for _ in range(40):
        y = (y + 2 / y) / 2
    return tm.sum(tm.where(x > 0, y, 0), axis=-1), y @ w


def in_chunks(*masks):
    """Attention whose masks compare quotients of the indices, or bound one from its right side."""

    def attention(q, k, v):
        i, j = tm.indices(s := q @ k.mT, -2, -1)
        return tuple(tm.softmax(tm.where(mask(i, j), s, -tm.inf), axis=-1) @ v for mask in masks)

    return attention


FOUND["chunks"] = (
    in_chunks(
        lambda i, j: i // 8 == j // 8,
        lambda i, j: (j // 7 >= i // 7 - 1) & (j <= i),
        lambda i, j: (i + 1 == j) | (i == j),
    ),
    FOUND["attention_of_two_tables_and_a_sink"][1][:1] * 3,
)


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("name", FOUND)
def test_it_computes_what_it_says(name, target):
    function, arrays = FOUND[name]
    f = tw.math(function, target=target)
    got = f(*arrays)
    got = [np.asarray(g) for g in (got if isinstance(got, tuple) else [got])]
    assert not differs(f.formula(*arrays), arrays, got)


def test_blocks_share_the_steps_of_several_axes():
    """A product of three, whose loop has two axes: few tiles, so that blocks share its steps."""
    shapes = {"x": (4, 64), "y": (4, 64), "z": (2, 64)}
    params = {n: Param(s, "float32", seed) for seed, (n, s) in enumerate(shapes.items())}
    line = ("s", 'tm.einsum("ac,bc,dc->ad", x, y, z)')
    kind, _, finding = judge(Formula(0, params, (line,), ("s",)), "threads")
    assert kind == "ok", finding


def test_indices_of_two_parts_times_numbers():
    """The float of a sum of three indices is that of its parts, and of theirs."""

    @tw.math
    def slopes(x):
        high, low, j = tm.indices(x)
        return x * (high * 3 + low + j)

    x = np.ones((2, 3, 4), np.float32)
    want = np.arange(6).reshape(2, 3, 1) + np.arange(4)
    np.testing.assert_array_equal(slopes(x), want)


def test_a_vector_for_all_heads_leaves_them_in_groups():
    """Results of heads in groups are scaled by a vector of all heads: one kernel, for the vector
    comes apart as they do."""

    def attention(q, k, v, scale):
        (h, s, d), g = q.shape, k.shape[0]
        q = tm.reshape(q, (g, h // g, s, d))
        out = tm.softmax(q @ tm.matrix_transpose(k)[:, None], axis=-1) @ v[:, None]
        return tm.reshape(out, (h, s, d)) * scale[:, None, None]

    rng = np.random.default_rng(0)
    q, k = rng.standard_normal((6, 5, 4), np.float32), rng.standard_normal((2, 5, 4), np.float32)
    v, scale = rng.standard_normal((2, 5, 4), np.float32), np.arange(6, dtype=np.float32)
    made = tw.math(attention)
    assert "alloc_global" not in made.tile(q, k, v, scale)
    s = np.exp(q @ k.repeat(3, 0).transpose(0, 2, 1))
    want = s / s.sum(-1, keepdims=True) @ v.repeat(3, 0) * scale[:, None, None]
    np.testing.assert_allclose(made(q, k, v, scale), want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dynamic", [None, {"q": {0: "n"}, "k": {0: "m"}}])
@pytest.mark.parametrize("last", [False, True])
def test_a_sink_beside_the_scores_is_no_array_in_memory(dynamic, last):
    """Scores joined with a column are folded where they are: one loop, as without the column."""

    def attention(q, k, sink):
        s = [q @ k.T, tm.broadcast_to(sink, (q.shape[0], 1))]
        p = tm.softmax(tm.concat(s if last else s[::-1], axis=-1), axis=-1)
        return (p[:, :-1] if last else p[:, 1:]) @ k

    q, k, sink = (drawn(shape, "float32", 1) for shape in ((9, 8), (33, 8), ()))
    f = tw.math(attention, dynamic=dynamic)
    assert "alloc_global" not in f.tile(q, k, sink)
    assert f.plan(q, k, sink).laws[0] == "folds_of_joined"
    e = np.exp(q.astype(float) @ k.T)
    want = e @ k / (e.sum(-1, keepdims=True) + np.exp(sink))
    np.testing.assert_allclose(f(q, k, sink), want, rtol=1e-5, atol=1e-5)


def test_integers_of_8_bits_are_multiplied_as_such():
    f = tw.math(lambda a, b: tm.matmul(tm.astype(a, tm.int32), tm.astype(b, tm.int32)))
    a, b = drawn((40, 64), "int8", 0), drawn((64, 48), "int8", 1)
    assert "A[i, k] @ B[k, j]" in f.tile(a, b)
    np.testing.assert_array_equal(f(a, b), a.astype(int) @ b.astype(int))


@pytest.mark.parametrize("end", [np.inf, -np.inf])
def test_a_running_maximum_is_compared_with_infinity(end):
    """inf - inf is no zero: what is equal is not found by a difference."""

    @tw.math(target="cpu")
    def kept(x, w, v):
        s = x @ w.T
        m = tm.max(s, axis=-1, keepdims=True)
        return tm.where(m == end, 0.0, tm.exp(s - m)) @ v

    x, w, v = drawn((5, 8), "float32", 0), abs(drawn((40, 8), "float32", 1)), np.ones((40, 3), "f")
    x[1] = end
    found = kept(x, w, v)
    assert "one pass" in kept.tile(x, w, v)
    assert (found[1] == 0).all() and np.isfinite(found).all()


def test_logsumexp_of_infinite_elements():
    """A distance from them is no number; the gradient is still that of a softmax."""
    inf = np.inf
    x = np.array([[1, 2, -inf], [inf, 1, -inf], [-inf] * 3, [np.nan, 1, inf], [inf] * 3], "f")
    f = tw.math(lambda x: tm.logsumexp(x, axis=-1), target="cpu")
    np.testing.assert_allclose(f(x), [np.logaddexp(1, 2), inf, -inf, np.nan, inf], rtol=1e-6)
    slope = tm.vjp(f)(x, np.ones(5, "f"))
    np.testing.assert_allclose(slope[0], [1 / (1 + np.e), np.e / (1 + np.e), 0], rtol=1e-6)
    assert "ties" not in tm.vjp(f).tile(x, np.ones(5, "f"))
