"""Blocks that stay: as many as fit on the chip, each walking over its share of the grid's tiles.

    for tile in block .. tiles step=blocks kind=persistent { let bx = tile % columns … body }

Where some tiles have more work than others, every other wave of them is dealt backwards. Tiles are
numbered as blocks are launched, axis 0 fastest, so the orders of `order_blocks` hold, and tiles
that run at the same time are those that would have. The loop is a loop like any other: what comes
behind puts barriers and waits between one tile's use of shared memory and the next one's, and rings
run on from tile to tile.

Shared memory is one per block and allocated before the loop. Registers belong to a tile: what is
not written in a tile must not be read in it, and initial values are given anew.

A kernel keeps a block per tile where more than its tiles' numbers could tell blocks apart, or its
threads: see `why_not`. `worth_it` decides about the others.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Space, whole
from tilewright.ir.dtype import promote
from tilewright.ir.expr import Const, Expr, Var, binary, cast, compare, const, select, variables
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Fence,
    Fill,
    For,
    Hint,
    Intrinsic,
    Kernel,
    Let,
    Op,
    Store,
    Sync,
    While,
    expressions,
    op_loads,
    walk_ops,
)
from tilewright.ir.rewrite import fresh_var
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.grid.order_blocks import (
    EVEN,
    MOST,
    blocks_of,
    cluster_size,
    handed_out,
    in_range,
    in_waves,
    most_work,
    number_of,
    tile_lengths,
)
from tilewright.passes.overlap.roles import LAUNCHES, why_not_worth, why_placed
from tilewright.passes.overlap.roles import why_not as no_roles
from tilewright.passes.reasons import at_line, because

ABOUT = "persistent blocks"


@kernel_pass
def persist_blocks(at: Facts) -> Kernel:
    """Blocks that stay, in the kernels where that is possible and worth it."""
    kernel = at.kernel
    wanted, why = worth_it(kernel, at.target)
    against = why_not(kernel) if wanted else None
    if against is not None:
        wanted, why = False, f"a block for every tile: {against}"
    because(kernel.name, ABOUT, why)
    if not wanted:
        return kernel
    uneven = most_work(kernel) != EVEN
    new = _persistent(kernel, blocks_of(kernel, at.target), at.names, uneven)
    loop = next(op for op in new.body if isinstance(op, For))
    because(kernel.name, loop, why)
    return new


def worth_it(kernel: Kernel, target: Target) -> tuple[bool, str]:
    """Whether blocks should stay, and why; the one place that decides it.

    Blocks that stay let a producer load the next tile while this one's result leaves: on an H200
    3 % of attention, 1 to 2 % of GEMM."""
    choice, shares = target.schedule.persistent, ""
    against = "as asked for" if choice is False else None
    if choice == "auto":
        against = _no_producer(kernel, target)
        if against is None and most_work(kernel) != EVEN:
            against, shares = _shared_out(kernel, target)
    if against is not None:
        return False, f"a block for every tile: {against}"
    blocks, tiles = blocks_of(kernel, target), tile_count(kernel)
    if isinstance(tiles, Const) and int(tiles.value) <= blocks:
        return False, f"a block for every tile: all {tiles.value} of them fit on the chip"
    together = cluster_size(kernel)
    each = max(1, blocks * together // target.chip.multiprocessors)
    on = f"{target.chip.multiprocessors} multiprocessors"
    why = ", as asked for" if choice is True else ""
    return True, f"{blocks * together} blocks that stay{why}: {each} on each of {on}{shares}"


def _no_producer(kernel: Kernel, target: Target) -> str | None:
    if target.schedule.roles is False or Feature.BULK_COPY not in target.features:
        return "no producer loads for the next one"
    return (why_not_worth(kernel) or no_roles(kernel)) if target.schedule.roles == "auto" else None


def _shared_out(kernel: Kernel, target: Target) -> tuple[str | None, str]:
    """What speaks against dealing out uneven tiles in advance, or how it is done; in words."""
    lengths, blocks = tile_lengths(kernel), blocks_of(kernel, target)
    if lengths is None:
        return "the hardware deals out uneven work", ""
    one_by_one, ahead = handed_out(lengths, blocks), in_waves(lengths, blocks)
    tiles = f"tiles of {lengths.min()} to {lengths.max()} iterations"
    if ahead <= one_by_one:
        return None, f"; {tiles} done in {ahead:.0f}, dealt out by the hardware in {one_by_one:.0f}"
    return (
        f"the hardware deals out {tiles} in {one_by_one:.0f}, to blocks that stay {ahead:.0f}",
        "",
    )


def tile_count(kernel: Kernel) -> Expr:
    """How many tiles the grid has."""
    total: Expr = const(1)
    for extent in kernel.grid:
        total = total * extent
    return total


def why_not(kernel: Kernel) -> str | None:
    """What keeps a kernel's blocks from taking up several tiles, in words."""
    if not kernel.grid:
        return "there is one"
    if prod(int(n.value) for n in kernel.grid if isinstance(n, Const)) >= MOST:
        return "there are too many to number"
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
        return "blocks walk over tiles already"
    if placed := why_placed(op):
        return placed
    if isinstance(op, (Fence, Sync)):
        return "the kernel has roles, barriers or waits of its own"
    if isinstance(op, Intrinsic):
        effect = INTRINSICS.get(op.name)
        if effect is None or effect.opaque:
            return "foreign code may keep something from tile to tile"
        if effect.convergent:
            return "the kernel has code for single threads"
        if op.name in LAUNCHES:
            return "the kernel speaks to other launches"
    if any(variables(e) & threads for e in expressions(op)):
        return "the kernel has code for single threads"
    if isinstance(op, While):
        asks = any(load.buffer.space is Space.GLOBAL for load in op_loads(op))
        if asks or any(isinstance(inner, Atomic) for inner in walk_ops(op.body)):
            # for what another block does, maybe: a tile of this one, later
            return "a loop may wait for other blocks"
    return None


# ── the loop ─────────────────────────────────────────────────────────────────────────────────


def _persistent(kernel: Kernel, blocks: int, names: set[str], uneven: bool) -> Kernel:
    loc = kernel.loc
    total = tile_count(kernel)
    kind = kernel.blocks[0].dtype
    kind = promote(kind, total.dtype) if not isinstance(total, Const) else kind
    block = fresh_var("block", names, kind)
    alone = len(kernel.blocks) == 1 and kernel.blocks[0].dtype == kind
    tile = kernel.blocks[0] if alone else fresh_var("tile", names, kind)
    held: list[Op] = []
    body: list[Op] = []
    for op in kernel.body:
        if isinstance(op, Hint) and op.buffer is None and op.value is None:
            held.append(op)  # said of the kernel
        elif isinstance(op, Alloc) and op.buffer.space is Space.SHARED:
            held.append(replace(op, init=None))
            if op.init is not None:
                body.append(_given(op, op.init))
        else:
            body.append(op)
    if not alone:
        body = _placed(kernel, tile, body)
    if uneven:
        loop = _there_and_back(tile, block, cast(total, kind), body, blocks, names)
    else:
        end, step = cast(total, kind), const(blocks, kind)
        loop = For(tile, block, end, tuple(body), step, "persistent", loc=loc)
    # no block without a tile; where there are fewer, nobody takes the second step
    count = binary("min", const(blocks, total.dtype), total)
    return replace(kernel, blocks=(block,), grid=(count,), body=(*held, loop))


def _there_and_back(
    tile: Var, block: Var, total: Expr, body: list[Op], blocks: int, names: set[str]
) -> For:
    """Waves of tiles, every other one dealt from the last block to the first: where tiles have less
    and less work, the block that had the most of one wave has the least of the next."""
    wave = fresh_var("wave", names, tile.dtype)

    def place(number: Expr) -> Expr:
        return select(compare("!=", number % 2, 0), blocks - 1 - block, block)

    whole_waves, rest = total // blocks, total % blocks
    last = select(compare("<", place(whole_waves), rest), 1, 0)
    indices = (Let(tile, wave * blocks + place(wave)), in_range(tile, total))
    zero = const(0, tile.dtype)
    return For(wave, zero, whole_waves + last, (*indices, *body), kind="persistent")


def _given(op: Alloc, value: Expr) -> Op:
    buffer = op.buffer
    if buffer.rank == 0:
        return Store(buffer, (), value, loc=op.loc)
    return Fill(whole(buffer), value, loc=op.loc)


def _placed(kernel: Kernel, tile: Var, body: list[Op]) -> list[Op]:
    """`body` behind the indices of `tile` that it needs."""
    rank = len(kernel.grid)
    strides: list[Expr] = [const(1)]
    for extent in kernel.grid:
        strides.append(strides[-1] * extent)
    # a number made of indices again, as `order_blocks` makes it
    numbers = {
        number_of(kernel.blocks[:k], kernel.grid[:k]): tile if k == rank else tile % strides[k]
        for k in range(2, rank + 1)
    }
    kept: list[Op] = []
    for op in body:
        if isinstance(op, Let) and op.value in numbers:
            op = replace(op, value=cast(numbers[op.value], op.var.dtype))
        kept.append(op)
    used = {v for op in walk_ops(tuple(kept)) for e in expressions(op) for v in variables(e)}
    lets: list[Op] = []
    for axis, (var, extent) in enumerate(zip(kernel.blocks, kernel.grid, strict=True)):
        if var not in used:
            continue
        place: Expr = tile if axis == 0 else tile // strides[axis]
        place = place % extent if axis < rank - 1 else place
        lets.append(Let(var, cast(place, var.dtype), loc=kernel.loc))
        if not isinstance(extent, Const):
            lets.append(in_range(var, extent, kernel.loc))
    return [*lets, *kept]
