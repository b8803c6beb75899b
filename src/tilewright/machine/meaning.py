"""The table from op class to meaning, and what its entries share.

A meaning turns an op, once, into a `Step`: a function of a `Frame`, or a generator function that
yields wherever its agent has to wait for others. Bodies, loops and branches are generators too,
so one engine runs sequential programs straight through and interleaves scheduled ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tilewright.ir.buffer import Buffer, Region
from tilewright.ir.expr import Var, variables
from tilewright.ir.op import (
    Body,
    Break,
    Continue,
    For,
    Kernel,
    Let,
    Op,
    View,
    While,
    bodies,
    expressions,
    op_loads,
    regions,
    walk_ops,
)
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.lanes import Frame
from tilewright.support.errors import RunError


@dataclass
class Blocked:
    """Why an agent waits, and whether it still has to."""

    ready: Callable[[], bool]
    why: Callable[[], str]


Run = Callable[[Frame], Any]
Flow = Generator["Blocked | None", None, None]  # None: others may go first


@dataclass(frozen=True)
class Step:
    """What an op does. `waits`: `run` is a generator function."""

    op: Op
    run: Run
    waits: bool = False
    jumps: bool = False


Meaning = Callable[["Builder", Any], Step]
MEANINGS: dict[type[Op], Meaning] = {}
_M = TypeVar("_M", bound=Meaning)


def meaning(*ops: type[Op]) -> Callable[[_M], _M]:
    """Registers the meaning of an op class."""

    def register(fn: _M) -> _M:
        for op in ops:
            MEANINGS[op] = fn
        return fn

    return register


@dataclass
class Family:
    """A buffer and the views of its memory."""

    unit: int  # width in bits of the narrowest element type
    packed: bool  # kept as bytes, because a sub-byte type is seen under another width
    viewed: bool = False


@dataclass
class Builder:
    """Turns the ops of one kernel into steps."""

    kernel: Kernel
    evaluate: Evaluator
    explicit: bool = False  # the program places every synchronisation itself
    families: dict[str, Family] = field(default_factory=dict)
    index_vars: set[Var] = field(default_factory=set)
    role_depth: int = 0
    wrap: Callable[[Step], Step] | None = None  # told of every step as it is built (step.py)

    def __post_init__(self) -> None:
        self.families = find_families(self.kernel)
        if self.evaluate.sanitize:
            self.index_vars = find_index_vars(self.kernel)

    def family(self, buffer: Buffer) -> Family:
        found = self.families.get(buffer.name)
        return found or Family(buffer.dtype.bits, False)

    def step(self, op: Op) -> Step:
        found = MEANINGS.get(type(op))
        if found is None:
            raise RunError(f"the interpreter has no meaning for {type(op).__name__}", loc=op.loc)
        return found(self, op) if self.wrap is None else self.wrap(found(self, op))

    def body(self, ops: Body) -> Run:
        """A generator function that runs `ops` in order."""
        steps = [self.step(op) for op in ops]
        if any(s.jumps for s in steps):
            return _jumping(steps)
        plan = [(s.op, s.run, s.waits) for s in steps]

        def run(fr: Frame) -> Flow:
            for op, step, waits in plan:
                fr.op = op
                if waits:
                    yield from step(fr)
                else:
                    step(fr)

        return run


def _jumping(steps: list[Step]) -> Run:
    """A body in which `break` or `continue` may switch lanes off."""

    def run(fr: Frame) -> Flow:
        entry = fr.mask
        for step in steps:
            fr.op = step.op
            if step.waits:
                yield from step.run(fr)
            else:
                step.run(fr)
            if step.jumps and fr.stop is not None:
                if fr.stop is True:
                    break
                left = ~fr.stop if entry is None else entry & ~fr.stop
                if not left.any():
                    break
                fr.mask = left
        fr.mask = entry

    return run


def has_jump(op: Op) -> bool:
    """`op` may leave or continue a loop around it."""
    if isinstance(op, (Break, Continue)):
        return True
    if isinstance(op, (For, While)):
        return False
    return any(has_jump(each) for inner in bodies(op) for each in inner)


def find_families(kernel: Kernel) -> dict[str, Family]:
    """Which buffers share memory through `View`, and how finely it is tracked."""
    parent: dict[str, str] = {}
    widths: dict[str, set[int]] = {}

    def root(name: str) -> str:
        while parent.get(name, name) != name:
            name = parent[name]
        return name

    for op in walk_ops(kernel):
        if isinstance(op, View):
            top = root(op.source.name)
            parent[op.buffer.name] = top
            widths.setdefault(top, {op.source.dtype.bits}).update(
                (op.source.dtype.bits, op.buffer.dtype.bits)
            )
    found: dict[str, Family] = {}
    for top, bits in widths.items():
        if len(bits) > 1 and 6 in bits:
            raise RunError("a 6-bit type cannot be viewed under another width", loc=kernel.loc)
        found[top] = Family(min(bits), len(bits) > 1 and min(bits) < 8, True)
    return {**found, **{name: found[root(name)] for name in parent}}


def find_index_vars(kernel: Kernel) -> set[Var]:
    """Variables whose value ends up in an index."""
    indexed: set[Var] = set()
    lets: dict[Var, Let] = {}
    for op in walk_ops(kernel):
        if isinstance(op, Let):
            lets[op.var] = op
        for load in op_loads(op):
            for index in load.indices:
                indexed |= variables(index)
        for region in (*regions(op, reads=True), *regions(op, writes=True)):
            for start in region.starts:
                indexed |= variables(start)
        for index in getattr(op, "indices", ()):
            indexed |= variables(index)
    todo = list(indexed)
    while todo:
        let = lets.get(todo.pop())
        if let is not None:
            new = variables(let.value) - indexed
            indexed |= new
            todo += new
    return indexed


def free_vars(ops: Body) -> set[Var]:
    """Variables mentioned anywhere in `ops`."""
    found: set[Var] = set()
    for op in walk_ops(ops):
        for expr in expressions(op):
            found |= variables(expr)
    return found


def named_buffers(op: Op) -> set[Buffer]:
    """Buffers that `op` itself mentions."""
    found = {load.buffer for load in op_loads(op)}
    for value in vars(op).values():
        for each in value if isinstance(value, tuple) else (value,):
            if isinstance(each, Buffer):
                found.add(each)
            elif isinstance(each, Region):
                found.add(each.buffer)
    return found


def drain(flow: Flow, fr: Frame) -> None:
    """Run something that must not wait."""
    for _ in flow:
        raise RunError("this cannot wait here: it stands inside an elementwise nest", loc=fr.loc())
