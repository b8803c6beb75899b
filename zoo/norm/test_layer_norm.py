import numpy as np
import pytest

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


# All of a row's columns in steps of the block; a tail in the last block, or nothing left for it;
# parts joined four, two and one at a time.
CUT = (
    (512, {"block_M": 2, "threads": 64}),
    (1050, {"block_M": 2, "threads": 64, "cluster": 2}),
    (2048, {"block_M": 3, "threads": 32, "vectors": 2, "cluster": 4}),
    (1100, {"block_M": 2, "threads": 32, "cluster": 4}),
    (1281, {"block_M": 4, "threads": 32, "cluster": 8}),
    (900, {"block_M": 2, "threads": 32, "cluster": 3}),
)


@pytest.mark.parametrize("columns, sizes", CUT, ids=str)
def test_several_rows_of_a_block(target, columns, sizes):
    """The last block has fewer of them."""
    if target == "cpu" and "cluster" in sizes:
        pytest.skip("a CPU has no clusters")
    kernel = layer_norm_rows(columns, target=target, variant="held", **sizes)
    for M in (1, 5):
        x = normal(M, columns, dtype="bfloat16") + np.array(3, "bfloat16")
        w, b = (normal(columns, dtype="bfloat16", seed=s) for s in (1, 2))
        y = np.full_like(x, np.nan)
        kernel(x, w, b, y)
        within(y, reference(x, w, b), relative=2**-8 + 2**-16, absolute=1e-4)


def test_a_long_row(target):
    """What the kernel chooses itself are clusters that stay, where there are some."""
    x = normal(3, 40000, dtype="bfloat16")
    w, b = (normal(40000, dtype="bfloat16", seed=s) for s in (1, 2))
    y = np.full_like(x, np.nan)
    kernel = layer_norm_rows(40000, target=target)
    kernel(x, w, b, y)
    within(y, reference(x, w, b), relative=2**-8 + 2**-16, absolute=1e-4)
    assert target == "cpu" or "cluster=2" in kernel.ir()


def test_parts_far_from_zero(target):
    """The parts' squares are about their means, which are joined without loss."""
    if target == "cpu":
        pytest.skip("a CPU has no clusters")
    x = normal(3, 1100) + np.float32(1000)
    w, b, y = np.ones(1100, np.float32), np.zeros(1100, np.float32), np.full_like(x, np.nan)
    sizes = {"cluster": 8, "threads": 32}
    for more in ({"variant": "held", "block_M": 2}, {"variant": "kept", "clusters": 2}):
        choice = {**more, **sizes}
        layer_norm_rows(1100, dtype="float32", target=target, **choice)(x, w, b, y)
        within(y, reference(x, w, b), relative=1e-3, absolute=1e-3)
