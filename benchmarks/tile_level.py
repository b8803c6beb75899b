"""The zoo's GEMM and attention, as the compiler derives them from sequential text, on a GPU.

    python benchmarks/tile_level.py --out tile_level.json
    python benchmarks/tile_level.py --products 8192x8192x8192 --attentions

Several tile sizes of each kernel take turns with cuBLAS and cuDNN: what the language gives without
a word about barriers or roles. Checked first, as in gemm_scheduled.py and attention_scheduled.py:
NaN-poisoned outputs, all elements of a product against float32, of attention against float64 with
the bound of two roundings, 20 runs bit for bit on the first shape. ReLU is part of the GEMM.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attention_scheduled import inputs as attention_inputs
from attention_scheduled import worst
from gemm_scheduled import inputs as product_inputs
from race import Race, command_line, main, rotate, same_every_time, sets_for, shape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo

PRODUCTS = ((8192, 8192, 8192), (4096, 4096, 4096))
ATTENTIONS = ((2, 16, 8192, 128), (2, 16, 8192, 64))  # batch, heads, length, head
TARGETS = {"": "cuda", " roles": "cuda -roles"}  # all threads alike, and with a producer
TILES = (
    {"block_N": 256, "threads": 256, "stages": 3},
    {"block_N": 256, "threads": 256, "stages": 4},
    {"block_N": 128, "threads": 128, "stages": 4},
)
FLASH_TILES = (
    {"block_M": 128, "block_N": 128, "threads": 256},
    {"block_M": 64, "block_N": 128, "threads": 128},
)


def label(sizes: dict[str, int]) -> str:
    return " ".join(f"{k}={v}" for k, v in sizes.items())


def product(m: int, n: int, k: int, runs: int) -> Race:
    import torch

    from zoo.gemm.gemm import gemm_relu

    kernels = {
        label(t) + more: gemm_relu.on(target)(m, n, k, dtype="bfloat16", **t)
        for t in TILES
        for more, target in TARGETS.items()
    }
    about: dict[str, Any] = {
        "shape": (m, n, k),
        "compiled": {name: kernel.resources for name, kernel in kernels.items()},
    }

    def contenders() -> dict[str, Callable[[], Any]]:
        count = sets_for(2 * (m * k + k * n + m * n))
        sets = [(*product_inputs(m, n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
                for _ in range(count)]  # fmt: skip
        found: dict[str, Callable[[], Any]] = {
            name: rotate(*(partial(kernel, a, b, c) for a, b, c in sets))
            for name, kernel in kernels.items()
        }
        found["cublas"] = rotate(*(partial(torch.matmul, a, b, out=c) for a, b, c in sets))
        return found

    def checks() -> Iterator[dict[str, Any]]:
        a, b = product_inputs(m, n, k)
        want = torch.relu(a.float() @ b.float())
        bound = 2.0**-8 * want.max().item() + 1e-3 * k**0.5
        for name, kernel in kernels.items():

            def run(kernel: Any = kernel) -> tuple[Any]:
                c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
                kernel(a, b, c)
                return (c,)

            first = same_every_time(run, runs)
            if first is None:
                yield {"contender": name, "ok": False, "why": "runs differ"}
                continue
            error = (first[0].float() - want).abs().max().item()
            ok = bool(torch.isfinite(first[0]).all()) and error <= bound
            yield {"contender": name, "ok": ok, "error": error, "bound": bound, "runs": runs}

    name = f"gemm {m}x{n}x{k}"
    return Race(name, contenders, checks, work=2.0 * m * n * k, ours=list(kernels), about=about)


def attention(batch: int, heads: int, length: int, head: int, causal: bool, runs: int) -> Race:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from zoo.attention.flash import flash_attention

    kernels = {
        label(t) + more: flash_attention.on(target)(
            batch, heads, heads, length, length, head, causal=causal, dtype="bfloat16", **t
        )
        for t in FLASH_TILES
        for more, target in TARGETS.items()
    }
    about: dict[str, Any] = {
        "shape": (batch, heads, length, head),
        "causal": causal,
        "compiled": {name: kernel.resources for name, kernel in kernels.items()},
    }

    def contenders() -> dict[str, Callable[[], Any]]:
        qkv = attention_inputs(batch, heads, length, length, head)
        o = torch.empty_like(qkv[0])
        found: dict[str, Callable[[], Any]] = {
            name: partial(kernel, *qkv, o) for name, kernel in kernels.items()
        }

        def cudnn() -> None:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                sdpa(*qkv, is_causal=causal)

        found["cudnn"] = cudnn
        return found

    def checks() -> Iterator[dict[str, Any]]:
        qkv = attention_inputs(batch, heads, length, length, head)
        for name, kernel in kernels.items():

            def run(kernel: Any = kernel) -> tuple[Any]:
                o = torch.full_like(qkv[0], float("nan"))
                kernel(*qkv, o)
                return (o,)

            first = same_every_time(run, runs)
            if first is None:
                yield {"contender": name, "ok": False, "why": "runs differ"}
                continue
            error = worst(*qkv, first[0], causal)
            yield {"contender": name, "ok": error <= 1.0, "error_of_bound": error, "runs": runs}

    work = 4.0 * batch * heads * length * length * head * (0.5 if causal else 1.0)
    name = f"attention {batch}x{heads}x{length} head {head}" + " causal" * causal
    return Race(name, contenders, checks, work=work, ours=list(kernels), about=about)


def races(
    products: Sequence[tuple[int, ...]] = PRODUCTS,
    attentions: Sequence[tuple[int, ...]] = ATTENTIONS,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)
    for i, sizes in enumerate(products):
        yield product(*sizes, runs=3 if i else 20)
    for i, sizes in enumerate(attentions):
        for causal in (False, True):
            yield attention(*sizes, causal=causal, runs=3 if i or causal else 20)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--products", type=shape(3), nargs="*", default=list(PRODUCTS))
    parser.add_argument("--attentions", type=shape(4), nargs="*", default=list(ATTENTIONS))
    raise SystemExit(main(__file__, parser))
