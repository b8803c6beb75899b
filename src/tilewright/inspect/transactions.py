"""What thread code does to memory, counted: every address of every access is evaluated for all
threads of a block, in the first iteration of loops, and all iterations of unrolled ones.

Shared memory is counted in wavefronts (`ir.layout.banks`), global memory in sectors of 32 bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from tilewright.ir.analysis.aliases import places
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.core import *
from tilewright.ir.layout.banks import bank_conflicts

WARP, SECTOR, ROW = 32, 32, 16
LARGE = 1 << 16  # stands for a size known at launch: guards let whole tiles through
MOST = 1 << 20  # addresses of one access that are looked at
MEMORY = (Space.SHARED, Space.GLOBAL)


@dataclass(frozen=True)
class Access:
    """One instruction that touches memory, with its unrolled copies: `width` bytes a lane.
    `requests` of warps; `units` are wavefronts in shared memory and sectors in global memory, of
    which `ideal` would do. None where addresses are known only at run time."""

    buffer: str
    space: Space
    instruction: str
    writes: bool
    width: int
    each: int  # instructions of a thread
    requests: int | None
    units: int | None
    ideal: int | None
    loc: Loc | None

    def words(self) -> str:
        """'16 bytes a lane, 4 times: 2 extra wavefronts in 16'."""
        count = "once" if self.each == 1 else f"{self.each} times"
        text = f"{self.instruction}, {self.width} bytes a lane, {count}"
        if self.units is None or self.ideal is None or self.requests is None:
            return text + ", addresses known only at run time"
        if self.space is Space.SHARED:
            extra = self.units - self.ideal
            told = f"{extra} extra wavefronts to {self.ideal}" if extra else "no bank conflicts"
            return f"{text}, {told}"
        per = self.units / max(1, self.requests)
        used = self.ideal / max(1, self.units)
        whole = "all used" if used >= 1 else f"{used:.0%} used"
        many = "1 sector" if per == 1 else f"{per:.3g} sectors"
        return f"{text}, {many} a request, {whole}"


def transactions(program: Program) -> dict[str, list[Access]]:
    """By kernel, the accesses of a program of threads, in the order of the text."""
    dims = {d.var: np.int64(LARGE * d.multiple_of) for d in program.dims}
    return {kernel.name: list(_Walk(kernel, dims).run()) for kernel in program.kernels}


class _Unknown(Exception):
    """An address that only the running kernel knows."""


class _Walk:
    """Values of variables are arrays over (threads, iterations of unrolled loops …)."""

    def __init__(self, kernel: Kernel, dims: Mapping[Var, Any]) -> None:
        self.kernel = kernel
        self.threads = kernel.thread_count
        self.values: dict[Var, Any] = dict(dims)
        number = np.arange(self.threads)
        for var, extent in zip(kernel.thread_vars, kernel.threads, strict=True):
            self.values[var], number = number % extent, number // extent
        self.values |= dict.fromkeys(kernel.blocks, np.int64(0))
        self.axes = 0
        self.places = {buffer.name: place for buffer, place in places(kernel).items()}

    def run(self) -> Iterator[Access]:
        linear = np.arange(self.threads)
        for op in walk_ops(self.kernel):
            if isinstance(op, Intrinsic) and op.name == "warp_index" and op.result is not None:
                self.values[op.result] = linear // WARP
        yield from self.body(self.kernel.body, np.ones(self.threads, bool))

    def body(self, body: Body, mask: Any) -> Iterator[Access]:
        for op in body:
            yield from self.op(op, mask)

    def op(self, op: Op, mask: Any) -> Iterator[Access]:
        yield from self.accesses(op, mask)
        if isinstance(op, Let):
            self.set(op.var, op.value)
        elif isinstance(op, For):
            yield from self.loop(op, mask)
        elif isinstance(op, If):
            yield from self.branch(op, mask)
        else:
            for inner in bodies(op):
                yield from self.body(inner, mask)

    def branch(self, op: If, mask: Any) -> Iterator[Access]:
        """Both sides; of two forms of the same work, one of them rare, the other."""
        sides = [
            (is_rare(side), list(self.body(side, self.narrow(mask, op.cond, holds))))
            for side, holds in ((op.then, True), (op.orelse, False))
        ]
        common = any(found for rare, found in sides if not rare)
        for rare, found in sides:
            if not (rare and common):
                yield from found

    def loop(self, op: For, mask: Any) -> Iterator[Access]:
        bounds = (op.start, op.stop, op.step)
        if op.kind == "unroll" and all(isinstance(e, Const) for e in bounds):
            iterations = np.arange(int(op.start), int(op.stop), int(op.step))
            self.axes += 1
            self.values[op.var] = iterations.reshape(1, *[1] * (self.axes - 1), -1)
            if iterations.size:
                yield from self.body(op.body, mask[..., None])
            self.axes -= 1
            return
        self.set(op.var, op.start)
        yield from self.body(op.body, mask)

    def set(self, var: Var, value: Expr) -> None:
        try:
            self.values[var] = self.value(value)
        except _Unknown:
            # the same in all threads as far as addresses go, or the access says it is unknown
            self.values.pop(var, None)

    def narrow(self, mask: Any, cond: Expr, holds: bool) -> Any:
        try:
            found = np.asarray(self.value(cond), bool)
        except _Unknown:
            return mask
        if found.ndim == 0 or found.shape[0] == 1:
            return mask  # the same in all threads: what is guarded runs at some time
        a, b = self.aligned(mask), self.aligned(found)
        return a & (b if holds else ~b)

    def aligned(self, array: Any) -> Any:
        """With an axis for each unrolled loop around."""
        array = np.asarray(array)
        if not array.ndim:
            return array
        return array.reshape(*array.shape, *[1] * (1 + self.axes - array.ndim))

    def value(self, expr: Expr) -> Any:
        values = {v: self.aligned(a) for v, a in self.values.items()}
        for load in loads(expr):
            if not load.buffer.is_local or load.indices:
                raise _Unknown
        # variables of the block address whole slots
        plain = transform(expr, lambda e: const(0, e.dtype) if isinstance(e, Load) else None)
        try:
            return evaluate(plain, values)
        except (KeyError, CompileError):
            raise _Unknown from None

    # ── accesses ─────────────────────────────────────────────────────────────────────────────

    def accesses(self, op: Op, mask: Any) -> Iterator[Access]:
        if isinstance(op, View):
            return
        if isinstance(op, Intrinsic):
            yield from self.intrinsic(op, mask)
        for load in op_loads(op):
            if load.buffer.space in MEMORY:
                yield self.one(op, load.buffer, load.indices, "load", False, None, mask)
        if isinstance(op, Store) and op.buffer.space in MEMORY:
            yield self.one(op, op.buffer, op.indices, "store", True, None, mask)

    def intrinsic(self, op: Intrinsic, mask: Any) -> Iterator[Access]:
        memory = [a for a in op.args if isinstance(a, Region) and a.buffer.space in MEMORY]
        rule = _INSTRUCTIONS.get(op.name)
        if rule is None or not memory:
            return
        words = op.fields
        for position, region in enumerate(memory):
            writes = op.name.startswith("st") or (op.name == "cp_async" and position == 0)
            width = region.dtype.bits // 8 or 1
            if op.name in ("ldmatrix", "stmatrix"):
                width = ROW
                rows = 8 * int(words.get("count", 4))
                lane = self.aligned(np.arange(self.threads) % WARP < rows)
                mask = self.aligned(mask) & lane
            elif "bytes" in words:
                width = int(words["bytes"])
            elif "count" in words:
                width *= int(words["count"])
            elif op.name == "atomic":
                width *= max(len(op.args) - 1, 1)
            else:
                width *= prod(int(e) for e in region.extents if isinstance(e, Const))
            yield self.one(op, region.buffer, region.starts, rule, writes, width, mask)

    def one(
        self,
        op: Op,
        buffer: Buffer,
        indices: tuple[Expr, ...],
        name: str,
        writes: bool,
        width: int | None,
        mask: Any,
    ) -> Access:
        width = width or buffer.dtype.bits // 8 or 1
        each = 1
        requests = units = ideal = None
        try:
            address = self.address(buffer, indices)
            shape = np.broadcast_shapes(
                self.aligned(address).shape,
                self.aligned(mask).shape,
                (self.threads,) + (1,) * self.axes,
            )
            each = prod(shape[1:])
            if prod(shape) <= MOST:
                table = np.where(self.aligned(mask), self.aligned(address), -1)
                table = np.broadcast_to(table, shape).reshape(self.threads, -1)
                requests, units, ideal = _count(table, width, buffer.space)
        except (_Unknown, LayoutError):
            pass
        return Access(
            buffer.name, buffer.space, name, writes, width, each, requests, units, ideal, op.loc
        )

    def address(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Any:
        """In bytes; tensors begin at 0."""
        if buffer.is_shared:
            strides: list[Any] = [1]
        elif buffer.strides is not None:
            strides = [self.value(s) for s in buffer.strides]
        else:
            strides = [1]
            for size in reversed(buffer.shape[1:]):
                strides.insert(0, strides[0] * self.value(size))
        total: Any = np.int64(0)
        for index, stride in zip(indices, strides, strict=False):
            total = total + self.value(index) * stride
        return total * max(8, buffer.dtype.bits) // 8 + self.places.get(buffer.name, 0)


def _count(table: Any, width: int, space: Space) -> tuple[int, int, int]:
    """Requests of warps, units, and the units that would do; addresses in bytes, -1 for none."""
    if space is Space.SHARED:
        found = bank_conflicts(
            Layout(int(table.max(initial=0)) // width + 1, 1),
            np.where(table < 0, -1, table // width),
            width,
            1,
        )
        return found.requests, found.wavefronts, found.ideal
    requests = units = ideal = 0
    for first in range(0, len(table), WARP):
        warp = table[first : first + WARP]
        for k in range(warp.shape[1]):
            active = warp[:, k][warp[:, k] >= 0]
            if not active.size:
                continue
            requests += 1
            sectors = {int(a + b) // SECTOR for a in np.unique(active)
                       for b in range(0, width, min(width, SECTOR))}  # fmt: skip
            units += len(sectors)
            ideal += -(-len(np.unique(active)) * width // SECTOR)
    return requests, units, min(ideal, units)


_INSTRUCTIONS = {
    "load_shared": "ld.shared", "store_shared": "st.shared", "load_global": "ld.global",
    "store_global": "st.global", "cp_async": "cp.async", "ldmatrix": "ldmatrix",
    "load_across": "ld.global", "stmatrix": "stmatrix", "atomic": "atomic", "store_packed": "st",
}  # fmt: skip
