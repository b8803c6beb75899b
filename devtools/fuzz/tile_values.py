"""Random kernels over tile values, run twice: by a model in NumPy, where the last tile is shorter,
and as a kernel, at sizes of tiles that are drawn and at those that are the default.

    python -m devtools.fuzz.tile_values --count 200 --target "interp -sanitize"
    python -m devtools.fuzz.tile_values --count 100 --target threads

Numbers are small integers and halves of them, so that results do not depend on the order of sums.
What the model never reads of the arguments is NaN, or far outside: a kernel that sees it shows it.
"""

from __future__ import annotations

import linecache
import re
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language as T
from devtools.fuzz.command import run_command
from devtools.fuzz.python_meaning import shrink
from devtools.fuzz.tile_model import DTYPES, Array, Model, Tensor, TooLarge, is_float
from devtools.fuzz.tile_programs import HEAD, WITHIN, Program, lines, make, tile_names
from devtools.fuzz.tile_terms import Array_
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.lang import sizes as forms
from tilewright.lang import trace
from tilewright.lang.builder import CHOSEN
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

THREADS, HOPPER = "threads", "cuda -arch=sm_90a"


def for_model(text: str) -> str:
    """The text as Python runs it: loops tell their variables and the number of their kernel."""
    found, kernel = [], -1
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            given = f"{head.group(3)}, " if head.group(3) else ""
            kernel += line.startswith("    for")
            start, end = line[: line.index("T.tile(")], ")" * bool(head.group(2))
            line = f'{start}T.tile({given}names="{head.group(1)}", kernel={kernel}){end}:'
        found.append(line)
        if cut := WITHIN.match(line):  # an empty tile is skipped
            found += [f"{cut.group(1)}if {cut.group(2)}.is_empty:", f"{cut.group(1)}    continue"]
    return "\n".join(found) + "\n"


def argument(array: Array_, sizes: dict[str, int], rng: Any) -> Array:
    dims = [sizes.get(d) or int(d) for d in array.dims]
    if array.holds == "order":
        return rng.permutation(dims[0]).astype(np.int32)  # type: ignore[no-any-return]
    if array.holds == "label":
        return rng.integers(-1, 9, dims).astype(np.int32)  # type: ignore[no-any-return]
    low = 0 if array.dtype[0] == "u" else -3
    return rng.integers(low, low + 7, dims).astype(DTYPES[array.dtype])  # type: ignore[no-any-return]


def arguments(program: Program) -> dict[str, Array]:
    return {
        name: argument(array, program.sizes, np.random.default_rng([program.seed, *name.encode()]))
        for name, array in program.params.items()
    }


def play(
    program: Program, tiles: dict[str, int], given: dict[str, Array]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The arguments and the results, by the model."""
    space: dict[str, Any] = {"T": Model(program.sizes, tiles)}
    exec(compile(for_model(program.text), "<model>", "exec", dont_inherit=True), space)
    params = {name: Tensor(a.copy()) for name, a in given.items()}
    made = space["kernel"](**params)
    outs = made if isinstance(made, tuple) else (made,)
    return params, dict(zip(program.outs, outs, strict=True))


def spoil(params: dict[str, Tensor], given: dict[str, Array]) -> None:
    """What was never read becomes NaN, or far outside."""
    for name, tensor in params.items():
        unseen = ~(tensor.read | tensor.written)
        given[name][unseen] = np.nan if is_float(tensor.dtype) else 99


@dataclass(frozen=True)
class Finding:
    kind: str  # mismatch or crash
    said: str
    program: Program

    def __str__(self) -> str:
        p = self.program
        return f"{self.kind} (seed {p.seed}): {self.said}\nsizes {p.sizes}\n\n{p.text}"


@contextmanager
def watched(chosen: dict[str, int]) -> Iterator[None]:
    """Default sizes of tiles are noted."""
    was = vars(trace)["_with_sizes"]

    def noted(*args: Any) -> Any:
        builder, returned = was(*args)
        chosen.update({f"{name} of {n}": size for (n, name), size in builder.sizes.tiles.items()})
        return builder, returned

    vars(trace)["_with_sizes"] = noted
    try:
        yield
    finally:
        vars(trace)["_with_sizes"] = was


@contextmanager
def in_pieces(step: int) -> Iterator[None]:
    """Rows, scans of whole dimensions and reductions of columns go by so many elements; columns
    load some steps ahead where that is odd."""
    was = {name: vars(forms)[name] for name in ("_row_form", "_column_form", "_choose_rows")}

    def cut(name: str, builder: Any, lines: Any, *rest: Any) -> Any:
        form = was[name](builder, lines, *rest)
        if not lines.by_rows and step % 2:
            form = replace(form, stages=3)
        return form if lines.along.key in builder.axes else replace(form, step=step)

    def cut_rows(builder: Any, kernel: int, rows: Any, found: Any) -> None:
        target = CHOSEN.get()
        named = {rows.axis.name: step} if rows.axis.name.isidentifier() else {}
        tiles = {**named, **dict(target.schedule.tiles)}
        chosen = replace(target.schedule, tiles=tuple(tiles.items()))
        before = CHOSEN.set(replace(target, schedule=chosen))
        was["_choose_rows"](builder, kernel, rows, found)
        CHOSEN.reset(before)

    own = {name: partial(cut, name) for name in ("_row_form", "_column_form")}
    vars(forms).update(own, _choose_rows=cut_rows)
    try:
        yield
    finally:
        vars(forms).update(was)


def differs(want: Tensor, got: Array, exact: bool) -> str:
    """Where the elements that the model wrote, or left, are others."""
    a, b = want.a.astype(np.float64), np.asarray(got).astype(np.float64)
    near = 0.0 if exact else {1: 2.0**-2, 2: 2.0**-6}.get(want.dtype.itemsize, 2e-3)
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (abs(a - b) <= near * (1 + abs(a)))
    if same.all():
        return ""
    at = tuple(int(k) for k in np.argwhere(~same)[0])
    return f"at {at} the model has {a[at]}, the kernel {b[at]}; {int((~same).sum())} differ"


def by_threads(program: Any, *given: Array) -> list[Array]:
    """The results of the thread code that the CUDA target emits, which is interpreted."""
    made = [np.zeros([int(n) for n in t.shape], t.dtype.numpy) for t in program.tensors]
    names = [t.name for t in program.tensors]
    arrays = dict(zip(names, [*given, *made[len(given) :]], strict=True))
    machine.run_threads(lower(program, Target.parse(HOPPER)).result, arrays)
    return [arrays[name] for name in names[len(given) :]]


def on_gpu(kernel: Any, *given: Array) -> list[Array]:
    """The results of a kernel that runs on a GPU; it may write to `given`, too."""
    import torch

    words = {1: "uint8", 2: "int16", 4: "int32", 8: "int64"}
    there = []
    for array in given:
        bits = torch.from_numpy(array.view(words[array.itemsize])).cuda()
        there.append(bits.view(getattr(torch, str(array.dtype))))
    made = kernel(*there)
    results = made if isinstance(made, (tuple, list)) else (made,)

    def back(tensor: Any) -> Array:
        bits = tensor.view(getattr(torch, words[tensor.element_size()])).cpu().numpy()
        kind = DTYPES[str(tensor.dtype).removeprefix("torch.")]
        return bits.view(kind)  # type: ignore[no-any-return]

    for array, tensor in zip(given, there, strict=True):
        array[...] = back(tensor)
    return [back(tensor) for tensor in results]


def judge(program: Program, target: str, default: bool = False) -> tuple[str, str, Finding | None]:
    """'ok', 'refused' and why, 'wild' (the model gives up) or 'found'. `default`: at the sizes of
    tiles that nobody chose; whole dimensions go in pieces."""
    with in_pieces(2 + program.seed % 7) if default else nullcontext():
        return _judged(program, target, default)


def _judged(program: Program, target: str, default: bool) -> tuple[str, str, Finding | None]:
    text, given = program.text, arguments(program)
    chosen: dict[str, int] = {}
    file = "<tiles>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"__name__": "fuzzed", "T": T, "tw": tw}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    kernel: Any = tw.jit(target=HOPPER if target == THREADS else target)(space["kernel"])
    used = program.tiles
    if not default:
        kernel = kernel.with_schedule(tiles=used)
    try:
        with watched(chosen):
            compiled = kernel.compile(**{n: given[n] for n in program.params})
            if target == THREADS:
                kernel = partial(by_threads, compiled.program)
            elif target.startswith("cuda"):
                kernel = partial(on_gpu, kernel)
        if default:
            used = chosen
    except CompileError as error:
        if re.match(r"\w+(Error|Iteration|Exception): |generated CUDA", error.message):
            return "found", "", Finding("crash", error.message, program)
        return "refused", error.message, None
    except Exception as error:
        return "found", "", Finding("crash", f"{type(error).__name__}: {error}", program)
    try:
        spoil(play(program, used, given)[0], given)
        params, outs = play(program, used, given)
    except TooLarge:
        return "wild", "", None
    said = f"tiles {used}"
    try:
        got = {n: a.copy() for n, a in given.items()} if target.startswith("cuda") else dict(given)
        made = kernel(*got.values())
    except Exception as error:
        if target == THREADS and "has no meaning" in str(error):
            return "refused", "the interpreter does not know all of the thread code", None
        return "found", "", Finding("crash", f"{said}: {type(error).__name__}: {error}", program)
    results = made if isinstance(made, (tuple, list)) else (made,)
    for name, result in zip(outs, results, strict=True):
        if not outs[name].written.all():  # as in programs that were made smaller
            result = np.where(outs[name].written, result, outs[name].a)
        told = differs(outs[name], result, program.outs[name].exact)
        if told:
            return "found", "", Finding("mismatch", f"{name} {told}; {said}", program)
    for name, tensor in params.items():
        told = differs(tensor, got[name], True)
        if told:
            return "found", "", Finding("mismatch", f"{name} {told}; {said}", program)
    return "ok", "", None


def smaller(program: Program, finding: Finding, target: str, default: bool) -> Finding:
    """The finding in as few statements as show it."""

    def fails(body: list[Any]) -> bool:
        try:
            small = less(program, body)
            play(small, small.tiles, arguments(small))  # names may be missing
            found = judge(small, target, default)[2]
        except Exception:
            return False
        return found is not None and found.kind == finding.kind

    small = less(program, shrink(program.body, fails))
    return judge(small, target, default)[2] or finding


def less(program: Program, body: list[Any]) -> Program:
    """The program with this body: it has the tensors that are named there."""
    text = "\n".join(lines(body, 0))
    used = {n: a for n, a in program.params.items() if re.search(rf"\b{n}\b", text)}
    for size in program.sizes:
        if not any(size in a.dims for a in used.values()):
            used[f"S{size}"] = Array_((size,), "int32")
    outs = {n: a for n, a in program.outs.items() if f"{n} = T.empty" in text}
    tiles = {n: program.tiles[n] for n in tile_names(body)}
    return replace(program, body=body, params=used, outs=outs, tiles=tiles)


@dataclass
class Report:
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def hunt(
    count: int,
    seed: int = 0,
    target: str = "interp -sanitize",
    seconds: float = 600.0,
    most: int = 1,
) -> Report:
    """Up to `count` programs from `seed` on, each at drawn and at default sizes of tiles; it ends
    with `most` findings, which are shrunk."""
    report = Report()
    until = time.monotonic() + seconds
    for at in range(seed, seed + count):
        program = make(at)
        for default in (False, True):
            kind, reason, finding = judge(program, target, default)
            report.kinds[kind] += 1
            if reason:
                report.reasons[reason] += 1
            if finding is not None:
                report.findings.append(smaller(program, finding, target, default))
                break
        if len(report.findings) >= most or time.monotonic() > until:
            break
    return report


if __name__ == "__main__":
    run_command(__doc__, hunt, "interp -sanitize")
