"""Movement: copies, fills, and other views of the same memory."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewright.ir.dtype import dtype as find_dtype
from tilewright.lang.check import check_apart, check_copy, matrix_extents, shape_text
from tilewright.lang.core import *
from tilewright.lang.handles import Handle, usable
from tilewright.lang.roles import barrier_region

# how other dialects call them → ours
_CACHE = {
    "evict_first": "evict_first", "evict_last": "evict_last", "evict_normal": None, None: None,
    "first": "evict_first", "last": "evict_last", "normal": None, "no_allocate": "no_allocate",
}  # fmt: skip
_PREFER = {
    "tma": "tma", "cp_async": "cp_async", "sync": "sync", None: None, "cp.async": "cp_async",
    "normal": "sync",
}  # fmt: skip


def tiles(src: Any, dst: Any) -> tuple[Region, Region]:
    """Both sides as regions of one shape: a corner takes the other side's extents."""
    if isinstance(src, Access) and not isinstance(dst, Access):
        to = written_region(dst)
        frm = _from_corner(src, to)
    elif isinstance(dst, Access) and not isinstance(src, Access):
        frm = region_of(src)
        to = _from_corner(dst, frm)
    else:
        frm, to = region_of(src), written_region(dst)
        if not fits(frm.tile, to.tile):
            frm, to = _corner_of(src, frm, dst, to), _corner_of(dst, to, src, frm)
    check_copy(frm, to)
    return frm, to


def _corner_of(side: Handle, mine: Region, other: Handle, theirs: Region) -> Region:
    """The part at the corner of a whole tile that a smaller region on the other side, written with
    bounds, fills or is filled from: `T.copy(K[0:64, :], tile)` writes the first 64 rows. `mine`
    itself where that is not so."""
    if side.bounded or not other.bounded or mine.buffer.is_global:
        return mine
    if len(side.axes) != len(other.axes):
        return mine
    extents = list(mine.extents)
    for axis, extent in zip(side.axes, (theirs.extents[k] for k in other.axes), strict=True):
        have = extents[axis]
        if not (isinstance(extent, Const) and isinstance(have, Const)) or int(extent) > int(have):
            return mine
        extents[axis] = extent
    return replace(mine, extents=tuple(extents))


def _from_corner(corner: Access, other: Region) -> Region:
    """The region that starts at `corner` with the shape of `other`, aligned at the last
    dimensions."""
    usable(corner)
    shape = list(other.extents)
    while len(shape) > corner.buffer.rank:
        unit = next((i for i, e in enumerate(shape) if is_const(e)), None)
        if unit is None:
            raise CompileError(
                f"T.{word()}: {corner.name} has {corner.buffer.rank} "
                f"dimension{'s' * (corner.buffer.rank != 1)}",
                expected=f"room for a tile of shape {shape_text(other.tile)}",
                fix=f"copy a part with as many dimensions, tile[i, :], or give {corner.name} more",
            )
        del shape[unit]
    shape = [const(1)] * (corner.buffer.rank - len(shape)) + shape
    return Region(corner.buffer, corner.indices, tuple(shape))


def copy(
    src: Any,
    dst: Any,
    coalesced_width: int | None = None,
    disable_tma: bool = False,
    eviction_policy: str | None = None,
    prefer_instruction: str | None = None,
    *,
    cache: str | None = None,
    multicast: Any = None,
    prefer: str | None = None,
    loop_layout: Any = None,
) -> None:
    """dst = src, between any two places, cast when types differ.

    `A[i, j]` is a tile's corner and the other side gives the extent; `A[i0:i1, :]` is a region.
    A region smaller than the tile on the other side fills, or is filled from, that tile's first
    elements along each axis; the rest of a written tile stays as it was. Outside a tensor reads
    give zero and stores do nothing. `cache="evict_first"` or `"evict_last"` tells the L2 cache
    which lines of the tensor to give up before or after others, whatever instruction moves them;
    `"no_allocate"` keeps what threads load and store out of the L1 cache, which others pass by.
    `prefer="tma"`, `"cp_async"` or `"sync"` says which instruction; `multicast`, a mask of blocks
    of the cluster, needs a barrier, which `tma_copy` takes. `coalesced_width` and `loop_layout` are
    accepted for porting.

    Example:
        tile = T.alloc_shared((16, 16), "float16")
        T.copy(X[0, 8], tile)  # from this corner
        T.copy(tile, Y[16:32, 0:16])  # to this region
        # Y[16]: 8 9 10
    """
    _copy(
        src, dst,
        cache=cache_word(cache or eviction_policy),
        prefer=_option(
            prefer or prefer_instruction or ("sync" if disable_tma else None), _PREFER, "prefer"
        ),
        multicast=multicast,
    )  # fmt: skip


def cache_word(word: str | None) -> str | None:
    """What `cache=` means."""
    return _option(word, _CACHE, "cache")  # type: ignore[no-any-return]


def _option(value: str | None, known: dict[str | None, str | None], name: str) -> Any:
    return one_of(
        value, known, f"T.copy: unknown {name}", f"write {name}= one of these, or leave it out"
    )


def _copy(src: Any, dst: Any, *, multicast: Any = None, **options: Any) -> None:
    builder = current_kernel()
    frm, to = tiles(src, dst)
    if Space.LOCAL in (frm.buffer.space, to.buffer.space):
        _by_thread(builder, to, lambda at: _element(frm, to, at))
        return
    builder.require_block()
    mask = None if multicast is None else wrap(multicast)
    builder.emit(Copy(frm, to, multicast=mask, **options))


def _element(frm: Region, to: Region, at: tuple[Expr, ...]) -> Expr:
    return cast(Load(frm.buffer, frm.at(at)), to.dtype)


def _by_thread(builder: Builder, to: Region, value: Any) -> None:
    """A copy or fill of thread-local memory: each thread does its own."""
    vars = [builder.var(None, e.dtype, "e") for e in to.tile]
    ops: tuple[Any, ...] = (Store(to.buffer, to.at(vars), value(tuple(vars))),)
    for var, extent in zip(reversed(vars), reversed(to.tile), strict=True):
        ops = (For(var, const(0, extent.dtype), extent, ops, kind="unroll"),)
    builder.emit(ops[0])


def async_copy(src: Any, dst: Any, coalesced_width: int | None = None, **_: Any) -> None:
    """`copy` by `cp.async` where the target has it; synchronous in meaning.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.async_copy(X, tile)
        T.copy(tile, Y)
        # Y[0]: 0 1 2
    """
    _copy(src, dst, prefer="cp_async")


def tma_copy(
    src: Any,
    dst: Any,
    *,
    barrier: Any = None,
    cluster_mask: Any = None,
    multicast: Any = None,
    eviction_policy: str | None = None,
    cache: str | None = None,
    leader_scope_threads: int | None = None,
) -> None:
    """A bulk copy. Into shared memory with a `barrier`: it completes there, control is yours.

    Its bytes are expected on the barrier with the copy; arriving is another thing. Without a
    barrier it is `T.copy(..., prefer="tma")`.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.tma_copy(X, tile)
        T.tma_copy(tile, Y)
        # Y[0]: 0 1 2
    """
    builder = current_block()
    mask = multicast if multicast is not None else cluster_mask
    kept = cache_word(cache or eviction_policy)
    if barrier is None:
        _copy(src, dst, prefer="tma", cache=kept, multicast=mask)
        return
    frm, to = tiles(src, dst)
    bar = barrier_region(barrier)
    if not to.buffer.is_shared:
        raise CompileError(
            "T.tma_copy with a barrier fills shared memory",
            got=f"{to.buffer.name} in {to.buffer.space.value} memory",
            fix="copy into a tile of T.alloc_shared, or use T.copy",
        )
    moved = to.dtype.storage_bytes(prod(to.static_tile))
    builder.emit(Arrive(bar, bytes=const(moved), count=const(0)))
    builder.emit(
        Copy(
            frm, to, barrier=bar, multicast=None if mask is None else wrap(mask),
            atom="bulk_load", cache=kept,
        )
    )  # fmt: skip


def tma_store_arrive() -> None:
    """Close the group of bulk stores issued so far.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X, tile)
        T.tma_copy(tile, Y)
        T.tma_store_arrive()
        T.tma_store_wait(0)
        # Y[0]: 0 1 2
    """
    current().emit(Commit("bulk"))


def copy_cluster(
    src: Any,
    dst: Any,
    *,
    dst_block: Any = None,
    cluster_mask: Any = None,
    remote_barrier: Any = None,
    eviction_policy: str | None = None,
    coalesced_width: int | None = None,
) -> None:
    """A copy into another block's shared memory (`dst_block`). One from global memory into the same
    tile of several blocks (`cluster_mask`) needs a barrier, which `tma_copy` takes.

    Example:
        with T.Kernel(2, threads=64, cluster_dims=2) as bx:
            mine = T.alloc_fragment((64,), "int32")
            theirs = T.alloc_shared((64,), "int32")
            for i in T.Parallel(64):
                mine[i] = 100 * bx + i
            T.cluster_sync()  # nobody writes before both blocks are there
            T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster())
            T.cluster_sync()
            if bx == 0:
                T.copy(theirs, M)
        # M: 100 101 102
    """
    builder = current()
    builder.require_cluster()
    if dst_block is None:
        _copy(
            src, dst, multicast=cluster_mask, prefer="tma",
            cache=cache_word(eviction_policy),
        )  # fmt: skip
        return
    frm, to = tiles(src, dst)
    block, bar, atom = wrap(dst_block), None, None
    if remote_barrier is not None:
        bar, atom = replace(barrier_region(remote_barrier), cta=block), "remote_store"
    builder.emit(Copy(frm, replace(to, cta=block), barrier=bar, atom=atom))


def fill(buffer: Any, value: Any) -> None:
    """Every element of a tile or region = value.

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.fill(x, -T.infinity("float32"))
        T.fill(x, 2.5)
        T.copy(x, Y)
        # Y[0]: 2.5 2.5
    """
    _fill(buffer, value)


def _fill(buffer: Any, value: Any) -> None:
    builder = current_kernel()
    if isinstance(buffer, Variable):
        buffer.assign(value)
        return
    if isinstance(value, Tile) and isinstance(buffer, (int, float)):
        raise CompileError(
            f"T.{word()}: the tile comes first, then the value",
            expected=f"T.{word()}(tile, value)",
            got=f"T.{word()}({buffer}, {value.name})",
            fix=f"write T.{word()}({value.name}, {buffer})",
            code="arguments",
            repair=swap(f"{buffer}, {value.name}", f"{value.name}, {buffer}"),
        )
    to = written_region(buffer)
    check_regions(to)
    if isinstance(value, Tile):
        raise CompileError(
            "T.fill needs one value", got=describe(value), fix="use T.copy for a whole tile"
        )
    number = cast(wrap(value, to.dtype), to.dtype)
    if to.buffer.is_local:
        _by_thread(builder, to, lambda _: number)
        return
    builder.require_block()
    builder.emit(Fill(to, number))


def clear(buffer: Any) -> None:
    """Every element of a tile or region = 0.

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        T.clear(x)
        T.copy(x, Y)
        # Y[0]: 0 0
    """
    _fill(buffer, 0)


def transpose(src: Any, dst: Any) -> None:
    """dst[j, i] = src[i, j].

    Example:
        a = T.alloc_shared((64, 64), "float32")
        b = T.alloc_shared((64, 64), "float32")
        T.copy(X, a)
        T.transpose(a, b)
        T.copy(b, Y)
        # Y[0]: 0 -1 -2
    """
    builder = current_block()
    frm, to = region_of(src), written_region(dst)
    have, want = matrix_extents(frm), matrix_extents(to)
    if len(have) != 2 or not fits(have[::-1], want):
        raise CompileError(
            "T.transpose: the shapes do not fit",
            expected=f"{shape_text(have[::-1])} for a source of shape {shape_text(have)}",
            got=shape_text(want),
            fix="swap the extents of the destination",
        )
    check_regions(frm, to)
    check_apart(frm, to)
    if len(frm.tile) != 2:  # a row or a column: its elements keep their order
        builder.emit(Copy(frm, to))
        return
    i, j = (builder.var(None, e.dtype, n) for e, n in zip(frm.tile, "ij", strict=True))
    store = Store(to.buffer, to.at((j, i)), _element(frm, to, (i, j)))
    builder.emit(Map((i, j), frm.tile, (store,)))


# ── views ────────────────────────────────────────────────────────────────────────────────────


def reshape(src: Any, *shape: Any) -> Tile:
    """The same elements under another shape, row-major. No data moves.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X, tile)
        rows = T.reshape(tile, (128, 32))
        for i, j in T.Parallel(64, 32):
            Y[i, j] = rows[2 * i + 1, j]
        # Y[0]: 32 33 34
    """
    sizes = shape_tuple(shape[0]) if len(shape) == 1 else shape
    return view(src, sizes)


def view(src: Any, shape: Any = None, dtype: Any = None) -> Tile:
    """The same memory under another shape or type, row-major.

    Example:
        tile = T.alloc_shared((64,), "float32")
        T.copy(X[0, 0], tile)
        bits = T.view(tile, dtype="int32")
        T.copy(bits, M)
        # M: 0 1065353216 1073741824
    """
    builder = current()
    if type(src) is not Tile:
        raise CompileError(
            f"T.{word()} needs a whole buffer",
            got=describe(src),
            fix="view the whole buffer, then index the view",
        )
    usable(src)
    source = src.buffer
    kind = source.dtype if dtype is None else find_dtype(dtype)
    sizes = source.shape if shape is None else tuple(wrap(s) for s in shape_tuple(shape))
    if shape is None and kind.bits != source.dtype.bits:
        inner = sizes[-1] * source.dtype.bits // kind.bits
        sizes = (*sizes[:-1], wrap(inner))
    sizes = _checked(sizes, source, kind.bits)
    buffer = Buffer(builder.fresh(builder.hint, f"{source.name}_view"), sizes, kind, source.space)
    builder.emit(View(buffer, source))
    return Tile(buffer, builder.kernel)


def _checked(sizes: tuple[Expr, ...], source: Buffer, bits: int) -> tuple[Expr, ...]:
    """The sizes of a view, which has as many bits as its source; one may be -1."""
    if source.strides is not None:
        raise CompileError(
            f"T.{word()}: {source.name} has strides of its own", fix="copy it into a tile first"
        )
    holes = [i for i, s in enumerate(sizes) if is_const(s, -1)]
    if not source.is_static or not (holes or all(isinstance(s, Const) for s in sizes)):
        return sizes
    have = prod(source.static_shape) * source.dtype.bits
    want = prod(int(s) for s in sizes) * bits
    if len(holes) == 1:
        sizes = tuple(const(have // -want) if i in holes else s for i, s in enumerate(sizes))
        want *= -(have // -want)
    if have != want:
        raise CompileError(
            f"T.{word()} of {source.name} changes its size",
            expected=f"{have // 8} bytes, as {shape_text(source.shape)} {source.dtype}",
            got=f"{want // 8} bytes, as {shape_text(sizes)}",
            fix=f"give a shape of as many elements (one extent may be -1), or slice {source.name}",
        )
    return sizes


WORDS.update(copy=entry(copy), fill=entry(fill), view=entry(view))
