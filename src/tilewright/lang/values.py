"""Tile values: expressions over whole tiles, which allocate their own results.

A value is a function from places to an expression, over axes that remember where they came from.
Arithmetic on values makes values and emits nothing. A value becomes memory when it is reduced,
multiplied or needed under a name: a fragment, or shared memory for an operand of `@` that has to be
there. The ops stand where the value was made, however late it is used.

The last tile of a range is padded. `Axis.inside` tells which places count; what a word could see of
the others is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from weakref import ref

from tilewright.lang.axes import *
from tilewright.lang.builder import Position, TracedAgain
from tilewright.lang.core import *
from tilewright.lang.handles import no_array_function, no_operator
from tilewright.lang.joined import check_joined
from tilewright.lang.pieces import *
from tilewright.lang.scalar import Scalar
from tilewright.lang.types import ScalarType

Places = tuple[Expr, ...]
At = Callable[[Places], Expr]


@dataclass(eq=False)
class Box:
    """What an index of a buffer names: `axes` of the result, and the buffer's `indices` at places
    on them. `region`: as a box of the buffer, where no index is a value; `along` are the axes of
    its dimensions. `loose`: the axes whose padding lies inside the buffer, or may."""

    tile: Tile
    keys: Sequence[Any]
    axes: tuple[Axis, ...]
    indices: Callable[[Places], Places]
    region: Region | None
    along: tuple[Axis | None, ...]
    loose: tuple[Axis, ...]
    parts: tuple[Value, ...]

    @property
    def buffer(self) -> Buffer:
        return self.tile.buffer

    def where(self, places: Places) -> tuple[Buffer, Places]:
        """The element at places on the axes."""
        if self.region is None or self.region.buffer is self.buffer:
            return self.buffer, self.indices(places)
        at = dict(zip(self.axes, places, strict=True))
        moved = [0 if axis is None else at[axis] for axis in self.along]
        return self.region.buffer, tuple(
            start + place for start, place in zip(self.region.starts, moved, strict=True)
        )

    def piece(self, builder: Builder) -> Region:
        """The part of the region that passes are working on."""
        assert self.region is not None
        starts, extents = [*self.region.starts], [*self.region.extents]
        for at, axis in enumerate(self.along):
            walk = None if axis is None else walk_of(builder, axis)
            if walk is not None:
                starts[at], extents[at] = starts[at] + walk.base, const(walk.width)
        return replace(self.region, starts=tuple(starts), extents=tuple(extents))


class Value:
    """A tile of numbers."""

    tile_value = True  # expressions leave arithmetic with it to it
    source: Buffer | None = None  # the memory that it reads itself
    region: Region | None = None  # that it is a plain copy of
    box: Box | None = None  # that it was read from
    is_zero_outside = False  # whether it is 0 where that ends
    base: Value | None = None  # that it is the transpose of
    zeros: tuple[Axis, ...] = ()  # in whose padding it is zero
    pad_of: Callable[[Axis, Position, dict[int, Any]], Any] | None = None  # by its parts
    cache: str | None = None  # what the L2 cache is told about what it reads
    is_bound = False  # whether it has a name
    is_named = False  # whether that is memory
    is_formula = True  # of indices and scalars alone: cheaper computed again than kept
    is_backward = False  # whether its pieces are made from the last to the first

    def __init__(
        self, axes: tuple[Axis, ...], dtype: DType, at: At, parts: Iterable[Value] = ()
    ) -> None:
        builder = current("a value")
        check_joined(builder, [axis.key for axis in axes])
        self.axes, self.at = axes, at
        self.kind, self.parts = dtype, tuple(parts)
        self.position = builder.position()
        self.loc = locate()
        self.name: str | None = None
        # where it is, the writes to that, and of copies of what loops change since when
        self._held: dict[Any, tuple[Buffer, int, Position | None]] = {}
        self.writes = 0
        self.padding: dict[Any, tuple[Expr, Position]] = {}  # by axis: since when it holds what
        self.wide: Value | None = None  # it in the type that sums have
        self.folded: dict[Any, tuple[Buffer, Position, int]] = {}  # what it was reduced to
        self.scans: dict[Any, Any] = {}  # scans of it, by what and along which dimension
        self.is_formula = self.is_formula and all(part.is_formula for part in self.parts)
        self.is_long = any(axis.is_long for axis in axes)
        self.serial = 0  # of a load of a long dimension
        self.touched = 0  # the last pass that used it
        builder.values.append(ref(self))

    # ── what users see ──

    dtype = property(lambda self: ScalarType(self.kind))
    ndim = property(lambda self: len(self.axes))
    shape = property(lambda self: tuple(axis.said or axis.size for axis in self.axes))

    @property
    def T(self) -> Value:
        """The value with its two dimensions exchanged."""
        if len(self.axes) != 2:
            raise CompileError(
                ".T exchanges the dimensions of a matrix",
                got=f"a value of shape {shape_text(self.axes)}",
                fix="index the others away: X[b, m, k].T",
                code="shape",
            )
        made = Value(self.axes[::-1], self.kind, lambda p: self.turned(p[::-1]), (self,))
        made.base = self
        return made

    def astype(self, to: Any) -> Value:
        return lift(lambda x: cast(x, ScalarType(to).dtype), self)  # type: ignore[no-any-return]

    def __getitem__(self, key: Any) -> Any:
        return WORDS["slice"](self, key if isinstance(key, tuple) else (key,))

    def __setitem__(self, key: Any, value: Any) -> None:
        raise CompileError(
            "a value has no elements to store to",
            got=repr(self),
            fix="choose elements: x = T.where(cond, new, x); or store to a tensor: Y[m, n] = x",
            code="whole-tile",
        )

    def __bool__(self) -> bool:
        raise CompileError(
            "a tile is no condition",
            got=f"a value of shape {shape_text(self.axes)}",
            fix="choose elements with T.where(cond, a, b); join conditions with & | ~, and write "
            "0 < x < 1 as (0 < x) & (x < 1); T.any(x, dim=…) makes one",
            code="whole-tile",
        )

    def __iter__(self) -> Any:
        raise CompileError(
            "a tile cannot be iterated", fix="take a part: x[0:4]; or loop with T.tile"
        )

    def __repr__(self) -> str:
        return f"<value {self.name or ''}{shape_text(self.axes)} {self.kind}>"

    __hash__ = object.__hash__
    __array_function__ = no_array_function

    # ── elements and memory ──

    def element(self, places: Places) -> Expr:
        """The element at `places`, one for each axis."""
        is_memory = self.is_named and (not self.is_long or self.name in current().carried)
        if self.is_stale or self._held or is_memory:
            return Load(self.hold(), self._real(places), self.loc)
        return self._piece(places) if self.is_long else self.at(places)

    def _piece(self, places: Places) -> Expr:
        """The element at `places`, of a value that no memory has as a whole."""
        builder = current()
        if self.serial:
            if self.serial in builder.kept:
                return Load(self.hold(), self._real(places), self.loc)
            if self.touched not in (0, builder.passes) and self.may_keep:
                builder.kept.add(self.serial)
                raise TracedAgain
            self.touched = builder.passes
        inner = in_piece(builder, self.axes, places)
        number = builder.number
        ahead = self.serial and any((number, a.name) in builder.sizes.stages for a in self.axes)
        if inner is None or not (self.is_named or ahead):
            return self.at(places)
        made = builder.walks[-1].made
        if id(self) not in made:
            made[id(self)] = self, self.piece(builder)
        return Load(made[id(self)][1], self._real(inner), self.loc)

    @property
    def may_keep(self) -> bool:
        return all(axis.split is None or axis.split.keeps for axis in self.axes)

    def piece(self, builder: Builder) -> Buffer:
        """A tile of the piece that passes are working on."""
        extents = spans(builder, self.axes)
        buffer = Buffer(builder.fresh(self.name, "tile"), extents, self.kind, Space.FRAGMENT)
        vars, places = over(builder, self.axes)
        if self.box is not None and self.region is not None:
            fill: Op = Copy(self.box.piece(builder), whole(buffer), cache=self.cache, loc=self.loc)
        else:
            value = cast(self.at(places), self.kind)
            fill = filled(buffer, vars, vars, extents, value, self.loc)
        builder.emit(Alloc(buffer, loc=self.loc))
        builder.emit(fill)
        return buffer

    def plus(self, other: Any) -> Value | None:
        """The sum with a value, where it is made in one go."""
        return None

    def turned(self, places: Places) -> Expr:
        """The element, which is asked for along the other dimension than it lies."""
        if self.region is None:
            return self.element(places)
        return Load(self.hold(Space.SHARED), self._real(places), self.loc)  # read in rows

    @property
    def is_turned(self) -> bool:
        """Whether it is made of what lies along the other dimension."""
        return any(x.base is not None and x.base.region is not None for x in made_of(self))

    @property
    def goes_backward(self) -> bool:
        """Whether a pass over it begins with the last piece."""
        return any(x.is_backward and not x._held for x in made_of(self))

    @property
    def is_gathered(self) -> bool:
        """Whether integer values say what is read, some of it perhaps many times."""
        return any(x.box is not None and x.box.region is None for x in made_of(self))

    @property
    def is_stale(self) -> bool:
        return self.source is not None and current().writes(self.source) != self.writes

    def _real(self, places: Places) -> Places:
        return real_places(self.axes, places)

    @property
    def real(self) -> tuple[Axis, ...]:
        return tuple(axis for axis in self.axes if axis is not ONE)

    def held(self, key: Any) -> Buffer | None:
        if key not in self._held:
            return None
        buffer, writes, since = self._held[key]
        known = since is None or (self.is_current(since) and since.order <= current().here.order)
        return buffer if known and current().writes(buffer) == writes else None

    @property
    def is_carried(self) -> bool:
        """Whether it is memory that a loop or a branch changes."""
        return self.is_named and self.name in current().carried

    def is_current(self, since: Position) -> bool:
        """Whether what was made of it at a position still is what would be made of it now."""
        return not self.is_carried or current().in_turn(since)

    def hold(self, space: Space = Space.FRAGMENT, masked: tuple[Axis, ...] = ()) -> Buffer:
        """The value in memory, made where it stands; zero in the padding of the axes `masked`."""
        masked = tuple(axis for axis in masked if axis.is_ragged)
        space = Space.SHARED if self.is_long else space
        key = (space, tuple(axis.key for axis in masked))
        found = self.held(key)
        if found is None:
            builder = current()
            builder.footprints.append(self.real)
            is_copy = bool(self._held) and self.is_carried
            own = [each for each in self._held.values() if each[2] is None]
            assert not is_copy or builder.writes(own[0][0]) == own[0][1], "its memory has changed"
            made, since = (again(self), builder.here) if is_copy else (self, None)
            made.position = since or self.position
            builder.making.append(made.position)
            found = made.make(builder, space, masked)
            builder.making.pop()
            self._held[key] = found, builder.writes(found), since
            if not masked and not self.region and not is_copy:
                self.at, self.parts, self.pad_of = kept_in(found, self.axes, self.loc), (), None
        return found

    def pad(self, axis: Axis, at: Position, memo: dict[int, Any] | None = None) -> Expr | None:
        """What lies in the padding of an axis at a position, where one number is known to."""
        number, since = self.padding.get(axis.key, (None, at))
        is_there = since.order < at.order and current().in_scope(since)
        if number is None or not is_there or not self.is_current(since):
            known = {} if memo is None else memo  # of parts, which may be read many times
            if id(self) not in known and self.pad_of is not None and not self._held:
                known[id(self)] = self.pad_of(axis, at, known)
            number = known.get(id(self))
        return number

    def has_padding(self, axes: Sequence[Axis], number: Expr) -> bool:
        here = current().position()
        return all(is_same(self.pad(axis, here), number) for axis in axes)

    def fill_padding(self, axes: Sequence[Axis], number: Expr) -> None:
        """Put a number where nobody looks."""
        builder, buffer = current(), self.hold()
        vars, places = over(builder, self.axes)
        at = self._real(places)
        counts = inside(self.axes, places, axes)
        kept = Store(buffer, at, select(counts, Load(buffer, at), number))
        builder.emit(Map(vars, buffer.shape, (kept,)), seen=False)
        self.padding |= {axis.key: (number, builder.position()) for axis in axes}

    def is_in(self, buffer: Buffer) -> None:
        """A buffer holds it from now on."""
        self._held[buffer.space, ()] = buffer, current().writes(buffer), None

    @classmethod
    def of(cls, axes: tuple[Axis, ...], buffer: Buffer) -> Value:
        """What a fragment holds now."""
        made = Value(axes, buffer.dtype, kept_in(buffer, axes, locate()))
        made.is_formula = False
        made.is_in(buffer)
        return made

    def make(self, builder: Builder, space: Space, masked: tuple[Axis, ...]) -> Buffer:
        buffer = new_tile(builder, self, space)
        add = partial(builder.emit_at, self.position)
        add(Alloc(buffer, loc=self.loc))
        if not self.real:
            place = tuple(const(0) for _ in self.axes)
            add(Store(buffer, self._real(place), self.at(place), loc=self.loc))
            return buffer
        if self.region is not None and not masked:
            to, empty = whole(buffer), list[Region]()
            for at, axis in enumerate(self.real):
                rest = axis.size - axis.part
                if rest:  # the last step goes beyond the part
                    first, last = [*to.starts], [*to.extents]
                    first[at], last[at] = const(axis.part), const(rest)
                    empty.append(Region(buffer, tuple(first), tuple(last)))
                    last[at] = const(axis.part)
                    to = Region(buffer, to.starts, tuple(last))
            add(Copy(self.region, to, cache=self.cache, loc=self.loc))
            for region in empty:
                add(Fill(region, const(0, self.kind), loc=self.loc))
            return buffer
        if not self.is_long:
            add(self.map_into(builder, buffer, masked))
            return buffer
        with apart(builder, self.position), walking(builder, self.axes, self.goes_backward):
            builder.emit(self.map_into(builder, buffer, masked))
        return buffer

    def map_into(self, builder: Builder, buffer: Buffer, masked: tuple[Axis, ...] = ()) -> Op:
        """buffer = this value, element by element."""
        vars, places = over(builder, self.axes)
        value = self.at(places)
        for axis, place in zip(self.axes, places, strict=True):
            if axis in masked:
                value = select(axis.inside(place), value, const(0, value.dtype))
        extents = spans(builder, self.axes)
        return filled(
            buffer, self._real(places), vars, extents, cast(value, buffer.dtype), self.loc
        )


def real_places(axes: tuple[Axis, ...], places: Places) -> Places:
    """The places in memory, which has one dimension at least."""
    found = tuple(p for p, axis in zip(places, axes, strict=True) if axis is not ONE)
    return found or (const(0),)


def kept_in(buffer: Buffer, axes: tuple[Axis, ...], loc: Loc | None) -> At:
    """Elements of a value that a buffer holds. It does not know the value, which ends with the last
    name for it."""
    return lambda places: Load(buffer, real_places(axes, places), loc)


def filled(
    buffer: Buffer,
    at: Places,
    vars: tuple[Var, ...],
    extents: Places,
    value: Expr,
    loc: Loc | None,
) -> Op:
    """buffer[at] = value, for all of `vars`."""
    if not vars:
        return Store(buffer, at, value, loc=loc)
    if at == vars and isinstance(value, Const):
        return Fill(whole(buffer), value, loc=loc)
    moved = value.a if isinstance(value, Cast) else value
    if (
        at == vars
        and isinstance(moved, Load)
        and moved.indices == vars
        and moved.buffer.shape == buffer.shape
    ):
        return Copy(whole(moved.buffer), whole(buffer), loc=loc)
    return Map(vars, extents, (Store(buffer, at, value),), loc=loc)


def new_tile(builder: Builder, value: Value, space: Space) -> Buffer:
    name = builder.fresh(value.name, "tile")
    shape = tuple(const(axis.size) for axis in value.real) or (const(1),)
    return Buffer(name, shape, value.kind, space)


def is_same(a: Expr | None, b: Expr) -> bool:
    """Whether they are one expression, or constants of one value."""
    return a is b or (isinstance(a, Const) and isinstance(b, Const) and a.value == b.value)


def live(builder: Builder) -> list[Value]:
    """Values that something still stands for, in the order in which they were made."""
    builder.values = [each for each in builder.values if each() is not None]
    return [value for each in builder.values if (value := each()) is not None]


def made_of(value: Value) -> Iterator[Value]:
    """A value and what it is made of, each once."""
    seen, left = {id(value)}, [value]
    while left:
        yield (each := left.pop())
        left += [part for part in each.parts if id(part) not in seen]
        seen.update(map(id, each.parts))


def depends(value: Value, on: Value) -> bool:
    return any(each is on for each in made_of(value))


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────


def is_tile(x: Any) -> bool:
    """Whether arithmetic on it is arithmetic on tiles."""
    return isinstance(x, (Value, Tiles, TileIndex))


def is_value(x: Any) -> bool:
    return isinstance(x, Value)


def value_of(x: Any) -> Value:
    """A value, a tile or a region as a value; a number as one without dimensions."""
    if isinstance(x, Value):
        return x
    if isinstance(x, TileIndex):
        return x.index
    if isinstance(x, Tiles):
        if x.short or current("a value").in_map:
            no_operator(x)
        x.check_current()
        return WORDS["read"](x.tile, x.keys)  # type: ignore[no-any-return]
    expr = current("a value").snapshot(x)
    return Value((), expr.dtype, lambda _: expr)


def lift(function: Callable[..., Any], *args: Any, what: str = "this operation") -> Any:
    """A function of numbers, applied to elements."""
    values = [value_of(x) if is_tile(x) else x for x in args]
    tiles = [v for v in values if isinstance(v, Value)]
    axes = broadcast([v.axes for v in tiles], what)
    for v in tiles:
        if 0 < len(v.real) < sum(axis is not ONE for axis in axes) and not v.is_gathered:
            v.is_named = v.is_named or not v.is_formula  # not computed again for each element
    numbers: list[Any] = [
        current("a value").snapshot(v) if isinstance(v, (Expr, Scalar)) else v for v in values
    ]

    def at(places: Places) -> Expr:
        parts = (v.element(own_places(v, axes, places)) if isinstance(v, Value) else v
                 for v in numbers)  # fmt: skip
        return wrap(function(*parts))

    def pad_of(axis: Axis, place: Position, memo: dict[int, Any]) -> Expr | None:
        pads = [v.pad(axis, place, memo) if isinstance(v, Value) else v for v in numbers]
        made = None if any(pad is None for pad in pads) else wrap(function(*pads))
        return made if isinstance(made, Const) else None

    samples = [Var(f"_{k}", v.kind) if isinstance(v, Value) else v for k, v in enumerate(numbers)]
    made = Value(axes, wrap(function(*samples)).dtype, at, tiles)
    made.pad_of = pad_of
    return made


def own_places(value: Value, axes: tuple[Axis, ...], places: Places) -> Places:
    """The places on a value's own axes, of places on those it was broadcast to."""
    inner = places[len(axes) - len(value.axes) :]
    return tuple(
        const(0) if axis is ONE else place for axis, place in zip(value.axes, inner, strict=True)
    )


# ── tile indices ─────────────────────────────────────────────────────────────────────────────────


class TileIndex:
    """What a loop over `T.tile` counts by: `X[m, k]` is a tile of X.

    `m.start` and `m.stop` are the first and the last element's index (`stop` excluded and never
    above the end of the range), `m.size` is the chosen width, `m.index` the indices as a value.
    `m + 1` is the tile shifted by one.
    """

    tile_value = True

    def __init__(self, axis: Axis, start: Expr, stop: Expr) -> None:
        self.axis, self.base, self.stop = axis, start, stop

    @property
    def start(self) -> Expr:
        """The first element's index."""
        return self.base if self.axis.first is None else self.base + self.axis.skipped

    size = property(lambda self: self.axis.size)

    @property
    def index(self) -> Value:
        """The indices, as an int32 value of one dimension."""
        return Value((self.axis,), INT32, lambda places: self.base + places[0])

    def __add__(self, by: Any) -> TileIndex:
        if is_tile(by):
            self._no_arithmetic()
        shift = current("a tile index").snapshot(integer(by, "the shift of a tile index"))
        return TileIndex(self.axis, self.base + shift, self.stop + shift)

    __radd__ = __add__

    def __sub__(self, by: Any) -> TileIndex:
        return self + -integer(by, "the shift of a tile index")

    def within(self, low: Any, high: Any) -> TileIndex:
        """The tile shifted by `low` and cut at `high`. Where nothing is left of it, the rest of the
        block's work is skipped."""
        builder = current_block()
        first, last = (builder.let(integer(each, "a bound of within")) for each in (low, high))
        start = builder.let(binary("min", self.start + first, last), f"{self.axis.name}_start")
        stop = builder.let(binary("min", self.stop + first, last), f"{self.axis.name}_stop")
        builder.skip_unless(compare("<", start, stop))
        axis = Axis(self.axis.name, self.axis.size, object(), start, stop)
        builder.axes[axis.key] = builder.axes[self.axis.key]
        return TileIndex(axis, start, stop)

    def __repr__(self) -> str:
        return f"<tile index {self.axis.name} of {self.axis.size}>"

    def __bool__(self) -> bool:
        raise CompileError(
            f"{self.axis.name} is a tile index, not a number",
            fix=f"use {self.axis.name}.start, {self.axis.name}.stop or {self.axis.name}.index",
            code="whole-tile",
        )

    __index__ = __int__ = __float__ = __bool__

    def _no_arithmetic(self, *_: Any) -> Any:
        name = self.axis.name
        raise CompileError(
            f"{name} is a tile index: it is shifted by + and -",
            fix=f"compute with its indices, the value {name}.index",
            code="whole-tile",
        )

    __rsub__ = __mul__ = __rmul__ = __floordiv__ = __mod__ = __truediv__ = __neg__ = _no_arithmetic
    __lt__ = __le__ = __gt__ = __ge__ = _no_arithmetic


def axis_of(dim: Any) -> Axis:
    """An entry of a shape: a tile index or a size."""
    if isinstance(dim, TileIndex):
        return dim.axis
    if isinstance(dim, Axis):
        return dim
    return extent_axis(dim)


def again(value: Value) -> Value:
    """The value as it is now, under no name yet."""
    return Value(value.axes, value.kind, value.element, (value,))
