"""What users of other tile compilers report as broken, as programs with their results.

One entry of `CASES` per report and choice of sizes. Data are small integers, so that every order of
summation gives the same bits. Every road runs the same table: `test_peer_bugs.py`.

Reports that no single program shows are tests of their own:

- barriers refused under a thread-dependent `if`, layout conflicts, mistakes shown as the user's
  own, compile times, dynamic sizes, dependencies, tuning: `test_peer_bugs.py`
- errors with the user's line, never a pass dump: `errors/test_corpus.py`, one case per mistake
- caches that execute, truncated binaries: `runtime/test_cache.py`, `cuda/test_nvrtc.py`
- the cost of a launch: `cuda/test_caller.py` (no work between call and driver), raced on a GPU by
  `benchmarks/host_cost.py`
- interpreter and GPU disagreeing: this table, `cuda/test_gpu_*.py`, and the fuzzer on a GPU,
  `fuzz/test_gpu.py`
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

import tilewright.language as T


@dataclass(frozen=True)
class Example:
    """A kernel, its arguments in order, and what some of them hold afterwards, by position."""

    kernel: Any
    args: Sequence[Any]
    want: Mapping[int, np.ndarray]
    rtol: float = 0.0


@dataclass(frozen=True)
class Case:
    """One program: `report` is what goes wrong elsewhere."""

    report: str
    make: Callable[..., Example]
    choice: Mapping[str, Any] = field(default_factory=dict)

    def example(self) -> Example:
        return self.make(**self.choice)


CASES: dict[str, Case] = {}


def reported(report: str, *choices: Mapping[str, Any]) -> Callable[[Any], Any]:
    """One case for each choice of a program's sizes."""

    def keep(make: Callable[..., Example]) -> Callable[..., Example]:
        for choice in choices or ({},):
            said = "-".join(str(v) for v in choice.values()).replace(" ", "")
            CASES[f"{make.__name__}-{said}" if said else make.__name__] = Case(report, make, choice)
        return make

    return keep


def each(name: str, values: Sequence[Any], **more: Any) -> list[dict[str, Any]]:
    return [{name: value, **more} for value in values]


def integers(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-3, 4, shape).astype(dtype)


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float32) @ b.astype(np.float32)


def unwritten(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    return np.full(shape, np.nan if np.dtype(dtype).kind == "f" else -99, dtype)


# ── products ─────────────────────────────────────────────────────────────────────────────────


def gemm(
    M, N, K, block_M, block_N, block_K, stages=2, threads=128, policy="Square", swizzled=False,
    transpose_B=False,
):  # fmt: skip
    B_shape = (N, K) if transpose_B else (K, N)
    B_tile = (block_N, block_K) if transpose_B else (block_K, block_N)

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"), B: T.Tensor(B_shape, "float16"),
        C: T.Tensor((M, N), "float"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, block_K), "float16")
            b = T.alloc_shared(B_tile, "float16")
            c = T.alloc_fragment((block_M, block_N), "float32")
            if swizzled:
                T.annotate_layout(
                    {a: T.layout.make_swizzled_layout(a), b: T.layout.make_swizzled_layout(b)}
                )
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], a)
                if transpose_B:
                    T.copy(B[bx * block_N, k * block_K], b)
                else:
                    T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, c, transpose_B=transpose_B, policy=getattr(T.GemmWarpPolicy, policy))
            T.copy(c, C[by * block_M, bx * block_N])

    return main


def multiplied(M, N, K, *blocks, **options) -> Example:
    a, b = integers(M, K, dtype=np.float16, seed=1), integers(K, N, dtype=np.float16, seed=2)
    given = np.ascontiguousarray(b.T) if options.get("transpose_B") else b
    kernel = gemm(M, N, K, *blocks, **options)
    return Example(kernel, (a, given, unwritten(M, N)), {2: product(a, b)})


@reported("tile N ≡ 8 (mod 16) gives wrong numbers", *each("block_N", [8, 24, 40, 72, 136]))
def narrow_tile(block_N):
    return multiplied(64, 2 * block_N, 64, 64, block_N, 32)


@reported("tile N ≡ 8 (mod 16) gives wrong numbers", *each("block_N", [8, 24, 136]))
def narrow_tile_of_columns(block_N):
    return multiplied(64, 2 * block_N, 64, 64, block_N, 32, transpose_B=True)


@reported("K tile not a multiple of 16 drops the tail", *each("block_K", [8, 12, 20, 24, 40]))
def short_tile(block_K):
    return multiplied(32, 32, 2 * block_K + 3, 32, 32, block_K)


@reported("power-of-two tiles only", *each("block", [(48, 56, 24), (7, 5, 3), (96, 80, 112)]))
def odd_tile(block):
    return multiplied(50, 30, 20, *block)


@reported("power-of-two tiles only")
def tile_of_one():
    return multiplied(3, 5, 2, 1, 1, 1)


@reported("power-of-two tiles only", {"threads": 256}, {"threads": 384})
def large_odd_tile(threads):
    return multiplied(200, 180, 80, 192, 176, 32, threads=threads)


@reported(
    "a one-iteration pipeline deadlocks",
    *[{"stages": s, "trips": n} for s in (0, 1, 2, 3, 5) for n in (1, 2)],
)
def short_pipeline(stages, trips):
    return multiplied(16, 16, 16 * trips, 16, 16, 16, stages=stages)


@reported("a one-iteration pipeline deadlocks", *each("stages", [1, 2, 4]))
def one_large_iteration(stages):
    return multiplied(64, 64, 64, 64, 64, 64, stages=stages)


@reported(
    "more than one warpgroup along M swaps rows",
    *[
        {"threads": t, "policy": p}
        for t in (128, 256, 384)
        for p in ("Square", "FullRow", "FullCol")
    ],
)
def several_warpgroups(threads, policy):
    return multiplied(192, 48, 32, 192, 48, 32, threads=threads, policy=policy)


@reported("more than one warpgroup along M swaps rows", {"block_M": 128}, {"block_M": 256})
def two_warpgroups_of_rows(block_M):
    return multiplied(block_M, 64, 128, block_M, 64, 64, threads=256, transpose_B=True)


@reported(
    "a copy box wider than the swizzle span",
    *[{"block_K": k, "transpose_B": t} for k in (64, 72, 128, 200) for t in (False, True)],
)
def wide_box(block_K, transpose_B):
    return multiplied(32, 40, 2 * block_K, 32, 40, block_K, swizzled=True, transpose_B=transpose_B)


@reported("a copy box wider than the swizzle span", {"block_N": 96}, {"block_N": 160})
def wide_box_of_columns(block_N):
    return multiplied(64, block_N, 64, 64, block_N, 64)


# ── pipelines ────────────────────────────────────────────────────────────────────────────────


@reported(
    "a one-iteration pipeline deadlocks",
    *[{"stages": s, "n": n} for s in (0, 1, 3) for n in (0, 1, 4)],
)
def trips_known_at_launch(stages, n):
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32"), n: T.int32, O: T.Tensor((8,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((8,), "float32")
            total = T.alloc_fragment((8,), "float32")
            T.fill(total, 5)
            for k in T.Pipelined(n, num_stages=stages):
                T.copy(A[k, 0:8], a)
                for j in T.Parallel(8):
                    total[j] += a[j]
            T.copy(total, O)

    a = integers(4, 8)
    return Example(main, (a, n, unwritten(8)), {2: 5 + a[:n].sum(0)})


@reported("a pipelined read-then-overwrite is reordered", *each("stages", [0, 1, 2, 4]))
def read_then_overwritten(stages):
    @T.prim_func
    def main(A: T.Tensor((6, 16), "float32"), O: T.Tensor((6, 16), "float32")):
        with T.Kernel(1, threads=32):
            held = T.alloc_shared((16,), "float32")
            T.clear(held)
            for k in T.Pipelined(6, num_stages=stages):
                T.copy(held, O[k, 0:16])
                T.copy(A[k, 0:16], held)
                for j in T.Parallel(16):
                    held[j] = held[j] * 2

    a = integers(6, 16)
    want = np.vstack([np.zeros((1, 16), np.float32), 2 * a[:-1]])
    return Example(main, (a, unwritten(6, 16)), {1: want})


@reported("a pipelined read-then-overwrite is reordered", *each("stages", [1, 2, 3]))
def product_of_the_last_tile(stages):
    """What a product reads is filled by the copy after it, for the next iteration."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 256), "float16"), B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.clear(a)
            T.copy(B, b)
            for k in T.Pipelined(4, num_stages=stages):
                T.gemm(a, b, c)
                T.copy(A[0, k * 64], a)
            T.copy(c, C)

    a, b = integers(64, 256, dtype=np.float16, seed=1), integers(64, 64, dtype=np.float16, seed=2)
    want = product(sum(a[:, 64 * k : 64 * k + 64] for k in range(3)), b)
    return Example(main, (a, b, unwritten(64, 64)), {2: want})


@reported("a persistent loop drops tiles", *each("wave", [1, 3, 7, 64]))
def persistent(wave):
    @T.prim_func
    def main(O: T.Tensor((45, 70), "int32")):
        with T.Kernel(wave, threads=32) as block:
            for by, bx in T.Persistent([T.ceildiv(45, 8), T.ceildiv(70, 16)], wave, block):
                for i, j in T.Parallel(8, 16):
                    O[by * 8 + i, bx * 16 + j] = by * 8 + i + 1000 * (bx * 16 + j)

    want = np.add.outer(np.arange(45), 1000 * np.arange(70)).astype(np.int32)
    return Example(main, (unwritten(45, 70, dtype=np.int32),), {0: want})


@reported(
    "a persistent loop drops tiles",
    *[{"wave": w, "stages": s} for w in (1, 3, 16) for s in (1, 3)],
)
def persistent_product(wave, stages):
    @T.prim_func
    def main(
        A: T.Tensor((150, 128), "float16"), B: T.Tensor((100, 128), "float16"),
        C: T.Tensor((150, 100), "float32"),
    ):  # fmt: skip
        with T.Kernel(wave, threads=128) as block:
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((40, 64), "float16")
            c = T.alloc_fragment((64, 40), "float32")
            for by, bx in T.Persistent([T.ceildiv(150, 64), T.ceildiv(100, 40)], wave, block):
                T.clear(c)
                for k in T.Pipelined(2, num_stages=stages):
                    T.copy(A[by * 64, k * 64], a)
                    T.copy(B[bx * 40, k * 64], b)
                    T.gemm(a, b, c, transpose_B=True)
                T.copy(c, C[by * 64, bx * 40])

    a, b = integers(150, 128, dtype=np.float16, seed=1), integers(100, 128, dtype=np.float16)
    return Example(main, (a, b, unwritten(150, 100)), {2: product(a, b.T)})


@reported("a shared operand raced under warp specialization", *each("stages", [1, 3]))
def operand_rewritten_under_placement(stages):
    """The tile is filled by a copy, changed by threads, read by a product, filled again."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 64), "float16"), B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((32, 32), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((16, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=stages):
                with T.ws(0):
                    T.copy(A[0, k * 16], a)
                with T.ws(1):
                    T.copy(B[k * 16, 0], b)
                for i, j in T.Parallel(32, 16):
                    a[i, j] = a[i, j] + 1
                T.gemm(a, b, c)
                T.clear(b)
            T.copy(c, C)

    a, b = integers(32, 64, dtype=np.float16, seed=1), integers(64, 32, dtype=np.float16, seed=2)
    return Example(main, (a, b, unwritten(32, 32)), {2: product(a + np.float16(1), b)})


@reported("a shared operand raced under warp specialization", *each("stages", [1, 2, 4]))
def operand_of_two_products(stages):
    """One tile is the operand of two products, and threads write the other operand of one."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 256), "float16"), B: T.Tensor((64, 256), "float16"),
        C: T.Tensor((64, 64), "float32"), D: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            e = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            d = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(4, num_stages=stages):
                T.copy(A[0, k * 64], a)
                T.copy(B[0, k * 64], b)
                T.gemm(a, b, c, transpose_B=True)
                for i, j in T.Parallel(64, 64):
                    e[i, j] = b[i, j] + a[i, j]
                T.gemm(a, e, d, transpose_B=True)
            T.copy(c, C)
            T.copy(d, D)

    a, b = (integers(64, 256, dtype=np.float16, seed=s) for s in (1, 2))
    out = (unwritten(64, 64), unwritten(64, 64))
    return Example(main, (a, b, *out), {2: product(a, b.T), 3: product(a, (a + b).T)})


# ── barriers ─────────────────────────────────────────────────────────────────────────────────

BARRIERS = "barriers dropped when the active threads are not a multiple of 32 or sit under an if"


@reported(BARRIERS, *each("threads", [1, 17, 48, 100, 130]))
def threads_that_fill_no_warp(threads):
    @T.prim_func
    def main(A: T.Tensor((threads,), "int32"), O: T.Tensor((threads,), "int32")):
        with T.Kernel(1, threads=threads):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((threads,), "int32")
            s[t] = A[t]
            T.sync_threads()
            O[t] = s[threads - 1 - t]

    a = integers(threads, dtype=np.int32)
    return Example(main, (a, unwritten(threads, dtype=np.int32)), {1: a[::-1]})


@reported(BARRIERS, *each("threads", [17, 48, 100]))
def tiles_of_threads_that_fill_no_warp(threads):
    """The barriers are the compiler's own, between a tile's writer and its reader."""

    @T.prim_func
    def main(A: T.Tensor((50,), "int32"), O: T.Tensor((50,), "int32")):
        with T.Kernel(1, threads=threads):
            s = T.alloc_shared((50,), "int32")
            T.copy(A, s)
            for i in T.Parallel(50):
                O[i] = s[49 - i] * 2

    a = integers(50, dtype=np.int32)
    return Example(main, (a, unwritten(50, dtype=np.int32)), {1: 2 * a[::-1]})


@reported(BARRIERS, *each("active", [1, 20, 32, 47]))
def barrier_after_a_branch(active):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), O: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((64,), "int32")
            s[t] = 0
            T.sync_threads()
            if t < active:
                s[t] = A[t]
            T.sync_threads()
            O[t] = s[63 - t]

    a = integers(64, dtype=np.int32)
    want = np.where(np.arange(64) < active, a, 0)[::-1]
    return Example(main, (a, unwritten(64, dtype=np.int32)), {1: want})


@reported(BARRIERS)
def barrier_under_a_branch_of_the_block():
    @T.prim_func
    def main(A: T.Tensor((3, 48), "int32"), O: T.Tensor((3, 48), "int32")):
        with T.Kernel(3, threads=48) as bx:
            t = T.get_thread_binding(0)
            s = T.alloc_shared((48,), "int32")
            s[t] = A[bx, t]
            if bx % 2 == 0:
                T.sync_threads()
                O[bx, t] = s[47 - t]
            else:
                O[bx, t] = s[t]

    a = integers(3, 48, dtype=np.int32)
    want = np.stack([a[0, ::-1], a[1], a[2, ::-1]])
    return Example(main, (a, unwritten(3, 48, dtype=np.int32)), {1: want})


@reported(BARRIERS, *each("width", [32, 64, 96]))
def named_barrier_of_some_threads(width):
    @T.prim_func
    def main(A: T.Tensor((width,), "int32"), O: T.Tensor((width,), "int32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((width,), "int32")
            if t < width:
                s[t] = A[t]
                T.sync_threads(2, width)
                O[t] = s[width - 1 - t]

    a = integers(width, dtype=np.int32)
    return Example(main, (a, unwritten(width, dtype=np.int32)), {1: a[::-1]})


# ── layouts ──────────────────────────────────────────────────────────────────────────────────

SWIZZLE = "a view or op that ignores the swizzle"


@reported(SWIZZLE, {"layout": "swizzled"}, {"layout": "padded"}, {"layout": "none"})
def views_and_elements(layout):
    @T.prim_func
    def main(
        A: T.Tensor((16, 64), "float16"), V: T.Tensor((32, 32), "float16"),
        R: T.Tensor((64, 16), "float16"), E: T.Tensor((16, 64), "float16"),
        W: T.Tensor((1024,), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 64), "float16")
            t = T.alloc_shared((64, 16), "float16")
            if layout == "swizzled":
                T.annotate_layout({a: T.layout.make_swizzled_layout(a)})
            elif layout == "padded":
                T.annotate_padding({a: 8})
            T.copy(A, a)
            T.transpose(a, t)
            T.copy(t, R)
            for i, j in T.Parallel(16, 64):
                E[i, j] = a[15 - i, 63 - j]
            T.copy(T.reshape(a, (32, 32)), V)
            flat = T.reshape(a, (1024,))
            for i in T.Parallel(1024):
                W[i] = flat[1023 - i]

    a = integers(16, 64, dtype=np.float16)
    out = [unwritten(*s, dtype=np.float16) for s in ((32, 32), (64, 16), (16, 64), (1024,))]
    want = {1: a.reshape(32, 32), 2: a.T, 3: a[::-1, ::-1], 4: a.ravel()[::-1]}
    return Example(main, (a, *out), want)


@reported(SWIZZLE, {"swizzled": True}, {"swizzled": False})
def operand_filled_through_a_view(swizzled):
    """The tile that a product reads is written under another shape, and read back under both."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 32), "float16"), B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float32"), O: T.Tensor((64, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            if swizzled:
                T.annotate_layout({a: T.layout.make_swizzled_layout(a)})
            seen = T.reshape(a, (128, 32))
            T.copy(A, seen)
            T.copy(B, b)
            for i, j in T.Parallel(128, 32):
                seen[i, j] = seen[i, j] * 2
            T.gemm(a, b, c, transpose_B=True, clear_accum=True)
            T.copy(c, C)
            T.copy(a, O)

    a, b = integers(128, 32, dtype=np.float16, seed=1), integers(64, 64, dtype=np.float16, seed=2)
    twice = (a * np.float16(2)).reshape(64, 64)
    out = (unwritten(64, 64), unwritten(64, 64, dtype=np.float16))
    return Example(main, (a, b, *out), {2: product(twice, b.T), 3: twice})


@reported(SWIZZLE, {"op": "reduce"}, {"op": "cumsum"}, {"op": "atomic"}, {"op": "fill"})
def op_on_a_swizzled_tile(op):
    @T.prim_func
    def main(A: T.Tensor((16, 64), "float32"), O: T.Tensor((16, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((16, 64), "float32")
            r = T.alloc_shared((16,), "float32")
            T.annotate_layout({a: T.layout.make_swizzled_layout(a)})
            T.copy(A, a)
            if op == "reduce":
                T.reduce_sum(a, r, dim=1)
                for i, j in T.Parallel(16, 64):
                    O[i, j] = a[i, j] + r[i]
            elif op == "cumsum":
                T.cumsum(a, dim=1)
                T.copy(a, O)
            elif op == "atomic":
                for i, j in T.Parallel(16, 64):
                    T.atomic_add(a[i, j // 2], 1.0)
                T.copy(a, O)
            else:
                T.fill(a[3:5, 8:40], 7)
                T.copy(a, O)

    a = integers(16, 64)
    want = {
        "reduce": a + a.sum(1, keepdims=True),
        "cumsum": np.cumsum(a, 1),
        "atomic": a + 2 * (np.arange(64) < 32).astype(np.float32),
        "fill": np.where(
            np.outer(np.isin(np.arange(16), (3, 4)), abs(np.arange(64) - 23.5) < 16), 7, a
        ).astype(np.float32),
    }[op]
    return Example(main, (a, unwritten(16, 64)), {1: want})


@reported("layout conflicts that only say 'use shared memory'")
def uses_that_want_different_layouts():
    """An accumulator that is also transposed, reduced both ways and indexed backwards."""

    @T.prim_func
    def main(
        A: T.Tensor((32, 32), "float16"), O: T.Tensor((32, 32), "float32"),
        R: T.Tensor((32,), "float32"), S: T.Tensor((32,), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((32, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            d = T.alloc_fragment((32, 32), "float32")
            rows = T.alloc_fragment((32,), "float32")
            columns = T.alloc_fragment((32,), "float32")
            T.copy(A, a)
            T.gemm(a, a, c, clear_accum=True)
            T.reduce_sum(c, rows, dim=1)
            T.reduce_sum(c, columns, dim=0)
            for i, j in T.Parallel(32, 32):
                d[i, j] = c[j, i] + 2 * c[31 - i, j] + rows[j] - columns[i]
            T.copy(d, O)
            T.copy(rows, R)
            T.copy(columns, S)

    a = integers(32, 32, dtype=np.float16)
    c = product(a, a)
    out = (unwritten(32, 32), unwritten(32), unwritten(32))
    want = c.T + 2 * c[::-1] + c.sum(1)[None, :] - c.sum(0)[:, None]
    return Example(main, (a, *out), {1: want, 2: c.sum(1), 3: c.sum(0)})


@reported("layout conflicts that only say 'use shared memory'", *each("threads", [128, 256]))
def accumulator_that_is_an_operand(threads):
    """P·V of attention, with P changed by rows: the accumulator of one product feeds another."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"), B: T.Tensor((64, 64), "float16"),
        O: T.Tensor((128, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            s = T.alloc_fragment((128, 64), "float32")
            p = T.alloc_fragment((128, 64), "float16")
            o = T.alloc_fragment((128, 64), "float32")
            low = T.alloc_fragment((128,), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, s, transpose_B=True, clear_accum=True)
            T.reduce_max(s, low, dim=1)
            for i, j in T.Parallel(128, 64):
                p[i, j] = T.if_then_else(s[i, j] == low[i], 1.0, 0.0)
            T.gemm(p, b, o, clear_accum=True)
            T.copy(o, O)

    a, b = integers(128, 64, dtype=np.float16, seed=1), integers(64, 64, dtype=np.float16, seed=2)
    s = product(a, b.T)
    want = product(s == s.max(1, keepdims=True), b)
    return Example(main, (a, b, unwritten(128, 64)), {2: want})


# ── indices, numbers ─────────────────────────────────────────────────────────────────────────


@reported("`j % K` simplified wrongly", *each("K", [1, 2, 3, 7, 8, 12]))
def remainders_and_quotients(K):
    @T.prim_func
    def main(A: T.Tensor((5, K), "int32"), O: T.Tensor((5, 37), "int32")):
        with T.Kernel(T.ceildiv(37, 16), threads=32) as bx:
            a = T.alloc_shared((5, K), "int32")
            T.copy(A, a)
            for i, j in T.Parallel(5, 16):
                col = bx * 16 + j
                O[i, col] = a[i, col % K] + 100 * (col // K) + 10000 * ((col + 3) % K)

    a, j = integers(5, K, dtype=np.int32), np.arange(37)
    want = (a[:, j % K] + 100 * (j // K) + 10000 * ((j + 3) % K)).astype(np.int32)
    return Example(main, (a, unwritten(5, 37, dtype=np.int32)), {1: want})


@reported("`j % K` simplified wrongly", *each("K", [3, 8]))
def remainders_of_negative_numbers(K):
    @T.prim_func
    def main(O: T.Tensor((2, 40), "int32")):
        with T.Kernel(1, threads=32):
            for j in T.Parallel(40):
                O[0, j] = (j - 20) % K
                O[1, j] = (j - 20) // K

    j = np.arange(40) - 20
    want = np.stack([j % K, j // K]).astype(np.int32)
    return Example(main, (unwritten(2, 40, dtype=np.int32),), {0: want})


@reported("`frag[(i+1) % N]` reads the wrong element", *each("N", [2, 5, 32, 33, 300]))
def neighbours(N):
    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), O: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            a = T.alloc_fragment((N,), "float32")
            b = T.alloc_fragment((N,), "float32")
            T.copy(A, a)
            for i in T.Parallel(N):
                b[i] = a[(i + 1) % N] - 10 * a[(i + N - 1) % N] + 100 * a[N - 1 - i]
            T.copy(b, O)

    a = integers(N)
    want = np.roll(a, -1) - 10 * np.roll(a, 1) + 100 * a[::-1]
    return Example(main, (a, unwritten(N)), {1: want})


@reported("a large `Parallel` silently truncated", {"size": (1 << 20,)}, {"size": (1024, 1025)})
def large_parallel(size):
    total = int(np.prod(size))

    @T.prim_func
    def main(O: T.Tensor((total,), "int32")):
        with T.Kernel(1, threads=128):
            if len(size) == 1:
                for i in T.Parallel(total):
                    O[i] = i
            else:
                for i, j in T.Parallel(*size):
                    O[i * size[1] + j] = i * size[1] + j

    return Example(main, (unwritten(total, dtype=np.int32),), {0: np.arange(total, dtype=np.int32)})


@reported(
    "bf16 `exp` recursing into itself",
    *each("name", ["exp", "exp2", "log", "sqrt", "rsqrt", "tanh", "sin", "abs"]),
)
def functions_of_bfloat16(name):
    @T.prim_func
    def main(A: T.Tensor((40,), "bfloat16"), O: T.Tensor((40,), "bfloat16")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(40):
                O[i] = getattr(T, name)(A[i])

    a = np.linspace(0.1, 4, 40).astype(ml_dtypes.bfloat16)
    x = a.astype(np.float64)
    want = 1 / np.sqrt(x) if name == "rsqrt" else getattr(np, name)(x)
    return Example(main, (a, np.zeros(40, ml_dtypes.bfloat16)), {1: want}, rtol=2**-8)


@reported("a dynamic size that recompiles anyway", *each("size", [1, 31, 32, 33, 1000]))
def dynamic_size(size):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), "float32"), O: T.Tensor((m,), "float32")):
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            for i in T.Parallel(32):
                O[bx * 32 + i] = A[bx * 32 + i] * 2

    a = integers(size)
    return Example(main, (a, unwritten(size)), {1: 2 * a})
