"""Formulas that mean the same, of which either may be faster: sizes decide.

Each function lists what could be rewritten, as (names of arrays, formula). The laws that always pay
are in `formula/laws.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain

from tilewright.formula.factors import product
from tilewright.formula.front.trace import Names
from tilewright.formula.inline import Normal
from tilewright.formula.matrices import (
    Product,
    axes_met,
    factors_of,
    form_of,
    product_of,
    swapped,
)
from tilewright.ir.core import *
from tilewright.ir.dtype import DType, promote
from tilewright.ir.formula import Array, Axis, Formula, array, extents, needed, vars_of

SIDES = ("left", "right")


def reordered_products(formula: Formula) -> Iterator[tuple[tuple[str, ...], Formula]]:
    """(A · B) · C = A · (B · C), either way: the inner product is the one that is not an output and
    has no other reader.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> chain = parse_formula('''
    ... formula f(x: float32[64, 32], a: float32[32, 4], b: float32[4, 32]) -> y
    ...     t[i < 64, r < 4]: float32 = sum{k < 32} x[i, k] * a[k, r]
    ...     y[i < 64, j < 32]: float32 = sum{r < 4} t[i, r] * b[r, j]
    ... ''')
    >>> ((names, other),) = reordered_products(chain)
    >>> print(names, other)
    ('t', 'y') formula f(x: float32[64, 32], a: float32[32, 4], b: float32[4, 32]) -> y
        t[k < 32, j < 32]: float32 = sum{r < 4} a[k, r] * b[r, j]
        y[i < 64, j < 32]: float32 = sum{k < 32} x[i, k] * t[k, j]
    """
    readers = Counter(name for a in formula.arrays for name in a.sources)
    outputs = {b.name for b in formula.outputs}
    for f in formula.arrays:
        if product_of(f) is None:
            continue
        for factor in factors_of(f.body):
            inner = formula.definition(factor.buffer) if isinstance(factor, Load) else None
            if inner is None or product_of(inner) is None or not isinstance(factor, Load):
                continue
            if readers[inner.name] > 1 or inner.name in outputs:
                continue
            pair = _turned(f, factor, inner)
            if pair is not None:
                new = {a.name: a for a in pair}
                arrays = [new.get(a.name, a) for a in formula.arrays if a is not inner]
                arrays.insert(arrays.index(pair[1]), pair[0])
                yield (inner.name, f.name), replace(formula, arrays=tuple(arrays))


def _turned(f: Array, factor: Load, inner: Array) -> tuple[Array, Array] | None:
    """The two arrays, the other product inside."""
    names = Names(v.name for v in vars_of(f.domain))
    own = {v: Var(names.fresh(v.name), v.dtype) for v in vars_of(inner.over)}
    at: dict[Var, Expr] = dict(zip(inner.vars, factor.indices, strict=True))
    factors = factors_of(substitute(inner.body, at | own))
    others = factors_of(f.body)
    others.remove(factor)
    along = f.folded
    depth = tuple(Axis(own[x.var], x.extent) for x in inner.over)
    beside = [x for x in factors if along & variables(x)]
    outside = [x for x in factors if not along & variables(x)]
    inside = [x for x in others if along & variables(x)]
    if not (beside and outside and inside):
        return None
    ends = {x.var: x for x in (*depth, *f.axes)}
    used = set(chain.from_iterable(variables(x) for x in (*beside, *inside)))
    axes = tuple(x for v, x in ends.items() if v in used)
    made = array(inner.name, axes, product([*beside, *inside]), inner.buffer.dtype,
                 monoid="sum", over=f.over, given=inner.given, loc=inner.loc)  # fmt: skip
    rest = [x for x in others if x not in inside]
    outer = replace(f, body=product([*outside, made.element, *rest]), over=depth)
    both = product_of(made), product_of(outer)
    return None if None in both else (made, outer)


def joined_sums(formula: Formula) -> Iterator[tuple[tuple[str, ...], Formula]]:
    """x · w + x · u = x · (w + u), of two products with a common factor.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> two = parse_formula('''
    ... formula f(x: float32[64, 32], w: float32[32, 8], u: float32[32, 8]) -> y
    ...     a[i < 64, j < 8]: float32 = sum{k < 32} x[i, k] * w[k, j]
    ...     b[i < 64, j < 8]: float32 = sum{k < 32} x[i, k] * u[k, j]
    ...     y[i < 64, j < 8]: float32 = a[i, j] + b[i, j] * 0.5
    ... ''')
    >>> ((names, other),) = joined_sums(two)
    >>> print(names, other)
    ('a', 'b') formula f(x: float32[64, 32], w: float32[32, 8], u: float32[32, 8]) -> y
        a_b[i < 64, j < 8]: float32 = sum{k < 32} x[i, k] * (w[k, j] + u[k, j] * 0.5)
        y[i < 64, j < 8]: float32 = a_b[i, j]
    """
    for reader in formula.arrays:
        for node in dict.fromkeys(walk(reader.body)):
            if not isinstance(node, Bin) or node.op != "+" or not node.dtype.is_float:
                continue
            first, second = (_term(formula, side) for side in (node.a, node.b))
            both = _joined(formula, reader, first, second) if first and second else None
            if first is None or second is None or both is None:
                continue
            body = swapped(reader.body, node, both.element)
            arrays: list[Array] = []
            for a in formula.arrays:
                arrays += [both, replace(a, body=body)] if a is reader else [a]
            found = replace(formula, arrays=needed(arrays, formula.outputs))
            yield (first.of.name, second.of.name), found


@dataclass(frozen=True)
class _Term:
    """A product where it is read, times a number."""

    read: Load
    of: Array
    number: tuple[Expr, ...]


def _term(formula: Formula, expr: Expr) -> _Term | None:
    factors = factors_of(expr)
    found = [f for f in factors if isinstance(f, Load)]
    numbers = tuple(f for f in factors if isinstance(f, Const))
    if len(found) != 1 or len(factors) != 1 + len(numbers):
        return None
    of = formula.definition(found[0].buffer)
    plain = all(isinstance(i, Var) for i in found[0].indices)
    return _Term(found[0], of, numbers) if of and plain and product_of(of) else None


def _joined(formula: Formula, reader: Array, a: _Term, b: _Term) -> Array | None:
    if set(a.read.indices) != set(b.read.indices) or len(a.of.over) != len(b.of.over):
        return None
    if any(x.extent != y.extent for x, y in zip(a.of.over, b.of.over, strict=True)):
        return None
    taken = Names(v.name for v in vars_of(reader.domain))
    depth = tuple(Axis(Var(taken.fresh(x.var.name), x.var.dtype), x.extent) for x in a.of.over)

    def factors(term: _Term) -> Counter[Expr]:
        places = (*term.read.indices, *vars_of(depth))
        new = dict(zip(vars_of(term.of.domain), places, strict=True))
        return Counter(factors_of(substitute(term.of.body, new)))

    first, second = factors(a), factors(b)
    common = first & second
    rest = [*(first - common).elements(), *a.number], [*(second - common).elements(), *b.number]
    if not common or not all(rest):
        return None
    ends = {x.var: x for x in reader.domain}
    axes = tuple(ends[i] for i in a.read.indices if isinstance(i, Var))
    name = Names(x.name for x in formula.buffers).fresh(f"{a.of.name}_{b.of.name}")
    body = product([*common.elements(), product(rest[0]) + product(rest[1])])
    found = array(name, axes, body, a.of.buffer.dtype, monoid="sum", over=depth, loc=reader.loc)
    return found if product_of(found) is not None else None


def storable(formula: Formula) -> Iterator[tuple[str, str]]:
    """The operands of products that are computed, or could be with what scales their rows, or lie
    in memory in a wider type than they are multiplied in: (product, side)."""
    given = {b.name for b in formula.inputs}
    known: set[Expr] = set()
    for f in formula.arrays:
        found = product_of(f)
        if found is None:
            continue
        for side in SIDES:
            operand = getattr(found, side)
            inner = operand.a if isinstance(operand, Cast) else operand
            kind = operand_type(found, given)
            whole, _ = _whole(found, side)
            stored = whole is operand and isinstance(inner, Load) and inner.dtype == kind
            form = form_of(whole)
            stored |= form in known  # by the decision about another product
            known.add(form)
            if not stored and kind.is_float and kind.bits <= operand.dtype.bits:
                yield f.name, side


def operand_type(p: Product, given: set[str]) -> DType:
    """The type in which a product is multiplied, as its text will have it."""
    kinds = []
    for side in (p.left, p.right):
        inner = side.a if isinstance(side, Cast) else side
        kinds += [inner.dtype] if isinstance(inner, Load) and inner.buffer.name in given else []
    if not kinds:
        reading = (*loads(p.left), *loads(p.right))
        kinds = [x.dtype for x in reading if x.dtype.is_float and x.buffer.name in given]
    found = kinds[0] if kinds else p.left.dtype
    for kind in kinds[1:]:
        found = promote(found, kind)
    return found


def stored_operand(normal: Normal, name: str, side: str) -> tuple[Normal, str] | None:
    """With an operand of the product `name` as an array, rounded as the product would round it, and
    with what scales its rows; products with the same operand read the same array. And its name.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> formula = parse_formula('''
    ... formula f(x: float16[64, 32], r: float32[64], w: float16[32, 8]) -> y
    ...     y[i < 64, j < 8]: float32 = sum{k < 32} exp(float32(x[i, k])) * r[i] * float32(w[k, j])
    ... ''')
    >>> print(stored_operand(Normal(formula, (), {}), "y", "left")[0].formula)
    formula f(x: float16[64, 32], r: float32[64], w: float16[32, 8]) -> y
        y_left[i < 64, k < 32]: float16 = float16(exp(float32(x[i, k])) * r[i])
        y[i < 64, j < 8]: float32 = sum{k < 32} float32(y_left[i, k]) * float32(w[k, j])
    """
    formula = normal.formula
    f = next((a for a in formula.arrays if a.name == name), None)
    p = product_of(f) if f is not None else None
    if f is None or p is None or (name, side) not in storable(formula):
        return None
    kind = operand_type(p, {b.name for b in formula.inputs})
    operand, _ = _whole(p, side)
    ends = {x.var: x for x in f.domain}
    batch = [v for v in f.vars if v in p.batch]
    axes = tuple(ends[v] for v in _order(operand, p, side, batch) if v in variables(operand))
    word = next((a.name for a in normal.inlined if a.given and form_of(a.body) == form_of(operand)),
                f"{name}_{side}")  # fmt: skip
    name = Names(x.name for x in formula.buffers).fresh(word)
    made = array(name, axes, cast(operand, kind), loc=f.loc)
    form, places = form_of(operand), axes_met(operand)
    arrays: list[Array] = []
    for a in formula.arrays:
        for each in SIDES:
            own = product_of(a)
            if own is None:
                break
            expr, scale = _whole(own, each)
            if form_of(expr) != form or operand_type(own, {b.name for b in formula.inputs}) != kind:
                continue
            at = dict(zip(places, axes_met(expr), strict=True))
            own_ends = {x.var: x.extent for x in a.domain}
            if any(own_ends.get(at[x.var]) != x.extent for x in axes):
                continue
            element = Load(made.buffer, tuple(at[x.var] for x in axes))
            sides = {"left": own.left, "right": own.right, each: cast(element, expr.dtype)}
            factors = [sides["left"], sides["right"], *([scale] if scale is not None else [])]
            new = replace(a, body=product([x for y in factors for x in factors_of(y)]))
            if product_of(new) is not None:
                arrays += [] if made in arrays else [made]
                a = new
        arrays.append(a)
    if made not in arrays:
        return None
    kept = needed(arrays, formula.outputs)
    return replace(normal, formula=replace(formula, arrays=kept)), made.name


def paddable(formula: Formula) -> Iterator[str]:
    """Products of what lies in memory in rows that are no multiples of 16 bytes."""
    for f in formula.arrays:
        p = product_of(f)
        if p is None or len(f.over) > 1 or not isinstance(f.over[0].extent, int):
            continue
        reads = [x for side in (p.left, p.right) if (x := _read_plainly(side)) is not None]
        if len(reads) == 2 and not all(has_whole_rows(x.buffer) for x in reads):
            yield f.name


def _read_plainly(side: Expr) -> Load | None:
    """What an operand is, if it is read as it lies in memory, in 16 bits or fewer."""
    inner = side.a if isinstance(side, Cast) else side
    if not isinstance(inner, Load) or inner.dtype.bits > 16 or not inner.dtype.is_float:
        return None
    is_plain = all(isinstance(i, Var) for i in inner.indices)
    known = all(isinstance(n, int) for n in extents(inner.buffer))
    return inner if is_plain and known and len({*inner.indices}) == len(inner.indices) else None


def has_whole_rows(b: Buffer) -> bool:
    """Whether rows are whole pieces of 16 bytes, which is what the bulk engine copies; those of
    any length may be."""
    *others, last = extents(b)
    return not others or not isinstance(last, int) or last * b.dtype.bits % 128 == 0


def padded_operands(normal: Normal, name: str) -> tuple[Normal, list[str]] | None:
    """With the operands of the product `name` as arrays whose rows are whole pieces of 16 bytes,
    zeros after what there is. And their names.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> formula = parse_formula('''
    ... formula f(x: float16[64, 30], w: float16[30, 9]) -> y
    ...     y[i < 64, j < 9]: float32 = sum{k < 30} float32(x[i, k]) * float32(w[k, j])
    ... ''')
    >>> print(padded_operands(Normal(formula, (), {}), "y")[0].formula)
    formula f(x: float16[64, 30], w: float16[30, 9]) -> y
        y_left[i < 64, k < 32]: float16 = x[i, k] if k < 30 else 0.0
        y_right[k < 32, j < 16]: float16 = w[k, j] if k < 30 and j < 9 else 0.0
        y[i < 64, j < 9]: float32 = sum{k < 32} float32(y_left[i, k]) * float32(y_right[k, j])
    """
    formula = normal.formula
    f = next((a for a in formula.arrays if a.name == name), None)
    p = product_of(f) if f is not None else None
    if f is None or p is None or name not in paddable(formula):
        return None
    reads = [read for side in (p.left, p.right) if (read := _read_plainly(side)) is not None]
    places = [[v for v in read.indices if isinstance(v, Var)] for read in reads]
    # of what is folded a part may be all that counts
    known = [{v: n for v, n in zip(at, extents(read.buffer), strict=True) if isinstance(n, int)}
             | {x.var: x.extent for x in f.over if x.var in at and isinstance(x.extent, int)}
             for at, read in zip(places, reads, strict=True)]  # fmt: skip
    longer: dict[Var, int] = {}  # by axis: its length with zeros after it
    for read, at, ends in zip(reads, places, known, strict=True):
        if not has_whole_rows(read.buffer):
            last, each = at[-1], 128 // read.dtype.bits
            longer[last] = max(-(-ends[last] // each) * each, longer.get(last, 0))
    names = Names(x.name for x in formula.buffers)
    made: dict[tuple[Buffer, tuple[tuple[int, int], ...]], Array] = {}
    instead: dict[Expr, Expr] = {}
    for side, read, at, ends in zip(SIDES, reads, places, known, strict=True):
        new = {v: longer.get(v, n) if v is at[-1] or v in f.folded else n for v, n in ends.items()}
        inside = [v < n for v, n in ends.items() if new[v] > n]
        if not inside and has_whole_rows(read.buffer):
            continue
        key = read.buffer, tuple((n, new[v]) for v, n in ends.items())
        if key not in made:
            zero = const(0, read.dtype)
            body = select(reduce(logical_and, inside), read, zero) if inside else read
            axes = tuple(Axis(v, new[v]) for v in at)
            made[key] = array(names.fresh(f"{name}_{side}"), axes, body, loc=f.loc)
        instead[read] = Load(made[key].buffer, read.indices)
    over = tuple(Axis(x.var, longer.get(x.var, x.extent)) for x in f.over)
    padded = replace(f, body=transform(f.body, instead.get), over=over)
    arrays = [y for a in formula.arrays for y in ((*made.values(), padded) if a is f else (a,))]
    found = replace(normal, formula=replace(formula, arrays=tuple(arrays)))
    return found, [a.name for a in made.values()]


def _whole(p: Product, side: str) -> tuple[Expr, Expr | None]:
    """An operand with what scales its rows, and what then still scales the product."""
    operand: Expr = getattr(p, side)
    own = set(p.batch) | set(p.rows if side == "left" else p.columns)
    scales = factors_of(p.scale) if p.scale is not None else []
    inside = [s for s in scales if variables(s) and variables(s) <= own]
    outside = [s for s in scales if s not in inside]
    whole = product([*factors_of(operand), *inside]) if inside else operand
    return whole, product(outside) if outside else None


def _order(operand: Expr, p: Product, side: str, batch: list[Var]) -> Sequence[Var]:
    """The axes as what is read has them, so that nothing is turned."""
    own = p.rows if side == "left" else p.columns
    found = [*batch, *own, *p.depth]
    used = {v for v in found if v in variables(operand)}
    for read in loads(operand):
        if len(read.indices) == len(used) and set(read.indices) == used:
            return [v for v in read.indices if isinstance(v, Var)]
    return found
