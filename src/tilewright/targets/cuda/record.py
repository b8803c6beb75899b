"""What a launch needs to know of a compiled program: as objects, and as JSON for the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.buffer import Buffer
from tilewright.support.errors import Cost
from tilewright.targets.cuda.launch import LaunchSpec, Map, Scalar, Size, TensorPointer
from tilewright.targets.cuda.nvrtc import Remedied
from tilewright.targets.cuda.tensormap import TensorMapSpec
from tilewright.targets.entries import Json, from_json, to_json


@dataclass(frozen=True)
class Record:
    """`align` says on which bytes tensors must begin, by name; `serialized` what the assembler had
    against products by warpgroups, with what helped; `costs` what the passes left slow."""

    specs: tuple[LaunchSpec, ...]
    scratch: tuple[Buffer, ...] = ()
    align: Mapping[str, int] = field(default_factory=dict)
    serialized: Remedied | None = None
    costs: tuple[Cost, ...] = ()

    def to_json(self) -> Json:
        return to_json(self)

    @staticmethod
    def from_json(value: Json) -> Record:
        found = from_json(value, *_PARTS)
        if not isinstance(found, Record):
            raise ValueError
        return found


_PARTS = (
    Record, LaunchSpec, TensorPointer, Scalar, Size, Map, TensorMapSpec, Remedied, Cost,
)  # fmt: skip
