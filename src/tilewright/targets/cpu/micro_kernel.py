"""The inner loop of a product: a block of c held in registers over all of k.

One function per shape; constant strides and k are part of its name, so that addresses fold and
all products of a module share it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.llvm_text import Function, Module, Size
from tilewright.targets.cpu.numbers import *

_LATENCY = 4  # cycles until a sum can be added to


@dataclass(frozen=True)
class Tile:
    """Registers of the micro-kernel: rows × vectors accumulators of `lanes`; of the last vector's,
    `unused` are none of the product's."""

    rows: int
    vectors: int
    lanes: int
    unused: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes - self.unused


def register_tile(dtype: DType, m: int, n: int) -> Tile:
    """The block of accumulators with which a product of m rows and n columns takes the least time:
    all but those that leave registers for the operands."""
    lanes = host().lanes(dtype.bits)
    tiles = [Tile(_most_rows(vectors), vectors, lanes) for vectors in (2, 3, 1, 4)]
    return min(tiles, key=lambda tile: cycles(tile, m, n))


def _most_rows(vectors: int) -> int:
    """With vectors of b, and with NEON of a (4 values of k each); an eighth is left for the rest,
    or LLVM keeps accumulators in memory."""
    h = host()
    return (h.vector_registers * 7 // 8 - vectors) // (vectors + h.lane_fma)


def cycles(tile: Tile, m: int, n: int) -> float:
    """For one value of k, on two units that multiply and two that load."""
    blocks = [(t.rows, times) for t, times in _heights(tile, m)]
    groups = [(t.vectors, (last - first) // t.columns) for first, last, t in column_groups(n, tile)]
    return sum(
        many * times * max(rows * vectors / 2, (rows + vectors) / 2, _LATENCY)
        for rows, many in blocks
        for vectors, times in groups
    )


def _heights(tile: Tile, m: int) -> list[tuple[Tile, int]]:
    return [
        (replace(tile, rows=rows), (last - first) // rows)
        for first, last, rows in row_blocks(m, tile)
    ]


def row_blocks(m: int, tile: Tile) -> Iterator[tuple[int, int, int]]:
    """(first, last, rows): blocks of rows whose heights differ by one at most.

    >>> list(row_blocks(27, Tile(12, 2, 4))), list(row_blocks(13, Tile(12, 2, 4)))
    ([(0, 27, 9)], [(0, 7, 7), (7, 13, 6)])
    """
    count = -(-m // tile.rows)
    high, more = -(-m // max(1, count)), m % max(1, count) or count
    for first, last, rows in ((0, more * high, high), (more * high, m, high - 1)):
        if first != last:
            yield first, last, rows


def column_groups(n: int, tile: Tile) -> Iterator[tuple[int, int, Tile]]:
    """(first, last, the micro-kernel's tile): whole tiles, then what is left.

    >>> [(first, last, block.columns) for first, last, block in column_groups(31, Tile(8, 2, 4))]
    [(0, 24, 8), (24, 31, 7)]
    """
    first = n - n % tile.columns
    if first:
        yield 0, first, tile
    if rest := n - first:
        vectors = -(-rest // tile.lanes)
        yield first, n, replace(tile, vectors=vectors, unused=vectors * tile.lanes - rest)


class MicroKernel:
    """c[rows, columns] += a[rows, k] · b[k, columns] for one block of registers; c is not read
    where it starts `fresh`. `strides`: of a's rows and columns, of b's rows, of c's rows."""

    def __init__(
        self, dtype: DType, tile: Tile, strides: tuple[Size, ...], k: int, fresh: bool
    ) -> None:
        self.dtype = dtype
        self.tile = tile
        self.k = k
        self.fresh = fresh
        down, across = strides[:2]
        # a vector of a, whose lanes are then taken one by one, lies along its columns or its rows
        self.along = "k" if across == 1 else "m" if down == 1 else "x"
        if not host().lane_fma or tile.lanes == 1:
            self.along = "x"
        names = ("%am", "%ak", "%bk", "%cm")
        self.am, self.ak, self.bk, self.cm = (
            str(s) if isinstance(s, int) else n for s, n in zip(strides, names, strict=True)
        )
        shape = f"{tile.rows}x{tile.vectors}x{tile.lanes}.{tile.unused}"
        known = [str(s) if isinstance(s, int) else "d" for s in strides]
        what = ["set" if fresh else "add", dtype.name, shape, self.along, *known, str(k)]
        self.name = ".".join(["tilewright.gemm", *what])

    def emit(self, module: Module) -> None:
        """Once in a module."""
        if self.name in module.functions:
            return
        arguments = "ptr %a, ptr %b, ptr noalias %c, i64 %am, i64 %ak, i64 %bk, i64 %cm, i64 %k"
        signature = f"internal void @{self.name}({arguments})"
        fn = self.fn = Function(module, signature, "noinline nounwind")
        tile = self.tile
        slots = {}
        for r in range(tile.rows):
            row = self._offset("%c", r, self.cm)
            for v in range(tile.vectors):
                slot = slots[r, v] = fn.alloca(type_of(self.dtype, tile.lanes), f"acc{r}_{v}")
                if self.fresh:
                    old = constant(fn, 0, self.dtype, tile.lanes)
                else:
                    old = self._vector(row, v)
                fn.line(f"store {old}, ptr {slot}")
        block = self._unroll()
        whole = self.k - self.k % block
        if whole:
            with fn.loop(0, whole, block, hint="k") as at:
                self._steps(at, block, slots)
        if self.k - whole:
            with fn.loop(whole, self.k, hint="k") as at:
                self._steps(at, 1, slots)
        for r in range(tile.rows):
            row = self._offset("%c", r, self.cm)
            for v in range(tile.vectors):
                self._write(self._slot(slots[r, v]), row, v)
        fn.finish()

    def _unroll(self) -> int:
        if self.along == "k":
            return host().lanes(self.dtype.bits)
        return 2 if self.tile.rows * self.tile.vectors > 8 else 4

    def _steps(self, at: str, count: int, slots: dict[tuple[int, int], str]) -> None:
        """`count` values of k from `at` on."""
        fn, tile = self.fn, self.tile
        column = self._offset("%a", at, self.ak)
        vectors: list[Val] = []
        if self.along == "k" and count > 1:
            vectors = [
                self._load(self._offset(column, r, self.am), count) for r in range(tile.rows)
            ]
        total = {key: self._slot(slot) for key, slot in slots.items()}
        for step in range(count):
            k = fn.value(f"add nsw i64 {at}, {step}") if step else at
            row = self._offset("%b", k, self.bk)
            b = [self._vector(row, v) for v in range(tile.vectors)]
            here = self._offset("%a", k, self.ak)
            across = self._load(here, tile.rows) if self.along == "m" else None
            for r in range(tile.rows):
                if vectors:
                    a = self._broadcast(vectors[r], step)
                elif across is not None:
                    a = self._broadcast(across, r)
                else:
                    a = splat(self._load(self._offset(here, r, self.am), 1), tile.lanes)
                for v in range(tile.vectors):
                    old = total[r, v]
                    total[r, v] = fma(a, b[v], old) if self.dtype.is_float else a * b[v] + old
        for key, slot in slots.items():
            fn.line(f"store {total[key]}, ptr {slot}")

    def _broadcast(self, a: Val, lane: int) -> Val:
        """One lane in every lane of an accumulator."""
        if a.lanes == 1:
            return splat(a, self.tile.lanes)
        return shuffle(a, replace(a, ref="poison"), [lane] * self.tile.lanes)

    def _slot(self, slot: str) -> Val:
        type_ = type_of(self.dtype, self.tile.lanes)
        return Val(self.fn, self.fn.value(f"load {type_}, ptr {slot}"), self.dtype, self.tile.lanes)

    def _load(self, pointer: str, lanes: int) -> Val:
        type_ = type_of(self.dtype, lanes)
        text = f"load {type_}, ptr {pointer}, align {item_bytes(self.dtype)}"
        return Val(self.fn, self.fn.value(text), self.dtype, lanes)

    def _vector(self, row: str, v: int) -> Val:
        """Of a row of b or c; what is not the product's is not touched."""
        lanes = self.tile.lanes
        place = self._offset(row, v * lanes)
        if not (mask := self._mask(v)):
            return self._load(place, lanes)
        zero = constant(self.fn, 0, self.dtype, lanes)
        name, type_ = f"llvm.masked.load.{self._kind}.p0", zero.type
        align = ("i32", str(item_bytes(self.dtype)))
        ref = self.fn.intrinsic(name, type_, ("ptr", place), align, mask, (type_, zero.ref))
        return Val(self.fn, ref, self.dtype, lanes)

    def _write(self, value: Val, row: str, v: int) -> None:
        place, align = self._offset(row, v * self.tile.lanes), item_bytes(self.dtype)
        if not (mask := self._mask(v)):
            self.fn.line(f"store {value}, ptr {place}, align {align}")
            return
        name, sides = (
            f"llvm.masked.store.{self._kind}.p0",
            ((value.type, value.ref), ("ptr", place)),
        )
        self.fn.intrinsic(name, "void", *sides, ("i32", str(align)), mask)

    @property
    def _kind(self) -> str:
        return f"v{self.tile.lanes}{'f' if self.dtype.is_float else 'i'}{self.dtype.bits}"

    def _mask(self, v: int) -> tuple[str, str] | None:
        """The lanes of a vector that are the product's, where not all are."""
        tile = self.tile
        if not tile.unused or v < tile.vectors - 1 or tile.lanes == 1:
            return None
        lanes = (f"i1 {str(n < tile.lanes - tile.unused).lower()}" for n in range(tile.lanes))
        return f"<{tile.lanes} x i1>", f"<{', '.join(lanes)}>"

    def _offset(self, pointer: str, index: Size, stride: str = "1") -> str:
        if index in (0, "0"):
            return pointer
        scaled = index if stride == "1" else self.fn.value(f"mul nsw i64 {index}, {stride}")
        return self.fn.value(f"getelementptr {type_of(self.dtype)}, ptr {pointer}, i64 {scaled}")
