"""The language front end: Python functions → tile IR."""

from __future__ import annotations

from tilewright.lang.trace import (
    DirectTrace,
    Macro,
    PrimFunc,
    is_direct,
    macro,
    prim_func,
    trace_direct,
)

__all__ = ["DirectTrace", "Macro", "PrimFunc", "is_direct", "macro", "prim_func", "trace_direct"]
