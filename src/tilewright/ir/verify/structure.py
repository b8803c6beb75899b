"""The verifier's rules for structure: kernels, loops, roles and maps."""

from __future__ import annotations

from math import prod

from tilewright.ir.core import *
from tilewright.ir.gather import gather_of
from tilewright.ir.verify.core import (
    Context,
    block_threads,
    block_warps,
    rule,
)

MAX_THREADS = 1024
REGISTERS_PER_BLOCK = 65536


@rule
def _kernel(op: Kernel, context: Context) -> None:
    if context.enclosing:
        context.fail("a kernel inside another op", fix="kernels stand side by side")
    for names, extents, what in (
        (op.blocks, op.grid, "grid"),
        (op.thread_vars, op.threads, "threads"),
    ):
        if len(names) != len(extents) or len(names) > 3:
            context.fail(
                f"{what}: one variable for each of at most 3 axes",
                got=f"{len(names)} variables, {len(extents)} extents",
            )
    for extent in op.grid:
        context.integer(extent, "a grid extent")
    if min(op.threads, default=1) < 1 or block_threads(op) > MAX_THREADS:
        context.fail(
            "the number of threads is out of range",
            expected=f"1 … {MAX_THREADS}",
            got=str(block_threads(op)),
        )
    if op.rank is not None and not op.cluster:
        context.fail("rank= in a kernel without a cluster", fix="give cluster=(…)")
    if op.cluster and (
        len(op.cluster) > max(1, len(op.grid)) or min(op.cluster) < 1 or prod(op.cluster) > 16
    ):
        context.fail(
            "the cluster does not fit",
            expected="positive, at most one extent per grid axis, at most 16 blocks",
            got=str(op.cluster),
            fix="use a smaller cluster: cluster_dims=(2, 1, 1)",
        )
    _registers(op, context)


def _registers(op: Kernel, context: Context) -> None:
    """Registers moved between roles must have been there at entry, or the kernel hangs."""
    roles = [r for r in walk_ops(op, Role) if r.registers is not None]
    groups = block_warps(op) // GROUP
    if not roles or not groups:
        return
    entry = min(REGISTERS_PER_BLOCK // block_threads(op) // 8 * 8, 256)
    held = [entry] * groups
    for group in range(groups):
        moved = [r.registers or 0 for r in roles if r.first <= group * 4 < r.first + r.warps]
        held[group] = max(moved, default=entry)
    if sum(held) > entry * groups:
        context.fail(
            "the roles take more registers than the block has",
            op=roles[-1],
            expected=f"at most {entry * groups} over {groups} warpgroups ({entry} each at entry)",
            got=" + ".join(map(str, held)) + f" = {sum(held)}",
        )


@rule
def _for(op: For, context: Context) -> None:
    kinds = ("serial", "unroll", "vectorized", "pipelined", "persistent", "cluster")
    context.one_of(op.kind, kinds, "loop kind")
    context.integer(op.var, "a loop variable")
    for name, bound in (("start", op.start), ("stop", op.stop), ("step", op.step)):
        if bound.dtype != op.var.dtype and not (name == "step" and isinstance(bound, Const)):
            context.fail(
                f"the loop's {name} has another type than {op.var.name}",
                expected=str(op.var.dtype),
                got=str(bound.dtype),
            )
    if isinstance(op.step, Const) and op.step.value < 1:
        context.fail("a loop's step must be positive", got=str(op.step.value))
    unsaid = op.kind == "pipelined" and op.stages == -1
    if op.stages < 0 and not unsaid:
        context.fail("stages must not be negative", got=str(op.stages))
    if op.order is not None and op.stage is not None and len(op.order) != len(op.stage):
        context.fail(
            "order and stage pin the same statements",
            expected=f"{len(op.order)} stages",
            got=str(len(op.stage)),
        )


@rule
def _condition(op: If | While, context: Context) -> None:
    context.boolean(op.cond, "the condition")


@rule
def _in_loop(op: Break | Continue, context: Context) -> None:
    word = type(op).__name__.lower()
    inner = context.inside(For, While, Map, Role)
    if not isinstance(inner, (For, While)):
        why = f" (a {type(inner).__name__.lower()} lies between)" if inner else ""
        context.fail(f"{word} outside a loop{why}", expected="a for or while around it")


@rule
def _let(op: Let, context: Context) -> None:
    context.dtype(op.value.dtype, op.var.dtype, f"the value of {op.var.name}")


@rule
def _role(op: Role, context: Context) -> None:
    outer = context.inside(Role, Map)
    if outer is not None:
        context.fail(f"a role inside a {type(outer).__name__.lower()}")
    assert context.kernel is not None
    warps = block_warps(context.kernel) + (op.warps if op.derived else 0)
    if op.first < 0 or op.warps < 1 or op.first + op.warps > warps:
        context.fail(
            f"role {op.name} wants warps the block does not have",
            expected=f"warps within 0 … {warps - 1}",
            got=f"{op.first} … {op.first + op.warps - 1}",
        )
    if op.instances < 1 or op.warps % op.instances:
        context.fail(
            f"role {op.name}: its warps do not divide among its instances",
            got=f"{op.warps} warps, {op.instances} instances",
        )
    if op.registers is None:
        return
    if op.registers % 8 or not 24 <= op.registers <= 256:
        context.fail(
            f"role {op.name}: registers cannot be moved in this amount",
            expected="a multiple of 8 in 24 … 256",
            got=str(op.registers),
        )
    if op.first % GROUP or op.warps % GROUP:
        context.fail(
            f"role {op.name}: registers are moved by whole warpgroups",
            expected="first and warps multiples of 4",
            got=f"warps {op.first} + {op.warps}",
        )


_IN_MAP = (Let, Store, For, While, If, Break, Continue, Alloc, Atomic, Intrinsic, Hint)


@rule
def _map(op: Map, context: Context) -> None:
    if len(op.vars) != len(op.extents) or not op.vars:
        context.fail(
            "a map needs one variable per extent",
            got=f"{len(op.vars)} variables, {len(op.extents)} extents",
        )
    for extent in op.extents:
        context.integer(extent, "an extent of a map")
        if isinstance(extent, Const) and extent.value < 0:
            context.fail("an extent of a map is negative", got=str(extent.value))
    if op.atom is not None and (op.atom != "cp_async" or gather_of(op) is None):
        context.fail(
            f"atom {op.atom} does not serve this map",
            expected="cp_async, for one store of a tensor's elements, or zeros, to a shared tile",
        )
    for inner in walk_ops(op.body):
        if isinstance(inner, Map):
            context.fail("a map inside a map", op=inner, fix="make it one map over all the extents")
        if not isinstance(inner, _IN_MAP):
            context.fail(
                f"{type(inner).__name__} inside a map: it needs all threads together",
                op=inner,
                fix="move it out of the map",
            )
        if isinstance(inner, Alloc) and inner.buffer.space is not Space.LOCAL:
            context.fail(
                f"{inner.buffer.name} is allocated inside a map",
                op=inner,
                expected="local: private to an iteration",
                got=inner.buffer.space.value,
            )
