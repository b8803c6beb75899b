"""Neighbouring blocks in clusters, so that each loads a part of what all of them need.

Blocks along the axis on which most of what pipelined loops load does not depend are taken together.
In between, a cluster is one block whose body runs for each place in it:

    for place in 0 .. 2 kind=cluster { let by = by_pair * 2 + place … body }

which means what it meant, and lets orders and persistent blocks deal with whole clusters.
`spread_clusters` then makes the iterations blocks. Who loads what is decided where rings are filled
(`pipeline_loops`): a tile that is the same in all blocks (`Common`) comes in as many parts, each
loaded by one block and sent to all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod

from tilewright.ir import scope
from tilewright.ir.atoms import Feature
from tilewright.ir.buffer import Region, Space
from tilewright.ir.expr import Bin, Const, Expr, Var, const, loads, substitute, transform, variables
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Copy,
    Dim,
    For,
    Hint,
    If,
    Intrinsic,
    Kernel,
    Let,
    Op,
    While,
    expressions,
    walk_ops,
)
from tilewright.ir.rewrite import fresh_var, map_body
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.overlap.roles import why_not, why_not_worth, why_placed
from tilewright.passes.reasons import because

ABOUT = "clusters"
KIND = "cluster"


@kernel_pass
def cluster_blocks(at: Facts) -> Kernel:
    """The clusters that the target asks for."""
    kernel, told = at.kernel, at.target.schedule.cluster
    if told == "auto" or told == 1:
        return kernel
    found = _axis(kernel, told, at.target, at.dims)
    if isinstance(found, str):
        because(kernel.name, ABOUT, f"none: {found}")
        return kernel
    axis, shared = found
    along = f"{told} blocks along {kernel.blocks[axis].name}"
    because(kernel.name, ABOUT, f"{along} share what they load of {shared}")
    return _clustered(kernel, axis, told, at.names)


def _axis(kernel: Kernel, count: int, target: Target, dims: Iterable[Dim]) -> tuple[int, str] | str:
    """The axis along which blocks share most, and what they share; or why there is none."""
    if not {Feature.CLUSTER, Feature.BULK_COPY, Feature.MULTICAST} <= target.features:
        return "the target has none"
    if kernel.cluster:
        return "the kernel has its own"
    if placed := next(filter(None, map(why_placed, walk_ops(kernel))), None):
        return placed
    against = why_not(kernel)
    if against is None and target.schedule.roles == "auto":
        against = why_not_worth(kernel)
    if target.schedule.roles is False or against is not None:
        return f"no producer loads: {against or 'switched off'}"
    bytes_of = {
        axis: {
            copy.src.buffer.name: copy.dst.buffer.bytes
            for copy in shared_loads(kernel, dims, var)
            if copy.dst.buffer.is_static
        }
        for axis, var in enumerate(kernel.blocks)
    }
    axes = sorted((a for a in bytes_of if bytes_of[a]), key=lambda a: -sum(bytes_of[a].values()))
    objections = [_objection(kernel, axis, count, dims) for axis in axes]
    for axis, against in zip(axes, objections, strict=True):
        if against is None:
            return axis, " and ".join(bytes_of[axis])
    return next((o for o in objections if o), "blocks load nothing in common")


def shared_loads(kernel: Kernel, dims: Iterable[Dim], var: Var) -> Iterator[Copy]:
    """Copies of tensors in pipelined loops that are the same whatever `var` is."""
    for op, ranges in scope.walk_ranges(kernel, dims):
        if not isinstance(op, For) or op.kind != "pipelined":
            continue
        for copy in op.body:
            if isinstance(copy, Copy) and copy.src.buffer.space is Space.GLOBAL:
                starts = [ranges.resolve(s, var) for s in copy.src.starts]
                if all(s is not None and var not in variables(s) for s in starts):
                    yield copy


def _objection(kernel: Kernel, axis: int, count: int, dims: Iterable[Dim]) -> str | None:
    """What speaks against clusters along an axis."""
    var, extent = kernel.blocks[axis], kernel.grid[axis]
    if not isinstance(extent, Const) or int(extent) % count:
        number = int(extent) if isinstance(extent, Const) else "an unknown number of"
        return f"{number} blocks along {var.name} are not whole clusters"
    for op, ranges in scope.walk_ranges(kernel, dims):
        if isinstance(op, (For, If, While)):
            asked = [ranges.resolve(e, var) for e in expressions(op)]
            if any(e is None or var in variables(e) for e in asked):
                return f"blocks along {var.name} do not run the same"
    return None


def _clustered(kernel: Kernel, axis: int, count: int, names: set[str]) -> Kernel:
    old = kernel.blocks[axis]
    whole = fresh_var(f"{old.name}_cluster", names, old.dtype)
    place = fresh_var("place", names, old.dtype)
    held = [op for op in kernel.body if _is_of_kernel(op)]
    body = [op for op in kernel.body if not _is_of_kernel(op)]
    index = Let(old, whole * count + place, loc=kernel.loc)
    zero, end = const(0, old.dtype), const(count, old.dtype)
    loop = For(place, zero, end, (index, *body), kind=KIND, loc=kernel.loc)
    grid = tuple(n // count if k == axis else n for k, n in enumerate(kernel.grid))
    blocks = tuple(whole if k == axis else v for k, v in enumerate(kernel.blocks))
    return replace(kernel, grid=grid, blocks=blocks, body=(*held, loop))


def _is_of_kernel(op: Op) -> bool:
    """Shared memory without a value, and what is said of the whole kernel."""
    if isinstance(op, Alloc):
        return op.buffer.space is Space.SHARED and op.init is None
    return isinstance(op, Hint) and op.value is None and op.buffer is None


def cluster_loop(kernel: Kernel) -> For | None:
    found = (op for op in walk_ops(kernel) if isinstance(op, For) and op.kind == KIND)
    return next(found, None)


@kernel_pass
def spread_clusters(at: Facts) -> Kernel:
    """The places of clusters become blocks."""
    kernel, loop = at.kernel, cluster_loop(at.kernel)
    if loop is None:
        return kernel
    count = int(loop.stop)
    first = kernel.blocks[0]
    raw = fresh_var(f"{first.name}_raw", at.names, first.dtype)
    inlined = map_body(kernel.body, lambda op: loop.body if op is loop else None)
    body = (Let(first, raw // count, loc=kernel.loc), *inlined)
    grid = (kernel.grid[0] * count, *kernel.grid[1:])
    cluster = (count, *(1 for _ in kernel.grid[1:]))
    return replace(
        kernel, blocks=(raw, *kernel.blocks[1:]), grid=grid, body=body, cluster=cluster,
        rank=loop.var,
    )  # fmt: skip


# ── what the blocks of a cluster have in common ──────────────────────────────────────────────


def blocks_of_cluster(kernel: Kernel) -> int:
    return prod(kernel.cluster) if kernel.cluster else 1


class Common:
    """Which values are the same in all blocks of a kernel's clusters."""

    def __init__(self, kernel: Kernel) -> None:
        self.lets: Mapping[Var, Expr] = {
            op.var: op.value for op in walk_ops(kernel) if isinstance(op, Let)
        }
        self.own: set[Var] = {kernel.rank} if kernel.rank is not None else set()
        # what an effect gives a block is its own
        for op in walk_ops(kernel):
            if isinstance(op, (Atomic, Intrinsic)) and op.result is not None:
                self.own.add(op.result)
        self.sizes: dict[Var, int] = {}
        for var, size in zip(kernel.blocks, kernel.cluster, strict=False):
            if size > 1:
                self.sizes[var] = size
        self.control = True  # blocks run the same loops and branches
        for op in walk_ops(kernel):
            if isinstance(op, (For, If, While)) and not all(map(self.has, expressions(op))):
                self.control = False
                self.own |= {op.var} if isinstance(op, For) else set()

    def has(self, e: Expr) -> bool:
        """Whether `e` is; loads of tensors are, where their indices are."""
        for _ in range(len(self.lets) + 1):
            known = {v: self.lets[v] for v in variables(e) if v in self.lets}
            if not known:
                break
            e = substitute(e, known)
        if any(load.buffer.space is not Space.GLOBAL for load in loads(e)):
            return False

        def cluster(node: Expr) -> Expr | None:
            match node:
                case Bin("//", Var() as v, Const() as n) if self.sizes.get(v) == int(n):
                    return Var(f" cluster of {v.name}", v.dtype)
            return None

        return not variables(transform(e, cluster)) & (self.own | self.sizes.keys())

    def region(self, r: Region) -> bool:
        return all(self.has(e) for e in (*r.starts, *r.extents))
