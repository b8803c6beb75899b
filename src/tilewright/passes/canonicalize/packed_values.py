"""Elements of less than a byte, computed with in wider types that hold all their values.

Threads have no registers and memory has no addresses for them: a value of int4 lives in an int8,
one of float4_e2m1fn in a float16. What may leave the narrow type's range is brought back by
`wrapped` and `to_narrow`; `bits_of` and `of_bits` go to and from what lies in memory.
"""

from __future__ import annotations

from tilewright.ir.dtype import FLOAT32, INT32, DType, dtype
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Var,
    binary,
    cast,
    compare,
    const,
    select,
)
from tilewright.support.errors import CompileError, Loc

FLOAT16, UINT16 = dtype("float16"), dtype("uint16")
_HELD = {
    "int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8", "float4_e2m1fn": "float16",
}  # fmt: skip
# float4's exponents begin 14 powers of two above those that float16 gives the same bits
_SCALE = float(1 << 14)
_IN_RANGE = ("min", "max", "&", "|", "^", "%", ">>", "and", "or")


def held_in(kind: DType) -> DType:
    """The type that values of `kind` are computed in; itself from a byte on."""
    if not kind.packed:
        return kind
    check_known(kind, None)
    return dtype(_HELD[kind.name])


def check_known(kind: DType, loc: Loc | None) -> None:
    """Refuse narrow types that nothing holds."""
    if kind.packed and kind.name not in _HELD:
        raise CompileError(
            f"{kind} has no CUDA form",
            loc=loc,
            expected="one of " + ", ".join(_HELD),
            fix="keep its bits in uint8, and decode them in the kernel",
        )


def per_byte(kind: DType) -> int:
    return 8 // kind.bits


def wrapped(value: Expr, kind: DType) -> Expr:
    """An integer, held, modulo 2^bits."""
    mask, sign = (1 << kind.bits) - 1, 1 << (kind.bits - 1)
    low = value & const(mask, value.dtype)
    if kind.kind == "uint":
        return low
    return binary("-", low ^ const(sign, value.dtype), const(sign, value.dtype))


def to_narrow(value: Expr, source: DType, kind: DType) -> Expr:
    """`value`, of type `source` (held), converted to `kind`, held."""
    if kind.is_float:
        if source == kind:
            return value
        wide = value if source.name == "float64" else cast(value, FLOAT32)
        return cast(_rounded(wide), held_in(kind))
    if source.is_float:
        whole = cast(value, INT32)  # toward zero, saturating, NaN to 0
        whole = binary("max", whole, const(int(kind.min_value)))
        whole = binary("min", whole, const(int(kind.max_value)))
        return cast(whole, held_in(kind))
    if source.is_bool:
        return cast(value, held_in(kind))
    return cast(wrapped(cast(value, INT32), kind), held_in(kind))


def _rounded(x: Expr) -> Expr:
    """float32 or float64 to the nearest value of float4_e2m1fn, even of two; NaN to -0."""

    def number(value: float) -> Expr:
        return const(value, x.dtype)

    def nearest(e: Expr) -> Expr:
        return Call("round", (e,), x.dtype)

    size = Call("abs", (x,), x.dtype)
    large = binary("min", nearest(size * number(0.5)) * number(2.0), number(6.0))
    found = select(
        compare("<", size, number(2.0)),
        nearest(size * number(2.0)) * number(0.5),
        select(compare("<", size, number(4.0)), nearest(size), large),
    )
    found = Call("copysign", (found, x), x.dtype)
    return select(compare("==", x, x), found, number(-0.0))


def bits_of(value: Expr, kind: DType) -> Expr:
    """What lies in memory for a held value: an int32 of `kind.bits` bits."""
    if kind.is_int:
        return cast(value, INT32) & const((1 << kind.bits) - 1)
    small = cast(cast(value, FLOAT32) * const(1 / _SCALE, FLOAT32), FLOAT16)
    bits = cast(Call("reinterpret", (small,), UINT16), INT32)
    return ((bits >> 12) & const(8)) | ((bits >> 9) & const(7))


def of_bits(bits: Expr, kind: DType) -> Expr:
    """The held value of an int32 of `kind.bits` bits."""
    if kind.kind == "uint":
        return cast(bits, held_in(kind))
    if kind.kind == "int":
        sign = 1 << (kind.bits - 1)
        return cast((bits ^ const(sign)) - sign, held_in(kind))
    word = cast(((bits & const(8)) << 12) | ((bits & const(7)) << 9), UINT16)
    small = cast(Call("reinterpret", (word,), FLOAT16), FLOAT32)
    return cast(small * const(_SCALE, FLOAT32), held_in(kind))


def computed(e: Expr, children: tuple[Expr, ...]) -> Expr:
    """`e`, one operation, on `children`, the held values of its operands."""
    kinds = [c.dtype for c in e.children]
    if isinstance(e, Const):
        return const(e.value, held_in(e.dtype)) if e.dtype.packed else e
    if isinstance(e, Var):
        return Var(e.name, held_in(e.dtype)) if e.dtype.packed else e
    if isinstance(e, Cast):
        if e.dtype.packed:
            return to_narrow(children[0], kinds[0], e.dtype)
        return cast(children[0], e.dtype)
    if isinstance(e, Call) and any(k.packed for k in (*kinds, e.dtype)):
        return _called(e, kinds, children)
    if isinstance(e, (Bin, Cmp)) and kinds[0].packed and kinds[0].is_float:
        wide = e.rebuild(tuple(cast(c, FLOAT32) for c in children))
        return wide if isinstance(e, Cmp) else to_narrow(wide, FLOAT32, e.dtype)
    same = all(a is b for a, b in zip(children, e.children, strict=True))
    made = e if same else e.rebuild(children)
    if isinstance(e, Bin) and e.dtype.packed and e.op not in _IN_RANGE:
        return wrapped(made, e.dtype)
    return made


def _called(e: Call, kinds: list[DType], children: tuple[Expr, ...]) -> Expr:
    kind, result = kinds[0], e.dtype
    if e.name == "reinterpret":
        if kind.bits != result.bits:
            raise CompileError(f"reinterpret from {kind} to {result}: one width is needed")
        return of_bits(bits_of(children[0], kind), result)
    if kind.is_float:
        wide = Call(e.name, tuple(cast(c, FLOAT32) for c in children), _of(result, FLOAT32))
        return to_narrow(wide, FLOAT32, result) if result.packed else wide
    if e.name in ("popcount", "clz"):
        # of a byte that begins with zeros
        low = cast(bits_of(children[0], kind), children[0].dtype)
        found: Expr = Call(e.name, (low,), low.dtype)
        return found if e.name == "popcount" else found - const(8 - kind.bits, low.dtype)
    made = Call(e.name, children, held_in(result))
    return wrapped(made, result) if result.packed else made


def _of(result: DType, wide: DType) -> DType:
    return wide if result.packed else result
