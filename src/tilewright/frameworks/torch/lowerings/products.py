"""Products of matrices."""

from __future__ import annotations

from typing import Any

from tilewright.frameworks.torch.lowerings.table import PRODUCT, lower
from tilewright.frameworks.torch.lowerings.words import tm


@lower("mm.default bmm.default mv.default dot.default", PRODUCT)
def product(a: Any, b: Any) -> Any:
    return tm.matmul(a, b)


@lower("addmm.default baddbmm.default addmv.default", PRODUCT)
def sum_and_product(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if not x.dtype.is_float:
        alpha, beta = int(alpha), int(beta)
    found = tm.matmul(a, b)
    found = found if alpha == 1 else found * alpha
    if beta == 0:  # then a NaN of x is none of the result
        return found
    return found + (x if beta == 1 else x * beta)
