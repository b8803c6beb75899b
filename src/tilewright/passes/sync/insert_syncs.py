"""Barriers, fences and waits between the threads of a block, in kernels without roles.

Every hazard that a walk (`hazards.Walk`) finds gets what is missing: `sync block` before the later
op, `fence proxy_async` before that sync where ordinary writes meet the asynchronous proxy, a wait
for bulk stores before their staging is overwritten. Where the two ops stand in different loops the
sync goes before the loop that only the later one is in. At the end, each op that was inserted and
turns out to be superfluous, because another one serves, is taken out again.

Commits, waits and fences of matrix instructions are completed too (`matrix_groups`): passes since
`pipeline_loops` may have put ordinary code beside them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, TypeAlias

from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Var
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
from tilewright.ir.rewrite import OpRule, map_body, rebuild
from tilewright.ir.target import Target
from tilewright.passes.overlap.rings import is_async_fill, multibuffer, written_in
from tilewright.passes.overlap.roles import by_hand
from tilewright.passes.sync.hazards import Found, Hazard, OpT, Path, State, Walk, goes_into
from tilewright.passes.sync.matrix_groups import number_gemms, settle_matrix_groups, unnumber
from tilewright.support.errors import CompileError, Loc

MOST_INSERTED = 500  # and some for each op
# by id of an op: where it is, the loops around, the state in front of it
Before: TypeAlias = dict[int, tuple[Path, tuple[Var, ...], State]]


def insert_syncs(kernel: Kernel, target: Target, single: Collection[str] = ()) -> Kernel:
    """`kernel` with its threads in order; kernels with roles are left as they are. `single`: the
    barriers of copies that products may still be under way for; others know that slots are free."""
    if by_hand(kernel) or any(_is_placement(op) for op in walk_ops(kernel)):
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
    walk = _Mending(rebuild(kernel, body=_commit_stores(kernel.body)), ("bulk", "done"))
    left = walk.run().bulk
    kernel = walk.kernel
    if walk.inserted:
        kernel = _Superfluous(walk).removed()
        left = Walk(kernel, walk.found, ("nothing",), walk.looked).run().bulk
    if left:
        done = WaitGroup("bulk", 0, read=True, loc=last[-1].loc)
        kernel = rebuild(kernel, body=(*kernel.body, done))
    return kernel


def mended(kernel: Kernel, only: tuple[str, ...] = ()) -> Kernel:
    """`kernel` with what is missing, and nothing that another insertion makes superfluous."""
    walk = _Mending(kernel, only)
    walk.run()
    return _Superfluous(walk).removed() if walk.inserted else walk.kernel


class _Mending(Walk):
    """A walk that inserts what is missing and goes on from there.

    While the loops around are in their first round, nothing behind a place has been seen yet: to
    go on from the state that was kept there is to begin anew, for less. A hazard of a later round
    sends the walk back to the loop's beginning. States are kept before ops with bodies, and before
    barriers, where fences may have to go.
    """

    def __init__(self, kernel: Kernel, only: tuple[str, ...]) -> None:
        super().__init__(kernel, per_thread(kernel), only)
        self.inserted: list[Op] = []
        self.again: set[tuple[str, int, int]] = set()  # what was missing, between which ops
        self.most = MOST_INSERTED + 4 * sum(1 for _ in walk_ops(kernel))

    def current(self, op: OpT, path: Path) -> OpT:
        found: Any = _chain(self.kernel, path)[-1]
        return found  # type: ignore[no-any-return]

    def body(self, body: Body, at: Path, loops: tuple[Var, ...], state: State) -> None:
        if self.later:
            super().body(body, at, loops, state)
            return
        kept: dict[int, tuple[State, State | None]] = {}
        if not at:
            kept[0] = (state.copy(), None)
        k = 0
        while k < len(body):
            op = body[k]
            if goes_into(op) or isinstance(op, Sync):
                kept[k] = self.snapshot(state)
            try:
                self.op(op, (*at, (k, "")), loops, state)
            except Found as found:
                if found.where is None:
                    found.where, found.new = self.place(found.hazard)
                index = found.where[len(at)][0] if found.where[: len(at)] == at else -1
                if index < 0 or (index not in kept and index != k and at):
                    raise  # to go on from a place around
                if index in kept or index != k:
                    # of an op without bodies, nothing has been noted when it is found to be one
                    k = index if index in kept else 0
                    self.restore(state, kept[k])
                kept = {i: known for i, known in kept.items() if i < k or (i == k == 0 and not at)}
                self.insert(found.where, found.new)
                body = _body_at(self.kernel, at)
            else:
                k += 1

    def place(self, hazard: Hazard) -> tuple[Path, list[Op]]:
        # a fence in a loop makes of what stands before the loop something to meet behind the fence
        new, old = (id(_chain(self.kernel, p)[-1]) for p in (hazard.path, hazard.old.path))
        key = hazard.missing, new, old
        close = key in self.again
        self.again.add(key)
        return _mend(self.kernel, hazard, self.found, close=close)

    def snapshot(self, state: State) -> tuple[State, State | None]:
        return state.copy(), self.jumps[-1].copy() if self.jumps else None

    def restore(self, state: State, kept: tuple[State, State | None]) -> None:
        before, jumped = kept
        state.become(before)
        if jumped is not None:
            self.jumps[-1].become(jumped)

    def insert(self, where: Path, new: list[Op]) -> None:
        if len(self.inserted) > self.most:
            raise CompileError("the order of threads did not settle", loc=self.kernel.loc)
        self.kernel = _insert(self.kernel, where, new)
        self.inserted += new
        if self.found.controls:
            # it names ops by identity, which insertions around them change
            self.found = per_thread(self.kernel)
            self.looked.clear()
            self.accesses.clear()


class _Superfluous(Walk):
    """Takes out each of the insertions, in turn, without which there is no hazard either.

    `before` is the state before each of them, in the first round of the loops around. Whether one
    is missed is looked for in the ops behind it: there a hazard mostly is, and where none is, both
    ways often come to the same.
    """

    def __init__(self, mending: _Mending) -> None:
        super().__init__(mending.kernel, mending.found, mending.only, mending.looked)
        self.inserted = mending.inserted
        self.asked = {id(op) for op in mending.inserted}
        self.before: Before = {}
        self.recording = False

    def op(self, op: Op, path: Path, loops: tuple[Var, ...], state: State) -> None:
        if self.recording and id(op) in self.asked and not self.later:
            self.before[id(op)] = path, loops, state.copy()
        super().op(op, path, loops, state)

    def look_again(self) -> None:
        self.recording = True
        self.run()
        self.recording = False

    def removed(self) -> Kernel:
        self.look_again()
        for op in self.inserted:
            self.gone.add(id(op))
            try:
                changed = self.go_without(op)
            except Found:
                self.gone.remove(id(op))
                continue
            self.asked.remove(id(op))
            if changed is None:
                self.look_again()
            else:
                self.before.update(changed)
        rule: OpRule = lambda op: () if id(op) in self.gone else None  # noqa: E731
        return rebuild(self.kernel, body=map_body(self.kernel.body, rule))

    def go_without(self, op: Op) -> Before | None:
        """What that changes of `before`, None: who knows."""
        path, loops, state = self.before[id(op)]
        *around, (index, _) = path
        at = tuple(around)
        body = _body_at(self.kernel, at)
        state, reference = state.copy(), state.copy()
        self.touch(op, path, loops, reference)
        changed: Before | None = {}
        for k in range(index + 1, len(body)):
            each, here = body[k], (*at, (k, ""))
            if id(each) in self.gone:
                continue
            if not at and state == reference:
                return changed
            if goes_into(each):
                changed = None
            elif changed is not None and id(each) in self.asked:
                changed[id(each)] = here, loops, state.copy()
            self.op(each, here, loops, state)
            if not at:
                self.op(each, here, loops, reference)
        if not at:
            return changed
        self.run()
        return None


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


# ── mending ──────────────────────────────────────────────────────────────────────────────────


def _mend(
    kernel: Kernel, hazard: Hazard, found: PerThread, *, close: bool
) -> tuple[Path, list[Op]]:
    """Where something goes, and what. `close`: right before the later op; a place before the loop
    around it was not enough."""
    chain = _chain(kernel, hazard.path)
    loc = chain[-1].loc
    met = _meeting_between(kernel, hazard)
    if hazard.missing == "fence" and met is not None:
        fence: list[Op] = [Fence("proxy_async", loc=loc)]
        return met, fence
    last = chain[-1]
    inside = hazard.old.path[: len(hazard.path)]
    if isinstance(last, While) and inside == (*hazard.path[:-1], (hazard.path[-1][0], "body")):
        # its condition is read again behind the body
        return (*inside, (len(last.body), "")), _missing(hazard, loc)
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
    return where, _missing(hazard, loc)


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


def _body_at(kernel: Kernel, at: Path) -> Body:
    found: Body = getattr(_chain(kernel, at)[-1], at[-1][1]) if at else kernel.body
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
