"""Formulas: arrays that are defined element by element. The first stage of the math level.

    Axis     var < extent
    Array    buffer[axes] = body                      an element of each index of the axes
             buffer[axes] = monoid{over} body         folded over more axes
             buffer[axes] = scan monoid{axis} body    folded up to each index of one of its axes
    Formula  inputs, arrays in order, outputs

`ir.text.formula` reads what is printed here. A body is an expression over axes and elements of
inputs and of earlier arrays; outside an array an element is zero. Bodies are pure, so an array may
be computed anywhere, as often as one likes, or not at all.

    formula softmax(x: float32[4, 8]) -> y
        top[i < 4]: float32 = max{j < 8} x[i, j]
        total[i < 4]: float32 = sum{j < 8} exp(x[i, j] - top[i])
        y[i < 4, j < 8]: float32 = exp(x[i, j] - top[i]) / total[i]
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.dtype import DType
from tilewright.support.errors import VerifyError

# what arrays fold by; `argmax` and `argmin` are the index along the one axis that they fold
MONOIDS = ("sum", "prod", "max", "min", "any", "all", "argmax", "argmin")
# what changes nothing, of folds whose parts can be folded
NEUTRAL = {"sum": 0, "prod": 1, "max": -inf, "min": inf, "any": False, "all": True}


@dataclass(frozen=True)
class Axis:
    """`var` runs from 0 up to `extent`."""

    var: Var
    extent: int

    def __str__(self) -> str:
        return f"{self.var.name} < {self.extent}"


@dataclass(frozen=True)
class Array:
    """An array and its definition. `over` and `monoid` say what is folded, if something is; with
    `scan`, `over` is one of `axes`, and each element folds those up to its own. `given`: the
    user gave it its name; `loc` is where."""

    buffer: Buffer
    axes: tuple[Axis, ...]
    body: Expr
    monoid: str = ""
    over: tuple[Axis, ...] = ()
    scan: bool = False
    given: bool = field(default=False, compare=False, repr=False)
    loc: Loc | None = field(default=None, compare=False, repr=False)

    @property
    def name(self) -> str:
        return self.buffer.name

    @property
    def is_pointwise(self) -> bool:
        return not self.monoid

    def at(self, indices: tuple[Expr, ...]) -> Expr:
        """The body of one element, of an array that folds nothing."""
        assert self.is_pointwise, self.name
        return substitute(
            self.body, {axis.var: i for axis, i in zip(self.axes, indices, strict=True)}
        )

    def __str__(self) -> str:
        axes = ", ".join(map(str, self.axes))
        fold = ""
        if self.monoid:
            word = f"scan {self.monoid}" if self.scan else self.monoid
            fold = f"{word}{{{', '.join(map(str, self.over))}}} "
        return f"{self.name}[{axes}]: {self.buffer.dtype} = {fold}{self.body}"


@dataclass(frozen=True)
class Formula:
    """A pure program: `outputs` are among the arrays (or inputs)."""

    name: str
    inputs: tuple[Buffer, ...]
    arrays: tuple[Array, ...]
    outputs: tuple[Buffer, ...]

    def definition(self, buffer: Buffer) -> Array | None:
        return next((a for a in self.arrays if a.buffer == buffer), None)

    def __str__(self) -> str:
        inputs = ", ".join(f"{b.name}: {b.dtype}{list(b.static_shape)}" for b in self.inputs)
        outputs = ", ".join(b.name for b in self.outputs)
        return "\n    ".join(
            [f"formula {self.name}({inputs}) -> {outputs}", *map(str, self.arrays)]
        )


def array(
    name: str, axes: tuple[Axis, ...], body: Expr, dtype: DType | None = None, **fold: Any
) -> Array:
    """An array of `body` over `axes`, of the body's type unless another is given."""
    buffer = tensor(name, tuple(axis.extent for axis in axes), dtype or body.dtype)
    return Array(buffer, axes, body, **fold)


def tensor(name: str, shape: tuple[int, ...], dtype: DType) -> Buffer:
    return Buffer(name, tuple(const(n, INT32) for n in shape), dtype, Space.GLOBAL)


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
        _verify_array(a, known)
        known[a.name] = a.buffer
    for b in formula.outputs:
        if known.get(b.name) != b:
            raise VerifyError(f"the output {b.name} is not defined")


def _verify_array(a: Array, known: dict[str, Buffer]) -> None:
    def wrong(what: str) -> VerifyError:
        return VerifyError(f"{a.name}: {what}", loc=a.loc)

    if a.name in known:
        raise wrong("the name is defined twice")
    if a.buffer.static_shape != tuple(axis.extent for axis in a.axes):
        raise wrong(f"axes do not make its shape {a.buffer.static_shape}")
    bound = [axis.var for axis in (a.axes if a.scan else a.axes + a.over)]
    if len(set(bound)) != len(bound):
        raise wrong("two of its axes have the same name")
    if bool(a.monoid) != bool(a.over) or a.monoid not in ("", *MONOIDS):
        raise wrong(f"unknown fold {a.monoid!r} over {len(a.over)} axes")
    if (a.scan or a.monoid.startswith("arg")) and len(a.over) != 1:
        raise wrong(f"{a.monoid} folds one axis, not {len(a.over)}")
    if a.scan and a.over[0] not in a.axes:
        raise wrong("a scan goes along one of its own axes")
    for var in variables(a.body) - set(bound):
        raise wrong(f"{var.name} is no axis of it")
    for read in reads(a):
        if known.get(read.buffer.name) != read.buffer:
            raise wrong(f"{read.buffer.name} is read before it is defined")
        if len(read.indices) != read.buffer.rank:
            raise wrong(f"{read.buffer.name} has {read.buffer.rank} dimensions: {read}")
