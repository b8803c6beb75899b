"""Sizes that launches give (`T.dynamic`): a kernel is chosen, and compiled, for each range of them
that calls come with. It is right for all sizes, and meant for the largest of its range."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.ir.simplify import simplify
from tilewright.lang.builder import Builder

RANGES = (16, 64, 256, 1024, 4096, 16384)  # their ends


def range_end(size: int) -> int:
    """Of a size that launches give: the end of the range in which choices are the same.

    >>> range_end(1), range_end(100), range_end(1 << 20)
    (16, 256, 16384)
    """
    return next((end for end in RANGES if size <= end), RANGES[-1])


def launch_sizes(builder: Builder) -> dict[Var, int]:
    """What to choose for: the ends of the ranges in which sizes of the arrays of a call lie that
    launches give, or what contracts allow at most."""
    found: dict[Var, int] = {}
    for tensor in builder.params:
        given = builder.arguments.get(tensor.name)
        if isinstance(tensor, Buffer) and given is not None:
            pairs = zip(tensor.shape, given.shape, strict=True)
            found |= {size: range_end(int(n)) for size, n in pairs if isinstance(size, Var)}
    most = {var: dim.max for var, dim in builder.dims.items() if dim.max is not None}
    return {var: min(end, most.get(var, end)) for var, end in found.items()}


def lengths_at(builder: Builder, sizes: Mapping[Var, int]) -> dict[Any, int]:
    """Of the ranges of axes that depend on these sizes."""
    return {
        key: int(evaluate(span, dict(sizes)))
        for key, span in builder.spans.items()
        if variables(span) <= sizes.keys() and not loads(span)
    }


def at_sizes(program: Program, sizes: Mapping[Var, int]) -> Program:
    """`program` where the sizes that launches give are these."""
    if not sizes:
        return program
    values: dict[Var, Expr] = {var: const(n, var.dtype) for var, n in sizes.items()}

    def fixed(e: Expr) -> Expr:
        return simplify(substitute(e, values)) if variables(e) & values.keys() else e

    tensors = {
        b.name: replace(b, shape=tuple(map(fixed, b.shape)))
        for b in (*program.tensors, *program.scratch)
    }

    def one(op: OpT) -> OpT:
        return map_operands(op, fixed, lambda b: tensors.get(b.name, b))

    kernels = tuple(one(map_ops(kernel, one)) for kernel in program.kernels)
    params = tuple(tensors.get(p.name, p) for p in program.params)
    scratch = tuple(tensors[b.name] for b in program.scratch)
    dims = tuple(dim for dim in program.dims if dim.var not in values)
    return replace(program, params=params, scratch=scratch, dims=dims, kernels=kernels)
