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


def _bitwise(fn: Any) -> Callable[[Array, int], Array]:
    return lambda x, axis: fn.reduce(x, axis=axis)


_REDUCE: dict[str, Callable[[Array, int], Array]] = {
    "sum": lambda x, axis: np.add.reduce(x, axis=axis),
    "max": lambda x, axis: np.maximum.reduce(x, axis=axis),
    "min": lambda x, axis: np.minimum.reduce(x, axis=axis),
    "abssum": lambda x, axis: np.add.reduce(np.abs(x), axis=axis),
    "absmax": lambda x, axis: np.maximum.reduce(np.abs(x), axis=axis),
    "max_num": lambda x, axis: np.fmax.reduce(x, axis=axis, initial=-np.inf),
    "min_num": lambda x, axis: np.fmin.reduce(x, axis=axis, initial=np.inf),
    "absmax_num": lambda x, axis: np.fmax.reduce(np.abs(x), axis=axis, initial=0),
    "and": _bitwise(np.bitwise_and),
    "or": _bitwise(np.bitwise_or),
    "xor": _bitwise(np.bitwise_xor),
    "any": lambda x, axis: np.logical_or.reduce(x != 0, axis=axis),
    "all": lambda x, axis: np.logical_and.reduce(x != 0, axis=axis),
}
_FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add, "abssum": np.add, "max": np.maximum, "absmax": np.maximum, "min": np.minimum,
    "max_num": np.fmax, "min_num": np.fmin, "absmax_num": np.fmax,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "any": lambda a, b: np.logical_or(a != 0, b != 0),
    "all": lambda a, b: np.logical_and(a != 0, b != 0),
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
    value = _REDUCE[op.op](_widen(tile, src, wide), axis)
    if old is not None:
        value = _FOLD[op.op](value.reshape(old.shape), _widen(old, dst, wide))
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
    fn = {"sum": np.add, "max": np.maximum, "min": np.minimum}[op]
    out = fn.accumulate(wide, axis=axis)
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
