"""The CPU target: passes, LLVM, and the object that is called."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from time import perf_counter
from typing import Any

import numpy as np

from tilewright.ir.bind import array_sizes, static_value
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Const, Var
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.passes.absorb_loops import absorb_loops
from tilewright.passes.expand_copies import expand_copies
from tilewright.passes.fuse_maps import fuse_maps
from tilewright.passes.pipeline import Pass, run_pipeline
from tilewright.passes.simplify_indices import simplify_indices
from tilewright.passes.split_at_barriers import split_at_barriers
from tilewright.support.errors import RunError
from tilewright.targets.cpu.emit import Layout, Watch, emit_module
from tilewright.targets.cpu.host import LLVM_LOCK, host, load, optimize, target_machine
from tilewright.targets.cpu.llvm_text import plain
from tilewright.targets.cpu.numbers import item_bytes
from tilewright.targets.cpu.threads import arena, run_blocks

PIPELINE = (
    Pass(
        "expand_copies",
        expand_copies,
        "first: copies become nests, which everything below understands",
        whole_program=True,
    ),
    Pass(
        "split_at_barriers",
        split_at_barriers,
        "threads become nests too, so that what follows sees all there are",
        whole_program=True,
    ),
    Pass(
        "simplify_indices",
        simplify_indices,
        "on the indices the nests will really have",
        whole_program=True,
    ),
    Pass("absorb_loops", absorb_loops, "before fusing, which compares boxes"),
    Pass("fuse_maps", fuse_maps, "last: what is written and read at one point stays in registers"),
)

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_COUNT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SHOW = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p))

# below this a handover to the workers costs more than it saves
_WORTH_SHARING = 60e-6


class _Launch:
    """One kernel of a program: its entry points and how long its blocks take."""

    def __init__(self, name: str, entry: int, count: int, layout: Layout) -> None:
        self.name = name
        self.entry = _ENTRY(entry)
        self.count = _COUNT(count)
        self.arena_bytes = layout.arena_bytes
        self.seconds_per_block: float | None = None

    def run(self, args: int) -> None:
        total = self.count(args)
        if total <= 0:
            return
        entry = self.entry

        def work(arena: int, first: int, last: int) -> None:
            # timed around the work itself, so that waiting for workers is not taken for work
            started = perf_counter()
            entry(args, arena, first, last)
            self.seconds_per_block = (perf_counter() - started) / (last - first)

        first = 0
        if self.seconds_per_block is None and total > 1:
            work(arena(self.arena_bytes), 0, 1)
            first = 1
        left = (total - first) * (self.seconds_per_block or 0.0)
        run_blocks(work, first, total, self.arena_bytes, left > _WORTH_SHARING)


class CpuKernel:
    """A compiled program. Call it with a mapping from parameter names to arrays and numbers."""

    def __init__(self, program: Program, target: Target) -> None:
        started = perf_counter()
        self.name = program.name
        self.target = target
        self.trace = run_pipeline(program, target, PIPELINE)
        self.program = self.trace.result
        note = f"{host().vector_bits}-bit vectors"
        module, layouts, self._watches = emit_module(self.program, note)
        self.source = module.text()
        names = [plain(k.name) for k in self.program.kernels]
        exports = tuple(n for name in names for n in (name, f"{name}.blocks"))
        with LLVM_LOCK:
            self._module = optimize(self.source)
            self._binary = load(self._module, exports, tuple(sorted(module.imports)))
        self._launches = [
            _Launch(
                name, self._binary.address(name), self._binary.address(f"{name}.blocks"), layout
            )
            for name, layout in zip(names, layouts, strict=True)
        ]
        self._plan(layouts[0].slots if layouts else {})
        self.compile_seconds = perf_counter() - started

    def assembly(self) -> str:
        """The machine code, as the assembler would read it."""
        with LLVM_LOCK:
            return str(target_machine().emit_assembly(self._module))

    def optimized(self) -> str:
        """The LLVM IR after optimization."""
        return str(self._module)

    # ── launching ────────────────────────────────────────────────────────────────────────────

    def _plan(self, slots: dict[str, int]) -> None:
        program = self.program
        self._slots = len(slots)
        self._tensors = [(t.name, slots[t.name]) for t in program.tensors]
        self._scalars = [(s.name, s.dtype.numpy, slots[s.name]) for s in program.scalars]
        self._scratch = [(b, slots[b.name]) for b in program.scratch]
        self._dims: list[tuple[str, int, Var, int]] = []
        for dim in program.dims:
            for tensor in program.tensors:
                axes = [i for i, size in enumerate(tensor.shape) if size is dim.var]
                if axes:
                    self._dims.append((tensor.name, axes[0], dim.var, slots[dim.var.name]))
                    break
        shaped = {var for _, _, var, _ in self._dims}
        # sizes that only strides give; rare, so found the long way
        self._from_strides = [
            (d.var, slots[d.var.name]) for d in program.dims if d.var not in shaped
        ]
        self._show = _SHOW(self._print)

    def __call__(self, args: Mapping[str, Any]) -> None:
        """Run on arguments that have been checked against the program's declaration."""
        block = (ctypes.c_int64 * (self._slots + 2))()
        for name, slot in self._tensors:
            block[slot] = args[name].__array_interface__["data"][0]
        base = ctypes.addressof(block)
        for name, dtype, slot in self._scalars:
            raw = np.asarray(args[name]).astype(dtype).tobytes()
            ctypes.memmove(base + 8 * slot, raw, len(raw))
        sizes = {}
        for name, axis, var, slot in self._dims:
            block[slot] = sizes[var] = args[name].shape[axis]
        if self._from_strides:
            sizes = array_sizes(self.program, {name: args[name] for name, _ in self._tensors})
            for var, slot in self._from_strides:
                block[slot] = sizes[var]
        kept = []
        for buffer, slot in self._scratch:
            memory = np.empty(_scratch_bytes(buffer, sizes), np.uint8)
            kept.append(memory)
            block[slot] = memory.ctypes.data
        if self._watches:
            block[self._slots + 1] = ctypes.cast(self._show, ctypes.c_void_p).value or 0
        for launch in self._launches:
            launch.run(base)
            if self._watches and block[self._slots]:
                self._fail(self._watches[block[self._slots] - 1])

    def _fail(self, watch: Watch) -> None:
        message = watch.op.text or "device_assert failed"
        raise RunError(f"device_assert: {message}", loc=watch.op.loc)

    def _print(self, which: int, values: Any) -> None:
        watch = self._watches[which]
        parts = [watch.op.text] if watch.op.text else []
        for i, (name, dtype, shape) in enumerate(watch.arguments):
            count = int(np.prod(shape, dtype=np.int64))
            raw = ctypes.string_at(values[i], count * item_bytes(dtype))
            array = np.frombuffer(raw, dtype.numpy).reshape(shape)
            parts.append(f"{name} =\n{array}" if name else str(array[()]))
        print(" ".join(parts), flush=True)


def _scratch_bytes(buffer: Buffer, sizes: dict[Var, int]) -> int:
    total = item_bytes(buffer.dtype)
    for size in buffer.shape:
        total *= int(size.value) if isinstance(size, Const) else static_value(size, sizes)
    return max(total, 1)


def compile_program(program: Program, target: Target) -> CpuKernel:
    """Machine code for this computer."""
    return CpuKernel(program, target)
