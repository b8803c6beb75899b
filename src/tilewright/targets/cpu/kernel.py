"""A program compiled for this computer: the object that is called, from the compiler or from the
cache. The passes of code from the cache run when somebody asks what they did."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from threading import RLock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.bind import array_sizes, shape_of
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.support.cache import UNREADABLE
from tilewright.support.show import cut, show_line
from tilewright.targets.arrays import ArrayView
from tilewright.targets.cpu import threads
from tilewright.targets.cpu.host import (
    LLVM_LOCK,
    Binary,
    Code,
    optimize,
    target_machine,
    toolchain,
)
from tilewright.targets.cpu.numbers import item_bytes
from tilewright.targets.cpu.threads import ENTRY, chunk_of, give_arena, run_blocks, take_arena
from tilewright.targets.entries import Kept

if TYPE_CHECKING:
    from tilewright.passes.run import Trace

_COUNT = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_void_p)
_SHOW = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.POINTER(ctypes.c_int64))

# how a scalar lies in its 8 bytes; other types come as their bytes
_CODES = {
    "float64": "d", "float32": "f4x", "float16": "e6x", "bool": "?7x",
    "int64": "q", "int32": "i4x", "int16": "h6x", "int8": "b7x",
    "uint64": "Q", "uint32": "I4x", "uint16": "H6x", "uint8": "B7x",
}  # fmt: skip
BYTES = "8s"

# below this workers, awake, save less than they cost
_WORTH_SHARING = 20e-6


class _Launch:
    """One kernel of a program: its entry points and how long its blocks take."""

    def __init__(self, name: str, binary: Binary, arena_bytes: int) -> None:
        self.name = name
        self.binary = binary  # lives as long as somebody can call it
        self.address = binary.address(name)
        self.entry = ENTRY(self.address)
        self.count = _COUNT(binary.address(f"{name}.blocks"))
        self.arena_bytes = arena_bytes
        self.seconds_per_block: float | None = None

    def run(self, args: Any, *, alone: bool = False, total: int | None = None) -> None:
        """`args` is the block of arguments, bytes or other memory, `total` the number of blocks."""
        if total is None:
            total = int(self.count(args))
        if total <= 0:
            return
        first, arena = 0, take_arena(self.arena_bytes)
        if self.seconds_per_block is None and total > 1:
            self.entry(args, arena.address, 0, first := 1)
        started, done = perf_counter(), total - first
        if alone or not self.chunk(total):
            self.entry(args, arena.address, first, total)
        else:
            size = self.arena_bytes
            done = run_blocks(self.entry, args, first, total, arena.address, size)
        give_arena(arena)
        self.seconds_per_block = (perf_counter() - started) / max(1, done)

    def chunk(self, total: int) -> int:
        """How many blocks a thread takes at once; 0: this thread does all, since the others would
        come too late."""
        pace = self.seconds_per_block
        known = pace is not None and total * pace <= _WORTH_SHARING
        return 0 if total < 2 or known else chunk_of(total)


@dataclass(frozen=True)
class Fixed:
    """The one kernel of a program at fixed sizes: called with the words that differ from call to
    call, those of the parameters; `tail` comes after them."""

    launch: _Launch
    total: int | None
    tail: bytes

    def __call__(self, head: bytes) -> None:
        self.launch.run(head + self.tail, total=self.total)

    def job(self) -> list[int]:
        """From `pool` to `chunk` in a `RECORD`."""
        launch, pool, total = self.launch, threads.pool, self.total or 0
        pool.lend(launch.arena_bytes)
        return [
            pool.memory.address, launch.arena_bytes, launch.address, total, launch.chunk(total)
        ]  # fmt: skip


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
        with LLVM_LOCK:
            binary = code.link()
        self.launches = [_Launch(name, binary, size) for name, size in code.kernels]
        self.codes = [
            "Q" if isinstance(p, Buffer) else _CODES.get(p.dtype.name, BYTES)
            for p in program.params
        ]
        self.pack = struct.Struct("<" + "".join(self.codes)).pack
        # assertions that failed, lines not written: of one launch at a time, whoever makes it
        self._troubles: list[BaseException] = []
        self._turn = RLock()
        # knows of the kernel what it needs: a method of it would keep it until garbage is collected
        self._show = _SHOW(partial(_print, code.watches, self._troubles))
        # a kernel that prints does its blocks one by one, so that their lines stay apart
        self._says = any(watch.op.name == "print" for watch in code.watches)
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

    def assembly(self) -> str:
        """The machine code, as the assembler would read it."""
        with LLVM_LOCK:
            return str(target_machine().emit_assembly(optimize(self.source)))

    # ── launching ────────────────────────────────────────────────────────────────────────────

    def __call__(self, args: Mapping[str, Any]) -> None:
        """Run on arguments that have been checked against the program's declaration."""
        arrays = {t.name: args[t.name] for t in self.given.tensors}
        sizes = array_sizes(self.given, arrays) if self.given.dims else {}
        self.fixed(sizes)(self.head(args))

    def head(self, args: Mapping[str, Any]) -> bytes:
        """The parameters in order, 8 bytes each: what a launch begins with."""
        words = [args[p.name] for p in self.given.params]
        for i, p in enumerate(self.given.params):
            if isinstance(p, Buffer):
                words[i] = words[i].__array_interface__["data"][0]
            elif self.codes[i] == BYTES:
                words[i] = self.encode(i, words[i])
        return self.pack(*words)

    def encode(self, i: int, value: Any) -> bytes:
        """A scalar of a type that `struct` does not know."""
        return bytes(np.asarray(value).astype(self.given.params[i].dtype.numpy).tobytes())

    def fixed(self, sizes: Mapping[Var, int]) -> Callable[[bytes], None]:
        """The launch for these sizes, called with what is left: `head`."""
        dims = [sizes[d.var] for d in self.given.dims]
        rooms = [item_bytes(b.dtype) * prod(shape_of(b, sizes)) for b in self.code.scratch]
        # after the sizes: whether an assertion has failed, and whom to tell
        hears = ctypes.cast(self._show, ctypes.c_void_p).value if self.code.watches else 0
        tail = struct.pack(f"<{len(dims) + 1}qQ", *dims, 0, hears)
        blank = bytes(8 * (len(self.given.params) + len(rooms)))
        # a scalar may be part of the grid
        counted = None if self.given.scalars else [x.count(blank + tail) for x in self.launches]
        plan = list(zip(self.launches, counted or [None] * len(self.launches), strict=True))
        if len(plan) == 1 and not rooms and not self.code.watches:
            return Fixed(*plan[0], tail)

        def launch(head: bytes) -> None:
            scratch = [np.empty(max(room, 1), np.uint8) for room in rooms]
            places = struct.pack(f"<{len(rooms)}Q", *(m.ctypes.data for m in scratch))
            block: Any = head + places + tail
            if self.code.watches:  # which write into it
                block = ctypes.create_string_buffer(block, len(block))
            for each, total in plan:
                each.run(block, alone=self._says, total=total)
                if self._troubles:
                    raise self._troubles[0]

        def watched(head: bytes) -> None:
            with self._turn:
                before = self._troubles[:]
                self._troubles.clear()
                try:
                    launch(head)
                finally:
                    self._troubles[:] = before

        return watched if self.code.watches else launch


def _print(watches: Sequence[Any], troubles: list[BaseException], which: int, table: Any) -> None:
    """Called from generated code, where nothing can be raised: the call raises it later."""
    try:
        say(watches[which], table)
    except BaseException as error:
        troubles.append(error)


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


# ── what kernels say ─────────────────────────────────────────────────────────────────────────


def say(watch: Any, table: Any) -> None:
    """Print the line of a `print`, to Python's own stream, so that what redirects or captures it
    sees kernels' lines where they belong; raise the error of an assertion that failed."""
    text = _text(watch, table)
    if watch.op.name == "device_assert":
        raise RunError(text, loc=watch.op.loc)
    # one write: a line of another thread cannot come between it and its end
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _text(watch: Any, table: Any) -> str:
    """The op's text with its operands, which lie where `table` says."""
    values, at = [], 0
    for dtype, region in watch.arguments:
        if region is None:
            values.append(ArrayView(table[at], (), (), dtype, None).numpy()[()])
            at += 1
        else:
            rank = region.buffer.rank
            numbers = [int(table[at + 1 + k]) for k in range(4 * rank)]
            values.append(_tile(table[at], numbers, region, dtype))
            at += 1 + 4 * rank
    places = watch.op.width or 0
    return show_line(watch.op.text.format(*values[:places]), values[places:])


def _tile(address: int, numbers: list[int], region: Region, dtype: DType) -> Any:
    rank = region.buffer.rank
    starts, extents, sizes, strides = (tuple(numbers[k * rank : (k + 1) * rank]) for k in range(4))
    box = cut(ArrayView(address, sizes, strides, dtype, None).numpy(), starts, extents)
    units = (isinstance(e, Const) and e.value == 1 for e in region.extents)
    return box.reshape([n for n, unit in zip(extents, units, strict=True) if not unit])
