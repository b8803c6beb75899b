"""Laid-out IR to thread IR: every tile op becomes what each thread does.

- A role instance is a sequence of actions by all its threads together. What one thread does for
  all of them (arrivals, bulk copies and their groups) stands under `if leader`, one elected thread
  per instance. A role that does nothing else runs in its leader alone.
- An arrival tells others that *all* threads of the instance are past what came before. Matrix
  instructions are collective, so their wait is enough; after ordinary accesses to memory a named
  barrier of the instance is put in front, unless the program has one already.
- Fragments become arrays of registers, indexed by constants and unrolled loop variables only.
- Shared tiles become flat arrays; the swizzle is in the index.
- A kernel without roles is one instance, the block. Threads do together what is the same in all of
  them, and each for itself what is not: an atomic or a message that differs in no thread is done
  once.
- What warps exchange (reductions, scans, relayouts) goes through scratch after the other shared
  memory, between barriers that the lowering puts there (`scratch`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import gcd

from tilewright.ir.analysis.uniform import check_reached
from tilewright.passes.layout.shared_tiles import as_copy, turned
from tilewright.passes.layout.thread_layouts import same_registers, unrolled
from tilewright.passes.lower.cluster import (
    before_unrolled,
    crossing_barriers,
    lower_wait,
    order_arrivals,
    peer_fence,
)
from tilewright.passes.lower.copies import copy_matrices, lower_copy, lower_map_op
from tilewright.passes.lower.core import *
from tilewright.passes.lower.elements import lower_atomic, lower_intrinsic
from tilewright.passes.lower.gemm import lower_fence, lower_gemm, written_by_threads
from tilewright.passes.lower.maps import lower_fill
from tilewright.passes.lower.reduce import lower_reduce
from tilewright.passes.lower.relayout import lower_relayout
from tilewright.passes.lower.scan import lower_scan
from tilewright.passes.memory.place_shared import settle_scratch
from tilewright.passes.overlap.roles import LAUNCHES, by_hand, free_barriers, role_of

# ── structure ────────────────────────────────────────────────────────────────────────────────


def _loop(low: Lowering, op: For | While) -> Iterable[Op]:
    op, ordered = low.plain(op), low.ordered
    low.note_loop(op.body)
    if isinstance(op, For):
        # how often it runs may be known only at run time: then it stays a loop
        values = values_of(op) if op.kind in ("unroll", "vectorized") else None
        kind = "serial" if values is None else "unroll"
        op = rebuild(op, kind=kind, stages=0, order=None, stage=None)
        if values is not None:
            low.unrolled[op.var] = values
            yield from before_unrolled(low, op.body)
    body = low.inside(op, "body", op.body)
    low.ordered, low.fenced = ordered, False
    if isinstance(op, For):
        low.unrolled.pop(op.var, None)
    yield rebuild(op, body=body)


def _if(low: Lowering, op: If) -> Iterable[Op]:
    fences = [inner for inner in op.then if isinstance(inner, Fence) and inner.kind == "wgmma"]
    if fences and not op.orelse and len(fences) == len(op.then):
        # the assembler wants a fence on every path (C7519) and adds one otherwise; a fence more
        # costs nothing
        yield from low.inside(op, "then", op.then)
        return
    op = low.plain(op)
    touched, groups = low.touched, list(low.committed)
    then = low.inside(op, "then", op.then)
    after, open_after = low.touched, low.committed
    low.touched, low.committed, low.fenced = touched, groups, False
    orelse = low.inside(op, "orelse", op.orelse)
    low.fenced = False
    low.touched = low.touched or after
    low.committed = _either(low.committed, open_after)
    yield rebuild(op, then=then, orelse=orelse)


def _either(a: list[frozenset[Buffer]], b: list[frozenset[Buffer]]) -> list[frozenset[Buffer]]:
    """Groups of matrix instructions that may be open after two branches, latest last."""
    short, long = sorted((a, b), key=len)
    pad = [frozenset[Buffer]()] * (len(long) - len(short))
    return [x | y for x, y in zip(pad + short, long, strict=True)]


def _role(low: Lowering, op: Role) -> Iterable[Op]:
    per = op.warps // op.instances
    threads = per * WARP
    first: Expr = const(op.first)
    if op.var is not None:
        first = first + op.var * per
    linear = low.kernel.thread
    if op.first * WARP % threads == 0:
        thread_value = linear % threads
    else:
        thread_value = linear - first * WARP
    thread, let_thread = low.let("thread", low.simplify(thread_value))
    leader = low.var("leader", BOOL)
    alone = (_one_thread_does(inner, op) and not _apart(low, inner) for inner in walk_ops(op.body))
    solo = op.instances == 1 and all(alone)
    solo = solo and not _is_relied_on(low.kernel, op)
    turn_id = _turn_barriers(low, op)
    sync_id = _own_barrier(low, op)
    outer, outer_ranges = low.instance, low.ranges
    low.ranges = scope.inside(op, "body", low.ranges).where(thread, 0, threads - 1)
    low.instance = Instance(
        threads,
        thread,
        low.warp - first,
        leader,
        solo,
        sync_id,
        _accumulators(op.body),
        written_by_threads(op.body),
        op.instances,
        turn_id,
    )
    start = list(_first_turn(low, op))
    low.touched = low.fenced = False
    before = len(low.exchanges)
    body = low.body(op.body)
    if op.var is not None:
        body = low.apart(body, op.var, before)
    low.instance, low.ranges = outer, outer_ranges
    used = read_variables(body)
    if leader in used or solo:
        chosen = compare("==", low.warp, first)
        start.insert(0, Intrinsic("elect", (chosen,), leader))
    if thread in used:
        start.insert(0, let_thread)
    if sync_id is not None and any(i.id is sync_id for i in walk_ops(body, Sync)):
        low.free_ids = low.free_ids[: -op.instances]
    if solo:
        body = (If(leader, body),)
    yield rebuild(op, body=(*start, *body))


def _own_barrier(low: Lowering, op: Role) -> Expr | None:
    """A named barrier for each instance of `op`, consecutive from the top; None when they are
    used up."""
    free = low.free_ids[-op.instances :]
    if len(free) < op.instances or free[-1] - free[0] != op.instances - 1:
        return None
    return const(free[0]) if op.var is None else const(free[0]) + op.var


def _turn_barriers(low: Lowering, op: Role) -> int | None:
    """The first of as many named barriers in a row as `op` has warpgroups that take turns."""
    turns = list(walk_ops(op.body, Turn))
    if not turns:
        return None
    groups = op.warps // GROUP
    for first in low.free_ids:
        mine = range(first, first + groups)
        if all(i in low.free_ids for i in mine):
            low.free_ids = [i for i in low.free_ids if i not in mine]
            return first
    raise CompileError(
        f"the warpgroups of role {op.name} take turns, but too few named barriers are left",
        loc=turns[0].loc,
        expected=f"{groups} in a row",
        got=", ".join(map(str, low.free_ids)) or "none",
    )


def _first_turn(low: Lowering, op: Role) -> Iterable[Op]:
    """Nobody comes before the first warpgroup: the last one arrives once in advance, for it. After
    the last section that arrival is left over, at a barrier that nobody else uses."""
    base = low.instance.turn_id
    if base is not None:
        last = compare("==", low.warpgroup, op.warps // GROUP - 1)
        early = Sync("named", const(base), 2 * WARPGROUP, arrive=True)
        yield If(last, (early,))


def _accumulators(body: Body) -> tuple[Buffer, ...]:
    found = [op.c.buffer for op in walk_ops(body, Gemm) if op.atom == "wgmma"]
    return tuple(dict.fromkeys(found))


def _apart(low: Lowering, op: Op) -> bool:
    """Whether threads do `op` each for itself; the value of a name is only computed so."""
    return not isinstance(op, Let) and low.differs.runs_apart(op)


def _one_thread_does(op: Op, role: Role) -> bool:
    """Whether a single thread may run `op` for its instance."""
    if isinstance(op, Copy):
        return op.atom in BULK_ATOMS
    if isinstance(op, (Commit, WaitGroup)):
        return op.unit == "bulk"
    if isinstance(op, Store):
        return op.buffer.space in (Space.LOCAL, Space.SHARED)
    if isinstance(op, Atomic):
        # for the sake of its result; a single warp has a shuffle for that
        return op.result is not None and not op.dst.tile and role.warps > 1
    return not isinstance(
        op, (Sync, Turn, Fence, Gemm, Map, Reduce, Scan, Relayout, Fill, Intrinsic)
    )


def _is_relied_on(kernel: Kernel, role: Role) -> bool:
    """Whether other code of the role's threads needs all of them to have run it: code that reads a
    variable which the role sets, or that comes after what the role waits for."""
    inside = {id(op) for op in walk_ops(role)}
    outside = [op for op in walk_ops(kernel) if id(op) not in inside]
    if any(walk_ops(role, Wait, WaitGroup)) and any(
        isinstance(op, Role)
        and op.first < role.first + role.warps
        and role.first < op.first + op.warps
        for op in outside
    ):
        return True
    own = {op.buffer for op in walk_ops(role, Alloc)}
    stored = {op.buffer for op in walk_ops(role, Store)}
    told = {buffer for buffer in stored - own if buffer.is_local}
    return any(b in told for op in (outside if told else ()) for b in read_buffers(op))


# ── memory and synchronisation ───────────────────────────────────────────────────────────────


def _alloc(low: Lowering, op: Alloc) -> Iterable[Op]:
    yield rebuild(low.plain(op), buffer=low.flat(op.buffer))


def _hint(low: Lowering, op: Hint) -> Iterable[Op]:
    if op.name == "stamps":  # of one thread, where no other one comes here
        yield rebuild(op, detail=(*op.detail, int(low.instance.solo)))
    elif op.name in ("assume", "min_blocks", "clock", "stamp", "stamp_wait", "traced"):
        yield op


def _view(low: Lowering, op: View) -> Iterable[Op]:
    """Another name of the same array. Registers are the same ones only where threads hold the
    same elements in them."""
    buffer, source = op.buffer, op.source
    if buffer.is_fragment:
        if op.offset is not const(0) or not same_registers(buffer, source):
            raise CompileError(
                f"{buffer.name} is no view of the registers of {source.name}",
                expected=f"the elements of {source.layout!r}, in the same registers",
                got=repr(buffer.layout),
                fix="copy it instead",
            )
        if buffer.dtype == source.dtype:
            low.buffers[buffer.name] = low.flat(source)
            return
    elif buffer.is_global:
        root, least = low.base(source)
        step = multiple_of(op.offset, low.ranges) * buffer.dtype.bits // 8
        low.bases[buffer.name] = (root, gcd(least, step))
        if buffer.dtype.bits > root.dtype.bits:
            yield Hint("align", root, detail=(buffer.dtype.bits // 8,))
    elif buffer.is_shared:
        if not isinstance(op.offset, Const) or source.name in low.shifts:
            yield from _shifted_view(low, op)
            return
        place = low.places[source.name] + int(op.offset) * buffer.dtype.bits // 8
        low.places[buffer.name] = place
        yield Alloc(low.flat(buffer), place=place)
        return
    yield rebuild(op, buffer=low.flat(buffer), source=low.flat(source), offset=low.expr(op.offset))


def _shifted_view(low: Lowering, op: View) -> Iterable[Op]:
    """A view that begins at a place known only at run time: all of the source's memory as an
    array, from the start of which its elements count."""
    buffer, source = op.buffer, op.source
    before = low.shifts.get(source.name, const(0))
    if source.dtype.bits % buffer.dtype.bits and before is not const(0):
        raise CompileError(
            f"{buffer.name} begins within an element of {buffer.dtype}",
            fix=f"view {source.name} as {buffer.dtype} before taking a part of it",
        )
    first = before * (source.dtype.bits // buffer.dtype.bits or 1) + low.expr(op.offset)
    shift, let = low.let(f"{buffer.name}_first", low.simplify(first))
    low.shifts[buffer.name] = shift
    low.places[buffer.name] = low.places[source.name]
    size = int(low.flat(source).shape[0]) * source.dtype.bits // buffer.dtype.bits
    flat = Buffer(buffer.name, (const(size),), buffer.dtype, Space.SHARED)
    low.buffers[buffer.name] = flat
    yield let
    yield Alloc(flat, place=low.places[buffer.name])


def _barrier_init(low: Lowering, op: BarrierInit) -> Iterable[Op]:
    yield If(compare("==", low.kernel.thread, 0), (op,))


def _arrive(low: Lowering, op: Arrive) -> Iterable[Op]:
    if id(op) in low.differs.controls:
        # under a guard of threads those that come here arrive, each for itself: `count` is how many
        yield rebuild(op, count=const(0 if op.count is const(0) else 1))
        return
    if op.by == "warps" and low.instance.solo:
        op = rebuild(op, by="instance")  # one thread does it all, and arrives for all
    if op.by == "warps":
        lane = low.simplify(low.instance.thread % WARP)
        once = rebuild(op, count=const(1), by="instance")
        yield Sync("warp")
        yield If(compare("==", lane, 0), (once,))
        return
    yield from low.meet()
    yield from order_arrivals(low, (op,))
    yield from low.by_leader(op)


def _commit(low: Lowering, op: Commit) -> Iterable[Op]:
    if op.unit == "bulk":
        yield from low.by_leader(op)
        return
    if op.unit == "wgmma":
        low.committed.append(frozenset(low.open_group))
        low.open_group.clear()
    yield op


def _wait_group(low: Lowering, op: WaitGroup) -> Iterable[Op]:
    if op.unit == "bulk":
        yield from low.by_leader(op)
        return
    if op.unit == "wgmma":
        yield from low.settle()
    yield op
    if op.unit == "wgmma":
        # registers are the program's again: nothing may be moved across the wait
        low.committed = low.committed[-op.pending :] if op.pending else []
        for buffer in low.instance.accumulators:
            if buffer not in low.in_flight and buffer.name in low.seen:
                yield pin(low, buffer)


def _sync(low: Lowering, op: Sync) -> Iterable[Op]:
    if meets(op, low.instance.threads):
        low.touched = False
    if op.scope == "cluster" and low.peer_fence == "cluster_shared":
        op = rebuild(op, order="shared")
    yield low.plain(op)


def _turn(low: Lowering, op: Turn) -> Iterable[Op]:
    """A warpgroup waits at its own barrier, where only the one before it arrives. Nothing else is
    to be learnt there: for the threads of the instance it is no meeting."""
    base, group = low.instance.turn_id, low.warpgroup
    assert base is not None
    if op.edge == "end":
        group = (group + 1) % (low.instance.threads // WARPGROUP)
    which = low.simplify(base + group)
    yield Sync("named", which, 2 * WARPGROUP, arrive=op.edge == "end")


def _plain_store(low: Lowering, op: Store) -> Iterable[Op]:
    each = low.differs.runs_apart(op)
    op = low.plain(op)
    if op.buffer.is_fragment:
        raise CompileError(
            f"{op.buffer.name} is a fragment and is stored to outside a tile op",
            fix="store to it in a map",
        )
    once = not (each or low.instance.solo) and _reads_what_it_writes(low, op)
    if once:
        yield from low.meet()
    low.touched = low.touched or (op.buffer.space in MEMORY and low.instance.leader is None)
    place, inside = low.place(op.buffer, op.indices)
    stored = guarded(inside, (Store(low.flat(op.buffer), place, op.value),))
    yield from (*low.by_leader(*stored), *low.join()) if once else stored


def _reads_what_it_writes(low: Lowering, op: Store) -> bool:
    """Whether threads that all ran `op` would read what others of them wrote: `x[0] = x[0] + 1`.
    Otherwise they store the same number, however many of them do."""
    if op.buffer.space not in MEMORY:
        return False

    def elsewhere(load: Load) -> bool:
        pairs = zip(load.indices, op.indices, strict=True)
        apart = [i - j for i, j in pairs]
        return any(isinstance(each, Const) and each.value for each in apart)

    root = low.root(op.buffer)
    return any(
        low.root(load.buffer) == root and not (load.buffer == op.buffer and elsewhere(load))
        for load in op_loads(op)
        if load.buffer.space in MEMORY
    )


def _exchanging(rule: Rule) -> Rule:
    """`rule` for an op in which warps may exchange. Passes leave barriers out where threads meet
    inside such an op, so they have to."""

    def lower(low: Lowering, op: Op) -> Iterable[Op]:
        before = len(low.exchanges)
        found = tuple(rule(low, op))
        sure = low.instance.instances == 1 and meets_inside(op, low.instance.threads)
        if sure and len(low.exchanges) == before:
            raise CompileError("warps need each other's registers here, and do not meet")
        return found

    return lower


def lowering_of(at: Facts, names: set[str]) -> Lowering:
    """What the lowering of a kernel begins with."""
    kernel = at.kernel
    threads, linear = kernel.thread_count, kernel.thread
    read = {b for op in walk_ops(kernel) for b in read_buffers(op)}
    fixed = frozenset({b.name for b in read if b.is_global} - written_by(kernel))
    # the launch before this one may still be writing
    overlaps = any(isinstance(op, Intrinsic) and op.name in LAUNCHES for op in at.ops)
    low = Lowering(
        kernel,
        RULES,
        names,
        scope.entry(kernel, at.dims),
        Instance(threads, linear, linear // WARP),
        at.differs,
        at.target,
        roots=aliases(kernel),
        places={buffer.name: place for buffer, place in places(kernel).items()},
        free_ids=free_barriers(kernel),
        fixed=fixed,
        lasting=frozenset() if overlaps else fixed,
        crossing=crossing_barriers(kernel),
        peer_fence=peer_fence(kernel),
    )
    low.warp = low.var("warp")
    if not at.has_roles:
        low.instance = dataclasses.replace(
            low.instance,
            warp=low.warp,
            accumulators=_accumulators(kernel.body),
            written=written_by_threads(kernel.body),
        )
    low.ranges = low.ranges.where(low.warp, 0, -(-threads // WARP) - 1)
    return low


@kernel_pass
def lower_threads(at: Facts) -> Kernel:
    """Lower every tile op to the code of one thread."""
    check_reached(at.kernel, at.differs)
    kernel, low = at.kernel, lowering_of(at, at.names)
    linear, loc = kernel.thread, kernel.loc
    body = low.body(kernel.body)
    start: list[Op] = []
    if at.has_roles or low.warp in read_variables(body):
        start.append(Intrinsic("warp_index", (linear,), low.warp, loc=loc))
    for tensor, found in low.maps.values():
        start.append(Hint("tensor_map", tensor, detail=found.detail, loc=loc))
    arrays, body = settle_scratch(kernel, body, low.exchanges, at.target)
    start += arrays
    texts = [f"map={found.name}" for _, found in low.maps.values()]
    prefetch = tuple(Intrinsic("prefetch_map", text=text, loc=loc) for text in texts)
    if prefetch:
        start.append(If(compare("==", linear, 0), prefetch, loc=loc))
    return rebuild(kernel, body=(*start, *body))


# ── which instruction copies ─────────────────────────────────────────────────────────────────
#
# Whole matrices between shared memory and registers where they fit, threads otherwise. What fits is
# asked of the lowering itself.


@kernel_pass
def choose_copies(at: Facts) -> Kernel:
    """Choose the atom of each copy; roles that the author wrote stay as they are."""
    if by_hand(at.kernel):
        return at.kernel
    low = lowering_of(at, TakenNames(at.names))
    low.unrolled = unrolled(at.kernel)
    block, roles = low.instance, role_of(at.kernel)
    shares = {
        id(role): dataclasses.replace(block, threads=role.warps * WARP, thread=low.var("thread"))
        for role in walk_ops(at.kernel, Role)
    }
    chosen: dict[int, Op | Body] = {}
    for op, ranges in scope.walk_body(at.kernel.body, low.ranges):
        low.ranges, low.instance = ranges, shares.get(id(roles.get(id(op))), block)
        if isinstance(op, Copy) and op.atom is None:
            chosen[id(op)] = rebuild(op, atom=_atom(op, low, at.target))
        elif isinstance(op, Map) and (tiles := turned(op)) is not None:
            # by matrix loads that transpose
            view, copy = as_copy(op, *tiles, low.var(f"{tiles[0].name}_turned").name)
            if _atom(copy, low, at.target) == "ldmatrix":
                chosen[id(op)] = view, rebuild(copy, atom="ldmatrix")
    return map_ops(at.kernel, lambda op: chosen.get(id(op)))


_MATRICES = {  # between which spaces
    (Space.SHARED, Space.FRAGMENT): "ldmatrix",
    (Space.FRAGMENT, Space.SHARED): "stmatrix",
}


def _atom(op: Copy, low: Lowering, target: Target) -> str:
    name = _MATRICES.get((op.src.space, op.dst.space))
    if name is None or not ATOMS[name].needs <= target.features:
        return "threads"
    try:
        copy_matrices(low, rebuild(op, atom=name))
    except CompileError as error:
        because(low.kernel.name, op, f"not {name}: {error.message}")
        return "threads"
    because(low.kernel.name, op, "8×8 matrices, rows of 16 bytes, fit both layouts")
    return name


RULES: dict[type[Op], Rule] = {
    For: _loop,
    While: _loop,
    If: _if,
    Role: _role,
    Alloc: _alloc,
    Hint: _hint,
    View: _view,
    Store: _plain_store,
    BarrierInit: _barrier_init,
    Arrive: _arrive,
    Wait: lower_wait,
    Commit: _commit,
    WaitGroup: _wait_group,
    Fence: lower_fence,
    Sync: _sync,
    Turn: _turn,
    Copy: lower_copy,
    Gemm: lower_gemm,
    Map: lower_map_op,
    Reduce: _exchanging(lower_reduce),
    Fill: lower_fill,
    Atomic: lower_atomic,
    Intrinsic: lower_intrinsic,
    Scan: _exchanging(lower_scan),
    Relayout: _exchanging(lower_relayout),
}
