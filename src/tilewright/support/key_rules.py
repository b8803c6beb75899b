"""How each type of Python value is keyed: equal exactly where type and content are the same.

`==` is too coarse (3 == 3.0 == True, 0.0 == -0.0), `repr` leaves out and rounds, `hash` of an
object does not change with its attributes. A key is hashable and built from a table by type:

- numbers, strings, bytes: the type and the bits; NaNs by their bits, zeros by their sign;
- lists, tuples, dicts, sets and their subclasses: their items, dicts in their order, and the
  attributes a subclass adds;
- NumPy arrays, PyTorch tensors, NumPy scalars: the data type, the shape and a digest of the bytes;
- enum members: their class, name and value;
- functions, methods, classes, modules: their text and all that they read (`content_key.py`);
- any other object: its class and its attributes, `__slots__` included; an object of an extension
  type by what `copy` would make it from;
- locks and loggers, whose state shapes no kernel: the object itself.

Iterators, open files and whatever else hides its state are refused.
"""

from __future__ import annotations

import copyreg
import functools
import logging
import struct
import sys
import threading
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import ContextVar
from enum import Enum
from pathlib import PurePath
from types import (
    BuiltinFunctionType,
    GetSetDescriptorType,
    MappingProxyType,
    MemberDescriptorType,
    MethodDescriptorType,
    MethodType,
    ModuleType,
    WrapperDescriptorType,
)
from typing import Any, TypeAlias

import numpy as np

Key: TypeAlias = Any  # hashable
Sub: TypeAlias = Callable[[Any], Key]  # the key of a part
Rule: TypeAlias = Callable[[Any, Sub], Key]

HOOK = "__content_parts__"  # a method: what stands for an object of ours


class Unkeyable(Exception):
    """A value without a key: why, and the way to it from the value that was asked for."""

    def __init__(self, why: str, fix: str) -> None:
        super().__init__(why)
        self.why, self.fix, self.path = why, fix, ""

    def inside(self, step: str) -> Unkeyable:
        self.path = step + self.path
        return self


class Same:
    """An object as itself: equal to no other."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value

    def __hash__(self) -> int:
        return object.__hash__(self.value)


class Keyer:
    """Keys the values of one request; knows the containers it is inside of, for cycles."""

    __slots__ = ("inside",)

    def __init__(self) -> None:
        self.inside: dict[int, int] = {}

    def __call__(self, value: Any) -> Key:
        kind = type(value)
        if kind is int or kind is str or value is None:
            return value  # all other keys are tuples
        if kind in LEAVES:
            return LEAVES[kind](value, self)
        here = id(value)
        if here in self.inside:
            return ("again", len(self.inside) - self.inside[here])
        self.inside[here] = len(self.inside)
        try:
            return rule_of(kind)(value, self)
        except RecursionError:
            raise Unkeyable("it is nested too deeply", "pass a flatter value") from None
        finally:
            del self.inside[here]


# ── leaves ───────────────────────────────────────────────────────────────────────────────────


_bits = struct.Struct("<d").pack


def _plain(value: Any, sub: Sub) -> Key:
    return type(value), value


LEAVES: dict[type, Rule] = {
    bool: _plain,
    float: lambda v, sub: (float, _bits(v)),
    complex: lambda v, sub: (complex, _bits(v.real), _bits(v.imag)),
    bytes: _plain,
    Same: _plain,
    type(...): _plain,
    type(NotImplemented): _plain,
}


# ── containers ───────────────────────────────────────────────────────────────────────────────


def parts(values: Iterable[Any], sub: Sub, step: str = "[{}]") -> tuple[Key, ...]:
    """The keys of all, with the place of one that has none."""
    done: list[Key] = []
    for value in values:
        if type(value) is int or type(value) is str:
            done.append(value)
            continue
        try:
            done.append(sub(value))
        except Unkeyable as error:
            raise error.inside(step.format(len(done))) from None
    return tuple(done)


def named_parts(items: Iterable[tuple[Any, Any]], sub: Sub, step: str) -> tuple[Key, ...]:
    done: list[Key] = []
    for name, value in items:
        try:
            done.append(name if type(name) is str else sub(name))
            done.append(value if type(value) is int or type(value) is str else sub(value))
        except Unkeyable as error:
            raise error.inside(step.format(name)) from None
    return tuple(done)


def _fields(*names: str) -> Rule:
    """By some attributes."""

    def rule(value: Any, sub: Sub) -> Key:
        items = ((name, getattr(value, name, None)) for name in names)
        return type(value), *named_parts(items, sub, ".{}")

    return rule


def _bytes_of(value: Any, sub: Sub) -> Key:
    view = memoryview(value)
    return type(value), view.format, view.shape, _digest(view.tobytes())


def _digest(data: Any) -> bytes:
    if len(data) <= 32:
        return bytes(data)
    from hashlib import blake2b  # imports OpenSSL, which writing a kernel takes no part in

    return blake2b(data, digest_size=32).digest()


# ── arrays ───────────────────────────────────────────────────────────────────────────────────


def _dtype(value: np.dtype[Any], sub: Sub) -> Key:
    """Structures by their fields; types that others add are of one letter, and told by class."""
    names = value.names or ()
    inner = tuple((n, *parts(value.fields[n], sub)) for n in names) if value.fields else ()
    base = sub(value.subdtype) if value.subdtype else None
    return np.dtype, sub(value.type), value.str, value.itemsize, value.alignment, inner, base


def _array(value: Any, sub: Sub) -> Key:
    about = (sub(value.dtype), value.shape)
    plain = np.asarray(value)
    if plain.dtype.hasobject or plain.dtype.names:
        # neither addresses nor the bytes between fields are content
        content: Key = parts(plain.reshape(-1).tolist(), sub)
    elif plain.flags.c_contiguous and plain.ndim:
        content = _digest(plain.reshape(-1).view(np.uint8).data)
    else:
        content = _digest(plain.tobytes())
    return kind_key(type(value), sub), *about, content


def _tensor(value: Any, sub: Sub) -> Key:
    torch = sys.modules["torch"]
    about = (str(value.dtype), tuple(value.shape), str(value.device), value.requires_grad)
    if value.layout is not torch.strided or value.is_quantized or value.device.type == "meta":
        raise Unkeyable("it is a tensor without plain contents", "pass a dense tensor")
    with torch.no_grad():
        flat = value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
        content = _digest(flat.view(torch.uint8).numpy().data if flat.numel() else b"")
    return kind_key(type(value), sub), *about, content


# ── code ─────────────────────────────────────────────────────────────────────────────────────


_homes: set[str] = set()  # installed packages that hold kernels: looked into all the same


def at_home(function: Any) -> None:
    """The package of a jitted function is no library to it."""
    _homes.add(str(getattr(function, "__module__", "")).partition(".")[0])
    is_library.cache_clear()


@functools.lru_cache(maxsize=1024)
def is_library(module: str | None) -> bool:
    """Whether what a module defines counts by name only."""
    top = str(module).partition(".")[0]
    if top == "tilewright" or (top in sys.stdlib_module_names and top != "__main__"):
        return True
    found = sys.modules.get(str(module)) or sys.modules.get(top)
    file = getattr(found, "__file__", None) or ""
    return top not in _homes and ("site-packages" in file or "dist-packages" in file)


def itself(kind: type) -> Key:
    """A class that counts by name: one object, whatever `==` of its metaclass says."""
    return kind if type(kind) is type else Same(kind)


def kind_key(kind: type, sub: Sub) -> Key:
    """A class as part of the key of its instances."""
    return itself(kind) if is_library(kind.__module__) else sub(kind)


def _builtin(value: Any, sub: Sub) -> Key:
    owner = getattr(value, "__self__", None)
    if owner is None or isinstance(owner, ModuleType):
        return type(value), getattr(owner, "__name__", None), value.__qualname__
    return type(value), value.__name__, sub(owner)


def _same(value: Any, sub: Sub) -> Key:
    return type(value), Same(value)


def _enum(value: Any, sub: Sub) -> Key:
    own = ((n, v) for n, v in vars(value).items() if n not in _OF_ENUMS)
    return "enum", kind_key(type(value), sub), value._name_, *named_parts(own, sub, ".{}")


_OF_ENUMS = ("_name_", "__objclass__", "_sort_order_")


def _used_up(value: Any, sub: Sub) -> Key:
    raise Unkeyable(
        f"{_a(type(value))} is used up by reading it", "pass a list or a tuple of its items"
    )


# ── objects ──────────────────────────────────────────────────────────────────────────────────


# what an instance of a builtin, or of a subclass of one, holds as that builtin
_PAYLOADS: list[tuple[type, Rule]] = [
    (bytearray, lambda v, sub: _digest(bytes(v))),
    (int, lambda v, sub: int.__int__(v)),
    (float, lambda v, sub: _bits(float.__float__(v))),
    (complex, lambda v, sub: (_bits(v.real), _bits(v.imag))),
    (str, lambda v, sub: str.__str__(v)),
    (bytes, lambda v, sub: bytes.__getitem__(v, slice(None))),
    (tuple, lambda v, sub: parts(tuple.__iter__(v), sub)),
    (list, lambda v, sub: parts(list.__iter__(v), sub)),
    (set, lambda v, sub: frozenset(parts(set.__iter__(v), sub, "{{…}}"))),
    (frozenset, lambda v, sub: frozenset(parts(frozenset.__iter__(v), sub, "{{…}}"))),
    (
        defaultdict,
        lambda v, sub: (sub(v.default_factory), *named_parts(dict.items(v), sub, "[{!r}]")),
    ),
    (OrderedDict, lambda v, sub: named_parts(OrderedDict.items(v), sub, "[{!r}]")),
    (dict, lambda v, sub: named_parts(dict.items(v), sub, "[{!r}]")),
    (np.ndarray, lambda v, sub: _array(v.view(np.ndarray), sub)[1:]),
]


def _whole(kind: type, read: Rule) -> Rule:
    """A builtin itself, by what it holds."""
    return lambda value, sub: (kind, read(value, sub))


def _object(kind: type) -> Rule:
    """By class and attributes; what an extension type hides, by what `copy` makes it from."""
    own_slots = slots(kind)
    payload = next((read for base, read in _PAYLOADS if issubclass(kind, base)), None)
    hidden = payload is None and _hides(kind)

    def rule(value: Any, sub: Sub) -> Key:
        own = getattr(value, "__dict__", None) or {}
        return (
            kind_key(kind, sub),
            payload(value, sub) if payload else None,
            named_parts([*own.items(), *held(value, own_slots)], sub, ".{}"),
            _reduced(value, sub) if hidden else None,
        )

    return rule


def slots(kind: type) -> list[tuple[str, Any]]:
    """Attributes that classes written in Python keep in slots."""
    return [
        (name, each)
        for base in kind.__mro__
        if "__slots__" in vars(base)
        for name, each in vars(base).items()
        if type(each) is MemberDescriptorType
    ]


def held(value: Any, slots: list[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    for name, slot in slots:
        try:
            yield name, slot.__get__(value)
        except AttributeError:  # not set
            continue


def _hides(kind: type) -> bool:
    """Whether instances are larger than their attributes: they hold something of C."""
    offsets = (kind.__dictoffset__, kind.__weakrefoffset__)
    words = len(slots(kind)) + sum(at > 0 for at in offsets)
    plain = object.__basicsize__ + words * struct.calcsize("P")
    return bool(kind.__itemsize__) or kind.__basicsize__ > plain


def _reduced(value: Any, sub: Sub) -> Key:
    try:
        by = copyreg.dispatch_table.get(type(value))
        made = by(value) if by else value.__reduce_ex__(4)
    except Exception:
        raise Unkeyable(
            f"{_a(type(value))} hides its contents",
            "pass the numbers, strings, tuples or arrays that the kernel needs of it",
        ) from None
    if isinstance(made, str):
        return made
    return parts((tuple(p) if isinstance(p, Iterator) else p for p in made), sub, "")


def _hooked(value: Any, sub: Sub) -> Key:
    return type(value), *parts(getattr(value, HOOK)(), sub, "")


def _a(kind: type) -> str:
    name = kind.__qualname__
    if kind.__module__ != "builtins":
        name = f"{kind.__module__}.{name}"
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# ── the table ────────────────────────────────────────────────────────────────────────────────

EXACT: dict[type, Rule] = {
    **{base: _whole(base, read) for base, read in _PAYLOADS},
    deque: lambda v, sub: (deque, v.maxlen, *parts(v, sub)),
    MappingProxyType: lambda v, sub: (
        MappingProxyType, *named_parts(v.items(), sub, "[{!r}]"),
    ),
    range: _fields("start", "stop", "step"),
    slice: _fields("start", "stop", "step"),
    memoryview: _bytes_of,
    MethodType: _fields("__func__", "__self__"),
    BuiltinFunctionType: _builtin,
    WrapperDescriptorType: _same,
    MethodDescriptorType: _same,
    MemberDescriptorType: _same,
    GetSetDescriptorType: _same,
    type(dict.__dict__["fromkeys"]): _same,
    functools.partial: _fields("func", "args", "keywords", "__dict__"),
    functools._lru_cache_wrapper: _fields("__wrapped__"),
    property: _fields("fget", "fset", "fdel"),
    staticmethod: _fields("__func__"),
    classmethod: _fields("__func__"),
    ContextVar: lambda v, sub: (ContextVar, Same(v), sub(v.get(None))),
    type(threading.Lock()): _same,
    type(threading.RLock()): _same,
}  # fmt: skip
SUBCLASSES: list[tuple[type, Rule]] = [
    (Enum, _enum),
    (np.memmap, lambda v, sub: (np.memmap, *_array(v.view(np.ndarray), sub)[1:])),
    (np.dtype, _dtype),
    (np.generic, lambda v, sub: (type(v), *_array(np.asarray(v), sub)[1:])),
    (PurePath, lambda v, sub: (type(v), str(v))),  # which keeps what it computed in slots
    (logging.Logger, _same),
    (logging.LoggerAdapter, _same),
    (Iterator, _used_up),
]
_rules: dict[int, tuple[type, Rule]] = {}


def rule_of(kind: type) -> Rule:
    """How values of a type are keyed."""
    if kind in EXACT:
        return EXACT[kind]
    found = _rules.get(id(kind))
    if found is None:
        if len(_rules) >= _KEPT:
            _rules.clear()
        found = _rules[id(kind)] = (kind, _choose(kind))
    return found[1]


_KEPT = 1024


def _choose(kind: type) -> Rule:
    if hasattr(kind, HOOK):
        return _hooked
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, getattr(torch, "Tensor", ())):
        return _tensor
    for base, rule in SUBCLASSES:
        if issubclass(kind, base):
            return rule
    return _object(kind)
