"""Right kernels: the zoo's, the puzzles' solutions, the tutorial's, random ones, small ones."""

from __future__ import annotations

import contextlib
import io
import runpy
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from tilewright.ir.bind import static_value
from tilewright.ir.op import Program
from tilewright.runtime.launch import Launcher
from tilewright.tools.inputs import arguments, sizes

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Subject:
    """A right program, arguments for it by seed, and the tensors that a call makes."""

    name: str
    source: str
    program: Program
    make: Callable[[int], dict[str, Any]]
    made: tuple[str, ...] = ()


def _made_up(program: Program) -> Callable[[int], dict[str, Any]]:
    case = sizes(program, {})[-1]
    return lambda seed: arguments(program, case, "integers", seed, {})


def small() -> Iterator[Subject]:
    for kernel in import_module("devtools.mutants.kernels").KERNELS:
        program = kernel.program
        made = tuple(p.name for p in program.params if p.name == "Y")
        yield Subject(program.name, "small", program, _made_up(program), made)


def _is_small(program: Program) -> bool:
    """The interpreter runs it in a moment."""
    case = {d.var: 64 for d in program.dims}
    count = sum(prod(static_value(s, case) for s in t.shape) for t in program.tensors)
    return count <= 1 << 17


def puzzles() -> Iterator[Subject]:
    sys.path.insert(0, str(ROOT / "examples" / "puzzles"))
    try:
        from specs import PUZZLES  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    for puzzle in PUZZLES:
        solve = runpy.run_path(str(puzzle.solution))["puzzle"]
        for given in puzzle.sizes:
            program = solve(*given).program

            def make(seed: int, puzzle: Any = puzzle, given: Any = given, p: Any = program) -> Any:
                found, _ = puzzle.make(np.random.default_rng(seed), *given)
                return Launcher(p).prepare(found).args

            yield Subject(f"{puzzle.name}{given}", "puzzle", program, make)


def tutorial() -> Iterator[Subject]:
    from tilewright.tools.collect import collect_all

    for file in sorted((ROOT / "examples" / "tutorial").glob("[0-9]*.py")):
        if "sanitizer" in file.name:  # its kernels are wrong on purpose
            continue
        with contextlib.redirect_stderr(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = collect_all(str(file)).found
        for each in found:
            if not _is_small(each.program):
                continue
            name = f"{file.stem}:{each.name}"
            yield Subject(name, "tutorial", each.program, _made_up(each.program), each.made)


def zoo() -> Iterator[Subject]:
    attention, gemms = import_module("zoo.attention.flash"), import_module("zoo.gemm.gemm")
    softmaxes = import_module("zoo.softmax.softmax")
    rows = {
        "rms_norm_rows": "zoo.norm.rms_norm",
        "layer_norm_rows": "zoo.norm.layer_norm",
        "cross_entropy_rows": "zoo.loss.cross_entropy",
        "swiglu_rows": "zoo.elementwise.swiglu",
        "softmax_rows": "zoo.softmax.softmax",
    }
    made = {
        "gemm": gemms.gemm_relu.on("interp")(
            40, 48, 32, block_M=32, block_N=32, block_K=16, dtype="float32"
        ),
        "gemm_transposed": gemms.gemm_transposed.on("interp")(64, 64, 32, True, True),
        "softmax": softmaxes.softmax.on("interp")(4, 100),
        "softmax_online": softmaxes.online_softmax.on("interp")(2, 5000),
        "flash_causal": attention.flash_attention.on("interp")(1, 1, 1, 100, 100, 64, causal=True),
        "flash": attention.flash_attention.on("interp")(1, 2, 1, 40, 100, 64),
        "mla": import_module("zoo.mla.decode").mla_decode.on("interp")(1, 64, 64),
        "vector_add": import_module("zoo.elementwise.vector_add").vector_add.on("interp")(1000),
        "transpose": import_module("zoo.transpose.transpose").transpose_rows(72, target="interp"),
        **{n: getattr(import_module(m), n)(100, target="interp") for n, m in rows.items()},
    }
    for name, kernel in made.items():
        program = kernel.program
        case = {d.var.name: 5 for d in program.dims}

        def make(seed: int, program: Any = program, case: Any = case) -> dict[str, Any]:
            return arguments(program, case, "integers", seed, {})

        yield Subject(name, "zoo", program, make, kernel.launcher.made)


def fuzzed(count: int, first: int = 0) -> Iterator[Subject]:
    from devtools.fuzz.check import load
    from devtools.fuzz.programs import make as draw
    from devtools.fuzz.recipe import render
    from tilewright.support.errors import TilewrightError

    for seed in range(first, first + count):
        try:
            space = load(render(draw(seed, "any")), f"fuzz_{seed}.py")
        except TilewrightError:
            continue
        case = space["CASES"][0]

        def make(seed: int, given: Any = space["arguments"], case: Any = case) -> dict[str, Any]:
            arrays: dict[str, Any] = given(**case)
            return arrays

        yield Subject(f"seed {seed}", "fuzz", space["program"].program, make)


def all_subjects(fuzz: int = 80) -> Iterator[Subject]:
    yield from small()
    yield from puzzles()
    yield from tutorial()
    yield from zoo()
    yield from fuzzed(fuzz)
