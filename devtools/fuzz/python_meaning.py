"""Random Python in a kernel's text, run twice: as plain Python, iteration by iteration on integers,
and as a kernel. Results are equal, or the kernel is refused at one of its lines.

    python -m devtools meaning --count 1000
"""

from __future__ import annotations

import linecache
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language
from tilewright.support.errors import TilewrightError

T: Any = tilewright.language

SIZE, ROWS = 8, 4
RARE = 0.015  # what is refused most of the time
HEAD = f"""def program(
    A: T.Tensor(({SIZE},), "int32"),
    C: T.Tensor(({SIZE},), "int32"),
    B: T.Tensor(({ROWS}, {SIZE}), "int32"),
):
    with T.Kernel(1, threads=32):
        for i in T.Parallel({SIZE}):
"""

# of compile-time state, and what shows them
CHANGES = (
    ("L.append(1)", "len(L)"),
    ("push(2)", "L[-1]"),
    ("bump()", "S[0]"),
    ("setattr(P, 'x', P.x + 1)", "P.x"),
    ("P.x = 3", "P.x"),
    ("Q[0] = Q[0] + 1", "int(Q[0])"),
    ("next(N)", "next(N)"),
)


@dataclass(frozen=True)
class Finding:
    kind: str  # mismatch, crash, or nowhere: a refusal without a line
    said: str
    source: str


# ── making programs ──────────────────────────────────────────────────────────────────────────


@dataclass
class Maker:
    """Statements of one kernel: lists of lines, an inner list being a block."""

    r: Random
    names: list[str] = field(default_factory=list)  # that hold numbers
    places: list[str] = field(default_factory=list)  # in Python's containers and objects
    made: int = 0

    def fresh(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def number(self, depth: int) -> str:
        """An expression of integers."""
        r = self.r
        if depth == 0 or r.random() < 0.15:
            return r.choice(
                [
                    "A[i]",
                    "A[i]",
                    "A[i]",
                    "C[i]",
                    f"C[{r.randrange(SIZE)}]",
                    "i",
                    str(r.randint(-3, 5)),
                ]
                + 2 * self.names
                + 3 * self.places
            )
        a, b, c = (self.number(depth - 1) for _ in range(3))
        test = self.test(depth - 1)
        few = r.randint(1, 4)
        if r.random() < RARE:
            return r.choice(
                [
                    f"{{1: 5, 2: 6}}.get({a}, {b})",
                    f"[1, 2, 3].count({a})",
                    f"(take(A, i, {few}) if {test} else {a})",
                    f"len(f'{{{a}}}')",
                ]
            )
        if r.random() < 2 * RARE:
            return r.choice([f"take(A, i, {few})", f"({a} + take(A, i, {few}))"])
        return r.choice(
            [
                f"({a} {r.choice('+-*&|^')} {b})",
                f"({a} {r.choice(('//', '%'))} {r.choice((-3, -2, 2, 3, 5))})",
                f"({a} {r.choice(('<<', '>>'))} {few % 3})",
                f"(-{a})",
                f"(~({a} + 0))",
                f"({a} if {test} else {b})",
                f"({a} or {b})",
                f"({a} and {b})",
                f"({test} and {a})",
                f"(({a}) or {few})",
                f"(None or {a})",
                f"min({a}, {b})",
                f"max([{a}, {b}, {c}])",
                f"abs({a})",
                f"sum([{a}, {b}])",
                f"divmod({a}, {few})[{r.randrange(2)}]",
                f"int({a})",
                f"({test} + {a})",
                f"({test} << {few % 3})",
                f"T.if_then_else({test}, {a}, {b})",
                f"(lambda x: x + {b})({a})",
                f"(lambda x={a}: x)()",
                f"[{a}, {b}][{r.randrange(2)}]",
                f"{{'k': {a}}}['k']",
            ]
        )

    def test(self, depth: int) -> str:
        """A condition."""
        r = self.r
        a, b, c = (self.number(max(0, depth - 1)) for _ in range(3))
        compare = r.choice(("<", "<=", "==", "!=", ">", ">="))
        low = r.randint(-3, 2)
        simple = f"({a} {compare} {b})"
        if depth == 0 or r.random() < 0.2:
            return simple
        other = self.test(depth - 1)
        if r.random() < RARE:
            return r.choice([f"({{'k': {a}}} == {{'k': {b}}})", f"isinstance({a}, int)"])
        return r.choice(
            [
                simple,
                f"({a} {compare} {b} {r.choice(('<', '!='))} {c})",
                f"({simple} and {other})",
                f"({simple} or {other})",
                f"(not {other})",
                f"({a} in range({low}, {low + 5}, {r.choice((1, 2))}))",
                f"({a} not in ({b}, {low}))",
                f"({a} in {{{low}, {low + 2}}})",
                f"({a} in {{{low}: 1}})",
                f"(({a}, {b}) {compare} ({c}, {low}))",
                f"([{a}, [1]] == [{b}, [1]])",
                f"any([{simple}, {other}])",
                f"all({other} for _ in (1, 2))",
                f"bool({a})",
            ]
        )

    def value(self) -> str:
        return f"({self.number(self.r.randint(1, 3))}) % 100"

    def statement(self, depth: int) -> list[Any]:
        r = self.r
        choice = r.randrange(16)
        if choice < 3:
            return [f"B[{r.randrange(ROWS)}, i] = {self.value()}"]
        if choice < 5:
            return [f"A[i] = {self.value()}"]
        if choice == 5:
            name = r.choice([*self.names, *[self.fresh("n")] * 4])
            value = self.value()
            self.names = list(dict.fromkeys([*self.names, name]))
            return [f"{name} = {value}"]
        if choice == 6:
            name, value = self.fresh("v"), self.value()
            self.names.append(name)
            return [f"{name} = T.alloc_var('int32', init={value})"]
        variables = [n for n in self.names if n[0] == "v" or depth == 0]
        if choice == 7 and variables:
            return [f"{r.choice(variables)} {r.choice(('', '+', '-'))}= {self.value()}"]
        if choice < 10:
            name = self.fresh("d")
            kept = r.choice(["A[i]", *self.names, self.value()])
            made, read = r.choice(
                [
                    (f"{{'x': {kept}}}", "['x']"),
                    (f"[{kept}]", "[0]"),
                    (f"({kept}, 1)", "[0]"),
                    (f"NS(x={kept})", ".x"),
                    (f"(lambda v: lambda: v)({kept})", "()"),
                    (f"[({kept}, 2)]", "[0][0]"),
                    (f"iter([{kept}] * 99)", ""),
                ]
            )
            self.places.append(f"{name}{read}" if read else f"next({name})")
            return [f"{name} = {made}"]
        if choice == 10:
            change, read = r.choice(CHANGES)
            show = f"B[{r.randrange(ROWS)}, i] = {read}"
            if depth == 0 and r.random() < 0.3:
                return [f"if {self.test(1)}:", [change], show]
            return [change, show] if depth == 0 else [show]
        if depth >= 2:
            return [f"B[{r.randrange(ROWS)}, i] = {self.value()}"]
        return self.block(depth)

    def block(self, depth: int) -> list[Any]:
        """A branch or a loop; what it binds is known inside."""
        r = self.r
        names, places = list(self.names), list(self.places)
        inner = self.body(depth + 1, r.randint(1, 2))
        head = r.choice([f"if {self.test(2)}:"] * 3 + ["for j in range(2):", "for u in (1, 2):"])
        self.names, self.places = list(names), list(places)
        found: list[Any] = [head, inner]
        if head.startswith("if") and r.random() < 0.4:
            found += ["else:", self.body(depth + 1, 1)]
            self.names, self.places = names, places
        return found

    def body(self, depth: int, count: int) -> list[Any]:
        return [line for _ in range(count) for line in self.statement(depth)]


def make(seed: int) -> list[Any]:
    """The statements of program `seed`; the last one shows a number."""
    maker = Maker(Random(f"python {seed}"))
    body = [
        "L, P, Q, N, S = [0], NS(x=0), np.zeros(1, int), iter(range(99)), [0]",
        "push, bump = L.append, counter(S)",
        *maker.body(0, maker.r.randint(2, 5)),
    ]
    return [*body, f"B[0, i] = {maker.value()}"]


def render(body: list[Any], depth: int = 3) -> str:
    def lines(part: list[Any], depth: int) -> list[str]:
        found: list[str] = []
        for each in part:
            found += lines(each, depth + 1) if isinstance(each, list) else ["    " * depth + each]
        return found

    return HEAD + "\n".join(lines(body, depth)) + "\n"


# ── running them ─────────────────────────────────────────────────────────────────────────────


def counter(store: list[int]) -> Callable[[], None]:
    def bump() -> None:
        store[0] += 1

    return bump


class Plain:
    """The words of `T` that a program uses, for integers."""

    if_then_else = staticmethod(lambda cond, a, b: a if cond else b)
    alloc_var = staticmethod(lambda dtype, init=0: init)


class Rows:
    """A tensor of Python's integers."""

    def __init__(self, values: np.ndarray[Any, Any]) -> None:
        self.values = values

    def __getitem__(self, at: Any) -> int:
        return int(self.values[at])

    def __setitem__(self, at: Any, value: Any) -> None:
        self.values[at] = int(value)


def take_plain(A: Rows, i: int, by: int) -> int:
    old = A[i]
    A[i] = old + by
    return old


def take_traced(A: Any, i: Any, by: int) -> Any:
    return T.atomic_add(A[i], by, return_prev=True)


def arguments(seed: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(seed)
    return {
        "A": rng.integers(-3, 6, SIZE).astype(np.int32),
        "C": rng.integers(-3, 6, SIZE).astype(np.int32),
        "B": np.zeros((ROWS, SIZE), np.int32),
    }


def names(**more: Any) -> dict[str, Any]:
    return {
        "__name__": "meaning",
        "np": np,
        "NS": types.SimpleNamespace,
        "counter": counter,
        **more,
    }


def run_plain(body: list[Any], given: dict[str, Any]) -> None:
    """Each iteration by itself, as plain Python."""
    text = "def each(A, C, B, i):\n" + render(body, 1)[len(HEAD) :]
    space = names(T=Plain, take=take_plain)
    exec(compile(text, "<plain>", "exec"), space)
    rows = {name: Rows(value) for name, value in given.items()}
    for i in range(SIZE):
        space["each"](**rows, i=i)


def judge(body: list[Any], seed: int, target: str = "interp") -> tuple[str, Finding | None]:
    """'ok', 'refused', 'python' (which raises by itself) or 'found'."""
    source = render(body)
    wanted, got = arguments(seed), arguments(seed)
    try:
        run_plain(body, wanted)
    except Exception:
        return "python", None
    file = "<meaning>"
    linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    try:
        space = names(T=T, take=take_traced)
        exec(compile(source, file, "exec", dont_inherit=True), space)
        tw.compile(T.prim_func(space["program"]), target=target)(*got.values())
    except TilewrightError as error:
        lines = [error.loc, *error.loc.callers] if error.loc is not None else []
        if any(loc.file == file and 1 < loc.line <= source.count("\n") for loc in lines):
            return "refused", None
        return "found", Finding("nowhere", str(error), source)
    except Exception as error:
        return "found", Finding("crash", f"{type(error).__name__}: {error}", source)
    for name in wanted:
        if (wanted[name] != got[name]).any():
            said = f"{name}: Python {wanted[name].tolist()}, the kernel {got[name].tolist()}"
            return "found", Finding("mismatch", said, source)
    return "ok", None


def shrink(body: list[Any], fails: Callable[[list[Any]], bool]) -> list[Any]:
    """`body` without the statements that do not matter."""
    for at in range(len(body) - 1, -1, -1):
        if isinstance(body[at], list):
            body = [*body[:at], shrink(body[at], lambda b, at=at, all=body: fails(  # type: ignore[misc]
                [*all[:at], b, *all[at + 1:]])), *body[at + 1 :]]  # fmt: skip
            continue
        drop = 2 if at + 1 < len(body) and isinstance(body[at + 1], list) else 1
        less = [*body[:at], *body[at + drop :]]
        if less and fails(less):
            body = less
    return body


def hunt(
    count: int, seed: int = 0, target: str = "interp"
) -> tuple[dict[str, int], Finding | None]:
    """Up to `count` programs from `seed` on, and the first finding, shrunk."""
    kinds: dict[str, int] = {}
    for at in range(seed, seed + count):
        body = make(at)
        kind, finding = judge(body, at, target)
        kinds[kind] = kinds.get(kind, 0) + 1
        if finding is not None:
            was = finding.kind

            def fails(less: list[Any], at: int = at, was: str = was) -> bool:
                found = judge(less, at, target)[1]
                return found is not None and found.kind == was

            return kinds, judge(shrink(body, fails), at, target)[1] or finding
    return kinds, None
