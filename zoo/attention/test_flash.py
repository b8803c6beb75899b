import numpy as np
import pytest

from zoo.attention.flash import flash_attention, reference
from zoo.case import normal


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    "heads, kv_heads, seq_q, seq_kv, dim",
    [(2, 2, 128, 128, 64), (4, 2, 100, 100, 32), (4, 1, 70, 200, 64), (1, 1, 1, 65, 16)],
)
def test_flash_attention(target, causal, heads, kv_heads, seq_q, seq_kv, dim):
    q = normal(2, heads, seq_q, dim, dtype=np.float16, seed=1)
    k, v = (normal(2, kv_heads, seq_kv, dim, dtype=np.float16, seed=s) for s in (2, 3))
    o = np.full_like(q, np.nan)
    kernel = flash_attention.on(target)(2, heads, kv_heads, seq_q, seq_kv, dim, causal=causal)
    kernel(q, k, v, o)
    np.testing.assert_allclose(o.astype(np.float64), reference(q, k, v, causal), atol=4e-3)
