"""Random kernels over tile values, run twice: by a model in NumPy, where the last tile is shorter,
and as a kernel, at sizes of tiles that are drawn and at those that are the default.

    python -m devtools.fuzz.tile_values --count 200 --target "interp -sanitize"

Numbers are small integers and halves of them, so that results do not depend on the order of sums.
What the model never reads of the arguments is NaN, or far outside: a kernel that sees it shows it.
"""

from __future__ import annotations

import argparse
import linecache
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import prod
from random import Random
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language as T
from devtools.fuzz.python_meaning import shrink
from devtools.fuzz.tile_model import DTYPES, Array, Model, Tensor, TooLarge, is_float
from tilewright.lang import trace
from tilewright.support.errors import CompileError, TilewrightError

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 21)
TILES = (1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 32)
FLOATS, INTS = ("float32", "float32", "bfloat16", "float16"), ("int32", "int32", "int8")
LONG = 40  # no loop runs more often
LARGE = 2.0**13  # larger numbers are cut
AXES = {"m": "M", "n": "N", "k": "K"}  # tile indices, and what they run over
ONE = "1"


@dataclass(frozen=True)
class Term:
    """An expression: its dimensions, by tile index or size; how large it gets; whether it is free
    of rounding."""

    text: str
    dims: tuple[str, ...]
    dtype: str
    bound: float = 3.0
    exact: bool = True

    @property
    def kind(self) -> str:
        return "b" if self.dtype == "bool" else "i" if self.dtype in INTS else "f"


@dataclass(frozen=True)
class Array_:
    """A tensor: dims are names of sizes, or numbers. `holds` is what its elements are."""

    dims: tuple[str, ...]
    dtype: str
    holds: str = "small"
    bound: float = 3.0
    exact: bool = True


@dataclass
class Program:
    """The text's statements, an inner list being a block, and all that a run needs."""

    seed: int
    body: list[Any]
    params: dict[str, Array_]
    sizes: dict[str, int]
    tiles: dict[str, int]
    outs: dict[str, Array_]

    @property
    def text(self) -> str:
        head = [f"def kernel({', '.join(self.params)}):"]
        head += [f'    {", ".join(self.sizes)} = T.const("{", ".join(self.sizes)}")']
        for name, array in self.params.items():
            head.append(f'    {name}: T.Tensor({shape(array.dims)}, "{array.dtype}")')
        tail = f"    return {', '.join(self.outs)}\n" if self.outs else ""
        return "\n".join([*head, *lines(self.body, 1)]) + "\n" + tail


def shape(dims: Sequence[str]) -> str:
    return f"({', '.join(dims)}{',' * (len(dims) == 1)})"


def lines(part: list[Any], depth: int) -> Iterator[str]:
    for each in part:
        if isinstance(each, list):
            yield from lines(each, depth + 1)
        else:
            yield "    " * depth + each


# ── making programs ──────────────────────────────────────────────────────────────────────────


@dataclass
class Maker:
    r: Random
    sizes: dict[str, int]
    params: dict[str, Array_] = field(default_factory=dict)
    outs: dict[str, Array_] = field(default_factory=dict)
    written: dict[str, Array_] = field(default_factory=dict)  # by kernels that have ended
    names: dict[str, Term] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)  # open tile indices: their size, or ""
    grid: list[str] = field(default_factory=list)
    made: int = 0
    nest: int = 0

    def fresh(self, letter: str) -> str:
        self.made += 1
        return f"{letter}{self.made}"

    def chance(self, share: float) -> bool:
        return self.r.random() < share

    # ── dimensions ──

    def some_dims(self, most: int = 2) -> tuple[str, ...]:
        """Of a value: of open tile indices and sizes."""
        tiles = list(self.tiles)
        pool = [*tiles, *tiles, *self.sizes, "4"]
        count = self.r.choice([k for k in (0, 1, 1, 2, 2, 2, 3) if k <= most])
        found: list[str] = []
        for _ in range(count):
            dim = self.r.choice(pool)
            if dim not in found:
                found.append(dim)
        return tuple(found)

    def extra(self, dims: Sequence[str]) -> str:
        """A dimension that `dims` does not have."""
        pool = [d for d in (*self.tiles, *self.tiles, *self.sizes, "4", "6") if d not in dims]
        return self.r.choice(pool)

    def most(self, dim: str) -> int:
        if dim in self.tiles:
            return self.sizes.get(self.tiles[dim], LONG)
        return self.sizes.get(dim) or int(dim)

    # ── reading ──

    def param(self, array: Array_) -> str:
        """A tensor like `array`: one that is there, or a new one."""
        there = [n for n, a in self.params.items() if a == array]
        if there and self.chance(0.7):
            return self.r.choice(there)
        name = self.fresh("X" if array.dtype not in INTS else "L")
        self.params[name] = array
        return name

    def over(self, tile: str) -> str:
        """The size of a tensor that a tile index goes along: its own, or any other."""
        own = self.tiles[tile]
        return own if own and self.chance(0.7) else self.r.choice(list(self.sizes))

    def read(self, dims: tuple[str, ...], dtype: str) -> Term:
        """An index of a tensor."""
        r = self.r
        done = [n for n, a in self.written.items() if a.dtype == dtype and a.exact]
        if done and self.chance(0.5):
            name = r.choice(done)
            there = self.written[name]
            if len(there.dims) == len(dims) and not any(d.isdigit() for d in (*dims, *there.dims)):
                keys = [d if d in self.tiles else None for d in dims]
                if all(k or d == t for k, d, t in zip(keys, dims, there.dims, strict=True)):
                    text = f"{name}[{', '.join(k or ':' for k in keys)}]"
                    return Term(text, dims, dtype, there.bound)
        keys_, along = [], []
        at = 0
        if dims and self.chance(0.3):  # a scalar
            one = self.scalar_index()
            keys_.append(one[0])
            along.append(one[1])
        gather = r.randrange(len(dims)) if dims and self.chance(0.15) else -1
        while at < len(dims):
            dim = dims[at]
            if at == gather:
                two = [(d,) for d in dims[at : at + 2]]
                joint = len(two) == 2 and self.chance(0.5)
                if joint:
                    keys_ += [f"{self.index_value((dims[at],))}[:, None]", self.index_value(two[1])]
                    along += r.choices(list(self.sizes), k=2)
                    at += 2
                    continue
                keys_ += [self.index_value((dim,)) for _ in range(r.choice((1, 1, 2)))]
                along += r.choices(list(self.sizes), k=len(keys_) - len(along))
            elif dim in self.tiles:
                shift = r.choice(("", "", "", " + 1", " - 1", " + 3"))
                keys_.append(f"{dim}{shift}")
                along.append(self.over(dim))
            elif dim.isdigit():
                low = r.randrange(3)
                keys_.append(f"{low}:{low + int(dim)}" if self.chance(0.5) else ":")
                along.append("9" if keys_[-1] != ":" else dim)
            else:
                keys_.append(":")
                along.append(dim)
            at += 1
        if not dims:
            count = r.choice((1, 2))
            picked = [self.scalar_place() for _ in range(count)]
            keys_, along = [p[0] for p in picked], [p[1] for p in picked]
        name = self.param(Array_(tuple(along), dtype))
        return Term(f"{name}[{', '.join(keys_)}]", dims, dtype)

    def scalar_place(self) -> tuple[str, str]:
        """A scalar index, inside, and the size that it goes along."""
        each = [n for n, t in self.names.items() if t.text == "each"]
        if each and self.chance(0.6):
            return self.r.choice(each), "B"
        return "0", self.r.choice(list(self.sizes))

    def scalar_index(self) -> tuple[str, str]:
        whole = [n for n, t in self.names.items() if not t.dims and t.kind == "i" and t.bound < 99]
        if whole and self.chance(0.5):
            return self.r.choice(whole), self.r.choice(list(self.sizes))
        return self.scalar_place()

    def index_value(self, dims: tuple[str, ...]) -> str:
        """Integers to index with."""
        (dim,) = dims
        r = self.r
        there = [n for n, t in self.names.items() if t.dims == dims and t.dtype == "int32"]
        if there and self.chance(0.4):
            return r.choice(there)
        if dim in self.tiles:
            if self.chance(0.5):
                name = self.param(Array_((self.over(dim),), "int32", "label"))
                return f"{name}[{dim}]"
            return r.choice((f"{dim}.index", f"({dim}.index + 1)", f"({dim}.index * 2 % 5)"))
        return r.choice((f"T.arange({dim})", f"(T.arange({dim}) * 2)", f"(4 - T.arange({dim}))"))

    # ── expressions ──

    def leaf(self, dims: tuple[str, ...], kind: str, exact: bool) -> Term:
        r = self.r
        there = [
            replace(t, text=n)
            for n, t in self.names.items()
            if t.dims == dims and t.kind == kind and (t.exact or not exact)
        ]
        if there and self.chance(0.75):
            return r.choice(there)
        fewer = [
            (n, t)
            for n, t in self.names.items()
            if 0 < len(t.dims) < len(dims)
            and t.kind == kind
            and (t.exact or not exact)
            and ONE not in t.dims
            and is_part(t.dims, dims)
        ]
        if fewer and self.chance(0.5):
            name, term = r.choice(fewer)
            return self.stretched(name, term, dims)
        if kind == "i" and dims and dims[-1] in self.tiles and self.chance(0.3):
            return self.full_shape(Term(f"{dims[-1]}.index", dims[-1:], "int32", LONG), dims)
        if dims and self.chance(0.1):
            dtype = r.choice(FLOATS if kind == "f" else INTS)
            return Term(f'T.full({shape(dims)}, {r.randint(-2, 3)}, "{dtype}")', dims, dtype)
        found = self.read(dims, r.choice(FLOATS if kind == "f" else INTS))
        if dims and self.chance(0.6):
            fill = r.choice(("", "", ", fill=2", ", fill=-1"))
            return replace(found, text=f"T.load({found.text}{fill})")
        return found

    def stretched(self, name: str, term: Term, dims: tuple[str, ...]) -> Term:
        """A value of fewer dimensions, to be broadcast: the result has all of them."""
        keys = [":" if d in term.dims else "None" for d in dims]
        while keys and keys[0] == "None":
            keys.pop(0)
        text = f"{name}[{', '.join(keys)}]" if "None" in keys else name
        return self.full_shape(replace(term, text=text), dims)

    def full_shape(self, term: Term, dims: tuple[str, ...]) -> Term:
        """`term`, which broadcasts to `dims`, with these dimensions."""
        if term.dims == dims and "None" not in term.text:
            return term
        wide = "float32" if term.kind == "f" else "int32"
        text = f'({term.text} + T.zeros({shape(dims)}, "{wide}"))'
        return replace(term, text=text, dims=dims, dtype=wide)

    def cut(self, term: Term, most: float = LARGE) -> Term:
        """`term`, no larger than `most`."""
        if term.bound <= most:
            return term
        text = f"T.maximum(T.minimum({term.text}, 9), -9)"
        return replace(term, text=text, bound=9.0)

    def condition(self, dims: tuple[str, ...], depth: int) -> Term:
        r = self.r
        a = self.expr(dims, depth - 1, r.choice("fi"), True)
        if not dims or self.chance(0.4):
            text = f"({a.text} {r.choice(('>', '<=', '==', '!=', '<'))} {r.randint(-1, 2)})"
        else:
            b = self.expr(self.narrower(dims), depth - 1, a.kind, True)
            text = f"({a.text} {r.choice(('>', '<=', '==', '<'))} {b.text})"
        if dims and depth > 1 and self.chance(0.3):
            other = self.condition(dims, depth - 1)
            text = r.choice((f"({text} & {other.text})", f"({text} | {other.text})", f"(~{text})"))
        return Term(text, dims, "bool", 1)

    def narrower(self, dims: tuple[str, ...]) -> tuple[str, ...]:
        """Dimensions that broadcast to `dims`."""
        if len(dims) > 1 and self.chance(0.25):
            return dims[1:]
        return dims

    def expr(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """An expression of these dimensions: floats or integers."""
        r = self.r
        if kind == "b":
            return self.condition(dims, max(1, depth))
        if depth <= 0 or self.chance(0.1):
            return self.cut(self.leaf(dims, kind, exact))
        choice = r.randrange(20)
        if choice < 6:
            return self.cut(self.binary(dims, depth, kind, exact))
        if choice < 8:
            return self.chosen(dims, depth, kind, exact)
        if choice < 12 and len(dims) < 3:
            return self.cut(self.folded(dims, depth, kind, exact))
        if choice == 12 and dims:
            return self.cut(self.summed(dims, depth, kind))
        if choice < 15 and len(dims) == 2 and ONE not in dims:
            return self.cut(self.product(dims, depth, kind))
        if choice == 15 and len(dims) == 2:
            a = self.expr(dims[::-1], depth - 1, kind, exact)
            return replace(a, text=f"({a.text}).T", dims=dims)
        if choice == 16 and len(dims) < 3 and dims:
            return self.part(dims, depth, kind, exact)
        if choice == 17:
            a = self.expr(dims, depth - 1, r.choice("fi"), True)
            to = r.choice(FLOATS if kind == "f" else ("int32",))
            if kind == "i" and a.kind == "f":
                return self.chosen(dims, depth, kind, exact)
            return Term(f'T.cast({a.text}, "{to}")', dims, to, a.bound, a.exact)
        if choice == 18 and kind == "i":
            a = self.expr(dims, depth - 1, "i", True)
            n = r.randint(2, 5)
            return r.choice(
                (
                    Term(f"({a.text} % {n})", dims, "int32", n),
                    Term(f"({a.text} // {n})", dims, "int32", a.bound),
                )
            )
        if kind == "f" and not exact:
            a = self.cut(self.expr(dims, depth - 1, "f", False), 9)
            word = r.choice(("exp", "tanh", "sigmoid", "silu", "softplus", "relu"))
            if word == "exp":
                return Term(f"T.exp(T.minimum({a.text}, 2))", dims, "float32", 8, False)
            return Term(f"T.{word}({a.text})", dims, "float32", 10, False)
        a = self.expr(dims, depth - 1, kind, exact)
        wide = "float32" if kind == "f" else "int32"
        return r.choice(
            (replace(a, text=f"(-{a.text})", dtype=wide), replace(a, text=f"abs({a.text})"))
        )

    def binary(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        r = self.r
        a = self.expr(dims, depth - 1, kind, exact)
        wide = "float32" if kind == "f" else "int32"
        if self.chance(0.35):
            n, op = r.randint(1, 4), r.choice("+-*")
            if kind == "f" and self.chance(0.3):
                text = r.choice((f"({a.text} * 0.5)", f"({a.text} / 2)", f"({n} - {a.text})"))
                return replace(a, text=text, dtype=wide, bound=a.bound + n)
            bound = a.bound * n if op == "*" else a.bound + n
            return replace(a, text=f"({a.text} {op} {n})", dtype=wide, bound=bound)
        other = "i" if kind == "f" and self.chance(0.2) else kind
        b = self.expr(self.narrower(dims), depth - 1, other, exact)
        op = r.choice("+-*")
        if op == "*":
            a, b = self.cut(a, 64), self.cut(b, 64)
        bound = a.bound * b.bound if op == "*" else a.bound + b.bound
        return Term(f"({a.text} {op} {b.text})", dims, wide, bound, a.exact and b.exact)

    def chosen(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """where, maximum, minimum."""
        r = self.r
        a = self.expr(dims, depth - 1, kind, exact)
        b = self.expr(self.narrower(dims), depth - 1, kind, exact)
        if self.chance(0.3):
            b = Term(str(r.randint(-2, 2)), dims, a.dtype)
        both = {a.dtype, b.dtype}
        dtype = a.dtype if len(both) == 1 else "float32" if kind == "f" else "int32"
        bound, is_exact = max(a.bound, b.bound), a.exact and b.exact
        if self.chance(0.5) and dims:
            c = self.condition(dims, depth - 1)
            return Term(f"T.where({c.text}, {a.text}, {b.text})", dims, dtype, bound, is_exact)
        word = r.choice(("T.maximum", "T.minimum"))
        return Term(f"{word}({a.text}, {b.text})", dims, dtype, bound, is_exact)

    def folded(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """A reduction of something that has more dimensions."""
        r = self.r
        more, inner = [], list(dims)
        for _ in range(r.choice((1, 1, 2)) if len(dims) < 2 else 1):
            more.append(self.extra(inner))
            inner.insert(r.randrange(len(inner) + 1), more[-1])
        at = [inner.index(d) for d in more]
        at = [k - len(inner) if self.chance(0.3) else k for k in at]
        dim = str(at[0]) if len(at) == 1 else str(tuple(at))
        count = 1
        for each in more:
            count *= self.most(each)
        words = ["sum", "sum", "max", "min"]
        words += ["argmax", "argmin"] if len(at) == 1 and kind == "i" else []
        words += ["any", "all"] if kind == "i" else []
        words += ["mean", "mean", "var"] if kind == "f" and not exact else []
        word = r.choice(words)
        if word in ("any", "all"):
            c = self.condition(tuple(inner), depth - 1)
            text = f'T.cast(T.{word}({c.text}, dim={dim}), "int32")'
            return Term(text, dims, "int32", 1)
        source = r.choice("fi") if word.startswith("arg") else kind
        a = self.expr(tuple(inner), depth - 1, source, exact or word.startswith("arg"))
        if word in ("sum", "mean", "var"):
            a = self.cut(a, 99)
        keep = self.chance(0.25) and dims != ()
        text = f"T.{word}({a.text}, dim={dim}{', keepdim=True' * keep})"
        if word == "var":
            made = Term(text, dims, "float32", a.bound**2, False)
        elif word == "mean":
            made = Term(text, dims, "float32", a.bound, False)
        elif word == "sum":
            wide = "float32" if kind == "f" else "int32"
            made = Term(text, dims, wide, a.bound * count, a.exact)
        elif word.startswith("arg"):
            made = Term(text, dims, "int32", LONG)
        else:
            made = Term(text, dims, a.dtype, a.bound, a.exact)
        if not keep:
            return made
        back = self.expr(tuple(inner), 0, kind, exact)  # broadcast again, and folded
        text = f"T.max({made.text} * 1 + {self.cut(back, 99).text}, dim={dim})"
        wide = "float32" if made.kind == "f" or kind == "f" else "int32"
        return Term(text, dims, wide, made.bound + 99, made.exact and back.exact)

    def summed(self, dims: tuple[str, ...], depth: int, kind: str) -> Term:
        a = self.cut(self.expr(dims, depth - 1, kind, True), 99)
        at = self.r.randrange(len(dims))
        wide = "float32" if kind == "f" else "int32"
        return Term(f"T.cumsum({a.text}, dim={at})", dims, wide, a.bound * self.most(dims[at]))

    def product(self, dims: tuple[str, ...], depth: int, kind: str) -> Term:
        """`a @ b`: sides of one type."""
        r = self.r
        inner = self.extra(dims)
        dtype = r.choice(FLOATS) if kind == "f" else r.choice(("int8", "int32"))
        sides = []
        for two in ((dims[0], inner), (inner, dims[1])):
            flip = self.chance(0.4)
            wanted = two[::-1] if flip else two
            if self.chance(0.6):
                a = self.read(wanted, dtype)
                a = replace(a, text=f"T.load({a.text})") if self.chance(0.3) else a
            else:
                a = self.cut(self.expr(wanted, depth - 1, kind, True), 9)
                if a.dtype != dtype:
                    a = replace(a, text=f'T.cast({a.text}, "{dtype}")', dtype=dtype)
            a = self.cut(a, 32)
            sides.append(f"{a.text}.T" if flip else a.text)
        wide = "float32" if kind == "f" else "int32"
        return Term(f"({sides[0]} @ {sides[1]})", dims, wide, 32 * 32 * self.most(inner))

    def part(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """One place of a dimension that is left out, or a slice of a longer one."""
        r = self.r
        if any(d == "4" for d in dims):
            at = dims.index("4")
            inner, low = (*dims[:at], "6", *dims[at + 1 :]), r.randrange(3)
            key = f"{low}:{low + 4}"
        else:
            at = r.randrange(len(dims) + 1)
            inner, key = (*dims[:at], "6", *dims[at:]), str(r.randrange(6))
        a = self.loaded(self.expr(inner, depth - 1, kind, exact))
        keys = [":"] * at + [key]
        return replace(a, text=f"({a.text})[{', '.join(keys)}]", dims=dims)

    # ── statements ──

    def loaded(self, term: Term) -> Term:
        """A region's name would stand for the region, not for what is read there."""
        if re.fullmatch(r"[XLYZ]\d+\[.*\]", term.text) and not any(
            d in self.tiles for d in term.dims
        ):
            return replace(term, text=f"T.load({term.text})")
        return term

    def bound_name(self, name: str, term: Term) -> str:
        term = self.loaded(term)
        self.names[name] = replace(term, text=name)
        return f"{name} = {term.text}"

    def statement(self) -> list[Any]:
        r = self.r
        choice = r.randrange(12)
        own = [n for n, a in self.params.items() if a.holds == "own" + str(self.grid)]
        if choice == 0 and self.grid:
            return self.in_place(r.choice(own) if own else None)
        if choice <= 3 and self.nest < 2:
            return self.loop()
        if choice == 4 and self.nest < 3:
            return self.branch()
        if choice == 5:
            there = [n for n, t in self.names.items() if t.dims and n[0] == "v" and self.nest == 0]
            if there:
                name = r.choice(there)
                old = self.names[name]
                return [
                    self.bound_name(name, self.expr(old.dims, 2, r.choice("fi"), r.random() < 0.7))
                ]
        dims = self.some_dims(3 if self.chance(0.1) else 2)
        term = self.expr(dims, r.randint(1, 3), r.choice("ffi"), self.chance(0.7))
        return [self.bound_name(self.fresh("v"), term)]

    def in_place(self, name: str | None) -> list[Any]:
        """Reads and stores of what only this block touches."""
        r = self.r
        keys, along = [], []
        for var in self.grid:
            keys.append(var)
            along.append(AXES.get(var, "B"))
        if name is None:
            name = self.fresh("Z")
            dtype = r.choice(("float32", "bfloat16", "int32"))
            self.params[name] = Array_(tuple(along), dtype, "own" + str(self.grid))
        array = self.params[name]
        dims = tuple(k for k in keys if k in self.tiles)
        place = f"{name}[{', '.join(keys)}]"
        kind = "f" if is_float(DTYPES[array.dtype]) else "i"
        old = self.fresh("v")
        read = f"{old} = " + r.choice((f"T.load({place})", place))
        value = self.cut(self.expr(self.narrower(dims), 2, kind, True), 9)
        self.names[old] = Term(old, dims, array.dtype, LARGE)
        if self.nest:
            store = f"{place} = {value.text}"
        else:
            store = r.choice((f"{place} = {value.text}", f"{place} += {value.text}"))
        return r.choice(([read, store], [store, read]))

    def carried(self) -> tuple[list[str], list[str]]:
        """Names that start before a loop or a branch, and how."""
        r = self.r
        found, starts = [], []
        dims = self.some_dims()
        for _ in range(r.choice((1, 2, 2))):
            name = self.fresh("c")
            if self.chance(0.3):
                dims = self.some_dims()
            dtype = r.choice(("float32", "float32", "int32", "bfloat16"))
            kind = "f" if dtype != "int32" else "i"
            first = f'T.full({shape(dims)}, {r.randint(-2, 2)}, "{dtype}")'
            if self.chance(0.5) and dims:
                term = self.loaded(self.cut(self.expr(dims, 1, kind, True)))
                first, dtype = term.text, term.dtype
            starts.append(f"{name} = {first}")
            self.names[name] = Term(name, dims, dtype, LARGE)
            found.append(name)
        return found, starts

    def again(self, name: str, names: list[str]) -> list[Any]:
        """`name` is given a value like that it has."""
        r = self.r
        old = self.names[name]
        exact = True
        choice = r.randrange(6)
        alike = [
            n for n in names
            if n != name and self.names[n].dims == old.dims and self.names[n].dtype == old.dtype
        ]  # fmt: skip
        if choice < 3 and old.dtype in ("float32", "int32"):
            make = self.product if len(old.dims) == 2 and self.chance(0.5) else None
            term = make(old.dims, 1, old.kind) if make else self.expr(old.dims, 2, old.kind, exact)
            term = self.cut(term, LARGE / LONG)
            if make and self.chance(0.3):
                return [f"{name} = {name} + {term.text}"]
            return [f"{name} += {term.text}"]
        if choice < 5 and alike:
            other = r.choice(alike)
            moved = r.choice(
                (
                    (name, other),
                    (f"T.maximum({name}, {other})", f"T.minimum({name}, {other})"),
                    (self.typed(self.expr(old.dims, 1, old.kind, True), old.dtype), name),
                    (other, self.typed(self.expr(old.dims, 1, old.kind, True), old.dtype)),
                )
            )
            return [f"{other}, {name} = {moved[0]}, {moved[1]}"]
        term = self.cut(self.expr(old.dims, 2, old.kind, exact))
        return [f"{name} = {self.typed(term, old.dtype)}"]

    def typed(self, term: Term, dtype: str) -> str:
        text = self.cut(term).text
        return text if term.dtype == dtype else f'T.cast({text}, "{dtype}")'

    def inner(self, names: list[str], more: Callable[[], list[Any]] | None = None) -> list[Any]:
        """A block: statements, and new values for `names`; what it binds ends with it."""
        before, tiles = dict(self.names), dict(self.tiles)
        self.nest += 1
        found: list[Any] = more() if more else []
        for _ in range(self.r.choice((0, 1, 1, 2))):
            found += self.statement()
        for name in names:
            if self.chance(0.85):
                found += self.again(name, names)
        if self.chance(0.3):
            found += self.statement()
        self.nest -= 1
        self.names = {n: t for n, t in self.names.items() if n in before}
        self.tiles = {n: s for n, s in self.tiles.items() if n in tiles}
        return found or ["pass"]

    def branch(self) -> list[Any]:
        names, starts = self.carried()
        old = [n for n in self.names if n[0] == "c" and self.names[n].dtype != "bool"]
        if old and self.chance(0.5):
            names.append(self.r.choice(old))
        names = list(dict.fromkeys(names))
        test = self.condition((), 1)
        found = [*starts, f"if {test.text}:", self.inner(names)]
        if self.chance(0.5):
            found += ["else:", self.inner(names)]
        return found

    def loop(self) -> list[Any]:
        r = self.r
        names, starts = self.carried()
        old = [n for n in self.names if n[0] == "c"]
        if old and self.chance(0.3):
            names.append(r.choice(old))
        names = list(dict.fromkeys(names))
        if self.chance(0.2):
            return [*starts, f"for _ in range({r.randint(0, 4)}):", self.inner(names)]
        if self.chance(0.15):
            name = self.fresh("e")
            count = str(r.randint(1, 3))

            def bind() -> list[Any]:
                self.names[name] = Term("scalar", (), "int32", 3)
                return []

            return [*starts, f"for {name} in T.tile(T.each({count})):", self.inner(names, bind)]
        var = self.fresh("j")
        axis, size = self.range()
        pinned = f", size={r.choice(TILES)}" if self.chance(0.1) else ""

        def open_() -> list[Any]:
            self.tiles[var] = size
            return []

        return [*starts, f"for {var} in T.tile({axis}{pinned}):", self.inner(names, open_)]

    def range(self) -> tuple[str, str]:
        """An axis of a loop, and the size that it does not leave."""
        r = self.r
        size = r.choice(list(self.sizes))
        choice = r.randrange(10)
        if choice < 4:
            return size, size
        if self.tiles and choice < 6:
            var = r.choice(list(self.tiles))
            axis = r.choice((f"{var}.stop", f"({var}.start, {var}.stop)", f"(1, {var}.stop)"))
            return axis, self.tiles[var]
        if choice < 8:
            low = r.randint(0, 3)
            return r.choice(
                (
                    (f"({low}, {size})", size),
                    (f"({low}, {low + r.randint(0, 9)})", ""),
                    (f"(0, {size} - 1)", size),
                )
            )
        name = self.param(Array_(("B",), "int32", "label"))
        first = r.choice(("0", "1", f"{name}[0] - 1"))
        return f"({first}, {name}[0] + {r.randint(1, 9)})", ""

    # ── kernels ──

    def kernel(self) -> list[Any]:
        r = self.r
        axes = r.sample(list(AXES), r.choice((0, 1, 1, 2, 2, 3)))
        self.names, self.tiles, self.grid, self.nest = {}, {}, [], 0
        spans: list[str] = []
        order = [*axes, *["b"] * self.chance(0.35 if axes else 0.8)][:3]
        r.shuffle(order)
        for var in order:
            self.grid.append(var)
            if var == "b":
                self.names["b"] = Term("each", (), "int32", 3)
                spans.append("T.each(B)")
            else:
                self.tiles[var] = AXES[var]
                spans.append(AXES[var])
        pinned = f", size={r.choice(TILES)}" if len(axes) == 1 and self.chance(0.1) else ""
        head = f"for {', '.join(order) or '_'} in T.tile({', '.join(spans)}{pinned}):"
        body: list[Any] = []
        for _ in range(r.randint(2, 5)):
            body += self.statement()
        made: dict[str, Array_] = {}
        before = []
        shown = [n for n, t in self.names.items() if t.text == n and self.chance(0.6)]
        for old in [*shown[-3:], None]:
            name = self.fresh("Y")
            made[name], text, store = self.shown(name, old) if old else self.out(name)
            before.append(text)
            body += store
        self.outs |= made
        self.written |= {n: a for n, a in made.items() if a.holds == "small"}
        return [*before, head, body]

    def shown(self, name: str, old: str) -> tuple[Array_, str, list[Any]]:
        """A tensor for a value of every block."""
        term = self.names[old]
        missing = [v for v in self.grid if v not in term.dims]
        keys = [*missing, *(d if d in self.tiles else ":" for d in term.dims)] or [":"]
        along = [*(AXES.get(v, "B") for v in missing), *(AXES.get(d, d) for d in term.dims)] or [
            "4"
        ]
        dtype = "int32" if term.kind == "b" else term.dtype
        array = Array_(tuple(along), dtype, "small", term.bound, term.exact)
        text = f'{name} = T.empty({shape(along)}, "{dtype}")'
        return array, text, [f"{name}[{', '.join(keys)}] = {old}"]

    def out(self, name: str) -> tuple[Array_, str, list[Any]]:
        """A tensor that the grid fills, and the store."""
        r = self.r
        dims = tuple(v for v in self.grid if v != "b")
        more = [d for d in (*self.sizes, "4") if self.chance(0.2)]
        if len(dims) < 2 and more:
            dims = (*dims, more[0])
        keys = [d if d in self.tiles else ":" for d in dims]
        along = [AXES.get(d, d) for d in dims]
        setup: list[Any] = []
        if dims and dims[0] in self.tiles and self.chance(0.2):
            order = self.param(Array_((along[0],), "int32", "order"))
            index = self.fresh("p")
            setup = [f"{index} = T.load({order}[{dims[0]}])"]
            keys[0] = index
        elif dims and dims[0] in self.tiles and self.chance(0.1):
            keys[0] = f"{along[0]} - 1 - {dims[0]}.index"
        if "b" in self.grid:
            keys.insert(0, "b")
            along.insert(0, "B")
        if not keys:
            keys, along = [":"], ["4"]
            dims = ("4",)
        kind = r.choice("ffi")
        term = self.expr(self.narrower(dims), r.randint(1, 3), kind, self.chance(0.6))
        dtype = r.choice(FLOATS if kind == "f" else ("int32", "int32", "int8", "float32"))
        array = Array_(tuple(along), dtype, "small", max(term.bound, 200), term.exact)
        text = f'{name} = T.empty({shape(along)}, "{dtype}")'
        return array, text, [*setup, f"{name}[{', '.join(keys)}] = {term.text}"]


def is_part(some: Sequence[str], of: Sequence[str]) -> bool:
    rest = iter(of)
    return all(d in rest for d in some)


def make(seed: int) -> Program:
    """The program of a seed."""
    r = Random(f"tile values {seed}")
    sizes = {name: r.choice(SIZES) for name in "MNK"} | {"B": r.randint(1, 3)}
    maker = Maker(r, sizes)
    body = [line for _ in range(r.choice((1, 1, 1, 2))) for line in maker.kernel()]
    # every size is that of an argument
    for size in sizes:
        if not any(size in a.dims for a in maker.params.values()):
            maker.params[f"S{size}"] = Array_((size,), "int32")
    loops = [m.group(1) for line in lines(body, 0) if (m := HEAD.match(line))]
    names = list(dict.fromkeys(n.strip() for names in loops for n in names.split(",")))
    grids = [[n for n in names.split(", ") if n in AXES] for names in loops]
    for _ in range(99):  # of few blocks, which are not large
        tiles = {n: r.choice(TILES) for n in names}
        blocks = [prod(-(-sizes[AXES[n]] // tiles[n]) for n in grid) for grid in grids]
        elements = [prod(min(tiles[n], 2 * sizes[AXES[n]]) for n in grid) for grid in grids]
        if max(blocks) <= 20 and max(elements) <= 600:
            break
    return Program(seed, body, maker.params, sizes, tiles, maker.outs)


# ── running them ─────────────────────────────────────────────────────────────────────────────

HEAD = re.compile(r" *for (.+) in T\.tile\((.*)\):$")


def for_model(text: str) -> str:
    """The text as Python runs it: loops tell their variables."""
    found = []
    for line in text.splitlines():
        head = HEAD.match(line)
        if head:
            given = f"{head.group(2)}, " if head.group(2) else ""
            line = f'{line[: line.index("T.tile(")]}T.tile({given}names="{head.group(1)}"):'
        found.append(line)
    return "\n".join(found) + "\n"


def argument(array: Array_, sizes: dict[str, int], rng: Any) -> Array:
    dims = [sizes.get(d) or int(d) for d in array.dims]
    if array.holds == "order":
        return rng.permutation(dims[0]).astype(np.int32)  # type: ignore[no-any-return]
    if array.holds == "label":
        return rng.integers(-1, 9, dims).astype(np.int32)  # type: ignore[no-any-return]
    return rng.integers(-3, 4, dims).astype(DTYPES[array.dtype])  # type: ignore[no-any-return]


def arguments(program: Program) -> dict[str, Array]:
    return {
        name: argument(array, program.sizes, np.random.default_rng([program.seed, *name.encode()]))
        for name, array in program.params.items()
    }


def play(
    program: Program, tiles: dict[str, int], given: dict[str, Array]
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The arguments and the results, by the model."""
    space: dict[str, Any] = {"T": Model(program.sizes, tiles)}
    exec(compile(for_model(program.text), "<model>", "exec", dont_inherit=True), space)
    params = {name: Tensor(a.copy()) for name, a in given.items()}
    made = space["kernel"](**params)
    outs = made if isinstance(made, tuple) else (made,)
    return params, dict(zip(program.outs, outs, strict=True))


def spoil(params: dict[str, Tensor], given: dict[str, Array]) -> None:
    """What was never read becomes NaN, or far outside."""
    for name, tensor in params.items():
        unseen = ~(tensor.read | tensor.written)
        given[name][unseen] = np.nan if is_float(tensor.dtype) else 99


@dataclass(frozen=True)
class Finding:
    kind: str  # mismatch or crash
    said: str
    program: Program

    def __str__(self) -> str:
        p = self.program
        return f"{self.kind} (seed {p.seed}): {self.said}\nsizes {p.sizes}\n\n{p.text}"


@contextmanager
def watched(chosen: dict[str, int]) -> Iterator[None]:
    """Default sizes of tiles are noted."""
    was = vars(trace)["choose_sizes"]

    def noted(builder: Any) -> Any:
        found = was(builder)
        chosen.update(found.tiles)
        return found

    vars(trace)["choose_sizes"] = noted
    try:
        yield
    finally:
        vars(trace)["choose_sizes"] = was


def differs(want: Tensor, got: Array, exact: bool) -> str:
    """Where the elements that the model wrote, or left, are others."""
    a, b = want.a.astype(np.float64), np.asarray(got).astype(np.float64)
    near = 0.0 if exact else 2e-3 if want.dtype.itemsize != 2 else 2.0**-6
    with np.errstate(all="ignore"):
        same = (a == b) | (np.isnan(a) & np.isnan(b)) | (abs(a - b) <= near * (1 + abs(a)))
    if same.all():
        return ""
    at = tuple(int(k) for k in np.argwhere(~same)[0])
    return f"at {at} the model has {a[at]}, the kernel {b[at]}; {int((~same).sum())} differ"


def judge(program: Program, target: str, default: bool = False) -> tuple[str, str, Finding | None]:
    """'ok', 'refused' and why, 'wild' (the model gives up) or 'found'. `default`: at the sizes of
    tiles that nobody chose."""
    text, given = program.text, arguments(program)
    chosen: dict[str, int] = {}
    file = "<tiles>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    space: dict[str, Any] = {"__name__": "fuzzed", "T": T, "tw": tw}
    exec(compile(text, file, "exec", dont_inherit=True), space)
    kernel: Any = tw.jit(target=target)(space["kernel"])
    used = program.tiles
    if not default:
        kernel = kernel.with_schedule(tiles=used)
    try:
        with watched(chosen):
            kernel.compile(**{n: given[n] for n in program.params})
        if default:
            used = chosen
    except CompileError as error:
        if re.match(r"\w+(Error|Iteration|Exception): ", error.message):
            return "found", "", Finding("crash", error.message, program)
        return "refused", error.message, None
    except Exception as error:
        return "found", "", Finding("crash", f"{type(error).__name__}: {error}", program)
    try:
        spoil(play(program, used, given)[0], given)
        params, outs = play(program, used, given)
    except TooLarge:
        return "wild", "", None
    said = f"tiles {used}"
    try:
        got = dict(given)
        made = kernel(*got.values())
    except TilewrightError as error:
        return "found", "", Finding("crash", f"{said}: {error}", program)
    results = made if isinstance(made, (tuple, list)) else (made,)
    for name, result in zip(outs, results, strict=True):
        if not outs[name].written.all():  # as in programs that were made smaller
            result = np.where(outs[name].written, result, outs[name].a)
        told = differs(outs[name], result, program.outs[name].exact)
        if told:
            return "found", "", Finding("mismatch", f"{name} {told}; {said}", program)
    for name, tensor in params.items():
        told = differs(tensor, got[name], True)
        if told:
            return "found", "", Finding("mismatch", f"{name} {told}; {said}", program)
    return "ok", "", None


def smaller(program: Program, finding: Finding, target: str, default: bool) -> Finding:
    """The finding in as few statements as show it."""

    def fails(body: list[Any]) -> bool:
        try:
            small = less(program, body)
            play(small, small.tiles, arguments(small))  # names may be missing
            found = judge(small, target, default)[2]
        except Exception:
            return False
        return found is not None and found.kind == finding.kind

    small = less(program, shrink(program.body, fails))
    return judge(small, target, default)[2] or finding


def less(program: Program, body: list[Any]) -> Program:
    """The program with this body: it has the tensors that are named there."""
    text = "\n".join(lines(body, 0))
    used = {n: a for n, a in program.params.items() if re.search(rf"\b{n}\b", text)}
    for size in program.sizes:
        if not any(size in a.dims for a in used.values()):
            used[f"S{size}"] = Array_((size,), "int32")
    outs = {n: a for n, a in program.outs.items() if f"{n} = T.empty" in text}
    return replace(program, body=body, params=used, outs=outs)


@dataclass
class Report:
    kinds: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)


def hunt(
    count: int,
    seed: int = 0,
    target: str = "interp -sanitize",
    seconds: float = 600.0,
    most: int = 1,
) -> Report:
    """Up to `count` programs from `seed` on, each at drawn and at default sizes of tiles; it ends
    with `most` findings, which are shrunk."""
    report = Report()
    until = time.monotonic() + seconds
    for at in range(seed, seed + count):
        program = make(at)
        for default in (False, True):
            kind, reason, finding = judge(program, target, default)
            report.kinds[kind] += 1
            if reason:
                report.reasons[reason] += 1
            if finding is not None:
                report.findings.append(smaller(program, finding, target, default))
                break
        if len(report.findings) >= most or time.monotonic() > until:
            break
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--target", default="interp -sanitize")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--most", type=int, default=1, help="findings after which it ends")
    given = parser.parse_args()
    report = hunt(given.count, given.seed, given.target, given.seconds, given.most)
    for finding in report.findings:
        print(finding, end="\n\n")
    print(", ".join(f"{n} {kind}" for kind, n in sorted(report.kinds.items())))
    for reason, n in report.reasons.most_common():
        print(f"  refused {n}: {reason}")
    sys.exit(bool(report.findings))


if __name__ == "__main__":
    main()
