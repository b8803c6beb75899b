"""Tiles, tails and broadcasting

A *tile* is a piece of a tensor that a block holds. `T.alloc_fragment` keeps one in registers,
spread over the block's threads; `T.copy` moves it in and out. The corner is on one side, the
extent on the other.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def scale_rows(X, S, look=False):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    S: T.Tensor((M,), "float32")
    Y = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, 4), threads=128) as bx:
        x = T.alloc_fragment((4, N), "float32")
        T.copy(X[bx * 4, 0], x)
        for i, j in T.Parallel(4, N):
            x[i, j] = x[i, j] * S[bx * 4 + i]  # one value for a whole row: a broadcast
        if look:  # decided while the kernel is built, not while it runs
            T.print(x[0:1, 0:4], msg="first row of the tile")
        T.copy(x, Y[bx * 4, 0])
    return Y


# Ten rows in blocks of four: the last block reads two rows of zeros and stores nothing there.

x, s = np.ones((10, 6), np.float32), np.arange(10, dtype=np.float32)
assert (scale_rows(x, s) == s[:, None] * x).all()

# `T.print` looks into a running kernel, on every target: a tile once per block, a scalar once per
# thread.

scale_rows(x, s, look=True)

#     block (1,): first row of the tile x[0, 0:4]: float32[4] = [4. 4. 4. 4.]

# **Try** to add a bias per column: one more tensor `B` of shape `(N,)`, and `+ B[j]`.
