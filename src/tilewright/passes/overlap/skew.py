"""Statements of two iterations of a loop side by side, so that units wait less for each other.

A loop whose iteration goes tensor core → threads → tensor core keeps one of them idle. With the
second product *late*, one iteration behind the rest, an iteration issues the next first product
and this second one, and the threads' work runs under them:

    for k { S = Q·K[k]; P = f(S); O += P·V[k] }

    S = Q·K[0]; P = f(S)
    for k from 1 { S = Q·K[k]; O += P·V[k - 1]; P = f(S) }
    O += P·V[last]

Each statement still runs once per iteration, in an order that keeps every dependence, so nothing
is copied and the meaning stays. `find_skew` tries every product, with what must follow it, as the
late part; puts the statements of each in order (products as early as they may be, the one that
more waits for first); and takes the one whose modelled interval is shortest.

A product that begins anew in every iteration, and whose result threads then fold into something
else, has nothing beside it but itself. There, what follows it is late, and two iterations have a
tile each for the result (`copies`), as far as registers go:

    for k { T = A[k]·B[k]; C += T * s[k] }

    T = A[0]·B[0]
    for k from 1 by 2 { U = A[k]·B[k]; C += T * s[k - 1]; T = A[k + 1]·B[k + 1]; C += U * s[k] }
    C += T * s[last]  (or U, and one more product)

It is for a warpgroup that computes alone, or for those who ask (`-skew`). Several that a producer
feeds fall out of step, and each one's threads compute under another's products: on an H200
attention runs 0 to 2 % slower skewed (head 128 707 → 691, causal the same; head 64 528 → 515, 501 →
490).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from tilewright.ir.analysis.accesses import Graph
from tilewright.ir.analysis.lifetimes import overwrites
from tilewright.passes.core import *
from tilewright.passes.overlap.rings import RingFill, Skew
from tilewright.passes.overlap.roles import handed_over, warpgroups
from tilewright.passes.overlap.unit_times import TENSOR, cycles, load_cycles, unit_of

GAIN = 0.95  # of the interval: less is not worth the code
ROUNDS = 6  # iterations that are simulated
REGISTERS = 208  # of a thread that fragments may fill; the rest is addresses and the like
SPARE = 32  # that rest


def find_skew(
    kernel: Kernel, loop: For, fills: Sequence[RingFill], *, asked: bool = False
) -> Skew | str:
    """How the statements of `loop` but the copies of `fills`, which a producer makes, best lie side
    by side; or why they do not. `asked`: they shall, worth it or not."""
    if any(isinstance(op, Let) and loads(op.value) for op in loop.body):
        return "a scalar in the loop is read from memory"
    if any(isinstance(op, (Alloc, View)) for op in loop.body):
        return "tiles are allocated in the loop"
    views, made = aliases(kernel), {fill.at for fill in fills}
    body = _Statements(
        loop.body,
        [k for k, op in enumerate(loop.body) if k not in made and not isinstance(op, Let)],
        views,
    )
    if loop.stages > 1:  # a product reads its slot while the next one's is filled
        body.renewed = {b.name: b for b in _renewed(kernel, loop, body.all, views)}
    if loop.order is not None:
        return _pinned(loop, body)
    if not asked:
        body.rings = [Held(fill.uses, load_cycles(fill.tile), loop.stages) for fill in fills]
    products = [k for k in body.all if body.units[k] == TENSOR]
    if len(products) < 2 and not body.renewed:
        return "it has fewer than two gemms on the tensor core"
    # of one product, what follows it: on an H200, fp8 with block scales 1105 → 1173 TFLOP/s and
    # 1091 → 1206 (4096×4096×7168, 8192³), though two warpgroups share the tensor core
    if not asked and warpgroups(kernel) > 1 and len(products) > 1:
        return "other warpgroups already hide the latency"
    plain, needed = body.interval(body.all), registers(kernel)
    short = GAIN * plain
    beside = [body.following(p) for p in products] if len(products) > 1 else []
    found, why = body.best(beside), f"no order of its statements takes less than {plain:.0f} cycles"
    if found is None or found.interval > short:
        # copies take registers: only where nothing else helps
        anew = [p for p in products if any(body.touched[p].get(n) for n in body.renewed)]
        behind = [body.following(p) - {p} for p in anew]
        wanted = body.best(behind, copies=True)
        if wanted is not None and (found is None or wanted.interval < found.interval):
            more = needed + sum(registers_of(b, kernel) for b in wanted.copies)
            if more <= fragment_room(kernel) and (wanted.interval <= short or asked):
                return wanted
            if wanted.interval <= short:
                twice = " and ".join(b.name for b in wanted.copies)
                why = f"two of {twice} would take {more} registers of a thread"
    if found is None or (found.interval > short and not asked):
        return why
    if needed > REGISTERS and not asked:
        return f"its fragments take {needed} registers of a thread"
    return found


def _renewed(kernel: Kernel, loop: For, statements: Sequence[int], views: Aliases) -> list[Buffer]:
    """Results of products that every iteration of `loop` begins anew, and nobody uses elsewhere:
    iterations may have one each."""
    outside = used_outside(kernel.body, {loop.var}) | views.viewed
    results = {op.c.buffer for k in statements if isinstance(op := loop.body[k], Gemm)}
    return [
        tile
        for tile in sorted(results, key=lambda b: b.name)
        if tile.is_fragment
        and tile.is_static
        and tile.name not in outside
        and overwrites(next(op for op in loop.body if tile.name in touched(op)), tile.name)
    ]


def _pinned(loop: For, body: _Statements) -> Skew | str:
    """What `order` and `stage` of the loop say of the statements that no producer makes; copies,
    products and maps count, names that are only bound do not. Of their stages only which are later
    matters: how far copies run ahead is `num_stages`' business."""
    counted = [k for k, op in enumerate(loop.body) if not isinstance(op, (Let, Hint, Alloc))]
    order, stage = loop.order or (), loop.stage or ()
    if len(order) != len(counted):
        return f"order has {len(order)} entries for {len(counted)} statements"
    places, stages = dict(zip(counted, order, strict=True)), dict(zip(counted, stage, strict=True))
    kinds = sorted({stages[k] for k in body.all})
    if len(kinds) > 2 or kinds[-1] - kinds[0] > 1:
        return f"stages {', '.join(map(str, kinds))} are more than two that follow each other"
    late = frozenset(k for k in body.all if len(kinds) == 2 and stages[k] == kinds[1])
    chosen = sorted(body.all, key=lambda k: (places[k], k))
    before = body.before(late, copies=True)
    for at, k in enumerate(chosen):
        if missing := before[k] - set(chosen[:at]):
            first = loop.body[min(missing)]
            raise CompileError(
                "order and stage of T.Pipelined change what the loop computes",
                loc=loop.body[k].loc or loop.loc,
                expected=f"this after the statement {at_line(first.loc)}, which touches the same",
                got=f"order={list(order)}, stage={list(stage)}",
                fix="leave both out: the compiler finds an order",
            )
    if not late:
        return "order and stage put it in one stage"
    return body.skew(chosen, late, copies=True)


def registers(kernel: Kernel) -> int:
    """Of a thread, for all fragments of `kernel` at once, were they spread evenly."""
    return sum(
        registers_of(op.buffer, kernel)
        for op in walk_ops(kernel, Alloc)
        if op.buffer.is_fragment and op.buffer.is_static
    )


def registers_of(tile: Buffer, kernel: Kernel) -> int:
    """Of a thread, for one fragment that is spread evenly."""
    return -(-tile.bytes // (4 * kernel.thread_count))


def fragment_room(kernel: Kernel) -> int:
    """Registers that fragments may fill where a producer has given up some of its own."""
    _, taken = handed_over(warpgroups(kernel))
    return REGISTERS if taken is None else min(REGISTERS, taken - SPARE)


class Held(NamedTuple):
    """What a slot goes through: `load` cycles until its bytes are there, then its `uses`; there are
    `slots` of them."""

    uses: Sequence[int]
    load: float
    slots: int


class _Statements:
    """The statements `all` of a loop's body: `conflicts` are those that touch the same, `waits`
    the products whose end a statement waits for."""

    def __init__(self, body: Body, which: Iterable[int], views: Aliases) -> None:
        self.all = sorted(which)
        self.rings: Sequence[Held] = ()
        self.renewed: Mapping[str, Buffer] = {}
        self.units = {k: unit_of(body[k]) for k in self.all}
        self.cycles = {k: cycles(body[k]) for k in self.all}
        graph = Graph(body, views, loops=True)
        self.touched, self.names = graph.touched, graph.names
        self.conflicts = {
            a: {b for b in self.all if a != b and (a, b) in graph.names} for a in self.all
        }
        self.waits = {
            k: {p for p in found if not _accumulate(body[k], body[p])}
            for k, found in self.conflicts.items()
        }

    def skew(self, order: Sequence[int], late: frozenset[int], copies: bool) -> Skew:
        twice = self.copies(order, late) if copies else ()
        interval = self.interval(order, late, [b.name for b in twice])
        return Skew(tuple(order), late, interval, self.interval(self.all), twice)

    def best(self, parts: Iterable[frozenset[int]], copies: bool = False) -> Skew | None:
        """Of some late parts the one whose iteration is shortest."""
        orders = [(self.ordered(late, copies), late) for late in parts if late < set(self.all)]
        found = [self.skew(order, late, copies) for order, late in orders if order and late]
        return min(found, key=lambda skew: (skew.interval, skew.order), default=None)

    def following(self, product: int) -> frozenset[int]:
        """`product` and what has to come after it in its iteration."""
        late = {product}
        for k in self.all:
            if k > product and self.conflicts[k] & late:
                late.add(k)
        return frozenset(late)

    def apart(self, a: int, b: int, copies: Collection[str]) -> bool:
        """Whether two statements touch nothing in common where iterations have `copies`."""
        return self.names.get((a, b), set()) <= set(copies)

    def before(self, late: frozenset[int], copies: bool = False) -> dict[int, set[int]]:
        """What each statement has to follow in an iteration that runs the `late` ones of the
        iteration before: its own kind in the order of the text, and these come first. With
        `copies` two iterations need not share what each begins anew."""
        return {
            b: {
                a
                for a in self.conflicts[b]
                if (a in late and b not in late and not (copies and self.apart(a, b, self.renewed)))
                or ((a in late) == (b in late) and a < b)
            }
            for b in self.all
        }

    def copies(self, order: Sequence[int], late: frozenset[int]) -> tuple[Buffer, ...]:
        """What an iteration begins anew in this order before the one before has used its own."""
        found = []
        for name, tile in self.renewed.items():
            users = [k in late for k in order if name in self.touched[k]]
            if False in users and True in users[users.index(False) :]:
                found.append(tile)
        return tuple(found)

    def ordered(self, late: frozenset[int], copies: bool = False) -> list[int] | None:
        before = self.before(late, copies)
        tails: dict[int, float] = {}

        def tail(k: int) -> float:
            """Time of the longest chain of statements that wait for `k`."""
            if k not in tails:
                tails[k] = 0.0
                behind = [b for b in self.all if k in before[b]]
                tails[k] = max((self.cycles[b] + tail(b) for b in behind), default=0.0)
            return tails[k]

        order: list[int] = []
        while len(order) < len(self.all):
            ready = [k for k in self.all if k not in order and before[k] <= set(order)]
            if not ready:
                return None
            products = [k for k in ready if self.units[k] == TENSOR]
            order.append(max(products, key=lambda k: (tail(k), -k)) if products else ready[0])
        return order

    def interval(
        self,
        order: Sequence[int],
        late: Collection[int] = (),
        copies: Collection[str] = (),
    ) -> float:
        """Cycles from one iteration to the next: threads issue products and go on until they need
        one's result, or what it still reads. Nor do slots come round faster than they are loaded
        and used."""
        now = tensor = 0.0
        over: dict[int, float] = {}  # when the latest run of each product is
        starts = []
        began: dict[tuple[int, int], float] = {}  # by statement and iteration
        ended: dict[tuple[int, int], float] = {}
        for iteration in range(ROUNDS):
            starts.append(now)
            for k in order:
                own = iteration - (k in late)
                if own < 0:
                    continue
                for p in self.waits[k]:
                    own_result = bool(copies) and self.apart(k, p, copies)
                    now = max(now, (ended.get((p, own), 0.0) if own_result else over.get(p, 0.0)))
                began[k, own] = now
                if self.units[k] == TENSOR:
                    tensor = over[k] = max(now, tensor) + self.cycles[k]
                else:
                    now += self.cycles[k]
                ended[k, own] = over.get(k, now)
        found = (starts[-1] - starts[2]) / (ROUNDS - 3)
        some = ROUNDS - 2  # an iteration that has run whole
        for uses, load, slots in self.rings:
            first = min(began[k, some] for k in uses)
            held = max(ended[k, some] for k in uses) - first
            found = max(found, (load + held) / slots)
        return found


def _accumulate(a: Op, b: Op) -> bool:
    """Two products into one tile: the unit runs them in order by itself."""
    if not (isinstance(a, Gemm) and isinstance(b, Gemm)) or unit_of(a) != unit_of(b):
        return False
    results = {a.c.buffer.name, b.c.buffer.name}
    operands = {r.buffer.name for op in (a, b) for r in (op.a, op.b)}
    return not results & operands
