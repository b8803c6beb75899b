import numpy as np
import pytest

from zoo.case import normal, within
from zoo.elementwise.swiglu import reference, swiglu_rows


@pytest.mark.parametrize("N, choice", [(1, {}), (96, {}), (2500, {}), (33, {"block_N": 8})])
def test_swiglu_rows(target, N, choice):
    kernel = swiglu_rows(N, target=target, **choice)
    for M in (1, 7):
        a, b = (normal(M, N, dtype="bfloat16", seed=s) * 4 for s in (1, 2))
        y = np.full_like(a, np.nan)
        kernel(a, b, y)
        within(y, reference(a, b), relative=2**-8 + 2**-16)


def test_far_from_zero(target):
    a = np.array([[-200.0, -90.0, 90.0, 200.0]], "bfloat16")
    b, y = np.ones_like(a), np.full_like(a, np.nan)
    swiglu_rows(4, target=target)(a, b, y)
    within(y, reference(a, b), relative=2**-8, absolute=1e-30)
