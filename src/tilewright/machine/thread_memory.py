"""The shared memory of a block as bytes: buffers at their places, descriptors and swizzles.

At stage THREAD a shared buffer is a typed window on the block's bytes where `hint place` puts it,
so buffers that share memory see each other's bits. What nothing has written is 0xFF: NaN in every
float type that has one, -1 in integers.
"""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const
from tilewright.ir.op import Alloc, Kernel, View, placed, walk_ops
from tilewright.machine.memory import Array, Memory, Storage
from tilewright.support.errors import RunError

POISON = 0xFF
_ALIGNMENT = 1024  # of a block's shared memory, and the period of the widest swizzle
_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes that a descriptor's two swizzle bits stand for


class Plan:
    """Where the shared buffers and barriers of a kernel lie."""

    def __init__(self, kernel: Kernel) -> None:
        self.buffers: dict[str, Buffer] = {}
        self.places: dict[str, int] = {}
        given = placed(kernel)
        end = max((place + size_of(buffer) for buffer, place in given.items()), default=0)
        places = {buffer.name: place for buffer, place in given.items()}
        for op in walk_ops(kernel):
            if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.BARRIER):
                self.buffers[op.buffer.name] = op.buffer
        for name, buffer in self.buffers.items():
            if name not in places:
                end = -(-end // _ALIGNMENT) * _ALIGNMENT
                places[name] = end
                end += size_of(buffer)
            self.places[name] = places[name]
        for op in walk_ops(kernel):
            if isinstance(op, View) and op.buffer.space is Space.SHARED:
                if not isinstance(op.offset, Const) or op.source.name not in self.places:
                    raise RunError(
                        f"{op.buffer.name} begins at a place known only at run time", loc=op.loc
                    )
                place = self.places[op.source.name] + int(op.offset) * op.buffer.dtype.bytes
                self.buffers[op.buffer.name], self.places[op.buffer.name] = op.buffer, place
        self.bytes = -(-max(end, 1) // _ALIGNMENT) * _ALIGNMENT
        tiles = [b for b in self.buffers.values() if b.space is Space.SHARED]
        for buffer in tiles:
            if buffer.dtype.packed:
                raise RunError(f"{buffer.name} has elements of less than a byte", loc=kernel.loc)
            if self.places[buffer.name] % buffer.dtype.bytes:
                raise RunError(
                    f"{buffer.name} lies at {self.places[buffer.name]}, which is no multiple of "
                    f"the {buffer.dtype.bytes} bytes of its elements",
                    loc=kernel.loc,
                )
        self.unit = min((b.dtype.bytes for b in tiles), default=1)

    def owner(self, address: int) -> str:
        """The buffer at an address, in words."""
        for name, buffer in self.buffers.items():
            start = self.places[name]
            if buffer.space is Space.SHARED and start <= address < start + size_of(buffer):
                return f"{name}[{(address - start) // buffer.dtype.bytes}]"
        return f"shared memory at byte {address}"


def size_of(buffer: Buffer) -> int:
    count = prod(buffer.static_shape)
    return 8 * count if buffer.space is Space.BARRIER else buffer.dtype.storage_bytes(count)


class SharedBytes:
    """One block's shared memory."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.bytes: Array = np.full(plan.bytes, POISON, np.uint8)
        self.memories: dict[str, Memory] = {}
        for name, buffer in plan.buffers.items():
            if buffer.space is Space.SHARED:
                start = plan.places[name]
                part = self.bytes[start : start + buffer.bytes].view(buffer.dtype.numpy)
                array = part.reshape(buffer.static_shape)
                storage = Storage(name, array, buffer.dtype.bits, array.size)
                self.memories[name] = Memory(buffer, buffer.static_shape, array, storage)

    def view(self, dtype: np.dtype[Any]) -> Array:
        """All bytes as elements of `dtype`."""
        return self.bytes.view(dtype)

    def address(self, name: str, element: Any) -> Any:
        """The byte address of an element (or of many) of a buffer."""
        buffer = self.plan.buffers[name]
        return self.plan.places[name] + np.asarray(element, np.int64) * buffer.dtype.bytes


def swizzled(address: Any, span: int) -> Any:
    """Where the byte at `address` goes under a swizzle of `span` bytes: units of 16 bytes within
    the span are exchanged by the number of the 128-byte line.

    >>> [swizzled(128 * line, 128) - 128 * line for line in range(4)]
    [0, 16, 32, 48]
    """
    lines = max(span // 16 - 1, 0)
    return address ^ ((address >> 7 & lines) << 4)


@lru_cache(256)
def operand_addresses(code: int, mn: int, k: int, size: int, mn_major: bool) -> Array:
    """The byte addresses [mn, k] of the matrix that descriptor `code` names, elements of `size`
    bytes; not to be written."""
    start, leading, stride = ((code >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    span = _SPANS[code >> 62]
    i, j = np.ogrid[:mn, :k]
    if mn_major:
        row = (span or 16) // size  # elements of a column of the atom, which is eight k deep
        columns, depth = (leading, stride) if span else (stride, leading)
        offset = (i % row * size + i // row * columns) + (j % 8 * (span or 16) + j // 8 * depth)
    elif span:
        offset = (i % 8 * span + i // 8 * stride) + j * size
    else:
        unit = 16 // size
        offset = (i % 8 * 16 + i // 8 * stride) + (j % unit * size + j // unit * leading)
    found: Array = np.asarray(swizzled(start + offset, span), np.int64)
    found.flags.writeable = False
    return found
