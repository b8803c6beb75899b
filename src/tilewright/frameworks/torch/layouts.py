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
from operator import getitem
from typing import Any

import torch
import torch.nn.functional as F

from tilewright.frameworks.torch.graph import tensors
from tilewright.frameworks.torch.lowerings.rows import flat, phases_of, taps_of

DEVICES = ("cuda",)
SHORT = 64  # bytes: a row of fewer takes the taps of the last axis too
NARROW = 64  # places: of lines that are shorter, a tile takes several
WASTE = 1.5  # times as many products, where phases share what they read
UNIT = 16  # bytes: rows that the bulk engine writes are multiples
STEP = 32  # bytes: rows are multiples, as an instruction's K is

_library = torch.library.Library("tilewright", "FRAGMENT")


def _op(schema: str, compute: Callable[..., Any], shape: Callable[..., Sequence[int]]) -> Any:
    """An operator of ours: what PyTorch does for it, and the shape of its result. Its last argument
    may say that tensor cores multiply float32; PyTorch's operators are exact instead."""
    name, known = schema.partition("(")[0], -1 if schema.endswith("tf32)") else None
    _library.define(f"{schema} -> Tensor")
    _library.impl(name, lambda *given: compute(*given[:known]), "CompositeExplicitAutograd")
    _library.impl(name, lambda x, *rest: x.new_empty(shape(x, *rest[:known])), "Meta")
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


def _image(x: Any, lows: Any, extents: Any, groups: int, width: int) -> Any:
    sides: list[int] = []
    for n, low, extent in zip(x.shape[2:], lows, extents, strict=True):
        sides = [-low, extent + low - n, *sides]
    x = F.pad(x, sides).unflatten(1, (groups, -1)).movedim((1, 2), (-2, -1))
    return F.pad(x, (0, width - x.shape[-1])).flatten(-2).flatten(1, -2).contiguous()


def _phase_weights(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, is_transposed: bool,
    is_shared: bool, width: int,
) -> Any:  # fmt: skip
    shape = _phase_weights_shape(w, stride, padding, dilation, groups, is_transposed, is_shared,
                                 width)  # fmt: skip
    found = w.new_zeros(shape)
    phases = phases_of(stride, padding, dilation, w.shape[2:])
    if is_transposed:
        w = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1)
    else:
        w = w.flip(list(range(2, w.ndim)))
    found = found.unflatten(0, (prod(stride), -1))
    for f, own in enumerate(_places(stride)):
        for t, tap in enumerate(_places(taps_of(phases, is_shared))):
            at = [p.tap(i, j, is_shared) for p, i, j in zip(phases, own, tap, strict=True)]
            if all(0 <= a < n for a, n in zip(at, w.shape[2:], strict=True)):
                found[f, :, t, : w.shape[1]] = w.flatten(2)[:, :, flat(at, w.shape[2:])]
    return found.flatten(0, 1)


def _places(sizes: Sequence[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for n in sizes:
        found = [[*each, i] for each in found for i in range(n)]
    return found


def _phase_weights_shape(
    w: Any, stride: Any, padding: Any, dilation: Any, groups: int, is_transposed: bool,
    is_shared: bool, width: int,
) -> list[int]:  # fmt: skip
    phases = phases_of(stride, padding, dilation, w.shape[2:])
    outer = w.shape[1] * groups if is_transposed else w.shape[0]
    return [prod(stride) * outer, prod(taps_of(phases, is_shared)), width]


def _of_places(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int,
    is_shared: bool, extents: Any, size: int,
) -> Any:  # fmt: skip
    phases = phases_of(stride, padding, dilation, taps)
    counts, outer = taps_of(phases, is_shared), w.shape[0] // prod(stride)
    found = []
    for f, own in enumerate(_places(stride)):
        total: Any = 0
        for t, tap in enumerate(_places(counts)):
            reads = [p.read(i, j, is_shared) for p, i, j in zip(phases, own, tap, strict=True)]
            first = flat(reads, extents)
            part = x[:, first : first + size].unflatten(2, (groups, -1)).float()
            rows = w[f * outer : (f + 1) * outer, t].unflatten(0, (groups, -1)).float()
            part = torch.einsum("npgc,goc->ngop", part, rows).flatten(1, 2)
            total = total + torch.nn.functional.pad(part, (0, size - part.shape[-1]))
        found.append(total.to(x.dtype))
    if is_shared:
        return torch.cat(found, 1)
    return torch.stack(found, 1).flatten(0, 1)


def _of_places_shape(
    x: Any, w: Any, stride: Any, padding: Any, dilation: Any, taps: Any, groups: int,
    is_shared: bool, extents: Any, size: int,
) -> list[int]:  # fmt: skip
    apart = 1 if is_shared else prod(stride)
    return [x.shape[0] * apart, w.shape[0] // apart, size]


def _together(x: Any, outer: int, stride: Any, extents: Any, size: Any) -> Any:
    rank = len(stride)
    x = x.reshape(-1, *stride, outer, x.shape[-1])
    places = torch.arange(prod(extents), device=x.device).reshape(extents)
    for d, (n, s) in enumerate(zip(size, stride, strict=True)):
        places = places.narrow(d, 0, -(-n // s))
    pairs = [axis for d in range(rank) for axis in (rank + 2 + d, 1 + d)]
    x = x[..., places].permute(0, rank + 1, *pairs)
    for d, n in enumerate(size):
        x = x.flatten(2 + d, 3 + d).narrow(2 + d, 0, n)
    return x.contiguous()


def _spread(x: Any, steps: Any, offsets: Any, size: Any) -> Any:
    found = x.new_zeros([*x.shape[:2], *size])
    part = found
    for d, (s, first, n) in enumerate(zip(steps, offsets, size, strict=True)):
        begin = -first % s
        part = part.narrow(2 + d, begin, n - begin) if n > begin else part.narrow(2 + d, 0, 0)
        part = part[(slice(None),) * (2 + d) + (slice(None, None, s),)]
        x = x.narrow(2 + d, (begin + first) // s, part.shape[2 + d])
    part.copy_(x)
    return found


TAPS = _op(
    "taps_in_rows(Tensor x, int taps, int stride, int padding, int dilation, int groups, "
    "int width, bool for_tf32)",
    _taps, _taps_shape,
)  # fmt: skip
WEIGHTS = _op(
    "weights_in_rows(Tensor w, int groups, bool is_transposed, bool is_folded, int width, "
    "bool for_tf32)",
    _weights, _weights_shape,
)  # fmt: skip
PRODUCT_OF_ROWS = _op(
    "convolution_of_rows(Tensor x, Tensor w, Tensor? bias, int[] stride, int[] padding, "
    "int[] dilation, int groups, SymInt[] size, bool in_tf32)",
    _product, _product_shape,
)  # fmt: skip
IMAGE = _op(
    "places_in_rows(Tensor x, int[] lows, int[] extents, int groups, int width, "
    "bool for_tf32)", _image,
    lambda x, lows, extents, groups, width: [x.shape[0], prod(extents), groups * width],
)  # fmt: skip
PHASE_WEIGHTS = _op(
    "weights_by_phase(Tensor w, int[] stride, int[] padding, int[] dilation, int groups, "
    "bool is_transposed, bool is_shared, int width, bool for_tf32)",
    _phase_weights, _phase_weights_shape,
)  # fmt: skip
PLACES = _op(
    "convolution_of_places(Tensor x, Tensor w, int[] stride, int[] padding, int[] dilation, "
    "int[] taps, int groups, bool is_shared, int[] extents, int size, "
    "bool in_tf32)",
    _of_places, _of_places_shape,
)  # fmt: skip
TOGETHER = _op(
    "places_together(Tensor x, int outer, int[] stride, int[] extents, int[] size)",
    _together, lambda x, outer, stride, extents, size: [
        x.shape[0] * x.shape[1] // (outer * prod(stride)), outer, *size
    ],
)  # fmt: skip
SPREAD = _op(
    "spread(Tensor x, int[] steps, int[] offsets, int[] size)", _spread,
    lambda x, steps, offsets, size: [*x.shape[:2], *size],
)  # fmt: skip


# ── the graph ────────────────────────────────────────────────────────────────────────────────


def lay_out(graph: Any) -> None:
    """Rewrite the convolutions of a graph for a GPU, gradients by their inputs among them."""
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) == "aten.convolution_backward.default":
            _part_gradient(graph, node)
    for node in list(graph.nodes):
        if node.op == "call_function" and str(node.target) == "aten.convolution.default":
            _rewrite(graph, node)


def _part_gradient(graph: Any, node: Any) -> None:
    """The gradient by the input as a convolution of its own."""
    grad, x, w, _, stride, padding, dilation, is_transposed, _, groups, mask = node.args
    by_x = [user for user in node.users if user.target is getitem and user.args[1] == 0]
    given, value = x.meta["val"], grad.meta["val"]
    shape, rank = [*given.shape[2:]], given.ndim - 2
    known = all(isinstance(n, int) for n in (*shape, *value.shape[2:]))
    if (
        not by_x
        or given.ndim != w.meta["val"].ndim
        or value.device.type not in DEVICES
        or not known
    ):
        return
    how = [[*n] * (rank // len(n)) for n in (stride, padding, dilation)]
    spans = zip(shape, value.shape[2:], w.meta["val"].shape[2:], *how, strict=True)
    beyond = [n - ((m - 1) * s - 2 * pad + d * (k - 1) + 1) for n, m, k, s, pad, d in spans]
    beyond = [0] * rank if is_transposed else beyond
    found = _Writer(graph, node)(
        torch.ops.aten.convolution.default, grad, w, None, *how, not is_transposed, beyond, groups
    )
    for user in by_x:
        user.replace_all_uses_with(found)
        graph.erase_node(user)
    node.args = (*node.args[:-1], [False, *mask[1:]])
    if not node.users:
        graph.erase_node(node)


def _rewrite(graph: Any, node: Any) -> None:
    x, w, bias, stride, padding, dilation, is_transposed, _, groups = node.args
    value, weights = x.meta["val"], w.meta["val"]
    rank = weights.ndim - 2
    if value.ndim != weights.ndim or not rank or value.device.type not in DEVICES:
        return
    size = [*node.meta["val"].shape[2:]]
    sizes = [*value.shape[1:], *weights.shape, *size]
    if any(not isinstance(n, int) for n in sizes) or value.shape[1] == groups:
        return
    stride, padding, dilation = ([*n] * (rank // len(n)) for n in (stride, padding, dilation))
    laid = _Laid(_Writer(graph, node), x, w, groups, is_transposed)
    if not is_transposed:
        found = laid.plain(bias, stride, padding, dilation, size)
    else:
        found = laid.transposed(bias, stride, padding, dilation, size)
    node.replace_all_uses_with(found)
    found.meta = {**node.meta}
    graph.erase_node(node)


def _is_tf32(value: Any) -> bool:
    """Whether PyTorch lets tensor cores multiply float32 in convolutions."""
    if value.dtype != torch.float32 or value.device.type != "cuda":
        return False
    try:
        return bool(torch.backends.cudnn.allow_tf32)
    except RuntimeError:  # set by names that this one does not know
        return False


class _Laid:
    """The nodes of one convolution."""

    def __init__(self, write: _Writer, x: Any, w: Any, groups: int, is_transposed: bool) -> None:
        self.write, self.x, self.w = write, x, w
        self.groups, self.is_transposed = groups, is_transposed
        value = w.meta["val"]
        self.taps, self.bytes = [*value.shape[2:]], value.element_size()
        self.channels = x.meta["val"].shape[1] // groups
        self.outer = value.shape[1] * groups if is_transposed else value.shape[0]
        self.tf32 = _is_tf32(value)

    def plain(self, bias: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Any:
        write, taps = self.write, self.taps
        if self.channels * self.bytes < SHORT and taps[-1] > 1:
            width = self._width(self.channels * taps[-1])
            how = (taps[-1], stride[-1], padding[-1], dilation[-1], self.groups, width)
            rows = write(TAPS, self.x, *how, self.tf32)
            weights = write(WEIGHTS, self.w, self.groups, False, True, width, self.tf32)
            how_read = (stride[:-1], padding[:-1], dilation[:-1])
            more = (self.groups, size, self.tf32)
            return write(PRODUCT_OF_ROWS, rows, weights, bias, *how_read, *more)
        if max(stride) == 1 and len(size) > 1 and size[-1] < NARROW:
            ahead = [d * (n - 1) - pad for n, pad, d in zip(taps, padding, dilation, strict=True)]
            return self._of_places(bias, stride, ahead, dilation, size)
        return self._of_rows(bias, stride, padding, dilation, size)

    def transposed(self, bias: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Any:
        steps = [gcd(s, d) for s, d in zip(stride, dilation, strict=True)]
        if max(steps) > 1:  # most elements are zero: the others are a convolution by themselves
            offsets = [pad if step > 1 else 0 for pad, step in zip(padding, steps, strict=True)]
            each = [*zip(stride, padding, dilation, size, steps, strict=True)]
            found = self.transposed(
                None,
                [s // step for s, _, _, _, step in each],
                [pad if step == 1 else 0 for _, pad, _, _, step in each],
                [d // step for _, _, d, _, step in each],
                [n if step == 1 else (n - 1 + pad) // step + 1 for _, pad, _, n, step in each],
            )
            return self._biased(self.write(SPREAD, found, steps, offsets, size), bias)
        if max(stride) > 1 or (len(size) > 1 and size[-1] < NARROW):
            return self._of_places(bias, stride, padding, dilation, size)
        spans = zip(self.taps, padding, dilation, strict=True)
        return self._of_rows(
            bias, stride, [d * (n - 1) - pad for n, pad, d in spans], dilation, size
        )

    def _of_rows(self, bias: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Any:
        width = self._width(self.channels)
        rows = self.write.rows(self.x, self.groups, width, self.tf32)
        laid = (self.groups, self.is_transposed, False, width, self.tf32)
        weights = self.write(WEIGHTS, self.w, *laid)
        how = (stride, padding, dilation, self.groups, size, self.tf32)
        return self.write(PRODUCT_OF_ROWS, rows, weights, bias, *how)

    def _of_places(self, bias: Any, stride: Any, padding: Any, dilation: Any, size: Any) -> Any:
        """All places of an image are one axis, with zeros between its lines."""
        phases, write = phases_of(stride, padding, dilation, self.taps), self.write
        own, shared = (prod(taps_of(phases, each)) for each in (False, True))
        is_shared = prod(stride) > 1 and shared <= own * WASTE
        parts = [-(-n // s) for n, s in zip(size, stride, strict=True)]
        extents = [n + p.more(is_shared) for n, p in zip(parts, phases, strict=True)]
        width = self._width(self.channels)
        lows = [p.low(is_shared) for p in phases]
        places = write(IMAGE, self.x, lows, extents, self.groups, width, self.tf32)
        how = (stride, padding, dilation)
        weights = write(
            PHASE_WEIGHTS,
            self.w,
            *how,
            self.groups,
            self.is_transposed,
            is_shared,
            width,
            self.tf32,
        )
        count = flat([n - 1 for n in parts], extents) + 1
        count = -(-count * self.bytes // UNIT) * UNIT // self.bytes
        found = write(PLACES, places, weights, *how, self.taps, self.groups, is_shared, extents,
                      count, self.tf32)  # fmt: skip
        return self._biased(write(TOGETHER, found, self.outer, stride, extents, size), bias)

    def _biased(self, found: Any, bias: Any) -> Any:
        if bias is None:
            return found
        rank = len(self.taps)
        bias = self.write(torch.ops.aten.view.default, bias, [-1, *[1] * rank])
        return self.write(torch.ops.aten.add.Tensor, found, bias)

    def _width(self, n: int) -> int:
        step: int = STEP // self.bytes
        return -(-n // step) * step


def _is_depthwise(node: Any) -> bool:
    """Whether a node multiplies each channel by itself: its kernels do not turn what they write."""
    return str(node.target) == "aten.convolution.default" and node.args[8] > 1


class _Writer:
    """Adds nodes before one."""

    def __init__(self, graph: Any, node: Any) -> None:
        self.graph, self.node = graph, node

    def __call__(self, target: Any, *args: Any, **more: Any) -> Any:
        with self.graph.inserting_before(self.node):
            found = self.graph.call_function(target, args, more)
        values = torch.fx.map_arg(args, lambda x: x.meta["val"])
        with next(tensors(self.node.meta["val"])).fake_mode:
            found.meta["val"] = target(*values, **more)
        return found

    def rows(self, x: Any, groups: int, width: int, tf32: bool) -> Any:
        """(batch, places, groups · width)."""
        aten, rank = torch.ops.aten, x.meta["val"].ndim - 2
        channels = x.meta["val"].shape[1] // groups
        if tf32 or _is_depthwise(x) or (width != channels and groups > 1):
            return self(TAPS, x, 1, 1, 0, 1, groups, width, tf32)
        x = self(aten.permute.default, x, [0, *range(2, 2 + rank), 1])
        if width != channels:
            return self(aten.constant_pad_nd.default, x, [0, width - channels], 0.0)
        if x.meta["val"].is_contiguous():
            return x
        return self(aten.clone.default, x, memory_format=torch.contiguous_format)
