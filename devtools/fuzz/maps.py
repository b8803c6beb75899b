"""Random elementwise maps, atomics and thread-level code.

The iterations of a map write distinct elements and read the tile they write at that same element
only.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from devtools.fuzz.recipe import Ex, Stmt, Tile, is_float
from devtools.fuzz.values import Index, Site, number
from devtools.fuzz.workshop import Block, Part, Workshop


class Maps(Workshop):
    """`T.Parallel`, atomics, threads."""

    def a_map(self, b: Block) -> Stmt | None:
        tile = self.any_tile(b)
        return self.map(b, tile) if tile else None

    def points(self, extents: tuple[str, ...]) -> list[Index]:
        names = self.r.sample("ijklpq", len(extents))
        return [Index(n, e, self.v.extent(e) - 1) for n, e in zip(names, extents, strict=True)]

    def header(self, points: list[Index]) -> str:
        r = self.r
        order = list(points) if r.random() < 0.85 else r.sample(points, len(points))
        if len(order) > 1 and r.random() < 0.1:
            outer, inner = order[:1], order[1:]
            return "\n".join(
                f"{'    ' * at}for {', '.join(p.name for p in some)} in "
                f"T.Parallel({', '.join(p.extent for p in some)}):"
                for at, some in enumerate((outer, inner))
            )
        names = ", ".join(p.name for p in order)
        return f"for {names} in T.Parallel({', '.join(p.extent for p in order)}):"

    def map(self, b: Block, tile: Tile, whole: bool = False) -> Stmt:
        """A map that writes a tile, each iteration one element."""
        r = self.r
        if len(tile.shape) > 1 and r.random() < 0.15 and tile.dtype != "bool":
            return self.rows(b, tile, whole)
        points = self.points(tile.shape)
        place = ", ".join(self.bijection(p) for p in points)
        site = self.site(b, points)
        self.written(b, site, tile, place)
        store = self.stores(b, site, tile.name, tile.dtype, place, whole)
        head = self.header(points)
        if "\n" in head:
            outer, inner = head.split("\n")
            return Stmt(outer, body=(Stmt(inner.strip(), body=tuple(store)),))
        if len(store) == 1 and not store[0].body and r.random() < 0.25:
            other = self.any_tile(b)  # one more tile of that shape, written by the same map
            fits = other and other.shape == tile.shape
            if other and fits and self.root(b, other) != self.root(b, tile):
                plain = ", ".join(p.name for p in points)
                self.written(b, site, other, plain)
                for name in (tile.name, other.name):
                    if name == tile.name and place != plain:
                        site.same.pop(name, None)
                        site.banned.add(name)
                if other.name not in str(store[0].exprs[0]):
                    value = self.v.value(other.dtype, site)
                    effect = ("store", other.name, False)
                    store.append(Stmt(f"{other.name}[{plain}] = {{0}}", (value,), effect=effect))
        return Stmt(head, body=tuple(store))

    def rows(self, b: Block, tile: Tile, whole: bool) -> Stmt:
        """Each iteration writes a row one element after the other, and may read what it wrote."""
        r = self.r
        points = self.points(tile.shape)
        at = r.randrange(len(points))
        along = points[at]
        others = [p for p in points if p is not along]
        names = [p.name for p in points]
        place = ", ".join(names)
        site = self.site(b, points)
        self.written(b, site, tile, place)
        value = self.v.value(tile.dtype, site, 1)
        if self.ready(b, tile) and not whole and r.random() < 0.6:
            names[at] = r.choice([
                f"T.max({along.name} - 1, 0)", f"({along.name} + 1) % {along.extent}",
                f"{along.extent} - 1 - {along.name}", "0",
            ])  # fmt: skip
            before = Ex("read", tile.dtype, f"{tile.name}[{', '.join(names)}]", name=tile.name)
            value = Ex("cap", tile.dtype, "(({0} + {1}) % 5)", (before, value), 5)
            if not self.exact and is_float(tile.dtype):
                value = Ex("most", tile.dtype, "T.max({0}, {1})", (before, value.kids[1]))
        store = Stmt(f"{tile.name}[{place}] = {{0}}", (value,), effect=("store", tile.name, whole))
        word = r.choice(["T.serial", "T.serial", "range", "T.unroll"])
        loop = Stmt(f"for {along.name} in {word}({along.extent}):", body=(store,),
                    effect=("loop", along.extent), fixed=True)  # fmt: skip
        return Stmt(self.flat(others), body=(loop,))

    def bijection(self, p: Index) -> str:
        r = self.r
        form = r.choices(["plain", "back", "turn"], [10, 1, 1])[0]
        if form == "back":
            return f"{p.extent} - 1 - {p.name}"
        if form == "turn" and p.most > 0:
            return f"({p.name} + {r.randint(1, p.most)}) % {p.extent}"
        return p.name

    def stores(
        self, b: Block, site: Site, name: str, dtype: str, place: str, whole: bool
    ) -> list[Stmt]:
        """What an iteration does, ending in a store to name[place]."""
        r, v = self.r, self.v
        target = f"{name}[{place}]"
        store = Stmt(f"{target} = {{0}}", (v.value(dtype, site),), effect=("store", name, whole))
        form = v.pick(plain=5, guard=2 * (not whole), loop=1.2, bound=1, local=0.8, update=1)
        if form == "guard":
            cond = v.condition(site)
            other: tuple[Stmt, ...] = ()
            if r.random() < 0.4:
                value = v.value(dtype, site, 1)
                other = (Stmt(f"{target} = {{0}}", (value,), effect=("store", name, False)),)
            store = replace(store, effect=("store", name, False))
            return [Stmt(f"if {cond}:", body=(store,), orelse=other)]
        if form == "update" and name in site.same and not whole and dtype != "bool":
            value = v.value(dtype, site, 1)
            op, kind = r.choice([("+", "add"), ("-", "add"), ("*", "mul")])
            old = Ex("read", dtype, target, name=name)
            if not self.exact and is_float(dtype):
                op, kind = "+", "add"
            total = Ex(kind, dtype, f"{{0}} {op} {{1}}", (old, value))
            text = f"{target} = {{0}}"
            return [Stmt(text, (total,), effect=("store", name, False))]
        if form == "bound":
            bound = self.fresh("y")
            value = v.value(dtype, site, 2)
            site.names.append(Ex("read", dtype, bound, name=bound))
            let = Stmt(f"{bound} = {{0}}", (value,), effect=("store", bound, True))
            again = v.value(dtype, site, 1)
            return [let, replace(store, exprs=(again,))]
        if form == "loop" and dtype != "bool":
            acc, k = self.fresh("a"), self.fresh("k")
            trips = r.randint(0, 4)
            index = Index(k, str(trips), max(trips - 1, 0))
            inner = replace(site, uniform=[*site.uniform, index], names=list(site.names))
            value = v.value(dtype, replace(inner, points=[*site.points, index]), 1)
            old = Ex("read", dtype, acc, name=acc)
            total = Ex("add", dtype, "{0} + {1}", (old, value))
            head = r.choice([f"for {k} in T.serial({{trip}}):", f"for {k} in range({{trip}}):",
                             f"for {k} in T.unroll({{trip}}):"])  # fmt: skip
            step = Stmt(f"{acc} = {{0}}", (total,), effect=("store", acc, True))
            loop = Stmt(head, params={"trip": trips}, body=(step,), effect=("loop", trips))
            begin = Stmt(
                f'{acc} = T.alloc_var("{dtype}", init=0)', effect=("fill", acc, 0, True), fixed=True
            )
            end = Stmt(f"{target} = {{0}}", (old,), effect=("store", name, whole), fixed=True)
            return [begin, loop, end]
        if form == "local" and dtype != "bool":
            loc, k, n = self.fresh("l"), self.fresh("k"), r.randint(2, 4)
            index = Index(k, str(n), n - 1)
            value = v.value(dtype, replace(site, points=[*site.points, index]), 1)
            begin = Stmt(f'{loc} = T.alloc_local(({n},), "{dtype}")', fixed=True)
            each = Stmt(f"{loc}[{k}] = {{0}}", (value,), effect=("store", loc, False))
            loop = Stmt(f"for {k} in T.serial({n}):", body=(each,), effect=("loop", str(n)))
            one = Ex("read", dtype, f"{loc}[{r.randrange(n)}]", name=loc)
            at = site.points[0].name if site.points else "0"
            two = Ex("read", dtype, f"{loc}[{at} % {n}]", name=loc)
            total = Ex("add", dtype, "({0} + {1})", (one, two))
            end = Stmt(f"{target} = {{0}}", (total,), effect=("store", name, whole))
            return [begin, loop, end]
        return [store]

    def a_map_out(self, b: Block) -> Stmt | None:
        parts = [p for p in b.parts if not p.tensor.scratch]
        return self.map_out(b, self.r.choice(parts)) if parts else None

    def map_out(self, b: Block, part: Part, whole: bool = False) -> Stmt:
        """A map that writes our part of an output."""
        points = self.points(part.extents)
        place = ", ".join(
            p.name if o == "0" else f"{o} + {p.name}"
            for o, p in zip(part.origins, points, strict=True)
        )
        site = self.site(b, points)
        site.banned.add(part.tensor.name)
        if not part.tensor.scratch:
            site.same[part.tensor.name] = place
            site.banned.discard(part.tensor.name)
            site.tensors.append(part.tensor)
        if whole:
            value = self.v.value(part.tensor.dtype, site)
            effect = ("store", part.tensor.name, False)
            store = [Stmt(f"{part.tensor.name}[{place}] = {{0}}", (value,), effect=effect)]
        else:
            store = self.stores(b, site, part.tensor.name, part.tensor.dtype, place, False)
        head = self.header(points)
        if "\n" in head:
            outer, inner = head.split("\n")
            return Stmt(
                outer, body=(Stmt(inner.strip(), body=tuple(store), fixed=True),), fixed=whole
            )
        return Stmt(head, body=tuple(store), fixed=whole)

    def a_count(self, b: Block) -> Stmt | None:
        """Atomics whose order cannot show."""
        r = self.r
        tensor, op = r.choice(b.counters)
        fits = [
            t for t in self.tiles_of(b) if t.dtype == "int32" and len(t.shape) == len(tensor.shape)
        ]
        if fits and r.random() < 0.4:
            tile = r.choice(fits)
            place = ", ".join(str(r.randrange(3)) for _ in tensor.shape)
            return Stmt(f"T.atomic_{op}({tensor.name}[{place}], {tile.name})")
        held = self.held_tile(b)
        points = self.points(held.shape if held else self.shape(r.choice([1, 2])))
        site = self.site(b, points)
        place = ", ".join(self.v.anywhere(s, site) for s in tensor.shape)
        value = self.v.value("int32", site, 1)
        if held:  # spread as that tile is, in several threads perhaps
            at = ", ".join(p.name for p in points)
            mine = Ex("read", held.dtype, f"{held.name}[{at}]", name=held.name)
            one = number(1, "int32")
            value = Ex("add", "int32", "({0} + {1})", (self.v.cast(mine, "int32"), one))
        body = Stmt(f"T.atomic_{op}({tensor.name}[{place}], {{0}})", (value,))
        if r.random() < 0.3:
            body = Stmt(f"if {self.v.condition(site)}:", body=(body,))
        return Stmt(self.header(points).split("\n")[0] if len(points) == 1 else self.flat(points),
                    body=(body,))  # fmt: skip

    def held_tile(self, b: Block) -> Tile | None:
        """A fragment, more often one that has fewer elements than the block has threads."""
        held = [t for t in self.tiles_of(b) if t.space == "fragment" and t.dtype != "bool"]
        if not held or self.r.random() < 0.3 or not self.exact:
            return None
        few = [t for t in held if prod(map(self.v.extent, t.shape)) < b.count]
        return self.r.choice(few if few and self.r.random() < 0.7 else held)

    def a_tally(self, b: Block) -> Stmt | None:
        """Atomics on a shared tile: iterations that meet."""
        r = self.r
        tiles = [
            t for t in b.tiles
            if t.space == "shared" and t.dtype == "int32" and not t.of and self.ready(b, t)
        ]  # fmt: skip
        if not tiles:
            return None
        tile = r.choice(tiles)
        held = self.held_tile(b)
        points = self.points(held.shape if held else self.shape(r.choice([1, 2])))
        site = self.site(b, points)
        self.written(b, site, tile, None)
        place = ", ".join(self.v.inside(s, site) for s in tile.shape)
        value = self.v.value("int32", site, 1)
        if held:
            at = ", ".join(p.name for p in points)
            mine = Ex("read", held.dtype, f"{held.name}[{at}]", name=held.name)
            value = Ex("most", "int32", "{0}", (self.v.cast(mine, "int32"),))
        op = r.choice(["add", "add", "max", "min"])
        body = Stmt(f"T.atomic_{op}({tile.name}[{place}], {{0}})", (value,),
                    effect=("fill", tile.name, 2**31, False))  # fmt: skip
        return Stmt(self.flat(points), body=(body,))

    def flat(self, points: list[Index]) -> str:
        names = ", ".join(p.name for p in points)
        return f"for {names} in T.Parallel({', '.join(p.extent for p in points)}):"

    def a_threads(self, b: Block) -> Stmt | None:
        """Each thread a value, passed on through shared memory, shuffles and locals."""
        r = self.r
        if b.depth or b.threads.startswith("("):
            return None
        count = self.size(b.count)
        tile = self.tile(
            b, (count,), r.choice(["int32", "float32"] if self.exact else ["float32"]), "shared"
        )
        out = self.tensor(
            tile.dtype, (*(self.size(a.most + 1) for a in b.axes), count), "O"
        )  # fmt: skip
        t, x, y = self.fresh("t"), self.fresh("x"), self.fresh("y")
        me = Index(t, count, b.count - 1)
        site = self.site(b, [me])
        site.tiles = [s for s in site.tiles if s.space == "shared"]
        self.written(b, site, tile, None)
        lines = [Stmt(f"{t} = T.get_thread_binding(0)", fixed=True)]
        put = Stmt(f"{tile.name}[{t}] = {{0}}", (self.v.value(tile.dtype, site, 1),),
                   effect=("store", tile.name, False))  # fmt: skip
        lines.append(put)
        if r.random() < 0.4:
            more = Stmt(f"{tile.name}[{t}] = {{0}}", (self.v.value(tile.dtype, site, 1),),
                        effect=("store", tile.name, False))  # fmt: skip
            lines.append(Stmt(f"if {self.v.where(site)}:", body=(more,)))
        lines.append(Stmt("T.sync_threads()", fixed=True))
        other = r.choice([f"({t} + {r.randint(1, 40)}) % {count}", f"{count} - 1 - {t}", t])
        got = Ex("read", tile.dtype, f"{tile.name}[{other}]", name=tile.name)
        lines.append(Stmt(f"{x} = {{0}}", (got,), effect=("store", x, True), fixed=True))
        word = self.v.pick(none=1, xor=2, up=1.5, down=1.5, sync=1.5, sum=1, max=1, local=1.5)
        now = Ex("read", tile.dtype, x, name=x)
        if word in ("xor", "up", "down", "sync"):
            shuffled = f"T.shfl_{word}({x}, {r.randint(0, 31)})"
            lines.append(Stmt(f"{y} = {shuffled}", effect=("copy", x, y, True)))
            now = Ex("read", tile.dtype, y, name=y)
        elif word in ("sum", "max"):
            effect = ("sum", tile.name, y, "32", True)
            lines.append(Stmt(f"{y} = T.warp_reduce_{word}({x})", effect=effect))
            now = Ex("read", tile.dtype, y, name=y)
        elif word == "local":
            k, n = self.fresh("k"), r.randint(2, 4)
            lines.append(Stmt(f'{y} = T.alloc_local(({n},), "{tile.dtype}")', fixed=True))
            index = Index(k, str(n), n - 1)
            value = self.v.value(tile.dtype, replace(site, points=[me, index]), 1)
            each = Stmt(f"{y}[{k}] = {{0}}", (value,), effect=("store", y, False))
            lines.append(Stmt(f"for {k} in T.serial({n}):", body=(each,), effect=("loop", str(n))))
            part = Ex("read", tile.dtype, f"{y}[({t} + 1) % {n}]", name=y)
            now = Ex("add", tile.dtype, "({0} + {1})", (now, part))
        blocks = ", ".join(a.name for a in b.axes)
        lines.append(Stmt(f"{out.name}[{blocks}, {t}] = {{0}}", (now,),
                          effect=("store", out.name, False)))  # fmt: skip
        lines.append(Stmt("T.sync_threads()", fixed=True))
        b.ready.add(tile.name)
        return Stmt("", body=tuple(lines))
