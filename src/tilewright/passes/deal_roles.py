"""Give every warpgroup its own code, in kernels whose author has placed statements on warps.

Such a kernel has roles among ordinary statements: in loops, one behind the other, some on all warps
together. Its barriers say what happens when; layouts, instructions and what orders the threads of
one role among themselves are derived here.

1. The block's warps are cut into *crews* wherever a role begins or ends. What no role places runs in
   every crew: loops, guards and scalars are theirs too. A role over several crews is *joint*: its
   threads meet before it and behind it.
2. A crew's code is a kernel of its own, of as many threads (`_Dealer.view`): the passes that choose
   products, spread fragments, choose copies and order threads see nothing else. So a fragment belongs
   to the threads of the warps that use it, and to no others.
3. Shared tiles get their layouts from all crews at once.
4. Behind what a crew gives away (`_releases`) nothing of it is under way: products that read shared
   memory are over, and ordinary writes are visible to the engines.
5. The crews' codes become roles. A loop around a joint role stays one loop, with roles in it; any
   other goes into each role that has something to do there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from typing import TypeAlias

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Expr, Var, const, loads, variables
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
    Kernel,
    Let,
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
    While,
    bodies,
    bound,
    expressions,
    marked,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import (
    defined_names,
    fresh_name,
    map_body,
    map_exprs,
    map_kernels,
    program_names,
    rebuild,
    rename_unique,
    substitute_vars,
)
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.choose_copies import choose_copies
from tilewright.passes.choose_products import choose_products
from tilewright.passes.infer_layouts import spread_fragments
from tilewright.passes.insert_syncs import insert_syncs
from tilewright.passes.lay_out_shared import lay_out_shared
from tilewright.passes.lower_threads import free_barriers
from tilewright.passes.matrix_groups import NumberedGemm, Release, number_gemms
from tilewright.passes.reasons import because
from tilewright.passes.roles import by_hand
from tilewright.support.errors import CompileError

WARP, GROUP = 32, 4
PART = "part"  # the hint that stands where a joint role or a common loop begins and ends
BLOCK = const(0)  # the id of a barrier of the whole block, in the code of a crew
_TILE_OPS = (Copy, Fill, Gemm, Reduce, Scan, Relayout, Map)
_BULK = ("bulk_load", "bulk_store")


def deal_roles(program: Program, target: Target) -> Program:
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
        elif isinstance(op, (Copy, Gemm)) and op.atom is None:
            return False
        elif isinstance(op, Map) and op.layout is None:
            return False
    return True


@dataclass(frozen=True, order=True)
class Warps:
    """A range of the block's warps."""

    first: int
    count: int

    @property
    def threads(self) -> int:
        return self.count * WARP

    @property
    def name(self) -> str:
        return f"warps{self.first}"

    def within(self, other: Warps) -> bool:
        return other.first <= self.first and self.first + self.count <= other.first + other.count

    def words(self) -> str:
        groups = range(self.first // GROUP, -(-(self.first + self.count) // GROUP))
        if self.first % GROUP or self.count % GROUP:
            return f"warps {self.first} to {self.first + self.count - 1}"
        several = len(groups) > 1
        return f"warpgroup{'s' * several} {', '.join(map(str, groups))}"


def warps_of(role: Role) -> Warps:
    return Warps(role.first, role.warps)


@dataclass
class Together:
    """Statements of the common text without a joint role: each crew has its part of them."""

    ops: list[Op] = field(default_factory=list)


@dataclass
class Joint:
    """A role over several crews."""

    number: int
    role: Role


@dataclass
class Frame:
    """A loop or branch around a joint role, which stays one; `parts` by the body's field. Names of
    values, too, where there are joint roles: without parts."""

    number: int
    op: Op
    parts: dict[str, list[Item]]


Item: TypeAlias = Together | Joint | Frame


class _Dealer:
    def __init__(self, kernel: Kernel, program: Program, target: Target, names: set[str]) -> None:
        self.kernel = kernel
        self.program = program
        self.target = target
        self.names = names
        self.total = Warps(0, -(-prod(kernel.threads) // WARP))
        self.roles = [op for op in walk_ops(kernel) if isinstance(op, Role)]
        edges = {0, self.total.count}
        for role in self.roles:
            edges |= {role.first, role.first + role.warps}
        at = sorted(edges)
        self.crews = [Warps(a, b - a) for a, b in zip(at, at[1:], strict=False)]
        self.is_joint = any(warps_of(r) not in self.crews for r in self.roles)
        self.numbers = 0
        self.thread = Var(fresh_name("thread", names))

    # ── the whole ────────────────────────────────────────────────────────────────────────────

    def run(self) -> Kernel:
        self.check_scalars()
        common, rest = self.common(self.kernel.body)
        items = self.items(rest)
        self.outside = {op.buffer.name for op in common if isinstance(op, (Alloc, View))}
        self.outside |= {v.name for op in common for v in bound(op)}
        views = {}
        for warps in self.units():
            body = self.view(items, warps)
            if any(_acts(op) for op in walk_ops(body)):
                views[warps] = self.own_threads(body, warps)
        owners = self.owners(views)
        held = [op for op in common if _is_fragment(op)]
        common = [op for op in common if not _is_fragment(op)]
        views = {
            warps: (*(op for op in held if owners.get(_root(op, held)) == warps), *body)
            for warps, body in views.items()
        }
        program = self.as_program(common, views)
        program = choose_products(program, self.target)
        kernels = [
            spread_fragments(kernel, self.program.dims, self.target, self.names)
            for kernel in program.kernels
        ]
        common, kernels = self.lay_out_shared(common, kernels)
        program = choose_copies(replace(program, kernels=tuple(kernels)), self.target)
        engines = _seen_by_engines(program.kernels)
        ids = iter(free_barriers(self.kernel))
        done: dict[Warps, Body] = {}
        registers: list[Op] = []
        for warps, kernel in zip(views, program.kernels, strict=True):
            body = _released(kernel.body, warps, engines, self.target)
            kernel = insert_syncs(rebuild(kernel, body=body), self.target)
            registers += [op for op in kernel.body if self.is_common(op) and _is_fragment(op)]
            body = tuple(op for op in kernel.body if not self.is_common(op))
            done[warps] = self.block_threads(self.meeting(body, warps, ids), warps)
        self.registers = self.moved_registers(items)
        merged = self.merge(items, done, top=True)
        body = tuple(self.start([*common, *registers], merged))
        return rebuild(self.kernel, body=self.named_apart(body))

    def named_apart(self, body: Body) -> Body:
        """`body` with a name of its own for whatever several roles define."""
        taken = self.names | defined_names(body)
        for role in (op for op in walk_ops(body) if isinstance(op, Role)):
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

    def units(self) -> list[Warps]:
        """Crews, and the warps of joint roles."""
        joint = {warps_of(r) for r in self.roles} - set(self.crews)
        return [*self.crews, *sorted(joint)]

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
        have asked for more memory in roles."""
        inside: list[Op] = []

        def rule(op: Op) -> Op | Body | None:
            if isinstance(op, Alloc) and op.buffer.space is Space.SHARED:
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
        known: set[Var] = {*self.kernel.blocks, *self.kernel.thread_vars}
        known |= {d.var for d in self.program.dims} | set(self.program.scalars)
        if self.kernel.rank is not None:
            known.add(self.kernel.rank)
        rest: list[Op] = []
        for op in body:
            if isinstance(op, Let) and not loads(op.value) and variables(op.value) <= known:
                if not variables(op.value) & set(self.kernel.thread_vars):
                    known.add(op.var)
                    found.append(op)
                    continue
            if isinstance(op, (Alloc, View)) and self.is_shared(op, known):
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
            return self.is_joint or op.init is None
        return True

    def items(self, body: Body) -> list[Item]:
        found: list[Item] = []
        for op in body:
            if isinstance(op, Role) and warps_of(op) not in self.crews:
                self.numbers += 1
                found.append(Joint(self.numbers, op))
                continue
            inner = [o for o in walk_ops(op) if isinstance(o, Role)]
            named = isinstance(op, Let) and self.is_joint  # roles that follow may ask for it
            if named or any(warps_of(o) not in self.crews for o in inner):
                self.numbers += 1
                number = self.numbers
                parts = {f.name: self.items(getattr(op, f.name)) for f in marked(op, "body")}
                found.append(Frame(number, op, parts))
                continue
            if not found or not isinstance(found[-1], Together):
                found.append(Together())
            last = found[-1]
            assert isinstance(last, Together)
            last.ops.append(op)
        return found

    # ── views ────────────────────────────────────────────────────────────────────────────────

    def view(self, items: Iterable[Item], warps: Warps) -> Body:
        """The code of `warps` alone; hints stand where it will be cut."""
        found: list[Op] = []
        for item in items:
            if isinstance(item, Together):
                if warps in self.crews:
                    found += self.part(tuple(item.ops), warps)
                continue
            inside: list[Op] = []
            if isinstance(item, Frame):
                parts = {name: self.view(inner, warps) for name, inner in item.parts.items()}
                inside.append(rebuild(item.op, **parts))
                meets = False
            else:
                own = warps_of(item.role)
                meets = warps.within(own)
                if warps == own:
                    met = Sync("block", loc=item.role.loc)
                    inside += [met, *_own_syncs(item.role.body), met]
            detail = (item.number, meets)
            found += [Hint(PART, detail=detail), *inside, Hint(PART, detail=detail)]
        return tuple(found)

    def part(self, body: Body, warps: Warps) -> Iterator[Op]:
        """What a crew does of statements that each has its own part of."""
        for op in body:
            if isinstance(op, Role):
                if warps.within(warps_of(op)):
                    yield from _own_syncs(op.body)
            elif isinstance(op, Hint):
                if op.buffer is None or op.buffer.space is Space.FRAGMENT:
                    yield op
            elif isinstance(op, (For, If, While)):
                inner = {f.name: tuple(self.part(getattr(op, f.name), warps))
                         for f in marked(op, "body")}  # fmt: skip
                if any(_matters(o) for part in inner.values() for o in walk_ops(part)):
                    yield rebuild(op, **inner)
            else:
                yield from _own_syncs((op,))

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
            if op.id is BLOCK or warps == self.total:
                return Sync("block", loc=op.loc)
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
            if role.registers is not None and warps_of(role) in self.crews:
                found.setdefault(warps_of(role), role.registers)
        if not found:
            return found
        asked = [r for r in self.roles if r.registers is not None]
        late = [i for i in items if isinstance(i, (Joint, Frame))]
        if any(isinstance(i, Frame) or _begins(i.role) > _begins(asked[0]) for i in late):
            why = "kept as they are: all warps run some code together behind T.set_max_nreg"
            because(self.kernel.name, "registers of roles", why)
            return {}
        return found

    def merge(self, items: list[Item], views: dict[Warps, Body], *, top: bool) -> list[Op]:
        """One body of what the crews do: roles, and what stays common between them."""
        found: list[Op] = []
        cut = {warps: _cut(body) for warps, body in views.items()}
        for item in (None, *items):
            number = getattr(item, "number", None)
            if isinstance(item, Frame):
                inner: dict[str, list[Op]] = {}
                frames = {w: _frame(parts[number][0], item.op) for w, parts in cut.items()}
                for w, (before, _, _) in frames.items():
                    found += self.role(w, before, top=False)
                for name, parts_of in item.parts.items():
                    mine = {w: getattr(op, name) for w, (_, op, _) in frames.items()}
                    inner[name] = self.merge(parts_of, mine, top=False)
                found.append(rebuild(item.op, **{n: tuple(b) for n, b in inner.items()}))
                for w, (_, _, after) in frames.items():
                    found += self.role(w, after, top=False)
            elif isinstance(item, Joint):
                for w, parts in cut.items():
                    found += self.role(w, parts[number][0], top=False)
            elif item is not None:
                continue
            for w, parts in cut.items():
                found += self.role(w, parts[number][1], top=top)
        return found

    def role(self, warps: Warps, ops: list[Op], *, top: bool) -> Iterator[Op]:
        if not any(_matters(op) for op in walk_ops(tuple(ops))):
            return
        registers = self.registers.pop(warps, None) if top else None
        loc = next((op.loc for op in ops if op.loc is not None), self.kernel.loc)
        yield Role(warps.name, *_range(warps), tuple(ops), registers=registers, loc=loc)

    # ── what is refused ──────────────────────────────────────────────────────────────────────

    def owners(self, views: dict[Warps, Body]) -> dict[str, Warps]:
        """Whose each fragment is: it belongs to the threads of one range of warps."""
        owner: dict[str, tuple[Warps, Op]] = {}
        held = [op for op in walk_ops(self.kernel) if _is_fragment(op)]
        for warps, body in views.items():
            for op in walk_ops(body):
                if isinstance(op, (Alloc, Hint)):
                    continue
                for buffer in (*read_buffers(op), *written_buffers(op)):
                    if buffer.space is not Space.FRAGMENT:
                        continue
                    name = _root(buffer, held)
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

    def check_scalars(self) -> None:
        """A variable of all threads is set by all of them."""
        inside = {id(op): r for r in self.roles for op in walk_ops(r.body)}
        own = {
            op.buffer.name: role
            for role in self.roles
            for op in walk_ops(role.body)
            if isinstance(op, Alloc)
        }
        for op in walk_ops(self.kernel):
            if not isinstance(op, Store) or op.buffer.space is not Space.LOCAL:
                continue
            role = inside.get(id(op))
            if role is None or op.buffer.name in own:
                continue
            for other in walk_ops(self.kernel):
                where = inside.get(id(other))
                asks = op.buffer in read_buffers(other)
                if asks and (where is None or warps_of(where) != warps_of(role)):
                    raise CompileError(
                        f"{op.buffer.name} is set on {warps_of(role).words()} alone, and read "
                        "elsewhere: each thread has its own",
                        loc=op.loc,
                        notes=(f"it is read at {other.loc}",) if other.loc is not None else (),
                        fix="set it outside T.ws, or pass it on through shared memory",
                    )


def _is_fragment(op: Op) -> bool:
    return isinstance(op, (Alloc, View)) and op.buffer.space is Space.FRAGMENT


def _root(what: Op | Buffer, held: Iterable[Op]) -> str:
    """The name of the fragment that `what` is or shows."""
    assert isinstance(what, (Alloc, View, Buffer))
    name = what.name if isinstance(what, Buffer) else what.buffer.name
    sources = {op.buffer.name: op.source.name for op in held if isinstance(op, View)}
    while name in sources:
        name = sources[name]
    return name


def _range(warps: Warps) -> tuple[int, int]:
    return warps.first, warps.count


def _begins(role: Role) -> tuple[int, int]:
    return (role.loc.line, role.loc.column) if role.loc is not None else (0, 0)


def _own_syncs(body: Body) -> Body:
    """`body` with its author's barriers of the block marked: the crew's own are another thing."""

    def rule(op: Op) -> Op | None:
        if isinstance(op, Sync) and op.scope == "block":
            return rebuild(op, id=BLOCK)
        return None

    return map_body(body, rule)


def _simple(body: Body) -> Body:
    return map_body(body, lambda op: map_exprs(op, simplify))


def _matters(op: Op) -> bool:
    """Whether a crew must run `op`, if it does anything at all."""
    if isinstance(op, Alloc):
        return op.init is not None
    return not isinstance(op, (Let, View, Hint, For, If, While))


def _acts(op: Op) -> bool:
    """Whether anybody but the thread itself can tell that it ran `op`."""
    local = isinstance(op, Store) and op.buffer.space is Space.LOCAL
    return _matters(op) and not local and not isinstance(op, Alloc)


def _cut(body: Body) -> dict[int | None, tuple[list[Op], list[Op]]]:
    """By number of a part: what stands inside, and what stands behind it up to the next; None:
    before the first."""
    found: dict[int | None, tuple[list[Op], list[Op]]] = {None: ([], [])}
    number: int | None = None
    inside = False
    for op in body:
        if isinstance(op, Hint) and op.name == PART:
            inside = not inside
            if inside:
                number = int(op.detail[0])
                found[number] = ([], [])
            continue
        found[number][0 if inside else 1].append(op)
    return found


def _frame(ops: list[Op], like: Op) -> tuple[list[Op], Op, list[Op]]:
    """What passes have put before a common loop or branch, itself, and what behind."""
    for k, op in enumerate(ops):
        same = type(op) is type(like)
        if same and bound(op) == bound(like):
            return ops[:k], op, ops[k + 1 :]
    raise CompileError(
        "what a warpgroup computes here is still under way when all warps go on together",
        loc=like.loc,
        fix="place the statements of this loop that are on all warps on one warpgroup: T.ws(0)",
    )


# ── what a crew gives away ───────────────────────────────────────────────────────────────────


def _seen_by_engines(kernels: Iterable[Kernel]) -> set[str]:
    """Shared tiles that matrix instructions or bulk copies touch, under all their names."""
    found: set[str] = set()
    roots: dict[str, str] = {}
    for kernel in kernels:
        for op in walk_ops(kernel):
            if isinstance(op, View):
                roots[op.buffer.name] = op.source.name
            if (isinstance(op, Gemm) and op.atom == "wgmma") or (
                isinstance(op, Copy) and op.atom in _BULK
            ):
                found |= {b.name for b in (*read_buffers(op), *written_buffers(op))}
    more = {n for n, source in roots.items() if source in found or n in found}
    return found | more | {roots[n] for n in more}


def _released(body: Body, warps: Warps, engines: set[str], target: Target) -> Body:
    """`body` with what has to be over before others are told: products, and ordinary writes of
    what engines touch. Each warpgroup waits for its own products: several have to meet then."""
    body = number_gemms(body)
    numbers = tuple(_own_products(body))
    several = warps.count > GROUP and any(isinstance(op, NumberedGemm) for op in walk_ops(body))
    writes = Feature.WGMMA in target.features and any(
        isinstance(op, (Store, Fill, Copy, Reduce, Scan, Atomic))
        and not (isinstance(op, Copy) and op.atom in _BULK)
        and any(b.space is Space.SHARED and b.name in engines for b in written_buffers(op))
        for op in walk_ops(body)
    )
    inside = False

    def each(body: Body) -> Body:
        nonlocal inside
        found: list[Op] = []
        for op in body:
            gives = _releases(op)
            if isinstance(op, Hint) and op.name == PART:
                inside = not inside
                gives = inside and bool(op.detail[1])
            if gives:
                if numbers:
                    found.append(Release(numbers, loc=op.loc))
                if writes:
                    found.append(Fence("proxy_async", loc=op.loc))
                if several and isinstance(op, Arrive):
                    found.append(Sync("block", loc=op.loc))
            if isinstance(op, (For, If, While)):
                outer, inside = inside, False
                op = rebuild(op, **{f.name: each(getattr(op, f.name)) for f in marked(op, "body")})
                inside = outer
            found.append(op)
        return tuple(found)

    return each(body)


def _releases(op: Op) -> bool:
    """Whether others may learn from `op` that what stands before it is over."""
    if isinstance(op, Arrive):
        return op.count is not const(0)
    return isinstance(op, Sync) and (op.scope in ("named", "cluster") or op.id is BLOCK)


def _own_products(body: Body) -> Iterator[int]:
    """Products whose author has not said when they are waited for."""
    for k, op in enumerate(body):
        if isinstance(op, NumberedGemm):
            after = body[k + 1] if k + 1 < len(body) else None
            if not (isinstance(after, Commit) and after.unit == "wgmma"):
                yield op.number
        for inner in bodies(op):
            yield from _own_products(inner)


__all__ = ["Warps", "deal_roles", "warps_of"]
