import numpy as np
import pytest

from zoo.attention.pointwise import WEIGHTS, pointwise_attention, reference
from zoo.case import normal


@pytest.mark.parametrize("weight", WEIGHTS)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("seq_q, seq_kv, dim", [(128, 128, 64), (100, 70, 32), (1, 65, 16)])
def test_pointwise_attention(target, causal, weight, seq_q, seq_kv, dim):
    if causal and seq_q > seq_kv:
        pytest.skip("rows that see nothing")
    q = normal(2, 2, seq_q, dim, dtype=np.float16, seed=1)
    k, v = (normal(2, 2, seq_kv, dim, dtype=np.float16, seed=s) for s in (2, 3))
    o = np.full_like(q, np.nan)
    kernel = pointwise_attention.on(target)(2, 2, seq_q, seq_kv, dim, causal, weight)
    kernel(q, k, v, o)
    want = reference(q, k, v, causal, weight)
    np.testing.assert_allclose(o.astype(np.float64), want, atol=4e-3)
