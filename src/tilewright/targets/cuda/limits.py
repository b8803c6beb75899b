"""What a block may take on each architecture, and the checks that say no: before any pass looks
for a schedule, and before anything runs."""

from __future__ import annotations

from math import prod
from typing import NoReturn

from tilewright.ir.atoms import ATOMS, Feature
from tilewright.ir.chips import Chip
from tilewright.ir.core import *
from tilewright.ir.target import ARCHITECTURES, Target

GRID = (2**31 - 1, 65535, 65535)  # blocks along each axis
REGISTERS_OF_THREAD = 255
SPILLED = 8  # a fragment in local memory is slow; a much larger one is a mistake
LOCAL_BYTES_OF_THREAD = 512 * 1024


def _refuse(op: Op, what: str, expected: str, got: str, fix: str, code: str = "target") -> NoReturn:
    raise CompileError(what, loc=op.loc, expected=expected, got=got, fix=fix, code=code)


def check_tiles(program: Program, target: Target, scheduled: bool = False) -> None:
    """Raise if a single tile, or a cluster, is more than there is: no schedule changes that.
    `scheduled`: fragments are spread as they say, over the threads of a role."""
    for kernel in program.kernels:
        threads = kernel.thread_count
        _check_cluster(kernel, target)
        for op in walk_ops(kernel):
            _check_chip(op, target, scheduled)
            if isinstance(op, Alloc) and not (scheduled and op.buffer.is_fragment):
                _check_tile(op, threads, target)


def _check_cluster(kernel: Kernel, target: Target) -> None:
    most = target.chip.cluster
    if prod(kernel.cluster) > most:
        _refuse(
            kernel,
            f"{kernel.name} asks for a larger cluster than there is",
            f"at most {most} blocks on {target.arch}" if most > 1 else "no cluster",
            f"cluster_dims={kernel.cluster}",
            "use a smaller cluster" if most > 1 else f"{target.arch} has none: leave it out",
            "cluster",
        )
    for axis, (extent, together) in enumerate(zip(kernel.grid, kernel.cluster, strict=False)):
        if isinstance(extent, Const) and extent.value % together:
            _refuse(
                kernel,
                f"clusters of {kernel.name} do not divide its grid",
                f"axis {axis} a multiple of {together}",
                str(extent.value),
                f"use T.ceildiv(n, block * {together}) * {together} blocks, and a guard",
                "cluster",
            )


def _check_chip(op: Op, target: Target, scheduled: bool) -> None:
    """Instructions that a kernel asks for by name are the chip's, whatever is switched off."""
    able, arch = ARCHITECTURES["cuda"][target.arch], target.arch
    if isinstance(op, (Copy, Gemm)) and op.atom and not ATOMS[op.atom].needs <= able:
        instead = "T.gemm" if isinstance(op, Gemm) else "T.copy, without a barrier"
        needs = ", ".join(sorted(f.value for f in ATOMS[op.atom].needs))
        _refuse(
            op,
            f"{arch} has no {op.atom}, which this asks for",
            f"a chip with {needs}",
            arch,
            f"use {instead}: it takes what the chip has",
        )
    if isinstance(op, BarrierInit) and Feature.BULK_COPY not in able:
        _refuse(
            op,
            f"barriers of a kernel's own are not compiled for {arch}",
            f"a chip with {Feature.BULK_COPY.value}, from sm_90 on",
            arch,
            "leave them out: T.ws alone keeps the order of the text",
        )
    moves = scheduled and isinstance(op, Role) and op.registers is not None
    if moves and Feature.REGISTER_MOVE not in able:
        assert isinstance(op, Role)
        _refuse(
            op,
            f"{arch} cannot move registers to role {op.name}",
            f"a chip with {Feature.REGISTER_MOVE.value}: sm_90a, sm_100a, sm_120a …",
            f"registers={op.registers}",
            "leave it out",
        )


def _check_tile(op: Alloc, threads: int, target: Target) -> None:
    buffer, shape = op.buffer, "×".join(str(extent) for extent in op.buffer.static_shape)
    count = f"{shape} {buffer.dtype}"
    if buffer.space is Space.SHARED and buffer.bytes > target.chip.shared:
        _refuse(
            op,
            f"{buffer.name} needs more shared memory than a block has",
            f"at most {target.chip.shared} bytes on {target.arch}",
            f"{buffer.bytes} bytes: {count}",
            "use a smaller tile and loop over the rest",
            "shared-memory",
        )
    taken = -(-buffer.bytes // (4 * threads))
    if buffer.space is Space.FRAGMENT and taken > SPILLED * registers_for(threads, target):
        room = {n: registers_for(n, target) * 3 // 4 for n in (128, 256, 512)}  # for the rest, too
        more = next((n for n, most in room.items() if buffer.bytes <= 4 * n * most), 0)
        _refuse(
            op,
            f"{buffer.name} does not fit the registers of {threads} threads",
            f"at most {registers_for(threads, target)} registers in each thread",
            f"{taken} for {count}",
            "use a smaller tile" + (f", or threads={more}" if more > threads else ""),
            "registers",
        )
    if buffer.space is Space.LOCAL and buffer.bytes > LOCAL_BYTES_OF_THREAD:
        _refuse(
            op,
            f"{buffer.name} needs more memory than a thread has",
            f"at most {LOCAL_BYTES_OF_THREAD} bytes in each thread",
            f"{buffer.bytes} bytes: {count}",
            "keep it in a tensor: T.alloc_global",
            "local-memory",
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
            _refuse(
                kernel,
                f"grid axis {axis} of {kernel.name} is too long for CUDA",
                f"at most {most} blocks along it",
                str(extent.value),
                "put the longest axis first: axis 0 may have 2147483647 blocks",
                "grid",
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


# ── how many blocks share a multiprocessor ───────────────────────────────────────────────────

_SHARED_UNIT = 128
_PARTITIONS = 4  # warps are distributed over them in turn, each has its part of the registers


def blocks_per_sm(sm: Chip, *, threads: int, registers: int, shared: int) -> int:
    """Blocks of `threads` threads of `registers` registers and `shared` bytes that fit at once.

    >>> blocks_per_sm(CHIPS["sm_90a"], threads=128, registers=128, shared=48 * 1024)
    4
    """
    warps = -(-threads // 32)
    per_warp = registers_of_block(registers, 32)
    by_registers = sm.blocks_per_sm
    if per_warp:
        resident = sm.registers // _PARTITIONS // per_warp * _PARTITIONS
        by_registers = resident // warps
    taken = -(-shared // _SHARED_UNIT) * _SHARED_UNIT + sm.reserved
    return min(
        sm.blocks_per_sm, sm.threads_per_sm // (warps * 32), by_registers, sm.shared_per_sm // taken
    )


# of its registers, the least that a kernel is asked to do with
_LEAST_PART = 0.66


def blocks_to_ask(sm: Chip, *, threads: int, registers: int, shared: int) -> int:
    """As many blocks as shared memory has room for, where only registers stand against it and a
    third fewer would do; 0 where there is nothing to ask.

    A block that holds its tile in shared memory waits for it; others work meanwhile. On an H200 a
    layer norm of 65536 columns has 0.91 of a copy's speed with three blocks, 0.84 with two.

    >>> h200 = CHIPS["sm_90a"]
    >>> blocks_to_ask(h200, threads=512, registers=56, shared=64 * 1024)
    3
    >>> blocks_to_ask(h200, threads=512, registers=96, shared=64 * 1024)
    0
    """
    now = blocks_per_sm(sm, threads=threads, registers=registers, shared=shared)
    room = blocks_per_sm(sm, threads=threads, registers=1, shared=shared)
    if room <= now or room == min(sm.blocks_per_sm, sm.threads_per_sm // threads):
        return 0
    return room if sm.registers // (room * threads) >= _LEAST_PART * registers else 0
