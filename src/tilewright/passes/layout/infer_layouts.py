"""Choose how every fragment and every elementwise nest is spread over the threads of a block.

Three rounds over a graph of buffers and nests. **Strict**: matrix instructions and annotations
prescribe. **Propagate**: what is known is carried along elementwise nests, copies, views and
reductions until nothing changes. **Free**: the largest tile that is left gets the cheapest spread
(`thread_layouts`), and propagation goes on. In every step all proposals are collected before one is
taken, the strongest kind first, the fewest registers next, then the first in the text: the answer
does not depend on the order of visiting.

Where an op cannot live with what was chosen, `insert_conversions` gives it a copy that it can.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from math import prod
from typing import Any

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, multiple_of, stride_of
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Const, Expr, Load, Var, loads, variables
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import LayoutError
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Dim,
    For,
    Gemm,
    Hint,
    Kernel,
    Map,
    Op,
    Program,
    Reduce,
    Role,
    Scan,
    Store,
    View,
    While,
    bodies,
    expressions,
    marked,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_kernels, program_names, rebuild, replace_buffers
from tilewright.ir.target import Target
from tilewright.passes.layout.insert_conversions import (
    insert_conversions,
    reduced,
    reduced_dim,
)
from tilewright.passes.layout.lay_out_shared import lay_out_shared
from tilewright.passes.layout.matrix_tiles import held_operands, instruction, split_of
from tilewright.passes.layout.thread_layouts import WIDEST, Wish, spread, spread_in_words
from tilewright.passes.layout.tile_access import (
    Access,
    accesses,
    buffer_from_nest,
    nest_from_buffer,
    static_extents,
    unrolled,
    with_units,
)
from tilewright.passes.layout.transposed_copies import LANES, as_matrices, turned
from tilewright.passes.overlap.roles import WARP, by_hand
from tilewright.passes.reasons import at_line, because

Key = str | int  # a buffer's name, or the number of a nest
MOST_TURNS, SOME_TURNS = 64, 4  # of loops, where they weigh; some: known only at run time


class Strength(IntEnum):
    """Kinds of proposals, the strongest first."""

    STRICT = 0
    WRITTEN = 1  # what a nest writes decides its layout, and the other way round
    SAME = 2  # copies, views, reductions
    READ = 3


@dataclass(frozen=True)
class Proposal:
    key: Key
    fragment: Fragment
    strength: Strength
    position: int
    why: str
    source: Key | None = None  # the buffer or nest that it follows

    @property
    def order(self) -> tuple[Any, ...]:
        return (self.strength, self.fragment.values, self.position)


@dataclass
class Nest:
    """An elementwise nest and its accesses of fragments."""

    number: int
    op: Map
    extents: tuple[int, ...]
    accesses: list[Access]
    ranges: Ranges  # that hold where it stands


@dataclass
class Problem:
    """A kernel's unknowns: fragments by name, nests by number; `position` of every op."""

    kernel: Kernel
    threads: int
    target: Target
    fragments: dict[str, Buffer] = field(default_factory=dict)
    nests: dict[int, Nest] = field(default_factory=dict)
    numbers: dict[int, int] = field(default_factory=dict)  # id of a Map -> number of its nest
    ops: list[tuple[int, Op, Ranges]] = field(default_factory=list)
    known: dict[Key, Fragment] = field(default_factory=dict)
    why: dict[Key, str] = field(default_factory=dict)
    turns: dict[int, int] = field(default_factory=dict)  # id of an op -> how often it runs, about
    crews: dict[Key, int] = field(default_factory=dict)  # threads of a role that is not all of them
    source: dict[Key, Key] = field(default_factory=dict)

    def fragment(self, key: Key) -> Fragment | None:
        return self.known.get(key)

    @cached_property
    def touching(self) -> Mapping[str, list[tuple[Op, Ranges]]]:
        """By fragment, the ops that work on its registers."""
        found: dict[str, list[tuple[Op, Ranges]]] = {}
        for _, op, ranges in self.ops:
            for name in touched(self, op):
                found.setdefault(name, []).append((op, ranges))
        return found

    @cached_property
    def viewed(self) -> set[str]:
        """Fragments that are seen under several shapes, which idle slots do not allow."""
        views = [op for _, op, _ in self.ops if isinstance(op, View)]
        return {b.name for op in views for b in (op.buffer, op.source)}

    @cached_property
    def turned(self) -> set[str]:
        """Tiles that nests turn over."""
        return {pair[1].name for nest in self.nests.values() if (pair := turned(nest.op))}


def touched(problem: Problem, op: Op) -> set[str]:
    """The fragments on whose registers an op works."""
    if isinstance(op, Map):
        return {a.buffer.name for a in problem.nests[problem.numbers[id(op)]].accesses}
    found = [r.buffer for r in regions(op, reads=True, writes=True)]
    return {buffer.name for buffer in found if buffer.space is Space.FRAGMENT}


def infer_layouts(program: Program, target: Target) -> Program:
    """`program` with a layout for every fragment, nest and shared tile. Kernels with roles are
    scheduled by hand, and say their layouts themselves."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if by_hand(kernel):
            return kernel
        return lay_out_shared(spread_fragments(kernel, program.dims, target, names), target)

    return map_kernels(program, one)


def spread_fragments(
    kernel: Kernel, dims: tuple[Dim, ...], target: Target, names: set[str]
) -> Kernel:
    """`kernel` with a layout for every fragment and nest."""
    problem = collect(kernel, dims, target)
    solve(problem)
    say(problem)
    return insert_conversions(lay(problem), target, names)


# ── the graph ────────────────────────────────────────────────────────────────────────────────


def collect(kernel: Kernel, dims: tuple[Dim, ...], target: Target) -> Problem:
    problem = Problem(kernel, prod(kernel.threads), target)
    ranges = {id(op): r for op, r in scope.walk_ranges(kernel, dims)}
    crews = {
        id(op): role.warps * WARP
        for role in walk_ops(kernel)
        if isinstance(role, Role)
        for op in walk_ops(role.body)
    }
    for position, (op, around, turns) in enumerate(_walk(kernel.body, {}, 1)):
        problem.turns[id(op)] = turns
        known = ranges.get(id(op), Ranges())
        problem.ops.append((position, op, known))
        if isinstance(op, Alloc | View) and op.buffer.space is Space.FRAGMENT:
            problem.fragments[op.buffer.name] = op.buffer
            problem.crews[op.buffer.name] = crews.get(id(op), problem.threads)
            if isinstance(op.buffer.layout, Fragment):
                problem.known[op.buffer.name] = op.buffer.layout
                problem.why[op.buffer.name] = "given with the program"
        if isinstance(op, Map):
            number = len(problem.nests)
            problem.numbers[id(op)] = number
            problem.crews[number] = crews.get(id(op), problem.threads)
            held = accesses(op, around)
            problem.nests[number] = Nest(number, op, static_extents(op), held, known)
            if isinstance(op.layout, Fragment):
                problem.known[number] = op.layout
                problem.why[number] = "given with the program"
    return problem


def _walk(
    body: tuple[Op, ...], around: dict[Var, range], turns: int
) -> Iterator[tuple[Op, dict[Var, range], int]]:
    """Ops outside nests, the constant loops around that are unrolled, and how often they run."""
    for op in body:
        yield op, around, turns
        if isinstance(op, Map):
            continue
        inside = {**around, **unrolled(op)}
        for inner in bodies(op):
            yield from _walk(inner, inside, min(turns * _trips(op), MOST_TURNS))


def _trips(op: Op) -> int:
    if isinstance(op, While):
        return SOME_TURNS
    if not isinstance(op, For):
        return 1
    if all(isinstance(e, Const) for e in (op.start, op.stop, op.step)):
        return max(len(range(int(op.start), int(op.stop), int(op.step))), 1)
    return SOME_TURNS


# ── solving ──────────────────────────────────────────────────────────────────────────────────


def solve(problem: Problem) -> None:
    """Fill `known`."""
    unknown: set[Key] = {*problem.fragments, *problem.nests}
    unknown -= set(problem.known)
    asking: dict[Key, list[int]] = {}  # the ops whose rules ask for a key, as numbers in `ops`
    for number, (_, op, _) in enumerate(problem.ops):
        for key in _keys(problem, op):
            asking.setdefault(key, []).append(number)
    said: dict[int, list[Proposal]] = {}  # by op, what it says about unknowns

    def ask(number: int) -> None:
        position, op, _ = problem.ops[number]
        found = [p for p in _RULES[type(op)](problem, position, op) if p.key in unknown]
        if found:
            said[number] = found
        else:
            said.pop(number, None)

    def settle(choice: Proposal) -> None:
        take(problem, choice)
        unknown.discard(choice.key)
        changed.update(asking.get(choice.key, ()))

    changed = {number for numbers in asking.values() for number in numbers}
    free = iter(_by_size(problem))
    while unknown:
        for number in changed:
            ask(number)
        changed.clear()
        found = [p for number in sorted(said) for p in said[number]]
        if found:
            strength = min(p.strength for p in found)
            for p in sorted(found, key=lambda p: p.order):
                if p.strength == strength and p.key in unknown:
                    settle(p)
            continue
        settle(free_choice(problem, next(key for key in free if key in unknown)))


def _keys(problem: Problem, op: Op) -> Iterable[Key]:
    """What the rule of an op asks for, and speaks of."""
    if type(op) not in _RULES:
        return ()
    found: set[Key] = {*touched(problem, op)}
    if isinstance(op, Map):
        found.add(problem.numbers[id(op)])
    if isinstance(op, View):
        found |= {op.buffer.name, op.source.name}
    if isinstance(op, Hint) and op.buffer is not None:
        found.add(op.buffer.name)
    return found


def _by_size(problem: Problem) -> list[Key]:
    """The largest first; the first in the text of equals, fragments before nests."""
    keys: list[Key] = [*problem.fragments, *sorted(problem.nests)]
    return sorted(keys, key=lambda key: -prod(_shape(problem, key)))


def _shape(problem: Problem, key: Key) -> tuple[int, ...]:
    if isinstance(key, str):
        return problem.fragments[key].static_shape
    return problem.nests[key].extents


def take(problem: Problem, p: Proposal) -> None:
    problem.known[p.key] = p.fragment
    problem.why[p.key] = p.why
    if p.source is not None:
        problem.source[p.key] = p.source


def _hint(problem: Problem, position: int, op: Hint) -> Iterator[Proposal]:
    if op.name == "layout" and op.buffer is not None and isinstance(op.layout, Fragment):
        why = f"pinned by annotate_layout {at_line(op.loc)}"
        yield Proposal(op.buffer.name, op.layout, Strength.STRICT, position, why)


def _gemm(problem: Problem, position: int, op: Gemm) -> Iterator[Proposal]:
    split = split_of(op, problem.threads, problem.target)
    if split is None:
        return
    for name, fragment in held_operands(op, split).items():
        buffer: Buffer = getattr(op, name).buffer
        found = with_units(fragment, buffer.static_shape)
        if found is not None:
            why = f"given by {instruction(split)} {name.upper()} {at_line(op.loc)}"
            yield Proposal(buffer.name, found, Strength.STRICT, position, why)


def _same(problem: Problem, position: int, a: Region, b: Region, what: str) -> Iterator[Proposal]:
    for one, other in ((a, b), (b, a)):
        if not all(r.buffer.space is Space.FRAGMENT and r.is_whole for r in (one, other)):
            return
        known = problem.fragment(one.buffer.name)
        if known is not None:
            found = with_units(known, other.buffer.static_shape)
            if found is not None:
                why = f"follows {one.buffer.name} through the {what}"
                yield Proposal(
                    other.buffer.name, found, Strength.SAME, position, why, one.buffer.name
                )


def _copy(problem: Problem, position: int, op: Copy) -> Iterator[Proposal]:
    yield from _same(problem, position, op.src, op.dst, f"copy {at_line(op.loc)}")


def _scan(problem: Problem, position: int, op: Scan) -> Iterator[Proposal]:
    yield from _same(problem, position, op.src, op.dst, f"scan {at_line(op.loc)}")


def _view(problem: Problem, position: int, op: View) -> Iterator[Proposal]:
    a, b = op.source, op.buffer
    if not (a.space is b.space is Space.FRAGMENT and a.dtype == b.dtype):
        return
    for one, other in ((a, b), (b, a)):
        known = problem.fragment(one.name)
        if known is not None and known.cover == known.tile:
            try:
                found = known.reshape(*other.static_shape)
            except LayoutError:
                continue
            why = f"follows {one.name} through the view {at_line(op.loc)}"
            yield Proposal(other.name, found, Strength.SAME, position, why, one.name)


def _reduce(problem: Problem, position: int, op: Reduce) -> Iterator[Proposal]:
    if not all(r.buffer.space is Space.FRAGMENT and r.is_whole for r in (op.src, op.dst)):
        return
    known = problem.fragment(op.src.buffer.name)
    if known is None:
        return
    found = reduced(known, op)
    if found is not None:
        why = f"follows {op.src.buffer.name} through the reduction {at_line(op.loc)}"
        name = op.src.buffer.name
        yield Proposal(op.dst.buffer.name, found, Strength.SAME, position, why, name)


def _map(problem: Problem, position: int, op: Map) -> Iterator[Proposal]:
    nest = problem.nests[problem.numbers[id(op)]]
    layout = problem.fragment(nest.number)
    for access in nest.accesses:
        name = access.buffer.name
        strength = Strength.WRITTEN if access.writes else Strength.READ
        if layout is None:
            known = problem.fragment(name)
            if known is not None:
                found = nest_from_buffer(access, known, nest.extents)
                if found is not None:
                    verb = "writes" if access.writes else "reads"
                    why = f"follows {name}, which it {verb}"
                    yield Proposal(nest.number, found, strength, position, why, name)
        elif problem.fragment(name) is None:
            found = buffer_from_nest(access, layout)
            if found is not None:
                verb = "written" if access.writes else "read"
                origin = problem.source.get(nest.number)
                through = f"the nest {at_line(op.loc)}, where it is {verb}"
                why = (
                    f"follows {through}"
                    if origin is None
                    else f"follows {origin} through {through}"
                )
                yield Proposal(name, found, strength, position, why, nest.number)


_RULES: dict[type[Op], Any] = {
    Hint: _hint,
    Gemm: _gemm,
    Copy: _copy,
    Scan: _scan,
    View: _view,
    Reduce: _reduce,
    Map: _map,
}


# ── the free choice ──────────────────────────────────────────────────────────────────────────


def free_choice(problem: Problem, key: Key) -> Proposal:
    """A spread of a tile that nothing has prescribed."""
    if (matrices := _matrices(problem, key)) is not None:
        why = "turned over between shared tiles: loaded and stored as 8×8 matrices"
        return Proposal(key, matrices, Strength.READ, 0, why)
    wish = _wish(problem, key)
    fragment = spread(_shape(problem, key) or (1,), problem.crews[key], wish)
    why = "free: " + spread_in_words(fragment, wish)
    if isinstance(key, int) and (missed := _missed(problem, key, fragment)):
        # the layout of a tile like it, which what it reads was made from
        for name, other in problem.known.items():
            if other.threads != fragment.threads:
                continue
            if other.tile == fragment.tile and _missed(problem, key, other) < missed:
                same = name if isinstance(name, str) else f"the nest at {_line(problem, name)}"
                return Proposal(key, other, Strength.READ, 0, f"as {same}: it reads what that made")
    return Proposal(key, fragment, Strength.READ, 0, why)


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
        if isinstance(op, Alloc | Hint):
            continue
        if isinstance(op, Copy) and op.src.buffer.name == key and op.src.is_whole:
            onward += 1
            if op.dst.buffer.space is not Space.SHARED or op.dst.buffer.layout is not None:
                return None
        elif (pair := turned(op)) is None or pair[1].name != key:
            return None
    if not onward:
        return None
    return as_matrices(problem.fragments[key].static_shape, problem.threads)


def _missed(problem: Problem, number: int, layout: Fragment) -> int:
    """Fragments that the nest reads, under this layout, from other threads' registers."""
    count = 0
    for a in problem.nests[number].accesses:
        held = problem.known.get(a.buffer.name)
        if held is None or a.writes or a.points is None:
            continue
        table = held.table()
        rows = zip(a.needed(layout), table, strict=True)
        count += any(set(needed) - {-1} - set(row) for needed, row in rows)
    return count


def _line(problem: Problem, number: int) -> str:
    return at_line(problem.nests[number].op.loc)


def say(problem: Problem) -> None:
    """Tell why each unknown became what it is."""
    for key, why in problem.why.items():
        about = key if isinstance(key, str) else problem.nests[key].op
        because(problem.kernel.name, about, why)


def _wish(problem: Problem, key: Key) -> Wish:
    """How wide memory allows to move this tile, and along what it is reduced."""
    vectors: list[int] = []
    size, uses = 4, 0
    reduced: dict[int, int] = {}
    anywhere = problem.target.internal.rows == "any"
    if isinstance(key, str):
        buffer = problem.fragments[key]
        nests: list[Nest] = []
        for op, ranges in problem.touching.get(key, ()):
            if isinstance(op, Copy):
                for held, memory in ((op.src, op.dst), (op.dst, op.src)):
                    if held.buffer.name == key and memory.buffer.space is Space.GLOBAL:
                        vectors.append(vector_width(memory, ranges, anywhere))
                        size = memory.dtype.bits // 8 or 1
            elif isinstance(op, Reduce) and op.src.buffer.name == key:
                dim = reduced_dim(op)
                reduced[dim] = reduced.get(dim, 0) + problem.turns[id(op)]
            elif isinstance(op, Map):
                nest = problem.nests[problem.numbers[id(op)]]
                own = [a for a in nest.accesses if a.buffer.name == key]
                nests += [nest for a in own if a.indices[-1:] == op.vars[-1:]]
            uses += problem.turns[id(op)]
        for space in (Space.GLOBAL, Space.SHARED):
            if not vectors:
                found = [pair for nest in nests for pair in _widths(nest, (space,), anywhere)]
                vectors, size = [width for width, _ in found], found[-1][1] if found else size
        if not vectors:
            size = max(1, buffer.dtype.bits // 8)
            vectors = [WIDEST // size or 1]
    else:
        for width, element in _widths(problem.nests[key], (Space.GLOBAL, Space.SHARED), anywhere):
            vectors.append(width)
            size = element
    exact = isinstance(key, str) and key in problem.viewed
    pairs = tuple(sorted(reduced.items()))
    lanes = LANES if key in problem.turned and Feature.LDMATRIX in problem.target.features else 0
    return Wish(max(vectors, default=1), size, pairs, exact, max(uses, 1), lanes)


def _widths(nest: Nest, spaces: tuple[Space, ...], anywhere: bool) -> Iterator[tuple[int, int]]:
    """How wide a nest may move what it touches in `spaces`, and the bytes of an element."""
    for inner in walk_ops(nest.op.body):
        places = [x for e in expressions(inner) for x in loads(e)]
        if isinstance(inner, Store):
            places.append(Load(inner.buffer, inner.indices))
        for place in places:
            if place.buffer.space in spaces and place.indices:
                width = element_width(place, nest.op, nest.ranges, anywhere)
                if width:
                    yield width, max(1, place.buffer.dtype.bits // 8)


def vector_width(memory: Region, ranges: Ranges, anywhere: bool = False) -> int:
    """Elements of a tensor's region that may move in one access: whole, aligned, contiguous."""
    size = max(1, memory.dtype.bits // 8)
    limit = WIDEST // size or 1
    buffer = memory.buffer
    if buffer.strides is not None and not _is_one(buffer.strides[-1]):
        return 1
    extents = [int(e) if isinstance(e, Const) else 0 for e in memory.extents]
    if extents[-1] <= 1:
        return 1
    while limit > 1 and not (
        extents[-1] % limit == 0
        and multiple_of(memory.starts[-1], ranges) % limit == 0
        and all(multiple_of(s, ranges) % limit == 0 for s in _row_sizes(buffer, anywhere))
    ):
        limit //= 2
    return limit


def _row_sizes(buffer: Buffer, anywhere: bool) -> list[Expr]:
    """What the distance of rows is a multiple of: the last extent, or given strides. A tensor of
    one row is in vectors by its size alone where it may begin `anywhere`."""
    if buffer.strides is not None:
        return list(buffer.strides[:-1])
    return [buffer.shape[-1]] if buffer.rank > 1 or anywhere else []


def _is_one(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 1


def element_width(place: Load, nest: Map, ranges: Ranges, anywhere: bool = False) -> int:
    """Like `vector_width` for an element under a nest: 0 when its last index does not run with the
    nest's last variable."""
    last = nest.vars[-1]
    if stride_of(place.indices[-1], last) != 1 or any(
        last in variables(i) for i in place.indices[:-1]
    ):
        return 0
    size = max(1, place.buffer.dtype.bits // 8)
    limit = WIDEST // size or 1
    while any(multiple_of(s, ranges) % limit for s in _row_sizes(place.buffer, anywhere)):
        limit //= 2
    return limit


# ── the result ───────────────────────────────────────────────────────────────────────────────


def lay(problem: Problem) -> Kernel:
    """The kernel with what was found written into it."""
    buffers = {
        buffer: buffer.with_layout(problem.known[name])
        for name, buffer in problem.fragments.items()
    }
    body = _lay_nests(problem.kernel.body, problem)
    return replace_buffers(rebuild(problem.kernel, body=body), buffers)


def _lay_nests(body: Body, problem: Problem) -> Body:
    found: list[Op] = []
    for op in body:
        if isinstance(op, Map):
            found.append(rebuild(op, layout=problem.known[problem.numbers[id(op)]]))
            continue
        inner = {f.name: _lay_nests(getattr(op, f.name), problem) for f in marked(op, "body")}
        found.append(rebuild(op, **inner) if inner else op)
    return tuple(found)
