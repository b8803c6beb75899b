"""Gradients of attention from the zoo's short texts against torch's SDPA: checked, then timed.

    python benchmarks/attention_backward.py --out attention_backward.json
    python benchmarks/attention_backward.py --shapes 2x16x8192x128 --parts

Ours are three kernels, one after the other: D = rowsum(dO · O), then dK and dV, then dQ; of the
last two a few tile sizes are tried, and the fastest race. Peers are cuDNN and FlashAttention as
torch has them: `torch.autograd.grad` of an output that was computed before. The forward pass is
nobody's time. Work is counted as five products, the fewest that gradients need; ours do seven, for
both kernels recompute the scores.

Checked first, on NaN-poisoned outputs: dQ, dK and dV of two heads against float64, within what
rounding P, dS, O and the results to bf16 can cost, ours and the peers'; odd lengths and grouped
heads with the first shape; 20 runs bit for bit there, 3 elsewhere.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from derived import label, quickest
from race import Race, command_line, main, same_every_time, shape

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo

SHAPES = tuple(
    (batch, 16, length, head)
    for head in (128, 64)
    for batch, length in ((8, 2048), (4, 4096), (2, 8192), (1, 16384))
)
# batch, heads, heads of keys, queries, keys, head
ODD = (
    (1, 1, 1, 1, 65, 128),
    (2, 4, 2, 100, 333, 64),
    (1, 8, 2, 700, 701, 128),
    (1, 2, 1, 1030, 1030, 64),
)
KEYS = {
    128: ({"stages": 2}, {"stages": 3}, {"block_M": 32, "stages": 3}),
    64: (
        {"stages": 2},
        {"block_M": 96},
        {"block_M": 32, "block_N": 192, "threads": 384, "stages": 3},
    ),
}
QUERIES = {
    128: ({"block_N": 64}, {"block_N": 96}, {"block_N": 128}),
    64: ({"block_N": 128}, {"block_N": 64}, {"block_M": 192, "block_N": 96, "threads": 384}),
}
PARTS = {
    "all": "",
    "waits for each product": "-waits=each",
    "waits at the end of iterations": "-waits=iteration",
    "without roles": "-roles=off",
    "without hoisted guards": "-unswitch_guards=off",
    "without persistence": "-persistent=off",
    "late waits, or single warps": "-waits=late",
}
PEERS = ("cudnn", "flash")
NAMES = ("dQ", "dK", "dV")


def inputs(
    batch: int, heads: int, kv_heads: int, seq_q: int, seq_kv: int, head: int
) -> tuple[Any, Any, Any, Any]:
    """Q, K, V, dO."""
    import torch

    def tensor(heads: int, length: int) -> Any:
        return torch.randn(batch, heads, length, head, device="cuda", dtype=torch.bfloat16)

    return tensor(heads, seq_q), *(tensor(kv_heads, seq_kv) for _ in range(2)), tensor(heads, seq_q)


def forward(qkv: Sequence[Any], causal: bool, target: str = "cuda") -> tuple[Any, Any]:
    """O and the sums that gradients need."""
    import torch

    from zoo.attention.backward import attention_with_sums, rows

    q, k, _ = qkv
    batch, heads, seq_q, head = q.shape
    made = attention_with_sums.on(target)(
        batch, heads, k.shape[1], seq_q, k.shape[2], head, causal=causal, dtype="bfloat16",
        block_M=128, block_N=128, threads=256,
    )  # fmt: skip
    o = torch.full_like(q, float("nan"))
    sums = torch.full((batch, heads, rows(seq_q)), float("nan"), device="cuda")
    made(*qkv, o, sums)
    return o, sums


class Ours:
    """The three kernels of a shape, and the arrays between them."""

    def __init__(self, qkv: Sequence[Any], do: Any, causal: bool, target: str, sizes: int) -> None:
        """`sizes`: how many tile sizes to try."""
        import torch

        from zoo.attention import backward

        q, k, _ = qkv
        batch, heads, seq_q, head = q.shape
        shape = (batch, heads, k.shape[1], seq_q, k.shape[2], head)
        self.given, self.do = qkv, do
        self.o, self.sums = forward(qkv, causal)
        self.d = torch.full_like(self.sums, float("nan"))
        self.outputs = [torch.full_like(x, float("nan")) for x in qkv]
        self.rows = backward.row_products.on(target)(batch, heads, seq_q, head, dtype="bfloat16")
        self.rows(do, self.o, self.d)
        dq, dk, dv = self.outputs
        inputs = (*qkv, do, self.sums, self.d)

        def best(factory: Any, variants: Sequence[dict[str, Any]], *outputs: Any) -> Any:
            made = {
                label(sizes): factory.on(target)(
                    *shape, causal=causal, dtype="bfloat16", **{"threads": 256, **sizes}
                )
                for sizes in variants
            }
            if len(made) > 1:
                name = quickest({s: partial(f, *inputs, *outputs) for s, f in made.items()})
            else:
                (name,) = made
            return name, made[name]

        keys = [{"block_M": 64, "block_N": 128, **s} for s in KEYS[head][:sizes]]
        queries = [{"block_M": 128, **s} for s in QUERIES[head][:sizes]]
        keys_name, self.keys = best(backward.keys_gradient, keys, dk, dv)
        queries_name, self.queries = best(backward.queries_gradient, queries, dq)
        self.about = {
            "dK, dV": {"sizes": keys_name, **self.keys.resources},
            "dQ": {"sizes": queries_name, **self.queries.resources},
        }

    def __call__(self, outputs: Sequence[Any] | None = None) -> None:
        dq, dk, dv = outputs or self.outputs
        self.rows(self.do, self.o, self.d)
        self.keys(*self.given, self.do, self.sums, self.d, dk, dv)
        self.queries(*self.given, self.do, self.sums, self.d, dq)

    def fresh(self) -> list[Any]:
        """What one run leaves in new arrays."""
        import torch

        made = [torch.full_like(x, float("nan")) for x in self.given]
        self.d.fill_(float("nan"))
        self(made)
        return made


def peer(backend: str, qkv: Sequence[Any], do: Any, causal: bool) -> Callable[[], Sequence[Any]]:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    kind = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION}[backend]
    leaves = [x.detach().clone().requires_grad_() for x in qkv]
    with sdpa_kernel([kind]):
        out = sdpa(*leaves, is_causal=causal)
    return lambda: torch.autograd.grad(out, leaves, do, retain_graph=True)


def worst(
    qkv: Sequence[Any], do: Any, grads: Sequence[Any], causal: bool, most: int = 2
) -> dict[str, float]:
    """The largest errors of the gradients of the first heads of keys, in units of what roundings to
    bf16 explain; inf for a NaN."""
    import torch

    q, k, v = qkv
    group, scale = q.shape[1] // k.shape[1], q.shape[3] ** -0.5
    eps, tiny = 2.0**-8, 1e-5
    found = dict.fromkeys(NAMES, 0.0)

    def note(name: str, got: Any, want: Any, bound: Any) -> None:
        error = ((got.double() - want).abs() / (2 * eps * bound + tiny)).max().item()
        found[name] = max(found[name], error if math.isfinite(error) else math.inf)

    for h in range(min(most, k.shape[1])):
        kh, vh = k[0, h].double(), v[0, h].double()
        dk, dv, dk_bound, dv_bound = (torch.zeros_like(kh) for _ in range(4))
        for g in range(h * group, (h + 1) * group):
            qh, doh = q[0, g].double(), do[0, g].double()
            scores = qh @ kh.T * scale
            if causal:
                seen = torch.ones_like(scores, dtype=torch.bool).tril(kh.shape[0] - qh.shape[0])
                scores.masked_fill_(~seen, float("-inf"))
            p = torch.softmax(scores, -1)
            del scores
            dp = doh @ vh.T
            ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
            # dS is rounded itself, and D is of a rounded O
            off = ds.abs() + p * (doh.abs() * (p @ vh).abs()).sum(-1, keepdim=True) * scale
            note("dQ", grads[0][0, g], ds @ kh, off @ kh.abs())
            dk += ds.T @ qh
            dv += p.T @ doh
            dk_bound += off.T @ qh.abs()
            dv_bound += p.T @ doh.abs()
        note("dK", grads[1][0, h], dk, dk_bound)
        note("dV", grads[2][0, h], dv, dv_bound)
    return found


def told(name: str, errors: dict[str, float], grads: Sequence[Any], **more: Any) -> dict[str, Any]:
    import torch

    ok = max(errors.values()) <= 1.0 and all(bool(torch.isfinite(x).all()) for x in grads)
    return {"contender": name, "ok": ok, "error_of_bound": errors, **more}


def odd_shapes() -> Iterator[dict[str, Any]]:
    for sizes in ODD:
        for causal in (False, True):
            *qkv, do = inputs(*sizes)
            made = Ours(qkv, do, causal, "cuda", 1).fresh()
            errors = worst(qkv, do, made, causal, most=sizes[2])
            yield told("derived", errors, made, shape=sizes, causal=causal)


def race(
    batch: int, heads: int, length: int, head: int, causal: bool, runs: int, odd: bool, parts: bool
) -> Race:
    about: dict[str, Any] = {"shape": (batch, heads, length, head), "causal": causal}
    targets = {name: f"cuda {flags}".strip() for name, flags in PARTS.items()}
    targets = targets if parts else {"derived": "cuda"}
    ours: dict[str, Ours] = {}
    peers: dict[str, Callable[[], Sequence[Any]]] = {}
    given: list[Any] = []

    def contenders() -> dict[str, Callable[[], Any]]:
        given.extend(inputs(batch, heads, heads, length, length, head))
        *qkv, do = given
        for name, target in targets.items():
            ours[name] = Ours(qkv, do, causal, target, 1 if parts else 9)
            about[name] = ours[name].about
        for name in PEERS:
            peers[name] = peer(name, qkv, do, causal)
        return {**ours, **peers}

    def checks() -> Iterator[dict[str, Any]]:
        if odd:
            yield from odd_shapes()
        *qkv, do = given
        for name, made in ours.items():
            first = same_every_time(made.fresh, runs)
            if first is None:
                yield {"contender": name, "ok": False, "why": "runs differ"}
                continue
            yield told(name, worst(qkv, do, first, causal), first, runs=runs)
        for name, run in peers.items():
            grads = run()
            yield told(name, worst(qkv, do, grads, causal), grads)

    work = 10.0 * batch * heads * length * length * head * (0.5 if causal else 1.0)
    name = f"attention gradient {batch}x{heads}x{length} head {head}" + " causal" * causal
    return Race(
        name, contenders, checks, work=work, ours=list(targets), backend="event", about=about
    )  # autograd has a thread of its own, which no graph captures


def races(shapes: Sequence[tuple[int, ...]] = SHAPES, parts: bool = False) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)
    for i, (batch, heads, length, head) in enumerate(shapes):
        for causal in (False, True):
            first = not i and not causal
            yield race(batch, heads, length, head, causal, 20 if first else 3, first, parts)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--shapes", type=shape(4), nargs="*", default=list(SHAPES))
    parser.add_argument("--parts", action="store_true", help="what each part of a schedule gives")
    raise SystemExit(main(__file__, parser))
