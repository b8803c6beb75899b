"""Ops of single elements, or of pairs of them."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, op


@op(
    "gate: float[..., n], up: gate[..., n] -> gate[..., n]",
    formula="gate · sigmoid(gate) · up",
    wrt=["gate", "up"],
    error=4,
)
def swiglu(gate: Array, up: Array) -> Array:
    """SiLU of one half times the other, as FlashInfer's `silu_and_mul` of `[gate, up]`.

    >>> swiglu(np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)).tolist()
    [[0.0, 0.0]]
    """
    return tm.astype(tm.silu(gate) * up, gate.dtype)


@op(
    "x: float[b, s, h, d], cos: float[s, d // 2], sin: float[s, d // 2] -> x[b, s, h, d]",
    formula="(x₁ · cos − x₂ · sin, x₂ · cos + x₁ · sin)",
    wrt=["x", "cos", "sin"],
    error=4,
)
def rope(x: Array, cos: Array, sin: Array, interleaved: bool = False) -> Array:
    """Rotary embedding, as FlashAttention's `apply_rotary_emb`: pairs of numbers are turned by the
    angles of their place. A pair is (i, i + d/2), or neighbours if `interleaved`.

    >>> x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    >>> rope(x, np.zeros((1, 2), np.float32), np.ones((1, 2), np.float32)).ravel().tolist()
    [-2.0, -3.0, 0.0, 1.0]
    """
    b, s, h, d = x.shape
    pairs = tm.reshape(x, (b, s, h, d // 2, 2) if interleaved else (b, s, h, 2, d // 2))

    def turned(b: Array, s: Array, h: Array, m: Array, n: Array) -> Array:
        i, side = (m, n) if interleaved else (n, m)
        other = pairs[b, s, h, i, 1 - side] if interleaved else pairs[b, s, h, 1 - side, i]
        sign = tm.where(side == 0, -1.0, 1.0)
        return pairs[b, s, h, m, n] * cos[s, i] + sign * other * sin[s, i]

    return tm.astype(tm.reshape(tm.array(pairs.shape, turned), x.shape), x.dtype)
