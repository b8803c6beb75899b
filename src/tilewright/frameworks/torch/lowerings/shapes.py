"""Views, and what joins or moves elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.formula.front.values import extent_of
from tilewright.frameworks.torch.lowerings.table import POINTWISE, VIEW, lower, lower_all
from tilewright.frameworks.torch.lowerings.words import tm


def _along(x: Any, dim: int, key: Any) -> Any:
    """x[…, key], where the axes before one are whole."""
    return tm.item(x, (*[slice(None)] * (dim % x.ndim), key))


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    end = None if isinstance(end, int) and end >= (1 << 62) else end
    return _along(x, dim, slice(start, end, step))


def _split(x: Any, sizes: Sequence[Any], dim: int = 0) -> Any:
    ends = [sum(sizes[: i + 1]) for i in range(len(sizes))]
    return tuple(sliced(x, dim, end - n, end) for n, end in zip(sizes, ends, strict=True))


lower_all(
    VIEW,
    {
        "view.default reshape.default squeeze.dims unsqueeze.default": lambda x, *_, out: (
            tm.reshape(x, out.shape)
        ),
        "alias.default detach.default": lambda x: x,
        "permute.default": lambda x, dims: tm.permute_dims(x, tuple(d % x.ndim for d in dims)),
        "expand.default": lambda x, size, *, implicit=False, out: tm.broadcast_to(x, out.shape),
        "slice.Tensor": sliced,
        "select.int": _along,
        "split_with_sizes.default": _split,
    },
)


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


@lower("unfold.default", VIEW)
def unfold(x: Any, dimension: int, size: int, step: int, *, out: Any) -> Any:
    if not x.ndim:
        return tm.reshape(x, out.shape)
    d = dimension % x.ndim
    return x.view(out.shape, lambda *i: (*i[:d], i[d] * step + i[-1], *i[d + 1 : -1]))


def _cat(arrays: Sequence[Any], dim: int = 0) -> Any:
    ndim = max(x.ndim for x in arrays)
    return tm.concat([x for x in arrays if x.ndim == ndim], axis=dim % ndim)


lower_all(
    POINTWISE,
    {
        "cat.default": _cat,
        "flip.default": lambda x, dims: (
            tm.flip(x, axis=tuple(d % x.ndim for d in dims)) if dims else x
        ),
        "roll.default": lambda x, shifts, dims=(): tm.roll(x, shifts, axis=tuple(dims) or None),
        "repeat.default": lambda x, repeats: tm.tile(x, tuple(repeats)),
    },
)


@lower("constant_pad_nd.default", POINTWISE)
def pad(x: Any, pads: Sequence[Any], value: Any = 0, *, out: Any) -> Any:
    before = [0] * x.ndim
    for d, n in enumerate(pads[::2]):
        before[x.ndim - 1 - d] = n

    def element(*i: Any) -> Any:
        at = tuple(a - n for a, n in zip(i, before, strict=True))
        return x[at] if value == 0 else tm.where(inside(at, x.shape), x[at], value)

    return tm.array(tuple(map(extent_of, out.shape)), element)


def inside(at: Sequence[Any], sizes: Sequence[Any]) -> Any:
    return all_of((i >= 0) & (i < n) for i, n in zip(at, sizes, strict=True))


def all_of(conditions: Any) -> Any:
    """Whether all of them hold; None is none."""
    found = None
    for each in conditions:
        found = each if found is None else found if each is None else found & each
    return found


@lower("slice_scatter.default", POINTWISE)
def slice_scatter(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    d = dim % x.ndim
    first, last, step = slice(start, end, step).indices(x.shape[d])
    at = tm.indices(x, d)
    own = (at >= first) & (at < last)
    if step != 1:
        own &= (at - first) % step == 0

    def element(*i: Any) -> Any:
        return tm.item(source, (*i[:d], (i[d] - first) // step, *i[d + 1 :]))

    return tm.where(own, tm.array(x.shape, element), x)


@lower("diagonal_scatter.default", POINTWISE)
def diagonal_scatter(x: Any, source: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    a, b = dim1 % x.ndim, dim2 % x.ndim
    rows, columns = max(-offset, 0), max(offset, 0)

    def element(*i: Any) -> Any:
        rest = [at for d, at in enumerate(i) if d not in (a, b)]
        on = (i[a] >= rows) & tm.equal(i[a] - rows, i[b] - columns)
        return tm.where(on, tm.item(source, (*rest, i[a] - rows)), x[i])

    return tm.array(x.shape, element)
