"""The same on a real GPU, each test in a child process that can be killed. `pytest -m gpu`."""

import importlib.util
import threading

import pytest

from tests.cuda.fake import launch
from tilewright.ir.dtype import INT32, dtype
from tilewright.support.errors import CompileError, LaunchError, RunError
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.driver import driver
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Map,
    Scalar,
    Size,
    TensorArg,
    TensorPointer,
)
from tilewright.targets.cuda.nvrtc import compile_cuda
from tilewright.targets.cuda.tensormap import TensorMapSpec

SOURCE = r"""
struct alignas(64) Map { unsigned long long words[16]; };

extern "C" __global__ void __launch_bounds__(256)
axpy(const float* x, float* y, float a, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] += a * x[i];
}

// A 64 x 64 tile of 16-bit elements through the copy engine, unswizzled by hand.
extern "C" __global__ void __launch_bounds__(128)
tile(const __grid_constant__ Map map, unsigned short* out, int x, int y) {
  extern __shared__ unsigned char raw[];
  unsigned start = (unsigned)__cvta_generic_to_shared(raw);
  unsigned base = (start + 1023) / 1024 * 1024, barrier = base + 8192;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" :: "r"(barrier));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 8192;"
                 :: "r"(barrier) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                 " [%0], [%1, {%2, %3}], [%4];"
                 :: "r"(base), "l"(&map), "r"(x), "r"(y), "r"(barrier) : "memory");
  }
  unsigned done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;"
                 " selp.u32 %0, 1, 0, p; }" : "=r"(done) : "r"(barrier) : "memory");
  for (int i = threadIdx.x; i < 4096; i += 128) {
    unsigned at = 2 * i;
    at ^= (at >> 3) & 0x70;
    out[i] = *(unsigned short*)(raw + (base - start) + at);
  }
}

extern "C" __global__ void __launch_bounds__(32) ranks(int* out) {
  extern __shared__ int big[];
  int rank, count;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(count));
  big[50000 + threadIdx.x] = rank * 100 + count;
  __syncwarp();
  if (threadIdx.x == 0) out[blockIdx.x] = big[50000];
}

extern "C" __global__ void hang(volatile int* p) { while (*p == 0) {} }
extern "C" __global__ void wild(int* p) { p[0] = 1; }
"""
FLOAT = dtype("float32")
AXPY = LaunchSpec(
    "axpy",
    (lambda s: -(-s["n"] // 256),),
    256,
    (TensorPointer("x"), TensorPointer("y"), Scalar("a", FLOAT), Size("n")),
)
TILE = LaunchSpec(
    "tile",
    (1,),
    128,
    (
        Map(TensorMapSpec("t", dtype("bfloat16"), (64, 64), swizzle=128)),
        TensorPointer("out"),
        Scalar("col", INT32),
        Scalar("row", INT32),
    ),
    shared=8192 + 1024 + 8,
)
RANKS = LaunchSpec("ranks", ("n",), 32, (TensorPointer("out"),), cluster=(4, 1, 1), shared=220_000)
ONE = {name: LaunchSpec(name, (1,), 1, (TensorPointer("p"),)) for name in ("hang", "wild")}


def module(*specs):
    compiled = compile_cuda(SOURCE, "test.cu", "sm_90a")
    return CudaModule(compiled.cubin, specs, resources=compiled.resources, arch="sm_90a")


def test_sources_compile(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    compiled = compile_cuda(SOURCE, "test.cu", "sm_90a")
    assert compiled.problems() == []
    assert compiled.resources["tile"].params == TILE.sizes


def run_axpy():
    import torch

    m = module(AXPY)
    call = make_caller(
        m,
        [TensorArg("x"), TensorArg("y"), Scalar("a", FLOAT)],
        lambda views: {"n": views["x"].shape[0]},
    )
    for n in (1, 1000, 100_000):
        x, y = torch.randn(n, device="cuda"), torch.randn(n, device="cuda")
        want = y + 2 * x + 3 * x
        launch(m, {"x": x, "y": y, "a": 2}, {"n": n})
        call(x, y, 3)
        torch.testing.assert_close(y, want)
    side = torch.cuda.Stream()
    x, y = torch.ones(1 << 24, device="cuda"), torch.zeros(1 << 24, device="cuda")
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(10):
            call(x, y, 1)
    side.synchronize()
    assert float(y.min()) == 10 == float(y.max())
    done = []  # a thread that has no context
    thread = threading.Thread(target=lambda: done.append(call(x, y, 1)))
    thread.start()
    thread.join()
    torch.cuda.synchronize()
    assert done == [None] and float(y.max()) == 11
    known, compiled = m.load().resources["axpy"], compile_cuda(SOURCE, "test.cu", "sm_90a")
    assert known.registers == compiled.resources["axpy"].registers
    assert known.params == compiled.resources["axpy"].params == AXPY.sizes
    with pytest.raises(LaunchError, match="x is in host memory"):
        call(x.cpu(), y, 1)


def run_tile():
    import torch

    m = module(TILE)
    t = torch.randn(200, 136, device="cuda").bfloat16()
    padded = torch.zeros(512, 512, device="cuda", dtype=torch.bfloat16)
    padded[:200, :136] = t
    for row, col in ((0, 0), (64, 64), (150, 96), (5, 8)):
        out = torch.full((64, 64), -1, device="cuda", dtype=torch.bfloat16)
        launch(m, {"t": t, "out": out, "row": row, "col": col})
        assert torch.equal(out, padded[row : row + 64, col : col + 64]), (row, col)
    for wrong, text in ((t[:, 1:], "not aligned"), (t[:, :135].contiguous(), "270 bytes")):
        with pytest.raises(LaunchError, match=text):
            launch(m, {"t": wrong, "out": out, "row": 0, "col": 0})


def run_capture():
    import torch

    x, y = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    m = module(AXPY)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):  # the module's first launch, its loading included
        launch(m, {"x": x, "y": y, "a": 2}, {"n": 1000})
    assert float(y.sum()) == 0
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    assert float(y.min()) == 6 == float(y.max())


def run_clusters():
    import torch

    out = torch.zeros(8, device="cuda", dtype=torch.int32)
    launch(module(RANKS), {"out": out}, {"n": 8})
    assert out.tolist() == [4, 104, 204, 304] * 2
    large = LaunchSpec(**{**vars(RANKS), "cluster": (16, 1, 1), "shared": 210_000})
    out = torch.zeros(16, device="cuda", dtype=torch.int32)
    launch(module(large), {"out": out}, {"n": 16})
    assert out.tolist() == [100 * i + 16 for i in range(16)]
    with pytest.raises(CompileError, match="too many"):
        module(LaunchSpec(**{**vars(RANKS), "shared": 240_000}))


def run_libraries():
    m = module(AXPY)
    tried = []
    if importlib.util.find_spec("cupy"):
        import cupy

        x, y = cupy.ones(1000, cupy.float32), cupy.zeros(1000, cupy.float32)
        launch(m, {"x": x, "y": y, "a": 2}, {"n": 1000})
        cupy.cuda.Device().synchronize()  # the next stream does not wait for this one
        with cupy.cuda.Stream(non_blocking=True):
            launch(m, {"x": x, "y": y, "a": 2}, {"n": 1000})
        cupy.cuda.Device().synchronize()
        assert float(y.min()) == 4 == float(y.max())
        tried.append("cupy")
    if importlib.util.find_spec("jax"):
        import jax.numpy
        import torch

        x, y = jax.numpy.ones(1000), torch.zeros(1000, device="cuda")
        launch(m, {"x": x, "y": y, "a": 2}, {"n": 1000})
        assert float(y.min()) == 2
        tried.append("jax")
    return tried


def run_hang():
    import torch

    launch(module(ONE["hang"]), {"p": torch.zeros(1, device="cuda", dtype=torch.int32)})
    torch.cuda.synchronize()


def run_wild():
    import torch

    from tilewright.targets.arrays import ArrayView

    torch.zeros(1, device="cuda")
    launch(module(ONE["wild"]), {"p": ArrayView(0x10, (1,), (1,), INT32, 0)})
    with pytest.raises(RunError, match="ILLEGAL_ADDRESS"):
        driver().synchronize()


gpu = pytest.mark.gpu


@gpu
@pytest.mark.parametrize("test", [run_axpy, run_tile, run_capture, run_clusters, run_wild])
def test_on_gpu(test):
    run_guarded(test, timeout=120)


@gpu
def test_other_libraries():
    assert run_guarded(run_libraries, timeout=180) or pytest.skip("neither CuPy nor JAX is here")


@gpu
def test_a_hang_is_an_error_and_the_gpu_survives():
    with pytest.raises(RunError, match="did not finish"):
        run_guarded(run_hang, timeout=30)
    run_guarded(run_clusters, timeout=120)
