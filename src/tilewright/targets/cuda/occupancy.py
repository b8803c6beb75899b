"""How many blocks of a kernel share a multiprocessor: arithmetic, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

from tilewright.targets.cuda.limits import registers_of_block
from tilewright.targets.cuda.nvrtc import Resources

if TYPE_CHECKING:
    from tilewright.targets.cuda.backend import CudaKernel
    from tilewright.targets.cuda.launch import LaunchSpec


@dataclass(frozen=True)
class Multiprocessor:
    """What the blocks on one multiprocessor share; each also takes `reserved` bytes of `shared`."""

    shared: int
    threads: int = 2048
    blocks: int = 32
    registers: int = 65536
    reserved: int = 1024
    partitions: int = 4  # warps are dealt to them in turn, each has its part of the registers


MULTIPROCESSORS = {
    "sm_80": Multiprocessor(shared=167_936),
    "sm_90a": Multiprocessor(shared=233_472),
}

_SHARED_UNIT = 128


def blocks_per_sm(sm: Multiprocessor, *, threads: int, registers: int, shared: int) -> int:
    """Blocks of `threads` threads of `registers` registers and `shared` bytes that fit at once.

    >>> blocks_per_sm(MULTIPROCESSORS["sm_90a"], threads=128, registers=128, shared=48 * 1024)
    4
    """
    warps = -(-threads // 32)
    per_warp = registers_of_block(registers, 32)
    by_registers = sm.blocks
    if per_warp:
        resident = sm.registers // sm.partitions // per_warp * sm.partitions
        by_registers = resident // warps
    taken = -(-shared // _SHARED_UNIT) * _SHARED_UNIT + sm.reserved
    return min(sm.blocks, sm.threads // (warps * 32), by_registers, sm.shared // taken)


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
    if sm := MULTIPROCESSORS.get(arch):
        blocks = blocks_per_sm(
            sm,
            threads=spec.threads,
            registers=resources.registers,
            shared=found["shared_bytes"],
        )
        found["blocks_per_sm"] = blocks
        found["occupancy"] = blocks * -(-spec.threads // 32) * 32 / sm.threads
    return found


def summary(kernel: CudaKernel) -> dict[str, Any]:
    """The figures of a compiled program: the most that any of its kernels takes, and the fewest
    blocks and threads that fit."""
    each = [figures(s, kernel.resources[s.kernel], kernel.target.arch) for s in kernel.specs]
    fewest = ("blocks_per_sm", "occupancy")
    return {
        name: (min if name in fewest else max)(one[name] for one in each)
        for name in (each[0] if each else ())
    }
