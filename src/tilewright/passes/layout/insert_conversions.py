"""Give ops that cannot live with a fragment's layout a copy that they can.

Three ways, the cheapest that serves: nothing, when every thread holds what it touches in one
register; a fragment spread as the op needs it, filled or emptied by a `relayout`; a copy in shared
memory, which any index may read and write, one known only at run time too.

A view of a fragment that is not spread as the fragment is becomes a fragment of its own. Whatever
writes one of the two is followed by a trip through shared memory, where both are views of one
tile, so that the other has it too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.ir.buffer import Buffer, Region, Space, whole
from tilewright.ir.expr import (
    Const,
    Expr,
    Load,
    Var,
    const,
    loads,
    substitute,
    transform,
    variables,
)
from tilewright.ir.layout.fragment import Fragment, row_of
from tilewright.ir.layout.layout import Indices, LayoutError
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Gemm,
    Intrinsic,
    Kernel,
    Let,
    Map,
    Op,
    Reduce,
    Relayout,
    Scan,
    Store,
    View,
    bodies,
    expressions,
    marked,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import fresh_name, map_exprs, map_ops, rebuild
from tilewright.ir.target import Target
from tilewright.passes.layout.matrix_tiles import held_operands, split_of
from tilewright.passes.layout.thread_layouts import (
    Access,
    Wish,
    accesses,
    buffer_from_nest,
    needed_by,
    plain_points,
    same_registers,
    spread,
    unrolled,
    with_units,
)
from tilewright.passes.lower.elements import PRINTED
from tilewright.support.errors import CompileError


def insert_conversions(kernel: Kernel, target: Target, names: set[str]) -> Kernel:
    """`kernel`, every op of which can use its operands where they are."""
    converter = _Converter(target, names, prod(kernel.threads))
    body = converter.body(kernel.body)
    return rebuild(kernel, body=(*converter.made, *body))


@dataclass(frozen=True)
class Views:
    """Fragments that show each other's memory. `same`: names of views whose registers are those
    of another fragment. `homes`: fragments that are spread differently, each with the shared tile
    that shows its elements and the name of the family's first."""

    same: dict[str, str]
    homes: dict[str, tuple[Buffer, Buffer, str]]


@dataclass
class _Converter:
    """`made`: the copies, which live at the top of the kernel: whoever waits for a product may do
    so outside the loop it stands in."""

    target: Target
    names: set[str]
    threads: int
    around: dict[Var, range] = field(default_factory=dict)
    made: list[Op] = field(default_factory=list)
    views: Views = field(default_factory=lambda: Views({}, {}))
    printed: dict[str, Buffer] = field(default_factory=dict)

    def body(self, body: Body) -> Body:
        outer = self.views
        found = tuple(new for op in body for new in self.op(op))
        self.views = outer  # those of this body end with it
        return found

    def op(self, op: Op) -> Iterable[Op]:
        rule = _RULES.get(type(op))
        if rule is not None:
            yield from rule(self, op)
            yield from self.shown(op)
            return
        inner = {f.name: self.inside(op, getattr(op, f.name)) for f in marked(op, "body")}
        yield rebuild(op, **inner) if inner else op
        if not inner:
            yield from self.shown(op)

    def shown(self, op: Op) -> Iterable[Op]:
        """What `op` writes, in the fragments that show the same memory."""
        written = {self.views.same.get(b.name, b.name) for b in _written(op)}
        if written & set(self.views.homes):
            self.check_apart(op)
        for name in sorted(written):
            home = self.views.homes.get(name)
            if home is None:
                continue
            buffer, tile, family = home
            others = [h for n, h in self.views.homes.items() if h[2] == family and n != name]
            if others:
                yield _by_threads(buffer, tile, op)
            for other, place, _ in others:
                yield _by_threads(place, other, op)

    def check_apart(self, op: Op) -> None:
        """One op must not write memory under one name and use it under another afterwards."""
        now: dict[str, str] = {}  # families, and the name under which they have been written

        def member(buffer: Buffer) -> tuple[str, str] | None:
            name = self.views.same.get(buffer.name, buffer.name)
            home = self.views.homes.get(name)
            return None if home is None else (home[2], name)

        for statement in op.body if isinstance(op, Map) else (op,):
            plain = isinstance(statement, Store)
            used = [b for inner in walk_ops(statement) for b in read_buffers(inner)]
            writes = _written(statement)
            for buffer in (*(() if plain else writes), *used, *(writes if plain else ())):
                found = member(buffer)
                if found is None:
                    continue
                family, name = found
                if now.setdefault(family, name) != name:
                    raise CompileError(
                        f"{buffer.name} and {now[family]} show the same elements, and this uses "
                        "both after writing one",
                        loc=statement.loc or op.loc,
                        fix="use one name within a T.Parallel, or split it in two",
                    )
                if buffer in used and buffer not in writes:
                    del now[family]

    def inside(self, op: Op, body: Body) -> Body:
        around = self.around
        self.around = {**around, **unrolled(op)}
        try:
            return self.body(body)
        finally:
            self.around = around

    def like(self, buffer: Buffer, name: str, layout: Fragment | None, space: Space) -> Buffer:
        fresh = fresh_name(name, self.names)
        found = replace(buffer, name=fresh, space=space, layout=layout, strides=None)
        self.made.append(Alloc(found))
        return found

    def twin(self, buffer: Buffer, layout: Fragment | None, op: Op) -> tuple[Buffer, Op, Op]:
        """A copy of a fragment for `op`, in shared memory without a layout; the op that fills it,
        and the one that brings it back."""
        if layout is None:
            tmp = self.like(buffer, f"{buffer.name}_shared", None, Space.SHARED)
            return tmp, _by_threads(buffer, tmp, op), _by_threads(tmp, buffer, op)
        tmp = self.like(buffer, f"{buffer.name}_moved", layout, Space.FRAGMENT)
        old, new = whole(buffer), whole(tmp)
        return tmp, Relayout(old, new, loc=op.loc), Relayout(new, old, loc=op.loc)


def _by_threads(source: Buffer, target: Buffer, op: Op) -> Copy:
    return Copy(whole(source), whole(target), atom="threads", loc=op.loc)


def held(buffer: Buffer) -> Fragment:
    assert isinstance(buffer.layout, Fragment), buffer.name
    return buffer.layout


def readable(access: Access, nest: Fragment) -> bool:
    """Whether each thread holds what it reads, in the same register as the others."""
    return _fits(access, nest, _reads_own)


def writable(access: Access, nest: Fragment) -> bool:
    """Whether each thread that holds an element which the nest writes writes it itself."""
    return _fits(access, nest, _reads_own) and _fits(access, nest, _writes_own)


def _fits(access: Access, nest: Fragment, rule: Callable[[Fragment, Indices], bool]) -> bool:
    if access.points is None:
        return False
    if access.dims is None:
        return rule(held(access.buffer), access.needed(nest))
    fragment, shape = held(access.buffer), access.buffer.static_shape
    return _fits_plainly(access.dims, access.extents, shape, fragment, nest, rule)


@lru_cache(maxsize=256)
def _fits_plainly(
    dims: tuple[int, ...],
    extents: tuple[int, ...],
    shape: tuple[int, ...],
    fragment: Fragment,
    nest: Fragment,
    rule: Callable[[Fragment, Indices], bool],
) -> bool:
    """The answer for indices that are the nest's variables: most nests ask the same."""
    return rule(fragment, needed_by(plain_points(dims, extents, shape), nest))


def _reads_own(fragment: Fragment, needed: Indices) -> bool:
    return fragment.registers(needed) is not None


def _writes_own(fragment: Fragment, needed: Indices) -> bool:
    table, some = fragment.table(), needed >= 0
    threads = max(len(needed), len(table))
    written = np.zeros((threads, fragment.elements), bool)
    thread = np.broadcast_to(np.arange(len(needed))[:, None], needed.shape)
    written[thread[some], needed[some]] = True
    touched = np.zeros(fragment.elements, bool)
    touched[needed[some]] = True
    inside = (table >= 0) & touched[np.maximum(table, 0)]
    holder = np.broadcast_to(np.arange(len(table))[:, None], table.shape)
    return bool(written[holder[inside], table[inside]].all())


def picked_stores(op: Map) -> set[tuple[str, tuple[Expr, ...]]]:
    """Stores to fragments of which a guard picks some iterations out of several that go to the same
    element: `if j == 3 { r[i] = … }`."""
    long = {v for v, e in zip(op.vars, op.extents, strict=True) if e is not const(1)}
    found: set[tuple[str, tuple[Expr, ...]]] = set()

    def visit(body: Body, guards: frozenset[Var], names: dict[Var, Expr]) -> None:
        for each in body:
            if isinstance(each, Let):
                names = {**names, each.var: substitute(each.value, names)}
            if isinstance(each, Store) and each.buffer.space is Space.FRAGMENT:
                own = {v for i in each.indices for v in variables(substitute(i, names))}
                if guards - own:
                    found.add((each.buffer.name, each.indices))
            asked = set(guards)
            for e in expressions(each) if any(True for _ in bodies(each)) else ():
                e = substitute(e, names)
                # what a variable of the iteration holds may depend on anything
                local = any(x.buffer.space is Space.LOCAL for x in loads(e))
                asked |= long if local else variables(e) & long
            for inner in bodies(each):
                visit(inner, frozenset(asked), names)

    visit(op.body, frozenset(), {})
    return found


def _writes_all(access: Access, nest: Fragment) -> bool:
    """Whether each thread that holds an element runs every iteration that may write it."""
    if access.points is None:
        return False
    fragment, needed = held(access.buffer), access.needed(nest)
    table = fragment.table()
    ran = np.zeros((max(len(needed), len(table)), fragment.elements), np.int64)
    thread = np.broadcast_to(np.arange(len(needed))[:, None], needed.shape)
    np.add.at(ran, (thread[needed >= 0], needed[needed >= 0]), 1)
    points = access.points
    whole_count = np.bincount(points[points >= 0], minlength=fragment.elements)
    inside = (table >= 0) & (whole_count > 0)[np.maximum(table, 0)]
    holder = np.broadcast_to(np.arange(len(table))[:, None], table.shape)
    return bool((ran[holder[inside], table[inside]] >= whole_count[table[inside]]).all())


def _map(c: _Converter, op: Map) -> Iterable[Op]:
    nest = op.layout
    assert isinstance(nest, Fragment)
    before: list[Op] = []
    after: list[Op] = []
    swaps: dict[tuple[str, tuple[Expr, ...]], Buffer] = {}
    written: dict[str, Buffer] = {}
    found = accesses(op, c.around)
    picked = picked_stores(op)
    for access in found:
        buffer = access.buffer
        if not access.writes or buffer.name in written:
            continue
        alone = (buffer.name, access.indices) in picked and not _writes_all(access, nest)
        if not alone and writable(access, nest):
            continue
        layout = None if alone else buffer_from_nest(access, nest)
        tmp, there, back = c.twin(buffer, layout, op)
        before.append(there)
        after.append(back)
        written[buffer.name] = tmp
    copies: dict[tuple[str, Fragment | None], Buffer] = {}
    for access in found:
        buffer = access.buffer
        if access.writes:
            continue
        if buffer.name in written:
            if written[buffer.name].space is Space.SHARED or readable(
                replace(access, buffer=written[buffer.name]), nest
            ):
                continue
        elif readable(access, nest):
            continue
        layout = buffer_from_nest(access, nest)
        if layout is not None:
            spread = replace(access, buffer=buffer.with_layout(layout))
            layout = layout if readable(spread, nest) else None
        key = (buffer.name, layout)
        if key not in copies:
            copies[key], there, _ = c.twin(buffer, layout, op)
            before.append(there)
        swaps[buffer.name, access.indices] = copies[key]
    yield from before
    yield _swap(op, swaps, written)
    yield from after


def _swap(
    op: Map, reads: dict[tuple[str, tuple[Expr, ...]], Buffer], written: dict[str, Buffer]
) -> Map:
    """`op` with its loads and stores sent to other buffers."""
    if not reads and not written:
        return op

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            indices = tuple(transform(i, node) for i in e.indices)
            buffer = reads.get((e.buffer.name, e.indices)) or written.get(e.buffer.name)
            if buffer is not None:
                return Load(buffer, indices, e.loc)
        return None

    def one(inner: Op) -> Op:
        new = map_exprs(inner, lambda e: transform(e, node))
        if isinstance(new, Store) and new.buffer.name in written:
            new = rebuild(new, buffer=written[new.buffer.name])
        return new

    return map_ops(op, one)


def reduced_dim(op: Reduce) -> int:
    """The dimension of the source that is reduced: `op.dim` counts those of the tile, without
    units, or all of them, whichever gives the result's shape."""
    extents = [int(e) for e in op.src.extents]
    long = [i for i, e in enumerate(extents) if e != 1]
    left = op.dst.static_tile
    for dim in (*long[op.dim : op.dim + 1], op.dim):
        if tuple(extents[i] for i in long if i != dim) == left:
            return dim
    return op.dim


def reduced(source: Fragment, op: Reduce) -> Fragment | None:
    """How the result of `op` is spread when the source is spread like this; None when its modes
    cross the tile's dimensions."""
    try:
        left = row_of(source, reduced_dim(op), keepdim=len(source.tile) == 1)
    except LayoutError:
        return None
    return with_units(left, op.dst.buffer.static_shape)


def _reduce(c: _Converter, op: Reduce) -> Iterable[Op]:
    if not all(r.buffer.space is Space.FRAGMENT and r.is_whole for r in (op.src, op.dst)):
        yield op
        return
    source = op.src.buffer
    want = reduced(held(source), op)
    if want is None:
        wish = Wish(1, max(1, source.dtype.bits // 8), ((reduced_dim(op), 1),))
        plain = spread(source.static_shape, c.threads, wish)
        for new in _through(c, op, "src", plain, back=False):
            yield from _reduce(c, new) if isinstance(new, Reduce) else (new,)
    elif want.same(held(op.dst.buffer)):
        yield op
    else:
        yield from _through(c, op, "dst", want, keeps=not op.clear)


def _through(
    c: _Converter, op: Op, operand: str, layout: Fragment, *, keeps: bool = True, back: bool = True
) -> Iterable[Op]:
    """`op` on a copy of one operand, which is brought back when the op writes it."""
    region: Region = getattr(op, operand)
    tmp, there, home = c.twin(region.buffer, layout, op)
    if keeps:
        yield there
    yield rebuild(op, **{operand: replace(region, buffer=tmp)})
    if back:
        yield home


def _copy(c: _Converter, op: Copy | Scan) -> Iterable[Op]:
    a, b = op.src, op.dst
    if not all(r.buffer.space is Space.FRAGMENT for r in (a, b)):
        yield op
        return
    if not (a.is_whole and b.is_whole):
        yield from _copy_parts(c, op)
        return
    source = with_units(held(a.buffer), b.buffer.static_shape)
    if source is not None and source.same(held(b.buffer)):
        yield op
    elif isinstance(op, Copy) and a.dtype == b.dtype and a.buffer.shape == b.buffer.shape:
        yield Relayout(a, b, loc=op.loc)
    elif source is not None:
        yield from _through(c, op, "dst", source, keeps=False)
    else:
        yield from _copy_parts(c, op)


def _copy_parts(c: _Converter, op: Copy | Scan) -> Iterable[Op]:
    """Between parts of fragments: from a copy in shared memory where threads lack elements."""
    if isinstance(op, Scan) or _holds_part(op.src, op.dst):
        yield op
        return
    tmp, there, _ = c.twin(op.src.buffer, None, op)
    yield there
    yield rebuild(op, src=replace(op.src, buffer=tmp), atom="threads")


def _holds_part(source: Region, target: Region) -> bool:
    """Whether each thread holds the elements of `source` that it gets of `target`, in the same
    registers as the others."""
    places = []
    for region in (source, target):
        if not all(isinstance(s, Const) for s in region.starts):
            return False
        tile = held(region.buffer).tile
        box = np.arange(prod(tile)).reshape(tile)[
            tuple(
                slice(int(s), int(s) + int(e))
                for s, e in zip(region.starts, region.extents, strict=True)
            )
        ]
        places.append(box.reshape(-1))
    table = held(target.buffer).table()
    wanted = np.full(held(target.buffer).elements, -1, np.int64)
    wanted[places[1]] = places[0]
    needed = np.where(table < 0, -1, wanted[np.maximum(table, 0)])
    return held(source.buffer).registers(needed) is not None


def _gemm(c: _Converter, op: Gemm) -> Iterable[Op]:
    split = split_of(op, c.threads, c.target)
    if split is None:
        yield op
        return
    for name, fragment in held_operands(op, split).items():
        buffer: Buffer = getattr(op, name).buffer
        want = with_units(fragment, buffer.static_shape)
        if want is not None and not want.same(held(buffer)):
            for new in _through(c, op, name, want, back=name == "c"):
                if isinstance(new, Gemm):
                    yield from _gemm(c, new)
                else:
                    yield new
            return
    yield op


def _written(op: Op) -> list[Buffer]:
    return [b for inner in walk_ops(op) for b in written_buffers(inner)]


def _view(c: _Converter, op: View) -> Iterable[Op]:
    buffer, source = op.buffer, op.source
    if buffer.space is not Space.FRAGMENT:
        yield op
        return
    views = c.views
    root = views.same.get(source.name, source.name)
    if op.offset is const(0) and same_registers(buffer, source):
        c.views = replace(views, same={**views.same, buffer.name: root})
        yield op
        return
    if not isinstance(op.offset, Const):
        raise CompileError(
            f"{buffer.name} begins at an element of {source.name} that is known only at run time",
            loc=op.loc,
            expected="a constant offset: threads hold fixed elements",
            got=str(op.offset),
            fix=f"view all of {source.name}, and index the view",
        )
    homes = dict(views.homes)
    if root not in homes:
        tile = c.like(source, f"{source.name}_home", None, Space.SHARED)
        homes[root] = (source, tile, root)
    whole_of, tile, family = homes[root]
    name = fresh_name(f"{buffer.name}_home", c.names)
    place = replace(buffer, name=name, space=Space.SHARED, layout=None)
    c.made.append(View(place, tile, op.offset, loc=op.loc))
    homes[buffer.name] = (buffer, place, family)
    c.views = replace(views, homes=homes)
    yield Alloc(buffer, loc=op.loc)
    yield _by_threads(whole_of, tile, op)
    yield _by_threads(place, buffer, op)


def _print(c: _Converter, op: Intrinsic) -> Iterable[Op]:
    """What is printed of a fragment is read from shared memory, by one thread."""
    args: list[Expr | Region] = []
    for arg in op.args if op.name == "print" else ():
        if isinstance(arg, Region) and arg.buffer.space is Space.FRAGMENT:
            buffer = arg.buffer
            if buffer.name not in c.printed:
                name = buffer.name + PRINTED
                c.printed[buffer.name] = c.like(buffer, name, None, Space.SHARED)
            tile = c.printed[buffer.name]
            yield _by_threads(buffer, tile, op)
            arg = replace(arg, buffer=tile)
        args.append(arg)
    yield rebuild(op, args=tuple(args)) if op.name == "print" else op


_RULES: dict[type[Op], Callable[..., Iterable[Op]]] = {
    Intrinsic: _print,
    View: _view,
    Map: _map,
    Reduce: _reduce,
    Copy: _copy,
    Scan: _copy,
    Gemm: _gemm,
}
