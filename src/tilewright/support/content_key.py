"""Keys of values by content; those of code are cheap to compute again.

A factory's result depends on its text and on every value that the text reaches without an
argument: the cells of its closure, its defaults, the globals it names, and what the functions and
classes among those reach in turn. Python's library, Tilewright and other installed packages count
by name only: their functions and modules are not looked into.

`Context` walks all this once. What cannot change without being bound anew (numbers, strings,
functions, classes) is then checked by identity; lists, arrays and objects are keyed again each
time.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from enum import Enum
from importlib.util import resolve_name
from itertools import count, repeat
from operator import attrgetter, is_
from types import CodeType, FunctionType, MappingProxyType, MethodType, ModuleType
from typing import Any, NamedTuple

import numpy as np

from tilewright.support.definitions import FUTURE, ByCode, definition, nested
from tilewright.support.errors import CompileError, Loc, TilewrightError
from tilewright.support.key_rules import (
    EXACT,
    HOOK,
    LEAVES,
    SUBCLASSES,
    Key,
    Keyer,
    Same,
    Sub,
    Unkeyable,
    is_library,
    itself,
    rule_of,
)


def content_key(value: Any) -> Key:
    """The key of a value by type and content.

    >>> content_key([1, 0.0]) == content_key([1, -0.0])
    False
    >>> content_key({"a": [1]}) == content_key({"a": [1]})
    True
    """
    kind = type(value)
    if kind is tuple or kind is list:  # of plain items, as most are: calls wait for this
        done: list[Key] = [kind]
        for item in value:
            of = type(item)
            if of is int or of is str or item is None:
                done.append(item)
            elif of in LEAVES:
                done.append(LEAVES[of](item, content_key))
            else:
                break
        else:
            return tuple(done)
    return Keyer()(value)


_ABSENT = Same(None)
# of a class: made by Python, or caches
_NOT_CONTENT = {
    "__dict__", "__weakref__", "__doc__", "_abc_impl", "__abstractmethods__", "__slotnames__",
    "__firstlineno__", "__static_attributes__", "__annotations_cache__", "__annotate_func__",
    "__module__", "__qualname__", "_value2member_map_", "_hashable_values_", "_unhashable_values_",
}  # fmt: skip


class Read(NamedTuple):
    """A name, the attributes that are asked of it, and where."""

    path: tuple[str, ...]
    line: int
    free: bool = False  # of an enclosing function


class Context:
    """The dependencies of a function, class or module."""

    def __init__(self, root: Any, look_inside: bool = False) -> None:
        self.root = root
        self.look_inside = look_inside  # even if it is a library's
        self._scopes: list[Any] = []
        self._sizes: list[tuple[Any, int]] = []
        self._functions: list[tuple[Any, ...]] = []
        self._settled = False  # whether all that was read had a value; at first nothing has

    def key(self, sub: Sub | None = None) -> Key:
        """Equal where text and values read are. Cheap while nothing is bound anew."""
        if not self._unchanged():
            self._build()
        if not self.values:
            return self.token
        sub = sub or Keyer()
        return (self.token, *(value.key(sub) for value in self.values))

    def _build(self) -> None:
        walk = _Walk(self.root if self.look_inside else None)
        said = walk(self.root)
        self.token = _tokens.setdefault(said, next(_numbers))
        self.values = walk.values
        self._scopes = [
            (scope.get, tuple(found), tuple(found.values()))
            for scope, found in walk.scopes.values()
        ]
        cells, contents = [cell for cell, _ in walk.cells], [value for _, value in walk.cells]
        self._scopes.append((_content, cells, contents))
        self._sizes = [(scope, len(scope)) for scope in walk.whole]
        self._functions = [(function, *_of_function(function)) for function in walk.functions]
        self._settled = not walk.unbound

    def _unchanged(self) -> bool:
        for get, names, values in self._scopes:
            if not all(map(is_, map(get, names, repeat(_ABSENT)), values)):
                return False
        for function, code, defaults, named in self._functions:
            if function.__code__ is not code or function.__defaults__ is not defaults:
                return False
            if function.__kwdefaults__ is not named:
                return False
        for scope, size in self._sizes:
            if len(scope) != size:
                return False
        return self._settled


def _content(cell: Any, absent: Any = _ABSENT) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not bound yet
        return absent


_of_function = attrgetter("__code__", "__defaults__", "__kwdefaults__")
# the contents of contexts, numbered: a number is quick to compare
_tokens: dict[Key, int] = {}
_numbers = count()
_contexts: dict[int, Context] = {}
_KEPT = 256


def context_of(value: Any) -> Context:
    """The context of a function, class or module that is met as a value."""
    found = _contexts.get(id(value))  # which it holds: the number is its own
    if found is None:
        if len(_contexts) >= _KEPT:
            _contexts.clear()
        found = _contexts[id(value)] = Context(value)
    return found


def _code(value: Any, sub: Sub) -> Key:
    return ("code", context_of(value).key(sub))


EXACT[FunctionType] = EXACT[ModuleType] = _code
SUBCLASSES[1:1] = [(type, _code), (ModuleType, _code)]  # after Enum


class _Value(NamedTuple):
    """A value that may change without being bound anew, and who reads it."""

    value: Any
    reader: str
    loc: Loc | None

    def key(self, sub: Sub) -> Key:
        try:
            return sub(self.value)
        except Unkeyable as error:
            if not self.reader:
                return Same(self.value)
            if self.loc is None:
                raise error.inside(f" ({self.reader})") from None
            raise CompileError(
                f"{self.reader} decides about the kernel, and has no key: {error.why}"
                + (f" (at {self.reader}{error.path})" if error.path else ""),
                loc=self.loc,
                expected="values that can be compared with those of later calls",
                fix=error.fix + ", as an argument or under a name of their own",
                code="arguments",
            ) from None


class _Walk:
    """The constant part of a key, and what has to be looked at to know that it still holds."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.numbers: dict[int, int] = {}
        self.next = count()
        self.values: list[_Value] = []
        self.scopes: dict[int, tuple[Any, dict[str, Any]]] = {}
        self.whole: list[Any] = []
        self.cells: list[tuple[Any, Any]] = []
        self.functions: list[FunctionType] = []
        self.unbound = False
        self.frozen = 0
        self.reader, self.loc = "", None  # type: str, Loc | None

    def __call__(self, value: Any) -> Key:
        kind = type(value)
        if kind is int or kind is str or value is None:
            return value
        if kind in LEAVES:
            return LEAVES[kind](value, self)
        if kind is FunctionType:
            return self.once(value, self.function)
        if isinstance(value, type):
            return self.once(value, self.klass)
        if isinstance(value, ModuleType):
            return self.once(value, self.module)
        if kind is MethodType and type(value.__func__) is FunctionType and not self.frozen:
            said = self(value.__func__)
            self.reader = f"self of {value.__func__.__name__}"
            self.loc = _loc(value.__func__.__code__, 0)
            return ("method", said, self(value.__self__))
        if self.frozen:
            try:
                return self.again(value)
            except Unkeyable:
                return ("same", Same(value))
        if kind in _BOUND_ONCE or isinstance(value, (Enum, np.generic, np.dtype)):
            return self.again(value)
        if hasattr(kind, HOOK) or _never_changes(kind):
            return self.again(value)
        self.values.append(_Value(value, self.reader, self.loc))
        return ("value", len(self.values))

    def again(self, value: Any) -> Key:
        """By the table, with the parts walked."""
        if id(value) in self.numbers:  # inside itself
            return ("again", self.numbers[id(value)])
        self.numbers[id(value)] = next(self.next)
        try:
            return rule_of(type(value))(value, self)
        finally:
            del self.numbers[id(value)]

    def once(self, value: Any, walk: Callable[[Any], Key]) -> Key:
        if id(value) in self.numbers:
            return ("again", self.numbers[id(value)])
        self.numbers[id(value)] = next(self.next)
        return walk(value)

    def look(self, scope: Any, name: str) -> Any:
        """A name's value now, to be compared with its value then."""
        value = scope.get(name, _ABSENT)
        self.scopes.setdefault(id(scope), (scope, {}))[1][name] = value
        return value

    # ── functions ──

    def function(self, function: FunctionType) -> Key:
        code, scope = function.__code__, function.__globals__
        if is_library(scope.get("__name__", "")) and function is not self.root:
            return ("library", scope["__name__"], function.__qualname__, code)
        if not (self.frozen and code.co_filename == "<string>"):  # of a dataclass: not edited
            self.functions.append(function)
        reads, text = _reads_of(function)
        defaults = (function.__defaults__, tuple((function.__kwdefaults__ or {}).items()))
        self.reader, self.loc = f"a default of {function.__name__}", _loc(code, 0)
        said: list[Key] = [code, code.co_filename, text, *map(self, defaults)]
        for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            said.append(self.cell(function, name, cell, reads))
        for read in reads:
            if not read.free and read.path[0] not in code.co_freevars:
                said += (read.path, self.path(function, scope, read))
        for name in tuple(vars(function)):
            said += (name, self(self.look(vars(function), name)))
        return ("function", *said)

    def cell(self, function: FunctionType, name: str, cell: Any, reads: list[Read]) -> Key:
        value = _content(cell)
        if value is _ABSENT:
            self.unbound = True
            return ("unbound",)
        self.cells.append((cell, value))
        read = [r for r in reads if r.path[0] == name] or [Read((name,), 0)]
        return tuple(self.value(function, value, each) for each in read)

    def path(self, function: FunctionType, scope: dict[str, Any], read: Read) -> Key:
        if read.path[0] == IMPORT:
            return self.imported(function, scope, read)
        value = self.look(scope, read.path[0])
        if value is not _ABSENT:
            return self.value(function, value, read)
        return self.once(scope, self.everything) if read.path[0] in _REACH_ALL else ("builtin",)

    def everything(self, scope: dict[str, Any]) -> Key:
        """All globals, for `globals()` and `eval` may read any; what has no key as itself."""
        self.whole.append(scope)
        said: list[Key] = []
        self.reader, self.loc = "", None
        for name in [name for name in scope if not name.startswith("__")]:
            said += (name, self(self.look(scope, name)))
        return ("globals", *said)

    def imported(self, function: FunctionType, scope: dict[str, Any], read: Read) -> Key:
        try:
            name = resolve_name(read.path[1], scope.get("__package__") or "")
        except ImportError:
            return ("module", read.path[1])
        if is_library(name):
            return ("module", name)
        value = self.look(sys.modules, name)
        rest = Read(read.path[1:], read.line)
        return ("module", name) if value is _ABSENT else self.value(function, value, rest)

    def value(self, function: FunctionType, value: Any, read: Read) -> Key:
        """The value of a path. Of a module, and of an object's own attributes, only what is read
        counts: `self.block` leaves the rest of `self` out of it."""
        done = 1
        while done < len(read.path) and _has_own(value, read.path[done]):
            value = self.look(vars(value), read.path[done])
            done += 1
        if value is _ABSENT:
            return ("absent",)
        self.reader = f"{'.'.join(read.path[:done])}, which {function.__name__} reads,"
        self.loc = _loc(function.__code__, read.line)
        return self(value)

    # ── classes and modules ──

    def klass(self, kind: Any) -> Key:
        if is_library(kind.__module__):
            return ("class", itself(kind))
        scope = vars(kind)
        self.whole.append(scope)
        said: list[Key] = [kind.__module__, kind.__qualname__, self(type(kind))]
        said += map(self, kind.__bases__)
        for name in scope:
            if name in _NOT_CONTENT:
                continue
            value = self.look(scope, name)
            self.reader, self.loc = f"{kind.__qualname__}.{name}", None
            dunder = name.startswith("_") and name.endswith("_")
            self.frozen += dunder  # Python's own, which stays as it is
            try:
                said += (name, self(value))
            finally:
                self.frozen -= dunder
        return ("class", *said)

    def module(self, module: ModuleType) -> Key:
        """A module that is used as a value: every public name of it."""
        if is_library(module.__name__):
            return ("module", module.__name__, getattr(module, "__version__", None))
        scope = vars(module)
        self.whole.append(scope)
        said: list[Key] = [module.__name__]
        for name in [name for name in scope if not name.startswith("__")]:
            value = self.look(scope, name)
            self.reader = f"{module.__name__}.{name}"
            said += (name, self(value))
        return ("module", *said)


def _has_own(value: Any, name: str) -> bool:
    """Whether `value.name` is what its `__dict__` says."""
    if isinstance(value, ModuleType):
        return not is_library(value.__name__)
    kind: Any = type(value)
    if isinstance(value, (type, FunctionType)) or hasattr(kind, HOOK):
        return False
    if kind.__getattribute__ is not object.__getattribute__:
        return False
    shared = next((vars(base)[name] for base in kind.__mro__ if name in vars(base)), None)
    return not hasattr(shared, "__set__") and name in getattr(value, "__dict__", ())


# besides numbers and strings, what changes only by being bound anew, once its parts are looked at
_BOUND_ONCE = {
    kind
    for kind in EXACT
    if kind not in (list, dict, set, bytearray, memoryview, MappingProxyType, ContextVar)
    and kind.__module__ != "collections"
}


def _never_changes(kind: type) -> bool:
    """Types of PyTorch and of ours whose values do not change."""
    name = kind.__module__
    return kind.__name__ in _TORCH if name == "torch" else name.startswith("tilewright.")


_TORCH = ("dtype", "device", "Size", "layout", "memory_format")


def _loc(code: CodeType, line: int) -> Loc:
    return Loc(code.co_filename, line or code.co_firstlineno)


# ── what a function's text names ─────────────────────────────────────────────────────────────

IMPORT = "import"  # no name: paths of modules that a body imports begin with it


def _reads_of(function: FunctionType) -> tuple[list[Read], str]:
    """The names that a function reads, and its text where that is at hand."""
    known = _texts.get(function.__code__)
    if known is None:
        known = _texts[function.__code__] = _find_reads(function)
    return known


_texts: ByCode[tuple[list[Read], str]] = ByCode()


def _find_reads(function: FunctionType) -> tuple[list[Read], str]:
    found = dict.fromkeys(_names(function.__code__))
    text = ""
    if function.__code__.co_name != "<lambda>":
        try:
            known = definition(function)
        except TilewrightError:
            pass
        else:
            text = known.text
            as_text = bool(function.__code__.co_flags & FUTURE)
            found |= dict.fromkeys(_annotated(known.node, as_text))
    first: dict[tuple[str, ...], Read] = {}
    for read in found:
        first.setdefault(read.path, read)
    return list(first.values()), text


def _names(code: CodeType) -> Iterator[Read]:
    """Names that bytecode loads from outside, with the attributes that follow."""
    for each in nested(code):
        yield from loaded(each)


def loaded(code: CodeType) -> Iterator[Read]:
    """Those of one code object, without what is nested in it."""
    path: list[str] = []
    line, free = code.co_firstlineno, False
    for each in dis.get_instructions(code):
        line = each.starts_line if type(each.starts_line) is int else line
        if path and each.opname in ("LOAD_ATTR", "LOAD_METHOD", "IMPORT_FROM"):
            path.append(each.argval)
            if each.opname != "IMPORT_FROM":
                continue
            yield Read(tuple(path), line, free)
            path = path[:2]
            continue
        if path and each.opname in _BETWEEN:
            continue
        if path:
            yield Read(tuple(path), line, free)
        path = []
        free = each.opname in _FREE
        if free or each.opname in _GLOBAL:
            path = [each.argval]
        elif each.opname == "IMPORT_NAME":
            path = [IMPORT, each.argval]


_REACH_ALL = ("globals", "eval", "exec")
_FREE = ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF")
_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_BETWEEN = ("CACHE", "EXTENDED_ARG", "PRECALL", "NOP")


def _annotated(node: ast.AST, kept_as_text: bool) -> Iterator[Read]:
    """Names in annotations: bytecode has none of those of locals."""
    for each in ast.walk(node):
        annotation = each.annotation if isinstance(each, (ast.AnnAssign, ast.arg)) else None
        if annotation is None or (isinstance(each, ast.arg) and not kept_as_text):
            continue
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            try:
                annotation = ast.parse(annotation.value, mode="eval").body
            except SyntaxError:
                continue
        yield from _names(compile(ast.Expression(annotation), "<annotation>", "eval"))
