"""A matrix product in TileLang, for races: the form its documentation teaches, a few tile sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tilelang
import tilelang.language as T

SIZES = (
    {"block_M": 128, "block_N": 256, "threads": 256, "stages": 3},
    {"block_M": 128, "block_N": 256, "threads": 256, "stages": 4},
    {"block_M": 128, "block_N": 128, "threads": 128, "stages": 4},
    {"block_M": 256, "block_N": 128, "threads": 256, "stages": 3},
)


@tilelang.jit
def product(M, N, K, block_M, block_N, threads, stages, block_K=64, dtype="bfloat16"):
    @T.prim_func
    def main(A: T.Tensor((M, K), dtype), B: T.Tensor((K, N), dtype), C: T.Tensor((M, N), dtype)):
        with T.Kernel(T.ceildiv(N, block_N), T.ceildiv(M, block_M), threads=threads) as (bx, by):
            a = T.alloc_shared((block_M, block_K), dtype)
            b = T.alloc_shared((block_K, block_N), dtype)
            acc = T.alloc_fragment((block_M, block_N), "float")
            T.use_swizzle(panel_size=10)
            T.clear(acc)
            for k in T.Pipelined(T.ceildiv(K, block_K), num_stages=stages):
                T.copy(A[by * block_M, k * block_K], a)
                T.copy(B[k * block_K, bx * block_N], b)
                T.gemm(a, b, acc)
            T.copy(acc, C[by * block_M, bx * block_N])

    return main


def _call(kernel: Any) -> Callable[..., None]:
    def run(*arrays: Any) -> None:
        kernel(*arrays)

    return run


def products(m: int, n: int, k: int) -> dict[str, Callable[..., Any]]:
    """The kernels that can be built, by their sizes."""
    found: dict[str, Callable[..., Any]] = {}
    for sizes in SIZES:
        try:
            name = " ".join(f"{key}={value}" for key, value in sizes.items())
            found[name] = _call(product(m, n, k, **sizes))
        except Exception as error:
            print(f"tilelang {sizes}: {type(error).__name__}: {str(error)[:200]}")
    return found
