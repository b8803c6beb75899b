"""The loop of a kernel, as text in tile values."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite, isinf

from tilewright.formula.check.verify import Mismatch, Verdict, verify
from tilewright.formula.factors import FAR, is_far, is_power, product
from tilewright.formula.matrices import factors_of, swapped
from tilewright.formula.streams.cascade import Refused, derive
from tilewright.formula.streams.stream import (
    Center,
    Fold,
    Level,
    Result,
    Stage,
    Stream,
    Sum,
    old,
    soonest,
    value_of,
)
from tilewright.formula.tiles.kernels import Apart
from tilewright.formula.tiles.pieces import ATOM, PLUS, TIMES, UNARY, Piece
from tilewright.formula.tiles.text import Writer
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Monoid, names_in, vars_of

_MERGE = {
    "max": "T.maximum({}, {})", "min": "T.minimum({}, {})", "prod": "{} * {}", "any": "{} | {}",
    "all": "{} & {}",
}  # fmt: skip


class Loop:
    """The loop of a kernel: what it keeps, how a step changes it, what is left at the end."""

    def __init__(self, w: Writer) -> None:
        self.w, self.kernel = w, w.kernel
        self.back: dict[Var, Expr] = {}  # what the variables of the stream stand for
        self.along = self.kernel.stream[-1].var
        levels = tuple(Level(Var(f.name, f.buffer.dtype), f.monoid, self._leaves(f.body))
                       for f in self.kernel.levels if f.by is None)  # fmt: skip
        by = self._folds_by({f.name for f in self.kernel.levels})
        elements = {v for v, e in self.back.items() if self._varies(e)}
        elements |= {self.along}
        alone = _alone(levels, frozenset(elements), self.along)
        grows = any(is_power(n) for x in levels for n in walk(x.body))
        extent = self._extent(levels)
        try:  # factors are taken out of sums, but those of a power may leave its range
            skip = alone and (grows or not levels)
            derived = None if skip else derive(levels, elements, self.along, extent)
        except Refused as refused:
            if alone is None:
                raise Apart(self._apart(), f"is needed twice: {refused}") from refused
            derived = None
        verdict = verify(levels, derived, extent=extent) if derived is not None else None
        if alone is not None and (verdict is None or isinstance(verdict, Mismatch)):
            derived, verdict = alone, Verdict((), ())  # the same by definition
        assert derived is not None and verdict is not None
        self.stream = replace(derived, stages=(*soonest(derived.stages), *by))
        if isinstance(verdict, Mismatch):
            raise Apart(self._apart(), f"is computed first: its loop is wrong, {verdict}")
        self.levels, self.verdict = levels, verdict
        self.centers = {s.var: s for s in self.stream.of(Center)}
        self.folds, self.sums = self.stream.of(Fold), self.stream.of(Sum)
        self.results = self.stream.of(Result)
        self.kept: list[Fold | Sum] = [*self.folds, *self.sums]
        self._before: dict[Var, Piece] = {}  # what state was, where it has been updated
        self._blocks: dict[tuple[str, Expr], Piece] = {}  # what steps give that is needed twice
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

    def _folds_by(self, running: set[str]) -> list[Stage]:
        """What is kept of folds by the user's monoids, and which levels that is: they are what
        their laws say, in any blocks."""
        stages: list[Stage] = []
        done: list[Array] = []
        folded = {g.name for g in self.kernel.levels if g.by}
        for f in self.kernel.levels:
            if running & f.sources and (f.by or folded & f.sources):
                raise Apart(self._apart(), "is needed twice: a monoid folds no running values")
            if f.by is None or any(f.is_beside(g) for g in done):
                continue
            done.append(f)
            term = self._leaves(f.body)
            kept = [
                Fold(Var(f"{f.name}.{n}", e.dtype), "by", term, start, replace(f.by, part=n))
                for n, (e, start) in enumerate(zip(f.bodies, f.by.identity, strict=True))
            ]
            stages += kept
            for g in self.kernel.levels:
                if g.by is not None and g.is_beside(f):
                    stages.append(Result(Var(g.name, g.buffer.dtype), kept[g.by.part].var))
        return stages

    def state(self) -> dict[Var, Piece]:
        """What the loop keeps, by the variables of the stream."""
        kept = []
        for s in self.stream.state:
            kept += [s.var] if not isinstance(s, Center) else []
            if isinstance(s, Fold) and _is_place(s) and self._value_beside(s) is None:
                kept.append(value_of(s))
        return {var: self.w.bound[var] for var in kept}

    def _extent(self, levels: tuple[Level, ...]) -> Var | None:
        """The length of the loop, if calls give it and means divide by it: they are then those of
        the elements so far, which centers need."""
        extent = self.kernel.stream[0].extent
        if len(self.kernel.stream) > 1 or not isinstance(extent, Var):
            return None
        using = [n for x in levels for n in walk(x.body) if extent in n.children]
        is_number = all(isinstance(n, Cast) and n.dtype.is_float for n in using)
        return extent if using and is_number else None

    def _apart(self) -> str:
        """What lies in memory if the loop cannot be: the products inside it, or its first fold."""
        levels = [f.name for f in self.kernel.levels]
        return next((name for name in self.w.products if name not in levels), levels[0])

    def _varies(self, expr: Expr) -> bool:
        return not variables(expr).isdisjoint(vars_of(self.kernel.stream))

    def _leaves(self, expr: Expr) -> Expr:
        """`expr` over variables: an element that is read is one, and so is an earlier level."""
        levels = {f.name for f in self.kernel.levels}

        def leaf(node: Expr) -> Expr | None:
            inner = node.a if isinstance(node, Cast) and node.dtype.is_float else node
            if not isinstance(inner, Load):
                return None
            if inner.buffer.name in levels:
                return Var(inner.buffer.name, inner.dtype)
            known = {e: v for v, e in self.back.items()}
            found = known.get(node)
            if found is None:
                found = Var(f"{inner.buffer.name}.{len(self.back)}", node.dtype)
                self.back[found] = node
            return found

        return transform_outermost(expr, leaf)

    def written(self) -> dict[str, Expr]:
        """Write the loop; its folds are then expressions over what it left."""
        w = self.w
        w.running |= {*vars_of(self.kernel.stream)}
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
                if isinstance(stage, Fold) and stage.by is not None and stage.by.part:
                    continue
                exprs += [term] * (2 if isinstance(stage, Fold) and _is_place(stage) else 1)
                if isinstance(stage, Sum):
                    exprs += [w.spelt(s.coefficient) for s in stage.shifts]
        w.count(exprs)
        w.count_operands(self.kernel.levels)
        self._write_steps()
        return self._left(results)

    @property
    def is_wide(self) -> bool:
        """Whether more matrices are kept than are asked for, to be corrected by one another."""
        asked = [f for f in self.kernel.levels if f.name in self.w.products]
        return sum(len(self.w.bound[s.var].dims) > 1 for s in self.kept) > len(asked)

    def _whole(self, expr: Expr) -> Expr:
        found = substitute(expr, dict(self.back))
        return transform(found, self.w.sure.get) if self.w.sure else found

    def _term(self, stage: Fold | Sum) -> Expr:
        term = self._whole(stage.term)
        if isinstance(stage, Sum):
            return self.w.spelt(_guarded(term))
        centers = [c for c in self.centers.values() if c.value is stage.var]
        return self.w.spelt(term, exponent=bool(centers))

    def _wanted(self, var: Var) -> str:
        """The name of the level that is this state, or that is made of it."""
        for exact in (True, False):
            for s in self.results:
                if s.value is var if exact else var in variables(s.value):
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
        if isinstance(stage, Fold) and _is_place(stage):
            if self._value_beside(stage) is None:
                self._state(value_of(stage), f"{name}_value", dims, replace(stage, monoid="max"))
            stage = replace(stage, start=0.0)
        shape = w.shape(dims)
        wraps = var.dtype.is_int and var.dtype.bits < 32  # when the loop has ended
        kind = "" if var.dtype == FLOAT32 else f', "{INT32 if wraps else var.dtype}"'
        start = stage.start if isinstance(stage, Fold) else 0.0
        if isinstance(stage, Fold):
            start = NEUTRAL[stage.monoid] if self._is_exact(stage) else self._start(start)
        number = {inf: "T.inf", -inf: "-T.inf"}.get(start, repr(start))
        number = number if start == start else "T.inf * 0"
        number = str(start == 1) if var.dtype.is_bool else number
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
        """A center that is a fold needs no state of its own, unless the fold may be infinite."""
        w = self.w
        value = substitute(stage.value, dict(results))
        start = self._start(stage.start)
        self.centers[stage.var] = Center(stage.var, self._whole(value), start)
        w.running |= {stage.var, old(stage.var)}
        dims = w.dims_of(self._whole(value))
        if isinstance(value, Var) and self._is_shared(value):
            w.bound[stage.var] = w.bound[old(stage.var)] = w.bound[value]
        else:
            name = w.names.fresh("center")
            w.bound[stage.var] = w.bound[old(stage.var)] = Piece(name, dims)
            shape = w.shape(dims)
            kind = "" if value.dtype == FLOAT32 else f', "{value.dtype}"'
            w.before.append(f"{name} = T.full({shape}, {start!r}{kind})")

    def _start(self, start: float) -> float:
        """Where fast words multiply a center, what it starts with stays finite."""
        terms = [self._whole(s.term) for s in self.kept]
        powers = [n for t in terms for n in walk(t) if is_power(n)]
        if not self.w.fast or all(is_far(n, self.w.products) for n in powers) or isinf(start):
            return start
        return max(-FAR, min(FAR, start))

    def _write_steps(self) -> None:
        w = self.w
        w.section = w.inside
        if not self.centers:  # nothing waits for an earlier fold: products first, then threads
            for f in self.kernel.folds:
                if f.name in w.products and f not in self.kernel.levels:
                    w.value(f.element)
        for stage in self.stream.stages:
            match stage:
                case Fold(monoid="count"):
                    continue
                case Fold():
                    self._fold(stage)
                case Center(var=var):
                    center = self.centers[var]
                    if not self._is_shared(center.value):
                        value = center.value
                        if center.start:  # where nothing has passed a mask yet, it is infinite
                            word = "max" if center.start < 0 else "min"
                            value = binary(word, value, center.start)
                        self._update(var, w.value(value).text, keeps_old=True)
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
        if stage.by is not None:
            self._fold_by(stage, stage.by)
            return
        if stage.monoid == "sum":
            own, block = w.bound[stage.var], w.summed(self._term(stage))
            if any(x.of is stage.var for s in self.sums for x in s.shifts):
                self._before[stage.var] = own
                self._update(stage.var, f"{own.text} + {block.text}", keeps_old=True)
            else:
                w.line(f"{own.text} += {block.text}")
            return
        if any(self._value_beside(s) is stage for s in self.folds):
            return  # it is written where its place is
        word = stage.monoid.removeprefix("arg")
        if _is_place(stage):
            self._place(stage, word)
            return
        was, shows = w.bound[stage.var].text, self._shows_nan(stage)
        block = self._block(stage, word, named=shows)
        text = _MERGE[stage.monoid].format(was, block.text)
        if shows:
            text = f"T.where({_stays(was, word, block, stage)}, {was}, {block.text})"
        needed = {v for s in self.sums for x in s.shifts for v in variables(x.coefficient)}
        keeps = any(c.value is stage.var and old(v) in needed and self._is_shared(stage.var)
                    for v, c in self.centers.items())  # fmt: skip
        self._update(stage.var, text, keeps)

    def _block(self, stage: Fold, word: str, named: bool = False) -> Piece:
        """What a step gives, under a name where it is needed again."""
        w = self.w
        found = self._blocks.get((word, stage.term))
        if found is None:
            found = w.folded(word, self._term(stage), {self.along})
            again = any(
                s is not stage and s.term is stage.term and s.monoid.removeprefix("arg") == word
                for s in self.folds
            )
            if named or again:
                name = w.names.fresh("best")
                w.line(f"{name} = {found.text}")
                found = self._blocks[word, stage.term] = Piece(name, found.dims)
        return found

    def _place(self, stage: Fold, word: str) -> None:
        """The greatest or the least so far and its place, of equal ones the first."""
        w = self.w
        beside = self._value_beside(stage)
        own = w.bound[beside.var if beside else value_of(stage)].text
        block = self._block(stage, word, named=True)
        stays, place = w.names.fresh("stays"), w.bound[stage.var].text
        w.line(f"{stays} = {_stays(own, word, block, stage)}")
        found = w.folded(stage.monoid, self._term(stage), {self.along})
        start = f"{self.along.name}.start"
        w.line(f"{place} = T.where({stays}, {place}, {found.text} + {start})")
        w.line(f"{own} = T.where({stays}, {own}, {block.text})")

    def _value_beside(self, stage: Fold) -> Fold | None:
        """The fold that is the value of an argmax or argmin anyway."""
        return next(
            (s for s in self.folds if stage.monoid == f"arg{s.monoid}"
             and s.term is stage.term and not self._is_center(s)), None
        )  # fmt: skip

    def _is_center(self, fold: Fold) -> bool:
        values: dict[Var, Expr] = {s.level: s.value for s in self.results}
        return any(substitute(c.value, values) is fold.var for c in self.centers.values())

    def _is_shared(self, center: Expr) -> bool:
        """Whether a center is the state of a fold."""
        exact = any(self._is_exact(s) for s in self.folds if s.var is center)
        return center in self.w.bound and not exact

    def _is_exact(self, fold: Fold) -> bool:
        """Whether it is read as it is, not as a center: an extreme of nothing is infinite, where
        a center starts with a finite number."""
        if fold.monoid not in ("max", "min") or not isfinite(fold.start):
            return False
        names = {r.level.name for r in self.results if r.value is fold.var}
        known = {f.name for f in self.kernel.levels} - names
        for a in self.kernel.outputs:
            compared = [n for n in walk(a.body) if isinstance(n, Cmp)]
            if a.name in names or any(names_in(n) & names for n in compared):
                return True
            if a.sources & names and not a.sources & known:
                return True
        return False

    def _shows_nan(self, stage: Fold) -> bool:
        """Whether a NaN has to be seen in the fold itself: sums that it is the center of have one
        of their own."""
        if stage.monoid not in ("max", "min") or not stage.term.dtype.is_float:
            return False
        if not self._is_center(stage):
            return True
        sums = {s.var for s in self.sums}
        with_sums = {r.level.name for r in self.results if sums & variables(r.value)}
        names = {r.level.name for r in self.results if stage.var in variables(r.value)} - with_sums
        reading = [{a.name, *a.sources} for a in self.kernel.outputs]
        return any(names & own and not with_sums & own for own in reading)

    def _fold_by(self, stage: Fold, by: Monoid) -> None:
        """What is kept comes before what a step gives."""
        w = self.w
        if by.part:
            return
        kept = [w.bound[s.var].text for s in self.folds
                if s.by and s.term is stage.term and replace(s.by, part=0) == by]  # fmt: skip
        block = w.reduced(by, self._term(stage), [self.along])
        state = f"({', '.join(kept)})" if len(kept) > 1 else kept[0]
        w.line(f"{', '.join(kept)} = {w.function(by)}({state}, {block.text})")

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
        after = self.sums[self.sums.index(stage) + 1 :]
        keeps = any(x.of is stage.var for s in after for x in s.shifts)
        if keeps:
            self._before[stage.var] = own
        self._update(stage.var, " + ".join([*parts, block.text]), keeps)

    def _left(self, results: dict[Var, Expr]) -> dict[str, Expr]:
        """What the levels are when the loop has ended: the plain names hold the last values."""
        w = self.w
        for stage in self.folds:
            if stage.monoid == "count":
                sizes = [w.size(axis.var) for axis in self.kernel.stream]
                w.bound[stage.var] = Piece(" * ".join(sizes), (), TIMES if sizes[1:] else ATOM)
        for name, new in self.late.items():
            for var, piece in list(w.bound.items()):
                if piece.text == new:
                    w.bound[var] = Piece(name, piece.dims)
        for s in self.folds:
            if s.var.dtype.is_int and s.var.dtype.bits < 32:
                sum_of = w.bound[s.var]
                w.bound[s.var] = Piece(f'T.cast({sum_of.text}, "{s.var.dtype}")', sum_of.dims)
        w.left = {level.name: value for level, value in results.items()}
        w.after = set(w.left)
        for f in self.kernel.folds:
            w.after |= {f.name} if w.after & f.sources else set()
        return w.left


def _alone(levels: tuple[Level, ...], elements: frozenset[Var], index: Var) -> Stream | None:
    """The stream of levels that use nothing of one another: each is folded as it is."""
    names = {level.name for level in levels}
    if any(x.monoid not in ("sum", *_MERGE) or names & variables(x.body) for x in levels):
        return None
    parted = [_parted(x, elements) for x in levels]
    folds = [
        Fold(Var(f"{x.name.name}.fold", x.name.dtype), x.monoid, body, float(NEUTRAL[x.monoid]))
        for x, (body, _) in zip(levels, parted, strict=True)
    ]
    results = [
        Result(x.name, product([f.var, *behind]))
        for x, f, (_, behind) in zip(levels, folds, parted, strict=True)
    ]
    return Stream(elements, index, (*folds, *results))


def _parted(level: Level, elements: frozenset[Var]) -> tuple[Expr, list[Expr]]:
    """What a sum is of, and the factors that are the same in all steps: once, after the loop.
    Powers stay, and numbers that are far from one: what is summed keeps its range."""
    inside, behind = list[Expr](), list[Expr]()
    summed = level.monoid == "sum" and level.name.dtype.is_float
    for f in factors_of(level.body) if summed else ():
        far = isinstance(f, Const) and not 2.0**-24 < abs(f.value) < 2.0**24
        stays = far or any(map(is_power, walk(f)))
        (inside if stays or elements & variables(f) else behind).append(f)
    if not behind or not any(elements & variables(f) for f in inside):
        return level.body, []
    return product(inside), behind


def _stays(own: str, word: str, block: Piece, stage: Fold) -> str:
    """Whether what is known is as good as what a step gives, or a NaN, which `T.maximum` drops."""
    stays = f"{own} {'>=' if word == 'max' else '<='} {block.text}"
    return f"({stays}) | T.isnan({own})" if stage.term.dtype.is_float else stays


def _is_place(fold: Fold) -> bool:
    return fold.monoid.startswith("arg")


def _guarded(term: Expr) -> Expr:
    """A term whose exponential is zero is zero, even where another factor is infinite there."""
    for power in filter(is_power, walk(term)):
        masked = any(isinstance(n, Const) and n.value == -inf for n in walk(power))
        others = swapped(term, power, const(1, power.dtype))
        if masked and any(isinstance(n, Const) and n.value == -inf for n in walk(others)):
            return select(compare("==", power, 0), const(0, term.dtype), term)
    return term
