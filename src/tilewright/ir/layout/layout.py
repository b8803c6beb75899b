"""Layouts: functions from coordinates to indices, written as a nested shape and stride.

A layout `shape:stride` takes a coordinate (a nested tuple, or a linear coordinate that counts the
left-most mode fastest) to the sum of coordinate times stride. Names and results are CuTe's; the
operations on layouts are in `ops`, questions about them in `query`, pictures in `draw`. `repr` and
f-strings give the one-line text; `str`, and so `print`, add the grid.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

IntTuple: TypeAlias = "int | tuple[IntTuple, ...]"
Indices: TypeAlias = NDArray[np.int64]
Mode: TypeAlias = tuple[int, int]
Number = TypeVar("Number", int, Indices)
S = TypeVar("S")
F = TypeVar("F", bound="_Function")

# Asking a question of a layout evaluates it everywhere; beyond this (512 MiB of indices) it is
# not a tile any more and the caller should not have asked.
MAX_EVALUATED = 1 << 26
# Rows and columns of a grid that `print` shows.
MAX_PRINTED = 32


class LayoutError(ValueError):
    """A layout that cannot exist, or an operation whose divisibility condition fails.

    >>> try:
    ...     Layout((4, 2), (1,))
    ... except LayoutError as error:
    ...     str(error)
    'shape (4,2) and stride (1) nest differently'
    """


# Nested tuples of integers


def leaves(value: IntTuple) -> tuple[int, ...]:
    """The integers of a nested tuple, left to right.

    >>> leaves((4, (2, 3)))
    (4, 2, 3)
    """
    if isinstance(value, int):
        return (value,)
    return tuple(leaf for part in value for leaf in leaves(part))


def unflatten(values: Iterator[int], profile: IntTuple) -> IntTuple:
    """Take integers from `values` into the nesting of `profile`.

    >>> unflatten(iter([1, 4, 8]), (4, (2, 3)))
    (1, (4, 8))
    """
    if isinstance(profile, int):
        return next(values)
    return tuple(unflatten(values, part) for part in profile)


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Whether two nested tuples have the same nesting.

    >>> congruent((4, (2, 3)), (0, (1, 2))), congruent((4, 6), (0, (1, 2)))
    (True, False)
    """
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(map(congruent, a, b))


def compatible(a: IntTuple, b: IntTuple) -> bool:
    """Whether every coordinate of shape `a` is also a coordinate of shape `b`.

    >>> compatible((4, 6), (4, (2, 3))), compatible((4, (2, 3)), (4, 6))
    (True, False)
    """
    if isinstance(a, int):
        return a == size(b)
    return not isinstance(b, int) and len(a) == len(b) and all(map(compatible, a, b))


def crd2idx(crd: IntTuple, shape: IntTuple, stride: IntTuple | None = None) -> int:
    """The index of a coordinate; without strides, the linear coordinate.

    An integer where the shape is nested counts the left-most mode fastest; the right-most mode is
    not wrapped, so a linear coordinate past the end runs on along it.

    >>> crd2idx((1, 5), (3, (2, 3)), (3, (12, 1)))
    17
    """
    if stride is None:
        stride = column_major(shape).stride
    if isinstance(crd, int):
        if crd < 0:
            raise LayoutError(f"coordinate {crd} of shape {_text(shape)} is negative")
        return _linear(list(zip(leaves(shape), leaves(stride), strict=True)), crd)
    if isinstance(shape, int) or isinstance(stride, int) or len(crd) != len(shape):
        raise LayoutError(f"coordinate {_text(crd)} does not fit shape {_text(shape)}")
    return sum(map(crd2idx, crd, shape, stride))


def idx2crd(idx: IntTuple, shape: IntTuple) -> IntTuple:
    """The natural coordinate (nested like `shape`) of any coordinate within `shape`.

    >>> idx2crd(16, (3, (2, 3))), idx2crd((1, 5), (3, (2, 3)))
    ((1, (1, 2)), (1, (1, 2)))
    """
    if isinstance(shape, int):
        if not isinstance(idx, int):
            raise LayoutError(f"coordinate {_text(idx)} does not fit shape {shape}")
        return idx
    if isinstance(idx, int):
        parts: list[IntTuple] = []
        for i, part in enumerate(shape):
            wrapped = idx if i == len(shape) - 1 else idx % size(part)
            parts.append(idx2crd(wrapped, part))
            idx //= size(part)
        return tuple(parts)
    if len(idx) != len(shape):
        raise LayoutError(f"coordinate {_text(idx)} does not fit shape {_text(shape)}")
    return tuple(map(idx2crd, idx, shape))


def _linear(modes: list[Mode], crd: Number) -> Number:
    result = crd * 0
    for i, (extent, stride) in enumerate(modes):
        if i == len(modes) - 1:
            return result + crd * stride
        result = result + crd % extent * stride
        crd = crd // extent
    return result


def _checked(value: object, least: int, what: str) -> IntTuple:
    if isinstance(value, (tuple, list)):
        return tuple(_checked(part, least, what) for part in value)
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise LayoutError(f"{what} must be made of integers, not {value!r}") from None
    if number < least:
        raise LayoutError(f"{what} {number} must be at least {least}")
    return number


def _text(value: IntTuple) -> str:
    if isinstance(value, int):
        return str(value)
    return "(" + ",".join(map(_text, value)) + ")"


# Layouts


def evaluated(find: Callable[[S], Indices]) -> Callable[[S], Indices]:
    """A method that is run once for each of the last layouts or fragments, a few dozen in a kernel,
    of about 1 MiB each; its array is read-only."""

    @lru_cache(maxsize=128)
    @wraps(find)
    def once(of: S) -> Indices:
        result = find(of)
        result.flags.writeable = False
        return result

    return once


class Pictured:
    """What `print` shows with a grid, and everything else in one line."""

    grid: Any

    def __str__(self) -> str:
        return f"{self!r}\n{self.grid(MAX_PRINTED)}"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


class _Function(Pictured):
    """What layouts and swizzled ones share."""

    shape: IntTuple

    if TYPE_CHECKING:

        def __getitem__(self: F, mode: int) -> F: ...
        def at(self, coords: Indices) -> Indices: ...
        def indices(self) -> Indices: ...

    def __len__(self) -> int:
        return rank(self.shape)

    def __iter__(self: F) -> Iterator[F]:
        return (self[i] for i in range(len(self)))

    def size(self) -> int:
        """The number of coordinates."""
        return size(self.shape)

    def check_size(self) -> None:
        if self.size() > MAX_EVALUATED:
            raise LayoutError(f"{self} has {self.size()} coordinates, too many to evaluate")

    def array(self) -> Indices:
        """The indices as an array with an axis per mode: `a.array()[i, j] == a(i, j)`."""
        return self.indices().reshape([size(mode.shape) for mode in self], order="F")

    def rows_and_columns(self) -> tuple[int, int]:
        """The extents of the grid: mode 0 down, the others across; rank 1 is one row."""
        rows = size(self[0].shape) if len(self) > 1 else 1
        return rows, self.size() // rows

    def corner(self, rows: int, columns: int) -> Indices:
        """The indices in the first rows and columns of the grid."""
        high, _ = self.rows_and_columns()
        down, across = np.arange(rows, dtype=np.int64), np.arange(columns, dtype=np.int64)
        return self.at(down[:, None] + high * across[None, :])

    def grid(self, most: int | None = None) -> str:
        """The indices as rows of text: mode 0 down, the others across; rank 1 is one row. `most`
        limits rows and columns.

        >>> print(Layout((2, 3), (3, 1)).grid())
        0 1 2
        3 4 5
        """
        whole = self.rows_and_columns()
        if most is None:
            self.check_size()
        shown = cropped(whole, most)
        return format_rows(self.corner(*shown).tolist()) + cut_note(whole, shown)


@dataclass(frozen=True, init=False, repr=False)
class Layout(_Function):
    """`shape:stride`, both integers or tuples nested alike; the default stride is compact,
    left-most mode fastest.

    >>> a = Layout((4, (2, 3)), (6, (3, 1)))
    >>> a, a(1, 5), a(1, (1, 2)), a(21), a[1], len(a)
    ((4,(2,3)):(6,(3,1)), 11, 11, 11, (2,3):(3,1), 2)
    >>> Layout((4, 8))
    (4,8):(1,4)
    """

    shape: IntTuple
    stride: IntTuple

    def __init__(self, shape: object, stride: object = None) -> None:
        checked = _checked(shape, 1, "extent")
        if stride is None:
            strides = _ordered_strides(checked, range)
        else:
            strides = _checked(stride, 0, "stride")
        if not congruent(checked, strides):
            raise LayoutError(
                f"shape {_text(checked)} and stride {_text(strides)} nest differently"
            )
        object.__setattr__(self, "shape", checked)
        object.__setattr__(self, "stride", strides)

    @classmethod
    def of(cls, shape: IntTuple, stride: IntTuple) -> Layout:
        """A layout of parts already known to be well formed."""
        made = object.__new__(cls)
        object.__setattr__(made, "shape", shape)
        object.__setattr__(made, "stride", stride)
        return made

    def __call__(self, *coord: IntTuple) -> int:
        return crd2idx(coord[0] if len(coord) == 1 else coord, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        if isinstance(self.shape, int) or isinstance(self.stride, int):
            return (self,)[mode]
        return Layout.of(self.shape[mode], self.stride[mode])

    def __repr__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"

    def cosize(self) -> int:
        """One past the largest index."""
        return 1 + sum((extent - 1) * stride for extent, stride in self.modes())

    def modes(self) -> list[Mode]:
        """The (extent, stride) pairs of the flattened layout."""
        return list(zip(leaves(self.shape), leaves(self.stride), strict=True))

    def at(self, coords: Indices) -> Indices:
        return _linear(self.modes(), coords)

    @evaluated
    def indices(self) -> Indices:
        """The index of every linear coordinate, as a read-only array.

        >>> Layout((2, 3), (3, 1)).indices()
        array([0, 3, 1, 4, 2, 5])
        """
        self.check_size()
        result = np.zeros(1, np.int64)
        for extent, stride in self.modes():
            steps = np.arange(extent, dtype=np.int64) * stride
            result = np.add.outer(steps, result).reshape(-1)
        return result


@dataclass(frozen=True, repr=False)
class Swizzle:
    """XOR of `bits` bits of an index, from `base + shift` up, into those from `base` up; a negative
    shift goes the other way. It is its own inverse.

    >>> s = Swizzle(3, 4, 3)
    >>> s, s(0b1010000000), s(s(700))
    (S<3,4,3>, 720, 700)
    """

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or abs(self.shift) < self.bits:
            raise LayoutError(f"{self}: needs bits >= 0, base >= 0 and |shift| >= bits")

    def __call__(self, index: Number) -> Number:
        mask = (1 << self.bits) - 1
        if self.shift >= 0:
            return index ^ ((index >> self.shift) & (mask << self.base))
        return index ^ ((index & (mask << self.base)) << -self.shift)

    def __repr__(self) -> str:
        return f"S<{self.bits},{self.base},{self.shift}>"


@dataclass(frozen=True, repr=False)
class ComposedLayout(_Function):
    """`swizzle o offset o layout`: coordinate c goes to `swizzle(offset + layout(c))`.

    >>> a = ComposedLayout(Swizzle(1, 0, 2), 0, Layout((2, 4), (4, 1)))
    >>> a, a(1, 0), a[1]
    (S<1,0,2> o 0 o (2,4):(4,1), 5, S<1,0,2> o 0 o 4:1)
    """

    swizzle: Swizzle
    offset: int
    layout: Layout

    def __post_init__(self) -> None:
        _checked(self.offset, 0, "offset")

    @property
    def shape(self) -> IntTuple:  # type: ignore[override]
        return self.layout.shape

    def __call__(self, *coord: IntTuple) -> int:
        return self.swizzle(self.offset + self.layout(*coord))

    def __getitem__(self, mode: int) -> ComposedLayout:
        return self.with_layout(self.layout[mode])

    def __repr__(self) -> str:
        return f"{self.swizzle} o {self.offset} o {self.layout}"

    def with_layout(self, layout: Layout) -> ComposedLayout:
        """The same swizzle and offset over another layout."""
        return ComposedLayout(self.swizzle, self.offset, layout)

    def cosize(self) -> int:
        """One past the largest index, after the swizzle."""
        return int(self.indices().max()) + 1

    def at(self, coords: Indices) -> Indices:
        return self.swizzle(self.offset + self.layout.at(coords))

    @evaluated
    def indices(self) -> Indices:
        self.check_size()
        return self.swizzle(self.offset + self.layout.indices())


MemoryLayout: TypeAlias = Layout | ComposedLayout


def cropped(whole: tuple[int, int], most: int | None) -> tuple[int, int]:
    """The rows and columns of a picture of at most so many."""
    return whole if most is None else (min(whole[0], most), min(whole[1], most))


def cut_note(whole: tuple[int, int], shown: tuple[int, int]) -> str:
    """What a picture says that shows only a corner."""
    if whole == shown:
        return ""
    return f"\n... {shown[0]} x {shown[1]} of {whole[0]} x {whole[1]}"


def format_rows(rows: list[list[Any]]) -> str:
    """Rows of right-aligned cells, one text line each."""
    width = max(len(str(cell)) for row in rows for cell in row)
    return "\n".join(" ".join(f"{cell!s:>{width}}" for cell in row) for row in rows)


# Measures


def size(value: IntTuple | MemoryLayout) -> int:
    """The number of coordinates of a shape or layout.

    >>> size((4, (2, 3))), size(Layout((4, 8)))
    (24, 32)
    """
    return math.prod(leaves(_shape(value)))


def cosize(layout: MemoryLayout) -> int:
    """One past the largest index.

    >>> cosize(Layout((4, 2), (1, 10)))
    14
    """
    return layout.cosize()


def rank(value: IntTuple | MemoryLayout) -> int:
    """The number of top-level modes.

    >>> rank(4), rank((4, (2, 3)))
    (1, 2)
    """
    shape = _shape(value)
    return 1 if isinstance(shape, int) else len(shape)


def depth(value: IntTuple | MemoryLayout) -> int:
    """The nesting: 0 for an integer, one more than the deepest part for a tuple.

    >>> depth(4), depth((4, (2, 3)))
    (0, 2)
    """
    shape = _shape(value)
    return 0 if isinstance(shape, int) else 1 + max(map(depth, shape), default=0)


def _shape(value: IntTuple | MemoryLayout) -> IntTuple:
    return value.shape if isinstance(value, (Layout, ComposedLayout)) else value


# Making layouts


def make_layout(*layouts: Layout) -> Layout:
    """The layouts side by side, each a mode.

    >>> make_layout(Layout(4), Layout((2, 3), (12, 4)))
    (4,(2,3)):(1,(12,4))
    """
    return Layout.of(tuple(a.shape for a in layouts), tuple(a.stride for a in layouts))


def column_major(shape: IntTuple) -> Layout:
    """The compact layout with the left-most mode fastest.

    >>> column_major((4, 8))
    (4,8):(1,4)
    """
    return Layout(shape)


def row_major(shape: IntTuple) -> Layout:
    """The compact layout with the right-most mode fastest.

    >>> row_major((4, 8))
    (4,8):(8,1)
    """
    return Layout(shape, _ordered_strides(shape, lambda n: reversed(range(n))))


def _ordered_strides(shape: IntTuple, order: Callable[[int], Any]) -> IntTuple:
    extents = leaves(shape)
    strides = [0] * len(extents)
    stride = 1
    for i in order(len(extents)):
        strides[i] = stride
        stride *= extents[i]
    return unflatten(iter(strides), shape)


# Text

_SWIZZLED = re.compile(r"\s*S<\s*(\d+)\s*,\s*(\d+)\s*,\s*(-?\d+)\s*>\s*o\s*(\d+)\s*o\s(.*)")


def parse_int_tuple(text: str) -> IntTuple:
    """Read a nested tuple; parentheses always make a tuple, so `(4)` is not `4`.

    >>> parse_int_tuple("(4,(2,3))"), parse_int_tuple("(4)")
    ((4, (2, 3)), (4,))
    """
    tokens = re.findall(r"\d+|\S", text)
    position = 0

    def take(expected: str = "") -> str:
        nonlocal position
        token = tokens[position] if position < len(tokens) else "the end"
        if expected and token != expected:
            raise LayoutError(f"cannot read {text!r}: expected {expected!r}, found {token!r}")
        position += 1
        return token

    def value() -> IntTuple:
        token = take()
        if token.isdigit():
            return int(token)
        if token != "(":
            raise LayoutError(f"cannot read {text!r}: expected an integer or '(', found {token!r}")
        parts: list[IntTuple] = []
        while tokens[position : position + 1] != [")"]:
            if parts:
                take(",")
            parts.append(value())
        take(")")
        return tuple(parts)

    result = value()
    if position != len(tokens):
        raise LayoutError(f"cannot read {text!r}: {''.join(tokens[position:])!r} is left over")
    return result


def parse_layout(text: str) -> MemoryLayout:
    """Read what `repr` writes of a layout.

    >>> parse_layout("(4,8):(1,4)"), parse_layout("S<3,4,3> o 0 o (8,64):(64,1)")
    ((4,8):(1,4), S<3,4,3> o 0 o (8,64):(64,1))
    """
    if match := _SWIZZLED.fullmatch(text):
        bits, base, shift, offset, rest = match.groups()
        layout = parse_layout(rest)
        if isinstance(layout, ComposedLayout):
            raise LayoutError(f"cannot read {text!r}: one swizzle at most")
        return ComposedLayout(Swizzle(int(bits), int(base), int(shift)), int(offset), layout)
    shape, colon, stride = text.partition(":")
    if not colon:
        raise LayoutError(f"cannot read {text!r}: expected shape:stride")
    return Layout(parse_int_tuple(shape), parse_int_tuple(stride))
