"""Kernels as operators of PyTorch: schema, fake tensors, autograd, torch.compile."""

import shutil
import sys

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(
    not hasattr(torch.library, "custom_op"), reason="PyTorch before 2.4"
)

TARGETS = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def scale(target="cpu", out=-1, kind="float32"):
    """B = A * s, for any number of rows."""
    m = T.dynamic("m")

    @T.prim_func
    def scale(A: T.Tensor((m, 8), kind), s: T.float32, B: T.Tensor((m, 8), kind)):
        with T.Kernel(T.ceildiv(m, 4), threads=32) as bx:
            for i, j in T.Parallel(4, 8):
                B[bx * 4 + i, j] = A[bx * 4 + i, j] * s

    return tw.compile(scale, target=target, out_idx=out)


def halves(target="cpu"):
    """Two outputs whose sizes follow from the input's."""
    n = T.dynamic("n", multiple_of=2)

    @T.prim_func
    def halves(
        A: T.Tensor((n,), "float32"),
        L: T.Tensor((n // 2,), "float32"),
        H: T.Tensor((n // 2 + 1,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                L[i] = A[i]
                H[i] = A[n // 2 + i]

    return tw.compile(halves, target=target, out_idx=[1, 2])


@tw.jit
def rms_norm(A, blk_m, eps=1e-6):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, blk_m), threads=128) as bx:
        x = T.alloc_fragment((blk_m, N), "float32")
        sq = T.alloc_fragment((blk_m, N), "float32")
        s = T.alloc_fragment((blk_m,), "float32")
        T.copy(A[bx * blk_m, 0], x)
        for i, j in T.Parallel(blk_m, N):
            sq[i, j] = x[i, j] * x[i, j]
        T.reduce_sum(sq, s, dim=1)
        for i, j in T.Parallel(blk_m, N):
            x[i, j] = x[i, j] * T.rsqrt(s[i] / N + eps)
        T.copy(x, B[bx * blk_m, 0])
    return B


@tw.jit
def shifted(A, by: T.float32, blk=4):
    n = T.dynamic("n")
    A: T.Tensor((n, 8), "float32")
    B = T.empty((n, 8), "float32")
    with T.Kernel(T.ceildiv(n, blk), threads=32) as bx:
        for i, j in T.Parallel(blk, 8):
            B[bx * blk + i, j] = A[bx * blk + i, j] + by
    return B


def setup_scale(ctx, inputs, output):
    ctx.s = inputs[1]


def scale_op(name, target="cpu"):
    """An operator whose gradient is the operator."""

    def backward(ctx, grad):
        return op(grad.contiguous(), ctx.s), None

    op = scale(target).as_torch_op(name, backward=backward, setup_context=setup_scale)
    return op


def counted(function, **options):
    """`function` compiled, and how often it was."""
    from torch._dynamo.testing import CompileCounterWithBackend

    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(function, backend=counter, fullgraph=True, **options), counter


@pytest.mark.parametrize("target", TARGETS)
def test_forward_and_backward(target):
    op = scale_op("tw_tests::forward", target)
    x = torch.randn(5, 8, device=target, requires_grad=True)
    y = op(x, 3.0)
    assert y.device == x.device and y.grad_fn is not None
    torch.testing.assert_close(y, x * 3)
    (y * y).sum().backward()
    torch.testing.assert_close(x.grad, 18 * x.detach())
    torch.testing.assert_close(torch.ops.tw_tests.forward(x.detach(), 2.0), x.detach() * 2)


@pytest.mark.parametrize("target", TARGETS)
def test_opcheck(target):
    x = torch.randn(5, 8, device=target)
    grad = x.clone().requires_grad_()
    torch.library.opcheck(scale_op("tw_tests::checked", target), (grad, 3.0))
    inplace = scale(target, out=None).as_torch_op("tw_tests::checked_inplace")
    torch.library.opcheck(inplace, (x, 3.0, torch.zeros_like(x)))
    torch.library.opcheck(halves(target).as_torch_op("tw_tests::halves"), (x[0].clone(),))


def test_opcheck_of_direct_kernels():
    x = torch.randn(6, 16)
    torch.library.opcheck(rms_norm.as_torch_op("tw_tests::rms", blk_m=4), (x,))
    torch.library.opcheck(shifted.as_torch_op("tw_tests::shift"), (x[:, :8].clone(), 2.0))


@pytest.mark.parametrize("target", TARGETS)
def test_one_graph_for_all_sizes(target):
    op = scale_op("tw_tests::sized", target)
    call, counter = counted(lambda x, s: op(x + 1, s) * 2, dynamic=True)
    seen = []
    for m in (3, 5, 9, 64):
        x = torch.randn(m, 8, device=target)
        torch.testing.assert_close(call(x, 2.0), (x + 1) * 4)
        seen.append(counter.frame_count)
    assert seen == seen[:1] * 4
    x = torch.randn(7, 8, device=target, requires_grad=True)
    call(x, 2.0).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 4))


def test_output_sizes_are_expressions():
    op = halves().as_torch_op("tw_tests::open_halves")

    def use(x):
        low, high = op(x)
        return low.new_zeros(low.shape[0] + high.shape[0]), low, high[:-1]

    call, counter = counted(use, dynamic=True)
    seen = []
    for n in (8, 10, 32):
        x = torch.arange(float(n))
        whole, low, high = call(x)
        assert whole.shape == (n + 1,)
        torch.testing.assert_close(torch.cat([low, high]), x)
        seen.append(counter.frame_count)
    assert seen == seen[:1] * 3


def test_sizes_of_direct_kernels():
    """T.dynamic sizes stay open; T.const sizes are part of what is compiled for."""
    shift = shifted.on("cpu").as_torch_op("tw_tests::open_shift", blk=2)
    call, counter = counted(lambda x: shift(x, 1.0), dynamic=True)
    seen = []
    for n in (3, 5, 9):
        x = torch.randn(n, 8)
        torch.testing.assert_close(call(x), x + 1)
        seen.append(counter.frame_count)
    assert seen == seen[:1] * 3
    rms = rms_norm.on("cpu").as_torch_op("tw_tests::open_rms", blk_m=4)
    call, counter = counted(lambda x: rms(x), dynamic=True)
    for m in (3, 5):
        x = torch.randn(m, 16)
        want = x / (x.square().mean(1, keepdim=True) + 1e-6).sqrt()
        torch.testing.assert_close(call(x), want)


def test_of_a_factory():
    @tw.jit(out_idx=[-1], target="cpu")
    def factory(N):
        @T.prim_func
        def twice(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, 32), threads=32) as bx:
                for i in T.Parallel(32):
                    B[bx * 32 + i] = A[bx * 32 + i] * 2

        return twice

    op = factory.as_torch_op("tw_tests::twice", N=8)
    assert op(torch.ones(8)).tolist() == [2.0] * 8
    assert factory(8).as_torch_op("tw_tests::again")(torch.ones(8)).tolist() == [2.0] * 8


@pytest.mark.parametrize("target", TARGETS)
def test_written_arguments(target):
    op = scale(target, out=None).as_torch_op("tw_tests::inplace")
    assert "Tensor(a2!) B" in str(op._opoverload._schema)
    x, y = torch.randn(5, 8, device=target), torch.zeros(5, 8, device=target)
    before = y._version
    assert op(x, 2.0, y) is None
    torch.testing.assert_close(y, x * 2)
    assert y._version > before

    def use(x):
        y = torch.zeros_like(x)
        op(x, 3.0, y)
        return y + 1

    call, _ = counted(use)
    torch.testing.assert_close(call(x), x * 3 + 1)


def test_bfloat16_and_packed_outputs():
    op = scale(kind="bfloat16").as_torch_op("tw_tests::bf16")
    x = torch.randn(5, 8).bfloat16()
    call, _ = counted(lambda x: op(x, 2.0))
    torch.testing.assert_close(call(x), x * 2)

    @T.prim_func
    def narrow(A: T.Tensor((4, 8), "int8"), B: T.Tensor((4, 8), "int4")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(4, 8):
                B[i, j] = A[i, j]

    op = tw.compile(narrow, out_idx=-1, target="cpu").as_torch_op("tw_tests::narrow")
    x = torch.arange(32, dtype=torch.int8).reshape(4, 8) % 8
    call, _ = counted(op)
    assert call(x).tolist() == op(x).tolist() == [[0x10, 0x32, 0x54, 0x76]] * 4


def test_scalars_and_optional_arguments():
    @T.prim_func
    def pick(
        A: T.Tensor((8,), "float32"),
        bias: T.Tensor((8,), "float32"),
        n: T.int32,
        flag: T.bool,
        B: T.Tensor((8,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = T.if_then_else(flag, A[i] * n, A[i])

    op = tw.compile(pick, out_idx=-1, target="cpu").as_torch_op("tw_tests::pick")
    schema = str(op._opoverload._schema)
    assert "Tensor? bias" in schema and "SymInt n" in schema and "bool flag" in schema
    assert op(torch.ones(8), None, 3, True).tolist() == [3.0] * 8
    assert op(torch.ones(8), torch.ones(8), 3, False).tolist() == [1.0] * 8
    call, _ = counted(lambda x: op(x, None, x.shape[0], True), dynamic=True)
    assert call(torch.ones(8)).tolist() == [8.0] * 8


def test_no_tensor_arguments():
    @T.prim_func
    def count(n: T.int32, B: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = i + n

    op = tw.compile(count, out_idx=-1, target="cpu").as_torch_op("tw_tests::count")
    call, _ = counted(lambda: op(3) + 1)
    assert np.array_equal(np.asarray(call()), np.arange(8) + 4)


def test_wrong_arguments_are_named():
    op = scale().as_torch_op("tw_tests::wrong")
    for bad, message in (
        (torch.ones(5, 9), "A has the wrong size in dimension 1"),
        (torch.ones(8), "A must have 2 dimensions"),
        (torch.ones(5, 8, dtype=torch.float64), "A has the wrong dtype"),
        (torch.ones(8, 5).T, "A must be contiguous"),
    ):
        with pytest.raises(tw.LaunchError, match=message):
            op(bad, 1.0)


def test_no_gradient_without_a_formula():
    op = scale().as_torch_op("tw_tests::no_formula")
    y = op(torch.ones(5, 8, requires_grad=True), 2.0)
    with pytest.raises(RuntimeError, match="no_formula"):
        y.sum().backward()


def test_names():
    op = scale().as_torch_op()
    assert torch.ops.tilewright.scale(torch.ones(1, 8), 2.0).sum() == 16
    again = scale().as_torch_op()  # as a notebook's cell that runs again
    assert again(torch.ones(1, 8), 3.0).sum() == 24 and op is not again
    with pytest.raises(tw.CompileError, match="no name for an operator"):
        scale().as_torch_op("my lib::scale")
    with pytest.raises(tw.CompileError, match="no name for an operator"):
        scale().as_torch_op("a::b::c")


def test_sizes_that_a_text_refuses():
    @tw.jit(target="cpu")
    def small(A):
        N = T.const("N")
        A: T.Tensor((N,), "float32")
        if N > 16:
            raise ValueError("too large")
        B = T.empty((N,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(N):
                B[i] = A[i] + 1
        return B

    with pytest.raises(tw.CompileError, match="cannot be read with sizes of 128") as info:
        small.as_torch_op("tw_tests::small")
    assert "N=…" in info.value.diagnostic.fix
    op = small.as_torch_op("tw_tests::small", N=4)
    for n in (4, 9):  # not only for that size
        assert op(torch.ones(n)).tolist() == [2.0] * n


def test_formulas_that_cannot_be():
    with pytest.raises(tw.CompileError, match="writes B in place") as info:
        scale(out=None).as_torch_op("tw_tests::no", backward=lambda ctx, grad: grad)
    assert "out_idx" in info.value.diagnostic.fix
    with pytest.raises(tw.CompileError, match="no backward="):
        scale().as_torch_op("tw_tests::no", setup_context=setup_scale)


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform == "win32" or not (shutil.which("g++") or shutil.which("clang++")),
    reason="inductor needs a C++ compiler",
)
@pytest.mark.parametrize("target", TARGETS)
def test_inductor(target):
    op = scale_op("tw_tests::inductor", target)
    torch._dynamo.reset()
    call = torch.compile(lambda x: op(torch.relu(x), 2.0) + 1, dynamic=True, fullgraph=True)
    for m in (4, 6):
        x = torch.randn(m, 8, device=target)
        torch.testing.assert_close(call(x), torch.relu(x) * 2 + 1)


def test_a_size_that_is_solved_for():
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n * 4,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(n):
                B[i] = A[4 * i]

    op = tw.compile(main, out_idx=-1, target="cpu").as_torch_op("tw_tests::quarter")
    for size in (8, 12, 20):
        x = torch.arange(float(size))
        assert op(x).tolist() == x[::4].tolist()
        assert op(x.to("meta")).shape == (size // 4,)
