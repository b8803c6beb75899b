"""Accesses to memory by groups of neighbouring values of an elementwise loop.

`find_access` decides whether a group lies in a row in memory, how wide its vectors are, where it
begins and on which condition it is accessed; `move` emits the instructions. Copies by threads,
elementwise maps, gathers by `cp.async` and sums by atomics are all made of these.

The place, and whether it is accessed at all, must be the same for a whole group: a row that a table
names (`X[table[i], j]`), a condition that a tile's border makes. Only the end of a tensor may part
a group. Its elements begin on a vector, but the tensor's size, known at launch only, may be no
multiple of it. One group in the tensor at most is in it by a part:

    if first + 7 < n { load 8 } else { hint rare; each of 8: A[first + e] if first + e < n else 0 }
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from tilewright.passes.lower.core import *
from tilewright.passes.overlap.prefetchable import holds_for_all

ELEMENT = Var(" element")  # of a group
WIDEST, WORD = 128, 32  # bits of one access, and of the least vector
# pairs (in memory, in registers) whose vectors the header converts
_CONVERTED = {("bfloat16", "float32"), ("float16", "float32")}
Moved: TypeAlias = list[tuple["Access", Buffer]]


@dataclass(frozen=True)
class Groups:
    """The values of `loop` in groups of `count`, numbered by `var`."""

    loop: MapLoop
    var: Var
    count: int

    @property
    def number(self) -> int:
        return self.loop.values // self.count

    @property
    def first(self) -> Expr:
        """The first value of a group."""
        return self.var * self.count if self.number > 1 else const(0)

    @property
    def ranges(self) -> Ranges:
        return self.loop.low.ranges.where(self.var, 0, self.number - 1)

    def at(self, e: Expr, index: bool = True) -> Expr:
        """`e` at the first value of a group."""
        return simplify(substitute(e, {self.loop.var: self.first}), self.ranges, index=index)

    def are_whole(self) -> bool:
        """Whether each group is visited, or idle, as a whole."""
        if self.loop.values % self.count or not self.loop.movable:
            return False
        idle = (self.loop.table < 0).reshape(-1, self.count)
        return bool((idle == idle[:, :1]).all())

    def in_row(self, register: Expr, bits: int) -> bool:
        """Whether each group has consecutive registers from a whole word on. What else registers
        depend on, unrolled variables, moves them as a whole."""
        loop = self.loop
        others = {v: np.int64(0) for v in variables(register) - {loop.var}}
        found = evaluate(register, {**others, loop.var: np.arange(loop.values)})
        table = np.broadcast_to(found, (loop.values,)).reshape(-1, self.count)
        begins = table[:, 0] % max(WORD // bits, 1)
        return np.array_equal(table, table[:, :1] + np.arange(self.count)) and not begins.any()

    def emit(self, body: Body, kind: str = "unroll") -> Body:
        """`body` for every group; what it needs in front."""
        if self.number > 1:
            body = (unroll(self.var, self.number, body, kind=kind),)
        return (*used(self.loop.before, body), *body)


@dataclass(frozen=True)
class Candidate:
    """A place that is touched if `cond`: its indices, `let`s resolved, and names for loads in
    them."""

    indices: tuple[Expr, ...]
    cond: Expr = TRUE
    named: tuple[tuple[Var, Load], ...] = ()
    given: Expr = TRUE  # `cond` as it was written


@dataclass(frozen=True)
class Access:
    """A load or store of a group: `start` are indices of the flat buffer at the group's first
    value, `width` elements at a time; `inside` whether it is in the tensor, and wanted. `share`
    neighbouring values read the same element: several lie in it, packed. `named`: what was loaded
    to find the place, by the names that stand for it."""

    buffer: Buffer
    start: tuple[Expr, ...]
    inside: Expr
    width: int
    share: int = 1
    named: tuple[tuple[Var, Expr], ...] = ()
    given: Expr = TRUE  # the condition on which it is wanted, as it was written
    ragged: Ragged | None = None  # where the tensor may end within it; `inside` is then: wanted
    cache: str | None = None  # what caches are told
    across: bool = False  # it may begin within a vector

    def map(self, rule: Callable[..., Expr]) -> Access:
        """The same of a group that `rule(expr, index=…)` puts elsewhere."""
        return replace(
            self,
            start=tuple(map(rule, self.start)),
            inside=rule(self.inside, index=False),
            named=tuple((var, rule(e)) for var, e in self.named),
            ragged=None if self.ragged is None else self.ragged.map(rule),
        )

    def found(self, low: Lowering) -> tuple[Body, Access]:
        """What has to be loaded to find the place, and the access after that."""
        rows: dict[Var, Expr] = {}
        lets: list[Op] = []
        for var, value in self.named:
            row = rows[var] = Var(low.var("row").name, var.dtype)
            lets.append(Let(row, value))
        return tuple(lets), replace(self.map(lambda e, index=True: substitute(e, rows)), named=())

    def where(self, low: Lowering, step: int = 0) -> Region:
        """A vector in memory, `step` elements from the group's first."""
        start = self.start
        if step:
            start = (*start[:-1], simplify(start[-1] + step, low.ranges))
        ones = (const(1) for _ in start[1:])
        return Region(low.flat(self.buffer), start, (*ones, const(self.width)))

    def align(self, low: Lowering) -> Body:
        """What the launch has to check."""
        if not self.buffer.is_global or self.width == 1 or self.across:
            return ()
        size = self.width * self.buffer.dtype.bits // 8
        return (Hint("align", low.base(self.buffer)[0], detail=(size,)),)


@dataclass(frozen=True)
class Ragged:
    """A group of `count` elements: whether the `whole` of it is in the tensor, whether `ELEMENT`
    of it is (`inside`), and how many from its first on are `left` there."""

    count: int
    whole: Expr
    inside: Expr
    left: Expr

    def map(self, rule: Callable[[Expr], Expr]) -> Ragged:
        """The same of a group that `rule` puts elsewhere."""
        whole, inside, left = map(rule, (self.whole, self.inside, self.left))
        return replace(self, whole=whole, inside=inside, left=left)

    def amount(self, wanted: Expr, size: int) -> Expr:
        """The bytes of a `wanted` group that are in the tensor, `size` of an element: what an
        instruction is told that fills up with zeros."""
        first = simplify(substitute(self.inside, {ELEMENT: const(0)}))
        some = binary("min", self.left, const(self.count)) * size
        return select(logical_and(wanted, first), some, const(0))


# ── what lies together ───────────────────────────────────────────────────────────────────────


def common_guard(groups: Groups, cond: Expr) -> tuple[Expr, bool]:
    """What to ask so that a condition holds for a whole group, and whether it holds for none of it
    otherwise; FALSE: nobody knows."""
    loop, each = groups.loop, groups.loop.low.var("e")
    wanted = loop.expr(cond)
    ranges = groups.ranges.where(each, 0, groups.count - 1)

    def at(e: Expr, more: Expr) -> Expr:
        return simplify(substitute(e, {loop.var: groups.first + more}), ranges, index=False)

    first = at(wanted, const(0))
    if holds_for_all(wanted, at, each, groups.count, ranges):
        return first, True
    if not holds_for_all(wanted, at, each, 0, ranges):
        return FALSE, False
    return logical_and(first, at(wanted, const(groups.count - 1))), False


def find_access(
    groups: Groups,
    buffer: Buffer,
    place: Candidate,
    share: int = 1,
    *,
    stores: bool | None = None,
    borders: bool = False,
    region: Region | None = None,
) -> Access | None:
    """How a group touches `buffer` at once, `share` of its values one element; None when it does
    not. A group of one always does. `stores`: guards stand in the text; a load may do more than is
    wanted, and a store be cut to it. `borders`: nothing but the access asks for what a guard says.
    `region`: that of which the loop visits each element once, if it is one."""
    loop, values = groups.loop, groups.count
    low, bits = loop.low, buffer.dtype.bits
    count = values // share  # elements
    width = min(count, WIDEST // bits)
    single = values == 1
    if not single and (width < 2 or width * bits < WORD or not groups.are_whole()):
        return None
    zero, each = const(0), low.var("e")
    last = zero if single else each
    loop.bound |= {var for var, _ in place.named}  # they have values at the access alone
    places = [loop.index(i) for i in place.indices]
    rows = [(var, loop.expr(load)) for var, load in place.named]
    wanted = loop.expr(place.cond)
    # with what is known of names that these have brought along
    ranges = groups.ranges.where(each, 0, values - 1)

    def at(e: Expr, more: Expr, index: bool = True) -> Expr:
        return simplify(substitute(e, {loop.var: groups.first + more}), ranges, index=index)

    asked = partial(at, index=False)
    if any(at(e, last) is not at(e, zero) for _, e in rows):
        return None
    together = asked(wanted, last) is asked(wanted, zero)
    if not together and buffer.is_global:
        # a guard that holds all over the tensor says what its end does: outside nothing is stored,
        # and zeros are loaded
        with low.restored(ranges):
            inside = low.within(buffer, [at(p, each) for p in places])
        if simplify(asked(wanted, each), ranges.given(inside), index=False) is TRUE:
            wanted, together = TRUE, True
    given, cut = place.given, None
    if not together and stores is False and not rows:
        with low.restored(ranges):
            if buffer.is_global or low.within(buffer, [at(p, each) for p in places]) is TRUE:
                wanted, given, together = TRUE, FALSE, True  # what is not wanted is not looked at
    if not together and stores is not None:
        together = holds_for_all(wanted, asked, each, values, ranges)
        if not together and stores and buffer.is_global and share == 1 and not single:
            if not holds_for_all(wanted, asked, each, 0, ranges):
                return None
            ends = logical_and(asked(wanted, zero), asked(wanted, const(count - 1)))
            cut, wanted, together = (ends, asked(wanted, ELEMENT)), TRUE, True
    if not together and not (borders and holds_for_all(wanted, asked, each, values, ranges)):
        return None
    named = tuple((var, at(e, zero)) for var, e in rows)
    wanted = asked(wanted, zero)
    starts = tuple(at(p, zero) for p in places)
    if buffer.is_shared:
        swizzle, layout = shared_layout(buffer)
        plain = sum((layout_expr(layout[d], i) for d, i in enumerate(places)), zero)
        if buffer.name in low.shifts:
            plain = plain + low.shifts[buffer.name]
        start = at(plain, zero)
        if not single and (
            buffer.name in low.shifts
            or not _counts(loop, at(plain, each), start, each // share, ranges)
            or multiple_of(start, ranges) % width
            or (swizzle.bits and count > 1 << swizzle.base)
        ):
            return None
        offset = None if region is None else _tile_offset(groups, region)
        if offset is None:
            offset = simplify(swizzle_expr(swizzle, start), ranges)
        return Access(buffer, (offset,), wanted, width, share, named, given)
    parted, across = None, False
    # slots that the loop does not visit are left out by whoever emits the access
    with low.restored(ranges.given(logical_and(at(loop.guard(), zero), wanted))):
        if not single:
            lasts = [at(p, each) for p in places]
            if (
                not places
                or any(a is not b for a, b in zip(lasts[:-1], starts[:-1], strict=True))
                or not _counts(loop, lasts[-1], starts[-1], each // share, ranges)
            ):
                return None
            begins = multiple_of(starts[-1], ranges)
            if vectors_in(low, buffer, width) and begins % count == 0:
                parted = ragged(low, buffer, starts, count)
                if parted is not None and not may_end_within(low, buffer):
                    return None
            else:
                across = stores is False and count * bits == WIDEST and bits <= 16
                across = across and buffer.name in low.lasting
                if not across or (begins * bits) % 64 == 0:
                    return None
                parted = _between(low, buffer, starts, count)
        if parted is None:
            wanted = logical_and(wanted, low.within(buffer, starts))
    if cut is not None:
        whole, inside = (TRUE, TRUE) if parted is None else (parted.whole, parted.inside)
        whole, inside = logical_and(cut[0], whole), logical_and(cut[1], inside)
        parted = Ragged(count, whole, inside, const(count))
    return Access(buffer, starts, wanted, width, share, named, given, parted, across=across)


def _within(low: Lowering, buffer: Buffer, starts: Sequence[Expr], more: Expr | int) -> Expr:
    """Whether an element is in the tensor, so many after one in its row."""
    return low.within(buffer, (*starts[:-1], low.simplify(starts[-1] + more)))


def _between(low: Lowering, buffer: Buffer, starts: Sequence[Expr], count: int) -> Ragged:
    """A vector that begins anywhere is read from two that do not, which must be in the tensor."""
    inside = partial(_within, low, buffer, starts)
    with low.restored(low.ranges.where(ELEMENT, 0, count - 1)):
        whole = logical_and(inside(0), inside(2 * count - 2))
        return Ragged(count, whole, inside(ELEMENT), const(count))


def _counts(loop: MapLoop, last: Expr, start: Expr, step: Expr, ranges: Ranges) -> bool:
    """Whether `last` is `start + step`, by what the names in front of the loop stand for, too."""
    difference = simplify(last - start - step, ranges)
    if not isinstance(difference, Const):
        lets = {op.var: op.value for op in loop.before if isinstance(op, Let)}
        difference = simplify(substitute(difference, lets), ranges)
    return isinstance(difference, Const) and difference.value == 0


def ragged(low: Lowering, buffer: Buffer, starts: Sequence[Expr], count: int) -> Ragged | None:
    """How `count` elements of a tensor from `starts` on, a multiple of `count`, may be in it by a
    part; None where they are inside or outside as a whole."""
    size, ranges = buffer.shape[-1], low.ranges
    if multiple_of(size, ranges) % count == 0:
        return None

    inside = partial(_within, low, buffer, starts)
    # the last is not negative where the first, a multiple, is not
    with low.restored(ranges.where(ELEMENT, 0, count - 1)):
        whole, each = inside(count - 1), inside(ELEMENT)
    if whole is TRUE or each is FALSE:
        return None
    return Ragged(count, whole, each, simplify(size - starts[-1], ranges))


def may_end_within(low: Lowering, buffer: Buffer) -> bool:
    """Whether vectors are for tensors that may end within one. They must begin on a vector then:
    for others there is another form (`-rows=any`) where sizes are known at launch only. Known sizes
    have one form, and take slices that begin anywhere; but not as one row of all elements."""
    fixed = isinstance(buffer.shape[-1], Const) and low.base(buffer)[0] is buffer
    return low.target.internal.rows != "any" and not fixed


def vectors_in(low: Lowering, buffer: Buffer, count: int) -> bool:
    """Whether each row of a tensor begins on a vector of `count` elements, and may have one."""
    last = buffer.shape[-1]
    return (
        row_pitch(buffer, low.ranges) % count == 0
        and not (isinstance(last, Const) and int(last) < count)
        and low.begins_on(buffer, count * buffer.dtype.bits // 8)
    )


# ── addresses in shared memory ───────────────────────────────────────────────────────────────


def _tile_offset(groups: Groups, region: Region) -> Expr | None:
    """The offset of a group in a region of shared memory as a base per thread and a constant per
    group; None where threads and values do not separate."""
    loop, low = groups.loop, groups.loop.low
    table, layouts = loop.table, dimensions(loop.fragment)
    if (table < 0).any() or layouts is None:
        return None
    if loop.part is not None or not loop.movable:
        return None
    try:
        address = low.address(region, None)
    except CompileError:
        return None
    table = address.offsets().reshape(-1)[table]
    if not np.array_equal(table, table[:, :1] + table[:1] - table[0, 0]):
        return None
    dims = [d for d, size in enumerate(loop.fragment.tile) if size != 1]
    parts = [
        layout_expr(mode, simplify(layout_expr(layouts[d][0], low.instance.thread)))
        for mode, d in zip(address.modes, dims, strict=True)
    ]
    place, steps = low.simplify(sum(parts, const(0))), table[0, :: groups.count] - table[0, 0]
    return split_offset(low, address, (place, table[:, 0]), steps, groups.var, loop.before)


def split_offset(
    low: Lowering,
    address: TileAddress,
    place: tuple[Expr, Indices],
    steps: Indices,
    var: Var,
    before: list[Op],
) -> Expr | None:
    """The offset `place` + `steps[var]` from the address of a tile; `place`, as an expression and
    for all threads, is computed `before`. None where `steps` is no simple function.

    The swizzle is linear over bits: where the threads' part, the steps and the base share none,
    each is swizzled by itself, and the step becomes a constant."""
    swizzle, (here, places) = address.swizzle, place

    def name(value: Expr) -> Var:
        at, let = low.let("at", value)
        before.append(let)
        return at

    period = 1 << (swizzle.base + swizzle.shift + swizzle.bits)
    far, near = _around(address.base, period, low.ranges)
    bits = [int(np.bitwise_or.reduce(places)), int(np.bitwise_or.reduce(steps)), _bits(low, near)]
    if not swizzle.bits or 0 <= sum(bits) == bits[0] | bits[1] | bits[2]:
        moved = swizzle(steps)
        step = fit_index(moved, (var,))
        high, inner = (fit_index(moved & part, (var,)) for part in (-period, period - 1))
        if step is not None and (not swizzle.bits or near is const(0)):
            at = name(low.simplify(swizzle_expr(swizzle, here)))
            return low.simplify(address.base + (at ^ step if swizzle.bits else at + step))
        if swizzle.bits and high is not None and inner is not None:
            # what lies above the bits that it takes part in is added: loads have room for that
            at = name(low.simplify(swizzle_expr(swizzle, here)))
            told = low.simplify(swizzle_expr(swizzle, near))
            within = at ^ inner ^ (told & (period - 1))
            return low.simplify(far + high + (told & -period) + within)
    plain = fit_index(steps, (var,))
    if plain is None:
        return None
    return swizzle_expr(swizzle, name(low.simplify(address.base + here)) + plain)


def _around(base: Expr, period: int, ranges: Ranges) -> tuple[Expr, Expr]:
    """`base` as multiples of `period`, and the rest."""
    form = linear(base, ranges)
    if form is None:
        return const(0), base
    far: Expr = const(0)
    near: Expr = const(0)
    for atom, times in form.terms.items():
        part = atom * times
        if multiple_of(part, ranges) % period == 0:
            far = far + part
        else:
            near = near + part
    return (
        simplify(far + form.const // period * period, ranges),
        simplify(near + form.const % period, ranges),
    )


def _bits(low: Lowering, value: Expr) -> int:
    """Those that may be set in a value; all of them where nobody knows."""
    found = bounds(value, low.ranges)
    if found.lo < 0 or found.hi >= 1 << 30:
        return -1
    least = multiple_of(value, low.ranges)
    return (1 << int(found.hi).bit_length()) - 1 & -(least & -least) if least else 0


# ── instructions ─────────────────────────────────────────────────────────────────────────────


def move(
    low: Lowering,
    access: Access,
    registers: tuple[Buffer, Expr],
    count: int,
    store: bool,
) -> Body:
    """One group of `count` elements between memory and the registers from a first one on. A load
    reads zeros for what is not inside. Where caches are told something, single elements move by
    instructions too."""
    rows, access = access.found(low)
    (held, first), memory, inside = registers, low.flat(access.buffer), access.inside
    kind, cache, ragged = memory.dtype, access.cache, access.ragged
    told = f" cache={cache}" if cache and memory.is_global else ""
    fixed = not store and access.buffer.name in low.lasting

    def element(place: tuple[Expr, ...], slot: Expr, cond: Expr) -> Body:
        if store:
            return guarded(cond, (Store(memory, place, cast(Load(held, (slot,)), kind)),))
        value = cast(Load(memory, place), held.dtype)
        return (Store(held, (slot,), select(cond, value, const(0, held.dtype))),)

    if count == 1 and not told:
        return (*rows, *element(access.start, first, inside))

    def each(of: Callable[[Expr, Expr], Op]) -> Op:
        if count == 1:
            return of(const(0), first)
        var = low.var("v")
        return unroll(var, count, (of(var, low.simplify(first + var)),))

    def convert(var: Expr, slot: Expr) -> Op:
        ours, theirs = (piece, var), (held, slot)
        (source, at), (target, to) = (theirs, ours) if store else (ours, theirs)
        return Store(target, (to,), cast(Load(source, (at,)), target.dtype))

    direct = kind == held.dtype or (count > 1 and (kind.name, held.dtype.name) in _CONVERTED)
    piece, begin = held, first
    before: Body = ()
    if not direct:  # converted element by element beside a vector of the memory's own type
        piece = low.local("piece", kind, count)
        begin = const(0)
        before = (Alloc(piece),)
    name = ("store_" if store else "load_") + ("across" if access.across else memory.space.value)
    text = f"type={kind.name} count={access.width}{told}" + " fixed=1" * fixed
    text += " renamed=1" * (store and direct and held.name in low.summed and memory.is_global)
    body: list[Op] = []
    for step in range(0, count, access.width):
        sides = access.where(low, step), Region(piece, (begin + step,), (const(access.width),))
        body.append(Intrinsic(name, sides if store else sides[::-1], text=text))
    if not direct:
        body = [each(convert), *body] if store else [*body, each(convert)]
    if not store and inside is not TRUE:
        zero = const(0, held.dtype)
        body = [If(inside, tuple(body), (each(lambda _, slot: Store(held, (slot,), zero)),))]
    if ragged is not None:  # in one piece, or one by one what is in the tensor
        e = low.var("e")
        cond = simplify(substitute(ragged.inside, {ELEMENT: e}))
        cond = cond if store else logical_and(inside, cond)
        place = (*access.start[:-1], simplify(access.start[-1] + e))
        one = element(place, simplify(first + e), cond)
        if ragged.whole is not TRUE:
            body = [If(ragged.whole, tuple(body), (Hint("rare"), unroll(e, ragged.count, one)))]
    return (*rows, *guarded(inside if store else TRUE, (*before, *body)))


# ── batches ──────────────────────────────────────────────────────────────────────────────────


def batched(
    groups: Groups,
    batch: int,
    loaded: Moved,
    stored: Moved,
    most: int,
    work: tuple[Var, Callable[[Expr], Body]] | None = None,
) -> Body:
    """For a batch of groups all loads, then what is computed (`work`, of the first value of the
    group that a variable numbers), then all stores: a load that stood after the store of the group
    before would wait for it. More than `most` batches are a loop."""
    loop, group, count = groups.loop, groups.var, groups.count
    low, rounds = loop.low, groups.number // batch
    guard = simplify(substitute(loop.guard(), {loop.var: group * count}), low.ranges)

    def number(b: Var) -> Expr:
        """The group that is the b-th of a batch."""
        if rounds == 1:
            return b if batch > 1 else const(0)
        return group * batch + b if batch > 1 else group

    def each(b: Var, ops: list[Op], *conds: Expr) -> Body:
        body = joined(ops)
        for cond in conds:
            body = guarded(cond, body)
        return (unroll(b, batch, body),) if batch > 1 and body else body

    def at(e: Expr, b: Var, index: bool = True) -> Expr:
        ranges = low.ranges.where(group, 0, rounds - 1).where(b, 0, batch - 1)
        return simplify(substitute(e, {group: number(b)}), ranges, index=index)

    def moves(pairs: Moved, store: bool) -> Body:
        b, ops = low.var("b"), list[Op]()
        visited = at(guard, b)
        # a copy loads zeros where it visits nothing: a predicate, where a branch would part batches
        folded = work is None and not store
        for access, piece in pairs:
            size = count // access.share
            registers = piece, b * size if batch > 1 else const(0)
            here = access.map(lambda e, index=True: at(e, b, index))
            if folded:
                here = replace(here, inside=logical_and(visited, here.inside))
            ops += move(low, here, registers, size, store)
        if folded:
            return each(b, ops)
        return each(b, ops, loop.first_copy() if store and ops else TRUE, visited)

    pieces = dict.fromkeys(piece for _, piece in (*loaded, *stored))
    body = (*(Alloc(piece) for piece in pieces), *moves(loaded, False))
    if work is not None:
        turn, compute = work
        body += each(turn, [*compute(number(turn) * count)], at(guard, turn))
    body += moves(stored, True)
    if rounds > 1:
        kind = "serial" if rounds > most else "unroll"
        body = (unroll(group, rounds, body, kind=kind),)
    hints = [hint for access, _ in (*loaded, *stored) for hint in access.align(low)]
    return (*hints, *used(loop.before, body), *body)
