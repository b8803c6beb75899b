"""The GPUs that code is compiled for: a record per chip, with what it can do and what it has.

Limits are those of the CUDA programming guide's table of compute capabilities; a test asks the
assembler for the same figures. A new chip is a new record.
"""

from __future__ import annotations

from dataclasses import dataclass

from tilewright.ir.atoms import Feature


@dataclass(frozen=True)
class Chip:
    """What a block may take of a multiprocessor, and what its blocks share; bytes of shared memory
    count static and dynamic ones together."""

    shared: int  # of a block
    shared_per_sm: int
    multiprocessors: int  # of the largest chip of its kind that is sold
    registers: int = 65536  # of a block, and of a multiprocessor
    threads_per_sm: int = 2048
    blocks_per_sm: int = 32
    reserved: int = 1024  # bytes of shared memory that every block takes besides
    cluster: int = 1  # blocks; more than 8 need the non-portable attribute, which loading sets
    grouped: int = 0  # multiprocessors that clusters of more than two can have: none is in two GPCs
    param_bytes: int = 4096
    # Of a cycle and multiprocessor, for ranking schedules: 16-bit products by `mma`, and bytes from
    # DRAM and from the L2 cache.
    warp_products: int = 1024
    dram_bytes: int = 13
    l2_bytes: int = 40

    def resident(self, threads: int, shared: int, registers: int = 0) -> int:
        """Blocks that share a multiprocessor, each with so many threads, bytes of shared memory
        and registers of a thread; 0 registers: not known."""
        by_shared = self.shared_per_sm // (-(-shared // 128) * 128 + self.reserved)
        found = min(by_shared, self.threads_per_sm // threads, self.blocks_per_sm)
        if not registers:
            return found
        return min(found, max(1, self.registers // (-(-registers // 8) * 8 * threads)))


@dataclass(frozen=True)
class Architecture:
    """`features`: of all code for it. `own`: of code for this chip alone (`sm_90a`) or for its
    family (`sm_100f`), which no later chip runs."""

    chip: Chip
    features: frozenset[Feature]
    own: frozenset[Feature] = frozenset()
    suffixes: str = ""

    def versions(self) -> dict[str, frozenset[Feature]]:
        """What follows its number in the names of targets, with the features of each."""
        own = dict.fromkeys(self.suffixes, self.features | self.own)
        return {"": self.features, **own}


def _chip(kilobytes: int, multiprocessors: int, **figures: int) -> Chip:
    """`kilobytes` of shared memory on a multiprocessor, of which each block has one less."""
    return Chip(1024 * (kilobytes - 1), 1024 * kilobytes, multiprocessors, **figures)


_SM80 = frozenset({Feature.MMA, Feature.LDMATRIX, Feature.CP_ASYNC})
_SM89 = _SM80 | {Feature.FP8_MMA}
_SM90 = _SM89 | {Feature.FP64_MMA, Feature.STMATRIX, Feature.BULK_COPY, Feature.CLUSTER}
_MOVES = frozenset({Feature.REGISTER_MOVE})
_SHARES = _MOVES | {Feature.MULTICAST}

_PARAMS = 32_764
_AMPERE = {"threads_per_sm": 1536, "blocks_per_sm": 16}
_SMALL = {"threads_per_sm": 1536, "blocks_per_sm": 24}
_LARGE = {"cluster": 16, "param_bytes": _PARAMS, "l2_bytes": 56}
_OTHERS = {"cluster": 8, "param_bytes": _PARAMS}

# by compute capability; products by `tcgen05` are not compiled yet: those of 10.0 on are `mma`
_NUMBERS = {
    80: Architecture(_chip(164, 108), _SM80),
    86: Architecture(
        _chip(100, 84, **_AMPERE, warp_products=512, dram_bytes=6, l2_bytes=32), _SM80
    ),
    87: Architecture(_chip(164, 16, **_AMPERE, dram_bytes=10, l2_bytes=32), _SM80),
    # no table says how much shared memory it has: as much as the least of its family
    88: Architecture(_chip(100, 16, **_AMPERE, dram_bytes=6, l2_bytes=32), _SM80),
    89: Architecture(
        _chip(100, 142, **_SMALL, warp_products=512, dram_bytes=3, l2_bytes=32), _SM89
    ),
    # 62 % of what wgmma does; 4.0 TB/s at 1.6 GHz; of the L2's wire of 64 bytes a product of 8192³
    # at 770 TFLOP/s takes 43; an H200 runs 30 clusters of four, or 15 of eight, at once
    90: Architecture(
        _chip(228, 132, **_LARGE, grouped=120, warp_products=1280, dram_bytes=19),
        _SM90,
        _SHARES | {Feature.WGMMA},
        "a",
    ),
    100: Architecture(_chip(228, 148, **_LARGE, dram_bytes=29), _SM90, _SHARES, "af"),
    103: Architecture(_chip(228, 148, **_LARGE, dram_bytes=29), _SM90, _SHARES, "af"),
    107: Architecture(
        _chip(228, 148, **_OTHERS, threads_per_sm=1024, blocks_per_sm=16, dram_bytes=29),
        _SM90,
        _SHARES,
        "af",
    ),
    110: Architecture(_chip(228, 20, **_OTHERS, **_SMALL, dram_bytes=9), _SM90, _SHARES, "af"),
    120: Architecture(
        _chip(100, 188, **_OTHERS, **_SMALL, warp_products=512, dram_bytes=4, l2_bytes=32),
        _SM90,
        _MOVES,
        "af",
    ),
    121: Architecture(
        _chip(100, 48, **_OTHERS, **_SMALL, warp_products=512, dram_bytes=2, l2_bytes=32),
        _SM90,
        _MOVES,
        "af",
    ),
}

# `compute_90` is PTX, which the driver of any later chip finishes; `sm_90` machine code.
PTX = "compute_"
DEFAULT = "sm_90a"
CUDA: dict[str, frozenset[Feature]] = {
    **{
        f"sm_{number}{suffix}": features
        for number, arch in _NUMBERS.items()
        for suffix, features in arch.versions().items()
    },
    **{f"{PTX}{number}": arch.features for number, arch in _NUMBERS.items()},
}
CHIPS = {
    name: _NUMBERS[int(name.removeprefix("sm_").removeprefix(PTX).rstrip("af"))].chip
    for name in CUDA
}


def machine_arch(arch: str) -> str:
    """The machine code whose figures stand for PTX of `arch`.

    >>> machine_arch("compute_120"), machine_arch("sm_90a")
    ('sm_120', 'sm_90a')
    """
    return f"sm_{arch.removeprefix(PTX)}" if arch.startswith(PTX) else arch


def arch_for(major: int, minor: int) -> str | None:
    """What code for a chip of this compute capability is compiled for: its own architecture, with
    all features that it has; for a chip that is not known, PTX of the newest before it.

    >>> arch_for(9, 0), arch_for(8, 9), arch_for(13, 0), arch_for(7, 5)
    ('sm_90a', 'sm_89', 'compute_121', None)
    """
    number = 10 * major + minor
    if number in _NUMBERS:
        return f"sm_{number}{_NUMBERS[number].suffixes[:1]}"
    before = [known for known in _NUMBERS if known < number]
    return f"{PTX}{max(before)}" if before else None
