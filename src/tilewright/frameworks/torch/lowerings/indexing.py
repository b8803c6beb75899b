"""Reads at places that data say."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.formula.front.values import same
from tilewright.frameworks.torch.lowerings.shapes import all_of, inside
from tilewright.frameworks.torch.lowerings.table import ALONE, GATHER, POINTWISE, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.support.errors import CompileError

FEW = 8  # that each element is compared with
_NO_NAN = "elements that are no floats have no NaN for indices outside"


def _checked(x: Any, found: Any, bounds: Sequence[tuple[Any, int]]) -> Any:
    """What was read; NaN where an index lies outside, which PyTorch's own kernels refuse."""
    if not x.dtype.is_float:
        raise CompileError(_NO_NAN, fix="index floats")
    return tm.where(inside(*zip(*bounds, strict=True)), found, math.nan)


@lower("embedding.default", GATHER)
def embedding(weight: Any, indices: Any, padding_idx: int = -1, *_: Any) -> Any:
    found = tm.take(weight, indices, axis=0)
    return _checked(weight, found, [(tm.expand_dims(indices, axis=indices.ndim), weight.shape[0])])


@lower("index.Tensor", GATHER)
def index(x: Any, indices: Sequence[Any]) -> Any:
    """Negative indices count from the end."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if any(i.dtype.is_bool for _, i in given):
        raise CompileError("a boolean mask as an index", fix="its shape depends on data")
    rows = [(d, tm.where(i < 0, i + x.shape[d], i)) for d, i in given]
    known = dict(rows)
    found = x[tuple(known.get(d, slice(None)) for d in range(len(indices)))]
    behind = x.ndim - 1 - given[-1][0]
    wide = [
        (tm.reshape(i, (*i.shape, *[1] * behind)), x.shape[d])
        for d, i in rows
    ]  # fmt: skip
    return _checked(x, found, wide)


@lower("gather.default", GATHER)
def gather(x: Any, dim: int, indices: Any, *, sparse_grad: bool = False, out: Any) -> Any:
    along = dim % x.ndim
    if any(
        a > b for d, (a, b) in enumerate(zip(indices.shape, x.shape, strict=True)) if d != along
    ):
        raise CompileError("gather of other rows", fix="index them")
    parts = tuple(slice(None) if d == along else slice(0, n) for d, n in enumerate(indices.shape))
    found = tm.take_along_axis(x[parts], indices, axis=along)
    return _checked(x, found, [(indices, x.shape[along])])


def _written(x: Any, along: int, count: Any, read: Callable[..., Any], sums: bool) -> Any:
    """`x` where few are written along an axis: each element looks which of them is its own. `read`
    gives the place of one, what is written there, and further conditions."""
    if not isinstance(count, int) or count > FEW:
        raise CompileError(
            "it writes at places that data say, which no formula does", fix="write fewer"
        )
    if not x.dtype.is_float:
        raise CompileError(_NO_NAN, fix="write floats")

    def element(*i: Any) -> Any:
        found = x[i]
        for n in range(count):
            place, new, others = read((*i[:along], n, *i[along + 1 :]))
            there = inside([place], [x.shape[along]])
            new = tm.where(there, found + new if sums else new, math.nan)
            own = all_of([tm.equal(place, i[along]) | ~there, *others])
            found = tm.where(own, new, found)
        return found

    return tm.array(x.shape, element)


@lower("scatter.src scatter.value scatter_add.default", POINTWISE)
def scatter(x: Any, dim: int, indices: Any, source: Any, *, out: Any) -> Any:
    along = dim % x.ndim
    pairs = enumerate(zip(indices.shape, x.shape, strict=True))
    part = [d for d, (a, b) in pairs if d != along and not same(a, b)]

    def read(at: Any) -> Any:
        new = tm.item(source, at) if hasattr(source, "dtype") else source
        return tm.item(indices, at), new, [at[d] < indices.shape[d] for d in part]

    return _written(x, along, indices.shape[along], read, "add" in out.name)


@lower("index_put.default _unsafe_index_put.default", POINTWISE)
def index_put(x: Any, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Of one axis, as a cache that a token is written to."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    along, places = given[0]
    if len(given) > 1 or places.dtype.is_bool or places.ndim > 1:
        raise CompileError("it writes at places of several axes", fix="write along one")
    count, extent = (*places.shape, 1)[0], x.shape[along]
    values = tm.broadcast_to(values, (*x.shape[:along], *places.shape, *x.shape[along + 1 :]))

    def read(at: Any) -> Any:
        place = tm.item(places, at[along : along + 1] if places.ndim else ())
        own = at if places.ndim else (*at[:along], *at[along + 1 :])
        return tm.where(place < 0, place + extent, place), tm.item(values, own), []

    return _written(x, along, count, read, accumulate)


@lower("grid_sampler_2d.default", GATHER)
def grid_sampler(
    x: Any, grid: Any, mode: int, padding: int, align_corners: bool, *, out: Any
) -> Any:
    """Between the four places around each point of the grid, or at the nearest one. Places outside
    are zero, or those at the border."""
    if mode > 1 or padding > 1:
        raise CompileError("cubes, or what the border reflects", fix="sample linearly")

    def along(n: Any, h: Any, w: Any, axis: int, size: Any) -> list[tuple[Any, Any]]:
        """Two places, and by how much each counts."""
        at = tm.astype(tm.item(grid, (n, h, w, axis)), _wide(x)) + 1
        at = at * ((size - 1) / 2) if align_corners else (at * size - 1) / 2
        at = tm.clip(at, *((0, size - 1) if padding else (-2, size + 1)))
        if mode:
            return [(tm.astype(tm.round(at), "int32"), 1)]
        low = tm.floor(at)
        place = tm.astype(low, "int32")
        return [(place, 1 - (at - low)), (place + 1, at - low)]

    def element(n: Any, c: Any, h: Any, w: Any) -> Any:
        rows, columns = (along(n, h, w, axis, x.shape[3 - axis]) for axis in (1, 0))
        found: Any = 0
        for i, by in rows:
            for j, part in columns:
                found = found + tm.item(x, (n, c, i, j)) * (by * part)
        return found

    return tm.array(out.shape, element)


def _wide(x: Any) -> str:
    return "float64" if x.dtype.bits == 64 else "float32"


# ── the loss of classes ──────────────────────────────────────────────────────────────────────


def _classes(x: Any, target: Any, weight: Any, ignored: int) -> tuple[Any, Any]:
    """Whether a class is that of its row, and what rows weigh."""
    along = 1 if x.ndim > 1 else 0
    places = tm.indices(x, along)
    hit = tm.equal(places, tm.expand_dims(target, axis=along))
    counts = tm.astype(tm.not_equal(target, ignored), "float32")
    if weight is not None:
        counts = counts * tm.take(weight, target, axis=0)
    return hit, counts


@lower("nll_loss_forward.default nll_loss2d_forward.default", ALONE)
def nll_loss(x: Any, target: Any, weight: Any, reduction: int, ignore_index: int) -> Any:
    """−x at the class of each row; a class that is not there makes NaN."""
    along = 1 if x.ndim > 1 else 0
    hit, counts = _classes(x, target, weight, ignore_index)
    kept = tm.not_equal(target, ignore_index)
    found = -tm.sum(tm.where(hit, x, 0), axis=along)
    real = inside([target], [x.shape[along]])
    rows = tm.where(kept, tm.where(real, found * counts, math.nan), 0)
    total = tm.sum(counts) if counts.ndim else counts
    if reduction == 0:
        return rows, tm.zeros(())
    loss = tm.sum(rows) if rows.ndim else rows
    return (loss / total if reduction == 1 else loss), total


@lower("nll_loss_backward.default nll_loss2d_backward.default", POINTWISE)
def nll_loss_backward(
    grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: int, total: Any
) -> Any:
    along = 1 if x.ndim > 1 else 0
    hit, counts = _classes(x, target, weight, ignore_index)
    grad = grad / total if reduction == 1 else grad
    rows = tm.where(tm.not_equal(target, ignore_index), grad * counts, 0)
    return tm.where(hit, -tm.expand_dims(rows, axis=along), 0)
