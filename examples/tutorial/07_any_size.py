"""Epilogues, types and sizes known at launch

What follows the product in the same kernel, its *epilogue*, costs no trip to memory. Sizes made
with `T.dynamic` are known at launch only: one binary serves them all, and a contract (`min`,
`max`, `multiple_of`) is checked at each call.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def linear(N, K, dtype="float16", out="float32"):
    m = T.dynamic("m", min=1)

    @T.prim_func
    def main(
        X: T.Tensor((m, K), dtype), W: T.Tensor((N, K), dtype), bias: T.Tensor((N,), "float32"),
        Y: T.Tensor((m, N), out),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 64), T.ceildiv(m, 64), threads=128) as (bx, by):
            x = T.alloc_shared((64, 32), dtype)
            w = T.alloc_shared((64, 32), dtype)
            y = T.alloc_fragment((64, 64), "float32")
            T.clear(y)
            for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
                T.copy(X[by * 64, k * 32], x)
                T.copy(W[bx * 64, k * 32], w)
                T.gemm(x, w, y, transpose_B=True)
            for i, j in T.Parallel(64, 64):
                y[i, j] = T.max(y[i, j] + bias[bx * 64 + j], 0)
            T.copy(y, Y[by * 64, bx * 64])

    return main


rng = np.random.default_rng(0)
w, bias = rng.integers(-2, 3, (96, 80)), rng.integers(-9, 9, 96)
kernel = linear(96, 80)  # compiled once
for m in (1, 33, 200):
    x = rng.integers(-2, 3, (m, 80))
    y = np.empty((m, 96), np.float32)
    kernel(x.astype(np.float16), w.astype(np.float16), bias.astype(np.float32), y)
    assert (y == np.maximum(x @ w.T + bias, 0)).all()

# Arguments are checked before anything runs. The error names the parameter, what was declared and
# what came.

try:
    kernel(np.zeros((200, 81), np.float16), w.astype(np.float16), bias.astype(np.float32), y)
except tw.LaunchError as error:
    print(error)

#     X has the wrong size in dimension 1
#       expected: (200, 80), declared as (m, 80)
#       got:      (200, 81)
#       fix:      pass an array of that shape, or compile the kernel for this one

# **Try** `linear(96, 80, dtype="bfloat16")` with arrays of `ml_dtypes.bfloat16`, or
# `"float8_e4m3fn"`.
