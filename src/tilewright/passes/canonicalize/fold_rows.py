"""Folds and scans of columns together with the maps around them, a few rows at a time, for a CPU.

By itself, a fold along columns goes down one vector of them after the other: in a tensor, each of
its rows lies in another page, and what memory would send next is not asked for. Here rows are read
from end to end, and what a map makes of them is folded and stored before the next ones come.
"""

from __future__ import annotations

from collections import Counter

from tilewright.passes.canonicalize.fuse_maps import (
    TILES,
    accesses,
    meet,
    with_locals,
    writes_first,
)
from tilewright.passes.core import *
from tilewright.passes.lower.reduce import FOLDS, TRUTHS, accumulates_in, element_value

ROWS = 4  # at a time, as many streams of memory: meanwhile their folds stay in registers
FEW = 8  # all of which are folded at once


@kernel_pass
def fold_rows(at: Facts) -> Kernel:
    """Fold columns of a tile as maps write and read it.

    Of

        map (r, c) in (64, 256) { x[r, c] = X[r, c] }; reduce sum x -> y dim 0

    it makes

        map c in 256 { folds[c] = 0 }
        for r in 0 .. 16 { map c in 256 {
            fold = folds[c]; for i in 0 .. 4 { fold = fold + X[r * 4 + i, c] }; folds[c] = fold
        } }
        map c in 256 { y[c] = folds[c] }
    """
    uses = Counter(b.name for op in at.ops for b in named_buffers(op))
    gone: set[Buffer] = set()

    def fold(body: Body) -> Body:
        done, n = [*body], 0
        while n < len(done):
            op = done[n]
            if isinstance(op, (Reduce, Scan)) and _is_plain(op, at.viewed):
                (first, early), (last, late) = (_next(done, n, way, at.viewed) for way in (-1, 1))
                before, after = _together(op, done[first], done[last], at.viewed)
                # what is in between comes first
                before = () if early & _named(*before) else before
                after = () if late & _named(op, *before) else after
                if before or (after and isinstance(op, Scan)):
                    low, high = (first if before else n), (last if after else n)
                    own = _own(op, before, after, uses)
                    gone.update(own)
                    group = {*map(id, (op, *before, *after))}
                    kept = [x for x in done[low:high] if id(x) not in group]
                    done[low : high + 1] = [*kept, *_by_rows(op, before, after, own)]
                    n = low + len(kept)
            n += 1
        return tuple(done)

    def visit(op: Op) -> Op | None:
        holds = not isinstance(op, Map) and any(
            isinstance(x, (Reduce, Scan)) for body in bodies(op) for x in body
        )
        return map_bodies(op, fold) if holds else None

    found = map_ops(at.kernel, visit)
    found = map_bodies(found, fold)
    for tile in gone:
        because(at.kernel.name, tile.name, "no tile: rows are folded as they are made")
    return map_ops(found, lambda op: () if isinstance(op, Alloc) and op.buffer in gone else None)


def _is_plain(op: Reduce | Scan, viewed: set[str]) -> bool:
    """Of a whole tile, along another than its last axis, by something that starts from a number."""
    src, dst = op.src, op.dst
    if op.op not in FOLDS or not src.is_whole or {src.name, dst.name} & viewed:
        return False
    if isinstance(op, Scan) and (op.by or op.more or op.into or not dst.is_whole):
        return False
    if not all(isinstance(n, Const) for n in src.extents):
        return False
    return op.axis < len(src.extents) - 1 and src.extents[-1] is not const(1)


def _next(body: list[Op], at: int, way: int, viewed: set[str]) -> tuple[int, set[str]]:
    """Of what comes after a fold, or before it, the first map of the same size, and what the maps
    in between name, whose memory has no other name; or the fold itself."""
    op, n, passed = body[at], at + way, set[str]()
    assert isinstance(op, (Reduce, Scan))
    while 0 <= n < len(body):
        each = body[n]
        if isinstance(each, Map) and not any(walk_ops(each, Intrinsic)):
            if each.extents == op.src.extents:
                return n, passed
            passed |= _named(each)
            if passed & viewed:
                break
        elif not isinstance(each, Hint) and not (isinstance(each, Alloc) and each.init is None):
            break
        n += way
    return at, set()


def _named(*ops: Op) -> set[str]:
    return {b.name for op in ops for each in walk_ops(op) for b in named_buffers(each)}


Maps = tuple[Map, ...]  # one, or none


def _together(op: Reduce | Scan, first: Op, last: Op, viewed: set[str]) -> tuple[Maps, Maps]:
    """The maps before and after, if any, that do for each element what is done with it."""
    whole = {r.name for r in (op.totals if isinstance(op, Scan) else (op.dst,))}
    made: tuple[Maps, Maps] = ((), ())
    names = [Var(f"at{d}") for d in range(len(op.src.extents))]
    places: dict[str, set[tuple[tuple[Expr, ...], bool]]] = {op.src.name: {((*names,), False)}}
    if isinstance(op, Scan):
        places.setdefault(op.dst.name, set()).add(((*names,), True))
    for end, each in enumerate((first, last)):
        if not isinstance(each, Map) or each.extents != op.src.extents:
            continue
        if not all(isinstance(x, (Store, Let, If, Alloc)) for x in walk_ops(each.body)):
            continue
        own: dict[Var, Expr] = dict(zip(each.vars, names, strict=True))
        touched = accesses(substitute_vars(each.body, own))
        shared = touched.keys() & places.keys()
        if not shared or touched.keys() & whole or not meet(places, touched, viewed):
            continue
        for name, found in touched.items():
            places.setdefault(name, set()).update(found)
        made = ((each,), made[1]) if end == 0 else (made[0], (each,))
    return made


def _own(op: Reduce | Scan, before: Maps, after: Maps, uses: Counter[str]) -> list[Buffer]:
    """Tiles that nobody else reads, and that are written here before they are read."""
    ops = (*before, op, *after)
    mine = Counter(b.name for each in ops for x in walk_ops(each) for b in named_buffers(x))
    early = {b for x in before for b, _ in touched_within(x)}
    own = [b for b in (op.src.buffer,) if before and writes_first(before[0], b)]
    if isinstance(op, Scan) and op.dst.buffer not in early:
        own.append(op.dst.buffer)
    return [b for b in own if b.space in TILES and uses[b.name] == mine[b.name] + 1]


def _by_rows(op: Reduce | Scan, before: Maps, after: Maps, own: list[Buffer]) -> Body:
    """The fold, with what maps before and after it do."""
    axis, sizes = op.axis, [int(n.value) for n in op.src.extents if isinstance(n, Const)]
    count, extents = sizes[axis], tuple(n for d, n in enumerate(op.src.extents) if d != axis)
    kind = accumulates_in(op.op, op.src.dtype, op.dst.dtype)
    start = identity(op.op, kind)
    fold = Buffer(fresh_name("fold"), (), kind, Space.LOCAL)
    names = [fresh_var("at") for _ in sizes]
    columns = tuple(v for d, v in enumerate(names) if d != axis)
    long = [v for v, n in zip(columns, extents, strict=True) if n is not const(1)]
    now = Load(fold, ())
    new = element_value(op.op, Load(op.src.buffer, (*names,)), kind)
    point: list[Op] = [Store(fold, (), FOLDS[op.op].fold(now, new))]
    if isinstance(op, Scan):
        point.append(Store(op.dst.buffer, (*names,), cast(now, op.dst.dtype)))

    def body_of(maps: Maps) -> Body:
        return tuple(
            x for m in maps for x in substitute_vars(m.body, dict(zip(m.vars, names, strict=True)))
        )

    each: Body = (*body_of(before), *point, *body_of(after))

    def rows(first: Expr, many: int, begin: Body, end: Body) -> Op:
        i = fresh_var("i")
        row = count - 1 - (first + i) if isinstance(op, Scan) and op.reverse else first + i
        loop = For(i, const(0), const(many), substitute_vars(each, {names[axis]: row}))
        made = Map(columns, extents, (*begin, loop, *end))
        return rename_unique(with_locals(made, own) if own else made)

    def ends(value: Expr) -> Body:
        if isinstance(op, Scan):
            return tuple(Store(r.buffer, r.at(long), cast(value, r.dtype)) for r in op.totals)
        goal = op.dst.at(long)
        if not op.clear:
            was = Load(op.dst.buffer, goal)
            old = element_value(op.op, was, kind) if op.op in TRUTHS else cast(was, kind)
            value = FOLDS[op.op].fold(value, old)
        return (Store(op.dst.buffer, goal, cast(value, op.dst.dtype)),)

    if count <= FEW:
        return (rows(const(0), count, (Alloc(fold, start),), ends(now)),)
    folds = Buffer(fresh_name("folds"), extents, kind, Space.FRAGMENT)
    kept, trip, left = Load(folds, columns), fresh_var("rows"), count % ROWS
    begin, end = (Alloc(fold, kept),), (Store(folds, columns, now),)
    made: list[Op] = [Alloc(folds), Map(columns, extents, (Store(folds, columns, start),))]
    made.append(For(trip, const(0), const(count // ROWS), (rows(trip * ROWS, ROWS, begin, end),)))
    if left:
        made.append(rows(const(count - left), left, begin, end))
    if ends(now):
        made.append(Map(columns, extents, ends(kept)))
    return tuple(rename_unique(x) if isinstance(x, Map) else x for x in made)
