"""Rewrite elements of less than a byte as bytes.

**Values.** Threads have no registers and memory has no addresses for them: a value of int4 lives in
an int8, one of float4_e2m1fn in a float16. What may leave the narrow type's range is brought back
by `wrapped` and `to_narrow`; `bits_of` and `of_bits` go to and from what lies in memory.

**Memory.** Tensors, and shared tiles that are filled from them, become arrays of bytes that hold
several elements each, the first in the low bits; other tiles hold one element in what values live
in. Copies between packed places stay copies, of bytes. Everything else becomes maps that unpack
what they read.

No thread can write part of a byte: a map that stores to packed memory is made to compute all
elements of a byte in one iteration. Where that cannot be, elements are set one by one, by two
atomics on the word around each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.passes.canonicalize.rules import map_over, variables_of
from tilewright.passes.core import *
from tilewright.passes.lower.elements import PrintRows

FLOAT16, UINT16, UINT8, UINT32 = map(dtype, ("float16", "uint16", "uint8", "uint32"))
WORD = 4  # bytes of the least that atomics change
_HELD = {
    "int4": "int8", "int2": "int8", "uint4": "uint8", "uint2": "uint8", "float4_e2m1fn": "float16",
}  # fmt: skip
# float4's exponents begin 14 powers of two above those that float16 gives the same bits
_SCALE = float(1 << 14)
_IN_RANGE = ("min", "max", "&", "|", "^", "%", ">>", "and", "or")


def held_in(kind: DType) -> DType:
    """The type that values of `kind` are computed in; itself from a byte on."""
    if kind.packed and kind.name not in _HELD:
        raise CompileError(
            f"{kind} has no CUDA form",
            expected="one of " + ", ".join(_HELD),
            fix="keep its bits in uint8, and decode them in the kernel",
        )
    return dtype(_HELD[kind.name]) if kind.packed else kind


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
        wide = value if source.name == "float64" else cast(value, FLOAT32)
        return cast(_rounded(wide), held_in(kind))
    whole = cast(value, INT32)  # of floats toward zero, saturating, NaN to 0
    if source.is_float:
        whole = binary("max", whole, const(int(kind.min_value)))
        whole = binary("min", whole, const(int(kind.max_value)))
    elif not source.is_bool:
        whole = wrapped(whole, kind)
    return cast(whole, held_in(kind))


def _rounded(x: Expr) -> Expr:
    """float32 or float64 to the nearest value of float4_e2m1fn, even of two; NaN to -0."""

    def number(value: float) -> Expr:
        return const(value, x.dtype)

    def nearest(e: Expr) -> Expr:
        return Call("round", (e,), x.dtype)

    size = Call("abs", (x,), x.dtype)
    large = binary("min", nearest(size * number(0.5)) * number(2.0), number(6.0))
    found = select(
        size < number(2.0),
        nearest(size * number(2.0)) * number(0.5),
        select(size < number(4.0), nearest(size), large),
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
    kind, packed = e.dtype, e.dtype.packed
    source = e.children[0].dtype if e.children else kind
    match e:
        case Const(value):
            return const(value, held_in(kind))
        case Var(name):
            return Var(name, held_in(kind))
        case Cast():
            return to_narrow(children[0], source, kind) if packed else cast(children[0], kind)
        case Call("reinterpret") if packed or source.packed:
            return of_bits(bits_of(children[0], source), kind)
        case Call("popcount" | "clz" as name) if source.packed:
            # of a byte that begins with zeros
            low = cast(bits_of(children[0], source), children[0].dtype)
            found: Expr = Call(name, (low,), low.dtype)
            return found if name == "popcount" else found - const(8 - source.bits, low.dtype)
        case Bin() | Cmp() | Call() if source.packed and source.is_float:
            wide = tuple(cast(c, FLOAT32) for c in children)
            if not isinstance(e, Call):
                found = e.rebuild(wide)
            else:
                found = Call(e.name, wide, FLOAT32 if packed else kind)
            return to_narrow(found, FLOAT32, kind) if packed else found
        case Call(name) if packed:
            return wrapped(Call(name, children, held_in(kind)), kind)
    made = e.rebuild(children)
    return wrapped(made, kind) if packed and isinstance(e, Bin) and e.op not in _IN_RANGE else made


# ── which tiles are packed ───────────────────────────────────────────────────────────────────


def packed_tiles(kernel: Kernel) -> set[str]:
    """Shared tiles whose elements share bytes: those that are seen as another type too, and those
    that nothing fills but copies of packed tensors, and that no product reads."""
    ops = list(walk_ops(kernel))
    views = [op for op in ops if isinstance(op, View) and op.buffer.is_shared]
    made = [op.buffer for op in walk_ops(kernel, Alloc, View)]
    tiles = {b.name for b in made if b.is_shared and b.dtype.packed}
    recast = [op for op in views if op.buffer.dtype != op.source.dtype]
    forced = {b.name for op in recast for b in (op.buffer, op.source)} & tiles
    filled: set[str] = set()
    other = {b.name for op in views for b in (op.buffer, op.source)}
    other |= {b.name for b in made if b.layout is not None}
    for op in ops:
        if isinstance(op, Copy) and op.dst.buffer.name in tiles:
            source = op.src.buffer
            plain = source.is_global and source.dtype == op.dst.dtype
            plain = plain and whole_bytes(op.dst) and whole_bytes(op.src)
            (filled if plain else other).add(op.dst.buffer.name)
        elif isinstance(op, (Store, Hint)) and op.buffer is not None:
            other.add(op.buffer.name)
        elif isinstance(op, (Gemm, Reduce, Scan, Atomic, Intrinsic, Fill)):
            other |= {r.buffer.name for r in operands(op) if isinstance(r, Region)}
    return forced | (filled - other)


def whole_bytes(region: Region, ranges: Ranges | None = None) -> bool:
    """Whether a region begins and ends between bytes. Starts that are known only with `ranges`
    are taken for such without."""
    per = per_byte(region.dtype)
    start, extent = region.starts[-1], region.extents[-1]
    whole = isinstance(extent, Const) and int(extent.value) % per == 0
    unknown = ranges is None and not isinstance(start, Const)
    return whole and (unknown or multiple_of(start, ranges or Ranges()) % per == 0)


# ── rewriting ────────────────────────────────────────────────────────────────────────────────


def pack_elements(program: Program, target: Target) -> Program:
    """Pack elements of less than a byte. Kernels with roles are refused: their layouts count
    elements."""
    if not uses_packed(program):
        return program
    for tensor in (*program.tensors, *program.scratch):
        held_in(tensor.dtype)
        if tensor.dtype.packed and tensor.strides is not None:
            raise CompileError(
                f"{tensor.name} has strides, and several of its elements share a byte",
                expected="a row-major tensor",
                got=f"{tensor.dtype} with strides",
                fix="pass a contiguous copy, or declare its bytes as uint8",
            )
    kernels = []
    for kernel in program.kernels:
        if any(walk_ops(kernel, Role)):
            raise CompileError(
                "a scheduled kernel has elements of less than a byte",
                loc=kernel.loc,
                fix="declare their bytes as uint8, and decode them in the kernel",
            )
        packing = Packing(packed_tiles(kernel))
        body = packing.body(kernel.body, scope.entry(kernel, program.dims))
        kernels.append(rebuild(kernel, body=(*packing.words.values(), *body)))
    both = Packing(set())
    return replace(
        program,
        params=tuple(both.buffer(p) if isinstance(p, Buffer) else p for p in program.params),
        scratch=tuple(both.buffer(b) for b in program.scratch),
        kernels=tuple(kernels),
    )


def uses_packed(program: Program) -> bool:
    """Whether elements of less than a byte are anywhere in `program`."""
    ops = [op for kernel in program.kernels for op in walk_ops(kernel)]
    named = (buffer for op in ops for buffer in named_buffers(op))
    return any(b.dtype.packed for b in (*program.tensors, *program.scratch, *named)) or any(
        node.dtype.packed for op in ops for e in expressions(op) for node in walk(e)
    )


@dataclass
class Packing:
    """The rewriting of one kernel; `tiles` are the shared tiles that are packed, `words` bytes of
    tensors as words of 32 bits."""

    tiles: set[str]
    words: dict[str, View] = field(default_factory=dict)
    ranges: Ranges = field(default_factory=Ranges)

    def is_packed(self, buffer: Buffer) -> bool:
        """Whether elements of `buffer` share bytes."""
        return buffer.dtype.packed and (buffer.is_global or buffer.name in self.tiles)

    def buffer(self, buffer: Buffer) -> Buffer:
        """What stands for `buffer`."""
        if not self.is_packed(buffer):
            return replace(buffer, dtype=held_in(buffer.dtype)) if buffer.dtype.packed else buffer
        row = simplify(buffer.shape[-1] // per_byte(buffer.dtype))
        return replace(buffer, dtype=UINT8, shape=(*buffer.shape[:-1], row), layout=None)

    def value(self, e: Expr) -> Expr:
        """`e`, held."""
        children = tuple(self.value(c) for c in e.children)
        if not isinstance(e, Load):
            return computed(e, children)
        buffer, kind = self.buffer(e.buffer), e.dtype
        if not self.is_packed(e.buffer):
            return Load(buffer, children, e.loc)
        per, (*outer, last) = per_byte(kind), children
        byte = Load(buffer, (*outer, self.plain(last // per)), e.loc)
        shift = self.plain(last % per) * kind.bits
        bits = (cast(byte, INT32) >> cast(shift, INT32)) & const((1 << kind.bits) - 1)
        return of_bits(bits, kind)

    def bits(self, value: Expr, kind: DType) -> Expr:
        """What lies in memory for `value`, converted to `kind`."""
        return bits_of(self.value(cast(value, kind)), kind)

    def plain(self, e: Expr) -> Expr:
        return simplify(e, self.ranges)

    def bytes_of(self, region: Region) -> Region | None:
        """A region of packed memory in bytes; None where it begins or ends within one."""
        if not whole_bytes(region, self.ranges):
            return None
        per, (*starts, last) = per_byte(region.dtype), map(self.value, region.starts)
        row = const(int(region.extents[-1]) // per)
        place = (*starts, self.plain(last // per))
        return Region(self.buffer(region.buffer), place, (*region.extents[:-1], row), region.cta)

    def body(self, body: Body, ranges: Ranges) -> Body:
        found: list[Op] = []
        for op in body:
            self.ranges = ranges
            with at(op.loc):
                found += self.op(op)
            ranges = scope.after(op, ranges)
        self.ranges = ranges
        return tuple(found)

    def op(self, op: Op) -> Iterable[Op]:
        rule = _RULES.get(type(op))
        return (self.generic(op),) if rule is None else tuple(rule(self, op))

    def generic(self, op: Op) -> Op:
        ranges = self.ranges
        new = scope.map_inside(op, ranges, self.body)
        self.ranges = ranges
        bound = {f.name: getattr(op, f.name) for f in marked(op, "binds")}
        held = {name: self.value(var) for name, var in bound.items() if isinstance(var, Var)}
        return rebuild(map_operands(new, self.value, self.buffer), **held)

    def refuse(self, op: Op, region: Region, what: str) -> CompileError:
        kind = region.dtype
        return CompileError(
            f"{what} {region.buffer.name} reaches {kind} elements that share bytes",
            fix=f"T.copy it into a tile of {held_in(kind)} first",
        )


def _store(p: Packing, op: Store) -> Iterator[Op]:
    """One element of a tensor, whoever writes its neighbours."""
    if not p.is_packed(op.buffer):
        yield p.generic(op)
        return
    kind, raw = op.buffer.dtype, p.buffer(op.buffer)
    per = per_byte(kind)
    total: Expr = const(1)
    for size in raw.shape:
        total = total * size
    total = p.plain(total)
    if not op.buffer.is_global or multiple_of(total, p.ranges) % WORD:
        raise CompileError(
            f"{op.buffer.name} is written element by element, and {per} {kind} "
            "elements share a byte",
            expected="a T.Parallel whose last index is a variable of an even extent, without "
            f"condition, or a tensor of a multiple of {WORD} bytes",
            got=f"{op.buffer.name}[…, {op.indices[-1]}] in {op.buffer.space.value} memory of "
            f"{total} bytes",
            fix=f"write to a tile of {kind} and T.copy that to {op.buffer.name}",
        )
    if raw.name not in p.words:
        name = fresh_name(f"{raw.name}_words")
        shape = (p.plain(total // WORD),)
        p.words[raw.name] = View(replace(raw, name=name, dtype=UINT32, shape=shape), raw)
    *outer, last = indices = [p.value(i) for i in op.indices]
    inside: Expr = TRUE
    for index, size in zip(indices, op.buffer.shape, strict=True):
        for test in (index >= 0, index < size):
            if prove(test, p.ranges) is not True:
                inside = logical_and(inside, test)
    at: Expr = const(0)
    for index, size in zip((*outer, last // per), raw.shape, strict=True):
        at = at * size + index
    shift = cast(p.plain(at % WORD) * 8 + p.plain(last % per) * kind.bits, UINT32)
    place = element(p.words[raw.name].buffer, p.plain(at // WORD))
    mask = const((1 << kind.bits) - 1, UINT32) << shift
    both = (
        Atomic("and", place, Call("invert", (mask,), UINT32)),
        Atomic("or", place, cast(p.bits(op.value, kind), UINT32) << shift),
    )
    yield from both if inside is TRUE else (If(inside, both),)


def _copy(p: Packing, op: Copy) -> Iterable[Op]:
    src, dst = op.src, op.dst
    packed = [p.is_packed(r.buffer) for r in (src, dst)]
    if not any(packed) and (src.dtype == dst.dtype or not dst.dtype.packed):
        return (p.generic(op),)  # the held type has the same values
    if all(packed) and src.dtype == dst.dtype:
        one, other = p.bytes_of(src), p.bytes_of(dst)
        if one is not None and other is not None:
            return (rebuild(op, src=one, dst=other),)
    if op.barrier is not None or op.reduce is not None or (src.cta or dst.cta) is not None:
        raise p.refuse(op, src if src.dtype.packed else dst, "this copy of")
    return _expanded(p, replace(op, atom=None))


def _expanded(p: Packing, op: Op) -> Iterable[Op]:
    found = expand_op(op, stem="p{}")
    assert found is not None
    return p.op(found)


def _fill(p: Packing, op: Fill) -> Iterable[Op]:
    if p.is_packed(op.dst.buffer):
        return _expanded(p, op)
    return (p.generic(rebuild(op, value=cast(op.value, op.dst.dtype))),)


def _folded(p: Packing, op: Reduce | Scan) -> Iterator[Op]:
    """Reductions and scans in the held type, then brought back into the narrow one's range."""
    yield from _reaches(p, op)
    kind = op.dst.dtype
    if not kind.packed:
        return
    dst = map_operands(op, p.value, p.buffer).dst
    vars_ = variables_of(dst, "p{}")
    place = dst.at(vars_)
    value: Expr = Load(dst.buffer, place, op.loc)
    value = to_narrow(value, dst.dtype, kind) if kind.is_float else wrapped(value, kind)
    inner = Store(dst.buffer, place, value)
    yield from p.op(map_over(vars_, dst.tile, inner, dst))


def _gemm(p: Packing, op: Gemm) -> Iterable[Op]:
    if op.c.dtype.packed:
        raise CompileError(
            f"no instruction accumulates products in {op.c.dtype}",
            fix="accumulate in int32 or float32, and T.copy the result: T.copy casts",
        )
    return (p.generic(op),)


def _view(p: Packing, op: View) -> Iterable[Op]:
    kind, source = op.buffer.dtype, op.source.dtype
    if not (p.is_packed(op.source) or p.is_packed(op.buffer)):
        if kind != source and (kind.packed or source.packed):
            raise CompileError(
                f"{op.buffer.name} shows {source} elements of {op.source.name} as {kind}, "
                "and threads hold one in a register of its own",
                fix="view a tile in shared memory, or convert the elements in a T.Parallel",
            )
        return (p.generic(op),)
    offset = p.value(op.offset)
    if p.is_packed(op.buffer):
        per = per_byte(kind)
        if multiple_of(offset, p.ranges) % per:
            raise CompileError(
                f"{op.buffer.name} begins within a byte of {op.source.name}",
                expected=f"an offset that is a multiple of {per}",
                got=str(op.offset),
            )
        offset = p.plain(offset // per)
    return (rebuild(op, buffer=p.buffer(op.buffer), source=p.buffer(op.source), offset=offset),)


def _reaches(p: Packing, op: Op) -> Iterable[Op]:
    """Ops that take regions as they are."""
    found = [r for r in operands(op) if isinstance(r, Region) and p.is_packed(r.buffer)]
    if not found:
        return (p.generic(op),)
    if isinstance(op, Intrinsic) and op.name == "print":
        rows = PrintRows(
            op,
            lambda: fresh_var("i"),
            lambda spot: Load(spot.buffer, spot.starts, op.loc),
        )
        return p.body(tuple(rows.lines()), p.ranges)
    word = op.name if isinstance(op, Intrinsic) else f"this {type(op).__name__.lower()}"
    raise p.refuse(op, found[0], f"{word} of")


# ── maps that write bytes ───────────────────────────────────────────────────────────────────


def _map(p: Packing, op: Map) -> Iterable[Op]:
    stores = [s for s in walk_ops(op.body, Store) if p.is_packed(s.buffer)]
    widths = {per_byte(s.buffer.dtype) for s in stores}
    if len(widths) == 1 and all(_is_last(op, store) for store in stores):
        for place in reversed(range(len(op.vars))):
            found = _paired(p, op, stores, place, *widths)
            if found is not None:
                return (found,)
    return (p.generic(op),)


def _is_last(op: Map, store: Store) -> bool:
    """Whether `store` always happens, and nothing after it reads what it wrote."""
    places = [i for i, s in enumerate(op.body) if s is store]
    behind = op.body[places[0] + 1 :] if places else ()
    read = {x.buffer.name for x in loads_within(behind)}
    return bool(places) and store.buffer.name not in read


def _paired(p: Packing, op: Map, stores: list[Store], place: int, per: int) -> Map | None:
    """`op` with `per` iterations along variable `place` in one; None where those do not write the
    elements of one byte."""
    var, extent = op.vars[place], op.extents[place]
    if not isinstance(extent, Const) or int(extent.value) % per:
        return None
    byte = fresh_var(var.name, dtype=var.dtype)
    vars_ = (*op.vars[:place], byte, *op.vars[place + 1 :])
    extents = (*op.extents[:place], const(int(extent.value) // per), *op.extents[place + 1 :])
    frame = Map(vars_, extents, ())
    inside = scope.inside(frame, "body", p.ranges)

    def at(store: Store, k: int) -> list[Expr]:
        values = {var: byte * per + k}
        return [simplify(substitute(i, values), inside) for i in store.indices]

    for store in stores:
        *outer, first = at(store, 0)
        if multiple_of(first, inside) % per:
            return None
        for k in range(1, per):
            *others, last = at(store, k)
            if any(a is not b for a, b in zip(outer, others, strict=True)):
                return None
            if simplify(last - first, inside) is not const(k, last.dtype):
                return None
    body: list[Op] = []
    parts: dict[int, list[Expr]] = {}  # by id of a store, the bits of its elements
    for k in range(per):
        part = substitute_vars(op.body, {var: simplify(byte * per + k, inside)})
        part = rename_unique(part) if k else part
        p.ranges = inside
        for old, new in zip(op.body, part, strict=True):
            behind = scope.after(new, p.ranges)
            if isinstance(new, Store) and p.is_packed(new.buffer):
                bits = fresh_var(f"{new.buffer.name}_bits")
                body.append(Let(bits, p.bits(new.value, new.buffer.dtype)))
                parts.setdefault(id(old), []).append(bits)
            else:
                body += p.op(new)
            p.ranges = behind
    p.ranges = inside
    for store in stores:
        *outer, last = map(p.value, at(store, 0))
        joined, *more = parts[id(store)]
        for k, other in enumerate(more, 1):
            joined = joined | (other << (k * store.buffer.dtype.bits))
        indices = (*outer, p.plain(binary("//", last, per)))
        body.append(Store(p.buffer(store.buffer), indices, cast(joined, UINT8)))
    return rebuild(frame, body=tuple(body))


_RULES: dict[type[Op], Callable[[Packing, Any], Iterable[Op]]] = {
    Store: _store,
    Copy: _copy,
    Fill: _fill,
    Reduce: _folded,
    Scan: _folded,
    Gemm: _gemm,
    View: _view,
    Map: _map,
    Atomic: _reaches,
    Intrinsic: _reaches,
}
