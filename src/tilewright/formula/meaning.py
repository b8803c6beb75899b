"""What a formula means: every array computed in NumPy, one after the other."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Array, Formula, Monoid, at_sizes, bound_sizes
from tilewright.machine.numbers import bin_fn, call_fn, cast_fn, cmp_fn

_FOLDS: dict[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "any": np.logical_or, "all": np.logical_and,
}  # fmt: skip
_FLOAT64 = find_dtype("float64")
_AT_ONCE = 1 << 22  # elements of a body that are computed at a time


def evaluate(
    formula: Formula, inputs: Sequence[Any], exactly: bool = False
) -> tuple[np.ndarray[Any, Any], ...]:
    """The outputs for `inputs`. `exactly` computes all that is float in float64, and rounds only
    where the formula says so.

    >>> from tilewright.ir.formula import Axis, array, tensor
    >>> x, i = tensor("x", (3,), FLOAT32), Axis(Var("i"), 3)
    >>> double = array("y", (i,), Load(x, (i.var,)) * 2)
    >>> evaluate(Formula("double", (x,), (double,), (double.buffer,)), [np.arange(3)])[0].tolist()
    [0.0, 2.0, 4.0]
    """
    if formula.sizes:
        formula = at_sizes(formula, bound_sizes(formula, [np.shape(x) for x in inputs]))
    values: dict[str, np.ndarray[Any, Any]] = {}
    for b, given in zip(formula.inputs, inputs, strict=True):
        values[b.name] = _wide(np.asarray(given).astype(b.dtype.numpy), exactly)
    with np.errstate(all="ignore"):
        for a in formula.arrays:
            values[a.name] = computed(a, values, exactly)
        return tuple(
            values[b.name] if exactly else values[b.name].astype(b.dtype.numpy)
            for b in formula.outputs
        )


def _wide(x: np.ndarray[Any, Any], exactly: bool) -> np.ndarray[Any, Any]:
    is_float = exactly and find_dtype(x.dtype).is_float
    return x.astype(np.float64) if is_float else x


def computed(
    a: Array,
    values: dict[str, np.ndarray[Any, Any]],
    exactly: bool,
    evaluator: type[Evaluator] | None = None,
) -> np.ndarray[Any, Any]:
    """One array."""
    parts = []
    for env, shape in parts_of(a):
        value = (evaluator or Evaluator)(env, values, exactly)
        bodies = [np.broadcast_to(value(body), shape) for body in a.bodies]
        parts.append(_folded_by(a, bodies, exactly) if a.by else _folded(a, bodies[0]))
    whole = np.concatenate(parts) if len(parts) > 1 else parts[0]
    kind = _wide(np.empty((), a.buffer.dtype.numpy), exactly).dtype
    return np.asarray(whole).astype(kind)


def parts_of(a: Array) -> Iterator[tuple[dict[Var, Any], tuple[int, ...]]]:
    """The axes as indices, and the shape that a body has, part by part along the first axis, so
    that long folds of wide arrays take no more memory than they must."""
    axes = a.domain
    extents = [axis.extent for axis in axes if isinstance(axis.extent, int)]
    first = extents[0] if a.axes and not (a.scan and a.over[0] == a.axes[0]) else 1
    step = max(1, _AT_ONCE // max(1, int(np.prod(extents)) // max(1, first)))
    for begin in range(0, first, step) if first else [0]:
        ranges = [np.arange(n) for n in extents]
        if first > 1:
            ranges[0] = ranges[0][begin : begin + step]
        grid = np.ix_(*ranges) if ranges else ()
        env = {axis.var: index.astype(np.int32) for axis, index in zip(axes, grid, strict=True)}
        yield env, tuple(len(r) for r in ranges)


def _folded_by(a: Array, bodies: list[np.ndarray[Any, Any]], exactly: bool) -> np.ndarray[Any, Any]:
    """A fold or a scan by the user's monoid, in pairs, which keep the order."""
    assert a.by is not None
    if a.scan:
        along = a.axes.index(a.over[0])
        lines, step = [np.moveaxis(body, along, 0) for body in bodies], 1
        while step < len(lines[0]):
            later = combined(a.by, [x[:-step] for x in lines], [x[step:] for x in lines], exactly)
            lines = [np.concatenate([x[:step], y]) for x, y in zip(lines, later, strict=True)]
            step *= 2
        return np.moveaxis(lines[a.by.part], 0, along)
    kept = bodies[0].shape[: len(a.axes)]
    lines = [np.moveaxis(body.reshape(*kept, -1), -1, 0) for body in bodies]
    if not len(lines[0]):
        return np.full(kept, a.by.identity[a.by.part])
    while len(lines[0]) > 1:
        even = len(lines[0]) // 2 * 2
        found = combined(a.by, [x[:even:2] for x in lines], [x[1:even:2] for x in lines], exactly)
        lines = [np.concatenate([y, x[even:]]) for x, y in zip(lines, found, strict=True)]
    return np.asarray(lines[a.by.part][0])


def combined(by: Monoid, left: Sequence[Any], right: Sequence[Any], exactly: bool) -> list[Any]:
    """Two tuples of elements combined."""
    env = dict(zip(by.combine.vars, (*left, *right), strict=True))
    value = Evaluator(env, {}, exactly)
    shape = np.broadcast_shapes(*(np.shape(x) for x in (*left, *right)))
    return [np.broadcast_to(value(e), shape) for e in by.combine.result]


def _folded(a: Array, body: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    if not a.monoid:
        return body
    if a.scan:
        along = a.axes.index(a.over[0])
        found: np.ndarray[Any, Any] = _FOLDS[a.monoid].accumulate(body, along)
        return found
    dims = tuple(range(len(a.axes), body.ndim))
    if a.monoid.startswith("arg"):
        return np.asarray(getattr(np, a.monoid)(body, dims[0]))
    ufunc = _FOLDS[a.monoid]
    wide = {"dtype": np.float64} if body.dtype == np.float32 and a.monoid in ("sum", "prod") else {}
    if 0 in (body.shape[d] for d in dims) and a.monoid in ("max", "min"):
        start = -np.inf if a.monoid == "max" else np.inf
        return np.full(body.shape[: len(a.axes)], start)
    return np.asarray(ufunc.reduce(body, axis=dims, **wide)).astype(
        body.dtype if ufunc not in (np.logical_or, np.logical_and) else bool
    )


class Evaluator:
    """Expressions over index arrays that broadcast."""

    def __init__(
        self, env: dict[Var, Any], values: dict[str, np.ndarray[Any, Any]], exactly: bool
    ) -> None:
        self.env, self.values, self.exactly = env, values, exactly
        self.known: dict[Expr, Any] = {}

    def __call__(self, node: Expr) -> Any:
        found = self.known.get(node)
        if found is None:
            found = self.known[node] = self._value(node)
        return found

    def _type(self, dtype: DType) -> DType:
        return _FLOAT64 if self.exactly and dtype.is_float else dtype

    def _value(self, node: Expr) -> Any:
        kind = self._type(node.dtype)
        if isinstance(node, Const):
            return np.asarray(node.value, kind.numpy)
        if isinstance(node, Var):
            return self.env[node]
        if isinstance(node, Load):
            return self.element(node, self.values[node.buffer.name])
        args = [self(child) for child in node.children]
        match node:
            case Bin(op=op):
                return bin_fn(op, kind)(*args)
            case Cmp(op=op, a=a):
                return cmp_fn(op, self._type(a.dtype))(*args)
            case Select():
                return np.where(args[0], args[1], args[2])
            case Cast(dtype=dtype, a=a):
                if self.exactly and dtype.is_float and a.dtype.is_float:
                    narrow = dtype.bits < 32  # a rounding that the formula asks for
                    return cast_fn(_FLOAT64, dtype)(args[0]).astype(float) if narrow else args[0]
                return cast_fn(self._type(a.dtype), kind)(args[0])
            case Call(name=name, args=given):
                return call_fn(name, tuple(self._type(a.dtype) for a in given), kind)(*args)
        raise AssertionError(type(node))

    def element(self, node: Load, table: Any) -> Any:
        """Of an array; outside it elements are zero."""
        indices = [np.asarray(self(i)) for i in node.indices]
        shape = node.buffer.static_shape
        inside: Any = True
        for index, extent in zip(indices, shape, strict=True):
            inside = inside & (index >= 0) & (index < extent)
        if 0 in shape:
            return np.zeros(np.shape(inside), table.dtype)
        safe = tuple(np.clip(i, 0, n - 1) for i, n in zip(indices, shape, strict=True))
        return np.where(inside, table[safe], np.zeros((), table.dtype))
