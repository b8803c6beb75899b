"""Symbolic arrays: what a math function computes with, and the definitions that it leaves.

Every operation on a `Value` appends one array to the formula that is being traced; a later pass
inlines what is pointwise. Transposes, slices and other views append nothing: they are read at
other indices. Elements are computed in the compute type (`promotion`), so 16-bit
values are rounded only where the formula ends or `astype` says so.

Inside a comprehension the indices are `Value`s of rank 0. Numbers computed from them stay
expressions; an array that depends on them becomes one over these indices too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import zip_longest
from math import prod
from typing import Any, NoReturn, TypeAlias

from tilewright.formula.front.instead import Foreign
from tilewright.formula.front.promotion import FLOAT64, compute_type
from tilewright.ir.analysis.bounds import bounds, prove
from tilewright.ir.analysis.intervals import fits
from tilewright.ir.core import *
from tilewright.ir.dtype import INT64
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import (
    Array,
    Axis,
    Extent,
    Monoid,
    extents,
    tensor,
    vars_of,
    within_sizes,
)
from tilewright.ir.simplify import simplify
from tilewright.lang.where import locate

Shape: TypeAlias = "tuple[Any, ...]"  # of integers, and of `Number`s
Elements: TypeAlias = "Callable[[tuple[Expr, ...]], Expr]"
Operand: TypeAlias = "Value | bool | int | float"

# what operators and methods of `Value` mean, by name; the files that define them fill it
OPERATIONS: dict[str, Callable[..., Any]] = {}
_trace: ContextVar[Trace | None] = ContextVar("formula", default=None)


class Trace:
    """The formula so far. Arrays and axes have numbers for names until it is done."""

    def __init__(self, sizes: tuple[Dim, ...] = ()) -> None:
        self.ranges = within_sizes(sizes)
        self.arrays: list[Array] = []
        self.words: dict[str, str] = {}  # what an array or an axis would be called
        self.names: dict[str, str] = {}  # what the user calls it
        self.outputs: set[str] = set()
        self.enclosing: list[Axis] = []  # the indices of comprehensions that are being written
        self._count = 0

    def fresh(self, word: str) -> str:
        self._count += 1
        name = f"%{self._count}"
        self.words[name] = word
        return name

    def axes(self, extents: Sequence[Any], words: Sequence[str] = ()) -> tuple[Axis, ...]:
        for n in extents:
            if isinstance(n, int) and n >= 1 << 31:
                raise CompileError(
                    f"an axis of {n:,} elements",
                    expected=f"fewer than {1 << 31:,}: indices have 32 bits",
                    fix="give it as two axes: tm.reshape(x, (-1, 1024))",
                )
        pairs = zip_longest(extents, words[: len(extents)], fillvalue="")
        return tuple(Axis(Var(self.fresh(word)), extent_of(extent)) for extent, word in pairs)

    @contextmanager
    def inside(self, axes: tuple[Axis, ...]) -> Iterator[None]:
        before = len(self.enclosing)
        self.enclosing += axes
        try:
            yield
        finally:
            del self.enclosing[before:]


def tracing_now() -> Trace | None:
    """The formula that is being written, if one is."""
    return _trace.get()


def current() -> Trace:
    found = _trace.get()
    if found is None:
        raise CompileError(
            "a formula is written inside a function that is traced",
            fix="put the code into a function and decorate it with @tw.math",
        )
    return found


@contextmanager
def tracing(trace: Trace) -> Iterator[None]:
    token = _trace.set(trace)
    try:
        yield
    finally:
        _trace.reset(token)


def _operator(name: str) -> tuple[Callable[..., Value], Callable[..., Value]]:
    """The methods that an operator calls on its left side, and else on its right side."""

    def left(a: Value, b: Any) -> Any:
        return OPERATIONS[name](a, b) if _is_theirs(b) else NotImplemented

    def right(b: Value, a: Any) -> Any:
        return OPERATIONS[name](a, b) if _is_theirs(a) else NotImplemented

    return left, right


def _unary(name: str) -> Callable[[Value], Value]:
    return lambda x: OPERATIONS[name](x)


class Value(Foreign):
    """A symbolic array: it has a shape and a type, and its elements are expressions.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: x * 2 + 1, [("x", (4,), "float32")]))
    formula formula(x: float32[4]) -> out
        multiply[i < 4]: float32 = x[i] * 2.0
        out[i1 < 4]: float32 = multiply[i1] + 1.0
    """

    __hash__ = object.__hash__

    def __init__(
        self,
        shape: Shape,
        dtype: DType,
        buffer: Buffer | None = None,
        outer: tuple[Expr, ...] = (),
        scalar: Expr | None = None,
        read: Callable[[tuple[Expr, ...]], tuple[Expr, ...]] = tuple,
    ) -> None:
        """Elements of `buffer`, whose first indices are `outer` and whose others `read` makes of
        those of this array; or the number `scalar`."""
        self.shape: Shape = tuple(Number(n) if isinstance(n, Expr) else n for n in shape)
        self.dtype, self.name = dtype, ""
        self.buffer, self._outer, self._scalar, self._read = buffer, outer, scalar, read

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> Any:
        return prod(self.shape)

    @property
    def T(self) -> Value:
        if self.ndim != 2:
            raise CompileError(
                f".T is the transpose of a matrix, not of shape {self.shape}",
                fix="use .mT for the last two axes, or tm.permute_dims(x, axes)",
            )
        return self.mT

    @property
    def mT(self) -> Value:
        found: Value = OPERATIONS["matrix_transpose"](self)
        return found

    @property
    def is_whole(self) -> bool:
        """An array as it is defined."""
        return self._read is tuple and not self._outer and self._scalar is None

    @property
    def is_all(self) -> bool:
        """All elements of one array, in some order."""
        return self.buffer is not None and same(self.size, input_of(self.buffer).size)

    def at(self, indices: tuple[Expr, ...]) -> Expr:
        """One element, in the compute type."""
        if self._scalar is not None:
            return self._scalar
        assert self.buffer is not None
        found = Load(self.buffer, self._outer + self._read(indices))
        return cast(found, compute_type(self.dtype))

    def over(self, axes: tuple[Axis, ...]) -> Value | None:
        """The array of this number over `axes`, if it is defined as one."""
        inner = vars_of(axes)
        before = len(self._outer) - len(axes)
        if self.shape or self._scalar is not None or self._read is not tuple or before < 0:
            return None
        if self._outer[before:] != inner:
            return None
        shape = tuple(axis.extent for axis in axes)
        return Value(shape, self.dtype, self.buffer, self._outer[:before])

    def view(self, shape: Shape, indices: Callable[..., tuple[Expr, ...]]) -> Value:
        """The same elements at other places: `indices` of the new ones are those of this."""
        return Value(
            shape, self.dtype, self.buffer, self._outer, self._scalar,
            lambda new: self._read(indices(*new)),
        )  # fmt: skip

    def of(self, buffer: Buffer, dtype: DType) -> Value:
        """The same elements of another buffer."""
        return Value(self.shape, dtype, buffer, self._outer, None, self._read)

    __add__, __radd__ = _operator("add")
    __sub__, __rsub__ = _operator("subtract")
    __mul__, __rmul__ = _operator("multiply")
    __truediv__, __rtruediv__ = _operator("divide")
    __floordiv__, __rfloordiv__ = _operator("floor_divide")
    __mod__, __rmod__ = _operator("remainder")
    __pow__, __rpow__ = _operator("pow")
    __matmul__, __rmatmul__ = _operator("matmul")
    __and__, __rand__ = _operator("bitwise_and")
    __or__, __ror__ = _operator("bitwise_or")
    __xor__, __rxor__ = _operator("bitwise_xor")
    __lshift__, __rlshift__ = _operator("bitwise_left_shift")
    __rshift__, __rrshift__ = _operator("bitwise_right_shift")
    __lt__, __le__ = _operator("less")[0], _operator("less_equal")[0]
    __gt__, __ge__ = _operator("greater")[0], _operator("greater_equal")[0]
    __eq__ = _operator("equal")[0]  # type: ignore[assignment]
    __ne__ = _operator("not_equal")[0]  # type: ignore[assignment]

    __neg__, __pos__ = _unary("negative"), _unary("positive")
    __abs__, __invert__ = _unary("abs"), _unary("bitwise_invert")

    def __getitem__(self, key: Any) -> Value:
        found: Value = OPERATIONS["getitem"](self, key)
        return found

    def __len__(self) -> int:
        if not self.shape:
            raise CompileError("a number has no length", fix="index an array, not a number")
        return int(self.shape[0])

    def __setitem__(self, key: Any, value: Any) -> NoReturn:
        raise CompileError(
            "elements of a formula's arrays are not assigned: arrays are definitions",
            fix="choose elements with tm.where(condition, new, old), or join arrays by tm.concat",
        )

    def __bool__(self) -> bool:
        self._unknown(
            "Python's if, while, and, or, not, max, min or a < b < c",
            "use tm.where, tm.maximum, tm.minimum, &, | and ~",
        )

    def __iter__(self) -> Iterator[Value]:
        self._unknown(
            "a Python loop over an array",
            "use tm.unstack(x) for its rows, or operations on the whole array",
        )

    def __contains__(self, item: object) -> bool:
        self._unknown("Python's in", "use tm.any(x == item)")

    def __float__(self) -> float:
        self._unknown("float()", 'use tm.astype(x, "float32")')

    def __int__(self) -> int:
        self._unknown("int()", 'use tm.astype(x, "int32")')

    def __index__(self) -> int:
        self._unknown(
            "a Python list, range or size", "sizes are x.shape[axis]; index a formula's array"
        )

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        return OPERATIONS["namespace"]()

    def _unknown(self, where: str, fix: str) -> NoReturn:
        raise CompileError(
            f"{where} needs a value, but a formula's array has none until it runs",
            got=repr(self),
            fix=fix,
        )

    def __repr__(self) -> str:
        return f"an array of {self.dtype}{list(self.shape)}"


class Number(Value):
    """A number that calls give: a size, or what is computed of sizes. Like Python's numbers it
    takes the type of what it meets; where contracts decide a comparison, it is True or False."""

    def __init__(self, expr: Expr) -> None:
        """`expr` is int32 or bool, or float64 until somebody says in what it is computed."""
        is_float = expr.dtype.is_float
        self.number_kind = "float" if is_float else "bool" if expr.dtype.is_bool else "int"
        super().__init__((), FLOAT32 if is_float else expr.dtype, scalar=expr)
        self.expr = expr

    def in_type(self, kind: DType) -> Expr:
        """The number, computed in `kind`: of integers in 64 bits, where 32 may not hold them."""
        ranges = current().ranges
        wide = _retyped(self.expr, {FLOAT64: kind, INT32: INT64})
        ints = (x for x in walk(wide) if isinstance(x, Bin) and x.dtype == INT64)
        if kind == INT32 or all(fits(bounds(x, ranges), INT32) for x in ints):
            wide = _retyped(self.expr, {FLOAT64: kind})
        return cast(wide, kind)

    def __hash__(self) -> int:
        return hash(self.expr)

    def __bool__(self) -> bool:
        known = prove(truth(self.expr), current().ranges)
        return super().__bool__() if known is None else known

    def _unknown(self, where: str, fix: str) -> NoReturn:
        names = ", ".join(sorted(var.name for var in variables(self.expr)))
        raise CompileError(
            f"{where} needs a number, but {self} is known only when the function is called",
            fix=f"{fix}; or leave {names} out of dynamic=, or let its contract decide: "
            f'T.dynamic("{names}", min=…, max=…)',
        )

    def __repr__(self) -> str:
        return str(self.expr)


def _retyped(node: Expr, kinds: dict[DType, DType]) -> Expr:
    """An expression of scalars, computed in other types."""
    kind = kinds.get(node.dtype, node.dtype)
    match node:
        case Const(value=value):
            return const(value, kind)
        case Var():
            return cast(node, kind)
        case Cast(a=a):
            return cast(_retyped(a, kinds), kind)
        case Call(name=name, args=args):
            return Call(name, tuple(_retyped(x, kinds) for x in args), kind)
    return map_children(node, lambda x: _retyped(x, kinds))


def sized(expr: Expr) -> Any:
    """A number of sizes: Python's, where it is known."""
    found = simplify(expr, current().ranges)
    return found.value if isinstance(found, Const) else Number(found)


def extent_of(n: Any) -> Extent:
    """A size as axes have it."""
    expr = n.expr if isinstance(n, Number) else n
    return simplify(expr) if isinstance(expr, Expr) else int(expr)


def same(a: Any, b: Any) -> bool:
    """Whether two sizes are one, whatever calls give."""
    return extent_of(a) == extent_of(b)


# ── operands ─────────────────────────────────────────────────────────────────────────────────


def is_value(x: Any) -> bool:
    return isinstance(x, Value)


def is_operand(x: Any) -> bool:
    """A value, or a number of Python or NumPy."""
    return isinstance(x, (Value, bool, int, float)) or (
        hasattr(x, "item") and getattr(x, "shape", None) == ()
    )


def _is_theirs(x: Any) -> bool:
    """What an operator takes, or refuses with a reason."""
    return is_operand(x) or hasattr(x, "shape") or isinstance(x, (list, tuple, complex, str))


def operand(x: Any, what: str = "an operation") -> Operand:
    if isinstance(x, (Value, bool, int, float)):
        return x
    if is_operand(x):
        number: Operand = x.item()
        return number
    is_array = hasattr(x, "shape") or isinstance(x, (list, tuple, complex, str))
    raise CompileError(
        f"{what} takes arrays of the formula and numbers, not {type(x).__name__}",
        got=f"elements of {x.dtype}, shape {x.shape}" if hasattr(x, "dtype") else repr(x)[:80],
        fix="pass it as an argument of the function, as an array: np.asarray(x)"
        if is_array
        else "give it an array",
    )


def array_of(x: Any, what: str) -> Value:
    found = operand(x, what)
    if isinstance(found, Value) and not isinstance(found, Number):
        return found
    raise CompileError(
        f"{what} takes an array, not the number {found!r}", fix="make one by tm.full(shape, number)"
    )


def element_of(x: Operand, indices: tuple[Expr, ...], dtype: DType) -> Expr:
    """The element of an operand that belongs to `indices` of the shape it is broadcast to."""
    kind = compute_type(dtype)
    if not isinstance(x, Value):
        return const(float(x) if kind.is_float else x, kind)
    if isinstance(x, Number):
        return x.in_type(kind)
    return cast(broadcast_at(x, indices), kind)


def broadcast_at(x: Value, indices: tuple[Expr, ...]) -> Expr:
    own = indices[len(indices) - x.ndim :]
    zero = const(0)
    return x.at(tuple(zero if same(n, 1) else i for n, i in zip(x.shape, own, strict=True)))


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all of them broadcast to.

    >>> broadcast_shapes((8, 1), (4,))
    (8, 4)
    """
    found: list[Any] = []
    for column in zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1):
        sizes = {extent_of(n): n for n in column if not same(n, 1)}
        if len(sizes) > 1:
            raise CompileError(
                f"the shapes {' and '.join(map(str, shapes))} do not broadcast",
                expected="sizes that are equal or 1, counted from the last axis",
                got=f"sizes {' and '.join(map(str, sizes))} on axis {-1 - len(found)}",
                fix="reshape one of them, or give it an axis of size 1 with x[:, None]",
            )
        found.append(next(iter(sizes.values()), 1))
    return tuple(found[::-1])


def shape_of(*operands: Operand) -> Shape:
    return broadcast_shapes(*(x.shape for x in operands if isinstance(x, Value)))


def axis_of(axis: Any, ndim: int, what: str = "axis") -> int:
    """An axis counted from the front."""
    if isinstance(axis, bool) or not hasattr(axis, "__index__") or isinstance(axis, Value):
        raise CompileError(f"{what} is a Python integer, not {axis!r}", fix="write a number")
    found = int(axis.__index__())
    if not -ndim <= found < ndim:
        of = "an axis of {} elements" if what == "index" else "an array of {} axes"
        raise CompileError(
            f"there is no {what} {found} in {of.format(ndim)}",
            expected=f"a number from {-ndim} to {ndim - 1}" if ndim else f"no {what}",
            fix="count from 0, or from the end with -1",
        )
    return found % ndim


def sizes(shape: Any, what: str = "a shape") -> Shape:
    """A shape as people write it: an integer or some of them."""
    each = shape if isinstance(shape, (tuple, list)) else (shape,)
    given = [n for n in each if not (isinstance(n, Number) and n.dtype.is_int)]
    if any(not hasattr(n, "__index__") or isinstance(n, (Value, bool)) for n in given):
        raise CompileError(
            f"Python integers are needed for {what}",
            got=repr(shape)[:80],
            fix="write one, such as 8, or some, such as (8, 16)",
        )
    return tuple(n if isinstance(n, Number) else n.__index__() for n in each)


def paired(a: Any, b: Any, what: str) -> list[tuple[int, int]]:
    """Integers that belong together; a single one belongs to each."""
    left, right = sizes(a, what), sizes(b, what)
    left = left * len(right) if len(left) == 1 else left
    if len(left) != len(right):
        raise CompileError(
            f"{what} come in pairs", got=f"{left} and {right}", fix="give as many of both"
        )
    return list(zip(left, right, strict=True))


def number_of(x: Any, what: str) -> Any:
    """A Python number, known when the formula is written, or one of sizes."""
    found = operand(x, what)
    if isinstance(found, Number):
        return found
    if isinstance(found, Value):
        raise CompileError(
            f"{what} takes Python numbers, not {found!r}",
            fix="shapes are known before a formula runs: compute with tm.arange(n) instead",
        )
    return found


# ── definitions ──────────────────────────────────────────────────────────────────────────────


def define(
    word: str,
    shape: Shape,
    elements: Elements,
    dtype: DType,
    *,
    monoid: str = "",
    over: tuple[Axis, ...] = (),
    axes: tuple[Axis, ...] | None = None,
    scan: int | None = None,
    stored: DType | None = None,
    by: Monoid | None = None,
) -> Value:
    """A new array of `shape`, whose elements `elements` says for given indices. `over` are axes
    that it folds by `monoid` (which `elements` knows), `scan` is the axis that it folds along. It
    is stored in the compute type, if nobody says otherwise, and without axes of size 1."""
    if axes is None and stored is None:
        long = [d for d, n in enumerate(shape) if not same(n, 1) or d == scan]
        if len(long) < len(shape):
            return _define_long(word, shape, elements, dtype, long, monoid, over, scan, by)
    trace = current()
    axes = trace.axes(shape) if axes is None else axes
    kind = compute_type(dtype)
    with trace.inside(over):
        body = elements(vars_of(axes))
    body = body if monoid.startswith("arg") or by else cast(body, kind)
    if not shape and not monoid and trace.enclosing:
        return Value((), dtype, scalar=body)
    free = variables(body) - {*vars_of(axes + over)}
    free = {var for var in free if var.name.startswith("%")}  # no sizes
    outer = [axis for axis in trace.enclosing if axis.var in free]
    if len(outer) < len(free):
        raise CompileError(
            "an index is used outside of the comprehension that it belongs to",
            fix="return what depends on the indices from the function that gets them",
        )
    own = trace.axes([a.extent for a in outer], [trace.words[a.var.name] for a in outer])
    body = substitute(body, dict(zip(vars_of(outer), vars_of(own), strict=True)))
    if stored is not None:
        kind, body = stored, cast(body, stored)
    buffer = tensor(trace.fresh(word), tuple(a.extent for a in own + axes), kind)
    folds = over if scan is None else (axes[scan],)
    trace.arrays.append(
        Array(buffer, own + axes, body, monoid, folds, scan is not None, by, loc=locate())
    )
    return Value(shape, dtype, buffer, vars_of(outer))


def _define_long(
    word: str,
    shape: Shape,
    elements: Elements,
    dtype: DType,
    long: list[int],
    monoid: str,
    over: tuple[Axis, ...],
    scan: int | None,
    by: Monoid | None,
) -> Value:
    """Without axes of size 1: later stages find the same axis in every array."""

    def inner(new: tuple[Expr, ...]) -> Expr:
        known = dict(zip(long, new, strict=True))
        return elements(tuple(known.get(d, const(0)) for d in range(len(shape))))

    along = None if scan is None else long.index(scan)
    extents = tuple(shape[d] for d in long)
    found = define(word, extents, inner, dtype, monoid=monoid, over=over, scan=along, by=by)
    return found.view(shape, lambda *new: tuple(new[d] for d in long))


def pointwise(
    word: str, operands: Sequence[Operand], build: Callable[..., Expr], inner: DType, outer: DType
) -> Value:
    """`build` of the elements of `operands`, broadcast and computed in `inner`."""

    def elements(indices: tuple[Expr, ...]) -> Expr:
        return build(*(element_of(x, indices, inner) for x in operands))

    return define(word, shape_of(*operands), elements, outer)


def astype(x: Value, dtype: Any, /, *, copy: bool = True) -> Value:
    """`x` in another type. A narrower float is rounded to, here: nothing undoes it.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: astype(x, "bfloat16") - x, [("x", (4,), "float32")]))
    formula formula(x: float32[4]) -> out
        astype[i < 4]: float32 = float32(bfloat16(x[i]))
        out[i1 < 4]: float32 = astype[i1] - x[i1]
    """
    x, kind = array_of(x, "astype"), find_dtype(dtype)
    return define("astype", x.shape, lambda new: cast(x.at(new), kind), kind)


def input_of(buffer: Buffer) -> Value:
    return Value(extents(buffer), buffer.dtype, buffer)
