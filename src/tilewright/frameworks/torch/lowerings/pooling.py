"""Pooling: windows that are folded by a maximum or a sum, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
        own, flat = inside(places, sizes), places[0]
        for n, at in zip(sizes[1:], places[1:], strict=True):
            flat = flat * n + at
        value = tm.where(own, tm.item(x, (*i[:-rank], *places)), -math.inf)
        return value, tm.where(own, flat, _NOWHERE)

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
        own_place: Any = 0
        for at, n in zip(i[-rank:], sizes, strict=True):
            own_place = own_place * n + at

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
        self.count_pad, self.divisor = count_pad, divisor
        self.window = Window(stride or kernel, padding, (1,), rank)

    def count(self, at: Sequence[Any]) -> Any:
        if self.divisor:
            return self.divisor
        found: Any = 1
        steps = self.window.stride, self.window.padding
        for p, k, s, pad, n in zip(at, self.taps, *steps, self.sizes, strict=True):
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


@lower("_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default", ALONE)
def adaptive_average(x: Any, size: Any, *, out: Any) -> Any:
    """From ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉ along each axis."""
    rank = len(size)
    pairs = list(zip(x.shape[-rank:], out.shape[-rank:], strict=True))
    longest = tuple(max(-(-(i + 1) * n // m) - i * n // m for i in range(m)) for n, m in pairs)

    def element(*i: Any) -> Any:
        begins = [a * n // m for a, (n, m) in zip(i[-rank:], pairs, strict=True)]
        ends = [((a + 1) * n + m - 1) // m for a, (n, m) in zip(i[-rank:], pairs, strict=True)]

        def term(*tap: Any) -> Any:
            at = [b + t for b, t in zip(begins, tap, strict=True)]
            own = all_of(a < e for a, e in zip(at, ends, strict=True))
            return tm.where(own, tm.item(x, (*i[:-rank], *at)), 0)

        count: Any = 1
        for begin, end in zip(begins, ends, strict=True):
            count = (end - begin) * count
        return tm.sum(longest, term) / count

    return tm.array(out.shape, element)


@lower("_adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d_backward.default", ALONE)
def adaptive_average_backward(grad: Any, x: Any, *, out: Any) -> Any:
    """Element `a` is in the windows from ⌊a·m/n⌋ to ⌈(a + 1)·m/n⌉ along each axis."""
    rank = _rank(out)
    pairs = list(zip(x.shape[-rank:], grad.shape[-rank:], strict=True))
    longest = tuple(max(-(-(a + 1) * m // n) - a * m // n for a in range(n)) for n, m in pairs)

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            at = [a * m // n + t for a, t, (n, m) in zip(i[-rank:], tap, pairs, strict=True)]
            own, count = None, 1
            for a, w, (n, m) in zip(i[-rank:], at, pairs, strict=True):
                begin, end = w * n // m, ((w + 1) * n + m - 1) // m
                inside = (w < m) & (begin <= a) & (a < end)
                own = inside if own is None else own & inside
                count = (end - begin) * count
            return tm.where(own, tm.item(grad, (*i[:-rank], *at)) / count, 0)

        return tm.sum(longest, term)

    return tm.array(x.shape, element)
