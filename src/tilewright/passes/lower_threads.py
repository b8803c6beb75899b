"""Laid-out IR to thread IR: every tile op becomes what each thread does.

- A role instance is a sequence of actions by all its threads together. What one thread does for
  all of them (arrivals, bulk copies and their groups) stands under `if leader`, one elected thread
  per instance. A role that does nothing else runs in its leader alone.
- An arrival tells others that *all* threads of the instance are past what came before. Matrix
  instructions are collective, so their wait is enough; after ordinary accesses to memory a named
  barrier of the instance is put in front, unless the program has one already.
- Fragments become arrays of registers, indexed by constants and unrolled loop variables only.
- Shared tiles become flat arrays; the swizzle is in the index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from math import prod

from tilewright.ir import scope
from tilewright.ir.bounds import bounds
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import BOOL
from tilewright.ir.expr import TRUE, Const, Expr, compare, const, variables
from tilewright.ir.op import (
    Alloc,
    Arrive,
    Atomic,
    BarrierInit,
    Body,
    Commit,
    Copy,
    Fence,
    Fill,
    For,
    Gemm,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Program,
    Reduce,
    Relayout,
    Role,
    Scan,
    Store,
    Sync,
    View,
    Wait,
    WaitGroup,
    While,
    expressions,
    walk_ops,
)
from tilewright.ir.rewrite import program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.lower_atomics import lower_atomic
from tilewright.passes.lower_cluster import (
    before_unrolled,
    crossing_barriers,
    lower_wait,
    order_arrivals,
    peer_fence,
)
from tilewright.passes.lower_copies import lower_copy
from tilewright.passes.lower_gemm import lower_fence, lower_gemm, written_by_threads
from tilewright.passes.lower_maps import lower_fill, lower_map
from tilewright.passes.lower_reduce import lower_reduce
from tilewright.passes.lowering import (
    BULK_ATOMS,
    NAMED_BARRIERS,
    WARP,
    Instance,
    Lowering,
    Rule,
    linear_thread,
    meets,
    pin,
    touches,
)
from tilewright.support.errors import CompileError

# ── structure ────────────────────────────────────────────────────────────────────────────────


def _for(low: Lowering, op: For) -> Iterable[Op]:
    op = low.plain(op)
    values = _trip(op) if op.kind in ("unroll", "vectorized") else None
    if op.kind in ("unroll", "vectorized") and values is None:
        raise CompileError(
            f"loop {op.var.name} is to be unrolled, but its bounds are not constant", loc=op.loc
        )
    if values is not None:
        low.unrolled[op.var] = values
    low.touched = low.touched or touches(op.body, low.touched, low.instance.threads)
    ordered = low.ordered
    if values is not None:
        yield from before_unrolled(low, op.body)
    body = low.inside(op, "body", op.body)
    low.ordered = ordered
    low.fenced = False
    low.unrolled.pop(op.var, None)
    kind = "unroll" if values is not None else "serial"
    yield rebuild(op, body=body, kind=kind, stages=0, order=None, stage=None)


def _while(low: Lowering, op: While) -> Iterable[Op]:
    op = low.plain(op)
    low.touched = low.touched or touches(op.body, low.touched, low.instance.threads)
    body = low.inside(op, "body", op.body)
    low.fenced = False
    yield rebuild(op, body=body)


def _trip(op: For) -> range | None:
    if all(isinstance(e, Const) for e in (op.start, op.stop, op.step)):
        return range(int(op.start), int(op.stop), int(op.step))
    return None


def _if(low: Lowering, op: If) -> Iterable[Op]:
    if op.then and not op.orelse and all(_is_wgmma_fence(inner) for inner in op.then):
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
    """Groups of matrix instructions that may be open behind two branches, latest last."""
    short, long = sorted((a, b), key=len)
    pad = [frozenset[Buffer]()] * (len(long) - len(short))
    return [x | y for x, y in zip(pad + short, long, strict=True)]


def _is_wgmma_fence(op: Op) -> bool:
    return isinstance(op, Fence) and op.kind == "wgmma"


def _role(low: Lowering, op: Role) -> Iterable[Op]:
    per = op.warps // op.instances
    threads = per * WARP
    first: Expr = const(op.first)
    if op.var is not None:
        first = first + op.var * per
    linear = linear_thread(low.kernel)
    if op.first * WARP % threads == 0:
        thread_value = linear % threads
    else:
        thread_value = linear - first * WARP
    thread, let_thread = low.let("thread", low.simplify(thread_value), op.loc)
    leader = low.var("leader", BOOL)
    solo = op.instances == 1 and all(_one_thread_does(inner) for inner in walk_ops(op.body))
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
    )
    low.touched = low.fenced = False
    body = low.body(op.body)
    low.instance, low.ranges = outer, outer_ranges
    used = {v for inner in walk_ops(body) for e in expressions(inner) for v in variables(e)}
    start: list[Op] = []
    if thread in used:
        start.append(let_thread)
    if leader in used or solo:
        chosen = compare("==", low.warp, first)
        start.append(Intrinsic("elect", (chosen,), leader, loc=op.loc))
    if sync_id is not None and any(isinstance(i, Sync) and i.id is sync_id for i in walk_ops(body)):
        low.free_ids = low.free_ids[: -op.instances]
    if solo:
        body = (If(leader, body, loc=op.loc),)
    yield rebuild(op, body=(*start, *body))


def _own_barrier(low: Lowering, op: Role) -> Expr | None:
    """A named barrier for each instance of `op`, consecutive from the top; None when they are
    used up."""
    free = low.free_ids[-op.instances :]
    if len(free) < op.instances or free[-1] - free[0] != op.instances - 1:
        return None
    return const(free[0]) if op.var is None else const(free[0]) + op.var


def _accumulators(body: Body) -> tuple[Buffer, ...]:
    found = [op.c.buffer for op in walk_ops(body) if isinstance(op, Gemm) and op.atom == "wgmma"]
    return tuple(dict.fromkeys(found))


def _one_thread_does(op: Op) -> bool:
    """Whether a single thread may run `op` for its instance."""
    if isinstance(op, Copy):
        return op.atom in BULK_ATOMS
    if isinstance(op, (Commit, WaitGroup)):
        return op.unit == "bulk"
    if isinstance(op, Store):
        return op.buffer.space is Space.LOCAL and not op.indices
    return not isinstance(op, (Sync, Fence, Gemm, Map, Reduce, Fill, Intrinsic, Atomic))


# ── memory and synchronisation ───────────────────────────────────────────────────────────────


def _alloc(low: Lowering, op: Alloc) -> Iterable[Op]:
    yield rebuild(op, buffer=low.flat(op.buffer))


def _hint(low: Lowering, op: Hint) -> Iterable[Op]:
    if op.name in ("place", "assume"):
        yield op if op.buffer is None else rebuild(op, buffer=low.flat(op.buffer))


def _view(low: Lowering, op: View) -> Iterable[Op]:
    raise low.unsupported(op, "views are not lowered to threads yet")


def _barrier_init(low: Lowering, op: BarrierInit) -> Iterable[Op]:
    yield If(compare("==", linear_thread(low.kernel), 0), (op,), loc=op.loc)


def _arrive(low: Lowering, op: Arrive) -> Iterable[Op]:
    yield from low.meet(op.loc)
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
        yield from low.settle(op.loc)
    yield op
    if op.unit == "wgmma":
        # registers are the program's again: nothing may be moved across the wait
        low.committed = low.committed[-op.pending :] if op.pending else []
        for buffer in low.instance.accumulators:
            if buffer not in low.in_flight:
                yield pin(low, buffer, op.loc)


def _sync(low: Lowering, op: Sync) -> Iterable[Op]:
    if meets(op, low.instance.threads):
        low.touched = False
    yield op


def _plain_store(low: Lowering, op: Store) -> Iterable[Op]:
    op = low.plain(op)
    if op.buffer.space in (Space.FRAGMENT, Space.SHARED):
        raise low.unsupported(op, f"{op.buffer.name} is stored to outside a map")
    cond = low.within(op.buffer, op.indices) if op.buffer.space is Space.GLOBAL else TRUE
    yield op if cond is TRUE else If(cond, (op,), loc=op.loc)


def _not_yet(low: Lowering, op: Op) -> Iterable[Op]:
    raise low.unsupported(op, f"{type(op).__name__.lower()} is not lowered to threads yet")


def lower_threads(program: Program, target: Target) -> Program:
    """Every tile op of every kernel as code of one thread."""
    names = program_names(program)
    kernels = tuple(_lower_kernel(kernel, program, names) for kernel in program.kernels)
    return dataclasses.replace(program, kernels=kernels)


def _lower_kernel(kernel: Kernel, program: Program, names: set[str]) -> Kernel:
    linear = linear_thread(kernel)
    whole = Instance(prod(kernel.threads), linear, linear // WARP)
    low = Lowering(kernel, RULES, names, scope.entry(kernel, program.dims), whole)
    low.warp = low.var("warp")
    low.ranges = low.ranges.where(low.warp, 0, -(-prod(kernel.threads) // WARP) - 1)
    low.free_ids = _free_barriers(kernel)
    low.crossing = crossing_barriers(kernel)
    low.peer_fence = peer_fence(kernel)
    body = low.body(kernel.body)
    start: list[Op] = [Intrinsic("warp_index", (linear,), low.warp, loc=kernel.loc)]
    for found in low.maps.values():
        detail = (found.name, found.swizzle, *found.box)
        start.append(Hint("tensor_map", found.tensor, detail=detail, loc=kernel.loc))
    prefetch = tuple(
        Intrinsic("prefetch_map", text=f"map={m.name}", loc=kernel.loc) for m in low.maps.values()
    )
    if prefetch:
        start.append(If(compare("==", linear, 0), prefetch, loc=kernel.loc))
    return rebuild(kernel, body=(*start, *body))


def _free_barriers(kernel: Kernel) -> list[int]:
    """Named barriers that `kernel` does not use; 0 is the whole block's."""
    used = {0}
    for op, ranges in scope.walk_ranges(kernel):
        if isinstance(op, Sync) and op.id is not None:
            low, high = bounds(op.id, ranges)[:2]
            used |= set(range(max(low or 0, 0), (NAMED_BARRIERS - 1 if high is None else high) + 1))
    return [i for i in range(NAMED_BARRIERS) if i not in used]


RULES: dict[type[Op], Rule] = {
    For: _for,
    While: _while,
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
    Copy: lower_copy,
    Gemm: lower_gemm,
    Map: lower_map,
    Reduce: lower_reduce,
    Fill: lower_fill,
    Atomic: lower_atomic,
    Scan: _not_yet,
    Relayout: _not_yet,
}
