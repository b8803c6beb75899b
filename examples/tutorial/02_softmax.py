"""Softmax

After this page you can reduce along a dimension, broadcast the result, and look into a running
kernel.

A block takes some rows and all of their columns: `X[r, :]`.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for r in T.tile(M):
        x = T.load(X[r, :])
        e = T.exp(x - T.max(x, dim=1, keepdim=True))
        Y[r, :] = e / T.sum(e, dim=1, keepdim=True)
    return Y


x = np.random.default_rng(0).standard_normal((10, 37), np.float32)
e = np.exp(x - x.max(1, keepdims=True))
np.testing.assert_allclose(softmax(x), e / e.sum(1, keepdims=True), rtol=1e-5)

# A reduction names its dimension: `T.max(x, dim=1)` has a number for each row. `keepdim=True`
# leaves a dimension of 1 where the columns were, and a 1 that was written broadcasts. Neither 10
# rows nor 37 columns is a power of two, and nothing had to be masked: padding takes part in no
# reduction.
#
# **The trap.** Without `keepdim` the maximum has one dimension, `(r,)`. NumPy would line it up
# with the columns, and for a square matrix it would not even complain.


@tw.jit
def wrong(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for r in T.tile(M):
        Y[r, :] = X[r, :] - T.max(X[r, :], dim=1)
    return Y


try:
    wrong(np.ones((8, 8), np.float32))
except tw.CompileError as error:
    print(error)

#     `-`: the shapes do not broadcast
#       expected: dimensions of the same tile index or size, or a 1
#       got:      (r, N) and (r,)

# Dimensions match by where they came from, `r` with `r` and `N` with `N`, never because their
# sizes happen to agree. So no tile size makes a program right or wrong.
#
# `T.print` shows a value while the kernel runs, on every target, once per block:


@tw.jit
def row_sums(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M,), "float32")
    for r in T.tile(M, size=4):
        total = T.sum(X[r, :], dim=1)
        T.print(total)
        Y[r] = total
    return Y


row_sums(np.ones((6, 3), np.float32))

#     block (1,): total[0:2]: float32[2] = [3. 3.]

# **Try** log-softmax, `x - top - T.log(total)`; or the mean and the variance of each row, `T.mean`
# and `T.var`, for a layer norm.
