"""What the compiler derives from the zoo's short texts, against hand schedules, libraries, peers.

    python benchmarks/derived.py --out derived.json
    python benchmarks/derived.py --products 8192x8192x8192 --attentions --decodes
    python benchmarks/derived.py --parts --out derived_parts.json       # each part switched off
    python benchmarks/derived.py --triton --tilelang --tilelang-mla example_mla_decode.py

The zoo's GEMM, attention and MLA decode, without a word about barriers or roles, take turns with
the hand-scheduled programs of tests/schedules, cuBLAS, cuDNN, and on request Triton and TileLang.
Of each kernel a few tile sizes are tried on the first arrays, and the fastest races; peers get the
same. Attention whose softmax is replaced by other functions of the scores races along. Checked
first: NaN-poisoned outputs, all elements of a product against float32, of attention and of MLA
against float64 with the bounds of attention_scheduled.py and mla_scheduled.py, 20 runs bit for bit
on the first shape of each kind. ReLU is part of our GEMM.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import attention_scheduled
import mla_scheduled
from gemm_scheduled import blocks, check_peer
from gemm_scheduled import inputs as product_inputs
from race import (
    Race,
    Schedule,
    command_line,
    main,
    name_of,
    rotate,
    same_every_time,
    sets_for,
    shape,
)

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # the zoo

SQUARES = tuple((n, n, n) for n in (2048, 4096, 8192, 16384))
# 4096 tokens by the projections of Llama-3 8B and 70B and of DeepSeek-V3
PROJECTIONS = tuple(
    (4096, n, k)
    for n, k in (
        (6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336),
        (10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672),
        (2112, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048),
    )
)  # fmt: skip
ATTENTIONS = tuple(
    (batch, 16, length, head)
    for head in (128, 64)
    for batch, length in ((8, 2048), (4, 4096), (2, 8192), (1, 16384))
)
DECODES = ((128, 128, 8192), (128, 128, 4096), (128, 128, 1024))
# tile sizes, and blocks of a cluster
TILES = (
    ({"block_N": 256, "stages": 4}, 1),
    ({"block_N": 256, "stages": 4}, 2),
    ({"block_N": 256, "stages": 3}, 1),
    ({"block_N": 192, "stages": 4}, 1),
    ({"block_N": 128, "stages": 6}, 1),
)
PART_TILES = (TILES[0], TILES[3])  # shared by two warpgroups, and one for each
FLASH = {
    128: ({"block_N": 128}, {"block_N": 176}),
    64: (
        {"block_M": 192, "block_N": 128, "threads": 384},
        {"block_M": 192, "block_N": 96, "threads": 384},
    ),
}
# attention with other functions of the scores, in the same sizes: their names in the zoo, and what
# they make of scores of n keys
WEIGHTS: dict[str, tuple[str, Callable[[Any, int], Any]]] = {
    "by sigmoids": ("sigmoid", lambda scores, n: (scores - math.log(n)).sigmoid()),
    "by squared ReLU": ("relu_squared", lambda scores, n: scores.clamp(min=0) ** 2 / n),
}
HAND = {128: "flash_attention", 64: "flash_attention_64"}
# what is switched off, or on, to see what it gives
PARTS = {
    "all": "",
    "without rings": "stages=1",
    "without roles": "-roles=off",
    "without hoisted guards": "-unswitch_guards=off",
    "without persistence": "-persistent=off",
    "without ping-pong": "-ping_pong=off",
    "without boxes": "-split_stages=off",
    "in plain order": "-order=plain",
    "without turns": "-order_warpgroups=off",
    "with skew": "-skew=on",
    "with skew and turns": "-skew=on -order_warpgroups=on",
    "in clusters": "-cluster=2",
}


def quickest(variants: Mapping[str, Callable[[], Any]]) -> str:
    """The name of the one that is fastest in a short trial, in turns."""
    from tilewright.profiler import measure

    times = measure(variants, rounds=9)
    return min(times, key=lambda name: sorted(times[name])[len(times[name]) // 2])


def label(sizes: Mapping[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in sizes.items())


@cache
def schedule(name: str) -> Schedule:
    return Schedule(name, lambda _: iter(()))


def sources(parts: bool) -> dict[str, tuple[str, dict[str, int]]]:
    """The names of ours, what each is compiled for, and sizes that differ."""
    found: dict[str, tuple[str, dict[str, int]]] = {}
    for name, words in (PARTS if parts else {"derived": ""}).items():
        sizes = dict(word.split("=") for word in words.split() if not word.startswith("-"))
        flags = [word for word in words.split() if word.startswith("-")]
        found[name] = " ".join(["cuda", *flags]), {k: int(v) for k, v in sizes.items()}
    return found


# ── products ─────────────────────────────────────────────────────────────────────────────────


def product(m: int, n: int, k: int, runs: int, parts: bool, triton: bool, tilelang: bool) -> Race:
    import torch

    from zoo.gemm.gemm import gemm_relu

    about: dict[str, Any] = {"shape": (m, n, k)}
    ours: dict[str, Any] = {}
    peers: dict[str, Callable[[], Any]] = {}
    sets: list[tuple[Any, Any, Any]] = []

    def contenders() -> dict[str, Callable[[], Any]]:
        for _ in range(sets_for(2 * (m * k + k * n + m * n))):
            c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            sets.append((*product_inputs(m, n, k), c))
        for name, (target, more) in sources(parts).items():
            made = {}
            for t, cluster in PART_TILES if parts else TILES:
                on = target if cluster == 1 else f"{target} -cluster={cluster}"
                kernel = gemm_relu.on(on)(m, n, k, dtype="bfloat16", threads=256, **{**t, **more})
                made[f"{label(t)} cluster={cluster}"] = kernel
            best = quickest({s: partial(kernel, *sets[0]) for s, kernel in made.items()})
            ours[name] = made[best]
            about[name] = {"sizes": best, **made[best].resources}
        found = {
            name: rotate(*(partial(kernel, *arrays) for arrays in sets))
            for name, kernel in ours.items()
        }
        hand = schedule("gemm_cooperative")
        found["hand"] = rotate(*(partial(hand.call, *arrays, blocks()) for arrays in sets))
        found["cublas"] = rotate(*(partial(torch.matmul, a, b, out=c) for a, b, c in sets))
        if triton:
            from peer_triton import best_product

            peers["triton"] = rotate(*best_product(sets))
        if tilelang:
            from peer_tilelang import products

            made = products(m, n, k)
            best = quickest({s: partial(kernel, *sets[0]) for s, kernel in made.items()})
            about["tilelang"] = {"sizes": best}
            peers["tilelang"] = rotate(*(partial(made[best], *arrays) for arrays in sets))
        return found | peers

    def checks() -> Iterator[dict[str, Any]]:
        a, b = product_inputs(m, n, k)
        want = torch.relu(a.float() @ b.float())
        bound = 2.0**-8 * want.max().item() + 1e-3 * k**0.5
        for name, kernel in ours.items():

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
        for name, run_peer in peers.items():
            yield check_peer(name, run_peer, sets)

    work = 2.0 * m * n * k
    name = name_of("gemm", (m, n, k))
    return Race(name, contenders, checks, work=work, ours=list(sources(parts)), about=about)


# ── attention ────────────────────────────────────────────────────────────────────────────────


def attention(
    batch: int, heads: int, length: int, head: int, causal: bool, runs: int, parts: bool
) -> Race:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention as sdpa

    from zoo.attention.flash import flash_attention
    from zoo.attention.pointwise import pointwise_attention

    about: dict[str, Any] = {"shape": (batch, heads, length, head), "causal": causal}
    ours: dict[str, Any] = {}
    texts = {
        name: (flash_attention, (heads, heads), target, more)
        for name, (target, more) in sources(parts).items()
    }
    if not parts:
        for name, (weight, _) in WEIGHTS.items():
            texts[name] = (pointwise_attention, (heads,), "cuda", {"weight": weight})

    def contenders() -> dict[str, Callable[[], Any]]:
        qkv = attention_scheduled.inputs(batch, heads, length, length, head)
        o = torch.empty_like(qkv[0])
        for name, (text, counts, target, more) in texts.items():
            made = {
                label(t): text.on(target)(
                    batch, *counts, length, length, head, causal=causal, dtype="bfloat16",
                    **{"block_M": 128, "threads": 256, **t, **more},
                )
                for t in (FLASH[head][:1] if parts else FLASH[head])
            }  # fmt: skip
            best = quickest({s: partial(kernel, *qkv, o) for s, kernel in made.items()})
            ours[name] = made[best]
            about[name] = {"sizes": best, **made[best].resources}
        found: dict[str, Callable[[], Any]] = {
            name: partial(kernel, *qkv, o) for name, kernel in ours.items()
        }
        hand = schedule(HAND[head] + "_causal" * causal)
        found["hand"] = partial(hand.call, *qkv, o, *attention_scheduled.numbers(head))

        def cudnn() -> None:
            with sdpa_kernel([SDPBackend.CUDNN_ATTENTION]):
                sdpa(*qkv, is_causal=causal)

        found["cudnn"] = cudnn
        return found

    def checks() -> Iterator[dict[str, Any]]:
        qkv = attention_scheduled.inputs(batch, heads, length, length, head)
        for name, kernel in ours.items():
            weigh = attention_scheduled.softmax
            if name in WEIGHTS:
                weigh = partial(WEIGHTS[name][1], n=length)

            def run(kernel: Any = kernel) -> tuple[Any]:
                o = torch.full_like(qkv[0], float("nan"))
                kernel(*qkv, o)
                return (o,)

            first = same_every_time(run, runs)
            if first is None:
                yield {"contender": name, "ok": False, "why": "runs differ"}
                continue
            # all elements of two heads: those of all take minutes in float64
            few = [x[:1, :2] for x in (*qkv, first[0])]
            error = attention_scheduled.worst(*few, causal, weigh)
            ok = error <= 1.0 and bool(torch.isfinite(first[0]).all())
            yield {"contender": name, "ok": ok, "error_of_bound": error, "runs": runs}

    work = 4.0 * batch * heads * length * length * head * (0.5 if causal else 1.0)
    name = f"attention {batch}x{heads}x{length} head {head}" + " causal" * causal
    return Race(name, contenders, checks, work=work, ours=list(texts), about=about)


# ── MLA decode ───────────────────────────────────────────────────────────────────────────────


def decode(batch: int, heads: int, keys: int, runs: int, parts: bool, tilelang: str | None) -> Race:
    import torch

    from zoo.mla.decode import mla_decode

    about: dict[str, Any] = {"shape": (batch, heads, keys)}
    ours: dict[str, Any] = {}
    latent = mla_scheduled.LATENT
    # the sizes are all in its text
    targets = {name: target for name, (target, more) in sources(parts).items() if not more}

    def split(q: Any, k: Any) -> tuple[Any, ...]:
        q = q.reshape(batch, heads, -1)
        return tuple(
            x.contiguous()
            for x in (q[..., :latent], q[..., latent:], k[..., :latent], k[..., latent:])
        )

    def contenders() -> dict[str, Callable[[], Any]]:
        q, k = mla_scheduled.inputs(batch, heads, keys)
        arrays, o = split(q, k), torch.empty(batch, heads, latent, device="cuda", dtype=q.dtype)
        for name, target in targets.items():
            ours[name] = mla_decode.on(target)(batch, heads, keys, dtype="bfloat16")
            about[name] = ours[name].resources
        found: dict[str, Callable[[], Any]] = {
            name: partial(kernel, *arrays, o) for name, kernel in ours.items()
        }
        hand, (out, lse) = schedule(mla_scheduled.KERNEL), mla_scheduled.outputs(q)
        found["hand"] = partial(hand.call, q, k, out, lse, mla_scheduled.scale())
        if tilelang:
            found["tilelang"] = mla_scheduled.tilelang_call(tilelang, batch, heads, keys)
        return found

    def checks() -> Iterator[dict[str, Any]]:
        q, k = mla_scheduled.inputs(batch, heads, keys)
        for name, kernel in ours.items():

            def run(kernel: Any = kernel) -> tuple[Any]:
                o = torch.full((batch, heads, latent), float("nan"), device="cuda", dtype=q.dtype)
                kernel(*split(q, k), o)
                return (o,)

            first = same_every_time(run, runs)
            if first is None:
                yield {"contender": name, "ok": False, "why": "runs differ"}
                continue
            made = first[0].reshape(q.shape[:3] + (latent,))
            few = slice(0, 8)  # requests
            lse = torch.zeros(q[few].shape[:3], device="cuda")
            error, _ = mla_scheduled.worst(q[few], k[few], made[few], lse)
            # there, one rounding is allowed for; here two meet: of P, and of the result
            ok = error <= 2.0 and bool(torch.isfinite(made).all())
            yield {"contender": name, "ok": ok, "error_of_bound": error / 2, "runs": runs}

    work = 2.0 * batch * heads * keys * (2 * latent + mla_scheduled.ROPE)
    name = name_of("mla", (batch, heads, keys))
    return Race(name, contenders, checks, work=work, ours=list(targets), about=about)


# ── all of them ──────────────────────────────────────────────────────────────────────────────


def races(
    products: Sequence[tuple[int, ...]] = SQUARES + PROJECTIONS,
    attentions: Sequence[tuple[int, ...]] = ATTENTIONS,
    decodes: Sequence[tuple[int, ...]] = DECODES,
    parts: bool = False,
    triton: bool = False,
    tilelang: bool = False,
    tilelang_mla: str | None = None,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)
    for i, (m, n, k) in enumerate(products):
        yield product(m, n, k, 3 if i else 20, parts, triton, tilelang)
    for i, (batch, heads, length, head) in enumerate(attentions):
        for causal in (False, True):
            runs = 3 if i or causal else 20
            yield attention(batch, heads, length, head, causal, runs, parts)
    for i, (batch, heads, keys) in enumerate(decodes):
        yield decode(batch, heads, keys, 3 if i else 20, parts, tilelang_mla)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--products", type=shape(3), nargs="*", default=[*SQUARES, *PROJECTIONS])
    parser.add_argument("--attentions", type=shape(4), nargs="*", default=list(ATTENTIONS))
    parser.add_argument("--decodes", type=shape(3), nargs="*", default=list(DECODES))
    parser.add_argument("--parts", action="store_true", help="what each part of a schedule gives")
    parser.add_argument("--triton", action="store_true", help="race a Triton product too")
    parser.add_argument("--tilelang", action="store_true", help="race a TileLang product too")
    parser.add_argument("--tilelang-mla", metavar="PATH", help="race TileLang's MLA example")
    raise SystemExit(main(__file__, parser))
