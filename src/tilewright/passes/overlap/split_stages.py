"""Tiles of products in boxes along K: a product begins when its first box is there.

    copy A -> a[:, 0:128]; copy B -> b[0:128, :]; gemm a, b -> c

becomes two copies, tiles and products each. Rings, waits and releases follow from what reads what,
as everywhere: each box has an event of its own, is waited for alone, and is free for the next
iteration while the rest is still multiplied. Two slots of two boxes then hide what takes three
whole ones. The sums are made in the same order, so no bit changes.

A tile is cut where it is loaded whole by one copy of a pipelined loop and only one product of that
loop reads it, whole. What else that multiplies (a tile loaded before the loop, registers) is read
in parts. A box is as wide as one of the widest swizzles, 128 or 64 bytes.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer, Region, Space, along, whole
from tilewright.ir.expr import FALSE, Const, const
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Gemm,
    Hint,
    Kernel,
    Let,
    Op,
    Program,
    View,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target
from tilewright.passes.layout.matrix_tiles import shape_of
from tilewright.passes.overlap.roles import placed, why_not_worth
from tilewright.passes.reasons import because

BOXES = (128, 64)  # bytes of a box along K: spans of the widest swizzles
# Boxes of a ring that hide a load. On an H200, tiles of 128×128, 4096³, TFLOP/s: three slots of 64
# columns 527, in boxes of 32 664; two of 128 columns 372, in boxes of 64 725; six of 64 772
ENOUGH = 6
FEW = 3  # slots


def split_stages(program: Program, target: Target) -> Program:
    """`program` with the tiles of products in boxes, where that is worth it or asked for."""
    names = program_names(program)
    told = target.schedule.split_stages
    if told is False or Feature.BULK_COPY not in target.features:
        return program

    def one(kernel: Kernel) -> Kernel:
        if placed(kernel) or (told == "auto" and _alike(kernel, target)):
            return kernel
        found = _Boxes(kernel, names, told is True)
        return rebuild(kernel, body=map_body(kernel.body, found.rule)) if found.tiles else kernel

    return map_kernels(program, one)


def _alike(kernel: Kernel, target: Target) -> bool:
    """Whether all threads will fill the rings: what they gain they lose by waiting more often."""
    told = target.schedule.roles
    return told is False or (told == "auto" and why_not_worth(kernel) is not None)


class _Boxes:
    """`tiles`: the boxes of each tile that is cut; `products`: into how many parts, by id."""

    def __init__(self, kernel: Kernel, names: set[str], asked: bool) -> None:
        self.kernel = kernel
        self.tiles: dict[str, list[Buffer]] = {}
        self.products: dict[int, int] = {}
        for loop in walk_ops(kernel):
            if isinstance(loop, For) and loop.kind == "pipelined" and loop.stages > 0:
                self.cut(loop, names, asked)

    def cut(self, loop: For, names: set[str], asked: bool) -> None:
        products = [op for op in loop.body if isinstance(op, Gemm)]
        if not asked and (loop.stages >= ENOUGH or not _only_multiplies(loop)):
            return
        loaded = self.loaded(loop)
        for product in products:
            cuttable = {r.buffer: dim for r, dim in _operands(product) if r.buffer.name in loaded}
            count = _count(product, loop.stages, asked)
            if not cuttable or count < 2 or id(product) in self.products:
                continue
            if any(self.reads(loop, tile) != [(product, dim)] for tile, dim in cuttable.items()):
                continue
            self.products[id(product)] = count
            for tile, dim in cuttable.items():
                shape = [*tile.shape]
                shape[dim] = const(int(shape[dim]) // count)
                self.tiles[tile.name] = [
                    replace(tile, name=fresh_name(f"{tile.name}_{k}", names), shape=tuple(shape))
                    for k in range(count)
                ]
            because(self.kernel.name, loop, f"{count} boxes of a tile, each with its own event")

    def loaded(self, loop: For) -> set[str]:
        """Tiles that one copy of the loop's own body loads whole, and nobody touches outside."""
        tiles: set[str] = set()
        for op in loop.body:
            if not isinstance(op, Copy) or op.atom is not None or op.prefer is not None:
                continue
            tile = op.dst.buffer
            plain = op.src.buffer.space is Space.GLOBAL and tile.space is Space.SHARED
            if plain and op.dst.is_whole and tile.is_static and tile.rank == 2:
                tiles.add(tile.name)
        inside = {id(op) for op in walk_ops(loop.body)}
        for op in walk_ops(self.kernel):
            named = {b.name for b in (*read_buffers(op), *written_buffers(op))}
            if isinstance(op, (View, Hint)) and op.buffer is not None:
                named |= {op.buffer.name, *([op.source.name] if isinstance(op, View) else [])}
                tiles -= named
            elif isinstance(op, Alloc):
                tiles -= {op.buffer.name} if op.buffer.layout is not None else set()
            elif id(op) not in inside and not isinstance(op, For):
                tiles -= named
        for name in list(tiles):
            writers = [op for op in walk_ops(loop.body) if _writes(op, name)]
            if len(writers) != 1:
                tiles.discard(name)
        return tiles

    def reads(self, loop: For, tile: Buffer) -> list[tuple[Op, int]]:
        """What reads a tile, and along which dimension products of all of it do; -1 for others."""
        found: list[tuple[Op, int]] = []
        for op in walk_ops(loop.body):
            if tile not in read_buffers(op):
                continue
            operands = _operands(op) if isinstance(op, Gemm) else ()
            dims = [d for r, d in operands if r.buffer is tile and r.is_whole]
            found += [(op, d) for d in dims] if dims and op in loop.body else [(op, -1)]
        return found

    def rule(self, op: Op) -> Op | Body | None:
        if isinstance(op, Alloc) and op.buffer.name in self.tiles:
            return tuple(rebuild(op, buffer=box) for box in self.tiles[op.buffer.name])
        if isinstance(op, Copy) and op.dst.buffer.name in self.tiles:
            return self.copies(op)
        if id(op) in self.products:
            assert isinstance(op, Gemm)
            return self.parts(op, self.products[id(op)])
        return None

    def copies(self, op: Copy) -> Body:
        boxes = self.tiles[op.dst.buffer.name]
        sizes = [int(e) for e in boxes[0].shape]
        dim = next(d for d, e in enumerate(op.dst.buffer.shape) if int(e) != sizes[d])
        return tuple(
            rebuild(op, src=along(op.src, dim, const(k * sizes[dim]), sizes[dim]), dst=whole(box))
            for k, box in enumerate(boxes)
        )

    def parts(self, op: Gemm, count: int) -> Body:
        step = shape_of(op)[2] // count

        def operand(region: Region, dim: int, k: int) -> Region:
            boxes = self.tiles.get(region.buffer.name)
            return along(region, dim, const(k * step), step) if boxes is None else whole(boxes[k])

        (a, a_dim), (b, b_dim) = _operands(op)
        return tuple(
            rebuild(
                op,
                a=operand(a, a_dim, k),
                b=operand(b, b_dim, k),
                clear=FALSE if k else op.clear,
            )
            for k in range(count)
        )


def _only_multiplies(loop: For) -> bool:
    """Whether a loop loads for one product and does nothing else. What threads compute runs under
    the product before, which they would wait for half done."""
    work = [op for op in loop.body if not isinstance(op, (Let, Hint, Alloc))]
    loads = [op for op in work if isinstance(op, Copy) and op.src.buffer.space is Space.GLOBAL]
    return len(work) == len(loads) + 1 and any(isinstance(op, Gemm) for op in work)


def _operands(op: Gemm) -> tuple[tuple[Region, int], tuple[Region, int]]:
    """What a product multiplies, and which dimension of it K is."""
    return (op.a, 0 if op.transpose_a else 1), (op.b, 1 if op.transpose_b else 0)


def _count(op: Gemm, stages: int, asked: bool) -> int:
    """Boxes of a product's K, no more than it takes; 1 where it is not cut."""
    if op.meta is not None or op.atom is not None or not (_is_matrix(op.a) and _is_matrix(op.b)):
        return 1
    k, bits = shape_of(op)[2], max(op.a.dtype.bits, op.b.dtype.bits)
    # rows of 64 bytes are slow to load: worth it for one operand, not for both
    narrow = asked or (stages <= FEW and sum(dim for _, dim in _operands(op)) < 2)
    sizes = BOXES if narrow else BOXES[:1]
    counts = [k * bits // (8 * size) for size in sizes if k * bits % (8 * size) == 0]
    enough = [n for n in counts if n > 1 and stages * n >= ENOUGH]
    return enough[0] if enough else max(counts, default=1)


def _is_matrix(region: Region) -> bool:
    return region.buffer.rank == 2 and all(
        isinstance(e, Const) and int(e) > 1 for e in region.extents
    )


def _writes(op: Op, name: str) -> bool:
    return name in {b.name for b in written_buffers(op)}
