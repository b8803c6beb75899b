"""Whole models: forward, backward and three steps of training as eager has them."""

import copy

import pytest

torch = pytest.importorskip("torch")

import tilewright.torch  # noqa: E402, F401
from tests.torch.common import compare  # noqa: E402
from tests.torch.models import MODELS, Llama  # noqa: E402


@pytest.fixture(autouse=True)
def fresh():
    torch.manual_seed(0)
    torch._dynamo.reset()


def loss_of(out):
    return out.float().pow(2).mean()


@pytest.mark.parametrize("name", MODELS)
def test_training(name):
    model, inputs = MODELS[name]()
    other = copy.deepcopy(model)
    compiled = torch.compile(model, backend="tilewright", fullgraph=True)
    sides = [(compiled, model), (other, other)]
    makers = [torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for _, m in sides]
    for _ in range(3):
        losses = []
        for (call, m), optimizer in zip(sides, makers):
            optimizer.zero_grad()
            loss = loss_of(call(*inputs))
            loss.backward()
            losses.append(loss.detach())
        for p, q in zip(model.parameters(), other.parameters()):
            compare(p.grad, q.grad, name)
        for optimizer in makers:
            optimizer.step()
        compare(*losses, name)
    compare([*model.buffers()], [*other.buffers()], name)


@pytest.mark.parametrize("name", MODELS)
def test_inference_in_bfloat16(name):
    """No further from float32 than eager is."""
    model, inputs = MODELS[name]()
    narrow = copy.deepcopy(model).eval().bfloat16()
    given = [x.bfloat16() if x.is_floating_point() else x for x in inputs]
    with torch.no_grad():
        exact = model.eval()(*inputs)
        theirs = (narrow(*given).float() - exact).abs()
        ours = (torch.compile(narrow, backend="tilewright")(*given).float() - exact).abs()
    assert ours.mean() <= 1.2 * theirs.mean() and ours.max() <= 2 * theirs.max()


def test_a_cache_of_keys():
    """What is written in place, a token at a time."""
    model = Llama().eval()
    caches = [[torch.zeros(1, 2, 16, 8) for _ in range(2)] for _ in range(2)]
    compiled = torch.compile(model, backend="tilewright")
    with torch.no_grad():
        for start, n in ((0, 4), (4, 1), (5, 1)):
            x = torch.randn(1, n, 32)
            found = compiled(x, caches[0], start)
            compare(found, model(x, caches[1], start))
    compare(caches[0], caches[1])
