"""Products into tiles that were just cleared, as products that begin anew.

A matrix instruction can ignore what its accumulator holds. Where a tile is zero whenever a product
comes to it, clearing it is work for nothing, and other passes do not see that iterations have
nothing to do with each other.

    for k { fill T = 0; T += A[k]·B[k]; … }
    fill T = 0; for k { T += A[k]·B[k]; …; fill T = 0 }

    for k { T = A[k]·B[k]; … }

In the second form nobody else may have to do with the tile: after the loop it would not be zero.

A mask that is written first, of zeros and other constants, is added after the product instead, or
after the last of several into the same tile, where most of its elements do nothing and
`unswitch_guards` asks for few of the others:

    map (i, j) { T[i, j] = 0 if seen else -inf }; T += A·B

    T = A·B; map (i, j) { T[i, j] = T[i, j] if seen else T[i, j] + -inf }

The sums are the same: zero changes none, and an infinity makes all of them itself, or NaN of NaN.
Other constants are one more number of a sum, which has no order. In a type of 16 bits they stay
where they are: its sums are rounded where threads add to them, and one that is too large for the
type is an infinity, which with the other one of a mask is NaN.
"""

from __future__ import annotations

from math import isnan

from tilewright.passes.core import *


@kernel_pass
def fold_accumulator_init(at: Facts) -> Kernel:
    """Let a GEMM overwrite its accumulator instead of clearing it first. Masks of constants that
    were written first are added afterwards."""
    changes: dict[int, Body] = {}  # by id of an op, what stands there instead
    for body in (body for op in at.ops for body in bodies(op)):
        for n, op in enumerate(body):
            if isinstance(op, Fill) and _clears(op, op.dst.buffer):
                product, last = _rotated(at, body, n, op.dst.buffer)
                if product is not None:
                    changes |= {id(op): (), id(product): (_anew(at, product),), id(last): ()}
            elif isinstance(op, Gemm) and _adds(op) and op.c.buffer.name not in at.viewed:
                behind = _behind(body, n, op.c.buffer, at.viewed)
                if behind is not None:
                    start, map_ = behind
                    changes |= {id(start): (), id(op): (_anew(at, op),)}
                    end = _last_product(body, n, op.c.buffer, map_) if map_ else op
                    changes[id(end)] = (*changes.get(id(end), (end,)), *map_)
    return map_ops(at.kernel, lambda op: changes.get(id(op)))


def _adds(op: Gemm) -> bool:
    """Whether a product adds to a whole tile of registers that it does not read otherwise."""
    tile = op.c.buffer
    own = tile.name in (op.a.buffer.name, op.b.buffer.name)
    return op.clear is FALSE and tile.is_fragment and op.c.is_whole and not own


def _clears(op: Op, tile: Buffer) -> bool:
    return (
        isinstance(op, Fill)
        and op.dst.buffer == tile
        and op.dst.is_whole
        and isinstance(op.value, Const)
        and op.value.value == 0
    )


def _behind(ops: Body, at: int, tile: Buffer, shown: set[str]) -> tuple[Op, Body] | None:
    """What starts a tile for the product `ops[at]`, and what does the same after that."""
    last = next((k for k in range(at - 1, -1, -1) if _touches(ops[k], tile)), None)
    if last is None or leaves_early(ops[last:at]):  # who leaves in between leaves zeros behind
        return None
    first = ops[last]
    if _clears(first, tile):
        return first, ()
    if not isinstance(first, Map):
        return None
    reads = mentioned(first) - {tile.name}  # would they be the same after the product?
    if reads & shown or reads & written_in(ops[last:at]):
        return None
    map_ = _added(first, tile)
    return None if map_ is None else (first, map_)


def _last_product(ops: Body, at: int, tile: Buffer, map_: Body) -> Op:
    """The last of the products that add to `tile` from `ops[at]` on, one after the other, with
    nothing between them that changes what `map_` reads."""
    reads = {name for op in map_ for name in mentioned(op)} - {tile.name}
    last = ops[at]
    for op in ops[at + 1 :]:
        adds = isinstance(op, Gemm) and _adds(op) and op.c.buffer == tile
        if (not adds and _touches(op, tile)) or reads & written_in((op,)) or leaves_early((op,)):
            break
        last = op if adds else last
    return last


def _added(map_: Map, tile: Buffer) -> Body | None:
    """The constants that `map_` writes to every element of `tile`, added to it; None if it does
    anything else."""
    *names, store = map_.body
    match store:
        case If(cond, (Store() as yes,), (Store() as no,)) if _same_place(yes, no):
            store = rebuild(yes, value=Select(cond, yes.value, no.value))
    if (
        not all(isinstance(op, Let) for op in names)
        or not isinstance(store, Store)
        or store.buffer != tile
        or store.indices != map_.vars
        or map_.extents != tile.shape
        or any(load.buffer == tile for op in map_.body for load in op_loads(op))
    ):
        return None
    old = Load(tile, store.indices)

    def added(value: Expr) -> Expr | None:
        match value:
            case Select(cond, a, b):
                yes, no = added(a), added(b)
                return None if yes is None or no is None else Select(cond, yes, no)
            case Const(0):
                return old
            case Const(v) if tile.dtype.bits >= 32 and not isnan(v):
                return binary("+", old, value)
        return None

    new = added(store.value)
    if new is None or new is old:
        return None if new is None else ()
    return (rebuild(map_, body=(*names, rebuild(store, value=new))),)


def _same_place(a: Store, b: Store) -> bool:
    return a.buffer == b.buffer and a.indices == b.indices


def _touches(op: Op, tile: Buffer) -> bool:
    return tile.name in mentioned(op) and not isinstance(op, Alloc)


def _rotated(at: Facts, body: Body, n: int, tile: Buffer) -> tuple[Gemm | None, Op]:
    """The product and the last op in a loop that finds a tile cleared by `body[n]`, adds to it, and
    leaves it cleared; nothing else has to do with the tile, around the loop either."""
    users = [op for op in body[n + 1 :] if _touches(op, tile)]
    alone = tile.name not in at.viewed and _uses(at.kernel, tile) == _uses((body[n], *users), tile)
    while alone and len(users) == 1 and isinstance(loop := users[0], For):
        users = [op for op in loop.body if _touches(op, tile)]
        match users:
            case [Gemm() as first, *_, last] if _adds(first) and first.c.buffer == tile:
                if _clears(last, tile) and not leaves_early(loop.body):
                    return first, last
    return None, body[n]


def _uses(code: Op | Body, tile: Buffer) -> int:
    """How many ops have to do with a tile."""
    found = [op for op in walk_ops(code) if tile in named_buffers(op)]
    return sum(not isinstance(op, Alloc) for op in found)


def _anew(at: Facts, op: Gemm) -> Gemm:
    found = rebuild(op, clear=TRUE)
    because(at.kernel.name, found, "starts from zero: its tile was just cleared")
    return found
