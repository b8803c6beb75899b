"""Arrays of other libraries on the CPU: the same memory, every element type, outputs in the
caller's library, and what has no right answer refused."""

import gc
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.targets import dlpack
from tilewright.targets.dlpack import export

TYPES = [
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2",
    "int64", "int32", "int16", "int8", "uint8", "bool",
]  # fmt: skip


def copier(kind, out=None):
    m = T.dynamic("m")

    @T.prim_func
    def copy(X: T.Tensor((m, 8), kind), Y: T.Tensor((m, 8), kind)):
        with T.Kernel(T.ceildiv(m, 4), threads=32) as bx:
            for i, j in T.Parallel(4, 8):
                Y[bx * 4 + i, j] = X[bx * 4 + i, j]

    return tw.compile(copy, target="cpu", out_idx=out)


def values(kind, rows=5):
    return (np.arange(rows * 8).reshape(rows, 8) % 5).astype(find_dtype(kind).numpy)


def bits(array):
    return np.ascontiguousarray(array).view(np.uint8)


class Foreign:
    """Somebody's array that knows DLPack only, as CuPy's CPU sibling would be."""

    def __init__(self, array, device=(1, 0), read_only=False):
        self.array, self.device, self.shape = array, device, array.shape
        self.read_only = read_only

    def __dlpack_device__(self):
        return self.device

    def __dlpack__(self, stream=None):
        address = self.array.__array_interface__["data"][0]
        return export(address, self.shape, find_dtype(self.array.dtype), self.device, self.array)


# ── NumPy and DLPack ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", TYPES)
def test_numpy(kind):
    x, y = values(kind), np.zeros((5, 8), find_dtype(kind).numpy)
    for _ in range(2):
        y[...] = 0
        copier(kind)(x, y)
        np.testing.assert_array_equal(bits(x), bits(y))
    made = copier(kind, -1)
    for rows in (5, 3, 5, 0):
        z = made(values(kind, rows))
        assert type(z) is np.ndarray and z.dtype == x.dtype and z.shape == (rows, 8)
        np.testing.assert_array_equal(bits(z), bits(values(kind, rows)))


@pytest.mark.parametrize("kind", TYPES)
def test_dlpack(kind):
    x, y = values(kind), np.zeros((5, 8), find_dtype(kind).numpy)
    kernel = copier(kind)
    kernel(Foreign(x), Foreign(y))  # the memory itself: y is changed through it
    np.testing.assert_array_equal(bits(x), bits(y))
    y[...] = 0
    kernel(Foreign(x).__dlpack__(), y)
    np.testing.assert_array_equal(bits(x), bits(y))
    assert type(copier(kind, -1)(Foreign(x))) is np.ndarray


def test_dlpack_keeps_what_is_read_only():
    x = np.ones((5, 8), np.float32)
    x.flags.writeable = False

    class Versioned:
        __dlpack_device__ = x.__dlpack_device__
        __dlpack__ = x.__dlpack__

    copier("float32")(Versioned(), np.zeros((5, 8), np.float32))
    with pytest.raises(tw.LaunchError, match="Y is written by the kernel, but the array is read"):
        copier("float32")(np.zeros((5, 8), np.float32), Versioned())


def test_arrays_on_a_gpu_are_refused():
    x = np.ones((5, 8), np.float32)
    with pytest.raises(tw.LaunchError, match="X is on a device of DLPack's kind 2"):
        copier("float32", -1)(Foreign(x, (2, 0)))
    cupy = type("ndarray", (), {"__module__": "cupy", "shape": (5, 8), "dtype": x.dtype})
    with pytest.raises(tw.LaunchError, match="X is on CuPy's GPU") as info:
        copier("float32", -1)(cupy())
    assert "cupy.asnumpy(X)" in info.value.diagnostic.fix


def test_masks_are_not_lost():
    x = np.ma.masked_array(np.ones((5, 8), np.float32), mask=True)
    with pytest.raises(tw.LaunchError, match="X is a masked array"):
        copier("float32", -1)(x)


def test_byte_order():
    with pytest.raises(tw.LaunchError, match="X has the wrong dtype"):
        copier("float32", -1)(np.ones((5, 8), ">f4"))


def test_no_dimensions_and_scalars():
    @T.prim_func
    def shift(
        X: T.Tensor((4,), "float32"),
        by: T.Tensor((), "float32"),
        s: T.float32,
        Y: T.Tensor((4,), "float32"),
    ):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(4):
                Y[i] = X[i] + by[()] * s

    kernel = tw.compile(shift, target="cpu", out_idx=-1)
    x = np.zeros(4, np.float32)
    for s in (2, 2.0, np.float32(2), np.float64(2), np.int64(2), np.array(2.0), True + 1):
        for _ in range(2):
            assert kernel(x, np.array(3, np.float32), s).tolist() == [6] * 4
    with np.errstate(over="ignore"):
        assert np.isinf(kernel(x, np.array(1, np.float32), 1e39)).all()
    assert np.isnan(kernel(x, np.array(1, np.float32), float("nan"))).all()


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int64", -(2**40)), ("uint64", 2**63), ("int8", -128), ("uint8", 255), ("int16", -300),
     ("uint16", 65535), ("uint32", 2**32 - 1), ("float64", 1e300), ("float16", 0.1),
     ("bfloat16", 3.0), ("bool", True)],
)  # fmt: skip
def test_scalars_of_every_type(kind, value):
    @T.prim_func
    def fill(s: getattr(T, kind), Y: T.Tensor((3,), kind)):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(3):
                Y[i] = s

    kernel = tw.compile(fill, target="cpu", out_idx=-1)
    for _ in range(3):
        y = kernel(value)
        np.testing.assert_array_equal(y, np.full(3, value, find_dtype(kind).numpy))


def test_a_stride_of_zero_is_read():
    @T.prim_func
    def add(X: T.StridedTensor((4, 8), (0, 1), "float32"), Y: T.Tensor((4, 8), "float32")):
        with T.Kernel(4, threads=32) as bx:
            for j in T.Parallel(8):
                Y[bx, j] = X[bx, j] + 1

    x = np.broadcast_to(np.arange(8, dtype=np.float32), (4, 8))
    kernel = tw.compile(add, target="cpu", out_idx=-1)
    for _ in range(2):
        np.testing.assert_array_equal(kernel(x), x + 1)


def test_calls_from_several_threads():
    from concurrent.futures import ThreadPoolExecutor

    kernel, made = copier("float32"), copier("float32", -1)

    def work(seed):
        rng = np.random.default_rng(seed)
        for _ in range(100):
            x = rng.random((int(rng.integers(1, 9)), 8), np.float32)
            y = np.zeros_like(x)
            kernel(x, y)
            assert (x == y).all() and (made(x) == x).all()
        return True

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(work, range(4)))


def test_outputs_are_new_each_time():
    kernel = copier("float32", -1)
    x = values("float32")
    first = kernel(x)
    second = kernel(x + 1)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, x + 1)


def test_several_outputs_and_scratch():
    m = T.dynamic("m")

    @T.prim_func
    def both(
        X: T.Tensor((m,), "float32"), Y: T.Tensor((m,), "float32"), Z: T.Tensor((m * 2,), "float32")
    ):
        W = T.alloc_global((m,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                W[i] = X[i] + 1
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                Y[i] = W[i] * 2
            for i in T.Parallel(128):
                Z[i] = W[i // 2]

    kernel = tw.compile(both, target="cpu", out_idx=[1, 2])
    for n in (3, 5, 3):
        y, z = kernel(np.arange(n, dtype=np.float32))
        np.testing.assert_array_equal(y, 2 * np.arange(n) + 2)
        np.testing.assert_array_equal(z, np.repeat(np.arange(n) + 1, 2))


def test_nothing_is_imported_that_nobody_uses(tmp_path):
    code = """
import sys, numpy as np
import tilewright as tw, tilewright.language as T

@T.prim_func
def double(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float32")):
    with T.Kernel(1, threads=32):
        for i in T.Parallel(8):
            Y[i] = X[i] * 2

y = np.zeros(8, np.float32)
kernel = tw.compile(double, target="cpu")
kernel(np.ones(8, np.float32), y)
try:
    kernel([1.0] * 8, y)
except tw.LaunchError as error:
    assert "X must be an array" in error.message
assert not {"torch", "jax", "cupy"} & sys.modules.keys()
for name in ("torch", "jax", "cupy"):
    sys.modules[name] = None  # as if it were not installed
y = np.zeros(8, np.float32)
kernel = tw.compile(double, target="cpu")
kernel(np.ones(8, np.float32), y)
assert (y == 2).all()
try:
    kernel.as_torch_op("some::double")
except tw.CompileError as error:
    assert "needs PyTorch" in error.message
else:
    raise AssertionError
"""
    path = tmp_path / "alone.py"  # tracing reads the source
    path.write_text(code)
    subprocess.run([sys.executable, path], check=True, timeout=120)


# ── PyTorch ──────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


def in_torch(torch, kind, rows=5):
    array = values(kind)
    return torch.from_numpy(bits(array).copy()).view(getattr(torch, kind))[:rows]


@pytest.mark.parametrize("kind", TYPES)
def test_torch(torch, kind):
    x, kernel, made = in_torch(torch, kind), copier(kind), copier(kind, -1)
    y = torch.zeros_like(x)
    for _ in range(3):
        y.zero_()
        kernel(x, y)
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8))
    for rows in (5, 3, 5, 0):
        z = made(in_torch(torch, kind, rows))
        assert type(z) is torch.Tensor and z.dtype == x.dtype and z.device.type == "cpu"
        assert z.shape == (rows, 8) and z.tolist() == x[:rows].tolist()


def test_libraries_mix(torch):
    x, y = torch.ones(5, 8), np.zeros((5, 8), np.float32)
    for _ in range(2):
        copier("float32")(x, y)
    assert (y == 1).all()
    assert type(copier("float32", -1)(x)) is torch.Tensor


def test_default_device_is_not_where_outputs_go(torch):
    kernel = copier("float32", -1)
    x = torch.ones(5, 8)
    with torch.device("meta"):
        for _ in range(3):
            assert kernel(x).device.type == "cpu"


def test_a_tensor_that_requires_a_gradient_is_read_like_its_data(torch):
    kernel, made = copier("float32"), copier("float32", -1)
    w = torch.nn.Parameter(torch.full((5, 8), 3.0))
    for _ in range(2):
        for x in (w, w * 2, w.detach()):
            y, z = made(x), torch.zeros(5, 8)
            kernel(x, z)
            assert torch.equal(y, x) and torch.equal(z, x)
            assert not y.requires_grad and not z.requires_grad
        with torch.no_grad():
            assert torch.equal(made(w), w)
        with torch.inference_mode():
            assert torch.equal(made(w), w)


def test_a_tensor_that_requires_a_gradient_is_written_as_pytorch_writes_it(torch):
    kernel = copier("float32")
    x = torch.full((5, 8), 2.0)
    for _ in range(2):
        w = torch.nn.Parameter(torch.ones(5, 8))
        with torch.no_grad():
            kernel(x, w)
        assert float(w.detach().sum()) == 80
        for leaf, written in ((True, w), (False, w * 2)):
            with pytest.raises(tw.LaunchError, match="Y requires a gradient") as info:
                kernel(x, written)
            assert ("a leaf" in info.value.diagnostic.got) is leaf
            assert "torch.no_grad()" in info.value.diagnostic.fix
            assert "Y.detach()" in info.value.diagnostic.fix
        kernel(x, w.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y = w * w  # saves w
        kernel(x, w.detach())
        y.sum().backward()


def test_autograd_notices_what_is_written(torch):
    kernel = copier("float32")
    for _ in range(3):
        x = torch.ones(5, 8, requires_grad=True)
        y = x * 2
        z = y * y  # saves y
        kernel(torch.ones(5, 8), y.detach())
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            z.sum().backward()
    with torch.inference_mode():
        y = torch.ones(5, 8)
    for _ in range(3):
        kernel(torch.zeros(5, 8), y)
    assert float(y.sum()) == 0


def test_tensors_that_are_not_what_they_hold(torch):
    kernel = copier("float32", -1)
    x = torch.ones(5, 8)
    assert torch.equal(kernel(x), x)
    minus = torch.complex(x, x).conj().imag  # says -1, holds 1
    assert float(minus[0, 0]) == -1
    with pytest.raises(tw.LaunchError):
        kernel(minus)
    with pytest.raises(tw.LaunchError, match="could not be read"):
        kernel(x.to_sparse())
    with pytest.raises(tw.LaunchError, match="could not be read") as info:
        torch.func.vmap(kernel)(torch.ones(3, 5, 8))
    assert "as_torch_op" in info.value.diagnostic.fix


def test_subclasses_and_views(torch):
    class Mine(torch.Tensor):
        pass

    kernel = copier("float32", -1)
    big = torch.arange(80.0).reshape(10, 8)
    for _ in range(2):
        assert torch.equal(kernel(big[2:7]), big[2:7])
        assert torch.equal(torch.as_tensor(kernel(big.as_subclass(Mine))), big)
        assert torch.equal(kernel(torch.nn.Buffer(big)), big)


def test_packed_types_are_bytes(torch):
    @T.prim_func
    def widen(X: T.Tensor((2, 8), "int4"), Y: T.Tensor((2, 8), "int8")):
        with T.Kernel(1, threads=32):
            for i, j in T.Parallel(2, 8):
                Y[i, j] = X[i, j]

    kernel = tw.compile(widen, target="cpu", out_idx=-1)
    x = torch.tensor([[0x10, 0x32, 0x54, 0x76]] * 2, dtype=torch.uint8)
    for _ in range(2):
        assert kernel(x).tolist() == [list(range(8))] * 2
    with pytest.raises(tw.LaunchError, match="X has the wrong size in dimension 1"):
        kernel(x[:, :3].contiguous())


def test_packed_outputs_may_not_overlap(torch):
    @T.prim_func
    def same(X: T.Tensor((16,), "int4"), Y: T.Tensor((16,), "int4")):
        with T.Kernel(1, threads=32):
            for j in T.Parallel(16):
                Y[j] = X[j]

    kernel = tw.compile(same, target="cpu")
    x = torch.zeros(8, dtype=torch.uint8)
    with pytest.raises(tw.LaunchError, match="Y is written and overlaps X"):
        kernel(x, x)


# ── JAX ──────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def jax():
    jax = pytest.importorskip("jax")
    with jax.default_device(jax.devices("cpu")[0]):  # there may be a GPU
        yield jax


@pytest.mark.parametrize("kind", [t for t in TYPES if "64" not in t])
def test_jax(jax, kind):
    x = jax.numpy.asarray(values(kind))
    for rows in (5, 3, 0):
        z = copier(kind, -1)(x[:rows])
        assert isinstance(z, jax.Array) and z.dtype == x.dtype and z.shape == (rows, 8)
        np.testing.assert_array_equal(bits(np.asarray(z)), bits(values(kind)[:rows]))
    y = np.zeros((5, 8), find_dtype(kind).numpy)
    copier(kind)(x, y)
    np.testing.assert_array_equal(bits(y), bits(values(kind)))


def test_jax_memory_is_not_copied(jax):
    from tilewright.runtime.outputs import delivered, empty_like_library
    from tilewright.targets.arrays import view_of

    x = jax.numpy.ones((5, 8), jax.numpy.bfloat16)
    seen = view_of(x, "X", host=True).numpy()
    assert seen.dtype == ml_dtypes.bfloat16
    assert seen.__array_interface__["data"][0] == x.unsafe_buffer_pointer()
    room = empty_like_library("jax", (5, 8), find_dtype("bfloat16"))
    room[...] = 3
    made = delivered("jax", room)
    assert made.unsafe_buffer_pointer() == room.__array_interface__["data"][0]
    address = room.__array_interface__["data"][0]
    del room
    assert float(made.sum()) == 120 and made.unsafe_buffer_pointer() == address
    held = len(dlpack._exported)
    del made
    gc.collect()
    assert len(dlpack._exported) == held - 1


def test_jax_arrays_never_change(jax):
    x = jax.numpy.ones((5, 8))
    with pytest.raises(tw.LaunchError, match="Y is written by the kernel, but the array") as info:
        copier("float32")(x, x + 1)
    assert "out_idx" in info.value.diagnostic.fix and "JAX" in info.value.diagnostic.fix


def test_jax_transforms_are_named(jax):
    with pytest.raises(tw.LaunchError) as info:
        jax.jit(copier("float32", -1))(jax.numpy.ones((5, 8)))
    assert "tilewright.jax.call" in info.value.diagnostic.fix


def test_jax_does_not_round_outputs(jax):
    @T.prim_func
    def widen(X: T.Tensor((8,), "float32"), Y: T.Tensor((8,), "float64")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                Y[i] = X[i]

    kernel = tw.compile(widen, target="cpu", out_idx=-1)
    with pytest.raises(tw.LaunchError, match="JAX makes no float64") as info:
        kernel(jax.numpy.ones(8))
    assert "jax_enable_x64" in info.value.diagnostic.fix


# ── kernels written directly ─────────────────────────────────────────────────────────────────


@tw.jit(target="cpu")
def scaled(A, s: T.float32, blk=4):
    N = T.const("N")
    m = T.dynamic("m")
    A: T.Tensor((m, N), "float32")
    B = T.empty((m, N), "float32")
    with T.Kernel(T.ceildiv(m, blk), threads=32) as bx:
        for i, j in T.Parallel(blk, N):
            B[bx * blk + i, j] = A[bx * blk + i, j] * s
    return B


def test_direct_kernels_return_the_callers_arrays():
    for rows in (3, 7, 3, 0):
        x = np.ones((rows, 8), np.float32)
        for y in (scaled(x, 2.0), scaled(x, s=2.0), scaled(s=2, A=x)):
            assert type(y) is np.ndarray and y.shape == x.shape and (y == 2).all()
    assert len(scaled._kernels) == 1  # one for all m
    scaled(np.ones((3, 16), np.float32), 1.0)
    scaled(np.ones((3, 16), np.float32), 1.0, blk=2)
    assert len(scaled._kernels) == 3


def test_direct_kernels_in_torch_and_jax(torch, jax):
    assert type(scaled(torch.ones(3, 8), 2.0)) is torch.Tensor
    assert isinstance(scaled(jax.numpy.ones((3, 8)), 2.0), jax.Array)


def test_direct_kernels_tell_zeros_apart():
    @tw.jit(target="cpu")
    def signed(A, zero):
        n = T.dynamic("n")
        A: T.Tensor((n,), "float32")
        B = T.empty((n,), "float32")
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                B[i] = A[i] * zero
        return B

    x = np.ones(8, np.float32)
    assert not np.signbit(signed(x, 0.0)).any()
    assert np.signbit(signed(x, -0.0)).all()
    assert np.signbit(signed(x, -0.0)).all() and not np.signbit(signed(x, 0.0)).any()
