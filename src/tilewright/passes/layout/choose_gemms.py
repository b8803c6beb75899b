"""Choose the matrix instruction of every product.

Warpgroup instructions read shared memory themselves. Those of warps multiply fragments: a product
from shared memory becomes a loop over K that loads what one instruction takes and multiplies it.
Products by threads read shared memory; an operand in registers goes there first.

What no instruction accumulates in (bfloat16, int16, a part of a fragment, shared memory) is
accumulated beside, in a fragment of a wider type that one does, and rounded once per product.

**Pieces** (`split_gemms`), one after the other in the same registers. A product that begins anew in
every iteration, and that threads then fold into an accumulator, needs registers twice: for itself
and for the accumulator. Tiles that are large enough to keep the tensor core busy have too few of
them. What the maps do with an element has nothing to do with others, so a part of the columns (or
rows) can be multiplied and folded before the next one begins:

    for k { T = A[k]·B[k]; map i, j { C[i, j] += T[i, j] * s[i] } }

    for k { T = A[k]·B[k, left]; map i, j { C[i, j] += T[i, j] * s[i] };
            T = A[k]·B[k, right]; map i, j { C[i, 128 + j] += T[i, j] * s[i] } }

Each piece reads its factor again from shared memory, so there are as few as leave room. While one
warpgroup folds a piece, another one multiplies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

from tilewright.passes.core import *
from tilewright.passes.layout.matrix_tiles import (
    RULES,
    Split,
    against,
    factors,
    fma_step,
    operand_kind,
    shape_of,
    split_of,
)
from tilewright.passes.layout.thread_layouts import divisors
from tilewright.passes.overlap.roles import role_of
from tilewright.passes.overlap.skew import fragment_room, registers, registers_of

# Products of a thread in a row. Long code comes late: on an H200, 712×760×264 by tiles of 64×128
# takes 33 µs with 2048, 18 with 1024
UNROLLED = 1024

# what stands for an accumulator that instructions do not have: integers wrap alike
_WIDER = {
    "float16": "float32", "bfloat16": "float32", "uint32": "int32", "int16": "int32",
    "uint16": "int32", "int8": "int32", "uint8": "int32", "int4": "int32", "uint4": "int32",
    "int2": "int32", "uint2": "int32", "float8_e4m3fn": "float32", "float8_e5m2": "float32",
}  # fmt: skip


@kernel_pass
def choose_gemms(at: Facts) -> Kernel:
    """Choose the atom of each GEMM, which the threads of its role or block share."""
    roles = role_of(at.kernel)
    # a product of a product: warps that own whole rows have what they need for the next
    chained = any(op.a.buffer.is_fragment for op in walk_ops(at.kernel, Gemm))
    laid = [(op.buffer, op.buffer.layout) for op in walk_ops(at.kernel, Alloc)]
    # tiles whose layout is not free: descriptors may not say it
    fixed = at.viewed | {buffer.name for buffer, layout in laid if isinstance(layout, Layout)}
    # fragments that say where their elements are: a part of one may be what instructions need
    laid += [(op.buffer, op.layout) for op in walk_ops(at.kernel, Hint) if op.buffer is not None]
    pinned = {buffer.name for buffer, layout in laid if isinstance(layout, Fragment)}
    constant = {op.var.name for op in walk_ops(at.kernel, For) if op.kind == "unroll"}

    def choose(op: Op) -> Op | Body | None:
        if not isinstance(op, Gemm) or op.atom is not None:
            return None
        role = roles.get(id(op))
        if chained and op.policy == "square":
            op = rebuild(op, policy="full_row")
        before, op = _own_parts(op, constant | pinned)
        warps = [b.name for b in (op.a.buffer, op.b.buffer) if b.name in fixed]
        fast = Feature.WGMMA in at.target.features and warps
        threads = at.kernel.thread_count if role is None else role.warps * WARP
        apart = role is not None and role.first % GROUP
        able = at.target.without(Feature.WGMMA) if warps or apart else at.target
        why = _layout_of(warps[0], at) if fast else ""
        choice = _Choice(at.kernel.name, threads, able, why)
        whole_tile = op.c.is_whole or op.c.name in pinned
        if not op.c.buffer.is_fragment or not whole_tile:
            return (*before, *_beside(op, op.c.dtype, choice))
        return (*before, *_chosen(op, choice))

    return map_ops(at.kernel, choose)


@dataclass(frozen=True)
class _Choice:
    """What instructions are chosen from; `against`: what keeps operands from wgmma."""

    kernel: str
    threads: int
    target: Target
    against: str


def _layout_of(name: str, at: Facts) -> str:
    """Why a tile cannot lie as wgmma needs it."""
    for op in walk_ops(at.kernel, View):
        one, other = op.buffer.name, op.source.name
        if name in (one, other):
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
    threads, target = choice.threads, choice.target
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
    yield from _EXPAND[split.atom](op, split)


def _own_parts(op: Gemm, constant: set[str]) -> tuple[Body, Gemm]:
    """`op` with parts of fragments, but for slices of K at constant places, in fragments of their
    own. `constant`: variables of unrolled loops, and fragments whose layout is given."""
    before: list[Op] = []
    for name, region, deep in factors(op):
        buffer = region.buffer
        if not buffer.is_fragment or buffer.name in constant:
            continue
        dim = deep + buffer.rank - 2
        sizes = enumerate(zip(region.extents, buffer.shape, strict=True))
        is_slice = all(d == dim or extent is size for d, (extent, size) in sizes)
        if is_slice and all(v.name in constant for v in variables(region.starts[dim])):
            continue
        held = _tile(buffer, "own", region.extents[-2:])
        before += [Alloc(held, loc=op.loc), Copy(region, whole(held), loc=op.loc)]
        op = rebuild(op, **{name: whole(held)})
    return tuple(before), op


def _tile(
    like: Buffer,
    suffix: str,
    shape: tuple[Expr, ...],
    space: Space = Space.FRAGMENT,
    kind: DType | None = None,
) -> Buffer:
    return Buffer(fresh_name(f"{like.name}_{suffix}"), shape, kind or like.dtype, space)


def _beside(op: Gemm, kind: DType, choice: _Choice) -> Iterable[Op]:
    """The product in a fragment of type `kind`, which begins and ends as the accumulator."""
    suffix = "own" if kind == op.c.dtype else "wide"
    wide = _tile(op.c.buffer, suffix, op.c.extents[-2:], kind=kind)
    yield Alloc(wide, loc=op.loc)
    if op.clear is not TRUE:
        yield Copy(op.c, whole(wide), loc=op.loc)
    yield from _chosen(rebuild(op, c=whole(wide)), choice)
    yield Copy(whole(wide), op.c, loc=op.loc)


def _mma(op: Gemm, split: Split) -> Iterable[Op]:
    assert split.kind is not None
    yield from _cleared(op)
    yield from _in_steps(rebuild(op, atom="mma", clear=FALSE), split.kind.k)


def _in_steps(op: Gemm, step: int, most: int | None = None) -> Iterable[Op]:
    """A loop over K that loads `step` of the factors at a time, and multiplies that; `most` steps
    are unrolled."""
    _, _, k = shape_of(op)
    steps = k // step
    together = steps if most is None else max(d for d in divisors(steps) if d <= max(most, 1))
    inner = fresh_var("kk")
    outer = fresh_var("kk") if together < steps else None
    at = inner if outer is None else outer * together + inner
    parts: dict[str, Region] = {}
    loads: list[Op] = []
    for name, region, deep in factors(op):
        dim = deep + region.buffer.rank - 2
        starts, extents = list(region.starts), list(region.extents)
        starts[dim], extents[dim] = starts[dim] + at * step, const(step)
        part = replace(region, starts=tuple(starts), extents=tuple(extents))
        if region.buffer.is_fragment:
            parts[name] = part
            continue
        held = _tile(region.buffer, "part", part.extents[-2:])
        yield Alloc(held, loc=op.loc)
        loads.append(Copy(part, whole(held), loc=op.loc))
        parts[name] = whole(held)
    body = (*loads, rebuild(op, **parts))
    loop = For(inner, const(0), const(together), body, kind="unroll", loc=op.loc)
    if outer is None:
        yield loop
    else:
        yield For(outer, const(0), const(steps // together), (loop,), loc=op.loc)


def _cleared(op: Gemm) -> Iterable[Op]:
    """The accumulator set to zero where the product asks for it."""
    if op.clear is FALSE:
        return
    fill = Fill(op.c, const(0, op.c.dtype), loc=op.loc)
    yield fill if op.clear is TRUE else If(op.clear, (fill,), loc=op.loc)


def _fma(op: Gemm, split: Split) -> Iterable[Op]:
    yield from _cleared(op)
    operands: dict[str, Region] = {}
    for name, region in (("a", op.a), ("b", op.b)):
        if region.buffer.is_fragment:
            held = _tile(region.buffer, "shared", region.buffer.shape, Space.SHARED)
            yield Alloc(held, loc=op.loc)
            yield Copy(whole(region.buffer), whole(held), loc=op.loc)
            region = replace(region, buffer=held)
        operands[name] = region
    op = rebuild(op, atom="fma", clear=FALSE, **operands)
    if not split.rows:
        yield op
        return
    m, n, _ = shape_of(op)
    step = fma_step(op)
    own = (m // split.rows) * (n // split.columns) * step
    yield from _in_steps(op, step, UNROLLED // own)


_EXPAND: dict[str, Callable[[Gemm, Split], Iterable[Op]]] = {
    "wgmma": lambda op, split: (rebuild(op, atom="wgmma"),),
    "mma": _mma,
    "fma": _fma,
}


# ── pieces ───────────────────────────────────────────────────────────────────────────────────


WIDE, NARROW = 128, 64  # columns of a piece: as many as instructions like, as few as they should
ROWS = 64  # that a warpgroup multiplies
MOST = 4  # pieces


@kernel_pass
def split_gemms(at: Facts) -> Kernel:
    """Split GEMMs that would leave too few registers into pieces of their columns or rows."""
    kernel, asked = at.kernel, at.target.internal.split_gemms
    if asked is False or at.has_roles:
        return kernel
    for loop in walk_ops(kernel, For):
        plain = loop.kind == "pipelined" and loop.order is None and not leaves_early(loop.body)
        for n, op in enumerate(loop.body) if plain else ():
            way = _cut(at, loop, n, asked is True) if isinstance(op, Gemm) else None
            if isinstance(op, Gemm) and way is not None:
                users, dim, count = way
                size = op.c.static_tile[dim] // count
                said = (
                    f"{op.c.name} in {count} pieces of {size} "
                    f"{'columns' if dim else 'rows'}, "
                    f"one after the other: the whole tile would leave too few registers"
                )
                because(kernel.name, loop, said)
                return _in_pieces(at, loop, op.c.buffer, (n, *users), dim, size)
    return kernel


def _in_pieces(
    at: Facts, loop: For, tile: Buffer, moved: tuple[int, ...], dim: int, size: int
) -> Kernel:
    """The statements `moved` of `loop`, a product into `tile` and maps, in pieces along `dim`."""
    shape = tuple(const(size) if d == dim else s for d, s in enumerate(tile.shape))
    small = replace(tile, shape=shape)

    def piece(op: Op, n: int) -> Op:
        if isinstance(op, Gemm):
            factor, turned = ("b", op.transpose_b) if dim else ("a", op.transpose_a)
            cut = along(getattr(op, factor), bool(turned) ^ dim, const(n * size), size)
            c = Region(small, op.c.starts, small.shape, op.c.cta)
            return rebuild(op, **{factor: cut, "c": c})
        assert isinstance(op, Map)
        old = op.vars[dim]
        own = fresh_var(old.name, dtype=old.dtype)
        vars = tuple(own if v is old else v for v in op.vars)

        def rule(each: Op) -> Op:
            each = map_loads(each, lambda e: Load(small, vars) if e.buffer == tile else None)
            if isinstance(each, Store) and each.buffer == tile:
                each = rebuild(each, buffer=small, indices=vars)
            return each

        inner = substitute_vars(map_body(op.body, rule), {old: own + n * size})
        extents = tuple(const(size) if d == dim else e for d, e in enumerate(op.extents))
        found = rebuild(op, vars=vars, extents=extents, body=inner)
        return found if n == 0 else rename_unique(found)

    body: list[Op] = []
    for k, op in enumerate(loop.body):
        body.append(piece(op, 0) if k in moved else op)
        if k == moved[-1]:
            rest = range(1, tile.static_shape[dim] // size)
            body += [piece(loop.body[each], n) for n in rest for each in moved]

    def shrink(op: Op) -> Op | None:
        is_own = isinstance(op, Alloc) and op.buffer == tile
        return rebuild(op, buffer=small) if is_own else None

    kernel = map_ops(at.kernel, lambda op: rebuild(loop, body=tuple(body)) if op is loop else None)
    return map_ops(kernel, shrink)


def _cut(facts: Facts, loop: For, at: int, asked: bool) -> tuple[list[int], int, int] | None:
    """Of the product that is statement `at` of a loop, if it is to be cut: its users, the dimension
    and the number of pieces."""
    kernel, op = facts.kernel, loop.body[at]
    if not isinstance(op, Gemm) or op.atom != "wgmma" or op.clear is not TRUE or op.transpose_c:
        return None
    tile = op.c.buffer
    if not tile.is_fragment or tile.rank != 2 or not op.c.is_whole:
        return None
    needed, room = registers(kernel), fragment_room(kernel)
    if (needed <= room and not asked) or any(r.buffer == tile for r in (op.a, op.b)):
        return None
    users = _users(facts, loop, at, tile)
    if not users:
        return None
    own = registers_of(tile, kernel)
    for dim, count in _ways(tile.static_shape, kernel.threads[0] // WARPGROUP):
        if needed - own + -(-own // count) <= room:
            return users, dim, count
    return None


def _ways(shape: tuple[int, ...], groups: int) -> Iterator[tuple[int, int]]:
    """Dimensions and numbers of pieces, the best first."""
    rows, columns = shape
    for least in (WIDE, NARROW):
        for count in range(2, MOST + 1):
            if columns % (count * 8) == 0 and columns // count >= least:
                yield 1, count
            if rows % (count * ROWS * max(groups, 1)) == 0 and columns >= least:
                yield 0, count


def _users(facts: Facts, loop: For, at: int, tile: Buffer) -> list[int]:
    """The maps after a product that use its result, element by element; none where something
    else has to do with it, or would come between."""
    hints = {op.buffer.name for op in walk_ops(facts.kernel, Hint) if op.buffer}
    if tile.name in used_outside(facts.kernel.body, {loop.var}) | facts.viewed | hints:
        return []
    touches = [touched(op) for op in loop.body]
    users = [k for k in range(len(loop.body)) if k != at and tile.name in touches[k]]
    if not users or users[0] < at:
        return []
    moved = {at, *users}
    if not all(_by_element(loop.body[k], tile) for k in users):
        return []
    for k in range(at, users[-1] + 1):
        for each in moved - {k}:
            for name in touches[k].keys() & touches[each].keys() - {tile.name}:
                both = (loop.body[k], loop.body[each])
                apart = k in moved and all(_by_element(op, tile, name) for op in both)
                if (touches[k][name] or touches[each][name]) and not apart:
                    return []
    return users


def _by_element(op: Op, tile: Buffer, name: str | None = None) -> bool:
    """Whether a map over the tile's box touches a buffer (by default the tile) only at its own
    point."""
    if not isinstance(op, Map) or op.layout is not None or len(op.vars) != len(tile.shape):
        return False
    if any(a is not b for a, b in zip(op.extents, tile.shape, strict=True)):
        return False
    name, inner = name or tile.name, list(walk_ops(op.body))
    places = [x.indices for i in inner for x, _ in elements_of(i) if x.buffer.name == name]
    others = [r for i in inner for r in operands(i) if isinstance(r, Region)]
    return all(r.name != name for r in others) and all(p == op.vars for p in places)
