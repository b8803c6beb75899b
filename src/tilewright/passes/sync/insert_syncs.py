"""Barriers, fences and waits between the threads of a block, or of a role.

Every hazard that a walk (`Hazards`) finds gets what is missing: `sync block` before the later
op, `fence proxy_async` before that sync where ordinary writes meet the asynchronous proxy, a wait
for bulk stores before their staging is overwritten. Where the two ops stand in different loops the
sync goes before the loop that only the later one is in. At the end, each op that was inserted and
turns out to be superfluous, because another one serves, is taken out again.

Commits, waits and fences of matrix instructions are completed too (`matrix_groups`): passes since
`pipeline_loops` may have put ordinary code beside them.

The threads of roles that `split_roles` has made are ordered among themselves, those of one range of
warps at a time. Before they signal others, their gemms and copies are over, and ordinary writes are
visible to the engines.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from itertools import takewhile

from tilewright.ir.analysis.flow import Path, body_at, chain, paths
from tilewright.ir.analysis.hazards import Hazard, Hazards, distinct, multibuffer
from tilewright.passes.core import *
from tilewright.passes.overlap.place_roles import Warps, meet_in_roles, warps_of
from tilewright.passes.overlap.rings import is_async_fill
from tilewright.passes.overlap.roles import by_hand, releases, split_into_roles
from tilewright.passes.sync.matrix_groups import (
    NumberedGemm,
    Release,
    close_groups,
    followed,
    number_gemms,
    settle_matrix_groups,
    unnumber,
)

MOST_INSERTED = 500  # and some for each op
_BULK = ("bulk_load", "bulk_store")


def insert_syncs(kernel: Kernel, target: Target) -> Kernel:
    """Insert barriers and fences where threads or asynchronous engines use what others wrote; roles
    that the author wrote stay as they are."""
    if by_hand(kernel) or any(isinstance(op, Hint) and op.name == "ws" for op in walk_ops(kernel)):
        return kernel
    turning, roots = multibuffer(kernel), aliases(kernel)

    def settled(body: Body, single: Collection[str] = ()) -> Body:
        """`single`: barriers of copies that gemms may still be under way for; of others it is known
        that slots are free."""

        def fills_slots(op: Op) -> bool:
            if isinstance(op, Copy) and op.barrier is not None and op.barrier.buffer.name in single:
                return False
            return is_async_fill(op) or not turning.isdisjoint(written_in((op,)))

        return unnumber(settle_matrix_groups(body, fills_slots, target.schedule.waits, roots))

    if not split_into_roles(kernel):
        body = settled(number_gemms(kernel.body))
        return mended(settle_stores(rebuild(kernel, body=body)))
    roles = {warps_of(role): role for role in walk_ops(kernel, Role)}
    joint = {w for w in roles for o in roles if w.meets(o) and not w.within(o)}
    release = _Release(kernel, target)

    def ordered(op: Op, last: bool) -> Op | None:
        if not isinstance(op, Role):
            return None
        body = settled(release.role(op, last), release.own)
        met = [Sync("block")] if warps_of(op) in joint else []
        return rebuild(op, body=(*met, *body, *met))

    end = len(kernel.body)
    while end and not any(warps_of(r) in joint for r in walk_ops(kernel.body[end - 1], Role)):
        end -= 1
    first, rest = kernel.body[:end], kernel.body[end:]
    body = map_body(first, partial(ordered, last=False)) + map_body(
        rest, partial(ordered, last=True)
    )
    kernel = rebuild(kernel, body=body)
    for role in roles.values():
        kernel = mended(settle_stores(kernel, role), role=role)
    return map_ops(
        meet_in_roles(kernel),
        lambda op: rebuild(op, derived=False) if isinstance(op, Role) else None,
    )


def settle_stores(kernel: Kernel, role: Role | None = None) -> Kernel:
    """`kernel` with its groups of bulk stores waited for before their staging is overwritten, and
    before the kernel ends."""
    last, only = [*filter(_is_store, walk_ops(kernel))], ("bulk", "done")
    if not last:
        return kernel
    kernel = mended(rebuild(kernel, body=close_groups(kernel.body, "bulk", _is_store)), only, role)
    if Hazards(kernel, ("nothing",), role).run(kernel).bulk:
        done = WaitGroup("bulk", 0, read=True, loc=last[-1].loc)
        kernel = rebuild(kernel, body=(*kernel.body, *_by_role([done], role)))
    return kernel


def _is_store(op: Op) -> bool:
    return isinstance(op, Copy) and op.atom == "bulk_store"


def _by_role(ops: list[Op], role: Role | None) -> list[Op]:
    """`ops`, outside roles, for the warps of `role`."""
    return ops if role is None else [rebuild(role, body=tuple(ops), registers=None)]


def mended(kernel: Kernel, only: tuple[str, ...] = (), role: Role | None = None) -> Kernel:
    """`kernel` with what is missing, and nothing that another insertion makes superfluous."""
    kernel = distinct(kernel)
    hazards = Hazards(kernel, only, role)
    most = MOST_INSERTED + 4 * sum(1 for _ in walk_ops(kernel))
    inserted: list[Op] = []
    seen: set[tuple[str, int, int]] = set()
    while (hazard := hazards.first(kernel)) is not None:
        if len(inserted) > most:
            raise CompileError("the order of thread accesses reached no fixpoint")
        # a fence in a loop makes of what stands before the loop something to meet after the fence
        new, old = (id(chain(kernel, p)[-1]) for p in (hazard.path, hazard.before))
        close = (hazard.missing, new, old) in seen
        seen.add((hazard.missing, new, old))
        with at(chain(kernel, hazard.path)[-1].loc):
            where, missing = _mend(kernel, hazard, hazards.differs, close=close)
        if not any(isinstance(op, Role) for op in chain(kernel, where[:-1])):
            missing = _by_role(missing, role)
        kernel = _insert(kernel, where, missing)
        inserted += missing
    for op in inserted:
        less = _insert(kernel, paths(kernel)[id(op)], [], drop=1)
        if hazards.first(less) is None:
            kernel = less
    return kernel


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
        return met, [Fence("proxy_async")]
    missing = _missing(hazard)
    inside = before[: len(path)]
    if isinstance(last, While) and inside == (*path[:-1], (path[-1][0], "body")):
        # its condition is read again after the body
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
    """Where threads meet already after the older access, in its body, before the other one."""
    at, (old, _) = hazard.before[:-1], hazard.before[-1]
    if at != hazard.path[: len(at)]:
        return None
    body = body_at(kernel, at)
    for k in range(old + 1, hazard.path[len(at)][0]):
        op = body[k]
        if isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            return (*at, (k, ""))
    return None


def _by_warps(op: Op) -> bool:
    """Whether each warp signals after its own loads."""
    return isinstance(op, Arrive) and op.by == "warps"


def _missing(hazard: Hazard) -> list[Op]:
    match hazard.missing:
        case "bulk":
            return [WaitGroup("bulk", max(hazard.old.age, 0), read=True)]
        case "done":
            return [WaitGroup("bulk", 0)]
        case "fence":
            return [Fence("proxy_async"), Sync("block")]
    return [Sync("block")]


def _issues(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.atom == "bulk_load"
    if isinstance(op, Let):
        return all(load.buffer.is_local for load in op_loads(op))
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


# ── before a role signals others ─────────────────────────────────────────────────────────────


class _Release:
    """What has to be over before the threads of a role signal others: gemms, and ordinary writes of
    what engines touch. Each warpgroup waits for its own gemms, so several have to meet then; and
    all threads where only some of them signal."""

    def __init__(self, kernel: Kernel, target: Target) -> None:
        self.differs = per_thread(kernel)
        self.roots = aliases(kernel)
        self.engines = {
            self.roots[b.name]
            for op in walk_ops(kernel)
            if isinstance(op, (Gemm, Copy)) and op.atom in ("wgmma", *_BULK)
            for b in (*read_buffers(op), *written_buffers(op))
        }
        if not {Feature.WGMMA, Feature.BULK_COPY} & target.features:
            self.engines = set()
        # single barriers, and the ranges of warps that wait at them
        self.waiting: dict[str, set[Warps]] = {}
        for role in walk_ops(kernel, Role):
            for barrier in (op.barrier.buffer for op in walk_ops(role.body, Wait)):
                if barrier.shape == (const(1),):
                    self.waiting.setdefault(barrier.name, set()).add(warps_of(role))

    def role(self, role: Role, last: bool) -> Body:
        """The body of `role`, its gemms numbered; unless it is the `last` of its threads, others
        may go on after its end."""
        self.own = {n for n, who in self.waiting.items() if who == {warps_of(role)}}
        body = number_gemms(role.body)
        # those of which their author has not said when they are waited for
        self.numbers = tuple(
            op.number
            for op, after in followed(body)
            if isinstance(op, NumberedGemm)
            and not (isinstance(after, Commit) and after.unit == "wgmma")
        )
        self.several = role.warps > GROUP and any(walk_ops(body, NumberedGemm))
        self.any_writes = any(self.touches(op, written_buffers) for op in body)
        # reads are over where a warp arrives after them, not where threads meet
        self.any_reads = any(self.touches(op, read_buffers) for op in body)
        body = self.body(body, False)
        end = [Fence("proxy_async")] if (self.any_writes or self.any_reads) and not last else []
        return (*body, *end)

    def touches(self, op: Op, buffers: Callable[[Op], Iterable[Buffer]]) -> bool:
        """Whether ordinary code reads, or writes, what engines touch."""
        return any(
            b.is_shared and self.roots[b.name] in self.engines
            for o in walk_ops(op)
            if not (isinstance(o, (Copy, Gemm)) and o.atom in ("wgmma", *_BULK))
            for b in buffers(o)
        )

    def signals(self, op: Op) -> bool:
        """Whether others, even of other blocks, may learn from `op` how far the role is."""
        if isinstance(op, Arrive) and op.barrier.cta is None and op.barrier.buffer.name in self.own:
            return False
        return releases(op)

    def body(self, body: Body, dirty: bool, apart: bool = False) -> Body:
        """`dirty`: there may be writes before it that no fence follows; `apart`: some threads run
        it, and all have met before."""
        result: list[Op] = []
        for op in body:
            some = isinstance(op, If) and not apart and self.differs.source(op.cond) is not None
            tells = some and any(map(self.signals, walk_ops(op)))
            if isinstance(op, Sync) and op.scope == "block" and self.any_reads:
                # engines of other roles may overwrite what was read
                result.append(Fence("proxy_async", loc=op.loc))
                dirty = False
            if tells or self.signals(op):
                with at(op.loc):
                    if self.numbers and not apart:
                        result.append(Release(self.numbers))
                    if dirty or (self.any_reads and not _by_warps(op)):
                        result.append(Fence("proxy_async"))
                        dirty = False
                    if tells or (self.several and not apart and isinstance(op, Arrive)):
                        result.append(Sync("block"))
            if isinstance(op, (For, If, While)):
                start = dirty if isinstance(op, If) else self.any_writes
                op = map_bodies(op, partial(self.body, dirty=start, apart=apart or some))
            dirty = dirty or self.touches(op, written_buffers)
            result.append(op)
        return tuple(result)
