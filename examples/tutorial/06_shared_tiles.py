"""Shared tiles

After this page you can keep a tile in shared memory yourself, and mix values with words that move
tiles.

A value is computed where it is named and used where it is needed. Sometimes you want to say more:
this tile stays, all threads see it, and a loop reads it many times. `T.alloc_shared` is that
tile.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.layout import bank_conflicts, make_swizzled_layout, repeat, row_major, spatial


@tw.jit
def norm_linear(X, W, eps=1e-5):
    M, N, K = T.const("M, N, K")
    X: T.Tensor((M, K), "float16")
    W: T.Tensor((K, N), "float16")
    Y = T.empty((M, N), "float16")
    for m in T.tile(M):
        x = T.load(X[m, :])
        rows = T.alloc_shared((m, K), "float16")
        rows[:, :] = x * T.rsqrt(T.mean(x * x, dim=1, keepdim=True) + eps)
        for n in T.tile(N):
            Y[m, n] = rows[:, :] @ W[:, n]
    return Y


rng = np.random.default_rng(0)
x, w = (rng.standard_normal(s, np.float32).astype(np.float16) for s in ((50, 32), (32, 70)))
wide = x.astype(np.float32)
rows = (wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-5)).astype(np.float16)
got, want = norm_linear(x, w), rows.astype(np.float32) @ w.astype(np.float32)
np.testing.assert_allclose(got, want, rtol=1e-2, atol=1e-2)

# A block normalizes its rows once and multiplies them by all of W. `(m, K)` is the shape of the
# tile: `rows[:, :]` is a value over m and K, so it matches other values over `m`. The barrier
# between the store and the product is derived.
#
# Under the values there is a second form: words with a source and a destination. `T.copy(src,
# dst)` moves a tile, `T.gemm(a, b, c)` adds a product to a tile, `T.Parallel` loops over elements.
# The same transpose in both:


@tw.jit
def transpose(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((N, M), "float32")
    for m, n in T.tile(M, N):
        Y[n, m] = X[m, n].T
    return Y


@tw.jit
def transpose_by_hand(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((N, M), "float32")
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        tile = T.alloc_shared((32, 32), "float32")
        T.copy(X[by * 32, bx * 32], tile)
        for i, j in T.Parallel(32, 32):
            Y[bx * 32 + i, by * 32 + j] = tile[j, i]
    return Y


x = rng.standard_normal((70, 100), np.float32)
assert (transpose(x) == x.T).all() and (transpose_by_hand(x) == x.T).all()

# `T.Kernel` opens the grid in blocks: `bx` is a number, and so is every index. `T.copy` takes the
# corner from one side and the extent from the other. At the end of a tensor it reads zeros and
# stores nothing.
#
# Shared memory has 32 *banks*; lanes of a warp that want different words of one bank wait for each
# other. A tile of 32 floats a row puts a whole column into one bank. A *layout* says where an
# element lies, and a swizzle spreads the column. The compiler picks one where it can; you can ask
# what it is worth:

columns = spatial(32, 1) * repeat(1, 32)  # 32 threads, a row each: they read by columns
for layout in (row_major((32, 32)), make_swizzled_layout((32, 32), 32)):
    cost = bank_conflicts(layout, columns, elem_bytes=4)
    print(f"{layout!r}: {cost.wavefronts} wavefronts where {cost.ideal} would do")

# **The trap.** A word that writes wants memory. A value has none to write to.


@tw.jit
def doubled(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for m in T.tile(M):
        T.copy(X[m, :] * 2, Y[m, :])
    return Y


try:
    doubled(x)
except tw.CompileError as error:
    print(error)

#     T.copy writes to memory, and this is a value
#       got:      <value (m, N) float32>
#       fix:      store with an index: Y[m, n] = x; add products by `acc += a @ b`

# **Try** `T.annotate_layout({tile: T.layout.make_swizzled_layout(tile)})` in `transpose_by_hand`.
# The result stays the same; `explain()` shows the difference.
