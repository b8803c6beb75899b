"""Meaning of tile operations on values: products, reductions, scans, atomics' arithmetic.

These are functions of arrays; `ops.py` fetches and stores the tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tilewright.ir.dtype import DTYPES, DType
from tilewright.ir.op import Gemm, Reduce
from tilewright.machine.memory import Array
from tilewright.machine.numbers import bin_fn, cast_fn, computes_in, narrow_fn, round_tf32, wrap_int
from tilewright.support.errors import RunError


def matrix(tile: Array, what: str) -> Array:
    """The tile as a matrix: leading unit extents dropped."""
    if tile.ndim < 2 or any(n != 1 for n in tile.shape[:-2]):
        squeezed = tuple(n for n in tile.shape if n != 1)
        if len(squeezed) != 2:
            raise RunError(f"gemm needs a matrix for {what}", got=f"a tile of shape {tile.shape}")
        return np.reshape(tile, squeezed)
    return np.reshape(tile, tile.shape[-2:])


def _matmul(x: Array, y: Array) -> Array:
    """x @ y in row blocks that BLAS does on one thread: waking a pool costs more than a tile
    (22 ms against 0.1 ms for 128×32×128 on two busy cores)."""
    rows = max(1 << 18, 8 * y.size) // max(y.size, 1)
    if x.ndim > 2 or x.shape[0] <= rows:
        return np.asarray(x @ y)
    return np.concatenate([x[k : k + rows] @ y for k in range(0, x.shape[0], rows)])


def product(op: Gemm, a: Array, b: Array, c: Array, types: tuple[DType, DType, DType]) -> Array:
    """c + op(a) · op(b), accumulated in c's type; all matrices."""
    a = a.T if op.transpose_a else a
    b = b.T if op.transpose_b else b
    return multiplied(a, b, c, types, tf32=op.precision == "tf32")


def multiplied(
    a: Array, b: Array, c: Array, types: tuple[DType, DType, DType], *, tf32: bool = False
) -> Array:
    """c + a · b, accumulated in c's type; of matrices, or of rows of small ones."""
    acc = types[2]
    if a.shape[-1] != b.shape[-2] or c.shape != (*a.shape[:-1], b.shape[-1]):
        raise RunError(
            "the shapes of a gemm do not fit",
            expected="M×K · K×N -> M×N",
            got=f"{a.shape} · {b.shape} -> {c.shape}",
        )
    if acc.is_int:
        # exact in float64: |sum| < 2^53 for 8-bit factors at any K that fits in memory
        if all(t.bits <= 16 for t in types[:2]):
            exact = _matmul(a.astype(np.float64), b.astype(np.float64)).astype(np.int64)
        else:
            exact = a.astype(np.int64) @ b.astype(np.int64)
        return np.asarray(wrap_int(c.astype(np.int64) + exact, acc))
    wide = np.float64 if acc.bits == 64 else np.float32
    x, y = a.astype(wide), b.astype(wide)
    if tf32 or "tfloat32" in (types[0].name, types[1].name):
        x, y = round_tf32(x), round_tf32(y)
    total = c.astype(wide) + _matmul(x, y)
    if acc.bits > 16:
        return np.asarray(total.astype(acc.numpy))
    return np.asarray(cast_fn(DTYPES["float32"], acc)(total))


def _truth(x: Array) -> Array:
    return np.asarray(x != 0)


# what folds two elements, what is done to each before, and what to begin with
_REDUCE: dict[str, tuple[np.ufunc, Callable[[Array], Array] | None, float | None]] = {
    "sum": (np.add, None, None), "abssum": (np.add, np.abs, None),
    "max": (np.maximum, None, None), "absmax": (np.maximum, np.abs, None),
    "min": (np.minimum, None, None), "max_num": (np.fmax, None, -np.inf),
    "min_num": (np.fmin, None, np.inf), "absmax_num": (np.fmax, np.abs, 0),
    "and": (np.bitwise_and, None, None), "or": (np.bitwise_or, None, None),
    "xor": (np.bitwise_xor, None, None), "any": (np.logical_or, _truth, None),
    "all": (np.logical_and, _truth, None),
}  # fmt: skip


def _accumulates_in(src: DType, dst: DType) -> Any:
    """Sums run in the wider of the two types, ≤ 16-bit floats in float32."""
    if not (src.is_float or dst.is_float):
        return np.dtype(np.int64)
    return np.promote_types(computes_in(src), computes_in(dst))


def reduced(op: Reduce, tile: Array, old: Array | None, src: DType, dst: DType, axis: int) -> Array:
    """The reduction of `tile` along `axis`, folded into `old` when given; of type `dst`."""
    if op.op not in _REDUCE:
        raise RunError(f"unknown reduction {op.op!r}", expected=", ".join(_REDUCE))
    bits = op.op in ("and", "or", "xor")
    wide = np.dtype(np.int64) if bits else _accumulates_in(src, dst)
    unsigned = not dst.is_float and dst.kind == "uint" and dst.bits == 64
    wide = np.dtype(np.uint64) if unsigned else wide
    fold, each, start = _REDUCE[op.op]
    tile = _widen(tile, src, wide)
    tile = tile if each is None else each(tile)
    more: dict[str, Any] = {} if start is None else {"initial": start}
    value = fold.reduce(tile, axis=axis, **more)
    if old is not None:
        value = fold(value.reshape(old.shape), _widen(old, dst, wide))
    return _shrink(value, dst)


def _widen(tile: Array, dtype: DType, wide: Any) -> Array:
    return tile.astype(computes_in(dtype)).astype(wide)


def _shrink(value: Array, dtype: DType) -> Array:
    if dtype.is_bool:
        return np.asarray(value != 0)
    if not dtype.is_float:
        source = DTYPES["int64"] if value.dtype.kind in "iub" else DTYPES["float64"]
        if value.dtype.kind in "iub":
            return np.asarray(wrap_int(value, dtype))
        return np.asarray(cast_fn(source, dtype)(value.astype(np.float64)))
    if value.dtype == np.float64 and dtype.bits < 64:
        return np.asarray(cast_fn(DTYPES["float64"], dtype)(value))
    return np.asarray(narrow_fn(dtype)(value.astype(computes_in(dtype))))


def scanned(op: str, tile: Array, src: DType, dst: DType, axis: int, reverse: bool) -> Array:
    """Inclusive prefix sum or maximum."""
    if op not in ("sum", "max", "min"):
        raise RunError(f"unknown scan {op!r}", expected="sum, max or min")
    wide = _widen(tile, src, _accumulates_in(src, dst))
    wide = np.flip(wide, axis) if reverse else wide
    out = _REDUCE[op][0].accumulate(wide, axis=axis)
    return _shrink(np.flip(out, axis) if reverse else out, dst)


def atomic_fn(op: str, dtype: DType) -> Callable[[Any, Any], Any]:
    """new = f(old, value) of an atomic."""
    table = {"add": "+", "max": "max", "min": "min", "and": "&", "or": "|", "xor": "^"}
    if op in table:
        return bin_fn(table[op], dtype)
    if op in ("exch", "store"):
        return lambda old, value: value
    if op == "load":
        return lambda old, value: old
    raise RunError(f"unknown atomic {op!r}")
