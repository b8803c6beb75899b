"""Instructions of threads and warps that are done when they return: vectors, packed stores,
matrices of 8×8, products by warps, atomics, shuffles and votes."""

from __future__ import annotations

from functools import lru_cache
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES, matrix_fragments
from tilewright.ir.buffer import Region, Space
from tilewright.ir.dtype import DTYPES
from tilewright.ir.op import Intrinsic
from tilewright.machine.conflicts import ATOMIC, READ, WRITE
from tilewright.machine.lanes import TileRegion
from tilewright.machine.meaning import THREADS, Builder, Run, thread_meaning
from tilewright.machine.memory import Memory
from tilewright.machine.numbers import Array, atomic_fn, cast_fn, multiplied
from tilewright.machine.ops import fold_in
from tilewright.machine.state import WARP, Frame
from tilewright.machine.thread_agents import (
    active,
    agent_block,
    agent_of,
    converge,
    in_threads,
    spread,
    whole_groups,
)
from tilewright.machine.thread_ops import (
    as_words,
    note_bytes,
    note_global,
    note_shared,
    of_words,
    read_registers,
    require_inside,
    write_registers,
)
from tilewright.machine.threads import require_lanes
from tilewright.support.errors import RunError

# ── who runs ─────────────────────────────────────────────────────────────────────────────────


def _result(op: Intrinsic) -> tuple[str, np.dtype[Any]]:
    if op.result is None:
        raise RunError(f"{op.name} yields a value that nothing takes", loc=op.loc)
    return op.result.name, op.result.dtype.numpy


@thread_meaning("warp_index")
def warp_index(b: Builder, op: Intrinsic) -> Run:
    (thread,), (name, kind) = b.operands(op.args[0]), _result(op)

    def run(fr: Frame) -> None:
        found = (thread(fr) // WARP).astype(kind)
        same = found.ndim and (found == found[0]).all()
        fr.vars[name] = found[0] if same else found

    return run


@thread_meaning("elect")
def elect(b: Builder, op: Intrinsic) -> Run:
    """True in one thread of each warp for which the condition holds; which one, the seed says."""
    (cond,), (name, _) = b.operands(op.args[0]), _result(op)

    def run(fr: Frame) -> None:
        lanes = fr.agent.positions % WARP
        seed = fr.agent.block.cluster.launch.options.seed
        chosen = seed * 13 % WARP % min(WARP, lanes.size)
        fr.vars[name] = spread(fr, cond(fr)) & (lanes == chosen)

    return run


@thread_meaning("prefetch_map", "pin", "settle")
def nothing(b: Builder, op: Intrinsic) -> Run:
    return lambda fr: None


@thread_meaning(
    *(f"shfl_{kind}" for kind in ("sync", "xor", "up", "down")),
    *(f"warp_reduce_{kind}" for kind in ("sum", "max", "min", "and", "or")),
    *("ballot", "any_sync", "all_sync"),
)
def across_lanes(b: Builder, op: Intrinsic) -> Run:
    inner = THREADS[Intrinsic](b, op)
    some = "mask=active" in op.text
    by = b.operands(*op.args)[1] if op.name.startswith("shfl_") else None

    def run(fr: Frame) -> None:
        converge(fr, op.name, some=some)
        if by is not None:
            require_lanes(fr, op, by(fr))
        inner(fr)

    return run


# ── vectors ──────────────────────────────────────────────────────────────────────────────────


def _vector(fr: Frame, tile: TileRegion, count: int, op: Intrinsic) -> tuple[Memory, Any]:
    """The memory and, per running thread, the indices of `count` aligned consecutive elements."""
    mem = tile.memory(fr)
    idx = tile.index(fr)
    require_inside(fr, mem, idx, count, None)
    lanes = active(fr)
    last = in_threads(fr, idx[-1], lanes)
    if (last % count).any():
        raise RunError(
            f"a vector of {count} elements of {mem.name} begins at {int(last[last % count > 0][0])}"
            ", which is no multiple of its length",
            loc=op.loc,
        )
    rows = tuple(in_threads(fr, i, lanes)[:, None] for i in idx[:-1])
    return mem, (*rows, last[:, None] + np.arange(count))


def _note(fr: Frame, tile: TileRegion, count: int, kind: str, values: Array | None = None) -> None:
    """`count` elements that each running thread touches."""
    mem, starts = tile.memory(fr), tile.index(fr)
    if mem.space is Space.SHARED:
        note_shared(fr, mem, starts, count, writes=kind == WRITE)
    else:
        note_global(fr, mem, starts, count, kind, values)


@thread_meaning("load_shared", "load_global")
def load_vector(b: Builder, op: Intrinsic) -> Run:
    to, of = b.operands(*op.args)
    count = int(op.fields["count"])

    def run(fr: Frame) -> None:
        mem, where = _vector(fr, of, count, op)
        _note(fr, of, count, READ)
        kind = to.buffer.dtype
        values = np.zeros((fr.lanes[0], count), kind.numpy)
        values[active(fr)] = cast_fn(mem.dtype, kind)(mem.data[where])
        write_registers(fr, to, values)

    return run


@thread_meaning("store_shared", "store_global")
def store_vector(b: Builder, op: Intrinsic) -> Run:
    to, of = b.operands(*op.args)
    count = int(op.fields["count"])

    def run(fr: Frame) -> None:
        mem, where = _vector(fr, to, count, op)
        values = read_registers(fr, of, count)
        new = cast_fn(of.buffer.dtype, mem.dtype)(values)[active(fr)]
        _note(fr, to, count, WRITE, new)
        if mem.space is Space.SHARED:
            _require_apart(mem, where, op)
        mem.data[where] = new

    return run


def _require_apart(mem: Memory, where: tuple[Array, ...], op: Intrinsic) -> None:
    places = np.ravel_multi_index(np.broadcast_arrays(*where), mem.data.shape)
    if np.unique(places).size < places.size:
        raise RunError(
            f"race on {mem.name}: two threads store to one element of it at once", loc=op.loc
        )


@thread_meaning("store_packed")
def store_packed(b: Builder, op: Intrinsic) -> Run:
    """A word of 32 bits over elements that fill it."""
    to, word = b.operands(*op.args)
    kind = to.buffer.dtype.numpy

    def run(fr: Frame) -> None:
        words = np.array(spread(fr, word(fr)), np.uint32)[:, None]
        values = of_words(words, kind)
        if to.buffer.space is Space.LOCAL:
            write_registers(fr, to, values)
            return
        mem, where = _vector(fr, to, values.shape[1], op)
        new = values[active(fr)]
        _note(fr, to, values.shape[1], WRITE, new)
        mem.data[where] = new

    return run


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
        raise RunError(f"out-of-range: a row lies outside {mem.name}", loc=op.loc)
    address = agent_block(fr).shared.address(mem.name, where)
    if (address % 16).any():
        raise RunError(f"a row of {mem.name} does not begin on 16 bytes", loc=op.loc)
    return warps, address.reshape(len(warps), count, 8)


def _transposed(rows: Array) -> Array:
    """Matrices [warp, matrix, row, byte] of 16-bit elements, transposed."""
    halves = np.ascontiguousarray(rows).view(np.uint16)
    return np.ascontiguousarray(np.swapaxes(halves, 2, 3)).view(np.uint8)


def _note_rows(fr: Frame, warps: Array, address: Array, *, writes: bool) -> None:
    givers = agent_of(fr).gids[warps[:, : address[0].size]].reshape(-1)
    note_bytes(fr, address.reshape(-1), 16, givers, writes=writes)


@thread_meaning("ldmatrix")
def ldmatrix(b: Builder, op: Intrinsic) -> Run:
    to, of = b.operands(*op.args)
    words = op.fields
    count, trans = int(words["count"]), words["trans"] == "1"
    kind = to.buffer.dtype.numpy

    def run(fr: Frame) -> None:
        warps, address = _rows(fr, of, count, op)
        _note_rows(fr, warps, address, writes=False)
        data = agent_block(fr).shared.bytes[address[..., None] + np.arange(16)]
        data = _transposed(data) if trans else data
        found = np.ascontiguousarray(data).view(np.uint32).reshape(len(warps), count, WARP)
        registers = np.zeros((fr.lanes[0], count), np.uint32)
        registers[warps] = np.swapaxes(found, 1, 2)
        write_registers(fr, to, of_words(registers, kind))

    return run


@thread_meaning("stmatrix")
def stmatrix(b: Builder, op: Intrinsic) -> Run:
    to, *given = b.operands(*op.args)
    words = op.fields
    count, trans = int(words["count"]), words["trans"] == "1"

    def run(fr: Frame) -> None:
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
            raise RunError("two rows of a stmatrix lie at one place", loc=op.loc)
        _note_rows(fr, warps, address, writes=True)
        agent_block(fr).shared.bytes[address[..., None] + np.arange(16)] = rows

    return run


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
def mma(b: Builder, op: Intrinsic) -> Run:
    c, x, y = b.operands(*op.args)
    words = op.fields
    types = (DTYPES[words["a"]], DTYPES[words["b"]], DTYPES[words["d"]])
    tables = {
        which: fragment_table("mma", words["b" if which == "b" else "a"], 8, which)
        for which in "abc"
    }

    def run(fr: Frame) -> None:
        held = {
            which: read_registers(fr, tile, tables[which][0].shape[1])
            for which, tile in (("a", x), ("b", y), ("c", c))
        }
        out = np.array(held["c"])
        warps = whole_groups(fr, WARP, "mma")
        left, right, old = (
            as_tile(_typed(held[w][warps], t), *tables[w])
            for w, t in zip("abc", types, strict=True)
        )
        found = multiplied(left, right, old, types).reshape(len(warps), -1)
        out[warps] = found[:, tables["c"][0]]
        write_registers(fr, c, out)

    return run


def _typed(registers: Array, dtype: Any) -> Array:
    """Registers as elements of the type that the instruction takes them for."""
    if registers.dtype == dtype.numpy:
        return registers
    return np.ascontiguousarray(registers).view(dtype.numpy)


# ── atomics ──────────────────────────────────────────────────────────────────────────────────


@thread_meaning("atomic", "atomic_of_warp")
def atomic(b: Builder, op: Intrinsic) -> Run:
    """One after another, by thread; of a warp: by its first lane, which tells the others."""
    target, *given = op.args
    if not isinstance(target, Region):
        raise RunError("an atomic takes an element of memory", loc=op.loc)
    where, kind = b.evaluate.region(target), target.dtype
    combine = atomic_fn(op.fields["op"], kind)
    values = [
        (b.evaluate(each), cast_fn(each.dtype, kind))
        for each in given
        if not isinstance(each, Region)
    ]
    count = max(len(values), 1)  # of neighbours, each by itself

    def run(fr: Frame) -> None:
        mem = fr.bufs[target.buffer.name]
        idx = where.index(fr)
        require_inside(fr, mem, idx, count, None)
        lanes = active(fr)
        if op.name == "atomic_of_warp":
            converge(fr, op.name)
            lanes = np.array([w[0] for w in whole_groups(fr, WARP, op.name)])
        places = [np.broadcast_to(i, fr.lanes) for i in idx]
        if mem.space is Space.SHARED:
            agent, block = agent_of(fr), agent_block(fr)
            address = block.shared.address(mem.name, places[0][lanes])
            units = block.shadow.units(address, kind.bytes)
            actors = np.repeat(agent.gids[lanes], units.size // lanes.size)
            block.shadow.update(units, actors, op)
            agent.unfenced.append(units)
            agent.apart = True
        elif mem.is_global:
            note_global(fr, mem, idx, count, ATOMIC, lanes=lanes)
        none = [np.zeros((), kind.numpy)]
        news = [spread(fr, x) for x in ([to(value(fr)) for value, to in values] or none)]
        old = np.zeros(fr.lanes, kind.numpy)
        at = tuple(p[lanes] for p in places)
        for k, new in enumerate(news):
            found = fold_in(mem, (*at[:-1], at[-1] + k) if k else at, new[lanes], combine)
            old[lanes] = old[lanes] if k else found
        if op.result is not None:
            if op.name == "atomic_of_warp":
                old = old[agent_of(fr).positions // WARP * WARP]
            fr.vars[op.result.name] = old.astype(op.result.dtype.numpy)

    return run
