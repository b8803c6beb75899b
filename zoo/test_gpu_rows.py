"""The zoo's row kernels on a GPU, on shapes that divide nothing: against float64, twice alike."""

from __future__ import annotations

import numpy as np
import pytest

from zoo.case import within
from zoo.elementwise import swiglu
from zoo.loss import cross_entropy
from zoo.norm import layer_norm, rms_norm
from zoo.softmax import softmax
from zoo.transpose import transpose

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

ROUNDED = 2**-8 + 2**-13
# a row of one element, several rows of a block, one row of a block, clusters of 2 to 16, pieces;
# LayerNorm takes two rows at once of 20000, 60000, 120000 and 131072
SHAPES = ((1, 1), (37, 100), (16, 256), (9, 5000), (5, 7168), (3, 20000), (3, 50257), (3, 60000),
          (5, 120000), (2, 131072), (2, 200000), (2, 300000), (2, 600000))  # fmt: skip
PIECES = {"variant": "pieces", "block_M": 1, "block_N": 2048, "threads": 256}
CHOICES = [(shape, {}) for shape in SHAPES] + [
    ((5, 10000), PIECES),
    ((5, 10000), {**PIECES, "staged": True}),
    ((5, 4096), {"cluster": 2}),
    ((5, 10000), {"block_M": 2, "cluster": 4}),
    ((7, 96), {"block_M": 3, "block_N": 128, "threads": 128}),
]


def normal(*shape: int, seed: int = 0):
    maker = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=maker, device="cuda").bfloat16()


def run(kernel, *inputs, shape, dtype=torch.bfloat16) -> np.ndarray:
    made = []
    for _ in range(2):
        y = torch.full(shape, float("nan"), device="cuda", dtype=dtype)
        kernel(*inputs, y)
        made.append(y)
    assert torch.equal(made[0].view(torch.uint8), made[1].view(torch.uint8))
    return made[0].double().cpu().numpy()


def wide(*tensors):
    return [t.double().cpu().numpy() for t in tensors]


@pytest.fixture(params=CHOICES, ids=str)
def sized(request):
    return request.param


def test_softmax(sized):
    (m, n), choice = sized
    x = normal(m, n) * 3
    y = run(softmax.softmax_rows(n, target="cuda", **choice), x, shape=(m, n))
    within(y, softmax.reference(*wide(x)), ROUNDED, 1e-36)


@pytest.mark.parametrize("silu", [False, True])
def test_rms_norm(sized, silu):
    (m, n), choice = sized
    x, w = normal(m, n), normal(n, seed=1)
    y = run(rms_norm.rms_norm_rows(n, target="cuda", silu=silu, **choice), x, w, shape=(m, n))
    within(y, rms_norm.reference(*wide(x, w), silu=silu), ROUNDED, 1e-30)


def test_layer_norm(sized):
    (m, n), choice = sized
    x, w, b = normal(m, n) + 1, normal(n, seed=1), normal(n, seed=2)
    y = run(layer_norm.layer_norm_rows(n, target="cuda", **choice), x, w, b, shape=(m, n))
    within(y, layer_norm.reference(*wide(x, w, b)), ROUNDED, 1e-4)


@pytest.mark.parametrize("labels", ["int64", "int32"])
def test_cross_entropy(sized, labels):
    (m, n), choice = sized
    if set(choice) - {"block_M", "block_N", "threads"} or n > 1024:
        choice = {"block_M": choice.get("block_M", 1)} if choice else {}
    x = normal(m, n) * 3
    label = torch.randint(n, (m,), device="cuda", dtype=getattr(torch, labels))
    label[m // 2] = -100
    kernel = cross_entropy.cross_entropy_rows(n, labels=labels, target="cuda", **choice)
    y = run(kernel, x, label, shape=(m,), dtype=torch.float32)
    within(y, cross_entropy.reference(*wide(x), label.cpu().numpy()), 1e-5, 1e-4)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_swiglu(shape):
    a, b = normal(*shape) * 3, normal(*shape, seed=1)
    y = run(swiglu.swiglu_rows(shape[1], target="cuda"), a, b, shape=shape)
    within(y, swiglu.reference(*wide(a, b)), ROUNDED, 1e-30)


@pytest.mark.parametrize("through", ["shared", "registers"])
@pytest.mark.parametrize("shape", [*SHAPES[:6], (72, 100), (64, 1024)], ids=str)
def test_transpose(shape, through):
    x = normal(*shape)
    for aligned in {False, shape[0] % 8 == 0}:
        kernel = transpose.transpose_rows(shape[1], aligned, target="cuda", through=through)
        np.testing.assert_array_equal(run(kernel, x, shape=shape[::-1]), *wide(x.T))


@pytest.mark.parametrize("shape", [(72, 40), (264, 256), (136, 1024), (264, 1160), (200, 4096),
                                   (264, 40000), (136, 66048)], ids=str)  # fmt: skip
def test_transpose_of_aligned_rows(shape):
    """Whole vectors either way, by threads, from one front and from several."""
    x = normal(*shape)
    kernel = transpose.transpose_rows(shape[1], aligned=True, target="cuda")
    np.testing.assert_array_equal(run(kernel, x, shape=shape[::-1]), *wide(x.T))
