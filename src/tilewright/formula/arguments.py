"""Arguments and results as people write them: arrays in tuples, lists and dictionaries."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Leaf:
    """The place of an array."""

    name: str


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def apart(
    value: Any,
    name: str,
    leaves: dict[str, Any],
    taken: Collection[str] = (),
    is_leaf: Callable[[Any], bool] = is_array,
) -> Any:
    """`value` with a `Leaf` in the place of each array, which goes to `leaves`.

    >>> leaves = {}
    >>> apart({"w": np.ones(2), "n": [3]}, "p", leaves), list(leaves)
    ({'w': Leaf(name='p_w'), 'n': [3]}, ['p_w'])
    """
    if is_leaf(value):
        name = "".join(c if c.isalnum() else "_" for c in name)
        while name in leaves or name in taken:
            name += "_"
        leaves[name] = np.asarray(value) if isinstance(value, np.generic) else value
        return Leaf(name)
    if isinstance(value, dict):
        return {k: apart(v, f"{name}_{k}", leaves, taken, is_leaf) for k, v in value.items()}
    if isinstance(value, (tuple, list)):
        each = [apart(v, f"{name}_{n}", leaves, taken, is_leaf) for n, v in enumerate(value)]
        return _like(value, each)
    return value


def together(tree: Any, leaves: Mapping[str, Any]) -> Any:
    """What was taken apart, with other arrays."""
    if isinstance(tree, Leaf):
        return leaves[tree.name]
    if isinstance(tree, dict):
        return {k: together(v, leaves) for k, v in tree.items()}
    if isinstance(tree, (tuple, list)):
        return _like(tree, [together(v, leaves) for v in tree])
    return tree


def leaves(tree: Any) -> list[Leaf]:
    """The leaves of what was taken apart, in order."""
    found: dict[str, Any] = {}
    apart(tree, "", found, is_leaf=lambda x: isinstance(x, Leaf))
    return [*found.values()]


def _like(value: Any, each: list[Any]) -> Any:
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*each)
    return tuple(each) if isinstance(value, tuple) else each


@dataclass(frozen=True)
class Call:
    """The arguments of a call, by name, without their arrays."""

    signature: inspect.Signature
    trees: dict[str, Any]

    def __call__(self, arrays: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """How the function is called with these arrays."""
        own = {n: t for n, t in self.trees.items() if n in self.signature.parameters}
        given = {n: together(tree, arrays) for n, tree in own.items()}
        bound = inspect.BoundArguments(self.signature, given)
        return bound.args, bound.kwargs
