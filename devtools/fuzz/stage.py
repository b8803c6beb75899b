"""What scenes are written with: a block, tiles that hold data, maps, loops, results."""

from __future__ import annotations

from math import prod
from typing import Any

from devtools.fuzz.recipe import Ex, Launch, Stmt, Tensor, Tile
from devtools.fuzz.rings import Reel, Rings
from devtools.fuzz.values import Index, number
from devtools.fuzz.workshop import BLOCKS, Block

_THREADS = {"128": 6, "256": 2, "64": 1, "32": 1, "96": 0.3}
_ROWS = [8, 16, 16, 32, 64, 64, 5, 33, 3]
_COLUMNS = [8, 16, 32, 32, 64, 64, 128, 12, 20, 40, 7, 1, 33]
_DTYPES = {
    "float16": 4, "float32": 4, "bfloat16": 1.5, "int32": 2, "int8": 1, "int16": 0.5, "uint8": 0.5,
    "float8_e4m3fn": 1, "float8_e5m2": 0.3,
}  # fmt: skip
_LARGEST = 4096


def sized(shape: tuple[str, ...], leading: str = "") -> str:
    """A shape as NumPy takes it."""
    return f"({leading}{', '.join(shape)},)"


class Stage(Rings):
    """A kernel of one axis of blocks, and what stands on it."""

    def setting(self, most: int = 3) -> Block:
        """A block that knows nothing."""
        r = self.r
        blocks = r.choice([n for n in (1, 1, 2, 3) if n <= most])
        threads = r.choices(list(_THREADS), list(_THREADS.values()))[0]
        self.fit = r.random() < 0.5
        if self.fit:
            threads = r.choice(["128", "256", "256"])
        self.cases = min(self.cases, 2)
        return Block(threads, [Index(BLOCKS[0], self.one(), blocks - 1)])

    def launched(self, b: Block, body: list[Stmt], grid: str = "") -> Launch:
        """The kernel: what tiles hold at the end goes out."""
        blocks = b.axes[0].most + 1
        for tile in [t for t in b.tiles if t.space in ("shared", "fragment") and not t.of]:
            if self.ready(b, tile) and self.r.random() < 0.9:
                body.append(self.whole_out(b, tile, blocks))
        return Launch((grid or str(blocks),), (b.axes[0].name,), b.threads, tuple(b.tiles),
                      tuple(body))  # fmt: skip

    def kind_of(self) -> str:
        """A type of elements."""
        kinds = _DTYPES if self.exact else {"float32": 3, "float16": 3, "bfloat16": 1}
        return self.r.choices(list(kinds), list(kinds.values()))[0]

    def plane(self, rank: int = 2) -> tuple[str, ...]:
        """The shape of a tile: often regular, often not."""
        r = self.r
        while True:
            sizes = [r.choice(_ROWS) for _ in range(rank - 1)] + [r.choice(_COLUMNS)]
            if prod(sizes) <= _LARGEST:
                return tuple(self.size(s) for s in sizes)

    # ── tiles and tensors ────────────────────────────────────────────────────────────────────

    def loaded(
        self, b: Block, body: list[Stmt], shape: tuple[str, ...], dtype: str, space: str = ""
    ) -> Tile:
        """A tile that holds what a tensor of its own holds."""
        tile = self.tile(b, shape, dtype, space or None)
        tensor = self.tensor(dtype, shape, "A")
        body.append(Stmt(f"T.copy({tensor.name}, {tile.name})",
                         effect=("copy", tensor.name, tile.name, True)))  # fmt: skip
        b.ready.add(tile.name)
        return tile

    def cleared(
        self, b: Block, body: list[Stmt], shape: tuple[str, ...], dtype: str, space: str = ""
    ) -> Tile:
        """A tile of zeros."""
        tile = self.tile(b, shape, dtype, space or self.r.choice(["fragment", "shared"]))
        body.append(self.emptied(tile))
        b.ready.add(tile.name)
        return tile

    @staticmethod
    def emptied(tile: Tile) -> Stmt:
        return Stmt(f"T.clear({tile.name})", effect=("fill", tile.name, 0, True))

    @staticmethod
    def moved(src: Tile, dst: Tile) -> Stmt:
        return Stmt(f"T.copy({src.name}, {dst.name})", effect=("copy", src.name, dst.name, True))

    def zeros(self, dtype: str, shape: tuple[str, ...], stem: str = "C") -> Tensor:
        """A tensor that begins with zeros."""
        return self.tensor(dtype, shape, stem, data=f"np.zeros({sized(shape)})")

    def numbers(self, shape: tuple[str, ...], low: str, high: str) -> Tensor:
        """Places: from `low` below `high`."""
        data = f"rng.integers({low}, {high}, {sized(shape)})"
        return self.tensor("int32", shape, "I", data=data)

    def seen(self, b: Block, of: Tensor | Tile, shape: tuple[str, ...]) -> Tile:
        """The same memory under another shape."""
        space = of.space if isinstance(of, Tile) else "global"
        found = Tile(self.fresh("v"), space, shape, of.dtype, of=of.name)
        b.tiles.append(found)
        return found

    # ── maps ────────────────────────────────────────────────────────────────────────────────

    def each(
        self, b: Block, tile: Tile, value: str, *kids: Ex, size: float = 0.0, whole: bool = True
    ) -> Stmt:
        """A map that writes a whole tile: `value` of `kids`, whose texts have `{i}`, `{j}` …"""
        points = self.points(tile.shape)
        names = dict(zip("ijkl", (p.name for p in points), strict=False))
        at = ", ".join(p.name for p in points)

        def placed(e: Ex) -> Ex:
            text = e.text
            for mark, name in names.items():
                text = text.replace(f"<{mark}>", name)
            return Ex(e.kind, e.dtype, text, tuple(map(placed, e.kids)), e.size, e.name)

        kind = "cap" if size else "add"
        whole_value = placed(Ex(kind, tile.dtype, value, kids, size))
        store = Stmt(f"{tile.name}[{at}] = {{0}}", (whole_value,),
                     effect=("store", tile.name, whole))  # fmt: skip
        return Stmt(self.flat(points), body=(store,))

    def read(self, of: Tile | Tensor, place: str, dtype: str = "") -> Ex:
        """An element, as a value of `dtype`; `<i>` … are indices of `each`."""
        found = Ex("read", of.dtype, f"{of.name}[{place}]", name=of.name)
        return self.v.cast(found, dtype or of.dtype)

    def kept(self, b: Block, total: Tile, *news: Ex) -> Stmt:
        """`total` takes in values, and keeps the order in which it did."""
        at = ", ".join(f"<{m}>" for m in "ijkl"[: len(total.shape)])
        old = self.read(total, at)
        sums = " + ".join(f"{{{n + 1}}}" for n in range(len(news)))
        if self.exact:
            return self.each(b, total, f"(({{0}} * 2 + {sums}) % 61)", old, *news, size=61)
        points = self.each(b, total, f"({{0}} * 0.5 + {sums})", old, *news, whole=False)
        return points

    def small(self, e: Ex, dtype: str) -> Ex:
        """The value, small again."""
        text = "({0} % 3)" if self.exact else "T.tanh({0})"
        return self.v.cast(Ex("cap", e.dtype, text, (e,), 3.0 if self.exact else 1.0), dtype)

    def guarded(self, cond: str, e: Ex) -> Ex:
        """Zero where the condition does not hold."""
        r = self.r
        text = r.choice([f"T.if_then_else({cond}, {{0}}, {{1}})", f"({{0}} if {cond} else {{1}})"])
        return Ex("most", e.dtype, text, (e, number(0, e.dtype)))

    # ── loops ────────────────────────────────────────────────────────────────────────────────

    def looped(self, reel: Reel, body: list[Stmt], name: str) -> Stmt:
        """The loop of a reel: pipelined to some depth or to one that the compiler chooses."""
        r = self.r
        word = self.v.pick(pipelined=6, chosen=2.5, serial=0.8, unroll=0.2, later=0.7)
        params: dict[str, Any] = {"trip": reel.trip}
        head = f"for {name} in T.{word}({{trip}}):"
        if word == "chosen":
            head = f"for {name} in T.Pipelined({{trip}}):"
        elif word in ("pipelined", "later"):
            first = "1, 1 + " if word == "later" else ""
            head = f"for {name} in T.Pipelined({first}{{trip}}, num_stages={{stages}}):"
            params["stages"] = r.choices(range(6), [0.5, 1.5, 4, 3, 1.5, 0.7])[0]
        effect = ("loop", reel.trip) if reel.trip.isdigit() else ("loop_most", str(reel.most))
        return Stmt(head, params=params, body=tuple(body), effect=effect)

    def around(self, b: Block, body: list[Stmt]) -> list[Stmt]:
        """Perhaps a loop or a branch around it."""
        r = self.r
        form = self.v.pick(none=5, serial=1.5, guard=0.8, whilst=0.7)
        n = r.choices([0, 1, 2, 3], [1, 2, 4, 3])[0]
        block, name = b.axes[0].name, self.fresh("o")
        match form:
            case "serial":
                return [Stmt(f"for {name} in T.serial({{trip}}):", params={"trip": str(n)},
                             body=tuple(body), effect=("loop", str(n)))]  # fmt: skip
            case "guard":
                cond = r.choice([f"{block} > 0", f"{block} == 0", f"{self.scalar()} > 1"])
                return [Stmt(f"if {cond}:", body=tuple(body))]
            case "whilst":
                step = Stmt(f"{name} += 1", fixed=True)
                loop = Stmt(f"while {name} < {n}:", body=(*body, step), effect=("loop", str(n)))
                begin = Stmt(f'{name} = T.alloc_var("int32", init=0)', fixed=True)
                return [Stmt("", body=(begin, loop))]
        return body
