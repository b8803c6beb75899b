"""Sizes of products on the CPU: even parts of each side, so that no block has much less to do than
the others, and tiles have no ragged end where a length has a divisor near by.

Columns and depth are as long as the second-level cache holds of B; rows are few enough that all
cores have some. A small product is one block.
"""

from __future__ import annotations

import os
from math import ceil

from tilewright.lang.builder import Builder, TileLoop

ROWS, COLUMNS, DEPTH = 256, 512, 1024  # of a tile at most
PANEL = 1 << 17  # elements of B that a block multiplies by, at most
SMALL = 1 << 20  # products that one core does in 20 to 50 µs: sharing them saves less than it costs
TURNS = 4  # blocks of a core from which on it does not matter whether all have as many


def product_sizes(builder: Builder) -> dict[TileLoop, int]:
    """Of the loops over tiles of kernels with one product whose sides are known."""
    found: dict[TileLoop, int] = {}
    for kernel in {number for number, *_ in builder.products}:
        axes = [sides for number, sides, _ in builder.products if number == kernel]
        keys, *others = dict.fromkeys(tuple(axis.key for axis in sides) for sides in axes)
        lengths = [builder.lengths.get(key, 0) for key in keys]
        loops = [builder.axes.get(key) for key in keys]
        if not others and all(lengths) and all(loop in builder.open_tiles for loop in loops):
            sizes = zip(loops, _sizes(*lengths), strict=True)
            found |= {loop: size for loop, size in sizes if loop is not None}
    return found


def _sizes(rows: int, columns: int, depth: int) -> tuple[int, int, int]:
    small = rows * columns * depth <= SMALL
    cores = 1 if small else os.cpu_count() or 1
    if small:
        wide = even_part(columns, COLUMNS)
        high = even_part(rows, max(1, PANEL // wide))
    elif rows > ROWS:
        wide = even_part(columns, COLUMNS)
        high = even_part(rows, ROWS, cores, ceil(columns / wide))
    else:  # to split them would pack B twice
        high, wide = rows, even_part(columns, COLUMNS, cores)
    return high, wide, even_part(depth, min(DEPTH, max(1, PANEL // wide)))


def even_part(length: int, most: int, cores: int = 1, beside: int = 1) -> int:
    """Of a length in parts of `most` at most, that of one: a divisor where one is near, and with
    `beside` others of each so many blocks that all cores have as many.

    >>> even_part(1000, 512), even_part(1498, 800), even_part(1021, 512), even_part(779, 128, 2)
    (500, 749, 511, 98)
    """
    least = ceil(length / most)
    parts = range(least, min(length, 2 * least + cores) + 1)
    able = [n for n in parts if n * beside % cores == 0 or n * beside >= TURNS * cores] or [least]
    near = [n for n in able[: least // 2 + 1] if length % n == 0]
    return ceil(length / (near or able)[0])
