"""Single elements of fragments that are stored to outside nests, as nests of one point.

    last[0] = X[row]    becomes    map p in 1 { last[0] = X[row] }

Which threads hold the element is then a question of layouts, as for every nest. Stores that differ
between threads stay, and are refused where threads are told apart.
"""

from __future__ import annotations

from tilewright.ir.analysis.uniform import per_thread
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Var, const
from tilewright.ir.op import Kernel, Map, Op, Program, Store, expressions, outside_nests
from tilewright.ir.rewrite import fresh_name, map_body, map_kernels, program_names, rebuild
from tilewright.ir.target import Target


def map_stores(program: Program, target: Target) -> Program:
    """`program` with every store to a fragment in a nest."""
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        differs = per_thread(kernel)
        alone = {
            id(op)
            for op in outside_nests(kernel.body)
            if isinstance(op, Store)
            and op.buffer.space is Space.FRAGMENT
            and id(op) not in differs.controls
            and differs.source(expressions(op)) is None
        }

        def rule(op: Op) -> Op | None:
            if id(op) not in alone:
                return None
            return Map((Var(fresh_name("p", names)),), (const(1),), (op,), loc=op.loc)

        return rebuild(kernel, body=map_body(kernel.body, rule)) if alone else kernel

    return map_kernels(program, one)
