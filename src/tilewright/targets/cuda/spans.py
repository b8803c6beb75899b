"""What integers of thread code lie between: enough to tell which sums C++ may compute as signed.

One walk over a kernel, without conditions: names are unique, so a variable has one interval.
Arithmetic on sizes and indices alone is index arithmetic, which does not overflow (`ir.bounds`);
that counts where sizes are known at launch only, for intervals decide the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.analysis.intervals import Value, add, fits, join, limits, multiply, single
from tilewright.ir.core import *


class Spans:
    """What the integer expressions of one kernel lie between."""

    def __init__(self, kernel: Kernel | None = None, dims: Iterable[Dim] = ()) -> None:
        self.ranges = Ranges()
        loops = [] if kernel is None else [*walk_ops(kernel, For)]
        self.unrolled = {op.var for op in loops if op.kind == "unroll"}
        self.counted = {op.var for op in loops} - self.unrolled
        if kernel is None:
            return
        self.ranges = _walked(kernel, scope.entry(kernel, dims))
        counters = _Counters(self, kernel)
        if counters.found:  # once more, with what they are now known to be
            known: dict[Expr, Value] = {
                Load(buffer, ()): span for buffer, span in counters.found.items()
            }
            sized: dict[Expr, bool] = {
                Load(buffer, ()): buffer in counters.sized for buffer in counters.found
            }
            self.ranges = _walked(kernel, scope.entry(kernel, dims).where_known(known, sized))

    def sized(self, e: Expr) -> bool | None:
        """Of arithmetic on sizes and indices alone, whether sizes known at launch are in it; None
        of what depends on data."""
        return self.ranges.sized(e)

    def of(self, e: Expr) -> Value:
        """The values of `e`, which wraps."""
        return self.ranges.value(e, False)

    def exact(self, e: Expr) -> Value:
        """The values of the outermost operation over the integers: they may not fit its type."""
        match e:
            case Bin("+" | "-" | "*" as op, a, b):
                x, y = self.of(a), self.of(b)
                return multiply(x, y) if op == "*" else add(x, y if op == "+" else _negated(y))
            case Call("neg", (a,)):
                return _negated(self.of(a))
            case Call("abs", (a,)):
                x = self.of(a)
                return Value(0, max(abs(x.lo), abs(x.hi)))
        return self.of(e)

    def fits(self, e: Expr) -> bool:
        """The outermost operation of `e` does not overflow."""
        return fits(self.exact(e), e.dtype) or self.sized(e) is True

    def apart(self, index: Expr, stride: str) -> tuple[Expr, Expr | None]:
        """`index`, which a loop counts up, less what unrolled loops add to it, and that: a constant
        of the address. Inside the product of 64 bits, the compiler would count up an address for
        each of their iterations."""
        match index:
            case Bin("+", a, b) if stride.isdecimal() and {*variables(a)} & self.counted:
                rest, offset = self.apart(a, stride)
                span, names = self.of(b), {*variables(b)}
                small = span.lo >= 0 < span.hi * int(stride) <= limits(INT32).hi // 2
                if names and names <= self.unrolled and small and not loads(b):
                    return rest, b if offset is None else offset + b
        return index, None


def _walked(kernel: Kernel, ranges: Ranges) -> Ranges:
    """Names are unique: what holds of one where it is bound holds wherever it is read."""
    for op in walk_ops(kernel.body):
        match op:
            case Let() if op.var.dtype.is_int:
                ranges = ranges.let(op.var, op.value)
            case For():
                ranges = ranges.loop(op.var, op.start, op.stop, op.step)
            case Role() if op.var is not None:
                ranges = ranges.where(op.var, 0, op.instances - 1)
            case Intrinsic(name="warp_index") if op.result is not None:
                ranges = ranges.where(op.result, 0, max(1, kernel.thread_count // 32) - 1)
    return ranges


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
            if fits(grown, b.dtype):
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


def _negated(x: Value) -> Value:
    return Value(-x.hi, -x.lo)


def below(x: Value, dtype: DType) -> bool:
    """A count that a shift of this type's width takes as it is."""
    return x.lo >= 0 and x.hi < dtype.bits
