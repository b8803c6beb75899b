"""What a compiled program is kept under, and its parts as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeAlias

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import DType, dtype
from tilewright.ir.expr import Expr, Var, variables
from tilewright.ir.op import Program, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_expr, print_expr, print_program
from tilewright.support import env
from tilewright.support.cache import Store, default_store, digest
from tilewright.support.errors import Loc
from tilewright.support.show import print_limit
from tilewright.support.sources import compiler

Json: TypeAlias = Any


class Kept:
    """Where one program's code for one target is kept between processes, if anywhere.

    `toolchain` says all that shapes the code besides the program, the target and Tilewright
    itself; with `lines`, code also depends on where the program's text stands.
    """

    def __init__(
        self, program: Program, target: Target, toolchain: Mapping[str, Json], *, lines: bool
    ) -> None:
        self.name, self.target = program.name, str(target)
        self.store: Store | None = default_store()
        self.sources = compiler(target.kind)
        sources = self.sources.digest(self.store) if self.store is not None else None
        if sources is None:
            self.store = None
        if self.store is None:
            return
        self.key = digest(
            {
                "compiler": sources,
                "program": print_program(program),
                "lines": _lines(program) if lines else [],
                "target": str(target),
                "features": sorted(f.name for f in target.features),
                "flags": [flag() for flag in env.FLAGS if flag.shapes],
                "toolchain": toolchain,
                "printed": print_limit(),  # of tiles, where generated code does the printing
            }
        )

    def get(self) -> tuple[dict[str, Json], bytes] | None:
        """Header and bytes. None, too, where somebody wants to see the passes at work."""
        return None if self.store is None or env.DUMP() else self.store.get(self.key)

    def put(self, header: Mapping[str, Json], data: bytes) -> None:
        if self.store is not None and self.sources.unchanged():
            described = {"kind": "kernel", "kernel": self.name, "target": self.target}
            self.store.put(self.key, {**header, **described}, data)


def _lines(program: Program) -> list[Json]:
    """Where each op stands, in the order of the text."""
    return [to_json(op.loc) for op in walk_ops(program.kernels)]


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def to_json(value: Any) -> Json:
    """Numbers, words, expressions, types, positions and other records, alone or in tuples."""
    if isinstance(value, Expr):
        names = sorted((v.name, v.dtype.name) for v in variables(value))
        return {"Expr": [print_expr(value), dict(names)]}
    if isinstance(value, DType):
        return {"DType": value.name}
    if isinstance(value, tuple):
        return [to_json(v) for v in value]
    if is_dataclass(value):
        return {type(value).__name__: [to_json(getattr(value, f.name)) for f in fields(value)]}
    if value is None or isinstance(value, (int, str)):
        return value
    raise ValueError(f"{value} has no text")


def from_json(value: Json, *classes: type) -> Any:
    """What `to_json` was given; its records are of these classes."""
    if isinstance(value, list):
        return tuple(from_json(v, *classes) for v in value)
    if not isinstance(value, dict):
        return value
    ((kind, parts),) = value.items()
    if kind == "Expr":
        text, names = parts
        return parse_expr(text, {name: Var(name, dtype(k)) for name, k in names.items()})
    if kind == "DType":
        return dtype(parts)
    known = {c.__name__: c for c in (Loc, *classes)}
    return known[kind](*from_json(parts, *classes))


def scratch_to_json(buffers: Sequence[Buffer]) -> Json:
    """Tensors that live for one call."""
    return to_json(tuple((b.name, b.shape, b.dtype) for b in buffers))


def scratch_from_json(values: Json) -> tuple[Buffer, ...]:
    parts = from_json(values)
    return tuple(Buffer(name, shape, kind, Space.GLOBAL) for name, shape, kind in parts)
