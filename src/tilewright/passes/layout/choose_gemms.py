"""Choose the matrix instruction of every product.

Warpgroup instructions read shared memory themselves. Those of warps multiply fragments: a product
from shared memory becomes a loop over K that loads what one instruction takes and multiplies it.
Products by threads read shared memory; an operand in registers goes there first.

What no instruction accumulates in (bfloat16, int16, a part of a fragment, shared memory) is
accumulated beside, in a fragment of a wider type that one does, and rounded once per product.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Region, Space, along, whole
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import FALSE, TRUE, Var, const, variables
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import Layout
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    Fill,
    For,
    Gemm,
    Hint,
    If,
    Kernel,
    Op,
    Program,
    Role,
    View,
    walk_ops,
)
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.layout.matrix_tiles import (
    RULES,
    Split,
    against,
    operand_kind,
    shape_of,
    split_of,
)
from tilewright.passes.reasons import because, costs
from tilewright.support.errors import CompileError

# what stands for an accumulator that instructions do not have: integers wrap alike
_WIDER = {
    "float16": "float32", "bfloat16": "float32", "uint32": "int32", "int16": "int32",
    "uint16": "int32", "int8": "int32", "uint8": "int32", "int4": "int32", "uint4": "int32",
    "int2": "int32", "uint2": "int32", "float8_e4m3fn": "float32", "float8_e5m2": "float32",
}  # fmt: skip


def choose_gemms(program: Program, target: Target) -> Program:
    """`program` with an atom for each product of the kernels that have no roles."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(walk_ops(kernel, Role)):
            return kernel
        threads = prod(kernel.threads)
        products = list(walk_ops(kernel, Gemm))
        # a product of a product: warps that own whole rows have what they need for the next
        chained = any(op.a.buffer.space is Space.FRAGMENT for op in products)
        # tiles whose layout is not free: descriptors may not say it
        views = list(walk_ops(kernel, View))
        fixed = aliases(kernel).viewed | {
            op.buffer.name for op in walk_ops(kernel, Alloc) if isinstance(op.buffer.layout, Layout)
        }
        # fragments that say where their elements are: a part of one may be what instructions need
        pinned = {
            op.buffer.name
            for op in walk_ops(kernel, Alloc, Hint)
            if op.buffer is not None
            and isinstance(op.layout if isinstance(op, Hint) else op.buffer.layout, Fragment)
        }
        constant = {op.var.name for op in walk_ops(kernel, For) if op.kind == "unroll"}

        def rule(op: Op) -> Op | Body | None:
            if isinstance(op, Gemm) and op.atom is None:
                if chained and op.policy == "square":
                    op = rebuild(op, policy="full_row")
                before, op = _own_parts(op, constant | pinned, names)
                warps = [b.name for b in (op.a.buffer, op.b.buffer) if b.name in fixed]
                fast = Feature.WGMMA in target.features and warps
                able = target.without(Feature.WGMMA) if warps else target
                why = _layout_of(warps[0], views) if fast else ""
                choice = _Choice(kernel.name, threads, able, why, names)
                whole_tile = op.c.is_whole or op.c.buffer.name in pinned
                if op.c.buffer.space is not Space.FRAGMENT or not whole_tile:
                    return (*before, *_beside(op, op.c.dtype, choice))
                return (*before, *_chosen(op, choice))
            return None

        return rebuild(kernel, body=map_body(kernel.body, rule))

    return map_kernels(program, one)


@dataclass(frozen=True)
class _Choice:
    """What instructions are chosen from; `against`: what keeps operands from wgmma."""

    kernel: str
    threads: int
    target: Target
    against: str
    names: set[str]


def _layout_of(name: str, views: list[View]) -> str:
    """Why a tile cannot lie as wgmma needs it."""
    for op in views:
        if name in (op.buffer.name, op.source.name):
            one, other = op.buffer.name, op.source.name
            return (
                f"no wgmma: {one} is a view of {other}, which lies row by row: copy it into a tile "
                "of its own"
            )
    return f"no wgmma: {name} has a layout of its own: leave annotate_layout or padding out"


def _say(op: Gemm, split: Split, choice: _Choice) -> None:
    """Why faster instructions do not do this product; a warning where tensor cores could."""
    said = against(op, choice.threads, choice.target)
    if choice.against:
        said[:1] = [choice.against]
    if not said:
        return
    because(choice.kernel, op, "; ".join(said))
    able = operand_kind(op, op.a) is not None and operand_kind(op, op.b) is not None
    if split.atom == "fma" and able and Feature.MMA in choice.target.features:
        costs(choice.kernel, op.loc, f"this product runs without tensor cores: {'; '.join(said)}")


def _chosen(op: Gemm, choice: _Choice) -> Iterable[Op]:
    threads, target, names = choice.threads, choice.target, choice.names
    split = split_of(op, threads, target)
    wide = _WIDER.get(op.c.dtype.name)
    if split is None and wide is not None and op.meta is None:
        yield from _beside(op, dtype(wide), choice)
        return
    if split is None:
        m, n, k = shape_of(op)
        raise CompileError(
            f"no instruction of {target} multiplies this {m}×{n}×{k} tile on {threads} threads",
            loc=op.loc,
            expected=f"types, shapes and threads that one of {', '.join(RULES)} takes: M and N "
            "multiples of 16 and 8 (64 and 8 for warpgroups) times the warps along them, K of the "
            "instruction's",
            got=f"{op.a.dtype} by {op.b.dtype} into {op.c.dtype}",
            fix="use a float32 accumulator, whole warps, and tiles that they divide",
            notes=tuple(against(op, threads, target)),
        )
    _say(op, split, choice)
    yield from _EXPAND[split.atom](op, split, names)


def _own_parts(op: Gemm, constant: set[str], names: set[str]) -> tuple[Body, Gemm]:
    """`op` with parts of fragments, but for slices of K at constant places, in fragments of their
    own. `constant`: variables of unrolled loops, and fragments whose layout is given."""
    before: list[Op] = []
    for name, region, deep in (
        ("a", op.a, 0 if op.transpose_a else 1),
        ("b", op.b, 1 if op.transpose_b else 0),
    ):
        buffer = region.buffer
        if buffer.space is not Space.FRAGMENT or buffer.name in constant:
            continue
        start = region.starts[deep - 2]
        rest = [
            (s, e, size)
            for i, (s, e, size) in enumerate(
                zip(region.starts, region.extents, buffer.shape, strict=True)
            )
            if i != deep + buffer.rank - 2
        ]
        if all(e is size for _, e, size in rest) and all(
            v.name in constant for v in variables(start)
        ):
            continue
        tile = tuple(region.extents[-2:])
        held = Buffer(fresh_name(f"{buffer.name}_own", names), tile, buffer.dtype, Space.FRAGMENT)
        before += [Alloc(held, loc=op.loc), Copy(region, whole(held), loc=op.loc)]
        op = rebuild(op, **{name: whole(held)})
    return tuple(before), op


def _beside(op: Gemm, kind: DType, choice: _Choice) -> Iterable[Op]:
    """The product in a fragment of type `kind`, which begins and ends as the accumulator."""
    m, n, _ = shape_of(op)
    suffix = "own" if kind == op.c.dtype else "wide"
    wide = Buffer(
        fresh_name(f"{op.c.buffer.name}_{suffix}", choice.names),
        (const(m), const(n)),
        kind,
        Space.FRAGMENT,
    )
    yield Alloc(wide, loc=op.loc)
    if op.clear is not TRUE:
        yield Copy(op.c, whole(wide), loc=op.loc)
    yield from _chosen(rebuild(op, c=whole(wide)), choice)
    yield Copy(whole(wide), op.c, loc=op.loc)


def _wgmma(op: Gemm, split: Split, names: set[str]) -> Iterable[Op]:
    yield rebuild(op, atom="wgmma")


def _mma(op: Gemm, split: Split, names: set[str]) -> Iterable[Op]:
    assert split.kind is not None
    step = split.kind.k
    _, _, k = shape_of(op)
    yield from _cleared(op)
    at = Var(fresh_name("kk", names))
    parts: dict[str, Region] = {}
    loads: list[Op] = []
    for name, region, deep in (
        ("a", op.a, 0 if op.transpose_a else 1),
        ("b", op.b, 1 if op.transpose_b else 0),
    ):
        part = along(region, deep, at * step, step)
        if region.buffer.space is Space.FRAGMENT:
            parts[name] = part
            continue
        shape = tuple(const(s) for s in part.static_tile)
        held = Buffer(
            fresh_name(f"{region.buffer.name}_part", names), shape, region.dtype, Space.FRAGMENT
        )
        yield Alloc(held, loc=op.loc)
        loads.append(Copy(part, whole(held), loc=op.loc))
        parts[name] = whole(held)
    product = rebuild(op, atom="mma", clear=FALSE, **parts)
    yield For(at, const(0), const(k // step), (*loads, product), kind="unroll", loc=op.loc)


def _cleared(op: Gemm) -> Iterable[Op]:
    """The accumulator set to zero where the product asks for it."""
    if op.clear is FALSE:
        return
    fill = Fill(op.c, const(0, op.c.dtype), loc=op.loc)
    yield fill if op.clear is TRUE else If(op.clear, (fill,), loc=op.loc)


def _fma(op: Gemm, split: Split, names: set[str]) -> Iterable[Op]:
    yield from _cleared(op)
    operands: dict[str, Region] = {}
    for name, region in (("a", op.a), ("b", op.b)):
        if region.buffer.space is Space.FRAGMENT:
            held = replace(
                region.buffer,
                name=fresh_name(f"{region.buffer.name}_shared", names),
                space=Space.SHARED,
                layout=None,
            )
            yield Alloc(held, loc=op.loc)
            yield Copy(whole(region.buffer), whole(held), loc=op.loc)
            region = replace(region, buffer=held)
        operands[name] = region
    yield rebuild(op, atom="fma", clear=FALSE, **operands)


_EXPAND = {"wgmma": _wgmma, "mma": _mma, "fma": _fma}
