"""Kernels over tile values mean the same at every choice of tiles, on every target."""

from itertools import pairwise
from math import erf

import ml_dtypes
import numpy as np
import pytest

import tests.roads  # noqa: F401  (cuda_threads)
import tilewright as tw
import tilewright.language as T
from zoo import values
from zoo.attention import values as attention
from zoo.gemm import values as products

TARGETS = ["interp -sanitize", "cpu"]
BF16 = ml_dtypes.bfloat16


def drawn(seed, *shape, dtype=BF16):
    return np.random.default_rng(seed).standard_normal(shape, np.float32).astype(dtype)


def wide(x):
    return x.astype(np.float32)


def close(got, want, tolerance=2e-2):
    error = np.abs(wide(np.asarray(got)) - want)
    assert np.all(error <= tolerance * (1 + np.abs(want))), error.max()


def normal(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def run(kernel, target, tiles, *args):
    return kernel.on(target).with_schedule(tiles=tiles)(*args)


each_target = pytest.mark.parametrize("target", TARGETS)


@each_target
@pytest.mark.parametrize("rows, shape", [(None, (7, 40)), (4, (9, 33)), (1, (3, 64)), (16, (5, 1))])
def test_softmax(target, rows, shape):
    x = drawn(0, *shape)
    tiles = {} if rows is None else {"r": rows}
    close(run(values.softmax, target, tiles, x), normal(wide(x)))


@each_target
@pytest.mark.parametrize("rows, shape", [(None, (7, 40)), (4, (9, 33))])
def test_layer_norm(target, rows, shape):
    x, w, b = drawn(0, *shape), drawn(1, shape[1]), drawn(2, shape[1])
    mean, var = wide(x).mean(1, keepdims=True), wide(x).var(1, keepdims=True)
    want = (wide(x) - mean) / np.sqrt(var + 1e-5) * wide(w) + wide(b)
    close(run(values.layer_norm, target, {} if rows is None else {"r": rows}, x, w, b), want)


@each_target
def test_cross_entropy(target):
    x, labels = drawn(0, 9, 33), np.arange(9, dtype=np.int32) * 3
    labels[4] = -1
    want = np.log(np.exp(wide(x)).sum(1)) - wide(x)[np.arange(9), labels]
    want[4] = 0
    close(run(values.cross_entropy, target, {"r": 4}, x, labels), want)


@each_target
@pytest.mark.parametrize("tiles", [{}, {"m": 16, "n": 32, "k": 16}, {"m": 64, "n": 16, "k": 48}])
def test_linear(target, tiles):
    a, b, bias = drawn(0, 50, 70), drawn(1, 70, 40), drawn(2, 40, dtype=np.float32)

    x = wide(a) @ wide(b) + bias
    close(
        run(products.linear, target, tiles, a, b, bias), x / 2 * (1 + np.vectorize(erf)(x / 2**0.5))
    )


@each_target
@pytest.mark.parametrize(
    "tiles, length", [({}, 100), ({"i": 32, "j": 16}, 50), ({"i": 16, "j": 48}, 70), ({}, 128)]
)
def test_attention(target, tiles, length):
    q, k, v = (drawn(seed, 1, 2, length, 32) for seed in range(3))
    scores = wide(q) @ wide(k).swapaxes(-1, -2) * 32**-0.5
    scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
    close(run(attention.attention, target, tiles, q, k, v), normal(scores) @ wide(v))


@each_target
def test_convolution(target):
    x, f = drawn(0, 2, 5, 7, 20), drawn(1, 3, 3, 20, 13)
    padded = np.pad(wide(x), ((0, 0), (1, 1), (1, 1), (0, 0)))
    taps = ((y, z) for y in range(3) for z in range(3))
    want = sum(padded[:, y : y + 5, z : z + 7] @ wide(f)[y, z] for y, z in taps)
    close(run(products.convolution, target, {"p": 16, "o": 16, "c": 16}, x, f), want)


@each_target
def test_rows_of_a_group_do_not_see_their_neighbours(target):
    offset = np.array([0, 30, 30, 50], np.int32)
    a, b = drawn(0, 50, 40), drawn(1, 3, 40, 24)
    a[29] = np.nan
    got = run(products.grouped, target, {"m": 16, "n": 16, "k": 16}, a, b, offset, 30)
    want = np.concatenate(
        [wide(a[low:high]) @ wide(b[e]) for e, (low, high) in enumerate(pairwise(offset))]
    )
    assert np.isnan(wide(got)).any(1).nonzero()[0].tolist() == [29]
    close(np.delete(got, 29, 0), np.delete(want, 29, 0))


@each_target
def test_pages_beyond_the_end_are_not_seen(target):
    lens, table = np.array([37, 60], np.int32), np.arange(16, dtype=np.int32).reshape(2, 8)[:, ::-1]
    q, k, v = drawn(0, 2, 2, 16, 32), drawn(1, 16, 8, 2, 32), drawn(2, 16, 8, 2, 32)
    k[table[0, 4], 5:] = v[table[0, 4], 5:] = np.nan  # positions 37 … of the first sequence
    table = np.ascontiguousarray(table)
    got = run(attention.paged_decode, target, {"j": 16, "splits": 2}, q, k, v, table, lens)
    for b, length in enumerate(lens):
        keys, vals = (wide(x[table[b]].reshape(-1, 2, 32)[:length]) for x in (k, v))
        for g in range(2):
            scores = wide(q[b, g]) @ keys[:, g].T * 32**-0.5
            close(got[b, g], normal(scores) @ vals[:, g])


# ── rules ────────────────────────────────────────────────────────────────────────────────────


@each_target
def test_a_formula_under_two_names_is_two_values(target):
    @tw.jit(target=target)
    def kernel(X):
        N = T.const("N")
        X: T.Tensor((N,), "int32")
        Y = T.empty((N,), "int32")
        for n in T.tile(N, size=8):
            start = n.index + 0
            for _ in range(2):
                now = start
                for _ in range(3):
                    now = now + X[n]
                X[n] = now
            Y[n] = start
        return Y

    x = np.ones(11, np.int32)
    assert kernel(x).tolist() == list(range(11))
    assert x.tolist() == [n + 3 * (n + 3) for n in range(11)]


@each_target
def test_a_reduction_that_is_asked_for_twice_is_not_shared_with_what_a_loop_changes(target):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M,), "float32")
        for m in T.tile(M, size=4):
            x = T.load(X[m, :])
            a = T.sum(x, dim=1)
            b = T.sum(x, dim=1)
            total = T.zeros((m,))
            for _ in range(3):
                total += b
                a = a + 1
            Y[m] = 10000 * T.sum(x, dim=1) + 100 * total + a
        return Y

    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    s = x.sum(1)
    assert kernel(x).tolist() == (10000 * s + 300 * s + s + 3).tolist()


@each_target
def test_a_value_keeps_its_numbers_after_a_store(target):
    @tw.jit(target=target)
    def shift(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N, size=32):
            old = X[n]
            X[n] = old + 1
            Y[n] = old * 10
        return Y

    x = np.arange(20, dtype=np.float32)
    assert shift(x).tolist() == (np.arange(20) * 10.0).tolist()
    assert x.tolist() == (np.arange(20) + 1.0).tolist()


@each_target
def test_values_of_an_arm_that_has_ended_are_left_alone(target):
    @tw.jit(target=target)
    def kernel(X, flag):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        flag: T.Tensor((2,), "int32")
        low, high = T.empty((2, N)), T.empty((2, N))
        for i, n in T.tile(T.each(2), N, size=8):
            a, b = T.load(X[n]), T.load(X[n + 1])
            for _ in range(3):
                if flag[i] > 0:
                    a, b = b, a
                else:
                    twice = a * 2
                    b, a = T.maximum(a, b), T.minimum(twice, b)
                a += 1
            low[i, n], high[i, n] = a, b
        return low, high

    x = np.array([5, 1, 4, 2, 7, 0, 3, 6, 9], np.float32)
    low, high = kernel(x, np.array([0, 1], np.int32))
    for i in range(2):
        a, b = x, np.append(x[1:], 0)
        for _ in range(3):
            b, a = (a, b) if i else (np.maximum(a, b), np.minimum(a * 2, b))
            a = a + 1
        assert low[i].tolist() == a.tolist() and high[i].tolist() == b.tolist()


@each_target
def test_padding_takes_part_in_nothing(target):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        low, first, total = T.empty((M,)), T.empty((M,), "int32"), T.empty((M,))
        for m in T.tile(M, size=4):
            best, at, acc = T.full((m,), T.inf), T.full((m,), 0, "int32"), T.ones((m,))
            for n in T.tile(N, size=8):
                x = T.exp(X[m, n])  # of a padded zero: 1
                here = T.min(x, dim=1)
                at = T.where(here < best, T.argmin(x, dim=1) + n.start, at)
                best = T.minimum(best, here)
                acc += T.mean(x, dim=1) + T.cast(T.any(x > 1e30, dim=1), "float32")
            low[m], first[m], total[m] = best, at, acc
        return low, first, total

    x = np.random.default_rng(0).uniform(1, 3, (6, 19)).astype(np.float32)
    low, first, total = kernel(x)
    np.testing.assert_allclose(low, np.exp(x).min(1), rtol=1e-5)
    assert first.tolist() == x.argmin(1).tolist()
    pieces = [np.exp(x[:, k : k + 8]).mean(1) for k in range(0, 19, 8)]
    np.testing.assert_allclose(total, 1 + sum(pieces), rtol=1e-5)


@each_target
@pytest.mark.parametrize("size", [4, 7])
def test_padding_is_neither_divided_by_nor_shifted_by(target, size):
    @tw.jit(target=target)
    def kernel(X, D):
        N = T.const("N")
        X: T.Tensor((N,), "int32")
        D: T.Tensor((N,), "int32")
        Y, Z = T.empty((N,), "int32"), T.empty((N,), "int32")
        for n in T.tile(N, size=size):
            x, d = T.load(X[n]), T.load(D[n])
            Y[n] = x // d + x % D[n]
            Z[n] = T.max(x // (N - n.index), dim=0) + (x << (N - 1 - n.index))
        return Y, Z

    x, d = np.arange(-5, 5, dtype=np.int32), np.array([1, -2, 3, 4, -5] * 2, np.int32)
    y, z = kernel(x, d)
    assert y.tolist() == (x // d + x % d).tolist()
    left = np.arange(10, 0, -1)
    tops = np.concatenate([[(x // left)[k : k + size].max()] * size for k in range(0, 10, size)])
    assert z.tolist() == (tops[:10] + (x << (left - 1))).tolist()


@each_target
@pytest.mark.parametrize("size", [4, 16])
def test_a_range_that_ends_inside_a_tensor(target, size):
    @tw.jit(target=target)
    def kernel(X, ends):
        B, M, N = T.const("B, M, N")
        X: T.Tensor((B, M, N), "float32")
        ends: T.Tensor((B,), "int32")
        Y, Z = T.empty((B, M, N), partial=True), T.empty((B, M, N), partial=True)
        total, first = T.empty((B, M)), T.empty((B, M), "int32")
        gram = T.empty((B, M, M))
        for b, m in T.tile(T.each(B), M):
            best, at, sums = T.full((m,), T.inf), T.full((m,), 0, "int32"), T.zeros((m,))
            for n in T.tile(ends[b]):
                x = T.load(X[b, m, n])
                here = T.min(x, dim=1)
                at = T.where(here < best, T.argmin(x, dim=1) + n.start, at)
                best = T.minimum(best, here)
                Y[b, m, n], Z[b, m, n] = T.cumsum(x, dim=1) + sums[:, None], X[b, m, n + 1]
                sums += T.mean(x, dim=1) * T.cast(n.stop - n.start, "float32")
            total[b, m], first[b, m] = sums, at
        for b in T.tile(T.each(B)):
            acc = T.zeros((M, M))
            for n in T.tile(ends[b]):
                x = T.exp(X[b, :, n])  # 1 in the padding
                acc += x @ X[b, :, n].T
            gram[b, :, :] = acc
        return Y, Z, total, first, gram

    x, ends = drawn(0, 4, 16, 40, dtype=np.float32), np.array([37, 16, 1, 40], np.int32)
    for b, end in enumerate(ends):
        x[b, :, end + 1 :] = np.nan
    found = kernel.with_schedule(tiles={"m": 16, "n": size})(x, ends)
    y, z, total, first, gram = map(np.asarray, found)
    for b, end in enumerate(ends):
        part, after = x[b, :, :end], np.append(x[b], np.zeros((16, 1), np.float32), 1)
        np.testing.assert_allclose(y[b, :, :end], part.cumsum(1), rtol=1e-4, atol=1e-4)
        assert (z[b, :, :end] == after[:, 1 : end + 1]).all()
        np.testing.assert_allclose(total[b], part.sum(1), rtol=1e-4, atol=1e-4)
        assert (first[b] == part.argmin(1)).all()
        np.testing.assert_allclose(gram[b], np.exp(part) @ part.T, rtol=1e-3, atol=1e-3)


@each_target
def test_integers_and_types(target):
    @tw.jit(target=target)
    def kernel(X, Y):
        N = T.const("N")
        X: T.Tensor((N,), "int8")
        Y: T.Tensor((N,), "bfloat16")
        wide, ratio, sums, kept = (
            T.empty((N,), "int32"), T.empty((N,)), T.empty((N,)), T.empty((N,), "bfloat16")
        )  # fmt: skip
        for n in T.tile(N):
            x, y = T.load(X[n]), T.load(Y[n])
            assert T.maximum(y, y).dtype == "bfloat16" and (y + y).dtype == "float32"
            assert (x + x).dtype == "int32" and (x / x).dtype == "float32"
            assert T.where(x > 0, 5, x).dtype == "int8" and T.where(x > 0, 300, x).dtype == "int32"
            assert T.where(x > 0, 2, x > 1).dtype == "int32"
            bits = T.cast(x, "uint32")
            assert (bits & 15).dtype == (bits * 3 ^ 0xFFFFFFFF).dtype == "uint32"
            assert T.where(x > 0, 0.5, x > 1).dtype == T.where(x > 0, x, 0.5).dtype == "float32"
            wide[n], ratio[n], sums[n], kept[n] = x * 100, x / 2, x + y, T.maximum(y, -y)
        return wide, ratio, sums, kept

    x, y = np.arange(-5, 6, dtype=np.int8), drawn(0, 11)
    wide_, ratio, sums, kept = kernel(x, y)
    assert wide_.tolist() == (x.astype(int) * 100).tolist()
    assert ratio.tolist() == (x / 2).tolist()
    assert sums.tolist() == (x + wide(y)).tolist()
    assert wide(kept).tolist() == np.abs(wide(y)).tolist()


@each_target
def test_scalars_are_computed_as_tiles_are(target):
    @T.macro
    def tripled(Y, number):
        Y[6], Y[7] = number * 3, (number if number > 0 else -3) * 100

    @tw.jit(target=target)
    def kernel(X, Y):
        N = T.const("N")
        X: T.Tensor((N,), "int8")
        Y: T.Tensor((N,), "bfloat16")
        whole, real, bits = T.empty((8,), "int32"), T.empty((5,)), T.empty((4,), "int8")
        for _ in T.tile():
            x, y, least = X[0], Y[0], T.min(X[:], dim=0)
            whole[0], whole[1], whole[2] = x * x, -T.load(X[0]), 100 + X[1]
            whole[3], whole[4], whole[5] = least * 2, T.maximum(x, X[1]) << 1, ~x
            tripled(whole, X[1])
            real[0], real[1], real[2] = y * y, Y[0] + T.exp(y), T.max(Y[:], dim=0) * 0.1
            real[3], real[4] = T.where(x < 0, y, Y[1]) / 3, x / 3
            for i in T.Parallel(4):  # numbers of elements keep their type
                bits[i] = X[i] * X[i] // 2
        return whole, real, bits

    x, y = np.array([-128, 127, 3, 100], np.int8), drawn(0, 4) + 1
    whole, real, bits = kernel(x, y)
    assert whole.tolist() == [16384, 128, 227, -256, 254, 127, 381, 12700]
    assert bits.tolist() == [int(n) // 2 for n in x * x]
    a, b = wide(y[0]), wide(y[0]) + np.exp(wide(y[0]))
    want = [a * a, b, wide(y.max()) * np.float32(0.1), a / 3, np.float32(-128 / 3)]
    np.testing.assert_allclose(real, want, rtol=1e-6)


@each_target
def test_words_with_a_destination_fold_no_padding_of_values(target):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float16")
        low, gram, flags = T.empty((N,)), T.empty((N, N)), T.empty((2,), "int32")
        for _ in T.tile():
            least, c = T.alloc_fragment((N,), "float32"), T.alloc_fragment((N, N), "float32")
            some, every = T.full((), 0, "int32"), T.full((), 0, "int32")
            T.fill(least, 100)
            T.clear(c)
            for m in T.tile(M, size=16):
                x = T.cast(X[m, :] + 3, "float16")
                T.reduce_min(T.cast(x, "float32")[None, :, :], least, dim=1, clear=False)
                T.gemm(x.T, x, c)
                some += T.any_of(x == 3)
                every += T.all_of(x != 0)
            low[:], gram[:, :], flags[0], flags[1] = least[:], c[:, :], some, every
        return low, gram, flags

    x = np.random.default_rng(0).integers(1, 5, (21, 16)).astype(np.float16)
    low, gram, flags = kernel(x)
    assert low.tolist() == (x + 3).min(0).tolist() and flags.tolist() == [0, 2]
    assert (gram == wide(x + 3).T @ wide(x + 3)).all()


@each_target
def test_reductions_over_several_dimensions_and_scans(target):
    @tw.jit(target=target)
    def kernel(X):
        A, B, C = T.const("A, B, C")
        X: T.Tensor((A, B, C), "float32")
        both, running, column = T.empty((A,)), T.empty((A, B, C)), T.empty((B,))
        for a in T.tile(T.each(A)):
            x = T.load(X[a, :, :])
            both[a] = T.sum(x, dim=(0, 1))
            running[a, :, :] = T.cumsum(x, dim=-1)
        for _ in T.tile(T.each(1)):
            column[:] = T.max(T.load(X[:, :, :]), dim=(0, -1))
        return both, running, column

    x = np.random.default_rng(0).standard_normal((3, 5, 8)).astype(np.float32)
    both, running, column = kernel(x)
    np.testing.assert_allclose(both, x.sum((1, 2)), rtol=1e-4)
    np.testing.assert_allclose(running, x.cumsum(-1), rtol=1e-4, atol=1e-5)
    assert column.tolist() == x.max((0, 2)).tolist()


@each_target
def test_scatters_and_atomics(target):
    @tw.jit(target=target)
    def kernel(X, where):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        where: T.Tensor((N,), "int32")
        out, bins = T.empty((N,)), T.alloc_global((4,), "int32")
        counts = T.empty((4,), "int32")
        for _ in T.tile():
            bins[:] = T.full((4,), 0, "int32")
        for n in T.tile(N, size=8):
            to = T.load(where[n])
            out[to] = X[n]
            T.atomic_add(bins[to % 4], T.full((n,), 1, "int32"))
        for _ in T.tile():
            counts[:] = bins[:]
        return out, counts

    x, where = np.arange(19, dtype=np.float32), np.random.default_rng(0).permutation(19)
    out, counts = kernel(x, where.astype(np.int32))
    assert out[where].tolist() == x.tolist()
    assert counts.tolist() == np.bincount(where % 4, minlength=4).tolist()


@each_target
def test_blocks_add_to_a_whole_tensor(target):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y, top = T.empty((N,), "float32"), T.empty((2,), "float32")
        for _ in T.tile():
            Y[:], top[:] = T.zeros((N,)), T.full((2,), -1)
        for m in T.tile(M, size=4):
            T.atomic_add(Y[:], T.sum(X[m, :], dim=0))
            T.atomic_max(top[m.index % 2], T.max(X[m, :], dim=1))
        return Y, top

    x = np.arange(54, dtype=np.float32).reshape(9, 6)
    total, top = kernel(x)
    assert total.tolist() == x.sum(0).tolist() and top.tolist() == [53, 47]


@each_target
def test_values_and_words_mix(target):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for _ in T.tile():
            tile = T.alloc_shared((M, N), "float32")
            T.copy(X, tile)
            T.copy(tile[:, :] * 2, tile)
            for i, j in T.Parallel(M, N):
                tile[i, j] = tile[i, j] + 1
            Y[:, :] = tile[:, :] - T.max(X[:, :], dim=1, keepdim=True)
        return Y

    x = np.arange(32, dtype=np.float32).reshape(4, 8)
    assert kernel(x).tolist() == (2 * x + 1 - x.max(1, keepdims=True)).tolist()


@each_target
def test_tiles_are_allocated_over_tile_indices(target):
    @tw.jit(target=target)
    def kernel(X, W):
        M, N, K = T.const("M, N, K")
        X: T.Tensor((M, K), "float16")
        W: T.Tensor((K, N), "float16")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M, size=4):
            scale = T.alloc_fragment((m,), "float32")
            top = T.alloc_shared((m, 1), "float16")
            T.clear(scale)
            for k in T.tile(K, size=4):
                x = T.alloc_shared((m, k), "float16")
                x[:, :] = T.exp(X[m, k])  # 1 in the padding, which no sum may see
                scale[:] = scale[:] + T.sum(x[:, :], dim=1)
                top[:, :] = T.max(x[:, :], dim=1, keepdim=True)
            for n in T.tile(N):
                acc = T.zeros((m, n))
                for k in T.tile(K, size=4):
                    x = T.alloc_shared((m, k), "float16")
                    x[:, :] = T.exp(X[m, k])
                    acc += x[:, :] @ W[k, n]
                Y[m, n] = acc / scale[:, None] + 0 * (top[:, :] + scale[:][:, None])
        return Y

    x, w = drawn(0, 9, 6, dtype=np.float16), drawn(1, 6, 5, dtype=np.float16)
    e = wide(np.exp(wide(x)).astype(np.float16))
    close(kernel(x, w), e @ wide(w) / e.sum(1, keepdims=True))


def test_a_size_that_happens_to_be_equal_does_not_match():
    @tw.jit(target="interp")
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M, size=4):
            tile = T.alloc_shared((4, N), "float32")
            T.clear(tile)
            Y[m, :] = tile[:, :]  # 4 rows of a tile are no rows of m
        return Y

    with pytest.raises(tw.CompileError, match="do not broadcast"):
        kernel(np.ones((4, 8), np.float32))


def test_the_text_of_a_value_names_it():
    program = attention.attention.compile(B=1, H=1, G=1, S=256, L=256, D=64).ir()
    for name in ("q", "acc", "total", "top", "fix"):
        assert f"alloc {name}" in program


@each_target
def test_none_in_an_index_is_a_dimension_of_one(target):
    @tw.jit
    def f(A, B, ids):
        M, N = T.const("M, N")
        A: T.Tensor((M, N), "float32")
        B: T.Tensor((M,), "float32")
        ids: T.Tensor((M,), "int32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M, size=4):
            x = A[m, :] + B[m, None] + B[None, 0:1] + A[..., m, None, :][:, 0, :]
            Y[m, :] = x + A[ids[m], 0, None]
        return Y

    a, b = drawn(0, 5, 3, dtype=np.float32), drawn(1, 5, dtype=np.float32)
    ids = np.array([4, 0, 0, 2, 1], np.int32)
    want = a + b[:, None] + b[0] + a + a[ids, 0, None]
    np.testing.assert_allclose(f.on(target)(a, b, ids), want, rtol=1e-6)


@each_target
def test_a_value_is_printed_without_its_padding(target, capfd):
    @tw.jit
    def f(A):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N, size=4):
            x = A[n] * 2
            T.print(x, msg="twice")
            Y[n] = x
        return Y

    f.on(target)(np.ones(5, np.float32))
    assert "block (1,): twice x[0:1]: float32[1] = [2.]" in capfd.readouterr().out


@each_target
def test_a_product_reads_a_tile_where_it_lies(target):
    @tw.jit(target=target)
    def kernel(A, B):
        M, N = T.const("M, N")
        A: T.Tensor((M, M), "float16")
        B: T.Tensor((M, N), "float16")
        Y = T.empty((3, M, N), "float32")
        for _ in T.tile():
            x = T.alloc_shared((M, M), "float16")
            T.copy(A, x)
            Y[0, :, :] = x[:, :] @ B[:, :]
            once, kept = x[:, :] @ B[:, :], T.load(x[:, :])
            T.clear(x)
            Y[1, :, :] = once
            Y[2, :, :] = kept @ B[:, :]
        return Y

    a, b = drawn(0, 16, 16, dtype=np.float16), drawn(1, 16, 8, dtype=np.float16)
    close(kernel(a, b), np.stack([wide(a) @ wide(b)] * 3))
    text = kernel.compile(a, b).ir()
    assert text.count("gemm x,") == 1


@pytest.mark.parametrize("length", [37, 5000])
@each_target
def test_rows_that_are_tiles_too_are_not_cut(target, length):
    @tw.jit(target=target)
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(T.each(M)):
            tile = T.alloc_shared((N,), "float32")
            x = T.load(X[m, :])
            T.copy(x / T.sum(x, dim=0), tile)
            Y[m, :] = tile[:] * 2 + X[m, :]
        return Y

    got = kernel(np.ones((2, length), np.float32))
    assert np.allclose(got, 2 / length + 1)


@tw.jit
def outside(X, L):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    L: T.Tensor((N,), "int32")
    shifted = T.empty((M,), "float32")
    gathered = T.empty((M,), "float32")
    mean = T.empty((M,), "float32")
    for m in T.tile(M):
        top = T.full((m,), -9)
        for n in T.tile(N):
            top = T.maximum(top, T.max(X[m, n + 1], dim=1))
        shifted[m] = top
        gathered[m] = T.min(X[m, L[:]], dim=1)
        mean[m] = T.mean(X[m, T.arange(N) * 2], dim=1)
    return shifted, gathered, mean


@pytest.mark.filterwarnings("error")
def test_reads_outside_a_tensor_are_meant():
    x, labels = np.arange(15, dtype=np.float32).reshape(3, 5) - 20, np.array([0, 9, 1, 2, -1])
    kernel = outside.on("interp -sanitize").with_schedule(tiles={"m": 2, "n": 2})
    shifted, gathered, mean = kernel(x, labels.astype(np.int32))
    assert (shifted == 0).all()
    assert (gathered == x.min(1)).all()
    close(mean, x[:, ::2].sum(1) / 5)


@tw.jit
def named_parts(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for _ in T.tile():
        all_of_it, row, two = X[:, :], X[0, :], X[0:2, 1]
        X[:, :] = T.zeros((M, N))
        Y[:, :] = all_of_it + row + T.sum(two, dim=0)
    return Y


@each_target
def test_a_name_without_a_tile_index_keeps_what_was_read(target):
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    close(named_parts.on(target)(x.copy()), x + x[0] + x[:, 1].sum())


@tw.jit
def scattered(L):
    M, N, K = T.const("M, N, K")
    L: T.Tensor((M, N, K), "int32")
    Y = T.empty((M, N, K), "int32")
    for m, n, k in T.tile(M, N, K):
        Y[M - 1 - m.index, n, k] = k.index + T.zeros((m, n, k), "int32")
    return Y


def test_default_tiles_of_what_is_only_stored():
    x = np.zeros((40, 40, 40), np.int32)
    (kernel,) = scattered.on("interp").compile(x).program.kernels
    assert np.prod([int(n) for n in kernel.grid]) >= 10
    assert (scattered.on("interp")(x) == np.arange(40)).all()


@pytest.mark.parametrize("target", [*TARGETS, "cuda_threads"])
def test_a_range_whose_end_lies_before_its_start_is_empty(target):
    @tw.jit
    def triangle(X):
        N = T.const("N")
        X: T.Tensor((N, N), "float32")
        Y = T.empty((N, N), "float32")
        for m, n in T.tile(N, N):
            acc, none = T.zeros((m, n)), T.zeros((m,))
            for k in T.tile((m.start, n.stop)):
                acc += X[m, k] @ X[k, n]
            for k in T.tile((5, 2)):
                none += T.sum(X[m, k], dim=1)
            Y[m, n] = acc + none[:, None]
        return Y

    x = np.triu(np.random.default_rng(0).integers(-3, 4, (20, 20)).astype(np.float32))
    assert (np.asarray(run(triangle, target, {"m": 8, "n": 8, "k": 4}, x)) == x @ x).all()


@pytest.mark.parametrize("target", [*TARGETS, "cuda_threads"])
@pytest.mark.parametrize("size", [2, 3, 9])
def test_a_grid_of_an_empty_range_does_nothing(target, size):
    @tw.jit
    def kernel(A):
        N = T.const("N")
        A: T.Tensor((N, N), "float16")
        C = T.empty((N, N), "float32")
        for m, n in T.tile(N, N):
            C[m, n] = 1
        for m, n in T.tile((3, N), N):
            acc = T.zeros((m, n))
            for k in T.tile((4, N)):  # in a product, too
                acc += A[m, k] @ A[k, n]
            C[m, n] = acc
        return C

    a = np.random.default_rng(0).integers(-3, 4, (size, size)).astype(np.float16)
    want = np.ones((size, size), np.float32)
    want[3:] = wide(a)[3:, 4:] @ wide(a)[4:]
    assert (np.asarray(kernel.on(target)(a)) == want).all()


def test_a_loop_over_two_axes_of_which_one_is_empty():
    @tw.jit(target="interp")
    def kernel(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N):
            y = T.load(X[n])
            for i, j in T.tile(N, (2, 2)):
                y += T.sum(X[i], dim=0) + T.sum(X[j], dim=0)
            Y[n] = y
        return Y

    assert kernel(np.ones(5, np.float32)).tolist() == [1] * 5


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu"])
def test_rows_that_begin_anywhere(target):
    """A part of rows, rows by two tile indices, a vector."""

    @tw.jit
    def sums(X, V):
        A, B, N, K = T.const("A, B, N, K")
        X: T.Tensor((A, B, N), "float32")
        V: T.Tensor((K,), "float32")
        part = T.empty((A, B), "float32")
        top = T.empty((A, B), "float32")
        total = T.empty((1,), "float32")
        for a, b in T.tile(A, B):
            part[a, b] = T.sum(X[a, b, 0:151], dim=2)
        for a, b in T.tile(A, B):
            top[a, b] = T.max(X[a, b, :], dim=2)
        for _ in T.tile():
            total[0] = T.sum(V[:], dim=0)
        return part, top, total

    x = np.random.default_rng(0).standard_normal((3, 4, 203), np.float32)
    v = np.random.default_rng(0).standard_normal(1501, np.float32)
    part, top, total = sums.on(target)(x, v)
    np.testing.assert_allclose(part, x[..., :151].sum(2), rtol=1e-4, atol=1e-4)
    assert (top == x.max(2)).all()
    np.testing.assert_allclose(total, [v.sum()], rtol=1e-4, atol=1e-4)


@each_target
@pytest.mark.parametrize("kind", [np.float16, np.int32, np.float64, BF16, np.uint8])
def test_a_tensor_without_a_type_has_the_array_s(target, kind):
    @tw.jit
    def double(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N))
        Y = T.empty((M, N), X.dtype)
        for m, n in T.tile(M, N):
            Y[m, n] = X[m, n] * 2
        return Y

    got = run(double, target, {}, np.full((3, 5), 3, kind))
    assert got.dtype == kind and (got == 6).all()
    assert str(double.on(target).compile(M=3, N=5).program.params[0].dtype) == "float32"


@each_target
def test_dimensions_of_one_place(target):
    @tw.jit
    def kernel(X):
        X: T.Tensor((1, 1), "float32")
        Y, Z = T.empty((1, 1), "float32"), T.empty((1,), "float32")
        for _ in T.tile():
            Y[:, :] = X[:, :] * 2
            Z[:] = T.full((1,), 3.0)
        return Y, Z

    y, z = run(kernel, target, {}, np.full((1, 1), 4, np.float32))
    assert (y.tolist(), z.tolist()) == ([[8]], [3])


@each_target
def test_a_whole_dimension_with_a_maximum_is_known_at_launch(target):
    @tw.jit
    def kernel(X):
        M, N = T.dynamic("M"), T.dynamic("N", min=1, max=300)
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M):
            x = T.load(X[m, :])
            Y[m, :] = T.cumsum(x - T.max(x, dim=1, keepdim=True), dim=1)
        return Y

    kernel = kernel.on(target)
    for shape in ((3, 4), (7, 300), (1, 1), (5, 257)):
        x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
        want = (x - x.max(1, keepdims=True)).cumsum(1)
        np.testing.assert_array_equal(kernel(x), want)


def test_grids_that_share_names_have_sizes_of_their_own():
    @tw.jit(target="cuda -arch=sm_90a")
    def both(X, Y):
        M, N, D = T.const("M, N, D")
        X: T.Tensor((M, D), "float32")
        Y: T.Tensor((N, D), "float32")
        dots, far = T.empty((M, N), "float32"), T.empty((M, N), "float32")
        for m, n in T.tile(M, N):
            dot = T.zeros((m, n))
            for d in T.tile(D):
                dot += X[m, d] @ Y[n, d].T
            dots[m, n] = dot
        for m, n in T.tile(M, N):
            total = T.zeros((m, n))
            for d in T.tile(D):
                total += T.sum(T.abs(X[m, None, d] - Y[None, n, d]), dim=2)
            far[m, n] = total
        return dots, far

    x = np.broadcast_to(np.float32(0), (330, 200))
    first, second = both.compile(x, x).program.kernels
    assert [*map(int, first.grid)] != [*map(int, second.grid)]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 7, 65), (5, 130, 3), (100, 100, 1000)])
@pytest.mark.parametrize("dim", [0, 1, 2])
def test_default_sizes_fit_and_go_along_memory(shape, dim):
    @tw.jit(target="cuda -arch=sm_90a")
    def most(X):
        A, B, C = T.const("A, B, C")
        X: T.Tensor((A, B, C), "float32")
        Y = T.empty(((B, C), (A, C), (A, B))[dim], "float32")
        for i, j in T.tile(*((B, C), (A, C), (A, B))[dim]):
            keys = [i, j]
            keys.insert(dim, slice(None))
            Y[i, j] = T.max(X[tuple(keys)], dim=dim)
        return Y

    made = most.compile(np.broadcast_to(np.float32(0), shape))
    assert made.resources["spill_bytes"] == 0 and made.resources["local_bytes"] == 0
    if dim < 2 and shape[2] == 1000:
        tile = next(op.buffer for op in made.program.kernels[0].body if hasattr(op, "buffer"))
        assert tile.static_shape[-1] >= 32


@pytest.mark.parametrize(
    "index, expected", [("e[m, 0:1]", "(m, 1)"), ("e[L[m, None]]", "(m, 1)"), ("e[n]", "(n,)")]
)
def test_an_update_of_fewer_elements_than_there_are_values(index, expected):
    def update(e, L, m, n):
        return {"e[m, 0:1]": lambda: e[m, 0:1], "e[n]": lambda: e[n]}.get(
            index, lambda: e[L[m, None]]
        )()

    @tw.jit(target="cpu")
    def kernel(X, L):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        L: T.Tensor((M,), "int32")
        e = T.empty((M, 1) if "0:1" in index else (N,), "float32")
        for m, n in T.tile(M, N):
            T.atomic_add(update(e, L, m, n), X[m, n])
        return e

    with pytest.raises(tw.CompileError, match="an atomic update of e") as error:
        kernel(np.ones((3, 4), np.float32), np.zeros(3, np.int32))
    assert (error.value.diagnostic.expected, error.value.diagnostic.got) == (expected, "(m, n)")


def test_a_grid_has_no_bounds_of_data():
    @tw.jit(target="cpu")
    def kernel(L):
        L: T.Tensor((1,), "int32")
        Y = T.empty((8,), "float32")
        for n in T.tile(L[0]):
            Y[n] = 1
        return Y

    with pytest.raises(tw.CompileError, match="a bound of a grid is an element of a tensor"):
        kernel(np.ones(1, np.int32))


@each_target
def test_a_sort_by_stages(target):
    """Each stage uses the one before it several times; the time to trace it must not show that."""

    @tw.jit
    def bitonic(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M):
            x = T.load(X[m, :])
            size = 2
            while size <= N:
                d = size // 2
                while d:
                    pairs = T.reshape(x, (m, N // (2 * d), 2, d))
                    a, b = pairs[:, :, 0:1, :], pairs[:, :, 1:2, :]
                    up = (T.arange(N // (2 * d)) * (2 * d) // size % 2 == 0)[:, None, None]
                    first = (T.arange(2) == 0)[:, None]
                    new = T.where(first == up, T.minimum(a, b), T.maximum(a, b))
                    x = T.reshape(new, (m, N))
                    d //= 2
                size *= 2
            Y[m, :] = x
        return Y

    x = drawn(3, 3, 32, dtype=np.float32)
    np.testing.assert_array_equal(run(bitonic, target, {}, x), np.sort(x, 1))


def test_rows_under_two_loops_fit_the_loops():
    @tw.jit(target="cuda -arch=sm_90a")
    def most(X):
        A, B, C = T.const("A, B, C")
        X: T.Tensor((A, B, C), "float32")
        Y = T.empty((A, B), "float32")
        for a, b in T.tile(A, B):
            Y[a, b] = T.max(X[a, b, :], dim=2)
        return Y

    made = most.compile(np.broadcast_to(np.float32(0), (100_000, 2, 3)))
    assert int(made.program.kernels[0].grid[0]) == 1
    assert int(made.program.kernels[0].grid[1]) < 1000
