"""Why passes chose what they chose, said where the choice is made and kept beside the programs.

A pass stays a plain function of a program: it calls `because`, and whoever runs it may listen.
`run_pipeline` does, and keeps what it hears in `Trace.reasons`; nobody else needs to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from typing import TypeAlias, TypeVar

from tilewright.ir.op import Copy, Gemm, Map, Op
from tilewright.support.errors import Cost, Loc

Reasons: TypeAlias = dict[tuple[str, str], str]  # by kernel, and what the choice is about

_Heard = TypeVar("_Heard")
LOOP = "for "  # what the keys of loops begin with
_listener: ContextVar[Reasons | None] = ContextVar("reasons", default=None)
_costs: ContextVar[list[Cost] | None] = ContextVar("costs", default=None)


@contextmanager
def _heard(where: ContextVar[_Heard | None], found: _Heard) -> Iterator[_Heard]:
    token = where.set(found)
    try:
        yield found
    finally:
        where.reset(token)


def listening() -> AbstractContextManager[Reasons]:
    """Receives what passes say inside."""
    return _heard(_listener, {})


def counting() -> AbstractContextManager[list[Cost]]:
    """Receives what passes say of costs inside."""
    return _heard(_costs, [])


def costs(kernel: str, loc: Loc | None, text: str) -> None:
    """What is done for `kernel` at `loc` is right, and slower than its author would expect."""
    found = _costs.get()
    if found is not None:
        found.append(Cost(kernel, loc, text))


def because(kernel: str, about: str | Op, why: str) -> None:
    """In `kernel`, what was chosen for a buffer (by name) or an op has this reason; the last one
    said holds. Of a loop several things are chosen: their reasons add up."""
    found = _listener.get()
    if found is not None:
        key = kernel, about if isinstance(about, str) else key_of(about)
        merge(found, {key: why})


def merge(found: Reasons, more: Reasons) -> None:
    """`found` with what was said later."""
    for (kernel, about), why in more.items():
        said = found.get((kernel, about), "") if about.startswith(LOOP) else ""
        known = said.split("; ") if said else []
        found[kernel, about] = "; ".join([*known, *(w for w in why.split("; ") if w not in known)])


def key_of(op: Op) -> str:
    """What an op keeps while passes rewrite it: a map its variables, others their place in the
    text and the tiles they touch."""
    if isinstance(op, Map):
        return "map " + ", ".join(v.name for v in op.vars)
    tiles: tuple[str, ...] = ()
    if isinstance(op, Copy):
        tiles = (op.src.buffer.name, op.dst.buffer.name)
    elif isinstance(op, Gemm):
        tiles = (op.c.buffer.name,)
    return " ".join([type(op).__name__.lower(), *tiles, at_line(op.loc)])


def at_line(loc: Loc | None) -> str:
    """'at line 31', or '' where the place is not known."""
    return f"at line {loc.line}" if loc is not None else ""
