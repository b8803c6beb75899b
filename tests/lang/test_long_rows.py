"""Whole dimensions that a block works on piece by piece, alone or in a cluster; rows that begin
anywhere."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_threads
from tilewright.lang import sizes
from zoo import reductions, values

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


@each_target
@pytest.mark.parametrize("columns", [16, 13])
def test_a_row_outside_its_matrix_is_zeros(target, columns):
    @tw.jit
    def least(X):
        B, M, N, K = T.const("B, M, N, K")
        X: T.Tensor((B, M, N), "bfloat16")
        Y = T.empty((B, K), "bfloat16")
        for b, k in T.tile(B, K):
            Y[b, k] = T.min(X[b - 1, k + 1, :], dim=-1)
        return Y

    x = np.full((3, 2, columns), 9, ml_dtypes.bfloat16)
    kernel = least.on(target).with_schedule(tiles={"b": 1, "k": 1, "N": 8})
    got = kernel.compile(x, K=4)(x)
    assert got.astype(float).tolist() == [[0] * 4, [9, 0, 0, 0], [9, 0, 0, 0]]


@tw.jit
def carried(X):
    """Each name is read before the loop changes it; one begins as a formula, one as a load."""
    E, M, N = T.const("E, M, N")
    X: T.Tensor((E, M, N), "float32")
    Y = T.empty((M, N), "float32")
    for m in T.tile(M):
        a, b, c = T.ones((m, N)), T.full((m, N), -2, "float32"), T.load(X[0, m, :])
        for e in T.tile(T.each(E)):
            a += X[e, m, :] - b + c * T.max(c, dim=1)[:, None]
            b, c = T.minimum(-a - 4, 9), c + 1
        Y[m, :] = a - c
    return Y


@each_target
@pytest.mark.parametrize("columns", [160, 157])
@each_cut
def test_values_that_loops_change(target, columns, schedule):
    tiles = {"m" if k == "r" else k: n for k, n in schedule.get("tiles", {}).items()}
    schedule = {**schedule, "tiles": tiles}
    x = np.random.default_rng(5).integers(-3, 4, (3, 4, columns)).astype(np.float32)
    a, b, c = np.ones((4, columns)), np.full((4, columns), -2.0), x[0]
    for each in x:
        a = a + each - b + c * c.max(1, keepdims=True)
        b, c = np.minimum(-a - 4, 9), c + 1
    np.testing.assert_array_equal(run(carried, target, schedule, x), a - c)


PIECES = {"tiles": {"M": 8}}
AHEAD = {"tiles": {"M": 8, "n": 32}, "stages": 3}
PLACES = [
    ("argmax_rows", [{}, {"tiles": {"N": 64}}, {"tiles": {"N": 64}, "cluster": 2}]),
    ("argmax_columns", [{}, PIECES, AHEAD]),
]


@each_target
@pytest.mark.parametrize("rows, columns", [(24, 136), (17, 137)])
@pytest.mark.parametrize(
    "name, schedule",
    [pytest.param(n, s, id=f"{n}-{k}") for n, each in PLACES for k, s in enumerate(each)],
)
def test_the_first_place_of_the_largest(target, rows, columns, name, schedule):
    x = np.random.default_rng(3).integers(-3, 4, (rows, columns)).astype(np.float32)
    x[5], x[:, 7] = -np.inf, -np.inf  # nothing is larger than the neutral element
    x[9, 100], x[9, 20], x[14, 20] = np.nan, np.nan, np.nan
    got = run(getattr(reductions, name), target, schedule, x)
    assert got.tolist() == x.argmax(1 if "rows" in name else 0).tolist()


@each_target
@pytest.mark.parametrize("rows, columns", [(24, 136), (17, 137)])
@pytest.mark.parametrize("schedule", [{}, PIECES, AHEAD], ids=["chosen", "pieces", "ahead"])
def test_columns_that_are_read_twice(target, rows, columns, schedule):
    x = drawn(4, rows, columns).astype(np.float32)
    got = run(reductions.norm_columns, target, schedule, x)
    close(got, x / np.sqrt((x.astype(np.float64) ** 2).sum(0)), 1e-5)


LINES = [
    ("argmax_columns", 16384, "bulk"),
    ("norm_columns", 16384, "bulk"),
    ("norm_columns", 16386, "cp_async<8>"),
]


@pytest.mark.parametrize("name, columns, copy", LINES)
def test_columns_are_long_lines_that_are_loaded_ahead(name, columns, copy):
    kernel = getattr(reductions, name).on("cuda -arch=sm_90a")
    made = kernel.compile(np.broadcast_to(np.float32(0), (8192, columns)))
    assert copy in made.get_kernel_source()
    assert made.resources["shared_bytes"] > 1 << 16


def test_blocks_hide_loads_of_rows_between_vectors():
    # argmax of 20000×10002 has 3.1 TB/s, where loads of 8 bytes ran ahead 2.2
    kernel = reductions.argmax_columns.on("cuda -arch=sm_90a")
    made = kernel.compile(np.broadcast_to(np.float32(0), (20000, 10002)))
    assert "cp_async" not in made.get_kernel_source()
    assert made.resources["blocks_per_sm"] >= 3 and int(made.program.kernels[0].grid[0]) > 264


@pytest.mark.parametrize("is_each", [True, False])
def test_a_middle_dimension_has_long_lines(is_each):
    @tw.jit(target="cuda -arch=sm_90a")
    def places(X):
        B, M, N = T.const("B, M, N")
        X: T.Tensor((B, M, N), "float32")
        Y = T.empty((B, N), "int32")
        for b, n in T.tile(T.each(B) if is_each else B, N):
            Y[b, n] = T.argmax(X[b, :, n], dim=-2)
        return Y

    made = places.compile(np.broadcast_to(np.float32(0), (64, 4096, 512)))
    assert [*map(int, made.program.kernels[0].grid)] == [2, 64]  # 1024 bytes each


@pytest.mark.parametrize("columns", [138184, 149993, 151936, 207968])
def test_blocks_begin_on_lines_of_memory(columns):
    """On less, where the last block would have fewer whole steps than the others."""
    part, align = sizes._part(columns, 8, 2048, 2, True)
    unit = 32 if columns == 149993 else 64
    assert part % unit == 0 and align in (unit, 1) and (align == 1) == (columns % unit == 0)
    assert (columns - 7 * part) // 2048 == part // 2048


def test_a_block_that_has_whole_rows_has_no_padding():
    assert sizes._part(2032, 1, 512, 4, True) == (2032, 1)  # 16 bytes short of a line


def test_lines_of_a_block_are_counted_once():
    """16 whole rows are in each block: lines of 1024 bytes would leave 16 blocks."""

    @tw.jit(target="cuda -arch=sm_90a")
    def sums(X):
        N, H, M = T.const("N, H, M")
        X: T.Tensor((N, H, M), "float32")
        Y = T.empty((H, M), "float32")
        for m in T.tile(M):
            Y[:, m] = T.sum(X[:, :, m], dim=0)
        return Y

    made = sums.compile(np.broadcast_to(np.float32(0), (1000, 16, 4000)))
    assert int(made.program.kernels[0].grid[0]) >= 125 and made.resources["spill_bytes"] == 0


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

    for columns in (300, 301):  # no row begins in another block's
        x = np.random.default_rng(0).standard_normal((3, columns)).astype(np.float32)
        kept = x.copy()
        np.testing.assert_array_equal(twice.with_schedule(tiles={"N": 32})(x), kept)
        np.testing.assert_array_equal(x, kept * 2)


@each_target
@pytest.mark.parametrize("columns", [8000, 20007])
def test_rows_are_changed_in_place_by_several_blocks(target, columns):
    @tw.jit
    def centre(X, R):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        R: T.Tensor((M, N), "float32")
        for r in T.tile(M):
            x = X[r, :] + R[r, :]
            R[r, :] = x
            X[r, :] = x - T.max(x, dim=1, keepdim=True)

    rng = np.random.default_rng(0)
    x, r = (rng.integers(-9, 9, (2, columns)).astype(np.float32) for _ in range(2))
    both = x + r
    centre.on(target).with_schedule(cluster=2)(x, r)
    np.testing.assert_array_equal(r, both)
    np.testing.assert_array_equal(x, both - both.max(1, keepdims=True))


@tw.jit
def rolled(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    for r in T.tile(M):
        X[r, (T.arange(N) + 1) % N] = X[r, :]


@tw.jit
def mirrored(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    for r in T.tile(M):
        x = T.load(X[r, :])
        X[r, :] = T.cumsum(x, dim=1) + X[r, N - 1 - T.arange(N)]


@each_target
@pytest.mark.parametrize("columns", [96, 157])
@each_cut
def test_a_row_is_read_before_other_elements_of_it_are_stored(target, columns, schedule):
    x = np.random.default_rng(0).integers(-3, 4, (3, columns)).astype(np.float32)
    for kernel, want in ((rolled, np.roll(x, 1, 1)), (mirrored, x.cumsum(1) + x[:, ::-1])):
        got = x.copy()
        run(kernel, target, schedule, got)
        np.testing.assert_array_equal(got, want)


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
    loads = source.count("bulk_row<") + source.count("bulk_load_3d_evict_last(tw::")
    assert loads == 1 and "cp_async" not in source


def test_a_carried_row_may_start_as_a_column():
    """Where rows begin is known before all that is read of them."""

    @tw.jit(target="cuda -arch=sm_90a")
    def kernel(X):
        N = T.const("N")
        X: T.Tensor((N, N), "int32")
        Y = T.empty((N, N), "int32")
        for n in T.tile(N):
            c = X[:, n].T
            for _ in T.serial(2):
                c = c * 2 + X[n, :]
            Y[n, :] = c
        return Y

    assert "shift" in kernel.compile(np.zeros((1003, 1003), np.int32)).get_kernel_source()
