"""Nests that turn a tile over: `y[j, i] = x[i, j]`, from shared memory into registers.

Matrix loads transpose on the way, eight rows of 16 bytes at a time, where threads hold the result
as four lanes along its rows: whoever lays tiles out asks for that here. A result that goes on to
shared memory is held as the matrices that matrix stores take: in swizzled tiles neither meets a
conflict.
"""

from __future__ import annotations

from dataclasses import replace
from math import gcd

from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.expr import Const, Load
from tilewright.ir.layout.fragment import Fragment, repeat, spatial
from tilewright.ir.layout.layout import AnyLayout, ComposedLayout, make_layout
from tilewright.ir.op import Copy, Map, Op, Store, View

LANES = 4  # of a warp along a row of the result
BITS = 16  # of the elements that matrix loads transpose
WARP, SIDE = 32, 8  # threads that hold a matrix, its rows and columns


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


def as_matrices(shape: tuple[int, ...], threads: int) -> Fragment | None:
    """A tile as whole matrices, those of a warp side by side; None where it does not divide.

    >>> as_matrices((128, 64), 256)
    frag{tile=(128,64) tv=((4,64),(2,8,2)):((2,64),(1,8,4096))}
    """
    rows, columns = shape
    high = gcd(rows // SIDE, threads // WARP)
    wide = threads // WARP // high
    if threads % WARP or rows % SIDE or columns % (SIDE * wide):
        return None
    along = columns // SIDE // wide
    matrix = spatial(SIDE, LANES) * repeat(1, 2)
    return repeat(rows // SIDE // high, 1) * spatial(high, wide) * repeat(1, along) * matrix


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
