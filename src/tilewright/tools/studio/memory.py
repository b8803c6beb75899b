"""Where a kernel's data lie and how they move: buffers, rings, the levels of a chip's memory, and
the roofline."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from tilewright.choose.model import Block, Infeasible, estimate
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.passes.layout.matrix_tiles import shape_of
from tilewright.passes.overlap import unit_times as rates
from tilewright.tools.studio.measured import memory_levels


def buffers(program: Program, kernel: Kernel) -> dict[str, Any]:
    """Tensors and tiles by name, each with the tensor whose elements it holds."""
    filled: dict[str, str] = {}
    for op in walk_ops(kernel):
        if isinstance(op, Copy) and op.src.buffer.is_global:
            filled.setdefault(op.dst.buffer.name, op.src.buffer.name)
        elif isinstance(op, Store) and not op.buffer.is_global:
            for load in op_loads(op):
                if load.buffer.is_global:
                    filled.setdefault(op.buffer.name, load.buffer.name)
    found: dict[str, Any] = {}
    for buffer in (*program.tensors, *program.scratch):
        found[buffer.name] = _told(buffer, None, None)
    for op in walk_ops(kernel, Alloc, View):
        found[op.buffer.name] = _told(op.buffer, op.loc, filled.get(op.buffer.name))
    return found


def _told(buffer: Buffer, loc: Loc | None, tensor: str | None) -> dict[str, Any]:
    return {
        "space": buffer.space.value,
        "dtype": str(buffer.dtype),
        "bits": buffer.dtype.bits,
        "shape": [int(n.value) if isinstance(n, Const) else str(n) for n in buffer.shape],
        "line": loc.line if loc is not None else None,
        "label": tensor or buffer.name,
        "tensor": tensor,
        "layout": None if buffer.layout is None else repr(buffer.layout),
    }


def rings(kernel: Kernel) -> list[dict[str, Any]]:
    """Shared tiles of which a slot at a time is filled and read, with the barriers that say so."""
    slots: dict[str, bool] = {}
    full: dict[str, str] = {}
    for op in walk_ops(kernel):
        for region in (*regions(op, reads=True), *regions(op, writes=True)):
            buffer = region.buffer
            if buffer.is_shared and len(buffer.shape) > 2 and isinstance(region.extents[0], Const):
                one = int(region.extents[0].value) == 1 and not isinstance(region.starts[0], Const)
                slots[buffer.name] = slots.get(buffer.name, True) and one
        if isinstance(op, Copy) and op.barrier is not None:
            full.setdefault(op.dst.buffer.name, op.barrier.buffer.name)
    barriers = {op.buffer.name for op in walk_ops(kernel, Alloc)
                if op.buffer.space is Space.BARRIER}  # fmt: skip
    arrived = {op.barrier.buffer.name for op in walk_ops(kernel, Arrive) if op.bytes is None}
    found = []
    for op in walk_ops(kernel, Alloc):
        name = op.buffer.name
        if slots.get(name):
            fills = full.get(name)
            stem = fills.removesuffix("_full") if fills else ""
            free = next((b for b in (f"{stem}_free",) if b in barriers & arrived), None)
            shape = op.buffer.static_shape
            each = prod(shape[1:]) * op.buffer.dtype.bits // 8
            found.append(
                {"buffer": name, "slots": shape[0], "slot_bytes": each, "full": fills, "free": free}
            )
    return found


# ── the chip ─────────────────────────────────────────────────────────────────────────────────


def chip_told(target: Target, results: Path | None = None) -> dict[str, Any]:
    """Rates are of a cycle and multiprocessor, as the model has them; None: it has none. Beside
    them what a results file says was measured."""
    chip = target.chip
    about, measured = memory_levels(target.arch, results)
    columns = ("name", "bytes", "bytes_per_cycle", "latency")
    rows: tuple[tuple[str, int | None, int | None, int | None], ...] = (
        ("HBM", None, chip.dram_bytes, rates.LATENCY),
        ("L2", None, chip.l2_bytes, None),
        *((level, None, None, None) for level in ("L1",) if level in measured),
        ("shared", chip.shared_per_sm, rates.SHARED_BYTES, rates.ARRIVE),
        ("registers", 4 * chip.registers, None, None),
        ("tensor core", None, None, rates.PRODUCT_LATENCY),
    )
    levels: list[dict[str, Any]] = [
        {**dict(zip(columns, row, strict=True)), "measured": measured.get(row[0])} for row in rows
    ]
    levels[-1]["products_per_cycle"] = rates.PRODUCTS_PER_CYCLE
    many = chip.multiprocessors
    return {"name": target.arch, "multiprocessors": many, "levels": levels, "measured": about}


# ── the roofline ─────────────────────────────────────────────────────────────────────────────


def roofline(program: Program, target: Target) -> dict[str, Any] | None:
    """Of the text as it was traced: what it multiplies and moves, and what the chip can do."""
    if target.kind != "cuda":
        return None
    chip = target.chip
    flops, kinds, us, limits = 0.0, list[str](), 0.0, list[str]()
    why = ""
    for kernel in program.kernels:
        try:
            found = estimate(kernel, target)
            us += found.us
            limits.append(found.limit)
        except (Infeasible, CompileError) as error:
            why = str(error)
        flops += sum(_flops(kernel, target, kinds))
    touched = {b for k in program.kernels for op in walk_ops(k)
               for b in (*read_buffers(op), *written_buffers(op)) if b.is_global}  # fmt: skip
    size = sum(b.bytes for b in touched if b.is_static)
    bits = min((DTYPES[k].bits for k in kinds), default=0)
    clock, many = rates.CLOCK, chip.multiprocessors
    products = rates.PRODUCTS_PER_CYCLE if "wgmma" in {f.value for f in target.features} else 0
    rate = (products or chip.warp_products) * 16 / bits if bits else rates.LANES
    peak_flops, peak_bytes = 2 * rate * clock * many, chip.dram_bytes * clock * many
    compute, memory = flops / peak_flops * 1e6, size / peak_bytes * 1e6
    return {
        "flops": flops,
        "bytes": size,
        "intensity": round(flops / size, 2) if size else None,
        "kind": kinds[0] if kinds else None,
        "peak_flops": peak_flops,
        "peak_bytes": peak_bytes,
        "compute_us": round(compute, 2),
        "memory_us": round(memory, 2),
        "bound": "compute" if compute > memory else "memory",
        "modelled_us": round(us, 1) if us else None,
        "modelled_flops": flops / us * 1e6 if us else None,
        "modelled_bytes": size / us * 1e6 if us else None,
        "limit": limits[0] if limits else "",
        "why": why,
        "measured": [],
    }


def _flops(kernel: Kernel, target: Target, kinds: list[str]) -> Iterator[float]:
    """Of the products of all blocks, by trips of the loops around them in the mean of blocks."""
    try:
        block = Block(kernel, target)
    except (Infeasible, CompileError):
        return
    around: dict[int, list[For]] = {}
    for loop in walk_ops(kernel, For):
        for op in walk_ops(loop):
            around.setdefault(id(op), []).append(loop)
    for op in walk_ops(kernel, Gemm):
        m, n, k = shape_of(op)
        kinds.append(str(op.a.dtype))
        trips = prod(block.trips.get(loop.var, 1.0) for loop in around.get(id(op), ()))
        yield 2.0 * m * n * k * trips * prod(block.grid)
