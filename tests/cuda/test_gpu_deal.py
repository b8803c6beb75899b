"""Warpgroups with tiles of their own, on a real GPU: the same bits as when they share them, run
after run. A child process per case, as a lost order hangs."""

from __future__ import annotations

import pytest

from tilewright.ir.op import Role
from tilewright.ir.target import Target
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.gemm.gemm import gemm_relu

pytestmark = pytest.mark.gpu
CASES = {  # M, N, K; block_M, block_N, threads, stages; target
    "even": (4096, 4096, 1024, 128, 128, 256, 4, ""),
    "odd": (4090, 3000, 520, 128, 192, 256, 4, ""),
    "short": (8192, 4096, 64, 128, 128, 256, 3, ""),
    "three": (4096, 4096, 512, 64, 192, 384, 4, ""),
    "one": (4096, 4096, 512, 128, 128, 128, 4, ""),
    "pairs": (4096, 4096, 512, 128, 128, 256, 4, " -cluster=2"),
}


def run_case(name: str) -> dict[str, float]:
    """Runs of 20 that differ from the kernel whose warpgroups share tiles."""
    import torch

    m, n, k, block_M, block_N, threads, stages, more = CASES[name]
    program = gemm_relu.prim_func(
        m, n, k, block_M=block_M, block_N=block_N, threads=threads, stages=stages, dtype="bfloat16"
    ).program
    torch.manual_seed(0)
    a, b = (torch.randn(*s, device="cuda").to(torch.bfloat16) for s in ((m, k), (k, n)))
    results, found = {}, {}
    for choice in ("off", "on"):
        target = Target.parse(f"cuda -roles -persistent -ping_pong={choice}{more}")
        kernel = CudaKernel(program, target)
        after = kernel.trace.after("apply_ping_pong").kernels[0]
        roles = [op for op in after.body if isinstance(op, Role)]
        found[choice] = max(role.instances for role in roles)
        results[choice] = [torch.full((m, n), 7.0, device="cuda").to(a.dtype) for _ in range(20)]
        for out in results[choice]:
            kernel({"A": a, "B": b, "C": out})
        torch.cuda.synchronize()
    want = results["off"][0].view(torch.int16)
    found["wrong"] = sum(not torch.equal(o.view(torch.int16), want) for o in results["on"])
    return found


@pytest.mark.parametrize("name", CASES)
def test_on_gpu(name):
    found = run_guarded(run_case, name, timeout=60)
    assert found["off"] == 1 and found["on"] >= 2
    assert found["wrong"] == 0
