"""Warpgroups that take turns at the tensor core: while one multiplies, another computes.

An iteration of attention is a chain: the tensor core, then the threads, then the tensor core. Two
warpgroups that run in step leave each unit idle while both use the other one. `turn begin` and
`turn end` around the products bring them out of step, and keep them so.

Products that follow each other with nothing but waits for memory between them are a section. Where
an iteration begins and ends with products, the last of one and the first of the next are one: the
section reaches across the loop's end, and lasts where the loop begins. With q for a product and s
for what threads do between two of them, two warpgroups then need max(4q, 2q + s) for an iteration;
two sections would need max(4q, 3q + s), since a warpgroup could not begin the next iteration before
the other one's softmax is over. What threads do with registers at either end (the sum of a row)
stands in such a section too, where it takes less time than the products in front of it: they run
meanwhile, and nobody else could use the tensor core. Products in front of such a loop (a peeled
iteration) take turns too; those behind it have nothing left to wait for.

Loops get them unasked where the tensor core is busy longer than the threads are. On an H200,
warpgroups often fall out of step by themselves, but not always: heads of 192 and 256 ran at 573 and
622 TFLOP/s without and at 672 and 687 with turns. Two texts of head 128, full and causal, 8192 and
2048 keys, ran at 706, 657, 643, 560 and 621, 570, 619, 503 without, at 709, 668, 644, 568 and 676,
628, 607, 515 with them; of head 96, where threads are the busier, at 621, 585, 579, 507 and 552,
506, 542, 440 without, 617, 581, 567, 499 and 560, 521, 530, 442 with.

**Why nobody waits for ever.** A section holds no arrival, no barrier of threads and no other
section. Of all warpgroups that wait, look at the one that is least far, and of several at the same
place the lowest. It does not wait for memory: who releases it has come further, or to the same
place. It does not wait for its turn either: the one before it has ended its section, or is inside
and waits for memory that only what stands in front of the section releases, and there all have
been. So somebody goes on. It takes that all warpgroups run the same sections: where control may
differ between threads there are no turns.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple, TypeGuard

from tilewright.ir.analysis.uniform import PerThread, per_thread
from tilewright.ir.core import *
from tilewright.ir.exchanges import meets_inside
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.schedule import Switch
from tilewright.ir.target import Target
from tilewright.passes.overlap.roles import CONSUMER, PRODUCER
from tilewright.passes.overlap.unit_times import cycles
from tilewright.passes.reasons import because


def order_warpgroups(kernel: Kernel, target: Target) -> Kernel:
    """Derived consumers of several warpgroups: sections around their products."""
    choice = target.schedule.order_warpgroups
    found: list[Op] = []
    for op in kernel.body:
        if isinstance(op, Role) and _is_derived(op, kernel):
            work = _Sections(per_thread(kernel), op.warps * WARP, choice is True)
            against = _against(op, choice)
            body = op.body if against else work.body(op.body)
            said = against or "; ".join(work.said) or "no products"
            because(kernel.name, f"turns of {op.name}", said)
            op = rebuild(op, body=body)
        found.append(op)
    return rebuild(kernel, body=tuple(found))


def _is_derived(op: Role, kernel: Kernel) -> bool:
    """Whether `part_roles` has made this role: its warps hand slots back each for itself."""
    return (
        (op.name, op.first, op.instances) == (CONSUMER, 0, 1)
        and any(isinstance(i, Arrive) and i.by == "warps" for i in walk_ops(op.body))
        and any(isinstance(r, Role) and (r.name, r.first) == (PRODUCER, op.warps)
                for r in kernel.body)
    )  # fmt: skip


def _against(role: Role, choice: Switch) -> str:
    """What keeps a role from having turns at all."""
    if choice is False:
        return "none: switched off"
    if role.warps // GROUP < 2:
        return "none: one warpgroup has nobody to take turns with"
    for op in walk_ops(role.body):
        if isinstance(op, (While, Break, Continue)):
            return "none: loops are left early"
        if isinstance(op, Intrinsic) and INTRINSICS[op.name].opaque:
            return "none: foreign code may have barriers of its own"
    return ""


class _Run(NamedTuple):
    """Products in a row: `first` is the place of the fence before them, `last` that of the last
    commit."""

    first: int
    last: int


class _Sections:
    """Finds the loops of a role that get sections, and puts these in. `said`: what was decided."""

    def __init__(self, differs: PerThread, threads: int, asked: bool) -> None:
        self.differs = differs
        self.threads = threads
        self.asked = asked
        self.said: list[str] = []

    def body(self, body: Body) -> Body:
        """Straight code, with sections in its loops and around products in front of them."""
        found = list(self.inner(body))
        ops = [op for op, _ in found]
        turned = [k for k, (_, turns) in enumerate(found) if turns]
        runs = [r for r in _runs(ops) if turned and r.first < turned[-1]]
        return _with_turns(ops, runs, runs)

    def inner(self, body: Body) -> Iterator[tuple[Op, bool]]:
        """The ops, loops inside them done; whether they are of a loop with sections."""
        for op in body:
            if isinstance(op, For) and any(map(_is_product, op.body)):
                why = self.why_not(op)
                if not why:
                    yield from ((i, True) for i in self.loop(op))
                    continue
                self.said.append(f"none in loop {op.var.name}: {why}")
            yield map_bodies(op, self.body) if isinstance(op, (For, If)) else op, False

    def loop(self, loop: For) -> Body:
        """The loop with sections, and what stands around it where one reaches across its end."""
        ops = [op for op, _ in self.inner(loop.body)]
        runs = _runs(ops)
        outside = ops[: runs[0].first] + ops[runs[-1].last + 1 :]
        across = len(runs) > 1 and _is_brief(outside, ops[runs[-1].first : runs[-1].last + 1])
        count = len(runs) - across
        text = f"{count} section{'s' * (count != 1)} in an iteration of {loop.var.name}"
        if across:
            text += ", one from its last products to the next one's first"
        self.said.append(text)
        if not across:
            return (rebuild(loop, body=_with_turns(ops, runs, runs)),)
        body = _with_turns(ops, runs[1:], runs[:-1])
        return Turn("begin", loc=loop.loc), rebuild(loop, body=body), Turn("end", loc=loop.loc)

    def why_not(self, loop: For) -> str:
        inside = list(walk_ops(loop.body))
        if any(isinstance(op, Sync) or meets_inside(op, self.threads) for op in inside):
            return "its warpgroups meet in every iteration"
        for op in (loop, *inside):
            differs = isinstance(op, (For, If)) and self.differs.source(expressions(op)) is not None
            if differs or id(op) in self.differs.controls:
                return "threads may differ in what they run of it"
        least = min(prod(op.c.static_tile) for op in loop.body if _is_product(op))
        if not any(2 * _work(op) >= least for op in inside):
            return "threads have little to do between its products"
        return "" if self.asked else _not_worth(loop)


def _not_worth(loop: For) -> str:
    """What speaks against turns that nobody has asked for."""
    if len(_runs(list(loop.body))) != 2:  # chains of two are what was measured
        return "nobody asked for them: no chain of product, threads, product"
    products = sum(cycles(op) for op in loop.body if _is_product(op))
    threads = sum(cycles(op) for op in loop.body if not _is_product(op))
    if products < threads:
        return "nobody asked for them: threads have as much to do as the tensor core"
    return ""


def _is_product(op: Op) -> TypeGuard[Gemm]:
    return isinstance(op, Gemm) and op.atom == "wgmma"


def _is_fence(op: Op) -> bool:
    return isinstance(op, Fence) and op.kind == "wgmma"


def _is_quiet(op: Op) -> bool:
    """What may stand between the products of a section: names, counters, waits for memory. Neither
    work nor anything that others may wait for."""
    if isinstance(op, Fence):
        return op.kind in ("wgmma", "proxy_async")
    if isinstance(op, Commit):
        return op.unit == "wgmma"
    if isinstance(op, Store):
        return op.buffer.space is Space.LOCAL and not op.indices
    if isinstance(op, If):
        return all(_is_fence(i) or isinstance(i, (Let, Hint)) for i in (*op.then, *op.orelse))
    return _is_product(op) or isinstance(op, (Let, Hint, Alloc, View, Wait))


def _is_brief(ops: list[Op], products: list[Op]) -> bool:
    """Whether `ops` are over before the products in front of them, and wait for nothing but memory:
    others lose nothing if they stand in a section."""
    work = [op for op in ops if not _is_quiet(op)]
    most = sum(cycles(op) for op in products if _is_product(op))
    return all(map(_in_registers, work)) and sum(map(cycles, work)) < most


def _in_registers(op: Op) -> bool:
    """What each warp does with fragments and scalars alone."""
    if not isinstance(op, (Map, Reduce, Copy, Fill)):
        return False
    spaces = {buffer.space for buffer, _ in touched_within(op)}
    return spaces <= {Space.FRAGMENT, Space.LOCAL}


def _runs(body: list[Op]) -> list[_Run]:
    """The runs of products of straight code, in order."""
    found: list[_Run] = []
    going = False
    for k, op in enumerate(body):
        going = going and _is_quiet(op)
        if _is_product(op) and not going:
            found.append(_Run(_fence_before(body, k), k))
            going = True
        if going and isinstance(op, (Gemm, Commit)):
            found[-1] = found[-1]._replace(last=k)
    return found


def _fence_before(body: list[Op], k: int) -> int:
    """The place of the fence of the product at `k`; the product's own where there is none."""
    first = k
    for at in reversed(range(k)):
        op = body[at]
        if _is_fence(op) or (isinstance(op, If) and _is_quiet(op)):
            first = at
        elif not isinstance(op, (Let, Hint)):
            break
    return first


def _with_turns(body: list[Op], begins: list[_Run], ends: list[_Run]) -> Body:
    """`body` with a section's begin before each of `begins`, and an end behind each of `ends`."""
    before, behind = {r.first for r in begins}, {r.last for r in ends}
    found: list[Op] = []
    for k, op in enumerate(body):
        found += [Turn("begin", loc=op.loc)] if k in before else []
        found.append(op)
        found += [Turn("end", loc=op.loc)] if k in behind else []
    return tuple(found)


def _work(op: Op) -> int:
    """Elements of fragments that threads compute in an op."""
    if isinstance(op, Map):
        spaces = {buffer.space for buffer, _ in touched_within(op)}
        return prod(map(int, op.extents)) if Space.FRAGMENT in spaces else 0
    if isinstance(op, (Reduce, Scan)) and op.src.buffer.space is Space.FRAGMENT:
        return prod(op.src.static_tile)
    return 0
