"""One object for equal expressions: `is`, `==` and dictionary lookups agree and cost nothing."""

from __future__ import annotations

from typing import Any
from weakref import _remove_dead_weakref, ref  # type: ignore[attr-defined]

from tilewright.support.forks import fork_lock


class _Kept(ref[Any]):
    """An expression that exists, for as long as something else holds it."""

    __slots__ = ("key",)
    key: Any


# by what they are made of; asked a hundred thousand times in a compilation, so no
# WeakValueDictionary, whose methods are Python's
_pool: dict[Any, _Kept] = {}


def _forget(
    gone: _Kept, pool: dict[Any, _Kept] = _pool, forget: Any = _remove_dead_weakref
) -> None:
    forget(pool, gone.key)  # unless another one has come since


class Interned(type):
    """Constructing an equal expression again returns the object that exists."""

    # of two threads that construct the same, one would keep an object of its own
    _lock = fork_lock()

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        # one key however it is written: Var("i"), Var("i", INT32) and Var("i", dtype=INT32)
        names: tuple[str, ...] = cls.__match_args__  # type: ignore[attr-defined]
        if len(args) < len(names):
            for name in names[len(args) :]:
                if name not in kwargs and not hasattr(cls, name):
                    break
                args += (kwargs.pop(name) if name in kwargs else getattr(cls, name),)
        first = args[0]
        kind = type(first)
        # types separate 1, 1.0 and True, texts -0.0 from 0.0, which compare equal; numbers are the
        # first thing that an expression is made of, if at all
        if kind is int:
            key = (cls, int, *args)
        elif kind is not str and isinstance(first, (bool, int, float)):
            if first != first:
                args = (_NAN, *args[1:])
            key = (cls, type(args[0]), repr(args[0]), *args[1:])
        else:
            key = (cls, *args)
        known = _pool.get(key)
        found = known() if known is not None else None
        if found is None:
            with Interned._lock:
                known = _pool.get(key)
                found = known() if known is not None else None
                if found is None:
                    if kwargs or len(args) != len(names):
                        raise TypeError(f"{cls.__name__} takes {', '.join(names)}")
                    found = object.__new__(cls)  # type: ignore[arg-type]
                    found.__dict__.update(zip(names, args, strict=True))
                    known = _Kept(found, _forget)
                    known.key = key
                    _pool[key] = known
        return found


# as text and on every target a constant NaN has neither sign nor payload: which of them came first
# must not decide
_NAN = float("nan")
