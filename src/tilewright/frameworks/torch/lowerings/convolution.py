"""Convolutions: strided, dilated, grouped, transposed; their gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tilewright.frameworks.torch.lowerings.shapes import all_of
from tilewright.frameworks.torch.lowerings.table import PRODUCT, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.support.errors import CompileError


class Window:
    """Where a convolution reads: element `p` of its result at `p · stride + r · dilation − pad`."""

    def __init__(self, stride: Any, padding: Any, dilation: Any, rank: int) -> None:
        self.stride, self.padding, self.dilation = (
            tuple(each) if len(each) == rank else tuple(each) * rank
            for each in (stride, padding, dilation)
        )

    def reads(self, at: Sequence[Any], taps: Sequence[Any]) -> tuple[Any, ...]:
        steps = zip(at, taps, self.stride, self.dilation, self.padding, strict=True)
        return tuple(p * s + r * d - pad for p, r, s, d, pad in steps)

    def written(self, at: Sequence[Any], taps: Sequence[Any]) -> tuple[tuple[Any, ...], Any]:
        """Which element reads `at` with these taps, and whether one does (None: always)."""
        steps = zip(at, taps, self.stride, self.dilation, self.padding, strict=True)
        places = [(p + pad - r * d, s) for p, r, s, d, pad in steps]
        whole = all_of(q % s == 0 for q, s in places if s != 1)
        return tuple(q if s == 1 else q // s for q, s in places), whole


def chosen(condition: Any, x: Any) -> Any:
    """`x` where it holds, else zero; None holds."""
    return x if condition is None else tm.where(condition, x, 0)


def forward(x: Any, w: Any, window: Window, groups: int, shape: Any) -> Any:
    """Σ over input channels and taps; `w` has (out, in / groups, taps)."""
    inner, outer = w.shape[1], w.shape[0] // groups

    def element(n: Any, o: Any, *at: Any) -> Any:
        first = o // outer * inner if groups > 1 else 0

        def term(*k: Any) -> Any:
            c, taps = (k[0], k[1:]) if inner > 1 else (0, k)
            return tm.item(x, (n, first + c, *window.reads(at, taps))) * tm.item(w, (o, c, *taps))

        return tm.sum((inner, *w.shape[2:]) if inner > 1 else tuple(w.shape[2:]), term)

    return tm.array(tuple(shape), element)


def transposed(x: Any, w: Any, window: Window, groups: int, shape: Any) -> Any:
    """The gradient of `forward` by its input; `w` has (in, out / groups, taps)."""
    inner, outer = w.shape[0] // groups, w.shape[1]

    def element(n: Any, o: Any, *at: Any) -> Any:
        first = o // outer * inner if groups > 1 else 0
        own = (o % outer if groups > 1 else o) if outer > 1 else 0

        def term(*k: Any) -> Any:
            c, taps = (k[0], k[1:]) if inner > 1 else (0, k)
            places, whole = window.written(at, taps)
            return chosen(whole, tm.item(x, (n, first + c, *places))) * tm.item(
                w, (first + c, own, *taps)
            )

        return tm.sum((inner, *w.shape[2:]) if inner > 1 else tuple(w.shape[2:]), term)

    return tm.array(tuple(shape), element)


def by_weight(grad: Any, x: Any, window: Window, groups: int, shape: Any) -> Any:
    """The gradient of `forward` by its weight: Σ over the batch and the places of `grad`."""
    inner, outer = shape[1], shape[0] // groups

    def element(o: Any, c: Any, *taps: Any) -> Any:
        channel = o // outer * inner + c if groups > 1 else c

        def term(n: Any, *at: Any) -> Any:
            return tm.item(grad, (n, o, *at)) * tm.item(x, (n, channel, *window.reads(at, taps)))

        return tm.sum((grad.shape[0], *grad.shape[2:]), term)

    return tm.array(tuple(shape), element)


@lower("convolution.default", PRODUCT)
def convolution(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, is_transposed: bool,
    output_padding: Any, groups: int, *, out: Any,
) -> Any:  # fmt: skip
    _check(x, w)
    window = Window(stride, padding, dilation, x.ndim - 2)
    say = transposed if is_transposed else forward
    found = say(x, w, window, groups, out.shape)
    return found if bias is None else found + tm.reshape(bias, (-1, *[1] * (x.ndim - 2)))


def _check(x: Any, w: Any) -> None:
    if x.ndim != w.ndim or x.ndim < 3:
        raise CompileError("a convolution without a batch", fix="add an axis")


@lower("convolution_backward.default", PRODUCT)
def convolution_backward(
    grad: Any, x: Any, w: Any, bias_sizes: Any, stride: Any, padding: Any, dilation: Any,
    is_transposed: bool, output_padding: Any, groups: int, output_mask: Sequence[bool],
) -> Any:  # fmt: skip
    _check(x, w)
    window = Window(stride, padding, dilation, x.ndim - 2)
    by_x = by_w = by_bias = None
    if output_mask[0]:
        say = forward if is_transposed else transposed
        by_x = say(grad, w, window, groups, x.shape)
    if output_mask[1]:
        sides = (x, grad) if is_transposed else (grad, x)
        by_w = by_weight(*sides, window, groups, w.shape)
    if output_mask[2]:
        by_bias = tm.sum(grad, axis=(0, *range(2, grad.ndim)))
    return by_x, by_w, by_bias
