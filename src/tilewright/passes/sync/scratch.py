"""Places in shared memory for what warps exchange, and the barriers that those places need.

An exchange is three things: threads write a scratch array, meet, and read it. Before the write,
too, they have to meet, unless they have done so since the place was last used: `lower_threads` puts
a barrier in front of each write, and `settle_scratch` takes out those that are not needed. What
decides is which places have been used since the threads of the role last met, on any path to the
write, through branches and round loops.

Exchanges of a role that lie at one place need a barrier between any two of them. Small ones take
turns over a few places: the meeting inside one exchange then serves the other as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.chips import Chip
from tilewright.ir.expr import loads
from tilewright.ir.op import (
    Alloc,
    Body,
    Break,
    Continue,
    For,
    If,
    Intrinsic,
    Kernel,
    Op,
    Role,
    Store,
    Sync,
    While,
    bodies,
    expressions,
    placed,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_body
from tilewright.ir.target import Target
from tilewright.passes.lower.lowering import WARP, Exchange, meets
from tilewright.passes.memory.place_shared import (
    BULK_ALIGNMENT,
    TooMuchShared,
    shared_bytes,
    too_much,
)

MOST_PLACES = 3  # of a role
SMALL = 2048  # bytes of an exchange that takes turns
UNIT = 128  # bytes in which blocks are given shared memory
OFTEN = 16  # a barrier in a loop counts as so many outside


def settle_scratch(
    kernel: Kernel, body: Body, exchanges: Sequence[Exchange], target: Target
) -> tuple[list[Op], Body]:
    """The scratch arrays with their places, behind all other shared memory, and `body` without
    the barriers that they make superfluous."""
    if not exchanges:
        return [], body
    end = _end(kernel)
    trees = list(_trees(body, prod(kernel.threads), exchanges))
    # those of each role, and outside roles, have places of their own
    groups = {k: sorted(_users(tree)) for k, tree in enumerate(trees) if _users(tree)}
    chosen = {role: _turns(exchanges, mine, 1) for role, mine in groups.items()}
    kept = {role: _needed(trees[role], chosen[role]) for role in groups}
    depths = {e.number: d for tree in trees for e, d in _barriers(tree, 0)}
    for role, mine in groups.items():
        least = end + sum(_size(exchanges, groups[r], chosen[r]) for r in groups)
        for count in range(2, MOST_PLACES + 1):
            places = _turns(exchanges, mine, count)
            more = least + _size(exchanges, mine, places) - _size(exchanges, mine, chosen[role])
            if not _is_free(kernel, target.chip, least, more):
                break
            needed = _needed(trees[role], places)
            if _cost(needed, depths) < _cost(kept[role], depths):
                chosen[role], kept[role], least = places, needed, more
    made: list[Op] = []
    for role, mine in groups.items():
        starts = _starts(exchanges, mine, chosen[role], end)
        end += _size(exchanges, mine, chosen[role])
        for number in mine:
            buffer, at = exchanges[number].buffer, starts[chosen[role][number]]
            if at + buffer.bytes > target.chip.shared:
                raise _too_much(kernel, target, _end(kernel), buffer)
            made.append(Alloc(buffer, place=at, loc=kernel.loc))
    stay = set().union(*kept.values())
    dropped = {id(e.before) for n, e in enumerate(exchanges) if e.before and n not in stay}
    return made, map_body(body, lambda op: () if id(op) in dropped else None)


# ── places ───────────────────────────────────────────────────────────────────────────────────


def _end(kernel: Kernel) -> int:
    """Where other shared memory ends."""
    ends = (place + shared_bytes(buffer) for buffer, place in placed(kernel).items())
    return _aligned(max(ends, default=0), BULK_ALIGNMENT)


def _aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _turns(exchanges: Sequence[Exchange], mine: Sequence[int], count: int) -> dict[int, int]:
    """The place of each exchange, one of `count` in turn; large ones have the first for
    themselves. Instances of a role do not meet: nothing takes turns with what another of them may
    be using."""
    if any(exchanges[n].instances > 1 for n in mine):
        return {n: k for k, n in enumerate(mine)}
    large = {n for n in mine if exchanges[n].buffer.bytes > SMALL}
    first = 1 if large and count > 1 else 0
    small = [n for n in mine if n not in large]
    turns = {n: first + k % (count - first) for k, n in enumerate(small)}
    return turns | dict.fromkeys(large, 0)


def _sizes(
    exchanges: Sequence[Exchange], mine: Sequence[int], places: Mapping[int, int]
) -> dict[int, int]:
    sizes: dict[int, int] = {}
    for number in mine:
        size = _aligned(exchanges[number].buffer.bytes, BULK_ALIGNMENT)
        sizes[places[number]] = max(sizes.get(places[number], 0), size)
    return sizes


def _size(exchanges: Sequence[Exchange], mine: Sequence[int], places: Mapping[int, int]) -> int:
    return sum(_sizes(exchanges, mine, places).values())


def _starts(
    exchanges: Sequence[Exchange], mine: Sequence[int], places: Mapping[int, int], at: int
) -> dict[int, int]:
    starts: dict[int, int] = {}
    for place, size in sorted(_sizes(exchanges, mine, places).items()):
        starts[place], at = at, at + size
    return starts


def _is_free(kernel: Kernel, chip: Chip, before: int, after: int) -> bool:
    """Whether a block may have `after` bytes for `before`, and as many blocks share a
    multiprocessor."""
    if after > chip.shared:
        return False

    def blocks(size: int) -> int:
        by_size = chip.shared_per_sm // (_aligned(size, UNIT) + chip.reserved)
        return min(by_size, chip.threads_per_sm // prod(kernel.threads), chip.blocks_per_sm)

    return blocks(after) >= blocks(before)


def _too_much(kernel: Kernel, target: Target, end: int, buffer: Buffer) -> TooMuchShared:
    tiles = [op.buffer for op in walk_ops(kernel) if isinstance(op, Alloc)]
    error = too_much(
        f"kernel {kernel.name} exchanges more between warps than a block has room for",
        {b.name: shared_bytes(b) for b in (*tiles, buffer) if b.space is Space.SHARED},
        kernel.loc,
        expected=f"at most {target.chip.shared} bytes of shared memory on {target.arch}",
        got=f"{end} bytes and {buffer.bytes} of scratch",
    )
    return error


# ── barriers ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Use:
    """Scratch of exchange `number` is written or read."""

    number: int


@dataclass(frozen=True)
class _Before:
    """The barrier in front of exchange `number`, if it is needed."""

    number: int


@dataclass(frozen=True)
class _Meet:
    """All threads of the role meet."""


@dataclass(frozen=True)
class _Jump:
    """On to the end of the loop's body, or behind the loop."""


@dataclass
class _Branch:
    arms: list[list[_Event]]


@dataclass
class _Loop:
    body: list[_Event]


_Event: TypeAlias = "_Use | _Before | _Meet | _Jump | _Branch | _Loop"


@dataclass
class _Reader:
    """What happens to scratch in lowered code; roles inside are read apart, into `others`."""

    threads: int
    buffers: Mapping[str, int]
    barriers: Mapping[int, int]
    others: list[list[_Event]] = field(default_factory=list)

    def body(self, body: Body) -> list[_Event]:
        return [event for op in body for event in self.op(op)]

    def op(self, op: Op) -> Iterator[_Event]:
        if isinstance(op, Role):
            threads = op.warps // op.instances * WARP
            inner = _Reader(threads, self.buffers, self.barriers, self.others)
            self.others.append(inner.body(op.body))
            return
        for name in sorted(_mentioned(op) & self.buffers.keys()):
            yield _Use(self.buffers[name])
        if isinstance(op, Sync):
            if id(op) in self.barriers:
                yield _Before(self.barriers[id(op)])
            elif meets(op, self.threads):
                yield _Meet()
        elif isinstance(op, (Break, Continue)):
            yield _Jump()
        elif isinstance(op, If):
            arms = [self.body(op.then), self.body(op.orelse)]
            if any(arms):
                yield _Branch(arms)
        elif isinstance(op, (For, While)):
            inside = self.body(op.body)
            if isinstance(op, While):  # its condition is read again behind the body
                inside += [_Use(self.buffers[n]) for n in _mentioned(op) & self.buffers.keys()]
            if inside:
                yield _Loop(inside)
        else:
            for inner_body in bodies(op):
                yield from self.body(inner_body)


def _mentioned(op: Op) -> set[str]:
    """Buffers that `op` itself touches, those of ops inside it left out."""
    found = {x.buffer.name for e in expressions(op) for x in loads(e)}
    found |= {r.buffer.name for r in regions(op, reads=True, writes=True)}
    if isinstance(op, Store):
        found.add(op.buffer.name)
    if isinstance(op, Intrinsic):
        found |= {a.buffer.name for a in op.args if isinstance(a, Region)}
    return found


def _trees(body: Body, threads: int, exchanges: Sequence[Exchange]) -> Iterator[list[_Event]]:
    """What happens to scratch outside roles, and in each role."""
    buffers = {e.buffer.name: n for n, e in enumerate(exchanges)}
    barriers = {id(e.before): n for n, e in enumerate(exchanges) if e.before is not None}
    reader = _Reader(threads, buffers, barriers)
    yield reader.body(body)
    yield from reader.others


def _users(events: list[_Event]) -> set[int]:
    """The exchanges that happen in `events`."""
    found: set[int] = set()
    for event in events:
        if isinstance(event, _Use):
            found.add(event.number)
        elif isinstance(event, _Branch):
            found.update(*map(_users, event.arms))
        elif isinstance(event, _Loop):
            found |= _users(event.body)
    return found


def _barriers(events: list[_Event], depth: int) -> Iterator[tuple[_Before, int]]:
    for event in events:
        if isinstance(event, _Before):
            yield event, depth
        elif isinstance(event, _Branch):
            for arm in event.arms:
                yield from _barriers(arm, depth)
        elif isinstance(event, _Loop):
            yield from _barriers(event.body, depth + 1)


def _cost(needed: set[int], depths: Mapping[int, int]) -> int:
    return sum(OFTEN ** depths.get(number, 0) for number in needed)


def _needed(events: list[_Event], places: Mapping[int, int]) -> set[int]:
    """The exchanges that threads have to meet before. Each is added where one is missing, and
    left out again where others serve."""
    kept: set[int] = set()
    while (number := _Walk(places, kept).first(events)) is not None:
        kept.add(number)
    for number in sorted(kept):
        if _Walk(places, kept - {number}).first(events) is None:
            kept.discard(number)
    return kept


class _Missing(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


@dataclass
class _Walk:
    """Which places have been used since threads last met, with the barriers of `kept` alone."""

    places: Mapping[int, int]
    kept: set[int]
    jumps: list[set[int]] = field(default_factory=list)

    def first(self, events: list[_Event]) -> int | None:
        """The first exchange that misses its barrier."""
        try:
            self.body(events, set())
        except _Missing as found:
            return found.number
        return None

    def body(self, events: list[_Event], used: set[int]) -> None:
        for event in events:
            match event:
                case _Use():
                    used.add(self.places[event.number])
                case _Meet():
                    used.clear()
                case _Before():
                    if event.number in self.kept:
                        used.clear()
                    elif self.places[event.number] in used:
                        raise _Missing(event.number)
                case _Jump():
                    if self.jumps:
                        self.jumps[-1] |= used
                case _Branch():
                    before, after = set(used), set[int]()
                    for arm in event.arms:
                        here = set(before)
                        self.body(arm, here)
                        after |= here
                    used.clear()
                    used |= after
                case _Loop():
                    self.loop(event, used)

    def loop(self, loop: _Loop, used: set[int]) -> None:
        while True:
            inner = set(used)
            self.jumps.append(set())
            self.body(loop.body, inner)
            inner |= self.jumps.pop()
            if inner <= used:
                return
            used |= inner


__all__ = ["settle_scratch"]
