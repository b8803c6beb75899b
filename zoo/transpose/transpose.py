"""Matrix transpose, tile by tile: read in rows and written in rows, turned on the way."""

from __future__ import annotations

from math import ceil, gcd

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.layout import row_major
from zoo import rows


@tw.jit
def transpose(
    M, N, block_M=64, block_N=64, threads=256, padding=2, through="shared", staged=False,
    moved=None, fronts=(1, 1), cache=None, dtype="float32",
):  # fmt: skip
    """Through shared memory a tile is written in rows and read in columns. Where neither needs
    single elements, matrix loads turn it over; otherwise the padding puts neighbours of a column
    into different banks. Through registers the compiler turns it. With `staged` it lies in rows
    again before it is written, so that each is written at once. `moved` says by what instructions
    tiles come and go, "sync" for the threads' own loads and stores; `cache`, what the L2 cache is
    told of X. Blocks go down the columns of tiles, along rows of the result: on an H200 0.96 of a
    copy's speed, the other way 0.88. They do so from several places at once, spread evenly:
    `fronts` says how many over the columns of tiles, where these can be dealt, and down each."""
    across, (over, beneath) = ceil(N / block_N), fronts
    over = gcd(over, across)
    down = T.ceildiv(M, block_M * beneath)  # tiles of a front in a column; the last may be outside

    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((N, M), dtype)):
        with T.Kernel(down * over * beneath, across // over, threads=threads) as (by, bx):
            row = (by % beneath * down + by // (over * beneath)) * block_M
            column = (by // beneath % over * (across // over) + bx) * block_N
            alloc = T.alloc_shared if through == "shared" else T.alloc_fragment
            x = alloc((block_M, block_N), dtype)
            y = T.alloc_fragment((block_N, block_M), dtype)
            if through == "shared" and padding:
                T.annotate_padding({x: padding})
            T.copy(X[row, column], x, prefer=moved, cache=cache)
            T.transpose(x, y)
            if staged:
                z = T.alloc_shared((block_N, block_M), dtype)
                T.annotate_layout({z: None if moved else row_major((block_N, block_M))})
                T.copy(y, z)
                T.copy(z, Y[column, row], prefer=moved)
            else:
                T.copy(y, Y[column, row])

    return main


ALIGNED = T.dynamic("m", min=rows.VECTOR, multiple_of=rows.VECTOR)


# Columns up to which a gibibyte is turned from so many fronts; longer rows from one. On an H200, as
# a part of the speed of a copy that tells the L2 cache the same (one that does not: 0.982), against
# one front: 0.951 and 0.940 at 256 columns, 0.951 at 512, 0.954 and 0.940 at 1024, 0.960 and 0.947
# at 2048, 0.962 and 0.953 at 4096, 0.971 and 0.919 at 65536, 0.970 and 0.928 at 131072. One has
# 0.966 at 8192, 0.970 at 16384, 0.974 at 32768, 0.966 at 262144.
FRONTS = (
    (256, (2, 2)),
    (512, (2, 1)),
    (2048, (1, 4)),
    (4096, (1, 2)),
    (32768, (1, 1)),
    (65536, (2, 1)),
    (131072, (4, 1)),
)


def transpose_rows(N, aligned=False, dtype="bfloat16", target="auto", **choice):
    """The kernel (X, Y) for rows of `N`, any number of them.

    With `aligned` their number is a multiple of 8, which whole vectors of the result need: its rows
    are as long as there are rows here. Tiles are then as wide as memory likes: moved in rows of 128
    bytes either way, even without turning them, tiles reach 0.87 of a copy's speed on an H200, in
    rows of 256 bytes 0.94. Threads move them better than the bulk engine does: 0.93 against 0.91 at
    256 columns, 0.96 against 0.95 at 4096, 0.97 against 0.96 at 16384; 512 of them up to 0.003
    better than 256. What they load is kept in the L2 cache longer than what they store, which gains
    0.02; words about the stores gain nothing.
    """
    if aligned and N % rows.VECTOR == 0 and not choice:
        fronts = next((count for most, count in FRONTS if most >= N), (1, 1))
        choice = {"block_M": 128, "block_N": 128, "threads": 512, "padding": 0, "staged": True}
        choice.update(moved="sync", fronts=fronts, cache="evict_last")
    return transpose.on(target)(ALIGNED if aligned else rows.ROWS, N, dtype=dtype, **choice)


def reference(x: np.ndarray) -> np.ndarray:
    return x.T
