"""What threads load in pipelined loops, as loads of maps, which `prefetch_loads` makes early.

**Rows of numbers** (`inline_rows`). Scales that belong to rows of a product often go through shared
memory: one map writes them, the next one reads them. Threads then meet twice in every iteration,
and warpgroups that could take turns at the tensor core keep step.

    for k { map i { s[i] = S[i, k] * t[k] }; P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * s[i] } }

    for k { P = A[k]·B[k]; map i, j { C[i, j] += P[i, j] * (S[i, k] * t[k]) } }

The map loads what it needs, a few numbers for each thread, one iteration early. So it is with a
copy that only threads could make (a column of a matrix). What the bulk engine brings stays: it runs
ahead by itself, and no thread meets for it.

A tile goes where it has one dimension, one writer that fills it from tensors which the kernel does
not write, and readers after that in the same iteration which index it by other variables than
their last: a thread has few rows of a map, but many columns.

**Copies** (`map_copies`). No engine moves rows that begin on any element (sizes known at launch,
odd ones). A map that says the same has its loads one iteration early, and its tile several slots
(`multibuffer`), so that threads fill one under the product that reads another.
"""

from __future__ import annotations

from tilewright.ir.analysis.effects import leaves_early, mentioned, touched, written_by
from tilewright.ir.core import *
from tilewright.passes.canonicalize.rules import Facts, expand_op, kernel_pass
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import BULK
from tilewright.passes.reasons import at_line, because

MOST = 4  # loads of a number


@kernel_pass
def inline_rows(at: Facts) -> Kernel:
    """Every kernel without tiles that only carry rows of numbers to maps."""
    return at.kernel if at.target.internal.inline_rows is False else _inlined(at)


def _inlined(at: Facts) -> Kernel:
    kernel = at.kernel
    loops = [op for op in at.ops if isinstance(op, For) and _is_asked(op)]
    if not loops or at.has_roles:
        return kernel
    written = written_by(kernel)
    ahead = Ahead(kernel, at.program, at.target)
    kept = {fill.tile.name for fill in ahead.fills if fill.how == BULK} | ahead.viewed
    for loop in loops:
        for k, op in enumerate(loop.body):
            found = _row(op, written, at.names)
            if found is None or found[0].name in kept or not _is_carried(at, found[0], loop, k):
                continue
            said = f"{found[0].name}, written {at_line(op.loc)}, is loaded where it is needed"
            because(kernel.name, loop, said)
            # loops and statements have changed: look at them again
            return _inlined(at.of(_without(kernel, op, *found)))
    return kernel


def _is_asked(op: For) -> bool:
    return (
        op.kind == "pipelined" and op.stages > 1 and op.order is None and not leaves_early(op.body)
    )


def _row(op: Op, written: set[str], names: set[str]) -> tuple[Buffer, Var, Expr] | None:
    """A tile of one dimension that `op` fills: its element at a variable has this value."""
    match op:
        case Map(vars=(var,), extents=(extent,), body=(Store(tile, (index,), value),)):
            if index is not var:
                return None
        case Copy(reduce=None, atom=None, barrier=None, cache=None):
            tile, src = op.dst.buffer, op.src
            if src.buffer.space is not Space.GLOBAL or not op.dst.is_whole:
                return None
            if tile.rank != 1 or len(src.tile) != 1 or src.cta is not None:
                return None
            var, (extent,) = fresh_var("row", names), src.tile
            value = Load(src.buffer, src.at((var,)), op.loc)
        case _:
            return None
    if tile.space not in (Space.SHARED, Space.FRAGMENT) or tile.rank != 1:
        return None
    if extent is not tile.shape[0] or value.dtype != tile.dtype or tile.layout is not None:
        return None
    found = loads(value)
    fixed = all(x.buffer.space is Space.GLOBAL and x.buffer.name not in written for x in found)
    return (tile, var, value) if fixed and 0 < len(found) <= MOST else None


def _is_carried(at: Facts, tile: Buffer, loop: For, n: int) -> bool:
    """Whether nothing but maps after statement `n` of `loop` has to do with the tile, and they
    only read it, by rows."""
    inside = set(map(id, walk_ops(loop.body)))
    for op in at.ops:
        used = tile in (*read_buffers(op), *written_buffers(op)) and id(op) not in inside
        if used or (isinstance(op, Hint) and op.buffer == tile):
            return False
    first, *users = [k for k, op in enumerate(loop.body) if tile.name in mentioned(op)] or [-1]
    return bool(users) and first == n and all(_reads_rows(loop.body[k], tile) for k in users)


def _reads_rows(op: Op, tile: Buffer) -> bool:
    if not isinstance(op, Map) or len(op.vars) < 2 or op.layout is not None:
        return False
    if touched(op).get(tile.name):
        return False
    found = [x for inner in walk_ops(op) for x in op_loads(inner) if x.buffer == tile]
    rows = set(op.vars[:-1])
    return all(variables(i) and variables(i) <= rows for x in found for i in x.indices)


def _without(kernel: Kernel, writer: Op, tile: Buffer, var: Var, value: Expr) -> Kernel:
    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer == tile:
            return substitute(value, {var: e.indices[0]})
        return None

    def rewrite(op: Op) -> Op | Body | None:
        if op is writer or (isinstance(op, Alloc) and op.buffer == tile):
            return ()
        return map_exprs(op, lambda e: transform(e, node))

    return map_ops(kernel, rewrite)


@kernel_pass
def map_copies(at: Facts) -> Kernel:
    """Copies of tiles that products multiply, and that only threads can make, as maps."""
    if at.has_roles:
        return at.kernel
    alone = Ahead(at.kernel, at.program, at.target).by_threads
    asked: set[int] = set()
    for loop in at.ops:
        if isinstance(loop, For) and loop.kind == "pipelined" and loop.stages > 1:
            products = [op for op in loop.body if isinstance(op, Gemm)]
            factors = {r.buffer for op in products for r in (op.a, op.b)}
            copies = [op for op in loop.body if isinstance(op, Copy) and id(op) in alone]
            asked |= {id(op) for op in copies if op.dst.buffer in factors and _is_plain(op)}
    return map_ops(at.kernel, lambda op: expand_op(op, at.names) if id(op) in asked else None)


def _is_plain(op: Copy) -> bool:
    """Whether the copy fills a whole tile, which lies as it likes, element by element."""
    tile = op.dst.buffer
    if op.cache is not None or op.prefer is not None or op.src.cta is not None:
        return False
    if tile.layout is not None or tile.space is not Space.SHARED or not tile.is_static:
        return False
    return op.dst.is_whole and op.src.tile == op.dst.tile != ()
