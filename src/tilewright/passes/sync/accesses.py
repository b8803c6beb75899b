"""Accesses of memory by ops, as boxes of elements, and whether two of them meet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Const, Expr, Var, const, loads, substitute, variables
from tilewright.ir.simplify import simplify

NOWHERE: frozenset[Var] = frozenset()
Path: TypeAlias = tuple[tuple[int, str], ...]
# of a dimension, a first index and a number of them; None: anywhere
Part: TypeAlias = tuple[Expr, int] | None
Box: TypeAlias = tuple[Part, ...]


@dataclass(frozen=True)
class Access:
    """Some elements of a buffer touched by one op. `threads`: equal for accesses that take each
    of the same elements to the same thread; `loops`: the variables of the loops around; `block`:
    of the cluster, whose memory it is, where that is said; `fresh`: the names and scalars in its
    box still have the values that they had; `turned`: the loops around of which another iteration
    has begun since, for tensors; `age`: groups closed since that of a bulk store."""

    buffer: str
    root: str
    kind: str
    writes: bool
    path: Path
    box: Box | None = None
    threads: Any = None
    loops: tuple[Var, ...] = ()
    shared: bool = True
    block: Expr | None = None
    fresh: bool = False
    turned: frozenset[Var] = frozenset()
    age: int = -1

    def __hash__(self) -> int:
        # of what tells most apart, kept: accesses go in and out of sets all the time
        found: int | None = self.__dict__.get("_hash")
        if found is None:
            found = hash((self.buffer, self.kind, self.writes, self.path, self.box, self.age))
            self.__dict__["_hash"] = found
        return found

    def at(self, path: Path) -> Access:
        """The same, at another place."""
        new = object.__new__(Access)
        new.__dict__.update(self.__dict__, path=path)
        new.__dict__.pop("_hash", None)
        return new

    def but(self, **changes: Any) -> Access:
        """`dataclasses.replace` of anything but buffer and box, for less."""
        new = object.__new__(Access)
        new.__dict__.update(self.__dict__, **changes)
        for kept in ("_hash", "_anywhere"):
            new.__dict__.pop(kept, None)
        return new

    @cached_property
    def first(self) -> tuple[float, float]:
        """Where in the first dimension of its buffer, as far as that is a number."""
        part = self.box[0] if self.box else None
        if part is None or not isinstance(part[0], Const) or self.root != self.buffer:
            return -inf, inf
        start = int(part[0].value)
        return start, start + part[1]

    @property
    def anywhere(self) -> Access:
        """The same, at no place: one for all that are alike."""
        found: Access | None = self.__dict__.get("_anywhere")
        if found is None:
            found = self.at(())
            found = self.__dict__["_anywhere"] = _ANYWHERE.setdefault(found, found)
        return found


_ANYWHERE: WeakValueDictionary[Access, Access] = WeakValueDictionary()


def span(
    index: Expr, extents: Mapping[Var, int | None], inner: set[Var]
) -> tuple[Expr, int] | None:
    """The indices that an expression takes over a nest: the first, and how many."""
    if variables(index) & inner or loads(index):
        return None
    size = 1
    zeros: dict[Var, Expr] = {}
    for var in variables(index) & set(extents):
        stride, extent = stride_of(index, var), extents[var]
        if stride is None or stride < 0 or extent is None:
            return None
        size += stride * (extent - 1)
        zeros[var] = const(0, var.dtype)
    return substitute(index, zeros), size


def meet(old: Access, new: Access, defined: Mapping[Var, frozenset[Var]]) -> bool:
    """Whether they may touch the same element, not in the same thread, and one writes it."""
    if old.root != new.root or not (old.writes or new.writes):
        return False
    if old.kind == new.kind == "atomic" or old.kind == new.kind == "lanes":
        return False
    if isinstance(old.block, Const) and isinstance(new.block, Const) and old.block != new.block:
        return False
    if old.buffer != new.buffer or old.box is None or new.box is None:
        return True
    if _apart(old.box, new.box, old.fresh and new.fresh):
        return False
    again = old.path == new.path and old.writes and new.writes
    if again and _walk_apart(old, new, defined):
        return False
    same = old.threads is not None and old.threads == new.threads
    return not (same and _is_fixed(old.box) and _is_fixed(new.box) and _equal(old.box, new.box))


def asks(box: Box | None, scalar: Buffer) -> bool:
    """Whether it needs the value of a scalar to say where a box lies."""
    parts = [part for part in box or () if part is not None]
    return any(load.buffer == scalar for start, _ in parts for load in loads(start))


def _apart(a: Box, b: Box, fresh: bool) -> bool:
    """Some dimension's ranges do not meet: their distance is a constant, and `fresh` says that
    names in both stand for the same."""
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            continue
        (start, size), (other, extent) = x, y
        if isinstance(start, Const) and isinstance(other, Const):
            distance = int(other.value) - int(start.value)
        elif fresh and isinstance(gap := simplify(other - start, Ranges()), Const):
            distance = int(gap.value)
        else:
            continue
        if not -extent < distance < size:
            return True
    return False


def _is_fixed(box: Box) -> bool:
    return all(x is not None and isinstance(x[0], Const) for x in box)


def _equal(a: Box, b: Box) -> bool:
    return all(x is not None and y is not None and x[0] is y[0] and x[1] == y[1]
               for x, y in zip(a, b, strict=True))  # fmt: skip


def _walk_apart(old: Access, new: Access, defined: Mapping[Var, frozenset[Var]]) -> bool:
    """Iterations of the loops around never come to elements that another one was at: every loop
    moves one dimension that no other loop moves, nor a variable `defined` in one, far enough. Of a
    tensor's accesses it is known which loops have `turned` between two of them; in the others it
    is still the same iteration."""
    if old.box is None or new.box is None:
        return False
    moving = new.loops if new.shared else tuple(v for v in new.loops if v in old.turned)
    loops, parts = frozenset(moving), tuple(zip(old.box, new.box, strict=True))
    return bool(moving) and all(
        any(_moves_apart(var, was, now, loops, defined) for was, now in parts) for var in moving
    )


def _moves_apart(
    var: Var, old: Part, new: Part, loops: frozenset[Var], defined: Mapping[Var, frozenset[Var]]
) -> bool:
    """One iteration's `new` indices and any other's `old` ones do not meet: both move alike, by no
    less than the two reach over each other."""
    if old is None or new is None:
        return False
    (before, size), (start, extent) = old, new
    for each in (before, start):
        if variables(each) & loops != {var} or loads(each):
            return False
        if any(loops & defined.get(other, NOWHERE) for other in variables(each) - {var}):
            return False
    stride = stride_of(start, var)
    distance = simplify(start - before, Ranges())  # in one iteration
    if stride is None or not isinstance(distance, Const):
        return False
    return abs(stride) >= max(size - int(distance.value), extent + int(distance.value))
