"""Products by warps, from registers (`mma`), and by threads (`fma`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tilewright.ir.atoms import MATRIX_TYPES, MatrixType, matrix_fragments
from tilewright.ir.buffer import Region, Space
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import FALSE, TRUE, Expr, Load, Var, cast, const
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import For, Gemm, If, Intrinsic, Map, Op, Store
from tilewright.passes.layout.matrix_tiles import FMA_TYPES
from tilewright.passes.lower.lowering import WARP, Lowering
from tilewright.passes.lower.register_regions import Held
from tilewright.support.errors import CompileError


def operand_type(op: Gemm, region: Region) -> str:
    """The name among MATRIX_TYPES of an operand."""
    name = region.dtype.name
    if name == "float32" and op.precision == "tf32":
        name = "tfloat32"
    if name not in MATRIX_TYPES:
        raise CompileError(
            f"no matrix instruction takes {name}",
            loc=op.loc,
            expected="one of " + ", ".join(MATRIX_TYPES),
            fix='precision="tf32" for float32' if name == "float32" else "",
        )
    return name


def matrix_types(op: Gemm) -> tuple[MatrixType, MatrixType]:
    """What kinds of operands `op` multiplies; refused when no instruction does."""
    a, b = (MATRIX_TYPES[operand_type(op, r)] for r in (op.a, op.b))
    if not a.multiplies(b, op.c.dtype.name):
        others = [t.name for t in MATRIX_TYPES.values() if t.family == a.family]
        raise CompileError(
            f"no matrix instruction multiplies {a.name} by {b.name} into {op.c.dtype}",
            loc=op.loc,
            expected=f"{a.name} by {' or '.join(others)} into {' or '.join(a.accumulators)}",
        )
    return a, b


# ── by warps ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class _Pieces:
    """A fragment's registers as operands of instructions, `size` registers each: `corners[i]` is
    the coordinate of the i-th in every warp."""

    held: Held
    size: int
    corners: list[tuple[tuple[int, int], ...]]

    def span(self, index: int) -> Region:
        first = self.held.first(index * self.size, self.size)
        return self.held.low.span(self.held.region.buffer, first, self.size)


def lower_mma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Every warp multiplies what it holds: for each k step and each 16×8 of its accumulator an
    instruction."""
    a_type, b_type = matrix_types(op)
    if low.instance.threads % WARP:
        raise low.unsupported(op, "mma runs in whole warps")
    k_step, atoms = a_type.k, matrix_fragments("mma", a_type)
    c = _pieces(low, op.c, atoms["c"], False, op)
    a = _pieces(low, op.a, atoms["a"], op.transpose_a, op)
    b = _pieces(low, op.b, atoms["b"], op.transpose_b, op)
    k = op.a.static_tile[0 if op.transpose_a else 1]
    a_at = {corner: i for i, corner in enumerate(a.corners)}
    b_at = {corner: i for i, corner in enumerate(b.corners)}
    text = f"a={a_type.name} b={b_type.name} d={op.c.dtype.name}"
    yield from _clear(low, op)
    for k0 in range(0, k, k_step):
        for i, corners in enumerate(c.corners):
            left = a_at.get(tuple((m, k0) for m, _ in corners))
            right = b_at.get(tuple((k0, n) for _, n in corners))
            if left is None or right is None:
                wrong = op.a if left is None else op.b
                raise CompileError(
                    f"warps do not hold the part of {wrong.buffer.name} that their part of "
                    f"{op.c.buffer.name} needs",
                    loc=op.loc,
                    got=f"{wrong.buffer.layout} for {op.c.buffer.layout}",
                )
            args = (c.span(i), a.span(left), b.span(right))
            yield Intrinsic("mma", args, text=text, loc=op.loc)


def _pieces(low: Lowering, region: Region, atom: Fragment, transposed: bool, op: Gemm) -> _Pieces:
    if not isinstance(region.buffer.layout, Fragment):
        raise CompileError(
            f"mma multiplies fragments, and {region.buffer.name} is in shared memory",
            loc=op.loc,
            fix="copy it into a fragment first, with atom=ldmatrix",
        )
    held = Held(low, region, op)
    size = atom.values
    expected = f"{atom}, repeated"
    if not held.values % size and held.runs(size):
        coords = [c.reshape(-1, WARP, held.values // size, size) for c in held.coords()]
        if transposed:
            coords.reverse()
        corners = [c[:, :1, :, :1] for c in coords]
        inside = np.unravel_index(atom.table(), atom.tile)
        if all(
            np.array_equal(c, corner + np.asarray(part)[:, None, :])
            for c, corner, part in zip(coords, corners, inside, strict=True)
        ):
            m, n = (c[:, 0, :, 0].T.tolist() for c in corners)
            places = [tuple(zip(x, y, strict=True)) for x, y in zip(m, n, strict=True)]
            return _Pieces(held, size, places)
    raise CompileError(
        f"{region.buffer.name} does not have the registers that mma needs",
        loc=op.loc,
        expected=expected + (", transposed" if transposed else ""),
        got=repr(held.fragment),
    )


def _clear(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Zeros for the accumulator where `clear` is true."""
    if op.clear is FALSE:
        return
    held = Held(low, op.c, op)
    var = low.var("v")
    outer = dict(low.unrolled)
    low.unrolled[var] = range(held.values)
    place = held.first(0, 1, var, 1)
    low.unrolled = outer
    zero = Store(low.flat(op.c.buffer), (place,), const(0, op.c.dtype), loc=op.loc)
    zeros = For(var, const(0), const(held.values), (zero,), kind="unroll", loc=op.loc)
    yield zeros if op.clear is TRUE else If(op.clear, (zeros,), loc=op.loc)


# ── by threads ───────────────────────────────────────────────────────────────────────────────


def lower_fma(low: Lowering, op: Gemm) -> Iterable[Op]:
    """Every thread computes the elements of the accumulator that it holds, from shared memory."""
    fragment = op.c.buffer.layout
    if not isinstance(fragment, Fragment) or not op.c.is_whole or len(fragment.tile) != 2:
        raise low.unsupported(op, "fma accumulates in a whole fragment")
    if op.c.dtype.name not in FMA_TYPES:
        raise low.unsupported(op, f"fma accumulates in {', '.join(FMA_TYPES)}, not {op.c.dtype}")
    for region in (op.a, op.b):
        if region.buffer.space is not Space.SHARED:
            raise low.unsupported(
                op,
                f"fma reads its operands from shared memory, and {region.buffer.name} is elsewhere",
                "copy it to shared memory first",
            )
    i, j, k = (low.var(name) for name in "ijk")
    left = _element(op.a, (k, i) if op.transpose_a else (i, k), op)
    right = _element(op.b, (j, k) if op.transpose_b else (k, j), op)
    total = Load(op.c.buffer, (i, j), op.loc) + left * right
    body = Store(op.c.buffer, (i, j), total, loc=op.loc)
    extents = tuple(const(e) for e in fragment.tile)
    nest = Map((i, j), extents, (body,), layout=fragment, loc=op.loc)
    steps = int(op.a.extents[-2:][0 if op.transpose_a else 1])
    yield from _clear(low, op)
    yield from low.op(For(k, const(0), const(steps), (nest,), loc=op.loc))


def _element(region: Region, coords: tuple[Var, ...], op: Gemm) -> Expr:
    places = (const(0),) * (len(region.starts) - 2) + coords  # a matrix is the last two
    indices = tuple(s + c for s, c in zip(region.starts, places, strict=True))
    value: Expr = Load(region.buffer, indices, op.loc)
    if op.precision == "tf32" and region.dtype.name == "float32":
        value = cast(value, dtype("tfloat32"))
    return cast(value, op.c.dtype)
