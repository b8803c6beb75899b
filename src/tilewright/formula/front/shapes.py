"""Arrays of a shape and of constants; arrays cut, joined and turned."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.formula.front.elementwise import named
from tilewright.formula.front.indexing import getitem, is_sure
from tilewright.formula.front.promotion import compute_type, result_type
from tilewright.formula.front.values import (
    OPERATIONS,
    Number,
    Shape,
    Value,
    array_of,
    axis_of,
    broadcast_shapes,
    define,
    element_of,
    extent_of,
    number_of,
    operand,
    paired,
    same,
    sizes,
)
from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Extent
from tilewright.support.errors import CompileError

# ── views ────────────────────────────────────────────────────────────────────────────────────


def permute_dims(x: Value, /, axes: Sequence[int]) -> Value:
    """The axes in another order."""
    x = array_of(x, "permute_dims")
    order = [axis_of(axis, x.ndim) for axis in axes]
    if sorted(order) != list(range(x.ndim)):
        raise CompileError(
            f"permute_dims names each of {x.ndim} axes once", got=repr(axes), fix="such as (1, 0)"
        )
    places = [order.index(d) for d in range(x.ndim)]
    return x.view(tuple(x.shape[d] for d in order), lambda *new: tuple(new[p] for p in places))


def matrix_transpose(x: Value, /) -> Value:
    """The last two axes swapped."""
    x = array_of(x, "matrix_transpose")
    if x.ndim < 2:
        raise CompileError(
            f"a matrix has two axes, not shape {x.shape}", fix="make a column with x[:, None]"
        )
    return permute_dims(x, (*range(x.ndim - 2), x.ndim - 1, x.ndim - 2))


def moveaxis(x: Value, source: Any, destination: Any, /) -> Value:
    """Some axes moved to other places, the rest in order."""
    x = array_of(x, "moveaxis")
    pairs = paired(source, destination, "the axes of moveaxis")
    moves = {axis_of(b, x.ndim): axis_of(a, x.ndim) for a, b in pairs}
    order = [d for d in range(x.ndim) if d not in moves.values()]
    for target, origin in sorted(moves.items()):
        order.insert(target, origin)
    return permute_dims(x, order)


def expand_dims(x: Value, /, *, axis: Any = 0) -> Value:
    """With an axis of size 1 more (or several)."""
    x = array_of(x, "expand_dims")
    given = sizes(axis)
    new = {axis_of(each, x.ndim + len(given)) for each in given}
    rest = iter(x.shape)
    shape = tuple(1 if d in new else next(rest) for d in range(x.ndim + len(new)))
    return x.view(shape, lambda *at: tuple(i for d, i in enumerate(at) if d not in new))


def squeeze(x: Value, /, axis: Any) -> Value:
    """Without some axes of size 1."""
    x = array_of(x, "squeeze")
    gone = {axis_of(each, x.ndim) for each in sizes(axis)}
    for d in gone:
        if not same(x.shape[d], 1):
            raise CompileError(
                f"axis {d} of shape {x.shape} has more than one element",
                fix="take one of them: x[:, 0]",
            )
    return getitem(x, tuple(0 if d in gone else slice(None) for d in range(x.ndim)))


def broadcast_to(x: Value, /, shape: Any) -> Value:
    """Repeated along axes of size 1 and along new ones in front."""
    x, shape = array_of(x, "broadcast_to"), sizes(shape)
    if not all(map(same, broadcast_shapes(x.shape, shape), shape)) or x.ndim > len(shape):
        raise CompileError(
            f"shape {x.shape} does not broadcast to {shape}", fix="give it an axis of size 1"
        )
    skip = len(shape) - x.ndim
    return x.view(
        shape,
        lambda *new: tuple(
            const(0) if same(n, 1) else i for n, i in zip(x.shape, new[skip:], strict=True)
        ),
    )


def broadcast_arrays(*arrays: Any) -> tuple[Value, ...]:
    """All of them in the shape that they broadcast to."""
    found = [array_of(x, "broadcast_arrays") for x in arrays]
    shape = broadcast_shapes(*(x.shape for x in found))
    return tuple(broadcast_to(x, shape) for x in found)


def flip(x: Value, /, *, axis: Any = None) -> Value:
    """In reverse order along some axes, or along all."""
    x = array_of(x, "flip")
    turned = {axis_of(d, x.ndim) for d in (range(x.ndim) if axis is None else sizes(axis))}
    return getitem(x, tuple(slice(None, None, -1 if d in turned else 1) for d in range(x.ndim)))


def reshape(x: Value, /, shape: Any, *, copy: bool | None = None) -> Value:
    """The same elements, in order, in another shape; one size may be -1.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda x: reshape(x, (2, -1, 8)), [("x", (8, 8), "float32")]))
    formula formula(x: float32[8, 8]) -> out
        out[i < 2, j < 4, k < 8]: float32 = x[i * 4 + j, k]
    """
    x, new = array_of(x, "reshape"), sizes(shape)
    open_ = [d for d, n in enumerate(new) if same(n, -1)]
    if len(open_) == 1:
        left = quotient(x.size, math.prod(n for d, n in enumerate(new) if d != open_[0]))
        new = tuple(left if d == open_[0] and left is not None else n for d, n in enumerate(new))
    if any(same(n, -1) for n in new) or not _hold_as_many(math.prod(new), x.size):
        raise CompileError(
            f"shape {x.shape} has {x.size} elements, which {new} does not hold",
            fix="say what divides a size: T.dynamic(name, multiple_of=4)"
            if isinstance(x.size, Number)
            else "give a shape of as many elements, with one -1 for what is left",
        )
    groups = _groups(x.shape, new)

    def indices(*at: Expr) -> tuple[Expr, ...]:
        found: list[Expr] = [const(0)] * x.ndim
        for old, given in groups:
            flat = at[given[0]]
            for d in given[1:]:
                flat = flat * extent_of(new[d]) + at[d]
            for d in reversed(old):
                found[d] = flat % _least_one(x.shape[d]) if d != old[0] else flat
                flat = flat // _least_one(x.shape[d])
        return tuple(found)

    return x.view(new, indices)


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Axes of both shapes that have as many elements together, as few axes as may be."""
    left = [d for d, n in enumerate(old) if not same(n, 1)]
    right = [d for d, n in enumerate(new) if not same(n, 1)]
    if any(same(n, 0) for n in old):
        return [(left, right)]
    found = []
    while left or right:
        a, b = [left.pop(0)], [right.pop(0)]
        while True:
            before, after = math.prod(old[d] for d in a), math.prod(new[d] for d in b)
            if _hold_as_many(before, after):
                break
            sized = isinstance(before, Number) or isinstance(after, Number)
            shorter = quotient(before, after) is None if sized else before < after
            if left and (shorter or not right):
                a.append(left.pop(0))
            else:
                b.append(right.pop(0))
        found.append((a, b))
    return found


def _least_one(n: Any) -> Extent:
    """A size to divide by."""
    found = extent_of(n)
    return max(1, found) if isinstance(found, int) else found


def quotient(a: Any, b: Any) -> Any:
    """a / b of sizes, if it is one: what one is a product of, the other is, too, or a contract
    says that nothing is left."""
    rest, by = _lowest(a, b)
    if same(by, 1):
        return rest
    return rest // by if is_sure(by != 0) and is_sure(rest % by == 0) else None


def _lowest(a: Any, b: Any) -> tuple[Any, Any]:
    """Two sizes without the factors that they have in common."""
    (k, above), (m, below) = _factors(a), _factors(b)
    both = math.gcd(k, m) or 1
    rest = math.prod((above - below).elements(), start=k // both)
    return rest, math.prod((below - above).elements(), start=m // both)


def _hold_as_many(a: Any, b: Any) -> bool:
    rest, by = _lowest(a, b)
    return is_sure(rest == by)


def _factors(n: Any) -> tuple[int, Counter[Number]]:
    """A size as a number times sizes that are no products."""
    match n.expr if isinstance(n, Number) else n:
        case Bin(op="*", a=a, b=b):
            (k, some), (m, more) = (_factors(Number(x)) for x in (a, b))
            return k * m, some + more
        case Const(value=value):
            return int(value), Counter()
        case Expr() as expr:
            return 1, Counter([Number(expr)])
    return int(n), Counter()


def roll(x: Value, /, shift: Any, *, axis: Any = None) -> Value:
    """Moved along axes, what leaves at the end comes in at the start."""
    x = array_of(x, "roll")
    if axis is None:
        return reshape(roll(reshape(x, (-1,)), shift, axis=0), x.shape)
    by = [0] * x.ndim
    for n, d in paired(shift, axis, "the shifts and axes of roll"):
        by[axis_of(d, x.ndim)] += n

    def indices(*new: Expr) -> tuple[Expr, ...]:
        steps = zip(new, by, x.shape, strict=True)
        return tuple(_rolled(i, extent_of(n), extent_of(size)) for i, n, size in steps)

    return x.view(x.shape, indices)


def _rolled(i: Expr, by: Extent, size: Extent) -> Expr:
    if isinstance(by, int) and isinstance(size, int):
        return (i + -by % size) % size if size and by % size else i
    return i if by == 0 else (i - by) % size


def repeat(x: Value, repeats: Any, /, *, axis: int | None = None) -> Value:
    """Each element some times, one after the other."""
    x = array_of(x, "repeat")
    if axis is None:
        return repeat(reshape(x, (-1,)), repeats, axis=0)
    along, counts = axis_of(axis, x.ndim), sizes(repeats, "the count of repeat")
    if len(counts) != 1:
        raise CompileError(
            "repeat takes one count",
            got=repr(repeats),
            fix="gather instead: x[indices]",
        )
    count = counts[0]
    shape = tuple(n * count if d == along else n for d, n in enumerate(x.shape))
    each = _least_one(count)
    return x.view(
        shape, lambda *new: tuple(i // each if d == along else i for d, i in enumerate(new))
    )


def tile(x: Value, repetitions: Any, /) -> Value:
    """The whole array some times along each axis."""
    x, counts = array_of(x, "tile"), sizes(repetitions)
    ndim = max(x.ndim, len(counts))
    whole = (1,) * (ndim - x.ndim) + x.shape
    counts = (1,) * (ndim - len(counts)) + counts
    shape = tuple(n * count for n, count in zip(whole, counts, strict=True))
    skip = ndim - x.ndim

    def indices(*new: Expr) -> tuple[Expr, ...]:
        rows = zip(new[skip:], x.shape, counts[skip:], strict=True)
        return tuple(i % _least_one(n) if not same(count, 1) else i for i, n, count in rows)

    return x.view(shape, indices)


def unstack(x: Value, /, *, axis: int = 0) -> tuple[Value, ...]:
    """The parts along an axis."""
    x = array_of(x, "unstack")
    along = axis_of(axis, x.ndim)
    return tuple(getitem(x, (*[slice(None)] * along, i)) for i in range(x.shape[along]))


# ── joined ───────────────────────────────────────────────────────────────────────────────────


def concat(arrays: Sequence[Any], /, *, axis: int | None = 0) -> Value:
    """Arrays one after the other along an axis."""
    parts = [array_of(x, "concat") for x in arrays]
    if axis is None:
        parts, axis = [reshape(x, (-1,)) for x in parts], 0
    if not parts:
        raise CompileError("concat of no arrays", fix="give it at least one")
    along = axis_of(axis, parts[0].ndim)
    rest = {tuple(extent_of(n) for d, n in enumerate(x.shape) if d != along) for x in parts}
    if len(rest) > 1 or len({x.ndim for x in parts}) > 1:
        raise CompileError(
            f"concat of shapes {' and '.join(str(x.shape) for x in parts)}",
            fix=f"they may differ on axis {along} only",
        )
    kind = result_type(*parts) if len({x.dtype for x in parts}) > 1 else parts[0].dtype
    total = sum(x.shape[along] for x in parts)
    shape = tuple(total if d == along else n for d, n in enumerate(parts[0].shape))

    def elements(new: tuple[Expr, ...]) -> Expr:
        found: Expr | None = None
        begin = total
        for x in reversed(parts):
            end, begin = begin, begin - x.shape[along]
            first = extent_of(begin)
            own = tuple(i - first if d == along else i for d, i in enumerate(new))
            here = cast(x.at(own), compute_type(kind))
            found = here if found is None else select(new[along] < extent_of(end), here, found)
        assert found is not None
        return found

    return define("concat", shape, elements, kind)


def stack(arrays: Sequence[Any], /, *, axis: int = 0) -> Value:
    """Arrays of one shape along a new axis."""
    parts = [array_of(x, "stack") for x in arrays]
    if len({tuple(map(extent_of, x.shape)) for x in parts}) > 1:
        raise CompileError(
            f"stack of shapes {' and '.join(str(x.shape) for x in parts)}", fix="make them equal"
        )
    return concat([expand_dims(x, axis=axis) for x in parts], axis=axis)


# ── made of nothing ──────────────────────────────────────────────────────────────────────────


def full(shape: Any, fill_value: Any, *, dtype: Any = None) -> Value:
    """One number everywhere."""
    given = operand(fill_value, "full")
    kind = result_type(given) if dtype is None else find_dtype(dtype)
    extents = sizes(shape)
    if any(isinstance(n, int) and n < 0 for n in extents):
        raise CompileError(f"the shape {extents} has a negative size", fix="write sizes from 0 on")
    return define("full", extents, lambda new: element_of(given, (), kind), kind)


def zeros(shape: Any, *, dtype: Any = "float32") -> Value:
    """Zeros; float32 unless said otherwise."""
    return full(shape, 0, dtype=dtype)


def ones(shape: Any, *, dtype: Any = "float32") -> Value:
    """Ones; float32 unless said otherwise."""
    return full(shape, 1, dtype=dtype)


def full_like(x: Value, /, fill_value: Any, *, dtype: Any = None) -> Value:
    """One number everywhere, in the shape and type of `x`."""
    x = array_of(x, "full_like")
    return full(x.shape, fill_value, dtype=dtype or x.dtype)


def zeros_like(x: Value, /, *, dtype: Any = None) -> Value:
    return full_like(x, 0, dtype=dtype)


def ones_like(x: Value, /, *, dtype: Any = None) -> Value:
    return full_like(x, 1, dtype=dtype)


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: Any = None) -> Value:
    """start, start + step, … before stop; integers are int64 and floats float32 unless said."""
    start, stop = (0, start) if stop is None else (start, stop)
    start, stop, step = (number_of(x, "arange") for x in (start, stop, step))
    if not step:
        raise CompileError("the step of arange is zero", fix="leave it out")
    kind = result_type(start, stop, step) if dtype is None else find_dtype(dtype)
    if any(isinstance(n, Number) for n in (start, stop, step)):
        if not isinstance(step, int):
            raise CompileError("arange of sizes has an integer step", fix="multiply what it gives")
        count = (stop - start + step - (1 if step > 0 else -1)) // step
    else:
        count = max(0, math.ceil((stop - start) / step))
    return define("arange", (count,), lambda new: _line(new[0], start, step, kind), kind)


def _line(i: Expr, start: Any, step: Any, dtype: DType) -> Expr:
    kind = compute_type(dtype)
    return cast(i, kind) * element_of(step, (), kind) + element_of(start, (), kind)


def linspace(start: Any, stop: Any, /, num: int, *, dtype: Any = "float32",
             endpoint: bool = True) -> Value:  # fmt: skip
    """`num` numbers from start to stop, evenly spaced."""
    start, stop, num = (number_of(x, "linspace") for x in (start, stop, num))
    kind = find_dtype(dtype)
    parts = num - 1 if endpoint else num

    def elements(new: tuple[Expr, ...]) -> Expr:
        line = _line(new[0], start, (stop - start) / max(1, parts), kind)
        last = element_of(stop, (), kind)
        return select(compare("==", new[0], num - 1), last, line) if endpoint and num > 1 else line

    return define("linspace", (num,), elements, kind)


def eye(n_rows: int, n_cols: int | None = None, /, *, k: int = 0,
        dtype: Any = "float32") -> Value:  # fmt: skip
    """Ones on the diagonal `k`, zeros elsewhere."""
    kind = find_dtype(dtype)
    one, zero = (const(v, compute_type(kind)) for v in (1, 0))
    shape = sizes((n_rows, n_rows if n_cols is None else n_cols))
    return define(
        "eye", shape, lambda new: select(compare("==", new[0] + k, new[1]), one, zero), kind
    )


def _part(word: str, about: str, inside: Callable[..., Expr]) -> Callable[..., Value]:
    def part(x: Value, /, *, k: int = 0) -> Value:
        x = array_of(x, word)
        if x.ndim < 2:
            raise CompileError(f"{word} is of matrices, not of shape {x.shape}", fix="add an axis")

        def elements(new: tuple[Expr, ...]) -> Expr:
            here = x.at(new)
            return select(inside(*new[-2:], k), here, const(0, here.dtype))

        return define(word, x.shape, elements, x.dtype)

    return named(word, about, part)


tril = _part("tril", "Zero above the diagonal `k`.", lambda i, j, k: j <= i + k)
triu = _part("triu", "Zero below the diagonal `k`.", lambda i, j, k: j >= i + k)


def meshgrid(*arrays: Any, indexing: str = "xy") -> list[Value]:
    """Vectors broadcast against each other, each along an axis of its own."""
    parts = [array_of(x, "meshgrid") for x in arrays]
    order = list(range(len(parts)))
    if indexing == "xy" and len(parts) > 1:
        order[:2] = [1, 0]
    shape: list[Any] = [0] * len(parts)
    for place, x in zip(order, parts, strict=True):
        shape[place] = x.shape[0]
    return [
        x.view(tuple(shape), lambda *new, place=place: (new[place],))
        for place, x in zip(order, parts, strict=True)
    ]


def diff(
    x: Value, /, *, axis: int = -1, n: int = 1, prepend: Any = None, append: Any = None
) -> Value:
    """The differences of neighbours along an axis, `n` times, of what `prepend` and `append` make
    longer."""
    x = array_of(x, "diff")
    if prepend is not None or append is not None:
        x = concat([a for a in (prepend, x, append) if a is not None], axis=axis)
    along = [slice(None)] * axis_of(axis, x.ndim)
    for _ in range(n):
        x = getitem(x, (*along, slice(1, None))) - getitem(x, (*along, slice(None, -1)))
    return x


OPERATIONS["matrix_transpose"] = matrix_transpose
