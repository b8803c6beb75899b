"""Copies: which rule lowers which, and bulk tensor copies in boxes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product
from math import prod

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Region
from tilewright.ir.expr import Expr, const
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import Layout
from tilewright.ir.op import Copy, Intrinsic, Op
from tilewright.passes.layout.addresses import (
    TileAddress,
    tile_address,
)
from tilewright.passes.layout.shared_tiles import MOST_BOX, MOST_RANK, SLOT_BITS, fold, longest
from tilewright.passes.lower.lowering import Lowering
from tilewright.passes.lower.maps import copy_fragment
from tilewright.passes.lower.matrices import lower_ldmatrix, lower_stmatrix
from tilewright.passes.lower.moves import POLICIES, copy_between, copy_memory, store_remote
from tilewright.support.errors import CompileError


def lower_copy(low: Lowering, op: Copy) -> Iterable[Op]:
    rule = COPIES.get(op.atom or "")
    if rule is None:
        raise low.unsupported(op, f"copies by {op.atom} are not lowered to threads yet")
    for region in (op.src, op.dst):
        if region.buffer.name in low.shifts and op.atom not in ("threads", "cp_async"):
            if op.atom in ("ldmatrix", "stmatrix"):
                return _threads(low, op)
            raise low.unsupported(
                op,
                f"{region.buffer.name} begins at a place known only at run time, which {op.atom} "
                "cannot say",
                "copy it by threads",
            )
    return rule(low, op)


def _threads(low: Lowering, op: Copy) -> Iterable[Op]:
    source, target = (isinstance(r.buffer.layout, Fragment) for r in (op.src, op.dst))
    if source and op.dst.cta is not None:
        return store_remote(low, op)
    if source and target:
        return copy_fragment(low, op)
    if source or target:
        return copy_memory(low, op)
    return copy_between(low, op)


# ── bulk tensor copies ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Boxes:
    """A tile cut into boxes: `box` per dimension of the tensor, and for each copy the tensor
    coordinates and the element offset in shared memory of its corner.

    A box with one dimension more sees the tensor's innermost one in pieces as long as its last: so
    a row of any length travels at once.
    """

    box: tuple[int, ...]
    corners: tuple[tuple[tuple[int, ...], int], ...]


def cut_boxes(tensor: Region, address: TileAddress, op: Copy, ranges: Ranges) -> Boxes:
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
    piece = fold(tensor, ranges) if not span and layouts[-1].modes()[0] == (shape[-1], 1) else 0
    if piece:
        layouts[-1:] = [Layout(shape[-1] // piece, piece), Layout(piece, 1)]
        shape = (*shape[:-1], shape[-1] // piece, piece)
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
                    got=repr(address.buffer.layout),
                )
            break
        most = MOST_BOX
        if pitch == 1 and span:
            most = span * 8 // bits
        box[dim] = longest(extent, most)
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
    if any(offset * bits % SLOT_BITS for _, offset in corners):
        raise CompileError(
            f"the boxes of a bulk copy begin on multiples of 128 bytes in {address.buffer.name}",
            loc=op.loc,
            got=f"boxes of {'×'.join(map(str, box))} elements of {bits} bits",
            fix="copy by threads, or make rows shorter",
        )
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
    boxes = cut_boxes(tensor, address, op, low.ranges)
    found = low.tensor_map(tensor.buffer, boxes.box, address.swizzle_bytes)
    words = {"map": found.name, "rank": str(len(boxes.box))}
    starts = tensor.starts
    if len(boxes.box) > len(starts):
        starts = (*starts[:-1], starts[-1] // boxes.box[-1], const(0))
    if op.cache in POLICIES:
        words["cache"] = op.cache
    if op.reduce:
        words["reduce"] = op.reduce
    if op.multicast is not None:
        words["multicast"] = "1"
    elif load and not low.reaches_peers:
        words["to"] = "block"
    text = " ".join(f"{k}={v}" for k, v in words.items())
    count = prod(boxes.box)
    copies: list[Op] = []
    for at, offset in boxes.corners:
        coords = [low.index(s + c) for s, c in zip(starts, at, strict=True)]
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


COPIES: dict[str, Callable[[Lowering, Copy], Iterable[Op]]] = {
    "bulk_load": _bulk,
    "bulk_store": _bulk,
    "remote_store": store_remote,
    "ldmatrix": lower_ldmatrix,
    "stmatrix": lower_stmatrix,
    "threads": _threads,
    "cp_async": copy_between,
}
