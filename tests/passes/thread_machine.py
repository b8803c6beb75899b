"""Runs straight thread code for all threads of one role instance at once, in NumPy: registers are
arrays [thread, element], shared memory an array per buffer. Enough to check that lowered maps,
reductions, copies and products touch the right elements; not a model of time. Matrix instructions
follow `register_maps`, not the compiler's fragments."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from tests.passes import register_maps as documented
from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import Bin, Call, Cast, Cmp, Const, Expr, Load, Select, Var
from tilewright.ir.op import (
    Alloc,
    Arrive,
    BarrierInit,
    Commit,
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
    WaitGroup,
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
        self.places: dict[str, tuple[int, Buffer]] = {}  # of buffers in shared memory
        self.maps: dict[str, tuple[Buffer, int, tuple[int, ...]]] = {}

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

    def do_hint(self, op: Hint) -> None:
        if op.name == "place":
            self.places[op.buffer.name] = (int(op.detail[0]), op.buffer)
        elif op.name == "tensor_map":
            name, swizzle, *box = op.detail
            self.maps[name] = (op.buffer, swizzle, tuple(box))

    def do_sync(self, op: Sync) -> None: ...

    def do_fence(self, op: Fence) -> None: ...

    def do_arrive(self, op: Arrive) -> None: ...

    def do_wait(self, op: Wait) -> None: ...

    def do_commit(self, op: Commit) -> None: ...

    def do_waitgroup(self, op: WaitGroup) -> None: ...

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

    def run_prefetch_map(self, op: Intrinsic) -> None: ...

    def run_pin(self, op: Intrinsic) -> None: ...

    def run_bulk_load(self, op: Intrinsic) -> None:
        """A box, row by row from an address on, its 16-byte units swizzled by the line."""
        where, _, *spot = op.args
        tensor, swizzle, box = self.maps[fields(op.text)["map"]]
        size = tensor.dtype.bits // 8
        start = self.address(where)
        corner = [int(self.value(c)) for c in reversed(spot)]
        source = self.memory[tensor.name].reshape([int(e) for e in tensor.shape])
        place = [c + i for c, i in zip(corner, np.indices(box), strict=True)]
        sizes = np.array(source.shape).reshape(-1, *[1] * len(box))
        inside = ((np.array(place) >= 0) & (np.array(place) < sizes)).all(axis=0)
        clipped = tuple(np.clip(p, 0, e - 1) for p, e in zip(place, source.shape, strict=True))
        value = np.where(inside, source[clipped], 0).reshape(-1)
        name, index = self.cells(documented.swizzled(start + np.arange(value.size) * size, swizzle))
        self.memory[name][index] = value

    def run_ldmatrix(self, op: Intrinsic) -> None:
        to, of = op.args
        first = int(self.value(to.starts[0]))
        for i, at in enumerate(self.matrix_places(of, op.text)):
            self.put(to.buffer, np.int64(first + i), self.memory[of.buffer.name][at])

    def run_stmatrix(self, op: Intrinsic) -> None:
        to, *given = op.args
        for i, at in enumerate(self.matrix_places(to, op.text)):
            if fields(op.text)["from"] == "words":
                (source,) = given
                value = self.element(source.buffer, self.value(source.starts[0]) + i)
            else:
                value = self.value(given[i // 2].args[i % 2])
            self.put(to.buffer, at, value)

    def matrix_places(self, memory: Region, text: str) -> list[np.ndarray]:
        """For each element of a thread's registers, where it lies in `memory`."""
        words = fields(text)
        trans, bits = words["trans"] == "1", memory.buffer.dtype.bits
        assert bits == 16 or not trans
        where = np.broadcast_to(self.value(memory.starts[0]), self.threads)
        assert not (where * bits % 128).any(), "a row is not aligned to 16 bytes"
        places = []
        for matrix, i in np.ndindex(int(words["count"]), 32 // bits):
            at = np.zeros(self.threads, np.int64)
            for t in range(self.threads):
                row, column = documented.matrix(t % 32, i, 32 // bits, trans)
                at[t] = where[t // 32 * 32 + documented.matrix_row_lane(matrix, row)] + column
            places.append(at)
        return places

    def run_mma(self, op: Intrinsic) -> None:
        c, a, b = op.args
        k = documented.K[fields(op.text)["a"]]
        for first in range(0, self.threads, 32):
            lanes = slice(first, first + 32)
            left = self.operand(a, lanes, (16, k), documented.MMA_A[k])
            right = self.operand(b, lanes, (k, 8), documented.MMA_B[k])
            self.accumulate(c, lanes, left @ right, documented.mma_c, True)

    def run_descriptor(self, op: Intrinsic) -> None:
        words = {k: int(v) for k, v in fields(op.text).items()}
        start = self.address(op.args[0])
        assert start % 16 == 0
        encoded = (
            (start & 0x3FFFF) >> 4
            | words["leading"] << 16
            | words["stride"] << 32
            | words["swizzle"] << 62
        )
        self.vars[op.result.name] = np.uint64(encoded)

    def run_wgmma(self, op: Intrinsic) -> None:
        assert self.threads == 128
        words = fields(op.text)
        n, k = int(words["n"]), documented.K[words["a"]]
        c, left, right, keep = op.args
        lanes = slice(0, 128)
        b = self.shared_operand(right, n, k, words["tb"] == "1")
        if words["from"] == "rs":
            a = self.operand(left, lanes, (64, k), documented.WGMMA_A[k])
        else:
            a = self.shared_operand(left, 64, k, words["ta"] == "1")
        self.accumulate(c, lanes, a @ b.T, documented.wgmma_d, bool(self.value(keep)))

    def shared_operand(self, descriptor: Expr, mn: int, k: int, mn_major: bool) -> np.ndarray:
        """The matrix [M or N, K] that a descriptor names."""
        code = int(self.value(descriptor))
        size = 32 // k  # k of an instruction spans 32 bytes
        i, j = np.indices((mn, k))
        name, index = self.cells(documented.descriptor_address(code, i, j, size, mn_major))
        return self.memory[name][index]

    def operand(self, region: Region, lanes: slice, shape: tuple[int, int], where: Any) -> Any:
        """The matrix that registers of `lanes` hold by the map `where`."""
        tile = np.full(shape, np.nan)
        array = self.register_span(region, lanes)
        tile[register_places(where, *array.shape)] = array
        return tile

    def accumulate(self, c: Region, lanes: slice, tile: Any, where: Any, keep: bool) -> None:
        array = self.register_span(c, lanes)
        old = array if keep else 0
        array[:] = old + tile[register_places(where, *array.shape)]

    def register_span(self, region: Region, lanes: slice) -> np.ndarray:
        first = int(self.value(region.starts[0]))
        return self.memory[region.buffer.name][lanes, first : first + int(region.extents[0])]

    def address(self, region: Region) -> int:
        place, buffer = self.places[region.buffer.name]
        (start,) = np.unique(np.broadcast_to(self.value(region.starts[0]), self.threads))
        return place + int(start) * buffer.dtype.bits // 8

    def cells(self, address: np.ndarray) -> tuple[str, np.ndarray]:
        """The one buffer that shared addresses lie in, and which of its elements."""
        for name, (place, buffer) in self.places.items():
            size = buffer.dtype.bits // 8
            at = address - place
            if buffer.space is Space.SHARED and 0 <= at.min() < int(buffer.shape[0]) * size:
                assert at.max() < int(buffer.shape[0]) * size and not (at % size).any()
                return name, at // size
        raise AssertionError(f"nothing lies at {address.min()}")

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


@cache
def register_places(where: Any, threads: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns [thread, register] of a documented map."""
    found = np.array([[where(t, i) for i in range(count)] for t in range(threads)])
    return found[:, :, 0], found[:, :, 1]
