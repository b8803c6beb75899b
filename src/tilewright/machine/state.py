"""What there is while a kernel runs: the launch, clusters, blocks, agents and their frames.

A block is run by *agents*: one for each outermost role instance, or one for the block where a
kernel has no roles. Agents that run tile code are in `tile_agents.py`, those that run thread code
in `thread_agents.py`; they differ in what a barrier or a group means to their threads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.machine.conflicts import Conflicts, Touch
from tilewright.machine.memory import Memory
from tilewright.machine.numbers import Array, Value
from tilewright.machine.sync import Blocked, Cell, Clocks, Groups, Meeting, Party, Transfer
from tilewright.support.errors import SanitizerWarning, occurrence

Where = tuple[Any, ...]


@dataclass(frozen=True)
class Options:
    sanitize: bool = False
    nan: bool = False
    seed: int = 0
    explicit: bool | None = None
    threads: bool = False  # stage THREAD


@dataclass(frozen=True)
class Partition:
    """The warps of one agent, and what to call it."""

    first: int
    warps: int
    name: str


# ── frames ───────────────────────────────────────────────────────────────────────────────────


class Frame:
    """What one agent knows while it runs: variables, buffers, lanes and the mask over them."""

    __slots__ = ("agent", "broke", "bufs", "grid", "in_map", "lanes", "layout", "marks", "mask",
                 "op", "outside", "pattern", "stop", "storing", "vars", "watches")  # fmt: skip

    def __init__(self, agent: Agent, lanes: tuple[int, ...], grid: tuple[Array, ...] = ()) -> None:
        self.agent = agent
        self.vars: dict[str, Value] = {}
        self.bufs: dict[str, Memory] = {}
        self.mask: Array | None = None
        self.lanes = lanes
        self.grid = grid
        self.in_map = False
        self.layout: Any = None  # of the map that is running
        # which map axes index the buffer being accessed, in order, and the box that they span
        self.pattern: tuple[tuple[int, ...], Where] | None = None
        self.op: Op | None = None
        self.stop: Array | None = None  # lanes that left the current iteration
        self.broke: Array | None = None  # lanes that left the current loop
        self.watches: tuple[Watch, ...] = ()
        # of values, to the sanitizer (padding.py): marks of variables, of what is being stored, and
        # whether a load went outside a tensor
        self.marks: dict[str, Any] | None = None
        self.storing: Any = None
        self.outside = False

    def loc(self, node: Load | None = None) -> Loc | None:
        own = self.op.loc if self.op is not None else None
        return own if node is None else occurrence(node.loc, own)

    def touch(
        self, kind: str, mem: Memory, where: Where, owners: Any = None, node: Load | None = None,
        value: Any = None,
    ) -> None:  # fmt: skip
        """Tell the watchers of an access."""
        touch = Touch(kind, mem, where, owners, self.loc(node), value)
        for watch in self.watches:
            watch.access(self, touch)

    @property
    def exact(self) -> bool:
        """Some watcher wants lanes and masks spelt out, not boxes."""
        return any(watch.exact for watch in self.watches)

    @property
    def is_partial(self) -> bool:
        """Some lanes do not run this."""
        return self.mask is not None and not self.mask.all()

    def active(self, shape: tuple[int, ...]) -> Array:
        """The mask broadcast to `shape`."""
        return np.broadcast_to(True if self.mask is None else self.mask, shape)


class Watch:
    """Sees every access of memory."""

    exact = False

    def access(self, fr: Frame, t: Touch) -> None:
        raise NotImplementedError

    def registers(self, fr: Frame, mem: Memory, idx: Where, kind: str) -> bool:
        """Told of registers by their numbers alone; False where it wants to know whose they are."""
        return False

    def enter_map(self, fr: Frame) -> None:
        """An elementwise map begins."""

    def leave_map(self, fr: Frame) -> None:
        """An elementwise map ends."""

    def synced(self, fr: Frame, scope: str) -> None:
        """The agent's threads met: scope 'block' or 'warp'."""

    def met_inside(self, fr: Frame, op: Op) -> bool:
        """Whether the agent's threads meet inside `op`, which they have begun."""
        return False


# ── agents ───────────────────────────────────────────────────────────────────────────────────


class Agent:
    """One coroutine over the kernel's body: a role instance, or a whole block."""

    sanitize = False
    joint = False  # stands for several agents that came together
    witnesses: Array  # of whom one has to know what happens to the block's memory
    # what barriers and groups mean to its threads:
    party: Callable[[Frame], Party]  # those that run this,
    parties: Callable[[Frame, Sequence[tuple[Value, str]]], list[Party]]  # that agree on all values
    one: Callable[[Frame], Party | None]  # that initialises barriers, where it is this agent's
    syncs_alone: Callable[[Frame, Sync], bool]  # a barrier of threads concerns nobody else
    groups_of: Callable[[Frame, str, str], list[Groups]]  # of the running threads, of a unit
    note_over: Callable[..., None]  # they have waited for all groups up to a number
    show_writes: Callable[[Frame], None]  # what they wrote, to the async proxy
    end_reads: Callable[[Party], None]  # they signal a barrier after them, or fence

    def __init__(self, block: Block, partition: Partition) -> None:
        self.block, self.partition = block, partition
        self.first_warp, self.last_warp = partition.first, partition.first + partition.warps - 1
        total = block.cluster.compiled.kernel.thread_count
        self.ids: Array = np.arange(
            partition.first * WARP,
            min((partition.first + partition.warps) * WARP, total),
            dtype=np.int32,
        )
        self.positions: Array = np.arange(self.ids.size, dtype=np.int32)
        self.clocks: Clocks = block.cluster.clocks
        self.groups: dict[Any, Groups] = {}
        self.blocked: Blocked | None = None
        self.frame = self.current = Frame(self, (self.ids.size,), (self.positions,))
        self.flow: Iterator[Any] = iter(())
        self.done = False
        self.fenced = 0  # tick of the last `fence wgmma`
        self.apart = False  # threads of one warp may know different things
        self._time = 0

    def enter(self) -> None:
        """Know what there is at the start: indices, tensors, watchers."""
        block, fr = self.block, self.frame
        launch, compiled = block.cluster.launch, block.cluster.compiled
        kernel = compiled.kernel
        fr.vars.update(launch.values)
        for var, i in zip(kernel.blocks, block.index, strict=True):
            fr.vars[var.name] = var.dtype.numpy.type(i)
        rest = self.ids
        for var, n in zip(kernel.thread_vars, kernel.threads, strict=True):
            fr.vars[var.name] = (rest % n).astype(var.dtype.numpy)
            rest = rest // n
        if kernel.rank is not None:
            fr.vars[kernel.rank.name] = kernel.rank.dtype.numpy.type(block.rank)
        fr.bufs.update(launch.memories)
        fr.watches = compiled.watches(self)

    def forget(self) -> None:
        del self.frame, self.current, self.flow

    def tick(self) -> int:
        """A moment later than all before, in this agent's life."""
        self._time += 1
        return self._time

    def lane_ids(self, fr: Frame) -> Array:
        return np.arange(prod(fr.lanes)).reshape(fr.lanes) if fr.in_map else self.ids

    def divergent(self, fr: Frame, op: Sync) -> RunError:
        """A barrier that only some of the threads reach hangs."""
        count = int((~fr.active(fr.lanes)).sum())
        message = f"{count} threads do not reach this barrier of the {op.scope}"
        fix = "move the barrier out of the guard that differs between threads"
        if self.sanitize:
            return SanitizerError("divergent-barrier", message, fix=fix)
        return RunError(f"divergent-barrier: {message}", fix=fix)

    def require_fenced(self, mem: Memory) -> None:
        """A matrix instruction is about to use these registers."""
        if mem.storage.touched >= self.fenced:
            raise RunError(
                f"ordinary code touched the registers of {mem.name}, and no fence orders that "
                "before this matrix instruction",
                fix="execute `fence wgmma` between the two",
            )

    def leave(self) -> None:
        """The agent is done; nothing it started may outlive what it uses."""
        for groups in self.groups.values():
            groups.require_over(self, self.clocks)
        if all(a.done for a in self.block.agents):
            self.block.end()

    def __str__(self) -> str:
        return f"{self.partition.name} of block {self.block.index}"


class Block:
    """One block: its memory, barriers and agents."""

    def __init__(self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int) -> None:
        self.cluster, self.index, self.rank, self.linear = cluster, index, rank, linear
        self.cells: dict[tuple[str, tuple[int, ...]], Cell] = {}
        self.meetings: dict[Any, Meeting] = {}
        self.incoming: list[Any] = []  # asynchronous writes of its memory
        self.exited = False
        self.agents: list[Agent] = []
        self.memories: dict[str, Memory] = {}

    def own_memory(self, buffer: Buffer, make: Callable[[], Memory]) -> Memory:
        """A shared buffer, or a fragment over all threads of the block; made once."""
        if buffer.name not in self.memories:
            self.memories[buffer.name] = make()
            self.memories[buffer.name].storage.owner = self
        return self.memories[buffer.name]

    def existing(self, name: str) -> Memory:
        """Shared memory that another block may use."""
        if name not in self.memories:
            raise RunError(
                f"{name} does not exist yet in block {self.index}",
                fix="synchronise the cluster before using another block's memory",
            )  # fmt: skip
        return self.memories[name]

    def knows(self, entity: int, time: int) -> bool:
        """Whether someone of the block knows of that."""
        rows = np.concatenate([a.witnesses for a in self.agents])
        return self.cluster.clocks.has(rows, entity, time)

    def end(self) -> None:
        """Nothing may come after a block that uses its memory or its barriers."""
        for cell in self.cells.values():
            for party, time, op in cell.remote:
                if not self.knows(int(party.ids[0]), time):
                    raise RunError(
                        f"block {self.index} ends without knowing of an arrival on {cell.name}",
                        loc=op.loc,
                        notes=(f"by {party.agent}",),
                        fix="wait for the barrier's last phase, or synchronise the cluster, first",
                    )
        self.exited = True

    def forget(self) -> None:
        for agent in self.agents:
            agent.forget()
        for memory in self.memories.values():
            memory.storage.owner = None
        for known in (self.agents, self.memories, self.cells, self.incoming):
            known.clear()

    def require_alive(self, name: str) -> None:
        if self.exited:
            raise RunError(
                f"{name} is in block {self.index}, which has ended",
                fix="keep the block alive: synchronise the cluster, or drain its barriers, at the "
                "end",
            )


class Cluster:
    """Blocks that run together; a cluster of one where the kernel has none."""

    def __init__(self, launch: Launch, compiled: Compiled, blocks: int) -> None:
        self.launch, self.compiled = launch, compiled
        knowers = compiled.knowers * blocks
        self.clocks = Clocks(knowers, watching=knowers * knowers <= compiled.most)
        self.blocks: list[Block] = []
        self.pending: list[Transfer] = []
        self.meetings: dict[Any, Meeting] = {}
        self.running: Agent | None = None  # who is to be asked when something fails

    def where(self) -> Loc | None:
        """The op that runs, to which errors point."""
        return None if self.running is None else self.running.current.loc()

    def forget(self) -> None:
        """The end: memory, and who knows each other, waits for no collection of garbage."""
        self.running = None
        for block in self.blocks:
            block.forget()
        self.blocks.clear()

    def block(self, rank: int) -> Block:
        if not 0 <= rank < len(self.blocks):
            raise RunError(f"there is no block {rank} in a cluster of {len(self.blocks)}")
        return self.blocks[rank]


class Compiled:
    """A kernel with its ops turned into steps."""

    kernel: Kernel
    grid: list[Callable[[Frame], Value]]
    body: Callable[[Frame], Any]
    partitions: list[Partition]
    scheduled: bool  # agents wait for each other or for asynchronous ops
    in_order: bool  # blocks run in linear order, since results may depend on it
    knowers: int  # of a block, to the clocks
    families: Mapping[str, Any] = {}  # buffers that share memory
    make_block: Callable[[Cluster, tuple[int, ...], int, int], Block]  # index, rank, linear
    make_agent: Callable[[Block, Partition], Agent]
    watches: Callable[[Agent], tuple[Watch, ...]]  # what sees the accesses of an agent
    most = 1 << 24  # entries of the clocks; larger clusters run unwatched


@dataclass
class Launch:
    """One run of a program."""

    memories: dict[str, Memory]
    values: dict[str, Any]
    options: Options
    say: Callable[[str], None]
    races: Conflicts = field(default_factory=lambda: Conflicts("block"))
    warnings: dict[Any, SanitizerWarning] = field(default_factory=dict)  # once per op


MANY = 8  # values that are told at most


def in_lane(error: RunError, fr: Frame, wrong: Any) -> RunError:
    """`error`, born in the first lane for which `wrong` holds."""
    shape = np.shape(wrong)
    if len(shape) <= len(fr.lanes) and np.broadcast_shapes(shape, fr.lanes) == fr.lanes:
        error.__dict__["lane"] = int(np.argmax(np.broadcast_to(wrong, fr.lanes)))
    return error


def of_owner(error: RunError, fr: Frame, t: Touch, wrong: Any) -> RunError:
    """`error`, born in the lane that touches the first element for which `wrong` holds."""
    lanes = np.shape(t.owners)
    owners = np.asarray(t.owners).reshape(-1)
    if not owners.size or not all(isinstance(i, np.ndarray) for i in t.where):
        return error
    if np.size(wrong) == 1:  # a variable that all lanes have in common
        wrong = np.full(owners.size, bool(np.any(wrong)))
    flags = np.asarray(wrong).reshape(owners.size, -1).any(axis=1)
    if flags.any():
        shape = t.mem.lead + t.mem.shape
        places = [np.broadcast_to(i, lanes).reshape(-1) for i in t.where]
        flat = np.ravel_multi_index(places, shape) if places else np.zeros(owners.size)
        first = int(owners[flags][int(np.argmin(flat[flags]))])
        error.__dict__["lane"] = first if fr.in_map else first - int(fr.agent.ids[0])
    return error


def tell(error: RunError, agent: Agent) -> None:
    """Add to the error where and with what values it happened, once."""
    fr = agent.frame
    if error.__dict__.setdefault("told", fr) is not fr:
        return
    lane = error.__dict__.get("lane")
    where = f"block {tuple(agent.block.index)}"
    if agent.partition.name != "all threads":
        where += f", {agent.partition.name}"
    at: tuple[int, ...] = ()
    if lane is not None and 0 <= lane < int(np.prod(fr.lanes)):
        at = tuple(int(i) for i in np.unravel_index(lane, fr.lanes))
        where += f", iteration {at}" if fr.in_map else f", thread {int(agent.ids[at[0]])}"
    values = ", ".join(f"{name} = {value}" for name, value in _values(fr, at))
    note = f"in {where}" + (f": {values}" if values else "")
    found = error.diagnostic
    error.diagnostic = replace(found, notes=(*found.notes, note))


def describe_op(op: Op | None) -> str:
    """An op and where it stands, in words."""
    name = op.name if isinstance(op, Intrinsic) else type(op).__name__
    return name + (f" at {op.loc}" if op is not None and op.loc is not None else "")


def _values(fr: Frame, at: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The scalars that the op mentions, those of the failing lane where they differ."""
    if fr.op is None:
        return []
    found = []
    for name in sorted({v.name for e in expressions(fr.op) for v in variables(e)}):
        value = fr.vars.get(name)
        if value is None or (value.ndim and not at):
            continue
        if value.ndim:
            try:
                value = np.broadcast_to(value, fr.lanes)[at]
            except ValueError:
                continue
        found.append((name, value))
    return found[:MANY]
