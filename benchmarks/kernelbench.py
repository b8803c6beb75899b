"""KernelBench's problems through `torch.compile(backend="tilewright")`, against eager and inductor.

    python benchmarks/kernelbench.py run FOLDER --out kernelbench.jsonl
    python benchmarks/kernelbench.py summary kernelbench.jsonl

FOLDER holds `level1` and `level2`; a problem is a file with `Model`, `get_inputs` and
`get_init_inputs`. Each runs in a process of its own that is killed after `--timeout` seconds, and
adds a line to `--out`; what has a line is not run again. With `--jobs` several compile side by
side, but one at a time has the GPU to check and to time. `--device cpu --scale small` shrinks the
constants of the files, to see on a machine without a GPU what is covered.

Outputs are held to the model in float64: the largest error may be twice eager's, the mean 1.5
times, over a floor of rounding. Random masks of the reference are ours. A problem in which a
kernel ran that is not ours is neither right nor faster; one whose output does not depend on its
inputs is excluded.
"""

from __future__ import annotations

import argparse
import ast
import copy
import json
import math
import multiprocessing
import os
import random
import re
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

MOST = 5.0  # a problem counts at most so often in a mean
TYPES = ("bfloat16", "float32", "float16")
# kernels that compute nothing: copies, and fills by the driver
_MOVES = re.compile(r"^(Memcpy|Memset)\b")

# ── problems ─────────────────────────────────────────────────────────────────────────────────


def problems(folder: Path, levels: Sequence[str]) -> list[Path]:
    """The files of the levels, in the order of their numbers."""

    def number(path: Path) -> tuple[int, str]:
        found = re.match(r"\d+", path.name)
        return int(found[0]) if found else 0, path.name

    return [p for level in levels for p in sorted((folder / level).glob("*.py"), key=number)]


def drawn(names: Sequence[str], count: int | None, seed: int) -> set[str]:
    """`count` of the names, or all."""
    return set(names if count is None else random.Random(seed).sample(sorted(names), min(
        count, len(names))))  # fmt: skip


def small(name: str, n: int, least: int = 16) -> int:
    """A size for a machine without a GPU: from `least` on about its square root, with factors of
    two that groups need; few of what is called a batch.

    >>> [small("n", n) for n in (3, 16, 64, 112, 8192, 393216)], small("batch_size", 128)
    ([3, 16, 16, 28, 128, 768], 2)
    """
    if "batch" in name and n <= 1024:
        return min(n, 2)
    if n <= least:
        return n
    twos = (n & -n).bit_length() - 1
    odd = n >> twos
    odd = odd if odd <= 8 else odd % 8 + 8
    while odd << twos > max(least, 2 * math.isqrt(n)) and twos > 2:
        twos -= 1
    return odd << twos


class _Shrunk(ast.NodeTransformer):
    """Module-level constants, made small."""

    def __init__(self, least: int) -> None:
        self.least = least

    def visit_Module(self, node: ast.Module) -> ast.Module:
        for each in node.body:
            if isinstance(each, ast.Assign):
                names = [t.id for t in each.targets if isinstance(t, ast.Name)]
                each.value = _Constants(names[0] if names else "", self.least).visit(each.value)
        return node


class _Constants(ast.NodeTransformer):
    def __init__(self, name: str, least: int) -> None:
        self.name, self.least = name, least

    def visit_BinOp(self, node: ast.BinOp) -> ast.expr:
        """A product of numbers is one size."""
        try:
            value = eval(compile(ast.Expression(node), "", "eval"), {})
        except NameError:
            return node
        return self.visit_Constant(ast.copy_location(ast.Constant(value), node))

    def visit_Constant(self, node: ast.Constant) -> ast.expr:
        if type(node.value) is int:
            return ast.copy_location(ast.Constant(small(self.name, node.value, self.least)), node)
        return node


def load(path: Path, least: int | None = None) -> ModuleType:
    """A problem's module, as the file says, or with constants above `least` made small."""
    tree: Any = ast.parse(path.read_text(), str(path))
    if least is not None:
        tree = _Shrunk(least).visit(tree)
    module = ModuleType("problem")
    sys.modules["problem"] = module
    exec(compile(tree, str(path), "exec"), module.__dict__)
    return module


# ── one problem, in a process of its own ─────────────────────────────────────────────────────


class Problem:
    """A problem's model and arguments, for one type of floats, on a device."""

    def __init__(self, path: Path, kind: str, device: str, scale: str) -> None:
        import torch

        self.kind, self.device = getattr(torch, kind), torch.device(device)
        self.module = load(path, None)
        for least in (16, 32, 64) if scale == "small" else ():
            self.module = load(path, least)
            try:  # sizes that no longer fit each other are made larger
                self.model(0)(*self.inputs(0))
                break
            except (RuntimeError, ValueError):
                continue

    def model(self, seed: int) -> Any:
        import torch

        torch.manual_seed(seed)
        with self.device:
            made = self.module.Model(*self.module.get_init_inputs())
        return made.to(self.device, self.kind)

    def inputs(self, seed: int) -> list[Any]:
        import torch

        torch.manual_seed(seed)
        with self.device:
            return [self._moved(x) for x in self.module.get_inputs()]

    def _moved(self, x: Any) -> Any:
        if not hasattr(x, "is_floating_point"):
            return x
        return x.to(self.device, self.kind if x.is_floating_point() else x.dtype)


def _wide(x: Any) -> Any:
    return x.double() if hasattr(x, "is_floating_point") and x.is_floating_point() else x


def exactly(model: Any, inputs: Sequence[Any], seed: int) -> Any:
    """The model in float64, with our random numbers."""
    import torch

    import tilewright.torch

    torch.manual_seed(seed)
    with tilewright.torch.random_numbers():
        return copy.deepcopy(model).double()(*map(_wide, inputs))


def apart(a: Any, b: Any) -> tuple[float, float, float]:
    """The largest and the mean error, and the largest element; an infinite one where one has a
    NaN that the other has not."""
    import torch

    a, b = a.double(), b.double()
    same = (a == b) | (a.isnan() & b.isnan())
    error = torch.where(same, torch.zeros_like(a), (a - b).abs()).nan_to_num(nan=math.inf)
    largest = float(b[b.isfinite()].abs().max()) if bool(b.isfinite().any()) else 0.0
    return float(error.max()), float(error.mean()), largest


def held(ours: Any, theirs: Any, exact: Any, kind: Any) -> dict[str, Any]:
    """How far a result is from float64's, beside eager's."""
    import torch

    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return {"ok": False, "why": f"{ours.dtype} {tuple(ours.shape)} in place of "
                f"{theirs.dtype} {tuple(theirs.shape)}"}  # fmt: skip
    if not theirs.is_floating_point():  # of equal elements eager may take another
        ok = bool((ours == exact).all() or (ours == theirs).all())
        return {"ok": ok, "why": "" if ok else "other integers than eager and float64"}
    (most, mean, largest), (their_most, their_mean, _) = apart(ours, exact), apart(theirs, exact)
    step = torch.finfo(kind).eps * largest
    ok = most <= 2 * their_most + 4 * step and mean <= 1.5 * their_mean + step
    why = "" if ok else f"errors {most:.2g}, mean {mean:.2g}; eager's {their_most:.2g}, " \
        f"{their_mean:.2g}; largest {largest:.2g}"  # fmt: skip
    return {"ok": ok, "why": why, "error": most, "eager": their_most, "largest": largest}


def flat(result: Any) -> list[Any]:
    from torch.utils._pytree import tree_leaves

    return [x for x in tree_leaves(result) if hasattr(x, "dtype")]


def is_constant(problem: Problem, model: Any) -> bool:
    """Whether the output is the same whatever the inputs are."""

    def other(x: Any, turn: int) -> Any:
        if not hasattr(x, "is_floating_point") or not x.is_floating_point():
            return x
        return x if turn == 0 else -3 * x + 1

    first: Any = None
    for seed in (101, 102):
        for turn in (0, 1):
            found = flat(exactly(model, [other(x, turn) for x in problem.inputs(seed)], 7))
            first = found if first is None else first
            for a, b in zip(found, first, strict=True):
                most, _, largest = apart(a, b)
                if most > 1e-10 * max(largest, 1.0):
                    return False
    return True


def launched(call: Any, device: Any) -> list[tuple[str, float]]:
    """The kernels that a call launches on a GPU, and the microseconds of each, by the profiler."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    if device.type != "cuda":
        return []
    with profile(activities=[ProfilerActivity.CUDA]) as found:
        call()
        torch.cuda.synchronize()
    on_gpu = torch.autograd.DeviceType.CUDA
    return [(e.name, e.time_range.elapsed_us()) for e in found.events() if e.device_type == on_gpu]


def of_others(kernels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Those that are none of ours: ours are called as their formula, and perhaps numbered."""
    own = re.compile(rf"({'|'.join(map(re.escape, names)) or '$.'})(_\w+)?$")
    return [k for k in kernels if not (_MOVES.match(k) or own.match(k))]


@contextmanager
def alone(args: argparse.Namespace) -> Iterator[None]:
    """The GPU for this process: others compile, or wait here with no more memory than they need."""
    import torch
    from filelock import FileLock

    def leave() -> None:
        if args.device != "cpu":
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    leave()
    with FileLock(args.out.with_suffix(".lock")):
        yield
        leave()


def examined(path: Path, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """What is found of a problem, a part at a time: what a killed process had found is kept."""
    import torch

    from tilewright.frameworks.torch.backend import Compiled, backend
    from tilewright.frameworks.torch.explain import described

    problem = Problem(path, args.type, args.device, args.scale)
    model, found = problem.model(0), list[Compiled]()
    with alone(args):
        yield {"constant": is_constant(problem, model)}
    ours = torch.compile(model, backend=lambda m, x: backend(m, x, found=found))
    begin = time.perf_counter()
    ours(*problem.inputs(0))
    yield {"compile_s": round(time.perf_counter() - begin, 2)}
    with alone(args):
        yield {
            "checks": [c for seed in range(args.seeds) for c in checked(problem, model, ours, seed)]
        }
    graphs = [described(each) for each in found]
    yield {
        "groups": [[k.operators, k.launches] for g in graphs for k in g.kernels],
        "kept": [[k.operator, k.reason] for g in graphs for k in g.kept],
    }
    inputs = problem.inputs(100)
    with alone(args):
        on_gpu = launched(lambda: ours(*inputs), problem.device)
    kernels, us = [name for name, _ in on_gpu], [round(t, 1) for _, t in on_gpu]
    names = sorted({r.kernels.name for each in found for r in each.runners})
    yield {"kernels": kernels, "us": us, "library": of_others(kernels, names)}
    if args.time:
        yield {"ms": raced(model, ours, inputs, args)}


def checked(problem: Problem, model: Any, ours: Any, seed: int) -> list[dict[str, Any]]:
    """What is found of each result, for weights and inputs of that seed."""
    import torch

    import tilewright.torch

    model.load_state_dict(problem.model(seed).state_dict())
    inputs = problem.inputs(100 + seed)
    exact = flat(exactly(model, inputs, seed))
    torch.manual_seed(seed)
    with tilewright.torch.random_numbers():
        theirs = flat(copy.deepcopy(model)(*inputs))
    torch.manual_seed(seed)
    rows = zip(flat(ours(*inputs)), theirs, exact, strict=True)
    return [held(a, b, c, problem.kind) for a, b, c in rows]


def raced(model: Any, ours: Any, inputs: Sequence[Any], args: argparse.Namespace) -> Any:
    """Milliseconds of each contender, in turn."""
    import torch

    from tilewright.profiler import measure

    runs = {"ours": ours, "eager": model, "compile": torch.compile(model)}
    if args.autotune:
        runs["max-autotune"] = torch.compile(model, mode="max-autotune-no-cudagraphs")

    def called(run: Any) -> Any:
        def call() -> None:
            run(*inputs)

        return call

    for run in runs.values():
        run(*inputs)  # compiles
    with alone(args):
        times = measure({name: called(run) for name, run in runs.items()}, rounds=args.rounds,
                        budget=math.inf)  # fmt: skip
    return {name: 1e3 * sorted(each)[len(each) // 2] for name, each in times.items()}


# ── all of them ──────────────────────────────────────────────────────────────────────────────


def lines(path: Path) -> list[dict[str, Any]]:
    """The records of a file; a last line that was cut off is none."""
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found


def work(path: Path, args: argparse.Namespace, folder: Path) -> None:
    """The child: its findings go to a file, a line each, and what it says to another."""
    errors = os.open(folder / "errors", os.O_WRONLY | os.O_CREAT)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    with torch.no_grad(), open(folder / "out", "w") as out:
        for found in examined(path, args):
            print(json.dumps(found), file=out, flush=True)


def child(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    """What a process finds of a problem, also if it crashes or hangs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tilewright.torch", "torch._inductor.decomposition"])
    with tempfile.TemporaryDirectory() as folder:
        process = context.Process(target=work, args=(path, args, Path(folder)), daemon=True)
        begin = time.monotonic()
        process.start()
        process.join(args.timeout)
        is_late = process.is_alive()
        if is_late:
            process.kill()
            process.join()
        found: dict[str, Any] = {"seconds": round(time.monotonic() - begin, 1)}
        for part in lines(Path(folder, "out")):
            found |= part
        if is_late:
            return {**found, "failed": f"killed after {args.timeout:g} s"}
        if process.exitcode == 0:
            return found
        said = Path(folder, "errors").read_text(errors="replace").splitlines()
        raised = [x for x in said if re.match(r"[\w.]*(Error|Exception|Interrupt)\b", x)]
        told = (raised or [x for x in said if x.strip()] or [""])[-1]
        return {**found, "failed": f"exit code {process.exitcode}: {told}"[:500]}


def run(args: argparse.Namespace) -> int:
    """Run what has no record yet."""
    files = problems(args.folder, args.levels)
    names = {f"{p.parent.name}/{p.stem}": p for p in files}
    jobs = [(n, t) for t in args.types for n in names if n in drawn(
        [*names], args.float32 if t == "float32" else None, args.seed)]  # fmt: skip
    tuned = drawn([*names], args.tuned, args.seed + 1)
    index, count = map(int, args.part.split("/"))
    jobs = [job for i, job in enumerate(jobs) if i % count == index]
    if args.only:
        jobs = [job for job in jobs if re.search(args.only, job[0])]
    done = {(r["problem"], r["type"]) for r in lines(args.out)}
    args.out.parent.mkdir(parents=True, exist_ok=True)

    def one(job: tuple[str, str]) -> None:
        name, kind = job
        own = argparse.Namespace(**vars(args), type=kind, autotune=name in tuned)
        found = {"problem": name, "type": kind, "device": args.device, "scale": args.scale,
                 **child(names[name], own)}  # fmt: skip
        found["verdict"], found["why"] = verdict(found)
        with args.out.open("a") as out:
            out.write(json.dumps(found) + "\n")
        print(f"{found['seconds']:6.1f} s  {found['verdict']:9} {name} {kind}  {found['why']}",
              flush=True)  # fmt: skip

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(one, (job for job in jobs if job not in done)))
    return 0


def verdict(record: dict[str, Any]) -> tuple[str, str]:
    """What a record says of its problem, and why.

    >>> verdict({"checks": [{"ok": True}], "kept": [["aten.sort.default", "no fold"]]})
    ('partly', 'aten.sort.default: no fold')
    """
    if record.get("constant"):
        return "constant", "its output does not depend on its inputs"
    wrong = [c["why"] for c in record.get("checks", ()) if not c["ok"]]
    if wrong:
        return "wrong", wrong[0]
    if "failed" in record:
        return "failed", record["failed"]
    if record.get("library"):
        return "partly", "launched " + ", ".join(dict.fromkeys(record["library"]))[:200]
    if record.get("kept"):
        return "partly", "; ".join(dict.fromkeys(f"{op}: {why}" for op, why in record["kept"]))
    return "right", ""


# ── the summary ──────────────────────────────────────────────────────────────────────────────


def mean(ratios: Sequence[float]) -> float:
    """The geometric mean, in which each counts at most five times."""
    return math.exp(sum(math.log(min(r, MOST)) for r in ratios) / len(ratios)) if ratios else 0.0


def summary(records: Sequence[dict[str, Any]]) -> str:
    """What all records of a type say; a problem that is not right is not faster either."""
    told: list[str] = []
    for kind in dict.fromkeys(r["type"] for r in records):
        own = {r["problem"]: r for r in records if r["type"] == kind}
        found = {n: (r, *verdict(r)) for n, r in own.items()}
        counts = Counter(word for _, word, _ in found.values())
        held = {n: each for n, each in found.items() if each[1] != "constant"}
        words = ", ".join(f"{counts[w]} {w}" for w in ("right", "partly", "wrong", "failed"))
        told.append(f"{kind}: {len(held)} problems: {words}; {counts['constant']} excluded")
        for rival in ("eager", "compile", "max-autotune"):
            told += _against(held, rival)
        for word in ("constant", "wrong", "failed", "partly"):
            told += [f"  {word}: {n}: {why}" for n, (_, w, why) in found.items() if w == word]
    return "\n".join(told)


def _against(held: dict[str, tuple[dict[str, Any], str, str]], rival: str) -> list[str]:
    timed = {n: each for n, each in held.items() if rival in each[0].get("ms", {})}
    if not timed:
        return []
    ratios = {n: r["ms"][rival] / r["ms"]["ours"] for n, (r, w, _) in timed.items() if w == "right"}
    whole = len(held) if rival != "max-autotune" else len(timed)
    faster = sum(r > 1 for r in ratios.values())
    told = [f"  faster than {rival}: {faster} of {whole} ({faster / whole:.0%}), geomean "
            f"{mean([*ratios.values()]):.2f} of the {len(ratios)} that are right"]  # fmt: skip
    losing = sorted((r, n) for n, r in ratios.items() if r <= 1)
    for ratio, name in losing:
        record = timed[name][0]
        parts = f"{len(record['kernels'])} launches: " + ", ".join(
            " ".join(dict.fromkeys(words)) for words, _ in record["groups"]
        )
        told.append(f"    {ratio:.2f} {name}: {record['ms']['ours']:.3f} ms, {parts[:120]}")
    return told


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    commands = found.add_subparsers(required=True)
    each, told = commands.add_parser("run"), commands.add_parser("summary")
    each.add_argument("folder", type=Path)
    each.add_argument("--out", type=Path, required=True)
    each.add_argument("--levels", nargs="+", default=["level1", "level2"])
    each.add_argument("--types", nargs="+", default=["bfloat16", "float32"], choices=TYPES)
    each.add_argument("--float32", type=int, default=60, help="how many problems in float32")
    each.add_argument("--tuned", type=int, default=30, help="how many against max-autotune")
    each.add_argument("--seed", type=int, default=0, help="draws those")
    each.add_argument("--seeds", type=int, default=3, help="weights and inputs that are checked")
    each.add_argument("--part", default="0/1", help="of several machines, 0/4 to 3/4")
    each.add_argument("--only", default="", help="a pattern of names")
    each.add_argument("--timeout", type=float, default=600.0, help="seconds a problem")
    each.add_argument("--jobs", type=int, default=1, help="problems side by side")
    each.add_argument("--rounds", type=int, default=8)
    each.add_argument("--time", action=argparse.BooleanOptionalAction, default=True)
    each.add_argument("--device", default="cuda")
    each.add_argument("--scale", default="full", choices=("full", "small"))
    each.add_argument("--threads", type=int, default=0, help="of PyTorch, on the CPU")
    each.set_defaults(call=run)
    told.add_argument("files", type=Path, nargs="+")
    told.set_defaults(call=lambda args: print(summary([r for f in args.files for r in lines(f)])))
    return found


if __name__ == "__main__":
    arguments = parser().parse_args()
    sys.exit(arguments.call(arguments))
