"""Matrices in memory, converted and laid out the way the micro-kernel walks them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from math import prod

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.emit_expr import Size
from tilewright.targets.cpu.emit_nest import NestEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.micro_kernel import Tile
from tilewright.targets.cpu.numbers import Val, item_bytes, type_of

_ROWS = 4  # rows packed at once


@dataclass(frozen=True)
class Matrix:
    """Element (i, j) is at pointer + i·down + j·across."""

    pointer: str
    dtype: DType
    shape: tuple[int, int]
    down: Size
    across: Size

    @property
    def transposed(self) -> Matrix:
        return replace(self, shape=self.shape[::-1], down=self.across, across=self.down)


@dataclass(frozen=True)
class Panels:
    """A k × n matrix whose columns lie together in groups, as wide as the micro-kernel that reads
    them: its rows follow each other in memory, whatever n is."""

    pointer: str
    dtype: DType
    shape: tuple[int, int]


def column_groups(n: int, tile: Tile) -> Iterator[tuple[int, int, Tile]]:
    """(first, last, the micro-kernel's tile): whole tiles, then single vectors, then columns."""
    wide, narrow = n - n % tile.columns, n - n % tile.lanes
    for first, last, block in (
        (0, wide, tile),
        (wide, narrow, replace(tile, vectors=1)),
        (narrow, n, replace(tile, vectors=1, lanes=1)),
    ):
        if first != last:
            yield first, last, block


def bytes_of(shape: tuple[int, int], dtype: DType) -> int:
    return -(-prod(shape) * item_bytes(dtype) // 64) * 64


class PanelEmitter(NestEmitter):
    """Conversions, transpositions and packing, in memory that is free again after the product."""

    _work_bytes = 0

    def work(self, size: int, taken: int) -> str:
        """`size` bytes of panel memory behind the `taken` bytes already in use."""
        self._work_bytes = max(self._work_bytes, taken + size)
        return self.fn.value(f"getelementptr i8, ptr %tw.work, i64 {taken}", "panel")

    def room(self, m: Matrix, dtype: DType, taken: int, like: Matrix | None = None) -> Matrix:
        """Room for `m` as `dtype`, rows contiguous, or columns when those of `like` are."""
        rows, columns = m.shape
        down, across = (columns, 1)
        if like is not None and like.across != 1 and like.down == 1:
            down, across = (1, rows)
        return Matrix(self.work(bytes_of(m.shape, dtype), taken), dtype, m.shape, down, across)

    def at(self, m: Matrix, i: str, j: str) -> str:
        return self.element(m, self.flat((m.down, m.across), (i, j)))

    def zero(self, m: Matrix) -> None:
        lanes = 2 * host().lanes(m.dtype.bits)
        with self.fn.loop("0", str(m.shape[0]), hint="row") as (i, _, _):
            self.along(m.shape[1], lanes, lambda j, n: self.write(
                self.constant(0, m.dtype, n), self.at(m, i, j)))  # fmt: skip

    def along(self, size: int, lanes: int, body: Callable[[str, int], None]) -> None:
        """`body(j, lanes)` over 0 … size-1, vectors first."""
        whole = size - size % lanes
        if whole == lanes:
            body("0", lanes)
        elif whole:
            with self.fn.loop("0", str(whole), str(lanes), hint="column") as (j, _, _):
                body(j, lanes)
        if size - whole:
            with self.fn.loop(str(whole), str(size), hint="column") as (j, _, _):
                body(j, 1)

    def pack(self, source: Matrix, panels: Panels, tile: Tile, tf32: bool = False) -> None:
        """A few rows at a time where rows are contiguous: each is then read from end to end, and
        whole lines of a panel are written at once."""
        k, n = source.shape

        def part(first: str, rows: int, j: str, width: int) -> None:
            piece = replace(source, pointer=self.at(source, first, j), shape=(rows, width))
            goal = Matrix(self.panel(panels, j), panels.dtype, (rows, width), width, 1)
            self.convert_matrix(piece, replace(goal, pointer=self.at(goal, first, "0")), tf32)

        step = min(_ROWS, k) if source.across == 1 else k
        for start, stop, rows in ((0, k - k % step, step), (k - k % step, k, k % step)):
            if start == stop:
                continue
            with self.fn.loop(str(start), str(stop), str(rows), hint="k") as (first, _, _):
                for begin, end, block in column_groups(n, tile):
                    width = block.columns
                    with self.fn.loop(str(begin), str(end), str(width), hint="panel") as (j, _, _):
                        part(first, rows, j, width)

    def panel(self, panels: Panels, j: str) -> str:
        """Where the group that starts with column `j` lies: k elements for each column before."""
        return self.element(panels, self.fn.value(f"mul nsw i64 {j}, {panels.shape[0]}"))

    def convert_matrix(self, source: Matrix, target: Matrix, tf32: bool = False) -> None:
        """target = source, in blocks that are read and written by vectors."""

        def moved(value: Val) -> Val:
            value = self.cast(value, target.dtype)
            if tf32:
                value = Val(self._to_tfloat32(value).ref, value.dtype, value.lanes)
            return value

        def run(i: str, j: str, lanes: int = 1) -> None:
            value = self.read(source.dtype, self.at(source, i, j), lanes)
            self.write(moved(value), self.at(target, i, j))

        if source.across != 1 and source.down == 1 and target.down == 1:
            source, target = source.transposed, target.transposed
        rows, columns = source.shape
        lanes = host().lanes(32)
        if source.across == 1 and target.across == 1:
            few = rows * columns <= _ROWS * 4 * lanes  # a piece of a panel: no loop around it
            with ExitStack() as stack:
                every = [str(r) for r in range(rows)]
                if not few:
                    every = [stack.enter_context(self.fn.loop("0", str(rows), hint="row"))[0]]
                for i in every:
                    self.along(columns, 2 * lanes, partial(run, i))
            return
        # a transposition: square blocks through registers, what is left one by one
        lanes = min(lanes, 8)
        whole_rows, whole_columns = rows - rows % lanes, columns - columns % lanes
        if not (source.down == 1 and target.across == 1 and whole_rows and whole_columns):
            whole_rows = whole_columns = 0
        with (
            self.fn.loop("0", str(whole_columns), str(lanes), hint="column") as (j, _, _),
            self.fn.loop("0", str(whole_rows), str(lanes), hint="row") as (i, _, _),
        ):
            block = []
            for k in range(lanes):
                at = self.at(source, i, self.fn.value(f"add nsw i64 {j}, {k}"))
                block.append(moved(self.read(source.dtype, at, lanes)))
            for k, value in enumerate(self._transpose(block)):
                at = self.at(target, self.fn.value(f"add nsw i64 {i}, {k}"), j)
                self.write(value, at)
        for first, last, left in ((0, whole_rows, whole_columns), (whole_rows, rows, 0)):
            if first == last or left == columns:
                continue
            with (
                self.fn.loop(str(first), str(last), hint="row") as (i, _, _),
                self.fn.loop(str(left), str(columns), hint="column") as (j, _, _),
            ):
                run(i, j)

    def _transpose(self, rows: list[Val]) -> list[Val]:
        """A square of vectors, turned: log2(n) rounds of interleaving."""
        n = len(rows)
        half = n // 2
        while half:
            new = list(rows)
            for i in range(n):
                if i & half:
                    continue
                a, b = rows[i], rows[i + half]
                low = [j if not j & half else n + j - half for j in range(n)]
                high = [j + half if not j & half else n + j for j in range(n)]
                new[i], new[i + half] = self.shuffle(a, b, low), self.shuffle(a, b, high)
            rows = new
            half //= 2
        return rows

    def shuffle(self, a: Val, b: Val, lanes: list[int]) -> Val:
        type_ = type_of(a.dtype, a.lanes)
        mask = ", ".join(f"i32 {i}" for i in lanes)
        text = f"shufflevector {type_} {a.ref}, {type_} {b.ref}, <{len(lanes)} x i32> <{mask}>"
        return Val(self.fn.value(text), a.dtype, len(lanes))
