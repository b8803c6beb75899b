"""The CUDA target: passes, source, machine code. What is called is in `kernel`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import resources as package_files
from math import prod

from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Buffer
from tilewright.ir.chips import CHIPS, DEFAULT
from tilewright.ir.expr import Var, const
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Break,
    Continue,
    For,
    Gemm,
    Hint,
    If,
    Intrinsic,
    Let,
    Map,
    Program,
    Role,
    Store,
    Sync,
    While,
    walk_ops,
)
from tilewright.ir.target import Target
from tilewright.ir.tensor_map import seen_shape
from tilewright.ir.verify import Stage, verify
from tilewright.passes.canonicalize.fold_accumulator_init import fold_accumulator_init
from tilewright.passes.canonicalize.loops import COUNT, bound_maps, has_open_extents, unroll_shifts
from tilewright.passes.canonicalize.pack_elements import pack_elements, uses_packed
from tilewright.passes.canonicalize.rules import (
    LABEL,
    announce_barriers,
    drop_unused,
    hoist_views,
    map_stores,
    reduce_by_atomics,
    use_fast_functions,
)
from tilewright.passes.canonicalize.thread_loads import inline_rows, map_copies
from tilewright.passes.canonicalize.unswitch_guards import unswitch_guards
from tilewright.passes.grid.cluster_blocks import cluster_blocks, spread_clusters
from tilewright.passes.grid.order_blocks import order_blocks
from tilewright.passes.grid.persist_blocks import persist_blocks
from tilewright.passes.layout.choose_copies import choose_copies
from tilewright.passes.layout.choose_gemms import choose_gemms, split_gemms
from tilewright.passes.layout.infer_layouts import infer_layouts
from tilewright.passes.layout.shared_tiles import pin_shared, row_major_strides
from tilewright.passes.lower.threads import lower_threads
from tilewright.passes.memory.fit_registers import TooManyRegisters, fit_registers
from tilewright.passes.memory.large_fragments import move_large_fragments
from tilewright.passes.memory.place_shared import TooMuchShared, place_shared
from tilewright.passes.memory.reuse_shared import reuse_shared
from tilewright.passes.memory.spill_fragments import spill_fragments
from tilewright.passes.overlap.choose_stages import choose_stages
from tilewright.passes.overlap.count_stores import count_stores
from tilewright.passes.overlap.keep_operands import keep_operands
from tilewright.passes.overlap.order_warpgroups import order_warpgroups
from tilewright.passes.overlap.ping_pong import ABOUT as TILES
from tilewright.passes.overlap.ping_pong import NotDealt, apply_ping_pong, choose_ping_pong
from tilewright.passes.overlap.pipeline_loops import pipeline_loops
from tilewright.passes.overlap.place_roles import place_roles
from tilewright.passes.overlap.prefetch_loads import prefetch_loads
from tilewright.passes.overlap.roles import part_roles
from tilewright.passes.overlap.split_roles import split_roles
from tilewright.passes.overlap.split_stages import split_stages
from tilewright.passes.overlap.stage_stores import stage_stores
from tilewright.passes.pipeline import Pass, Trace, run_pipeline
from tilewright.passes.reasons import key_of
from tilewright.passes.sync.insert_syncs import insert_syncs
from tilewright.support.errors import CompileError, Cost, VerifyError
from tilewright.targets.cuda.blame import blamed, with_tiles
from tilewright.targets.cuda.emit import HEADER, PARTS, KernelSource, MapParam, Source, emit_program
from tilewright.targets.cuda.kernel import CudaKernel, compile_program
from tilewright.targets.cuda.launch import LaunchSpec, Param, Scalar, Size, TensorPointer
from tilewright.targets.cuda.launch import (
    Map as MapArg,
)
from tilewright.targets.cuda.limits import check_grid, check_tiles
from tilewright.targets.cuda.nvrtc import (
    NO_WARPGROUPS,
    CompiledCuda,
    Resources,
    Serialized,
    compile_cuda,
)
from tilewright.targets.cuda.occupancy import MULTIPROCESSORS, blocks_to_ask
from tilewright.targets.cuda.record import Record
from tilewright.targets.cuda.tensormap import TensorMapSpec

__all__ = ["PIPELINE", "SCHEDULE", "Built", "CudaKernel", "build", "compile_program", "lower"]

PRODUCTS = ("wgmma", "mma")
# Where the assembler serializes products, what is chosen instead, in turn, before products by
# single warps: earlier waits (`passes.sync.matrix_groups`), then more registers too.
REMEDIES = {
    "by iteration": ({"waits": "iteration"}, "waited for by the end of an iteration"),
    "one by one": ({"waits": "each"}, "waited for before threads compute"),
    "no producer": (
        {"waits": "iteration", "roles": "off"},
        "waited for by the end of an iteration, with the registers that a producer would take",
    ),
}
# From tiles to the scheduled form. Kernels with roles have it already, and pass unchanged.
SCHEDULE = (
    Pass(
        "bound_maps",
        bound_maps,
        "first: layouts, and all that asks for them, deal in constant extents",
        whole_program=True,
    ),
    Pass("drop_unused", drop_unused, "before anything adds up what tiles take"),
    Pass(
        "unroll_shifts",
        unroll_shifts,
        "early: copies of parts, and nests over them, are ops of their own from here on",
        whole_program=True,
    ),
    Pass(
        "map_stores",
        map_stores,
        "before anything asks what threads compute: nests are all that there is",
        whole_program=True,
    ),
    Pass(
        "place_roles",
        place_roles,
        "early: what is placed has its own time, which passes that derive one leave alone",
    ),
    Pass("announce_barriers", announce_barriers, "any time: derived ones are announced"),
    Pass("use_fast_functions", use_fast_functions, "any time: it changes expressions only"),
    Pass(
        "move_large_fragments",
        move_large_fragments,
        "early: what follows asks what is in registers, and how much memory there is",
    ),
    Pass(
        "spill_fragments",
        spill_fragments,
        "early: what follows asks what control depends on, and how much memory there is",
    ),
    Pass(
        "keep_operands",
        keep_operands,
        "early: what follows asks what is in shared memory, and who meets for it",
    ),
    Pass("hoist_views", hoist_views, "before anything moves the copies of what they show"),
    Pass(
        "choose_ping_pong", choose_ping_pong, "before anything asks how many threads share a tile"
    ),
    Pass("choose_stages", choose_stages, "before anything asks how deep loops run ahead"),
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
        "fold_accumulator_init",
        fold_accumulator_init,
        "before choose_gemms, which clears tiles for instructions that cannot begin anew",
    ),
    Pass(
        "split_stages",
        split_stages,
        "before products are chosen: those of boxes are products like any other",
        whole_program=True,
    ),
    Pass(
        "choose_gemms",
        choose_gemms,
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
        "inline_rows",
        inline_rows,
        "before prefetch_loads, which makes its loads early",
        whole_program=True,
    ),
    Pass(
        "split_gemms",
        split_gemms,
        "before prefetch_loads: what differs between columns is one number in a piece of them",
        whole_program=True,
    ),
    Pass(
        "map_copies",
        map_copies,
        "before prefetch_loads, which makes loads of nests early; behind all who look for copies",
        whole_program=True,
    ),
    Pass(
        "prefetch_loads",
        prefetch_loads,
        "before pipeline_loops, which asks what loops compute",
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
        "split_roles",
        split_roles,
        "the last that sees placed statements: what follows leaves kernels with roles alone",
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
        "unswitch_guards",
        unswitch_guards,
        "behind the passes that deal with a nest as one op: some nests have two forms now",
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
        "apply_ping_pong",
        apply_ping_pong,
        "behind part_roles: a warpgroup's code is whole, and is given to several",
        Stage.LAID_OUT,
        whole_program=True,
    ),
    Pass(
        "order_warpgroups",
        order_warpgroups,
        "when every product stands where it stays, with its waits and commits",
        Stage.LAID_OUT,
    ),
    Pass(
        "fit_registers",
        fit_registers,
        "last: what roles there are, and what they hold, has been settled",
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


Choices = Sequence[tuple[str, str]]

# choices that take shared memory, in the order in which they are given up for it
ROOMY: Choices = (
    ("turning", "off"),
    ("depth", "least"),
    ("stage", "off"),
    ("persistent", "off"),
    ("roles", "off"),
    ("gathers", "off"),
)
# and, of what the text says, on chips that have less of it than those it may be written for
FEWER: Choices = (("depth", "fewest"),)


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
    try:
        return _lower(program, target)
    except TooMuchShared as error:
        raise with_tiles(error, program) from None


def _lower(program: Program, target: Target) -> Trace:
    if target.choice("bulk") == "off":
        target = target.without(Feature.BULK_COPY)
    unfit = uses_packed(program) or has_open_extents(program)
    scheduled = is_scheduled(program) and not unfit
    check_tiles(program, target, scheduled)
    steps = (COUNT, LABEL, *(() if scheduled else SCHEDULE), *PIPELINE)
    stage = Stage.LAID_OUT if scheduled else Stage.TILE
    try:
        trace = lower_once(program, target, steps, stage)
    except TooMuchShared:
        # the text may fit where what was chosen for speed does not
        small = target.chip.shared < CHIPS[DEFAULT].shared
        options = (*ROOMY, *FEWER) if small else ROOMY
        left = [(name, less) for name, less in options if target.choice(name) == "auto"]
        if scheduled or not left:
            raise
        trace, given_up = lower_smaller(program, target, left, steps, stage)
        said = ", ".join(f"{name}={less}" for name, less in given_up)
        for kernel in program.kernels:
            trace.reasons[kernel.name, "given up"] = f"{said}, for shared memory"
    for kernel in trace.result.kernels:
        check_grid(kernel)
    return trace


def lower_once(program: Program, target: Target, steps: tuple[Pass, ...], stage: Stage) -> Trace:
    """The program after every step; by other instructions where products take too many registers,
    about which the assembler would say the same, after a minute of trying."""
    try:
        return run_passes(program, target, steps, stage)
    except TooManyRegisters as error:
        trace = _lower(program, target.without(Feature.WGMMA))
        blame_products(trace, program, f"not wgmma: {error.message}")
        return trace


def lower_smaller(
    program: Program, target: Target, left: Choices, steps: tuple[Pass, ...], stage: Stage
) -> tuple[Trace, Choices]:
    """What fits when one choice after the other is given up; and which were, the last one alone
    where it was the one that mattered."""
    smaller = target
    for n, (name, less) in enumerate(left):
        smaller = smaller.choosing(name, less)
        try:
            trace = lower_once(program, smaller, steps, stage)
        except TooMuchShared:
            if n + 1 == len(left):
                raise
            continue
        break
    if n > 0:
        try:
            return lower_once(program, target.choosing(name, less), steps, stage), left[n : n + 1]
        except TooMuchShared:
            pass
    return trace, left[: n + 1]


def run_passes(program: Program, target: Target, steps: tuple[Pass, ...], stage: Stage) -> Trace:
    """The program after every step; warpgroups share tiles where these cannot be dealt out."""
    try:
        return run_pipeline(program, target, steps, stage=stage)
    except NotDealt as error:
        trace = run_pipeline(
            program, target.choosing("consumers", "cooperative"), steps, stage=stage
        )
        for kernel in program.kernels:
            trace.reasons[kernel.name, TILES] = f"shared: {error}"
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
    serialized: Serialized | None = None

    def record(self, program: Program) -> Record:
        specs = tuple(launch_spec(program, kernel) for kernel in self.emitted.kernels)
        lowered = self.trace.result
        costs = (*self.trace.costs, *spills(self.emitted.kernels, self.compiled))
        return Record(specs, lowered.scratch, alignments(lowered), self.serialized, costs)


def build(program: Program, target: Target, *, diagnostic: bool = False) -> Built:
    """Passes, source, machine code."""
    serialized: Serialized | None = None
    trace = lower(program, target)
    try:
        emitted, compiled = _compiled(trace, target, diagnostic, {})
    except Serialized as error:
        if is_scheduled(program) or Feature.WGMMA not in target.features:
            raise
        serialized, trace, emitted, compiled = _tried_again(program, target, error)
    more = {
        kernel.kernel.name: count
        for kernel in emitted.kernels
        if (count := more_blocks(kernel, compiled.resources.get(kernel.name), target.arch))
    }
    if more and not diagnostic:
        again, denser = _compiled(trace, target, diagnostic, more)
        if spilled(denser) <= spilled(compiled):
            emitted, compiled = again, denser
    return Built(trace, emitted, compiled, serialized)


def _tried_again(
    program: Program, target: Target, error: Serialized
) -> tuple[Serialized, Trace, Source, CompiledCuda]:
    """What compiles by the first remedy that helps, and what was said before against its lack."""
    for remedy, (choices, _) in REMEDIES.items():
        told = {name: target.choice(name) for name in choices}
        if told == choices or any(told[name] not in ("auto", choices[name]) for name in choices):
            continue
        error.remedy = remedy
        trace = remedied(program, target, error)
        try:
            return error, trace, *_compiled(trace, target, False, {})
        except Serialized as another:
            error = another
    error.remedy = NO_WARPGROUPS
    trace = remedied(program, target, error)
    return error, trace, *_compiled(trace, target, False, {})


def remedied(program: Program, target: Target, error: Serialized) -> Trace:
    """Passes that do without what the assembler would serialize, by the remedy of `error`."""
    if error.remedy == NO_WARPGROUPS:
        trace, said = lower(program, target.without(Feature.WGMMA)), "not wgmma"
    else:
        choices, said = REMEDIES[error.remedy]
        for name, value in choices.items():
            target = target.choosing(name, value)
        trace = lower(program, target)
    blame_products(trace, program, f"{said}: {error.message}")
    return trace


def blame_products(trace: Trace, program: Program, why: str) -> None:
    """Say of every product why it is what it is."""
    for kernel in program.kernels:
        for op in walk_ops(kernel):
            if isinstance(op, Gemm):
                trace.reasons[kernel.name, key_of(op)] = why


def _compiled(
    trace: Trace, target: Target, diagnostic: bool, blocks: Mapping[str, int]
) -> tuple[Source, CompiledCuda]:
    program = trace.result
    emitted = emit_program(program, diagnostic=diagnostic, blocks=blocks)
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
            diagnostic=diagnostic,
        )
    except Serialized:
        raise
    except CompileError as error:
        raise blamed(error, trace[0].program) from error


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
    for kernel in program.kernels:
        for op in walk_ops(kernel):
            if isinstance(op, Hint) and op.name == "align" and op.buffer is not None:
                found[op.buffer.name] = max(found.get(op.buffer.name, 1), int(op.detail[0]))
    return found
