"""Dimensions of tile values: where they came from, and which of their places count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tilewright.ir.analysis.bounds import bounds
from tilewright.ir.core import *
from tilewright.lang.builder import current
from tilewright.lang.joined import places_of
from tilewright.lang.types import Extent

LARGEST = 1 << 24  # elements of a dimension of which a launch gives the size


class Split(NamedTuple):
    """How a whole dimension is cut: the places of a block, of a step (0: all of them), blocks of a
    cluster, and whether a block keeps what it loads of its part for a second use.

    `align`, where rows do not begin on vectors: places are counted from the last multiple of so
    many elements before the row."""

    part: int
    step: int = 0
    blocks: int = 1
    keeps: bool = True
    align: int = 1

    @property
    def size(self) -> int:
        """The places that a block visits."""
        return -(-self.part // self.step) * self.step if self.step else self.part


@dataclass(frozen=True, eq=False)
class Axis:
    """A dimension of a value. Dimensions match where `key` is the same. `start` and `limit` are
    those of a tile index: places from `limit - start` on are padding, and those before
    `first - start`.

    A whole dimension of `total` places may be cut, as `split` says; `size` are those of a block.
    Then its first places may be padding too, as many as `shift`; so may those of a tile index."""

    name: str
    size: int
    key: Any
    start: Expr = field(default_factory=lambda: const(0))
    limit: Expr | None = None
    first: Expr | None = None
    split: Split | None = None
    total: int = 0
    shift: Var | None = None
    said: int = 0  # the size of a whole dimension in the text

    @property
    def is_long(self) -> bool:
        """Whether a block works on a part of it at a time."""
        return self.split is not None and self.split.step != 0

    @property
    def part(self) -> int:
        """The places of a block, without those that fill its last step."""
        return self.size if self.split is None else self.split.part

    def inside(self, place: Expr) -> Expr:
        """Whether the place counts."""
        found = TRUE if self.first is None else compare("<=", self.first, self.start + place)
        if self.limit is None:
            return found
        found = logical_and(found, compare("<", self.start + place, self.limit))
        if self.split is not None and self.split.blocks > 1 and self.part != self.size:
            mine = compare("<", place, const(self.part))
            covers = self.part * self.split.blocks == self.total
            found = mine if covers else logical_and(mine, found)
        if self.shift is not None and self.first is None:
            found = logical_and(compare("<=", const(0), self.start + place), found)
        return found

    @property
    def is_ragged(self) -> bool:
        """Whether some places may be padding."""
        return self.limit is not None or self.first is not None

    @property
    def skipped(self) -> Expr:
        """How many places come before the first that counts."""
        return const(0) if self.first is None else binary("max", self.first - self.start, const(0))

    @property
    def count(self) -> Expr:
        """How many places count."""
        if self.limit is None or self.total:
            return const(self.total or self.size) - self.skipped
        return binary("min", const(self.size), self.limit - self.start) - self.skipped

    def index(self, place: Expr) -> Expr:
        """Which place of the whole dimension that is."""
        return self.start + place if self.total else place - self.skipped


ONE = Axis("1", 1, None)


def extent_axis(size: Any) -> Axis:
    """The axis of a whole dimension of this size: by name for sizes of `T.const`."""
    expr = wrap(size)
    if not isinstance(expr, Const):
        most = bounds(expr, current("a value").known()).hi
        if most >= LARGEST:
            raise CompileError(
                "`:` over a size that is known only at launch",
                expected="a size known when the kernel is traced, or one with a maximum",
                got=str(expr),
                fix=f"loop over it: `for i in T.tile({expr}):`; or give T.dynamic a max=",
                code="not-constant",
            )
        return Axis(str(expr), max(1, int(most)), ("extent", str(expr)), limit=expr)
    if expr.value == 1 and not isinstance(size, Extent):
        return ONE
    name = size.name if isinstance(size, Extent) else str(expr.value)
    builder, total = current("a value"), int(expr.value)
    key = (builder.number, name)
    total = places_of(builder, name, said := total)
    split = builder.sizes.splits.get(key)
    found = Axis(name, total, ("extent", name), said=said)
    if split is None:  # a value may have it twice
        builder.extents.setdefault(key, found)
        return found
    if key not in builder.extents:
        builder.extents[key] = _cut(name, total, said, split)
    cut: Axis = builder.extents[key]
    return cut


def _cut(name: str, total: int, said: int, split: Split) -> Axis:
    builder = current()
    rank = builder.require_kernel().rank
    start = const(0) if rank is None else rank * split.part
    shift = builder.var("shift") if split.align > 1 else None
    if shift is not None:
        start = start - shift
    limit = const(total) if split.size * split.blocks != total else None
    return Axis(name, split.size, ("extent", name), start, limit, None, split, total, shift, said)


def has_places(axis: Axis) -> bool:
    """Whether its places mean the same at every choice of sizes: those of a whole dimension do, and
    of tiles whose size the text says, where all are whole."""
    builder = current()
    if axis.key in builder.axes and axis.key not in builder.pinned:
        return False
    return not axis.is_ragged or bool(axis.total)


def inside(axes: Sequence[Axis], places: Sequence[Expr], counted: Sequence[Axis]) -> Expr:
    """Whether places on `axes` count along those that are `counted`."""
    found: Expr = TRUE
    for axis, place in zip(axes, places, strict=True):
        if axis in counted:
            found = logical_and(found, axis.inside(place))
    return found


def shape_text(axes: Sequence[Axis]) -> str:
    return f"({', '.join(axis.name for axis in axes)}{',' * (len(axes) == 1)})"


def broadcast(shapes: Sequence[tuple[Axis, ...]], what: str) -> tuple[Axis, ...]:
    """The axes of values that are combined: aligned at the last, matched by where they came from;
    only a 1 that was written stretches."""
    found: list[Axis] = []
    for at in range(1, max(map(len, shapes), default=0) + 1):
        axes = [axes[-at] for axes in shapes if len(axes) >= at]
        wide = [axis for axis in axes if axis is not ONE]
        if any(axis.key != wide[0].key for axis in wide):
            said = [shape_text(each) for each in dict.fromkeys(shapes)]
            fix = "line the axes up: v[:, None] adds a dimension of 1; sizes that happen to be "
            fix += "equal do not match"
            if what.strip("`") in CMP_OPS:
                fix = "line the axes up: m.index[:, None] < n.index; and choose elements by it "
                fix += "with T.where(cond, a, b): an `if` takes one number"
            part = next((axis for axis in wide if axis.name.isdigit()), None)
            if part is not None and all(isinstance(axis.key, tuple) for axis in wide):
                fix = f"take the same part of both: x[:, 0:{part.name}] and v[0:{part.name}]"
            twice = [a.name for each in shapes for k, a in enumerate(each) if a in each[:k]]
            if any(name.isidentifier() for name in twice):
                fix = "read an element for each index: X[{0}.index, L[{0}]]".format(twice[0])
            if len(shapes) == 2 and shapes[0] == shapes[1][::-1]:
                fix = "transpose one: x.T"
            if len({*said}) < len(said):
                fix = "use one tile index for both: what `within` gives is another one"
            raise CompileError(
                f"{what}: the shapes do not broadcast",
                expected="dimensions of the same tile index or size, or a 1",
                got=" and ".join(said),
                fix=fix,
                code="shape",
            )
        found.insert(0, wide[0] if wide else ONE)
    return tuple(found)
