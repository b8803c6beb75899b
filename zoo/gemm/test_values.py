import ml_dtypes
import numpy as np
import pytest

from zoo.case import normal, within
from zoo.gemm import gemm, scaled, values

BF16 = ml_dtypes.bfloat16
TILES = ({}, {"m": 16, "n": 32, "k": 16})


def run(kernel, target, tiles, *args):
    return kernel.on(target).with_schedule(tiles=tiles)(*args)


@pytest.mark.parametrize("tiles", TILES)
def test_products(target, tiles):
    a, b = normal(67, 41, dtype=BF16, seed=1), normal(41, 35, dtype=BF16, seed=2)
    within(run(values.matmul, target, tiles, a, b), gemm.reference(a, b), 1e-2, 1e-2)
    relu = gemm.reference(a, b, relu=True)
    within(run(values.matmul_relu, target, tiles, a, b), relu, 1e-2, 1e-2)
    many = [np.stack([x, -x, 2 * x]).astype(BF16) for x in (a, b)]
    want = np.stack([gemm.reference(x, y) for x, y in zip(*many, strict=True)])
    within(run(values.matmul_batched, target, tiles, *many), want, 1e-2, 1e-2)


@pytest.mark.parametrize("flip_a, flip_b", [(False, True), (True, False), (True, True)])
def test_transposed_operands(target, flip_a, flip_b):
    a, b = normal(67, 41, dtype=BF16, seed=1), normal(41, 35, dtype=BF16, seed=2)
    stored = [np.ascontiguousarray(x.T) if f else x for x, f in ((a, flip_a), (b, flip_b))]
    got = run(values.matmul_transposed, target, TILES[1], *stored, flip_a, flip_b)
    within(got, gemm.reference(a, b), 1e-2, 1e-2)


@pytest.mark.parametrize("M, N, K, tiles", [(100, 72, 160, {}), (64, 40, 96, {"m": 32, "n": 16})])
def test_scaled(target, M, N, K, tiles):
    rng, group = np.random.default_rng(0), 32
    a, b = (
        rng.integers(-3, 4, shape).astype(ml_dtypes.float8_e4m3fn) for shape in [(M, K), (N, K)]
    )
    groups = -(-K // group)
    a_scale = rng.integers(1, 4, (M, groups)).astype(np.float32)
    b_scale = rng.integers(1, 4, (-(-N // group), groups)).astype(np.float32)
    got = run(values.matmul_scaled, target, tiles, a, b, a_scale, b_scale, group)
    within(got, scaled.reference(a, b, a_scale, b_scale, group), 4e-3)
