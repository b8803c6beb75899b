"""What has to be over before a crew tells others that it is so far."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Space
from tilewright.ir.expr import const
from tilewright.ir.op import (
    Arrive,
    Body,
    Commit,
    Copy,
    Fence,
    For,
    Gemm,
    If,
    Kernel,
    Op,
    Sync,
    While,
    bodies,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.rewrite import map_bodies, rebuild
from tilewright.ir.target import Target
from tilewright.passes.overlap.warp_partitions import GROUP, Warps
from tilewright.passes.sync.matrix_groups import NumberedGemm, Release, number_gemms

_BULK = ("bulk_load", "bulk_store")


def seen_by_engines(kernels: Iterable[Kernel]) -> set[str]:
    """Shared tiles that matrix instructions or bulk copies touch, under all their names."""
    ops = [op for kernel in kernels for op in walk_ops(kernel)]
    roots = aliases(tuple(kernels))
    found = {
        roots[b.name]
        for op in ops
        if isinstance(op, (Gemm, Copy)) and op.atom in ("wgmma", *_BULK)
        for b in (*read_buffers(op), *written_buffers(op))
    }
    return found | {name for name, root in roots.items() if root in found}


def released(
    kernel: Kernel, warps: Warps, engines: set[str], own: set[str], target: Target
) -> Kernel:
    """`kernel`, the code of one crew, with what has to be over before others are told: products,
    and ordinary writes of what engines touch. Each warpgroup waits for its own products, so several
    have to meet then; and all threads where only some of them tell. `own`: barriers that nobody
    else waits at."""
    found = per_thread(kernel)
    body = number_gemms(kernel.body)
    numbers = tuple(_own_products(body))
    several = warps.count > GROUP and any(walk_ops(body, NumberedGemm))
    engaged = Feature.WGMMA in target.features or Feature.BULK_COPY in target.features

    def writes(op: Op) -> bool:
        """Whether ordinary code writes what engines touch."""
        return engaged and any(
            b.space is Space.SHARED and b.name in engines
            for o in walk_ops(op)
            if not (isinstance(o, Copy) and o.atom in _BULK)
            for b in written_buffers(o)
        )

    def told(op: Op) -> bool:
        return releases(op) and not (isinstance(op, Arrive) and op.barrier.buffer.name in own)

    any_writes = any(writes(op) for op in body)

    def each(body: Body, dirty: bool, apart: bool = False) -> Body:
        """`dirty`: there may be writes before it that no fence follows; `apart`: some threads run
        it, and all have met before."""
        result: list[Op] = []
        for op in body:
            some = isinstance(op, If) and not apart and found.source(op.cond) is not None
            tells = some and any(told(inner) for inner in walk_ops(op))
            if tells or told(op):
                if numbers and not apart:
                    result.append(Release(numbers, loc=op.loc))
                if dirty:
                    result.append(Fence("proxy_async", loc=op.loc))
                    dirty = False
                if tells or (several and not apart and isinstance(op, Arrive)):
                    result.append(Sync("block", loc=op.loc))
            if isinstance(op, (For, If, While)):
                start = dirty if isinstance(op, If) else any_writes
                op = map_bodies(op, partial(each, dirty=start, apart=apart or some))
            dirty = dirty or writes(op)
            result.append(op)
        return tuple(result)

    return rebuild(kernel, body=each(body, False))


def releases(op: Op) -> bool:
    """Whether others may learn from `op` that what stands before it is over."""
    if isinstance(op, Arrive):
        return op.count is not const(0)
    return isinstance(op, Sync) and (op.scope in ("named", "cluster") or op.id is not None)


def _own_products(body: Body) -> Iterator[int]:
    """Products whose author has not said when they are waited for."""
    for k, op in enumerate(body):
        if isinstance(op, NumberedGemm):
            after = body[k + 1] if k + 1 < len(body) else None
            if not (isinstance(after, Commit) and after.unit == "wgmma"):
                yield op.number
        for inner in bodies(op):
            yield from _own_products(inner)
