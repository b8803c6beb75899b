"""Stations on the machines of a Ray cluster: an actor for each GPU, or for each core without any.

Every actor compiles what it runs, into the cache of its machine. Contenders of a final meet on one
actor. An actor that dies is replaced and what it had is loaded again; results count by candidate,
so none counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.support.errors import RunError
from tilewright.tune.crew import Jobs
from tilewright.tune.station import Station

TRIES = 2  # machines on which a candidate may fail with its actor
FINAL = 4  # rounds from which on contenders are timed in turn, on one actor


class RayCrew:
    def __init__(self, address: str) -> None:
        try:
            import ray
        except ImportError:
            raise RunError(
                "tuning on a Ray cluster needs ray", fix="pip install 'tilewright[ray]'"
            ) from None
        self.ray = ray
        self.began = not ray.is_initialized()
        if self.began:
            ray.init(address=None if address == "local" else address, log_to_driver=False)
        gpus = int(ray.cluster_resources().get("GPU", 0))
        needs = {"num_gpus": 1} if gpus else {"num_cpus": 1}
        self.station = ray.remote(**needs)(Station)
        count = gpus or max(1, int(ray.cluster_resources().get("CPU", 1)) - 1)
        self.actors: list[Any] = [self.station.remote() for _ in range(count)]
        self.jobs: dict[str, Any] = {}
        self.first = ""  # whose results others must have
        self.where: dict[str, int] = {}  # the actor that has a candidate

    def begin(self, target: str) -> None:
        pass  # actors begin with what they load

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        self.jobs |= {name: {**job, "inputs": dict(inputs)} for name, job in jobs.items()}
        self.first = self.first or next(iter(jobs), "")
        left = [(name, 0) for name in jobs]
        free = [*range(len(self.actors))]
        busy: dict[Any, tuple[int, str, int]] = {}
        while left or busy:
            while left and free:
                (name, tries), at = left.pop(0), free.pop()
                busy[self._ask_load(at, name)] = (at, name, tries)
            (done, *_), _ = self.ray.wait([*busy], num_returns=1)
            at, name, tries = busy.pop(done)
            free.append(at)
            told = self._answer(at, done)
            if told is None and tries + 1 < TRIES:
                left.append((name, tries + 1))
                continue
            error = "its actor died" if told is None else str(told.get("error", ""))
            if not error:
                self.where[name] = at
            yield name, error

    def _ask_load(self, at: int, name: str) -> Any:
        """Ask for one candidate, behind the first of all if the actor is new."""
        actor = self.actors[at]
        if name != self.first and self.first not in [n for n, w in self.where.items() if w == at]:
            actor.answer.remote({"do": "load", "name": self.first, **self.jobs[self.first]})
        return actor.answer.remote({"do": "load", "name": name, **self.jobs[name]})

    def _answer(self, at: int, reference: Any) -> dict[str, Any] | None:
        """What the actor says; None, and a new actor, if it died."""
        try:
            found: dict[str, Any] = self.ray.get(reference)
        except self.ray.exceptions.RayActorError:
            self.actors[at] = self.station.remote()
            self.where = {name: w for name, w in self.where.items() if w != at}
            return None
        return found

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        if not names:
            return {}
        asked: dict[int, list[str]] = {}
        for name in names:
            at = 0 if rounds >= FINAL else self.where.get(name, 0)
            asked.setdefault(at, []).append(name)
        found: dict[str, float] = {}
        for at, mine in asked.items():
            for _ in range(TRIES):
                for name in mine:
                    if self.where.get(name) != at:
                        self._answer(at, self._ask_load(at, name))
                        self.where[name] = at
                request = {"do": "time", "names": mine, "rounds": rounds, "burst": burst}
                told = self._answer(at, self.actors[at].answer.remote(request))
                if told is not None:
                    found |= told.get("seconds", {})
                    break
        return found

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        if self.began:
            self.ray.shutdown()
