"""Operations: frozen records whose fields are marked (`marks`), so that printing, parsing,
walking, rewriting and effects derive from the marks.

**Meaning.** A kernel's body runs top to bottom once per block; blocks are unordered. Tile ops
(`Copy`, `Fill`, `Gemm`, `Reduce`, `Scan`, `Relayout`, `Map`) are collective: one execution by
all threads of the block, or of the role instance they stand in. Ops that mention a thread
variable run once per thread. Ops are synchronous unless their atom says otherwise (`atoms.py`);
an asynchronous op's destination must not be touched, nor its source overwritten, before the
matching wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from math import prod
from typing import Any

from tilewright.ir.buffer import AnyLayout, Buffer, Load, Region, long_dims
from tilewright.ir.expr import FALSE, Expr, Var, const, number_in, substitute
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.ir.marks import *
from tilewright.ir.warps import WARP
from tilewright.support.errors import Loc

# ── structure ────────────────────────────────────────────────────────────────────────────────


class Kernel(Op):
    """One launch: a grid of blocks, each of `threads` threads; `rank` is the block's place in
    its cluster. Unused index variables are still declared. Grid axis 0 is the fastest.
    `ping_pong`: how many warpgroups are to have tiles of their own, with this kernel's code."""

    syntax = "kernel {name} grid {blocks} in {grid} threads {thread_vars} in {threads} {body}"
    name: str = attr()
    blocks: tuple[Var, ...] = binds()
    grid: tuple[Expr, ...] = arg()
    thread_vars: tuple[Var, ...] = binds()
    threads: tuple[int, ...] = attr()
    body: Body = body()
    cluster: tuple[int, ...] = attr(default=())
    rank: Var | None = binds(default=None)
    ping_pong: int = attr(default=1)

    @property
    def thread_count(self) -> int:
        """Threads of a block."""
        return prod(self.threads)

    @property
    def warps(self) -> int:
        """Warps of a block; the last one may not be whole."""
        return -(-self.thread_count // WARP)

    @property
    def thread(self) -> Expr:
        """The thread's number in its block."""
        return number_in(self.thread_vars, self.threads)

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster; 1 where there are none."""
        return prod(self.cluster)


class For(Op):
    """`body` for var = start, start+step, … < stop. Every kind means the same sequential loop.

    `kind`: serial, unroll, vectorized, pipelined (`stages` slots, -1 where nobody said how many),
    persistent (over tiles) or cluster (over what will be the blocks of one). `order` and `stage`,
    one entry per body statement, pin a pipelined loop's schedule. `unroll` iterations are written
    out at a time.
    """

    syntax = "for {var} in {start} .. {stop} {body}"
    var: Var = binds()
    start: Expr = arg()
    stop: Expr = arg()
    body: Body = body()
    step: Expr = arg(default=const(1))
    kind: str = attr(default="serial")
    stages: int = attr(default=0)
    order: tuple[int, ...] | None = attr(default=None)
    stage: tuple[int, ...] | None = attr(default=None)
    unroll: int = attr(default=1)


class While(Op):
    """`cond`, loads included, is evaluated anew before every iteration."""

    syntax = "while {cond} {body}"
    cond: Expr = arg()
    body: Body = body()


class If(Op):
    """A guard that differs between threads masks thread-level ops; tile ops need a uniform one."""

    syntax = "if {cond} {then} else {orelse}"
    cond: Expr = arg()
    then: Body = body()
    orelse: Body = body(default=())


class Break(Op):
    """Leaves the innermost `For` or `While`."""

    syntax = "break"


class Continue(Op):
    """Goes on with the next iteration of the innermost `For` or `While`."""

    syntax = "continue"


class Let(Op):
    """Names a value, loads taken now, for the rest of the enclosing body."""

    syntax = "let {var} = {value}"
    var: Var = binds()
    value: Expr = arg()


class Role(Op):
    """Only warps `first` … `first + warps - 1` run `body`; others pass over it.

    With `instances` > 1 the warps are split evenly and consecutively into that many independent
    instances, each with its own scalars and fragments, numbered by `var`. `registers` per thread
    are moved on entry. In a kernel with roles, tile ops stand inside roles only; ops outside run
    in every warp (`BarrierInit` in warp 0 only). `derived`: a compiler's, while passes
    still settle it: what stands outside is other threads' code, or the roles' threads are not in
    order yet.
    """

    syntax = "role {name} warps {first} + {warps} {body}"
    name: str = attr()
    first: int = attr()
    warps: int = attr()
    body: Body = body()
    instances: int = attr(default=1)
    var: Var | None = binds(default=None)
    registers: int | None = attr(default=None)
    derived: bool = attr(default=False)


class Map(Op):
    """An elementwise map (`T.Parallel`): `body` for every point of the box, in no order.

    Iterations are independent: none writes what another reads or writes. `layout` is the map's
    thread-value layout once chosen. `atom` names the instruction of one that only moves elements of
    a tensor to a shared tile (`ir.gather`): by `cp_async` they belong to the group that the next
    `Commit` closes.
    """

    syntax = "map {vars} in {extents} {body}"
    vars: tuple[Var, ...] = binds()
    extents: tuple[Expr, ...] = arg()
    body: Body = body()
    layout: AnyLayout | None = attr(default=None)
    atom: str | None = attr(default=None)


# ── memory ───────────────────────────────────────────────────────────────────────────────────


class Alloc(Op):
    """Brings `buffer` into being, uninitialised, for the rest of the enclosing body.

    Shared memory and barriers are one per block however often the op runs. `init`: value of a
    scalar variable. `place`: where shared memory begins, in bytes, once that is chosen.
    `multibuffer`: the slots of a ring that threads fill are free wherever they are written.
    """

    syntax = "alloc {buffer}"
    buffer: Buffer = arg()
    init: Expr | None = arg(default=None)
    place: int | None = attr(default=None)
    multibuffer: bool = attr(default=False)


class View(Op):
    """`buffer` is the memory of `source` under another shape or type, both in row-major order,
    starting `offset` elements (of `buffer`'s type) in."""

    syntax = "view {buffer} of {source}"
    buffer: Buffer = arg()
    source: Buffer = arg()
    offset: Expr = arg(default=const(0))


class Copy(Op):
    """dst = src, cast when types differ, shapes equal after unit extents drop.

    Outside a global tensor reads zero and stores nothing. `atom` names the instruction once
    chosen. A bulk load completes on `barrier` (its bytes count there); a bulk store or `cp_async`
    belongs to the group that the next `Commit` closes. `multicast` is a bit mask of cluster
    ranks: the same place in each receives the tile, and the same `barrier` there its bytes.
    """

    syntax = "copy {src} -> {dst}"
    src: Region = arg(reads=True)
    dst: Region = arg(writes=True)
    barrier: Region | None = arg(default=None)
    multicast: Expr | None = arg(default=None)
    atom: str | None = attr(default=None)
    cache: str | None = attr(default=None)
    prefer: str | None = attr(default=None)
    reduce: str | None = attr(default=None)


class Store(Op):
    """buffer[indices] = value; all loads of indices and value happen first."""

    syntax = "{buffer}{indices} = {value}"
    buffer: Buffer = arg()
    indices: tuple[Expr, ...] = arg()
    value: Expr = arg()


class Atomic(Op):
    """dst = dst op value in one step, for one element or a tile (`src` then gives the values).

    op: add max min and or xor exch load store. `result` names the old value (elements only).
    """

    syntax = "atomic {op} {dst}"
    op: str = attr()
    dst: Region = arg(reads=True, writes=True)
    value: Expr | None = arg(default=None)
    src: Region | None = arg(default=None, reads=True)
    result: Var | None = binds(default=None)
    order: str = attr(default="relaxed")


class Fill(Op):
    syntax = "fill {dst} = {value}"
    dst: Region = arg(writes=True)
    value: Expr = arg()


# ── compute ──────────────────────────────────────────────────────────────────────────────────


class Gemm(Op):
    """c = (0 if clear else c) + op(a) · op(b), products accumulated in c's type.

    a is M×K (K×M when `transpose_a`), b is K×N (N×K when `transpose_b`), c is M×N (N×M when
    `transpose_c`). `policy` splits the tile over warps: square, full_row, full_col. `meta` holds
    2:4 sparsity indices of a.
    """

    syntax = "gemm {a}, {b} -> {c}"
    a: Region = arg(reads=True)
    b: Region = arg(reads=True)
    c: Region = arg(reads=True, writes=True)
    clear: Expr = arg(default=FALSE)
    transpose_a: bool = attr(default=False)
    transpose_b: bool = attr(default=False)
    policy: str = attr(default="square")
    precision: str = attr(default="ieee")
    atom: str | None = attr(default=None)
    meta: Region | None = arg(default=None, reads=True)
    transpose_c: bool = attr(default=False)


class Reduce(Op):
    """dst = op over dimension `dim` of src's tile; folds into dst when not `clear`.

    `dim` counts the dimensions that are not 1, or all of them: `axis` is the reading that gives
    dst's shape.

    op: sum prod max min abssum absmax and or xor any all. NaN is kept; max_num, min_num, absmax_num
    skip it, and give what an empty reduction gives where there is nothing else. dst may keep the
    reduced dimension as 1. `masked`: zeros that src has from outside a tensor are meant.
    """

    syntax = "reduce {op} {src} -> {dst} dim {dim}"
    op: str = attr()
    src: Region = arg(reads=True)
    dst: Region = arg(reads=True, writes=True)
    dim: int = attr()
    clear: bool = attr(default=True)
    masked: bool = attr(default=False)

    @property
    def axis(self) -> int:
        """The dimension of src's extents that is reduced."""
        extents, readings = self.src.extents, _readings(self.src, self.dim)
        for axis in readings:
            left = tuple(extents[d] for d in long_dims(extents) if d != axis)
            if left == self.dst.tile:
                return axis
        return readings[0]


def _readings(region: Region, dim: int) -> tuple[int, ...]:
    """The dimensions of a region that `dim` may mean: without those of 1 counted, or with them."""
    return (*long_dims(region.extents)[dim : dim + 1], dim)


@dataclass(frozen=True)
class Operator:
    """An associative function of two elements, or of two tuples of k elements: `result` of `vars`,
    those of the left tuple and then those of the right one."""

    vars: tuple[Var, ...]
    result: tuple[Expr, ...]

    def __call__(self, *elements: Expr) -> tuple[Expr, ...]:
        values = dict(zip(self.vars, elements, strict=True))
        return tuple(substitute(e, values) for e in self.result)


class Scan(Op):
    """Inclusive prefix fold along `dim`, from the end when `reverse`.

    op: sum prod max min, or `by` the function `by`. That of tuples scans `more` together with src,
    into `into` together with dst. `totals` are the folds of whole lines, one tile for each source.
    """

    syntax = "scan {op} {src} -> {dst} dim {dim}"
    op: str = attr()
    src: Region = arg(reads=True)
    dst: Region = arg(writes=True)
    dim: int = attr()
    reverse: bool = attr(default=False)
    by: Operator | None = attr(default=None)
    more: tuple[Region, ...] = arg(default=(), reads=True)
    into: tuple[Region, ...] = arg(default=(), writes=True)
    totals: tuple[Region, ...] = arg(default=(), writes=True)

    @property
    def axis(self) -> int:
        """The dimension of src's extents along which it runs."""
        return _readings(self.src, self.dim)[0]

    @property
    def sources(self) -> tuple[Region, ...]:
        return (self.src, *self.more)

    @property
    def results(self) -> tuple[Region, ...]:
        return (self.dst, *self.into)


class Relayout(Op):
    """dst = src between two fragments of one shape that are spread differently over threads."""

    syntax = "relayout {src} -> {dst}"
    src: Region = arg(reads=True)
    dst: Region = arg(writes=True)
    via: str | None = attr(default=None)


# ── synchronisation ──────────────────────────────────────────────────────────────────────────


class BarrierInit(Op):
    """Each barrier of the region completes a phase after `count` arrivals and all its bytes."""

    syntax = "barrier_init {barrier} count {count}"
    barrier: Region = arg()
    count: Expr = arg()


class Arrive(Op):
    """Arrive `count` times (once per role instance, not per thread), first expecting `bytes`
    more from bulk copies. `barrier.cta` may be another block of the cluster. by: `warps` where
    the `count` warps of the instance arrive each for itself, without meeting."""

    syntax = "arrive {barrier}"
    barrier: Region = arg()
    bytes: Expr | None = arg(default=None)
    count: Expr = arg(default=const(1))
    by: str = attr(default="instance")


class Wait(Op):
    """Until the barrier's phase of parity `phase` has completed: a fresh barrier passes parity 1
    and blocks on 0."""

    syntax = "wait {barrier} phase {phase}"
    barrier: Region = arg()
    phase: Expr = arg()


class Commit(Op):
    """Closes the group of asynchronous ops issued on `unit` (wgmma, bulk, cp_async) so far."""

    syntax = "commit {unit}"
    unit: str = attr()


class WaitGroup(Op):
    """Until at most `pending` of this instance's groups on `unit` are open.

    `read` (bulk stores): only their reading of shared memory has to be over.
    """

    syntax = "wait_group {unit} pending {pending}"
    unit: str = attr()
    pending: int = attr()
    read: bool = attr(default=False)


class Fence(Op):
    """`proxy_async`: ordinary writes to shared memory become visible to bulk copies and matrix
    instructions. `wgmma`: registers touched by ordinary code may be used by matrix instructions.
    `barrier_init`: barriers become visible to the cluster and to bulk copies. `cluster`, `gpu`:
    memory order at that scope; `cluster_shared`: at the scope of the cluster, of what this thread
    did before in its own block's shared memory."""

    syntax = "fence {kind}"
    kind: str = attr()


class Sync(Op):
    """A barrier of threads. scope: block, warp, cluster, or named (barrier `id` of `threads`
    threads; `arrive` does not wait). order: `shared` where peers of a cluster can only depend on
    what a block has written to its own shared memory."""

    syntax = "sync {scope}"
    scope: str = attr(default="block")
    id: Expr | None = arg(default=None)
    threads: int | None = attr(default=None)
    arrive: bool = attr(default=False)
    order: str = attr(default="all")


class Turn(Op):
    """`begin` or `end` of a section that the warpgroups of a role run one after the other, in the
    order of their numbers, round after round: a warpgroup begins its n-th section when the one
    before it has ended its n-th, the first when the last has ended its (n-1)-th. Every warpgroup
    passes as many sections as the others."""

    syntax = "turn {edge}"
    edge: str = attr()


# ── late, and what has no field of its own ───────────────────────────────────────────────────


class Intrinsic(Op):
    """An instruction with an effect or a meaning across threads, from `intrinsics.INTRINSICS`:
    shuffles, votes, `print`, `device_assert`, `ptx`, `call_extern`, … The first `width` operands
    of `ptx` are variables of the thread that it may write."""

    syntax = "intrinsic {name} {args}"
    name: str = attr()
    args: tuple[Expr | Region, ...] = arg(default=())
    result: Var | None = binds(default=None)
    text: str = attr(default="")
    width: int | None = attr(default=None)

    @cached_property
    def fields(self) -> dict[str, str]:
        """The `key=value` words of an instruction's text."""
        return dict(word.split("=", 1) for word in self.text.split())


class Hint(Op):
    """Advice that never changes results: swizzle, layout, padding, l2_hit_ratio, max_nreg, assume;
    `rare` at the beginning of a branch that few iterations, or threads, take."""

    syntax = "hint {name}"
    name: str = attr()
    buffer: Buffer | None = arg(default=None)
    value: Expr | None = arg(default=None)
    detail: tuple[Any, ...] = attr(default=())
    layout: AnyLayout | None = attr(default=None)


# ── programs ─────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Dim:
    """A size known at launch and its contract."""

    var: Var
    min: int = 0
    max: int | None = None
    multiple_of: int = 1

    @property
    def most(self) -> int:
        """The largest size that a launch may give."""
        return LONGEST if self.max is None else min(self.max, LONGEST)


# The longest axis that tiles divide: int32 counts its elements and those of a tile after its end.
LONGEST = 2**31 - 2**20

Parameter = Buffer | Var


@dataclass(frozen=True)
class Program:
    """What one call runs: parameters, scratch tensors that live for the call, kernels in order."""

    name: str
    params: tuple[Parameter, ...]
    kernels: tuple[Kernel, ...]
    dims: tuple[Dim, ...] = ()
    scratch: tuple[Buffer, ...] = ()
    sources: tuple[str, ...] = ()
    loc: Loc | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def tensors(self) -> tuple[Buffer, ...]:
        return tuple(p for p in self.params if isinstance(p, Buffer))

    @property
    def scalars(self) -> tuple[Var, ...]:
        return tuple(p for p in self.params if isinstance(p, Var))


OPS: dict[str, type[Op]] = {
    cls.__name__: cls
    for cls in (
        Kernel, For, While, If, Break, Continue, Let, Role, Map, Alloc, View, Copy, Store, Atomic,
        Fill, Gemm, Reduce, Scan, Relayout, BarrierInit, Arrive, Wait, Commit, WaitGroup, Fence,
        Sync, Turn, Intrinsic, Hint,
    )
}  # fmt: skip


# ── what derives from the marks ──────────────────────────────────────────────────────────────


def outside_maps(body: Body) -> Iterator[Op]:
    """Every op of `body` in text order, maps as a whole."""
    for op in body:
        yield op
        if not isinstance(op, Map):
            for inner in bodies(op):
                yield from outside_maps(inner)


def is_rare(body: Body) -> bool:
    """A branch that few take (`hint rare`)."""
    return any(isinstance(op, Hint) and op.name == "rare" for op in body)


def elements_of(op: Op) -> list[tuple[Load, bool]]:
    """The single elements that an op itself reads, and the one that it stores (True)."""
    found = [(load, False) for load in op_loads(op)]
    if isinstance(op, Store):
        found.append((Load(op.buffer, op.indices, op.loc), True))
    return found


@kept
def read_buffers(op: Op) -> tuple[Buffer, ...]:
    """Buffers whose elements the op reads, not counting its bodies."""
    named = [r.buffer for r in regions(op, reads=True)] + [x.buffer for x in op_loads(op)]
    if isinstance(op, Intrinsic):
        named += [a.buffer for a in op.args if isinstance(a, Region)]
    return tuple(dict.fromkeys(named))


@kept
def touched_within(op: Op) -> tuple[tuple[Buffer, bool], ...]:
    """Buffers that the op, and what stands in it, read (False) and write (True). Intrinsics may
    write what they are given."""
    found = [(buffer, isinstance(op, Intrinsic)) for buffer in read_buffers(op)]
    found += [(buffer, True) for buffer in written_buffers(op)]
    found += [each for body in bodies(op) for inner in body for each in touched_within(inner)]
    return tuple(dict.fromkeys(found))


@kept
def written_buffers(op: Op) -> tuple[Buffer, ...]:
    """Buffers whose elements the op writes, not counting its bodies."""
    named = [r.buffer for r in regions(op, writes=True)]
    if isinstance(op, Store):
        named.append(op.buffer)
    if isinstance(op, Alloc) and op.init is not None:
        named.append(op.buffer)
    if isinstance(op, Intrinsic) and is_foreign(op):
        named += [a.buffer for a in op.args if isinstance(a, Region)]
    return tuple(dict.fromkeys(named))


def is_foreign(op: Intrinsic) -> bool:
    """Code that no pass sees into: it may read and write all that its operands point at."""
    return op.name in INTRINSICS and INTRINSICS[op.name].opaque
