"""Launching: `Kernel`, block and thread indices, block order."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.op import Hint
from tilewright.ir.op import Kernel as Op
from tilewright.lang.builder import Opened, Probed, current, current_block
from tilewright.lang.place import lift_loops, place
from tilewright.lang.types import integer, one_of, shape_tuple, static_int
from tilewright.lang.where import locate
from tilewright.support.errors import CompileError, at, entry

_AXES = "xyz"


class KernelScope(Opened):
    """`with T.Kernel(...) as (bx, by)`."""

    def __init__(
        self, grid: tuple[Any, ...], threads: tuple[int, ...], cluster: tuple[int, ...]
    ) -> None:
        self.grid, self.threads, self.cluster = grid, threads, cluster
        self.loc = locate()

    @entry
    def __enter__(self) -> Any:
        with at(self.loc):
            return self._enter()

    def _enter(self) -> Any:
        builder = current("T.Kernel")
        grid = tuple(_extent(g, at) for at, g in enumerate(self.grid)) or (const(1),)
        names = self.names
        if (len(names) > 1 or self.unpacked) and len(names) != len(self.grid):
            raise CompileError(
                "T.Kernel's names do not fit its grid",
                expected=f"{len(self.grid)} name{'s' * (len(self.grid) != 1)}",
                got=", ".join(names),
                fix="give T.Kernel one extent per name",
                code="grid",
            )
        if len(names) == 1 and len(grid) > 1:
            names = tuple(f"{names[0]}_{_AXES[at]}" for at in range(len(grid)))
        names = tuple(
            (names[at] if at < len(names) and names[at] != "_" else f"b{_AXES[at]}")
            for at in range(len(grid))
        )
        if builder.probing:
            raise Probed
        if builder.kernel is not None:
            raise CompileError(
                "T.Kernel inside T.Kernel",
                fix="close the first one; several kernels in one function run in order",
                code="python",
            )
        if builder.bodies:
            raise CompileError(
                "T.Kernel inside a run-time branch or loop",
                expected="kernels that run one after the other, always",
                fix="put the branch or the loop inside T.Kernel, or choose at compile time",
            )
        kernel = builder.kernel = Op(
            builder.name if not builder.kernels else f"{builder.name}_{builder.number}",
            tuple(builder.var(name) for name in names),
            grid,
            tuple(builder.var(f"t{_AXES[at]}") for at in range(len(self.threads))),
            self.threads,
            (),
            self.cluster,
            builder.var("cluster_rank") if self.cluster else None,
            loc=self.loc,
        )
        builder.step(16)  # a kernel is compiled by itself
        builder.open()
        if not self.grid:
            return ()
        return kernel.blocks[0] if len(grid) == 1 and not self.unpacked else kernel.blocks

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        builder = current("T.Kernel")
        if kind is None and builder.kernel is not None:
            kernel = replace(builder.kernel, body=builder.close())
            builder.kernels.append(lift_loops(place(kernel)))
        builder.kernel = None


def _extent(value: Any, at: int) -> Expr:
    fix = "use T.ceildiv(n, block), or divide with // instead of /"
    expr = integer(value, f"grid axis {at} of T.Kernel", fix)
    number = getattr(expr, "value", None)
    if number is not None and number < 1:
        raise CompileError(
            f"grid axis {at} of T.Kernel is empty",
            got=str(number),
            fix="use T.ceildiv(n, block), which is at least 1",
            code="grid",
        )
    if number is not None and number >= 2**31:
        raise CompileError(
            f"grid axis {at} of T.Kernel is too long: block indices are int32",
            expected="less than 2**31 blocks",
            got=f"{number:,}".replace(",", " "),
            fix="let a block do more, in a loop",
            code="too-large",
        )
    return expr


def Kernel(
    *grid: Any,
    threads: Any = 128,
    cluster_dims: Any = None,
    is_cpu: bool = False,
    prelude: str | None = None,
) -> KernelScope:
    """A launch of a grid of blocks of `threads` threads; gives the block's indices.

    The grid has up to three axes, the first one fastest; no axis means one block. `threads` is
    a number or a tuple. Blocks run in no order. `cluster_dims` groups neighbouring blocks into
    clusters. A `prim_func` may open several kernels; they run one after the other.

    Example:
        with T.Kernel(T.ceildiv(64, 16), 2, threads=128) as (bx, by):
            for i, j in T.Parallel(32, 16):
                Y[by * 32 + i, bx * 16 + j] = bx + 10 * by
        # Y[:, 16]: 1 1
        # Y[32]: 10 10
    """
    if len(grid) > 3:
        raise CompileError(
            "T.Kernel takes at most three grid axes",
            got=str(len(grid)),
            fix="fold two of them into one, and split the block's index with // and %",
            code="grid",
        )
    counts = tuple(
        static_int(t, "threads of T.Kernel", 1)
        for t in shape_tuple(128 if threads is None else threads)
    )
    if len(counts) > 3:
        raise CompileError(
            "T.Kernel takes at most three thread axes",
            got=str(len(counts)),
            fix="threads=128 is one axis, threads=(16, 8) two",
        )
    if prod(counts) > 1024:
        raise CompileError(
            "a block has at most 1024 threads",
            got=f"threads={threads}",
            fix="use more blocks, or let each thread do more: tiles need not match the threads",
            code="grid",
        )
    cluster: tuple[int, ...] = ()
    if cluster_dims is not None:
        cluster = tuple(static_int(c, "cluster_dims", 1) for c in shape_tuple(cluster_dims))
        while cluster and cluster[-1] == 1:
            cluster = cluster[:-1]
        if len(cluster) > max(1, len(grid)):
            raise CompileError(
                "cluster_dims does not fit the grid",
                expected=f"at most {len(grid)} extents above 1",
                got=str(cluster_dims),
                fix="give it one extent for each axis of the grid",
            )
    if prelude is not None:
        current().sources.append(prelude)
    return KernelScope(grid, counts, cluster)


def ClusterKernel(*grid: Any, cluster_dims: Any, threads: Any = 128) -> KernelScope:
    """`T.Kernel` with clusters.

    Example, compiled for CUDA:
        with T.ClusterKernel(4, cluster_dims=2, threads=64) as bx:
            for i in T.Parallel(16):
                M[bx * 16 + i] = T.block_rank_in_cluster()
    """
    return Kernel(*grid, threads=threads, cluster_dims=cluster_dims)


def use_swizzle(panel_size: int = 10, order: str = "row", enable: bool = True) -> None:
    """Run blocks in panels, for the L2 cache. Never changes results.

    Blocks of a panel of `panel_size` rows (or columns, `order="col"`) start together and share
    what they load.

    Example:
        with T.Kernel(4, 4, threads=64) as (bx, by):
            T.use_swizzle(panel_size=2)
            T.copy(X[by * 16 : by * 16 + 16, bx * 16 : bx * 16 + 16], Y[by * 16, bx * 16])
        # Y[0]: 0 1 2 3
    """
    builder = current_block()
    size = static_int(panel_size, "panel_size of T.use_swizzle", 1)
    # spellings of the same orders in other dialects
    orders = {
        "row": "row", "col": "col", "column": "col", "rasterization2DRow": "row",
        "rasterization2DColumn": "col",
    }  # fmt: skip
    order = one_of(
        order, orders, "T.use_swizzle: unknown order", 'write order="row" or order="col"'
    )
    if enable:
        builder.emit(Hint("swizzle", detail=(size, order)))


def _axes(field: str) -> tuple[Any, ...]:
    """Indices or extents of the launch, constants as numbers."""
    found = getattr(current().require_kernel(), field)
    return tuple(getattr(each, "value", each) for each in found)


def _axis(field: str, dim: int) -> Any:
    what, found = "thread" if field.startswith("thread") else "block", _axes(field)
    at = static_int(dim, f"the axis of {what}")
    if not 0 <= at < len(found):
        raise CompileError(
            f"this kernel has no {what} axis {at}",
            expected=f"0 … {len(found) - 1}",
            got=str(at),
            fix=f"give T.Kernel {at + 1} {what} axes" if 0 <= at < 3 else "axes count from 0",
        )
    return found[at]


def get_thread_binding(dim: int = 0) -> Any:
    """The thread's index along an axis.

    Example:
        t = T.get_thread_binding()
        if t < 64:
            M[t] = t * t
        # M: 0 1 4 9
    """
    return _axis("thread_vars", dim)


def get_thread_bindings() -> tuple[Var, ...]:
    """The thread's indices.

    Example:
        with T.Kernel(1, threads=(8, 4)):
            x, y = T.get_thread_bindings()
            M[y * 8 + x] = 10 * y + x
        # M[8:]: 10 11 12
    """
    return _axes("thread_vars")


def get_thread_extent(dim: int = 0) -> Any:
    """The number of threads along an axis.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            M[0] = T.get_thread_extent()
        # M: 128
    """
    return _axis("threads", dim)


def get_thread_extents() -> tuple[int, ...]:
    """The number of threads along each axis.

    Example:
        with T.Kernel(1, threads=(8, 4)):
            x, y = T.get_thread_bindings()
            nx, ny = T.get_thread_extents()
            M[y * nx + x] = nx * ny
        # M: 32 32
    """
    return _axes("threads")


def get_block_binding(dim: int = 0) -> Any:
    """The block's index along an axis.

    Example:
        with T.Kernel(4, threads=64):
            for i in T.Parallel(16):
                M[T.get_block_binding(0) * 16 + i] = T.get_block_binding(0)
        # M[16:]: 1 1
    """
    return _axis("blocks", dim)


def get_block_bindings() -> tuple[Var, ...]:
    """The block's indices.

    Example:
        with T.Kernel(2, 2, threads=64):
            bx, by = T.get_block_bindings()
            for i in T.Parallel(16):
                M[(by * 2 + bx) * 16 + i] = 10 * by + bx
        # M[48:]: 11 11
    """
    return _axes("blocks")


def get_block_extent(dim: int = 0) -> Any:
    """The number of blocks along an axis.

    Example:
        with T.Kernel(4, threads=64) as bx:
            for i in T.Parallel(16):
                M[bx * 16 + i] = T.get_block_extent(0)
        # M: 4 4
    """
    return _axis("grid", dim)


def get_block_extents() -> tuple[Any, ...]:
    """The number of blocks along each axis.

    Example:
        with T.Kernel(2, 2, threads=64) as (bx, by):
            nx, ny = T.get_block_extents()
            for i in T.Parallel(16):
                M[(by * nx + bx) * 16 + i] = nx * ny
        # M: 4 4
    """
    return _axes("grid")


def get_lane_idx(warp_size: int | None = None) -> Expr:
    """The thread's place in its warp, 0 … 31.

    Example:
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.get_lane_idx()
        # M[31:]: 31 0 1
    """
    return current().require_kernel().thread % (warp_size or 32)


def get_warp_idx(warp_size: int | None = None) -> Expr:
    """The number of the thread's warp.

    Example:
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.get_warp_idx()
        # M[31:]: 0 1 1
    """
    return current().require_kernel().thread // (warp_size or 32)


get_warp_idx_sync = get_warp_idx


def get_warp_group_idx(warp_size: int | None = None, warps_per_group: int | None = None) -> Expr:
    """The number of the thread's warpgroup (four warps, 128 threads).

    Example:
        with T.Kernel(1, threads=256):
            t = T.get_thread_binding()
            if t % 4 == 0:
                M[t // 4] = T.get_warp_group_idx()
        # M[31:]: 0 1 1
    """
    return current().require_kernel().thread // ((warp_size or 32) * (warps_per_group or 4))


def block_rank_in_cluster() -> Var:
    """The block's place in its cluster.

    Example:
        with T.Kernel(4, threads=64, cluster_dims=2) as bx:
            for i in T.Parallel(16):
                M[bx * 16 + i] = T.block_rank_in_cluster()
        # M[16:]: 1 1
    """
    return current().require_cluster(block=False).rank  # type: ignore[return-value]
