"""What a GPU took for a kernel, as `kernel.trace` noted it (benchmarks/studio_traces.py), beside
what the model says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from tilewright.inspect.multiprocessor import SHARED
from tilewright.inspect.simulate import MEMORY, PRODUCTS

SHIPPED = Path(__file__).parent / "results"  # of a wheel
CHECKOUT = Path(__file__).parents[4] / "benchmarks" / "results"
RESULTS = SHIPPED if SHIPPED.exists() else CHECKOUT
TRACES = "studio_traces_h200.json"
LEVELS = "memory_levels_h200.json"  # benchmarks/memory_levels.py
OFF = 0.15  # of an iteration: what differs by more is told of
COMPUTES, WAITS = "computes", "waits for "
INSIDE = (MEMORY, PRODUCTS, SHARED)
ASKED = ("kernel", "sizes", "args", "schedule")


def told(trace: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    """A trace as it is kept: the main loop's iterations of every kernel that has one."""
    parts = []
    for kernel, timeline in trace.timelines.items():
        found = (timeline or {}).get("measured")
        if not found or not timeline["loop"]:
            continue
        rows = [[s["role"], s["start"], s["end"], s["for"].startswith(WAITS), s["for"]]
                for s in found["spans"]]  # fmt: skip
        parts.append(
            {
                "kernel": kernel,
                "interval": found["interval"],
                "modelled": timeline["interval"],
                "iterations": found["iterations"],
                "length": found["length"],
                "spans": {"columns": ["role", "start", "end", "waits", "for"], "rows": rows},
                "differences": found["differences"],
            }
        )
    return {"request": {name: request.get(name) or {} for name in ASKED}, "parts": parts}


def _roles(rows: Sequence[Sequence[Any]], length: int, interval: int) -> list[dict[str, Any]]:
    """Of an iteration, cycles in which each warpgroup computes, and waits, by reason. A product
    shares its stamp with the waits for it, which take nearly all of that time."""
    found: dict[str, dict[str, Any]] = {}
    scale = interval / max(1, length / 2)
    for role, start, end, waits, reason in rows:
        about = found.setdefault(role, {"computes": 0.0, "waits": {}})
        inside = (min(end, length) - max(start, 0)) / 2 * scale
        if waits:
            what = reason.removeprefix(WAITS)
            about["waits"][what] = about["waits"].get(what, 0.0) + inside
        else:
            about["computes"] += inside
    return [
        {"role": role, "computes": round(about["computes"]),
         "waits": {what: round(time) for what, time in about["waits"].items()}}
        for role, about in found.items()
    ]  # fmt: skip


@lru_cache(maxsize=4)
def _kept(path: Path) -> Mapping[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError:
        return {}


def measured(recording: Mapping[str, Any], path: Path | None = None) -> dict[str, Any] | None:
    """What was measured of a recording's kernel with the same sizes and choices, on its chip; None
    where nothing was."""
    path = path or RESULTS / TRACES
    kept = _kept(path)
    asked = {name: recording["request"].get(name) or {} for name in ASKED}
    same = [one for one in kept.get("traces", ()) if one["request"] == asked]
    if not same or kept["arch"] != recording["arch"]:
        return None
    modelled = {part["name"]: part["timeline"] or {} for part in recording["parts"]}
    l2 = memory_levels(recording["arch"])[1].get("L2", {}).get("bytes_per_cycle")
    return {
        "file": path.name,
        "date": kept["date"],
        "device": kept["device"],
        "kernel": recording["kernel"],
        "parts": [_beside(p, modelled.get(p["kernel"], {}), l2) for p in same[-1]["parts"]],
    }


def _beside(
    part: Mapping[str, Any], timeline: Mapping[str, Any], l2: float | None
) -> dict[str, Any]:
    """With the model's figures. `off`: by how much of the model's iteration the measured one
    differs, and by how much of an iteration what a role computes; `differs`: what is off by more
    than 15 %, in sentences."""
    told = (*(timeline.get("agents") or ()), *(timeline.get("feeders") or ()))
    agents = {agent["role"]: agent for agent in told}
    interval, expected = part["interval"], timeline.get("interval") or part["interval"]
    rows = [[*row[:3], row[4].startswith(WAITS), row[4]] for row in part["spans"]["rows"]]
    roles = []
    for role in _roles(rows, part["length"], interval):
        model = agents.get(role["role"])
        if model is not None:
            spent = _spent(role, model)
            got, want = spent[COMPUTES]
            roles.append({"role": role["role"], "measured": role, "modelled": model,
                          "spent": spent, "off": round((got - want) / interval, 3)})  # fmt: skip
    off = round(interval / expected - 1, 3)
    differs = [*_longer(interval, expected, timeline, l2), *_differing(roles, interval)]
    return {**part, "modelled": timeline.get("interval"), "off": off, "roles": roles,
            "spans": {**part["spans"], "rows": rows}, "differs": differs}  # fmt: skip


def _spent(role: Mapping[str, Any], model: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """Cycles of an iteration by what a role does, measured and modelled."""
    # of what an op waits for in its middle, a trace has no stamp
    inside = {w for w in model["waits"] if w in INSIDE and w not in role["waits"]}
    waits = dict.fromkeys(w for w in (*role["waits"], *model["waits"]) if w not in inside)
    own = model["computes"] + sum(model["waits"][w] for w in inside)
    return {
        COMPUTES: (role["computes"], own),
        **{WAITS + w: (role["waits"].get(w, 0), model["waits"].get(w, 0)) for w in waits},
    }


def _longer(
    measured: int, modelled: int, timeline: Mapping[str, Any], l2: float | None
) -> Iterator[str]:
    """That an iteration takes another time, and why, where memory limits it."""
    off = measured / modelled - 1
    if abs(off) <= OFF:
        return
    word = "more" if off > 0 else "less"
    yield (f"an iteration takes {measured} cycles, {100 * abs(off):.0f} % {word} than the "
           f"{modelled} of the model")  # fmt: skip
    if (timeline.get("limit") or "").startswith(MEMORY):
        size = timeline["bytes"]
        alone = f"; kernels that do nothing but load from L2 get {l2}" if l2 else ""
        yield (f"memory limits it: {size} bytes an iteration came at {size / measured:.0f} bytes a "
               f"cycle, where the model has {size / modelled:.0f}{alone}")  # fmt: skip


def _differing(roles: Sequence[Mapping[str, Any]], interval: int) -> Iterator[str]:
    """What roles spend their time on, in the mean of those that do alike."""
    alike: dict[str, list[Mapping[str, Any]]] = {}
    for role in roles:
        alike.setdefault(re.sub(r" \d+$", "", role["role"]), []).append(role)
    for name, own in alike.items():
        who = name if len(own) == 1 else f"each {name}"
        for what in dict.fromkeys(w for role in own for w in role["spent"]):
            pairs = [role["spent"].get(what, (0, 0)) for role in own]
            got, want = (sum(side) / len(own) for side in zip(*pairs, strict=True))
            if abs(got - want) > OFF * interval:
                yield f"{who} {what}: {got:.0f} cycles, {want:.0f} in the model"


def memory_levels(arch: str, path: Path | None = None) -> tuple[Any, Mapping[str, Any]]:
    """What kernels of single threads found of a chip's memory: where and when, None where nothing
    was measured, and the figures of each level."""
    path = path or RESULTS / LEVELS
    kept = _kept(path)
    if kept.get("arch") != arch:
        return None, {}
    return {"device": kept["device"], "date": kept["date"], "file": path.name}, kept["levels"]


# contenders of results files, as the page names them
NAMES = {"derived": "ours", "hand": "ours, scheduled by hand", "cublas": "cuBLAS", "cudnn": "cuDNN",
         "triton": "Triton", "tilelang": "TileLang", "torch": "PyTorch"}  # fmt: skip


def raced(file: str, race: str) -> list[dict[str, Any]]:
    """The contenders of a race that was kept, the fastest first; not kernels of ours that compute
    something else ("by squared ReLU")."""
    kept = _kept(RESULTS / file)
    found = [one["contenders"] for one in kept.get("races", ()) if one["race"] == race]
    told = [
        {"name": NAMES.get(name, name), "us": round(1e3 * about["ms"], 2),
         "tflops": about.get("tflops"), "file": file, "date": kept["when"]}
        for name, about in (found[0] if found else {}).items()
        if about.get("ms") and not name.startswith("by ")
    ]  # fmt: skip
    return sorted(told, key=lambda one: float(one["us"]))
