"""Convolution of planes."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, op
from tilewright.support.errors import CompileError


@op(
    "input: float[b, c, h, w], weight: input[o, i, r, q], bias: float[o]"
    " -> input[b, o, (h + 2 * padding[0] - dilation[0] * (r - 1) - 1) // stride[0] + 1,"
    " (w + 2 * padding[1] - dilation[1] * (q - 1) - 1) // stride[1] + 1]",
    formula="Σ input[b, c, y · stride + r · dilation − padding, …] · weight[o, c, r, q] + bias",
    wrt=["input", "weight", "bias"],
    error=16,
)
def conv2d(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    stride: tuple[int, int] = (1, 1),
    padding: tuple[int, int] = (0, 0),
    dilation: tuple[int, int] = (1, 1),
    groups: int = 1,
) -> Array:
    """A convolution of channels first, as `torch.nn.functional.conv2d`, with zeros around.

    >>> x, w = np.ones((1, 1, 3, 3), np.float32), np.ones((1, 1, 3, 3), np.float32)
    >>> conv2d(x, w, padding=1)[0, 0].tolist()
    [[4.0, 6.0, 4.0], [6.0, 9.0, 6.0], [4.0, 6.0, 4.0]]
    """
    (n, channels, h, w), (outs, each, rows, columns) = input.shape, weight.shape
    if channels != each * groups or outs % groups:
        raise CompileError(
            f"conv2d: {groups} groups do not share {channels} channels and {outs} outputs",
            expected=f"input of {each * groups} channels, and outputs that {groups} divides",
            got=f"input: {list(input.shape)}, weight: {list(weight.shape)}",
            fix="pass groups= that fits the weight",
            code="arguments",
        )
    if min(*stride, *dilation) < 1 or min(padding) < 0:
        raise CompileError(
            "conv2d: a stride, dilation or padding is out of range",
            expected="stride and dilation of at least 1, padding of at least 0",
            got=f"{stride=}, {dilation=}, {padding=}",
            fix="slice the input for less of it",
            code="arguments",
        )
    high = (h + 2 * padding[0] - dilation[0] * (rows - 1) - 1) // stride[0] + 1
    wide = (w + 2 * padding[1] - dilation[1] * (columns - 1) - 1) // stride[1] + 1
    x = tm.reshape(input, (n, groups, each, h, w))
    f = tm.reshape(weight, (groups, outs // groups, each, rows, columns))

    def element(b: Array, g: Array, o: Array, y: Array, z: Array) -> Array:
        def term(c: Array, r: Array, q: Array) -> Array:
            at = y * stride[0] + r * dilation[0] - padding[0]
            beside = z * stride[1] + q * dilation[1] - padding[1]
            return x[b, g, c, at, beside] * f[g, o, c, r, q]

        return tm.sum((each, rows, columns), term)

    out = tm.reshape(tm.array((n, groups, outs // groups, high, wide), element),
                     (n, outs, high, wide))  # fmt: skip
    out = out if bias is None else out + bias[:, None, None]
    return tm.astype(out, input.dtype)
