"""Functions of PyTorch through the backend's compiler, without Dynamo, and compared with eager."""

import torch
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._pytree import tree_flatten

from tilewright.frameworks.torch.backend import Compiled, decompositions

# float32 sums in another order; narrow types are rounded once, where eager rounds each operation
BOUNDS = {torch.float64: (1e-7, 1e-7), torch.float32: (2e-4, 2e-5), torch.float16: (2e-2, 1e-2),
          torch.bfloat16: (5e-2, 5e-2)}  # fmt: skip


def compiled(fn, args):
    """The graph of `fn` for tensors like these, compiled."""
    pure = torch.func.functionalize(fn, remove="mutations")
    module = make_fx(pure, decomposition_table=decompositions(), tracing_mode="fake")(*args)
    module.graph.eliminate_dead_code()
    return Compiled(module)


def compare(found, expected, what=""):
    """Values within the bound; types, shapes and strides the same."""
    found, expected = tree_flatten(found)[0], tree_flatten(expected)[0]
    assert len(found) == len(expected), what
    for a, b in zip(found, expected):
        if not isinstance(b, torch.Tensor):
            assert a == b, what
            continue
        assert (a.dtype, a.shape, a.device) == (b.dtype, b.shape, b.device), what
        rtol, atol = BOUNDS.get(b.dtype, (0, 0))
        torch.testing.assert_close(
            a, b, rtol=rtol, atol=atol, equal_nan=True, msg=lambda m: f"{what}\n{m}"
        )
        long = [d for d, n in enumerate(b.shape) if n > 1]
        if b.numel() and torch._debug_has_internal_overlap(b) == 0:
            assert [a.stride(d) for d in long] == [b.stride(d) for d in long], (
                what,
                a.stride(),
                b.stride(),
            )
