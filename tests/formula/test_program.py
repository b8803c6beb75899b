"""Formulas become tile programs that compute what they say."""

from __future__ import annotations

import numpy as np
import pytest

import tests.roads  # noqa: F401
import tilewright as tw
import tilewright.math as tm
from tests.formula.cases import CASES
from tilewright.formula.meaning import evaluate


def agrees(function, arrays, target):
    f = tw.math(function, target=target) if target else function
    got = f(*arrays)
    want = evaluate(f.formula(*arrays), arrays, exactly=True)
    for g, w in zip(got if isinstance(got, tuple) else (got,), want, strict=True):
        kind = np.asarray(g).dtype
        narrow = any(np.asarray(a).dtype == np.float16 for a in arrays)  # what products round to
        tolerance = 1e-3 if narrow or kind == np.float16 else 2e-5
        assert g.shape == w.shape
        largest = max(1.0, float(np.abs(w).max()))
        np.testing.assert_allclose(np.asarray(g, np.float64), w, tolerance, tolerance * largest)


TARGETS = ["cpu", "interp -sanitize", pytest.param("cuda_arrays", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("name", CASES)
def test_a_formula_computes_what_it_says(name, target):
    agrees(*CASES[name], target)


@pytest.mark.parametrize("splits", [1, 3, 128])
def test_blocks_may_share_a_loop(splits):
    function, arrays = CASES["decoding_of_many_keys"]
    f = tw.math(function, target="cpu")
    text = f.tile(*arrays)
    assert 'T.chosen("splits"' in text
    np.testing.assert_allclose(
        np.asarray(f.with_schedule(tiles={"splits": splits})(*arrays), float),
        np.asarray(f(*arrays), float),
        atol=1e-3,
    )


def gradients_by_hand(q, k, v, out, sums, d_out):
    s = q @ k.T * 0.25
    i, j = tm.indices(s, -2, -1)
    p = tm.exp(tm.where(j <= i, s, -tm.inf) - sums[:, None])
    off = tm.sum(tm.astype(d_out, tm.float32) * tm.astype(out, tm.float32), axis=-1)
    ds = p * (d_out @ v.T - off[:, None]) * 0.25
    parts = ds @ k, tm.matrix_transpose(ds) @ q, tm.matrix_transpose(p) @ d_out
    return tuple(tm.astype(x, tm.float16) for x in parts)


def test_steps_copy_what_they_read_once_and_keep_numbers_behind_the_loop():
    rng = np.random.default_rng(3)
    q, k, v, out, d_out = rng.standard_normal((5, 24, 16)).astype(np.float16)
    sums = rng.uniform(2, 4, 24).astype(np.float32)
    arrays = q, k, v, out, sums, d_out
    agrees(gradients_by_hand, arrays, "cpu")
    text = tw.math(gradients_by_hand).tile(*arrays)
    assert "Off = T.alloc_global" in text  # not folded again by each block of keys
    for tile in ("K[k, :]", "Q[l, :]", "D_out[l, :]", "Sums[l]", "Off[l]"):
        assert text.count(tile) == text.count(f"T.load({tile})") == 1
    assert text.count("* 0.25") == 2
    assert "x = Sums[i] * 1.442695" in text  # before the loop


def test_powers_of_what_is_masked_are_zero():
    def weighted(q, k, v):
        s = q @ k.T
        i, j = tm.indices(s, -2, -1)
        s = tm.where(j <= i, s, -tm.inf)
        return 2 ** (s - tm.max(s, axis=-1, keepdims=True)) @ v

    agrees(weighted, np.random.default_rng(1).standard_normal((3, 8, 4), np.float32), "cpu")


@pytest.mark.parametrize("kind", [np.float32, np.float16])  # words are fast for the second
@pytest.mark.parametrize("length", [9, 5000])
def test_rows_may_hold_the_last_number(kind, length):
    """A mask of the lowest number, added to all of a row, leaves equal numbers."""

    def attention(q, k, v, mask):
        return tm.astype(tm.softmax(q @ k.T + mask, axis=-1) @ v, kind)

    def softmax(mask):
        return tm.astype(tm.softmax(mask, axis=-1), kind)

    rng = np.random.default_rng(4)
    q, (k, v) = rng.random((3, 4), np.float32), rng.random((2, length, 4), np.float32)
    mask = np.zeros((3, length), np.float32)
    mask[0], mask[1, 1:] = (np.finfo(np.float32).min, -np.inf)
    for function, arrays in ((attention, (q, k, v, mask)), (softmax, (mask,))):
        agrees(function, arrays, "cpu")


def test_a_mask_times_the_last_number_keeps_its_factor():
    """(1 - mask) · lowest, as models write it: what scales the scores is not divided out of it."""

    def attention(q, k, v, mask):
        s = q @ k.T * 0.25 + (1 - mask) * float(np.finfo(np.float32).min)
        return tm.softmax(s, axis=-1) @ v

    rng = np.random.default_rng(6)
    mask = np.ones((3, 9), np.float32)
    mask[0, 4:], mask[1] = 0, 0
    for kind in (np.float32, np.float16):
        q, k, v = (rng.standard_normal((n, 8), np.float32).astype(kind) for n in (3, 9, 9))
        agrees(attention, (q, k, v, mask), "cpu")
        assert np.isfinite(tw.math(attention, target="cpu")(q, k, v, mask)).all()


def test_distances_times_slopes_are_one_number_for_each_column():
    """Softmax does not see what all of a row have, the slope times the index of the query; the loop
    adds a column's number, once for the maximum and the exponential."""

    def attention(q, k, v, slopes):
        s = q @ tm.matrix_transpose(k) * 0.25
        i, j = tm.indices(s, -2, -1)
        s = tm.where(j <= i + 3, s + slopes[:, None, None] * (j - i), -tm.inf)
        return tm.softmax(s, axis=-1) @ v

    rng = np.random.default_rng(7)
    q, k, v = rng.standard_normal((3, 2, 40, 16), np.float32).astype(np.float16)
    slopes = np.array([0.5, 0.01], np.float32)

    def rounded(q, k, v, slopes):
        return tm.astype(attention(q, k, v, slopes), "float16")

    agrees(rounded, (q, k, v, slopes), "cpu")
    text = tw.math(rounded).tile(q, k, v, slopes)
    assert 'acc1 + x * T.cast(l.index, "float32")' in text and "T.cast(k.index" not in text
    assert "x1 * 0.36067376 - (new_top * 0.36067376)[:, None]" in text
    wide = tw.math(attention).tile(*(a.astype(np.float32) for a in (q, k, v)), slopes)
    assert wide.count("T.cast(j.index") == wide.count("T.cast(l.index") == 1  # of a distance


def test_a_sum_follows_its_own_center():
    """Of two softmaxes in one product, what the first gives is used up before the second begins."""

    def differential(q, k, v):
        first, second = (
            tm.softmax(q[:, part] @ k[:, part].T, axis=-1) for part in (slice(8), slice(8, 16))
        )
        return (first - 0.5 * second) @ v

    rng = np.random.default_rng(8)
    arrays = tuple(rng.standard_normal((3, 40, 16), np.float32).astype(np.float16))
    agrees(differential, arrays, "cpu")
    text = tw.math(differential).tile(*arrays)
    used = [text.index(f'T.cast({e}, "float16")') for e in ("e", "e1")]
    assert used[0] < text.index("T.max(acc3") < used[1]


def test_an_extreme_of_nothing_is_infinite():
    """Where it is read as it is; for a center it is a number."""

    def masked(q, k, v, mask):
        x = tm.where(mask, q @ k.T, -tm.inf)
        top = tm.max(x, axis=-1, keepdims=True)
        e = tm.exp(x - top)
        y = (e / tm.sum(e, axis=-1, keepdims=True)) @ v
        return tm.where(tm.equal(top, -tm.inf), 0.0, y), top[:, 0]

    rng = np.random.default_rng(5)
    q, k, v = rng.standard_normal((3, 8, 4), np.float32)
    mask = rng.random((8, 8)) < 0.5
    mask[2] = False
    y, top = tw.math(masked)(q, k, v, mask)
    assert not y[2].any() and top[2] == -np.inf and np.isfinite(y).all()
    assert tw.math(masked).tile(q, k, v, mask).count("for ") == 2


def test_blocks_have_tiles_of_more_axes_where_the_last_are_short():
    def turned(x, cos, sin):
        pairs = tm.reshape(x, (*x.shape[:3], 2, x.shape[3] // 2))
        a, b = pairs[..., 0, :], pairs[..., 1, :]
        cos, sin = cos[:, None, :], sin[:, None, :]
        return tm.stack([a * cos - b * sin, b * cos + a * sin], axis=-2)

    rng = np.random.default_rng(2)
    x, (cos, sin) = rng.random((2, 5, 3, 8), np.float32), rng.random((2, 5, 4), np.float32)
    agrees(turned, (x, cos, sin), "cpu")
    text = tw.math(turned).tile(np.zeros((2, 500, 32, 128), np.float32), *np.zeros((2, 500, 64)))
    assert "T.tile(T.each(I), T.each(J), K, " in text  # 4096 elements of a token


def test_results_whose_dimensions_are_in_another_order_have_their_own_kernel():
    def both(x, y):
        z = x * tm.permute_dims(y, (0, 2, 1))
        return tm.sum(z, axis=(0, 1)), z, y * 2 + 1

    rng = np.random.default_rng(6)
    arrays = rng.random((2, 9, 6), np.float32), rng.random((2, 6, 9), np.float32)
    agrees(both, arrays, "cpu")
    assert tw.math(both).tile(*arrays).count("for ") == 2


@pytest.mark.parametrize("dims", [2, 3, 4])
def test_dimensions_that_are_read_as_one_index_are_one(dims):
    def normalized(x):
        y = tm.reshape(x, (x.shape[0], 2, -1))
        y = y - tm.mean(y, axis=-1, keepdims=True)
        return tm.reshape(y / (tm.mean(y * y, axis=-1, keepdims=True) + 1e-5) ** 0.5, x.shape)

    x = np.random.default_rng(6).random((2, 6, *(3, 5, 2, 7)[:dims]), np.float32)
    agrees(normalized, (x,), "cpu")
    f = tw.math(normalized)
    assert "//" not in f.tile(x) and f.tile(x).count("X[i, :]") == 1


@pytest.mark.parametrize("kinds", ["f2 f4", "f2 f8", "f4 f8", "f2 f4 f2", "f4 f2 f4 f2 f4"])
def test_a_store_does_not_undo_what_casts_round(kinds):
    def rounded(x):
        for kind in kinds.split():
            x = tm.astype(x, np.dtype(kind))
        return x

    x, want = (np.random.default_rng(6).standard_normal(9) for _ in "ab")
    for kind in kinds.split():
        want = want.astype(kind)
    np.testing.assert_array_equal(tw.math(rounded)(x), want)
    np.testing.assert_array_equal(tw.math(rounded)(x.astype("f4")), want)


@pytest.mark.parametrize("kind", ["float16", "bfloat16"])
def test_scalars_compute_in_float32(kind):
    """As elements of longer arrays do."""

    def computed(x):
        y = tm.astype(tm.astype(x, kind), tm.float32)
        return tm.sin(y) * y + tm.where(y > 1, y, -y) * y

    alone, beside = (tw.math(computed)(np.full(n, 1.3, np.float32)) for n in (1, 2))
    assert alone[0] == beside[0]


def test_what_is_not_a_constant_is_known():
    """Text that computes with Python's constants would have another `~`."""

    def choices(x):
        yes, zero = tm.full(x.shape, True, dtype=tm.bool), tm.full(x.shape, 0, dtype=tm.int64)
        own = tm.where((zero > 9) | ~((zero >= 0) & (zero < 4)), 2.0, x)
        wide = tm.full(x.shape, 1.0) * 2.0
        return tm.where(~yes, 1.0, x), own, tm.where(~(wide > 1.0) | ~~(wide < 1.0), 3.0, x)

    x = np.arange(3, dtype=np.float32)
    for found in tw.math(choices)(x):
        np.testing.assert_array_equal(found, x)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_the_text_of_a_chain_grows_with_its_length(kind):
    """What a comparison and a choice both read has one name, rounded in between or not."""

    def chain(x, length=9):
        for n in range(length, 0, -1):
            x = tm.astype(tm.clip(x * n, -float(n), float(n)), kind)
        return x

    x = np.random.default_rng(6).standard_normal((3, 5)).astype(kind)
    agrees(chain, (x,), "cpu")
    lengths = [len(tw.math(lambda x, n=n: chain(x, n)).tile(x)) for n in (2, 4, 6, 8)]
    steps = np.diff(lengths)
    assert max(steps) < 1.2 * min(steps) < 500


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_tanh_of_a_logarithm_is_a_quotient(kind):
    """Mish as PyTorch takes it apart: one exponential and one division, at the ends too."""

    def mish(x):
        x = tm.astype(x, tm.float32)
        softplus = tm.where(x > 20, x, tm.log1p(tm.exp(x)))
        return tm.astype(x * tm.tanh(softplus), kind)

    x = np.array([-np.inf, -200, -100, -9, -1e-9, 0, 1e-9, 0.5, 9, 21, 89, 300, np.inf, np.nan])
    x = np.concatenate([x, np.linspace(-30, 30, 401)]).astype(kind)
    f = tw.math(mish, target="cpu")
    text = f.tile(x)
    assert "tanh" not in text and "log" not in text and "> 20" not in text
    wide = x.astype(np.float64)
    with np.errstate(invalid="ignore", over="ignore"):
        want = wide * np.tanh(np.logaddexp(0, wide))
    few, least = (1e-3, 6e-8) if kind == np.float16 else (1e-6, 1e-30)
    np.testing.assert_allclose(f(x), want, few, least)


def batch_norm(x, w):
    mean = tm.mean(x, axis=(0, 2), keepdims=True)
    variance = tm.mean((x - mean) ** 2, axis=(0, 2), keepdims=True)
    return (x - mean) / (variance + 1e-5) ** 0.5 * w[:, None], mean[0, :, 0], variance[0, :, 0] * 2


@pytest.mark.parametrize("shape", [(66, 2, 7501), (8, 3, 65536), (512, 3, 99)])
def test_a_long_cascade_reads_its_rows_once(shape):
    rng = np.random.default_rng(7)
    x, w = rng.normal(40, 1, shape).astype(np.float32), rng.random(shape[1], np.float32)
    agrees(batch_norm, (x, w), "cpu")
    text = tw.math(batch_norm, target="cuda").tile(x, w)
    assert text.count("X[") == 2  # for the state of parts, and for the result
    assert text.count("for ") == 3


@pytest.mark.parametrize("rows", [3300, 3301])  # the second has no parts of one length
def test_tall_columns_are_read_once_for_their_state(rows):
    def batch_norm(x):
        mean = tm.mean(x, axis=0)
        variance = tm.mean((x - mean) ** 2, axis=0)
        return (x - mean) / (variance + 1e-5) ** 0.5

    x = np.random.default_rng(7).normal(40, 1, (rows, 35)).astype(np.float32)
    agrees(batch_norm, (x,), "cpu")
    assert tw.math(batch_norm, target="cuda").tile(x).count("for ") == (3 if rows == 3300 else 1)


def test_a_long_softmax_of_nothing_but_infinite_parts():
    x = np.random.default_rng(8).random((1, 1 << 19), np.float32)
    x[:, : 1 << 18] = -np.inf
    agrees(lambda x: tm.softmax(x, axis=-1), (x,), "cpu")


def test_what_many_blocks_need_is_folded_once():
    def scaled(x, y):
        return x * tm.sum(y, axis=-1)[:, None, None]

    x, y = (np.broadcast_to(np.float32(0), shape) for shape in ((8, 3000, 3000), (8, 50)))
    text = tw.math(scaled, target="cuda").tile(x, y)
    assert "would be folded again" in text and text.count("T.tile") == 2
    assert tw.math(scaled, target="cuda").tile(x[:, :9, :9], y).count("T.tile") == 1


def test_tiles_run_along_the_lines_of_large_arrays():
    """Numbers of channels are neighbours, too, but few."""

    def scaled(x, y):
        return x * y[:, None]

    x, y = (np.broadcast_to(np.float32(0), shape) for shape in ((8, 64, 4096), (64,)))
    made, _ = tw.math(scaled, target="cuda -arch=sm_90a")._of((x, y), {})
    assert "16×256" in made.kernel.compile(*made.examples()).explain()


@pytest.mark.parametrize("target", ["cpu", "interp -sanitize"])
@pytest.mark.parametrize("by", [1, 2])
def test_sums_of_what_lies_before_are_one_kernel(by, target):
    def before(x, y):
        sums = tm.cumulative_sum(x * y, axis=1)
        ends = tm.indices(x, 1) < by
        return tm.where(ends, 0, tm.array(x.shape, lambda i, j: sums[i, j - by])) + 1

    x, y = np.random.default_rng(7).standard_normal((2, 5, 37)).astype(np.float32)
    agrees(before, (x, y), target)
    assert "alloc_global" not in tw.math(before).tile(x, y)


def test_a_middle_axis_is_folded_as_it_lies():
    x = np.random.default_rng(9).standard_normal((3, 9, 5)).astype(np.float32)
    f = tw.math(lambda x: tm.sum(x, axis=1), target="cpu")
    agrees(lambda x: tm.sum(x, axis=1), (x,), "cpu")
    assert "T.sum(X[i, :, j], dim=0)" in f.tile(x)


def test_a_softmax_along_columns_loads_them_once():
    x = np.broadcast_to(np.float16(0), (4, 128, 16641))
    made, _ = tw.math(lambda x: tm.softmax(x, axis=1), target="cuda -arch=sm_90a")._of((x,), {})
    assert made.kernel.compile(*made.examples()).explain().count("copy X → ") == 1
