"""Bank conflicts of shared memory, counted by evaluating every address of an access, and the
swizzled layouts that avoid them.

Shared memory has 32 banks of one 4-byte word and serves 128 bytes at a time. A warp's access of up
to 4 bytes a lane is one phase; 8 bytes take two, one for each half of the warp; 16 bytes take four,
or two where of four neighbours two read what the other two do, lane by lane (measured on an H200).
A phase costs as many wavefronts as the busiest bank has different words; lanes that touch the same
word share it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from tilewright.ir.layout.fragment import IDLE, Fragment
from tilewright.ir.layout.layout import *
from tilewright.ir.layout.ops import coalesce, composition
from tilewright.ir.warps import WARP
from tilewright.support.distinct import distinct

BANKS = 32
WORD = 4
WIDEST = 16


@dataclass(frozen=True)
class BankConflicts:
    """What the accesses cost: `requests` of warps, the `wavefronts` they take, and the `ideal`,
    one for each phase.

    >>> cost = BankConflicts(requests=64, wavefronts=512, ideal=64, vector=2)
    >>> cost.extra
    448
    """

    requests: int
    wavefronts: int
    ideal: int
    vector: int  # elements of one access of a lane

    @property
    def extra(self) -> int:
        """Wavefronts beyond the ideal."""
        return self.wavefronts - self.ideal

    @property
    def ways(self) -> float:
        """Wavefronts per phase: 1 is free of conflicts, 32 is the worst."""
        return self.wavefronts / self.ideal if self.ideal else 1.0


def bank_conflicts(
    layout: MemoryLayout, accesses: Fragment | Indices, elem_bytes: int, vector: int | None = None
) -> BankConflicts:
    """Count the wavefronts of moving a fragment, register by register, to or from a tile laid out
    in shared memory; or of `accesses[thread, k]`, linear coordinates of the layout, -1 where a
    thread does nothing. `vector` elements go in one access of a lane; by default as many as are
    contiguous and aligned in every thread, up to 16 bytes.

    >>> from tilewright.layout import Layout, repeat, row_major, spatial
    >>> column = np.arange(32)[:, None]
    >>> bank_conflicts(Layout((32, 32), (32, 1)), column, 4)
    BankConflicts(requests=1, wavefronts=32, ideal=1, vector=1)
    >>> bank_conflicts(Layout((32, 32), (33, 1)), column, 4).extra
    0
    >>> rows = spatial(8, 4) * repeat(1, 8)
    >>> bank_conflicts(row_major((8, 32)), rows, 2).vector
    8
    """
    if isinstance(accesses, Fragment):
        return _of_fragment(layout, accesses, elem_bytes, vector)
    table = np.asarray(accesses, np.int64)
    if table.ndim != 2:
        raise LayoutError(f"bank_conflicts: accesses of shape {table.shape}, not (threads, count)")
    if table.size and int(table.max()) >= layout.size():
        raise LayoutError(f"bank_conflicts: {layout} has no coordinate {int(table.max())}")
    return _count(np.where(table < 0, IDLE, layout.at(np.maximum(table, 0))), elem_bytes, vector)


@lru_cache(maxsize=256)
def _of_fragment(
    layout: MemoryLayout, fragment: Fragment, elem_bytes: int, vector: int | None
) -> BankConflicts:
    if tuple(size(mode) for mode in layout) != fragment.tile:
        raise LayoutError(f"bank_conflicts: {layout} is not the layout of a tile {fragment.tile}")
    place, table = layout.array().reshape(-1), fragment.table()
    return _count(np.where(table == IDLE, IDLE, place[table]), elem_bytes, vector)


def _count(places: Indices, elem_bytes: int, vector: int | None) -> BankConflicts:
    """`places[thread, k]` are offsets in elements, -1 for none."""
    if elem_bytes not in (1, 2, 4, 8, 16):
        raise LayoutError(f"bank_conflicts: elements of {elem_bytes} bytes, not 1, 2, 4, 8 or 16")
    if vector is None:
        widths = [w for w in (16, 8, 4, 2) if w * elem_bytes <= WIDEST]
        vector = next((w for w in widths if _vectorizes(places, w)), 1)
    elif vector * elem_bytes > WIDEST:
        raise LayoutError(f"bank_conflicts: {vector * elem_bytes} bytes per thread, at most 16")
    elif not _vectorizes(places, vector):
        raise LayoutError(
            f"bank_conflicts: the accesses are not vectors of {vector} elements: they are not"
            " contiguous and aligned in every thread"
        )
    width = vector * elem_bytes
    lanes = WARP * WORD // max(WORD, width)
    start = places[:, ::vector]  # [thread, access]
    busy = start != IDLE
    threads, accesses = start.shape
    thread = np.arange(threads, dtype=np.int64)[:, None]
    access = np.arange(accesses, dtype=np.int64)[None, :]
    warps, phases = -(-threads // WARP), -(-threads // lanes)
    turn = np.broadcast_to(thread // lanes, start.shape)
    if width == WIDEST and threads % WARP == 0:
        turn = np.where(_paired(start), turn // 2 * 2, turn)
    phase = access * phases + turn
    request = access * warps + thread // WARP
    first = np.where(busy, start * elem_bytes // WORD, 0)
    words = first[..., None] + np.arange(max(1, width // WORD))
    span = int(words.max(initial=0)) + 1
    touched = distinct((phase[..., None] * span + words)[busy])
    # Different words of each bank in each phase.
    load = np.bincount(touched // span * BANKS + touched % span % BANKS)
    load = np.pad(load, (0, -len(load) % BANKS)).reshape(-1, BANKS).max(axis=1)
    return BankConflicts(
        requests=len(distinct(request[busy])),
        wavefronts=int(load.sum()),
        ideal=int(np.count_nonzero(load)),
        vector=vector,
    )


def _paired(start: Indices) -> Indices:
    """[thread, access]: whether in a warp's access two of every four lanes read the same as the
    other two, their neighbours or those next to them."""
    quads = start.reshape(-1, WARP // 4, 4, start.shape[1])
    beside = (quads[:, :, ::2] == quads[:, :, 1::2]).all(axis=(1, 2))
    next_to = (quads[:, :, :2] == quads[:, :, 2:]).all(axis=(1, 2))
    return np.repeat(beside | next_to, WARP, axis=0)


def _vectorizes(places: Indices, width: int) -> bool:
    """Whether registers go in aligned groups of `width` to contiguous, aligned elements."""
    if places.shape[1] % width:
        return False
    groups = places.reshape(len(places), -1, width)
    start = groups[..., :1]
    steps = np.where(start == IDLE, IDLE, start + np.arange(width))
    return bool((groups == steps).all() and ((start % width == 0) | (start == IDLE)).all())


def make_swizzled_layout(
    shape: Any, elem_bits: int | None = None, max_bytes: int = 128
) -> MemoryLayout:
    """The layout of a tile, given as a shape and the bits of an element, or as the tile itself,
    that its matrix instructions read without bank conflicts: the row-major tile with Hopper's 128,
    64 or 32 byte swizzle, the widest one, up to `max_bytes`, whose span divides a row.
    Rows longer than the span are cut into panels of that width, one after the other, as bulk
    copies and matrix descriptors take them; rows that no span divides stay as they are.

    In bytes, address bits 4..6 (128), 4..5 (64) or 4 (32) take XOR of the bits three above.

    >>> make_swizzled_layout((128, 64), 16)
    S<3,3,3> o 0 o (128,64):(64,1)
    >>> make_swizzled_layout((64, 128), 16)
    S<3,3,3> o 0 o (64,(64,2)):(64,(1,4096))
    >>> make_swizzled_layout((64, 176), 16), make_swizzled_layout((64, 100), 16)
    (S<1,3,3> o 0 o (64,(16,11)):(16,(1,1024)), (64,100):(100,1))
    """
    buffer = getattr(shape, "buffer", shape)
    if hasattr(buffer, "static_shape"):
        shape, elem_bits = buffer.static_shape, elem_bits or buffer.dtype.bits
    if elem_bits not in (4, 8, 16, 32, 64):
        raise LayoutError(
            f"make_swizzled_layout: elements of {elem_bits} bits, not 4, 8, 16 ... 64"
        )
    plain = row_major(shape)
    if len(shape) < 2:
        return plain
    *outer, rows, columns = shape
    for bits in (3, 2, 1):
        panel = (16 << bits) * 8 // elem_bits
        if (16 << bits) > max_bytes or columns % panel:
            continue
        inner = coalesce(Layout((panel, columns // panel), (1, rows * panel)))
        slots = [Layout(n, math.prod(outer[i + 1 :]) * rows * columns) for i, n in enumerate(outer)]
        base = (128 // elem_bits).bit_length() - 1
        tile = make_layout(*slots, Layout(rows, panel), inner)
        return composition(Swizzle(bits, base, 3), tile)
    return plain
