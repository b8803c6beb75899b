"""What writing random programs starts from: sizes, tensors, tiles, and what a kernel knows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from devtools.fuzz.recipe import EXACT, Ex, Tensor, Tile
from devtools.fuzz.values import Index, Site, Values

_EXTENTS = [1, 2, 3, 4, 4, 6, 5, 7, 8, 8, 12, 16, 16, 17, 20, 24, 32, 32, 33, 40, 48, 64]
_REGULAR = [4, 8, 16, 16, 32, 32, 64, 64, 128]
_DTYPES = {
    "float32": 6, "float16": 4, "bfloat16": 2, "int32": 4, "int8": 1, "int16": 0.5, "uint8": 0.7,
    "float8_e4m3fn": 0.7, "float8_e5m2": 0.4, "bool": 0.4, "float64": 0.3, "int64": 0.3,
}  # fmt: skip
PRODUCTS = {
    ("float16", "float32"): 5, ("bfloat16", "float32"): 2, ("float16", "float16"): 1,
    ("float32", "float32"): 1.5, ("int8", "int32"): 1.5, ("float8_e4m3fn", "float32"): 1,
    ("float8_e5m2", "float32"): 0.5, ("uint8", "int32"): 0.4, ("float64", "float64"): 0.3,
}  # fmt: skip
THREADS = {"128": 6, "64": 2, "32": 2, "256": 2, "96": 0.7, "(32, 4)": 0.5}
LARGEST_TILE = 4096
BLOCKS = ("bx", "by", "bz")


@dataclass
class Part:
    """An output and how blocks share it: each dimension has an origin and an extent of ours."""

    tensor: Tensor
    origins: tuple[str, ...]
    extents: tuple[str, ...]


@dataclass
class Block:
    """What is known while a kernel's body is written."""

    threads: str
    axes: list[Index]
    tiles: list[Tile] = field(default_factory=list)
    ready: set[str] = field(default_factory=set)  # tiles that hold data
    loops: list[Index] = field(default_factory=list)
    parts: list[Part] = field(default_factory=list)
    inputs: list[Tensor] = field(default_factory=list)
    products: list[tuple[Tile, Tile, Tile, bool, bool, str]] = field(default_factory=list)
    counters: list[tuple[Tensor, str]] = field(default_factory=list)
    names: list[Ex] = field(default_factory=list)
    depth: int = 0

    @property
    def count(self) -> int:
        return prod(int(t) for t in self.threads.strip("()").split(","))


class Workshop:
    """The random choices that everything else is made of."""

    def __init__(self, seed: int) -> None:
        self.r = random.Random(seed)
        self.seed = seed
        self.exact = self.r.random() > 0.12
        self.sizes: dict[str, int] = {}
        self.dynamic: dict[str, list[int]] = {}
        self.scalars: list[str] = []
        self.tensors: list[Tensor] = []
        self.v = Values(self.r, self.sizes, self.exact)
        self.names = 0
        self.taste: dict[str, float] = {}
        count = self.r.choice([1, 1, 2, 2, 3])
        self.cases = 1 if self.r.random() < 0.6 else count
        # tiles that divide among threads, and vectors, take other ways than those that do not
        self.regular = self.r.random() < 0.3
        extents = _REGULAR if self.regular else _EXTENTS
        self.pool = [self.size(self.r.choice(extents)) for _ in range(self.r.randint(3, 5))]

    # ── small things ─────────────────────────────────────────────────────────────────────────

    def favour(self, **weights: float) -> str:
        """One of these; every program has favourites of its own, and things it avoids."""
        for name in weights:
            if name not in self.taste:
                self.taste[name] = self.r.choice([0.25, 1.0, 1.0, 1.0, 3.0])
        return self.v.pick(**{name: w * self.taste[name] for name, w in weights.items()})

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def size(self, value: int) -> str:
        name = f"e{len(self.sizes)}"
        self.sizes[name] = value
        return f"${name}"

    def dtype(self) -> str:
        kinds = _DTYPES if self.exact else {"float32": 6, "float16": 3, "bfloat16": 1}
        if self.regular and self.r.random() < 0.4:
            kinds = {"float32": 3, "int32": 2 * self.exact}
        return self.r.choices(list(kinds), list(kinds.values()))[0]

    def shape(self, rank: int | None = None) -> tuple[str, ...]:
        rank = rank or self.r.choices([1, 2, 3], [2, 6, 1.5])[0]
        for _ in range(20):
            found = tuple(self.r.choice(self.pool) for _ in range(rank))
            if prod(map(self.v.extent, found)) <= LARGEST_TILE:
                return found
        return (self.pool[0],)

    def tensor_size(self, block: str | None = None, most: int = 3) -> str:
        """A tensor's extent: some blocks and a tail, often known at launch only."""
        r = self.r
        unit = self.v.extent(block) if block else r.choice([8, 16, 20])

        def draw() -> int:
            tail = r.choice([0, 0, 0, -1, 1, -3, 5])
            if self.regular and r.random() < 0.7:
                tail = r.choice([0, 0, 0, 8, -4])
            return max(1, unit * min(r.choice([1, 1, 2, 2, 3]), most) + tail)

        if r.random() < 0.25:
            name = f"m{len(self.dynamic)}"
            self.dynamic[name] = [draw() for _ in range(self.cases)]
            self.sizes[name] = max(self.dynamic[name])
            return f"${name}"
        return self.size(draw())

    def tensor(self, dtype: str, shape: tuple[str, ...], stem: str, **more: Any) -> Tensor:
        high = 3 if dtype not in ("float8_e5m2", "bool") else 2
        found = Tensor(self.fresh(stem), shape, dtype, min(high, int(EXACT.get(dtype, 8))), **more)
        self.tensors.append(found)
        return found

    def scalar(self) -> str:
        if not self.scalars or (len(self.scalars) < 2 and self.r.random() < 0.3):
            self.scalars.append(f"n{len(self.scalars)}")
        return self.r.choice(self.scalars)

    def tile(self, b: Block, shape: tuple[str, ...], dtype: str, space: str | None = None) -> Tile:
        space = space or self.r.choices(["shared", "fragment"], [1, 1])[0]
        found = Tile(self.fresh("s" if space == "shared" else "f"), space, shape, dtype)
        b.tiles.append(found)
        return found

    def root(self, b: Block, tile: Tile) -> str:
        while tile.of:
            tile = next(t for t in b.tiles if t.name == tile.of)
        return tile.name

    def ready(self, b: Block, tile: Tile) -> bool:
        return self.root(b, tile) in b.ready

    def site(self, b: Block, points: list[Index]) -> Site:
        tiles = [t for t in b.tiles if t.space in ("shared", "fragment") and self.ready(b, t)]
        return Site(points, b.axes + b.loops, tiles, list(b.inputs), names=list(b.names))

    def written(self, b: Block, site: Site, tile: Tile, place: str | None) -> None:
        """Nothing else of the tile's memory is read; the tile itself at `place` only."""
        root = self.root(b, tile)
        for other in b.tiles:
            if other.space in ("shared", "fragment") and self.root(b, other) == root:
                site.banned.add(other.name)
        if place is not None and self.ready(b, tile):
            site.banned.discard(tile.name)
            site.same[tile.name] = place

    def tiles_of(self, b: Block, *, ready: bool = True) -> list[Tile]:
        return [
            t
            for t in b.tiles
            if t.space in ("shared", "fragment") and (not ready or self.ready(b, t))
        ]

    def any_tile(self, b: Block, *, ready: bool = True) -> Tile | None:
        found = self.tiles_of(b, ready=ready)
        return self.r.choice(found) if found else None

    def anywhere_uniform(self, size: str, site: Site) -> str:
        text = self.v.anywhere(size, replace(site, points=[]))
        return text if "%" not in text else "0"

    def one(self) -> str:
        if "e_one" not in self.__dict__:
            self.e_one = self.size(1)
        return self.e_one

    def trip(self, b: Block) -> tuple[str, int]:
        """(text, most) of a loop's count."""
        r = self.r
        kind = self.v.pick(plain=6, scalar=1.5, outer=0.8 * bool(b.loops), block=0.5)
        if kind == "scalar":
            return f"${self.scalar()}", 4
        if kind == "outer" and b.loops and b.loops[-1].most <= 5:
            return f"{b.loops[-1].name} + 1", b.loops[-1].most + 1
        if kind == "block" and b.axes[0].most < 5:
            return f"{b.axes[0].name} + 1", b.axes[0].most + 1
        n = r.choice([0, 1, 1, 2, 3, 3, 4, 5])
        return str(n), max(n - 1, 0)
