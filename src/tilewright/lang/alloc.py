"""Allocation: where a tile lives."""

from __future__ import annotations

from typing import Any

from tilewright.ir.buffer import Buffer, Space, element, whole
from tilewright.ir.dtype import BARRIER, DType
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import Const, const
from tilewright.ir.op import Alloc, BarrierInit
from tilewright.lang.builder import Builder, current, static_int
from tilewright.lang.handles import Tile, Variable, fitting
from tilewright.lang.params import check_packed, sizes
from tilewright.lang.types import shape_tuple, size_expr
from tilewright.support.errors import CompileError


def new_buffer(
    builder: Builder, shape: Any, dtype: DType, space: Space, word: str, name: str | None = None
) -> Buffer:
    """A buffer of compile-time shape, named after the name it is assigned to."""
    chosen = builder.fresh(name or builder.hint, word)
    extents = tuple(
        size_expr(s, f"dimension {at} of {chosen}") for at, s in enumerate(shape_tuple(shape))
    )
    for at, extent in enumerate(extents):
        if not isinstance(extent, Const):
            raise CompileError(
                f"T.alloc_{word} needs a compile-time shape",
                got=f"a run-time size in dimension {at} of {chosen}",
                fix="use a constant tile size and loop over the rest",
            )
    buffer = Buffer(chosen, extents, dtype, space)
    check_packed(buffer)
    return buffer


def _alloc(shape: Any, dtype: Any, space: Space, word: str) -> Tile:
    builder = current(f"alloc_{word}")
    kernel = builder.require_kernel(f"alloc_{word}")
    if space is not Space.LOCAL:
        builder.require_block(f"alloc_{word}")
    shape = shape_tuple(shape)  # before the dtype: the two are easily exchanged
    buffer = new_buffer(builder, shape, find_dtype(dtype), space, word)
    builder.emit(Alloc(buffer))
    tile = Tile(buffer)
    tile.kernel = kernel
    return tile


def alloc_shared(shape: Any, dtype: Any = "float32", scope: str = "shared") -> Tile:
    """A tile in the block's shared memory, uninitialised."""
    return _alloc(shape, dtype, Space.SHARED, "shared")


def alloc_fragment(shape: Any, dtype: Any = "float32", scope: str = "fragment") -> Tile:
    """A tile spread over the registers of the block's threads."""
    return _alloc(shape, dtype, Space.FRAGMENT, "fragment")


def alloc_local(shape: Any, dtype: Any = "float32", scope: str = "local") -> Tile:
    """Memory of one thread, or of one iteration inside `T.Parallel`."""
    return _alloc(shape, dtype, Space.LOCAL, "local")


def alloc_var(dtype: Any, *args: Any, init: Any = None, scope: str = "local.var") -> Variable:
    """A scalar variable: `x = v`, `x += v` store to it. `alloc_var(dtype, init)`."""
    builder = current("alloc_var")
    builder.require_kernel("alloc_var")
    values = [a for a in args if not isinstance(a, str)]
    if len(values) > 1 or (values and init is not None):
        raise CompileError("T.alloc_var takes one initial value")
    init = values[0] if values else init
    buffer = new_buffer(builder, (), find_dtype(dtype), Space.LOCAL, "var")
    builder.emit(Alloc(buffer, None if init is None else fitting(init, buffer)))
    return Variable(buffer)


def alloc_global(shape: Any, dtype: Any = "float32", scope: str = "global") -> Tile:
    """Scratch in global memory for the length of the call, uninitialised; it carries data from
    one kernel of the function to the next."""
    builder = current("alloc_global")
    name = builder.fresh(builder.hint, "scratch")
    buffer = Buffer(name, sizes(builder, shape_tuple(shape), name), find_dtype(dtype), Space.GLOBAL)
    check_packed(buffer)
    builder.scratch.append(buffer)
    return Tile(buffer)


def _barrier(arrive_count: Any, word: str) -> Tile:
    builder = current(word)
    kernel = builder.require_block(word)
    counts = [static_int(c, f"arrive_count of T.{word}", 1) for c in shape_tuple(arrive_count)]
    buffer = new_buffer(builder, (len(counts),), BARRIER, Space.BARRIER, "barrier")
    builder.emit(Alloc(buffer))
    if len(set(counts)) == 1:
        builder.emit(BarrierInit(whole(buffer), const(counts[0])))
    else:
        for at, count in enumerate(counts):
            builder.emit(BarrierInit(element(buffer, at), const(count)))
    tile = Tile(buffer)
    tile.kernel = kernel
    return tile


def alloc_barrier(arrive_count: Any) -> Tile:
    """A barrier that completes a phase after `arrive_count` threads have arrived; several for a
    list of counts."""
    return _barrier(arrive_count, "alloc_barrier")


def alloc_cluster_barrier(arrive_count: Any) -> Tile:
    """Barriers that blocks of the cluster also arrive on."""
    kernel = current("alloc_cluster_barrier").require_block("alloc_cluster_barrier")
    if not kernel.cluster:
        raise CompileError(
            "this kernel has no clusters", fix="give T.Kernel(..., cluster_dims=(2, 1, 1))"
        )
    return _barrier(arrive_count, "alloc_cluster_barrier")


REDUCERS = {
    "sum": "add",
    "max": "max",
    "min": "min",
    "bitand": "and",
    "bitor": "or",
    "bitxor": "xor",
}


def alloc_reducer(
    shape: Any, dtype: Any = "float32", op: str = "sum", replication: str | None = None
) -> Tile:
    """A tile that iterations of `T.Parallel` may update at the same element:
    `T.reducer_init`, `T.reducer_update(acc[i], v)`, `T.finalize_reducer(acc, dst)`."""
    if op not in REDUCERS:
        raise CompileError("T.alloc_reducer: unknown op", expected=" ".join(REDUCERS), got=repr(op))
    tile = _alloc(shape, dtype, Space.SHARED, "reducer")
    tile.reducer = op
    return tile
