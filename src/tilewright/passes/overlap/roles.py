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

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import TypeAlias

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import (
    TRUE,
    Expr,
    Var,
    compare,
    const,
    loads,
    substitute,
    variables,
)
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Arrive,
    Atomic,
    BarrierInit,
    Body,
    Break,
    Commit,
    Continue,
    Fence,
    For,
    Gemm,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    Sync,
    View,
    WaitGroup,
    While,
    bodies,
    bound_within,
    expressions,
    op_loads,
    read_buffers,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_body,
    map_kernels,
    rebuild,
    replace_buffers,
    substitute_vars,
)
from tilewright.ir.target import Target
from tilewright.passes.overlap.register_shares import gathering, handed_over
from tilewright.passes.overlap.rings import (
    BULK,
    CP_ASYNC,
    Fetches,
    Groups,
    Ring,
    known_scalars,
    rows_before,
)

PRODUCER, CONSUMER = "producer", "consumer"
WARP, GROUP = 32, 4  # threads of a warp, warps of a warpgroup
MOST_CONSUMERS = 3  # warpgroups
LAUNCHES = ("pdl_wait", "pdl_launch")
NAMED = 1  # the barrier on which consumers meet


def by_hand(kernel: Kernel) -> bool:
    """The kernel's author has written its roles."""
    return any(isinstance(op, Role) and not op.derived for op in walk_ops(kernel))


def consuming_warps(kernel: Kernel) -> int:
    return prod(kernel.threads) // WARP


def warpgroups(kernel: Kernel) -> int:
    """Those that compute."""
    return consuming_warps(kernel) // GROUP * kernel.ping_pong


class NoProducer(Exception):
    """What keeps a kernel from having one, in words."""


def why_not(kernel: Kernel) -> str | None:
    """What keeps a kernel from having roles at all."""
    threads = prod(kernel.threads)
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
            return "it speaks to other launches"
    return None


# by the statement that they stand for, and at the end of an iteration, before the loop, behind it
Fills: TypeAlias = dict[int, list[Op]]
END, BEFORE, BEHIND = -1, -2, -3


def why_not_worth(kernel: Kernel) -> str | None:
    """What speaks against a producer that could be had: measured on an H200, attention of one
    warpgroup loses a quarter to it (a block less is resident), of two it gains as much."""
    if warpgroups(kernel) < 2:
        return "one warpgroup computes, and a producer costs a resident block"
    loops = [op for op in walk_ops(kernel) if isinstance(op, For) and op.kind == "pipelined"]
    inside = [op for loop in loops for op in walk_ops(loop.body)]
    # before products are chosen, any may become one of warpgroups
    if not any(isinstance(op, Gemm) and op.atom in (None, "wgmma") for op in inside):
        return "no product of warpgroups reads what runs ahead"
    return None


class Slice:
    """The part of a kernel's body that its fills need. `fill(loop, var)`: what fills rings in a
    loop whose variable is called `var`; `scalars`: those that are computed here too."""

    def __init__(
        self,
        names: set[str],
        written: set[str],
        fill: Callable[[For, Var], Fills],
        fetches: Fetches | None,
        scalars: set[str],
    ) -> None:
        self.names = names
        self.written = written
        self.fill = fill
        self.fetches = fetches
        self.scalars = scalars
        self.slots: set[Var] = set()  # names that fills bring along

    def body(self, body: Body, values: dict[Var, Expr], fills: Fills | None = None) -> list[Op]:
        """`values`: what the body's variables are called here."""
        found: list[Op] = []
        fills = fills or {}
        values = dict(values)

        def filled(at: int) -> Body:
            known = {name: value for name, value in values.items() if name is not value}
            found = substitute_vars(tuple(fills.get(at, ())), known)
            self.slots |= {op.var for op in found if isinstance(op, Let)}
            return found

        for k, op in enumerate(body):
            found += filled(k)
            if isinstance(op, Let):
                # taken along; whoever needs it finds its loads checked
                var = Var(fresh_name(op.var.name, self.names), op.var.dtype)
                found.append(rebuild(op, var=var, value=substitute(op.value, values)))
                values[op.var] = var
            elif isinstance(op, View) and op.source.space is Space.GLOBAL:
                found.append(rebuild(op, offset=substitute(op.offset, values)))
            elif isinstance(op, Hint) and op.name == "assume" and op.value is not None:
                found.append(rebuild(op, value=substitute(op.value, values)))
            elif isinstance(op, For):
                found += self.loop(op, values)
            elif isinstance(op, If):
                sides = [self.body(side, values) for side in (op.then, op.orelse)]
                if any(self.works(side) for side in sides):
                    cond = self.checked(substitute(op.cond, values))
                    then, orelse = (tuple(side) for side in sides)
                    found.append(If(cond, then, orelse, loc=op.loc))
            elif isinstance(op, While):
                inner = self.body(op.body, values)
                if self.works(inner):
                    cond = self.checked(substitute(op.cond, values))
                    found.append(While(cond, tuple(inner), loc=op.loc))
            elif isinstance(op, Alloc) and op.buffer.name in self.scalars:
                init = None if op.init is None else substitute(op.init, values)
                found.append(rebuild(op, init=init))
            elif isinstance(op, Store) and op.buffer.name in self.scalars:
                found.append(rebuild(op, value=self.checked(substitute(op.value, values))))
            elif isinstance(op, Atomic) and self.fetches is not None and self.fetches.has(op):
                assert op.result is not None
                result = Var(fresh_name(op.result.name, self.names), op.result.dtype)
                slot = Var(fresh_name("fetch_slot", self.names))
                self.slots.add(slot)
                (own,) = substitute_vars((rebuild(op, result=result),), values)
                assert isinstance(own, Atomic)
                for e in (*own.dst.starts, *([] if own.value is None else [own.value])):
                    self.checked(e)
                found += self.fetches.sent(own, result, slot)
                values[op.result] = result
            elif any(self.works(self.body(inner, values)) for inner in bodies(op)):
                raise NoProducer(f"a {type(op).__name__.lower()} stands around a pipelined loop")
        return self.pruned([*found, *filled(END)])

    def loop(self, op: For, values: dict[Var, Expr]) -> list[Op]:
        var = Var(fresh_name(op.var.name, self.names), op.var.dtype)
        inner = {**values, op.var: var}
        fills = self.fill(op, var)
        body = self.body(op.body, inner, fills)
        if not self.works(body):
            return []
        start, stop, step = (
            self.checked(substitute(e, values)) for e in (op.start, op.stop, op.step)
        )
        kind = "persistent" if op.kind == "persistent" else "serial"
        before, behind = (
            substitute_vars(tuple(fills.get(at, ())), values) for at in (BEFORE, BEHIND)
        )
        new = For(var, start, stop, tuple(body), step=step, kind=kind, loc=op.loc)
        self.slots |= {each.var for each in before if isinstance(each, Let)}
        return [*before, new, *behind]

    def works(self, body: Iterable[Op]) -> bool:
        return any(not isinstance(op, (Let, Hint, Alloc, View)) for op in body)

    def checked(self, e: Expr) -> Expr:
        for load in loads(e):
            known = load.buffer.space is Space.GLOBAL and load.buffer.name not in self.written
            if not known and load.buffer.name not in self.scalars:
                raise NoProducer(f"{load.buffer.name} decides what is copied")
        return e

    def pruned(self, body: list[Op]) -> list[Op]:
        """Without names and views that nobody asks for, and what is assumed of them; those that
        stay must be known here."""
        kept: list[Op] = []
        needed: set[Var] = set()
        read: set[str] = set()
        named = {op.var for op in body if isinstance(op, Let)}
        for op in reversed(body):
            asked = {v for e in expressions(op) for v in variables(e)}
            if isinstance(op, Hint) and (asked & named - needed or op_loads(op)):
                continue
            if isinstance(op, Let) and op.var not in self.slots:
                if op.var not in needed:
                    continue
                self.checked(op.value)
            if isinstance(op, View) and op.buffer.name not in read:
                continue
            read |= {op.source.name} if isinstance(op, View) else set()
            for inner in walk_ops(op):
                read |= {b.name for b in read_buffers(inner)}
                for e in expressions(inner):
                    needed |= variables(e)
                for r in regions(inner, reads=True, writes=True):
                    for e in (*r.starts, *r.extents):
                        needed |= variables(e)
            kept.insert(0, op)
        return kept


def producer_of(
    kernel: Kernel,
    rings: Mapping[int, Groups],
    written: set[str],
    names: set[str],
    fetches: Fetches | None = None,
) -> Role:
    """Who fills the rings: the loops around them, waits for free slots, the copies. `rings`: those
    of each pipelined loop, by its id; `fetches`: numbers that it hands on."""
    counters: dict[Buffer, Buffer] = {}
    atomics = fetches.atomics if fetches is not None else []
    scalars = _asked(kernel, rings) & known_scalars(kernel, atomics, written)

    def fill(loop: For, var: Var) -> Fills:
        places: Fills = {}
        turned: dict[Buffer, Ring] = {}
        for ring, fills in rings.get(id(loop), ()):
            loc = fills[0].copy.loc
            # what takes many instructions comes behind what takes one
            at = min(each.at for each in fills) if ring.how == BULK else END
            found = places.setdefault(at, [])
            slot: Expr = const(0)
            if ring.stages > 1:
                slot = Var(fresh_name(f"{loop.var.name}_slot", names))
                found.append(Let(slot, ring.slot(), loc=loc))
            found.append(ring.acquire(slot, loc))
            if ring.how == BULK:
                found.append(ring.expect(slot, loc))
            for each in fills:
                if not _known(each.copy, written, scalars):
                    raise NoProducer("what is copied depends on what the kernel writes")
                held = rows_before(each, loop, names, places.setdefault(BEFORE, []))
                found.append(held.into(ring, slot, loop, var, names, kernel.rank))
            if ring.how == CP_ASYNC:
                for at, more in announced(ring, loop, var).items():
                    places.setdefault(at, []).extend(more)
            turned[ring.counter] = ring
        for counter, ring in turned.items():
            own = replace(counter, name=fresh_name(counter.name, names))
            counters.setdefault(counter, own)
            places.setdefault(END, []).append(ring.advance(loop.loc))
        return places

    part = Slice(names, written, fill, fetches, scalars).body(kernel.body, {})
    body = [*part, *_drained(kernel, rings, names)]
    missing = _asked_for(body) & {v for op in kernel.body for v in bound_within(op)}
    missing -= {v for op in body for v in bound_within(op)}
    if missing:
        raise NoProducer(f"{min(v.name for v in missing)} decides what is copied")
    if fetches is not None:
        counter = fetches.ring.counter
        counters[counter] = replace(counter, name=fresh_name(counter.name, names))
    starts = [Alloc(c, const(0), loc=kernel.loc) for c in counters.values()]
    own = {
        op.buffer: replace(op.buffer, name=fresh_name(op.buffer.name, names))
        for each in body
        for op in walk_ops(each)
        if isinstance(op, (Alloc, View))
    }
    copies = [replace_buffers(op, counters | own) for op in body]
    first = consuming_warps(kernel)
    return Role(PRODUCER, first, GROUP, (*starts, *copies), derived=True, loc=kernel.loc)


def announced(ring: Ring, loop: For, var: Var) -> Fills:
    """What tells the consumers of a slot that `cp.async` has filled it: its threads wait, as many
    iterations later as a slot is used before it is needed again, and each warp says so."""
    late, loc = max(ring.stages - 2, 0), loop.loc

    def said(behind: int) -> list[Op]:
        full = ring.full_at(ring.slot(ring.stages - behind) if behind else ring.slot())
        arrived = Arrive(full, count=const(GROUP), by="warps", loc=loc)
        return [Fence("proxy_async", loc=loc), arrived]

    found: Fills = {END: [Commit(CP_ASYNC, loc=loc), WaitGroup(CP_ASYNC, late, loc=loc)]}
    begun = compare(">=", var, loop.start + late * loop.step)
    found[END] += [If(begun, (*said(late),), loc=loc)] if late else said(0)
    for left in reversed(range(late)):
        ran = compare("<", loop.start + left * loop.step, loop.stop)
        found.setdefault(BEHIND, []).append(WaitGroup(CP_ASYNC, left, loc=loc))
        found[BEHIND] += said(left + 1) if ran is TRUE else [If(ran, (*said(left + 1),), loc=loc)]
    return found


def _drained(kernel: Kernel, rings: Mapping[int, Groups], names: set[str]) -> list[Op]:
    """A block stays until its peers have handed back what they share: they arrive in its memory."""
    shared: dict[Buffer, list[Ring]] = {}  # rings that the same loops go round count together
    for ring in (r for groups in rings.values() for r, _ in groups if r.peers > 1):
        known = shared.setdefault(ring.counter, [])
        known += [] if ring in known else [ring]
    found: list[Op] = []
    for several in shared.values():
        var = Var(fresh_name("slot", names))
        waits = [ring.acquire(ring.slot(), kernel.loc) for ring in several]
        end, turn = const(several[0].stages), several[0].advance(kernel.loc)
        found.append(For(var, const(0), end, (*waits, turn), loc=kernel.loc))
    return found


def part_roles(program: Program, target: Target) -> Program:
    """Kernels with a derived producer: everything else becomes the consumers' role."""
    return map_kernels(program, lambda kernel: _parted(kernel, target))


def _parted(kernel: Kernel, target: Target) -> Kernel:
    producer = [op for op in kernel.body if isinstance(op, Role) and op.derived]
    if not producer:
        return kernel
    warps = consuming_warps(kernel)
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
            return Sync("named", const(NAMED), threads, loc=op.loc)
        return None

    body = map_body(tuple(inside), among_consumers)
    kept, taken = registers_of(producer[0], body, warps // GROUP, target)
    roles = (
        Role(CONSUMER, 0, warps, body, registers=taken, loc=kernel.loc),
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
    if not any(isinstance(op, Map) for op in walk_ops(producer)):
        return handed_over(groups, target.chip.registers)
    held = [op.buffer for op in walk_ops(body) if isinstance(op, Alloc)]
    words = sum(
        -(-b.layout.values * b.dtype.bits // 32) for b in held if isinstance(b.layout, Fragment)
    )
    return gathering(groups, words)


def _asked_for(body: Iterable[Op]) -> set[Var]:
    """Variables that `body` uses."""
    found: set[Var] = set()
    for op in (inner for each in body for inner in walk_ops(each)):
        used = [*expressions(op)]
        for r in regions(op, reads=True, writes=True):
            used += [*r.starts, *r.extents]
        found |= {v for e in used for v in variables(e)}
    return found


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
    lets = {op.var: op.value for op in walk_ops(kernel.body) if isinstance(op, Let)}
    stores = [op for op in walk_ops(kernel.body) if isinstance(op, Store) and not op.indices]
    found: set[str] = set()
    while exprs:
        e = exprs.pop()
        exprs += [lets.pop(v) for v in variables(e) if v in lets]
        for load in loads(e):
            if load.buffer.space is Space.LOCAL and load.buffer.name not in found:
                found.add(load.buffer.name)
                exprs += [op.value for op in stores if op.buffer is load.buffer]
    return found


def _known(op: Op, written: set[str], scalars: set[str]) -> bool:
    """Whether a copy's own loads are of tensors that nobody writes, or of scalars known here."""
    found = {x.buffer for inner in walk_ops(op) for x in op_loads(inner)}
    return all(
        b.name in scalars or (b.space is Space.GLOBAL and b.name not in written) for b in found
    )
