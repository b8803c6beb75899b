"""Stations: what they run, compare and time, and what becomes of those that hang or die."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.tune.test_search import forget
from tilewright.choose import measured
from tilewright.choose.candidates import Candidate
from tilewright.ir.text import print_program
from tilewright.targets.entries import Kept, lines_of, with_lines
from tilewright.tune import pool
from tilewright.tune.pool import LocalPool
from tilewright.tune.search import tune
from tilewright.tune.station import Station


@tw.jit(target="cpu")
def picked(A, at):
    M, N, L = T.const("M, N, L")
    A: T.Tensor((M, N), "float32")
    at: T.Tensor((L,), "int32")
    B = T.empty((L, N), "float32")
    for l, n in T.tile(L, N):
        B[l, n] = A[at[l], n] * 2
    return B


SIZES = {"M": 40, "N": 96, "L": 30}


def job(times="2", **tiles):
    program = picked.calls.trace({}, SIZES, given={0: Candidate(tuple(tiles.items()), 0)}).program
    text = print_program(program).replace("* 2.0", f"* {times}.0")
    return {"program": text, "lines": lines_of(program), "target": "cpu", "inputs": {}}


def test_a_program_goes_through_its_text():
    program = picked.calls.trace({}, SIZES, given={0: Candidate((("l", 8), ("n", 32)), 0)}).program
    again = with_lines(tw.parse_ir(print_program(program)), lines_of(program))
    keys = [
        Kept(p, tw.Target.parse("cuda -arch=sm_90a"), {}, lines=True).key for p in (program, again)
    ]
    assert keys[0] == keys[1]


def test_results_are_those_of_the_first():
    station = Station()
    assert station.answer({"do": "load", "name": "a", **job(l=8, n=32)})["seconds"] > 0
    assert station.answer({"do": "load", "name": "b", **job(l=16, n=16)})["seconds"] > 0
    told = station.answer({"do": "load", "name": "c", **job("3", l=4, n=32)})["error"]
    assert told.startswith("result 0 differs from the first candidate's")
    seconds = station.answer({"do": "time", "names": ["a", "b"], "rounds": 3, "burst": 1e-4})
    assert all(0 < each < 1 for each in seconds["seconds"].values())


def test_integers_that_are_given_are_used():
    station, at = Station(), np.arange(30, dtype=np.int32)
    asked = {**job(l=8, n=32), "inputs": {"at": at}}
    assert "error" not in station.answer({"do": "load", "name": "a", **asked})
    assert station.want is not None and len(np.unique(station.want[0][:, 0])) > 20


def test_what_goes_wrong_is_an_answer():
    assert "error" in Station().answer({"do": "compile", **{**job(l=8, n=32), "program": "none"}})
    assert "error" in Station().answer({"do": "time", "names": ["x"], "rounds": 3, "burst": 1e-4})


@pytest.fixture
def crew_of_one():
    made = LocalPool(workers=1)
    yield made
    made.close()


def test_in_processes(crew_of_one):
    jobs = {"a": job(l=8, n=32), "b": job("3", l=8, n=32), "c": job(l=16, n=32)}
    jobs = {name: {k: v for k, v in each.items() if k != "inputs"} for name, each in jobs.items()}
    at = np.arange(30, dtype=np.int32)
    told = dict(crew_of_one.load(jobs, {"at": at}))
    assert not told["a"] and not told["c"] and "differs" in told["b"]
    assert set(crew_of_one.times(["a", "b", "c"], 3, 1e-4)) == {"a", "c"}
    crew_of_one.runner.process.kill()  # what it had is loaded by another one
    assert set(crew_of_one.times(["a", "c"], 3, 1e-4)) == {"a", "c"}


def test_the_first_is_what_others_are_compared_with(crew_of_one):
    """It is compiled last: the others are in the cache."""
    wrong, right = job("3", l=8, n=32), job(l=8, n=16)
    for each in (wrong, right):
        Station().answer({"do": "compile", **each})
    jobs = {"first": job(l=4, n=8), "wrong": wrong, "right": right}
    jobs = {name: {k: v for k, v in each.items() if k != "inputs"} for name, each in jobs.items()}
    crew_of_one.begin("cpu")
    told = dict(crew_of_one.load(jobs, {}))
    assert not told["first"] and not told["right"] and "differs" in told["wrong"]


def test_a_crew_goes_on_with_other_sizes(crew_of_one):
    for sizes in ({"M": 40, "N": 96, "L": 30}, {"M": 40, "N": 64, "L": 8}):
        found = tune(picked, {}, sizes, most=2, pool=crew_of_one, again=True)
        assert found.times[0] and not found.failures


def test_a_station_that_does_not_start(crew_of_one, monkeypatch):
    monkeypatch.setattr(pool.sys, "executable", "/bin/false")
    ((_, told),) = crew_of_one.load({"a": job(l=8, n=32)}, {})
    assert told == "compiling it: it ended with code 1"
    monkeypatch.setattr(pool.sys, "executable", "/no/such/file")
    ((_, told),) = crew_of_one.load({"b": job(l=8, n=32)}, {})
    assert told.startswith("compiling it: ") and "/no/such/file" in told


def test_one_that_hangs_is_killed(crew_of_one, monkeypatch):
    monkeypatch.setattr(pool, "COMPILE", 0.01)
    ((name, told),) = crew_of_one.load({"a": job(l=8, n=32)}, {})
    assert name == "a" and told == "compiling it: no answer within 0.01 s"


def test_without_a_cache_on_disk(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    monkeypatch.setattr(measured, "_here", {})
    found = tune(picked, {}, SIZES, most=2)
    assert found.times[0] and not found.is_kept and not found.failures
    forget(picked)


def test_a_decorated_kernel_is_tuned_once(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("tilewright.tune.search.MOST", 2)
    tuned = tw.autotune(picked)
    a = np.arange(40 * 96, dtype=np.float32).reshape(40, 96)
    at = np.arange(30, dtype=np.int32)[::-1].copy()
    np.testing.assert_array_equal(tuned(a, at), 2 * a[at])
    assert "measured" in tuned.compile(a, at).explain()
    monkeypatch.setattr("tilewright.tune.search.LocalPool", None)
    np.testing.assert_array_equal(tuned(a, at), 2 * a[at])
    forget(tuned)
    np.testing.assert_array_equal(tuned(a, at), 2 * a[at])
