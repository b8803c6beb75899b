"""Kernels as LLVM IR: control flow, scalars, memory; maps and tile operations come by
inheritance. The emitter decides nothing that the passes could have: it prints."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import gcd, prod
from typing import Any

from tilewright.ir import scope
from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.core import *
from tilewright.support.errors import at
from tilewright.targets.cpu.emit_expr import Mem
from tilewright.targets.cpu.emit_map import Folded, paired
from tilewright.targets.cpu.emit_tile import TileEmitter
from tilewright.targets.cpu.llvm_text import Function, Module, Size, plain, symbol
from tilewright.targets.cpu.numbers import (
    Val,
    any_lane,
    item_bytes,
    memory_type,
    nonzero,
    splat,
    type_of,
)
from tilewright.targets.dlpack import row_major

ARENA_ALIGN = 64
WAY = 4096  # bytes of a first-level cache in which each line has a place of its own
HELD = 4  # lines that a place holds, besides those of other tiles


@dataclass
class Watch:
    """A `print` or `device_assert`: what the runtime needs to report it."""

    op: Intrinsic
    arguments: list[Any] = field(default_factory=list)


def argument_slots(program: Program) -> dict[str, int]:
    """Where the block of arguments has each, 8 bytes a slot."""
    names = [x.name for x in (*program.params, *program.scratch, *(d.var for d in program.dims))]
    return {name: i for i, name in enumerate(names)}


def emit_module(program: Program, host_note: str) -> tuple[Module, list[int], list[Watch]]:
    """The program's kernels, one entry function each: `<kernel>(args, arena, first, last)` runs a
    range of blocks and `<kernel>.blocks(args)` counts them. With it, the bytes that tiles of a
    block take in each, and what the code may report."""
    module = Module(f"{program.name}\n{host_note}")
    watches: list[Watch] = []
    sizes = [KernelEmitter(program, kernel, module, watches).emit() for kernel in program.kernels]
    return module, sizes, watches


class KernelEmitter(TileEmitter):
    """One kernel."""

    def __init__(
        self, program: Program, kernel: Kernel, module: Module, watches: list[Watch]
    ) -> None:
        self.program = program
        self.kernel = kernel
        self.symbol = symbol(kernel.name)
        self.watches = watches
        self.slots = argument_slots(program)
        super().__init__(module, Function(module, "void @unused()"), Ranges())
        self.tiles = self._tiles()
        self.viewed = aliases(kernel).viewed
        self.handlers: dict[type[Op], Callable[[Any], object]] = {
            For: self._for, While: self._while, If: self._if,
            Break: lambda op: self.fn.jump(self.fn.loops[-1][1]),
            Continue: lambda op: self.fn.jump(self.fn.loops[-1][0]),
            Let: self._let, Alloc: self._alloc, View: self._view,
            Store: lambda op: self.store(op.buffer, op.indices, self.expr(op.value)),
            Atomic: self.atomic, Map: self.map, Reduce: self.reduce,
            Folded: self.folded, Scan: self.scan, Gemm: self.gemm, Intrinsic: self._intrinsic,
            **dict.fromkeys((Fence, Commit, Hint, WaitGroup), lambda op: None),
        }  # fmt: skip

    # ── functions ────────────────────────────────────────────────────────────────────────────

    def _tiles(self) -> list[Buffer]:
        """Tiles of the block, each with its own place in the arena."""
        found = {
            op.buffer.name: op.buffer
            for op in walk_ops(self.kernel.body, Alloc)
            if op.buffer.space in (Space.SHARED, Space.FRAGMENT)
        }
        return list(found.values())

    def emit(self) -> int:
        kernel, program = self.kernel, self.program
        if prod(kernel.cluster) > 1 and kernel.rank is not None:
            raise CompileError(
                "the CPU target runs blocks one at a time: clusters cannot talk to each other",
                loc=kernel.loc,
                fix="run it with target='interp' or on a GPU",
            )
        tensors = [*program.tensors, *program.scratch]
        counted = [*(d.var for d in program.dims), *kernel.blocks]
        params = [f"ptr noalias align {item_bytes(t.dtype)} %{plain(t.name)}" for t in tensors]
        params += [f"{type_of(s.dtype)} %{plain(s.name)}" for s in program.scalars]
        params += [f"i64 %{plain(d.var.name)}" for d in program.dims]
        params += [f"ptr noalias align 64 %{plain(t.name)}" for t in self.tiles]
        # scratch for panels is reserved while the body is emitted, so the arena stays one pointer
        params += ["ptr noalias align 64 %tw.work", "ptr %tw.status"]
        params += [f"i64 %{plain(v.name)}" for v in kernel.blocks]
        self.fn = Function(
            self.module,
            f"internal void @{self.symbol}.block({', '.join(params)})",
            "noinline nounwind",
        )
        self.counters = {var: f"%{plain(var.name)}" for var in counted}
        for scalar in program.scalars:
            self.vars[scalar] = Val(self.fn, f"%{plain(scalar.name)}", scalar.dtype)
        for tensor in tensors:
            strides = self._strides(tensor)
            self.mems[tensor.name] = Mem(tensor, f"%{plain(tensor.name)}", strides, is_global=True)
        self.ranges = scope.entry(kernel, program.dims)
        for tile in self.tiles:
            strides = row_major(self._placed(tile))
            self.mems[tile.name] = Mem(tile, f"%{plain(tile.name)}", strides)
        self.ops(kernel.body)
        self.fn.finish()
        rooms = [prod(self._placed(t)) * item_bytes(t.dtype) for t in self.tiles]
        *starts, total = accumulate(
            (-(-max(room, 1) // ARENA_ALIGN) * ARENA_ALIGN for room in (*rooms, self._work_bytes)),
            initial=0,
        )
        self._emit_entry(tensors, starts)
        self._emit_count()
        return total

    def _placed(self, tile: Buffer) -> tuple[int, ...]:
        """A tile's shape in memory: rows end with a line that nobody has, where lines of a column
        would push each other out of the first-level cache."""
        *outer, row = tile.static_shape or (1,)
        size = item_bytes(tile.dtype)
        sets = WAY // gcd(row * size, WAY)  # in which lines of a column lie
        apart = sets < WAY // ARENA_ALIGN and prod(outer) > HELD * sets
        return (*outer, row + ARENA_ALIGN // size * (apart and tile.name not in self.viewed))

    def _strides(self, tensor: Buffer) -> tuple[Size, ...]:
        """In elements; constants as far as the sizes are, else 64-bit values."""
        if tensor.strides is not None:
            return tuple(
                int(e.value) if isinstance(e, Const) else self.index(e) for e in tensor.strides
            )
        found: list[Size] = []
        step: Size = 1
        for size in reversed(tensor.shape):
            found.append(step)
            if isinstance(size, Const) and isinstance(step, int):
                step *= int(size.value)
            elif len(found) < tensor.rank:
                factor = self.index(size)
                step = factor if step == 1 else self.fn.value(f"mul nsw i64 {factor}, {step}")
        return tuple(reversed(found))

    def _slot(self, fn: Function, name: str, type_: str) -> str:
        at = fn.value(f"getelementptr i64, ptr %args, i64 {self.slots[name]}")
        return fn.value(f"load {type_}, ptr {at}", name)

    def _load_scalars(self, fn: Function) -> tuple[list[tuple[str, str]], list[str]]:
        """The scalars and sizes among the arguments, and the grid's extents."""
        inner = TileEmitter(self.module, fn, Ranges())
        for scalar in self.program.scalars:
            ref = self._slot(fn, scalar.name, memory_type(scalar.dtype))
            if scalar.dtype.is_bool:
                ref = fn.value(f"icmp ne i8 {ref}, 0")
            inner.vars[scalar] = Val(fn, ref, scalar.dtype)
        for dim in self.program.dims:
            inner.counters[dim.var] = self._slot(fn, dim.var.name, "i64")
        found = [(value.type, value.ref) for value in inner.vars.values()]
        found += [("i64", ref) for ref in inner.counters.values()]
        return found, [inner.index(e) for e in self.kernel.grid]

    def _emit_entry(self, tensors: list[Buffer], starts: list[int]) -> None:
        fn = Function(
            self.module,
            f"void @{self.symbol}(ptr %args, ptr %arena, i64 %first, i64 %last)",
            "nounwind",
        )
        arguments = [("ptr", self._slot(fn, t.name, "ptr")) for t in tensors]
        scalars, grid = self._load_scalars(fn)
        arguments += scalars
        for start in starts:
            arguments.append(("ptr", fn.value(f"getelementptr i8, ptr %arena, i64 {start}")))
        status = fn.value(f"getelementptr i64, ptr %args, i64 {len(self.slots)}")
        arguments.append(("ptr", status))
        with fn.loop("%first", "%last", hint="block") as at:
            places, rest = [], at
            for extent in grid[:-1]:
                places.append(("i64", fn.value(f"urem i64 {rest}, {extent}")))
                rest = fn.value(f"udiv i64 {rest}, {extent}")
            fn.call("void", f"{self.symbol}.block", *arguments, *places, ("i64", rest))
        fn.finish()

    def _emit_count(self) -> None:
        fn = Function(self.module, f"i64 @{self.symbol}.blocks(ptr %args)", "nounwind")
        total = "1"
        for extent in self._load_scalars(fn)[1]:
            extent = fn.intrinsic("llvm.smax.i64", "i64", ("i64", extent), ("i64", "0"))
            total = fn.value(f"mul i64 {total}, {extent}")
        fn.finish(f"i64 {total}")

    # ── statements ───────────────────────────────────────────────────────────────────────────

    def ops(self, body: Body) -> None:
        for op in paired(body, self.viewed):
            handler = self.handlers.get(type(op))
            if handler is None:
                raise CompileError(
                    f"the CPU target has no {type(op).__name__}: it runs sequential programs",
                    loc=op.loc,
                    expected="tile operations, loops, thread-level code with sync_threads",
                    fix="run a scheduled program with target='interp', or compile it for cuda",
                )
            self.at_op = {}
            if op.loc is not None:
                self.fn.note = f"{type(op).__name__} at {op.loc}"
            with at(op.loc):
                handler(op)
            self.ranges = scope.after(op, self.ranges)
            if self.fn.ended:
                # what follows a break is never reached, but text must stay well formed
                self.fn.start(self.fn.label("unreached"))

    def _for(self, op: For) -> None:
        start, stop, step = (self.index(e) for e in (op.start, op.stop, op.step))
        inside = scope.inside(op, "body", self.ranges)
        ends = op.var.dtype.bits < 64 or step == "1"  # or the number after the last may be none
        loop = self.fn.loop(start, stop, step, op.var.name, saturates=not ends)
        with loop as at, self.scope(inside):
            self.counters[op.var] = at
            self.ops(op.body)

    def _while(self, op: While) -> None:
        head, body, done = (self.fn.label(f"while.{p}") for p in ("head", "body", "done"))
        self.fn.start(head)
        with self.scope():
            cond = nonzero(self.scalar(op.cond))
            self.fn.branch(cond.ref, body, done)
            self.fn.start(body)
            with self.scope(self.ranges.given(op.cond)):
                self.fn.loops.append((head, done))
                self.ops(op.body)
                self.fn.loops.pop()
            self.fn.jump(head)
        self.fn.start(done)

    def _if(self, op: If) -> None:
        parts = [c for c in conjuncts(op.cond) if c not in self.holds or self.lanes is None]
        cond: Expr = TRUE
        for part in parts:
            cond = binary("and", cond, part)
        if cond is TRUE:
            with self.scope(self.ranges.given(op.cond)):
                self.ops(op.then)
            return
        value = nonzero(self.expr(cond))
        if value.lanes > 1 or (self.mask is not None and self.lanes is not None):
            self._masked(op, value)
            return

        def run(body: Body, holds: bool) -> None:
            with self.scope(self.ranges.given(op.cond, holds)):
                self.ops(body)

        self.fn.choose(value.ref, lambda: run(op.then, True), lambda: run(op.orelse, False))

    def _masked(self, op: If, cond: Val) -> None:
        assert self.lanes is not None
        cond = splat(cond, self.lanes.count)
        for body, part, holds in ((op.then, cond, True), (op.orelse, cond ^ True, False)):
            if not body:
                continue
            mask = part if self.mask is None else part & self.mask
            with self.fn.when(any_lane(mask), "any"), self.scope(self.ranges.given(op.cond, holds)):
                self.mask, self.lazy = mask, True
                self.ops(body)

    def _let(self, op: Let) -> None:
        self.vars[op.var] = self.as_type(op.value, op.var.dtype)

    def _alloc(self, op: Alloc) -> None:
        buffer = op.buffer
        if buffer.space in (Space.BARRIER, Space.TMEM):
            raise CompileError(
                f"the CPU target has no {buffer.space.value} memory ({buffer.name})",
                loc=op.loc,
                fix="run a scheduled program with target='interp', or compile it for cuda",
            )
        if buffer.space is Space.LOCAL and buffer.name not in self.mems:
            shape = buffer.static_shape
            slot = self.fn.alloca(
                f"[{prod(shape)} x {memory_type(buffer.dtype)}]", buffer.name, align=16
            )
            self.mems[buffer.name] = Mem(buffer, slot, row_major(shape))
        if op.init is not None:
            self.store(buffer, tuple(const(0) for _ in buffer.shape), self.expr(op.init))

    def _view(self, op: View) -> None:
        source = self.mems[op.source.name]
        if (
            op.buffer.dtype.packed or source.dtype.packed
        ) and op.buffer.dtype.bits != source.dtype.bits:
            raise CompileError(
                f"{op.buffer.name} views {source.dtype} as {op.buffer.dtype}: the CPU target keeps "
                "sub-byte elements unpacked",
                loc=op.loc,
                fix="cast the elements instead of viewing them",
            )
        if source.lanes > 1 and op.buffer.dtype.bits != source.dtype.bits:
            raise CompileError(
                f"{op.buffer.name} views a local buffer as another width", loc=op.loc
            )
        offset, lanes = self.index(op.offset), max(source.lanes, 1)
        pointer = source.pointer
        if offset != "0":
            scaled = self.fn.value(f"mul nsw i64 {offset}, {item_bytes(op.buffer.dtype) * lanes}")
            pointer = self.fn.value(
                f"getelementptr i8, ptr {pointer}, i64 {scaled}", op.buffer.name
            )
        strides = self._strides(op.buffer)
        if lanes > 1:
            strides = tuple(int(stride) * lanes for stride in strides)
        self.mems[op.buffer.name] = Mem(op.buffer, pointer, strides, source.is_global, source.lanes)

    # ── what the runtime hears of ────────────────────────────────────────────────────────────

    def _intrinsic(self, op: Intrinsic) -> None:
        if op.name == "device_assert":
            self._assert(op)
        elif op.name == "print":
            self._tell(op, op.args)
        elif op.name not in ("pdl_wait", "pdl_launch"):
            raise CompileError(
                f"the CPU target cannot run {op.name}",
                loc=op.loc,
                expected="operations every target has",
                fix="compile it for target='cuda'",
            )

    def _assert(self, op: Intrinsic) -> None:
        *places, test = op.args
        assert isinstance(test, Expr)
        failed = nonzero(self.scalar(test)) ^ True
        with self.fn.when(failed.ref, "assert"):
            number = len(self.watches) + 1
            exchange = f"cmpxchg ptr %tw.status, i64 0, i64 {number} monotonic monotonic"
            first = self.fn.value(f"extractvalue {{i64, i1}} {self.fn.value(exchange)}, 1")
            with self.fn.when(first, "told"):
                self._tell(op, places)

    def _tell(self, op: Intrinsic, operands: Sequence[Expr | Region]) -> None:
        """Hands a table to the runtime's callback in the argument block: per operand a pointer,
        after that of a tile start, extent, size and stride of each dimension."""
        watch = Watch(op)
        self.watches.append(watch)
        table: list[tuple[str, str]] = []  # (type, value)
        for argument in operands:
            if isinstance(argument, Region):
                mem = self.mems[argument.buffer.name]
                table.append(("ptr", mem.pointer))
                for numbers in (argument.starts, argument.extents, argument.buffer.shape):
                    table += [("i64", self.index(e)) for e in numbers]
                table += [("i64", str(stride)) for stride in mem.strides]
                watch.arguments.append((mem.dtype, argument))
            else:
                value = self.scalar(argument)
                slot = self.fn.alloca(memory_type(value.dtype), "shown")
                self.write(value, slot)
                table.append(("ptr", slot))
                watch.arguments.append((value.dtype, None))
        at = self.fn.value("getelementptr i64, ptr %tw.status, i64 1")
        callback = self.fn.value(f"load ptr, ptr {at}")
        shown = self.fn.alloca(f"[{max(len(table), 1)} x i64]", "shown")
        for i, (kind, ref) in enumerate(table):
            place = self.fn.value(f"getelementptr i64, ptr {shown}, i64 {i}")
            self.fn.line(f"store {kind} {ref}, ptr {place}")
        self.fn.line(f"call void {callback}(i64 {len(self.watches) - 1}, ptr {shown})")
