"""Pools on the machines of a Ray cluster: an actor for each GPU, or for each core without any.

Every actor compiles what it runs, in processes that it can kill. Contenders of a final meet on one
actor. An actor that dies is replaced and what it had is loaded again; results count by candidate,
so none counts twice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.support.errors import RunError
from tilewright.tune.pool import Jobs, LocalPool

TRIES = 2  # actors with which a candidate may die
FINAL = 4  # rounds from which on contenders are timed in turn, on one actor


class Worker:
    """A pool of one compiler and one runner, on a machine of the cluster."""

    def __init__(self, target: str) -> None:
        self.pool = LocalPool(workers=1)
        self.name = self.pool.begin(target)

    def machine(self) -> str:
        return self.name

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> dict[str, str]:
        new = {name: job for name, job in jobs.items() if name not in self.pool.loaded}
        return dict(self.pool.load(new, inputs))

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        return self.pool.times(names, rounds, burst)


class RayPool:
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
        self.actors: list[Any] = []
        self.target = ""

    def begin(self, target: str) -> str:
        """Actors on machines that are alike: those of the first one's kind."""
        self._dismiss()
        self.target, self.jobs, self.inputs = target, dict[str, Any](), dict[str, Any]()
        self.where: dict[str, int] = {}  # the actor that has a candidate
        there = self.ray.cluster_resources()
        kind, needs = ("GPU", "num_gpus") if target.startswith("cuda") else ("CPU", "num_cpus")
        count = int(there.get(kind, 0)) - (kind == "CPU")
        if kind == "GPU" and not count:
            raise RunError("the Ray cluster has no GPU", fix="use --target cpu, or add a GPU node")
        self.worker = self.ray.remote(**{needs: 1})(Worker)
        made = [self.worker.remote(target) for _ in range(max(1, count))]
        names = self.ray.get([actor.machine.remote() for actor in made])
        self.actors = [actor for actor, name in zip(made, names, strict=True) if name == names[0]]
        return str(names[0])

    def load(self, jobs: Jobs, inputs: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
        self.jobs |= jobs
        self.inputs = dict(inputs)
        left = [(name, 0) for name in jobs]
        free = [*range(len(self.actors))]
        busy: dict[Any, tuple[int, str, int]] = {}
        while left or busy:
            while left and free:
                (name, tries), at = left.pop(0), free.pop()
                busy[self._asked(at, [name])] = (at, name, tries)
            (done, *_), _ = self.ray.wait([*busy], num_returns=1)
            at, name, tries = busy.pop(done)
            free.append(at)
            told = self._answer(at, done)
            if told is None and tries + 1 < TRIES:
                left.append((name, tries + 1))
                continue
            error = "its actor died" if told is None else told.get(name, "")
            if not error:
                self.where[name] = at
            yield name, error

    def _asked(self, at: int, names: Sequence[str]) -> Any:
        """Load candidates on an actor, after the first of all, which it compares them with."""
        first = next(iter(self.jobs))
        jobs = {name: self.jobs[name] for name in dict.fromkeys([first, *names])}
        return self.actors[at].load.remote(jobs, self.inputs)

    def _answer(self, at: int, reference: Any) -> dict[str, Any] | None:
        """What the actor says; None, and a new actor, if it died."""
        try:
            found: dict[str, Any] = self.ray.get(reference)
        except self.ray.exceptions.RayActorError:
            self.actors[at] = self.worker.remote(self.target)
            self.where = {name: w for name, w in self.where.items() if w != at}
            return None
        return found

    def times(self, names: Sequence[str], rounds: int, burst: float) -> dict[str, float]:
        asked: dict[int, list[str]] = {}
        for name in names:
            at = 0 if rounds >= FINAL else self.where.get(name, 0)
            asked.setdefault(at, []).append(name)
        found: dict[str, float] = {}
        for at, mine in asked.items():
            for _ in range(TRIES):
                missing = [name for name in mine if self.where.get(name) != at]
                if missing and self._answer(at, self._asked(at, missing)) is None:
                    continue
                told = self._answer(at, self.actors[at].times.remote(mine, rounds, burst))
                if told is not None:
                    found |= told
                    break
        return found

    def _dismiss(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor)
        self.actors = []

    def close(self) -> None:
        self._dismiss()
        if self.began:
            self.ray.shutdown()
