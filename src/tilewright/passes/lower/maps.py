"""Elementwise maps and fills."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from math import gcd
from typing import Any, TypeAlias

from tilewright.passes.layout.shared_tiles import longest
from tilewright.passes.layout.thread_layouts import static_extents
from tilewright.passes.lower.access import (
    WIDEST,
    WORD,
    Access,
    Candidate,
    Groups,
    batched,
    common_guard,
    find_access,
)
from tilewright.passes.lower.core import *
from tilewright.passes.lower.elements import atomic_element, intrinsic, lower_sums

COUNTS = (16, 8, 4, 2)
MOST_HELD = 64  # words of registers between memory and what is computed
MOST_UNROLLED = 32  # batches: 128 of them took NVRTC four seconds, and gained nothing


Place: TypeAlias = tuple[Buffer, tuple[Expr, ...]]
Statements: TypeAlias = list[tuple[Expr, "Store | Let"]]
Root: TypeAlias = Callable[[Buffer], str]


def lower_map(low: Lowering, op: Map) -> Iterable[Op]:
    """Every thread does the iterations of its values."""
    fragment = map_layout(op)
    extents = static_extents(op)
    if extents != fragment.tile:
        raise CompileError(
            "the map and its layout have different shapes",
            expected=str(extents),
            got=repr(fragment),
        )
    with low.restored():
        loop = map_loop(low, fragment, op.vars)
        once = loop.first_copy() if runs_once(low, op) else TRUE
        loop.alone = once is not TRUE
        loop.bound = frozenset(v for inner in op.body for v in bound_within(inner))
        result = None
        if loop.values > 1:
            result = lower_sums(loop, op) or _groups(loop, op)
        if result is None:
            result = loop.emit(_body(loop, op.body))
    low.touched = low.touched or accesses_memory(op, low.fixed)
    if once is TRUE:
        yield from result
        return
    yield If(once, result)
    yield from hand_over(low, op, fragment)


def map_layout(op: Map) -> Fragment:
    """The map's layout: its own, or that of the fragment it writes by its own variables."""
    if isinstance(op.layout, Fragment):
        return op.layout
    for inner in walk_ops(op.body, Store):
        if isinstance(inner.buffer.layout, Fragment) and inner.indices == op.vars:
            return inner.buffer.layout
    raise CompileError(
        "this map has no layout",
        fix='use target="cpu" or "interp", or write the layout: layout="frag{tile=… tv=…}"',
    )


def _body(loop: MapLoop, body: Body) -> Body:
    found: list[Op] = []
    low = loop.low
    with low.restored():
        for op in body:
            with at(op.loc):
                found += [located(new, op.loc) for new in _op(loop, op)]
            low.ranges = scope.after(op, low.ranges)
    return tuple(found)


def _op(loop: MapLoop, op: Op) -> Iterable[Op]:
    match op:
        case Store():
            yield from _store(loop, op)
        case Atomic():
            yield from atomic_element(loop, op)
        case Intrinsic():
            if INTRINSICS[op.name].convergent:
                raise CompileError(
                    f"{op.name} in a map: its iterations are no threads", fix="use it outside maps"
                )
            yield from intrinsic(loop, op)
        case Hint() if op.name != "assume":
            return
        case Let() | Alloc() | If() | For() | While() | Break() | Continue() | Hint():
            yield _structure(loop, op)
        case _:
            raise CompileError(f"{type(op).__name__.lower()} in a map is not lowered")


def _structure(loop: MapLoop, op: Op) -> Op:
    """`op` with its expressions and bodies as a thread has them."""
    low, changes = loop.low, dict[str, Any]()
    if isinstance(op, Let):
        loop.lets[op.var] = op.value
    if isinstance(op, For):
        values = values_of(op)
        # registers take constant indices: a loop over what a thread holds of a fragment is unrolled
        if values is not None and (op.kind in ("unroll", "vectorized") or _indexes_registers(op)):
            low.unrolled[op.var] = values
        changes["kind"] = "unroll" if op.var in low.unrolled else "serial"
    new = map_exprs(op, loop.expr)
    for f in marked(op, "body"):
        with low.restored(scope.inside(op, f.name, low.ranges)):
            changes[f.name] = _body(loop, getattr(op, f.name))
    if isinstance(op, For):
        low.unrolled.pop(op.var, None)
    return rebuild(new, **changes)


def _indexes_registers(loop: For) -> bool:
    return any(
        x.buffer.is_fragment and any(loop.var in variables(i) for i in x.indices)
        for op in walk_ops(loop.body)
        for x, _ in elements_of(op)
    )


def _store(loop: MapLoop, op: Store) -> Iterable[Op]:
    flat, value = loop.low.flat(op.buffer), loop.expr(op.value)
    if op.buffer.is_fragment:
        check_single(op.buffer)
        register = loop.register(op.buffer, op.indices, op.loc)
        yield Store(flat, (register,), value)
        return
    place, inside = loop.low.place(op.buffer, [loop.index(i) for i in op.indices])
    once = loop.first_copy() if op.buffer.space in MEMORY else TRUE
    yield from guarded(once, guarded(inside, (Store(flat, place, value),)))


# ── iterations that several threads hold ─────────────────────────────────────────────────────
#
# Each thread that holds an element runs its iteration, and one of them stores to memory. That is
# not enough when an iteration reads memory that it writes, or uses what an atomic gives back: the
# others would read too late, or get nothing. Then one thread runs the iteration alone, and what it
# wrote to fragments reaches the others through shared memory.


def runs_once(low: Lowering, op: Map) -> bool:
    """Whether an iteration must not be run by several threads."""
    read: set[str] = set()
    written: set[str] = set()
    for inner in walk_ops(op.body):
        if (
            isinstance(inner, (Atomic, Intrinsic))
            and inner.result is not None
            and any(r.space in MEMORY for r in regions(inner, reads=True, writes=True))
        ):
            return True
        read |= {low.root(x.buffer) for x in op_loads(inner) if x.buffer.space in MEMORY}
        if isinstance(inner, Store) and inner.buffer.space in MEMORY:
            written.add(low.root(inner.buffer))
        if isinstance(inner, Atomic):
            written.add(low.root(inner.dst.buffer))
    return bool(read & written)


def hand_over(low: Lowering, op: Map, layout: Fragment) -> Iterable[Op]:
    """What one thread wrote to fragments in an iteration, to all that hold it."""
    places: dict[tuple[Buffer, tuple[Expr, ...]], None] = {}
    for inner in walk_ops(op.body, Store):
        if inner.buffer.is_fragment:
            if any(variables(i) - set(op.vars) for i in inner.indices):
                raise CompileError(
                    f"several threads hold this element of {inner.buffer.name}, and its iteration "
                    "may run in one of them only: it reads memory that it writes",
                    loc=inner.loc,
                    fix="split the map: compute into shared memory first",
                )
            places[inner.buffer, inner.indices] = None

    def move(indices: tuple[Expr, ...], source: Buffer, target: Buffer) -> Iterable[Op]:
        names = tuple(low.var(v.name) for v in op.vars)
        at: dict[Var, Expr] = dict(zip(op.vars, names, strict=True))
        where = tuple(substitute(i, at) for i in indices)
        store = Store(target, where, Load(source, where))
        return low.op(Map(names, op.extents, (store,), layout=layout))

    for buffer, indices in places:
        write = partial(move, indices, buffer)
        scratch, told = low.exchange(buffer.dtype, buffer.static_shape, write)
        yield from (*told, *move(indices, scratch, buffer))


def check_single(buffer: Buffer) -> None:
    """A fragment that is written holds each element once in a thread."""
    fragment = buffer.fragment
    if fragment.drop_repeats().values != fragment.values:
        raise CompileError(
            f"{buffer.name} holds elements in several registers of one thread",
            got=repr(fragment),
        )


# ── fills ────────────────────────────────────────────────────────────────────────────────────


def lower_fill(low: Lowering, op: Fill) -> Iterable[Op]:
    """A fragment register by register; memory by a map of the block's threads."""
    buffer = op.dst.buffer
    if buffer.is_fragment:
        op = low.plain(op)
        value = cast(op.value, op.dst.dtype)
        if op.dst.is_whole:
            registers, var = low.flat(buffer), low.var("v")
            body = Store(registers, (var,), value)
            return (unroll(var, int(registers.shape[0]), (body,)),)
        check_single(buffer)
        with low.restored():
            loop, _, place = region_loop(low, op.dst)
        return loop.emit((Store(low.flat(buffer), (place,), value),))
    found = expand_op(op, low.names)
    assert found is not None
    if buffer.is_local:
        return low.op(unrolled(found))
    if not isinstance(found, Map):
        found = Map((low.var("i"),), (const(1),), (found,))
    layout = widest_layout(low, op.dst, static_extents(found))
    return low.op(rebuild(found, layout=layout))


def unrolled(op: Op) -> Op:
    """A map of loops without its loops: registers have no addresses."""
    if not isinstance(op, For):
        return op
    return rebuild(op, body=tuple(map(unrolled, op.body)), kind="unroll")


def widest_layout(low: Lowering, region: Region, tile: tuple[int, ...]) -> Fragment:
    """The block's threads over a region of memory, 16 bytes each where the tile divides."""
    vector = gcd(tile[-1], max(WIDEST // region.dtype.bits, 1))
    return coalesced(tile, low.instance.threads, vector)


# ── vector accesses ──────────────────────────────────────────────────────────────────────────
#
# Where neighbouring values of a map touch neighbouring elements of memory, in every thread, they do
# so together: loads into a piece of registers in front, stores out of one after. Only bodies of
# plain statements, and only buffers that no statement reads after one has written them.


def _groups(loop: MapLoop, op: Map) -> Body | None:
    """`op` in groups of values that access memory together; None where nothing would."""
    low, values = loop.low, loop.values
    statements = _statements(op.body, low.root)
    candidates = {} if statements is None else _candidates(statements, low.root)
    if statements is None or not candidates:
        return None
    group = low.var("g")
    best: tuple[int, Groups, dict[Place, Access]] | None = None
    widest = WIDEST // min(key[0].dtype.bits for key in candidates)
    written = _stored(statements)
    for count in COUNTS:
        groups = Groups(loop, group, count)
        if count > widest or not groups.are_whole():
            continue
        found = {}
        for key, candidate in candidates.items():
            for share in (1, 2, 4) if key not in written else (1,):
                access = find_access(groups, key[0], candidate, share, stores=key in written)
                if access is not None:
                    found[key] = access
                    break
        saved = sum(values - values // (a.width * a.share) for a in found.values())
        if saved and (best is None or saved > best[0]):
            best = saved, groups, found
            if len(found) == len(candidates):
                break
    if best is None:
        return None
    _, groups, found = best
    return _emit(groups, statements, found)


def _place(at: Load | Store) -> Place:
    return at.buffer, at.indices


def _stored(statements: Statements) -> set[Place]:
    return {_place(s) for _, s in statements if isinstance(s, Store)}


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
        if buffer.space not in MEMORY:
            return
        if buffer.is_global and not stores and _differs(cond, indices):
            cond = TRUE
        before = found.get((buffer, indices))
        if before is not None:
            if cond is not before.given and (stores or not buffer.is_global):
                # several conditions: what is loaded too often is not stored so
                banned.add(root(buffer))
                return
            cond = cond if cond is before.given else TRUE
        plain = tuple(named_loads(substitute(i, lets), names) for i in indices)
        given, cond = cond, named_loads(substitute(cond, lets), names)
        used = {v for e in (*plain, cond) for v in variables(e)}
        rows = tuple((var, load) for load, var in names.items() if var in used)
        # outside a tensor there are zeros, wherever the load stands; other memory has no guard
        if all(x.buffer.is_global for _, load in rows for x in loads(load)):
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


def _differs(cond: Expr, indices: tuple[Expr, ...]) -> bool:
    """Whether data says for each element of a vector whether it is wanted, as a mask does: then
    all of them are loaded."""
    return any(indices[-1:] == x.indices[-1:] and x.indices for x in loads(cond))


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


def _emit(groups: Groups, statements: Statements, found: dict[Place, Access]) -> Body:
    loop, count = groups.loop, groups.count
    low = loop.low
    touched = [x for cond, s in statements for x in (*loads(cond), *op_loads(s))]
    read = set(map(_place, touched)) & set(found)
    written = _stored(statements) & set(found)
    words = sum(count * key[0].dtype.bits // WORD for key in (*read, *written))
    batch = longest(groups.number, max(MOST_HELD // words, 1))

    def piece(key: Place, name: str) -> Buffer:
        size = batch * count // found[key].share
        return low.local(f"{key[0].name}_{name}", key[0].dtype, size)

    loaded = {key: piece(key, "in") for key in found if key in read}
    stored = {key: piece(key, "out") for key in found if key in written}
    each = low.var("e")
    turn = low.var("b")
    slot: Expr = turn * count + each if batch > 1 else each

    def swap(e: Expr) -> Expr:
        if isinstance(e, Select) and isinstance(e.a, Load) and e.b is const(0, e.dtype):
            access = found.get(_place(e.a))
            if access is not None and access.given is e.cond:
                e = e.a  # zeros are where it was not wanted
        if isinstance(e, Load) and (key := _place(e)) in loaded:
            return Load(loaded[key], (slot // found[key].share,), e.loc)
        return map_children(e, swap)

    conds = {cond for cond, _ in statements}
    first = next(iter(conds))
    alone = len(conds) == 1 and first is not TRUE and not loads(first)
    whole, same = common_guard(groups, first) if alone else (FALSE, False)

    def lower(asking: bool) -> Body:
        body: list[Op] = []
        for cond, statement in statements:
            new: Op = map_exprs(statement, swap)
            if isinstance(statement, Store) and (key := _place(statement)) in stored:
                new = Store(stored[key], (slot,), swap(statement.value))
                # what is not stored may be anything, unless computing it needs the guard
                rest = [x for x in op_loads(statement) if _place(x) not in loaded]
                if all(_inside_anyway(loop, x) for x in rest):
                    cond = TRUE
            cond = swap(cond) if asking else TRUE
            body += [located(part, statement.loc) for part in guarded(cond, (new,))]
        return _body(loop, tuple(body))

    asking = lower(True)
    bare = asking if whole is FALSE else lower(False)
    fold = _fold(groups, statements, loaded, (slot, each))

    def work(first: Expr) -> Body:
        at = simplify(first + each, low.ranges)

        def by_one(body: Body) -> Body:
            return (unroll(each, count, substitute_vars(body, {loop.var: at})),)

        in_pairs = fold is not None and (whole is not FALSE or conds == {TRUE})
        ops = fold(first) if fold is not None and in_pairs else by_one(bare)
        if whole is FALSE or (asking == bare and not same):
            return ops
        number = simplify(first // count, low.ranges)
        cond = simplify(substitute(whole, {groups.var: number}), index=False)
        if same:
            return guarded(cond, ops)
        return (If(cond, ops, (Hint("rare"), *rename_unique(by_one(asking), low.names))),)

    memory = all(b.space in MEMORY for _, s in statements for b, _ in touched_within(s))
    return batched(
        groups,
        batch,
        [(found[key], to) for key, to in loaded.items()],
        [(found[key], to) for key, to in stored.items()],
        MOST_UNROLLED if memory else groups.number,
        (turn, work),
    )


def _fold(
    groups: Groups, statements: Statements, loaded: Mapping[Place, Buffer], slot: tuple[Expr, Var]
) -> Callable[[Expr], Body] | None:
    """Maxima of 16 bits, two at a time, where that is all that happens to what was loaded."""
    loop, low = groups.loop, groups.loop.low
    match statements:
        case [
            (_, Store(held, place, Call("max_nan" | "min_nan" as name, (Load() as a, Load() as b))))
        ]:
            if _place(a) != (held, place) or _place(b) not in loaded or held.dtype.bits != 16:
                return None
        case _:
            return None
    register = loop.register(held, place)
    if loaded[_place(b)].dtype != held.dtype or not groups.in_row(register, held.dtype.bits):
        return None
    pair, two = low.var("e"), const(2)

    def fold(first: Expr) -> Body:
        to, of = (
            Region(buffer, (simplify(substitute(at, {var: begin + pair * 2}), low.ranges),), (two,))
            for buffer, at, var, begin in (
                (low.flat(held), register, loop.var, first),
                (loaded[_place(b)], *slot, const(0)),
            )
        )
        text = f"op={name[:3]}"
        return (unroll(pair, groups.count // 2, (Intrinsic("fold_pair", (to, of), text=text),)),)

    return fold


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
