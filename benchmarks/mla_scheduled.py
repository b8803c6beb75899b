"""The hand-scheduled MLA decode kernel on a GPU: checked, then timed.

    python benchmarks/mla_scheduled.py --out mla.json
    python benchmarks/mla_scheduled.py --shapes 128x128x8192 --quick
    python benchmarks/mla_scheduled.py --tilelang example_mla_decode.py

The kernel first runs on NaN-poisoned outputs and fresh data, short and odd lengths included, and
every element of O and of the log-sum-exp is compared with a float64 result, within what rounding
the probabilities and the output to bf16 can cost; 20 runs must agree bit for bit. Shapes are
batch × heads × keys; a request counts 2·heads·keys·(576 + 512) operations. A round is one burst of
at least `--burst-ms` inside a pair of events; medians of `--rounds` rounds are reported. TileLang's
own example takes turns with it when its file is given (fp16, one split, blocks of 64×64).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from race import Race, Schedule, command_line, load, main, name_of, same_every_time, shape

LATENT, ROPE, GROUP = 512, 64, 64
KERNEL = "mla_seesaw"
SHAPES = ((128, 128, 8192), (128, 128, 1024), (128, 64, 8192), (128, 64, 1024))
# one key, less than a block, whole blocks, odd and even counts of them, tails, more than one wave
ODD_SHAPES = (
    (1, 64, 1),
    (1, 64, 63),
    (2, 64, 64),
    (1, 128, 65),
    (3, 64, 128),
    (2, 128, 150),
    (1, 64, 192),
    (5, 128, 257),
    (133, 128, 320),
    (2, 64, 1000),
)


def inputs(batch: int, heads: int, keys: int) -> tuple[Any, Any]:
    import torch

    width = LATENT + ROPE
    q = torch.randn(batch, heads // GROUP, GROUP, width, device="cuda", dtype=torch.bfloat16)
    k = torch.randn(batch, keys, width, device="cuda", dtype=torch.bfloat16)
    return q, k


def scale() -> float:
    return math.log2(math.e) / math.sqrt(LATENT + ROPE)


def outputs(q: Any) -> tuple[Any, Any]:
    import torch

    o = q.new_full((*q.shape[:3], LATENT), float("nan"))
    lse = torch.full(q.shape[:3], float("nan"), device="cuda", dtype=torch.float32)
    return o, lse


def worst(q: Any, k: Any, o: Any, lse: Any) -> tuple[float, float]:
    """The largest error of `o` in units of what roundings to bf16 explain, and that of `lse`; inf
    for a NaN."""
    import torch

    most = [0.0, 0.0]
    for b in range(len(q)):
        keys = k[b].double()
        scores = q[b].double() @ keys.T * scale() * math.log(2.0)
        p = torch.softmax(scores, -1)
        values = keys[:, :LATENT]
        want = p @ values
        # the probabilities and the result each keep 8 bits; the rest is float32
        bound = 2.0**-8 * (p @ values.abs()) + 1e-5
        errors = (
            ((o[b].double() - want).abs() / bound).max().item(),
            (lse[b].double() - torch.logsumexp(scores, -1) / math.log(2.0)).abs().max().item(),
        )
        for i, error in enumerate(errors):
            most[i] = max(most[i], error if math.isfinite(error) else math.inf)
    return most[0], most[1]


def check(kernel: Any, shape: tuple[int, int, int], runs: int) -> dict[str, Any]:
    import torch

    q, k = inputs(*shape)

    def run() -> tuple[Any, Any]:
        o, lse = outputs(q)
        kernel({"Q": q, "K": k, "O": o, "LSE": lse, "scale": scale()})
        return o, lse

    first = same_every_time(run, runs)
    if first is None:
        return {"shape": shape, "ok": False, "why": "runs differ"}
    error, lse_error = worst(q, k, *first)
    torch.cuda.empty_cache()
    return {
        "shape": shape,
        "ok": error <= 1.0 and lse_error <= 1e-3,
        "error_of_bound": error,
        "lse_error": lse_error,
        "runs": runs,
    }


def tilelang_call(path: str, batch: int, heads: int, keys: int) -> Callable[[], Any]:
    """TileLang's example, compiled for the shape, on data of its own type."""
    import torch

    kernel = load(path, "tilelang_mla").flashattn(
        batch, heads, 1, keys, LATENT, ROPE, 64, 64, 1, (LATENT + ROPE) ** -0.5
    )

    def tensor(*sizes: int) -> Any:
        return torch.randn(*sizes, device="cuda", dtype=torch.float16)

    q, q_rope = tensor(batch, heads, LATENT), tensor(batch, heads, ROPE)
    kv, k_rope = tensor(batch, keys, 1, LATENT), tensor(batch, keys, 1, ROPE)
    return lambda: kernel(q, q_rope, kv, k_rope)


def race(
    s: Schedule, shape: tuple[int, int, int], runs: int, quick: bool, tilelang: str | None
) -> Race:
    batch, heads, keys = shape
    about: dict[str, Any] = {
        "kernel": s.name,
        "shape": shape,
        "key_bytes": batch * keys * (LATENT + ROPE) * 2,
    }

    def contenders() -> dict[str, Callable[[], Any]]:
        about["compiled"] = s.about
        q, k = inputs(*shape)
        o, lse = outputs(q)
        found: dict[str, Callable[[], Any]] = {s.name: lambda: s.call(q, k, o, lse, scale())}
        if tilelang:
            found["tilelang"] = tilelang_call(tilelang, *shape)
        return found

    def checks() -> Iterator[dict[str, Any]]:
        yield from s.odd()
        if not quick:
            yield {"contender": s.name, **check(s.kernel, shape, runs)}

    return Race(
        name_of(s.name, shape),
        contenders,
        checks,
        work=2.0 * batch * heads * keys * (2 * LATENT + ROPE),
        ours=[s.name],
        about=about,
    )


def races(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    quick: bool = False,
    tilelang: str | None = None,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)
    s = Schedule(KERNEL, lambda s: (check(s.kernel, one, 3) for one in ODD_SHAPES))
    for i, one in enumerate(shapes):
        yield race(s, one, 3 if i else 20, quick, tilelang)


def parse(text: str) -> tuple[int, ...]:
    sizes = shape(3)(text)
    if sizes[1] % GROUP:
        raise argparse.ArgumentTypeError(f"heads come in groups of {GROUP}, not {sizes[1]}")
    return sizes


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--shapes", type=parse, nargs="+", default=list(SHAPES))
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    parser.add_argument("--tilelang", metavar="PATH", help="race TileLang's example_mla_decode.py")
    raise SystemExit(main(__file__, parser))
