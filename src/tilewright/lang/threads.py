"""Thread level: shuffles, votes, foreign code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir.buffer import Region
from tilewright.ir.dtype import BOOL, DTYPES, INT32, DType
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.expr import Var, cast, truth, wrap
from tilewright.ir.op import Intrinsic, Sync
from tilewright.lang.builder import current, static_int
from tilewright.lang.handles import Tile, Tiles, describe, region_of
from tilewright.lang.types import ScalarType
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
    builder = current(word)
    builder.require_kernel(word)
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
    builder = current(word)
    builder.require_kernel(word)
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


def ballot_sync(predicate: Any, mask: Any = None) -> Var:
    """`ballot`.

    Example:
        t = T.get_thread_binding()
        x = T.ballot_sync(t % 32 < 3)
        if t < 64:
            M[t] = x
        # M: 7 7 7
    """
    return ballot(predicate, mask)


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
    builder = current("sync_threads")
    builder.require_block("sync_threads")
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
    builder = current("named_barrier_arrive")
    builder.require_block("named_barrier_arrive")
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
    builder = current("sync_warp")
    builder.require_kernel("sync_warp")
    _full_mask(mask, "sync_warp")
    builder.emit(Sync("warp"))


# ── foreign code ─────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Address:
    """`T.address_of(A[i])`: only foreign code takes it."""

    region: Region


def address_of(element: Any) -> Address:
    """The address of an element or a tile, for `ptx` and `call_extern`.

    Example, compiled for CUDA:
        T.import_source("__device__ void twice(int *p) { *p *= 2; }")
        t = T.get_thread_binding()
        if t < 64:
            T.call_extern("void", "twice", T.address_of(M[t]))
    """
    region = region_of(element, "address_of")
    if region.dtype.packed:
        raise CompileError(
            f"{region.buffer.name} is packed: its elements have no address",
            fix="pass the tile as another type: T.view(tile, dtype='uint8')",
        )
    return Address(region)


def access_ptr(base: Any, access_type: Any = "r", *extents: Any, **_: Any) -> Address:
    """`address_of`, with what the callee does there and how far, which is not used.

    Example, compiled for CUDA:
        T.import_source("__device__ void twice(int *p) { *p *= 2; }")
        t = T.get_thread_binding()
        if t < 64:
            T.call_extern("void", "twice", T.access_ptr(M[t], "rw"))
    """
    return address_of(base)


def _operand(value: Any) -> Any:
    if isinstance(value, Address):
        return value.region
    if isinstance(value, (Tile, Tiles)):
        return region_of(value, "call_extern")
    return wrap(value)


def _foreign(word: str, text: str, args: tuple[Any, ...], dtype: Any) -> Var | None:
    builder = current(word)
    builder.require_kernel(word)
    result = None
    if dtype is not None:
        result = builder.var(builder.hint, find_dtype(dtype), "result")
    builder.emit(Intrinsic(word, tuple(_operand(a) for a in args), result, text))
    return result


def ptx(template: str, *args: Any, dtype: Any = None) -> Var | None:
    """One PTX instruction: `$0` is the result when `dtype` is given, `$1` … the operands.

    Runs on CUDA only.

    Example, compiled for CUDA:
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.ptx("add.s32 $0, $1, $2;", N[t], 1, dtype="int32")
    """
    if not isinstance(template, str):
        raise CompileError(
            "T.ptx needs the instruction's text",
            got=describe(template),
            fix='write it as a string: T.ptx("add.s32 $0, $1, $2;", a, b, dtype="int32")',
        )
    return _foreign("ptx", template, args, dtype)


def call_extern(name: str, *args: Any, dtype: Any = None) -> Var | None:
    """Call a function of the imported source. The return type may come first: `call_extern(
    "float32", "name", …)`, "handle" or "void" for none. Runs on CUDA only.

    Example, compiled for CUDA:
        T.import_source("__device__ int next(int x) { return x + 1; }")
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.call_extern("int32", "next", N[t])
    """
    if args and isinstance(args[0], str):
        kind, name, args = name, args[0], args[1:]
        if kind not in ("handle", "void"):
            dtype = ScalarType(kind) if dtype is None else dtype
    return _foreign("call_extern", name, args, dtype)


def import_source(code: str | None) -> None:
    """C++ source that `call_extern` calls into.

    Example, compiled for CUDA:
        T.import_source("__device__ int next(int x) { return x + 1; }")
        t = T.get_thread_binding()
        if t < 64:
            M[t] = T.call_extern("int32", "next", N[t])
    """
    if code is None:
        return
    builder = current("import_source")
    if code not in builder.sources:
        builder.sources.append(code)
