"""How tests look at what a function became."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any

import pytest

import tilewright.language as T
from tilewright.ir.op import Program
from tilewright.ir.text import parse_program, print_program
from tilewright.support.errors import CompileError


def text(program: Program) -> str:
    """The program's text, which must read back as the same program."""
    printed = print_program(program)
    assert parse_program(printed) == program
    return printed


def body(function: Any) -> str:
    """The first kernel's body, allocations and indentation left out."""
    printed = text(getattr(function, "program", function))
    inner = printed.split("{\n", 2)[2].rsplit("  }\n}", 1)[0]
    lines = [line.removeprefix("    ") for line in inner.split("\n")]
    return "\n".join(line for line in lines if line and not line.startswith("alloc "))


def same(got: str, expected: str) -> None:
    assert got.strip() == inspect.cleandoc(expected).strip()


def refused(function: Callable[..., Any], *said: str, line: str | None = None) -> CompileError:
    """Tracing fails, the error says all of `said` and points at the line holding `line`."""
    with pytest.raises(CompileError) as caught:
        T.prim_func(function)
    error = caught.value
    rendered = str(error)
    for part in said:
        assert part in rendered, rendered
    assert error.loc is not None, rendered
    if line is not None:
        source = inspect.getsource(function).split("\n")
        first = function.__code__.co_firstlineno
        wanted = [first + i for i, each in enumerate(source) if line in each]
        assert error.loc.line in wanted, rendered
        assert error.loc.file == function.__code__.co_filename
        assert re.search(r"\^", rendered), rendered
    return error
