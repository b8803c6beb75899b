import numpy as np
import pytest

from zoo.attention import backward, flash
from zoo.case import normal


def gradients(target, q, k, v, do, causal, **sizes):
    """O, dQ, dK, dV by the four kernels."""
    batch, heads, seq_q, dim = q.shape
    _, kv_heads, seq_kv, _ = k.shape
    shape = (batch, heads, kv_heads, seq_q, seq_kv, dim)
    o, dq, dk, dv = (np.full_like(x, np.nan) for x in (q, q, k, v))
    sums, d = (np.full((batch, heads, backward.rows(seq_q)), np.nan, np.float32) for _ in range(2))
    backward.attention_with_sums.on(target)(*shape, causal=causal)(q, k, v, o, sums)
    backward.row_products.on(target)(batch, heads, seq_q, dim)(do, o, d)
    given = (q, k, v, do, sums, d)
    backward.keys_gradient.on(target)(*shape, causal=causal, **sizes)(*given, dk, dv)
    backward.queries_gradient.on(target)(*shape, causal=causal, **sizes)(*given, dq)
    return o, dq, dk, dv


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "heads, kv_heads, seq_q, seq_kv, dim, sizes",
    [
        (2, 2, 128, 128, 64, {}),
        (4, 2, 100, 100, 32, {"block_N": 32}),
        (2, 1, 70, 130, 64, {"block_M": 32}),
        (1, 1, 1, 65, 16, {}),
        (1, 1, 130, 131, 32, {"block_M": 64, "block_N": 128, "threads": 256}),
    ],
)
def test_gradients(target, causal, heads, kv_heads, seq_q, seq_kv, dim, sizes):
    q, do = (normal(1, heads, seq_q, dim, dtype=np.float16, seed=s) for s in (1, 2))
    k, v = (normal(1, kv_heads, seq_kv, dim, dtype=np.float16, seed=s) for s in (3, 4))
    o, *found = gradients(target, q, k, v, do, causal, **sizes)
    np.testing.assert_allclose(o.astype(np.float64), flash.reference(q, k, v, causal), atol=4e-3)
    for got, want in zip(found, backward.reference(q, k, v, do, causal), strict=True):
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=4e-3, atol=8e-3)


def test_reference_is_the_slope():
    """Differences of the forward reference in a random direction."""
    q, k, v, do = (
        normal(1, 2, n, 8, seed=s).astype(np.float64) for s, n in enumerate((5, 7, 7, 5))
    )
    grads = backward.reference(q, k, v, do, causal=True)
    for at, grad in enumerate(grads):
        step = normal(*grad.shape, seed=9).astype(np.float64) * 1e-5
        moved = [[x + sign * step if i == at else x for i, x in enumerate((q, k, v))]
                 for sign in (1, -1)]  # fmt: skip
        up, down = (flash.reference(*x, causal=True) for x in moved)
        np.testing.assert_allclose(((up - down) * do).sum() / 2, (grad * step).sum(), rtol=1e-5)
