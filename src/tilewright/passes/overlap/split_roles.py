"""Give every warpgroup its own code, in kernels whose author has placed statements on warps.

Such a kernel has roles among ordinary statements: in loops, one after the other, some on all warps
together. Its barriers say what happens when; layouts, instructions and what orders the threads of
one role among themselves are derived by the passes that follow.

The block's warps are cut into *partitions* wherever a role begins or ends. Each gets one role, with
its statements and the loops, guards and scalars around them. A role over several partitions is
*joint*: its threads meet before and after it, and a loop around it stays one loop, with roles in
it. A fragment belongs to the threads of the warps that use it, and to no others.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import prod

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.atoms import Feature
from tilewright.ir.core import *
from tilewright.ir.rewrite import defined_names
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.overlap.place_roles import Warps, fragment_users, warps_of
from tilewright.passes.overlap.roles import by_hand
from tilewright.passes.reasons import because
from tilewright.support.errors import CompileError


@kernel_pass
def split_roles(at: Facts) -> Kernel:
    """One role for each range of warps on which the author has placed statements."""
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
        self.total = Warps(0, -(-prod(at.kernel.threads) // WARP))
        self.roles = list(walk_ops(at.kernel, Role))
        places = {warps_of(role) for role in self.roles}
        edges = {0, self.total.count} | {e for w in places for e in (w.first, w.first + w.count)}
        self.each = [Warps(a, b - a) for a, b in pairwise(sorted(edges))]
        self.joint = places - set(self.each)

    def run(self) -> Kernel:
        if prod(self.kernel.threads) % WARP:
            raise CompileError(
                "statements are placed on whole warps",
                loc=self.roles[0].loc,
                got=f"{prod(self.kernel.threads)} threads",
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
            if isinstance(op, Alloc) and self.is_shared(op):
                found.append(rebuild(op, init=None))
                rest += [] if op.init is None else [Store(op.buffer, (), op.init, loc=op.loc)]
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
            scope = "cluster" if prod(self.kernel.cluster or (1,)) > 1 else "block"
            loc = self.kernel.loc
            found += [Fence("barrier_init", loc=loc), Sync(scope, loc=loc)]
        return found, body

    def is_shared(self, op: Alloc) -> bool:
        """Variables are each thread's own, whatever code it runs."""
        return op.buffer.space is not Space.LOCAL or op.init is None or bool(self.joint)

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
                    found.append(_role(warps, ops))
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
                found.append(_role(warps, (*before, *self.own_syncs(op.body, warps))))
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
            return Sync("named", const(0), self.total.threads, loc=op.loc)

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


def _role(warps: Warps, ops: Body) -> Role:
    loc = next((op.loc for op in ops if op.loc is not None), None)
    return Role(warps.name, warps.first, warps.count, ops, derived=True, loc=loc)


def _one_by_one(op: Op) -> Op | None:
    """Loops run nothing ahead: their author says what is under way."""
    if isinstance(op, For) and op.kind == "pipelined":
        return rebuild(op, kind="serial", stages=0, order=None, stage=None)
    return None


def _matters(op: Op) -> bool:
    """Whether a partition must run `op`, if it does anything at all."""
    if isinstance(op, Alloc):
        return op.init is not None
    return not isinstance(op, (Let, View, Hint, For, If, While))


def _acts(op: Op) -> bool:
    """Whether anybody but the thread itself can tell that it ran `op`."""
    local = isinstance(op, Store) and op.buffer.space is Space.LOCAL
    return _matters(op) and not local and not isinstance(op, Alloc)
