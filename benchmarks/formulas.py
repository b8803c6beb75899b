"""Formulas against the best tile texts that people wrote, and against torch, on a GPU.

    python benchmarks/formulas.py --seed 5 --count 2 --out formulas.json

A formula says what to compute and nothing else; tiles and threads of both are chosen by the model.
All are checked against torch first, attention
against FlexAttention. The bar: a formula is as fast as the text (0.97).
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
    name: str,
    inputs: Sequence[Any],
    formula: Any,
    text: Any,
    want: Callable[..., Any],
    work: float,
    unit: str = "FLOP",
) -> Race:
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


def scores(q: Any, k: Any) -> Any:
    import tilewright.math as tm

    return q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5


def _variants() -> dict[str, Callable[..., Any]]:
    """Attention with masks and scores that people use: formulas of (q, k, v, x), where `x` is what
    a variant needs besides."""
    import tilewright.math as tm

    def variant(change: Callable[[Any, Any, Any, Any], Any]) -> Callable[..., Any]:
        def attention(q: Any, k: Any, v: Any, x: Any) -> Any:
            s = scores(q, k)
            s = change(s, *tm.indices(s, -2, -1), x)
            return tm.astype(tm.softmax(s, axis=-1) @ v, q.dtype)

        return attention

    def masked(seen: Callable[..., Any]) -> Callable[..., Any]:
        return variant(lambda s, i, j, x: tm.where(seen(i, j, x), s, -tm.inf))

    return {
        "full": variant(lambda s, i, j, x: s),
        "causal": masked(lambda i, j, x: j <= i),
        "window": masked(lambda i, j, x: (j <= i) & (j > i - 1024)),
        "documents": masked(lambda i, j, x: (j <= i) & (x[:, None] == x[None, :])),
        "alibi": variant(lambda s, i, j, x: s + x[:, None, None] * (j - i)),
        "soft_cap": variant(lambda s, i, j, x: 20 * tm.tanh(s / 20)),
        "bias": variant(lambda s, i, j, x: s + x[j - i + (s.shape[-1] - 1)]),
    }


def _flex(name: str, q: Any, k: Any, v: Any, x: Any) -> Callable[[], Any]:
    """The same variant in FlexAttention."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n = q.shape[2]
    changes = {
        "alibi": lambda s, b, h, i, j: s + x[h] * (j - i),
        "soft_cap": lambda s, b, h, i, j: 20 * torch.tanh(s / 20),
        "bias": lambda s, b, h, i, j: s + x[j - i + n - 1],
    }
    masks = {
        "causal": lambda b, h, i, j: i >= j,
        "window": lambda b, h, i, j: (i >= j) & (j > i - 1024),
        "documents": lambda b, h, i, j: (i >= j) & (x[i] == x[j]),
    }
    change = changes.get(name)
    mask = create_block_mask(masks[name], None, None, n, n) if name in masks else None
    flex = torch.compile(flex_attention)
    return lambda: flex(q, k, v, score_mod=change, block_mask=mask)


def _besides(name: str, h: int, n: int) -> Any:
    import torch

    if name == "documents":
        ends = torch.randint(0, n, (7,), device="cuda")
        return (torch.arange(n, device="cuda")[:, None] >= ends).sum(1).int()
    size = {"alibi": h, "bias": 2 * n - 1}.get(name, 1)
    return torch.randn(size, device="cuda") / (64 if name == "alibi" else 4)


def attentions(rng: random.Random) -> Iterator[Race]:
    import tilewright as tw
    from zoo.attention import values

    b, h, d = rng.choice((1, 2, 4)), rng.choice((8, 16)), rng.choice((64, 128))
    n = 128 * rng.randrange(16, 65)
    q, k, v = (normal(b, h, n, d) for _ in range(3))
    for name, formula in _variants().items():
        x = _besides(name, h, n)
        given = (q, k, v, x if name in ("documents", "alibi", "bias") else x[:1])
        text = None
        if name in ("full", "causal"):

            def text(q: Any, k: Any, v: Any, x: Any, causal: bool = name == "causal") -> Any:
                return values.attention(q, k, v, causal)

        flex = _flex(name, q, k, v, x)
        title = name_of(f"attention_{name}", (b, h, n, d))
        made = tw.math(formula)
        yield race(title, given, made, text, lambda *_, f=flex: f(), 4.0 * b * h * n * n * d)


def gradients(rng: random.Random) -> Iterator[Race]:
    """Attention's backward: formula and text are given what the forward pass keeps, the result and
    the sums of rows. `alone` is given neither: the formula finds the sums, the text's forward pass
    does."""
    import torch

    import tilewright.math as tm
    from zoo.attention import values

    b, h, d, n = rng.choice((1, 2)), rng.choice((8, 16)), 128, 128 * rng.randrange(8, 33)
    q, k, v, d_out = (normal(b, h, n, d) for _ in range(4))
    out, sums = values.attention_with_sums(q, k, v, True)
    made = tm.vjp(_variants()["causal"], wrt=["q", "k", "v"])
    x = torch.zeros(1, device="cuda")
    _, kept = made.forward(q, k, v, x)

    def want() -> tuple[Any, ...]:
        given = [t.detach().requires_grad_() for t in (q, k, v)]
        y = torch.nn.functional.scaled_dot_product_attention(*given, is_causal=True)
        return torch.autograd.grad(y, given, d_out)

    def text() -> tuple[Any, ...]:
        found: tuple[Any, ...] = values.attention_gradients(q, k, v, out, d_out, sums, True)
        return found

    def text_alone() -> tuple[Any, ...]:
        own, of_rows = values.attention_with_sums(q, k, v, True)
        found: tuple[Any, ...] = values.attention_gradients(q, k, v, own, d_out, of_rows, True)
        return found

    contenders = {
        "ours": lambda: made.backward(kept, d_out),
        "text": text,
        "ours_alone": lambda: made(q, k, v, x, d_out),
        "text_alone": text_alone,
    }

    def checks() -> Iterator[dict[str, Any]]:
        right = want()
        for label, run in contenders.items():
            error = max(
                ((got.float() - good.float()).abs() / (good.float().abs() + 1)).max().item()
                for got, good in zip(run(), right, strict=True)
            )
            yield {"contender": label, "ok": error < BOUND, "error": error}

    yield Race(
        name_of("attention_gradients", (b, h, n, d)),
        lambda: contenders,
        checks, work=5.0 * b * h * n * n * d, unit="FLOP", ours=["ours", "ours_alone"],
    )  # fmt: skip


def decoding(rng: random.Random) -> Iterator[Race]:
    import torch

    import tilewright as tw
    from zoo.attention import values

    b, g, h, d = rng.choice((1, 4, 16)), rng.choice((4, 8)), rng.choice((4, 8)), 128
    n = 256 * rng.randrange(32, 257)
    q, k, v = normal(b, g, h, d), normal(b, g, n, d), normal(b, g, n, d)
    made = tw.math(_variants()["full"])
    x = torch.zeros(1, device="cuda")
    yield race(
        name_of("decode", (b, g, h, d, n)),
        (q, k, v, x),
        made,
        lambda q, k, v, x: values.decode(q, k, v),
        lambda q, k, v, x: torch.nn.functional.scaled_dot_product_attention(q, k, v),
        4.0 * b * g * n * d,
        "B",
    )


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

    def normed(x: Any, g: Any, b: Any) -> Any:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], g, b)

    yield race(name_of("layer_norm", (m, n)), (x, g, b), layer_norm, None, normed, moved, "B")


FAMILIES = {
    "attention": attentions,
    "gradients": gradients,
    "decoding": decoding,
    "products": products,
    "rows": rows,
}


def races(
    seed: int = 0, count: int = 1, part: str = "0/1", families: Sequence[str] = ()
) -> Iterator[Race]:
    import torch

    torch.manual_seed(seed)
    rng = random.Random(seed)
    for _ in range(count):
        for name in families or FAMILIES:
            yield from FAMILIES[name](rng)
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
        parser = seeded(__doc__)
        parser.add_argument("--families", nargs="+", default=[], choices=FAMILIES)
        sys.exit(main(__file__, parser))
