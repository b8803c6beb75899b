"""Reductions of rows that a nest has just written: folded in while the values are in registers."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from tilewright.ir.core import *


class Folded(Op):
    """A nest, and the reduction of the rows of a tile that it writes."""

    nest: Map
    reduce: Reduce

    syntax = ""


def paired(body: Body, viewed: Collection[str]) -> Iterable[Op]:
    """`body` with reductions next to the nests that write what they reduce, as one. Nests between
    the two come first, where they have nothing to do with it."""
    done: list[Op] = []
    for op in body:
        at = _writer(done, op, viewed) if isinstance(op, Reduce) else None
        if at is None or not isinstance(op, Reduce):
            done.append(op)
            continue
        nest = done.pop(at)
        assert isinstance(nest, Map)
        done.append(Folded(nest, op, loc=op.loc))
    return done


def _writer(before: list[Op], reduce: Reduce, viewed: Collection[str]) -> int | None:
    tile = reduce.src.buffer
    passed: set[str] = set()
    for at in range(len(before) - 1, -1, -1):
        op = before[at]
        if isinstance(op, Map) and tile.name in _names(op):
            fits = _writes_rows(op, reduce) and not _names(op) & (passed | set(viewed))
            return at if fits and reduce.dst.buffer.name not in _names(op) else None
        if not isinstance(op, (Map, Hint)) and not (isinstance(op, Alloc) and op.init is None):
            return None
        passed |= _names(op)
    return None


def _names(op: Op) -> set[str]:
    """Buffers that `op` touches or brings into being."""
    return {buffer.name for each in walk_ops(op) for buffer in named_buffers(each)}


def _writes_rows(nest: Map, reduce: Reduce) -> bool:
    """The nest stores every element of the tile once, in its own place, and the reduction runs
    along its last axis."""
    src, dst, tile = reduce.src, reduce.dst, reduce.src.buffer
    if tile.space not in (Space.SHARED, Space.FRAGMENT) or not (src.is_whole and dst.is_whole):
        return False
    if any(walk_ops(nest, Intrinsic, Atomic)):
        return False
    shape = nest.extents
    if shape != tile.shape or not all(isinstance(n, Const) and n.value > 1 for n in shape):
        return False
    if reduce.dim != len(shape) - 1 or dst.tile != shape[:-1]:
        return False
    stores = [op for op in walk_ops(nest.body, Store) if op.buffer == tile]
    return len(stores) == 1 and stores[0] in nest.body and stores[0].indices == nest.vars
