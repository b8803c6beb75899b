"""Choose how every fragment and every elementwise map is spread over the threads of a block.

Three rounds over a graph of buffers and maps. **Strict**: matrix instructions and annotations
prescribe. **Propagate**: what is known is carried along elementwise maps, copies, views and
reductions until nothing changes. **Free**: the largest tile that is left gets the cheapest spread
(`thread_layouts`), and propagation goes on. In every step all proposals are collected before one is
taken, the strongest kind first, the fewest registers next, then the first in the text: the answer
does not depend on the order of visiting.

Where an op cannot live with what was chosen, `insert_conversions` gives it a copy that it can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import gcd, prod
from typing import Any

from tilewright.passes.core import *
from tilewright.passes.layout.addresses import row_pitch
from tilewright.passes.layout.insert_conversions import insert_conversions, lines_of, reduced
from tilewright.passes.layout.matrix_tiles import instruction, split_of, wanted_operands
from tilewright.passes.layout.shared_tiles import LANES, as_matrices, lay_out_shared, turned
from tilewright.passes.layout.thread_layouts import (
    WIDEST,
    Access,
    Wish,
    accesses,
    buffer_from_map,
    map_from_buffer,
    needed_by,
    spread,
    spread_in_words,
    static_extents,
    unrolled,
    with_units,
)
from tilewright.passes.overlap.roles import by_hand, role_of

Key = str | int  # a buffer's name, or the id of a map
MOST_TRIPS, SOME_TRIPS = 64, 4  # of loops, where they weigh; some: known only at run time


class Strength(IntEnum):
    """Kinds of proposals, the strongest first."""

    STRICT = 0
    WRITTEN = 1  # what a map writes decides its layout, and the other way round
    SAME = 2  # copies, views, reductions
    READ = 3


@dataclass(frozen=True)
class Proposal:
    key: Key
    fragment: Fragment
    strength: Strength
    why: str
    source: Key | None = None  # the buffer or map that it follows


@dataclass
class MapNode:
    """An elementwise map and its accesses of fragments."""

    op: Map
    accesses: list[Access]
    ranges: Ranges  # that hold where it stands


@dataclass
class Problem:
    """A kernel's unknowns: fragments by name, maps by id; `ops` with their positions."""

    kernel: Kernel
    threads: int
    target: Target
    fragments: dict[str, Buffer] = field(default_factory=dict)
    maps: dict[int, MapNode] = field(default_factory=dict)
    ops: list[tuple[int, Op, Ranges]] = field(default_factory=list)
    known: dict[Key, Fragment] = field(default_factory=dict)
    why: dict[Key, str] = field(default_factory=dict)
    trips: dict[int, int] = field(default_factory=dict)  # id of an op -> how often it runs, about
    partitions: dict[Key, int] = field(
        default_factory=dict
    )  # threads of a role that is not all of them
    source: dict[Key, Key] = field(default_factory=dict)

    @cached_property
    def touching(self) -> Mapping[str, list[tuple[Op, Ranges]]]:
        """By fragment, the ops that work on its registers."""
        found: dict[str, list[tuple[Op, Ranges]]] = {}
        for _, op, ranges in self.ops:
            for name in () if isinstance(op, Alloc | View | Hint) else fragments_in(op):
                found.setdefault(name, []).append((op, ranges))
        return found

    @cached_property
    def viewed(self) -> set[str]:
        """Fragments that are seen under several shapes, which idle slots do not allow."""
        return aliases(self.kernel).viewed

    @cached_property
    def turned(self) -> set[str]:
        """Tiles that maps turn over."""
        return {pair[1].name for map_ in self.maps.values() if (pair := turned(map_.op))}


def fragments_in(op: Op) -> set[str]:
    """The fragments that an op, or a map as a whole, names."""
    ops = walk_ops(op) if isinstance(op, Map) else (op,)
    found = [buffer for each in ops for buffer in named_buffers(each)]
    return {buffer.name for buffer in found if buffer.is_fragment}


@kernel_pass
def infer_layouts(at: Facts) -> Kernel:
    """Choose a layout for every fragment, map and shared tile. Roles that the author wrote state
    their layouts themselves."""
    if by_hand(at.kernel):
        return at.kernel
    return lay_out_shared(spread_fragments(at.kernel, at.dims, at.target))


def spread_fragments(kernel: Kernel, dims: tuple[Dim, ...], target: Target) -> Kernel:
    """`kernel` with a layout for every fragment and map."""
    problem = collect(kernel, dims, target)
    solve(problem)
    say(problem)
    return insert_conversions(lay(problem), target)


# ── the graph ────────────────────────────────────────────────────────────────────────────────


def collect(kernel: Kernel, dims: tuple[Dim, ...], target: Target) -> Problem:
    problem = Problem(kernel, kernel.thread_count, target)
    ranges = {id(op): r for op, r in scope.walk_ranges(kernel, dims)}
    roles = role_of(kernel)
    # fragments that several roles of the same warps use stand before them
    users: dict[Key, Role] = {b.name: roles[id(op)] for op in walk_ops(kernel) if id(op) in roles
             for b in (*read_buffers(op), *written_buffers(op))}  # fmt: skip
    key: Key
    around = unrolled(kernel)
    for position, (op, trips) in enumerate(_walk(kernel.body, 1)):
        problem.trips[id(op)] = trips
        known = ranges[id(op)]
        problem.ops.append((position, op, known))
        if isinstance(op, Alloc | View) and op.buffer.is_fragment:
            problem.fragments[op.buffer.name] = op.buffer
            key, layout = op.buffer.name, op.buffer.layout
        elif isinstance(op, Map):
            key, layout = id(op), op.layout
            problem.maps[key] = MapNode(op, accesses(op, around), known)
        else:
            continue
        role = roles.get(id(op)) or users.get(key)
        problem.partitions[key] = problem.threads if role is None else role.warps * WARP
        if isinstance(layout, Fragment):
            problem.known[key] = layout
            problem.why[key] = "given with the program"
    return problem


def _walk(body: tuple[Op, ...], trips: int) -> Iterator[tuple[Op, int]]:
    """Ops outside maps, and how often they run."""
    for op in body:
        yield op, trips
        for inner in () if isinstance(op, Map) else bodies(op):
            yield from _walk(inner, min(trips * _trips(op), MOST_TRIPS))


def _trips(op: Op) -> int:
    if isinstance(op, While):
        return SOME_TRIPS
    if not isinstance(op, For):
        return 1
    values = values_of(op)
    return SOME_TRIPS if values is None else max(len(values), 1)


# ── solving ──────────────────────────────────────────────────────────────────────────────────


def solve(problem: Problem) -> None:
    """Fill `known`."""
    unknown: set[Key] = {*problem.fragments, *problem.maps}
    unknown -= problem.known.keys()
    asking: dict[Key, dict[int, Op]] = {}  # the ops whose rules ask for a key, by position
    for position, op, _ in problem.ops:
        if type(op) in _RULES:
            keys: set[Key] = {*fragments_in(op), id(op)}
            for key in keys:
                asking.setdefault(key, {})[position] = op
    said: dict[int, list[Proposal]] = {}  # by position, what an op says about unknowns

    def settle(choice: Proposal) -> None:
        problem.known[choice.key] = choice.fragment
        problem.why[choice.key] = choice.why
        if choice.source is not None:
            problem.source[choice.key] = choice.source
        unknown.discard(choice.key)
        changed.update(asking.get(choice.key, {}))

    changed = {position: op for ops in asking.values() for position, op in ops.items()}
    free = iter(_by_size(problem))
    while unknown:
        for position, op in changed.items():
            said[position] = [p for p in _RULES[type(op)](problem, op) if p.key in unknown]
        changed.clear()
        found = [p for position in sorted(said) for p in said[position]]
        found.sort(key=lambda p: (p.strength, p.fragment.values))
        for p in found:
            if p.strength == found[0].strength and p.key in unknown:
                settle(p)
        if not found:
            settle(free_choice(problem, next(key for key in free if key in unknown)))


def _by_size(problem: Problem) -> list[Key]:
    """The largest first; the first in the text of equals, fragments before maps."""
    keys: list[Key] = [*problem.fragments, *problem.maps]
    return sorted(keys, key=lambda key: -prod(_shape(problem, key)))


def _shape(problem: Problem, key: Key) -> tuple[int, ...]:
    if isinstance(key, str):
        return problem.fragments[key].static_shape
    return static_extents(problem.maps[key].op)


def _hint(problem: Problem, op: Hint) -> Iterator[Proposal]:
    if op.name == "layout" and op.buffer is not None and isinstance(op.layout, Fragment):
        why = f"pinned by annotate_layout {at_line(op.loc)}"
        yield Proposal(op.buffer.name, op.layout, Strength.STRICT, why)


def _gemm(problem: Problem, op: Gemm) -> Iterator[Proposal]:
    threads = problem.partitions.get(op.c.name, problem.threads)
    for name, buffer, found in wanted_operands(op, threads, problem.target):
        split = split_of(op, threads, problem.target)
        assert split is not None
        why = f"set by {instruction(split)} {name.upper()} {at_line(op.loc)}"
        yield Proposal(buffer.name, found, Strength.STRICT, why)


def _scan(problem: Problem, op: Scan) -> Iterator[Proposal]:
    """All that is scanned together, and the totals of lines."""
    tiles = [r.buffer for r in op.sources + op.results if r.buffer.is_fragment and r.is_whole]
    totals = [r.buffer for r in op.totals if r.buffer.is_fragment and r.is_whole]
    for one in tiles:
        known = problem.known.get(one.name)
        for other in () if known is None else (*tiles, *totals):
            assert known is not None
            if other in totals:
                found = lines_of(known, op.axis, other)
            else:
                found = with_units(known, other.static_shape)
            if found is not None and other is not one:
                why = f"follows {one.name} through the scan {at_line(op.loc)}"
                yield Proposal(other.name, found, Strength.SAME, why, one.name)


def _follow(problem: Problem, op: Copy | View | Reduce) -> Iterator[Proposal]:
    """Both sides of an op that moves whole fragments element by element, or the reduced one."""
    if isinstance(op, View):
        a, b, whole = op.source, op.buffer, op.source.dtype == op.buffer.dtype
    else:
        a, b, whole = op.src.buffer, op.dst.buffer, op.src.is_whole and op.dst.is_whole
    if not (whole and a.is_fragment and b.is_fragment):
        return
    word = "reduction" if isinstance(op, Reduce) else type(op).__name__.lower()
    for one, other in ((a, b),) if isinstance(op, Reduce) else ((a, b), (b, a)):
        known = problem.known.get(one.name)
        found = None if known is None else _carried(known, op, other)
        if found is not None:
            why = f"follows {one.name} through the {word} {at_line(op.loc)}"
            yield Proposal(other.name, found, Strength.SAME, why, one.name)


def _carried(known: Fragment, op: Copy | View | Reduce, other: Buffer) -> Fragment | None:
    if isinstance(op, Reduce):
        return reduced(known, op)
    if not isinstance(op, View):
        return with_units(known, other.static_shape)
    try:
        return known.reshape(*other.static_shape)
    except LayoutError:
        return None


def _map(problem: Problem, op: Map) -> Iterator[Proposal]:
    map_, layout = problem.maps[id(op)], problem.known.get(id(op))
    for access in map_.accesses:
        name, known = access.buffer.name, problem.known.get(access.buffer.name)
        strength = Strength.WRITTEN if access.writes else Strength.READ
        if layout is None and known is not None:
            found = map_from_buffer(access, known)
            if found is not None:
                why = f"follows {name}, which it {'writes' if access.writes else 'reads'}"
                yield Proposal(id(op), found, strength, why, name)
        elif layout is not None and known is None:
            found = buffer_from_map(access, layout)
            if found is not None:
                verb, origin = "written" if access.writes else "read", problem.source.get(id(op))
                through = f"the elementwise loop {at_line(op.loc)}, where it is {verb}"
                why = "follows " + (through if origin is None else f"{origin} through {through}")
                yield Proposal(name, found, strength, why, id(op))


_RULES: dict[type[Op], Any] = {
    Hint: _hint,
    Gemm: _gemm,
    Copy: _follow,
    Scan: _scan,
    View: _follow,
    Reduce: _follow,
    Map: _map,
}


# ── the free choice ──────────────────────────────────────────────────────────────────────────


def free_choice(problem: Problem, key: Key) -> Proposal:
    """A spread of a tile that nothing has prescribed."""
    if (matrices := _matrices(problem, key)) is not None:
        why = "transposed between shared tiles by 8×8 matrices"
        return Proposal(key, matrices, Strength.READ, why)
    wish = _wish(problem, key)
    fragment = spread(_shape(problem, key) or (1,), problem.partitions[key], wish)
    why = "free: " + spread_in_words(fragment, wish)
    if isinstance(key, int) and (missed := _missed(problem, key, fragment)):
        # the layout of a tile like it, which what it reads was made from
        for name, other in problem.known.items():
            if other.threads != fragment.threads:
                continue
            if other.tile == fragment.tile and _missed(problem, key, other) < missed:
                same = (
                    name
                    if isinstance(name, str)
                    else f"the elementwise loop at {at_line(problem.maps[name].op.loc)}"
                )
                return Proposal(key, other, Strength.READ, f"as {same}, whose result it reads")
    return Proposal(key, fragment, Strength.READ, why)


def _matrices(problem: Problem, key: Key) -> Fragment | None:
    """A fragment that is one tile turned over and goes to others, whose layouts are free too, as
    the matrices that both instructions move."""
    if (
        not isinstance(key, str)
        or not {Feature.LDMATRIX, Feature.STMATRIX} <= problem.target.features
    ):
        return None
    onward = 0
    for op, _ in problem.touching.get(key, ()):
        if isinstance(op, Copy) and op.src.name == key and op.src.is_whole:
            onward += 1
            if not op.dst.buffer.is_shared or op.dst.buffer.layout is not None:
                return None
        elif (pair := turned(op)) is None or pair[1].name != key:
            return None
    if not onward:
        return None
    return as_matrices(problem.fragments[key].static_shape, problem.partitions[key])


def _missed(problem: Problem, number: int, layout: Fragment) -> int:
    """Fragments that the map reads, under this layout, from other threads' registers."""
    count = 0
    for a in problem.maps[number].accesses:
        held = problem.known.get(a.buffer.name)
        if held is not None and not a.writes and a.points is not None:
            needed = needed_by(a.points, layout)
            count += bool(((held.locate(needed) < 0) & (needed >= 0)).any())
    return count


def say(problem: Problem) -> None:
    """Tell why each unknown became what it is."""
    for key, why in problem.why.items():
        about = key if isinstance(key, str) else problem.maps[key].op
        because(problem.kernel.name, about, why)


def _wish(problem: Problem, key: Key) -> Wish:
    """How wide memory allows to move this tile, and along what it is reduced and scanned."""
    vectors: list[tuple[int, int]] = []  # elements, and the bytes of each
    uses = moves = 0
    reduced: dict[int, int] = {}
    scanned: dict[int, int] = {}
    anywhere = problem.target.internal.rows == "any"
    if isinstance(key, str):
        maps: list[MapNode] = []
        for op, ranges in problem.touching.get(key, ()):
            if isinstance(op, Copy):
                vectors += _copied(op, key, ranges, anywhere)
            elif isinstance(op, Reduce) and op.src.name == key:
                reduced[op.axis] = reduced.get(op.axis, 0) + problem.trips[id(op)]
            elif isinstance(op, Map):
                map_ = problem.maps[id(op)]
                own = [a for a in map_.accesses if a.buffer.name == key]
                maps += [map_ for a in own if a.indices[-1:] == op.vars[-1:]]
            uses += problem.trips[id(op)]
        copies = _copies(problem, key)  # as in a wider type
        for name in (key, *copies):
            for op, _ in problem.touching.get(name, ()):
                if isinstance(op, Scan) and name in _scanned_like(op):
                    scanned[op.axis] = scanned.get(op.axis, 0) + problem.trips[id(op)]
                    moves = max(moves, problem.trips[id(op)])
        made: list[tuple[int, int]] = []  # how wide what is made of it moves
        for name in copies:
            for op, ranges in problem.touching.get(name, ()):
                made += _copied(op, name, ranges, anywhere)
        if scanned:
            vectors = vectors or made
        for space in (Space.GLOBAL, Space.SHARED):
            vectors = vectors or [v for map_ in maps for v in _widths(map_, anywhere, space)]
        size = _bytes(problem.fragments[key])
        widths = [WIDEST // size or 1, *(width for width, _ in made)]
        vectors = vectors or [(min(widths), size)]
    else:
        vectors = [*_widths(problem.maps[key], anywhere, Space.GLOBAL, Space.SHARED)] or [(1, 4)]
    exact = isinstance(key, str) and key in problem.viewed
    pairs = tuple(sorted(reduced.items()))
    lanes = LANES if key in problem.turned and Feature.LDMATRIX in problem.target.features else 0
    # of mixed types, the widest elements go in two accesses at the most
    most = 2 * WIDEST // max(size for _, size in vectors)
    widest = max((width for width, _ in vectors if width <= most), default=1)
    lines = tuple(sorted(scanned.items()))
    return Wish(widest, vectors[-1][1], pairs, exact, max(uses, 1), lanes, lines, max(moves, 1))


def _copied(op: Op, name: str, ranges: Ranges, anywhere: bool) -> Iterator[tuple[int, int]]:
    """How wide a copy moves a fragment from or to a tensor, and the bytes of its elements."""
    for held, memory in ((op.src, op.dst), (op.dst, op.src)) if isinstance(op, Copy) else ():
        if held.name == name and memory.buffer.is_global:
            last, first = memory.extents[-1], multiple_of(memory.starts[-1], ranges)
            extent = int(last) if isinstance(last, Const) else 1
            yield _widest(memory.buffer, ranges, anywhere, max(extent, 1), first)


def _copies(problem: Problem, name: str) -> list[str]:
    """Other fragments of its shape that are copied to or from one, or made of it by a map, element
    by element."""
    shape, buffers = problem.fragments[name].shape, list[Buffer]()
    for op, _ in problem.touching.get(name, ()):
        if isinstance(op, Copy):
            buffers += [r.buffer for r in (op.src, op.dst) if r.is_whole]
        elif isinstance(op, Map):
            plain = tuple(range(len(op.vars)))
            mine = [a.buffer for a in problem.maps[id(op)].accesses if a.dims == plain]
            buffers += mine if any(buffer.name == name for buffer in mine) else []
    fits = [b.name for b in buffers if b.is_fragment and b.shape == shape and b.name != name]
    return [*dict.fromkeys(fits)]


def _scanned_like(op: Scan) -> set[str]:
    """The tiles of a scan that have the dimensions of the first."""
    shape = op.src.buffer.shape
    return {r.name for r in op.sources + op.results if r.buffer.shape == shape}


def _bytes(buffer: Buffer) -> int:
    return max(1, buffer.dtype.bits // 8)


def _widths(map_: MapNode, anywhere: bool, *spaces: Space) -> Iterator[tuple[int, int]]:
    """How wide a map may move what it touches in `spaces`, and the bytes of an element: what its
    last variable runs along."""
    last = map_.op.vars[-1]
    for inner in walk_ops(map_.op.body):
        for place, _ in elements_of(inner):
            *others, index = place.indices or (const(0),)
            along = stride_of(index, last) == 1 and not any(last in variables(i) for i in others)
            if along and place.buffer.space in spaces:
                first = multiple_of(index - last, map_.ranges)
                yield _widest(place.buffer, map_.ranges, anywhere, first)


def _widest(buffer: Buffer, ranges: Ranges, anywhere: bool, *others: int) -> tuple[int, int]:
    """The widest vectors of elements that divide the distance of rows, and `others`, and the bytes
    of an element. A tensor of one row is in vectors by its size alone where it may begin
    `anywhere`."""
    sizes = [*others, row_pitch(buffer, ranges)]
    if anywhere and buffer.rank == 1 and buffer.strides is None:
        sizes.append(multiple_of(buffer.shape[-1], ranges))
    return gcd(WIDEST // _bytes(buffer) or 1, *sizes), _bytes(buffer)


# ── the result ───────────────────────────────────────────────────────────────────────────────


def lay(problem: Problem) -> Kernel:
    """The kernel with what was found written into it."""
    buffers = {
        buffer: buffer.with_layout(problem.known[name])
        for name, buffer in problem.fragments.items()
    }

    def layout(op: Op) -> Op | None:
        known = problem.known.get(id(op))
        return None if known is None else rebuild(op, layout=known)

    return replace_buffers(map_ops(problem.kernel, layout), buffers)
