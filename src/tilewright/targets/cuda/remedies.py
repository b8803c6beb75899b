"""What is given up when a kernel does not fit: one table, and the search through it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias, TypeVar

from tilewright.ir.chips import CHIPS, DEFAULT
from tilewright.ir.core import *
from tilewright.ir.schedule import word
from tilewright.ir.target import Target
from tilewright.passes.memory.place_shared import TooMuchShared
from tilewright.passes.memory.registers import TooManyRegisters
from tilewright.passes.overlap.ping_pong import ABOUT, NoPingPong
from tilewright.passes.reasons import key_of
from tilewright.passes.run import Trace
from tilewright.targets.cuda.nvrtc import NO_WARPGROUPS, Remedied, Serialized

Result = TypeVar("Result")


@dataclass(frozen=True)
class Remedy:
    """Fields of the target that change."""

    change: Mapping[str, Any]
    said: str = ""  # in explanations, which list the fields where this says nothing
    name: str = ""  # in the cache
    over: bool = False  # what the target was told
    small: bool = False  # only on chips with less shared memory than those texts are written for

    def on(self, target: Target) -> Target | None:
        """`target` with this remedy; None where it was told otherwise, or has it already."""
        told = {} if self.over else target.told()
        if any(told.get(name, value) != value for name, value in self.change.items()):
            return None
        if self.small and target.chip.shared >= CHIPS[DEFAULT].shared:
            return None
        changed = target.choosing(**self.change)
        return None if changed == target else changed


@dataclass(frozen=True)
class Level:
    """The remedies for one failure, in turn; `together` with those before, unless the last one
    alone is enough. `about`: what explanations say it of, every gemm where that is empty."""

    failure: type[Exception]
    remedies: tuple[Remedy, ...]
    about: str = ""
    together: bool = False


# Where the assembler serializes gemms, in turn: earlier waits (`passes.sync.matrix_groups`), more
# registers too, single warps.
SERIALIZED = Level(Serialized, (
    Remedy({"waits": "iteration"}, "waited for by the end of an iteration", "by iteration"),
    Remedy({"waits": "each"}, "waited for before threads compute", "one by one"),
    Remedy(
        {"waits": "iteration", "roles": False},
        "waited for by the end of an iteration, with the registers that a producer would take",
        "no producer",
    ),
    Remedy({"wgmma": False}, "not wgmma", NO_WARPGROUPS),
))  # fmt: skip
SHARED = Level(TooMuchShared, (
    Remedy({"multibuffer": False}),
    Remedy({"stages": "least"}),
    Remedy({"stage_stores": False}),
    Remedy({"persistent": False}),
    Remedy({"roles": False}),
    Remedy({"async_gathers": False}),
    Remedy({"stages": "fewest"}, small=True),
), "given up", together=True)  # fmt: skip
# the assembler would say the same, after a minute of trying
REGISTERS = Level(TooManyRegisters, (Remedy({"wgmma": False}, "not wgmma"),))
PING_PONG = Level(NoPingPong, (Remedy({"ping_pong": False}, "no", over=True),), ABOUT)
LEVELS = (SERIALIZED, SHARED, REGISTERS, PING_PONG)

GivenUp: TypeAlias = tuple[Level, Remedy, Exception]


def explain(
    trace: Trace, program: Program, level: Level, remedy: Remedy, error: Exception | Remedied
) -> None:
    """Say what was given up among the reasons of `trace`."""
    if remedy.said:
        why = f"{remedy.said}: {getattr(error, 'message', error)}"
    else:
        fields = (f"{name}={word(value)}" for name, value in remedy.change.items())
        why = f"{', '.join(fields)}, for shared memory"
    for kernel in program.kernels:
        gemms = [key_of(op) for op in walk_ops(kernel, Gemm)]
        for about in [level.about] if level.about else gemms:
            trace.reasons[kernel.name, about] = why


def search(
    attempt: Callable[[Target], Result], target: Target, levels: Sequence[Level]
) -> tuple[Result, Sequence[GivenUp]]:
    """What `attempt` makes of `target`, or of `target` with the first remedies that help; and what
    those give up. With each remedy of a level, those of the levels after it are searched."""
    if not levels:
        return attempt(target), ()
    level, rest = levels[0], levels[1:]
    try:
        return search(attempt, target, rest)
    except level.failure as error:
        failed = error
    sofar: dict[str, Any] = {}
    for remedy in level.remedies:
        alone = remedy.on(target)
        if alone is None:
            continue
        sofar |= remedy.change
        taken = replace(remedy, change=dict(sofar)) if level.together else remedy
        try:
            found, given = search(attempt, taken.on(target) or alone, rest)
        except level.failure as error:
            failed = error
            continue
        if taken != remedy:
            with suppress(level.failure):
                found, given = search(attempt, alone, rest)
                taken = remedy
        return found, (*given, (level, taken, failed))
    raise failed
