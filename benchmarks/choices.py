"""Candidates for tiles and threads, measured: how good is the first that the model takes?

    python benchmarks/choices.py --seed 7 --count 10 --out choices.json
    python benchmarks/choices.py --seed 7 --count 20 --family attention --out choices.json
    python benchmarks/choices.py --seed 7 --count 3 --family ends --out choices.json
    python benchmarks/choices.py regret choices.json ...
    python benchmarks/choices.py simulate choices.json ...

Of each kernel family, `--count` sizes that the seed draws; or of float32 products alone; or of
attention with more lengths, heads and columns, those of `attention.py`, and of one query, those of
`decode.py`; or of products that end in more than a sum, as formulas. Contenders: the `--best`
candidates that the model ranks first, as many of the others drawn at random, and PyTorch.
`regret` ranks the measured candidates by the model as it is now, on any machine, and compares: the
time of the first, and of the best of the first eight, by the least time of all. `simulate` does
the same with the first eight, ranked anew by the simulator that `explain()` draws, and by both; it
takes an hour or two.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import ceil, inf, prod
from pathlib import Path
from typing import Any

import numpy as np
from attention import drawn as attentions
from attention import shapes
from decode import drawn as decodes
from decode import shapes as decode_shapes
from race import ROOT, Race, build_ahead, command_line, main, name_of

import tilewright as tw
import tilewright.language as T
from tilewright.choose.candidates import Candidate, candidates
from tilewright.choose.model import Estimate
from tilewright.choose.pick import ranking
from tilewright.ir.op import For, walk_ops
from tilewright.ir.target import Target
from tilewright.lang.sizes import choose_sizes
from tilewright.lang.trace import trace_direct
from tilewright.runtime.backends import compiled_for

sys.path.insert(0, str(ROOT))

TARGET = "cuda -arch=sm_90a"
BOUND = {"bfloat16": 3e-2, "float16": 1e-2, "float32": 1e-4}
FIRST = 8  # of which the best counts
DEFAULT = "default"  # nothing chosen


@tw.jit
def product(A, B, transposed=False):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((N, K) if transposed else (K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ (B[n, k].T if transposed else B[k, n])
        C[m, n] = acc
    return C


@dataclass(frozen=True)
class Case:
    """A kernel with the shapes of its arrays, its compile-time settings, and PyTorch's text."""

    name: str
    kernel: Any
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    settings: tuple[Any, ...]
    torch: Callable[..., Any]
    work: float
    integers: tuple[int, ...] = ()  # which of the arrays are int8

    def dtypes(self) -> list[str]:
        return ["int8" if n in self.integers else self.dtype for n in range(len(self.shapes))]

    def arrays(self) -> list[Any]:
        """Zeros that take no memory."""
        each = zip(self.dtypes(), self.shapes, strict=True)
        return [np.broadcast_to(np.zeros((), dtype), shape) for dtype, shape in each]


def cases(seed: int, count: int, family: str = "all") -> Iterator[Case]:
    from zoo.attention.values import attention, decode
    from zoo.gemm.values import convolution, matmul_batched

    if family == "attention":
        for size in attentions(seed, count, "0/1"):
            batch, heads, groups, length, columns, causal = size
            yield Case(
                f"attention{' causal' * causal} {batch}x{heads}/{groups}x{length}x{columns}",
                attention, shapes(size), "bfloat16", (causal,), partial(_attention, causal),
                4.0 * batch * heads * length**2 * columns / (1 + causal),
            )  # fmt: skip
        return
    if family == "decode":
        for *size, paged in decodes(seed, 2 * count, "0/2"):
            given = decode_shapes((*size, paged))
            work = 4.0 * prod(given[0]) * size[-1]
            told = name_of("decode", size)
            yield Case(told, decode, given, "bfloat16", (), partial(_attention, False), work)
        return
    rng = random.Random(seed)
    if family == "ends":
        for _ in range(count):
            m, n, k = (rng.randrange(4, 65) * 64 for _ in range(3))
            yield from ends(m, n, k)
        return

    def near(low: int, high: int, step: int = 8) -> int:
        """Between the two, as often small as large."""
        size = low * (high / low) ** rng.random()
        return max(step, round(size / step) * step)

    for _ in range(count):
        for dtype in ("float32",) if family == "float32" else ("bfloat16", "float16", "float32"):
            m, n, k = near(8, 16384), near(256, 16384), near(256, 16384)
            if dtype == "float32":
                m, n, k = min(m, 4096), min(n, 4096), min(k, 4096)
            flip = rng.random() < 0.5
            yield Case(
                name_of(f"product {dtype} {'NT' if flip else 'NN'}", (m, n, k)), product,
                ((m, k), (n, k) if flip else (k, n)), dtype, (flip,),
                (lambda a, b: a @ b.T) if flip else (lambda a, b: a @ b), 2.0 * m * n * k,
            )  # fmt: skip
        if family == "float32":
            continue
        b, m, n, k = near(4, 64, 1), near(64, 2048), near(64, 2048), near(64, 2048)
        yield Case(
            name_of("batched", (b, m, n, k)), matmul_batched, ((b, m, k), (b, k, n)), "bfloat16",
            (), lambda a, b: a @ b, 2.0 * b * m * n * k,
        )  # fmt: skip
        b, s, d, causal = near(1, 8, 1), near(128, 8192), rng.choice((64, 128)), rng.random() < 0.5
        yield Case(
            name_of(f"attention{' causal' * causal}", (b, 16, s, d)), attention,
            ((b, 16, s, d),) * 3, "bfloat16", (causal,), partial(_attention, causal),
            4.0 * b * 16 * s * s * d / (1 + causal),
        )  # fmt: skip
        b, w, c, o = near(1, 32, 1), near(14, 112, 2), near(32, 256), near(32, 256)
        yield Case(
            name_of("convolution", (b, w, w, c, o)), convolution, ((b, w, w, c), (3, 3, c, o)),
            "bfloat16", (), _convolution, 18.0 * b * w * w * c * o,
        )  # fmt: skip


def ends(m: int, n: int, k: int) -> Iterator[Case]:
    """Products that end in more than a sum."""
    import tilewright.math as tm

    formulas: dict[str, tuple[Any, tuple[Any, ...], Callable[..., Any]]] = {
        "gelu": (
            lambda a, b, bias: tm.gelu(a @ b + bias, approximate="tanh"),
            ((n,),),
            lambda f, a, b, bias: f.gelu(a @ b + bias, approximate="tanh"),
        ),
        "silu": (lambda a, b: tm.silu(a @ b), (), lambda f, a, b: f.silu(a @ b)),
        "residual": (lambda a, b, r: a @ b + r, ((m, n),), lambda f, a, b, r: a @ b + r),
        "gated": (
            lambda a, b, gate: tm.silu(a @ gate) * (a @ b),
            ((k, n),),
            lambda f, a, b, gate: f.silu(a @ gate) * (a @ b),
        ),
        "weights": (
            lambda a, b, scale: a @ tm.astype(b, a.dtype) * scale,
            ((n,),),
            lambda f, a, b, scale: a @ b.to(a.dtype) * scale,
        ),
    }
    for name, (formula, besides, peer) in formulas.items():
        case = Case(
            name_of(name, (m, n, k)), None, ((m, k), (k, n), *besides), "bfloat16", (),
            partial(_torch, peer), 2.0 * m * n * k * (1 + (name == "gated")),
            (1,) if name == "weights" else (),
        )  # fmt: skip
        kernel = tw.math(formula)._of(tuple(case.arrays()), {})[0].kernel
        yield replace(case, kernel=kernel)


def _torch(peer: Callable[..., Any], *given: Any) -> Any:
    import torch

    return peer(torch.nn.functional, *given)


def _attention(causal: bool, *given: Any) -> Any:
    import torch

    return torch.nn.functional.scaled_dot_product_attention(
        *given, is_causal=causal, enable_gqa=given[0].shape[1] != given[1].shape[1]
    )


def _convolution(x: Any, f: Any) -> Any:
    import torch

    found = torch.nn.functional.conv2d(x.permute(0, 3, 1, 2), f.permute(3, 2, 0, 1), padding=1)
    return found.permute(0, 2, 3, 1)


def ranked(case: Case) -> list[tuple[Candidate, Estimate]]:
    """All candidates that fit, by the time that the model gives them."""
    import ml_dtypes  # noqa: F401 (NumPy learns of bfloat16)

    target = Target.parse(TARGET)
    found: list[tuple[Candidate, Estimate]] = []

    def pick(builder: Any, traced: Any) -> Any:
        sizes = choose_sizes(builder)
        found.extend(ranking(builder, 0, candidates(builder, 0, target), sizes, target, traced))
        return sizes

    with compiled_for(target):
        trace_direct(case.kernel.fn, (*case.arrays(), *case.settings), pick=pick)
    return found


def label(chosen: Candidate) -> str:
    told = [f"{name}{size}" for name, size in chosen.tiles] + [f"t{chosen.threads}"]
    told += [f"c{chosen.cluster}"] * (chosen.cluster > 1)
    told += [f"{name}/{blocks}" for name, blocks in chosen.shares]
    return " ".join(told + [f"{name}:{blocks}" for name, blocks in chosen.parts + chosen.numbers])


def scheduled(case: Case, chosen: Candidate) -> Any:
    return case.kernel.on(TARGET).with_schedule(
        tiles=dict(chosen.tiles + chosen.numbers), threads=chosen.threads, cluster=chosen.cluster
    )


@cache
def drawn(seed: int, count: int, best: int, family: str) -> list[tuple[Case, list[Candidate]]]:
    """The cases, and the candidates of each that are measured."""
    rng, found = random.Random(seed), []
    for case in cases(seed, count, family):
        # blocks that share steps are no part of a schedule: `default` may have them
        known = [chosen for chosen, _ in ranked(case) if not chosen.shares + chosen.parts]
        rest = known[best:]
        found.append((case, known[:best] + rng.sample(rest, min(best, len(rest)))))
    return found


def build(seed: int, count: int, best: int, family: str, at: int, number: int) -> None:
    case, chosen = drawn(seed, count, best, family)[at]
    arrays = case.arrays()
    if number == 0:
        case.kernel.on(TARGET).compile(*arrays, *case.settings)
    try:
        scheduled(case, chosen[number]).compile(*arrays, *case.settings)
    except tw.CompileError as error:
        print(f"{case.name} {label(chosen[number])}: {error.message}", file=sys.stderr)


def races(seed: int = 0, count: int = 2, best: int = 8, family: str = "all") -> Iterator[Race]:
    for case, chosen in drawn(seed, count, best, family):
        yield race(case, chosen)


def race(case: Case, chosen: Sequence[Candidate]) -> Race:
    import torch

    made: dict[str, Any] = {}

    def kernels() -> tuple[list[Any], dict[str, Callable[[], Any]]]:
        if not made:
            torch.manual_seed(0)
            given = [
                (torch.randn(shape, device="cuda") * (20 if dtype == "int8" else 1)).to(
                    getattr(torch, dtype)
                )
                for dtype, shape in zip(case.dtypes(), case.shapes, strict=True)
            ]
            calls: dict[str, Callable[[], Any]] = {}
            for each in chosen:
                try:
                    ready = scheduled(case, each).compile(*given, *case.settings)
                except tw.CompileError:
                    continue
                calls[label(each)] = lambda ready=ready: ready(*given)
            chosen_by_model = case.kernel.on(TARGET).compile(*given, *case.settings)
            calls[DEFAULT] = lambda: chosen_by_model(*given)
            made["given"], made["calls"] = given, calls
        return made["given"], made["calls"]

    def checks() -> Iterator[dict[str, Any]]:
        given, calls = kernels()
        want = case.torch(*(x.float() for x in given)).float()
        for name, run in calls.items():
            error = ((run().float() - want).abs().max() / want.abs().max()).item()
            yield {"contender": name, "ok": error < BOUND[case.dtype], "error": error}

    def contenders() -> dict[str, Callable[[], Any]]:
        given, calls = kernels()
        return {**calls, "torch": lambda: case.torch(*given)}

    names = [DEFAULT, *(label(each) for each in chosen)]
    return Race(case.name, contenders, checks, work=case.work, unit="FLOP", ours=names)


Regret = tuple[str, float, float, float]  # of a size: of the first, the best of eight, and PyTorch
Ranked = list[tuple[Candidate, Estimate]]


def measured(path: str, every: int = 1) -> Iterator[tuple[Case, Ranked, dict[str, float]]]:
    """Of `every` so many-th size, the measured candidates as the model ranks them, and times."""
    told = json.loads(Path(path).read_text())
    seed, count = (
        int(re.search(rf"--{word} (\d+)", told["command"])[1]) for word in ("seed", "count")
    )
    family = (re.search(r"--family (\w+)", told["command"]) or ["", "all"])[1]
    known = {case.name: case for case in cases(seed, count, family)}
    for race in [race for race in told["races"] if race.get("contenders")][::every]:
        times = {name: each["ms"] for name, each in race["contenders"].items()}
        case = known[race["race"]]
        yield case, [each for each in ranked(case) if label(each[0]) in times], times


def regrets(path: str, every: int = 1) -> Iterator[Regret]:
    """By how much times exceed the least that was measured, for `every` so many-th size."""
    for case, order, times in measured(path, every):
        peer = times.pop("torch")
        times.pop(DEFAULT, None)
        found = [times[label(chosen)] for chosen, _ in order]
        few, least = min(found[:FIRST]), min(times.values())
        yield case.name, found[0] / least, few / least, peer / least


def simulated(case: Case, chosen: Candidate, said: Estimate) -> float:
    """Cycles of a kernel by the simulator: of a multiprocessor's first blocks, as often as the
    model says that blocks follow; tiles that differ count in the mean."""
    from tilewright.choose.model import START, TAIL, Block
    from tilewright.inspect.explain import laid_out
    from tilewright.passes.layout.matrix_tiles import swap_operands
    from tilewright.runtime.backends import resolve
    from tilewright.targets.cuda.backend import lower
    from tilewright.tools.studio.walk import WholeWalk

    program, _ = scheduled(case, chosen).drafted(*case.arrays(), *case.settings)
    target = resolve(TARGET, threads=chosen.threads, cluster=chosen.cluster,
                     tiles=dict(chosen.tiles + chosen.numbers))  # fmt: skip
    laid = laid_out(lower(program, target))
    kernel, there = laid.kernels[0], target.chip.multiprocessors
    together = max(1, ceil(said.tiles / said.waves / there))
    run = WholeWalk(laid, kernel, target, together, {}).run()
    ways = [(who, who.starts) for who in run.partitions if len(who.starts) > 1]
    if not ways:
        return inf
    first = ways[0][1]
    walked = min(run.trip, len(first) - 1)
    early = min(4, walked - 1)
    interval = (first[walked] - first[early]) / (walked - early)
    loop = first[walked] - first[0] + (run.trip - walked) * interval
    roles = max((who.instance for who, _ in ways), default=0) + 1  # ping-pong: a tile each
    stays = any(op.kind == "persistent" for op in walk_ops(kernel, For))
    if stays and len(first) > run.trip + 1:
        each = (first[run.trip + 1] - first[0]) / roles
    else:
        each = run.now if run.finished and not stays else first[0] + loop
    together = 1 if stays else together
    trips = Block(swap_operands(program.kernels[0], target), target).trips_of
    if np.ptp(trips):
        mean = each - loop * (1 - float(np.mean(trips)) / max(1, run.trip))
        return START + max(said.waves + TAIL, each / mean) * mean
    rounds = ceil(said.tiles / there / together)
    return START + rounds * each + (first[0] if stays else 0.0)


def regret(*paths: str) -> None:
    """What the model's ranking costs, by family and in all."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for name, *each in (one for path in paths for one in regrets(path)):
        first, few, peer = each
        found.setdefault(name.rsplit(" ", 1)[0], []).append(tuple(each))
        print(f"{name}: {first:.3f}, of {FIRST} {few:.3f}, torch {peer:.2f}")
    found["all"] = [each for family in [*found.values()] for each in family]
    for family, each in found.items():
        columns = [np.array(column) for column in zip(*each, strict=True)]
        one, few, peer = (np.exp(np.log(column).mean()) for column in columns)
        most = np.quantile(columns[0], 0.95)
        said = f"{one:.3f} (95 % below {most:.3f}), best of {FIRST} {few:.3f}, torch {peer:.2f}"
        print(f"{family}, {len(each)} sizes: {said}")


def simulate(*paths: str) -> None:
    """Regret, and how far times scatter about a size's bias, of the first eight by the
    model, by the simulator, by their product, and by the simulator within 5 % of the first."""
    found: dict[str, list[list[float]]] = {}
    for case, order, times in (each for path in paths for each in measured(path)):
        few = order[:FIRST]
        model = np.array([said.cycles for _, said in few])
        walked = np.array([simulated(case, *each) for each in few])
        ms = np.array([times[label(chosen)] for chosen, _ in few])
        least = min(ms.min(), *(times[label(chosen)] for chosen, _ in order))
        near = np.where(model <= 1.05 * model[0], walked, inf)
        ranks = model, walked, model * walked, near
        costs = [ms[np.argmin(rank)] / least for rank in ranks]
        off = [np.log(cycles / ms)[np.isfinite(walked)] for cycles in (model, walked)]
        told = [*costs, *(each.std() for each in off), *(each.mean() for each in off)]
        print(f"{case.name}: " + ", ".join(f"{each:.3f}" for each in told))
        found.setdefault(case.name.rsplit(" ", 1)[0], []).append(told)
    found["all"] = [each for family in [*found.values()] for each in family]
    for family, each in found.items():
        columns = np.array(each).T
        mean = np.exp(np.log(columns[:4]).mean(axis=1))
        most = np.quantile(columns[:4], 0.95, axis=1)
        said = ", ".join(f"{one:.3f} ({top:.2f})" for one, top in zip(mean, most, strict=True))
        far = ", ".join(f"{one:.3f}" for one in columns[4:6].mean(axis=1))
        bias = ", ".join(f"{one / 1.6e6:.2f}" for one in np.exp(columns[6:].mean(axis=1)))
        print(f"{family}, {len(each)} sizes: {said}; off {far}; bias {bias}")


if __name__ == "__main__":
    if sys.argv[1:2] in (["regret"], ["simulate"]):
        {"regret": regret, "simulate": simulate}[sys.argv[1]](*sys.argv[2:])
        raise SystemExit
    parser = command_line(__doc__)
    parser.set_defaults(backend="graph", rounds=4, burst_ms=1.0, warmup_ms=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--best", type=int, default=8)
    families = "all", "attention", "decode", "ends", "float32"
    parser.add_argument("--family", choices=families, default="all")
    args = parser.parse_args()
    told = args.seed, args.count, args.best, args.family
    asked = [(case.name in (args.only or [case.name])) * len(each) for case, each in drawn(*told)]
    build_ahead(build, [(*told, at, n) for at, many in enumerate(asked) for n in range(many)])
    raise SystemExit(main(__file__, parser))
