"""The table from op class to meaning, and what its entries share.

A meaning is a function of an op, its operands and a `Frame`, or a generator function that yields
wherever its agent has to wait for others. Where more is found out before a kernel runs, it is a
function of the builder and the op that returns such a function of a frame. Bodies, loops and
branches are generators too, so one engine runs sequential programs straight through and
interleaves scheduled ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import isgeneratorfunction, signature
from typing import Any, TypeVar

from tilewright.ir.atoms import ATOMS
from tilewright.ir.core import *
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.lanes import NOTHING, narrow
from tilewright.machine.numbers import Array
from tilewright.machine.state import Frame
from tilewright.machine.sync import Flow
from tilewright.support.errors import at

Run = Callable[[Frame], Any]


@dataclass(frozen=True)
class Step:
    """What an op does. `waits`: `run` is a generator function."""

    op: Op
    run: Run
    waits: bool
    jumps: bool  # it may switch lanes off


Meaning = Callable[..., Any]
Key = type[Op] | str | tuple[str, type[Op]]  # an op, an intrinsic's name, ops of some instruction
TILES: dict[Key, Meaning] = {}
THREADS: dict[Key, Meaning] = {}  # at stage THREAD
_M = TypeVar("_M", bound=Callable[..., Any])


def _registers(*tables: dict[Key, Meaning]) -> Callable[..., Callable[[_M], _M]]:
    def meaning(*keys: Key) -> Callable[[_M], _M]:
        """Registers the meaning of op classes, or of intrinsics by name."""

        def register(fn: _M) -> _M:
            for table in tables:
                table.update(dict.fromkeys(keys, fn))
            return fn

        return register

    return meaning


tile_meaning, thread_meaning = _registers(TILES), _registers(THREADS)
meaning = _registers(TILES, THREADS)


@dataclass
class Family:
    """A buffer and the views of its memory."""

    unit: int  # width in bits of the narrowest element type
    packed: bool  # kept as bytes, because a sub-byte type is seen under another width
    viewed: bool = False


@dataclass
class TensorMap:
    """A tensor, the box that one copy moves, and the swizzle in bytes."""

    tensor: Buffer
    swizzle: int
    box: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    def seen(self, data: Array) -> Array:
        """The tensor as the box sees it: under the shape of a view; with one dimension more, rows
        lie in pieces."""
        if self.sizes:
            data = data.reshape(self.sizes)
        if len(self.box) == data.ndim:
            return data
        return data.reshape(*data.shape[:-1], -1, self.box[-1])


@dataclass
class Builder:
    """Turns the ops of one kernel into steps."""

    kernel: Kernel
    evaluate: Evaluator
    explicit: bool = False  # the program places every synchronisation itself
    families: dict[str, Family] = field(default_factory=dict)
    index_vars: set[Var] = field(default_factory=set)
    role_depth: int = 0
    in_map: bool = False
    threads: bool = False  # the kernel is at stage THREAD
    registers: set[str] = field(default_factory=set)  # there, those of matrix instructions
    maps: dict[str, TensorMap] = field(default_factory=dict)
    wrap: Callable[[Step], Step] | None = None  # told of every step as it is built (step.py)

    def __post_init__(self) -> None:
        self.families = find_families(self.kernel)
        if self.evaluate.sanitize:
            self.index_vars = find_index_vars(self.kernel)

    def family(self, buffer: Buffer) -> Family:
        found = self.families.get(buffer.name)
        return found or Family(buffer.dtype.bits, False)

    def step(self, op: Op) -> Step:
        table, key = THREADS if self.threads else TILES, type(op)
        found = table.get(op.name) if isinstance(op, Intrinsic) else None
        atom = op.atom if isinstance(op, (Copy, Gemm)) else None
        if atom is not None and ATOMS[atom].is_async:
            found = table.get(("async", key))
        found = found or table.get(key)
        if found is None:
            stage = " at stage THREAD" if self.threads else ""
            raise RunError(f"the interpreter has no meaning for {key.__name__}{stage}", loc=op.loc)
        with at(op.loc):
            run = self.bound(found, op) if "fr" in _parameters(found) else found(self, op)
        step = Step(op, run, isgeneratorfunction(run), has_jump(op))
        return step if self.wrap is None else self.wrap(step)

    def bound(self, meaning: Meaning, op: Op) -> Run:
        """`meaning` of an op and its operands. It names them as the op's fields; other names are
        those of an intrinsic's operands, in order."""
        given, args = {"builder": self, "op": op}, iter(getattr(op, "args", ()))
        nested = [f.name for f in marked(op, "body")]
        for name in _parameters(meaning)[:-1]:
            if name in nested:
                given[name] = self.body(getattr(op, name))
            elif name not in given:
                given[name] = self.operand(getattr(op, name) if hasattr(op, name) else next(args))
        return partial(meaning, *map(given.get, _parameters(meaning)[:-1]))

    def operands(self, *args: Expr | Region | None) -> list[Any]:
        """Expressions and regions as functions of a frame."""
        return [self.operand(arg) for arg in args]

    def operand(self, arg: Any) -> Any:
        if arg is None:
            return None
        if isinstance(arg, tuple):
            return self.operands(*arg)
        return self.evaluate.region(arg) if isinstance(arg, Region) else self.evaluate(arg)

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


@cache
def _parameters(meaning: Meaning) -> list[str]:
    return list(signature(meaning).parameters)


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
                fr.mask = narrow(entry, ~fr.stop)
                if fr.mask is NOTHING:
                    break
        fr.mask = entry

    return run


def has_jump(op: Op) -> bool:
    """`op` may leave or continue a loop around it."""
    if isinstance(op, (Break, Continue)):
        return True
    if isinstance(op, (For, While, Map)):
        return False
    return any(has_jump(each) for inner in bodies(op) for each in inner)


def find_families(kernel: Kernel) -> dict[str, Family]:
    """Which buffers share memory through `View`, and how finely it is tracked."""
    tops: dict[str, str] = {}
    widths: dict[str, set[int]] = {}
    for op in walk_ops(kernel, View):
        top = tops[op.buffer.name] = tops.get(op.source.name, op.source.name)
        widths.setdefault(top, set()).update((op.source.dtype.bits, op.buffer.dtype.bits))
    found: dict[str, Family] = {}
    for top, bits in widths.items():
        if len(bits) > 1 and 6 in bits:
            raise RunError("a 6-bit type cannot be viewed under another width", loc=kernel.loc)
        found[top] = Family(min(bits), len(bits) > 1 and min(bits) < 8, True)
    return {**found, **{name: found[top] for name, top in tops.items()}}


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
