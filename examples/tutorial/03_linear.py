"""A matrix product

After this page you can multiply matrices of any size, fuse what follows the product into the same
kernel, and choose tile sizes without touching the text.

Each block computes one tile of C. It walks along K and adds up the products of a tile of A and a
tile of B.
"""

import re

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def linear(A, B, bias):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    bias: T.Tensor((N,), "float32")
    C = T.empty((M, N), "float16")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n), "float32")
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = T.relu(acc + bias[n])
    return C


rng = np.random.default_rng(0)
a, b = rng.integers(-2, 3, (100, 70)), rng.integers(-2, 3, (70, 90))
bias = rng.integers(-9, 9, 90)
args = a.astype(np.float16), b.astype(np.float16), bias.astype(np.float32)
want = np.maximum(a @ b + bias, 0)
assert (linear(*args) == want).all()

# - The outer `T.tile` is the grid. A `T.tile` inside it is a loop: its loads run ahead of the
#   products.
# - `acc` is bound outside the loop and again inside it, so the loop carries it. Shape and type
#   stay.
# - `@` takes two float16 tiles and gives float32. `acc + bias[n]` adds along columns, because both
#   know `n`. The store rounds to float16, once.
# - The bias and the activation are the *epilogue*. They cost no trip to memory.
#
# The text says nothing of tile sizes and threads. For a GPU, the compiler chooses them with a model
# of the chip, and `explain()` lists the best. `.on("cuda")` targets Hopper, on a machine without a
# GPU, too:

kernel = linear.on("cuda").compile(M=4096, N=4096, K=4096)
told = next(line.strip() for line in kernel.explain().splitlines() if "tiles:" in line)
print(told.split("threads")[0])
print(re.search(r"wgmma_m\d+n\d+k\d+", kernel.get_kernel_source()).group())

#     tiles: m 128, n 256, k 64, 256
#     wgmma_m64n256k16

# `wgmma` is the matrix instruction of that chip. A schedule chooses by hand. It names loops by
# their variables, and changes no result; what it leaves open, the compiler still chooses:

fast = linear.with_schedule(tiles={"m": 128, "n": 128})
assert (fast(*args) == want).all()

# **The trap.** Weights are often stored as (N, K). Then the inner dimensions do not match.


@tw.jit
def by_rows(A, W):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    W: T.Tensor((N, K), "float16")
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        C[m, n] = A[m, :] @ W[n, :]
    return C


try:
    by_rows(args[0], args[1].T)
except tw.CompileError as error:
    print(error)

#     @: the shapes do not multiply
#       expected: the last dimension of the left and the first of the right are one axis
#       got:      (m, K) @ (n, K)
#       fix:      transpose one: B[n, k].T

# **Try** `W[n, :].T`, which costs nothing: the matrix instruction reads it transposed. Or two
# products in one kernel: `T.silu(A[m, k] @ G[k, n])` times `A[m, k] @ U[k, n]`, with an
# accumulator each.
