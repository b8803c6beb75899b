"""Prefix sums and maxima: the tile goes to shared memory, each thread runs along lines of it, and
the results are taken from there."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Expr, Load, Var, cast, compare, const
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import row_major
from tilewright.ir.op import Alloc, For, If, Map, Op, Scan, Store
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.folds import FOLDS, accumulates_in
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.map_loops import region_fragment


def lower_scan(low: Lowering, op: Scan) -> Iterable[Op]:
    if op.op not in FOLDS:
        raise low.unsupported(op, f"there is no scan by {op.op}")
    if op.src.dtype.bits < 8 or op.dst.dtype.bits < 8:
        raise low.unsupported(op, f"scans of {op.src.dtype} are not lowered")
    tile, dim = op.src.static_tile or (1,), op.dim
    if dim >= len(op.src.static_tile):
        extents = tuple(int(e) for e in op.src.extents)
        dim = sum(1 for e in extents[:dim] if e != 1) if extents and extents[dim] != 1 else -1
    kind = accumulates_in(op.op, op.src.dtype, op.dst.dtype)
    layout = row_major(tile)
    flat, met = low.exchange(kind, layout.cosize(), op.loc)
    shape = tuple(const(e) for e in tile)
    scratch = Buffer(flat.name, shape, kind, Space.SHARED, layout=layout)
    yield from met
    yield from low.op(_nest(low, op.src, scratch, op, True))
    yield from low.join(op.loc)
    if dim >= 0:
        yield from low.op(_lines(low, op, scratch, tile, dim))
        yield from low.join(op.loc)
    yield from low.op(_nest(low, op.dst, scratch, op, False))


def _nest(low: Lowering, region: Region, scratch: Buffer, op: Scan, out: bool) -> Op:
    """The tile into `scratch`, or out of it."""
    if isinstance(region.buffer.layout, Fragment):
        layout, names, inside = region_fragment(low, region, op)
    else:
        layout = coalesced(scratch.static_shape, low.instance.threads)
        names = tuple(low.var(f"i{d}") for d in range(len(layout.tile)))
        inside = names if region.static_tile else ()
    indices = region.at(inside)
    spot: tuple[Expr, ...] = inside if inside else (const(0),)
    if out:
        value = cast(Load(region.buffer, indices, op.loc), scratch.dtype)
        body: Op = Store(scratch, spot, value, loc=op.loc)
    else:
        value = cast(Load(scratch, spot, op.loc), region.dtype)
        body = Store(region.buffer, indices, value, loc=op.loc)
    extents = tuple(const(e) for e in layout.tile)
    return Map(names, extents, (body,), layout=layout, loc=op.loc)


def _lines(low: Lowering, op: Scan, scratch: Buffer, tile: tuple[int, ...], dim: int) -> Op:
    """Every line along `dim` by one thread, in place."""
    rest = [e for d, e in enumerate(tile) if d != dim]
    lines = 1
    for e in rest:
        lines *= e
    threads = low.instance.threads
    turn, line = low.var("turn"), low.instance.thread
    rounds = -(-lines // threads)
    if rounds > 1:
        line = line + turn * threads
    places: list[Expr] = []
    left: Expr = line
    for extent in reversed(rest):
        places.append(left % extent)
        left = left // extent
    k = low.var("k")
    last = tile[dim] - 1

    def at(step: Expr) -> tuple[Expr, ...]:
        spot = list(reversed(places))
        spot.insert(dim, const(last) - step if op.reverse else step)
        return tuple(spot)

    total = Buffer(low.var("total").name, (), scratch.dtype, Space.LOCAL)
    more = FOLDS[op.op].fold(Load(total, (), op.loc), Load(scratch, at(k), op.loc))
    body: tuple[Op, ...] = (
        Alloc(total, init=Load(scratch, at(const(0)), op.loc), loc=op.loc),
        For(
            _var(k),
            const(1),
            const(tile[dim]),
            (
                Store(total, (), more, loc=op.loc),
                Store(scratch, at(k), Load(total, (), op.loc), loc=op.loc),
            ),
            loc=op.loc,
        ),
    )
    if lines % threads:
        body = (If(compare("<", line, lines), body, loc=op.loc),)
    if rounds > 1:
        return For(turn, const(0), const(rounds), body, loc=op.loc)
    if len(body) == 1:
        return body[0]
    return If(compare("<", line, lines), body, loc=op.loc)


def _var(e: Expr) -> Var:
    assert isinstance(e, Var)
    return e
