"""Kernels over tile values against the same kernels written with allocations and copies, on a GPU.

    python benchmarks/values.py --out values.json
    python benchmarks/values.py --seed 7 --count 3

Both texts have the same tiles and threads; sizes are drawn by the seed. PyTorch is beside them. The
bar is that a value text is as fast as the other one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from race import Race, command_line, main, name_of


def product(m: int, n: int, k: int) -> Any:
    """C = A · B with words."""
    import tilewright as tw
    import tilewright.language as T

    @T.prim_func
    def product(
        A: T.Tensor((m, k), "bfloat16"), B: T.Tensor((k, n), "bfloat16"),
        C: T.Tensor((m, n), "bfloat16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, 256), T.ceildiv(m, 128), threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "bfloat16")
            b = T.alloc_shared((64, 256), "bfloat16")
            c = T.alloc_fragment((128, 256), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, 64)):
                T.copy(A[by * 128, step * 64], a)
                T.copy(B[step * 64, bx * 256], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 256])

    return tw.compile(product)


def races(seed: int = 0, count: int = 2) -> Iterator[Race]:
    import torch

    from zoo import values
    from zoo.attention.flash import flash_attention
    from zoo.norm.layer_norm import layer_norm_whole
    from zoo.softmax.softmax import softmax

    torch.manual_seed(seed)
    rng = random.Random(seed)

    def normal(*size: int) -> Any:
        return torch.randn(size, device="cuda", dtype=torch.bfloat16)

    def race(
        name: str,
        inputs: tuple[Any, ...],
        ours: Any,
        words: Any,
        peer: Callable[..., Any],
        work: float,
        unit: str,
    ) -> Race:
        out = torch.empty_like(ours(*inputs))
        kernel = ours.compile(*inputs)  # a call of the function itself looks it up

        def checks() -> Iterator[dict[str, Any]]:
            want = peer(*inputs).float()
            words(*inputs, out)
            for label, got in (("values", ours(*inputs)), ("words", out)):
                error = ((got.float() - want).abs() / (want.abs() + 1)).max().item()
                yield {"contender": label, "ok": error < 3e-2, "error": error}

        def contenders() -> dict[str, Callable[[], Any]]:
            return {
                "values": lambda: kernel(*inputs),
                "words": lambda: words(*inputs, torch.empty_like(out)),  # as values do
                "torch": lambda: peer(*inputs),
            }

        return Race(name, contenders, checks, work=work, unit=unit, ours=["values"])

    for _ in range(count):
        m, n, k = (rng.randrange(16, 65) * 128 for _ in range(3))
        tiles = {"m": 128, "n": 256, "k": 64}
        yield race(
            name_of("matmul", (m, n, k)),
            (normal(m, k), normal(k, n)),
            values.matmul.with_schedule(tiles=tiles, threads=256),
            product(m, n, k),
            torch.matmul,
            2.0 * m * n * k,
            "FLOP",
        )
    for _ in range(count):
        batch, heads, length = rng.randrange(1, 5), rng.randrange(8, 33), rng.randrange(8, 65) * 128
        yield race(
            name_of("attention", (batch, heads, length, 128)),
            tuple(normal(batch, heads, length, 128) for _ in range(3)),
            values.attention.with_schedule(tiles={"i": 128, "j": 128}, threads=256),
            flash_attention(
                batch, heads, heads, length, length, 128, causal=True, block_M=128, block_N=128,
                threads=256, dtype="bfloat16",
            ),
            lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(
                q, k, v, is_causal=True
            ),
            2.0 * batch * heads * length**2 * 128,
            "FLOP",
        )  # fmt: skip
    for _ in range(count):
        n = rng.randrange(8, 65) * 128
        m = (1 << 27) // n
        yield race(
            name_of("softmax", (m, n)),
            (normal(m, n),),
            values.softmax.with_schedule(tiles={"r": 1}, threads=256),
            softmax(m, n, block_M=1, threads=256, dtype="bfloat16"),
            lambda x: torch.softmax(x, -1),
            4.0 * m * n,
            "B",
        )
        weight, bias = normal(n), normal(n)
        yield race(
            name_of("layer_norm", (m, n)),
            (normal(m, n), weight, bias),
            values.layer_norm.with_schedule(tiles={"r": 1}, threads=256),
            layer_norm_whole(m, n, block_M=1, threads=256, dtype="bfloat16"),
            lambda x, w, b, n=n: torch.nn.functional.layer_norm(x, (n,), w, b),
            4.0 * m * n,
            "B",
        )


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2)
    raise SystemExit(main(__file__, parser))
