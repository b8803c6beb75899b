"""What a trace has built so far: ops in nested bodies, names, parameters, kernels."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from tilewright.ir import expr as _expr
from tilewright.ir.bounds import Ranges
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import INT32, DType
from tilewright.ir.expr import (
    Const,
    Expr,
    Var,
    compare,
    is_pure,
    variables,
    walk,
    wrap,
    written_size,
)
from tilewright.ir.op import (
    Body,
    Dim,
    Kernel,
    Let,
    Map,
    Op,
    Param,
    Program,
    expressions,
    written_buffers,
)
from tilewright.ir.scope import contracts, counted
from tilewright.ir.symbols import Symbols, keep_symbols
from tilewright.lang.where import is_theirs, locate
from tilewright.support import limits
from tilewright.support.errors import CompileError, Loc

# A pure expression larger than this is named once instead of being copied to each use: parts that
# differ, and all of them, shared ones at every use.
LARGE, LARGE_WRITTEN = 32, 256


@dataclass
class KernelState:
    """The kernel being built."""

    name: str
    blocks: tuple[Var, ...]
    grid: tuple[Expr, ...]
    thread_vars: tuple[Var, ...]
    threads: tuple[int, ...]
    cluster: tuple[int, ...]
    rank: Var | None
    loc: Loc | None
    placed: list[tuple[int, int]] = field(default_factory=list)
    guards: list[Expr] = field(default_factory=list)

    @property
    def num_threads(self) -> int:
        total = 1
        for extent in self.threads:
            total *= extent
        return total


class Probed(Exception):
    """The declarations before a function's first kernel have been seen."""


class Builder:
    """Collects one program."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.loc: Loc | None = None
        self.params: list[Param] = []
        self.outputs: list[str] = []
        self.dims: dict[Var, Dim] = {}
        self.scratch: list[Buffer] = []
        self.sources: list[str] = []
        self.symbols = Symbols()
        self.kernels: list[Kernel] = []
        self.kernel: KernelState | None = None
        self.consts: dict[str, int] = {}
        self.asked: list[str] = []
        self.stand_in: int | None = None  # the value of `T.const` sizes that nothing gives
        self.arguments: dict[str, Any] = {}
        self.plain: dict[str, Any] = {}  # arguments that are no arrays
        self.declared: list[str] = []
        self.probing = False
        self.probe_error: CompileError | None = None
        self.hint: str | None = None
        self.maps = 0
        self.counters: list[tuple[Var, Expr, Expr, Expr]] = []  # open loops: start, stop, step
        self.macros = 0  # how deep
        self._names: set[str] = set()
        self._counts: dict[str, int] = {}
        self._bodies: list[list[Op]] = []
        self._steps = 0
        self._writes: dict[Buffer, int] = {}
        self.emitted = 0

    # ── names ──

    def fresh(self, name: str | None, default: str = "v") -> str:
        """`name`, or `name_1`, … when it is taken."""
        base = "".join(c if c.isalnum() or c == "_" else "_" for c in name or default)
        if base == "_" or not base:
            base = default
        found = base
        while found in self._names:
            self._counts[base] = self._counts.get(base, 0) + 1
            found = f"{base}_{self._counts[base]}"
        self._names.add(found)
        return found

    def var(self, name: str | None, dtype: DType = INT32, default: str = "v") -> Var:
        return Var(self.fresh(name, default), dtype)

    def known(self) -> Ranges:
        """What is known here of sizes, of blocks and threads, and of the loops that are open."""
        ranges = contracts(self.dims.values())
        if self.kernel is not None:
            for var, extent in zip(self.kernel.blocks, self.kernel.grid, strict=True):
                ranges = counted(ranges, var, extent)
            for var, count in zip(self.kernel.thread_vars, self.kernel.threads, strict=True):
                ranges = ranges.where(var, 0, count - 1)
        for var, start, stop, step in self.counters:
            ranges = ranges.loop(var, start, stop, step)
        return ranges

    # ── ops ──

    def emit(self, op: Op) -> None:
        if not self._bodies:
            raise CompileError(
                f"{word_of(op)} outside a kernel",
                fix="put it inside `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        self.step()
        for expr in expressions(op):
            check_expression(expr)
        if op.loc is None:
            op = replace(op, loc=locate())
        if isinstance(op, Map):  # a word that stands for a nest
            body = tuple(replace(o, loc=op.loc) if o.loc is None else o for o in op.body)
            op = replace(op, body=body)
        self._bodies[-1].append(op)
        self.emitted += 1
        for buffer in written_buffers(op):
            self._writes[buffer] = self._writes.get(buffer, 0) + 1

    def writes(self, buffer: Buffer) -> int:
        """How many ops so far write the buffer."""
        return self._writes.get(buffer, 0)

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

    def open(self) -> None:
        self._bodies.append([])
        limits.NESTING.check(
            len(self._bodies),
            "too many loops and branches inside each other",
            fix="join conditions with `and`, and loops with T.grid(m, n)",
        )

    def close(self) -> Body:
        return tuple(self._bodies.pop())

    def let(self, value: Expr, name: str | None = None) -> Var:
        """Name a value now."""
        var = self.var(name, value.dtype)
        self.emit(Let(var, value))
        return var

    def snapshot(self, value: Any, name: str | None = None) -> Expr:
        """The value as it is now: loads are taken, large trees named."""
        expr = wrap(value)
        check_expression(expr)
        if (
            is_pure(expr)
            and written_size(expr)[0] <= LARGE_WRITTEN
            and sum(1 for _ in walk(expr)) <= LARGE
        ):
            return expr
        return self.let(expr, name)

    def require_kernel(self, word: str) -> KernelState:
        if self.kernel is None:
            raise CompileError(
                f"T.{word} outside a kernel",
                fix="put it inside `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        return self.kernel

    def require_block(self, word: str) -> KernelState:
        """The kernel, for words that all threads run together."""
        kernel = self.require_kernel(word)
        if self.maps:
            raise CompileError(
                f"T.{word} inside T.Parallel: it works on whole tiles, with all threads together",
                fix="move it out of the T.Parallel loop, or use T.serial around it",
                code="inside-parallel",
            )
        return kernel

    # ── kernels ──

    @contextmanager
    def in_kernel(self, state: KernelState) -> Iterator[None]:
        if self.probing:
            raise Probed
        if self.kernel is not None:
            raise CompileError(
                "T.Kernel inside T.Kernel",
                fix="close the first one; several kernels in one function run in order",
                code="python",
            )
        if self._bodies:
            raise CompileError(
                "T.Kernel inside a run-time branch or loop",
                expected="kernels that run one after the other, always",
                fix="put the branch or the loop inside T.Kernel, or choose at compile time",
            )
        self.kernel = state
        self.step(16)  # a kernel is compiled by itself
        self.open()
        yield
        from tilewright.lang.roles import place

        body = place(self.close(), state)
        self.kernel = None
        rank = state.rank if state.cluster else None
        self.kernels.append(
            Kernel(
                state.name, state.blocks, state.grid, state.thread_vars, state.threads, body,
                state.cluster, rank, loc=state.loc,
            )
        )  # fmt: skip

    def finish(self) -> Program:
        if not self.kernels:
            raise CompileError(
                f"{self.name} has no kernel",
                loc=self.loc,
                fix="open one: `with T.Kernel(...) as ...:`",
                code="outside-kernel",
            )
        used = {v for p in self.params if isinstance(p, Buffer) for s in p.shape + (p.strides or ())
                for v in variables(s)}  # fmt: skip
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


_CURRENT: ContextVar[Builder | None] = ContextVar("builder", default=None)


def current(word: str, what: str = "") -> Builder:
    """The builder of the running trace; `word`, or `what`, is what needs it."""
    builder = _CURRENT.get()
    if builder is None:
        raise CompileError(
            f"{what or f'T.{word}'} outside a kernel function",
            fix="use it in a function decorated with @T.prim_func, @T.macro or @tw.jit",
            code="outside-kernel",
        )
    return builder


@contextmanager
def building(builder: Builder) -> Iterator[Builder]:
    token = _CURRENT.set(builder)
    try:
        yield builder
    finally:
        _CURRENT.reset(token)


def _asked(
    op: str,
    a: object,
    b: object,
    # bound here because weak references may still compare when the module's globals have gone
    current: ContextVar[Builder | None] = _CURRENT,
) -> Expr | bool | None:
    """`a == b` said by a plain helper of the user's while a kernel is traced."""
    if current.get() is None or not is_theirs(sys._getframe(2)):
        return None
    both = (a, b)
    if not all(isinstance(x, (int, float, Expr)) or hasattr(x, "as_expr") for x in both):
        return None
    found = compare(op, wrap(a), wrap(b))
    return bool(found.value) if isinstance(found, Const) else found


_expr.asked = _asked


def static_int(value: Any, what: str, least: int | None = None) -> int:
    """`value` as a compile-time integer."""
    expr = value if isinstance(value, Expr) else None
    if isinstance(expr, Const):
        value = expr.value
    if isinstance(value, bool) or not hasattr(value, "__index__") or (
        expr is not None and not isinstance(expr, Const)
    ):  # fmt: skip
        raise CompileError(
            f"{what} must be a compile-time integer",
            got="a run-time value" if expr is not None else repr(value)[:60],
            fix="use a number, or an argument of the factory",
            code="not-constant",
        )
    number = int(value.__index__())
    if least is not None and number < least:
        raise CompileError(
            f"{what} must be at least {least}", got=str(number), fix=f"write {least} or more"
        )
    return number
