"""Clusters that stay, each block with its part of the weights, and draw rows from a counter."""

import numpy as np
import pytest

from zoo.case import normal, within
from zoo.norm import layer_norm, rms_norm

# columns, clusters, blocks of one, threads: whole parts, a tail, a block without any columns
SIZES = (
    (512, {"clusters": 2, "threads": 32}),
    (500, {"clusters": 3, "threads": 32, "cluster": 2}),
    (1100, {"clusters": 2, "threads": 32, "cluster": 4}),
    (600, {"clusters": 2, "threads": 32, "cluster": 8}),
    (1050, {"clusters": 1, "threads": 64, "vectors": 2, "cluster": 3}),
)
ROWS = (1, 2, 7)  # fewer than clusters, and several each


def layer(N):
    """What makes the kernel, its other arguments, and what it should give."""
    w, b = (normal(N, dtype="bfloat16", seed=s) for s in (1, 2))
    return layer_norm.layer_norm_rows, (w, b), lambda x: layer_norm.reference(x, w, b)


def root(N, silu=False):
    w = normal(N, dtype="bfloat16", seed=1)

    def rows(*args, **more):
        return rms_norm.rms_norm_rows(*args, silu=silu, **more)

    return rows, (w,), lambda x: rms_norm.reference(x, w, silu=silu)


FAMILIES = {"layer": layer, "root": root, "silu": lambda N: root(N, silu=True)}


def check(y, want):
    within(y, want, relative=2**-8 + 2**-12, absolute=2e-4)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("columns, sizes", SIZES, ids=str)
def test_rows_are_drawn(target, family, columns, sizes):
    if target == "cpu" and "cluster" in sizes:
        pytest.skip("a CPU has no clusters")
    make, weights, reference = FAMILIES[family](columns)
    kernel = make(columns, target=target, variant="kept", **sizes)
    for M in ROWS:
        x = normal(M, columns, dtype="bfloat16") + np.array(3, "bfloat16")
        y = np.full_like(x, np.nan)
        kernel(x, *weights, y)
        check(y, reference(x))
