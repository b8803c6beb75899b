"""What a launch needs to know of a compiled program: as objects, and as JSON for the cache."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Expr
from tilewright.support.errors import Cost
from tilewright.targets.cuda.launch import LaunchSpec, Map, Param, Scalar, Size, TensorPointer
from tilewright.targets.cuda.nvrtc import Serialized
from tilewright.targets.cuda.tensormap import TensorMapSpec
from tilewright.targets.cuda.values import Value
from tilewright.targets.entries import (
    Json,
    expr_from_json,
    expr_to_json,
    loc_from_json,
    loc_to_json,
    scratch_from_json,
    scratch_to_json,
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
            "specs": [_spec_to_json(spec) for spec in self.specs],
            "scratch": scratch_to_json(self.scratch),
            "align": dict(self.align),
            "serialized": None if self.serialized is None else _error_to_json(self.serialized),
            "costs": [
                [c.kernel, None if c.loc is None else loc_to_json(c.loc), c.text]
                for c in self.costs
            ],
        }

    @staticmethod
    def from_json(value: Mapping[str, Json]) -> Record:
        error = value["serialized"]
        return Record(
            tuple(map(_spec_from_json, value["specs"])),
            scratch_from_json(value["scratch"]),
            value["align"],
            None if error is None else _error_from_json(error),
            tuple(
                Cost(kernel, None if loc is None else loc_from_json(loc), text)
                for kernel, loc, text in value["costs"]
            ),
        )


def _error_to_json(error: Serialized) -> Json:
    said = error.diagnostic
    told = {"message": said.message, "expected": said.expected, "fix": said.fix}
    return {"said": told, "remedy": error.remedy}


def _error_from_json(value: Json) -> Serialized:
    error = Serialized(**value["said"])
    error.remedy = value["remedy"]
    return error


def _spec_to_json(spec: LaunchSpec) -> Json:
    return {
        "kernel": spec.kernel,
        "grid": [_value_to_json(v) for v in spec.grid],
        "threads": spec.threads,
        "params": [_param_to_json(p) for p in spec.params],
        "cluster": list(spec.cluster),
        "shared": spec.shared,
        "programmatic": spec.programmatic,
        "loc": None if spec.loc is None else loc_to_json(spec.loc),
    }


def _spec_from_json(value: Json) -> LaunchSpec:
    return LaunchSpec(
        value["kernel"],
        tuple(map(_value_from_json, value["grid"])),
        value["threads"],
        tuple(map(_param_from_json, value["params"])),
        tuple(value["cluster"]),
        value["shared"],
        value["programmatic"],
        None if value["loc"] is None else loc_from_json(value["loc"]),
    )


def _value_to_json(value: Value) -> Json:
    if isinstance(value, (int, str)):
        return value
    if isinstance(value, Expr):
        return {"expr": expr_to_json(value)}
    raise ValueError(f"{value} has no text")


def _value_from_json(value: Json) -> Value:
    if isinstance(value, dict):
        return expr_from_json(value["expr"])
    return int(value) if isinstance(value, int) else str(value)


def _param_to_json(param: Param) -> Json:
    match param:
        case TensorPointer(name, offset):
            return ["pointer", name, _value_to_json(offset)]
        case Scalar(name, kind):
            return ["scalar", name, kind.name]
        case Size(value, kind):
            return ["size", _value_to_json(value), kind.name]
        case Map(spec):
            return ["map", _map_to_json(spec)]


def _param_from_json(value: Json) -> Param:
    match value:
        case ["pointer", name, offset]:
            return TensorPointer(name, _value_from_json(offset))
        case ["scalar", name, kind]:
            return Scalar(name, dtype(kind))
        case ["size", size, kind]:
            return Size(_value_from_json(size), dtype(kind))
        case ["map", spec]:
            return Map(_map_from_json(spec))
    raise ValueError(f"no parameter: {value}")


_VALUES = ("shape", "strides")
_INTEGERS = ("box", "element_strides")


def _map_to_json(spec: TensorMapSpec) -> Json:
    found: dict[str, Any] = dict(vars(spec))
    for name in _VALUES:
        found[name] = found[name] and [_value_to_json(v) for v in found[name]]
    for name in _INTEGERS:
        found[name] = found[name] and list(found[name])
    return {**found, "dtype": spec.dtype.name, "offset": _value_to_json(spec.offset)}


def _map_from_json(value: Json) -> TensorMapSpec:
    found = dict(value)
    for name in _VALUES:
        found[name] = found[name] and tuple(map(_value_from_json, found[name]))
    for name in _INTEGERS:
        found[name] = found[name] and tuple(found[name])
    found |= {"dtype": dtype(found["dtype"]), "offset": _value_from_json(found["offset"])}
    return TensorMapSpec(**found)
