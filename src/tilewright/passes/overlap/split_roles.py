"""Give every warpgroup its own code, in kernels whose author has placed statements on warps.

Such a kernel has roles among ordinary statements: in loops, one behind the other, some on all warps
together. Its barriers say what happens when; layouts, instructions and what orders the threads of
one role among themselves are derived here.

1. The block's warps are cut into *crews* wherever a role begins or ends. What no role places runs
   in every crew: loops, guards and scalars are theirs too. A role over several crews is *joint*:
   its threads meet before it and behind it.
2. A crew's code is a kernel of its own, of as many threads (`Crews.view`): the passes that choose
   products, spread fragments, choose copies and order threads see nothing else. So a fragment
   belongs to the threads of the warps that use it, and to no others.
3. Shared tiles get their layouts from all crews at once.
4. Where a crew tells others that it is so far (`role_releases`) nothing of it is under way: its
   products and copies are over, and ordinary writes are visible to the engines.
5. The crews' codes become roles. A loop around a joint role stays one loop, with roles in it; any
   other goes into each role that has something to do there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from math import prod

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Expr, Var, const, loads, variables
from tilewright.ir.op import (
    Alloc,
    Atomic,
    BarrierInit,
    Body,
    Copy,
    Fence,
    For,
    Gemm,
    Hint,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    Sync,
    View,
    bound,
    expressions,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import (
    defined_names,
    fresh_name,
    map_body,
    map_kernels,
    program_names,
    rebuild,
    rename_unique,
    substitute_vars,
)
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.loops import simplify_operands
from tilewright.passes.layout.choose_copies import choose_copies
from tilewright.passes.layout.choose_gemms import choose_gemms
from tilewright.passes.layout.infer_layouts import spread_fragments
from tilewright.passes.layout.shared_tiles import lay_out_shared
from tilewright.passes.lower.threads import free_barriers
from tilewright.passes.overlap.role_copies import RoleCopies
from tilewright.passes.overlap.role_releases import released, releases, seen_by_engines
from tilewright.passes.overlap.roles import by_hand
from tilewright.passes.overlap.warp_partitions import (
    BLOCK,
    GROUP,
    WARP,
    Crews,
    Frame,
    Item,
    Joint,
    Warps,
    acts,
    matters,
    warps_of,
)
from tilewright.passes.reasons import because
from tilewright.passes.sync.insert_syncs import insert_syncs
from tilewright.support.errors import CompileError


def split_roles(program: Program, target: Target) -> Program:
    """`program` with layouts, instructions and syncs for the roles that their author has placed."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if not by_hand(kernel) or _is_laid_out(kernel):
            return kernel
        return _Dealer(kernel, program, target, names).run()

    return map_kernels(program, one)


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


class _Dealer:
    def __init__(self, kernel: Kernel, program: Program, target: Target, names: set[str]) -> None:
        self.kernel = rebuild(kernel, body=_one_by_one(kernel.body))
        self.program = program
        self.target = target
        self.names = names
        self.crews = Crews(self.kernel)
        self.roles = self.crews.roles
        self.thread = Var(fresh_name("thread", names))

    # ── the whole ────────────────────────────────────────────────────────────────────────────

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
        common, rest = self.common(self.kernel.body)
        items = self.crews.items(rest)
        self.outside = {op.buffer.name for op in common if isinstance(op, (Alloc, View))}
        self.outside |= {v.name for op in common for v in bound(op)}
        views = {}
        for warps in (*self.crews.each, *self.crews.joint):
            body = self.crews.view(items, warps)
            if any(acts(op) for op in walk_ops(body)):
                views[warps] = self.own_threads(body, warps)
        owners = self.owners(views)
        roots = aliases(self.kernel)
        held = [op for op in common if isinstance(op, (Alloc, View)) and _is_fragment(op)]
        common = [op for op in common if not _is_fragment(op)]
        views = {
            warps: (*(op for op in held if owners.get(roots[op.buffer.name]) == warps), *body)
            for warps, body in views.items()
        }
        copies = RoleCopies(self.kernel, self.program, self.target, self.names, releases)
        program = self.as_program(common, views)
        kernels = [copies.engaged(kernel) for kernel in program.kernels]
        common += copies.made
        own = {op.buffer.name for op in copies.made if isinstance(op, Alloc)}
        self.outside |= own
        kernels = [rebuild(k, body=(*copies.made, *k.body)) for k in kernels]
        program = choose_gemms(replace(program, kernels=tuple(kernels)), self.able)
        kernels = [
            spread_fragments(kernel, self.program.dims, self.target, self.names)
            for kernel in program.kernels
        ]
        common, kernels = self.lay_out_shared(common, kernels)
        program = choose_copies(replace(program, kernels=tuple(kernels)), self.target)
        engines = seen_by_engines(program.kernels)
        ids = iter(free_barriers(self.kernel))
        done: dict[Warps, Body] = {}
        registers: list[Op] = []
        for warps, kernel in zip(views, program.kernels, strict=True):
            kernel = released(kernel, warps, engines, own, self.target)
            kernel = insert_syncs(kernel, self.target, own)
            registers += [op for op in kernel.body if self.is_common(op) and _is_fragment(op)]
            body = tuple(op for op in kernel.body if not self.is_common(op))
            done[warps] = self.block_threads(self.meeting(body, warps, ids), warps)
        moved = self.moved_registers(items)

        def role(warps: Warps, ops: list[Op], top: bool) -> Iterator[Op]:
            if any(matters(op) for op in walk_ops(tuple(ops))):
                count = moved.pop(warps, None) if top else None
                loc = next((op.loc for op in ops if op.loc is not None), self.kernel.loc)
                yield Role(
                    warps.name, warps.first, warps.count, tuple(ops), registers=count, loc=loc
                )
            else:
                registers.extend(op for op in ops if isinstance(op, Alloc))

        merged = self.crews.merge(items, done, role)
        body = tuple(self.start([*common, *registers], merged))
        return rebuild(self.kernel, body=self.named_apart(body))

    def named_apart(self, body: Body) -> Body:
        """`body` with a name of its own for whatever several roles define."""
        taken = self.names | defined_names(body)
        for role in walk_ops(body, Role):
            taken -= defined_names(role)

        def rule(op: Op) -> Op | None:
            return rename_unique(op, taken) if isinstance(op, Role) else None

        body = map_body(body, rule)
        self.names |= taken
        return body

    def as_program(self, common: list[Op], views: dict[Warps, Body]) -> Program:
        kernels = tuple(
            rebuild(
                self.kernel,
                thread_vars=(self.thread,),
                threads=(warps.threads,),
                body=(*common, *body),
            )
            for warps, body in views.items()
        )
        return replace(self.program, kernels=kernels)

    def lay_out_shared(
        self, common: list[Op], kernels: list[Kernel]
    ) -> tuple[list[Op], list[Kernel]]:
        parts = [
            tuple(op for op in k.body if _is_fragment(op) or not self.is_common(op))
            for k in kernels
        ]
        roles = [Role(f"part{n}", 0, 1, part) for n, part in enumerate(parts)]
        whole = lay_out_shared(rebuild(self.kernel, body=(*common, *roles)), self.target)
        laid = [op for op in whole.body if isinstance(op, Role)]
        common = [op for op in whole.body if not isinstance(op, Role)]
        found = [
            rebuild(k, body=(*common, *role.body)) for k, role in zip(kernels, laid, strict=True)
        ]
        return common, found

    def is_common(self, op: Op) -> bool:
        if isinstance(op, (Alloc, View)):
            return op.buffer.name in self.outside
        if isinstance(op, Let):
            return op.var.name in self.outside
        return isinstance(op, BarrierInit)

    def start(self, common: list[Op], merged: list[Op]) -> Iterator[Op]:
        """Memory and barriers, which every warp knows of first, and then what they do. Passes may
        have asked for more memory in roles, and for registers that several roles use."""
        inside: list[Op] = []
        roles = list(walk_ops(tuple(merged), Role))
        used = Counter(
            name
            for role in roles
            for name in {
                b.name for op in walk_ops(role) for b in (*read_buffers(op), *written_buffers(op))
            }
        )

        def rule(op: Op) -> Op | Body | None:
            if not isinstance(op, Alloc) or op.init is not None:
                return None
            if op.buffer.space is Space.SHARED or used[op.buffer.name] > 1:
                inside.append(op)
                return ()
            return None

        rest = map_body(tuple(merged), rule)
        yield from (*inside, *common)
        if any(isinstance(op, BarrierInit) for op in common):
            scope = "cluster" if prod(self.kernel.cluster or (1,)) > 1 else "block"
            yield Fence("barrier_init", loc=self.kernel.loc)
            yield Sync(scope, loc=self.kernel.loc)
        yield from rest

    # ── the common text ──────────────────────────────────────────────────────────────────────

    def common(self, body: Body) -> tuple[list[Op], Body]:
        """What stands outside roles wherever it is said (memory, barriers and what they are, names
        that only depend on indices), and the rest."""
        found: list[Op] = []
        known = set(self.kernel.blocks)
        known |= {d.var for d in self.program.dims} | set(self.program.scalars)
        if self.kernel.rank is not None:
            known.add(self.kernel.rank)
        rest: list[Op] = []
        for op in body:
            if isinstance(op, Let) and not loads(op.value) and variables(op.value) <= known:
                known.add(op.var)
                found.append(op)
            elif isinstance(op, (Alloc, View)) and self.is_shared(op, known):
                found.append(rebuild(op, init=None) if isinstance(op, Alloc) else op)
                if isinstance(op, Alloc) and op.init is not None:
                    rest.append(Store(op.buffer, (), op.init, loc=op.loc))
            elif isinstance(op, BarrierInit):
                found.append(op)
            elif isinstance(op, Sync) and op.scope == "block" and not rest:
                continue  # threads meet behind all of these
            else:
                rest.append(op)

        def inner(op: Op) -> Op | Body | None:
            if isinstance(op, Alloc) and op.buffer.space in (Space.SHARED, Space.BARRIER):
                found.insert(0, op)
                return ()
            return None

        return found, map_body(tuple(rest), inner)

    def is_shared(self, op: Alloc | View, known: set[Var]) -> bool:
        if isinstance(op, View):
            return variables(op.offset) <= known
        if op.buffer.space is Space.LOCAL:
            # of each thread, whatever code it runs
            return bool(self.crews.joint) or op.init is None
        return True

    # ── views ────────────────────────────────────────────────────────────────────────────────

    def own_threads(self, body: Body, warps: Warps) -> Body:
        """`body` with threads counted from the first of `warps`."""
        linear: Expr = self.thread + warps.first * WARP
        values: dict[Var, Expr] = {}
        for var, extent in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
            values[var] = linear % extent if var is not self.kernel.thread_vars[-1] else linear
            linear = linear // extent
        return _simple(substitute_vars(body, values)) if self.asks(body, set(values)) else body

    def block_threads(self, body: Body, warps: Warps) -> Body:
        """`body` with threads counted as the block counts them."""
        linear, step = const(0) + 0, 1
        for var, extent in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
            linear, step = linear + var * step, step * extent
        if not self.asks(body, {self.thread}):
            return body
        return _simple(substitute_vars(body, {self.thread: linear - warps.first * WARP}))

    def asks(self, body: Body, names: set[Var]) -> bool:
        return any(variables(e) & names for op in walk_ops(body) for e in expressions(op))

    def meeting(self, body: Body, warps: Warps, ids: Iterator[int]) -> Body:
        """`body` with barriers of its own threads where a kernel of its own has the block's."""
        own: list[Expr] = []

        def rule(op: Op) -> Op | None:
            if not isinstance(op, Sync) or op.scope != "block":
                return None
            if warps == self.crews.total:
                return Sync("block", loc=op.loc)
            if op.id is BLOCK:
                # `__syncthreads` is for threads that run the same code
                return Sync("named", BLOCK, self.crews.total.threads, loc=op.loc)
            if warps.threads == WARP:
                return Sync("warp", loc=op.loc)
            if not own:
                own.append(const(self.next_id(ids, op)))
            return Sync("named", own[0], warps.threads, loc=op.loc)

        return map_body(body, rule)

    def next_id(self, ids: Iterator[int], op: Op) -> int:
        found = next(ids, None)
        if found is None:
            raise CompileError(
                "the threads of a role must meet here, but no named barrier is left",
                loc=op.loc,
                fix="use fewer named barriers, or fewer groups of warps",
            )
        return found

    # ── roles again ──────────────────────────────────────────────────────────────────────────

    def moved_registers(self, items: list[Item]) -> dict[Warps, int]:
        """Registers that crews ask for; not where all warps run the same code afterwards."""
        found: dict[Warps, int] = {}
        for role in self.roles:
            if role.registers is not None and warps_of(role) in self.crews.each:
                found.setdefault(warps_of(role), role.registers)
        if not found:
            return found
        if Feature.REGISTER_MOVE not in self.target.features:
            why = f"kept as they are: {self.target.arch} cannot move them"
            because(self.kernel.name, "registers of roles", why)
            return {}
        asked = [r for r in self.roles if r.registers is not None]
        late = [i for i in items if isinstance(i, (Joint, Frame))]
        if any(isinstance(i, Frame) or _begins(i.role) > _begins(asked[0]) for i in late):
            why = "kept as they are: all warps run some code together behind T.set_max_nreg"
            because(self.kernel.name, "registers of roles", why)
            return {}
        return found

    # ── what is refused ──────────────────────────────────────────────────────────────────────

    def check_products(self) -> None:
        """Products of warpgroups are for warps that are some."""
        self.able = self.target
        for role in self.roles:
            if role.first % GROUP == 0 and role.warps % GROUP == 0:
                continue
            for op in walk_ops(role.body):
                if isinstance(op, Gemm) and op.atom == "wgmma":
                    raise CompileError(
                        "T.wgmma_gemm is for whole warpgroups",
                        loc=op.loc,
                        expected="threads from a multiple of 128 on, and as many",
                        got=f"{role.warps} warps from warp {role.first} on",
                        fix="use T.gemm, or other threads: T.ws(i)",
                    )
                if isinstance(op, Gemm):
                    self.able = self.target.without(Feature.WGMMA)

    def check_fetches(self) -> None:
        """What is done once for all threads cannot be done by each crew."""
        inside = {id(op) for role in self.roles for op in walk_ops(role)}
        for op in walk_ops(self.kernel):
            if isinstance(op, Atomic) and op.result is not None and id(op) not in inside:
                raise CompileError(
                    "an atomic whose result is used stands outside T.ws: each warpgroup runs its "
                    "own code, and would do it again",
                    loc=op.loc,
                    fix="place it on one warpgroup, and pass the result on in shared memory",
                )

    def owners(self, views: dict[Warps, Body]) -> dict[str, Warps]:
        """Whose each fragment is: it belongs to the threads of one range of warps."""
        owner: dict[str, tuple[Warps, Op]] = {}
        roots = aliases(self.kernel)
        for warps, body in views.items():
            for op in walk_ops(body):
                if isinstance(op, (Alloc, Hint)):
                    continue
                for buffer in (*read_buffers(op), *written_buffers(op)):
                    if buffer.space is not Space.FRAGMENT:
                        continue
                    name = roots[buffer.name]
                    before, _ = owner.setdefault(name, (warps, op))
                    if before != warps:
                        raise CompileError(
                            f"{buffer.name} is a fragment of {before.words()}, and used on "
                            f"{warps.words()} too: registers are not seen from outside",
                            loc=op.loc,
                            fix="pass it on through shared memory, or place both statements on "
                            "the same warpgroups",
                        )
        return {name: warps for name, (warps, _) in owner.items()}


def _one_by_one(body: Body) -> Body:
    """`body` with loops that run nothing ahead: their author says what is under way."""

    def rule(op: Op) -> Op | None:
        if isinstance(op, For) and op.kind == "pipelined":
            return rebuild(op, kind="serial", stages=0, order=None, stage=None)
        return None

    return map_body(body, rule)


def _is_fragment(op: Op) -> bool:
    return isinstance(op, (Alloc, View)) and op.buffer.space is Space.FRAGMENT


def _begins(role: Role) -> tuple[int, int]:
    return (role.loc.line, role.loc.column) if role.loc is not None else (0, 0)


def _simple(body: Body) -> Body:
    return map_body(body, simplify_operands)
