"""Copies: by threads between a fragment and memory, from memory to memory and into a peer's shared
memory; gathers by `cp.async`; bulk tensor copies in boxes.

Each thread moves the elements it holds, by vectors as wide as both sides allow (`access`). Where
several threads hold an element, one of them stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import product
from math import prod

import numpy as np

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, Var, const, logical_and, select, variables
from tilewright.ir.gather import Gather, gather_of
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import Layout
from tilewright.ir.op import Body, Copy, Intrinsic, Map, Op
from tilewright.ir.rewrite import rebuild
from tilewright.passes.canonicalize.rules import expand_op
from tilewright.passes.layout.addresses import (
    TileAddress,
    evaluate,
    tile_address,
)
from tilewright.passes.layout.shared_tiles import MOST_BOX, MOST_RANK, SLOT_BITS, fold, longest
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.access import (
    WIDEST,
    WORD,
    Access,
    Candidate,
    Groups,
    find_access,
    move,
)
from tilewright.passes.lower.lowering import Lowering, guarded
from tilewright.passes.lower.map_loops import MapLoop, map_loop, region_loop
from tilewright.passes.lower.maps import (
    check_single,
    copy_fragment,
    lower_map,
    map_layout,
    unrolled,
)
from tilewright.passes.lower.matrices import lower_ldmatrix, lower_stmatrix
from tilewright.passes.lower.vectors import batched, fitting, named_loads
from tilewright.passes.overlap.gathers import SIZES
from tilewright.passes.reasons import because
from tilewright.support.errors import CompileError

# what engines and instructions can be told about the L2 cache; `no_allocate` is about the L1 cache
POLICIES = ("evict_first", "evict_last")
MOST_UNDER_WAY = 8  # vectors that a thread has loaded before it stores the first
MOST_UNROLLED = 8  # batches of them in a row


# ── between a fragment and memory ────────────────────────────────────────────────────────────


def copy_memory(low: Lowering, op: Copy) -> Iterable[Op]:
    """Between a fragment and shared or global memory, by threads."""
    store = isinstance(op.src.buffer.layout, Fragment)
    held, memory = (op.src, op.dst) if store else (op.dst, op.src)
    if op.reduce is not None or memory.cta is not None:
        raise low.unsupported("copies by threads stay in the block and do not reduce")
    if not store:
        check_single(held.buffer, op)
    groups, access, register, own = _held(low, op, held, memory, store)
    low.touched = True
    body = move(low, access, (low.flat(held.buffer), register), groups.count, store)
    yield from access.align(low)
    yield from groups.emit(guarded(own, body))


def store_remote(low: Lowering, op: Copy) -> Iterable[Op]:
    """A fragment into a peer's shared memory: every element once, and by `remote_store` its bytes
    counted there."""
    counted = op.atom == "remote_store"
    if not isinstance(op.src.buffer.layout, Fragment) or op.dst.buffer.space is not Space.SHARED:
        raise low.unsupported("remote stores go from a fragment to shared memory")
    if counted and (op.dst.cta is None or op.barrier is None or op.barrier.cta is not op.dst.cta):
        raise CompileError(
            "a remote store and its barrier are in the same block of the cluster",
            expected="-> tile[…]@rank barrier=ready[…]@rank, with one rank",
        )
    if op.src.dtype != op.dst.dtype:
        raise low.unsupported(f"remote stores do not convert {op.src.dtype} to {op.dst.dtype}")
    groups, access, register, _ = _held(low, op, op.src, op.dst, True)
    words, rest = divmod(groups.count * op.src.dtype.bits, WORD)
    if rest:
        raise low.unsupported(f"remote stores move words of 32 bits, not one {op.src.dtype}")
    where = low.span(op.dst.buffer, access.start[0], groups.count, op.dst.cta)
    registers = low.span(op.src.buffer, register, groups.count)
    low.touched = low.touched or not counted
    barrier = (op.barrier,) if op.barrier is not None else ()
    name = "store_remote" if counted else "store_cluster"
    body = Intrinsic(name, (where, registers, *barrier), text=f"words={words}")
    yield from groups.emit(guarded(access.inside, (body,)))


def _held(
    low: Lowering, op: Copy, held: Region, memory: Region, store: bool
) -> tuple[Groups, Access, Expr, Expr]:
    """How threads move what they hold: in which groups, from or to where, the first register of a
    group, and whether its registers are the region's at all."""
    fragment = held.buffer.layout
    assert isinstance(fragment, Fragment)
    if held.static_tile != memory.static_tile:
        raise low.unsupported("the two sides of a copy have one shape")
    if memory.dtype.bits < 8 or held.dtype.bits < 8:
        raise low.unsupported(f"copies of {memory.dtype} by threads are not lowered")
    with low.restored():
        loop, kept, find = region_loop(low, held, op)
        low.unrolled[loop.var] = range(loop.values)
        register, var = find(), low.var("v")
        repeats = held.is_whole and loop.values != fragment.values
        place, access = Candidate(memory.at(kept)), None
        count = 1 if repeats else WIDEST // memory.dtype.bits
        while access is None:
            groups = Groups(loop, var, count)
            if count == 1 or (groups.are_whole() and _in_row(register, groups, held.dtype.bits)):
                access = find_access(groups, memory.buffer, place, region=memory)
            count //= 2
        own, inside = loop.guard(), access.inside
        if store:
            inside, own = logical_and(loop.first_copy(), logical_and(own, inside)), TRUE
        elif loop.inside is TRUE:  # otherwise what lies outside the region keeps its value
            inside, own = logical_and(own, inside), TRUE
        access = replace(access, inside=groups.at(inside), cache=op.cache)
        return groups, access, groups.at(register), groups.at(own)


def _in_row(register: Expr, groups: Groups, bits: int) -> bool:
    """Whether each group has consecutive registers from a whole word on. What else registers
    depend on, unrolled variables, moves them as a whole."""
    loop = groups.loop
    others = {v: np.int64(0) for v in variables(register) - {loop.var}}
    try:
        found = evaluate(register, {**others, loop.var: np.arange(loop.values)})
    except CompileError:
        return False
    table = np.broadcast_to(found, (loop.values,)).reshape(-1, groups.count)
    begins = table[:, 0] % max(WORD // bits, 1)
    return np.array_equal(table, table[:, :1] + np.arange(groups.count)) and not begins.any()


# ── from memory to memory ────────────────────────────────────────────────────────────────────


def copy_between(low: Lowering, op: Copy) -> Iterable[Op]:
    """Global to shared memory and back (or within), through registers or by `cp.async`: threads
    along the last dimension, vectors as wide as both sides allow."""
    if op.reduce is not None or op.src.cta is not None or op.dst.cta is not None:
        raise low.unsupported("copies by threads stay in the block and do not reduce")
    if Space.LOCAL in (op.src.buffer.space, op.dst.buffer.space):
        return _copy_alone(low, op)
    low.touched = True
    with low.restored():
        groups, source, target = _both_sides(low, op)
        if op.atom == "cp_async" and groups.count * op.src.dtype.bits // 8 in SIZES:
            return _cp_async(groups, source, target, MOST_UNROLLED)
        batch = fitting(groups.number, MOST_UNDER_WAY)
        size = (const(batch * groups.count),)
        piece = Buffer(low.var("piece").name, size, op.src.dtype, Space.LOCAL)
        return batched(groups, batch, [(source, piece)], [(target, piece)], MOST_UNROLLED)


def _copy_alone(low: Lowering, op: Copy) -> Iterable[Op]:
    """What each thread copies for itself, from or to its own array."""
    for region in (op.src, op.dst):
        if region.buffer.space is Space.FRAGMENT:
            raise low.unsupported(
                f"{region.buffer.name} is spread over threads, which do not copy it alone"
            )
    loops = expand_op(op, low.names)
    assert loops is not None
    return low.op(unrolled(loops))


def _both_sides(low: Lowering, op: Copy) -> tuple[Groups, Access, Access]:
    """How threads go over both sides of `op` together: the widest that both allow."""
    if op.src.static_tile != op.dst.static_tile:
        raise low.unsupported("the two sides of a copy have one shape")
    tile = op.src.static_tile
    shape = tile or (1,)
    widest = max(op.src.dtype.bits, op.dst.dtype.bits)
    if widest < 8:
        raise low.unsupported(f"copies of {op.src.dtype} by threads are not lowered")
    count, var = WIDEST // widest, low.var("v")
    while True:
        while shape[-1] % count:
            count //= 2
        names = tuple(low.var(f"i{d}") for d in range(len(shape)))
        loop = map_loop(low, coalesced(shape, low.instance.threads, count), names)
        groups = Groups(loop, var, count)
        found = []
        for region in (op.src, op.dst):
            place = Candidate(region.at(names if tile else ()))
            access = find_access(groups, region.buffer, place, region=region)
            if access is not None:
                found.append(replace(access, inside=groups.at(access.inside), cache=op.cache))
        if len(found) == 2:
            return groups, found[0], found[1]
        count //= 2


# ── by cp.async ──────────────────────────────────────────────────────────────────────────────


def lower_map_op(low: Lowering, op: Map) -> Iterable[Op]:
    """A map as its atom says."""
    found = gather_of(op) if op.atom is not None else None
    if found is None:
        return lower_map(low, op)
    with low.restored():
        result = _gathered(map_loop(low, map_layout(op), op.vars), op, found)
    if result is None:  # threads that load and store are done sooner than they need be
        because(low.kernel.name, op, "threads load and store: no vectors fit its layout")
        return lower_map(low, rebuild(op, atom=None))
    return result


def _gathered(loop: MapLoop, op: Map, found: Gather) -> Body | None:
    """Each thread finds the places of its vectors and copies them by the widest `cp.async` that its
    layout and both memories allow, zeros where a guard or the tensor's edge says so; None where
    none do."""
    low, load, inner = loop.low, found.load, len(op.vars)
    extents = (const(1),) * (len(found.store.indices) - inner) + op.extents
    starts = (*found.store.indices[:-inner], *(const(0) for _ in op.vars))
    tile = Region(found.store.buffer, starts, extents)
    kept = (v for v, e in zip(op.vars, op.extents, strict=True) if int(e) != 1)
    names: dict[Load, Var] = {}
    indices = tuple(named_loads(i, names) for i in load.indices)
    cond = named_loads(found.cond, names)
    wanted = Candidate(indices, cond, tuple((var, each) for each, var in names.items()))
    put, var = Candidate(tile.at(kept)), low.var("g")
    for size in SIZES:
        count = size * 8 // load.dtype.bits
        groups = Groups(loop, var, count)
        if not count or not groups.are_whole() or not low.begins_on(load.buffer, size):
            continue
        target = find_access(groups, tile.buffer, put, region=tile)
        source = find_access(groups, load.buffer, wanted, borders=True)
        if target is not None and source is not None:
            return _cp_async(groups, source, target, groups.number)
    return None


def _cp_async(groups: Groups, source: Access, target: Access, most: int) -> Body:
    """A copy a group; more than `most` of them are a loop."""
    loop, bits = groups.loop, source.buffer.dtype.bits
    low, size = loop.low, groups.count * bits // 8
    rows, source = source.found(low)
    amount: Expr = const(size)
    if source.ragged is not None:
        amount = source.ragged.amount(source.inside, bits // 8)
    elif source.inside is not TRUE:
        amount = select(source.inside, amount, const(0))
    text = f"bytes={size}" + (f" cache={source.cache}" if source.cache in POLICIES else "")
    args = (target.where(low), source.where(low), amount)
    body: Body = (*rows, Intrinsic("cp_async", args, text=text))
    for test in (groups.at(loop.guard()), loop.first_copy()):
        body = guarded(test, body)
    kind = "unroll" if groups.number <= most else "serial"
    return (*source.align(low), *groups.emit(body, kind))


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
            got=f"{box[-1]} elements of {bits} bits",
        )
    corners = []
    for at in product(*(range(0, e, b) for e, b in zip(shape, box, strict=True))):
        corners.append((at, sum(m(c) for m, c in zip(layouts, at, strict=True))))
    if any(offset * bits % SLOT_BITS for _, offset in corners):
        raise CompileError(
            f"the boxes of a bulk copy begin on multiples of 128 bytes in {address.buffer.name}",
            got=f"boxes of {'×'.join(map(str, box))} elements of {bits} bits",
            fix="copy by threads, or make rows shorter",
        )
    return Boxes(tuple(box), tuple(corners))


def _bulk(low: Lowering, op: Copy) -> Iterable[Op]:
    load = op.atom == "bulk_load"
    tensor, tile = (op.src, op.dst) if load else (op.dst, op.src)
    if tensor.buffer.rank > MOST_RANK:
        raise low.unsupported(f"bulk copies take tensors of rank up to {MOST_RANK}")
    # seen on an H200: a box that starts elsewhere is an illegal instruction
    if multiple_of(tensor.starts[-1], low.ranges) * tensor.dtype.bits % 128:
        raise CompileError(
            "a bulk copy starts at a multiple of 16 bytes along the innermost dimension",
            got=f"{tensor.starts[-1]} elements of {tensor.dtype}",
            fix="copy by threads, or say with `hint assume` what the start is a multiple of",
        )
    address = tile_address(tile, low.ranges, None)
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
        copies.append(Intrinsic(op.atom or "", tuple(args), text=text))
    yield from low.meet()
    yield from low.by_leader(*copies)


# ── which rule lowers which ──────────────────────────────────────────────────────────────────


def lower_copy(low: Lowering, op: Copy) -> Iterable[Op]:
    rule = COPIES.get(op.atom or "")
    if rule is None:
        raise low.unsupported(f"copies by {op.atom} are not lowered to threads yet")
    for region in (op.src, op.dst):
        if region.buffer.name in low.shifts and op.atom not in ("threads", "cp_async"):
            if op.atom in ("ldmatrix", "stmatrix"):
                return _threads(low, op)
            raise low.unsupported(
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


COPIES: dict[str, Callable[[Lowering, Copy], Iterable[Op]]] = {
    "bulk_load": _bulk,
    "bulk_store": _bulk,
    "remote_store": store_remote,
    "ldmatrix": lower_ldmatrix,
    "stmatrix": lower_stmatrix,
    "threads": _threads,
    "cp_async": copy_between,
}
