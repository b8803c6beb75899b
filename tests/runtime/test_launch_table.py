"""Every launch check, on every kind of argument: refused at the first call, and refused again when
calls with the right arguments have gone before.

One table; the rows run with NumPy arrays and PyTorch tensors on the CPU, with NumPy arrays in the
interpreter, and with tensors on a GPU (`-m gpu`).
"""

import importlib.util

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


def plain(target):
    @T.prim_func
    def plain(X: T.Tensor((4, 8), "float32"), Y: T.Tensor((4, 8), "float32"), s: T.int32):
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] * s

    return tw.compile(plain, target=target)


def sized(target):
    m = T.dynamic("m", min=2, max=16, multiple_of=2)

    @T.prim_func
    def sized(X: T.Tensor((m, 8), "float32"), Y: T.Tensor((m, 8), "float32"), s: T.int32):
        with T.Kernel(m, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] * s

    return tw.compile(sized, target=target)


def strided(target):
    a, b = T.dynamic("a"), T.dynamic("b")

    @T.prim_func
    def strided(
        X: T.StridedTensor((4, 8), (16, 1), "float32"),
        Y: T.StridedTensor((4, 8), (a, b), "float32"),
        s: T.int32,
    ):
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] * s

    return tw.compile(strided, target=target)


class Numpy:
    name = "numpy"

    def zeros(self, *shape, dtype="float32"):
        return np.zeros(shape, dtype)

    def broadcast(self, x, shape):
        return np.lib.stride_tricks.as_strided(x, shape, (0, x.itemsize))

    def off_by_one_byte(self, shape):
        raw = np.zeros(4 * int(np.prod(shape)) + 1, np.uint8)
        return raw[1:].view(np.float32).reshape(shape)

    def sum(self, x):
        return float(x.sum())

    def ones_(self, x):
        x[...] = 1


class Torch:
    name = "torch"

    def __init__(self, device):
        self.device = device

    def zeros(self, *shape, dtype="float32"):
        import torch

        return torch.zeros(shape, dtype=getattr(torch, dtype), device=self.device)

    def broadcast(self, x, shape):
        return x.expand(shape)

    def off_by_one_byte(self, shape):
        import torch

        count = int(np.prod(shape))
        if self.device == "cpu":
            raw = bytearray(4 * count + 1)
            return torch.frombuffer(raw, dtype=torch.float32, count=count, offset=1).view(shape)
        return None  # PyTorch makes none on a GPU

    def sum(self, x):
        return float(x.sum())

    def ones_(self, x):
        x.fill_(1)


ROADS = {
    "interp-numpy": ("interp", Numpy()),
    "cpu-numpy": ("cpu", Numpy()),
    "cpu-torch": ("cpu", Torch("cpu")),
    "cuda-torch": ("cuda", Torch("cuda")),
}


@pytest.fixture(
    params=[pytest.param(n, marks=pytest.mark.gpu if "cuda" in n else ()) for n in ROADS]
)
def road(request):
    target, library = ROADS[request.param]
    if library.name == "torch" and not importlib.util.find_spec("torch"):
        pytest.skip("no torch")
    return target, library


def right(make, t):
    """Arguments that fit."""
    if make is strided:
        return t.zeros(4, 16)[:, :8], t.zeros(8, 8)[::2], 3
    return t.zeros(4, 8), t.zeros(4, 8), 3


def overlapping(t):
    big = t.zeros(8, 8)
    return big[:4], big[2:6], 3


# make, arguments, what the message says, what was expected, what came
TABLE = {
    "too few": (plain, lambda t: (t.zeros(4, 8),), "takes 3 arguments, got 1", "(X, Y, s)", ""),
    "too many": (
        plain, lambda t: (*right(plain, t), 1), "takes 3 arguments, got 4", "(X, Y, s)", "",
    ),
    "dtype": (
        plain, lambda t: (t.zeros(4, 8, dtype="float64"), t.zeros(4, 8), 3),
        "X has the wrong dtype", "float32", "float64",
    ),
    "rank": (
        plain, lambda t: (t.zeros(32), t.zeros(4, 8), 3),
        "X must have 2 dimensions", "(4, 8)", "(32,)",
    ),
    "no dimensions": (
        plain, lambda t: (t.zeros(), t.zeros(4, 8), 3),
        "X must have 2 dimensions", "(4, 8)", "()",
    ),
    "static size": (
        plain, lambda t: (t.zeros(4, 8), t.zeros(4, 9), 3),
        "Y has the wrong size in dimension 1", "(4, 8)", "(4, 9)",
    ),
    "empty": (
        plain, lambda t: (t.zeros(0, 8), t.zeros(4, 8), 3),
        "X has the wrong size in dimension 0", "(4, 8)", "(0, 8)",
    ),
    "sizes that differ": (
        sized, lambda t: (t.zeros(4, 8), t.zeros(6, 8), 3),
        "dimension 0 of Y and dimension 0 of X are both m but differ", "m = 4", "m = 6",
    ),
    "minimum": (
        sized, lambda t: (t.zeros(0, 8), t.zeros(0, 8), 3),
        "X breaks the contract of m", "at least 2", "0",
    ),
    "maximum": (
        sized, lambda t: (t.zeros(18, 8), t.zeros(18, 8), 3),
        "X breaks the contract of m", "at most 16", "18",
    ),
    "multiple": (
        sized, lambda t: (t.zeros(5, 8), t.zeros(5, 8), 3),
        "X breaks the contract of m", "a multiple of 2", "5",
    ),
    "transposed": (
        plain, lambda t: (t.zeros(8, 4).T, t.zeros(4, 8), 3),
        "X must be contiguous", "(4, 8)", "strides of (1, 4)",
    ),
    "every second row": (
        plain, lambda t: (t.zeros(8, 8)[::2], t.zeros(4, 8), 3),
        "X must be contiguous", "(4, 8)", "strides of (16, 1)",
    ),
    "broadcast": (
        plain, lambda t: (t.broadcast(t.zeros(8), (4, 8)), t.zeros(4, 8), 3),
        "X must be contiguous", "(4, 8)", "strides of (0, 1)",
    ),
    "strides": (
        strided, lambda t: (t.zeros(4, 8), t.zeros(4, 8), 3),
        "X has the wrong stride in dimension 0", "(16, 1)", "(8, 1)",
    ),
    "broadcast output": (
        strided, lambda t: (t.zeros(4, 16)[:, :8], t.broadcast(t.zeros(8), (4, 8)), 3),
        "Y is written, and several of its indices are one place", "a place of its own", "(0, 1)",
    ),
    "alignment": (
        plain, lambda t: (t.off_by_one_byte((4, 8)), t.zeros(4, 8), 3),
        "X does not start at a multiple of 4 bytes", "a multiple of 4", "0x",
    ),
    "same array": (
        plain, lambda t: (x := t.zeros(4, 8), x, 3),
        "Y is written and overlaps X", "shares no memory", "0x",
    ),
    "overlap": (plain, overlapping, "Y is written and overlaps X", "shares no memory", "0x"),
    "not an array": (
        plain, lambda t: (t.zeros(4, 8), [[0.0] * 8] * 4, 3), "Y must be an array", "array", "list",
    ),
    "nothing": (
        plain, lambda t: (None, t.zeros(4, 8), 3), "X must be an array", "array", "NoneType",
    ),
    "scalar type": (plain, lambda t: (*right(plain, t)[:2], 2.5), "s must be", "int32", "2.5"),
    "scalar text": (plain, lambda t: (*right(plain, t)[:2], "2"), "s must be", "int32", "2"),
    "scalar range": (
        plain, lambda t: (*right(plain, t)[:2], 2**31), "s = 2147483648 does not fit int32", "", "",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TABLE)
def test_refused(case, road):
    make, wrong, message, expected, got = TABLE[case]
    target, t = road
    given = wrong(t)
    if any(g is None for g in given) and case != "nothing":
        pytest.skip("no such array there")
    kernel = make(target)
    for warm in (False, True):
        if warm:
            x, y, s = right(make, t)
            t.ones_(x)
            for _ in range(3):
                kernel(x, y, s)
            assert t.sum(y) == 96
        for _ in range(2):
            with pytest.raises(tw.LaunchError) as info:
                kernel(*given)
            said = info.value.diagnostic
            assert message in said.message
            assert expected in said.expected and got in said.got
            assert said.fix
            # the caller's line, not one of ours
            assert said.loc and said.loc.file == __file__


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_read_only(target):
    kernel = plain(target)
    x, y = np.ones((4, 8), np.float32), np.zeros((4, 8), np.float32)
    x.flags.writeable = False
    for _ in range(2):
        kernel(x, y, 2)
        assert y.sum() == 64
        y.flags.writeable = False
        with pytest.raises(tw.LaunchError) as info:
            kernel(x, y, 2)
        said = info.value.diagnostic
        assert "Y is written by the kernel, but the array is read-only" in said.message
        assert said.expected and "read-only ndarray" in said.got and "writable copy" in said.fix
        y.flags.writeable = True


def test_device():
    torch = pytest.importorskip("torch")
    kernel = plain("cpu")
    x, y = torch.ones(4, 8), torch.zeros(4, 8)
    for _ in range(2):
        with pytest.raises(tw.LaunchError) as info:
            kernel(x.to("meta"), y, 2)
        said = info.value.diagnostic
        assert "X is on meta, but this kernel runs on the CPU" in said.message
        assert said.got == "meta" and "X.cpu()" in said.fix and said.expected
        kernel(x, y, 2)
        assert float(y.sum()) == 64


@pytest.mark.gpu
def test_device_of_a_gpu_kernel():
    import torch

    kernel = plain("cuda")
    x, y = torch.ones(4, 8, device="cuda"), torch.zeros(4, 8, device="cuda")
    for _ in range(2):
        for wrong in (x.cpu(), np.ones((4, 8), np.float32)):
            with pytest.raises(tw.LaunchError) as info:
                kernel(wrong, y, 2)
            said = info.value.diagnostic
            assert "X is in host memory, but this kernel runs on the GPU" in said.message
            assert said.got and 'target="cpu"' in said.fix
        kernel(x, y, 2)
        assert float(y.sum()) == 64
    with pytest.raises(tw.LaunchError, match="X is on cuda:0, but this kernel runs on the CPU"):
        plain("cpu")(x, y.cpu(), 2)


@pytest.mark.parametrize("target", ["cpu", "interp", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_interleaved_rows_do_not_overlap(target):
    kernel = strided(target)
    if target == "cuda":
        import torch

        big = torch.zeros(4, 16, device="cuda")
    else:
        big = np.zeros((4, 16), np.float32)
    for _ in range(3):
        big[:, :8], big[:, 8:] = 1, 0
        kernel(big[:, :8], big[:, 8:], 3)
        assert float(big[:, :8].sum()) == 32 and float(big[:, 8:].sum()) == 96
    with pytest.raises(tw.LaunchError, match="Y is written and overlaps X"):
        kernel(big[:, :8], big[:, 7:15], 3)
