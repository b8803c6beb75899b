"""Fewer trips through memory, for a CPU.

`split_edges`: blocks and iterations of which the last ones reach outside a product's factors are
two texts, so that only that one copies, or multiplies less.

`forward_copies`: products read factors where they lie, and a tile that only carries them there
goes. On a GPU operands must be in shared memory, or in fragments of a certain layout. A CPU packs
them as it multiplies, so a copy before that is one more trip through the caches. Of a factor that
ends within its tile, products read what there is: the rest would be zeros.

`write_products`: a product that is stored as it is writes to the tensor.

`absorb_loops`: a loop that is all a map does becomes one more axis of the map, when its iterations
are independent: then the axis that is contiguous in memory can be the vector, whichever it is.

`fuse_maps`: neighbouring maps over one box become one.

`promote_tiles`: a tile that one map alone writes and reads, point by point, becomes a register.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import reduce
from operator import is_
from typing import TypeAlias

from tilewright.ir.scope import after, entry, map_inside, walk_ranges
from tilewright.passes.core import *

TILES = (Space.SHARED, Space.FRAGMENT)


# ── copies ───────────────────────────────────────────────────────────────────────────────────


@kernel_pass
def split_edges(at: Facts) -> Kernel:
    """Give blocks and iterations in which operands of GEMMs are whole a text of their own.

    Of

        for k in 0 .. 8 { copy A[m * 128:+128, k * 64:+64] -> a; … gemm a, b -> c }

    it makes

        if m < 7 { for k in 0 .. 7 { … }; for k in 7 .. 8 { … } } else { … }

    for a grid of 8 blocks.
    """
    kernel = at.kernel
    factors = {r.name for op in walk_ops(kernel, Gemm) for r in (op.a, op.b)}
    blocks = dict(zip(kernel.blocks, kernel.grid, strict=True))
    counted = (op for op in walk_ops(kernel, For) if (op.start, op.step) == (const(0), const(1)))
    loops = {op.var: op.stop for op in counted}
    ends = {v: int(e) for v, e in {**blocks, **loops}.items() if isinstance(e, Const)}
    split: set[Var] = set()
    for op, ranges in walk_ranges(kernel, at.dims):
        if not isinstance(op, Copy) or op.dst.buffer.name not in factors:
            continue
        # one index for each side that ends outside: several would be many texts
        ragged = [d for d in range(op.src.buffer.rank) if not _inside_along(d, op.src, ranges)]
        last = [variables(op.src.starts[d]) & ends.keys() for d in ragged]
        if any(len(each) != 1 or not all(ends[v] > 1 for v in each) for each in last):
            continue
        own = {v for each in last for v in each}
        whole = reduce(lambda known, v: known.where(v, 0, ends[v] - 2), own, ranges)
        split |= own if _inside(op.src, whole) else set()
    if not split or any(walk_ops(kernel, Sync, Role)):
        return kernel

    def in_two(op: Op) -> Body | None:
        if not isinstance(op, For) or op.var not in split:
            return None
        edge = const(ends[op.var] - 1)
        rest = rename_unique(rebuild(op, start=edge))
        return rebuild(op, stop=edge), rest

    body = map_body(kernel.body, in_two)
    for v in [v for v in kernel.blocks if v in split]:
        body = (If(v < ends[v] - 1, body, rename_unique(body)),)
    return rebuild(kernel, body=body)


@kernel_pass
def forward_copies(at: Facts) -> Kernel:
    """Remove tiles that a single copy fills and only GEMMs read."""
    kernel = at.kernel
    uses = Counter(b.name for op in at.ops for b in named_buffers(op))
    gone: set[str] = set()

    def visit(body: Body, ranges: Ranges) -> Body:
        done: list[Op] = []
        left = body
        while left:
            op, left = left[0], left[1:]
            less = _clipped(op, left, ranges) if isinstance(op, Copy) else None
            if less is not None and _carries(at, less, left, ranges, uses):
                tile, source = less.dst.buffer.name, less.src.buffer.name
                gone.add(tile)
                because(kernel.name, tile, f"no tile: gemms read {source} in place")
                left = _reading(left, less)
                continue
            done.append(map_inside(op, ranges, visit))
            ranges = after(op, ranges)
        return tuple(done)

    def drop(op: Op) -> Body | None:
        return () if isinstance(op, Alloc) and op.buffer.name in gone else None

    body = visit(kernel.body, entry(kernel, at.dims))
    return rebuild(kernel, body=map_body(body, drop)) if gone else kernel


def _carries(at: Facts, op: Copy, later: Body, ranges: Ranges, uses: Counter[str]) -> bool:
    """The copy only brings something to products, all there and not changed meanwhile."""
    src, tile = op.src, op.dst.buffer
    special = (op.barrier, op.multicast, op.atom, op.reduce, src.cta)
    if not (
        all(each is None for each in special)
        and op.dst.is_whole
        and src.dtype == tile.dtype
        and not src.dtype.packed
        and len(src.tile) == 2
        and tile.space in TILES
        and not at.viewed & {tile.name, src.buffer.name}
        and all(map(is_pure, src.starts))
        and _inside(src, ranges)
    ):
        return False
    users = [n for n, op in enumerate(later) for x in walk_ops(op) if _is_factor(x, tile)]
    if uses[tile.name] != 2 + len(users):  # its allocation, this copy and the products
        return False
    if src.buffer.is_global:
        return src.buffer.name not in at.written
    between = later[: max(users, default=-1) + 1]
    return src.buffer.space in TILES and src.buffer.name not in written_in(between)


def _clipped(op: Copy, later: Body, ranges: Ranges) -> Copy:
    """Less of a factor, where it is known how much of it there is: of what products add up, zeros
    make no difference."""
    users = [x for x in walk_ops(later, Gemm) if _is_factor(x, op.dst.buffer)]
    if not op.src.buffer.is_global or any(x.clear is not FALSE for x in users):
        return op
    return rebuild(op, src=_there(op.src, ranges))


def _there(region: Region, ranges: Ranges) -> Region:
    """As much of it as is known to be there, where that is a number."""
    starts = [simplify(start, ranges) for start in region.starts]
    found = [
        binary("min", extent, const(max(1, int(size) - int(start))))
        if isinstance(start, Const) and isinstance(size, Const)
        else extent
        for start, extent, size in zip(starts, region.extents, region.buffer.shape, strict=True)
    ]
    return replace(region, extents=tuple(found))


def _is_factor(op: Op, tile: Buffer) -> bool:
    """`op` multiplies by the tile from its first element on, and does nothing else with it."""
    if not isinstance(op, Gemm) or op.meta is not None or op.c.buffer.name == tile.name:
        return False
    named = [r for r in (op.a, op.b) if r.buffer.name == tile.name]
    first = all(start is const(0) for r in named for start in r.starts)
    matrices = all(len(_matrix_dims(r)) == 2 for r in (op.a, op.b, op.c))
    return bool(named) and first and matrices and not op_loads(op)


def _inside(region: Region, ranges: Ranges) -> bool:
    return all(_inside_along(d, region, ranges) for d in range(region.buffer.rank))


def _inside_along(d: int, region: Region, ranges: Ranges) -> bool:
    start, extent, size = region.starts[d], region.extents[d], region.buffer.shape[d]
    known = isinstance(extent, Const) and prove(start >= 0, ranges) is True
    return known and prove(start + extent <= size, ranges) is True


def _reading(body: Body, copy: Copy) -> Body:
    """`body` with products that read the copy's source instead of its tile."""

    def place(region: Region) -> Region:
        if region.buffer.name != copy.dst.buffer.name:
            return region
        return _of_sizes(copy.src, tuple(region.extents[d] for d in _matrix_dims(region)))

    def reading(op: Op) -> Op | None:
        if not isinstance(op, Gemm) or not _is_factor(op, copy.dst.buffer):
            return None
        return _agreed(rebuild(op, a=place(op.a), b=place(op.b)))

    return map_body(body, reading)


def _matrix_dims(region: Region) -> tuple[int, ...]:
    """Where rows and columns are: the last two, or those that are more than one."""
    long = long_dims(region.extents)
    inner = range(region.buffer.rank)[-2:]
    return tuple(inner if all(d in inner for d in long) else long)


def _of_sizes(region: Region, most: tuple[Expr, ...]) -> Region:
    """The first rows and columns, so many at most."""
    extents = list(region.extents)
    for d, size in zip(_matrix_dims(region), most, strict=True):
        extents[d] = binary("min", extents[d], size)
    return replace(region, extents=tuple(extents))


def _agreed(op: Gemm) -> Gemm:
    """Of all three as much as there is of each."""
    axes = {"a": "km" if op.transpose_a else "mk", "b": "nk" if op.transpose_b else "kn"}
    axes["c"] = "nm" if op.transpose_c else "mn"
    regions: dict[str, Region] = {name: getattr(op, name) for name in axes}
    least: dict[str, Expr] = {}
    for name, region in regions.items():
        for axis, d in zip(axes[name], _matrix_dims(region), strict=True):
            least[axis] = binary("min", least.get(axis, region.extents[d]), region.extents[d])
    cut = {n: _of_sizes(r, tuple(least[axis] for axis in axes[n])) for n, r in regions.items()}
    return rebuild(op, **cut)


@kernel_pass
def write_products(at: Facts) -> Kernel:
    """Let a GEMM write to the tensor where one copy stores its tile. Sums over several steps stay
    in a tile, whose rows lie near each other: that is faster."""
    changes: dict[int, Body] = {}  # by id of an op, what stands there instead
    uses = Counter(b.name for op in at.ops for b in named_buffers(op))

    def visit(body: Body, ranges: Ranges) -> Body:
        for n, op in enumerate(body):
            if isinstance(op, Copy):
                dst = _there(op.dst, ranges)
                gemm, others = _made_at_once(op, dst, body[:n])
                named = uses[op.src.name] == 2 + len(others)
                seen = at.viewed & {op.src.name, dst.name}
                if gemm is not None and named and not seen and _inside(dst, ranges):
                    there = rebuild(gemm, c=dst, clear=TRUE, atom="micro_kernel")
                    changes.update({id(x): () for x in (op, *others)} | {id(gemm): (there,)})
                    because(at.kernel.name, op.src.name, f"no tile: a gemm writes {dst.name}")
            map_inside(op, ranges, visit)
            ranges = after(op, ranges)
        return body

    visit(at.kernel.body, entry(at.kernel, at.dims))
    return map_ops(at.kernel, lambda op: changes.get(id(op))) if changes else at.kernel


def _made_at_once(op: Copy, dst: Region, before: Body) -> tuple[Gemm | None, Body]:
    """The product that makes all of a tile that a copy stores, and what else names the tile, if
    nothing else there has to do with `dst`, and that can be found where the product is."""
    tile = op.src.buffer
    inner = {x.var for x in walk_ops(before, Let, For)}
    plain = all(each is None for each in (op.barrier, op.multicast, op.atom, op.reduce, dst.cta))
    near = any(dst.buffer in named_buffers(x) for x in walk_ops(before))
    known = all(is_pure(start) and not variables(start) & inner for start in dst.starts)
    matrix = len(tile.shape) == len(dst.tile) == 2 and dst.dtype == tile.dtype
    if near or not (plain and known and matrix and tile.is_fragment and op.src.is_whole):
        return None, ()
    match [x for x in before if tile in named_buffers(x)]:
        case [Alloc() as made, *fill, Gemm(c=c, meta=None) as gemm] if (
            dst.buffer.is_global
            and c.buffer == tile not in (gemm.a.buffer, gemm.b.buffer)
            and all(start is const(0) for start in c.starts)
            and all(map(is_, c.extents, (dst.extents[d] for d in _matrix_dims(dst))))
            and not leaves_early(before)
        ):
            match fill:
                case [] if gemm.clear is TRUE:
                    return gemm, (made,)
                case [Fill(value=Const(value=0)) as zero] if zero.dst.is_whole:
                    return gemm, (made, zero)
    return None, ()


# ── loops ────────────────────────────────────────────────────────────────────────────────────


@rule(Map)
def absorb_loops(op: Map, at: Facts) -> Op:
    """Turn `map i { for k { … } }` into `map (i, k) { … }`, and drop axes of one place."""
    op = _of_long_axes(op)
    while (wider := _absorb(op, at.viewed)) is not None:
        op = wider
    return op


def _of_long_axes(op: Map) -> Map:
    ones = [v for v, n in zip(op.vars, op.extents, strict=True) if n is const(1)]
    if not ones or len(ones) == len(op.vars):
        return op
    left = [d for d, v in enumerate(op.vars) if v not in ones]
    axes, sizes = tuple(op.vars[d] for d in left), tuple(op.extents[d] for d in left)
    body = substitute_vars(op.body, {v: const(0, v.dtype) for v in ones})
    return replace(op, vars=axes, extents=sizes, body=body, layout=None)


def _absorb(map_: Map, viewed: set[str]) -> Map | None:
    *lets, loop = map_.body or (None,)
    if not isinstance(loop, For):
        return None
    if not all(isinstance(op, Let) and is_pure(op.value) for op in lets):
        return None
    values = let_values(lets)
    plain = isinstance(loop.start, Const) and loop.start.value == 0
    plain = plain and isinstance(loop.step, Const) and loop.step.value == 1
    stop = substitute(loop.stop, values)
    if not plain or variables(stop) & set(map_.vars) or not is_pure(stop):
        return None
    body = substitute_vars(loop.body, values)
    if not _independent(body, loop.var, viewed):
        return None
    return replace(
        map_, vars=(*map_.vars, loop.var), extents=(*map_.extents, stop), body=body, layout=None
    )


def _independent(body: Body, var: Var, viewed: set[str]) -> bool:
    """Stores only, each to places of its own iteration; nothing reads what another one writes."""
    ops = list(walk_ops(body))
    stores = [op for op in ops if isinstance(op, Store)]
    if not all(isinstance(op, (Store, Let, If)) for op in ops):
        return False
    written = {op.buffer.name: op.indices for op in stores}
    found = {op.var for op in ops if isinstance(op, Let)}  # in each iteration
    for op in stores:
        # two iterations never store to one place: an index is linear in the loop's variable
        place = [i for i in op.indices if not variables(i) & found]
        if all(stride_of(i, var) in (0, None) for i in place):
            return False
        if op.buffer.is_local or op.indices != written[op.buffer.name]:
            return False
    return not viewed & set(written) and all(
        written.get(load.buffer.name, load.indices) == load.indices for load in loads_within(body)
    )


# ── maps ─────────────────────────────────────────────────────────────────────────────────────

Place = tuple[Expr, ...]
Places: TypeAlias = dict[str, set[tuple[Place, bool]]]  # and whether they are written


@kernel_pass
def fuse_maps(at: Facts) -> Kernel:
    """Fuse two maps where the second one meets every element that the first one writes at the same
    point."""

    def fuse(body: Body) -> Body:
        done: list[Op] = []
        last: Map | None = None  # that the next one may join
        places: Places = {}  # what it touches, found once as it grows
        for op in body:
            if isinstance(op, Map):
                joined = None if last is None else _join(last, op, places, at.viewed)
                if joined is not None:
                    # what stood between only brings memory into being
                    done = [each for each in done if each is not last]
                else:
                    places = accesses(op.body)
                op = last = joined or op
                if any(walk_ops(op, Intrinsic)):
                    last = None
            elif not isinstance(op, Hint) and not (isinstance(op, Alloc) and op.init is None):
                last = None
            done.append(op)
        return tuple(done) if len(done) != len(body) else body

    def visit(op: Op) -> Op | None:
        if isinstance(op, Map):
            return None
        return map_bodies(op, fuse)

    found = visit(map_ops(at.kernel, visit))
    assert isinstance(found, Kernel)
    return found


def _join(first: Map, second: Map, places: Places, viewed: set[str]) -> Map | None:
    """Both as one map; `places`, what `first` touches, grows with it."""
    if first.extents != second.extents:
        return None
    if any(walk_ops(second, Intrinsic)):
        return None
    names: dict[Var, Expr] = dict(zip(second.vars, first.vars, strict=True))
    moved = substitute_vars(second.body, names)
    more = accesses(moved)
    if not meet(places, more, viewed):
        return None
    for name, touched in more.items():
        places.setdefault(name, set()).update(touched)
    return replace(first, body=first.body + moved, layout=None)


def accesses(body: Body) -> Places:
    """The places touched, per buffer that others can see, and whether they are written."""
    found: Places = {}
    for op in walk_ops(body):
        touched = [(load.buffer, load.indices, False) for load in op_loads(op)]
        if isinstance(op, Store):
            touched.append((op.buffer, op.indices, True))
        elif isinstance(op, Atomic):
            touched.append((op.dst.buffer, op.dst.starts, True))
        for buffer, place, writes in touched:
            if not buffer.is_local:
                found.setdefault(buffer.name, set()).add((place, writes))
    return found


def meet(a: Places, b: Places, viewed: set[str]) -> bool:
    """Wherever one side writes what the other touches, both do so at one and the same place."""
    for mine, others in ((a, b), (b, a)):
        for name, places in mine.items():
            written = {place for place, writes in places if writes}
            touched = {place for place, _ in others.get(name, ())}
            if written and touched and len(written | touched) != 1:
                return False
            if written and touched and any(map(_depends_on_memory, written)):
                return False
            if written and name in viewed and viewed & others.keys():
                return False
    return True


def _depends_on_memory(place: Place) -> bool:
    return any(isinstance(node, Load) for e in place for node in (e, *e.children))


@kernel_pass
def promote_tiles(at: Facts) -> Kernel:
    """Keep a tile that one map alone writes and then reads, each point its own element, in
    registers."""
    uses = Counter(b.name for op in at.ops for b in named_buffers(op))
    gone: set[Buffer] = set()

    def visit(op: Op) -> Op | None:
        if not isinstance(op, Map):
            return None
        mine = Counter(b.name for inner in walk_ops(op.body) for b in named_buffers(inner))
        stored = dict.fromkeys(inner.buffer for inner in op.body if isinstance(inner, Store))
        tiles = [
            b
            for b in stored
            if b.space in TILES and uses[b.name] == mine[b.name] + 1
            if b.name not in at.viewed and _is_own(op, b)
        ]
        gone.update(tiles)
        return with_locals(op, tiles) if tiles else None

    found = map_ops(at.kernel, visit)
    for tile in gone:
        because(at.kernel.name, tile.name, "no tile: one map has all of it, in registers")
    return map_ops(found, lambda op: () if isinstance(op, Alloc) and op.buffer in gone else None)


def _is_own(op: Map, tile: Buffer) -> bool:
    """Whether each point touches one element of the tile, its own, and first writes it."""
    place, *others = {place for place, _ in accesses(op.body)[tile.name]}
    sizes: dict[Expr, Expr] = dict(zip(op.vars, op.extents, strict=True))
    sizes[const(0)] = const(1)
    own = [sizes.get(i) == n for i, n in zip(place, tile.shape, strict=True)]
    if others or not all(own):
        return False
    seen = (r for inner in walk_ops(op.body) for r in regions(inner, reads=True, writes=True))
    if any(r.buffer == tile for r in seen):
        return False
    return writes_first(op, tile)


def writes_first(op: Map, tile: Buffer) -> bool:
    """Whether a map begins with the tile by writing to it, at every point."""
    first = next((each for each in op.body if tile in dict(touched_within(each))), None)
    return isinstance(first, Store) and first.buffer == tile and tile not in read_buffers(first)


def with_locals(op: Map, tiles: list[Buffer]) -> Map:
    """The map where each point has an element of these tiles to itself."""
    own = {b: replace(b, shape=(), space=Space.LOCAL, layout=None) for b in tiles}

    def element(e: Expr) -> Expr | None:
        return Load(own[e.buffer], ()) if isinstance(e, Load) and e.buffer in own else None

    def local(inner: Op) -> Op:
        found = map_operands(inner, lambda e: transform(e, element), lambda b: own.get(b, b))
        at_point = isinstance(inner, Store) and inner.buffer in own
        return rebuild(found, indices=()) if at_point else found

    moved = map_ops(op, local)
    return replace(moved, body=(*map(Alloc, own.values()), *moved.body))
