"""The words that lowerings are written in: the functions of `tilewright.math`, by their names."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tilewright.formula.front import indexing, monoids, products, reductions, selection, shapes
from tilewright.formula.front.elementwise import FUNCTIONS_BY_NAME, clip, gelu, where
from tilewright.formula.front.values import astype

tm: Any = SimpleNamespace(
    **FUNCTIONS_BY_NAME,
    clip=clip,
    gelu=gelu,
    where=where,
    astype=astype,
    indices=indexing.indices,
    item=indexing.getitem,  # x[key]
    take=indexing.take,
    take_along_axis=indexing.take_along_axis,
    einsum=products.einsum,
    matmul=products.matmul,
    top_k=selection.top_k,
    monoid=monoids.monoid,
    reduce=monoids.reduce,
    **{
        name: getattr(reductions, name)
        for name in (
            "all any argmax argmin array cumulative_prod cumulative_sum log_softmax logsumexp max "
            "mean min prod softmax sum var"
        ).split()
    },
    **{
        name: getattr(shapes, name)
        for name in (
            "arange broadcast_to concat expand_dims eye flip full full_like matrix_transpose "
            "permute_dims repeat reshape roll squeeze stack tile tril triu unstack zeros zeros_like"
        ).split()
    },
)
