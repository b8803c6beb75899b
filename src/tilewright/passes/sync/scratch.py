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
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from math import prod

from tilewright.ir.analysis.aliases import places as places_of
from tilewright.ir.analysis.flow import Flow
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.passes.lower.lowering import Exchange, meets
from tilewright.passes.memory.place_shared import BULK_ALIGNMENT, too_much

MOST_PLACES = 3  # of a role
SMALL = 2048  # bytes of an exchange that takes turns
OFTEN = 16  # a barrier in a loop counts as so many outside


def settle_scratch(
    kernel: Kernel, body: Body, exchanges: Sequence[Exchange], target: Target
) -> tuple[list[Op], Body]:
    """The scratch arrays with their places, behind all other shared memory, and `body` without
    the barriers that they make superfluous."""
    if not exchanges:
        return [], body
    # those of each role, and outside roles, have places of their own
    groups = [g for g in _groups(body, prod(kernel.threads), exchanges) if g.places]
    end = _aligned(max((at + b.shared_bytes for b, at in places_of(kernel).items()), default=0))
    chip, threads = target.chip, prod(kernel.threads)
    for k in range(len(groups)):
        for count in range(2, MOST_PLACES + 1):
            other = replace(groups[k], count=count)
            least = end + sum(group.size for group in groups)
            more = least + other.size - groups[k].size
            if more > chip.shared or chip.resident(threads, more) < chip.resident(threads, least):
                break
            if other.cost < groups[k].cost:
                groups[k] = other
    made: list[Op] = []
    at = end
    for group in groups:
        starts = {}
        for place, size in sorted(group.sizes.items()):
            starts[place], at = at, at + size
        for number, place in group.places.items():
            buffer = exchanges[number].buffer
            if starts[place] + buffer.bytes > chip.shared:
                tiles = [op.buffer for op in walk_ops(kernel, Alloc)]
                raise too_much(
                    f"kernel {kernel.name} exchanges more between warps than a block has room for",
                    {b.name: b.shared_bytes for b in (*tiles, buffer) if b.space is Space.SHARED},
                    kernel.loc,
                    expected=f"at most {chip.shared} bytes of shared memory on {target.arch}",
                    got=f"{end} bytes and {buffer.bytes} of scratch",
                )
            made.append(Alloc(buffer, place=starts[place], loc=kernel.loc))
    stay = set().union(*(group.needed for group in groups))
    dropped = {id(e.before) for n, e in enumerate(exchanges) if e.before and n not in stay}
    return made, map_body(body, lambda op: () if id(op) in dropped else None)


def _aligned(size: int) -> int:
    return -(-size // BULK_ALIGNMENT) * BULK_ALIGNMENT


@dataclass(frozen=True)
class _Group:
    """Exchanges of one role, or of what stands outside roles, that take turns over `count` places.
    `body`: what touches scratch there, or makes its threads meet; `uses`: by id of an op, the
    exchanges whose scratch it touches."""

    exchanges: Sequence[Exchange]
    uses: Mapping[int, list[int]]
    threads: int
    body: Body
    count: int = 1

    @cached_property
    def places(self) -> dict[int, int]:
        """The place of each exchange; large ones have the first for themselves. Instances of a
        role do not meet: nothing takes turns with what another of them may be using."""
        mine = sorted({n for op in walk_ops(self.body) for n in self.uses.get(id(op), ())})
        if any(self.exchanges[n].instances > 1 for n in mine):
            return {n: k for k, n in enumerate(mine)}
        large = {n for n in mine if self.exchanges[n].buffer.bytes > SMALL}
        first = 1 if large and self.count > 1 else 0
        turns = cycle(range(first, self.count))
        return {n: 0 if n in large else next(turns) for n in mine}

    @cached_property
    def sizes(self) -> dict[int, int]:
        """Bytes of each place."""
        found: dict[int, int] = {}
        for number, place in self.places.items():
            size = _aligned(self.exchanges[number].buffer.bytes)
            found[place] = max(found.get(place, 0), size)
        return found

    @property
    def size(self) -> int:
        return sum(self.sizes.values())

    @cached_property
    def needed(self) -> set[int]:
        """The exchanges that threads have to meet before. Each is added where one is missing, and
        left out again where others serve."""
        kept: set[int] = set()
        while (number := _Walk(self, kept).first()) is not None:
            kept.add(number)
        for number in sorted(kept):
            if _Walk(self, kept - {number}).first() is None:
                kept.discard(number)
        return kept

    @property
    def cost(self) -> int:
        depths = dict(_depths(self.body, 0))
        barriers = {n: id(self.exchanges[n].before) for n in self.needed}
        return sum(OFTEN ** depths.get(barriers[n], 0) for n in self.needed)


def _depths(body: Body, depth: int) -> Iterator[tuple[int, int]]:
    """How many loops are around each op, by its id."""
    for op in body:
        yield id(op), depth
        for inner in bodies(op):
            yield from _depths(inner, depth + isinstance(op, (For, While)))


def _groups(body: Body, threads: int, exchanges: Sequence[Exchange]) -> list[_Group]:
    """The exchanges outside roles, and those of each role."""
    numbers = {e.buffer.name: n for n, e in enumerate(exchanges)}
    uses: dict[int, list[int]] = {}
    roles: list[_Group] = []

    def rule(op: Op) -> Body | None:
        if isinstance(op, Role):
            warps = op.warps // op.instances
            roles.append(_Group(exchanges, uses, warps * WARP, op.body))
            return ()
        names = {b.name for b in (*read_buffers(op), *written_buffers(op))} & numbers.keys()
        if names:
            uses[id(op)] = [numbers[name] for name in names]
        matters = names or isinstance(op, (Break, Continue, Sync)) or any(bodies(op))
        return None if matters else ()

    outside = map_body(body, rule)
    return [_Group(exchanges, uses, threads, outside), *roles]


class _Missing(Exception):
    def __init__(self, number: int) -> None:
        self.number = number


class _Walk(Flow[frozenset[int]]):
    """Which places have been used since threads last met, with the barriers of `kept` alone."""

    def __init__(self, group: _Group, kept: set[int]) -> None:
        super().__init__()
        self.group, self.kept = group, kept
        self.barriers = {id(e.before): n for n, e in enumerate(group.exchanges) if e.before}

    def first(self) -> int | None:
        """The first exchange that misses its barrier."""
        try:
            self.body(self.group.body, frozenset())
        except _Missing as found:
            return found.number
        return None

    def join(self, a: frozenset[int], b: frozenset[int]) -> frozenset[int]:
        return a | b

    def visit(self, op: Op, used: frozenset[int], out: list[Op]) -> frozenset[int]:
        places = self.group.places
        used |= {places[n] for n in self.group.uses.get(id(op), ())}
        if not isinstance(op, Sync):
            return used
        number = self.barriers.get(id(op))
        if number in self.kept or (number is None and meets(op, self.group.threads)):
            return frozenset()
        if number is not None and places[number] in used:
            raise _Missing(number)
        return used
