"""What the lowering to threads carries along: the instance that runs the code, names, ranges,
unrolled loops, tensor maps, whether threads have touched memory since they last met, and what
matrix instructions are under way."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.layout.layout import row_major
from tilewright.ir.marks import with_loc
from tilewright.ir.tensor_map import MapHint, seen_sizes
from tilewright.passes.canonicalize.rules import widened
from tilewright.passes.core import *
from tilewright.passes.layout.addresses import (
    TileAddress,
    fit_index,
    fit_registers,
    layout_expr,
    shared_layout,
    swizzle_expr,
    tile_address,
)
from tilewright.passes.overlap.rings import slots_of, slotted
from tilewright.support.errors import current_loc, occurrence

MEMORY = (Space.SHARED, Space.GLOBAL)
BULK_ATOMS = ("bulk_load", "bulk_store")
ENGINE_ATOMS = (*BULK_ATOMS, "remote_store")  # whose barrier or group tells when they are done
# registers of a value that a wait is made to depend on: reduced values, not whole tiles
MOST_SETTLED = 8

Rule = Callable[["Lowering", Any], "Iterable[Op]"]


@dataclass(frozen=True)
class Instance:
    """The threads that run a piece of code together: a role instance, or the block.

    `accumulators` are the fragments its matrix instructions add to; `written` those among their
    registers that ordinary code writes too. `turn_id`: the barrier at which the first warpgroup
    waits for its turn; those of the others follow.
    """

    threads: int
    thread: Expr
    warp: Expr
    leader: Var | None = None
    solo: bool = False
    sync_id: Expr | None = None
    accumulators: tuple[Buffer, ...] = ()
    written: tuple[Buffer, ...] = ()
    instances: int = 1
    turn_id: int | None = None


@dataclass(frozen=True)
class Exchange:
    """What warps tell each other goes through `buffer`; `before`: the barrier in front of its
    writes; `instances`: of their role, each with a part of the buffer."""

    buffer: Buffer
    before: Op | None
    instances: int = 1


@dataclass
class Lowering:
    """State of one kernel's lowering. `unrolled` maps the unrolled loop variables around to their
    values; `touched`: threads have accessed memory since they last met.

    Of matrix instructions: `open_group` and `committed` are the registers of those under way;
    `fenced`: since the last fence control went straight on and no register was written; `fresh`:
    fragments computed while instructions are under way, less those that others of them were
    computed from.

    In a cluster: `crossing` are the barriers that order ordinary accesses of different blocks;
    `peer_fence` is the kind of fence that arrivals at peers need; `ordered`: it stands in front of
    the loop around.

    `exchanges` are those between warps, in order; `scratch` gives their arrays places.
    """

    kernel: Kernel
    rules: Mapping[type[Op], Rule]
    names: set[str]
    ranges: Ranges
    instance: Instance
    differs: PerThread
    target: Target
    buffers: dict[str, Buffer] = field(default_factory=dict)
    unrolled: dict[Var, range] = field(default_factory=dict)
    # of each copy's boxes, and how they lie in shared memory: the tensor and its map
    maps: dict[Any, tuple[Buffer, MapHint]] = field(default_factory=dict)
    touched: bool = False
    fixed: frozenset[str] = frozenset()  # tensors that the kernel does not write
    lasting: frozenset[str] = frozenset()  # nor anybody else while it runs
    summed: set[str] = field(default_factory=set)  # fragments that threads add products to
    open_group: list[Buffer] = field(default_factory=list)
    committed: list[frozenset[Buffer]] = field(default_factory=list)
    fenced: bool = False
    fresh: dict[Buffer, None] = field(default_factory=dict)
    warp: Var = Var("warp")
    free_ids: list[int] = field(default_factory=list)
    crossing: frozenset[str] = frozenset()
    peer_fence: str = "cluster"
    ordered: bool = False
    exchanges: list[Exchange] = field(default_factory=list)
    seen: frozenset[str] = frozenset()  # names of the buffers made so far, in the bodies around
    places: dict[str, int] = field(default_factory=dict)  # of shared buffers, in bytes
    # of views of shared memory that begin somewhere known at run time: the first element
    shifts: dict[str, Expr] = field(default_factory=dict)
    # of views of tensors: the tensor, and what their first byte is a multiple of (0: anything)
    bases: dict[str, tuple[Buffer, int]] = field(default_factory=dict)
    roots: Aliases = field(default_factory=Aliases)

    # ── names and buffers ────────────────────────────────────────────────────────────────────

    def var(self, name: str, dtype: DType = INT32) -> Var:
        """A variable with a name of its own."""
        return fresh_var(name, self.names, dtype)

    def let(self, name: str, value: Expr) -> tuple[Var, Let]:
        var = self.var(name, value.dtype)
        return var, Let(var, value)

    def local(self, name: str, kind: DType, *shape: int) -> Buffer:
        """An array of registers with a name of its own."""
        return Buffer(self.var(name).name, tuple(map(const, shape)), kind, Space.LOCAL)

    def flat(self, buffer: Buffer) -> Buffer:
        """The array that stands for a shared tile or a fragment."""
        if buffer.name not in self.buffers:
            if isinstance(buffer.layout, Fragment):
                new = Buffer(buffer.name, (const(buffer.layout.values),), buffer.dtype, Space.LOCAL)
            elif buffer.is_shared:
                layout = buffer.layout
                size = prod(buffer.static_shape)
                if isinstance(layout, (Layout, ComposedLayout)):
                    size = layout.cosize()
                new = Buffer(buffer.name, (const(size),), buffer.dtype, Space.SHARED)
            else:
                new = buffer
            self.buffers[buffer.name] = new
        return self.buffers[buffer.name]

    def root(self, buffer: Buffer) -> str:
        """The name of the buffer whose memory `buffer` shows."""
        return self.roots[buffer.name]

    def base(self, buffer: Buffer) -> tuple[Buffer, int]:
        """The tensor whose memory `buffer` shows, and what the place of its first byte there is a
        multiple of; 0 for anything."""
        return self.bases.get(buffer.name, (buffer, 0))

    def begins_on(self, buffer: Buffer, size: int) -> bool:
        """Whether a tensor begins on a multiple of `size` bytes where its memory does."""
        return self.base(buffer)[1] % size == 0

    def span(self, buffer: Buffer, start: Expr, extent: int, cta: Expr | None = None) -> Region:
        """`extent` elements of the array of `buffer`."""
        return Region(self.flat(buffer), (start,), (const(extent),), cta)

    def simplify(self, expr: Expr, *, index: bool = True) -> Expr:
        return simplify(expr, self.ranges, index=index)

    def registers(
        self,
        what: str,
        at: Iterable[Expr],
        find: Callable[[dict[Var, Any]], Any],
        own: tuple[Var, int] | None = None,
        known: Iterable[Var] = (),
        loc: Loc | None = None,
    ) -> Expr:
        """`find` of the unrolled variables in `at`, less those `known`: a register, or those at the
        values of `own`, as an expression."""
        names = {v for e in at for v in variables(e)} - {*known}
        order = sorted(names, key=lambda v: v.name)
        for var in order:
            if var not in self.unrolled:
                raise CompileError(
                    f"{what} depends on {var.name}, which is known only at run time",
                    loc=loc,
                    fix=f"unroll the loop over {var.name} (kind=unroll)",
                )
        ranges = [self.unrolled[v] for v in order]
        inner = () if own is None else (own[1],)
        table = np.zeros([*map(len, ranges), *inner], np.int64)
        for place in np.ndindex(*map(len, ranges)):
            env = {v: np.int64(r[i]) for v, r, i in zip(order, ranges, place, strict=True)}
            table[place] = find(env)
        found = fit_registers(table, order if own is None else [*order, own[0]])
        if found is None:
            raise CompileError(f"{what} is not a simple function of the loop variables", loc=loc)
        late = [(v, r) for v, r in zip(order, ranges, strict=True) if r.start or r.step != 1]
        counts = {v: (v - r.start) // r.step for v, r in late}
        return simplify(substitute(found, counts)) if counts else found

    def tensor_map(self, tensor: Buffer, box: tuple[int, ...], swizzle: int) -> MapHint:
        key = (tensor.name, box, swizzle)
        if key not in self.maps:
            name = self.var(f"{tensor.name}_map").name
            root, _ = self.base(tensor)
            sizes = () if root is tensor else seen_sizes(tensor)
            self.maps[key] = root, MapHint(name, swizzle, box, sizes)
        return self.maps[key][1]

    def exchange(
        self,
        kind: DType,
        tile: tuple[int, ...],
        write: Callable[[Buffer], Iterable[Op]],
        layout: Layout | None = None,
    ) -> tuple[Buffer, Body]:
        """A shared tile that the instance's threads may read once they have done what is returned
        besides: they `write` it between two barriers, of which `settle_scratch` takes out the first
        where none is needed."""
        name, shape = self.var("scratch").name, tuple(const(e) for e in tile)
        found = Buffer(name, shape, kind, Space.SHARED, layout=layout or row_major(tile))
        flat, met = self.flat(found), self.join()
        self.exchanges.append(Exchange(flat, met[0] if met else None, self.instance.instances))
        return found, (*met, *write(found), *self.join())

    def apart(self, body: Body, instance: Var, first: int) -> Body:
        """`body` of one of several instances, the arrays of its exchanges, those from `first` on,
        one for each."""
        several = {}
        for k, each in enumerate(self.exchanges[first:], first):
            slots = slots_of(each.buffer, each.buffer.name, each.instances)
            several[slots.name] = self.buffers[slots.name] = slots
            self.exchanges[k] = replace(each, buffer=slots)
        return tuple(slotted(op, several, instance) for op in body)

    def join(self) -> Body:
        """All threads of the instance meet."""
        self.touched = True
        return self.meet()

    # ── bodies ───────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body) -> Body:
        """Lower the ops of one body in order."""
        before, seen = self.ranges, self.seen
        found: list[Op] = []
        for op in body:
            self.fenced = self.fenced and _keeps_fence(op)
            found += self.op(op)
            self.note_computed(op)
            self.ranges = scope.after(op, self.ranges)
            if isinstance(op, (Alloc, View)):
                self.seen = self.seen | {op.buffer.name}
        self.ranges, self.seen = before, seen
        return joined(found)

    def op(self, op: Op) -> Iterable[Op]:
        rule = self.rules.get(type(op))
        with at(op.loc):
            found = (self.plain(op),) if rule is None else rule(self, op)
            return tuple(located(new, op.loc) for new in found)

    def inside(self, op: Op, name: str, body: Body) -> Body:
        with self.restored(scope.inside(op, name, self.ranges)):
            return self.body(body)

    @contextmanager
    def restored(self, ranges: Ranges | None = None) -> Iterator[None]:
        """Forget after the `with` what became known of variables within; `ranges` hold there."""
        before = dict(self.unrolled), self.ranges
        self.ranges = ranges or self.ranges
        try:
            yield
        finally:
            self.unrolled, self.ranges = before

    def note_computed(self, op: Op) -> None:
        """Keep `fresh` after an op that threads compute."""
        if not self.committed or not isinstance(op, (Map, Reduce, Copy, Fill)):
            return
        for inner in walk_ops(op):
            written = [b for b in written_buffers(inner) if isinstance(b.layout, Fragment)]
            if written:
                for buffer in read_buffers(inner):
                    self.fresh.pop(buffer, None)
                self.fresh.update(dict.fromkeys(written))

    def settle(self) -> Iterable[Op]:
        """Make what was computed under matrix instructions come before their wait. The assembler
        prefers to wait first, and the work that the instructions were to hide is then in the
        open."""
        for buffer in self.fresh:
            is_word = buffer.dtype.bits == 32 and buffer.name in self.seen
            if is_word and int(self.flat(buffer).shape[0]) <= MOST_SETTLED:
                yield pin(self, buffer, "settle")
        self.fresh.clear()

    @property
    def in_flight(self) -> frozenset[Buffer]:
        """Fragments that matrix instructions use which have not been waited for."""
        return frozenset(self.open_group).union(*self.committed)

    @property
    def warpgroup(self) -> Expr:
        """The warpgroup's number in its instance, the same in all lanes of a warp."""
        return self.simplify(self.instance.warp // GROUP)

    def plain(self, op: OpT) -> OpT:
        """`op`, outside tiles, with the elements that it reads found where they lie."""
        self.touched = self.touched or any(x.buffer.space in MEMORY for x in op_loads(op))
        return map_exprs(op, self.expr)

    def expr(self, e: Expr) -> Expr:
        """An expression outside tiles."""
        if not isinstance(e, Load):
            return widened(map_children(e, self.expr))
        if e.buffer.is_fragment:
            raise CompileError(
                f"{e.buffer.name} is a fragment and is read outside a tile op",
                loc=occurrence(e.loc, current_loc()),
                fix="read it in a T.Parallel loop, or copy it to shared memory first",
            )
        return self.load(e, tuple(map(self.expr, e.indices)))

    def index(self, e: Expr) -> Expr:
        return self.simplify(self.expr(e))

    def load(self, e: Load, indices: tuple[Expr, ...]) -> Expr:
        """An element of memory at `indices`; outside a tensor, zero."""
        place, inside = self.place(e.buffer, indices)
        found = Load(self.flat(e.buffer), place, e.loc)
        return found if inside is TRUE else select(inside, found, const(0, e.dtype))

    def place(self, buffer: Buffer, indices: Sequence[Expr]) -> tuple[tuple[Expr, ...], Expr]:
        """Where an element lies in its array, and whether it is there: a tensor has an end."""
        if buffer.is_shared:
            return (self.offset(buffer, indices),), TRUE
        inside = self.within(buffer, indices) if buffer.is_global else TRUE
        return tuple(indices), inside

    def within(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        """Whether an element is one of the tensor's, as far as that is not known."""
        return self.in_box(indices, buffer.shape)

    def in_box(self, indices: Iterable[Expr], sizes: Iterable[Any]) -> Expr:
        result: Expr = TRUE
        for index, size in zip(indices, sizes, strict=True):
            for cond in (index >= 0, index < size):
                known = prove(cond, self.ranges)
                if known is None:
                    result = logical_and(result, cond)
                elif not known:
                    return FALSE
        return result

    def offset(self, buffer: Buffer, indices: Sequence[Expr]) -> Expr:
        """Where an element of a shared tile lies."""
        swizzle, layout = shared_layout(buffer)
        parts = [layout_expr(layout[d], i) for d, i in enumerate(indices)]
        if buffer.name in self.shifts:
            parts.append(self.shifts[buffer.name])
        return self.simplify(swizzle_expr(swizzle, sum(parts, const(0))))

    def address(self, region: Region, atom: str | None) -> TileAddress:
        """Where `atom` finds a region of shared memory."""
        if region.name in self.shifts:
            raise CompileError(
                f"{region.name} begins at a place known only at run time, which {atom} cannot say",
                fix="copy it by threads, or into a tile of its own",
            )
        return tile_address(region, self.ranges)

    def by_leader(self, *ops: Op) -> Body:
        """`ops` in one thread of the instance."""
        if self.instance.solo:
            return ops
        leader = self.instance.leader
        cond = leader if leader is not None else compare("==", self.instance.thread, 0)
        return (If(cond, ops),)

    def meet(self) -> Body:
        """A barrier of the instance's threads, unless none has touched memory since the last."""
        if not self.touched or self.instance.solo:
            return ()
        self.touched = False
        loc = current_loc()  # said here, the op stays the one that `exchange` knows
        if self.instance.threads == WARP:
            return (Sync("warp", loc=loc),)
        if self.instance.sync_id is None:
            if self.instance.leader is not None:
                raise CompileError(
                    "the instance's threads must meet before this, but no named barrier is left",
                    fix="sync them by a named barrier in the program",
                )
            return (Sync("block", loc=loc),)
        return (Sync("named", self.instance.sync_id, self.instance.threads, loc=loc),)

    def check_spread(self, name: str, fragment: Fragment) -> None:
        """Refuse a layout for other threads than those that run this."""
        if fragment.threads != self.instance.threads:
            raise CompileError(
                f"{name} is spread over {fragment.threads} threads, {self.instance.threads} run "
                "this",
                got=repr(fragment),
            )

    def check_whole(self, atom: str, threads: int) -> None:
        """Refuse an instruction of so many threads where the last ones are missing."""
        if self.instance.threads % threads:
            unit = "warps" if threads == WARP else "warpgroups"
            raise CompileError(
                f"{atom} runs in whole {unit}, and {self.instance.threads} threads run this",
                fix=f"use a multiple of {threads} threads, or T.gemm, which chooses an instruction "
                "that fits",
            )

    def note_loop(self, body: Body) -> None:
        """Threads come to a loop's `body` from its end, too."""
        self.touched = self.touched or touches(body, False, self.instance.threads, self.fixed)


def located(op: Op, loc: Loc | None) -> Op:
    """`op`, and what stands in it, at `loc` where they say no place."""
    if loc is None or op.loc not in (None, loc):
        return op
    op = op if op.loc is not None else with_loc(op, loc)
    for field_ in marked(op, "body"):
        body = getattr(op, field_.name)
        new = tuple(located(inner, loc) for inner in body)
        if any(a is not b for a, b in zip(new, body, strict=True)):
            op = rebuild(op, **{field_.name: new})
    return op


def unroll(var: Var, count: int, body: Body, *, start: int = 0, kind: str = "unroll") -> Op:
    """`body` for `start` … `count - 1`, unrolled unless `kind` says otherwise."""
    return For(var, const(start), const(count), body, kind=kind)


def guarded(cond: Expr, body: Body) -> Body:
    """`body` where `cond` holds."""
    return body if cond is TRUE or not body else (If(cond, body),)


def joined(ops: Iterable[Op]) -> Body:
    """`ops` with one question for neighbours that ask the same: whether a thread is the leader, or
    a vector is whole, as those of one place in several tensors do. NVRTC leaves them apart."""
    found: list[Op] = []
    for op in ops:
        match found[-1] if found else None, op:
            case If(Var(name), x, ()) as last, If(cond, y, ()):
                if cond is last.cond and name.startswith("leader"):
                    found[-1] = rebuild(last, then=x + y)
                    continue
            case If(a, x, rare) as last, If(b, y, (_, *rest) as other):
                if a is b and is_rare(rare) and is_rare(other):
                    found[-1] = rebuild(last, then=x + y, orelse=(*rare, *rest))
                    continue
        found.append(op)
    return tuple(found)


def _keeps_fence(op: Op) -> bool:
    """Whether a fence before `op` still stands for matrix instructions after it. The assembler
    wants it in the same straight run of code: a wait for a barrier is a loop."""
    if isinstance(op, Commit):
        return op.unit == "wgmma"
    if isinstance(op, Gemm):
        return op.atom == "wgmma"
    return isinstance(op, (Alloc, Fence, Hint, Let, Sync, Turn))


def chosen(low: Lowering, number: Expr, values: Sequence[int]) -> Expr:
    """`values[number]`: as a sum of the number's parts where there is one, else by comparisons."""
    table = np.asarray(values, np.int64)
    name = low.var("n")
    found = fit_index(table, (name,))
    if found is not None:
        return low.simplify(substitute(found, {name: number}))
    result: Expr = const(int(table[-1]))
    for i in reversed(range(len(table) - 1)):
        if table[i] != table[i + 1]:
            result = select(number <= i, const(int(table[i])), result)
    return result


def pin(low: Lowering, buffer: Buffer, name: str = "pin") -> Op:
    """Registers stay on this side of what follows."""
    count = int(low.flat(buffer).shape[0])
    return Intrinsic(name, (low.span(buffer, const(0), count),), text=f"count={count}")


def meets(op: Sync, threads: int) -> bool:
    if op.arrive:
        return False
    if op.scope == "named":
        return (op.threads or 0) >= threads
    return op.scope in ("block", "cluster") or threads == WARP


def touches(body: Body, state: bool, threads: int, fixed: frozenset[str]) -> bool:
    """Whether, after `body`, threads have accessed memory since they last met; that of tensors
    that are `fixed` does not count."""
    for op in body:
        if isinstance(op, Sync) and meets(op, threads):
            state = False
        elif isinstance(op, If):
            state = any(touches(side, state, threads, fixed) for side in (op.then, op.orelse))
        elif bodies(op) and not isinstance(op, Map):
            for inner in bodies(op):
                state = touches(inner, state, threads, fixed) or state
        elif accesses_memory(op, fixed):
            state = True
    return state


def accesses_memory(op: Op, fixed: frozenset[str] = frozenset()) -> bool:
    """Whether the threads themselves read or write shared or global memory in `op`, other than
    tensors that are `fixed`. What `cp.async` gathers they see only after their wait for it, and
    what tells others of that orders it too."""
    if isinstance(op, (Copy, Gemm)) and op.atom in (*ENGINE_ATOMS, "wgmma"):
        return False
    if isinstance(op, Map) and op.atom is not None:
        return False
    for inner in walk_ops(op):
        named = [r.buffer for r in regions(inner, reads=True, writes=True)]
        if isinstance(inner, Store):
            named.append(inner.buffer)
        if any(b.space in MEMORY for b in named):
            return True
        if any(x.buffer.space in MEMORY and x.buffer.name not in fixed for x in op_loads(inner)):
            return True
    return False
