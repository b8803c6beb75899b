"""Give ops that cannot live with a fragment's layout a copy that they can.

Three ways, the cheapest that serves: nothing, when every thread holds what it touches in one
register; a fragment spread as the op needs it, filled or emptied by a `relayout`; a copy in shared
memory, which any index may read and write, one known only at run time too.

A fragment that a view shows under other registers lies in shared memory, and products of it have
fragments of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.ir.layout.fragment import row_of
from tilewright.passes.core import *
from tilewright.passes.layout.matrix_tiles import wanted_operands
from tilewright.passes.layout.thread_layouts import (
    Access,
    accesses,
    buffer_from_map,
    needed_by,
    plain_points,
    same_registers,
    unrolled,
    walk_map,
    with_units,
)
from tilewright.passes.lower.elements import PRINTED


def insert_conversions(kernel: Kernel, target: Target) -> Kernel:
    """`kernel`, every op of which can use its operands where they are."""
    converter = _Converter(target, kernel.thread_count, unrolled(kernel))
    body = converter.body(_in_memory(kernel).body)
    return rebuild(kernel, body=(*converter.made, *body))


def _in_memory(kernel: Kernel) -> Kernel:
    """`kernel` with fragments that views show under other registers in shared memory."""
    roots, moved = aliases(kernel), set[str]()
    for op in walk_ops(kernel, View):
        if op.buffer.is_fragment and not (
            op.offset is const(0) and same_registers(op.buffer, op.source)
        ):
            moved.add(roots[op.buffer.name])
    if not moved:
        return kernel

    def own(op: Gemm) -> Iterable[Op]:
        after: list[Op] = []
        for name in ("a", "b", "c"):
            region: Region = getattr(op, name)
            if roots[region.name] in moved:
                tile = replace(region.buffer, name=fresh_name(f"{region.name}_own"))
                yield Alloc(tile, loc=op.loc)
                yield _by_threads(region.buffer, tile, op)
                after += [_by_threads(tile, region.buffer, op)] if name == "c" else []
                op = rebuild(op, **{name: replace(region, buffer=tile)})
        yield from (op, *after)

    kernel = map_ops(kernel, lambda op: tuple(own(op)) if isinstance(op, Gemm) else None)
    found = [op.buffer for op in walk_ops(kernel, Alloc, View) if roots[op.buffer.name] in moved]
    return replace_buffers(kernel, {b: replace(b, space=Space.SHARED, layout=None) for b in found})


@dataclass
class _Converter:
    """`made`: the copies, which live at the top of the kernel: whoever waits for a product may do
    so outside the loop it stands in."""

    target: Target
    threads: int
    around: dict[Var, range]
    made: list[Op] = field(default_factory=list)
    printed: dict[str, Buffer] = field(default_factory=dict)

    def body(self, body: Body) -> Body:
        found: list[Op] = []
        for op in body:
            rule = _RULES.get(type(op))
            threads = self.threads
            self.threads = op.warps * WARP if isinstance(op, Role) else threads
            found += _hoisted(map_bodies(op, self.body)) if rule is None else rule(self, op)
            self.threads = threads
        return tuple(found)

    def like(self, buffer: Buffer, name: str, layout: Fragment | None, space: Space) -> Buffer:
        found = replace(buffer, name=fresh_name(name), space=space, layout=layout, strides=None)
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


def _hoisted(op: Op) -> Iterable[Op]:
    """`op`, a loop after the conversions in it of what it does not change."""
    if not isinstance(op, For):
        return (op,)
    fixed = [
        each
        for each in op.body
        if isinstance(each, Relayout)
        and {each.src.name, each.dst.name}.isdisjoint(
            written_in(other for other in op.body if other is not each)
        )
    ]
    return (*fixed, rebuild(op, body=tuple(each for each in op.body if each not in fixed)))


def _by_threads(source: Buffer, target: Buffer, op: Op) -> Copy:
    return Copy(whole(source), whole(target), atom="threads", loc=op.loc)


def _fits(access: Access, map_layout: Fragment, writes: bool = False) -> bool:
    """Whether each thread holds what it touches, in the same register as the others, and, if it
    `writes`, each one that holds an element which the map writes writes it itself."""
    if access.points is None:
        return False
    fragment, shape = access.buffer.fragment, access.buffer.static_shape
    if access.dims is None:
        return _fits_points(access.points, fragment, map_layout, writes)
    return _fits_plainly(access.dims, access.extents, shape, fragment, map_layout, writes)


@lru_cache(maxsize=256)
def _fits_plainly(
    dims: tuple[int, ...],
    extents: tuple[int, ...],
    shape: tuple[int, ...],
    fragment: Fragment,
    map_layout: Fragment,
    writes: bool,
) -> bool:
    """The answer for indices that are the map's variables: most maps ask the same."""
    return _fits_points(plain_points(dims, extents, shape), fragment, map_layout, writes)


def _fits_points(points: Indices, fragment: Fragment, map_layout: Fragment, writes: bool) -> bool:
    reads_own = fragment.registers(needed_by(points, map_layout)) is not None
    return reads_own and (not writes or _written_by_holders(points, fragment, map_layout, 1))


def _written_by_holders(
    points: Indices, fragment: Fragment, map_layout: Fragment, most: int
) -> bool:
    """Whether each thread that holds an element runs the iterations that write it, or `most`."""
    needed, table, count = needed_by(points, map_layout), fragment.table(), fragment.elements
    wanted = np.minimum(np.bincount(points[points >= 0], minlength=count), most)
    own = np.arange(len(needed))[:, None] * count + needed
    keys, times = np.unique(np.append(own[needed >= 0], -1), return_counts=True)
    slots = np.arange(len(table))[:, None] * count + table
    place = np.minimum(np.searchsorted(keys, slots), len(keys) - 1)
    ran = np.where(keys[place] == slots, times[place], 0)
    return bool(((table < 0) | (ran >= wanted[np.maximum(table, 0)])).all())


def picked_stores(op: Map) -> set[tuple[str, tuple[Expr, ...]]]:
    """Stores to fragments of which a guard picks some iterations out of several that go to the same
    element: `if j == 3 { r[i] = … }`."""
    long = {v for v, e in zip(op.vars, op.extents, strict=True) if e is not const(1)}
    found: set[tuple[str, tuple[Expr, ...]]] = set()

    def asked(guard: Expr) -> set[Var]:
        # what a variable of the iteration holds may depend on anything
        local = any(x.buffer.is_local for x in loads(guard))
        return long if local else variables(guard) & long

    for each, names, _, guards in walk_map(op.body, {}, {}):
        if isinstance(each, Store) and each.buffer.is_fragment:
            own = {v for i in each.indices for v in variables(substitute(i, names))}
            if set().union(*map(asked, guards)) - own:
                found.add((each.buffer.name, each.indices))
    return found


def _map(c: _Converter, op: Map) -> Iterable[Op]:
    map_layout = op.layout
    assert isinstance(map_layout, Fragment)
    before: list[Op] = []
    after: list[Op] = []
    swaps: dict[tuple[str, tuple[Expr, ...]], Buffer] = {}
    written: dict[Buffer, Buffer] = {}
    found, picked = accesses(op, c.around), picked_stores(op)
    for access in found:
        buffer, points = access.buffer, access.points
        if not access.writes or buffer in written:
            continue
        alone = (buffer.name, access.indices) in picked and (
            points is None
            or not _written_by_holders(points, buffer.fragment, map_layout, points.size)
        )
        if not alone and _fits(access, map_layout, writes=True):
            continue
        layout = None if alone else buffer_from_map(access, map_layout)
        written[buffer], there, back = c.twin(buffer, layout, op)
        before.append(there)
        after.append(back)
    copies: dict[tuple[str, Fragment | None], Buffer] = {}
    for access in found:
        buffer = access.buffer
        now = written.get(buffer, buffer)
        if access.writes or now.is_shared or _fits(replace(access, buffer=now), map_layout):
            continue
        layout = buffer_from_map(access, map_layout)
        if layout is not None:
            spread = replace(access, buffer=buffer.with_layout(layout))
            layout = layout if _fits(spread, map_layout) else None
        key = (buffer.name, layout)
        if key not in copies:
            copies[key], there, _ = c.twin(buffer, layout, op)
            before.append(there)
        swaps[buffer.name, access.indices] = copies[key]
    yield from before
    yield _swap(op, swaps, written)
    yield from after


def _swap(
    op: Map, reads: dict[tuple[str, tuple[Expr, ...]], Buffer], written: dict[Buffer, Buffer]
) -> Op:
    """`op` with its loads and stores sent to other buffers."""

    def there(e: Load) -> Expr | None:
        buffer = reads.get((e.buffer.name, e.indices))
        return Load(buffer, e.indices, e.loc) if buffer else None

    if reads:
        op = map_ops(op, lambda inner: map_loads(inner, there))
    return replace_buffers(op, written) if written else op


def reduced(source: Fragment, op: Reduce) -> Fragment | None:
    """How the result of `op` is spread when the source is spread like this; None when its modes
    cross the tile's dimensions."""
    return lines_of(source, op.axis, op.dst.buffer)


def _reduce(c: _Converter, op: Reduce) -> Iterable[Op]:
    if not all(r.buffer.is_fragment and r.is_whole for r in (op.src, op.dst)):
        yield op
        return
    want = reduced(op.src.buffer.fragment, op)
    if want is None or want.same(op.dst.buffer.fragment):
        yield op  # what threads lack goes through shared memory
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


def _scan(c: _Converter, op: Scan) -> Iterable[Op]:
    """All tiles as the first source is held, totals as its lines are."""
    if not all(r.buffer.is_fragment and r.is_whole for r in op.sources + op.results):
        yield op
        return
    layout, fields = op.src.buffer.fragment, {}
    after: list[Op] = []
    for name in ("more", "dst", "into", "totals"):
        regions: list[Region] = []
        for region in getattr(op, name) if name != "dst" else (op.dst,):
            want = lines_of(layout, op.axis, region.buffer) if name == "totals" else layout
            want = None if want is None else with_units(want, region.buffer.static_shape)
            held = region.buffer.is_fragment and region.is_whole
            if held and want is not None and not want.same(region.buffer.fragment):
                tmp, there, home = c.twin(region.buffer, want, op)
                region = replace(region, buffer=tmp)
                if name == "more":
                    yield there
                else:
                    after.append(home)
            regions.append(region)
        fields[name] = regions[0] if name == "dst" else tuple(regions)
    yield rebuild(op, **fields)
    yield from after


def lines_of(source: Fragment, dim: int, folded: Buffer) -> Fragment | None:
    """How folds of lines along a dimension are spread when the source is spread like this."""
    try:
        left = row_of(source, dim, keepdim=len(source.tile) == 1)
    except LayoutError:
        return None
    return with_units(left, folded.static_shape)


def _copy(c: _Converter, op: Copy) -> Iterable[Op]:
    a, b = op.src, op.dst
    if not (a.buffer.is_fragment and b.buffer.is_fragment):
        yield op
        return
    if a.is_whole and b.is_whole:
        source = with_units(a.buffer.fragment, b.buffer.static_shape)
        if source is not None and source.same(b.buffer.fragment):
            yield op
            return
        if a.dtype == b.dtype and a.buffer.shape == b.buffer.shape:
            yield Relayout(a, b, loc=op.loc)
            return
        if source is not None:
            yield from _through(c, op, "dst", source, keeps=False)
            return
    if _holds_part(a, b):
        yield op
        return
    # from a copy in shared memory: threads lack elements
    tmp, there, _ = c.twin(a.buffer, None, op)
    yield from (there, rebuild(op, src=replace(a, buffer=tmp), atom="threads"))


def _holds_part(source: Region, target: Region) -> bool:
    """Whether each thread holds the elements of `source` that it gets of `target`, in the same
    registers as the others."""
    places = []
    for region in (source, target):
        if not all(isinstance(s, Const) for s in region.starts):
            return False
        tile = region.buffer.fragment.tile
        box = np.arange(prod(tile)).reshape(tile)[
            tuple(
                slice(int(s), int(s) + int(e))
                for s, e in zip(region.starts, region.extents, strict=True)
            )
        ]
        places.append(box.reshape(-1))
    table = target.buffer.fragment.table()
    wanted = np.full(target.buffer.fragment.elements, -1, np.int64)
    wanted[places[1]] = places[0]
    needed = np.where(table < 0, -1, wanted[np.maximum(table, 0)])
    return source.buffer.fragment.registers(needed) is not None


def _gemm(c: _Converter, op: Gemm) -> Iterable[Op]:
    for name, buffer, want in wanted_operands(op, c.threads, c.target):
        if not want.same(buffer.fragment):
            for new in _through(c, op, name, want, back=name == "c"):
                yield from _gemm(c, new) if isinstance(new, Gemm) else (new,)
            return
    yield op


def _print(c: _Converter, op: Intrinsic) -> Iterable[Op]:
    """What is printed of a fragment is read from shared memory, by one thread."""
    args: list[Expr | Region] = []
    for arg in op.args if op.name == "print" else ():
        if isinstance(arg, Region) and arg.buffer.is_fragment:
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
    Map: _map,
    Reduce: _reduce,
    Copy: _copy,
    Scan: _scan,
    Gemm: _gemm,
}
