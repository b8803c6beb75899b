"""The search: of all sets of decisions about a formula, the one whose kernels take the least time.

The start has none: rules decide. If no grouping can be faster by `least`, the search ends there.
Otherwise sets are priced, the best first, by the closed formula of `prices`; one whose bound is not
below the best is never extended. The few that are close to the best are written, and the chooser's
model says which it is.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from heapq import heappop, heappush

from tilewright.formula.inline import Normal
from tilewright.formula.matrices import product_of
from tilewright.formula.search.decisions import (
    OPERAND,
    Decided,
    Decision,
    alternatives,
    decided,
    rewritings,
)
from tilewright.formula.search.modelled import Modelled, modelled
from tilewright.formula.search.prices import Price, Rates, least, price_of, rates_of
from tilewright.formula.search.rewrites import operand_type
from tilewright.formula.tiles.kernels import KernelPlan, Planned, kernels_of
from tilewright.formula.tiles.program import TileProgram, program_of
from tilewright.formula.tiles.split import is_thin
from tilewright.ir.formula import Formula
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError

BEST = 1.05  # times its bound: the closed formula is no more exact
CLOSE = 1.3  # times the best: what the model is asked about
ASKED = 2  # of them besides what rules give, at most
SURE = 0.99  # of what rules give, which others have to be below
SAME = 0.98  # and of the time that the model gives the best so far
MOST_ARRAYS = 12  # of a formula whose sets are all priced
MOST = 256  # sets that are priced


@dataclass(frozen=True)
class Considered:
    """A decision beside those that are taken, with seconds and bytes of all kernels; or why there
    is none."""

    decision: Decision
    seconds: float = 0.0
    bytes: int = 0
    why: str = ""


@dataclass(frozen=True)
class Found:
    """What was decided: the program, its kernels' prices, and what else was considered."""

    decided: Decided
    program: TileProgram
    prices: tuple[Price, ...]
    bound: float
    considered: tuple[Considered, ...] = ()
    models: dict[frozenset[Decision], Modelled] = field(default_factory=dict)
    priced: int = 1
    left_out: str = ""

    @property
    def seconds(self) -> float:
        return sum(p.seconds for p in self.prices)


def written(at: Decided, kept: Collection[str], rates: Rates) -> Found:
    """The program of these decisions, priced."""
    program = program_of(at.normal, kept, at.grouping)
    stored = [
        b for b in at.stored if at.grouping.memory.get(b.name) == OPERAND and b.dtype.bits < 32
    ]
    program.rounded += tuple(f"{b.name} is rounded to {b.dtype} for a product" for b in stored)
    prices = tuple(_prices(program.kernels, at, rates))
    return Found(at, program, prices, least(at.normal.formula, rates))


def search(formula: Formula, normal: Normal, kept: Collection[str], target: Target) -> Found:
    """The best decisions for `formula`, whose normal form is `normal`."""
    rates = rates_of(target)
    start = written(decided(formula, normal), kept, rates)
    walk = _Walk(start, rates)
    walk.run()
    ranked = sorted(walk.priced.values(), key=lambda each: (each[0], len(each[2].key), each[1]))
    better = [
        at for seconds, _, at in ranked if seconds < min(CLOSE * walk.best, SURE * start.seconds)
    ]
    options, wrong = [start], dict[Decision, str]()
    for at in better:
        if len(options) <= ASKED:
            try:
                options = _different([*options, written(at, kept, rates)])
            except CompileError as error:
                wrong |= dict.fromkeys(at.decisions, error.diagnostic.message)
    models = {each.decided.key: modelled(each.program, normal.formula, target)
              for each in options if len(options) > 1}  # fmt: skip
    best = start
    for each in options[1:]:
        if models[each.decided.key].seconds < SAME * models[best.decided.key].seconds:
            best = each
    return replace(
        best, considered=walk.considered(best, wrong), models=models,
        priced=len(walk.priced), left_out=walk.left_out,
    )  # fmt: skip


def _different(options: list[Found]) -> list[Found]:
    """Those whose texts differ, in order."""
    found: dict[str, Found] = {}
    for each in options:
        found.setdefault(each.program.text, each)
    return list(found.values())


def sets_priced(arrays: int) -> int:
    """How many, at most: of long formulas one takes as long as the square of their arrays.

    >>> [sets_priced(n) for n in (12, 13, 16, 32, 64)]
    [256, 64, 64, 16, 4]
    """
    return MOST if arrays <= MOST_ARRAYS else min(MOST // 4, (128 // arrays) ** 2)


def _prices(kernels: tuple[KernelPlan, ...], at: Decided, rates: Rates) -> list[Price]:
    inputs, whole = at.normal.formula.inputs, at.grouping.whole
    return [price_of(k, inputs, rates, is_thin(k) and k.output.name not in whole) for k in kernels]


def _extended(at: Decided, decision: Decision) -> Decided:
    """With one more decision, unless it rounds where the formula does not."""
    child = at.and_then(decision)
    old = {a.name for a in at.normal.formula.arrays}
    given = {b.name for b in at.normal.formula.inputs}
    for a in child.normal.formula.arrays if decision.kind == "join sums" else ():
        p = product_of(a) if a.name not in old else None
        if p is not None and (kind := operand_type(p, given)).bits < 32:
            raise CompileError(f"rounds a sum to {kind}, which only a plan may ask for")
    return child


class _Walk:
    """Sets of decisions, by price."""

    def __init__(self, start: Found, rates: Rates) -> None:
        self.start, self.rates = start, rates
        at, kernels = start.decided, start.program.kernels
        self.priced = {at.key: (start.seconds, 0, at)}
        self.bytes = {at.key: sum(p.bytes for p in start.prices)}
        self.kernels = {at.key: kernels}
        self.refused: dict[Decision, Considered] = {}
        self.best = start.seconds
        self.bounds: dict[frozenset[Decision], float] = {}
        self.planned: Planned = {}
        self.left_out = ""

    def run(self) -> None:
        queue = [(self.start.seconds, 0, self.start.decided)]
        most, count = sets_priced(len(self.start.decided.normal.formula.arrays)), 0
        self._bound_variants(laws=False)
        if self.best > BEST * self.bound(frozenset()):
            self._bound_variants(laws=True)
        while queue:
            _, _, at = heappop(queue)
            for decision in alternatives(at, self.kernels[at.key]):
                if self.best <= BEST * self.bound(frozenset()):
                    self.left_out = "the best is as fast as any set can be"
                    return
                if at.key | {decision} in self.priced or decision in at.key:
                    continue
                if len(self.priced) >= most:
                    self.left_out = f"{most} sets of decisions were priced, not all there are"
                    return
                found = self._priced(at, decision)
                if found is not None:
                    count += 1
                    heappush(queue, (found[0], count, found[2]))

    def bound(self, key: frozenset[Decision]) -> float:
        """Seconds that no formula that rewritings make of one with these decisions is below."""
        return min((bound for other, bound in self.bounds.items() if key <= other), default=0.0)

    def _bound_variants(self, laws: bool) -> None:
        """The formulas that rewritings give, one after the other."""
        found = [self.start.decided]
        for at in found:
            for decision in rewritings(at, laws):
                if len(found) <= MOST_ARRAYS and at.key | {decision} not in {f.key for f in found}:
                    try:
                        found.append(_extended(at, decision))
                    except CompileError:
                        continue
        self.bounds |= {v.key: least(v.normal.formula, self.rates) for v in found}

    def _priced(self, at: Decided, decision: Decision) -> tuple[float, int, Decided] | None:
        try:
            child = _extended(at, decision)
            bound = least(child.normal.formula, self.rates, child.stored)
            if child.key in self.bounds:
                bound = self.bound(child.key)
            if bound >= self.best:
                self._note(at, Considered(decision, bound, 0, "its bound"))
                return None
            plain = replace(child.normal, inlined=())  # names are for those that are written
            memory, alone = dict(child.grouping.memory), child.grouping.alone
            kernels, _ = kernels_of(plain, memory, alone, self.planned)
        except CompileError as error:
            self._note(at, Considered(decision, why=error.diagnostic.message))
            return None
        prices = _prices(kernels, child, self.rates)
        seconds, moved = sum(p.seconds for p in prices), sum(p.bytes for p in prices)
        self._note(at, Considered(decision, seconds, moved))
        self.kernels[child.key], self.bytes[child.key] = kernels, moved
        self.priced[child.key] = seconds, len(child.key), child
        self.best = min(self.best, seconds)
        return self.priced[child.key]

    def _note(self, at: Decided, found: Considered) -> None:
        """What one decision beside others costs, for `explain`: those of the fewest others."""
        if not at.key or found.decision not in self.refused:
            self.refused[found.decision] = found

    def considered(self, best: Found, wrong: dict[Decision, str]) -> tuple[Considered, ...]:
        taken = best.decided.key
        left = [c for d, c in self.refused.items() if d not in taken]
        return tuple(replace(c, why=wrong.get(c.decision, c.why)) for c in left)
