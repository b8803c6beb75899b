"""Pooling: windows that are folded by a maximum or a sum, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tilewright.frameworks.torch.lowerings.convolution import Window
from tilewright.frameworks.torch.lowerings.shapes import all_of, inside
from tilewright.frameworks.torch.lowerings.table import ALONE, lower
from tilewright.frameworks.torch.lowerings.words import tm


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _rank(out: Any) -> int:
    return 2 if "2d" in out.name else 3


_NOWHERE = (1 << 31) - 1


def _flat(at: Sequence[Any], sizes: Sequence[Any]) -> Any:
    """The place in a plane."""
    found: Any = 0
    for i, n in zip(at, sizes, strict=True):
        found = found * n + i
    return found


def _candidate(x: Any, at: Sequence[Any], own: Any, rank: int) -> tuple[Any, Any]:
    """An element and its place, none if it is not of the window."""
    place = _flat(at[-rank:], x.shape[-rank:])
    return tm.where(own, tm.item(x, at), -math.inf), tm.where(own, place, _NOWHERE)


def _first_largest(a: Any, b: Any) -> Any:
    """Of two elements and their places the larger, a NaN if there is one; else the first."""
    nan, other = tm.isnan(a[0]), tm.isnan(b[0])
    same = tm.equal(a[0], b[0]) | (nan & other)
    keep = (a[0] > b[0]) | (nan & ~other) | (same & (a[1] <= b[1]))
    return tm.where(keep, a[0], b[0]), tm.where(keep, a[1], b[1])


@lower("max_pool2d_with_indices.default max_pool3d_with_indices.default", ALONE)
def max_pool(
    x: Any, kernel: Any, stride: Any = (), padding: Any = (0,), dilation: Any = (1,),
    ceil_mode: bool = False, *, out: Any,
) -> Any:  # fmt: skip
    """The largest of each window, and where it is in its plane."""
    rank = _rank(out)
    taps, sizes = _each(kernel, rank), x.shape[-rank:]
    window = Window(stride or kernel, padding, dilation, rank)

    def read(i: Any, tap: Any) -> tuple[Any, Any]:
        places = window.reads(i[-rank:], tap)
        return _candidate(x, (*i[:-rank], *places), inside(places, sizes), rank)

    return _largest(out, taps, read)


def _largest(out: Any, taps: Any, read: Callable[..., Any]) -> Any:
    """The largest of what `read` gives for each tap, and its place, the second that it gives."""
    shape = out[0].shape
    if not out.wants(1):
        return tm.array(shape, lambda *i: tm.max(taps, lambda *tap: read(i, tap)[0])), None
    best = tm.monoid((-math.inf, _NOWHERE), _first_largest)
    return tuple(
        tm.array(shape, lambda *i, k=k: tm.reduce(best, taps, lambda *tap: read(i, tap))[k])
        for k in range(2)
    )


@lower("max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default", ALONE)
def max_pool_backward(
    grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool,
    indices: Any, *, out: Any,
) -> Any:  # fmt: skip
    """Each element gets the gradients of the windows that it is the largest of."""
    rank = _rank(out)
    taps, sizes = _each(kernel, rank), x.shape[-rank:]
    window = Window(stride or kernel, padding, dilation, rank)

    def element(*i: Any) -> Any:
        own_place = _flat(i[-rank:], sizes)

        def term(*tap: Any) -> Any:
            places, whole = window.written(i[-rank:], tap)
            own = all_of([inside(places, grad.shape[-rank:]), whole])
            at = (*i[:-rank], *places)
            return tm.where(own & (indices[at] == own_place), grad[at], 0)

        return tm.sum(taps, term)

    return tm.array(x.shape, element)


class _Average:
    """What is summed, and by how many it is divided."""

    def __init__(
        self, out: Any, x: Any, kernel: Any, stride: Any = (), padding: Any = (0,),
        ceil_mode: bool = False, count_pad: bool = True, divisor: int | None = None,
    ) -> None:  # fmt: skip
        self.rank = rank = _rank(out)
        self.taps, self.sizes = _each(kernel, rank), x.shape[-rank:]
        self.count_pad, self.divisor, self.ceil_mode = count_pad, divisor, ceil_mode
        self.window = Window(stride or kernel, padding, (1,), rank)

    def count(self, at: Sequence[Any]) -> Any:
        if self.divisor:
            return self.divisor
        found: Any = 1
        steps = self.window.stride, self.window.padding
        for p, k, s, pad, n in zip(at, self.taps, *steps, self.sizes, strict=True):
            if self.count_pad and not self.ceil_mode:  # no window goes beyond the padding
                found = found * k
                continue
            begin = p * s - pad
            end = tm.minimum(begin + k, n + pad)
            if not self.count_pad:
                begin, end = tm.maximum(begin, 0), tm.minimum(end, n)
            found = found * (end - begin)
        return found


@lower("avg_pool2d.default avg_pool3d.default", ALONE)
def average_pool(x: Any, *how: Any, out: Any) -> Any:
    average = _Average(out, x, *how)
    rank = average.rank

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            return tm.item(x, (*i[:-rank], *average.window.reads(i[-rank:], tap)))

        return tm.sum(average.taps, term) / average.count(i[-rank:])

    return tm.array(out.shape, element)


@lower("avg_pool2d_backward.default avg_pool3d_backward.default", ALONE)
def average_pool_backward(grad: Any, x: Any, *how: Any, out: Any) -> Any:
    average = _Average(out, x, *how)
    rank = average.rank

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            places, whole = average.window.written(i[-rank:], tap)
            own = all_of([inside(places, grad.shape[-rank:]), whole])
            part = tm.item(grad, (*i[:-rank], *places)) / average.count(places)
            return tm.where(own, part, 0)

        return tm.sum(average.taps, term)

    return tm.array(x.shape, element)


class _Adaptive:
    """Windows of `whole`, one for each element i of `parts`: from ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉ along
    each axis."""

    def __init__(self, whole: Any, parts: Any, rank: int) -> None:
        self.rank, self.pairs = rank, [*zip(whole[-rank:], parts[-rank:], strict=True)]
        self.taps = tuple(max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
                          for n, m in self.pairs)  # fmt: skip
        self.taps_back = tuple(max(-(-(a + 1) * m // n) - a * m // n for a in range(n))
                               for n, m in self.pairs)  # fmt: skip

    def read(self, i: Sequence[Any], tap: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """What an element reads, and whether it is of its window."""
        steps = [*zip(i[-self.rank :], tap, self.pairs, strict=True)]
        at = tuple(a * n // m + t for a, t, (n, m) in steps)
        ends = [((a + 1) * n + m - 1) // m for a, _, (n, m) in steps]
        own = all_of(p < end for p, end in zip(at, ends, strict=True))
        return (*i[: -self.rank], *at), own

    def count(self, i: Sequence[Any]) -> Any:
        found: Any = 1
        for a, (n, m) in zip(i[-self.rank :], self.pairs, strict=True):
            found = (((a + 1) * n + m - 1) // m - a * n // m) * found
        return found

    def written(self, i: Sequence[Any], tap: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """An element whose window may have `i`, from ⌊a·m/n⌋ on, and whether it does."""
        steps = [*zip(i[-self.rank :], tap, self.pairs, strict=True)]
        at = tuple(a * m // n + t for a, t, (n, m) in steps)
        own = all_of(
            (w < m) & (w * n // m <= a) & (a < ((w + 1) * n + m - 1) // m)
            for w, (a, _, (n, m)) in zip(at, steps, strict=True)
        )
        return (*i[: -self.rank], *at), own


@lower("_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default", ALONE)
def adaptive_average(x: Any, size: Any, *, out: Any) -> Any:
    windows = _Adaptive(x.shape, out.shape, _rank(out))

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            at, own = windows.read(i, tap)
            return tm.where(own, tm.item(x, at), 0)

        return tm.sum(windows.taps, term) / windows.count(i)

    return tm.array(out.shape, element)


@lower("_adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d_backward.default", ALONE)
def adaptive_average_backward(grad: Any, x: Any, *, out: Any) -> Any:
    windows = _Adaptive(x.shape, grad.shape, _rank(out))

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            at, own = windows.written(i, tap)
            return tm.where(own, tm.item(grad, at) / windows.count(at), 0)

        return tm.sum(windows.taps_back, term)

    return tm.array(x.shape, element)


@lower("adaptive_max_pool2d.default adaptive_max_pool3d.default", ALONE)
def adaptive_max(x: Any, size: Any, *, out: Any) -> Any:
    rank = _rank(out)
    windows = _Adaptive(x.shape, out[0].shape, rank)
    return _largest(out, windows.taps, lambda i, tap: _candidate(x, *windows.read(i, tap), rank))


@lower("adaptive_max_pool2d_backward.default adaptive_max_pool3d_backward.default", ALONE)
def adaptive_max_backward(grad: Any, x: Any, indices: Any, *, out: Any) -> Any:
    rank = _rank(out)
    windows = _Adaptive(x.shape, grad.shape, rank)

    def element(*i: Any) -> Any:
        place = _flat(i[-rank:], x.shape[-rank:])

        def term(*tap: Any) -> Any:
            at, own = windows.written(i, tap)
            return tm.where(own & tm.equal(tm.item(indices, at), place), tm.item(grad, at), 0)

        return tm.sum(windows.taps_back, term)

    return tm.array(x.shape, element)
