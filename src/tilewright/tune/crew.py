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
from typing import Any, Protocol

import numpy as np

from tilewright.support import env
from tilewright.support.cache import default_store

COMPILE = 120.0  # seconds after which a compiler is given up
RUN = 20.0  # and a program that runs for the first time

Jobs = Mapping[str, Any]  # by name of the candidate, what a station compiles


class Lost(Exception):
    """A station hung or died; what it was asked last is to blame."""


class Crew(Protocol):
    """Who compiles programs, runs and times them."""

    def begin(self, target: str) -> None:
        """There will be programs for this target."""

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        """Compile and run each once; the name with what went wrong, in the order they are ready.
        What they write is compared with what the first of all wrote."""

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        """Seconds of a call of each that is loaded, in turn; those that were lost are missing."""

    def close(self) -> None: ...


class Process:
    """A station in a process of its own."""

    def __init__(self, folder: str | None) -> None:
        paths = os.pathsep.join(path for path in sys.path if path)
        chosen = {**os.environ, "PYTHONPATH": paths}
        if folder is not None:
            chosen |= {env.CACHE.name: "1", env.CACHE_DIR.name: folder}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tilewright.tune.station"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=chosen,
            text=True,
            start_new_session=True,  # Ctrl-C is for who asks
        )
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
            line = self.process.stdout.readline()
        except (OSError, ValueError):  # it is gone, or was closed
            line = ""
        finally:
            late = not timer.is_alive()
            timer.cancel()
        if not line:
            code = self.process.wait()
            raise Lost(f"no answer within {seconds:g} s" if late else f"it ended with code {code}")
        found: dict[str, Any] = json.loads(line)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class LocalCrew:
    """Stations on this machine: several that compile, and one that runs and times. They meet in the
    cache on disk, or in a folder that goes with them where there is none."""

    def __init__(self, workers: int | None = None) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.all: list[Process] = []
        self.is_closed = False
        self.loaded: dict[str, Any] = {}
        self.left: queue.SimpleQueue[tuple[str, Any] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
        self.runner = self._station()
        self.workers = workers or max(1, (os.cpu_count() or 2) - 1)
        for _ in range(self.workers):
            threading.Thread(target=self._compile, daemon=True).start()

    def begin(self, target: str) -> None:
        runner = self.runner

        def ask() -> None:
            with suppress(Lost):
                runner.ask(COMPILE, do="begin", target=target)

        threading.Thread(target=ask, daemon=True).start()

    def _station(self) -> Process:
        made = Process(self.folder.name if default_store() is None else None)
        self.all.append(made)
        return made

    def _compile(self) -> None:
        """One compiler's life."""
        station = self._station()
        while (job := self.left.get()) is not None:
            name, request = job
            try:
                told = str(station.ask(COMPILE, do="compile", **request).get("error", ""))
            except Lost as lost:
                if self.is_closed:
                    return
                told, station = f"compiling it: {lost}", self._station()
            self.done.put((name, told))

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        given = self._saved(inputs)
        for name, job in jobs.items():
            self.left.put((name, job))
        for _ in jobs:
            name, told = self.done.get()
            yield name, told or self._load(name, {**jobs[name], "inputs": given})

    def _saved(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Arrays as files, which stations read."""
        found = dict(inputs)
        for name, value in inputs.items():
            if isinstance(value, np.ndarray):
                found[name] = os.path.join(self.folder.name, f"{name}.npy")
                np.save(found[name], value)
        return found

    def _load(self, name: str, job: Any) -> str:
        try:
            told = str(self.runner.ask(COMPILE + RUN, do="load", name=name, **job).get("error", ""))
        except Lost as lost:
            told = f"running it: {lost}"
        if told:  # a kernel that faults leaves the GPU's context unusable
            self._begin_again()
        else:
            self.loaded[name] = job
        return told

    def _begin_again(self) -> None:
        """A new runner, with what was loaded."""
        self.runner.close()
        self.runner = self._station()
        again, self.loaded = self.loaded, {}
        for name, job in again.items():
            self._load(name, job)

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        there = [name for name in names if name in self.loaded]
        if not there:
            return {}
        limit = RUN + len(there) * rounds * burst * 20
        try:
            found = self.runner.ask(limit, do="time", names=there, rounds=rounds, burst=burst)
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
        for _ in range(self.workers):
            self.left.put(None)
        for station in self.all:
            station.close()
        self.folder.cleanup()
