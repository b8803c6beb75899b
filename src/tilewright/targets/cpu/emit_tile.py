"""Reductions, scans and atomics."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, DType
from tilewright.ir.op import Atomic, Reduce, Scan
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Mem, Strided
from tilewright.targets.cpu.folds import Folded
from tilewright.targets.cpu.gemm import GemmEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.numbers import (
    FLOAT64,
    Val,
    absolute,
    binary,
    cast,
    constant,
    extract,
    gather,
    keep_nan,
    memory_type,
    nonzero,
    shuffle,
    type_of,
)

_ORDERS = {name: name for name in ("acquire", "release", "acq_rel", "seq_cst")}
_ORDERS["relaxed"] = "monotonic"


@dataclass(frozen=True)
class _Fold:
    """How elements are folded: the accumulator's type, what is done to an element of type `wide`
    first, how two meet, and what changes nothing."""

    acc: DType
    wide: DType
    first: Callable[[Val], Val]
    meet: Callable[[Val, Val], Val]
    neutral: float

    def prepare(self, x: Val) -> Val:
        return self.first(x if self.acc is BOOL else cast(x, self.wide))

    @property
    def lanes(self) -> int:
        """Of one vector."""
        return host().lanes(8 if self.acc is BOOL else self.acc.bits)


@dataclass(frozen=True)
class _Reduction:
    """`element(others, r, lanes)` reads what is folded, `finish(others, total)` writes a result."""

    src: Strided
    axis: int
    others: list[int]
    fold: _Fold
    element: Callable[[list[str], str, int], Val]
    finish: Callable[[list[str], Val], None]


def _long(shape: Sequence[int]) -> list[int]:
    """The dimensions that are not 1."""
    return [d for d, n in enumerate(shape) if n != 1]


def _squeezed(side: Strided) -> Strided:
    return side.kept(_long(side.shape))


def _fold(op: str, src: DType, dst: DType) -> _Fold:
    """Sums run in the wider of the two types, narrow floats in float32."""
    if src.is_float or dst.is_float:
        wide = FLOAT64 if 64 in (d.bits for d in (src, dst) if d.is_float) else FLOAT32
    else:
        same = src.kind == dst.kind and src.is_int
        wide = DTYPES[f"{src.kind}{max(32, src.bits, dst.bits)}" if same else "int64"]
    low = -float("inf") if wide.is_float else wide.min_value
    high = float("inf") if wide.is_float else wide.max_value

    def same_value(x: Val) -> Val:
        return x

    rows: dict[str, tuple[Callable[[str, Val, Val], Val], str, Callable[[Val], Val], float]] = {
        "sum": (binary, "+", same_value, 0),
        "abssum": (binary, "+", absolute, 0),
        "max": (keep_nan, "max", same_value, low),
        "min": (keep_nan, "min", same_value, high),
        "absmax": (keep_nan, "max", absolute, 0),
        "max_num": (binary, "max", same_value, low),  # NaN is skipped: max(NaN, x) is x
        "min_num": (binary, "min", same_value, high),
        "absmax_num": (binary, "max", absolute, 0),
        "and": (binary, "&", same_value, -1 if wide.kind == "int" else wide.max_value),
        "or": (binary, "|", same_value, 0),
        "xor": (binary, "^", same_value, 0),
        "any": (binary, "or", nonzero, 0),
        "all": (binary, "and", nonzero, 1),
    }
    meet, how, first, neutral = rows[op]
    return _Fold(BOOL if op in ("any", "all") else wide, wide, first, partial(meet, how), neutral)


class TileEmitter(GemmEmitter):
    """`Reduce`, `Scan`, `Atomic`."""

    # ── reductions ───────────────────────────────────────────────────────────────────────────

    def folded(self, op: Folded) -> None:
        r = self._reduction(op.reduce)

        @contextmanager
        def follow(row: list[str], lanes: int) -> Iterator[Callable[[str], None]]:
            slot = self._accumulator(r.fold, lanes)

            def add(column: str) -> None:
                new = r.element(row, column, lanes)
                self._update(slot, r.fold, lanes, lambda: new)

            yield add
            r.finish(row, self._fold_lanes(self._current(slot, r.fold, lanes), r.fold))

        if not self.map(op.nest, follow):
            self.reduce(op.reduce)

    def _reduction(self, op: Reduce) -> _Reduction:
        src, dst, axis = self.tile(op.src), self.tile(op.dst), op.axis
        others = [d for d in _long(src.shape) if d != axis]
        outs = _squeezed(dst)
        fold = _fold(op.op, src.dtype, dst.dtype)

        def element(at: list[str], r: str, lanes: int) -> Val:
            place = self.place(src.kept([*others, axis]), [*at, r])
            return fold.prepare(self.read(src.dtype, place, lanes))

        def finish(at: list[str], total: Val) -> None:
            place = self.place(outs, at)
            if not op.clear:
                old = self.read(dst.dtype, place, total.lanes)
                total = fold.meet(total, cast(old, fold.acc))
            self.write(cast(total, dst.dtype), place)

        return _Reduction(src, axis, others, fold, element, finish)

    def reduce(self, op: Reduce) -> None:
        r = self._reduction(op)
        src, others, fold = r.src, r.others, r.fold
        down = src.strides[r.axis] == 1 or not others or src.strides[others[-1]] != 1
        with ExitStack() as stack:
            at = [
                stack.enter_context(self.fn.loop(0, src.shape[d], hint="row"))
                for d in (others if down else others[:-1])
            ]
            if down:
                r.finish(at, self._fold_row(r, at))
                return
            inner = src.shape[others[-1]]
            lanes = next((n for k in (4, 2, 1) if inner >= (n := k * fold.lanes)), 1)

            def column(j: str, count: int) -> None:
                slot = self._accumulator(fold, count)
                with self.fn.loop(0, src.shape[r.axis], hint="r") as k:
                    self._update(slot, fold, count, lambda: r.element([*at, j], k, count))
                r.finish([*at, j], self._current(slot, fold, count))

            self.along(inner, lanes, column)

    def _accumulator(self, fold: _Fold, lanes: int) -> str:
        slot = self.fn.alloca(type_of(fold.acc, lanes), "acc")
        self.fn.line(f"store {constant(self.fn, fold.neutral, fold.acc, lanes)}, ptr {slot}")
        return slot

    def _current(self, slot: str, fold: _Fold, lanes: int) -> Val:
        ref = self.fn.value(f"load {type_of(fold.acc, lanes)}, ptr {slot}")
        return Val(self.fn, ref, fold.acc, lanes)

    def _update(self, slot: str, fold: _Fold, lanes: int, element: Callable[[], Val]) -> None:
        old = self._current(slot, fold, lanes)
        self.fn.line(f"store {fold.meet(old, element())}, ptr {slot}")

    def _fold_row(self, r: _Reduction, at: list[str]) -> Val:
        """One row to one value: four accumulators' worth of lanes, then halves onto halves."""
        size, fold, lanes = r.src.shape[r.axis], r.fold, 1
        if r.src.strides[r.axis] == 1:
            lanes = next((n for n in (4 * fold.lanes, fold.lanes) if 1 < n <= size), 1)
        whole = size - size % lanes if lanes > 1 else 0
        single = self._accumulator(fold, 1)
        for start, stop, count in ((0, whole, lanes), (whole, size, 1)):
            if start == stop:
                continue
            slot = single if count == 1 else self._accumulator(fold, count)
            with self.fn.loop(start, stop, count, hint="r") as k:
                self._update(slot, fold, count, partial(r.element, at, k, count))
            if count > 1:
                total = self._fold_lanes(self._current(slot, fold, count), fold)
                self.fn.line(f"store {total}, ptr {single}")
        return self._current(single, fold, 1)

    def _fold_lanes(self, total: Val, fold: _Fold) -> Val:
        while total.lanes > 1:
            half = total.lanes // 2
            low = shuffle(total, total, list(range(half)))
            high = shuffle(total, total, list(range(half, total.lanes)))
            if half == 1:
                low, high = extract(total, 0), extract(total, 1)
            total = fold.meet(low, high)
        return total

    # ── scans ────────────────────────────────────────────────────────────────────────────────

    def scan(self, op: Scan) -> None:
        src, dst = self.tile(op.src), self.tile(op.dst)
        short, axis = _long(src.shape), op.axis
        size = src.shape[axis]
        rank = short.index(axis) if axis in short else None
        source, goals = _squeezed(src), _squeezed(dst)
        fold = _fold(op.op, src.dtype, dst.dtype)
        others = [d for d in range(len(short)) if d != rank]

        def walk(at: dict[int, str], lanes: int) -> None:
            slot = self._accumulator(fold, lanes)
            with self.fn.loop(0, size, hint="r") as r:
                where = self.fn.value(f"sub nsw i64 {size - 1}, {r}") if op.reverse else r
                place = [where if d == rank else at[d] for d in range(len(short))]
                value = fold.prepare(self.read(src.dtype, self.place(source, place), lanes))
                self._update(slot, fold, lanes, lambda: value)
                total = cast(self._current(slot, fold, lanes), dst.dtype)
                self.write(total, self.place(goals, place))

        inner = others[-1] if others else None
        vector = inner is not None and source.strides[inner] == 1 and goals.strides[inner] == 1
        with ExitStack() as stack:
            at = {
                d: stack.enter_context(self.fn.loop(0, source.shape[d], hint="row"))
                for d in (others[:-1] if vector else others)
            }
            if not vector or inner is None:
                walk(at, 1)
                return
            lanes = 2 * fold.lanes
            self.along(source.shape[inner], lanes, lambda j, n: walk({**at, inner: j}, n))

    # ── atomics ──────────────────────────────────────────────────────────────────────────────

    def atomic(self, op: Atomic) -> None:
        """One element per lane; tiles have become nests before."""
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
