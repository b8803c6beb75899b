"""Tiles of products on the CPU: even parts of what there is."""

import random

import ml_dtypes
import numpy as np
import pytest

from tilewright.lang import cpu_sizes
from zoo.gemm.values import matmul


def tiles(m, n, k, cores, monkeypatch):
    monkeypatch.setattr(cpu_sizes.os, "cpu_count", lambda: cores)
    return cpu_sizes._sizes(m, n, k)


def test_small_products_are_one_block(monkeypatch):
    assert tiles(51, 212, 96, 16, monkeypatch) == (51, 212, 96)
    assert tiles(51, 224, 96, 16, monkeypatch) == (51, 14, 96)  # a million products and more


def test_few_rows_are_not_split(monkeypatch):
    assert tiles(50, 2005, 157, 2, monkeypatch) == (50, 502, 157)
    assert tiles(33, 348, 1080, 2, monkeypatch) == (33, 174, 540)


def test_all_cores_have_as_many_blocks(monkeypatch):
    rng = random.Random(0)
    for cores in (2, 4, 16):
        m, n = rng.randrange(300, 2000), rng.randrange(300, 2000)
        high, wide, _ = tiles(m, n, 1000, cores, monkeypatch)
        blocks = -(-m // high) * -(-n // wide)
        assert blocks % cores == 0 or blocks >= cpu_sizes.TURNS * cores


def test_divisors_are_taken_where_one_is_near(monkeypatch):
    assert tiles(1000, 1000, 1000, 2, monkeypatch) == (250, 500, 250)


@pytest.mark.parametrize("seed", range(6))
def test_products_of_any_size(seed):
    rng = random.Random(seed)
    m, n, k = (round(300 ** rng.random()) for _ in range(3))
    draw = np.random.default_rng(seed).integers
    a, b = (draw(-3, 4, s).astype(ml_dtypes.bfloat16) for s in ((m, k), (k, n)))
    want = (a.astype(np.float32) @ b.astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert (np.asarray(matmul.on("cpu")(a, b)) == want).all()
