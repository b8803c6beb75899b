"""A failing program made small: statements, extents, values and options go while it still fails."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import islice

from devtools.fuzz.recipe import Ex, Launch, Recipe, Stmt, map_body, render, statements

_SMALL_SIZES = (1, 2, 3, 4, 8, 16)


def shrink(recipe: Recipe, fails: Callable[[Recipe], bool], seconds: float = 60.0) -> Recipe:
    """The smallest program found in that time for which `fails` still holds."""
    deadline = time.monotonic() + seconds
    improved = True
    while improved and time.monotonic() < deadline:
        improved = False
        for step in _STEPS:
            at = 0
            while time.monotonic() < deadline:
                candidate = next(islice(step(recipe), at, None), None)
                if candidate is None:
                    break
                if fails(candidate):
                    # what comes next stands at the same place now; what failed is not tried again
                    recipe, improved = candidate, True
                else:
                    at += 1
    return recipe


def _with_launch(recipe: Recipe, at: int, launch: Launch | None) -> Recipe:
    launches = list(recipe.launches)
    launches[at : at + 1] = [] if launch is None else [launch]
    return replace(recipe, launches=tuple(launches))


def _replaced(recipe: Recipe, old: Stmt, new: tuple[Stmt, ...]) -> Iterator[Recipe]:
    for at, launch in enumerate(recipe.launches):
        body = map_body(launch.body, lambda s: new if s is old else (s,))
        if body != launch.body:
            yield _with_launch(recipe, at, replace(launch, body=body))
            return


def _all(recipe: Recipe) -> list[Stmt]:
    return [s for launch in recipe.launches for s in statements(launch.body)]


def _fewer_launches(recipe: Recipe) -> Iterator[Recipe]:
    if len(recipe.launches) > 1:
        for at in range(len(recipe.launches)):
            yield _with_launch(recipe, at, None)


def _fewer_cases(recipe: Recipe) -> Iterator[Recipe]:
    if len(recipe.cases) > 1:
        for case in recipe.cases:
            yield replace(recipe, cases=(case,))


def _halves(recipe: Recipe) -> Iterator[Recipe]:
    """Several statements of a kernel at once."""
    for at, launch in enumerate(recipe.launches):
        count = len(launch.body)
        for width in (count // 2, count // 4):
            for first in range(0, count, width) if width > 1 else ():
                body = launch.body[:first] + launch.body[first + width :]
                yield _with_launch(recipe, at, replace(launch, body=body))


def _fewer_statements(recipe: Recipe) -> Iterator[Recipe]:
    for stmt in reversed(_all(recipe)):
        if not stmt.fixed:
            yield from _replaced(recipe, stmt, ())
    for stmt in _all(recipe):
        if stmt.head.startswith("if "):
            yield from _replaced(recipe, stmt, stmt.body)
            if stmt.orelse:
                yield from _replaced(recipe, stmt, stmt.orelse)


def _plainer_statements(recipe: Recipe) -> Iterator[Recipe]:
    for stmt in _all(recipe):
        for name, value in stmt.params.items():
            smaller = {"trip": ("1", "2"), "stages": (0, 2)}.get(name, ())
            for less in smaller:
                if str(value) not in ("0", "1", str(less)):
                    params = {**stmt.params, name: less}
                    effect = ("loop", less) if name == "trip" else stmt.effect
                    yield from _replaced(
                        recipe, stmt, (replace(stmt, params=params, effect=effect),)
                    )
        for pattern in (r", policy=[\w.]+", r", prefer=\"\w+\"", r", cache=\"\w+\""):
            head = re.sub(pattern, "", stmt.head)
            if head != stmt.head:
                yield from _replaced(recipe, stmt, (replace(stmt, head=head),))


def _plainer_values(recipe: Recipe) -> Iterator[Recipe]:
    for stmt in _all(recipe):
        for at, e in enumerate(stmt.exprs):
            for less in _less(e):
                exprs = (*stmt.exprs[:at], less, *stmt.exprs[at + 1 :])
                yield from _replaced(recipe, stmt, (replace(stmt, exprs=exprs),))


def _less(e: Ex) -> Iterator[Ex]:
    """Values in the place of one: its kids, then itself with a smaller kid, then a number."""
    yield from (k for k in e.kids if k.dtype == e.dtype)
    for at, kid in enumerate(e.kids):
        for less in _less(kid):
            yield replace(e, kids=(*e.kids[:at], less, *e.kids[at + 1 :]))
    if e.kids:
        yield Ex("known", e.dtype, f'T.cast(1, "{e.dtype}")', size=1)


def _smaller_sizes(recipe: Recipe) -> Iterator[Recipe]:
    for name, value in recipe.sizes.items():
        for less in _SMALL_SIZES:
            if less < value:
                yield replace(recipe, sizes={**recipe.sizes, name: less})
    for at, case in enumerate(recipe.cases):
        for name, value in case.items():
            for less in (0, *_SMALL_SIZES):
                if less < value:
                    cases = list(recipe.cases)
                    cases[at] = {**case, name: less}
                    yield replace(recipe, cases=tuple(cases))


def _plainer_launches(recipe: Recipe) -> Iterator[Recipe]:
    for at, launch in enumerate(recipe.launches):
        if launch.threads not in ("32", "128"):
            for threads in ("32", "128"):
                yield _with_launch(recipe, at, replace(launch, threads=threads))
        for which, grid in enumerate(launch.grid):
            if grid != "1":
                one = (*launch.grid[:which], "1", *launch.grid[which + 1 :])
                yield _with_launch(recipe, at, replace(launch, grid=one))


def _fewer_tensors(recipe: Recipe) -> Iterator[Recipe]:
    text = render(replace(recipe, tensors=()))
    used = tuple(t for t in recipe.tensors if re.search(rf"\b{t.name}\b", text))
    if len(used) < len(recipe.tensors):
        yield replace(recipe, tensors=used)


def _one_type(recipe: Recipe) -> Iterator[Recipe]:
    kinds = {t.dtype for launch in recipe.launches for t in launch.tiles}
    kinds |= {t.dtype for t in recipe.tensors}
    for kind in sorted(kinds - {"float32", "int32"}):
        other = "float32" if "float" in kind else "int32"
        yield retyped(recipe, kind, other)


def retyped(recipe: Recipe, old: str, new: str) -> Recipe:
    """The program with one type in the place of another."""

    def value(e: Ex) -> Ex:
        text = e.text.replace(f'"{old}"', f'"{new}"')
        dtype = new if e.dtype == old else e.dtype
        return replace(e, text=text, dtype=dtype, kids=tuple(map(value, e.kids)))

    def visit(stmt: Stmt) -> tuple[Stmt, ...]:
        head = stmt.head.replace(f'"{old}"', f'"{new}"')
        return (replace(stmt, head=head, exprs=tuple(map(value, stmt.exprs))),)

    launches = tuple(
        replace(
            launch,
            body=map_body(launch.body, visit),
            tiles=tuple(replace(t, dtype=new) if t.dtype == old else t for t in launch.tiles),
        )
        for launch in recipe.launches
    )
    tensors = tuple(replace(t, dtype=new) if t.dtype == old else t for t in recipe.tensors)
    return replace(recipe, launches=launches, tensors=tensors)


_STEPS = (
    _fewer_cases, _fewer_launches, _halves, _fewer_statements, _fewer_tensors, _plainer_launches,
    _plainer_statements, _plainer_values, _smaller_sizes, _one_type,
)  # fmt: skip
