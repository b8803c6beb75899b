"""Sizes and times of a text from few candidates: enough to compare it with another text."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2
from typing import TYPE_CHECKING, TypeAlias

from tilewright.choose.candidates import Candidate, numbered, open_numbers
from tilewright.choose.pick import chosen_of, estimates, open_choices
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.lang.builder import Builder, Sizes
from tilewright.lang.sizes import Traced, choose_sizes

if TYPE_CHECKING:
    from tilewright.choose.model import Estimate

Times: TypeAlias = "tuple[str, float, str]"  # a kernel, seconds, and the unit that is busy longest

FEW, FEWER = 20, 2  # candidates of a kernel, and those of them with numbers that are open
USUAL = 128  # the sides of tiles of products that are as large as one likes


def roughly(target: Target, builder: Builder, traced: Traced) -> tuple[Sizes, list[Times]]:
    """For what `builder`, a first trace, leaves open, the best of a few candidates, and what the
    model then says of the kernels, from disk if another process has asked."""
    from tilewright.targets.entries import Kept  # which imports what digests need

    sizes = choose_sizes(builder)
    kept = Kept(traced(sizes, None), target, {"few": [FEW, FEWER]}, lines=False, folder="choose/")
    if known := kept.get():
        return sizes, [(name, seconds, limit) for name, seconds, limit in known[0]["times"]]
    for number, found in open_choices(target, builder, sizes).items():
        few = list(estimates(number, _few(found), sizes, target, traced, {}))
        tiles = {candidate: e.tiles for candidate, e in sorted(few, key=_time)[:FEWER]}
        more = numbered(tiles, open_numbers(builder, target), target.chip.multiprocessors)
        few += estimates(number, list(more), sizes, target, traced, {})
        sizes = chosen_of(sizes, number, min(few, key=_time)[0]) if few else sizes
    times = _estimated(traced(sizes, None), target)
    kept.put({"kind": "choice", "times": times}, b"")
    return sizes, times


def _time(each: tuple[Candidate, Estimate]) -> float:
    return each[1].cycles


def _few(found: Sequence[Candidate]) -> list[Candidate]:
    """Candidates whose tiles are the usual ones, as far as loops are long enough."""

    def far(each: Candidate) -> tuple[bool, float]:
        sizes = [size for _, size in each.tiles]
        is_odd = any(size & (size - 1) for size in sizes)
        return is_odd, sum(abs(log2(size / USUAL)) for size in sizes)

    return sorted(found, key=far)[:FEW]


def _estimated(program: Program, target: Target) -> list[Times]:
    """What the model says of each kernel; one that fits nowhere takes forever."""
    from tilewright.choose.model import Infeasible, estimate  # which imports the passes

    found = []
    for kernel in program.kernels:
        try:
            e = estimate(kernel, target)
            found.append((kernel.name, e.us / 1e6, e.limit))
        except (Infeasible, CompileError) as wrong:
            found.append((kernel.name, inf, str(wrong)))
    return found
