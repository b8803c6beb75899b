"""Allocation: where a tile lives."""

from __future__ import annotations

from typing import Any

from tilewright.ir.dtype import dtype as find_dtype
from tilewright.lang.axes import ONE
from tilewright.lang.core import *
from tilewright.lang.handles import fitting
from tilewright.lang.params import check_addressable, check_packed, sizes
from tilewright.lang.types import check_one_shape, size_expr
from tilewright.lang.values import TileIndex, axis_of
from tilewright.support import limits


def new_buffer(builder: Builder, shape: Any, dtype: DType, space: Space, default: str) -> Buffer:
    """A buffer of compile-time shape, named after the name it is assigned to."""
    chosen = builder.fresh(builder.hint, default)
    extents = tuple(
        size_expr(s, f"dimension {at} of {chosen}") for at, s in enumerate(shape_tuple(shape))
    )
    for at, extent in enumerate(extents):
        if not isinstance(extent, Const):
            raise CompileError(
                f"T.{word()} needs a compile-time shape",
                got=f"a run-time size in dimension {at} of {chosen}",
                fix="use a constant tile size and loop over the rest",
                code="not-constant",
            )
    buffer = Buffer(chosen, extents, dtype, space)
    check_packed(buffer)
    size = buffer.bytes
    limits.TILE_BYTES.check(
        size,
        f"{chosen} is too large for a tile",
        got=f"{size:,} bytes".replace(",", " "),
        fix="use smaller tiles and loop over the rest, or keep it in a tensor: T.alloc_global",
    )
    return buffer


def _alloc(shape: Any, dtype: Any, space: Space, default: str) -> Tile:
    builder = current()
    local = space is Space.LOCAL
    kernel = builder.require_kernel() if local else builder.require_block()
    check_one_shape(f"T.{word()}", shape, dtype)
    shape = shape_tuple(shape)  # before the dtype: the two are easily exchanged
    sizes = tuple(s.size if isinstance(s, TileIndex) else s for s in shape)
    buffer = new_buffer(builder, sizes, find_dtype(dtype), space, default)
    builder.emit(Alloc(buffer))
    if any(isinstance(s, TileIndex) for s in shape):
        builder.footprints.append(tuple(axis for s in shape if (axis := axis_of(s)) is not ONE))
    return Tile(buffer, kernel, shape)


def alloc_shared(shape: Any, dtype: Any = "float32", scope: str = "shared") -> Tile:
    """A tile in the block's shared memory, uninitialised.

    All threads of the block see it; what nothing has written yet must not be read. A tile index in
    the shape is a dimension of its size, which values of the tile match: `tile[:, :]`.

    Example:
        tile = T.alloc_shared((64, 64), "float16")
        T.copy(X, tile)
        T.copy(tile, Y)
        # Y[0]: 0 1 2 3
    """
    return _alloc(shape, dtype, Space.SHARED, "shared")


def alloc_fragment(shape: Any, dtype: Any = "float32", scope: str = "fragment") -> Tile:
    """A tile spread over the registers of the block's threads.

    Work on it with `T.copy`, `T.Parallel`, `T.gemm` and reductions; the compiler decides which
    thread holds which element (`T.annotate_layout` pins it).

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        for i, j in T.Parallel(64, 64):
            x[i, j] = x[i, j] * 2
        T.copy(x, Y)
        # Y[0]: 0 2 4 6
    """
    return _alloc(shape, dtype, Space.FRAGMENT, "fragment")


def alloc_local(shape: Any, dtype: Any = "float32", scope: str = "local") -> Tile:
    """Memory of one thread, or of one iteration inside `T.Parallel`.

    Example:
        for i in T.Parallel(64):
            pair = T.alloc_local((2,), "float32")
            pair[0] = X[0, i]
            pair[1] = X[1, i]
            Y[0, i] = pair[0] * 10 + pair[1]
        # Y[0]: -1 10 21 32
    """
    return _alloc(shape, dtype, Space.LOCAL, "local")


def alloc_var(dtype: Any, *args: Any, init: Any = None, scope: str = "local.var") -> Variable:
    """A scalar variable: `x = v`, `x += v` store to it. `alloc_var(dtype, init)`.

    It is what may change inside a loop or a branch that runs in the kernel; a plain Python name
    may not.

    Example:
        for i in T.Parallel(64):
            total = T.alloc_var("float32", init=0.0)
            for j in T.serial(4):
                total += X[0, j]
            Y[0, i] = total
        # Y[0]: 6 6 6 6
    """
    builder = current_kernel("alloc_var")
    values = [a for a in args if not isinstance(a, str)]
    if len(values) > 1 or (values and init is not None):
        raise CompileError(
            "T.alloc_var takes one initial value", fix='write T.alloc_var("float32", init=0)'
        )
    if isinstance(dtype, (int, float)):
        kind = "float32" if isinstance(dtype, float) else "int32"
        raise CompileError(
            "T.alloc_var takes a type first",
            expected="T.alloc_var(dtype, init=…)",
            got=repr(dtype),
            fix=f'write T.alloc_var("{kind}", init={dtype!r})',
            code="arguments",
            repair=swap(f"({dtype!r})", f'("{kind}", init={dtype!r})'),
        )
    init = values[0] if values else init
    buffer = new_buffer(builder, (), find_dtype(dtype), Space.LOCAL, "var")
    builder.emit(Alloc(buffer, None if init is None else fitting(init, buffer)))
    return Variable(buffer)


def scalar_value(dtype: Any, init: Any) -> Variable:
    """A value of rank 0, which loops and branches may change."""
    made = alloc_var(dtype, init=init)
    made.is_value = True
    return made


def alloc_global(shape: Any, dtype: Any = "float32", scope: str = "global") -> Tile:
    """Scratch in global memory for the length of the call, uninitialised; it carries data from
    one kernel of the function to the next.

    Example:
        scratch = T.alloc_global((64,), "float32")
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                scratch[i] = X[0, i] * 2
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                Y[0, i] = scratch[63 - i]
        # Y[0]: 126 124 122
    """
    builder = current()
    name, declared = builder.fresh(builder.hint, "scratch"), shape_tuple(shape)
    buffer = Buffer(name, sizes(builder, declared, name), find_dtype(dtype), Space.GLOBAL)
    check_packed(buffer)
    check_addressable(buffer)
    builder.scratch.append(buffer)
    return Tile(buffer, declared=declared)


def _barrier(arrive_count: Any) -> Tile:
    builder = current()
    kernel = builder.require_block()
    counts = [static_int(c, f"arrive_count of T.{word()}", 1) for c in shape_tuple(arrive_count)]
    buffer = new_buffer(builder, (len(counts),), BARRIER, Space.BARRIER, "barrier")
    builder.emit(Alloc(buffer))
    if len(set(counts)) == 1:
        builder.emit(BarrierInit(whole(buffer), const(counts[0])))
    else:
        for at, count in enumerate(counts):
            builder.emit(BarrierInit(element(buffer, at), const(count)))
    return Tile(buffer, kernel)


def alloc_barrier(arrive_count: Any) -> Tile:
    """A barrier that completes a phase after `arrive_count` threads have arrived; several for a
    list of counts.

    Example:
        ready = T.alloc_barrier(128)
        tile = T.alloc_shared((128,), "int32")
        t = T.get_thread_binding()
        tile[t] = t
        T.barrier_arrive(ready)
        T.barrier_wait(ready, 0)
        if t < 64:
            M[t] = tile[127 - t]
        # M: 127 126 125
    """
    return _barrier(arrive_count)


def alloc_cluster_barrier(arrive_count: Any) -> Tile:
    """Barriers that blocks of the cluster also arrive on.

    Example, compiled for CUDA:
        with T.Kernel(2, threads=128, cluster_dims=2) as bx:
            peers = T.alloc_cluster_barrier(256)
            T.cluster_sync()
            T.mbarrier_arrive(peers, 0)
            if T.block_rank_in_cluster() == 0:
                T.mbarrier_wait_parity(peers, 0)
    """
    current().require_cluster()
    return _barrier(arrive_count)


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
    `T.reducer_init`, `T.reducer_update(acc[i], v)`, `T.finalize_reducer(acc, dst)`.

    `op` is sum, max, min, bitand, bitor or bitxor. `acc[i] += v`, `acc[i] = acc[i] + v` and
    `acc[i] = T.max(acc[i], v)` are updates too; a value that does not read the reducer is stored.

    Example:
        acc = T.alloc_reducer((64,), "float32", op="sum")
        T.reducer_init(acc)
        for i, j in T.Parallel(64, 64):
            T.reducer_update(acc[j], X[i, j])
        T.finalize_reducer(acc, Y[0, 0:64])
        # Y[0]: -2016 -1952
    """
    one_of(op, REDUCERS, "T.alloc_reducer: unknown op", 'write one of these, such as op="sum"')
    tile = _alloc(shape, dtype, Space.SHARED, "reducer")
    tile.reducer = op
    return tile
