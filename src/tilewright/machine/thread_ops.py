"""Meaning of thread IR: what a table entry may use, elements of memory, and allocation.

Loops, branches and names mean what they mean everywhere (`flow.py`); values are vectors over the
threads of one agent, which run in step under a mask.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

import numpy as np

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Expr, Load
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import (
    Alloc,
    Break,
    Continue,
    For,
    Hint,
    If,
    Intrinsic,
    Let,
    Op,
    Role,
    Store,
    View,
    While,
)
from tilewright.machine import lanes
from tilewright.machine.evaluate import Eval, Evaluator, _Writer
from tilewright.machine.lanes import Frame, TileRegion, Where
from tilewright.machine.meaning import MEANINGS, Builder, Meaning, Step
from tilewright.machine.memory import Array, Memory, describe_index
from tilewright.machine.numbers import Value, cast_fn
from tilewright.support.errors import RunError

if TYPE_CHECKING:
    from tilewright.machine.thread_machine import ThreadAgent

WARP = 32
OPS: dict[type[Op], Meaning] = {
    op: MEANINGS[op] for op in (For, While, If, Break, Continue, Let, Role, Hint)
}
INSTRUCTIONS: dict[str, Meaning] = {}
_M = TypeVar("_M", bound=Callable[..., Any])


def thread_meaning(*ops: type[Op]) -> Callable[[_M], _M]:
    """Registers the meaning of an op class at stage THREAD."""

    def register(fn: _M) -> _M:
        OPS.update(dict.fromkeys(ops, fn))
        return fn

    return register


def instruction(*names: str) -> Callable[[_M], _M]:
    """Registers the meaning of intrinsics by name."""

    def register(fn: _M) -> _M:
        INSTRUCTIONS.update(dict.fromkeys(names, fn))
        return fn

    return register


class ThreadEvaluator(Evaluator):
    """Expressions whose loads are watched, and must stay inside of tensors."""

    def _compile(self, expr: Expr, index: bool) -> Eval:
        if not expr.children and not isinstance(expr, Load):
            return super()._compile(expr, index)
        writer = _Writer(self)
        writer.names["gather"] = gather
        return writer.compile(expr, index)


@dataclass
class TensorMap:
    """A tensor, the box that one copy moves, and the swizzle in bytes."""

    tensor: Buffer
    swizzle: int
    box: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def seen(self, data: Array) -> Array:
        """The tensor as the box sees it: under the shape of a view; with one dimension more, rows
        lie in pieces."""
        if self.sizes:
            data = data.reshape(self.sizes)
        if len(self.box) == data.ndim:
            return data
        return data.reshape(*data.shape[:-1], -1, self.box[-1])


@dataclass
class ThreadBuilder(Builder):
    """Turns the ops of one kernel at stage THREAD into steps."""

    maps: dict[str, TensorMap] = field(default_factory=dict)

    def step(self, op: Op) -> Step:
        found = OPS.get(type(op))
        if isinstance(op, Intrinsic):
            found = INSTRUCTIONS.get(op.name)
            if found is None and op.name in INTRINSICS and INTRINSICS[op.name].opaque:
                found = MEANINGS[Intrinsic]
            if found is None:
                raise RunError(
                    f"the interpreter has no meaning for intrinsic {op.name}",
                    loc=op.loc,
                    expected="one of " + ", ".join(sorted(INSTRUCTIONS)),
                )
        if found is None:
            raise RunError(
                f"the interpreter has no meaning for {type(op).__name__} at stage THREAD",
                loc=op.loc,
            )
        return found(self, op)

    def operand(self, arg: Expr | Region) -> Any:
        return self.evaluate.region(arg) if isinstance(arg, Region) else self.evaluate(arg)


def fields_of(op: Intrinsic) -> dict[str, str]:
    """The `key=value` words of an instruction's text."""
    return dict(word.split("=", 1) for word in op.text.split())


# ── threads ──────────────────────────────────────────────────────────────────────────────────


def agent_of(fr: Frame) -> ThreadAgent:
    return cast("ThreadAgent", fr.agent)


def active(fr: Frame) -> Array:
    """The positions of the threads that run this."""
    if fr.mask is None:
        return agent_of(fr).positions
    mask = fr.mask if fr.mask.shape == fr.lanes else np.broadcast_to(fr.mask, fr.lanes)
    found: Array = mask.nonzero()[0]
    return found


def in_threads(fr: Frame, value: Value, lanes_: Array) -> Array:
    """`value` in the threads at these positions."""
    if not value.ndim:
        return np.full(lanes_.shape, value)
    found: Array = (value if value.shape == fr.lanes else np.broadcast_to(value, fr.lanes))[lanes_]
    return found


def spread(fr: Frame, value: Value) -> Array:
    """`value` in every thread of the agent."""
    return np.broadcast_to(value, fr.lanes)


def agreed(fr: Frame, value: Value, what: str, among: Array | None = None) -> int:
    """`value` as an integer on which the running threads (or those `among` them) agree."""
    if not value.ndim:
        return int(value)
    values = value[active(fr) if among is None else among]
    if (values != values[0]).any():
        raise RunError(f"{what} differs between threads that run this together", loc=fr.loc())
    return int(values[0])


def warps_of(fr: Frame) -> list[Array]:
    """The running threads by warp."""
    lanes_ = active(fr)
    return np.split(lanes_, np.flatnonzero(np.diff(lanes_ // WARP)) + 1)


def whole_groups(fr: Frame, size: int, what: str) -> Array:
    """The running threads in groups of `size` consecutive ones, each of which is complete."""
    lanes_ = active(fr)
    groups: Array | None = lanes_.reshape(-1, size) if lanes_.size % size == 0 else None
    if groups is None or (
        (groups[:, 0] % size).any() or (groups[:, -1] - groups[:, 0] != size - 1).any()
    ):
        raise not_together(fr, "a warp" if size == WARP else "a warpgroup", what)
    return groups


def not_together(fr: Frame, group: str, what: str) -> RunError:
    return RunError(
        f"{what} is for all threads of {group} together",
        loc=fr.loc(),
        got=f"{active(fr).size} threads of {fr.lanes[0]}",
        fix="move it out of the guard that differs between threads",
    )


# ── elements of memory ───────────────────────────────────────────────────────────────────────


def gather(fr: Frame, mem: Memory, idx: Where, node: Load | None) -> Value:
    """The elements at `idx`: inside of tensors, and known to be there."""
    if mem.space is Space.LOCAL:
        if mem.name in agent_of(fr).matrix:
            use_registers(fr, mem, idx, 1, writes=False)
    elif mem.is_global:
        require_inside(fr, mem, idx, 1, node)
        note_global(fr, mem, idx, 1, "read")
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
            note_global(fr, mem, idx, 1, "write", in_threads(fr, value, active(fr)))
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
    address = agent.block.shared.address(mem.name, flat)
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
    if mem.name not in agent.block.cluster.compiled.written:
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
    cluster = agent_of(fr).block.cluster
    if mem.name not in cluster.compiled.written or not units.size:
        return
    op = fr.op
    assert op is not None
    cluster.launch.require_apart(cluster, mem, units, kind, op)
    shadow = cluster.tensor_shadow(mem)
    {"read": shadow.read, "write": shadow.write, "atomic": shadow.update}[kind](units, actors, op)
    agent_of(fr).apart = True


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
    shadow = agent.block.shadow
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
    first = agreed(fr, idx[0], "a register's index") if idx else 0
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


def read_registers(fr: Frame, tile: TileRegion, count: int, *, ordinary: bool = True) -> Array:
    """`count` registers from a region's start on: [thread, register]."""
    mem = fr.memory(tile.region.buffer.name)
    idx = tuple(s(fr) for s in tile.starts)
    first = _first_register(fr, mem, idx, count)
    if ordinary and mem.name in agent_of(fr).matrix:
        use_registers(fr, mem, idx, count, writes=False)
    data = mem.data.reshape(*mem.lead, -1)
    return np.broadcast_to(data[..., first : first + count], (fr.lanes[0], count))


def write_registers(fr: Frame, tile: TileRegion, values: Array, *, ordinary: bool = True) -> None:
    """Store [thread, register] in the running threads."""
    mem = fr.memory(tile.region.buffer.name)
    idx = tuple(s(fr) for s in tile.starts)
    count = values.shape[1]
    first = _first_register(fr, mem, idx, count)
    if ordinary and mem.name in agent_of(fr).matrix:
        use_registers(fr, mem, idx, count, writes=True)
    if not mem.lead:
        mem.spread(fr.lanes)
    data = mem.data.reshape(fr.lanes[0], -1)
    mine = active(fr)
    data[mine, first : first + count] = values[mine]


def _first_register(fr: Frame, mem: Memory, idx: Where, count: int) -> int:
    first = agreed(fr, idx[0], "a register's index") if idx else 0
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


# ── ops ──────────────────────────────────────────────────────────────────────────────────────


@thread_meaning(Alloc)
def run_alloc(b: ThreadBuilder, op: Alloc) -> Step:
    name, space = op.buffer.name, op.buffer.space
    if space in (Space.LOCAL, Space.GLOBAL):
        return MEANINGS[Alloc](b, op)
    if space not in (Space.SHARED, Space.BARRIER):
        raise RunError(f"{name} is a {space.value}, which threads do not have", loc=op.loc)

    def run(fr: Frame) -> None:
        if space is Space.SHARED:
            fr.bufs[name] = agent_of(fr).block.shared.memories[name]

    return Step(op, run)


@thread_meaning(View)
def run_view(b: ThreadBuilder, op: View) -> Step:
    if op.buffer.space is not Space.SHARED:
        return MEANINGS[View](b, op)

    def run(fr: Frame) -> None:
        fr.bufs[op.buffer.name] = agent_of(fr).block.shared.memories[op.buffer.name]

    return Step(op, run)


@thread_meaning(Store)
def run_store(b: ThreadBuilder, op: Store) -> Step:
    indices = [b.evaluate(i) for i in op.indices]
    value = b.evaluate(op.value)
    to, name = cast_fn(op.value.dtype, op.buffer.dtype), op.buffer.name

    def run(fr: Frame) -> None:
        idx = tuple(i(fr) for i in indices)
        scatter(fr, fr.memory(name), idx, to(value(fr)))

    return Step(op, run)
