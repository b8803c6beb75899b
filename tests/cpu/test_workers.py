"""Blocks over worker threads: each runs once, and what goes wrong in one is told."""

import threading

import pytest

from tilewright.targets.cpu import threads


@pytest.fixture(autouse=True)
def four(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "4")


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
        threads.run_blocks(work, first, total, 1 << 12, parallel=True)
        assert sorted(seen) == list(range(first, total))


def test_an_arena_belongs_to_one_thread():
    places, meet = {}, threading.Barrier(4)

    def work(place, start, stop):
        meet.wait(timeout=30)
        places[threading.get_ident()] = place

    threads.run_blocks(work, 0, 4, 1 << 12, parallel=True)
    assert len(set(places.values())) == 4


def test_a_failure_reaches_the_caller_after_all_have_stopped():
    running = []

    def work(place, start, stop):
        running.append(start)
        if start == 3:
            raise ValueError("block 3")
        running.remove(start)

    with pytest.raises(ValueError, match="block 3"):
        threads.run_blocks(work, 0, 16, 64, parallel=True)
    assert running == [3]
    threads.run_blocks(lambda *_: None, 0, 16, 64, parallel=True)  # and the workers live on


def test_a_launch_from_within_a_block_does_its_own_work():
    inner = []

    def work(place, start, stop):
        threads.run_blocks(lambda _, a, b: inner.extend(range(a, b)), 0, 3, 64, parallel=True)

    threads.run_blocks(work, 0, 4, 64, parallel=True)
    assert sorted(inner) == [0] * 4 + [1] * 4 + [2] * 4


def test_an_interrupt_waits_for_the_others(monkeypatch):
    """The arguments of a call are freed when it returns, so nobody may use them any more."""
    finished = []

    def work(place, start, stop):
        finished.append(start)

    job = threads._Job(work, 64, 0, 2, 1, workers=2)
    waits = []

    class Lock:
        def acquire(self):
            waits.append(len(finished))
            if len(waits) == 1:
                raise KeyboardInterrupt

    job.done = Lock()
    job.pending = 10
    job.run()
    with pytest.raises(KeyboardInterrupt):
        job.wait()
    assert len(waits) == 2
