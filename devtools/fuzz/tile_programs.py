"""Random kernels over tile values: statements, loops, kernels, programs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from math import prod
from random import Random
from typing import Any

from devtools.fuzz.tile_model import DTYPES, is_float
from devtools.fuzz.tile_terms import (
    AXES,
    FLOATS,
    INTS,
    LARGE,
    LONG,
    SIZES,
    TILES,
    Array_,
    Term,
    Terms,
    arithmetic,
    shape,
)


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


def lines(part: list[Any], depth: int) -> Iterator[str]:
    for each in part:
        if isinstance(each, list):
            yield from lines(each, depth + 1)
        else:
            yield "    " * depth + each


class Maker(Terms):
    """Makes statements, and kernels of them."""

    is_cut = False  # whether a tile of the grid was cut, so that parts of results are not written

    def bound_name(self, name: str, term: Term) -> str:
        self.names[name] = replace(term, text=name)
        return f"{name} = {term.text}"

    def statement(self) -> list[Any]:
        r = self.r
        choice = r.randrange(13)
        own = [n for n, a in self.params.items() if a.holds == "own" + str(self.grid)]
        if choice == 0 and self.grid:
            return self.in_place(r.choice(own) if own else None)
        if choice <= 3 and self.depth < 2:
            return self.loop()
        if choice == 4 and self.depth < 3:
            return self.branch()
        if choice == 12:
            return self.atomic()
        if choice == 6 and self.depth < 2:
            return self.chain()
        if choice == 7 and self.grid and self.depth == 0 and self.chance(0.5):
            return self.moved()
        if choice == 5:
            there = [n for n, t in self.names.items() if t.dims and n[0] == "v" and self.depth == 0]
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
        if self.depth:
            store = f"{place} = {value.text}"
        else:
            store = r.choice((f"{place} = {value.text}", f"{place} += {value.text}"))
        return r.choice(([read, store], [store, read]))

    def moved(self) -> list[Any]:
        """A row that only this block touches, stored to other elements than those it is read of."""
        r = self.r
        size = r.choice(list(self.sizes))
        name, dtype = self.fresh("Z"), r.choice(("float32", "bfloat16", "int32"))
        along = [AXES.get(var, "B") for var in self.grid]
        self.params[name] = Array_((*along, size), dtype, "own" + str(self.grid) + size)
        if self.sizes[size] > 1 and self.chance(0.5):
            return self.slid(f"{name}[{', '.join(self.grid)}, ", self.sizes[size])
        row, where = f"{name}[{', '.join(self.grid)}, :]", f"T.arange({size})"
        where = r.choice((f"({where} + {r.randint(1, 3)}) % {size}", f"{size} - 1 - {where}"))
        value = r.choice((row, f"T.maximum({row}, -1)", f"{row} + T.max({row}, dim=-1)[..., None]"))
        if len([var for var in self.grid if var in self.tiles]) == 0:
            value = row
        return [f"{name}[{', '.join(self.grid)}, {where}] = {value}"]

    def slid(self, row: str, size: int) -> list[Any]:
        """Parts of a row stored to parts that may overlap them, or that change places."""
        length = self.r.randint(1, size - 1)
        starts = [self.r.randint(0, size - length) for _ in range(2)]
        to, of = (f"{row}{start}:{start + length}]" for start in starts)
        if abs(starts[0] - starts[1]) >= length and self.chance(0.7):
            return [f"{to}, {of} = {of}, {to}"]
        return [f"{to} = {of}" + self.r.choice(("", "", " + 1"))]

    def atomic(self) -> list[Any]:
        """A sum that all blocks take part in."""
        r = self.r
        keys, along = [], []
        for var in r.sample(list(self.tiles), min(len(self.tiles), r.choice((0, 1, 1, 2)))):
            size = self.tiles[var]
            if size:
                keys.append(var)
                along.append(size)
        dims = tuple(keys)
        if len(keys) == 1 and self.chance(0.3):
            order = self.param(Array_((along[0],), "int32", "order"))
            keys = [r.choice((f"{order}[{keys[0]}]", f"{keys[0]}.index"))]
        if not keys and self.chance(0.3):
            keys.append("()")
        elif not keys or self.chance(0.3):
            keys.append("0")
            along.append(r.choice(list(self.sizes)))
        dtype = r.choice(("float32", "int32"))
        name = self.fresh("A")
        self.params[name] = Array_(tuple(along), dtype, "sum")
        value = self.cut(self.expr(dims, 1, "f" if dtype == "float32" else "i", True), 9)
        return [f"T.atomic_add({name}[{', '.join(keys)}], {value.text})"]

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
                term = self.cut(self.expr(dims, 1, kind, True))
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
            text = term.text
            if arithmetic(old, term) != old.dtype:
                text = self.typed(term, old.dtype)
            if make and self.chance(0.3):
                return [f"{name} = {name} + {text}"]
            return [f"{name} += {text}"]
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
        self.depth += 1
        found: list[Any] = more() if more else []
        for _ in range(self.r.choice((0, 1, 1, 2))):
            found += self.statement()
        for name in names:
            if self.chance(0.85):
                found += self.again(name, names)
        if self.chance(0.3):
            found += self.statement()
        self.depth -= 1
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
        if self.chance(0.2) and (dims := self.some_dims()):
            word = self.r.choice(("any_of", "all_of"))
            test = replace(test, text=f"T.{word}({self.condition(dims, 1).text})")
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

        vars, axes = {var: size}, [axis]
        if not pinned and self.chance(0.2):
            axis, size = self.range()
            vars[self.fresh("j")] = size
            axes.append(axis)

        def open_() -> list[Any]:
            self.tiles |= vars
            return []

        tiles = f"T.tile({', '.join(axes)}{pinned})"
        tiles = f"reversed({tiles})" if self.chance(0.15) else tiles
        return [*starts, f"for {', '.join(vars)} in {tiles}:", self.inner(names, open_)]

    def chain(self) -> list[Any]:
        """A matrix that a loop or a branch changes, and what is made of all of it before and
        inside: sums, scans, products, also of its transpose."""
        r = self.r
        a = r.choice([*self.tiles, *self.sizes])
        b = self.extra((a,))
        x = self.extra((a, b))
        dtype = r.choice([kind for kind in FLOATS if kind != "float64"])
        name, total = self.fresh("c"), self.fresh("c")
        first = self.typed(self.cut(self.read((a, b), dtype), 9), dtype)

        def side(*dims: str) -> str:
            return self.typed(self.cut(self.read(dims, dtype), 9), dtype)

        forms = {
            f"T.sum({name}, dim=0)": (b,),
            f"T.sum({name}, dim=1)": (a,),
            f"T.cumsum({name}, dim={r.randrange(2)})": (a, b),
            f"({name} @ {side(b, x)})": (a, x),
            f"({name}.T @ {side(a, x)})": (b, x),
            f"({side(x, a)} @ {name})": (x, b),
            f"({side(x, b)} @ {name}.T)": (x, a),
        }
        form = r.choice(list(forms))
        dims = forms[form]
        start = form if self.chance(0.5) else f'T.zeros({shape(dims)}, "float32")'
        new = r.choice((f"{name} * 2 - 1", f"1 - {name}", f"{name} + {side(a, b)}"))
        change = f'{name} = T.cast(T.maximum(T.minimum({new}, 9), -9), "{dtype}")'
        inside = [f"{total} += {form}", change]
        head = f"for _ in range({r.randint(0, 3)}):"
        if self.chance(0.3):
            head = f"if {self.condition((), 1).text}:"
        self.names[name] = Term(name, (a, b), dtype, 9)
        self.names[total] = Term(total, dims, "float32", 4 * 81 * LONG)
        return [
            f"{name} = {self.valued(first)}",
            f"{total} = {start}",
            head,
            inside if self.chance(0.7) else inside[::-1],
        ]

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
        self.names, self.tiles, self.grid, self.depth = {}, {}, [], 0
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
        self.is_cut = bool(axes) and self.chance(0.15)
        if self.is_cut:
            var, size = axes[0], AXES[axes[0]]
            label = self.param(Array_(("B",), "int32", "label"))
            high = r.choice((size, f"{size} - 1", f"T.min({label}[0], {size})"))
            body.append(f"{var} = {var}.within({r.choice(('0', '1', '2'))}, {high})")
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
        if not self.is_cut:
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
        text = f'{name} = T.empty({shape(along)}, "{dtype}"{", partial=True" * self.is_cut})'
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
        dtype = r.choice(FLOATS if kind == "f" else (*INTS, "float32"))
        array = Array_(tuple(along), dtype, "small", max(term.bound, 200), term.exact)
        text = f'{name} = T.empty({shape(along)}, "{dtype}"{", partial=True" * self.is_cut})'
        return array, text, [*setup, f"{name}[{', '.join(keys)}] = {term.text}"]


def tile_names(body: list[Any]) -> list[str]:
    """The variables of loops over tiles, those that count by ones aside."""
    loops = [m.group(1) for line in lines(body, 0) if (m := HEAD.match(line))]
    names = [name.strip() for names in loops for name in names.split(",")]
    return [name for name in dict.fromkeys(names) if name in AXES or name[0] == "j"]


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
    names = tile_names(body)
    grids = [[n for n in names.split(", ") if n in AXES] for names in loops]
    for _ in range(99):  # of few blocks, which are not large
        tiles = {n: r.choice(TILES) for n in names}
        blocks = [prod(-(-sizes[AXES[n]] // tiles[n]) for n in grid) for grid in grids]
        elements = [prod(min(tiles[n], 2 * sizes[AXES[n]]) for n in grid) for grid in grids]
        if max(blocks) <= 20 and max(elements) <= 600:
            break
    return Program(seed, body, maker.params, sizes, tiles, maker.outs)


# ── a program's loops ────────────────────────────────────────────────────────────────────────

WITHIN = re.compile(r"( *)(\w+) = \w+\.within\(")
HEAD = re.compile(r" *for (.+) in (reversed\()?T\.tile\((.*)\)(?(2)\)):$")
