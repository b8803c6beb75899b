"""Whole dimensions that a block works on piece by piece, alone or in a cluster; rows that begin
anywhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_threads
from zoo import values

TARGETS = ["interp -sanitize", "cpu", *on_threads("threads-sm_90a")]
each_target = pytest.mark.parametrize("target", TARGETS)
# the last row of the last ends within a vector; rows of the second begin anywhere
each_shape = pytest.mark.parametrize("rows, columns", [(5, 400), (3, 401), (2, 1104), (9, 70)])
each_cut = pytest.mark.parametrize(
    "schedule",
    [{}, {"tiles": {"N": 64}}, {"tiles": {"N": 64}, "cluster": 2}, {"tiles": {"N": 32, "r": 2}}],
    ids=["chosen", "pieces", "cluster", "two-rows"],
)


def drawn(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(ml_dtypes.bfloat16)


def close(got, want, error=2e-2):
    np.testing.assert_allclose(got.astype(np.float64), want, error, error)


def run(kernel, target, schedule, *args):
    if target == "cpu":
        schedule = {k: v for k, v in schedule.items() if k != "cluster"}
    return kernel.on(target).with_schedule(**schedule)(*args)


@each_target
@each_shape
@each_cut
def test_rows(target, rows, columns, schedule):
    x, w, b = drawn(0, rows, columns), drawn(1, columns), drawn(2, columns)
    label = np.arange(rows, dtype=np.int32) * 7 % columns
    label[-1] = -1
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    close(run(values.softmax, target, schedule, x), e / e.sum(1, keepdims=True))
    far = wide - wide.mean(1, keepdims=True)
    normal = far / np.sqrt((far * far).mean(1, keepdims=True) + 1e-5)
    close(run(values.layer_norm, target, schedule, x, w, b), normal * w.astype(float) + b)
    loss = np.log(np.exp(wide).sum(1)) - wide[np.arange(rows), label]
    loss[-1] = 0
    close(run(values.cross_entropy, target, schedule, x, label), loss)


@tw.jit
def everything(X, Z):
    """What stays of a row, what comes of a column, and what is carried along one."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Z: T.Tensor((N,), "float32")
    first, some, all_ = (T.empty((M,), "int32") for _ in range(3))
    column, grown = T.empty((M, N), "float32"), T.empty((M, N), "float32")
    for r in T.tile(M, size=2):
        x = T.load(X[r, :])
        first[r] = T.argmax(x, dim=1)
        some[r], all_[r] = T.any(x > 3, dim=1), T.all(x < 3, dim=1)
        column[r, :] = T.max(x, dim=0)[None, :] + T.arange(N) * 0.5
        acc = T.zeros((r, N))
        for k in range(3):
            acc = acc + x * Z[:] + k
        grown[r, :] = acc
    return first, some, all_, column, grown


@each_target
@pytest.mark.parametrize("columns", [200, 203])
@pytest.mark.parametrize("schedule", [{}, {"tiles": {"N": 32}}, {"tiles": {"N": 32}, "cluster": 2}])
def test_words_along_and_across_pieces(target, columns, schedule):
    x = np.random.default_rng(3).standard_normal((6, columns)).astype(np.float32)
    z = np.random.default_rng(4).standard_normal(columns).astype(np.float32)
    x[1, 100] = x[1, 150] = 5
    x[4, 120] = np.nan
    first, some, all_, column, grown = run(everything, target, schedule, x, z)
    assert first.tolist() == np.argmax(x, 1).tolist()
    assert some.tolist() == (x > 3).any(1).tolist()
    assert all_.tolist() == (x < 3).all(1).tolist()
    want = np.repeat(x.reshape(3, 2, -1).max(1), 2, 0) + np.arange(columns) * 0.5
    np.testing.assert_allclose(column, want, 1e-6)
    np.testing.assert_allclose(grown, 3 * x * z + 3, 1e-5, 1e-5)


def test_a_row_too_long_for_a_block_is_loaded_again():
    """Nothing holds 300000 floats in a block; each pass reads them."""
    kernel = values.softmax.on("cuda -arch=sm_80")
    source = kernel.compile(np.zeros((2, 300000), ml_dtypes.bfloat16)).get_kernel_source()
    assert source.count("load_global") >= 3


def test_a_store_to_the_row_that_is_read_keeps_its_numbers():
    @tw.jit(target="interp -sanitize")
    def twice(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for r in T.tile(M):
            x = T.load(X[r, :])
            X[r, :] = x * 2
            Y[r, :] = x
        return Y

    x = np.random.default_rng(0).standard_normal((3, 300)).astype(np.float32)
    kept = x.copy()
    np.testing.assert_array_equal(twice.with_schedule(tiles={"N": 32})(x), kept)
    np.testing.assert_array_equal(x, kept * 2)


@pytest.mark.parametrize("rows, is_one", [(1024, True), (65536, False)])
def test_a_tensor_of_many_elements_is_not_counted_as_one_row(rows, is_one):
    """65536 rows of 50257 are more than 32 bits count."""
    source = values.softmax.on("cuda -arch=sm_90a").compile(M=rows, N=50257).get_kernel_source()
    assert ("X_flat" in source) is is_one


# several boxes of a tensor map; no box, because its bytes are no multiple of 128; rows that begin
# anywhere
@pytest.mark.parametrize("columns", [20032, 86400, 50257])
def test_a_row_is_loaded_at_once(columns):
    source = values.softmax.on("cuda").compile(drawn(0, 4, columns)).get_kernel_source()
    assert source.count("bulk_row<") == 1 and "cp_async" not in source
