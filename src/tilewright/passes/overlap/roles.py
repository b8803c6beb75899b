"""Producer and consumer warps, from a kernel whose threads all ran the same code.

`pipeline_loops` lets a producer fill its rings: it has the loops and guards around them (`Slice`),
waits until a slot is free and issues its copies. The consumers keep the rest; each of their warps
says for itself when it is done with a slot, so that warpgroups need not keep step. Until the other
passes are through, the producer stands in the kernel as a derived role beside the consumers' code;
`part_roles`, the last, makes that a role too.

A kernel has a producer only where everything that its copies need (addresses, loop bounds, guards)
comes from block indices, parameters and tensors that it does not write, and where it has no code
for single threads. `why_not` says what stands against it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tilewright.ir.analysis.lifetimes import fragment_words
from tilewright.passes.core import *
from tilewright.passes.layout.matrix_tiles import operand_kind, shape_of
from tilewright.passes.overlap.rings import (
    BULK,
    CP_ASYNC,
    Fetches,
    Groups,
    Ring,
    known_scalars,
    plain_loop,
    rows_before,
)

PRODUCER, CONSUMER = "producer", "consumer"
MOST_CONSUMERS = 3  # warpgroups
LAUNCHES = ("pdl_wait", "pdl_launch")
NAMED = 1  # the barrier on which consumers meet
UNIT = 8  # registers change hands by as many
MOST = 240  # that a thread is given; it can use 255
KEPT = (24, 32, 40)  # by a producer's thread
# where a producer finds the places of single rows: more for it, as far as the consumers' fragments,
# of so many registers at the most, leave some
GATHERING = {
    2: {144: (88, 208), 192: (56, 224), 255: (40, 232)},
    3: {80: (80, 144), 255: (56, 152)},
}


def why_placed(op: Op) -> str | None:
    """What of an op is its author's own time, in words."""
    if isinstance(op, (Role, BarrierInit, Arrive, Wait, Commit, WaitGroup)):
        return "the kernel has roles, barriers or waits of its own"
    if isinstance(op, Hint) and op.name == "ws":
        return "the kernel places statements on warps"
    if isinstance(op, (Copy, Map)) and op.atom is not None and ATOMS[op.atom].is_async:
        return "the kernel has asynchronous copies of its own"
    return None


def placed(kernel: Kernel) -> str | None:
    """What roles, barriers or asynchronous copies of its own the kernel has, in words: its time is
    its author's business."""
    return next(filter(None, map(why_placed, walk_ops(kernel))), None)


def by_hand(kernel: Kernel) -> bool:
    """The kernel's author has written its roles."""
    return any(isinstance(op, Role) and not op.derived for op in walk_ops(kernel))


def split_into_roles(kernel: Kernel) -> bool:
    """Whether `split_roles` has given the block's warps roles, which other passes settle."""
    total = kernel.thread_count // WARP
    return any(op.derived and op.first < total for op in walk_ops(kernel, Role))


def role_of(kernel: Kernel) -> dict[int, Role]:
    """By id of an op: the role that it stands in."""
    return {id(op): role for role in walk_ops(kernel, Role) for op in walk_ops(role.body)}


def releases(op: Op) -> bool:
    """Whether others may learn from `op` that what stands before it is over."""
    if isinstance(op, Arrive):
        return op.count is not const(0)
    return isinstance(op, Sync) and op.scope in ("named", "cluster")


def warpgroups(kernel: Kernel) -> int:
    """Those that compute."""
    return kernel.thread_count // WARPGROUP * kernel.ping_pong


class NoProducer(Exception):
    """What keeps a kernel from having one, in words."""


def why_not(kernel: Kernel) -> str | None:
    """What keeps a kernel from having roles at all."""
    threads = kernel.thread_count
    if len(kernel.threads) > 1:
        return "its threads have several indices"
    if threads % (WARP * GROUP) or not 0 < threads // (WARP * GROUP) <= MOST_CONSUMERS:
        return f"{threads} threads are not one to three warpgroups"
    own = set(kernel.thread_vars)
    for op in walk_ops(kernel.body):
        if any(variables(e) & own for e in expressions(op)):
            return "it has code for single threads"
        if isinstance(op, (Break, Continue)):
            return "loops are left early"
        if isinstance(op, Sync):
            return "it has barriers of its own"
        if isinstance(op, Intrinsic) and op.name in LAUNCHES:
            return "it communicates with other launches"
    return None


# by the statement that they stand for, and at the end of an iteration, before the loop, after it
Fills: TypeAlias = dict[int, list[Op]]
END, BEFORE, BEHIND = -1, -2, -3
ROWS = 64  # of an instruction of a warpgroup


def why_not_worth(kernel: Kernel) -> str | None:
    """What speaks against a producer that could be had: measured on an H200, attention of one
    warpgroup loses a quarter to it (a block less is resident), of two it gains as much."""
    if warpgroups(kernel) < 2:
        return "one warpgroup computes, and a producer would cost a resident block"
    loops = [op for op in walk_ops(kernel, For) if op.kind == "pipelined"]
    inside = [op for loop in loops for op in walk_ops(loop.body)]
    if not any(isinstance(op, Gemm) and _by_warpgroups(op) for op in inside):
        return "no wgmma reads what is prefetched"
    return None


def _by_warpgroups(op: Gemm) -> bool:
    """Before products are chosen, any may become one of warpgroups whose types and rows fit."""
    kind = operand_kind(op, op.a)
    fits = kind is not None and kind.wgmma and shape_of(op)[0] % ROWS == 0
    return op.atom == "wgmma" or (op.atom is None and fits)


@dataclass
class Slice:
    """The part of a kernel's body that its fills need. `scalars`: those that are computed here too;
    `fill(loop)`: what fills rings in a loop; `fetch(atomic)`: what hands its result on."""

    scalars: set[str]
    fill: Callable[[For], Fills] = lambda loop: {}
    fetch: Callable[[Atomic], list[Op]] = lambda op: []

    def body(self, body: Body, fills: Fills | None = None) -> Body:
        found, fills = list[Op](), fills or {}
        for k, op in enumerate(body):
            with errors.at(op.loc):
                found += [*fills.get(k, ()), *self.op(op)]
        return _pruned([*found, *fills.get(END, ())])

    def op(self, op: Op) -> list[Op]:
        match op:
            case For():
                fills = self.fill(op)
                new = rebuild(plain_loop(op), body=self.body(op.body, fills))
                around = [*fills.get(BEFORE, ()), new, *fills.get(BEHIND, ())]
                return around if _works(new) else []
            case If() | While():
                new_op = map_bodies(op, self.body)
                return [new_op] if _works(new_op) else []
            case Atomic():
                return self.fetch(op)
        if isinstance(op, (Alloc, Store)) and op.buffer.name in self.scalars:
            return [op]
        # taken along; whoever needs a name finds its loads checked
        tensor = isinstance(op, View) and op.source.is_global
        assumed = isinstance(op, Hint) and op.name == "assume" and op.value is not None
        if isinstance(op, Let) or tensor or assumed:
            return [op]
        if _works(map_bodies(op, self.body)):
            raise NoProducer(f"a {type(op).__name__.lower()} stands around a pipelined loop")
        return []


def _works(op: Op) -> bool:
    """Whether a loop or branch has more than names in it."""
    inside = (each for body in bodies(op) for each in body)
    return any(not isinstance(each, (Let, Hint, Alloc, View)) for each in inside)


def _pruned(body: list[Op]) -> Body:
    """Without names and views that nobody asks for, and what is assumed of them."""
    kept: list[Op] = []
    needed: set[Var] = set()
    read: set[str] = set()
    named = {op.var for op in body if isinstance(op, Let)}
    for op in reversed(body):
        if isinstance(op, Hint) and (read_variables(op) & named - needed or op_loads(op)):
            continue
        if isinstance(op, Let) and op.var not in needed:
            continue
        if isinstance(op, View) and op.buffer.name not in read:
            continue
        read |= {op.source.name} if isinstance(op, View) else set()
        read |= {b.name for inner in walk_ops(op) for b in read_buffers(inner)}
        needed |= read_variables(op)
        kept.insert(0, op)
    return tuple(kept)


def check_known(body: Body, written: set[str], known: set[str], why: str = "") -> None:
    """Raise where `body` reads more than tensors that nobody writes, and scalars known to it."""
    known = known | defined_names(body)
    for op in walk_ops(body):
        for buffer in (load.buffer for load in op_loads(op)):
            fixed = buffer.is_global and buffer.name not in written
            if not fixed and buffer.name not in known:
                raise NoProducer(why or f"{buffer.name} decides what is copied")


def producer_of(
    kernel: Kernel, rings: Mapping[int, Groups], written: set[str], fetches: Fetches | None = None
) -> Role:
    """Who fills the rings: the loops around them, waits for free slots, the copies. `rings`: those
    of each pipelined loop, by its id; `fetches`: numbers that it hands on."""
    counters: dict[Buffer, None] = {}
    atomics = fetches.atomics if fetches is not None else []
    scalars = _asked(kernel, rings) & known_scalars(kernel, atomics, written)
    taken = set(taken_names())  # whatever is made from here on is the producer's alone

    def fill(loop: For) -> Fills:
        places: Fills = defaultdict(list)
        turned: dict[Buffer, Ring] = {}
        for ring, fills in rings.get(id(loop), ()):
            # what takes many instructions comes after what takes one
            found = places[min(each.at for each in fills) if ring.how == BULK else END]
            slot: Expr = const(0)
            if ring.stages > 1:
                slot = var = fresh_var(f"{loop.var.name}_slot")
                found.append(Let(var, ring.slot()))
            found.append(ring.acquire(slot))
            if ring.how == BULK:
                found.append(ring.expect(slot))
            for each in fills:
                why = "what is copied depends on what the kernel writes"
                check_known((each.copy,), written, scalars, why)
                held = rows_before(each, loop, places[BEFORE])
                found.append(held.into(ring, slot, loop, loop.var, kernel.rank))
            if ring.how == CP_ASYNC:
                _announce(ring, loop, places)
            turned[ring.counter] = ring
        counters.update(dict.fromkeys(turned))
        for ring in turned.values():
            places[END].append(ring.advance())
        return places

    def fetch(op: Atomic) -> list[Op]:
        if fetches is None or not fetches.has(op):
            return []
        return fetches.sent(op, fresh_var("fetch_slot"))

    part = Slice(scalars, fill, fetch).body(kernel.body)
    body = (*part, *_drained(kernel, rings))
    missing = read_variables(body) & {v for op in kernel.body for v in bound_within(op)}
    missing -= {v for op in body for v in bound_within(op)}
    if missing:
        raise NoProducer(f"{min(v.name for v in missing)} decides what is copied")
    if fetches is not None:
        counters[fetches.ring.counter] = None
    body = (*(Alloc(c, const(0)) for c in counters), *body)
    check_known(body, written, scalars)
    body = rename_unique(body, taken)
    taken_names().update(taken)
    return Role(PRODUCER, kernel.warps, GROUP, body, derived=True)


def _announce(ring: Ring, loop: For, places: Fills) -> None:
    """What tells the consumers of a slot that `cp.async` has filled it: its threads wait, as many
    iterations later as a slot is used before it is needed again, and each warp says so."""
    late = max(ring.stages - 2, 0)

    def said(behind: int) -> list[Op]:
        full = ring.full_at(ring.slot(ring.stages - behind) if behind else ring.slot())
        return [Fence("proxy_async"), Arrive(full, count=const(GROUP), by="warps")]

    begun = loop.var >= loop.start + late * loop.step
    places[END] += [Commit(CP_ASYNC), WaitGroup(CP_ASYNC, late)]
    places[END] += [If(begun, (*said(late),))] if late else said(0)
    for left in reversed(range(late)):
        ran = loop.start + left * loop.step < loop.stop
        places[BEHIND].append(WaitGroup(CP_ASYNC, left))
        places[BEHIND] += said(left + 1) if ran is TRUE else [If(ran, (*said(left + 1),))]


def _drained(kernel: Kernel, rings: Mapping[int, Groups]) -> list[Op]:
    """A block stays until its peers have handed back what they share: they arrive in its memory."""
    shared: dict[Buffer, list[Ring]] = {}  # rings that the same loops go round count together
    for ring in (r for groups in rings.values() for r, _ in groups if r.peers > 1):
        known = shared.setdefault(ring.counter, [])
        known += [] if ring in known else [ring]
    found: list[Op] = []
    for several in shared.values():
        waits = [ring.acquire(ring.slot()) for ring in several]
        end, advance = const(several[0].stages), several[0].advance()
        found.append(For(fresh_var("slot"), const(0), end, (*waits, advance)))
    return found


@kernel_pass
def part_roles(at: Facts) -> Kernel:
    """Split kernels with a derived producer into the roles of producer and consumers, with their
    warps and registers."""
    kernel = at.kernel
    producer = [op for op in kernel.body if isinstance(op, Role) and op.derived]
    if not producer:
        return kernel
    warps = kernel.warps
    threads = warps * WARP
    outside: list[Op] = []  # what every warp does first
    inside: list[Op] = []
    for op in kernel.body:
        common = isinstance(op, BarrierInit) or (
            isinstance(op, Fence) and op.kind == "barrier_init"
        )
        memory = (
            isinstance(op, Alloc)
            and op.buffer.space in (Space.SHARED, Space.BARRIER)
            and op.init is None
        )
        if not (isinstance(op, Role) and op.derived):
            (outside if common or memory else inside).append(op)
    first = next(k for k, op in enumerate(inside) if isinstance(op, Sync))
    assert all(isinstance(op, Alloc) for op in inside[:first])  # counters
    outside.append(inside.pop(first))

    def among_consumers(op: Op) -> Op | Body | None:
        if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.BARRIER):
            outside.insert(0, op)
            return ()
        if isinstance(op, Sync) and op.scope == "block":
            return Sync("named", const(NAMED), threads)
        return None

    body = map_body(tuple(inside), among_consumers)
    kept, taken = registers_of(producer[0], body, warps // GROUP, at.target)
    roles = (
        Role(CONSUMER, 0, warps, body, registers=taken),
        rebuild(producer[0], derived=False, registers=kept),
    )
    return rebuild(kernel, threads=(threads + GROUP * WARP,), body=(*outside, *roles))


def registers_of(
    producer: Role, body: Body, groups: int, target: Target
) -> tuple[int | None, int | None]:
    """Of a thread of the producer, and of one of the `groups` of consumers that run `body`; None
    where each keeps what it was born with."""
    if Feature.REGISTER_MOVE not in target.features:
        return None, None
    if not any(walk_ops(producer, Map)):
        return handed_over(groups, target.chip.registers)
    return gathering(groups, sum(fragment_words(body).values()))


def handed_over(consumers: int, registers: int = 65536) -> tuple[int | None, int | None]:
    """Registers of a thread of the producer and of `consumers` warpgroups, of a block's
    `registers`: the consumers get what they can, the producer keeps what they cannot use. With one
    consumer both are born with all that a thread can have.

    >>> handed_over(1, 65536), handed_over(2, 65536), handed_over(3, 65536)
    ((None, None), (24, 240), (32, 160))
    """
    groups = consumers + 1
    born = registers // (groups * WARPGROUP) // UNIT * UNIT
    if born >= MOST:
        return None, None

    def left(kept: int) -> int:
        return min((born * groups - kept) // consumers // UNIT * UNIT, MOST)

    most = max(left(kept) for kept in KEPT)
    return max(kept for kept in KEPT if left(kept) == most), most


def gathering(consumers: int, held: int) -> tuple[int | None, int | None]:
    """The same where the producer gathers, and fragments of a consumer hold `held` registers.

    >>> gathering(1, 64), gathering(2, 64), gathering(2, 160)
    ((None, None), (88, 208), (56, 224))
    """
    if consumers not in GATHERING:
        return None, None
    choices = GATHERING[consumers]
    return next((choices[most] for most in sorted(choices) if held <= most), choices[255])


def _asked(kernel: Kernel, rings: Mapping[int, Groups]) -> set[str]:
    """Scalars that copies or control ask for, and those that decide them."""
    exprs: list[Expr] = []
    for op in walk_ops(kernel.body):
        if isinstance(op, (For, While, If)):
            exprs += expressions(op)
        elif isinstance(op, Atomic):  # it may be a producer's
            exprs += [*op.dst.starts, *([] if op.value is None else [op.value])]
    for groups in rings.values():
        for _, fills in groups:
            exprs += [e for f in fills for op in walk_ops(f.copy) for e in expressions(op)]
    return scalars_of(exprs, kernel.body)


def scalars_of(exprs: list[Expr], body: Body) -> set[str]:
    """Scalars that `exprs` ask for, and those whose values are stored to them."""
    lets = {op.var: op.value for op in walk_ops(body, Let)}
    stores = [op for op in walk_ops(body, Store) if not op.indices]
    found: set[str] = set()
    left = list(exprs)
    while left:
        e = left.pop()
        left += [lets.pop(v) for v in variables(e) if v in lets]
        for load in loads(e):
            if load.buffer.is_local and load.buffer.name not in found:
                found.add(load.buffer.name)
                left += [op.value for op in stores if op.buffer is load.buffer]
    return found


def free_barriers(kernel: Kernel) -> list[int]:
    """Named barriers that `kernel` does not use; 0 is the whole block's."""
    used = {0}
    named = any(op.id is not None for op in walk_ops(kernel, Sync))
    for op, ranges in scope.walk_ranges(kernel) if named else ():
        if isinstance(op, Sync) and op.id is not None:
            low, high = bounds(op.id, ranges)[:2]
            used |= set(range(max(low, 0), min(high, NAMED_BARRIERS - 1) + 1))
    return [i for i in range(NAMED_BARRIERS) if i not in used]
