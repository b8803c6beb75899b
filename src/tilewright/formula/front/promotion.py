"""Which type an operation has: the promotion of the Array API, and the project's narrow types.

A declared type is what a value is rounded to where it leaves the formula; it is computed in its
compute type, so nothing is rounded in between.
"""

from __future__ import annotations

from typing import Any

from tilewright.ir.dtype import BOOL, DTYPES, FLOAT32, INT32, INT64, DType
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.support.errors import CompileError

FLOAT64 = DTYPES["float64"]
UINT64 = DTYPES["uint64"]
KINDS = ("bool", "int", "float")


def compute_type(dtype: DType) -> DType:
    """The type that elements are computed in.

    >>> from tilewright.ir.dtype import DTYPES
    >>> compute_type(DTYPES["bfloat16"]), compute_type(DTYPES["int4"]), compute_type(DTYPES["bool"])
    (float32, int8, bool)
    """
    if dtype.is_float:
        return FLOAT64 if dtype.bits == 64 else FLOAT32
    return _least(dtype)


def _least(dtype: DType) -> DType:
    """Integers of less than a byte are computed in one."""
    return DTYPES[f"{dtype.kind}8"] if dtype.is_int and dtype.bits < 8 else dtype


def arithmetic_type(dtype: DType) -> DType:
    """The declared type of what is computed from one value: floats of 8 bits and fewer become
    float32, integers of fewer become 8 bits wide."""
    if dtype.is_float:
        return dtype if dtype.bits in (16, 64) else FLOAT32
    return _least(dtype)


def kind_of(dtype: DType) -> str:
    return "int" if dtype.is_int else dtype.kind


def promoted(a: DType, b: DType) -> DType:
    a, b = arithmetic_type(a), arithmetic_type(b)
    if a == b:
        return a
    if kind_of(a) != kind_of(b):
        return max(a, b, key=lambda each: KINDS.index(kind_of(each)))
    if a.is_float and a.bits == b.bits:
        return FLOAT32
    if a.is_float or a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if a.kind == "int" else (b, a)
    if unsigned.bits == 64:
        raise CompileError(
            f"{signed} and uint64 have no common integer type",
            fix='say which one you mean: tm.astype(x, "int64")',
        )
    return signed if signed.bits > unsigned.bits else DTYPES[f"int{2 * unsigned.bits}"]


def _type_of(given: Any) -> DType:
    """The type of an array, or the one that is named."""
    own = getattr(given, "dtype", None)
    return own if isinstance(own, DType) else find_dtype(given)


def _number_kind(given: Any) -> str:
    """ "bool", "int" or "float" of a number, Python's or one of sizes; nothing of arrays."""
    if isinstance(given, (bool, int, float)):
        return "bool" if isinstance(given, bool) else type(given).__name__
    kind: str = getattr(given, "number_kind", "")
    return kind


def result_type(*given: Any) -> DType:
    """The type that the given arrays, types and Python numbers have in common. A Python number
    takes the type of the arrays beside it; a float beside integers makes float32.

    >>> result_type("uint8", "int8"), result_type("bfloat16", 2.0), result_type("int32", 0.5)
    (int16, bfloat16, float32)
    """
    numbers = [kind for each in given if (kind := _number_kind(each))]
    found: DType | None = None
    for each in given:
        if _number_kind(each):
            continue
        own = _type_of(each)
        found = arithmetic_type(own) if found is None else promoted(found, own)
    for kind in numbers:
        if found is None or KINDS.index(kind_of(found)) < KINDS.index(kind):
            beside = INT64 if found is None else INT32
            found = {"bool": BOOL, "int": beside, "float": FLOAT32}[kind]
    if found is None:
        raise CompileError(
            "the type of nothing was asked for", fix="give tm.result_type an array or a type"
        )
    return found


def can_cast(source: Any, target: Any) -> bool:
    """Whether promotion leads from one type to the other.

    >>> can_cast("int8", "int32"), can_cast("float32", "float16")
    (True, False)
    """
    a, b = _type_of(source), _type_of(target)
    if a == b:
        return True
    if kind_of(a) != kind_of(b) or (a.kind == "int" and b.kind == "uint"):
        return False
    return (a.bits < b.bits) if a.is_float or a.kind != b.kind else a.bits <= b.bits


def default_sum_type(dtype: DType) -> DType:
    """The type of a sum or product: integers are summed in the widest of their kind."""
    if dtype.is_float:
        return arithmetic_type(dtype)
    return UINT64 if dtype.kind == "uint" else INT64
