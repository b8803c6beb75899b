"""Guards around what a pipelined loop loads, as loops of one iteration or none.

    for k in 0 .. n kind=pipelined stages=2 { if M[k] { copy K[k] -> a; T = q · a; … } }

    for k in 0 .. n { for once in 0 .. (1 if M[k] else 0) kind=pipelined stages=2 { copy … } }

What the next iteration loads is not known before its guard has been asked, so nothing can be filled
in advance by whoever computes. A producer asks for itself: its rings count what was used, whichever
loops stand around, and it runs ahead over iterations that are skipped. So this form is for kernels
that get one.
"""

from __future__ import annotations

from tilewright.ir.analysis.effects import leaves_early
from tilewright.ir.buffer import Space
from tilewright.ir.expr import Select, Var, const
from tilewright.ir.op import Body, Copy, For, If, Op
from tilewright.ir.rewrite import fresh_name, map_body, rebuild


def loops_of_guards(body: Body, names: set[str]) -> Body:
    """`body`, guards around loads of its pipelined loops as loops; itself where there are none."""

    def rule(op: Op) -> Op | None:
        if not (isinstance(op, For) and op.kind == "pipelined" and op.stages >= 1):
            return None
        if op.order is not None or not any(map(_loads, op.body)):
            return None
        return rebuild(op, body=tuple(once(each, op) if _loads(each) else each for each in op.body))

    def once(guard: Op, loop: For) -> For:
        assert isinstance(guard, If)
        var = Var(fresh_name(f"{loop.var.name}_once", names))
        count = Select(guard.cond, const(1), const(0))
        return For(
            var, const(0), count, guard.then, kind="pipelined", stages=loop.stages, loc=guard.loc
        )

    return map_body(body, rule)


def _loads(op: Op) -> bool:
    """A guard around copies of tensors to shared memory, which nobody leaves early."""
    return (
        isinstance(op, If)
        and not op.orelse
        and not leaves_early(op.then)
        and any(
            isinstance(each, Copy)
            and each.src.buffer.space is Space.GLOBAL
            and each.dst.buffer.space is Space.SHARED
            for each in op.then
        )
    )


__all__ = ["loops_of_guards"]
