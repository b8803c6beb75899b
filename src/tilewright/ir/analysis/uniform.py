"""Which scalars and local buffers differ between the threads of a block.

A scalar is *uniform* (one value in all threads of the block, or of the role instance) or *per
thread*. Thread indices and what shuffles and votes yield are per thread, and so is whatever is
computed from them, loaded at indices made of them, or stored to a local buffer in a branch or
loop that they decide. Variables of a `Map` are neither: they number iterations, and so does what
is stored to local buffers inside it.

Tile ops are collective, so `check_uniform` refuses per-thread operands of theirs, and barriers or
tile ops that only some threads would reach.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from tilewright.ir.analysis.effects import leaves_early
from tilewright.ir.core import *
from tilewright.ir.intrinsics import INTRINSICS

Name: TypeAlias = Var | Buffer


@dataclass(frozen=True)
class Cause:
    """Why `name` is per thread: because `source` is (None: by its nature), seen at `op`."""

    name: Name
    source: Name | None = None
    op: Op | None = None
    what: str = ""


@dataclass(frozen=True)
class PerThread:
    """The per-thread scalars and local buffers of one kernel."""

    vars: frozenset[Var]
    buffers: frozenset[Buffer]
    causes: Mapping[Name, Cause] = field(default_factory=dict, compare=False, repr=False)
    # by id of an op: what decides which threads run it; all of them where there is no entry
    controls: Mapping[int, Name] = field(default_factory=dict, compare=False, repr=False)

    def source(self, exprs: Expr | Iterable[Expr]) -> Name | None:
        """The first per-thread variable or buffer that the expressions read; None if uniform."""
        return _source((exprs,) if isinstance(exprs, Expr) else exprs, self.causes)

    def runs_apart(self, op: Op) -> bool:
        """Whether threads run `op` each for itself."""
        return id(op) in self.controls or self.source(expressions(op)) is not None

    def why(self, what: Name | Expr) -> tuple[Cause, ...]:
        """From `what` to where the difference between threads comes from; empty if uniform."""
        name = self.source(what) if isinstance(what, Expr) else what
        chain: list[Cause] = []
        while name is not None and name in self.causes:
            chain.append(self.causes[name])
            name = chain[-1].source
        return tuple(chain)

    def explain(self, what: Name | Expr) -> str:
        """`why` in words: '`row`, which depends on `tx`, a thread index'."""
        chain = self.why(what)
        if not chain:
            return "the same in all threads"
        links = ", which depends on ".join(f"`{cause.name.name}`" for cause in chain)
        return f"{links}, {chain[-1].what}" if chain[-1].what else links


@kept
def per_thread(kernel: Kernel) -> PerThread:
    """Finds the per-thread scalars and local buffers by iterating to a fixed point."""
    return _Analysis(kernel).run()


class _Analysis:
    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.causes: dict[Name, Cause] = {}
        # loops that some threads leave early: everything in them runs in a part of the threads
        self.broken: dict[int, Name] = {}
        # by id of an op: what decides which threads run it
        self.controls: dict[int, Name] = {}
        self.roots = {op.buffer: op.source for op in walk_ops(kernel) if isinstance(op, View)}

    def run(self) -> PerThread:
        for var, count in zip(self.kernel.thread_vars, self.kernel.threads, strict=False):
            if count > 1:
                self.causes[var] = Cause(var, what="a thread index")
        size = -1
        while size != (size := len(self.causes) + len(self.broken)):
            self.body(self.kernel.body, None, None)
            for view, source in self.roots.items():
                for a, b in ((view, source), (source, view)):
                    if b in self.causes and a.space is Space.LOCAL:
                        self.causes.setdefault(a, Cause(a, b))
        names = self.causes
        return PerThread(
            frozenset(n for n in names if isinstance(n, Var)),
            frozenset(n for n in names if isinstance(n, Buffer)),
            names,
            self.controls,
        )

    def mark(self, name: Name | None, source: Name | None, op: Op, what: str = "") -> None:
        if name is not None and (source is not None or what):
            self.causes.setdefault(name, Cause(name, source, op, what))

    def source(self, exprs: Iterable[Expr]) -> Name | None:
        return _source(exprs, self.causes)

    def body(self, body: Body, control: Name | None, loop: int | None) -> Name | None:
        """`control` decides which threads run the body. Returns what decides after it, within
        the innermost loop: some threads may have gone on to its next iteration."""
        for op in body:
            control = _first(self.visit(op, control, loop), control)
        return control

    def visit(self, op: Op, control: Name | None, loop: int | None) -> Name | None:
        if control is not None:
            self.controls.setdefault(id(op), control)
        own = self.source(expressions(op))
        match op:
            case Break() if control is not None and loop is not None:
                self.broken.setdefault(loop, control)
                return control
            case Continue():
                return control
            case For() | While():
                inner = _first(own, control, self.broken.get(id(op)))
                if isinstance(op, For):
                    self.mark(op.var, own, op)
                self.body(op.body, inner, id(op))
                return None
            case If():
                inner = _first(own, control)
                left = [self.body(side, inner, loop) for side in (op.then, op.orelse)]
                if leaves_early((op,), Continue):
                    return _first(*left)
                return None
            case Let():
                self.mark(op.var, own, op)
            case Atomic():
                self.mark(op.result, _first(own, control), op)
            case Intrinsic():
                effect = INTRINSICS.get(op.name)
                foreign = effect is None or effect.opaque
                if foreign or (effect is not None and effect.convergent):
                    self.mark(op.result, None, op, f"the result of `{op.name}`")
                if foreign:
                    for region in (a for a in op.args if isinstance(a, Region)):
                        if region.buffer.is_local:
                            self.mark(region.buffer, None, op, f"an operand of `{op.name}`")
        read = (r.buffer for r in regions(op, reads=True) if r.buffer in self.causes)
        for buffer in written_buffers(op):
            if buffer.is_local:
                self.mark(buffer, _first(own, next(read, None), control), op)
        for inner_body in bodies(op):
            self.body(inner_body, control, loop)
        return None


def _source(exprs: Iterable[Expr], causes: Mapping[Name, Cause]) -> Name | None:
    for expr in exprs:
        if not isinstance(expr, Const):
            for node in walk(expr):
                name = node.buffer if isinstance(node, Load) else node
                if name in causes:
                    return name  # type: ignore[return-value]
    return None


def _first(*names: Name | None) -> Name | None:
    # not `a or b`: the truth of a run-time value is an error
    return next((name for name in names if name is not None), None)


# ── checking ─────────────────────────────────────────────────────────────────────────────────

TILE_OPS: dict[type[Op], str] = {
    Copy: "copy",
    Fill: "fill",
    Gemm: "gemm",
    Reduce: "reduction",
    Scan: "scan",
    Relayout: "relayout",
    Map: "T.Parallel loop",
}


def is_collective(op: Op) -> bool:
    """Whether `op`, outside of roles, is one deed of all threads, not one of each."""
    if isinstance(op, (Atomic, Intrinsic)):
        return op.result is None
    return isinstance(op, (*TILE_OPS, Arrive))


def check_uniform(kernel: Kernel) -> PerThread:
    """Raises a `CompileError` where a tile op or a block-wide barrier is not collective; returns
    the analysis otherwise."""
    found = per_thread(kernel)
    for op in walk_ops(kernel.body):
        control = found.controls.get(id(op))
        meets = isinstance(op, Sync) and op.scope in ("block", "cluster")
        if control is not None and (meets or isinstance(op, Turn)):
            noun = f"{op.scope} barrier" if isinstance(op, Sync) else "turn of a role"
            raise CompileError(
                f"a {noun} that not all of its threads reach",
                loc=op.loc,
                got=f"a branch or loop around it that depends on {found.explain(control)}",
                fix="move the barrier out of the branch, so that every thread runs it",
                code="not-uniform",
            )
        if isinstance(op, For) and op.kind in ("pipelined", "persistent"):
            _refuse(found, op, f"the bounds of a {op.kind} loop", expressions(op))
        noun = _tile_op(op)
        if noun:
            _check_tile_op(found, op, noun, control)
    return found


def check_reached(kernel: Kernel, found: PerThread) -> None:
    """Raises where not all threads reach a tile op of a text that a person laid out. Maps may stand
    under a guard that a range of threads passes."""
    for op in walk_ops(kernel.body):
        control, noun = found.controls.get(id(op)), _tile_op(op)
        if control is not None and noun and not isinstance(op, Map):
            _check_tile_op(found, op, noun, control)


def _tile_op(op: Op) -> str:
    """What to call a collective op; '' for one that each thread runs by itself."""
    if isinstance(op, Atomic):
        return "tile atomic" if op.src is not None else ""
    touched = [x.buffer for x in operands(op) if isinstance(x, Region)]
    if isinstance(op, (Copy, Fill)) and all(b.is_local for b in touched):
        return ""
    return TILE_OPS.get(type(op), "")


# what the threads of a branch do by themselves
_BY_SOME: Mapping[type[Op], str] = {
    Map: "; a branch may test for threads that follow each other, with constants: `if lo <= t < hi`"
    "; or give each thread its own elements: `for i in T.serial(t, n, 32)` under `if t < 32`",
}


def _check_tile_op(found: PerThread, op: Op, noun: str, control: Name | None) -> None:
    if control is not None:
        raise CompileError(
            f"a {noun} is done by all threads together, but not all of them reach this one",
            loc=op.loc,
            got=f"a branch or loop around it that depends on {found.explain(control)}",
            fix="branch on something that is the same in all threads, or move the "
            f"{noun} out of the branch" + _BY_SOME.get(type(op), ""),
            code="not-uniform",
        )
    if isinstance(op, Map):
        _refuse(found, op, "the extents of a T.Parallel loop", op.extents)
        for inner in walk_ops(op.body):
            _refuse(found, inner, "a value used inside T.Parallel", expressions(inner))
        return
    _refuse(found, op, f"an operand of a {noun}", expressions(op))
    for region in regions(op, reads=True, writes=True):
        if region.buffer in found.buffers:
            _fail(found, op, f"a buffer that a {noun} works on", region.buffer)


def _refuse(found: PerThread, op: Op, what: str, exprs: Iterable[Expr]) -> None:
    name = found.source(exprs)
    if name is not None:
        _fail(found, op, what, name)


def _fail(found: PerThread, op: Op, what: str, name: Name) -> None:
    raise CompileError(
        f"{what} must be the same in all threads",
        loc=op.loc,
        got=found.explain(name),
        fix="use block indices, loop variables and values computed from them, or write this part "
        "per thread, with thread indices and single elements",
        notes=tuple(
            f"`{c.name.name}` is set at {c.op.loc}"
            for c in found.why(name)
            if c.op is not None and c.op.loc is not None
        ),
        code="not-uniform",
    )
