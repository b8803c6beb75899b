"""Views, and what joins or moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.formula.front.values import extent_of
from tilewright.frameworks.torch.lowerings.table import POINTWISE, VIEW, lower
from tilewright.frameworks.torch.lowerings.words import tm


@lower("view.default _unsafe_view.default reshape.default", VIEW)
def view(x: Any, size: Any, *, out: Any) -> Any:
    return tm.reshape(x, out.shape)


@lower("squeeze.default squeeze.dim squeeze.dims unsqueeze.default", VIEW)
def resized(x: Any, dim: Any = None, *, out: Any) -> Any:
    return tm.reshape(x, out.shape)


@lower("alias.default detach.default", VIEW)
def alias(x: Any) -> Any:
    return x


@lower("permute.default", VIEW)
def permute(x: Any, dims: Sequence[int]) -> Any:
    return tm.permute_dims(x, tuple(d % x.ndim for d in dims))


@lower("transpose.int", VIEW)
def transpose(x: Any, dim0: int, dim1: int) -> Any:
    order = list(range(x.ndim))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return tm.permute_dims(x, tuple(order))


@lower("t.default", VIEW)
def t(x: Any) -> Any:
    return tm.permute_dims(x, tuple(reversed(range(x.ndim))))


@lower("expand.default", VIEW)
def expand(x: Any, size: Any, *, implicit: bool = False, out: Any) -> Any:
    return tm.broadcast_to(x, out.shape)


def _before(x: Any, dim: int) -> list[slice]:
    """The key of the axes before one."""
    return [slice(None)] * (dim % x.ndim)


@lower("slice.Tensor", VIEW)
def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    end = None if isinstance(end, int) and end >= (1 << 62) else end
    return tm.item(x, (*_before(x, dim), slice(start, end, step)))


@lower("select.int", VIEW)
def select(x: Any, dim: int, index: Any) -> Any:
    return tm.item(x, (*_before(x, dim), index))


@lower("split.Tensor", VIEW)
def split(x: Any, size: Any, dim: int = 0) -> Any:
    n = x.shape[dim]
    return split_with_sizes(x, [min(size, n - at) for at in range(0, n, size)], dim)


@lower("split_with_sizes.default", VIEW)
def split_with_sizes(x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(sliced(x, dim, end - n, end) for n, end in zip(sizes, ends, strict=True))


@lower("unbind.int", VIEW)
def unbind(x: Any, dim: int = 0) -> Any:
    return tm.unstack(x, axis=dim % x.ndim)


@lower("diagonal.default", VIEW)
def diagonal(x: Any, offset: int = 0, dim1: int = 0, dim2: int = 1, *, out: Any) -> Any:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rest = [d for d in range(x.ndim) if d not in (a, b)]
    rows, columns = max(-offset, 0), max(offset, 0)

    def indices(*new: Any) -> tuple[Any, ...]:
        found = dict(zip(rest, new[:-1], strict=True))
        found |= {a: new[-1] + rows, b: new[-1] + columns}
        return tuple(found[d] for d in range(x.ndim))

    return x.view(out.shape, indices)


@lower("cat.default", POINTWISE)
def cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    ndim = max(x.ndim for x in arrays)
    return tm.concat([x for x in arrays if x.ndim == ndim], axis=dim % ndim)


@lower("stack.default", POINTWISE)
def stack(arrays: Sequence[Any], dim: int = 0) -> Any:
    return tm.stack(arrays, axis=dim % (arrays[0].ndim + 1))


@lower("constant_pad_nd.default", POINTWISE)
def pad(x: Any, pads: Sequence[Any], value: Any = 0, *, out: Any) -> Any:
    before = [0] * x.ndim
    for d, n in enumerate(pads[::2]):
        before[x.ndim - 1 - d] = n

    def element(*i: Any) -> Any:
        at = tuple(a - n for a, n in zip(i, before, strict=True))
        if value == 0:
            return x[at]
        inside = prod_of((a >= 0) & (a < n) for a, n in zip(at, x.shape, strict=True))
        return tm.where(inside, x[at], value)

    return tm.array(tuple(map(extent_of, out.shape)), element)


def prod_of(conditions: Any) -> Any:
    """Whether all of them hold."""
    found = None
    for each in conditions:
        found = each if found is None else found & each
    return found


@lower("flip.default", POINTWISE)
def flip(x: Any, dims: Sequence[int]) -> Any:
    return tm.flip(x, axis=tuple(d % x.ndim for d in dims)) if dims else x


@lower("roll.default", POINTWISE)
def roll(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    if not dims:
        return tm.reshape(tm.roll(tm.reshape(x, (prod(x.shape),)), shifts[0], axis=0), x.shape)
    return tm.roll(x, tuple(shifts), axis=tuple(dims))


@lower("repeat.default", POINTWISE)
def repeat(x: Any, repeats: Sequence[Any]) -> Any:
    return tm.tile(x, tuple(repeats))


@lower("slice_scatter.default", POINTWISE)
def slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    d = dim % x.ndim
    first, last, step = slice(start, end, step).indices(x.shape[d])
    at = tm.indices(x, d)
    inside = (at >= first) & (at < last)
    if step != 1:
        inside &= (at - first) % step == 0

    def element(*i: Any) -> Any:
        return tm.item(source, (*i[:d], (i[d] - first) // step, *i[d + 1 :]))

    return tm.where(inside, tm.array(x.shape, element), x)


@lower("select_scatter.default", POINTWISE)
def select_scatter(x: Any, source: Any, dim: int, index: int) -> Any:
    d = dim % x.ndim
    return tm.where(tm.equal(tm.indices(x, d), index % x.shape[d]),
                    tm.expand_dims(source, axis=d), x)  # fmt: skip


@lower("diagonal_scatter.default", POINTWISE)
def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = max(-offset, 0), max(offset, 0)

    def element(*i: Any) -> Any:
        rest = [at for d, at in enumerate(i) if d not in (a, b)]
        on = (i[a] >= rows) & tm.equal(i[a] - rows, i[b] - columns)
        return tm.where(on, tm.item(source, (*rest, i[a] - rows)), x[i])

    return tm.array(x.shape, element)
