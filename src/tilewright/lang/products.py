"""Products of tile values, and sums of products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import ref

from tilewright.lang import reductions
from tilewright.lang.builder import Position, precision_of
from tilewright.lang.values import *


class Product(Value):
    """`a @ b`, added to `init`."""

    is_formula = False

    def __init__(self, a: Value, b: Value, init: Value | None = None) -> None:
        self.a, self.b, self.init = a, b, init
        parts = (a, b) if init is None else (a, b, init)
        own = ref(self)  # a value ends with the last name for it

        def element(places: Places) -> Expr:
            found = own()
            assert found is not None
            return Load(found.hold(), places, found.loc)

        super().__init__((a.axes[0], b.axes[1]), _sum_kind(a), element, parts)
        builder = current("@")
        sides = a.axes[0], b.axes[1], a.axes[1]
        self.precision = precision_of(a.kind)
        multiplied = dtype("tfloat32") if self.precision == "tf32" else a.kind
        builder.products.append((builder.number, sides, multiplied))

    def plus(self, other: Any) -> Value | None:
        """A sum that starts with `other`."""
        if self.init is not None or self.is_named:  # a loop may change what a name has
            return None
        if not isinstance(other, Value) or (isinstance(other, Product) and not other.is_fresh):
            return None
        same = [a.key for a in other.axes] == [a.key for a in self.axes]
        return Product(self.a, self.b, other) if same and other.kind == self.kind else None

    def make(self, builder: Builder, space: Space, masked: tuple[Axis, ...]) -> Buffer:
        if space is Space.SHARED or masked:
            held = Value(self.axes, self.kind, self.at, (self,))
            held.name, held.position = self.name, self.position
            return held.make(builder, space, masked)
        buffer = new_tile(builder, self, space)
        add = partial(builder.emit_at, self.position)
        add(Alloc(buffer, loc=self.loc))
        self.sum_into(buffer, add, lambda init: add(again(init).map_into(builder, buffer)))
        return buffer

    def may_replace(self, old: Value) -> bool:
        """Whether it can be summed up where `old` is: nothing but the sum begins with that."""
        if self.is_named or self._held or depends(self.a, old):
            return False
        rest = self.init
        ahead = not isinstance(rest, Product) or not rest.is_fresh or rest.may_replace(old)
        return ahead and not depends(self.b, old)

    @property
    def is_fresh(self) -> bool:
        """Whether a sum may go on where this one is made: nothing else needs it."""
        return not self.is_named and not self._held

    def sum_into(
        self, buffer: Buffer, add: Callable[[Op], None], start: Callable[[Value], None]
    ) -> None:
        """buffer = init + a @ b, where `start` makes it the init."""
        if self.init is None:
            add(Fill(whole(buffer), const(0, self.kind), loc=self.loc))
        elif isinstance(self.init, Product) and self.init.is_fresh:
            self.init.sum_into(buffer, add, start)
        else:
            start(self.init)
        add(self.gemm_into(buffer))

    def gemm_into(self, buffer: Buffer) -> Op:
        """buffer += a @ b."""
        axis = self.a.axes[1]
        a, flip_a = _operand(self.a, axis, self.position, left=True)
        b, flip_b = _operand(self.b, axis, self.position, left=False)
        return Gemm(
            whole(a), whole(b), whole(buffer),
            transpose_a=flip_a, transpose_b=flip_b, precision=self.precision, loc=self.loc,
        )  # fmt: skip


def _operand(value: Value, axis: Axis, at: Position, left: bool) -> tuple[Buffer, bool]:
    """Where an operand of a product at a position lies, and whether it lies there transposed.
    Padding along the axis that is summed is zero."""
    is_held = value.held((Space.FRAGMENT, ())) is not None
    flip = value.base is not None and not is_held
    inner = value.base if flip and value.base is not None else value
    # outside the tensor it is zero anyway
    is_zero = inner.is_zero_outside and inner.box is not None and axis not in inner.box.loose
    known = inner.pad(axis, at if is_held else min(at, inner.position, key=lambda p: p.order))
    is_zero = is_zero or is_same(known, const(0, inner.kind))
    if inner.box is not None and _lies_there(inner, left and not flip) and not axis.is_ragged:
        return inner.box.buffer, flip
    space = Space.FRAGMENT if left and inner.box is None and not flip else Space.SHARED
    return inner.hold(space, () if is_zero else (axis,)), flip


def _lies_there(value: Value, from_registers: bool) -> bool:
    """Whether it is all of a tile that a product can read where it is."""
    if value.region is None or value.is_named or value.is_stale:
        return False
    buffer = value.region.buffer
    held = buffer.is_shared or (from_registers and buffer.is_fragment)
    return held and value.region == whole(buffer)


def _sum_kind(side: Value) -> DType:
    """The type that products of such a side are added up in."""
    if side.kind.name == "float64":
        return side.kind
    return FLOAT32 if side.kind.is_float else INT32


def product(a: Value, b: Value) -> Value:
    """`a @ b`. Matrix instructions would pad a side of 1: one row or one column is multiplied
    element by element and summed."""
    if len(a.axes) != 2 or len(b.axes) != 2:
        side, value = ("left", a) if len(a.axes) != 2 else ("right", b)
        raise CompileError(
            f"the {side} side of @ is no matrix",
            expected="two dimensions",
            got=f"a value of shape {shape_text(value.axes)}",
            fix=_of_matrices(a, b),
            code="shape",
        )
    if a.axes[1].key != b.axes[0].key:
        raise CompileError(
            "@: the shapes do not multiply",
            expected="the last dimension of the left and the first of the right are one axis",
            got=f"{shape_text(a.axes)} @ {shape_text(b.axes)}",
            fix="transpose one: B[n, k].T",
            code="shape",
        )
    eight = all(v.kind.is_float and v.kind.bits == 8 for v in (a, b))
    if a.kind != b.kind and not eight:
        raise CompileError(
            "@: the sides have different types",
            expected="one type",
            got=f"{a.kind} @ {b.kind}",
            fix="cast one: T.cast(p, V.dtype)",
            code="dtype",
        )
    if ONE not in (*a.axes, *b.axes):
        return Product(a, b)
    kind, inner, is_column = _sum_kind(a), a.axes[1], b.axes[1] is ONE
    if inner is not ONE:
        a, b = (a, _turned(b)) if is_column else (_turned(a), b)
    terms: Value = lift(lambda x, y: cast(x, kind) * cast(y, kind), a, b)
    return terms if inner is ONE else reductions.sum(terms, dim=int(is_column), keepdim=True)


def _of_matrices(a: Value, b: Value) -> str:
    """What to write for sides of @ of which one is no matrix."""
    match len(a.axes), len(b.axes):
        case 2, 1:
            return "multiply and sum: T.sum(A[m, :] * x[:], dim=1)"
        case 1, 2:
            return "multiply and sum: T.sum(x[:, None] * A[:, n], dim=0)"
        case (1 | 0, 1 | 0):
            return "multiply and sum: T.sum(x[:] * y[:], dim=0); `*` multiplies by a number"
    batch = max(a, b, key=lambda value: len(value.axes)).axes[0].name
    batch = batch if batch.isidentifier() else "b"
    return f"index it with scalars: for {batch}, m, n in T.tile(T.each(…), M, N) counts by ones"


def _turned(line: Value) -> Value:
    """A row as a column, or the reverse: it lies in memory as before."""
    if line.base is not None:
        return line.base
    return Value(line.axes[::-1], line.kind, lambda places: line.element(places[::-1]), (line,))


WORDS["product"] = product
