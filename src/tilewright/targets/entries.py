"""What a compiled program is kept under, and its parts as JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
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
    itself, of which it depends on a `folder` and what that imports; with `lines`, it also depends
    on where the program's text stands.
    """

    def __init__(
        self,
        program: Program,
        target: Target,
        toolchain: Mapping[str, Json],
        *,
        lines: bool,
        folder: str = "",
    ) -> None:
        self.name, self.target = program.name, str(target)
        self.store: Store | None = default_store()
        self.sources = compiler(folder or f"targets/{target.kind}/")
        sources = self.sources.digest(self.store) if self.store is not None else None
        if sources is None:
            self.store = None
        if self.store is None:
            return
        self.key = digest(
            {
                "compiler": sources,
                "folder": folder,
                "program": print_program(program),
                "lines": lines_of(program) if lines else [],
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
            self.store.put(self.key, {**described, **header}, data)


def lines_of(program: Program) -> list[Json]:
    """Where each op stands, in the order of the text."""
    return [to_json(op.loc) for op in walk_ops(program.kernels)]


def with_lines(program: Program, lines: Sequence[Json]) -> Program:
    """`program`, read from its text by nobody else, where its ops stood."""
    for op, place in zip(walk_ops(program.kernels), lines, strict=True):
        object.__setattr__(op, "loc", from_json(place))
    return program


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def to_json(value: Any) -> Json:
    """Numbers, words, expressions, types, tensors and other records, alone, in tuples or in
    mappings."""
    if value is None or isinstance(value, (int, str)):
        return value
    if isinstance(value, Expr):
        names = sorted((v.name, v.dtype.name) for v in variables(value))
        return {"Expr": [print_expr(value), dict(names)]}
    if isinstance(value, DType):
        return {"DType": value.name}
    if isinstance(value, Mapping):
        return {"Mapping": [[key, to_json(v)] for key, v in value.items()]}
    name, parts = type(value).__name__, value
    if isinstance(value, Buffer):  # that lives for one call
        parts = (value.name, value.shape, value.dtype)
    elif is_dataclass(value):
        parts = tuple(getattr(value, f.name) for f in fields(value))
    elif not isinstance(value, tuple):
        raise ValueError(f"{value} has no text")
    listed = [to_json(part) for part in parts]
    return listed if name == "tuple" else {name: listed}


def from_json(value: Json, *classes: Callable[..., Any]) -> Any:
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
    if kind == "Mapping":
        return {key: from_json(v, *classes) for key, v in parts}
    known: dict[str, Callable[..., Any]] = {"Buffer": partial(Buffer, space=Space.GLOBAL)}
    known |= {c.__name__: c for c in (Loc, *classes)}
    return known[kind](*from_json(parts, *classes))
