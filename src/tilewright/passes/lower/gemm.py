"""Matrix products: by warpgroups from shared memory (`wgmma`), by warps from registers (`mma`) and
by threads (`fma`).

A descriptor says where an operand begins and two strides; which layouts it can say is decided by
comparing the operand's layout with the canonical one, element by element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import gcd, prod
from typing import TypeAlias

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES, MatrixType, matrix_fragments
from tilewright.passes.layout.matrix_tiles import (
    FMA_TYPES,
    Split,
    fragments_of,
    operand_kind,
    runs_of,
    shape_of,
    split_of,
)
from tilewright.passes.lower.core import *

M = 64
UINT64 = dtype("uint64")
# what a descriptor's two bits call a swizzle of this many bytes
_SWIZZLE_CODE = {0: 0, 128: 1, 64: 2, 32: 3}


def matrix_types(op: Gemm) -> tuple[MatrixType, MatrixType]:
    """What kinds of operands `op` multiplies; refused when no instruction does."""
    a, b = operand_kind(op, op.a), operand_kind(op, op.b)
    if a is None or b is None or not a.multiplies(b, op.c.dtype.name):
        names = [x.name if x else r.dtype.name for x, r in ((a, op.a), (b, op.b))]
        family = [t.name for t in MATRIX_TYPES.values() if a is None or t.family == a.family]
        raise CompileError(
            f"no matrix instruction multiplies {names[0]} by {names[1]} into {op.c.dtype}",
            expected="one of " + ", ".join(family)
            if a is None
            else f"{a.name} by {' or '.join(family)} into {' or '.join(a.accumulators)}",
            fix='precision="tf32" for float32' if "float32" in names else "",
        )
    return a, b


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
    address: TileAddress, mn_dim: int, mn_step: int, kind: MatrixType, which: str
) -> Operand:
    """How descriptors address this operand, in parts of `mn_step`×k; refused when they cannot."""
    table = address.offsets() if mn_dim == 0 else address.offsets().T
    span, (mn, k) = address.swizzle_bytes, table.shape
    forms = (_k_major, _mn_major) if kind.mn_major else (_k_major,)
    for form in forms if span >= 0 else ():
        part = table[:mn_step, : kind.k]
        mn_major, leading, stride, canonical = form(part, span, address.buffer.dtype.bits)
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
        expected=expected,
        got=repr(address.buffer.layout),
        fix=fix,
    )


_Form = tuple[bool, int, int, "np.ndarray"]


def _k_major(part: np.ndarray, span: int, bits: int) -> _Form:
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


def _mn_major(part: np.ndarray, span: int, bits: int) -> _Form:
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
        raise CompileError("sparse gemm is not lowered to threads yet")
    return GEMMS[op.atom or ""](low, op)


def lower_wgmma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """For each k step, each 64 rows and each slice of columns that a warpgroup holds an
    instruction. Warpgroups run the same code: what differs between them is where descriptors
    begin."""
    kind, b_kind = matrix_types(op)
    m, n, k = shape_of(op)
    if m % M or n % 8 or k % kind.k:
        raise CompileError(
            "the tile does not divide into matrix instructions",
            expected=f"M a multiple of {M}, N of 8, K of {kind.k}",
            got=f"{m}×{n}×{k}",
            fix="make the tile larger, or use T.gemm, which chooses an instruction that fits",
        )
    low.check_whole("wgmma", WARPGROUP)
    c, columns = _accumulators(low, op, kind, n)
    blocks = sorted(c.corners)
    b_address = low.address(op.b, op.atom)
    b = shared_operand(b_address, 0 if op.transpose_b else 1, columns, kind, "b")
    right = _Descriptor(low, b, [n0 for _, n0 in blocks[0]])
    yield from right.made
    a: Operand | None = None
    if isinstance(op.a.buffer.layout, Fragment):
        if op.transpose_a:
            raise CompileError("an operand in registers cannot be transposed")
        registers = _need(low, op.a, matrix_fragments("wgmma", kind)["a"], op, WARPGROUP)
    else:
        a_address = low.address(op.a, op.atom)
        a = shared_operand(a_address, 1 if op.transpose_a else 0, M, kind, "a")
        left = _Descriptor(low, a, [m0 for m0, _ in blocks[0]])
        yield from left.made
    left_side = "from=rs ta=0" if a is None else f"from=ss ta={int(a.mn_major)}"
    types = f"a={kind.name} b={b_kind.name} d={op.c.dtype.name}"
    text = f"n={columns} {types} {left_side} tb={int(b.mn_major)}"
    if not low.fenced:
        used = {r.buffer for r in (op.a, op.c)}
        yield from _fence(low, [b for b in low.instance.written if b in used])
    keep = select(op.clear, 0, 1)
    for k0 in range(0, k, kind.k):
        for at in blocks:
            args = (
                c.span(at),
                left.at([m0 for m0, _ in at], k0)
                if a is not None
                else _at(registers, tuple((m0, k0) for m0, _ in at), op, "warpgroups"),
                right.at([n0 for _, n0 in at], k0),
                keep if k0 == 0 else const(1),
            )
            yield Intrinsic("wgmma", args, text=text)
    low.open_group += [op.c.buffer, op.a.buffer] if a is None else [op.c.buffer]


class _Descriptor:
    """A descriptor of a shared operand, `made` to begin at a place for each warpgroup."""

    def __init__(self, low: Lowering, operand: Operand, first: list[int]) -> None:
        self.low, self.operand, address = low, operand, operand.address
        name = f"{address.buffer.name}_desc"
        self.var = low.var(name, UINT64)
        code = _SWIZZLE_CODE[address.swizzle_bytes]
        text = f"leading={operand.leading >> 4} stride={operand.stride >> 4} swizzle={code}"
        where = low.span(address.buffer, address.base, 1)
        self.made: list[Op] = [Intrinsic("descriptor", (where,), self.var, text=text)]
        self.begin = [0] * len(first)
        begin = [operand.offset(mn, 0) for mn in first]
        if any(begin):
            moved = low.var(name, UINT64)
            self.made.append(Let(moved, self.at(first, 0)))
            self.var, self.begin = moved, begin

    def at(self, mns: list[int], k: int) -> Expr:
        """The descriptor moved on to `mns`, of each warpgroup, and `k`."""
        steps = [self.operand.offset(mn, k) - at for mn, at in zip(mns, self.begin, strict=True)]
        for step in steps:
            if step % 16:
                raise CompileError(f"a descriptor moves by 16 bytes, not {step}")
        units = [step >> 4 for step in steps]
        if len(set(units)) == 1:
            return self.var + units[0] if units[0] else self.var
        return self.var + cast(chosen(self.low, self.low.warpgroup, units), UINT64)


# ── registers as operands ────────────────────────────────────────────────────────────────────

Corners: TypeAlias = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Blocks:
    """Registers as operands of instructions, `size` each: by where an operand lies in each warp or
    warpgroup, its number among them."""

    held: Held
    size: int
    corners: dict[Corners, int]

    def span(self, corners: Corners) -> Region:
        first = self.held.first(self.corners[corners] * self.size, self.size)
        return self.held.low.span(self.held.region.buffer, first, self.size)


def _blocks(
    low: Lowering, region: Region, atom: Fragment, threads: int, transposed: bool = False
) -> Blocks | None:
    """The registers of `region`, whole instructions of `atom` by `threads` each; None when they
    are not."""
    held = Held(low, region)
    size = atom.values
    if held.values % size or not held.runs(size):
        return None
    coords = [c.reshape(-1, threads, held.values // size, size) for c in held.coords()]
    if transposed:
        coords.reverse()
    inside = np.unravel_index(atom.table(), atom.tile)
    places = []
    for c, part, step in zip(coords, inside, atom.tile, strict=True):
        corner = c[:, :1, :, :1]
        if (corner % step).any() or not np.array_equal(c, corner + np.asarray(part)[:, None, :]):
            return None
        places.append(corner[:, 0, :, 0].T.tolist())
    found = (tuple(zip(x, y, strict=True)) for x, y in zip(*places, strict=True))
    return Blocks(held, size, {corners: i for i, corners in enumerate(found)})


def _need(
    low: Lowering,
    region: Region,
    atom: Fragment,
    op: Gemm,
    threads: int = WARP,
    transposed: bool = False,
) -> Blocks:
    """An operand in registers."""
    if not isinstance(region.buffer.layout, Fragment):
        raise CompileError(
            f"mma multiplies fragments, and {region.name} is in shared memory",
            fix="copy it into a fragment first, with atom=ldmatrix",
        )
    found = _blocks(low, region, atom, threads, transposed)
    if found is None:
        raise CompileError(
            f"{region.name} does not have the registers that {op.atom} needs",
            expected=f"{atom!r} in consecutive registers, repeated"
            + (", transposed" if transposed else ""),
            got=repr(region.buffer.layout),
            fix="leave its layout to the compiler, and use T.gemm where the target has no wgmma",
        )
    return found


def _accumulators(low: Lowering, op: Gemm, kind: MatrixType, n: int) -> tuple[Blocks, int]:
    """C in instructions of the most columns that its registers allow."""
    for step in range(min(n, 256), 7, -8):
        if n % step == 0 and kind.has_n(step):
            atom = matrix_fragments("wgmma", kind, step)["c"]
            found = _blocks(low, op.c, atom, WARPGROUP, op.transpose_c)
            if found is not None:
                return found, step
    return _need(low, op.c, atom, op, WARPGROUP, op.transpose_c), 8


def _at(blocks: Blocks, corners: Corners, op: Gemm, who: str) -> Region:
    """The registers of the operand at `corners`."""
    if corners not in blocks.corners:
        wrong = blocks.held.region.buffer
        raise CompileError(
            f"{who} do not hold the part of {wrong.name} that their part of {op.c.name} needs",
            got=f"{wrong.layout} for {op.c.buffer.layout}",
        )
    return blocks.span(corners)


def lower_fence(low: Lowering, op: Fence) -> Iterable[Op]:
    """Before `fence wgmma`, registers that ordinary code writes and matrix instructions use are
    pinned, so that no write moves after the fence."""
    if op.kind == "wgmma":
        yield from _fence(low, low.instance.written)
    else:
        yield op


def _fence(low: Lowering, written: Iterable[Buffer]) -> Iterable[Op]:
    """A fence after `written`; what instructions under way use may not be named."""
    low.fenced = True
    for buffer in written:
        if buffer not in low.in_flight and buffer.name in low.seen:
            yield pin(low, buffer)
    yield Fence("wgmma")


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


# ── by warps ─────────────────────────────────────────────────────────────────────────────────


def lower_mma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Every warp multiplies what it holds: for each k step and each 16×8 of its accumulator an
    instruction."""
    a_type, b_type = matrix_types(op)
    low.check_whole("mma", WARP)
    atoms = matrix_fragments("mma", a_type)
    c = _need(low, op.c, atoms["c"], op, transposed=op.transpose_c)
    a = _need(low, op.a, atoms["a"], op, transposed=op.transpose_a)
    b = _need(low, op.b, atoms["b"], op, transposed=op.transpose_b)
    text = f"a={a_type.name} b={b_type.name} d={op.c.dtype.name}"
    yield from _clear(low, op)
    for k0 in range(0, op.a.static_tile[0 if op.transpose_a else 1], a_type.k):
        for corners in c.corners:
            left = _at(a, tuple((m, k0) for m, _ in corners), op, "warps")
            right = _at(b, tuple((k0, n) for _, n in corners), op, "warps")
            yield Intrinsic("mma", (c.span(corners), left, right), text=text)


def _clear(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Zeros for the accumulator where `clear` is true."""
    if op.clear is FALSE:
        return
    yield from guarded(op.clear, tuple(low.op(Fill(op.c, const(0, op.c.dtype)))))


# ── by threads ───────────────────────────────────────────────────────────────────────────────


def lower_fma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Every thread computes the elements of the accumulator that it holds."""
    fragment = op.c.buffer.layout
    if not isinstance(fragment, Fragment) or not op.c.is_whole or len(fragment.tile) != 2:
        raise CompileError("fma accumulates in a whole fragment")
    if op.c.dtype.name not in FMA_TYPES:
        raise CompileError(f"fma accumulates in {', '.join(FMA_TYPES)}, not {op.c.dtype}")
    i, j, k = (low.var(name) for name in "ijk")
    left = _element(op.a, (k, i) if op.transpose_a else (i, k), op)
    right = _element(op.b, (j, k) if op.transpose_b else (k, j), op)
    at = (j, i) if op.transpose_c else (i, j)
    total = Load(op.c.buffer, at) + left * right
    body = Store(op.c.buffer, at, total)
    extents = tuple(const(e) for e in fragment.tile)
    loop = Map(at, extents, (body,), layout=fragment)
    steps = op.a.extents[-2:][0 if op.transpose_a else 1]
    yield from _clear(low, op)
    held = op.a.buffer.is_fragment
    code = low.op(For(k, const(0), steps, (loop,), kind="unroll" if held else "serial"))
    split = split_of(op, low.instance.threads, low.target) if held else None
    if split is None or not split.rows or fragments_of(op, split)["c"] != fragment:
        yield from code
        return
    low.summed.add(low.flat(op.c.buffer).name)
    for each in code:
        yield map_ops(each, lambda inner: _in_turns(low, inner, op, split))


def _in_turns(low: Lowering, loop: Op, op: Gemm, split: Split) -> Op | None:
    """The loop over a thread's sums so that one factor stays from each product to the next: along
    rows, where a load takes several columns of B, else along columns, there and back. FFMAs read a
    register a cycle from each of two banks; a factor that stays is not read again."""
    (m, n, _), runs = shape_of(op), runs_of(op)
    own = m // split.rows, n // split.columns
    match loop:
        case For(var, stop=Const(count), body=(Store(_, (at,), _),)):
            if at is not var or count != prod(own):
                return None
        case _:
            return None
    high, wide = (gcd(size, run) for size, run in zip(own, runs, strict=True))
    w, first = low.var("w"), 0 if runs[1] > 1 else 1
    most = own[1 - first]
    outer, inner = w // most, w % most
    inner = select(compare("==", outer % 2, 0), inner, most - 1 - inner)
    row, column = (outer, inner) if first == 0 else (inner, outer)
    value = row * own[1] + column
    if high > 1:
        block = row // high * (own[1] // wide) + column // wide
        value = (block * high + row % high) * wide + column % wide
    with low.restored():
        low.ranges = low.ranges.where(w, 0, prod(own) - 1)
        turn = Let(loop.var, low.simplify(value))
    return For(w, loop.start, loop.stop, (turn, *loop.body), kind=loop.kind, loc=loop.loc)


def _element(region: Region, coords: tuple[Var, ...], op: Gemm) -> Expr:
    places = (const(0),) * (len(region.starts) - 2) + coords  # a matrix is the last two
    indices = tuple(s + c for s, c in zip(region.starts, places, strict=True))
    value: Expr = Load(region.buffer, indices)
    if op.precision == "tf32" and region.dtype.name == "float32":
        value = cast(value, dtype("tfloat32"))
    return cast(value, op.c.dtype)


GEMMS: dict[str, Callable[[Lowering, Gemm], Iterable[Op]]] = {
    "wgmma": lower_wgmma,
    "mma": lower_mma,
    "fma": lower_fma,
}
