"""Kernels taken through `pipeline_loops` and `insert_syncs`, run before and after, and broken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tests.schedules.harness import mutants
from tilewright import machine
from tilewright.ir.op import Copy, Gemm, Program
from tilewright.ir.rewrite import map_kernels, map_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.overlap.pipeline_loops import pipeline_loops
from tilewright.passes.overlap.roles import part_roles
from tilewright.passes.sync.insert_syncs import insert_syncs
from tilewright.support.errors import TilewrightError

HOPPER = Target.parse("cuda -arch=sm_90a -roles=off")  # all threads alike
AMPERE = Target.parse("cuda -arch=sm_80")
ROLES = Target.parse("cuda -arch=sm_90a -roles")


def program(text: str) -> Program:
    found = parse_program(text)
    verify(found, Stage.TILE)
    return found


def with_atom(given: Program, atom: str) -> Program:
    """Every product by `atom`."""
    rule = lambda op: replace(op, atom=atom) if isinstance(op, Gemm) else None
    return map_kernels(given, lambda kernel: map_ops(kernel, rule))


def overlapped(given: Program, target: Target = HOPPER, atom: str = "wgmma") -> Program:
    """`given` with its copies ahead and its threads in order; other copies by threads."""
    found = pipeline_loops(with_atom(given, atom), target)
    verify(found, Stage.TILE)
    rule = lambda op: replace(op, atom="threads") if isinstance(op, Copy) and not op.atom else None
    found = map_kernels(found, lambda kernel: map_ops(kernel, rule))
    found = map_kernels(found, lambda kernel: insert_syncs(kernel, target))
    found = part_roles(found, target)
    verify(found, Stage.TILE)
    return found


def run(given: Program, args: Mapping[str, Any], seed: int = 0, explicit: bool | None = None):
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    machine.run(given, copies, seed=seed, explicit=explicit)
    return copies


def check_same(
    given: Program, args: Mapping[str, Any], target: Target = HOPPER, atom: str = "wgmma",
    seeds: range = range(3),
) -> Program:  # fmt: skip
    """The overlapped program computes the same bits, races nowhere, and is returned."""
    want = run(given, args)
    found = overlapped(given, target, atom)
    for seed in seeds:
        got = run(found, args, seed, explicit=True)
        for name, value in want.items():
            if isinstance(value, np.ndarray):
                assert got[name].tobytes() == value.tobytes(), name
    return found


def unnoticed(given: Program, found: Program, args: Mapping[str, Any]) -> list[str]:
    """The ops that can be dropped from `found` without anything showing."""
    want = run(given, args)
    missed = []
    for name, mutant in mutants(found):
        try:
            verify(mutant, Stage.TILE)
            for seed in range(3):
                got = run(mutant, args, seed, explicit=True)
                if any(
                    isinstance(v, np.ndarray) and got[n].tobytes() != v.tobytes()
                    for n, v in want.items()
                ):
                    break
            else:
                missed.append(name)
        except TilewrightError:
            pass
    return missed


def numbers(*shape: int, dtype: Any = np.float16, seed: int = 0) -> np.ndarray:
    """Small integers: sums of products of them are exact."""
    rng = np.random.default_rng([seed, *shape])
    return rng.integers(-3, 4, shape).astype(dtype)
