"""Hardware instructions that ops may name, one record each.

A record says what the verifier, the scheduler and the interpreter need: which op it serves, which
unit runs it, whether it returns before it is done and how its completion is seen. Targets add
operand layouts and source templates.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Feature(str, Enum):
    """What a target can do. Passes ask for features, never for version numbers."""

    MMA = "mma"
    LDMATRIX = "ldmatrix"
    CP_ASYNC = "cp_async"
    BULK_COPY = "bulk_copy"
    WGMMA = "wgmma"
    CLUSTER = "cluster"
    REGISTER_MOVE = "register_move"
    VECTORS = "vectors"


@dataclass(frozen=True)
class Atom:
    """One instruction.

    `completion`: 'barrier' (counts bytes on one), a group unit ('wgmma', 'bulk', 'cp_async'), or
    '' when the op is done when it returns. `proxy`: how it touches shared memory, 'generic' or
    'async'; an async access sees generic writes only after `Fence proxy_async`.
    """

    name: str
    op: str
    unit: str
    needs: frozenset[Feature]
    completion: str = ""
    proxy: str = "generic"

    @property
    def is_async(self) -> bool:
        return bool(self.completion)


def _atom(name: str, op: str, unit: str, *needs: Feature, **kwargs: str) -> Atom:
    return Atom(name, op, unit, frozenset(needs), **kwargs)


ATOMS: dict[str, Atom] = {
    a.name: a
    for a in (
        _atom("threads", "Copy", "threads"),
        _atom("cp_async", "Copy", "copy", Feature.CP_ASYNC, completion="cp_async"),
        _atom("bulk_load", "Copy", "copy", Feature.BULK_COPY, completion="barrier", proxy="async"),
        _atom("bulk_store", "Copy", "copy", Feature.BULK_COPY, completion="bulk", proxy="async"),
        # a store into a peer's shared memory that counts its bytes on a barrier there
        _atom("remote_store", "Copy", "copy", Feature.CLUSTER, completion="barrier"),
        _atom("ldmatrix", "Copy", "threads", Feature.LDMATRIX),
        _atom("stmatrix", "Copy", "threads", Feature.LDMATRIX),
        _atom("mma", "Gemm", "tensor", Feature.MMA),
        _atom("wgmma", "Gemm", "tensor", Feature.WGMMA, completion="wgmma", proxy="async"),
        _atom("fma", "Gemm", "threads"),
    )
}
GROUP_UNITS = ("wgmma", "bulk", "cp_async")


@dataclass(frozen=True)
class MatrixType:
    """An operand type of warpgroup matrix instructions: k of one instruction, and whether shared
    memory may hold it with M or N (not K) contiguous."""

    name: str
    bits: int
    k: int
    mn_major: bool = False
    accumulators: tuple[str, ...] = ("float32",)

    def has_n(self, n: int) -> bool:
        """Whether an instruction of `n` columns exists."""
        step = 16 if self.accumulators == ("int32",) and n > 32 else 8
        return 8 <= n <= 256 and n % step == 0


MATRIX_TYPES: dict[str, MatrixType] = {
    t.name: t
    for t in (
        MatrixType("bfloat16", 16, 16, mn_major=True),
        MatrixType("float16", 16, 16, mn_major=True),
        MatrixType("tfloat32", 32, 8),
        MatrixType("float8_e4m3fn", 8, 32),
        MatrixType("float8_e5m2", 8, 32),
        MatrixType("int8", 8, 32, accumulators=("int32",)),
        MatrixType("uint8", 8, 32, accumulators=("int32",)),
    )
}
