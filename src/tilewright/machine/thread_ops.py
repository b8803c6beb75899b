"""Thread code: accesses of memory and registers, checked and noted; and instructions of threads and
warps that are done when they return: vectors, packed stores, matrices of 8×8, products by warps,
atomics, shuffles and votes.

Loops, branches and names mean what they mean everywhere (`flow.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES, matrix_fragments
from tilewright.machine.core import *
from tilewright.machine.ops import fold_in
from tilewright.machine.sanitizer import meets
from tilewright.machine.thread_agents import *

# ── accesses of memory ───────────────────────────────────────────────────────────────────────


class ThreadWatch(Watch):
    """Tells shadows what threads touch."""

    def access(self, fr: Frame, t: Touch) -> None:
        mem, block, owners = t.mem, agent_block(fr), t.owners
        if mem.is_global and mem.name not in block.written:
            return
        if owners is None:  # all of them; if they store, one and the same value
            owners = fr.agent.ids[: 1 if t.kind == WRITE else None]
        flat = np.ravel_multi_index(t.where, mem.shape) if mem.shape else np.int64(0)
        flat, owners = (a.reshape(-1) for a in np.broadcast_arrays(flat, owners))
        if t.value is not None and flat.size > 1:
            _, first = np.unique(flat, return_index=True)
            if first.size < flat.size:
                values = np.broadcast_to(t.value, np.shape(t.where[-1])) if mem.shape else t.value
                require_same(mem, flat, values.reshape(-1))
                flat, owners = flat[first], owners[first]
        note_elements(fr, mem, flat, owners + block.first, t.kind)

    def registers(self, fr: Frame, mem: Memory, idx: Where, kind: str) -> bool:
        index = idx[-1] if idx else np.int64(0)
        first, last = (index.min(), index.max()) if index.ndim else (index, index)
        use_registers(fr, mem, int(first), int(last), writes=kind == WRITE)
        return True


def note_elements(fr: Frame, mem: Memory, flat: Array, actors: Array, kind: str) -> None:
    """Elements, in row-major order, that the threads beside them touch."""
    block = agent_block(fr)
    if not mem.is_global:
        address = block.shared.address(mem.name, flat)
        note_bytes(fr, address, mem.dtype.bytes, actors, kind)
    elif flat.size:
        require_apart(fr, mem, flat, kind)
        _note(fr, block.tensor_shadow(mem), flat, actors, kind)


def note_bytes(fr: Frame, address: Array, size: int, actors: Array, kind: str) -> None:
    """Ordinary accesses of `size` bytes at each address, by the thread beside it."""
    shadow = agent_block(fr).shadow
    units = shadow.units(address, size)
    _note(fr, shadow, units, np.repeat(actors, units.size // max(actors.size, 1)), kind)
    if kind != READ:
        agent_of(fr).unfenced.append(units)


def _note(fr: Frame, shadow: Shadow, units: Array, actors: Array, kind: str) -> None:
    assert fr.op is not None
    {READ: shadow.read, WRITE: shadow.write, ATOMIC: shadow.update}[kind](units, actors, fr.op)
    fr.agent.apart = True


def elements(
    fr: Frame, tile: TileRegion, count: int, lanes: Array | None = None
) -> tuple[Memory, Where]:
    """The memory and, per running thread (or those of `lanes`), the indices of `count` elements
    along its last dimension from the region's start on."""
    mem, lanes = tile.memory(fr), active(fr) if lanes is None else lanes
    where = [in_threads(fr, i, lanes)[:, None] for i in tile.index(fr)]
    if where:
        where[-1] = where[-1] + np.arange(count)
    require_inside(fr, mem, where)
    return mem, tuple(np.broadcast_arrays(*where))


def require_inside(fr: Frame, mem: Memory, where: Sequence[Array]) -> None:
    bad = outside(tuple(where), mem.shape)
    if bad is not None:
        raise not_inside(fr, mem, tuple(where), bad, None)


def require_apart(fr: Frame, mem: Memory, units: Array, kind: str) -> None:
    """No other cluster of blocks touches these elements of a tensor, unless atomically."""
    cluster = fr.agent.block.cluster
    races = cluster.launch.races
    where = np.unravel_index(units, mem.shape) if mem.shape else ()
    touch = Touch(kind, mem, where, None, fr.loc())
    wrong = races.access(touch, cluster.blocks[0].linear)
    if wrong is not None:
        at = int(units[np.argmax(np.broadcast_to(wrong, units.shape))])
        place = tuple(map(int, np.unravel_index(at, mem.shape)))
        raise RunError(
            f"block-race: {describe_index(mem, place)} is {meets(kind, 'block')}",
            notes=races.lines.other(touch),
            fix="let blocks write disjoint elements, use atomics, or split the kernel in two",
        )


def require_same(mem: Memory, flat: Array, values: Array) -> None:
    """Threads that store to one element at once store one value."""
    order = np.argsort(flat, kind="stable")
    flat, bits = flat[order], np.ascontiguousarray(values[order]).view(np.uint8)
    bits = bits.reshape(flat.size, -1)
    clash = (flat[1:] == flat[:-1]) & (bits[1:] != bits[:-1]).any(axis=1)
    if clash.any():
        at = int(flat[1:][np.argmax(clash)])
        raise RunError(
            f"race on {mem.name}[{at}]: two threads store different values to it at once",
        )


def use_registers(fr: Frame, mem: Memory, first: int, last: int, *, writes: bool) -> None:
    """Ordinary code touches registers that matrix instructions use too."""
    agent = agent_of(fr)
    mem.storage.touched = agent.tick()
    for used in agent.in_flight:
        if used.name != mem.name or used.stop <= first or used.start > last:
            continue
        if (writes or used.written) and np.isin(active(fr), used.lanes).any():
            raise RunError(
                f"{mem.name}[{first}] is in use by a matrix instruction that has not been "
                "waited for",
                fix="wait for its group (wait_group wgmma) first",
            )


# ── registers as a whole ─────────────────────────────────────────────────────────────────────


def read_registers(fr: Frame, tile: TileRegion, count: int) -> Array:
    """`count` registers from a region's start on: [thread, register]."""
    mem = tile.memory(fr)
    idx = tile.index(fr)
    first = first_register(fr, mem, idx, count)
    if mem.storage.watched:
        use_registers(fr, mem, first, first + count - 1, writes=False)
    data = mem.data.reshape(*mem.lead, -1)
    return np.broadcast_to(data[..., first : first + count], (fr.lanes[0], count))


def write_registers(fr: Frame, tile: TileRegion, values: Array) -> None:
    """Store [thread, register] in the running threads."""
    mem = tile.memory(fr)
    idx = tile.index(fr)
    count = values.shape[1]
    first = first_register(fr, mem, idx, count)
    if not mem.lead:
        mem.spread(fr.lanes)
    if mem.storage.watched:
        use_registers(fr, mem, first, first + count - 1, writes=True)
    data = mem.data.reshape(fr.lanes[0], -1)
    mine = active(fr)
    data[mine, first : first + count] = values[mine]


def first_register(
    fr: Frame, mem: Memory, idx: Where, count: int, among: Array | None = None
) -> int:
    first = uniform_int(fr, idx[0], "a register's index", among) if idx else 0
    size = mem.shape[0] if mem.shape else 1
    if len(idx) > 1 or not 0 <= first <= size - count:
        raise RunError(
            f"out-of-range: {mem.name}[{first}:+{count}] is outside {mem.name}",
            expected=f"registers inside {mem.shape}",
        )
    return first


def as_words(values: Array) -> Array:
    """Registers as words of 32 bits: [thread, word]."""
    return np.ascontiguousarray(values).view(np.uint8).view(np.uint32)


def of_words(words: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(words, np.uint32).view(np.uint8).view(dtype)


# ── who runs ─────────────────────────────────────────────────────────────────────────────────


def _result(op: Intrinsic) -> tuple[str, np.dtype[Any]]:
    assert op.result is not None
    return op.result.name, op.result.dtype.numpy


@thread_meaning("warp_index")
def warp_index(op: Intrinsic, thread: Eval, fr: Frame) -> None:
    name, kind = _result(op)
    found = (thread(fr) // WARP).astype(kind)
    same = found.ndim and (found == found[0]).all()
    fr.vars[name] = found[0] if same else found


@thread_meaning("elect")
def elect(op: Intrinsic, cond: Eval, fr: Frame) -> None:
    """True in one thread of each warp for which the condition holds; which one, the seed says."""
    name, _ = _result(op)
    lanes = fr.agent.positions % WARP
    seed = fr.agent.block.cluster.launch.options.seed
    chosen = seed * 13 % WARP % min(WARP, lanes.size)
    fr.vars[name] = spread(fr, cond(fr)) & (lanes == chosen)


@thread_meaning("prefetch_map", "pin", "settle")
def nothing(fr: Frame) -> None:
    """It changes no result."""


# ── vectors ──────────────────────────────────────────────────────────────────────────────────


def _vector(fr: Frame, tile: TileRegion, count: int, aligned: bool = True) -> tuple[Memory, Where]:
    """`elements`, which are `aligned`."""
    mem, where = elements(fr, tile, count)
    first = where[-1][:, 0]
    if aligned and (first % count).any():
        raise RunError(
            f"a vector of {count} elements of {mem.name} begins at "
            f"{int(first[first % count > 0][0])}, which is no multiple of its length",
        )
    return mem, where


def _touch(fr: Frame, kind: str, mem: Memory, where: Where, value: Array | None = None) -> None:
    """Each running thread touches a row."""
    owners = np.broadcast_to(fr.agent.ids[active(fr)][:, None], where[-1].shape)
    fr.touch(kind, mem, where, owners, value=value)


@thread_meaning("load_shared", "load_global", "load_across")
def load_vector(op: Intrinsic, to: TileRegion, of: TileRegion, fr: Frame) -> None:
    count = int(op.fields["count"])
    mem, where = _vector(fr, of, count, op.name != "load_across")
    _touch(fr, READ, mem, where)
    kind = to.buffer.dtype
    values = np.zeros((fr.lanes[0], count), kind.numpy)
    values[active(fr)] = cast_fn(mem.dtype, kind)(mem.data[where])
    write_registers(fr, to, values)


@thread_meaning("fold_pair")
def fold_pair(op: Intrinsic, to: TileRegion, of: TileRegion, fr: Frame) -> None:
    fold = {"max": np.maximum, "min": np.minimum}[op.fields["op"]]
    a, b = (read_registers(fr, each, 2) for each in (to, of))
    write_registers(fr, to, fold(a.astype(np.float32), b.astype(np.float32)).astype(a.dtype))


@thread_meaning("store_shared", "store_global")
def store_vector(op: Intrinsic, to: TileRegion, of: TileRegion, fr: Frame) -> None:
    count = int(op.fields["count"])
    mem, where = _vector(fr, to, count)
    values = read_registers(fr, of, count)
    new = cast_fn(of.buffer.dtype, mem.dtype)(values)[active(fr)]
    _touch(fr, WRITE, mem, where, new)
    mem.data[where] = new


@thread_meaning("store_packed")
def store_packed(op: Intrinsic, to: TileRegion, word: Eval, fr: Frame) -> None:
    """A word of 32 bits over elements that fill it."""
    kind = to.buffer.dtype.numpy
    words = np.array(spread(fr, word(fr)), np.uint32)[:, None]
    values = of_words(words, kind)
    if to.buffer.is_local:
        write_registers(fr, to, values)
        return
    mem, where = _vector(fr, to, values.shape[1])
    new = values[active(fr)]
    _touch(fr, WRITE, mem, where, new)
    mem.data[where] = new


# ── matrices of 8 rows of 16 bytes ───────────────────────────────────────────────────────────


def _rows(fr: Frame, memory: TileRegion, count: int, op: Intrinsic) -> tuple[Array, Array]:
    """The warps that run this, and the addresses [warp, matrix, row]: matrix m's row r is where
    lane 8 m + r says."""
    warps = whole_groups(fr, WARP, op.name)
    mem = memory.memory(fr)
    start = np.broadcast_to(memory.starts[0](fr), fr.lanes)
    givers = warps[:, : 8 * count]
    where = start[givers]
    per_row = 16 // mem.dtype.bytes
    if (where < 0).any() or (where > mem.shape[0] - per_row).any():
        raise RunError(f"out-of-range: a row lies outside {mem.name}")
    address = agent_block(fr).shared.address(mem.name, where)
    if (address % 16).any():
        raise RunError(f"a row of {mem.name} does not begin on 16 bytes")
    return warps, address.reshape(len(warps), count, 8)


def _transposed(rows: Array) -> Array:
    """Matrices [warp, matrix, row, byte] of 16-bit elements, transposed."""
    halves = np.ascontiguousarray(rows).view(np.uint16)
    return np.ascontiguousarray(np.swapaxes(halves, 2, 3)).view(np.uint8)


def _note_rows(fr: Frame, warps: Array, address: Array, kind: str) -> None:
    givers = agent_of(fr).gids[warps[:, : address[0].size]].reshape(-1)
    note_bytes(fr, address.reshape(-1), 16, givers, kind)


@thread_meaning("ldmatrix")
def ldmatrix(op: Intrinsic, to: TileRegion, of: TileRegion, fr: Frame) -> None:
    words = op.fields
    count, trans = int(words["count"]), words["trans"] == "1"
    kind = to.buffer.dtype.numpy
    warps, address = _rows(fr, of, count, op)
    _note_rows(fr, warps, address, READ)
    data = agent_block(fr).shared.bytes[address[..., None] + np.arange(16)]
    data = _transposed(data) if trans else data
    found = np.ascontiguousarray(data).view(np.uint32).reshape(len(warps), count, WARP)
    registers = np.zeros((fr.lanes[0], count), np.uint32)
    registers[warps] = np.swapaxes(found, 1, 2)
    write_registers(fr, to, of_words(registers, kind))


@thread_meaning("stmatrix")
def stmatrix(op: Intrinsic, args: list[Any], fr: Frame) -> None:
    to, *given = args
    words = op.fields
    count, trans = int(words["count"]), words["trans"] == "1"
    warps, address = _rows(fr, to, count, op)
    if words["from"] == "words":
        (of,) = given
        per = 4 // of.buffer.dtype.bytes
        registers = as_words(read_registers(fr, of, count * per))
    else:
        registers = np.stack([spread(fr, w(fr)).astype(np.uint32) for w in given], axis=1)
    data = np.ascontiguousarray(np.swapaxes(registers[warps], 1, 2))
    rows = data.view(np.uint8).reshape(len(warps), count, 8, 16)
    rows = _transposed(rows) if trans else rows
    if np.unique(address).size < address.size:
        raise RunError("two rows of a stmatrix lie at one place")
    _note_rows(fr, warps, address, WRITE)
    agent_block(fr).shared.bytes[address[..., None] + np.arange(16)] = rows


# ── products by warps ────────────────────────────────────────────────────────────────────────


@lru_cache(64)
def fragment_table(atom: str, kind: str, n: int, which: str) -> tuple[Array, tuple[int, ...]]:
    """[thread, register] → element of the operand's tile in row-major order, and the tile."""
    fragment = matrix_fragments(atom, MATRIX_TYPES[kind], n)[which]
    return fragment.table(), fragment.tile


def as_tile(registers: Array, table: Array, shape: tuple[int, ...]) -> Array:
    """The tiles that registers [..., thread, register] hold."""
    lead = registers.shape[:-2]
    tile = np.empty((*lead, prod(shape)), registers.dtype)
    tile[..., table] = registers
    found: Array = tile.reshape(*lead, *shape)
    return found


@thread_meaning("mma")
def mma(op: Intrinsic, c: TileRegion, x: TileRegion, y: TileRegion, fr: Frame) -> None:
    a, b, d = (op.fields[which] for which in "abd")
    types = DTYPES[a], DTYPES[b], DTYPES[d]
    tables = [fragment_table("mma", *each) for each in ((a, 8, "a"), (b, 8, "b"), (a, 8, "c"))]
    held = [
        read_registers(fr, tile, table.shape[1])
        for tile, (table, _) in zip((x, y, c), tables, strict=True)
    ]
    out = np.array(held[2])
    warps = whole_groups(fr, WARP, "mma")
    left, right, old = (
        as_tile(_typed(registers[warps], kind), *table)
        for registers, kind, table in zip(held, types, tables, strict=True)
    )
    found = multiplied(left, right, old, types).reshape(len(warps), -1)
    out[warps] = found[:, tables[2][0]]
    write_registers(fr, c, out)


def _typed(registers: Array, dtype: Any) -> Array:
    """Registers as elements of the type that the instruction takes them for."""
    if registers.dtype == dtype.numpy:
        return registers
    return np.ascontiguousarray(registers).view(dtype.numpy)


# ── atomics ──────────────────────────────────────────────────────────────────────────────────


@thread_meaning("atomic", "atomic_of_warp")
def atomic(op: Intrinsic, args: list[Any], fr: Frame) -> None:
    """One after another, by thread; of a warp: by its first lane, which tells the others."""
    where, kind, of_warp = args[0], args[0].buffer.dtype, op.name == "atomic_of_warp"
    lanes = active(fr)
    if of_warp:
        converge(fr, op.name)
        lanes = np.array([w[0] for w in whole_groups(fr, WARP, op.name)])
    news = [
        spread(fr, cast_fn(given.dtype, kind)(value(fr)))
        for given, value in zip(op.args, args, strict=True)
        if not isinstance(given, Region)
    ] or [spread(fr, np.zeros((), kind.numpy))]
    mem, places = elements(fr, where, len(news), lanes)  # of neighbours, each by itself
    owners = np.repeat(fr.agent.ids[lanes], len(news)).reshape(-1, len(news))
    fr.touch(ATOMIC, mem, places, owners)
    old = np.zeros(fr.lanes, kind.numpy)
    combine = atomic_fn(op.fields["op"], kind)
    for k, new in enumerate(news):
        found = fold_in(mem, tuple(p[:, k] for p in places), new[lanes], combine)
        old[lanes] = old[lanes] if k else found
    if op.result is not None:
        old = old[agent_of(fr).positions // WARP * WARP] if of_warp else old
        fr.vars[op.result.name] = old.astype(op.result.dtype.numpy)
