"""Expressions and memory: values, addresses, guards.

Code is emitted for one *lane context*: scalar, or `Lanes` of a map's innermost variable. A value
that does not depend on that variable stays a scalar until it meets one that does. Reads outside a
global tensor are redirected to a block of zeros by choosing the pointer, so no expression ever
branches; writes outside are branched around.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.dtype import DTYPES, INT64, DType
from tilewright.ir.expr import Bin, Call, Cast, Cmp, Const, Expr, Load, Select, Var, const
from tilewright.ir.expr import cast as cast_expr
from tilewright.ir.expr import compare as compare_expr
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.llvm_text import Function, Module, Size
from tilewright.targets.cpu.math import function
from tilewright.targets.cpu.numbers import *


@dataclass(frozen=True)
class Mem:
    """Where a buffer is, strides counted in elements. `lanes` > 0: private memory, in which that
    many lanes of an element lie together."""

    buffer: Buffer
    pointer: str
    strides: tuple[Size, ...]
    is_global: bool = False
    lanes: int = 0

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype


@dataclass(frozen=True)
class Strided:
    """Elements from a pointer on, for loops over them: extent and stride of each dimension."""

    pointer: str
    dtype: DType
    shape: tuple[int, ...]
    strides: tuple[Size, ...]

    def kept(self, dims: Sequence[int]) -> Strided:
        """These dimensions, in this order."""
        shape = tuple(self.shape[d] for d in dims)
        return Strided(self.pointer, self.dtype, shape, tuple(self.strides[d] for d in dims))


@dataclass
class Lanes:
    """The innermost variable of a map, `count` consecutive values of it from `first` on.

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


class ExprEmitter:
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

    @property
    def lane_count(self) -> int:
        return self.lanes.count if self.lanes is not None else 1

    # ── expressions ──────────────────────────────────────────────────────────────────────────

    def expr(self, e: Expr) -> Val:
        return self._eval(e)[0]

    def as_type(self, e: Expr, dtype: DType) -> Val:
        return cast(self.expr(e), dtype)

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
        if isinstance(e, Load):
            return self.load(e), False
        # reads that may turn out not to be wanted: their indices are checked, whatever they read
        was, lazily = (
            self.lazy,
            isinstance(e, Select) or (isinstance(e, Bin) and e.op in ("and", "or")),
        )
        parts = [self._eval(child) for child in e.children[:1]]
        self.lazy = was or lazily
        parts += [self._eval(child) for child in e.children[1:]]
        self.lazy = was
        values, pure = [value for value, _ in parts], all(p for _, p in parts)
        match e:
            case Const():
                return constant(self.fn, e.value, e.dtype), True
            case Var():
                return self._variable(e), True
            case Select():
                return choose(*values), pure
            case Bin("//" | "%", a, b) if e.dtype.kind == "int" and self._natural(a, b):
                unsigned = [replace(v, dtype=DTYPES[f"u{v.dtype.name}"]) for v in values]
                return replace(binary(e.op, *unsigned), dtype=e.dtype), pure
            case Bin():
                return binary(e.op, *values), pure
            case Cmp():
                return compare(e.op, *values), pure
            case Cast():
                return cast(values[0], e.dtype), pure
        assert isinstance(e, Call)
        return function(e.name, values, e.dtype), pure

    def _natural(self, a: Expr, b: Expr) -> bool:
        """Neither is negative, so that no quotient is to be rounded down: that takes longer."""
        sides = (compare_expr(">=", a, const(0, a.dtype)), compare_expr(">", b, const(0, b.dtype)))
        return all(self.ranges.prove(side, False) is True for side in sides)

    def _variable(self, v: Var) -> Val:
        lanes = self.lanes
        if lanes is not None and v is lanes.var and lanes.count > 1:
            steps = ", ".join(f"{type_of(v.dtype)} {i}" for i in range(lanes.count))
            base = self._from_counter(lanes.first, v.dtype)
            return base + Val(self.fn, f"<{steps}>", v.dtype, lanes.count)
        return self.vars[v] if v in self.vars else self._from_counter(self.counters[v], v.dtype)

    def _from_counter(self, ref: str, dtype: DType) -> Val:
        wide = Val(self.fn, ref, INT64)
        return replace(wide, dtype=dtype) if dtype.bits == 64 else convert("trunc", wide, dtype)

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
        return self._widen_index(extract(value, 0)).ref, pure

    def _known(self, e: Expr) -> bool:
        return isinstance(e, Const) or any(e in scope.indices for scope in self.scopes)

    def _widen_index(self, value: Val) -> Val:
        if value.dtype.bits == 64:
            return value
        return convert("sext" if value.dtype.kind == "int" else "zext", value, INT64)

    def varies(self, e: Expr) -> bool:
        """The value differs between the lanes of the current map."""
        if self.lane_count == 1:
            return False
        assert self.lanes is not None
        memo = self.scopes[-1].varies
        if e not in memo:
            if isinstance(e, Var):
                memo[e] = e is self.lanes.var or (e in self.vars and self.vars[e].lanes > 1)
            else:
                private = isinstance(e, Load) and self.mems[e.buffer.name].lanes > 1
                memo[e] = private or any(map(self.varies, e.children))
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
        low = self.ranges.prove(compare_expr(">=", idx, const(0, idx.dtype)), True)
        high = self.ranges.prove(compare_expr("<", idx, cast_expr(size, idx.dtype)), True)
        return low is True, high is True

    def access(self, mem: Mem, indices: tuple[Expr, ...]) -> Access:
        """Addresses of `buffer[indices]`, guarded where the analysis leaves doubt."""
        steps = [self._step(i) for i in indices]
        assured = self.lanes.assured if self.lanes else frozenset()
        checks = [
            check
            for check in self._checks(mem, indices)
            if (indices[check[0]], mem.buffer.shape[check[0]]) not in assured
        ]
        first = [self.index(i) for i in indices]
        private = mem.lanes > 1
        vector = private or any(map(self.varies, indices))
        move = self._flat_step(mem, steps, int(private))
        if not vector or (move == 1 and all(steps[dim] == 0 for dim, _, _ in checks)):
            ok = self._conditions(mem, first, checks)
            return Access([self.place(mem, first)], [ok], contiguous=vector)
        base = self.flat(mem.strides, first) if move is not None else ""
        vectors = {
            dim: self._widen_index(self.expr(idx))
            for dim, idx in enumerate(indices)
            if steps[dim] is None
        }
        found = Access([], [])
        for lane in range(self.lane_count):
            at = list(first)
            for dim, step in enumerate(steps):
                if step is None:
                    at[dim] = extract(vectors[dim], lane).ref
                elif step and lane:
                    at[dim] = self.fn.value(f"add nsw i64 {first[dim]}, {step * lane}")
            start, more = (base, move * lane) if move is not None else (
                self.flat(mem.strides, at), lane * private
            )  # fmt: skip
            offset = self.fn.value(f"add nsw i64 {start}, {more}") if more else start
            found.pointers.append(self.element(mem, offset))
            found.valid.append(self._conditions(mem, at, checks))
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

    def _flat_step(self, mem: Mem, steps: list[int | None], total: int) -> int | None:
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

    def place(self, mem: Mem | Strided, at: Sequence[str]) -> str:
        return self.element(mem, self.flat(mem.strides, at))

    def element(self, mem: Mem | Strided, offset: Size) -> str:
        if offset in ("0", 0):
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
        mem = self.mems[e.buffer.name]
        found = self.access(mem, e.indices)
        count = self.lane_count if found.contiguous else 1
        return gather([
            self.read(mem.dtype, self._or_zeros(pointer, ok), count)
            for pointer, ok in zip(found.pointers, found.valid, strict=True)
        ])  # fmt: skip

    def _or_zeros(self, pointer: str, ok: str | None) -> str:
        if ok is None:
            return pointer
        return self.fn.value(f"select i1 {ok}, ptr {pointer}, ptr {self.zeros()}", "p")

    def read(self, dtype: DType, pointer: str, lanes: int = 1) -> Val:
        """Elements from memory; booleans become i1."""
        type_ = vector(memory_type(dtype), lanes)
        ref = self.fn.value(f"load {type_}, ptr {pointer}, align {item_bytes(dtype)}")
        if dtype.is_bool:
            zero = "0" if lanes == 1 else "zeroinitializer"
            ref = self.fn.value(f"icmp ne {type_} {ref}, {zero}")
        # a sub-byte integer's upper bits are zero in memory, copies of its sign in a register
        return wrap(Val(self.fn, ref, dtype, lanes))

    def write(self, value: Val, pointer: str) -> None:
        dtype = value.dtype
        type_ = vector(memory_type(dtype), value.lanes)
        if dtype.is_bool:
            value = value.next(f"zext {value} to {type_}")
        elif dtype.kind == "int" and dtype.packed:
            value = value & ((1 << dtype.bits) - 1)
        self.fn.line(f"store {type_} {value.ref}, ptr {pointer}, align {item_bytes(dtype)}")

    # ── stores ───────────────────────────────────────────────────────────────────────────────

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], value: Val) -> None:
        mem = self.mems[buffer.name]
        value = cast(value, mem.dtype)
        lanes = self.lane_count
        found = self.access(mem, indices)
        pointers, valid = found.pointers, found.valid
        if found.contiguous:
            with self.fn.when(valid[0], "inside"):
                self._store_vector(mem, pointers[0], splat(value, lanes))
            return
        chosen = list(range(len(pointers)))
        if len(pointers) < lanes:
            # a uniform place in a vector map: lanes write in order, the last one wanted stays
            chosen = list(range(lanes)) if self.mask is not None else [lanes - 1]
        for lane in chosen:
            at = lane if len(pointers) > 1 else 0
            condition = self.wanted(lane, valid[at])
            part = extract(value, lane)
            with self.fn.when(condition, "inside"):
                self.write(part, pointers[at])

    def wanted(self, lane: int, valid: str | None) -> str | None:
        """An i1 that says whether a lane is to be stored; None when it always is."""
        if self.mask is None:
            return valid
        mine = extract(self.mask, lane).ref
        return mine if valid is None else self.fn.value(f"and i1 {mine}, {valid}")

    def _store_vector(self, mem: Mem, pointer: str, value: Val) -> None:
        if self.mask is None:
            self.write(value, pointer)
            return
        mask = splat(self.mask, value.lanes)
        if not mem.is_global:
            # the lanes left out are this worker's own, so they may be written back
            old = self.read(mem.dtype, pointer, value.lanes)
            self.write(choose(mask, value, old), pointer)
            return
        for lane in range(value.lanes):
            with self.fn.when(extract(mask, lane).ref, "lane"):
                at = self.element(replace(mem, pointer=pointer), str(lane))
                self.write(extract(value, lane), at)
