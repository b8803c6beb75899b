"""Blocks over worker threads: each runs once, whoever is asleep, elsewhere or in the way."""

import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest

from tilewright.targets.cpu import threads
from tilewright.targets.cpu.native import ASLEEP

MANY = 1 << 12


@pytest.fixture(autouse=True)
def four(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "4")


def run(work, first, total, size=MANY):
    """`work` takes an arena and a range."""
    entry = threads.ENTRY(lambda args, place, start, stop: work(place, start, stop))
    return threads.run_blocks(entry, None, first, total, size)


@pytest.mark.parametrize("total", [2, 3, 4, 7, 64, 1000])
@pytest.mark.parametrize("first", [0, 1])
def test_every_block_runs_once(total, first):
    seen, lock = [], threading.Lock()

    def work(place, start, stop):
        assert place % 64 == 0 and start < stop
        with lock:
            seen.extend(range(start, stop))

    for _ in range(20):
        seen.clear()
        own = run(work, first, total)
        assert sorted(seen) == list(range(first, total))
        assert 0 < own <= total - first


def test_an_arena_belongs_to_one_thread_and_is_large_enough():
    places, meet = {}, threading.Barrier(4)

    def work(place, start, stop):
        meet.wait(timeout=30)
        places[threading.get_ident()] = place

    for size in (1 << 12, 1 << 20, 1 << 12):
        places.clear()
        run(work, 0, 4, size)
        ordered = sorted(places.values())
        assert len(ordered) == 4
        assert all(b - a >= size for a, b in pairwise(ordered))


def test_a_launch_from_within_a_block_does_its_own_work():
    inner = []

    def work(place, start, stop):
        own = run(lambda _, a, b: inner.extend(range(a, b)), 0, 3)
        assert own == 3

    run(work, 0, 4)
    assert sorted(inner) == [0] * 4 + [1] * 4 + [2] * 4


def test_launches_from_several_threads():
    seen, lock, wrong = [], threading.Lock(), []

    def work(place, start, stop):
        with lock:
            seen.extend(range(start, stop))

    def launches():
        try:
            for _ in range(50):
                run(work, 0, 16)
        except BaseException as error:
            wrong.append(error)

    callers = [threading.Thread(target=launches) for _ in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not wrong and sorted(seen) == sorted([*range(16)] * 150)


def sleeping():
    for _ in range(200):
        if threads.pool.words[ASLEEP] == len(threads.pool.workers):
            return True
        time.sleep(0.01)
    return False


def test_workers_sleep_soon_and_come_back():
    run(lambda *_: None, 0, 4)
    assert sleeping()
    before = time.process_time()
    time.sleep(0.3)
    assert time.process_time() - before < 0.1
    meet = threading.Barrier(4)
    run(lambda *_: meet.wait(timeout=30), 0, 4)


def test_nobody_waits_for_a_worker_that_does_not_come(monkeypatch):
    """The launch is over when its blocks are done; a late worker finds the door closed."""
    run(lambda *_: None, 0, 4)
    assert sleeping()
    monkeypatch.setattr(threads.Pool, "wake", lambda self, count: None)
    seen = []
    assert run(lambda _, a, b: seen.extend(range(a, b)), 0, 64) == 64
    assert seen == list(range(64))


FORKED = """
import os
from tilewright.targets.cpu import threads
entry = threads.ENTRY(lambda args, place, start, stop: seen.extend(range(start, stop)))
for _ in range(2):
    seen = []
    threads.run_blocks(entry, None, 0, 64, 64)
    assert sorted(seen) == list(range(64))
child = os.fork()
seen = []
threads.run_blocks(entry, None, 0, 64, 64)
assert sorted(seen) == list(range(64))
if child:
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_has_its_own_workers():
    """And both leave while workers spin."""
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=60)
