"""Values of names in a kernel: a buffer, one element of it, a region, a variable."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tilewright.ir.core import *
from tilewright.lang.builder import current
from tilewright.lang.check import difference, is_apart
from tilewright.lang.scalar import Read, Scalar, concrete, not_lost
from tilewright.lang.types import Extent, ScalarType, integer
from tilewright.lang.where import locate
from tilewright.support.errors import swap, word

# words of `move` and `atomics`, which import this file, that operators on handles call
WORDS: dict[str, Callable[..., Any]] = {}


class Handle:
    """A buffer or a part of one."""

    buffer: Buffer
    kernel: Kernel | None = None  # that it belongs to
    bounded = False  # whether bounds are written: `A[0:64, :]`, not `A[b, :, :]`
    region: Any = property(lambda self: whole(self.buffer))
    axes: Any = property(lambda self: tuple(range(self.buffer.rank)))  # of its shape
    name = property(lambda self: self.buffer.name)
    dtype = property(lambda self: ScalarType(self.buffer.dtype))


class Tile(Handle):
    """A tensor or a tile: `T.copy(tile, …)`, `tile[i, j]`, `tile[i0:i1, :]`, `tile.shape`."""

    reducer: str | None = None

    def __init__(
        self, buffer: Buffer, kernel: Kernel | None = None, declared: tuple[Any, ...] | None = None
    ) -> None:
        self.buffer, self.kernel = buffer, kernel
        self.extents = declared or tuple(map(concrete, buffer.shape))  # by name, where declared

    ndim = property(lambda self: len(self.axes))

    @property
    def shape(self) -> tuple[Any, ...]:
        """Sizes of `T.const` keep their names."""
        sizes = [(concrete(self.region.extents[axis]), self.extents[axis]) for axis in self.axes]
        return tuple(e if isinstance(e, Extent) and e == size else size for size, e in sizes)

    @property
    def strides(self) -> tuple[Any, ...]:
        """In elements, row-major unless declared."""
        if self.buffer.strides is not None:
            return tuple(concrete(s) for s in self.buffer.strides)
        found: list[Expr] = [const(1)]
        for size in reversed(self.buffer.shape[1:]):
            found.insert(0, found[0] * size)
        return tuple(concrete(s) for s in found[: self.buffer.rank])

    @property
    def data(self) -> Memory:
        """The memory itself, for `T.Tensor(shape, dtype, A.data)`: a view."""
        return Memory(self)

    def scope(self) -> str:
        return self.buffer.space.value

    def __len__(self) -> int:
        return int(self.shape[0])

    def __iter__(self) -> Any:
        raise CompileError(
            f"{self.name} is a tile: it cannot be iterated",
            fix="loop over its indices with T.Parallel or T.serial",
        )

    def __bool__(self) -> bool:
        raise CompileError(
            f"{self.name} is a tile, not a condition",
            fix="test an element, or use T.any_of(tile)",
            code="whole-tile",
        )

    def __getitem__(self, key: Any) -> Any:
        if _adds_ones(key):
            return WORDS["read_with_ones"](self, key if isinstance(key, tuple) else (key,))
        keys = expand_key(self.buffer, key)
        if any(hasattr(k, "tile_value") for k in keys):
            return WORDS["read"](self, keys)
        if any(isinstance(k, slice) for k in keys):
            given = len(key) if isinstance(key, (tuple, list)) else 1
            return Tiles(self, keys, given < self.buffer.rank and Ellipsis not in _items(key))
        return Access(self, tuple(index_expr(self.buffer, axis, k) for axis, k in enumerate(keys)))

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(value, Done):
            return
        keys = expand_key(self.buffer, key)
        is_value = hasattr(value, "tile_value") and not isinstance(value, Tile)
        if is_value or any(hasattr(each, "tile_value") for each in keys):
            WORDS["store"](self, keys, value)
            return
        target = self[key]
        if isinstance(target, Access):
            store(target, value)
        elif isinstance(value, Tile):
            WORDS["copy"](value.now(target), target)
        else:
            WORDS["fill"](target, value)

    def now(self, target: Tile) -> Any:
        """What `target = self` reads: the place, or its value where the store may change it."""
        return self

    def __repr__(self) -> str:
        return f"<{self.buffer.space.value} {self.name}{list(self.shape)} {self.dtype}>"


@dataclass(frozen=True)
class Memory:
    """A buffer's memory without its shape."""

    tile: Tile

    def tilewright_view(self, shape: Any, dtype: Any = None) -> Tile:
        return WORDS["view"](self.tile, shape, dtype)  # type: ignore[no-any-return]


def no_array_function(self: Any, function: Any, *_: Any) -> Any:
    """NumPy would take the value as one element."""
    raise CompileError(
        f"NumPy's {function.__name__} cannot take a tile",
        fix="NumPy runs at compile time: use the word of T, as in T.sum(x, dim=1)",
        code="whole-tile",
    )


def no_operator(self: Any, *_: Any) -> Any:
    if isinstance(self, Tiles):
        rank, kept = self.buffer.rank, len(self.axes)
        raise CompileError(
            f"this is a region of {self.name}, not an element: {kept} of its {rank} dimensions "
            f"{'is' if kept == 1 else 'are'} not indexed",
            expected=f"{rank} indices",
            got=f"{rank - kept}",
            fix=f"index all of them: {self.name}[{', '.join('ijklmn'[:rank])}]",
            code="index",
        )
    loop = ", ".join("ijklmn"[: self.buffer.rank])
    raise CompileError(
        f"{self.name} is a whole tile: arithmetic works on its elements",
        fix=f"read it as a value: {self.name}[{', '.join(':' * self.buffer.rank)}], or with tile "
        f"indices; or loop over it: `for {loop} in T.Parallel(…)`, and use {self.name}[{loop}]",
        code="whole-tile",
    )


for _operator in (
    "add radd sub rsub mul rmul truediv rtruediv floordiv rfloordiv mod rmod pow rpow and rand or "
    "ror xor rxor lshift rlshift rshift rrshift neg abs invert lt le gt ge iadd isub imul "
    "itruediv float int index"
).split():
    setattr(Tile, f"__{_operator}__", no_operator)


class Access(Handle, Scalar):
    """`A[i, j]`: the element as a number, and the corner of a tile for `T.copy` and its kin."""

    region = property(lambda self: element(self.buffer, *self.indices))

    def __init__(self, tile: Tile, indices: tuple[Expr, ...]) -> None:
        self.tile, self.buffer, self.indices = tile, tile.buffer, indices
        self.kernel = tile.kernel
        self.loc = locate()
        self.moment = current("an element").moment(tile.buffer)
        self.live = False  # a macro's T.Ref: reading gives what is there now
        self.kept: tuple[str, int] | None = None

    def keep(self, name: str, writes: int) -> None:
        """From here on `name` stands for the element, whose memory has seen `writes` writes."""
        self.kept = self.kept or (name, writes)

    def as_expr(self) -> Expr:
        if self.buffer.space is Space.BARRIER:
            raise CompileError(
                f"{self.name} is a barrier: it has no value", fix="use T.barrier_wait(bar, parity)"
            )
        usable(self)
        if self.kept and self.kept[1] != current("an element").writes(self.buffer):
            raise CompileError(
                f"{self.kept[0]!r} stands for an element of {self.name}, which has been written "
                "since",
                fix="bind the element to a name of its own where its old value is meant, or "
                "annotate the macro's parameter with T.Ref where the new one is",
            )
        moment = current("an element").moment(self.buffer) if self.live else self.moment
        return Read(self.buffer, self.indices, self.loc, moment)

    def next(self, count: int) -> Any:
        """The element `count` places further along the last dimension."""
        return self.tile[self.indices[:-1] + (self.indices[-1] + count,)]

    def __iadd__(self, other: Any) -> Any:
        if self.tile.reducer:
            return WORDS["reducer_step"](self, "sum", other)
        return self.as_expr().__add__(other)

    def __getitem__(self, key: Any) -> Any:
        raise CompileError(
            f"{self.name} has {self.buffer.rank} dimensions and {len(self.indices)} are indexed",
            fix="remove the extra index",
        )

    def __repr__(self) -> str:
        return f"<element of {self.tile!r}>"


class Done:
    """The value of an update that is already emitted: nothing is left to store."""


class Tiles(Tile):
    """`A[b, i0:i1, :]`: a region."""

    axes: Any = None
    region: Any = None
    tile_value = True  # in an expression it is read
    writes: int | None = None  # to its memory, when it got a name

    def __init__(self, tile: Tile, keys: list[Any], short: bool = False) -> None:
        self.tile, self.keys = tile, keys
        self.short = short  # whether dimensions were left out
        super().__init__(tile.buffer, tile.kernel)
        buffer = tile.buffer
        starts, extents, axes = [], [], []
        for axis, key in enumerate(keys):
            if isinstance(key, slice):
                start, extent = slice_bounds(buffer, axis, key)
                axes.append(axis)
            else:
                start, extent = index_expr(buffer, axis, key), const(1)
            starts.append(start)
            extents.append(extent)
        self.region = Region(buffer, tuple(starts), tuple(extents))
        self.axes = tuple(axes)
        self.bounded = any(
            isinstance(k, slice) and not (k.start is None and k.stop is None) for k in keys
        )

    def check_current(self) -> None:
        """As a value it is what it was when it got a name."""
        if self.writes is not None and current().writes(self.buffer) != self.writes:
            raise CompileError(
                f"a part of {self.name} that got a name is read after {self.name} has been written",
                fix="keep what was there: x = T.load(tile[:, :]); or index the tile again",
                code="rebinding",
            )

    def now(self, target: Tile) -> Any:
        self.check_current()
        if is_apart(self.region, target.region, in_place=True):
            return self
        return WORDS["read"](self.tile, self.keys)

    def _within(self, key: Any) -> tuple[Any, ...]:
        """Indices within the region, as those of the buffer."""
        given = list(key) if isinstance(key, tuple) else [key]
        if len(given) > len(self.axes):
            raise CompileError(
                f"this region of {self.name} has {len(self.axes)} dimensions",
                got=f"{len(given)} indices",
                fix="leave out the extra indices",
            )
        keys: list[Any] = list(self.region.starts)
        for axis in self.axes:
            start, extent = self.region.starts[axis], self.region.extents[axis]
            inner = given.pop(0) if given else slice(None)
            if isinstance(inner, slice):
                low = start if inner.start is None else start + inner.start
                high = start + (extent if inner.stop is None else inner.stop)
                keys[axis] = slice(low, high, inner.step)
            else:
                keys[axis] = start + inner
        return tuple(keys)

    def __getitem__(self, key: Any) -> Any:
        if _adds_ones(key):
            return WORDS["read"](self.tile, self.keys)[key]
        return self.tile[self._within(key)]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.tile[self._within(key)] = value

    def __repr__(self) -> str:
        return f"<region {list(self.shape)} of {self.tile!r}>"


class Variable(Handle, Scalar):
    """`T.alloc_var`: reading gives its value at that moment, `x = v` and `x += v` store."""

    def __init__(self, buffer: Buffer) -> None:
        self.buffer = buffer
        self.named = False
        self.is_value = False  # a value of rank 0, which keeps its type: no `T.alloc_var`
        self.kept: tuple[str, int] | None = None

    def as_kept(self, name: str, writes: int) -> Variable:
        """The variable as something else holds it, when it has seen `writes` writes."""
        found = Variable(self.buffer)
        found.named, found.kept, found.is_value = True, (name, writes), self.is_value
        return found

    shape = (1,)

    def as_expr(self) -> Expr:
        builder = current(self.name)
        if self.kept is not None and self.kept[1] != builder.writes(self.buffer):
            raise CompileError(
                f"{self.kept[0]} holds the variable {self.name}, which has been assigned to since",
                fix=f"read {self.name} itself for its value now; for the old one, bind it to a "
                f"name first: old = {self.name}",
                code="stale-read",
            )
        return Read(self.buffer, (), locate(), builder.moment(self.buffer))

    def assign(self, value: Any) -> None:
        builder = current(self.name)
        builder.emit(Store(self.buffer, (), fitting(value, self.buffer)))
        if self.kept is not None:
            self.kept = self.kept[0], builder.writes(self.buffer)

    def _is_whole(self, key: Any) -> None:
        if not (isinstance(key, (int, Const)) and int(key) == 0):
            raise CompileError(
                f"{self.name} is a single variable",
                expected=f"{self.name} or {self.name}[0]",
                fix="leave the index out, or use T.alloc_local for several",
            )

    def __getitem__(self, key: Any) -> Variable:
        self._is_whole(key)
        return self

    def __setitem__(self, key: Any, value: Any) -> None:
        self._is_whole(key)
        if value is not self:
            self.assign(value)

    def __repr__(self) -> str:
        return f"<variable {self.name} {self.dtype}>"


def _in_place(name: str) -> Callable[[Variable, Any], Variable]:
    """`x += v` stores."""

    def operator(self: Variable, other: Any) -> Variable:
        self.assign(getattr(self.as_expr(), f"__{name}__")(other))
        return self

    return operator


for _operator in "add sub mul truediv floordiv mod pow and or xor lshift rshift".split():
    setattr(Variable, f"__i{_operator}__", _in_place(_operator))


# ── indices ──────────────────────────────────────────────────────────────────────────────────


def _adds_ones(key: Any) -> bool:
    """Whether a None is among the indices: a dimension of 1."""
    return key is None or (isinstance(key, tuple) and any(k is None for k in key))


def _items(key: Any) -> list[Any]:
    """The indices that were written, those that are values left out: they compare to values."""
    given = key if isinstance(key, (tuple, list)) else (key,)
    return [each for each in given if each is Ellipsis]


def expand_key(buffer: Buffer, key: Any) -> list[Any]:
    """One index or slice per dimension."""
    given = list(key) if isinstance(key, (tuple, list)) else [key]
    if any(k is Ellipsis for k in given):
        at = next(i for i, k in enumerate(given) if k is Ellipsis)
        given[at : at + 1] = [slice(None)] * (buffer.rank - len(given) + 1)
    if len(given) > buffer.rank:
        fix = "drop an index" if buffer.rank else f"write {buffer.name}[()]"
        if all(hasattr(k, "axis") for k in given):
            fix = "pin the size of a tile by name, T.tile(n, size=64), " + fix
        raise CompileError(
            f"{buffer.name} has {buffer.rank} dimension{'s' * (buffer.rank != 1)}",
            expected=f"at most {buffer.rank} ind{'ices' if buffer.rank != 1 else 'ex'}",
            got=str(len(given)),
            fix=f"{fix}, or declare {buffer.name} with more dimensions",
        )
    return given + [slice(None)] * (buffer.rank - len(given))


def index_expr(buffer: Buffer, axis: int, key: Any) -> Expr:
    """An index as an expression; inside a tile a constant one must be in range."""
    if isinstance(key, Tile):
        raise CompileError(
            f"{key.name} is a tile and cannot be an index of {buffer.name}",
            fix=f"index with one of its elements: {key.name}[i]",
        )
    if isinstance(key, (tuple, list)):
        loop = "T.tile" if any(hasattr(each, "tile_value") for each in key) else "T.Parallel"
        raise CompileError(
            f"an index of {buffer.name} is a {type(key).__name__} of {len(key)}",
            expected="one number for each dimension",
            fix=f"a loop over several extents gives one index for each: `for i, j in {loop}(m, n)`"
            + "; `T.tile(m, size=64)` pins a size, `T.tile((low, high))` is a range"
            * (loop == "T.tile"),
        )
    expr = integer(key, f"an index of {buffer.name}", bools=True)
    if not buffer.is_global:
        in_range(buffer, axis, expr, const(1))
    return expr


def in_range(buffer: Buffer, axis: int, start: Expr, extent: Expr) -> None:
    """A constant place in a tile must be inside it."""
    size = buffer.shape[axis]
    negative = isinstance(start, Const) and start.value < 0
    if not negative and not all(isinstance(e, Const) for e in (start, extent, size)):
        return
    low, limit = int(start) if isinstance(start, Const) else 0, concrete(size)
    high = low + int(extent) if isinstance(extent, Const) else low
    if low < 0 or (isinstance(limit, int) and high > limit):
        what = f"index {low}" if high == low + 1 else f"{low}:{high}"
        raise CompileError(
            f"{what} is outside dimension {axis} of {buffer.name}",
            expected=f"0 … {limit}" if high != low + 1 else f"0 … {limit - 1}",
            got=what,
            fix="negative indices do not wrap: count from the front"
            if low < 0
            else f"make {buffer.name} larger or the index smaller",
            code="index",
        )


def slice_bounds(buffer: Buffer, axis: int, key: slice) -> tuple[Expr, Expr]:
    """Start and extent of `i0:i1`."""
    if key.step is not None and concrete(wrap(key.step)) != 1:
        raise CompileError(
            f"a slice of {buffer.name} with a step",
            got=f"step {concrete(wrap(key.step))}",
            fix="copy element by element with T.Parallel",
            code="index",
        )
    size, what = buffer.shape[axis], f"a bound of a slice of {buffer.name}"
    start = const(0) if key.start is None else integer(key.start, what)
    if isinstance(start, Const) and start.value < 0 and key.stop is None:
        raise CompileError(
            f"a slice of {buffer.name} from the end",
            expected="a start that counts from the front",
            got=f"{start.value}:",
            fix="negative indices do not wrap: write "
            f"{concrete(size)} - {-start.value} as the start",
            code="index",
            repair=swap(f"{start.value}:", f"{size.value + start.value}:")
            if isinstance(size, Const)
            else None,
        )
    stop = size if key.stop is None else integer(key.stop, what)
    extent = difference(stop, start)
    if isinstance(extent, Const) and extent.value <= 0:
        raise CompileError(
            f"an empty slice of {buffer.name}",
            expected=f"start < stop in dimension {axis}",
            got=f"{concrete(start)}:{concrete(stop)}",
            fix="negative indices do not wrap: write A[i0:i1] with both counted from the front",
            code="index",
        )
    if not buffer.is_global:
        in_range(buffer, axis, start, extent)
    return start, extent


# ── stores ───────────────────────────────────────────────────────────────────────────────────


def usable(tile: Handle) -> None:
    """A tile belongs to the kernel that allocated it."""
    if tile.kernel is not None and tile.kernel is not current(tile.name).kernel:
        raise CompileError(
            f"{tile.name} belongs to another kernel of this function",
            fix="pass data between kernels through T.alloc_global",
            code="space",
        )


def fitting(value: Any, buffer: Buffer) -> Expr:
    """`value` as the buffer's type."""
    if isinstance(value, Tile):
        raise CompileError(
            f"{value.name} is a whole tile and cannot be stored in one element of {buffer.name}",
            fix=f"store an element of it, or use T.copy({value.name}, …)",
            code="whole-tile",
        )
    return cast(wrap(value, buffer.dtype), buffer.dtype)


def store(target: Access, value: Any) -> None:
    """target = value."""
    builder = current("a store")
    usable(target)
    if target.buffer.space is Space.BARRIER:
        raise CompileError(
            f"{target.name} is a barrier: it cannot be stored to", fix="use T.barrier_arrive(bar)"
        )
    updates = target.tile.reducer is not None and isinstance(value, (Expr, Scalar))
    if updates and WORDS["store_as_update"](target, wrap(value)):
        return
    builder.require_kernel("Kernel")
    made = Store(target.buffer, target.indices, fitting(value, target.buffer))
    builder.emit_once(made, target.buffer)


def region_of(value: Any, op: str = "") -> Region:
    """A tile or region as a `Region`; an element is a region of one. A fold by `op` of a value sees
    no padding."""
    if isinstance(value, Handle):
        usable(value)
        return value.region  # type: ignore[no-any-return]
    if hasattr(value, "tile_value"):
        return WORDS["region"](value, op)  # type: ignore[no-any-return]
    not_lost(value)
    raise CompileError(
        f"T.{word()} needs a tensor, a tile or a region of one",
        got=describe(value),
        fix="a name bound to an element holds its value; write the element itself, A[i, j]"
        if isinstance(value, Expr)
        else f"T.fill(tile, {value!r}) gives all elements one value"
        if isinstance(value, (int, float))
        else "pass the data as a parameter of the kernel, or T.fill a tile",
        code="arguments",
    )


def written_region(value: Any) -> Region:
    """The region that a word writes to: memory, not a value."""
    if not isinstance(value, Handle) and hasattr(value, "tile_value"):
        raise CompileError(
            f"T.{word()} writes to memory, and this is a value",
            got=repr(value),
            fix="store with an index: Y[m, n] = x; add products by `acc += a @ b`; or write to a "
            "tile of T.alloc_fragment or T.alloc_shared",
            code="arguments",
        )
    return region_of(value)


def describe(value: Any) -> str:
    if isinstance(value, Handle):
        return repr(value)
    if isinstance(value, Expr):
        return f"a value of type {value.dtype}"
    return f"{type(value).__name__}: {value!r}"[:80]
