"""Losses of classes."""

from __future__ import annotations

import tilewright.math as tm
from tilewright.ops.op import Array, op
from tilewright.support.errors import CompileError


def _loss(logits: Array, target: Array, ignore_index: int, smoothing: float) -> Array:
    """One number for each row. The logit of the target is found by comparing: so a product, of
    which rows are logits, need not lie in memory."""
    at = tm.indices(logits, -1)
    chosen = tm.sum(tm.where(at == target[:, None], logits, 0.0), axis=-1)
    loss = tm.logsumexp(logits, axis=-1) - (1.0 - smoothing) * chosen
    if smoothing:
        loss = loss - smoothing * tm.mean(logits, axis=-1)
    return tm.where(target == ignore_index, 0.0, loss)


def _reduced(loss: Array, target: Array, ignore_index: int, reduction: str, like: Array) -> Array:
    if reduction not in ("mean", "sum"):
        raise CompileError(
            f"no reduction is called {reduction!r}",
            expected='"mean" or "sum"',
            fix="name one of these; cross_entropy_rows gives a loss for each row",
            code="arguments",
        )
    total = tm.sum(loss)
    if reduction == "mean":
        total = total / tm.sum(tm.where(target == ignore_index, 0.0, 1.0))
    return tm.astype(total, like.dtype)


@op(
    "input: float[n, c], target: int[n] -> input[n]",
    formula="log Σ exp x − x[target]",
    wrt=["input"],
    error=8,
)
def cross_entropy_rows(
    input: Array, target: Array, ignore_index: int = -100, label_smoothing: float = 0.0
) -> Array:
    """`cross_entropy` without a reduction: a loss for each row.

    >>> cross_entropy_rows(np.zeros((2, 4), np.float32), np.array([1, -100])).round().tolist()
    [1.0, 0.0]
    """
    return tm.astype(_loss(input, target, ignore_index, label_smoothing), input.dtype)


@op(
    "input: float[n, c], target: int[n] -> input[]",
    formula="mean over rows of log Σ exp x − x[target]",
    wrt=["input"],
    error=8,
)
def cross_entropy(
    input: Array,
    target: Array,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """The loss of classes, as `torch.nn.functional.cross_entropy` with logits [rows, classes].

    Rows whose target is `ignore_index` do not count. `reduction` is "mean" or "sum". A target that
    is no class has the logit 0.

    >>> float(cross_entropy(np.zeros((2, 4), np.float32), np.array([1, -100]))).__round__(4)
    1.3863
    """
    loss = _loss(input, target, ignore_index, label_smoothing)
    return _reduced(loss, target, ignore_index, reduction, input)


@op(
    "input: float[n, k], weight: input[c, k], target: int[n] -> input[]",
    formula="cross_entropy(input · weightᵀ, target)",
    wrt=["input", "weight"],
    error=16,
)
def linear_cross_entropy(
    input: Array,
    weight: Array,
    target: Array,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Array:
    """`cross_entropy` of a product: the logits of all classes never lie in memory.

    >>> x, w = np.eye(2, dtype=np.float32), np.zeros((4, 2), np.float32)
    >>> float(linear_cross_entropy(x, w, np.array([1, 3]))).__round__(4)
    1.3863
    """
    logits = input @ tm.matrix_transpose(weight)
    loss = _loss(logits, target, ignore_index, label_smoothing)
    return _reduced(loss, target, ignore_index, reduction, input)
