"""Rewrite elements of less than a byte as bytes.

Tensors, and shared tiles that are filled from them, become arrays of bytes that hold several
elements each, the first in the low bits; other tiles hold one element in a byte (or in whatever
`packed_values` computes with). Copies between packed places stay copies, of bytes. Everything
else becomes nests that unpack what they read.

No thread can write part of a byte: a nest that stores to packed memory is made to compute all
elements of a byte in one iteration. Where that cannot be, elements are set one by one, by two
atomics on the word around each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import multiple_of, prove
from tilewright.ir.buffer import Buffer, Region, Space, element
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import (
    TRUE,
    Call,
    Const,
    Expr,
    Load,
    binary,
    cast,
    compare,
    const,
    logical_and,
    substitute,
)
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Copy,
    Fill,
    Gemm,
    If,
    Intrinsic,
    Let,
    Map,
    Op,
    Program,
    Reduce,
    Role,
    Scan,
    Store,
    View,
    expressions,
    op_loads,
    regions,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    fresh_var,
    map_operands,
    program_names,
    rebuild,
    rename_unique,
    substitute_vars,
)
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.expand_copies import expand_op, map_over, variables_of
from tilewright.passes.canonicalize.packed_values import (
    UINT8,
    Packing,
    Rule,
    bits_of,
    check_known,
    packed_tiles,
    per_byte,
    to_narrow,
    wrapped,
)
from tilewright.passes.lower.elements import PrintRows
from tilewright.support.errors import CompileError

WORD = 4  # bytes of the least that atomics change


def pack_elements(program: Program, target: Target) -> Program:
    """`program` without elements of less than a byte. Kernels with roles pass unchanged: their
    layouts are said in elements."""
    if not uses_packed(program):
        return program
    for tensor in (*program.tensors, *program.scratch):
        check_known(tensor.dtype, program.loc)
        if tensor.dtype.packed and tensor.strides is not None:
            raise CompileError(
                f"{tensor.name} has strides, and several of its elements share a byte",
                loc=program.loc,
                expected="a row-major tensor",
                got=f"{tensor.dtype} with strides",
                fix="pass a contiguous copy, or declare its bytes as uint8",
            )
    names = program_names(program)
    kernels = []
    for kernel in program.kernels:
        if any(isinstance(op, Role) for op in walk_ops(kernel)):
            raise CompileError(
                "a scheduled kernel has elements of less than a byte",
                loc=kernel.loc,
                fix="declare their bytes as uint8, and decode them in the kernel",
            )
        for op in walk_ops(kernel):
            if isinstance(op, (Alloc, View)):
                check_known(op.buffer.dtype, op.loc)
        packing = Packing(names, packed_tiles(kernel), _RULES)
        body = packing.body(kernel.body, scope.entry(kernel, program.dims))
        views = tuple(View(words, source) for words, source in packing.words.values())
        kernels.append(rebuild(kernel, body=(*views, *body)))
    both = Packing(names, set())
    return replace(
        program,
        params=tuple(both.buffer(p) if isinstance(p, Buffer) else p for p in program.params),
        scratch=tuple(both.buffer(b) for b in program.scratch),
        kernels=tuple(kernels),
    )


def uses_packed(program: Program) -> bool:
    """Whether elements of less than a byte are anywhere in `program`."""
    ops = [op for kernel in program.kernels for op in walk_ops(kernel)]
    made = [op.buffer for op in ops if isinstance(op, (Alloc, View))]
    return any(b.dtype.packed for b in (*program.tensors, *program.scratch, *made)) or any(
        _has_packed(e) for op in ops for e in expressions(op)
    )


def _has_packed(e: Expr) -> bool:
    return e.dtype.packed or any(_has_packed(c) for c in e.children)


def _store(p: Packing, op: Store) -> Iterable[Op]:
    return _set_bits(p, op) if p.is_packed(op.buffer) else (p.generic(op),)


def _set_bits(p: Packing, op: Store) -> Iterable[Op]:
    """One element of a tensor, whoever writes its neighbours."""
    kind, raw = op.buffer.dtype, p.buffer(op.buffer)
    total: Expr = const(1)
    for size in raw.shape:
        total = total * size
    if op.buffer.space is not Space.GLOBAL or multiple_of(p.plain(total), p.ranges) % WORD:
        raise CompileError(
            f"{op.buffer.name} is written element by element, and {per_byte(kind)} {kind} "
            "elements share a byte",
            loc=op.loc,
            expected="a T.Parallel whose last index is a variable of an even extent, without "
            f"condition, or a tensor of a multiple of {WORD} bytes",
            got=f"{op.buffer.name}[…, {op.indices[-1]}] in {op.buffer.space.value} memory of "
            f"{p.plain(total)} bytes",
            fix=f"write to a tile of {kind} and T.copy that to {op.buffer.name}",
        )
    if raw.name not in p.words:
        name = fresh_name(f"{raw.name}_words", p.names)
        count = p.plain(total // WORD)
        words = replace(raw, name=name, dtype=dtype("uint32"), shape=(count,))
        p.words[raw.name] = (words, raw)
    words, _ = p.words[raw.name]
    per = per_byte(kind)
    indices = tuple(p.value(i) for i in op.indices)
    inside: Expr = TRUE
    for index, size in zip(indices, op.buffer.shape, strict=True):
        for test in (compare(">=", index, 0), compare("<", index, size)):
            if prove(test, p.ranges) is not True:
                inside = logical_and(inside, test)
    at: Expr = const(0)
    for index, size in zip((*indices[:-1], indices[-1] // per), raw.shape, strict=True):
        at = at * size + index
    shift = p.plain(at % WORD) * 8 + p.plain(indices[-1] % per) * kind.bits
    place = element(words, p.plain(at // WORD))
    unsigned = words.dtype
    mask = const((1 << kind.bits) - 1, unsigned) << cast(shift, unsigned)
    bits = cast(bits_of(p.value(cast(op.value, kind)), kind), unsigned) << cast(shift, unsigned)
    both = (
        Atomic("and", place, Call("invert", (mask,), unsigned), loc=op.loc),
        Atomic("or", place, bits, loc=op.loc),
    )
    yield from both if inside is TRUE else (If(inside, both, loc=op.loc),)


def _copy(p: Packing, op: Copy) -> Iterable[Op]:
    src, dst = op.src, op.dst
    packed = [p.is_packed(r.buffer) for r in (src, dst)]
    if not any(packed) and (src.dtype == dst.dtype or not dst.dtype.packed):
        yield p.generic(op)  # the held type has the same values
        return
    if all(packed) and src.dtype == dst.dtype:
        one, other = p.bytes_of(src), p.bytes_of(dst)
        if one is not None and other is not None:
            yield rebuild(op, src=one, dst=other)
            return
    if op.barrier is not None or op.reduce is not None or (src.cta or dst.cta) is not None:
        raise p.refuse(op, src if src.dtype.packed else dst, "this copy of")
    found = expand_op(replace(op, atom=None), p.names, "p{}")
    assert found is not None
    yield from p.op(found)


def _fill(p: Packing, op: Fill) -> Iterable[Op]:
    kind = op.dst.dtype
    op = rebuild(op, value=cast(op.value, kind)) if kind.packed else op
    if not p.is_packed(op.dst.buffer):
        yield p.generic(op)
        return
    region = p.bytes_of(op.dst)
    if region is None:
        raise p.refuse(op, op.dst, "this fill of")
    parts = [bits_of(p.value(op.value), kind)] * per_byte(kind)
    yield rebuild(op, dst=region, value=cast(_joined(parts, kind), UINT8))


def _joined(parts: list[Expr], kind: DType) -> Expr:
    """A byte, as an int32, of the bits of its elements."""
    found = parts[0]
    for k, part in enumerate(parts[1:], 1):
        found = found | (part << (k * kind.bits))
    return found


def _folded(p: Packing, op: Reduce | Scan) -> Iterable[Op]:
    """Reductions and scans in the held type, then brought back into the narrow one's range."""
    for region in (op.src, op.dst):
        if p.is_packed(region.buffer):
            raise p.refuse(op, region, f"this {type(op).__name__.lower()} of")
    yield p.generic(op)
    kind = op.dst.dtype
    if not kind.packed:
        return
    dst = map_operands(op, p.value, p.buffer).dst
    vars_ = variables_of(dst, p.names, "p{}")
    place = dst.at(vars_)
    value: Expr = Load(dst.buffer, place, op.loc)
    value = to_narrow(value, dst.dtype, kind) if kind.is_float else wrapped(value, kind)
    inner = Store(dst.buffer, place, value, loc=op.loc)
    yield from p.op(map_over(vars_, dst.tile, inner, dst))


def _gemm(p: Packing, op: Gemm) -> Iterable[Op]:
    if op.c.dtype.packed:
        raise CompileError(
            f"no instruction accumulates products in {op.c.dtype}",
            loc=op.loc,
            fix="accumulate in int32 or float32, and T.copy the result: T.copy casts",
        )
    yield p.generic(op)


def _view(p: Packing, op: View) -> Iterable[Op]:
    kinds = (op.buffer.dtype, op.source.dtype)
    if not (p.is_packed(op.source) or p.is_packed(op.buffer)):
        if kinds[0] != kinds[1] and any(k.packed for k in kinds):
            raise CompileError(
                f"{op.buffer.name} shows {kinds[1]} elements of {op.source.name} as {kinds[0]}, "
                "and threads hold one in a register of its own",
                loc=op.loc,
                fix="view a tile in shared memory, or convert the elements in a T.Parallel",
            )
        yield p.generic(op)
        return
    offset = p.value(op.offset)
    if p.is_packed(op.buffer):
        per = per_byte(op.buffer.dtype)
        if multiple_of(offset, p.ranges) % per:
            raise CompileError(
                f"{op.buffer.name} begins within a byte of {op.source.name}",
                loc=op.loc,
                expected=f"an offset that is a multiple of {per}",
                got=str(op.offset),
            )
        offset = p.plain(offset // per)
    yield rebuild(op, buffer=p.buffer(op.buffer), source=p.buffer(op.source), offset=offset)


def _reaches(p: Packing, op: Op) -> Iterable[Op]:
    """Ops that take regions as they are."""
    found = [r for r in regions(op, reads=True, writes=True) if p.is_packed(r.buffer)]
    if isinstance(op, Intrinsic):
        found += [a for a in op.args if isinstance(a, Region) and p.is_packed(a.buffer)]
    if isinstance(op, Intrinsic) and op.name == "print" and found:
        rows = PrintRows(
            op,
            lambda: fresh_var("i", p.names),
            lambda spot: Load(spot.buffer, spot.starts, op.loc),
        )
        yield from p.body(tuple(rows.lines()), p.ranges)
        return
    if found:
        word = op.name if isinstance(op, Intrinsic) else type(op).__name__.lower()
        raise p.refuse(op, found[0], f"{word} of")
    yield p.generic(op)


# ── nests that write bytes ───────────────────────────────────────────────────────────────────


def _map(p: Packing, op: Map) -> Iterable[Op]:
    stores = [s for s in walk_ops(op.body) if isinstance(s, Store) and p.is_packed(s.buffer)]
    if not stores:
        yield p.generic(op)
        return
    per = max(per_byte(s.buffer.dtype) for s in stores)
    if all(_is_last(op, store) for store in stores):
        for place in reversed(range(len(op.vars))):
            found = _paired(p, op, stores, place, per)
            if found is not None:
                yield found
                return
    yield p.generic(op)


def _is_last(op: Map, store: Store) -> bool:
    """Whether `store` always happens, and nothing behind it reads what it wrote."""
    places = [i for i, s in enumerate(op.body) if s is store]
    if not places:
        return False
    behind = op.body[places[0] + 1 :]
    read = {x.buffer.name for s in walk_ops(behind) for x in op_loads(s)}
    return store.buffer.name not in read


def _paired(p: Packing, op: Map, stores: list[Store], place: int, per: int) -> Map | None:
    """`op` with `per` iterations along variable `place` in one; None where those do not write the
    elements of one byte."""
    var, extent = op.vars[place], op.extents[place]
    if not isinstance(extent, Const) or int(extent.value) % per:
        return None
    byte = fresh_var(var.name, p.names, var.dtype)
    vars_ = (*op.vars[:place], byte, *op.vars[place + 1 :])
    extents = (*op.extents[:place], const(int(extent.value) // per), *op.extents[place + 1 :])
    frame = Map(vars_, extents, (), loc=op.loc)
    inside = scope.inside(frame, "body", p.ranges)

    def at(e: Expr, k: int) -> Expr:
        return simplify(substitute(e, {var: byte * per + k}), inside)

    for store in stores:
        own = per_byte(store.buffer.dtype)
        first = [at(i, 0) for i in store.indices]
        if multiple_of(first[-1], inside) % own:
            return None
        for k in range(1, per):
            other = [at(i, k) for i in store.indices]
            if any(a is not b for a, b in zip(first[:-1], other[:-1], strict=True)):
                return None
            if simplify(other[-1] - first[-1], inside) is not const(k, other[-1].dtype):
                return None
    body: list[Op] = []
    written: dict[int, list[Expr]] = {i: [] for i in range(len(stores))}
    for k in range(per):
        part = substitute_vars(op.body, {var: simplify(byte * per + k, inside)})
        part = rename_unique(part, p.names) if k else part
        behind = inside
        for old, new in zip(op.body, part, strict=True):
            p.ranges = behind
            number = next((i for i, s in enumerate(stores) if s is old), None)
            if number is None:
                body += p.op(new)
            else:
                assert isinstance(new, Store)
                kind = new.buffer.dtype
                value = p.value(cast(new.value, kind))
                bits = fresh_var(f"{new.buffer.name}_bits", p.names)
                body.append(Let(bits, bits_of(value, kind), loc=new.loc))
                written[number].append(bits)
            behind = scope.after(new, behind)
    p.ranges = inside
    for number, store in enumerate(stores):
        kind, parts = store.buffer.dtype, written[number]
        own = per_byte(kind)
        for k in range(0, per, own):
            indices = [p.value(at(i, k)) for i in store.indices]
            row = p.plain(binary("//", indices[-1], own))
            value = cast(_joined(parts[k : k + own], kind), UINT8)
            body.append(Store(p.buffer(store.buffer), (*indices[:-1], row), value, loc=store.loc))
    return rebuild(frame, body=tuple(body))


_RULES: dict[type[Op], Rule] = {
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
