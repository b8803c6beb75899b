"""Blocks over cores: worker threads that live as long as the process.

Generated code runs without the GIL (ctypes lets go of it), so plain Python threads are enough.
Each worker owns an arena for the tiles of the block it is running.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable

from tilewright.targets.cpu.host import thread_count

Work = Callable[[int, int, int], None]  # (arena, first block, last block)

_local = threading.local()


def arena(size: int) -> int:
    """The address of this thread's arena, at least `size` bytes, aligned for any vector."""
    held: tuple[int, ctypes.Array[ctypes.c_char], int] | None = getattr(_local, "arena", None)
    if held is None or held[0] < size:
        room = max(size, 1 << 16)
        memory = ctypes.create_string_buffer(room + 4096)
        address = -(-ctypes.addressof(memory) // 4096) * 4096
        held = _local.arena = (room, memory, address)
    return held[2]


class _Job:
    """Ranges of blocks that workers take until none is left.

    Bare locks hand it over and back: 20 µs for an empty one, against 36 with semaphores and events.
    """

    def __init__(
        self, work: Work, size: int, first: int, total: int, chunk: int, workers: int
    ) -> None:
        self.work = work
        self.size = size
        self.total = total
        self.chunk = chunk
        self.next = first
        self.lock = threading.Lock()
        self.pending = workers
        self.done = threading.Lock()
        self.done.acquire()
        self.error: BaseException | None = None

    def take(self) -> int:
        with self.lock:
            first = self.next
            self.next = first + self.chunk
        return first

    def run(self) -> None:
        try:
            place = arena(self.size)
            while (first := self.take()) < self.total:
                self.work(place, first, min(first + self.chunk, self.total))
        except BaseException as error:
            self.error = error
        with self.lock:
            self.pending -= 1
            last = self.pending == 0
        if last:
            self.done.release()

    def wait(self) -> None:
        """Until all have run, whatever interrupts: they use the arguments of the call."""
        try:
            self.done.acquire()
        except BaseException:
            self.done.acquire()
            raise


class _Worker(threading.Thread):
    def __init__(self) -> None:
        super().__init__(daemon=True, name="tilewright-cpu")
        self.ready = threading.Lock()
        self.ready.acquire()
        self.job: _Job | None = None
        self.start()

    def run(self) -> None:
        while True:
            self.ready.acquire()
            job, self.job = self.job, None
            if job is not None:
                job.run()


_workers: list[_Worker] = []
_busy = threading.Lock()


def _forget() -> None:
    """A forked child has this module's names but none of its threads."""
    global _busy
    _workers.clear()
    _busy = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def run_blocks(work: Work, first: int, total: int, size: int, parallel: bool) -> None:
    """Run `work` over blocks first … total-1, in this thread and, if `parallel`, in the workers."""
    count = min(thread_count(), total - first) if parallel else 1
    # a kernel launched while another runs (from another thread) does its own blocks
    turn = _busy
    if count < 2 or not turn.acquire(blocking=False):
        work(arena(size), first, total)
        return
    try:
        while len(_workers) < count - 1:
            _workers.append(_Worker())
        # small ranges even out blocks of different cost; taking one costs well under a microsecond
        chunk = max(1, (total - first) // (count * 8))
        job = _Job(work, size, first, total, chunk, count)
        for worker in _workers[: count - 1]:
            worker.job = job
            worker.ready.release()
        job.run()
        job.wait()
        if job.error is not None:
            raise job.error
    finally:
        turn.release()
