"""What there was when a run failed: the block, the thread or iteration, the scalars of the op."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.expr import variables
from tilewright.ir.op import Intrinsic, Op, expressions
from tilewright.machine.conflicts import Touch
from tilewright.machine.state import Agent, Frame
from tilewright.support.errors import RunError

MANY = 8  # values that are told at most


def in_lane(error: RunError, fr: Frame, wrong: Any) -> RunError:
    """`error`, born in the first lane for which `wrong` holds."""
    shape = np.shape(wrong)
    if len(shape) <= len(fr.lanes) and np.broadcast_shapes(shape, fr.lanes) == fr.lanes:
        error.__dict__["lane"] = int(np.argmax(np.broadcast_to(wrong, fr.lanes)))
    return error


def of_owner(error: RunError, fr: Frame, t: Touch, wrong: Any) -> RunError:
    """`error`, born in the lane that touches the first element for which `wrong` holds."""
    lanes = np.shape(t.owners)
    owners = np.asarray(t.owners).reshape(-1)
    if not owners.size or not all(isinstance(i, np.ndarray) for i in t.where):
        return error
    if np.size(wrong) == 1:  # a variable that all lanes have in common
        wrong = np.full(owners.size, bool(np.any(wrong)))
    flags = np.asarray(wrong).reshape(owners.size, -1).any(axis=1)
    if flags.any():
        shape = t.mem.lead + t.mem.shape
        places = [np.broadcast_to(i, lanes).reshape(-1) for i in t.where]
        flat = np.ravel_multi_index(places, shape) if places else np.zeros(owners.size)
        first = int(owners[flags][int(np.argmin(flat[flags]))])
        error.__dict__["lane"] = first if fr.in_map else first - int(fr.agent.ids[0])
    return error


def tell(error: RunError, agent: Agent) -> None:
    """Add to the error where and with what values it happened, once."""
    fr = agent.frame
    if error.__dict__.setdefault("told", fr) is not fr:
        return
    lane = error.__dict__.get("lane")
    where = f"block {tuple(agent.block.index)}"
    if agent.crew.name != "all threads":
        where += f", {agent.crew.name}"
    at: tuple[int, ...] = ()
    if lane is not None and 0 <= lane < int(np.prod(fr.lanes)):
        at = tuple(int(i) for i in np.unravel_index(lane, fr.lanes))
        where += f", iteration {at}" if fr.in_map else f", thread {int(agent.ids[at[0]])}"
    values = ", ".join(f"{name} = {value}" for name, value in _values(fr, at))
    note = f"in {where}" + (f": {values}" if values else "")
    found = error.diagnostic
    error.diagnostic = replace(found, notes=(*found.notes, note))


def describe(op: Op | None) -> str:
    """An op and where it stands, in words."""
    name = op.name if isinstance(op, Intrinsic) else type(op).__name__
    return name + (f" at {op.loc}" if op is not None and op.loc is not None else "")


def _values(fr: Frame, at: tuple[int, ...]) -> list[tuple[str, Any]]:
    """The scalars that the op mentions, those of the failing lane where they differ."""
    if fr.op is None:
        return []
    found = []
    for name in sorted({v.name for e in expressions(fr.op) for v in variables(e)}):
        value = fr.vars.get(name)
        if value is None or (value.ndim and not at):
            continue
        if value.ndim:
            try:
                value = np.broadcast_to(value, fr.lanes)[at]
            except ValueError:
                continue
        found.append((name, value))
    return found[:MANY]
