"""Folds of more elements than a block, or the blocks of a cluster, can hold: folds of parts.

Folds that use one another's results, such as a mean and the squares around it, are derived as one
pass over their axis (`streams/cascade.py`): each part has a state, and states combine. Of a part
that a block holds, all of the state is computed of what is loaded once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from math import inf, prod

from tilewright.formula.check.verify import Mismatch, verify
from tilewright.formula.matrices import MOST_COMBINED, MOST_FOLDED, bytes_folded, product_of
from tilewright.formula.streams.cascade import Refused, derive
from tilewright.formula.streams.combine import combined
from tilewright.formula.streams.stream import Center, Fold, Level, Result, Stage, Stream, Sum
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Axis, Formula, array, tensor, together, vars_of

_PARTS = 1024  # a fold without axes of its own: some for each multiprocessor
_HELD = 1 << 14  # elements of a part of a cascade, which a block holds in registers
# rows of as many bytes are not walked piece by piece: registers hold so many elements of them all
_SHORT, _SHORT_HELD = 4096, 1 << 15
_TALL, _LINES = 3 << 10, 64  # rows of columns that a block cannot hold, and of a part of them
_SPREAD = 1 << 20  # elements at most that are folded of the parts


def split_long_folds(formula: Formula) -> Formula:
    """A fold of more elements than a block can hold is one of folds of parts.

    >>> from tilewright.ir.formula import tensor
    >>> x = tensor("x", (4, 1 << 20), FLOAT32)
    >>> i, j = (Axis(Var(n), e) for n, e in zip("ij", x.static_shape))
    >>> total = array("t", (), Load(x, (i.var, j.var)), monoid="sum", over=(i, j))
    >>> print(split_long_folds(Formula("f", (x,), (total,), (total.buffer,))))
    formula f(x: float32[4, 1048576]) -> t
        t_parts[i_part < 4, j_part < 64]: float32 = sum{j < 16384} x[i_part, j_part * 16384 + j]
        t[]: float32 = sum{i_part < 4, j_part < 64} t_parts[i_part, j_part]
    """
    taken = {b.name for b in (*formula.inputs, *(a.buffer for a in formula.arrays))}
    formula = _cascades_in_parts(formula, taken)
    arrays: list[Array] = []
    for a in formula.arrays:
        arrays += _split(a, taken) if a.by is None else _split_by(a, arrays, taken)
    return replace(formula, arrays=tuple(arrays))


def _split_by(a: Array, known: list[Array], taken: set[str]) -> list[Array]:
    """A fold of several long axes by the user's monoid: the last axis first."""
    if a.by is None or len(a.over) == 1 or _count(a) <= MOST_COMBINED:
        return [a]
    axes = (*a.axes, *a.over[:-1])
    shape = tuple(axis.extent for axis in axes)
    parts = [
        replace(a, buffer=tensor(_free(f"{a.name}_part{n}", taken), shape, body.dtype), axes=axes,
                over=a.over[-1:], by=replace(a.by, part=n))
        for n, body in enumerate(a.bodies)
    ]  # fmt: skip
    beside = [x for x in known if x.is_beside(parts[0])]  # of another element of the tuple
    found = beside or parts
    bodies = [Load(x.buffer, vars_of(axes)) for x in found]
    rest = replace(a, body=together(bodies), over=a.over[:-1])
    return [*(() if beside else parts), *_split_by(rest, known, taken)]


def _count(a: Array) -> int:
    """How many elements are folded, as far as it is known: one block walks the rest."""
    known = [axis.extent for axis in a.over if isinstance(axis.extent, int)]
    return prod(known) if len(known) == len(a.over) else 0


def _is_long(a: Array) -> bool:
    if a.scan or a.monoid not in NEUTRAL or product_of(a) is not None:
        return False
    last, most = a.over[-1].extent, _count(a)
    rows = len(a.over) > 1 and isinstance(last, int) and bytes_folded(a, last) <= _SHORT
    return bytes_folded(a, most) > MOST_FOLDED or (rows and most > _SHORT_HELD)


def _is_tall(a: Array) -> bool:
    """Whether columns are folded, of more rows than a block holds of two sectors each."""
    if a.scan or a.monoid not in NEUTRAL or product_of(a) is not None or _count(a) <= _TALL:
        return False
    along = [r for r in loads(a.body) if a.folded & variables(r)]
    return bool(along) and all(
        isinstance(r.indices[-1], Var) and r.indices[-1] in a.vars for r in along
    )


def _split(a: Array, taken: set[str]) -> list[Array]:
    if not _is_long(a):
        return [a]
    outer, inner = a.over[:-1], a.over[-1:]
    if (even := _cut(a)) is not None:
        outer, inner, at = even
        body = substitute(a.body, at)
    elif outer:  # the last axis first
        body = a.body
    else:
        outer, inner, body = _parted(a, inner[0])
    part = array(_free(f"{a.name}_parts", taken), (*a.axes, *outer), body, a.buffer.dtype,
                 monoid=a.monoid, over=inner, loc=a.loc)  # fmt: skip
    return [*_split(part, taken), *_split(replace(a, body=part.element, over=outer), taken)]


def _free(name: str, taken: set[str]) -> str:
    found = next(n for k in count() if (n := f"{name}{k or ''}") not in taken)
    taken.add(found)
    return found


def _parted(a: Array, axis: Axis) -> tuple[tuple[Axis, ...], tuple[Axis, ...], Expr]:
    """One axis as parts of even length; the last may be shorter."""
    assert isinstance(axis.extent, int)
    length = -(-axis.extent // _PARTS)
    name = _free(f"{axis.var.name}_part", {x.var.name for x in (*a.axes, *a.over)})
    parts = Axis(Var(name), -(-axis.extent // length))
    place = parts.var * length + axis.var
    body = substitute(a.body, {axis.var: place})
    if axis.extent % length:
        neutral = const(NEUTRAL[a.monoid], body.dtype)
        body = select(compare("<", place, axis.extent), body, neutral)
    return (parts,), (Axis(axis.var, length),), body


# -- folds that use one another's results


def _cascades_in_parts(formula: Formula, taken: set[str]) -> Formula:
    for group in _groups(formula):
        found = _Cascade(formula, group, taken).parted()
        if found is not None:
            return _cascades_in_parts(found, taken)
    return formula


def _groups(formula: Formula) -> Iterator[list[Array]]:
    """Long folds of the same axes, each but the first of which reads others of them, over the
    names of the first; all else that they read is there before it."""
    before = {b.name for b in formula.inputs}
    for n, first in enumerate(formula.arrays):
        group = [first] if _is_long(first) or _is_tall(first) else []
        for a in formula.arrays[n + 1 :] if group else ():
            own = {x.name for x in group}
            if not (a.over and not a.by and own & a.sources and a.sources <= own | before):
                continue
            pairs = [*zip(a.axes, first.axes, strict=False), *zip(a.over, first.over, strict=False)]
            if (len(a.axes), len(a.over)) != (len(first.axes), len(first.over)):
                continue
            if any(x.extent != y.extent for x, y in pairs):
                continue
            body = substitute(a.body, {x.var: y.var for x, y in pairs})
            a = replace(a, body=body, axes=first.axes, over=first.over)
            if all(r.indices == first.vars for r in loads(body) if r.buffer.name in own):
                group.append(a)
        if len(group) > 1:
            yield group
        before.add(first.name)


class _Cascade:
    """The `group` as a stream, its parts, and what they make together."""

    def __init__(self, formula: Formula, group: list[Array], taken: set[str]) -> None:
        self.formula, self.group, self.taken = formula, group, taken
        self.axes, self.over = group[0].axes, group[0].over
        self.names = {a.name for a in group}
        self.is_tall = _is_tall(group[0])
        self.outputs = {b.name for b in formula.outputs}
        self.back: dict[Var, Expr] = {}  # what the stream's variables stand for
        self.arrays: list[Array] = []

    def parted(self) -> Formula | None:
        """The formula with folds of parts in place of the group."""
        stream, cut = self._stream(), _cut(self.group[0])
        if stream is None or cut is None:
            return None
        parts, inner, at = cut
        state = self._state(stream, parts, inner, at)
        if state is None:
            return None
        number, length = (float(prod(int(x.extent) for x in axes)) for axes in (self.over, inner))
        known = {s.var: const(number, s.var.dtype) for s in stream.of(Fold) if s.monoid == "count"}
        state |= {v: const(length, v.dtype) for v in known}

        def fold(var: Var, monoid: str, body: Expr, by: object) -> Expr:
            name = self._name(stream, var)
            name = _free(f"{name}_all", self.taken) if name in self.outputs else name
            made = array(name, self.axes, body, var.dtype, monoid=monoid, over=parts)
            self.arrays.append(made)
            return made.element

        results = {v.name: e for v, e in combined(_finite(stream), state, fold, known).items()}
        return self._with(results)

    def _stream(self) -> Stream | None:
        levels = [Level(Var(a.name, a.buffer.dtype), a.monoid, self._leaves(a.body))
                  for a in self.group]  # fmt: skip
        along = {*vars_of(self.over)}
        elements = {v for v, e in self.back.items() if along & variables(e)}
        if any(along & variables(level.body) for level in levels):
            return None  # places are those of the whole
        index, extent = Var("along"), const(prod(int(x.extent) for x in self.over), INT32)
        try:
            stream = derive(levels, {*elements, index}, index, extent)
        except Refused:
            return None
        sums = ("sum", "max", "min", "count")
        if any(s.monoid not in sums for s in stream.of(Fold)):
            return None
        return None if isinstance(verify(levels, stream, extent=extent), Mismatch) else stream

    def _leaves(self, expr: Expr) -> Expr:
        """`expr` over variables: an element that is read is one, and so is an earlier fold."""

        def leaf(node: Expr) -> Expr | None:
            inner = node.a if isinstance(node, Cast) and node.dtype.is_float else node
            if not isinstance(inner, Load):
                return None
            if inner.buffer.name in self.names:
                level = Var(inner.buffer.name, inner.dtype)
                return level if inner is node else cast(level, node.dtype)
            known = {e: v for v, e in self.back.items()}
            found = known.get(node, Var(f"{inner.buffer.name}.{len(known)}", node.dtype))
            self.back[found] = node
            return found

        return transform_outermost(expr, leaf)

    def _state(
        self, stream: Stream, parts: tuple[Axis, ...], inner: tuple[Axis, ...], at: dict[Var, Expr]
    ) -> dict[Var, Expr] | None:
        """What is kept of a part, by the stream's variables; its center is the part's own."""
        state: dict[Var, Expr] = {}
        values: dict[Var, Expr] = {}
        for stage in _finite(stream).stages:
            match stage:
                case Fold(monoid="count"):
                    length = float(prod(int(x.extent) for x in inner))
                    state[stage.var] = const(length, stage.var.dtype)
                case Fold(var=var, term=term) | Sum(var=var, term=term):
                    body = substitute(substitute(term, {**values, **state}), dict(self.back))
                    monoid = stage.monoid if isinstance(stage, Fold) else "sum"
                    name = _free(f"{self._name(stream, var)}_parts", self.taken)
                    axes = (*parts, *self.axes) if self.is_tall else (*self.axes, *parts)
                    made = array(name, axes, substitute(body, at), var.dtype,
                                 monoid=monoid, over=inner, loc=self.group[0].loc)  # fmt: skip
                    self.arrays.append(made)
                    state[var] = made.element
                case Center(var=var, value=value) | Result(level=var, value=value):
                    values[var] = substitute(value, {**values, **state})
        return state

    def _name(self, stream: Stream, var: Var) -> str:
        """The fold that this state is, or that is made of it."""
        found = [s.level.name for s in stream.of(Result) if s.value is var]
        found += [s.level.name for s in stream.of(Result) if var in variables(s.value)]
        return next(iter(found), self.group[-1].name)

    def _with(self, results: dict[str, Expr]) -> Formula:
        def read(node: Expr) -> Expr | None:
            if not isinstance(node, Load) or node.buffer.name not in results:
                return None
            at = dict(zip(vars_of(self.axes), node.indices, strict=True))
            return substitute(results[node.buffer.name], at)

        own = [replace(a, body=results[a.name], monoid="", over=(), axes=self.axes)
               for a in self.group if a.name in self.outputs]  # fmt: skip
        arrays: list[Array] = []
        for a in self.formula.arrays:
            arrays += [*self.arrays, *own] if a.name == self.group[0].name else []
            if a.name not in self.names:
                arrays.append(replace(a, body=transform(a.body, read)))
        return replace(self.formula, arrays=tuple(arrays))


def _finite(stream: Stream) -> Stream:
    """A center of an extreme stays where it starts while that is infinite."""

    def rule(stage: Stage) -> Stage:
        if not isinstance(stage, Center) or not stage.start:
            return stage
        value, start = stage.value, const(stage.start, stage.value.dtype)
        small = compare("<", Call("abs", (value,), value.dtype), const(inf, value.dtype))
        return replace(stage, value=select(small, value, start))

    return replace(stream, stages=tuple(map(rule, stream.stages)))


def _cut(a: Array) -> tuple[tuple[Axis, ...], tuple[Axis, ...], dict[Var, Expr]] | None:
    """Axes of parts of what is folded, axes inside one, and the places of the whole. Parts are of
    one length, which a block holds; None if there is none, or if parts are too many."""
    parts: list[Axis] = []
    inner: list[Axis] = []
    at: dict[Var, Expr] = {}
    least = room = _LINES if _is_tall(a) else _HELD
    taken = {x.var.name for x in a.domain}
    for axis in reversed(a.over):
        n = int(axis.extent) if isinstance(axis.extent, int) else 0
        length = max((d for d in range(1, min(n, room) + 1) if n % d == 0), default=1)
        if length < n:
            part = Axis(Var(_free(f"{axis.var.name}_part", taken)), n // length)
            parts.insert(0, part)
            at[axis.var] = part.var if length == 1 else part.var * length + axis.var
        if length > 1:
            inner.insert(0, Axis(axis.var, length))
        room = room // length if length == n else 1
    held, left = (prod(int(x.extent) for x in axes) for axes in (inner, parts))
    if held * 16 < least or left > _SPREAD:
        return None
    return tuple(parts), tuple(inner), at
