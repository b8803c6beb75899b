"""Elements of less than a byte: the wider types that they are computed in, and where they lie.

Threads have no registers and memory has no addresses for them: a value of int4 lives in an int8,
one of float4_e2m1fn in a float16. What may leave the narrow type's range is brought back by
`wrapped` and `to_narrow`; `bits_of` and `of_bits` go to and from what lies in memory. `Packing` is
the rewriting of a kernel: what stands for each buffer, which shared tiles are packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.dtype import FLOAT32, INT32, DType, dtype
from tilewright.ir.expr import (
    Bin,
    Call,
    Cast,
    Cmp,
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    compare,
    const,
    select,
)
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    Copy,
    Fill,
    Gemm,
    Hint,
    Intrinsic,
    Kernel,
    Op,
    Reduce,
    Scan,
    Store,
    View,
    marked,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import map_operands, rebuild
from tilewright.ir.simplify import simplify
from tilewright.support.errors import CompileError, Loc

FLOAT16, UINT16, UINT8 = dtype("float16"), dtype("uint16"), dtype("uint8")
Rule = Callable[["Packing", Any], "Iterable[Op]"]
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


# ── narrow floats ────────────────────────────────────────────────────────────────────────────


def is_small(kind: DType) -> bool:
    """Whether values of this type are computed with in float32."""
    return kind.is_float and kind.bits <= 16


def widened(e: Expr) -> Expr:
    """`e`, one operation on operands that are done, with narrow floats widened."""
    children = e.children
    if isinstance(e, (Cast, Load)) or not any(is_small(c.dtype) for c in children):
        return e
    if isinstance(e, Call) and e.name.startswith(("pack_", "reinterpret")):
        return e
    if not isinstance(e, (Bin, Cmp, Call)):
        return e
    wide = tuple(cast(c, FLOAT32) if is_small(c.dtype) else c for c in children)
    if isinstance(e, Call):
        kind = FLOAT32 if is_small(e.dtype) else e.dtype
        return cast(Call(e.name, wide, kind), e.dtype)
    return cast(e.rebuild(wide), e.dtype)


# ── which tiles are packed ───────────────────────────────────────────────────────────────────


def packed_tiles(kernel: Kernel) -> set[str]:
    """Shared tiles whose elements share bytes: those that are seen as another type too, and those
    that nothing fills but copies of packed tensors, and that no product reads."""
    ops = list(walk_ops(kernel))
    tiles = {
        op.buffer.name
        for op in ops
        if isinstance(op, (Alloc, View))
        and op.buffer.space is Space.SHARED
        and op.buffer.dtype.packed
    }
    views = [op for op in ops if isinstance(op, View) and op.buffer.space is Space.SHARED]
    recast = [op for op in views if op.buffer.dtype != op.source.dtype]
    forced = {b.name for op in recast for b in (op.buffer, op.source)} & tiles
    filled: set[str] = set()
    other = {b.name for op in views for b in (op.buffer, op.source)}
    for op in ops:
        if isinstance(op, Copy) and op.dst.buffer.name in tiles:
            source = op.src.buffer
            plain = source.space is Space.GLOBAL and source.dtype == op.dst.dtype
            plain = plain and whole_bytes(op.dst) and whole_bytes(op.src)
            (filled if plain else other).add(op.dst.buffer.name)
        elif isinstance(op, (Store, Hint)) and op.buffer is not None:
            other.add(op.buffer.name)
        elif isinstance(op, (Gemm, Reduce, Scan, Atomic, Intrinsic, Fill)):
            other |= {r.buffer.name for r in regions(op, reads=True, writes=True)}
            if isinstance(op, Intrinsic):
                other |= {a.buffer.name for a in op.args if isinstance(a, Region)}
        if isinstance(op, Alloc) and op.buffer.layout is not None:
            other.add(op.buffer.name)
    return forced | (filled - other)


def whole_bytes(region: Region, ranges: Ranges | None = None) -> bool:
    """Whether a region begins and ends between bytes. Starts that are known only with `ranges`
    are taken for such without."""
    per = per_byte(region.dtype)
    start, extent = region.starts[-1], region.extents[-1]
    if not isinstance(extent, Const) or int(extent.value) % per:
        return False
    if ranges is None and not isinstance(start, Const):
        return True
    return multiple_of(start, ranges or Ranges()) % per == 0


# ── rewriting ────────────────────────────────────────────────────────────────────────────────


class Packing:
    """The rewriting of one kernel; `tiles` are the shared tiles that are packed, `rules` those for
    ops that are more than what they are made of."""

    def __init__(
        self, names: set[str], tiles: set[str], rules: Mapping[type[Op], Rule] | None = None
    ) -> None:
        self.names, self.tiles, self.rules = names, tiles, rules or {}
        self.buffers: dict[str, Buffer] = {}
        self.words: dict[str, tuple[Buffer, Buffer]] = {}  # bytes of tensors as words of 32 bits
        self.ranges = Ranges()

    def is_packed(self, buffer: Buffer) -> bool:
        """Whether elements of `buffer` share bytes."""
        return buffer.dtype.packed and (buffer.space is Space.GLOBAL or buffer.name in self.tiles)

    def buffer(self, buffer: Buffer) -> Buffer:
        """What stands for `buffer`."""
        if not buffer.dtype.packed:
            return buffer
        found = self.buffers.get(buffer.name)
        if found is None:
            if self.is_packed(buffer):
                held_in(buffer.dtype)
                row = simplify(buffer.shape[-1] // per_byte(buffer.dtype))
                found = replace(buffer, dtype=UINT8, shape=(*buffer.shape[:-1], row), layout=None)
            else:
                found = replace(buffer, dtype=held_in(buffer.dtype))
            self.buffers[buffer.name] = found
        return found

    # ── expressions ──────────────────────────────────────────────────────────────────────────

    def value(self, e: Expr) -> Expr:
        """`e`, held."""
        children = tuple(self.value(c) for c in e.children)
        if isinstance(e, Load):
            return self.load(e, children)
        return computed(e, children)

    def load(self, e: Load, indices: tuple[Expr, ...]) -> Expr:
        buffer, kind = self.buffer(e.buffer), e.buffer.dtype
        if not self.is_packed(e.buffer):
            return Load(buffer, indices, e.loc)
        per, last = per_byte(kind), indices[-1]
        byte = Load(buffer, (*indices[:-1], self.plain(last // per)), e.loc)
        shift = self.plain(last % per) * kind.bits
        bits = (cast(byte, INT32) >> cast(shift, INT32)) & const((1 << kind.bits) - 1)
        return of_bits(bits, kind)

    def plain(self, e: Expr) -> Expr:
        return simplify(e, self.ranges)

    def bytes_of(self, region: Region) -> Region | None:
        """A region of packed memory in bytes; None where it begins or ends within one."""
        if not whole_bytes(region, self.ranges):
            return None
        per = per_byte(region.dtype)
        starts = tuple(self.value(s) for s in region.starts)
        first = self.plain(starts[-1] // per)
        row = const(int(region.extents[-1]) // per)
        return Region(
            self.buffer(region.buffer),
            (*starts[:-1], first),
            (*region.extents[:-1], row),
            region.cta,
        )

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def body(self, body: Body, ranges: Ranges) -> Body:
        found: list[Op] = []
        for op in body:
            self.ranges = ranges
            found += self.op(op)
            ranges = scope.after(op, ranges)
        self.ranges = ranges
        return tuple(found)

    def op(self, op: Op) -> Iterable[Op]:
        rule = self.rules.get(type(op))
        return (self.generic(op),) if rule is None else tuple(rule(self, op))

    def generic(self, op: Op) -> Op:
        ranges = self.ranges
        changes: dict[str, Any] = {
            f.name: self.body(getattr(op, f.name), scope.inside(op, f.name, ranges))
            for f in marked(op, "body")
        }
        self.ranges = ranges
        for f in marked(op, "binds"):
            var = getattr(op, f.name)
            if isinstance(var, Var) and var.dtype.packed:
                changes[f.name] = Var(var.name, held_in(var.dtype))
        return rebuild(map_operands(op, self.value, self.buffer), **changes)

    def refuse(self, op: Op, region: Region, what: str) -> CompileError:
        kind = region.dtype
        return CompileError(
            f"{what} {region.buffer.name} reaches {kind} elements that share bytes",
            loc=op.loc,
            fix=f"T.copy it into a tile of {held_in(kind)} first",
        )
