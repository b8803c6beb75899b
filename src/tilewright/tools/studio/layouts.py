"""Which thread holds which element of a fragment, and in which bank an element of a shared tile
lies, as tables of a corner of the tile."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from tilewright.inspect.transactions import Access
from tilewright.ir.core import *
from tilewright.ir.layout.layout import row_major

WINDOW = 64  # rows and columns of a table at most
BANKS, BANK = 32, 4  # of shared memory; bytes


def layouts(kernel: Kernel, accesses: Iterable[Access]) -> Iterator[dict[str, Any]]:
    """Of the tiles of a laid-out kernel, once for each name; `accesses` of its thread code."""
    seen: set[str] = set()
    all_accesses = list(accesses)
    for op in walk_ops(kernel, Alloc):
        buffer = op.buffer
        if buffer.name in seen or not buffer.is_static or not buffer.shape:
            continue
        # threads that are written out see shared memory row by row
        held = buffer.layout or (row_major(buffer.static_shape) if buffer.is_shared else None)
        seen.add(buffer.name)
        about: dict[str, Any] = {
            "buffer": buffer.name,
            "line": op.loc.line if op.loc is not None else None,
            "formula": repr(held),
        }
        if isinstance(held, Fragment):
            yield {**about, **fragment(held)}
        elif buffer.is_shared and isinstance(held, (Layout, ComposedLayout)):
            yield {**about, **shared(buffer, held), "accesses": [
                _access(a) for a in all_accesses if a.buffer == buffer.name
            ]}  # fmt: skip


def fragment(held: Fragment) -> dict[str, Any]:
    """The first thread that holds an element of the corner, and its register."""
    shape = held.tile if len(held.tile) > 1 else (1, *held.tile)
    rows, columns = _flat(shape)
    window = min(rows, WINDOW), min(columns, WINDOW)
    at = np.add.outer(np.arange(window[0]) * columns, np.arange(window[1]))
    slots = held.first_slots()[at]
    thread, register = slots // held.values, slots % held.values
    return {
        "kind": "fragment",
        "shape": list(held.tile),
        "window": list(window),
        "threads": held.threads,
        "registers": held.values,
        "replicas": held.replication,
        "thread": _table(thread, np.uint16),
        "register": _table(register, np.uint16),
    }


def shared(buffer: Buffer, held: Layout | ComposedLayout) -> dict[str, Any]:
    """Byte addresses from the buffer's start, and banks; of a ring, those of its first slot."""
    index = np.atleast_2d(held.array())
    index = index[(0,) * (index.ndim - 2)]
    rows, columns = index.shape
    window = min(rows, WINDOW), min(columns, WINDOW)
    index = index[: window[0], : window[1]]
    address = index * buffer.dtype.bits // 8
    return {
        "kind": "shared",
        "shape": [rows, columns],
        "window": list(window),
        "bytes_each": buffer.dtype.bits / 8,
        "bank": _table(address // BANK % BANKS, np.uint8),
        "address": _table(address, np.uint32),
    }


def _flat(shape: tuple[int, ...]) -> tuple[int, int]:
    return int(np.prod(shape[:-1])), shape[-1]


def _table(numbers: Any, kind: Any) -> dict[str, str]:
    return {"b64": b64encode(np.ascontiguousarray(numbers, kind).tobytes()).decode()}


def _access(access: Access) -> dict[str, Any]:
    return {
        "line": access.loc.line if access.loc is not None else None,
        "instruction": access.instruction,
        "writes": access.writes,
        "width": access.width,
        "requests": access.requests,
        "wavefronts": access.units,
        "ideal": access.ideal,
        "words": access.words(),
    }
