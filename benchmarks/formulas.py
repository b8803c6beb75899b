"""Formulas against the best tile texts that people wrote, and against torch, on a GPU.

    python benchmarks/formulas.py --seed 5 --count 2 --out formulas.json

A formula says what to compute and nothing else; tiles and threads of both are chosen by the model.
All are checked against torch first. The bar: a formula is as fast as the text (0.97).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from race import Race, main, name_of, seeded, tell_ratios, timed

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo

BOUND = 3e-2  # of an error, relative to one more than the reference's element


def race(
    name: str, inputs: Sequence[Any], formula: Any, text: Any, want: Callable[..., Any], work: float,
    unit: str = "FLOP",
) -> Race:  # fmt: skip
    """`text`, called with the inputs, is a kernel that somebody wrote, or None."""

    def run_formula() -> Any:
        return formula(*inputs)

    def checks() -> Iterator[dict[str, Any]]:
        right = want(*inputs).float()
        runs = {"ours": run_formula} | ({"text": lambda: text(*inputs)} if text else {})
        for label, run in runs.items():
            error = ((run().float() - right).abs() / (right.abs() + 1)).max().item()
            yield {"contender": label, "ok": error < BOUND, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        found = {"ours": run_formula, "torch": lambda: want(*inputs)}
        return found | ({"text": lambda: text(*inputs)} if text else {})

    return Race(name, contenders, checks, work=work, unit=unit, ours=["ours"])


def normal(*size: int) -> Any:
    import torch

    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def _attention(mask: str) -> Callable[..., Any]:
    import tilewright as tw
    import tilewright.math as tm

    def scores(q: Any, k: Any) -> Any:
        return q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5

    @tw.math
    def full(q: Any, k: Any, v: Any) -> Any:
        return tm.softmax(scores(q, k), axis=-1) @ v

    @tw.math
    def causal(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        i, j = tm.indices(s, -2, -1)
        return tm.softmax(tm.where(j <= i, s, -tm.inf), axis=-1) @ v

    @tw.math
    def window(q: Any, k: Any, v: Any) -> Any:
        s = scores(q, k)
        i, j = tm.indices(s, -2, -1)
        return tm.softmax(tm.where((j <= i) & (j > i - 1024), s, -tm.inf), axis=-1) @ v

    found: Callable[..., Any] = {"full": full, "causal": causal, "window": window}[mask]
    return found


def attentions(rng: random.Random) -> Iterator[Race]:
    import torch

    from zoo.attention import values

    b, h, d = rng.choice((1, 2, 4)), rng.choice((8, 16)), rng.choice((64, 128))
    s = 128 * rng.randrange(16, 65)
    q, k, v = (normal(b, h, s, d) for _ in range(3))
    work = 4.0 * b * h * s * s * d
    for mask in ("full", "causal", "window"):
        bias = None
        if mask == "window":
            at = torch.arange(s, device="cuda")
            bias = (at[None] <= at[:, None]) & (at[None] > at[:, None] - 1024)

        def want(q: Any, k: Any, v: Any, mask: str = mask, bias: Any = bias) -> Any:
            return torch.nn.functional.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, is_causal=mask == "causal"
            )

        def text(q: Any, k: Any, v: Any, mask: str = mask) -> Any:
            return values.attention(q, k, v, mask == "causal")

        given = text if mask != "window" else None
        name = name_of(f"attention_{mask}", (b, h, s, d))
        yield race(name, (q, k, v), _attention(mask), given, want, work)


def products(rng: random.Random) -> Iterator[Race]:
    import torch

    import tilewright as tw
    import tilewright.math as tm
    from zoo.gemm import values

    m, n, k = (rng.randrange(16, 65) * 64 for _ in range(3))
    work = 2.0 * m * n * k

    @tw.math
    def product(a: Any, b: Any) -> Any:
        return a @ b

    @tw.math
    def linear_gelu(a: Any, b: Any, bias: Any) -> Any:
        return tm.gelu(a @ b + bias, approximate="tanh")

    @tw.math
    def norm_product(x: Any, w: Any) -> Any:
        return (x * tm.rsqrt(tm.mean(x * x, axis=-1, keepdims=True) + 1e-6)) @ w

    @tw.math
    def gated(x: Any, up: Any, gate: Any) -> Any:
        return tm.silu(x @ gate) * (x @ up)

    a, b, bias = normal(m, k), normal(k, n) / math.sqrt(k), normal(n)
    yield race(name_of("product", (m, n, k)), (a, b), product, values.matmul, torch.matmul, work)
    gelu = torch.compile(
        lambda a, b, bias: torch.nn.functional.gelu(a @ b + bias, approximate="tanh")
    )
    yield race(name_of("linear_gelu", (m, n, k)), (a, b, bias), linear_gelu, None, gelu, work)
    rms = torch.compile(
        lambda x, w: (
            (x * torch.rsqrt((x.float() ** 2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) @ w
        )
    )
    yield race(name_of("norm_product", (m, n, k)), (a, b), norm_product, None, rms, work)
    mlp = torch.compile(lambda x, up, gate: torch.nn.functional.silu(x @ gate) * (x @ up))
    other = normal(k, n) / math.sqrt(k)
    yield race(name_of("gated", (m, n, k)), (a, b, other), gated, None, mlp, 2 * work)


def rows(rng: random.Random) -> Iterator[Race]:
    import torch

    import tilewright as tw
    import tilewright.math as tm
    from zoo import values

    n = 8 * rng.randrange(64, 2049)
    m = (1 << 27) // n
    x, g, b = normal(m, n), normal(n), normal(n)

    @tw.math
    def softmax(x: Any) -> Any:
        return tm.softmax(x, axis=-1)

    @tw.math
    def layer_norm(x: Any, g: Any, b: Any) -> Any:
        mean = tm.mean(x, axis=-1, keepdims=True)
        var = tm.mean((x - mean) ** 2, axis=-1, keepdims=True)
        return (x - mean) * tm.rsqrt(var + 1e-5) * g + b

    moved = 4.0 * m * n
    yield race(name_of("softmax", (m, n)), (x,), softmax, getattr(values, "softmax", None),
               lambda x: torch.softmax(x, -1), moved, "B")  # fmt: skip
    yield race(name_of("layer_norm", (m, n)), (x, g, b), layer_norm, None,
               lambda x, g, b: torch.nn.functional.layer_norm(x, x.shape[-1:], g, b), moved, "B")  # fmt: skip


def races(seed: int = 0, count: int = 1, part: str = "0/1") -> Iterator[Race]:
    import torch

    torch.manual_seed(seed)
    rng = random.Random(seed)
    for _ in range(count):
        for family in (attentions, products, rows):
            yield from family(rng)
            torch.cuda.empty_cache()


def summary(paths: Sequence[str]) -> None:
    for rival in ("text", "torch"):
        found = [
            (times[rival] / times["ours"], name) for name, times in timed(paths) if rival in times
        ]
        tell_ratios(f"formula over {rival}", found, 0.97)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(sys.argv[2:])
    else:
        sys.exit(main(__file__, seeded(__doc__)))
