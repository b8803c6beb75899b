"""The CUDA target: passes, source, machine code, and the object that is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources as package_files
from math import prod
from time import perf_counter
from typing import Any

from tilewright.ir.atoms import Feature
from tilewright.ir.bind import unused_params, written_params
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var, const
from tilewright.ir.op import Gemm, Hint, Intrinsic, Map, Program, Role, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage, verify
from tilewright.passes.choose_copies import choose_copies
from tilewright.passes.choose_products import choose_products
from tilewright.passes.cluster_blocks import cluster_blocks, spread_clusters
from tilewright.passes.count_stores import count_stores
from tilewright.passes.drop_placement import drop_placement
from tilewright.passes.infer_layouts import infer_layouts
from tilewright.passes.insert_syncs import insert_syncs
from tilewright.passes.lay_out_shared import pin_shared
from tilewright.passes.lower_threads import lower_threads
from tilewright.passes.order_blocks import order_blocks
from tilewright.passes.pack_elements import pack_elements, uses_packed
from tilewright.passes.persist_blocks import persist_blocks
from tilewright.passes.pipeline import Pass, Trace, run_pipeline
from tilewright.passes.pipeline_loops import pipeline_loops
from tilewright.passes.place_shared import place_shared
from tilewright.passes.reasons import key_of
from tilewright.passes.reduce_by_atomics import reduce_by_atomics
from tilewright.passes.reuse_shared import reuse_shared
from tilewright.passes.roles import part_roles
from tilewright.passes.split_loops import split_loops
from tilewright.passes.stage_stores import stage_stores
from tilewright.passes.take_turns import take_turns
from tilewright.support import env
from tilewright.support.errors import VerifyError
from tilewright.targets.cuda.arguments import ProgramCheck
from tilewright.targets.cuda.diagnose import DiagnosticModule
from tilewright.targets.cuda.emit import HEADER, KernelSource, MapParam, Source, emit_program
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Param,
    Scalar,
    Size,
    TensorArg,
    TensorPointer,
)
from tilewright.targets.cuda.launch import (
    Map as MapArg,
)
from tilewright.targets.cuda.nvrtc import CompiledCuda, Resources, Serialized, compile_cuda
from tilewright.targets.cuda.occupancy import MULTIPROCESSORS, blocks_to_ask
from tilewright.targets.cuda.tensormap import TensorMapSpec

PRODUCTS = ("wgmma", "mma")
# From tiles to the scheduled form. Kernels with roles have it already, and pass unchanged.
SCHEDULE = (
    Pass(
        "drop_placement",
        drop_placement,
        "first: no pass derives different code for different warpgroups yet",
    ),
    Pass(
        "reduce_by_atomics",
        reduce_by_atomics,
        "before anything looks at copies: those that are left copy",
    ),
    Pass(
        "pack_elements",
        pack_elements,
        "before anything asks for types: threads and memory deal in bytes",
        whole_program=True,
    ),
    Pass("pin_shared", pin_shared, "before copies become asynchronous: engines like few layouts"),
    Pass(
        "cluster_blocks",
        cluster_blocks,
        "before order_blocks and persist_blocks, which deal with whole clusters",
        whole_program=True,
    ),
    Pass("order_blocks", order_blocks, "early: what follows sees indices only", whole_program=True),
    Pass(
        "persist_blocks",
        persist_blocks,
        "behind order_blocks, whose numbers it counts; before anything asks for waits in loops",
        whole_program=True,
    ),
    Pass(
        "spread_clusters",
        spread_clusters,
        "once blocks are ordered and counted: what follows sees blocks",
        whole_program=True,
    ),
    Pass(
        "choose_products",
        choose_products,
        "products prescribe layouts, and say which copies are asynchronous",
        whole_program=True,
    ),
    Pass(
        "stage_stores",
        stage_stores,
        "before copies become asynchronous: staged stores are among them",
        whole_program=True,
    ),
    Pass(
        "pipeline_loops",
        pipeline_loops,
        "before layouts: rings have a dimension more",
        whole_program=True,
    ),
    Pass(
        "count_stores",
        count_stores,
        "after pipeline_loops, which leaves kernels with barriers alone",
        whole_program=True,
    ),
    Pass(
        "infer_layouts",
        infer_layouts,
        "everything below asks for layouts",
        whole_program=True,
    ),
    Pass(
        "choose_copies",
        choose_copies,
        "whether whole matrices move is a question of layouts",
        whole_program=True,
    ),
    Pass(
        "insert_syncs",
        insert_syncs,
        "threads that touch the same element with the same layout need no barrier",
        Stage.LAID_OUT,
    ),
    Pass(
        "reuse_shared",
        reuse_shared,
        "behind all waits, which end lives; the barriers that it needs itself it adds",
        Stage.LAID_OUT,
    ),
    Pass(
        "split_loops",
        split_loops,
        "behind everything that looks for a loop's copies, waits and barriers in one place",
        Stage.LAID_OUT,
        whole_program=True,
    ),
    Pass(
        "part_roles",
        part_roles,
        "behind all of them: other passes see the consumers' code as the block's",
        Stage.LAID_OUT,
        whole_program=True,
    ),
    Pass(
        "take_turns",
        take_turns,
        "last: every product stands where it stays, with its waits and commits",
        Stage.LAID_OUT,
    ),
)
PIPELINE = (
    Pass(
        "place_shared",
        place_shared,
        "while buffers still have the layouts that say how they must be aligned",
        Stage.LAID_OUT,
    ),
    Pass(
        "lower_threads",
        lower_threads,
        "last: every choice has been made, and the emitter prints what this leaves",
        Stage.THREAD,
        whole_program=True,
    ),
)


def is_scheduled(program: Program) -> bool:
    """Whether a program says all layouts, instructions and barriers itself."""
    ops = [op for kernel in program.kernels for op in walk_ops(kernel)]
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
    scheduled = is_scheduled(program) and not uses_packed(program)
    steps = PIPELINE if scheduled else (*SCHEDULE, *PIPELINE)
    return run_pipeline(program, target, steps, stage=Stage.LAID_OUT if scheduled else Stage.TILE)


@cache
def header() -> str:
    """The text of the one header that generated sources include."""
    return (package_files.files("tilewright.targets.cuda") / HEADER).read_text()


class CudaKernel:
    """A compiled program. Call it with a mapping from parameter names to arrays and numbers.

    A diagnostic build bounds its barrier waits and says which did not end (`diagnose`).
    """

    def __init__(self, program: Program, target: Target, *, diagnostic: bool = False) -> None:
        started = perf_counter()
        self.name = program.name
        self.target = target
        self.trace = lower(program, target)
        self.program = self.trace.result
        self.serialized: Serialized | None = None  # what the assembler said against warpgroups
        try:
            emitted, compiled = self._compiled(diagnostic, {})
        except Serialized as error:
            if is_scheduled(program) or Feature.WGMMA not in target.features:
                raise
            # then products by single warps, which nothing serializes
            self.serialized = error
            self.trace = lower(program, target.without(Feature.WGMMA))
            self.program = self.trace.result
            emitted, compiled = self._compiled(diagnostic, {})
            for kernel in program.kernels:
                for op in walk_ops(kernel):
                    if isinstance(op, Gemm):
                        why = f"not wgmma: {error.message}"
                        self.trace.reasons[kernel.name, key_of(op)] = why
        more = {
            kernel.kernel.name: count
            for kernel in emitted.kernels
            if (count := more_blocks(kernel, compiled.resources.get(kernel.name), target.arch))
        }
        if more and not diagnostic:
            again, denser = self._compiled(diagnostic, more)
            if spilled(denser) <= spilled(compiled):
                emitted, compiled = again, denser
        self.source = emitted.text
        self.compiled = compiled
        self.resources: dict[str, Resources] = compiled.resources
        self.specs = tuple(launch_spec(program, kernel) for kernel in emitted.kernels)
        described: dict[str, Any] = {
            "scratch": self.program.scratch,
            "resources": self.resources,
            "arch": target.arch,
        }
        self.module = (
            DiagnosticModule(self.compiled.cubin, self.specs, emitted.sites, **described)
            if diagnostic
            else CudaModule(self.compiled.cubin, self.specs, **described)
        )
        self.compile_seconds = perf_counter() - started
        self._call: Callable[..., None] | None = None

    def _compiled(self, diagnostic: bool, blocks: Mapping[str, int]) -> tuple[Source, CompiledCuda]:
        emitted = emit_program(self.program, diagnostic=diagnostic, blocks=blocks)
        return emitted, compile_cuda(
            emitted.text,
            f"{self.name}.cu",
            self.target.arch,
            # textures and the device runtime, which generated code has no use for
            () if self.program.sources else ("--minimal",),
            headers={HEADER: header()},
            diagnostic=diagnostic,
        )

    @property
    def ptx(self) -> str:
        return self.compiled.ptx

    @property
    def cubin(self) -> bytes:
        return self.compiled.cubin

    def caller(self) -> Callable[..., None]:
        """A function of the parameters in order that checks and launches."""
        if self._call is None:
            program = self.trace[0].program
            params: list[TensorArg | Scalar] = []
            unused = unused_params(program)
            for p in program.params:
                if isinstance(p, Buffer):
                    params.append(TensorArg(p.name, p.strides is not None, p.name in unused))
                else:
                    params.append(Scalar(p.name, p.dtype))
            check = ProgramCheck(program, written_params(program), alignments(self.program))
            self._call = self.module.caller(params, check)
        return self._call

    def __call__(self, args: Mapping[str, Any]) -> None:
        self.caller()(*(args[p.name] for p in self.trace[0].program.params))


def more_blocks(kernel: KernelSource, resources: Resources | None, arch: str) -> int:
    """Blocks of a multiprocessor that registers should have room for; 0: as many as they have.
    Matrix instructions need what they hold: nothing is asked of a kernel with them."""
    sm = MULTIPROCESSORS.get(arch)
    ops = walk_ops(kernel.kernel)
    if resources is None or sm is None:
        return 0
    if any(isinstance(op, Intrinsic) and op.name in PRODUCTS for op in ops):
        return 0
    threads, shared = prod(kernel.kernel.threads), kernel.shared_bytes + resources.static_shared
    return blocks_to_ask(sm, threads=threads, registers=resources.registers, shared=shared)


def spilled(compiled: CompiledCuda) -> int:
    return sum(r.spill_bytes + r.local_bytes for r in compiled.resources.values())


def launch_spec(program: Program, source: KernelSource) -> LaunchSpec:
    """How a kernel of `program` is launched."""
    dims = {d.var for d in program.dims}
    return LaunchSpec(
        source.name,
        source.kernel.grid,
        prod(source.kernel.threads),
        tuple(_param(p, dims) for p in source.params),
        source.kernel.cluster or (1, 1, 1),
        source.shared_bytes,
        loc=source.kernel.loc,
    )


def _param(param: Buffer | Var | MapParam, dims: set[Var]) -> Param:
    if isinstance(param, MapParam):
        tensor = param.tensor
        shape = strides = None
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
    for kernel in program.kernels:
        for op in walk_ops(kernel):
            if isinstance(op, Hint) and op.name == "align" and op.buffer is not None:
                found[op.buffer.name] = max(found.get(op.buffer.name, 1), int(op.detail[0]))
    return found


def compile_program(program: Program, target: Target) -> CudaKernel:
    """Machine code for an NVIDIA GPU."""
    diagnostic = "diagnostic" in target.options or env.DIAGNOSTIC.on()
    return CudaKernel(program, target, diagnostic=diagnostic)
