"""What may be chosen about a kernel. Target text (`cuda -roles=off`), `pass_configs`, keyword
arguments and JSON files fill the same fields."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_type_hints

from tilewright.support.errors import CompileError

Switch: TypeAlias = Literal["auto", True, False]


def word(value: object) -> str:
    """A value as target text says it.

    >>> word(False), word(2), word("late")
    ('off', '2', 'late')
    """
    if isinstance(value, (Mapping, tuple, list)):  # JSON has no tuples
        return ",".join(f"{name}:{size}" for name, size in dict(value).items()) or "auto"
    return ("off", "on")[value] if isinstance(value, bool) else str(value)


class Tiles:
    """The words of sizes by name: `m:128,n:64`."""

    def __contains__(self, text: str) -> bool:
        parts = [part.partition(":") for part in text.split(",")]
        return text == "auto" or all(
            n.isidentifier() and s.isdigit() and int(s) for n, _, s in parts
        )

    def __getitem__(self, text: str) -> tuple[tuple[str, int], ...]:
        parts = [part.partition(":") for part in text.split(",")] if text != "auto" else []
        return tuple(sorted((name, int(size)) for name, _, size in parts))

    def __iter__(self) -> Iterator[str]:
        """What an error shows."""
        return iter(("auto", "m:128,n:64"))


@dataclass(frozen=True)
class Choices:
    """Fields that also take their values as text: `on`, `off`, `2`, `auto`."""

    def __post_init__(self) -> None:
        for f in fields(self):
            given, known = word(getattr(self, f.name)), WORDS[f.name]
            if given not in known:
                raise CompileError(
                    f"{given!r} is no choice for {f.name!r}",
                    expected=" or ".join(known),
                    fix="write one of these",
                    code="target",
                )
            object.__setattr__(self, f.name, known[given])

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={value!r}" for name, value in self.told().items())
        return f"{type(self).__name__}({told})"

    def told(self) -> dict[str, Any]:
        """The fields that are not left to the compiler."""
        each = ((f, getattr(self, f.name)) for f in fields(self))
        return {f.name: value for f, value in each if value != f.default}


@dataclass(frozen=True, repr=False)
class Schedule(Choices):
    """How a kernel runs on a GPU. The compiler chooses what is `auto`; no field changes results
    beyond the order of sums.

    - `tiles`: sizes of `T.tile` by loop variable: {"m": 128}; and how much of a whole dimension is
      worked on at a time, by its name: {"N": 4096}
    - `threads`: of the kernels that `T.tile` opens
    - `cluster`: blocks that share what they load, or a row
    - `persistent`: blocks that walk over the grid's tiles
    - `order`: of the grid's tiles
    - `stages`: slots of rings: as many as the text says, few (`least`), fewer than the text says
      where those fit (`fewest`), or a number
    - `roles`: a producer warpgroup
    - `skew`: statements of several iterations side by side
    - `ping_pong`: warpgroups have a tile each, or share one
    - `order_warpgroups`: warpgroups use the tensor core one after the other
    - `waits`: when `wgmma` is waited for, at the latest
    - `split_stages`: operands are loaded and used in boxes along K
    - `stage_stores`: accumulators are stored through shared memory

    >>> Schedule(roles="off", stages=4)
    Schedule(stages=4, roles=False)
    """

    tiles: tuple[tuple[str, int], ...] | Mapping[str, int] = ()
    threads: Literal["auto", 32, 64, 96, 128, 160, 192, 224, 256, 320, 384, 512, 1024] = "auto"
    cluster: Literal["auto", 1, 2, 4, 8, 16] = "auto"
    persistent: Switch = "auto"
    order: Literal["auto", "plain", "grouped", "hilbert", "longest"] = "auto"
    stages: Literal["auto", "text", "least", "fewest", 1, 2, 3, 4, 5, 6] = "auto"
    roles: Switch = "auto"
    skew: Switch = "auto"
    ping_pong: Switch = "auto"
    order_warpgroups: Switch = "auto"
    waits: Literal["auto", "late", "iteration", "each"] = "auto"
    split_stages: Switch = "auto"
    stage_stores: Switch = "auto"

    def save(self, path: str | Path) -> None:
        """Write what is chosen as JSON."""
        Path(path).write_text(json.dumps(self.told(), indent=1) + "\n", encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Schedule:
        """What `save` wrote."""
        return Schedule(**json.loads(Path(path).read_text(encoding="utf-8")))


@dataclass(frozen=True, repr=False)
class Numerics(Choices):
    """What may change results: `fast_math` takes approximate functions and division; `precision`
    says how float32 operands multiply where the text does not: as IEEE says, or rounded to 10 bits
    of mantissa by the tensor core (tf32); `deterministic` refuses what may change bits between
    runs.

    >>> import tilewright as tw
    >>> tw.Target.parse("cuda -fast_math").numerics
    Numerics(fast_math=True)
    """

    fast_math: Literal[True, False] = False
    precision: Literal["ieee", "tf32"] = "ieee"
    deterministic: Literal[True, False] = False


@dataclass(frozen=True, repr=False)
class Internal(Choices):
    """Decisions of the compiler, which its own remedies, explanations and tests switch."""

    unswitch_guards: Switch = "auto"
    bulk_copies: Switch = "auto"
    wgmma: Switch = "auto"
    rows: Literal["auto", "any"] = "auto"  # no second form for rows on 16 bytes
    multibuffer: Switch = "auto"
    async_gathers: Switch = "auto"
    inline_rows: Switch = "auto"
    split_gemms: Switch = "auto"
    stamps: Literal[True, False] = False  # a traced build (`kernel.trace`)


RECORDS = {"schedule": Schedule, "numerics": Numerics, "internal": Internal}
# by the name of a field: the record that has it, and its values by what texts say
HOME: dict[str, str] = {}
WORDS: dict[str, Any] = {}
for _home, _record in RECORDS.items():
    for _name, _values in get_type_hints(_record).items():
        HOME[_name] = _home
        WORDS[_name] = (
            Tiles() if _name == "tiles" else {word(value): value for value in get_args(_values)}
        )
