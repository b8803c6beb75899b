"""Measured timelines on a real GPU. `pytest -m gpu`; in a child process that can be killed."""

from __future__ import annotations

from itertools import pairwise

import pytest

from tilewright.targets.cuda.guard import run_guarded


def traced_gemm() -> dict[str, object]:
    import torch

    from zoo.gemm.gemm import gemm_relu

    n = 1024
    kernel = gemm_relu.on("cuda")(n, n, n, block_N=256, threads=256)
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in range(2))
    plain, c = torch.empty_like(a), torch.zeros_like(a)
    kernel(a, b, plain)
    kernel.trace(a, b, c)
    trace = kernel.trace(a, b, c)
    (told,) = trace.timelines.values()
    by_role: dict[tuple[int, str], list[tuple[int, int]]] = {}
    for span in trace.spans:
        by_role.setdefault((span.block, span.role), []).append((span.start, span.end))
    return {
        "equal": bool((plain == c).all()),
        "roles": sorted({role for _, role in by_role}),
        "blocks": len({block for block, _ in by_role}),
        "forward": all(
            one[1] <= next_one[0] for spans in by_role.values() for one, next_one in pairwise(spans)
        ),
        "cycles": (told["interval"], told["measured"]["interval"]),
        "drawn": kernel.explain().count("clock   |"),
        "text": str(trace),
    }


def traced_rows() -> tuple[bool, str]:
    import torch

    from zoo.softmax.softmax import softmax_rows

    x = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
    kernel = softmax_rows(4096, target="cuda")
    plain, y = torch.empty_like(x), torch.empty_like(x)
    kernel(x, plain)
    trace = kernel.trace(x, y)
    return bool((plain == y).all()) and len(trace.spans) > 0, str(trace)


@pytest.mark.gpu
def test_a_product():
    found = run_guarded(traced_gemm, timeout=120)
    assert found["equal"] and found["forward"]
    assert found["roles"] == ["consumer 0", "consumer 1", "producer"] and found["blocks"] == 4
    modelled, measured = found["cycles"]
    assert modelled / 4 < measured < 4 * modelled, found["text"]
    assert found["drawn"] >= 2


@pytest.mark.gpu
def test_rows():
    good, text = run_guarded(traced_rows, timeout=120)
    assert good and "timeline of" in text
