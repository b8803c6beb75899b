"""Type and shape rules of the tile words. Each error says what was expected, what came, and what
to do."""

from __future__ import annotations

from collections.abc import Sequence

from tilewright.ir.analysis.bounds import NOTHING
from tilewright.ir.analysis.linear import TooLarge, build_sum
from tilewright.ir.analysis.trips import values_of
from tilewright.ir.analysis.uniform import check_uniform, per_thread
from tilewright.ir.core import *
from tilewright.ir.verify import Stage, verify
from tilewright.support import limits
from tilewright.support.errors import Repair, VerifyError, occurrence, swap, with_argument, word


def shape_text(shape: Sequence[Expr | int]) -> str:
    inner = ", ".join(str(s.value) if isinstance(s, Const) else str(s) for s in shape)
    return f"({inner}{',' if len(shape) == 1 else ''})"


def difference(a: Expr, b: Expr) -> Expr:
    """`a - b` with everything cancelled that cancels: `(bx + 1) * 128 - bx * 128` is 128. Index
    arithmetic is taken not to wrap, as everywhere in the language."""
    left = a - b
    form = NOTHING.form(left, True)
    try:
        return build_sum(form, left.dtype) if form.terms else const(form.const)
    except TooLarge:
        return left


def fits(a: Sequence[Expr], b: Sequence[Expr]) -> bool:
    """Equal shapes."""
    return len(a) == len(b) and all(
        x is y or is_const(difference(x, y), 0) for x, y in zip(a, b, strict=True)
    )


def check_copy(src: Region, dst: Region) -> None:
    """Shapes match after unit dimensions drop; barriers are no data."""
    if not fits(src.tile, dst.tile):
        raise CompileError(
            f"T.copy: {src.buffer.name} and {dst.buffer.name} have different shapes",
            expected=f"{shape_text(src.tile)}, the shape read from {src.buffer.name}",
            got=f"{shape_text(dst.tile)}, the shape written to {dst.buffer.name}",
            fix=_COPY_TILES
            if not all(isinstance(e, Const) for e in (*src.tile, *dst.tile))
            else "copy a region, A[i0:i1, :], smaller than the tile and not larger; or give a "
            "corner A[i, j] and let the tile decide"
            if len(src.tile) == len(dst.tile)
            else "T.copy does not broadcast: write elements in a T.Parallel loop, f[i, j] = v[j]",
            code="shape",
        )
    check_regions(src, dst)
    check_apart(src, dst, in_place=True)


_COPY_TILES = (
    "give the corner, A[i, j]: the tile has a fixed size, and what lies outside A reads as zero"
)


def is_apart(read: Region, written: Region, in_place: bool = False) -> bool | None:
    """Whether the written region does not overlap the read one; None where that cannot be seen.
    With `in_place`, each element may be read where it is written."""
    if read.buffer is not written.buffer or read.cta is not written.cta:
        return True
    gaps = [difference(w, r) for r, w in zip(read.starts, written.starts, strict=True)]
    if in_place and fits(read.extents, written.extents) and all(is_const(gap, 0) for gap in gaps):
        return True
    spans = list(zip(gaps, read.extents, written.extents, strict=True))
    known = [span for span in spans if all(isinstance(e, Const) for e in span)]
    if any(not -int(w) < int(gap) < int(r) for gap, r, w in known):
        return True
    return False if len(known) == len(spans) else None


def check_apart(read: Region, written: Region, in_place: bool = False) -> None:
    """The written region does not overlap the read one, as far as that can be seen."""
    if is_apart(read, written, in_place) is not False:
        return
    name = read.buffer.name
    raise CompileError(
        f"T.{word()}: what is written to {name} overlaps what is read from it",
        fix=f"go through another tile of {name}'s type",
    )


def is_const(e: Expr, value: int = 1) -> bool:
    return isinstance(e, Const) and e.value == value


def check_regions(*regions: Region) -> None:
    for region in regions:
        if region.buffer.space is Space.BARRIER:
            raise CompileError(
                f"T.{word()}: {region.buffer.name} is a barrier, not data",
                fix="use T.barrier_arrive and T.barrier_wait",
            )
        _check_inside(region)


def _check_inside(region: Region) -> None:
    """A constant region of a tile lies inside it."""
    if region.buffer.is_global:
        return
    for axis, (start, extent, size) in enumerate(
        zip(region.starts, region.extents, region.buffer.shape, strict=True)
    ):
        if not (isinstance(extent, Const) and isinstance(size, Const)):
            continue
        low = int(start.value) if isinstance(start, Const) else 0
        if low < 0 or low + extent.value > size.value:
            raise CompileError(
                f"T.{word()} leaves {region.buffer.name} in dimension {axis}",
                expected=f"0 … {size.value}",
                got=f"{low} … {low + extent.value}",
                fix="make the tile larger or the region smaller",
                code="index",
            )


def check_gemm(
    a: Region, b: Region, c: Region, transpose_a: bool, transpose_b: bool, sparse: bool = False
) -> None:
    """Operands are matrices that multiply."""
    check_regions(a, b, c)
    named = list(zip((a, b, c), "ABC", strict=True))
    for region, name in named:
        if region.buffer.space in (Space.GLOBAL, Space.LOCAL):
            raise CompileError(
                f"T.gemm: {name} is {region.buffer.name} in {region.buffer.space.value} memory",
                expected="a fragment" if name == "C" else "shared memory or a fragment",
                fix="accumulate in a T.alloc_fragment, and T.copy that afterwards"
                if name == "C"
                else "T.copy it into a tile first: T.alloc_shared",
                code="space",
            )
    (ar, ac), (br, bc), (m, n) = (_matrix(*each) for each in named)

    def product(ta: bool, tb: bool) -> tuple[int, int, int, int]:
        (am, ak), (bk, bn) = (ac, ar) if ta else (ar, ac), (bc, br) if tb else (br, bc)
        return am, ak * (1 + sparse), bk, bn

    def multiplies(am: int, ak: int, bk: int, bn: int) -> bool:
        return (am, bn) == (m, n) and ak == bk

    am, ak, bk, bn = product(transpose_a, transpose_b)
    if not multiplies(am, ak, bk, bn):
        both = (False, True)
        choices = [(ta, tb) for tb in both for ta in both if multiplies(*product(ta, tb))]
        names = [region.buffer.name for region in (a, b, c)]
        if choices:
            fix, repair = _gemm_flags((transpose_a, transpose_b), choices[0])
        elif names[0] != names[2] and (a.buffer.space, c.buffer.space) == (
            Space.FRAGMENT, Space.SHARED,
        ):  # fmt: skip
            order = f"{names[1]}, {names[2]}, {names[0]}"  # written as C = A · B
            fix = f"the accumulator comes last: T.gemm({order})"
            repair = swap(", ".join(names), order)
        elif am != m:
            fix, repair = f"allocate {names[2]} as {shape_text((am, bn))}", None
        else:
            needed = (n, ak) if transpose_b else (ak, n)
            fix, repair = f"allocate {names[1]} as {shape_text(needed)}", None
        raise CompileError(
            "T.gemm: the shapes do not multiply",
            expected=f"A {m}×K, B K×{n} for C {m}×{n}",
            got=f"{a.buffer.name} {am}×{ak}{' (transposed)' * transpose_a}, "
            f"{b.buffer.name} {bk}×{bn}{' (transposed)' * transpose_b}",
            fix=fix,
            code="shape",
            repair=repair,
        )
    _check_gemm_types(a, b, c)
    for operand in (a, b):
        check_apart(operand, c)


def _gemm_flags(old: tuple[bool, bool], new: tuple[bool, bool]) -> tuple[str, Repair | None]:
    """The flags with which the shapes multiply."""
    flags = zip(("transpose_A", "transpose_B"), old, new, strict=True)
    first, *more = (f"{name}={on}" for name, was, on in flags if on != was)
    if more:
        return f"pass {first} and {more[0]}", None
    wrong = first.replace("False", "True")
    return f"pass {first}", with_argument(first) if first == wrong else swap(wrong, first)


def matrix_extents(region: Region) -> tuple[Expr, ...]:
    """The tile's shape, or that of a matrix with a single row or column."""
    extents = region.extents if len(region.tile) != 2 else region.tile
    while len(extents) > 2 and is_const(extents[0]):
        extents = extents[1:]
    return extents


def _matrix(region: Region, name: str) -> tuple[int, int]:
    for extent in region.tile:
        if not isinstance(extent, Const):
            raise CompileError(
                f"T.{word()} needs a tile of compile-time shape",
                got=f"{shape_text(region.tile)} of {region.buffer.name}",
                fix="copy a tile of fixed size into shared memory or a fragment first",
                code="not-constant",
            )
    shape = tuple(map(int, matrix_extents(region)))
    if len(shape) != 2:
        raise CompileError(
            f"T.gemm: {name} ({region.buffer.name}) must be a matrix",
            expected="two dimensions",
            got=shape_text(region.tile),
            fix=f"index the others: {region.buffer.name}[b, :, :]",
            code="shape",
        )
    return shape[0], shape[1]


def _check_gemm_types(a: Region, b: Region, c: Region) -> None:
    x, y, z = a.dtype, b.dtype, c.dtype
    eight_bit = x.is_float and y.is_float and x.bits == y.bits == 8
    mixed_sign = x.is_int and y.is_int and x.bits == y.bits
    if x != y and not eight_bit and not mixed_sign:
        raise CompileError(
            "T.gemm: A and B have different types",
            expected="one type",
            got=f"{a.buffer.name} {x}, {b.buffer.name} {y}",
            fix="copy one of them into a tile of the other's type: T.copy casts",
            code="dtype",
        )
    if x.is_bool or z.is_bool or x.is_float != z.is_float or (z.bits < 16 and z.bits < x.bits):
        raise CompileError(
            "T.gemm: C cannot accumulate these products",
            expected="a float C for float operands, an int32 C for integers",
            got=f"{x} · {y} → {z}",
            fix=f'allocate {c.buffer.name} as "{"float32" if x.is_float else "int32"}"',
            code="dtype",
        )


def check_dim(dim: int, rank: int, name: str) -> int:
    """A dimension, negative ones counted from the end."""
    if not -rank <= dim < rank:
        raise CompileError(
            f"T.{word()}: {name} has no dimension {dim}",
            expected=f"{-rank} … {rank - 1}",
            got=str(dim),
            fix="dimensions count from 0, or from -1 backwards",
            code="index",
        )
    return dim % rank


def check_reduce(src: Region, dst: Region, dim: int) -> None:
    """dst is src without dimension `dim`, or with it as 1."""
    shape = list(src.extents)
    rest = [e for at, e in enumerate(shape) if at != dim]
    kept = [e for e in rest if not is_const(e)]
    if not fits(kept, dst.tile):
        raise CompileError(
            f"T.{word()}: {dst.buffer.name} does not fit {src.buffer.name} reduced over {dim}",
            expected=shape_text(rest) + " (or with that dimension as 1)",
            got=shape_text(dst.extents),
            fix=_reduce_fix(shape, dst, dim),
            code="shape",
        )
    check_regions(src, dst)
    for region in (src, dst):
        if region.buffer.is_global:
            raise CompileError(
                f"T.{word()}: {region.buffer.name} lives in global memory",
                expected="tiles in fragments or shared memory",
                fix="T.copy it into a tile first",
                code="space",
            )


def _reduce_fix(shape: Sequence[Expr], dst: Region, dim: int) -> str:
    for other in range(len(shape)):
        rest = [e for at, e in enumerate(shape) if at != other]
        if other != dim and fits(rest, dst.tile):
            return f"pass dim={other}, or allocate {dst.buffer.name} with that shape"
    return f"allocate {dst.buffer.name} with that shape"


def check_program(program: Program) -> None:
    """Checks of the whole program: uniform scalars where tiles need them, independent
    iterations, and the IR's rules."""
    for kernel in program.kernels:
        _check_unrolled(kernel.body)
        check_uniform(kernel)
        _check_fragments(kernel)
        for op in walk_ops(kernel, Map):
            _check_map(op)
        check_carried(kernel)
    try:
        verify(program, Stage.TILE)
    except VerifyError as error:
        raise CompileError(**{**vars(error.diagnostic), "code": ""}) from None


def _check_unrolled(body: Body) -> int:
    """How many statements there are once loops are unrolled, if these are not too many."""
    total = 0
    for op in body:
        count = 1 + sum(_check_unrolled(each) for each in bodies(op))
        if isinstance(op, For) and op.kind == "unroll":
            values = values_of(op)
            trips = 1 if values is None else len(values)
            count *= max(1, trips)
            limits.UNROLLED.check(
                count,
                "T.unroll makes too much code",
                loc=op.loc,
                got=f"{count} statements, in {trips} iterations",
                fix="use T.serial: compilers unroll what is worth it",
            )
        total += count
    return total


def _check_fragments(kernel: Kernel) -> None:
    """A thread does not know which elements of a fragment it holds."""
    pinned = {op.buffer for op in walk_ops(kernel, Hint) if op.name == "layout"}
    threads = per_thread(kernel).vars
    for op in walk_ops(kernel):
        places = [(load.buffer, load.indices, load.loc) for load in op_loads(op)]
        if isinstance(op, Store):
            places.append((op.buffer, op.indices, op.loc))
        for buffer, indices, loc in places:
            if not buffer.is_fragment or buffer in pinned:
                continue
            source = next((v for i in indices for v in variables(i) if v in threads), None)
            if source is not None:
                raise CompileError(
                    f"{buffer.name} is a fragment and is indexed by thread, with {source.name}",
                    loc=occurrence(loc, op.loc),
                    expected="indices of T.Parallel",
                    fix="loop over it with T.Parallel, or keep the values in T.alloc_local or "
                    "shared memory",
                    code="not-uniform",
                )


def _check_map(loop: Map) -> None:
    """No two iterations of `T.Parallel` write one element, where that shows: an index
    that neither the place nor a condition around the store mentions."""
    wide = {
        var for var, extent in zip(loop.vars, loop.extents, strict=True) if not is_const(extent)
    }
    if any(is_const(extent, 0) for extent in loop.extents):
        return  # nothing runs

    _check_stores(loop.body, frozenset(wide), frozenset(), {})


def _check_stores(
    ops: Body, wide: frozenset[Var], told: frozenset[Var], means: dict[Var, frozenset[Var]]
) -> None:
    def mentioned(*exprs: Expr) -> frozenset[Var]:
        if any(x.buffer.is_local for e in exprs for x in loads(e)):
            return wide  # an iteration's own variable may hold anything
        found = {v for e in exprs for v in variables(e)}
        return frozenset(found).union(*(means.get(v, frozenset()) for v in found))

    for op in ops:
        if isinstance(op, Let):
            means = {**means, op.var: mentioned(op.value)}
        elif isinstance(op, Store) and not op.buffer.is_local:
            missing = wide - told - mentioned(*op.indices)
            if missing:
                names = ", ".join(sorted(v.name for v in missing))
                raise CompileError(
                    f"iterations of T.Parallel write the same element of {op.buffer.name}",
                    loc=op.loc,
                    expected=f"a place that depends on {names}",
                    fix="loop over the other indices only, store under an `if` that picks one "
                    "iteration, or use T.reduce_sum or T.atomic_add",
                    code="parallel-conflict",
                )
        elif isinstance(op, If):
            inside = told | mentioned(op.cond)
            _check_stores(op.then, wide, inside, means)
            _check_stores(op.orelse, wide, inside, means)
        elif isinstance(op, For):
            _check_stores(op.body, wide, told, {**means, op.var: mentioned(op.start, op.stop)})
        elif isinstance(op, While):
            _check_stores(op.body, wide, told | mentioned(op.cond), means)
        elif bound(op):
            # what an atomic or a shuffle yields may differ in every iteration
            means = {**means, **dict.fromkeys(bound(op), wide)}


# ── values that iterations of T.Parallel hand on ─────────────────────────────────────────────────

# An iteration has a copy of its own of every variable and local array that it changes. A value that
# one iteration leaves in it reaches neither the next one nor the code after the loop, so a program
# that reads it there means something else than its text says.

Written = dict[Buffer, Loc | None]  # where a local was changed, in a T.Parallel that has ended


def check_carried(kernel: Kernel) -> None:
    """Nothing reads a local that an iteration of `T.Parallel`, but not this one, wrote."""
    if any(walk_ops(kernel, Map)):
        seen = {op.source for op in walk_ops(kernel, View)}
        _Check(seen).body(kernel.body, {}, frozenset(), frozenset())


class _Check:
    def __init__(self, viewed: set[Buffer]) -> None:
        self.viewed = viewed  # other names of them may have been written

    def body(
        self, ops: Body, lost: Written, shared: frozenset[Buffer], fresh: frozenset[Buffer]
    ) -> tuple[Written, frozenset[Buffer]]:
        """`lost` are locals that a T.Parallel left without a value, `shared` those that iterations
        of the one around change, `fresh` those of them that this iteration has written. Returns
        `lost` and `fresh` after `ops`."""
        for op in ops:
            lost, fresh = self.step(op, lost, shared, fresh)
        return lost, fresh

    def step(
        self, op: Op, lost: Written, shared: frozenset[Buffer], fresh: frozenset[Buffer]
    ) -> tuple[Written, frozenset[Buffer]]:
        self.reads(op, lost, shared - fresh)
        if isinstance(op, Map):
            own = {x.buffer for x in walk_ops(op.body, Alloc, View)}
            changed = {
                b: x.loc
                for x in walk_ops(op.body)
                for b in written_buffers(x)
                if b.is_local and b not in own and b not in self.viewed
            }
            inner = (shared - fresh) | changed.keys()
            self.body(op.body, lost, frozenset(inner), frozenset())
            return {**lost, **changed}, fresh - changed.keys()
        if isinstance(op, If):
            one = self.body(op.then, lost, shared, fresh)
            two = self.body(op.orelse, lost, shared, fresh)
            return {**one[0], **two[0]}, one[1] & two[1]
        if isinstance(op, (For, While)):
            once = self.body(op.body, lost, shared, fresh)
            again = self.body(op.body, {**lost, **once[0]}, shared, fresh)
            return ({**lost, **again[0]}, once[1] if _runs(op) else fresh)
        for inner_body in bodies(op):
            lost, fresh = self.body(inner_body, lost, shared, fresh)
        if isinstance(op, Alloc):
            written = [op.buffer]
        else:
            written = [b for b in written_buffers(op) if b.is_local]
        if written:
            lost = {b: loc for b, loc in lost.items() if b not in written}
            fresh = fresh | frozenset(written)
        return lost, fresh

    def reads(self, op: Op, lost: Written, others: frozenset[Buffer]) -> None:
        found = [(load.buffer, load.loc) for load in op_loads(op)]
        found += [(region.buffer, None) for region in regions(op, reads=True)]
        for buffer, loc in found:
            if not buffer.is_local:
                continue
            here = occurrence(loc, op.loc)
            if buffer in others:
                raise CompileError(
                    f"{buffer.name} is read before this iteration of T.Parallel has written it, "
                    "and iterations change it",
                    loc=here,
                    expected=f"a {buffer.name} that each iteration writes before it reads it",
                    got="a value from another iteration: each has a copy of its own",
                    fix=_FIX,
                    code="parallel-conflict",
                )
            if buffer in lost:
                raise CompileError(
                    f"{buffer.name} is read after the T.Parallel whose iterations changed it",
                    loc=here,
                    got="a copy of its own in each iteration, and none after them"
                    + (f"; changed at {lost[buffer]}" if lost[buffer] else ""),
                    fix=_FIX,
                    code="parallel-conflict",
                )


_FIX = (
    "keep the values in T.alloc_fragment and combine them with T.reduce_sum (or T.reduce_max …), "
    "add to shared memory or a tensor with T.atomic_add, or loop with T.serial"
)


def _runs(op: For | While) -> bool:
    """The body runs at least once, as far as can be seen."""
    if isinstance(op, While):
        return False
    start, stop = op.start, op.stop
    return isinstance(start, Const) and isinstance(stop, Const) and start.value < stop.value
