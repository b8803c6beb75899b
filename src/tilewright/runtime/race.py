"""A race: contenders that do the same work, checked first and then timed in turn."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tilewright.runtime.timing import Run, Timer, measure, spread

Found = Mapping[str, Any]  # what a check says: "ok", and whatever else it found


@dataclass(frozen=True)
class Race:
    """Contenders that do the same work.

    `contenders` maps names to calls without arguments, or is a function that makes such a mapping
    when the race's turn has come. `check`, called before anything is timed, gives one finding or
    several: mappings with `ok`, by custom `error` and `bound`, and `contender` where only that one
    is concerned. What is not ok is not timed. `work` is what a call does, in `unit`s: 'FLOP', or
    'B' for bytes moved. Contenders in `ours` are compared with the best of the others, or, where
    none are named, each with the best of its rivals. `about` goes into the record as it is when
    the race has ended. `backend`, `count` and `rounds` are `measure`'s.

    >>> Race("sum", {"python": lambda: sum(range(9))}, work=9, unit="FLOP").name
    'sum'
    """

    name: str
    contenders: Mapping[str, Run] | Callable[[], Mapping[str, Run]]
    check: Callable[[], Found | Iterable[Found] | None] | None = None
    work: float = 0.0
    unit: str = "FLOP"
    ours: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "auto"
    count: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Settings:
    """How races are run; times in seconds. `force` times what failed its check, too."""

    rounds: int = 12
    burst: float = 2e-3
    pause: float | None = None
    backend: str = "auto"
    force: bool = False


# unit → the JSON key of a rate, and what one of it is
RATES = {"FLOP": "tflops", "B": "terabytes_per_second"}


def run_race(
    race: Race,
    settings: Settings | None = None,
    note: Callable[[str], None] = lambda text: None,
    timer: Timer | None = None,
) -> dict[str, Any]:
    """Check and time; the record is plain data. `note` hears what is going on."""
    settings = settings or Settings()
    made = race.contenders() if callable(race.contenders) else race.contenders
    contenders = dict(made)
    checks: list[Found] = []
    for found in _findings(race):
        checks.append(found)
        note(f"checked {_brief(found)}")
    record: dict[str, Any] = {"race": race.name, "checks": checks, "contenders": {}}
    failed = [c for c in checks if not c.get("ok", True)]
    record["ok"] = not failed
    if not settings.force:
        for found in failed:
            name = found.get("contender")
            for dropped in [name] if name is not None else list(contenders):
                contenders.pop(dropped, None)
    if contenders:
        note("timing " + ", ".join(contenders))
        times = measure(
            contenders,
            rounds=race.rounds or settings.rounds,
            budget=float("inf"),
            burst=settings.burst,
            pause=settings.pause,
            backend=settings.backend if race.backend == "auto" else race.backend,
            count=race.count,
            timer=timer,
        )
        record["contenders"] = figures(race, times)
    return {**record, **race.about}


def figures(race: Race, times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Each contender's times, their median and spread, its rate, and how it stands to the others:
    `against_x` is how many times faster than x it is."""
    middle = {name: statistics.median(found) for name, found in times.items()}
    result: dict[str, dict[str, Any]] = {}
    for name, found in times.items():
        one = result[name] = {"ms": middle[name] * 1e3}
        if race.work and race.unit in RATES:
            one[RATES[race.unit]] = race.work / middle[name] / 1e12
        one["spread"] = spread(found)
        one["times_ms"] = [t * 1e3 for t in found]
        others = [n for n in times if n != name]
        if race.ours:
            others = [n for n in others if n not in race.ours] if name in race.ours else []
            for other in others:
                one[f"against_{other}"] = middle[other] / middle[name]
        if others:
            one["against_best"] = min(middle[n] for n in others) / middle[name]
    return result


def _findings(race: Race) -> Iterable[Found]:
    found = race.check() if race.check is not None else None
    if found is None:
        return ()
    return (found,) if isinstance(found, Mapping) else found


def _brief(found: Found) -> str:
    return ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
    )
