"""Times of candidates that were measured, kept between processes: `tune` writes them, and `pick`
prefers them to the model's. An entry is of one text at its default sizes, of what it leaves open,
for one target on one machine, and of one version of Tilewright.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple
from functools import cache
from pathlib import Path
from typing import Any

from tilewright.choose.candidates import Candidate, Opened
from tilewright.ir.text import print_program, print_signature
from tilewright.support.cache import UNREADABLE, Store, default_root, default_store, digest
from tilewright.support.errors import RunError
from tilewright.targets.cuda.detect import gpu_name

Times = dict[int, list[tuple[Candidate, float]]]  # by kernel, the fastest first: in seconds
Entry = dict[str, Any]

PLACE = ("program", "open", "target", "machine", "version")  # what makes an entry's key
_here: dict[str, Entry] = {}  # what this process has measured: there may be no disk to write to


def place_of(opened: Opened, machine: str | None = None) -> Entry:
    """Whose times an entry has."""
    loops = {str(n): [name for name, _ in each[0].tiles] for n, each in opened.found.items()}
    return {
        "program": digest({"text": print_program(opened.program)}),
        "open": loops,
        "target": str(opened.target),
        "machine": machine_of(opened.target.kind) if machine is None else machine,
        "version": _version(),
    }


def is_there() -> bool:
    """Whether anything was measured, which is cheap to ask."""
    store = _store()
    return bool(_here) or (store is not None and store.root.exists())


def known(opened: Opened, machine: str | None = None) -> Times:
    """What was measured of the candidates of each kernel."""
    return _times(entry_of(opened, machine)) if is_there() else {}


def entry_of(opened: Opened, machine: str | None = None) -> Entry | None:
    return _found(_key(place_of(opened, machine)))


def keep(
    opened: Opened,
    times: Times,
    searched: Mapping[int, int],
    wrong: Iterable[Candidate] = (),
    machine: str | None = None,
    again: bool = False,
) -> bool:
    """Remember, besides what is known already (unless `again`), without those that went `wrong`;
    `searched`: how many candidates were asked for, by kernel. False: this process alone does."""
    place = place_of(opened, machine)
    old = {} if again else known(opened, machine)
    before = {} if again else (entry_of(opened, machine) or {}).get("searched", {})
    left_out = set(wrong)
    merged = {n: _merged(old.get(n, []), times.get(n, []), left_out) for n in {*old, *times}}
    about = {"kernel": opened.program.name, "about": print_signature(opened.program), **place}
    asked = {**before, **{str(n): most for n, most in searched.items()}}
    return _put(_key(place), {**about, "times": _listed(merged), "searched": asked})


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
    """Take over what another table knows: how many entries had news, and how many are of another
    version, which nobody asks for."""
    taken = others = 0
    for entry in _read(path):
        if entry["version"] != _version():
            others += 1
            continue
        key = _key(entry)
        old = _found(key)
        before, more = _times(old), _times(entry)
        merged = {n: _merged(before.get(n, []), more.get(n, []), ()) for n in {*before, *more}}
        if merged == before:
            continue
        searched = {**entry.get("searched", {}), **(old or {}).get("searched", {})}
        if not _put(key, {**entry, "times": _listed(merged), "searched": searched}):
            raise RunError(
                "the table of measured kernels cannot be written",
                got=f"folder {default_root()}",
                fix="see `tilewright cache size`; TILEWRIGHT_CACHE=0 keeps nothing",
            )
        taken += 1
    return taken, others


def clear() -> int:
    """Forget all; how many entries that were."""
    count, store = len([*entries()]), _store()
    _here.clear()
    if store is not None:
        store.clear()
    return count


def machine_of(kind: str) -> str:
    """What runs kernels for a kind of target here: the GPU's name, or the processor's."""
    return gpu_name() if kind == "cuda" else _processor()


def _merged(
    old: Sequence[tuple[Candidate, float]],
    new: Sequence[tuple[Candidate, float]],
    wrong: Iterable[Candidate],
) -> list[tuple[Candidate, float]]:
    """The newer time of each, the fastest first."""
    left = [each for each in {**dict(old), **dict(new)}.items() if each[0] not in wrong]
    return sorted(left, key=lambda each: each[1])


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
            (Candidate(_pairs(tiles), threads, cluster, *map(_pairs, shared)), seconds)
            for tiles, threads, cluster, *shared, seconds in each
        ]
    return found


def _listed(times: Times) -> dict[str, list[Any]]:
    return {str(n): [[*astuple(c), seconds] for c, seconds in each] for n, each in times.items()}


def _pairs(listed: Iterable[Any]) -> tuple[tuple[str, int], ...]:
    return tuple((str(name), int(size)) for name, size in listed)


def _version() -> str:
    return str(getattr(sys.modules.get("tilewright"), "__version__", ""))


@cache
def _processor() -> str:
    told = Path("/proc/cpuinfo")
    lines = told.read_text().splitlines() if told.exists() else []
    says = ("model name", "CPU implementer", "CPU part")
    words = {line.partition(":")[2].strip() for line in lines if line.startswith(says)}
    return " ".join([*sorted(words), platform.machine(), f"{os.cpu_count()} cores"])
