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
from tilewright.ir.analysis.effects import leaves_early, written_by
from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.expr import Const, Expr, Load, Select, Var, loads, substitute, variables
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    bound_within,
    expressions,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_body,
    map_kernels,
    map_ops,
    program_names,
    rebuild,
)
from tilewright.ir.scope import counted
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.passes.overlap.prefetchable import Ahead
from tilewright.passes.reasons import at_line, because

MOST = 20  # registers of a thread for what a nest loads early
ROWS = 256  # elements of a vector that several threads hold,
SHARED_BY = 16  # about as many as share one,
COLUMNS = 4  # and if it goes along a nest's rows: a thread of a product's tile has so many


def prefetch_loads(program: Program, target: Target) -> Program:
    """Every kernel with the loads of its pipelined loops' nests early, where they can be."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(isinstance(op, Role) for op in walk_ops(kernel)):
            return kernel
        work = _Prefetch(kernel, names, written_by(kernel), Ahead(kernel, program, target))
        return rebuild(kernel, body=map_body(kernel.body, work.loop))

    return map_kernels(program, one)


@dataclass
class _Early:
    """A value of each point over some of a nest's variables: `early` holds it for the next
    iteration, `now` for this one."""

    value: Expr
    vars: tuple[Var, ...]
    extents: tuple[Expr, ...]
    early: Buffer
    now: Buffer

    def loaded(self, turn: dict[Var, Expr], op: Map, names: set[str]) -> Op:
        """What loads it, for the iteration that `turn` says."""
        own = tuple(Var(fresh_name(v.name, names), v.dtype) for v in self.vars)
        value = substitute(self.value, {**dict(zip(self.vars, own, strict=True)), **turn})
        store = Store(self.early, own, value, loc=op.loc)
        return Map(own, self.extents, (store,), loc=op.loc) if own else store

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
        if isinstance(op, Let) and op.var not in asked and loads(op.value):
            continue
        for inner in walk_ops(op):
            asked |= {v for e in expressions(inner) for v in variables(e)}
        kept.append(op)
    return tuple(reversed(kept))


@dataclass
class _Prefetch:
    kernel: Kernel
    names: set[str]
    written: set[str]
    ahead: Ahead
    # what nests of the same loop have early, by its value over points that are only counted
    known: dict[tuple[Expr, tuple[Expr, ...]], _Early] = field(default_factory=dict)

    def loop(self, op: Op) -> Body | None:
        if not isinstance(op, For) or op.kind != "pipelined" or op.stages < 2:
            return None
        if op.order is not None:
            return None  # its author has counted the statements
        step = op.step
        if leaves_early(op.body) or not isinstance(step, Const) or int(step) <= 0:
            return None
        before: list[Op] = []
        body: list[Op] = []
        lets: dict[Var, Expr] = {}
        inner = {v for each in op.body for v in bound_within(each)}
        self.known = {}
        for each in op.body:
            if isinstance(each, Let):
                lets[each.var] = substitute(each.value, lets)
            runs_ahead = id(each) in self.ahead.copies
            if not isinstance(each, Map) or each.layout is not None or runs_ahead:
                body.append(each)
                continue
            nest, found = self.nest(each, op.var, lets, inner)
            for one in found:
                before += [Alloc(one.early, loc=each.loc), Alloc(one.now, loc=each.loc)]
                before.append(one.loaded({op.var: op.start}, each, self.names))
                body.append(one.taken(each))
                body.append(one.loaded({op.var: op.var + step}, each, self.names))
            if found:
                said = f"loads of the nest {at_line(each.loc)} one iteration early"
                if id(each) in self.ahead.against:
                    said += f", not by cp.async: {self.ahead.against[id(each)]}"
                because(self.kernel.name, op, said)
            body.append(nest)
        return (*before, rebuild(op, body=_needed(body))) if before else None

    def nest(
        self, op: Map, turn: Var, outer: dict[Var, Expr], inner: set[Var]
    ) -> tuple[Map, list[_Early]]:
        """`op` with what it may load early in registers, and these."""
        lets = dict(outer)
        for each in walk_ops(op.body):
            if isinstance(each, Let):
                lets[each.var] = substitute(each.value, lets)
        found: dict[Expr, _Early] = {}
        left = MOST

        def is_ready(e: Expr) -> bool:
            # nothing but the load: what is computed with it would wait for it
            if isinstance(e, Select) and not (isinstance(e.a, Load) and isinstance(e.b, Const)):
                return False
            if not isinstance(e, (Load, Select)):
                return False
            read = loads(e)
            if not any(turn in variables(x) for x in read):
                return False
            tensors = [x.buffer for x in read]
            if any(b.space is not Space.GLOBAL or b.name in self.written for b in tensors):
                return False
            return not (variables(e) & inner) - set(op.vars) and e.dtype.bits >= 8

        def early(e: Expr) -> Expr | None:
            """`e`, its names resolved, out of registers; None where there are too few."""
            nonlocal left
            if e not in found:
                own = tuple(v for v in op.vars if v in variables(e))
                extents = tuple(op.extents[op.vars.index(v)] for v in own)
                if not all(isinstance(x, Const) for x in extents):
                    return None
                point = {v: Var(f" {n}", v.dtype) for n, v in enumerate(own)}
                key = substitute(e, dict(point)), extents
                if key in self.known:
                    return Load(self.known[key].now, own)
                size = prod(int(x) for x in extents)
                words = size * e.dtype.bits // 32
                if own == op.vars:
                    words = -(-words // prod(self.kernel.threads))
                elif own == op.vars[-1:]:
                    words = -(-words // COLUMNS)
                elif size <= ROWS:
                    words = -(-words // SHARED_BY)
                if words > left:
                    return None
                left -= words
                space = Space.FRAGMENT if own else Space.LOCAL
                held = [
                    Buffer(fresh_name(name, self.names), extents, e.dtype, space)
                    for name in ("early", "now")
                ]
                found[e] = self.known[key] = _Early(e, own, extents, *held)
            one = found[e]
            return Load(one.now, one.vars)

        points = Ranges()
        for var, extent in zip(op.vars, op.extents, strict=True):
            points = counted(points, var, extent)

        def swap(e: Expr) -> Expr:
            resolved = substitute(e, lets)
            if isinstance(resolved, (Load, Select)):
                # (b * 128 + j) // 128 is the same for all j < 128: a number, not a row of them
                resolved = simplify(resolved, points, index=False)
            new = early(resolved) if is_ready(resolved) else None
            if new is not None:
                return new
            children = tuple(swap(c) for c in e.children)
            same = all(a is b for a, b in zip(children, e.children, strict=True))
            return e if same else e.rebuild(children)

        def rule(each: Op) -> Op | None:
            return rebuild(each, value=swap(each.value)) if isinstance(each, Store) else None

        return map_ops(op, rule), list(found.values())
