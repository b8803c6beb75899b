"""Kernels of tile code and of thread code, what is known of them before they run; and the entry
point: bind arguments, compile the program's steps once, run its kernels in order.

A block is run by *agents*, one per outermost role instance (one for the block where a kernel has
no roles; in thread code, one for each warpgroup of a role that takes turns). The threads of an
agent run in step, agents are interleaved as the seed says, and asynchronous ops complete at
moments of the scheduler's choice. Lockstep hides nothing: accesses of shared memory that no
barrier orders are errors whatever the interleaving. In thread code a wait by one thread holds its
whole agent, so warps that wait for each other need roles.
"""

from __future__ import annotations

import random
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import prod
from typing import Any
from weakref import finalize

import numpy as np

from tilewright.ir.atoms import ATOMS
from tilewright.ir.bind import array_sizes, describe
from tilewright.ir.messages import label_kernel
from tilewright.ir.tensor_map import MapHint
from tilewright.machine import flow, thread_async  # noqa: F401  (fill the table)
from tilewright.machine import threads as across  # noqa: F401
from tilewright.machine.core import *
from tilewright.machine.events import HazardWatch
from tilewright.machine.sanitizer import Sanitizer, unwritten
from tilewright.machine.step import Stepper
from tilewright.machine.thread_agents import Plan, ThreadAgent, ThreadBlock
from tilewright.machine.thread_ops import ThreadWatch
from tilewright.machine.tile_agents import KNOWERS, TileAgent, TileBlock
from tilewright.support.errors import SanitizerWarning, locating


def outer_roles(body: Body) -> Iterator[Role]:
    for op in body:
        if isinstance(op, Role):
            yield op
        else:
            for inner in bodies(op):
                yield from outer_roles(inner)


def find_partitions(
    kernel: Kernel, explicit: bool, parts: Callable[[Role], int]
) -> list[Partition]:
    """The block's warps, cut wherever an outermost role or one of its parts begins or ends."""
    total = kernel.warps
    roles = list(outer_roles(kernel.body))
    pieces = []  # the first warp of each, their number, what to call it
    for role in roles:
        count = parts(role)
        share = max(role.warps // count, 1)
        for k in range(count):
            label = role.name if count == 1 else f"{role.name}[{k}]"
            pieces.append((role.first + k * share, share, label, role))
    partitions = []
    edges = {0, total, *(f for f, *_ in pieces), *(f + share for f, share, *_ in pieces)}
    for first, last in pairwise(sorted(edges)):
        names = {}
        for start, share, label, role in pieces:
            if not start <= first < start + share:
                continue
            if last - first == share:
                names[label] = role
            elif explicit:
                raise RunError(
                    f"role {role.name} is cut in two by another role's warps",
                    loc=role.loc,
                    fix="let roles cover equal or disjoint ranges of warps",
                )  # else its agents come together for it
        idle = "warps outside roles" if roles else "all threads"
        partitions.append(Partition(first, last - first, "/".join(names) or idle))
    return partitions


def is_scheduled(kernel: Kernel) -> bool:
    """The kernel places asynchronous operations or roles itself."""
    return any(_schedules(op) for op in walk_ops(kernel))


def _schedules(op: Op) -> bool:
    if isinstance(op, (Role, BarrierInit, Arrive, Wait, Commit, WaitGroup)):
        return True
    if isinstance(op, Sync):
        return op.scope == "named"
    atom = getattr(op, "atom", None)
    return atom in ATOMS and ATOMS[atom].is_async


def is_explicit(kernel: Kernel) -> bool:
    """Every instruction is chosen, so every synchronisation must be there too."""
    tiles = list(walk_ops(kernel, Copy, Gemm))
    return bool(tiles) and all(op.atom is not None for op in tiles)


def needs_block_order(kernel: Kernel) -> bool:
    """Results may depend on the order of blocks."""
    for op in walk_ops(kernel):
        if isinstance(op, Intrinsic):
            reduces = op.name == "bulk_store" and "reduce" in op.fields
            found = reduces or op.name.startswith("atomic")
        elif isinstance(op, Copy):
            found = op.reduce is not None and op.dst.dtype.is_float
        else:
            found = isinstance(op, Atomic) and (op.result is not None or op.dst.dtype.is_float)
        if found:
            return True
    return False


class CompiledKernel(Compiled):
    """A kernel with its ops turned into steps."""

    def __init__(
        self, kernel: Kernel, options: Options, wrap: Callable[[Step], Step] | None = None
    ) -> None:
        kernel = label_kernel(kernel)
        self.kernel, self.options = kernel, options
        self.scheduled = is_scheduled(kernel) or kernel.cluster_size > 1
        explicit = options.explicit
        if explicit is None:
            explicit = self.scheduled and is_explicit(kernel)
        self.explicit, self.scheduled = explicit, self.scheduled or explicit
        evaluate = Evaluator(sanitize=options.sanitize, nan=options.nan)
        builder = Builder(kernel, evaluate, explicit=explicit, wrap=wrap)
        self.grid = [evaluate(g) for g in kernel.grid]
        self.body = builder.body(kernel.body)
        self.partitions = find_partitions(kernel, explicit, lambda role: role.instances)
        self.knowers = KNOWERS * len(self.partitions)
        # shuffled blocks would be hard to follow step by step
        self.in_order = wrap is not None or needs_block_order(kernel)
        self.families = builder.families

    def make_block(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int
    ) -> TileBlock:
        return TileBlock(cluster, index, rank, linear)

    def make_agent(self, block: Block, partition: Partition) -> TileAgent:
        first = block.rank * self.knowers + KNOWERS * self.partitions.index(partition)
        return TileAgent(block, partition, self.options.sanitize, first)

    def watches(self, agent: Agent) -> tuple[Watch, ...]:
        found: list[Watch] = []
        if self.scheduled:
            found.append(HazardWatch(typing.cast("TileAgent", agent), strict=self.explicit))
        if self.options.sanitize:
            races = agent.block.cluster.launch.races
            found.append(Sanitizer(agent, races, threads=not self.scheduled))
        return tuple(found)


_STORES = frozenset("store_global store_packed atomic atomic_of_warp".split())


def is_thread_ir(program: Program) -> bool:
    """Whether tile ops of `program` have become thread code: some have a meaning there alone."""
    found = (op.name for k in program.kernels for op in walk_ops(k, Intrinsic))
    return any(name in THREADS and name not in TILES for name in found)


def _parts(role: Role) -> int:
    """Agents that run a role: its instances; its warpgroups where they wait for each other, each at
    a barrier of its own."""
    groups, rest = divmod(role.warps, 4)
    apart = not all(op.id is None or isinstance(op.id, Const) for op in walk_ops(role.body, Sync))
    return groups if apart and role.instances == 1 and not rest else role.instances


class ThreadKernel(Compiled):
    """A kernel with its ops turned into steps."""

    def __init__(self, kernel: Kernel) -> None:
        kernel = label_kernel(kernel)
        self.kernel = kernel
        self.plan = Plan(kernel)
        self.scheduled = True
        self.knowers = kernel.warps * WARP
        evaluate = Evaluator()
        builder = Builder(kernel, evaluate, explicit=True, threads=True)
        intrinsics = list(walk_ops(kernel, Intrinsic))
        for op in walk_ops(kernel, Hint):
            if op.name == "tensor_map" and op.buffer is not None:
                said = MapHint.of(op)
                builder.maps[said.name] = TensorMap(op.buffer, said.swizzle, said.box, said.sizes)
        builder.registers = {
            a.buffer.name
            for op in intrinsics
            if op.name == "wgmma"
            for a in op.args
            if isinstance(a, Region)
        }
        # tensors of which two threads may disturb each other
        stores = [op.args[0] for op in intrinsics if op.name in _STORES]
        self.written = {
            *(b.name for op in walk_ops(kernel) for b in written_buffers(op)),
            *(a.buffer.name for a in stores if isinstance(a, Region)),
            *(builder.maps[op.fields["map"]].tensor.name
              for op in intrinsics if op.name == "bulk_store"),
        }  # fmt: skip
        self.grid = [evaluate(g) for g in kernel.grid]
        self.body = builder.body(kernel.body)
        self.partitions = find_partitions(kernel, False, _parts)
        self.in_order = needs_block_order(kernel)

    def make_block(
        self, cluster: Cluster, index: tuple[int, ...], rank: int, linear: int
    ) -> ThreadBlock:
        return ThreadBlock(cluster, index, rank, linear, self.plan, self.written)

    def make_agent(self, block: Block, partition: Partition) -> ThreadAgent:
        return ThreadAgent(typing.cast("ThreadBlock", block), partition)

    def watches(self, agent: Agent) -> tuple[Watch, ...]:
        return (ThreadWatch(),)


NOBODY: Any = None

# ── launches ─────────────────────────────────────────────────────────────────────────────────


def run_kernel(launch: Launch, compiled: Compiled, rng: random.Random) -> None:
    probe = Frame(NOBODY, ())
    probe.vars = dict(launch.values)
    grid = tuple(int(g(probe)) for g in compiled.grid)
    if any(n <= 0 for n in grid):
        return
    kernel = compiled.kernel
    shape = ((kernel.cluster or ()) + (1,) * len(grid))[: len(grid)]
    if any(n % c for n, c in zip(grid, shape, strict=True)):
        raise RunError(f"a grid of {grid} does not divide into clusters of {shape}", loc=kernel.loc)
    counts = tuple(n // c for n, c in zip(grid, shape, strict=True))
    order = list(range(prod(counts)))
    if not compiled.in_order:
        rng.shuffle(order)
    launch.races = Conflicts("block", prod(grid))
    for number in order:
        cluster = _cluster(launch, compiled, _unravel(number, counts), shape, grid)
        run_cluster(cluster, rng)
        cluster.forget()
    for memory in launch.memories.values():
        memory.storage.accesses.clear()  # the end of a kernel is the end of all that it began


def _cluster(
    launch: Launch, compiled: Compiled, corner: tuple[int, ...], shape: tuple[int, ...],
    grid: tuple[int, ...],
) -> Cluster:  # fmt: skip
    cluster = Cluster(launch, compiled, prod(shape))
    for rank in range(prod(shape)):
        inner = _unravel(rank, shape)
        index = tuple(c * s + i for c, s, i in zip(corner, shape, inner, strict=True))
        block = compiled.make_block(
            cluster, index, rank, int(np.ravel_multi_index(index, grid, order="F"))
        )
        cluster.blocks.append(block)
        block.agents = [compiled.make_agent(block, partition) for partition in compiled.partitions]
        for agent in block.agents:
            agent.enter()
            agent.flow = compiled.body(agent.frame)
    return cluster


def _unravel(number: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """The coordinates of a linear number, axis 0 fastest."""
    return tuple(map(int, np.unravel_index(number, shape, order="F")))


# ── clusters ─────────────────────────────────────────────────────────────────────────────────


def run_cluster(cluster: Cluster, rng: random.Random) -> None:
    """Interleave the agents until all are done."""
    try:
        with locating(cluster.where):
            _interleave(cluster, rng)
    except RunError as error:
        if cluster.running is not None:
            tell(error, cluster.running)
        raise


def _interleave(cluster: Cluster, rng: random.Random) -> None:
    live = [agent for block in cluster.blocks for agent in block.agents]
    if len(live) == 1 and not cluster.compiled.scheduled:
        cluster.running = live[0]
        for why in live[0].flow:
            if why is not None and not why.ready():
                raise _deadlock(cluster, live)
        return
    pending = cluster.pending
    while live:
        ready = [a for a in live if a.blocked is None or a.blocked.ready()]
        # mostly as late as the waits allow, so that nothing works by luck
        if pending and (not ready or rng.random() < 0.1):
            pending[rng.randrange(len(pending))].complete()
            continue
        if not ready:
            raise _deadlock(cluster, live)
        agent = ready[rng.randrange(len(ready))] if len(ready) > 1 else ready[0]
        agent.blocked = None
        cluster.running = agent
        try:
            agent.blocked = next(agent.flow)
        except StopIteration:
            agent.done = True
            live.remove(agent)
            agent.leave()
        cluster.running = None
    while pending:
        pending[0].complete()


def _deadlock(cluster: Cluster, live: list[Agent]) -> RunError:
    cluster.running = None
    notes = []
    for agent in live:
        why = agent.blocked.why() if agent.blocked is not None else "nothing"
        notes.append(f"{agent} stands in {describe_op(agent.frame.op)}, waiting for {why}")
    first = live[0].frame.op
    return RunError(
        "deadlock: no agent can go on",
        loc=first.loc if first is not None else None,
        notes=tuple(notes),
    )


@dataclass
class RunResult:
    """What a run left behind besides the arrays it changed in place."""

    sizes: dict[str, int]
    printed: list[str] = field(default_factory=list)
    warnings: list[SanitizerWarning] = field(default_factory=list)


_compiled: dict[Any, list[CompiledKernel | ThreadKernel]] = {}


def compiled_kernels(program: Program, options: Options) -> list[CompiledKernel | ThreadKernel]:
    """The program's kernels as steps, kept as long as the program."""
    key = (id(program), replace(options, seed=0))
    if key not in _compiled:
        _compiled[key] = [
            ThreadKernel(k) if options.threads else CompiledKernel(k, options)
            for k in program.kernels
        ]
        finalize(program, _compiled.pop, key, None)
    return _compiled[key]


def run(
    program: Program,
    args: Mapping[str, Any],
    *,
    sanitize: bool = False,
    nan: bool = False,
    seed: int = 0,
    explicit: bool | None = None,
    threads: bool | None = None,
    stepper: Stepper | None = None,
    made: Collection[str] = (),
) -> RunResult:
    """Run `program` on NumPy arrays, which are changed in place.

    `args` maps parameter names to arrays (of `DType.numpy`, one item per element) or numbers.
    `sanitize` reports what a kernel must not do as `SanitizerError`; `nan` also a NaN born where
    no operand had one. `seed` picks block order and interleavings. `explicit` says whether the
    kernel places every synchronisation between its own threads itself; by default that holds for
    kernels with roles, barriers or asynchronous instructions in which every instruction is chosen.
    `threads` says whether the program is at stage THREAD (`run_threads`); by default that is seen
    from its instructions. `stepper` is told before each op, and blocks run in linear order then.
    `made` names tensors that hold nothing yet: to the sanitizer, what the kernels do not write in
    them is uninitialised, and elements that stay so are warned of.
    """
    threads = is_thread_ir(program) if threads is None else threads
    options = Options(sanitize and not threads, nan, seed, explicit, threads)
    with np.errstate(all="ignore"):
        if stepper is None or threads:
            kernels = compiled_kernels(program, options)
        else:
            kernels = [CompiledKernel(k, options, stepper.wrap(k)) for k in program.kernels]
        call = _Call(program, args, kernels, options)
        call.forget(made)
        launch = Launch(call.memories, call.values, options, call.say)
        rng = random.Random(seed)
        for kernel in kernels:
            run_kernel(launch, kernel, rng)
        call.result.warnings += launch.warnings.values()
        call.warn_unwritten(made)
        return call.finish()


def run_threads(program: Program, args: Mapping[str, Any], *, seed: int = 0) -> RunResult:
    """Run `program`, which is at stage THREAD, on NumPy arrays, which are changed in place.

    Shared memory is bytes at the buffers' places. Errors are: accesses of it that no barrier
    orders, accesses outside of tensors, barriers that some threads do not reach, asynchronous
    operations that nothing waits for. `seed` picks block order, interleavings, the moments at
    which asynchronous operations complete and the lane that `elect` picks. Elements of less than
    a byte, for which a lowered program has bytes, are packed before and unpacked after.
    """
    return run(program, args, seed=seed, threads=True)


def _as_given(param: Parameter, args: Mapping[str, Any]) -> Parameter:
    """`param`, of bytes, as the tensor that it was where elements of less than a byte are given."""
    array = args.get(param.name)
    if not isinstance(param, Buffer) or not isinstance(array, np.ndarray):
        return param
    kind = next((d for d in DTYPES.values() if d.packed and d.numpy == array.dtype), None)
    if kind is None or param.dtype.name != "uint8":
        return param
    row = param.shape[-1]
    halved = isinstance(row, Bin) and row.op == "//"
    last = row.a if isinstance(row, Bin) and halved else row * (8 // kind.bits)
    return replace(param, dtype=kind, shape=(*param.shape[:-1], last))


class _Call:
    """The arguments of one run as memories and values, and its result."""

    def __init__(
        self,
        program: Program,
        args: Mapping[str, Any],
        kernels: list[CompiledKernel | ThreadKernel],
        options: Options,
    ) -> None:
        self.track, self.lowered = options.sanitize, dict[str, Parameter]()
        if options.threads:
            self.lowered = {p.name: p for p in program.params}
            given = tuple(_as_given(p, args) for p in program.params)
            program = replace(program, params=given)
        families = {name: f for k in kernels for name, f in k.families.items()}
        arrays = {t.name: _array(t, args) for t in program.tensors}
        sizes = array_sizes(program, arrays)
        self.values: dict[str, Any] = {v.name: v.dtype.numpy.type(n) for v, n in sizes.items()}
        for scalar in program.scalars:
            self.values[scalar.name] = _scalar(scalar, args)
        self.probe = Frame(NOBODY, ())
        self.probe.vars = dict(self.values)
        # arrays that are not the memory themselves, and what they become
        self.back: list[tuple[np.ndarray[Any, Any], Callable[[], Any]]] = []
        self.memories = {
            t.name: self.memory(t, arrays.get(t.name), families.get(t.name), bool(program.kernels))
            for t in (*program.tensors, *program.scratch)
        }
        for memory in self.memories.values():
            memory.pads = not options.threads  # thread code carries its guards
        self.result = RunResult({v.name: n for v, n in sizes.items()})

    def memory(self, tensor: Buffer, given: Any, family: Family | None, checked: bool) -> Memory:
        evaluate, array = Evaluator(), given
        shape = tuple(int(evaluate(s)(self.probe)) for s in tensor.shape)
        if array is not None and checked and array.shape != shape:
            raise LaunchError(
                f"{tensor.name} has the wrong shape",
                expected=f"{describe(tensor.shape)} = {shape}",
                got=array.shape,
            )
        shape = shape if array is None else array.shape
        lowered = self.lowered.get(tensor.name, tensor)
        if isinstance(lowered, Buffer) and lowered is not tensor:
            raw = pack(array, tensor.dtype)
            if given.flags.writeable:
                self.back.append((given, lambda: unpack(raw, tensor.dtype)))
            return allocate(lowered, raw.shape, array=raw)
        if array is not None and family and (family.packed or not array.flags.c_contiguous):
            array = np.ascontiguousarray(array)
        unit, packed = (family.unit, family.packed) if family else (0, False)
        found = allocate(tensor, shape, array=array, unit=unit, packed=packed, track=self.track)
        if array is not given or (array is not None and packed):
            self.back.append((given, lambda: found.data))
        return found

    def say(self, line: str) -> None:
        self.result.printed.append(line)
        print(line)

    def forget(self, made: Collection[str]) -> None:
        """These tensors hold nothing until something is written to them."""
        for name in made if self.track else ():
            memory = self.memories[name]
            memory.storage.valid = np.zeros(memory.storage.units, np.bool_)

    def warn_unwritten(self, made: Collection[str]) -> None:
        for name in made if self.track else ():
            found = unwritten(self.memories[name])
            if found is not None:
                self.result.warnings.append(found)

    def finish(self) -> RunResult:
        for array, value in self.back:
            array[...] = value()
        return self.result


def _array(tensor: Buffer, args: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    if tensor.name not in args:
        raise LaunchError(f"no argument for {tensor.name}")
    value = args[tensor.name]
    if not isinstance(value, np.ndarray):
        raise LaunchError(
            f"{tensor.name} must be a NumPy array here", got=f"a {type(value).__name__}"
        )
    if value.dtype != tensor.dtype.numpy:
        raise LaunchError(
            f"{tensor.name} has the wrong element type",
            expected=tensor.dtype.numpy,
            got=value.dtype,
        )
    return value


def _scalar(var: Var, args: Mapping[str, Any]) -> Any:
    if var.name not in args:
        raise LaunchError(f"no argument for {var.name}")
    return np.asarray(args[var.name]).astype(var.dtype.numpy)[()]
