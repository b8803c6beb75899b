"""Two recordings side by side: the figures that differ, and what they say in sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

Recording = Mapping[str, Any]
LITTLE = 0.01  # of a figure: a difference of less is none
MEMORY = "memory"


def compare(a: Recording, b: Recording) -> dict[str, Any]:
    """`b` against `a`; `ratio` says how many times longer the slower one takes."""
    rows = [row for row in _rows(a, b) if row["a"] is not None or row["b"] is not None]
    times = [_time(each) for each in (a, b)]
    faster, ratio = None, None
    if all(times):
        first, second = (float(t) for t in times if t)
        ratio = round(max(first, second) / min(first, second), 3)
        faster = None if ratio < 1 + LITTLE else "a" if first < second else "b"
    return {
        "a": a,
        "b": b,
        "rows": rows,
        "sentences": list(_sentences(a, b, ratio, faster)),
        "faster": faster,
        "ratio": ratio,
    }


def _part(of: Recording) -> Mapping[str, Any]:
    """The kernel that takes longest."""
    return max(of["parts"], key=lambda p: (p["timeline"] or {}).get("cycles", 0), default={})


def _time(of: Recording) -> float | None:
    """Cycles of the simulated main loop for all of its iterations, per tile of equal work: what
    a block takes times how many tiles a multiprocessor has."""
    part = _part(of)
    told = part.get("timeline")
    if not told or not told["interval"] or not told["loop"]:
        return None
    work = _work(of)
    return told["interval"] * told["loop"]["iterations"] * work if work else None


def _work(of: Recording) -> float | None:
    """Tiles of the grid, as the text was traced."""
    tiles, chip = of["choices"].get("grid_tiles"), of["chip"]
    blocks = (_part(of).get("timeline") or {}).get("blocks") or 1
    return None if not tiles or not chip else -(-tiles // (chip["multiprocessors"] * blocks))


def _rows(a: Recording, b: Recording) -> Iterator[dict[str, Any]]:
    parts = [_part(each) for each in (a, b)]
    lines = [p.get("timeline") or {} for p in parts]
    takes = [p.get("takes") or {} for p in parts]
    pairs = {
        "main loop of all tiles": ("cycles", *(_time(each) for each in (a, b))),
        "an iteration": ("cycles", *(line.get("interval") for line in lines)),
        "iterations": ("", *((line.get("loop") or {}).get("iterations") for line in lines)),
        "tiles": ("", *(each["choices"].get("grid_tiles") for each in (a, b))),
        "a whole block": ("cycles", *(line.get("cycles") for line in lines)),
        "bytes of an iteration": ("bytes", *(line.get("bytes") for line in lines)),
        "ring slots": ("", *(_slots(p) for p in parts)),
        "shared memory": ("bytes", *(t.get("shared_bytes") for t in takes)),
        "registers of a thread": ("", *(t.get("registers") for t in takes)),
        "blocks of a multiprocessor": ("", *(line.get("blocks") for line in lines)),
        "modelled by the chooser": ("µs", *((r["roofline"] or {}).get("modelled_us")
                                            for r in (a, b))),
    }  # fmt: skip
    for unit in ("tensor core", "threads", "copies"):
        pairs[f"{unit} busy"] = ("%", *(_percent(line, unit) for line in lines))
    for what, (unit, left, right) in pairs.items():
        yield {"what": what, "a": left, "b": right, "unit": unit}


def _percent(line: Mapping[str, Any], unit: str) -> float | None:
    found = (line.get("busy") or {}).get(unit)
    return None if found is None else round(100 * found, 1)


def _slots(part: Mapping[str, Any]) -> int | None:
    return max((ring["slots"] for ring in part.get("rings", ())), default=None)


def waits(part: Mapping[str, Any]) -> dict[str, float]:
    """Cycles of an iteration that warpgroups which compute wait, in the mean, by reason."""
    agents = (part.get("timeline") or {}).get("agents") or ()
    found: dict[str, float] = {}
    for agent in agents:
        for what, time in agent["waits"].items():
            kind = MEMORY if what.endswith("_full") or what == MEMORY else what
            found[kind] = found.get(kind, 0.0) + time / len(agents)
    return found


def _sentences(
    a: Recording, b: Recording, ratio: float | None, faster: str | None
) -> Iterator[str]:
    before, after = _part(a), _part(b)
    lines = [p.get("timeline") or {} for p in (before, after)]
    if not all(line.get("interval") for line in lines):
        yield "one of the two has no main loop that the simulator follows, so times do not compare"
        return
    changed = ", ".join(_changes(a, b)) or "the same choices"
    first, second = (line["interval"] for line in lines)
    waited = [waits(p).get(MEMORY, 0.0) for p in (before, after)]
    hidden = round(waited[0] - waited[1])
    if abs(hidden) > LITTLE * first:
        if hidden > 0:
            what = f"hides {hidden} of {waited[0]:.0f} cycles"
        else:
            what = f"shows {-hidden} more cycles"
        yield f"{changed}: {what} of waiting for loads in an iteration of {first}"
    slots = [_slots(p) for p in (before, after)]
    if slots[0] != slots[1] and None not in slots:
        effect = (
            "no shorter" if second >= first * (1 - LITTLE) else f"{first - second} cycles shorter"
        )
        yield f"ring {slots[0]} → {slots[1]} slots: an iteration is {effect} ({first} → {second})"
    for unit, used in lines[0]["busy"].items():
        now = lines[1]["busy"].get(unit, 0.0)
        if abs(now - used) > 0.05:
            yield f"{unit}: {100 * used:.0f} % → {100 * now:.0f} % busy"
    if lines[0]["limit"] != lines[1]["limit"]:
        yield f"the limit was: {lines[0]['limit']}; now: {lines[1]['limit']}"
    if ratio is None:
        yield "what the grid takes does not compare: sizes of it are known at launch only"
    elif faster is None:
        yield f"{changed}: the main loops of all tiles take the same time"
    else:
        which = "the first" if faster == "a" else "the second"
        yield f"{changed}: {which} is {ratio:.2f} times as fast"


def _changes(a: Recording, b: Recording) -> Iterator[str]:
    """What was asked for differently."""
    asked = [each["request"] for each in (a, b)]
    for about in ("schedule", "sizes", "args"):
        given = [dict(each.get(about) or {}) for each in asked]
        for name in {**given[0], **given[1]}:
            old, new = (each.get(name, "auto") for each in given)
            if old != new:
                yield f"{name} {_word(old)} → {_word(new)}"
    if a["target"].split(" -")[:2] != b["target"].split(" -")[:2]:
        yield f"{a['arch']} → {b['arch']}"


def _word(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{n} {v}" for n, v in value.items())
    return ("off", "on")[value] if isinstance(value, bool) else str(value)
