"""Products of matrices and their kin: one fold by a sum over the depth, of products of elements.

Operands are multiplied in the compute type: which of them a target rounds is decided, and said,
by a later stage.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from operator import mul
from typing import Any

from tilewright.formula.front.promotion import compute_type, result_type
from tilewright.formula.front.values import (
    OPERATIONS,
    Value,
    array_of,
    axis_of,
    broadcast_at,
    broadcast_shapes,
    current,
    define,
    paired,
    same,
)
from tilewright.ir.core import *
from tilewright.ir.formula import vars_of
from tilewright.support.errors import CompileError

_LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


def _contraction(word: str, operands: list[Value], terms: list[str], result: str) -> Value:
    """The sum over the letters that `result` does not have, of the product of all operands."""
    extents: dict[str, Any] = {}
    for x, letters in zip(operands, terms, strict=True):
        for letter, n in zip(letters, x.shape, strict=True):
            known = extents.setdefault(letter, n)
            if same(known, 1):
                extents[letter] = n
            elif not (same(n, 1) or same(n, known)):
                _mismatch(word, operands, f"sizes {known} and {n}")
    kind = result_type(*operands)
    if kind.is_bool:
        kind = INT32
    depth = [letter for letter in extents if letter not in result]
    over = current().axes([extents[letter] for letter in depth])

    def elements(new: tuple[Expr, ...]) -> Expr:
        index = dict(zip((*result, *depth), (*new, *vars_of(over)), strict=True))
        factors = [
            cast(broadcast_at(x, tuple(index[a] for a in letters)), compute_type(kind))
            for x, letters in zip(operands, terms, strict=True)
        ]
        return reduce(mul, factors)

    shape = tuple(extents[letter] for letter in result)
    return define(word, shape, elements, kind, monoid="sum" if over else "", over=over)


def _mismatch(word: str, operands: list[Value], got: str) -> None:
    shapes = " and ".join(str(x.shape) for x in operands)
    raise CompileError(
        f"{word} of shapes {shapes} that do not fit", got=got,
        fix="transpose one of them: tm.matrix_transpose(x), x.mT",
    )  # fmt: skip


def matmul(x1: Any, x2: Any, /) -> Value:
    """The product of matrices, or of stacks of them; also `x1 @ x2`.

    >>> from tilewright.formula.front.trace import trace
    >>> print(trace(lambda a, b: a @ b, [("a", (4, 8), "bfloat16"), ("b", (8, 2), "bfloat16")]))
    formula formula(a: bfloat16[4, 8], b: bfloat16[8, 2]) -> out
        matmul[i < 4, j < 2]: float32 = sum{k < 8} float32(a[i, k]) * float32(b[k, j])
        out[i1 < 4, j1 < 2]: bfloat16 = bfloat16(matmul[i1, j1])
    """
    a, b = array_of(x1, "matmul"), array_of(x2, "matmul")
    if not a.ndim or not b.ndim:
        raise CompileError("matmul takes no numbers", fix="multiply by a number with *")
    left = "YX"[-min(a.ndim, 2) :]
    right = "XZ"[: min(b.ndim, 2)]
    depths = a.shape[-1], b.shape[-2 if b.ndim > 1 else 0]
    if not same(*depths):
        _mismatch("matmul", [a, b], f"{depths[0]} columns and {depths[1]} rows")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    letters = _LETTERS[: len(batch)]
    terms = [letters[len(letters) - max(x.ndim - 2, 0) :] for x in (a, b)]
    result = letters + left[:-1] + right[1:]
    return _contraction("matmul", [a, b], [terms[0] + left, terms[1] + right], result)


def vecdot(x1: Any, x2: Any, /, *, axis: int = -1) -> Value:
    """The sum of the products of elements along `axis`."""
    a, b = array_of(x1, "vecdot"), array_of(x2, "vecdot")
    if axis >= 0:
        raise CompileError("the axis of vecdot is counted from the end", fix="write axis=-1")
    for x in (a, b):
        axis_of(axis, x.ndim)
    if not same(a.shape[axis], b.shape[axis]):
        _mismatch("vecdot", [a, b], f"sizes {a.shape[axis]} and {b.shape[axis]}")
    ndim = len(broadcast_shapes(a.shape, b.shape))
    letters = _LETTERS[:ndim]
    result = letters[: ndim + axis] + letters[ndim + axis + 1 :]
    return _contraction("vecdot", [a, b], [letters[ndim - x.ndim :] for x in (a, b)], result)


def tensordot(x1: Any, x2: Any, /, *, axes: Any = 2) -> Value:
    """The sum over the given axes of both; a number means the last ones and the first ones."""
    a, b = array_of(x1, "tensordot"), array_of(x2, "tensordot")
    if isinstance(axes, int):
        pairs = [(a.ndim - axes + d, d) for d in range(axes)]
    else:
        pairs = paired(axes[0], axes[1], "the axes of tensordot")
    pairs = [(axis_of(i, a.ndim), axis_of(j, b.ndim)) for i, j in pairs]
    left, right = list(_LETTERS[: a.ndim]), list(_LETTERS[a.ndim : a.ndim + b.ndim])
    for i, j in pairs:
        if not same(a.shape[i], b.shape[j]):
            _mismatch("tensordot", [a, b], f"axes {i} and {j}: {a.shape[i]} and {b.shape[j]}")
        right[j] = left[i]
    kept = [c for d, c in enumerate(left) if d not in [i for i, _ in pairs]]
    kept += [c for d, c in enumerate(right) if d not in [j for _, j in pairs]]
    terms = ["".join(left), "".join(right)]
    return _contraction("tensordot", [a, b], terms, "".join(kept))


def outer(x1: Any, x2: Any, /) -> Value:
    """The products of each element of one vector with each of the other."""
    return tensordot(x1, x2, axes=0)


def einsum(subscripts: str, *operands: Any) -> Value:
    """Einstein's sum, as NumPy writes it: letters of the result are kept, others are summed.

    >>> from tilewright.formula.front.trace import trace
    >>> trace(lambda x: einsum("ii->", x), [("x", (3, 3), "float32")]).arrays[0].monoid
    'sum'
    """
    values = [array_of(x, "einsum") for x in operands]
    terms, result = _parsed(subscripts, values)
    return _contraction("einsum", values, terms, result)


def _parsed(subscripts: str, values: list[Value]) -> tuple[list[str], str]:
    """The letters of each operand and of the result; an ellipsis becomes letters nobody uses."""
    text = subscripts.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    terms = inputs.split(",")
    if len(terms) != len(values):
        _wrong(subscripts, f"{len(terms)} terms for {len(values)} arrays")
    unused = [c for c in reversed(_LETTERS) if c not in text]
    counts = [_unnamed(term, x, subscripts) for term, x in zip(terms, values, strict=True)]
    dots = "".join(unused[: max(counts)])[::-1]
    terms = [
        term.replace("...", dots[len(dots) - count :])
        for term, count in zip(terms, counts, strict=True)
    ]
    if arrow:
        result = result.replace("...", dots)
    else:
        often = Counter("".join(t.translate(dict.fromkeys(map(ord, dots))) for t in terms))
        result = dots + "".join(sorted(c for c, n in often.items() if n == 1))
    known = set("".join(terms))
    if len(set(result)) != len(result) or not set(result) <= known or not known <= set(_LETTERS):
        _wrong(subscripts, f"the result {result!r}")
    return terms, result


def _unnamed(term: str, x: Value, subscripts: str) -> int:
    """How many axes an ellipsis stands for."""
    named = len(term.replace("...", ""))
    rest = x.ndim - named
    if rest < 0 or (rest and "..." not in term):
        _wrong(subscripts, f"{term!r} for an array of shape {x.shape}")
    return rest


def _wrong(subscripts: str, got: str) -> None:
    raise CompileError(
        f"einsum does not fit its arrays: {subscripts!r}", got=got,
        fix='a letter per axis of each array, and those of the result: "ij,jk->ik"',
    )  # fmt: skip


OPERATIONS["matmul"] = matmul
