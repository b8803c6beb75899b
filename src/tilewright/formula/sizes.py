"""Sizes that only calls know: which axes of which arguments have them, and what is promised."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from tilewright.ir.core import *
from tilewright.ir.formula import Extent
from tilewright.lang.types import Size
from tilewright.lang.types import dynamic as declared
from tilewright.support.errors import CompileError

_PLAIN = {bool, int, float, str, type(None)}


@dataclass(frozen=True)
class Sizes:
    """`axes`: the size of an axis of an argument, by both; `dims`: contracts, by name."""

    axes: dict[tuple[str, int], Var]
    dims: dict[str, Dim]

    @cached_property
    def by_argument(self) -> dict[str, tuple[int, ...]]:
        """The axes, by argument."""
        return {name: tuple(d for of, d in self.axes if of == name) for name, _ in self.axes}

    @staticmethod
    def of(dynamic: Mapping[str, Mapping[int, Any]], parameters: Collection[str]) -> Sizes:
        """
        >>> found = Sizes.of({"x": {0: "n"}}, ["x"])
        >>> found.named({"x": (3, 4)})
        {'x': (n, 4)}
        """
        axes: dict[tuple[str, int], Var] = {}
        dims: dict[str, Dim] = {}
        for name, given in dynamic.items():
            if name not in parameters or not isinstance(given, Mapping):
                raise _wrong(f"dynamic= names {name!r}", f"parameters {', '.join(parameters)}")
            for axis, size in given.items():
                dim = _dim(size)
                if dim.var.name in parameters:
                    raise _wrong(f"the size {dim.var.name!r} is also a parameter", repr(dynamic))
                known = dims.setdefault(dim.var.name, dim)
                if not isinstance(size, str):  # a name stands for the contract given elsewhere
                    dims[dim.var.name] = dim
                    if known not in (dim, _dim(dim.var.name)):
                        raise _wrong(f"{dim.var.name} has two contracts", repr(dynamic))
                axes[name, axis] = dim.var
        return Sizes(axes, dims)

    def kind(self, name: str, given: Any) -> tuple[Any, ...] | None:
        """All that a program knows of an argument; None where sizes are numbers in this call."""
        shape = getattr(given, "shape", None)
        if shape is None:
            is_plain = type(given) in _PLAIN or (
                type(given) is tuple and all(type(each) in _PLAIN for each in given)
            )
            return (type(given), repr(given)) if is_plain else None
        if self.axes:
            if 0 in shape:
                return None
            if name in self.by_argument:
                left = list(shape)
                for axis in self.by_argument[name]:
                    if -len(left) <= axis < len(left):
                        left[axis] = None
                shape = tuple(left)
        return type(given), shape, getattr(given, "dtype", None)

    def named(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[Extent, ...]]:
        """The shapes with the names of sizes; as they are where an axis is empty."""
        if not self.axes or any(0 in shape for shape in shapes.values()):
            return dict(shapes)
        found: dict[str, list[Extent]] = {name: list(shape) for name, shape in shapes.items()}
        for (name, axis), var in self.axes.items():
            if name not in found or not -len(found[name]) <= axis < len(found[name]):
                raise _wrong(f"{name} has no axis {axis} for the size {var.name}", str(shapes))
            found[name][axis] = var
        return {name: tuple(shape) for name, shape in found.items()}


def _dim(size: Any) -> Dim:
    size = declared(size) if isinstance(size, str) else size
    if not isinstance(size, Size) or not isinstance(size.expr, Var):
        raise _wrong("a size of dynamic= is a name, or T.dynamic(name, min=…, max=…)", repr(size))
    dim: Dim = size.dims[0]
    return replace(dim, min=max(1, dim.min))  # empty arrays need no kernel


def _wrong(what: str, got: str) -> CompileError:
    return CompileError(
        what, got=got[:120], code="arguments",
        fix='write axes of arguments and names of their sizes, dynamic={"x": {0: "n"}}',
    )  # fmt: skip
