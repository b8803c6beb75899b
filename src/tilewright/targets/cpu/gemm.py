"""Products of tiles: which operands are packed, and the loops around the micro-kernel.

An operand is read where it lies when it is of the accumulator's type and its elements come in an
order the micro-kernel can load; otherwise it is converted, transposed or packed first. Columns of
b are packed into panels also where that costs little and b is too large for the first-level cache:
rows of a wide tile lie a power of two apart and would push each other out of it.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import DTYPES, FLOAT32, DType
from tilewright.ir.expr import Const
from tilewright.ir.op import Gemm
from tilewright.support.errors import CompileError
from tilewright.targets.cpu.emit_expr import Size
from tilewright.targets.cpu.micro_kernel import MicroKernel, Tile, register_tile
from tilewright.targets.cpu.numbers import item_bytes
from tilewright.targets.cpu.panels import Matrix, PanelEmitter, Panels, bytes_of, column_groups

_SPREAD = 16 << 10  # bytes that a factor, or a stripe of it, may spread over and still be in cache
_WORTH = 32  # rows of a, or columns of b, over which packing the other one must pay


class GemmEmitter(PanelEmitter):
    """`Gemm`."""

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
        goal = c
        compute = self._accumulates_in(c.dtype)
        tile = register_tile(compute)
        taken = 0
        tf32 = op.precision == "tf32" or "tfloat32" in (a.dtype.name, b.dtype.name)
        if c.dtype != compute or c.across != 1:
            c = self.room(c, compute, taken)
            taken += bytes_of(c.shape, c.dtype)
        fresh = isinstance(op.clear, Const) and bool(op.clear.value)
        if not isinstance(op.clear, Const):
            start = c

            def keep() -> None:
                if start is not goal:
                    self.convert_matrix(goal, start)

            clear = self.nonzero(self.scalar(op.clear))
            self.fn.choose(clear.ref, lambda: self.zero(start), keep)
        elif c is not goal and not fresh:
            self.convert_matrix(goal, c)
        columns: Matrix | Panels = b
        if b.dtype != compute or tf32 or b.across != 1 or self._scattered(b, a.shape[0]):
            columns = Panels(self.work(bytes_of(b.shape, compute), taken), compute, b.shape)
            taken += bytes_of(b.shape, compute)
            self.pack(b, columns, tile, tf32)
        stripe = None
        height = min(tile.rows, a.shape[0])
        part = replace(a, shape=(height, a.shape[1]))
        if (
            a.dtype != compute
            or tf32
            or 1 not in (a.down, a.across)
            or self._scattered(part if a.across == 1 else part.transposed, b.shape[1])
        ):
            stripe = self.room(part, compute, taken, like=a)
        self._multiply(a, stripe, columns, c, tile, fresh, tf32)
        if c is not goal:
            self.convert_matrix(c, goal)

    def _scattered(self, m: Matrix, uses: int) -> bool:
        """Its rows lie so far apart that packing pays when it is used so often."""
        if not isinstance(m.down, int):
            return uses >= _WORTH
        return uses >= _WORTH and m.shape[0] * m.down * item_bytes(m.dtype) > _SPREAD

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
        offset = self.corner(mem, region)
        if offset is None:
            raise CompileError(
                f"a gemm reads {region.buffer.name} in global memory, maybe outside it",
                fix="copy the tile to shared memory first",
            )
        return Matrix(
            self.element(mem, offset),
            mem.dtype,
            (sizes[dims[0]], sizes[dims[1]]),
            mem.strides[dims[0]],
            mem.strides[dims[1]],
        )

    # ── the product ──────────────────────────────────────────────────────────────────────────

    def _multiply(
        self,
        a: Matrix,
        stripe: Matrix | None,
        b: Matrix | Panels,
        c: Matrix,
        tile: Tile,
        fresh: bool,
        tf32: bool,
    ) -> None:
        """Blocks of rows outside, so that a stripe of a stays in the first-level cache while b,
        which fits in the second, goes by."""
        (m, k), n = a.shape, b.shape[1]
        whole = m - m % tile.rows
        for i0, i1, height in ((0, whole, tile.rows), (whole, m, m % tile.rows)):
            if i0 == i1:
                continue
            with self.fn.loop(str(i0), str(i1), str(height), hint="row") as (i, _, _):
                rows = replace(a, pointer=self.at(a, i, "0"), shape=(height, k))
                if stripe is not None:
                    packed = replace(stripe, shape=(height, k))
                    self.convert_matrix(rows, packed, tf32)
                    rows = packed
                for j0, j1, block in column_groups(n, tile):
                    down: Size = block.columns if isinstance(b, Panels) else b.down
                    strides = (rows.down, rows.across, down, c.down)
                    kernel = self._micro_kernel(
                        c.dtype, replace(block, rows=height), strides, k, fresh
                    )
                    with self.fn.loop(str(j0), str(j1), str(block.columns), hint="col") as (
                        j,
                        _,
                        _,
                    ):
                        there = self.panel(b, j) if isinstance(b, Panels) else self.at(b, "0", j)
                        self.fn.call(
                            "void",
                            kernel,
                            ("ptr", rows.pointer),
                            ("ptr", there),
                            ("ptr", self.at(c, i, j)),
                            *(("i64", str(s)) for s in strides),
                            ("i64", str(k)),
                        )

    def _micro_kernel(
        self, dtype: DType, tile: Tile, strides: tuple[Size, ...], k: int, fresh: bool
    ) -> str:
        kernel = MicroKernel(dtype, tile, strides, k, fresh)
        if kernel.name not in self.module.functions:
            self.module.functions[kernel.name] = ""
            kernel.emit(self.module)
        return kernel.name
