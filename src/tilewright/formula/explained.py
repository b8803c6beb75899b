"""What `explain()` says of a formula: laws, fusions with their prices, kernels, and errors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import prod
from typing import Any

import numpy as np

from tilewright.formula.bounds import roundings
from tilewright.formula.search.decisions import Decision
from tilewright.formula.search.find import Found
from tilewright.formula.search.prices import LAUNCH, Price, Rates, bytes_of
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.program import TileProgram
from tilewright.ir.bind import static_value
from tilewright.ir.core import *
from tilewright.ir.formula import Extent, Formula, extents

_MOST = 12  # refused decisions that are listed
_QUICK = 1 << 20  # elements whose errors are computed on the way


def explained(found: Found, rates: Rates, sizes: Mapping[Var, int]) -> list[str]:
    """What was decided and why."""
    program, normal = found.program, found.decided.normal
    lines = [*moved(program, normal.formula, sizes), f"laws: {', '.join(normal.laws) or 'none'}"]
    lines += _searched(found)
    for number, kernel in enumerate(program.kernels):
        price = found.prices[number] if number < len(found.prices) else None
        lines += ["", *_kernel_lines(program, kernel, price, rates)]
    buffers = {a.name: a.buffer for k in program.kernels for a in k.outputs}
    for name, why in program.apart.items():
        cost = _stored(buffers[name], normal.formula, rates) if name in buffers else ""
        lines.append(f"in memory: {name} {why}{cost}")
    lines += [f"rounding: {where}" for where in program.rounded]
    return [*lines, *(f"error of {where}" for where in roundings(normal.formula))]


def _stored(b: Buffer, formula: Formula, rates: Rates) -> str:
    many = 2 * bytes_of(b, formula.sizes)
    return f" ({many:,} bytes written and read, {_us(many / rates.bytes + LAUNCH)})"


def _us(seconds: float) -> str:
    return f"{1e6 * seconds:,.1f} µs"


def _said(decision: Decision, seconds: float, many: int) -> str:
    return f"{decision}: {_us(seconds)}, {many:,} bytes"


def _searched(found: Found) -> list[str]:
    """Decisions that were taken and refused, each with the price of all kernels."""
    taken, own = found.decided.decisions, sum(p.bytes for p in found.prices)
    lines = [f"price: {_us(found.seconds)}, no kernels of this formula are below "
             f"{_us(found.bound)}"]  # fmt: skip
    for key, model in found.models.items():
        which = ", ".join(map(str, sorted(key))) or "what rules give"
        mark = "taken" if key == found.decided.key else "refused"
        lines.append(f"{mark}, by the model: {_us(model.seconds)} for {which}")
    lines += [f"taken: {_said(d, found.seconds, own)}" for d in taken]
    refused = sorted(found.considered, key=lambda c: c.seconds)
    for c in refused[:_MOST]:
        if c.why and not c.bytes:
            words = c.why if not c.seconds else f"no set with it is below {_us(c.seconds)}"
            lines.append(f"refused: {c.decision}: {words}")
        else:
            lines.append(f"refused: {_said(c.decision, c.seconds, c.bytes)}")
    lines += [f"refused: {len(refused) - _MOST} more"] if len(refused) > _MOST else []
    count = f"{found.priced} set{'s' * (found.priced > 1)} of decisions priced"
    return [*lines, f"search: {count}{', ' * bool(found.left_out)}{found.left_out}"]


def _kernel_lines(
    program: TileProgram, kernel: KernelPlan, price: Price | None, rates: Rates
) -> list[str]:
    """What one kernel computes, what becomes of its axes, and what its loop keeps."""
    name = kernel.output.name
    axes = ", ".join(f"{v.name} {role}" for v, role in kernel.roles.items())
    own = {a.name for a in kernel.outputs}
    inside = [f for f in kernel.folds if f.name not in own]
    lines = [f"kernel {name}: {axes}"]
    if price is not None:
        lines.append(f"  {_us(price.seconds)}, {price.bytes:,} bytes; its limit: {price.limit}")
    for f in inside:
        many = 2 * bytes_of(f.buffer, kernel.sizes)
        apart = f"in memory it would take {_us(many / rates.bytes + LAUNCH)} more"
        lines.append(f"  fused: {f.name}, {apart} ({many:,} bytes)")
    loop = program.loops.get(name)
    if loop is not None:
        kept = ", ".join(s.var.name for s in loop.stream.state)
        lines.append(f"  a loop over {kernel.stream[-1].var.name} keeps {kept}")
        ends = program.ends.get(name)
        lines += [f"  its ends are data: {ends}"] if ends else []
        lines += [f"  {line}" for line in (*loop.stream.notes, *str(loop.verdict).splitlines())]
    return lines


def moved(program: TileProgram, formula: Formula, sizes: Mapping[Var, int]) -> list[str]:
    """The bytes that the kernels read and write, each array once, against the least possible."""

    def size(buffers: Iterable[Buffer]) -> int:
        return sum(
            b.dtype.storage_bytes(prod(at_shape(extents(b), sizes))) for b in dict.fromkeys(buffers)
        )

    given = {b.name: b for b in formula.inputs}
    written = {a.name: a.buffer for kernel in program.kernels for a in kernel.outputs}
    total = 0
    for kernel in program.kernels:
        own = {a.name for a in kernel.outputs}
        used = own.union(*(a.sources for a in (*kernel.folds, *kernel.outputs)))
        found = {n: b for n, b in (given | written).items() if n in used}
        total += size(found.values())
    least = size([*formula.inputs, *formula.outputs])
    return [f"kernels: {len(program.kernels)}, {total:,} bytes moved, {least:,} at the least"]


def at_shape(shape: tuple[Extent, ...], sizes: Mapping[Var, int]) -> tuple[int, ...]:
    """A shape where sizes are these numbers."""
    if not sizes:
        return shape  # type: ignore[return-value]
    return tuple(n if isinstance(n, int) else static_value(n, sizes) for n in shape)


def is_quick(formula: Formula, sizes: Mapping[Var, int]) -> bool:
    """Whether errors are computed in no time."""
    shapes = (tuple(x.extent for x in a.domain) for a in formula.arrays)
    return sum(prod(at_shape(shape, sizes)) for shape in shapes) <= _QUICK


def here(bounds: Mapping[str, Any]) -> list[str]:
    """How far results for these arguments may be off."""
    known = {name: x[np.isfinite(x)] for name, x in bounds.items()}
    words = "{} is off by at most {:.1e} for these arguments, {:.1e} in the median"
    return [words.format(name, x.max(), np.median(x)) for name, x in known.items() if x.size]
