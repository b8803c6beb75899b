"""What a random program is made of, its text as a Python file, and how large its numbers grow.

A `Recipe` is a tree of small records. Extents are written `$e0` in its texts, and `$[…]` is
arithmetic on them, so that a shrinker changes a size in one place. A size known at launch only
renders as its own name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

# Integers up to here are exact in a float type; sums beyond may depend on their order.
EXACT = {
    "float64": 2.0**53, "float32": 2.0**24, "float16": 2.0**11, "bfloat16": 2.0**8,
    "float8_e4m3fn": 2.0**4, "float8_e5m2": 2.0**3,
}  # fmt: skip
# One rounding per operation gives the same bits everywhere; past these a value overflows.
LARGEST = {
    "float64": 2.0**53, "float32": 2.0**24, "float16": 30000.0, "bfloat16": 2.0**24,
    "float8_e4m3fn": 240.0, "float8_e5m2": 2.0**12,
}  # fmt: skip
SPAN = {"bool": 1, "int8": 127, "uint8": 255, "int16": 2**15, "int32": 2**31, "int64": 2**63,
        "uint16": 2**16, "uint32": 2**32}  # fmt: skip


def is_float(dtype: str) -> bool:
    return dtype in EXACT


@dataclass(frozen=True)
class Ex:
    """A value: `text` with `{0}` … for its `kids`.

    `kind` says how large it gets: `known` (at most `size`), `read` (what buffer `name` holds),
    `add`, `mul`, `most` (the largest kid), `cast`, `cap` (at most `size`, whatever the kids are).
    """

    kind: str
    dtype: str
    text: str
    kids: tuple[Ex, ...] = ()
    size: float = 0.0
    name: str = ""

    def __str__(self) -> str:
        return self.text.format(*map(str, self.kids))


@dataclass(frozen=True)
class Stmt:
    """A statement: `head` with `{0}` … for `exprs` and `{name}` for `params`, and what stands
    under it. Without a head, its body stands in its place.

    `effect` says what happens to magnitudes: (kind, …), as in `_Growth`. A `fixed` statement
    stays while the one around it does.
    """

    head: str
    exprs: tuple[Ex, ...] = ()
    params: Mapping[str, Any] = field(default_factory=dict)
    body: tuple[Stmt, ...] = ()
    orelse: tuple[Stmt, ...] = ()
    effect: tuple[Any, ...] = ()
    fixed: bool = False

    def lines(self, indent: str) -> Iterator[str]:
        inner = indent
        if self.head:
            text = self.head.format(*map(str, self.exprs), **self.params)
            yield from (indent + line for line in text.split("\n"))
            inner += "    "
        for each in self.body:
            yield from each.lines(inner)
        if self.head.endswith(":") and not self.body:
            yield inner + "pass"
        if self.orelse:
            yield indent + "else:"
            for each in self.orelse:
                yield from each.lines(inner)


@dataclass(frozen=True)
class Tensor:
    """A parameter, or scratch between kernels; `high` bounds its random data, or `data`, an
    expression, says what it holds."""

    name: str
    shape: tuple[str, ...]
    dtype: str
    high: int = 3
    scratch: bool = False
    data: str = ""


@dataclass(frozen=True)
class Tile:
    """A buffer of a kernel: shared, fragment, local or var; `of` names the tile it is a view of."""

    name: str
    space: str
    shape: tuple[str, ...]
    dtype: str
    of: str = ""
    init: str = ""

    def line(self) -> str:
        shape = ", ".join(self.shape) + ("," if len(self.shape) == 1 else "")
        if self.of:
            return f'{self.name} = T.view({self.of}, ({shape}), "{self.dtype}")'
        if self.space == "var":
            return f'{self.name} = T.alloc_var("{self.dtype}", init={self.init})'
        return f'{self.name} = T.alloc_{self.space}(({shape}), "{self.dtype}")'


@dataclass(frozen=True)
class Launch:
    """One `with T.Kernel`."""

    grid: tuple[str, ...]
    blocks: tuple[str, ...]
    threads: str
    tiles: tuple[Tile, ...]
    body: tuple[Stmt, ...]


@dataclass(frozen=True)
class Recipe:
    """A program. `sizes` maps extents to numbers; those in `dynamic`, and `scalars`, have a value
    in each of `cases` instead. With `exact` data every sum has the same bits in every order, and
    if it is "signed" zeros have their signs, too."""

    seed: int
    exact: bool | str
    sizes: Mapping[str, int]
    dynamic: tuple[str, ...]
    scalars: tuple[str, ...]
    cases: tuple[Mapping[str, int], ...]
    tensors: tuple[Tensor, ...]
    launches: tuple[Launch, ...]

    def value(self, text: str, case: Mapping[str, int]) -> int:
        """An extent's value."""
        known = {**self.sizes, **case}
        plain = text.replace("$[", "(").replace("]", ")").replace("$", "")
        names = {"min": min, "max": max, "T": _Arithmetic}
        return int(eval(plain, {"__builtins__": {}}, {**known, **names}))


class _Arithmetic:
    @staticmethod
    def ceildiv(a: int, b: int) -> int:
        return -(-a // b)


# ── text ─────────────────────────────────────────────────────────────────────────────────────

_ARITHMETIC = re.compile(r"\$\[([^\[\]]*)\]")
_NAME = re.compile(r"\$([a-z]\d+)")
_HEAD = '''"""{title}"""

import sys

import ml_dtypes  # noqa: F401
import numpy as np

import tilewright as tw  # noqa: F401
import tilewright.language as T

'''


def render(recipe: Recipe, title: str = "") -> str:
    """The Python file of a recipe: `program`, `arguments(**case)`, `CASES`, and a replay."""
    lines = [f'{name} = T.dynamic("{name}")' for name in recipe.dynamic]
    lines += ["", "", "@T.prim_func", "def program("]
    lines += [f"    {_declare(t)}," for t in recipe.tensors if not t.scratch]
    lines += [f"    {name}: T.int32," for name in recipe.scalars]
    lines += ["):"]
    for tensor in recipe.tensors:
        if tensor.scratch:
            shape = f"({', '.join(tensor.shape)},)"
            lines.append(f'    {tensor.name} = T.alloc_global({shape}, "{tensor.dtype}")')
    for launch in recipe.launches:
        names = ", ".join(launch.blocks)
        names = names if len(launch.blocks) == 1 else f"({names})"
        grid = ", ".join(launch.grid)
        lines.append(f"    with T.Kernel({grid}, threads={launch.threads}) as {names}:")
        inside = [s for stmt in launch.body for s in stmt.lines(" " * 8)]
        lines += [" " * 8 + t.line() for t in used_tiles(launch.tiles, inside)]
        lines += inside or [" " * 8 + "pass"]
    body = _numbers("\n".join(lines), recipe)
    return _HEAD.format(title=title or f"A random program, seed {recipe.seed}.") + body + _tail(
        recipe
    )  # fmt: skip


def used_tiles(tiles: tuple[Tile, ...], lines: list[str]) -> list[Tile]:
    """The tiles that something mentions."""
    text = "\n".join(lines)
    kept: list[Tile] = []
    for tile in reversed(tiles):
        pattern = rf"\b{tile.name}\b"
        if re.search(pattern, text) or any(v.of == tile.name for v in kept):
            kept.append(tile)
    return kept[::-1]


def _declare(tensor: Tensor) -> str:
    shape = ", ".join(tensor.shape) + ("," if len(tensor.shape) == 1 else "")
    return f'{tensor.name}: T.Tensor(({shape}), "{tensor.dtype}")'


def _numbers(text: str, recipe: Recipe) -> str:
    def name(match: re.Match[str]) -> str:
        found = match[1]
        return str(recipe.sizes.get(found, found))

    text = _ARITHMETIC.sub(lambda m: str(recipe.value(m[1], {})), text)
    return _NAME.sub(name, text)


def _tail(recipe: Recipe) -> str:
    names = [*recipe.dynamic, *recipe.scalars]
    lines = ["", "", "", f"def arguments({', '.join(names)}):"]
    lines += [f"    rng = np.random.default_rng({recipe.seed})", "    return {"]
    for tensor in recipe.tensors:
        if not tensor.scratch:
            lines.append(f'        "{tensor.name}": {_data(tensor, recipe.exact)},')
    lines += [f'        "{name}": {name},' for name in recipe.scalars]
    lines += ["    }", "", "", "CASES = ["]
    lines += [f"    {dict(case)!r}," for case in recipe.cases]
    lines += ["]", f"EXACT = {recipe.exact!r}", "", 'if __name__ == "__main__":']
    lines += ["    from devtools.fuzz.check import replay  # with PYTHONPATH=. from the root", ""]
    lines += ["    sys.exit(replay(program, arguments, CASES, EXACT, sys.argv[1:]))", ""]
    return _numbers("\n".join(lines), recipe)


def _data(tensor: Tensor, exact: bool | str) -> str:
    shape = "(" + "".join(f"{s}, " for s in tensor.shape).rstrip() + ")"
    special = tensor.dtype.startswith(("bfloat", "float8"))
    dtype = f"ml_dtypes.{tensor.dtype}" if special else f'"{tensor.dtype}"'
    if tensor.data:
        return f"{tensor.data}.astype({dtype})"
    if not exact and is_float(tensor.dtype):
        return f"rng.standard_normal({shape}).astype({dtype})"
    low = 0 if tensor.dtype.startswith(("uint", "bool")) else -tensor.high
    high = 1 if tensor.dtype == "bool" else tensor.high
    return f"rng.integers({low}, {high + 1}, {shape}).astype({dtype})"


# ── magnitudes ───────────────────────────────────────────────────────────────────────────────


class Inexact(Exception):
    """A sum may leave the integers that its type holds exactly."""

    def __init__(self, stmt: Stmt) -> None:
        super().__init__(stmt.head)
        self.stmt = stmt


class Growth:
    """Runs a recipe on bounds instead of numbers, loops turn by turn."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        self.dtypes = {t.name: t.dtype for t in recipe.tensors}
        self.roots: dict[str, str] = {}
        self.bounds = {t.name: float(t.high) for t in recipe.tensors}
        self.now: Stmt = Stmt("")

    def check(self) -> None:
        """Raises `Inexact` at the first statement that goes too far."""
        for launch in self.recipe.launches:
            for tile in launch.tiles:
                self.dtypes[tile.name] = tile.dtype
                self.roots[tile.name] = self.root(tile.of) if tile.of else tile.name
                if tile.space == "var":
                    self.bounds[tile.name] = 8.0
                elif tile.of and self.dtypes[tile.of] != tile.dtype:
                    self.bounds[self.root(tile.of)] = float(SPAN.get(tile.dtype, 2**31))
            self.run(launch.body)

    def root(self, name: str) -> str:
        return self.roots.get(name, name)

    def get(self, name: str) -> float:
        dtype = self.dtypes.get(name, "int32")
        return min(self.bounds.get(self.root(name), 0.0), SPAN.get(dtype, float("inf")))

    def put(self, name: str, bound: float, whole: bool) -> None:
        bound = min(bound, SPAN.get(self.dtypes.get(name, "int32"), float("inf")))
        if not whole:
            bound = max(bound, self.get(name))
        self.bounds[self.root(name)] = bound

    def run(self, body: tuple[Stmt, ...]) -> None:
        for stmt in body:
            self.now = stmt
            self.step(stmt)

    def step(self, stmt: Stmt) -> None:
        values = [self.size(e) for e in stmt.exprs]
        self.now = stmt
        match stmt.effect:
            case ("loop" | "loop_most" as kind, trips):
                # numbers that stop growing have found their bound
                turns = int(trips) if kind == "loop_most" else self.trips(trips, stmt)
                for _ in range(turns):
                    before = dict(self.bounds)
                    self.run(stmt.body)
                    if before == self.bounds:
                        break
                return
            case ("store", dst, whole):
                self.put(dst, values[0], whole)
            case ("bump", dst, times):
                self.put(dst, self.get(dst) + values[0] * times, False)
            case ("copy", src, dst, whole):
                self.put(dst, self.get(src), whole)
            case ("fill", dst, value, whole):
                self.put(dst, abs(value), whole)
            case ("gemm", a, b, c, k, clear):
                grown = self.most(k) * self.get(a) * self.get(b)
                grown += 0 if clear else self.get(c)
                self.put(c, self.exact(grown, self.dtypes[c]), True)
            case ("sum", src, dst, count, clear):
                grown = self.get(src) * self.most(count) + (0 if clear else self.get(dst))
                self.exact(grown, self.dtypes[src])
                self.put(dst, self.exact(grown, self.dtypes.get(dst, self.dtypes[src])), True)
            case ("most", src, dst, clear):
                self.put(dst, max(self.get(src), 0 if clear else self.get(dst)), True)
        if stmt.body or stmt.orelse:
            before = dict(self.bounds)
            self.run(stmt.body)
            after, self.bounds = self.bounds, before
            self.run(stmt.orelse)
            for name, bound in after.items():
                self.bounds[name] = max(bound, self.bounds.get(name, 0.0))

    def trips(self, trips: Any, stmt: Stmt) -> int:
        count = stmt.params.get("trip", trips)
        return min(self.most(str(count)), 40)

    def most(self, text: str) -> int:
        """The largest value of an extent over all cases."""
        return max(self.recipe.value(text, case) for case in self.recipe.cases)

    def exact(self, bound: float, dtype: str) -> float:
        if self.recipe.exact and bound > EXACT.get(dtype, float("inf")):
            raise Inexact(self.now)
        return bound

    def size(self, e: Ex) -> float:
        kids = [self.size(k) for k in e.kids]
        match e.kind:
            case "known" | "cap":
                return e.size
            case "read":
                return self.get(e.name)
            case "cast" | "most":
                bound = max(kids)
            case "add":
                bound = sum(kids)
            case "mul":
                bound = 1.0
                for kid in kids:
                    bound *= kid
            case _:
                raise ValueError(e.kind)
        if self.recipe.exact and bound > LARGEST.get(e.dtype, float("inf")):
            raise Inexact(self.now)
        return min(bound, SPAN.get(e.dtype, float("inf")))


# ── walking ──────────────────────────────────────────────────────────────────────────────────


def map_body(body: tuple[Stmt, ...], visit: Callable[[Stmt], tuple[Stmt, ...]]) -> tuple[Stmt, ...]:
    """Every statement, innermost first, replaced by what `visit` gives for it."""
    done: list[Stmt] = []
    for stmt in body:
        inner, other = map_body(stmt.body, visit), map_body(stmt.orelse, visit)
        if (inner, other) != (stmt.body, stmt.orelse):
            stmt = replace(stmt, body=inner, orelse=other)
        done += visit(stmt)
    return tuple(done)


def statements(body: tuple[Stmt, ...]) -> Iterator[Stmt]:
    """Every statement, outermost first."""
    for stmt in body:
        yield stmt
        yield from statements(stmt.body)
        yield from statements(stmt.orelse)
