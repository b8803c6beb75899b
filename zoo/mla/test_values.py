import ml_dtypes
import numpy as np
import pytest

from zoo.case import normal
from zoo.mla.decode import reference
from zoo.mla.values import mla_decode


@pytest.mark.parametrize("heads, seq, runs", [(16, 100, 2), (20, 150, 3), (16, 50, 1)])
def test_mla_decode(target, heads, seq, runs):
    kind = ml_dtypes.bfloat16
    q, qr = (normal(2, heads, d, dtype=kind, seed=d) for d in (64, 16))
    kv, kr = (normal(2, seq, d, dtype=kind, seed=d + 1) for d in (64, 16))
    tiles = {"h": 16, "j": 32, "runs": runs}
    got = mla_decode.on(target).with_schedule(tiles=tiles)(q, qr, kv, kr)
    np.testing.assert_allclose(
        np.asarray(got).astype(np.float64), reference(q, qr, kv, kr), atol=1e-2
    )
