"""From arguments to the driver's launch, on a driver made of Python."""

import struct
import sys
from dataclasses import replace
from types import ModuleType, SimpleNamespace

import pytest

from tests.cuda.fake import fake_driver, launch
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import INT32, dtype
from tilewright.ir.expr import Var, wrap
from tilewright.ir.op import Dim, Program
from tilewright.support.errors import CompileError, LaunchError, RunError
from tilewright.targets.arrays import ArrayView, ProgramCheck, stream_handle
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Map,
    Scalar,
    Size,
    TensorArg,
    TensorPointer,
    block_layout,
    encode_scalar,
)
from tilewright.targets.cuda.nvrtc import Resources
from tilewright.targets.cuda.tensormap import SM_COUNT, TensorMapSpec
from tilewright.targets.torch_tensors import guards_work

BF16, FLOAT = dtype("bfloat16"), dtype("float32")
M = Var("M", INT32)

PARAMS = (
    TensorPointer("C"),
    Scalar("alpha", FLOAT),
    Size("M"),
    Map(TensorMapSpec("A", BF16, (128, 64), swizzle=128)),
)
SPEC = LaunchSpec(
    "gemm",
    grid=(lambda s: min(s[SM_COUNT], s["M"] // 128), 2),
    threads=384,
    params=PARAMS,
    cluster=(2, 1),
    shared=200_000,
)
KERNEL = {"params": [8, 4, 4, 128], "NUM_REGS": 168, "MAX_THREADS_PER_BLOCK": 384}


def view(address, shape=(512, 64), **more):
    strides = more.pop("strides", None) or (shape[-1], 1)
    return ArrayView(address, shape, strides, more.pop("dtype", BF16), **{"device": 0, **more})


def args(**more):
    return {"A": view(0x10000), "C": view(0x20000), "alpha": 1.5, **more}


def module(spec=SPEC, devices=1, kernel=KERNEL):
    api, found = fake_driver(devices, gemm=kernel)
    return api, CudaModule(b"\x7fELF", [spec], using=found)


def test_layout_of_the_block():
    assert block_layout(PARAMS) == ((0, 8, 12, 64), 192)
    assert SPEC.sizes == (8, 4, 4, 128)
    double, byte = Scalar("d", dtype("float64")), Scalar("b", dtype("bool"))
    assert block_layout([byte, double, byte]) == ((0, 8, 16), 17)


def test_one_launch():
    api, m = module()
    launch(m, args(), {"M": 512}, stream=0x77)
    (done,) = api.launches
    assert (done.grid, done.block, done.shared) == ((4, 2, 1), (384, 1, 1), 200_000)
    assert done.stream == 0x77 and done.attributes == [(4, (2, 1, 1))]
    pointer, alpha, size, tensor_map = done.params
    assert struct.unpack("<QfI", pointer + alpha + size) == (0x20000, 1.5, 512)
    assert tensor_map == bytes([1]) * 128
    assert api.encoded[0].sizes == (64, 512) and api.encoded[0].box == (64, 128)
    assert api.encoded[0].steps == (1, 1) and api.encoded[0].rest == (0, 3, 2, 0)
    assert api.limits_raised == [("MAX_DYNAMIC_SHARED_SIZE_BYTES", 200_000)]
    assert api.contexts == [0xC0]  # the thread had none


def test_maps_and_steps_are_made_once_and_again_when_anything_changes():
    api, m = module()
    for _ in range(3):
        launch(m, args(), {"M": 512})
    assert len(api.launches) == 3 and len(api.encoded) == 1 and api.loads == 1
    for change in (
        args(A=view(0x30000)),
        args(A=view(0x10000, (1024, 64))),
        args(A=view(0x10000, strides=(128, 1))),
    ):
        launch(m, change, {"M": 512})
    assert len(api.encoded) == 4
    launch(m, args(alpha=-0.0), {"M": 512})
    launch(m, args(alpha=0.0), {"M": 512})
    launch(m, args(), {"M": 256})
    signs = [done.params[1] for done in api.launches[-3:]]
    assert signs == [struct.pack("<f", x) for x in (-0.0, 0.0, 1.5)]
    assert api.launches[-1].grid == (2, 2, 1)
    assert len(api.encoded) == 4  # maps depend on the tensor alone


def test_sizes_may_be_expressions():
    spec = LaunchSpec("gemm", (M // 2, 1), 32, (TensorPointer("C"), Size(M * 3)))
    api, m = module(spec, kernel={"params": [8, 4]})
    launch(m, {"C": view(0x100)}, {"M": 8})
    assert struct.unpack("<QI", b"".join(api.launches[0].params)) == (0x100, 24)
    assert api.launches[0].grid == (4, 1, 1) and api.launches[0].attributes == []


def test_an_empty_grid_is_not_launched():
    api, m = module()
    launch(m, args(A=view(0, (0, 64))), {"M": 0})
    assert api.launches == []


def test_programmatic_launch():
    spec = LaunchSpec("gemm", (1,), 32, (), programmatic=True)
    api, m = module(spec, kernel={"params": []})
    launch(m, {})
    assert api.launches[0].attributes == [(6, (1, 0, 0))]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"shared": 300_000}, r"300000 bytes \(0 static \+ 300000 dynamic\), 67552 too many"),
        ({"threads": 512}, "at most 384 threads"),
        ({"params": PARAMS[:2]}, r"\(8, 4, 4, 128\) bytes"),
        ({"cluster": (4, 4, 2)}, "at most 16 blocks"),
    ],
)
def test_what_cannot_fit_fails_before_launching(change, text):
    spec = replace(SPEC, **change)
    api, m = module(spec)
    with pytest.raises(CompileError, match=text):
        launch(m, args(), {"M": 512})
    assert api.launches == [] and api.limits_raised == []
    resources = Resources(168, max_threads=384, params=(8, 4, 4, 128))
    with pytest.raises(CompileError, match=text):  # and without a GPU
        CudaModule(b"", [spec], resources={"gemm": resources}, arch="sm_90a")


@pytest.mark.parametrize(
    ("change", "sizes", "text"),
    [
        ({"A": view(0x10008)}, {"M": 512}, "start is not aligned"),
        ({"A": view(0x10000, device=1)}, {"M": 512}, "different GPUs"),
        ({"A": view(1 << 16, stream=5), "C": view(0, stream=6)}, {"M": 512}, "different streams"),
        ({"alpha": "x"}, {"M": 512}, "alpha must be a number of type float32"),
        ({}, {"M": 384}, "clusters do not divide the grid"),
        ({}, {}, "no size is called 'M'"),
    ],
)
def test_wrong_arguments_launch_nothing(change, sizes, text):
    spec = replace(SPEC, grid=(lambda s: s["M"] // 128,))
    api, m = module(spec, devices=2)
    with pytest.raises((LaunchError, KeyError), match=text):
        launch(m, args(**change), sizes)
    assert api.launches == []


def test_on_the_right_gpu():
    api, m = module(devices=2)
    api.contexts = [0xC0]
    launch(m, {"A": view(1 << 16, device=1), "C": view(0, device=1), "alpha": 1}, {"M": 512})
    assert api.launches[0].context == 0xC1 and api.contexts == [0xC0]


def test_a_refused_launch_says_what_was_asked():
    api, m = module()
    api.contexts, api.status = [0xC0], 1
    with pytest.raises(LaunchError, match="INVALID_VALUE") as caught:
        launch(m, args(), {"M": 512})
    assert "200000 bytes of dynamic shared memory" in str(caught.value)
    api.status = 719
    with pytest.raises(RunError, match="a kernel launched earlier failed"):
        launch(m, args(), {"M": 512})


def test_code_for_another_gpu_and_missing_kernels():
    api, found = fake_driver(gemm=KERNEL)
    with pytest.raises(LaunchError, match="does not load on Fake H200"):
        CudaModule(b"", [SPEC], using=found).load()
    with pytest.raises(LaunchError, match="no kernel 'other'"):
        CudaModule(b"x", [LaunchSpec("other", (1,), 32, ())], using=found).load()
    assert api.capture_mode == "global"  # restored


@pytest.mark.parametrize(
    ("name", "value", "raw"),
    [
        ("float32", 1, "0000803f"),
        ("bfloat16", -2.0, "00c0"),
        ("float8_e4m3fn", 1.0, "38"),
        ("bool", True, "01"),
        ("uint8", 255, "ff"),
        ("int64", -1, "ff" * 8),
    ],
)
def test_scalars(name, value, raw):
    assert encode_scalar("x", dtype(name), value).hex() == raw


@pytest.mark.parametrize(("name", "value"), [("int8", 128), ("int32", 1.5), ("uint32", -1)])
def test_scalars_that_do_not_fit(name, value):
    with pytest.raises(LaunchError, match=r"\bx (=|must)"):
        encode_scalar("x", dtype(name), value)


def test_streams():
    assert stream_handle(5) == 5
    assert stream_handle(SimpleNamespace(cuda_stream=6)) == 6
    assert stream_handle(SimpleNamespace(ptr=7)) == 7
    assert stream_handle(SimpleNamespace(__cuda_stream__=(0, 8))) == 8
    with pytest.raises(LaunchError, match="must be a CUDA stream"):
        stream_handle("main")


# ------------------------------------------------------------------------ the generated caller


class Kind:
    """torch.bfloat16 and the like."""

    def __init__(self, name):
        self.name = name

    def __repr__(self):
        return f"torch.{self.name}"


BFLOAT16 = Kind("bfloat16")


class Tensor:
    """As much of a PyTorch tensor as a launch looks at."""

    requires_grad = False

    def __init__(self, address, shape=(512, 64), kind=BFLOAT16, strides=None, device=0):
        self.address, self.shape, self.dtype, self.device = address, shape, kind, device
        self.strides = strides or (shape[1], 1)
        self.is_cuda = device >= 0

    def data_ptr(self):
        return self.address

    def stride(self):
        return self.strides

    def is_contiguous(self):
        return self.strides == (self.shape[1], 1)

    def is_neg(self):
        return False

    is_conj = is_neg

    def get_device(self):
        return self.device


@pytest.fixture
def torch(monkeypatch):
    fake = ModuleType("torch")
    fake.Tensor = Tensor
    fake.stream = 0x55
    fake._C = SimpleNamespace(_cuda_getCurrentRawStream=lambda device: fake.stream)
    fake.is_grad_enabled = lambda: True
    monkeypatch.setitem(sys.modules, "torch", fake)
    yield fake
    guards_work.cache_clear()  # the real one may be tried after it


def tensor(name, shape, strides=None):
    return Buffer(name, tuple(map(wrap, shape)), BF16, Space.GLOBAL, strides=strides)


@pytest.fixture
def caller(torch):
    api, m = module()
    program = Program("gemm", (tensor("A", (M, 64)), tensor("C", (M, 64))), (), (Dim(M),))
    check = ProgramCheck(program, written={"C"})
    seen = []

    def counted(views):
        seen.append(views)
        return check(views)

    call = make_caller(m, [TensorArg("A"), TensorArg("C"), Scalar("alpha", FLOAT)], counted)
    return api, call, seen


def test_caller(caller, torch):
    api, call, seen = caller
    for _ in range(3):
        call(Tensor(0x10000), Tensor(0x20000), 1.5)
    assert len(seen) == 1 and len(api.launches) == 3
    assert [done.stream for done in api.launches] == [0x55] * 3
    assert struct.unpack("<QfI", b"".join(api.launches[2].params[:3])) == (0x20000, 1.5, 512)
    torch.stream = 0x66
    call(Tensor(0x10000), Tensor(0x20000), 1.5)
    call(Tensor(0x10000), Tensor(0x20000), 1.5, stream=0x99)
    call(view(0x10000), view(0x20000), 1.5)  # what is not PyTorch's goes the general way
    assert [done.stream for done in api.launches[3:]] == [0x66, 0x99, 0]
    call(Tensor(0x10000), Tensor(0x20000), -0.0)
    assert api.launches[-1].params[1] == struct.pack("<f", -0.0)


@pytest.mark.parametrize(
    ("a", "c", "alpha", "text"),
    [
        (Tensor(0x10000, kind=Kind("float16")), Tensor(0x20000), 1, "A has the wrong dtype"),
        (Tensor(0x10000, (512, 32)), Tensor(0x20000), 1, "A has the wrong size"),
        (Tensor(0x10000, (256, 64)), Tensor(0x20000), 1, "both M but differ"),
        (Tensor(0x10000, strides=(1, 512)), Tensor(0x20000), 1, "A must be contiguous"),
        (Tensor(0x30000, device=-1), Tensor(0x20000), 1, "A is in host memory"),
        (Tensor(0x30000, device=1), Tensor(0x20000), 1, "different GPUs"),
        (Tensor(0x10000), Tensor(0x10100), 1, "C is written and overlaps A"),
        (Tensor(0x10000), Tensor(0x20001), 1, "C does not start at a multiple of 2"),
        (Tensor(0x10000), Tensor(0x20000), "x", "alpha must be a number of type float32"),
        (Tensor(0x10000), None, 1, "C must be an array in GPU memory"),
    ],
)
def test_caller_refuses_every_time(caller, a, c, alpha, text):
    api, call, _ = caller
    call(Tensor(0x10000), Tensor(0x20000), 1)  # a good call before changes nothing
    for _ in range(2):
        with pytest.raises(LaunchError, match=text):
            call(a, c, alpha)
    assert len(api.launches) == 1


def test_strided_arguments_are_told_apart(torch):
    api, m = module(LaunchSpec("gemm", (1,), 32, PARAMS[3:]), kernel={"params": [128]})
    call = make_caller(m, [TensorArg("A", strided=True)], lambda views: {})
    for strides in ((64, 1), (128, 1), (64, 1)):
        call(Tensor(0x10000, strides=strides))
    assert [e.strides for e in api.encoded] == [(128,), (256,)]
    assert [done.params[0][0] for done in api.launches] == [1, 2, 1]


def test_read_only_arrays_are_not_written(caller):
    _, call, _ = caller
    with pytest.raises(LaunchError, match="C is written by the kernel, but the array is read-only"):
        call(view(0x10000), view(0x20000, read_only=True), 1)
