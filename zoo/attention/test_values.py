import ml_dtypes
import numpy as np
import pytest

from zoo.attention import backward, flash, values
from zoo.case import normal

# causal, heads, heads of keys, queries, keys, tiles
SIZES = [
    (True, 2, 2, 100, 100, {}),
    (True, 4, 2, 33, 65, {"i": 32, "j": 16, "m": 16, "n": 32}),
    (False, 2, 1, 50, 47, {"i": 16, "j": 48, "m": 48, "n": 16}),
]


@pytest.mark.parametrize("causal, heads, kv_heads, seq_q, seq_kv, tiles", SIZES)
def test_attention_and_gradients(target, causal, heads, kv_heads, seq_q, seq_kv, tiles):
    kind = ml_dtypes.bfloat16
    q, do = (normal(1, heads, seq_q, 32, dtype=kind, seed=s) for s in (1, 2))
    k, v = (normal(1, kv_heads, seq_kv, 32, dtype=kind, seed=s) for s in (3, 4))
    backward_ = values.attention_gradients.on(target).with_schedule(tiles=tiles)
    tiles = {name: tiles[name] for name in ("i", "j") if tiles}
    forward = values.attention_with_sums.on(target).with_schedule(tiles=tiles)
    o, sums = map(np.asarray, forward(q, k, v, causal))
    np.testing.assert_allclose(o.astype(np.float64), flash.reference(q, k, v, causal), atol=2e-2)
    found = backward_(q, k, v, o, do, sums, causal)
    for got, want in zip(found, backward.reference(q, k, v, do, causal), strict=True):
        np.testing.assert_allclose(np.asarray(got).astype(np.float64), want, rtol=4e-2, atol=4e-2)


def test_window(target):
    q, k, v = (normal(1, 2, n, 32, dtype=ml_dtypes.bfloat16, seed=n) for n in (50, 70, 70))
    kernel = values.attention_with_sums.on(target).with_schedule(tiles={"i": 16, "j": 32})
    found = np.asarray(kernel(q, k, v, window=9)[0]).astype(np.float64)
    for row in range(50):
        seen = slice(row + 20 - 8, row + 21)
        want = flash.reference(q[:, :, row : row + 1], k[:, :, seen], v[:, :, seen])
        np.testing.assert_allclose(found[:, :, row : row + 1], want, atol=2e-2)


@pytest.mark.parametrize("heads, keys, tiles", [(4, 100, {}), (6, 70, {"splits": 3, "j": 16})])
def test_decode(target, heads, keys, tiles):
    kind = ml_dtypes.bfloat16
    q = normal(2, 3, heads, 32, dtype=kind, seed=1)
    k, v = (normal(2, 3, keys, 32, dtype=kind, seed=s) for s in (2, 3))
    got = np.asarray(values.decode.on(target).with_schedule(tiles=tiles)(q, k, v))
    # of heads of queries that share keys, each is a query of one head of keys
    want = flash.reference(q, k, v, False)
    np.testing.assert_allclose(got.astype(np.float64), want, atol=2e-2)
