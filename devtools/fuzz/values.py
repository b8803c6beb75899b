"""Random values for fuzzed programs: element reads under many indices, arithmetic, conditions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from devtools.fuzz.recipe import SPAN, Ex, Tensor, Tile, is_float


@dataclass(frozen=True)
class Index:
    """A name that counts from 0 below `extent`, at most `most`."""

    name: str
    extent: str
    most: int


@dataclass
class Site:
    """What a value may mention where it stands."""

    points: list[Index]  # indices of the map
    uniform: list[Index]  # blocks, loops
    tiles: list[Tile]
    tensors: list[Tensor]
    same: dict[str, str] = field(default_factory=dict)  # buffers being written: their one place
    banned: set[str] = field(default_factory=set)
    names: list[Ex] = field(default_factory=list)  # scalars with a value
    fragments: bool = True


def number(value: int, dtype: str) -> Ex:
    return Ex("known", dtype, f'T.cast({value}, "{dtype}")', size=abs(value))


class Values:
    """Writes values of a wanted type; `sizes` gives extents their numbers."""

    def __init__(self, rng: random.Random, sizes: dict[str, int], exact: bool) -> None:
        self.r, self.sizes, self.exact = rng, sizes, exact

    def pick(self, **weights: float) -> str:
        return self.r.choices(list(weights), list(weights.values()))[0]

    def extent(self, text: str) -> int:
        return self.sizes[text.removeprefix("$")]

    # ── indices ──────────────────────────────────────────────────────────────────────────────

    def inside(self, size: str, site: Site) -> str:
        """An index that stays in 0 … size - 1."""
        r, n = self.r, self.extent(size)
        vars = site.points + (site.uniform if r.random() < 0.2 else [])
        if not vars or r.random() < 0.07:
            return str(r.randrange(n)) if r.random() < 0.5 else f"$[{size} - 1]"
        exact = [v for v in vars if v.extent == size]
        v = r.choice(exact) if exact and r.random() < 0.8 else r.choice(vars)
        fits = v.most < n
        form = self.pick(
            plain=6, back=1, turn=1.5, half=0.5, cap=0.6, stretch=0.5, both=0.4 * (len(vars) > 1)
        )
        if form in ("plain", "back", "half") and not fits:
            form = "turn"
        if form == "plain":
            return v.name
        if form == "back":
            return f"{size} - 1 - {v.name}"
        if form == "half":
            return f"{v.name} // {r.choice([2, 3])}"
        if form == "cap":
            return f"T.min({v.name} + {r.randrange(3)}, {size} - 1)"
        if form == "stretch":
            return f"({v.name} * {r.choice([2, 3, 5])} + {r.randrange(3)}) % {size}"
        if form == "both":
            return f"({v.name} + {r.choice(vars).name}) % {size}"
        return f"({v.name} + {r.randrange(n)}) % {size}"

    def anywhere(self, size: str, site: Site) -> str:
        """An index of a tensor: outside it reads zero."""
        r = self.r
        terms = [self.origin(site)]
        if site.points and r.random() < 0.9:
            matching = [v for v in site.points if v.extent == size] or site.points
            v = r.choice(matching if r.random() < 0.7 else site.points).name
            terms.append(r.choice([v, v, v, f"{v} * 2", f"{v} // 2", f"({v} * 3 + 1) % {size}"]))
        text = " + ".join(t for t in terms if t) or "0"
        shift = r.choice([0, 0, 0, 0, 1, 3, -1, -4])
        if shift:
            text += f" {'+' if shift > 0 else '-'} {abs(shift)}"
        return f"{size} - 1 - ({text})" if r.random() < 0.05 else text

    def origin(self, site: Site) -> str:
        """Where a block or a loop's turn begins."""
        r = self.r
        if not site.uniform or r.random() < 0.15:
            return r.choice(["", "", str(r.randrange(6))])
        v = r.choice(site.uniform)
        return f"{v.name} * {v.extent}" if r.random() < 0.85 else v.name

    # ── values ───────────────────────────────────────────────────────────────────────────────

    def read(self, site: Site) -> Ex | None:
        r = self.r
        tiles = [t for t in site.tiles if t.name not in site.banned]
        tensors = [t for t in site.tensors if t.name not in site.banned]
        if site.names and r.random() < 0.2:
            return r.choice(site.names)
        if tiles and (r.random() < 0.65 or not tensors):
            tile = r.choice(tiles)
            place = site.same.get(tile.name)
            if place is None:
                place = ", ".join(self.inside(s, site) for s in tile.shape)
            return Ex("read", tile.dtype, f"{tile.name}[{place}]", name=tile.name)
        if not tensors:
            return None
        tensor = r.choice(tensors)
        place = site.same.get(tensor.name)
        if place is None:
            place = ", ".join(self.anywhere(s, site) for s in tensor.shape)
        return Ex("read", tensor.dtype, f"{tensor.name}[{place}]", name=tensor.name)

    def leaf(self, dtype: str, site: Site) -> Ex:
        r = self.r
        if r.random() < 0.75:
            found = self.read(site)
            if found is not None:
                return self.cast(found, dtype)
        vars = site.points + site.uniform
        if vars and r.random() < 0.6:
            v = r.choice(vars)
            text = f"({v.name} % 4)" if v.most > 3 else v.name
            return self.cast(Ex("known", "int32", text, size=3), dtype)
        if dtype in ("float32", "int32", "float16", "int16") and r.random() < 0.2:
            return number(r.choice([100, -90, 150, -200]), dtype)  # past the range of int8
        low = 0 if dtype.startswith("uint") else -3
        return number(r.randint(low, 3), dtype)

    def cast(self, e: Ex, dtype: str) -> Ex:
        if e.dtype == dtype:
            return e
        if e.dtype == "bool" and is_float(dtype):
            e = self.cast(e, "int32")
        return Ex("cast", dtype, f'T.cast({{0}}, "{dtype}")', (e,))

    def value(self, dtype: str, site: Site, depth: int = 2) -> Ex:
        """A value of `dtype`."""
        r = self.r
        if depth <= 0 or r.random() < 0.15:
            return self.leaf(dtype, site)
        if dtype == "bool":
            return Ex("cap", "bool", self.condition(site, depth - 1), size=1)
        if not self.exact and is_float(dtype):
            return self.smooth(dtype, site, depth)

        def make() -> Ex:
            return self.value(dtype, site, depth - 1)

        form = self.pick(
            add=3, sub=2, mul=2, max=1, min=1, abs=0.5, select=1.5, cap=1, fold=0.7, through=0.8,
            bits=0.8 * (not is_float(dtype)), divide=0.8 * (dtype in ("int32", "int16", "int8")),
        )  # fmt: skip
        match form:
            case "add" | "sub":
                sign = "+" if form == "add" else "-"
                return Ex("add", dtype, f"({{0}} {sign} {{1}})", (make(), make()))
            case "mul":
                return Ex("mul", dtype, "({0} * {1})", (make(), self.leaf(dtype, site)))
            case "max" | "min":
                return Ex("most", dtype, f"T.{form}({{0}}, {{1}})", (make(), make()))
            case "abs" if not dtype.startswith("uint"):
                return Ex("most", dtype, "T.abs({0})", (make(),))
            case "select":
                cond = self.condition(site, 1)
                text = r.choice([f"T.if_then_else({cond}, {{0}}, {{1}})",
                                 f"({{0}} if {cond} else {{1}})"])  # fmt: skip
                return Ex("most", dtype, text, (make(), make()))
            case "cap":
                c = r.choice([1, 2, 5, 15])
                low = 0 if dtype.startswith("uint") else -c
                return Ex("cap", dtype, f"T.clamp({{0}}, {low}, {c})", (make(),), c)
            case "fold" if not is_float(dtype) or r.random() < 0.3:
                c = r.choice([2, 3, 4, 7])
                return Ex("cap", dtype, f"({{0}} % {c})", (make(),), c)
            case "divide":
                c = r.choice([2, 3, 4, 5, -3])
                return Ex("most", dtype, f"({{0}} // {c})", (make(),))
            case "bits":
                op = r.choice(["&", "|", "^", "<<", ">>"])
                if "<" in op or ">" in op:
                    size = SPAN[dtype]
                    return Ex("cap", dtype, f"({{0}} {op} {r.randint(0, 3)})", (make(),), size)
                return Ex("cap", dtype, f"({{0}} {op} {{1}})", (make(), make()), SPAN[dtype])
            case "through":
                # through another type and back: rounding, wrapping, saturation
                other = r.choice(["int8", "int16", "float16", "bfloat16", "int32", "float32",
                                  "uint8", "float8_e4m3fn"])  # fmt: skip
                inner = self.value(other if r.random() < 0.5 else dtype, site, depth - 1)
                return self.cast(self.cast(inner, other), dtype)
        return self.leaf(dtype, site)

    def smooth(self, dtype: str, site: Site, depth: int) -> Ex:
        """A value whose error stays in proportion to its operands'."""

        def make() -> Ex:
            return self.value(dtype, site, depth - 1)

        match self.pick(add=3, mul=2, max=1, exp=1, root=1, tanh=1, sig=1, scale=2, select=1):
            case "add":
                return Ex("add", dtype, "({0} + {1})", (make(), make()))
            case "mul":
                return Ex("mul", dtype, "(T.clamp({0}, -4, 4) * {1})", (make(), make()))
            case "max":
                return Ex("most", dtype, "T.max({0}, {1})", (make(), make()))
            case "exp":
                return Ex("most", dtype, "T.exp(T.clamp({0}, -4, 1))", (make(),))
            case "root":
                return Ex("most", dtype, "T.sqrt(T.abs({0}) + 1)", (make(),))
            case "tanh":
                return Ex("most", dtype, "T.tanh({0})", (make(),))
            case "sig":
                return Ex("most", dtype, "T.sigmoid({0})", (make(),))
            case "select":
                cond = self.where(site)
                return Ex("most", dtype, f"T.if_then_else({cond}, {{0}}, {{1}})", (make(), make()))
        return Ex("most", dtype, f"({{0}} * {self.r.choice([0.5, -1.0, 0.25, 1.5])})", (make(),))

    # ── conditions ───────────────────────────────────────────────────────────────────────────

    def where(self, site: Site) -> str:
        """A condition on indices alone."""
        r = self.r
        vars = site.points + site.uniform
        if not vars:
            return "1 > 0"
        v = r.choice(vars)
        other = r.choice(vars)
        k = r.randint(0, max(1, v.most))
        return r.choice([
            f"{v.name} < {k}", f"{v.name} >= {k}", f"{v.name} % 3 == {k % 3}",
            f"{v.name} <= {other.name}", f"{v.name} != {k}", f"{v.name} + {other.name} > {k}",
            f"{v.name} == {k}", f"(0 < {v.name} and {other.name} < {k})",
            f"({v.name} < {k // 2} or {other.name} > {k})",
        ])  # fmt: skip

    def condition(self, site: Site, depth: int = 1) -> str:
        r = self.r
        if not self.exact or r.random() < 0.6:
            return self.where(site)
        found = self.read(site)
        if found is None:
            return self.where(site)
        if found.dtype == "bool":
            return str(found)
        test = f"{found} {r.choice(['<', '>', '<=', '>=', '==', '!='])} {r.randint(0, 2)}"
        if depth and r.random() < 0.3:
            joined = r.choice(["and", "or"])
            return f"({test} {joined} {self.where(site)})"
        return f"not ({test})" if r.random() < 0.1 else test
