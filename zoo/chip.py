"""What the chip that a kernel is compiled for has, by which kernels choose their tiles. Targets
that are no GPU take the tiles of the largest one."""

from __future__ import annotations

import tilewright as tw


def by_warpgroups() -> bool:
    """Whether matrix instructions of whole warpgroups read their operands from shared memory: those
    of single warps take more registers beside the accumulators."""
    return tw.Feature.WGMMA in _gpu().features


def shared_bytes() -> int:
    """Of a block."""
    return int(_gpu().chip.shared)


def _gpu() -> tw.Target:
    found = tw.current_target()
    return found if found.arch else tw.Target.parse("cuda")
