"""Copies of pipelined loops that only threads can make, as the nests that they are.

Rows that begin on any element (sizes known at launch, odd ones) no engine moves. A nest that says
the same has its loads one iteration early (`prefetch_loads`), and its tile several slots
(`multibuffer`), so that threads fill one under the product that reads another.
"""

from __future__ import annotations

from tilewright.ir.buffer import Space, long_dims
from tilewright.ir.expr import Expr, Load, Var, cast, const
from tilewright.ir.op import Copy, For, Gemm, Kernel, Map, Op, Program, Role, Store, walk_ops
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.overlap.prefetchable import Ahead


def map_copies(program: Program, target: Target) -> Program:
    """`program` with such copies of tiles that products multiply as nests."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        ops = list(walk_ops(kernel))
        if any(isinstance(op, Role) for op in ops):
            return kernel
        asked = {
            id(each): op
            for op in ops
            if isinstance(op, For) and op.kind == "pipelined" and op.stages > 1
            for each in op.body
        }
        alone = Ahead(kernel, program, target).by_threads

        def rule(op: Op) -> Op | None:
            loop = asked.get(id(op)) if id(op) in alone else None
            return _nest(op, names) if loop is not None and _is_multiplied(op, loop) else None

        return rebuild(kernel, body=map_body(kernel.body, rule))

    return map_kernels(program, one)


def _is_multiplied(op: Op, loop: For) -> bool:
    assert isinstance(op, Copy)
    products = [each for each in loop.body if isinstance(each, Gemm)]
    return any(r.buffer == op.dst.buffer for each in products for r in (each.a, each.b))


def _nest(op: Op, names: set[str]) -> Op | None:
    """The copy, element by element."""
    assert isinstance(op, Copy)
    tile = op.dst.buffer
    if op.cache is not None or op.prefer is not None or op.src.cta is not None:
        return None
    if tile.layout is not None or tile.space is not Space.SHARED or not tile.is_static:
        return None
    long, from_ = long_dims(tile.shape), long_dims(op.src.extents)
    extents = tuple(tile.shape[d] for d in long)
    if not long or [op.src.extents[d] for d in from_] != list(extents):
        return None
    own = tuple(Var(fresh_name("c", names)) for _ in long)
    there = dict(zip(from_, own, strict=True))
    here = dict(zip(long, own, strict=True))
    places = tuple(s + there[d] if d in there else s for d, s in enumerate(op.src.starts))
    value = cast(Load(op.src.buffer, places, op.loc), tile.dtype)
    indices: tuple[Expr, ...] = tuple(here.get(d, const(0)) for d in range(tile.rank))
    return Map(own, extents, (Store(tile, indices, value, loc=op.loc),), loc=op.loc)
