"""Elementwise maps: loops around explicit vectors.

The innermost loop runs over the variable that most accesses are contiguous in. Guards and
conditions that are linear in it (`0 <= base + v < size`, `v < n - base`) become a range of `v`
worked out once per row: inside it vectors run without a check, the few elements outside it run
one by one with all checks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from math import prod

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.core import *
from tilewright.targets.cpu.emit_expr import ExprEmitter, Lanes, Mem
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.numbers import memory_type
from tilewright.targets.dlpack import row_major

_VECTOR_OPS = (Store, Let, If, For, Alloc, Atomic, Hint)


@dataclass(frozen=True)
class _Touch:
    """One element access in a map's body, and what is known where it stands."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    ranges: Ranges


@dataclass(frozen=True)
class _Bound:
    """A condition `v < limit` (or `v >= limit` for `low`), limit = sign · value + add."""

    low: bool
    value: Expr
    sign: int
    add: int
    size: Expr | None = None


# What is done to a row of a tile as it is written: of the row's indices and how many lanes a vector
# has, a context around its vectors, and in it what is called with the column of each.
RowFold = Callable[[list[str], int], AbstractContextManager[Callable[[str], None]]]


def _power(n: int) -> int:
    """The largest power of two up to `n`."""
    return 1 << (max(1, n).bit_length() - 1)


def lane_count(size: int, native: int, repeats: bool) -> int:
    """Several vectors at once, so that one's instructions fill the time another's take: four where
    they and the constants fit in registers (softmax 40 → 35 ms against two), fewer where those that
    are left over cost less. What is left of a row is done by one more that `repeats` some points,
    or else one by one.

    >>> lane_count(64, 16, True), lane_count(75, 16, True), lane_count(75, 16, False)
    (64, 16, 8)
    """
    most = 4 if host().vector_registers >= 32 else 2
    choices = [n for n in (most * native, 2 * native, native, native // 2) if 2 <= n <= size]

    def cost(lanes: int) -> float:
        vectors, left = divmod(size, lanes)
        each = max(1, lanes // native)
        return vectors * each + (each * (left > 0) if repeats else left)

    return min(choices, key=cost, default=1)


class MapEmitter(ExprEmitter):
    """`Map`, for bodies of statements that `ops` can emit."""

    holds: frozenset[Expr] = frozenset()
    viewed: Collection[str] = ()

    def ops(self, body: Body) -> None:
        raise NotImplementedError

    def map(self, op: Map, fold: RowFold | None = None) -> bool:
        """`fold` meets every row; where the map is not made of whole vectors along its last axis
        it does not, and the answer is False."""
        ranges = scope.inside(op, "body", self.ranges)
        touches = list(self._touches(op.body, ranges))
        axis, lanes = self._plan(op, touches)
        order = [i for i in range(len(op.vars)) if i != axis] + [axis]
        private = self._private(op.body)

        def loops(level: int) -> bool:
            var, extent = op.vars[order[level]], op.extents[order[level]]
            if level == len(order) - 1:
                inner = fold if axis == len(op.vars) - 1 else None
                return self._innermost(op, var, extent, lanes, touches, private, inner)
            with self.fn.loop(0, self.index(extent), hint=var.name) as at, self.scope():
                self.counters[var] = at
                return loops(level + 1)

        with self.scope(ranges):
            return loops(0)

    # ── choosing ─────────────────────────────────────────────────────────────────────────────

    def _touches(self, body: Body, ranges: Ranges) -> Iterator[_Touch]:
        for op, here in scope.walk_body(body, ranges):
            for load in op_loads(op):
                yield _Touch(load.buffer, load.indices, here)
            if isinstance(op, Store):
                yield _Touch(op.buffer, op.indices, here)
            elif isinstance(op, Atomic):
                yield _Touch(op.dst.buffer, op.dst.starts, here)

    def _plan(self, op: Map, touches: list[_Touch]) -> tuple[int, int]:
        """The vector axis, the last of the best, and how many lanes it gets (1: none)."""
        last = len(op.vars) - 1
        kinds = [list(self._kinds(var, touches)) for var in op.vars]
        best = max(range(last, -1, -1), key=lambda axis: sum(kinds[axis]))
        if all(kind == 1 for kind in kinds[last]):
            best = last
        if sum(kinds[best]) <= 0 or not self._vectorizable(op.body, op.vars[best]):
            return last, 1
        width = self._width(op.body, kinds[best], touches)
        return best, self._lane_count(op, op.extents[best], width)

    def _width(self, body: Body, kinds: list[float], touches: list[_Touch]) -> int:
        """Bits per lane that decide how many lanes there are: the widest element, and not less
        than 32 where something is computed or gathered."""
        bits = max([t.buffer.dtype.bits for t in touches] + [8])
        moves = all(isinstance(op, Store) and isinstance(op.value, Load) for op in body)
        return bits if moves and all(kind == 1 for kind in kinds) else max(bits, 32)

    def _kinds(self, var: Var, touches: list[_Touch]) -> Iterator[float]:
        """Per varying access: 1 for a contiguous one, less for a gathered one."""
        for touch in touches:
            if touch.buffer.is_local:
                continue
            steps = [stride_of(i, var, touch.ranges) for i in touch.indices]
            if all(step == 0 for step in steps):
                continue
            yield 1.0 if steps[-1] == 1 and not any(steps[:-1]) else -0.5

    def _lane_count(self, op: Map, extent: Expr, bits: int) -> int:
        native = host().lanes(min(bits, 64))
        if not isinstance(extent, Const):
            return 2 * native
        return lane_count(int(extent.value), native, self._repeats(op.body))

    def _vectorizable(self, body: Body, var: Var) -> bool:
        """Straight-line code and loops whose bounds all lanes share."""
        tainted = {var}
        private = {b.name for b in self._private(body)}

        def taints(e: Expr) -> bool:
            if isinstance(e, Var):
                return e in tainted
            if isinstance(e, Load) and e.buffer.name in private:
                return True
            return any(map(taints, e.children))

        for op in walk_ops(body):
            if not isinstance(op, _VECTOR_OPS):
                return False
            if isinstance(op, For) and any(taints(e) for e in (op.start, op.stop, op.step)):
                return False
            if isinstance(op, Let) and taints(op.value):
                tainted.add(op.var)
            if isinstance(op, Atomic) and op.result is not None:
                tainted.add(op.result)
        return True

    def _private(self, body: Body) -> list[Buffer]:
        """Local buffers the body writes: each iteration has its own."""
        found = {
            buffer.name: buffer
            for op in walk_ops(body)
            for buffer in (*written_buffers(op), *([op.buffer] if isinstance(op, Alloc) else []))
            if buffer.space is Space.LOCAL
        }
        return list(found.values())

    def _repeats(self, body: Body) -> bool:
        """Whether points may be done twice: nothing that is written is read."""
        ops = list(walk_ops(body))
        written = {op.buffer.name for op in ops if isinstance(op, Store) and not op.buffer.is_local}
        read = {load.buffer.name for op in ops for load in op_loads(op)}
        is_plain = all(isinstance(op, (Store, Let, Alloc, If)) for op in ops)
        return is_plain and not written & read and not (written & {*self.viewed})

    # ── ranges of the innermost variable ─────────────────────────────────────────────────────

    def _limits(
        self, op: Map, var: Var, touches: list[_Touch]
    ) -> tuple[list[_Bound], frozenset[tuple[Expr, Expr]], frozenset[Expr]]:
        """Bounds on `var` that make guards idle, which guards, and which conditions."""
        bounds: dict[_Bound, None] = {}
        assured: set[tuple[Expr, Expr]] = set()
        holds: set[Expr] = set()
        for touch in touches:
            for pair, new in self._index_bounds(touch, var):
                assured.add(pair)
                bounds.update(dict.fromkeys(new))
        for inner, ranges in self._conditional(op.body, self.ranges):
            for cond in conjuncts(inner.cond):
                bound = self._condition_bound(cond, var, ranges)
                if bound is not None:
                    bounds[bound] = None
                    holds.add(cond)
        return list(bounds), frozenset(assured), frozenset(holds)

    def _conditional(self, body: Body, ranges: Ranges) -> Iterator[tuple[If, Ranges]]:
        for op in body:
            if isinstance(op, For):
                yield from self._conditional(op.body, scope.inside(op, "body", ranges))
            ranges = scope.after(op, ranges)
            if isinstance(op, If):
                yield op, ranges

    def _index_bounds(
        self, touch: _Touch, var: Var
    ) -> Iterator[tuple[tuple[Expr, Expr], list[_Bound]]]:
        """The indices whose guards depend on `var`, with the sizes that they are compared with."""
        for idx, size in (
            () if touch.buffer.is_local else zip(touch.indices, touch.buffer.shape, strict=True)
        ):
            step = stride_of(idx, var, touch.ranges)
            if step not in (1, -1):
                continue
            kept, self.ranges = self.ranges, touch.ranges
            low, high = self.in_range(idx, size)
            self.ranges = kept
            at = self._hoisted(idx, var, touch.ranges)
            if (low and high) or at is None or not self._hoistable(size):
                continue
            up, add = step == 1, int(step == -1)
            new = [_Bound(up, at, -step, add)] * (not low)
            new += [_Bound(not up, at, -step, add, size)] * (not high)
            yield (idx, size), new

    def _seen_bounds(
        self, body: Body, var: Var, given: tuple[_Bound, ...] = ()
    ) -> dict[frozenset[_Bound], tuple[_Bound, ...]]:
        """By what anybody sees that a body does, the bounds on `var` outside of which it does
        nothing, in the order of the text; none of them where it may."""
        found: dict[frozenset[_Bound], tuple[_Bound, ...]] = {}
        kept = self.ranges
        for op in body:
            if isinstance(op, If) and not op.orelse:
                outside = self.ranges
                bounds = [self._condition_bound(c, var, outside) for c in conjuncts(op.cond)]
                self.ranges = scope.inside(op, "then", outside)
                found |= self._seen_bounds(op.then, var, (*given, *filter(None, bounds)))
                self.ranges = outside
            elif isinstance(op, Store) and not op.buffer.is_local:
                touch = _Touch(op.buffer, op.indices, self.ranges)
                own = (bound for _, new in self._index_bounds(touch, var) for bound in new)
                each = tuple(dict.fromkeys((*given, *own)))
                found.setdefault(frozenset(each), each)
            elif not isinstance(op, (Store, Let, Alloc)):
                found[frozenset()] = ()
            self.ranges = scope.after(op, self.ranges)
        self.ranges = kept
        return found

    def _hoistable(self, e: Expr) -> bool:
        return is_pure(e) and all(v in self.vars or v in self.counters for v in variables(e))

    def _hoisted(self, e: Expr, var: Var, ranges: Ranges) -> Expr | None:
        """`e` at var = 0, when it can be computed before the loop."""
        resolved = ranges.resolve(e, var)
        if resolved is None:
            return None
        first = substitute(resolved, {var: const(0, var.dtype)})
        return first if self._hoistable(first) else None

    def _condition_bound(self, cond: Expr, var: Var, ranges: Ranges) -> _Bound | None:
        ends = {"<": (False, 0), "<=": (False, 1), ">": (True, 1), ">=": (True, 0)}
        if not isinstance(cond, Cmp) or cond.op not in ends or cond.a.dtype.kind != "int":
            return None
        diff = cond.a - cond.b
        step = stride_of(diff, var, ranges)
        if step not in (1, -1):
            return None
        at = self._hoisted(diff, var, ranges)
        if at is None or not self._is_settled(cond, var, ranges):
            return None
        low, add = ends[cond.op]  # of v + at  op  0
        return _Bound(low, at, -1, add) if step == 1 else _Bound(not low, at, 1, 1 - add)

    def _is_settled(self, cond: Cmp, var: Var, ranges: Ranges) -> bool:
        """Neither side wraps, nor their difference in 64 bits."""
        sides = [ranges.resolve(x, var) for x in cond.children]
        a, b = (x for x in sides if x is not None)
        return all(map(ranges.settled, (a, b) if cond.a.dtype.bits < 64 else (a - b,)))

    def _range(self, bounds: list[_Bound], extent: str) -> tuple[str, str]:
        low, high = "0", extent
        for b in bounds:
            limit = self.index(b.value)
            if b.sign < 0:
                limit = self.fn.value(f"sub nsw i64 0, {limit}")
            if b.add:
                limit = self.fn.value(f"add nsw i64 {limit}, {b.add}")
            if b.size is not None:
                name = "sub" if b.low else "add"
                limit = self.fn.value(f"{name} nsw i64 {limit}, {self.index(b.size)}")
            if b.low:
                low = self.fn.intrinsic("llvm.smax.i64", "i64", ("i64", low), ("i64", limit))
            else:
                high = self.fn.intrinsic("llvm.smin.i64", "i64", ("i64", high), ("i64", limit))
        return low, high

    # ── emitting ─────────────────────────────────────────────────────────────────────────────

    def _innermost(
        self,
        op: Map,
        var: Var,
        extent: Expr,
        lanes: int,
        touches: list[_Touch],
        private: list[Buffer],
        fold: RowFold | None,
    ) -> bool:
        stop = self.index(extent)

        def single(at: str) -> None:
            with self.scope():
                self.counters[var] = at
                self._body(op, 1, private)

        if lanes == 1:
            with self.fn.loop(0, stop, hint=var.name) as at:
                single(at)
            return False
        bounds, assured, holds = self._limits(op, var, touches)
        if bounds and isinstance(extent, Const):  # which may leave a part of the tile
            lanes = max(min(lanes, host().lanes(32)), min(lanes, _power(int(extent.value) // 4)))
        low, high = self._range(bounds, stop)
        seen = [*self._seen_bounds(op.body, var).values()] if bounds else []
        start, stop = self._range([*seen[0]], stop) if len(seen) == 1 else ("0", stop)

        def vector(first: str) -> None:
            with self.scope():
                self.lanes = Lanes(var, lanes, first, assured)
                was, self.holds = self.holds, self.holds | holds
                self._body(op, lanes, private)
                self.holds = was

        if bounds or not isinstance(extent, Const) or int(extent.value) % lanes:
            self._split_loop(
                var, start, stop, low, high, lanes, self._repeats(op.body), vector, single
            )
            return False
        row = [self.counters[v] for v in op.vars if v is not var]
        with (
            fold(row, lanes) if fold is not None else nullcontext() as add,
            self.fn.loop(0, stop, lanes, hint=var.name) as at,
        ):
            vector(at)
            if add is not None:
                add(at)
        return fold is not None

    def _split_loop(
        self,
        var: Var,
        start: str,
        stop: str,
        low: str,
        high: str,
        lanes: int,
        repeats: bool,
        vector: Callable[[str], None],
        single: Callable[[str], None],
    ) -> None:
        """From start to stop: vectors while v … v + lanes - 1 lie in low … high - 1, else single
        elements. Where it `repeats`, the last vector ends at high - 1, and does some again."""
        fn, name = self.fn, var.name
        before, head, pick = (fn.label(f"{name}.{p}") for p in ("before", "head", "pick"))
        fast, slow, done = (fn.label(f"{name}.{p}") for p in ("vectors", "single", "done"))
        fast_end, slow_end = fn.label(f"{name}.vectors.end"), fn.label(f"{name}.single.end")
        at, wide, after_wide, after_one = (fn.name(name) for _ in range(4))

        def both(a: str, b: str) -> str:
            return fn.value(f"and i1 {a}, {b}")

        fn.start(before)
        fn.start(head)
        fn.line(
            f"{at} = phi i64 [ {start}, %{before} ], [ {after_wide}, %{fast_end} ], "
            f"[ {after_one}, %{slow_end} ]"
        )
        fn.branch(fn.value(f"icmp slt i64 {at}, {stop}"), pick, done)
        fn.start(pick)
        last = fn.value(f"sub nsw i64 {high}, {lanes}")
        fits = fn.value(f"icmp sle i64 {at}, {last}")
        first = at
        if repeats:  # where there is room for a vector, and something is left
            first = fn.intrinsic("llvm.smin.i64", "i64", ("i64", at), ("i64", last))
            fits = both(
                fn.value(f"icmp slt i64 {at}, {high}"), fn.value(f"icmp sge i64 {last}, {low}")
            )
        if low != "0":
            fits = both(fits, fn.value(f"icmp sge i64 {at}, {low}"))
        fn.branch(fits, fast, slow)
        fn.start(fast)
        fn.line(f"{wide} = phi i64 [ {first}, %{pick} ], [ {after_wide}, %{fast_end} ]")
        vector(wide)
        fn.start(fast_end)
        fn.line(f"{after_wide} = add nsw i64 {wide}, {lanes}")
        fn.branch(fn.value(f"icmp sle i64 {after_wide}, {last}"), fast, head)
        fn.start(slow)
        single(at)
        fn.start(slow_end)
        fn.line(f"{after_one} = add nsw i64 {at}, 1")
        fn.jump(head)
        fn.start(done)

    def _body(self, op: Map, lanes: int, private: list[Buffer]) -> None:
        """The statements of an iteration, with stack memory for local buffers, every element
        `lanes` wide."""
        for buffer in private:
            shape = buffer.static_shape
            type_ = f"[{lanes * prod(shape)} x {memory_type(buffer.dtype)}]"
            slot = self.fn.alloca(type_, buffer.name, align=16)
            self.mems[buffer.name] = Mem(buffer, slot, row_major(shape, lanes), lanes=lanes)
        self.ops(op.body)


# ── reductions of rows that a map has just written: folded in while values are in registers ─


class Folded(Op):
    """A map, and the reduction of the rows of a tile that it writes."""

    map: Map
    reduce: Reduce

    syntax = ""


def paired(body: Body, viewed: Collection[str]) -> Iterable[Op]:
    """`body` with reductions next to the maps that write what they reduce, as one. Maps between
    the two come first, where they have nothing to do with it."""
    done: list[Op] = []
    for op in body:
        at = _writer(done, op, viewed) if isinstance(op, Reduce) else None
        if at is None or not isinstance(op, Reduce):
            done.append(op)
            continue
        map_ = done.pop(at)
        assert isinstance(map_, Map)
        done.append(Folded(map_, op, loc=op.loc))
    return done


def _writer(before: list[Op], reduce: Reduce, viewed: Collection[str]) -> int | None:
    tile = reduce.src.buffer
    passed: set[str] = set()
    for at in range(len(before) - 1, -1, -1):
        op = before[at]
        if isinstance(op, Map) and tile.name in _names(op):
            fits = _writes_rows(op, reduce) and not _names(op) & (passed | set(viewed))
            return at if fits and reduce.dst.buffer.name not in _names(op) else None
        if not isinstance(op, (Map, Hint)) and not (isinstance(op, Alloc) and op.init is None):
            return None
        passed |= _names(op)
    return None


def _names(op: Op) -> set[str]:
    """Buffers that `op` touches or brings into being."""
    return {buffer.name for each in walk_ops(op) for buffer in named_buffers(each)}


def _writes_rows(map_: Map, reduce: Reduce) -> bool:
    """The map stores every element of the tile once, in its own place, and the reduction runs
    along its last axis."""
    src, dst, tile = reduce.src, reduce.dst, reduce.src.buffer
    if tile.space not in (Space.SHARED, Space.FRAGMENT) or not (src.is_whole and dst.is_whole):
        return False
    if any(walk_ops(map_, Intrinsic, Atomic)):
        return False
    shape, long = map_.extents, long_dims(tile.shape)
    if shape != tuple(tile.shape[d] for d in long) or not all(isinstance(n, Const) for n in shape):
        return False
    if not long or reduce.axis != long[-1] or dst.tile != shape[:-1]:
        return False
    stores = [op for op in walk_ops(map_.body, Store) if op.buffer == tile]
    own = whole(tile).at(map_.vars)
    return len(stores) == 1 and stores[0] in map_.body and stores[0].indices == own
