"""Stamps, in a traced build only (`kernel.trace`): one thread of each warpgroup notes which op it
comes to, and its clock.

A stamp begins the time of an op, and the next one ends it; number 0 ends an op after which nothing
is stamped. Stamps are hints, which change no result and no other pass minds: `stamps` chooses the
thread, `stamp` notes a number. They go to a scratch tensor, `SLOTS` for each warp of `BLOCKS`
blocks, and to slot 0 what a section begins with (`begin_stamps` in tilewright.cuh).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.passes.core import *
from tilewright.passes.overlap import unit_times as rates

BLOCKS, SLOTS = 4, 4096  # that are traced, evenly over the grid; stamps of a warp of theirs
END = 0  # of an op
LEAST = 32  # cycles of what has a stamp of its own

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


def is_stamped(op: Op) -> bool:
    """Whether an op has a stamp of its own: a wait, a tile op, or a loop of nothing else."""
    if isinstance(op, For):
        return is_quiet(op) and any(isinstance(inner, _WORK) for inner in walk_ops(op))
    return waits(op) or isinstance(op, _WORK)


def _is_small(op: Op) -> bool:
    """Whether an op that computes takes little longer than a stamp."""
    return isinstance(op, (Map, Reduce, Fill)) and is_quiet(op) and rates.cycles(op) < LEAST


@dataclass
class Plan:
    """The stamps of a kernel: of stamp number n the op is `sites[n - 1]`; `first` is, by a loop's
    id, the number of the stamp with which its iterations begin."""

    stamps: Buffer
    sites: list[Op] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)

    def stamp(self, op: Op) -> Hint:
        self.sites.append(op)
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
            if is_stamped(op):
                if not (isinstance(last, _WORK) and _is_small(op)):  # else it counts as part of it
                    yield self.stamp(op)
                    last = op
                yield op
            elif not any(map(is_stamped, walk_ops(op))):
                yield op
            elif isinstance(op, If):
                yield rebuild(op, then=self.body(op.then), orelse=self.body(op.orelse))
                last = op
            else:
                assert isinstance(op, (For, While))
                yield rebuild(op, body=self.body(op.body, op))
                last = op
        if last is not None and loop is None:
            yield Hint("stamp", self.stamps, detail=(END,), loc=last.loc)

    def role(self, op: Op) -> Op:
        """A role, or what holds some, with its stamps: code outside of roles has none."""
        if not isinstance(op, Role):
            return map_bodies(op, lambda body: tuple(map(self.role, body)))
        begin = self.begin(op.first, op.warps // op.instances, op.loc)
        return rebuild(op, body=(begin, *self.body(op.body)))


NOWHERE = Buffer("stamps", (), dtype("uint32"), Space.GLOBAL)


def planned(kernel: Kernel, stamps: Buffer = NOWHERE) -> tuple[Plan, Kernel]:
    """What is stamped in a kernel, and the kernel with its stamps."""
    plan = Plan(stamps)
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
