"""Barriers, fences and waits between the threads of a block, in kernels without roles.

Every hazard that `hazards.find_hazard` reports gets what is missing: `sync block` before the later
op, `fence proxy_async` before that sync where ordinary writes meet the asynchronous proxy, a wait
for bulk stores before their staging is overwritten. Where the two ops stand in different loops the
sync goes before the loop that only the later one is in. At the end, each op that was inserted and
turns out to be superfluous, because another one serves, is taken out again.

Commits, waits and fences of matrix instructions are completed too (`matrix_groups`): passes since
`pipeline_loops` may have put ordinary code beside them.
"""

from __future__ import annotations

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
    marked,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.ir.uniform import PerThread, per_thread
from tilewright.passes.hazards import Hazard, Looked, Path, find_hazard, open_stores
from tilewright.passes.matrix_groups import number_gemms, settle_matrix_groups, unnumber
from tilewright.passes.rings import is_async_fill, turning_tiles, written_in
from tilewright.passes.roles import by_hand
from tilewright.support.errors import CompileError, Loc

MOST_INSERTED = 500


def insert_syncs(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with its threads in order; kernels with roles are left as they are."""
    if by_hand(kernel) or any(_is_placement(op) for op in walk_ops(kernel)):
        return kernel
    turning = turning_tiles(kernel)

    def fills_slots(op: Op) -> bool:
        return is_async_fill(op) or not turning.isdisjoint(written_in((op,)))

    body = number_gemms(kernel.body)
    body = settle_matrix_groups(body, fills_slots, target.choice("waits"))
    kernel = settle_stores(rebuild(kernel, body=unnumber(body)))
    return mended(kernel)


def settle_stores(kernel: Kernel) -> Kernel:
    """`kernel` with its bulk stores in groups that are waited for before their staging is
    overwritten, and before the kernel ends."""
    kernel = mended(rebuild(kernel, body=_commit_stores(kernel.body)), ("bulk", "done"))
    if open_stores(kernel):
        last = [op for op in walk_ops(kernel) if isinstance(op, Copy) and op.atom == "bulk_store"]
        done = WaitGroup("bulk", 0, read=True, loc=last[-1].loc)
        kernel = rebuild(kernel, body=(*kernel.body, done))
    return kernel


def mended(kernel: Kernel, only: tuple[str, ...] = ()) -> Kernel:
    """`kernel` with what is missing, and nothing that another insertion makes superfluous."""
    inserted: list[Op] = []
    known = per_thread(kernel)
    looked: Looked | None = None if known.controls else {}

    def found_in(kernel: Kernel) -> PerThread:
        # it names ops by identity, which insertions around them change
        return per_thread(kernel) if known.controls else known

    again: set[tuple[str, int, int]] = set()
    for _ in range(MOST_INSERTED):
        found = found_in(kernel)
        hazard = find_hazard(kernel, found, only=only, looked=looked)
        if hazard is None:
            break
        new, old = (id(_chain(kernel, p)[-1]) for p in (hazard.path, hazard.old.path))
        key = (hazard.missing, new, old)
        # a fence in a loop makes of what stands before the loop something to meet behind the fence
        kernel, added = _mend(kernel, hazard, found, close=key in again)
        again.add(key)
        inserted += added
    else:
        raise CompileError("the order of threads did not settle", loc=kernel.loc)
    for op in inserted:
        fewer = _without(kernel, op)
        if find_hazard(fewer, found_in(fewer), only=only, looked=looked) is None:
            kernel = fewer
    return kernel


def _is_placement(op: Op) -> bool:
    return isinstance(op, Hint) and op.name == "ws"


def _commit_stores(body: Body) -> Body:
    """A `commit bulk` behind each run of bulk stores that has none."""
    found: list[Op] = []
    for k, op in enumerate(body):
        changes = {f.name: _commit_stores(getattr(op, f.name)) for f in marked(op, "body")}
        found.append(rebuild(op, **changes) if changes else op)
        if isinstance(op, Copy) and op.atom == "bulk_store":
            after = body[k + 1] if k + 1 < len(body) else None
            joined = isinstance(after, Copy) and after.atom == "bulk_store"
            closed = isinstance(after, Commit) and after.unit == "bulk"
            if not joined and not closed:
                found.append(Commit("bulk", loc=op.loc))
    same = len(found) == len(body) and all(a is b for a, b in zip(found, body, strict=True))
    return body if same else tuple(found)


def _without(kernel: Kernel, victim: Op) -> Kernel:
    return rebuild(kernel, body=map_body(kernel.body, lambda op: () if op is victim else None))


# ── mending ──────────────────────────────────────────────────────────────────────────────────


def _mend(
    kernel: Kernel, hazard: Hazard, found: PerThread, *, close: bool = False
) -> tuple[Kernel, list[Op]]:
    """`close`: right before the later op; a place before the loop around it was not enough."""
    chain = _chain(kernel, hazard.path)
    loc = chain[-1].loc
    met = _meeting_between(kernel, hazard)
    if hazard.missing == "fence" and met is not None:
        fence: list[Op] = [Fence("proxy_async", loc=loc)]
        return _insert(kernel, met, fence), fence
    last = chain[-1]
    inside = hazard.old.path[: len(hazard.path)]
    if isinstance(last, While) and inside == (*hazard.path[:-1], (hazard.path[-1][0], "body")):
        # its condition is read again behind the body
        where = (*inside, (len(last.body), ""))
        new = _missing(hazard, loc)
        return _insert(kernel, where, new), new
    common = 0
    for mine, other in zip(hazard.path[:-1], hazard.old.path[:-1], strict=False):
        if mine != other:
            break
        common += 1
    # read by the condition of a loop around: that comes between the turns
    common += hazard.old.path == (*hazard.path[:common], (hazard.path[common][0], ""))
    depth = len(chain) - 1
    for d in range(common, 0 if close else len(chain) - 1):
        if isinstance(chain[d], (For, While)):
            depth = d
            break
    while depth and id(chain[depth]) in found.controls:
        depth -= 1
    where = hazard.path[: depth + 1]
    where = (*where[:-1], (where[-1][0], ""))
    if depth == len(chain) - 1:
        where = _before_issue(kernel, where, chain)
    new = _missing(hazard, loc)
    return _insert(kernel, where, new), new


def _meeting_between(kernel: Kernel, hazard: Hazard) -> Path | None:
    """Where threads meet already behind the older access, in its body, before the other one."""
    *around, (old, _) = hazard.old.path
    depth = len(around)
    if tuple(around) != hazard.path[:depth]:
        return None
    body = getattr(_chain(kernel, hazard.path)[depth - 1], around[-1][1]) if around else kernel.body
    for k in range(old + 1, hazard.path[depth][0]):
        op = body[k]
        if isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            return (*around, (k, ""))
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


def _chain(kernel: Kernel, path: Path) -> list[Op]:
    """The ops that `path` goes through, outermost first."""
    found: list[Op] = []
    body = kernel.body
    for index, name in path:
        found.append(body[index])
        if name:
            body = getattr(body[index], name)
    return found


def _before_issue(kernel: Kernel, path: Path, chain: list[Op]) -> Path:
    """Before the arrival that goes with a bulk copy, not between the two."""
    body = kernel.body if len(chain) == 1 else getattr(chain[-2], path[-2][1])
    index = path[-1][0]
    if isinstance(body[index], Copy) and _issues(body[index]):
        while index and _issues(body[index - 1]):
            index -= 1
    return (*path[:-1], (index, ""))


def _issues(op: Op) -> bool:
    if isinstance(op, Copy):
        return op.atom == "bulk_load"
    if isinstance(op, Let):
        return all(load.buffer.space is Space.LOCAL for load in op_loads(op))
    return isinstance(op, Arrive)


def _insert(kernel: Kernel, path: Path, new: list[Op]) -> Kernel:
    def go(body: Body, rest: Path) -> Body:
        index, name = rest[0]
        if len(rest) == 1:
            return (*body[:index], *new, *body[index:])
        op = body[index]
        inner = rebuild(op, **{name: go(getattr(op, name), rest[1:])})
        return (*body[:index], inner, *body[index + 1 :])

    return rebuild(kernel, body=go(kernel.body, path))


__all__ = ["insert_syncs", "mended", "settle_stores"]
