"""Variables replaced by expressions throughout a body."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from tilewright.ir.buffer import Region
from tilewright.ir.expr import Expr, Var, substitute
from tilewright.ir.op import Body, Op


def substitute_body(body: Body, values: dict[Var, Expr]) -> Body:
    return tuple(_op(op, values) for op in body)


def _op(op: Op, values: dict[Var, Expr]) -> Op:
    new = {}
    for f in fields(op):
        mark = f.metadata.get("mark")
        if mark in ("arg", "body"):
            old = getattr(op, f.name)
            changed = _value(old, values, mark == "body")
            if changed is not old:
                new[f.name] = changed
    return replace(op, **new) if new else op


def _value(value: Any, values: dict[Var, Expr], is_body: bool) -> Any:
    if is_body:
        return substitute_body(value, values)
    if isinstance(value, Expr):
        return substitute(value, values)
    if isinstance(value, tuple):
        return tuple(_value(v, values, False) for v in value)
    if isinstance(value, Region):
        return replace(
            value,
            starts=_value(value.starts, values, False),
            extents=_value(value.extents, values, False),
            cta=None if value.cta is None else substitute(value.cta, values),
        )
    return value
