"""Runs straight thread code for all threads of one role instance at once, in NumPy: registers are
arrays [thread, element], shared memory an array per buffer. Enough to check that lowered maps,
reductions and copies touch the right elements; not a model of time."""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Bin, Call, Cast, Cmp, Const, Expr, Load, Select, Var
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Fence,
    For,
    Hint,
    If,
    Intrinsic,
    Let,
    Program,
    Role,
    Store,
    Sync,
    Wait,
)
from tilewright.targets.cuda.sm90a import fields_of as fields

_OPS = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide, "//": np.floor_divide,
    "%": np.remainder, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor,
    ">>": np.right_shift, "<<": np.left_shift, "<": np.less, "<=": np.less_equal,
    "==": np.equal, "!=": np.not_equal, ">": np.greater, ">=": np.greater_equal,
    "and": np.logical_and, "or": np.logical_or, "min": np.fmin, "max": np.fmax,
}  # fmt: skip
_CALLS = {
    "exp2": np.exp2, "__exp2": np.exp2, "abs": np.abs, "neg": np.negative, "not": np.logical_not,
    "max_nan": np.maximum, "min_nan": np.minimum,
}  # fmt: skip


class Machine:
    """`memory` holds arrays of registers [threads, n] and of shared and global elements [n]."""

    def __init__(self, threads: int, **values: Any) -> None:
        self.threads = threads
        self.vars: dict[str, Any] = {"tx": np.arange(threads), **values}
        self.memory: dict[str, np.ndarray] = {}
        self.active = np.ones(threads, bool)
        self.vectors: list[int] = []  # elements of each vector access
        self.sent: dict[int, int] = {}  # bytes stored into each peer

    def run(self, program: Program) -> Machine:
        self.body(program.kernels[0].body)
        return self

    def registers(self, name: str, values: np.ndarray) -> None:
        self.memory[name] = values.copy()

    def body(self, body: tuple[Any, ...]) -> None:
        for op in body:
            getattr(self, f"do_{type(op).__name__.lower()}")(op)

    # ── ops ──────────────────────────────────────────────────────────────────────────────────

    def do_role(self, op: Role) -> None:
        self.body(op.body)

    def do_hint(self, op: Hint) -> None: ...

    def do_sync(self, op: Sync) -> None: ...

    def do_fence(self, op: Fence) -> None: ...

    def do_arrive(self, op: Arrive) -> None: ...

    def do_wait(self, op: Wait) -> None: ...

    def do_barrierinit(self, op: BarrierInit) -> None: ...

    def do_alloc(self, op: Alloc) -> None:
        if op.buffer.name in self.memory or op.buffer.space is Space.BARRIER:
            return
        count = int(op.buffer.shape[0]) if op.buffer.shape else 1
        shape = (self.threads, count) if op.buffer.space is Space.LOCAL else (count,)
        self.memory[op.buffer.name] = np.full(shape, np.nan)

    def do_let(self, op: Let) -> None:
        self.vars[op.var.name] = self.value(op.value)

    def do_for(self, op: For) -> None:
        for i in range(int(op.start), int(op.stop), int(op.step)):
            self.vars[op.var.name] = np.int64(i)
            self.body(op.body)

    def do_if(self, op: If) -> None:
        cond = np.broadcast_to(self.value(op.cond), self.threads)
        outer = self.active
        self.active = outer & cond
        self.body(op.then)
        self.active = outer & ~cond
        self.body(op.orelse)
        self.active = outer

    def do_store(self, op: Store) -> None:
        self.put(op.buffer, self.flat(op.buffer, op.indices), self.value(op.value))

    def do_intrinsic(self, op: Intrinsic) -> None:
        getattr(self, f"run_{op.name}")(op)

    def run_warp_index(self, op: Intrinsic) -> None:
        self.vars[op.result.name] = np.arange(self.threads) // 32

    def run_elect(self, op: Intrinsic) -> None:
        self.vars[op.result.name] = np.arange(self.threads) == 0

    def run_shfl_xor(self, op: Intrinsic) -> None:
        value = np.broadcast_to(self.value(op.args[0]), self.threads)
        lane = int(op.args[1].value)
        assert 0 < lane < 32
        self.vars[op.result.name] = value[np.arange(self.threads) ^ lane]

    def run_store_packed(self, op: Intrinsic) -> None:
        where, packed = op.args
        start = self.value(where.starts[0])
        for i, half in enumerate(packed.args):
            self.put(where.buffer, start + i, self.value(half))

    def run_load_shared(self, op: Intrinsic) -> None:
        self.move(*op.args, op.text)

    def run_store_shared(self, op: Intrinsic) -> None:
        self.move(*op.args, op.text)

    run_load_global = run_load_shared
    run_store_global = run_store_shared

    def move(self, to: Region, of: Region, text: str) -> None:
        """A vector: consecutive elements, aligned to its size in memory."""
        count = int(fields(text)["count"])
        first, start = (self.flat(r.buffer, r.starts) for r in (to, of))
        for region, at in ((to, first), (of, start)):
            if region.buffer.space is not Space.LOCAL:
                lanes = np.broadcast_to(at, self.threads)[self.active]
                assert not (lanes % count).any(), "a vector is not aligned"
        self.vectors.append(count)
        values = [self.element(of.buffer, start + i) for i in range(count)]
        for i, value in enumerate(values):
            self.put(to.buffer, first + i, value)

    def run_store_remote(self, op: Intrinsic) -> None:
        to, of, barrier = op.args
        words = int(fields(op.text)["words"])
        peer = int(self.value(to.cta))
        assert barrier.cta is to.cta
        self.sent[peer] = self.sent.get(peer, 0) + 4 * words * int(self.active.sum())
        count = int(to.extents[0])
        first, start = self.value(to.starts[0]), self.value(of.starts[0])
        for i in range(count):
            self.put(to.buffer, first + i, self.element(of.buffer, start + i))

    def run_ldmatrix(self, op: Intrinsic) -> None:
        """Lane 8q + r names row r of matrix q; lane 4r + c receives columns 2c, 2c + 1 of row r."""
        to, of = op.args
        where = np.broadcast_to(self.value(of.starts[0]), self.threads)
        assert not (where % 8).any()
        first = int(self.value(to.starts[0]))
        thread = np.arange(self.threads)
        for q in range(4):
            row = where[thread // 32 * 32 + q * 8 + thread % 32 // 4]
            for i in range(2):
                value = self.memory[of.buffer.name][row + thread % 4 * 2 + i]
                self.put(to.buffer, np.int64(first + 2 * q + i), value)

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def put(self, buffer: Buffer, index: Any, value: Any) -> None:
        array = self.memory[buffer.name]
        lanes = np.flatnonzero(self.active)
        index = np.broadcast_to(index, self.threads)[lanes]
        value = np.broadcast_to(value, self.threads)[lanes]
        assert (index >= 0).all() and (index < array.shape[-1]).all()
        if buffer.space is Space.LOCAL:
            array[lanes, index] = value
            return
        assert len(np.unique(index)) == len(index), "two threads store to one element"
        array[index] = value

    def flat(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Any:
        total: Any = np.int64(0)
        for size, index in zip(buffer.shape, indices, strict=True):
            total = total * int(size) + self.value(index)
        return total

    def value(self, e: Expr) -> Any:
        match e:
            case Const():
                return e.value
            case Var():
                return self.vars[e.name]
            case Bin() | Cmp():
                return _OPS[e.op](self.value(e.a), self.value(e.b))
            case Select():
                return np.where(*(self.value(c) for c in e.children))
            case Cast():
                return self.value(e.a)
            case Call():
                return _CALLS[e.name](*(self.value(a) for a in e.args))
            case Load():
                return self.element(e.buffer, self.flat(e.buffer, e.indices))
        raise AssertionError(e)

    def element(self, buffer: Buffer, at: Any) -> Any:
        array = self.memory[buffer.name]
        index = np.broadcast_to(at, self.threads)
        if buffer.space is Space.LOCAL:
            if buffer.shape:
                assert len(np.unique(index)) == 1, "a register index differs"
            return array[np.arange(self.threads), index]
        return array[np.clip(index, 0, len(array) - 1)]
