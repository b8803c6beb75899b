"""Sizes of tiles on the CPU, chosen by a model of it."""

import random
import re
from time import process_time

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.choose import cpu_model, pick
from tilewright.lang.sizes import choose_sizes
from tilewright.lang.trace import trace_direct
from tilewright.runtime.backends import compiled_for
from tilewright.targets.cpu import host
from zoo.gemm.values import matmul
from zoo.values import softmax, swiglu, transpose


def zeros(*shape, dtype=ml_dtypes.bfloat16):
    return np.broadcast_to(np.zeros((), dtype), shape)


def chosen(kernel, *args, cores=1, monkeypatch=None, **schedule):
    if monkeypatch is not None:
        monkeypatch.setattr(host, "thread_count", lambda: cores)
    direct = kernel.on("cpu").with_schedule(**schedule).calls
    found = direct.trace(direct.bind(args, {}, partial=True))
    return {name: size for (_, name), size in found.sizes.tiles.items()}, found


def blocks(m, n, sizes):
    return -(-m // sizes["m"]) * -(-n // sizes["n"])


def test_products_have_even_parts(monkeypatch):
    rng = random.Random(0)
    for cores in (2, 4, 16):
        m, n = rng.randrange(300, 2000), rng.randrange(300, 2000)
        sizes, _ = chosen(matmul, zeros(m, 1000), zeros(1000, n), cores=cores,
                          monkeypatch=monkeypatch)  # fmt: skip
        each = blocks(m, n, sizes)
        assert each >= cores and (-(-each // cores) * cores) / each < 1.15, (m, n, sizes)


def test_small_products_are_not_shared(monkeypatch):
    alone, _ = chosen(matmul, zeros(20, 24), zeros(24, 32))
    sizes, _ = chosen(matmul, zeros(20, 24), zeros(24, 32), cores=64, monkeypatch=monkeypatch)
    assert sizes == alone and blocks(20, 32, sizes) <= 4


def test_rows_of_vectors_are_whole():
    sizes, _ = chosen(swiglu, zeros(63260, 39), zeros(63260, 39))
    assert sizes["n"] == 39
    sizes, _ = chosen(softmax, zeros(200000, 64))
    assert 4 <= sizes["r"] <= 256  # which the first-level cache holds
    sizes, _ = chosen(transpose, zeros(4096, 4096))
    assert max(sizes.values()) <= 256


def test_columns_are_summed_by_lines_of_memory():
    @tw.jit
    def sums(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N):
            Y[n] = T.sum(X[:, n], dim=0)
        return Y

    sizes, _ = chosen(sums, zeros(1061, 2374, dtype=np.float32))  # 2 columns: 4.4 times as long
    assert sizes["n"] >= 32


@tw.jit
def running(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for n in T.tile(N):
        before = T.zeros((n,))
        for r in T.tile(M):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=0) + before
            before += T.sum(x, dim=0)
    return Y


def test_rows_of_a_large_tensor_are_read_from_end_to_end(monkeypatch):
    """Each of them lies in another page: by 64 columns at a time, 3 to 4 times as long."""
    sizes, _ = chosen(running, zeros(2318, 1600, dtype=np.float32), monkeypatch=monkeypatch)
    assert sizes["n"] == 1600


def test_lines_of_a_scan_are_no_longer_than_one_may_be():
    sizes, _ = chosen(running, zeros(300000, 2, dtype=np.float32))
    assert sizes["r"] <= cpu_model.MOST_SCANNED


@pytest.mark.parametrize("width", [9, 14, 39])
def test_tiles_end_where_indices_wrap(width, monkeypatch):
    """What is divided by the width of an image is one number for a tile then."""

    @tw.jit
    def convolution(X, F):
        N, H, W, C, O = T.const("N, H, W, C, O")
        X: T.Tensor((N, H, W, C), "float32")
        F: T.Tensor((3, 3, C, O), "float32")
        Y = T.empty((N, H, W, O), "float32")
        for p, o in T.tile(N * H * W, O):
            n, y, x = p.index // (H * W), p.index // W % H, p.index % W
            acc = T.zeros((p, o))
            for dy, dx, c in T.tile(T.each(3), T.each(3), C):
                acc += X[n, y + dy - 1, x + dx - 1, c] @ F[dy, dx, c, o]
            Y[n, y, x, o] = acc
        return Y

    image = zeros(4, width, width, 24, dtype=np.float32)
    sizes, _ = chosen(
        convolution, image, zeros(3, 3, 24, 16, dtype=np.float32), monkeypatch=monkeypatch
    )
    assert width % sizes["p"] == 0 or width * width % sizes["p"] == 0


def test_what_a_schedule_says_stays_and_the_others_follow():
    sizes, found = chosen(matmul, zeros(512, 512), zeros(512, 512), tiles={"n": 48})
    assert "n" not in sizes and {"m", "k"} <= sizes.keys()
    assert "n " not in found.why["matmul"]


def test_explain_shows_the_runners_up():
    text = matmul.on("cpu").compile(zeros(300, 200), zeros(200, 100)).explain()
    (line,) = [line for line in text.splitlines() if line.strip().startswith("tiles:")]
    assert len(re.findall(r"m \d+, n \d+, k \d+: [\d.]+ µs", line)) == pick.TRIED


def test_a_candidate_takes_less_than_2_ms():
    """And a whole choice does not need to be kept on disk."""
    taken, found = [], {}

    def pick_them(builder, traced):
        sizes = choose_sizes(builder)
        for _ in range(3):
            started = process_time()
            found.update(pick.on_cpu(builder, sizes))
            taken.append(process_time() - started)
        return sizes

    with compiled_for(tw.Target.parse("cpu")):
        trace_direct(matmul.fn, (zeros(500, 400), zeros(400, 300)), pick=pick_them)
    assert min(taken) / len(found[0]) < 2e-3 and len(found[0]) > pick.TRIED


def test_sizes_that_launches_give_do_not_compile_again():
    @tw.jit
    def double(X):
        M, N = T.dynamic("M"), T.const("N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M, N), "float32")
        for m, n in T.tile(M, N):
            Y[m, n] = X[m, n] * 2
        return Y

    kernel = double.on("cpu")
    first, second = (kernel.compile(zeros(m, 40, dtype=np.float32)) for m in (3, 3000))
    assert first is second


def test_the_ladder_has_even_parts():
    assert [*cpu_model._ladder(100)][:5] == [100, 64, 50, 34, 32]


@pytest.mark.parametrize("seed", range(6))
def test_products_of_any_size(seed):
    rng = random.Random(seed)
    m, n, k = (round(300 ** rng.random()) for _ in range(3))
    draw = np.random.default_rng(seed).integers
    a, b = (draw(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert (np.asarray(matmul.on("cpu")(a, b)) == want).all()
