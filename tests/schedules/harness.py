"""Running hand-scheduled programs under random interleavings, and breaking them on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tests.mutants import sync_ops, without
from tilewright import machine
from tilewright.ir.op import Program
from tilewright.ir.text import parse_program, print_op
from tilewright.ir.verify import Stage, verify
from tilewright.support.errors import TilewrightError

HERE = Path(__file__).parent
Args = Mapping[str, Any]


@cache
def load(name: str) -> Program:
    """The program in `name`.tw."""
    path = HERE / f"{name}.tw"
    return parse_program(path.read_text(), str(path))


def run(program: Program, args: Args, seed: int = 0) -> dict[str, Any]:
    """Run on copies of `args`; what the arrays hold afterwards."""
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    machine.run(program, copies, seed=seed)
    return copies


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """The program with one barrier, wait, arrival, commit or fence dropped, for each of them."""
    for index, op in enumerate(sync_ops(program)):
        line = op.loc.line if op.loc else index
        yield f"line {line}: {print_op(op)}", without(program, index)


def noticed(
    mutant: Program, args: Args, want: Mapping[str, np.ndarray], seeds: range = range(4)
) -> str | None:
    """How a broken program shows: the error's first line, 'wrong numbers', or None."""
    try:
        verify(mutant, Stage.LAID_OUT)
        for seed in seeds:
            got = run(mutant, args, seed)
            for name, expected in want.items():
                if not np.array_equal(got[name], expected, equal_nan=True):
                    return "wrong numbers"
    except TilewrightError as error:
        return error.message.splitlines()[0]
    return None


__all__ = ["HERE", "load", "mutants", "noticed", "run", "sync_ops", "without"]
