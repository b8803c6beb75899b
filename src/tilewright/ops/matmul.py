"""Products, and what is done to them before they are stored."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, Function, op
from tilewright.support.errors import CompileError

ACTIVATIONS: dict[str, Function] = {
    "relu": tm.relu,
    "gelu": tm.gelu,
    "gelu_tanh": lambda x: tm.gelu(x, approximate="tanh"),
    "silu": tm.silu,
    "sigmoid": tm.sigmoid,
    "tanh": tm.tanh,
}


def activated(x: Array, activation: str | Function | None) -> Array:
    """`x` after an activation: a function, or the name of one."""
    if activation is None:
        return x
    if callable(activation):
        return activation(x)
    if activation not in ACTIVATIONS:
        raise CompileError(
            f"no activation is called {activation!r}",
            expected=", ".join(ACTIVATIONS),
            fix="name one of these, or pass a function of tilewright.math",
            code="arguments",
        )
    return ACTIVATIONS[activation](x)


def _finished(
    x: Array, bias: Array | None, activation: str | Function | None, gate: Array | None,
    residual: Array | None, like: Array,
) -> Array:  # fmt: skip
    x = x if bias is None else x + bias
    x = activated(x, activation)
    x = x if gate is None else x * gate
    return tm.astype(x if residual is None else x + residual, like.dtype)


@op(
    "input: float[..., m, k], other: input[...?, k, n], bias: float[n], gate: input[...?, k, n],"
    " residual: float[..., m, n] -> input[..., m, n]",
    formula="activation(input · other + bias) ⊙ (input · gate) + residual",
    wrt=["input", "other", "bias", "gate", "residual"],
    error=16,
)
def matmul(
    input: Array,
    other: Array,
    bias: Array | None = None,
    activation: Function | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """The matrix product, as `torch.matmul`, and what follows it in the same kernel.

    `activation` is "relu", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh", or a function of
    `tilewright.math`. With `gate`, a second product of the same input multiplies the result.

    >>> x, w = np.ones((2, 3), np.float32), np.ones((3, 2), np.float32)
    >>> matmul(x, w, bias=np.array([-4, 1], np.float32), activation="relu").tolist()
    [[0.0, 4.0], [0.0, 4.0]]
    """
    other_product = None if gate is None else input @ gate
    return _finished(input @ other, bias, activation, other_product, residual, input)


@op(
    "input: float[..., k], weight: input[n, k], bias: float[n], gate: input[n, k],"
    " residual: float[..., n] -> input[..., n]",
    formula="activation(input · weightᵀ + bias) ⊙ (input · gateᵀ) + residual",
    wrt=["input", "weight", "bias", "gate", "residual"],
    error=16,
)
def linear(
    input: Array,
    weight: Array,
    bias: Array | None = None,
    activation: Function | None = None,
    gate: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """`matmul` by weights with a row for each output, as `torch.nn.functional.linear`.

    >>> linear(np.ones((1, 3), np.float32), np.eye(2, 3, dtype=np.float32)).tolist()
    [[1.0, 1.0]]
    """
    other_product = None if gate is None else input @ tm.matrix_transpose(gate)
    product = input @ tm.matrix_transpose(weight)
    return _finished(product, bias, activation, other_product, residual, input)
