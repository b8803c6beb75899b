"""Reductions, scans and atomics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Const, Expr, Load, Var, const, identity
from tilewright.ir.expr import cast as cast_expr
from tilewright.ir.op import Alloc, Atomic, Body, For, Let, Map, Op, Reduce, Scan, Store
from tilewright.passes.lower.reduce import FOLDS, TRUTHS, accumulates_in, element_value
from tilewright.passes.lower.scan import scan_fold
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Mem, Strided
from tilewright.targets.cpu.emit_map import Folded
from tilewright.targets.cpu.gemm import GemmEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.numbers import *

_ORDERS = {name: name for name in ("acquire", "release", "acq_rel", "seq_cst")}
_ORDERS["relaxed"] = "monotonic"
SIDE_BY_SIDE = 8  # rows that are scanned at once: each waits for its own sum


@dataclass(frozen=True)
class _Reduction:
    """Partial results are of type `kind`; `element(others, r, lanes)` reads what is folded,
    `finish(others, total)` writes a result."""

    op: str
    kind: DType
    src: Strided
    axis: int
    others: list[int]
    element: Callable[[list[str], str, int], Val]
    finish: Callable[[list[str], Val], None]

    @property
    def lanes(self) -> int:
        """Of one vector."""
        return host().lanes(self.kind.bits)


def _long(shape: Sequence[int]) -> list[int]:
    """The dimensions that are not 1."""
    return [d for d, n in enumerate(shape) if n != 1]


def _squeezed(side: Strided) -> Strided:
    return side.kept(_long(side.shape))


def _old(op: Reduce, value: Expr, kind: DType) -> Expr:
    """What was there before, as a partial result."""
    return element_value(op.op, value, kind) if op.op in TRUTHS else cast_expr(value, kind)


class TileEmitter(GemmEmitter):
    """`Reduce`, `Scan`, `Atomic`."""

    # ── reductions and scans ─────────────────────────────────────────────────────────────────

    def _of(self, make: Callable[..., Expr], *values: Val) -> Val:
        """The value of an expression that is made of these."""
        names = [Var(f"%{i}", value.dtype) for i, value in enumerate(values)]
        with self.scope():
            self.vars |= zip(names, values, strict=True)
            return self.expr(make(*names))

    def _lines(self, op: Reduce, sizes: Sequence[int], axis: int) -> None:
        """Fold along dimension `axis` of a source of these `sizes`, none of them 1, by a loop in an
        elementwise map over the others."""
        kind = accumulates_in(op.op, op.src.dtype, op.dst.dtype)
        total = Buffer("fold.total", (), kind, Space.LOCAL)
        names = [Var(f"fold.{d}") for d in range(len(sizes))]
        r, others = names[axis], [v for d, v in enumerate(names) if d != axis]
        new = element_value(op.op, Load(op.src.buffer, op.src.at(names)), kind)
        step = Store(total, (), FOLDS[op.op].fold(Load(total, ()), new))
        goal = op.dst.at(others)
        result: Expr = Load(total, ())
        if not op.clear:
            result = FOLDS[op.op].fold(result, _old(op, Load(op.dst.buffer, goal), kind))
        kept = Store(op.dst.buffer, goal, cast_expr(result, op.dst.dtype))
        loop = For(r, const(0), const(sizes[axis]), (step,))
        self._over(others, sizes, axis, (Alloc(total, identity(op.op, kind)), loop, kept))

    def _over(self, others: Sequence[Var], sizes: Sequence[int], axis: int, body: Body) -> None:
        """`body` for every line along `axis`."""
        extents = [const(n) for d, n in enumerate(sizes) if d != axis]
        self.map(Map(tuple(others or [Var("fold.one")]), tuple(extents or [const(1)]), body))

    def scan(self, op: Scan) -> None:
        src, *_ = (self.tile(each) for each in op.sources + op.results + op.totals)
        long = _long(src.shape)  # along one element all of them stay what they are
        axis = long.index(op.axis) if op.axis in long else len(long)
        sizes = [src.shape[d] for d in long] + [1] * (axis == len(long))
        names = [Var(f"fold.{d}") for d in range(len(sizes))]
        others = [v for d, v in enumerate(names) if d != axis]
        fold, kinds = scan_fold(op)
        r, first = names[axis], const(0)

        def line(others: Sequence[Expr], which: int) -> tuple[Body, Body, Body]:
            """Of a line, what comes before its loop, in it and after it."""
            totals = [
                Buffer(f"fold.total{i}.{which}", (), kind, Space.LOCAL)
                for i, kind in enumerate(kinds)
            ]

            def places(step: Expr) -> list[Expr]:
                at = [*others]
                at.insert(axis, const(sizes[axis] - 1) - step if op.reverse else step)
                return at[: len(long)]

            def elements(step: Expr) -> list[Expr]:
                found = [Load(r.buffer, r.at(places(step))) for r in op.sources]
                return [cast_expr(e, kind) for e, kind in zip(found, kinds, strict=True)]

            def keep(regions: Sequence[Region], at: Sequence[Expr]) -> list[Op]:
                return [
                    Store(r.buffer, r.at(at), cast_expr(Load(t, ()), r.dtype))
                    for r, t in zip(regions, totals, strict=False)
                ]

            values = fold([Load(t, ()) for t in totals], elements(r))
            news = [Var(f"fold.new{i}.{which}", kind) for i, kind in enumerate(kinds)]
            step: list[Op] = [Let(v, e) for v, e in zip(news, values, strict=True)]
            step += [Store(t, (), v) for t, v in zip(totals, news, strict=True)]
            begin: list[Op] = [Alloc(t, e) for t, e in zip(totals, elements(first), strict=True)]
            begin += keep(op.results, places(first))
            return (*begin,), (*step, *keep(op.results, places(r))), (*keep(op.totals, others),)

        def lines(base: int, count: int, at_once: int) -> None:
            """So many of the innermost of the others, several at once."""
            *outer, last = others or [Var("fold.one")]
            rows = [last * at_once + (base + i) for i in range(at_once)]
            found = [line([*outer, row][: len(others)], i) for i, row in enumerate(rows)]
            begin, step, end = (tuple(x for each in found for x in each[k]) for k in range(3))
            loop = For(r, const(1), const(sizes[axis]), step)
            extents = [n for d, n in enumerate(sizes) if d != axis][:-1] + [count // at_once]
            body = (*begin, loop, *end)
            self.map(Map((*outer, last), tuple(map(const, extents)), body))

        count = sizes[:axis][-1] if axis else 1
        if not others or axis < len(sizes) - 1:  # lines lie side by side
            lines(0, sizes[-1] if others else 1, 1)
            return
        whole = count - count % SIDE_BY_SIDE
        for base, rows, at_once in (
            (0, whole, SIDE_BY_SIDE),
            (whole, count - whole, count - whole),
        ):
            if rows:
                lines(base, rows, at_once)

    def folded(self, op: Folded) -> None:
        r = self._reduction(op.reduce)

        @contextmanager
        def follow(row: list[str], lanes: int) -> Iterator[Callable[[str], None]]:
            slot = self._accumulator(r, lanes)

            def add(column: str) -> None:
                new = r.element(row, column, lanes)
                self._update(slot, r, lanes, lambda: new)

            yield add
            r.finish(row, self._fold_lanes(self._current(slot, r, lanes), r))

        if not self.map(op.map, follow):
            self.reduce(op.reduce)

    def _reduction(self, op: Reduce) -> _Reduction:
        src, dst, axis = self.tile(op.src), self.tile(op.dst), op.axis
        others = [d for d in _long(src.shape) if d != axis]
        outs = _squeezed(dst)
        kind = accumulates_in(op.op, src.dtype, dst.dtype)

        def element(at: list[str], r: str, lanes: int) -> Val:
            place = self.place(src.kept([*others, axis]), [*at, r])
            value = self.read(src.dtype, place, lanes)
            return self._of(lambda x: element_value(op.op, x, kind), value)

        def finish(at: list[str], total: Val) -> None:
            place = self.place(outs, at)
            if not op.clear:
                old = self.read(dst.dtype, place, total.lanes)
                total = self._of(
                    lambda new, was: FOLDS[op.op].fold(new, _old(op, was, kind)), total, old
                )
            self.write(cast(total, dst.dtype), place)

        return _Reduction(op.op, kind, src, axis, others, element, finish)

    def reduce(self, op: Reduce) -> None:
        r = self._reduction(op)
        src, long = r.src, _long(r.src.shape)
        inner = src.strides[r.others[-1]] if r.others else None
        if r.axis in long and inner == 1 != src.strides[r.axis]:
            self._lines(op, [src.shape[d] for d in long], long.index(r.axis))
            return
        with ExitStack() as stack:
            at = [stack.enter_context(self.fn.loop(0, src.shape[d], hint="row")) for d in r.others]
            r.finish(at, self._fold_row(r, at))

    def _accumulator(self, r: _Reduction, lanes: int) -> str:
        slot, neutral = self.fn.alloca(type_of(r.kind, lanes), "acc"), identity(r.op, r.kind)
        assert isinstance(neutral, Const)
        self.fn.line(f"store {constant(self.fn, neutral.value, r.kind, lanes)}, ptr {slot}")
        return slot

    def _current(self, slot: str, r: _Reduction, lanes: int) -> Val:
        ref = self.fn.value(f"load {type_of(r.kind, lanes)}, ptr {slot}")
        return Val(self.fn, ref, r.kind, lanes)

    def _update(self, slot: str, r: _Reduction, lanes: int, element: Callable[[], Val]) -> None:
        old = self._current(slot, r, lanes)
        self.fn.line(f"store {self._of(FOLDS[r.op].fold, old, element())}, ptr {slot}")

    def _fold_row(self, r: _Reduction, at: list[str]) -> Val:
        """One row to one value: four vectors of partial results, then halves onto halves, each with
        as many elements of what is left of the row, if there are."""
        size, lanes = r.src.shape[r.axis], 1
        if r.src.strides[r.axis] == 1:
            lanes = min(4 * r.lanes, 1 << (size.bit_length() - 1))
        done, slot = size - size % lanes, self._accumulator(r, lanes)
        with self.fn.loop(0, done, lanes, hint="r") as k:
            self._update(slot, r, lanes, partial(r.element, at, k, lanes))
        total = self._current(slot, r, lanes)
        while total.lanes > 1:
            total = self._half(total, r)
            if size - done >= total.lanes:
                total = self._of(FOLDS[r.op].fold, total, r.element(at, str(done), total.lanes))
                done += total.lanes
        return total

    def _fold_lanes(self, total: Val, r: _Reduction) -> Val:
        while total.lanes > 1:
            total = self._half(total, r)
        return total

    def _half(self, total: Val, r: _Reduction) -> Val:
        half = total.lanes // 2
        low = shuffle(total, total, list(range(half)))
        high = shuffle(total, total, list(range(half, total.lanes)))
        if half == 1:
            low, high = extract(total, 0), extract(total, 1)
        return self._of(FOLDS[r.op].fold, low, high)

    # ── atomics ──────────────────────────────────────────────────────────────────────────────

    def atomic(self, op: Atomic) -> None:
        """One element per lane; tiles have become maps before."""
        mem = self.mems[op.dst.buffer.name]
        if mem.dtype.packed:
            raise CompileError(f"{mem.dtype} is packed and has no atomics", loc=op.loc)
        value = None if op.value is None else self.as_type(op.value, mem.dtype)
        lanes = self.lane_count
        if mem.lanes:
            raise CompileError(f"an atomic on {mem.buffer.name}, which no other thread sees")
        found = self.access(mem, op.dst.starts)
        pointers, valid = found.pointers, found.valid
        if len(pointers) < lanes:
            step = 1 if found.contiguous else 0
            type_ = memory_type(mem.dtype)
            pointers = [
                self.fn.value(f"getelementptr {type_}, ptr {pointers[0]}, i64 {i * step}", "p")
                for i in range(lanes)
            ]
            valid = valid * lanes
        old: list[Val] = []
        for i, (pointer, ok) in enumerate(zip(pointers, valid, strict=True)):
            ok = self.wanted(i, ok)
            slot = self.fn.alloca(memory_type(mem.dtype), "old")
            if op.result is not None:
                self.write(constant(self.fn, 0, mem.dtype), slot)
            part = None if value is None else extract(value, i)
            with self.fn.when(ok, "inside"):
                self._atomic_element(op, mem, pointer, part, slot)
            if op.result is not None:
                old.append(self.read(mem.dtype, slot))
        if op.result is not None:
            self.vars[op.result] = gather(old)

    def _atomic_element(
        self, op: Atomic, mem: Mem, pointer: str, value: Val | None, slot: str
    ) -> None:
        """What the element was goes to `slot`."""
        order = _ORDERS.get(op.order, "seq_cst")
        dtype, bits = mem.dtype, f"i{max(8, mem.dtype.bits)}"
        place = f"ptr {pointer}"
        align = f"align {max(8, dtype.bits) // 8}"
        if not mem.is_global:
            # a block's threads take turns, so its own memory needs no bus lock
            old = self.read(dtype, pointer)
            if value is not None:
                self.write(_meet(op.op, old, value), pointer)
            self.write(old, slot)
        elif value is None:
            order = order if order != "release" else "seq_cst"
            self._keep(slot, bits, self.fn.value(f"load atomic {bits}, {place} {order}, {align}"))
        elif op.op == "store":
            order = order if order not in ("acquire", "acq_rel") else "seq_cst"
            word = self._word(value, bits)
            self.fn.line(f"store atomic {bits} {word}, {place} {order}, {align}")
        elif name := _native_atomic(op.op, dtype):
            new = value.next(f"atomicrmw {name} {place}, {value} {order}")
            self._keep(slot, new.type, new.ref)
        else:
            again, done = self.fn.label("again"), self.fn.label("swapped")
            first = self.fn.value(f"load atomic {bits}, {place} monotonic, {align}")
            self._keep(slot, bits, first)
            self.fn.start(again)
            expected = self.fn.value(f"load {bits}, ptr {slot}")
            new_word = self._word(_meet(op.op, self.read(dtype, slot), value), bits)
            failure = {"seq_cst": "seq_cst", "acquire": "acquire", "acq_rel": "acquire"}
            orders = f"{order} {failure.get(order, 'monotonic')}"
            pair = self.fn.value(f"cmpxchg {place}, {bits} {expected}, {bits} {new_word} {orders}")
            self._keep(slot, bits, self.fn.value(f"extractvalue {{ {bits}, i1 }} {pair}, 0"))
            self.fn.branch(self.fn.value(f"extractvalue {{ {bits}, i1 }} {pair}, 1"), done, again)
            self.fn.start(done)

    def _keep(self, slot: str, type_: str, ref: str) -> None:
        self.fn.line(f"store {type_} {ref}, ptr {slot}")

    def _word(self, value: Val, bits: str) -> str:
        name = "zext" if value.dtype.is_bool else "bitcast"
        return value.ref if value.type == bits else self.fn.value(f"{name} {value} to {bits}")


def _native_atomic(op: str, dtype: DType) -> str | None:
    if dtype.is_int and dtype.bits >= 8:
        signed = "" if dtype.kind == "int" else "u"
        names = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg",
                 "max": f"{signed}max", "min": f"{signed}min"}  # fmt: skip
        return names.get(op)
    plain = dtype.name in ("float32", "float64")
    return {"add": "fadd", "exch": "xchg"}.get(op) if plain else None


def _meet(op: str, old: Val, value: Val) -> Val:
    if op in ("exch", "store"):
        return value
    return binary({"add": "+", "and": "&", "or": "|", "xor": "^"}.get(op, op), old, value)
