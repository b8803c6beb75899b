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
