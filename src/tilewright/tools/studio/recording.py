"""All that the page shows of one kernel at given sizes, as plain data (docs/studio.md)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

from tilewright.inspect.explain import laid_out
from tilewright.inspect.multiprocessor import WAITS
from tilewright.inspect.timeline import steady_state
from tilewright.inspect.transactions import transactions
from tilewright.ir.core import *
from tilewright.ir.schedule import WORDS, Schedule
from tilewright.ir.target import ARCHITECTURES, Target
from tilewright.passes.overlap import unit_times as rates
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.tools.studio.errors import error_told
from tilewright.tools.studio.layouts import layouts
from tilewright.tools.studio.levels import levels
from tilewright.tools.studio.measured import measured
from tilewright.tools.studio.memory import buffers, chip_told, rings, roofline
from tilewright.tools.studio.subject import ELEMENTS, Draft, Request, Subject, subject_of
from tilewright.tools.studio.values import values
from tilewright.tools.studio.walk import WholeWalk, recorded

VERSION = 1
Kernels: TypeAlias = CompiledKernel | Draft
SINGLE = "code of single threads takes no time here; the small run has its steps and values"


def record(names: Mapping[str, Any], request: Request, file: str) -> dict[str, Any]:
    """The recording of a kernel of a file whose names are `names`; a kernel that cannot be compiled
    has errors in place of parts."""
    subject = subject_of(names, request, file)
    found: dict[str, Any] = {
        "version": VERSION,
        "draft": False,
        "title": subject.name,
        "lesson": None,
        "file": Path(file).name,
        "kernel": subject.name,
        "names": list(subject.names),
        "target": subject.asked_target,
        "arch": subject.target.arch or subject.target.kind,
        "clock_hz": rates.CLOCK,
        "request": {**request.told(), "target": subject.asked_target},
        "errors": [],
        "parts": [],
        "values": None,
        "levels": [],
        "roofline": None,
        "measured": None,
        "notes": [],
        "chip": chip_told(subject.target) if subject.target.kind == "cuda" else None,
        "source": None,
        "choices": choices(subject, None),
    }
    try:
        add_compiled(subject, found)
    except TilewrightError as error:
        found["errors"].append(error_told(error))
        found["source"] = subject.source() if subject.jit is not None else None
    if "values" in request.want:
        add_values(subject, found)
    return found


def add_compiled(subject: Subject, found: dict[str, Any]) -> None:
    """What there is once the kernel has gone through the passes."""
    kernel, want = subject.compiled, subject.request.want
    found["request"]["sizes"] = subject.sizes
    found["target"] = str(kernel.target)
    found["parts"] = parts(kernel)
    found["source"] = subject.source()
    found["choices"] = choices(subject, kernel)
    found["roofline"] = roofline(kernel.program, kernel.target)
    if "layouts" in want and kernel.target.kind == "cuda":
        trace = kernel.executable.trace
        accesses = transactions(trace[-1][1])
        for part, laid in zip(found["parts"], laid_out(trace).kernels, strict=True):
            part["layouts"] = list(layouts(laid, accesses.get(laid.name, ())))
    found["draft"] = isinstance(kernel, Draft)
    if "levels" in want and isinstance(kernel, CompiledKernel):
        found["levels"] = levels(subject, kernel, found["notes"])
    found["measured"] = measured(found)


def add_values(subject: Subject, found: dict[str, Any]) -> None:
    """Run the kernel at small sizes; what goes wrong there is an error of the recording."""
    try:
        kernel = subject.runnable
        found["request"]["small"] = subject.small
        count = sum(prod(b.static_shape) for b in kernel.program.tensors if b.is_static)
        if count > ELEMENTS:
            found["notes"].append(
                f"no values: the interpreter would run with {count} elements; give smaller sizes"
            )
            return
        sizes = {**subject.request.sizes, **subject.small}
        found["values"], error = values(kernel, sizes, subject.request.args)
        if subject.made is not None and subject.small_made is not None:
            same = _same_lines(subject.made.program.text, subject.small_made.program.text)
            for step in found["values"]["steps"]:
                step["line"] = step["line"] if step["line"] in same else None
    except TilewrightError as caught:
        error = error_told(caught)
    if error is not None and error["text"] not in {e["text"] for e in found["errors"]}:
        found["errors"].append(error)


def _same_lines(a: str, b: str) -> set[int]:
    """Lines of two texts that differ in numbers at most."""
    both = zip(*(re.sub(r"\d+", "", text).splitlines() for text in (a, b)), strict=False)
    return {n for n, (left, right) in enumerate(both, 1) if left == right}


def choices(subject: Subject, kernel: Kernels | None) -> dict[str, Any]:
    """Fields of the schedule with what may be written there, and what was considered."""
    given = dict(subject.request.schedule)
    tiles = dict(given.get("tiles") or {})
    told = [
        {"name": f.name, "value": given.get(f.name, "auto"),
         "values": [WORDS[f.name][w] for w in WORDS[f.name]]}
        for f in fields(Schedule) if f.name not in ("tiles",)
    ]  # fmt: skip
    runners = [] if kernel is None else [r for c in kernel.chosen.values() for r in _runners(c)]
    chosen = runners[0]["tiles"] if runners else {}
    return {
        "fields": told,
        "tiles": [{"loop": name, "size": size, "given": name in tiles}
                  for name, size in {**chosen, **tiles}.items()],
        "threads": None if kernel is None else prod(kernel.program.kernels[0].threads),
        "threads_given": "threads" in given,
        "grid_tiles": None if kernel is None else _tiles(kernel.program.kernels[0]),
        "runners_up": runners,
        "targets": [*(f"cuda -arch={a}" for a in ARCHITECTURES["cuda"] if "compute" not in a),
                    "cpu"],
        "options": {n: repr(v) for n, v in subject.request.args.items()},
    }  # fmt: skip


def single(body: Sequence[Op]) -> Iterator[Store]:
    """Stores of single threads to memory that others see."""
    for op in body:
        if isinstance(op, Store) and op.indices and not op.buffer.is_local:
            yield op
        elif not isinstance(op, Map):
            for inner in bodies(op):
                yield from single(inner)


def _tiles(kernel: Kernel) -> int | None:
    sizes = [int(g.value) for g in kernel.grid if isinstance(g, Const)]
    return prod(sizes) if len(sizes) == len(kernel.grid) else None


def _runners(chosen: str) -> list[dict[str, Any]]:
    """Of what the chooser says: 'm 128, n 256, 256 threads: 173.5 µs (tensor core); …'."""
    found = []
    for text in chosen.split("; "):
        named, _, told = text.partition(": ")
        if "µs" not in told:
            continue
        tiles, threads, cluster = dict[str, int](), None, 1
        for word in named.split(", "):
            name, _, number = word.rpartition(" ")
            if word.endswith(" threads"):
                threads = int(word.split()[0])
            elif word.startswith("clusters of"):
                cluster = int(number)
            elif number.isdigit() and name.isidentifier():
                tiles[name] = int(number)
        found.append(
            {"text": named, "us": float(told.split()[0]), "limit": told.partition("(")[2][:-1],
             "tiles": tiles, "threads": threads, "cluster": cluster}
        )  # fmt: skip
    return found


def parts(kernel: Kernels) -> list[dict[str, Any]]:
    """One for each kernel of a program."""
    told = kernel.explain(as_dict=True)
    laid = laid_out(kernel.executable.trace)
    return [_part(laid, one, kernel.target, about)
            for one, about in zip(laid.kernels, told["kernels"], strict=True)]  # fmt: skip


def _part(
    program: Program, kernel: Kernel, target: Target, told: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "name": kernel.name,
        "grid": [int(g.value) if isinstance(g, Const) else str(g) for g in kernel.grid],
        "threads": kernel.thread_count,
        "cluster": kernel.cluster_size,
        "roles": [
            {"name": r.name, "first_warp": r.first, "warps": r.warps, "registers": r.registers,
             "instances": r.instances}
            for r in walk_ops(kernel, Role)
        ],
        "why": told["choices"],
        "decisions": [
            {name: op[name] for name in ("line", "op", "text", "choices")}
            for op in told["ops"] if not op["minor"]
        ],
        "costs": told["costs"],
        "takes": told["takes"],
        "registers": told["registers"],
        "shared": told["shared"],
        "buffers": buffers(program, kernel),
        "rings": rings(kernel),
        "timeline": _timeline(program, kernel, target, told),
        "layouts": [],
    }  # fmt: skip


def _timeline(
    program: Program, kernel: Kernel, target: Target, told: Mapping[str, Any]
) -> dict[str, Any] | None:
    if target.kind != "cuda":
        return None
    steady = told["timeline"] or {}
    blocks = steady.get("blocks") or 1
    run = WholeWalk(program, kernel, target, blocks, {}).run()
    whole = recorded(run)
    if any(True for _ in single(kernel.body)):
        whole["notes"].append(SINGLE)
        if all(span.unit == WAITS for span in run.spans) and not whole["standing"]:
            return None  # all of its work is such code
    if not steady and run.in_loop():  # `explain()` goes where data are not known to lead
        steady = steady_state(run, blocks)
    names = ("interval", "steady", "limit", "agents", "feeders", "bytes")
    loop = {name: steady.get(key) for name, key in
            (("var", "loop"), ("line", "line"), ("iterations", "iterations"))}  # fmt: skip
    return {
        **whole,
        "loop": loop if steady else None,
        "blocks": blocks,
        **{name: steady.get(name) for name in names},
        "notes": [*steady.get("notes", ()), *whole["notes"]],
        "busy": steady.get("utilisation", {}),
    }


__all__ = ["VERSION", "record"]
