"""The hand-scheduled attention kernels against torch's SDPA on a GPU: checked, then timed in turns.

    python benchmarks/attention_scheduled.py --out attention.json
    python benchmarks/attention_scheduled.py --kernels flash_attention_causal --shapes 2x16x8192

Each kernel first runs on NaN-poisoned outputs and fresh data, small and odd shapes included, and
every element is compared with a float64 result, within what rounding the probabilities and the
output to bf16 can cost; 20 runs must agree bit for bit. Then contenders (this kernel, cuDNN,
FlashAttention as torch has it) take turns: a round is one burst of at least `--burst-ms` inside a
pair of events for each of them; medians of `--rounds` rounds are reported. Arrays that would stay
in the L2 cache are made several times and rotated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

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

SHAPES = ((2, 16, 8192),)  # batch, heads, length
KERNELS = (
    "flash_attention",
    "flash_attention_causal",
    "flash_attention_64",
    "flash_attention_64_causal",
)
# batch, heads, queries, keys: one tile, one row, tails on both sides, more queries than keys (in
# causal attention some then see nothing), more keys than queries, fewer and more tiles than blocks
ODD_SHAPES = (
    (1, 1, 128, 128),
    (1, 1, 1, 1),
    (1, 1, 64, 100),
    (1, 2, 300, 77),
    (2, 3, 130, 353),
    (1, 2, 256, 530),
    (3, 5, 1000, 777),
    (2, 8, 2048, 2048),
    (1, 40, 700, 1500),
)
PEERS = ("cudnn", "flash")


def head_of(kernel: Any) -> int:
    """The last size of Q."""
    return int(kernel.trace[0].program.params[0].shape[-1].value)


def inputs(batch: int, heads: int, sq: int, sk: int, head: int) -> tuple[Any, Any, Any]:
    import torch

    def tensor(length: int) -> Any:
        return torch.randn(batch, heads, length, head, device="cuda", dtype=torch.bfloat16)

    return tensor(sq), tensor(sk), tensor(sk)


def numbers(head: int) -> tuple[float, int]:
    """The kernels' scalars: scale and blocks."""
    import torch

    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    return math.log2(math.e) / math.sqrt(head), blocks


def softmax(scores: Any) -> Any:
    import torch

    return torch.nan_to_num(torch.softmax(scores, -1), nan=0.0)  # a query that sees nothing


def worst(
    q: Any, k: Any, v: Any, o: Any, causal: bool, weigh: Callable[[Any], Any] = softmax
) -> float:
    """The largest error of `o` in units of what roundings to bf16 explain; inf for a NaN. `weigh`
    makes weights of scores, -inf where a key is not seen."""
    import torch

    most = 0.0
    sq, sk = q.shape[2], k.shape[2]
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            scores = q[b, h].double() @ k[b, h].double().T / math.sqrt(q.shape[3])
            if causal:
                seen = torch.ones(sq, sk, dtype=torch.bool, device="cuda").tril(sk - sq)
                scores.masked_fill_(~seen, float("-inf"))
            p = weigh(scores)
            del scores
            want = p @ v[b, h].double()
            # the probabilities and the result each keep 8 bits; the rest is float32
            # bf16 rounds by up to 2^-8 of a value, and two roundings meet: of P, and of the result
            bound = 2 * 2.0**-8 * (p @ v[b, h].double().abs()) + 1e-5
            error = ((o[b, h].double() - want).abs() / bound).max().item()
            most = max(most, error if math.isfinite(error) else math.inf)
    return most


def check(kernel: Any, causal: bool, shape: tuple[int, ...], runs: int) -> dict[str, Any]:
    import torch

    head = head_of(kernel)
    q, k, v = inputs(*shape, head)
    scale, blocks = numbers(head)

    def run() -> tuple[Any]:
        o = torch.full_like(q, float("nan"))
        kernel({"Q": q, "K": k, "V": v, "O": o, "scale": scale, "blocks": blocks})
        return (o,)

    first = same_every_time(run, runs)
    if first is None:
        return {"shape": shape, "ok": False, "why": "runs differ"}
    error = worst(q, k, v, first[0], causal)
    return {"shape": shape, "ok": error <= 1.0, "error_of_bound": error, "runs": runs}


def race(s: Schedule, shape: tuple[int, int, int], runs: int, quick: bool) -> Race:
    batch, heads, length = shape
    causal = s.name.endswith("causal")
    head = head_of(s.kernel)
    about: dict[str, Any] = {"kernel": s.name, "shape": shape, "compiled": s.about}

    def contenders() -> dict[str, Callable[[], Any]]:
        import torch
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as sdpa

        count = sets_for(4 * 2 * batch * heads * length * head)
        sets = [inputs(batch, heads, length, length, head) for _ in range(count)]
        about["rotated"] = count
        found: dict[str, Callable[[], Any]] = {
            s.name: rotate(
                *(partial(s.call, *qkv, torch.empty_like(qkv[0]), *numbers(head)) for qkv in sets)
            )
        }

        def by(backend: Any) -> Callable[[], None]:
            calls = rotate(*(partial(sdpa, *qkv, is_causal=causal) for qkv in sets))

            def run() -> None:
                with sdpa_kernel([backend]):
                    calls()

            return run

        backends = (SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION)
        for peer, backend in zip(PEERS, backends):
            try:
                by(backend)()
                torch.cuda.synchronize()
                found[peer] = by(backend)
            except RuntimeError as error:
                about[peer] = {"why": str(error).splitlines()[0]}
        return found

    def checks() -> Iterator[dict[str, Any]]:
        yield from s.odd()
        if not quick:
            found = check(s.kernel, causal, (batch, heads, length, length), runs)
            yield {"contender": s.name, **found}

    return Race(
        name_of(s.name, shape),
        contenders,
        checks,
        work=4.0 * batch * heads * length * length * head * (0.5 if causal else 1.0),
        ours=[s.name],
        about=about,
    )


def races(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    kernels: Sequence[str] = KERNELS,
    quick: bool = False,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)

    def odd(s: Schedule) -> Iterator[dict[str, Any]]:
        return (check(s.kernel, s.name.endswith("causal"), one, 3) for one in ODD_SHAPES)

    for name in kernels:
        s = Schedule(name, odd)
        for i, one in enumerate(shapes):
            yield race(s, one, 3 if i else 20, quick)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--shapes", type=shape(3), nargs="+", default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    raise SystemExit(main(__file__, parser))
