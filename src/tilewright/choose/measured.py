"""Times of candidates that were measured, kept between processes: `tune` writes them, and `pick`
prefers them to the model's. An entry is of one program at its default sizes, for one target on one
machine, and of one version of Tilewright.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import astuple
from functools import cache
from pathlib import Path
from platform import machine as processor
from typing import Any

from tilewright.choose.candidates import Candidate
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.ir.text import print_program, print_signature
from tilewright.support.cache import UNREADABLE, Store, default_root, default_store, digest
from tilewright.support.errors import RunError
from tilewright.targets.cuda.detect import gpu_name

Times = dict[int, list[tuple[Candidate, float]]]  # by kernel, the fastest first: in seconds
Entry = dict[str, Any]

PLACE = ("program", "target", "machine", "version")  # what makes an entry's key
SHIPPED = Path(__file__).parent / "measured.json"
_here: dict[str, Entry] = {}  # what this process has measured: there may be no disk to write to


def place_of(program: Program, target: Target) -> Entry:
    """Whose times an entry has; `program` is traced at the default sizes."""
    return {
        "program": digest({"text": print_program(program)}),
        "target": str(target),
        "machine": machine(target),
        "version": _version(),
    }


def is_there() -> bool:
    """Whether anything was measured, which is cheap to ask."""
    store = _store()
    return bool(_here) or SHIPPED.exists() or (store is not None and store.root.exists())


def known(program: Program, target: Target) -> Times:
    """What was measured of the candidates of each kernel, here or for the table of the package."""
    if not is_there():
        return {}
    key = _key(place_of(program, target))
    return _times(_found(key) or _shipped().get(key))


def keep(program: Program, target: Target, times: Times) -> bool:
    """Remember, besides what is known already; False: this process does alone."""
    place = place_of(program, target)
    for number, old in known(program, target).items():
        new = [chosen for chosen, _ in times.get(number, [])]
        rest = [(chosen, seconds) for chosen, seconds in old if chosen not in new]
        times[number] = sorted([*times.get(number, []), *rest], key=lambda each: each[1])
    told = {str(n): [[*astuple(c), seconds] for c, seconds in found] for n, found in times.items()}
    entry = {"kernel": program.name, "about": print_signature(program), **place, "times": told}
    return _put(_key(place), entry)


def entries() -> Iterator[Entry]:
    """All that were measured on this machine or merged into its table."""
    store = _store()
    kept = {each.key: each.header for each in store.entries()} if store is not None else {}
    for entry in {**kept, **_here}.values():
        if entry is not None and entry.get("kind") == "tuned":
            yield {name: value for name, value in entry.items() if name not in ("kind", "made")}


def export(path: Path) -> int:
    """Write the table as JSON; how many entries that were."""
    found = sorted(entries(), key=lambda entry: (entry["about"], entry["machine"], entry["target"]))
    path.write_text(json.dumps({"tilewright": _version(), "entries": found}, indent=1) + "\n")
    return len(found)


def merge(path: Path) -> tuple[int, int]:
    """Take over another table: how many entries are new or faster known now, and how many are of
    another version, which nobody asks for."""
    taken = others = 0
    for entry in _read(path):
        if entry["version"] != _version():
            others += 1
            continue
        key = _key(entry)
        old = _found(key)
        if old is None or _least(entry) < _least(old):
            _put(key, entry)
            taken += 1
    return taken, others


def clear() -> int:
    """Forget all; how many entries that were."""
    count, store = len([*entries()]), _store()
    _here.clear()
    if store is not None:
        store.clear()
    return count


def machine(target: Target) -> str:
    """What runs the target's kernels here: the GPU's name, or the processor's."""
    return gpu_name() if target.kind == "cuda" else _processor()


def _key(entry: Mapping[str, Any]) -> str:
    return digest({name: entry[name] for name in PLACE})


def _found(key: str) -> Entry | None:
    store = None if key in _here else _store()
    kept = store.get(key) if store is not None else None
    return _here.get(key) or (kept[0] if kept is not None else None)


def _put(key: str, entry: Entry) -> bool:
    _here[key] = {**entry, "kind": "tuned"}
    store = _store()
    return store is not None and store.put(key, _here[key], b"")


def _store() -> Store | None:
    """Beside compiled code, which may be cleared without measuring anew."""
    return None if default_store() is None else Store(default_root() / "tuned")


@cache
def _shipped() -> dict[str, Entry]:
    if not SHIPPED.exists():
        return {}
    return {_key(entry): entry for entry in _read(SHIPPED)}


def _read(path: Path) -> list[Entry]:
    try:
        found = json.loads(path.read_text())["entries"]
        for entry in found:
            _times(entry), _key(entry), entry["about"]
    except (OSError, *UNREADABLE) as error:
        raise RunError(
            f"{path} is no table of measured kernels: {error}",
            expected="a file that `tilewright tuned export` wrote",
            fix="export it again",
        ) from None
    return list(found)


def _times(entry: Mapping[str, Any] | None) -> Times:
    found: Times = {}
    for number, each in (entry or {}).get("times", {}).items():
        found[int(number)] = [
            (Candidate(_pairs(tiles), threads, cluster, _pairs(shares)), seconds)
            for tiles, threads, cluster, shares, seconds in each
        ]
    return found


def _pairs(listed: list[list[Any]]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in listed)


def _least(entry: Entry) -> float:
    """Seconds of the fastest candidates of all kernels."""
    return float(sum(min(t for *_, t in each) for each in entry["times"].values() if each))


def _version() -> str:
    return str(getattr(sys.modules.get("tilewright"), "__version__", ""))


@cache
def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else processor()
