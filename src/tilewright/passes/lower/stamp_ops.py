"""Stamps, in a traced build only (`kernel.trace`): one thread of each warpgroup notes which op it
comes to, and its clock.

A stamp begins the time of an op, and the next one ends it; number 0 ends an op after which nothing
is stamped. The assembler moves nothing across a clock, so ops that threads compute one after the
other share a stamp: apart they would take more registers and longer.

Stamps are hints, which change no result and no other pass minds: `stamps` chooses the thread,
`stamp` notes a number. They go to a scratch tensor, `SLOTS` for each warp of `BLOCKS` blocks
(`begin_stamps` in threads.cuh).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.ir.exchanges import meets_inside
from tilewright.passes.core import *
from tilewright.passes.lower.lowering import ENGINE_ATOMS

BLOCKS, SLOTS = 4, 4096  # that are traced, evenly over the grid; stamps of a warp of theirs
END = 0  # of an op

_WORK = (Copy, Gemm, Map, Reduce, Scan, Fill, Relayout, Atomic, Intrinsic)
_SILENT = (Alloc, Hint, Let)
_LOUD = (Wait, Arrive, Commit, WaitGroup, Sync, Turn, Break, Continue, While, Atomic)


def is_quiet(op: Op) -> bool:
    """Whether nobody else has to do with an op: no barriers, nothing asynchronous, no tensors."""
    return not any(
        isinstance(inner, _LOUD)
        or (isinstance(inner, Gemm) and inner.atom == "wgmma")
        or any(b.space is Space.GLOBAL for b in (*read_buffers(inner), *written_buffers(inner)))
        for inner in walk_ops(op)
    )


def waits(op: Op) -> bool:
    """Whether threads stand at an op until others are done."""
    if isinstance(op, Sync):
        return op.scope != "warp" and not op.arrive
    return isinstance(op, (Wait, WaitGroup)) or (isinstance(op, Turn) and op.edge == "begin")


def computes(op: Op) -> bool:
    """Whether an op is done by threads alone, which wait for nobody else."""
    if isinstance(op, (For, If)):
        inner = list(walk_ops(op))[1:]
        alone = all(computes(i) or isinstance(i, (*_SILENT, For, If, Store)) for i in inner)
        written_out = isinstance(op, If) or op.kind == "unroll"
        work = any(isinstance(i, _WORK) for i in inner)
        return work and (is_quiet(op) or (written_out and alone))
    if isinstance(op, Copy):
        return op.atom not in ENGINE_ATOMS
    return isinstance(op, _WORK) and not isinstance(op, Gemm)


def is_stamped(op: Op) -> bool:
    """Whether an op has a stamp, or shares one."""
    return waits(op) or computes(op) or isinstance(op, (Copy, Gemm))


@dataclass
class Plan:
    """The stamps of a kernel: of stamp number n the ops are `sites[n - 1]`; `first` is, by a loop's
    id, the number of the stamp with which its iterations begin. `threads` run the ops."""

    stamps: Buffer
    threads: int
    sites: list[list[Op]] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)

    def stamp(self, op: Op) -> Hint:
        self.sites.append([op])
        return Hint("stamp", self.stamps, detail=(len(self.sites),), loc=op.loc)

    def begin(self, first: int, warps: int, loc: Loc | None) -> Hint:
        return Hint("stamps", self.stamps, detail=(BLOCKS, first, gcd(GROUP, warps)), loc=loc)

    def body(self, body: Body, loop: Op | None = None) -> Body:
        """`body` with its stamps; of a `loop`, the next iteration ends the last op."""
        return tuple(self._body(body, loop))

    def _body(self, body: Body, loop: Op | None) -> Iterator[Op]:
        last: Op | None = None  # that is stamped, or holds such ones
        begun = False
        for op in body:
            if loop is not None and not begun and not isinstance(op, _SILENT):
                begun, self.first[id(loop)] = True, len(self.sites) + 1
                if not is_stamped(op):
                    yield self.stamp(loop)
            stamped = is_stamped(op)
            if stamped and last is not None and self.joins(op, last):
                self.sites[-1].append(op)
            elif stamped:
                yield self.stamp(op)
            elif any(map(is_stamped, walk_ops(op))):
                op = self.inside(op)
                stamped = True
            yield op
            last = op if stamped else last
        if last is not None and loop is None:
            yield Hint("stamp", self.stamps, detail=(END,), loc=last.loc)

    def joins(self, op: Op, last: Op) -> bool:
        """Whether an op shares the stamp of the one before; not where threads meet in it."""
        return computes(last) and computes(op) and not meets_inside(op, self.threads)

    def inside(self, op: Op) -> Op:
        """A branch or loop with stamps."""
        if isinstance(op, If):
            return rebuild(op, then=self.body(op.then), orelse=self.body(op.orelse))
        assert isinstance(op, (For, While))
        return rebuild(op, body=self.body(op.body, op))

    def role(self, op: Op) -> Op:
        """A role, or what holds some, with its stamps: code outside of roles has none."""
        if not isinstance(op, Role):
            return map_bodies(op, lambda body: tuple(map(self.role, body)))
        warps = op.warps // op.instances
        self.threads = warps * WARP
        return rebuild(op, body=(self.begin(op.first, warps, op.loc), *self.body(op.body)))


NOWHERE = Buffer("stamps", (), dtype("uint32"), Space.GLOBAL)


def planned(kernel: Kernel, stamps: Buffer = NOWHERE) -> tuple[Plan, Kernel]:
    """What is stamped in a kernel, and the kernel with its stamps."""
    plan = Plan(stamps, kernel.thread_count)
    if any(walk_ops(kernel, Role)):
        body = tuple(map(plan.role, kernel.body))
    else:
        body = (plan.begin(0, GROUP, kernel.loc), *plan.body(kernel.body))
    return plan, rebuild(kernel, body=body)


def stamp_ops(program: Program, target: Target) -> Program:
    """Every kernel with stamps at its waits and tile ops."""
    warps = max((warps_of(kernel) for kernel in program.kernels), default=1)
    shape = tuple(map(const, (BLOCKS * warps + 1, SLOTS, 2)))
    stamps = Buffer(fresh_var("stamps").name, shape, dtype("uint32"), Space.GLOBAL)
    kernels = tuple(planned(kernel, stamps)[1] for kernel in program.kernels)
    return replace(program, kernels=kernels, scratch=(*program.scratch, stamps))


def warps_of(kernel: Kernel) -> int:
    """Of a block."""
    return -(-kernel.thread_count // WARP)
