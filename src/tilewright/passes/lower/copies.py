"""Copies: by threads between a fragment and memory, from memory to memory and into a peer's shared
memory; gathers by `cp.async`; bulk tensor copies in boxes; matrices by `ldmatrix` and `stmatrix`.

Each thread moves the elements it holds, by vectors as wide as both sides allow (`access`). Where
several threads hold an element, one of them stores it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import product
from math import gcd, prod

import numpy as np

from tilewright.ir.gather import Gather, gather_of
from tilewright.ir.layout.query import fit_layout
from tilewright.passes.layout.shared_tiles import (
    MOST_BOX,
    MOST_RANK,
    SLOT_BITS,
    fold,
    is_row,
    longest,
)
from tilewright.passes.lower.access import (
    WIDEST,
    WORD,
    Access,
    Candidate,
    Groups,
    batched,
    find_access,
    move,
    split_offset,
)
from tilewright.passes.lower.core import *
from tilewright.passes.lower.maps import (
    check_single,
    lower_map,
    map_layout,
    named_loads,
    unrolled,
)
from tilewright.passes.overlap.prefetchable import SIZES
from tilewright.support.distinct import distinct

UINT32 = dtype("uint32")
PACK = {"bfloat16": "pack_bfloat16", "float16": "pack_float16"}
ROWS = 8  # of a matrix
ROW_BITS = 128
# what engines and instructions can be told about the L2 cache; `no_allocate` is about the L1 cache
POLICIES = ("evict_first", "evict_last")
MOST_UNDER_WAY = 8  # vectors that a thread has loaded before it stores the first
# Batches of them in a row; of cp.async as many of 16 bytes, or as many bytes by smaller ones, for
# each of which a loop would have 20 instructions, where a row of them has 6.
MOST_UNROLLED = 8


# ── between a fragment and memory ────────────────────────────────────────────────────────────


def copy_memory(low: Lowering, op: Copy) -> Iterable[Op]:
    """Between a fragment and shared or global memory; into a peer's shared memory every element
    once, and by `remote_store` its bytes counted there."""
    store = op.src.buffer.is_fragment
    held, memory = (op.src, op.dst) if store else (op.dst, op.src)
    if op.src.cta is not None:
        raise CompileError("copies by threads stay in the block")
    if not store:
        check_single(held.buffer)
    with low.restored():
        loop, kept, register = region_loop(low, held)
        var, place, access = low.var("v"), Candidate(memory.at(kept)), None
        repeats = held.is_whole and loop.values != int(low.flat(held.buffer).shape[0])
        count = 1 if repeats else WIDEST // memory.dtype.bits
        while access is None:
            groups = Groups(loop, var, count)
            if count == 1 or (groups.are_whole() and groups.in_row(register, held.dtype.bits)):
                access = find_access(groups, memory.buffer, place, region=memory)
            count //= 2
        own, inside = loop.guard(), access.inside
        if store:
            turn = int(memory.cta) if isinstance(memory.cta, Const) else 0
            inside, own = logical_and(loop.first_copy(turn), logical_and(own, inside)), TRUE
        elif loop.inside is TRUE:  # otherwise what lies outside the region keeps its value
            inside, own = logical_and(own, inside), TRUE
        access = replace(access, inside=groups.at(inside), cache=op.cache)
        first, own = groups.at(register), groups.at(own)
    low.touched = low.touched or op.atom != "remote_store"
    if memory.cta is not None:
        return groups.emit(guarded(access.inside, (_remote(low, op, groups, access, first),)))
    body = move(low, access, (low.flat(held.buffer), first), groups.count, store)
    return (*access.align(low), *groups.emit(guarded(own, body)))


def _remote(low: Lowering, op: Copy, groups: Groups, access: Access, register: Expr) -> Op:
    """A group of registers into a peer's shared memory."""
    if op.src.dtype != op.dst.dtype:
        raise CompileError(f"remote stores do not convert {op.src.dtype} to {op.dst.dtype}")
    words, rest = divmod(groups.count * op.src.dtype.bits, WORD)
    if rest:
        raise CompileError(f"remote stores move words of 32 bits, not one {op.src.dtype}")
    where = low.span(op.dst.buffer, access.start[0], groups.count, op.dst.cta)
    registers = low.span(op.src.buffer, register, groups.count)
    if op.barrier is None:
        return Intrinsic("store_cluster", (where, registers), text=f"words={words}")
    return Intrinsic("store_remote", (where, registers, op.barrier), text=f"words={words}")


def copy_fragment(low: Lowering, op: Copy) -> Iterable[Op]:
    """Registers to registers; float32 to 16 bits in pairs, one instruction each."""
    target = op.dst.buffer
    check_single(target)
    with low.restored():
        loop, kept, place = region_loop(low, op.dst)
        register = loop.register(op.src.buffer, op.src.at(kept))
    src, dst = low.flat(op.src.buffer), low.flat(target)
    count = int(dst.shape[0])
    pack = PACK.get(op.dst.dtype.name) if op.src.dtype.name == "float32" else None
    if pack is None or count % 2 or not op.dst.is_whole:
        value = cast(Load(src, (register,)), op.dst.dtype)
        body: Op = Store(dst, (place,), value)
        if op.dst.is_whole:
            return (unroll(loop.var, count, (body,)),)
        return loop.emit((body,))
    pair = low.var("v")
    inside = low.ranges.where(pair, 0, count // 2 - 1)
    places = [substitute(register, {loop.var: pair * 2 + i}) for i in (0, 1)]
    both = tuple(Load(src, (simplify(p, inside),)) for p in places)
    packed = Call(pack, both, UINT32)
    body = Intrinsic("store_packed", (low.span(target, pair * 2, 2), packed))
    return (unroll(pair, count // 2, (body,)),)


# ── from memory to memory ────────────────────────────────────────────────────────────────────


def copy_between(low: Lowering, op: Copy) -> Iterable[Op]:
    """Global to shared memory and back (or within), through registers or by `cp.async`: threads
    along the last dimension, vectors as wide as both sides allow."""
    if op.src.cta is not None or op.dst.cta is not None:
        raise CompileError("copies by threads stay in the block")
    low.touched = True
    with low.restored():
        groups, source, target = _both_sides(low, op)
        size = groups.count * op.src.dtype.bits // 8
        if op.atom == "cp_async" and size in SIZES:
            return _cp_async(groups, source, target, MOST_UNROLLED * SIZES[0] // size)
        batch = longest(groups.number, MOST_UNDER_WAY)
        piece = low.local("piece", op.src.dtype, batch * groups.count)
        return batched(groups, batch, [(source, piece)], [(target, piece)], MOST_UNROLLED)


def _both_sides(low: Lowering, op: Copy) -> tuple[Groups, Access, Access]:
    """How threads go over both sides of `op` together: the widest that both allow."""
    tile = op.src.static_tile
    shape = tile or (1,)
    count, var = WIDEST // max(op.src.dtype.bits, op.dst.dtype.bits), low.var("v")
    while True:
        count = gcd(shape[-1], count)
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


def cut_boxes(
    tensor: Region, address: TileAddress, ranges: Ranges
) -> tuple[tuple[int, ...], list[tuple[tuple[int, ...], int]]]:
    """The largest box whose elements lie densely in shared memory, fastest dimension last; for each
    copy the tensor coordinates and the element offset in shared memory of its corner.

    A box with one dimension more sees the tensor's innermost one in pieces as long as its last: so
    a row of any length travels at once."""
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
                    f"a bulk copy needs {tensor.name}'s fastest dimension contiguous in "
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
    return tuple(box), corners


def _bulk(low: Lowering, op: Copy) -> Iterable[Op]:
    load = op.atom == "bulk_load"
    tensor, tile = (op.src, op.dst) if load else (op.dst, op.src)
    if tensor.buffer.rank > MOST_RANK:
        raise CompileError(f"bulk copies take tensors of rank up to {MOST_RANK}")
    # seen on an H200: a box that starts elsewhere is an illegal instruction
    if multiple_of(tensor.starts[-1], low.ranges) * tensor.dtype.bits % 128:
        raise CompileError(
            "a bulk copy starts at a multiple of 16 bytes along the innermost dimension",
            got=f"{tensor.starts[-1]} elements of {tensor.dtype}",
            fix="copy by threads, or say with `hint assume` what the start is a multiple of",
        )
    address = low.address(tile, op.atom)
    if load and is_row(op, low.ranges):
        yield from low.meet()
        yield from low.by_leader(_row(low, op, address))
        return
    box, corners = cut_boxes(tensor, address, low.ranges)
    found = low.tensor_map(tensor.buffer, box, address.swizzle_bytes)
    starts = tensor.starts
    if len(box) > len(starts):
        starts = (*starts[:-1], starts[-1] // box[-1], const(0))
    text = f"map={found.name} rank={len(box)}"
    if op.cache in POLICIES:
        text += f" cache={op.cache}"
    if op.reduce:
        text += f" reduce={op.reduce}"
    if op.multicast is not None:
        text += " multicast=1"
    elif load and Feature.MULTICAST not in low.target.features:
        text += " to=block"
    copies: list[Op] = []
    for at, offset in corners:
        coords = [low.index(s + c) for s, c in zip(starts, at, strict=True)]
        where = low.span(address.buffer, low.simplify(address.base + offset), prod(box))
        args = (where, op.barrier, *reversed(coords), op.multicast)
        given = tuple(arg for arg in args if arg is not None)
        copies.append(Intrinsic(op.atom or "", given, text=text))
    yield from low.meet()
    yield from low.by_leader(*copies)


def _row(low: Lowering, op: Copy, address: TileAddress) -> Op:
    """A run of elements without a map of the tensor: what lies outside is not read."""
    tensor, bits = op.src, op.src.dtype.bits
    count = prod(tensor.static_tile)
    left = low.simplify(binary("min", const(count), tensor.buffer.shape[-1] - tensor.starts[-1]))
    amount = select(low.within(tensor.buffer, tensor.starts), left * (bits // 8), const(0))
    where = low.span(address.buffer, low.simplify(address.base), count)
    source = Region(low.flat(tensor.buffer), tensor.starts, tensor.extents)
    text = f"bytes={count * bits // 8}"
    if op.cache in POLICIES:
        text += f" cache={op.cache}"
    assert op.barrier is not None
    return Intrinsic("bulk_row", (where, source, low.simplify(amount), op.barrier), text=text)


# ── matrices ─────────────────────────────────────────────────────────────────────────────────
#
# An instruction moves one, two or four 8×8 matrices of eight rows of 16 bytes between shared memory
# and the registers of a warp. Lane 8·q + r names row r of matrix q; lane 4·r + c holds the c-th
# word of row r, or of column r when transposed. Which registers of a fragment are such matrices is
# read off its table, element by element.


def copy_matrices(low: Lowering, op: Copy) -> Iterable[Op]:
    """Between a fragment and shared memory; float32 becomes 16 bits on the way there."""
    store = op.atom == "stmatrix"
    region, memory = (op.src, op.dst) if store else (op.dst, op.src)
    pack = PACK.get(op.dst.dtype.name) if store and op.src.dtype.name == "float32" else None
    if pack is None and (op.src.dtype != op.dst.dtype or op.src.dtype.bits not in (8, 16, 32)):
        raise CompileError(f"{op.atom} from {op.src.dtype} to {op.dst.dtype}")
    if memory.cta is not None or op.reduce is not None:
        raise CompileError(f"{op.atom} stays in the block and does not reduce")
    if len(region.static_tile) != 2:
        raise CompileError(f"{op.atom} moves matrices, not tiles of {region.static_tile}")
    low.check_whole(op.atom or "", WARP)
    held, address = Held(low, region), low.address(memory, op.atom)
    if not store:
        check_single(region.buffer)
    elif len(distinct(held.table)) != held.table.size:
        raise CompileError(f"stmatrix: several threads hold elements of {region.name}")
    matrices, trans, places, steps = _find(low, held, address, op, consecutive=pack is None)
    size = matrices * (2 if pack is not None else WORD // region.dtype.bits)
    var, lets, count = low.var("v"), list[Op](), len(steps)
    place = low.simplify(layout_expr(fit_layout(places), low.instance.thread))
    where = split_offset(low, address, (place, places), steps, var, lets)
    if where is None:
        raise CompileError("this address is not a simple function of the threads")
    row = low.span(address.buffer, where, ROW_BITS // address.buffer.dtype.bits)
    text = f"count={matrices} trans={int(trans)}"
    with low.restored():
        low.unrolled[var] = range(count)
        if pack is not None:
            source = low.flat(region.buffer)
            each = [Load(source, (held.first(i, 1, var, size),)) for i in range(size)]
            words = [Call(pack, (each[i], each[i + 1]), UINT32) for i in range(0, size, 2)]
            args: tuple[Expr | Region, ...] = (row, *words)
        else:
            span = low.span(region.buffer, held.first(0, size, var, size), size)
            args = (row, span) if store else (span, row)
    if store:
        text += " from=words" if pack is None else " from=values"
    low.touched = True
    body = Intrinsic(op.atom or "", args, text=text)
    return (*lets, body if count == 1 else unroll(var, count, (body,)))


def _find(
    low: Lowering, held: Held, address: TileAddress, op: Copy, consecutive: bool
) -> tuple[int, bool, Indices, Indices]:
    """How the fragment's registers are matrices of shared memory: the most an instruction takes,
    whether it transposes them, and the places [thread] and steps [instruction] whose sum is where
    the row lies that a thread names, before the swizzle."""
    bits = address.buffer.dtype.bits
    row, word = ROW_BITS // bits, WORD // bits
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
        # lane 8q + r of the i-th instruction: [warp, i, q, r]; lanes after repeat the first
        named = np.tile(first.reshape(len(first), -1, count * ROWS), (1, 1, 4 // count))
        table = named.transpose(0, 2, 1).reshape(low.instance.threads, -1)
        places, steps = table[:, 0] - table[0, 0], table[0]
        if not np.array_equal(table, places[:, None] + steps):
            continue
        try:
            fit_layout(places)
        except LayoutError:
            continue
        return count, trans, places, steps
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
        f"the registers of {held.region.name} are not matrices that {op.atom} moves",
        expected="lane 4·r + c holds 32 bits of row r (or column r) of 8×8 matrices",
        got=repr(held.fragment),
        fix="copy with atom=threads",
    )


# ── which rule lowers which ──────────────────────────────────────────────────────────────────


def lower_copy(low: Lowering, op: Copy) -> Iterable[Op]:
    atom = op.atom or ""
    shifted = any(r.name in low.shifts for r in (op.src, op.dst))
    if shifted and atom in ("ldmatrix", "stmatrix"):
        atom = "threads"
    return COPIES[atom](low, op)


def _threads(low: Lowering, op: Copy) -> Iterable[Op]:
    source, target = op.src.space, op.dst.space
    held = Space.FRAGMENT in (source, target)
    if Space.LOCAL in (source, target):
        return _alone(low, op)
    if source is target and held:
        return copy_fragment(low, op)
    return copy_memory(low, op) if held else copy_between(low, op)


def _alone(low: Lowering, op: Copy) -> Iterable[Op]:
    """What each thread copies for itself, from or to its own array."""
    for region in (op.src, op.dst):
        if region.buffer.is_fragment:
            raise CompileError(f"{region.name} is spread over threads, which do not copy it alone")
    loops = expand_op(op, low.names)
    assert loops is not None
    return low.op(unrolled(loops))


def _remote_store(low: Lowering, op: Copy) -> Iterable[Op]:
    if not op.src.buffer.is_fragment:
        raise CompileError("remote stores go from a fragment to shared memory")
    if op.dst.cta is None or op.barrier is None or op.barrier.cta is not op.dst.cta:
        raise CompileError(
            "a remote store and its barrier are in the same block of the cluster",
            expected="-> tile[…]@rank barrier=ready[…]@rank, with one rank",
        )
    return copy_memory(low, op)


COPIES: dict[str, Callable[[Lowering, Copy], Iterable[Op]]] = {
    "bulk_load": _bulk,
    "bulk_store": _bulk,
    "remote_store": _remote_store,
    "ldmatrix": copy_matrices,
    "stmatrix": copy_matrices,
    "threads": _threads,
    "cp_async": copy_between,
}
