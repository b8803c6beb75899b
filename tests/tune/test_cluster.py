"""Tuning on a Ray cluster of this machine's cores, of which some are lost midway."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.tune.test_search import forget
from tests.tune.test_station import SIZES, picked
from tilewright.choose import measured
from tilewright.support.errors import RunError
from tilewright.tune.search import tune


def actors() -> list[int]:
    """Processes of actors."""
    found = []
    for path in Path("/proc").glob("[0-9]*/comm"):
        try:
            if path.read_text().startswith("ray::Worker"):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_ray_is_an_extra(monkeypatch):
    from tilewright.tune.cluster import RayPool

    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(RunError, match="needs ray"):
        RayPool("local")


def test_nothing_is_lost_with_a_worker(monkeypatch, tmp_path):
    pytest.importorskip("ray")
    from tilewright.tune.cluster import RayPool

    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "_here", {})
    pool = RayPool("local")
    killed: list[int] = []

    class Killing:
        """The pool, with an actor killed when the first candidates and the finals are there."""

        def __getattr__(self, name):
            return getattr(pool, name)

        def load(self, jobs, inputs):
            for each in pool.load(jobs, inputs):
                self.kill()
                yield each

        def times(self, names, rounds, burst):
            if rounds > 3 and len(killed) < 2:
                self.kill(True)
            return pool.times(names, rounds, burst)

        def kill(self, again=False):
            if again or not killed:
                killed.append(actors()[0])
                os.kill(killed[-1], signal.SIGKILL)

    try:
        found = tune(picked, {}, SIZES, most=6, pool=Killing())
    finally:
        pool.close()
        forget(picked)
    names = [str(candidate) for candidate, _ in found.times[0]]
    assert len(killed) == 2 and not found.failures
    assert len(names) == len(set(names)) == found.tried >= 6
