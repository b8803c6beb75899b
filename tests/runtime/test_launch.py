"""A wrong argument is refused before anything runs, with the parameter's name."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads


@tw.jit(target="interp")
def double(M, N, dtype="float32"):
    @T.prim_func
    def main(X: T.Tensor((M, N), dtype), Y: T.Tensor((M, N), dtype)):
        with T.Kernel(M, threads=32) as bx:
            for j in T.Parallel(N):
                Y[bx, j] = X[bx, j] * 2

    return main


def arrays(M=4, N=8, dtype=np.float32):
    return np.ones((M, N), dtype), np.zeros((M, N), dtype)


def refused(call, *words):
    with pytest.raises(tw.LaunchError) as info:
        call()
    said = info.value.diagnostic  # the rendered text shows the caller's line, and so the words
    text = "\n".join([said.message, f"expected: {said.expected}", said.got, f"fix: {said.fix}"])
    for word in words:
        assert word in text, text
    return text


def test_right_arguments_run():
    x, y = arrays()
    assert double(4, 8)(x, y) is None
    assert (y == 2).all()


def test_count():
    x, _ = arrays()
    refused(lambda: double(4, 8)(x), "takes 2 arguments, got 1", "(X, Y)")


def test_dtype():
    x, y = arrays()
    refused(lambda: double(4, 8)(x.astype(np.float64), y), "X", "float32", "float64")


def test_rank():
    x, y = arrays()
    refused(lambda: double(4, 8)(x[0].copy(), y), "X must have 2 dimensions", "(8,)")


def test_static_size():
    x, y = arrays()
    refused(lambda: double(4, 8)(x[:3].copy(), y), "X", "dimension 0", "(4, 8)", "(3, 8)")


def test_strides():
    x, y = arrays(8, 4)
    refused(lambda: double(4, 8)(x.T, y.T), "X must be contiguous", "fix:")


def test_read_only_output():
    x, y = arrays()
    y.flags.writeable = False
    refused(lambda: double(4, 8)(x, y), "Y is written", "read-only")


def test_overlap():
    big = np.zeros((8, 8), np.float32)
    refused(lambda: double(4, 8)(big[:4], big[2:6]), "Y is written and overlaps X")


def test_interleaved_rows_do_not_overlap():
    @T.prim_func
    def main(
        X: T.StridedTensor((4, 8), (16, 1), "float32"),
        Y: T.StridedTensor((4, 8), (16, 1), "float32"),
    ):
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] + 1

    big = np.zeros((4, 16), np.float32)
    tw.compile(main, target="interp")(big[:, :8], big[:, 8:])
    assert (big[:, :8] == 0).all() and (big[:, 8:] == 1).all()
    refused(
        lambda: tw.compile(main, target="interp")(*arrays()),
        "X has the wrong stride in dimension 0",
    )


@pytest.mark.parametrize("target", ["cpu", "interp", *on_threads("threads-sm_90a"), *on_gpu()])
def test_a_stride_known_at_launch(target):
    n, s = T.dynamic("n"), T.dynamic("s", multiple_of=2)

    @T.prim_func
    def main(X: T.StridedTensor((n, 6), (s, 1), "float32"), Y: T.Tensor((n, 6), "float32")):
        with T.Kernel(T.ceildiv(n, 4), threads=32) as bx:
            x = T.alloc_shared((4, 6), "float32")
            T.copy(X[bx * 4, 0], x)
            T.copy(x, Y[bx * 4, 0])

    kernel = tw.compile(main, target=target)
    big = np.arange(11 * 18, dtype=np.float32).reshape(11, 18)
    for rows in (11, 1):
        y = np.zeros((rows, 6), np.float32)
        kernel(big[:rows, 3:9], y)
        np.testing.assert_array_equal(y, big[:rows, 3:9])
    refused(
        lambda: kernel(np.zeros((4, 9), np.float32)[:, :6], np.zeros((4, 6), np.float32)),
        "stride 0 of X breaks the contract of s",
    )


@pytest.mark.parametrize("target", ["cpu", "interp", *on_threads("threads-sm_90a"), *on_gpu()])
def test_the_stride_of_one_row_is_free(target):
    m, n = T.dynamic("m"), T.dynamic("n")

    @T.prim_func
    def main(X: T.StridedTensor((m, n), (n, 1), "float32"), Y: T.Tensor((m, n), "float32")):
        with T.Kernel(m, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] + 1

    x, y = np.zeros((1, 16), np.float32)[:, :8], np.zeros((1, 8), np.float32)
    tw.compile(main, target=target)(x, y)
    assert (y == 1).all()


def test_not_an_array():
    x, _ = arrays()
    refused(lambda: double(4, 8)(x, [1, 2]), "Y must be an array", "list")


def test_named_arguments():
    x, y = arrays()
    double(4, 8)(x, Y=y)
    assert (y == 2).all()
    refused(lambda: double(4, 8)(x, Z=y), "no free parameter named 'Z'")


def make_dynamic(**contract):
    m = T.dynamic("m", **contract)

    @T.prim_func
    def main(X: T.Tensor((m, 8), "float32"), s: T.float32, Y: T.Tensor((m, 8), "float32")):
        with T.Kernel(T.ceildiv(m, 4), threads=32) as bx:
            for i, j in T.Parallel(4, 8):
                Y[bx * 4 + i, j] = X[bx * 4 + i, j] * s

    return tw.compile(main, target="interp", out_idx=[-1])


@pytest.mark.parametrize("m", [1, 3, 4, 9])
def test_dynamic_sizes(m):
    x = np.ones((m, 8), np.float32)
    y = make_dynamic()(x, 3.0)
    assert y.shape == (m, 8) and (y == 3).all()


def test_sizes_that_follow_from_others():
    m = T.dynamic("m")

    @T.prim_func
    def main(X: T.Tensor((m,), "float32"), Y: T.Tensor((m * 2 + 1,), "float32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = X[i]

    kernel = tw.compile(main, target="interp", out_idx=[-1])
    assert kernel(np.ones(4, np.float32)).shape == (9,)


def test_contract():
    kernel = make_dynamic(min=2, max=16, multiple_of=2)
    ok = np.ones((4, 8), np.float32)
    assert (kernel(ok, 1.0) == 1).all()
    refused(lambda: kernel(np.ones((0, 8), np.float32), 1.0), "contract of m", "at least 2")
    refused(lambda: kernel(np.ones((18, 8), np.float32), 1.0), "at most 16")
    refused(lambda: kernel(np.ones((3, 8), np.float32), 1.0), "a multiple of 2")


def test_scalar_types():
    kernel = make_dynamic()
    x = np.ones((4, 8), np.float32)
    assert (kernel(x, 2) == 2).all()
    refused(lambda: kernel(x, "2"), "s must be a number of type float32")


def test_out_idx_allocates_and_returns():
    x, _ = arrays()

    @tw.jit(out_idx=[-1], target="interp")
    def factory():
        return double.prim_func(4, 8)

    assert (factory()(x) == 2).all()


def test_out_idx_out_of_range():
    with pytest.raises(tw.LaunchError, match="out_idx 5"):
        tw.compile(double.prim_func(4, 8), out_idx=[5], target="interp")


def test_packed_4_bit_tensors_are_bytes_low_nibble_first():
    @T.prim_func
    def main(X: T.Tensor((2, 8), "int4"), Y: T.Tensor((2, 8), "int8")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(2, 8):
                Y[i, j] = X[i, j]

    values = np.arange(-8, 8).reshape(2, 8)
    low, high = values[:, ::2] & 15, values[:, 1::2] & 15
    y = np.zeros((2, 8), np.int8)
    tw.compile(main, target="interp")((low | high << 4).astype(np.uint8), y)
    np.testing.assert_array_equal(y, values)
    y[:] = 0
    tw.compile(main, target="interp")(values.astype(ml_dtypes.int4), y)
    np.testing.assert_array_equal(y, values)


def test_packed_output_is_packed_back():
    @T.prim_func
    def main(X: T.Tensor((8,), "int8"), Y: T.Tensor((8,), "uint4")):
        with T.Kernel(1, threads=32):
            for j in T.Parallel(8):
                Y[j] = X[j]

    y = tw.compile(main, out_idx=[-1], target="interp")(np.arange(8, dtype=np.int8))
    np.testing.assert_array_equal(y, [0x10, 0x32, 0x54, 0x76])


def test_torch_tensors():
    torch = pytest.importorskip("torch")
    x = torch.ones(4, 8, dtype=torch.bfloat16)

    @tw.jit(out_idx=[-1], target="interp")
    def factory():
        return double.prim_func(4, 8, "bfloat16")

    y = factory()(x)
    assert isinstance(y, torch.Tensor) and y.dtype == torch.bfloat16 and (y == 2).all()
