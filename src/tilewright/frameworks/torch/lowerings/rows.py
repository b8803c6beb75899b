"""Convolutions of operands that lie as products read them: see `frameworks.torch.layouts`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.frameworks.torch.lowerings.convolution import Window
from tilewright.frameworks.torch.lowerings.shapes import all_of
from tilewright.frameworks.torch.lowerings.table import ALONE, MOVED, POINTWISE, PRODUCT, lower
from tilewright.frameworks.torch.lowerings.words import tm

# products whose last argument says whether tensor cores multiply float32
IN_TF32 = ("tilewright.convolution_of_rows.default", "tilewright.convolution_of_places.default")


def _padded(found: Any, k: Any, count: int, width: int, for_tf32: bool) -> Any:
    """What is read for place `k` of a row, of which `count` are filled, the others zeros; rounded
    to the mantissa of a tensor core's float32, which would cut it off."""
    found = tm.astype(found, "tfloat32") if for_tf32 else found
    return found if count == width else tm.where(k < count, found, 0)


def split(i: Any, sizes: Sequence[int]) -> list[Any]:
    """The coordinates of element `i` of an array of these sizes."""
    found: list[Any] = []
    for n in reversed(sizes):
        found.append(i % n if n > 1 else 0)
        i = i // n if n > 1 else i
    return found[::-1]


@lower("tilewright.taps_in_rows.default", MOVED)
def taps_in_rows(
    x: Any, taps: int, stride: int, padding: int, dilation: int, groups: int, width: int,
    for_tf32: bool, *, out: Any,
) -> Any:  # fmt: skip
    """What the last axis' window reads, beside each other: channels of the first tap, then those
    of the second; zeros up to `width`."""
    inner = x.shape[1] // groups

    def element(n: Any, *at: Any) -> Any:
        *places, p, k = at
        group, k = (k // width, k % width) if groups > 1 else (0, k)
        read = (n, group * inner + k % inner, *places, p * stride + k // inner * dilation - padding)
        return _padded(tm.item(x, read), k, taps * inner, width, for_tf32)

    return tm.array(out.shape, element)


@lower("tilewright.weights_in_rows.default", POINTWISE)
def weights_in_rows(
    w: Any, groups: int, is_transposed: bool, is_folded: bool, width: int, for_tf32: bool, *,
    out: Any,
) -> Any:  # fmt: skip
    """(out, taps, channels); those of a transposed convolution turned round. `is_folded`: channels
    of the last axis' taps beside each other."""
    sizes = w.shape[2:]
    inner = w.shape[0] // groups if is_transposed else w.shape[1]
    outer = w.shape[1] if is_transposed else w.shape[0] // groups
    last = sizes[-1] if is_folded else 1

    def element(o: Any, *at: Any) -> Any:
        *taps, k = at
        c = k % inner if last * inner > 1 else 0
        if is_folded:
            taps = [*taps, k // inner]
        if is_transposed:
            taps = [n - 1 - r for r, n in zip(taps, sizes, strict=True)]
            group = o // outer if groups > 1 else 0
            read = (group * inner + c, o % outer if groups > 1 else o, *taps)
        else:
            read = (o, c, *taps)
        return _padded(tm.item(w, read), k, last * inner, width, for_tf32)

    return tm.array(out.shape, element)


@lower("tilewright.convolution_of_rows.default", PRODUCT)
def convolution_of_rows(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any,
    _in_tf32: bool, *, out: Any,
) -> Any:  # fmt: skip
    """`x` (batch, places, channels) by `w` (out, taps, channels); axes beyond the taps are read
    where they are."""
    width, taps = w.shape[-1], w.shape[1:-1]
    rank, outer = len(taps), w.shape[0] // groups
    window = Window(stride, padding, dilation, rank) if rank else None

    def element(n: Any, o: Any, *at: Any) -> Any:
        first = o // outer * width if groups > 1 else 0

        def term(*k: Any) -> Any:
            reads = window.reads(at[:rank], k[:-1]) if window else ()
            return tm.item(x, (n, *reads, *at[rank:], first + k[-1])) * tm.item(w, (o, *k))

        return tm.sum((*taps, width), term)

    found = tm.array(tuple(out.shape), element)
    return found if bias is None else found + tm.reshape(bias, (-1, *[1] * len(size)))


# ── places in one row: each phase of a strided transposed convolution is one of its own ─────────


class Phases:
    """Element `s · i + f` of an axis of a transposed convolution of stride `s` sums taps
    `first(f) + s · t`, which read `base(f) + i − t · dilation`. Where phases share their reads,
    `tap` t of phase f is another for each: they are rows of one product, some with zeros."""

    def __init__(self, stride: int, padding: int, dilation: int, taps: int) -> None:
        self.stride, self.padding, self.dilation, self.known = stride, padding, dilation, taps
        self.inverse: int = pow(dilation, -1, stride) if stride > 1 else 0
        self.bases: list[int] = [self.base(f) for f in range(stride)]
        self.own = -(-taps // stride)
        each = [max(self.bases) - base + self._count(f) for f, base in enumerate(self.bases)]
        self.shared: int = max(each) if dilation == 1 else stride * self.own

    def _count(self, f: int) -> int:
        left: int = self.known - self.first(f)
        return max(-(-left // self.stride), 0)

    def first(self, f: Any) -> Any:
        return (f + self.padding) * self.inverse % self.stride if self.stride > 1 else 0

    def base(self, f: Any) -> Any:
        return (f + self.padding - self.first(f) * self.dilation) // self.stride

    def tap(self, f: Any, t: Any, is_shared: bool) -> Any:
        """Which weight it is; none where it is outside of them."""
        before = max(self.bases) - self.base(f) if is_shared else 0
        return self.first(f) + self.stride * (t - before)

    def read(self, f: Any, t: Any, is_shared: bool) -> Any:
        """How far from the first place that is read."""
        base = max(self.bases) if is_shared else self.base(f)
        return base - t * self.dilation - self.low(is_shared)

    def low(self, is_shared: bool) -> int:
        """Where the first place is that any element reads, from the element's own."""
        base, taps = max(self.bases), self.shared
        if not is_shared:
            base, taps = min(self.bases), self.own
        return base - (taps - 1) * self.dilation

    def more(self, is_shared: bool) -> int:
        """How many places are read beyond the elements."""
        return max(self.bases) - self.low(is_shared)


def phases_of(stride: Any, padding: Any, dilation: Any, taps: Any) -> list[Phases]:
    return [Phases(*each) for each in zip(stride, padding, dilation, taps, strict=True)]


def taps_of(phases: Sequence[Phases], is_shared: bool) -> list[int]:
    return [p.shared if is_shared else p.own for p in phases]


def flat(at: Sequence[Any], sizes: Sequence[int]) -> Any:
    found: Any = 0
    for i, n in zip(at, sizes, strict=True):
        found = found * n + i
    return found


@lower("tilewright.places_in_rows.default", POINTWISE)
def places_in_rows(
    x: Any, lows: Any, extents: Any, groups: int, width: int, for_tf32: bool, *, out: Any
) -> Any:
    """(batch, places, channels): of each axis `extents` places from `lows` on, zeros outside."""
    inner = x.shape[1] // groups

    def element(n: Any, place: Any, k: Any) -> Any:
        at = [i + low for i, low in zip(split(place, extents), lows, strict=True)]
        group, k = (k // width, k % width) if groups > 1 and inner != width else (0, k)
        return _padded(tm.item(x, (n, group * inner + k, *at)), k, inner, width, for_tf32)

    return tm.array(out.shape, element)


@lower("tilewright.weights_by_phase.default", POINTWISE)
def weights_by_phase(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, is_transposed: bool,
    is_shared: bool, width: int, for_tf32: bool, *, out: Any,
) -> Any:  # fmt: skip
    """(phases · out, taps, channels) of the weights of a convolution; (out, taps, channels) in
    each phase."""
    sizes = w.shape[2:]
    phases = phases_of(stride, padding, dilation, sizes)
    outer = w.shape[1] if is_transposed else w.shape[0] // groups
    inner = w.shape[0] // groups if is_transposed else w.shape[1]

    def element(row: Any, t: Any, c: Any) -> Any:
        f, o = row // (outer * groups), row % (outer * groups)
        each = zip(phases, split(f, stride), split(t, taps_of(phases, is_shared)), strict=True)
        taps = [p.tap(own, tap, is_shared) for p, own, tap in each]
        if is_transposed:
            group = o // outer if groups > 1 else 0
            read = (group * inner + c, o % outer if groups > 1 else o, *taps)
        else:
            read = (o, c, *(n - 1 - tap for n, tap in zip(sizes, taps, strict=True)))
        return _padded(tm.item(w, read), c, inner, width, for_tf32)

    return tm.array(out.shape, element)


@lower("tilewright.convolution_of_places.default", ALONE)
def convolution_of_places(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int,
    is_shared: bool, extents: Any, size: int, _in_tf32: bool, *, out: Any,
) -> Any:  # fmt: skip
    """`x` (batch, places, channels) has `extents` places; `w` by phase. Of each phase of the
    result `size` places, in the order of those of `x`."""
    phases = phases_of(stride, padding, dilation, taps)
    count, width = prod(stride), w.shape[-1]
    all_rows = w.shape[0] // count
    outer, counts = all_rows // groups, taps_of(phases, is_shared)
    apart = 1 if is_shared else count

    def element(n: Any, row: Any, place: Any) -> Any:
        own = split(n % apart, stride) if apart > 1 else [0] * len(stride)
        o = row % all_rows if is_shared and groups > 1 else row
        first = o // outer * width if groups > 1 else 0

        def term(t: Any, c: Any) -> Any:
            each = zip(phases, own, split(t, counts), strict=True)
            ahead = flat([p.read(f, tap, is_shared) for p, f, tap in each], extents)
            weights = row if apart == 1 else n % apart * all_rows + row
            where = (n // apart if apart > 1 else n, place + ahead, first + c)
            return tm.item(x, where) * tm.item(w, (weights, t, c))

        return tm.sum((prod(counts), width), term)

    return tm.array(tuple(out.shape), element)


@lower("tilewright.places_together.default", MOVED)
def places_together(x: Any, outer: int, stride: Any, extents: Any, size: Any, *, out: Any) -> Any:
    """The result of a convolution from the places of its phases."""
    x = tm.reshape(x, (out.shape[0], prod(stride), outer, x.shape[-1]))

    def element(n: Any, o: Any, *at: Any) -> Any:
        each = list(zip(at, stride, strict=True))
        phase = flat([p % s if s > 1 else 0 for p, s in each], stride)
        place = flat([p // s if s > 1 else p for p, s in each], extents)
        return tm.item(x, (n, phase, o, place))

    return tm.array(out.shape, element)


@lower("tilewright.spread.default", MOVED)
def spread(x: Any, steps: Any, offsets: Any, size: Any, *, out: Any) -> Any:
    """Element `i` of each axis at `i · step − offset`, zeros between them."""

    def element(n: Any, o: Any, *at: Any) -> Any:
        each = list(zip(at, steps, offsets, strict=True))
        found = tm.item(x, (n, o, *((p + first) // s if s > 1 else p for p, s, first in each)))
        own = all_of((p + first) % s == 0 for p, s, first in each if s > 1)
        return tm.where(own, found, 0)

    return tm.array(out.shape, element)
