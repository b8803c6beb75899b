"""Blocks that stay: as many as fit on the chip, each walking over its share of the grid's tiles.

    for tile in block .. tiles step=blocks kind=persistent { let bx = tile % columns … body }

Where some tiles have more work than others, every other wave of them is handed out backwards. Tiles
are numbered as blocks are launched, axis 0 fastest, so the orders of `order_blocks` hold, and tiles
that run at the same time are those that would have. The loop is a loop like any other: what comes
after puts barriers and waits between one tile's use of shared memory and the next one's, and rings
run on from tile to tile.

Shared memory is one per block and allocated before the loop. Registers belong to a tile: what is
not written in a tile must not be read in it, and initial values are given anew.

A kernel keeps a block per tile where more than its tiles' numbers could tell blocks apart, or its
threads: see `why_not`. `worth_it` decides about the others.

Neighbouring blocks may form clusters, so that each loads a part of what all of them need.
Blocks along the axis on which most of what pipelined loops load does not depend are taken together.
In between, a cluster is one block whose body runs for each place in it:

    for place in 0 .. 2 kind=cluster { let by = by_pair * 2 + place … body }

which means what it meant, and lets orders and persistent blocks deal with whole clusters.
`spread_clusters` then makes the iterations blocks. Who loads what is decided where rings are filled
(`pipeline_loops`): a tile that is the same in all blocks (`Common`) comes in as many parts, each
loaded by one block and sent to all.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace
from functools import reduce
from math import prod
from operator import mul
from typing import TypeGuard

from tilewright.passes.core import *
from tilewright.passes.grid.order_blocks import (
    CLUSTER,
    EVEN,
    MOST,
    blocks_of,
    cluster_loop,
    handed_out,
    in_range,
    in_waves,
    most_work,
    planned_cluster,
    shared_loads,
    tile_lengths,
)
from tilewright.passes.overlap.roles import LAUNCHES, placed, why_not_worth, why_placed
from tilewright.passes.overlap.roles import why_not as no_roles

ABOUT, CLUSTERS = "persistent blocks", "clusters"


@kernel_pass
def persist_blocks(at: Facts) -> Kernel:
    """Launch only as many blocks as fit on the chip, each walking over its share of the tiles,
    where that is possible and pays."""
    kernel = at.kernel
    wanted, why = worth_it(kernel, at.target)
    against = why_not(kernel) if wanted else None
    if against is not None:
        wanted, why = False, f"one block per tile: {against}"
    because(kernel.name, ABOUT, why)
    if not wanted:
        return kernel
    uneven = most_work(kernel) != EVEN
    new = _persistent(kernel, blocks_of(kernel, at.target), uneven)
    loop = next(op for op in new.body if isinstance(op, For))
    because(kernel.name, loop, why)
    return new


def worth_it(kernel: Kernel, target: Target) -> tuple[bool, str]:
    """Whether blocks should stay, and why; the one place that decides it.

    Blocks that stay let a producer load the next tile while this one's result leaves: on an H200
    3 % of attention, 1 to 2 % of GEMM."""
    choice, shares = target.schedule.persistent, ""
    against = "as requested" if choice is False else None
    if choice == "auto":
        against = _no_producer(kernel, target)
        if against is None and most_work(kernel) != EVEN:
            against, shares = _shared_out(kernel, target)
    if against is not None:
        return False, f"one block per tile: {against}"
    blocks, tiles = blocks_of(kernel, target), tile_count(kernel)
    if isinstance(tiles, Const) and int(tiles.value) <= blocks:
        return False, f"one block per tile: all {tiles.value} of them fit on the chip"
    together = planned_cluster(kernel)
    each = max(1, blocks * together // target.chip.multiprocessors)
    on = f"{target.chip.multiprocessors} multiprocessors"
    why = ", as requested" if choice is True else ""
    return True, f"{blocks * together} persistent blocks{why}, {each} on each of {on}{shares}"


def _no_producer(kernel: Kernel, target: Target) -> str | None:
    if target.schedule.roles is False or Feature.BULK_COPY not in target.features:
        return "no producer prefetches the next tile"
    return (why_not_worth(kernel) or no_roles(kernel)) if target.schedule.roles == "auto" else None


def _shared_out(kernel: Kernel, target: Target) -> tuple[str | None, str]:
    """What speaks against dealing out uneven tiles in advance, or how it is done; in words."""
    lengths, blocks = tile_lengths(kernel), blocks_of(kernel, target)
    if lengths is None:
        return "the hardware balances uneven work", ""
    one_by_one, ahead = handed_out(lengths, blocks), in_waves(lengths, blocks)
    tiles = f"tiles of {lengths.min()} to {lengths.max()} iterations"
    by_hardware = f"{one_by_one:.0f} iterations if the hardware schedules them"
    if ahead <= one_by_one:
        return (
            None,
            f"; {tiles} take {ahead:.0f} iterations, {by_hardware}",
        )
    return f"{tiles} take {by_hardware}, {ahead:.0f} with persistent blocks", ""


def tile_count(kernel: Kernel) -> Expr:
    """How many tiles the grid has."""
    return reduce(mul, kernel.grid, const(1))


def why_not(kernel: Kernel) -> str | None:
    """What keeps a kernel's blocks from taking up several tiles, in words."""
    if not kernel.grid:
        return "there is one"
    if prod(int(n.value) for n in kernel.grid if isinstance(n, Const)) >= MOST:
        return "the grid is too large to number"
    if kernel.cluster:
        return "blocks run in clusters"
    own = set(kernel.thread_vars)
    for op in walk_ops(kernel.body):
        found = _against(op, own)
        if found is not None:
            where = at_line(op.loc)
            return f"{found} ({where})" if where else found
    return None


def _against(op: Op, threads: set[Var]) -> str | None:
    """What an op has against being run for one tile after the other."""
    if isinstance(op, For) and op.kind == "persistent":
        return "its blocks already loop over tiles"
    if placed := why_placed(op):
        return placed
    if isinstance(op, (Fence, Sync)):
        return "the kernel has roles, barriers or waits of its own"
    if isinstance(op, Intrinsic):
        effect = INTRINSICS.get(op.name)
        if effect is None or effect.opaque:
            return "foreign code may keep state from tile to tile"
        if effect.convergent:
            return "the kernel has code for single threads"
        if op.name in LAUNCHES:
            return "the kernel communicates with other launches"
    if any(variables(e) & threads for e in expressions(op)):
        return "the kernel has code for single threads"
    if isinstance(op, While):
        asks = any(load.buffer.is_global for load in op_loads(op))
        if asks or any(walk_ops(op.body, Atomic)):
            # for what another block does, maybe: a tile of this one, later
            return "a loop may wait for other blocks"
    return None


# ── the loop ─────────────────────────────────────────────────────────────────────────────────


def _persistent(kernel: Kernel, blocks: int, uneven: bool) -> Kernel:
    total = tile_count(kernel)
    kind = kernel.blocks[0].dtype
    kind = promote(kind, total.dtype) if not isinstance(total, Const) else kind
    block = fresh_var("block", dtype=kind)
    alone = len(kernel.blocks) == 1 and kernel.blocks[0].dtype == kind
    tile = kernel.blocks[0] if alone else fresh_var("tile", dtype=kind)
    held, body = of_kernel(kernel)
    if not alone:
        body = _placed(kernel, tile, body)
    end = cast(total, kind)
    if uneven:
        loop = _there_and_back(tile, block, end, body, blocks)
    else:
        loop = For(tile, block, end, body, const(blocks, kind), "persistent")
    # no block without a tile; where there are fewer, nobody takes the second step
    count = binary("min", const(blocks, total.dtype), total)
    return replace(kernel, blocks=(block,), grid=(count,), body=(*held, loop))


def _there_and_back(tile: Var, block: Var, total: Expr, body: Body, blocks: int) -> For:
    """Waves of tiles, every other one handed out from the last block to the first: where tiles have
    less and less work, the block that had the most of one wave has the least of the next."""
    wave = fresh_var("wave", dtype=tile.dtype)

    def place(number: Expr) -> Expr:
        return select(compare("!=", number % 2, 0), blocks - 1 - block, block)

    whole_waves, rest = total // blocks, total % blocks
    last = select(place(whole_waves) < rest, 1, 0)
    indices = (Let(tile, wave * blocks + place(wave)), in_range(tile, total))
    zero = const(0, tile.dtype)
    return For(wave, zero, whole_waves + last, (*indices, *body), kind="persistent")


def _placed(kernel: Kernel, tile: Var, body: Body) -> Body:
    """`body` after the indices of `tile` that it needs."""
    rank = len(kernel.grid)
    strides: list[Expr] = [const(1)]
    for extent in kernel.grid:
        strides.append(strides[-1] * extent)
    # a number made of indices again, as `order_blocks` makes it
    numbers = {
        number_in(kernel.blocks[:k], kernel.grid[:k]): tile if k == rank else tile % strides[k]
        for k in range(2, rank + 1)
    }
    kept: list[Op] = []
    for op in body:
        if isinstance(op, Let) and op.value in numbers:
            op = replace(op, value=cast(numbers[op.value], op.var.dtype))
        kept.append(op)
    used = read_variables(tuple(kept))
    lets: list[Op] = []
    for axis, (var, extent) in enumerate(zip(kernel.blocks, kernel.grid, strict=True)):
        if var not in used:
            continue
        place: Expr = tile if axis == 0 else tile // strides[axis]
        place = place % extent if axis < rank - 1 else place
        lets.append(Let(var, cast(place, var.dtype)))
        if not isinstance(extent, Const):
            lets.append(in_range(var, extent))
    return (*lets, *kept)


# ── clusters ─────────────────────────────────────────────────────────────────────────────────


@kernel_pass
def cluster_blocks(at: Facts) -> Kernel:
    """Form clusters where the schedule asks for them, or where they were chosen with the tiles:
    blocks that need the same tile load a part of it each, for all."""
    told = at.target.schedule.cluster
    count = asked_cluster(at.kernel) if told == "auto" else told
    kernel = map_ops(at.kernel, lambda op: () if _asks(op) else None)
    if count == 1:
        return kernel
    found = cluster_axis(kernel, count, at.target, at.dims)
    if isinstance(found, str):
        because(kernel.name, CLUSTERS, f"none: {found}")
        return kernel
    axis, shared = found
    along = f"{count} blocks along {kernel.blocks[axis].name}"
    because(kernel.name, CLUSTERS, f"{along} share what they load of {' and '.join(shared)}")
    return _clustered(kernel, axis, count)


def _asks(op: Op) -> TypeGuard[Hint]:
    return isinstance(op, Hint) and op.name == "cluster"


def asked_cluster(kernel: Kernel) -> int:
    """The blocks of a cluster that a kernel's hint asks for; 1 without one."""
    return max((int(op.detail[0]) for op in kernel.body if _asks(op)), default=1)


def cluster_axis(
    kernel: Kernel, count: int, target: Target, dims: Iterable[Dim]
) -> tuple[int, tuple[str, ...]] | str:
    """The axis along which blocks share most, and the tensors of which they do; or why there is
    none."""
    if not {Feature.CLUSTER, Feature.BULK_COPY, Feature.MULTICAST} <= target.features:
        return "the target has none"
    if kernel.cluster:
        return "the kernel has its own"
    if why := placed(kernel):
        return why
    against = no_roles(kernel)
    if against is None and target.schedule.roles == "auto":
        against = why_not_worth(kernel)
    if target.schedule.roles is False or against is not None:
        return f"no producer loads: {against or 'switched off'}"
    bytes_of = {
        axis: {
            copy.src.buffer.name: copy.dst.buffer.bytes
            for copy in shared_loads(kernel, dims, var)
            if copy.dst.buffer.is_static
        }
        for axis, var in enumerate(kernel.blocks)
    }
    axes = sorted((a for a in bytes_of if bytes_of[a]), key=lambda a: -sum(bytes_of[a].values()))
    objections = [_objection(kernel, axis, count, dims) for axis in axes]
    for axis, against in zip(axes, objections, strict=True):
        if against is None:
            return axis, tuple(bytes_of[axis])
    return next((o for o in objections if o), "blocks share no loads")


def _objection(kernel: Kernel, axis: int, count: int, dims: Iterable[Dim]) -> str | None:
    """What speaks against clusters along an axis."""
    var, extent = kernel.blocks[axis], kernel.grid[axis]
    if not isinstance(extent, Const) or int(extent) % count:
        number = int(extent) if isinstance(extent, Const) else "an unknown number of"
        return f"{number} blocks along {var.name} are not whole clusters"
    for op, ranges in scope.walk_ranges(kernel, dims):
        if isinstance(op, (For, If, While)):
            asked = [ranges.resolve(e, var) for e in expressions(op)]
            if any(e is None or var in variables(e) for e in asked):
                return f"blocks along {var.name} do not run the same"
    return None


def _clustered(kernel: Kernel, axis: int, count: int) -> Kernel:
    old = kernel.blocks[axis]
    whole = fresh_var(f"{old.name}_cluster", dtype=old.dtype)
    place = fresh_var("place", dtype=old.dtype)
    held, body = of_kernel(kernel)
    index = Let(old, whole * count + place)
    zero, end = const(0, old.dtype), const(count, old.dtype)
    loop = For(place, zero, end, (index, *body), kind=CLUSTER)
    grid = tuple(n // count if k == axis else n for k, n in enumerate(kernel.grid))
    blocks = tuple(whole if k == axis else v for k, v in enumerate(kernel.blocks))
    return replace(kernel, grid=grid, blocks=blocks, body=(*held, loop))


def of_kernel(kernel: Kernel) -> tuple[Body, Body]:
    """Shared memory without a value, and what is said of the whole kernel; and the rest."""

    def is_one(op: Op) -> bool:
        if isinstance(op, Alloc):
            return op.buffer.is_shared and op.init is None
        return isinstance(op, Hint) and op.value is None and op.buffer is None

    body = kernel.body
    return tuple(filter(is_one, body)), tuple(itertools.filterfalse(is_one, body))


@kernel_pass
def spread_clusters(at: Facts) -> Kernel:
    """Turn the places of clusters into blocks."""
    kernel, loop = at.kernel, cluster_loop(at.kernel)
    if loop is None:
        return kernel
    count = int(loop.stop)
    first = kernel.blocks[0]
    raw = fresh_var(f"{first.name}_raw", dtype=first.dtype)
    inlined = map_body(kernel.body, lambda op: loop.body if op is loop else None)
    body = (Let(first, raw // count), *inlined)
    grid = (kernel.grid[0] * count, *kernel.grid[1:])
    cluster = (count, *(1 for _ in kernel.grid[1:]))
    return replace(
        kernel, blocks=(raw, *kernel.blocks[1:]), grid=grid, body=body, cluster=cluster,
        rank=loop.var,
    )  # fmt: skip


class Common:
    """Which values are the same in all blocks of a kernel's clusters."""

    def __init__(self, kernel: Kernel) -> None:
        self.lets = let_values(walk_ops(kernel))
        # what an effect gives a block is its own
        self.own = {kernel.rank, *(op.result for op in walk_ops(kernel, Atomic, Intrinsic))}
        sizes = zip(kernel.blocks, kernel.cluster, strict=False)
        self.sizes = {var: size for var, size in sizes if size > 1}
        self.control = True  # blocks run the same loops and branches
        for op in walk_ops(kernel):
            if isinstance(op, (For, If, While)) and not all(map(self.has, expressions(op))):
                self.control = False
                self.own |= {op.var} if isinstance(op, For) else set()

    def has(self, e: Expr) -> bool:
        """Whether `e` is; loads of tensors are, where their indices are."""
        e = substitute(e, self.lets)
        if any(not load.buffer.is_global for load in loads(e)):
            return False

        def cluster(node: Expr) -> Expr | None:
            match node:
                case Bin("//", Var() as v, Const() as n) if self.sizes.get(v) == int(n):
                    return Var(f" cluster of {v.name}", v.dtype)
            return None

        return not variables(transform(e, cluster)) & (self.own | self.sizes.keys())

    def region(self, r: Region) -> bool:
        return all(self.has(e) for e in (*r.starts, *r.extents))
