"""Maps that write in place.

A text of values names what it computes, and every name is a fragment. Where a map makes one out of
an accumulator, element by element, and nothing needs the accumulator after that, it writes there:

    S = A·B; map (i, j) { p[i, j] = exp(S[i, j]) }; …p…

    S = A·B; map (i, j) { S[i, j] = exp(S[i, j]) }; …S…

Passes that count registers then count what is held. So it is with a fragment of a narrower type
that is only stored to a tensor: the copy there converts.
"""

from __future__ import annotations

from tilewright.passes.core import *


@kernel_pass
def write_in_place(at: Facts) -> Kernel:
    """Let a map write its result over an accumulator that is not read again."""
    sums = {op.c.buffer for op in at.ops if isinstance(op, Gemm) and op.c.is_whole}
    fixed = at.viewed | {op.buffer.name for op in at.ops if isinstance(op, Hint) and op.buffer}
    if at.has_roles or not sums:
        return at.kernel
    places: dict[Buffer, Buffer] = {}  # what a fragment became
    widened: set[int] = set()  # maps that leave the conversion to a copy
    for body in (at.kernel.body, *(inner for op in at.ops for inner in bodies(op))):
        own = {op.buffer for op in body if isinstance(op, Alloc) and _is_free(op.buffer, fixed)}
        touches = [mentioned(op) if not isinstance(op, Alloc) else set() for op in body]
        first = {name: n for n, names in reversed([*enumerate(touches)]) for name in names}
        last = {name: n for n, names in enumerate(touches) for name in names}
        for n, op in enumerate(body):
            tile = _made(op)
            if tile is None or tile not in own or first.get(tile.name) != n:
                continue
            for load in loads_within(op):
                place = places.get(load.buffer, load.buffer)
                if place not in own or place not in sums or last[place.name] != n:
                    continue
                if place.shape != tile.shape or not _at_own_point(op, place, places):
                    continue
                if place.dtype != tile.dtype:
                    if not (_converts(op, place) and _is_stored(body[n + 1 :], tile, place)):
                        continue
                    widened.add(id(op))
                places[tile], last[place.name] = place, last.get(tile.name, n)
                because(at.kernel.name, tile.name, f"written over {place.name}")
                break

    def rule(op: Op) -> Op | Body | None:
        if isinstance(op, Alloc) and op.buffer in places:
            return ()
        if id(op) not in widened:
            return None
        assert isinstance(op, Map)
        *before, store = op.body
        assert isinstance(store, Store) and isinstance(store.value, Cast)
        wide = rebuild(store, buffer=places[store.buffer], value=store.value.a)
        return rebuild(op, body=(*before, wide))

    return replace_buffers(map_ops(at.kernel, rule), places) if places else at.kernel


def _is_free(buffer: Buffer, fixed: set[str]) -> bool:
    return buffer.is_fragment and buffer.layout is None and buffer.name not in fixed


def _made(op: Op) -> Buffer | None:
    """The tile that a map fills, one element at each point."""
    match op:
        case Map(body=(*names, Store(tile, place)), layout=None, atom=None):
            fills = place == op.vars and op.extents == tile.shape
            return tile if fills and all(isinstance(x, Let) for x in names) else None
    return None


def _at_own_point(op: Op, place: Buffer, places: dict[Buffer, Buffer]) -> bool:
    """Whether a map reads the tile only where it writes."""
    assert isinstance(op, Map)
    found = (x for x in loads_within(op) if places.get(x.buffer, x.buffer) == place)
    return all(x.indices == op.vars for x in found)


def _converts(op: Op, wide: Buffer) -> bool:
    """Whether all that is lost without the conversion at the end of a map is the conversion."""
    match op:
        case Map(body=(*_, Store(value=Cast(a=value)))):
            return value.dtype == wide.dtype
    return False


def _is_stored(later: Body, tile: Buffer, wide: Buffer) -> bool:
    """Whether the tile, converted from a wider type, goes to a tensor and nowhere else."""
    users = [op for op in later if tile.name in mentioned(op)]
    match users:
        case [Copy(dst=Region(buffer)) as copy] if copy.src.buffer == tile and copy.src.is_whole:
            return buffer.is_global and wide.dtype.is_float and wide.dtype.bits > tile.dtype.bits
    return False
