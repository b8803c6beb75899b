"""Matrix loads and stores: 8×8 matrices between shared memory and the registers of a warp.

An instruction moves one, two or four matrices of eight rows of 16 bytes. Lane 8·q + r names row r
of matrix q; lane 4·r + c holds the c-th word of row r, or of column r when transposed. Which
registers of a fragment are such matrices is read off its table, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.analysis.bounds import multiple_of
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Call, Expr, Load, Var
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import Indices, LayoutError
from tilewright.ir.layout.query import fit_layout
from tilewright.ir.op import Copy, Intrinsic, Op
from tilewright.passes.layout.addresses import TileAddress, layout_expr, tile_address
from tilewright.passes.lower.access import split_offset
from tilewright.passes.lower.lowering import WARP, Lowering, unroll
from tilewright.passes.lower.map_loops import Held
from tilewright.passes.lower.maps import PACK, UINT32, check_single
from tilewright.support.distinct import distinct
from tilewright.support.errors import CompileError

ROWS = 8  # of a matrix
ROW_BITS = 128
WORD_BITS = 32


@dataclass(frozen=True)
class Matrices:
    """Instructions of `count` matrices each: `places[thread]` + `steps[i]` is where the row lies
    that a thread names in the i-th, before the swizzle."""

    count: int
    trans: bool
    places: Indices
    steps: Indices


def lower_stmatrix(low: Lowering, op: Copy) -> Iterable[Op]:
    """A fragment into shared memory; float32 becomes 16 bits on the way."""
    pack = PACK.get(op.dst.dtype.name) if op.src.dtype.name == "float32" else None
    if pack is None:
        _check_types(low, op)
    held, address = _sides(low, op, op.src, op.dst)
    if len(distinct(held.table)) != held.table.size:
        raise low.unsupported(f"stmatrix: several threads hold elements of {_name(op.src)}")
    found = _find(low, held, address, op, consecutive=pack is None)
    size = found.count * (WORD_BITS // op.dst.dtype.bits if pack is None else 2)

    def words(var: Var) -> tuple[Expr | Region, ...]:
        if pack is None:
            return (low.span(op.src.buffer, held.first(0, size, var, size), size),)
        source = low.flat(op.src.buffer)
        values = [Load(source, (held.first(i, 1, var, size),), op.loc) for i in range(size)]
        return tuple(Call(pack, (values[i], values[i + 1]), UINT32) for i in range(0, size, 2))

    kind = " from=words" if pack is None else " from=values"
    return _move(low, op, address, found, lambda row, var: (row, *words(var)), kind)


def lower_ldmatrix(low: Lowering, op: Copy) -> Iterable[Op]:
    """Shared memory into a fragment."""
    _check_types(low, op)
    held, address = _sides(low, op, op.dst, op.src)
    check_single(op.dst.buffer, op)
    found = _find(low, held, address, op, consecutive=True)
    size = found.count * WORD_BITS // op.dst.dtype.bits

    def operands(row: Region, var: Var) -> tuple[Region, Region]:
        return low.span(op.dst.buffer, held.first(0, size, var, size), size), row

    return _move(low, op, address, found, operands)


def _move(
    low: Lowering,
    op: Copy,
    address: TileAddress,
    found: Matrices,
    operands: Callable[[Region, Var], tuple[Expr | Region, ...]],
    kind: str = "",
) -> Iterable[Op]:
    """Instructions whose `operands` are made of the row that a thread names and a number."""
    var, lets, count = low.var("v"), list[Op](), len(found.steps)
    place = low.simplify(layout_expr(fit_layout(found.places), low.instance.thread))
    where = split_offset(low, address, (place, found.places), found.steps, var, lets)
    if where is None:
        raise CompileError("this address is not a simple function of the threads")
    row = low.span(address.buffer, where, ROW_BITS // address.buffer.dtype.bits)
    with low.restored():
        low.unrolled[var] = range(count)
        args = operands(row, var)
    low.touched = True
    text = f"count={found.count} trans={int(found.trans)}{kind}"
    body = Intrinsic(op.atom or "", args, text=text)
    return (*lets, body if count == 1 else unroll(var, count, (body,)))


def _name(region: Region) -> str:
    return region.buffer.name


def _check_types(low: Lowering, op: Copy) -> None:
    if op.src.dtype != op.dst.dtype or op.src.dtype.bits not in (8, 16, 32):
        raise low.unsupported(f"{op.atom} from {op.src.dtype} to {op.dst.dtype}")


def _sides(low: Lowering, op: Copy, held: Region, memory: Region) -> tuple[Held, TileAddress]:
    if not isinstance(held.buffer.layout, Fragment) or memory.buffer.space is not Space.SHARED:
        raise low.unsupported(f"{op.atom} moves between a fragment and shared memory")
    if memory.cta is not None or op.reduce is not None:
        raise low.unsupported(f"{op.atom} stays in the block and does not reduce")
    if len(held.static_tile) != 2 or held.static_tile != memory.static_tile:
        raise low.unsupported(f"{op.atom} moves matrices, not tiles of {held.static_tile}")
    if low.instance.threads % WARP:
        raise low.unsupported(f"{op.atom} runs in whole warps")
    return Held(low, held, op), tile_address(memory, low.ranges, None)


def _find(low: Lowering, held: Held, address: TileAddress, op: Copy, consecutive: bool) -> Matrices:
    """How the fragment's registers are matrices of shared memory; the most an instruction takes."""
    bits = address.buffer.dtype.bits
    row, word = ROW_BITS // bits, WORD_BITS // bits
    offsets = address.offsets()
    inner = _contiguous(low, address, offsets, row, op)
    if held.values % word:
        raise _no_matrices(held, op)
    rows, columns = (c.reshape(-1, WARP, held.values // word, word) for c in held.coords())
    lane, element = np.arange(WARP)[:, None, None], np.arange(word)
    # along a word, then across words
    for along in (inner, 1 - inner) if bits == 16 else (inner,):
        near, far = (columns, rows) if along else (rows, columns)
        near0, far0 = near[:, :1, :, :1], far[:, :1, :, :1]
        # rows that memory holds may be named in any order: a lane's words need not be neighbours'
        apart = int(near.flat[near.shape[-2] * word] - near.flat[0]) if along != inner else word
        if np.array_equal(near, near0 + lane % 4 * apart + element) and np.array_equal(
            far, np.broadcast_to(far0 + lane // 4, far.shape)
        ):
            break
    else:
        raise _no_matrices(held, op)
    trans = along != inner
    # the first element of every row that memory holds: [warp, matrix, row]
    step = np.arange(ROWS)
    starts = [near0[:, 0, :, :], far0[:, 0, :, :]]
    if trans:
        starts[0] = starts[0] + step // word * apart + step % word
    else:
        starts[1] = starts[1] + step
    shape = np.broadcast_shapes(*(s.shape for s in starts))
    near_at, far_at = (np.broadcast_to(s, shape) for s in starts)
    first = offsets[(far_at, near_at) if along else (near_at, far_at)]
    if (first % row).any():
        raise _unaligned(address, op)
    matrices = first.shape[1]
    for count in (4, 2, 1):
        if matrices % count or (consecutive and not held.runs(count * word)):
            continue
        # lane 8q + r of the i-th instruction: [warp, i, q, r]; lanes behind repeat the first
        named = np.tile(first.reshape(len(first), -1, count * ROWS), (1, 1, 4 // count))
        table = named.transpose(0, 2, 1).reshape(low.instance.threads, -1)
        places, steps = table[:, 0] - table[0, 0], table[0]
        if not np.array_equal(table, places[:, None] + steps):
            continue
        try:
            fit_layout(places)
        except LayoutError:
            continue
        return Matrices(count, trans, places, steps)
    raise CompileError(
        f"{op.atom}: where {address.buffer.name} keeps the rows is no simple function of the "
        "threads",
        expected="whole matrices in consecutive registers",
        got=f"{held.fragment} in {address.buffer.layout}",
        fix="copy with atom=threads",
    )


def _contiguous(low: Lowering, address: TileAddress, offsets: Indices, row: int, op: Copy) -> int:
    """The dimension along which shared memory holds aligned rows of 16 bytes."""
    swizzle = address.swizzle
    fits = multiple_of(address.base, low.ranges) % row == 0 and (
        not swizzle.bits or (1 << swizzle.base) % row == 0
    )
    for dim in (1, 0):
        table = offsets if dim else offsets.T
        if not fits or table.shape[1] % row:
            continue
        pieces = table.reshape(len(table), -1, row)
        if np.array_equal(pieces, pieces[:, :, :1] + np.arange(row)):
            return dim
    raise _unaligned(address, op)


def _unaligned(address: TileAddress, op: Copy) -> CompileError:
    return CompileError(
        f"{op.atom} needs rows of 16 contiguous bytes in {address.buffer.name}, aligned to 16",
        got=repr(address.buffer.layout),
        fix="pad rows to a multiple of 16 bytes, or copy with atom=threads",
    )


def _no_matrices(held: Held, op: Copy) -> CompileError:
    return CompileError(
        f"the registers of {_name(held.region)} are not matrices that {op.atom} moves",
        expected="lane 4·r + c holds 32 bits of row r (or column r) of 8×8 matrices",
        got=repr(held.fragment),
        fix="copy with atom=threads",
    )
