"""Pooling: windows that are folded by a maximum or a sum, and their gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

from tilewright.frameworks.torch.lowerings.convolution import Window, chosen
from tilewright.frameworks.torch.lowerings.rows import flat
from tilewright.frameworks.torch.lowerings.shapes import all_of, inside
from tilewright.frameworks.torch.lowerings.table import ALONE, lower
from tilewright.frameworks.torch.lowerings.words import tm


def _each(value: Any, rank: int) -> tuple[int, ...]:
    return tuple(value) * rank if len(value) == 1 else tuple(value)


def _rank(out: Any) -> int:
    return 2 if "2d" in out.name else 3


_NOWHERE = (1 << 31) - 1


class _Sliding:
    """The windows of an op: `taps` are the places of one, `taps_back` how many windows may have an
    element. Sums divide by `count` elements, beyond the edges too if `count_pad`."""

    def __init__(
        self, x: Any, shape: Any, out: Any, kernel: Any, stride: Any = (), padding: Any = (0,),
        dilation: Any = (1,), ceil_mode: bool = False, count_pad: bool = True,
        divisor: int | None = None,
    ) -> None:  # fmt: skip
        self.rank = rank = _rank(out)
        self.taps = self.taps_back = _each(kernel, rank)
        self.sizes, self.parts = x.shape[-rank:], shape[-rank:]
        self.count_pad, self.divisor, self.ceil_mode = count_pad, divisor, ceil_mode
        self.window = Window(stride or kernel, padding, dilation, rank)

    def read(self, i: Sequence[Any], tap: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """What an element reads, and whether it is of its window (None: if it is there)."""
        return (*i[: -self.rank], *self.window.reads(i[-self.rank :], tap)), None

    def written(self, i: Sequence[Any], tap: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """An element whose window may have `i`, and whether it does."""
        places, whole = self.window.written(i[-self.rank :], tap)
        return (*i[: -self.rank], *places), all_of([inside(places, self.parts), whole])

    def count(self, i: Sequence[Any]) -> Any:
        if self.divisor:
            return self.divisor
        found: Any = 1
        steps = self.window.stride, self.window.padding
        for p, k, s, pad, n in zip(i[-self.rank :], self.taps, *steps, self.sizes, strict=True):
            if self.count_pad and not self.ceil_mode:  # no window goes beyond the padding
                found = found * k
                continue
            begin = p * s - pad
            end = tm.minimum(begin + k, n + pad)
            if not self.count_pad:
                begin, end = tm.maximum(begin, 0), tm.minimum(end, n)
            found = found * (end - begin)
        return found


class _Adaptive:
    """Windows of `x`, one for each element i of a `shape`: from ⌊i·n/m⌋ to ⌈(i + 1)·n/m⌉ along
    each axis."""

    def __init__(self, x: Any, shape: Any, out: Any) -> None:
        self.rank, self.sizes = _rank(out), x.shape[-_rank(out) :]
        self.pairs = [*zip(self.sizes, shape[-self.rank :], strict=True)]
        self.taps = tuple(max(-(-(i + 1) * n // m) - i * n // m for i in range(m))
                          for n, m in self.pairs)  # fmt: skip
        self.taps_back = tuple(max(-(-(a + 1) * m // n) - a * m // n for a in range(n))
                               for n, m in self.pairs)  # fmt: skip

    def read(self, i: Sequence[Any], tap: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
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
        """From ⌊a·m/n⌋ on."""
        steps = [*zip(i[-self.rank :], tap, self.pairs, strict=True)]
        at = tuple(a * m // n + t for a, t, (n, m) in steps)
        own = all_of(
            (w < m) & (w * n // m <= a) & (a < ((w + 1) * n + m - 1) // m)
            for w, (a, _, (n, m)) in zip(at, steps, strict=True)
        )
        return (*i[: -self.rank], *at), own


_Windows: TypeAlias = "_Sliding | _Adaptive"


# ── maxima ───────────────────────────────────────────────────────────────────────────────────


def _first_largest(a: Any, b: Any) -> Any:
    """Of two elements and their places the larger, a NaN if there is one; else the first."""
    nan, other = tm.isnan(a[0]), tm.isnan(b[0])
    same = tm.equal(a[0], b[0]) | (nan & other)
    keep = (a[0] > b[0]) | (nan & ~other) | (same & (a[1] <= b[1]))
    return tm.where(keep, a[0], b[0]), tm.where(keep, a[1], b[1])


def _largest(x: Any, windows: _Windows, out: Any) -> Any:
    """The largest of each window, and where it is in its plane."""
    shape, rank = out[0].shape, windows.rank

    def read(i: Any, tap: Any) -> tuple[Any, Any]:
        at, own = windows.read(i, tap)
        own = inside(at[-rank:], windows.sizes) if own is None else own
        place = flat(at[-rank:], windows.sizes)
        return tm.where(own, tm.item(x, at), -math.inf), tm.where(own, place, _NOWHERE)

    if not out.wants(1):
        return tm.array(shape, lambda *i: tm.max(windows.taps, lambda *tap: read(i, tap)[0])), None
    best = tm.monoid((-math.inf, _NOWHERE), _first_largest)
    return tuple(
        tm.array(shape, lambda *i, k=k: tm.reduce(best, windows.taps, lambda *tap: read(i, tap))[k])
        for k in range(2)
    )


def _to_largest(grad: Any, x: Any, windows: _Windows, indices: Any) -> Any:
    """Each element gets the gradients of the windows that it is the largest of."""

    def element(*i: Any) -> Any:
        place = flat(i[-windows.rank :], windows.sizes)

        def term(*tap: Any) -> Any:
            at, own = windows.written(i, tap)
            return tm.where(own & tm.equal(tm.item(indices, at), place), tm.item(grad, at), 0)

        return tm.sum(windows.taps_back, term)

    return tm.array(x.shape, element)


@lower("max_pool2d_with_indices.default max_pool3d_with_indices.default", ALONE)
def max_pool(x: Any, *how: Any, out: Any) -> Any:
    return _largest(x, _Sliding(x, out[0].shape, out, *how), out)


@lower("max_pool2d_with_indices_backward.default max_pool3d_with_indices_backward.default", ALONE)
def max_pool_backward(grad: Any, x: Any, *how: Any, out: Any) -> Any:
    return _to_largest(grad, x, _Sliding(x, grad.shape, out, *how[:-1]), how[-1])


@lower("adaptive_max_pool2d.default adaptive_max_pool3d.default", ALONE)
def adaptive_max(x: Any, size: Any, *, out: Any) -> Any:
    return _largest(x, _Adaptive(x, out[0].shape, out), out)


@lower("adaptive_max_pool2d_backward.default adaptive_max_pool3d_backward.default", ALONE)
def adaptive_max_backward(grad: Any, x: Any, indices: Any, *, out: Any) -> Any:
    return _to_largest(grad, x, _Adaptive(x, grad.shape, out), indices)


# ── means ────────────────────────────────────────────────────────────────────────────────────


def _mean(x: Any, windows: _Windows, shape: Any) -> Any:
    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            at, own = windows.read(i, tap)
            return chosen(own, tm.item(x, at))

        return tm.sum(windows.taps, term) / windows.count(i)

    return tm.array(shape, element)


def _to_mean(grad: Any, x: Any, windows: _Windows) -> Any:
    """Each element gets its part of the gradients of its windows."""

    def element(*i: Any) -> Any:
        def term(*tap: Any) -> Any:
            at, own = windows.written(i, tap)
            return tm.where(own, tm.item(grad, at) / windows.count(at), 0)

        return tm.sum(windows.taps_back, term)

    return tm.array(x.shape, element)


def _average(
    out: Any, x: Any, shape: Any, kernel: Any, stride: Any = (), padding: Any = (0,), *how: Any
) -> _Sliding:
    return _Sliding(x, shape, out, kernel, stride, padding, (1,), *how)


@lower("avg_pool2d.default avg_pool3d.default", ALONE)
def average_pool(x: Any, *how: Any, out: Any) -> Any:
    return _mean(x, _average(out, x, out.shape, *how), out.shape)


@lower("avg_pool2d_backward.default avg_pool3d_backward.default", ALONE)
def average_pool_backward(grad: Any, x: Any, *how: Any, out: Any) -> Any:
    return _to_mean(grad, x, _average(out, x, grad.shape, *how))


@lower("_adaptive_avg_pool2d.default _adaptive_avg_pool3d.default", ALONE)
def adaptive_average(x: Any, size: Any, *, out: Any) -> Any:
    return _mean(x, _Adaptive(x, out.shape, out), out.shape)


@lower("_adaptive_avg_pool2d_backward.default _adaptive_avg_pool3d_backward.default", ALONE)
def adaptive_average_backward(grad: Any, x: Any, *, out: Any) -> Any:
    return _to_mean(grad, x, _Adaptive(x, grad.shape, out))
