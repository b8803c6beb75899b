"""Whole dimensions that lie side by side in memory, as one: `X[n, c, :, :]` is one long row.

The last of them has all of their places, the others have one; tensors are seen under such a shape.
That holds for a kernel that always uses them together. One that does not is traced again without.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NoReturn

from tilewright.ir.core import *
from tilewright.lang.builder import Builder, Joined, TracedAgain
from tilewright.lang.types import Extent

LEAST = 4096  # elements: registers of a block hold fewer


def find_joined(builder: Builder) -> dict[int, tuple[Joined, ...]]:
    """By kernel, what a first trace shows: runs of whole dimensions, of which no two share one."""
    found: dict[int, dict[str, Joined]] = {}
    left_out = {number for number, *_ in (*builder.products, *builder.scanned)} | builder.uncut
    for number, box in builder.reads_of:
        for run in _runs(box.tile.extents, box.keys) if number not in left_out else ():
            names = [name for name, _ in run]
            known = found.setdefault(number, {})
            if len({*names}) < len(names) or any(known.get(name, run) != run for name in names):
                left_out.add(number)
            known.update(dict.fromkeys(names, run))
    joined = {
        number: tuple(run for run in dict.fromkeys(known.values()) if _places(run) > LEAST)
        for number, known in found.items()
        if number not in left_out
    }
    return {number: runs for number, runs in joined.items() if runs}


def places_of(builder: Builder, name: str, size: int) -> int:
    """Of a whole dimension: those of all that are one with it, if it is their last, or one."""
    for run in builder.sizes.joined.get(builder.number, ()):
        if name in dict(run):
            return _places(run) if name == run[-1][0] else 1
    return size


def check_joined(builder: Builder, keys: Sequence[Any]) -> None:
    """Those of a value's axes: of what is one, all in their order or none."""
    for run in builder.sizes.joined.get(builder.number, ()):
        own = [("extent", name) for name, _ in run]
        at = [k for k, key in enumerate(keys) if key in own]
        if (at and [*keys[at[0] : at[0] + len(own)]] != own) or len(at) > len(own):
            give_up(builder)


def seen_joined(builder: Builder, buffer: Buffer, extents: Any, keys: Sequence[Any]) -> Buffer:
    """A tensor under the shape that its dimensions have as one."""
    joined = builder.sizes.joined.get(builder.number, ())
    runs = [run for run in _runs(extents, keys) if run in joined] if joined else []
    if not runs:
        return buffer
    if not buffer.is_global or not buffer.is_static or buffer.strides is not None:
        give_up(builder)
    sizes = {name: places_of(builder, name, size) for run in runs for name, size in run}
    dims = zip(extents, keys, buffer.static_shape, strict=True)
    shape = tuple(
        const(sizes.get(getattr(extent, "name", ""), size) if _is_whole(key) else size)
        for extent, key, size in dims
    )
    key = builder.number, f"{buffer.name} {shape}"
    if key not in builder.flat:
        made = Buffer(builder.fresh(f"{buffer.name}_joined"), shape, buffer.dtype, buffer.space)
        builder.flat[key] = made
        builder.emit_at(builder.outermost()._replace(at=0), View(made, buffer))
    return builder.flat[key]


def give_up(builder: Builder) -> NoReturn:
    """Trace again, with each dimension as it is."""
    builder.sizes.joined.clear()
    raise TracedAgain


def _runs(extents: Any, keys: Sequence[Any]) -> list[Joined]:
    """Of the dimensions of a tensor under an index, those side by side of which it takes all."""
    runs: list[list[tuple[str, int]]] = [[]]
    for extent, key in zip(extents, keys, strict=True):
        if isinstance(extent, Extent) and _is_whole(key):
            runs[-1].append((extent.name, int(extent)))
        else:
            runs.append([])
    return [tuple(run) for run in runs if len(run) > 1]


def _is_whole(key: Any) -> bool:
    return isinstance(key, slice) and key == slice(None)


def _places(run: Joined) -> int:
    return prod(size for _, size in run)
