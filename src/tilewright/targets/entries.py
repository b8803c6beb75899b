"""What a compiled program is kept under, and its parts as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Const, Expr, Var, const, variables
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
    locs = (op.loc for kernel in program.kernels for op in walk_ops(kernel))
    return [None if loc is None else loc_to_json(loc) for loc in locs]


# ── parts ────────────────────────────────────────────────────────────────────────────────────


def loc_to_json(loc: Loc) -> Json:
    callers = [loc_to_json(caller) for caller in loc.callers]
    return [loc.file, loc.line, loc.column, loc.end_column, callers]


def loc_from_json(value: Json) -> Loc:
    file, line, column, end, callers = value
    return Loc(file, line, column, end, tuple(map(loc_from_json, callers)))


def expr_to_json(expr: Expr) -> Json:
    """A number, or an expression's text with the variables in it."""
    if isinstance(expr, Const) and expr.dtype.name == "int32":
        return expr.value
    return [print_expr(expr), {v.name: v.dtype.name for v in sorted(variables(expr), key=_name)}]


def expr_from_json(value: Json) -> Expr:
    if isinstance(value, int):
        return const(value)
    text, names = value
    return parse_expr(text, {name: Var(name, dtype(kind)) for name, kind in names.items()})


def exprs_to_json(exprs: Sequence[Expr]) -> list[Json]:
    return [expr_to_json(e) for e in exprs]


def exprs_from_json(values: Sequence[Json]) -> tuple[Expr, ...]:
    return tuple(map(expr_from_json, values))


def scratch_to_json(buffers: Sequence[Buffer]) -> list[Json]:
    """Tensors that live for one call."""
    return [[b.name, exprs_to_json(b.shape), b.dtype.name] for b in buffers]


def scratch_from_json(values: Sequence[Json]) -> tuple[Buffer, ...]:
    return tuple(
        Buffer(name, exprs_from_json(shape), dtype(kind), Space.GLOBAL)
        for name, shape, kind in values
    )


def _name(var: Var) -> str:
    return var.name
