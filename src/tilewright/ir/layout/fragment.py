"""Fragments: which thread holds which element of a tile, in which register.

A fragment is a layout from (thread, value) to the row-major linear index of a tile. Thread modes of
stride 0 are replication: those threads hold the same elements. Where a tile does not divide among
the threads, the layout fills a larger box, the cover, and the slots outside the tile are idle.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.ir.layout.layout import *
from tilewright.ir.layout.ops import coalesce, composition, filter
from tilewright.ir.layout.query import fit_layout
from tilewright.support.distinct import distinct

IDLE = -1
# kernels have the same few fragments again and again
_remembered = lru_cache(maxsize=512)


@dataclass(frozen=True, init=False, repr=False)
class Fragment(Pictured):
    """A tile spread over `threads`, `values` registers each: `layout` has a thread mode and a value
    mode and gives row-major indices of `cover`, a box at least as large as `tile`.

    Both modes are kept coalesced, so equal fragments are equal functions.

    >>> f = spatial(8, 4) * repeat(1, 2)
    >>> f, f.threads, f.values
    (frag{tile=(8,8) tv=(32,2):(2,1)}, 32, 2)
    >>> f.coord(5, 1), f.owner((1, 3))
    ((1, 3), [(5, 1)])
    """

    tile: tuple[int, ...]
    layout: Layout
    cover: tuple[int, ...]

    def __init__(
        self, tile: tuple[int, ...], layout: Layout, cover: tuple[int, ...] | None = None
    ) -> None:
        tile = _extents(tile)
        cover = tile if cover is None else _extents(cover)
        object.__setattr__(self, "tile", tile)
        object.__setattr__(self, "layout", _well_formed(tile, layout, cover))
        object.__setattr__(self, "cover", cover)

    @classmethod
    def fit(cls, tile: tuple[int, ...], table: Indices) -> Fragment:
        """The fragment with this `table()`; `LayoutError` when it is not index(thread) +
        index(value) of layouts.

        >>> Fragment.fit((2, 4), np.array([[0, 4], [2, 6]]))
        frag{tile=(2,4) tv=(2,2):(2,4)}
        """
        if not np.array_equal(table, table[:, :1] + table[:1, :] - table[0, 0]):
            raise LayoutError(f"fragment of tile {tile}: threads hold different patterns of values")
        return cls(tile, make_layout(fit_layout(table[:, 0]), fit_layout(table[0])))

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.layout[0].size()

    @property
    def values(self) -> int:
        """The number of registers of each thread."""
        return self.layout[1].size()

    @property
    def elements(self) -> int:
        """The number of elements of the tile."""
        return math.prod(self.tile)

    def __repr__(self) -> str:
        cover = "" if self.cover == self.tile else f"cover={_box(self.cover)} "
        return f"frag{{tile={_box(self.tile)} {cover}tv={self.layout}}}"

    # Building

    @_remembered
    def __mul__(self, inner: Fragment) -> Fragment:
        """Replace each element of this tile by a tile of `inner`: coordinate = outer * inner.tile +
        inner, thread = outer * inner.threads + inner, value = outer * inner.values + inner.

        >>> repeat(2, 1) * spatial(4, 8)
        frag{tile=(8,8) tv=(32,2):(1,32)}
        """
        if len(self.tile) != len(inner.tile):
            raise LayoutError(f"{self} * {inner}: the tiles have different ranks")
        if inner.cover != inner.tile:
            raise LayoutError(f"{self} * {inner}: the idle slots of the inner one would overlap")
        cover = _times(self.cover, inner.tile)
        strides = leaves(row_major(cover).stride)
        big = _restride(self, _times(strides, inner.tile))
        small = _restride(inner, strides)
        layout = make_layout(*(make_layout(small[i], big[i]) for i in (0, 1)))
        return Fragment(_times(self.tile, inner.tile), layout, cover)

    def replicate(self, count: int) -> Fragment:
        """`count` copies side by side: thread = copy * threads + thread.

        >>> spatial(4).replicate(2)
        frag{tile=(4) tv=((4,2),1):((1,0),0)}
        """
        thread, value = self.layout
        copies = make_layout(thread, Layout(count, 0))
        return Fragment(self.tile, make_layout(copies, value), self.cover)

    def crop(self, *tile: int) -> Fragment:
        """The same slots over a smaller tile; those outside it become idle.

        >>> f = (spatial(4, 32) * repeat(1, 4)).crop(4, 100)
        >>> f, f.coord(25, 0), f.is_complete
        (frag{tile=(4,100) cover=(4,128) tv=(128,4):(4,1)}, None, True)
        """
        if len(tile) != len(self.tile) or any(a > b for a, b in zip(tile, self.tile, strict=True)):
            raise LayoutError(f"{self}: cannot crop to {tile}, which is not smaller")
        return Fragment(tile, self.layout, self.cover)

    @_remembered
    def drop_repeats(self) -> Fragment:
        """Without the registers that only repeat others of the same thread (stride-0 values)."""
        thread, value = self.layout
        return Fragment(self.tile, make_layout(thread, filter(value)), self.cover)

    def expand(self, dim: int, extent: int) -> Fragment:
        """A tile with a new dimension `dim`, along which each thread holds everything, in
        neighbouring registers.

        >>> spatial(4).expand(1, 3)
        frag{tile=(4,3) tv=(4,3):(3,1)}
        """
        if not 0 <= dim <= len(self.tile):
            raise LayoutError(f"{self}: no place {dim} for a new dimension")
        tile, cover = ((*box[:dim], extent, *box[dim:]) for box in (self.tile, self.cover))
        strides = leaves(row_major(cover).stride)
        thread, value = _restride(self, strides[:dim] + strides[dim + 1 :])
        fast = Layout(extent, strides[dim])
        return Fragment(tile, make_layout(thread, make_layout(fast, value)), cover)

    def permute(self, *dims: int) -> Fragment:
        """The tile with its dimensions in another order: the new dimension i is the old `dims[i]`.

        >>> (spatial(2, 1) * repeat(1, 3)).permute(1, 0)
        frag{tile=(3,2) tv=(2,3):(1,2)}
        """
        if sorted(dims) != list(range(len(self.tile))):
            raise LayoutError(f"{self}: {dims} is not an order of its dimensions")
        tile, cover = (tuple(box[dim] for dim in dims) for box in (self.tile, self.cover))
        strides = leaves(row_major(cover).stride)
        old = tuple(strides[dims.index(dim)] for dim in range(len(dims)))
        return Fragment(tile, _restride(self, old), cover)

    def reshape(self, *tile: int) -> Fragment:
        """The same elements in the same row-major order as a tile of another shape.

        >>> (spatial(2, 1) * repeat(1, 3)).reshape(6)
        frag{tile=(6) tv=(2,3):(3,1)}
        """
        if math.prod(tile) != self.elements:
            raise LayoutError(f"{self}: {self.elements} elements do not make a tile {_box(tile)}")
        if self.cover != self.tile:
            raise LayoutError(f"{self}: a cropped fragment has no other shape")
        return Fragment(tile, self.layout)

    def part(self, dim: int, start: int, extent: int) -> Fragment:
        """The registers that hold `start ... start + extent - 1` of one dimension. They must be the
        same in every thread.

        >>> (spatial(4, 1) * repeat(1, 6)).part(1, 2, 3)
        frag{tile=(4,3) tv=(4,3):(3,1)}
        """
        if not (0 <= dim < len(self.tile) and start >= 0 and start + extent <= self.tile[dim]):
            raise LayoutError(f"{self}: no part {start}:{start + extent} of dimension {dim}")
        coords, idle = self.coordinates(), self.table() == IDLE
        inside = (coords[..., dim] >= start) & (coords[..., dim] < start + extent)
        kept = inside.any(axis=0)
        if idle.any() or not (inside == kept).all():
            raise LayoutError(
                f"{self}: threads hold {start}:{start + extent} of dimension {dim} in different"
                " registers, or not at all"
            )
        tile = (*self.tile[:dim], extent, *self.tile[dim + 1 :])
        shifted = coords[:, kept] - np.where(np.arange(len(tile)) == dim, start, 0)
        return Fragment.fit(tile, np.ravel_multi_index(tuple(np.moveaxis(shifted, -1, 0)), tile))

    # Asking

    def along(self, dim: int) -> Layout:
        """The layout from (thread, value) to the coordinate in one dimension: the coordinate is
        `along(dim)[0](thread) + along(dim)[1](value)`.

        >>> (spatial(8, 4) * repeat(1, 2)).along(1)
        ((4,8),2):((2,0),1)
        """
        return _restride(self, tuple(int(i == dim) for i in range(len(self.tile))))

    @evaluated
    def table(self) -> Indices:
        """Array [threads, values] of row-major tile indices, -1 in idle slots; read-only."""
        thread, value = self.layout
        result = thread.indices()[:, None] + value.indices()[None, :]
        if self.cover != self.tile:
            place = np.arange(self.elements, dtype=np.int64).reshape(self.tile)
            margin = [(0, c - t) for c, t in zip(self.cover, self.tile, strict=True)]
            result = np.pad(place, margin, constant_values=IDLE).reshape(-1)[result]
        return result

    @evaluated
    def coordinates(self) -> Indices:
        """Array [threads, values, rank] of tile coordinates, -1 in idle slots; read-only.

        >>> spatial(1, 2).coordinates().tolist()
        [[[0, 0]], [[0, 1]]]
        """
        table = self.table()
        parts = np.unravel_index(np.maximum(table, 0), self.tile)
        return np.where((table == IDLE)[..., None], IDLE, np.stack(parts, axis=-1))

    @evaluated
    def first_slots(self) -> Indices:
        """Array [elements] of the lowest slot (thread * values + value) of each element, -1 where
        there is none; read-only."""
        table = self.table().reshape(-1)
        slots = np.flatnonzero(table >= 0)[::-1]
        result = np.full(self.elements, IDLE, np.int64)
        result[table[slots]] = slots  # the lowest slot is written last
        return result

    @evaluated
    def copies(self) -> Indices:
        """Array [elements] of the number of slots that hold each element; read-only."""
        table = self.table()
        return np.bincount(table[table >= 0], minlength=self.elements).astype(np.int64, copy=False)

    def coord(self, thread: int, value: int) -> tuple[int, ...] | None:
        """The tile coordinate a thread holds in a register; None for an idle slot."""
        if not (0 <= thread < self.threads and 0 <= value < self.values):
            raise LayoutError(f"{self}: no slot (thread {thread}, value {value})")
        index = int(self.table()[thread, value])
        return None if index == IDLE else tuple(map(int, np.unravel_index(index, self.tile)))

    def owner(self, coord: tuple[int, ...]) -> list[tuple[int, int]]:
        """Every (thread, value) that holds a coordinate, in order."""
        inside = len(coord) == len(self.tile)
        if not inside or not all(0 <= c < t for c, t in zip(coord, self.tile, strict=True)):
            raise LayoutError(f"{self}: no element {coord}")
        index = row_major(self.tile)(tuple(coord))
        return [(int(t), int(v)) for t, v in np.argwhere(self.table() == index)]

    def locate(self, needed: Indices) -> Indices:
        """For `needed[thread, k]`, tile indices each thread wants: the register where that thread
        holds it (the lowest), or -1.

        >>> (spatial(2, 1) * repeat(1, 4)).locate(np.array([[1, 3], [1, 7]]))
        array([[ 1,  3],
               [-1,  3]])
        """
        if needed.ndim != 2 or len(needed) != self.threads:
            raise LayoutError(f"{self}: {needed.shape} is not (threads, elements)")
        held, order = _sorted_slots(self)
        thread = np.arange(self.threads, dtype=np.int64)[:, None]
        keys = np.where(needed < 0, -1, thread * self.elements + needed)
        place = np.minimum(np.searchsorted(held, keys), len(held) - 1)
        return np.where((held[place] == keys) & (needed < self.elements), order[place], IDLE)

    def registers(self, needed: Indices) -> Indices | None:
        """For `needed[thread, k]`, as for `locate`, with -1 where a thread needs nothing: for each
        k the one register that holds the element in every thread, or None where there is not one
        for each. Only such accesses index registers with constants.

        >>> f = spatial(2, 1) * repeat(1, 4)
        >>> f.registers(np.array([[1, 3], [5, 7]])), f.registers(np.array([[1], [7]]))
        (array([1, 3]), None)
        """
        where, free = self.locate(needed), needed < 0
        if ((where < 0) & ~free).any():
            return None
        found: Indices = where.max(axis=0, initial=0)
        uneven = ((where != found) & ~free).any(axis=0)
        for k in np.flatnonzero(uneven):  # a thread that holds an element twice leaves a choice
            fits = ((self.table() == needed[:, k : k + 1]) | free[:, k : k + 1]).all(axis=0)
            if not fits.any():
                return None
            found[k] = fits.argmax()
        return found

    def same(self, other: Fragment) -> bool:
        """Whether two fragments hold the same element in each slot, however they say it."""
        if self == other:
            return True
        return self.tile == other.tile and np.array_equal(self.table(), other.table())

    def covers(self, tile: Sequence[int]) -> bool:
        """Whether this is a fragment of that tile and holds all of it."""
        return self.tile == tuple(tile) and self.is_complete

    @property
    @_remembered
    def replication(self) -> int:
        """The most threads that hold one element.

        >>> spatial(4).replication, spatial(4).replicate(8).replication
        (1, 8)
        """
        keys = distinct(_sorted_slots(self)[0])
        return int(np.bincount(keys[keys >= 0] % self.elements).max(initial=0))

    def holds(self, other: Fragment) -> bool:
        """Whether every thread holds, in some register, each element it holds in `other`.

        >>> row = spatial(8, 1).replicate(4)
        >>> row.holds(spatial(8, 1)), row.holds(row)
        (False, True)
        """
        if self.tile != other.tile or self.threads != other.threads:
            return False
        wanted = other.table()
        return self == other or bool(((self.locate(wanted) >= 0) | (wanted == IDLE)).all())

    @property
    def is_complete(self) -> bool:
        """Whether every element of the tile is held somewhere."""
        return bool((self.copies() > 0).all())

    @property
    def is_bijective(self) -> bool:
        """Whether every element is held exactly once and no slot is idle."""
        return self.threads * self.values == self.elements and self.is_complete

    def grid(self, most: int | None = None) -> str:
        """The first owner of each element as `thread:value`, with `xN` where N slots hold it: the
        last dimension across, the others down. `most` limits rows and columns.

        >>> print((spatial(2, 2) * repeat(1, 2)).grid())
        0:0 0:1 1:0 1:1
        2:0 2:1 3:0 3:1
        """
        first, copies, columns = self.first_slots(), self.copies(), self.tile[-1]
        whole = (self.elements // columns, columns)

        def cell(index: int) -> str:
            if not copies[index]:
                return "-"
            thread, value = divmod(int(first[index]), self.values)
            return f"{thread}:{value}" + (f"x{copies[index]}" if copies[index] > 1 else "")

        shown = cropped(whole, most)
        cells = [[cell(i * columns + j) for j in range(shown[1])] for i in range(shown[0])]
        return format_rows(cells) + cut_note(whole, shown)


@_remembered
def _well_formed(tile: tuple[int, ...], layout: Layout, cover: tuple[int, ...]) -> Layout:
    """The layout of a fragment, found to fit, both modes coalesced."""
    if len(layout) != 2:
        raise LayoutError(f"fragment of tile {tile}: {layout} is not (thread, value)")
    if len(cover) != len(tile) or any(c < t for c, t in zip(cover, tile, strict=True)):
        raise LayoutError(f"fragment: cover {cover} does not contain tile {tile}")
    if layout.cosize() > math.prod(cover):
        raise LayoutError(
            f"fragment: {layout} reaches index {layout.cosize() - 1}, outside the box {cover}"
        )
    return coalesce(layout, (1, 1))


def _extents(box: Sequence[int]) -> tuple[int, ...]:
    if type(box) is tuple and all(type(extent) is int and extent > 0 for extent in box):
        return box
    return leaves(Layout(tuple(box)).shape)


@lru_cache(maxsize=32)
def _sorted_slots(fragment: Fragment) -> tuple[Indices, Indices]:
    """The keys thread * elements + index of all slots in order, and the value of each."""
    table = fragment.table()
    thread = np.arange(fragment.threads, dtype=np.int64)[:, None]
    # An idle slot gets a key below every element's, so nobody finds it.
    keys = np.where(table == IDLE, -2, thread * fragment.elements + table).reshape(-1)
    order = np.argsort(keys, kind="stable")
    return keys[order], order % fragment.values


def _times(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(x * y for x, y in zip(a, b, strict=True))


@_remembered
def _restride(fragment: Fragment, strides: tuple[int, ...]) -> Layout:
    """The layout from (thread, value) to coordinate times `strides`."""
    coords = Layout(fragment.cover[::-1], strides[::-1])
    return composition(coords, fragment.layout)


def _box(extents: tuple[int, ...]) -> str:
    return "(" + ",".join(map(str, extents)) + ")"


# Builders


def spatial(*shape: int) -> Fragment:
    """A thread for each element of a tile, in row-major order.

    >>> spatial(8, 4)
    frag{tile=(8,4) tv=(32,1):(1,0)}
    """
    return Fragment(shape, make_layout(Layout(math.prod(shape)), Layout(1, 0)))


def repeat(*shape: int) -> Fragment:
    """One thread with a register for each element of a tile, in row-major order.

    >>> repeat(1, 2)
    frag{tile=(1,2) tv=(1,2):(0,1)}
    """
    return Fragment(shape, make_layout(Layout(1, 0), Layout(math.prod(shape))))


def row_of(fragment: Fragment, dim: int, keepdim: bool = False) -> Fragment:
    """What is left of a fragment when one dimension is reduced: the threads that shared an element
    of the result all hold it, once each. `keepdim` keeps the dimension, with extent 1.

    >>> row_of(wgmma_accumulator(64, 256), 1)
    frag{tile=(64) tv=((4,8,4),2):((0,1,16),8)}
    """
    if not 0 <= dim < len(fragment.tile):
        raise LayoutError(f"{fragment}: no dimension {dim} to reduce")

    def without(extents: tuple[int, ...]) -> tuple[int, ...]:
        return extents[:dim] + ((1,) if keepdim else ()) + extents[dim + 1 :]

    cover = without(fragment.cover)
    strides = leaves(row_major(cover).stride)
    rest = strides[dim + 1 :] if keepdim else strides[dim:]
    layout = _restride(fragment, strides[:dim] + (0,) + rest)
    return Fragment(without(fragment.tile), layout, cover).drop_repeats()


def reach(fragment: Fragment, dim: int) -> int:
    """The size of the groups of consecutive threads in which those lie that share all else than the
    coordinate in one dimension.

    >>> reach(spatial(8, 4) * repeat(1, 2), 1)
    4
    """
    place = found = 1
    for extent, stride in fragment.along(dim)[0].modes():
        place *= extent
        found = place if stride else found
    return found


# What matrix instructions hold


@_remembered
def _warp_rows(columns: int, pack: int) -> Fragment:
    """16 rows over a warp: lane = 4 * row + column / pack; registers go along `pack` columns, then
    8 rows down, then on by the 4 * pack columns of four lanes."""
    thread = Layout((4, 8), (pack, columns))
    value = Layout((pack, 2, columns // (4 * pack)), (1, 8 * columns, 4 * pack))
    return Fragment((16, columns), make_layout(thread, value))


def _check(name: str, extent: int, unit: int, most: int | None = None) -> None:
    if extent < unit or extent % unit or (most is not None and extent > most):
        limit = "" if most is None else f", at most {most}"
        raise LayoutError(f"{name} is {extent}, not a multiple of {unit}{limit}")


def _pack(elem_bits: int) -> int:
    """Elements of a register, of which one of 64 bits takes two."""
    if elem_bits not in (8, 16, 32, 64):
        raise LayoutError(f"matrix operands have 8, 16, 32 or 64 bits, not {elem_bits}")
    return max(32 // elem_bits, 1)


def mma_accumulator(m: int = 16, n: int = 8) -> Fragment:
    """The accumulator of `mma.m16n8*` over a warp, repeated over an m×n tile.

    >>> mma_accumulator()
    frag{tile=(16,8) tv=(32,(2,2)):(2,(1,64))}
    """
    _check("mma accumulator: m", m, 16)
    _check("mma accumulator: n", n, 8)
    return repeat(m // 16, 1) * _warp_rows(n, 2)


def mma_a_operand(m: int = 16, k: int = 16, elem_bits: int = 16) -> Fragment:
    """The A registers of `mma.m16n8*` (m×k): k16 for 16-bit elements, k32 for 8, k8 for 32.

    >>> mma_a_operand()
    frag{tile=(16,16) tv=((4,8),(2,2,2)):((2,16),(1,128,8))}
    """
    pack = _pack(elem_bits)
    _check("mma A operand: m", m, 16)
    _check("mma A operand: k", k, 8 * pack)
    return repeat(m // 16, 1) * _warp_rows(k, pack)


def mma_b_operand(k: int = 16, n: int = 8, elem_bits: int = 16) -> Fragment:
    """The B registers of `mma.m16n8*` (k×n), k as for A.

    >>> mma_b_operand()
    frag{tile=(16,8) tv=((4,8),(2,2)):((16,1),(8,64))}
    """
    pack = _pack(elem_bits)
    _check("mma B operand: k", k, 8 * pack)
    _check("mma B operand: n", n, 8)
    thread = Layout((4, 8), (pack * 8, 1))
    value = Layout((pack, k // (4 * pack)), (8, 4 * pack * 8))
    return repeat(1, n // 8) * Fragment((k, 8), make_layout(thread, value))


def wgmma_accumulator(m: int, n: int) -> Fragment:
    """The accumulator of `wgmma.m64n{n}`: a warpgroup of 128 threads for every 64 rows of m.

    >>> wgmma_accumulator(64, 256)
    frag{tile=(64,256) tv=((4,8,4),(2,2,32)):((2,256,4096),(1,2048,8))}
    """
    _check("wgmma accumulator: m", m, 64)
    _check("wgmma accumulator: n", n, 8, most=256)
    return spatial(m // 16, 1) * _warp_rows(n, 2)


def wgmma_a_operand(m: int, k: int, elem_bits: int = 16) -> Fragment:
    """The A registers of `wgmma`, m×k: k in steps of 16 for 16-bit elements, 32 for 8, 8 for 32.
    For 16 bits it is the accumulator's fragment of the same tile.

    >>> wgmma_a_operand(64, 16) == wgmma_accumulator(64, 16)
    True
    """
    pack = _pack(elem_bits)
    _check("wgmma A operand: m", m, 64)
    _check("wgmma A operand: k", k, 8 * pack)
    return spatial(m // 16, 1) * _warp_rows(k, pack)


# Text

_FRAGMENT = re.compile(
    r"\s*frag\{\s*tile=(?P<tile>\([\d,\s]*\))\s*(cover=(?P<cover>\([\d,\s]*\)))?\s*"
    r"tv=(?P<tv>[^{}]*)\}\s*"
)


def parse_fragment(text: str) -> Fragment:
    """Read what `repr` writes of a fragment.

    >>> parse_fragment("frag{tile=(8,8) tv=(32,2):(2,1)}") == spatial(8, 4) * repeat(1, 2)
    True
    """
    match = _FRAGMENT.fullmatch(text)
    if not match:
        raise LayoutError(f"cannot read {text!r}: expected frag{{tile=(...) tv=shape:stride}}")
    layout = parse_layout(match["tv"])
    if not isinstance(layout, Layout):
        raise LayoutError(f"cannot read {text!r}: a fragment has no swizzle")
    cover = leaves(parse_int_tuple(match["cover"])) if match["cover"] else None
    return Fragment(leaves(parse_int_tuple(match["tile"])), layout, cover)


def parse_layout_or_fragment(text: str) -> MemoryLayout | Fragment:
    """Read a layout, a swizzled layout or a fragment.

    >>> parse_layout_or_fragment("4:1"), parse_layout_or_fragment("frag{tile=(4) tv=(4,1):(1,0)}")
    (4:1, frag{tile=(4) tv=(4,1):(1,0)})
    """
    return parse_fragment(text) if text.lstrip().startswith("frag") else parse_layout(text)
