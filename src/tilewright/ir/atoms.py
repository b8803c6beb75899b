"""Hardware instructions that ops may name, one record each.

A record says what the verifier, the scheduler and the interpreter need: which op it serves, which
unit runs it, whether it returns before it is done and how its completion is seen; matrix
instructions also which thread holds which element of their operands. Targets add source templates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tilewright.ir.layout.fragment import (
    Fragment,
    mma_a_operand,
    mma_accumulator,
    mma_b_operand,
    wgmma_a_operand,
    wgmma_accumulator,
)


class Feature(str, Enum):
    """What a target can do. Passes ask for features, never for version numbers.

    >>> import tilewright as tw
    >>> tw.Feature.WGMMA in tw.Target.parse("cuda").features
    True
    >>> tw.Feature.WGMMA in tw.Target.parse("cuda -arch=sm_80").features
    False
    """

    MMA = "mma"
    FP8_MMA = "fp8_mma"
    FP64_MMA = "fp64_mma"
    LDMATRIX = "ldmatrix"
    STMATRIX = "stmatrix"
    CP_ASYNC = "cp_async"
    BULK_COPY = "bulk_copy"
    WGMMA = "wgmma"
    CLUSTER = "cluster"
    MULTICAST = "multicast"
    REGISTER_MOVE = "register_move"
    VECTORS = "vectors"


@dataclass(frozen=True)
class Atom:
    """One instruction.

    `completion`: 'barrier' (counts bytes on one), a group unit ('wgmma', 'bulk', 'cp_async'), or
    '' when the op is done when it returns. `proxy`: how it touches shared memory, 'generic' or
    'async'; an async access sees generic writes only after `Fence proxy_async`. `fragments`: what
    one instruction of `n` columns holds in registers of its operands a (M×K), b (K×N), c (M×N).
    """

    name: str
    op: str
    unit: str
    needs: frozenset[Feature]
    completion: str = ""
    proxy: str = "generic"
    fragments: Callable[[MatrixType, int], dict[str, Fragment]] | None = None

    @property
    def is_async(self) -> bool:
        return bool(self.completion)


def _atom(name: str, op: str, unit: str, *needs: Feature, **kwargs: Any) -> Atom:
    return Atom(name, op, unit, frozenset(needs), **kwargs)


def _warp_product(kind: MatrixType, n: int) -> dict[str, Fragment]:
    return {
        "a": mma_a_operand(16, kind.k, kind.bits),
        "b": mma_b_operand(kind.k, n, kind.bits),
        "c": mma_accumulator(16, n),
    }


def _warpgroup_product(kind: MatrixType, n: int) -> dict[str, Fragment]:
    return {"a": wgmma_a_operand(64, kind.k, kind.bits), "c": wgmma_accumulator(64, n)}


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
        _atom("stmatrix", "Copy", "threads", Feature.STMATRIX),
        _atom("mma", "Gemm", "tensor", Feature.MMA, fragments=_warp_product),
        _atom(
            "wgmma",
            "Gemm",
            "tensor",
            Feature.WGMMA,
            completion="wgmma",
            proxy="async",
            fragments=_warpgroup_product,
        ),
        _atom("fma", "Gemm", "threads"),
        # a block of the result in registers over all of K, on a target without threads in a block
        _atom("micro_kernel", "Gemm", "threads"),
    )
}
GROUP_UNITS = ("wgmma", "bulk", "cp_async")


@dataclass(frozen=True)
class MatrixType:
    """An operand type of matrix instructions: k of one instruction (`mma` and `wgmma` alike),
    whether shared memory may hold it with M or N (not K) contiguous, what it accumulates in.
    Types of one `family` may be multiplied with each other. `needs`: what `mma` of it needs of the
    chip besides; `wgmma`: whether there is one."""

    name: str
    bits: int
    k: int
    family: str
    mn_major: bool = False
    accumulators: tuple[str, ...] = ("float32",)
    needs: Feature = Feature.MMA
    wgmma: bool = True

    def has_n(self, n: int) -> bool:
        """Whether a warpgroup instruction of `n` columns exists."""
        step = 16 if self.accumulators == ("int32",) and n > 32 else 8
        return 8 <= n <= 256 and n % step == 0

    def multiplies(self, other: MatrixType, accumulator: str) -> bool:
        """Whether instructions take this type by `other` into `accumulator`."""
        return self.family == other.family and accumulator in self.accumulators


_HALF = ("float32", "float16")
MATRIX_TYPES: dict[str, MatrixType] = {
    t.name: t
    for t in (
        MatrixType("bfloat16", 16, 16, "bfloat16", mn_major=True),
        MatrixType("float16", 16, 16, "float16", mn_major=True, accumulators=_HALF),
        MatrixType("tfloat32", 32, 8, "tfloat32"),
        MatrixType("float8_e4m3fn", 8, 32, "float8", False, _HALF, Feature.FP8_MMA),
        MatrixType("float8_e5m2", 8, 32, "float8", False, _HALF, Feature.FP8_MMA),
        MatrixType("float64", 64, 8, "float64", False, ("float64",), Feature.FP64_MMA, wgmma=False),
        MatrixType("int8", 8, 32, "int8", accumulators=("int32",)),
        MatrixType("uint8", 8, 32, "int8", accumulators=("int32",)),
    )
}


def matrix_fragments(atom: str, kind: MatrixType, n: int = 8) -> dict[str, Fragment]:
    """What one instruction of `atom` on `kind` by `n` columns holds in registers.

    >>> matrix_fragments("mma", MATRIX_TYPES["float16"])["c"]
    frag{tile=(16,8) tv=(32,(2,2)):(2,(1,64))}
    """
    found = ATOMS[atom].fragments
    assert found is not None, atom
    return found(kind, n)
