"""The tile program of a formula, as Python text."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from tilewright.formula.check.verify import Mismatch, Verdict, verify
from tilewright.formula.inline import Normal
from tilewright.formula.streams.cascade import Refused, derive
from tilewright.formula.streams.stream import Center, Fold, Level, Result, Stage, Stream, Sum, old
from tilewright.formula.tiles.kernels import Apart, KernelPlan, kernels_of
from tilewright.formula.tiles.masks import first, limits, stop, within
from tilewright.formula.tiles.spell import NOTE
from tilewright.formula.tiles.split import MOST, PARTS, Parts, is_thin, parts_of
from tilewright.formula.tiles.text import ATOM, PLUS, TIMES, UNARY, Names, Piece, Writer
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.core import *
from tilewright.ir.formula import Array, reads
from tilewright.support.errors import CompileError

_INDENT = "    "
_POWERS = ("exp", "exp2", "exp10")
_STARTS = {"sum": 0.0, "prod": 1.0, "max": -inf, "min": inf}
_MERGE = {"max": "T.maximum({}, {})", "min": "T.minimum({}, {})", "prod": "{} * {}"}


@dataclass
class TileProgram:
    """A tile program: its text, and what was decided on the way."""

    name: str
    text: str
    kernels: tuple[KernelPlan, ...]
    streams: dict[str, Stream] = field(default_factory=dict)  # of the kernels that have a loop
    levels: dict[str, tuple[Level, ...]] = field(default_factory=dict)
    verdicts: dict[str, Verdict] = field(default_factory=dict)
    apart: tuple[str, ...] = ()
    rounded: tuple[str, ...] = ()


def program_of(normal: Normal) -> TileProgram:
    """The tile program of a formula in normal form."""
    refused: dict[str, str] = {}
    alone: set[frozenset[str]] = set()
    while True:
        kernels, apart = kernels_of(normal, refused, alone)
        try:
            return _Printer(normal, kernels, apart).program()
        except _Alone as outputs:
            alone.add(outputs.names)
        except Apart as wrong:
            refused[wrong.array] = wrong.reason


class _Alone(Exception):
    """Outputs that cannot be one kernel, as it turns out when it is written."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names


class _Printer:
    def __init__(
        self, normal: Normal, kernels: tuple[KernelPlan, ...], apart: tuple[str, ...]
    ) -> None:
        self.normal, self.kernels = normal, kernels
        self.names = Names()
        self.sizes: dict[int, str] = {}
        self.shared: list[Buffer] = []  # what blocks that share a loop leave in memory
        formula = normal.formula
        self.found = TileProgram(formula.name, "", kernels, apart=apart)
        self.fast = all(b.dtype.bits <= 16 and b.dtype.is_float for b in formula.outputs)
        if self.fast:
            self.found.rounded += (NOTE,)
        self.tensors: dict[str, str] = {}
        outputs = {a.name for k in kernels for a in k.outputs}
        for b in (*formula.inputs, *(a.buffer for a in formula.arrays if a.name in outputs)):
            upper = b.name[:1].upper() + b.name[1:]
            self.tensors[b.name] = self.names.fresh(upper)

    def program(self) -> TileProgram:
        formula, found = self.normal.formula, self.found
        bodies = [self._fitting(kernel) for kernel in self.kernels]
        inputs = [self.tensors[b.name] for b in formula.inputs]
        lines = ["@tw.jit", f"def {formula.name}({', '.join(inputs)}):"]
        body = []
        if self.sizes:
            sizes = [i for i in self.sizes.items() if i[0] != PARTS.extent]
            sizes.sort(key=lambda item: item[1])
            names, values = (", ".join(str(s[n]) for s in sizes) for n in (1, 0))
            body.append(f"{names} = {values}")
        body += [f"{self.tensors[b.name]}: {self._tensor(b)}" for b in formula.inputs]
        for b in (a.buffer for kernel in self.kernels for a in kernel.outputs):
            word = "empty" if b in formula.outputs else "alloc_global"
            shape, kind = self._tensor(b)[len("T.Tensor") :], self.tensors[b.name]
            body.append(f"{kind} = T.{word}{shape}")
        if self.shared:
            splits = self.sizes[PARTS.extent]
            body.append(f'{splits} = T.chosen("{splits}", most={MOST})')
        for b in self.shared:
            shape = self._tensor(b)[len("T.Tensor") :]
            body.append(f"{self.tensors[b.name]} = T.alloc_global{shape}")
        reasons = dict(why.split(" ", 1) for why in found.apart)
        for kernel, lines_of in zip(self.kernels, bodies, strict=True):
            reason = reasons.get(kernel.output.name)
            body += [f"# {kernel.output.name} {reason}"] if reason else []
            body += lines_of
        outputs = [self.tensors[b.name] for b in formula.outputs]
        body.append(f"return {', '.join(outputs)}")
        head = ["import tilewright as tw", "import tilewright.language as T", "", ""]
        found.text = "\n".join([*head, *lines, *(_INDENT + line for line in body)]) + "\n"
        return found

    def _tensor(self, b: Buffer) -> str:
        shape = ", ".join(self.sizes.get(n, str(n)) for n in b.static_shape)
        return f'T.Tensor(({shape}{"," if b.rank == 1 else ""}), "{b.dtype}")'

    def _size(self, var: Var, kernel: KernelPlan) -> str:
        extent = kernel.extents[var]
        if extent not in self.sizes:
            self.sizes[extent] = self.names.fresh(var.name.upper())
        return self.sizes[extent]

    # -- one kernel

    def _fitting(self, kernel: KernelPlan) -> list[str]:
        """The lines of a kernel; what cannot be inside it is named, so that it lies in memory."""
        try:
            return self._kernel(kernel)
        except Apart as wrong:
            if len(kernel.outputs) > 1:
                raise _Alone(frozenset(a.name for a in kernel.outputs)) from None
            folds = [f.name for f in kernel.folds if f.name not in self.tensors]
            if wrong.array in folds:
                raise
            if folds:
                raise Apart(folds[-1], wrong.reason) from wrong
            raise CompileError(
                f"{kernel.output.name} of {self.found.name} has no tile program: it {wrong.reason}",
                fix="compute it in two functions, the arrays between them as arguments",
                loc=kernel.output.loc,
            ) from wrong

    def _kernel(self, kernel: KernelPlan) -> list[str]:
        def size(var: Var) -> str:
            return self._size(var, kernel)

        for axis in (*kernel.output.axes, *(x for f in kernel.folds for x in f.over)):
            self.names.taken.add(axis.var.name)
        own = {a.name for a in kernel.outputs}
        tensors = {n: t for n, t in self.tensors.items() if n not in own}
        given = {b.name for b in self.normal.formula.inputs}
        w = Writer(kernel, self.names, tensors, size, given, self.fast)
        loop = _Loop(w, self.found) if kernel.stream else None
        results = loop.written() if loop is not None else {}
        parts = self._parts(loop, kernel) if loop is not None else None
        if parts is None:
            bodies = [w.spelt(_stored_body(a, results)) for a in kernel.outputs]
            rest = () if kernel.stream else kernel.folds
            w.count([*bodies, *(w.spelt(f.body) for f in rest)])
            for a, body in zip(kernel.outputs, bodies, strict=True):
                w.line(f"{self._place(kernel, a)} = {self._stored(w, kernel, a, w.value(body))}")
        else:
            for var, a in parts.states.items():
                w.line(f"{self._place(kernel, a)} = {self._stored(w, kernel, a, w.bound[var])}")
        self.found.rounded += tuple(dict.fromkeys(w.rounded))
        steps = [_INDENT + line for line in w.inside]
        if kernel.stream and steps:  # sums may be zero
            steps = [*self._loop_head(w, kernel, parts is not None), *steps]
        inner = [_INDENT + line for line in (*w.before, *steps, *w.behind)]
        return [self._head(kernel, parts is not None), *inner, *self._combined(parts)]

    def _parts(self, loop: _Loop, kernel: KernelPlan) -> Parts | None:
        """What blocks leave in memory that share the loop, if some do."""
        if not is_thin(kernel) or self.sizes.get(PARTS.extent):
            return None
        state = {s.var: loop.w.bound[s.var] for s in loop.stream.stages
                 if isinstance(s, (Fold, Sum))}  # fmt: skip
        parts = parts_of(kernel, loop.whole_stream(), state)
        if parts is not None:
            self.sizes[PARTS.extent] = self.names.fresh("splits")
            for a in parts.states.values():
                self.tensors[a.name] = self.names.fresh(a.name.capitalize())
                self.shared.append(a.buffer)
        return parts

    def _combined(self, parts: Parts | None) -> list[str]:
        """The kernel that makes one state of those that the blocks left."""
        if parts is None:
            return []
        kernels, _ = kernels_of(parts.normal, {})
        lines = [line for kernel in kernels for line in self._kernel(kernel)]
        return ["# blocks share the loop; what they leave is combined", *lines]

    def _head(self, kernel: KernelPlan, shared: bool) -> str:
        names = [axis.var.name for axis in kernel.grid]
        sizes = [self._range(axis.var, kernel) for axis in kernel.grid]
        if shared:
            names.append(PARTS.var.name)
            sizes.append(f"T.each({self.sizes[PARTS.extent]})")
        return f"for {', '.join(names) or '_'} in T.tile({', '.join(sizes)}):"

    def _range(self, var: Var, kernel: KernelPlan) -> str:
        size = self._size(var, kernel)
        return f"T.each({size})" if kernel.roles[var] == "each" else size

    def _place(self, kernel: KernelPlan, a: Array) -> str:
        tensor = self.tensors[a.name]
        parts = [":" if kernel.roles.get(x.var) == "whole" else x.var.name for x in a.axes]
        return f"{tensor}[{', '.join(parts) or '()'}]"

    def _stored(self, w: Writer, kernel: KernelPlan, a: Array, value: Piece) -> str:
        """The value with its dimensions as the tensor has them."""
        dims = tuple(x.var for x in a.axes if kernel.roles.get(x.var, "each") != "each")
        if value.dims in ((), dims):
            return value.text
        if set(value.dims) != set(dims):
            return w.aligned(value, tuple(v for v in w.order if v in dims)).text
        return f"{value.inside(UNARY)}.T" if value.binds >= UNARY else f"({value.text}).T"

    def _loop_head(self, w: Writer, kernel: KernelPlan, shared: bool) -> list[str]:
        """The head of the loop, and why it may be one pass, or shorter than its axis."""
        low, high = self._bounds(w, kernel)
        end = self._size(kernel.stream[-1].var, kernel)
        why = []
        stream = self.found.streams[kernel.output.name]
        if any(isinstance(stage, Center) for stage in stream.stages):
            why.append("# one pass: what it keeps is moved to each new center by `fix`")
        if (low, high) != ("0", end):
            why.append("# beyond these ends the mask lets nothing pass")
        if shared:
            length = high if low == "0" else f"{high} - {low}"
            w.before.append(f"run = T.ceildiv({length}, {self.sizes[PARTS.extent]})")
            begin = "part * run" if low == "0" else f"{low} + part * run"
            low, high = begin, f"T.min({begin} + run, {high})"
        tile = high if low == "0" else f"({low}, {high})"
        names = ", ".join(x.var.name for x in kernel.stream)
        steps = [f"T.each({self._size(x.var, kernel)})" for x in kernel.stream[:-1]]
        return [*why, f"for {names} in T.tile({', '.join([*steps, tile])}):"]

    def _bounds(self, w: Writer, kernel: KernelPlan) -> tuple[str, str]:
        """From where to where the loop goes: to the ends, or as far as a mask lets it."""
        axis, roles = kernel.stream[-1], kernel.roles
        end = self._size(axis.var, kernel)
        stream = self.found.streams[kernel.output.name]
        if len(kernel.stream) > 1 or any(
            isinstance(s, Fold) and s.monoid == "count" for s in stream.stages
        ):
            return "0", end
        kinds = {k: {v for v in roles if roles[v] == k} for k in ("tile", "each")}
        found = limits(kernel.levels, axis.var, kinds)
        ranges = {v: (0, n - 1) for v, n in kernel.extents.items()}
        for v in kinds["tile"]:
            w.bound[first(v)], w.bound[stop(v)] = (
                Piece(f"{v.name}.{e}") for e in ("start", "stop")
            )
            ranges |= {first(v): (0, kernel.extents[v] - 1), stop(v): (1, kernel.extents[v])}
        known = Ranges(ranges)
        low = [w.value(e).text for e in found.low]
        high = [w.value(e).text for e in found.high]
        if low and not any(within(e, known, axis.extent, False) for e in found.low):
            low.append("0")
        if not any(within(e, known, axis.extent, True) for e in found.high):
            high.append(end)
        return (_least("T.max", low) if low else "0"), _least("T.min", high)


def _least(word: str, texts: list[str]) -> str:
    found = texts[0]
    for text in texts[1:]:
        found = f"{word}({found}, {text})"
    return found


class _Loop:
    """The loop of a kernel: what it keeps, how a step changes it, what is left at the end."""

    def __init__(self, w: Writer, found: TileProgram) -> None:
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
        found.verdicts[self.kernel.output.name] = verdict
        found.streams[self.kernel.output.name] = self.stream
        found.levels[self.kernel.output.name] = levels
        self.centers = {s.var: s for s in self.stream.stages if isinstance(s, Center)}
        self._before: dict[Var, Piece] = {}  # what state was, where it has been updated
        self.late: list[str] = []  # what takes its new value at the end of a step

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
        for line in self.late:
            w.line(line)
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
        self.late.append(f"{piece.text} = {new}")
        for other, known in list(w.bound.items()):
            if known is piece and not other.name.endswith(".old"):
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
        for line in self.late:
            name, new = line.split(" = ")
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


def _stored_body(a: Array, results: dict[str, Expr]) -> Expr:
    """What an output is, of what the loop left; a store rounds."""
    body: Expr = Load(a.buffer, tuple(axis.var for axis in a.axes))
    if a.is_pointwise:
        body = a.body
        while isinstance(body, Cast) and body.a.dtype.is_float and body.dtype.is_float:
            if a.buffer.dtype not in (body.dtype, body.a.dtype):
                break
            body = body.a

    def rule(node: Expr) -> Expr | None:
        return results.get(node.buffer.name) if isinstance(node, Load) else None

    return transform(body, rule)


def _alone(levels: tuple[Level, ...], elements: frozenset[Var], index: Var) -> Stream | None:
    """The stream of levels that use nothing of one another: each is folded as it is."""
    names = {level.name for level in levels}
    if any(x.monoid not in _STARTS or names & variables(x.body) for x in levels):
        return None
    folds = [Fold(Var(f"{x.name.name}.fold", x.name.dtype), x.monoid, x.body, _STARTS[x.monoid])
             for x in levels]  # fmt: skip
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
