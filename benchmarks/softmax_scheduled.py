"""The hand-scheduled cluster softmax kernels on a GPU: checked, then timed in turns with a copy.

    python benchmarks/softmax_scheduled.py --out softmax.json
    python benchmarks/softmax_scheduled.py --shapes 8192x65536 --clusters 32 30

Each kernel first runs on NaN-poisoned outputs and fresh data, small and odd shapes included, and
every element is compared with a float64 result; 20 runs must agree bit for bit. Then contenders
(this kernel with each number of clusters, copies of the same bytes, torch.softmax) take turns: a
round is one burst of at least `--burst-ms` inside a pair of events for each of them; medians of
`--rounds` rounds are reported, in bytes read and written per second.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from copies import copies
from race import Race, Schedule, command_line, main, name_of, same_every_time, shape

COLUMNS = 2048  # of a group in the kernel for long rows
KERNELS = ("softmax_cluster_wide",)
# rows and columns
SHAPES = {
    "softmax_cluster_wide": ((8192, 65536),),
    "softmax_cluster": ((65536, 1024),),
}
# one row, a tail in the last block, blocks that hold nothing, fewer and more rows than clusters
ODD_SHAPES = {
    "softmax_cluster_wide": (
        (1, 65536),
        (2, 2048),
        (7, 32768),
        (300, 55296),
        (129, 16384),
        (1000, 65536),
    ),
    "softmax_cluster": ((1, 1024), (8, 4), (13, 900), (1000, 260), (5000, 512)),
}


def resident(cluster: int) -> int:
    """Clusters of that size which the GPU holds at once, a block per multiprocessor.

    Clusters do not span the GPU's groups of multiprocessors: of an H200's 132, 30 clusters of four
    are resident at once, and a 31st waits for a second wave."""
    import torch

    sms = torch.cuda.get_device_properties(0).multi_processor_count
    return sms * 30 // 132 if cluster == 4 else sms // cluster


def tensor(name: str, rows: int, columns: int) -> Any:
    import torch

    if name == "softmax_cluster":
        return torch.randn(rows, columns, device="cuda") * 3
    x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) * 3
    return x.view(rows, columns // COLUMNS, 8, 256)


def counter(s: Schedule) -> tuple[Any, ...]:
    """The counter that deals rows, where the kernel has one."""
    import torch

    names = [p.name for p in s.kernel.program.params]
    return (torch.zeros(1, dtype=torch.int32, device="cuda"),) * ("counter" in names)


def worst(x: Any, y: Any) -> float:
    """The largest error of `y` relative to what its type keeps; inf for a NaN."""
    x, y = x.flatten(1), y.flatten(1)
    unit = 2.0**-8 if x.element_size() == 2 else 2.0**-18
    most = 0.0
    step = max(1, (1 << 24) // x.shape[1])
    for first in range(0, len(x), step):
        want = x[first : first + step].double().softmax(-1)
        error = ((y[first : first + step].double() - want).abs() / want).max().item() / unit
        most = max(most, error if math.isfinite(error) else math.inf)
    return most


def check(s: Schedule, shape: tuple[int, int], clusters: int, runs: int) -> dict[str, Any]:
    import torch

    x = tensor(s.name, *shape)
    blocks, more = s.cluster * clusters, counter(s)

    def run() -> tuple[Any]:
        y = torch.full_like(x, float("nan"))
        s.call(x, y, math.log2(math.e), blocks, *more)
        return (y,)

    first = same_every_time(run, runs)
    if first is None:
        return {"shape": shape, "blocks": blocks, "ok": False, "why": "runs differ"}
    error = worst(x, first[0])
    torch.cuda.empty_cache()
    return {
        "shape": shape,
        "blocks": blocks,
        "ok": error <= 1.0,
        "error_of_bound": error,
        "runs": runs,
    }


def race(
    s: Schedule, shape: tuple[int, int], counts: Sequence[int], runs: int, quick: bool
) -> Race:
    about: dict[str, Any] = {"kernel": s.name, "shape": shape, "cluster": s.cluster}
    element = 4 if s.name == "softmax_cluster" else 2

    def contenders() -> dict[str, Callable[[], Any]]:
        import torch

        about["compiled"] = s.about
        x = tensor(s.name, *shape)
        y, z = torch.empty_like(x), torch.empty_like(x)
        flat_x, flat_z = x.flatten(1), z.flatten(1)
        more = counter(s)
        found: dict[str, Callable[[], Any]] = {}
        for clusters in counts:

            def run(blocks: int = s.cluster * clusters) -> None:
                s.call(x, y, math.log2(math.e), blocks, *more)

            found[f"{s.name}/{clusters}"] = run
        found.update(copies(x, z) if element == 2 else {"copy": lambda: z.copy_(x)})
        found["torch"] = lambda: torch.softmax(flat_x, -1, out=flat_z)
        return found

    def checks() -> Iterator[dict[str, Any]]:
        # what is wrong on an odd shape is wrong for every number of clusters
        for found in s.odd():
            yield {k: v for k, v in found.items() if k != "contender"}
        if not quick:
            for clusters in counts:
                name = f"{s.name}/{clusters}"
                yield {"contender": name, **check(s, shape, clusters, runs)}

    return Race(
        name_of(s.name, shape),
        contenders,
        checks,
        work=2.0 * shape[0] * shape[1] * element,
        unit="B",
        ours=[f"{s.name}/{clusters}" for clusters in counts],
        about=about,
    )


def races(
    shapes: Sequence[tuple[int, int]] = (),
    kernels: Sequence[str] = KERNELS,
    clusters: Sequence[int] = (),
    quick: bool = False,
) -> Iterator[Race]:
    import torch

    torch.manual_seed(0)

    def odd(s: Schedule) -> Iterator[dict[str, Any]]:
        for one in ODD_SHAPES[s.name]:
            for count in sorted({1, *(clusters or [resident(s.cluster)])}):
                yield check(s, one, count, 3)

    for name in kernels:
        s = Schedule(name, odd)
        counts = list(clusters) or [resident(s.cluster)]
        for i, one in enumerate(shapes or SHAPES[name]):
            yield race(s, one, counts, 3 if i else 20, quick)


if __name__ == "__main__":
    parser = command_line(__doc__)
    parser.add_argument("--shapes", type=shape(2), nargs="+", default=[])
    parser.add_argument("--kernels", nargs="+", default=list(KERNELS))
    parser.add_argument("--clusters", type=int, nargs="+", default=[])
    parser.add_argument("--quick", action="store_true", help="check the small shapes only")
    raise SystemExit(main(__file__, parser))
