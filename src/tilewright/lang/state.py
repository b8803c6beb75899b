"""Compile-time state that a run-time branch or loop must leave as it is.

The text of a branch runs once, when the kernel is traced, whether or not the branch is taken. A
list that grows there, a counter that a helper keeps, an iterator that moves on would have changed
once, for good. So everything mutable that the text can reach is recorded before the branch and
compared after it: containers, arrays, attributes, closures, globals that functions name, iterators.
Names that the text itself assigns have rules of their own (`Env.bind`).
"""

from __future__ import annotations

import array
import dis
import enum
import functools
import gc
import operator
import types
from collections import OrderedDict, UserDict, UserList, deque
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tilewright.ir.expr import Expr
from tilewright.lang.scalar import Lost, Scalar
from tilewright.support.definitions import ByCode, nested
from tilewright.support.errors import CompileError, Loc
from tilewright.support.key_rules import held, is_library, slots

NODES = 20_000  # objects that are looked at, at most
BYTES = 1 << 24  # of an array that is compared
Content = list[Any]
Children = Iterable[tuple[str, Any]]
Handler = Callable[[Any], tuple[Content | None, Children]]
_EMPTY = object()


class Watch:
    """The state that a function's text can reach, as it was."""

    def __init__(self, frame: types.FrameType) -> None:
        self.seen: dict[int, tuple[Any, str, Handler, Content | None]] = {}
        self.scopes: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # globals, and some
        # most values are known to hold no state: they are left out at once
        known = _HANDLERS.get
        queue = [
            (n, v)
            for n, v in frame.f_locals.items()
            if known(type(v), _EMPTY) is not None and n[:4] != "_tw_"
        ]
        queue += self._globals(frame.f_globals, frame.f_code)
        for path, value in queue:  # the shortest paths first
            kind = type(value)
            handler = _HANDLERS.get(kind, _EMPTY)
            if handler is _EMPTY:
                handler = _HANDLERS[kind] = _find_handler(kind)
            if handler is None or id(value) in self.seen:
                continue
            content, children = handler(value)
            self.seen[id(value)] = value, path, handler, content
            queue += [
                (_joined(path, part), child)
                for part, child in children
                if known(type(child), _EMPTY) is not None
            ]
            if handler is _function:
                queue += self._globals(value.__globals__, value.__code__)
            if len(self.seen) >= NODES:
                break

    def _globals(self, known: dict[str, Any], code: types.CodeType) -> list[tuple[str, Any]]:
        """The globals that a function's code names, except ours, to be looked at."""
        if str(known.get("__name__")).startswith("tilewright."):
            return []
        found = [(n, known[n]) for n in _global_names(code) if n in known]
        self.scopes.setdefault(id(known), (known, {}))[1].update(found)
        return [(n, v) for n, v in found if _HANDLERS.get(type(v), _EMPTY) is not None]

    def changed(self, bound: Callable[[str], Any]) -> tuple[str, Any] | None:
        """What is not as it was, and its name; `bound` gives what the text has bound a name to."""
        for known, before in self.scopes.values():
            for name, value in before.items():
                now = known.get(name, _EMPTY)
                if now is not value and not _same_item(now, value):
                    return name, value
        for value, path, handler, content in self.seen.values():
            if content is None:
                continue
            now = handler(value)[0]
            if now is None or _same(content, now):
                continue
            if isinstance(value, types.CellType):
                is_new = content[0] is _EMPTY or isinstance(now[0], Lost)
                if is_new or now[0] is bound(path):
                    continue
                return path, content[0]
            return path, value
        return None


def refuse_change(name: str, value: Any, kind: str, loc: Loc | None) -> None:
    what = "number" if isinstance(value, (int, float)) else type(value).__name__
    raise CompileError(
        f"{name!r} is a Python {what}: it changes inside this run-time {kind}, which would happen "
        "once, at compile time",
        loc=loc,
        fix="change it outside; a value that changes while the kernel runs is a T.alloc_var or a "
        "T.alloc_local (a helper's cache: functools.lru_cache)",
        code="python",
    )


def _joined(path: str, part: str) -> str:
    """`cfg` and `.sizes` make `cfg.sizes`; a name that a function knows stands for itself."""
    if part[:1] == "\0":
        return part[1:]
    return f"{path}{part}" if len(path) < 60 else path


def _same_item(a: Any, b: Any) -> bool:
    if a is b:
        return True
    kind = type(a)
    return kind is type(b) and kind in _PLAIN and (a == b or a != a)


def _same(a: Content, b: Content) -> bool:
    return len(a) == len(b) and (all(map(operator.is_, a, b)) or all(map(_same_item, a, b)))


# ── what objects hold ────────────────────────────────────────────────────────────────────────

_PLAIN = (bool, int, float, complex, str, bytes, type(None), range, slice, type(Ellipsis))


def _sequence(value: Any) -> tuple[Content, Children]:
    items = list(value)
    return items, (("[…]", item) for item in items)


def _mapping(value: Any) -> tuple[Content, Children]:
    pairs = list(value.items() if type(value) in (dict, OrderedDict) else dict.items(value))
    return [part for pair in pairs for part in pair], ((f"[{k!r}]"[:40], v) for k, v in pairs)


def _array(value: Any) -> tuple[Content | None, Children]:
    if value.nbytes > BYTES:
        return None, ()
    if value.dtype == object:
        return [*value.shape, *value.ravel()], ()
    return [*value.shape, value.tobytes()], ()


def _cell(value: Any) -> tuple[Content, Children]:
    try:
        held = value.cell_contents
    except ValueError:
        return [_EMPTY], ()
    return [held], (("", held),)


def _function(value: Any) -> tuple[Content | None, Children]:
    if str(value.__globals__.get("__name__")).startswith("tilewright."):
        return None, ()
    cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
    defaults = [*(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
    return [*value.__dict__, *value.__dict__.values()], [
        *((f"\0{n}", c) for n, c in cells),
        *(("'s default", d) for d in defaults),
        *((f".{n}", v) for n, v in value.__dict__.items()),
    ]


@functools.lru_cache(maxsize=1024)
def _kept(kind: type) -> tuple[list[tuple[str, Any]], set[str]]:
    """The slots of a class, and its cached properties, which may get a value at any time."""
    names = ((n, v) for base in kind.__mro__ for n, v in vars(base).items())
    return slots(kind), {n for n, v in names if isinstance(v, functools.cached_property)}


def _attributes(value: Any) -> tuple[Content, Children]:
    kind: Any = type(value)
    own_slots, cached = _kept(kind)
    found = {**getattr(value, "__dict__", {}), **dict(held(value, own_slots))}
    content = [part for pair in found.items() if pair[0] not in cached for part in pair]
    return content, [*((f".{n}", v) for n, v in found.items()), ("", kind)]


def _class(value: Any) -> tuple[Content | None, Children]:
    if is_library(value.__module__) or issubclass(value, enum.Enum):
        return None, ()
    found = {n: v for n, v in vars(value).items() if n not in ("__dict__", "__weakref__")}
    return [part for pair in found.items() for part in pair], [
        *((f".{n}", v) for n, v in found.items()),
        *(("", base) for base in value.__bases__),
    ]


def _iterator(value: Any) -> tuple[Content, Children]:
    try:
        left = operator.length_hint(value, -1)
    except Exception:
        left = -1
    text = repr(value) if type(value).__module__ == "itertools" else ""
    return [left, text], (("", child) for child in gc.get_referents(value))


def _generator(value: Any) -> tuple[Content, Children]:
    frame = value.gi_frame
    if frame is None:
        return [-1], ()
    held = frame.f_locals
    return [frame.f_lasti, *held, *held.values()], [
        *(("", v) for v in held.values()),
        *(("", v) for v in gc.get_referents(value) if hasattr(v, "__next__")),
    ]


def _parts(*names: str) -> Handler:
    def handler(value: Any) -> tuple[None, Children]:
        return None, [("", getattr(value, name, None)) for name in names]

    return handler


_HANDLERS: dict[type, Any] = {
    **dict.fromkeys(_PLAIN),
    types.ModuleType: None,
    types.FunctionType: _function,
    types.CellType: _cell,
    types.GeneratorType: _generator,
    types.MethodType: _parts("__self__", "__func__"),
    types.BuiltinFunctionType: _parts("__self__"),
    functools.partial: _parts("func", "args", "keywords"),
    functools._lru_cache_wrapper: _parts("__wrapped__"),
    property: _parts("fget", "fset"),
    staticmethod: _parts("__func__"),
    classmethod: _parts("__func__"),
    types.SimpleNamespace: _attributes,
    frozenset: None,
}


def _find_handler(kind: Any) -> Handler | None:
    """How values of a type are looked into, or None for those that hold no state of a user's."""
    if issubclass(kind, (Expr, Scalar, Lost)):
        return None
    if kind.__module__.partition(".")[0] == "tilewright":
        return _parts("function") if kind.__name__ == "Macro" else None
    for base, handler in _BASES:
        if issubclass(kind, base):
            return handler if is_library(kind.__module__) else _with_attributes(handler)
    if issubclass(kind, type):
        return _class
    if not is_library(kind.__module__) or issubclass(kind, (UserDict, UserList)):
        return _attributes
    if hasattr(kind, "__next__") and kind.__module__ in ("builtins", "itertools"):
        return _iterator
    return None


_BASES: tuple[tuple[Any, Handler], ...] = (
    (tuple, lambda value: (None, (("[…]", item) for item in value))),
    (list, _sequence),
    (deque, _sequence),
    (dict, _mapping),
    (set, lambda value: (sorted(value, key=id), ())),
    ((array.array, bytearray), lambda value: ([bytes(value)], ())),
    (np.ndarray, _array),
)


def _with_attributes(handler: Handler) -> Handler:
    """Of a user's subclass of a container."""

    def both(value: Any) -> tuple[Content | None, Children]:
        content, children = handler(value)
        more, others = _attributes(value)
        return [*(content or ()), *(more or ())], [*children, *others]

    return both


def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """Names that a function's code, or one nested in it, may look up in its globals."""
    known = _GLOBAL_NAMES.get(code)
    if known is None:
        found = (i for each in nested(code) for i in dis.get_instructions(each))
        names = dict.fromkeys(i.argval for i in found if i.opname in _GLOBAL)
        known = _GLOBAL_NAMES[code] = tuple(names)
    return known


_GLOBAL = ("LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")
_GLOBAL_NAMES: ByCode[tuple[str, ...]] = ByCode()  # hashing code takes as long as reading it
