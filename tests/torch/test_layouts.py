"""Operands of convolutions, laid out for tensor cores: the same numbers, by the bulk engine."""

from __future__ import annotations

import random

import pytest

torch = pytest.importorskip("torch")

from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode  # noqa: E402
from torch.fx.experimental.proxy_tensor import make_fx  # noqa: E402

import tilewright.torch  # noqa: E402, F401
from tilewright.frameworks.torch import layouts  # noqa: E402
from tilewright.frameworks.torch.backend import Compiled, backend, decompositions  # noqa: E402

pytestmark = pytest.mark.slow


def drawn(seed):
    """A convolution: weights, input, bias, and how."""
    draw = random.Random(seed)
    rank, transposed, groups = (
        draw.choice([1, 2, 2, 3]),
        draw.random() < 0.5,
        draw.choice([1, 1, 2]),
    )
    inner, outer = groups * draw.choice([2, 3, 8, 20]), groups * draw.choice([1, 3, 8])
    taps = [draw.choice([1, 2, 3, 4]) for _ in range(rank)]
    stride = [draw.choice([1, 1, 2, 3]) for _ in range(rank)]
    dilation = [draw.choice([1, 1, 2]) for _ in range(rank)]
    padding = [draw.choice([0, 1]) * (n > 1) for n in taps]
    more = [draw.choice([0, 1]) * (transposed and s > 1) for s in stride]
    sizes = [draw.choice([7, 8]) if rank < 3 else 7 for _ in range(rank)]
    torch.manual_seed(seed)
    sides = (inner, outer // groups) if transposed else (outer, inner // groups)
    bias = torch.randn(outer) if draw.random() < 0.5 else None
    how = (stride, padding, dilation, transposed, more, groups)
    return torch.randn(2, inner, *sizes), torch.randn(*sides, *taps), bias, how


@pytest.mark.parametrize("seed", range(12))
def test_the_same_numbers(seed, monkeypatch):
    """As formulas and, where kernels are refused, by PyTorch's operators."""
    monkeypatch.setattr(layouts, "DEVICES", ("cpu",))
    x, w, bias, how = drawn(seed)

    def run(x, w, bias):
        return torch.relu(torch.convolution(x, w, bias, *how))

    want = run(x.double(), w.double(), None if bias is None else bias.double())
    found = []
    torch._dynamo.reset()
    ours = torch.compile(run, backend=lambda m, given: backend(m, given, found=found))
    with torch.no_grad():
        torch.testing.assert_close(ours(x, w, bias), want.float(), rtol=1e-4, atol=1e-4)
        for runner in found[0].runners:
            monkeypatch.setattr(runner.kernels, "refused", "for this test")
        torch.testing.assert_close(ours(x, w, bias), want.float(), rtol=1e-4, atol=1e-4)


def test_batches_of_any_size(monkeypatch):
    monkeypatch.setattr(layouts, "DEVICES", ("cpu",))
    w = torch.randn(8, 6, 3, 3)
    found = []

    def run(x):
        return torch.conv_transpose2d(x, w, stride=2, padding=1).relu()

    torch._dynamo.reset()
    ours = torch.compile(run, backend=lambda m, given: backend(m, given, found=found))
    for batch in (2, 5, 3):
        x = torch.randn(batch, 8, 9, 9)
        torch._dynamo.mark_dynamic(x, 0)
        with torch.no_grad():
            torch.testing.assert_close(ours(x), run(x), rtol=1e-4, atol=1e-4)
    assert len(found) == 1 and all(r.kernels.made is not None for r in found[0].runners)


@pytest.mark.parametrize("seed", [0, 1, 3, 6])
def test_gradients(seed, monkeypatch):
    monkeypatch.setattr(layouts, "DEVICES", ("cpu",))
    x, w, _, how = drawn(seed)

    def slopes(run, x, w):
        x, w = x.clone().requires_grad_(), w.clone().requires_grad_()
        run(x, w).square().mean().backward()
        return x.grad, w.grad

    def run(x, w):
        return torch.convolution(x, w, None, *how)

    torch._dynamo.reset()
    ours = torch.compile(run, backend="tilewright")
    for found, want in zip(slopes(ours, x, w), slopes(run, x.double(), w.double()), strict=True):
        torch.testing.assert_close(found, want.float(), rtol=1e-4, atol=1e-4)


def compiled(run, *shapes, dtype=torch.bfloat16):
    """The kernels for a GPU, of tensors of these shapes: how each explains itself."""
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        metas = [torch.empty(shape, dtype=dtype, device="meta") for shape in shapes]
        given = [FakeTensor(mode, meta, torch.device("cuda")) for meta in metas]
        graph = make_fx(run, decomposition_table=decompositions())(*given)
    found = {}
    for runner in Compiled(graph).runners:
        made = runner.kernels.any_made
        built = made.kernel_for("cuda -arch=sm_90a").compile(*made.examples())
        found[" ".join(n.target._opname for n in runner.members)] = str(built.explain())
    return found


def test_channels_are_rows():
    found = compiled(
        lambda x, w: torch.conv2d(x, w, padding=1).relu(), (4, 32, 64, 64), (64, 32, 3, 3)
    )
    assert list(found) == ["clone", "weights_in_rows", "convolution_of_rows relu"]
    product = found["convolution_of_rows relu"]
    assert product.count(": bulk_load") == 2 and "early" not in product
    assert "m 32" in product or "n 32" in product or "p 32" in product  # no more than there are


def test_a_producer_writes_the_rows():
    """What is element by element between two convolutions is written as the second reads it."""
    found = compiled(
        lambda x, v, w: torch.conv2d(torch.conv2d(x, v).relu(), w),
        (4, 32, 98, 98), (32, 32, 3, 3), (32, 32, 3, 3),
    )  # fmt: skip
    assert sum("convolution_of_rows" in name for name in found) == 2
    assert any("convolution_of_rows" in n and "clone" in n for n in found), list(found)


def test_depthwise_kernels_do_not_turn_what_they_write():
    def run(x, v, w):
        return torch.conv2d(torch.conv2d(x, v, groups=32), w)

    found = compiled(run, (4, 32, 98, 98), (32, 1, 3, 3), (64, 32, 1, 1))
    assert next(iter(found)) == "convolution" and "taps_in_rows" in found


def test_few_channels_take_the_taps():
    found = compiled(lambda x, w: torch.conv2d(x, w, stride=2), (4, 3, 65, 65), (64, 3, 7, 7))
    assert list(found) == ["taps_in_rows", "weights_in_rows", "convolution_of_rows"]
    assert found["convolution_of_rows"].count(": bulk_load") == 2


def test_phases_of_a_transposed_convolution():
    found = compiled(
        lambda x, w: torch.conv_transpose2d(x, w, stride=2, padding=1).relu(),
        (4, 32, 32, 32), (32, 64, 4, 4),
    )  # fmt: skip
    assert list(found) == ["places_in_rows", "weights_by_phase", "convolution_of_places",
                           "places_together relu"]  # fmt: skip
    assert found["convolution_of_places"].count(": bulk_load") == 2
    assert found["convolution_of_places"].count(": bulk_store") == 1


def test_short_lines_are_one_axis():
    """A tile takes several lines of an image, and phases that read the same are its rows."""
    found = compiled(lambda x, w: torch.conv2d(x, w), (4, 32, 16, 16), (64, 32, 3, 3))
    assert ": bulk_store" in found["convolution_of_places"]
    found = compiled(
        lambda x, w: torch.conv_transpose2d(x, w, stride=2, padding=1, output_padding=1),
        (4, 32, 16, 16), (32, 16, 3, 3),
    )  # fmt: skip
    assert "m 64" in found["convolution_of_places"] or "j 64" in found["convolution_of_places"]


def test_constants_lie_beside_tensors():
    found = compiled(lambda x: torch.minimum(x, torch.tensor(0.5)) * 2, (4, 32))
    assert list(found) == ["minimum mul"]


def test_float32_by_tensor_cores():
    """Where PyTorch lets them: its default for convolutions."""
    assert torch.backends.cudnn.allow_tf32
    found = compiled(
        lambda x, w: torch.conv2d(x, w, padding=1), (4, 32, 96, 96), (64, 32, 3, 3),
        dtype=torch.float32,
    )  # fmt: skip
    assert "wgmma" in found["convolution_of_rows"]
    assert "tfloat32" in found["taps_in_rows"] and "tfloat32" in found["weights_in_rows"]
