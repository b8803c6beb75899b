"""Numbers known at launch: integers, names of sizes, IR expressions over sizes, functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeAlias

from tilewright.ir.bind import static_value
from tilewright.ir.expr import Expr, variables
from tilewright.support.errors import LaunchError

Sizes: TypeAlias = Mapping[str, int]
Value: TypeAlias = int | str | Expr | Callable[[Sizes], int]

SM_COUNT = "%sms"
"""The size that every launch knows: how many multiprocessors the device has."""


def evaluate(value: Value, sizes: Sizes) -> int:
    """`value` as an integer.

    >>> evaluate("M", {"M": 5}), evaluate(lambda s: -(-s["M"] // 2), {"M": 5})
    (5, 3)
    """
    if isinstance(value, int):
        return value
    try:
        if isinstance(value, str):
            return sizes[value]
        if isinstance(value, Expr):
            names = {v: sizes[v.name] for v in variables(value)}
            return static_value(value, names)
        return int(value(sizes))
    except KeyError as error:
        raise LaunchError(
            f"no size is called {error.args[0]!r}", expected=f"one of {sorted(sizes)}"
        ) from None
