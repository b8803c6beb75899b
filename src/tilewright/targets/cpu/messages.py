"""Lines that kernels print: from the table that generated code fills to Python's stdout.

Python's own stream, so that what redirects or captures it (notebooks, pytest, redirect_stdout)
sees kernels' lines where they belong among the program's.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import numpy as np

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const
from tilewright.support.errors import RunError
from tilewright.support.show import cut, show_line
from tilewright.targets.cpu.emit import Watch
from tilewright.targets.cpu.numbers import item_bytes


def say(watch: Watch, table: Any) -> None:
    """Print the line of a `print`; raise the error of an assertion that failed."""
    text = _text(watch, table)
    if watch.op.name == "device_assert":
        raise RunError(text, loc=watch.op.loc)
    # one write: a line of another thread cannot come between it and its end
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _text(watch: Watch, table: Any) -> str:
    """The op's text with its operands, which lie where `table` says."""
    values, at = [], 0
    for dtype, region in watch.arguments:
        if region is None:
            values.append(_memory(table[at], (), (), dtype)[()])
            at += 1
        else:
            rank = region.buffer.rank
            numbers = [int(table[at + 1 + k]) for k in range(4 * rank)]
            values.append(_tile(table[at], numbers, region, dtype))
            at += 1 + 4 * rank
    places = watch.op.width or 0
    return show_line(watch.op.text.format(*values[:places]), values[places:])


def _tile(address: int, numbers: list[int], region: Region, dtype: DType) -> Any:
    rank = region.buffer.rank
    starts, extents, sizes, strides = (numbers[k * rank : (k + 1) * rank] for k in range(4))
    box = cut(_memory(address, sizes, strides, dtype), starts, extents)
    units = (isinstance(e, Const) and e.value == 1 for e in region.extents)
    return box.reshape([n for n, unit in zip(extents, units, strict=True) if not unit])


def _memory(address: int, sizes: Any, strides: Any, dtype: DType) -> Any:
    """The elements at `address`, strides counted in elements."""
    item = item_bytes(dtype)
    if 0 in sizes:
        return np.zeros(sizes, dtype.numpy)
    reach = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    raw = (ctypes.c_char * (reach * item)).from_address(address)
    return np.ndarray(tuple(sizes), dtype.numpy, raw, 0, tuple(s * item for s in strides))
