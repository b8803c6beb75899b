"""Loops and maps that others cannot take as they are: steps, extents and places that must be
constant, or of one sign, and are not.

`count_loops`: loops by a step that is known at run time only count their iterations, because
everything that follows takes steps to be positive.

`bound_maps`: maps whose extents are known only at launch become loops over maps of constant
extents, which layouts distribute over threads. Copies and fills of such regions become maps first.

    map i in n { X[i] = 0 }

    for t in 0 .. (n + 127) // 128 { map p in 128 { if t * 128 + p < n { X[t * 128 + p] = 0 } } }

A variable that indexes a tile, under no condition, runs over the tile, whose size bounds it.

`unroll_shifts`: short constant loops whose variable shifts the place in a fragment are written out,
because registers have constant numbers only. In

    for s in 0 … 2 { map (i, j) in (16, 512) { half[i, j] = acc[i + s * 16, j] } }

the element that a thread reads depends on s, so all of `acc` would go through shared memory; with
the loop written out, each copy of the map reads registers. A copy of a part of a fragment that
begins at a place known only at run time becomes a map, for which shared memory serves.

`simplify_indices`: every expression is simplified with what is known where it stands, and what
cannot run is dropped. Indices, regions, extents and loop bounds are index arithmetic, where
overflow is undefined; other values and conditions wrap, and are rewritten only where that cannot
matter.

`split_loops`: loops over maps become two, of which the first asks for nothing. Where only the last
iterations need guards, they are a loop of their own:

    for k in 0 .. 11 {
      copy W[k * 2048:+2048] -> w
      if k >= 10 { hint rare; map j { if k * 2048 + j < 21600 { y[j] = w[j] } } }
      else { map j { y[j] = w[j] } }
    }

    for k in 0 .. 10 unroll=4 { copy W[k * 2048:+2048] -> w; map j { y[j] = w[j] } }
    for k in 10 .. 11 { copy W[k * 2048:+2048] -> w; map j { if … { y[j] = w[j] } } }

Copies lose their guards, too: the range of `k` shows that they need none. Iterations are written
out until a thread has 32 elements under way, and the assembler is told to take no more registers
than that needs. Loops with products stay whole (`unswitch_guards`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial, reduce
from math import ceil, prod
from operator import is_
from typing import Any, TypeGuard, TypeVar

from tilewright.ir.analysis.bounds import NOTHING
from tilewright.ir.analysis.lifetimes import fragment_words, lifetimes
from tilewright.ir.analysis.trips import nth, upward_or_downward
from tilewright.ir.scope import after, entry, map_inside, walk_ranges
from tilewright.passes.canonicalize.unswitch_guards import together
from tilewright.passes.core import *

MOST_TRIPS = 16
MOST_OPS = 256  # once written out
WINDOW = 4  # trips of a loop over neighbours: a maximum over 4×4 is 2.5 times as fast
WRITTEN_OUT = 4  # iterations of a loop over maps
LEAST = 56  # registers of a thread: more blocks than that leaves do not help
OTHERS = 20  # registers for addresses, counters and sums


def _are_constant(exprs: tuple[Expr, ...]) -> bool:
    return all(isinstance(e, Const) for e in exprs)


# ── steps of either sign ─────────────────────────────────────────────────────────────────────


@kernel_pass
def count_loops(at: Facts) -> Kernel:
    """Rewrite loops whose step may be zero or negative to count 0, 1, 2, …"""
    if not any(isinstance(op, For) and _is_open(op) for op in at.ops):
        return at.kernel
    known = {
        op.var: ranges for op, ranges in walk_ranges(at.kernel, at.dims) if isinstance(op, For)
    }

    def rewrite(op: Op) -> Body | None:
        if not isinstance(op, For) or not _is_open(op):
            return None
        grows = prove(op.step > const(0, op.step.dtype), known[op.var], index=False)
        return None if grows is True else _counted(op)

    return map_ops(at.kernel, rewrite)


def _is_open(op: For) -> bool:
    return not isinstance(op.step, Const)


def _counted(op: For) -> Body:
    trips = upward_or_downward(op.start, op.stop, op.step)
    kind = INT64 if op.kind in ("serial", "unroll") else INT32  # rings have slots in int32
    if kind is INT32:
        trips = cast(binary("min", trips, const(INT32.max_value, INT64)), INT32)
    count = fresh_var(f"{op.var.name}_trips", dtype=kind)
    at = fresh_var(f"{op.var.name}_at", dtype=kind)
    body = substitute_vars(op.body, {op.var: nth(op.start, op.step, at)})
    zero, one = const(0, kind), const(1, kind)
    loop = rebuild(op, var=at, start=zero, stop=count, step=one, body=body)
    return Let(count, trips), loop


# ── open extents ─────────────────────────────────────────────────────────────────────────────


@rule(For)
def unroll_single(op: For, at: Facts) -> Body | None:
    """Replace a loop of one iteration by its body."""
    match op:
        case For(start=Const(first), stop=Const(last), step=Const(step)) if (
            first < last <= first + step and not leaves_early(op.body)
        ):
            return _with(op.body, op.var, int(first))
    return None


@rule(Copy, Fill, Atomic, Map)
def bound_maps(op: Op, at: Facts) -> Op | None:
    """Turn maps, fills and copies of extents known only at launch into loops over maps of constant
    extents, with guards."""
    found: Op | None = op
    if not isinstance(op, Map) and not _are_constant(_extents(op)):
        found = expand_op(op)
    if isinstance(found, Map) and not _are_constant(found.extents):
        return _bounded(found, at.kernel.thread_count)
    return found


def has_open_extents(program: Program) -> bool:
    """Whether there is anything for `bound_maps` to do."""
    ops = (op for kernel in program.kernels for op in walk_ops(kernel))
    return not all(_are_constant(op.extents if isinstance(op, Map) else _extents(op)) for op in ops)


def _extents(op: Op) -> tuple[Expr, ...]:
    return tuple(e for r in regions(op, reads=True, writes=True) for e in r.extents)


def _bounded(op: Map, threads: int) -> Op:
    """Loops over the extents that are open, the innermost in steps of the threads."""
    vars_: list[Var] = []
    extents: list[Expr] = []
    guard: Expr = TRUE
    values: dict[Var, Expr] = {}
    loops: list[tuple[Var, Expr]] = []
    last = max(at for at, e in enumerate(op.extents) if not isinstance(e, Const))
    for at, (var, extent) in enumerate(zip(op.vars, op.extents, strict=True)):
        size = None if isinstance(extent, Const) else _tile_size(op, var)
        if isinstance(extent, Const) or size is not None:
            vars_.append(var)
            extents.append(extent if size is None else const(size, extent.dtype))
            if size is not None:
                guard = logical_and(guard, var < extent)
        elif at == last:
            outer, inner = (fresh_var(stem, dtype=var.dtype) for stem in "tp")
            loops.append((outer, (extent + (threads - 1)) // threads))
            values[var] = outer * threads + inner
            vars_.append(inner)
            extents.append(const(threads, extent.dtype))
            guard = logical_and(guard, values[var] < extent)
        else:
            loops.append((var, extent))
    body = substitute_vars(op.body, values)
    if guard is not TRUE:
        body = (If(guard, body),)
    if not vars_:
        vars_, extents = [fresh_var("p")], [const(1)]
    found: Op = rebuild(op, vars=tuple(vars_), extents=tuple(extents), body=body)
    for var, extent in reversed(loops):
        found = For(var, const(0, var.dtype), extent, (found,))
    return found


def _tile_size(op: Map, var: Var) -> int | None:
    """The smallest tile that `var` alone is an index of, wherever the map runs."""
    found = []
    for buffer, indices in _surely_touched(op.body):
        if buffer.space in (Space.SHARED, Space.FRAGMENT):
            sizes = zip(indices, buffer.shape, strict=True)
            found += [int(size) for index, size in sizes if index is var]
    return min(found, default=None)


def _surely_touched(body: Body) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """Elements that `body` reads or writes whatever the conditions in it are."""
    for op in body:
        for e in expressions(op):
            yield from _surely_read(e)
        if isinstance(op, Store):
            yield op.buffer, op.indices
        elif isinstance(op, For) and values_of(op):
            yield from _surely_touched(op.body)


def _surely_read(e: Expr) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    if isinstance(e, Load):
        yield e.buffer, e.indices
    first_only = isinstance(e, Select) or (isinstance(e, Bin) and e.op in ("and", "or"))
    for child in e.children[:1] if first_only else e.children:
        yield from _surely_read(child)


# ── places in fragments ──────────────────────────────────────────────────────────────────────


@kernel_pass
def unroll_shifts(at: Facts) -> Kernel:
    """Unroll short constant loops whose variable selects a part of a fragment: registers are
    indexed by constants. Loops over a few neighbours in a tensor are unrolled, too."""
    if at.has_roles:
        return at.kernel
    body = _written_out(at.kernel.body, at)
    return rebuild(at.kernel, body=map_body(body, _map_moving))


def _written_out(body: Body, at: Facts) -> Body:
    found: list[Op] = []
    for op in body:
        if isinstance(op, For) and _is_short(op) and _shifts(op):
            why = "unrolled: its variable indexes registers of a fragment"
            because(at.kernel.name, op, why)
            for value in values_of(op) or ():
                copy = _with(rename_unique(op.body), op.var, value)
                found += _written_out(copy, at)
            continue
        inner = map_bodies(op, lambda body: _written_out(body, at))
        if isinstance(op, For) and _is_window(op):
            because(at.kernel.name, op, "unrolled: its iterations read neighbours")
            inner = rebuild(inner, kind="unroll")
        found.append(op if isinstance(op, Map) else inner)
    return tuple(found)


def _is_short(op: For) -> bool:
    values, ops = values_of(op), list(walk_ops(op.body))
    if op.kind not in ("serial", "unroll") or values is None:
        return False
    if any(isinstance(x, (Break, Continue)) for x in ops):
        return False
    return len(values) <= MOST_TRIPS and len(values) * len(ops) <= MOST_OPS


def _is_window(op: For) -> bool:
    """Whether it is an innermost loop over a few places of a tensor beside each other."""
    if any(walk_ops(op.body, For, While)) or not _is_short(op):
        return False
    places = [place for each in walk_ops(op.body, Map) for place in _places(each)]
    beside = any(
        buffer.is_global and any(stride_of(i, op.var) == 1 for i in place)
        for buffer, place in places
    )
    return beside and len(values_of(op) or ()) <= WINDOW


def _shifts(loop: For) -> bool:
    """Whether the place of something in a fragment depends on the loop's variable."""
    moving = {loop.var}
    for op in walk_ops(loop.body):
        if isinstance(op, Let) and variables(op.value) & moving:
            moving.add(op.var)
    return any(
        buffer.is_fragment and any(variables(i) & moving for i in place)
        for op in walk_ops(loop.body)
        for buffer, place in _places(op)
    )


def _places(op: Op) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    """The places that a map or a tile operation touches."""
    if isinstance(op, Map):
        for inner in walk_ops(op.body):
            yield from ((x.buffer, x.indices) for x, _ in elements_of(inner))
    elif isinstance(op, (Copy, Reduce, Scan)):
        yield from ((r.buffer, r.starts) for r in regions(op, reads=True, writes=True))


def _with(body: Body, var: Var, value: int) -> Body:
    """`body` at one value of its variable; names for what is constant there are put in too."""
    values: dict[Var, Expr] = {var: const(value, var.dtype)}
    while values:
        body = map_body(substitute_vars(body, values), simplify_operands)
        known = [op for op in body if isinstance(op, Let) and isinstance(op.value, Const)]
        values = {op.var: op.value for op in known}
        body = tuple(op for op in body if op not in known)
    return body


def _map_moving(op: Op) -> Op | None:
    """A copy whose part of a fragment begins at a place known only at run time, as a map."""
    if not isinstance(op, Copy) or op.atom is not None or not _are_constant(op.src.tile):
        return None
    moves = any(r.buffer.is_fragment and not _are_constant(r.starts) for r in (op.src, op.dst))
    return expand_op(op, stem="e") if moves else None


# ── what is known ────────────────────────────────────────────────────────────────────────────

AnyOp = TypeVar("AnyOp", bound=Op)

# Fields whose own expressions are index arithmetic; regions always are.
_INDEX_FIELDS: dict[type[Op], frozenset[str]] = {
    Kernel: frozenset({"grid"}),
    For: frozenset({"start", "stop", "step"}),
    Map: frozenset({"extents"}),
    Store: frozenset({"indices"}),
    View: frozenset({"offset"}),
}


@kernel_pass
def simplify_indices(at: Facts) -> Kernel:
    """Simplify expressions, with the contracts of sizes."""
    ranges = entry(at.kernel, at.dims)
    kernel = simplify_operands(at.kernel, ranges)
    return rebuild(kernel, body=_body(kernel.body, ranges))


def _body(body: Body, ranges: Ranges, pinned: bool = False) -> Body:
    """`pinned`: each statement has a place in its loop's schedule, so none may come or go."""
    result: list[Op] = []
    waiting = list(reversed(body))
    while waiting:
        op = simplify_operands(waiting.pop(), ranges)
        taken = None if pinned else _taken(op, ranges)
        if taken is not None:
            waiting.extend(reversed(taken))
            continue
        fixed = isinstance(op, For) and not (op.order is None and op.stage is None)
        new = map_inside(op, ranges, partial(_body, pinned=fixed))
        if not pinned and isinstance(new, (If, For, Map)) and not any(bodies(new)):
            continue
        result.append(new)
        if isinstance(new, (Break, Continue)) and not pinned:
            break
        ranges = after(new, ranges)
    same = len(result) == len(body) and all(map(is_, result, body))
    return body if same else tuple(result)


def _taken(op: Op, ranges: Ranges) -> Body | None:
    """What is left of an op whose control is known: statements to run in its place, or None."""
    match op:
        case If() if op.cond is TRUE:
            return op.then
        case If() if op.cond is FALSE:
            return op.orelse
        case While() if op.cond is FALSE:
            return ()
        case For() if prove(op.start >= op.stop, ranges):
            return () if isinstance(op.step, Const) else None
        case Map() if any(prove(extent <= 0, ranges) for extent in op.extents):
            return ()
    return None


def simplify_operands(op: AnyOp, ranges: Ranges = NOTHING) -> AnyOp:
    """The op with its own expressions simplified; assumptions stay as they were written."""
    if isinstance(op, Hint):
        return op
    index = _INDEX_FIELDS.get(type(op), frozenset())
    names = [f.name for f in marked(op, "arg")]
    return rebuild(op, **{n: _operand(getattr(op, n), ranges, n in index) for n in names})


def _operand(value: Any, ranges: Ranges, index: bool) -> Any:
    if isinstance(value, tuple):
        new = tuple(_operand(v, ranges, index) for v in value)
        return value if all(a is b for a, b in zip(new, value, strict=True)) else new
    if isinstance(value, Expr):
        return simplify(value, ranges, index=index)
    if isinstance(value, Region):
        # an extent that is the buffer's own size stays that very expression: `is_whole` compares
        sizes = value.buffer.shape
        return map_region(value, lambda e: e if any(e is s for s in sizes) else simplify(e, ranges))
    return value


# ── loops in two parts ───────────────────────────────────────────────────────────────────────


@kernel_pass
def split_loops(at: Facts) -> Kernel:
    """Split loops over maps into iterations that need no guard, unrolled so that their loads
    overlap, and those that need one."""
    if at.has_roles or at.target.internal.unswitch_guards is False:
        return at.kernel

    def rule(op: Op) -> Body | None:
        edges = _edges(op) if _is_simple(op) else None
        if edges is None:
            return None
        assert isinstance(op, For)
        lows, highs = edges
        ranges = places.get(id(op), begin)
        low = simplify(reduce(partial(binary, "max"), lows, op.start), ranges)
        high = simplify(reduce(partial(binary, "min"), highs, op.stop), ranges)
        # one iteration that asks in vain costs less than a loop whose length is not known
        if lows and prove(low <= op.start + 1, ranges) and prove(op.start < op.stop, ranges):
            low = simplify(op.start + 1, ranges)
        if highs and prove(high >= op.stop - 1, ranges):
            high = simplify(op.stop - 1, ranges)
        high = simplify(binary("max", low, high), ranges) if highs else high

        def part(start: Expr, stop: Expr, asks: bool) -> For:
            return rebuild(op, start=start, stop=stop, body=_answered(op.body, asks))

        count = min(WRITTEN_OUT, 1 + max(0, room) // _loaded(op, words, at.kernel.thread_count))
        bare = rebuild(part(low, high, False), unroll=count)
        if not lows and not highs:
            return (bare,)
        known = [
            _said(op.var, lets.get(e, e), lower)
            for lower in (True, False)
            for e in (lows if lower else highs)
        ]
        hints = (Hint("assume", value=cond) for cond in known if cond is not None)
        bare = rebuild(bare, body=(*hints, *bare.body))
        because(at.kernel.name, op, f"iterations from {low} to {high} need no guard")
        before = (part(op.start, low, True),) if lows else ()
        behind = (part(high, op.stop, True),) if highs else ()
        # one that has guards keeps its names: other passes have spoken of it
        first = before if not highs else rename_unique(before)
        return (*first, rename_unique(bare), *behind)

    lets: dict[Expr, Expr] = {op.var: op.value for op in at.ops if isinstance(op, Let)}
    words = fragment_words(at.kernel)
    _, live = lifetimes(at.kernel.body, (Space.FRAGMENT,)).peak(words)
    taken = OTHERS + sum(words[name] for name in live)
    blocks, room = _room(at, taken)
    begin = scope.entry(at.kernel, at.dims)
    walk = scope.walk_body(at.kernel.body, begin)
    places = {id(op): ranges for op, ranges in walk if isinstance(op, For)}
    kernel = map_ops(at.kernel, rule)
    asked = any(isinstance(op, Hint) and op.name == "min_blocks" for op in at.ops)
    if asked or not any(op.unroll > 1 for op in walk_ops(kernel, For)):
        return kernel
    return rebuild(kernel, body=(Hint("min_blocks", detail=(blocks,)), *kernel.body))


def _room(at: Facts, taken: int) -> tuple[int, int]:
    """The blocks of a multiprocessor that have room for `taken` registers a thread and their shared
    memory, and the registers that are left to a thread."""
    chip, threads = at.target.chip, at.kernel.thread_count
    shared = sum(op.buffer.bytes for op in at.ops if isinstance(op, Alloc) and op.buffer.is_shared)
    blocks = min(
        chip.shared_per_sm // (shared + chip.reserved),
        chip.registers // (max(LEAST, taken) * threads),
        chip.threads_per_sm // threads,
        chip.blocks_per_sm,
    )
    blocks = max(blocks, 1)
    return blocks, chip.registers // (blocks * threads) // 8 * 8 - taken


def _is_simple(op: Op) -> TypeGuard[For]:
    """A loop over maps, and copies by threads, that no schedule speaks of."""
    if not isinstance(op, For) or op.kind != "serial" or op.step != const(1):
        return False
    inside, plain = [*outside_maps(op.body)], (Alloc, Let, Map, If, Hint)
    return any(isinstance(inner, Map) for inner in inside) and all(
        isinstance(inner, plain) or (isinstance(inner, Copy) and inner.atom == "threads")
        for inner in inside
    )


def _loaded(loop: For, words: dict[str, int], threads: int) -> int:
    """Registers for what an iteration loads."""
    copied = [words.get(op.dst.buffer.name, 0) for op in walk_ops(loop, Copy)]
    read = [
        ceil(prod(map(int, map_.extents)) * load.dtype.bits / 32 / threads)
        for map_ in walk_ops(loop, Map)
        for load in {x for x in loads_within(map_) if not x.buffer.is_fragment}
    ]
    return max(1, sum(copied) + max(read, default=0))


def _edges(loop: For) -> tuple[list[Expr], list[Expr]] | None:
    """From which iterations on, and up to which, no guard is asked for; None: nobody knows."""
    found: dict[str, list[Expr]] = {"<": [], ">=": []}
    for op in loop.body:
        if isinstance(op, If) and is_rare(op.then):
            for cond, _ in together(op.cond, False):
                if not isinstance(cond, Cmp) or cond.op not in found or cond.a is not loop.var:
                    return None
                found[cond.op].append(cond.b)
    return found["<"], found[">="]


def _said(k: Var, edge: Expr, lower: bool) -> Expr | None:
    """What `k >= edge`, or `k < edge`, says without the quotient in it."""
    more: Expr = const(0)
    match edge:
        case Bin("+", quotient, Const() as more):
            edge = quotient
    match edge:
        case Bin("//", a, Const(c)) if c > 0:
            low = compare(">=", (k - more) * c, a - (c - 1))
            return low if lower else compare("<=", (k - more + 1) * c, a)
    return None


def _answered(body: Body, answer: bool) -> Body:
    """`body` with what is asked of iterations answered."""
    result: list[Op] = []
    for op in body:
        if isinstance(op, If) and is_rare(op.then):  # its first op says so
            result += op.then[1:] if answer else op.orelse
        else:
            result.append(op)
    return tuple(result)
