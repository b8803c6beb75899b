"""Ops against PyTorch, as it is and compiled, on a GPU, at sizes that a seed draws.

    python benchmarks/ops.py --seed 5 --count 2 --out ops.json
    python benchmarks/ops.py --families attention losses --out ops.json
    python benchmarks/ops.py summary ops.json

All are bfloat16 and checked against PyTorch in float64 first. `…_training` races the gradient, too.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from race import Race, main, name_of, seeded, tell_ratios, timed

# of an error, relative to one more than the reference's element; PyTorch's sums for gradients of
# weights have larger ones
BOUND, BOUND_OF_GRADIENTS = 3e-2, 1e-1


def race(
    name: str,
    inputs: Sequence[Any],
    ours: Callable[..., Any],
    want: Callable[..., Any],
    work: float,
    unit: str = "B",
    training: int = 0,
    wide: Callable[..., Any] | None = None,
) -> Race:
    """`want` is PyTorch's; of the first `training` inputs there are gradients. `wide` is what is
    right, of inputs in float64; PyTorch's, if it is not given."""
    import torch

    def trained(function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*given: Any) -> Any:
            leaves = [x.detach().requires_grad_() for x in given[:training]]
            out = function(*leaves, *given[training:])
            return torch.autograd.grad(out, leaves, torch.ones_like(out))

        return step if training else function

    def widened(x: Any) -> Any:
        return x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    def several(found: Any) -> list[Any]:
        return list(found) if isinstance(found, (tuple, list)) else [found]

    compiled = torch.compile(want)
    runs = {"ours": trained(ours), "torch": trained(want), "compiled": trained(compiled)}

    def checks() -> Iterator[dict[str, Any]]:
        right = several(trained(wide or want)(*map(widened, inputs)))
        for label, run in runs.items():
            pairs = [(a.double(), b.double()) for a, b in zip(several(run(*inputs)), right)]
            error = max(((a - b).abs() / (b.abs() + 1)).max().item() for a, b in pairs)
            bound = BOUND_OF_GRADIENTS if training else BOUND
            yield {"contender": label, "ok": error < bound, "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        return {label: lambda run=run: run(*inputs) for label, run in runs.items()}

    return Race(name, contenders, checks, work=work, unit=unit, ours=["ours"])


def normal(*size: int) -> Any:
    import torch

    return torch.randn(size, device="cuda", dtype=torch.bfloat16)


def matrices(rng: random.Random) -> Iterator[Race]:
    import torch.nn.functional as F

    import tilewright.ops as ops

    m, n, k = (rng.randrange(8, 65) * 128 for _ in range(3))
    work = 2.0 * m * n * k
    x, w, b = normal(m, k), normal(n, k) / k**0.5, normal(n)
    gate, rest = normal(n, k) / k**0.5, normal(m, n)
    size = (m, n, k)
    yield race(name_of("linear", size), (x, w, b), ops.linear, F.linear, work, "FLOP")
    yield race(
        name_of("linear_gelu", size), (x, w, b),
        lambda x, w, b: ops.linear(x, w, b, "gelu_tanh"),
        lambda x, w, b: F.gelu(F.linear(x, w, b), approximate="tanh"), work, "FLOP",
    )  # fmt: skip
    yield race(
        name_of("linear_gated_residual", size), (x, w, gate, rest),
        lambda x, w, g, r: ops.linear(x, w, None, "silu", g, r),
        lambda x, w, g, r: F.silu(F.linear(x, w)) * F.linear(x, g) + r, 2 * work, "FLOP",
    )  # fmt: skip
    yield race(name_of("matmul_training", size), (x, w.T.contiguous()), ops.matmul,
               lambda x, w: x @ w, 3 * work, "FLOP", training=2)  # fmt: skip


def narrow(rng: random.Random) -> Iterator[Race]:
    import torch

    import tilewright.ops as ops

    m, n, k = 16 * rng.randrange(1, 17), *(rng.randrange(8, 65) * 128 for _ in range(2))
    x = normal(m, k)
    w = torch.randint(-128, 128, (n, k), device="cuda", dtype=torch.int8)
    scale = torch.rand(n, device="cuda") / k**0.5 / 50
    yield race(
        name_of("matmul_int8", (m, n, k)), (x, w, scale), ops.matmul_int8,
        lambda x, w, s: (x @ w.to(x.dtype).T * s).to(x.dtype), float(n * k),
    )  # fmt: skip
    packed = torch.randint(0, 256, (n, k // 2), device="cuda", dtype=torch.uint8)
    scales = torch.rand(n, k // 128, device="cuda") / k**0.5 / 4

    def want(x: Any, q: Any, s: Any) -> Any:
        low, high = (q & 15).int() - 8, (q >> 4).int() - 8
        numbers = torch.stack([low, high], -1).reshape(n, k // 128, 128) * s[..., None]
        return x @ numbers.reshape(n, k).to(x.dtype).T

    yield race(name_of("matmul_int4", (m, n, k)), (x, packed, scales), ops.matmul_int4, want,
               n * k / 2)  # fmt: skip

    def quantized(x: Any) -> Any:
        parts = x.reshape(len(x), -1, 128).float()
        scale = parts.abs().amax(-1) / 448
        return (parts / scale[..., None]).reshape(x.shape).to(torch.float8_e4m3fn), scale

    y = normal(128 * rng.randrange(16, 65), k)
    yield race(name_of("quantize", y.shape), (y,), ops.quantize, quantized, 3.0 * y.numel(),
               wide=lambda x: quantized(x.to(torch.bfloat16)))  # fmt: skip


def attention(rng: random.Random) -> Iterator[Race]:
    import torch
    import torch.nn.functional as F

    import tilewright.ops as ops

    b, g, d = rng.choice((1, 2, 4)), rng.choice((4, 8)), rng.choice((64, 128))
    h, n = g * rng.choice((1, 4)), 128 * rng.randrange(8, 49)
    q, k, v = normal(b, h, n, d), normal(b, g, n, d), normal(b, g, n, d)
    work, size = 4.0 * b * h * n * n * d, (b, h, g, n, d)
    for causal in (False, True):

        def want(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)

        def ours(q: Any, k: Any, v: Any, causal: bool = causal) -> Any:
            return ops.attention(q, k, v, is_causal=causal)

        name = "attention_causal" if causal else "attention"
        yield race(name_of(name, size), (q, k, v), ours, want, work, "FLOP")
        yield race(name_of(f"{name}_training", size), (q, k, v), ours, want, 3.5 * work, "FLOP",
                   training=3)  # fmt: skip
    sinks = torch.randn(h, device="cuda")

    def with_sinks(q: Any, k: Any, v: Any, sinks: Any) -> Any:
        k, v = (x.repeat_interleave(h // g, 1) for x in (k, v))
        s = q @ k.mT * d**-0.5
        s = s.masked_fill(~torch.ones(n, n, dtype=torch.bool, device=s.device).tril(), -torch.inf)
        sink = sinks.to(s.dtype)[:, None, None].expand(b, h, n, 1)
        return torch.cat([s, sink], -1).softmax(-1)[..., :-1] @ v

    if n <= 2048:  # PyTorch has all scores in memory
        yield race(
            name_of("attention_sinks", size), (q, k, v, sinks),
            lambda q, k, v, s: ops.attention(q, k, v, is_causal=True, sinks=s), with_sinks, work,
            "FLOP",
        )  # fmt: skip


def decoding(rng: random.Random) -> Iterator[Race]:
    import torch
    import torch.nn.functional as F

    import tilewright.ops as ops

    b, g, h, d, p = rng.choice((1, 8, 32)), rng.choice((4, 8)), rng.choice((1, 4, 8)), 128, 64
    most = rng.randrange(8, 129)
    q, k, v = normal(b, g * h, d), *(normal(b * most, p, g, d) for _ in range(2))
    table = torch.randperm(b * most, device="cuda").int().reshape(b, most)
    lens = torch.full((b,), most * p, device="cuda", dtype=torch.int32)

    def want(q: Any, k: Any, v: Any, lens: Any, table: Any) -> Any:
        k, v = (x[table.long()].reshape(b, most * p, g, d).transpose(1, 2) for x in (k, v))
        return F.scaled_dot_product_attention(q[:, :, None], k, v, enable_gqa=True)[:, :, 0]

    yield race(name_of("attention_decode", (b, g, h, d, most * p)), (q, k, v, lens, table),
               ops.attention_decode, want, 4.0 * b * most * p * g * d)  # fmt: skip
    d, r, n = 512, 64, 64 * rng.randrange(8, 129)
    given = normal(b, 16, d), normal(b, 16, r), normal(b, n, d), normal(b, n, r)

    def latent(q: Any, q_pe: Any, kv: Any, k_pe: Any) -> Any:
        s = (q @ kv.mT + q_pe @ k_pe.mT) * (d + r) ** -0.5
        return s.softmax(-1) @ kv

    yield race(name_of("mla_decode", (b, 16, n)), given, ops.mla_decode, latent,
               2.0 * b * n * (d + r))  # fmt: skip


def rows(rng: random.Random) -> Iterator[Race]:
    import torch
    import torch.nn.functional as F

    import tilewright.ops as ops

    n = 128 * rng.randrange(8, 129)
    m = (1 << 26) // n
    x, y, w, b = normal(m, n), normal(m, n), normal(n), normal(n)
    moved = 4.0 * m * n
    yield race(name_of("softmax", (m, n)), (x,), ops.softmax, lambda x: x.softmax(-1), moved)

    def normed(function: Any) -> Callable[..., Any]:
        return lambda x, *more: function(x, (n,), *more, eps=1e-6)

    for training, factor in ((0, 1.0), (2, 2.5)):
        word = "_training" if training else ""
        yield race(name_of(f"rms_norm{word}", (m, n)), (x, w), normed(ops.rms_norm),
                   normed(F.rms_norm), factor * moved, training=training)  # fmt: skip
        yield race(name_of(f"layer_norm{word}", (m, n)), (x, w, b), normed(ops.layer_norm),
                   normed(F.layer_norm), factor * moved, training=training)  # fmt: skip
    silu = normed(lambda *a, **k: F.silu(F.rms_norm(*a, **k)))
    yield race(name_of("rms_norm_silu", (m, n)), (x, w), normed(ops.rms_norm_silu), silu, moved)
    yield race(name_of("swiglu", (m, n)), (x, y), ops.swiglu, lambda a, b: F.silu(a) * b,
               1.5 * moved)  # fmt: skip
    angle = torch.randn(1024, 64, device="cuda")
    heads = normal(4, 1024, 32, 128)

    def turned(x: Any, cos: Any, sin: Any) -> Any:
        a, b = x.chunk(2, -1)
        cos, sin = cos[:, None], sin[:, None]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)

    yield race(name_of("rope", heads.shape), (heads, angle.cos(), angle.sin()), ops.rope, turned,
               4.0 * heads.numel())  # fmt: skip


def losses(rng: random.Random) -> Iterator[Race]:
    import torch
    import torch.nn.functional as F

    import tilewright.ops as ops

    n, c, k = 128 * rng.randrange(8, 33), 128 * rng.randrange(64, 513), 128 * rng.randrange(4, 17)
    x, target = normal(n, c), torch.randint(0, c, (n,), device="cuda")
    hidden, w = normal(n, k), normal(c, k) / k**0.5
    for training in (0, 1):
        word = "_training" if training else ""
        yield race(name_of(f"cross_entropy{word}", (n, c)), (x, target), ops.cross_entropy,
                   F.cross_entropy, 2.0 * n * c * (1 + 2 * training),
                   training=training)  # fmt: skip
        yield race(
            name_of(f"linear_cross_entropy{word}", (n, c, k)), (hidden, w, target),
            ops.linear_cross_entropy, lambda h, w, t: F.cross_entropy(h @ w.T, t),
            2.0 * n * c * k * (1 + 3 * training), "FLOP", training=2 * training,
        )  # fmt: skip


def experts(rng: random.Random) -> Iterator[Race]:
    import torch
    import torch.nn.functional as F

    import tilewright.ops as ops

    t, e, k, n = 64 * rng.randrange(4, 65), rng.choice((8, 16)), 1024, 512 * rng.randrange(1, 5)
    x = normal(t, k)
    scores = torch.rand(t, e, device="cuda").argsort(1).bfloat16() / 4  # no two are equal
    w1, w2 = normal(e, 2 * n, k) / k**0.5, normal(e, k, n) / n**0.5

    def want(x: Any, w1: Any, w2: Any, scores: Any) -> Any:
        weight, chosen = scores.float().softmax(-1).topk(2)
        weight = weight / weight.sum(-1, keepdim=True)
        share = torch.zeros(t, e, device=x.device).scatter(1, chosen, weight)
        out = torch.zeros_like(x)
        for i in range(e):
            gate, up = (x @ w1[i].T).chunk(2, -1)
            out = out + (F.silu(gate) * up @ w2[i].T) * share[:, i, None].to(x.dtype)
        return out

    yield race(name_of("moe", (t, e, k, n)), (x, w1, w2, scores),
               lambda *given: ops.moe(*given, topk=2), want, 2.0 * 2 * t * 3 * k * n,
               "FLOP")  # fmt: skip


def convolutions(rng: random.Random) -> Iterator[Race]:
    import torch.nn.functional as F

    import tilewright.ops as ops

    b, c, o, side = rng.choice((8, 16)), 64 * rng.randrange(1, 5), 64 * rng.randrange(1, 5), 56
    x, w = normal(b, c, side, side), normal(o, c, 3, 3) / (3 * c**0.5)
    yield race(
        name_of("conv2d", (b, c, o, side, side)), (x, w),
        lambda x, w: ops.conv2d(x, w, padding=(1, 1)), lambda x, w: F.conv2d(x, w, padding=1),
        18.0 * b * c * o * side * side, "FLOP",
    )  # fmt: skip


FAMILIES = {
    "matrices": matrices,
    "narrow": narrow,
    "attention": attention,
    "decoding": decoding,
    "rows": rows,
    "losses": losses,
    "experts": experts,
    "convolutions": convolutions,
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
    for rival in ("torch", "compiled"):
        found = [
            (times[rival] / times["ours"], name) for name, times in timed(paths) if rival in times
        ]
        tell_ratios(f"op over {rival}", found, 1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(sys.argv[2:])
    else:
        parser = seeded(__doc__)
        parser.add_argument("--families", nargs="+", default=[], choices=FAMILIES)
        sys.exit(main(__file__, parser))
