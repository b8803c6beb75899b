"""Hints, which never change results, and a look into a running kernel."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.ir.buffer import AnyLayout
from tilewright.ir.expr import FALSE, TRUE, Expr, truth, wrap
from tilewright.ir.layout.banks import make_swizzled_layout as _make_swizzled_layout
from tilewright.ir.layout.fragment import Fragment as _Fragment
from tilewright.ir.layout.layout import Layout as _Layout
from tilewright.ir.op import Hint, Intrinsic
from tilewright.lang.builder import current, current_block, current_kernel
from tilewright.lang.handles import Tile, describe, region_of, usable
from tilewright.lang.types import shape_tuple, static_int
from tilewright.lang.values import value_of
from tilewright.support.errors import CompileError, word

Fragment = _Fragment


def Layout(shape: Any, stride: Any = None) -> AnyLayout | None:
    """A layout of shape and strides. Given a function of the coordinates instead of strides, the
    strides that compute it are found; one that no strides compute is dropped with a warning.

    >>> T.Layout((4, 8), (8, 1))(2, 3)
    19
    >>> T.Layout((4, 8), lambda i, j: i + 4 * j)
    (4,8):(1,4)
    """
    if not callable(stride):
        return _Layout(shape, stride)
    sizes = tuple(int(s) for s in shape_tuple(shape))
    fitted = _strides(sizes, stride)
    if fitted is None:
        warnings.warn(
            "this layout function has no strides; the hint is ignored", UserWarning, stacklevel=3
        )
        return None
    return _Layout(sizes, fitted)


def _strides(sizes: tuple[int, ...], function: Callable[..., Any]) -> tuple[int, ...] | None:
    """The strides of a linear function of the coordinates that gives one index."""

    def at(*coord: int) -> Any:
        value = function(*coord)
        return value[0] if isinstance(value, (tuple, list)) and len(value) == 1 else value

    axes = range(len(sizes))
    units = [at(*(int(i == axis and sizes[i] > 1) for i in axes)) for axis in axes]
    if any(isinstance(unit, (tuple, list)) for unit in units):
        return None
    linear = all(
        at(*coord) == sum(c * u for c, u in zip(coord, units, strict=True))
        for coord in itertools.product(*(range(min(s, 64)) for s in sizes))
    )
    return tuple(int(unit) for unit in units) if linear else None


def make_swizzled_layout(buffer: Any, **_: Any) -> AnyLayout:
    """The layout of a shared tile that its matrix instructions read without bank conflicts.

    Example:
        tile = T.alloc_shared((64, 64), "float16")
        T.annotate_layout({tile: T.make_swizzled_layout(tile)})
        T.copy(X, tile)
        T.copy(tile, Y)
        # Y[0]: 0 1 2 3
    """
    if type(buffer) is not Tile:
        raise CompileError(
            "T.layout.make_swizzled_layout needs a tile",
            got=describe(buffer),
            fix="pass a tile of T.alloc_shared",
        )
    return _make_swizzled_layout(buffer.buffer.static_shape, buffer.buffer.dtype.bits)


class layout:
    """`T.layout`: layouts for `annotate_layout`. `T.layout.make_swizzled_layout(tile)`,
    `T.layout.Layout`, `T.layout.Fragment`.

    Example:
        tile = T.alloc_shared((64, 64), "float16")
        T.annotate_layout({tile: T.layout.make_swizzled_layout(tile)})
        T.copy(X, tile)
        T.copy(tile, Y)
        # Y[0]: 0 1 2 3
    """

    make_swizzled_layout = staticmethod(make_swizzled_layout)
    Layout = staticmethod(Layout)
    Fragment = Fragment


def _each(given: Any) -> list[tuple[Tile, Any]]:
    current_block()
    if not isinstance(given, Mapping):
        raise CompileError(
            f"T.{word()} takes a dictionary from buffers",
            got=f"{type(given).__name__}",
            fix=f"write T.{word()}({{tile: …}})",
        )
    for tile in given:
        if type(tile) is not Tile:
            raise CompileError(
                f"T.{word()}: a key is no buffer",
                got=describe(tile),
                fix="use tiles as keys: {tile: …}",
            )
        usable(tile)
    return list(given.items())


def annotate_layout(layouts: Mapping[Tile, Any]) -> None:
    """Pin the layouts of tiles: a `T.Fragment` for a fragment, a `T.Layout` for a shared tile.

    Left alone, the compiler chooses; results are the same.

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.annotate_layout({x: T.spatial(64, 2) * T.repeat(1, 32)})  # 2 threads a row
        T.copy(X, x)
        T.copy(x, Y)
        # Y[0]: 0 1 2 3
    """
    builder = current()
    for tile, given in _each(layouts):
        if given is None:
            continue
        if tile.buffer.is_global:
            warnings.warn(
                f"the layout of {tile.name} in global memory is its strides; the hint is ignored",
                UserWarning,
                stacklevel=3,  # past the word's `entry`
            )
            continue
        is_fragment = isinstance(given, Fragment)
        wrong = got = ""
        if not is_fragment and not hasattr(given, "size"):
            wrong, got = "this is no layout for", describe(given)
        elif is_fragment != (tile.buffer.is_fragment):
            wrong = "this layout is not for"
            got = f"{type(given).__name__} for {tile.buffer.space.value} memory"
        if wrong:
            raise CompileError(
                f"T.annotate_layout: {wrong} {tile.name}",
                expected="a T.Fragment for a fragment, a T.Layout for shared memory",
                got=got,
                fix=f"leave it out: the compiler finds a layout for {tile.name}",
            )
        covered = given.elements if isinstance(given, Fragment) else given.size()
        if tile.buffer.is_static and covered != prod(tile.buffer.static_shape):
            raise CompileError(
                f"T.annotate_layout: the layout has another size than {tile.name}",
                expected=f"{prod(tile.buffer.static_shape)} elements, as {list(tile.shape)}",
                got=f"{covered} elements, as {given.tile if is_fragment else given.shape}",
                fix=f"make the layout for {tile.name}.shape",
                code="shape",
            )
        builder.emit(Hint("layout", tile.buffer, layout=given))


def annotate_padding(paddings: Mapping[Tile, int]) -> None:
    """Add elements to each row of shared tiles, so that a column is spread over the banks.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.annotate_padding({tile: 1})
        T.copy(X, tile)
        for i, j in T.Parallel(64, 64):
            Y[i, j] = tile[j, i]
        # Y[0]: 0 -1 -2 -3
    """
    builder = current()
    for tile, padding in _each(paddings):
        amount = static_int(padding, "padding", 0)
        builder.emit(Hint("padding", tile.buffer, detail=(amount,)))


def annotate_l2_hit_ratio(ratios: Mapping[Tile, float]) -> None:
    """How much of a tensor should stay in the L2 cache, 0 … 1.

    Example:
        T.annotate_l2_hit_ratio({X: 0.9})
        T.copy(X, Y)
        # Y[0]: 0 1 2 3
    """
    builder = current()
    for tile, ratio in _each(ratios):
        if not 0 <= float(ratio) <= 1:
            raise CompileError(
                "an L2 hit ratio is between 0 and 1", got=str(ratio), fix="pass a part, such as 0.5"
            )
        builder.emit(Hint("l2_hit_ratio", tile.buffer, detail=(float(ratio),)))


def annotate_safe_value(values: Mapping[Tile, Any]) -> None:
    """Accepted for porting: reads outside a tensor give zero.

    Example:
        T.annotate_safe_value({X: 0.0})
        for j in T.Parallel(64):
            Y[0, j] = X[0, j - 2]
        # Y[0]: 0 0 0 1 2
    """
    for tile, value in _each(values):
        if wrap(value) is not wrap(0) and wrap(value) is not wrap(0.0):
            raise CompileError(
                f"reads outside {tile.name} give zero here", got=f"safe value {value}",
                fix="select the value yourself: T.if_then_else(i < n, A[i], value)",
            )  # fmt: skip


def annotate_min_blocks_per_sm(count: int) -> None:
    """How many blocks should fit on a multiprocessor at once: the compiler limits registers so.

    Example:
        T.annotate_min_blocks_per_sm(2)
        T.copy(X, Y)
        # Y[0]: 0 1 2 3
    """
    builder = current_block()
    builder.emit(Hint("min_blocks", detail=(static_int(count, "the count", 1),)))


def annotate_restrict_buffers(*buffers: Any) -> None:
    """Accepted for porting: a written parameter never overlaps another here.

    Example:
        T.annotate_restrict_buffers(X, Y)
        T.copy(X, Y)
        # Y[0]: 0 1 2 3
    """


def assume(cond: Any) -> None:
    """A fact the compiler may use; the sanitizer checks it.

    Example:
        for i in T.Parallel(64):
            T.assume(N[i] >= 0)
            M[i] = N[i] // 4
        # M: 0 0 0 0 1
    """
    fix = "assume what is true of the sizes, or leave it out"
    test = _open(cond, "this assumption never holds", fix)
    if test is not None:
        current_kernel().emit(Hint("assume", value=test))


def _open(cond: Any, never: str, fix: str) -> Expr | None:
    """A condition that is not known to hold."""
    test = truth(wrap(cond))
    if test is FALSE:
        raise CompileError(never, fix=fix)
    return None if test is TRUE else test


# ── looking into a running kernel ────────────────────────────────────────────────────────────────


def print(value: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Print a value, or a whole tile once per block, while the kernel runs.

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        T.print(x[0:1, 0:4], msg="the corner of x")
    """
    builder = current_kernel()
    if isinstance(value, str) and not msg:
        value, msg = None, value
    if value is None:
        builder.emit(Intrinsic("print", (), text=msg))
    elif isinstance(value, Tile):
        builder.emit(Intrinsic("print", (region_of(value),), text=msg))
    elif hasattr(value, "tile_value"):
        counts = tuple(axis.count for axis in value_of(value).real)  # without its padding
        region = replace(region_of(value), extents=counts)
        builder.emit(Intrinsic("print", (region,), text=msg))
    else:
        builder.emit(Intrinsic("print", (wrap(value),), text=msg))


def device_assert(cond: Any, msg: str = "") -> None:
    """Stop the kernel when `cond` does not hold.

    In the interpreter and on the CPU that is an error of the call, with `msg`; on a GPU it ends
    the kernel.

    Example:
        for i in T.Parallel(64):
            T.device_assert(N[i] < 64, "an index that is too large")
            M[i] = N[i]
        # M: 0 1 2
    """
    builder = current_kernel("device_assert")
    never = "this assertion never holds" + (f": {msg}" if msg else "")
    test = _open(cond, never, "check the sizes that it is about")
    if test is not None:
        builder.emit(Intrinsic("device_assert", (test,), text=msg))
