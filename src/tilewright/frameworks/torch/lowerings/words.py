"""The words that lowerings are written in: the functions of `tilewright.math`, by their names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.formula.front import (
    elementwise,
    indexing,
    monoids,
    products,
    reductions,
    selection,
    shapes,
    values,
)

tm: Any = SimpleNamespace()
for _file in (values, elementwise, shapes, products, selection, indexing, monoids, reductions):
    vars(tm).update(vars(_file))
vars(tm).update(elementwise.FUNCTIONS_BY_NAME, item=indexing.getitem)  # x[key]
