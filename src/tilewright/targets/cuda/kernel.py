"""A program compiled for CUDA: the object that is called, from the compiler or from the cache.

Code from the cache comes with what a launch needs (`record`); the passes run when somebody asks
what they did.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from math import prod
from time import perf_counter
from typing import TYPE_CHECKING, Any

from tilewright.ir.bind import unused_params, written_params
from tilewright.ir.buffer import Buffer
from tilewright.ir.chips import CHIPS
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.support import env
from tilewright.support.cache import UNREADABLE
from tilewright.support.errors import CompileError, warn_of
from tilewright.targets.arrays import ProgramCheck
from tilewright.targets.cuda import nvrtc
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.forms import ROW, ROWS, aligned_rows, end_within, in_words
from tilewright.targets.cuda.launch import (
    CudaModule,
    Form,
    LaunchSpec,
    Map,
    Record,
    Scalar,
    TensorArg,
)
from tilewright.targets.cuda.limits import blocks_per_sm
from tilewright.targets.cuda.nvrtc import (
    NO_WARPGROUPS,
    CompiledCuda,
    NoCompiler,
    Remedied,
    Resources,
)
from tilewright.targets.entries import Kept

if TYPE_CHECKING:
    from tilewright.passes.run import Trace
    from tilewright.targets.cuda.emit import KernelSource


class CudaKernel:
    """A compiled program. Call it with a mapping from parameter names to arrays and numbers.

    A diagnostic build bounds its barrier waits and says which did not end (`diagnose`). `found` is
    what an earlier compilation left: its record, code and source. `otherwise` takes the calls whose
    sizes break this program's contract, where it is a form of another one (`forms`).
    """

    otherwise: CudaKernel | None = None
    reasons: Mapping[tuple[str, str], str] = {}  # what no pass says, for explanations

    def __init__(
        self,
        program: Program,
        target: Target,
        *,
        found: tuple[Record, CompiledCuda, str] | None = None,
    ) -> None:
        started = perf_counter()
        self.name = program.name
        self.target = target
        self.given = program
        sites: Any = ()
        if found is None:
            from tilewright.targets.cuda.backend import build

            built = build(program, target)
            self.trace = built.trace
            found = built.record(program), built.compiled, built.emitted.text
            sites = built.emitted.sites
        self.record, self.compiled, self.source = found
        for cost in self.record.costs:
            warn_of(cost)
        self.resources: dict[str, Resources] = self.compiled.resources
        self.specs = self.record.specs
        make: Callable[..., CudaModule] = CudaModule
        if target.diagnostic:
            from tilewright.targets.cuda.diagnose import DiagnosticModule

            make = partial(DiagnosticModule, sites=sites)
        elif target.internal.stamps:
            from tilewright.targets.cuda.stamps import StampedModule

            make = StampedModule
        self.module = make(
            self.compiled.image,
            self.specs,
            scratch=self.record.scratch,
            resources=self.resources,
            arch=target.arch,
        )
        self.compile_seconds = perf_counter() - started
        self._call: Callable[..., None] | None = None

    @cached_property
    def trace(self) -> Trace:
        """The program after every pass."""
        from tilewright.targets.cuda.backend import lower, remedied

        if self.record.serialized is not None:
            trace = remedied(self.given, self.target, self.record.serialized)
        else:
            trace = lower(self.given, self.target)
        trace.reasons.update(self.reasons)
        return trace

    def telling(self, rows: str) -> CudaKernel:
        """This one, whose explanation says so of rows."""
        self.reasons = {(kernel.name, ROWS): rows for kernel in self.given.kernels}
        if "trace" in vars(self):
            self.trace.reasons.update(self.reasons)
        return self

    @property
    def program(self) -> Program:
        return self.trace.result

    @property
    def serialized(self) -> Remedied | None:
        """What the assembler said against products by warpgroups, where they were given up."""
        said = self.record.serialized
        return said if said is not None and said.remedy == NO_WARPGROUPS else None

    @property
    def ptx(self) -> str:
        return self.compiled.ptx

    @property
    def cubin(self) -> bytes:
        return self.compiled.cubin

    def caller(self, shapes: Mapping[str, tuple[int, ...]] | None = None) -> Callable[..., None]:
        """A function of the parameters in order that checks and launches. `shapes`: in which
        tensors are seen that lie so, whatever shapes they have."""
        if self._call is None or shapes:
            general = self.otherwise or self
            program = general.given
            params: list[TensorArg | Scalar] = []
            unused, written = unused_params(program), written_params(program)
            for p in program.params:
                if isinstance(p, Buffer):
                    strided, name = p.strides is not None, p.name
                    params.append(TensorArg(name, strided, name in unused, name in written))
                else:
                    params.append(Scalar(p.name, p.dtype))
            check = ProgramCheck(program, written, general.record.align)
            own = [Form(self.module, *self.takes())] if self.otherwise else []
            made = make_caller(general.module, params, check, own, shapes or {})
            if shapes:
                return made
            self._call = made
        return self._call

    def takes(self) -> tuple[dict[str, int], dict[str, int]]:
        """What sizes must be multiples of, and on which bytes tensors must begin."""
        maps = (p.spec.tensor for s in self.specs for p in s.params if isinstance(p, Map))
        align = {**dict.fromkeys(maps, ROW // 8), **self.record.align}
        return {dim.var.name: dim.multiple_of for dim in self.given.dims}, align

    def __call__(self, args: Mapping[str, Any]) -> None:
        self.caller()(*(args[p.name] for p in self.given.params))


class Figures(dict[str, int]):
    """What is known of a block without machine code; asking for more says what is missing."""

    def __init__(self, missing: NoCompiler, kernels: Sequence[KernelSource]) -> None:
        super().__init__(
            threads=max(k.kernel.thread_count for k in kernels),
            shared_bytes=max(k.shared_bytes for k in kernels),
            cluster=max(prod(k.kernel.cluster) for k in kernels),
        )
        self.missing = missing

    def __missing__(self, name: str) -> int:
        raise self.missing


class Uncompiled:
    """A program for CUDA where no compiler is at hand: what passes make of it, and its source. Who
    asks for more hears what is missing."""

    specs = ()

    def __init__(self, program: Program, target: Target, missing: NoCompiler) -> None:
        from tilewright.targets.cuda.backend import lower
        from tilewright.targets.cuda.emit import emit_program

        self.name = program.name
        self.target = target
        self.missing = missing
        self.trace = lower(program, target)
        emitted = emit_program(self.trace.result, diagnostic=False, blocks={})
        self.source = emitted.text
        self.resources: dict[str, Resources] = {}
        self.figures = Figures(missing, emitted.kernels)

    def __call__(self, args: Mapping[str, Any] | None = None) -> Any:
        raise self.missing

    caller = __call__
    ptx = cubin = property(__call__)


def compile_program(program: Program, target: Target) -> CudaKernel | Uncompiled:
    """Machine code for an NVIDIA GPU, from the cache where it is there: two forms of it where sizes
    known at launch decide whether rows are aligned, made side by side."""
    if target.internal.rows == "any":
        return _compile_form(program, target)
    started, any_rows = perf_counter(), target.choosing(rows="any")
    rows = aligned_rows(program)
    if rows is None:
        only = _compile_form(program, target)
        if isinstance(only, Uncompiled) or not end_within(program, only.record.align):
            return only
        return _both(only, _compile_form(program, any_rows), started)
    with ThreadPoolExecutor(1) as pool:
        general = pool.submit(_compile_form, program, any_rows)
        try:
            aligned = _compile_form(rows, target)
        except CompileError as error:  # what was chosen for speed; the text may compile without it
            kernel = general.result()
            why = f"any: no form for aligned ones compiles: {error.message}"
            return kernel.telling(why) if isinstance(kernel, CudaKernel) else kernel
        return _both(aligned, general.result(), started)


def _both(
    aligned: CudaKernel | Uncompiled, kernel: CudaKernel | Uncompiled, started: float
) -> CudaKernel | Uncompiled:
    if aligned.source == kernel.source:
        return kernel
    if isinstance(aligned, CudaKernel) and isinstance(kernel, CudaKernel):
        aligned.compile_seconds = perf_counter() - started
        aligned.otherwise = kernel
        return aligned.telling(in_words(aligned.given, kernel.given))
    return aligned  # without a compiler there is nothing to choose from: what most calls would run


def _compile_form(program: Program, target: Target) -> CudaKernel | Uncompiled:
    if target.diagnostic or env.DIAGNOSTIC.on():
        # its sites are ops of the program
        return CudaKernel(program, target.choosing(diagnostic=True))
    started = perf_counter()
    kept = Kept(program, target, {"nvrtc": nvrtc.installed()}, lines=True)
    found = _load(kept)
    try:
        kernel = CudaKernel(program, target, found=found)
    except nvrtc.NoCompiler as error:
        return Uncompiled(program, target, error)
    if found is None:
        _save(kept, kernel)
    kernel.compile_seconds = perf_counter() - started
    return kernel


def _load(kept: Kept) -> tuple[Record, CompiledCuda, str] | None:
    entry = kept.get()
    if entry is None or kept.store is None:
        return None
    header, source = entry
    try:
        compiled = nvrtc.load(kept.store, header["code"])
        if compiled is None or not nvrtc.is_there(header["library"]):
            return None
        return Record.from_json(header["record"]), compiled, source.decode()
    except UNREADABLE:
        return None


def _save(kept: Kept, kernel: CudaKernel) -> None:
    """Unless the record would not come back as it is."""
    if not kernel.compiled.key:
        return
    try:
        record = kernel.record.to_json()
        if Record.from_json(json.loads(json.dumps(record))) != kernel.record:
            return
    except UNREADABLE:
        return
    code = {"code": kernel.compiled.key, "library": nvrtc.library(), "record": record}
    kept.put(code, kernel.source.encode())


def figures(spec: LaunchSpec, resources: Resources, arch: str) -> dict[str, Any]:
    """What one kernel's block takes, and how many share a multiprocessor."""
    found: dict[str, Any] = {
        "threads": spec.threads,
        "registers": resources.registers,
        "spill_bytes": resources.spill_bytes,
        "local_bytes": resources.local_bytes,
        "shared_bytes": spec.shared + resources.static_shared,
        "cluster": prod(spec.cluster),
    }
    if sm := CHIPS.get(arch):
        blocks = blocks_per_sm(
            sm,
            threads=spec.threads,
            registers=resources.registers,
            shared=found["shared_bytes"],
        )
        found["blocks_per_sm"] = blocks
        found["occupancy"] = blocks * -(-spec.threads // 32) * 32 / sm.threads_per_sm
    return found


def by_kernel(kernel: CudaKernel) -> list[dict[str, Any]]:
    """The figures of each kernel of a compiled program, in its order."""
    arch = kernel.target.arch
    return [figures(s, kernel.resources[s.kernel], arch) for s in kernel.specs]


def summary(kernel: CudaKernel) -> dict[str, Any]:
    """The figures of a compiled program: the most that any of its kernels takes, and the fewest
    blocks and threads that fit."""
    each = by_kernel(kernel)
    fewest = ("blocks_per_sm", "occupancy")
    return {
        name: (min if name in fewest else max)(one[name] for one in each)
        for name in (each[0] if each else ())
    }
