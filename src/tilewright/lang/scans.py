"""Scans of tile values, and reductions by a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import *
from tilewright.lang import compute
from tilewright.lang.axes import ONE, Axis, shape_text
from tilewright.lang.builder import Position, current_block
from tilewright.lang.handles import Tiles
from tilewright.lang.reductions import as_result, dims_of, masked, summed
from tilewright.lang.values import Value, value_of
from tilewright.support.errors import word

NAMED = ("sum", "prod", "max", "min")

LONGEST = 32768  # elements of a line that the registers of a block hold


@dataclass
class Scanned:
    """A scan that was emitted at a position. Its totals are kept once somebody asks for them."""

    op: Scan
    position: Position
    rest: tuple[Axis, ...]  # the axes that lines do not run along

    @property
    def is_open(self) -> bool:
        return current_block().in_turn(self.position)

    def totals(self) -> list[Buffer]:
        """The folds of whole lines."""
        if not self.op.totals:
            builder = current_block()
            space = Space.FRAGMENT if self.rest else Space.SHARED
            shape = tuple(const(axis.size) for axis in self.rest) or (const(1),)
            found = []
            for source in self.op.sources:
                name = builder.fresh(builder.hint, "total")
                found.append(whole(Buffer(name, shape, source.dtype, space)))
                builder.emit_at(self.position, Alloc(found[-1].buffer, loc=self.op.loc))
            self.op = rebuild(self.op, totals=tuple(found))
            builder.replace_at(self.position, self.op)
        return [region.buffer for region in self.op.totals]


def cumsum(src: Any, dst: Any = None, dim: int = 0, reverse: bool = False) -> Any:
    if not isinstance(src, (Value, Tiles)) or dst is not None:
        return compute.cumsum(src, dst, dim, reverse)
    return scan(src, "sum", dim=dim, reverse=reverse)


cumsum.__doc__ = compute.cumsum.__doc__


def cumprod(x: Any, *, dim: int, reverse: bool = False) -> Value:
    """The inclusive products along a dimension; from the end with `reverse`.

    Example:
        Y[:, :] = T.cumprod(X[:, :] / 2 + 1, dim=1)
        # Y[0]: 1 1.5 3 7.5
    """
    return scan(x, "prod", dim=dim, reverse=reverse)  # type: ignore[no-any-return]


def scan(x: Any, op: Any, *, dim: int, reverse: bool = False) -> Any:
    """The inclusive scan along a dimension, from the end with `reverse`.

    `op` is "sum", "prod", "max", "min", or an associative function of two elements. A tuple of
    values is scanned by a function of two tuples.

    >>> @tw.jit
    ... def recurrence(A, B):
    ...     M, N = T.const("M, N")
    ...     A: T.Tensor((M, N), "float32")
    ...     B: T.Tensor((M, N), "float32")
    ...     H = T.empty((M, N), "float32")
    ...     for m in T.tile(M):
    ...         then = lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1])
    ...         _, H[m, :] = T.scan((A[m, :], B[m, :]), then, dim=1)
    ...     return H
    >>> a, b = np.full((1, 4), 0.5, np.float32), np.ones((1, 4), np.float32)
    >>> recurrence(a, b).tolist()  # h = 0.5 * h + 1
    [[1.0, 1.5, 1.75, 1.875]]
    """
    values = _scanned_values(x, op)
    (at,) = _one_dim(values[0], dim)
    axis = values[0].axes[at]
    if axis is ONE or axis.size == 1:
        return tuple(values) if isinstance(x, (tuple, list)) else values[0]
    done = _emitted(values, op, at, bool(reverse), is_tuple=isinstance(x, (tuple, list)))
    made = [Value.of(v.axes, r.buffer) for v, r in zip(values, done.op.results, strict=False)]
    return tuple(made) if isinstance(x, (tuple, list)) else made[0]


def reduce(src: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
    """The fold along a dimension by `op`, an associative function of two elements; of a tuple of
    values by a function of two tuples.

    `T.reduce(src, dst, kind, dim=-1, clear=True, nan_propagate=True)` is the form on tiles: dst =
    `kind` over dimension `dim` of src, or folded into dst when not `clear`. `kind` is sum, max,
    min, abssum, absmax, bitand, bitor, bitxor, any or all. `nan_propagate=False` skips NaN in max,
    min and absmax; where all elements are NaN, the result is the neutral one: -∞, ∞ or 0.

    Example:
        Y[0, :] = T.reduce(X[:, :], lambda a, b: T.maximum(a, b), dim=1)
        # Y[0]: 63 62 61
    """
    if callable(op):
        return _reduce_by(src, op, *args, **kwargs)
    if isinstance(op, str):
        raise CompileError(
            "T.reduce of a value takes a function",
            got=f'"{op}"',
            fix=f"T.{op}(x, dim=1) has a name of its own; others: lambda a, b: …",
            code="arguments",
        )
    return compute.reduce(src, op, *args, **kwargs)


def _reduce_by(x: Any, op: Any, *, dim: int, keepdim: bool = False) -> Any:
    values = _scanned_values(x, op)
    dims = _one_dim(values[0], dim)
    axis = values[0].axes[dims[0]]
    if axis is ONE or axis.size == 1:

        def first(value: Value) -> Any:
            if keepdim:
                kept = tuple(ONE if a is axis else a for a in value.axes)
                return Value(kept, value.kind, value.element, (value,))
            return value[tuple(0 if d == dims[0] else slice(None) for d in range(value.ndim))]

        made = [first(value) for value in values]
    else:
        is_tuple = isinstance(x, (tuple, list))
        done = _emitted(values, op, dims[0], False, is_tuple, total=True)
        pairs = zip(values, done.totals(), strict=False)
        made = [as_result(value, dims, keepdim, buffer, "fold") for value, buffer in pairs]
    return tuple(made) if isinstance(x, (tuple, list)) else made[0]


def _scanned_values(x: Any, op: Any) -> list[Value]:
    """What is scanned, in the types in which it is."""
    is_tuple = isinstance(x, (tuple, list))
    if not callable(op) and (is_tuple or op not in NAMED):
        raise CompileError(
            f"T.{word()}: unknown operator" if not is_tuple else f"T.{word()} of a tuple",
            expected="a function of two tuples" if is_tuple else "a function of two elements, or "
            + ", ".join(f'"{name}"' for name in NAMED),
            got=repr(op),
            fix="write it: lambda a, b: a + b, with a[0], a[1], … for tuples",
            code="arguments",
        )  # fmt: skip
    values = [value_of(v) if op in ("max", "min") else summed(v) for v in (x if is_tuple else [x])]
    keys = [[axis.key for axis in value.axes] for value in values]
    if any(key != keys[0] for key in keys):
        raise CompileError(
            f"T.{word()}: the values have different shapes",
            got=" and ".join(shape_text(value.axes) for value in values),
            fix="bring them to one shape, e.g. by adding T.zeros of it",
            code="shape",
        )
    return values


def _one_dim(value: Value, dim: Any) -> list[int]:
    dims = dims_of(value, dim)
    if len(dims) != 1:
        raise CompileError(
            f"T.{word()} goes along one dimension",
            got=f"dim={dim}",
            fix="take one after the other",
            code="arguments",
        )
    return dims


def _emitted(
    values: Sequence[Value],
    op: Any,
    at: int,
    reverse: bool,
    is_tuple: bool = False,
    total: bool = False,
) -> Scanned:
    """The op that scans `values` along dimension `at`. Padding has no part in results that count,
    nor in the totals of a scan by name, nor in those asked for."""
    builder = current_block()
    axis, by = values[0].axes[at], None
    builder.uncut.add(len(builder.kernels))
    builder.scanned.append((len(builder.kernels), values[0].axes, axis, not callable(op)))
    if axis.size > LONGEST:
        raise CompileError(
            f"T.{word()} of a row that does not fit the registers of a block",
            got=f"a value of shape {shape_text(values[0].axes)}",
            fix=f"loop over pieces of it, with what came before: for j in T.tile({axis.name}): "
            "y = T.cumsum(x, dim=1) + before[:, None]; before += T.sum(x, dim=1)",
            code="shape",
        )
    given = list(values)
    if callable(op):
        by = _operator(op, [value.kind for value in values], is_tuple)
        if axis.is_ragged and (reverse or total or axis.first is not None):
            by = _optional(by)
            given.append(
                Value(values[0].axes, INT32, lambda p: cast(axis.inside(p[at]), INT32), values)
            )
    elif not (op == "sum" and axis in values[0].zeros and not values[0].padding):
        given = [masked(values[0], op, [axis])]
    sources = [value.hold() for value in given]
    real = given[0].real
    where = next(k for k, each in enumerate(real) if each is axis)
    dim = [k for k, each in enumerate(real) if each.size != 1].index(where)
    results = []
    for source in sources:
        name = builder.fresh(builder.hint, "scan")
        results.append(Buffer(name, source.shape, source.dtype, Space.FRAGMENT))
        builder.emit(Alloc(results[-1]))
    first, *more = map(whole, sources)
    into, *others = map(whole, results)
    position = builder.position()
    builder.emit(
        Scan("by" if by else op, first, into, dim, reverse, by, tuple(more), tuple(others))
    )
    made = builder.trail[-1]
    assert isinstance(made, Scan)
    rest = tuple(each for each in real if each is not axis)
    done = Scanned(made, position, rest)
    if by is None:
        values[0].scans[op, at] = done
    return done


def _operator(function: Callable[..., Any], kinds: list[DType], is_tuple: bool) -> Operator:
    """A Python function of elements as one of the IR."""
    sides = [
        [Var(f"{side}{k}" if is_tuple else side, kind) for k, kind in enumerate(kinds)]
        for side in "ab"
    ]
    made = function(*(tuple(side) if is_tuple else side[0] for side in sides))
    results = made if is_tuple and isinstance(made, (tuple, list)) else (made,)
    names = {var for side in sides for var in side}
    found = [wrap(e, kind) for e, kind in zip(results, kinds, strict=False)]
    if len(results) != len(kinds) or any(
        k.is_int and e.dtype.is_float for e, k in zip(found, kinds, strict=False)
    ):
        raise CompileError(
            f"the function of T.{word()} gives something else than it takes",
            expected=", ".join(map(str, kinds)),
            got=", ".join(str(e.dtype) for e in found) or repr(made),
            fix="return an element of the same type for each that it takes",
            code="dtype",
        )
    for e in found:
        outer = [str(x) for x in walk(e) if isinstance(x, Load)]
        outer += [var.name for var in variables(e) - names]
        if outer:
            raise CompileError(
                f"the function of T.{word()} uses more than its arguments",
                expected="its arguments, and numbers known when the kernel is traced",
                got=outer[0],
                fix="scan a tuple of values, and make it one of them",
                code="not-constant",
            )
    vars = tuple(var for side in sides for var in side)
    return Operator(vars, tuple(cast(e, k) for e, k in zip(found, kinds, strict=True)))


def _optional(by: Operator) -> Operator:
    """`by` of elements that need not be there: the last one of a tuple says whether the others
    are."""
    count = len(by.result)
    left, right = by.vars[:count], by.vars[count:]
    a, b = Var("a_there", INT32), Var("b_there", INT32)
    found = tuple(
        select(truth(b), select(truth(a), both, y), x)
        for both, x, y in zip(by.result, left, right, strict=True)
    )
    return Operator((*left, a, *right, b), (*found, a | b))
