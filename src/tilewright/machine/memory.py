"""Memory: what a buffer's elements are kept in, and the windows that `View` opens on it.

Elements are kept one per NumPy item in an array of the buffer's shape. A buffer that each lane
owns privately (a `LOCAL` of a thread, or of an iteration of a `Map`) has the lane space as leading
axes. Views of one storage are NumPy views of one array; only where a sub-byte type is seen as
another width is the storage kept as packed bytes, unpacked at each access.

Shadows (validity, owners of the last access) are flat arrays in *units*: the narrowest element of
any view of the storage. `Memory.window` shapes one like the buffer, with a trailing axis when an
element spans several units.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.ir.layout.layout import make_layout
from tilewright.machine.numbers import Array, from_bits, pack, poison, poison_fill, raw_bits, unpack


class Storage:
    """The memory behind a buffer and its views."""

    __slots__ = ("accesses", "array", "blank", "key", "marks", "owner", "shadows", "touched",
                 "unit", "units", "valid", "watched")  # fmt: skip

    def __init__(self, key: str, array: Array, unit: int, units: int) -> None:
        self.key = key
        self.array = array
        self.unit = unit
        self.units = units
        self.owner: Any = None  # the block, for shared memory
        self.valid: Array | None = None  # per unit: something wrote it; None = all of it
        self.marks: Array | None = None  # per unit: where its value comes from (padding.py)
        self.blank = False  # all of it holds a constant
        self.shadows: dict[str, Array] = {}
        self.accesses: list[Any] = []  # live access records (events.py)
        self.touched = 0  # when ordinary code last touched these registers
        self.watched = True  # or nobody is told of accesses

    def shadow(self, name: str, fill: int) -> Array:
        """The named per-unit array, made when first asked for."""
        found = self.shadows.get(name)
        if found is None:
            found = self.shadows[name] = np.full(self.units, fill, np.int64)
        return found


class Memory:
    """A buffer's elements in some storage."""

    __slots__ = ("array", "buffer", "dtype", "is_global", "lead", "name", "offset", "pads", "ratio",
                 "shape", "space", "storage")  # fmt: skip

    def __init__(
        self,
        buffer: Buffer,
        shape: tuple[int, ...],
        array: Array,
        storage: Storage,
        *,
        lead: tuple[int, ...] = (),
        offset: int = 0,
    ) -> None:
        self.buffer = buffer
        self.name = buffer.name
        self.dtype = buffer.dtype
        self.space = buffer.space
        self.is_global = self.pads = buffer.is_global  # zeros lie outside
        self.shape = shape
        self.lead = lead
        self.array = array
        self.storage = storage
        self.offset = offset
        self.ratio = buffer.dtype.bits // storage.unit

    @property
    def data(self) -> Array:
        return self.array

    def flush(self, data: Array) -> None:
        """`data` was written in place."""

    @property
    def size(self) -> int:
        return prod(self.lead) * prod(self.shape)

    def window(self, flat: Array) -> Array:
        """A shadow of the storage, shaped like this buffer."""
        part = flat[self.offset : self.offset + self.size * self.ratio]
        shape = self.lead + self.shape
        return part.reshape(shape if self.ratio == 1 else (*shape, self.ratio))

    def copy(self, other: Memory, lanes: Any = ...) -> None:
        """Take the elements of `other`, or what `lanes` of it hold."""
        self.data[...] = other.data[lanes]
        if self.storage.valid is not None and other.storage.valid is not None:
            self.window(self.storage.valid)[...] = other.window(other.storage.valid)[lanes]

    def spread(self, lanes: tuple[int, ...]) -> None:
        """Give every lane its own copy of a buffer that was the same in all."""
        data = np.broadcast_to(self.array, lanes + self.shape).copy()
        storage = Storage(self.storage.key, data, self.storage.unit, data.size * self.ratio)
        if self.storage.valid is not None:
            old = self.window(self.storage.valid)
            storage.valid = np.broadcast_to(old, lanes + old.shape).copy().reshape(-1)
        storage.touched, storage.watched = self.storage.touched, self.storage.watched
        self.array, self.storage, self.lead = data, storage, lanes


class TurnedMemory(Memory):
    """A view whose layout has the source's axes in the opposite order: the same bytes, turned."""

    __slots__ = ()

    def window(self, flat: Array) -> Array:
        part: Array = flat[self.offset : self.offset + self.size]
        return np.transpose(part.reshape(self.shape[::-1]))


class PackedMemory(Memory):
    """A buffer in storage kept as packed bytes: elements are unpacked at each access."""

    __slots__ = ()

    @property
    def data(self) -> Array:
        start = self.offset // self.ratio
        found: Array = self._elements()[start : start + self.size]
        return np.array(found.reshape(self.lead + self.shape))

    def _elements(self) -> Array:
        """All of the storage under this type."""
        raw, size = self.storage.array, max(self.dtype.bits // 8, 1)
        if self.dtype.bits < 8:
            return np.asarray(unpack(raw, self.dtype))
        return np.asarray(from_bits(raw[: raw.size // size * size].view(f"u{size}"), self.dtype))

    def flush(self, data: Array) -> None:
        all_of_it, start = self._elements(), self.offset // self.ratio
        all_of_it[start : start + data.size] = data.reshape(-1)
        packed = pack if self.dtype.bits < 8 else raw_bits
        new = packed(all_of_it, self.dtype).view(np.uint8)
        self.storage.array[: new.size] = new


def allocate(
    buffer: Buffer,
    shape: tuple[int, ...],
    *,
    unit: int = 0,
    packed: bool = False,
    lead: tuple[int, ...] = (),
    track: bool = False,
    array: Array | None = None,
) -> Memory:
    """Memory for `buffer`: uninitialised, or `array` itself for a tensor that came as argument."""
    dtype = buffer.dtype
    unit = unit or dtype.bits
    full = lead + shape
    count = prod(full)
    fresh = array is None
    data = poison(full, dtype) if array is None else array
    units = count * dtype.bits // unit
    if packed:
        raw = np.zeros(dtype.storage_bytes(count), np.uint8)
        memory: Memory = PackedMemory(
            buffer, shape, raw, Storage(buffer.name, raw, unit, units), lead=lead
        )
        memory.flush(data)
    else:
        memory = Memory(buffer, shape, data, Storage(buffer.name, data, unit, units), lead=lead)
    if track and fresh:
        memory.storage.valid = np.zeros(units, np.bool_)
    return memory


def open_view(buffer: Buffer, shape: tuple[int, ...], source: Memory, offset: int) -> Memory:
    """`buffer` as a window on `source`'s storage, `offset` of its own elements in."""
    storage, lead = source.storage, source.lead
    bits = buffer.dtype.bits
    count = prod(shape)
    room = prod(source.shape) * source.dtype.bits
    if offset < 0 or (offset + count) * bits > room:
        raise RunError(
            f"view {buffer.name} does not lie inside {source.name}",
            expected=f"at most {room // bits} elements of {buffer.dtype}",
            got=f"{count} elements from {offset} on",
        )
    at = source.offset + offset * bits // storage.unit
    if isinstance(source, PackedMemory):
        if lead:
            raise RunError("a packed view of per-thread memory is not supported")
        return PackedMemory(buffer, shape, source.array, storage, lead=lead, offset=at)
    if lead and count * bits != room:
        raise RunError("a partial view of per-thread memory is not supported")
    flat = source.array.reshape(-1)
    if not np.shares_memory(flat, source.array) and flat.size:
        raise RunError(f"{source.name} is not contiguous, so it cannot be viewed")
    if is_turned(buffer, source.buffer):
        return TurnedMemory(buffer, shape, source.array.T, storage, offset=at)
    typed = flat if buffer.dtype.numpy == source.dtype.numpy else flat.view(buffer.dtype.numpy)
    part = typed if lead else typed[offset : offset + count]
    return Memory(buffer, shape, part.reshape(lead + shape), storage, lead=lead, offset=at)


def is_turned(view: Buffer, source: Buffer) -> bool:
    """Layouts say so: an element of `view` lies where the one of swapped indices lies in `source`.
    Without layouts a view is the source's elements in row-major order."""
    here, there = view.layout, source.layout
    if not isinstance(here, (Layout, ComposedLayout)) or source.rank != 2:
        return False
    if not isinstance(there, (Layout, ComposedLayout)) or view.shape != source.shape[::-1]:
        return False
    plain = there.layout if isinstance(there, ComposedLayout) else there
    other = make_layout(*reversed(tuple(plain)))
    turned = there.with_layout(other) if isinstance(there, ComposedLayout) else other
    return view.dtype == source.dtype and here == turned != there


def make_poison(memory: Memory, where: tuple[Any, ...], dtype: DType) -> None:
    """The elements at `where` hold nothing meaningful until written again."""
    data = memory.data
    poison_fill(
        data[where] if isinstance(data[where], np.ndarray) else data[where + (None,)], dtype
    )
    memory.flush(data)
    if memory.storage.valid is not None:
        memory.window(memory.storage.valid)[where] = False


def describe_index(memory: Memory, index: tuple[int, ...]) -> str:
    return f"{memory.name}[{', '.join(map(str, index))}]" if index else memory.name
