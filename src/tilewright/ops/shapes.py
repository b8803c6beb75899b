"""Shapes and types of an op's arguments, as one line of text that is documentation and check.

    "input: float[..., n], weight: input[n], *size -> input[..., n]"

| text | means |
|---|---|
| `x: float[m, n]` | any float type; `m` and `n` are the same number wherever they stand |
| `w: x[n]` | the type of `x` |
| `y: bfloat16\\|float16[m]` | one of these types |
| `x: float[..., n]` | any axes in front; `...` is the same wherever it stands |
| `w: x[...?, n]` | those axes in front, or none |
| `x: float[*size]` | the axes that the argument `size` lists |
| `x: float[n\\|1]` | `n`, or 1 |
| `x: float[2 * n + 1]` | a number that follows from others |
| `-> x[n]`, `-> dtype[n]` | a result of the type of `x`, or of that which `dtype` names |
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tilewright.support.errors import LaunchError

KINDS = {
    "float": ("float16", "bfloat16", "float32", "float64"),
    "int": ("int32", "int64"),
    "float8": ("float8_e4m3fn", "float8_e5m2"),
}
_PIECE = re.compile(r"(?:(\w+): )?([\w|]+)\[((?:[^\[\]]|\[\w+\])*)\]")


def type_name(array: Any) -> str:
    """
    >>> import numpy as np
    >>> type_name(np.ones(2))
    'float64'
    """
    return str(array.dtype).rpartition(".")[2]


@dataclass(frozen=True)
class Outline:
    """An array of a signature: its name, the types that it may have, and its axes."""

    name: str
    types: str
    axes: tuple[str, ...]

    @property
    def allowed(self) -> tuple[str, ...]:
        return tuple(t for word in self.types.split("|") for t in KINDS.get(word, (word,)))

    def __str__(self) -> str:
        return f"{self.types}[{', '.join(self.axes)}]"


@dataclass(frozen=True)
class Signature:
    """
    >>> found = Signature.read("x: float[..., n], w: x[n] -> float32[..., 2 * n]")
    >>> found.results({"x": np.ones((5, 3)), "w": np.ones(3)})
    [((5, 6), 'float32')]
    >>> found.results({"x": np.ones((5, 3)), "w": np.ones(4)})
    Traceback (most recent call last):
    tilewright.support.errors.LaunchError: w has 4 elements along axis 0, where n is 3
      expected: w: x[n]
      got:      w: float64[4], with x: float64[5, 3]
      fix:      pass w in a shape that fits
    """

    text: str
    given: tuple[Outline, ...]
    made: tuple[Outline, ...]

    @staticmethod
    def read(text: str) -> Signature:
        given, made = (
            tuple(
                Outline(name, types, tuple(a for a in re.split(r",\s*", axes) if a))
                for name, types, axes in _PIECE.findall(side)
            )
            for side in text.split("->")
        )
        return Signature(text, given, made)

    @cached_property
    def listed(self) -> tuple[str, ...]:
        """The arguments that list axes."""
        axes = [axis for o in self.given for axis in o.axes]
        return tuple(sorted({axis[1:] for axis in axes if axis.startswith("*")}))

    @property
    def arrays(self) -> tuple[str, ...]:
        return tuple(o.name for o in self.given)

    def results(self, values: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], str]]:
        """Shapes and types of what comes out for these arguments, which are checked. Sizes may be
        symbols."""
        sizes: dict[str, Any] = {}
        for outline in self.given:
            if values.get(outline.name) is not None:
                self._check_type(outline, values)
                self._match(outline, values, sizes)
        return [(self._made(o, values, sizes), self._type(o, values)) for o in self.made]

    def _type(self, outline: Outline, values: Mapping[str, Any]) -> str:
        """The type of a result: that of an argument, or its own."""
        same = values.get(outline.types, outline.types)
        return same if isinstance(same, str) else type_name(same)

    def _check_type(self, outline: Outline, values: Mapping[str, Any]) -> None:
        array, like = values[outline.name], values.get(outline.types)
        allowed = (type_name(like),) if like is not None else outline.allowed
        if type_name(array) not in allowed:
            one = f"the type of {outline.types}, " if like is not None else ""
            raise LaunchError(
                f"{outline.name} has elements of {type_name(array)}",
                expected=one + " or ".join(allowed),
                got=_shown(outline.name, array),
                fix=f"convert {outline.name} to {allowed[0]} before the call",
            )

    def _match(self, outline: Outline, values: Mapping[str, Any], sizes: dict[str, Any]) -> None:
        shape = tuple(values[outline.name].shape)
        axes = _spliced(outline.axes, values)
        front, rest = (axes[0], axes[1:]) if axes[:1] in (["..."], ["...?"]) else ("", axes)
        lead = len(shape) - len(rest)
        if lead < 0 or (lead and not front):
            raise self._wrong(outline, values, f"{outline.name} has {len(shape)} axes")
        if front and (lead or front == "..."):
            known = sizes.setdefault("...", shape[:lead])
            if len(known) != lead or any(a != b for a, b in zip(known, shape, strict=False)):
                what = f"{outline.name} has the axes {_list(shape[:lead])} in front"
                raise self._wrong(outline, values, f"{what}, where others have {_list(known)}")
        for place, (axis, came) in enumerate(zip(rest, shape[lead:], strict=True), lead):
            name, _, other = axis.partition("|") if isinstance(axis, str) else (axis, "", "")
            if other and came == int(other):
                continue
            is_name = isinstance(name, str) and name.isidentifier()
            want = sizes.setdefault(name, came) if is_name else _number(name, sizes)
            if want != came:
                what = f"{outline.name} has {came} elements along axis {place}"
                why = f"where {name} is {want}" if str(name) != str(want) else f"not {want}"
                raise self._wrong(outline, values, f"{what}, {why}")

    def _made(
        self, outline: Outline, values: Mapping[str, Any], sizes: Mapping[str, Any]
    ) -> tuple[Any, ...]:
        found: list[Any] = []
        for axis in _spliced(outline.axes, values):
            found += sizes["..."] if axis == "..." else [_number(axis, {**values, **sizes})]
        return tuple(found)

    def _wrong(self, outline: Outline, values: Mapping[str, Any], message: str) -> LaunchError:
        before = self.given[: self.given.index(outline)]
        others = [_shown(o.name, a) for o in before if (a := values.get(o.name)) is not None]
        came = _shown(outline.name, values[outline.name])
        return LaunchError(
            message,
            expected=f"{outline.name}: {outline}",
            got=came + (f", with {', '.join(others)}" if others else ""),
            fix=f"pass {outline.name} in a shape that fits",
        )


def _number(size: Any, sizes: Mapping[str, Any]) -> Any:
    """A size, or one that others give: our own text, such as `2 * n`."""
    return eval(size, {"__builtins__": {}}, dict(sizes)) if isinstance(size, str) else size


def _spliced(axes: Sequence[str], values: Mapping[str, Any]) -> list[Any]:
    """Axes, and the numbers of those that an argument lists."""
    found: list[Any] = []
    for axis in axes:
        found += values[axis[1:]] if axis.startswith("*") else [axis]
    return found


def _list(shape: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _shown(name: str, array: Any) -> str:
    return f"{name}: {type_name(array)}{_list(array.shape)}"
