"""Reads the text of formulas, as `str(formula)` writes it."""

from __future__ import annotations

import re

from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import MONOIDS, Array, Axis, Formula, array, tensor, verify
from tilewright.ir.text.parse import parse_expr
from tilewright.support.errors import CompileError

_HEAD = re.compile(r"formula (\w+)\((.*)\) -> (.*)")
_INPUT = re.compile(r"(\w+): (\w+)\[([\d, ]*)\]")
_ARRAY = re.compile(
    rf"(\w+)\[([^\]]*)\]: (\w+) = (?:(scan )?({'|'.join(MONOIDS)})\{{([^}}]*)\}} )?(.*)"
)


def parse_formula(text: str) -> Formula:
    """
    >>> text = '''formula twice(x: float32[4]) -> y
    ...     y[i < 4]: float32 = x[i] * 2.0'''
    >>> str(parse_formula(text)) == text
    True
    """
    first, *lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    head = _HEAD.fullmatch(first)
    if head is None:
        raise _wrong(first, "formula name(x: float32[4, 8]) -> y")
    inputs = tuple(
        tensor(name, tuple(map(int, re.findall(r"\d+", shape))), find_dtype(kind))
        for name, kind, shape in _INPUT.findall(head[2])
    )
    known = {b.name: b for b in inputs}
    arrays: list[Array] = []
    for line in lines:
        arrays.append(_array(line, known))
        known[arrays[-1].name] = arrays[-1].buffer
    outputs = tuple(known[name] for name in re.findall(r"\w+", head[3]) if name in known)
    formula = Formula(head[1], inputs, tuple(arrays), outputs)
    verify(formula)
    return formula


def _array(line: str, known: dict[str, Buffer]) -> Array:
    found = _ARRAY.fullmatch(line)
    if found is None:
        raise _wrong(line, "y[i < 4]: float32 = sum{j < 8} x[i, j]")
    name, axes, kind, scan, monoid, over, body = found.groups()
    own, folded = _axes(axes), _axes(over or "")
    scope: dict[str, Var | Buffer] = {
        **known,
        **{axis.var.name: axis.var for axis in (*own, *folded)},
    }
    dtype = find_dtype(kind)
    # an index of argmax, or a count of a condition, has another type than what is folded
    context = None if monoid in ("argmax", "argmin", "any", "all") else dtype
    expr = parse_expr(body, scope, context)
    return array(name, own, expr, dtype, monoid=monoid or "", over=folded, scan=bool(scan))


def _axes(text: str) -> tuple[Axis, ...]:
    pairs = re.findall(r"(\w+) < (\d+)", text)
    return tuple(Axis(Var(name), int(extent)) for name, extent in pairs)


def _wrong(line: str, like: str) -> CompileError:
    return CompileError(
        f"this line of a formula does not read: {line[:80]!r}", fix=f"write it like {like!r}"
    )
