"""Send what matrix instructions leave to memory by way of shared memory.

An accumulator's rows lie in quarters of warps, eight bytes of 16-bit results each: stored from
there, half of every sector goes in vain. Staged, whole tiles are written by the bulk engine, or by
threads in rows.
"""

from __future__ import annotations

from math import prod

from tilewright.ir import scope
from tilewright.ir.bounds import Ranges
from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.expr import Const, const
from tilewright.ir.op import Alloc, Body, Copy, For, Gemm, Kernel, Op, Program, Role, walk_ops
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.bulk_rules import bulk_eligible

LEAST = 64 * 64  # elements of a tile that is worth the trip
ROOM = 4096  # bytes left for barriers, scratch and alignment


def stage_stores(program: Program, target: Target) -> Program:
    """`program` with staging tiles in front of the stores of accumulators, where there is room."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(isinstance(op, Role) for op in walk_ops(kernel)):
            return kernel
        ranges = {id(op): r for op, r in scope.walk_ranges(kernel, program.dims)}
        spread = _by_matrix(kernel)
        left = target.chip.shared - ROOM - _shared_bytes(kernel)

        def rule(op: Op) -> Op | Body | None:
            nonlocal left
            if not isinstance(op, Copy) or op.src.buffer.name not in spread:
                return None
            tile = _staging(op, ranges.get(id(op), Ranges()), names)
            if tile is None or tile.bytes > left:
                return None
            left -= tile.bytes
            fill = Copy(op.src, whole(tile), loc=op.loc)
            return Alloc(tile, loc=op.loc), fill, rebuild(op, src=whole(tile))

        return rebuild(kernel, body=map_body(kernel.body, rule))

    return map_kernels(program, one)


def _by_matrix(kernel: Kernel) -> set[str]:
    """Fragments that matrix instructions prescribe."""
    return {
        op.c.buffer.name
        for op in walk_ops(kernel)
        if isinstance(op, Gemm) and op.atom in ("mma", "wgmma")
    }


def _staging(op: Copy, ranges: Ranges, names: set[str]) -> Buffer | None:
    if op.atom is not None or op.reduce is not None or op.dst.buffer.space is not Space.GLOBAL:
        return None
    if op.dst.dtype.bits != 16 or not all(isinstance(e, Const) for e in op.src.tile):
        return None
    shape = op.src.static_tile
    if len(shape) != 2 or prod(shape) < LEAST:
        return None
    made = fresh_name(f"{op.src.buffer.name}_stage", set(names))
    tile = Buffer(made, tuple(const(s) for s in shape), op.dst.dtype, Space.SHARED)
    if not bulk_eligible(Copy(whole(tile), op.dst), ranges):
        return None
    names.add(made)
    return tile


def _shared_bytes(kernel: Kernel) -> int:
    """Shared memory that the kernel will take, rings of pipelined loops included."""
    stages: dict[str, int] = {}
    for op in walk_ops(kernel):
        if isinstance(op, For) and op.kind == "pipelined":
            for inner in walk_ops(op.body):
                if isinstance(inner, Copy) and inner.dst.buffer.space is Space.SHARED:
                    stages[inner.dst.buffer.name] = max(1, op.stages)
    allocs = [op.buffer for op in walk_ops(kernel) if isinstance(op, Alloc)]
    return sum(b.bytes * stages.get(b.name, 1) for b in allocs if b.space is Space.SHARED)
