"""What is known where: the `Ranges` that hold at each op of a kernel.

    ranges = entry(kernel, program.dims)
    for op in kernel.body:
        …                              # `ranges` hold here
        inside(op, "body", ranges)     # … and these within one of its bodies
        ranges = after(op, ranges)     # … and these after it

`walk_ranges` does this for a whole kernel.

Passes ask the same questions about the same loops again and again: inside `remembering()` kernels
that begin alike share one `Ranges`, and with it what has been derived from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.core import *

_root: ContextVar[Ranges | None] = ContextVar("root", default=None)


@contextmanager
def remembering() -> Iterator[None]:
    """What is derived of kernels inside is derived once."""
    token = _root.set(Ranges())
    try:
        yield
    finally:
        _root.reset(token)


def entry(kernel: Kernel, dims: Iterable[Dim] = ()) -> Ranges:
    """At the kernel's first op: contracts of sizes, block, thread and cluster indices.

    Sizes of tensors are never negative, whether or not their contract is at hand.
    """
    ranges = contracts(dims, _root.get() or Ranges())
    for size in _sizes(kernel):
        if isinstance(size, Var):
            ranges = ranges.where(size, 0, sized=True)
        elif not isinstance(size, Const):
            ranges = ranges.given(Cmp(">=", size, const(0, size.dtype)), index=True)
    for at, (var, extent) in enumerate(zip(kernel.blocks, kernel.grid, strict=True)):
        if isinstance(extent, Var):  # there is a block, and clusters are whole
            whole = (*kernel.cluster, 1, 1, 1)[at]
            ranges = ranges.where(extent, 1, None, whole, sized=True)
        ranges = counted(ranges, var, extent)
    for var, count in zip(kernel.thread_vars, kernel.threads, strict=False):
        ranges = ranges.where(var, 0, count - 1)
    if kernel.rank is not None:
        ranges = ranges.where(kernel.rank, 0, kernel.cluster_size - 1)
    return ranges


def contracts(dims: Iterable[Dim], ranges: Ranges | None = None) -> Ranges:
    """`ranges`, and what is known of sizes."""
    ranges = ranges or Ranges()
    for dim in dims:
        ranges = ranges.where(dim.var, dim.min, dim.max, dim.multiple_of, sized=True)
    return ranges


def counted(ranges: Ranges, var: Var, extent: Expr) -> Ranges:
    """`ranges`, and var in 0 … extent - 1."""
    return ranges.loop(var, const(0, var.dtype), extent, const(1, var.dtype))


def inside(op: Op, field: str, ranges: Ranges) -> Ranges:
    """Within the body `field` of `op`, given what holds before it."""
    match op:
        case For():
            return ranges.loop(op.var, op.start, op.stop, op.step)
        case Map():
            for var, extent in zip(op.vars, op.extents, strict=True):
                ranges = counted(ranges, var, extent)
        case If():
            return ranges.given(op.cond, field == "then")
        case While():
            return ranges.given(op.cond)
        case Role() if op.var is not None:
            return ranges.where(op.var, 0, op.instances - 1)
    return ranges


def map_inside(op: OpT, ranges: Ranges, fn: Callable[[Body, Ranges], Body]) -> OpT:
    """`op` with `fn` applied to each of its bodies, given what holds before it."""
    fields = [f.name for f in marked(op, "body")]
    return rebuild(op, **{name: fn(getattr(op, name), inside(op, name, ranges)) for name in fields})


def after(op: Op, ranges: Ranges) -> Ranges:
    """After `op`, in the rest of its body, given what holds before it."""
    match op:
        case Let():
            return ranges.let(op.var, op.value)
        case Hint(name="assume") if op.value is not None:
            return ranges.given(op.value)
        case If() if _leaves(op.then) and not _leaves(op.orelse):
            return ranges.given(op.cond, False)
        case If() if _leaves(op.orelse) and not _leaves(op.then):
            return ranges.given(op.cond)
    return ranges


def walk_ranges(kernel: Kernel, dims: Iterable[Dim] = ()) -> Iterator[tuple[Op, Ranges]]:
    """Every op of the kernel's body, in text order, with what holds when it runs."""
    return walk_body(kernel.body, entry(kernel, dims))


def walk_body(body: Body, ranges: Ranges) -> Iterator[tuple[Op, Ranges]]:
    """Every op of `body`, in text order, with what holds when it runs; `ranges` hold before it."""
    for op in body:
        yield op, ranges
        for f in marked(op, "body"):
            yield from walk_body(getattr(op, f.name), inside(op, f.name, ranges))
        ranges = after(op, ranges)


def _leaves(body: Body) -> bool:
    """Control never goes on after `body`."""
    return bool(body) and isinstance(body[-1], (Break, Continue))


def _sizes(kernel: Kernel) -> list[Expr]:
    found: dict[Expr, None] = {}
    for op in walk_ops(kernel):
        for buffer in named_buffers(op):
            if buffer.is_global:
                found.update(dict.fromkeys(buffer.shape))
    return list(found)
