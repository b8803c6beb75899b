"""Loops: `Parallel`, `Pipelined`, `serial`, `unroll`, `vectorized`, `grid`, `Persistent`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import prod
from typing import Any

from tilewright.ir.analysis.trips import downward, nth
from tilewright.lang import math
from tilewright.lang.core import *
from tilewright.lang.scalar import is_runtime
from tilewright.support import limits

Run = Callable[[Builder, tuple[str, ...], Loc | None], Iterator[Any]]


class Loop:
    """The result of a `T` loop word; only a rewritten `for` can run it. `kind` of scope: for, nest
    (of several indices) or map."""

    backward: Loop | None = None  # the same loop from its end

    def __init__(self, run: Run, kind: str = "for", index: Callable[[Builder], Var] | None = None):
        self.run, self.kind, self.index = run, kind, index
        self.loc = locate()

    def __reversed__(self) -> Loop:
        if self.backward is None:
            raise CompileError(
                "only a loop over T.tile runs backward",
                fix="count the other way: n - 1 - i",
                code="arguments",
            )
        return self.backward

    def __iter__(self) -> Iterator[Any]:
        raise CompileError(
            "this loop runs on the device and can only be written as a `for` in a kernel",
            fix="write it as a `for` statement, in a function decorated with @T.macro; a list is "
            "built over range(n)",
            code="python",
        )

    def __repr__(self) -> str:
        return "a loop of the kernel"


def _bounds(builder: Builder, loc: Loc | None, what: str, *values: Any) -> list[Expr]:
    """Bounds are read once, before the loop."""
    with at(loc):
        found = [integer(value, what) for value in values]
    return [builder.snapshot(expr) for expr in found]


def _index_type(*exprs: Expr) -> DType:
    found = INT32
    for expr in exprs:
        if expr.dtype.bits > 32 or not isinstance(expr, Const):
            wider = promote(found, expr.dtype)
            found = wider if wider.bits >= 32 else found
    return found


def _counted(
    start: Any, stop: Any = None, step: Any = None, kind: str = "serial", **pipeline: Any
) -> Loop:
    """A sequential loop of any kind."""
    if stop is None:
        start, stop = 0, start

    def run(builder: Builder, names: tuple[str, ...], loc: Loc | None) -> Iterator[Any]:
        builder.require_kernel(kind)
        if kind == "pipelined":
            builder.require_block("Pipelined")
        ends = (("start", start), ("end", stop), ("step", 1 if step is None else step))
        first, end, by = (
            _bounds(builder, loc, f"the {what} of a loop", value)[0] for what, value in ends
        )
        if isinstance(by, Const) and by.value == 0:
            raise CompileError(
                "a loop with step 0", loc=loc, expected="a step of 1, 2, … or -1, -2, …",
                fix="leave the step out to count by one",
            )  # fmt: skip
        dtype = _index_type(first, end, by)
        first, end, by = (cast(e, dtype) for e in (first, end, by))
        low, up = first, by
        down = isinstance(by, Const) and by.value < 0
        if down:  # loops count upwards in the IR
            end = downward(first, end, -int(by), builder.known())
            low, up = const(0, end.dtype), const(1, end.dtype)
        var = builder.var(names[0] if names else None, end.dtype, "i")
        builder.open(loop=True).counters = [(var, low, end, up)]
        yield nth(first, by, var) if down else var
        builder.emit(For(var, low, end, builder.close(), up, kind, **pipeline, loc=loc))

    return Loop(run)


def _nest(extents: tuple[Any, ...]) -> str:
    return "nest" if len(extents) > 1 else "for"


def check_names(names: tuple[str, ...], count: int, what: str, loc: Loc | None) -> None:
    """As many names as a loop has extents or axes."""
    if len(names) != count:
        raise CompileError(
            f"the loop's names do not fit its {'axes' if what == 'axis' else 'extents'}",
            loc=loc,
            expected=f"{count} name{'s' * (count != 1)}",
            got=f"{len(names)}: {', '.join(names)}",
            fix=f"give one {what} per name",
            code="shape",
        )


def _indices(
    builder: Builder, names: tuple[str, ...], loc: Loc | None, name: str, given: tuple[Any, ...]
) -> tuple[list[Expr], tuple[Var, ...]]:
    """The extents of a loop over several indices, and the indices."""
    builder.require_kernel(name)
    extents = _bounds(builder, loc, f"an extent of T.{name}", *given)
    if len(names) == 1 and len(extents) > 1:
        names = tuple(f"{names[0]}_{at}" for at in range(len(extents)))
    if names:
        check_names(names, len(extents), "extent", loc)
    return extents, tuple(
        builder.var(name, _index_type(extent), "i")
        for name, extent in zip(names or "ijklmn", extents, strict=False)
    )


def _one_map(outer: Map) -> Map:
    """Nested `Parallel` is one map. Statements between two levels move inside when they only
    name values; otherwise the inner level runs as a loop of each outer iteration."""
    *before, last = outer.body if outer.body else (None,)
    if isinstance(last, Map) and all(_movable(op, last) for op in before):
        free = {v for e in last.extents for v in variables(e)}
        named = {op.var for op in before if isinstance(op, Let)}
        if not free & ({*outer.vars} | named) and all(is_pure(e) for e in last.extents):
            return Map(
                outer.vars + last.vars,
                outer.extents + last.extents,
                (*(op for op in before if op is not None), *last.body),
                outer.layout or last.layout,
                loc=outer.loc,
            )
    return map_ops(outer, _sequential)


def _movable(op: Any, inner: Map) -> bool:
    if not isinstance(op, Let):
        return False
    written = {b for each in walk_ops(inner) for b in written_buffers(each)}
    return not written & set(read_buffers(op))


def _sequential(op: Op) -> Body | None:
    """A map inside another as loops of one iteration."""
    if not isinstance(op, Map):
        return None
    inner = op.body
    for var, extent in zip(reversed(op.vars), reversed(op.extents), strict=True):
        inner = (For(var, const(0, extent.dtype), extent, inner, loc=op.loc),)
    return inner


# ── words ────────────────────────────────────────────────────────────────────────────────────


def Parallel(
    *extents: Any,
    coalesced_width: int | None = None,
    loop_layout: AnyLayout | None = None,
    prefer_async: bool | None = None,
) -> Loop:
    """An elementwise loop: iterations are independent and run in no order.

    Extents are compile-time sizes; the loop is spread over the block's threads, so it need not
    match their number. No iteration may write what another one reads or writes. All threads
    share it under a branch on the thread index, too, such as `if t < 32`.

    Example:
        for i, j in T.Parallel(64, 64):
            Y[i, j] = X[i, j] + 1
        # Y[0]: 1 2 3 4
    """
    if len(extents) == 1 and isinstance(extents[0], (tuple, list)):
        extents = tuple(extents[0])
    if not extents:
        raise CompileError("T.Parallel needs at least one extent", fix="write T.Parallel(n)")

    def run(builder: Builder, names: tuple[str, ...], loc: Loc | None) -> Iterator[Any]:
        sizes, vars = _indices(builder, names, loc, "Parallel", extents)
        known = [e.value for e in sizes if isinstance(e, Const)]
        if any(value < 0 for value in known):
            raise CompileError(
                "an extent of T.Parallel is negative",
                loc=loc,
                got=", ".join(str(value) for value in known),
                fix="check the sizes it is computed from",
                code="shape",
            )
        limits.PARALLEL.check(
            int(prod(known)),
            "T.Parallel is too large for one block",
            loc=loc,
            got=" × ".join(str(value) for value in known),
            fix="give a block a smaller part, and T.Kernel more blocks",
        )
        body = builder.open(loop=True)
        body.parallel = True
        body.counters = [
            (v, const(0, v.dtype), e, const(1)) for v, e in zip(vars, sizes, strict=True)
        ]
        yield vars if len(vars) > 1 else vars[0]
        builder.emit(_one_map(Map(vars, tuple(sizes), builder.close(), loop_layout, loc=loc)))

    return Loop(run, "map")


def Pipelined(
    start: Any,
    stop: Any = None,
    num_stages: int | None = None,
    order: Any = None,
    stage: Any = None,
    sync: Any = None,
    group: Any = None,
) -> Loop:
    """A sequential loop whose copies run ahead, `num_stages` deep. Means the same as `serial`.
    Left out, the compiler chooses by how long loads and computing take; 0 keeps copies in place.

    `Pipelined(n)` or `Pipelined(start, stop)`. Tiles in shared memory that the loop copies into
    get `num_stages` slots, or more where those hide too little and memory is left; barriers and
    waits are the compiler's. `order` and `stage`, one entry
    for each statement (or for each `group` of them), pin the schedule where a producer copies:
    statements of the later stage run one iteration behind the others, in this order.

    Example:
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((16, 64), "float32")
        T.clear(total)
        for k in T.Pipelined(4, num_stages=2):
            T.copy(X[k * 16, 0], tile)
            for i, j in T.Parallel(16, 64):
                total[i, j] += tile[i, j]
        T.copy(total, Y[0, 0])
        # Y[0]: -96 -92 -88
    """
    unsaid = num_stages is None
    stages = -1 if unsaid else static_int(num_stages, "num_stages of T.Pipelined", 0)
    limits.STAGES.check(
        stages, "num_stages of T.Pipelined is too large", got=str(stages), fix="use 2 to 4 stages"
    )
    low, high = (0, start) if stop is None else (start, stop)
    if isinstance(low, int) and isinstance(high, int) and high < low:
        raise CompileError(
            f"T.Pipelined({low}, {high}) counts from {low} to {high}: it does nothing",
            fix=f"write num_stages= by name: T.Pipelined({low}, num_stages={high})",
            code="arguments",
            repair=swap(f"{low}, {high})", f"{low}, num_stages={high})"),
        )
    for pin, what in ((order, "order"), (stage, "stage")):
        if pin is not None and not isinstance(pin, (list, tuple)):
            raise CompileError(
                f"{what} of T.Pipelined must be a list",
                got=repr(pin)[:60],
                fix=f"write num_stages=… by name, or {what}=[…] with one entry per statement",
            )
    if group and all(pin is not None and len(pin) == len(group) for pin in (order, stage)):
        order, stage = (_of_statements(pin, group) for pin in (order, stage))
    pins = [
        tuple(static_int(x, f"{what} of T.Pipelined") for x in pin) if pin else None
        for pin, what in ((order, "order"), (stage, "stage"))
    ]
    if len(pins[0] or ()) != len(pins[1] or ()):
        raise CompileError(
            "T.Pipelined: order and stage pin the schedule together",
            expected="both, with one entry per statement of the body",
            got=f"order={order}, stage={stage}",
            fix="leave both out, or give both",
        )
    return _counted(low, high, kind="pipelined", stages=stages, order=pins[0], stage=pins[1])


def _of_statements(pin: Any, group: Any) -> list[Any]:
    """Pins of groups of statements as pins of each statement."""
    said = {int(k): value for value, members in zip(pin, group, strict=True) for k in members}
    return [said[k] for k in sorted(said)]


def serial(start: Any, stop: Any = None, step: Any = None) -> Loop:
    """A sequential loop: `serial(n)`, `serial(start, stop, step)`. `range` in a kernel is the same.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            for k in T.serial(2, 8, 2):
                M[k] = k
        # M: 0 0 2 0 4 0 6 0 0
    """
    return _counted(start, stop, step)


def unroll(
    start: Any,
    stop: Any = None,
    step: Any = None,
    *,
    explicit: bool = False,
    unroll_factor: int | None = None,
) -> Loop:
    """A sequential loop that the compiler unrolls.

    Example:
        t = T.get_thread_binding()
        if t < 16:
            for k in T.unroll(4):
                M[t * 4 + k] = k
        # M: 0 1 2 3 0
    """
    return _counted(start, stop, step, "unroll")


def vectorized(start: Any, stop: Any = None) -> Loop:
    """A loop whose iterations become lanes of vector accesses where they can.

    Example:
        t = T.get_thread_binding()
        if t < 16:
            for k in T.vectorized(4):
                Y[0, t * 4 + k] = X[0, t * 4 + k] * 2
        # Y[0]: 0 2 4 6
    """
    if is_runtime(start) or is_runtime(stop):
        raise CompileError(
            "T.vectorized needs compile-time bounds",
            got="a run-time value",
            fix="use T.serial for run-time ones",
            code="not-constant",
            repair=swap("vectorized", "serial"),
        )
    return _counted(start, stop, kind="vectorized")


def grid(*extents: Any) -> Loop:
    """Nested sequential loops.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            for i, j in T.grid(2, 3):
                M[i * 3 + j] = 10 * i + j
        # M: 0 1 2 10 11 12 0
    """
    if not extents:
        raise CompileError("T.grid needs at least one extent", fix="write T.grid(m, n)")

    def run(builder: Builder, names: tuple[str, ...], loc: Loc | None) -> Iterator[Any]:
        sizes, vars = _indices(builder, names, loc, "grid", extents)
        for _ in vars:
            builder.open(loop=True)
        yield vars if len(vars) > 1 else vars[0]
        for var, extent in zip(reversed(vars), reversed(sizes), strict=True):
            builder.emit(For(var, const(0, extent.dtype), extent, builder.close(), loc=loc))

    return Loop(run, _nest(extents))


def Persistent(domain: Any, wave_size: Any, index: Any, group_size: Any = 8) -> Loop:
    """The tiles of `domain` that fall to block `index` of `wave_size`, one per wave. Tiles are
    independent, as blocks are: none reads or overwrites what another stores in a tensor.

    Example:
        with T.Kernel(3, threads=64) as block:
            for by, bx in T.Persistent([4, 4], wave_size=3, index=block):
                for i, j in T.Parallel(16, 16):
                    Y[by * 16 + i, bx * 16 + j] = 4 * by + bx
        # Y[63, 60:]: 15 15
    """
    sizes = shape_tuple(domain)
    if not sizes:
        raise CompileError("T.Persistent needs a domain", fix="write [tiles_m, tiles_n]")

    def run(builder: Builder, names: tuple[str, ...], loc: Loc | None) -> Iterator[Any]:
        builder.require_block("Persistent")
        tiles = _bounds(builder, loc, "an extent of T.Persistent", *sizes)
        wave = _bounds(builder, loc, "wave_size", wave_size)[0]
        first = _bounds(builder, loc, "index", index)[0]
        last = tiles[-1]
        given = cast(wrap(8 if group_size is None else group_size), last.dtype)
        group = wrap(math.max(1, math.min(given, last)))
        # tiles run group by group of the last index: [last/group, the others…, group]
        order = [wrap(ceildiv(last, group)), *tiles[:-1], group]
        waves = wrap(ceildiv(prod(order[1:], start=order[0]) - first, wave))  # of this block
        wave_var = builder.var(None, waves.dtype, "wave")
        builder.open(loop=True)
        linear = builder.snapshot(wave_var * wave + first)
        places: list[Expr] = []
        rest = linear
        for extent in reversed(order[1:]):
            places.insert(0, rest % extent)
            rest = rest // extent
        coords = [*places[:-1], rest * group + places[-1]]
        called = names or "ijklmn"[: len(tiles)]
        vars = [builder.let(coord, name) for name, coord in zip(called, coords, strict=True)]
        exact = last % group is const(0, last.dtype)
        if not exact:
            builder.open()
        yield tuple(vars) if len(vars) > 1 else vars[0]
        if not exact:
            body = builder.close()
            builder.emit(If(vars[-1] < last, body, loc=loc))
        builder.emit(
            For(wave_var, const(0, waves.dtype), waves, builder.close(), kind="persistent", loc=loc)
        )

    return Loop(run, _nest(sizes))


def thread_binding(start: Any, stop: Any = None, thread: Any = None) -> Loop:
    """`for tx in T.thread_binding(128, "threadIdx.x")`: `tx` is the thread's index.

    Example:
        for tx in T.thread_binding(128, "threadIdx.x"):
            if tx < 64:
                M[tx] = tx
        # M: 0 1 2
    """
    if isinstance(stop, str):
        stop, thread = None, stop
    extent = start if stop is None else stop
    if not isinstance(thread, str):
        raise CompileError(
            "T.thread_binding needs the name of an axis",
            fix='write T.thread_binding(128, thread="threadIdx.x")',
        )

    def index(builder: Builder) -> Var:
        kernel = builder.require_kernel("thread_binding")
        unit, _, axis = thread.partition(".")
        at = "xyz".find(axis or "?")
        vars, extents = {
            "threadIdx": (kernel.thread_vars, tuple(const(e) for e in kernel.threads)),
            "blockIdx": (kernel.blocks, kernel.grid),
        }.get(unit, ((), ()))
        if at < 0 or at >= len(vars):
            raise CompileError(
                f"this kernel has no {thread}",
                expected="threadIdx.x … or blockIdx.x … that T.Kernel declares",
                fix="give T.Kernel that many axes, or name another",
            )
        if wrap(extent) is not extents[at]:
            raise CompileError(
                f"{thread} has another extent in T.Kernel",
                expected=str(getattr(extents[at], "value", extents[at])),
                got=str(getattr(extent, "value", extent)),
                fix="give both the same extent",
            )
        return vars[at]

    return Loop(lambda builder, names, loc: iter((index(builder),)), index=index)


def loop_break() -> None:
    """`break` of the innermost loop.

    Example:
        t = T.get_thread_binding()
        if t == 0:
            for k in T.serial(64):
                if N[k] == 3:
                    T.loop_break()
                M[k] = 1
        # M: 1 1 1 0 0
    """
    current().emit(Break())


Serial, Unroll, Vectorized = serial, unroll, vectorized
