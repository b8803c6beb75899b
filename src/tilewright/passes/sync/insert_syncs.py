"""Barriers, fences and waits between the threads of a block, in kernels without roles.

Every hazard that a walk (`Hazards`) finds gets what is missing: `sync block` before the later
op, `fence proxy_async` before that sync where ordinary writes meet the asynchronous proxy, a wait
for bulk stores before their staging is overwritten. Where the two ops stand in different loops the
sync goes before the loop that only the later one is in. At the end, each op that was inserted and
turns out to be superfluous, because another one serves, is taken out again.

Commits, waits and fences of matrix instructions are completed too (`matrix_groups`): passes since
`pipeline_loops` may have put ordinary code beside them.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import takewhile

from tilewright.ir.analysis.effects import written_in
from tilewright.ir.analysis.flow import Path, body_at, chain, paths, same
from tilewright.ir.analysis.hazards import Hazard, Hazards, distinct, multibuffer
from tilewright.ir.analysis.uniform import PerThread
from tilewright.ir.buffer import Space
from tilewright.ir.op import (
    Arrive,
    Body,
    Commit,
    Copy,
    Fence,
    For,
    Hint,
    Kernel,
    Let,
    Op,
    Sync,
    WaitGroup,
    While,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import map_bodies, rebuild
from tilewright.ir.target import Target
from tilewright.passes.overlap.rings import is_async_fill
from tilewright.passes.overlap.roles import by_hand
from tilewright.passes.sync.matrix_groups import number_gemms, settle_matrix_groups, unnumber
from tilewright.support.errors import CompileError, Loc

MOST_INSERTED = 500  # and some for each op


def insert_syncs(kernel: Kernel, target: Target, single: Collection[str] = ()) -> Kernel:
    """`kernel` with its threads in order; kernels with roles are left as they are. `single`: the
    barriers of copies that products may still be under way for; others know that slots are free."""
    if by_hand(kernel) or any(isinstance(op, Hint) and op.name == "ws" for op in walk_ops(kernel)):
        return kernel
    turning = multibuffer(kernel)

    def fills_slots(op: Op) -> bool:
        if isinstance(op, Copy) and op.barrier is not None and op.barrier.buffer.name in single:
            return False
        return is_async_fill(op) or not turning.isdisjoint(written_in((op,)))

    body = number_gemms(kernel.body)
    body = settle_matrix_groups(body, fills_slots, target.schedule.waits)
    kernel = settle_stores(rebuild(kernel, body=unnumber(body)))
    return mended(kernel)


def settle_stores(kernel: Kernel) -> Kernel:
    """`kernel` with its bulk stores in groups that are waited for before their staging is
    overwritten, and before the kernel ends."""
    last = [op for op in walk_ops(kernel) if isinstance(op, Copy) and op.atom == "bulk_store"]
    if not last:
        return kernel
    kernel = mended(rebuild(kernel, body=_commit_stores(kernel.body)), ("bulk", "done"))
    if Hazards(kernel, ("nothing",)).run(kernel).bulk:
        done = WaitGroup("bulk", 0, read=True, loc=last[-1].loc)
        kernel = rebuild(kernel, body=(*kernel.body, done))
    return kernel


def mended(kernel: Kernel, only: tuple[str, ...] = ()) -> Kernel:
    """`kernel` with what is missing, and nothing that another insertion makes superfluous."""
    kernel = distinct(kernel)
    hazards = Hazards(kernel, only)
    most = MOST_INSERTED + 4 * sum(1 for _ in walk_ops(kernel))
    inserted: list[Op] = []
    seen: set[tuple[str, int, int]] = set()
    while (hazard := hazards.first(kernel)) is not None:
        if len(inserted) > most:
            raise CompileError("the order of threads did not settle", loc=kernel.loc)
        # a fence in a loop makes of what stands before the loop something to meet behind the fence
        new, old = (id(chain(kernel, p)[-1]) for p in (hazard.path, hazard.before))
        close = (hazard.missing, new, old) in seen
        seen.add((hazard.missing, new, old))
        where, missing = _mend(kernel, hazard, hazards.differs, close=close)
        kernel = _insert(kernel, where, missing)
        inserted += missing
    for op in inserted:
        less = _insert(kernel, paths(kernel)[id(op)], [], drop=1)
        if hazards.first(less) is None:
            kernel = less
    return kernel


def _commit_stores(body: Body) -> Body:
    """A `commit bulk` behind each run of bulk stores that has none."""
    found: list[Op] = []
    for k, op in enumerate(body):
        found.append(map_bodies(op, _commit_stores))
        if isinstance(op, Copy) and op.atom == "bulk_store":
            after = body[k + 1] if k + 1 < len(body) else None
            joined = isinstance(after, Copy) and after.atom == "bulk_store"
            closed = isinstance(after, Commit) and after.unit == "bulk"
            if not joined and not closed:
                found.append(Commit("bulk", loc=op.loc))
    return same(found, body)


# ── mending ──────────────────────────────────────────────────────────────────────────────────


def _mend(
    kernel: Kernel, hazard: Hazard, differs: PerThread, *, close: bool
) -> tuple[Path, list[Op]]:
    """Where something goes, and what. `close`: right before the later op; a place before the loop
    around it was not enough."""
    path, before = hazard.path, hazard.before
    ops = chain(kernel, path)
    last = ops[-1]
    met = _meeting_between(kernel, hazard)
    if hazard.missing == "fence" and met is not None:
        return met, [Fence("proxy_async", loc=last.loc)]
    missing = _missing(hazard, last.loc)
    inside = before[: len(path)]
    if isinstance(last, While) and inside == (*path[:-1], (path[-1][0], "body")):
        # its condition is read again behind the body
        return (*inside, (len(last.body), "")), missing
    pairs = zip(path[:-1], before[:-1], strict=False)
    common = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    # read by the condition of a loop around: that comes between the turns
    common += before == (*path[:common], (path[common][0], ""))
    apart = () if close else range(common, len(ops) - 1)
    depth = next((d for d in apart if isinstance(ops[d], (For, While))), len(ops) - 1)
    while depth and id(ops[depth]) in differs.controls:
        depth -= 1
    at, index = path[:depth], path[depth][0]
    body = body_at(kernel, at)
    if ops[depth] is last and isinstance(last, Copy) and _issues(last):
        # before the arrival that goes with a bulk copy, not between the two
        while index and _issues(body[index - 1]):
            index -= 1
    return (*at, (index, "")), missing


def _meeting_between(kernel: Kernel, hazard: Hazard) -> Path | None:
    """Where threads meet already behind the older access, in its body, before the other one."""
    at, (old, _) = hazard.before[:-1], hazard.before[-1]
    if at != hazard.path[: len(at)]:
        return None
    body = body_at(kernel, at)
    for k in range(old + 1, hazard.path[len(at)][0]):
        op = body[k]
        if isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            return (*at, (k, ""))
    return None


def _missing(hazard: Hazard, loc: Loc | None) -> list[Op]:
    match hazard.missing:
        case "bulk":
            return [WaitGroup("bulk", max(hazard.old.age, 0), read=True, loc=loc)]
        case "done":
            return [WaitGroup("bulk", 0, loc=loc)]
        case "fence":
            return [Fence("proxy_async", loc=loc), Sync("block", loc=loc)]
    return [Sync("block", loc=loc)]


def _issues(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.atom == "bulk_load"
    if isinstance(op, Let):
        return all(load.buffer.space is Space.LOCAL for load in op_loads(op))
    return isinstance(op, Arrive)


def _insert(kernel: Kernel, path: Path, new: list[Op], drop: int = 0) -> Kernel:
    """`kernel` with `new` at `path`, in place of as many ops as there are to `drop`."""

    def go(body: Body, rest: Path) -> Body:
        index, name = rest[0]
        if len(rest) == 1:
            return (*body[:index], *new, *body[index + drop :])
        op = body[index]
        inner = rebuild(op, **{name: go(getattr(op, name), rest[1:])})
        return (*body[:index], inner, *body[index + 1 :])

    return rebuild(kernel, body=go(kernel.body, path))


__all__ = ["insert_syncs", "mended", "settle_stores"]
