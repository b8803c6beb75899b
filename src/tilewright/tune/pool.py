"""Who compiles candidates and measures them: stations in processes of this machine."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.choose.measured import machine_of
from tilewright.support import env
from tilewright.support.cache import default_store

COMPILE = 120.0  # seconds after which a compiler is given up
RUN = 30.0  # and a program that runs for the first time, besides what it took

Jobs = Mapping[str, Any]  # by name of the candidate, what a station compiles


class Lost(Exception):
    """A station hung or died; what it was asked last is to blame."""


class Pool(Protocol):
    """Who compiles programs, runs and times them."""

    def begin(self, target: str) -> str:
        """Another text, for this target; the name of the machine that runs it."""

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Compile and run each once; the name with what went wrong. What they write is compared
        with what the first one of this text wrote that ran."""

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        """Seconds of a call of each that is loaded, in turn; those that were lost are missing."""

    def close(self) -> None: ...


class Process:
    """A station in a process of its own; what it complains of goes to a file."""

    def __init__(self, folder: str, *, caches_there: bool) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        chosen = {**os.environ, "PYTHONPATH": paths}
        if caches_there:
            chosen |= {env.CACHE.name: "1", env.CACHE_DIR.name: folder}
        handle, name = tempfile.mkstemp(dir=folder)
        self.said = Path(name)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.tune.station"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=handle,
            env=chosen,
            text=True,
            start_new_session=True,  # Ctrl-C is for who asks
        )
        os.close(handle)
        self.turn = threading.Lock()

    def ask(self, seconds: float, **request: Any) -> dict[str, Any]:
        with self.turn:
            return self._ask(seconds, request)

    def _ask(self, seconds: float, request: dict[str, Any]) -> dict[str, Any]:
        assert self.process.stdin is not None and self.process.stdout is not None
        timer = threading.Timer(seconds, self.process.kill)
        timer.daemon = True
        timer.start()
        try:
            self.process.stdin.write(json.dumps(request) + "\n")
            self.process.stdin.flush()
            found: dict[str, Any] = json.loads(self.process.stdout.readline())
            return found
        except (OSError, ValueError):  # it is gone, was closed, or answered half
            late = not timer.is_alive()
            self.process.kill()
            code = self.process.wait()
        finally:
            timer.cancel()
        if late:
            raise Lost(f"no answer within {seconds:g} s")
        lines = self.said.read_text(errors="replace").split("\n") if self.said.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "")
        raise Lost(f"it ended with code {code}" + (f": {last}" if last else ""))

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class LocalPool:
    """Stations on this machine: several that compile, and one that runs and times. They meet in the
    cache on disk, or in a folder that goes with them where there is none."""

    def __init__(self, workers: int | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.all: list[Process] = []
        self.is_closed = False
        self.loaded: dict[str, tuple[Any, float]] = {}  # jobs, and the seconds of their first run
        self.left: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.runner: Process | None = None
        self.beginning: threading.Thread | None = None
        self.target = ""
        allowed = getattr(os, "sched_getaffinity", lambda _: range(os.cpu_count() or 2))(0)
        self.workers = workers or max(1, len(allowed) - 1)
        self.compilers = 0

    def begin(self, target: str) -> str:
        self.loaded, self.target = {}, target
        self.beginning = threading.Thread(target=self._begin, daemon=True)
        self.beginning.start()
        return machine_of(target.split()[0])

    def _begin(self) -> None:
        with suppress(Lost, OSError):  # loading says what is wrong
            self.runner = self.runner or self._station()
            self.runner.ask(COMPILE, do="begin", target=self.target)

    def _station(self) -> Process:
        made = Process(self.folder.name, caches_there=default_store() is None)
        self.all.append(made)
        return made

    def _compile(self) -> None:
        """One compiler's life."""
        station: Process | None = None
        while (job := self.left.get()) is not None:
            name, request = job
            try:
                station = station or self._station()
                told = str(station.ask(COMPILE, do="compile", **request).get("error", ""))
            except Exception as error:  # reported, not swallowed: somebody waits for an answer
                if self.is_closed:
                    return
                told, station = f"compiling it: {error}", None
            self.done.put((name, told))

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        given = self._saved(inputs)
        for _ in range(min(self.workers, len(jobs)) - self.compilers):
            threading.Thread(target=self._compile, daemon=True).start()
            self.compilers += 1
        for name, job in jobs.items():
            self.left.put((name, job))
        left, ready = [*jobs], dict[str, str]()
        while left:
            # the first that runs is what others are compared with: those before it come first
            order = left if self.loaded else left[:1]
            there = [each for each in order if each in ready]
            if there:
                name = there[0]
                left.remove(name)
                yield name, ready[name] or self._load(name, {**jobs[name], "inputs": given})
            else:
                name, told = self.done.get()
                ready[name] = told

    def _saved(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays as files, which stations read."""
        found = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                found[name] = os.path.join(self.folder.name, f"{name}.npy")
                np.save(found[name], value)
        return found

    def _load(self, name: str, job: Any, before: float = 0.0) -> str:
        if self.beginning is not None:
            self.beginning.join()
        try:
            self.runner = self.runner or self._station()
            answer = self.runner.ask(RUN + 3 * before, do="load", name=name, **job)
            told = str(answer.get("error", ""))
        except (Lost, OSError) as error:
            answer, told = {}, f"running it: {error}"
        if told:  # a kernel that faults leaves the GPU's context unusable
            self._begin_again()
        else:
            self.loaded[name] = job, float(answer["seconds"])
        return told

    def _begin_again(self) -> None:
        """A new runner, with what was loaded."""
        if self.runner is not None:
            self.runner.close()
        self.runner = None
        again, self.loaded = self.loaded, {}
        for name, (job, before) in again.items():
            self._load(name, job, before)

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        there = [name for name in names if name in self.loaded]
        if not there or self.runner is None:
            return {}
        # a call to look at it, six to find how many make a burst, and then the rounds
        each = [(7 + rounds) * 2 * max(burst, self.loaded[name][1]) for name in there]
        try:
            asked = {"do": "time", "names": there, "rounds": rounds, "burst": burst}
            found = self.runner.ask(RUN + sum(each), **asked)
        except Lost as lost:
            found = {"error": str(lost)}
        if "error" not in found:
            return {name: float(each) for name, each in found["seconds"].items()}
        if len(there) == 1:
            self.loaded.pop(there[0])
        self._begin_again()
        if len(there) == 1:
            return {}
        # one of them is to blame: alone, each shows whether it is
        return {n: t for name in there for n, t in self.times([name], rounds, burst).items()}

    def close(self) -> None:
        self.is_closed = True
        for _ in range(self.compilers):
            self.left.put(None)
        for station in [*self.all]:
            station.close()
        with suppress(OSError):
            self.folder.cleanup()
