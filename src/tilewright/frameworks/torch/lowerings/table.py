"""One record for each ATen operator: the function that says it as a formula."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

Say: TypeAlias = "Callable[..., Any]"

# what groups need to know of an operator
VIEW = "view"  # the same elements at other places
POINTWISE = "pointwise"  # elements of elements
CONSTANT = "constant"  # elements of no array
GATHER = "gather"  # elements of its first argument, at places that data say
MOVED = "moved"  # elements of its first argument, at other places than folds read
FOLD = "fold"  # along axes of its first argument
PRODUCT = "product"  # of matrices, convolutions
ALONE = "alone"  # several folds, or reads by data: a formula of its own


@dataclass(frozen=True)
class Lowering:
    """`say` takes the operator's arguments, arrays of a formula in place of tensors; it has a
    parameter `out` if it needs the type and shape that PyTorch says of the result."""

    say: Say
    kind: str
    wants_out: bool


LOWERINGS: dict[str, Lowering] = {}


def lower(names: str, kind: str) -> Callable[[Say], Say]:
    """Enter a function for operators, `"aten.sum.dim_IntList aten.sum.default"`."""

    def enter(say: Say) -> Say:
        wants = "out" in inspect.signature(say).parameters
        for name in names.split():
            LOWERINGS[name if name.startswith(("prims.", "tilewright.")) else f"aten.{name}"] = (
                Lowering(say, kind, wants)
            )
        return say

    return enter


def lower_all(kind: str, forms: dict[str, Say]) -> None:
    """Enter each function for its operators."""
    for names, say in forms.items():
        lower(names, kind)(say)
