"""Products of tiles: which operands are packed, and the loops around the micro-kernel.

An operand is read where it lies when it is of the accumulator's type and its elements come in an
order the micro-kernel can load; otherwise it is converted, transposed or packed first. Columns of
b are packed into panels also where that costs little and b is too large for the first-level cache:
rows of a wide tile lie a power of two apart and would push each other out of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from math import prod

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import DTYPES, FLOAT32, DType
from tilewright.ir.expr import Const
from tilewright.ir.op import Gemm
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Strided
from tilewright.targets.cpu.emit_map import MapEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.micro_kernel import (
    MicroKernel,
    Tile,
    column_groups,
    register_tile,
    row_blocks,
)
from tilewright.targets.cpu.numbers import *

_ROWS = 4  # rows packed at once
SPREAD = 16 << 10  # bytes that a factor, or a stripe of it, may spread over and still be in cache
WORTH = 32  # columns of b from which on packing a pays
ROWS_WORTH = 8  # rows of a from which on packing b does: 10×1813×1646 took 4.2 ms, packed 1.7


class Panels(Strided):
    """A k × n matrix whose columns lie together in groups, as wide as the micro-kernel that reads
    them: its rows follow each other in memory, whatever n is."""


def _pieces(size: int, step: int) -> Iterator[tuple[int, int, int]]:
    """(first, last, step) over 0 … size: whole steps, then what is left."""
    whole = size - size % step
    yield from ((a, b, n) for a, b, n in ((0, whole, step), (whole, size, size % step)) if a != b)


def _transposed(m: Strided) -> Strided:
    return m.kept((1, 0))


class GemmEmitter(MapEmitter):
    """`Gemm`, with conversions and packing in memory that is free again after the product."""

    _work_bytes = 0
    _taken = 0  # of it, by the product that is being emitted

    def tile(self, region: Region) -> Strided:
        """A region that is read or written as a whole."""
        mem = self.mems[region.buffer.name]
        fixed = all(isinstance(e, Const) for e in region.extents)
        offset = self.corner(mem, region) if fixed else None
        if offset is None or mem.lanes > 1 or region.cta is not None:
            raise CompileError(
                f"{region.buffer.name} cannot be an operand of a tile operation here",
                expected="constant extents, inside the buffer",
                got=str(region),
                fix="copy the tile to shared memory or a fragment first",
            )
        sizes = tuple(int(e) for e in region.extents)
        return Strided(self.element(mem, offset), mem.dtype, sizes, mem.strides)

    def gemm(self, op: Gemm) -> None:
        if op.meta is not None:
            raise CompileError("the CPU target has no sparse products", loc=op.loc)
        self._taken = 0
        a, b, c = (self._matrix(r) for r in (op.a, op.b, op.c))
        a = _transposed(a) if op.transpose_a else a
        b = _transposed(b) if op.transpose_b else b
        c = _transposed(c) if op.transpose_c else c
        goal = c
        compute = FLOAT32
        if c.dtype.is_int or c.dtype.bits == 64:
            compute = DTYPES[f"{c.dtype.kind}{max(32, c.dtype.bits)}"]
        tile = register_tile(compute, a.shape[0], b.shape[1])
        tf32 = op.precision == "tf32" or "tfloat32" in (a.dtype.name, b.dtype.name)
        if c.dtype != compute or c.strides[1] != 1:
            c = self._room(c, compute)
        fresh = isinstance(op.clear, Const) and bool(op.clear.value)
        if not isinstance(op.clear, Const):
            start = c

            def keep() -> None:
                if start is not goal:
                    self.convert_matrix(goal, start)

            clear = nonzero(self.scalar(op.clear))
            self.fn.choose(clear.ref, lambda: self._zero(start), keep)
        elif c is not goal and not fresh:
            self.convert_matrix(goal, c)
        columns = b
        often = a.shape[0] >= ROWS_WORTH
        if b.dtype != compute or tf32 or b.strides[1] != 1 or (often and self._scattered(b)):
            room = self._room(b, compute)
            columns = Panels(room.pointer, compute, b.shape, ())
            self._pack(b, columns, tile, tf32)
        stripe = None
        part = replace(a, shape=(min(tile.rows, a.shape[0]), a.shape[1]))
        if (
            a.dtype != compute
            or tf32
            or 1 not in a.strides
            or (
                b.shape[1] >= WORTH
                and self._scattered(part if a.strides[1] == 1 else _transposed(part))
            )
        ):
            stripe = self._room(part, compute, by_columns=a.strides[1] != 1 and a.strides[0] == 1)
        self._multiply(a, stripe, columns, c, tile, fresh, tf32)
        if c is not goal:
            self.convert_matrix(c, goal)

    def _scattered(self, m: Strided) -> bool:
        """Its rows lie so far apart that packing pays when it is used often."""
        down = m.strides[0]
        return isinstance(down, str) or m.shape[0] * down * item_bytes(m.dtype) > SPREAD

    def _matrix(self, region: Region) -> Strided:
        """The region as a matrix: leading unit extents dropped, or all of them."""
        found = self.tile(region)
        dims = [len(found.shape) - 2, len(found.shape) - 1]
        if any(n != 1 for n in found.shape[:-2]):
            dims = [i for i, n in enumerate(found.shape) if n != 1]
        return found.kept(dims)

    # ── the product ──────────────────────────────────────────────────────────────────────────

    def _multiply(
        self,
        a: Strided,
        stripe: Strided | None,
        b: Strided,
        c: Strided,
        tile: Tile,
        fresh: bool,
        tf32: bool,
    ) -> None:
        """Blocks of rows outside, so that a stripe of a stays in the first-level cache while b,
        which fits in the second, goes by."""
        (m, k), n, packed = a.shape, b.shape[1], isinstance(b, Panels)
        for i0, i1, height in row_blocks(m, tile):
            with self.fn.loop(i0, i1, height, hint="row") as i:
                rows = replace(a, pointer=self.place(a, (i, "0")), shape=(height, k))
                if stripe is not None:
                    source, rows = rows, replace(stripe, shape=(height, k))
                    self.convert_matrix(source, rows, tf32)
                for j0, j1, block in column_groups(n, tile):
                    down = block.columns if packed else b.strides[0]
                    strides = (*rows.strides, down, c.strides[0])
                    kernel = MicroKernel(c.dtype, replace(block, rows=height), strides, k, fresh)
                    kernel.emit(self.module)
                    with self.fn.loop(j0, j1, block.columns, hint="col") as j:
                        there = (
                            self._panel(b, j) if isinstance(b, Panels) else self.place(b, ("0", j))
                        )
                        pointers = (rows.pointer, there, self.place(c, (i, j)))
                        self.fn.call(
                            "void",
                            kernel.name,
                            *(("ptr", pointer) for pointer in pointers),
                            *(("i64", str(number)) for number in (*strides, k)),
                        )

    # ── conversions ──────────────────────────────────────────────────────────────────────────

    def _room(self, m: Strided, dtype: DType, by_columns: bool = False) -> Strided:
        """Room for `m` as `dtype`, rows contiguous, or columns."""
        start = self._taken
        self._taken += -(-prod(m.shape) * item_bytes(dtype) // 64) * 64
        self._work_bytes = max(self._work_bytes, self._taken)
        place = self.fn.value(f"getelementptr i8, ptr %tw.work, i64 {start}", "panel")
        return Strided(place, dtype, m.shape, (1, m.shape[0]) if by_columns else (m.shape[1], 1))

    def _zero(self, m: Strided) -> None:
        lanes = 2 * host().lanes(m.dtype.bits)
        with self.fn.loop(0, m.shape[0], hint="row") as i:
            self.along(m.shape[1], lanes, lambda j, n: self.write(
                constant(self.fn, 0, m.dtype, n), self.place(m, (i, j))))  # fmt: skip

    def along(self, size: int, lanes: int, body: Callable[[str, int], None]) -> None:
        """`body(j, lanes)` over 0 … size-1, vectors first."""
        whole = size - size % lanes
        if whole == lanes:
            body("0", lanes)
        elif whole:
            with self.fn.loop(0, whole, lanes, hint="column") as j:
                body(j, lanes)
        if size - whole:
            with self.fn.loop(whole, size, hint="column") as j:
                body(j, 1)

    def _pack(self, source: Strided, panels: Strided, tile: Tile, tf32: bool) -> None:
        """A few rows at a time where rows are contiguous: each is then read from end to end, and
        whole lines of a panel are written at once."""
        k, n = source.shape

        def part(first: str, rows: int, j: str, width: int) -> None:
            piece = replace(source, pointer=self.place(source, (first, j)), shape=(rows, width))
            goal = Strided(self._panel(panels, j), panels.dtype, (rows, width), (width, 1))
            goal = replace(goal, pointer=self.place(goal, (first, "0")))
            self.convert_matrix(piece, goal, tf32)

        step = min(_ROWS, k) if source.strides[1] == 1 else k
        for start, stop, rows in _pieces(k, step):
            with self.fn.loop(start, stop, rows, hint="k") as first:
                for begin, end, block in column_groups(n, tile):
                    with self.fn.loop(begin, end, block.columns, hint="panel") as j:
                        part(first, rows, j, block.columns)

    def _panel(self, panels: Strided, j: str) -> str:
        """Where the group that starts with column `j` lies: k elements for each column before."""
        return self.element(panels, self.fn.value(f"mul nsw i64 {j}, {panels.shape[0]}"))

    def convert_matrix(self, source: Strided, target: Strided, tf32: bool = False) -> None:
        """target = source, in blocks that are read and written by vectors."""

        def moved(i: str, j: str, lanes: int) -> Val:
            value = self.read(source.dtype, self.place(source, (i, j)), lanes)
            value = cast(value, target.dtype)
            return replace(to_tfloat32(value), dtype=value.dtype) if tf32 else value

        def run(i: str, j: str, lanes: int = 1) -> None:
            value = moved(i, j, lanes)
            self.write(value, self.place(target, (i, j)))

        if source.strides[1] != 1 and source.strides[0] == 1 and target.strides[0] == 1:
            source, target = _transposed(source), _transposed(target)
        rows, columns = source.shape
        lanes = host().lanes(32)
        if source.strides[1] == 1 and target.strides[1] == 1:
            few = rows * columns <= _ROWS * 4 * lanes  # a piece of a panel: no loop around it
            with ExitStack() as stack:
                every = [str(r) for r in range(rows)]
                if not few:
                    every = [stack.enter_context(self.fn.loop(0, rows, hint="row"))]
                for i in every:
                    self.along(columns, 2 * lanes, partial(run, i))
            return
        # a transposition: square blocks through registers, what is left one by one
        lanes = min(lanes, 8)
        whole_rows, whole_columns = rows - rows % lanes, columns - columns % lanes
        if not (source.strides[0] == target.strides[1] == 1 and whole_rows and whole_columns):
            whole_rows = whole_columns = 0
        with (
            self.fn.loop(0, whole_columns, lanes, hint="column") as j,
            self.fn.loop(0, whole_rows, lanes, hint="row") as i,
        ):
            block = [moved(i, self.fn.value(f"add nsw i64 {j}, {k}"), lanes) for k in range(lanes)]
            for k, value in enumerate(self._transpose(block)):
                self.write(value, self.place(target, (self.fn.value(f"add nsw i64 {i}, {k}"), j)))
        for first, last, left in ((0, whole_rows, whole_columns), (whole_rows, rows, 0)):
            if first != last and left != columns:
                with (
                    self.fn.loop(first, last, hint="row") as i,
                    self.fn.loop(left, columns, hint="column") as j,
                ):
                    run(i, j)

    def _transpose(self, rows: list[Val]) -> list[Val]:
        """A square of vectors, turned: log2(n) rounds of interleaving."""
        n = len(rows)
        half = n // 2
        while half:
            low = [j if not j & half else n + j - half for j in range(n)]
            high = [j + half if not j & half else n + j for j in range(n)]
            new = list(rows)
            for i in (i for i in range(n) if not i & half):
                a, b = rows[i], rows[i + half]
                new[i], new[i + half] = shuffle(a, b, low), shuffle(a, b, high)
            rows = new
            half //= 2
        return rows
