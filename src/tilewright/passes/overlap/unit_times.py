"""How long ops keep the units of a multiprocessor busy: what schedules are ranked by.

Cycles of a whole block's op on one multiprocessor, from published rates: a prior that tells heavy
from light, not a promise.
"""

from __future__ import annotations

from math import prod

from tilewright.ir.analysis.trips import values_of
from tilewright.ir.core import *
from tilewright.passes.layout.matrix_tiles import operand_kind, shape_of
from tilewright.passes.sync.matrix_groups import is_matrix

TENSOR, THREADS = "tensor core", "threads"
PRODUCTS_PER_CYCLE = 2048  # of 16 bits; half as many of 32, twice as many of 8
LANES = 128  # ordinary instructions of a cycle
SPECIAL = 8  # an exponential takes as long as this many ordinary instructions
SHUFFLES = 4  # what a row's reduction adds to each of its lanes, in instructions

# What `simulate` needs besides, and `Chip` does not say; an H200 at 1.6 GHz, as it runs under load
CLOCK = 1.6e9
SHARED_BYTES = 128  # of a cycle, which wgmma and threads read: what makes narrow products slow
LATENCY = 800  # from a copy's issue to its arrival, past its turn in the queue
SOLO = 0.5  # of the issue slots, what one warpgroup fills: attention of two is measured so
PRODUCT_LATENCY = 100  # from the last step of a product until threads may read it
SYNC = 30  # a barrier of threads, after the last one to come
ARRIVE = 20  # a barrier in shared memory: a trip there
TURN = 10  # of a loop
ENGINE = 94  # bytes of lines in a cycle that one multiprocessor gets: 208×1648×8912
GATHER = 0.4  # cycles of a warpgroup for 16 bytes: 3×3 convolutions, by slopes from 64 to 256 rows
CHAIN = 33  # cycles of an `mma`, until the next one may add to its result
BYTES_PER_CYCLE = 24  # between DRAM's and the L2's: some of what a block loads another has loaded


def warpgroup_cycles(m: int, n: int, k: int, bits: int, width: int, a_shared: bool) -> float:
    """Of a product by `wgmma` instructions of `width` columns. An instruction multiplies 64 rows,
    and reads its part of B, and of A where that is in shared memory; the slower of both counts."""
    step = 256 // bits  # of k
    products = 64 * width * step / (PRODUCTS_PER_CYCLE * 16 / bits)
    read = (width + 64 * a_shared) * step * bits / 8 / SHARED_BYTES
    return m / 64 * n / width * k / step * max(products, read)


def unit_of(op: Op) -> str:
    return TENSOR if is_matrix(op) else THREADS


def cycles(op: Op, guards: bool = True) -> float:
    """Time of `op` on its unit, what stands in it included; loops of unknown length count once.
    Without `guards`, what bounds indices is free: it holds in most iterations, which do not ask."""
    match op:
        case Gemm():
            m, n, k = shape_of(op)
            if operand_kind(op, op.a) is None:
                return m * n * k / LANES
            return m * n * k / PRODUCTS_PER_CYCLE * op.a.dtype.bits / 16
        case Map():
            points = prod(int(e) if isinstance(e, Const) else 1 for e in op.extents)
            moves = all(buffer.space is Space.FRAGMENT for buffer, _ in touched_within(op))
            return (
                points * max(_weight(op, guards), not moves) / LANES
            )  # moved registers are renamed
        case Reduce():
            points = prod(op.src.static_tile)
            return (points + SHUFFLES * 32) / LANES
        case Copy() | Fill():
            return prod(op.dst.static_tile) / LANES
    each = [
        0.0 if is_rare(body) else sum(cycles(inner, guards) for inner in body)
        for body in bodies(op)
    ]
    return max(each) if isinstance(op, If) else sum(each) * _trips(op)


def load_cycles(tile: Buffer) -> float:
    """From the request of a tile until it is there."""
    return LATENCY + tile.bytes / BYTES_PER_CYCLE


def _trips(op: Op) -> int:
    values = values_of(op) if isinstance(op, For) else None
    return 1 if values is None else len(values)


def _weight(op: Op, guards: bool) -> float:
    """Instructions of a point of a map."""
    match op:
        case Map():
            found = 0.0
        case Store():
            found = _cost(op.value, guards)
        case _:
            found = sum(_cost(e, guards) for e in expressions(op))
    inside = (_weight(each, guards) for body in bodies(op) for each in body)
    return found + sum(inside) * _trips(op)


def _cost(e: Expr, guards: bool) -> float:
    if isinstance(e, Load):
        return 0.0  # registers; indices are constants in the end
    if isinstance(e, Select) and not guards and not _asks(e.cond):
        return max(_cost(e.a, guards), _cost(e.b, guards))
    own = _COSTS.get(type(e), 0)
    return own + sum(_cost(child, guards) for child in e.children)


def _asks(cond: Expr) -> bool:
    """Whether elements of tiles have to tell; one of two that are each enough may do without."""
    match cond:
        case Bin(op="and" | "&", a=a, b=b):
            return _asks(a) or _asks(b)
        case Bin(op="or" | "|", a=a, b=b):
            return _asks(a) and _asks(b)
    return any(x.indices for x in loads(cond))


_COSTS: dict[type[Expr], int] = {Bin: 1, Cmp: 1, Select: 1, Cast: 1, Call: SPECIAL}
