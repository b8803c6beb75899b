"""What the puzzles are checked with: arguments, results, hints."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Puzzle:
    """`sizes` are arguments of `puzzle`; `make(rng, *sizes)` gives the kernel's arguments with what
    each written one must be afterwards, by position. Words in `uses` must stand in the kernel."""

    name: str
    sizes: tuple[tuple[int, ...], ...]
    make: Callable[..., tuple[list[Any], dict[int, Any]]]
    hints: tuple[str, ...]
    uses: tuple[str, ...] = ()

    @property
    def number(self) -> int:
        return int(self.name[:2])

    @property
    def file(self) -> Path:
        return HERE / f"{self.name}.py"

    @property
    def solution(self) -> Path:
        return HERE / "solutions" / f"{self.name}.py"


def whole(rng: np.random.Generator, *shape: int, kind: str = "float32") -> Any:
    """Small whole numbers: sums of them are exact."""
    return rng.integers(-3, 4, shape).astype(kind)


def add_constant(rng, n):
    x = whole(rng, n)
    return [x, np.full(n, np.nan, np.float32)], {1: x + 10}


def outer_product(rng, m, n):
    a, b = whole(rng, m), whole(rng, n)
    return [a, b, np.full((m, n), np.nan, np.float32)], {2: np.outer(a, b)}


def long_rows(rng, m, n):
    x = whole(rng, m, n)
    return [x, np.full(m, np.nan, np.float32)], {1: x.sum(1)}


def dot_product(rng, n):
    a, b = whole(rng, n), whole(rng, n)
    return [a, b, np.zeros(1, np.float32)], {2: (a * b).sum(keepdims=True)}


def convolution(rng, n, k):
    x, w = whole(rng, n), whole(rng, k)
    around = np.pad(x, (k // 2, k - 1 - k // 2))
    want = np.lib.stride_tricks.sliding_window_view(around, k) @ w
    return [x, w, np.full(n, np.nan, np.float32)], {2: want}


def threads(rng, n):
    x = whole(rng, n, kind="int32")
    sums = np.pad(x, (0, -n % 128)).reshape(-1, 128).sum(1)
    return [x, np.zeros_like(sums, np.int32)], {1: sums}


def segments(rng, m, n, s):
    x, ids = whole(rng, m, n), rng.integers(0, s, m).astype(np.int32)
    want = np.zeros((s, n), np.float32)
    np.add.at(want, ids, x)
    return [x, ids, np.zeros_like(want)], {2: want}


def online_softmax(rng, m, n):
    x = 4 * rng.standard_normal((m, n), np.float32)
    e = np.exp(x - x.max(1, keepdims=True))
    return [x, np.full((m, n), np.nan, np.float32)], {1: e / e.sum(1, keepdims=True)}


def quantized(rng, m, n, k):
    a, q = whole(rng, m, k, kind="float16"), rng.integers(0, 16, (n, k)).astype(np.uint8)
    scale = rng.integers(1, 4, (n, k // 32)).astype(np.float16)
    w = (q.astype(np.float32) - 8) * np.repeat(scale, 32, axis=1)
    packed = q[:, ::2] | q[:, 1::2] << 4  # two elements a byte, the first in the low bits
    return [a, packed, scale, np.full((m, n), np.nan, np.float32)], {3: a.astype(np.float32) @ w.T}


def product(rng, m, n, k):
    return split_k(rng, m, n, k, 1)


def split_k(rng, m, n, k, splits):
    a, b = whole(rng, m, k, kind="float16"), whole(rng, k, n, kind="float16")
    return [a, b, np.zeros((m, n), np.float32)], {2: a.astype(np.float32) @ b.astype(np.float32)}


PUZZLES = (
    Puzzle("01_add_constant", ((256,), (300,)), add_constant, (
        "`for n in T.tile(N):` is the grid: each block gets a tile of N.",
        "X[n] is the tile's elements as a value; Y[n] = … stores. The last tile needs no guard.",
    )),
    Puzzle("02_outer_product", ((64, 128), (50, 70)), outer_product, (
        "`for m, n in T.tile(M, N):` is a grid of two axes.",
        "A[m] has one dimension. A[m, None] has two: the second is a 1, which broadcasts.",
    )),
    Puzzle("03_long_rows", ((8, 128), (6, 200)), long_rows, (
        "Start with `total = T.zeros((m,))`: one number for each row.",
        "A T.tile inside a kernel is a loop: `for n in T.tile(N, size=64):`.",
        "T.sum(X[m, n], dim=1) sums the rows of a tile; `total += …` carries it through the loop.",
    ), ("pipelined",)),
    Puzzle("04_dot_product", ((512,), (1000,)), dot_product, (
        "T.sum(A[n] * B[n], dim=0) is a scalar.",
        "T.atomic_add(out[0], value) adds to an element that other blocks add to as well.",
    ), ("atomic",)),
    Puzzle("05_convolution", ((256, 5), (300, 4)), convolution, (
        "`n + 1` is the tile shifted by one; a shift may be negative, and a run-time number.",
        "Reads outside of X give 0: that is the padding.",
        "W[k] with a number k is a scalar. `for k in range(K):` is a loop.",
    )),
    Puzzle("06_segments", ((32, 16, 4), (45, 20, 7)), segments, (
        "ids[m] is an integer value. Y[ids[m], :] is a row of Y for each of its elements.",
        "Rows of one segment meet there: T.atomic_add(Y[…], value).",
    ), ("atomic",)),
    Puzzle("07_online_softmax", ((2, 256), (3, 300)), online_softmax, (
        "The new maximum is T.maximum(top, T.max(x, dim=1)). Bind it to a name of its own: the old "
        "one is still needed.",
        "The sum so far counts T.exp(top - new) of what it did; the tile adds its exp(x - new).",
        "x has two dimensions, new has one: new[:, None].",
    )),
    Puzzle("08_quantized", ((64, 64, 64), (40, 50, 96)), quantized, (
        "Q[n, k] - 8 is int32; times a float it is float32.",
        "k.index are the indices of the tile: scale[n, k.index // 32] has the shape (n, k).",
        "Both sides of @ have one type, T.cast(w, 'float16'), and W is N × K: `.T`.",
    )),
    Puzzle("09_split_k", ((64, 64, 128, 2), (40, 50, 100, 3)), split_k, (
        "A third axis of the grid, `T.each(splits)`, counts by ones: s is a number.",
        "T.tile((low, high)) walks over a range; the last one ends at T.min(s * run + run, K).",
        "T.atomic_add(C[m, n], acc) adds a tile.",
    ), ("atomic", "gemm")),
    Puzzle("10_window", ((256, 5), (300, 4)), convolution, (
        "The first element that block bx needs is number bx * 128 - K // 2; T.copy takes a corner "
        "outside of X, too.",
        "Clear y, then loop over k with T.serial and over i with T.Parallel.",
    ), ("shared",)),
    Puzzle("11_pipeline", ((64, 64, 64), (40, 70, 50)), product, (
        "`for k in T.Pipelined(T.ceildiv(K, 32), num_stages=3):` means the same as T.serial.",
        "T.copy(A[row, column], a) takes the corner from A and the extent from a.",
        "T.gemm(a, b, c) adds to c: clear it first.",
    ), ("pipelined", "gemm")),
    Puzzle("12_threads", ((256,), (1000,)), threads, (
        "`x += T.shfl_xor(x, 16)` adds the value of the lane 16 away; then 8, 4, 2, 1.",
        "One lane of each warp writes its sum to warps[t // 32].",
        "Before anybody reads what another warp wrote: T.sync_threads(), for all threads.",
    ), ("shfl_xor",)),
)  # fmt: skip
