"""Where elements lie: layouts of shared tiles and fragments as expressions.

Shared memory: the offset of an element is `swizzle(layout(coordinates))`. A region splits it into
a base that depends on run-time values and a layout of the tile inside, which is constant.
Registers: indices are functions of unrolled loop variables only; `fit_index` finds the expression
from the table of all their values.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np

from tilewright.ir.analysis.linear import Linear, build_sum
from tilewright.ir.layout.layout import Swizzle
from tilewright.ir.layout.ops import composition
from tilewright.ir.layout.query import modes_of
from tilewright.passes.core import *

NO_SWIZZLE = Swizzle(0, 0, 0)


@dataclass(frozen=True)
class TileAddress:
    """A region of shared memory: element (i, j, …) of its tile, unit extents dropped, lies at
    `swizzle(base + modes[0](i) + modes[1](j) + …)` elements into `buffer`."""

    buffer: Buffer
    base: Expr
    modes: tuple[Layout, ...]
    swizzle: Swizzle

    def linear(self, *coords: int) -> int:
        """The offset of a tile element from `base`, before the swizzle."""
        return sum(m(c) for m, c in zip(self.modes, coords, strict=True))

    def offsets(self) -> Indices:
        """The offset of every tile element from `base`, before the swizzle, as an array."""
        total = np.zeros((), np.int64)
        for mode in self.modes:
            total = np.add.outer(total, mode.indices())
        return total

    @property
    def swizzle_bytes(self) -> int:
        """The span in bytes (128, 64, 32) of a swizzle that the copy engine and the matrix
        instructions know; 0 for none, -1 for one they do not."""
        bits = self.buffer.dtype.bits
        return swizzle_span(self.swizzle, bits)


def swizzle_span(swizzle: Swizzle, elem_bits: int) -> int:
    """The span in bytes of a hardware swizzle: 16-byte units XORed by the 128-byte line.

    >>> swizzle_span(Swizzle(3, 3, 3), 16), swizzle_span(Swizzle(2, 4, 3), 8)
    (128, 64)
    """
    if swizzle.bits == 0:
        return 0
    unit = 1 << swizzle.base
    if swizzle.shift != 3 or unit * elem_bits != 128 or swizzle.bits > 3:
        return -1
    return 16 << swizzle.bits


def shared_layout(buffer: Buffer) -> tuple[Swizzle, Layout]:
    """The swizzle and the plain layout of a shared buffer, one mode per dimension."""
    layout = buffer.layout
    swizzle = NO_SWIZZLE
    if isinstance(layout, ComposedLayout):
        if layout.offset:
            raise CompileError(f"{buffer.name}: a layout with an offset is not supported")
        swizzle, layout = layout.swizzle, layout.layout
    if not isinstance(layout, Layout) or len(layout) != buffer.rank:
        raise CompileError(
            f"{buffer.name} needs a layout with one mode per dimension",
            expected=f"{buffer.rank} modes",
            got=repr(buffer.layout),
        )
    return swizzle, layout


def tile_address(region: Region, ranges: Ranges) -> TileAddress:
    """Split `region`'s address into a run-time base and a constant tile."""
    swizzle, layout = shared_layout(region.buffer)
    base: Expr = const(0)
    modes = []
    for dim, (start, extent) in enumerate(zip(region.starts, region.extents, strict=True)):
        size = int(extent)
        mode = layout[dim]
        _check_aligned(region.buffer, dim, mode, start, size, ranges)
        base = base + layout_expr(mode, start)
        if size != 1:
            try:
                modes.append(composition(mode, Layout(size)))
            except LayoutError:
                raise CompileError(
                    f"this region of {region.name} does not end where its layout does",
                    expected=f"an extent in dimension {dim} that is made of modes of {mode}",
                    got=str(size),
                ) from None
    return TileAddress(region.buffer, simplify(base, ranges), tuple(modes), swizzle)


def _check_aligned(
    buffer: Buffer, dim: int, mode: Layout, start: Expr, size: int, ranges: Ranges
) -> None:
    """`mode(start + i) == mode(start) + mode(i)` for i < size: no carry into a mode from below."""
    inner = 1
    for extent, _ in mode.modes()[:-1]:
        inner *= extent
        if isinstance(start, Const):
            fits = int(start.value) % inner + min(size, inner) <= inner
        else:
            step = multiple_of(start, ranges)
            fits = step == 0 or step % inner == 0 or (step % size == 0 and inner % size == 0)
        if not fits:
            raise CompileError(
                f"this region of {buffer.name} does not begin where its layout does",
                expected=f"a start in dimension {dim} that is a multiple of {inner}",
                got=str(start),
            )


def row_pitch(buffer: Buffer, ranges: Ranges) -> int:
    """What the distance of a tensor's rows is known to be a multiple of, in elements: 0 for one
    row, 1 where the elements of a row lie apart."""
    if buffer.strides is None:
        return multiple_of(buffer.shape[-1], ranges) if buffer.rank > 1 else 0
    *rows, step = buffer.strides
    together = isinstance(step, Const) and step.value == 1
    return gcd(*(multiple_of(row, ranges) for row in rows)) if together else 1


def layout_expr(layout: Layout, coord: Expr) -> Expr:
    """`layout(coord)` of a linear coordinate."""
    return _digits(layout.modes(), coord)


def _digits(modes: Sequence[tuple[int, int]], coord: Expr) -> Expr:
    """The digits of `coord`, each times its stride."""
    result: Expr = const(0, coord.dtype)
    inner = 1
    for i, (extent, stride) in enumerate(modes):
        part = coord // inner if inner > 1 else coord
        if i < len(modes) - 1:
            part = part % extent
        if stride:
            result = result + part * stride
        inner *= extent
    return result


def swizzle_expr(swizzle: Swizzle, offset: Expr) -> Expr:
    """`swizzle(offset)`."""
    if swizzle.bits == 0:
        return offset
    mask = ((1 << swizzle.bits) - 1) << swizzle.base
    return offset ^ ((offset >> swizzle.shift) & mask)


MOST_CASES = 256  # of an index that is looked up


def ravel(coords: Iterable[Any], sizes: Iterable[int]) -> Any:
    """The row-major index of an element at `coords`: expressions, or arrays of them."""
    index: Any = 0
    for coord, size in zip(coords, sizes, strict=True):
        index = index * size + coord
    return index


def fit_index(table: Indices, variables: Sequence[Var]) -> Expr | None:
    """The expression that has value `table[i, j, …]` where `variables` are i, j, …: a sum of a
    function of each. None if there is none."""
    if not table.size:  # a loop without iterations
        return const(0, INT32)
    origin = (0,) * table.ndim
    first, narrow = int(table[origin]), bool((abs(table) < 1 << 30).all())
    even: dict[Expr, int] = {}  # variables, and what they are multiplied by
    parts: list[Expr] = []
    rest = table - first
    for axis, var in enumerate(variables):
        line = rest[tuple(slice(None) if a == axis else 0 for a in range(table.ndim))]
        rest = rest - line.reshape([-1 if a == axis else 1 for a in range(table.ndim)])
        stride = int(line[1]) if len(line) > 1 else 0
        if np.array_equal(line, np.arange(len(line)) * stride):
            even[var] = stride
            continue
        # a sum that falls is worse than cases
        part = None if line.min() < 0 else _fit_line(line, var)
        if part is None:
            return None
        parts.append(part)
    if rest.any():
        return None
    if narrow and not parts and all(var.dtype is INT32 for var in even):
        # already simple
        return build_sum(Linear({var: k for var, k in even.items() if k}, first), INT32)
    return simplify(sum([*parts, *(var * k for var, k in even.items() if k)], const(first)))


def fit_registers(table: Indices, variables: Sequence[Var]) -> Expr | None:
    """As `fit_index`, by cases where there is no sum: of unrolled variables, so that every index
    is a constant in the end. None when it takes too many cases."""
    found = fit_index(table, variables)
    if found is not None or not variables or table.shape[0] > MOST_CASES:
        return found
    var = variables[0]
    if table.ndim == 1:
        falling = _fit_line(table - table[0], var)
        if falling is not None:
            return simplify(falling + int(table[0]))
        parts = _segments(table, var)
    else:
        parts = []
        for k, line in enumerate(table, 1):
            one = fit_registers(line, variables[1:])
            if one is None:
                return None
            parts.append((k, one))
    result = parts[-1][1]
    for end, part in reversed(parts[:-1]):
        result = select(var < end, part, result)
    return result


def _segments(line: Indices, var: Var) -> list[tuple[int, Expr]]:
    """Pieces that go on evenly, each with its end."""
    found: list[tuple[int, Expr]] = []
    first = 0
    while first < len(line):
        by = int(line[first + 1] - line[first]) if first + 1 < len(line) else 0
        end = first + 1
        while end < len(line) and line[end] - line[end - 1] == by:
            end += 1
        found.append((end, simplify((var - first) * by + int(line[first]))))
        first = end
    return found


def _fit_line(line: Indices, count: Expr) -> Expr | None:
    """`line[count]` as a sum of digits of `count` times strides, which may be negative."""
    modes = modes_of(line)
    return None if modes is None else _digits(modes, count)
