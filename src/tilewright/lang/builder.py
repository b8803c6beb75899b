"""The program that a trace builds: ops in nested bodies, names, parameters, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeGuard

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.analysis.effects import mentioned, written_in
from tilewright.ir.bind import given_sizes
from tilewright.ir.core import *
from tilewright.ir.marks import with_loc
from tilewright.ir.scope import contracts, counted
from tilewright.ir.symbols import Symbols, keep_symbols
from tilewright.ir.target import Target
from tilewright.lang.scalar import Moment, OpenBody, Read, conditional_reads, guarded, reads
from tilewright.lang.where import locate, what_runs
from tilewright.support import limits
from tilewright.support.errors import word

# A pure expression larger than this is named once instead of being copied to each use: parts that
# differ, and all of them, shared ones at every use.
LARGE, LARGE_WRITTEN = 32, 256


class Opened(AbstractContextManager[Any]):
    """A context manager of the language. A rewritten `with` tells it the names after `as`, and
    whether they stand in a tuple."""

    names: tuple[str, ...] = ()
    unpacked = False


class Probed(Exception):
    """The declarations before a function's first kernel have been seen."""


class TracedAgain(Exception):
    """The trace has found out what it should have known from the start."""


class Position(NamedTuple):
    """A place between ops of an open body."""

    body: int  # its serial number
    at: int  # how many ops come before
    order: int = 0  # among places between the same ops


TileLoop: TypeAlias = tuple[int, str]  # over tiles: the number of its kernel, and its variable
Joined: TypeAlias = tuple[tuple[str, int], ...]


@dataclass
class Sizes:
    """What is chosen for a text: sizes of loops over tiles, of kernels by their numbers the threads
    and the blocks that are resident at least, and those of a cluster that share what they load, how
    whole dimensions are cut, what loops over rows align (`Split.align`), how many steps of a loop
    are loaded ahead, how many blocks share the steps of one that adds up products: those of a
    cluster, or `parts` of the grid, where `is_rest` is a trace of what adds up their sums, and
    numbers of `T.chosen`; and, by kernel, whole dimensions that are one (`joined.py`), by name with
    their sizes."""

    tiles: dict[TileLoop, int] = field(default_factory=dict)
    threads: dict[int, int] = field(default_factory=dict)
    blocks: dict[int, int] = field(default_factory=dict)
    clusters: dict[int, int] = field(default_factory=dict)
    splits: dict[TileLoop, Any] = field(default_factory=dict)
    aligns: dict[TileLoop, int] = field(default_factory=dict)
    stages: dict[TileLoop, int] = field(default_factory=dict)
    shares: dict[TileLoop, int] = field(default_factory=dict)
    parts: dict[TileLoop, int] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    joined: dict[int, tuple[Joined, ...]] = field(default_factory=dict)
    is_rest: bool = False


class Builder:
    """Collects one program."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loc: Loc | None = None
        self.params: list[Parameter] = []
        self.outputs: list[str] = []
        self.dims: dict[Var, Dim] = {}
        self.scratch: list[Buffer] = []
        self.sources: list[str] = []
        self.symbols = Symbols()
        self.kernels: list[Kernel] = []
        self.kernel: Kernel | None = None
        self.only: tuple[int, list[Kernel]] | None = None  # asked for; others are as they were
        self.consts: dict[str, int] = {}
        self.asked: list[str] = []
        self.stand_in: int | None = None  # the value of `T.const` sizes that nothing gives
        self.arguments: dict[str, Any] = {}
        self.plain: dict[str, Any] = {}  # arguments that are no arrays
        self.declared: list[str] = []
        self.probing = False
        self.probe_error: CompileError | None = None
        self.hint: str | None = None
        self.macros = 0  # how deep
        self.names = TakenNames()
        self.bodies: list[OpenBody] = []
        self._steps = 0
        self._positions = 0
        self._writes: dict[Buffer, int] = {}
        self._log: list[Buffer] = []  # what was written, in order
        self._roots: dict[Buffer, Buffer] = {}  # of views: the buffer whose memory they show
        self._opened = 0
        self._reads = 0
        self._named: dict[Read, Var] = {}  # reads that were named after the fact
        self.trail: list[Op] = []  # what was emitted, in order
        self.lazy = 0  # how many sides of conditions are being evaluated
        self.values: list[Any] = []  # weak references to tile values
        self.sizes, self.is_sized = Sizes(), False  # whether all are chosen
        self.carried: set[str] = set()  # names whose values loops change
        self.carried_scalars: set[str] = set()  # those of numbers that had no memory
        self.making: list[Position] = []  # of values that are being put into memory
        self.open_tiles: dict[TileLoop, None] = {}  # loops over tiles whose size was left open
        self.numbers: dict[str, int] = {}  # of `T.chosen`: what they are at most
        # of `@`: the kernel, the axes M, N and K, the type of the operands
        self.products: list[tuple[int, tuple[Any, Any, Any], DType]] = []
        self.axes: dict[Any, TileLoop] = {}  # the loop of each axis
        self.pinned: set[Any] = set()  # those of these whose sizes the text says
        self.lengths: dict[Any, int] = {}  # of the ranges of these, where they are known
        self.spans: dict[Any, Expr] = {}  # where launches give them
        # kernel, axes of a value, along which one, arrays in registers
        self.scanned: list[tuple[int, Any, Any, int]] = []
        self.footprints: list[tuple[Any, ...]] = []  # the axes of values that were kept
        self.extents: dict[tuple[int, str], Any] = {}  # whole dimensions, by kernel and name
        self.reads_of: list[tuple[int, Any]] = []  # kernel and box of what was read
        self.writes_of: list[tuple[int, Any]] = []  # and of what was stored
        self.lasts: dict[Any, int] = {}  # along which elements are neighbours: of so many axes
        self.finest: set[Any] = set()  # of those, the last axis of each index
        self.tiled: set[int] = set()  # kernels that `T.tile` opened
        self.met: list[Kernel] = []  # those whose clusters have met
        self.undivided: set[int] = set()  # kernels whose rows one block must have
        self.told: set[tuple[int, Buffer]] = set()  # by kernel, what is written one by one
        self.uncut: set[int] = set()  # kernels whose rows are tiles of other words, too
        self.shifts: dict[Var, Expr] = {}  # of axes: the element that the row begins with
        self.shift_of: dict[tuple[int, str], Var] = {}  # loops along rows, by kernel and name
        self.flat: dict[tuple[int, str], Buffer] = {}  # tensors as one row
        self.walks: list[Any] = []  # loops over pieces of long dimensions that are being built
        self.passes = 0  # how many there were
        self.loads = 0  # of long dimensions
        self.kept: set[int] = set()  # those that are used by several passes

    @property
    def number(self) -> int:
        """Of the kernel that is open, or the next one."""
        return len(self.kernels)

    @property
    def multiplied(self) -> set[Any]:
        """The axes of operands of `@`."""
        return {axis.key for _, sides, _ in self.products for axis in sides}

    # ── names ──

    def fresh(self, name: str | None, default: str = "v") -> str:
        """`name`, or `name_1`, … when it is taken."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name or default)
        return fresh_name(default if base in ("", "_") else base, self.names)

    def var(self, name: str | None, dtype: DType = INT32, default: str = "v") -> Var:
        return Var(self.fresh(name, default), dtype)

    def known(self) -> Ranges:
        """The ranges of sizes, blocks, threads and the counters of open loops."""
        ranges = contracts(self.dims.values())
        if self.kernel is not None:
            for var, extent in zip(self.kernel.blocks, self.kernel.grid, strict=True):
                ranges = counted(ranges, var, extent)
            for var, count in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
                ranges = ranges.where(var, 0, count - 1)
        for counter in (each for body in self.bodies for each in body.counters):
            ranges = ranges.loop(*counter)
        return ranges

    @property
    def in_map(self) -> bool:
        return any(body.parallel for body in self.bodies)

    # ── ops ──

    def emit(self, op: Op, seen: bool = True) -> None:
        """`op` here; not `seen`: it writes only where nobody looks."""
        if not self.bodies:
            raise CompileError(
                f"{word_of(op)} outside a kernel",
                fix="put it inside a `for … in T.tile(…):` loop, or `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        self.step()
        if op.loc is None:
            op = with_loc(op, locate())
        for expr in expressions(op):
            check_expression(expr)
        op = self._counted(self._settled(op), seen)
        self.bodies[-1].ops.append(op)
        self.trail.append(op)

    def tile(
        self,
        name: str | None,
        default: str,
        shape: tuple[Expr, ...],
        kind: DType,
        space: Space = Space.FRAGMENT,
    ) -> Buffer:
        """Memory from here on."""
        made = Buffer(self.fresh(name, default), shape, kind, space)
        self.emit(Alloc(made))
        return made

    def emit_once(self, op: Store | Atomic, buffer: Buffer) -> None:
        """An effect on one element: of the blocks of a cluster that have a row, one has it."""
        number, rank = self.number, self.kernel.rank if self.kernel else None
        self.told |= {(number, buffer)} if buffer.is_global else set()
        if isinstance(op, Atomic) and op.result is not None:
            self.undivided.add(number)  # all need what was there
        if rank is None or number not in self.tiled or not buffer.is_global:
            self.emit(op)
        else:
            self.emit(If(compare("==", rank, const(0)), (with_loc(op, locate()),)))

    def _counted(self, op: Op, seen: bool = True) -> Op:
        """`op`, with what it writes remembered, and its place given to what a word put in it."""
        if isinstance(op, View):
            self._roots[op.buffer] = self._roots.get(op.source, op.source)
        for buffer in _written(op) if seen else ():
            root = self._roots.get(buffer, buffer)
            self._writes[root] = self._writes.get(root, 0) + 1
            self._log.append(root)
        if not _is_word(op):
            return op
        return replace(op, body=tuple(with_loc(o, op.loc) if o.loc is None else o for o in op.body))

    def position(self) -> Position:
        """Here."""
        if not self.bodies:
            return Position(0, 0)
        self._positions += 1
        return Position(self.bodies[-1].serial, len(self.bodies[-1].ops), self._positions)

    def outermost(self) -> Position:
        """Here, before the loops and branches that are open."""
        return self.position()._replace(body=self.bodies[0].serial, at=len(self.bodies[0].ops))

    @property
    def here(self) -> Position:
        """Where what is read now is read: by a value that is made at its own position, or here."""
        return self.making[-1] if self.making else self.position()

    def in_scope(self, position: Position) -> bool:
        """Whether the body of a position is still open."""
        return any(body.serial == position.body for body in self.bodies)

    def in_turn(self, position: Position) -> bool:
        """Whether the body of a position is still open, and no loop was opened since, whose later
        turns may find other values."""
        at = [body.serial for body in self.bodies]
        if position.body not in at:
            return False
        return not any(body.loop for body in self.bodies[at.index(position.body) + 1 :])

    def emit_at(self, position: Position, op: Op) -> None:
        """`op` at an earlier position: after what was put there or before, and what it reads."""
        self.step()
        body = next(body for body in self.bodies if body.serial == position.body)
        queue = body.early.setdefault(position.at, [])
        needed, place = mentioned(op), len(queue)
        while place and queue[place - 1][0] > position.order:
            before = queue[place - 1][1]
            if isinstance(before, (Let, Sync)) or needed & written_in((before,)):
                break
            place -= 1
        queue.insert(place, (position.order, self._counted(op)))

    def replace_at(self, position: Position, op: Op) -> None:
        """`op` in place of the one that was emitted at a position."""
        body = next(body for body in self.bodies if body.serial == position.body)
        body.ops[position.at] = self._counted(op, seen=False)

    def skip_unless(self, cond: Expr) -> None:
        """The rest of the innermost loop over tiles runs only where `cond`."""
        self.open().guard = cond

    def close_skipped(self, depth: int, loc: Loc | None) -> None:
        """End what `skip_unless` began, down to `depth` open bodies."""
        while len(self.bodies) > depth:
            guard = self.bodies[-1].guard
            assert guard is not None
            self.emit(If(guard, self.close(), loc=loc))

    def writes(self, buffer: Buffer) -> int:
        """How many ops so far write the buffer."""
        return self._writes.get(self._roots.get(buffer, buffer), 0)

    def effect_since(self, mark: int) -> Op | None:
        """An op after the first `mark` that does more than compute a value."""
        ops = self.trail[mark:]
        made = {op.buffer for op in ops if isinstance(op, Alloc)}
        for op in ops:
            written = _written(op)
            if written and made.issuperset(written):
                continue
            if written or not isinstance(op, (Let, Alloc, View, If, For, While, Map)):
                return op
        return None

    # ── reads ──

    def moment(self, buffer: Buffer) -> Moment:
        """Now, for a read of `buffer`."""
        self._reads += 1
        body = self.bodies[-1] if self.bodies else None
        serial, at = (body.serial, len(body.ops)) if body is not None else (0, 0)
        return Moment(self._reads, serial, at, self.writes(buffer), not self.lazy)

    @property
    def now(self) -> int:
        """Reads from here on have a larger number."""
        return self._reads

    def _settled(self, op: Op) -> Op:
        """`op` with loads in place of reads, in the body of a map that a word made too."""
        if any(map(reads, expressions(op))):
            op = map_exprs(op, self.settle)
        return map_ops(op, self._settled) if _is_word(op) else op

    def settle(self, expr: Expr) -> Expr:
        """`expr` as an op evaluates it now, each read with the value it had where it stands."""
        found = reads(expr)
        if not found:
            return expr
        stale = [read for read in found if self.writes(read.buffer) != read.moment.writes]
        if stale:
            guarded = conditional_reads(expr)
            for read in stale:
                self._check_named(read, any(read is each for each in guarded))
        for read in found:
            self._cross(read)

        def rule(node: Expr) -> Expr | None:
            if type(node) is not Read:
                return None
            if stale and self.writes(node.buffer) != node.moment.writes:
                return self._name(node)
            return Load(node.buffer, node.indices, node.loc)

        return transform(expr, rule)

    def _cross(self, read: Read) -> None:
        """Remember a read from before a loop that is used inside."""
        for body in self.bodies:
            if body.loop and body.order >= read.moment.order:
                if read not in body.crossing:
                    body.crossing.append(read)
                return

    def _check_named(self, read: Read, guarded: bool) -> None:
        """A name can still be given where the read stands."""
        is_open = any(body.serial == read.moment.body for body in self.bodies)
        if is_open and read.moment.sure and not guarded:
            return
        _refuse_stale(read, f"is used after {read.buffer.name} has been written")

    def _name(self, read: Read) -> Var:
        var = self._named.get(read)
        if var is None:
            var = self._named[read] = self.var(None, read.dtype)
            body = next(b for b in self.bodies if b.serial == read.moment.body)
            load = Load(read.buffer, read.indices, read.loc)
            queue = body.early.setdefault(read.moment.at, [])
            queue.append((self._positions, Let(var, load, loc=read.loc)))
        return var

    def enter_macro(self, name: str) -> None:
        """A macro is inlined; deep ones count for more, as finding out where they stand does."""
        self.macros += 1
        limits.MACROS.check(
            self.macros,
            f"{name} recurses without end, or too far",
            fix="a macro is inlined where it is called: end the recursion by an `if` over "
            "compile-time values, or loop",
        )
        self.step(self.macros)

    def step(self, count: int = 1) -> None:
        """One more statement, unrolled iteration or macro call."""
        self._steps += count
        limits.STEPS.check(
            self._steps,
            f"{self.name} is too large: its text goes on and on when it runs at compile time",
            fix="loop at run time, with range(n) or T.serial(n): a tuple, a list, and a `while` or "
            "a macro over compile-time values are unrolled",
        )

    def open(self, loop: bool = False, before: Iterable[Read] = ()) -> OpenBody:
        """A new body; `before`: reads from before a loop that each iteration uses."""
        self._opened += 1
        body = OpenBody(self._opened, loop, self._reads, len(self._log))
        body.crossing += before
        self.bodies.append(body)
        limits.NESTING.check(
            len(self.bodies),
            "too many loops and branches inside each other",
            fix="join conditions with `and`, and loops with T.grid(m, n)",
        )
        return body

    def close(self) -> Body:
        body = self.bodies.pop()
        if body.crossing:
            written = set(self._log[body.log :])
            for read in body.crossing:
                if self._roots.get(read.buffer, read.buffer) in written:
                    _refuse_stale(read, "is used in a loop that writes it")
        return body.closed()

    def let(self, value: Expr, name: str | None = None) -> Var:
        """Name a value now."""
        var = self.var(name, value.dtype)
        self.emit(Let(var, value))
        return var

    def snapshot(self, value: Any, name: str | None = None) -> Expr:
        """The value as it is now: loads are taken, large trees named."""
        expr = wrap(value)
        check_expression(expr)
        small = written_size(expr)[0] <= LARGE_WRITTEN and sum(1 for _ in walk(expr)) <= LARGE
        return expr if small and is_pure(expr) else self.let(expr, name)

    def require_kernel(self, name: str = "") -> Kernel:
        """The kernel; `name` is the word that needs it where none runs."""
        if self.kernel is None:
            raise CompileError(
                f"{what_runs(name)} outside a kernel",
                fix="put it inside a `for … in T.tile(…):` loop, or `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        return self.kernel

    def require_block(self, name: str = "") -> Kernel:
        """The kernel, for words that all threads run together."""
        kernel = self.require_kernel(name)
        if self.in_map:
            raise CompileError(
                f"{what_runs(name)} inside T.Parallel: it works on whole tiles, with all threads "
                "together",
                fix="move it out of the T.Parallel loop, or use T.serial around it; an element of "
                "a tile is X[m.start + i, j]",
                code="inside-parallel",
            )
        return kernel

    def require_cluster(self, block: bool = True) -> Kernel:
        kernel = self.require_block() if block else self.require_kernel()
        if not kernel.cluster:
            raise CompileError(
                "this kernel has no clusters", fix="give T.Kernel(..., cluster_dims=(2, 1, 1))"
            )
        return kernel

    # ── kernels ──

    def finish(self) -> Program:
        if not self.kernels:
            raise CompileError(
                f"{self.name} has no kernel",
                loc=self.loc,
                fix="open one: `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        told = [
            s for p in self.params if isinstance(p, Buffer) for s in (*p.shape, *(p.strides or ()))
        ]
        used = {v for s in told for v in variables(s)}
        missing = used.difference(given_sizes(told), self.params)
        if missing:
            name = min(var.name for var in missing)
            raise CompileError(
                f"nothing determines the size {name}: no shape is linear in it alone",
                loc=self.loc,
                expected=f"a tensor parameter with {name}, or {name} * 4, among its sizes",
                fix=f"declare one, or make {name} a scalar parameter: {name}: T.int32",
                code="shape",
            )
        program = Program(
            self.name,
            tuple(self.params),
            tuple(self.kernels),
            tuple(dim for var, dim in self.dims.items() if var in used),
            tuple(self.scratch),
            tuple(self.sources),
            loc=self.loc,
        )
        keep_symbols(program, self.symbols)
        return program


def _written(op: Op) -> list[Buffer]:
    """The buffers that the op writes, or may write."""
    found = [*written_buffers(op)]
    if isinstance(op, Intrinsic):
        found += [a.buffer for a in op.args if isinstance(a, Region)]
    if _is_word(op):
        found += [buffer for inner in walk_ops(op.body) for buffer in _written(inner)]
    return found


def _is_word(op: Op) -> TypeGuard[Map]:
    """A map that a word made: its ops were not emitted one by one."""
    return isinstance(op, Map) and any(inner.loc is None for inner in op.body)


def _refuse_stale(read: Read, what: str) -> NoReturn:
    name = read.buffer.name
    where = f", read on line {read.loc.line}," if read.loc is not None else ""
    raise CompileError(
        f"an element of {name}{where} {what}",
        expected="the value that it had where it was read",
        fix=f"bind it to a name there: x = {name}[…], and use x",
        code="stale-read",
    )


NAME_PARTS = "give its parts names, in a kernel or a @T.macro: a value with a name is computed once"


def check_expression(expr: Expr) -> None:
    """An expression that is worth writing out."""
    size, depth = written_size(expr)
    limits.EXPRESSION.check(size, "this expression is too large", fix=NAME_PARTS)
    limits.DEPTH.check(depth, "this expression is too deep", fix=NAME_PARTS)


def word_of(op: Op) -> str:
    return {
        "Let": "reading a tensor",
        "Store": "a store",
        "If": "a run-time `if`",
        "While": "a run-time `while`",
    }.get(type(op).__name__, f"T.{type(op).__name__.lower()}")


# what kernels are traced for, with what is chosen about them: sizes of tiles, threads
CHOSEN: ContextVar[Target] = ContextVar("chosen", default=Target("interp"))  # noqa: B039
_CURRENT: ContextVar[Builder | None] = ContextVar("builder", default=None)


def precision_of(kind: DType) -> str:
    """How operands of a product are rounded, where its text does not say."""
    return CHOSEN.get().numerics.precision if kind.name == "float32" else "ieee"


def current(what: str = "") -> Builder:
    """The builder of the running trace; `what` needs it where no word runs."""
    builder = _CURRENT.get()
    if builder is None:
        raise CompileError(
            f"{what or f'T.{word()}'} outside a kernel function",
            fix="use it in a function decorated with @T.prim_func, @T.macro or @tw.jit",
            code="outside-kernel",
        )
    return builder


def current_kernel(name: str = "") -> Builder:
    """The builder inside a kernel."""
    builder = current()
    builder.require_kernel(name)
    return builder


def current_block() -> Builder:
    """The builder where all threads of a block run together."""
    builder = current()
    builder.require_block()
    return builder


def in_kernel() -> bool:
    builder = _CURRENT.get()
    return builder is not None and builder.kernel is not None


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    token = _CURRENT.set(builder)
    try:
        with guarded():
            yield builder
    finally:
        _CURRENT.reset(token)
