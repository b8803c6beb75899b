"""Blocks over worker threads: each runs once, whoever is asleep, elsewhere or in the way."""

import io
import os
import subprocess
import sys
import threading
import time
from itertools import pairwise

import numpy as np
import pytest

from tests.cpu.common import compiled
from tilewright.support.errors import LaunchError, RunError
from tilewright.targets.cpu import threads
from tilewright.targets.cpu.kernel import _Launch
from tilewright.targets.cpu.native import AWAKE, FREE, LENT

MANY = 1 << 12


@pytest.fixture(autouse=True)
def four(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "4")
    monkeypatch.setattr(threads, "_LATE", 30)  # where others have the cores


def run(work, first, total, size=MANY):
    """`work` takes an arena and a range."""
    entry = threads.ENTRY(lambda args, place, start, stop: work(place, start, stop))
    arena = threads.take_arena(size)
    return threads.run_blocks(entry, None, first, total, arena.address, size)


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
        if not any(worker.awake for worker in threads.pool.workers):
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


def test_a_number_of_threads_is_a_number(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", "all")
    with pytest.raises(LaunchError, match="TILEWRIGHT_NUM_THREADS must be a number, not 'all'"):
        run(lambda *_: None, 0, 4)


def test_workers_that_are_too_many_stay_outside(monkeypatch):
    spins = threads._spins() * 1000  # a tenth of a second
    monkeypatch.setattr(threads, "_spins", lambda: spins)
    monkeypatch.setattr(threads, "pool", threads.Pool())
    inside, most = [], []

    def work(place, start, stop):
        inside.append(start)
        most.append(len(inside))
        time.sleep(1e-3)
        inside.pop()

    for count in (4, 2, 3):
        monkeypatch.setenv("TILEWRIGHT_NUM_THREADS", str(count))
        most.clear()
        run(work, 0, 64)
        assert 1 <= max(most) <= count
    assert sleeping() and not threads.pool.words[AWAKE]


def test_nobody_waits_for_a_worker_that_does_not_come(monkeypatch):
    """The launch is over when its blocks are done; a late worker finds the door closed."""
    run(lambda *_: None, 0, 4)
    assert sleeping()
    monkeypatch.setattr(threads.Pool, "wake", lambda self, *_: None)
    seen = []
    assert run(lambda _, a, b: seen.extend(range(a, b)), 0, 64) == 64
    assert seen == list(range(64))


def test_launches_do_without_threads_that_cannot_start(monkeypatch):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threads, "pool", threads.Pool())
    monkeypatch.setattr(threads._Worker, "start", start)
    seen = []
    assert run(lambda _, a, b: seen.extend(range(a, b)), 0, 64) == 64
    assert seen == list(range(64)) and not threads.pool.workers


def test_an_arena_in_use_is_nobody_elses():
    """A kernel may call Python, and Python another kernel."""
    outer = threads.take_arena(1)
    inner = threads.take_arena(1)
    assert abs(inner.address - outer.address) >= min(inner.size, outer.size)
    threads.give_arena(outer)
    assert threads.take_arena(1) is outer


TOLD = """
program told {
  param A: float32[64] global
  param B: float32[64] global
  kernel main grid bx in 1 threads tx in 32 {
    alloc tile: float32[64] shared
    map i in 64 { tile[i] = A[i] + 1.0 }
    %s
    map i in 64 { B[i] = tile[i] }
  }
}
"""


def test_a_stream_may_call_kernels(monkeypatch):
    kernel, other = (compiled(TOLD % line) for line in ('intrinsic print (tile[0]) text="t"', ""))
    a, b, c = (np.full(64, n, np.float32) for n in (1, 0, 7))

    class Stream(io.StringIO):
        def write(self, text):
            other({"A": c, "B": np.empty_like(c)})

    monkeypatch.setattr(sys, "stdout", Stream())
    kernel({"A": a, "B": b})
    assert (b == 2).all()


def test_a_failed_assertion_is_raised_where_it_failed(monkeypatch):
    """Not from a launch of another thread at the same time."""
    kernel, real = compiled(TOLD % 'intrinsic device_assert (tile[0] > 0.0) text="no"'), _Launch.run
    failed, over = threading.Event(), threading.Event()

    def run(self, args, **more):
        real(self, args, **more)
        if threading.current_thread() is not threading.main_thread():
            failed.set()
            over.wait(timeout=0.2)

    def fails():
        with pytest.raises(RunError, match="no"):
            kernel({"A": np.full(64, -9, np.float32), "B": np.empty(64, np.float32)})
        caught.append(True)

    monkeypatch.setattr(_Launch, "run", run)
    caught, b = [], np.empty(64, np.float32)
    other = threading.Thread(target=fails)
    other.start()
    failed.wait(timeout=30)
    kernel({"A": np.ones(64, np.float32), "B": b})
    over.set()
    other.join()
    assert caught and (b == 2).all()


def test_an_arena_comes_back_once():
    """A call that borrowed one before there was a larger one does not bring it back."""
    pool = threads.Pool()
    pool.lend(1 << 17)
    first = pool.words[FREE]
    assert first and pool.words[LENT] == first
    pool.words[FREE] = 0  # a call has it
    pool.lend(1 << 17)
    assert pool.words[FREE] == 0
    pool.lend((1 << 17) + 1)
    assert pool.words[FREE] == pool.words[LENT] == pool.lent[-1].address != first
    pool.words[FREE] = 0
    pool.forget()  # in a child, where no call has one
    assert pool.words[FREE] == pool.lent[-1].address


FORKED = """
import ctypes, gc, os, time
from threading import Event, Thread
import numpy as np
import tilewright as tw
import tilewright.language as T
from tilewright.targets.cpu import threads
from tilewright.targets.cpu.host import LLVM_LOCK

n = T.dynamic("n")

@T.prim_func
def add(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
    with T.Kernel(T.ceildiv(n, 64), threads=32) as block:
        for i in T.Parallel(64):
            B[block * 64 + i] = A[block * 64 + i] + 1

kernel = tw.compile(add, target="cpu")
few, many = ((np.ones(n, np.float32), np.zeros(n, np.float32)) for n in (64, 1 << 20))

def calls():
    for a, b in (few, many) * 3:
        for _ in range(3):
            b[:] = 0
            kernel(a, b)
            assert (b == 2).all()

def compiles():
    with LLVM_LOCK:
        begun.set()
        time.sleep(0.1)

begun = Event()
Thread(target=compiles).start()
begun.wait()
child = os.fork()
if not child:
    os._exit(not LLVM_LOCK.acquire(timeout=10))
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0

for count in "1", "4":
    os.environ["TILEWRIGHT_NUM_THREADS"] = count
    calls()
    child = os.fork()
    if not child:  # what only threads held is others' now
        gc.collect()
        taken = [ctypes.c_int64(0x4141414141414141) for _ in range(100_000)]
        calls()
        assert all(number.value == 0x4141414141414141 for number in taken)
        assert len(threads.pool.workers) == int(count) - 1
        os._exit(0)
    calls()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_forked_child_calls_kernels(tmp_path):
    """With workers of its own, the memory that machine code knew before, and locks that nobody
    holds; and both leave while workers spin."""
    (path := tmp_path / "forked.py").write_text(FORKED)
    subprocess.run([sys.executable, str(path)], check=True, timeout=60)
