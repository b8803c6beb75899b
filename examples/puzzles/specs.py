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


def split_k(rng, m, n, k, splits):
    a, b = whole(rng, m, k, kind="float16"), whole(rng, k, n, kind="float16")
    return [a, b, np.zeros((m, n), np.float32)], {2: a.astype(np.float32) @ b.astype(np.float32)}


PUZZLES = (
    Puzzle("01_add_constant", ((256,), (300,)), add_constant, (
        "A loop over the block's elements is `for i in T.Parallel(128):`.",
        "Element i of block bx is number bx * 128 + i. The tail needs no guard.",
    )),
    Puzzle("02_outer_product", ((64, 128), (50, 70)), outer_product, (
        "`with T.Kernel(columns, rows, threads=128) as (bx, by):` gives two indices.",
        "How many blocks: `T.ceildiv(N, 64)` along the columns, `T.ceildiv(M, 32)` along the rows.",
        "`for i, j in T.Parallel(32, 64):` goes over a tile.",
    )),
    Puzzle("03_long_rows", ((8, 128), (6, 200)), long_rows, (
        "`for k in T.serial(T.ceildiv(N, 64)):` walks over the columns; T.copy brings a tile.",
        "T.reduce_sum(x, total, dim=1) replaces what total holds; `clear=False` adds to it.",
        "What nothing has written must not be read: T.clear(total) first.",
    )),
    Puzzle("04_dot_product", ((512,), (1000,)), dot_product, (
        "T.reduce_sum with dim=0 leaves one number in `part`.",
        "T.atomic_add(out[i], part[i]), in a T.Parallel(1): elements of a fragment are read there.",
    ), ("atomic",)),
    Puzzle("05_convolution", ((256, 5), (300, 4)), convolution, (
        "The first element that block bx needs is number bx * 128 - K // 2; T.copy takes a corner "
        "outside of X, too.",
        "Clear y, then loop over k with T.serial and over i with T.Parallel.",
    ), ("shared",)),
    Puzzle("06_threads", ((256,), (1000,)), threads, (
        "`x += T.shfl_xor(x, 16)` adds the value of the lane 16 away; then 8, 4, 2, 1.",
        "One lane of each warp writes its sum to warps[t // 32].",
        "Before anybody reads what another warp wrote: T.sync_threads(), for all threads.",
    ), ("shfl_xor",)),
    Puzzle("07_segments", ((32, 16, 4), (45, 20, 7)), segments, (
        "Rows of one segment meet at one row of Y: T.atomic_add(Y[s, j], value).",
        "Reads outside of `ids` give zero, which is a segment, too: guard with `if`, or see that "
        "what is added there is zero.",
    ), ("atomic",)),
    Puzzle("08_online_softmax", ((2, 256), (3, 300)), online_softmax, (
        "Keep the old maximum: T.copy(top, before); then T.reduce_max(x, top, dim=1, clear=False).",
        "total = total * exp(before - top), in a T.Parallel(1).",
        "Then add exp(x - top): compute it in x, and T.reduce_sum(x, total, dim=1, clear=False).",
    )),
    Puzzle("09_quantized", ((64, 64, 64), (70, 80, 96)), quantized, (
        "T.cast(q[i, j], 'float16') is the number, 0 … 15.",
        "Row i of the tile is row bx * 64 + i of `scale`; its column is k.",
        "W is N × K: T.gemm(a, w, c, transpose_B=True).",
    )),
    Puzzle("10_split_k", ((64, 64, 256, 2), (50, 70, 300, 3)), split_k, (
        "A third grid axis: T.Kernel(columns, rows, splits, threads=128) as (bx, by, bz).",
        "Block bz walks over the steps from bz * steps on; what lies behind K is zero.",
        "T.atomic_add(C[r : r + 64, s : s + 64], c) adds a tile.",
    ), ("atomic", "pipelined")),
)  # fmt: skip
