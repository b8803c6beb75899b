"""What nests of pipelined loops load from memory themselves, loaded one iteration early.

A copy into shared memory runs ahead by itself. What a nest reads from a tensor directly (scales,
rows that a table names, windows of an image) would be waited for in every iteration. Where it
depends on the loop's variable and on nothing that the loop computes, registers take it early:

    for k { x[i, j] = q[i, j] * S[i, k] }

    early = S[·, 0]
    for k { now = early; early = S[·, k + 1]; x[i, j] = q[i, j] * now[i] }

Behind the last iteration it reads what is not needed, or zeros outside the tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.analysis.effects import leaves_early
from tilewright.ir.core import *
from tilewright.ir.scope import inside
from tilewright.ir.simplify import simplify
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.overlap.rings import load_into, own_vars
from tilewright.passes.reasons import at_line, because

MOST = 20  # registers of a thread for what a map loads early
ROWS = 256  # elements of a vector that several threads hold,
SHARED_BY = 16  # about as many as share one,
COLUMNS = 4  # and if it goes along a map's rows: a thread of a product's tile has so many


@kernel_pass
def prefetch_loads(at: Facts) -> Kernel:
    """Every kernel with the loads of its pipelined loops' maps early, where they can be."""
    if at.has_roles:
        return at.kernel
    work = _Prefetch(at.kernel, at.names, Ahead(at.kernel, at.program, at.target))
    return map_ops(at.kernel, work.loop)


@dataclass
class _Early:
    """A value of each point over some of a map's variables: `early` holds it for the next
    iteration, `now` for this one."""

    value: Expr
    vars: tuple[Var, ...]
    early: Buffer
    now: Buffer

    def loaded(self, op: Map, names: set[str], at: dict[Var, Expr]) -> Op:
        return load_into(self.early, substitute(self.value, at), self.vars, op, names)

    def taken(self, op: Map) -> Op:
        """What makes the next iteration's this one's."""
        if self.vars:
            return Copy(whole(self.early), whole(self.now), loc=op.loc)
        return Store(self.now, (), Load(self.early, ()), loc=op.loc)


def _needed(body: list[Op]) -> Body:
    """`body` without names of loads that nobody asks for any more."""
    kept: list[Op] = []
    asked: set[Var] = set()
    for op in reversed(body):
        if not isinstance(op, Let) or op.var in asked or not loads(op.value):
            asked |= {v for i in walk_ops(op) for e in expressions(i) for v in variables(e)}
            kept.append(op)
    return tuple(reversed(kept))


@dataclass
class _Prefetch:
    kernel: Kernel
    names: set[str]
    ahead: Ahead
    # what maps of the same loop have early, by its value over points that are only counted
    known: dict[tuple[Expr, tuple[Expr, ...]], _Early] = field(default_factory=dict)

    def loop(self, op: Op) -> Body | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.stages < 2:
            return None
        # where there is an order, its author has counted the statements
        if op.order is not None or leaves_early(op.body) or not isinstance(op.step, Const):
            return None
        before: list[Op] = []
        body: list[Op] = []
        self.known = {}
        for k, each in enumerate(op.body):
            nest, found = each, list[_Early]()
            if isinstance(each, Map) and each.layout is None and id(each) not in self.ahead.copies:
                nest, found = self.nest(each, op, let_values(op.body[:k]))
                for one in found:
                    before += [Alloc(one.early, loc=each.loc), Alloc(one.now, loc=each.loc)]
                    before.append(one.loaded(each, self.names, {op.var: op.start}))
                    body.append(one.taken(each))
                    body.append(one.loaded(each, self.names, {op.var: op.var + op.step}))
            if found:
                said = f"loads of the nest {at_line(each.loc)} one iteration early"
                if id(each) in self.ahead.against:
                    said += f", not by cp.async: {self.ahead.against[id(each)]}"
                because(self.kernel.name, op, said)
            body.append(nest)
        return (*before, rebuild(op, body=_needed(body))) if before else None

    def nest(self, op: Map, loop: For, outer: dict[Var, Expr]) -> tuple[Map, list[_Early]]:
        """`op` with what it may load early in registers, and these."""
        lets = let_values(walk_ops(op.body), outer)
        inner = {v for each in loop.body for v in bound_within(each)} - set(op.vars)
        found: list[_Early] = []
        left = MOST

        def is_ready(e: Expr) -> bool:
            # nothing but the load: what is computed with it would wait for it
            kept = e.a if isinstance(e, Select) and isinstance(e.b, Const) else e
            read = loads(e)
            return (
                isinstance(kept, Load)
                and any(loop.var in variables(x) for x in read)
                and all(x.buffer.space is Space.GLOBAL for x in read)
                and self.ahead.written.isdisjoint(x.buffer.name for x in read)
                and not variables(e) & inner
                and e.dtype.bits >= 8
            )

        def early(e: Expr) -> Expr | None:
            """`e`, its names resolved, out of registers; None where there are too few."""
            nonlocal left
            own, extents = own_vars(e, op)
            key = substitute(e, {v: Var(f" {n}", v.dtype) for n, v in enumerate(own)}), extents
            if key not in self.known:
                size = prod(int(x) for x in extents)
                words, shared_by = size * e.dtype.bits // 32, 1
                if own == op.vars:
                    shared_by = prod(self.kernel.threads)
                elif own == op.vars[-1:]:
                    shared_by = COLUMNS
                elif size <= ROWS:
                    shared_by = SHARED_BY
                words = -(-words // shared_by)
                if words > left:
                    return None
                left -= words
                space = Space.FRAGMENT if own else Space.LOCAL
                buffers = (
                    Buffer(fresh_name(name, self.names), extents, e.dtype, space)
                    for name in ("early", "now")
                )
                self.known[key] = _Early(e, own, *buffers)
                found.append(self.known[key])
            return Load(self.known[key].now, own)

        points = inside(op, "body", Ranges())

        def swap(e: Expr) -> Expr:
            resolved = substitute(e, lets)
            if isinstance(resolved, (Load, Select)):
                # (b * 128 + j) // 128 is the same for all j < 128: a number, not a row of them
                resolved = simplify(resolved, points, index=False)
            new = early(resolved) if is_ready(resolved) else None
            return map_children(e, swap) if new is None else new

        def rule(each: Op) -> Op | None:
            return rebuild(each, value=swap(each.value)) if isinstance(each, Store) else None

        return map_ops(op, rule), found
