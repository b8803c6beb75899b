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
import os
import platform
import re
import runpy
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from importlib import metadata
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from tilewright.runtime.timing import RATES, Race, Settings, gpu_in_use, run_race
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.targets.cuda.guard import child
from tilewright.tools.collect import told

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
    running: tuple[int, str] | None = None
    deadline = time.monotonic() + job.timeout
    with child(_serve, job, skip) as (pipe, process):
        while True:
            try:
                if not pipe.poll(max(0.0, deadline - time.monotonic())):
                    why = f"killed after {job.timeout:g} s"
                    process.kill()
                    break
                kind, index, value = pipe.recv()
            except EOFError:
                process.join(5)
                why = f"its process ended, exit code {process.exitcode}"
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


def run_files(jobs: Sequence[Job], *, command: str, out: Path | None) -> int:
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
    if out is not None:
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


# -------------------------------------------------------------------- what it was measured on

# GPU, driver, clocks, versions. Nothing that names the machine.

# nvidia-smi's name of a figure → ours
_CLOCKS = {
    "clocks.sm": "sm_mhz",
    "clocks.mem": "memory_mhz",
    "clocks.max.sm": "sm_max_mhz",
    "power.limit": "power_limit_w",
    "power.draw": "power_w",
    "temperature.gpu": "temperature_c",
}
PACKAGES = (
    "numpy", "torch", "triton", "cuda-bindings", "nvidia-cuda-nvrtc", "cupy-cuda13x",
    "cupy-cuda12x", "jax", "tilelang", "quack-kernels", "nvidia-cudnn-cu13", "nvidia-cublas",
    "llvmlite",
)  # fmt: skip


def _smi(names: list[str]) -> list[str] | None:
    """What nvidia-smi says of the first visible GPU; None where there is no nvidia-smi."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip() or "0"
    command = ["nvidia-smi", f"--query-gpu={','.join(names)}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(
            [*command, "-i", gpu], capture_output=True, text=True, timeout=30, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    words = [w.strip() for w in done.stdout.strip().split("\n")[0].split(",")]
    return words if len(words) == len(names) else None


def clocks() -> dict[str, float] | None:
    """Clocks, power and temperature as they are now; None where nobody can tell."""
    words = _smi(list(_CLOCKS))
    if words is None:
        return None
    found = {}
    for name, word in zip(_CLOCKS.values(), words, strict=True):
        try:
            found[name] = float(word)
        except ValueError:  # "[N/A]"
            continue
    return found


def versions() -> dict[str, str]:
    """The packages that a figure may depend on, those that are here."""
    found = {"python": platform.python_version()}
    package = sys.modules.get("tilewright")
    found["tilewright"] = str(getattr(package, "__version__", ""))
    if commit := _commit():
        found["commit"] = commit
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _commit() -> str | None:
    """The commit of the source tree this runs from, with a + where files differ from it."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        git = ["git", "-C", str(root)]
        asked = ([*git, "rev-parse", "HEAD"], [*git, "status", "--porcelain", "-uno"])
        head, changed = (
            subprocess.run(words, capture_output=True, text=True, timeout=30, check=True).stdout
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return head.strip() + ("+" if changed.strip() else "")


_KERNEL_MODULE = Path("/proc/driver/nvidia/version")


def _driver() -> str | None:
    """The driver's version where nvidia-smi is missing, from the kernel module's own words."""
    try:
        words = _KERNEL_MODULE.read_text().split()
    except OSError:
        return None
    return next((w for w in words if re.fullmatch(r"\d+\.\d+(\.\d+)?", w)), None)


def machine() -> dict[str, Any]:
    """The GPU and its driver (None without one), the processor, the versions."""
    words = _smi(["name", "driver_version"])
    return {
        "gpu": words[0] if words else None,
        "driver": words[1] if words else _driver(),
        "cuda": None,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "versions": versions(),
    }


def process_facts() -> dict[str, Any]:
    """What only a process that uses the GPU can say; empty in one that does not."""
    if not gpu_in_use():
        return {}
    from tilewright.targets.cuda.driver import driver

    found = driver()
    device = found.device(found.current_ordinal())
    version = found.driver_version
    facts: dict[str, Any] = {
        "gpu": device.name.partition("\0")[0].strip(),
        "sms": device.sms,
        "cuda": f"{version // 1000}.{version % 1000 // 10}",
    }
    if torch := sys.modules.get("torch"):
        facts["torch_cuda"] = torch.version.cuda
        facts["cudnn"] = torch.backends.cudnn.version()
    return facts
