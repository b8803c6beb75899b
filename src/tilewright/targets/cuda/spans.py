"""What integers of thread code lie between: enough to tell which sums C++ may compute as signed.

One walk over a kernel, without conditions: names are unique, so a variable has one interval.
Arithmetic on sizes and indices alone is index arithmetic, which does not overflow (`ir.bounds`);
that counts where sizes are known at launch only, for intervals decide the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tilewright.ir.analysis.intervals import BINARY, BIT, Value, add, join, limits, multiply, single
from tilewright.ir.core import *


class Spans:
    """Intervals of the integer expressions of one kernel."""

    def __init__(self, kernel: Kernel | None = None, dims: Iterable[Dim] = ()) -> None:
        self.dims = tuple(dims)
        self._known: dict[Expr, Value] = {}
        self._sized: dict[Expr, bool | None] = {}
        if kernel is None:
            return
        self._walk(kernel)
        counters = _Counters(self, kernel)
        if counters.found:  # once more, with what they are now known to be
            self._known = {Load(buffer, ()): span for buffer, span in counters.found.items()}
            self._sized = {Load(buffer, ()): buffer in counters.sized for buffer in counters.found}
            self._walk(kernel)

    def sized(self, e: Expr) -> bool | None:
        """Of arithmetic on sizes and indices alone, whether sizes known at launch are in it; None
        of what depends on data."""
        if e not in self._sized:
            parts = [self.sized(child) for child in e.children]
            data = isinstance(e, (Var, Load)) or None in parts
            self._sized[e] = None if data else True in parts
        return self._sized[e]

    def _index(self, var: Var, *parts: Expr) -> None:
        """`var` is an index if all that it is made of is."""
        found = [self.sized(part) for part in parts]
        self._sized[var] = None if None in found else True in found

    def _walk(self, kernel: Kernel) -> None:
        for dim in self.dims:
            most = limits(dim.var.dtype).hi if dim.max is None else dim.max
            self._known[dim.var] = Value(dim.min, most)
            self._sized[dim.var] = True
        for at, (var, extent) in enumerate(zip(kernel.blocks, kernel.grid, strict=True)):
            self._sized[var] = not isinstance(extent, Const)
            if isinstance(extent, Var):  # a size, too; there is a block, and clusters are whole
                self._sized[extent] = True
                least = (*kernel.cluster, 1, 1, 1)[at]
                self._known[extent] = Value(least, self.of(extent).hi)
        for var in (*kernel.thread_vars, *([] if kernel.rank is None else [kernel.rank])):
            self._sized[var] = False
        for var, extent in zip(kernel.blocks, kernel.grid, strict=True):
            self._count(var, single(0), self.exact(extent), 1)
        for var, count in zip(kernel.thread_vars, kernel.threads, strict=True):
            self._known[var] = Value(0, count - 1)
        if kernel.rank is not None:
            self._known[kernel.rank] = Value(0, prod(kernel.cluster) - 1)
        for op in walk_ops(kernel.body):
            match op:
                case Let() if op.var.dtype.is_int:
                    self._known[op.var] = self.of(op.value)
                    self._index(op.var, op.value)
                case For():
                    self._index(op.var, op.start, op.stop)
                    by = self.of(op.step)
                    self._count(op.var, self.exact(op.start), self.exact(op.stop), by.lo)
                case Role() if op.var is not None:
                    self._known[op.var] = Value(0, op.instances - 1)
                    self._sized[op.var] = False
                case Intrinsic(name="warp_index") if op.result is not None:
                    self._sized[op.result] = False
                    self._known[op.result] = Value(0, max(1, prod(kernel.threads) // 32) - 1)

    def _count(self, var: Var, start: Value, stop: Value, step: int) -> None:
        full = limits(var.dtype)
        if step > 0:  # else anything
            low, high = max(start.lo, full.lo), min(stop.hi - 1, full.hi)
            self._known[var] = Value(low, max(low, high))

    def of(self, e: Expr) -> Value:
        """The values of `e`, which wraps."""
        found = self._known.get(e)
        if found is None:
            exact = self._compute(e)
            found = self._known[e] = exact if _within(exact, e.dtype) else limits(e.dtype)
        return found

    def exact(self, e: Expr) -> Value:
        """The values of the outermost operation over the integers: they may not fit its type."""
        return self._known[e] if isinstance(e, Var) and e in self._known else self._compute(e)

    def fits(self, e: Expr) -> bool:
        """The outermost operation of `e` does not overflow."""
        return _within(self._compute(e), e.dtype) or self.sized(e) is True

    def _compute(self, e: Expr) -> Value:
        if isinstance(e, Const):
            return single(int(e.value))
        if e.dtype.is_bool:
            return BIT
        match e:
            case Bin("+", a, b):
                return add(self.of(a), self.of(b))
            case Bin("-", a, b):
                return add(self.of(a), _negated(self.of(b)))
            case Bin("*", a, b):
                return multiply(self.of(a), self.of(b))
            case Bin("min" | "max" as op, a, b):
                x, y = self.of(a), self.of(b)
                pick = min if op == "min" else max
                return Value(pick(x.lo, y.lo), pick(x.hi, y.hi))
            case Bin(op, a, b) if op in BINARY:
                return BINARY[op](self.of(a), self.of(b))
            case Select(_, a, b):
                return join(self.of(a), self.of(b))
            case Cast(_, a) if not a.dtype.is_float:
                return self.of(a)
            case Call("neg", (a,)):
                return _negated(self.of(a))
            case Call("abs", (a,)):
                x = self.of(a)
                return Value(0, max(abs(x.lo), abs(x.hi)))
            case Call("popcount" | "clz", (a,)):
                return Value(0, a.dtype.bits)
        return limits(e.dtype)


class _Counters:
    """Scalars of a thread that only grow by constants, so often that they stay in their type: as
    intervals show, or because they count iterations of loops over sizes known at launch."""

    def __init__(self, spans: Spans, kernel: Kernel) -> None:
        self.spans = spans
        self.loops: list[For | While] = []
        self.sized: set[Buffer] = set()  # as often as sizes say that are known at launch
        self.depth: dict[Buffer, int] = {}
        self.base: dict[Buffer, Value] = {}
        self.growth: dict[Buffer, int] = {}  # but for such iterations
        self.counted: dict[Buffer, int] = {}  # these
        self.body(kernel.body)
        self.found: dict[Buffer, Value] = {}
        for b, v in self.base.items():
            least, most = v.hi + self.growth[b], limits(b.dtype).hi
            grown = Value(v.lo, least + self.counted[b])
            if _within(grown, b.dtype):
                self.found[b] = grown
            elif b in self.sized and least <= most // 2:
                self.found[b] = Value(v.lo, most)

    def body(self, body: Body) -> None:
        for op in body:
            if isinstance(op, Alloc):
                self.alloc(op.buffer, op.init)
            elif isinstance(op, Store):
                self.store(op)
            elif not isinstance(op, Hint):
                for operand in operands(op):
                    written = operand.buffer if isinstance(operand, Region) else operand
                    if isinstance(written, Buffer):
                        self.base.pop(written, None)
            if isinstance(op, (For, While)):
                self.loops.append(op)
            for f in marked(op, "body"):
                self.body(getattr(op, f.name))
            if isinstance(op, (For, While)):
                self.loops.pop()

    def alloc(self, buffer: Buffer, init: Expr | None) -> None:
        scalar = buffer.space is Space.LOCAL and not buffer.rank and buffer.dtype.is_int
        if scalar and isinstance(init, Const):
            self.depth[buffer] = len(self.loops)
            self.growth[buffer] = self.counted[buffer] = 0
            self.base[buffer] = single(int(init.value))

    def trips(self, op: For) -> int:
        by, stop = max(1, self.spans.of(op.step).lo), self.spans.exact(op.stop)
        return max(0, -((self.spans.exact(op.start).lo - stop.hi) // by))

    def store(self, op: Store) -> None:
        buffer, base = op.buffer, self.base.get(op.buffer)
        if base is None:
            return
        around = self.loops[self.depth[buffer] :]
        loops = [loop for loop in around if isinstance(loop, For)]
        match op.value:
            case Const(value):
                self.base[buffer] = join(base, single(int(value)))
            case Bin("+", Load(counted, ()), Const(more)) if (
                counted == buffer and more >= 0 and len(loops) == len(around)
            ):
                ends = [self.spans.sized(e) for loop in loops for e in (loop.start, loop.stop)]
                counts = more == 1 and None not in ends and True in ends
                if counts:
                    self.sized.add(buffer)
                grown = self.counted if counts else self.growth
                grown[buffer] += int(more) * prod(map(self.trips, loops))
            case _:
                del self.base[buffer]


def _within(x: Value, dtype: DType) -> bool:
    full = limits(dtype)
    return full.lo <= x.lo and x.hi <= full.hi


def _negated(x: Value) -> Value:
    return Value(-x.hi, -x.lo)


def below(x: Value, dtype: DType) -> bool:
    """A count that a shift of this type's width takes as it is."""
    return x.lo >= 0 and x.hi < dtype.bits
