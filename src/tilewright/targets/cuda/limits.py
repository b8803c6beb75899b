"""What a block may take on each architecture, and the checks that say no: before any pass looks
for a schedule, and before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.atoms import ATOMS, Feature
from tilewright.ir.buffer import Space
from tilewright.ir.chips import CHIPS
from tilewright.ir.expr import Const
from tilewright.ir.op import Alloc, BarrierInit, Copy, Gemm, Kernel, Program, Role, walk_ops
from tilewright.ir.target import ARCHITECTURES, Target
from tilewright.support.errors import CompileError, Loc
from tilewright.targets.cuda.nvrtc import Resources


@dataclass(frozen=True)
class Limits:
    """Per block; `shared` counts static and dynamic bytes together."""

    shared: int
    registers: int = 65536
    threads: int = 1024
    cluster: int = 1
    param_bytes: int = 4096


LIMITS = {
    arch: Limits(chip.shared, chip.registers, cluster=chip.cluster, param_bytes=chip.param_bytes)
    for arch, chip in CHIPS.items()
}

GRID = (2**31 - 1, 65535, 65535)  # blocks along each axis
REGISTERS_OF_THREAD = 255
SPILLED = 8  # a fragment in local memory is slow; a much larger one is a mistake
LOCAL_BYTES_OF_THREAD = 512 * 1024


def check_tiles(program: Program, target: Target, scheduled: bool = False) -> None:
    """Raise if a single tile, or a cluster, is more than there is: no schedule changes that.
    `scheduled`: fragments are spread as they say, over the threads of a role."""
    for kernel in program.kernels:
        threads = prod(kernel.threads)
        _check_cluster(kernel, target)
        for op in walk_ops(kernel):
            if isinstance(op, (Copy, Gemm)) and op.atom is not None:
                _check_atom(op, target)
            if isinstance(op, BarrierInit):
                _check_barrier(op, target)
            if scheduled and isinstance(op, Role):
                _check_role(op, target)
            if isinstance(op, Alloc) and not (scheduled and op.buffer.space is Space.FRAGMENT):
                _check_tile(op, threads, target)


def _check_cluster(kernel: Kernel, target: Target) -> None:
    most = LIMITS[target.arch].cluster
    if prod(kernel.cluster) > most:
        raise CompileError(
            f"{kernel.name} asks for a larger cluster than there is",
            loc=kernel.loc,
            expected=f"at most {most} blocks on {target.arch}" if most > 1 else "no cluster",
            got=f"cluster_dims={kernel.cluster}",
            fix="use a smaller cluster" if most > 1 else f"{target.arch} has none: leave it out",
            code="cluster",
        )
    for axis, (extent, together) in enumerate(zip(kernel.grid, kernel.cluster, strict=False)):
        if isinstance(extent, Const) and extent.value % together:
            raise CompileError(
                f"clusters of {kernel.name} do not divide its grid",
                loc=kernel.loc,
                expected=f"axis {axis} a multiple of {together}",
                got=str(extent.value),
                fix=f"use T.ceildiv(n, block * {together}) * {together} blocks, and a guard",
                code="cluster",
            )


def _check_atom(op: Copy | Gemm, target: Target) -> None:
    """Instructions that a kernel asks for by name are the chip's, whatever is switched off."""
    needs = ATOMS[op.atom or ""].needs
    if needs <= ARCHITECTURES["cuda"][target.arch]:
        return
    instead = "T.gemm" if isinstance(op, Gemm) else "T.copy, without a barrier"
    raise CompileError(
        f"{target.arch} has no {op.atom}, which this asks for",
        loc=op.loc,
        expected=f"a chip with {', '.join(sorted(f.value for f in needs))}",
        got=target.arch,
        fix=f"use {instead}: it takes what the chip has",
        code="target",
    )


def _check_barrier(op: BarrierInit, target: Target) -> None:
    if Feature.BULK_COPY not in ARCHITECTURES["cuda"][target.arch]:
        raise CompileError(
            f"barriers of a kernel's own are not compiled for {target.arch}",
            loc=op.loc,
            expected=f"a chip with {Feature.BULK_COPY.value}, from sm_90 on",
            got=target.arch,
            fix="leave them out: T.ws alone keeps the order of the text",
            code="target",
        )


def _check_role(op: Role, target: Target) -> None:
    able = ARCHITECTURES["cuda"][target.arch]
    if op.registers is not None and Feature.REGISTER_MOVE not in able:
        raise CompileError(
            f"{target.arch} cannot move registers to role {op.name}",
            loc=op.loc,
            expected=f"a chip with {Feature.REGISTER_MOVE.value}: sm_90a, sm_100a, sm_120a …",
            got=f"registers={op.registers}",
            fix="leave it out",
            code="target",
        )


def _check_tile(op: Alloc, threads: int, target: Target) -> None:
    buffer, shape = op.buffer, "×".join(str(extent) for extent in op.buffer.static_shape)
    count = f"{shape} {buffer.dtype}"
    if buffer.space is Space.SHARED and buffer.bytes > target.chip.shared:
        raise CompileError(
            f"{buffer.name} needs more shared memory than a block has",
            loc=op.loc,
            expected=f"at most {target.chip.shared} bytes on {target.arch}",
            got=f"{buffer.bytes} bytes: {count}",
            fix="use a smaller tile and loop over the rest",
            code="shared-memory",
        )
    taken = -(-buffer.bytes // (4 * threads))
    if buffer.space is Space.FRAGMENT and taken > SPILLED * registers_for(threads, target):
        room = {n: registers_for(n, target) * 3 // 4 for n in (128, 256, 512)}  # for the rest, too
        more = next((n for n, most in room.items() if buffer.bytes <= 4 * n * most), 0)
        raise CompileError(
            f"{buffer.name} does not fit the registers of {threads} threads",
            loc=op.loc,
            expected=f"at most {registers_for(threads, target)} registers in each thread",
            got=f"{taken} for {count}",
            fix="use a smaller tile" + (f", or threads={more}" if more > threads else ""),
            code="registers",
        )
    if buffer.space is Space.LOCAL and buffer.bytes > LOCAL_BYTES_OF_THREAD:
        raise CompileError(
            f"{buffer.name} needs more memory than a thread has",
            loc=op.loc,
            expected=f"at most {LOCAL_BYTES_OF_THREAD} bytes in each thread",
            got=f"{buffer.bytes} bytes: {count}",
            fix="keep it in a tensor: T.alloc_global",
            code="local-memory",
        )


def registers_for(threads: int, target: Target) -> int:
    """How many registers each of so many threads can have.

    >>> registers_for(128, Target.parse("cuda")), registers_for(512, Target.parse("cuda"))
    (255, 128)
    """
    return min(REGISTERS_OF_THREAD, target.chip.registers // threads)


def check_grid(kernel: Kernel) -> None:
    """Raise if the grid, as far as it is known, is longer than one can be."""
    for axis, (extent, most) in enumerate(zip(kernel.grid, GRID, strict=False)):
        if isinstance(extent, Const) and extent.value > most:
            raise CompileError(
                f"grid axis {axis} of {kernel.name} is too long for CUDA",
                loc=kernel.loc,
                expected=f"at most {most} blocks along it",
                got=str(extent.value),
                fix="put the longest axis first: axis 0 may have 2147483647 blocks",
                code="grid",
            )


# registers are handed to warps in units of 256
_REGISTER_UNIT = 256


def registers_of_block(registers: int, threads: int) -> int:
    """Registers a block occupies, rounded up as the hardware rounds.

    >>> registers_of_block(168, 384)
    64512
    """
    per_warp = -(-registers * 32 // _REGISTER_UNIT) * _REGISTER_UNIT
    return per_warp * -(-threads // 32)


def check_fits(
    kernel: str,
    *,
    threads: int,
    shared: int,
    cluster: Sequence[int],
    params: Sequence[int],
    resources: Resources,
    limits: Limits,
    loc: Loc | None = None,
) -> None:
    """Raise unless a launch with these figures can start at all; `loc` is the kernel's line."""

    def refuse(what: str, expected: str, got: str, fix: str) -> None:
        raise CompileError(
            f"{kernel} asks for {what}", loc=loc, expected=expected, got=got, fix=fix
        )

    bound = min(limits.threads, resources.max_threads or limits.threads)
    if not 0 < threads <= bound:
        refuse(
            "more threads than a block of it may have",
            f"at most {bound} threads" + (" (its launch bound)" if bound < limits.threads else ""),
            f"{threads} threads",
            "launch fewer threads, or compile it with a larger __launch_bounds__",
        )
    total = resources.static_shared + shared
    if total > limits.shared:
        refuse(
            "more shared memory than there is",
            f"at most {limits.shared} bytes in a block",
            f"{total} bytes ({resources.static_shared} static + {shared} dynamic), "
            f"{total - limits.shared} too many",
            "use smaller tiles or fewer stages",
        )
    taken = registers_of_block(resources.registers, threads)
    if taken > limits.registers:
        refuse(
            "more registers than there are",
            f"at most {limits.registers} in a block",
            f"{taken} ({resources.registers} in each of {threads} threads)",
            f"compile it with __launch_bounds__({threads}, 1)",
        )
    if prod(cluster) > limits.cluster:
        refuse(
            "a larger cluster than there is",
            f"at most {limits.cluster} blocks",
            f"{prod(cluster)} {tuple(cluster)}",
            "use a smaller cluster",
        )
    if resources.params and tuple(params) != resources.params:
        refuse(
            "other parameters than are passed to it",
            f"parameters of {resources.params} bytes",
            f"{tuple(params)} bytes",
            "list the launch's parameters as the kernel declares them",
        )
    if sum(params) > limits.param_bytes:
        refuse(
            "more parameter space than there is",
            f"at most {limits.param_bytes} bytes",
            f"{sum(params)} bytes",
            "pass fewer tensor maps",
        )
