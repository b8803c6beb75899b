"""The races of a file, run in a child process that can be killed; a table and JSON come out.

The file defines `races`, a function that gives `Race`s. The child runs them one after the other. A
race that fails or outlives its time ends the child, since a kernel that hangs can only be ended
with its process and one that faults leaves the GPU's context unusable; the next race gets a new
one.
"""

from __future__ import annotations

import fnmatch
import gc
import json
import multiprocessing
import runpy
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilewright.runtime.race import RATES, Race, Settings, run_race
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.tools.collect import told
from tilewright.tools.machine import clocks, machine, process_facts

Record = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A file's races and how to run them; `arguments` go to its `races`, `timeout` (seconds) is
    for each race, `only` are patterns of names."""

    file: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    settings: Settings = field(default_factory=Settings)
    only: Sequence[str] = ()
    timeout: float = 300.0


def load_races(file: str, arguments: Mapping[str, Any]) -> Iterable[Race]:
    """What `races(**arguments)` of the file gives."""
    folder = str(Path(file).resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    names = runpy.run_path(file, run_name="<tilewright>")
    races = names.get("races")
    if not callable(races):
        raise CompileError(
            f"{file} defines no races",
            expected="a function `races` that returns or yields tilewright.profiler.Race",
        )
    found: Iterable[Race] = races(**arguments)
    return found


# ---------------------------------------------------------------------------------- the child


def _serve(pipe: Connection, job: Job, skip: int) -> None:
    """Run the races from number `skip` on, and say what happens."""
    index = skip - 1
    try:
        for index, race in enumerate(load_races(job.file, job.arguments)):
            wanted = not job.only or any(fnmatch.fnmatch(race.name, p) for p in job.only)
            if index < skip or not wanted:
                continue
            pipe.send(("race", index, race.name))
            before = clocks()
            record = run_race(race, job.settings, lambda text: pipe.send(("note", 0, text)))
            record["clocks"] = {"before": before, "after": clocks()}
            pipe.send(("facts", index, process_facts()))
            pipe.send(("done", index, record))
            del race, record
            _free()
    except BaseException as error:  # reported, not swallowed: it goes into the record
        text = str(error) if isinstance(error, TilewrightError) else ""
        pipe.send(("failed", index, (told(error, job.file), text)))
    else:
        pipe.send(("end", index, None))
    pipe.close()


def _free() -> None:
    """Give a race's arrays back before the next one makes its own."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


# --------------------------------------------------------------------------------- the parent


def run_job(
    job: Job, note: Callable[[str], None], facts: Callable[[Mapping[str, Any]], None]
) -> Iterator[Record]:
    """The record of each race, also of those that failed or were killed."""
    skip: int | None = 0
    while skip is not None:
        skip = yield from _run_child(job, skip, note, facts)


def _run_child(
    job: Job,
    skip: int,
    note: Callable[[str], None],
    facts: Callable[[Mapping[str, Any]], None],
) -> Generator[Record, None, int | None]:
    """One child's life; returns where the next one goes on, or None."""
    context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_serve, args=(theirs, job, skip), daemon=True)
    child.start()
    theirs.close()
    running: tuple[int, str] | None = None
    deadline = time.monotonic() + job.timeout
    try:
        while True:
            try:
                if not ours.poll(max(0.0, deadline - time.monotonic())):
                    why = f"killed after {job.timeout:g} s"
                    break
                kind, index, value = ours.recv()
            except EOFError:
                child.join(5)
                why = f"its process ended, exit code {child.exitcode}"
                break
            if kind == "end":
                return None
            if kind == "race":
                running, deadline = (index, value), time.monotonic() + job.timeout
                note(value)
            elif kind == "note":
                note(f"{running[1] if running else ''}: {value}")
            elif kind == "facts":
                facts(value)
            elif kind == "done":
                running = None
                yield value
                deadline = time.monotonic() + job.timeout
            else:
                why, text = value
                if text:
                    note(text)
                break
        # a file whose races do not come about has no next one either
        name = running[1] if running else Path(job.file).name
        yield {"race": name, "ok": False, "failed": why}
        return running[0] + 1 if running else None
    finally:
        ours.close()
        if child.is_alive():
            child.kill()
        child.join(5)


def run_files(
    jobs: Sequence[Job], *, command: str, out: Path | None = None, quiet: bool = False
) -> int:
    """Run every job, print a table of each race, write the JSON after each. The exit status."""
    screen = Screen()
    report: Record = {"command": command, "when": time.strftime("%Y-%m-%d"), **machine()}
    report["settings"] = asdict(jobs[0].settings) if jobs else {}
    report["clocks"] = {"before": clocks(), "after": None}
    races: list[Record] = []
    report["races"] = races

    def learn(found: Mapping[str, Any]) -> None:
        report.update(found)

    for job in jobs:
        with screen.busy(Path(job.file).name):
            for record in run_job(job, screen.note, learn):
                races.append(record)
                screen.show(record)
                _write(out, report)
    report["clocks"]["after"] = clocks()
    _write(out, report)
    if out is not None and not quiet:
        screen.say(f"figures: {out}")
    if not races:
        screen.say("no race was run")
    return int(not races or not all(r.get("ok", False) for r in races))


def _write(out: Path | None, report: Record) -> None:
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(json.dumps(report, indent=1, default=str) + "\n")


def command_line(program: str, words: Sequence[str]) -> str:
    """What to type for the same again, without the folders of this machine."""
    return " ".join([program, *(Path(w).name if Path(w).is_absolute() else w for w in words)])


# ------------------------------------------------------------------------------------ showing

HEADS = ("contender", "time", "spread", "rate", "× best other")
BETTER = "less time is better; × best other: its time over this one's, more is better"
_UNITS = {"tflops": "FLOP/s", "terabytes_per_second": "B/s"}


def rows(record: Record) -> list[tuple[str, ...]]:
    """A race as text, a contender a row.

    >>> rows({"contenders": {"a": {"ms": 0.5, "tflops": 700.0, "spread": 0.01}}})
    [('a', '500.0 µs', '1.0 %', '700.0 TFLOP/s', '')]
    """
    found: list[tuple[str, ...]] = []
    for name, one in record.get("contenders", {}).items():
        rate = next((f"{_scaled(one[k])}{_UNITS[k]}" for k in RATES.values() if k in one), "")
        ratio = f"{one['against_best']:.3f}" if "against_best" in one else ""
        found.append(
            (name, _time(one["ms"]), f"{one['spread']:.1%}".replace("%", " %"), rate, ratio)
        )
    return found


def _time(ms: float) -> str:
    return f"{ms:.3f} ms" if ms >= 1 else f"{ms * 1e3:.1f} µs"


def _scaled(tera: float) -> str:
    return f"{tera:.1f} T" if tera >= 1 else f"{tera * 1e3:.1f} G"


class Screen:
    """A table with rich; plain lines where it is not installed, as on a bare GPU machine."""

    def __init__(self) -> None:
        self._status: Any = None
        try:
            from rich.console import Console

            self.console: Any = Console()
        except ImportError:
            self.console = None

    def say(self, text: str) -> None:
        if self.console is None:
            print(text, flush=True)
        else:
            self.console.print(text, markup=False, highlight=False)

    def busy(self, text: str) -> AbstractContextManager[Any]:
        if self.console is None or not self.console.is_terminal:
            self._status = None
            return nullcontext()
        from rich.markup import escape

        self._status = self.console.status(escape(text))
        status: AbstractContextManager[Any] = self._status
        return status

    def note(self, text: str) -> None:
        """What is going on: in place on a terminal, a line each in a log."""
        if self._status is None or "\n" in text:
            self.say(text)
        else:
            from rich.markup import escape

            self._status.update(escape(text))

    def show(self, record: Record) -> None:
        title = record["race"] + ("" if record["ok"] else "  NOT OK")
        lines = rows(record)
        if "failed" in record:
            self.say(f"{title}: {record['failed']}")
        elif self.console is None:
            self.say("\n".join([title, *("  " + "  ".join(f"{w:<18}" for w in r) for r in lines)]))
        else:
            from rich.markup import escape
            from rich.table import Table

            table = Table(title=escape(title), title_justify="left")
            table.caption, table.caption_justify = BETTER, "left"
            for i, head in enumerate(HEADS):
                table.add_column(head, justify="right" if i else "left")
            for row in lines:
                table.add_row(*map(escape, row))
            self.console.print(table)
        for found in record.get("checks", ()):
            if not found.get("ok", True):
                self.say(f"  failed its check: {found}")
