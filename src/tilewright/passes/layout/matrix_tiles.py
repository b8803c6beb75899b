"""How a product's tile is distributed over warps: which instruction, which split, which fragments.

One `Split` per `Gemm`, found from shapes, types, places and the warp policy alone, so that the
choice of atoms and the inference of layouts agree without telling each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import gcd
from typing import Any

from tilewright.ir.atoms import MATRIX_TYPES, MatrixType, matrix_fragments
from tilewright.ir.layout.fragment import repeat, spatial
from tilewright.passes.core import *
from tilewright.passes.layout.thread_layouts import Wish, divisors, spread, with_units

RUN, DEEPEST = 16, 4  # bytes of one load; elements of a row or column that a thread holds
FMA_TYPES = ("float32", "int32", "float64", "int64", "uint64")


@dataclass(frozen=True)
class Split:
    """`rows` × `columns` groups share the tile among `threads`; an instruction of `atom` has `n`
    columns. `kind`: the type of A among the matrix types, None for `fma`, whose groups are threads,
    of which a warp has `lanes` along rows and columns. When they do not divide the tile (`rows` 0),
    it is spread as any other."""

    atom: str
    threads: int
    rows: int
    columns: int
    n: int
    kind: MatrixType | None = None
    lanes: tuple[int, int] = (1, 1)


def instruction(split: Split) -> str:
    """The instruction's name with its shape.

    >>> instruction(Split("fma", 128, 8, 16, 4))
    'fma'
    """
    if split.kind is None:
        return split.atom
    return f"{split.atom} m{64 if split.atom == 'wgmma' else 16}n{split.n}k{split.kind.k}"


def operand_kind(op: Gemm, region: Region) -> MatrixType | None:
    """What matrix instructions call the type of an operand; None where they have none."""
    name = region.dtype.name
    if name == "float32" and op.precision == "tf32":
        name = "tfloat32"
    return MATRIX_TYPES.get(name)


def shape_of(op: Gemm) -> tuple[int, int, int]:
    """M, N, K; extents of 1 count."""
    c, a = (tuple(int(e) for e in r.extents[-2:]) for r in (op.c, op.a))
    m, n = reversed(c) if op.transpose_c else c
    return m, n, a[0 if op.transpose_a else 1]


def factors(op: Gemm) -> tuple[tuple[str, Region, int], ...]:
    """The factors, and which dimension of each is K."""
    return ("a", op.a, int(not op.transpose_a)), ("b", op.b, int(bool(op.transpose_b)))


def split_of(op: Gemm, threads: int, target: Target) -> Split | None:
    """The first instruction that can do `op`, fastest first, and how the warps share it."""
    rules = RULES if op.atom is None else {op.atom: RULES[op.atom]}
    found = (rule(op, threads, target) for rule in rules.values())
    return next((split for split in found if isinstance(split, Split)), None)


@kernel_pass
def swap_operands(at: Facts) -> Kernel:
    """Rewrite GEMMs that warpgroups cannot multiply as they are written.

    - Cᵀ = Bᵀ·Aᵀ, where columns, not rows, are a multiple of 64.
    - Types of which instructions want K innermost in shared memory: an A that lies otherwise goes
      through registers. So does a B, as the A of Cᵀ.

    Where what products make is reduced, operands stay: rows would lie across warps."""
    if at.has_roles:
        return at.kernel
    laid = {op.buffer for op in walk_ops(at.kernel, Hint)}
    reduces = any(walk_ops(at.kernel, Reduce, Scan))
    threads, found = at.kernel.thread_count, dict[int, tuple[Any, ...]]()

    def able(op: Op) -> bool:
        return isinstance(op, Gemm) and isinstance(_wgmma(op, threads, at.target), Split)

    for op in walk_ops(at.kernel, Gemm):
        tile = op.c.buffer
        plain = op.policy == "square" and op.atom is None and tile.is_fragment
        free = tile.layout is None and tile not in laid
        if not plain or not free or op.a.buffer.is_fragment:
            return at.kernel
        turned = op if reduces else _swapped(op)
        ways: list[tuple[Any, ...]] = [(op,), (turned,), _held(op), _held(turned)]
        body = next((way for way in ways if way and able(way[-1])), None)
        if body is None or body[-1] is op:
            return at.kernel
        # results of several lie the same way: one may go on where another ends
        if any(other[-1].transpose_c != body[-1].transpose_c for other in found.values()):
            return at.kernel
        found[id(op)] = body
        rows, columns, _ = shape_of(op)
        why = f"operands swapped: of {rows}×{columns}, only the columns are a multiple of 64"
        if len(body) > 1:
            why = "an operand through registers: K is not innermost"
        because(at.kernel.name, op, why)
    return map_ops(at.kernel, lambda op: found.get(id(op)))


def _swapped(op: Gemm) -> Gemm:
    return rebuild(
        op, a=op.b, b=op.a, transpose_a=not op.transpose_b, transpose_b=not op.transpose_a,
        transpose_c=not op.transpose_c,
    )  # fmt: skip


def _held(op: Gemm) -> Body:
    """A product whose A is read into registers first, where K is not innermost and an element fills
    a register; nothing elsewhere."""
    kind, region = operand_kind(op, op.a), op.a
    if kind is None or kind.mn_major or kind.bits != 32 or not op.transpose_a:
        return ()
    k, rows = (const(int(e)) for e in region.extents[-2:])
    tile = Buffer(fresh_name(f"{region.name}_held"), (rows, k), region.dtype, Space.FRAGMENT)
    i, j = (fresh_var(name) for name in ("i", "j"))
    *first, down, along = region.starts
    load = Load(region.buffer, (*first, down + j, along + i))
    reads = Map((i, j), tile.shape, (Store(tile, (i, j), load),), loc=op.loc)
    return Alloc(tile), reads, rebuild(op, a=whole(tile), transpose_a=False)


def against(op: Gemm, threads: int, target: Target) -> list[str]:
    """Why instructions that are faster than the one for `op` do not do it: which operand keeps
    each of them from it, and what to change."""
    found = []
    for name, rule in RULES.items():
        said = rule(op, threads, target)
        if isinstance(said, Split):
            break
        found.append(f"no {name}{said}")
    return found


def _wrong(op: Gemm, threads: int, target: Target, needs: Feature, group: int) -> str:
    """What matrix instructions of `group` threads have against a product, whatever its shape."""
    if needs not in target.features:
        return " on this target"
    if threads % group:
        noun = "warps" if group == WARP else "warpgroups"
        return f": {threads} threads are not whole {noun} of {group}"
    if op.meta is not None:
        return f": {op.a.name} is sparse"
    for region in (op.a, op.b, op.c):
        if len(region.static_tile) != 2:
            return f": {region.name} is no matrix with several rows and columns"
    for region in (op.a, op.b):
        if operand_kind(op, region) is None:
            name, kind = region.name, region.dtype.name
            if kind == "float32":
                return (
                    f': {name} is float32, whose products are exact: precision="tf32" asks for it'
                )
            return f": {name} is {kind}: copy it into a tile of a type that it takes"
    x, y = operand_kind(op, op.a), operand_kind(op, op.b)
    assert x is not None and y is not None
    if not x.multiplies(y, op.c.dtype.name):
        return (
            f": {x.name} by {y.name} into {op.c.dtype}: allocate {op.c.name} as {x.accumulators[0]}"
        )
    return ""


def _wgmma(op: Gemm, threads: int, target: Target) -> Split | str:
    kind, other = operand_kind(op, op.a), operand_kind(op, op.b)
    a, b = op.a.buffer, op.b.buffer
    if wrong := _wrong(op, threads, target, Feature.WGMMA, WARPGROUP):
        return wrong
    assert kind is not None and other is not None
    if not kind.wgmma:
        return f" of {kind.name}"
    m, n, k = shape_of(op)
    if m % 64:
        return f": C has {m} rows: make them a multiple of 64"
    if k % kind.k:
        return f": K is {k}: make it a multiple of {kind.k} for {kind.name}"
    if not b.is_shared:
        return f": {b.name}, which is B, is a fragment: keep it in T.alloc_shared"
    if a.is_fragment and op.transpose_a:
        return f": {a.name} is a transposed fragment: keep it in T.alloc_shared"
    if not kind.mn_major and not op.transpose_b:
        return f": {b.name} of {other.name} must lie with K innermost: load it so, transpose_B=True"
    if not kind.mn_major and op.transpose_a and a.is_shared:
        return f": {a.name} of {kind.name} must lie with K innermost: load it so, transpose_A=False"
    # rows first: wide instructions read least, and rows of a softmax stay in a warpgroup
    policy = "full_col" if op.policy == "full_col" else "full_row"
    groups = threads // WARPGROUP
    for rows, columns in _splits(groups, policy, m / 64, n / 8):
        width = 0 if m % (64 * rows) or n % (8 * columns) else n // columns
        for step in range(min(width, 256), 7, -8):
            if width % step == 0 and kind.has_n(step) and _panels_fit(op, other, step):
                return Split("wgmma", threads, rows, columns, step, kind)
    return (
        f": {groups} warpgroup{'s' * (groups != 1)} cannot share {m}×{n} in parts of 64 rows and 8 "
        f"columns, with whole rows of {b.name}"
    )


def _panels_fit(op: Gemm, kind: MatrixType, step: int) -> bool:
    """Whether `step` columns of B, N contiguous, are whole panels of its swizzle."""
    if op.transpose_b:
        return True
    columns = op.b.static_tile[1] * kind.bits // 8
    span = next((s for s in (128, 64, 32, 16) if columns % s == 0), 0)
    return span > 0 and (step * kind.bits // 8) % span == 0


def _mma(op: Gemm, threads: int, target: Target) -> Split | str:
    kind = operand_kind(op, op.a)
    if wrong := _wrong(op, threads, target, Feature.MMA, WARP):
        return wrong
    assert kind is not None
    if kind.needs not in target.features:
        return f" of {kind.name} on this target"
    m, n, k = shape_of(op)
    if m % 16 or n % 8:
        return f": C is {m}×{n}: make its rows a multiple of 16, its columns one of 8"
    if k % kind.k:
        return f": K is {k}: make it a multiple of {kind.k} for {kind.name}"
    for rows, columns in _splits(threads // WARP, op.policy, m / 16, n / 8):
        if m % (16 * rows) == 0 and n % (8 * columns) == 0:
            return Split("mma", threads, rows, columns, 8, kind)
    return (
        f": {threads // WARP} warps cannot share {m}×{n} in parts of 16 rows and 8 columns: use "
        f"fewer threads"
    )


def _fma(op: Gemm, threads: int, target: Target) -> Split | str:
    if op.c.dtype.name not in FMA_TYPES or op.meta is not None or op.c.buffer.rank < 2:
        return f": it accumulates in {', '.join(FMA_TYPES)}"
    m, n, _ = shape_of(op)
    warp = min(threads, WARP) if threads % WARP == 0 or threads < WARP else 1
    high, wide = runs_of(op)
    ways = [
        (rows, columns, (lanes, warp // lanes))
        for rows, columns in ((r, threads // r) for r in divisors(threads))
        for lanes in divisors(warp)
        if rows % lanes == 0 and columns % (warp // lanes) == 0
        if m % rows == 0 and n % columns == 0
    ]
    if not ways:
        return Split("fma", threads, 0, 0, n)  # spread as any tile is

    def cost(way: tuple[int, int, tuple[int, int]]) -> tuple[float, ...]:
        rows, columns, lanes = way
        own = m // rows, n // columns  # what a thread reads of both factors for a step of K
        loads = own[0] / gcd(own[0], high) + own[1] / gcd(own[1], wide)
        return sum(own), loads, own[0] * lanes[0] + own[1] * lanes[1], rows

    rows, columns, lanes = min(ways, key=cost)
    return Split("fma", threads, rows, columns, n // columns, lanes=lanes)


def runs_of(op: Gemm) -> tuple[int, int]:
    """Elements of 16 bytes along the rows and the columns of C, where factors lie so."""
    high, wide = (max(1, RUN * 8 // region.dtype.bits) for region in (op.a, op.b))
    return high if op.transpose_a else 1, 1 if op.transpose_b else wide


def fma_step(op: Gemm) -> int:
    """How deep the parts are that threads load and multiply: as one load takes along K, where a
    factor lies so, but not more than registers are for."""
    along = [1]
    along += [RUN * 8 // op.a.dtype.bits] * (not op.transpose_a)
    along += [RUN * 8 // op.b.dtype.bits] * op.transpose_b
    return gcd(shape_of(op)[2], min(DEEPEST, max(along)))


RULES: dict[str, Callable[[Gemm, int, Target], Split | str]] = {
    "wgmma": _wgmma,
    "mma": _mma,
    "fma": _fma,
}


def _splits(groups: int, policy: str, m: float, n: float) -> list[tuple[int, int]]:
    """Ways to arrange `groups` over rows and columns, best first: all along one side as the policy
    says, else the one whose parts, `m` by `n` instructions in all, are nearest to square."""
    keys: dict[str, Callable[[tuple[int, int]], Any]] = {
        "full_row": lambda way: -way[0],
        "full_col": lambda way: -way[1],
        # an instruction is twice as high as wide; of two equal ways the one with more rows
        "square": lambda way: (2 * m / way[0] + n / way[1], -way[0]),
    }
    return sorted(((r, groups // r) for r in divisors(groups)), key=keys[policy])


def fragments_of(op: Gemm, split: Split) -> dict[str, Fragment]:
    """What the threads hold of C, and of A and B where these are fragments."""
    m, n, k = shape_of(op)
    if split.atom == "fma":
        if not split.rows:
            shape = (n, m) if op.transpose_c else (m, n)
            return {"c": spread(shape, split.threads, Wish(1, op.c.dtype.bits // 8))}
        return _fma_fragments(op, split)
    rows, columns = m // split.rows, n // split.columns
    assert split.kind is not None
    atoms = matrix_fragments(split.atom, split.kind, split.n)
    high = atoms["c"].tile[0]
    found = {
        "c": spatial(split.rows, split.columns)
        * repeat(rows // high, columns // split.n)
        * atoms["c"]
    }
    part = repeat(rows // high, k // split.kind.k) * atoms["a"]
    found["a"] = spatial(split.rows, 1) * part.replicate(split.columns)
    if "b" in atoms:
        deep = op.b.static_tile[1 if op.transpose_b else 0]
        part = repeat(deep // split.kind.k, columns // split.n) * atoms["b"]
        found["b"] = (spatial(1, split.columns) * part).replicate(split.rows)
    return _as_they_lie(op, found)


def _fma_fragments(op: Gemm, split: Split) -> dict[str, Fragment]:
    """Lanes of a warp lie side by side, each with a run that one load takes, so that loads of a
    warp meet no conflict; warps lie beside each other, and the thread's next run is after all of
    them, where the swizzle of a row is often the same. Four lanes in a row are a square: a load of
    16 bytes takes four turns of shared memory where four neighbours read different ones, else two.
    """
    m, n, k = shape_of(op)
    (high, wide), own = split.lanes, (m // split.rows, n // split.columns)
    run_m, run_n = (gcd(size, run) for size, run in zip(own, runs_of(op), strict=True))
    warps_m, warps_n = split.rows // high, split.columns // wide
    by = 2 if high % 2 == wide % 2 == 0 else 1
    lanes_m = (spatial(by, 1) * repeat(run_m, 1).replicate(by)).replicate(wide // by)
    lanes_m = (spatial(high // by, 1) * lanes_m).replicate(warps_n)
    lanes_n = spatial(1, wide // by) * (spatial(1, by) * repeat(1, run_n)).replicate(by)
    lanes_n = (spatial(1, warps_n) * lanes_n.replicate(high // by)).replicate(warps_m)
    lanes = spatial(high // by, wide // by) * spatial(by, by) * repeat(run_m, run_n)
    rows = repeat(own[0] // run_m, 1) * (spatial(warps_m, 1) * lanes_m)
    columns = repeat(1, own[1] // run_n) * lanes_n
    found = {
        "c": repeat(own[0] // run_m, own[1] // run_n) * (spatial(warps_m, warps_n) * lanes),
        "a": repeat(1, k) * rows if op.transpose_a else rows * repeat(1, k),
        "b": columns * repeat(k, 1) if op.transpose_b else repeat(k, 1) * columns,
    }
    return _as_they_lie(op, found)


def _as_they_lie(op: Gemm, found: Mapping[str, Fragment]) -> dict[str, Fragment]:
    """Fragments by name, turned where the product has them transposed."""
    turned = {"a": op.transpose_a, "b": op.transpose_b, "c": op.transpose_c}
    return {name: each.permute(1, 0) if turned[name] else each for name, each in found.items()}


def wanted_operands(
    op: Gemm, threads: int, target: Target
) -> Iterator[tuple[str, Buffer, Fragment]]:
    """Operands of `op` that are (parts of) fragments, and how all of each has to be spread."""
    split = split_of(op, threads, target)
    if split is None:
        return
    wholes = {
        name: whole(region.buffer)
        for name, region in (("a", op.a), ("b", op.b))
        if region.buffer.is_fragment
    }
    for name, fragment in fragments_of(rebuild(op, **wholes), split).items():
        buffer: Buffer = getattr(op, name).buffer
        if buffer.is_fragment:
            found = with_units(fragment, buffer.static_shape)
            if found is not None:
                yield name, buffer, found
