"""Running hand-scheduled programs under random interleavings, and breaking them on purpose."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tilewright import interp
from tilewright.ir.op import (
    Arrive,
    BarrierInit,
    Commit,
    Fence,
    Kernel,
    Op,
    Program,
    Sync,
    Wait,
    WaitGroup,
    walk_ops,
)
from tilewright.ir.rewrite import map_body
from tilewright.ir.text import parse_program, print_op
from tilewright.ir.verify import Stage, verify
from tilewright.support.errors import TilewrightError

HERE = Path(__file__).parent
SYNC_OPS = (Arrive, BarrierInit, Commit, Fence, Sync, Wait, WaitGroup)
Args = Mapping[str, Any]


@cache
def load(name: str) -> Program:
    """The program in `name`.tw."""
    path = HERE / f"{name}.tw"
    return parse_program(path.read_text(), str(path))


def run(program: Program, args: Args, seed: int = 0) -> dict[str, Any]:
    """Run on copies of `args`; what the arrays hold afterwards."""
    copies = {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()}
    interp.run(program, copies, seed=seed)
    return copies


def sync_ops(program: Program) -> list[Op]:
    return [op for k in program.kernels for op in walk_ops(k) if isinstance(op, SYNC_OPS)]


def mutants(program: Program) -> Iterator[tuple[str, Program]]:
    """The program with one barrier, wait, arrival, commit or fence dropped, for each of them."""
    for index, op in enumerate(sync_ops(program)):
        line = op.loc.line if op.loc else index
        yield f"line {line}: {print_op(op)}", without(program, index)


def without(program: Program, index: int) -> Program:
    """`program` less its `index`-th synchronising op."""
    victim = sync_ops(program)[index]
    kernels = []
    for kernel in program.kernels:
        body = map_body(kernel.body, lambda op: () if op is victim else None)
        kernels.append(_with_body(kernel, body))
    return Program(
        program.name, program.params, tuple(kernels), program.dims, program.scratch, program.sources
    )


def _with_body(kernel: Kernel, body: tuple[Op, ...]) -> Kernel:
    from dataclasses import replace

    return replace(kernel, body=body)


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
