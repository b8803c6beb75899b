"""What a launch needs to know of a compiled program: as objects, and as JSON for the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tilewright.ir.buffer import Buffer
from tilewright.support.errors import Cost
from tilewright.targets.cuda.launch import LaunchSpec, Map, Scalar, Size, TensorPointer
from tilewright.targets.cuda.nvrtc import Serialized
from tilewright.targets.cuda.tensormap import TensorMapSpec
from tilewright.targets.entries import (
    Json,
    from_json,
    scratch_from_json,
    scratch_to_json,
    to_json,
)


@dataclass(frozen=True)
class Record:
    """`align` says on which bytes tensors must begin, by name; `serialized` what the assembler had
    against products by warpgroups, with what helped; `costs` what the passes left slow."""

    specs: tuple[LaunchSpec, ...]
    scratch: tuple[Buffer, ...] = ()
    align: Mapping[str, int] = field(default_factory=dict)
    serialized: Serialized | None = field(default=None, compare=False)
    costs: tuple[Cost, ...] = ()

    def to_json(self) -> dict[str, Json]:
        return {
            "specs": to_json(self.specs),
            "scratch": scratch_to_json(self.scratch),
            "align": dict(self.align),
            "serialized": None if self.serialized is None else _error_to_json(self.serialized),
            "costs": to_json(self.costs),
        }

    @staticmethod
    def from_json(value: Mapping[str, Json]) -> Record:
        error = value["serialized"]
        return Record(
            from_json(value["specs"], LaunchSpec, TensorPointer, Scalar, Size, Map, TensorMapSpec),
            scratch_from_json(value["scratch"]),
            value["align"],
            None if error is None else _error_from_json(error),
            tuple(Cost(*parts) for parts in from_json(value["costs"])),
        )


def _error_to_json(error: Serialized) -> Json:
    said = error.diagnostic
    told = {"message": said.message, "expected": said.expected, "fix": said.fix}
    return {"said": told, "remedy": error.remedy}


def _error_from_json(value: Json) -> Serialized:
    error = Serialized(**value["said"])
    error.remedy = value["remedy"]
    return error
