"""What arithmetic means: the NumPy function behind every `Bin`, `Cmp`, `Cast` and `Call`.

Values have the NumPy type of their `DType`, one item per element. Floats of 16 bits and fewer are
computed in float32 and rounded once per operation; sub-byte integers in int8 or uint8, wrapped.
Float `//` is floor(a / b) with the quotient rounded first, as targets compute it; float `%` is
exact and takes the sign of the divisor. Every table entry is a function of arrays or NumPy
scalars that broadcasts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np

from tilewright.ir.core import *


def fma(a: Any, b: Any, c: Any) -> Any:
    """`a · b + c` of float32 or float64 values, exactly rounded."""
    kind = np.asarray(a).dtype
    x, y, z = np.broadcast_arrays(*(np.asarray(v, np.float64) for v in (a, b, c)))
    with np.errstate(all="ignore"):
        if kind == np.float32:  # their product is exact in float64
            return _odd_sum(x * y, z).astype(np.float32)
        return np.asarray(_exact(x, y, z)).astype(np.float64)


def _sum(a: Any, b: Any) -> tuple[Any, Any]:
    """The rounded sum and what rounding took (Knuth)."""
    total = a + b
    back = total - a
    return total, (a - (total - back)) + (b - back)


def _odd_sum(a: Any, b: Any) -> Any:
    """a + b rounded to odd: a second rounding to fewer bits is then as good as one."""
    total, rest = _sum(a, b)
    bits = np.asarray(total).view(np.int64)
    even = (rest != 0) & np.isfinite(total) & np.isfinite(rest) & (bits & 1 == 0)
    away = (rest > 0) == (total > 0)  # in the direction of larger magnitudes
    return np.where(even, np.where(away, bits + 1, bits - 1), bits).view(np.float64)


def _exact_sum(a: float, b: float, c: float) -> float:
    a, b, c = float(a), float(b), float(c)
    if not all(map(math.isfinite, (a, b, c))):
        return c if math.isinf(c) and math.isfinite(a) and math.isfinite(b) else a * b + c
    total = Fraction(a) * Fraction(b) + Fraction(c)
    if total == 0:  # a zero that is the sum of zeros has their sign
        return a * b + c if a == 0 or b == 0 else 0.0
    try:
        return float(total)
    except OverflowError:
        return math.inf if total > 0 else -math.inf


_exact = np.frompyfunc(_exact_sum, 3, 1)


Array = np.ndarray[Any, Any]
Value = Any  # a NumPy scalar or array
Fn = Callable[..., Any]


def computes_in(dtype: DType) -> np.dtype[Any]:
    """The NumPy type in which arithmetic on `dtype` is done."""
    if dtype.is_float:
        return np.dtype(np.float32) if dtype.bits <= 16 else dtype.numpy
    if dtype.is_int and dtype.bits < 8:
        return np.dtype(np.int8 if dtype.kind == "int" else np.uint8)
    return dtype.numpy


def _is_native(dtype: DType) -> bool:
    return computes_in(dtype) == dtype.numpy


# ── conversions ──────────────────────────────────────────────────────────────────────────────


def _odd_float32(x: Value) -> Value:
    """float64 → float32 rounded to odd, so that a second rounding to ≤ 16 bits is exact."""
    x = np.asarray(x, np.float64)
    near = x.astype(np.float32)
    bits = near.view(np.int32)
    back = near.astype(np.float64)
    # where rounding went away from zero, the neighbour toward zero is the truncation
    toward = np.where(np.abs(back) > np.abs(x), bits - 1, bits)
    odd = np.where((back != x) & np.isfinite(back), toward | 1, bits)
    return odd.astype(np.int32).view(np.float32)


def round_tf32(x: Value) -> Value:
    """float32 with the mantissa rounded to nearest even at 10 bits."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0xFFF) + ((bits >> np.uint32(13)) & np.uint32(1))) & np.uint32(
        0xFFFFE000
    )
    out = np.where(np.isfinite(np.asarray(x)), rounded, bits).astype(np.uint32).view(np.float32)
    return out.reshape(np.shape(x))


def _to_float(x: Value, src: DType, dst: DType) -> Value:
    if dst.name == "tfloat32":
        return round_tf32(np.asarray(x).astype(np.float32))
    if dst.bits > 16:
        return x.astype(dst.numpy)
    if dst.bits <= 8:
        high = float(dst.max_value)
        wide = np.asarray(x).astype(np.float64)
        # comparisons with NaN are false, so NaN passes through
        wide = np.where(wide > high, high, np.where(wide < -high, -high, wide))
        return _odd_float32(wide).astype(dst.numpy)
    if src.is_float and src.bits <= 32:
        return x.astype(np.float32).astype(dst.numpy)
    if src.is_int and src.bits == 64:
        x = _sticky(np.asarray(x))
    return _odd_float32(np.asarray(x).astype(np.float64)).astype(dst.numpy)


def _sticky(x: Value) -> Value:
    """64-bit integers that float64 holds, and that a 16-bit float rounds as it does `x`: of large
    ones the last twelve bits only count as whether there are any."""
    kind = x.dtype.type
    large = x >> kind(40) != (x < 0) * kind(-1 if kind is np.int64 else 0)
    some = np.where(x & kind(0xFFF), kind(0x800), kind(0))
    return np.where(large, (x >> kind(12) << kind(12)) | some, x)


def _to_int(x: Value, src: DType, dst: DType) -> Value:
    if not src.is_float:
        return wrap_int(np.asarray(x).astype(_wide(src)), dst)
    wide = np.trunc(np.asarray(x).astype(np.float64))
    low, high = int(dst.min_value), int(dst.max_value)
    hold = np.int64 if dst.kind == "int" else np.uint64
    safe = np.where((wide > float(low)) & (wide < float(high)), wide, 0.0).astype(hold)
    out = np.where(wide >= float(high), hold(high), np.where(wide <= float(low), hold(low), safe))
    return np.where(np.isnan(wide), hold(0), out).astype(computes_in(dst)).astype(dst.numpy)


def _wide(dtype: DType) -> np.dtype[Any]:
    return np.dtype(np.uint64 if dtype.kind == "uint" and dtype.bits == 64 else np.int64)


def wrap_int(x: Value, dtype: DType) -> Value:
    """Integers of any NumPy type reduced to `dtype` modulo 2^bits."""
    if dtype.bits >= 8:
        return x.astype(dtype.numpy)
    low = x.astype(np.int64) & ((1 << dtype.bits) - 1)
    if dtype.kind == "int":
        low = low - ((low >> (dtype.bits - 1)) << dtype.bits)
    return low.astype(np.int8).astype(dtype.numpy)


@cache
def cast_fn(src: DType, dst: DType) -> Fn:
    """The conversion `src` → `dst`."""
    if src == dst:
        return lambda x: x
    if dst.is_bool:
        return lambda x: x.astype(computes_in(src)) != 0
    if dst.is_float:
        if src.is_float and src.bits <= 32 and dst.bits > 16 and dst.name != "tfloat32":
            return lambda x: x.astype(dst.numpy)
        return lambda x: _to_float(x, src, dst)
    return lambda x: _to_int(x, src, dst)


@cache
def narrow_fn(dtype: DType) -> Fn:
    """From the type computed in back to `dtype`."""
    if _is_native(dtype):
        return lambda x: x
    if dtype.is_float:
        return cast_fn(DTYPES["float32"], dtype)
    return lambda x: wrap_int(np.asarray(x), dtype)


# ── operators ────────────────────────────────────────────────────────────────────────────────


def _floor_quotient(a: Value, b: Value) -> Value:
    return np.floor(np.true_divide(a, b))


_FLOAT_BIN: dict[str, Fn] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "//": _floor_quotient,
    "%": np.mod, "min": np.fmin, "max": np.fmax,
}  # fmt: skip
_INT_BIN: dict[str, Fn] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.mod,
    "min": np.minimum, "max": np.maximum, "&": np.bitwise_and, "|": np.bitwise_or,
    "^": np.bitwise_xor, "<<": np.left_shift, ">>": np.right_shift,
}  # fmt: skip
_BOOL_BIN: dict[str, Fn] = {
    "and": np.logical_and, "or": np.logical_or, "&": np.logical_and, "|": np.logical_or,
    "^": np.logical_xor, "min": np.logical_and, "max": np.logical_or,
}  # fmt: skip
_CMP: dict[str, Fn] = {
    "<": np.less, "<=": np.less_equal, "==": np.equal, "!=": np.not_equal,
    ">": np.greater, ">=": np.greater_equal,
}  # fmt: skip


def _in(dtype: DType, fn: Fn) -> Fn:
    """`fn` over the type `dtype` computes in, the result rounded or wrapped back."""
    if _is_native(dtype):
        return fn
    up, narrow = computes_in(dtype), narrow_fn(dtype)
    return lambda *args: narrow(fn(*(a.astype(up) for a in args)))


@cache
def bin_fn(op: str, dtype: DType) -> Fn:
    """The meaning of `Bin(op, …)` on `dtype`."""
    table = _FLOAT_BIN if dtype.is_float else _BOOL_BIN if dtype.is_bool else _INT_BIN
    return _in(dtype, table[op])


@cache
def cmp_fn(op: str, dtype: DType) -> Fn:
    """The meaning of `Cmp(op, …)` on `dtype`."""
    if _is_native(dtype):
        return _CMP[op]
    up, fn = computes_in(dtype), _CMP[op]
    return lambda a, b: fn(a.astype(up), b.astype(up))


# ── functions ────────────────────────────────────────────────────────────────────────────────


_erf = np.frompyfunc(math.erf, 1, 1)


def _sigmoid(x: Value) -> Value:
    small = np.exp(-np.abs(x))  # it cannot overflow, and may be subnormal
    return np.where(x < 0, small, np.ones_like(small)) / (1 + small)


def _int_pow(a: Value, b: Value) -> Value:
    out = np.power(a, np.maximum(b, 0))
    # only 1 and -1 have integer powers below zero; the rest truncate to 0
    unit = np.where(a == 1, 1, np.where(a == -1, np.where(b % 2 == 0, 1, -1), 0))
    return np.where(b < 0, unit, out).astype(np.asarray(a).dtype)


_BITS = {
    "popcount": np.frompyfunc(lambda n: bin(n).count("1"), 1, 1),
    "clz": np.frompyfunc(int.bit_length, 1, 1),
}


def _count_bits(name: str, x: Value, dtype: DType) -> Value:
    """Ones, or zeros before the first one."""
    raw = np.asarray(raw_bits(x, dtype)).astype(object)
    found = np.asarray(_BITS[name](raw)).astype(np.int64).reshape(np.shape(x))
    return wrap_int(found if name == "popcount" else dtype.bits - found, dtype)


_FLOAT_CALLS: dict[str, Fn] = {
    "exp": np.exp, "exp2": np.exp2, "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sqrt": np.sqrt, "sin": np.sin, "cos": np.cos,
    "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "tanh": np.tanh, "floor": np.floor, "ceil": np.ceil, "round": np.rint,
    "trunc": np.trunc, "sigmoid": _sigmoid, "pow": np.power, "fmod": np.fmod, "atan2": np.arctan2,
    "copysign": np.copysign, "fma": fma, "neg": np.negative, "abs": np.abs, "min_nan": np.minimum,
    "max_nan": np.maximum, "divide": np.divide,
    "exp10": lambda x: np.power(np.asarray(10, np.asarray(x).dtype), x),
    "rsqrt": lambda x: (1 / np.sqrt(x)).astype(np.asarray(x).dtype),
    "erf": lambda x: np.asarray(_erf(np.asarray(x, np.float64))).astype(np.asarray(x).dtype),
}  # fmt: skip
_INT_CALLS: dict[str, Fn] = {
    "neg": np.negative, "abs": np.abs, "invert": np.invert, "pow": _int_pow, "fmod": np.fmod,
}  # fmt: skip
_TESTS: dict[str, Fn] = {"isnan": np.isnan, "isinf": np.isinf, "isfinite": np.isfinite}


def raw_bits(x: Value, dtype: DType) -> Value:
    """The bits of each element as unsigned integers (sub-byte types: in the low bits of uint8)."""
    x = np.ascontiguousarray(x)
    if dtype.packed:
        return x.view(np.uint8) & np.uint8((1 << dtype.bits) - 1)
    return x.view(np.dtype(f"u{max(dtype.bits // 8, 1)}"))


def from_bits(raw: Value, dtype: DType) -> Value:
    """The inverse of `raw_bits`."""
    if dtype.packed:
        if dtype.is_int:
            return wrap_int(raw, dtype)
        return np.ascontiguousarray(raw, np.uint8).view(dtype.numpy)
    if dtype.is_bool:
        return raw != 0
    return np.ascontiguousarray(raw).view(dtype.numpy)


def pack(values: Value, dtype: DType) -> Value:
    """Elements of less than a byte in bytes along the last axis, the first in the low bits."""
    per = 8 // dtype.bits
    parts = raw_bits(values, dtype).reshape(*np.shape(values)[:-1], -1, per)
    return np.bitwise_or.reduce(parts << _shifts(dtype), axis=-1)


def unpack(raw: Value, dtype: DType) -> Value:
    """The inverse of `pack`."""
    parts = (raw[..., None] >> _shifts(dtype)) & np.uint8((1 << dtype.bits) - 1)
    return from_bits(parts.reshape(*raw.shape[:-1], -1), dtype)


def _shifts(dtype: DType) -> Value:
    return np.arange(0, 8, dtype.bits, dtype=np.uint8)


def _reinterpret(x: Value, src: DType, dst: DType) -> Value:
    if src.bits != dst.bits:
        raise RunError(
            f"reinterpret needs types of one width, got {src} ({src.bits} bits) and {dst}"
            f" ({dst.bits} bits)"
        )
    return from_bits(raw_bits(x, src), dst).reshape(np.shape(x))


def _dp4a(a: Value, b: Value, c: Value, src: DType, dst: DType) -> Value:
    byte = np.int8 if src.kind == "int" else np.uint8
    shape = np.broadcast_shapes(np.shape(a), np.shape(b))

    def lanes(x: Value) -> Value:
        full = np.ascontiguousarray(np.broadcast_to(x, shape))
        return full.reshape(*shape, 1).view(byte).astype(np.int64)

    return wrap_int(np.asarray(c).astype(np.int64) + (lanes(a) * lanes(b)).sum(-1), dst)


def _pack_pair(low: Value, high: Value, half: DType) -> Value:
    """Two values rounded to 16 bits, the first in the low half of a uint32."""
    to = cast_fn(DTYPES["float32"], half)
    shape = np.broadcast_shapes(np.shape(low), np.shape(high))
    words = [raw_bits(to(np.asarray(x)), half).astype(np.uint32) for x in (low, high)]
    return (words[0] | words[1] << np.uint32(16)).reshape(shape)[()]


@cache
def call_fn(name: str, args: tuple[DType, ...], result: DType) -> Fn:
    """The meaning of `Call(name, …)` on arguments of these types."""
    src = args[0]
    if name == "not":
        return np.logical_not
    if name == "reinterpret":
        return lambda x: _reinterpret(x, src, result)
    if name == "dp4a":
        return lambda a, b, c: _dp4a(a, b, c, src, result)
    if name in ("pack_bfloat16", "pack_float16"):
        half = DTYPES[name.removeprefix("pack_")]
        return lambda low, high: _pack_pair(low, high, half)
    if name in ("popcount", "clz"):
        return lambda x: _count_bits(name, x, result)
    if name in _TESTS:
        test, up = _TESTS[name], computes_in(src)
        return lambda x: test(x.astype(up))
    base = name.removeprefix("__")  # the fast forms are the accurate ones here
    if src.is_bool and base in ("abs", "neg"):
        src = result if result != BOOL else DTYPES["int32"]
        to = cast_fn(BOOL, src)
        inner = _in(src, _INT_CALLS[base])
        return lambda x: inner(to(x))
    table = _FLOAT_CALLS if src.is_float else _INT_CALLS
    return _in(src, table[base])


# ── storage of values nothing wrote ──────────────────────────────────────────────────────────


def poison(shape: tuple[int, ...], dtype: DType) -> np.ndarray[Any, Any]:
    """Memory as hardware leaves it: NaN where the type has one, large odd numbers elsewhere."""
    out = np.empty(shape, dtype.numpy)
    poison_fill(out, dtype)
    return out


def poison_fill(view: np.ndarray[Any, Any], dtype: DType) -> None:
    """Overwrite `view` with poison."""
    if dtype.is_float and dtype.bits >= 8:
        view[...] = np.nan
    elif dtype.is_bool:
        view[...] = True
    elif dtype.is_float:
        view[...] = np.asarray(dtype.max_value).astype(dtype.numpy)
    elif dtype.bits < 8:
        view[...] = np.asarray(dtype.max_value).astype(np.int8).astype(dtype.numpy)
    else:
        view[...] = np.frombuffer(b"\x7f" * dtype.numpy.itemsize, dtype.numpy)[0]


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
    c = c.T if op.transpose_c else c
    made = multiplied(a, b, c, types, tf32=op.precision == "tf32")
    return made.T if op.transpose_c else made


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
    "prod": (np.multiply, None, None),
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


def scanned(op: str, tile: Array, src: DType, dst: DType, axis: int) -> Array:
    """Inclusive prefix sum, product, maximum or minimum."""
    wide = _widen(tile, src, _accumulates_in(src, dst))
    return _shrink(_REDUCE[op][0].accumulate(wide, axis=axis), dst)


def atomic_fn(op: str, dtype: DType) -> Callable[[Any, Any], Any]:
    """new = f(old, value) of an atomic."""
    table = {"add": "+", "max": "max", "min": "min", "and": "&", "or": "|", "xor": "^"}
    if op in table:
        return bin_fn(table[op], dtype)
    if op in ("exch", "store"):
        return lambda old, value: value
    return lambda old, value: old  # load
