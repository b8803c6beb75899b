"""Random values and random changes of them, against the keys of kernels.

Values are built from recipes: trees of leaves that differ pairwise, many of which Python calls
equal, and of containers that hold them. Two values must have one key exactly where their recipes
are equal. Scenes put values wherever a factory reads some, change them step by step, and compare
the kernel that `tw.jit` returns with a fresh trace.
"""

from __future__ import annotations

import copy
import enum
import functools
import random
import time
import types
import zlib
from collections import OrderedDict, defaultdict, deque, namedtuple
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language
from tilewright.support.content_key import content_key

Recipe = tuple[Any, ...]
T: Any = tilewright.language


class Whole(enum.Enum):
    ONE = 1
    TWO = 2


class Real(enum.Enum):
    ONE = 1.0


class Small(enum.IntEnum):
    ONE = 1


class Bits(enum.Flag):
    A = 1
    B = 2


def _long(at: int, value: float) -> Any:
    array = np.zeros(2001)
    array[at] = value
    return array


def _add(x: Any) -> Any:
    return x + 1


def _pair(x: Any, y: Any) -> Any:
    return x, y


_NAN = np.array([0x7FF8000000000001], np.uint64).view(np.float64)
_FIELDS = np.dtype([("a", "i1"), ("b", "f8")], align=True)
# pairwise different, though many are equal to Python; each call makes its own
LEAVES: tuple[Callable[[], Any], ...] = (
    lambda: 1, lambda: 1.0, lambda: True, lambda: 1 + 0j, lambda: "1", lambda: b"1",
    lambda: 0, lambda: 0.0, lambda: -0.0, lambda: False, lambda: 0j, lambda: -0j, lambda: None,
    lambda: float("nan"), lambda: -float("nan"), lambda: float(_NAN[0]), lambda: float("inf"),
    lambda: 2**53, lambda: 2.0**53, lambda: 2**53 + 1, lambda: 0.1, lambda: 0.1 + 2**-56,
    lambda: np.float32(0), lambda: np.float32(-0.0), lambda: np.float64(0), lambda: np.float16(0),
    lambda: np.int32(1), lambda: np.int64(1), lambda: np.bool_(True), lambda: np.float32("nan"),
    lambda: np.zeros(3), lambda: -np.zeros(3), lambda: np.zeros(3, "f4"), lambda: np.zeros((3, 1)),
    lambda: np.zeros(3, "i8"), lambda: np.zeros(0), lambda: np.zeros((0, 2)),
    lambda: _long(1000, 1), lambda: _long(1000, 1 + 2**-52), lambda: _long(999, 1),
    lambda: np.zeros(2, _FIELDS),
    lambda: np.array([1, 1.0], object), lambda: np.array([1, 1], object), lambda: np.array(1.0),
    lambda: np.dtype("f4"), lambda: np.dtype(">f4"), lambda: np.float32, lambda: "float32",
    lambda: T.float32, lambda: T.dynamic("n"), lambda: T.dynamic("m"),
    lambda: Whole.ONE, lambda: Whole.TWO, lambda: Real.ONE, lambda: Small.ONE, lambda: Bits.A,
    lambda: Bits.A | Bits.B, lambda: Fraction(1), lambda: Decimal(1), lambda: Decimal("1.0"),
    lambda: range(0), lambda: range(1, 1), lambda: slice(1), lambda: slice(1.0), lambda: ...,
    lambda: frozenset({1}), lambda: frozenset({1.0}), lambda: {1}, lambda: {1.0}, lambda: {True},
    lambda: bytearray(b"1"), lambda: memoryview(b"1"), lambda: deque([1]), lambda: deque([1], 9),
    lambda: (lambda x: x + 1), lambda: (lambda x: x + 1.0), lambda: (lambda y: y + 1), lambda: _add,
    lambda: len, lambda: [].append, lambda: [1].append, lambda: np.sin, lambda: np.cos, lambda: int,
    lambda: np, lambda: functools.lru_cache(_add),
)  # fmt: skip

Pair = namedtuple("Pair", "a b")


@dataclass
class Plain:
    a: Any
    b: Any = field(repr=False, compare=False)


@dataclass(frozen=True)
class Frozen:
    a: Any
    b: Any


class Slotted:
    __slots__ = ("__hidden", "b")

    def __init__(self, a: Any, b: Any) -> None:
        self.__hidden, self.b = a, b

    def both(self) -> Any:
        return self.__hidden, self.b


class Equal:
    """Calls itself equal to anything."""

    def __init__(self, a: Any, b: Any) -> None:
        self.a, self.b = a, b

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0

    def __repr__(self) -> str:
        return "Equal()"

    def __reduce__(self) -> Any:
        return Equal, (0, 0)


class Listed(list[Any]):
    extra: Any


class Mapped(dict[Any, Any]):
    pass


def _listed(a: Any, b: Any) -> Any:
    made = Listed([a])
    made.extra = b
    return made


def _closed(a: Any, b: Any) -> Any:
    return lambda: (a, b)


def _defaulted(a: Any, b: Any) -> Any:
    def made(x: Any = a, *, y: Any = b) -> Any:
        return x, y

    return made


def _attributed(a: Any, b: Any) -> Any:
    def made() -> None: ...

    made.a, made.b = a, b  # type: ignore[attr-defined]
    return made


def _class_of(a: Any, b: Any) -> Any:
    return type("Made", (), {"a": a, "b": b, "__module__": __name__})


CONTAINERS: dict[str, Callable[[Any, Any], Any]] = {
    "tuple": lambda a, b: (a, b),
    "list": lambda a, b: [a, b],
    "nested": lambda a, b: [[a], b],
    "dict": lambda a, b: {"a": a, "b": b},
    "other order": lambda a, b: {"b": b, "a": a},
    "integer keys": lambda a, b: {0: a, 1: b},
    "float keys": lambda a, b: {0.0: a, 1.0: b},
    "ordered": lambda a, b: OrderedDict(a=a, b=b),
    "defaults": lambda a, b: defaultdict(int, a=a, b=b),
    "other defaults": lambda a, b: defaultdict(list, a=a, b=b),
    "deque": lambda a, b: deque([a, b]),
    "pair": Pair,
    "plain": Plain,
    "frozen": Frozen,
    "slots": Slotted,
    "equal": Equal,
    "listed": _listed,
    "mapped": lambda a, b: Mapped(a=a, b=b),
    "namespace": lambda a, b: types.SimpleNamespace(a=a, b=b),
    "partial": lambda a, b: functools.partial(_pair, a, y=b),
    "method": lambda a, b: Slotted(a, b).both,
    "closure": _closed,
    "function": _defaulted,
    "attributes": _attributed,
    "instance": lambda a, b: _class_of(a, b)(),
    "class": _class_of,
    "objects": lambda a, b: np.array([_Box(a), _Box(b)], object),
    "proxy": lambda a, b: types.MappingProxyType({"a": a, "b": b}),
}


@dataclass
class _Box:
    """Keeps NumPy from looking inside."""

    value: Any


def draw(rng: random.Random, depth: int = 3) -> Recipe:
    if depth == 0 or rng.random() < 0.4:
        return ("leaf", rng.randrange(len(LEAVES)))
    name = rng.choice(list(CONTAINERS))
    return (name, draw(rng, depth - 1), draw(rng, depth - 1))


def change(rng: random.Random, recipe: Recipe) -> Recipe:
    """The recipe with one thing changed, which may be what it was."""
    name, *rest = recipe
    if name == "leaf":
        return ("leaf", rng.randrange(len(LEAVES)))
    kind = rng.randrange(4)
    if kind == 0:
        return (rng.choice(list(CONTAINERS)), *rest)
    if kind == 1:
        return (name, *reversed(rest))
    at = rng.randrange(2)
    rest[at] = change(rng, rest[at])
    return (name, *rest)


def build(recipe: Recipe) -> Any:
    name, *rest = recipe
    return LEAVES[rest[0]]() if name == "leaf" else CONTAINERS[name](*map(build, rest))


def check_keys(seed: int) -> str:
    """What is wrong with the keys of a value and of a changed one."""
    rng = random.Random(seed)
    first = draw(rng)
    second = change(rng, first)
    one, other = build(first), build(second)
    key = content_key(one)
    if content_key(build(first)) != key:
        return f"{first}: another key when built again"
    if _copies(first) and content_key(copy.deepcopy(one)) != key:
        return f"{first}: another key when copied"
    if (content_key(other) == key) != (first == second):
        return f"{first} and {second}: {'one key' if first != second else 'two keys'}"
    return ""


def _copies(recipe: Recipe) -> bool:
    """Whether `deepcopy` makes the same of a value: there are none of views, and `Equal` lies."""
    name, *rest = recipe
    if name == "leaf":
        return not isinstance(LEAVES[rest[0]](), (memoryview, types.ModuleType))
    return name not in ("equal", "proxy") and all(map(_copies, rest))


# ── scenes ───────────────────────────────────────────────────────────────────────────────────


def spell(value: Any) -> str:
    """A value in full, by what a program can see of it."""
    kind = type(value).__qualname__
    inner = _inner(value)
    if inner is not None:
        return f"{kind}({','.join(map(spell, inner))})"
    if isinstance(value, (np.ndarray, np.generic)):
        array = np.asarray(value)
        return f"{kind}{array.dtype}{array.shape}{array.tolist() or ''}{_bits(array)}"
    if isinstance(value, (float, complex)):
        return f"{kind}{_bits(np.asarray(value))}"
    if isinstance(value, types.FunctionType):
        return f"{kind}{value.__code__.co_consts}{value.__code__.co_varnames}"
    return f"{kind} {getattr(value, '__name__', None) or repr(value)}"


def _bits(array: Any) -> str:
    return "" if array.dtype.names else str(array.tobytes().hex())


def _inner(value: Any) -> list[Any] | None:
    """What a value holds, if it is made by one of `CONTAINERS`."""
    own = list(getattr(value, "__dict__", {}).items()) if type(value).__module__ == __name__ else []
    match value:
        case np.ndarray() if value.dtype.hasobject:
            return [value.shape, *value.reshape(-1).tolist()]
        case Slotted():
            return list(value.both())
        case enum.Enum():
            return [value.name, value.value]
        case list() | tuple() | deque():
            return [*value, *own]
        case dict() | types.MappingProxyType():
            return [getattr(value, "default_factory", None), *value.items()]
        case functools.partial():
            return [value.args, value.keywords]
        case types.SimpleNamespace():
            return list(vars(value).items())
        case types.MethodType():
            return [value.__self__]
        case types.FunctionType() if value.__qualname__.startswith(("_closed", "_defaulted")):
            return list(value())
        case types.FunctionType() if vars(value):
            return list(vars(value).items())
        case types.BuiltinMethodType() if isinstance(value.__self__, list):
            return [value.__name__, value.__self__]
        case type() if value.__name__ == "Made":
            return [vars(value)["a"], vars(value)["b"]]
    if type(value).__name__ == "Made":
        return [type(value)]
    return own or None


GLOBAL: Any = None
HELPED: Any = None


def helper() -> str:
    return spell(HELPED)


class Scene:
    """A factory that reads values from everywhere; `steps` changes them one by one."""

    def __init__(self) -> None:
        cell: Any = None
        module = types.ModuleType("scene_config")
        module.value = None  # type: ignore[attr-defined]
        settings: Any = type("Settings", (), {"value": None, "__module__": __name__})
        held = types.SimpleNamespace(value=None)

        @tw.jit(target="interp")  # type: ignore[untyped-decorator]
        def factory(argument: Any) -> Any:
            read = [argument, cell, GLOBAL, module.value, settings.value, held]
            number = zlib.crc32(("".join(map(spell, read)) + helper()).encode())

            @T.prim_func  # type: ignore[untyped-decorator]
            def main(A: T.Tensor((1,), "int64")) -> None:  # type: ignore[valid-type]
                with T.Kernel(1, threads=32):
                    A[0] = number

            return main

        def set_cell(value: Any) -> None:
            nonlocal cell
            cell = value

        self.factory = factory
        self.argument: Any = None
        self.places: dict[str, Callable[[Any], None]] = {
            "argument": lambda v: setattr(self, "argument", v),
            "cell": set_cell,
            "global": lambda v: globals().__setitem__("GLOBAL", v),
            "global of a helper": lambda v: globals().__setitem__("HELPED", v),
            "module": lambda v: setattr(module, "value", v),
            "class": lambda v: setattr(settings, "value", v),
            "object": lambda v: setattr(held, "value", v),
        }

    def steps(self, rng: random.Random, count: int) -> Iterator[str]:
        """What each step did, and what it shows: '' where all is well."""
        recipes: dict[str, Recipe] = dict.fromkeys(self.places, ("leaf", 0))
        for _ in range(count):
            place = rng.choice(list(self.places))
            again = rng.random() < 0.2
            before = recipes[place]
            if not again:
                recipes[place] = change(rng, before) if rng.random() < 0.6 else draw(rng, 2)
            self.places[place](build(recipes[place]))
            kept = str(self.factory.compile(self.argument).ir())
            fresh = str(self.factory.prim_func(self.argument))
            if kept != fresh:
                yield f"{place}: {before} → {recipes[place]}: the kernel of an older value"


def check_scene(seed: int) -> str:
    rng = random.Random(seed)
    try:
        return next(Scene().steps(rng, 12), "")
    finally:
        globals().update(GLOBAL=None, HELPED=None)


def search(count: int, seed: int = 0, seconds: float = 1e9) -> str:
    """The first thing found; every twentieth seed is a scene."""
    end = time.monotonic() + seconds
    for each in range(seed, seed + count):
        found = check_scene(each) if each % 20 == 0 else check_keys(each)
        if found:
            return f"seed {each}: {found}"
        if time.monotonic() > end:
            break
    return ""
