"""Reductions, scans and atomics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from math import prod

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, DType
from tilewright.ir.expr import Const
from tilewright.ir.op import Atomic, Reduce, Scan
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Mem
from tilewright.targets.cpu.folds import Folded
from tilewright.targets.cpu.gemm import GemmEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.numbers import FLOAT64, Val, element_type, memory_type, type_of

_ORDERS = {name: name for name in ("acquire", "release", "acq_rel", "seq_cst")}
_ORDERS["relaxed"] = "monotonic"


@dataclass(frozen=True)
class _Side:
    """A region under loops: its first element and, per tile dimension, extent and stride."""

    mem: Mem
    pointer: str
    extents: tuple[int, ...]
    strides: tuple[int | str, ...]

    @property
    def dtype(self) -> DType:
        return self.mem.dtype

    def kept(self, dims: Sequence[int]) -> _Side:
        extents = tuple(self.extents[d] for d in dims)
        return _Side(self.mem, self.pointer, extents, tuple(self.strides[d] for d in dims))


@dataclass(frozen=True)
class _Reduction:
    """`element(others, r, lanes)` reads what is folded, `finish(others, total)` writes a result."""

    src: _Side
    axis: int
    others: list[int]
    acc: DType
    neutral: float | int
    combine: Callable[[Val, Val], Val]
    element: Callable[[list[str], str, int], Val]
    finish: Callable[[list[str], Val], None]


class _Rows:
    """A reduction that follows a nest row by row."""

    def __init__(self, emitter: TileEmitter, reduction: _Reduction) -> None:
        self.emitter, self.reduction = emitter, reduction
        self.row: list[str] = []
        self.lanes = 1
        self.slot = ""

    def start(self, row: list[str], lanes: int) -> None:
        self.row, self.lanes = row, lanes
        r = self.reduction
        self.slot = self.emitter._accumulator(r.acc, r.neutral, lanes)

    def add(self, column: str) -> None:
        r = self.reduction
        new = r.element(self.row, column, self.lanes)
        self.emitter._update(self.slot, r.acc, self.lanes, lambda old: r.combine(old, new))

    def end(self) -> None:
        r = self.reduction
        total = self.emitter._current(self.slot, r.acc, self.lanes)
        r.finish(self.row, self.emitter._fold_lanes(total, r.combine))


def _squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    return tuple(n for n in shape if n != 1)


class TileEmitter(GemmEmitter):
    """`Reduce`, `Scan`, `Atomic`."""

    def _side(self, region: Region) -> _Side:
        mem = self.memory(region.buffer)
        if region.cta is not None or mem.lanes > 1:
            raise CompileError(f"{region.buffer.name} cannot be reached by a tile operation here")
        if not all(isinstance(e, Const) for e in region.extents):
            raise CompileError(
                f"the extents of {region.buffer.name} are known only at launch",
                fix="give tiles constant sizes",
            )
        offset = self.corner(mem, region)
        if offset is None:
            raise CompileError(
                f"this reads {region.buffer.name} in global memory, maybe outside it",
                fix="copy the tile to a fragment first",
            )
        sizes = tuple(int(e) for e in region.extents)
        return _Side(mem, self.element(mem, offset), sizes, mem.strides)

    def _place(self, side: _Side, at: Sequence[str]) -> str:
        return self.element(side, self.flat(side.strides, at))

    # ── reductions ───────────────────────────────────────────────────────────────────────────

    def _reduced_axis(self, op: Reduce, src: _Side, dst: _Side) -> tuple[_Side, int]:
        """`dim` counts the dimensions that are not 1, or all of them when the reduced one is 1
        itself: the reading that fits dst's shape."""
        short = src.kept([d for d, n in enumerate(src.extents) if n != 1])
        for side, axis in ((short, op.dim), (src, op.dim % max(len(src.extents), 1))):
            if axis < len(side.extents):
                left = side.extents[:axis] + side.extents[axis + 1 :]
                if _squeezed(left) == _squeezed(dst.extents):
                    return side, axis
        raise CompileError(
            f"reducing dimension {op.dim} of a tile {src.extents} does not give {dst.extents}"
        )

    def _wide(self, src: DType, dst: DType) -> DType:
        """Sums run in the wider of the two types, narrow floats in float32."""
        if src.is_float or dst.is_float:
            return FLOAT64 if 64 in (d.bits for d in (src, dst) if d.is_float) else FLOAT32
        if src.kind == dst.kind and src.is_int:
            return DTYPES[f"{src.kind}{max(32, src.bits, dst.bits)}"]
        return DTYPES["int64"]

    def _combiner(
        self, op: str, wide: DType
    ) -> tuple[DType, Callable[[Val], Val], Callable[[Val, Val], Val], float | int]:
        """(accumulator type, what is done to each element, how two meet, neutral element)."""
        low = -float("inf") if wide.is_float else wide.min_value
        high = float("inf") if wide.is_float else wide.max_value

        def same(x: Val) -> Val:
            return x

        rows: dict[str, tuple[Callable[[str, Val, Val], Val], str, Callable[[Val], Val], float]] = {
            "sum": (self.binary, "+", same, 0),
            "abssum": (self.binary, "+", self.absolute, 0),
            "max": (self.keep_nan, "max", same, low),
            "min": (self.keep_nan, "min", same, high),
            "absmax": (self.keep_nan, "max", self.absolute, 0),
            "max_num": (self.binary, "max", same, low),  # NaN is skipped: max(NaN, x) is x
            "min_num": (self.binary, "min", same, high),
            "absmax_num": (self.binary, "max", self.absolute, 0),
            "and": (self.binary, "&", same, -1 if wide.kind == "int" else wide.max_value),
            "or": (self.binary, "|", same, 0),
            "xor": (self.binary, "^", same, 0),
            "any": (self.binary, "or", self.nonzero, 0),
            "all": (self.binary, "and", self.nonzero, 1),
        }
        if op not in rows:
            raise CompileError(f"unknown reduction {op!r}")
        meet, how, prepare, neutral = rows[op]
        return BOOL if op in ("any", "all") else wide, prepare, partial(meet, how), neutral

    def folded(self, op: Folded) -> None:
        if not self.map(op.nest, _Rows(self, self._reduction(op.reduce))):
            self.reduce(op.reduce)

    def _reduction(self, op: Reduce) -> _Reduction:
        src, dst = self._side(op.src), self._side(op.dst)
        src, axis = self._reduced_axis(op, src, dst)
        others = [d for d in range(len(src.extents)) if d != axis and src.extents[d] != 1]
        outs = dst.kept([d for d, n in enumerate(dst.extents) if n != 1])
        wide = self._wide(src.mem.dtype, dst.mem.dtype)
        acc, prepare, combine, neutral = self._combiner(op.op, wide)

        def element(at: list[str], r: str, lanes: int) -> Val:
            place = self._place(src.kept([*others, axis]), [*at, r])
            x = self.read(src.mem.dtype, place, lanes)
            return prepare(self.cast(x, wide) if acc is not BOOL else x)

        def finish(at: list[str], total: Val) -> None:
            place = self._place(outs, at)
            if not op.clear:
                old = self.read(dst.mem.dtype, place, total.lanes)
                old = self.nonzero(old) if acc is BOOL else self.cast(old, acc)
                total = combine(total, old)
            self.write(self.cast(total, dst.mem.dtype), place)

        return _Reduction(src, axis, others, acc, neutral, combine, element, finish)

    def reduce(self, op: Reduce) -> None:
        r = self._reduction(op)
        src, others = r.src, r.others
        down = src.strides[r.axis] == 1 or not others or src.strides[others[-1]] != 1
        with ExitStack() as stack:
            at = [
                stack.enter_context(self.fn.loop("0", str(src.extents[d]), hint="row"))[0]
                for d in (others if down else others[:-1])
            ]
            if down:
                r.finish(at, self._fold_row(r, at))
                return
            native = host().lanes(r.acc.bits if r.acc is not BOOL else 8)
            inner = src.extents[others[-1]]
            lanes = next((n for n in (4 * native, 2 * native, native) if inner >= n), 1)

            def column(j: str, count: int) -> None:
                slot = self._accumulator(r.acc, r.neutral, count)
                with self.fn.loop("0", str(src.extents[r.axis]), hint="r") as (k, _, _):
                    new = partial(r.element, [*at, j], k, count)
                    self._update(slot, r.acc, count, lambda old: r.combine(old, new()))
                r.finish([*at, j], self._current(slot, r.acc, count))

            self.along(inner, lanes, column)

    def _accumulator(self, acc: DType, neutral: float | int, lanes: int) -> str:
        slot = self.fn.alloca(type_of(acc, lanes), "acc")
        first = self.constant(neutral, acc, lanes)
        self.fn.line(f"store {type_of(acc, lanes)} {first.ref}, ptr {slot}")
        return slot

    def _current(self, slot: str, acc: DType, lanes: int) -> Val:
        return Val(self.fn.value(f"load {type_of(acc, lanes)}, ptr {slot}"), acc, lanes)

    def _update(self, slot: str, acc: DType, lanes: int, fn: Callable[[Val], Val]) -> None:
        new = fn(self._current(slot, acc, lanes))
        self.fn.line(f"store {type_of(acc, lanes)} {new.ref}, ptr {slot}")

    def _fold_row(self, r: _Reduction, at: list[str]) -> Val:
        """One row to one value: four accumulators' worth of lanes, then halves onto halves."""
        size = r.src.extents[r.axis]
        native = host().lanes(r.acc.bits if r.acc is not BOOL else 8)
        lanes = 1
        if r.src.strides[r.axis] == 1:
            lanes = next((n for n in (4 * native, native) if 1 < n <= size), 1)
        whole = size - size % lanes if lanes > 1 else 0
        single = self._accumulator(r.acc, r.neutral, 1)
        if whole:
            slot = self._accumulator(r.acc, r.neutral, lanes)
            with self.fn.loop("0", str(whole), str(lanes), hint="r") as (k, _, _):
                self._update(
                    slot, r.acc, lanes, lambda old: r.combine(old, r.element(at, k, lanes))
                )
            total = self._fold_lanes(self._current(slot, r.acc, lanes), r.combine)
            self.fn.line(f"store {type_of(r.acc)} {total.ref}, ptr {single}")
        if size - whole:
            with self.fn.loop(str(whole), str(size), hint="r") as (k, _, _):
                self._update(single, r.acc, 1, lambda old: r.combine(old, r.element(at, k, 1)))
        return self._current(single, r.acc, 1)

    def _fold_lanes(self, total: Val, combine: Callable[[Val, Val], Val]) -> Val:
        while total.lanes > 1:
            half = total.lanes // 2
            low = self.shuffle(total, total, list(range(half)))
            high = self.shuffle(total, total, list(range(half, total.lanes)))
            if half == 1:
                low, high = self.lane(total, 0), self.lane(total, 1)
            total = combine(low, high)
        return total

    # ── scans ────────────────────────────────────────────────────────────────────────────────

    def scan(self, op: Scan) -> None:
        src, dst = self._side(op.src), self._side(op.dst)
        axis = op.dim % len(src.extents)
        short = [d for d, n in enumerate(src.extents) if n != 1]
        if op.dim < len(short):
            axis = short[op.dim]
        if _squeezed(src.extents) != _squeezed(dst.extents):
            raise CompileError("the shapes of a scan do not match")
        size = src.extents[axis]
        rank = short.index(axis) if axis in short else None
        goals = dst.kept([d for d, n in enumerate(dst.extents) if n != 1])
        source = src.kept(short)
        wide = self._wide(src.mem.dtype, dst.mem.dtype)
        acc, prepare, combine, neutral = self._combiner(op.op, wide)
        others = [d for d in range(len(short)) if d != rank]

        def walk(at: dict[int, str], lanes: int) -> None:
            slot = self._accumulator(acc, neutral, lanes)
            with self.fn.loop("0", str(size), hint="r") as (r, _, _):
                where = self.fn.value(f"sub nsw i64 {size - 1}, {r}") if op.reverse else r
                place = [where if d == rank else at[d] for d in range(len(short))]
                x = self.read(src.mem.dtype, self._place(source, place), lanes)
                value = prepare(self.cast(x, wide))
                self._update(slot, acc, lanes, lambda old: combine(old, value))
                total = self.cast(self._current(slot, acc, lanes), dst.mem.dtype)
                self.write(total, self._place(goals, place))

        inner = others[-1] if others else None
        vector = inner is not None and source.strides[inner] == 1 and goals.strides[inner] == 1
        with ExitStack() as stack:
            at = {
                d: stack.enter_context(self.fn.loop("0", str(source.extents[d]), hint="row"))[0]
                for d in (others[:-1] if vector else others)
            }
            if not vector or inner is None:
                walk(at, 1)
                return
            lanes = 2 * host().lanes(acc.bits)
            self.along(source.extents[inner], lanes, lambda j, n: walk({**at, inner: j}, n))

    # ── atomics ──────────────────────────────────────────────────────────────────────────────

    def atomic(self, op: Atomic) -> None:
        """One element per lane; tiles have become nests before."""
        mem = self.memory(op.dst.buffer)
        if op.src is not None or prod(int(e) for e in op.dst.extents) != 1:
            raise CompileError("an atomic on a tile must be expanded first", loc=op.loc)
        if mem.dtype.packed:
            raise CompileError(f"{mem.dtype} is packed and has no atomics", loc=op.loc)
        value = None if op.value is None else self.as_type(op.value, mem.dtype)
        lanes = self.lanes.count if self.lanes else 1
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
                self.write(self.constant(0, mem.dtype), slot)
            part = None if value is None else self.lane(value, i)
            with self.fn.when(ok, "inside"):
                self._atomic_element(op, mem, pointer, part, slot)
            if op.result is not None:
                old.append(self.read(mem.dtype, slot))
        if op.result is not None:
            self.vars[op.result] = old[0] if len(old) == 1 else self.gather(old)

    def _atomic_element(
        self, op: Atomic, mem: Mem, pointer: str, value: Val | None, slot: str
    ) -> None:
        order = _ORDERS.get(op.order, "seq_cst")
        dtype, align = mem.dtype, max(8, mem.dtype.bits) // 8
        bits = f"i{max(8, dtype.bits)}"
        if not mem.is_global:
            # a block's threads take turns, so its own memory needs no bus lock
            old = self.read(dtype, pointer)
            if op.op != "load":
                self.write(self._meet(op.op, old, value), pointer)
            self.write(old, slot)
            return
        if op.op == "load":
            order = order if order != "release" else "seq_cst"
            ref = self.fn.value(f"load atomic {bits}, ptr {pointer} {order}, align {align}")
            self.fn.line(f"store {bits} {ref}, ptr {slot}")
            return
        assert value is not None
        if op.op == "store":
            order = order if order not in ("acquire", "acq_rel") else "seq_cst"
            word = self._word(value, bits)
            self.fn.line(f"store atomic {bits} {word}, ptr {pointer} {order}, align {align}")
            return
        name = self._native_atomic(op.op, dtype)
        if name is not None:
            type_ = element_type(dtype)
            ref = self.fn.value(f"atomicrmw {name} ptr {pointer}, {type_} {value.ref} {order}")
            self.fn.line(f"store {type_} {ref}, ptr {slot}")
            return
        self._compare_and_swap(op.op, dtype, pointer, value, slot, order, bits)

    def _native_atomic(self, op: str, dtype: DType) -> str | None:
        if dtype.is_int and dtype.bits >= 8:
            signed = "" if dtype.kind == "int" else "u"
            names = {"add": "add", "and": "and", "or": "or", "xor": "xor", "exch": "xchg",
                     "max": f"{signed}max", "min": f"{signed}min"}  # fmt: skip
            return names.get(op)
        if dtype.name in ("float32", "float64"):
            return {"add": "fadd", "exch": "xchg"}.get(op)
        return None

    def _word(self, value: Val, bits: str) -> str:
        type_ = element_type(value.dtype)
        if value.dtype.is_bool:
            return self.fn.value(f"zext i1 {value.ref} to {bits}")
        return (
            value.ref if type_ == bits else self.fn.value(f"bitcast {type_} {value.ref} to {bits}")
        )

    def _meet(self, op: str, old: Val, value: Val | None) -> Val:
        assert value is not None
        if op in ("exch", "store"):
            return value
        names = {"add": "+", "and": "&", "or": "|", "xor": "^"}
        return self.binary(names.get(op, op), old, value)

    def _compare_and_swap(
        self, op: str, dtype: DType, pointer: str, value: Val, slot: str, order: str, bits: str
    ) -> None:
        again, done = self.fn.label("again"), self.fn.label("swapped")
        first = self.fn.value(
            f"load atomic {bits}, ptr {pointer} monotonic, align {max(8, dtype.bits) // 8}"
        )
        self.fn.line(f"store {bits} {first}, ptr {slot}")
        self.fn.start(again)
        expected = self.fn.value(f"load {bits}, ptr {slot}")
        new = self._word(self._meet(op, self.read(dtype, slot), value), bits)
        failure = "acquire" if order in ("acquire", "acq_rel") else "monotonic"
        failure = "seq_cst" if order == "seq_cst" else failure
        pair = self.fn.value(
            f"cmpxchg ptr {pointer}, {bits} {expected}, {bits} {new} {order} {failure}"
        )
        seen = self.fn.value(f"extractvalue {{ {bits}, i1 }} {pair}, 0")
        self.fn.line(f"store {bits} {seen}, ptr {slot}")
        self.fn.branch(self.fn.value(f"extractvalue {{ {bits}, i1 }} {pair}, 1"), done, again)
        self.fn.start(done)
