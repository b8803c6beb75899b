"""Thread level: shuffles, votes, barriers of threads; PTX and functions of imported C++ source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.ptx_text import OPERAND, named_operands, written_operands
from tilewright.lang.core import *

FULL = 0xFFFFFFFF


def _full_mask(mask: Any) -> None:
    if mask is not None and getattr(mask, "value", mask) not in (FULL, -1):
        raise CompileError(
            f"T.{word()} runs in whole warps",
            expected="mask=0xFFFFFFFF",
            got=f"mask={mask}",
            fix="leave the mask out, and let all lanes reach the shuffle",
        )


def _shuffle(kind: str, value: Any, lane: Any, width: Any, mask: Any) -> Var:
    builder = current_kernel()
    _full_mask(mask)
    size = static_int(32 if width is None else width, f"width of T.{word()}", 1)
    if size > 32 or size & (size - 1):
        raise CompileError(
            f"T.{word()}: width must be a power of two up to 32",
            got=str(size),
            fix="write 2, 4, 8, 16 or 32",
        )
    expr = wrap(value)
    result = builder.var(builder.hint, expr.dtype, "shuffled")
    builder.emit(
        Intrinsic(
            f"shfl_{kind}",
            (expr, cast(wrap(lane), INT32)),
            result,
            width=None if size == 32 else size,
        )
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


def _vote(name: str, predicate: Any, mask: Any, dtype: DType) -> Var:
    builder = current_kernel()
    _full_mask(mask)
    result = builder.var(builder.hint, dtype, "vote")
    builder.emit(Intrinsic(name, (truth(wrap(predicate)),), result))
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
    builder = current_block()
    if barrier_id is None:
        builder.emit(Sync("block"))
        return
    kernel = builder.require_kernel()
    count = kernel.thread_count if arrive_count is None else arrive_count
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
    builder = current_block()
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
    builder = current_kernel()
    _full_mask(mask)
    builder.emit(Sync("warp"))


# ── foreign code ─────────────────────────────────────────────────────────────────────────────────

NOTHING = ("handle", "void")  # the names of no result


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
    region = region_of(element)
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


def _operand(value: Any) -> Expr | Region:
    if isinstance(value, Address):
        return value.region
    if isinstance(value, Tile):
        return address_of(value).region
    return wrap(value)


# ── PTX ──────────────────────────────────────────────────────────────────────────────────────


def _register(builder: Builder, kind: DType) -> Buffer:
    """A variable of the thread that PTX writes."""
    buffer = Buffer(builder.fresh(builder.hint, "result"), (), kind, Space.LOCAL)
    builder.emit(Alloc(buffer, const(0, kind)))
    return buffer


def ptx(template: str, *args: Any, dtype: Any = None) -> Any:
    """PTX instructions: `$0` is the result when `dtype` is given, `$1` … the operands.

    A tuple of types gives several results, `$0` … in their order; the operands are numbered after
    them, and the results come back as a tuple. An operand that an instruction writes is a
    `T.alloc_var` or an element of a `T.alloc_local`: it keeps what was written. Runs on CUDA only.

    Example, compiled for CUDA:
        t = T.get_thread_binding()
        if t < 64:
            low, high = T.ptx(
                "mul.lo.s32 $0, $2, $3; mul.hi.s32 $1, $2, $3;",
                N[t], 1 << 20, dtype=("int32", "int32"),
            )
            M[t] = T.ptx("add.s32 $0, $1, $2;", low, high, dtype="int32")
    """
    if not isinstance(template, str):
        raise CompileError(
            "T.ptx needs the instruction's text",
            got=describe(template),
            fix='write it as a string: T.ptx("add.s32 $0, $1, $2;", a, b, dtype="int32")',
        )
    builder = current_kernel()
    several = isinstance(dtype, (tuple, list))
    kinds = [find_dtype(d) for d in (dtype if several else () if dtype is None else (dtype,))]
    first = max(len(kinds), 1)
    written = written_operands(template)
    _check_numbers(template, len(kinds), first + len(args))
    if several:
        registers = [_register(builder, kind) for kind in kinds]
        front = {n: element(b) for n, b in enumerate(registers)}
        result = None
    else:
        front = {}
        result = builder.var(builder.hint, kinds[0], "result") if kinds else None
    front |= {n: _written(args[n - first], n) for n in sorted(written) if n >= first}
    rest = {n: _operand(arg) for n, arg in enumerate(args, first) if n not in front}
    # $1 … are the operands of the IR's instruction, those that it may write in front
    order = {n: at for at, n in enumerate((*front, *rest), 1)}
    if result is not None:
        order[0] = 0
    text = OPERAND.sub(lambda found: f"${order.get(int(found[1]), found[1])}", template)
    operands = (*front.values(), *rest.values())
    builder.emit(Intrinsic("ptx", operands, result, text, width=len(front) or None))
    if several:
        return tuple(builder.let(Load(b, ()), b.name) for b in registers)
    return result


def _check_numbers(template: str, results: int, end: int) -> None:
    """The operands that the text names are there, and every result is written."""
    named = named_operands(template)
    for number in sorted(named):
        if number >= end or (number == 0 and not results):
            raise CompileError(
                f"T.ptx: the text names ${number}, which there is none of",
                expected=f"$0 … ${end - 1}" if results else f"$1 … ${end - 1}, and $0 with dtype=",
                fix="count the results from $0 and the operands after them; without results the "
                "operands begin with $1",
            )
    missing = [n for n in range(results) if n not in named]
    if missing:
        raise CompileError(
            f"T.ptx: no instruction writes ${missing[0]}, a result",
            got=f"dtype of {results} result{'s' * (results > 1)}",
            fix=f"write the result to ${missing[0]} in the text, or leave its dtype out",
        )


def _written(value: Any, number: int) -> Region:
    """Where an operand that PTX writes is kept: in a variable of the thread."""
    if isinstance(value, Variable) or (isinstance(value, Access) and value.tile.buffer.is_local):
        return region_of(value)
    raise CompileError(
        f"T.ptx: an instruction writes ${number}, which is not a variable",
        expected="a T.alloc_var, or an element of a T.alloc_local",
        got=describe(value),
        fix='make it a variable, x = T.alloc_var("int32"), or a result: dtype=("int32", "int32")',
    )


# ── C++ ──────────────────────────────────────────────────────────────────────────────────────


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
        dtype = kind if dtype is None else dtype
    builder = current_kernel()
    if not isinstance(name, str) or not name.strip():
        raise CompileError(
            "T.call_extern needs the name of a function",
            got=describe(name),
            fix='write it as a string: T.call_extern("float32", "name", x)',
        )
    result = None
    if dtype is not None and dtype not in NOTHING:
        result = builder.var(builder.hint, find_dtype(dtype), "result")
    builder.emit(Intrinsic("call_extern", tuple(_operand(a) for a in args), result, name))
    return result


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
    builder = current()
    if code not in builder.sources:
        builder.sources.append(code)
