"""Loops by a step that is known at run time only: they count their iterations.

Everything that follows takes steps to be positive.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from tilewright.ir.analysis.bounds import Ranges, prove
from tilewright.ir.analysis.trips import nth, upward_or_downward
from tilewright.ir.dtype import INT32, INT64
from tilewright.ir.expr import Const, Var, binary, cast, compare, const
from tilewright.ir.op import Body, For, Kernel, Let, Op, Program, marked, walk_ops
from tilewright.ir.rewrite import fresh_name, map_kernels, program_names, rebuild, substitute_vars
from tilewright.ir.scope import after, entry, inside
from tilewright.ir.target import Target


def count_loops(program: Program, target: Target) -> Program:
    """Steps that may be negative or zero become iterations 0, 1, 2, …."""
    if not any(_is_open(op) for kernel in program.kernels for op in walk_ops(kernel)):
        return program
    names = program_names(program)

    def counted(kernel: Kernel) -> Kernel:
        ranges = entry(kernel, program.dims)
        return dataclasses.replace(kernel, body=_body(kernel.body, ranges, names))

    return map_kernels(program, counted)


def _is_open(op: Op) -> bool:
    return isinstance(op, For) and not isinstance(op.step, Const)


def _grows(op: For, ranges: Ranges) -> bool:
    return prove(compare(">", op.step, const(0, op.step.dtype)), ranges, index=False) is True


def _body(body: Body, ranges: Ranges, names: set[str]) -> Body:
    found: list[Op] = []
    for op in body:
        changes: dict[str, Any] = {
            f.name: _body(getattr(op, f.name), inside(op, f.name, ranges), names)
            for f in marked(op, "body")
        }
        new = rebuild(op, **changes) if changes else op
        if isinstance(new, For) and _is_open(new) and not _grows(new, ranges):
            found += _counted(new, names)
            continue
        found.append(new)
        ranges = after(new, ranges)
    return tuple(found)


def _counted(op: For, names: set[str]) -> Body:
    trips = upward_or_downward(op.start, op.stop, op.step)
    kind = INT64 if op.kind in ("serial", "unroll") else INT32  # rings have slots in int32
    if kind is INT32:
        trips = cast(binary("min", trips, const(INT32.max_value, INT64)), INT32)
    count = Var(fresh_name(f"{op.var.name}_trips", names), kind)
    at = Var(fresh_name(f"{op.var.name}_at", names), kind)
    body = substitute_vars(op.body, {op.var: nth(op.start, op.step, at)})
    zero, one = const(0, kind), const(1, kind)
    loop = dataclasses.replace(op, var=at, start=zero, stop=count, step=one, body=body)
    return Let(count, trips, loc=op.loc), loop
