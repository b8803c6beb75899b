"""Expressions: typed, immutable trees over constants, variables and buffer elements.

    Expr = Const | Var | Bin | Cmp | Select | Cast | Call | Load

All but `Load` are pure and interned: two equal expressions are one object, so `is`, `==` and
dictionary lookups agree and cost nothing. `Load` reads one buffer element at the moment its op
runs; its indices are expressions too. `Select` evaluates only the chosen side's loads, and
`and`/`or` evaluate their right side's loads only where the left side does not decide.

`arith` has the pure ones and what builds them, `buffer` the loads; this walks and rewrites them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import is_
from typing import Any

from tilewright.ir.arith import *
from tilewright.ir.buffer import *
from tilewright.ir.dtype import DType


def identity(op: str, kind: DType) -> Expr:
    """What a fold by `op` starts from: it changes no result."""
    match op.removeprefix("bit").removesuffix("_num"):
        case "max" | "min" as way:
            ends = kind.min_value, kind.max_value
            if kind.is_float and kind.bits > 8:  # others have no infinity
                ends = -inf, inf
            return const(ends[way == "min"], kind)
        case "all" | "prod":
            return const(1, kind)
        case "and":
            return const(-1 if kind.kind == "int" else kind.max_value, kind)
    return const(0, kind)


def logical_and(a: Expr, b: Expr) -> Expr:
    """Both conditions; one that always holds is left out.

    >>> logical_and(TRUE, Var("i") < 3) is (Var("i") < 3)
    True
    """
    return b if a is TRUE else a if b is TRUE else binary("and", a, b)


def conjuncts(cond: Expr) -> list[Expr]:
    """What all has to hold for `cond` to hold."""
    if isinstance(cond, Bin) and cond.op == "and":
        return [*conjuncts(cond.a), *conjuncts(cond.b)]
    return [cond]


def number_in(indices: Sequence[Expr], extents: Sequence[Expr | int]) -> Expr:
    """The number of an element of a box with these extents, the first dimension fastest."""
    number: Expr = const(0)
    stride: Expr = const(1)
    for index, extent in zip(indices, extents, strict=True):
        number, stride = number + index * stride, stride * extent
    return number


def ceildiv(a: Any, b: Any) -> Any:
    """⌈a / b⌉ of Python integers or expressions.

    >>> ceildiv(10, 4)
    3
    """
    if isinstance(a, int) and isinstance(b, int):
        return -(-a // b)
    return (wrap(a) + (wrap(b) - 1)) // wrap(b)


def walk(expr: Expr) -> Iterator[Expr]:
    """Every node, each once, parents before children."""
    yield expr
    yield from _below(expr)


def walk_outside(expr: Expr, closed: Callable[[Expr], bool]) -> Iterator[Expr]:
    """Every node, each once, but for what is inside of those that are `closed`."""
    stack, seen = [expr], set[int]()
    while stack:
        node = stack.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            stack += () if closed(node) else node.children


def _below(expr: Expr) -> tuple[Expr, ...]:
    """The nodes of `expr` but itself. They are asked for again and again, and never change:
    kept with the expression, which they do not name, so both go together."""
    found: tuple[Expr, ...] | None = expr.__dict__.get("_below")
    if found is None:
        nodes, stack, seen = [], list(reversed(expr.children)), set()
        while stack:
            node = stack.pop()
            if id(node) not in seen:
                seen.add(id(node))
                nodes.append(node)
                stack.extend(reversed(node.children))
        found = expr.__dict__["_below"] = tuple(nodes)
    return found


def written_size(expr: Expr) -> tuple[int, int]:
    """Operations of `expr` written out, a shared part counted at every use, and how many of them
    lie inside each other."""
    found: tuple[int, int] | None = expr.__dict__.get("_written_size")
    if found is not None:
        return found
    stack = [expr]
    while stack:  # not by recursion: this is what tells whether that can be afforded
        node = stack[-1]
        parts = [child.__dict__.get("_written_size") for child in node.children]
        if None in parts:
            stack += [c for c, part in zip(node.children, parts, strict=True) if part is None]
            continue
        stack.pop()
        sizes = [part for part in parts if part is not None]
        node.__dict__["_written_size"] = (
            1 + sum(size for size, _ in sizes),
            1 + max((depth for _, depth in sizes), default=0),
        )
    return expr.__dict__["_written_size"]  # type: ignore[no-any-return]


def variables(expr: Expr) -> set[Var]:
    return {expr} if isinstance(expr, Var) else set(_variables(expr))


def _variables(expr: Expr) -> frozenset[Var]:
    """Those below an expression, kept with it and with what is below."""
    found: frozenset[Var] | None = expr.__dict__.get("_variables")
    if found is not None:
        return found
    stack = [expr]
    while stack:  # not by recursion: the expression may be as deep as it likes
        node = stack[-1]
        left = [c for c in node.children if c.children and "_variables" not in c.__dict__]
        if left:
            stack += left
            continue
        stack.pop()
        sets = [c.__dict__["_variables"] for c in node.children if c.children]
        sets += [own] if (own := {c for c in node.children if isinstance(c, Var)}) else []
        node.__dict__["_variables"] = (
            frozenset(*sets) if len(sets) < 2 else frozenset().union(*sets)
        )
    return expr.__dict__["_variables"]  # type: ignore[no-any-return]


def loads(expr: Expr) -> list[Load]:
    """The loads in `expr`, loads inside indices included."""
    found: list[Load] | None = expr.__dict__.get("_loads")
    if found is None:
        found = [node for node in _below(expr) if isinstance(node, Load)]
        expr.__dict__["_loads"] = found
    return [expr, *found] if isinstance(expr, Load) else list(found)


def is_pure(expr: Expr) -> bool:
    return not loads(expr)


def transform(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild bottom-up; `rule` sees each node with its new children and may replace it."""
    return _transformed(expr, rule, {})


def _transformed(node: Expr, rule: Callable[[Expr], Expr | None], memo: dict[int, Expr]) -> Expr:
    found = memo.get(id(node))
    if found is None:
        new, old = node, node.children
        if old:
            children = tuple([_transformed(child, rule, memo) for child in old])
            new = node if _same(children, old) else node.rebuild(children)
        replaced = rule(new)
        found = memo[id(node)] = new if replaced is None else replaced
    return found


def _same(a: tuple[Expr, ...], b: tuple[Expr, ...]) -> bool:
    return all(map(is_, a, b))


def map_children(expr: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """`expr` of what `fn` makes of its children."""
    children = tuple(map(fn, expr.children))
    return expr if _same(children, expr.children) else expr.rebuild(children)


def transform_outermost(expr: Expr, rule: Callable[[Expr], Expr | None]) -> Expr:
    """Rebuild top-down; what `rule` puts in the place of a node is left as it is."""
    memo: dict[Expr, Expr] = {}

    def new(node: Expr) -> Expr:
        if node not in memo:
            found = rule(node)
            memo[node] = map_children(node, new) if found is None else found
        return memo[node]

    return new(expr)


def substitute(expr: Expr, values: dict[Var, Expr]) -> Expr:
    return _substituted(expr, values, {})


def _substituted(node: Expr, values: dict[Var, Expr], memo: dict[int, Expr]) -> Expr:
    if isinstance(node, Var):
        return values.get(node, node)
    found = memo.get(id(node))
    if found is None:
        found = node
        if not values.keys().isdisjoint(_variables(node)):
            children = tuple([_substituted(child, values, memo) for child in node.children])
            found = node if _same(children, node.children) else node.rebuild(children)
        memo[id(node)] = found
    return found
