"""Random formulas of the math level, run as tile programs and compared with what they mean in
float64.

    python -m devtools.fuzz.formulas --count 200 --target cpu
    python -m devtools.fuzz.formulas --count 100 --target threads
    python -m devtools.fuzz.formulas --count 100 --target dynamic
    python -m devtools.fuzz.formulas --count 100 --target "cpu plans"

`dynamic` is the CPU with sizes that calls give; `plans` draws decisions and schedules, too.

How far a result may be off follows from the formula: its meaning is computed again with a little
noise in every operation (that of 16 bits where operands of products are rounded so), and the
spread of these is what rounding can do. Where noise decides a comparison, anything is right.
"""

from __future__ import annotations

import linecache
import re
import time
import warnings
from collections import Counter
from dataclasses import dataclass, field
from inspect import signature
from random import Random
from typing import Any

import numpy as np

import tilewright.math as tm
from devtools.fuzz.command import run_command
from devtools.fuzz.formula_draw import Crash, Data, Formula
from devtools.fuzz.formula_moves import make
from devtools.fuzz.formula_plans import drawn_plan
from devtools.fuzz.tile_values import HOPPER, THREADS, by_threads
from tilewright.formula.function import MathFunction, math
from tilewright.formula.meaning import Evaluator, computed
from tilewright.ir import formula as ir
from tilewright.ir.core import *
from tilewright.support.errors import CompileError

_ULP = {"float64": 2.0**-40, "float32": 2e-5, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDS = {"float16": 2.0**-10, "bfloat16": 2.0**-7}
DYNAMIC, PLANS = "dynamic", " plans"
_EXACT = {"neg", "abs", "floor", "ceil", "trunc", "round", "copysign", "isnan", "max_nan",
          "min_nan", "sign"}  # fmt: skip


class _Noisy(Evaluator):
    """Every operation is a little off."""

    noise, rng = 0.0, np.random.default_rng(0)

    def _value(self, node: Expr) -> Any:
        found = super()._value(node)
        match node:
            case Cast(dtype=dtype) if str(dtype) in _ROUNDS:
                noise = _ROUNDS[str(dtype)]
            case Bin(op="+" | "-" | "*" | "/") if node.dtype.is_float:
                noise = self.noise
            case Call(name=name) if node.dtype.is_float and name not in _EXACT:
                noise = self.noise
            case _:
                return found
        with np.errstate(all="ignore"):
            return found * (1 + noise * self.rng.uniform(-1, 1, np.shape(found)))


def meaning(formula: ir.Formula, arrays: list[Data], noise: float = 0.0, seed: int = 0) -> Any:
    """The outputs in float64, with noise in each operation."""
    values = {
        b.name: x.astype(np.float64) if b.dtype.is_float else x
        for b, x in zip(formula.inputs, arrays, strict=True)
    }
    _Noisy.noise, _Noisy.rng = noise, np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        for a in formula.arrays:
            values[a.name] = computed(a, values, True, _Noisy if noise else Evaluator)
    return [values[b.name] for b in formula.outputs]


def noise_of(formula: ir.Formula) -> float:
    """What an operation may be off: where something is summed, operands may be rounded to the 16
    bits of an input."""
    kinds = {str(b.dtype) for b in formula.inputs}
    narrow = [_ROUNDS[k] for k in kinds & set(_ROUNDS)]
    sums = any(a.monoid == "sum" and not a.scan for a in formula.arrays)
    return max(narrow) if narrow and sums else 2.0**-21


def differs(formula: ir.Formula, arrays: list[Data], got: list[Data]) -> str:
    """Where results are others than the formula says."""
    want = meaning(formula, arrays)
    samples = [meaning(formula, arrays, noise_of(formula), seed) for seed in (1, 2, 3)]
    for n, (b, w, g) in enumerate(zip(formula.outputs, want, got, strict=True)):
        if g.shape != w.shape or g.dtype != b.dtype.numpy:
            return f"output {n} is {g.dtype}{g.shape}, not {b.dtype}{w.shape}"
        if b.dtype.is_float:
            w = w.astype(b.dtype.numpy).astype(np.float64)
        a, c = w.astype(np.float64), g.astype(np.float64)
        with np.errstate(all="ignore"):
            spread = np.max([abs(s[n].astype(np.float64) - a) for s in samples], axis=0)
            vague = ~(spread < np.inf) & np.isfinite(a)
            near = 6 * spread + _ULP.get(str(b.dtype), 0.0) * (1 + abs(a))
            same = (a == c) | (np.isnan(a) & np.isnan(c)) | (abs(a - c) <= near) | vague
            if not b.dtype.is_float:
                same |= spread > 0
        if not same.all():
            at = tuple(int(k) for k in np.argwhere(~same)[0])
            bound = float(near[at]) if near.shape else float(near)
            return (
                f"output {n} at {at} should be {a[at]}, is {c[at]}, {bound:.2g} would do; "
                f"{int((~same).sum())} of {same.size} differ"
            )
    return ""


@dataclass(frozen=True)
class Finding:
    kind: str  # mismatch or crash
    said: str
    formula: Formula

    def __str__(self) -> str:
        return f"{self.kind} (seed {self.formula.seed}): {self.said}\n\n{self.formula}"


def function_of(formula: Formula) -> Any:
    text, file = formula.text, f"<formula {formula.seed} {abs(hash(formula.text)):x}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"__name__": "fuzzed", "tm": tm}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    return space["formula"]


def computed_by(
    function: Any, arrays: list[Data], target: str, seed: int = 0
) -> tuple[ir.Formula, list[Data]]:
    """The formula of a function, and what it gives; `threads` runs the thread code of a GPU."""
    return results_of(prepared(function, arrays, target, seed), arrays, target)


def prepared(function: Any, arrays: list[Data], target: str, seed: int) -> MathFunction:
    """The function for a target, with the plan of a seed where one is asked for."""
    where = target.removesuffix(PLANS)
    f: MathFunction = math(
        function, target={THREADS: HOPPER, DYNAMIC: "cpu"}.get(where, where),
        dynamic=_sizes(function, arrays) if where == DYNAMIC else {},
    )  # fmt: skip
    return f.with_plan(drawn_plan(f, arrays, Random(seed))) if where != target else f


def results_of(f: MathFunction, arrays: list[Data], target: str) -> tuple[ir.Formula, list[Data]]:
    made, given = f._of(tuple(arrays), {})
    if f.dynamic:
        found, known = made.run(given), ir.bound_sizes(made.formula, [x.shape for x in given])
        return ir.at_sizes(made.formula, known), [*map(np.asarray, _several(found))]
    if not target.startswith(THREADS):
        return made.formula, [*map(np.asarray, _several(made.run(given)))]
    shaped = made.shaped(given)
    compiled = made.kernel.compile(*shaped)
    made_of = [t.name for t in compiled.program.tensors][len(shaped) :]
    results = dict(zip(made_of, by_threads(compiled.program, *shaped), strict=True))
    returned = made.program.text.splitlines()[-1].removeprefix("    return ").split(", ")
    return made.formula, [
        results[name].reshape(made.normal.shapes[b.name])
        for name, b in zip(returned, made.formula.outputs, strict=True)
    ]


def _several(found: Any) -> tuple[Any, ...]:
    return found if type(found) is tuple else (found,)


def _sizes(function: Any, arrays: list[Data]) -> dict[str, dict[int, Any]]:
    """Names for the sizes of arguments: equal ones have one name."""
    return {
        name: {d: f"n{n}" for d, n in enumerate(x.shape) if n > 1}
        for name, x in zip(signature(function).parameters, arrays, strict=True)
    }


def judge(formula: Formula, target: str) -> tuple[str, str, Finding | None]:
    """'ok', 'refused' and why, or 'found'."""
    plan = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            f = prepared(function_of(formula), formula.arrays, target, formula.seed)
            plan = f"\n{f.planned}" if f.planned else ""
            meant, got = results_of(f, formula.arrays, target)
    except CompileError as error:
        if plan or "<tile program" in str(error):  # a text that the math level wrote
            return "found", "", Finding("crash", f"{error}{plan}", formula)
        return "refused", error.message, None
    except Exception as error:
        if target.startswith(THREADS) and "has no meaning" in str(error):
            return "refused", "the interpreter does not know all of the thread code", None
        said = f"{type(error).__name__}: {error}"[:500]
        return "found", "", Finding("crash", said + plan, formula)
    told = differs(meant, formula.arrays, got)
    return ("found", "", Finding("mismatch", told + plan, formula)) if told else ("ok", "", None)


def smaller(finding: Finding, target: str) -> Finding:
    """The finding with as few statements as show it: the first value that is wrong alone."""
    whole = finding.formula
    for names, _ in whole.lines:
        small = whole.only(*(n for n in re.findall(r"\w+", names)))
        found = judge(small, target)[2]
        if found is not None and found.kind == finding.kind:
            return found
    for name in whole.outputs:
        if name not in whole.params:
            found = judge(whole.only(name), target)[2]
            if found is not None and found.kind == finding.kind:
                return found
    return finding


@dataclass
class Report:
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def hunt(
    count: int, seed: int = 0, target: str = "cpu", seconds: float = 600.0, most: int = 1
) -> Report:
    """Up to `count` formulas from `seed` on; it ends with `most` findings, which are shrunk."""
    report = Report()
    until = time.monotonic() + seconds
    for at in range(seed, seed + count):
        try:
            formula = make(at)
        except Crash as crash:
            report.kinds["found"] += 1
            report.findings.append(Finding("crash", crash.said, crash.formula))
            continue
        kind, reason, finding = judge(formula, target)
        report.kinds[kind] += 1
        if reason:
            report.reasons[reason] += 1
        if finding is not None:
            report.findings.append(smaller(finding, target))
        if len(report.findings) >= most or time.monotonic() > until:
            break
    return report


if __name__ == "__main__":
    run_command(__doc__, hunt, "cpu")
