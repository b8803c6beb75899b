import numpy as np
import pytest

from zoo.case import normal, within
from zoo.softmax.softmax import online_softmax, reference, softmax, softmax_rows


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


def test_softmax_rows(target, sized):
    N, choice = sized
    kernel = softmax_rows(N, target=target, **choice)
    for M in (1, 5):
        x = normal(M, N, dtype="bfloat16") * 4
        y = np.full_like(x, np.nan)
        kernel(x, y)
        within(y, reference(x), relative=2**-8 + 2**-16)


@pytest.mark.parametrize(
    "choice",
    [
        {"variant": "held", "block_M": 1, "threads": 32, "cluster": 4},
        {"variant": "rows", "block_M": 2},
        {"variant": "pieces", "block_M": 2, "block_N": 16},
    ],
)
def test_rows_with_minus_infinity(choice):
    x = normal(4, 64, dtype="bfloat16")
    x[0, :40] = x[1, 30:] = x[2, 1:] = -np.inf  # whole parts of a row, at its ends
    y = np.full_like(x, np.nan)
    softmax_rows(64, target="interp", **choice)(x, y)
    within(y, reference(x), relative=2**-8 + 2**-16)
