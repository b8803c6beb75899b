"""What threads load in pipelined loops, one iteration early.

A copy into shared memory runs ahead by itself. What a map reads from a tensor directly (scales,
rows that a table names, windows of an image) would be waited for in every iteration. Where it
depends on the loop's variable and on nothing that the loop computes, registers take it early
(`prefetch_loads`):

    for k { x[i, j] = q[i, j] * S[i, k] }

    early = S[·, 0]
    for k { now = early; early = S[·, k + 1]; x[i, j] = q[i, j] * now[i] }

After the last iteration it reads what is not needed, or zeros outside the tensor.

Two passes before that make such loads of what is said otherwise.

**Rows of numbers** (`inline_rows`). Scales that belong to rows of a product often go through shared
memory: one map writes them, the next one reads them. Threads then meet twice in every iteration,
and warpgroups that could take turns at the tensor core keep step.

    for k { map i { s[i] = S[i, k] * t[k] }; P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * s[i] } }

    for k { P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * (S[i, k] * t[k]) } }

The map loads what it needs, a few numbers for each thread, one iteration early. So it is with a
copy that only threads could make (a column of a matrix). What the bulk engine brings stays: it runs
ahead by itself, and no thread meets for it.

A tile goes where it has one dimension, one writer that fills it from tensors which the kernel does
not write, and readers after that in the same iteration which index it by other variables than
their last: a thread has few rows of a map, but many columns.

**Copies** (`map_copies`). No engine moves rows that begin on any element (sizes known at launch,
odd ones). A map that says the same has its loads one iteration early, and its tile several slots
(`multibuffer`), so that threads fill one under the product that reads another.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.ir.scope import inside
from tilewright.passes.core import *
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import BULK, load_into, own_vars

MOST = 20  # registers of a thread for what a map loads early
ROWS = 256  # elements of a vector that several threads hold,
SHARED_BY = 16  # about as many as share one,
COLUMNS = 4  # and if it goes along a map's rows: a thread of a product's tile has so many
MOST_LOADS = 4  # of a number that is not carried any more


@kernel_pass
def inline_rows(at: Facts) -> Kernel:
    """Remove shared tiles that only carry rows of numbers (scales) from one map to another: the
    second map loads them itself, and no barrier is needed."""
    wanted = at.target.internal.inline_rows is not False and not at.has_roles
    return _inlined(at) if wanted else at.kernel


def _inlined(at: Facts) -> Kernel:
    kernel = at.kernel
    loops = [op for op in at.ops if isinstance(op, For) and _is_asked(op)]
    if not loops:
        return kernel
    ahead = Ahead(at)
    kept = {fill.tile.name for fill in ahead.fills if fill.how == BULK} | ahead.viewed
    for loop in loops:
        for k, op in enumerate(loop.body):
            found = _row(op, ahead.written)
            if found is None or found[0].name in kept or not _is_carried(at, found[0], loop, k):
                continue
            said = f"{found[0].name}, written {at_line(op.loc)}, is not loaded early"
            because(kernel.name, loop, said)
            # loops and statements have changed: look at them again
            return _inlined(at.of(_without(kernel, op, *found)))
    return kernel


def _is_asked(op: For) -> bool:
    """Whether a loop may get other statements; of one with an order, its author counted them."""
    return (
        op.kind == "pipelined" and op.stages > 1 and op.order is None and not leaves_early(op.body)
    )


def _row(op: Op, written: set[str]) -> tuple[Buffer, Var, Expr] | None:
    """A tile of one dimension that `op` fills: its element at a variable has this value."""
    match op:
        case Map(vars=(var,), extents=(extent,), body=(Store(tile, (index,), value),)):
            if index is not var:
                return None
        case Copy(reduce=None, atom=None, barrier=None, cache=None):
            tile, src = op.dst.buffer, op.src
            if not src.buffer.is_global or not op.dst.is_whole:
                return None
            if tile.rank != 1 or len(src.tile) != 1 or src.cta is not None:
                return None
            var, (extent,) = fresh_var("row"), src.tile
            value = Load(src.buffer, src.at((var,)), op.loc)
        case _:
            return None
    if tile.space not in (Space.SHARED, Space.FRAGMENT) or tile.rank != 1:
        return None
    if extent is not tile.shape[0] or value.dtype != tile.dtype or tile.layout is not None:
        return None
    found = loads(value)
    fixed = all(x.buffer.is_global and x.buffer.name not in written for x in found)
    return (tile, var, value) if fixed and 0 < len(found) <= MOST_LOADS else None


def _is_carried(at: Facts, tile: Buffer, loop: For, n: int) -> bool:
    """Whether nothing but maps after statement `n` of `loop` has to do with the tile, and they
    only read it, by rows."""
    inside = set(map(id, walk_ops(loop.body)))
    for op in at.ops:
        used = tile in (*read_buffers(op), *written_buffers(op)) and id(op) not in inside
        if used or (isinstance(op, Hint) and op.buffer == tile):
            return False
    first, *users = [k for k, op in enumerate(loop.body) if tile.name in mentioned(op)] or [-1]
    return bool(users) and first == n and all(_reads_rows(loop.body[k], tile) for k in users)


def _reads_rows(op: Op, tile: Buffer) -> bool:
    if not isinstance(op, Map) or len(op.vars) < 2 or op.layout is not None:
        return False
    if touched(op).get(tile.name):
        return False
    found = [x for x in loads_within(op) if x.buffer == tile]
    rows = set(op.vars[:-1])
    return all(variables(i) and variables(i) <= rows for x in found for i in x.indices)


def _without(kernel: Kernel, writer: Op, tile: Buffer, var: Var, value: Expr) -> Kernel:
    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == tile:
            return substitute(value, {var: e.indices[0]})
        return None

    def rewrite(op: Op) -> Op | Body | None:
        if op is writer or (isinstance(op, Alloc) and op.buffer == tile):
            return ()
        return map_exprs(op, lambda e: transform(e, node))

    return map_ops(kernel, rewrite)


@kernel_pass
def map_copies(at: Facts) -> Kernel:
    """Turn copies of GEMM operands that no engine can make (rows that begin at any element, odd
    sizes) into maps."""
    if at.has_roles:
        return at.kernel
    alone = Ahead(at).by_threads
    asked: set[int] = set()
    for loop in at.ops:
        if isinstance(loop, For) and loop.kind == "pipelined" and loop.stages > 1:
            products = [op for op in loop.body if isinstance(op, Gemm)]
            factors = {r.buffer for op in products for r in (op.a, op.b)}
            copies = [op for op in loop.body if isinstance(op, Copy) and id(op) in alone]
            asked |= {id(op) for op in copies if op.dst.buffer in factors and _is_plain(op)}
    return map_ops(at.kernel, lambda op: expand_op(op) if id(op) in asked else None)


def _is_plain(op: Copy) -> bool:
    """Whether the copy fills a whole tile, which lies as it likes, element by element."""
    tile = op.dst.buffer
    if op.cache is not None or op.prefer is not None or op.src.cta is not None:
        return False
    if tile.layout is not None or not tile.is_shared or not tile.is_static:
        return False
    return op.dst.is_whole and op.src.tile == op.dst.tile != ()


# ── one iteration early ──────────────────────────────────────────────────────────────────────


@kernel_pass
def prefetch_loads(at: Facts) -> Kernel:
    """Load what maps of pipelined loops read from tensors (scales, packed numbers) one iteration
    early, into registers."""
    if at.has_roles:
        return at.kernel
    work = _Prefetch(at.kernel, Ahead(at))
    return map_ops(at.kernel, work.loop)


@dataclass
class _Early:
    """A value of each point over some of a map's variables: `early` holds it for the next
    iteration, `now` for this one."""

    value: Expr
    vars: tuple[Var, ...]
    early: Buffer
    now: Buffer

    def loaded(self, at: dict[Var, Expr]) -> Op:
        return load_into(self.early, substitute(self.value, at), self.vars)

    def taken(self) -> Op:
        """What makes the next iteration's this one's."""
        if self.vars:
            return Copy(whole(self.early), whole(self.now))
        return Store(self.now, (), Load(self.early, ()))


def _needed(body: list[Op]) -> Body:
    """`body` without names of loads that nobody asks for any more."""
    kept: list[Op] = []
    asked: set[Var] = set()
    for op in reversed(body):
        if not isinstance(op, Let) or op.var in asked or not loads(op.value):
            asked |= read_variables(op)
            kept.append(op)
    return tuple(reversed(kept))


@dataclass
class _Prefetch:
    kernel: Kernel
    ahead: Ahead
    # what maps of the same loop have early, by its value over points that are only counted
    known: dict[tuple[Expr, tuple[Expr, ...]], _Early] = field(default_factory=dict)

    def loop(self, op: Op) -> Body | None:
        if not isinstance(op, For) or not _is_asked(op) or not isinstance(op.step, Const):
            return None
        before: list[Op] = []
        body: list[Op] = []
        self.known = {}
        for k, each in enumerate(op.body):
            map_, found = each, list[_Early]()
            if isinstance(each, Map) and each.layout is None and id(each) not in self.ahead.copies:
                map_, found = self.map(each, op, let_values(op.body[:k]))
            with errors.at(each.loc):
                for one in found:
                    before += [Alloc(one.early), Alloc(one.now)]
                    before.append(one.loaded({op.var: op.start}))
                    body += [one.taken(), one.loaded({op.var: op.var + op.step})]
            if found:
                said = f"loads of the elementwise loop {at_line(each.loc)} one iteration early"
                if id(each) in self.ahead.against:
                    said += f", not by cp.async: {self.ahead.against[id(each)]}"
                because(self.kernel.name, op, said)
            body.append(map_)
        return (*before, rebuild(op, body=_needed(body))) if before else None

    def map(self, op: Map, loop: For, outer: dict[Var, Expr]) -> tuple[Map, list[_Early]]:
        """`op` with what it may load early in registers, and these."""
        lets = let_values(walk_ops(op.body), outer)
        inner = {v for each in loop.body for v in bound_within(each)} - set(op.vars)
        found: list[_Early] = []
        left = MOST

        def is_ready(e: Expr) -> bool:
            # nothing but the load: what is computed with it would wait for it
            kept = e.a if isinstance(e, Select) and isinstance(e.b, Const) else e
            read = loads(e)
            return (
                isinstance(kept, Load)
                and any(loop.var in variables(x) for x in read)
                and all(x.buffer.is_global for x in read)
                and self.ahead.written.isdisjoint(x.buffer.name for x in read)
                and not variables(e) & inner
                and e.dtype.bits >= 8
            )

        def early(e: Expr) -> Expr | None:
            """`e`, its names resolved, out of registers; None where there are too few."""
            nonlocal left
            own, extents = own_vars(e, op)
            key = substitute(e, {v: Var(f" {n}", v.dtype) for n, v in enumerate(own)}), extents
            if key not in self.known:
                size = prod(int(x) for x in extents)
                words, shared_by = size * e.dtype.bits // 32, 1
                if own == op.vars:
                    shared_by = self.kernel.thread_count
                elif own == op.vars[-1:]:
                    shared_by = COLUMNS
                elif size <= ROWS:
                    shared_by = SHARED_BY
                words = -(-words // shared_by)
                if words > left:
                    return None
                left -= words
                space = Space.FRAGMENT if own else Space.LOCAL
                buffers = (
                    Buffer(fresh_name(name), extents, e.dtype, space) for name in ("early", "now")
                )
                self.known[key] = _Early(e, own, *buffers)
                found.append(self.known[key])
            return Load(self.known[key].now, own)

        points = inside(op, "body", Ranges())

        def swap(e: Expr) -> Expr:
            resolved = substitute(e, lets)
            if isinstance(resolved, (Load, Select)):
                # (b * 128 + j) // 128 is the same for all j < 128: a number, not a row of them
                resolved = simplify(resolved, points, index=False)
            new = early(resolved) if is_ready(resolved) else None
            return map_children(e, swap) if new is None else new

        def rule(each: Op) -> Op | None:
            return rebuild(each, value=swap(each.value)) if isinstance(each, Store) else None

        return map_ops(op, rule), found
