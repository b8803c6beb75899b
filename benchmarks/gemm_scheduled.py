"""The hand-scheduled GEMMs against torch.matmul on a GPU: checked first, then timed in turns.

    python benchmarks/gemm_scheduled.py --out gemm.json
    python benchmarks/gemm_scheduled.py --shapes 4096x4096x4096 --kernels gemm_cooperative
    python benchmarks/gemm_scheduled.py --triton --triton-tutorial 09-persistent-matmul.py

Each kernel first runs on NaN-poisoned outputs, small and ragged shapes included, and is compared
with a float32 product; 20 runs must agree bit for bit. Then contenders take turns: a round is one
burst of at least `--burst-ms` inside a pair of events for each of them; medians of `--rounds`
rounds are reported. Arrays that would stay in the L2 cache are made several times and rotated.
"""

from __future__ import annotations

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

SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (8192, 28672, 4096))
# rows and columns that no tile divides, one tile, one k step, fewer tiles than blocks
ODD_SHAPES = ((256, 256, 64), (128, 128, 64), (1000, 776, 520), (2048, 512, 64), (384, 8, 4096))
KERNELS = ("gemm_cooperative", "gemm_pingpong")


def blocks() -> int:
    import torch

    return torch.cuda.get_device_properties(0).multi_processor_count // 2 * 2


def inputs(m: int, n: int, k: int) -> tuple[Any, Any]:
    import torch

    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    return a, b


def check(kernel: Any, shape: tuple[int, int, int], runs: int) -> dict[str, Any]:
    import torch

    m, n, k = shape
    a, b = inputs(m, n, k)
    want = a.float() @ b.float()

    def run() -> tuple[Any]:
        c = torch.full((m, n), float("nan"), device="cuda", dtype=torch.bfloat16)
        kernel({"A": a, "B": b, "C": c, "blocks": blocks()})
        return (c,)

    first = same_every_time(run, runs)
    if first is None:
        return {"shape": shape, "ok": False, "why": "runs differ"}
    error = (first[0].float() - want).abs().max().item()
    # rounding to bf16 is half a unit in the last place of values up to the largest
    bound = 2.0**-8 * want.abs().max().item() + 1e-3 * k**0.5
    ok = bool(torch.isfinite(first[0]).all()) and error <= bound
    return {"shape": shape, "ok": ok, "error": error, "bound": bound, "runs": runs}


def check_peer(name: str, run: Callable[[], Any], sets: Sequence[Any]) -> dict[str, Any]:
    """A peer's products, in the poisoned third array of each set or returned, against torch's."""
    import torch

    worst, atol = 0.0, 2e-2 * sets[0][0].shape[1] ** 0.5
    for _, _, c in sets:
        c.fill_(float("nan"))
    for a, b, c in sets:
        made = run()
        made, want = c if made is None else made, torch.matmul(a, b)
        try:
            torch.testing.assert_close(made.to(want.dtype), want, rtol=2e-2, atol=atol)
        except AssertionError as error:
            return {"contender": name, "ok": False, "why": str(error)}
        worst = max(worst, (made.float() - want.float()).abs().max().item())
    return {"contender": name, "ok": True, "error": worst, "rtol": 2e-2, "atol": atol}


def race(
    schedules: Sequence[Schedule],
    shape: tuple[int, int, int],
    runs: int,
    triton: bool,
    tutorial: tuple[str, Sequence[str]] | None,
    quick: bool,
) -> Race:
    m, n, k = shape
    about: dict[str, Any] = {"shape": shape, "compiled": {}}
    peers: dict[str, Callable[[], Any]] = {}
    sets: list[tuple[Any, Any, Any]] = []

    def contenders() -> dict[str, Callable[[], Any]]:
        import torch

        for _ in range(sets_for(2 * (m * k + k * n + m * n))):
            c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
            sets.append((*inputs(m, n, k), c))
        about["rotated"] = len(sets)
        if triton:
            from peer_triton import best_product

            peers["triton"] = rotate(*best_product(sets))
        if tutorial is not None:
            from peer_tutorial import best_variant

            calls, about["triton_tutorial"] = best_variant(*tutorial, [s[:2] for s in sets])
            peers["triton_tutorial"] = rotate(*calls)
        found = {"torch": rotate(*(partial(torch.matmul, a, b, out=c) for a, b, c in sets))}
        found |= peers
        count = blocks()
        for s in schedules:
            found[s.name] = rotate(*(partial(s.call, a, b, c, count) for a, b, c in sets))
            about["compiled"][s.name] = s.about
        return found

    def checks() -> Iterator[dict[str, Any]]:
        for s in schedules:
            yield from s.odd()
            if not quick:
                yield {"contender": s.name, **check(s.kernel, shape, runs)}
        for name, run in peers.items():
            yield check_peer(name, run, sets)

    return Race(
        name_of("gemm", shape),
        contenders,
        checks,
        work=2.0 * m * n * k,
        ours=[s.name for s in schedules],
        about=about,
    )


def races(
    shapes: Sequence[tuple[int, int, int]] = SHAPES,
    kernels: Sequence[str] = KERNELS,
    triton: bool = False,
    triton_tutorial: str | None = None,
    tutorial_variants: Sequence[str] = (),
    quick: bool = False,
) -> Iterator[Race]:
    import torch

    torch.backends.cuda.matmul.allow_tf32 = False
    torch.manual_seed(0)

    def odd(s: Schedule) -> Iterator[dict[str, Any]]:
        return (check(s.kernel, shape, 3) for shape in ODD_SHAPES)

    schedules = [Schedule(name, odd) for name in kernels]
    tutorial = (triton_tutorial, tutorial_variants) if triton_tutorial else None
    for i, one in enumerate(shapes):
        yield race(schedules, one, 3 if i else 20, triton, tutorial, quick)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.set_defaults(burst_ms=2.0, timeout=500.0)
    parser.add_argument("--shapes", type=shape(3), nargs="+", default=list(SHAPES))
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--triton", action="store_true", help="race a Triton product too")
    parser.add_argument("--triton-tutorial", metavar="PATH", help="race Triton's own tutorial 09")
    parser.add_argument("--tutorial-variants", nargs="+", default=[], help="of the tutorial")
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    raise SystemExit(main(__file__, parser))
