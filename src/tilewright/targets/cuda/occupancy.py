"""How many blocks of a kernel share a multiprocessor: arithmetic, no GPU needed."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.ir.chips import CHIPS
from tilewright.targets.cuda.launch import LaunchSpec
from tilewright.targets.cuda.limits import registers_of_block
from tilewright.targets.cuda.nvrtc import Resources


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
    arch: Multiprocessor(
        chip.shared_per_sm,
        chip.threads_per_sm,
        chip.blocks_per_sm,
        chip.registers,
        chip.reserved,
    )
    for arch, chip in CHIPS.items()
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


# of its registers, the least that a kernel is asked to do with
_LEAST_PART = 0.66


def blocks_to_ask(sm: Multiprocessor, *, threads: int, registers: int, shared: int) -> int:
    """As many blocks as shared memory has room for, where only registers stand against it and a
    third fewer would do; 0 where there is nothing to ask.

    A block that holds its tile in shared memory waits for it; others work meanwhile. On an H200 a
    layer norm of 65536 columns has 0.91 of a copy's speed with three blocks, 0.84 with two.

    >>> h200 = MULTIPROCESSORS["sm_90a"]
    >>> blocks_to_ask(h200, threads=512, registers=56, shared=64 * 1024)
    3
    >>> blocks_to_ask(h200, threads=512, registers=96, shared=64 * 1024)
    0
    """
    now = blocks_per_sm(sm, threads=threads, registers=registers, shared=shared)
    room = blocks_per_sm(sm, threads=threads, registers=1, shared=shared)
    if room <= now or room == min(sm.blocks, sm.threads // threads):
        return 0
    return room if sm.registers // (room * threads) >= _LEAST_PART * registers else 0


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
