"""y = silu(a) * b, elementwise over two matrices."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from zoo import rows


@tw.jit
def swiglu(M, N, block_M=4, block_N=512, threads=128, dtype="float32"):
    """Tiles of `block_M` rows and `block_N` columns, those of a row in neighbouring blocks."""
    matrix, across = T.Tensor((M, N), dtype), -(-N // block_N)

    @T.prim_func
    def main(A: matrix, B: matrix, Y: matrix):
        with T.Kernel(T.ceildiv(M, block_M) * across, threads=threads) as bx:
            row, column = bx // across * block_M, bx % across * block_N
            a = T.alloc_fragment((block_M, block_N), dtype)
            b = T.alloc_fragment((block_M, block_N), dtype)
            y = T.alloc_fragment((block_M, block_N), "float32")
            T.copy(A[row, column], a, cache=rows.STREAM)
            T.copy(B[row, column], b, cache=rows.STREAM)
            for i, j in T.Parallel(block_M, block_N):
                x = T.cast(a[i, j], "float32")
                y[i, j] = x * T.__sigmoid(x) * b[i, j]
            T.copy(y, Y[row, column])

    return main


def swiglu_rows(N, dtype="bfloat16", target="auto", **choice):
    """The kernel (A, B, Y) for rows of `N`, any number of them.

    A block does what the fastest plain copies do: 256 threads, one vector each of both inputs.
    """
    tile = 256 * rows.VECTOR
    width = min(tile, 1 << (N - 1).bit_length())
    plan = {"block_M": tile // width, "block_N": width, "threads": 256, **choice}
    return swiglu.on(target)(rows.ROWS, N, dtype=dtype, **plan)


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    a, b = a.astype(np.float64), b.astype(np.float64)
    return a / (1 + np.exp(-a)) * b
