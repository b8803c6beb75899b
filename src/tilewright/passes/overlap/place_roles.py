"""Code of their own for warps on which a kernel's author has placed statements.

**Without barriers of their author's** (`place_roles`, for `T.ws`) placed statements mean what they
mean in the order of the text; this pass says where everything runs, and where warps must meet so
that nobody sees the difference.

- What is not placed runs where its fragments are; in loops and branches around placed statements,
  on the first of the warps that are placed there; else on all warps together.
- A fragment that statements on different warps touch lives in shared memory instead.
- Before a statement that touches memory which other warps have touched since all last met (and one
  of the two wrote), all meet again. Accesses are told apart by the buffer, no finer.

**Then** (`split_roles`) a kernel has roles among ordinary statements: in loops, one after the
other, some on all warps together. Its barriers say what happens when; layouts, instructions and
what orders the threads of one role among themselves are derived by the passes that follow.

The block's warps are cut into *partitions* wherever a role begins or ends. Each gets one role, with
its statements and the loops, guards and scalars around them. A role over several partitions is
*joint*: its threads meet before and after it, and a loop around it stays one loop, with roles in
it. A fragment belongs to the threads of the warps that use it, and to no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import TypeAlias, TypeGuard

from tilewright.ir.analysis.flow import ENTERED, Flow, Loop
from tilewright.ir.analysis.uniform import is_collective
from tilewright.passes.core import *
from tilewright.passes.overlap.rings import plain_loop
from tilewright.passes.overlap.roles import by_hand, free_barriers


@dataclass(frozen=True, order=True)
class Warps:
    """A range of the block's warps."""

    first: int
    count: int

    @property
    def threads(self) -> int:
        return self.count * WARP

    def within(self, other: Warps) -> bool:
        return other.first <= self.first and self.first + self.count <= other.first + other.count

    def meets(self, other: Warps) -> bool:
        return self.first < other.first + other.count and other.first < self.first + self.count

    def words(self) -> str:
        groups = range(self.first // GROUP, -(-(self.first + self.count) // GROUP))
        if self.first % GROUP or self.count % GROUP:
            return f"warps {self.first} to {self.first + self.count - 1}"
        several = len(groups) > 1
        return f"warpgroup{'s' * several} {', '.join(map(str, groups))}"


def warps_of(role: Role) -> Warps:
    return Warps(role.first, role.warps)


def block_warps(kernel: Kernel) -> Warps:
    return Warps(0, kernel.warps)


def fragment_users(body: Body, roots: Aliases) -> dict[str, dict[Warps, Op]]:
    """By fragment: the warps whose roles touch it, each with an op that does."""
    found: dict[str, dict[Warps, Op]] = {}
    for role in walk_ops(body, Role):
        for op in walk_ops(role.body):
            for buffer in (*read_buffers(op), *written_buffers(op)):
                if buffer.is_fragment and not isinstance(op, (Alloc, Hint)):
                    found.setdefault(roots[buffer.name], {}).setdefault(warps_of(role), op)
    return found


def meet_in_roles(kernel: Kernel) -> Kernel:
    """`kernel` with barriers of a role's own threads for those of the block: others do not come."""
    whole, ids, own = block_warps(kernel), iter(free_barriers(kernel)), dict[Warps, Expr]()

    def rule(op: Op) -> Op | None:
        if not isinstance(op, Role) or warps_of(op) == whole:
            return None
        warps = warps_of(op)

        def met(inner: Op) -> Op | None:
            if not isinstance(inner, Sync) or inner.scope != "block":
                return None
            if warps.threads == WARP:
                return Sync("warp")
            if warps not in own and (found := next(ids, None)) is not None:
                own[warps] = const(found)
            if warps not in own:
                raise CompileError(
                    "the threads of a role must meet here, but no named barrier is left",
                    fix="use fewer named barriers, or fewer groups of warps",
                )
            return Sync("named", own[warps], warps.threads)

        return rebuild(op, body=map_body(op.body, met))

    return rebuild(kernel, body=map_body(kernel.body, rule))


def place_roles(kernel: Kernel, target: Target) -> Kernel:
    """Turn statements placed on warpgroups (`T.ws`) into roles."""
    if not any(_is_placement(op) for op in walk_ops(kernel)):
        return kernel
    whole = block_warps(kernel)
    body = _placed(kernel.body, whole)
    if not any(walk_ops(body, Role)):
        return rebuild(kernel, body=body)  # everything on all warps
    _check_scalars(body)
    work = _Placer(kernel, whole)
    kernel = meet_in_roles(rebuild(kernel, body=work.settle(body)))
    kernel = work.shared_fragments(kernel)
    body, _ = _Order(kernel, whole).body(kernel.body, frozenset())
    _say(kernel, body, work.crossing)
    return rebuild(kernel, body=body)


def _is_placement(op: Op) -> TypeGuard[Hint]:
    return isinstance(op, Hint) and op.name == "ws"


def _placed(body: Body, whole: Warps) -> Body:
    """`body` with a role for what stands between two hints."""
    found: list[Op] = []
    begin: Hint | None = None
    start = 0
    for op in body:
        if not _is_placement(op):
            found.append(map_bodies(op, lambda inner: _placed(inner, whole)))
        elif begin is None:
            begin, start = op, len(found)
        else:
            warps = Warps(int(begin.detail[0]) * GROUP, len(begin.detail) * GROUP)
            if warps != whole:
                found[start:] = [rebuild(_role(warps, tuple(found[start:])), loc=begin.loc)]
            begin = None
    return tuple(found)


WITH_FRAGMENTS, AMONG_PLACED, ANYWHERE = range(3)  # which statements get a place


class _Placer:
    def __init__(self, kernel: Kernel, whole: Warps) -> None:
        self.whole = whole
        self.roots = aliases(kernel)
        self.owners: dict[str, dict[Warps, Op]] = {}
        self.crossing: list[str] = []  # fragments that have become shared

    # ── where what is not placed runs ────────────────────────────────────────────────────────

    def settle(self, body: Body) -> Body:
        """Every statement that needs all its threads together in a role: first those whose
        fragments are somewhere, then those among placed ones, then the rest."""
        for homes in (WITH_FRAGMENTS, AMONG_PLACED, ANYWHERE):
            count = -1
            while count != (count := sum(isinstance(op, Role) for op in walk_ops(body))):
                self.owners = fragment_users(body, self.roots)
                body = self.near(body, homes, None)
        return body

    def near(self, body: Body, homes: int, inside: Warps | None) -> Body:
        """Statements with their fragments, or as `homes` says; `inside`: the warps that the loop
        or branch around places first."""
        found: list[Op] = []
        for op in body:
            if isinstance(op, Role) or not any(is_collective(o) for o in walk_ops(op)):
                found.append(op)
                continue
            placed = [warps_of(o) for o in walk_ops(op, Role)]
            if placed:
                around = inside or placed[0]
                found.append(map_bodies(op, partial(self.near, homes=homes, inside=around)))
                continue
            names = {self.roots[b.name] for b, _ in touched_within(op)}
            held = {w for name in names for w in self.owners.get(name, ())}
            home = min(held, default=None)
            if home is None and inside is not None:
                home = inside if homes >= AMONG_PLACED else None
            elif home is None and homes == ANYWHERE:
                home = self.whole
            found.append(op if home is None else _role(home, (op,)))
        return tuple(found)

    # ── fragments of several ─────────────────────────────────────────────────────────────────

    def shared_fragments(self, kernel: Kernel) -> Kernel:
        """`kernel` with fragments that several ranges of warps touch in shared memory."""
        users = fragment_users(kernel.body, self.roots)
        crossing = {name for name, found in users.items() if len(found) > 1}
        if not crossing:
            return kernel
        changes: dict[Buffer, Buffer] = {}
        for op in walk_ops(kernel):
            if isinstance(op, (Alloc, View)) and self.roots[op.buffer.name] in crossing:
                changes[op.buffer] = replace(op.buffer, space=Space.SHARED, layout=None)
            if not isinstance(op, Hint) or op.name != "layout" or op.buffer is None:
                continue
            if self.roots[op.buffer.name] in crossing:
                raise CompileError(
                    f"{op.buffer.name} has a layout over threads, but statements on different "
                    "warpgroups touch it",
                    loc=op.loc,
                    fix="place these statements on the same warpgroups, or leave the layout out",
                )
        self.crossing = sorted(crossing)
        return replace_buffers(kernel, changes)


def _role(warps: Warps, body: Body, derived: bool = False) -> Role:
    loc = next((op.loc for op in body if op.loc is not None), None)
    return Role(f"warps{warps.first}", warps.first, warps.count, body, derived=derived, loc=loc)


def _check_scalars(body: Body) -> None:
    """A variable that is set on some warps alone is theirs: others would read what was before."""
    roles = list(walk_ops(body, Role))
    inside = {id(op): warps_of(r) for r in roles for op in walk_ops(r.body)}
    own = {op.buffer.name for r in roles for op in walk_ops(r.body, Alloc)}
    for op in walk_ops(body):
        if not isinstance(op, Store) or not op.buffer.is_local:
            continue
        home = inside.get(id(op))
        if home is None or op.buffer.name in own:
            continue
        for other in walk_ops(body):
            if op.buffer in read_buffers(other) and inside.get(id(other)) != home:
                raise CompileError(
                    f"{op.buffer.name} is set on {home.words()} alone, and read elsewhere",
                    loc=op.loc,
                    notes=(f"it is read at {other.loc}",) if other.loc is not None else (),
                    fix="set it outside T.ws, or pass it on in shared memory",
                )


# ── who waits for whom ───────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Access:
    """A buffer touched since all warps met: by whom (None: every thread for itself), and by which
    statement of the body that is looked at; -1: before it."""

    buffer: str
    who: Warps | None
    writes: bool
    at: int = -1


Pending: TypeAlias = frozenset[Access]


def _moved(pending: Iterable[Access], at: int = -1) -> Pending:
    return frozenset(replace(access, at=at) for access in pending)


class _Order(Flow[Pending]):
    """Puts barriers of the block where the text's order needs them, right after what the later
    statement has to wait for: what stands between the two need not wait."""

    def __init__(self, kernel: Kernel, whole: Warps) -> None:
        super().__init__()
        self.whole = whole
        self.roots = aliases(kernel)
        self.written = {self.roots[b.name] for op in walk_ops(kernel) for b in written_buffers(op)}

    def join(self, a: Pending, b: Pending) -> Pending:
        return a | b

    def body(self, body: Body, pending: Pending) -> tuple[Body, Pending]:
        new, end = super().body(body, _moved(pending))
        return new, _moved(end)

    def inside(self, op: Loop | If, pending: Pending, out: list[Op]) -> tuple[Op, Pending]:
        new, end = super().inside(op, pending, out)
        # what was pending before stays so, from where it was: some path may not have met
        left = _moved(end)
        return new, _moved(end, len(out)) | {a for a in pending if replace(a, at=-1) in left}

    def again(self, loop: Loop, pending: Pending, out: list[Op]) -> Pending:
        return _moved(super().again(loop, _moved(pending), out))

    def visit(self, op: Op, pending: Pending, out: list[Op]) -> Pending:
        if isinstance(op, Sync) and op.scope in ("block", "cluster") and not op.arrive:
            return frozenset()
        if isinstance(op, Role) and warps_of(op) == self.whole:
            return frozenset()  # its threads meet before it and after it
        if isinstance(op, Continue) and self.loops and isinstance(self.loops[-1], While):
            op = self.loops[-1]  # its condition is next
        who = warps_of(op) if isinstance(op, Role) else None
        touched = touched_within(map_bodies(op, lambda _: ()) if isinstance(op, ENTERED) else op)
        new = {
            Access(self.roots[buffer.name], who, writes)
            for buffer, writes in touched
            if buffer.space in (Space.SHARED, Space.GLOBAL)
            and self.roots[buffer.name] in self.written
        }
        # all meet before `op`, the next statement after `out`, where somebody else's access
        # conflicts with one of its own
        last = max((old.at for old in pending if any(_conflict(old, n) for n in new)), default=None)
        if last is not None:
            place = last + 1 if last >= 0 else len(out)
            out.insert(place, Sync("block"))
            pending = frozenset(replace(a, at=a.at + 1) for a in pending if a.at >= place)
        return pending | _moved(new, len(out))


def _conflict(old: Access, new: Access) -> bool:
    return old.buffer == new.buffer and old.who != new.who and (old.writes or new.writes)


def _say(kernel: Kernel, body: Body, crossing: list[str]) -> None:
    syncs = sum(isinstance(op, Sync) and op.scope == "block" for op in walk_ops(body))
    syncs -= sum(isinstance(op, Sync) and op.scope == "block" for op in walk_ops(kernel))
    places = sorted({warps_of(op) for op in walk_ops(body, Role)})
    said = "; ".join(w.words() for w in places)
    said += f": all warps meet at {syncs} place{'s' * (syncs != 1)}"
    if crossing:
        said += f"; in shared memory: several warpgroups touch them: {', '.join(crossing)}"
    because(kernel.name, "placement", said)


# ── a role for each range of warps ───────────────────────────────────────────────────────────


@kernel_pass
def split_roles(at: Facts) -> Kernel:
    """Make a role of each range of warps on which the author has placed statements."""
    if not by_hand(at.kernel) or _is_laid_out(at.kernel):
        return at.kernel
    return _Splitter(at).run()


def _is_laid_out(kernel: Kernel) -> bool:
    """Whether the kernel says everything itself; instances are a word of that form alone."""
    for op in walk_ops(kernel):
        if isinstance(op, Role) and op.instances > 1:
            return True
        if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.FRAGMENT):
            if op.buffer.layout is None:
                return False
        elif (isinstance(op, (Copy, Gemm)) and op.atom is None) or (
            isinstance(op, Map) and op.layout is None
        ):
            return False
    return True


class _Splitter:
    def __init__(self, at: Facts) -> None:
        self.at = at
        self.kernel = at.kernel
        self.total = block_warps(at.kernel)
        self.roles = list(walk_ops(at.kernel, Role))
        places = {warps_of(role) for role in self.roles}
        edges = {0, self.total.count} | {e for w in places for e in (w.first, w.first + w.count)}
        self.each = [Warps(a, b - a) for a, b in pairwise(sorted(edges))]
        self.joint = places - set(self.each)

    def run(self) -> Kernel:
        if self.kernel.thread_count % WARP:
            raise CompileError(
                "statements are placed on whole warps",
                loc=self.roles[0].loc,
                got=f"{self.kernel.thread_count} threads",
                fix="make threads a multiple of 128",
            )
        self.check_products()
        self.check_fetches()
        common, rest = self.common(map_body(self.kernel.body, _one_by_one))
        busy = {w for w in self.each if any(map(_acts, walk_ops(tuple(self.part(rest, w)))))}
        self.each = [w for w in self.each if w in busy or any(map(w.within, self.joint))]
        body = self.split(rest)
        self.check_owners(body)
        body = self.named_apart(self.registers(body), common)
        return rebuild(self.kernel, body=(*common, *body))

    def common(self, body: Body) -> tuple[list[Op], Body]:
        """What stands outside roles wherever it is said, memory and barriers, and the rest."""
        found: list[Op] = []
        rest: list[Op] = []
        inner = {v for op in body for v in bound_within(op)}
        for op in body:
            # variables are each thread's own, whatever code it runs
            own = isinstance(op, Alloc) and op.buffer.is_local and op.init is not None
            if isinstance(op, Alloc) and (self.joint or not own):
                found.append(rebuild(op, init=None))
                rest += [] if op.init is None else [Store(op.buffer, (), op.init)]
            elif (isinstance(op, View) and not variables(op.offset) & inner) or isinstance(
                op, BarrierInit
            ):
                found.append(op)
            elif not isinstance(op, Sync) or op.scope != "block" or rest:
                rest.append(op)  # without the first barrier: threads meet after all of these

        def hoist(op: Op) -> Op | Body | None:
            if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.BARRIER):
                found.insert(0, op)
                return ()
            return None

        body = map_body(tuple(rest), hoist)
        if any(isinstance(op, BarrierInit) for op in found):
            scope = "cluster" if self.kernel.cluster_size > 1 else "block"
            found += [Fence("barrier_init"), Sync(scope)]
        return found, body

    # ── roles ────────────────────────────────────────────────────────────────────────────────

    def split(self, body: Body) -> Body:
        """Statements without a joint role as one role of each partition; joint roles, and the
        loops and branches around them, stay. So do names of values, which joint roles may need."""
        found: list[Op] = []
        together: list[Op] = []

        def flush() -> None:
            for warps in self.each:
                ops = tuple(self.part(tuple(together), warps))
                if any(map(_matters, walk_ops(ops))):
                    found.append(_role(warps, ops, derived=True))
            together.clear()

        for op in body:
            around = any(warps_of(role) in self.joint for role in walk_ops(op, Role))
            if not around and not (isinstance(op, Let) and self.joint):
                together.append(op)
                continue
            flush()
            if isinstance(op, Role):
                warps, last = warps_of(op), found[-1] if found else None
                before: Body = ()
                if isinstance(last, Role) and warps_of(last) == warps:
                    before = last.body
                    found.pop()
                body = (*before, *self.own_syncs(op.body, warps))
                found.append(_role(warps, body, derived=True))
            else:
                found.append(map_bodies(op, self.split))
        flush()
        return tuple(found)

    def part(self, body: Body, warps: Warps) -> Iterator[Op]:
        """What a partition does of statements that each has its own part of."""
        for op in body:
            if isinstance(op, Role):
                if warps.within(warps_of(op)):
                    yield from self.own_syncs(op.body, warps)
            elif isinstance(op, (For, If, While)):
                op = map_bodies(op, lambda inner: tuple(self.part(inner, warps)))
                if any(map(_matters, walk_ops(op))):
                    yield op
            else:
                yield from self.own_syncs((op,), warps)

    def own_syncs(self, body: Body, warps: Warps) -> Body:
        """`body` with its author's barriers of the block as named ones: `__syncthreads` is for
        threads that run the same code."""

        def rule(op: Op) -> Op | None:
            if not isinstance(op, Sync) or op.scope != "block" or warps == self.total:
                return None
            return Sync("named", const(0), self.total.threads)

        return map_body(body, rule)

    def named_apart(self, body: Body, common: list[Op]) -> Body:
        """`body` with a name of its own for whatever several roles define."""
        taken = self.at.names | defined_names((*common, *body))
        for role in walk_ops(body, Role):
            taken -= defined_names(role)
        body = map_body(body, lambda op: rename_unique(op, taken) if isinstance(op, Role) else None)
        self.at.names.update(taken)
        return body

    def registers(self, body: Body) -> Body:
        """`body` with the registers that partitions ask for; not where all warps run the same code
        afterwards."""
        asked = {warps_of(role): role.registers for role in self.roles[::-1] if role.registers}
        if not asked:
            return body
        tops = [k for k, op in enumerate(body) if isinstance(op, Role) and warps_of(op) in asked]
        if Feature.REGISTER_MOVE not in self.at.target.features:
            why = f"{self.at.target.arch} cannot move them"
        elif any(
            warps_of(role) in self.joint for role in walk_ops(body[min(tops, default=0) :], Role)
        ):
            why = "all warps run some code together after T.set_max_nreg"
        else:
            return tuple(
                rebuild(op, registers=asked.pop(warps_of(op), None)) if isinstance(op, Role) else op
                for op in body
            )
        because(self.kernel.name, "registers of roles", f"kept as they are: {why}")
        return body

    # ── what is refused ──────────────────────────────────────────────────────────────────────

    def check_products(self) -> None:
        """Products of warpgroups are for warps that are some."""
        for role in self.roles:
            for op in walk_ops(role.body, Gemm):
                if op.atom == "wgmma" and (role.first % GROUP or role.warps % GROUP):
                    raise CompileError(
                        "T.wgmma_gemm is for whole warpgroups",
                        loc=op.loc,
                        expected="threads from a multiple of 128 on, and as many",
                        got=f"{role.warps} warps from warp {role.first} on",
                        fix="use T.gemm, or other threads: T.ws(i)",
                    )

    def check_fetches(self) -> None:
        """What is done once for all threads cannot be done by each partition."""
        inside = {id(op) for role in self.roles for op in walk_ops(role)}
        for op in walk_ops(self.kernel, Atomic):
            if op.result is not None and id(op) not in inside:
                raise CompileError(
                    "an atomic whose result is used stands outside T.ws: each warpgroup runs its "
                    "own code, and would do it again",
                    loc=op.loc,
                    fix="place it on one warpgroup, and pass the result on in shared memory",
                )

    def check_owners(self, body: Body) -> None:
        """A fragment belongs to the threads of one range of warps."""
        for name, users in fragment_users(body, aliases(self.kernel)).items():
            if len(users) > 1:
                first, other = list(users)[:2]
                raise CompileError(
                    f"{name} is a fragment of {first.words()}, and used on {other.words()} too: "
                    "registers are not seen from outside",
                    loc=users[other].loc,
                    fix="pass it on through shared memory, or place both statements on the same "
                    "warpgroups",
                )


def _one_by_one(op: Op) -> Op | None:
    """Loops run nothing ahead: their author says what is under way."""
    return plain_loop(op) if isinstance(op, For) and op.kind == "pipelined" else None


def _matters(op: Op) -> bool:
    """Whether a partition must run `op`, if it does anything at all."""
    if isinstance(op, Alloc):
        return op.init is not None
    return not isinstance(op, (Let, View, Hint, For, If, While))


def _acts(op: Op) -> bool:
    """Whether anybody but the thread itself can tell that it ran `op`."""
    local = isinstance(op, Store) and op.buffer.is_local
    return _matters(op) and not local and not isinstance(op, Alloc)
