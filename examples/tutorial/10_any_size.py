"""Any size

After this page you can compile a kernel once and launch it for every size.

`T.const` sizes are known when a kernel is compiled: a new size is a new binary. `T.dynamic` sizes
are known at launch. One binary serves them all.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def linear(X, W, bias):
    m = T.dynamic("m", min=1, max=4096)
    N, K = T.const("N, K")
    X: T.Tensor((m, K), "float16")
    W: T.Tensor((N, K), "float16")
    bias: T.Tensor((N,), "float32")
    Y = T.empty((m, N), "float32")
    for i, n in T.tile(m, N):
        acc = T.zeros((i, n))
        for k in T.tile(K):
            acc += X[i, k] @ W[n, k].T
        Y[i, n] = T.relu(acc + bias[n])
    return Y


rng = np.random.default_rng(0)
w, bias = rng.integers(-2, 3, (96, 80)), rng.integers(-9, 9, 96)
rest = w.astype(np.float16), bias.astype(np.float32)
for rows in (1, 33, 200):
    x = rng.integers(-2, 3, (rows, 80))
    y = linear(x.astype(np.float16), *rest)
    assert (y == np.maximum(x @ w.T + bias, 0)).all()

# The grid is computed at launch. The text does not change, since it never said how many tiles
# there are (their sizes are given here, since the choice is the machine's):

sized = linear.with_schedule(tiles={"i": 64, "n": 64})
print(sized.compile(x.astype(np.float16), *rest).ir())

#     dim m min=1 max=4096
#     kernel linear grid (n, i) in (2, (m + 63) // 64) threads tx in 128 {

# `min`, `max` and `multiple_of` are a contract, checked at each call. So are all shapes and types.
# The error names the parameter, what was declared and what came.

try:
    linear(np.zeros((5000, 80), np.float16), *rest)
except tw.TilewrightError as error:
    print(error)

#     dimension 0 of X breaks the contract of m
#       expected: m at most 4096
#       got:      5000

# **The trap.** `:` reads a dimension whole, so its size must be known. A dynamic dimension takes a
# loop:


@tw.jit
def row_sums(X, whole):
    n = T.dynamic("n", min=1)
    M = T.const("M")
    X: T.Tensor((M, n), "float32")
    Y = T.empty((M,), "float32")
    for r in T.tile(M):
        total = T.zeros((r,))
        if whole:
            total = T.sum(X[r, :], dim=1)
        else:
            for c in T.tile(n):
                total += T.sum(X[r, c], dim=1)
        Y[r] = total
    return Y


assert row_sums(np.ones((3, 1000), np.float32), whole=False).tolist() == [1000] * 3
try:
    row_sums(np.ones((3, 1000), np.float32), whole=True)
except tw.CompileError as error:
    print(error)

#     `:` over a size that is known only at launch
#       fix:      loop over it: `for i in T.tile(n):`; or give T.dynamic a max=

# **Try** `T.dynamic("m", multiple_of=8)`, and 33 rows.
