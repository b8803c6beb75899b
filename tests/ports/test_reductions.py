"""Reductions in the spellings of ports: NaN that is skipped, and stores to reducers."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)


def reduced(word, dtype, space, clear=True, dim=1, shape=(16, 32), **more):
    alloc = getattr(T, f"alloc_{space}")
    kept = shape[1 - dim]

    @T.prim_func
    def main(X: T.Tensor(shape, dtype), Y: T.Tensor((kept,), dtype)):
        with T.Kernel(1, threads=64):
            x = alloc(shape, dtype)
            y = alloc((kept,), dtype)
            T.copy(X, x)
            T.copy(Y, y)
            getattr(T, word)(x, y, dim=dim, clear=clear, **more)
            T.copy(y, Y)

    return main


_MEANING = {
    "reduce_max": (lambda x, axis: np.fmax.reduce(x, axis=axis, initial=-np.inf), np.fmax),
    "reduce_min": (lambda x, axis: np.fmin.reduce(x, axis=axis, initial=np.inf), np.fmin),
    "reduce_absmax": (lambda x, axis: np.fmax.reduce(abs(x), axis=axis, initial=0), np.fmax),
}


@each_target
@pytest.mark.parametrize("space", ["fragment", "shared"])
@pytest.mark.parametrize("word", list(_MEANING))
def test_nan_is_skipped(target, word, space):
    fold, into = _MEANING[word]
    for dtype, clear, dim in (("float32", True, 1), ("float16", False, 0), ("float32", False, 0)):
        x = np.random.default_rng(1).integers(-50, 50, (16, 32)).astype(dtype)
        x[::3, ::2] = np.nan
        x[5], x[:, 7] = np.nan, np.nan  # nothing else in this row and this column
        y = np.arange(-8, 8).astype(dtype) if dim else np.arange(-16, 16).astype(dtype)
        y[2] = np.nan
        want = fold(x, dim).astype(dtype)
        want = want if clear else into(want, y)
        kernel = tw.compile(
            reduced(word, dtype, space, clear, dim, nan_propagate=False), target=target
        )
        kernel(x, y)
        np.testing.assert_array_equal(y, want)


@each_target
def test_nan_is_kept_unless_it_is_said(target):
    x = np.ones((16, 32), np.float32)
    x[3, 4] = np.nan
    y = np.zeros(16, np.float32)
    tw.compile(reduced("reduce_max", "float32", "fragment"), target=target)(x, y)
    assert np.isnan(y[3]) and (np.delete(y, 3) == 1).all()


@each_target
def test_integers_have_no_nan(target):
    x = np.arange(512, dtype=np.int32).reshape(16, 32)
    y = np.zeros(16, np.int32)
    program = reduced("reduce_max", "int32", "fragment", nan_propagate=False)
    tw.compile(program, target=target)(x, y)
    np.testing.assert_array_equal(y, x.max(1))


def test_a_sum_that_cannot_skip_nan():
    def main(X: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((16, 32), "float32")
            y = T.alloc_fragment((16,), "float32")
            T.copy(X, x)
            T.reduce(x, y, "sum", dim=1, nan_propagate=False)

    with pytest.raises(tw.CompileError, match="T.reduce cannot skip NaN") as caught:
        T.prim_func(main)
    assert "T.isnan(x[i, j])" in caught.value.diagnostic.fix


# ── reducers ──

_UPDATES = {
    "sum": (lambda a, v: a + v, lambda x: x.sum(1)),
    "max": (lambda a, v: T.max(a, v), lambda x: x.max(1)),
    "min": (lambda a, v: T.min(v, a), lambda x: x.min(1)),
}


@each_target
@pytest.mark.parametrize("op", list(_UPDATES))
def test_a_store_that_reads_its_element_is_an_update(target, op):
    update, meaning = _UPDATES[op]

    @T.prim_func
    def main(X: T.Tensor((16, 32), "float32"), Y: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=64):
            x = T.alloc_fragment((16, 32), "float32")
            acc = T.alloc_reducer((16,), "float32", op=op, replication="all")
            T.copy(X, x)
            T.fill(acc, 0 if op == "sum" else -1000 if op == "max" else 1000)
            for i, j in T.Parallel(16, 32):
                acc[i] = update(acc[i], x[i, j])
            T.finalize_reducer(acc)
            T.copy(acc, Y)

    x = np.random.default_rng(0).integers(-50, 50, (16, 32)).astype(np.float32)
    y = np.zeros(16, np.float32)
    tw.compile(main, target=target)(x, y)
    np.testing.assert_array_equal(y, meaning(x))


@each_target
def test_a_reducer_is_initialised_by_stores_and_copies(target):
    @T.prim_func
    def main(X: T.Tensor((32,), "int32"), Y: T.Tensor((2, 4), "int32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_reducer((4,), "int32")
            b = T.alloc_reducer((4,), "int32")
            for k in T.Parallel(4):
                a[k] = 100 * k
            T.copy(X[0:4], b)
            for i in T.Parallel(32):
                a[i % 4] = a[i % 4] - X[i]
                b[i % 4] += X[i]
            T.finalize_reducer(a, Y[0, :])
            T.finalize_reducer(b, Y[1, :])

    x, y = np.arange(32, dtype=np.int32), np.zeros((2, 4), np.int32)
    tw.compile(main, target=target)(x, y)
    sums = x.reshape(8, 4).sum(0)
    np.testing.assert_array_equal(y, [100 * np.arange(4) - sums, x[:4] + sums])


@pytest.mark.parametrize(
    "store",
    [
        lambda acc, i, v: acc[i] * v,
        lambda acc, i, v: T.max(acc[i], v),
        lambda acc, i, v: acc[i] + acc[i],
        lambda acc, i, v: acc[0] + v,
        lambda acc, i, v: v - acc[i],
    ],
)
def test_stores_that_are_no_updates_of_their_kind(store):
    def main(X: T.Tensor((16,), "float32")):
        with T.Kernel(1, threads=32):
            acc = T.alloc_reducer((16,), "float32", op="sum")
            T.reducer_init(acc)
            for i in T.Parallel(16):
                acc[i] = store(acc, i, X[i])

    with pytest.raises(tw.CompileError, match="reads acc, a reducer of kind 'sum'") as caught:
        T.prim_func(main)
    assert "T.reducer_update(acc[i], v)" in caught.value.diagnostic.fix
    assert caught.value.diagnostic.loc.line
