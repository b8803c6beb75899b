"""What a block may take on each architecture, and the check that says no before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.target import CHIPS
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


# 16 blocks in a cluster need the non-portable attribute, which loading sets.
LIMITS = {
    "sm_80": Limits(shared=CHIPS["sm_80"].shared),
    "sm_90a": Limits(shared=CHIPS["sm_90a"].shared, cluster=16, param_bytes=32_764),
}

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
