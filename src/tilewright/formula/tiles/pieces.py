"""Pieces of Python text that know their axes, and names that are not taken yet."""

from __future__ import annotations

import keyword
import math
from dataclasses import dataclass
from itertools import chain, count

import numpy as np

from tilewright.ir.core import *
from tilewright.ir.dtype import DType

INDENT = "    "
ATOM, POWER, UNARY, TIMES, PLUS, SHIFT, AND, XOR, OR, COMPARE = range(10, 0, -1)
# names of tile programs that mean something else
_TAKEN = set("T tw sum max min any all abs round pow range part run".split())
_INSTEAD = {"sum": "total", "max": "top", "min": "least", "matmul": "acc"}


@dataclass(frozen=True)
class Piece:
    """Text, the axes of its dimensions, and how tightly it binds."""

    text: str
    dims: tuple[Var, ...] = ()
    binds: int = ATOM

    def inside(self, binds: int) -> str:
        return self.text if self.binds >= binds else f"({self.text})"


class Names:
    """Names that are not taken yet."""

    def __init__(self) -> None:
        self.taken = set(_TAKEN)

    def fresh(self, wanted: str) -> str:
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in wanted) or "x"
        base = _INSTEAD.get(base.rstrip("0123456789"), f"_{base}" if base[0].isdigit() else base)
        options = chain((base,), (f"{base}{n}" for n in count(1)))
        name = next(n for n in options if n not in self.taken and not keyword.iskeyword(n))
        self.taken.add(name)
        return name


def literal(value: float | int | bool, dtype: DType) -> Piece:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return Piece("T.inf * 0", (), TIMES)
        return Piece("T.inf") if value > 0 else Piece("-T.inf", (), UNARY)
    shortest = str(np.float32(value)) if dtype == FLOAT32 else repr(value)
    return Piece(shortest, (), UNARY if not isinstance(value, bool) and value < 0 else ATOM)


def choices(expr: Expr) -> tuple[Expr, ...]:
    """What `expr` is one of."""
    match expr:
        case Select(a=a, b=b):
            return a, b
        case Bin(op="min" | "max") | Call(name="min_nan" | "max_nan"):
            return expr.children
    return ()


def holds(kind: DType, number: float) -> bool:
    """Whether a type has the number as float32 has it."""
    if kind.bits >= 32 or not kind.is_float:
        return True
    with np.errstate(over="ignore"):
        wide = np.float32(number)
        return bool(wide.astype(kind.numpy).astype(np.float32) == wide)
