"""Products: which rule lowers which, and those by warpgroup matrix instructions: descriptors,
instruction shapes, fences.

A descriptor says where an operand begins and two strides; which layouts it can say is decided by
comparing the operand's layout with the canonical one, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.atoms import MatrixType, matrix_fragments
from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr, Var, const, select
from tilewright.ir.fragment import Fragment
from tilewright.ir.op import Fence, Gemm, Intrinsic, Map, Op, Store, regions, walk_ops
from tilewright.passes.addresses import TileAddress, registers_of, sub_tile, tile_address
from tilewright.passes.lower_mma import lower_fma, lower_mma, matrix_types
from tilewright.passes.lowering import Lowering, pin
from tilewright.support.errors import CompileError, Loc

M = 64
UINT64 = dtype("uint64")
# what a descriptor's two bits call a swizzle of this many bytes
_SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


@dataclass(frozen=True)
class Operand:
    """A shared operand: `leading` and `stride` in bytes, `mn_major` (the transposed flag)."""

    address: TileAddress
    mn_dim: int
    mn_major: bool
    leading: int
    stride: int

    def offset(self, mn: int, k: int) -> int:
        """Bytes from the first element to where an instruction's part begins."""
        coords = (mn, k) if self.mn_dim == 0 else (k, mn)
        return self.address.linear(*coords) * self.address.buffer.dtype.bits // 8


def shared_operand(
    address: TileAddress, mn_dim: int, mn_step: int, kind: MatrixType, op: Gemm, which: str
) -> Operand:
    """How descriptors address this operand, in parts of `mn_step`×k; refused when they cannot."""
    table = address.offsets() if mn_dim == 0 else address.offsets().T
    bits = address.buffer.dtype.bits
    span = address.swizzle_bytes
    candidates = []
    if span >= 0:
        candidates.append(_k_major(table[:mn_step, : kind.k], span, bits))
        if kind.mn_major:
            candidates.append(_mn_major(table[:mn_step, : kind.k], span, bits))
    mn, k = table.shape
    for found in candidates:
        if found is None:
            continue
        mn_major, leading, stride, canonical = found
        parts = (
            table[i : i + mn_step, j : j + kind.k] - table[i, j]
            for i in range(0, mn, mn_step)
            for j in range(0, k, kind.k)
        )
        if all(np.array_equal(part, canonical) for part in parts):
            return Operand(address, mn_dim, mn_major, leading, stride)
    expected = "K contiguous in rows of the swizzle's span"
    fix = "lay it out by T.layout.make_swizzled_layout, inner extent one span wide"
    if kind.mn_major:
        expected += ", or M/N contiguous in columns of it"
    elif mn > 1 and k > 1 and table[1, 0] - table[0, 0] == 1:
        fix = f"only 16-bit types may have M or N contiguous: transpose {address.buffer.name}"
    raise CompileError(
        f"no matrix descriptor says the layout of {which}, {address.buffer.name}",
        loc=op.loc,
        expected=expected,
        got=repr(address.buffer.layout),
        fix=fix,
    )


_Form = tuple[bool, int, int, "np.ndarray"]


def _k_major(part: np.ndarray, span: int, bits: int) -> _Form | None:
    """Rows of `span` bytes along K, eight to an atom, atoms `stride` apart. Without a swizzle:
    blocks of 8 rows of 16 bytes, `leading` apart along K and `stride` along M or N."""
    mn, k = part.shape
    i, j = np.arange(mn)[:, None], np.arange(k)[None, :]
    stride = int(part[8, 0]) if mn > 8 else 0
    if span:
        row = span * 8 // bits
        stride = stride or 8 * row
        return False, 16, stride * bits // 8, i % 8 * row + i // 8 * stride + j
    unit = 128 // bits
    leading = int(part[0, unit]) if k > unit else 0
    table = i % 8 * unit + i // 8 * stride + j % unit + j // unit * leading
    return False, leading * bits // 8, stride * bits // 8, table


def _mn_major(part: np.ndarray, span: int, bits: int) -> _Form | None:
    """Columns of `span` bytes along M or N, eight k to an atom: `stride` to the next eight k,
    `leading` to the next column. Without a swizzle columns have 16 bytes, and the two change
    places."""
    mn, k = part.shape
    row = (span or 16) * 8 // bits
    i, j = np.arange(mn)[:, None], np.arange(k)[None, :]
    next_k = int(part[0, 8]) if k > 8 else 8 * row
    next_mn = int(part[row, 0]) if mn > row else 0
    table = i % row + i // row * next_mn + j % 8 * row + j // 8 * next_k
    leading, stride = (next_mn, next_k) if span else (next_k, next_mn)
    return True, leading * bits // 8, stride * bits // 8, table


def lower_gemm(low: Lowering, op: Gemm) -> Iterable[Op]:
    if op.meta is not None:
        raise low.unsupported(op, "sparse gemm is not lowered to threads yet")
    rule = GEMMS.get(op.atom or "")
    if rule is None:
        raise low.unsupported(op, f"gemm by {op.atom} is not lowered to threads yet")
    return rule(low, op)


def lower_wgmma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """For each k step, each 64 rows and each slice of columns an instruction."""
    kind, b_kind = matrix_types(op)
    m, n = op.c.static_tile
    k = op.a.static_tile[0 if op.transpose_a else 1]
    n_step = _n_step(kind, n, op)
    if m % M or k % kind.k:
        raise CompileError(
            "the tile does not divide into matrix instructions",
            loc=op.loc,
            expected=f"M a multiple of {M}, K a multiple of {kind.k}",
            got=f"{m}×{n}×{k}",
        )
    if low.instance.threads != 128:
        raise low.unsupported(op, "wgmma runs in a role instance of four warps")

    b_address = tile_address(op.b, low.ranges, op.loc)
    b = shared_operand(b_address, 0 if op.transpose_b else 1, n_step, kind, op, "b")
    b_desc, b_op = _descriptor(low, b, op, "b")
    yield b_op
    a: Operand | None = None
    a_desc: Var | None = None
    a_regs: dict[tuple[int, int], Expr] = {}
    if isinstance(op.a.buffer.layout, Fragment):
        a_regs = _register_operand(low, op, m, k, kind)
    else:
        a_address = tile_address(op.a, low.ranges, op.loc)
        a = shared_operand(a_address, 1 if op.transpose_a else 0, M, kind, op, "a")
        a_desc, a_op = _descriptor(low, a, op, "a")
        yield a_op
    accumulators = _accumulators(low, op, m, n, kind, n_step)
    text = " ".join(
        f"{key}={value}"
        for key, value in {
            "n": n_step,
            "a": kind.name,
            "b": b_kind.name,
            "d": op.c.dtype.name,
            "from": "rs" if a is None else "ss",
            "ta": int(a is not None and a.mn_major),
            "tb": int(b.mn_major),
        }.items()
    )
    if not low.fenced:
        used = {r.buffer for r in (op.a, op.c)}
        yield from _fence(low, [b for b in low.instance.written if b in used], op.loc)
    keep = select(op.clear, 0, 1)
    for k0 in range(0, k, kind.k):
        for m0 in range(0, m, M):
            for n0 in range(0, n, n_step):
                if a is None or a_desc is None:
                    left: Expr | Region = low.span(op.a.buffer, a_regs[m0, k0], 128 // kind.bits)
                else:
                    left = _advance(a_desc, a.offset(m0, k0), op)
                yield Intrinsic(
                    "wgmma",
                    (
                        low.span(op.c.buffer, accumulators[m0, n0], n_step // 2),
                        left,
                        _advance(b_desc, b.offset(n0, k0), op),
                        keep if k0 == 0 else const(1),
                    ),
                    text=text,
                    loc=op.loc,
                )
    low.open_group += [op.c.buffer, op.a.buffer] if a is None else [op.c.buffer]


def _n_step(kind: MatrixType, n: int, op: Gemm) -> int:
    """Columns of one instruction: the most that divides the tile."""
    for step in range(min(n, 256), 7, -8):
        if n % step == 0 and kind.has_n(step):
            return step
    raise CompileError(
        f"no matrix instruction has {n} columns", loc=op.loc, expected="a multiple of 8"
    )


def _descriptor(low: Lowering, operand: Operand, op: Gemm, which: str) -> tuple[Var, Op]:
    address = operand.address
    var = low.var(f"{address.buffer.name}_desc", UINT64)
    code = _SWIZZLE_CODE[address.swizzle_bytes]
    text = f"leading={operand.leading >> 4} stride={operand.stride >> 4} swizzle={code}"
    where = low.span(address.buffer, address.base, 1)
    return var, Intrinsic("descriptor", (where,), var, text=text, loc=op.loc)


def _advance(descriptor: Var, offset: int, op: Gemm) -> Expr:
    if offset % 16:
        raise CompileError(f"a descriptor moves by 16 bytes, not {offset}", loc=op.loc)
    return descriptor + (offset >> 4) if offset else descriptor


def _accumulators(
    low: Lowering, op: Gemm, m: int, n: int, kind: MatrixType, n_step: int
) -> dict[tuple[int, int], Expr]:
    """The first register of each instruction's accumulator; they must be consecutive."""
    atom = matrix_fragments("wgmma", kind, n_step)["c"]
    return {
        (m0, n0): _consecutive(low, op.c, (m0, n0), (M, n_step), atom, op)
        for m0 in range(0, m, M)
        for n0 in range(0, n, n_step)
    }


def _register_operand(
    low: Lowering, op: Gemm, m: int, k: int, kind: MatrixType
) -> dict[tuple[int, int], Expr]:
    if op.transpose_a:
        raise low.unsupported(op, "an operand in registers cannot be transposed")
    atom = matrix_fragments("wgmma", kind)["a"]
    return {
        (m0, k0): _consecutive(low, op.a, (m0, k0), (M, kind.k), atom, op)
        for m0 in range(0, m, M)
        for k0 in range(0, k, kind.k)
    }


def _consecutive(
    low: Lowering,
    region: Region,
    corner: tuple[int, int],
    extent: tuple[int, int],
    atom: Fragment,
    op: Gemm,
) -> Expr:
    """The first of the consecutive registers that hold `atom` at `corner` of a fragment's region,
    a function of the unrolled variables in its starts."""

    def first(starts: tuple[int, ...]) -> int:
        fragment = region.buffer.layout
        assert isinstance(fragment, Fragment)
        extents = [int(e) for e in region.extents]
        index, _ = sub_tile(fragment.tile, starts, extents)
        box = index[corner[0] : corner[0] + extent[0], corner[1] : corner[1] + extent[1]]
        needed = box.reshape(-1)[atom.table()]
        regs = registers_of(fragment, needed, region.buffer.name, op.loc)
        if regs != tuple(range(regs[0], regs[0] + len(regs))):
            raise CompileError(
                f"{region.buffer.name} does not hold consecutive registers for wgmma",
                loc=op.loc,
                got=repr(fragment),
            )
        return regs[0]

    return low.register_index(region.starts, first, op.loc)


def lower_fence(low: Lowering, op: Fence) -> Iterable[Op]:
    """Before `fence wgmma`, registers that ordinary code writes and matrix instructions use are
    pinned, so that no write moves behind the fence."""
    if op.kind == "wgmma":
        yield from _fence(low, low.instance.written, op.loc)
    else:
        yield op


def _fence(low: Lowering, written: Iterable[Buffer], loc: Loc | None) -> Iterable[Op]:
    """A fence behind `written`; what instructions under way use may not be named."""
    low.fenced = True
    for buffer in written:
        if buffer not in low.in_flight:
            yield pin(low, buffer, loc)
    yield Fence("wgmma", loc=loc)


def written_by_threads(body: tuple[Op, ...]) -> tuple[Buffer, ...]:
    """Fragments that matrix instructions use and ordinary code writes."""
    used: dict[Buffer, None] = {}
    written: set[Buffer] = set()
    for op in walk_ops(body):
        if isinstance(op, Gemm) and op.atom == "wgmma":
            used.update(
                {r.buffer: None for r in (op.a, op.c) if isinstance(r.buffer.layout, Fragment)}
            )
        elif isinstance(op, Store):
            written.add(op.buffer)
        elif not isinstance(op, Map):
            written |= {r.buffer for r in regions(op, writes=True)}
    return tuple(b for b in used if b in written)


GEMMS: dict[str, Callable[[Lowering, Gemm], Iterable[Op]]] = {
    "wgmma": lower_wgmma,
    "mma": lower_mma,
    "fma": lower_fma,
}
