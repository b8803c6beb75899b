"""Thread level: shuffles, votes, barriers of threads."""

from __future__ import annotations

from typing import Any

from tilewright.ir.dtype import BOOL, DTYPES, INT32, DType
from tilewright.ir.expr import Var, cast, truth, wrap
from tilewright.ir.op import Intrinsic, Sync
from tilewright.lang.arguments import static_int
from tilewright.lang.builder import current_block, current_kernel
from tilewright.support.errors import CompileError

FULL = 0xFFFFFFFF


def _full_mask(mask: Any, word: str) -> None:
    if mask is not None and getattr(mask, "value", mask) not in (FULL, -1):
        raise CompileError(
            f"T.{word} runs in whole warps",
            expected="mask=0xFFFFFFFF",
            got=f"mask={mask}",
            fix="leave the mask out, and let all lanes reach the shuffle",
        )


def _shuffle(kind: str, value: Any, lane: Any, width: Any, mask: Any) -> Var:
    word = f"shfl_{kind}"
    builder = current_kernel(word)
    _full_mask(mask, word)
    size = static_int(32 if width is None else width, f"width of T.{word}", 1)
    if size > 32 or size & (size - 1):
        raise CompileError(
            f"T.{word}: width must be a power of two up to 32",
            got=str(size),
            fix="write 2, 4, 8, 16 or 32",
        )
    expr = wrap(value)
    result = builder.var(builder.hint, expr.dtype, "shuffled")
    builder.emit(
        Intrinsic(word, (expr, cast(wrap(lane), INT32)), result, width=None if size == 32 else size)
    )
    return result


def shfl_xor(value: Any, delta: Any, width: Any = None, mask: Any = None) -> Var:
    """The value of the lane whose number differs by the bits of `delta`.

    Example:
        t = T.get_thread_binding()
        x = T.shfl_xor(t, 1)
        if t < 64:
            M[t] = x
        # M: 1 0 3 2
    """
    return _shuffle("xor", value, delta, width, mask)


def shfl_up(value: Any, delta: Any, width: Any = None, mask: Any = None) -> Var:
    """The value of the lane `delta` below; the lowest lanes keep their own.

    Example:
        t = T.get_thread_binding()
        x = T.shfl_up(t, 1)
        if t < 64:
            M[t] = x
        # M: 0 0 1 2
    """
    return _shuffle("up", value, delta, width, mask)


def shfl_down(value: Any, delta: Any, width: Any = None, mask: Any = None) -> Var:
    """The value of the lane `delta` above; the highest lanes keep their own.

    Example:
        t = T.get_thread_binding()
        x = T.shfl_down(t, 2)
        if t < 64:
            M[t] = x
        # M: 2 3 4
    """
    return _shuffle("down", value, delta, width, mask)


def shfl_sync(value: Any, lane: Any, width: Any = None, mask: Any = None) -> Var:
    """The value of lane `lane`.

    Example:
        t = T.get_thread_binding()
        x = T.shfl_sync(t, 5)
        if t < 64:
            M[t] = x
        # M: 5 5 5
    """
    return _shuffle("sync", value, lane, width, mask)


def _vote(word: str, predicate: Any, mask: Any, dtype: DType) -> Var:
    builder = current_kernel(word)
    _full_mask(mask, word)
    result = builder.var(builder.hint, dtype, "vote")
    builder.emit(Intrinsic(word, (truth(wrap(predicate)),), result))
    return result


def ballot(predicate: Any, mask: Any = None) -> Var:
    """A bit for each lane whose predicate holds, as uint32.

    Example:
        t = T.get_thread_binding()
        x = T.ballot(t % 32 < 3)
        if t < 64:
            M[t] = x
        # M: 7 7 7
    """
    return _vote("ballot", predicate, mask, DTYPES["uint32"])


ballot_sync = ballot


def any_sync(predicate: Any, mask: Any = None) -> Var:
    """Whether the predicate holds in any lane of the warp.

    Example:
        t = T.get_thread_binding()
        x = T.any_sync(t == 40)
        if t < 64:
            M[t] = x
        # M: 0 0 0
    """
    return _vote("any_sync", predicate, mask, BOOL)


def all_sync(predicate: Any, mask: Any = None) -> Var:
    """Whether the predicate holds in all lanes of the warp.

    Example:
        t = T.get_thread_binding()
        x = T.all_sync(t < 40)
        if t < 64:
            M[t] = x
        # M: 1 1 1
    """
    return _vote("all_sync", predicate, mask, BOOL)


def sync_threads(barrier_id: Any = None, arrive_count: int | None = None) -> None:
    """Until all threads of the block (or `arrive_count` on a named barrier) have come here.

    Needed where threads that are programmed one by one share memory; tile operations have it
    already.

    Example:
        t = T.get_thread_binding()
        tile = T.alloc_shared((128,), "int32")
        tile[t] = t
        T.sync_threads()
        if t < 64:
            M[t] = tile[127 - t]
        # M: 127 126 125
    """
    builder = current_block("sync_threads")
    if barrier_id is None:
        builder.emit(Sync("block"))
        return
    kernel = builder.require_kernel("sync_threads")
    count = kernel.num_threads if arrive_count is None else arrive_count
    builder.emit(
        Sync("named", wrap(barrier_id), static_int(count, "arrive_count of T.sync_threads", 1))
    )


def named_barrier_arrive(barrier_id: Any, thread_count: int) -> None:
    """Arrive on a named barrier without waiting.

    A branch on the thread index with such a barrier is taken by whole warps.

    Example:
        with T.Kernel(1, threads=256):
            t = T.get_thread_binding()
            tile = T.alloc_shared((128,), "int32")
            if t < 128:
                tile[t] = t
                T.named_barrier_arrive(1, 256)
            else:
                T.sync_threads(1, 256)
                if t < 192:
                    M[t - 128] = tile[255 - t]
        # M: 127 126 125
    """
    builder = current_block("named_barrier_arrive")
    count = static_int(thread_count, "thread_count of T.named_barrier_arrive", 1)
    builder.emit(Sync("named", wrap(barrier_id), count, arrive=True))


def sync_warp(mask: Any = None) -> None:
    """Until all threads of the warp have come here.

    Example:
        t = T.get_thread_binding()
        tile = T.alloc_shared((128,), "int32")
        tile[t] = t
        T.sync_warp()
        if t < 64:
            M[t] = tile[t // 32 * 32 + 31 - t % 32]
        # M: 31 30 29
    """
    builder = current_kernel("sync_warp")
    _full_mask(mask, "sync_warp")
    builder.emit(Sync("warp"))
