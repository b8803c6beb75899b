"""The loop of a kernel, as text in tile values."""

from __future__ import annotations

from dataclasses import replace
from math import inf

from tilewright.formula.check.verify import Mismatch, Verdict, verify
from tilewright.formula.streams.cascade import Refused, derive
from tilewright.formula.streams.stream import Center, Fold, Level, Result, Stage, Stream, Sum, old
from tilewright.formula.tiles.kernels import Apart
from tilewright.formula.tiles.text import ATOM, PLUS, TIMES, UNARY, Piece, Writer
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, reads

_POWERS = ("exp", "exp2", "exp10")
_MERGE = {"max": "T.maximum({}, {})", "min": "T.minimum({}, {})", "prod": "{} * {}"}


class Loop:
    """The loop of a kernel: what it keeps, how a step changes it, what is left at the end."""

    def __init__(self, w: Writer) -> None:
        self.w, self.kernel = w, w.kernel
        self.back: dict[Var, Expr] = {}  # what the variables of the stream stand for
        self.along = self.kernel.stream[-1].var
        levels = tuple(Level(Var(f.name, f.buffer.dtype), f.monoid, self._leaves(f.body))
                       for f in self.kernel.levels)  # fmt: skip
        elements = {v for v, e in self.back.items() if self._varies(e)}
        elements |= {self.along}
        alone = _alone(levels, frozenset(elements), self.along)
        grows = any(isinstance(n, Call) and n.name in _POWERS for x in levels for n in walk(x.body))
        try:  # factors are taken out of sums, but those of a power may leave its range
            derived = None if alone and grows else derive(levels, elements, self.along)
        except Refused as refused:
            if alone is None:
                raise Apart(self._apart(), f"is needed twice: {refused}") from refused
            derived = None
        verdict = verify(levels, derived) if derived is not None else None
        if alone is not None and (verdict is None or isinstance(verdict, Mismatch)):
            derived, verdict = alone, Verdict((), ())  # the same by definition
        assert derived is not None and verdict is not None
        self.stream = derived
        if isinstance(verdict, Mismatch):
            raise Apart(self._apart(), f"is computed first: its loop is wrong, {verdict}")
        self.levels, self.verdict = levels, verdict
        self.centers = {s.var: s for s in self.stream.stages if isinstance(s, Center)}
        self._before: dict[Var, Piece] = {}  # what state was, where it has been updated
        self.late: dict[str, str] = {}  # what takes its new value at the end of a step, and which

    def whole_stream(self) -> Stream:
        """The stream over what its variables stand for."""

        def whole(stage: Stage) -> Stage:
            match stage:
                case Center(value=value):
                    return replace(stage, value=self._whole(value))
                case Sum(shifts=shifts):
                    moved = tuple(
                        replace(x, coefficient=self._whole(x.coefficient)) for x in shifts
                    )
                    return replace(stage, shifts=moved)
                case Result(value=value):
                    return replace(stage, value=self._whole(value))
            return stage

        return replace(self.stream, stages=tuple(map(whole, self.stream.stages)))

    def _apart(self) -> str:
        """What lies in memory if the loop cannot be: the products inside it, or its first fold."""
        levels = [f.name for f in self.kernel.levels]
        return next((name for name in self.w.products if name not in levels), levels[0])

    def _varies(self, expr: Expr) -> bool:
        steps = {axis.var for axis in self.kernel.stream}
        return not steps.isdisjoint(variables(expr))

    def _leaves(self, expr: Expr) -> Expr:
        """`expr` over variables: an element that is read is one, and so is an earlier level."""
        inner = expr.a if isinstance(expr, Cast) and expr.dtype.is_float else expr
        if isinstance(inner, Load):
            if inner.buffer.name in {f.name for f in self.kernel.levels}:
                return Var(inner.buffer.name, inner.dtype)
            known = {e: v for v, e in self.back.items()}
            found = known.get(expr)
            if found is None:
                found = Var(f"{inner.buffer.name}.{len(self.back)}", expr.dtype)
                self.back[found] = expr
            return found
        return map_children(expr, self._leaves)

    def written(self) -> dict[str, Expr]:
        """Write the loop; its folds are then expressions over what it left."""
        w = self.w
        w.running |= {self.along, *(axis.var for axis in self.kernel.stream)}
        stages = self.stream.stages
        results: dict[Var, Expr] = {}
        exprs: list[Expr] = []
        for stage in stages:  # shapes and names, in order, before anything is written
            if isinstance(stage, Result):
                results[stage.level] = self._whole(substitute(stage.value, dict(results)))
            elif isinstance(stage, Center):
                self._center(stage, results)
            else:
                term = self._term(stage)
                union = set(w.dims_of(term)) - {self.along}
                for x in stage.shifts if isinstance(stage, Sum) else ():
                    union |= {*w.dims_of(x.coefficient), *w.dims_of(x.of)}
                dims = tuple(v for v in w.order if v in union)
                self._state(stage.var, self._wanted(stage.var), dims, stage)
                exprs.append(term)
                if isinstance(stage, Sum):
                    exprs += [w.spelt(s.coefficient) for s in stage.shifts]
        w.count(exprs)
        self._write_steps()
        return self._left(results)

    def _whole(self, expr: Expr) -> Expr:
        return substitute(expr, dict(self.back))

    def _term(self, stage: Fold | Sum) -> Expr:
        term = self._whole(stage.term)
        if isinstance(stage, Sum):
            return self.w.spelt(_guarded(term))
        centers = [c for c in self.centers.values() if c.value is stage.var]
        return self.w.spelt(term, exponent=bool(centers))

    def _wanted(self, var: Var) -> str:
        """The name of the level that is this state, or that is made of it."""
        for exact in (True, False):
            for s in self.stream.stages:
                if isinstance(s, Result) and (
                    s.value is var if exact else var in variables(s.value)
                ):
                    return s.level.name
        return var.name

    def _state(self, var: Var, wanted: str, dims: tuple[Var, ...], stage: Fold | Sum) -> None:
        w = self.w
        name = w.names.fresh(wanted)
        w.bound[var] = Piece(name, dims)
        w.running.add(var)
        if isinstance(stage, Fold) and stage.monoid == "count":
            w.bound[var], self._before[var] = self._count("stop"), self._count("start")
            return
        shape = ", ".join(v.name if w.kernel.roles[v] == "tile" else w.size(v) for v in dims)
        shape = f"({shape}{',' if len(dims) == 1 else ''})"
        wraps = var.dtype.is_int and var.dtype.bits < 32  # when the loop has ended
        kind = "" if var.dtype == FLOAT32 else f', "{INT32 if wraps else var.dtype}"'
        start = stage.start if isinstance(stage, Fold) else 0.0
        number = {inf: "T.inf", -inf: "-T.inf"}.get(start, repr(start))
        value = f"T.zeros({shape}{kind})" if start == 0 else f"T.full({shape}, {number}{kind})"
        w.before.append(f"{name} = {value}")

    def _count(self, end: str) -> Piece:
        """How many elements the loop has seen at the `end` of a step's tile."""
        *outer, last = self.kernel.stream
        found = f"{last.var.name}.{end}"
        for n, axis in enumerate(outer):
            inner = " * ".join(self.w.size(x.var) for x in self.kernel.stream[n + 1 :])
            found = f"{axis.var.name} * {inner} + {found}"
        return Piece(found, (), PLUS if outer else ATOM)

    def _center(self, stage: Center, results: dict[Var, Expr]) -> None:
        """A center that is a fold needs no state of its own."""
        w = self.w
        value = substitute(stage.value, dict(results))
        self.centers[stage.var] = Center(stage.var, self._whole(value), stage.start)
        w.running |= {stage.var, old(stage.var)}
        dims = w.dims_of(self._whole(value))
        if isinstance(value, Var) and value in w.bound:
            w.bound[stage.var] = w.bound[old(stage.var)] = w.bound[value]
        else:
            name = w.names.fresh("center")
            w.bound[stage.var] = w.bound[old(stage.var)] = Piece(name, dims)
            shape = ", ".join(v.name if w.kernel.roles[v] == "tile" else w.size(v) for v in dims)
            shape = f"({shape}{',' if len(dims) == 1 else ''})"
            w.before.append(f"{name} = T.full({shape}, {stage.start!r})")

    def _write_steps(self) -> None:
        w = self.w
        w.section = w.inside
        for stage in self.stream.stages:
            match stage:
                case Fold(monoid="count"):
                    continue
                case Fold():
                    self._fold(stage)
                case Center(var=var):
                    center = self.centers[var]
                    if not (isinstance(center.value, Var) and center.value in w.bound):
                        self._update(var, w.value(center.value).text, keeps_old=True)
                case Sum():
                    self._sum(stage)
        for name, new in self.late.items():
            w.line(f"{name} = {new}")
        w.section = w.behind

    def _update(self, var: Var, text: str, keeps_old: bool) -> None:
        """`var` takes a new value; where the old one is still needed, under another name until
        the step is done."""
        w = self.w
        piece = w.bound[var]
        if not keeps_old:
            w.line(f"{piece.text} = {text}")
            return
        new = w.names.fresh(f"new_{piece.text}")
        w.line(f"{new} = {text}")
        self.late[piece.text] = new
        was = {old(center) for center in self.centers}
        for other, known in list(w.bound.items()):
            if known is piece and other not in was:
                w.bound[other] = Piece(new, piece.dims)

    def _fold(self, stage: Fold) -> None:
        w = self.w
        if stage.monoid.startswith("arg"):
            raise Apart("", "an argmax inside a loop is not written yet")
        if stage.monoid == "sum":
            own, block = w.bound[stage.var], w.summed(self._term(stage))
            if any(x.of is stage.var for s in self.stream.stages if isinstance(s, Sum)
                   for x in s.shifts):  # fmt: skip
                self._before[stage.var] = own
                self._update(stage.var, f"{own.text} + {block.text}", keeps_old=True)
            else:
                w.line(f"{own.text} += {block.text}")
            return
        block = w.folded(stage.monoid, self._term(stage), {self.along})
        text = _MERGE[stage.monoid].format(w.bound[stage.var].text, block.text)
        needed = {v for s in self.stream.stages if isinstance(s, Sum) for x in s.shifts
                  for v in variables(x.coefficient)}  # fmt: skip
        keeps = any(isinstance(c.value, Var) and c.value is stage.var and old(v) in needed
                    for v, c in self.centers.items())  # fmt: skip
        self._update(stage.var, text, keeps)

    def _sum(self, stage: Sum) -> None:
        w = self.w
        own = w.bound[stage.var]
        block = w.aligned(w.summed(self._term(stage)), own.dims)
        parts = []
        for shift in stage.shifts:
            before = w.aligned(self._before.get(shift.of) or w.bound[shift.of], own.dims)
            if isinstance(shift.coefficient, Const) and shift.coefficient.value == 1:
                if shift.of is stage.var and len(stage.shifts) == 1:
                    w.line(f"{own.text} += {block.text}")
                    return
                parts.append(before.text)
                continue
            coefficient = w.spelt(shift.coefficient)
            w.kernel.named.setdefault(coefficient, "fix")
            factor = w.aligned(w.value(coefficient), own.dims)
            parts.append(f"{before.inside(TIMES)} * {factor.inside(UNARY)}")
        later = [s for s in self.stream.stages if isinstance(s, Sum)]
        after = later[later.index(stage) + 1 :]
        keeps = any(x.of is stage.var for s in after for x in s.shifts)
        if keeps:
            self._before[stage.var] = own
        self._update(stage.var, " + ".join([*parts, block.text]), keeps)

    def _left(self, results: dict[Var, Expr]) -> dict[str, Expr]:
        """What the levels are when the loop has ended: the plain names hold the last values."""
        w = self.w
        for stage in self.stream.stages:
            if isinstance(stage, Fold) and stage.monoid == "count":
                w.bound[stage.var] = Piece(w.size(self.along))
        for name, new in self.late.items():
            for var, piece in list(w.bound.items()):
                if piece.text == new:
                    w.bound[var] = Piece(name, piece.dims)
        for s in self.stream.stages:
            if isinstance(s, Fold) and s.var.dtype.is_int and s.var.dtype.bits < 32:
                sum_of = w.bound[s.var]
                w.bound[s.var] = Piece(f'T.cast({sum_of.text}, "{s.var.dtype}")', sum_of.dims)
        w.left = {level.name: value for level, value in results.items()}
        w.after = set(w.left)
        for f in self.kernel.folds:
            if any(read.buffer.name in w.after for read in reads(f)):
                w.after.add(f.name)
        return w.left


def _alone(levels: tuple[Level, ...], elements: frozenset[Var], index: Var) -> Stream | None:
    """The stream of levels that use nothing of one another: each is folded as it is."""
    names = {level.name for level in levels}
    if any(x.monoid not in ("sum", *_MERGE) or names & variables(x.body) for x in levels):
        return None
    folds = [
        Fold(Var(f"{x.name.name}.fold", x.name.dtype), x.monoid, x.body, float(NEUTRAL[x.monoid]))
        for x in levels
    ]
    results = [Result(x.name, f.var) for x, f in zip(levels, folds, strict=True)]
    return Stream(elements, index, (*folds, *results))


def _guarded(term: Expr) -> Expr:
    """A term whose exponential is zero is zero, even where another factor is infinite there."""
    powers = [n for n in walk(term) if isinstance(n, Call) and n.name in _POWERS]
    for power in powers:
        masked = any(isinstance(n, Const) and n.value == -inf for n in walk(power))
        others = transform(term, lambda n, p=power: const(1, n.dtype) if n is p else None)  # type: ignore[misc]
        if masked and any(isinstance(n, Const) and n.value == -inf for n in walk(others)):
            return select(compare("==", power, 0), const(0, term.dtype), term)
    return term
