"""Operands of convolutions as tensor cores read them, before a graph is parted into groups.

A product reads rows of channels. PyTorch's tensors have planes, where neighbours are places of an
image: the bulk engine reads no row of them. So the operands of a convolution are laid out first, in
the kernels that make them where those are element by element. Where a row would be short, the taps
of the last axis lie in it too. A strided transposed convolution multiplies mostly zeros as it
stands: each phase of its result is a dense convolution with some of the taps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, prod
from typing import Any

import torch
import torch.nn.functional as F

from tilewright.frameworks.torch.lowerings.rows import phases_of

DEVICES = ("cuda",)
SHORT = 64  # bytes: a row of fewer takes the taps of the last axis too
STEP = 32  # bytes: rows are multiples, as an instruction's K is

_library = torch.library.Library("tilewright", "FRAGMENT")


def _op(schema: str, compute: Callable[..., Any], shape: Callable[..., Sequence[int]]) -> Any:
    """An operator of ours: what PyTorch does for it, and the shape of its result."""
    name = schema.partition("(")[0]
    _library.define(f"{schema} -> Tensor")
    _library.impl(name, compute, "CompositeExplicitAutograd")
    _library.impl(name, lambda x, *rest: x.new_empty(shape(x, *rest)), "Meta")
    return getattr(torch.ops.tilewright, name).default


# ── what they compute, by PyTorch's operators ────────────────────────────────────────────────


def _taps(
    x: Any, taps: int, stride: int, padding: int, dilation: int, groups: int, width: int
) -> Any:
    count = _count(x.shape[-1], taps, stride, padding, dilation)
    x = F.pad(x, (padding, padding)).unflatten(1, (groups, -1))
    parts = [x[..., q * dilation :][..., : (count - 1) * stride + 1 : stride] for q in range(taps)]
    found = torch.stack(parts, 2).flatten(2, 3)  # (batch, groups, row, places)
    found = F.pad(found.movedim((1, 2), (-2, -1)), (0, width - found.shape[2]))
    return found.flatten(-2).contiguous()


def _taps_shape(
    x: Any, taps: int, stride: int, padding: int, dilation: int, groups: int, width: int
) -> list[int]:
    count = _count(x.shape[-1], taps, stride, padding, dilation)
    return [x.shape[0], *x.shape[2:-1], count, groups * width]


def _count(n: Any, taps: int, stride: int, padding: int, dilation: int) -> Any:
    return (n + 2 * padding - dilation * (taps - 1) - 1) // stride + 1


def _weights(w: Any, groups: int, is_transposed: bool, is_folded: bool, width: int) -> Any:
    if is_transposed:
        axes = list(range(2, w.ndim))
        w = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(axes)
    w = w.movedim(1, -1)
    w = w.flatten(-2) if is_folded else w
    return F.pad(w, (0, width - w.shape[-1])).contiguous()


def _weights_shape(
    w: Any, groups: int, is_transposed: bool, is_folded: bool, width: int
) -> list[int]:
    outer = w.shape[1] * groups if is_transposed else w.shape[0]
    return [outer, *w.shape[2 : w.ndim - is_folded], width]


def _product(
    x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int, size: Any
) -> Any:
    # contiguous: PyTorch's grouped convolutions of other strides are wrong on the CPU
    x, w = x.movedim(-1, 1).contiguous(), w.movedim(-1, 1).contiguous()
    rest = x.ndim - w.ndim
    w = w.reshape(*w.shape, *[1] * rest)
    how = [[*stride, *[1] * rest], [*padding, *[0] * rest], [*dilation, *[1] * rest]]
    sides: list[int] = []
    for n, k, want, s, pad, d in zip(x.shape[2:], w.shape[2:], size, *how, strict=True):
        sides = [pad, (want - 1) * s + d * (k - 1) + 1 - n - pad, *sides]
    ones = [0] * len(size)
    return torch.convolution(
        F.pad(x, sides), w, bias, how[0], ones, how[2], False, ones, groups
    ).contiguous()


def _product_shape(x: Any, w: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int,
                   size: Any) -> list[int]:  # fmt: skip
    return [x.shape[0], w.shape[0], *size]


def _phase_weights(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, width: int
) -> Any:
    found = w.new_zeros(_phase_weights_shape(w, stride, padding, dilation, groups, width))
    phases = phases_of(stride, padding, dilation, w.shape[2:])
    w = w.unflatten(0, (groups, -1)).movedim(1, -1).movedim(1, 1).flatten(0, 1)
    counts = [p.taps for p in phases]
    for f, own in enumerate(_places(stride)):
        for t, tap in enumerate(_places(counts)):
            at = [p.first(i) + p.stride * j for p, i, j in zip(phases, own, tap, strict=True)]
            if all(a < n for a, n in zip(at, w.shape[1:-1], strict=True)):
                part = w.flatten(1, -2)[:, _flat(at, w.shape[1:-1])]
                found[f, :, t, : w.shape[-1]] = part
    return found


def _flat(at: Sequence[int], sizes: Sequence[int]) -> int:
    found = 0
    for i, n in zip(at, sizes, strict=True):
        found = found * n + i
    return found


def _places(sizes: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for n in sizes:
        found = [[*each, i] for each in found for i in range(n)]
    return found


def _phase_weights_shape(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, width: int
) -> list[int]:
    counts = [p.taps for p in phases_of(stride, padding, dilation, w.shape[2:])]
    return [prod(stride), w.shape[1] * groups, prod(counts), width]


def _phases(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int, size: Any
) -> Any:
    phases = phases_of(stride, padding, dilation, taps)
    counts = [p.taps for p in phases]
    found = []
    for f, own in enumerate(_places(stride)):
        # the taps of a phase read backwards from `base`: turned round they are a window's
        part = w[f].unflatten(1, counts).flip(list(range(1, 1 + len(counts))))
        first = [p.base(i) - (p.taps - 1) * p.dilation for p, i in zip(phases, own, strict=True)]
        found.append(_product(x, part, None, [1] * len(size), [-n for n in first], dilation, groups,
                              size))  # fmt: skip
    return torch.stack(found, 1).flatten(0, 1)


def _phases_shape(x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int,
                  size: Any) -> list[int]:  # fmt: skip
    return [x.shape[0] * prod(stride), w.shape[1], *size]


def _together(x: Any, stride: Any, size: Any) -> Any:
    rank = len(stride)
    x = x.unflatten(0, (-1, *stride))  # (batch, phases, out, places)
    order = [0, rank + 1, *(a for d in range(rank) for a in (rank + 2 + d, 1 + d))]
    x = x.permute(order)
    for d in range(rank):
        x = x.flatten(2 + d, 3 + d)
    for d, n in enumerate(size):
        x = x.narrow(2 + d, 0, n)
    return x.contiguous()


TAPS = _op(
    "taps_in_rows(Tensor x, int taps, int stride, int padding, int dilation, int groups, "
    "int width)",
    _taps, _taps_shape,
)  # fmt: skip
WEIGHTS = _op(
    "weights_in_rows(Tensor w, int groups, bool is_transposed, bool is_folded, int width)",
    _weights, _weights_shape,
)  # fmt: skip
PRODUCT_OF_ROWS = _op(
    "convolution_of_rows(Tensor x, Tensor w, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups, SymInt[] size)",
    _product, _product_shape,
)  # fmt: skip
PHASE_WEIGHTS = _op(
    "weights_by_phase(Tensor w, int[] stride, int[] padding, int[] dilation, int groups, "
    "int width)",
    _phase_weights, _phase_weights_shape,
)  # fmt: skip
PHASES = _op(
    "convolution_of_phases(Tensor x, Tensor w, int[] stride, int[] padding, int[] dilation, "
    "int[] taps, int groups, SymInt[] size)",
    _phases, _phases_shape,
)  # fmt: skip
TOGETHER = _op(
    "phases_together(Tensor x, int[] stride, SymInt[] size)", _together,
    lambda x, stride, size: [x.shape[0] // prod(stride), x.shape[1], *size],
)  # fmt: skip


# ── the graph ────────────────────────────────────────────────────────────────────────────────


def lay_out(graph: Any) -> None:
    """Rewrite the convolutions of a graph for a GPU."""
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) == "aten.convolution.default":
            _rewrite(graph, node)


def _rewrite(graph: Any, node: Any) -> None:
    x, w, bias, stride, padding, dilation, is_transposed, _, groups = node.args
    value, inner = x.meta["val"], w.meta["val"]
    rank = inner.ndim - 2
    if value.ndim != inner.ndim or not rank or value.device.type not in DEVICES:
        return
    sizes = [*value.shape[1:], *inner.shape, *node.meta["val"].shape[2:]]
    if any(not isinstance(n, int) for n in sizes) or value.shape[1] == groups:
        return
    channels = value.shape[1] // groups
    stride, padding, dilation = ([*n] * (rank // len(n)) for n in (stride, padding, dilation))
    taps, size = [*inner.shape[2:]], [*node.meta["val"].shape[2:]]
    write = _Writer(graph, node)
    if is_transposed and max(stride) > 1:
        if any(gcd(s, d) > 1 for s, d in zip(stride, dilation, strict=True)):
            return
        width = _width(channels, inner)
        rows = write.rows(x, groups, width)
        weights = write(PHASE_WEIGHTS, w, stride, padding, dilation, groups, width)
        parts = [-(-n // s) for n, s in zip(size, stride, strict=True)]
        found = write(PHASES, rows, weights, stride, padding, dilation, taps, groups, parts)
        found = write(TOGETHER, found, stride, size)
        if bias is not None:
            bias = write(torch.ops.aten.view.default, bias, [-1, *[1] * rank])
            found = write(torch.ops.aten.add.Tensor, found, bias)
    else:
        if is_transposed:
            spans = zip(taps, padding, dilation, strict=True)
            padding = [d * (n - 1) - pad for n, pad, d in spans]
        is_folded = channels * inner.element_size() < SHORT and taps[-1] > 1 and not is_transposed
        if is_folded:
            width = _width(channels * taps[-1], inner)
            how = (taps[-1], stride[-1], padding[-1], dilation[-1], groups, width)
            rows = write(TAPS, x, *how)
            stride, padding, dilation = stride[:-1], padding[:-1], dilation[:-1]
        else:
            width = _width(channels, inner)
            rows = write.rows(x, groups, width)
        weights = write(WEIGHTS, w, groups, is_transposed, is_folded, width)
        how_read = (stride, padding, dilation)
        found = write(PRODUCT_OF_ROWS, rows, weights, bias, *how_read, groups, size)
    node.replace_all_uses_with(found)
    found.meta = {**node.meta}
    graph.erase_node(node)


def _width(n: int, like: Any) -> int:
    step: int = STEP // like.element_size()
    return -(-n // step) * step


class _Writer:
    """Adds nodes before one."""

    def __init__(self, graph: Any, node: Any) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *args: Any, **more: Any) -> Any:
        with self.graph.inserting_before(self.node):
            found = self.graph.call_function(target, args, more)
        values = torch.fx.map_arg(args, lambda x: x.meta["val"])
        with self.node.meta["val"].fake_mode:
            found.meta["val"] = target(*values, **more)
        return found

    def rows(self, x: Any, groups: int, width: int) -> Any:
        """(batch, places, groups · width)."""
        aten, rank = torch.ops.aten, x.meta["val"].ndim - 2
        channels = x.meta["val"].shape[1] // groups
        if width != channels and groups > 1:
            return self(TAPS, x, 1, 1, 0, 1, groups, width)
        x = self(aten.permute.default, x, [0, *range(2, 2 + rank), 1])
        if width != channels:
            return self(aten.constant_pad_nd.default, x, [0, width - channels], 0.0)
        if x.meta["val"].is_contiguous():
            return x
        return self(aten.clone.default, x, memory_format=torch.contiguous_format)
