"""Thread code: elements of memory and registers, checked and noted.

Loops, branches and names mean what they mean everywhere (`flow.py`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Load
from tilewright.machine import lanes
from tilewright.machine.conflicts import ATOMIC, READ, WRITE, Touch
from tilewright.machine.lanes import TileRegion, uniform_int
from tilewright.machine.memory import Memory, describe_index
from tilewright.machine.numbers import Array, Value
from tilewright.machine.sanitizer import meets
from tilewright.machine.state import Frame, Where
from tilewright.machine.thread_agents import active, agent_block, agent_of, in_threads
from tilewright.support.errors import RunError

# ── elements of memory ───────────────────────────────────────────────────────────────────────


def gather(fr: Frame, mem: Memory, idx: Where, node: Load | None) -> Value:
    """The elements at `idx`: inside of tensors, and known to be there."""
    if mem.space is Space.LOCAL:
        if mem.name in agent_of(fr).matrix:
            use_registers(fr, mem, idx, 1, writes=False)
    elif mem.is_global:
        require_inside(fr, mem, idx, 1, node)
        note_global(fr, mem, idx, 1, READ)
    value = lanes.gather(fr, mem, idx, node)
    if mem.space is Space.SHARED:
        note_shared(fr, mem, idx, 1, writes=False)
    return value


def scatter(fr: Frame, mem: Memory, idx: Where, value: Value) -> None:
    """Store `value` at `idx` in every running thread."""
    if mem.space is Space.LOCAL:
        if mem.name in agent_of(fr).matrix:
            use_registers(fr, mem, idx, 1, writes=True)
        if _store_register(fr, mem, idx, value):
            return
    else:
        require_inside(fr, mem, idx, 1, None)
        if mem.space is Space.SHARED:
            note_shared(fr, mem, idx, 1, writes=True, value=value)
        else:
            note_global(fr, mem, idx, 1, WRITE, in_threads(fr, value, active(fr)))
    lanes.scatter(fr, mem, idx, value)


def _store_register(fr: Frame, mem: Memory, idx: Where, value: Value) -> bool:
    """`scatter` for one and the same register of all threads, which most stores are; False when
    this is not one."""
    if (
        type(mem) is not Memory
        or len(idx) > 1
        or (idx and (idx[0].ndim or not 0 <= idx[0] < mem.shape[0]))
    ):
        return False
    if not mem.lead:
        if not value.ndim and fr.mask is None:
            mem.data[idx] = value
            return True
        mem.spread(fr.lanes)
    registers = mem.data[:, int(idx[0])] if idx else mem.data
    if fr.mask is None:
        registers[...] = value
    else:
        np.copyto(registers, value, where=fr.mask)
    return True


def require_inside(fr: Frame, mem: Memory, idx: Where, count: int, node: Load | None) -> None:
    """`count` elements along the last dimension from `idx` on lie inside of the buffer."""
    last = len(mem.shape) - 1
    for dim, (i, n) in enumerate(zip(idx, mem.shape, strict=True)):
        room = n - (count - 1 if dim == last else 0)
        if i.ndim:
            mine = i if fr.mask is None else in_threads(fr, i, active(fr))
            wrong = (mine < 0) | (mine >= room)
            if not wrong.any():
                continue
            where = int(np.argmax(wrong))
        elif 0 <= i < room:
            continue
        else:
            where = 0
        first = tuple(int(in_threads(fr, j, active(fr))[where]) if j.ndim else int(j) for j in idx)
        more = f" and the {count - 1} behind it reach" if count > 1 else " is"
        raise RunError(
            f"out-of-range: {describe_index(mem, first)}{more} outside {mem.name}",
            loc=fr.loc(node),
            expected=f"an index inside {mem.shape}",
            fix="thread IR carries its guards: put the access under an `if`",
        )


def flat_index(mem: Memory, idx: Where) -> Value:
    flat: Any = np.int64(0)
    for i, n in zip(idx, mem.shape, strict=True):
        flat = flat * n + i.astype(np.int64)
    return flat


def note_shared(
    fr: Frame, mem: Memory, idx: Where, count: int, *, writes: bool, value: Value | None = None
) -> None:
    """Tell the shadow of `count` elements that each running thread touches from `idx` on."""
    agent, lanes_ = agent_of(fr), active(fr)
    flat = in_threads(fr, flat_index(mem, idx), lanes_)
    address = agent_block(fr).shared.address(mem.name, flat)
    if writes and flat.size > 1 and value is not None:
        _, first = np.unique(flat, return_index=True)
        if first.size < flat.size:
            require_same(fr, mem, flat, in_threads(fr, value, lanes_))
            lanes_, address = lanes_[first], address[first]
    note_bytes(fr, address, count * mem.dtype.bytes, agent.gids[lanes_], writes=writes)


def note_global(
    fr: Frame,
    mem: Memory,
    idx: Where,
    count: int,
    kind: str,
    values: Array | None = None,
    lanes: Array | None = None,
) -> None:
    """`count` elements of a tensor that each running thread (or those of `lanes`) touches from
    `idx` on; `values` are what they write, thread by thread."""
    agent = agent_of(fr)
    if mem.name not in agent_block(fr).written:
        return
    who = active(fr) if lanes is None else lanes
    flat = in_threads(fr, flat_index(mem, idx), who)
    units = (flat[:, None] + np.arange(count)).reshape(-1)
    actors = np.repeat(agent.gids[who], count)
    if values is not None and units.size > 1:
        _, first = np.unique(units, return_index=True)
        if first.size < units.size:
            require_same(fr, mem, units, values.reshape(-1))
            units, actors = units[first], actors[first]
    note_elements(fr, mem, units, actors, kind)


def note_elements(fr: Frame, mem: Memory, units: Array, actors: Array, kind: str) -> None:
    """Elements of a tensor, in row-major order, that the threads beside them touch."""
    block, op = agent_block(fr), fr.op
    if mem.name not in block.written or not units.size:
        return
    assert op is not None
    require_apart(fr, mem, units, kind)
    shadow = block.tensor_shadow(mem)
    {READ: shadow.read, WRITE: shadow.write, ATOMIC: shadow.update}[kind](units, actors, op)
    fr.agent.apart = True


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
            loc=fr.loc(),
            notes=races.lines.other(touch),
            fix="let blocks write disjoint elements, use atomics, or split the kernel in two",
        )


def require_same(fr: Frame, mem: Memory, flat: Array, values: Array) -> None:
    """Threads that store to one element at once store one value."""
    order = np.argsort(flat, kind="stable")
    flat, bits = flat[order], np.ascontiguousarray(values[order]).view(np.uint8)
    bits = bits.reshape(flat.size, -1)
    clash = (flat[1:] == flat[:-1]) & (bits[1:] != bits[:-1]).any(axis=1)
    if clash.any():
        at = int(flat[1:][np.argmax(clash)])
        raise RunError(
            f"race on {mem.name}[{at}]: two threads store different values to it at once",
            loc=fr.loc(),
        )


def note_bytes(fr: Frame, address: Array, size: int, actors: Array, *, writes: bool) -> None:
    """Ordinary accesses of `size` bytes at each address, by the thread beside it."""
    agent = agent_of(fr)
    shadow = agent_block(fr).shadow
    units = shadow.units(address, size)
    actors = np.repeat(actors, units.size // max(actors.size, 1))
    assert fr.op is not None
    if writes:
        shadow.write(units, actors, fr.op)
        agent.unfenced.append(units)
    else:
        shadow.read(units, actors, fr.op)
    agent.apart = True


def use_registers(fr: Frame, mem: Memory, idx: Where, count: int, *, writes: bool) -> None:
    """Ordinary code touches registers that matrix instructions use too."""
    agent = agent_of(fr)
    agent.touched[mem.name] = agent.tick()
    if not agent.in_flight:
        return
    first = uniform_int(fr, idx[0], "a register's index") if idx else 0
    for used in agent.in_flight:
        if used.name != mem.name or used.stop <= first or used.start >= first + count:
            continue
        if (writes or used.written) and np.isin(active(fr), used.lanes).any():
            raise RunError(
                f"{mem.name}[{first}] is in use by a matrix instruction that has not been "
                "waited for",
                loc=fr.loc(),
                fix="wait for its group (wait_group wgmma) first",
            )


# ── registers as a whole ─────────────────────────────────────────────────────────────────────


def read_registers(fr: Frame, tile: TileRegion, count: int) -> Array:
    """`count` registers from a region's start on: [thread, register]."""
    mem = tile.memory(fr)
    idx = tile.index(fr)
    first = first_register(fr, mem, idx, count)
    if mem.name in agent_of(fr).matrix:
        use_registers(fr, mem, idx, count, writes=False)
    data = mem.data.reshape(*mem.lead, -1)
    return np.broadcast_to(data[..., first : first + count], (fr.lanes[0], count))


def write_registers(fr: Frame, tile: TileRegion, values: Array) -> None:
    """Store [thread, register] in the running threads."""
    mem = tile.memory(fr)
    idx = tile.index(fr)
    count = values.shape[1]
    first = first_register(fr, mem, idx, count)
    if mem.name in agent_of(fr).matrix:
        use_registers(fr, mem, idx, count, writes=True)
    if not mem.lead:
        mem.spread(fr.lanes)
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
            loc=fr.loc(),
            expected=f"registers inside {mem.shape}",
        )
    return first


def as_words(values: Array) -> Array:
    """Registers as words of 32 bits: [thread, word]."""
    return np.ascontiguousarray(values).view(np.uint8).view(np.uint32)


def of_words(words: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(words, np.uint32).view(np.uint8).view(dtype)
