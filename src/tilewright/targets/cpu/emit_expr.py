"""Expressions and memory: values, addresses, guards.

Code is emitted for one *lane context*: scalar, or `Lanes` of a nest's innermost variable. A value
that does not depend on that variable stays a scalar until it meets one that does. Reads outside a
global tensor are redirected to a block of zeros by choosing the pointer, so no expression ever
branches; writes outside are branched around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.dtype import BOOL, INT64, DType
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Select,
    Var,
    compare,
    const,
)
from tilewright.ir.expr import cast as cast_expr
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.llvm_text import Function, Module
from tilewright.targets.cpu.math import Math
from tilewright.targets.cpu.numbers import (
    Val,
    item_bytes,
    memory_type,
    type_of,
    vector,
)

Size = int | str  # a constant, or an i64 value


@dataclass(frozen=True)
class Mem:
    """Where a buffer is. `lanes` > 0: private memory in which each element is that many lanes."""

    buffer: Buffer
    pointer: str
    strides: tuple[Size, ...]
    is_global: bool = False
    lanes: int = 0

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


class Placed(Protocol):
    """Elements of one type from a pointer on."""

    @property
    def pointer(self) -> str: ...
    @property
    def dtype(self) -> DType: ...


@dataclass
class Lanes:
    """The innermost variable of a nest, `count` consecutive values of it from `first` on.

    `assured`: (index, size) pairs that the choice of the range has made idle.
    """

    var: Var
    count: int
    first: str
    assured: frozenset[tuple[Expr, Expr]] = frozenset()


@dataclass
class Access:
    """One element (or vector, or one per lane) of a buffer: pointers and when they are valid."""

    pointers: list[str]
    valid: list[str | None]
    contiguous: bool = False


@dataclass
class _Scope:
    values: dict[Expr, Val] = field(default_factory=dict)
    indices: dict[Expr, str] = field(default_factory=dict)
    varies: dict[Expr, bool] = field(default_factory=dict)


ZEROS = 1024


def row_major(shape: tuple[int, ...]) -> tuple[int, ...]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))


class ExprEmitter(Math):
    """Values of expressions, appended to `fn`."""

    def __init__(self, module: Module, fn: Function, ranges: Ranges) -> None:
        self.module = module
        self.fn = fn
        self.ranges = ranges
        self.vars: dict[Var, Val] = {}
        self.counters: dict[Var, str] = {}
        self.mems: dict[str, Mem] = {}
        self.lanes: Lanes | None = None
        self.mask: Val | None = None
        self.lazy = False
        self.scopes = [_Scope()]
        self.at_op: dict[Expr, Val] = {}

    @contextmanager
    def scope(self, ranges: Ranges | None = None) -> Iterator[None]:
        """Names, values and facts that end with the block of code being emitted."""
        kept = self.ranges, dict(self.vars), dict(self.counters), dict(self.mems), self.lanes
        mask, lazy = self.mask, self.lazy
        self.ranges = ranges or self.ranges
        self.scopes.append(_Scope())
        self.at_op = {}
        yield
        self.scopes.pop()
        self.at_op = {}
        self.ranges, self.vars, self.counters, self.mems, self.lanes = kept
        self.mask, self.lazy = mask, lazy

    # ── expressions ──────────────────────────────────────────────────────────────────────────

    def expr(self, e: Expr) -> Val:
        return self._eval(e)[0]

    def as_type(self, e: Expr, dtype: DType) -> Val:
        return self.cast(self.expr(e), dtype)

    def scalar(self, e: Expr) -> Val:
        found = self.expr(e)
        if found.lanes != 1:
            raise CompileError(
                "a value that differs between iterations is used where one is needed"
            )
        return found

    def _eval(self, e: Expr) -> tuple[Val, bool]:
        """The value, and whether it is pure (so that it may be used again later)."""
        for scope in reversed(self.scopes):
            found = scope.values.get(e)
            if found is not None:
                return found, True
        found = self.at_op.get(e)
        if found is not None:
            return found, False
        value, pure = self._compute(e)
        if pure:
            self.scopes[-1].values[e] = value
        elif not isinstance(e, Load) or not self.lazy:
            self.at_op[e] = value
        return value, pure

    def _compute(self, e: Expr) -> tuple[Val, bool]:
        match e:
            case Const():
                return self.constant(e.value, e.dtype), True
            case Var():
                return self._variable(e), True
            case Load():
                return self.load(e), False
            case Select():
                cond, pure = self._eval(e.cond)
                with self._lazily():
                    (a, p), (b, q) = self._eval(e.a), self._eval(e.b)
                return self.choose_lanes(cond, a, b), pure and p and q
            case Bin("and" | "or"):
                a, p = self._eval(e.a)
                with self._lazily():
                    b, q = self._eval(e.b)
                return self.binary(e.op, a, b), p and q
            case Bin():
                (a, p), (b, q) = self._eval(e.a), self._eval(e.b)
                return self.binary(e.op, a, b), p and q
            case Cmp():
                (a, p), (b, q) = self._eval(e.a), self._eval(e.b)
                return self.compare(e.op, a, b), p and q
            case Cast():
                a, p = self._eval(e.a)
                return self.cast(a, e.dtype), p
            case Call():
                parts = [self._eval(a) for a in e.args]
                value = self.function(e.name, [v for v, _ in parts], e.dtype)
                return value, all(p for _, p in parts)
        raise CompileError(f"the CPU target cannot evaluate a {type(e).__name__}")

    @contextmanager
    def _lazily(self) -> Iterator[None]:
        """Reads may turn out not to be wanted: their indices are checked, whatever they read."""
        was, self.lazy = self.lazy, True
        yield
        self.lazy = was

    def _variable(self, v: Var) -> Val:
        lanes = self.lanes
        if lanes is not None and v is lanes.var and lanes.count > 1:
            base = self._from_counter(lanes.first, v.dtype)
            steps = ", ".join(f"{type_of(v.dtype)} {i}" for i in range(lanes.count))
            return self.instruction("add", base, Val(f"<{steps}>", v.dtype, lanes.count))
        if v in self.vars:
            return self.vars[v]
        if v in self.counters:
            return self._from_counter(self.counters[v], v.dtype)
        raise CompileError(f"variable {v.name} is used where nothing defines it")

    def _from_counter(self, ref: str, dtype: DType) -> Val:
        if dtype.bits == 64:
            return Val(ref, dtype)
        return self.convert("trunc", Val(ref, INT64), dtype)

    # ── indices ──────────────────────────────────────────────────────────────────────────────

    def index(self, e: Expr) -> str:
        """An integer expression as an i64, for the first lane. Indices do not overflow."""
        if isinstance(e, Const):
            return str(int(e.value))
        for scope in reversed(self.scopes):
            if e in scope.indices:
                return scope.indices[e]
        ref, pure = self._index(e)
        if pure:
            self.scopes[-1].indices[e] = ref
        return ref

    def _index(self, e: Expr) -> tuple[str, bool]:
        if isinstance(e, Var):
            if self.lanes is not None and e is self.lanes.var:
                return self.lanes.first, True
            if e in self.counters:
                return self.counters[e], True
        if isinstance(e, Bin) and e.op in ("+", "-", "*") and e.dtype.bits >= 32:
            name = {"+": "add", "-": "sub", "*": "mul"}[e.op]
            a, b = self.index(e.a), self.index(e.b)
            pure = self._known(e.a) and self._known(e.b)
            return self.fn.value(f"{name} nsw i64 {a}, {b}", "at"), pure
        if isinstance(e, Cast) and e.a.dtype.is_int and e.dtype.bits >= e.a.dtype.bits:
            return self.index(e.a), self._known(e.a)
        value, pure = self._eval(e)
        return self._widen_index(self.lane(value, 0)).ref, pure

    def _known(self, e: Expr) -> bool:
        return isinstance(e, Const) or any(e in scope.indices for scope in self.scopes)

    def _widen_index(self, value: Val) -> Val:
        if value.dtype.bits == 64:
            return value
        if value.dtype.is_bool:
            return self.convert("zext", value, INT64)
        return self.convert("sext" if value.dtype.kind == "int" else "zext", value, INT64)

    def varies(self, e: Expr) -> bool:
        """The value differs between the lanes of the current nest."""
        if self.lanes is None or self.lanes.count == 1:
            return False
        memo = self.scopes[-1].varies
        if e not in memo:
            if isinstance(e, Var):
                memo[e] = e is self.lanes.var or (e in self.vars and self.vars[e].lanes > 1)
            elif isinstance(e, Load) and self.mems[e.buffer.name].lanes > 1:
                memo[e] = True
            else:
                memo[e] = any(self.varies(child) for child in e.children)
        return memo[e]

    def _step(self, e: Expr) -> int | None:
        """How an index grows from lane to lane, when that is a constant."""
        if not self.varies(e):
            return 0
        assert self.lanes is not None
        resolved = self.ranges.resolve(e, self.lanes.var)
        if resolved is None or self._irregular(resolved):
            return None
        return stride_of(e, self.lanes.var, self.ranges)

    def _irregular(self, e: Expr) -> bool:
        """Something in `e` differs between lanes in another way than the lane's index."""
        if isinstance(e, (Load, Var)):
            assert self.lanes is not None
            return e is not self.lanes.var and self.varies(e)
        return any(map(self._irregular, e.children))

    # ── addresses ────────────────────────────────────────────────────────────────────────────

    def in_range(self, idx: Expr, size: Expr) -> tuple[bool, bool]:
        """(0 ≤ idx, idx < size), as far as can be shown."""
        low = self.ranges.prove(compare(">=", idx, const(0, idx.dtype)), True)
        high = self.ranges.prove(compare("<", idx, cast_expr(size, idx.dtype)), True)
        return low is True, high is True

    def access(self, mem: Mem, indices: tuple[Expr, ...]) -> Access:
        """Addresses of `buffer[indices]`, guarded where the analysis leaves doubt."""
        lanes = self.lanes.count if self.lanes else 1
        steps = [self._step(i) for i in indices]
        checks = self._checks(mem, indices)
        assured = self.lanes.assured if self.lanes else frozenset()
        open_checks = [c for c in checks if (indices[c[0]], mem.buffer.shape[c[0]]) not in assured]
        first = [self.index(i) for i in indices]
        if not any(self.varies(i) for i in indices):
            ok = self._conditions(mem, first, open_checks)
            return Access([self.place(mem, first)], [ok])
        move = self._flat_step(mem, steps)
        uniform = all(steps[dim] == 0 for dim, _, _ in open_checks)
        if uniform and move == 1:
            ok = self._conditions(mem, first, open_checks)
            return Access([self.place(mem, first)], [ok], contiguous=True)
        base = self.flat(mem.strides, first) if move is not None else ""
        vectors = {
            dim: self._widen_index(self.expr(idx))
            for dim, idx in enumerate(indices)
            if steps[dim] is None
        }
        found = Access([], [])
        for lane in range(lanes):
            at = list(first)
            for dim, step in enumerate(steps):
                if step is None:
                    at[dim] = self.lane(vectors[dim], lane).ref
                elif step and lane:
                    at[dim] = self.fn.value(f"add nsw i64 {first[dim]}, {step * lane}")
            if move is None:
                offset = self.flat(mem.strides, at)
            else:
                offset = self.fn.value(f"add nsw i64 {base}, {move * lane}") if lane else base
            found.pointers.append(self.element(mem, offset))
            found.valid.append(self._conditions(mem, at, open_checks))
        return found

    def _checks(self, mem: Mem, indices: tuple[Expr, ...]) -> list[tuple[int, bool, bool]]:
        """Dimensions with an index that may be outside, and which side is known to be inside.
        Tiles too: what lies next to one is another's memory."""
        sides = [(d, *self.in_range(i, mem.buffer.shape[d])) for d, i in enumerate(indices)]
        return [(dim, low, high) for dim, low, high in sides if not (low and high)]

    def corner(self, mem: Mem, region: Region) -> str | None:
        """The distance of a region's first element from the buffer's start. One that may reach
        beyond a tile is moved inside; None of a tensor's, which no tile operation reads so."""
        at = []
        for start, extent, size in zip(
            region.starts, region.extents, region.buffer.shape, strict=True
        ):
            low = self.in_range(start, size)[0]
            high = self.in_range(start + extent - 1, size)[1]
            ref = self.index(start)
            if mem.is_global and not (low and high):
                return None
            last = self.index(size - extent)
            for known, test, limit in ((high, "sgt", last), (low, "slt", "0")):
                if not known:
                    beyond = self.fn.value(f"icmp {test} i64 {ref}, {limit}", "beyond")
                    ref = self.fn.value(f"select i1 {beyond}, i64 {limit}, i64 {ref}", "inside")
            at.append(ref)
        return self.flat(mem.strides, at)

    def _flat_step(self, mem: Mem, steps: list[int | None]) -> int | None:
        total = 0
        for step, stride in zip(steps, mem.strides, strict=True):
            if step == 0:
                continue
            if step is None or isinstance(stride, str):
                return None
            total += step * stride
        return total

    def _conditions(
        self, mem: Mem, at: list[str], checks: list[tuple[int, bool, bool]]
    ) -> str | None:
        """An i1 that says whether the element exists; None when it always does."""
        found = None
        for dim, low, high in checks:
            size = self.index(mem.buffer.shape[dim])
            if low:
                text = f"icmp slt i64 {at[dim]}, {size}"
            elif high:
                text = f"icmp sge i64 {at[dim]}, 0"
            else:
                # as unsigned numbers, negative indices are large ones
                text = f"icmp ult i64 {at[dim]}, {size}"
            ok = self.fn.value(text, "inside")
            found = ok if found is None else self.fn.value(f"and i1 {found}, {ok}", "inside")
        return found

    def flat(self, strides: Sequence[Size], at: Sequence[str]) -> str:
        """The distance of an element from the first, in elements."""
        total = "0"
        for idx, stride in zip(at, strides, strict=True):
            if idx == "0":
                continue
            term = idx if stride == 1 else self.fn.value(f"mul nsw i64 {idx}, {stride}")
            total = term if total == "0" else self.fn.value(f"add nsw i64 {total}, {term}")
        return total

    def place(self, mem: Mem, at: Sequence[str]) -> str:
        return self.element(mem, self.flat(mem.strides, at))

    def element(self, mem: Placed, offset: str) -> str:
        if offset == "0":
            return mem.pointer
        return self.fn.value(
            f"getelementptr {memory_type(mem.dtype)}, ptr {mem.pointer}, i64 {offset}", "p"
        )

    def zeros(self) -> str:
        self.module.globals["zeros"] = (
            f"@zeros = internal constant [{ZEROS} x i8] zeroinitializer, align 64"
        )
        return "@zeros"

    # ── loads ────────────────────────────────────────────────────────────────────────────────

    def load(self, e: Load) -> Val:
        mem = self.memory(e.buffer)
        if mem.lanes:
            return self._private_load(mem, e.indices)
        found = self.access(mem, e.indices)
        lanes = self.lanes.count if self.lanes else 1
        if found.contiguous:
            return self.read(mem.dtype, self._or_zeros(found, 0), lanes)
        parts = [self.read(mem.dtype, self._or_zeros(found, i)) for i in range(len(found.pointers))]
        return parts[0] if len(parts) == 1 else self.gather(parts)

    def memory(self, buffer: Buffer) -> Mem:
        mem = self.mems.get(buffer.name)
        if mem is None:
            raise CompileError(f"buffer {buffer.name} is used where nothing allocates it")
        return mem

    def _or_zeros(self, access: Access, i: int) -> str:
        ok = access.valid[i]
        if ok is None:
            return access.pointers[i]
        return self.fn.value(f"select i1 {ok}, ptr {access.pointers[i]}, ptr {self.zeros()}", "p")

    def read(self, dtype: DType, pointer: str, lanes: int = 1) -> Val:
        """Elements from memory; booleans become i1."""
        type_ = vector(memory_type(dtype), lanes)
        ref = self.fn.value(f"load {type_}, ptr {pointer}, align {item_bytes(dtype)}")
        if dtype.is_bool:
            zero = "0" if lanes == 1 else "zeroinitializer"
            ref = self.fn.value(f"icmp ne {type_} {ref}, {zero}")
        # a sub-byte integer's upper bits are zero in memory, copies of its sign in a register
        return self.wrap(Val(ref, dtype, lanes))

    def write(self, value: Val, pointer: str) -> None:
        dtype, ref = value.dtype, value.ref
        type_ = vector(memory_type(dtype), value.lanes)
        if dtype.is_bool:
            ref = self.fn.value(f"zext {type_of(BOOL, value.lanes)} {ref} to {type_}")
        elif dtype.kind == "int" and dtype.packed:
            ref = self.instruction("and", value, (1 << dtype.bits) - 1).ref
        self.fn.line(f"store {type_} {ref}, ptr {pointer}, align {item_bytes(dtype)}")

    def _private_access(self, mem: Mem, indices: tuple[Expr, ...]) -> Access:
        """One pointer to all lanes of the element, or one per lane when the index varies."""
        checks = self._checks(mem, indices)
        if not any(self.varies(i) for i in indices):
            at = [self.index(i) for i in indices]
            ok, pointer = self._conditions(mem, at, checks), mem.pointer
            if (offset := self.flat(mem.strides, at)) != "0":
                type_ = vector(memory_type(mem.dtype), mem.lanes)
                text = f"getelementptr {type_}, ptr {pointer}, i64 {offset}"
                pointer = self.fn.value(text, "p")
            return Access([pointer], [ok], contiguous=True)
        found = Access([], [])
        values = [self._widen_index(self.splat(self.expr(i), mem.lanes)) for i in indices]
        for lane in range(mem.lanes):
            at = [self.lane(v, lane).ref for v in values]
            scaled = self.fn.value(f"mul nsw i64 {self.flat(mem.strides, at)}, {mem.lanes}")
            place = self.fn.value(f"add nsw i64 {scaled}, {lane}")
            found.pointers.append(self.element(mem, place))
            found.valid.append(self._conditions(mem, at, checks))
        return found

    def _private_load(self, mem: Mem, indices: tuple[Expr, ...]) -> Val:
        found = self._private_access(mem, indices)
        pointers = [self._or_zeros(found, i) for i in range(len(found.pointers))]
        if found.contiguous:
            return self.read(mem.dtype, pointers[0], mem.lanes)
        return self.gather([self.read(mem.dtype, p) for p in pointers])

    # ── stores ───────────────────────────────────────────────────────────────────────────────

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Val) -> None:
        mem = self.memory(buffer)
        value = self.cast(value, mem.dtype)
        if mem.lanes:
            self._private_store(mem, indices, value)
            return
        lanes = self.lanes.count if self.lanes else 1
        found = self.access(mem, indices)
        if found.contiguous:
            self._store_vector(mem, found, self.splat(value, lanes))
            return
        pointers, valid = found.pointers, found.valid
        chosen = list(range(len(pointers)))
        if len(pointers) < lanes:
            # a uniform place in a vector nest: lanes write in order, the last one wanted stays
            chosen = list(range(lanes)) if self.mask is not None else [lanes - 1]
        for lane in chosen:
            at = lane if len(pointers) > 1 else 0
            condition = self.wanted(lane, valid[at])
            part = self.lane(value, lane)
            with self.fn.when(condition, "inside"):
                self.write(part, pointers[at])

    def wanted(self, lane: int, valid: str | None) -> str | None:
        """An i1 that says whether a lane is to be stored; None when it always is."""
        if self.mask is None:
            return valid
        mine = self.lane(self.mask, lane).ref
        return mine if valid is None else self.fn.value(f"and i1 {mine}, {valid}")

    def _store_vector(self, mem: Mem, access: Access, value: Val) -> None:
        with self.fn.when(access.valid[0], "inside"):
            self._store_masked(mem, access.pointers[0], value)

    def _store_masked(self, mem: Mem, pointer: str, value: Val) -> None:
        if self.mask is None:
            self.write(value, pointer)
            return
        mask = self.splat(self.mask, value.lanes)
        if not mem.is_global:
            # the lanes left out are this worker's own, so they may be written back
            old = self.read(mem.dtype, pointer, value.lanes)
            self.write(self.choose_lanes(mask, value, old), pointer)
            return
        for lane in range(value.lanes):
            with self.fn.when(self.lane(mask, lane).ref, "lane"):
                at = self.fn.value(
                    f"getelementptr {memory_type(mem.dtype)}, ptr {pointer}, i64 {lane}", "p"
                )
                self.write(self.lane(value, lane), at)

    def _private_store(self, mem: Mem, indices: tuple[Expr, ...], value: Val) -> None:
        value = self.splat(value, mem.lanes)
        found = self._private_access(mem, indices)
        if found.contiguous:
            self._store_vector(mem, found, value)
            return
        for lane, (pointer, ok) in enumerate(zip(found.pointers, found.valid, strict=True)):
            with self.fn.when(self.wanted(lane, ok), "lane"):
                self.write(self.lane(value, lane), pointer)
