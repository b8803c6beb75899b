"""Kernels called as users call them, on a GPU: libraries, streams, graphs, outputs. `-m gpu`.

Each function runs in a process of its own.
"""

import importlib.util

import pytest

import tilewright as tw
from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.guard import run_guarded

AXPY = """
program axpy {
  dim n min=0
  param X: float32[n] global
  param Y: float32[n] global
  param Z: float32[n] global
  param a: float32
  kernel main grid b in (n + 127) // 128 threads t in 128 {
    if b * 128 + t < n { Z[b * 128 + t] = X[b * 128 + t] * a + Y[b * 128 + t] }
  }
}
"""
# two kernels and scratch between them: Z = 4 X
TWICE = """
program twice {
  dim n min=1
  param X: float32[n] global
  param Z: float32[n] global
  scratch W: float32[n] global
  kernel first grid b in (n + 127) // 128 threads t in 128 {
    if b * 128 + t < n { W[b * 128 + t] = X[b * 128 + t] * 2.0 }
  }
  kernel second grid b in (n + 127) // 128 threads t in 128 {
    if b * 128 + t < n { Z[b * 128 + t] = W[b * 128 + t] * 2.0 }
  }
}
"""
N = 100_000


def kernel(text=AXPY, **more):
    return tw.compile(tw.parse_ir(text), target="cuda", **more)


def test_sources_compile():
    assert kernel().resources["spill_bytes"] == 0
    assert [s.kernel for s in kernel(TWICE).executable.specs] == ["twice_first", "twice_second"]


def run_torch():
    import torch

    k = kernel()
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    z = torch.empty_like(x)
    for a in (2.0, 2.0, 3.0):
        k(x, y, z, a)
        torch.testing.assert_close(z, x * a + y)
    k(x, y, a=-1.0, Z=z)
    torch.testing.assert_close(z, y - x)
    for n in (0, 1, 127, 1000):  # new shapes, the same memory
        k(x[:n], y[:n], z[:n], 1.0)
        torch.testing.assert_close(z[:n], x[:n] + y[:n])
    with pytest.raises(LaunchError, match="Z is written and overlaps X"):
        k(x, y, x, 1.0)
    with pytest.raises(LaunchError, match="X has the wrong dtype"):
        k(x.half(), y, z, 1.0)
    with pytest.raises(LaunchError, match="X is in host memory"):
        k(x.cpu(), y, z, 1.0)


def run_side_streams():
    """Work that takes long is in front on the side stream; nothing else orders the two."""
    import torch

    k = kernel()
    x, y = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    z = torch.empty_like(x)
    x.add_(0)  # loading a module waits for the GPU, ours and PyTorch's
    k(x, y, z, 2.0)
    side = torch.cuda.Stream()
    for given in (False, True):
        torch.cuda.synchronize()
        with torch.cuda.stream(side):
            torch.cuda._sleep(50_000_000)
            x.add_(1)
            if not given:
                k(x, y, z, 2.0)
        if given:
            k(x, y, z, 2.0, stream=side)
        assert not side.query(), "the launch waited, or ran elsewhere"
        side.synchronize()
        assert float(z.min()) == float(z.max()) == 2 * float(x[0])


def run_graph():
    import torch

    k, twice = kernel(), kernel(TWICE)
    x, y = torch.ones(N, device="cuda"), torch.zeros(N, device="cuda")
    z, w = torch.zeros(N, device="cuda"), torch.zeros(N, device="cuda")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the first launch of both, loading and scratch included
        k(x, y, z, 2.0)
        twice(z, w)
    assert float(z.sum()) == 0
    for value in (1.0, 5.0, 7.0):
        x.fill_(value)
        y.fill_(10 * value)
        graph.replay()
        torch.cuda.synchronize()
        assert float(z.min()) == float(z.max()) == 12 * value
        assert float(w.min()) == float(w.max()) == 48 * value
    k(x, y, z, 1.0)  # and outside again
    twice(x, w)
    assert float(z[0]) == 77 and float(w[-1]) == 28


def run_scratch():
    import torch

    twice = kernel(TWICE)
    streams = [torch.cuda.Stream() for _ in range(4)]
    xs = [torch.full((1 << 20,), float(i), device="cuda") for i in range(16)]
    zs = [torch.empty_like(x) for x in xs]
    torch.cuda.synchronize()
    for _ in range(5):
        for i, (x, z) in enumerate(zip(xs, zs, strict=True)):
            with torch.cuda.stream(streams[i % 4]):
                twice(x, z)
    torch.cuda.synchronize()
    assert (
        [float(z.min()) for z in zs] == [float(z.max()) for z in zs] == [4.0 * i for i in range(16)]
    )


def run_torch_outputs():
    import torch

    k = kernel(out_idx=[2])
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    first, second = k(x, y, 2.0), k(x, y, 3.0)
    assert first.data_ptr() != second.data_ptr() and first.device == x.device
    torch.testing.assert_close(first, x * 2 + y)
    torch.testing.assert_close(second, x * 3 + y)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    third = k(x, y, 1.0, stream=side)
    side.synchronize()
    torch.testing.assert_close(third, x + y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = k(x, y, 5.0)
    x.fill_(1)
    graph.replay()
    torch.testing.assert_close(out, 5 + y)


def run_cupy():
    import cupy

    k, made = kernel(), kernel(out_idx=[2])
    x, y = cupy.arange(N, dtype=cupy.float32), cupy.ones(N, cupy.float32)
    z = cupy.empty_like(x)
    k(x, y, z, 2.0)
    assert bool((z == x * 2 + y).all())
    out = made(x, y, 3.0)
    assert isinstance(out, cupy.ndarray) and bool((out == x * 3 + y).all())
    with cupy.cuda.Stream(non_blocking=True) as stream:
        x += 1
        k(x, y, z, 2.0)
        out = made(x, y, 3.0)
    stream.synchronize()
    assert bool((z == x * 2 + y).all()) and bool((out == x * 3 + y).all())
    k(x, y, z, 4.0, stream=stream)
    stream.synchronize()
    assert bool((z == x * 4 + y).all())


def run_jax():
    import jax
    import numpy as np

    k, made = kernel(), kernel(out_idx=[2])
    x = jax.numpy.arange(N, dtype=jax.numpy.float32)
    y = jax.numpy.ones(N, jax.numpy.float32)
    for i in range(20):
        # temporaries that JAX forgets as soon as the call returns
        out = made(x + i, y * i, 2.0)
        assert isinstance(out, jax.Array)
        np.testing.assert_array_equal(
            np.asarray(out + 1), (np.arange(N, dtype="f") + i) * 2 + i + 1
        )
    with pytest.raises(LaunchError, match="Z is written by the kernel, but the array is read-only"):
        k(x, y, x + 1, 1.0)


def run_dlpack():
    import torch

    class Producer:
        """Somebody's array that knows DLPack only."""

        def __init__(self, tensor):
            self.tensor = tensor

        def __dlpack_device__(self):
            return self.tensor.__dlpack_device__()

        def __dlpack__(self, stream=None):
            return self.tensor.__dlpack__(stream=stream)

    k, made = kernel(), kernel(out_idx=[2])
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    z = torch.empty_like(x)
    k(Producer(x), Producer(y), Producer(z), 2.0)
    torch.cuda.synchronize()
    torch.testing.assert_close(z, x * 2 + y)
    capsule = torch.utils.dlpack.to_dlpack(x)
    k(capsule, y, z, 3.0)
    torch.cuda.synchronize()
    torch.testing.assert_close(z, x * 3 + y)
    ours = made(Producer(x), Producer(y), 4.0)
    got = torch.from_dlpack(ours)
    assert tuple(ours.shape) == (N,) and got.data_ptr() == ours.memory.address
    del ours
    torch.testing.assert_close(got, x * 4 + y)
    del got
    torch.testing.assert_close(torch.from_dlpack(made(Producer(x), Producer(y), 5.0)), x * 5 + y)


def copier(kind, **more):
    """Y = X for `kind` elements: only bits move, so that every type can be compared."""
    text = f"""
program copy {{
  dim n min=0
  param X: {kind}[n, 16] global
  param Y: {kind}[n, 16] global
  kernel main grid b in (n + 7) // 8 threads t in 128 {{
    if b * 8 + t // 16 < n {{ Y[b * 8 + t // 16, t % 16] = X[b * 8 + t // 16, t % 16] }}
  }}
}}
"""
    return tw.compile(tw.parse_ir(text), target="cuda", **more)


KINDS = ["float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int8", "bool", "int64"]


def test_copies_compile():
    for kind in KINDS:
        assert copier(kind).resources["spill_bytes"] == 0


def run_torch_types():
    import torch

    for kind in KINDS:
        k, made = copier(kind), copier(kind, out_idx=[1])
        x = torch.randint(0, 2, (37, 16), device="cuda").to(getattr(torch, kind))
        y = torch.zeros(37, 16, device="cuda").to(x.dtype)
        k(x, y)
        assert torch.equal(x.view(torch.uint8), y.view(torch.uint8)), kind
        for rows in (37, 5, 0):
            z = made(x[:rows])
            assert z.dtype == x.dtype and z.device == x.device and z.shape == (rows, 16)
            assert torch.equal(z.float(), x[:rows].float()), kind


def run_gradients():
    """A tensor that requires a gradient is read like its data, and written under no_grad only."""
    import torch

    k = kernel()
    x, y = torch.randn(N, device="cuda"), torch.randn(N, device="cuda")
    z, w = torch.empty_like(x), torch.nn.Parameter(x.clone())
    for _ in range(3):
        for a, read in ((2.0, w), (3.0, w.detach()), (4.0, w * 2)):
            for _ in range(2):
                k(read, y, z, a)
            torch.testing.assert_close(z, read.detach() * a + y)
            assert not z.requires_grad
        with torch.no_grad():
            for _ in range(3):
                k(w, y, z, 2.0)
            torch.testing.assert_close(z, w * 2 + y)
        before = w.detach().clone()
        for written in (w, w * 2):
            for _ in range(2):
                with pytest.raises(LaunchError, match="Z requires a gradient"):
                    k(x, y, written, 2.0)
        torch.testing.assert_close(w.detach(), before)
        with torch.no_grad():
            k(x, y, w, 2.0)
        torch.testing.assert_close(w.detach(), x * 2 + y)
        k(x, y, w.detach(), 3.0)
        torch.testing.assert_close(w.detach(), x * 3 + y)


def run_cupy_types():
    import cupy

    for kind in ("float32", "float16", "int8", "bool", "int64"):
        k, made = copier(kind), copier(kind, out_idx=[1])
        x = cupy.random.randint(0, 2, (37, 16)).astype(kind)
        y = cupy.zeros_like(x)
        k(x, y)
        out = made(x)
        assert isinstance(out, cupy.ndarray) and out.dtype == x.dtype
        assert bool((y == x).all()) and bool((out == x).all()), kind


def run_jax_types():
    import jax
    import numpy as np

    for kind in KINDS[:-1]:  # JAX has no int64 as it comes
        made = copier(kind, out_idx=[1])
        x = jax.random.randint(jax.random.key(0), (37, 16), 0, 2).astype(kind)
        out = made(x)
        assert isinstance(out, jax.Array) and out.dtype == x.dtype
        np.testing.assert_array_equal(
            np.asarray(out).astype("f"), np.asarray(x).astype("f"), err_msg=kind
        )


@pytest.mark.gpu
@pytest.mark.parametrize(
    "function",
    [
        run_torch,
        run_side_streams,
        run_graph,
        run_scratch,
        run_torch_outputs,
        run_dlpack,
        run_torch_types,
        run_gradients,
    ],
)
def test_torch(function):
    run_guarded(function, timeout=240)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("library", "function"),
    [("cupy", run_cupy), ("cupy", run_cupy_types), ("jax", run_jax), ("jax", run_jax_types)],
)
def test_libraries(library, function):
    if not importlib.util.find_spec(library):
        pytest.skip(f"no {library}")
    run_guarded(function, timeout=240)
