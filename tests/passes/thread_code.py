"""Running thread code on given registers: the interpreter's thread machine, with loops put in that
fill registers and shared memory from arrays at the start and bring them out at the end."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tilewright import machine
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.expr import Load, Var, compare, const
from tilewright.ir.op import (
    Alloc,
    Body,
    For,
    If,
    Intrinsic,
    Kernel,
    Let,
    Op,
    Program,
    Role,
    Store,
    Sync,
    walk_ops,
)
from tilewright.ir.rewrite import rebuild


class Ran:
    """What a run left, as float64: registers [thread, register], shared memory [element] (of
    several blocks, the block in front) and tensors by name; `vectors` are the lengths of the
    program's vector accesses."""

    def __init__(self, program: Program, memory: dict[str, np.ndarray]) -> None:
        self.memory = memory
        found = [op for k in program.kernels for op in walk_ops(k) if isinstance(op, Intrinsic)]
        self.vectors = {
            int(word.removeprefix("count="))
            for op in found
            if op.name in ("load_shared", "store_shared", "load_global", "store_global")
            for word in op.text.split()
            if word.startswith("count=")
        }


def run_code(program: Program, given: dict[str, Any], *, blocks: int = 1, **values: int) -> Ran:
    """Run the one kernel of `program` (stage THREAD) in `blocks` blocks. `given` fills registers
    ([thread, register], alike in all blocks), shared memory or tensors; `values` names the block
    when there is one, and other variables."""
    kernel = program.kernels[0]
    threads = int(np.prod(kernel.threads))
    (block,), (thread,) = kernel.blocks, kernel.thread_vars
    tensors: dict[str, Buffer] = {t.name: t for t in program.tensors}
    outer = Var("block_index")
    params: list[Buffer] = []
    args: dict[str, np.ndarray] = {}

    def tensor(name: str, like: Buffer, lead: tuple[int, ...]) -> Buffer:
        size = int(like.shape[0]) if like.shape else 1
        found = Buffer(name, tuple(map(const, (*lead, size))), like.dtype, Space.GLOBAL)
        params.append(found)
        args[name] = np.zeros((*lead, size), like.dtype.numpy)
        return found

    def loop(like: Buffer, to: Buffer, of: Buffer, lead: tuple[Any, ...], back: bool) -> Op:
        i = Var(f"{like.name}_i{int(back)}")
        there, here = (*lead, i), (i,)
        put, take = (there, here) if back else (here, there)
        return For(i, const(0), like.shape[0], (Store(to, put, Load(of, take, None)),))

    def around(body: Body) -> Body:
        """`body` with loops behind its allocations and at its end."""
        new: list[Op] = []
        ends: list[Op] = []
        for op in body:
            new.append(rebuild(op, body=around(op.body)) if isinstance(op, Role) else op)
            if not isinstance(op, Alloc) or op.buffer.rank != 1:
                continue
            like = op.buffer
            if like.space not in (Space.LOCAL, Space.SHARED):
                continue
            shared = like.space is Space.SHARED
            lead = (blocks,) if shared else (blocks, threads)
            at = (outer,) if shared else (outer, thread)
            into, out = (tensor(f"{like.name}_{way}", like, lead) for way in ("in", "out"))
            if like.name in given:
                args[into.name][...] = np.asarray(given[like.name], float)
                fill = loop(like, like, into, at, False)
                new += _once(thread, fill) if shared else (fill,)
            back = loop(like, out, like, at, True)
            ends += _once(thread, back) if shared else (back,)
        return (*new, *ends)

    body = around(kernel.body)
    names: Body = (Let(block, const(values.pop(block.name)) if block.name in values else outer),)
    new = Kernel(
        kernel.name, (outer,), (const(blocks),), kernel.thread_vars, kernel.threads,
        (*names, *body),
        kernel.cluster, kernel.rank,
    )  # fmt: skip
    for name, t in tensors.items():
        shape = tuple(int(s) for s in t.shape)
        array = np.asarray(given.get(name, np.full(shape, np.nan))).reshape(shape)
        args[name] = array.astype(t.dtype.numpy)
    code = replace(program, params=(*program.params, *params), kernels=(new,), dims=())
    machine.run_threads(code, {**args, **values})
    left = {n.removesuffix("_out"): a for n, a in args.items() if n.endswith("_out")}
    if blocks == 1:
        left = {n: a[0] for n, a in left.items()}
    left.update({n: args[n] for n in tensors})
    return Ran(program, {n: a.astype(float) for n, a in left.items()})


def _once(thread: Var, op: Op) -> Body:
    """`op` by one thread, between barriers of the block."""
    return Sync("block"), If(compare("==", thread, 0), (op,)), Sync("block")
