"""Kernels written thread by thread: one thread per element, shuffles, votes, atomics, messages, and
other languages inside, C++ and PTX.

python examples/threads.py
TILEWRIGHT_TARGET=cuda python examples/threads.py

C++ and PTX run on a GPU only; the rest runs anywhere.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def vector_add(N, threads=128):
    """One thread per element."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32"), C: T.Tensor((N,), "float32")
    ):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            i = bx * threads + T.get_thread_binding()
            if i < N:
                C[i] = A[i] + B[i]

    return main


@tw.jit
def block_sums(N, threads=128):
    """Shuffles add up a warp, shared memory the warps, an atomic the blocks."""
    warps = threads // 32

    @T.prim_func
    def main(A: T.Tensor((N,), "float32"), total: T.Tensor((1,), "float32")):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            tx = T.get_thread_binding()
            parts = T.alloc_shared((warps,), "float32")
            x = T.alloc_var("float32", init=0.0)
            x = A[bx * threads + tx]  # outside of A is zero
            for step in (16, 8, 4, 2, 1):
                x += T.shfl_xor(x, step)
            if tx % 32 == 0:
                parts[tx // 32] = x
            T.sync_threads()
            if tx == 0:
                x = 0.0
                for w in T.serial(warps):
                    x += parts[w]
                T.atomic_add(total[0], x)

    return main


@tw.jit
def keep_positive(N):
    """What is positive, in order, one warp: a vote says who keeps, its bits where to."""

    @T.prim_func
    def main(
        A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), count: T.Tensor((1,), "int32")
    ):
        with T.Kernel(1, threads=32):
            lane = T.get_thread_binding()
            kept = T.alloc_var("int32", init=0)
            for k in T.serial(T.ceildiv(N, 32)):
                x = A[k * 32 + lane]
                voted = T.ballot(x > 0)
                before = T.popcount(voted & ((T.cast(1, "uint32") << T.cast(lane, "uint32")) - 1))
                if x > 0:
                    B[kept + T.cast(before, "int32")] = x
                kept += T.cast(T.popcount(voted), "int32")
            if lane == 0:
                count[0] = kept

    return main


@tw.jit
def histogram(N, bins):
    """Atomics on shared memory, then on global memory; an assertion about the data."""

    @T.prim_func
    def main(A: T.Tensor((N,), "int32"), H: T.Tensor((bins,), "int32")):
        with T.Kernel(T.ceildiv(N, 256), threads=256) as bx:
            tx = T.get_thread_binding()
            mine = T.alloc_shared((bins,), "int32")
            T.clear(mine)
            i = bx * 256 + tx
            if i < N:
                T.device_assert(A[i] < bins, "a value is too large")
                T.atomic_add(mine[A[i]], 1)
            T.sync_threads()
            if tx < bins:
                T.atomic_add(H[tx], mine[tx])

    return main


@tw.jit
def look(N):
    """Messages: a line of text, a value of one thread."""

    @T.prim_func
    def main(A: T.Tensor((N,), "float32")):
        with T.Kernel(1, threads=32):
            tx = T.get_thread_binding()
            if tx == 3:
                T.print("thread three is here")
                T.print(A[tx] * 2, msg="twice A[3] =")

    return main


DOT4 = r"""
__device__ int dot4(const signed char* a, const signed char* b, int c) {
  return __dp4a(*(const int*)a, *(const int*)b, c);
}
"""


@tw.jit
def int8_products(M, N, K):
    """C++ inside: four products of bytes in one instruction. C = A · Bᵀ."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "int8"), B: T.Tensor((N, K), "int8"), C: T.Tensor((M, N), "int32")
    ):
        T.import_source(DOT4)
        with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 4), threads=(32, 4)) as (bx, by):
            i = by * 4 + T.get_thread_binding(1)
            j = bx * 32 + T.get_thread_binding(0)
            if i < M and j < N:
                total = T.alloc_var("int32", init=0)
                for k in T.serial(K // 4):
                    total = T.call_extern(
                        "int32", "dot4", T.address_of(A[i, 4 * k]), T.address_of(B[j, 4 * k]), total
                    )
                C[i, j] = total

    return main


MMA = """{
.reg .b32 a0, a1, a2, a3, b0, b1;
.reg .f32 d0, d1, d2, d3;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {a0, a1, a2, a3}, [$1];
ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {b0, b1}, [$2];
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32
  {d0, d1, d2, d3}, {a0, a1, a2, a3}, {b0, b1}, {$5, $5, $5, $5};
st.global.v2.f32 [$3], {d0, d1};
st.global.v2.f32 [$4], {d2, d3};
}"""


@tw.jit
def mma_by_hand():
    """PTX inside: one warp, one matrix instruction. C = A · B, 16×16 by 16×8."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 16), "float16"),
        B: T.Tensor((16, 8), "float16"),
        C: T.Tensor((16, 8), "float32"),
    ):
        with T.Kernel(1, threads=32):
            lane = T.get_thread_binding()
            a = T.alloc_shared((16, 16), "float16")
            b = T.alloc_shared((16, 8), "float16")
            T.copy(A, a)
            T.copy(B, b)
            T.sync_threads()
            row, column = lane // 4, lane % 4 * 2  # of the accumulator's first pair
            T.ptx(
                MMA,
                T.address_of(a[lane % 16, lane // 16 * 8]),
                T.address_of(b[lane % 16, 0]),
                T.address_of(C[row, column]),
                T.address_of(C[row + 8, column]),
                T.cast(0.0, "float32"),
            )

    return main


def whole(*shape, kind="float32", low=-4, high=5, seed=0):
    return np.random.default_rng([seed, *shape]).integers(low, high, shape).astype(kind)


def examples():
    """Name → the factory with its sizes, the arguments, and what they must be afterwards."""
    a, b = whole(1000), whole(1000, seed=1)
    n = whole(700, kind="int32", low=0, high=50)
    s = whole(100, kind="int32")
    kept = s[s > 0]
    x, y = whole(9, 64, kind="int8", low=-100, high=100), whole(40, 64, kind="int8", seed=1)
    p, q = whole(16, 16, kind="float16"), whole(16, 8, kind="float16")
    return {
        "vector_add": (vector_add, (1000,), (a, b, a * 0), {2: a + b}),
        "block_sums": (block_sums, (1000,), (a, a[:1] * 0), {1: a.sum(keepdims=True)}),
        "keep_positive": (
            keep_positive, (100,), (s, s * 0, s[:1] * 0),
            {1: np.concatenate([kept, s[: 100 - len(kept)] * 0]), 2: np.array([len(kept)])},
        ),
        "histogram": (
            histogram, (700, 50), (n, n[:50] * 0), {1: np.bincount(n, minlength=50)}
        ),
        "look": (look, (8,), (a[:8],), {}),
        "int8_products": (
            int8_products, (9, 40, 64), (x, y, np.zeros((9, 40), np.int32)),
            {2: x.astype(int) @ y.astype(int).T},
        ),
        "mma_by_hand": (
            mma_by_hand, (), (p, q, np.full((16, 8), np.nan, np.float32)),
            {2: p.astype(np.float32) @ q.astype(np.float32)},
        ),
    }  # fmt: skip


GPU_ONLY = ("int8_products", "mma_by_hand")


def main():
    for name, (factory, sizes, args, want) in examples().items():
        given = [array.copy() for array in args]
        try:
            kernel = factory(*sizes)
            if kernel.target.kind == "cuda":
                import torch

                there = [torch.from_numpy(array).cuda() for array in given]
                kernel(*there)
                given = [array.cpu().numpy() for array in there]
            else:
                kernel(*given)
        except tw.TilewrightError as error:
            assert name in GPU_ONLY, error
            print(f"{name}: {error.message}")
            continue
        for at, expected in want.items():
            np.testing.assert_array_equal(given[at], expected)
        print(f"{name}: right on {kernel.target}")


if __name__ == "__main__":
    main()
