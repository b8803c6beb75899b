"""Blocks over cores: worker threads that live as long as the process.

A worker is a Python thread that waits in machine code, without the GIL (`native`): after a launch
it spins for a short time: the next one mostly comes soon, and to wake a thread takes 20 to 80 µs.
Then it sleeps on a lock. A launch wakes who sleeps and begins: a worker that is not there when the
blocks are done is not waited for. Each worker owns an arena for the tiles of the block it runs.
"""

from __future__ import annotations

import ctypes
import os
import threading
from functools import cache
from time import perf_counter
from typing import Any

from tilewright.targets.cpu.host import thread_count
from tilewright.targets.cpu.native import (
    AWAKE,
    BUSY,
    DOOR,
    FREE,
    LENT,
    MOST,
    NEXT,
    OPEN,
    POOL_WORDS,
    TOTAL,
    TURN,
    native,
)

# (arguments, arena, first block, last block)
ENTRY = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64)
_AWAKE = 100e-6  # seconds that a worker spins
_LATE = 50e-3  # seconds within which a launch that wakes workers begins
_PARTS = 8  # a thread's share is taken in: small ranges even out blocks of different cost
_LEAST = 1 << 16  # bytes of an arena

_local = threading.local()


class Memory:
    """Bytes at an address that is aligned for any vector, their number in the word before it."""

    def __init__(self, size: int) -> None:
        self.size = max(size, _LEAST)
        self.bytes = ctypes.create_string_buffer(self.size + 8192)
        self.address = (ctypes.addressof(self.bytes) // 4096 + 2) * 4096
        ctypes.c_int64.from_address(self.address - 8).value = self.size


def take_arena(size: int) -> Memory:
    """This thread's, at least `size` bytes, or another one while that is in use: a kernel may call
    Python, and Python another kernel."""
    held: Memory | None = _local.__dict__.pop("arena", None)
    return Memory(size) if held is None or held.size < size else held


def give_arena(memory: Memory) -> None:
    _local.arena = memory


@cache
def _spins() -> int:
    """How often a worker looks before it sleeps."""
    tries, taken = 1000, []
    empty = Memory(8 * POOL_WORDS)
    for _ in range(3):
        started = perf_counter()
        native().serve(empty.address, None, 0, tries)
        taken.append(perf_counter() - started)
    return int(tries * _AWAKE / min(taken))


class _Worker(threading.Thread):
    def __init__(self, pool: Pool) -> None:
        super().__init__(daemon=True, name="tilewright-cpu")
        self.pool, self.awake = pool, True
        self.expects = -1  # the launch before the one that woke it
        self.until = 0.0  # when it gives up
        self.ready = threading.Lock()
        self.ready.acquire()

    def run(self) -> None:
        serve, place, spins, arena = native().serve, self.pool.memory.address, _spins(), Memory(0)
        while True:
            if more := serve(place, arena.address, arena.size, spins):
                arena = Memory(more)
                continue
            with self.pool.lock:
                if not self._may_sleep():
                    continue
                self.awake = False
                self.pool.count()
            self.ready.acquire()

    def _may_sleep(self) -> bool:
        """Whether the launch that it was woken for has come and has no blocks left, or is late."""
        words = self.pool.words
        door = words[DOOR]  # once: it may open any time
        if door & OPEN and words[NEXT] < words[TOTAL]:
            return False
        return door >> TURN != self.expects or perf_counter() > self.until


class Pool:
    """The workers, the memory by which launches reach them, and arenas that calls without Python
    borrow."""

    def __init__(self) -> None:
        self.memory = Memory(8 * POOL_WORDS)
        self.words = (ctypes.c_int64 * POOL_WORDS).from_address(self.memory.address)
        self.lent: list[Memory] = []
        self.forget()

    def forget(self) -> None:
        """A forked child has none of the threads; calls know where this memory is."""
        self.words[DOOR] = self.words[BUSY] = self.words[AWAKE] = 0
        self.words[FREE] = self.words[LENT]
        self.workers: list[_Worker] = []
        self.lock = threading.RLock()  # a finalizer may launch, too

    def count(self) -> None:
        """The first workers, as far as they are awake."""
        asleep = (n for n, worker in enumerate(self.workers) if not worker.awake)
        self.words[AWAKE] = next(asleep, len(self.workers))

    def wake(self, count: int, most: int) -> None:
        """So many workers of those that there may be: a launch comes at once."""
        with self.lock:
            self.words[MOST] = most
            while len(self.workers) < count:
                self.workers.append(worker := _Worker(self))
                try:
                    worker.start()
                except RuntimeError:  # no more threads: those that are there do it
                    self.workers.remove(worker)
                    break
            turn, until = self.words[DOOR] >> TURN, perf_counter() + _LATE
            for worker in self.workers[:count]:
                worker.expects, worker.until = turn, until
                if not worker.awake:
                    worker.awake = True
                    worker.ready.release()
            self.count()

    def lend(self, size: int) -> None:
        """Have at least `size` bytes to borrow. Smaller ones do not come back."""
        with self.lock:
            if not self.lent or self.lent[-1].size < size:
                self.lent.append(Memory(1 << (size - 1).bit_length()))
                self.words[FREE] = self.words[LENT] = self.lent[-1].address


pool = Pool()

if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=pool.forget)


def chunk_of(total: int) -> int:
    """How many of so many blocks a thread takes at once; 0 where there is one thread."""
    count = min(thread_count(), total)
    return max(1, total // (count * _PARTS)) if count > 1 else 0


def run_blocks(work: Any, args: Any, first: int, total: int, arena: int, size: int) -> int:
    """Run `work`, an `ENTRY`, over blocks first … total-1, in this thread, with `size` bytes at
    `arena`, and in the workers; says how many this one ran. A kernel launched while another runs
    does its own blocks."""
    most, chunk = thread_count() - 1, chunk_of(total - first)
    if not chunk:
        work(args, arena, first, total)
        return total - first
    pool.wake(min(most, total - first - 1), most)
    done: int = native().share(pool.memory.address, work, args, arena, size, first, total, chunk)
    return done
