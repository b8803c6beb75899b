"""Atomics on global and shared memory, and reducers built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tilewright.lang.alloc import REDUCERS
from tilewright.lang.core import *
from tilewright.lang.handles import Done, fitting
from tilewright.lang.move import tiles
from tilewright.lang.types import named

_ORDERS = ("relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst")


def _order(order: str | None, default: str = "relaxed") -> str:
    fix = 'write one of these, such as "relaxed"'
    return one_of(default if order is None else order, _ORDERS, "unknown memory order", fix)  # type: ignore[no-any-return]


def _target(dst: Any) -> Region:
    box = getattr(dst, "box", None)  # of a tile of a tensor: Y[m, :]
    region = written_region(dst) if box is None else region_of(box.tile)
    if region.buffer.space not in (Space.GLOBAL, Space.SHARED):
        raise CompileError(
            f"T.{word()}: {region.buffer.name} lives in {region.buffer.space.value} memory",
            expected="global or shared memory",
            fix="only memory that several threads see needs an atomic; store directly",
            code="space",
        )
    if region.dtype.packed or region.dtype.bits < 16:
        raise CompileError(
            f"T.{word()}: {region.dtype} elements have no atomics",
            fix="keep the counter in int32 or float32",
        )
    return region


def _check_single(return_prev: bool) -> None:
    if return_prev:
        raise CompileError(
            f"T.{word()}: a tile has no single previous value",
            fix="leave return_prev out, or update single elements",
        )


def _atomic(op: str, dst: Any, value: Any, order: str | None, return_prev: bool) -> Var | None:
    builder = current_kernel()
    to = _target(dst)
    is_value = hasattr(value, "tile_value") and not isinstance(value, Tile)
    of_values = hasattr(dst, "box") or (isinstance(dst, Tiles) and is_value)
    if of_values or isinstance(value, Tile):
        builder.require_block()
        _check_single(return_prev)
        if of_values:
            WORDS["update"](op, dst, value, _order(order))
            return None
        src, to = tiles(value, dst)
        builder.emit(Atomic(op, to, src=src, order=_order(order)))
        return None
    if to.tile:
        raise CompileError(
            f"T.{word()}: one value for a tile of {to.buffer.name}",
            expected="an element, or a tile of values",
            got=describe(value),
            fix=f"update elements, T.{word()}({to.buffer.name}[i], value), in a T.Parallel loop",
        )
    result = builder.var(builder.hint, to.dtype, "old") if return_prev else None
    if op in ("and", "or", "xor") and not to.dtype.is_int:
        raise CompileError(
            f"T.{word()} works on integers", got=str(to.dtype), fix="keep the bits in an int32"
        )
    made = Atomic(op, to, fitting(value, to.buffer), result=result, order=_order(order))
    builder.emit_once(made, to.buffer)
    return result


def atomic_add(
    dst: Any,
    value: Any,
    memory_order: str | None = None,
    return_prev: bool = False,
    use_tma: bool = False,
) -> Any:
    """dst += value in one step, for an element or a tile.

    `return_prev=True` gives what an element held before. The order of float additions is not
    fixed. With `use_tma` a shared tile is added to a tensor by the bulk engine.

    Example:
        for i in T.Parallel(64):
            T.atomic_add(M[N[i] % 4], 1)
        # M: 16 16 16 16 0
    """
    if use_tma:
        _check_single(return_prev)
        builder = current_block()
        src, to = tiles(value, dst)
        builder.emit(Copy(src, to, prefer="tma", reduce="add"))
        return None
    return _atomic("add", dst, value, memory_order, return_prev)


def _update(op: str, does: str, sample: str, shown: str) -> Callable[..., Any]:
    name = f"atomic_{op}"

    @named(
        name,
        f"{does} in one step.\n\nExample:\n    for i in T.Parallel(64):\n"
        f"        T.{name}({sample})\n    # M: {shown}\n",
    )
    def word(
        dst: Any, value: Any, memory_order: str | None = None, return_prev: bool = False
    ) -> Any:
        return _atomic(op, dst, value, memory_order, return_prev)

    return word


atomic_max = _update("max", "dst = max(dst, value)", "M[N[i] % 4], N[i]", "60 61 62 63 0")
atomic_min = _update("min", "dst = min(dst, value)", "M[N[i] % 4], -N[i]", "-60 -61 -62 -63 0")
atomic_or = _update("or", "dst |= value", "M[0], N[i]", "63 0")
atomic_and = _update("and", "dst &= value", "M[0], N[i]", "0 0")
atomic_xor = _update("xor", "dst ^= value", "M[0], N[i] + 1", "64 0")


def atomic_exch(dst: Any, value: Any, memory_order: str | None = None) -> Any:
    """dst = value in one step; gives the old value.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            old = T.atomic_exch(M[0], 7)
            M[1] = old
        # M: 7 0
    """
    return _atomic("exch", dst, value, memory_order, True)


def atomic_load(src: Any, memory_order: str | None = None) -> Var:
    """The element's value, read in one step.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            M[0] = T.atomic_load(N[5], memory_order="acquire")
        # M: 5
    """
    builder = current_kernel()
    region = _target(src)
    if region.tile:
        raise CompileError(
            "T.atomic_load reads one element",
            got=describe(src),
            fix="index it: T.atomic_load(A[i])",
        )
    result = builder.var(builder.hint, region.dtype, "loaded")
    builder.emit(Atomic("load", region, result=result, order=_order(memory_order, "seq_cst")))
    return result


def atomic_store(dst: Any, value: Any, memory_order: str | None = None) -> None:
    """The element = value, written in one step.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            T.atomic_store(M[0], 5, memory_order="release")
        # M: 5
    """
    _atomic("store", dst, value, memory_order or "seq_cst", False)


def _several(count: int, dst: Any, value: Any, return_prev: bool) -> None:
    """`count` neighbouring elements."""
    _check_single(return_prev)
    if not isinstance(dst, Access) or not isinstance(value, Access):
        raise CompileError(
            f"T.{word()} needs two elements",
            got=describe(dst),
            fix="write the first element of each: A[i], B[i]",
        )
    for at in range(count):
        _atomic("add", dst.next(at), value.next(at), None, False)


def atomic_addx2(dst: Any, value: Any, return_prev: bool = False) -> None:
    """`atomic_add` of two neighbouring elements.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            T.atomic_addx2(Y[0, 0], X[0, 2])
        # Y[0]: 2 3 0
    """
    _several(2, dst, value, return_prev)


def atomic_addx4(dst: Any, value: Any, return_prev: bool = False) -> None:
    """`atomic_add` of four neighbouring elements.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            T.atomic_addx4(Y[0, 0], X[0, 4])
        # Y[0]: 4 5 6 7 0
    """
    _several(4, dst, value, return_prev)


# ── reducers ─────────────────────────────────────────────────────────────────────────────────


def _reducer(value: Any) -> str:
    tile = value.tile if isinstance(value, Access) else value
    op = getattr(tile, "reducer", None)
    if op is None:
        raise CompileError(
            f"T.{word()} needs a reducer", got=describe(value), fix="make it with T.alloc_reducer"
        )
    return str(op)


def reducer_init(reducer: Any, init: Any = None) -> None:
    """Every element = the neutral value of the reducer's op, or `init`.

    Example:
        top = T.alloc_reducer((1,), "float32", op="max")
        T.reducer_init(top)  # -∞
        for i in T.Parallel(64):
            T.reducer_update(top[0], X[0, i])
        T.finalize_reducer(top, Y[0, 0:1])
        # Y[0]: 63
    """
    op = _reducer(reducer)
    builder = current_block()
    to = region_of(reducer)
    value = identity(op, to.dtype) if init is None else fitting(init, to.buffer)
    builder.emit(Fill(to, value))


def reducer_step(target: Access, op: str, value: Any) -> Done:
    """acc[i] op= value, for iterations that may meet at one element."""
    wanted = _reducer(target)
    if op != wanted:
        raise CompileError(
            f"{target.name} is a reducer of kind {wanted!r}",
            got=f"an update of kind {op!r}",
            fix="make a reducer of that kind: T.alloc_reducer(shape, dtype, op=…)",
        )
    current().emit(Atomic(REDUCERS[op], region_of(target), fitting(value, target.buffer)))
    return Done()


def store_as_update(target: Access, value: Expr) -> bool:
    """`acc[i] = acc[i] op v` as an update, and whether it is one: a value that does not read the
    reducer is an ordinary store."""
    if all(load.buffer is not target.buffer for load in loads(value)):
        return False
    op, name = str(target.tile.reducer), target.name
    step = _folded_in(target, value, _STEPS.get(op, ()))
    if step is None:
        shown = {"sum": "acc[i] + v", "max": "T.max(acc[i], v)", "min": "T.min(acc[i], v)"}
        raise CompileError(
            f"this value reads {name}, a reducer of kind {op!r}, and is no update of that kind",
            expected=f"acc[i] = {shown.get(op, f'acc[i] {REDUCERS[op]} v')}, with v of {name}'s "
            f"type {target.buffer.dtype}",
            fix=f"write T.reducer_update({name}[i], v), or T.finalize_reducer({name}) before it "
            "is read",
            code="arguments",
        )
    reducer_step(target, op, step)
    return True


# the operators that fold into a reducer of each kind
_STEPS = {
    "sum": ("+", "-"), "max": ("max",), "min": ("min",), "bitand": ("&",), "bitor": ("|",),
    "bitxor": ("^",),
}  # fmt: skip


def _folded_in(target: Access, value: Expr, ops: tuple[str, ...]) -> Expr | None:
    """v where `value` is `acc[i] op v`, and v does not read acc."""
    if not isinstance(value, Bin) or value.op not in ops or value.dtype != target.buffer.dtype:
        return None
    for mine, other in ((value.a, value.b), (value.b, value.a)):
        if (
            isinstance(mine, Load)
            and mine.buffer is target.buffer
            and mine.indices == target.indices
            and all(load.buffer is not target.buffer for load in loads(other))
            and (value.op != "-" or mine is value.a)
        ):
            return -other if value.op == "-" else other
    return None


def reducer_update(target: Any, value: Any) -> None:
    """Fold `value` into one element of a reducer.

    Example:
        total = T.alloc_reducer((2,), "float32")
        T.reducer_init(total)
        for i in T.Parallel(64):
            T.reducer_update(total[i % 2], X[0, i])
        T.finalize_reducer(total, Y[0, 0:2])
        # Y[0]: 992 1024
    """
    op = _reducer(target)
    if not isinstance(target, Access):
        raise CompileError(
            "T.reducer_update needs an element",
            got=describe(target),
            fix="index it: T.reducer_update(acc[i], value)",
        )
    reducer_step(target, op, value)


def finalize_reducer(reducer: Any, dst: Any = None, batch: int = 1) -> None:
    """dst = what the reducer holds; without `dst` it becomes an ordinary tile.

    Example:
        total = T.alloc_reducer((1,), "float32")
        T.reducer_init(total)
        for i in T.Parallel(64):
            T.reducer_update(total[0], X[0, i])
        T.finalize_reducer(total)
        T.copy(total, Y[0, 0:1])
        # Y[0]: 2016
    """
    _reducer(reducer)
    builder = current_block()
    if dst is None:
        reducer.reducer = None
        return
    src, to = tiles(reducer, dst)
    builder.emit(Copy(src, to))


WORDS.update(reducer_step=reducer_step, store_as_update=store_as_update)
