"""Formulas: arrays that are defined element by element. The first stage of the math level.

    Axis     var < extent                             a number, or an expression of sizes
    Array    buffer[axes] = body                      an element of each index of the axes
             buffer[axes] = monoid{over} body         folded over more axes
             buffer[axes] = scan monoid{axis} body    folded up to each index of one of its axes
             buffer[axes] = by{over} bodies from identity by combine, part k      the user's monoid
    Formula  inputs, arrays in order, outputs, sizes  those that only calls know, with contracts

`ir.text.formula` reads what is printed here. A body is an expression over axes and elements of
inputs and of earlier arrays; outside an array an element is zero. Bodies are pure, so an array may
be computed anywhere, as often as one likes, or not at all.

    formula softmax(x: float32[4, 8]) -> y
        top[i < 4]: float32 = max{j < 8} x[i, j]
        total[i < 4]: float32 = sum{j < 8} exp(x[i, j] - top[i])
        y[i < 4, j < 8]: float32 = exp(x[i, j] - top[i]) / total[i]

    formula double(x: float32[n]) -> y where n min=1 max=4096
        y[i < n]: float32 = x[i] * 2.0
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import inf
from typing import Any, TypeAlias

from tilewright.ir.analysis.bounds import Ranges, bounds
from tilewright.ir.bind import bind_sizes, static_value
from tilewright.ir.core import *
from tilewright.ir.simplify import simplify
from tilewright.support.errors import VerifyError

# what arrays fold by; `argmax` and `argmin` are the index along the one axis that they fold
# and `by` stands for the user's own monoid
MONOIDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin", "by")
# what changes nothing, of folds whose parts can be folded
NEUTRAL = {"sum": 0, "prod": 1, "max": -inf, "min": inf, "any": False, "all": True}


# a number, or an expression of sizes that only calls know
Extent: TypeAlias = "int | Expr"


@dataclass(frozen=True)
class Axis:
    """`var` runs from 0 up to `extent`."""

    var: Var
    extent: Extent

    def __str__(self) -> str:
        return f"{self.var.name} < {self.extent}"


@dataclass(frozen=True)
class Monoid:
    """A monoid of the user's own: `combine` of two tuples of elements, which is associative, and
    the tuple that changes none. An array that is folded by it is the `part`-th element of the
    result; the others are arrays of the same body."""

    combine: Operator
    identity: tuple[float, ...]
    part: int = 0
    name: str = field(default="combine", compare=False)

    def __str__(self) -> str:
        names = [f"{v.name}: {v.dtype}" if v.dtype != INT32 else v.name for v in self.combine.vars]
        combine = f"({', '.join(names)}) -> {listed(self.combine.result)}"
        return f"from {listed(self.identity)} by {combine}, part {self.part}"


def listed(items: Iterable[object]) -> str:
    """A tuple as it is written.

    >>> listed([1]), listed([1, 2])
    ('(1,)', '(1, 2)')
    """
    texts = [str(each) for each in items]
    return f"({', '.join(texts)}{',' if len(texts) == 1 else ''})"


@dataclass(frozen=True)
class Array:
    """An array and its definition. `over` and `monoid` say what is folded, if something is; with
    `scan`, `over` is one of `axes`, and each element folds those up to its own. A fold `by` the
    user's monoid has a body for each element of its tuples, as the arguments of a call. `given`:
    the user gave it its name; `loc` is where."""

    buffer: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    monoid: str = ""
    over: tuple[Axis, ...] = ()
    scan: bool = False
    by: Monoid | None = None
    given: bool = field(default=False, compare=False, repr=False)
    loc: Loc | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def is_pointwise(self) -> bool:
        return not self.monoid

    @property
    def bodies(self) -> tuple[Expr, ...]:
        """What is folded: one expression, or those of a tuple."""
        return (self.body,) if self.by is None else self.body.children

    @cached_property
    def vars(self) -> tuple[Var, ...]:
        """The indices of an element."""
        return vars_of(self.axes)

    @cached_property
    def folded(self) -> frozenset[Var]:
        """The indices that are folded."""
        return frozenset(vars_of(self.over))

    @cached_property
    def domain(self) -> tuple[Axis, ...]:
        """All axes that a body is evaluated over."""
        return self.axes if self.scan else self.axes + self.over

    @property
    def element(self) -> Load:
        """An element, at the indices of the definition."""
        return Load(self.buffer, self.vars)

    @cached_property
    def sources(self) -> frozenset[str]:
        """The names of what the definition reads, inside indices too."""
        return frozenset(names_in(self.body))

    def __hash__(self) -> int:
        return hash((self.buffer, self.body))

    def is_beside(self, other: Array) -> bool:
        """Whether both are elements of one tuple."""
        return (
            self.by is not None and other.by is not None
            and replace(self.by, part=0) == replace(other.by, part=0)
            and (self.bodies, self.over, self.scan) == (other.bodies, other.over, other.scan)
        )  # fmt: skip

    def at(self, indices: tuple[Expr, ...]) -> Expr:
        """The body of one element, of an array that folds nothing."""
        assert self.is_pointwise, self.name
        return substitute(self.body, dict(zip(self.vars, indices, strict=True)))

    def __str__(self) -> str:
        axes = ", ".join(map(str, self.axes))
        fold = ""
        if self.monoid:
            word = f"scan {self.monoid}" if self.scan else self.monoid
            fold = f"{word}{{{', '.join(map(str, self.over))}}} "
        body = f"{listed(self.bodies)} {self.by}" if self.by else str(self.body)
        return f"{self.name}[{axes}]: {self.buffer.dtype} = {fold}{body}"


@dataclass(frozen=True)
class Formula:
    """A pure program: `outputs` are among the arrays (or inputs). `sizes` are known when it is
    called; shapes of inputs name them."""

    name: str
    inputs: tuple[Buffer, ...]
    arrays: tuple[Array, ...]
    outputs: tuple[Buffer, ...]
    sizes: tuple[Dim, ...] = ()

    @property
    def buffers(self) -> list[Buffer]:
        return [*self.inputs, *(a.buffer for a in self.arrays)]

    def rewritten(self, rule: Callable[[Expr], Expr | None]) -> Formula:
        """With `transform(body, rule)` for each body."""
        arrays = (replace(a, body=transform(a.body, rule)) for a in self.arrays)
        return replace(self, arrays=tuple(arrays))

    def relaid(self, new: Callable[[Buffer], Buffer], made: Callable[[Array], Array]) -> Formula:
        """With other buffers, and what defines them."""
        inputs, outputs = (tuple(map(new, each)) for each in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, arrays=tuple(map(made, self.arrays)), outputs=outputs)

    def definition(self, buffer: Buffer) -> Array | None:
        return next((a for a in self.arrays if a.buffer == buffer), None)

    def __str__(self) -> str:
        inputs = ", ".join(f"{b.name}: {b.dtype}{list(extents(b))}" for b in self.inputs)
        outputs = ", ".join(b.name for b in self.outputs)
        head = f"formula {self.name}({inputs}) -> {outputs}"
        if self.sizes:
            head += f" where {', '.join(map(contract, self.sizes))}"
        return "\n    ".join([head, *map(str, self.arrays)])


def vars_of(axes: Iterable[Axis]) -> tuple[Var, ...]:
    return tuple(axis.var for axis in axes)


def names_in(expr: Expr) -> set[str]:
    """The names of what an expression reads."""
    return {read.buffer.name for read in loads(expr)}


def needed(arrays: Sequence[Array], outputs: Iterable[Buffer]) -> tuple[Array, ...]:
    """The arrays that the outputs are made of."""
    names, kept = {b.name for b in outputs}, []
    for a in reversed(arrays):
        if a.name in names:
            kept.append(a)
            names |= a.sources
    return tuple(reversed(kept))


def contract(size: Dim) -> str:
    """What is known of a size, as text.

    >>> contract(Dim(Var("n"), 1, None, 8))
    'n min=1 multiple_of=8'
    """
    known = {"min": size.min, "max": size.max, "multiple_of": size.multiple_of}
    plain = {"min": 0, "max": None, "multiple_of": 1}
    said = [f"{word}={n}" for word, n in known.items() if n != plain[word]]
    return " ".join([size.var.name, *said])


def array(
    name: str, axes: tuple[Axis, ...], body: Expr, dtype: DType | None = None, **fold: Any
) -> Array:
    """An array of `body` over `axes`, of the body's type unless another is given."""
    buffer = tensor(name, tuple(axis.extent for axis in axes), dtype or body.dtype)
    return Array(buffer, axes, body, **fold)


def together(bodies: Sequence[Expr]) -> Expr:
    """The bodies of a fold by the user's monoid as one expression."""
    return Call("tuple", tuple(bodies), bodies[0].dtype)


def tensor(name: str, shape: tuple[Extent, ...], dtype: DType) -> Buffer:
    sizes = tuple(n if isinstance(n, Expr) else const(n, INT32) for n in shape)
    return Buffer(name, sizes, dtype, Space.GLOBAL)


def extents(b: Buffer) -> tuple[Extent, ...]:
    """The shape, of numbers where they are known."""
    return tuple(int(n.value) if isinstance(n, Const) else n for n in b.shape)


def times(a: Extent, b: Extent) -> Extent:
    """The extent of two axes together."""
    return a * b if isinstance(a, int) and isinstance(b, int) else simplify(wrap(a) * b)


def most(extent: Extent, sizes: tuple[Dim, ...] = ()) -> float:
    """The largest that an extent may be: infinite where no contract says otherwise.

    >>> n = Var("n")
    >>> most(8), most(n), most(n * 2, (Dim(n, 1, 100),))
    (8, inf, 200)
    """
    if isinstance(extent, int):
        return extent
    known = {size.var: (size.min, size.max) for size in sizes if size.max is not None}
    return bounds(extent, Ranges(known)).hi if variables(extent) <= known.keys() else inf


def within_sizes(sizes: tuple[Dim, ...], axes: Iterable[Axis] = ()) -> Ranges:
    """What is known of sizes, and of axes whose ends they are."""
    numbers = {x.var: (0, x.extent - 1) for x in axes if isinstance(x.extent, int)}
    known = Ranges({**{d.var: (d.min, d.max, d.multiple_of) for d in sizes}, **numbers})
    for axis in axes:
        if isinstance(axis.extent, Expr):
            known = known.where(axis.var, 0).given(axis.var < axis.extent, index=True)
    return known


def at_sizes(formula: Formula, values: Mapping[Var, int]) -> Formula:
    """The formula where sizes are these numbers."""
    numbers: dict[Var, Expr] = {var: const(n, var.dtype) for var, n in values.items()}

    def known(extent: Extent) -> Extent:
        return extent if isinstance(extent, int) else static_value(extent, values)

    def shaped(b: Buffer) -> Buffer:
        return tensor(b.name, tuple(map(known, extents(b))), b.dtype)

    def axes(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(axis.var, known(axis.extent)) for axis in given)

    def rule(node: Expr) -> Expr | None:
        return Load(shaped(node.buffer), node.indices) if isinstance(node, Load) else None

    def sized(a: Array) -> Array:
        body = transform(substitute(a.body, numbers), rule)
        return replace(a, buffer=shaped(a.buffer), axes=axes(a.axes), over=axes(a.over), body=body)

    return replace(formula.relaid(shaped, sized), sizes=())


def bound_sizes(formula: Formula, shapes: Iterable[tuple[int, ...]]) -> dict[Var, int]:
    """The sizes, of inputs that have these shapes; contracts are checked."""
    program = Program(formula.name, formula.inputs, (), formula.sizes)
    named = {b.name: shape for b, shape in zip(formula.inputs, shapes, strict=True)}
    return bind_sizes(program, named)


def reads(a: Array) -> Iterator[Load]:
    """The elements that a definition reads, those inside indices included."""
    yield from loads(a.body)


def verify(formula: Formula) -> None:
    """Refuse what is no formula: names that are defined twice or too late, axes that nobody
    introduced, indices of the wrong number, folds that nobody knows."""
    known = {b.name: b for b in formula.inputs}
    if len(known) != len(formula.inputs):
        raise VerifyError(f"two inputs of {formula.name} have the same name")
    for a in formula.arrays:
        _verify_array(a, known, {size.var for size in formula.sizes})
        known[a.name] = a.buffer
    for b in formula.outputs:
        if known.get(b.name) != b:
            raise VerifyError(f"the output {b.name} is not defined")


def _verify_array(a: Array, known: dict[str, Buffer], sizes: set[Var]) -> None:
    def wrong(what: str) -> VerifyError:
        return VerifyError(f"{a.name}: {what}", loc=a.loc)

    if a.name in known:
        raise wrong("the name is defined twice")
    if extents(a.buffer) != tuple(axis.extent for axis in a.axes):
        raise wrong(f"axes do not make its shape {list(extents(a.buffer))}")
    bound = vars_of(a.domain)
    if len(set(bound)) != len(bound):
        raise wrong("two of its axes have the same name")
    if bool(a.monoid) != bool(a.over) or a.monoid not in ("", *MONOIDS):
        raise wrong(f"unknown fold {a.monoid!r} over {len(a.over)} axes")
    if (a.scan or a.monoid.startswith("arg")) and len(a.over) != 1:
        raise wrong(f"{a.monoid} folds one axis, not {len(a.over)}")
    if (a.monoid == "by") != (a.by is not None):
        raise wrong("a fold by the user's monoid has one, others have none")
    if a.by is not None and [e.dtype for e in (*a.bodies, *a.bodies)] != [
        v.dtype for v in a.by.combine.vars
    ]:
        raise wrong("what is folded has other types than what its monoid combines")
    if a.scan and a.over[0] not in a.axes:
        raise wrong("a scan goes along one of its own axes")
    if sizes & set(bound):
        raise wrong("one of its axes has the name of a size")
    used = [n for axis in a.domain if isinstance(n := axis.extent, Expr)]
    for var in {v for n in used for v in variables(n)} - sizes:
        raise wrong(f"{var.name} is no size")
    for var in variables(a.body) - set(bound) - sizes:
        raise wrong(f"{var.name} is no axis of it")
    for read in reads(a):
        if known.get(read.buffer.name) != read.buffer:
            raise wrong(f"{read.buffer.name} is read before it is defined")
        if len(read.indices) != read.buffer.rank:
            raise wrong(f"{read.buffer.name} has {read.buffer.rank} dimensions: {read}")
