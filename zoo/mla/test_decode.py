import numpy as np
import pytest

from zoo.case import normal
from zoo.mla.decode import mla_decode, reference


@pytest.mark.parametrize("splits", [1, 2, 3])
@pytest.mark.parametrize("batch, heads, seq", [(1, 64, 256), (2, 16, 200)])
def test_mla_decode(target, splits, batch, heads, seq):
    q, qr = (normal(batch, heads, d, dtype=np.float16, seed=d) for d in (512, 64))
    kv, kr = (normal(batch, seq, d, dtype=np.float16, seed=d + 1) for d in (512, 64))
    o = np.full_like(q, np.nan)
    mla_decode.on(target)(batch, heads, seq, splits=splits)(q, qr, kv, kr, o)
    np.testing.assert_allclose(o.astype(np.float64), reference(q, qr, kv, kr), atol=4e-3)
