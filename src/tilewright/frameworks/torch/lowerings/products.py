"""Products of matrices."""

from __future__ import annotations

from typing import Any

from tilewright.frameworks.torch.lowerings.table import PRODUCT, lower
from tilewright.frameworks.torch.lowerings.words import tm

lower("mm.default bmm.default", PRODUCT)(tm.matmul)


@lower("addmm.default addmv.default", PRODUCT)
def sum_and_product(x: Any, a: Any, b: Any, *, beta: Any = 1, alpha: Any = 1) -> Any:
    if not x.dtype.is_float:
        alpha, beta = int(alpha), int(beta)
    found = tm.matmul(a, b)
    found = found if alpha == 1 else found * alpha
    if beta == 0:  # then a NaN of x is none of the result
        return found
    return found + (x if beta == 1 else x * beta)
