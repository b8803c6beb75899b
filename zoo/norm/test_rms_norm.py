import numpy as np
import pytest

from zoo.case import normal, within
from zoo.norm.rms_norm import reference, rms_norm_rows


@pytest.mark.parametrize("silu", [False, True])
def test_rms_norm_rows(target, sized, silu):
    N, choice = sized
    kernel = rms_norm_rows(N, target=target, silu=silu, **choice)
    for M in (1, 5):
        x, w = normal(M, N, dtype="bfloat16"), normal(N, dtype="bfloat16", seed=1)
        y = np.full_like(x, np.nan)
        kernel(x, w, y)
        within(y, reference(x, w, silu=silu), relative=2**-8 + 2**-16, absolute=1e-6)


def test_float32(target):
    x, w, y = normal(3, 100), normal(100, seed=1), np.full((3, 100), np.nan, np.float32)
    rms_norm_rows(100, dtype="float32", target=target)(x, w, y)
    within(y, reference(x, w), relative=1e-5)
