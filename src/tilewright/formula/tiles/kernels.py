"""Which arrays one kernel computes, over which axes, and what becomes of each axis.

A kernel computes an output and the folds that it needs, unless a fold must lie in memory first.
Arrays that read one another share axes: reading `top[i]` makes the axis of `top` and `i` one. Then
each axis has a role:

    each     one index a block                     batches
    tile     a tile a block                        rows and columns
    whole    all of it at once                     rows that are folded, heads of attention
    stream   tiles one after the other             depths of products, keys of attention
    window   one place after the other             what a pooling or a stencil folds
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import combinations
from math import ceil, inf, prod
from typing import TypeAlias

from tilewright.formula.inline import Normal
from tilewright.formula.matrices import (
    MOST_COMBINED,
    MOST_FOLDED,
    Product,
    axes_met,
    bytes_folded,
    form_of,
    product_of,
)
from tilewright.formula.tiles.axes import Classes, names_of, sizes_of
from tilewright.formula.tiles.windows import as_windows, is_window
from tilewright.ir.core import *
from tilewright.ir.formula import NEUTRAL, Array, Axis, Extent, Formula, most, reads, vars_of
from tilewright.support.errors import CompileError

# an axis that no product walks is held by a block if it is not longer than this
MOST_HELD = 512
ENOUGH, PART = 4096, 64  # elements of a block, and of what it folds
# a kernel of one block folds no rows of more elements than this
MOST_ALONE = 1 << 16
MOST_SQUARE = 1 << 15  # elements of a value with one dimension twice: it lies in registers
# elements that blocks fold again, and blocks that wait for it, where a launch would take as long
MOST_AGAIN, MOST_WAITING = 1 << 20, 1 << 11
TILE, LINES = 1024, 4  # places of a block along the last axis that has tiles, and along others
# blocks share a loop of at least so many steps
STEPS = 2048
# stands for an extent that is chosen with the tiles: no axis is as long
CHOSEN = (1 << 31) - 1


@dataclass(frozen=True)
class KernelPlan:
    """`outputs` and the `folds` before them, over shared axes: `grid` and, where there is one, a
    loop over `stream`, whose last axis is a tile, those before it one index at a time."""

    outputs: tuple[Array, ...]
    folds: tuple[Array, ...]
    roles: dict[Var, str]
    grid: tuple[Axis, ...]
    stream: tuple[Axis, ...]
    named: dict[Expr, str]
    extents: dict[Var, Extent]
    sizes: tuple[Dim, ...] = ()

    @property
    def output(self) -> Array:
        """That with the most axes, after which the kernel is called."""
        return max(self.outputs, key=lambda a: len(a.axes))

    @cached_property
    def sources(self) -> frozenset[str]:
        """The names of the arrays in memory that the kernel reads."""
        arrays = (*self.folds, *self.outputs)
        return frozenset().union(*(a.sources for a in arrays)) - {a.name for a in arrays}

    @property
    def levels(self) -> tuple[Array, ...]:
        """The folds of the loop, in order."""
        return tuple(f for f in self.folds if not f.folded.isdisjoint(vars_of(self.stream)))


class Apart(Exception):
    """`array` cannot be computed inside the kernel: it has to lie in memory."""

    def __init__(self, array: str, reason: str) -> None:
        super().__init__(f"{array}: {reason}")
        self.array, self.reason = array, reason


Planned: TypeAlias = "dict[tuple[tuple[Array, ...], tuple[Array, ...]], KernelPlan | Apart]"


def kernels_of(
    normal: Normal,
    refused: dict[str, str],
    alone: Collection[frozenset[str]] = (),
    planned: Planned | None = None,
) -> tuple[tuple[KernelPlan, ...], dict[str, str]]:
    """The kernels in order, and why arrays that lie between them were not fused; `refused` are
    those that are known to lie there, `alone` sets of outputs that are no one kernel. `planned`
    keeps kernels by their outputs and folds, for other groupings of the same arrays."""
    planned = {} if planned is None else planned
    formula = normal.formula
    deep = {a.name for a in formula.arrays if a.is_pointwise and a.buffer not in formula.outputs}
    apart = dict.fromkeys(sorted(deep), "is too deep for its readers to compute it") | dict(refused)
    while True:
        try:
            roots = [a for a in formula.arrays if a.name in apart or a.buffer in formula.outputs]
            found = _grouped(roots, normal, alone, planned)
            return found, apart
        except Apart as wrong:
            if wrong.array in apart:
                raise CompileError(
                    f"{wrong.array} of {formula.name} has no tile program: it {wrong.reason}",
                    fix="compute it in two functions, the arrays between them as arguments",
                ) from wrong
            apart[wrong.array] = wrong.reason


def _grouped(
    roots: list[Array], normal: Normal, alone: Collection[frozenset[str]], planned: Planned
) -> tuple[KernelPlan, ...]:
    """A kernel for each root; those that have the same blocks and read the same are one."""
    places = {a.name: n for n, a in enumerate(roots)}
    in_memory = {*places}
    groups: list[tuple[list[Array], KernelPlan]] = []
    for n, root in enumerate(roots):
        plan = _kernel([root], normal, in_memory, planned)
        for g, (members, other) in enumerate(groups):
            own = {a.name for a in members}
            first = places[members[0].name]
            waits = {name for name in plan.sources if first <= places.get(name, -1) < n}
            if waits - own or not plan.sources & (other.sources | own):
                continue
            if frozenset({*own, root.name}) in alone:
                continue
            both = _together([*members, root], normal, in_memory, (other, plan), planned)
            if both is not None:
                groups[g] = [*members, root], both
                break
        else:
            groups.append(([root], plan))
    return tuple(plan for _, plan in groups)


def _together(
    roots: list[Array],
    normal: Normal,
    in_memory: set[str],
    apart: Iterable[KernelPlan],
    planned: Planned,
) -> KernelPlan | None:
    """One kernel for all of `roots`, if its blocks are those that each alone would have; what folds
    nothing has any."""
    try:
        plan = _kernel(roots, normal, in_memory, planned)
    except Apart:
        return None
    if any(not {*vars_of(plan.grid)} <= {*a.vars} for a in plan.outputs):
        return None
    same = [not p.folds or _blocks(p) == _blocks(plan) for p in apart]
    return plan if all(same) else None


def _blocks(plan: KernelPlan) -> list[tuple[str, str]]:
    return sorted((str(axis.extent), plan.roles[axis.var]) for axis in plan.grid)


def _kernel(
    roots: list[Array], normal: Normal, in_memory: set[str], planned: Planned
) -> KernelPlan:
    folds = _folds_of(roots, normal.formula, in_memory - {a.name for a in roots})
    key = tuple(roots), tuple(folds)
    if key not in planned:
        try:
            planned[key] = _kernel_of(roots, folds, normal)
        except Apart as wrong:
            planned[key] = wrong
    found = planned[key]
    if isinstance(found, Apart):
        raise Apart(found.array, found.reason)
    return found


def _kernel_of(roots: list[Array], folds: list[Array], normal: Normal) -> KernelPlan:
    own = {a.name for a in roots}
    arrays = [*folds, *(a for a in roots if a.is_pointwise)]
    pointwise = {a.name for a in roots if a.is_pointwise}
    if any(pointwise & a.sources for a in arrays):
        raise Apart(roots[-1].name, "reads what its kernel leaves in memory")
    arrays, named = _on_shared_axes(
        arrays, {a.name for a in folds}, normal.inlined, {d.var.name for d in normal.formula.sizes}
    )
    outputs = tuple(a for a in arrays if a.name in own)
    folds = [a for a in arrays if not a.is_pointwise]
    extents = {axis.var: axis.extent for a in arrays for axis in a.domain}
    _check_kept(outputs, folds)
    largest = max(outputs, key=lambda a: len(a.axes))
    sizes = normal.formula.sizes
    roles, stream = _roles(largest, outputs, folds, sizes)
    for f in folds:
        _check_square(f, own, roles)
        whole = [x.extent for x in (*f.axes, *f.over) if roles.get(x.var) == "whole"]
        held = prod(most(n, sizes) for n in whole if n != CHOSEN)
        long = bytes_folded(f, held) > MOST_FOLDED
        if f.by and len(f.over) + len(f.axes) > 1:
            long = held > MOST_COMBINED
        again = any(f.name in g.sources for g in folds)
        if long and again and f.name not in own and product_of(f) is None:
            raise Apart(f.name, f"folds {held:,} elements, more than a block can hold")
    if any(axis.var not in roles for a in outputs for axis in a.axes):
        raise Apart(roots[-1].name, f"has other axes than {largest.name}")
    grid = tuple(axis for axis in largest.axes if roles[axis.var] in ("each", "tile"))
    if not grid and not _is_long(stream, folds, sizes):
        _check_alone(own, folds, sizes)
    for f in folds:
        _check_again(f, own, grid, roles, sizes)
    if any(roles[axis.var] == "stream" for a in outputs for axis in a.axes):
        raise Apart(_inner_of(folds, stream, roots), "is read again after its loop")
    _check_whole(roles, extents, sizes, [*folds, *outputs])
    return KernelPlan(outputs, tuple(folds), roles, grid, stream, named, extents, sizes)


def _check_square(f: Array, own: set[str], roles: dict[Var, str]) -> None:
    """A block walks a long dimension piece by piece, but not one that a value has twice."""
    kept, gone = (
        [x.extent for x in axes if roles.get(x.var) == "whole"] for axes in (f.axes, f.over)
    )
    for n in gone if not f.scan and f.name not in own and product_of(f) is None else ():
        if n in kept and isinstance(n, int) and n * n > MOST_SQUARE:
            raise Apart(f.name, f"compares {n:,} elements with all of them")


def _check_again(
    f: Array, own: set[str], grid: tuple[Axis, ...], roles: dict[Var, str], sizes: tuple[Dim, ...]
) -> None:
    """What many blocks need is folded once, not by each of them."""
    tiles = [axis for axis in grid if roles[axis.var] == "tile"]
    blocks = again = 1.0
    for axis in grid:
        tile = TILE if axis in tiles[-1:] else LINES if axis in tiles else 1
        count = ceil(min(most(axis.extent, sizes), CHOSEN) / tile)
        blocks, again = blocks * count, again * (1 if axis.var in f.vars else count)
    elements = prod(most(axis.extent, sizes) for axis in f.domain)
    many = blocks > MOST_WAITING or elements * (again - 1) > MOST_AGAIN
    if f.name not in own and again > 1 and many and product_of(f) is None:
        raise Apart(f.name, f"would be folded again by {again:,.0f} blocks")


def _check_alone(own: set[str], folds: list[Array], sizes: tuple[Dim, ...]) -> None:
    """Rows that many blocks can fold are not left to the one that folds what comes of them."""
    for f in reversed(folds):
        outside = set().union(*(g.folded for g in folds)) & {*f.vars}
        size = prod(most(axis.extent, sizes) for axis in (*f.axes, *f.over))
        if outside and f.name not in own and product_of(f) is None and size > MOST_ALONE:
            raise Apart(f.name, f"folds {size:,} elements, for a kernel of one block")


def _is_long(stream: tuple[Axis, ...], folds: list[Array], sizes: tuple[Dim, ...]) -> bool:
    """Whether a loop folds rows in each of so many steps that blocks share it."""
    rows = any(_folds_rows(f, folds, sizes) for f in folds)
    return rows and len(stream) == 1 and most(stream[0].extent, sizes) >= STEPS


def _check_whole(
    roles: dict[Var, str], extents: dict[Var, Extent], sizes: tuple[Dim, ...], arrays: list[Array]
) -> None:
    """What a block holds at once has a length that is known, or a longest one."""
    for var, role in roles.items():
        if role == "whole" and most(extents[var], sizes) == inf:
            a = next(a for a in arrays if var in vars_of(a.domain))
            raise CompileError(
                f"{a.name} needs all of an axis of {extents[var]} elements at once, however long "
                "calls make it",
                fix="leave it out of dynamic=, or say how long it is at most: "
                f'T.dynamic("{extents[var]}", max=4096)',
                loc=a.loc,
            )


def _check_kept(outputs: tuple[Array, ...], folds: list[Array]) -> None:
    """What is folded along an axis that an output keeps has to lie in memory, if it is computed
    from what the kernel computes: each block has a part of it only."""
    inside = {f.name for f in folds}
    kept = {v for a in outputs for v in a.vars}
    for f in folds:
        if f.scan or f.name in {a.name for a in outputs} or product_of(f) is not None:
            continue
        along = kept & f.folded
        if along and any(g.folded & {*f.vars} for g in folds):
            raise Apart(f.name, "is folded along what blocks have a part of")
        products = {g.name for g in folds if product_of(g) is not None}
        if along and f.sources & inside & _with_sources(products, folds):
            raise Apart(f.name, "is folded along an axis of what it is needed for")


def _with_sources(names: set[str], folds: list[Array]) -> set[str]:
    """`names`, and the folds that are computed from them."""
    found = set(names)
    for f in folds:
        found |= {f.name} if found & f.sources else set()
    return found


def _inner_of(folds: list[Array], stream: tuple[Axis, ...], roots: list[Array]) -> str:
    """The fold that has the axes of a loop itself, or the last of its folds; without one, outputs
    are too many."""
    along, own = {*vars_of(stream)}, {a.name for a in roots}
    others = [f for f in folds if f.name not in own]
    inner = [f.name for f in others if along & {*f.vars}]
    inner = inner or [f.name for f in others if along & f.folded]
    return inner[-1] if inner else roots[-1].name


def _folds_of(roots: list[Array], formula: Formula, in_memory: set[str]) -> list[Array]:
    """The folds that `roots` need, they themselves among them, in order."""
    needed = {a.name for a in roots}
    found = []
    for a in reversed(formula.arrays):
        if a.name in needed and a.name not in in_memory:
            needed |= a.sources - in_memory
            if not a.is_pointwise:
                found.append(a)
    return found[::-1]


def _on_shared_axes(
    arrays: Sequence[Array], folds: set[str], inlined: Sequence[Array], sizes: set[str]
) -> tuple[list[Array], dict[Expr, str]]:
    """The arrays over axes that they share, none of which is named like one of `sizes`. Two axes
    of one array stay two."""
    fresh = [*map(_on_own_axes, arrays)]
    classes = Classes(fresh)
    definitions = {a.name: a for a in fresh}
    for a in fresh:
        for read in reads(a):
            inner = definitions.get(read.buffer.name)
            if inner is None or read.buffer.name not in folds:
                continue
            for index, var in zip(read.indices, inner.vars, strict=True):
                if not isinstance(index, Var):
                    raise Apart(inner.name, f"is read at {_plain(index)}")
                if not classes.join(index, var):
                    raise Apart(inner.name, "is read along two axes of one array")
    for (p, a), (q, b) in combinations(enumerate(fresh), 2):
        if arrays[p].is_beside(arrays[q]):  # elements of one tuple are folded together
            for x, y in zip(vars_of(a.domain), vars_of(b.domain), strict=True):
                classes.join(x, y)
    _share_inputs(fresh, definitions, classes)
    _share_loose(fresh, classes)
    names = names_of(fresh, classes, sizes | sizes_of(arrays))
    new = {x: names[classes.root(x)] for x in classes.extents}
    shared = [_renamed(a, new) for a in fresh]
    return shared, _named(shared, inlined)


def _plain(index: Expr) -> str:
    """An index as the user wrote it."""
    return str(substitute(index, {v: Var(v.name.split(".")[-1]) for v in variables(index)}))


def _share_inputs(arrays: list[Array], inside: dict[str, Array], classes: Classes) -> None:
    """What reads the same place of an input shares its axes, too, where nothing speaks against
    it: then it is loaded once."""
    first: dict[tuple[str, int, Expr], Expr] = {}
    for a in arrays:
        for read in reads(a):
            if read.buffer.name in inside:
                continue
            for p, index in enumerate(read.indices):
                other = first.setdefault((read.buffer.name, p, form_of(index)), index)
                for x, y in zip(axes_met(index), axes_met(other), strict=True):
                    if x in classes.extents and classes.extents[x] == classes.extents.get(y):
                        classes.join(x, y)


def _share_loose(arrays: list[Array], classes: Classes) -> None:
    """Axes that nothing is read along are one at the same place of arrays of one shape."""
    for a, b in combinations((a for a in arrays if a.is_pointwise), 2):
        if a.buffer.shape == b.buffer.shape:
            for x, y in zip(a.vars, b.vars, strict=True):
                if x in _loose(a) and y in _loose(b):
                    classes.join(x, y)


def _loose(a: Array) -> set[Var]:
    """The axes of `a` that nothing is read along."""
    read = {v for r in reads(a) for index in r.indices for v in variables(index)}
    return set() if a.monoid else {*a.vars} - read


@lru_cache(maxsize=512)
def _on_own_axes(a: Array) -> Array:
    return _renamed(a, {v: Var(f"{a.name}.{v.name}") for v in vars_of(a.domain)})


def _renamed(a: Array, new: dict[Var, Var]) -> Array:
    def axes(old: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(new.get(axis.var, axis.var), axis.extent) for axis in old)

    return replace(a, axes=axes(a.axes), over=axes(a.over), body=substitute(a.body, dict(new)))


def _named(arrays: Sequence[Array], inlined: Sequence[Array]) -> dict[Expr, str]:
    """The user's names of what is written out in `arrays`: its definition has the same form over
    other axes."""
    forms: dict[Expr, str] = {}
    for a in inlined:
        if a.given and not isinstance(a.body, (Load, Const, Var, Cast)):
            forms.setdefault(form_of(a.body), a.name)
    found: dict[Expr, str] = {}
    for a in arrays if forms else ():
        for node in walk(a.body):
            if node.children and not isinstance(node, Load) and (form := form_of(node)) in forms:
                found[node] = forms[form]
    return found


def _tiled(axes: list[Axis], sizes: tuple[Dim, ...]) -> int:
    """How many of the innermost axes have tiles: two, or more where these are short, such as the
    halves of a head."""
    count, held = 0, 1.0
    for axis in reversed(axes):
        if count >= 2 and held >= ENOUGH:
            break
        count, held = count + 1, held * most(axis.extent, sizes)
    return count


def _roles(
    output: Array, outputs: tuple[Array, ...], folds: list[Array], sizes: tuple[Dim, ...]
) -> tuple[dict[Var, str], tuple[Axis, ...]]:
    products = {f.name: p for f in folds if (p := product_of(f)) is not None}
    stream, inner = _stream(folds, products, sizes)
    roles = {axis.var: "whole" for f in folds for axis in f.over}
    roles |= {axis.var: "stream" for axis in stream}
    own = [axis for axis in output.axes if axis.var not in roles]
    for axis in own if folds else ():  # a tile of it would fold everything again
        if axis.var in _loose(output) and most(axis.extent, sizes) <= MOST_HELD:
            roles[axis.var] = "whole"
    own = [axis for axis in own if axis.var not in roles]
    if not products:
        inside = [f for f in folds if {*vars_of(stream)} & ({*f.vars} - f.folded)]
        if inside:  # a second block would fold the rows of each step again
            needed = {v for f in inside for v in f.vars}
            held = [x for x in own if x.var not in needed and most(x.extent, sizes) <= MOST_HELD]
            roles |= {x.var: "whole" for x in held[-1:]}
        windows = {v for f in folds if is_window(f) for v in vars_of(f.over)}
        tiles = own[-(1 if roles.keys() - windows else _tiled(own, sizes)) :]
        ends = {x.var: x.extent for a in (output, *folds) for x in a.domain}
        long = {v for v, role in roles.items() if role == "whole"} - windows
        size = prod(most(ends[v], sizes) for v in long)
        if size >= PART:  # of one index: parts of what is folded are copied as they lie
            lines = {r.indices[-1] for f in folds for r in reads(f) if r.indices}
            plain = [x for x in own if _is_plain(x.var, folds)]
            tiles = [x for x in tiles if x in plain] or [x for x in plain if x.var in lines][-1:]
        for axis in output.axes:
            roles.setdefault(axis.var, "tile" if axis in tiles else "each")
        return as_windows(roles, list(dict.fromkeys((*folds, *outputs)))), stream
    batch = frozenset[Var].intersection(*(p.batch for p in products.values()))
    needed = {v for f in folds if f.name in inner for v in f.vars}
    sides = {v for p in products.values() for v in (*p.rows[-1:], *p.columns[-1:])}
    for axis in own:
        if axis.var in batch or axis.var not in sides:
            roles[axis.var] = "each"
        elif inner and axis.var not in needed:
            if most(axis.extent, sizes) > MOST_HELD:
                again = f"would be computed again for each tile of {axis.extent} columns"
                raise Apart(min(inner), again)
            roles[axis.var] = "whole"
        else:
            roles[axis.var] = "tile"
    return roles, stream


def _stream(
    folds: list[Array], products: dict[str, Product], sizes: tuple[Dim, ...]
) -> tuple[tuple[Axis, ...], set[str]]:
    """The axes of the loop, and the products that are computed inside it."""
    inner = {f.name for f in folds if f.name in products and _is_folded(f, folds)}
    for f in folds:
        if f.name in inner and max(most(axis.extent, sizes) for axis in f.over) > MOST_HELD:
            raise Apart(f.name, f"has a depth of {f.over[-1].extent}, more than a block can hold")
    found: list[tuple[Axis, ...]] = []
    for f in folds:
        if f.name in inner:
            continue
        walks = f.name in products or inner & f.sources or _is_endless(f, sizes)
        walks = walks or _folds_rows(f, folds, sizes)
        if walks and f.over not in found:
            found.append(f.over)
    if len(found) > 1:
        last = [f for f in folds if f.over == found[-1]][-1]
        others = [f for f in folds if f.over in found[:-1]]
        apart = next((f for f in others if f is not last), last)
        raise Apart(apart.name, f"is folded over other axes than {last.name}")
    if not found:
        return (), inner
    stream = found[0]
    steps = {*vars_of(stream)}
    for f in folds:
        along = steps & f.folded
        if along and f.scan:
            needed = inner or {g.name for g in folds if g.name in f.sources and not g.scan}
            raise Apart(min(needed, default=f.name), "is needed along the axis of a scan")
        if along and f.over != stream:
            raise Apart(f.name, "is folded over a part of the axes of a loop")
        if along and not inner and products and f.name not in products:
            reason = "is a fold of rows: read once more, operands of products stay where they lie"
            raise Apart(f.name, reason)
    _check_order(folds, steps)
    _check_rows(folds, steps, products)
    if any(f.by and f.over == stream for f in folds):
        return stream, inner  # whose order may count
    order = sorted(
        stream, key=lambda x: (_is_plain(x.var, folds), most(x.extent, sizes), str(x.extent))
    )
    return tuple(order), inner


def _folds_rows(f: Array, folds: list[Array], sizes: tuple[Dim, ...]) -> bool:
    """Whether a fold gives a row for numbers that are folds of rows themselves, such as values by
    the scores of one query, and all of these rows are more than a block should hold at once."""
    if f.monoid not in NEUTRAL or f.scan:
        return False
    over = {*vars_of(f.over)}
    return any(
        prod(most(x.extent, sizes) for x in g.domain if x.var in over | g.folded) > MOST_SQUARE
        for g in folds
        if g.name in f.sources and not g.scan and over & {*g.vars} and not {*f.vars} <= {*g.vars}
    )


def _is_endless(f: Array, sizes: tuple[Dim, ...]) -> bool:
    """Whether a fold is of rows that nobody can hold: of any length, as calls like."""
    return f.monoid in NEUTRAL and not f.scan and inf in (most(x.extent, sizes) for x in f.over)


def _is_folded(f: Array, folds: list[Array]) -> bool:
    """Whether another fold reads `f` and folds one of its axes."""
    return any(f.name in g.sources and g.folded & {*f.vars} for g in folds)


def _check_order(folds: list[Array], along: set[Var]) -> None:
    """What is computed in a step may not need what the whole loop gives."""
    levels = {f.name for f in folds if along & f.folded}
    for f in folds:
        if f.name not in levels and along & {*f.vars}:
            for read in reads(f):
                if read.buffer.name in levels:
                    raise Apart(read.buffer.name, f"is needed in each step of {f.name}")


def _check_rows(folds: list[Array], along: set[Var], products: Collection[str]) -> None:
    """A row of numbers that a loop beside products goes along is kept, few bytes: each block
    would compute it again, and threads while products wait."""
    for f in folds:
        is_row = along & {*f.vars} and not along & f.folded and f.name not in products
        if is_row and any(g.name in products and not along & g.folded for g in folds):
            raise Apart(f.name, "would be folded again by each block whose loop goes along it")


def _is_plain(var: Var, folds: list[Array]) -> bool:
    """Whether everybody reads along `var` as it is: then tiles of it are copied as they are."""
    return all(
        index is var or var not in variables(index)
        for f in folds
        for read in reads(f)
        for index in read.indices
    )
