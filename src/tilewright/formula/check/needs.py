"""Which laws an identity of a formula and its stream may use.

An algebraic model lacks some laws of real numbers (`Algebra.lacks`). Two sides that agree there
agree for all that; two that do not may still be the same, where one of these laws is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tilewright.formula.check.models import LOGARITHMS
from tilewright.formula.streams.stream import Fold, Level, Stage, Stream, Sum, made
from tilewright.ir.arith import Bin, Call, Cmp, Const, Expr, Var
from tilewright.ir.expr import variables, walk


def exprs(stage: Stage) -> list[Expr]:
    """What a stage evaluates."""
    if isinstance(stage, Fold):
        return [stage.term]
    if isinstance(stage, Sum):
        return [stage.term, *(shift.coefficient for shift in stage.shifts)]
    return [stage.value]


GROWS = frozenset("exp exp2 exp10 expm1 sigmoid tanh sinh cosh".split())
_LOGS = frozenset("log log2 log10 log1p".split())
_BASES = frozenset("exp2 exp10 log2 log10".split())


def needs(levels: Sequence[Level], stream: Stream, extent: Var | None) -> Iterator[str]:
    """The laws that not every algebraic model has, and that an identity of these may use."""
    inside: dict[Var, set[str]] = {}
    counts = {level.name for level in levels if level.monoid == "count"}
    counts |= {s.var for s in stream.of(Fold) if s.monoid == "count"}
    counts |= set() if extent is None else {extent}

    def kinds(expr: Expr) -> set[str]:
        found = {node.name.removeprefix("__") for node in walk(expr) if isinstance(node, Call)}
        below = set().union(*(inside.get(var, set()) for var in variables(expr)))
        return below | {kind for kind, names in (("exp", GROWS), ("log", _LOGS)) if found & names}

    def scan(expr: Expr) -> Iterator[str]:
        for node in walk(expr):
            if isinstance(node, Const):
                yield from ("log of a number",) if node.value in LOGARITHMS else ()
            elif isinstance(node, Cmp):
                order = node.a.dtype.is_float and node.op not in ("==", "!=")
                yield from ("signs",) if order else ()
            elif isinstance(node, Bin):
                yield from ("signs",) if node.op in ("min", "max") else ()
            elif isinstance(node, Call):
                name = node.name.removeprefix("__")
                if name in ("abs", "copysign", "min_nan", "max_nan"):
                    yield "signs"
                if name in ("sin", "cos", "tan"):
                    yield "waves"
                if name in _LOGS:
                    yield "log"
                if name in _BASES or (name == "log" and isinstance(node.args[0], Const)):
                    yield "log of a number"
                power = name == "pow" and not isinstance(node.args[1], Const)
                if power and not variables(node.args[1]) <= counts:
                    yield from ("log", "log in exp")
                if name in GROWS:
                    yield from (f"{kind} in exp" for kind in kinds(node.args[0]))

    for level in levels:
        yield from scan(level.body)
        inside[level.name] = kinds(level.body)
    for stage in stream.stages:
        found: set[str] = set()
        for expr in exprs(stage):
            yield from scan(expr)
            found |= kinds(expr)
        for var in made(stage):
            inside[var] = inside.get(var, set()) | found
