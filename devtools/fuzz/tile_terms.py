"""Expressions over tile values: what random kernels are made of (`tile_programs`)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from random import Random

from devtools.fuzz.tile_model import DTYPES, INT32, fits, promote, wide

SIZES = (1, 2, 3, 4, 5, 7, 8, 12, 16, 17, 21)
TILES = (1, 2, 3, 4, 5, 7, 8, 8, 16, 16, 32)
FLOATS = ("float32 " * 3 + "bfloat16 " * 2 + "float16 " * 2).split()
FLOATS += ["float64", "float8_e4m3fn", "float8_e5m2"]
INTS = ("int32 " * 4 + "int8 " * 2 + "uint8 int16 uint16 uint32 int64").split()
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


def shape(dims: Sequence[str]) -> str:
    return f"({', '.join(dims)}{',' * (len(dims) == 1)})"


def arithmetic(*terms: Term) -> str:
    """The type in which they are computed with."""
    return str(wide(reduce(promote, (DTYPES[term.dtype] for term in terms))))


def signed(dtype: str) -> str:
    """The type of a choice between one of this and a negative number."""
    return str(promote(DTYPES[dtype], INT32)) if dtype[0] == "u" else dtype


def is_part(some: Sequence[str], of: Sequence[str]) -> bool:
    rest = iter(of)
    return all(d in rest for d in some)


@dataclass
class Terms:
    """Makes expressions of what is there: tensors, names, open tile indices."""

    r: Random
    sizes: dict[str, int]
    params: dict[str, Array_] = field(default_factory=dict)
    outs: dict[str, Array_] = field(default_factory=dict)
    written: dict[str, Array_] = field(default_factory=dict)  # by kernels that have ended
    names: dict[str, Term] = field(default_factory=dict)
    tiles: dict[str, str] = field(default_factory=dict)  # open tile indices: their size, or ""
    grid: list[str] = field(default_factory=list)
    made: int = 0
    depth: int = 0

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
            picked = [self.scalar_index() for _ in range(count)]
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
            found = r.choice(there)
            is_value = found.dims and found.text[0] == "v"
            return (
                replace(found, text=f"T.load({found.text})")
                if is_value and self.chance(0.1)
                else found
            )
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
            low = 0 if dtype[0] == "u" else -2
            return Term(f'T.full({shape(dims)}, {r.randint(low, 3)}, "{dtype}")', dims, dtype)
        found = self.read(dims, r.choice(FLOATS if kind == "f" else INTS))
        if self.chance(0.6):
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
        kind = arithmetic(term)
        text = f'({term.text} + T.zeros({shape(dims)}, "{kind}"))'
        return replace(term, text=text, dims=dims, dtype=kind)

    def cut(self, term: Term, most: float = LARGE) -> Term:
        """`term`, no larger than `most`."""
        if term.bound <= most:
            return term
        text = f"T.maximum(T.minimum({term.text}, 9), -9)"
        return replace(term, text=text, bound=9.0, dtype=signed(term.dtype))

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
            return self.cut(self.scanned(dims, depth, kind, exact))
        if choice < 15 and len(dims) == 2 and ONE not in dims:
            return self.cut(self.product(dims, depth, kind))
        if choice == 15 and len(dims) == 2:
            if not any(d in self.tiles for d in dims) and self.chance(0.5):
                return self.reshaped(dims, depth, kind, exact)
            a = self.expr(dims[::-1], depth - 1, kind, exact)
            return replace(a, text=f"({a.text}).T", dims=dims)
        if choice == 16 and len(dims) < 3 and dims:
            return self.part(dims, depth, kind, exact)
        if choice == 17:
            a = self.expr(dims, depth - 1, r.choice("fi"), True)
            to = r.choice(FLOATS if kind == "f" else ("int32", "int64", "uint8"))
            if kind == "i" and a.kind == "f":
                return self.chosen(dims, depth, kind, exact)
            return Term(f'T.cast({a.text}, "{to}")', dims, to, a.bound, a.exact)
        if choice == 18 and kind == "i":
            a = self.expr(dims, depth - 1, "i", True)
            n, size = r.randint(2, 5), self.tiles.get(dims[-1]) if dims else None
            if size and self.chance(0.5):  # 0 in the padding behind the tensor
                both = arithmetic(a, Term("", (), "int32"))
                return Term(f"({a.text} // ({size} - {dims[-1]}.index))", dims, both, a.bound)
            return r.choice(
                (
                    Term(f"({a.text} % {n})", dims, arithmetic(a), n),
                    Term(f"({a.text} // {n})", dims, arithmetic(a), a.bound),
                    Term(f"({a.text} {r.choice('&|^')} {n})", dims, arithmetic(a), a.bound * 2 + 8),
                )
            )
        if kind == "f" and not exact:
            a = self.cut(self.expr(dims, depth - 1, "f", False), 9)
            word = r.choice(("exp", "tanh", "sigmoid", "silu", "softplus", "relu"))
            if word == "exp":
                return Term(f"T.exp(T.minimum({a.text}, 2))", dims, arithmetic(a), 8, False)
            return Term(f"T.{word}({a.text})", dims, arithmetic(a), 10, False)
        a = self.expr(dims, depth - 1, kind, exact)
        return r.choice(
            (
                replace(a, text=f"(-{a.text})", dtype=arithmetic(a)),
                replace(a, text=f"abs({a.text})"),
            )
        )

    def binary(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        r = self.r
        a = self.expr(dims, depth - 1, kind, exact)
        if self.chance(0.35):
            n, op, own = r.randint(1, 4), r.choice("+-*"), arithmetic(a)
            if kind == "f" and self.chance(0.3):
                text = r.choice((f"({a.text} * 0.5)", f"({a.text} / 2)", f"({n} - {a.text})"))
                return replace(a, text=text, dtype=own, bound=a.bound + n)
            bound = a.bound * n if op == "*" else a.bound + n
            return replace(a, text=f"({a.text} {op} {n})", dtype=own, bound=bound)
        other = "i" if kind == "f" and self.chance(0.2) else kind
        b = self.expr(self.narrower(dims), depth - 1, other, exact)
        op = r.choice("+-*")
        if op == "*":
            a, b = self.cut(a, 64), self.cut(b, 64)
        bound = a.bound * b.bound if op == "*" else a.bound + b.bound
        both = arithmetic(a, b)
        return Term(f"({a.text} {op} {b.text})", dims, both, bound, a.exact and b.exact)

    def chosen(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """where, maximum, minimum."""
        r = self.r
        a = self.expr(dims, depth - 1, kind, exact)
        b = self.expr(self.narrower(dims), depth - 1, kind, exact)
        if self.chance(0.3):
            n = r.choice((-2, -1, 0, 1, 2, 200 if kind == "i" else 2))
            dtype = a.dtype if kind == "f" or fits(n, DTYPES[a.dtype]) else "int32"
            b = Term(str(n), dims, dtype, abs(n))
        dtype = str(promote(DTYPES[a.dtype], DTYPES[b.dtype]))
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
        words += ["prod"] if kind == "i" else []
        words += ["reduce"] if len(at) == 1 else []
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
        a = self.unit(a) if word == "prod" else a
        keep = self.chance(0.25) and dims != ()
        by = f", {self.operator(kind)}" if word == "reduce" else ""
        text = f"T.{word}({a.text}{by}, dim={dim}{', keepdim=True' * keep})"
        if word == "var":
            made = Term(text, dims, arithmetic(a), a.bound**2, False)
        elif word == "mean":
            made = Term(text, dims, arithmetic(a), a.bound, False)
        elif word in ("sum", "prod", "reduce"):
            bound = a.bound * count if word == "sum" else a.bound
            made = Term(text, dims, arithmetic(a), bound, a.exact)
        elif word.startswith("arg"):
            made = Term(text, dims, "int32", LONG)
        else:
            made = Term(text, dims, a.dtype, a.bound, a.exact)
        if not keep:
            return made
        back = self.expr(tuple(inner), 0, kind, exact)  # broadcast again, and folded
        text = f"T.max({made.text} * 1 + {self.cut(back, 99).text}, dim={dim})"
        both = arithmetic(made, self.cut(back, 99))
        return Term(text, dims, both, made.bound + 99, made.exact and back.exact)

    def scanned(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """A scan, by name or by a function; of two values together."""
        r = self.r
        at = r.randrange(len(dims))
        given = f"dim={at}" + r.choice(("", "", ", reverse=True"))
        count = self.most(dims[at])
        choice = r.randrange(8)
        if choice < 2:
            a = self.cut(self.expr(dims, depth - 1, kind, True), 99)
            word = f"T.cumsum({a.text}, {given})"
            return Term(word, dims, arithmetic(a), a.bound * count)
        if choice < 4:
            a = self.expr(dims, depth - 1, kind, exact)
            word = f'T.scan({a.text}, "{r.choice(("max", "min"))}", {given})'
            return replace(a, text=word)
        if choice == 4:
            a = self.unit(self.expr(dims, depth - 1, "i", True))
            made = Term(f"T.cumprod({a.text}, {given})", dims, arithmetic(a), 1)
            return self.as_kind(made, kind)
        if choice == 5:  # h = a * h + b
            a = self.unit(self.expr(dims, depth - 1, "i", True))
            b = self.cut(self.expr(dims, depth - 1, kind, True), 99)
            then = "lambda x, y: (x[0] * y[0], x[1] * y[0] + y[1])"
            text = f"T.scan(({a.text}, {b.text}), {then}, {given})[1]"
            return Term(text, dims, arithmetic(b), b.bound * count)
        a = self.expr(dims, depth - 1, kind, exact)
        text = f"T.scan({a.text}, {self.operator(kind)}, {given})"
        return replace(a, text=text, dtype=arithmetic(a))

    def operator(self, kind: str) -> str:
        """An associative function that gives one of its arguments, or of remainders."""
        return self.r.choice(
            (
                "lambda a, b: T.maximum(a, b)",
                "lambda a, b: b",
                "lambda a, b: T.where(b > 0, b, a)",
                "lambda a, b: T.where(a < 0, a, b)",
            )
        )

    def unit(self, term: Term) -> Term:
        """`term` between -1 and 1."""
        return replace(term, text=f"T.maximum(T.minimum({term.text}, 1), -1)", bound=1.0,
            dtype=signed(term.dtype),
        )  # fmt: skip

    def as_kind(self, term: Term, kind: str) -> Term:
        if kind == term.kind:
            return term
        return replace(term, text=f'T.cast({term.text}, "float32")', dtype="float32")

    def reshaped(self, dims: tuple[str, ...], depth: int, kind: str, exact: bool) -> Term:
        """The elements of whole dimensions under another shape."""
        a = self.expr(dims[::-1], depth - 1, kind, exact)
        return replace(a, text=f"T.reshape({self.valued(a.text)}, {shape(dims)})", dims=dims)

    def valued(self, text: str) -> str:
        """A word of tiles takes the tile of a bare index."""
        return f"T.load({text})" if text[-1] == "]" else text

    def product(self, dims: tuple[str, ...], depth: int, kind: str) -> Term:
        """`a @ b`: sides of one type, perhaps one of them a row or a column."""
        r = self.r
        inner = self.extra(dims)
        dtype = r.choice(FLOATS) if kind == "f" else r.choice(("int8", "uint8", "int32"))
        sides, thin = [], r.randrange(2) if self.chance(0.25) else None
        for at, two in enumerate(((dims[0], inner), (inner, dims[1]))):
            if at == thin:
                line = self.cut(self.read((inner,), dtype), 32)
                key = "None, :" if at == 0 else ":, None"
                sides.append(f"{self.valued(line.text)}[{key}]")
                continue
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
        own = arithmetic(Term("", (), dtype))
        made = Term(f"({sides[0]} @ {sides[1]})", dims, own, 32 * 32 * self.most(inner))
        if thin is None:
            return made
        return replace(made, text=f'({made.text} + T.zeros({shape(dims)}, "{own}"))')

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
        a = self.expr(inner, depth - 1, kind, exact)
        keys = [":"] * at + [key]
        return replace(a, text=f"({self.valued(a.text)})[{', '.join(keys)}]", dims=dims)
