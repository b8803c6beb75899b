"""What stamps cost: traced builds (`kernel.trace`) against plain ones, on a GPU.

    python benchmarks/trace_overhead.py --out trace.json --text trace.txt

The traced build is timed without reading its stamps back. The bar is 5 %. The drawings of the
traces go to `--text`, or to the terminal.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any


def kernels() -> Iterator[tuple[str, Any, tuple[Any, ...]]]:
    """Name, kernel and arguments."""
    import torch

    from zoo.attention.flash import flash_attention
    from zoo.gemm import values
    from zoo.gemm.gemm import gemm_relu
    from zoo.softmax.softmax import softmax_rows

    def normal(*size: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(size, device="cuda", dtype=dtype)

    n = 4096
    a, b = normal(n, n), normal(n, n)
    tiles = {"m": 128, "n": 256, "k": 64}
    yield "matmul", values.matmul.with_schedule(tiles=tiles, threads=256).compile(a, b), (a, b)
    kernel = gemm_relu(n, n, n, block_N=256, threads=256, dtype="bfloat16")
    yield "gemm", kernel, (a, b, torch.empty_like(a))
    q, k, v = (normal(2, 16, 8192, 128) for _ in range(3))
    kernel = flash_attention(
        2, 16, 16, 8192, 8192, 128, block_M=128, block_N=128, threads=256, dtype="bfloat16"
    )
    yield "flash", kernel, (q, k, v, torch.empty_like(q))
    x = normal(32768, n)
    yield "softmax_rows", softmax_rows(n), (x, torch.empty_like(x))


def overhead(kernel: Any, args: tuple[Any, ...]) -> tuple[dict[str, Any], str]:
    """Milliseconds of both builds, and the drawing of a trace."""
    import tilewright as tw
    from tilewright.targets.cuda.launch import CudaModule

    plain = kernel(*args)
    outputs = [plain] if plain is not None else list(args[-1:])
    before = [out.clone() for out in outputs]
    kernel.trace(*args)  # the first finds no code in the caches
    trace = kernel.trace(*args)
    after = [trace.result] if trace.result is not None else list(args[-1:])
    stamped = kernel._stamped
    for form in (stamped.executable, stamped.executable.otherwise):
        if form is not None:
            form.module.run = partial(CudaModule.run, form.module)  # launches, and nothing else
    contenders = {"plain": lambda: kernel(*args), "traced": lambda: stamped(*args)}
    times = tw.measure(contenders, rounds=20, budget=10.0)
    took = {name: statistics.median(each) * 1e3 for name, each in times.items()}
    measured = [(told or {}).get("measured") or {} for told in trace.timelines.values()]
    figures = {
        "plain_ms": took["plain"],
        "traced_ms": took["traced"],
        "overhead": took["traced"] / took["plain"] - 1,
        "equal": all(bool((x == y).all()) for x, y in zip(before, after, strict=True)),
        "spans": len(trace.spans),
        "intervals": [
            (told.get("interval"), each.get("interval"))
            for told, each in zip(trace.timelines.values(), measured, strict=True)
        ],
        "differences": [each.get("differences") for each in measured],
        "registers": {
            "plain": kernel.resources["registers"],
            "traced": stamped.resources["registers"],
        },
    }
    return figures, str(trace)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--only", default="")
    chosen = parser.parse_args()
    found, texts = {}, []
    for name, kernel, args in kernels():
        if chosen.only in name:
            found[name], text = overhead(kernel, args)
            texts.append(text)
            print(json.dumps({name: found[name]}), flush=True)
    if chosen.out:
        chosen.out.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.text:
        chosen.text.write_text("\n\n".join(texts) + "\n")
    else:
        print("\n\n".join(texts))


if __name__ == "__main__":
    main()
