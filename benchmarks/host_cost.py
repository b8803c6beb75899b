"""What a launch costs the host: ours, three PyTorch tensors checked, against the driver's alone.

    python benchmarks/host_cost.py [--out FILE]

Contenders take turns within one process, and a turn's launches fit the driver's queue, so that
nobody waits for the GPU. `bare` launches the same kernel with the same parameters, prepared
beforehand: once through cuda-bindings' cuLaunchKernel, once by calling cuLaunchKernelEx by its
address; the ratio is against the faster one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle

from race import Race, command_line, main

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import INT32, dtype
from tilewright.ir.expr import Var, wrap
from tilewright.ir.op import Dim, Program
from tilewright.targets.arrays import ProgramCheck
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.driver import driver
from tilewright.targets.cuda.launch import (
    KEPT,
    CudaModule,
    LaunchSpec,
    Map,
    Size,
    TensorArg,
    TensorPointer,
)
from tilewright.targets.cuda.nvrtc import compile_cuda
from tilewright.targets.cuda.prepared import Prepared
from tilewright.targets.cuda.tensormap import TensorMapSpec

GOAL = 1.5
SOURCE = """
struct alignas(64) Map { unsigned long long words[16]; };
extern "C" __global__ void pointers(const void* a, const void* b, void* c, int m, int n, int k) {}
extern "C" __global__ void maps(const __grid_constant__ Map a, const __grid_constant__ Map b,
                                const __grid_constant__ Map c, int m, int n, int k) {}
"""
BF16 = dtype("bfloat16")
M, N, K = (Var(name, INT32) for name in "MNK")
SIZES = (Size("M"), Size("N"), Size("K"))
PARAMS = {
    "pointers": (TensorPointer("A"), TensorPointer("B"), TensorPointer("C")),
    "maps": tuple(Map(TensorMapSpec(name, BF16, (128, 64), swizzle=128)) for name in "ABC"),
}


def program() -> Program:
    shapes = {"A": (M, K), "B": (K, N), "C": (M, N)}
    tensors = tuple(
        Buffer(name, tuple(map(wrap, shape)), BF16, Space.GLOBAL) for name, shape in shapes.items()
    )
    return Program("gemm", tensors, (), (Dim(M), Dim(N), Dim(K)))


kept: list[object] = []


def contenders(kind: str) -> dict[str, Callable[[], object]]:
    import torch
    from cuda.bindings import driver as api

    compiled = compile_cuda(SOURCE, "host_cost.cu", "sm_90a")
    spec = LaunchSpec(kind, (1,), 32, PARAMS[kind] + SIZES)
    module = CudaModule(compiled.cubin, [spec], resources=compiled.resources, arch="sm_90a")
    a, b, c = (torch.empty(1024, 1024, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    check = ProgramCheck(program(), written={"C"})
    ours = make_caller(module, [TensorArg(name) for name in "ABC"], check)
    ours(a, b, c)
    torch.cuda.synchronize()

    from tilewright.targets.arrays import view_of

    views = {name: view_of(x, name) for name, x in zip("ABC", (a, b, c))}
    (step,) = Prepared(module, views, {}, check(views), 0).steps(0)
    launch, arguments = driver().launch, step.arguments
    function, pointers = api.CUfunction(arguments[1]), arguments[2]
    stream = api.CUstream(0)
    kept.append(step)  # `arguments` point into its memory
    # more addresses than are remembered: each is new to the caller
    many = torch.empty(2 * KEPT, 256, device="cuda", dtype=torch.bfloat16)
    others = cycle([many[i:].view(-1)[: 1 << 16].view(256, 256) for i in range(KEPT)])
    square = torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
    return {
        "ours": lambda: ours(a, b, c),
        "ours elsewhere": lambda: ours(next(others), square, c[:64].view(256, 256)),
        "bare cuda-bindings": lambda: api.cuLaunchKernel(
            function, 1, 1, 1, 32, 1, 1, 0, stream, pointers, 0
        ),
        "bare by address": lambda: launch(*arguments),
    }


def race(kind: str, turns: int, count: int) -> Race:
    return Race(
        f"launch with {kind}",
        lambda: contenders(kind),
        ours=("ours", "ours elsewhere"),
        about={"goal": GOAL, "unit": "a launch; against_best at least 1 / goal meets it"},
        backend="clock",
        rounds=turns,
        count=count,
    )


def races(turns: int = 60, count: int = 300) -> Iterator[Race]:
    return (race(kind, turns, count) for kind in PARAMS)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--turns", type=int, default=60)
    parser.add_argument("--count", type=int, default=300, help="launches a turn; the queue is 1024")
    raise SystemExit(main(__file__, parser))
