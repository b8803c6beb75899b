"""Transpose: shared memory and layouts

Threads of a block exchange data through *shared memory*: `T.alloc_shared`. A transpose reads rows
and writes rows, so that memory sees long contiguous runs both times; the turn happens in the tile
between.
"""

from tempfile import gettempdir

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.layout import bank_conflicts, draw, make_swizzled_layout, repeat, row_major, spatial


@tw.jit
def transpose(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((N, M), "float32")
    with T.Kernel(T.ceildiv(N, 32), T.ceildiv(M, 32), threads=128) as (bx, by):
        tile = T.alloc_shared((32, 32), "float32")
        T.copy(X[by * 32, bx * 32], tile)
        for i, j in T.Parallel(32, 32):
            Y[bx * 32 + i, by * 32 + j] = tile[j, i]
    return Y


x = np.random.default_rng(0).standard_normal((70, 100), np.float32)
assert (transpose(x) == x.T).all()

# Shared memory has 32 *banks*; lanes of a warp that want different words of one bank wait for
# each other. A tile of 32 floats a row puts a whole column into one bank. A *layout* says where
# an element lies, and can be asked. Here 32 threads hold a row each, so that each access of a
# warp is a column; a swizzle spreads it.

columns = spatial(32, 1) * repeat(1, 32)
for layout in (row_major((32, 32)), make_swizzled_layout((32, 32), 32)):
    cost = bank_conflicts(layout, columns, elem_bytes=4)
    print(f"{layout!r}: {cost.wavefronts} wavefronts where {cost.ideal} would do")

# A picture of the swizzle, banks as colours:

draw(make_swizzled_layout((8, 32), 32), f"{gettempdir()}/swizzled.svg")

# **Try** `T.annotate_layout({tile: T.layout.make_swizzled_layout(tile)})` or
# `T.annotate_padding({tile: 1})` in the kernel. Results stay the same; step 8 shows how to see
# what it brings.
