"""Instructions that return before they are done: bulk tensor copies, stores into peers, and
products by warpgroups. What they touch is checked when they are issued; their data moves later."""

from __future__ import annotations

import typing
from collections.abc import Callable
from functools import lru_cache, partial
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES
from tilewright.machine.core import *
from tilewright.machine.ops import find_cells, home, of_lane, ranks_of
from tilewright.machine.thread_agents import *
from tilewright.machine.thread_ops import *

_SPANS = {0: 0, 1: 128, 2: 64, 3: 32}  # bytes that a descriptor's two swizzle bits stand for


def swizzled(address: Any, span: int) -> Any:
    """Where the byte at `address` goes under a swizzle of `span` bytes: units of 16 bytes within
    the span are exchanged by the number of the 128-byte line.

    >>> [swizzled(128 * line, 128) - 128 * line for line in range(4)]
    [0, 16, 32, 48]
    """
    lines = max(span // 16 - 1, 0)
    return address ^ ((address >> 7 & lines) << 4)


@lru_cache(256)
def operand_addresses(code: int, mn: int, k: int, size: int, mn_major: bool) -> Array:
    """The byte addresses [mn, k] of the matrix that descriptor `code` names, elements of `size`
    bytes; not to be written."""
    start, leading, stride = ((code >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    span = _SPANS[code >> 62]
    i, j = np.ogrid[:mn, :k]
    if mn_major:
        row = (span or 16) // size  # elements of a column of the atom, which is eight k deep
        columns, depth = (leading, stride) if span else (stride, leading)
        offset = (i % row * size + i // row * columns) + (j % 8 * (span or 16) + j // 8 * depth)
    elif span:
        offset = (i % 8 * span + i // 8 * stride) + j * size
    else:
        unit = 16 // size
        offset = (i % 8 * 16 + i // 8 * stride) + (j % unit * size + j // unit * leading)
    found: Array = np.asarray(swizzled(start + offset, span), np.int64)
    found.flags.writeable = False
    return found


def _launch(
    fr: Frame,
    op: Intrinsic,
    fetch: Callable[[], Array],
    store: Callable[[Array], None],
    groups: Groups | None = None,
) -> Transfer:
    """Let an op fly, in a group where it completes with one."""
    pending = fr.agent.block.cluster.pending
    t = Transfer(op, pending, fetch, store)
    pending.append(t)
    if groups is not None:
        groups.add(t)
    return t


def _send(
    fr: Frame, op: Intrinsic, lane: int, cells: list[Cell], addresses: Array, size: int,
    fetch: Callable[[], Array],
) -> None:  # fmt: skip
    """One thread begins a write of elements of `size` bytes at these addresses of the barriers'
    blocks; barriers count the bytes that came."""
    ids = agent_of(fr).gids[lane : lane + 1]
    targets: list[tuple[ThreadBlock, Cell, Array]] = []
    for cell in cells:
        block = typing.cast("ThreadBlock", cell.home)
        cell.require_ready(ids, fenced=True)
        units = block.shadow.units(addresses, size)
        if op.name.startswith("bulk"):
            block.shadow.require_ended(units, op)
        block.shadow.async_write(units, np.repeat(ids, units.size), cell.entity, op)
        block.incoming.append((cell, units, op))
        block.shared.poison(addresses, size)
        targets.append((block, cell, units))

    def store(value: Array) -> None:
        for block, cell, units in targets:
            block.shared.write(addresses, value)
            block.shadow.landed(units, cell.entity, cell.phase + 1)
            cell.count_bytes(value.nbytes, op)

    _launch(fr, op, fetch, store)


# ── bulk tensor copies ───────────────────────────────────────────────────────────────────────


def _box(
    fr: Frame, found: TensorMap, tile: TileRegion, lane: int, spot: list[Any]
) -> tuple[Box, Array]:
    """One box of a tensor, as far as it lies inside, and its elements' addresses in shared memory,
    shaped like the box."""
    size, box = found.tensor.dtype.bytes, found.box
    corner = [of_lane(c(fr), lane) for c in reversed(spot)]
    tensor, buffer = fr.bufs[found.tensor.name], tile.buffer
    part = clip(tensor, corner, box, found.seen(tensor.data).shape)
    shared = agent_block(fr).shared
    place = shared.plan.places[buffer.name]
    start = int(shared.address(buffer.name, of_lane(tile.starts[0](fr), lane)))
    if (start % 128 and not found.swizzle) or start % 16:
        raise RunError(f"a bulk copy's part of {buffer.name} does not begin on 128 bytes")
    if corner[-1] * size % 16:
        raise RunError(
            "a bulk copy starts at a multiple of 16 bytes along the innermost dimension",
            got=f"element {corner[-1]} of {found.tensor.name}",
        )
    flat = swizzled(start + np.arange(prod(box)) * size, found.swizzle)
    if flat.min() < place or flat.max() + size > place + buffer.bytes:
        raise RunError(f"out-of-range: a bulk copy's box leaves {buffer.name}")
    return part, flat.reshape(box)


def _inside(found: TensorMap, box: Box, data: Array) -> Array:
    """What a box has of a tensor."""
    return np.asarray(found.seen(data)[box.where])


def _note_part(
    fr: Frame, mem: Memory, part: Callable[[Array], Array], lane: int, kind: str
) -> None:
    """The part of a tensor that a bulk copy of thread `lane` touches. It counts as touched when it
    is issued: its end is known by its group, or by its barrier."""
    if mem.name in agent_block(fr).written:
        units = part(np.arange(mem.data.size).reshape(mem.data.shape)).reshape(-1)
        note_elements(fr, mem, units, np.full(units.size, agent_of(fr).gids[lane]), kind)


@thread_meaning("bulk_load")
def bulk_load(builder: Builder, op: Intrinsic, args: list[Any], fr: Frame) -> Flow:
    for lane in active(fr).tolist():
        yield from _load_box(builder, op, args, lane, fr)
    yield None


def _load_box(builder: Builder, op: Intrinsic, args: list[Any], lane: int, fr: Frame) -> Flow:
    found = builder.maps[op.fields["map"]]
    where, barrier, *rest = args
    spot, mask = rest[: len(found.box)], rest[len(found.box) :]
    box, addresses = _box(fr, found, where, lane, spot)
    blocks = [home(fr, barrier, lane)]
    if mask:
        cluster = fr.agent.block.cluster
        blocks = [cluster.block(r) for r in ranks_of(fr, of_lane(mask[0](fr), lane))]
    cells: list[Cell] = []
    for block in blocks:
        cells += yield from find_cells(builder, fr, barrier, lane, block)
    tensor, kind = fr.bufs[found.tensor.name], found.tensor.dtype
    _note_part(fr, tensor, partial(_inside, found, box), lane, READ)

    def fetch() -> Array:
        value = np.zeros(found.box, kind.numpy)
        value[box.inner] = _inside(found, box, tensor.data)
        return value

    _send(fr, op, lane, cells, addresses, kind.bytes, fetch)


@thread_meaning("bulk_row")
def bulk_row(builder: Builder, op: Intrinsic, args: list[Any], fr: Frame) -> Flow:
    """`bytes` bytes, of which the third argument says how many are read; the rest are zeros."""
    to, of, amount, barrier = args
    kind, tensor = to.buffer.dtype, of.memory(fr)
    count = int(op.fields["bytes"]) // kind.bytes
    for lane in active(fr).tolist():
        first = of_lane(to.starts[0](fr), lane)
        addresses = agent_block(fr).shared.address(to.buffer.name, first + np.arange(count))
        taken = of_lane(amount(fr), lane) // kind.bytes
        *row, start = (of_lane(s(fr), lane) for s in of.starts)
        if int(addresses[0]) % 16 or (taken and start * kind.bytes % 16):
            raise RunError(f"a bulk copy of {of.buffer.name} is not of whole units of 16 bytes")
        where = (*row, slice(start, start + taken))
        if taken and not 0 <= start <= tensor.data.shape[-1] - taken:
            raise RunError(f"out-of-range: a bulk copy leaves {of.buffer.name}")
        cells = yield from find_cells(builder, fr, barrier, lane, home(fr, barrier, lane))
        _note_part(fr, tensor, itemgetter(where), lane, READ)

        def fetch(where: Any = where, taken: int = taken) -> Array:
            value = np.zeros(count, kind.numpy)
            value[:taken] = tensor.data[where] if taken else 0
            return value

        _send(fr, op, lane, cells, addresses, kind.bytes, fetch)
    yield None


@thread_meaning("bulk_store")
def bulk_store(builder: Builder, op: Intrinsic, args: list[Any], fr: Frame) -> None:
    agent, block, found = agent_of(fr), agent_block(fr), builder.maps[op.fields["map"]]
    tensor, kind, how = fr.bufs[found.tensor.name], found.tensor.dtype, op.fields.get("reduce")
    where, *spot = args
    for lane in active(fr).tolist():
        box, addresses = _box(fr, found, where, lane, spot)
        ids = agent.gids[lane : lane + 1]
        groups = agent.groups_in("bulk", ids)
        units = block.shadow.units(addresses, kind.bytes)
        row = agent.clocks.common(ids)
        block.shadow.async_read(units, row, int(ids[0]), groups.entity, groups.number, op)
        kept = WRITE if how is None else ATOMIC
        _note_part(fr, tensor, partial(_inside, found, box), lane, kept)

        def store(value: Array, box: Box = box) -> None:
            new, data = value[box.inner], found.seen(tensor.data)
            if how is not None:
                new = atomic_fn(how, kind)(data[box.where], new)
            data[box.where] = new

        _launch(fr, op, partial(block.shared.read, addresses, kind.numpy), store, groups)


# ── stores into peers ────────────────────────────────────────────────────────────────────────


def _peer_words(fr: Frame, to: TileRegion, lane: int, count: int, block: ThreadBlock) -> Array:
    """The addresses of `count` elements in a peer's memory, which one store of a thread fills."""
    buffer, first = to.buffer, of_lane(to.starts[0](fr), lane)
    if not 0 <= first <= buffer.static_shape[0] - count:
        raise RunError(f"out-of-range: a remote store leaves {buffer.name}")
    addresses: Array = block.shared.address(buffer.name, first + np.arange(count))
    if int(addresses[0]) % (count * buffer.dtype.bytes):
        raise RunError(f"a remote store to {buffer.name} is not aligned")
    return addresses


@thread_meaning("store_remote", "store_cluster")
def store_peer(builder: Builder, op: Intrinsic, args: list[Any], fr: Frame) -> Flow:
    """`words` words of registers into a peer's memory. With a barrier there their bytes count on
    it when they have come; without one they come in order with what the thread does."""
    to, of, *barriers = args
    kind = of.buffer.dtype
    count = 4 * int(op.fields["words"]) // kind.bytes
    values = read_registers(fr, of, count)
    for lane in active(fr).tolist():
        value, block = values[lane].copy(), typing.cast("ThreadBlock", home(fr, to, lane))
        addresses = _peer_words(fr, to, lane, count, block)
        if not barriers:
            units = block.shadow.units(addresses, kind.bytes)
            block.shadow.write(units, np.full(units.size, agent_of(fr).gids[lane]), op)
            block.shared.write(addresses, value)
            continue
        (cell,) = yield from find_cells(builder, fr, barriers[0], lane)
        if cell.home is not block:
            raise RunError("the barrier of a remote store is in another block")
        _send(fr, op, lane, [cell], addresses, kind.bytes, partial(np.asarray, value))
    if barriers:
        yield None


# ── copies by threads that do not wait ───────────────────────────────────────────────────────


@thread_meaning("cp_async")
def cp_async(op: Intrinsic, to: TileRegion, of: TileRegion, amount: Eval, fr: Frame) -> None:
    """`bytes` bytes from global to shared memory by each thread, of which the last argument says
    how many are read; the rest are zeros. A wait tells the thread that copied, and no other."""
    size = int(op.fields["bytes"])
    kind = to.buffer.dtype
    count = size // kind.bytes
    agent, block, lanes = agent_of(fr), agent_block(fr), active(fr)
    ids = agent.gids[lanes]
    groups = agent.groups_in("cp_async", agent.gids)
    tensor, (target, (places,)) = of.memory(fr), elements(fr, to, count)
    addresses = block.shared.address(target.name, places)
    taken = in_threads(fr, amount(fr), lanes) // kind.bytes
    starts = [in_threads(fr, s(fr), lanes) for s in of.starts]
    valid = np.arange(count) < taken[:, None]
    where = [np.broadcast_to(s[:, None], valid.shape)[valid] for s in starts[:-1]]
    where.append((starts[-1][:, None] + np.arange(count))[valid])
    if valid.any():
        require_inside(fr, tensor, where)
        fr.touch(READ, tensor, tuple(where), agent.ids[lanes].repeat(count)[valid.reshape(-1)])
    if (addresses[:, 0] % size).any():
        raise RunError(f"a copy of {size} bytes to {target.name} is not aligned")
    units = block.shadow.units(addresses, kind.bytes)
    actors = np.repeat(ids, units.size // ids.size)
    block.shadow.async_write(units, actors, groups.entity, op)

    def fetch() -> Array:
        value = np.zeros(valid.shape, kind.numpy)
        value[valid] = tensor.data[tuple(where)]
        return value

    def seen() -> None:
        block.shadow.became(units, groups.entity, actors)
        agent.unfenced.append(units)
        agent.apart = True

    block.shared.poison(addresses, kind.bytes)
    store = partial(block.shared.write, addresses)
    _launch(fr, op, fetch, store, groups).seen = seen


# ── products by warpgroups ───────────────────────────────────────────────────────────────────


@thread_meaning("descriptor")
def descriptor(op: Intrinsic, where: TileRegion, fr: Frame) -> None:
    words = {k: int(v) for k, v in op.fields.items()}
    high = words["leading"] << 16 | words["stride"] << 32 | words["swizzle"] << 62
    assert op.result is not None
    name = op.result.name
    address = agent_block(fr).shared.address(where.buffer.name, where.starts[0](fr))
    mine = address[active(fr)] if address.ndim else address
    if (mine % 16).any():
        raise RunError("a matrix descriptor's tile does not begin on 16 bytes")
    low = (address & 0x3FFFF) >> 4
    fr.vars[name] = (low.astype(np.uint64) | np.uint64(high))[()]


@thread_meaning("wgmma")
def wgmma(op: Intrinsic, c: TileRegion, left: Any, right: Eval, keep: Eval, fr: Frame) -> None:
    for lanes in whole_groups(fr, WARPGROUP, "wgmma"):
        _multiply(op, c, left, right, keep, lanes, fr)


def _multiply(
    op: Intrinsic, c: TileRegion, left: Any, right: Eval, keep: Eval, lanes: Array, fr: Frame
) -> None:
    """One warpgroup begins a product."""
    words, agent, shared = op.fields, agent_of(fr), agent_block(fr).shared
    types, n, a = [DTYPES[words[which]] for which in "abd"], int(words["n"]), words["a"]
    c_table, c_shape = fragment_table("wgmma", a, n, "c")
    a_table, a_shape = fragment_table("wgmma", a, n, "a")
    groups = agent.groups_in("wgmma", agent.gids[lanes])
    accumulate = bool(uniform_int(fr, keep(fr), "accumulate", lanes))
    accumulator = _in_flight(fr, c, c_table.shape[1], lanes, groups, written=True)

    def addresses(code: Eval, mn: int, which: str) -> Array:
        """Of an operand in shared memory, which is read from now on."""
        block, size = agent_block(fr), MATRIX_TYPES[words[which]].bits // 8
        number = uniform_int(fr, code(fr), "a descriptor", lanes)
        k, transposed = MATRIX_TYPES[a].k, words.get(f"t{which}") == "1"
        found = operand_addresses(number, mn, k, size, transposed)
        if found.max() + size > shared.bytes.size:
            raise RunError("a matrix descriptor reaches outside of shared memory")
        row, units = agent.clocks.common(groups.owners), block.shadow.units(found, size)
        block.shadow.async_read(units, row, -1, groups.entity, groups.number, op)
        return found

    b_at = addresses(right, n, "b")
    a_at: Array
    from_registers = words["from"] == "rs"
    if from_registers:
        a_at = _in_flight(fr, left, a_table.shape[1], lanes, groups, written=False)
    else:
        a_at = addresses(left, 64, "a")

    def fetch() -> Array:
        if from_registers:
            left_tile = as_tile(a_at[lanes], a_table, a_shape)
        else:
            left_tile = shared.read(a_at, types[0].numpy)
        old = np.zeros(c_shape, types[2].numpy)
        if accumulate:
            old = as_tile(accumulator[lanes], c_table, c_shape)
        right_tile = shared.read(b_at, types[1].numpy).T
        return multiplied(left_tile, right_tile, old, (types[0], types[1], types[2]))

    def store(tile: Array) -> None:
        accumulator[lanes] = tile.reshape(-1)[c_table]

    _launch(fr, op, fetch, store, groups)


def _in_flight(
    fr: Frame, tile: TileRegion, count: int, lanes: Array, groups: Groups, *, written: bool
) -> Array:
    """Registers that a matrix instruction uses from now on: [thread, register]."""
    agent, mem = agent_of(fr), tile.memory(fr)
    agent.require_fenced(mem)
    first = first_register(fr, mem, tile.index(fr), count, lanes)
    used = Registers(mem.name, first, first + count, lanes, written, groups, groups.number)
    agent.in_flight.append(used)
    if not mem.lead:
        mem.spread(fr.lanes)
    return mem.data[:, first : first + count]
