"""Nests that turn a tile over: `y[j, i] = x[i, j]`, from shared memory into registers.

Matrix loads transpose on the way, eight rows of 16 bytes at a time, where threads hold the result
as four lanes along its rows: whoever lays tiles out asks for that here.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.expr import Const, Load
from tilewright.ir.fragment import Fragment
from tilewright.ir.layout import AnyLayout, ComposedLayout, make_layout
from tilewright.ir.op import Copy, Map, Op, Store, View

LANES = 4  # of a warp along a row of the result
BITS = 16  # of the elements that matrix loads transpose


def turned(op: Op) -> tuple[Buffer, Buffer] | None:
    """(x, y) of a nest that does nothing but `y[j, i] = x[i, j]` for all of both."""
    if not isinstance(op, Map) or len(op.vars) != 2 or len(op.body) != 1:
        return None
    store, (i, j) = op.body[0], op.vars
    if not isinstance(store, Store) or not isinstance(store.value, Load):
        return None
    x, y = store.value.buffer, store.buffer
    if (x.space, y.space) != (Space.SHARED, Space.FRAGMENT) or x.dtype != y.dtype:
        return None
    whole_of_both = x.shape == op.extents and y.shape == op.extents[::-1]
    crossed = store.value.indices == (i, j) and store.indices == (j, i)
    known = all(isinstance(e, Const) for e in op.extents)
    return (x, y) if crossed and whole_of_both and known and x.dtype.bits == BITS else None


def as_copy(op: Map, x: Buffer, y: Buffer, name: str) -> tuple[View, Copy]:
    """The nest as a copy from `x` seen the other way round, which is called `name`."""
    assert x.layout is not None and not isinstance(x.layout, Fragment)
    other = replace(x, name=name, shape=x.shape[::-1], layout=reversed_modes(x.layout))
    return View(other, x, loc=op.loc), Copy(whole(other), whole(y), loc=op.loc)


def reversed_modes(layout: AnyLayout) -> AnyLayout:
    """The same places, under coordinates in the opposite order."""
    if isinstance(layout, ComposedLayout):
        return layout.with_layout(make_layout(*reversed(tuple(layout.layout))))
    return make_layout(*reversed(tuple(layout)))
