"""Names of tile values, and values that loops and branches change."""

from __future__ import annotations

from typing import Any

from tilewright.lang import scalar
from tilewright.lang.alloc import scalar_value
from tilewright.lang.builder import TracedAgain, in_kernel
from tilewright.lang.handles import Variable
from tilewright.lang.logic import Binding, Frame
from tilewright.lang.products import Product
from tilewright.lang.scalar import Number, Scalar, is_number
from tilewright.lang.values import *


def named(value: Value, name: str | None) -> Value:
    """The value under a name: it is computed once, where it got the name."""
    if value.is_bound:
        return named(again(value), name)
    builder = current()
    value.is_bound = True
    value.name, value.position = name or value.name, builder.position()
    value.is_named = not value.is_formula or name in builder.carried
    return _memory(value, value.hold()) if name in builder.carried else value


def _memory(value: Value, buffer: Buffer) -> Value:
    """What the memory of a name that loops change has now."""
    made = Value.of(value.axes, buffer)
    made.name, made.is_named, made.is_bound = value.name, True, True
    return made


def carry(name: str, old: Value, new: Any) -> Value:
    """The value that `name` has after a loop or a branch gave it a new one: the memory of `old`
    takes it."""
    builder = current_block()
    made = value_of(new)
    if [a.key for a in made.axes] != [a.key for a in old.axes] or made.kind != old.kind:
        shape = [a.key for a in made.axes] != [a.key for a in old.axes]
        raise CompileError(
            f"{name!r} changes its {'shape' if shape else 'type'} inside a run-time loop or branch",
            expected=f"{shape_text(old.axes)} {old.kind}, as before it",
            got=f"{shape_text(made.axes)} {made.kind}",
            fix=f"start with the same {'shape' if shape else 'type'}: {name} = "
            f'T.zeros({shape_text(made.axes)}, "{made.kind}")'
            + ("" if shape else f'; or cast it: {name} = T.cast(…, "{old.kind}")'),
            code="rebinding",
        )
    if name not in builder.carried:  # it may have been read from where it came
        builder.carried.add(name)
        raise TracedAgain
    buffer = old.hold()

    def start(value: Value) -> None:
        if value is not old:
            _elementwise(builder, value, buffer)

    own = {id(made)} | ({id(made.init)} if isinstance(made, Product) else set())
    for value in live(builder):
        if not builder.in_scope(value.position):  # no name stands for it any more
            continue
        needed = value.is_named or not depends(made, value)
        if needed and value is not old and id(value) not in own and depends(value, old):
            value.hold()
    if isinstance(made, Product) and made.may_replace(old):
        made.sum_into(buffer, builder.emit, start)
        made.is_in(buffer)
    else:
        start(made)
    held = _memory(old, buffer)
    if not made.is_named and not isinstance(made, Product):  # what it was made of may change
        made.at, made.parts, made.pad_of = held.element, (held,), None
    return held


# ── numbers ──


def over_tiles() -> bool:
    """Whether a kernel over tiles is traced, outside maps over elements."""
    builder = current() if in_kernel() else None
    return builder is not None and builder.number in builder.tiled and not builder.in_map


scalar.widens = over_tiles


def carry_scalar(builder: Builder, name: str, old: Binding, value: Any) -> None:
    """`name` is a number that the kernel computed, and a loop or a branch gives it another one: it
    has memory from the start, when the text is traced again. Elsewhere that is `T.alloc_var`."""
    computed = isinstance(old.value, (Expr, Number)) and not old.loop and is_number(value)
    if over_tiles() and computed and name not in builder.carried_scalars:
        builder.carried_scalars.add(name)
        raise TracedAgain


def scalar_memory(value: Any) -> Variable:
    number = wrap(value)
    made = scalar_value(str(number.dtype), number)
    made.named = True
    return made


def keeps_type(name: str, old: Binding, value: Any, top: Frame | None) -> bool:
    """Whether a number fits the memory of a value of rank 0. In the loop or branch where the name
    was bound it may have another type; inside of those it may not."""
    kind = old.value.buffer.dtype
    if not isinstance(value, (Expr, Scalar)):  # a literal takes the type
        made = FLOAT32 if isinstance(value, float) else INT32
        fits = kind.is_float or not made.is_float
    else:
        made = wrap(value).dtype
        fits = made == kind
    if fits or old.frame is top:
        return fits
    raise CompileError(
        f"{name!r} changes its type inside a run-time loop or branch",
        expected=f"{kind}, as before it",
        got=str(made),
        fix=f'start with the same type: {name} = T.full((), …, "{made}"); or cast it: '
        f'{name} = T.cast(…, "{kind}")',
        code="rebinding",
    )


def _elementwise(builder: Builder, value: Value, buffer: Buffer) -> None:
    """buffer = value, which may read each element of the old content where it writes it."""
    with walking(builder, value.axes, value.goes_backward):
        vars, places = over(builder, value.axes)
        element = value.element(places)
        real = value._real(places)
        if any(x.buffer == buffer and x.indices != real for x in loads(element)):
            element = Load(value.hold(), real)
        extents = spans(builder, value.axes)
        builder.emit(filled(buffer, real, vars, extents, cast(element, buffer.dtype), locate()))
