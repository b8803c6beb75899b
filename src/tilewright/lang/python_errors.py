"""Python's own errors in a kernel's text, which runs at compile time: said in the words of the
language, at the user's line, with a way out."""

from __future__ import annotations

import builtins
import inspect
import linecache
import re
from types import FrameType
from typing import Any

from tilewright.lang import math
from tilewright.lang.handles import Tile, Tiles
from tilewright.lang.scalar import is_runtime
from tilewright.lang.where import locate_traceback
from tilewright.support.errors import CompileError, Loc, Repair, at, suggest, swap

# how Python's own messages call an expression
_CLASSES = re.compile(
    r"'(?:Var|Bin|Cmp|Select|Cast|Call|Load|Const|Access|Variable)' object"
    r"|(?<=type )(?:Access|Variable|Load|Bin|Call)\b"
)
_TILES = re.compile(r"'Tiles?'(?: object)?")


def explained(error: Exception) -> CompileError:
    """A Python error in the user's compile-time code, at its place."""
    loc, frame = locate_traceback(error.__traceback__)
    with at(loc):
        return _explained(error, loc, frame)


def _explained(error: Exception, loc: Loc | None, frame: FrameType | None) -> CompileError:
    said = _TILES.sub("a tile", _CLASSES.sub("a run-time value", str(error)))
    message = f"{type(error).__name__}: {said}"
    name = getattr(error, "name", None)
    if isinstance(error, UnboundLocalError):
        unbound = re.search(r"'(\w+)'", str(error))
        name = unbound.group(1) if unbound else "a name"
        return CompileError(
            f"{name!r} is used before it has a value",
            fix=f"assign to {name} above",
            code="unknown-name",
        )
    if isinstance(error, NameError) and "free variable" in said:
        return CompileError(
            f"{name!r} has no value yet: a kernel cannot call itself",
            fix="use a loop, or a @T.macro that ends by an `if` over compile-time values",
            code="unknown-name",
        )
    if isinstance(error, NameError) and name and frame is not None:
        known = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
        fix, repair = _INDICES.get(name, ""), None
        if not fix:
            theirs = (k for k in known if not k.startswith("_tw_"))
            fix, repair = suggest(name, theirs, f"define {name} before it is used")
        return CompileError(message, fix=fix, code="unknown-name", repair=repair)
    if isinstance(error, AttributeError) and name:
        return _bad_attribute(error, name)
    if isinstance(error, TypeError) and loc is not None and frame is not None:
        called = _called(loc, frame)
        if called is not None and f"{called[1].__name__}()" in message:
            return _bad_call(message, *called)
        if called is not None and said != str(error):
            word = called[0].rpartition(".")[2]
            ours = hasattr(math, word)
            return CompileError(
                f"{called[0]} cannot take a run-time value",
                expected="a word of the language",
                fix=f"use T.{word}" if ours else "use the words of T, or compute it by hand",
                code="not-constant",
                repair=swap(called[0], f"T.{word}") if ours else None,
            )
    fix = next((fix for part, fix in _FIXES.items() if part in said), "")
    return CompileError(
        message,
        notes=("this Python ran at compile time",),
        fix=fix or "change the line, or what it is computed from",
        code="python",
    )


# indices that other languages have without asking
_INDICES = {
    **dict.fromkeys(("tx", "tid", "threadIdx"), "name it first: tx = T.get_thread_binding()"),
    **dict.fromkeys(("bx", "by", "bz", "pid", "blockIdx"), "name it: `with T.Kernel(…) as bx:`"),
}
# fixes of Python's own errors, by a part of their text
_FIXES = {
    "'NoneType' object": "T.copy and its kin return nothing: use the tile that they write to",
    "subscript": "a run-time value is a number: index a tensor or a tile",
    "context manager": "`with` opens T.Kernel, T.ws and the like",
    "for @": "T.gemm(A, B, C) adds the product of two tiles to the tile C",
    "has no setter": "T.reshape(tile, shape) and T.view(tile, shape, dtype) show it in another way",
}
# attributes that arrays have elsewhere
_ELSEWHERE = {
    "T": "read it transposed: transpose_A=True or transpose_B=True of T.gemm, or T.transpose",
    "abs": "loop over it with T.Parallel, and use T.abs",
    "exp": "loop over it with T.Parallel, and use T.exp",
    "fill_": "T.fill(tile, value)",
    "item": "index it: A[0]",
    "max": "T.reduce_max(tile, out, dim)",
    "mean": "T.reduce_sum(tile, out, dim), divided by the number of elements",
    "min": "T.reduce_min(tile, out, dim)",
    "numel": "multiply the extents of its shape",
    "size": "its extents are in .shape",
    "sum": "T.reduce_sum(tile, out, dim)",
    "to": "T.copy into a tile of the other type casts",
    "transpose": "read it transposed: transpose_A=True or transpose_B=True of T.gemm",
    "zero_": "T.clear(tile)",
}
_NAMES = {"Tile": "a tensor or tile", "Tiles": "a region", "Access": "an element",
          "Variable": "a variable", "KernelScope": "T.Kernel"}  # fmt: skip


def _bad_attribute(error: AttributeError, name: str) -> CompileError:
    owner = getattr(error, "obj", None)
    kind = (owner if isinstance(owner, type) else type(owner)).__name__
    runtime = isinstance(owner, (Tile, Tiles)) or is_runtime(owner)
    fix, repair = _ELSEWHERE.get(name, "") if runtime else "", None
    if not fix:
        have = [a for a in dir(owner) if not a.startswith("_")]
        if owner is None:
            fix = _FIXES["'NoneType' object"]
        elif runtime:
            fix = "tensors and tiles have shape and dtype; the words of T work on them"
        else:
            fix = f"it has {', '.join(have[:6])}" if have else "define it there"
        fix, repair = suggest(name, have, fix)
    said = _NAMES.get(kind) or ("a run-time value" if runtime else kind)
    return CompileError(
        f"AttributeError: {said} has no attribute {name!r}",
        fix=fix,
        code="unknown-attribute",
        repair=repair,
    )


def _called(loc: Loc, frame: FrameType) -> tuple[str, Any] | None:
    """What the call at `loc` names, and the function itself."""
    text = linecache.getline(loc.file, loc.line)[loc.column - 1 :]
    found = re.match(r"[A-Za-z_][\w.]*(?=\()", text)
    if found is None:
        return None
    first, *rest = found.group().split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        value = getattr(value, part, None)
    return (found.group(), value) if hasattr(value, "__name__") else None


def _bad_call(message: str, name: str, function: Any) -> CompileError:
    """Arguments that a word or a macro does not take."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return CompileError(message, fix=f"look up how {name} is called")
    shown = ", ".join(
        str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters.values()
    )
    wrong = re.search(r"unexpected keyword argument '(\w+)'", message)
    missing = re.search(r"missing \d+ required .*arguments?: (.*)", message)
    fix, repair = f"call it as {name}({shown})", None  # type: str, Repair | None
    if wrong:
        other = wrong.group(1)
        meant = _SYNONYMS.get(other, "")
        if meant in parameters:
            fix, repair = f"did you mean {meant!r}?", swap(other, meant)
        else:
            fix, repair = suggest(other, parameters, f"leave {other} out")
            repair = repair or _without(other)
    elif missing:
        fix = f"pass {missing.group(1)} too"
        if "'dst'" in missing.group(1):
            fix += ": the tile that is written to"
    said = message.split("() ", 1)[-1]
    return CompileError(
        f"{name}: {said}",
        expected=f"{name}({shown})",
        fix=fix,
        code="arguments",
        repair=repair,
    )


def _without(argument: str) -> Repair:
    """Leave out `, argument=value`, where the value is a plain one."""

    def repair(text: str) -> str | None:
        found = re.search(rf", *{argument}=[\w.\"']+(?=[,)])", text)
        return text[: found.start()] + text[found.end() :] if found else None

    return repair


# arguments by the names they have elsewhere
_SYNONYMS = {"axis": "dim", "dims": "dim", "trans_A": "transpose_A", "trans_B": "transpose_B",
             "transA": "transpose_A", "transB": "transpose_B", "stages": "num_stages",
             "num_threads": "threads", "out": "dst", "keepdims": "clear"}  # fmt: skip
