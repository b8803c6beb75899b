"""The tile program of a formula, as Python text."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial, reduce

from tilewright.formula.ends import BLOCK, Ends, ends_of
from tilewright.formula.inline import Normal
from tilewright.formula.masks import Limits, first, limits, stop, within
from tilewright.formula.rows import kept_rows
from tilewright.formula.streams.stream import Center, Fold
from tilewright.formula.tiles.functions import Functions
from tilewright.formula.tiles.kernels import Apart, KernelPlan, kernels_of
from tilewright.formula.tiles.loops import Loop
from tilewright.formula.tiles.pieces import ATOM, INDENT, UNARY, Names, Piece
from tilewright.formula.tiles.spell import NOTE
from tilewright.formula.tiles.split import MOST, PARTS, Parts, is_thin, parts_of
from tilewright.formula.tiles.text import Writer
from tilewright.ir.core import *
from tilewright.ir.formula import (
    Array,
    Axis,
    Extent,
    Formula,
    contract,
    extents,
    listed,
    vars_of,
    within_sizes,
)
from tilewright.support.errors import CompileError


@dataclass(frozen=True)
class Mask:
    """What bounds a loop of blocks of `tiles`: its `ends`, where data do, as they are called;
    `inside` is true of tiles of which each element passes what reads data."""

    limits: Limits
    tiles: set[Var]
    ends_as: Callable[[str], Ends | None]
    ends: Ends | None
    inside: str = ""


@dataclass
class TileProgram:
    """A tile program: its text, and what was decided on the way."""

    name: str
    text: str
    kernels: tuple[KernelPlan, ...]
    loops: dict[str, Loop] = field(default_factory=dict)  # of the kernels that have one
    apart: dict[str, str] = field(default_factory=dict)  # what lies in memory, and why
    rounded: tuple[str, ...] = ()
    ends: dict[str, str] = field(default_factory=dict)  # of loops, where data give them
    computes: list[tuple[str, ...]] = field(default_factory=list)  # by kernel of the text: arrays
    numbers: tuple[str, ...] = ()  # that the text leaves open


@dataclass(frozen=True)
class Grouping:
    """What is decided about kernels before rules are asked: `memory`, the arrays that lie there,
    and why; `alone`, sets of outputs that are no one kernel; `whole`, outputs whose loops blocks do
    not share; `stored`, operands of products, which lie in memory as they are multiplied."""

    memory: Mapping[str, str] = field(default_factory=dict)
    alone: frozenset[frozenset[str]] = frozenset()
    whole: frozenset[str] = frozenset()
    stored: frozenset[str] = frozenset()


RULES = Grouping()


def program_of(
    normal: Normal, kept: Collection[str] = (), grouping: Grouping = RULES
) -> TileProgram:
    """The tile program of a formula in normal form. What is `kept` from one formula for another is
    no result that has to be exact, and no argument that says in which type products are."""
    refused, alone = dict(grouping.memory), set(grouping.alone)
    while True:
        kernels, apart = kernels_of(normal, refused, alone)
        try:
            printer = _Printer(normal, kernels, apart, kept, grouping)
            found = printer.program()
            better = kept_rows(normal, kernels, apart, printer.fast)
            if better is None:
                return found
            normal, refused = better
        except _Alone as outputs:
            alone.add(outputs.names)
        except Apart as wrong:
            refused[wrong.array] = wrong.reason
            alone = set(grouping.alone)  # others may fit together without it


class _Alone(Exception):
    """Outputs that cannot be one kernel, as it turns out when it is written."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names


class _Printer:
    def __init__(
        self,
        normal: Normal,
        kernels: tuple[KernelPlan, ...],
        apart: dict[str, str],
        kept: Collection[str],
        grouping: Grouping,
    ) -> None:
        self.normal, self.kernels, self.kept = normal, kernels, frozenset(kept)
        self.grouping = grouping
        self.names = Names()
        self.functions = Functions(self.names, normal.formula.name)
        self.sizes: dict[Extent, str] = {}
        self.given = {d.var: self.names.fresh(d.var.name.upper()) for d in normal.formula.sizes}
        self.shared: list[Buffer] = []  # what blocks that share a loop leave in memory
        self.ends: dict[Formula, list[Buffer]] = {}  # of loops, and what their kernels leave
        formula = normal.formula
        self.found = TileProgram(formula.name, "", kernels, apart=apart)
        results = [b for b in formula.outputs if b.name not in kept]
        self.fast = all(b.dtype.bits <= 16 and b.dtype.is_float for b in results)
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
        sizes = [i for i in self.sizes.items() if isinstance(i[0], int) and i[0] != PARTS.extent]
        if sizes:
            sizes.sort(key=lambda item: item[1])
            names, values = (", ".join(str(s[n]) for s in sizes) for n in (1, 0))
            body.append(f"{names} = {values}")
        for dim in formula.sizes:
            name = self.given[dim.var]
            said = contract(dim).split()[1:]
            body.append(f"{name} = T.dynamic({', '.join([repr(name), *said])})".replace("'", '"'))
        body += [f"{self.tensors[b.name]}: T.Tensor{self._shape(b)}" for b in formula.inputs]
        for b in (a.buffer for kernel in self.kernels for a in kernel.outputs):
            word = "empty" if b in formula.outputs else "alloc_global"
            body.append(f"{self.tensors[b.name]} = T.{word}{self._shape(b)}")
        for b in (b for left in self.ends.values() for b in left):
            body.append(f"{self.tensors[b.name]} = T.alloc_global{self._shape(b)}")
        if self.shared:
            splits = self.sizes[PARTS.extent]
            body.append(f'{splits} = T.chosen("{splits}", most={MOST})')
            found.numbers = (splits,)
        for b in self.shared:
            body.append(f"{self.tensors[b.name]} = T.alloc_global{self._shape(b)}")
        for kernel, lines_of in zip(self.kernels, bodies, strict=True):
            reason = found.apart.get(kernel.output.name)
            body += [f"# {kernel.output.name} {reason}"] if reason else []
            body += lines_of
        outputs = [self.tensors[b.name] for b in formula.outputs]
        body.append(f"return {', '.join(outputs)}")
        head = ["import tilewright as tw", "import tilewright.language as T", "", ""]
        found.text = (
            "\n".join([*head, *self.functions.lines, *lines, *(INDENT + line for line in body)])
            + "\n"
        )
        return found

    def _shape(self, b: Buffer) -> str:
        """Sizes and type of a tensor, as the words that declare one take them."""
        shape = listed(self.sizes.get(n) or self._said(n) for n in extents(b))
        return f'({shape}, "{b.dtype}")'

    def _size(self, var: Var, kernel: KernelPlan) -> str:
        extent = kernel.extents[var]
        if isinstance(extent, Expr):
            return self._said(extent)
        if extent not in self.sizes:
            self.sizes[extent] = self.names.fresh(var.name.upper())
        return self.sizes[extent]

    def _said(self, extent: Extent) -> str:
        """An extent that has no name of its own."""
        names: dict[Var, Expr] = {var: Var(name) for var, name in self.given.items()}
        return str(substitute(extent, names) if isinstance(extent, Expr) else extent)

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
        inputs = {b.name for b in self.normal.formula.inputs}
        given = (inputs - self.kept) | self.grouping.stored
        w = Writer(kernel, self.names, tensors, size, given, self.fast, self.functions.name_of)
        w.bound |= {var: Piece(name) for var, name in self.given.items()}
        loop = Loop(w) if kernel.stream else None
        if loop is not None:
            self.found.loops[kernel.output.name] = loop
        mask = self._mask(w, kernel) if loop is not None else None
        results = loop.written() if loop is not None else {}
        if loop is not None and len(kernel.outputs) > 1 and loop.is_wide:
            raise Apart(kernel.output.name, "takes more products in a loop with others than alone")
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
        first: list[str] = []
        steps = []
        if kernel.stream and w.inside:  # sums may be zero
            steps = self._loop_head(w, kernel, parts is not None, mask, first)
        steps += [INDENT + line for line in w.inside]
        inner = [INDENT + line for line in (*w.before, *steps, *w.behind)]
        self.found.computes.append(tuple(a.name for a in kernel.outputs))
        return [*first, self._head(kernel, parts is not None), *inner, *self._combined(parts)]

    def _parts(self, loop: Loop, kernel: KernelPlan) -> Parts | None:
        """What blocks leave in memory that share the loop, if some do."""
        whole = kernel.output.name in self.grouping.whole
        if whole or not is_thin(kernel) or self.sizes.get(PARTS.extent):
            return None
        _check_combined(kernel)
        parts = parts_of(kernel, loop.whole_stream(), loop.state())
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
            own = tuple(v for v in dims if v in value.dims)
            if own != value.dims:
                _check_turn(a, own)
                value = Piece(f"{value.inside(ATOM)}.T", own)
            return w.aligned(value, dims).text
        _check_turn(a, dims)
        return f"{value.inside(UNARY)}.T" if value.binds >= UNARY else f"({value.text}).T"

    def _loop_head(
        self, w: Writer, kernel: KernelPlan, shared: bool, mask: Mask | None, first: list[str]
    ) -> list[str]:
        """The head of the loop, and why it may be one pass, or shorter than its axis; `first` gets
        the kernel that computes its ends, if one does."""
        low, high = "0", self._size(kernel.stream[-1].var, kernel)
        if mask is not None:
            low, high = self._bounds(w, kernel, mask, first)
        end = self._size(kernel.stream[-1].var, kernel)
        why = []
        stream = self.found.loops[kernel.output.name].stream
        if stream.of(Center):
            why.append("# one pass: what it keeps is moved to each new center by `fix`")
        if (low, high) != ("0", end):
            why.append("# beyond these ends the mask lets nothing pass")
        if shared:
            length = high if low == "0" else f"{high} - {low}"
            splits = self.sizes[PARTS.extent]
            whole = f"* {BLOCK}" in length  # parts of whole blocks
            run = f"T.ceildiv({length}, {splits}" + (f" * {BLOCK}) * {BLOCK}" if whole else ")")
            w.before.append(f"run = {run}")
            begin = "part * run" if low == "0" else f"{low} + part * run"
            low, high = begin, f"T.min({begin} + run, {high})"
        tile = high if low == "0" else f"({low}, {high})"
        names = ", ".join(x.var.name for x in kernel.stream)
        steps = [f"T.each({self._size(x.var, kernel)})" for x in kernel.stream[:-1]]
        return [*why, f"for {names} in T.tile({', '.join([*steps, tile])}):"]

    def _mask(self, w: Writer, kernel: KernelPlan) -> Mask | None:
        """What bounds the loop. Where data do, steps ask for a tile what it is known to pass."""
        axis, roles = kernel.stream[-1], kernel.roles
        stream = self.found.loops[kernel.output.name].stream
        if len(kernel.stream) > 1 or any(s.monoid == "count" for s in stream.of(Fold)):
            return None
        kinds = {k: {v for v in roles if roles[v] == k} for k in ("tile", "each")}
        batch, tiles = ([x for x in kernel.grid if x.var in kinds[k]] for k in ("each", "tile"))
        kinds["each"] |= set(self.given)  # numbers, like indices of batches
        found = limits(kernel.levels, axis, kinds, w.tensors)
        ends_as = partial(ends_of, found.data, axis, tiles, batch, w.tensors)
        ends = ends_as("ends")
        if ends is not None and ends.sure:
            inside = Var(self.names.fresh("inside"), BOOL)
            w.bound[inside] = Piece(inside.name)
            w.sure |= {c: Bin("or", c, inside) for c in ends.sure}
            return Mask(found, kinds["tile"], ends_as, ends, inside.name)
        return Mask(found, kinds["tile"], ends_as, ends)

    def _bounds(
        self, w: Writer, kernel: KernelPlan, mask: Mask, first_lines: list[str]
    ) -> tuple[str, str]:
        """From where to where the loop goes: to the ends, or as far as a mask lets it. Where it
        does not begin at zero, or data end it, it has whole blocks of keys: the mask is for the
        rest of them, and tiles are copied as they lie."""
        axis, found = kernel.stream[-1], mask.limits
        end = self._size(axis.var, kernel)
        axes = [Axis(v, n) for v, n in kernel.extents.items()]
        for v in mask.tiles:
            w.bound[first(v)], w.bound[stop(v)] = (
                Piece(f"{v.name}.{e}") for e in ("start", "stop")
            )
            axes.append(Axis(first(v), kernel.extents[v]))
        known = within_sizes(kernel.sizes, axes)
        for v in mask.tiles:
            known = known.where(stop(v), 1).given(stop(v) <= kernel.extents[v], index=True)
        low, high, cut = [], [], True
        even = isinstance(axis.extent, int) and axis.extent % BLOCK == 0
        if found.low:
            ends = list(found.low)
            if not any(within(e, known, axis.extent, False) for e in ends):
                ends.append(const(0, INT32))
            most = reduce(lambda a, b: binary("max", a, b), ends)
            low = [w.value(most // BLOCK * BLOCK).text]
        for e in found.high:
            whole = bool(low or loads(e)) and e not in w.bound
            text = w.value(e).text
            high.append(f"T.ceildiv({text}, {BLOCK}) * {BLOCK}" if whole else text)
            if within(e, known, axis.extent, True) and (even or not whole):
                cut = False
        data = self._ends(w, kernel, mask, first_lines)
        if data is not None:
            low, high = [*low, f"{data[0]} * {BLOCK}"], [*high, f"{data[1]} * {BLOCK}"]
        high += [end] if cut else []
        return (_least("T.max", low) if low else "0"), _least("T.min", high)

    def _ends(
        self, w: Writer, kernel: KernelPlan, mask: Mask, lines: list[str]
    ) -> tuple[str, str] | None:
        """The scalars between which a mask that reads data lets something pass, in blocks; `lines`
        gets the kernel that computes them, unless an earlier loop has the same mask."""
        ends, tile = mask.ends, kernel.stream[-1].var.name
        if ends is None:
            return None
        low, high = self.names.fresh("low"), self.names.fresh("high")
        if ends.formula not in self.ends:
            own = mask.ends_as(f"ends{len(self.ends)}")
            assert own is not None
            before = len(self.found.computes)
            try:
                lines += self._ends_kernel(ends, own)
            except (Apart, CompileError):  # the loop is longer than it need be
                del self.found.computes[before:]
                w.inside[:0] = [f"{mask.inside} = {tile}.start < 0"] if ends.sure else []
                return None
        left = self.ends[ends.formula][-len(ends.formula.outputs) :]
        tensors = [self.tensors[b.name] for b in left]
        read = ", ".join(self.tensors[b.name] for b in ends.formula.inputs)
        at = ", ".join(v.name for v in ends.batch)
        whose = ""
        if ends.rows is None:
            texts = [f"{t}[{at or '()'}]" for t in tensors]
        elif kernel.extents[ends.rows] <= BLOCK:
            texts = [f"{t}[{at}{', ' if at else ''}0]" for t in tensors]
        else:
            whose = f" of each {BLOCK} rows"
            row, blocks = ends.rows.name, self.names.fresh("blocks")
            index = f"T.min({row}.start // {BLOCK} + n, ({row}.stop - 1) // {BLOCK})"
            many = f"T.ceildiv({row}.size, {BLOCK}) + ({row}.size % {BLOCK // 2} > 0)"
            w.before.append(f"{blocks} = [{index} for n in range({many})]")
            at = f"{at}, n" if at else "n"
            texts = [
                f"{word}(*[{t}[{at}] for n in {blocks}])"
                for word, t in zip(("T.min", "T.max", "T.max", "T.min"), tensors, strict=False)
            ]
        w.before += [f"{low} = {texts[0]}", f"{high} = {texts[1]}"]
        if ends.sure:  # tiles of which each element passes need not ask
            begin, end = map(self.names.fresh, ("first", "last"))
            w.before += [f"{begin} = {texts[2]}", f"{end} = {texts[3]}"]
            inside = f"({tile}.start >= {begin}) & ({tile}.stop <= {end})"
            w.inside.insert(0, f"{mask.inside} = {inside}")
        note = f"{' and '.join(tensors[:2])}{whose}, computed from {read}"
        self.found.ends[kernel.output.name] = note
        return low, high

    def _ends_kernel(self, ends: Ends, own: Ends) -> list[str]:
        """The kernel of the ends, with names of `own`."""
        kernels, _ = kernels_of(Normal(own.formula, (), {}), {})
        left = [a.buffer for kernel in kernels for a in kernel.outputs]
        ends_last = {b: n for n, b in enumerate(own.formula.outputs, 1)}
        left.sort(key=lambda b: ends_last.get(b, 0))
        for b in left:
            word = b.name.split(".")[-1]
            self.tensors[b.name] = self.names.fresh(word[:1].upper() + word[1:])
        lines = [line for kernel in kernels for line in self._kernel(kernel)]
        self.ends[ends.formula] = left
        return ["# where the mask lets something pass: the ends of the loop below", *lines]


def _check_turn(a: Array, dims: tuple[Var, ...]) -> None:
    if len(dims) != 2:
        raise Apart(a.name, f"has {len(dims)} dimensions in another order than its kernel")


def _least(word: str, texts: list[str]) -> str:
    return reduce(lambda a, b: f"{word}({a}, {b})", texts)


def _check_combined(kernel: KernelPlan) -> None:
    """What combines parts of a loop has its state alone, and none of the folds before it."""
    along = {*vars_of(kernel.stream)}
    inside = {f.name for f in kernel.folds if along & {*vars_of(f.domain)}}
    read = {a.name for a in kernel.outputs}.union(*(a.sources for a in kernel.outputs))
    if any(f.name in read - inside for f in kernel.folds):
        raise Apart(kernel.levels[-1].name, "is folded by several blocks, beside other folds")


def _stored_body(a: Array, results: dict[str, Expr]) -> Expr:
    """What an output is, of what the loop left; a store rounds, and numbers that were made wider
    are those that it stores."""
    body: Expr = a.element
    if a.is_pointwise:
        body, kind = a.body, a.buffer.dtype
        while isinstance(body, Cast) and body.a.dtype.is_float and body.dtype.is_float:
            was = body.a.dtype
            if kind != body.dtype and (kind != was or body.dtype.bits <= was.bits):
                break
            body = body.a

    def rule(node: Expr) -> Expr | None:
        return results.get(node.buffer.name) if isinstance(node, Load) else None

    return transform(body, rule)
