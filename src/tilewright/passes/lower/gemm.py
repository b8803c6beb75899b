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
from tilewright.ir.expr import Expr, Var, cast, const, select
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import Fence, Gemm, Intrinsic, Let, Map, Op, Store, regions, walk_ops
from tilewright.passes.layout.addresses import TileAddress, tile_address
from tilewright.passes.lower.lowering import WARP, Lowering, chosen, pin
from tilewright.passes.lower.mma import lower_fma, lower_mma, matrix_types
from tilewright.passes.lower.register_regions import Held
from tilewright.support.errors import CompileError, Loc

M = 64
WARPGROUP = 128
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
    for region in (op.a, op.b):
        if op.atom == "wgmma" and region.buffer.name in low.shifts:
            raise low.unsupported(
                op,
                f"{region.buffer.name} begins at a place known only at run time, which no matrix "
                "descriptor says",
                "copy it into a tile of its own",
            )
    return rule(low, op)


def lower_wgmma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """For each k step, each 64 rows and each slice of columns that a warpgroup holds an
    instruction. Warpgroups run the same code: what differs between them is where descriptors
    begin."""
    kind, b_kind = matrix_types(op)
    m, n = op.c.static_tile
    k = op.a.static_tile[0 if op.transpose_a else 1]
    if m % M or n % 8 or k % kind.k:
        raise CompileError(
            "the tile does not divide into matrix instructions",
            loc=op.loc,
            expected=f"M a multiple of {M}, N of 8, K of {kind.k}",
            got=f"{m}×{n}×{k}",
            fix="make the tile larger, or use T.gemm, which chooses an instruction that fits",
        )
    if low.instance.threads % WARPGROUP:
        raise low.unsupported(
            op,
            f"wgmma runs in whole warpgroups, and {low.instance.threads} threads run this",
            "use a multiple of 128 threads, or T.gemm, which chooses an instruction that fits",
        )
    c = _accumulators(low, op, kind, n)
    b_address = tile_address(op.b, low.ranges, op.loc)
    b = shared_operand(b_address, 0 if op.transpose_b else 1, c.extent[1], kind, op, "b")
    group = _Group(low, op)
    at_b = {
        (i, k0): [b.offset(corner[1], k0) for corner in corners]
        for i, corners in enumerate(c.corners)
        for k0 in range(0, k, kind.k)
    }
    b_desc, b_ops = group.descriptor(b, at_b[0, 0])
    yield from b_ops
    a: Operand | None = None
    a_desc: Var | None = None
    a_regs: dict[tuple[int, int], Expr] = {}
    at_a: dict[tuple[int, int], list[int]] = {}
    if isinstance(op.a.buffer.layout, Fragment):
        a_regs = _register_operand(low, op, c, k, kind)
    else:
        a_address = tile_address(op.a, low.ranges, op.loc)
        a = shared_operand(a_address, 1 if op.transpose_a else 0, M, kind, op, "a")
        at_a = {
            (i, k0): [a.offset(corner[0], k0) for corner in corners]
            for i, corners in enumerate(c.corners)
            for k0 in range(0, k, kind.k)
        }
        a_desc, a_ops = group.descriptor(a, at_a[0, 0])
        yield from a_ops
    text = " ".join(
        f"{key}={value}"
        for key, value in {
            "n": c.extent[1],
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
        for i in range(len(c.corners)):
            if a is None or a_desc is None:
                left: Expr | Region = low.span(op.a.buffer, a_regs[i, k0], 128 // kind.bits)
            else:
                left = group.advance(a_desc, at_a[i, k0], at_a[0, 0])
            yield Intrinsic(
                "wgmma",
                (
                    low.span(op.c.buffer, c.first(i), c.size),
                    left,
                    group.advance(b_desc, at_b[i, k0], at_b[0, 0]),
                    keep if k0 == 0 else const(1),
                ),
                text=text,
                loc=op.loc,
            )
    low.open_group += [op.c.buffer, op.a.buffer] if a is None else [op.c.buffer]


@dataclass
class _Group:
    """The number of a thread's warpgroup, and descriptors that depend on it."""

    low: Lowering
    op: Gemm

    def descriptor(self, operand: Operand, offsets: list[int]) -> tuple[Var, list[Op]]:
        """A descriptor that begins `offsets[group]` bytes in."""
        address, low = operand.address, self.low
        name = f"{address.buffer.name}_desc"
        var = low.var(name, UINT64)
        code = _SWIZZLE_CODE[address.swizzle_bytes]
        text = f"leading={operand.leading >> 4} stride={operand.stride >> 4} swizzle={code}"
        where = low.span(address.buffer, address.base, 1)
        made = Intrinsic("descriptor", (where,), var, text=text, loc=self.op.loc)
        if not any(offsets):
            return var, [made]
        moved = low.var(name, UINT64)
        return moved, [made, Let(moved, self.advance(var, offsets, [0] * len(offsets)))]

    def advance(self, descriptor: Var, to: list[int], of: list[int]) -> Expr:
        """`descriptor`, which begins at `of`, moved on `to` other bytes."""
        steps = [(x - y) >> 4 for x, y in zip(to, of, strict=True)]
        for offset in (*to, *of):
            if offset % 16:
                raise CompileError(f"a descriptor moves by 16 bytes, not {offset}", loc=self.op.loc)
        if len(set(steps)) == 1:
            return descriptor + steps[0] if steps[0] else descriptor
        number = self.low.simplify(self.low.instance.warp // (WARPGROUP // WARP))
        return descriptor + cast(chosen(self.low, number, steps), UINT64)


@dataclass(frozen=True)
class _Blocks:
    """Registers as operands of instructions on `extent`: `size` registers each; the i-th lies at
    `corners[i][g]` of the region in warpgroup g and begins at the `order[i]`-th piece."""

    held: Held
    extent: tuple[int, int]
    size: int
    order: list[int]
    corners: list[list[tuple[int, int]]]

    def first(self, i: int) -> Expr:
        return self.held.first(self.order[i] * self.size, self.size)


def _blocks(
    low: Lowering, region: Region, extent: tuple[int, int], atom: Fragment, op: Gemm
) -> _Blocks | None:
    """The registers of `region`, whole instructions of `atom` each; None when they are not."""
    held = Held(low, region, op)
    size = atom.values
    if held.values % size or not held.runs(size):
        return None
    coords = [c.reshape(-1, WARPGROUP, held.values // size, size) for c in held.coords()]
    corners = [c[:, :1, :, :1] for c in coords]
    inside = np.unravel_index(atom.table(), atom.tile)
    for c, corner, part, step in zip(coords, corners, inside, extent, strict=True):
        if (corner % step).any() or not np.array_equal(c, corner + np.asarray(part)[:, None, :]):
            return None
    rows, columns = (c[:, 0, :, 0].T.tolist() for c in corners)
    places = [list(zip(r, c, strict=True)) for r, c in zip(rows, columns, strict=True)]
    order = sorted(range(len(places)), key=lambda i: places[i])
    return _Blocks(held, extent, size, order, [places[i] for i in order])


def _no_blocks(region: Region, atom: Fragment, op: Gemm) -> CompileError:
    return CompileError(
        f"{region.buffer.name} does not have the registers this instruction needs",
        loc=op.loc,
        expected=f"{atom!r} in consecutive registers of every warpgroup, repeated",
        got=repr(region.buffer.layout),
        fix="leave its layout to the compiler, and use T.gemm where the target has no wgmma",
    )


def _accumulators(low: Lowering, op: Gemm, kind: MatrixType, n: int) -> _Blocks:
    """C in instructions of the most columns that its registers allow."""
    for step in range(min(n, 256), 7, -8):
        if n % step == 0 and kind.has_n(step):
            atom = matrix_fragments("wgmma", kind, step)["c"]
            found = _blocks(low, op.c, (M, step), atom, op)
            if found is not None:
                return found
    atom = matrix_fragments("wgmma", kind, 8)["c"]
    raise _no_blocks(op.c, atom, op)


def _register_operand(
    low: Lowering, op: Gemm, c: _Blocks, k: int, kind: MatrixType
) -> dict[tuple[int, int], Expr]:
    """The first register of A for each instruction of `c` and each k."""
    if op.transpose_a:
        raise low.unsupported(op, "an operand in registers cannot be transposed")
    atom = matrix_fragments("wgmma", kind)["a"]
    a = _blocks(low, op.a, (M, kind.k), atom, op)
    if a is None:
        raise _no_blocks(op.a, atom, op)
    at = {tuple(corners): i for i, corners in enumerate(a.corners)}
    found = {}
    for i, corners in enumerate(c.corners):
        for k0 in range(0, k, kind.k):
            piece = at.get(tuple((m0, k0) for m0, _ in corners))
            if piece is None:
                raise CompileError(
                    f"warpgroups do not hold the rows of {op.a.buffer.name} that their part of "
                    f"{op.c.buffer.name} needs",
                    loc=op.loc,
                    got=f"{op.a.buffer.layout!r} for {op.c.buffer.layout!r}",
                )
            found[i, k0] = a.first(piece)
    return found


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
        if buffer not in low.in_flight and buffer.name in low.seen:
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
