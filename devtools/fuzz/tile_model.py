"""The meaning of tile values, in NumPy: `Model` plays `T` for the text of a kernel.

Every tile holds exactly the elements of its range: the last one is shorter. Blocks run one after
another. Tensors note what was read and what was written.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype("float16")
FLOAT32, INT32, BOOL = np.dtype("float32"), np.dtype("int32"), np.dtype("bool")
FLOAT64, INT64 = np.dtype("float64"), np.dtype("int64")
# which saturate, at their largest numbers
NARROW = {np.dtype(ml_dtypes.float8_e4m3fn): 448, np.dtype(ml_dtypes.float8_e5m2): 57344}
FLOATS = (FLOAT32, FLOAT64, BFLOAT16, FLOAT16, *NARROW)
WHOLE = [np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)]
DTYPES = {str(d): d for d in (*FLOATS, *WHOLE, BOOL)}
MOST = 2.0**20  # sums of halves below it do not depend on their order


class TooLarge(Exception):
    """A number so large that orders of sums would show."""


def is_float(dtype: Any) -> bool:
    return dtype in FLOATS


def promote(a: Any, b: Any) -> Any:
    """The type of a choice between two."""
    if a == b:
        return a
    if is_float(a) and is_float(b):
        if a.itemsize == b.itemsize:
            return FLOAT32
        return max(a, b, key=lambda d: d.itemsize)
    if is_float(a) or is_float(b):
        return a if is_float(a) else b
    if BOOL in (a, b):
        return b if a == BOOL else a
    both = np.promote_types(a, b)
    return INT64 if both == FLOAT64 else both


def fits(number: int, kind: Any) -> bool:
    return bool(np.iinfo(kind).min <= number <= np.iinfo(kind).max)


def kept(*sides: Any) -> Any:
    """The type that a choice keeps; numbers take the other side's kind."""
    kinds = [s.dtype for s in sides if isinstance(s, Val)]
    kind = kinds[0]
    for other in kinds[1:]:
        kind = promote(kind, other)
    for side in sides:
        if isinstance(side, int) and kind in WHOLE and not fits(side, kind):
            kind = promote(kind, INT32)
    return FLOAT32 if any(isinstance(s, float) for s in sides) and not is_float(kind) else kind


def computed(*sides: Any) -> Any:
    """The type of arithmetic."""
    return wide(kept(*sides))


def wide(kind: Any) -> Any:
    """The type of arithmetic with numbers of a type."""
    if is_float(kind):
        return FLOAT64 if kind == FLOAT64 else FLOAT32
    return kind if kind.itemsize >= 4 else INT32


def plain(x: Any, dtype: Any) -> Array:
    with np.errstate(all="ignore"):
        found = np.asarray(x.a if isinstance(x, Val) else x)
        if dtype in NARROW:
            most = NARROW[dtype]
            found = np.clip(found.astype(np.float64), -most, most)
        return found.astype(dtype)


def summed(x: Val) -> Array:
    """Elements as sums and products take them: all integers wrap alike."""
    return plain(x, np.float64 if is_float(x.dtype) else np.int64)


def real(x: Val) -> Any:
    """The type of functions of reals."""
    return FLOAT64 if x.dtype == FLOAT64 else FLOAT32


class Val:
    """A tile of numbers."""

    __hash__ = None  # type: ignore[assignment]
    tile = 0  # the size of the tile whose end it is

    def __init__(self, a: Any, place: tuple[Tensor, Any] | None = None) -> None:
        self.a: Array = np.asarray(a)
        self.place = place
        if is_float(self.a.dtype) and self.a.size:
            with np.errstate(all="ignore"):
                known = np.abs(self.a.astype(np.float32))
            if np.nanmax(np.where(np.isinf(known), 0, known), initial=0) > MOST:
                raise TooLarge
        elif self.a.dtype == INT32 and self.a.size and np.abs(self.a.astype(int)).max() > 2**30:
            raise TooLarge

    dtype = property(lambda self: self.a.dtype)
    T = property(lambda self: Val(self.a.T))

    def __bool__(self) -> bool:
        assert self.a.ndim == 0
        return bool(self.a)

    def __index__(self) -> int:
        assert self.a.ndim == 0 and not is_float(self.a.dtype)
        return int(self.a)

    def __getitem__(self, key: Any) -> Val:
        return Val(self.a[tuple(map(index_of, key if isinstance(key, tuple) else (key,)))])

    def __neg__(self) -> Val:
        return Val(-plain(self, computed(self)))

    def __invert__(self) -> Val:
        return Val(~self.a if self.a.dtype == BOOL else ~plain(self, computed(self)))

    def __abs__(self) -> Val:
        return Val(abs(self.a))

    def __matmul__(self, other: Val) -> Val:
        assert self.a.dtype == other.a.dtype
        assert self.a.shape[1] == other.a.shape[0]
        kind = computed(self)
        return Val((plain(self, np.float64) @ plain(other, np.float64)).astype(kind))


def index_of(key: Any) -> Any:
    return int(key) if isinstance(key, Val) else key


def _operator(op: str, swapped: bool) -> Any:
    ufunc: Any = {
        "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
        "floordiv": np.floor_divide, "mod": np.mod, "lt": np.less, "le": np.less_equal,
        "eq": np.equal, "ne": np.not_equal, "gt": np.greater, "ge": np.greater_equal,
        "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    }[op]  # fmt: skip

    def method(self: Val, other: Any) -> Val:
        a, b = (other, self) if swapped else (self, other)
        kind = computed(a, b)
        if op == "truediv" and not is_float(kind):
            kind = FLOAT32
        if op in ("and", "or", "xor") and self.dtype == BOOL:
            kind = BOOL
        with np.errstate(all="ignore"):
            return Val(ufunc(plain(a, kind), plain(b, kind)))

    return method


for _op in "add sub mul truediv floordiv mod and or xor".split():
    setattr(Val, f"__{_op}__", _operator(_op, False))
    setattr(Val, f"__r{_op}__", _operator(_op, True))
for _op in "lt le eq ne gt ge".split():
    setattr(Val, f"__{_op}__", _operator(_op, False))


def number(n: Any) -> Val:
    return Val(np.asarray(int(n), INT32))


class Index:
    """A tile index."""

    def __init__(self, start: int, stop: int, size: int) -> None:
        self.first, self.last, self.size = start, stop, size

    start = property(lambda self: number(self.first))

    @property
    def stop(self) -> Val:
        found = number(self.last)
        found.tile = self.size
        return found

    index = property(lambda self: Val(np.arange(self.first, self.last, dtype=INT32)))
    is_empty = property(lambda self: self.first >= self.last)

    def __add__(self, by: Any) -> Index:
        return Index(self.first + int(by), self.last + int(by), self.size)

    def __sub__(self, by: Any) -> Index:
        return self + -int(by)

    def within(self, low: Any, high: Any) -> Index:
        first, last = (min(end + int(low), int(high)) for end in (self.first, self.last))
        return Index(first, last, self.size)


class Tensor:
    """An array; outside it, zeros."""

    def __init__(self, a: Array) -> None:
        self.a, self.dtype = a, a.dtype
        self.read, self.written = np.zeros(a.shape, bool), np.zeros(a.shape, bool)

    def _places(self, key: Any) -> tuple[tuple[Array, ...], Array]:
        """The index of each element along each dimension, and which lie inside."""
        keys = key if isinstance(key, tuple) else (key,)
        assert len(keys) == self.a.ndim
        values = [k.a for k in keys if isinstance(k, Val) and k.a.ndim]
        joint = np.broadcast_shapes(*(v.shape for v in values))
        shape: list[int] = []
        at: list[int | None] = []
        for k, size in zip(keys, self.a.shape, strict=True):
            is_value = isinstance(k, Val) and k.a.ndim
            if is_value and any(a is not None and a < 0 for a in at):
                at.append(next(a for a in at if a is not None and a < 0))
            elif is_value:
                at.append(-1 - len(shape))
                shape += joint
            elif isinstance(k, (Index, slice)):
                at.append(len(shape))
                span = range(k.first, k.last) if isinstance(k, Index) else range(size)[k]
                shape.append(len(span))
            else:
                at.append(None)
        found = []
        inside = np.ones(shape, bool)
        for k, where, size in zip(keys, at, self.a.shape, strict=True):
            if where is None:
                one = np.full(shape, int(k))
            elif where < 0:
                one = np.broadcast_to(k.a.astype(int), joint)
                one = one.reshape(joint + (1,) * (len(shape) - (-1 - where) - len(joint)))
            else:
                span = range(k.first, k.last) if isinstance(k, Index) else range(size)[k]
                one = np.asarray(span, int).reshape((-1,) + (1,) * (len(shape) - where - 1))
            one = np.broadcast_to(one, shape)
            inside &= (one >= 0) & (one < size)
            found.append(one)
        return tuple(found), inside

    def get(self, key: Any, fill: Any = 0) -> Val:
        places, inside = self._places(key)
        self.read[tuple(p[inside] for p in places)] = True
        safe = tuple(np.where(inside, p, 0) for p in places)
        return Val(np.where(inside, self.a[safe], np.asarray(fill).astype(self.dtype)), (self, key))

    def __getitem__(self, key: Any) -> Val:
        return self.get(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        places, inside = self._places(key)
        assert inside.all(), "a store outside"
        new = np.broadcast_to(plain(value, self.dtype), inside.shape)
        flat = np.ravel_multi_index(places, self.a.shape)
        assert len(np.unique(flat)) == flat.size, "two stores to one element"
        self.a[places] = new
        self.written[places] = True


class Each:
    def __init__(self, count: Any) -> None:
        self.count = int(count)


def dims(shape: Any) -> tuple[int, ...]:
    return tuple(d.last - d.first if isinstance(d, Index) else int(d) for d in shape)


def _steps(
    tiles: list[Array], step: Callable[[list[Val], list[Val]], Any], dim: int, reverse: bool
) -> list[Array]:
    """Inclusive scans of several tiles together, in order."""
    lines = [np.moveaxis(tile, dim, 0)[:: -1 if reverse else 1] for tile in tiles]
    total: list[Val] = []
    found: list[list[Array]] = [[] for _ in tiles]
    for k in range(len(lines[0])):
        now = [Val(line[k]) for line in lines]
        total = list(step(total, now)) if k else now
        for kept_, each in zip(found, total, strict=True):
            kept_.append(each.a)
    made = [np.stack(each) if each else line for each, line in zip(found, lines, strict=True)]
    return [np.moveaxis(each[:: -1 if reverse else 1], 0, dim) for each in made]


def _folding(name: str) -> Any:
    def word(
        self: Model, x: Any, other: Any = None, *, dim: Any = None, keepdim: bool = False
    ) -> Val:
        if dim is None:
            return Val(
                getattr(np, f"{name}imum")(plain(x, kept(x, other)), plain(other, kept(x, other)))
            )
        return Val(getattr(np, name)(x.a, axis=dim, keepdims=keepdim))

    return word


class Model:
    """The words of `T`."""

    inf = math.inf

    def __init__(self, sizes: Mapping[str, int], tiles: Mapping[str, int]) -> None:
        self.sizes, self.tiles = sizes, tiles

    def const(self, names: str) -> Any:
        found = [self.sizes[name.strip()] for name in names.split(",")]
        return found if len(found) > 1 else found[0]

    def empty(self, shape: Any, dtype: str, partial: bool = False) -> Tensor:
        return Tensor(np.zeros(dims(shape), DTYPES[dtype]))

    each = staticmethod(Each)

    def tile(self, *axes: Any, names: str, kernel: int, size: Any = None) -> list[Any]:
        """`names`: the loop's variables, which choose the sizes, in all kernels or in one."""

        def one(axis: Any, name: str) -> list[Any]:
            if isinstance(axis, Each):
                return [number(n) for n in range(axis.count)]
            start, stop = axis if isinstance(axis, tuple) else (0, axis)
            low, high = int(start), int(stop)
            wide = size or self.tiles.get(f"{name} of {kernel}") or self.tiles[name]
            is_data = isinstance(stop, Val) and not isinstance(start, Val) and low == 0
            if isinstance(stop, Val) and stop.tile and stop.tile % wide == 0:
                is_data = False  # whole tiles end where that one does
            if size is None and is_data:  # the first tile is cut
                first = high - -(-high // wide) * wide
                return [Index(max(at, 0), at + wide, wide) for at in range(first, high, wide)]
            return [Index(at, min(at + wide, high), wide) for at in range(low, high, wide)]

        every = itertools.product(*map(one, axes, names.split(", ")))
        return [found[0] if len(found) == 1 else found for found in every]

    def full(self, shape: Any, value: Any, dtype: str = "float32") -> Val:
        return Val(np.full(dims(shape), plain(value, DTYPES[dtype]), DTYPES[dtype]))

    def zeros(self, shape: Any, dtype: str = "float32") -> Val:
        return self.full(shape, 0, dtype)

    def ones(self, shape: Any, dtype: str = "float32") -> Val:
        return self.full(shape, 1, dtype)

    def arange(self, n: Any) -> Val:
        return Val(np.arange(dims((n,))[0], dtype=INT32))

    def load(self, x: Val, fill: Any = 0) -> Val:
        """What was read there and then, `fill` outside the tensor."""
        if x.place is None or fill == 0:
            return x
        inside = x.place[0]._places(x.place[1])[1]
        return Val(np.where(inside, x.a, np.asarray(fill).astype(x.dtype)))

    def cast(self, x: Val, dtype: str) -> Val:
        return Val(plain(x, DTYPES[dtype]))

    def where(self, cond: Val, a: Any, b: Any) -> Val:
        kind = kept(a, b)
        return Val(np.where(cond.a, plain(a, kind), plain(b, kind)))

    def maximum(self, a: Any, b: Any) -> Val:
        return self.max(a, b)  # type: ignore[no-any-return]

    def minimum(self, a: Any, b: Any) -> Val:
        return self.min(a, b)  # type: ignore[no-any-return]

    max, min = _folding("max"), _folding("min")

    def sum(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(summed(x).sum(axis=dim, keepdims=keepdim).astype(computed(x)))

    def mean(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(plain(x, np.float64).mean(axis=dim, keepdims=keepdim).astype(real(x)))

    def var(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(plain(x, np.float64).var(axis=dim, keepdims=keepdim).astype(real(x)))

    def any_of(self, x: Val) -> Val:
        return Val(x.a.any())

    def all_of(self, x: Val) -> Val:
        return Val(x.a.all())

    def any(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(x.a.any(axis=dim, keepdims=keepdim))

    def all(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(x.a.all(axis=dim, keepdims=keepdim))

    def argmax(self, x: Val, *, dim: int, keepdim: bool = False) -> Val:
        return Val(plain(x, np.float64).argmax(axis=dim, keepdims=keepdim).astype(INT32))

    def argmin(self, x: Val, *, dim: int, keepdim: bool = False) -> Val:
        return Val(plain(x, np.float64).argmin(axis=dim, keepdims=keepdim).astype(INT32))

    def prod(self, x: Val, *, dim: Any, keepdim: bool = False) -> Val:
        return Val(summed(x).prod(axis=dim, keepdims=keepdim).astype(computed(x)))

    def cumsum(self, x: Val, *, dim: int, reverse: bool = False) -> Val:
        return self.scan(x, lambda a, b: a + b, dim=dim, reverse=reverse)  # type: ignore[no-any-return]

    def cumprod(self, x: Val, *, dim: int, reverse: bool = False) -> Val:
        return self.scan(x, lambda a, b: a * b, dim=dim, reverse=reverse)  # type: ignore[no-any-return]

    def scan(self, x: Any, op: Any, *, dim: int, reverse: bool = False) -> Any:
        """One step after the other."""
        if isinstance(op, str):
            fold = getattr(self, op)  # max or min, which keep the type
            return Val(_steps([x.a], lambda a, b: [fold(a[0], b[0])], dim, reverse)[0])
        many = isinstance(x, tuple)
        tiles = [plain(each, computed(each)) for each in (x if many else (x,))]
        step = (lambda a, b: op(tuple(a), tuple(b))) if many else (lambda a, b: [op(a[0], b[0])])
        found = [
            Val(line.astype(tile.dtype))
            for line, tile in zip(_steps(tiles, step, dim, reverse), tiles, strict=True)
        ]
        return tuple(found) if many else found[0]

    def reduce(self, x: Val, op: Any, *, dim: int, keepdim: bool = False) -> Val:
        last = np.take(self.scan(x, op, dim=dim).a, [-1], axis=dim)
        return Val(last if keepdim else last.squeeze(dim))

    def reshape(self, x: Val, shape: Any) -> Val:
        return Val(x.a.reshape(dims(shape)))

    def atomic_add(self, place: Val, value: Any) -> None:
        assert place.place is not None
        tensor, key = place.place
        places, inside = tensor._places(key)
        assert inside.all()
        new = np.broadcast_to(plain(value, tensor.dtype), inside.shape)
        np.add.at(tensor.a, places, new)
        tensor.written[places] = True

    def __getattr__(self, name: str) -> Any:
        function = FUNCTIONS[name]
        return lambda x: Val(function(plain(x, np.float64)).astype(real(x)))


FUNCTIONS: dict[str, Any] = {
    "exp": np.exp, "tanh": np.tanh, "abs": np.abs,
    "relu": lambda x: np.maximum(x, 0),
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "silu": lambda x: x / (1 + np.exp(-x)),
    "softplus": lambda x: np.log1p(np.exp(x)),
}  # fmt: skip
