"""The CUDA target: passes, source, machine code, and the object that is called."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from importlib import resources as package_files
from math import prod
from time import perf_counter
from typing import Any

from tilewright.ir.bind import unused_params, written_params
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var
from tilewright.ir.op import Hint, Program, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage
from tilewright.passes.lower_threads import lower_threads
from tilewright.passes.pipeline import Pass, run_pipeline
from tilewright.passes.place_shared import place_shared
from tilewright.support import env
from tilewright.targets.cuda.arguments import ProgramCheck
from tilewright.targets.cuda.diagnose import DiagnosticModule
from tilewright.targets.cuda.emit import HEADER, KernelSource, MapParam, emit_program
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Map,
    Param,
    Scalar,
    Size,
    TensorArg,
    TensorPointer,
)
from tilewright.targets.cuda.nvrtc import CompiledCuda, Resources, compile_cuda
from tilewright.targets.cuda.tensormap import TensorMapSpec

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
        self.trace = run_pipeline(program, target, PIPELINE, stage=Stage.LAID_OUT)
        self.program = self.trace.result
        emitted = emit_program(self.program, diagnostic=diagnostic)
        self.source = emitted.text
        self.compiled: CompiledCuda = compile_cuda(
            self.source,
            f"{program.name}.cu",
            target.arch,
            # textures and the device runtime, which generated code has no use for
            () if program.sources else ("--minimal",),
            headers={HEADER: header()},
            diagnostic=diagnostic,
        )
        self.resources: dict[str, Resources] = self.compiled.resources
        self.specs = tuple(launch_spec(program, kernel) for kernel in emitted.kernels)
        described: dict[str, Any] = {
            "scratch": program.scratch,
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
        if tensor.strides is not None:
            shape, strides = tensor.shape, tensor.strides
        return Map(
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
    """Machine code for an NVIDIA GPU from a scheduled program."""
    diagnostic = "diagnostic" in target.options or env.DIAGNOSTIC.on()
    return CudaKernel(program, target, diagnostic=diagnostic)
