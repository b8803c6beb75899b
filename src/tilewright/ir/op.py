"""Operations: frozen records whose fields are marked, so that printing, parsing, walking,
rewriting and effects derive from the marks.

A field is one of

- `arg()`   an operand: `Expr`, `Region`, `Buffer`, `Var`, or a tuple of them; `reads`/`writes`
            says what the op does to the region's elements;
- `binds()` a `Var` (or tuple, or None) that the op defines;
- `attr()`  a compile-time value (int, float, str, bool, tuple of them, a layout, or None);
- `body()`  a tuple of ops.

`syntax` is the op's text with `{field}` holes; attributes that differ from their default are
added behind as `name=value`. The text module reads nothing else.

**Meaning.** A kernel's body runs top to bottom once per block; blocks are unordered. Tile ops
(`Copy`, `Fill`, `Gemm`, `Reduce`, `Scan`, `Relayout`, `Map`) are collective: one execution by
all threads of the block, or of the role instance they stand in. Ops that mention a thread
variable run once per thread. Ops are synchronous unless their atom says otherwise (`atoms.py`);
an asynchronous op's destination must not be touched, nor its source overwritten, before the
matching wait.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, TypeVar

from tilewright.ir.buffer import AnyLayout, Buffer, Region
from tilewright.ir.expr import FALSE, Expr, Load, Var, const, loads
from tilewright.ir.intrinsics import INTRINSICS
from tilewright.support.errors import Loc


def arg(*, reads: bool = False, writes: bool = False, **kwargs: Any) -> Any:
    return field(metadata={"mark": "arg", "reads": reads, "writes": writes}, **kwargs)


def binds(**kwargs: Any) -> Any:
    return field(metadata={"mark": "binds"}, **kwargs)


def attr(**kwargs: Any) -> Any:
    return field(metadata={"mark": "attr"}, **kwargs)


def body(**kwargs: Any) -> Any:
    return field(metadata={"mark": "body"}, **kwargs)


@dataclass(frozen=True)
class Op:
    """Base of all operations."""

    syntax: ClassVar[str]
    loc: Loc | None = field(default=None, compare=False, repr=False, kw_only=True)


Body = tuple[Op, ...]


# ── structure ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class For(Op):
    """`body` for var = start, start+step, … < stop. Every kind means the same sequential loop.

    `kind`: serial, unroll, vectorized, pipelined (`stages` slots, -1 where nobody said how many),
    persistent (over tiles) or cluster (over what will be the blocks of one). `order` and `stage`,
    one entry per body statement, pin a pipelined loop's schedule.
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


@dataclass(frozen=True)
class While(Op):
    """`cond`, loads included, is evaluated anew before every iteration."""

    syntax = "while {cond} {body}"
    cond: Expr = arg()
    body: Body = body()


@dataclass(frozen=True)
class If(Op):
    """A guard that differs between threads masks thread-level ops; tile ops need a uniform one."""

    syntax = "if {cond} {then} else {orelse}"
    cond: Expr = arg()
    then: Body = body()
    orelse: Body = body(default=())


@dataclass(frozen=True)
class Break(Op):
    """Leaves the innermost `For` or `While`."""

    syntax = "break"


@dataclass(frozen=True)
class Continue(Op):
    """Goes on with the next iteration of the innermost `For` or `While`."""

    syntax = "continue"


@dataclass(frozen=True)
class Let(Op):
    """Names a value, loads taken now, for the rest of the enclosing body."""

    syntax = "let {var} = {value}"
    var: Var = binds()
    value: Expr = arg()


@dataclass(frozen=True)
class Role(Op):
    """Only warps `first` … `first + warps - 1` run `body`; others pass over it.

    With `instances` > 1 the warps are dealt evenly and consecutively to that many independent
    instances, each with its own scalars and fragments, numbered by `var`. `registers` per thread
    are moved on entry. In a kernel with roles, tile ops stand inside roles only; ops outside run
    in every warp (`BarrierInit` in warp 0 only). `derived`: a compiler's, while what stands
    outside is still the other threads' code.
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


@dataclass(frozen=True)
class Map(Op):
    """An elementwise nest (`T.Parallel`): `body` for every point of the box, in no order.

    Iterations are independent: none writes what another reads or writes. `layout` is the nest's
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class View(Op):
    """`buffer` is the memory of `source` under another shape or type, both in row-major order,
    starting `offset` elements (of `buffer`'s type) in."""

    syntax = "view {buffer} of {source}"
    buffer: Buffer = arg()
    source: Buffer = arg()
    offset: Expr = arg(default=const(0))


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Store(Op):
    """buffer[indices] = value; all loads of indices and value happen first."""

    syntax = "{buffer}{indices} = {value}"
    buffer: Buffer = arg()
    indices: tuple[Expr, ...] = arg()
    value: Expr = arg()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Fill(Op):
    syntax = "fill {dst} = {value}"
    dst: Region = arg(writes=True)
    value: Expr = arg()


# ── compute ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Gemm(Op):
    """c = (0 if clear else c) + op(a) · op(b), products accumulated in c's type.

    a is M×K (K×M when `transpose_a`), b is K×N (N×K when `transpose_b`). `policy` splits the
    tile over warps: square, full_row, full_col. `meta` holds 2:4 sparsity indices of a.
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


@dataclass(frozen=True)
class Reduce(Op):
    """dst = op over dimension `dim` of src's tile; folds into dst when not `clear`.

    op: sum max min abssum absmax and or xor any all. NaN is kept; max_num, min_num and absmax_num
    skip it, and give what an empty reduction gives where there is nothing else. dst may keep the
    reduced dimension as 1.
    """

    syntax = "reduce {op} {src} -> {dst} dim {dim}"
    op: str = attr()
    src: Region = arg(reads=True)
    dst: Region = arg(reads=True, writes=True)
    dim: int = attr()
    clear: bool = attr(default=True)


@dataclass(frozen=True)
class Scan(Op):
    """Inclusive prefix `sum` or `max` along `dim`, from the end when `reverse`."""

    syntax = "scan {op} {src} -> {dst} dim {dim}"
    op: str = attr()
    src: Region = arg(reads=True)
    dst: Region = arg(writes=True)
    dim: int = attr()
    reverse: bool = attr(default=False)


@dataclass(frozen=True)
class Relayout(Op):
    """dst = src between two fragments of one shape that are spread differently over threads."""

    syntax = "relayout {src} -> {dst}"
    src: Region = arg(reads=True)
    dst: Region = arg(writes=True)
    via: str | None = attr(default=None)


# ── synchronisation ──────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class BarrierInit(Op):
    """Each barrier of the region completes a phase after `count` arrivals and all its bytes."""

    syntax = "barrier_init {barrier} count {count}"
    barrier: Region = arg()
    count: Expr = arg()


@dataclass(frozen=True)
class Arrive(Op):
    """Arrive `count` times (once per role instance, not per thread), first expecting `bytes`
    more from bulk copies. `barrier.cta` may be another block of the cluster. by: `warps` where
    the `count` warps of the instance arrive each for itself, without meeting."""

    syntax = "arrive {barrier}"
    barrier: Region = arg()
    bytes: Expr | None = arg(default=None)
    count: Expr = arg(default=const(1))
    by: str = attr(default="instance")


@dataclass(frozen=True)
class Wait(Op):
    """Until the barrier's phase of parity `phase` has completed: a fresh barrier passes parity 1
    and blocks on 0."""

    syntax = "wait {barrier} phase {phase}"
    barrier: Region = arg()
    phase: Expr = arg()


@dataclass(frozen=True)
class Commit(Op):
    """Closes the group of asynchronous ops issued on `unit` (wgmma, bulk, cp_async) so far."""

    syntax = "commit {unit}"
    unit: str = attr()


@dataclass(frozen=True)
class WaitGroup(Op):
    """Until at most `pending` of this instance's groups on `unit` are open.

    `read` (bulk stores): only their reading of shared memory has to be over.
    """

    syntax = "wait_group {unit} pending {pending}"
    unit: str = attr()
    pending: int = attr()
    read: bool = attr(default=False)


@dataclass(frozen=True)
class Fence(Op):
    """`proxy_async`: ordinary writes to shared memory become visible to bulk copies and matrix
    instructions. `wgmma`: registers touched by ordinary code may be used by matrix instructions.
    `barrier_init`: barriers become visible to the cluster and to bulk copies. `cluster`, `gpu`:
    memory order at that scope; `cluster_shared`: at the scope of the cluster, of what this thread
    did before in its own block's shared memory."""

    syntax = "fence {kind}"
    kind: str = attr()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Turn(Op):
    """`begin` or `end` of a section that the warpgroups of a role run one after the other, in the
    order of their numbers, round after round: a warpgroup begins its n-th section when the one
    before it has ended its n-th, the first when the last has ended its (n-1)-th. Every warpgroup
    passes as many sections as the others."""

    syntax = "turn {edge}"
    edge: str = attr()


# ── late, and what has no field of its own ───────────────────────────────────────────────────


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


Param = Buffer | Var


@dataclass(frozen=True)
class Program:
    """What one call runs: parameters, scratch tensors that live for the call, kernels in order."""

    name: str
    params: tuple[Param, ...]
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


def marked(op: Op | type[Op], mark: str) -> tuple[dataclasses.Field[Any], ...]:
    cls: Any = type(op) if isinstance(op, Op) else op
    return _marked(cls, mark)


@functools.cache
def _marked(cls: Any, mark: str) -> tuple[dataclasses.Field[Any], ...]:
    return tuple(f for f in dataclasses.fields(cls) if f.metadata.get("mark") == mark)


_Found = TypeVar("_Found")
_O = TypeVar("_O", bound=Op)


def _kept(derive: Callable[[Op], tuple[_Found, ...]]) -> Callable[[Op], tuple[_Found, ...]]:
    """`derive`, asked once of each op: ops never change, and the answer goes with the op."""
    name = f"_{derive.__name__}"

    @functools.wraps(derive)
    def kept(op: Op) -> tuple[_Found, ...]:
        found: tuple[_Found, ...] | None = op.__dict__.get(name)
        if found is None:
            found = op.__dict__[name] = derive(op)
        return found

    return kept


def with_loc(op: _O, loc: Loc | None) -> _O:
    """`op` at a place; whatever is kept with it holds there too."""
    found = object.__new__(type(op))
    found.__dict__.update(op.__dict__, loc=loc)
    return found


@_kept
def operands(op: Op) -> tuple[Expr | Region | Buffer, ...]:
    """The op's operands, tuples flattened, None left out."""
    found: list[Expr | Region | Buffer] = []
    for f in marked(op, "arg"):
        value = getattr(op, f.name)
        if isinstance(value, tuple):
            found += [v for v in value if v is not None]
        elif value is not None:
            found.append(value)
    return tuple(found)


@functools.cache
def _body_names(cls: Any) -> tuple[str, ...]:
    return tuple(f.name for f in _marked(cls, "body"))


def bodies(op: Op) -> tuple[Body, ...]:
    cls: Any = type(op)
    names = _body_names(cls)
    return tuple([getattr(op, name) for name in names]) if names else ()


@_kept
def bound(op: Op) -> tuple[Var, ...]:
    """The variables the op defines."""
    found: list[Var] = []
    for f in marked(op, "binds"):
        value = getattr(op, f.name)
        found += value if isinstance(value, tuple) else [value] if value is not None else []
    return tuple(found)


@_kept
def bound_within(op: Op) -> tuple[Var, ...]:
    """The variables that the op, and what stands in it, define."""
    inner = [var for body in bodies(op) for each in body for var in bound_within(each)]
    return (*bound(op), *inner)


@_kept
def _inside(op: Op) -> tuple[Op, ...]:
    """Every op in the op's bodies, in text order."""
    return tuple([x for body in bodies(op) for each in body for x in (each, *_inside(each))])


def walk_ops(op: Op | Body) -> Iterator[Op]:
    """Every op, itself included, in text order."""
    if isinstance(op, tuple):
        return chain.from_iterable((each, *_inside(each)) for each in op)
    return iter((op, *_inside(op)))


def outside_nests(body: Body) -> Iterator[Op]:
    """Every op of `body` in text order, nests as a whole."""
    for op in body:
        yield op
        if not isinstance(op, Map):
            for inner in bodies(op):
                yield from outside_nests(inner)


def is_rare(body: Body) -> bool:
    """A branch that few take (`hint rare`)."""
    return any(isinstance(op, Hint) and op.name == "rare" for op in body)


def placed(kernel: Kernel) -> dict[Buffer, int]:
    """Where shared buffers begin, in bytes, as far as that is chosen."""
    allocs = (op for op in walk_ops(kernel) if isinstance(op, Alloc))
    return {op.buffer: op.place for op in allocs if op.place is not None}


def viewed_buffers(kernel: Kernel) -> set[str]:
    """Buffers whose memory has more than one name."""
    return {
        name
        for op in walk_ops(kernel)
        if isinstance(op, View)
        for name in (op.buffer.name, op.source.name)
    }


@_kept
def expressions(op: Op) -> tuple[Expr, ...]:
    """The expressions among the op's operands, starts and ranks of regions included."""
    found: list[Expr] = []
    for operand in operands(op):
        if isinstance(operand, Expr):
            found.append(operand)
        elif isinstance(operand, Region):
            found += operand.starts
            found += operand.extents
            if operand.cta is not None:
                found.append(operand.cta)
    return tuple(found)


def op_loads(op: Op) -> list[Load]:
    """Elements the op reads through expressions."""
    return list(_op_loads(op))


@_kept
def _op_loads(op: Op) -> tuple[Load, ...]:
    return tuple(load for expr in expressions(op) for load in loads(expr))


def regions(op: Op, *, reads: bool = False, writes: bool = False) -> list[Region]:
    """Regions the op itself reads (or writes) as tiles."""
    return [r for r, read, written in _regions(op) if (reads and read) or (writes and written)]


@_kept
def _regions(op: Op) -> tuple[tuple[Region, bool, bool], ...]:
    """Regions, and whether the op reads and writes them."""
    found: list[tuple[Region, bool, bool]] = []
    for f in marked(op, "arg"):
        how = f.metadata["reads"], f.metadata["writes"]
        if any(how):
            value = getattr(op, f.name)
            each = value if isinstance(value, tuple) else (value,)
            found += [(v, *how) for v in each if v is not None]
    return tuple(found)


def read_buffers(op: Op) -> list[Buffer]:
    """Buffers whose elements the op reads, not counting its bodies."""
    return list(_read_buffers(op))


@_kept
def _read_buffers(op: Op) -> tuple[Buffer, ...]:
    named = [r.buffer for r in regions(op, reads=True)] + [x.buffer for x in _op_loads(op)]
    if isinstance(op, Intrinsic):
        named += [a.buffer for a in op.args if isinstance(a, Region)]
    return tuple(dict.fromkeys(named))


@_kept
def named_buffers(op: Op) -> tuple[Buffer, ...]:
    """Buffers that the op names, not counting its bodies."""
    found = [x.buffer if isinstance(x, Region) else x for x in operands(op)
             if isinstance(x, (Region, Buffer))]  # fmt: skip
    return tuple(dict.fromkeys([*found, *(load.buffer for load in _op_loads(op))]))


@_kept
def touched_within(op: Op) -> tuple[tuple[Buffer, bool], ...]:
    """Buffers that the op, and what stands in it, read (False) and write (True). Intrinsics may
    write what they are given."""
    found = [(buffer, isinstance(op, Intrinsic)) for buffer in _read_buffers(op)]
    found += [(buffer, True) for buffer in _written_buffers(op)]
    found += [each for body in bodies(op) for inner in body for each in touched_within(inner)]
    return tuple(dict.fromkeys(found))


def written_buffers(op: Op) -> list[Buffer]:
    """Buffers whose elements the op writes, not counting its bodies."""
    return list(_written_buffers(op))


@_kept
def _written_buffers(op: Op) -> tuple[Buffer, ...]:
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
