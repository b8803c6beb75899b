"""Products of tiles: a register-blocked micro-kernel.

Operands are read where they are when they are of the accumulator's type and rows of b are
contiguous; others are converted, or transposed, into panels first. The micro-kernel keeps
`rows` × `vectors` accumulators in registers over the whole of K and is one function per shape,
shared by all products of a module.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import DTYPES, FLOAT32, DType
from tilewright.ir.expr import Const
from tilewright.ir.op import Gemm
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Size
from tilewright.targets.cpu.emit_nest import NestEmitter
from tilewright.targets.cpu.host import host
from tilewright.targets.cpu.llvm_text import Function
from tilewright.targets.cpu.math import Math
from tilewright.targets.cpu.numbers import (
    Val,
    item_bytes,
    memory_type,
    type_of,
)


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


class GemmEmitter(NestEmitter):
    """`Gemm`."""

    _work_bytes = 0

    def work(self, size: int, taken: int) -> str:
        """`size` bytes of panel memory behind the `taken` bytes already in use."""
        self._work_bytes = max(self._work_bytes, taken + size)
        return self.fn.value(f"getelementptr i8, ptr %tw.work, i64 {taken}", "panel")

    def gemm(self, op: Gemm) -> None:
        if op.meta is not None:
            raise CompileError("the CPU target has no sparse products", loc=op.loc)
        a, b, c = (self._matrix(r) for r in (op.a, op.b, op.c))
        a = a.transposed if op.transpose_a else a
        b = b.transposed if op.transpose_b else b
        if a.shape[1] != b.shape[0] or c.shape != (a.shape[0], b.shape[1]):
            raise CompileError(
                "the shapes of a gemm do not fit",
                expected="M×K · K×N -> M×N",
                got=f"{a.shape} · {b.shape} -> {c.shape}",
            )
        target = c
        compute = self._accumulates_in(c.dtype)
        taken = 0
        tf32 = op.precision == "tf32" or "tfloat32" in (a.dtype.name, b.dtype.name)
        if c.dtype != compute or c.across != 1:
            c = self._panel(c, compute, taken)
            taken += self._bytes(c)
        if isinstance(op.clear, Const):
            if op.clear.value:
                self._zero(c)
            elif c is not target:
                self._convert(target, c)
        else:
            clear = self.nonzero(self.scalar(op.clear))
            start, goal = c, target

            def keep() -> None:
                if start is not goal:
                    self._convert(goal, start)

            self.fn.choose(clear.ref, lambda: self._zero(start), keep)
        if a.dtype != compute or tf32:
            packed = self._panel(a, compute, taken, like=a)
            self._convert(a, packed, tf32)
            a, taken = packed, taken + self._bytes(packed)
        if b.dtype != compute or tf32 or b.across != 1:
            packed = self._panel(b, compute, taken)
            self._convert(b, packed, tf32)
            b = packed
        self._multiply(a, b, c)
        if c is not target:
            self._convert(c, target)

    def _accumulates_in(self, dtype: DType) -> DType:
        if dtype.is_float:
            return dtype if dtype.bits == 64 else FLOAT32
        if dtype.is_int:
            return DTYPES[f"{dtype.kind}{max(32, dtype.bits)}"]
        raise CompileError(f"a gemm cannot accumulate in {dtype}")

    def _matrix(self, region: Region) -> Matrix:
        """The region as a matrix: leading unit extents dropped, or all of them."""
        mem = self.memory(region.buffer)
        if mem.lanes or region.cta is not None:
            raise CompileError(f"{region.buffer.name} cannot be an operand of a gemm")
        if not all(isinstance(e, Const) for e in region.extents):
            raise CompileError(
                f"the extents of {region.buffer.name} in a gemm are known only at launch",
                fix="give tiles constant sizes",
            )
        sizes = [int(e) for e in region.extents]
        dims = [len(sizes) - 2, len(sizes) - 1]
        if len(sizes) < 2 or any(n != 1 for n in sizes[:-2]):
            dims = [i for i, n in enumerate(sizes) if n != 1]
        if len(dims) != 2:
            raise CompileError(f"a gemm needs a matrix, got {region.buffer.name} as {sizes}")
        if mem.is_global:
            for start, extent, size in zip(
                region.starts, region.extents, region.buffer.shape, strict=True
            ):
                if not all(
                    (self.in_range(start, size)[0], self.in_range(start + extent - 1, size)[1])
                ):
                    raise CompileError(
                        f"a gemm reads {region.buffer.name} in global memory, maybe outside it",
                        fix="copy the tile to shared memory first",
                    )
        offset = self.flat(mem, [self.index(s) for s in region.starts])
        return Matrix(
            self.element(mem, offset),
            mem.dtype,
            (sizes[dims[0]], sizes[dims[1]]),
            mem.strides[dims[0]],
            mem.strides[dims[1]],
        )

    # ── panels ───────────────────────────────────────────────────────────────────────────────

    def _bytes(self, m: Matrix) -> int:
        return -(-prod(m.shape) * item_bytes(m.dtype) // 64) * 64

    def _panel(self, m: Matrix, dtype: DType, taken: int, like: Matrix | None = None) -> Matrix:
        """Room for `m` as `dtype`, rows contiguous, or columns when those of `like` are."""
        rows, columns = m.shape
        down, across = (columns, 1)
        if like is not None and like.across != 1 and like.down == 1:
            down, across = (1, rows)
        size = -(-prod(m.shape) * item_bytes(dtype) // 64) * 64
        return Matrix(self.work(size, taken), dtype, m.shape, down, across)

    def _at(self, m: Matrix, i: str, j: str) -> str:
        offset = "0"
        for index, stride in ((i, m.down), (j, m.across)):
            term = index if stride == 1 else self.fn.value(f"mul nsw i64 {index}, {stride}")
            offset = term if offset == "0" else self.fn.value(f"add nsw i64 {offset}, {term}")
        return self.fn.value(
            f"getelementptr {memory_type(m.dtype)}, ptr {m.pointer}, i64 {offset}", "p"
        )

    def _zero(self, m: Matrix) -> None:
        lanes = 2 * host().lanes(m.dtype.bits)
        with self.fn.loop("0", str(m.shape[0]), hint="row") as (i, _, _):
            self._along(m.shape[1], lanes, lambda j, n: self.write(
                self.constant(0, m.dtype, n), self._at(m, i, j)))  # fmt: skip

    def _along(self, size: int, lanes: int, body: Callable[[str, int], None]) -> None:
        """`body(j, lanes)` over 0 … size-1, vectors first."""
        whole = size - size % lanes
        if whole:
            with self.fn.loop("0", str(whole), str(lanes), hint="column") as (j, _, _):
                body(j, lanes)
        if size - whole:
            with self.fn.loop(str(whole), str(size), hint="column") as (j, _, _):
                body(j, 1)

    def _convert(self, source: Matrix, target: Matrix, tf32: bool = False) -> None:
        """target = source, in blocks that are read and written by vectors."""

        def moved(value: Val) -> Val:
            value = self.cast(value, target.dtype)
            if tf32:
                value = Val(self._to_tfloat32(value).ref, value.dtype, value.lanes)
            return value

        def run(i: str, j: str, lanes: int = 1) -> None:
            value = self.read(source.dtype, self._at(source, i, j), lanes)
            self.write(moved(value), self._at(target, i, j))

        if source.across != 1 and source.down == 1 and target.down == 1:
            source, target = source.transposed, target.transposed
        rows, columns = source.shape
        lanes = host().lanes(32)
        if source.across == 1 and target.across == 1:
            with self.fn.loop("0", str(rows), hint="row") as (i, _, _):
                self._along(columns, 2 * lanes, lambda j, n: run(i, j, n))
            return
        # a transposition: square blocks through registers, what is left one by one
        lanes = min(lanes, 8)
        whole = (rows - rows % lanes, columns - columns % lanes)
        if not (source.down == 1 and target.across == 1 and all(whole)):
            whole = (0, 0)
        with (
            self.fn.loop("0", str(whole[1]), str(lanes), hint="column") as (j, _, _),
            self.fn.loop("0", str(whole[0]), str(lanes), hint="row") as (i, _, _),
        ):
            block = []
            for k in range(lanes):
                at = self._at(source, i, self.fn.value(f"add nsw i64 {j}, {k}"))
                block.append(moved(self.read(source.dtype, at, lanes)))
            for k, value in enumerate(self._transpose(block)):
                at = self._at(target, self.fn.value(f"add nsw i64 {i}, {k}"), j)
                self.write(value, at)
        for first, last, left in ((0, whole[0], whole[1]), (whole[0], rows, 0)):
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
                new[i], new[i + half] = self._shuffle(a, b, low), self._shuffle(a, b, high)
            rows = new
            half //= 2
        return rows

    def _shuffle(self, a: Val, b: Val, lanes: list[int]) -> Val:
        type_ = type_of(a.dtype, a.lanes)
        mask = ", ".join(f"i32 {i}" for i in lanes)
        text = f"shufflevector {type_} {a.ref}, {type_} {b.ref}, <{len(lanes)} x i32> <{mask}>"
        return Val(self.fn.value(text), a.dtype, len(lanes))

    # ── the product ──────────────────────────────────────────────────────────────────────────

    def _multiply(self, a: Matrix, b: Matrix, c: Matrix) -> None:
        """Blocks of rows outside, so that a stripe of a stays in the first-level cache while b,
        which fits in the second, goes by."""
        (m, k), n = a.shape, b.shape[1]
        tile = register_tile(c.dtype)
        rows = [(0, m - m % tile.rows, tile.rows), (m - m % tile.rows, m, m % tile.rows)]
        wide = n - n % tile.columns
        narrow = n - n % tile.lanes
        columns = [(0, wide, tile), (wide, narrow, replace(tile, vectors=1)),
                   (narrow, n, replace(tile, vectors=1, lanes=1))]  # fmt: skip
        for i0, i1, height in rows:
            if i0 == i1:
                continue
            with self.fn.loop(str(i0), str(i1), str(height), hint="row") as (i, _, _):
                for j0, j1, block in columns:
                    if j0 == j1:
                        continue
                    kernel = self._micro_kernel(replace(block, rows=height), a, b, c)
                    with self.fn.loop(str(j0), str(j1), str(block.columns), hint="col") as (
                        j,
                        _,
                        _,
                    ):
                        self.fn.call(
                            "void",
                            kernel,
                            ("ptr", self._at(a, i, "0")),
                            ("ptr", self._at(b, "0", j)),
                            ("ptr", self._at(c, i, j)),
                            *(("i64", str(s)) for s in self._strides_of(a, b, c)),
                            ("i64", str(k)),
                        )

    def _strides_of(self, a: Matrix, b: Matrix, c: Matrix) -> tuple[Size, ...]:
        return (a.down, a.across, b.down, c.down)

    def _micro_kernel(self, tile: Tile, a: Matrix, b: Matrix, c: Matrix) -> str:
        along = "k" if a.across == 1 else "m" if a.down == 1 else "x"
        if not host().lane_fma or tile.lanes == 1:
            along = "x"
        name = f"tilewright.gemm.{c.dtype.name}.{tile.rows}x{tile.vectors}x{tile.lanes}.{along}"
        # constant strides and K are part of the name, so that addresses fold
        strides = self._strides_of(a, b, c)
        name += "".join(f".{s}" if isinstance(s, int) else ".d" for s in strides)
        name += f".{a.shape[1]}"
        if name not in self.module.functions:
            self.module.functions[name] = ""
            _MicroKernel(
                self.module_function(name), c.dtype, tile, along, strides, a.shape[1]
            ).emit()
        return name

    def module_function(self, name: str) -> Function:
        arguments = "ptr %a, ptr %b, ptr noalias %c, i64 %am, i64 %ak, i64 %bk, i64 %cm, i64 %k"
        return Function(self.module, f"internal void @{name}({arguments})", "noinline nounwind")


class _MicroKernel(Math):
    """c[rows, columns] += a[rows, k] · b[k, columns] for one block of registers."""

    def __init__(
        self,
        fn: Function,
        dtype: DType,
        tile: Tile,
        along: str,
        strides: tuple[Size, ...],
        k: int,
    ) -> None:
        self.fn = fn
        self.dtype = dtype
        self.tile = tile
        self.along = along
        names = ("%am", "%ak", "%bk", "%cm")
        self.am, self.ak, self.bk, self.cm = (
            str(s) if isinstance(s, int) else n for s, n in zip(strides, names, strict=True)
        )
        self.k = k

    def emit(self) -> None:
        fn, tile = self.fn, self.tile
        type_ = type_of(self.dtype, tile.lanes)
        slots = {}
        for r in range(tile.rows):
            row = self._offset("%c", str(r), self.cm)
            for v in range(tile.vectors):
                slot = slots[r, v] = fn.alloca(type_, f"acc{r}_{v}")
                old = self._load(self._plus(row, v * tile.lanes), tile.lanes)
                fn.line(f"store {type_} {old.ref}, ptr {slot}")
        block = self._unroll()
        whole = self.k - self.k % block
        if whole:
            with fn.loop("0", str(whole), str(block), hint="k") as (at, _, _):
                self._steps(at, block, slots)
        if self.k - whole:
            with fn.loop(str(whole), str(self.k), hint="k") as (at, _, _):
                self._steps(at, 1, slots)
        for r in range(tile.rows):
            row = self._offset("%c", str(r), self.cm)
            for v in range(tile.vectors):
                value = fn.value(f"load {type_}, ptr {slots[r, v]}")
                fn.line(
                    f"store {type_} {value}, ptr {self._plus(row, v * tile.lanes)}, "
                    f"align {item_bytes(self.dtype)}"
                )
        fn.ret()
        fn.finish()

    def _unroll(self) -> int:
        if self.along == "k":
            return host().lanes(self.dtype.bits)
        return 2 if self.tile.rows * self.tile.vectors > 8 else 4

    def _steps(self, at: str, count: int, slots: dict[tuple[int, int], str]) -> None:
        """`count` values of k from `at` on."""
        fn, tile = self.fn, self.tile
        type_ = type_of(self.dtype, tile.lanes)
        column = self._offset("%a", at, self.ak)
        vectors: list[Val] = []
        if self.along == "k" and count > 1:
            vectors = [
                self._load(self._offset(column, str(r), self.am), count) for r in range(tile.rows)
            ]
        total = {key: fn.value(f"load {type_}, ptr {slot}") for key, slot in slots.items()}
        for step in range(count):
            k = fn.value(f"add nsw i64 {at}, {step}") if step else at
            row = self._offset("%b", k, self.bk)
            b = [
                self._load(self._plus(row, v * tile.lanes), tile.lanes) for v in range(tile.vectors)
            ]
            here = self._offset("%a", k, self.ak)
            across = self._load(here, tile.rows) if self.along == "m" else None
            for r in range(tile.rows):
                if vectors:
                    a = self._broadcast(vectors[r], step)
                elif across is not None:
                    a = (
                        self._broadcast(across, r)
                        if tile.rows > 1
                        else self.splat(across, tile.lanes)
                    )
                else:
                    a = self.splat(self._load(self._offset(here, str(r), self.am), 1), tile.lanes)
                for v in range(tile.vectors):
                    total[r, v] = self._fused(a, b[v], Val(total[r, v], self.dtype, tile.lanes)).ref
        for key, slot in slots.items():
            fn.line(f"store {type_} {total[key]}, ptr {slot}")

    def _fused(self, a: Val, b: Val, c: Val) -> Val:
        if self.dtype.is_float:
            return self.fma(a, b, c)
        return self.instruction("add", self.instruction("mul", a, b), c)

    def _broadcast(self, a: Val, lane: int) -> Val:
        type_ = type_of(a.dtype, a.lanes)
        mask = ", ".join([f"i32 {lane}"] * self.tile.lanes)
        text = f"shufflevector {type_} {a.ref}, {type_} poison, <{self.tile.lanes} x i32> <{mask}>"
        return Val(self.fn.value(text), a.dtype, self.tile.lanes)

    def _load(self, pointer: str, lanes: int) -> Val:
        type_ = type_of(self.dtype, lanes)
        text = f"load {type_}, ptr {pointer}, align {item_bytes(self.dtype)}"
        return Val(self.fn.value(text), self.dtype, lanes)

    def _offset(self, pointer: str, index: str, stride: str) -> str:
        if index == "0":
            return pointer
        scaled = index if stride == "1" else self.fn.value(f"mul nsw i64 {index}, {stride}")
        return self.fn.value(f"getelementptr {type_of(self.dtype)}, ptr {pointer}, i64 {scaled}")

    def _plus(self, pointer: str, elements: int) -> str:
        if not elements:
            return pointer
        return self.fn.value(f"getelementptr {type_of(self.dtype)}, ptr {pointer}, i64 {elements}")
