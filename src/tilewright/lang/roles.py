"""Roles: statements placed on warpgroups, and explicit barriers."""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import Any

from tilewright.lang.builder import Opened
from tilewright.lang.core import *
from tilewright.lang.place import Placed, on_threads, threads_where


class Placement(Opened):
    """`with T.ws(i, …):`"""

    def __init__(self, ids: tuple[int, ...]) -> None:
        self.ids = ids

    def __enter__(self) -> None:
        builder = current("T.ws")
        kernel = builder.require_block("ws")
        groups = kernel.thread_count // WARPGROUP
        for at in self.ids:
            if not 0 <= at < max(1, groups):
                raise CompileError(
                    f"T.ws({at}): this kernel has {groups} warpgroup{'s' * (groups != 1)}",
                    expected=f"0 … {max(0, groups - 1)}",
                    fix=f"T.Kernel(..., threads={(at + 1) * WARPGROUP})",
                )
        if any(body.warps for body in builder.bodies):
            raise CompileError("T.ws inside T.ws", fix="place statements once")
        self.loc = locate()
        ids = sorted(set(self.ids))
        if ids[-1] - ids[0] + 1 != len(ids):
            raise CompileError(
                "T.ws takes neighbouring warpgroups",
                got=str(tuple(ids)),
                fix="write numbers in a row: T.ws(0, 1)",
            )
        self.warps = ids[0] * 4, len(ids) * 4
        builder.open().warps = self.warps

    def __exit__(self, kind: Any, value: Any, traceback: Any) -> None:
        if kind is None:
            builder = current()
            builder.emit(Placed(*self.warps, builder.close(), loc=self.loc))


def ws(*warpgroups: int) -> Placement:
    """Place statements on warpgroups. Their meaning stays sequential; with explicit barriers
    inside, each placement runs on its own and control is yours.

    A fragment belongs to the threads of the warpgroups that use it. Without barriers, one that
    several use lives in shared memory, and the compiler lets warpgroups meet where one needs what
    another did; what is not placed runs where its fragments are, in loops on the warpgroup that is
    placed there first, elsewhere on all. With barriers, what is not placed runs on all warpgroups
    together, and they meet before and after it.

    Example:
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((64, 64), "float32")
            with T.ws(0):
                T.copy(X, tile)
            with T.ws(1):
                T.copy(tile, Y)
        # Y[0]: 0 1 2
    """
    if not warpgroups:
        raise CompileError("T.ws needs a warpgroup", fix="write T.ws(0)")
    return Placement(tuple(static_int(w, "a warpgroup of T.ws", 0) for w in warpgroups))


WarpSpecialize = ws

# ── barriers ─────────────────────────────────────────────────────────────────────────────────


def barrier_region(bar: Any) -> Region:
    """One barrier."""
    if isinstance(bar, Tile) and bar.buffer.space is Space.BARRIER:
        if bar.shape != (1,):
            raise CompileError(
                f"T.{word()}: {bar.name} holds {bar.shape[0]} barriers",
                fix=f"say which: {bar.name}[i]",
            )
        bar = bar[0]
    if not isinstance(bar, Access) or bar.buffer.space is not Space.BARRIER:
        raise CompileError(
            f"T.{word()} needs a barrier", got=describe(bar), fix="make one with T.alloc_barrier"
        )
    return region_of(bar)


def _arrivals(builder: Builder) -> tuple[int, bool]:
    """How many threads run this place, for barriers count threads; and whether a condition chooses
    them."""
    kernel = builder.require_block()
    threads = range(kernel.thread_count)
    for body in builder.bodies:
        if body.warps:
            first, count = body.warps
            threads = range(first * WARP, (first + count) * WARP)
    names = set(kernel.thread_vars)
    guards = [b.guard for b in builder.bodies if b.guard is not None and variables(b.guard) & names]
    if not guards:
        return len(threads), False
    guard = reduce(logical_and, guards)
    if not on_threads(guard, kernel):
        raise CompileError(
            "arriving under a condition that mixes threads with other values",
            fix="test the thread index in an `if` of its own",
        )
    return sum(t in threads for t in threads_where(guard, kernel)), True


def _expect(mbarrier: Any, tx: Any, arrive: bool) -> None:
    """Bytes are expected by all threads together or by one: others would each expect them again."""
    builder = current()
    count, chosen = _arrivals(builder)
    if chosen and count != 1:
        raise CompileError(
            f"T.{word()} under a condition that {count} threads pass",
            expected="one thread, or all that run this place together",
            fix="test for one thread: if tx == 0, or leave the condition out",
        )
    bar, arrivals = barrier_region(mbarrier), const(count if arrive else 0)
    builder.emit(Arrive(bar, bytes=cast(wrap(tx), INT32), count=arrivals))


def barrier_arrive(mbarrier: Any, cta_id: Any = None) -> None:
    """Every thread that comes here arrives on the barrier.

    Example:
        ready = T.alloc_barrier(128)
        tile = T.alloc_shared((128,), "int32")
        t = T.get_thread_binding()
        tile[t] = t
        T.barrier_arrive(ready)
        T.barrier_wait(ready, 0)
        if t < 64:
            M[t] = tile[127 - t]
        # M: 127 126 125
    """
    builder = current_block()
    bar = barrier_region(mbarrier)
    if cta_id is not None:
        bar = replace(bar, cta=wrap(cta_id))
    builder.emit(Arrive(bar, count=const(_arrivals(builder)[0])))


def barrier_wait(mbarrier: Any, parity: Any = 0) -> None:
    """Until the barrier's phase of that parity has completed.

    Phases count from 0; a barrier that is used again and again is waited for with parity 0, 1,
    0, 1 …

    Example:
        turn = T.alloc_barrier(128)
        tile = T.alloc_shared((128,), "int32")
        t = T.get_thread_binding()
        tile[t] = t
        for k in T.serial(4):
            T.barrier_arrive(turn)
            T.barrier_wait(turn, k % 2)
            next = T.alloc_var("int32", init=0)
            next = tile[(t + 1) % 128]
            T.sync_threads()
            tile[t] = next
        T.sync_threads()
        if t < 64:
            M[t] = tile[t]
        # M: 4 5 6
    """
    builder = current_block()
    fix = "count the phases from 0: the parity is 0 or 1, such as k % 2"
    phase = integer(parity, "the parity of a barrier's phase", fix, bools=True)
    builder.emit(Wait(barrier_region(mbarrier), cast(phase, INT32)))


mbarrier_arrive, mbarrier_wait_parity = barrier_arrive, barrier_wait


def mbarrier_expect_tx(mbarrier: Any, tx: Any) -> None:
    """The barrier's phase also waits for `tx` bytes of bulk copies.

    `T.tma_copy` with a barrier expects its own bytes; this is for copies of foreign code. It counts
    once: on all threads together, or under an `if` that a single one of them passes.

    Example:
        full = T.alloc_barrier(128)
        T.mbarrier_expect_tx(full, 0)
        T.mbarrier_arrive(full)
        T.mbarrier_wait_parity(full, 0)
        T.copy(X, Y)
        # Y[0]: 0 1 2
    """
    _expect(mbarrier, tx, arrive=False)


def mbarrier_arrive_expect_tx(mbarrier: Any, tx: Any) -> None:
    """`mbarrier_expect_tx`, then `mbarrier_arrive`.

    Example, compiled for CUDA:
        with T.Kernel(1, threads=128):
            full = T.alloc_barrier(1)
            if T.get_thread_binding() == 0:
                T.mbarrier_arrive_expect_tx(full, 0)
            T.mbarrier_wait_parity(full, 0)
    """
    _expect(mbarrier, tx, arrive=True)


def set_max_nreg(count: int, is_inc: int | bool = True) -> None:
    """Registers per thread of this role from here on; more (`is_inc`) or fewer than before.

    Example:
        with T.Kernel(1, threads=256):
            full = T.alloc_barrier(128)
            tile = T.alloc_shared((64, 64), "float32")
            with T.ws(0):
                T.set_max_nreg(40, 0)
                T.tma_copy(X, tile, barrier=full)
                T.barrier_arrive(full)
            with T.ws(1):
                T.set_max_nreg(232, 1)
                T.barrier_wait(full, 0)
                T.copy(tile, Y)
        # Y[0]: 0 1 2
    """
    builder = current_block()
    registers = static_int(count, "the count of T.set_max_nreg", 24)
    if registers > 256 or registers % 8:
        raise CompileError(
            "T.set_max_nreg takes a multiple of 8 up to 256",
            got=str(registers),
            fix="write a multiple of 8: 240, 232, …",
        )
    builder.emit(Hint("max_nreg", detail=(registers, bool(is_inc))))


def inc_max_nreg(count: int) -> None:
    """`set_max_nreg(count, 1)`.

    Example:
        with T.Kernel(1, threads=256):
            ready = T.alloc_barrier(128)
            with T.ws(0):
                T.dec_max_nreg(40)
                T.barrier_arrive(ready)
            with T.ws(1):
                T.inc_max_nreg(232)
                T.barrier_wait(ready, 0)
                T.copy(X, Y)
        # Y[0]: 0 1 2
    """
    set_max_nreg(count, 1)


def dec_max_nreg(count: int) -> None:
    """`set_max_nreg(count, 0)`.

    Example:
        with T.Kernel(1, threads=256):
            ready = T.alloc_barrier(128)
            with T.ws(0):
                T.dec_max_nreg(40)
                T.barrier_arrive(ready)
            with T.ws(1):
                T.inc_max_nreg(232)
                T.barrier_wait(ready, 0)
                T.copy(X, Y)
        # Y[0]: 0 1 2
    """
    set_max_nreg(count, 0)


def no_set_max_nreg() -> None:
    """Keep the compiler from moving registers between roles.

    Example:
        T.no_set_max_nreg()
        T.copy(X, Y)
        # Y[0]: 0 1 2
    """
    current_block().emit(Hint("no_max_nreg"))


disable_warp_group_reg_alloc = no_set_max_nreg


def fence_proxy_async() -> None:
    """Ordinary writes to shared memory become visible to bulk copies and matrix instructions.

    The compiler puts it where `T.copy` and `T.gemm` need it; it is for code with barriers of its
    own.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        for i, j in T.Parallel(64, 64):
            tile[i, j] = X[i, j] * 2
        T.fence_proxy_async()
        T.sync_threads()
        T.tma_copy(tile, Y)
        # Y[0]: 0 2 4
    """
    current_block().emit(Fence("proxy_async"))


def cluster_sync() -> None:
    """Until all threads of the cluster have come here.

    Example:
        with T.Kernel(2, threads=64, cluster_dims=2) as bx:
            mine = T.alloc_fragment((64,), "int32")
            theirs = T.alloc_shared((64,), "int32")
            for i in T.Parallel(64):
                mine[i] = 100 * bx + i
            T.cluster_sync()  # nobody writes before both blocks are there
            T.copy_cluster(mine, theirs, dst_block=1 - T.block_rank_in_cluster())
            T.cluster_sync()
            if bx == 0:
                T.copy(theirs, M)
        # M: 100 101 102
    """
    builder = current()
    builder.require_cluster()
    builder.emit(Sync("cluster"))


def tma_store_wait(count: int = 0, read: bool = True) -> None:
    """Until at most `count` groups of bulk stores are open.

    `read=True` waits only until their source may be overwritten.

    Example:
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X, tile)
        T.tma_copy(tile, Y)
        T.tma_store_arrive()
        T.tma_store_wait(0)
        # Y[0]: 0 1 2
    """
    builder = current_block()
    builder.emit(WaitGroup("bulk", static_int(count, "the count", 0), bool(read)))


def pdl_wait() -> None:
    """Until the kernel launched before this one has let its dependents go on.

    Example:
        T.pdl_wait()
        T.copy(X, Y)
        T.pdl_launch()
        # Y[0]: 0 1 2
    """
    current_block().emit(Intrinsic("pdl_wait"))


def pdl_launch() -> None:
    """Let the kernel launched after this one start.

    Example:
        T.pdl_wait()
        T.copy(X, Y)
        T.pdl_launch()
        # Y[0]: 0 1 2
    """
    current_block().emit(Intrinsic("pdl_launch"))


pdl_sync, pdl_trigger = pdl_wait, pdl_launch
