"""Meaning of structure: loops, branches, names, maps, roles and allocation."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.machine.core import *
from tilewright.machine.events import async_map
from tilewright.machine.padding import Tracer, blank
from tilewright.machine.tile_agents import together

MANY = 1 << 22  # iterations of one `while` after which nobody would wait any longer


def _leave(fr: Frame, gone: Array | None) -> Array:
    """`gone` (None: nobody) and the running lanes."""
    lanes = fr.active(fr.lanes)
    return lanes if gone is None else gone | lanes


class _Loop:
    """The state a loop keeps about lanes that left it."""

    def __init__(self, fr: Frame) -> None:
        self.saved = fr.mask, fr.stop, fr.broke
        self.mask = fr.mask
        fr.stop = fr.broke = None

    def next(self, fr: Frame) -> bool:
        """Before an iteration: lanes that broke out stay out; False when none is left."""
        fr.stop = None
        fr.mask = self.mask if fr.broke is None else narrow(self.mask, ~fr.broke)
        return fr.mask is not NOTHING

    def close(self, fr: Frame) -> None:
        fr.mask, fr.stop, fr.broke = self.saved


@meaning(For)
def run_for(
    builder: Builder, op: For, start: Eval, stop: Eval, step: Eval, body: Run, fr: Frame
) -> Flow:
    name, number = op.var.name, op.var.dtype.numpy.type
    first, last, by = start(fr), stop(fr), step(fr)
    if builder.evaluate.sanitize:
        steps(fr, by)
    loop = _Loop(fr)
    if first.ndim or last.ndim or by.ndim:
        at, last, by = (np.asarray(x).astype(np.int64) for x in (first, last, by))
        inside = np.where(by > 0, at < last, (by < 0) & (at > last))
        while loop.next(fr):
            fr.mask = narrow(fr.mask, inside)
            if fr.mask is NOTHING:
                break
            fr.vars[name] = np.asarray(at).astype(number)
            yield from body(fr)
            # the distance is right modulo 2^64 where the next number would not be
            left = np.where(by > 0, last - at, at - last).view(np.uint64)
            inside = inside & (left > np.abs(by).view(np.uint64))
            at = at + by
    else:
        for i in range(int(first), int(last), int(by)) if by else ():
            if not loop.next(fr):
                break
            fr.vars[name] = number(i)
            yield from body(fr)
    loop.close(fr)


@meaning(While)
def run_while(op: While, cond: Eval, body: Run, fr: Frame) -> Flow:
    loop, rounds = _Loop(fr), 0
    while loop.next(fr):
        fr.op = op
        rounds += 1
        if rounds > MANY:
            raise RunError(
                f"a while loop ran {MANY} times and goes on",
                notes=("blocks run one after another here: waiting for another never ends",),
            )
        # lanes whose condition fails have left for good: they must not evaluate it again
        going = narrow(fr.mask, cond(fr))
        if going is NOTHING:
            break
        loop.mask = fr.mask = going
        yield from body(fr)
    loop.close(fr)


@meaning(If)
def run_if(op: If, cond: Eval, then: Run, orelse: Run, fr: Frame) -> Flow:
    value, entry = cond(fr), fr.mask
    chosen = narrow(entry, value)
    other = narrow_not(entry, value) if op.orelse else NOTHING
    if chosen is not NOTHING:
        fr.mask = chosen
        yield from then(fr)
    if other is not NOTHING:
        fr.mask = other
        yield from orelse(fr)
    fr.mask = entry


@meaning(Break)
def run_break(fr: Frame) -> None:
    fr.stop, fr.broke = _leave(fr, fr.stop), _leave(fr, fr.broke)


@meaning(Continue)
def run_continue(fr: Frame) -> None:
    fr.stop = _leave(fr, fr.stop)


@meaning(Let)
def run_let(b: Builder, op: Let) -> Run:
    value = b.evaluate(op.value, index=op.var in b.index_vars)
    to, name = cast_fn(op.value.dtype, op.var.dtype), op.var.name
    marks = Tracer(b.evaluate, op.value, op) if b.evaluate.sanitize else None

    def run(fr: Frame) -> None:
        fr.outside = False
        got = to(value(fr))
        if marks is not None:
            _mark(fr, name, marks(fr))
        # a box of a buffer may alias it, and later stores must not show through
        fr.vars[name] = got.copy() if got.ndim and got.base is not None else got

    return run


def _mark(fr: Frame, name: str, marks: Any) -> None:
    """Where the value of a variable comes from."""
    if marks is not None:
        fr.marks = {**(fr.marks or {}), name: marks}
    elif fr.marks:
        fr.marks.pop(name, None)


@meaning(Role)
def run_role(b: Builder, op: Role) -> Run:
    b.role_depth += 1
    body = b.body(op.body)
    b.role_depth -= 1
    share = op.warps // op.instances

    def run(fr: Frame) -> Flow:
        agent = fr.agent
        if agent.last_warp < op.first or agent.first_warp >= op.first + op.warps:
            return
        instance = max(agent.first_warp - op.first, 0) // share
        if op.var is not None:
            fr.vars[op.var.name] = op.var.dtype.numpy.type(instance)
        if agent.partition.warps < share and not agent.joint:
            yield from together(fr, op, body, op.first + instance * share, share)
        else:
            yield from body(fr)

    return run


@meaning(Hint)
def run_hint(fr: Frame) -> None:
    """Advice changes no result."""


# ── maps ────────────────────────────────────────────────────────────────────────────────────


@tile_meaning(Map)
def run_map(b: Builder, op: Map) -> Run:
    evaluate = b.evaluate
    if b.in_map:  # inside of another one: iterations are independent, so one after another
        inner = op.body
        for var, extent in zip(op.vars[::-1], op.extents[::-1], strict=True):
            inner = (For(var, const(0), extent, inner, loc=op.loc),)
        return b.body(inner)
    extents = [evaluate(e) for e in op.extents]
    inner_vars = {v for each in walk_ops(op) for v in bound(each)}
    outer = sorted(v.name for v in read_variables(op.body) - inner_vars)
    own = {each.buffer.name for each in walk_ops(op.body, Alloc, View)}
    locals_ = {
        (buf.name, buf in written_buffers(each))
        for each in walk_ops(op.body)
        for buf in named_buffers(each)
        if buf.is_local and buf.name not in own
    }
    private = sorted(name for name, written in locals_ if written)
    read_only = sorted({name for name, _ in locals_}.difference(private))
    b.in_map = True
    body = b.body(op.body) if op.atom is None else async_map(b, op)
    b.in_map = False
    numbers = [(v.name, v.dtype.numpy) for v in op.vars]

    def run(fr: Frame) -> None:
        shape = tuple(uniform_int(fr, e(fr), "an extent") for e in extents)
        if any(n <= 0 for n in shape):
            return
        _check_collective(fr, outer, read_only)
        saved = fr.lanes, fr.grid, fr.mask, fr.in_map, fr.layout
        fr.lanes, fr.grid, fr.mask, fr.in_map, fr.layout = (
            shape, open_grid(shape), None, True, op.layout
        )  # fmt: skip
        for (name, number), values in zip(numbers, fr.grid, strict=True):
            fr.vars[name] = values.astype(number, copy=False)
        kept = {name: fr.bufs[name] for name in private}
        for name, memory in kept.items():
            fr.bufs[name] = _private_copy(fr, memory)
        for watch in fr.watches:
            watch.enter_map(fr)
        for _ in body(fr):  # it waits for nothing
            pass
        for watch in fr.watches:
            watch.leave_map(fr)
        fr.lanes, fr.grid, fr.mask, fr.in_map, fr.layout = saved
        for name, memory in kept.items():
            fr.bufs[name] = memory
            make_poison(memory, (...,), memory.dtype)

    return run


def _check_collective(fr: Frame, variables: list[str], locals_: list[str]) -> None:
    if fr.is_partial:
        raise RunError(
            "a tile operation stands under a guard that differs between threads",
            fix="make the guard uniform, or move it inside the loop",
        )  # fmt: skip
    for name in variables:
        value = fr.vars.get(name)
        if value is not None and value.ndim:
            raise RunError(
                f"{name} differs between threads, so an elementwise loop cannot use it",
                fix="use the loop's own variables, or thread-level loops",
            )
    for name in locals_:
        if fr.bufs[name].lead:
            raise RunError(
                f"{name} differs between threads, so an elementwise loop cannot read it",
            )


def _private_copy(fr: Frame, memory: Memory) -> Memory:
    """Each iteration's own copy of a local that was allocated outside the map."""
    track = memory.storage.valid is not None
    fresh = allocate(memory.buffer, memory.shape, lead=fr.lanes, track=track)
    if not memory.lead:
        fresh.copy(memory)
    return fresh


# ── allocation ───────────────────────────────────────────────────────────────────────────────


@meaning(Alloc)
def run_alloc(b: Builder, op: Alloc) -> Run:
    buffer, family = op.buffer, b.family(op.buffer)
    shape = [b.evaluate(s) for s in buffer.shape]
    (init,) = b.operands(op.init)
    to = None if op.init is None else cast_fn(op.init.dtype, buffer.dtype)
    track, in_role = b.evaluate.sanitize, b.role_depth > 0

    def make(fr: Frame, lead: tuple[int, ...] = ()) -> Memory:
        found = allocate(
            buffer,
            tuple(uniform_int(fr, s(fr), "a size") for s in shape),
            unit=family.unit,
            packed=family.packed,
            lead=lead,
            track=track,
        )
        found.storage.watched = not b.threads or buffer.name in b.registers
        return found

    def run(fr: Frame) -> None:
        block, registers = fr.agent.block, buffer.is_fragment
        # a fragment outside of roles is a tile over all threads of the block, whoever uses it
        if registers and (in_role or len(block.agents) == 1):
            found = make(fr)
            found.storage.touched = fr.agent.tick()
        elif buffer.is_local:
            found = make(fr, fr.lanes if fr.in_map or family.viewed else ())
        else:
            found = block.own_memory(buffer, lambda: make(fr))
        fr.bufs[buffer.name] = found
        if init is not None and to is not None:
            scatter(fr, found, (), to(init(fr)))
            if track and isinstance(op.init, Const):
                blank(found)

    return run


@meaning(View)
def run_view(builder: Builder, op: View, offset: Eval, fr: Frame) -> None:
    name = op.buffer.name
    if builder.threads and op.buffer.is_shared:
        fr.bufs[name] = fr.agent.block.existing(name)
        return
    sizes = (uniform_int(fr, builder.evaluate(s)(fr), "a size") for s in op.buffer.shape)
    at = uniform_int(fr, offset(fr), "a view's offset")
    fr.bufs[name] = open_view(op.buffer, tuple(sizes), fr.bufs[op.source.name], at)
