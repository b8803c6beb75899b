"""Expressions over lanes: each `Expr` is compiled once into a Python function of a `Frame`.

Shared subtrees are evaluated once. `Select`, `and` and `or` evaluate a side that may fault (it
loads, or a check watches it) only under the lanes that chose it; other sides are computed in all
lanes, where garbage does no harm.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import numpy as np

from tilewright.ir.core import *
from tilewright.machine.lanes import *
from tilewright.machine.numbers import Value, bin_fn, call_fn, cast_fn, cmp_fn
from tilewright.machine.state import Frame, in_lane

_EXACT: dict[str, Any] = {"+": np.add, "-": np.subtract, "*": np.multiply}


def _refuse(fr: Frame, wrong: Any, kind: str, message: str, fix: str = "") -> None:
    """An error where an active lane is `wrong`."""
    wrong = wrong if fr.mask is None or not np.any(wrong) else wrong & fr.mask
    if np.any(wrong):
        raise in_lane(SanitizerError(kind, message, fix=fix), fr, wrong)


def divides(fr: Frame, divisor: Any) -> None:
    """No active lane divides by zero."""
    _refuse(
        fr,
        divisor == 0,
        "division-by-zero",
        "an integer is divided by zero",
        "guard the division, e.g. T.if_then_else(d != 0, n // d, 0)",
    )


def shifts(fr: Frame, op: str, count: Any) -> None:
    """No active lane shifts by a negative count."""
    _refuse(
        fr,
        count < 0,
        "negative-shift",
        f"'{op}' by a negative count: {int(np.min(count))}",
        "guard it, e.g. T.if_then_else(n >= 0, x << n, x >> -n)",
    )


def steps(fr: Frame, step: Any) -> None:
    """No active lane counts by zero."""
    _refuse(
        fr,
        step == 0,
        "zero-step",
        "a loop counts by a step of zero, so it has no iterations",
        "guard the loop: if step != 0",
    )


def fits(fr: Frame, op: str, a: Any, b: Any) -> None:
    """`a op b` stays inside int32 in every active lane."""
    exact = _EXACT[op](a.astype(np.int64), b.astype(np.int64))
    wrong = (exact < -(1 << 31)) | (exact >= 1 << 31)
    if not np.any(wrong):
        return
    worst = int(np.max(np.where(wrong, exact, 0))) or int(np.min(np.where(wrong, exact, 0)))
    _refuse(
        fr,
        wrong,
        "index-overflow",
        f"an index computed in int32 overflows: '{op}' gives {worst}",
        'compute it in int64: T.cast(i, "int64")',
    )


def born_nan(fr: Frame, node: Expr, result: Any, args: tuple[Any, ...]) -> None:
    """A NaN in the result comes from a NaN in an operand."""
    new = _nan(result)
    if not new.any():
        return
    for arg in args:
        new = new & ~_nan(arg)
    _refuse(fr, new, "nan", f"NaN is born in {node} though no operand is NaN")


def _nan(x: Any) -> Any:
    return np.isnan(np.asarray(x).astype(np.float64))


Eval = Callable[[Frame], Value]
Done = dict[tuple[int, bool], str]  # what a scope has computed: an expression, its name


class Evaluator:
    """Compiles expressions, with the checks that were asked for built in."""

    def __init__(self, *, sanitize: bool = False, nan: bool = False) -> None:
        self.sanitize = sanitize
        self.nan = nan
        self._cache: dict[Any, tuple[Expr, Eval]] = {}
        self._faults: dict[int, tuple[Expr, bool]] = {}

    def __call__(self, expr: Expr, *, index: bool = False) -> Eval:
        """The function that evaluates `expr`; `index`: watch it for int32 overflow."""
        index = index and self.sanitize
        key = (id(expr), index)
        found = self._cache.get(key)
        if found is None:
            found = self._cache[key] = (expr, self._compile(expr, index))
        return found[1]

    def region(self, region: Region) -> TileRegion:
        return TileRegion(
            region,
            tuple(self(s, index=True) for s in region.starts),
            tuple(int(e.value) if isinstance(e, Const) else self(e) for e in region.extents),
            None if region.cta is None else self(region.cta),
        )

    def _compile(self, expr: Expr, index: bool) -> Eval:
        if isinstance(expr, Const):
            value = constant(expr)
            return lambda fr: value
        if isinstance(expr, Var):
            name = expr.name
            return lambda fr: lookup(fr, name)
        return _Writer(self).compile(expr, index)

    def may_fault(self, expr: Expr) -> bool:
        """Evaluating `expr` in a lane that did not choose it could raise an error."""
        found = self._faults.get(id(expr))
        if found is None:
            found = self._faults[id(expr)] = (expr, any(map(self._faulty, walk(expr))))
        return found[1]

    def _faulty(self, node: Expr) -> bool:
        if isinstance(node, Load):
            return True
        if self.sanitize and isinstance(node, Bin) and node.dtype.is_int:
            return node.op in ("//", "%", "+", "-", "*", "<<", ">>")
        return self.nan and node.dtype.is_float and isinstance(node, (Bin, Call, Cast))


def constant(expr: Const) -> Value:
    return (
        np.asarray(expr.value)
        .astype(np.float64 if expr.dtype.is_float else np.asarray(expr.value).dtype)
        .astype(expr.dtype.numpy)[()]
    )


def _may_be_negative(count: Expr) -> bool:
    """A shift's count that was not an unsigned number before it took the other side's type."""
    while isinstance(count, Cast) and count.dtype.kind == "int":
        count = count.a
    return count.dtype.kind == "int" and not isinstance(count, Const)


def lookup(fr: Frame, name: str) -> Value:
    found = fr.vars.get(name)
    if found is None:
        raise RunError(f"{name} is used where it has no value")
    return found


DEEPEST = 4 * 60  # columns: Python indents a hundred levels, a chain of choices may be longer


@lru_cache(maxsize=4096)
def _code_of(source: str) -> CodeType:
    return compile(source, "<expression>", "exec")


class _Writer:
    """Writes the Python source of one expression."""

    def __init__(self, owner: Evaluator) -> None:
        self.owner = owner
        self.lines: list[str] = []
        self.names: dict[str, Any] = {
            "gather": gather, "narrow": narrow, "pick": pick,
            "narrow_not": narrow_not, "lazy_and": lazy_and, "lazy_or": lazy_or, "lookup": lookup,
            "NOTHING": NOTHING, "divides": divides, "fits": fits,
            "born_nan": born_nan, "shifts": shifts,
        }  # fmt: skip
        self.count = 0

    def compile(self, expr: Expr, index: bool) -> Eval:
        result = self.emit(expr, {}, "    ", index)
        source = "\n".join(["def evaluate(fr):", *self.lines, f"    return {result}"])
        exec(_code_of(source), self.names)
        evaluate: Eval = self.names.pop("evaluate")  # which knows the others
        return evaluate

    def fresh(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def keep(self, value: Any) -> str:
        name = f"k{len(self.names)}"
        self.names[name] = value
        return name

    def emit(self, node: Expr, done: Done, pad: str, index: bool) -> str:
        """Write `node`, after what it is computed of: a register that is chosen at run time is a
        chain of hundreds. `done` holds what this scope has already computed."""
        left = [node]
        while left:
            each = left[-1]
            parts = () if isinstance(each, Load) or self.chooses(each) else each.children
            todo = [p for p in reversed(parts) if (id(p), index) not in done]
            if todo and (id(each), index) not in done:
                left += todo
                continue
            left.pop()
            if (id(each), index) not in done:
                done[id(each), index] = self.write(each, done, pad, index)
        return done[id(node), index]

    def chooses(self, node: Expr) -> bool:
        """Whether a side of it is for the lanes that chose it only."""
        if isinstance(node, Select):
            return self.owner.may_fault(node.a) or self.owner.may_fault(node.b)
        return isinstance(node, Bin) and node.op in ("and", "or") and self.owner.may_fault(node.b)

    def assign(self, pad: str, text: str) -> str:
        name = self.fresh()
        self.lines.append(f"{pad}{name} = {text}")
        return name

    def write(self, node: Expr, done: Done, pad: str, index: bool) -> str:
        if isinstance(node, Const):
            return self.keep(constant(node))
        if isinstance(node, Var):
            return self.assign(pad, f"lookup(fr, {node.name!r})")
        if isinstance(node, Load):
            return self.load(node, done, pad)
        if isinstance(node, Select) and self.chooses(node):
            cond = self.emit(node.cond, done, pad, False)
            sides = [
                self.branch(narrowing, cond, side, done, pad, index)
                for narrowing, side in (("narrow", node.a), ("narrow_not", node.b))
            ]
            return self.assign(pad, f"pick({cond}, {', '.join(sides)})")
        if isinstance(node, Bin) and self.chooses(node):
            cond = self.emit(node.a, done, pad, False)
            narrowing = "narrow" if node.op == "and" else "narrow_not"
            side = self.branch(narrowing, cond, node.b, done, pad, False)
            return self.assign(pad, f"lazy_{node.op}({cond}, {side})")
        return self.apply(node, done, pad, index)

    def branch(
        self, narrowing: str, cond: str, side: Expr, done: Done, pad: str,
        index: bool,
    ) -> str:  # fmt: skip
        """`side` under the lanes that chose it; None where no lane did."""
        saved, inner, result = self.fresh(), self.fresh(), self.fresh()
        deeper = pad + "    "
        self.lines += [
            f"{pad}{result} = None",
            f"{pad}{saved} = fr.mask",
            f"{pad}{inner} = {narrowing}({saved}, {cond})",
            f"{pad}if {inner} is not NOTHING:",
            f"{deeper}fr.mask = {inner}",
        ]
        if len(pad) < DEEPEST:
            value = self.emit(side, dict(done), deeper, index)
        else:
            value = f"{self.keep(self.owner(side, index=index))}(fr)"
        self.lines += [f"{deeper}{result} = {value}", f"{deeper}fr.mask = {saved}"]
        return result

    def load(self, node: Load, done: Done, pad: str) -> str:
        memory = self.assign(pad, f"fr.bufs[{node.buffer.name!r}]")
        where = self.keep(node)
        parts = [self.emit(i, done, pad, self.owner.sanitize) + ", " for i in node.indices]
        return self.assign(pad, f"gather(fr, {memory}, ({''.join(parts)}), {where})")

    def apply(self, node: Expr, done: Done, pad: str, index: bool) -> str:
        args = [self.emit(child, done, pad, index) for child in node.children]
        listed = ", ".join(args)
        owner = self.owner
        if isinstance(node, Bin):
            if owner.sanitize and node.dtype.is_int and node.op in ("//", "%"):
                self.lines.append(f"{pad}divides(fr, {args[1]})")
            if owner.sanitize and node.op in ("<<", ">>") and _may_be_negative(node.b):
                self.lines.append(f"{pad}shifts(fr, {node.op!r}, {args[1]})")
            if index and node.dtype.name == "int32" and node.op in ("+", "-", "*"):
                self.lines.append(f"{pad}fits(fr, {node.op!r}, {listed})")
            fn = bin_fn(node.op, node.dtype)
        elif isinstance(node, Cmp):
            fn = cmp_fn(node.op, node.a.dtype)
        elif isinstance(node, Cast):
            fn = cast_fn(node.a.dtype, node.dtype)
        elif isinstance(node, Select):
            fn = pick
        elif isinstance(node, Call):
            fn = call_fn(node.name, tuple(a.dtype for a in node.args), node.dtype)
            if owner.sanitize and node.name == "fmod" and node.dtype.is_int:
                self.lines.append(f"{pad}divides(fr, {args[1]})")
        else:
            raise RunError(f"no meaning for {type(node).__name__}")
        result = self.assign(pad, f"{self.keep(fn)}({listed})")
        if owner.nan and node.dtype.is_float and not isinstance(node, Select):
            floats = [a for a, c in zip(args, node.children, strict=True) if c.dtype.is_float]
            name = self.keep(node)
            self.lines.append(
                f"{pad}born_nan(fr, {name}, {result}, ({''.join(f + ', ' for f in floats)}))"
            )
        return result
