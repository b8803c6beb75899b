"""Operations of single elements: atomics, by a thread, once for all threads of an instance, and of
tiles; shuffles, votes, assertions and foreign code; tiles printed as lines.

    map (i, j) { atomic add dQ[k + i, j] value=dq[i, j] }

A thread that holds neighbours, as those of a gemm's result do, adds two or four of them by one
instruction: half as many requests, each of whole sectors. On an architecture that has none it is as
many single ones (`threads.cuh`). Elements are atomic one by one, as they were.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tilewright.passes.lower.access import Candidate, Groups, find_access
from tilewright.passes.lower.core import *
from tilewright.support.show import EDGE, left_out

_BITS = ("and", "or", "xor")
_ARITHMETIC = ("add", "max", "min", "exch", "load", "store")
COUNTS = (4, 2)  # elements that an instruction adds
PRINTED = "_printed"  # how the names of shared copies end from which fragments are printed
ROW = 16  # elements on a line; printf takes 32 operands
Site = Lowering | MapLoop  # where an op stands: outside maps, or in one
At = tuple[Expr, ...]


# ── atomics ──────────────────────────────────────────────────────────────────────────────────


def has_atomic(op: Atomic) -> bool:
    """Whether the type has this atomic: words of 16, 32 and 64 bits, bits of integers."""
    kind = op.dst.dtype
    if kind.bits not in (16, 32, 64) or kind.is_bool:
        return False
    return op.op in _ARITHMETIC or (op.op in _BITS and kind.is_int)


def _once(at: Site) -> tuple[Lowering, Expr]:
    """The lowering, and a condition that holds in one of the threads that run an iteration."""
    return (at, TRUE) if isinstance(at, Lowering) else (at.low, at.first_copy())


def atomic_element(at: Site, op: Atomic) -> Iterable[Op]:
    """An atomic of one element by the thread that comes here; nothing outside a tensor."""
    low, once = _once(at)
    dst, kind = op.dst, op.dst.dtype
    if dst.buffer.space not in MEMORY or dst.cta is not None:
        raise CompileError("atomics work on global memory and the block's shared memory")
    if not has_atomic(op):
        raise CompileError(f"there is no atomic {op.op} of {kind}")
    place, inside = low.place(dst.buffer, tuple(map(at.index, dst.starts)))
    once = logical_and(once, inside)
    where = element(low.flat(dst.buffer), *place)
    low.touched = True
    args = (where,) if op.value is None else (where, at.expr(op.value))
    fence: Body = () if op.order == "relaxed" else (Fence("gpu"),)

    def atomic(result: Var | None) -> Body:
        return (*fence, Intrinsic("atomic", args, result, text=f"op={op.op}"), *fence)

    if op.result is None or once is TRUE:
        yield from guarded(once, atomic(op.result))
        return
    kept = low.local("kept", kind)
    old = low.var("old", kind)
    yield Alloc(kept, init=const(0, kind))
    yield from guarded(once, (*atomic(old), Store(kept, (), old)))
    yield Let(op.result, Load(kept, ()))


def lower_atomic(low: Lowering, op: Atomic) -> Iterable[Op]:
    """By each thread that it differs in; otherwise by one for all, which get its old value."""
    if op.dst.tile or op.src is not None:
        yield from low.op(_by_elements(low, op))
        return
    if low.differs.runs_apart(op) or low.instance.solo:
        yield from atomic_element(low, op)
        return
    yield from low.meet()
    if op.result is None:
        once = tuple(atomic_element(low, op))
        yield from low.by_leader(*once)
        return
    leader, where = low.instance.leader, low.plain(op).dst
    alone = leader is not None and low.instance.threads == WARP
    if alone and where.buffer.is_global and op.value is not None and has_atomic(op):
        # one lane does it, whose old value reaches the others by a shuffle
        if low.within(where.buffer, where.starts) is not TRUE:
            raise CompileError(
                f"the element of {where.buffer.name} may be outside of it",
                fix="bound its index, by `assume` or by the sizes' contract",
            )
        args = (where, low.expr(op.value))
        yield Intrinsic("atomic_of_warp", args, op.result, text=f"op={op.op}")
        return

    def tell(scratch: Buffer) -> Body:
        old = low.var("old", op.dst.dtype)
        inner = atomic_element(low, rebuild(op, result=old))
        return low.by_leader(*inner, Store(low.flat(scratch), (const(0),), old))

    scratch, told = low.exchange(op.dst.dtype, (1,), tell)
    yield from told
    yield Let(op.result, Load(low.flat(scratch), (const(0),)))


def _by_elements(low: Lowering, op: Atomic) -> Op:
    """Every element by a thread that holds it, or by a map over memory."""
    tile = op.dst.static_tile
    layout = coalesced(tile, low.instance.threads) if tile else None
    held = None if op.src is None else op.src.buffer.layout
    if tile and op.src is not None and isinstance(held, Fragment):
        if not op.src.is_whole or held.tile != tile:
            raise CompileError(
                f"an atomic of a part of {op.src.name}", fix="copy the part out first"
            )
        layout = held.drop_repeats()
    found = expand_op(op, low.names)
    assert found is not None
    return rebuild(found, layout=layout) if isinstance(found, Map) else found


def lower_sums(loop: MapLoop, op: Map) -> Body | None:
    """A map of nothing but a sum, in groups of neighbouring values; None where there are none."""
    (atomic, *others) = op.body
    if others or not isinstance(atomic, Atomic) or atomic.value is None or not _is_sum(atomic):
        return None
    low, dst = loop.low, atomic.dst
    var = low.var("g")
    for count in COUNTS:
        groups = Groups(loop, var, count)
        access = find_access(groups, dst.buffer, Candidate(dst.starts))
        if access is None or access.ragged is not None or access.width != count:
            continue
        value, ranges = loop.expr(atomic.value), groups.ranges
        places = [{loop.var: groups.first + e} for e in range(count)]
        values = (simplify(substitute(value, at), ranges, index=False) for at in places)
        args: tuple[Expr | Region, ...] = (access.where(low), *values)
        cond = logical_and(loop.first_copy(), groups.at(loop.guard()))
        sums = Intrinsic("atomic", args, text="op=add", loc=atomic.loc)
        low.touched = True
        body = guarded(logical_and(cond, access.inside), (sums,))
        return (*access.align(low), *groups.emit(body))
    return None


def _is_sum(op: Atomic) -> bool:
    return (
        op.op == "add"
        and op.dst.dtype.name == "float32"
        and op.dst.buffer.is_global
        and op.dst.cta is None
        and op.result is None
        and op.order == "relaxed"
    )


# ── instructions ─────────────────────────────────────────────────────────────────────────────


def lower_intrinsic(low: Lowering, op: Intrinsic) -> Iterable[Op]:
    """As it stands, its operands found where they lie. What is the same in all threads is printed
    once."""
    if INTRINSICS[op.name].convergent:
        apart = id(op) in low.differs.controls
        if apart and op.name.startswith("warp_reduce"):
            raise CompileError(
                f"{op.name} where only some threads come: all lanes of a warp take part",
                fix="reduce in all threads, with the neutral value in those that have none",
            )
        op = rebuild(op, text="mask=active" if apart else "")
    found = intrinsic(low, op)
    if op.name == "print" and not low.differs.runs_apart(op):
        return low.by_leader(*found)
    return found


def intrinsic(at: Site, op: Intrinsic) -> Iterable[Op]:
    """`op` with its operands rewritten: values, and where regions lie."""
    low, once = _once(at)

    def lines(ops: Iterable[Op]) -> Iterable[Op]:
        for line in ops:
            if isinstance(line, For):
                with low.restored(scope.inside(line, "body", low.ranges)):
                    body = tuple(lines(line.body))
                yield rebuild(line, stop=at.expr(line.stop), body=body)
            elif isinstance(line, Intrinsic):
                yield rewritten(line)

    def operand(arg: Expr | Region) -> Expr | Region:
        if not isinstance(arg, Region):
            return at.expr(arg)
        buffer, starts = arg.buffer, tuple(map(at.index, arg.starts))
        if buffer.is_fragment:
            raise CompileError(f"{buffer.name} is spread over threads and has no address")
        low.touched = low.touched or buffer.space in MEMORY
        if op.name not in ("ptx", "call_extern"):
            return low.load(Load(buffer, arg.starts), starts)
        if buffer.is_shared:
            return low.span(buffer, low.offset(buffer, starts), 1, arg.cta)
        return Region(low.flat(buffer), starts, arg.extents, arg.cta)

    def rewritten(op: Intrinsic) -> Op:
        return rebuild(op, args=tuple(map(operand, op.args)))

    if op.name == "print" and any(isinstance(a, Region) and a.tile for a in op.args):
        rows = PrintRows(op, lambda: low.var("i"))
        yield from guarded(once, tuple(lines(rows.lines())))
        return
    # each thread that holds the iteration needs what is left in its registers
    kept = op.result is not None or any(b.is_local for b in written_buffers(op))
    yield from guarded(TRUE if kept else once, (rewritten(op),))


# ── tiles as lines ───────────────────────────────────────────────────────────────────────────


@dataclass
class PrintRows:
    """The lines of one labelled print of tiles in memory, where one operation prints a few values
    at most: one that says what is printed, then the elements, up to `ROW` on a line. Each names its
    block and its place: lines of other blocks may come between."""

    op: Intrinsic
    var: Callable[[], Var]  # one with a name of its own
    element: Callable[[Region], Expr | Region] = lambda spot: spot

    def lines(self) -> Iterable[Op]:
        op = self.op
        places, rest = op.args[: op.width or 0], op.args[op.width or 0 :]
        tiles = [a for a in rest if isinstance(a, Region) and a.tile]
        scalars = [a for a in rest if not (isinstance(a, Region) and a.tile)]
        short = len(rest) == 1 and len(tiles[0].tile) == 1 and _size(tiles[0].tile[0])
        if short and short <= ROW:
            yield rebuild(op, args=(*places, *self._values(tiles[0], (), const(0), short)))
            return
        head = op.text.removesuffix(" =") + "".join(_note(tile) for tile in tiles)
        yield rebuild(op, args=(*places, *scalars), text=head)
        self.who, _, _ = op.text.partition(":")
        self.speaker = places[: self.who.count("{}")]
        for tile in tiles:
            yield from self._rows(tile, ())

    def _values(self, tile: Region, at: At, first: Expr, count: int) -> list[Expr | Region]:
        """`count` elements of a row of the tile."""
        starts = [tile.at((*at, first + k)) for k in range(count)]
        ones = tuple(const(1) for _ in tile.starts)
        return [self.element(Region(tile.buffer, start, ones, tile.cta)) for start in starts]

    def _rows(self, tile: Region, at: At) -> list[Op]:
        """Loops over all dimensions; a constant last one in as many lines as it takes."""
        if len(at) == len(tile.tile):
            return self._line(tile, at[:-1], at[-1], 1)
        extent, last = tile.tile[len(at)], len(at) == len(tile.tile) - 1
        size, few = _size(extent), const(2 * EDGE)
        short = _note(tile) and size > 2 * EDGE
        if not last or not size:
            count = few if short else extent if size else binary("min", extent, few)
            return self._loop(extent, count, lambda k: self._rows(tile, (*at, k)))
        if short:
            first = self._line(tile, at, const(0), EDGE)
            return first + self._line(tile, at, const(size - EDGE), EDGE)
        rows, left = const(size // ROW), size % ROW
        found: list[Op] = []
        if size >= ROW:
            found = self._loop(rows, rows, lambda k: self._line(tile, at, k * ROW, ROW))
        return found + (self._line(tile, at, const(size - left), left) if left else [])

    def _loop(self, extent: Expr, count: Expr, body: Callable[[Expr], list[Op]]) -> list[Op]:
        """`body` for `count` elements of a dimension: all, or as many from either end."""
        var = self.var()
        at: Expr = var
        if count is not extent:
            last = var + (extent - 2 * EDGE)
            at = select(var < EDGE, var, last)
            if not _size(extent):
                at = select(extent <= 2 * EDGE, var, at)
        return [For(var, const(0), count, tuple(body(at)))]

    def _line(self, tile: Region, at: At, first: Expr, count: int) -> list[Op]:
        spots = tile.at((*at, first))
        last = max(k for k, e in enumerate(tile.extents) if _size(e) != 1)
        numbers = [(p, p + count) if k == last and count > 1 else (p,) for k, p in enumerate(spots)]
        shown = [p for pair in numbers for p in pair if not isinstance(p, Const)]
        holes = [
            ":".join(str(p.value) if isinstance(p, Const) else "{}" for p in pair)
            for pair in numbers
        ]
        name = re.sub(PRINTED + r"(_\d+)?$", "", tile.name)
        args = (*self.speaker, *shown, *self._values(tile, at, first, count))
        text = f"{self.who}: {name}[{', '.join(holes)}] ="
        width = len(self.speaker) + len(shown)
        return [rebuild(self.op, args=args, text=text, width=width)]


def _size(extent: Expr) -> int:
    """A constant extent; 0 for one that is known at launch."""
    return int(extent.value) if isinstance(extent, Const) else 0


def _note(tile: Region) -> str:
    """What is said of a tile of which not all is printed."""
    sizes = [_size(e) for e in tile.tile]
    if 0 in sizes:
        return f" (the first and last {EDGE} of each dimension)"
    hidden = left_out(sizes)
    return f" {hidden}" if hidden else ""
