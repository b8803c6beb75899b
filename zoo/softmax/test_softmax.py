import numpy as np
import pytest

from zoo.case import normal
from zoo.softmax.softmax import online_softmax, reference, softmax


@pytest.mark.parametrize("M, N", [(4, 256), (7, 96), (3, 1), (9, 1000)])
def test_softmax(target, M, N):
    x, y = normal(M, N) * 4, np.full((M, N), np.nan, np.float32)
    softmax.on(target)(M, N)(x, y)
    np.testing.assert_allclose(y, reference(x), rtol=2e-5, atol=1e-9)


@pytest.mark.parametrize("M, N, block_N", [(4, 256, 64), (5, 100, 32), (3, 1, 8), (6, 130, 128)])
def test_online_softmax(target, M, N, block_N):
    x, y = normal(M, N) * 4, np.full((M, N), np.nan, np.float32)
    online_softmax.on(target)(M, N, block_N=block_N)(x, y)
    np.testing.assert_allclose(y, reference(x), rtol=2e-5, atol=1e-9)
