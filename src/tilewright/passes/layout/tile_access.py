"""Which elements of its fragments an elementwise nest touches, as functions of the nest's point.

Indices are evaluated over the nest's whole domain, so that questions about them are decided, not
guessed; the common case, indices that are the nest's own variables, is also known by its shape.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import numpy as np

from tilewright.ir.analysis.bounds import Ranges, linear
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Const, Expr, Load, Var, loads, substitute, variables
from tilewright.ir.layout.fragment import Fragment, repeat, row_of
from tilewright.ir.layout.layout import Indices, LayoutError
from tilewright.ir.op import For, If, Let, Map, Op, Store, While, bodies, expressions
from tilewright.passes.layout.addresses import evaluate
from tilewright.support.errors import CompileError, Loc

MOST_INNER = 4096  # values of loop variables inside a nest that are looked at


@dataclass(frozen=True)
class Access:
    """`buffer[indices]` in a nest. `points[p, r]`: the element (row-major; -1 outside) at point p
    for the r-th values of the loop variables inside the nest or unrolled around it; None when an
    index is known only at run time. `dims`: the nest's dimensions that are the indices, in order,
    when that is all they are; `extents` those of the nest. `grid`: how many boxes like the nest's
    make up the buffer, where the access is one of them."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    points: Indices | None
    dims: tuple[int, ...] | None
    extents: tuple[int, ...]
    loc: Loc | None
    grid: tuple[int, ...] | None = None

    def needed(self, nest: Fragment) -> Indices:
        """[threads, k] elements that each thread touches, -1 for none."""
        assert self.points is not None
        return needed_by(self.points, nest)


def needed_by(points: Indices, nest: Fragment) -> Indices:
    """[threads, k] elements that each thread of a nest touches, -1 for none (`Access.points`)."""
    table = nest.table()
    found = points[np.maximum(table, 0)]
    return np.where((table < 0)[..., None], -1, found).reshape(nest.threads, -1)


@lru_cache(maxsize=64)
def plain_points(
    dims: tuple[int, ...], extents: tuple[int, ...], shape: tuple[int, ...]
) -> Indices:
    """`Access.points` of an access whose `dims` are known; read-only."""
    coords = np.indices(extents).reshape(len(extents), -1)
    result = np.zeros(coords.shape[1], np.int64)
    for dim, size in zip(dims, shape, strict=True):
        result = result * size + (coords[dim] if dim >= 0 else 0)
    result.flags.writeable = False
    return result[:, None]


def static_extents(op: Map) -> tuple[int, ...]:
    sizes = []
    for var, extent in zip(op.vars, op.extents, strict=True):
        if not isinstance(extent, Const):
            raise CompileError(
                f"the extent of {var.name} is known only at run time",
                loc=op.loc,
                expected="constant extents of T.Parallel on a GPU",
                fix="run over a constant tile and guard the body",
            )
        sizes.append(int(extent.value))
    return tuple(sizes)


def accesses(op: Map, around: dict[Var, range]) -> list[Access]:
    """Every access of a fragment in `op`; `around` are the unrolled variables outside."""
    extents = static_extents(op)
    coords = np.indices(extents).reshape(len(extents), -1)
    domain = dict(zip(op.vars, coords, strict=True))
    found: list[Access] = []
    for inner, lets, loops in _walk(op.body, {}, {}):
        for expr in expressions(inner):
            for load in loads(expr):
                if load.buffer.space is Space.FRAGMENT:
                    where = inner.loc or op.loc
                    found.append(_access(op, load, False, domain, lets, {**around, **loops}, where))
        if isinstance(inner, Store) and inner.buffer.space is Space.FRAGMENT:
            place = Load(inner.buffer, inner.indices)
            where = inner.loc or op.loc
            found.append(_access(op, place, True, domain, lets, {**around, **loops}, where))
    return found


def _walk(
    body: tuple[Op, ...], lets: dict[Var, Expr], loops: dict[Var, range]
) -> Iterator[tuple[Op, dict[Var, Expr], dict[Var, range]]]:
    for op in body:
        yield op, lets, loops
        inside = loops
        if isinstance(op, Let):
            lets = {**lets, op.var: substitute(op.value, lets)}
        elif isinstance(op, For) and all(
            isinstance(e, Const) for e in (op.start, op.stop, op.step)
        ):
            inside = {**loops, op.var: range(int(op.start), int(op.stop), int(op.step))}
        elif not isinstance(op, (If, While, For, Map)):
            continue
        for inner in bodies(op):
            yield from _walk(inner, lets, inside)


def _access(
    op: Map,
    load: Load,
    writes: bool,
    domain: dict[Var, Indices],
    lets: dict[Var, Expr],
    loops: dict[Var, range],
    loc: Loc | None,
) -> Access:
    indices = tuple(substitute(i, lets) for i in load.indices)
    dims: list[int] | None = []
    for index, size in zip(indices, load.buffer.static_shape, strict=True):
        if dims is None:
            break
        if isinstance(index, Const) and index.value == 0 and size == 1:
            dims.append(-1)
        elif isinstance(index, Var) and index in op.vars:
            place = op.vars.index(index)
            fits = place not in dims and int(op.extents[place]) == size
            dims = [*dims, place] if fits else None
        else:
            dims = None
    extents = static_extents(op)
    shape = None if dims is None else tuple(dims)
    if shape is None:
        points = _points(load.buffer, indices, domain, loops)
    else:
        points = plain_points(shape, extents, load.buffer.static_shape)
    grid = _grid(op, indices, load.buffer.static_shape) if shape is None else None
    return Access(load.buffer, load.indices, writes, points, shape, extents, loc, grid)


def _grid(op: Map, indices: tuple[Expr, ...], shape: tuple[int, ...]) -> tuple[int, ...] | None:
    """How many boxes like the nest's make up a buffer of that shape, where the indices are the
    nest's variables, in order, from the start of one of these on."""
    extents = static_extents(op)
    if len(indices) != len(extents):
        return None
    for var, index, extent, size in zip(op.vars, indices, extents, shape, strict=True):
        form = linear(index, Ranges())
        if form is None or dict(form.terms) != {var: 1} or size % extent or form.const % extent:
            return None
    return tuple(size // extent for size, extent in zip(shape, extents, strict=True))


def _points(
    buffer: Buffer,
    indices: tuple[Expr, ...],
    domain: dict[Var, Indices],
    loops: dict[Var, range],
) -> Indices | None:
    used = sorted({v for i in indices for v in variables(i)} - set(domain), key=lambda v: v.name)
    if any(v not in loops for v in used) or any(loads(i) for i in indices):
        return None
    ranges = [loops[v] for v in used]
    count = prod(len(r) for r in ranges)
    size = next(iter(domain.values())).shape[0] if domain else 1
    if count > MOST_INNER:
        return None
    grid = np.meshgrid(*(np.array(r, np.int64) for r in ranges), indexing="ij")
    values = {v: x[:, None] for v, x in domain.items()}
    values |= {v: g.reshape(1, -1) for v, g in zip(used, grid, strict=True)}
    result = np.zeros((size, count), np.int64)
    inside = np.ones((size, count), bool)
    for index, extent in zip(indices, buffer.static_shape, strict=True):
        try:
            at = np.broadcast_to(np.asarray(evaluate(index, values)), (size, count))
        except (CompileError, KeyError):
            return None
        inside &= (at >= 0) & (at < extent)
        result = result * extent + at
    return np.where(inside, result, -1)


def unrolled(op: Op) -> dict[Var, range]:
    """The variable of a loop that is unrolled, with its values, when they are known."""
    if isinstance(op, For) and op.kind == "unroll":
        bounds = (op.start, op.stop, op.step)
        if all(isinstance(e, Const) for e in bounds):
            return {op.var: range(*(int(e) for e in bounds))}
    return {}


# ── from nests to buffers and back ───────────────────────────────────────────────────────────


def buffer_from_nest(access: Access, nest: Fragment) -> Fragment | None:
    """How the buffer is spread when each thread holds what it touches; None when that is not a
    fragment of the whole buffer."""
    shape = access.buffer.static_shape
    if access.dims is not None:
        try:
            return _dropped(access.dims, nest, shape)
        except LayoutError:
            pass  # modes that cross the tile's dimensions, as views have: by its table, then
    if access.grid is not None and nest.cover == nest.tile:
        return repeat(*access.grid) * nest  # the other boxes are held as this one is
    if access.points is None:
        return None
    needed = access.needed(nest)
    if not needed.size or (needed < 0).any():
        return None
    _, first = np.unique(needed, axis=1, return_index=True)
    try:
        found = Fragment.fit(shape, needed[:, np.sort(first)])
    except LayoutError:
        return None
    return found if found.is_complete else None


def _dropped(dims: tuple[int, ...], nest: Fragment, shape: tuple[int, ...]) -> Fragment | None:
    """`nest` less the dimensions that are not among `dims`, in their order."""
    result, kept = nest, [d for d in dims if d >= 0]
    for dim in sorted(set(range(len(nest.tile))) - set(kept), reverse=True):
        result = row_of(result, dim, keepdim=len(result.tile) == 1)
    if kept:
        order = sorted(kept)
        result = result.permute(*(order.index(d) for d in kept))
    return _with_units(result, shape)


def nest_from_buffer(
    access: Access, fragment: Fragment, extents: tuple[int, ...]
) -> Fragment | None:
    """The layout of a nest in which every thread touches what it holds; None unless the access
    is a bijection between the nest and the buffer, or a part of it in the same registers of all
    threads."""
    if access.dims is not None:
        try:
            return _raised(access.dims, fragment, extents)
        except LayoutError:
            pass  # as in `buffer_from_nest`
    if access.points is None or access.points.shape[1] != 1 or fragment.cover != fragment.tile:
        return None
    points = access.points[:, 0]
    if (points < 0).any() or len(np.unique(points)) != len(points):
        return None
    inverse = np.full(fragment.elements, -1, points.dtype)
    inverse[points] = np.arange(len(points))
    table = inverse[fragment.table()]
    if len(points) != fragment.elements:  # a part, of which threads hold the same registers
        table = table[:, (table >= 0).any(axis=0)]
        if (table < 0).any():
            return None
    try:
        return Fragment.fit(extents, table)
    except LayoutError:
        return None


def _raised(dims: tuple[int, ...], fragment: Fragment, extents: tuple[int, ...]) -> Fragment | None:
    """`fragment` with its dimensions where `dims` says that they are in the nest."""
    found = [d for d in dims if d >= 0]
    if any(extents[d] != 1 for d in range(len(extents)) if d not in found):
        return None
    squeezed = _without_units(fragment)
    if squeezed is None:
        return None
    kept = [d for d in found if extents[d] != 1]
    if not kept:
        return _with_units(squeezed, extents)
    if len(squeezed.tile) != len(kept):
        return None
    return _with_units(squeezed.permute(*(kept.index(d) for d in sorted(kept))), extents)


def _with_units(fragment: Fragment, shape: tuple[int, ...]) -> Fragment | None:
    """`fragment` with dimensions of extent 1 added or dropped so that its tile is `shape`."""
    if fragment.tile == shape:
        return fragment
    squeezed = _without_units(fragment)
    if squeezed is None:
        return None
    if squeezed.tile == shape:
        return squeezed
    if tuple(s for s in shape if s != 1) != tuple(s for s in squeezed.tile if s != 1):
        return None
    cover, left = [], [c for c, t in zip(squeezed.cover, squeezed.tile, strict=True) if t != 1]
    for size in shape:
        cover.append(1 if size == 1 else left.pop(0))
    return Fragment(shape, squeezed.layout, tuple(cover))


def _without_units(fragment: Fragment) -> Fragment | None:
    """`fragment` without dimensions of extent 1 (one is kept of a tile of one element)."""
    kept = [i for i, size in enumerate(fragment.tile) if size != 1]
    if len(kept) == len(fragment.tile):
        return fragment
    if any(fragment.cover[i] != 1 for i in range(len(fragment.tile)) if i not in kept):
        return None
    kept = kept or [0]
    tile, cover = (tuple(box[i] for i in kept) for box in (fragment.tile, fragment.cover))
    return Fragment(tile, fragment.layout, cover)


with_units = _with_units


def same_registers(buffer: Buffer, source: Buffer) -> bool:
    """Whether bit for bit each thread's registers of one fragment are those of the other."""
    new, old = buffer.layout, source.layout
    assert isinstance(new, Fragment) and isinstance(old, Fragment)
    if new.threads != old.threads:
        return False
    tables = []
    for fragment, bits in ((new, buffer.dtype.bits), (old, source.dtype.bits)):
        unit = min(buffer.dtype.bits, source.dtype.bits)
        table, per = fragment.table(), bits // unit
        parts = table[:, :, None] * per + np.arange(per)
        tables.append(np.where(table[:, :, None] < 0, -1, parts).reshape(len(table), -1))
    return np.array_equal(tables[0], tables[1])
