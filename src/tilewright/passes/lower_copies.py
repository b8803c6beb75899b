"""Copies: bulk tensor copies in boxes, matrix stores and loads, and copies by threads."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.bounds import multiple_of
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Call, Expr, Load, Var, const
from tilewright.ir.fragment import Fragment, wgmma_accumulator
from tilewright.ir.layout import Layout
from tilewright.ir.op import Copy, For, Intrinsic, Op
from tilewright.ir.simplify import simplify
from tilewright.passes.addresses import (
    TileAddress,
    fit_index,
    layout_expr,
    registers_of,
    sub_tile,
    swizzle_expr,
    tile_address,
)
from tilewright.passes.lower_maps import PACK, UINT32, check_single, copy_fragment
from tilewright.passes.lower_moves import copy_memory, store_remote
from tilewright.passes.lowering import Lowering
from tilewright.support.errors import CompileError

MOST_BOX = 256
MOST_RANK = 5


def lower_copy(low: Lowering, op: Copy) -> Iterable[Op]:
    rule = COPIES.get(op.atom or "")
    if rule is None:
        raise low.unsupported(op, f"copies by {op.atom} are not lowered to threads yet")
    return rule(low, op)


def _threads(low: Lowering, op: Copy) -> Iterable[Op]:
    source, target = (isinstance(r.buffer.layout, Fragment) for r in (op.src, op.dst))
    if source and target:
        return copy_fragment(low, op)
    if source or target:
        return copy_memory(low, op)
    raise low.unsupported(op, "copies by threads are lowered from or to fragments only")


# ── bulk tensor copies ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Boxes:
    """A tile cut into boxes: `box` per dimension of the tensor, and for each copy the tensor
    coordinates and the element offset in shared memory of its corner."""

    box: tuple[int, ...]
    corners: tuple[tuple[tuple[int, ...], int], ...]


def cut_boxes(tensor: Region, address: TileAddress, op: Copy) -> Boxes:
    """The largest boxes whose elements lie densely in shared memory, fastest dimension last."""
    shape = tuple(int(e) for e in tensor.extents)
    bits = tensor.dtype.bits
    span = address.swizzle_bytes
    if span < 0:
        raise CompileError(
            f"bulk copies do not know the swizzle of {address.buffer.name}",
            loc=op.loc,
            expected="one of 128, 64 or 32 bytes, in units of 16",
            got=str(address.swizzle),
        )
    modes = iter(address.modes)
    layouts = [Layout(1, 0) if e == 1 else next(modes) for e in shape]
    box = [1] * len(shape)
    pitch = 1
    for dim in reversed(range(len(shape))):
        extent, stride = layouts[dim].modes()[0]
        if extent == 1:
            continue
        if stride != pitch:
            if pitch == 1:
                raise CompileError(
                    f"a bulk copy needs {tensor.buffer.name}'s fastest dimension contiguous in "
                    f"{address.buffer.name}",
                    loc=op.loc,
                    got=str(address.buffer.layout),
                )
            break
        most = MOST_BOX
        if pitch == 1 and span:
            most = span * 8 // bits
        box[dim] = max(d for d in range(1, min(extent, most) + 1) if extent % d == 0)
        pitch *= box[dim]
        if box[dim] != extent:
            break
    if box[-1] * bits % 128:
        raise CompileError(
            "the rows of a bulk copy are multiples of 16 bytes",
            loc=op.loc,
            got=f"{box[-1]} elements of {bits} bits",
        )
    corners = []
    for at in product(*(range(0, e, b) for e, b in zip(shape, box, strict=True))):
        corners.append((at, sum(m(c) for m, c in zip(layouts, at, strict=True))))
    return Boxes(tuple(box), tuple(corners))


def _bulk(low: Lowering, op: Copy) -> Iterable[Op]:
    load = op.atom == "bulk_load"
    tensor, tile = (op.src, op.dst) if load else (op.dst, op.src)
    if tensor.buffer.rank > MOST_RANK:
        raise low.unsupported(op, f"bulk copies take tensors of rank up to {MOST_RANK}")
    # seen on an H200: a box that starts elsewhere is an illegal instruction
    if multiple_of(tensor.starts[-1], low.ranges) * tensor.dtype.bits % 128:
        raise CompileError(
            "a bulk copy starts at a multiple of 16 bytes along the innermost dimension",
            loc=op.loc,
            got=f"{tensor.starts[-1]} elements of {tensor.dtype}",
            fix="copy by threads, or say with `hint assume` what the start is a multiple of",
        )
    address = tile_address(tile, low.ranges, op.loc)
    boxes = cut_boxes(tensor, address, op)
    found = low.tensor_map(tensor.buffer, boxes.box, address.swizzle_bytes)
    words = {"map": found.name, "rank": str(tensor.buffer.rank)}
    if op.cache:
        words["cache"] = op.cache
    if op.reduce:
        words["reduce"] = op.reduce
    if op.multicast is not None:
        words["multicast"] = "1"
    text = " ".join(f"{k}={v}" for k, v in words.items())
    count = prod(boxes.box)
    copies: list[Op] = []
    for at, offset in boxes.corners:
        coords = [low.simplify(s + c) for s, c in zip(tensor.starts, at, strict=True)]
        where = low.span(address.buffer, low.simplify(address.base + offset), count)
        args: list[Expr | Region] = [where]
        if op.barrier is not None:
            args.append(op.barrier)
        args += reversed(coords)
        if op.multicast is not None:
            args.append(op.multicast)
        copies.append(Intrinsic(op.atom or "", tuple(args), text=text, loc=op.loc))
    yield from low.meet(op.loc)
    yield from low.by_leader(*copies)


# ── matrix stores and loads ──────────────────────────────────────────────────────────────────


def _stmatrix(low: Lowering, op: Copy) -> Iterable[Op]:
    pack = PACK.get(op.dst.dtype.name)
    if pack is None or op.src.dtype.name != "float32":
        raise low.unsupported(op, f"stmatrix from {op.src.dtype} to {op.dst.dtype}")
    source = low.flat(op.src.buffer)

    def store(registers: list[Expr], where: Region) -> Op:
        values = [Load(source, (r,), op.loc) for r in registers]
        packed = [Call(pack, (values[i], values[i + 1]), UINT32) for i in range(0, 8, 2)]
        return Intrinsic("stmatrix", (where, *packed), loc=op.loc)

    return _matrices(low, op, op.src, op.dst, store)


def _ldmatrix(low: Lowering, op: Copy) -> Iterable[Op]:
    if op.src.dtype != op.dst.dtype or op.src.dtype.bits != 16:
        raise low.unsupported(op, f"ldmatrix from {op.src.dtype} to {op.dst.dtype}")
    check_single(op.dst.buffer, op)

    def load(registers: list[Expr], where: Region) -> Op:
        first = registers[0]
        if any(simplify(r - first) is not const(i) for i, r in enumerate(registers)):
            raise CompileError(
                f"ldmatrix fills consecutive registers, {op.dst.buffer.name} has others",
                loc=op.loc,
                got=str(op.dst.buffer.layout),
            )
        return Intrinsic("ldmatrix", (low.span(op.dst.buffer, first, 8), where), loc=op.loc)

    return _matrices(low, op, op.dst, op.src, load)


def _matrices(
    low: Lowering,
    op: Copy,
    held: Region,
    memory: Region,
    instruction: Callable[[list[Expr], Region], Op],
) -> Iterable[Op]:
    """Four 8×8 matrices of 16 bits an instruction: 16 rows by 16 columns of each warp."""
    fragment = held.buffer.layout
    if not isinstance(fragment, Fragment) or memory.buffer.space is not Space.SHARED:
        raise low.unsupported(op, f"{op.atom} moves between a fragment and shared memory")
    rows, columns = held.static_tile
    if rows % 64 or columns % 16 or low.instance.threads != 128:
        raise low.unsupported(
            op, f"{op.atom} is lowered for tiles of 64·i rows and 16·j columns in a warpgroup"
        )
    address = tile_address(memory, low.ranges, op.loc)
    _check_rows(low, address, op)
    atom = wgmma_accumulator(64, 16)

    row_var, column_var = low.var("r"), low.var("c")
    loops = [(row_var, range(0, rows, 64)), (column_var, range(0, columns, 16))]
    before = dict(low.unrolled)
    low.unrolled.update({v: range(len(r)) for v, r in loops})
    extents = [int(e) for e in held.extents]

    def register(value: int) -> Expr:
        def index(starts: tuple[int, ...]) -> int:
            *corner, i, j = starts
            box, _ = sub_tile(fragment.tile, corner, extents)
            part = box[i * 64 : i * 64 + 64, j * 16 : j * 16 + 16]
            needed = part.reshape(-1)[atom.table()]
            return registers_of(fragment, needed, held.buffer.name, op.loc)[value]

        return low.register_index((*held.starts, row_var, column_var), index, op.loc)

    registers = [register(v) for v in range(8)]
    # lane 8·q + r gives the address of row r of matrix q: rows 0-7, 8-15, then columns 8-15
    lets, offset = swizzled_offset(
        low,
        address,
        lambda t: (t // 32 * 16 + t % 16, t // 16 % 2 * 8),
        ((row_var, 64), (column_var, 16)),
        op,
    )
    yield from lets
    body = instruction(registers, low.span(memory.buffer, offset, 8))
    for var, values_of in reversed(loops):
        body = For(var, const(0), const(len(values_of)), (body,), kind="unroll", loc=op.loc)
    low.unrolled = before
    low.touched = True
    yield body


def _check_rows(low: Lowering, address: TileAddress, op: Copy) -> None:
    table = address.offsets()
    first = table[:, ::8]
    contiguous = all(np.array_equal(table[:, i::8], first + i) for i in range(8))
    aligned = not (first % 8).any() and multiple_of(address.base, low.ranges) % 8 == 0
    swizzle = address.swizzle
    if not contiguous or not aligned or (swizzle.bits and swizzle.base < 3):
        raise CompileError(
            f"{op.atom} needs rows of 16 contiguous bytes in {address.buffer.name}",
            loc=op.loc,
            got=str(address.buffer.layout),
        )


def swizzled_offset(
    low: Lowering,
    address: TileAddress,
    coords: Callable[[Any], tuple[Any, ...]],
    steps: Sequence[tuple[Var, int]],
    op: Copy,
) -> tuple[list[Op], Expr]:
    """The offset of the element at `coords(thread)` plus `steps` (an unrolled variable and what
    it advances, per dimension), and what has to be computed before.

    The swizzle is linear over bits: where the threads' part, the unrolled part and the base share
    none, each is swizzled by itself, and the unrolled part becomes a constant.
    """
    thread = low.instance.thread
    parts = [layout_expr(m, c) for m, c in zip(address.modes, coords(thread), strict=True)]
    place = low.simplify(sum(parts, const(0)))
    numbers = np.arange(low.instance.threads, dtype=np.int64)
    places = sum(
        (m.at(c) for m, c in zip(address.modes, coords(numbers), strict=True)),
        np.zeros_like(numbers),
    )
    table = np.zeros((), np.int64)
    for mode, (_, step) in zip(address.modes, steps, strict=True):
        table = np.add.outer(table, mode.at(np.arange(0, mode.size(), step)))
    swizzle = address.swizzle
    names = [v for v, _ in steps]
    shared = int(np.bitwise_or.reduce(places)) & int(np.bitwise_or.reduce(table, axis=None))
    period = 1 << (swizzle.base + swizzle.shift + swizzle.bits)
    if not swizzle.bits or (not shared and not multiple_of(address.base, low.ranges) % period):
        step_expr = fit_index(swizzle(table), names)
        if step_expr is not None:
            at, let = low.let("at", low.simplify(swizzle_expr(swizzle, place)), op.loc)
            inner = at ^ step_expr if swizzle.bits else at + step_expr
            return [let], low.simplify(address.base + inner)
    plain = fit_index(table, names)
    if plain is None:
        raise CompileError("this address is not a simple function of the threads", loc=op.loc)
    at, let = low.let("at", low.simplify(address.base + place), op.loc)
    return [let], swizzle_expr(swizzle, at + plain)


COPIES: dict[str, Callable[[Lowering, Copy], Iterable[Op]]] = {
    "bulk_load": _bulk,
    "bulk_store": _bulk,
    "remote_store": store_remote,
    "ldmatrix": _ldmatrix,
    "stmatrix": _stmatrix,
    "threads": _threads,
}
