"""What a function leaves its gradients: a formula of values and cotangents as two.

The first computes the values, and what is cheaper to store and read again than to compute again;
the second the rest. An output lies in memory anyway, and is read as it was rounded there. Of the
others each costs its bytes, twice, or the time of its fold and of those that it needs: scores of
attention are computed again, the sums of their rows are kept.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from tilewright.formula.matrices import product_of
from tilewright.formula.rows import Reading, is_row
from tilewright.ir.core import *
from tilewright.ir.formula import Array, Formula, most, reads, verify

# a second's work: bytes of memory, multiplications and additions of tensor cores and of threads
BYTES, TENSOR, THREADS = 4.0e12, 600e12, 20e12


def parted(formula: Formula, cotangents: frozenset[str], count: int) -> tuple[Formula, Formula]:
    """`formula`, whose first `count` outputs are values, as one of them and what is kept, and one
    of the other outputs, whose inputs are those, what was kept, and `cotangents`.

    >>> from tilewright.ir.text.formula import parse_formula
    >>> both = parse_formula('''
    ... formula f(x: float32[4, 512], g: float32[4]) -> y, d_x
    ...     sum[i < 4]: float32 = sum{j < 512} exp(x[i, j])
    ...     y[i < 4]: float32 = log(sum[i])
    ...     d_x[i < 4, j < 512]: float32 = g[i] * (exp(x[i, j]) / sum[i])
    ... ''')
    >>> for part in parted(both, frozenset({"g"}), 1):
    ...     print(part)
    formula f(x: float32[4, 512]) -> y, log_sum
        sum[i < 4]: float32 = sum{j < 512} exp(x[i, j])
        log_sum[i0 < 4]: float32 = log2(sum[i0])
        y[i < 4]: float32 = log(sum[i])
    formula f(x: float32[4, 512], log_sum: float32[4], g: float32[4]) -> d_x
        d_x[i < 4, j < 512]: float32 = g[i] * exp2(x[i, j] * 1.442695 - log_sum[i])
    """
    values, rest = formula.outputs[:count], formula.outputs[count:]
    late = {*cotangents, *(b.name for b in rest)}
    for a in formula.arrays:
        late |= {a.name} if late & a.sources else set()
    early = [a for a in formula.arrays if a.name not in late]
    last = [a for a in formula.arrays if a.name in late]
    stored = _stored(early, values)
    kept, again = _kept(early, last, stored)
    found = Reading(formula, {b.name for b in formula.inputs if b.name not in cotangents})
    rows = {a.name for a in early if a.name in kept and is_row(a)} - stored.keys()
    last = [found.of(replace(a, body=_as_stored(a.body, stored)), rows) for a in (*again, *last)]
    known = {b.name: b for b in (*formula.inputs, *(a.buffer for a in early), *values)}
    known |= {a.name: a.buffer for a, _ in found.made.values()}
    own = {a.name for a in last}
    given = dict.fromkeys(r.buffer.name for a in last for r in reads(a) if r.buffer.name not in own)
    inputs = [n for n in given if n not in cotangents]
    made = {b.name for b in formula.inputs}
    leaves = [known[n] for n in inputs if n not in made | {b.name for b in values}]
    outputs = dict.fromkeys((*values, *leaves))
    forward = Formula(
        formula.name.removesuffix("_vjp"),
        tuple(b for b in formula.inputs if b.name not in cotangents),
        found.placed(early),
        tuple(outputs),
    )
    ends = tuple(b for b in formula.inputs if b.name in cotangents)
    backward = Formula(formula.name, (*(known[n] for n in inputs), *ends), tuple(last), rest)
    for each in (forward, backward):
        verify(each)
    return forward, backward


def _stored(early: list[Array], values: tuple[Buffer, ...]) -> dict[str, Buffer]:
    """The outputs that folds are, but for rounding."""
    found = {b.name: b for b in values}
    for a in early:
        inner = a.body
        while isinstance(inner, Cast):
            inner = inner.a
        if a.buffer not in values or not isinstance(inner, Load) or not inner.dtype.is_float:
            continue
        if inner.indices == a.vars:
            found.setdefault(inner.buffer.name, a.buffer)
    return found


def _as_stored(body: Expr, stored: dict[str, Buffer]) -> Expr:
    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Load) and node.buffer.name in stored:
            return cast(Load(stored[node.buffer.name], node.indices), node.dtype)
        return None

    return transform(body, rule)


def _kept(
    early: list[Array], last: list[Array], stored: dict[str, Buffer]
) -> tuple[set[str], list[Array]]:
    """The names of what is read again, and what is computed again."""
    needed = set().union(*(a.sources for a in last))
    seconds: dict[str, float] = {}
    for a in early:
        seconds[a.name] = _time(a) + sum(seconds.get(n, 0) for n in a.sources - stored.keys())
    kept: set[str] = set()
    again: list[Array] = []
    for a in reversed(early):
        if a.name not in needed:
            continue
        if a.name in stored or 2 * a.buffer.bytes / BYTES < seconds[a.name]:
            kept.add(a.name)
        else:
            again.append(a)
            needed |= a.sources
    return kept, again[::-1]


def _time(a: Array) -> float:
    """Seconds that a definition takes, without what it reads."""
    elements = prod(most(axis.extent) for axis in a.domain)
    return 2 * elements / (THREADS if product_of(a) is None else TENSOR)
