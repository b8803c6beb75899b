"""Reads the text of formulas, as `str(formula)` writes it."""

from __future__ import annotations

import re

from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import *
from tilewright.ir.text.parse import parse_expr, parse_operator

_HEAD = re.compile(r"formula (\w+)\((.*)\) -> (.*?)(?: where (.*))?")
_INPUT = re.compile(r"(\w+): (\w+)\[([^\]]*)\]")
_AXIS = re.compile(r"(\w+) < (.+?)(?=, \w+ < |$)")
_ARRAY = re.compile(
    rf"(\w+)\[([^\]]*)\]: (\w+) = (?:(scan )?({'|'.join(MONOIDS)})\{{([^}}]*)\}} )?(.*)"
)
_BY = re.compile(r"\((.*)\) from \((.*)\) by (.*), part (\d+)")


def parse_formula(text: str) -> Formula:
    """
    >>> text = '''formula twice(x: float32[4]) -> y
    ...     y[i < 4]: float32 = x[i] * 2.0'''
    >>> str(parse_formula(text)) == text
    True
    >>> text = '''formula next(x: float32[n, 4]) -> y where n min=2 multiple_of=2
    ...     y[i < n - 1]: float32 = sum{j < 4} x[i + 1, j] / float32(n)'''
    >>> str(parse_formula(text)) == text
    True
    """
    first, *lines = [line.strip() for line in text.strip().splitlines() if line.strip()]
    head = _HEAD.fullmatch(first)
    if head is None:
        raise _wrong(first, "formula name(x: float32[4, 8]) -> y")
    sizes = tuple(_size(each) for each in (head[4] or "").split(", ") if each)
    known: dict[str, Var | Buffer] = {size.var.name: size.var for size in sizes}
    inputs = tuple(
        tensor(name, tuple(_extent(n, known) for n in shape.split(",") if n), find_dtype(kind))
        for name, kind, shape in _INPUT.findall(head[2])
    )
    known |= {b.name: b for b in inputs}
    arrays: list[Array] = []
    for line in lines:
        arrays.append(_array(line, known))
        known[arrays[-1].name] = arrays[-1].buffer
    buffers = {name: b for name, b in known.items() if isinstance(b, Buffer)}
    outputs = tuple(buffers[name] for name in re.findall(r"\w+", head[3]) if name in buffers)
    formula = Formula(head[1], inputs, tuple(arrays), outputs, sizes)
    verify(formula)
    return formula


def _size(text: str) -> Dim:
    name, *contract = text.split()
    pairs = (each.split("=") for each in contract)
    return Dim(Var(name), **{word: int(n) for word, n in pairs})


def _extent(text: str, known: dict[str, Var | Buffer]) -> Extent:
    found = parse_expr(text.strip(), known, INT32)
    return int(found.value) if isinstance(found, Const) else found


def _array(line: str, known: dict[str, Var | Buffer]) -> Array:
    found = _ARRAY.fullmatch(line)
    if found is None:
        raise _wrong(line, "y[i < 4]: float32 = sum{j < 8} x[i, j]")
    name, axes, kind, scan, monoid, over, body = found.groups()
    own, folded = (
        tuple(Axis(Var(n), _extent(extent, known)) for n, extent in _AXIS.findall(each or ""))
        for each in (axes, over)
    )
    scope: dict[str, Var | Buffer] = {
        **known,
        **{axis.var.name: axis.var for axis in (*own, *folded)},
    }
    dtype = find_dtype(kind)
    if monoid == "by":
        bodies, by = _by(body, scope)
        return array(name, own, bodies, dtype, monoid=monoid, over=folded, scan=bool(scan), by=by)
    # an index of argmax, or a count of a condition, has another type than what is folded
    context = None if monoid in ("argmax", "argmin", "any", "all") else dtype
    expr = parse_expr(body, scope, context)
    return array(name, own, expr, dtype, monoid=monoid or "", over=folded, scan=bool(scan))


def _by(text: str, scope: dict[str, Var | Buffer]) -> tuple[Expr, Monoid]:
    """What is folded by the user's monoid, and that."""
    found = _BY.fullmatch(text)
    if found is None:
        raise _wrong(text, "by{j < 8} (x[j], j) from (0.0, 0) by (a: float32, …) -> (…), part 0")
    combine = parse_operator(found[3])
    kinds = [var.dtype for var in combine.vars[: len(combine.result)]]
    both = zip(_parts(found[1]), kinds, strict=True)
    bodies = together([parse_expr(part, scope, kind) for part, kind in both])
    numbers = zip(_parts(found[2]), kinds, strict=True)
    identity = tuple(float(n) if kind.is_float else int(n) for n, kind in numbers)
    return bodies, Monoid(combine, identity, int(found[4]))


def _parts(text: str) -> list[str]:
    """The texts between the commas of a tuple."""
    parts, depth = [""], 0
    for c in text:
        depth += (c in "([") - (c in ")]")
        if c == "," and not depth:
            parts.append("")
        else:
            parts[-1] += c
    return [part.strip() for part in parts if part.strip()]


def _wrong(line: str, like: str) -> CompileError:
    return CompileError(
        f"this line of a formula does not read: {line[:80]!r}", fix=f"write it like {like!r}"
    )
