"""The inner loop of a product: a block of c held in registers over all of k.

One function per shape; constant strides and k are part of its name, so that addresses fold and
all products of a module share it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tilewright.ir.dtype import DType
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.llvm_text import Function, Module, Size
from tilewright.targets.cpu.numbers import *


@dataclass(frozen=True)
class Tile:
    """Registers of the micro-kernel: rows × vectors accumulators of `lanes`."""

    rows: int
    vectors: int
    lanes: int

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes


def register_tile(dtype: DType) -> Tile:
    """The largest block of accumulators that leaves registers for the operands."""
    h = host()
    lanes = h.lanes(dtype.bits)
    if h.lane_fma:
        return Tile(8, 2, lanes)  # 16 accumulators, 8 vectors of a (4 values of k each), 2 of b
    return Tile(12 if h.vector_registers >= 32 else 6, 2, lanes)


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
        shape = f"{tile.rows}x{tile.vectors}x{tile.lanes}"
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
                    old = self._load(self._offset(row, v * tile.lanes), tile.lanes)
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
                value = self._slot(slots[r, v])
                place = self._offset(row, v * tile.lanes)
                fn.line(f"store {value}, ptr {place}, align {item_bytes(self.dtype)}")
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
            b = [
                self._load(self._offset(row, v * tile.lanes), tile.lanes)
                for v in range(tile.vectors)
            ]
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

    def _offset(self, pointer: str, index: Size, stride: str = "1") -> str:
        if index in (0, "0"):
            return pointer
        scaled = index if stride == "1" else self.fn.value(f"mul nsw i64 {index}, {stride}")
        return self.fn.value(f"getelementptr {type_of(self.dtype)}, ptr {pointer}, i64 {scaled}")
