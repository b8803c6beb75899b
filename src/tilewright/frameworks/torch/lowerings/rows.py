"""Convolutions of operands that lie as products read them: see `frameworks.torch.layouts`."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tilewright.frameworks.torch.lowerings.convolution import Window
from tilewright.frameworks.torch.lowerings.table import ALONE, MOVED, POINTWISE, PRODUCT, lower
from tilewright.frameworks.torch.lowerings.words import tm


def split(i: Any, sizes: Sequence[int]) -> list[Any]:
    """The coordinates of element `i` of an array of these sizes."""
    found: list[Any] = []
    for n in reversed(sizes):
        found.append(i % n if n > 1 else 0)
        i = i // n if n > 1 else i
    return found[::-1]


@lower("tilewright.taps_in_rows.default", MOVED)
def taps_in_rows(
    x: Any, taps: int, stride: int, padding: int, dilation: int, groups: int, width: int, *,
    out: Any,
) -> Any:  # fmt: skip
    """What the last axis' window reads, beside each other: channels of the first tap, then those
    of the second; zeros up to `width`."""
    inner = x.shape[1] // groups

    def element(n: Any, *at: Any) -> Any:
        *places, p, k = at
        group, k = (k // width, k % width) if groups > 1 else (0, k)
        read = (n, group * inner + k % inner, *places, p * stride + k // inner * dilation - padding)
        found = tm.item(x, read)
        return found if taps * inner == width else tm.where(k < taps * inner, found, 0)

    return tm.array(out.shape, element)


@lower("tilewright.weights_in_rows.default", POINTWISE)
def weights_in_rows(
    w: Any, groups: int, is_transposed: bool, is_folded: bool, width: int, *, out: Any
) -> Any:
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
        found = tm.item(w, read)
        return found if last * inner == width else tm.where(k < last * inner, found, 0)

    return tm.array(out.shape, element)


@lower("tilewright.convolution_of_rows.default", PRODUCT)
def convolution_of_rows(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any, *,
    out: Any,
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


# ── strided transposed convolutions: each phase of the result is a convolution of its own ──────


class Phases:
    """Element `s · i + f` of an axis of a transposed convolution of stride `s` sums the taps
    `first(f) + s · t`, which read `base(f) + i − t · dilation`."""

    def __init__(self, stride: int, padding: int, dilation: int, taps: int) -> None:
        self.stride, self.padding, self.dilation = stride, padding, dilation
        self.inverse = pow(dilation, -1, stride) if stride > 1 else 0
        self.taps = -(-taps // stride)

    def first(self, f: Any) -> Any:
        return (f + self.padding) * self.inverse % self.stride if self.stride > 1 else 0

    def base(self, f: Any) -> Any:
        return (f + self.padding - self.first(f) * self.dilation) // self.stride


def phases_of(stride: Any, padding: Any, dilation: Any, taps: Any) -> list[Phases]:
    return [Phases(*each) for each in zip(stride, padding, dilation, taps, strict=True)]


@lower("tilewright.weights_by_phase.default", POINTWISE)
def weights_by_phase(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, width: int, *, out: Any
) -> Any:
    """(phases, out, taps, channels) of the weights (in, out / groups, taps) of a transposed
    convolution."""
    sizes = w.shape[2:]
    phases = phases_of(stride, padding, dilation, sizes)
    inner, outer = w.shape[0] // groups, w.shape[1]

    def element(f: Any, o: Any, t: Any, c: Any) -> Any:
        each = zip(phases, split(f, stride), split(t, [p.taps for p in phases]), strict=True)
        taps = [p.first(own) + p.stride * tap for p, own, tap in each]
        group = o // outer if groups > 1 else 0
        found = tm.item(w, (group * inner + c, o % outer if groups > 1 else o, *taps))
        return found if inner == width else tm.where(c < inner, found, 0)

    return tm.array(out.shape, element)


@lower("tilewright.convolution_of_phases.default", ALONE)
def convolution_of_phases(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int, size: Any, *,
    out: Any,
) -> Any:  # fmt: skip
    """`x` (batch, places, channels) by `weights_by_phase`: (batch · phases, out, places), of each
    phase so many places as `size` says."""
    phases = phases_of(stride, padding, dilation, taps)
    count, width, outer = prod(stride), w.shape[-1], w.shape[1] // groups
    counts = [p.taps for p in phases]

    def element(n: Any, o: Any, *at: Any) -> Any:
        own = split(n % count, stride)
        bases = [p.base(f) for p, f in zip(phases, own, strict=True)]
        first = o // outer * width if groups > 1 else 0

        def term(*k: Any) -> Any:
            *t, c = k
            each = zip(at, bases, t, phases, strict=True)
            reads = [i + base - tap * p.dilation for i, base, tap, p in each]
            flat: Any = 0
            for tap, most in zip(t, counts, strict=True):
                flat = flat * most + tap
            return tm.item(x, (n // count, *reads, first + c)) * tm.item(w, (n % count, o, flat, c))

        return tm.sum((*counts, width), term)

    return tm.array(tuple(out.shape), element)


@lower("tilewright.phases_together.default", MOVED)
def phases_together(x: Any, stride: Any, size: Any, *, out: Any) -> Any:
    """The result of a transposed convolution from its phases."""
    count = prod(stride)

    def element(n: Any, o: Any, *at: Any) -> Any:
        phase: Any = 0
        for p, s in zip(at, stride, strict=True):
            phase = phase * s + p % s
        return tm.item(
            x, (n * count + phase, o, *(p // s for p, s in zip(at, stride, strict=True)))
        )

    return tm.array(out.shape, element)
