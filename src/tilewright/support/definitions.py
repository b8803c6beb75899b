"""The text of functions: what a code object was compiled from, kept from when it is first seen.

A file may be edited and a notebook's cell run again while functions of the old text are alive.
So a text counts only if compiling it gives the function's own code, and once found it stays with
that code, whatever happens to the file.
"""

from __future__ import annotations
import __future__

import ast
import linecache
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import MAGIC_NUMBER
from io import StringIO
from types import CellType, CodeType, FunctionType
from typing import Any, Generic, TypeVar
from weakref import ref

from tilewright.support.errors import CompileError, Loc

V = TypeVar("V")
FUTURE = __future__.annotations.compiler_flag


class ByCode(Generic[V]):
    """Values by code object. Code compares equal whatever file it is of and whatever its local
    annotations say; here two code objects are two."""

    def __init__(self) -> None:
        self.by_id: dict[int, tuple[ref[CodeType], V]] = {}

    def get(self, code: CodeType) -> V | None:
        entry = self.by_id.get(id(code))
        return entry[1] if entry is not None else None

    def __contains__(self, code: CodeType) -> bool:
        return id(code) in self.by_id

    def __setitem__(self, code: CodeType, value: V) -> None:
        key, found = id(code), self.by_id
        found[key] = ref(code, lambda _: found.pop(key, None)), value


@dataclass(frozen=True)
class Definition:
    """A `def`, its decorators included: equal where text, file and position are."""

    file: str
    line: int
    column: int
    text: str
    node: ast.FunctionDef | ast.AsyncFunctionDef = field(compare=False, repr=False)


def definition(function: FunctionType) -> Definition:
    """The text that a function was compiled from."""
    code = function.__code__
    found = _known.get(code)
    if found is None:
        texts = _texts(code.co_filename, function.__globals__)
        if not any(texts):
            raise CompileError(
                f"the source of {function.__name__} is not at hand",
                loc=Loc(code.co_filename, code.co_firstlineno),
                fix="define the kernel in a file",
            )
        _learn(function, texts)
        found = _known.get(code)
    if found is None:
        raise CompileError(
            f"the source of {function.__name__} has changed since it was loaded",
            loc=Loc(code.co_filename, code.co_firstlineno),
            fix="import the module again with importlib.reload, run the cell again, or restart "
            "Python",
        )
    return found


_known: ByCode[Definition] = ByCode()


def _texts(file: str, scope: dict[str, Any]) -> list[str]:
    """The file's text now, then the one that Python's cache has from before."""
    kept = "".join(linecache.getlines(file, scope))
    now = _read(file)
    if now is None:
        linecache.checkcache(file)
        now = "".join(linecache.getlines(file, scope))
    elif now != kept:
        linecache.cache.pop(file, None)  # excerpts in errors show the text that was found
    return list(dict.fromkeys((now, kept)))


def _read(file: str) -> str | None:
    try:
        with tokenize.open(file) as lines:
            text = lines.read()
    except (OSError, SyntaxError, UnicodeDecodeError, ValueError):
        return None
    return text if text.endswith("\n") or not text else text + "\n"


def _learn(function: FunctionType, texts: list[str]) -> None:
    """Definitions of a function and of all that are nested in it."""
    code, scope = function.__code__, function.__globals__
    fitting = [found for text in texts if (found := _fitting(text, code, scope))]
    if not fitting:
        return
    first = fitting[0]
    # what bytecode does not hold is known only if the file is as it was loaded
    annotated = any(isinstance(n, ast.AnnAssign) for n in ast.walk(first[id(code)].node))
    if (annotated or _differ(fitting)) and _edited_since(code.co_filename, scope):
        return
    for each in nested(code):
        if id(each) in first:
            _known[each] = first[id(each)]


def _differ(fitting: list[dict[int, Definition]]) -> bool:
    def shown(found: dict[int, Definition]) -> str:
        return "".join(ast.dump(each.node) for each in found.values())

    return len(fitting) > 1 and len(set(map(shown, fitting))) > 1


def _fitting(text: str, code: CodeType, scope: dict[str, Any]) -> dict[int, Definition] | None:
    """By code object, the definitions of a text that compiles to `code`."""
    flags = code.co_flags & FUTURE
    try:
        tree, compiled = _compiled(text, code.co_filename, flags)
    except (SyntaxError, ValueError, RecursionError):
        return None
    place = (code.co_name, code.co_firstlineno)
    if place not in tree or not (_is_hooked(scope) or code in compiled.get(place, ())):
        return None
    lines = _lines(text)
    return {
        id(each): _cut(tree[each.co_name, each.co_firstlineno], lines, code.co_filename)
        for each in nested(code)
        if (each.co_name, each.co_firstlineno) in tree
    }


@lru_cache(maxsize=16)
def _lines(text: str) -> list[str]:
    return StringIO(text).readlines()  # as Python counts them: a form feed ends none


_Place = tuple[str, int]


@lru_cache(maxsize=64)
def _compiled(
    text: str, file: str, flags: int
) -> tuple[dict[_Place, ast.FunctionDef | ast.AsyncFunctionDef], dict[_Place, list[CodeType]]]:
    tree = ast.parse(text, file)
    nodes = {
        (node.name, _first_line(node)): node
        for node in _statements(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
    }
    codes: dict[_Place, list[CodeType]] = {}
    for code in nested(compile(tree, file, "exec", flags, dont_inherit=True)):
        codes.setdefault((code.co_name, code.co_firstlineno), []).append(code)
    return nodes, codes


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those in a node, at any depth; expressions have none."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inside = getattr(node, name, ())
        for each in inside if isinstance(inside, list) else ():
            yield each
            yield from _statements(each)


def nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from nested(inner)


def _first_line(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return node.decorator_list[0].lineno if node.decorator_list else node.lineno


def _cut(node: ast.FunctionDef | ast.AsyncFunctionDef, lines: list[str], file: str) -> Definition:
    first = _first_line(node)
    text = "".join(lines[first - 1 : node.end_lineno])
    return Definition(file, first, node.col_offset, text, node)


def _is_hooked(scope: dict[str, Any]) -> bool:
    """Whether an import hook compiled the module, and perhaps something else than its text."""
    loader = scope.get("__loader__")
    kind = (loader if isinstance(loader, type) else type(loader)).__module__
    return loader is not None and not kind.startswith(_PLAIN_LOADERS)


_PLAIN_LOADERS = ("importlib", "_frozen_importlib", "zipimport")


def _edited_since(file: str, scope: dict[str, Any]) -> bool:
    """Whether a file is another than the one that its module was loaded from, as far as the
    compiled file that Python keeps of it tells."""
    cached = getattr(scope.get("__spec__"), "cached", None)
    if sys.dont_write_bytecode or not cached or not os.access(cached, os.W_OK):
        return False  # it may be older than what was loaded
    try:
        with open(cached, "rb") as compiled:
            head = compiled.read(16)
        now = os.stat(file)
    except OSError:
        return False
    if head[:4] != MAGIC_NUMBER or head[4:8] != bytes(4):
        return False
    said = tuple(int.from_bytes(head[at : at + 4], "little") for at in (8, 12))
    return said != (int(now.st_mtime) & 0xFFFFFFFF, now.st_size & 0xFFFFFFFF)


# ── other code for a function ────────────────────────────────────────────────────────────────


def arguments_of(node: ast.FunctionDef) -> list[ast.arg]:
    args = node.args
    extra = [a for a in (args.vararg, args.kwarg) if a is not None]
    return [*args.posonlyargs, *args.args, *args.kwonlyargs, *extra]


def changed(
    found: Definition,
    name: str,
    free: Sequence[str],
    flags: int,
    change: Callable[[ast.FunctionDef], Any],
) -> CodeType:
    """The code called `name` of a definition as `change` leaves its tree, a tree of its own: others
    keep the one that was found. `free` are names of the scope around it."""
    indented = found.text.lstrip("\f")[:1].isspace()
    tree = ast.parse("if 1:\n" * indented + found.text)
    ast.increment_lineno(tree, found.line - 1 - indented)
    node = next(each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef))
    change(node)
    # its own name, where the text says it, is what it was outside
    node.name, node.decorator_list, node.returns = "_tw_inner", [], None
    node.args.defaults, node.args.kw_defaults = [], [None] * len(node.args.kwonlyargs)
    for argument in arguments_of(node):
        argument.annotation = None
    module = ast.parse(f"def _tw_outer({', '.join(free)}): pass")
    module.body[0].body = [node]  # type: ignore[attr-defined]
    whole = compile(ast.fix_missing_locations(module), found.file, "exec", flags, dont_inherit=True)
    new = next(each for each in nested(whole) if each.co_name == node.name)
    return new.replace(co_name=name)


def with_code(function: FunctionType, code: CodeType, cell: CellType) -> FunctionType:
    """`function` with other code, of whose free names `cell` is the one that it has not."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    closure = tuple(cells.get(each, cell) for each in code.co_freevars)
    made = FunctionType(code, function.__globals__, function.__name__, None, closure)
    made.__qualname__ = function.__name__
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made
