"""Element types: one `DType` record each, found by any of the names people use for it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import ml_dtypes
import numpy as np

from tilewright.support.errors import CompileError, suggest


@dataclass(frozen=True, eq=False)
class DType:
    """An element type, one object for each: they are part of every expression's key.

    `kind` is one of 'float', 'int', 'uint', 'bool', 'barrier'. Sub-byte types are stored packed,
    even index in the low bits; `numpy` is the type of one *unpacked* element.

    >>> dtype("float").name
    'float32'
    >>> dtype("int4").bits
    4
    """

    name: str
    kind: str
    bits: int

    @cached_property
    def numpy(self) -> np.dtype[Any]:
        special = getattr(ml_dtypes, self.name, None)
        if self.name == "tfloat32":
            return np.dtype(np.float32)
        if self.kind == "barrier":
            return np.dtype(np.uint64)
        return np.dtype(special if special is not None else self.name)

    @cached_property
    def is_float(self) -> bool:
        return self.kind == "float"

    @cached_property
    def is_int(self) -> bool:
        return self.kind in ("int", "uint")

    @cached_property
    def is_bool(self) -> bool:
        return self.kind == "bool"

    @property
    def packed(self) -> bool:
        """Several elements share a byte: no address, no atomics, innermost extent even."""
        return self.bits < 8

    @property
    def bytes(self) -> int:
        """Bytes of one element; sub-byte types have none of their own (use `storage_bytes`)."""
        if self.packed:
            raise CompileError(f"{self.name} is packed: an element has no byte address of its own")
        return self.bits // 8

    def storage_bytes(self, elements: int) -> int:
        return (elements * self.bits + 7) // 8

    @property
    def min_value(self) -> float | int:
        return self._limits[0]

    @property
    def max_value(self) -> float | int:
        """The largest finite value."""
        return self._limits[1]

    @cached_property
    def _limits(self) -> tuple[float | int, float | int]:
        if self.is_bool:
            return 0, 1
        if self.is_int:
            low = -(1 << (self.bits - 1)) if self.kind == "int" else 0
            return low, low + (1 << self.bits) - 1
        info: Any = ml_dtypes.finfo(self.numpy)  # type: ignore[no-untyped-call]
        return float(info.min), float(info.max)

    def __reduce__(self) -> tuple[Any, ...]:
        return dtype, (self.name,)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return self.name


_FLOATS = {
    "float64": 64, "float32": 32, "tfloat32": 32, "float16": 16, "bfloat16": 16,
    "float8_e4m3fn": 8, "float8_e5m2": 8, "float8_e4m3fnuz": 8, "float8_e5m2fnuz": 8,
    "float8_e8m0fnu": 8, "float6_e2m3fn": 6, "float6_e3m2fn": 6, "float4_e2m1fn": 4,
}  # fmt: skip
_INTS = [f"{u}int{b}" for u in ("", "u") for b in (2, 4, 8, 16, 32, 64)]

DTYPES: dict[str, DType] = {
    **{name: DType(name, "float", bits) for name, bits in _FLOATS.items()},
    **{n: DType(n, "uint" if n[0] == "u" else "int", int(n.lstrip("uint"))) for n in _INTS},
    "bool": DType("bool", "bool", 8),
    "barrier": DType("barrier", "barrier", 64),
}
_ALIASES = {
    "float": "float32", "half": "float16", "double": "float64", "int": "int32", "uint": "uint32",
    "tf32": "tfloat32", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16",
    "float8_e4m3": "float8_e4m3fn", "e4m3_float8": "float8_e4m3fn", "fp8": "float8_e4m3fn",
    "e5m2_float8": "float8_e5m2", "float8_e8m0": "float8_e8m0fnu", "float4_e2m1": "float4_e2m1fn",
    "float6_e2m3": "float6_e2m3fn", "float6_e3m2": "float6_e3m2fn", "bool_": "bool",
    "long": "int64", "short": "int16", "char": "int8", "uchar": "uint8",
}  # fmt: skip


def dtype(name: Any) -> DType:
    """The type called `name`: a string, a NumPy or PyTorch dtype, a `T.float16`-style name.

    >>> dtype("bf16"), dtype(np.int8)
    (bfloat16, int8)
    """
    if isinstance(name, DType):
        return name
    found = _lookup(_spelling(name))
    if found is None:
        known, otherwise = [*DTYPES, *_ALIASES], 'write its name, such as "float16"'
        fix, repair = suggest(_spelling(name), known, otherwise)
        raise CompileError(
            f"unknown dtype {name!r}",
            expected="one of " + ", ".join(d for d in sorted(DTYPES) if d != "barrier"),
            fix=fix,
            code="unknown-dtype",
            repair=repair,
        )
    return found


def _spelling(name: Any) -> str:
    if isinstance(name, str):
        return name
    if isinstance(name, type) and name in (float, int, bool):  # NumPy's dtypes equal them
        return {float: "float32", int: "int32", bool: "bool"}[name]
    text = str(name)
    if text.startswith("torch."):
        return text.removeprefix("torch.")
    inner = getattr(name, "dtype", None)
    if isinstance(inner, DType):
        return inner.name
    try:
        return str(np.dtype(name).name)
    except TypeError:
        return text


@cache
def _lookup(text: str) -> DType | None:
    return DTYPES.get(_ALIASES.get(text, text))


def promote(a: DType, b: DType) -> DType:
    """The type in which `a ∘ b` is computed: floats win, then width. Integers of both signs meet in
    a signed type that holds either, int64 at most.

    Two different 16-bit or 8-bit floats meet in float32.

    >>> promote(dtype("int32"), dtype("float16")), promote(dtype("float16"), dtype("bfloat16"))
    (float16, float32)
    >>> promote(dtype("uint8"), dtype("int8")), promote(dtype("int32"), dtype("uint32"))
    (int16, int64)
    """
    if a == b:
        return a
    if a.is_float or b.is_float:
        if a.is_float and b.is_float:
            if a.bits == b.bits:
                return DTYPES["float32"]
            return a if a.bits > b.bits else b
        return a if a.is_float else b
    if a.is_bool or b.is_bool:
        return b if a.is_bool else a
    if a.kind == b.kind:
        return a if a.bits > b.bits else b
    signed, unsigned = (a, b) if b.kind == "uint" else (b, a)
    return DTYPES[f"int{min(max(signed.bits, 2 * unsigned.bits), 64)}"]


FLOAT32 = DTYPES["float32"]
INT32 = DTYPES["int32"]
INT64 = DTYPES["int64"]
BOOL = DTYPES["bool"]
BARRIER = DTYPES["barrier"]
