"""Random kernels as they are written by hand: gathers, dequantization, chains of products, running
reductions, tiles that are handed out one after the other."""

from __future__ import annotations

from devtools.fuzz.recipe import Ex, Launch, Stmt, Tensor, Tile, is_float
from devtools.fuzz.rings import Reel
from devtools.fuzz.stage import Stage, sized
from devtools.fuzz.values import Index, number
from devtools.fuzz.workshop import Block

_PRODUCTS = {
    ("float16", "float32"): 6, ("bfloat16", "float32"): 2, ("float16", "float16"): 0.4,
    ("float32", "float32"): 0.6, ("int8", "int32"): 0.8, ("float8_e4m3fn", "float32"): 0.7,
}  # fmt: skip
# What a product reads of one element of packed numbers; `{0}` is the element, `{1}` which of them.
_PACKED = {
    "int8": ("{0}", 1),
    "uint8": ('(T.cast(({0} >> ({1} * 4)) & 15, "int32") - 8)', 2),
    "int32": ("((({0} >> ({1} * 4)) & 15) - 8)", 8),
}


class Flows(Stage):
    """Gathers, chains and running reductions."""

    # ── gathers ──────────────────────────────────────────────────────────────────────────────

    def scene_gathers(self) -> Launch:
        """A loop whose tile comes by way of places, is used, and perhaps goes out by others."""
        b, body = self.setting(), list[Stmt]()
        reel = self.reel(b)
        work: list[Stmt] = []
        k = self.fresh("k")
        b.loops.append(Index(k, self.one(), reel.most + 1))
        form = self.favour(rows=4, image=1.5, pages=1.5, table=1)
        multiplied = self.r.random() < 0.5
        dtype = self.factor()[0] if multiplied else self.kind_of()
        shape = self.left_shape(dtype, b) if multiplied else self.plane()
        tile = self.tile(b, shape, dtype, "shared" if self.r.random() < 0.8 else "fragment")
        getattr(self, f"by_{form}")(b, body, work, reel, tile, k)
        if multiplied:
            self.multiplied(b, body, work, reel, tile, k)
        if not multiplied or self.r.random() < 0.3:
            total = self.cleared(b, body, shape, "float32" if is_float(dtype) else "int32")
            work.append(self.kept(b, total, self.read(tile, "<i>, <j>", total.dtype)))
        if self.r.random() < 0.35:
            work.append(self.scattered(b, tile, reel, k))
        b.loops.pop()
        body += self.around(b, [self.looped(reel, work, k)])
        return self.launched(b, body)

    def factor(self) -> tuple[str, str]:
        kinds = {k: w for k, w in _PRODUCTS.items() if self.exact or k[0] in ("float16", "float32")}
        if self.fit:
            kinds = {k: w for k, w in kinds.items() if k[1] == "float32" and k[0] != "float32"}
        return self.r.choices(list(kinds), list(kinds.values()))[0]

    def left_shape(self, dtype: str, b: Block) -> tuple[str, str]:
        """Rows and depth of a product."""
        r = self.r
        wide = 32 if dtype in ("int8", "float8_e4m3fn") else 16
        if self.fit:
            return self.size(b.count // 2), self.size(r.choice([wide, 32, 64]))
        if dtype in ("float32", "float8_e4m3fn") or b.count % 64 or r.random() < 0.15:
            return self.size(r.choice([16, 32, 24, 7])), self.size(r.choice([wide, 32, 20, 5]))
        return self.size(r.choice([64, 64, 128, 32])), self.size(r.choice([wide, 32, 64]))

    def multiplied(
        self, b: Block, body: list[Stmt], work: list[Stmt], reel: Reel, a: Tile, k: str
    ) -> Tile:
        """The product of a tile with one that is streamed or stays."""
        r = self.r
        turned = r.random() < 0.4
        sums = {k: v for k, v in _PRODUCTS if k == a.dtype}[a.dtype]
        m, depth = a.shape
        n = self.size(r.choice([16, 32, 64, 64]) if self.v.extent(m) >= 32 else r.choice([8, 20]))
        shape = (n, depth) if turned else (depth, n)
        if r.random() < 0.6:
            stream = self.stream(b, reel, shape, a.dtype)
            work.insert(r.choice([0, len(work)]), stream.copy(k))
            other = stream.tile
        else:
            other = self.loaded(b, body, shape, a.dtype, "shared")
        c = self.cleared(b, body, (m, n), sums, "fragment")
        work.append(self.times(a, other, c, depth, turned))
        return c

    def times(self, a: Tile, b: Tile, c: Tile, k: str, turned: bool, clear: bool = False) -> Stmt:
        words = [a.name, b.name, c.name] + ["transpose_B=True"] * turned
        words += ["clear_accum=True"] * clear
        if self.r.random() < 0.2:
            policy = self.r.choice(["Square", "FullRow", "FullCol"])
            words.append(f"policy=T.GemmWarpPolicy.{policy}")
        return Stmt(f"T.gemm({', '.join(words)})",
                    effect=("gemm", a.name, b.name, c.name, k, clear))  # fmt: skip

    def by_rows(
        self, b: Block, body: list[Stmt], work: list[Stmt], reel: Reel, tile: Tile, k: str
    ) -> None:
        """Rows of a tensor, named by a vector in memory, shared memory or registers."""
        r = self.r
        m, n = tile.shape
        rows = self.size(r.choice([4, 16, 40]))
        source = self.tensor(tile.dtype, (rows, n), "A")
        where = self.v.pick(memory=3, shared=2, fragment=2, twice=0.5)
        count = self.size((max(reel.most, 1) + 1) * self.v.extent(m))
        guard = r.random() < 0.5
        far = 2 if r.random() < 0.4 else 0  # outside a tensor reads zero
        places = self.numbers((count,), f"-{far}", f"{rows} + {far}")
        at = f"{places.name}[{k} * {m} + <i>]"
        if where in ("shared", "fragment"):
            mine = self.tile(b, (m,), "int32", where)
            copy = Stmt(f"T.copy({places.name}[{k} * {m}], {mine.name})",
                        effect=("copy", places.name, mine.name, True))  # fmt: skip
            if r.random() < 0.3:
                body.append(Stmt(copy.head.replace(f"{k} * {m}", "0"), effect=copy.effect))
            else:
                work.append(copy)
            at = f"{mine.name}[<i>]"
        elif where == "twice":
            again = self.numbers((rows,), "0", rows)
            at = f"{again.name}[T.max({at}, 0) % {rows}]"
        value = self.read(source, f"{at}, <j>")
        if guard:
            cond = r.choice([f"{at} >= 0", f"{k} * {m} + <i> < {count} - 3",
                             f"{at} < {rows} - 1", f"<i> < {self.scalar()} * 8"])  # fmt: skip
            value = self.guarded(cond, value)
        work.append(self.each(b, tile, "{0}", value))

    def by_image(
        self, b: Block, body: list[Stmt], work: list[Stmt], reel: Reel, tile: Tile, k: str
    ) -> None:
        """Coordinates of a convolution: rows are pixels, columns are taps and channels."""
        r = self.r
        m, n = tile.shape
        high, wide, deep = (self.size(r.choice(s)) for s in ([5, 8], [4, 8, 7], [4, 8, 16]))
        source = self.tensor(tile.dtype, (high, wide, deep), "A")
        step, pad, taps = r.choice([1, 1, 2]), r.choice([0, 1, 1]), r.choice([2, 3])
        pixel, column = f"({b.axes[0].name} * {m} + <i>)", f"({k} * {n} + <j>)"
        y = f"{pixel} // {wide} * {step} + {column} // {deep} // {taps} - {pad}"
        x = f"{pixel} % {wide} * {step} + {column} // {deep} % {taps} - {pad}"
        value = self.read(source, f"{y}, {x}, {column} % {deep}")
        if r.random() < 0.6:
            cond = f"({y} >= 0 and {x} >= 0 and {y} < {high} and {x} < {wide})"
            value = self.guarded(cond, value)
        work.append(self.each(b, tile, "{0}", value))

    def by_pages(
        self, b: Block, body: list[Stmt], work: list[Stmt], reel: Reel, tile: Tile, k: str
    ) -> None:
        """Whole tiles, named by a table: the cache of a server."""
        m, n = tile.shape
        pages = self.size(self.r.choice([3, 5]))
        count = self.size(max(reel.most, 1) + 2)
        table = self.numbers((count,), "0", pages)
        apart = self.r.random() < 0.5
        shape = (pages, m, n) if apart else (self.size(
            self.v.extent(pages) * self.v.extent(m)), n)  # fmt: skip
        source = self.tensor(tile.dtype, shape, "A")
        name = f"{table.name}[{k}]"
        place = f"{name}, 0, 0" if apart else f"{name} * {m}, 0"
        if self.r.random() < 0.4:
            page = self.fresh("y")
            work.append(Stmt(f"{page} = {name}", fixed=True))
            place = place.replace(name, page)
        work.append(Stmt(f"T.copy({source.name}[{place}], {tile.name})",
                         effect=("copy", source.name, tile.name, True)))  # fmt: skip

    def by_table(
        self, b: Block, body: list[Stmt], work: list[Stmt], reel: Reel, tile: Tile, k: str
    ) -> None:
        """Packed numbers, streamed, taken apart, times a scale of their group."""
        r = self.r
        m, n = tile.shape
        kind = r.choice(list(_PACKED))
        text, count = _PACKED[kind]
        if self.v.extent(n) % count:
            kind, (text, count) = "int8", _PACKED["int8"]
        packed = self.size(self.v.extent(n) // count)
        stream = self.stream(b, reel, (m, packed), kind)
        work.append(stream.copy(k))
        got = self.read(stream.tile, f"<i>, <j> // {count}" if count > 1 else "<i>, <j>")
        value = Ex("cap", "int32" if count > 1 else kind, text.replace("{1}", f"(<j> % {count})"),
                   (got,), 8.0)  # fmt: skip
        value = self.v.cast(value, tile.dtype)
        if r.random() < 0.5 and is_float(tile.dtype):
            scales = self.tensor(tile.dtype, (self.size(reel.most + 2), m), "A")
            scale = self.read(scales, f"{k}, <i>")
            value = Ex("mul", tile.dtype, "({0} * {1})", (value, scale))
        work.append(self.each(b, tile, "{0}", value))

    def scattered(self, b: Block, tile: Tile, reel: Reel, k: str) -> Stmt:
        """Rows go to places that differ: those of a permutation, perhaps not all of them."""
        m, n = tile.shape
        turns, blocks = self.size(reel.most + 2), self.size(b.axes[0].most + 1)
        places = self.tensor("int32", (m,), "I", data=f"rng.permutation({m})")
        out = self.tensor(tile.dtype, (blocks, turns, m, n), "O")
        points = self.points(tile.shape)
        i, j = (p.name for p in points)
        value = Ex("read", tile.dtype, f"{tile.name}[{i}, {j}]", name=tile.name)
        to = f"{out.name}[{b.axes[0].name}, {k}, {places.name}[{i}], {j}]"
        store = Stmt(f"{to} = {{0}}", (value,), effect=("store", out.name, False))
        if self.r.random() < 0.4:
            store = Stmt(f"if {self.v.where(self.site(b, points))}:", body=(store,))
        return Stmt(self.flat(points), body=(store,))

    # ── chains of products ───────────────────────────────────────────────────────────────────

    def scene_chains(self) -> Launch:
        """Loops one after the other that share tiles, sums that are looked at, products of
        products."""
        b, body = self.setting(), list[Stmt]()
        chain = _Chain(self, b, body)
        loops: list[Stmt] = []
        for _ in range(self.r.choice([1, 1, 1, 2, 2, 3])):
            loops.append(chain.loop())
            if self.r.random() < 0.25:
                loops.append(chain.between())
        body += self.around(b, loops)
        if self.r.random() < 0.5:
            body += self.finished(b, chain.c)
        return self.launched(b, body)

    def finished(self, b: Block, c: Tile) -> list[Stmt]:
        """A product goes out by a map, on conditions that keep what else it reads inside."""
        r = self.r
        m, n = c.shape
        block = b.axes[0]
        cut = self.size(max(1, self.v.extent(n) * r.choice([1, 2, 3]) // 4))
        found: list[Stmt] = []
        out = self.tensor("float16", (self.size(block.most + 1), m, n), "O")
        points = self.points((m, n))
        i, j = (p.name for p in points)
        value = Ex("read", c.dtype, f"{c.name}[{i}, {j}]", name=c.name)
        cond = r.choice([f"{j} < {cut}", f"{j} < {cut}", f"{i} + {block.name} > 2", ""])
        if cond.startswith(j) and r.random() < 0.8:
            tile = self.loaded(b, found, (cut,), c.dtype, r.choice(["fragment", "shared"]))
            name = f"{tile.name}[{j}]"
            if r.random() < 0.3:
                own, q = self.fresh("l"), self.fresh("q")
                found.append(Stmt(f'{own} = T.alloc_local(({cut},), "{c.dtype}")', fixed=True))
                fill = Stmt(f"{own}[{q}] = {q} % 3", fixed=True)
                found.append(Stmt(f"for {q} in T.serial({cut}):", body=(fill,), fixed=True))
                name = f"{own}[{j}]"
            other = Ex("cap", c.dtype, name, size=3.0)
            value = Ex("mul", c.dtype, "({0} * {1})", (value, other))
        store = Stmt(f"{out.name}[{block.name}, {i}, {j}] = {{0}}",
                     (self.v.cast(value, "float16"),),
                     effect=("store", out.name, False))  # fmt: skip
        if cond:
            store = Stmt(f"if {cond}:", body=(store,))
        return [Stmt("", body=(*found, Stmt(self.flat(points), body=(store,))))]

    # ── tiles handed out ─────────────────────────────────────────────────────────────────────

    def scene_tickets(self) -> Launch:
        """A block takes up one tile after the other: from a loop, by waves, or from a counter;
        what comes of a tile depends on its number alone."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        blocks = b.axes[0].most + 1
        most = r.choice([1, 2, 3, 4])
        how = self.favour(ticket=3, whilst=3, waves=2, serial=1)
        t, loop = self.fresh("t"), self.fresh("o")
        tiles = most * blocks if how == "ticket" else most
        b.loops.append(Index(t, self.one(), tiles))
        b.axes, axes = [Index(t, self.one(), tiles - 1)], b.axes
        inside: list[Stmt] = []
        chain = _Chain(self, b, inside)
        inside.append(chain.loop())
        outs = [x for x in b.tiles if x.space == "fragment" and self.ready(b, x)]
        inside += [self.whole_out(b, x, tiles) for x in outs[:3]]
        b.axes, b.ready = axes, set()
        match how:
            case "serial":
                tiles_of = Stmt(f"for {t} in T.serial({{trip}}):", params={"trip": str(tiles)},
                                body=tuple(inside), effect=("loop", str(tiles)))  # fmt: skip
                body.append(Stmt(f"if {axes[0].name} == 0:", body=(tiles_of,)))
            case "waves":
                head = f"for {t} in T.Persistent([{tiles}], {blocks}, {axes[0].name}):"
                body.append(Stmt(head, body=tuple(inside), effect=("loop", str(tiles))))
            case _:
                body += self.tickets(b, inside, (t, loop), (most, tiles), how == "whilst")
        return self.launched(b, body)

    def tickets(
        self, b: Block, inside: list[Stmt], names: tuple[str, str], counts: tuple[int, int],
        whilst: bool,
    ) -> list[Stmt]:  # fmt: skip
        """A counter says which tile is next."""
        r = self.r
        t, loop = names
        most, tiles = counts
        size = self.size(4)
        kind = "int32" if r.random() < 0.9 else "int64"
        counter = self.zeros(kind, (size,))
        told, before, body = f"{counter.name}[0]", list[Stmt](), list[Stmt]()
        step = self.v.pick(one=5, scalar=1, shared=1, view=1, memory=0.7)
        by = "1"
        match step:
            case "scalar":
                by = self.fresh("x")
                body.append(Stmt(f'{by} = T.alloc_var("{kind}", init=1)', fixed=True))
            case "shared":
                ones = self.tile(b, (size,), kind, "shared")
                before.append(Stmt(f"T.fill({ones.name}, 1)", effect=("fill", ones.name, 1, True)))
                by = f"{ones.name}[0]"
            case "view":
                told = f"{self.seen(b, counter, (self.size(2), self.size(2))).name}[0, 0]"
            case "memory":
                ones_there = self.tensor(kind, (size,), "A", data=f"np.ones({sized((size,))})")
                by = f"{ones_there.name}[1]"
                if b.axes[0].most == 0 and r.random() < 0.5:  # nobody else writes it
                    before.append(Stmt(f"{by} = 1"))
        ask = f"T.atomic_add({told}, {by}, return_prev=True)"
        after: list[Stmt] = []
        if b.axes[0].most == 0 and r.random() < 0.3:  # nobody else counts
            seen = self.tensor(kind, (self.size(tiles + 1),), "O")
            at = r.choice([f"{counter.name}[0]", told])
            after.append(Stmt(f"{seen.name}[{t}] = {at}"))
        if r.random() < 0.3:
            other = self.zeros(r.choice(["int32", "int64", "float32"]), (size,))
            told_too = r.choice(["", ", return_prev=True"])
            after.append(Stmt(f"T.atomic_add({other.name}[1], 1{told_too})"))
        if whilst:
            ask_again = [*before, Stmt(f"{t} = {ask}", fixed=True)]
            begin = Stmt(f'{t} = T.alloc_var("{kind}", init=0)', fixed=True)
            loop_stmt = Stmt(f"while {t} < {tiles}:", body=(*inside, *after, *ask_again),
                             effect=("loop", str(tiles)))  # fmt: skip
            return [Stmt("", body=(*body, begin, *ask_again, loop_stmt))]
        ask_one = Stmt(f"{t} = {ask}", fixed=True)
        loop_stmt = Stmt(f"for {loop} in T.serial({{trip}}):", params={"trip": str(most)},
                         body=(*before, ask_one, *inside, *after),
                         effect=("loop", str(most)))  # fmt: skip
        return [*body, loop_stmt]

    # ── running reductions ───────────────────────────────────────────────────────────────────

    def scene_rows(self) -> Launch:
        """A maximum, a sum and a tile that are kept up to date from turn to turn, as attention and
        normalization do; either dimension is reduced."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        reel = self.reel(b)
        k = self.fresh("k")
        b.loops.append(Index(k, self.one(), reel.most + 1))
        aligned = r.random() < 0.6
        dtype = self.kind_of()
        shape = self.ring_shape(dtype, 2) if aligned else self.plane()
        wide = "float32" if is_float(dtype) else "int32"
        stream = self.stream(b, reel, shape, dtype)
        work = [stream.copy(k)]
        x = self.tile(b, shape, wide, r.choice(["fragment", "fragment", "shared"]))
        work.append(self.each(b, x, "{0}", self.read(stream.tile, "<i>, <j>", wide)))
        dim = r.choice([0, 1, 1])
        line = (shape[1 - dim],)
        mark = "<j>" if dim == 0 else "<i>"
        now, old, scale, part = (self.tile(b, line, wide, "fragment") for _ in range(4))
        total = self.cleared(b, body, line, wide, r.choice(["fragment", "fragment", "shared"]))
        best = self.cleared(b, body, line, wide, r.choice(["fragment", "fragment", "shared"]))
        op = r.choice(["max", "max", "min"])
        work.append(self.moved(best, old))
        if r.random() < 0.5:
            work.append(Stmt(f"T.reduce_{op}({x.name}, {best.name}, dim={dim}, clear=False)",
                             effect=("most", x.name, best.name, False)))  # fmt: skip
        else:
            work.append(Stmt(f"T.reduce_{op}({x.name}, {now.name}, dim={dim})",
                             effect=("most", x.name, now.name, True)))  # fmt: skip
            work.append(self.each(b, best, f"T.{op}({{0}}, {{1}})", self.read(old, "<i>"),
                                  self.read(now, "<i>"), size=8.0))  # fmt: skip
        grow = "T.clamp({0} - {1} + 2, 0, 2)" if self.exact else "T.exp2(T.max({0} - {1}, -8))"
        if not self.exact and op == "min":
            grow = "T.exp2(T.max({1} - {0}, -8))"
        work.append(self.each(b, scale, grow, self.read(old, "<i>"), self.read(best, "<i>"),
                              size=2.0))  # fmt: skip
        work.append(self.each(b, x, grow, self.read(x, "<i>, <j>"), self.read(best, mark),
                              size=2.0))  # fmt: skip
        if r.random() < 0.3:
            work.append(self.scanned(b, x, dim))
        work.append(Stmt(f"T.reduce_sum({x.name}, {part.name}, dim={dim})",
                         effect=("sum", x.name, part.name, shape[dim], True)))  # fmt: skip
        fold = "(({0} * {1} + {2}) % 61)" if self.exact else "({0} * {1} + {2})"
        size = 61.0 if self.exact else 1.0
        work.append(self.each(b, total, fold, self.read(total, "<i>"), self.read(scale, "<i>"),
                              self.read(part, "<i>"), size=size))  # fmt: skip
        if r.random() < 0.7:
            acc = self.cleared(b, body, shape, wide, r.choice(["fragment", "fragment", "shared"]))
            work.append(self.each(b, acc, fold, self.read(acc, "<i>, <j>"), self.read(scale, mark),
                                  self.read(x, "<i>, <j>"), size=size))  # fmt: skip
            if r.random() < 0.4:
                done = self.each(b, acc, "({0} + {1})", self.read(acc, "<i>, <j>"),
                                 self.read(total, mark))  # fmt: skip
                body += self.around(b, [self.looped(reel, work, k)])
                return self.launched(b, [*body, done])
        b.loops.pop()
        body += self.around(b, [self.looped(reel, work, k)])
        return self.launched(b, body)

    def scanned(self, b: Block, x: Tile, dim: int) -> Stmt:
        words = f"{x.name}, dim={self.r.choice([dim, 1 - dim])}"
        words += ", reverse=True" * (self.r.random() < 0.3)
        return Stmt(f"T.cummax({words})", effect=("most", x.name, x.name, True))


class _Chain:
    """Loops over streams of products; the tiles are the same in all of them."""

    def __init__(self, s: Flows, b: Block, body: list[Stmt]) -> None:
        self.s, self.b, self.body = s, b, body
        self.kind, self.sums = s.factor()
        r = s.r
        self.m, self.k = s.left_shape(self.kind, b)
        small = s.v.extent(self.m) < 32 or self.kind == "float32"
        self.n = s.size(r.choice([16, 8, 20]) if small else r.choice([16, 32, 64, 64]))
        self.turned = r.random() < 0.35
        self.reel = s.reel(b)
        self.packed = self.kind in ("float16", "bfloat16") and r.random() < 0.45
        self.a = s.stream(b, self.reel, (self.m, self.k), self.kind)
        shape = (self.n, self.k) if self.turned else (self.k, self.n)
        self.b2 = s.stream(b, self.reel, shape, "int8" if self.packed else self.kind)
        self.right = s.tile(b, shape, self.kind, "shared") if self.packed else self.b2.tile
        self.c = s.cleared(b, body, (self.m, self.n), self.sums, "fragment")
        self.scales: Tensor | None = None

    def loop(self) -> Stmt:
        s, r = self.s, self.s.r
        k = s.fresh("k")
        s_trip = self.reel
        if r.random() < 0.4:
            s_trip = Reel(str(r.choice([0, 1, 2, 3])), max(self.reel.most, 3), [])
        self.b.loops.append(Index(k, s.one(), s_trip.most + 1))
        work = [self.a.copy(k), self.b2.copy(k)]
        if r.random() < 0.3:
            work.reverse()
        if self.packed:
            work.append(self.unpacked(k))
        steps = [self.step(k) for _ in range(r.choice([1, 1, 1, 2]))]
        work += [x for step in steps for x in step]
        self.b.loops.pop()
        return s.looped(s_trip, work, k)

    def unpacked(self, k: str) -> Stmt:
        value = self.s.read(self.b2.tile, "<i>, <j>", self.kind)
        return self.s.each(self.b, self.right, "{0}", value)

    def product(self, c: Tile, clear: bool = False) -> Stmt:
        return self.s.times(self.a.tile, self.right, c, self.k, self.turned, clear)

    def step(self, k: str) -> list[Stmt]:
        """What is done with the tiles of a turn."""
        s, b, r = self.s, self.b, self.s.r
        kind = s.favour(
            add=3, fold=2.5, scaled=2, chained=2.5 * (self.kind != "float32"), guarded=1.5,
            between=1.5 + 3 * self.packed, vector=1,
        )  # fmt: skip
        match kind:
            case "fold" | "scaled" | "vector":
                clear = r.random() < 0.6
                p = s.tile(b, (self.m, self.n), self.sums, "fragment")
                found = [] if clear else [s.emptied(p)]
                found.append(self.product(p, clear))
                got = s.read(p, "<i>, <j>")
                if kind == "scaled":
                    rows = r.random() < 0.5
                    shape = (s.size(self.reel.most + 5), self.m if rows else self.n)
                    scales = s.tensor(self.sums, shape, "A")
                    by = s.read(scales, f"{k}, {'<i>' if rows else '<j>'}")
                    got = Ex("mul", self.sums, "({0} * {1})", (got, by))
                elif kind == "vector":
                    line = s.tile(b, (self.m,), self.sums, "fragment")
                    found.append(Stmt(f"T.reduce_max({p.name}, {line.name}, dim=1)",
                                      effect=("most", p.name, line.name, True)))  # fmt: skip
                    got = Ex("add", self.sums, "({0} - {1})", (got, s.read(line, "<i>")))
                total = self.c if r.random() < 0.4 else s.cleared(
                    b, self.body, (self.m, self.n), self.sums,
                    r.choice(["fragment", "fragment", "shared"]),
                )  # fmt: skip
                return [*found, s.kept(b, total, got)]
            case "chained":
                return self.chained(k)
            case "guarded":
                cond = r.choice([f"{k} % 2 == 0", f"{k} > 0", f"{b.axes[0].name} == 0"])
                other = s.cleared(b, self.body, (self.m, self.n), self.sums, "fragment")
                return [Stmt(f"if {cond}:", body=(self.product(other),)), self.product(self.c)]
            case "between":  # the tile is multiplied, written again, and multiplied again
                other = s.cleared(b, self.body, (self.m, self.n), self.sums, "fragment")
                value = Ex("cap", self.kind, "({0} % 3)" if s.exact else "T.tanh({0})",
                           (s.read(self.right, "<i>, <j>"),), 3.0)  # fmt: skip
                if self.packed and r.random() < 0.5:
                    value = s.small(s.read(self.b2.tile, "<i>, <j>", self.kind), self.kind)
                again = [self.product(other), s.each(b, self.right, "{0}", value)]
                if r.random() < 0.5:
                    again = [Stmt(f"if {k} % 2 == 0:", body=tuple(again))]
                elif r.random() < 0.4:
                    n = str(r.choice([1, 2]))
                    again = [Stmt(f"for {s.fresh('q')} in T.serial({n}):", body=tuple(again),
                                  effect=("loop", n))]  # fmt: skip
                return [*again, self.product(self.c)]
        return [self.product(self.c)]

    def chained(self, k: str) -> list[Stmt]:
        """A product, small again, by way of registers or shared memory into another one."""
        s, b, r = self.s, self.b, self.s.r
        p = s.tile(b, (self.m, self.n), self.sums, "fragment")
        held = s.tile(b, (self.m, self.n), self.kind, r.choice(["fragment", "shared"]))
        wide = s.size(r.choice([16, 32, 64]))
        if r.random() < 0.6 and s.v.extent(self.n) * s.v.extent(wide) >= 128:
            stream = s.stream(b, self.reel, (self.n, wide), self.kind)
            load, other = [stream.copy(k)], stream.tile
        else:
            load, other = [], s.loaded(b, self.body, (self.n, wide), self.kind, "shared")
        out = s.cleared(b, self.body, (self.m, wide), self.sums, "fragment")
        value = s.small(s.read(p, "<i>, <j>"), self.kind)
        if r.random() < 0.3:
            value = s.guarded(f"<i> >= <j> - {k}", value)
        found = [self.product(p, True), s.each(b, held, "{0}", value), *load]
        if r.random() < 0.3:  # the sum so far is scaled first
            old = s.read(out, "<i>, <j>")
            found.append(s.each(b, out, "{0}", s.small(old, self.sums)))
        found.append(s.times(held, other, out, self.n, False))
        return found

    def between(self) -> Stmt:
        """Between loops the sum is looked at, or the tiles are."""
        s, b, r = self.s, self.b, self.s.r
        if r.random() < 0.5:
            return s.each(b, self.c, "{0}", s.small(s.read(self.c, "<i>, <j>"), self.sums))
        one = number(1, self.kind)
        return s.each(b, self.a.tile, "{0}", one)
