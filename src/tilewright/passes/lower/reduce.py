"""Reductions of a fragment along a dimension: over the registers of a thread, then over the lanes
that share a row, in a fixed order.

Lanes exchange by butterfly: every lane adds the same pairs, so all copies of a result have the
same bits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Expr, Load, Var, const
from tilewright.ir.layout.fragment import IDLE, Fragment
from tilewright.ir.layout.layout import Indices
from tilewright.ir.op import Alloc, For, Intrinsic, Op, Reduce, Store
from tilewright.passes.layout.addresses import fit_registers
from tilewright.passes.lower.folds import FOLDS
from tilewright.passes.lower.lowering import WARP, Lowering
from tilewright.passes.lower.reduce_any import reduce_any
from tilewright.support.errors import CompileError, Loc

# Partial results of a row in each thread. An addition takes four cycles and a thread of an
# accumulator has two rows: two partials each keep the adder busy.
CHAINS = 2


@dataclass(frozen=True)
class Plan:
    """`registers[d, k]`: the k-th register of the source that folds into register d of the
    result; then lanes whose numbers differ by each of `lanes` exchange, in order."""

    registers: Indices
    lanes: tuple[int, ...]


def plan_reduction(source: Fragment, target: Fragment, dim: int, loc: Loc | None = None) -> Plan:
    """Who folds what; refused when that takes more than registers and exchanges of threads whose
    numbers differ by a bit."""
    found = _plan(source, target, dim)
    if isinstance(found, Plan):
        return found
    raise CompileError(
        f"this reduction is not lowered: {found}",
        loc=loc,
        expected=f"a result spread like the rows of {source}",
        got=str(target),
    )


@lru_cache(maxsize=64)
def _plan(source: Fragment, target: Fragment, dim: int) -> Plan | str:
    """The plan, or why there is none."""
    if source.threads != target.threads or source.threads & (source.threads - 1):
        return "it needs one power of two of threads on both sides"
    table = source.table()
    if (table == IDLE).any():
        return "the source has idle slots"
    for fragment in (source, target):
        if fragment.drop_repeats().values != fragment.values:
            return "a thread holds an element twice"
    # whether the result keeps the dimension as 1 does not change row-major indices
    rows = np.zeros_like(table)
    for d, coord in enumerate(np.unravel_index(table, source.tile)):
        rows = rows if d == dim else rows * source.tile[d] + coord
    place = target.locate(rows)
    if (place < 0).any() or (place != place[:1]).any():
        return "the threads that hold a row do not all hold its result alike"
    counts = np.bincount(place[0], minlength=target.values)
    if counts.min() != counts.max() or counts.min() == 0:
        return "results are folded from different numbers of registers"
    registers = np.stack([np.flatnonzero(place[0] == d) for d in range(target.values)])

    number = np.arange(source.threads)
    bits = [1 << i for i in range(source.threads.bit_length() - 1)]
    lanes = tuple(
        b
        for b in bits
        if np.array_equal(rows[number ^ b], rows) and not np.array_equal(table[number ^ b], table)
    )
    orbit = np.zeros((1,), np.int64)
    for bit in lanes:
        orbit = np.concatenate([orbit, orbit ^ bit])
    held = table[number[:, None] ^ orbit].reshape(source.threads, -1)
    held.sort(axis=1)
    whole = source.tile[dim] * target.values
    if held.shape[1] != whole or (held[:, 1:] == held[:, :-1]).any():
        return "threads that exchange do not hold a row once between them"
    registers.flags.writeable = False
    return Plan(registers, lanes)


def lower_reduce(low: Lowering, op: Reduce) -> Iterable[Op]:
    """Partial results over registers, then exchanges between lanes, then between warps."""
    source, target = op.src.buffer.layout, op.dst.buffer.layout
    if (
        op.src.is_whole
        and op.dst.is_whole
        and isinstance(source, Fragment)
        and isinstance(target, Fragment)
        and op.op in FOLDS
        and op.src.dtype == op.dst.dtype
        and op.src.dtype.bits >= 32
        and source.threads == low.instance.threads
    ):
        try:
            plan = plan_reduction(source, target, op.dim, op.loc)
        except CompileError:
            plan = None
        if plan is not None and not (plan.lanes and plan.lanes[-1] >= WARP):
            yield from _code(low, op, plan)
            return
    yield from reduce_any(low, op)


def _code(low: Lowering, op: Reduce, plan: Plan) -> Iterable[Op]:
    folding = FOLDS[op.op]
    rows, count = plan.registers.shape
    chains = CHAINS if count % CHAINS == 0 and count >= 4 * CHAINS else 1
    src, dst = low.flat(op.src.buffer), low.flat(op.dst.buffer)
    name = low.var(f"{op.dst.buffer.name}_part").name
    part = Buffer(name, (const(rows * chains),), op.dst.dtype, Space.LOCAL)
    yield Alloc(part, loc=op.loc)
    # partial c of row d folds registers c, c + chains, … of the row
    table = plan.registers.reshape(rows, count // chains, chains).transpose(1, 0, 2)

    def element(at: Indices, names: tuple[Var, ...], starts: tuple[int, ...]) -> Expr:
        index = fit_registers(at, names, starts, (1,) * len(names))
        if index is None:
            raise CompileError("the registers of a row are not a simple function", loc=op.loc)
        return folding.of(Load(src, (index,), op.loc))

    def unrolled(loops: dict[Var, range], *body: Op) -> Op:
        for var, values in reversed(loops.items()):
            start, stop = const(values.start), const(values.stop)
            body = (For(var, start, stop, body, kind="unroll", loc=op.loc),)
        return body[0]

    # the old value of a maximum takes part like an element: it is the same in all lanes, and
    # folding it more than once changes nothing
    fold_in = folding.idempotent and not op.clear
    d, c = low.var("d"), low.var("c")
    first = element(table[0], (d, c), (0, 0))
    if fold_in:
        first = folding.fold(Load(dst, (d,), op.loc), first)
    start = Store(part, (d * chains + c,), first, loc=op.loc)
    yield unrolled({d: range(rows), c: range(chains)}, start)
    if len(table) > 1:
        k, d, c = low.var("k"), low.var("d"), low.var("c")
        mine = d * chains + c
        more = element(table[1:], (k, d, c), (1, 0, 0))
        step = Store(part, (mine,), folding.fold(Load(part, (mine,), op.loc), more), loc=op.loc)
        yield unrolled({k: range(1, len(table)), d: range(rows), c: range(chains)}, step)
    d = low.var("d")
    total: Expr = Load(part, (d * chains,), op.loc)
    for i in range(1, chains):
        total = folding.fold(total, Load(part, (d * chains + i,), op.loc))
    end: list[Op] = []
    for lane in plan.lanes:
        own, let = low.let("own", total, op.loc)
        other = low.var("other", op.dst.dtype)
        end += [let, Intrinsic("shfl_xor", (own, const(lane)), other, loc=op.loc)]
        total = folding.fold(own, other)
    if not op.clear and not fold_in:
        total = folding.fold(Load(dst, (d,), op.loc), total)
    end.append(Store(dst, (d,), total, loc=op.loc))
    yield unrolled({d: range(rows)}, *end)
