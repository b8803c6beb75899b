"""Plans: all that was decided about a formula, as a record that prints, is saved and given back.

    plan = attention.plan(q, k, v)
    plan.save("attention.json")
    attention.with_plan(tw.Plan.load("attention.json"))(q, k, v)

A plan says which laws are used, what else was decided (`search/decisions.py`), which kernels there
are with a schedule each, and where results are rounded. It changes what is computed by nothing but
the order of sums and those roundings.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from tilewright.choose.candidates import Candidate
from tilewright.formula.search.decisions import KINDS, Decision
from tilewright.ir.formula import Formula
from tilewright.ir.schedule import Schedule
from tilewright.support.errors import CompileError, suggest

VERSION = 1
_OWN = ("tiles", "threads", "cluster")  # fields of a schedule that kernels of one text differ in


@dataclass(frozen=True)
class Step:
    """A kernel of a plan: its name, the arrays that it computes, and how it runs; `shares` and
    `parts`: by loop, how many blocks of a cluster, or of the grid, share its steps."""

    name: str
    computes: tuple[str, ...] = ()
    schedule: Schedule = Schedule()
    shares: tuple[tuple[str, int], ...] = ()
    parts: tuple[tuple[str, int], ...] = ()

    @property
    def is_told(self) -> bool:
        """Whether something is chosen; what is not, the compiler chooses."""
        return bool(self.schedule.told() or self.shares or self.parts)

    def candidate(self, numbers: Iterable[str]) -> Candidate:
        """The choice for its kernel; `numbers` are the names of those that a text leaves open."""
        told = self.schedule.told()
        tiles = dict(told.get("tiles", ()))
        own = tuple((n, tiles.pop(n)) for n in numbers if n in tiles)
        rest = tuple(tiles.items())
        return Candidate(
            rest, told.get("threads", 0), told.get("cluster", 1), self.shares, self.parts, own
        )

    def __str__(self) -> str:
        told = [f"{word} {value}" for word, value in self.schedule.told().items()
                if word != "tiles"]  # fmt: skip
        sizes = [f"{name} {size}" for name, size in dict(self.schedule.tiles).items()]
        split = [f"{n} blocks share {loop}" for loop, n in (*self.shares, *self.parts)]
        return f"{self.name}: {', '.join([*sizes, *told, *split]) or 'nothing is left open'}"


@dataclass(frozen=True)
class Plan:
    """What was decided about a formula.

    >>> from tilewright.formula.plan import Plan, Step
    >>> plan = Plan("f", "12ab", "cuda -arch=sm_90a", laws=("masks_once",), kernels=(Step("f"),))
    >>> print(plan)
    plan of f (12ab) for cuda -arch=sm_90a
    laws: masks_once
    decisions: none, what can be fused is
    kernel f: nothing is left open
    >>> Plan.parse(plan.text()) == plan
    True
    """

    name: str
    formula: str
    target: str
    laws: tuple[str, ...] = ()
    decisions: tuple[Decision, ...] = ()
    kernels: tuple[Step, ...] = ()
    rounded: tuple[str, ...] = ()

    def __str__(self) -> str:
        decisions = "; ".join(map(str, self.decisions)) or "none, what can be fused is"
        return "\n".join([
            f"plan of {self.name} ({self.formula}) for {self.target}",
            f"laws: {', '.join(self.laws) or 'none'}",
            f"decisions: {decisions}",
            *(f"kernel {step}" for step in self.kernels),
            *(f"rounding: {where}" for where in self.rounded),
        ])  # fmt: skip

    def text(self) -> str:
        """The plan as JSON."""
        found = {f.name: getattr(self, f.name) for f in fields(self)}
        found["decisions"] = [{"kind": d.kind, "arrays": d.arrays} for d in self.decisions]
        found["kernels"] = [
            {"name": s.name, "computes": s.computes,
             "schedule": s.schedule.told() | {"tiles": dict(s.schedule.tiles)},
             "shares": dict(s.shares), "parts": dict(s.parts)}
            for s in self.kernels
        ]  # fmt: skip
        return json.dumps({"version": VERSION, **found}, indent=1, default=dict) + "\n"

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON."""
        Path(path).write_text(self.text(), encoding="utf-8")

    @staticmethod
    def load(path: str | Path) -> Plan:
        """The plan that `save` wrote."""
        return Plan.parse(Path(path).read_text(encoding="utf-8"), str(path))

    @staticmethod
    def parse(text: str, where: str = "the text") -> Plan:
        """A plan from its JSON."""
        try:
            found = json.loads(text)
        except json.JSONDecodeError as error:
            raise _wrong(f"{where} is no JSON: {error}") from None
        if not isinstance(found, dict) or "version" not in found:
            raise _wrong(f"{where} is no plan", got=str(type(found).__name__))
        if (version := found.pop("version")) != VERSION:
            raise _wrong(
                f"{where} is a plan of version {version}, this Tilewright reads version {VERSION}",
                fix="make the plan again: f.plan(…).save(path)",
            )
        found = _checked(found, Plan, where, ("name", "formula", "target"))
        more: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in found.items()}
        try:
            decisions = [_checked(d, Decision, f"a decision of {where}", ("kind", "arrays"))
                         for d in found.get("decisions", ())]  # fmt: skip
            kernels = [_checked(s, Step, f"a kernel of {where}", ("name",))
                       for s in found.get("kernels", ())]  # fmt: skip
            more["decisions"] = tuple(
                Decision(str(d["kind"]), tuple(map(str, d["arrays"]))) for d in decisions
            )
            more["kernels"] = tuple(_step(s, where) for s in kernels)
            plan = Plan(**more)
        except (TypeError, ValueError, AttributeError) as error:
            raise _wrong(f"{where} is no plan: {error}") from None
        for d in plan.decisions:
            if d.kind not in KINDS:
                raise _wrong(
                    f"{where} has a decision of a kind that is not known: {d.kind!r}",
                    expected=" or ".join(KINDS),
                    fix=suggest(d.kind, KINDS)[0],
                )
        return plan


def _step(found: Mapping[str, Any], where: str) -> Step:
    schedule = _checked(found.get("schedule", {}), Schedule, f"a schedule of {where}")
    other = [word for word in schedule if word not in _OWN]
    if other:
        raise _wrong(
            f"{other[0]!r} in {where} is chosen for all kernels of a text",
            expected=" or ".join(_OWN),
            fix=f"say it beside the plan: f.with_plan(plan).with_schedule({other[0]}=…)",
        )
    pairs = {word: tuple(dict(found.get(word, {})).items()) for word in ("shares", "parts")}
    return Step(found["name"], tuple(found.get("computes", ())), Schedule(**schedule), **pairs)


def _checked(found: Any, record: type, where: str, needed: Iterable[str] = ()) -> dict[str, Any]:
    """The fields of a record that JSON has, none of them unknown, none that is `needed` missing."""
    known = [f.name for f in fields(record)]
    if not isinstance(found, dict):
        raise _wrong(f"{where} is no record", expected=", ".join(known), got=repr(found))
    for name in found:
        if name not in known:
            raise _wrong(
                f"{where} has a field that is not known: {name!r}",
                expected=" or ".join(known),
                fix=suggest(name, known)[0],
            )
    for name in needed:
        if name not in found:
            raise _wrong(f"{where} lacks the field {name!r}", expected=", ".join(known))
    return found


def _wrong(message: str, **more: Any) -> CompileError:
    more.setdefault("fix", "give what f.plan(…).save(path) wrote")
    return CompileError(message, code="plan", **more)


def digest(formula: Formula) -> str:
    """Short, and another one for another formula: other shapes and types among them."""
    return hashlib.sha256(str(formula).encode()).hexdigest()[:16]


def check_formula(plan: Plan, formula: Formula) -> None:
    """Whether a plan is for this formula."""
    if plan.formula != digest(formula):
        shapes = ", ".join(f"{b.name}: {b.dtype}{[*map(str, b.shape)]}" for b in formula.inputs)
        raise CompileError(
            f"the plan of {plan.name} is for another formula, or for arguments of other shapes or "
            "types",
            expected=f"the formula {plan.formula}",
            got=f"{digest(formula)}, {formula.name}({shapes.replace(chr(39), '')})",
            fix="make the plan again with arguments like these: f.plan(…)",
            code="plan",
        )


def steps(
    computed: Iterable[tuple[str, tuple[str, ...]]], chosen: Mapping[int, Candidate]
) -> tuple[Step, ...]:
    """The kernels of a text, by name with what they compute, and what was chosen for each."""
    found = []
    for number, (name, arrays) in enumerate(computed):
        c = chosen.get(number, Candidate((), 0))
        told: dict[str, Any] = {"tiles": dict((*c.tiles, *c.numbers))}
        told |= {"threads": c.threads} if c.threads else {}
        told |= {"cluster": c.cluster} if c.cluster > 1 else {}
        found.append(Step(name, arrays, Schedule(**told), c.shares, c.parts))
    return tuple(found)
