"""The verifier: one spec per stage, checked after every pass and before every run.

A spec says which ops a stage allows; `RULES`, which the files of rules fill, which checks each op
class gets.
Everything is decided exactly from the program; what depends on run-time values is the
interpreter's to check.
"""

from __future__ import annotations

from tilewright.ir.analysis.uniform import TILE_OPS as NAMES
from tilewright.ir.verify import ops, structure
from tilewright.ir.verify.core import *
from tilewright.ir.verify.structure import check_sync, check_turns

# importing them fills the table
assert ops and structure and RULES.keys() == OPS.keys()
TILE_OPS = tuple(NAMES)
_STAGE_OPS: dict[Stage, frozenset[type[Op]]] = {
    Stage.TILE: frozenset(OPS.values()),
    Stage.LAID_OUT: frozenset(OPS.values()),
    Stage.THREAD: frozenset(OPS.values()) - {*TILE_OPS, Turn},
}


def verify(program: Program, stage: Stage) -> None:
    """Raise `VerifyError` where `program` breaks a rule of `stage`.

    A program never changes, so one that was found right is not looked at again.
    """
    right: set[Stage] = program.__dict__.setdefault("_verified", set())
    if stage not in right:
        _verify(program, stage)
        right.add(stage)


def _verify(program: Program, stage: Stage) -> None:
    context = Context(program, stage)
    for var in (*(dim.var for dim in program.dims), *program.scalars):
        define(var, context)
    for tensor in (*program.tensors, *program.scratch):
        if not tensor.is_global:
            context.fail(
                f"{tensor.name} is a parameter or scratch tensor, which live in global memory",
                expected="global",
                got=tensor.space.value,
            )
        for size in (*tensor.shape, *(tensor.strides or ())):
            check_expr(size, context)
        check_buffer(tensor, context)
        define(tensor, context)
    if not program.kernels:
        context.fail(f"program {program.name} has no kernel")
    kernel_names: set[str] = set()
    for kernel in program.kernels:
        if kernel.name in kernel_names:
            context.fail(f"two kernels are called {kernel.name}", op=kernel, fix="rename one")
        kernel_names.add(kernel.name)
        context.kernel = kernel
        context.has_roles = any(not op.derived for op in walk_ops(kernel, Role))
        _check_op(kernel, context)
        check_sync(kernel, context)
        check_turns(kernel, context)


def _check_op(op: Op, context: Context) -> None:
    context.op = op
    if type(op) not in _STAGE_OPS[context.stage]:
        context.fail(
            f"{type(op).__name__} may not stand in a program at stage {context.stage.name}",
            fix="lower it before" if type(op) in OPS.values() else "use an op of ir/op.py",
        )
    for operand in operands(op):
        if isinstance(operand, Region):
            check_region(operand, context)
        elif isinstance(operand, Buffer):
            if not (isinstance(op, (Alloc, View)) and operand is op.buffer):
                use_buffer(operand, context)
        else:
            check_expr(operand, context)
    if isinstance(op, TILE_OPS) and context.has_roles and context.inside(Role) is None:
        context.fail(
            f"{type(op).__name__.lower()} outside the roles of a kernel that has them",
            fix="put it into a role",
        )
    for check in RULES[type(op).__name__]:
        check(op, context)
    nested = tuple(bodies(op))
    if not nested:
        for var in bound(op):
            define(var, context)
        if isinstance(op, (Alloc, View)):
            define(op.buffer, context)
        return
    before_vars, before_buffers = dict(context.vars), dict(context.buffers)
    for var in bound(op):
        define(var, context)
    context.enclosing.append(op)
    inner_vars, inner_buffers = context.vars, context.buffers
    for body in nested:
        context.vars, context.buffers = dict(inner_vars), dict(inner_buffers)
        for inner in body:
            _check_op(inner, context)
    context.enclosing.pop()
    context.vars, context.buffers = before_vars, before_buffers


__all__ = ["Stage", "TILE_OPS", "verify"]
