"""The tile program of a formula, as Python text."""

from __future__ import annotations

from dataclasses import dataclass, field

from tilewright.formula.inline import Normal
from tilewright.formula.masks import first, limits, stop, within
from tilewright.formula.streams.stream import Center, Fold, Sum
from tilewright.formula.tiles.kernels import Apart, KernelPlan, kernels_of
from tilewright.formula.tiles.loops import Loop
from tilewright.formula.tiles.spell import NOTE
from tilewright.formula.tiles.split import MOST, PARTS, Parts, is_thin, parts_of
from tilewright.formula.tiles.text import UNARY, Names, Piece, Writer
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.core import *
from tilewright.ir.formula import Array
from tilewright.support.errors import CompileError

_INDENT = "    "


@dataclass
class TileProgram:
    """A tile program: its text, and what was decided on the way."""

    name: str
    text: str
    kernels: tuple[KernelPlan, ...]
    loops: dict[str, Loop] = field(default_factory=dict)  # of the kernels that have one
    apart: dict[str, str] = field(default_factory=dict)  # what lies in memory, and why
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
        self, normal: Normal, kernels: tuple[KernelPlan, ...], apart: dict[str, str]
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
        body += [f"{self.tensors[b.name]}: T.Tensor{self._shape(b)}" for b in formula.inputs]
        for b in (a.buffer for kernel in self.kernels for a in kernel.outputs):
            word = "empty" if b in formula.outputs else "alloc_global"
            body.append(f"{self.tensors[b.name]} = T.{word}{self._shape(b)}")
        if self.shared:
            splits = self.sizes[PARTS.extent]
            body.append(f'{splits} = T.chosen("{splits}", most={MOST})')
        for b in self.shared:
            body.append(f"{self.tensors[b.name]} = T.alloc_global{self._shape(b)}")
        for kernel, lines_of in zip(self.kernels, bodies, strict=True):
            reason = found.apart.get(kernel.output.name)
            body += [f"# {kernel.output.name} {reason}"] if reason else []
            body += lines_of
        outputs = [self.tensors[b.name] for b in formula.outputs]
        body.append(f"return {', '.join(outputs)}")
        head = ["import tilewright as tw", "import tilewright.language as T", "", ""]
        found.text = "\n".join([*head, *lines, *(_INDENT + line for line in body)]) + "\n"
        return found

    def _shape(self, b: Buffer) -> str:
        """Sizes and type of a tensor, as the words that declare one take them."""
        shape = ", ".join(self.sizes.get(n, str(n)) for n in b.static_shape)
        return f'(({shape}{"," if b.rank == 1 else ""}), "{b.dtype}")'

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
        loop = Loop(w) if kernel.stream else None
        if loop is not None:
            self.found.loops[kernel.output.name] = loop
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

    def _parts(self, loop: Loop, kernel: KernelPlan) -> Parts | None:
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
        stream = self.found.loops[kernel.output.name].stream
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
        stream = self.found.loops[kernel.output.name].stream
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
