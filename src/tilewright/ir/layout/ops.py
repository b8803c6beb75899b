"""The layout algebra: coalesce, composition, complement, divides, products and inverses.

Every result is exact: an operation either meets the conditions in its docstring or raises
`LayoutError` with both layouts and the condition that failed. A left operand of `composition`
runs on along its last mode past its end, as in CuTe, so tiles need not divide what they tile.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeAlias, TypeVar, overload

import numpy as np

from tilewright.ir.layout.layout import *

Tiler: TypeAlias = "int | Layout | tuple[Tiler, ...] | None"
L = TypeVar("L", Layout, ComposedLayout)


P = ParamSpec("P")


def _on_domain(op: Callable[Concatenate[Layout, P], Layout]) -> Callable[Concatenate[L, P], L]:
    """An operation on the domain of a layout: a swizzle stays as it is."""

    @wraps(op)
    def apply(layout: Any, /, *args: P.args, **kwargs: P.kwargs) -> Any:
        if isinstance(layout, ComposedLayout):
            return layout.with_layout(op(layout.layout, *args, **kwargs))
        return op(layout, *args, **kwargs)

    return apply


def _from_modes(modes: list[Mode]) -> Layout:
    """A layout of the modes with no nesting to spare."""
    if len(modes) == 1:
        return Layout.of(*modes[0])
    if not modes:
        return Layout.of(1, 0)
    shape, stride = zip(*modes, strict=True)
    return Layout.of(shape, stride)


def _merged(modes: list[Mode], keep_last: bool = False) -> list[Mode]:
    """Drop unit modes and join neighbours that continue each other; `keep_last` keeps a last unit
    mode, which says how the layout runs on past its end."""
    result: list[Mode] = []
    for i, (extent, stride) in enumerate(modes):
        if extent == 1 and not (keep_last and i == len(modes) - 1):
            continue
        if result and result[-1][0] * result[-1][1] == stride:
            result[-1] = (result[-1][0] * extent, result[-1][1])
        else:
            result.append((extent, stride))
    return result


def _modes(name: str, layout: Layout, tiler: tuple[Tiler, ...]) -> list[Layout]:
    if len(tiler) > len(layout):
        raise LayoutError(
            f"{name}({layout}, {tiler}): the tiler has {len(tiler)} modes, the layout {len(layout)}"
        )
    return list(layout)


def _by_mode(op: Callable[[Layout, Layout], Layout]) -> Callable[[Layout, Tiler], Layout]:
    """`op` for any tiler: a tuple goes by mode, `None` keeps a mode, an integer n means `n:1`."""

    @wraps(op)
    def apply(layout: Layout, tiler: Tiler) -> Layout:
        if tiler is None:
            return layout
        if isinstance(tiler, tuple):
            modes = _modes(op.__name__.lstrip("_"), layout, tiler)
            return make_layout(*map(apply, modes, tiler), *modes[len(tiler) :])
        return op(layout, Layout(tiler) if isinstance(tiler, int) else tiler)

    return apply


# Simplifying


@_on_domain
def flatten(layout: Layout) -> Layout:
    """The layout without nesting.

    >>> flatten(Layout((4, (2, 3)), (6, (3, 1))))
    (4,2,3):(6,3,1)
    """
    if isinstance(layout.shape, int):
        return layout
    return Layout.of(leaves(layout.shape), leaves(layout.stride))


@_on_domain
def coalesce(layout: Layout, profile: IntTuple | None = None) -> Layout:
    """The same function of the linear coordinate with the fewest modes; unique. With a profile,
    the modes at its integers are coalesced each on its own.

    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))))
    12:1
    >>> coalesce(Layout((2, (1, 6)), (1, (6, 2))), (1, 1))
    (2,6):(1,2)
    """
    return _coalesce(layout, 1 if profile is None else profile)


@_by_mode
def _coalesce(layout: Layout, profile: Layout) -> Layout:
    return _from_modes(_merged(layout.modes()))


def filter(layout: Layout, profile: Tiler = None) -> Layout:
    """The layout without its stride-0 and unit modes, coalesced: the same indices, each once if
    the rest is injective. With a profile, the modes at its integers are filtered each on its own.

    >>> filter(Layout((4, 2, 3), (1, 0, 4))), filter(Layout((4, (2, 3)), (1, (0, 4))), (1, 1))
    (12:1, (4,3):(1,4))
    """
    return _filter(layout, 1 if profile is None else profile)


@_by_mode
def _filter(layout: Layout, profile: Layout) -> Layout:
    return _from_modes(_merged([mode for mode in layout.modes() if mode[1]]))


# Composition


@overload
def composition(left: Swizzle, right: Layout) -> ComposedLayout: ...
@overload
def composition(left: Layout, right: Swizzle) -> ComposedLayout: ...
@overload
def composition(left: L, right: Tiler) -> L: ...
def composition(left: MemoryLayout | Swizzle, right: Tiler | Swizzle) -> MemoryLayout:
    """`R(c) == left(right(c))`, with R's shape a refinement of right's. A tuple composes by mode,
    `None` in it keeps the mode; an integer n stands for `n:1`; a swizzle on the left makes a
    `ComposedLayout`. A swizzle on the right goes through the layout, where one can.

    Conditions, for each mode n:d of `right` walked through the modes s:e of `left`: d divides s or
    s divides d, unless n steps stay within s (stride divisibility); n steps fill s a whole number
    of times, or stay within it (shape divisibility); and the modes of `right` together do not carry
    from one mode of `left` into the next, but for coordinates past the end of `left`.

    >>> composition(Layout((6, 2), (8, 2)), Layout((4, 3), (3, 1)))
    ((2,2),3):((24,2),8)
    >>> composition(Layout((12, (4, 8)), (59, (13, 1))), (3, 8))
    (3,(4,2)):(59,(13,1))
    >>> composition(Swizzle(3, 3, 3), Layout((8, 64), (64, 1)))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    if isinstance(left, Swizzle):
        if not isinstance(right, Layout):
            raise LayoutError(f"composition({left}, {right}): a swizzle composes with a layout")
        return ComposedLayout(left, 0, right)
    if isinstance(right, Swizzle):
        return _through(left, right)
    if isinstance(left, ComposedLayout):
        return left.with_layout(_composition(left.layout, right))
    return _composition(left, right)


def _through(layout: MemoryLayout, swizzle: Swizzle) -> ComposedLayout:
    """`layout o swizzle` as `moved o layout`: the fields of the swizzle become those where the
    layout puts their bits. Linear coordinates must not leave the layout, and XOR must not carry."""
    name = f"composition({layout}, {swizzle})"
    if isinstance(layout, ComposedLayout):
        raise LayoutError(f"{name}: a swizzled layout takes no second swizzle")
    bits = ((1 << swizzle.bits) - 1) << swizzle.base
    source, target = bits << max(swizzle.shift, 0), bits << max(-swizzle.shift, 0)
    low_source, low_target = layout(source & -source), layout(target & -target)
    if swizzle.bits == 0:
        return ComposedLayout(swizzle, 0, layout)
    shift = low_source.bit_length() - low_target.bit_length()
    coords = swizzle(np.arange(layout.size(), dtype=np.int64))
    if int(coords.max()) >= layout.size():
        raise LayoutError(f"{name}: the swizzle leaves the {layout.size()} coordinates")
    try:
        moved = Swizzle(swizzle.bits, min(low_source, low_target).bit_length() - 1, shift)
        result = ComposedLayout(moved, 0, layout)
    except LayoutError:
        result = None
    if result is None or not np.array_equal(result.indices(), layout.at(coords)):
        raise LayoutError(f"{name}: no swizzle after the layout does the same")
    return result


@_by_mode
def _composition(left: Layout, right: Layout) -> Layout:
    modes = left.modes()
    through, inside = _merged(modes, keep_last=True) or [(1, 0)], _merged(modes) or [(1, 0)]
    try:
        return _walked(left, right, through, inside)
    except LayoutError:
        if through == inside:
            raise
        # What fails is how a last mode of extent 1 runs on: no matter within the left layout.
        result = _walked(left, right, inside, inside)
        if not _agrees(result, left, right):
            raise
        return result


def _walked(left: Layout, right: Layout, through: list[Mode], inside: list[Mode]) -> Layout:
    """`left o right` by walking the modes of `through`, the simplest form of `left`, with each mode
    of `right`; `inside` is that form without what only says how `left` runs on."""
    reach = [0] * len(through)

    def fail(reason: str) -> LayoutError:
        return LayoutError(f"composition({left}, {right}): {reason}")

    def walk(extent: int, step: int) -> list[Mode]:
        """Every step-th element of `left`, the first `extent` of them."""
        steps, width, result = extent, step, list[Mode]()
        if step == 0:
            return [(extent, 0)]
        if extent == 1:  # what the stride would be, were there a second element
            for bound, _ in inside[:-1]:
                width = -(-width // bound)
            return [(1, width * inside[-1][1])]
        for i, (bound, stride) in enumerate(through):
            if i == len(through) - 1 or (steps - 1) * width < bound:
                reach[i] += (steps - 1) * width
                return [*result, (steps, width * stride)]
            if width % bound == 0:
                width //= bound
                continue
            if bound % width:
                raise fail(
                    f"stride divisibility: {extent}:{step} meets mode {bound}:{stride} of the left"
                    f" layout with stride {width}: neither of {bound}, {width} divides the other"
                )
            count = bound // width
            if steps % count:
                raise fail(
                    f"shape divisibility: {extent}:{step} meets mode {bound}:{stride} of the left"
                    f" layout with {steps} steps to go, not a multiple of the {count} that fill it"
                )
            reach[i] += (count - 1) * width
            result.append((count, width * stride))
            steps, width = steps // count, 1
        raise AssertionError("the last mode of the left layout ends the walk")

    def recurse(part: Layout) -> Layout:
        if isinstance(part.shape, int) and isinstance(part.stride, int):
            return _from_modes(walk(part.shape, part.stride))
        return make_layout(*map(recurse, part))

    result = recurse(right)
    for (bound, stride), most in zip(through[:-1], reach[:-1], strict=True):
        # One carry moves the index by the gap between two modes that do not continue each other,
        # so the result is wrong there, which matters only within the left layout.
        if most >= bound and not _agrees(result, left, right):
            raise fail(
                f"the modes of the right layout add up to {most} in mode {bound}:{stride} of the"
                " left layout and carry into its next mode"
            )
    return result


def _agrees(result: Layout, left: Layout, right: Layout) -> bool:
    wanted = right.indices()
    inside = wanted < left.size()
    return np.array_equal(result.indices()[inside], left.at(wanted[inside]))


# Complement and inverses


def _complement_modes(layout: Layout, cotarget: int) -> list[Mode]:
    result: list[Mode] = []
    filled = 1
    for stride, extent, _ in _by_stride(layout):
        if stride < filled:
            raise LayoutError(
                f"complement({layout}, {cotarget}): mode {extent}:{stride} starts inside the"
                f" {filled} indices of the modes below it (not injective, or interleaved)"
            )
        result.append((stride // filled, filled))
        filled = extent * stride
    result.append((-(-cotarget // filled), filled))
    return result


def complement(layout: Layout, cotarget: IntTuple = 1) -> Layout:
    """The layout of the repetitions of `layout` that fill `[0, size(cotarget))`: ordered, and
    `layout(i) + result(j)` are all different. They leave no hole when each stride is a multiple of
    what the modes below it span, else as few as whole repetitions allow.

    >>> complement(Layout(4, 2), 24), complement(Layout((2, 2), (1, 6)), 24)
    ((2,3):(1,8), (3,2):(2,12))
    """
    return _from_modes(_merged(_complement_modes(layout, size(cotarget))))


def _by_stride(layout: Layout) -> list[tuple[int, int, int]]:
    """(stride, extent, its step in the linear coordinate) of the modes that move, sorted."""
    placed: list[tuple[int, int, int]] = []
    position = 1
    for extent, stride in layout.modes():
        if extent > 1 and stride:
            placed.append((stride, extent, position))
        position *= extent
    return sorted(placed)


def _inverse(op: Callable[[Layout], Layout]) -> Callable[[L], L]:
    """`op` for swizzled layouts too: a swizzle, its own inverse, goes to the other side."""

    @wraps(op)
    def apply(layout: Any) -> Any:
        if not isinstance(layout, ComposedLayout):
            return op(layout)
        if layout.offset:
            raise LayoutError(f"the inverse of {layout} has an offset of -{layout.offset}")
        return composition(op(layout.layout), layout.swizzle)

    return apply


@_inverse
def right_inverse(layout: Layout) -> Layout:
    """R, as long as the strides allow, with `layout(R(i)) == i` for every i of R.

    >>> right_inverse(Layout((4, 8), (8, 1))), right_inverse(Layout((4, 8), (1, 10)))
    ((8,4):(4,1), 4:1)
    """
    result: list[Mode] = []
    reached = 1
    for stride, extent, position in _by_stride(layout):
        if stride == reached:
            result.append((extent, position))
            reached *= extent
    return _from_modes(_merged(result))


@_inverse
def left_inverse(layout: Layout) -> Layout:
    """R with `R(layout(i)) == i` for every i of an injective layout. Where stride-0 modes make it
    non-injective, `layout(R(layout(i))) == layout(i)`.

    It is the inverse of the layout together with its complement, when the two leave no hole;
    otherwise indices between two of the layout's go where the one below them goes on to.

    Conditions: sorted, each stride divides the next and is past what the modes below it span.

    >>> left_inverse(Layout((4, 8), (8, 1))), left_inverse(Layout(4, 2))
    ((8,4):(4,1), (2,4):(4,1))
    >>> left_inverse(Layout((4, 2), (1, 6)))
    (6,2):(1,4)
    """
    result: list[Mode] = []
    below, span, position, filled = 1, 1, 0, True
    for stride, extent, next_position in _by_stride(layout):
        if stride % below or stride < span:
            raise LayoutError(
                f"left_inverse({layout}): stride {stride} is not a multiple of stride {below} below"
                f" it, or less than the {span} indices spanned there"
            )
        filled = filled and stride % span == 0
        result.append((stride // below, position))
        below, span, position = stride, extent * stride, next_position
    if filled and filter(layout).size() == layout.size():
        return right_inverse(make_layout(layout, complement(layout)))
    result.append((span // below, position))
    return _from_modes(_merged(result))


# Divides


def _zipped(name: str, op: Callable[..., Layout], layout: Layout, tiler: Tiler) -> Layout:
    """(tile, rest) of each mode as (tiles, rests)."""
    if tiler is None:
        return make_layout(Layout(1, 0), layout)
    if not isinstance(tiler, tuple):
        return op(layout, tiler)
    modes = _modes(name, layout, tiler)
    pairs = [_zipped(name, op, *pair) for pair in zip(modes, tiler, strict=False)]
    firsts = make_layout(*(pair[0] for pair in pairs))
    return make_layout(firsts, make_layout(*(pair[1] for pair in pairs), *modes[len(pairs) :]))


def _tiled(zipped: Layout) -> Layout:
    tile, rest = zipped
    return make_layout(tile, *rest)


def _flat(zipped: Layout) -> Layout:
    tile, rest = zipped
    return make_layout(*tile, *rest)


@_on_domain
@_by_mode
def logical_divide(layout: Layout, tiler: Layout) -> Layout:
    """Split a layout into (tile, rest): `layout o (tiler, complement(tiler))`, by mode for a tuple.

    >>> logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2))
    ((2,2),(2,3)):((4,1),(2,8))
    """
    return _composition(layout, make_layout(tiler, complement(tiler, layout.size())))


@_on_domain
def zipped_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_divide` with the tiles in mode 0 and the rests in mode 1.

    >>> zipped_divide(Layout((8, 12)), (4, 3))
    ((4,3),(2,4)):((1,8),(4,24))
    """
    return _zipped("zipped_divide", logical_divide, layout, tiler)


@_on_domain
def tiled_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`zipped_divide` with each rest a mode of its own.

    >>> tiled_divide(Layout((8, 12)), (4, 3))
    ((4,3),2,4):((1,8),4,24)
    """
    return _tiled(zipped_divide(layout, tiler))


@_on_domain
def flat_divide(layout: Layout, tiler: Tiler) -> Layout:
    """`zipped_divide` with each tile and each rest a mode of its own.

    >>> flat_divide(Layout((8, 12)), (4, 3))
    (4,3,2,4):(1,8,4,24)
    """
    return _flat(zipped_divide(layout, tiler))


# Products


@_by_mode
def logical_product(layout: Layout, tiler: Layout) -> Layout:
    """(layout, its repetitions in the order of the tiler): `(A, complement(A) o tiler)`, by mode
    for a tuple.

    >>> logical_product(Layout((2, 2), (4, 1)), Layout(6, 1))
    ((2,2),(2,3)):((4,1),(2,8))
    """
    modes = _complement_modes(layout, layout.size() * tiler.cosize())
    rest = _from_modes(_merged(modes))
    if rest.size() < tiler.cosize():
        # Holes took their places: copies beyond go on along the last mode, even one of extent 1.
        rest = _from_modes(modes)
    return make_layout(layout, _composition(rest, tiler))


def zipped_product(layout: Layout, tiler: Tiler) -> Layout:
    """`logical_product` with the layouts in mode 0 and the repetitions in mode 1.

    >>> zipped_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    ((2,5),(3,4)):((5,1),(10,30))
    """
    return _zipped("zipped_product", logical_product, layout, tiler)


def tiled_product(layout: Layout, tiler: Tiler) -> Layout:
    """`zipped_product` with each repetition a mode of its own.

    >>> tiled_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    ((2,5),3,4):((5,1),10,30)
    """
    return _tiled(zipped_product(layout, tiler))


def blocked_product(layout: Layout, tiler: Layout) -> Layout:
    """Tiles shaped like `layout`, arranged like `tiler`: mode by mode, the tile's coordinate runs
    fastest.

    >>> blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    (6,(5,4)):(5,(1,30))
    """
    tile, rest = _ranked_product(layout, tiler)
    return coalesce(make_layout(*map(make_layout, tile, rest)), (1,) * len(tile))


def raked_product(layout: Layout, tiler: Layout) -> Layout:
    """Tiles shaped like `layout`, interleaved like `tiler`: mode by mode, the tiler's coordinate
    runs fastest.

    >>> raked_product(Layout((2, 5), (5, 1)), Layout((3, 4)))
    ((3,2),(4,5)):((10,5),(30,1))
    """
    tile, rest = _ranked_product(layout, tiler)
    return coalesce(make_layout(*map(make_layout, rest, tile)), (1,) * len(tile))


def _ranked_product(layout: Layout, tiler: Layout) -> Layout:
    ranked = max(len(layout), len(tiler))
    unit = Layout(1, 0)
    a, b = (make_layout(*list(part), *[unit] * (ranked - len(part))) for part in (layout, tiler))
    return logical_product(a, b)
