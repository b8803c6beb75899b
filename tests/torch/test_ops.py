"""PyTorch's own samples of operators, through their lowerings, against eager."""

import random

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest", reason="PyTorch's samples need it")

from torch.testing._internal.common_methods_invocations import op_db  # noqa: E402
from torch.utils._pytree import tree_flatten, tree_unflatten  # noqa: E402

from tests.torch.common import compare, compiled  # noqa: E402

# operators that lowerings say, by their names in PyTorch's list
NAMES = """
abs acos acosh add addcdiv addcmul addmm all amax amin any argmax argmin asin asinh atan atan2 atanh
baddbmm bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift bitwise_xor bmm
cat cdist ceil clamp clamp_max clamp_min clone constant_pad_nd copysign cos cosh cross cummax cummin
cumprod cumsum diagonal diagonal_scatter dist div dot eq erf exp exp2 expand expm1 fill flip floor
floor_divide fmax fmin fmod full_like gather ge gt hypot index_add index_copy index_fill index_put
index_select isfinite isinf isnan ldexp le log log10 log1p log2 log_softmax logcumsumexp logical_and
logical_not logical_or logical_xor logsumexp lt masked_fill matmul max maximum mean min minimum mm
mul mv nan_to_num native_layer_norm ne neg nn.functional.adaptive_avg_pool2d
nn.functional.adaptive_avg_pool3d nn.functional.adaptive_max_pool1d
nn.functional.adaptive_max_pool2d nn.functional.adaptive_max_pool3d nn.functional.avg_pool1d
nn.functional.avg_pool2d nn.functional.avg_pool3d nn.functional.conv1d nn.functional.conv2d
nn.functional.conv3d nn.functional.conv_transpose1d nn.functional.conv_transpose2d
nn.functional.conv_transpose3d nn.functional.cross_entropy nn.functional.elu nn.functional.embedding
nn.functional.gelu nn.functional.grid_sample nn.functional.group_norm nn.functional.hardtanh
nn.functional.interpolate nn.functional.layer_norm nn.functional.leaky_relu nn.functional.linear
nn.functional.max_pool1d nn.functional.max_pool2d nn.functional.max_pool3d nn.functional.mse_loss
nn.functional.nll_loss nn.functional.pad nn.functional.relu nn.functional.rms_norm
nn.functional.silu nn.functional.softplus nn.functional.unfold norm permute pow prod reciprocal
remainder repeat roll round rsqrt rsub scatter scatter_add select_scatter sgn sigmoid sign signbit
sin sinh slice_scatter softmax split sqrt square squeeze stack sub sum t tan tanh tile topk
transpose tril triu true_divide trunc unbind unfold unsqueeze var var_mean where
""".split()
# equal elements: which of their indices comes first is open
TIES = {("topk", torch.int64), ("topk", torch.bfloat16)}
OPS = [op for op in op_db if op.name in NAMES]


def samples(op, dtype, count):
    found = list(op.sample_inputs("cpu", dtype, requires_grad=False))
    random.Random(op.name).shuffle(found)
    return found[:count]


def as_function(op, sample):
    """The operator as a function of its tensors, and these."""
    flat, spec = tree_flatten((sample.input, sample.args, sample.kwargs))
    places = [i for i, x in enumerate(flat) if isinstance(x, torch.Tensor)]

    def function(*given):
        filled = list(flat)
        for i, x in zip(places, given):
            filled[i] = x
        first, args, kwargs = tree_unflatten(filled, spec)
        return op.op(first, *args, **kwargs)

    return function, [flat[i] for i in places]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", OPS, ids=lambda op: op.full_name)
def test_samples(op):
    """A few at random of each type; most of the time is compilation."""
    for dtype, count in ((torch.float32, 2), (torch.bfloat16, 1), (torch.int64, 1)):
        if dtype not in op.supported_dtypes("cpu") or (op.name, dtype) in TIES:
            continue
        for sample in samples(op, dtype, count):
            function, tensors = as_function(op, sample)
            expected = function(*(t.clone() for t in tensors))
            found = compiled(function, tensors)
            compare(found.call(*tensors), expected, f"{op.full_name} {dtype} {sample}")
            assert not any(r.kernels.refused for r in found.runners)


def test_every_name_has_samples():
    assert set(NAMES) <= {op.name for op in op_db}


GRADIENTS = """
cumsum log_softmax matmul max mean nn.functional.adaptive_avg_pool2d
nn.functional.adaptive_max_pool2d nn.functional.avg_pool2d
nn.functional.conv1d nn.functional.conv2d
nn.functional.conv_transpose2d nn.functional.cross_entropy nn.functional.embedding
nn.functional.gelu nn.functional.group_norm nn.functional.layer_norm nn.functional.max_pool2d
nn.functional.max_pool3d nn.functional.nll_loss nn.functional.pad nn.functional.rms_norm
nn.functional.scaled_dot_product_attention nn.functional.softplus prod softmax var where
""".split()


def with_gradients(function, given):
    """The first result of a function, and its gradients by what is no vector of weights."""
    places = [i for i, x in enumerate(given) if x.is_floating_point() and x.ndim != 1]

    def both(*given):
        def first(*floats):
            filled = list(given)
            for i, x in zip(places, floats):
                filled[i] = x
            return tree_flatten(function(*filled))[0][0]

        out, back = torch.func.vjp(first, *(given[i] for i in places))
        return out, back(out * 2)

    return both


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients(name):
    op = next(op for op in op_db if op.name == name)
    for sample in samples(op, torch.float32, 8):
        if sample.kwargs.get("dropout_p") or sample.input.numel() == 0:
            continue
        function, tensors = as_function(op, sample)
        both = with_gradients(function, tensors)
        expected = both(*tensors)
        found = compiled(both, tensors)
        for a, b in zip(tree_flatten(found.call(*tensors))[0], tree_flatten(expected)[0]):
            bound = 1e-4 * float(b.abs().max().clamp(min=1))
            torch.testing.assert_close(a, b, rtol=1e-3, atol=bound, equal_nan=True)
        return
