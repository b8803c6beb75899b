"""The CUDA target: passes, source, machine code. What is called is in `kernel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources as package_files
from typing import TypeVar

from tilewright.ir.atoms import Feature
from tilewright.ir.chips import CHIPS
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.ir.tensor_map import seen_shape
from tilewright.ir.verify import Stage, verify
from tilewright.passes.canonicalize.loops import has_open_extents
from tilewright.passes.canonicalize.pack_elements import uses_packed
from tilewright.passes.cuda_passes import FIRST, LOWER, SCHEDULE, STAMP
from tilewright.passes.layout.shared_tiles import row_major_strides
from tilewright.passes.memory.place_shared import TooMuchShared
from tilewright.passes.run import Trace, run_pipeline
from tilewright.support.errors import Cost, VerifyError
from tilewright.targets.cuda.blame import blamed, with_tiles
from tilewright.targets.cuda.emit import HEADER, PARTS, KernelSource, MapParam, Source, emit_program
from tilewright.targets.cuda.launch import (
    LaunchSpec,
    Param,
    Record,
    Scalar,
    Size,
    TensorPointer,
)
from tilewright.targets.cuda.launch import (
    Map as MapArg,
)
from tilewright.targets.cuda.limits import blocks_per_sm, blocks_to_ask, check_grid, check_tiles
from tilewright.targets.cuda.nvrtc import (
    CompiledCuda,
    Remedied,
    Resources,
    Serialized,
    compile_cuda,
)
from tilewright.targets.cuda.remedies import LEVELS, SERIALIZED, explain, search
from tilewright.targets.cuda.tensormap import TensorMapSpec

Result = TypeVar("Result")

PRODUCTS = ("wgmma", "mma")
FEW = 128  # bytes of spills that a traced build takes to have as many blocks as the plain one
FEATURES = {"bulk_copies": Feature.BULK_COPY, "wgmma": Feature.WGMMA}  # by what switches them off

_PLAIN = (Alloc, Atomic, Break, Continue, For, Hint, If, Intrinsic, Let, Store, Sync, While)


def is_scheduled(program: Program) -> bool:
    """Whether a program says all layouts, instructions and barriers itself."""
    ops = [op for kernel in program.kernels for op in walk_ops(kernel.body)]
    if all(isinstance(op, _PLAIN) for op in ops):
        return False  # statements alone: nobody has said where threads meet
    if any(isinstance(op, Map) and op.layout is None for op in ops) and not any(
        isinstance(op, Role) for op in ops
    ):
        return False
    try:
        verify(program, Stage.LAID_OUT)
    except VerifyError:
        return False
    return True


def lower(program: Program, target: Target) -> Trace:
    """The program after every pass, the last one thread code."""
    return settled(program, target, lambda trace: None)[0]


def settled(
    program: Program, target: Target, finish: Callable[[Trace], Result]
) -> tuple[Trace, Result, Remedied | None]:
    """The program after every pass, and what `finish` makes of it, less what has to be given up
    for both (`remedies`); with what the assembler said, where it was remedied."""
    unfit = uses_packed(program) or has_open_extents(program)
    scheduled = is_scheduled(program) and not unfit
    stamps = STAMP if target.internal.stamps else ()
    steps = (*FIRST, *(() if scheduled else SCHEDULE), *stamps, *LOWER)

    def attempt(target: Target) -> tuple[Trace, Result]:
        for switch, feature in FEATURES.items():
            if getattr(target.internal, switch) is False:
                target = target.without(feature)
        check_tiles(program, target, scheduled)
        stage = Stage.LAID_OUT if scheduled else Stage.TILE
        trace = run_pipeline(program, target, steps, stage=stage)
        for kernel in trace.result.kernels:
            check_grid(kernel)
        return trace, finish(trace)

    try:
        (trace, result), given = search(attempt, target, () if scheduled else LEVELS)
    except TooMuchShared as error:
        raise with_tiles(error, program) from None
    serialized: Remedied | None = None
    for level, remedy, failed in given:
        explain(trace, program, level, remedy, failed)
        if isinstance(failed, Serialized):
            serialized = Remedied(failed.message, failed.diagnostic.fix, remedy.name)
    return trace, result, serialized


def remedied(program: Program, target: Target, said: Remedied) -> Trace:
    """The passes with what an earlier compilation found out."""
    remedy = next(r for r in SERIALIZED.remedies if r.name == said.remedy)
    trace = lower(program, remedy.on(target) or target)
    explain(trace, program, SERIALIZED, remedy, said)
    return trace


@cache
def headers() -> dict[str, str]:
    """The texts of the header that generated sources include, and of those that it includes."""
    folder = package_files.files("tilewright.targets.cuda")
    return {name: (folder / name).read_text() for name in (HEADER, *PARTS)}


@dataclass(frozen=True)
class Built:
    """What compiling leaves. `serialized`: what the assembler said, if it had to be remedied."""

    trace: Trace
    emitted: Source
    compiled: CompiledCuda
    serialized: Remedied | None = None

    def record(self, program: Program) -> Record:
        specs = tuple(launch_spec(program, kernel) for kernel in self.emitted.kernels)
        lowered = self.trace.result
        costs = (*self.trace.costs, *spills(self.emitted.kernels, self.compiled))
        return Record(specs, lowered.scratch, alignments(lowered), self.serialized, costs)


def build(program: Program, target: Target) -> Built:
    """Passes, source, machine code."""
    trace, (emitted, compiled), serialized = settled(
        program, target, lambda trace: _compiled(trace, target, {})
    )
    bearable = 0  # bytes of spills
    if target.internal.stamps:  # as many as without them
        bearable = FEW
        plain = build(program, target.choosing(stamps=False))
        before = resident(plain.emitted, plain.compiled, target.arch)
        now = resident(emitted, compiled, target.arch)
        more = {name: count for name, count in before.items() if count > now[name]}
    else:
        more = {
            kernel.kernel.name: count
            for kernel in emitted.kernels
            if (count := more_blocks(kernel, compiled.resources.get(kernel.name), target.arch))
        }
    if more and not target.diagnostic:
        again, denser = _compiled(trace, target, more)
        if spilled(denser) <= spilled(compiled) + bearable:
            emitted, compiled = again, denser
    return Built(trace, emitted, compiled, serialized)


def _compiled(
    trace: Trace, target: Target, blocks: Mapping[str, int]
) -> tuple[Source, CompiledCuda]:
    program = trace.result
    emitted = emit_program(program, diagnostic=target.diagnostic, blocks=blocks)
    if trace.dump is not None:
        trace.dump.source("cu", emitted.text)
    try:
        return emitted, compile_cuda(
            emitted.text,
            f"{program.name}.cu",
            target.arch,
            # textures and the device runtime, which generated code has no use for
            () if program.sources else ("--minimal",),
            headers=headers(),
            diagnostic=target.diagnostic,
        )
    except Serialized:
        raise
    except CompileError as error:
        raise blamed(error, trace[0].program) from error


def more_blocks(kernel: KernelSource, resources: Resources | None, arch: str) -> int:
    """Blocks of a multiprocessor that registers should have room for; 0: as many as they have.
    Matrix instructions need what they hold: nothing is asked of a kernel with them."""
    sm = CHIPS.get(arch)
    products = (op.name in PRODUCTS for op in walk_ops(kernel.kernel, Intrinsic))
    if resources is None or sm is None or any(products):
        return 0
    threads, shared = kernel.kernel.thread_count, kernel.shared_bytes + resources.static_shared
    return blocks_to_ask(sm, threads=threads, registers=resources.registers, shared=shared)


def resident(emitted: Source, compiled: CompiledCuda, arch: str) -> dict[str, int]:
    """Blocks of a multiprocessor, by kernel, where that is known."""
    found = {}
    for kernel in emitted.kernels:
        taken, sm = compiled.resources.get(kernel.name), CHIPS.get(arch)
        if taken is not None and sm is not None:
            found[kernel.kernel.name] = blocks_per_sm(
                sm,
                threads=kernel.kernel.thread_count,
                registers=taken.registers,
                shared=kernel.shared_bytes + taken.static_shared,
            )
    return found


def spilled(compiled: CompiledCuda) -> int:
    return sum(r.spill_bytes + r.local_bytes for r in compiled.resources.values())


def spills(kernels: Sequence[KernelSource], compiled: CompiledCuda) -> list[Cost]:
    """What the assembler could not keep in registers, kernel by kernel."""
    found = []
    for source in kernels:
        taken = compiled.resources.get(source.name)
        if taken is not None and taken.spill_bytes:
            text = (
                f"{taken.spill_bytes} bytes of register spills in each thread, which has "
                f"{taken.registers} registers: use smaller tiles, or more threads"
            )
            found.append(Cost(source.kernel.name, source.kernel.loc, text))
    return found


def launch_spec(program: Program, source: KernelSource) -> LaunchSpec:
    """How a kernel of `program` is launched."""
    dims = {d.var for d in program.dims}
    return LaunchSpec(
        source.name,
        source.kernel.grid,
        source.kernel.thread_count,
        tuple(_param(p, dims) for p in source.params),
        source.kernel.cluster or (1, 1, 1),
        source.shared_bytes,
        loc=source.kernel.loc,
    )


def _param(param: Buffer | Var | MapParam, dims: set[Var]) -> Param:
    if isinstance(param, MapParam):
        tensor = param.tensor
        shape = strides = None
        if param.sizes:
            seen = replace(tensor, shape=seen_shape(tensor, param.sizes))
            tensor = replace(seen, strides=row_major_strides(seen))
        if len(param.box) > tensor.rank:  # rows in pieces
            piece = param.box[-1]
            shape = (*tensor.shape[:-1], tensor.shape[-1] // piece, const(piece))
            if tensor.strides is not None:
                strides = (*tensor.strides[:-1], const(piece), const(1))
        elif tensor.strides is not None:
            shape, strides = tensor.shape, tensor.strides
        return MapArg(
            TensorMapSpec(
                tensor.name, tensor.dtype, param.box, param.swizzle, shape=shape, strides=strides
            )
        )
    if isinstance(param, Buffer):
        return TensorPointer(param.name)
    if param in dims:
        return Size(param.name, param.dtype)
    return Scalar(param.name, param.dtype)


def alignments(program: Program) -> dict[str, int]:
    """Bytes on which tensors must begin for their vector accesses, by name (`hint align`)."""
    found: dict[str, int] = {}
    for op in walk_ops(program.kernels, Hint):
        if op.name == "align" and op.buffer is not None:
            found[op.buffer.name] = max(found.get(op.buffer.name, 1), int(op.detail[0]))
    return found
