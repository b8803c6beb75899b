"""Elements that stand for what lies outside a tensor: zeros that no data brought.

Reading outside a tensor gives zero, which a sum does not notice and a maximum does. Under the
sanitizer each element of a tile has a mark that says where its value comes from; copies and
elementwise code carry marks on, a choice (`T.if_then_else`, an `if`) that replaces a value replaces
its mark. A reduction that mixes marked elements with others, and for which a zero is not neutral,
is warned of once. A group of marked elements alone is a row that does not exist: it stays marked,
and is dropped where it would be stored.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tilewright.machine.core import *
from tilewright.support.errors import SanitizerWarning

DATA, OUTSIDE, FLOOR, BLANK = 0, 1, 2, 3  # FLOOR: outside, among values that are not below zero
SUMMED = 8  # SUMMED + n: a sum of n elements, some of which were outside
KIND = np.int32


def _outside(marks: Any) -> Any:
    return (marks == OUTSIDE) | (marks == FLOOR)


# ── marks in memory ──────────────────────────────────────────────────────────────────────────


def blank(mem: Memory) -> None:
    """All of `mem` holds a constant, which no data brought."""
    mem.storage.marks, mem.storage.blank = None, True


def filled(box: Box) -> None:
    """A tile of one value: a blank buffer where it is all of it, else blank elements."""
    if all(n == s for n, s in zip(box.extents, box.mem.shape, strict=True)):
        blank(box.mem)
    elif box.mem.storage.marks is not None or box.mem.storage.blank:
        _set_box(box, np.full(box.extents, BLANK, KIND))


def written(mem: Memory, where: Where, marks: Any) -> None:
    """The elements at `where` now have `marks`; None: they are data."""
    storage = mem.storage
    if storage.marks is None:
        if not storage.blank and (marks is None or not np.any(marks)):
            return
        if mem.is_global:
            return
        storage.marks = np.full(storage.units, BLANK if storage.blank else DATA, KIND)
        storage.blank = False
    window = mem.window(storage.marks)
    if marks is None:
        window[where] = DATA
    else:
        window[where] = marks[..., None] if mem.ratio > 1 and np.ndim(marks) else marks


def marks_at(mem: Memory, where: Where) -> Any:
    """The marks of the elements at `where`."""
    storage = mem.storage
    if storage.marks is None:
        return np.array(BLANK if storage.blank else DATA, KIND)
    found = mem.window(storage.marks)[where]
    return found.max(axis=-1) if mem.ratio > 1 else found


def box_marks(box: Box) -> Array | None:
    """The marks of a tile, outside of its tensor included; None where all is data."""
    if box.is_whole and box.mem.storage.marks is None and not box.mem.storage.blank:
        return None
    marks = np.full(box.extents, OUTSIDE, KIND)
    if not box.is_empty:
        marks[box.inner] = marks_at(box.mem, box.where)
    return marks


def _set_box(box: Box, marks: Array | None) -> None:
    if not box.is_empty:
        inner = None if marks is None else np.broadcast_to(marks, box.extents)[box.inner]
        written(box.mem, box.where, inner)


# ── tile ops ─────────────────────────────────────────────────────────────────────────────────


def copied(op: Copy | Relayout, src: Box, dst: Box) -> None:
    """A copy brings the marks of its source."""
    if isinstance(op, Copy) and op.reduce is not None:
        return
    marks = box_marks(src)
    _set_box(dst, None if marks is None else marks.reshape(dst.extents))


def mark_gemm(op: Gemm, x: Box, y: Box, c: Box, before: Array | None, fresh: bool) -> None:
    """A product's rows and columns whose operand lies outside altogether lie outside, too."""
    left, right = box_marks(x), box_marks(y)
    if left is None and right is None:
        return
    rows, columns = _all_outside(left, op.transpose_a), _all_outside(right, not op.transpose_b)
    if op.transpose_c:
        rows, columns = columns, rows
    shape = tuple(n for n in c.extents if n != 1) or (1,)
    marks = np.zeros(c.extents, KIND)
    if len(shape) == 2:
        both = np.zeros(shape, np.bool_)
        both |= False if rows is None else rows[:, None]
        both |= False if columns is None else columns[None, :]
        flat = both.reshape(c.extents)
        old = np.full(c.extents, BLANK if fresh else DATA, KIND) if before is None else before
        marks[flat & (fresh | (old != DATA) & (old < SUMMED))] = OUTSIDE
    _set_box(c, marks)


def _all_outside(marks: Array | None, rows_last: bool) -> Any:
    """Per row of an operand: all of it lies outside. `rows_last`: rows are the last dimension."""
    if marks is None:
        return None
    flat = marks.reshape([n for n in marks.shape if n != 1] or [1])
    return None if flat.ndim != 2 else _outside(flat).all(axis=0 if rows_last else 1)


_WORDS = {"max": "maximum", "min": "minimum", "sum": "sum"}


def _harmed(op: str, marks: Array, tile: Array, dtype: DType) -> Any:
    """Where a zero from outside, or whatever became of one, changes the reduction."""
    if op in ("min", "all", "and", "prod"):
        return np.ones(tile.shape, np.bool_)
    if op != "max":
        return tile != 0
    floor = dtype.kind in ("uint", "bool")
    return (tile != 0) | (not floor and marks != FLOOR)


def mark_reduce(
    fr: Frame, op: Reduce, tile: Array, marks: Array | None, dst: Box, before: Array | None,
    axis: int,
) -> None:  # fmt: skip
    """Warn where a reduction takes elements from outside for data."""
    if marks is None or op.masked:
        return
    marks = marks.reshape(tile.shape)
    out = _outside(marks)
    if not out.any():
        return
    shape = tile.shape[:axis] + tile.shape[axis + 1 :]
    old = None if before is None or op.clear else np.broadcast_to(before.reshape(shape), shape)
    data = (~out & (marks != BLANK)).any(axis=axis)
    if old is not None:
        data = data | (old == DATA)
    elif not op.clear:
        data = np.ones(shape, np.bool_)
    mixed = data & (out & _harmed(op.op, marks, tile, op.src.buffer.dtype)).any(axis=axis)
    if mixed.any():
        row = tuple(int(i) for i in np.argwhere(mixed)[0])
        _warn_mixed(fr, op, row, int((out.sum(axis=axis))[row]), tile.shape[axis])
    new = np.where(data, DATA, OUTSIDE).astype(KIND)
    if op.op == "sum":
        new[data & out.any(axis=axis)] = SUMMED + tile.shape[axis]
    _set_box(dst, new.reshape(dst.extents))


def _warn_mixed(fr: Frame, op: Reduce, row: tuple[int, ...], count: int, extent: int) -> None:
    name, word = op.src.buffer.name, _WORDS.get(op.op, f"T.reduce_{op.op}")
    infinity = f"T.infinity('{op.src.buffer.dtype}')"
    neutrals = {"max": f"-{infinity}", "min": infinity, "all": "True", "and": "-1",
                "prod": "1"}  # fmt: skip
    neutral = neutrals.get(op.op, "0")
    at = f" of {op.dst.buffer.name}[{', '.join(map(str, row))}]" if row else ""
    warn(
        fr,
        op,
        f"the {word}{at} is taken over {count} of {extent} elements of {name} that lie outside "
        "its tensor, as if they were data",
        f"replace them before it is taken: {name}[i, j] = T.if_then_else(j < N, {name}[i, j], "
        f"{neutral})",
    )


def updated(fr: Frame, op: Op, mem: Memory, places: Where, marks: Any) -> None:
    """Atomics fold values with `marks` into elements; warn where those of one element mix."""
    if not np.any(_outside(marks)):
        written(mem, places if places else (...,), None)
        return
    flat: Any = np.zeros(np.size(marks), int)
    if places:
        flat = np.ravel_multi_index(places, mem.shape)
    data = flat[(marks == DATA) | (marks_at(mem, places) == DATA)]
    mixed = np.isin(flat, data)
    if np.any(mixed & (marks == OUTSIDE)):
        _warn_taken(fr, op, mem.name)
    written(mem, places if places else (...,), np.where(mixed, DATA, OUTSIDE))


def _warn_taken(fr: Frame, op: Op, name: str) -> None:
    warn(
        fr,
        op,
        f"{name} takes up elements that lie outside their tensor, as if they were data",
        "leave them out with an `if` on the index, or choose another value for them with "
        "T.if_then_else",
    )


def warn(fr: Frame, op: Op, message: str, fix: str) -> None:
    launch = fr.agent.block.cluster.launch
    key = ("padding", op.loc or id(op))
    if key not in launch.warnings:
        launch.warnings[key] = SanitizerWarning("padding", message, loc=op.loc, fix=fix)


# ── elementwise code ─────────────────────────────────────────────────────────────────────────


class Tracer:
    """The marks of an expression's value, lane by lane; built once for each op."""

    def __init__(self, evaluate: Evaluator, expr: Expr, op: Op) -> None:
        self.evaluate, self.expr, self.op = evaluate, expr, op
        nodes = list(walk(expr))
        self.buffers = sorted({n.buffer.name for n in nodes if isinstance(n, Load)})
        self.names = sorted({n.name for n in nodes if isinstance(n, Var)})

    def __call__(self, fr: Frame) -> Any:
        """None where the value is data; to be called right after it was computed."""
        if not fr.in_map:
            return None
        if isinstance(self.expr, Const):
            return np.array(BLANK, KIND)
        if not (fr.outside or self._touches_marks(fr)):
            return None
        watches, fr.watches = fr.watches, ()  # what is evaluated here has been watched before
        try:
            found = self.of(fr, self.expr)
            self._accumulates(fr)
        finally:
            fr.watches = watches
        return found if np.any(found) else None

    def _touches_marks(self, fr: Frame) -> bool:
        if fr.marks and any(name in fr.marks for name in self.names):
            return True
        found = (fr.bufs.get(name) for name in self.buffers)
        return any(m and (m.storage.marks is not None or m.storage.blank) for m in found)

    def of(self, fr: Frame, e: Expr) -> Any:
        if isinstance(e, Load):
            return self._load(fr, e)
        if isinstance(e, Var):
            return fr.marks.get(e.name, DATA) if fr.marks else DATA
        if isinstance(e, Const):
            return BLANK
        if isinstance(e, Cmp):
            return DATA
        if isinstance(e, Select):
            return self._select(fr, e)
        parts = [np.asarray(self.of(fr, child)) for child in e.children]
        if isinstance(e, Bin) and e.op in ("*", "/"):
            self._mean(fr, e, parts[0])
        return _combined(e, parts)

    def _select(self, fr: Frame, e: Select) -> Any:
        cond, saved = self.evaluate(e.cond)(fr), fr.mask
        sides = []
        for narrowing, side in ((narrow, e.a), (narrow_not, e.b)):
            mask = narrowing(saved, cond)
            if mask is NOTHING:
                sides.append(np.array(DATA, KIND))
                continue
            fr.mask = mask
            sides.append(np.asarray(self.of(fr, side)))
            fr.mask = saved
        return np.where(cond, *sides)

    def _load(self, fr: Frame, e: Load) -> Any:
        mem = fr.bufs[e.buffer.name]
        idx = tuple(self.evaluate(i, index=True)(fr) for i in e.indices)
        bad: Any = np.False_
        for i, n in zip(idx, mem.shape, strict=True):
            bad = bad | (i < 0) | (i >= n)
        if mem.is_global:
            return np.where(bad, OUTSIDE, DATA)
        at = tuple(np.clip(i, 0, n - 1) for i, n in zip(idx, mem.shape, strict=True))
        return marks_at(mem, (*lane_axes(fr, mem), *at) if mem.lead else at)

    def _mean(self, fr: Frame, e: Bin, marks: Any) -> None:
        """A sum over a tile that ends outside, divided by the size of the tile."""
        if not np.any(marks >= SUMMED) or not isinstance(e.b, Const) or not e.b.value:
            return
        divisor = float(e.b.value) if e.op == "/" else 1.0 / float(e.b.value)
        count = int(np.max(marks)) - SUMMED
        if abs(divisor - count) < 1e-3 * count:
            warn(
                fr,
                self.op,
                f"a mean over {count} elements, of which some lie outside their tensor and are "
                "counted as if they were data",
                "divide by the number of elements that the tensor has there",
            )

    def _accumulates(self, fr: Frame) -> None:
        """`v = max(v, x)` in a variable of the iteration: a reduction, one element at a time."""
        op, e = self.op, self.expr
        if not isinstance(op, Store) or not op.buffer.is_local:
            return
        name = e.op if isinstance(e, Bin) else e.name if isinstance(e, Call) else ""
        if name not in ("max", "min", "*", "max_nan", "min_nan"):
            return
        sides = e.children
        mine = [
            k for k, s in enumerate(sides)
            if isinstance(s, Load) and s.buffer == op.buffer and s.indices == op.indices
        ]  # fmt: skip
        if len(mine) != 1:
            return
        old = np.asarray(self.of(fr, sides[mine[0]]))
        new = np.asarray(self.of(fr, sides[1 - mine[0]]))
        mixed = ((new == OUTSIDE) & (old == DATA)) | (_outside(old) & (new == DATA))
        if fr.mask is not None:
            mixed = mixed & fr.mask
        if np.any(mixed):
            _warn_taken(fr, op, op.buffer.name)


def _combined(e: Expr, parts: list[Any]) -> Any:
    """The mark of an operation's value from those of its operands."""
    out: Any = np.False_
    plain: Any = np.True_  # all operands are constants
    for part in parts:
        out = out | _outside(part)
        plain = plain & (part == BLANK)
    mark: Any = OUTSIDE
    square = isinstance(e, Bin) and e.op == "*" and e.a == e.b
    floor = isinstance(e, Bin) and e.op == "max" and any(
        isinstance(c, Const) and c.value >= 0 for c in (e.a, e.b)
    )  # fmt: skip
    if square or floor or (isinstance(e, Call) and e.name == "abs"):
        mark = FLOOR
    if isinstance(e, Cast):
        mark = np.where(parts[0] == FLOOR, FLOOR, OUTSIDE)
    found = np.where(out, mark, np.where(plain, BLANK, DATA))
    if isinstance(e, Cast) or (isinstance(e, Bin) and e.op in ("+", "-")):
        sums: Any = np.maximum.reduce(np.broadcast_arrays(*parts)) if len(parts) > 1 else parts[0]
        found = np.where(~out & (sums >= SUMMED), sums, found)
    return found
