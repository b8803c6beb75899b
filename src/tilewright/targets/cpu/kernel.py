"""A program compiled for this computer: the object that is called, from the compiler or from the
cache. The passes of code from the cache run when somebody asks what they did."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping
from functools import cached_property
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.bind import array_sizes, static_value
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Const, Var
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.support.cache import UNREADABLE
from tilewright.targets.cpu.code import Code
from tilewright.targets.cpu.host import LLVM_LOCK, Binary, optimize, target_machine, toolchain
from tilewright.targets.cpu.numbers import item_bytes
from tilewright.targets.cpu.threads import arena, run_blocks
from tilewright.targets.entries import Kept

if TYPE_CHECKING:
    from tilewright.passes.run import Trace

_ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_COUNT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SHOW = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

# below this a handover to the workers costs more than it saves
_WORTH_SHARING = 60e-6


class _Launch:
    """One kernel of a program: its entry points and how long its blocks take."""

    def __init__(self, name: str, binary: Binary, arena_bytes: int) -> None:
        self.name = name
        self.binary = binary  # lives as long as somebody can call it
        self.entry = _ENTRY(binary.address(name))
        self.count = _COUNT(binary.address(f"{name}.blocks"))
        self.arena_bytes = arena_bytes
        self.seconds_per_block: float | None = None

    def run(self, args: int | bytes, *, alone: bool = False, total: int | None = None) -> None:
        """`args` is the block of arguments or its address, `total` the number of blocks."""
        if total is None:
            total = int(self.count(args))
        if total <= 0:
            return
        entry = self.entry
        pace = self.seconds_per_block
        if pace is not None and (alone or total * pace <= _WORTH_SHARING):
            # nobody to hand over to: a small kernel is called in no time, and that is what it costs
            started = perf_counter()
            entry(args, arena(self.arena_bytes), 0, total)
            self.seconds_per_block = (perf_counter() - started) / total
            return

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
        run_blocks(work, first, total, self.arena_bytes, left > _WORTH_SHARING and not alone)


class CpuKernel:
    """A compiled program. Call it with a mapping from parameter names to arrays and numbers."""

    def __init__(self, program: Program, target: Target, code: Code | None = None) -> None:
        """`code`: what an earlier compilation left; the passes then run when they are asked for."""
        started = perf_counter()
        self.name = program.name
        self.target = target
        self.given = program
        if code is None:
            from tilewright.targets.cpu.backend import generate, lower

            self.trace = lower(program, target)
            code = generate(self.trace.result)
            if self.trace.dump is not None:
                self.trace.dump.source("ll", code.source)
        self.code = code
        self._watches = self.code.watches
        with LLVM_LOCK:
            binary = self.code.link()
        self._launches = [_Launch(name, binary, size) for name, size in self.code.kernels]
        self._plan(self.code.slots)
        self.compile_seconds = perf_counter() - started

    @cached_property
    def trace(self) -> Trace:
        """The program after every pass."""
        from tilewright.targets.cpu.backend import lower

        return lower(self.given, self.target)

    @property
    def program(self) -> Program:
        return self.trace.result

    @property
    def source(self) -> str:
        return self.code.source

    @cached_property
    def _module(self) -> Any:
        with LLVM_LOCK:
            return optimize(self.source)

    def assembly(self) -> str:
        """The machine code, as the assembler would read it."""
        module = self._module
        with LLVM_LOCK:
            return str(target_machine().emit_assembly(module))

    def optimized(self) -> str:
        """The LLVM IR after optimization."""
        return str(self._module)

    # ── launching ────────────────────────────────────────────────────────────────────────────

    def _plan(self, slots: Mapping[str, int]) -> None:
        program = self.given
        self._slots = len(slots)
        self._tensors = [(t.name, slots[t.name]) for t in program.tensors]
        self._scalars = [(s.name, s.dtype.numpy, slots[s.name]) for s in program.scalars]
        self._scratch = [(b, slots[b.name]) for b in self.code.scratch]
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
        self._troubles: list[BaseException] = []  # assertions that failed, lines not written
        # a kernel that prints does its blocks one by one, so that their lines stay apart
        self._says = any(watch.op.name == "print" for watch in self._watches)

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
            sizes = array_sizes(self.given, {name: args[name] for name, _ in self._tensors})
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
            launch.run(base, alone=self._says)
            if self._troubles:
                error, self._troubles = self._troubles[0], []
                raise error

    def fixed(self, sizes: Mapping[Var, int]) -> Callable[[bytes], None] | None:
        """The launch for these sizes, called with what is left: the parameters in order, 8 bytes
        each. None for a kernel that prints or asserts, which is called with its arguments."""
        if self._watches:
            return None
        known = dict(sizes)
        dims = [known[d.var] for d in self.given.dims]
        rooms = [_scratch_bytes(b, known) for b, _ in self._scratch]
        tail = struct.pack(f"<{len(dims)}q16x", *dims)
        blank = bytes(8 * (len(self.given.params) + len(rooms)))
        # a scalar may be part of the grid
        counted = None if self.given.scalars else [x.count(blank + tail) for x in self._launches]
        plan = list(zip(self._launches, counted or [None] * len(self._launches), strict=True))
        if len(plan) == 1 and not rooms:
            run, total = plan[0][0].run, plan[0][1]
            return lambda head: run(head + tail, total=total)

        def launch(head: bytes) -> None:
            scratch = [np.empty(room, np.uint8) for room in rooms]
            places = struct.pack(f"<{len(rooms)}Q", *(m.ctypes.data for m in scratch))
            block = head + places + tail
            for each, total in plan:
                each.run(block, total=total)

        return launch

    def _print(self, which: int, table: Any) -> None:
        """Called from generated code, where nothing can be raised: the call raises it later."""
        from tilewright.targets.cpu.messages import say

        try:
            say(self._watches[which], table)
        except BaseException as error:
            self._troubles.append(error)


def _scratch_bytes(buffer: Buffer, sizes: dict[Var, int]) -> int:
    total = item_bytes(buffer.dtype)
    for size in buffer.shape:
        total *= int(size.value) if isinstance(size, Const) else static_value(size, sizes)
    return max(total, 1)


def compile_program(program: Program, target: Target) -> CpuKernel:
    """Machine code for this computer, from the cache where it is there."""
    started = perf_counter()
    kept = Kept(program, target, toolchain(), lines=False)
    kernel = _load(kept, program, target)
    if kernel is None:
        kernel = CpuKernel(program, target)
        if not kernel.code.watches:
            kept.put(*kernel.code.to_entry())
    kernel.compile_seconds = perf_counter() - started
    return kernel


def _load(kept: Kept, program: Program, target: Target) -> CpuKernel | None:
    entry = kept.get()
    try:
        return None if entry is None else CpuKernel(program, target, Code.from_entry(*entry))
    except (*UNREADABLE, RuntimeError):  # which is LLVM's
        return None
