"""Decisions about a formula: each is a record, and a set of them says which kernels there are.

| kind | arrays | with it |
|---|---|---|
| `without law` | a law of `LAWS` | the law is not applied |
| `reorder products` | the inner product, the outer | A · (B · C) in place of (A · B) · C |
| `join sums` | two products | x · (w + u) in place of x · w + x · u |
| `store operand` | a product, `left` or `right` | that operand lies in memory, rounded |
| `pad operands` | a product | its operands lie in memory in rows of whole 16 bytes |
| `in memory` | a fold | it is a kernel's output, although another kernel could compute it |
| `own kernels` | outputs | they are not computed by one kernel |
| `whole loop` | an output | blocks do not share the loop of its kernel |

Without any, rules decide: what can be fused is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tilewright.formula.inline import Normal, normalize
from tilewright.formula.search.rewrites import (
    SIDES,
    joined_sums,
    paddable,
    padded_operands,
    reordered_products,
    storable,
    stored_operand,
)
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.formula.tiles.program import Grouping
from tilewright.formula.tiles.split import is_thin
from tilewright.ir.core import Buffer
from tilewright.ir.formula import Formula
from tilewright.support.errors import CompileError

REASON = "is cheaper to write and read than to compute where it is read"
PADDED = "has rows of whole 16 bytes, which the bulk engine copies"
OPERAND = "is an operand of a product: computed once, stored as it is multiplied"


@dataclass(frozen=True, order=True)
class Decision:
    kind: str
    arrays: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.kind} {', '.join(self.arrays)}"


@dataclass(frozen=True)
class Decided:
    """A formula with some decisions: its normal form, how arrays are grouped, and what lies in
    memory because of them."""

    formula: Formula
    normal: Normal
    grouping: Grouping = Grouping()
    decisions: tuple[Decision, ...] = ()
    stored: tuple[Buffer, ...] = field(default=(), compare=False)

    @property
    def key(self) -> frozenset[Decision]:
        return frozenset(self.decisions)

    def and_then(self, decision: Decision) -> Decided:
        """With one more decision; `CompileError` where there is nothing that it could be about."""
        known = decision.kind in KINDS and decision.arrays
        found = KINDS[decision.kind](self, decision.arrays) if known else None
        if found is None:
            options = ", ".join(f"{d}" for d in alternatives(self, ())) or "none"
            raise CompileError(
                f"{self.formula.name} has nothing to decide that is '{decision}'",
                expected=f"a decision like these: {options}",
                fix="make the plan for this formula, and for arguments of these shapes and types",
                code="plan",
            )
        return replace(found, decisions=(*self.decisions, decision))


def decided(formula: Formula, normal: Normal, decisions: Iterable[Decision] = ()) -> Decided:
    """`formula`, whose normal form is `normal`, with these decisions, in order; those about laws
    come first, since they give another normal form."""
    found = Decided(formula, normal)
    for decision in sorted(decisions, key=lambda d: d.kind != "without law"):
        found = found.and_then(decision)
    return found


def rewritings(at: Decided, laws: bool = True) -> Iterator[Decision]:
    """Decisions that give another formula, those to leave out `laws` among them."""
    for kind, law in REWRITES.items():
        yield from (Decision(kind, names) for names, _ in law(at.normal.formula))
    told = {d.arrays[0] for d in at.decisions if d.kind == "without law"}
    # others are about what laws make
    if laws and all(d.kind == "without law" for d in at.decisions):
        yield from (Decision("without law", (name,)) for name in at.normal.laws if name not in told)


def alternatives(at: Decided, kernels: Iterable[KernelPlan]) -> Iterator[Decision]:
    """Decisions that could be taken besides, where rules give these kernels."""
    if not at.grouping.memory and not at.grouping.alone and not at.grouping.whole:
        yield from rewritings(at)
    yield from (Decision("store operand", each) for each in storable(at.normal.formula))
    yield from (Decision("pad operands", (name,)) for name in paddable(at.normal.formula))
    for kernel in kernels:
        own = {a.name for a in kernel.outputs}
        yield from (Decision("in memory", (f.name,)) for f in kernel.folds if f.name not in own)
        if len(own) > 1:
            yield Decision("own kernels", tuple(sorted(own)))
        if is_thin(kernel) and kernel.output.name not in at.grouping.whole:
            yield Decision("whole loop", (kernel.output.name,))


def _without_law(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    if arrays[0] not in at.normal.laws:
        return None
    told = {d.arrays[0] for d in at.decisions if d.kind == "without law"}
    return replace(at, normal=normalize(at.formula, {*told, *arrays}))


def _rewritten(kind: str) -> Callable[[Decided, tuple[str, ...]], Decided | None]:
    def rewrite(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
        found = next((f for names, f in REWRITES[kind](at.normal.formula) if names == arrays), None)
        if found is None:
            return None
        return replace(at, normal=replace(at.normal, formula=found))

    return rewrite


def _stored(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    if len(arrays) != 2 or arrays[1] not in SIDES:
        return None
    found = stored_operand(at.normal, *arrays)
    if found is None:
        return None
    normal, name = found
    buffer = next(a.buffer for a in normal.formula.arrays if a.name == name)
    grouping = replace(at.grouping, memory={**at.grouping.memory, name: OPERAND},
                       stored=at.grouping.stored | {name})  # fmt: skip
    return replace(at, normal=normal, grouping=grouping, stored=(*at.stored, buffer))


def _padded(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    found = padded_operands(at.normal, arrays[0]) if len(arrays) == 1 else None
    if found is None:
        return None
    normal, names = found
    buffers = tuple(a.buffer for a in normal.formula.arrays if a.name in names)
    grouping = replace(at.grouping, memory={**at.grouping.memory, **dict.fromkeys(names, PADDED)},
                       stored=at.grouping.stored | {*names})  # fmt: skip
    return replace(at, normal=normal, grouping=grouping, stored=(*at.stored, *buffers))


def _in_memory(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    found = next((a for a in at.normal.formula.arrays if (a.name,) == arrays), None)
    if found is None or found.is_pointwise or found.name in at.grouping.memory:
        return None
    memory = {**at.grouping.memory, found.name: REASON}
    grouping = replace(at.grouping, memory=memory)
    return replace(at, grouping=grouping, stored=(*at.stored, found.buffer))


def _own_kernels(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    names = {a.name for a in at.normal.formula.arrays}
    if not set(arrays) <= names or len(arrays) < 2:
        return None
    alone = at.grouping.alone | {frozenset(arrays)}
    return replace(at, grouping=replace(at.grouping, alone=alone))


def _whole_loop(at: Decided, arrays: tuple[str, ...]) -> Decided | None:
    if arrays[0] not in {a.name for a in at.normal.formula.arrays}:
        return None
    return replace(at, grouping=replace(at.grouping, whole=at.grouping.whole | set(arrays)))


REWRITES = {"reorder products": reordered_products, "join sums": joined_sums}
KINDS: dict[str, Callable[[Decided, tuple[str, ...]], Decided | None]] = {
    "without law": _without_law,
    **{kind: _rewritten(kind) for kind in REWRITES},
    "store operand": _stored,
    "pad operands": _padded,
    "in memory": _in_memory,
    "own kernels": _own_kernels,
    "whole loop": _whole_loop,
}
