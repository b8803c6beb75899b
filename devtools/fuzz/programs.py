"""Random legal tile programs: `make(seed)` gives a recipe.

Whatever a block reads of a tensor may lie anywhere, since outside reads zero; what it writes is
its own part, so that blocks never meet.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from random import Random
from typing import Any

from devtools.fuzz import numbers
from devtools.fuzz.recipe import (
    Ex,
    Growth,
    Inexact,
    Launch,
    Recipe,
    Stmt,
    Tensor,
    Tile,
    map_body,
)
from devtools.fuzz.scenes import SCENES, Scenes
from devtools.fuzz.values import Index, number
from devtools.fuzz.workshop import BLOCKS, LARGEST_TILE, PRODUCTS, THREADS, Block, Part

# The kinds of programs, and how many are pipelines of aligned copies; the rest of `any` draws from
# the whole language.
RINGS = {"any": 0.25, "rings": 1.0, "tiles": 0.0}
SHARE = 0.3  # of `any` are scenes
KINDS = (*RINGS, *SCENES, "numbers")


class Maker(Scenes):
    """Writes one program from a seed."""

    # ── the program ──────────────────────────────────────────────────────────────────────────

    def program(self, kind: str) -> Recipe:
        r = self.r
        if kind in SCENES:
            launches = [self.scene(kind)]
        elif r.random() < RINGS[kind]:
            launches = [self.ring_launch()]
        else:
            inputs = [self.input() for _ in range(r.randint(1, 3))]
            count = 1 if r.random() < 0.85 else 2
            launches = [self.launch(inputs, at, count) for at in range(count)]
        # a size that only scratch has would have no value
        told = {s for t in self.tensors if not t.scratch for s in t.shape}
        self.dynamic = {n: v for n, v in self.dynamic.items() if f"${n}" in told}
        names = [*self.dynamic, *self.scalars]
        cases = tuple(
            {n: self.dynamic[n][at] if n in self.dynamic else r.randint(0, 4) for n in names}
            for at in range(self.cases if names else 1)
        )
        sizes = {k: v for k, v in self.sizes.items() if k not in self.dynamic}
        recipe = Recipe(
            self.seed, self.exact, sizes, tuple(self.dynamic), tuple(self.scalars), cases,
            tuple(self.tensors), tuple(launches),
        )  # fmt: skip
        return tidy(tame(recipe))

    def input(self) -> Tensor:
        shape = self.shape()
        sizes = tuple(self.tensor_size(s) if self.r.random() < 0.8 else s for s in shape)
        return self.tensor(self.dtype(), sizes, self.r.choice("ABD"))

    def launch(self, inputs: list[Tensor], number: int, count: int) -> Launch:
        r = self.r
        axes: list[tuple[Index, str]] = []
        room = LARGEST_TILE
        for at in range(r.choices([1, 2, 3], [4, 5, 1])[0]):
            fits = [s for s in self.pool if self.v.extent(s) <= room] or [self.one()]
            block = r.choice(fits)
            room //= self.v.extent(block)
            size = self.tensor_size(block, 3 - at)
            most = -(-self.v.extent(size) // self.v.extent(block)) - 1
            axes.append((Index(BLOCKS[at], block, most), size))
        threads = r.choices(list(THREADS), list(THREADS.values()))[0]
        b = Block(threads, [a for a, _ in axes])
        b.inputs = list(inputs)
        if number:  # what the kernel before left is read, too
            b.inputs += [t for t in self.tensors if t not in inputs and t.name[0] in "OS"]
        scratch = number + 1 < count and r.random() < 0.7
        for at in range(r.randint(1, 2)):
            b.parts.append(self.output(axes, scratch and at == 0))
        self.prepare(b)
        body = self.opening(b)
        body += [s for _ in range(r.randint(2, 6)) for s in self.statement(b)]
        body += self.closing(b, axes)
        grid = tuple(f"T.ceildiv({size}, {axis.extent})" for axis, size in axes)
        return Launch(grid, tuple(a.name for a, _ in axes), threads, tuple(b.tiles), tuple(body))

    def output(self, axes: list[tuple[Index, str]], scratch: bool) -> Part:
        order = self.r.sample(axes, len(axes))
        shape = [size for _, size in order]
        origins = [f"{a.name} * {a.extent}" for a, _ in order]
        extents = [a.extent for a, _ in order]
        if len(shape) < 3 and self.r.random() < 0.3 + 0.5 * (len(shape) == 1):
            room = LARGEST_TILE // prod(map(self.v.extent, extents))
            extra = self.r.choice(
                [s for s in self.pool if self.v.extent(s) <= room] or [self.one()]
            )
            at = self.r.randint(0, len(shape))
            for sequence, item in ((shape, extra), (origins, "0"), (extents, extra)):
                sequence.insert(at, item)
        stem = "S" if scratch else "O"
        tensor = self.tensor(self.dtype(), tuple(shape), stem, scratch=scratch)
        return Part(tensor, tuple(origins), tuple(extents))

    def prepare(self, b: Block) -> None:
        """The tiles of a kernel."""
        r = self.r
        for _ in range(r.randint(1, 3)):
            self.tile(b, self.shape(), self.dtype())
        if r.random() < 0.55:
            self.product_tiles(b)
        for tile in list(b.tiles):
            if r.random() < 0.15:
                self.view(b, tile)
        for _ in range(r.choices([0, 1, 2], [5, 3, 1])[0]):
            name = self.fresh("x")
            dtype = r.choice(["int32", "int32", "float32"])
            b.tiles.append(Tile(name, "var", (), dtype, init=str(r.randint(0, 4))))
            b.names.append(Ex("read", dtype, name, name=name))
        if self.exact and r.random() < 0.4:
            op = self.v.pick(add=5, max=1, min=1, xor=1, **{"or": 0.5})
            shape = self.shape(r.choice([1, 2]))
            b.counters.append((self.tensor("int32", shape, "C"), op))

    def product_tiles(self, b: Block) -> None:
        r = self.r
        kinds = {k: w for k, w in PRODUCTS.items() if self.exact or k[0] in ("float16", "float32")}
        a_type, c_type = r.choices(list(kinds), list(kinds.values()))[0]
        regular = r.random() < 0.75
        m = self.size(r.choice([16, 32, 64, 64, 128]) if regular else r.choice([7, 24, 48, 5, 33]))
        n = self.size(r.choice([8, 16, 24, 32, 40, 64]) if regular else r.choice([3, 9, 20, 1]))
        k = self.size(r.choice([16, 32, 48, 64]) if regular else r.choice([5, 8, 12, 20, 1]))
        if a_type in ("float32", "float64"):  # by threads, which takes interpreters their time
            for name, most in ((m, 48), (n, 32), (k, 32)):
                self.sizes[name[1:]] = min(self.v.extent(name), most)
        at, bt = r.random() < 0.25, r.random() < 0.35
        a_space = "shared" if at or r.random() < 0.75 else "fragment"
        a = self.tile(b, (k, m) if at else (m, k), a_type, a_space)
        bb = self.tile(b, (n, k) if bt else (k, n), a_type, "shared")
        c = self.tile(b, (m, n), c_type, "fragment")
        b.products.append((a, bb, c, at, bt, k))

    def view(self, b: Block, tile: Tile) -> None:
        r = self.r
        total = prod(map(self.v.extent, tile.shape))
        if tile.dtype in ("int32", "int16") and tile.space == "shared" and r.random() < 0.4:
            dtype = r.choice(["int8", "uint8"])
            factor = 4 if tile.dtype == "int32" else 2
            shape: tuple[str, ...] = (*tile.shape[:-1], self.size(0))
            self.sizes[shape[-1][1:]] = self.v.extent(tile.shape[-1]) * factor
        else:
            dtype = tile.dtype
            factors = [f for f in range(1, total + 1) if total % f == 0]
            rows = r.choice(factors)
            shape = (self.size(rows), self.size(total // rows))
            if r.random() < 0.4:
                shape = (self.size(total),)
        b.tiles.append(Tile(self.fresh("v"), tile.space, shape, dtype, of=tile.name))

    def opening(self, b: Block) -> list[Stmt]:
        """Most tiles begin with data."""
        body: list[Stmt] = []
        if self.r.random() < 0.1:
            order = self.r.choice(["row", "col"])
            body.append(Stmt(f'T.use_swizzle({self.r.randint(1, 4)}, order="{order}")'))
        for tile in self.r.sample(b.tiles, len(b.tiles)):
            if tile.space == "var" or tile.of:
                continue
            if self.r.random() < 0.85:
                body += self.fill_whole(b, tile)
        return body

    def fill_whole(self, b: Block, tile: Tile) -> list[Stmt]:
        """Data for a whole tile."""
        kind = self.v.pick(copy=4, fill=1.5, map=2)
        found = self.copy_in(b, tile, whole=True) if kind == "copy" else None
        if kind == "map":
            found = self.map(b, tile, whole=True)
        if found is None:
            found = self.fill(b, tile, whole=True)
        b.ready.add(self.root(b, tile))
        return [found]

    def closing(self, b: Block, axes: list[tuple[Index, str]]) -> list[Stmt]:
        """What the tiles hold goes out: as parts of outputs, or whole, a tile per block."""
        r = self.r
        body: list[Stmt] = []
        for tile in [t for t in b.tiles if t.space in ("shared", "fragment")]:
            if self.ready(b, tile) and not (tile.of and r.random() < 0.5) and r.random() < 0.75:
                body.append(self.dump(b, tile, axes))
        for part in b.parts:
            if part.tensor.scratch or r.random() < 0.5:
                body.append(self.map_out(b, part, whole=part.tensor.scratch))
        return body

    def dump(self, b: Block, tile: Tile, axes: list[tuple[Index, str]]) -> Stmt:
        counts = tuple(self.size(a.most + 1) for a, _ in axes)
        dtype = tile.dtype if self.r.random() < 0.7 or not self.exact else self.dtype()
        last = list(tile.shape)
        if self.r.random() < 0.2:  # a tail that is dropped
            last[-1] = self.size(max(1, self.v.extent(last[-1]) - self.r.choice([1, 3])))
        tensor = self.tensor(dtype, (*counts, *last), "O")
        blocks = ", ".join(a.name for a, _ in axes)
        zeros = ", ".join("0" for _ in last)
        effect = ("copy", tile.name, tensor.name, False)
        return Stmt(f"T.copy({tile.name}, {tensor.name}[{blocks}, {zeros}])", effect=effect)

    # ── statements ───────────────────────────────────────────────────────────────────────────

    def statement(self, b: Block) -> list[Stmt]:
        deep = b.depth < 2
        kind = self.favour(
            copy_in=2, copy=2, fill=0.7, map=4, map_out=1.2, gemm=4.0 * bool(b.products),
            reduce=2, scan=0.8, transpose=0.5, loop=2.6 * deep, whilst=0.5 * deep, when=1 * deep,
            var=0.8 * bool(b.names), count=2.5 * bool(b.counters), threads=1.2, copy_out=1.0,
            mixed=0.3, copy_back=0.4, tally=0.7, seen_as=1.0, again=0.6, both=0.7,
        )  # fmt: skip
        found = getattr(self, f"a_{kind}")(b)
        if found is None:
            return []
        return found if isinstance(found, list) else [found]

    def a_loop(self, b: Block) -> Stmt:
        r = self.r
        name = self.fresh("k")
        trip, most = self.trip(b)
        kind = self.v.pick(pipelined=4, serial=3, range=1, unroll=1, step=1, down=0.5)
        params: dict[str, Any] = {"trip": trip}
        limit = str(most + 1)
        match kind:
            case "pipelined":
                head = f"for {name} in T.Pipelined({{trip}}, num_stages={{stages}}):"
                params["stages"] = r.randint(0, 4)
            case "step":
                start, step = r.randint(0, 2), r.randint(1, 3)
                head = f"for {name} in T.serial({start}, {start} + {{trip}}, {step}):"
                most += start
            case "down":
                head = f"for {name} in T.serial({{trip}}, 0, -1):"
                most += 1
            case _:
                head = f"for {name} in {'range' if kind == 'range' else 'T.' + kind}({{trip}}):"
        b.loops.append(Index(name, r.choice(self.pool), most))
        body = self.inner(b)
        if kind not in ("pipelined", "unroll") and r.random() < 0.12:
            body.append(Stmt(f"if {name} == {r.randint(0, 2)}:", body=(Stmt("break", fixed=True),)))
            body += self.inner(b, 1)
        b.loops.pop()
        # a count that is no plain number: as often as it can be
        effect = ("loop", trip) if trip.isdigit() else ("loop_most", limit)
        return Stmt(head, params=params, body=tuple(body), effect=effect)

    def inner(self, b: Block, count: int | None = None) -> list[Stmt]:
        """Statements under a loop or a branch; what they bring about may not last."""
        before = set(b.ready)
        names = list(b.names)
        b.depth += 1
        body = [s for _ in range(count or self.r.randint(1, 3)) for s in self.statement(b)]
        b.depth -= 1
        b.ready, b.names = before, names
        return body

    def a_whilst(self, b: Block) -> Stmt:
        name, most = self.fresh("w"), self.r.randint(0, 3)
        b.loops.append(Index(name, self.r.choice(self.pool), most))
        body = self.inner(b)
        b.loops.pop()
        step = Stmt(f"{name} += 1", fixed=True)
        loop = Stmt(f"while {name} < {most}:", body=(*body, step), effect=("loop", str(most)))
        return Stmt(
            "", body=(Stmt(f'{name} = T.alloc_var("int32", init=0)', fixed=True), loop)
        )  # fmt: skip

    def a_when(self, b: Block) -> Stmt:
        r = self.r
        site = self.site(b, [])
        cond = self.v.where(site)
        if r.random() < 0.25:
            cond = f"{self.scalar()} > {r.randint(0, 3)}"
        elif r.random() < 0.2 and self.exact and b.inputs:
            tensor = r.choice(b.inputs)
            place = ", ".join(self.anywhere_uniform(s, site) for s in tensor.shape)
            cond = f"{tensor.name}[{place}] > 0" if tensor.dtype != "bool" else cond
        body = self.inner(b)
        other = self.inner(b, 1) if r.random() < 0.4 else []
        return Stmt(f"if {cond}:", body=tuple(body), orelse=tuple(other))

    def a_var(self, b: Block) -> Stmt:
        """A uniform scalar moves on."""
        var = self.r.choice(b.names)
        terms = [*b.axes, *b.loops]
        step = Ex("known", "int32", f"({self.r.choice(terms).name} % 3 + 1)", size=3)
        total = Ex("add", var.dtype, "({0} + {1})", (var, self.v.cast(step, var.dtype)))
        value = Ex("cap", var.dtype, "({0} % 7)", (total,), 7)
        return Stmt(f"{var.text} = {{0}}", (value,), effect=("store", var.name, True))

    def a_mixed(self, b: Block) -> Stmt | None:
        """A branch on what a whole tile holds."""
        tiles = self.tiles_of(b)
        if not tiles or not self.exact:
            return None
        word = self.r.choice(["any_of", "all_of"])
        body = self.inner(b, 1)
        tile = self.r.choice(tiles)
        return Stmt(f"if T.{word}({tile.name}):", body=tuple(body)) if body else None


def tame(recipe: Recipe) -> Recipe:
    """Statements whose sums might not be exact are simplified, then dropped."""
    for _ in range(60):
        try:
            Growth(recipe).check()
        except Inexact as error:
            bad = error.stmt

            def calm(stmt: Stmt, bad: Stmt = bad) -> tuple[Stmt, ...]:
                if stmt is not bad:
                    return (stmt,)
                kids = [k for e in stmt.exprs for k in e.kids if k.dtype == e.dtype]
                if len(stmt.exprs) == 1 and kids:
                    return (replace(stmt, exprs=(kids[-1],)),)
                if len(stmt.exprs) == 1 and stmt.exprs[0].kind != "known":
                    kind = stmt.exprs[0].dtype
                    return (replace(stmt, exprs=(number(1, kind),)),)
                return weaker(stmt)

            recipe = replace(
                recipe,
                launches=tuple(
                    replace(launch, body=map_body(launch.body, calm)) for launch in recipe.launches
                ),
            )
        else:
            return recipe
    return recipe


def weaker(stmt: Stmt) -> tuple[Stmt, ...]:
    """Something that writes what a sum would have written, and does not grow."""
    match stmt.effect:
        case ("gemm", _, _, c, _, _):
            return (Stmt(f"T.clear({c})", effect=("fill", c, 0, True)),)
        case ("sum", src, dst, _, _) if "_sum(" in stmt.head or "_abssum(" in stmt.head:
            head = stmt.head.replace("abssum(", "absmax(").replace("_sum(", "_max(")
            return (replace(stmt, head=head, effect=("most", src, dst, False)),)
        case ("sum", src, dst, _, _):
            head = stmt.head.replace("T.cumsum(", "T.cummax(")
            return (replace(stmt, head=head, effect=("most", src, dst, False)),)
    return ()


def tidy(recipe: Recipe) -> Recipe:
    """Without loops and branches that have nothing in them."""

    def visit(stmt: Stmt) -> tuple[Stmt, ...]:
        empty = stmt.head.endswith(":") and not stmt.body and not stmt.orelse
        return () if empty else (stmt,)

    return replace(
        recipe,
        launches=tuple(
            replace(launch, body=map_body(launch.body, visit)) for launch in recipe.launches
        ),
    )


def make(seed: int, kind: str = "any") -> Recipe:
    """The program of a seed, of a kind of `KINDS`."""
    if kind == "numbers":
        return numbers.make(seed)
    if kind == "any":
        r = Random(f"kind {seed}")
        kind = r.choice(list(SCENES)) if r.random() < SHARE else "any"
    return Maker(seed).program(kind)
