"""Prints say which block and thread speaks, and of which buffer (`ir.messages`)."""

from __future__ import annotations

from tilewright.ir.messages import label_prints
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.passes.pipeline import Pass


def _label(program: Program, target: Target) -> Program:
    return label_prints(program)


LABEL = Pass(
    "label_prints",
    _label,
    "first: while block and thread indices are the author's, and buffers have their names",
    whole_program=True,
)
