"""Give every shared buffer and barrier of a kernel its place in the block's shared memory.

Swizzled tiles begin on 1024 bytes, so that address bits and offset bits agree; other buffers on
128, which is what bulk copies ask for; barriers come last.

**Reuse** (`reuse_shared`) lays buffers that are not needed at the same time over one another. Only
where it is worth a barrier: when the buffers do not all fit into a block's shared memory one after
the other, or when fewer bytes let more blocks share a multiprocessor. Otherwise `place_shared`
gives every buffer its own place.

Only what the whole block touches in the order of the text is laid over something else: kernels
with roles of their own, placements or clusters, and buffers that threads touch each for itself,
keep their own bytes. Beside a derived producer that is done only where they would not fit
otherwise: a result may lie over the tiles that it was made of, once the last of them has been read.
Barriers always keep their bytes. Between the last use of one buffer and the first of the next,
threads meet; where one of them is touched by the asynchronous proxy, after a fence (`hazards`
knows who shares bytes, and `insert_syncs` adds what is missing).

**Exchanges** between warps (`settle_scratch`) are three things: threads write a scratch array,
meet, and read it. Before the write, too, they have to meet, unless they have done so since the
place was last used: `lower_threads` puts a barrier in front of each write, and those that are not
needed are taken out here. What decides is which places have been used since the threads of the role
last met, on any path to the write, through branches and round loops.

Exchanges of a role at one place need a barrier between any two of them. Small ones
alternate between a few places: the barrier inside one then serves the other as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from types import MappingProxyType
from typing import Any

from tilewright.ir.analysis.flow import Flow
from tilewright.ir.analysis.lifetimes import Lifetimes, fragment_words, lifetimes
from tilewright.ir.chips import Chip
from tilewright.passes.core import *
from tilewright.passes.lower.lowering import Exchange, meets
from tilewright.passes.sync.insert_syncs import mended

SWIZZLE_ALIGNMENT = 1024
BULK_ALIGNMENT = 128
BARRIER_BYTES = 8
SCRATCH = 4096  # bytes that exchanges between warps may take after everything else
PLAIN_REGISTERS = 24  # of a thread, besides fragments: addresses, counters
MOST_PLACES = 3  # of a role, for what its warps exchange
SMALL = 2048  # bytes of an exchange that alternates
OFTEN = 16  # a barrier in a loop counts as so many outside


class TooMuchShared(CompileError):
    """A kernel needs more shared memory than a block has; `tiles` are the bytes that those in its
    way take, by name."""

    code = "shared-memory"
    tiles: Mapping[str, int] = MappingProxyType({})


def _too_much(what: str, tiles: Mapping[str, int], **said: Any) -> TooMuchShared:
    """The error for tiles that together are more than there is."""
    error = TooMuchShared(what, fix="use fewer stages or smaller tiles", **said)
    error.tiles = dict(tiles)
    return error


def _refusal(
    kernel: Kernel, target: Target, tiles: Mapping[str, int], **said: Any
) -> TooMuchShared:
    what = f"kernel {kernel.name} needs more shared memory than a block has"
    expected = f"at most {target.chip.shared} bytes on {target.arch}"
    return _too_much(what, tiles, expected=expected, **said)


def _aligned(size: int, to: int = BULK_ALIGNMENT) -> int:
    return -(-size // to) * to


def place_shared(kernel: Kernel, target: Target) -> Kernel:
    """Give each shared buffer that has no place yet (`reuse_shared` gives some) a place after the
    others."""
    places, size = stacked(kernel)
    if size > target.chip.shared:
        tiles = {buffer.name: buffer.shared_bytes for buffer in alignments(kernel)}
        raise _refusal(kernel, target, tiles, got=f"{size} bytes")
    return _with_places(kernel, places)


def alignments(kernel: Kernel) -> dict[Buffer, int]:
    """The kernel's shared tiles and barriers, and what each begins on a multiple of, given its own
    layout and those of its views. The largest multiples come first, barriers last."""
    found: dict[str, int] = {}
    roots = aliases(kernel)
    for op in walk_ops(kernel, Alloc, View):
        swizzled = isinstance(op.buffer.layout, ComposedLayout)
        align = SWIZZLE_ALIGNMENT if swizzled else BULK_ALIGNMENT
        if op.buffer.space is Space.BARRIER:
            align = BARRIER_BYTES
        root = roots[op.buffer.name]
        found[root] = max(found.get(root, 1), align)
    allocs = [op.buffer for op in walk_ops(kernel, Alloc)]
    shared = [b for b in allocs if b.space in (Space.SHARED, Space.BARRIER)]
    return {b: found[b.name] for b in sorted(shared, key=lambda b: -found[b.name])}


def stacked(kernel: Kernel) -> tuple[dict[str, int], int]:
    """Places of shared buffers one after the other, after those that have one, and how many
    bytes all of them take."""
    given, found = places(kernel), dict[str, int]()
    offset = max((at + buffer.shared_bytes for buffer, at in given.items()), default=0)
    for buffer, align in alignments(kernel).items():
        if buffer not in given:
            offset = found[buffer.name] = _aligned(offset, align)
            offset += buffer.shared_bytes
    return found, offset


def _with_places(kernel: Kernel, places: Mapping[str, int]) -> Kernel:
    """`kernel` with its shared buffers at these places. What is allocated inside loops and branches
    comes to the front: it is one per block however often the op runs."""
    top = {op.buffer.name for op in kernel.body if isinstance(op, Alloc)}
    front: list[Op] = []

    def rule(op: Op) -> Op | Body | None:
        if not isinstance(op, Alloc) or op.buffer.name not in places:
            return None
        new = rebuild(op, place=places[op.buffer.name])
        if op.buffer.name in top:
            return new
        front.append(new)
        return ()

    body = map_body(kernel.body, rule)
    return rebuild(kernel, body=(*front, *body))


# ── reuse ────────────────────────────────────────────────────────────────────────────────────


def reuse_shared(kernel: Kernel, target: Target) -> Kernel:
    """Let shared buffers whose lifetimes do not overlap use the same memory, where that is worth a
    barrier."""
    sizes = {b.name: b.shared_bytes for b in alignments(kernel) if b.is_shared}
    if len(sizes) < 2 or kernel.cluster_size > 1 or not _in_order(kernel):
        return kernel
    _, apart = stacked(kernel)
    drained = _drained(kernel)
    lives = _lives(drained)
    places, together = packed(drained, lives)
    if together >= apart:
        return kernel
    chip = target.chip
    exchanges = any(isinstance(op, (Reduce, Relayout, Scan)) for op in walk_ops(kernel))
    room = apart + (SCRATCH if exchanges else 0)
    before, after = (_blocks(kernel, chip, n) for n in (apart, together))
    if room <= chip.shared and (after <= before or any(walk_ops(kernel, Role))):
        return kernel
    if together > chip.shared:
        position, live = lives.peak(sizes)
        kept = {n: size for n, size in sizes.items() if n in live or n not in lives.together}
        got = f"{together} bytes, buffers that are not live together share memory"
        raise _refusal(kernel, target, kept, got=got, loc=lives.ops[position].loc)
    why = f"instead of {apart}: " + (
        f"more than the {chip.shared} of a block"
        if room > chip.shared
        else f"{after} blocks instead of {before} fit a multiprocessor"
    )
    because(kernel.name, "shared memory", why)
    return mended(_with_places(drained, places))


def _in_order(kernel: Kernel) -> bool:
    """Whether all warps but a derived producer's run the same text, and nothing has a place yet."""
    return not any(
        (isinstance(op, Role) and not op.derived)
        or (isinstance(op, Hint) and op.name == "ws")
        or (isinstance(op, Alloc) and op.place is not None)
        for op in walk_ops(kernel)
    )


def _lives(kernel: Kernel) -> Lifetimes:
    """Lives in the consumers' text. What a producer fills lives from the beginning: it runs ahead.
    It ends with the consumers' last use, as they wait for every fill."""
    rest = tuple(op for op in kernel.body if not isinstance(op, Role))
    lives = lifetimes(rebuild(kernel, body=rest))
    for name in {name for role in walk_ops(kernel, Role) for name in mentioned(role)}:
        if name in lives.spans:
            lives.spans[name] = (0, lives.spans[name][1])
    return lives


def _drained(kernel: Kernel) -> Kernel:
    """`kernel` with a wait after each of its loops that fills by `cp.async`: the last iterations
    may leave groups open, empty ones too, and then lives would not end."""
    body: list[Op] = []
    for op in kernel.body:
        body.append(op)
        moves = walk_ops(op, Copy, Map) if isinstance(op, (For, While)) else ()
        if any(inner.atom == "cp_async" for inner in moves):
            body.append(WaitGroup("cp_async", 0))
    return rebuild(kernel, body=tuple(body)) if len(body) != len(kernel.body) else kernel


def packed(kernel: Kernel, lives: Lifetimes) -> tuple[dict[str, int], int]:
    """The lowest places that keep apart what lives at the same time, the largest buffers first,
    and how many bytes that takes."""
    aligned = alignments(kernel)
    sizes = {b.name: b.shared_bytes for b in aligned}
    places: dict[str, int] = {}
    rank = {b: (-aligned[b], -sizes[b.name] if b.is_shared else 0) for b in aligned}
    for b in sorted(aligned, key=lambda b: rank[b]):
        in_the_way = [
            (start, start + sizes[other])
            for other, start in places.items()
            if not {b.name, other} <= lives.together or not lives.apart(b.name, other)
        ]
        at = 0
        while ends := [end for start, end in in_the_way if at < end and start < at + sizes[b.name]]:
            at = _aligned(max(ends), aligned[b])
        places[b.name] = at
    return places, max((at + sizes[name] for name, at in places.items()), default=0)


def _blocks(kernel: Kernel, chip: Chip, shared: int) -> int:
    """Blocks that share a multiprocessor, as far as that is known before registers are: fragments
    that live at the same time need theirs."""
    sizes = fragment_words(kernel)
    _, live = lifetimes(kernel, (Space.FRAGMENT,)).peak(sizes)
    registers = sum(sizes[name] for name in live) + PLAIN_REGISTERS
    return chip.resident(kernel.thread_count, shared, registers)


# ── exchanges ────────────────────────────────────────────────────────────────────────────────


def settle_scratch(
    kernel: Kernel, body: Body, exchanges: Sequence[Exchange], target: Target
) -> tuple[list[Op], Body]:
    """The scratch arrays with their places, after all other shared memory, and `body` without
    the barriers that they make superfluous."""
    if not exchanges:
        return [], body
    # those of each role, and outside roles, have places of their own
    groups = [g for g in _groups(body, kernel.thread_count, exchanges) if g.places]
    end = _aligned(max((at + b.shared_bytes for b, at in places(kernel).items()), default=0))
    chip, threads = target.chip, kernel.thread_count
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
                raise _too_much(
                    f"kernel {kernel.name} exchanges more between warps than a block has room for",
                    {b.name: b.shared_bytes for b in (*tiles, buffer) if b.is_shared},
                    expected=f"at most {chip.shared} bytes of shared memory on {target.arch}",
                    got=f"{end} bytes and {buffer.bytes} of scratch",
                )
            made.append(Alloc(buffer, place=starts[place]))
    stay = set().union(*(group.needed for group in groups))
    dropped = {id(e.before) for n, e in enumerate(exchanges) if e.before and n not in stay}
    return made, map_body(body, lambda op: () if id(op) in dropped else None)


@dataclass(frozen=True)
class _Group:
    """Exchanges of one role, or of code outside roles, that alternate between `count` places.
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
        role do not meet: nothing alternates with what another of them may be using."""
        mine = sorted({n for op in walk_ops(self.body) for n in self.uses.get(id(op), ())})
        if any(self.exchanges[n].instances > 1 for n in mine):
            return {n: k for k, n in enumerate(mine)}
        large = {n for n in mine if self.exchanges[n].buffer.bytes > SMALL}
        first = 1 if large and self.count > 1 else 0
        places = cycle(range(first, self.count))
        return {n: 0 if n in large else next(places) for n in mine}

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
        """The exchanges that threads have to meet before."""
        walk = _Walk(self)
        walk.body(self.body, frozenset())
        return walk.needed

    @property
    def cost(self) -> int:
        depths = dict(_depths(self.body, 0))
        barriers = [self.exchanges[n].before for n in self.needed]
        return sum(OFTEN ** depths.get(id(op), 0) for op in barriers)


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


class _Walk(Flow[frozenset[int]]):
    """Which places have been used since threads last met. `needed`: the exchanges before which they
    have to meet again."""

    def __init__(self, group: _Group) -> None:
        super().__init__()
        self.group, self.needed = group, set[int]()
        self.barriers = {id(e.before): n for n, e in enumerate(group.exchanges) if e.before}

    def join(self, a: frozenset[int], b: frozenset[int]) -> frozenset[int]:
        return a | b

    def visit(self, op: Op, used: frozenset[int], out: list[Op]) -> frozenset[int]:
        places = self.group.places
        used |= {places[n] for n in self.group.uses.get(id(op), ())}
        if not isinstance(op, Sync):
            return used
        number = self.barriers.get(id(op))
        if number is not None and places[number] in used:
            self.needed.add(number)
        met = meets(op, self.group.threads) if number is None else number in self.needed
        return frozenset() if met else used
