"""Stamps, in a traced build only (`kernel.trace`): one thread of each warpgroup notes which op it
comes to, and its clock.

`BLOCKS` blocks are traced. Their code is there twice, with stamps and as the plain build has it,
which other blocks run. Persistent blocks are done when the slowest is: those that are traced stamp
their first `TILES` tiles only, and nothing after the loop over tiles.

A stamp begins the time of an op, and the next one ends it; number 0 ends an op after which nothing
is stamped. The assembler moves nothing across a clock, so there are few of them:

- Ops that threads compute one after the other share a stamp, and so do the products of a line of
  the text and the waits for products after them.
- The stamp of the op after a wait comes right after the wait: signals to others are sent under it.
- Barriers are tested first. A warp stamps before and after a wait only where the test fails, when
  it has nothing else to do, and then goes on with the op that it was at.
- Clocks stay in registers until threads compute: stores fit between their instructions.

Stamps are hints, which change no result and no other pass minds. `stamps` chooses the thread,
`traced` stands before what is there twice, `clock` reads the clock, `stamp` stores one or two
clocks with their numbers, and `stamp_wait` says the number of the wait that follows. They go to a
scratch tensor, `SLOTS` for each warp of `BLOCKS` blocks (`begin_stamps` in threads.cuh).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import gcd

from tilewright.passes.core import *
from tilewright.passes.lower.lowering import ENGINE_ATOMS
from tilewright.passes.sync.matrix_groups import is_matrix

BLOCKS, SLOTS = 4, 4096  # that are traced, evenly over the grid; stamps of a warp of theirs
TILES = 2  # of a persistent block that are traced
CLOCKS = 4  # that a thread holds at most
END = 0  # of an op
BACK = 0xFFFFFFFF  # to the op before a wait at a barrier

_WORK = (Copy, Gemm, Map, Reduce, Scan, Fill, Relayout, Atomic, Intrinsic)
_SILENT = (Alloc, Hint, Let)
_LOUD = (Wait, Arrive, Commit, WaitGroup, Sync, Turn, Break, Continue, While, Atomic)


def is_quiet(op: Op) -> bool:
    """Whether nobody else has to do with an op: no barriers, nothing asynchronous, no tensors."""
    return not any(
        isinstance(inner, _LOUD)
        or is_matrix(inner)
        or any(b.space is Space.GLOBAL for b in (*read_buffers(inner), *written_buffers(inner)))
        for inner in walk_ops(op)
    )


def waits(op: Op) -> bool:
    """Whether threads stand at an op until others are done."""
    if isinstance(op, Sync):
        return op.scope != "warp" and not op.arrive
    return isinstance(op, (Wait, WaitGroup)) or (isinstance(op, Turn) and op.edge == "begin")


def is_product(op: Op) -> bool:
    """Whether threads issue products or wait for them."""
    if isinstance(op, WaitGroup):
        return op.unit == "wgmma"
    return is_matrix(op)


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
    """Whether an op always has a stamp, or shares one."""
    if isinstance(op, Wait):
        return False
    return waits(op) or computes(op) or isinstance(op, (Copy, Gemm))


def has_loops(tiles: For) -> bool:
    """Whether a loop over tiles has loops inside with stamps of their own."""
    loops = [loop for loop in walk_ops(tiles.body, For) if not computes(loop)]
    return any(is_stamped(op) for loop in loops for op in walk_ops(loop.body))


@dataclass
class Plan:
    """The stamps of a kernel: of stamp number n the ops are `sites[n - 1]`; `first` is, by a loop's
    id, the number of the stamp with which its iterations begin. `threads` run the ops."""

    stamps: Buffer
    threads: int
    sites: list[list[Op]] = field(default_factory=list)
    first: dict[int, int] = field(default_factory=dict)

    def site(self, op: Op) -> int:
        """The number of a stamp of its own."""
        self.sites.append([op])
        return len(self.sites)

    def hint(self, name: str, *detail: int) -> Hint:
        return Hint(name, self.stamps, detail=detail)

    def begin(self, first: int, warps: int, loc: Loc | None) -> Hint:
        detail = (BLOCKS, TILES, first, gcd(GROUP, warps))
        return Hint("stamps", self.stamps, detail=detail, loc=loc)

    def traced(self, body: Body) -> Body:
        """`body` of a kernel or role with its stamps, all of it or that of its tiles."""
        for n, op in enumerate(body):
            if isinstance(op, For) and op.kind == "persistent" and has_loops(op):
                loop = rebuild(op, body=self.traced(op.body))
                return (*self.body(body[:n]), loop, *body[n + 1 :])
        return (self.hint("traced"), *self.body(body))

    def body(self, body: Body, loop: Op | None = None) -> Body:
        """`body` with its stamps; of a `loop`, the next iteration ends the last op."""
        out: list[Op] = []
        held: list[int] = []  # numbers of stamps whose clocks are not stored yet
        shared: list[Op] = []  # ops of the last stamp, which the next op may join
        place: int | None = None  # of the next stamp, where that is not right before its op
        if loop is not None:
            place = next((n for n, op in enumerate(body) if not isinstance(op, _SILENT)), 0)

        def clock(site: int) -> Hint:
            held.append(site)
            return self.hint("clock", len(held) - 1)

        def stored() -> list[Hint]:
            flat = [part for pair in zip(held, range(CLOCKS), strict=False) for part in pair]
            held.clear()
            return [self.hint("stamp", *flat[n : n + 4]) for n in range(0, len(flat), 4)]

        for op in body:
            stamped, holds = is_stamped(op), any(map(is_stamped, walk_ops(op)))
            begins = loop is not None and id(loop) not in self.first
            if stamped and shared and self.joins(op, shared):
                shared.append(op)
            elif stamped or (holds and begins):
                at = len(out) if place is None else place
                number = self.site(op if stamped or loop is None else loop)
                shared, made = self.sites[-1], [clock(number)]
                full = len(held) == CLOCKS
                out[at:at] = [*made, *stored()] if full or computes(op) else made
                if begins:
                    self.first[id(loop)] = number
            if isinstance(op, Wait):
                out.append(self.hint("stamp_wait", self.site(op)))
                shared = shared if all(map(is_product, shared)) else []
            elif not stamped:
                if held and (holds or any(walk_ops(op, Break, Continue))):
                    out += stored()
                    place = None
                op = self.inside(op) if holds or any(walk_ops(op, Wait)) else op
                shared = [] if holds else shared
            out.append(op)
            if holds:
                place = len(out) if waits(op) else None
        if loop is None and any(map(is_stamped, walk_ops(body))):
            out.append(clock(END))
        return (*out, *stored())

    def joins(self, op: Op, shared: Sequence[Op]) -> bool:
        """Whether an op shares a stamp with those before it; not where threads meet in it."""
        if is_product(op):
            same = isinstance(op, WaitGroup) or op.loc == shared[0].loc
            return same and is_product(shared[-1])
        return computes(shared[-1]) and computes(op) and not meets_inside(op, self.threads)

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
        return rebuild(op, body=(self.begin(op.first, warps, op.loc), *self.traced(op.body)))


NOWHERE = Buffer("stamps", (), dtype("uint32"), Space.GLOBAL)


def planned(kernel: Kernel, stamps: Buffer = NOWHERE) -> tuple[Plan, Kernel]:
    """What is stamped in a kernel, and the kernel with its stamps."""
    plan = Plan(stamps, kernel.thread_count)
    if any(walk_ops(kernel, Role)):
        body = tuple(map(plan.role, kernel.body))
    else:
        body = (plan.begin(0, GROUP, kernel.loc), *plan.traced(kernel.body))
    return plan, rebuild(kernel, body=body)


def stamp_ops(program: Program, target: Target) -> Program:
    """Stamp the clock at every wait and tile op, for `kernel.trace`."""
    warps = max((kernel.warps for kernel in program.kernels), default=1)
    shape = tuple(map(const, (BLOCKS * warps + 1, SLOTS, 2)))
    stamps = Buffer(fresh_var("stamps").name, shape, dtype("uint32"), Space.GLOBAL)
    kernels = tuple(planned(kernel, stamps)[1] for kernel in program.kernels)
    return replace(program, kernels=kernels, scratch=(*program.scratch, stamps))
