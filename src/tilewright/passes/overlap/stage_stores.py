"""Send what matrix instructions leave to memory by way of shared memory.

An accumulator's rows lie in quarters of warps, eight bytes of 16-bit results each: stored from
there, half of every sector goes in vain. Staged, whole tiles are written by the bulk engine, or by
threads in rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.ir.gather import reads_inside
from tilewright.passes.core import *
from tilewright.passes.layout.shared_tiles import bulk_eligible
from tilewright.passes.layout.thread_layouts import divisors
from tilewright.passes.overlap.stages import PIECE, ROOM, planned_bytes

LEAST = 64 * 64  # elements of a tile that is worth the trip
ROWS = 8  # of matrices that threads write to a tile


@dataclass(frozen=True)
class Staging:
    """A store that may go by way of a tile. `part(at, size, tile)`: what stores `size` columns, or
    rows (`dim` 0), from `at` on through `tile`; None where it cannot."""

    name: str
    shape: tuple[int, ...]
    dtype: DType
    dim: int
    part: Callable[[int, int, Buffer], Body | None]

    def sizes(self) -> list[tuple[int, int]]:
        """Of pieces, with the number of tiles that they alternate between, the best first."""
        length = self.shape[self.dim]
        if self.dim:
            return [(length, 1), *product((PIECE, PIECE // 2), (2, 1))]
        return [(length // n, min(n, 2)) for n in divisors(length // ROWS)]


@kernel_pass
def stage_stores(at: Facts) -> Kernel:
    """Stage accumulators in shared memory before they are stored, where there is room: the whole
    tile, or pieces of its columns in two alternating tiles, or in one. Pieces are shorter where
    those would not divide it, or fit."""
    kernel = at.kernel
    if at.target.schedule.stage_stores is False or at.has_roles:
        return kernel
    ranges = {id(op): r for op, r in scope.walk_ranges(kernel, at.dims)}
    spread, swapped = _by_matrix(kernel), any(op.transpose_c for op in walk_ops(kernel, Gemm))
    left = (at.target.chip.shared - ROOM - planned_bytes(kernel)) // kernel.ping_pong

    def rule(op: Op) -> Body | None:
        nonlocal left
        dim = 0 if swapped else 1  # all threads have elements of every row, or of every column
        found = _of_map(op, spread, dim) if isinstance(op, Map) else None
        if isinstance(op, Copy):
            found = _of_copy(op, spread, dim, ranges.get(id(op), Ranges()))
        if found is None or len(found.shape) != 2:
            return None
        if prod(found.shape) < LEAST and not swapped:
            return None
        for each, count in found.sizes():
            size = prod(found.shape) // found.shape[dim] * each * found.dtype.bits // 8
            if found.shape[dim] % each or size * count > left:
                continue
            shape = tuple(const(each if d == dim else n) for d, n in enumerate(found.shape))
            stages = [fresh_name(f"{found.name}_stage") for _ in range(count)]
            tiles = [Buffer(name, shape, found.dtype, Space.SHARED) for name in stages]
            places = range(0, found.shape[dim], each)
            parts = [found.part(at, each, tiles[k % count]) for k, at in enumerate(places)]
            if None not in parts:
                left -= size * count
                body = [each for part in parts for each in part or ()]
                return (*(Alloc(tile) for tile in tiles), *body)
        return None

    return map_ops(kernel, rule)


def _of_copy(op: Copy, spread: set[str], dim: int, ranges: Ranges) -> Staging | None:
    """A copy of an accumulator to a tensor, which the bulk engine can make of a tile."""
    if op.atom is not None or op.reduce is not None or not op.dst.buffer.is_global:
        return None
    if op.src.buffer.name not in spread or op.dst.dtype.bits != 16:
        return None
    if not all(isinstance(e, Const) for e in (*op.src.extents, *op.dst.extents)):
        return None

    def part(at: int, size: int, tile: Buffer) -> Body | None:
        src, dst = (along(side, dim - 2, const(at), size) for side in (op.src, op.dst))
        store = rebuild(op, src=whole(tile), dst=dst)
        fill = Copy(src, whole(tile))
        return (fill, store) if bulk_eligible(store, ranges) else None

    return Staging(op.src.buffer.name, op.src.static_tile, op.dst.dtype, dim, part)


def _of_map(op: Map, spread: set[str], dim: int) -> Staging | None:
    """A map that stores what it makes of an accumulator along a tensor's rows, with or without a
    condition: computed where the accumulator is, stored in rows."""
    *before, last = op.body
    lets = let_values(before)
    cond: Expr = TRUE
    if isinstance(last, If) and not last.orelse and len(last.then) == 1:
        cond, last = substitute(last.cond, lets), last.then[0]
    if not isinstance(last, Store) or not all(isinstance(each, Let) for each in before):
        return None
    store, tensor, value = last, last.buffer, substitute(last.value, lets)
    place = tuple(substitute(i, lets) for i in store.indices)
    results = [x.buffer for x in loads(value) if x.buffer.name in spread and x.indices == op.vars]
    if op.layout is not None or len(op.vars) != 2 or not results:
        return None
    if not tensor.is_global or tensor.dtype.bits != 16 or not tensor.dtype.is_float:
        return None
    if any(x.buffer.is_fragment for e in (cond, *place) for x in loads(e)):
        return None
    # computed for every element: nothing that only the condition keeps inside a tile
    if any(x.buffer == tensor for x in loads(value)) or (
        cond is not TRUE and not all(reads_inside(x, op) for x in loads(value))
    ):
        return None
    column = op.vars[-1]
    if any(column in variables(i) for i in place[:-1]) or stride_of(place[-1], column) != 1:
        return None

    def part(at: int, size: int, tile: Buffer) -> Body:
        made = Buffer(fresh_name("made"), tile.shape, tile.dtype, Space.FRAGMENT)
        here: dict[Var, Expr] = {op.vars[dim]: op.vars[dim] + at} if at else {}

        def over(inner: Op) -> Op:
            return rename_unique(Map(op.vars, tile.shape, (inner,)))

        makes = cast(substitute(value, here), made.dtype)
        where = tuple(substitute(i, here) for i in place)
        stores: Op = Store(tensor, where, Load(tile, op.vars))
        if cond is not TRUE:
            stores = If(substitute(cond, here), (stores,))
        return (
            Alloc(made),
            over(Store(made, op.vars, makes)),
            Copy(whole(made), whole(tile)),
            over(stores),
        )

    shape = tuple(int(e) for e in op.extents)
    return Staging(results[0].name, shape, tensor.dtype, dim, part)


def _by_matrix(kernel: Kernel) -> set[str]:
    """Fragments that matrix instructions prescribe, and those that maps make of them element by
    element."""
    found: set[str] = set()
    more = {op.c.buffer.name for op in walk_ops(kernel, Gemm) if op.atom in ("mma", "wgmma")}
    while not more <= found:
        found |= more
        more = {
            each.buffer.name
            for map_ in walk_ops(kernel, Map)
            for each in map_.body
            if isinstance(each, Store)
            and each.buffer.is_fragment
            and each.indices == map_.vars
            and any(x.buffer.name in found and x.indices == map_.vars for x in loads(each.value))
        }
    return found
