import numpy as np

from zoo.case import normal, within
from zoo.norm.layer_norm import layer_norm_rows, reference


def test_layer_norm_rows(target, sized):
    N, choice = sized
    kernel = layer_norm_rows(N, target=target, **choice)
    for M in (1, 5):
        x = normal(M, N, dtype="bfloat16") + np.array(3, "bfloat16")
        w, b = (normal(N, dtype="bfloat16", seed=s) for s in (1, 2))
        y = np.full_like(x, np.nan)
        kernel(x, w, b, y)
        # what is added may cancel: float32 errs by the larger of the two terms
        within(y, reference(x, w, b), relative=2**-8 + 2**-16, absolute=1e-4)


def test_a_mean_far_from_zero(target):
    """The squares are about the mean: nothing of them is lost below a large one."""
    x = normal(3, 200) + np.float32(1000)
    w, b, y = np.ones(200, np.float32), np.zeros(200, np.float32), np.full_like(x, np.nan)
    for choice in ({}, {"variant": "pieces", "block_M": 1, "block_N": 64}):
        layer_norm_rows(200, dtype="float32", target=target, **choice)(x, w, b, y)
        within(y, reference(x, w, b), relative=1e-3, absolute=1e-3)
