"""Programs with one synchronising op broken: dropped, moved past a neighbour, or miscounted.

Some mutants are no broken programs. Rules about the op and what stands around it say so; what the
interpreter says about the mutant plays no part.

- `same`: the same program, because the two ops that changed places do not concern each other.
- `slower`: everything that was ordered still is: the mutant only waits longer, or hands on later.
  It could still hang, and one that does counts as caught.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from tilewright.ir import op as ops
from tilewright.ir.atoms import ATOMS
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Const, Var, const, variables
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Body,
    Commit,
    Copy,
    Fence,
    For,
    Gemm,
    Hint,
    If,
    Let,
    Op,
    Program,
    Role,
    Sync,
    Wait,
    WaitGroup,
    While,
    bound,
    expressions,
    marked,
    read_buffers,
    walk_ops,
    written_buffers,
)
from tilewright.ir.text import print_op

# `Turn` where the IR has it
SYNC_OPS: tuple[type[Op], ...] = (
    Arrive, BarrierInit, Commit, Fence, Sync, Wait, WaitGroup, *filter(None, [ops.OPS.get("Turn")]),
)  # fmt: skip
Place = tuple[tuple[str, int], ...]  # fields and positions, from the kernel down


@dataclass(frozen=True)
class Mutant:
    """A broken program; `same` or `slower` is the reason why it is not broken, or ''."""

    how: str
    op: Op
    where: str
    program: Program
    same: str = ""
    slower: str = ""
    past: Op | None = None

    def __str__(self) -> str:
        past = f" past {_line(self.past)}" if self.past is not None else ""
        return f"{self.how}: {_line(self.op)}{past}  [{self.where}]"


def _line(op: Op) -> str:
    return print_op(op).strip().partition("\n")[0]


# ── finding and changing ─────────────────────────────────────────────────────────────────────


def places(op: Op, kinds: tuple[type[Op], ...] = SYNC_OPS, at: Place = ()) -> Iterator[Place]:
    """Where ops of `kinds` stand inside `op`, in text order."""
    for f in marked(op, "body"):
        for index, inner in enumerate(getattr(op, f.name)):
            here = (*at, (f.name, index))
            if isinstance(inner, kinds):
                yield here
            yield from places(inner, kinds, here)


def op_at(op: Op, place: Place) -> Op:
    for name, index in place:
        op = getattr(op, name)[index]
    return op


def with_body(op: Op, place: Place, new: Body, stop: int) -> Op:
    """`op` with the ops from `place` up to position `stop` of the same body replaced by `new`."""
    (name, index), *rest = place
    old = getattr(op, name)
    if rest:
        new, stop = (with_body(old[index], tuple(rest), new, stop),), index + 1
    return dataclasses.replace(op, **{name: (*old[:index], *new, *old[stop:])})


def changed(program: Program, kernel: int, place: Place, new: Body, more: int = 0) -> Program:
    """`program` with the op at `place`, and `more` behind it, replaced by `new`."""
    found = with_body(program.kernels[kernel], place, new, place[-1][1] + 1 + more)
    kernels = (*program.kernels[:kernel], found, *program.kernels[kernel + 1 :])
    return dataclasses.replace(program, kernels=kernels)  # type: ignore[arg-type]


def sync_ops(program: Program) -> list[Op]:
    return [op for k in program.kernels for op in walk_ops(k) if isinstance(op, SYNC_OPS)]


def without(program: Program, index: int) -> Program:
    """`program` less its `index`-th synchronising op."""
    found = [(k, p) for k, kernel in enumerate(program.kernels) for p in places(kernel)]
    return changed(program, *found[index], ())


def described(kernel: Op, place: Place) -> str:
    """The roles, loops and guards around a place, and its position in the innermost."""
    words, op = [], kernel
    for name, index in place[:-1]:
        op = getattr(op, name)[index]
        if isinstance(op, Role):
            words.append(op.name)
        elif isinstance(op, For):
            words.append(f"for {op.var}")
        else:
            words.append(type(op).__name__.lower())
    return " / ".join([*words, f"statement {place[-1][1]}"])


# ── the mutants ──────────────────────────────────────────────────────────────────────────────


def mutants(program: Program) -> Iterator[Mutant]:
    """Every way of breaking one synchronising op."""
    for number, kernel in enumerate(program.kernels):
        counted = {
            op.barrier.buffer
            for op in walk_ops(kernel)
            if isinstance(op, (Copy, Arrive))
            and op.barrier is not None
            and (isinstance(op, Copy) or op.barrier.cta is not None)
        }
        for place in places(kernel, (*SYNC_OPS, Copy)):
            op = op_at(kernel, place)
            where = described(kernel, place)
            around = op_at(kernel, place[:-1])
            for how, new in miscounted(op):
                found = changed(program, number, place, (new,))
                same, slower = _counts_the_same(how, op, around)
                yield Mutant(how, op, where, found, same, slower)
            if isinstance(op, Copy):
                continue
            joins = _joins(op, _behind(kernel, place, 1))
            yield Mutant("dropped", op, where, changed(program, number, place, ()), joins)
            for how, other, at in _neighbours(kernel, place):
                first, then = (other, op) if how == "moved earlier" else (op, other)
                found = changed(program, number, at, (then, first), 1)
                same = _concerns_not(op, other, counted) or _concerns_not(other, op, counted)
                same = same or _fences_others(first, then, _behind(kernel, at))
                same = same or _expects_sooner(first, then, _behind(kernel, at))
                same = same or (_joins(then, _behind(kernel, at)) if then is op else "")
                slower = _orders_more(first, then)
                yield Mutant(how, op, where, found, same, slower, other)


def _behind(kernel: Op, place: Place, past: int = 2) -> Body:
    """What stands behind an op and its neighbour, or behind it alone, in the same body."""
    *outer, (name, index) = place
    found: Body = getattr(op_at(kernel, tuple(outer)), name)[index + past :]
    return found


def _neighbours(kernel: Op, place: Place) -> Iterator[tuple[str, Op, Place]]:
    *outer, (name, index) = place
    body = getattr(op_at(kernel, tuple(outer)), name)
    if index > 0:
        yield "moved earlier", body[index - 1], (*outer, (name, index - 1))
    if index + 1 < len(body):
        yield "moved later", body[index + 1], place


def miscounted(op: Op) -> Iterator[tuple[str, Op]]:
    """Counts, bytes, phases and slots that are off by a little."""
    if isinstance(op, Arrive):
        if op.bytes is not None:
            for off in (-16, 16):
                yield f"bytes {off:+}", dataclasses.replace(op, bytes=op.bytes + off)
        for off in (-1, 1):
            yield f"count {off:+}", dataclasses.replace(op, count=op.count + off)
    elif isinstance(op, BarrierInit):
        for off in (-1, 1):
            yield f"count {off:+}", dataclasses.replace(op, count=op.count + off)
    elif isinstance(op, Wait):
        yield "phase flipped", dataclasses.replace(op, phase=1 - op.phase)
    elif isinstance(op, WaitGroup):
        yield "pending +1", dataclasses.replace(op, pending=op.pending + 1)
        if op.pending:
            yield "pending -1", dataclasses.replace(op, pending=op.pending - 1)
        if op.unit == "bulk" and not op.read:
            yield "read only", dataclasses.replace(op, read=True)
    elif isinstance(op, Sync) and op.threads:
        for off in (-32, 32):
            yield f"threads {off:+}", dataclasses.replace(op, threads=op.threads + off)
    if isinstance(op, (Arrive, Wait, Copy)) and op.barrier is not None:
        slots = op.barrier.buffer.shape
        if len(slots) == 1 and isinstance(slots[0], Const) and slots[0].value > 1:
            (slot,) = op.barrier.starts
            other = Region(op.barrier.buffer, ((slot + 1) % slots[0],), op.barrier.extents,
                           op.barrier.cta)  # fmt: skip
            if op.barrier.extents[0] is const(1):
                yield "next slot", dataclasses.replace(op, barrier=other)


# ── the same program, or a slower one ────────────────────────────────────────────────────────


def _needs(op: Op, other: Op) -> bool:
    """`op` uses a value that `other` makes."""
    made = set(bound(other)) & free_vars_of(op)
    return bool(made) or not set(written_buffers(other)).isdisjoint(read_buffers(op))


def _concerns_not(op: Op, other: Op, counted: set[Buffer]) -> str:
    """Why it does not matter which of two neighbours comes first, or ''. `counted` are the
    barriers that copies complete on, or other blocks arrive at."""
    if not isinstance(op, SYNC_OPS) or _needs(op, other) or _needs(other, op):
        return ""
    inside = list(walk_ops(other))
    if all(_is_silent(x) for x in inside) and not (
        _about_registers(op) and any(_registers(x) for x in inside)
    ):
        return "past what touches no memory that others see"
    if isinstance(op, Fence) and op.kind == "wgmma":
        if not any(_registers(x) or _unit(x) == "wgmma" for x in inside):
            return "a fence of registers past what touches none"
    if isinstance(op, Wait) and isinstance(other, Sync):
        return "a wait past a barrier: whoever comes to it waits for himself"
    if any(isinstance(op, kind) and isinstance(other, kind) for kind in (Arrive, Wait, Fence)):
        return "two of a kind with nothing between"
    if isinstance(op, BarrierInit) and isinstance(other, BarrierInit):
        return "two of a kind with nothing between"
    if isinstance(op, Commit) and not any(_unit(x) == op.unit for x in inside):
        return "a commit past what neither issues nor awaits its unit"
    if isinstance(op, Arrive) and all(isinstance(x, Copy) and x.barrier for x in inside):
        # a copy that completes on a barrier is handed on by that alone; its bytes may come first
        return "an arrival past a copy that its own barrier hands on"
    if (
        isinstance(op, BarrierInit)
        and isinstance(other, Fence)
        and op.barrier.buffer not in counted
    ):
        return "a fence of barriers past one that only threads of the block use"
    return ""


def _fences_others(first: Op, then: Op, behind: Body) -> str:
    """A register fence that comes sooner, past what no product up to the next fence uses."""
    if not isinstance(then, Fence) or then.kind != "wgmma":
        return ""
    touched = {b for x in walk_ops(first) for b in [*read_buffers(x), *written_buffers(x)]}
    for op in behind:
        if isinstance(op, Fence) and op.kind == "wgmma":
            break
        if any(not touched.isdisjoint(_operands(x)) for x in walk_ops(op)):
            return ""
        if any(isinstance(x, (For, While, If, Role)) for x in walk_ops(op)):
            return ""
    else:
        return ""  # round a loop: who knows
    return "a fence of registers past what touches others"


def _expects_sooner(first: Op, then: Op, behind: Body) -> str:
    """Bytes that are expected sooner: the copies that bring them, and so the end of the phase, come
    when they came."""
    if not isinstance(then, Arrive) or then.bytes is None or not isinstance(first, (Sync, Fence)):
        return ""
    copies = (op for op in behind if isinstance(op, Copy) and op.barrier is not None)
    if any(op.barrier == then.barrier for op in copies):
        return "bytes expected sooner than they are asked for"
    return ""


def _joins(op: Op, behind: Body) -> str:
    """What a commit closed may as well belong to the next group, where the wait is for all."""
    if not isinstance(op, Commit):
        return ""
    closed = False
    for each in behind:
        if isinstance(each, WaitGroup) and each.unit == op.unit:
            return (
                "joins the next group, and all are waited for"
                if closed and not each.pending
                else ""
            )
        closed = closed or (isinstance(each, Commit) and each.unit == op.unit)
    return ""


def _operands(op: Op) -> list[Buffer]:
    return [op.a.buffer, op.b.buffer, op.c.buffer] if isinstance(op, Gemm) else []


def _orders_more(first: Op, then: Op) -> str:
    """Why `then` before `first` orders all that `first` before `then` does, or ''."""
    if _needs(then, first) or _needs(first, then):
        return ""
    if isinstance(then, Wait):
        return "waits sooner"
    if isinstance(first, Arrive):
        return "arrives later"
    if _edge(then) == "begin" or _edge(first) == "end":
        return "keeps its turn longer"
    inside = list(walk_ops(first))
    if isinstance(then, WaitGroup) and not any(_unit(x) == then.unit for x in inside):
        return "waits for its group sooner"
    later = list(walk_ops(then))
    if isinstance(first, Fence) and first.kind == "proxy_async":
        if not any(isinstance(x, SYNC_OPS) or _is_async(x) for x in later):
            return "fences later, before anything is handed on"
    if isinstance(then, Fence) and then.kind == "proxy_async":
        written = [b for x in inside for b in written_buffers(x)]
        if not any(b.space is Space.SHARED for b in written) and not any(
            isinstance(x, (Sync, WaitGroup)) for x in inside
        ):
            return "fences sooner, past what writes no shared memory"
    return ""


def _counts_the_same(how: str, op: Op, around: Op) -> tuple[str, str]:
    """Why a miscount is the same program, and why it is a slower one."""
    if how == "pending -1":
        return "", "waits for one group more"
    if how == "next slot" and isinstance(op, Arrive):
        (slots,) = op.barrier.buffer.shape
        if isinstance(around, For) and (around.start, around.stop) == (const(0), slots):
            return "every slot gets one arrival all the same", ""
    return "", ""


def free_vars_of(op: Op) -> set[Var]:
    return {v for e in expressions(op) for v in variables(e)}


def _unit(op: Op) -> str:
    """The unit whose groups an op belongs to, closes or waits for."""
    if isinstance(op, (Commit, WaitGroup)):
        return op.unit
    atom = ATOMS.get(str(getattr(op, "atom", None)))
    return atom.completion if atom is not None else ""


def _edge(op: Op) -> str:
    return str(getattr(op, "edge", "")) if type(op).__name__ == "Turn" else ""


def _is_async(op: Op) -> bool:
    return bool(_unit(op))


def _is_silent(op: Op) -> bool:
    """Nobody else sees that the op ran."""
    if isinstance(op, (*SYNC_OPS, Role, While)) or _is_async(op):
        return False
    if isinstance(op, (Alloc, Hint, Let, If, For)):
        touched = read_buffers(op)
    else:
        touched = [*read_buffers(op), *written_buffers(op)]
    return all(b.space in (Space.LOCAL, Space.FRAGMENT) for b in touched)


def _registers(op: Op) -> bool:
    return any(b.space is Space.FRAGMENT for b in [*read_buffers(op), *written_buffers(op)])


def _about_registers(op: Op) -> bool:
    return (isinstance(op, Fence) and op.kind == "wgmma") or _unit(op) == "wgmma"


__all__ = ["SYNC_OPS", "Mutant", "changed", "mutants", "places", "sync_ops", "without"]
