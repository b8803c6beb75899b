"""Vector accesses in elementwise maps.

Where neighbouring values of a map touch neighbouring elements of memory, in every thread, they do
so together: loads into a piece of registers in front, stores out of one behind. Only bodies of
plain statements, and only buffers that no statement reads after one has written them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TypeAlias

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    TRUE,
    Bin,
    Expr,
    Load,
    Select,
    Var,
    const,
    loads,
    logical_and,
    logical_not,
    map_children,
    substitute,
    variables,
)
from tilewright.ir.op import Alloc, Body, If, Let, Map, Op, Store, is_rare, op_loads
from tilewright.ir.rewrite import map_exprs, substitute_vars
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.access import (
    WIDEST,
    WORD,
    Access,
    Candidate,
    Groups,
    find_access,
    move,
)
from tilewright.passes.lower.lowering import MEMORY, guarded, located, unroll
from tilewright.passes.lower.map_loops import MapLoop, used

COUNTS = (16, 8, 4, 2)
MOST_HELD = 64  # words of registers between memory and what is computed
MOST_UNROLLED = 32  # batches: 128 of them took NVRTC four seconds, and gained nothing


Place: TypeAlias = tuple[Buffer, tuple[Expr, ...]]
Statements: TypeAlias = list[tuple[Expr, "Store | Let"]]
Moved: TypeAlias = list[tuple[Access, Buffer]]
Root: TypeAlias = Callable[[Buffer], str]


def lower_groups(loop: MapLoop, op: Map, lower: Callable[[MapLoop, Body], Body]) -> Body | None:
    """`op` in groups of values that access memory together; None where nothing would."""
    low, values = loop.low, loop.values
    statements = _statements(op.body, low.root)
    candidates = {} if statements is None else _candidates(statements, low.root)
    if statements is None or not candidates:
        return None
    group = low.var("g")
    best: tuple[int, Groups, dict[Place, Access]] | None = None
    widest = WIDEST // min(key[0].dtype.bits for key in candidates)
    written = {(s.buffer, s.indices) for _, s in statements if isinstance(s, Store)}
    for count in COUNTS:
        groups = Groups(loop, group, count)
        if count > widest or not groups.are_whole():
            continue
        found = {}
        for (buffer, indices), candidate in candidates.items():
            for share in (1, 2, 4) if (buffer, indices) not in written else (1,):
                access = find_access(groups, buffer, candidate, share)
                if access is not None:
                    found[buffer, indices] = access
                    break
        saved = sum(values - values // (a.width * a.share) for a in found.values())
        if saved and (best is None or saved > best[0]):
            best = saved, groups, found
            if len(found) == len(candidates):
                break
    if best is None:
        return None
    _, groups, found = best
    return _emit(groups, statements, found, lower)


def named_loads(e: Expr, names: dict[Load, Var]) -> Expr:
    """`e` with a name for each load in it."""
    if isinstance(e, Load):
        return names.setdefault(e, Var(f" row {len(names)}", e.dtype))
    return map_children(e, lambda c: named_loads(c, names))


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
                # several conditions: what is loaded too often is not stored so
                banned.add(root(buffer))
                return
            cond = cond if cond is before.given else TRUE
        plain = tuple(named_loads(substitute(i, lets), names) for i in indices)
        given, cond = cond, named_loads(substitute(cond, lets), names)
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


def _emit(
    groups: Groups,
    statements: Statements,
    found: dict[Place, Access],
    lower: Callable[[MapLoop, Body], Body],
) -> Body:
    loop, count = groups.loop, groups.count
    low = loop.low
    touched = [x for cond, s in statements for x in (*loads(cond), *op_loads(s))]
    read = {(x.buffer, x.indices) for x in touched} & set(found)
    written = {(s.buffer, s.indices) for _, s in statements if isinstance(s, Store)} & set(found)
    words = sum(count * key[0].dtype.bits // WORD for key in (*read, *written))
    batch = fitting(groups.number, max(MOST_HELD // words, 1))

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
        if isinstance(e, Load) and (e.buffer, e.indices) in loaded:
            key = (e.buffer, e.indices)
            return Load(loaded[key], (slot // found[key].share,), e.loc)
        return map_children(e, swap)

    body: list[Op] = []
    for cond, statement in statements:
        new: Op = map_exprs(statement, swap)
        if isinstance(statement, Store) and (statement.buffer, statement.indices) in stored:
            assert isinstance(new, Store)
            out = stored[statement.buffer, statement.indices]
            new = Store(out, (slot,), new.value)
            # what is not stored may be anything, unless computing it needs the guard
            rest = [x for x in op_loads(statement) if (x.buffer, x.indices) not in loaded]
            if all(_inside_anyway(loop, x) for x in rest):
                cond = TRUE
        body += [located(part, statement.loc) for part in guarded(swap(cond), (new,))]
    lowered = lower(loop, tuple(body))

    def work(first: Expr) -> Body:
        at = simplify(first + each, low.ranges)
        return (unroll(each, count, substitute_vars(lowered, {loop.var: at})),)

    memory = all(b.space in MEMORY for _, s in statements for b in _touched(s))
    return batched(
        groups,
        batch,
        [(found[key], to) for key, to in loaded.items()],
        [(found[key], to) for key, to in stored.items()],
        MOST_UNROLLED if memory else groups.number,
        (turn, work),
    )


def fitting(groups: int, most: int) -> int:
    """The largest batch, `most` at most, that divides `groups`."""
    return max(b for b in range(1, groups + 1) if groups % b == 0 and b <= most)


def batched(
    groups: Groups,
    batch: int,
    loaded: Moved,
    stored: Moved,
    most: int,
    work: tuple[Var, Callable[[Expr], Body]] | None = None,
) -> Body:
    """For a batch of groups all loads, then what is computed (`work`, of the first value of the
    group that a variable numbers), then all stores: a load that stood behind the store of the group
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
        body = tuple(_joined(ops))
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


def _joined(ops: Iterable[Op]) -> list[Op]:
    """`ops` with one question for neighbours that ask the same, as those of one place in several
    tensors do: the compiler of the code leaves them apart."""
    found: list[Op] = []
    for op in ops:
        last = found[-1] if found else None
        match last, op:
            case If(a, x, rare), If(b, y, (_, *rest) as other) if a is b:
                if is_rare(rare) and is_rare(other):
                    found[-1] = replace(last, then=x + y, orelse=(*rare, *rest))
                    continue
        found.append(op)
    return found


def _inside_anyway(loop: MapLoop, load: Load) -> bool:
    """Whether a load needs no guard in the text: those of tensors have one of their own, registers
    are at hand, and other places are inside for all values, or not."""
    low, buffer = loop.low, load.buffer
    if buffer.space in (Space.GLOBAL, Space.FRAGMENT):
        return True
    if any(loads(i) for i in load.indices):
        return False
    places = [loop.index(i) for i in load.indices]
    with low.restored(low.ranges.where(loop.var, 0, loop.values - 1)):
        return low.within(buffer, places) is TRUE


def _touched(op: Op) -> Iterable[Buffer]:
    yield from (x.buffer for x in op_loads(op))
    if isinstance(op, Store):
        yield op.buffer
