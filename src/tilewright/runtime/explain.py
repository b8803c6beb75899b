"""What was decided for a kernel, in words, read off the IR that the passes left."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any

from tilewright.ir.buffer import Region, Space
from tilewright.ir.fragment import Fragment
from tilewright.ir.layout import LayoutError
from tilewright.ir.layout_banks import bank_conflicts
from tilewright.ir.op import (
    Alloc,
    Copy,
    For,
    Gemm,
    Kernel,
    Map,
    Op,
    Program,
    Reduce,
    Relayout,
    Sync,
    walk_ops,
)

WARP = 32


def explain(name: str, target: Any, trace: Sequence[tuple[str, Program]], more: str = "") -> str:
    """A line per decision: `trace` are the programs after every pass, the input first."""
    lines = [f"{name} for {target}"]
    laid = _laid_out(trace)
    for kernel in laid.kernels:
        grid = " × ".join(str(g) for g in kernel.grid) or "1"
        threads = " × ".join(str(t) for t in kernel.threads)
        lines.append(f"  kernel {kernel.name}: grid {grid}, {threads} threads")
        lines += [f"    {line}" for line in _kernel(kernel)]
    lines += [f"  {line}" for line in more.splitlines()]
    lines.append("  passes: " + ", ".join(step for step, _ in trace[1:]))
    return "\n".join(lines)


def _laid_out(trace: Sequence[tuple[str, Program]]) -> Program:
    """The last program that still has tiles."""
    best = trace[0][1]
    for _, program in trace:
        ops = [op for kernel in program.kernels for op in walk_ops(kernel)]
        if any(isinstance(op, (Copy, Gemm, Map, Reduce)) for op in ops):
            best = program
    return best


def _kernel(kernel: Kernel) -> Iterator[str]:
    for op in walk_ops(kernel):
        rule = _RULES.get(type(op))
        for text in rule(op) if rule is not None else ():
            where = f"{op.loc.line:>4}: " if op.loc is not None else "      "
            yield where + text
    syncs = sum(isinstance(op, Sync) and op.scope == "block" for op in walk_ops(kernel))
    moves = sum(isinstance(op, Relayout) for op in walk_ops(kernel))
    yield f"      {moves} conversions, {syncs} block barriers"


def _alloc(op: Alloc) -> Iterator[str]:
    buffer = op.buffer
    if buffer.space not in (Space.SHARED, Space.FRAGMENT):
        return
    shape = "×".join(str(s) for s in buffer.shape)
    text = f"{buffer.space.value} {buffer.name}: {buffer.dtype} {shape}, {buffer.bytes} B"
    if isinstance(buffer.layout, Fragment):
        text += f", {buffer.layout.values} registers of {buffer.layout.threads} threads"
        if buffer.layout.replication > 1:
            text += f", each element in {buffer.layout.replication} threads"
    if buffer.layout is not None:
        text += f", {buffer.layout!r}"
    yield text


def _gemm(op: Gemm) -> Iterator[str]:
    m, n = op.c.static_tile
    k = op.a.static_tile[0 if op.transpose_a else 1]
    source = "registers" if op.a.buffer.space is Space.FRAGMENT else "shared memory"
    yield (
        f"gemm {m}×{n}×{k} {op.a.dtype} by {op.b.dtype} into {op.c.dtype}: "
        f"{op.atom or 'no instruction chosen'}, A from {source}"
    )


def _copy(op: Copy) -> Iterator[str]:
    shape = "×".join(str(s) for s in op.src.tile) or "1"
    text = f"copy {op.src.buffer.name} → {op.dst.buffer.name} {shape}: {op.atom or 'by threads'}"
    for held, memory in ((op.src, op.dst), (op.dst, op.src)):
        if isinstance(held.buffer.layout, Fragment) and memory.buffer.space is Space.SHARED:
            text += _conflicts(held, memory)
    yield text


def _conflicts(held: Region, memory: Region) -> str:
    layout, fragment = memory.buffer.layout, held.buffer.layout
    size = memory.dtype.bits // 8
    if layout is None or isinstance(layout, Fragment) or not isinstance(fragment, Fragment):
        return ""
    if memory.buffer.shape != held.buffer.shape or not size:
        return ""
    # the fragment counts row by row, a layout its first dimension fastest
    try:
        found = bank_conflicts(layout, _columns_first(fragment), size)
    except LayoutError:
        return ""
    wide = f", {found.vector * size} bytes at once"
    return wide + (f", {found.extra} extra wavefronts" if found.extra else ", no bank conflicts")


def _columns_first(fragment: Fragment) -> Any:
    import numpy as np

    table = fragment.table()
    coords = np.unravel_index(np.maximum(table, 0), fragment.tile)
    index = np.ravel_multi_index(coords[::-1], fragment.tile[::-1])
    return np.where(table < 0, -1, index)


def _map(op: Map) -> Iterator[str]:
    extents = "×".join(str(e) for e in op.extents)
    if isinstance(op.layout, Fragment):
        yield f"parallel {extents}: {op.layout.values} points a thread, {op.layout!r}"


def _reduce(op: Reduce) -> Iterator[str]:
    layout = op.src.buffer.layout
    if not isinstance(layout, Fragment):
        return
    extents = [int(e) for e in op.src.extents]
    long = [i for i, e in enumerate(extents) if e != 1]
    dim = long[op.dim] if op.dim < len(long) else op.dim
    threads = [e for e, s in layout.along(dim)[0].modes() if s]
    count = prod(threads)
    if count == 1:
        how = "within threads"
    else:
        strides = _lanes(layout, dim)
        how = f"across {count} threads, " + ("by shuffles" if strides else "through shared memory")
    yield f"reduce {op.op} {op.src.buffer.name} → {op.dst.buffer.name}: {how}"


def _lanes(layout: Fragment, dim: int) -> bool:
    """Whether the threads that share a row are of one warp."""
    place = 1
    for extent, stride in layout.along(dim)[0].modes():
        place *= extent
        if stride and place > WARP:
            return False
    return True


def _relayout(op: Relayout) -> Iterator[str]:
    from tilewright.passes.lower_relayout import relayout_cost

    how = op.via or ""
    source, target = op.src.buffer.layout, op.dst.buffer.layout
    if not how and isinstance(source, Fragment) and isinstance(target, Fragment):
        kind, cost = relayout_cost(source, target, op.src.dtype)
        how = f"{_WAYS[kind]}, about {cost:g} instructions a thread"
    yield f"conversion {op.src.buffer.name} → {op.dst.buffer.name}: {how}"


_WAYS = {
    "registers": "within threads",
    "shuffle": "by shuffles",
    "shared": "through shared memory",
}


def _for(op: For) -> Iterator[str]:
    if op.kind == "pipelined" and op.stages:
        yield f"loop {op.var.name}: {op.stages} stages"


_RULES: dict[type[Op], Callable[[Any], Iterator[str]]] = {
    Alloc: _alloc,
    Gemm: _gemm,
    Copy: _copy,
    Map: _map,
    Reduce: _reduce,
    Relayout: _relayout,
    For: _for,
}
