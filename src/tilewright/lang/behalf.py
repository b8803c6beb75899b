"""Comparisons that a kernel's text makes: what Python's containers compare and hash inside them,
they compare and hash for the user (`guards.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.lang.where import on_behalf

on_behalf(__file__)

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
    "in": lambda a, b: a in b,
    "not in": lambda a, b: a not in b,
}
