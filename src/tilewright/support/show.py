"""How values look in what a running kernel prints: one form for every target that runs here.

`ir.messages` writes the line's beginning (block, thread, name, shape); this is the rest of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from tilewright.support import env

EDGE = 4  # elements at either end of a dimension that are shown of a large tile
WIDTH = 120


def print_limit() -> int:
    """Elements of a tile that are shown in full."""
    text = env.PRINT_LIMIT()
    return int(text) if text.isdigit() else int(env.PRINT_LIMIT.default)


def shown_count(shape: Sequence[int]) -> int:
    """How many elements of a tile too large to be shown in full are shown."""
    return prod(min(n, 2 * EDGE) for n in shape)


def left_out(shape: Sequence[int]) -> str:
    """The note after a large tile; '' where nothing is left out.

    >>> left_out((128, 128))
    '(64 of 16384 elements; TILEWRIGHT_PRINT_LIMIT=16384 shows all)'
    """
    size = prod(shape)
    if size <= print_limit() or shown_count(shape) == size:
        return ""
    return f"({shown_count(shape)} of {size} elements; {env.PRINT_LIMIT.name}={size} shows all)"


def show_line(text: str, values: Sequence[Any]) -> str:
    """A printed line: `text`, then the values, tiles of several rows on lines of their own."""
    for value in values:
        body = show_value(value)
        text += ("\n" if "\n" in body else " ") + body
    return text


def show_value(value: Any) -> str:
    """A number, or a tile with a note of what was left out.

    >>> print(show_value(np.arange(6).reshape(2, 3)))
    [[0 1 2]
     [3 4 5]]
    """
    array = np.asarray(value)
    if not array.ndim:
        return str(array[()])
    note = left_out(array.shape)
    threshold = print_limit() if note else max(array.size, 1)
    body = np.array2string(array, threshold=threshold, edgeitems=EDGE, max_line_width=WIDTH)
    return f"{body}\n{note}" if note else body


def cut(array: Any, starts: Sequence[int], extents: Sequence[int]) -> Any:
    """A box of `array`, zero where it lies outside.

    >>> cut(np.array([5, 6, 7]), [2], [3])
    array([7, 0, 0])
    """
    out = np.zeros(tuple(extents), array.dtype)
    spans = [
        (max(s, 0), max(min(s + e, n), max(s, 0)), s)
        for s, e, n in zip(starts, extents, array.shape, strict=True)
    ]
    inside = tuple(slice(first, last) for first, last, _ in spans)
    out[tuple(slice(first - s, last - s) for first, last, s in spans)] = array[inside]
    return out


def brief(value: object) -> str:
    """A value in a message: Python refuses to write integers of thousands of digits."""
    if isinstance(value, int) and value.bit_length() > 200:
        return f"{'-' * (value < 0)}2**{value.bit_length() - 1} or more"
    return f"{value!r}"[:60]
