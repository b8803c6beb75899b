"""Warpgroups that take turns, on a real GPU: the same bits as without, run after run, and how long
it takes. `pytest -m gpu -s` shows the times; a child process per case, as a lost turn hangs."""

from __future__ import annotations

import pytest

from tilewright.ir.op import Turn, walk_ops
from tilewright.ir.target import Target
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import CudaKernel
from zoo.attention.flash import flash_attention

pytestmark = pytest.mark.gpu
PLAIN = "cuda -roles -skew=off -unswitch_guards=off"
FULL = "cuda -roles"
SHAPES = {  # batch, heads, queries, keys, head size, causal; block_M, block_N, threads
    "full": (2, 16, 8192, 8192, 128, False, 128, 128, 256),
    "causal": (2, 16, 8192, 8192, 128, True, 128, 128, 256),
    "three": (2, 16, 4096, 4096, 64, False, 192, 128, 384),
    "one_tile": (1, 3, 128, 128, 128, False, 128, 128, 256),
    "no_keys": (1, 2, 512, 256, 64, True, 128, 64, 256),  # the first rows see none
}


def run_case(name: str, target: str) -> dict[str, float]:
    """Runs of 20 that differ from the kernel without turns, and milliseconds of both."""
    import torch

    batch, heads, rows, keys, dim, causal, block_M, block_N, threads = SHAPES[name]
    program = flash_attention.prim_func(
        batch, heads, heads, rows, keys, dim, causal,
        block_M=block_M, block_N=block_N, threads=threads, dtype="bfloat16",
    ).program  # fmt: skip
    torch.manual_seed(0)

    def made(count: int) -> torch.Tensor:
        return torch.randn(batch, heads, count, dim, device="cuda").to(torch.bfloat16)

    args = {"Q": made(rows), "K": made(keys), "V": made(keys)}
    results, found = {}, {}
    for choice in ("off", "on"):
        kernel = CudaKernel(program, Target.parse(target).choosing(order_warpgroups=choice))
        after = kernel.trace.after("order_warpgroups").kernels[0]
        found[f"sections {choice}"] = sum(isinstance(op, Turn) for op in walk_ops(after)) / 2
        outputs = [torch.full_like(args["Q"], float("nan")) for _ in range(20)]
        for out in outputs:
            kernel({**args, "O": out})
        torch.cuda.synchronize()
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(20):
            kernel({**args, "O": torch.empty_like(outputs[0])})
        last.record()
        torch.cuda.synchronize()
        found[f"ms {choice}"] = first.elapsed_time(last) / 20
        results[choice] = outputs
    want = results["off"][0].view(torch.int16)
    found["wrong"] = sum(not torch.equal(o.view(torch.int16), want) for o in results["on"])
    return found


@pytest.mark.parametrize("target", [PLAIN, FULL])
@pytest.mark.parametrize("name", SHAPES)
def test_on_gpu(name: str, target: str):
    found = run_guarded(run_case, name, target, timeout=120)
    print(name, target, found)
    assert found["sections on"] and not found["sections off"] and not found["wrong"]
