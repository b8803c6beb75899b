"""Vector accesses in elementwise nests.

Where neighbouring values of a nest touch neighbouring elements of memory, in every thread, they do
so together: loads into a piece of registers in front, stores out of one behind. Only bodies of
plain statements, and only buffers that no statement reads after one has written them.

What decides where they lie, or whether they are loaded at all, must be the same for a whole group:
a row that a table names (`X[table[i], j]`), a condition that a tile's border makes. Only the end of
a tensor may part a group (`ragged`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import numpy as np

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import (
    TRUE,
    Bin,
    Const,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    logical_and,
    logical_not,
    substitute,
    variables,
)
from tilewright.ir.gather import Gather
from tilewright.ir.op import Alloc, Body, For, Hint, If, Intrinsic, Let, Map, Op, Store, op_loads
from tilewright.ir.rewrite import map_exprs, substitute_vars
from tilewright.ir.simplify import simplify
from tilewright.passes.layout.addresses import layout_expr, shared_layout, swizzle_expr
from tilewright.passes.lower.lowering import MEMORY
from tilewright.passes.lower.map_loops import Nest, used
from tilewright.passes.lower.ragged import Ragged, joined, may_end_within, ragged, vectors_in
from tilewright.passes.overlap.gathers import holds_for_all

WIDEST, WORD = 128, 32  # bits
COUNTS = (16, 8, 4, 2)
MOST_HELD = 64  # words of registers between memory and what is computed
MOST_UNROLLED = 32  # batches: 128 of them took NVRTC four seconds, and gained nothing


Place: TypeAlias = tuple[Buffer, tuple[Expr, ...]]
Statements: TypeAlias = list[tuple[Expr, "Store | Let"]]
Root: TypeAlias = Callable[[Buffer], str]


@dataclass(frozen=True)
class Access:
    """A load or store of `count` elements: `start` are indices of the flat buffer at the group's
    first value, `width` elements at a time; `inside` whether it is in the tensor, and wanted.
    `share` neighbouring values read the same element: several lie in it, packed. `named`: what was
    loaded to find the place, by the names that stand for it."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    start: tuple[Expr, ...]
    inside: Expr
    width: int
    share: int = 1
    named: tuple[tuple[Var, Expr], ...] = ()
    given: Expr = TRUE  # the condition on which it is wanted, as it was written
    ragged: Ragged | None = None  # where the tensor may end within it; `inside` is then: wanted


@dataclass(frozen=True)
class Candidate:
    """A place that statements touch if `cond`: its indices, `let`s resolved, and names for loads
    in them."""

    indices: tuple[Expr, ...]
    cond: Expr
    named: tuple[tuple[Var, Load], ...]
    given: Expr = TRUE  # `cond` as it was written


def lower_groups(nest: Nest, op: Map, lower: Callable[[Nest, Body], Body]) -> Body | None:
    """`op` in groups of values that access memory together; None where nothing would."""
    low, values = nest.low, nest.values
    statements = _statements(op.body, low.root)
    if statements is None:
        return None
    candidates = _candidates(statements, low.root)
    if not candidates:
        return None
    idle = nest.table < 0
    before = len(nest.before)
    group = low.var("g")
    best: tuple[int, int, dict[Place, Access]] | None = None
    widest = WIDEST // min(key[0].dtype.bits for key in candidates)
    written = {(s.buffer, s.indices) for _, s in statements if isinstance(s, Store)}
    for count in COUNTS:
        if values % count or count > widest:
            continue
        slots = idle.reshape(len(idle), -1, count)
        if not np.array_equal(slots, np.broadcast_to(slots[:, :, :1], slots.shape)):
            continue
        found = {}
        for (buffer, indices), candidate in candidates.items():
            for share in (1, 2, 4) if (buffer, indices) not in written else (1,):
                access = access_together(nest, buffer, indices, candidate, group, count, share)
                if access is not None:
                    found[buffer, indices] = access
                    break
        saved = sum(values - values // (a.width * a.share) for a in found.values())
        if saved and (best is None or saved > best[0]):
            best = saved, count, found
            if len(found) == len(candidates):
                break
    if best is None:
        del nest.before[before:]
        return None
    _, count, found = best
    return _emit(nest, statements, count, found, group, lower)


def moved_together(nest: Nest, found: Gather, group: Var, count: int) -> Access | None:
    """How a group of `count` values is read from the tensor at once; None where it is not."""
    names: dict[Load, Var] = {}
    indices = tuple(_named(i, names) for i in found.load.indices)
    cond = _named(found.cond, names)
    rows = tuple((var, load) for load, var in names.items())
    nest.bound |= set(names.values())  # they have values at the access alone
    load = found.load
    if count > 1:
        wanted = Candidate(indices, cond, rows)
        return access_together(nest, load.buffer, (), wanted, group, count, 1, borders=True)
    low = nest.low
    if not low.begins_on(load.buffer, load.dtype.bits // 8):
        return None

    def at(e: Expr, index: bool = True) -> Expr:
        first = group if nest.values > 1 else const(0)
        return low.simplify(substitute(e, {nest.var: first}), index=index)

    places = tuple(at(nest.index(i)) for i in indices)
    before = low.ranges
    low.ranges = before.where(group, 0, max(nest.values - 1, 0))
    inside = logical_and(at(nest.expr(cond), index=False), low.within(load.buffer, places))
    low.ranges = before
    named = tuple((var, at(nest.expr(e))) for var, e in rows)
    return Access(load.buffer, (), places, inside, 1, 1, named)


def _named(e: Expr, names: dict[Load, Var]) -> Expr:
    """`e` with a name for each load in it."""
    if isinstance(e, Load):
        return names.setdefault(e, Var(f" row {len(names)}", e.dtype))
    children = tuple(_named(c, names) for c in e.children)
    same = all(a is b for a, b in zip(children, e.children, strict=True))
    return e if same else e.rebuild(children)


def _statements(body: Body, root: Root) -> Statements | None:
    """The body's statements, each with the condition on which it runs; None where there are others
    than plain ones."""
    found: Statements = []
    for op in body:
        if isinstance(op, (Store, Let)):
            found.append((TRUE, op))
        elif isinstance(op, If) and not op.orelse and all(isinstance(o, Store) for o in op.then):
            stores = [each for each in op.then if isinstance(each, Store)]
            # asked again before each of them: none but the last may change the answer
            asked = {root(load.buffer) for load in loads(op.cond)}
            if any(root(each.buffer) in asked for each in stores[:-1]):
                return None
            found += [(op.cond, each) for each in stores]
        else:
            return None
    return found


def _candidates(statements: Statements, root: Root) -> dict[Place, Candidate]:
    """Places in memory that statements touch. `root`: whose memory a buffer shows."""
    lets: dict[Var, Expr] = {}
    written: set[str] = set()
    banned: set[str] = set()
    found: dict[Place, Candidate] = {}
    names: dict[Load, Var] = {}

    def note(buffer: Buffer, indices: tuple[Expr, ...], cond: Expr, stores: bool = False) -> None:
        if buffer.space not in MEMORY or buffer.dtype.bits < 8:
            return
        before = found.get((buffer, indices))
        if before is not None:
            if cond is not before.given and (stores or buffer.space is not Space.GLOBAL):
                banned.add(
                    root(buffer)
                )  # several conditions: what is loaded too often is not stored so
                return
            cond = cond if cond is before.given else TRUE
        plain = tuple(_named(substitute(i, lets), names) for i in indices)
        given, cond = cond, _named(substitute(cond, lets), names)
        used = {v for e in (*plain, cond) for v in variables(e)}
        rows = tuple((var, load) for load, var in names.items() if var in used)
        # outside a tensor there are zeros, wherever the load stands; other memory has no guard
        if all(x.buffer.space is Space.GLOBAL for _, load in rows for x in loads(load)):
            found[buffer, indices] = Candidate(plain, cond, rows, given)
        else:
            found.pop((buffer, indices), None)

    for given, op in statements:
        banned |= {root(load.buffer) for load in (*op_loads(op), *loads(given))} & written
        for load, cond in (*_reached(given), *_reached(op.value, given)):
            note(load.buffer, load.indices, cond)
        if isinstance(op, Store):
            if root(op.buffer) in written:
                banned.add(root(op.buffer))
            written.add(root(op.buffer))
            note(op.buffer, op.indices, given, stores=True)
        elif isinstance(op, Let):
            lets[op.var] = substitute(op.value, lets)

    def is_steady(candidate: Candidate) -> bool:
        """Nothing writes what the place was found by."""
        return not any(root(x.buffer) in written for _, e in candidate.named for x in loads(e))

    return {k: each for k, each in found.items() if root(k[0]) not in banned and is_steady(each)}


def _reached(e: Expr, cond: Expr = TRUE) -> Iterable[tuple[Load, Expr]]:
    """Loads of `e`, those in their indices aside, and the condition on which they happen."""
    if isinstance(e, Load):
        yield e, cond
    elif isinstance(e, Select):
        yield from _reached(e.cond, cond)
        yield from _reached(e.a, logical_and(cond, e.cond))
        yield from _reached(e.b, logical_and(cond, logical_not(e.cond)))
    elif isinstance(e, Bin) and e.op in ("and", "or"):
        yield from _reached(e.a, cond)
        yield from _reached(e.b, logical_and(cond, e.a if e.op == "and" else logical_not(e.a)))
    else:
        for child in e.children:
            yield from _reached(child, cond)


def access_together(
    nest: Nest,
    buffer: Buffer,
    indices: tuple[Expr, ...],
    candidate: Candidate,
    group: Var,
    values: int,
    share: int,
    *,
    borders: bool = False,
) -> Access | None:
    """How a group of `values` touches `buffer[indices]` at once, `share` of them one element;
    None when it does not. `borders`: nothing but the access asks for what a guard says."""
    low, bits = nest.low, buffer.dtype.bits
    count = values // share  # elements
    width = min(count, WIDEST // bits)
    if width < 2 or width * bits < WORD:
        return None
    groups = nest.values // values
    each = low.var("e")
    first: Expr = group * values if groups > 1 else const(0)
    nest.bound |= {var for var, _ in candidate.named}  # they have values at the access alone
    places = [nest.index(i) for i in candidate.indices]
    zero = const(0)
    rows = [(var, nest.expr(load)) for var, load in candidate.named]
    wanted = nest.expr(candidate.cond)
    # with what is known of names that these have brought along
    ranges = low.ranges.where(group, 0, max(groups - 1, 0)).where(each, 0, values - 1)

    def at(e: Expr, more: Expr, index: bool = True) -> Expr:
        return simplify(substitute(e, {nest.var: first + more}), ranges, index=index)

    asked = partial(at, index=False)
    if any(at(e, each) is not at(e, zero) for _, e in rows):
        return None
    together = asked(wanted, each) is asked(wanted, zero)
    if not together and buffer.space is Space.GLOBAL:
        # a guard that holds all over the tensor says what its end does: outside nothing is stored,
        # and zeros are loaded
        before, low.ranges = low.ranges, ranges
        inside = low.within(buffer, [at(p, each) for p in places])
        low.ranges = before
        if simplify(asked(wanted, each), ranges.given(inside), index=False) is TRUE:
            wanted, together = TRUE, True
    if not together and not (borders and holds_for_all(wanted, asked, each, values, ranges)):
        return None
    named = tuple((var, at(e, zero)) for var, e in rows)
    wanted = asked(wanted, zero)
    if buffer.space is Space.SHARED:
        if buffer.name in low.shifts:
            return None
        swizzle, layout = shared_layout(buffer, nest.loc)
        plain = sum((layout_expr(layout[d], i) for d, i in enumerate(places)), const(0))
        start = at(plain, zero)
        if not _counts(nest, at(plain, each), start, each // share, ranges):
            return None
        if multiple_of(start, ranges) % width:
            return None
        if swizzle.bits and count > 1 << swizzle.base:
            return None
        where: tuple[Expr, ...] = (simplify(swizzle_expr(swizzle, start), ranges),)
        return Access(buffer, indices, where, wanted, width, share, named, candidate.given)
    if not places or not vectors_in(low, buffer, width):
        return None
    starts = tuple(at(p, zero) for p in places)
    for place, start in zip(places[:-1], starts[:-1], strict=True):
        if at(place, each) is not start:
            return None
    if not _counts(nest, at(places[-1], each), starts[-1], each // share, ranges):
        return None
    if multiple_of(starts[-1], ranges) % count:
        return None
    before = low.ranges
    low.ranges = ranges.given(wanted)
    parted = ragged(low, buffer, starts, count, low.ranges)
    inside = wanted if parted is not None else logical_and(wanted, low.within(buffer, starts))
    low.ranges = before
    if parted is not None and not may_end_within(low, buffer):
        return None
    given = candidate.given
    return Access(buffer, indices, starts, inside, width, share, named, given, parted)


def _counts(nest: Nest, last: Expr, start: Expr, step: Expr, ranges: Ranges) -> bool:
    """Whether `last` is `start + step`, by what the names in front of the loop stand for, too."""
    difference = simplify(last - start - step, ranges)
    if not isinstance(difference, Const):
        lets = {op.var: op.value for op in nest.before if isinstance(op, Let)}
        difference = simplify(substitute(difference, lets), ranges)
    return isinstance(difference, Const) and difference.value == 0


def _emit(
    nest: Nest,
    statements: Statements,
    count: int,
    found: dict[Place, Access],
    group: Var,
    lower: Callable[[Nest, Body], Body],
) -> Body:
    """For a batch of groups all loads, then what is computed, then all stores: a load that stood
    behind the store of the group before would wait for it."""
    low, loc = nest.low, nest.loc
    groups = nest.values // count
    touched = [x for cond, s in statements for x in (*loads(cond), *op_loads(s))]
    read = {(x.buffer, x.indices) for x in touched} & set(found)
    written = {(s.buffer, s.indices) for _, s in statements if isinstance(s, Store)} & set(found)
    words = sum(count * key[0].dtype.bits // WORD for key in (*read, *written))
    most = max(MOST_HELD // words, 1)
    batch = max(b for b in range(1, groups + 1) if groups % b == 0 and b <= most)

    def piece(key: Place, name: str) -> Buffer:
        size = (const(batch * count // found[key].share),)
        return Buffer(low.var(f"{key[0].name}_{name}").name, size, key[0].dtype, Space.LOCAL)

    loaded = {key: piece(key, "in") for key in found if key in read}
    stored = {key: piece(key, "out") for key in found if key in written}
    each = low.var("e")
    turn = low.var("b")
    slot: Expr = turn * count + each if batch > 1 else each

    def swap(e: Expr) -> Expr:
        if isinstance(e, Select) and isinstance(e.a, Load) and e.b is const(0, e.dtype):
            access = found.get((e.a.buffer, e.a.indices))
            if access is not None and access.given is e.cond:
                e = e.a  # zeros are where it was not wanted
        children = tuple(swap(c) for c in e.children)
        if isinstance(e, Load) and (e.buffer, e.indices) in loaded:
            key = (e.buffer, e.indices)
            return Load(loaded[key], (slot // found[key].share,), e.loc)
        same = all(a is b for a, b in zip(children, e.children, strict=True))
        return e if same else e.rebuild(children)

    body: list[Op] = []
    for cond, statement in statements:
        new: Op = map_exprs(statement, swap)
        if isinstance(statement, Store) and (statement.buffer, statement.indices) in stored:
            assert isinstance(new, Store)
            out = stored[statement.buffer, statement.indices]
            new = Store(out, (slot,), new.value, loc=statement.loc)
            # what is not stored may be anything, unless computing it needs the guard
            rest = [x for x in op_loads(statement) if (x.buffer, x.indices) not in loaded]
            if all(_inside_anyway(nest, x) for x in rest):
                cond = TRUE
        if cond is not TRUE:
            new = If(swap(cond), (new,), loc=statement.loc)
        body.append(new)
    lowered = lower(nest, tuple(body))

    def number(b: Var) -> Expr:
        """The group that is the b-th of a batch."""
        if batch == groups:
            return b if groups > 1 else const(0)
        return group * batch + b if batch > 1 else group

    def at(e: Expr, b: Var, index: bool = True) -> Expr:
        ranges = low.ranges.where(group, 0, groups // batch - 1).where(b, 0, batch - 1)
        return simplify(substitute(e, {group: number(b)}), ranges, index=index)

    first = number(turn) * count
    lowered = substitute_vars(lowered, {nest.var: simplify(first + each, low.ranges)})
    guard = simplify(substitute(nest.guard(), {nest.var: group * count}), low.ranges)
    once = nest.first_copy() if stored else TRUE

    def loop(ops: list[Op], b: Var, cond: Expr) -> list[Op]:
        ops = joined(ops)
        for test in (cond, at(guard, b)):
            if test is not TRUE and ops:
                ops = [If(test, tuple(ops), loc=loc)]
        if batch > 1 and ops:
            ops = [For(b, const(0), const(batch), tuple(ops), kind="unroll", loc=loc)]
        return ops

    inner: list[Op] = []
    hints: list[Op] = []
    for key in found:
        if key[0].space is Space.GLOBAL:
            size = found[key].width * key[0].dtype.bits // 8
            hints.append(Hint("align", low.base(key[0])[0], detail=(size,), loc=loc))
    inner += [Alloc(b, loc=loc) for b in (*loaded.values(), *stored.values())]
    b = low.var("b")
    moves = [
        m for key, to in loaded.items() for m in _move(nest, found[key], to, count, False, b, at)
    ]
    inner += loop(moves, b, TRUE)
    work: list[Op] = [For(each, const(0), const(count), lowered, kind="unroll", loc=loc)]
    inner += loop(work, turn, TRUE)
    b = low.var("b")
    moves = [
        m for key, to in stored.items() for m in _move(nest, found[key], to, count, True, b, at)
    ]
    inner += loop(moves, b, once)
    result: Body = tuple(inner)
    if groups > batch:
        stop = const(groups // batch)
        memory = all(b.space in MEMORY for _, s in statements for b in _touched(s))
        kind = "serial" if memory and groups // batch > MOST_UNROLLED else "unroll"
        result = (For(group, const(0), stop, result, kind=kind, loc=loc),)
    return (*hints, *used(nest.before, result), *result)


def _inside_anyway(nest: Nest, load: Load) -> bool:
    """Whether a load needs no guard in the text: those of tensors have one of their own, registers
    are at hand, and other places are inside for all values, or not."""
    low, buffer = nest.low, load.buffer
    if buffer.space in (Space.GLOBAL, Space.FRAGMENT):
        return True
    if any(loads(i) for i in load.indices):
        return False
    places = [nest.index(i) for i in load.indices]
    before, low.ranges = low.ranges, low.ranges.where(nest.var, 0, nest.values - 1)
    inside = low.within(buffer, places)
    low.ranges = before
    return inside is TRUE


def _touched(op: Op) -> Iterable[Buffer]:
    yield from (x.buffer for x in op_loads(op))
    if isinstance(op, Store):
        yield op.buffer


def _move(
    nest: Nest,
    access: Access,
    piece: Buffer,
    count: int,
    store: bool,
    b: Var,
    at: Callable[..., Expr],
) -> list[Op]:
    low, loc, kind = nest.low, nest.loc, access.buffer.dtype
    count //= access.share
    flat = low.flat(access.buffer)
    text = f"type={kind.name} count={access.width}"
    name = ("store_" if store else "load_") + flat.space.value
    moves: list[Op] = []
    rows: dict[Var, Expr] = {}
    found: list[Op] = []
    for var, value in access.named:
        row = Var(low.var("row").name, var.dtype)
        found.append(Let(row, at(value, b), loc=loc))
        rows[var] = row
    several = int(piece.shape[0]) > count
    first: Expr = b * count if several else const(0)

    def zeros() -> Body:
        var = low.var("e")
        zero = Store(piece, (first + var,), const(0, kind), loc=loc)
        return (For(var, const(0), const(count), (zero,), kind="unroll", loc=loc),)

    for step in range(0, count, access.width):
        start = tuple(substitute(at(s, b), rows) for s in access.start)
        start = (*start[:-1], simplify(start[-1] + step, low.ranges))
        ones = tuple(const(1) for _ in start[1:])
        where = Region(flat, start, (*ones, const(access.width)))
        span = Region(piece, (first + step,), (const(access.width),))
        args = (where, span) if store else (span, where)
        moves.append(Intrinsic(name, args, text=text, loc=loc))
    inside = substitute(at(access.inside, b, index=False), rows)
    body: Body = tuple(moves)
    if inside is not TRUE:
        body = (If(inside, body, () if store else zeros(), loc=loc),)
    if access.ragged is not None:
        parted = access.ragged.map(lambda e: substitute(at(e, b), rows))
        start = tuple(substitute(at(s, b), rows) for s in access.start)
        body = (parted.move(low, body, (flat, start), (piece, first), store, loc, inside),)
    return [*found, *body]
