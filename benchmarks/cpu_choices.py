"""What nothing chosen costs on the CPU: tile sizes of many kernels, measured by CPU time.

    TILEWRIGHT_NUM_THREADS=1 python benchmarks/cpu_choices.py --seed 7 --count 4 --out choices.json
    python benchmarks/cpu_choices.py regret choices.json ...

Of each family, `--count` sizes that the seed draws. Contenders: what is chosen, sizes that differ
from it along one loop, and as many drawn at random, `--most` in all. All take turns, by the CPU
time of the calling thread, the least of several bursts; the best four and the choice then once
more. `regret` says what the choice takes of the least, by family; with `--now`, of what was
measured that which is chosen as the code is now.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product as all_of
from math import exp, log
from pathlib import Path
from typing import Any

import numpy as np
from race import ROOT, name_of

import tilewright as tw
import tilewright.language as T
from tilewright.choose.candidates import Candidate
from tilewright.choose.measured import machine_of
from tilewright.targets.cpu.host import thread_count
from tilewright.targets.cpu.kernel import compile_program

sys.path.insert(0, str(ROOT))

STEPS = (1 / 16, 1 / 4, 1 / 2, 2, 4, 16)  # of the size along one loop
BURST = 2e-3  # seconds
ROUNDS, FINAL = 3, 6


@tw.jit
def product(A, B, transposed=False, activation=None):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((N, K) if transposed else (K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n), A.dtype)
        for k in T.tile(K):
            acc += A[m, k] @ (B[n, k].T if transposed else B[k, n])
        C[m, n] = activation(acc) if activation else acc
    return C


@tw.jit
def batched(A, B):
    batch, M, N, K = T.const("batch, M, N, K")
    A: T.Tensor((batch, M, K))
    B: T.Tensor((batch, K, N))
    C = T.empty((batch, M, N), A.dtype)
    for b, m, n in T.tile(T.each(batch), M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[b, m, k] @ B[b, k, n]
        C[b, m, n] = acc
    return C


@tw.jit
def convolution(X, F):
    N, H, W, C, O = T.const("N, H, W, C, O")
    X: T.Tensor((N, H, W, C))
    F: T.Tensor((3, 3, C, O))
    Y = T.empty((N, H, W, O), X.dtype)
    for p, o in T.tile(N * H * W, O):
        n, y, x = p.index // (H * W), p.index // W % H, p.index % W
        acc = T.zeros((p, o))
        for dy, dx, c in T.tile(T.each(3), T.each(3), C):
            acc += X[n, y + dy - 1, x + dx - 1, c] @ F[dy, dx, c, o]
        Y[n, y, x, o] = acc
    return Y


@tw.jit
def attention(Q, K, V, causal=True):
    B, H, S, D = T.const("B, H, S, D")
    Q: T.Tensor((B, H, S, D))
    K: T.Tensor((B, H, S, D))
    V: T.Tensor((B, H, S, D))
    O = T.empty((B, H, S, D), Q.dtype)
    for b, h, i in T.tile(T.each(B), T.each(H), S):
        q = T.load(Q[b, h, i, :])
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        for j in T.tile(i.stop if causal else S):
            s = q @ K[b, h, j, :].T * D**-0.5
            if causal:
                s = T.where(j.index <= i.index[:, None], s, -T.inf)
            new = T.maximum(top, T.max(s, dim=1))
            p, fix = T.exp(s - new[:, None]), T.exp(top - new)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + p @ V[b, h, j, :]
            top = new
        O[b, h, i, :] = acc / total[:, None]
    return O


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((M, N), X.dtype)
    for r in T.tile(M):
        x = T.load(X[r, :])
        e = T.exp(x - T.max(x, dim=1, keepdim=True))
        Y[r, :] = e / T.sum(e, dim=1, keepdim=True)
    return Y


@tw.jit
def layer_norm(X, weight, bias):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    weight: T.Tensor((N,))
    bias: T.Tensor((N,))
    Y = T.empty((M, N), X.dtype)
    for r in T.tile(M):
        x = T.load(X[r, :])
        mean, spread = T.mean(x, dim=1, keepdim=True), T.var(x, dim=1, keepdim=True)
        Y[r, :] = (x - mean) * T.rsqrt(spread + 1e-5) * weight[:] + bias[:]
    return Y


@tw.jit
def rms_norm(X, weight):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    weight: T.Tensor((N,))
    Y = T.empty((M, N), X.dtype)
    for r in T.tile(M):
        x = T.load(X[r, :])
        Y[r, :] = x * T.rsqrt(T.mean(x * x, dim=1, keepdim=True) + 1e-6) * weight[:]
    return Y


@tw.jit
def row_sums(X):
    """A step of each row at a time."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((M,), X.dtype)
    for r in T.tile(M):
        total = T.zeros((r,))
        for n in T.tile(N):
            total += T.sum(X[r, n], dim=1)
        Y[r] = total
    return Y


@tw.jit
def column_sums(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((N,), X.dtype)
    for n in T.tile(N):
        Y[n] = T.sum(X[:, n], dim=0)
    return Y


@tw.jit
def column_steps(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((N,), X.dtype)
    for n in T.tile(N):
        total = T.zeros((n,))
        for m in T.tile(M):
            total += T.sum(X[m, n], dim=0)
        Y[n] = total
    return Y


@tw.jit
def add(A, B):
    N = T.const("N")
    A: T.Tensor((N,))
    B: T.Tensor((N,))
    C = T.empty((N,), A.dtype)
    for n in T.tile(N):
        C[n] = A[n] + B[n]
    return C


@tw.jit
def swiglu(A, B):
    M, N = T.const("M, N")
    A: T.Tensor((M, N))
    B: T.Tensor((M, N))
    Y = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        a = A[m, n]
        Y[m, n] = a * T.sigmoid(a) * B[m, n]
    return Y


@tw.jit
def outer(A, x, y):
    M, N = T.const("M, N")
    A: T.Tensor((M, N))
    x: T.Tensor((M,))
    y: T.Tensor((N,))
    Y = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        Y[m, n] = A[m, n] + x[m][:, None] * y[n]
    return Y


@tw.jit
def transpose(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((N, M), X.dtype)
    for n, m in T.tile(N, M):
        Y[n, m] = X[m, n].T
    return Y


@tw.jit
def swapped(X):
    """The first and the last of three axes."""
    A, B, C = T.const("A, B, C")
    X: T.Tensor((A, B, C))
    Y = T.empty((C, B, A), X.dtype)
    for b, c, a in T.tile(T.each(B), C, A):
        Y[c, b, a] = X[a, b, c].T
    return Y


@tw.jit
def scan_rows(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((M, N), X.dtype)
    for r in T.tile(M):
        before = T.zeros((r,))
        for n in T.tile(N):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=1) + before[:, None]
            before += T.sum(x, dim=1)
    return Y


@tw.jit
def scan_columns(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    Y = T.empty((M, N), X.dtype)
    for n in T.tile(N):
        before = T.zeros((n,))
        for r in T.tile(M):
            x = T.load(X[r, n])
            Y[r, n] = T.cumsum(x, dim=0) + before
            before += T.sum(x, dim=0)
    return Y


@tw.jit
def gather(X, I):
    """Rows of a table."""
    V, N, M = T.const("V, N, M")
    X: T.Tensor((V, N))
    I: T.Tensor((M,), "int32")
    Y = T.empty((M, N), X.dtype)
    for m, n in T.tile(M, N):
        Y[m, n] = X[I[m], n]
    return Y


@dataclass(frozen=True)
class Case:
    """A kernel with the shapes and types of its arrays, and its settings; `limit`: integers are
    below it."""

    family: str
    name: str
    kernel: Any
    shapes: tuple[tuple[int, ...], ...]
    settings: tuple[Any, ...] = ()
    dtypes: tuple[str, ...] = ()
    limit: int = 1

    def arrays(self) -> list[Any]:
        rng, dtypes = np.random.default_rng(0), self.dtypes or ("float32",) * len(self.shapes)
        return [
            rng.integers(0, self.limit, shape).astype(dtype)
            if "int" in dtype
            else rng.standard_normal(shape, np.float32).astype(dtype)
            for shape, dtype in zip(self.shapes, dtypes, strict=True)
        ]


def cases(seed: int, count: int) -> Iterator[Case]:
    rng = random.Random(seed)

    def near(low: int, high: int, step: int = 1) -> int:
        size = low * (high / low) ** rng.random()
        return max(step, round(size / step) * step)

    def matrix() -> tuple[int, int]:
        """Up to 4 million elements, of any form; rows of vectors as often as others."""
        area, side = near(1 << 12, 1 << 22), near(4, 8192, rng.choice((1, 1, 16)))
        return max(2, area // side), side

    for _ in range(count):
        for dtype in ("float32", "float64"):
            m, n, k = (near(8, 1200) for _ in range(3))
            flip = rng.random() < 0.5
            yield Case(
                f"product {dtype}", name_of("NT" if flip else "NN", (m, n, k)), product,
                ((m, k), (n, k) if flip else (k, n)), (flip,), (dtype,) * 2,
            )  # fmt: skip
        m, n, k = near(8, 1200), near(8, 1200), near(8, 1200)
        ended = ((m, k), (k, n))
        yield Case("product, GELU", name_of("", (m, n, k)), product, ended, (False, T.gelu))
        b, m, n, k = near(4, 64), near(8, 300), near(8, 300), near(8, 300)
        yield Case("batched", name_of("", (b, m, n, k)), batched, ((b, m, k), (b, k, n)))
        b, w, c, o = near(1, 4), near(7, 40), near(4, 96), near(4, 96)
        shapes = ((b, w, w, c), (3, 3, c, o))
        yield Case("convolution", name_of("", (b, w, w, c, o)), convolution, shapes)
        b, h, s, d = near(1, 3), near(1, 8), near(32, 900), rng.choice((32, 64, 80, 128))
        causal = rng.random() < 0.5
        yield Case(
            "attention", name_of("causal" * causal, (b, h, s, d)), attention,
            ((b, h, s, d),) * 3, (causal,),
        )  # fmt: skip
        for kernel, besides in ((softmax, 0), (layer_norm, 2), (rms_norm, 1)):
            m, n = matrix()
            shapes = ((m, n), *((n,),) * besides)
            yield Case("rows", name_of(kernel.fn.__name__, (m, n)), kernel, shapes)
        for kernel in (row_sums, column_sums, column_steps):
            m, n = matrix()
            yield Case("sums", name_of(kernel.fn.__name__, (m, n)), kernel, ((m, n),))
        (m, n), total = matrix(), near(1 << 10, 1 << 22)
        yield Case("elementwise", name_of("add", (total,)), add, ((total,),) * 2)
        yield Case("elementwise", name_of("swiglu", (m, n)), swiglu, ((m, n),) * 2)
        m, n = matrix()
        yield Case("elementwise", name_of("outer", (m, n)), outer, ((m, n), (m,), (n,)))
        m, n = matrix()
        yield Case("transposes", name_of("transpose", (m, n)), transpose, ((m, n),))
        a, b, c = near(4, 300), near(2, 40), near(4, 300)
        yield Case("transposes", name_of("swapped", (a, b, c)), swapped, ((a, b, c),))
        for kernel in (scan_rows, scan_columns):
            m, n = matrix()
            yield Case("scans", name_of(kernel.fn.__name__, (m, n)), kernel, ((m, n),))
        (m, n), v = matrix(), near(100, 4000)
        yield Case(
            "gathers", name_of("", (v, m, n)), gather, ((v, n), (m,)), (), ("float32", "int32"), v
        )


def contenders(default: Candidate, lengths: dict[str, int], most: int, seed: str) -> list[Any]:
    """Others than the default: sizes that differ along one loop, the others at random."""
    names, start = [name for name, _ in default.tiles], dict(default.tiles)
    ladders = {}
    for name in names:
        top = lengths.get(name, start[name] * 16)
        sizes = {max(1, round(start[name] * step)) for step in STEPS} | {top, -(-top // 2)}
        ladders[name] = sorted({min(size, top) for size in sizes} - {start[name]})
    single = [{**start, name: size} for name in names for size in ladders[name]]
    rng = random.Random(seed)
    every = [dict(zip(names, each, strict=True)) for each in
             all_of(*([start[name], *ladders[name]] for name in names))]  # fmt: skip
    rest = [each for each in every if each != start and each not in single]
    few = single if len(single) <= most // 2 else rng.sample(single, most // 2)
    drawn = few + rng.sample(rest, min(len(rest), most - len(few)))
    return [Candidate(tuple(each.items()), default.threads) for each in drawn]


def chosen(case: Case) -> tuple[Candidate, dict[str, int], dict[str, Any]]:
    """What is chosen for the first kernel, the lengths of its open loops, and the arguments."""
    from tilewright.choose.pick import candidate_of

    calls, lengths = case.kernel.on("cpu").calls, dict[str, int]()
    bound = calls.bind((*case.arrays(), *case.settings), {})

    def pick(builder: Any, traced: Any) -> Any:
        from tilewright.choose.pick import choose

        for key, n in builder.lengths.items():
            if builder.axes.get(key) in builder.open_tiles:
                lengths[builder.axes[key][1]] = n
        found = choose(calls.target(), builder, traced, given=None).sizes
        opened[:] = [name for number, name in builder.open_tiles if number == 0]
        return found

    opened: list[str] = []
    found = candidate_of(_sizes(calls, bound, pick), 0)
    own = tuple((name, size) for name, size in found.tiles if name in opened)
    return Candidate(own, 0), lengths, bound


def _sizes(calls: Any, bound: dict[str, Any], pick: Callable[..., Any]) -> Any:
    kept: list[Any] = []

    def keep(builder: Any, traced: Any) -> Any:
        kept.append(pick(builder, traced))
        return kept[-1]

    calls._first(bound, {}, keep)
    return kept[0]


def built(case: Case, bound: dict[str, Any], candidate: Candidate) -> Callable[[], None]:
    calls = case.kernel.on("cpu").calls
    program = calls.trace(bound, given={0: candidate}).program
    kernel = compile_program(program, calls.target())
    arrays = dict(bound)
    for tensor in program.tensors:
        if tensor.name not in arrays:
            arrays[tensor.name] = np.empty([int(n) for n in tensor.shape], tensor.dtype.numpy)
    run, head = kernel.fixed({}), kernel.head(arrays)

    def call(kept: Any = (kernel, arrays)) -> None:
        run(head)

    return call


def burst(call: Callable[[], None], least: float) -> float:
    """Seconds of a call."""
    times, started = 0, time.thread_time()
    while True:
        call()
        times += 1
        taken = time.thread_time() - started
        if taken >= least:
            return taken / times


def race(case: Case, most: int) -> dict[str, Any]:
    default, lengths, bound = chosen(case)
    all_ = [default, *contenders(default, lengths, most, case.name)]
    calls: dict[str, Callable[[], None]] = {}
    failed: dict[str, str] = {}
    for each in all_:
        try:
            calls[label(each)] = built(case, bound, each)
        except tw.CompileError as error:
            failed[label(each)] = error.message
    times = {name: float("inf") for name in calls}

    def rounds(names: Sequence[str], count: int) -> None:
        for name in names * count:
            times[name] = min(times[name], burst(calls[name], BURST))

    for name, call in calls.items():
        call()
        burst(call, BURST / 2)
    rounds([*calls], ROUNDS)
    rounds([*{*sorted(calls, key=times.__getitem__)[:4], label(default)}], FINAL)
    told = {name: round(1e6 * seconds, 3) for name, seconds in times.items()}
    found = {"family": case.family, "case": case.name, "default": label(default), "us": told}
    return {**found, "lengths": lengths, **({"failed": failed} if failed else {})}


def label(chosen: Candidate) -> str:
    return " ".join(f"{name}{size}" for name, size in chosen.tiles)


def regret(paths: Sequence[str], now: bool) -> None:
    ratios: dict[str, list[tuple[float, str]]] = {}
    for path in paths:
        told = json.loads(Path(path).read_text())
        known = {(c.family, c.name): c for c in cases(told["seed"], told["count"])} if now else {}
        for each in told["races"]:
            name = f"{each['family']} {each['case']}"
            times, default = each["us"], each["default"]
            if now:
                default = label(chosen(known[each["family"], each["case"]])[0])
                if default not in times:
                    print(f"{name}: {default} was not measured")
                    continue
            best = min(times, key=times.__getitem__)
            ratio = times[default] / times[best]
            ratios.setdefault(each["family"], []).append((ratio, each["case"]))
            print(
                f"{name}: {default} {times[default]:.1f} µs, {best} {times[best]:.1f}: {ratio:.3f}"
            )
    ratios["all"] = [each for found in [*ratios.values()] for each in found]
    for family, found in ratios.items():
        mean = exp(sum(log(ratio) for ratio, _ in found) / len(found))
        most, where = max(found)
        print(f"{family}, {len(found)}: {mean:.3f}, most {most:.2f} ({where})")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("regret", nargs="*", help="`regret`, and results")
    parser.add_argument("--now", action="store_true", help="the choice of the code as it is now")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, default=2)
    parser.add_argument("--most", type=int, default=24, help="contenders of a size")
    parser.add_argument("--family", help="of this family alone")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.regret:
        regret(args.regret[1:], args.now)
        return
    found: list[dict[str, Any]] = []
    told = {"command": " ".join(["python", *sys.argv]), "seed": args.seed, "count": args.count,
            "machine": machine_of("cpu"), "threads": thread_count(),
            "python": platform.python_version(), "races": found}  # fmt: skip
    for case in cases(args.seed, args.count):
        if args.family and args.family != case.family:
            continue
        found.append(race(case, args.most))
        times = found[-1]["us"]
        ratio = times[found[-1]["default"]] / min(times.values())
        print(f"{case.family} {case.name}: {ratio:.3f}", flush=True)
        if args.out:
            args.out.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
