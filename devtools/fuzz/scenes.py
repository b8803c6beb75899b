"""Random kernels about one thing each: conditions, memory of several names, atomics, tensors that
end anywhere, and those of `fuzz_flows`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from devtools.fuzz.ports import Ports
from devtools.fuzz.recipe import Ex, Launch, Stmt, Tensor, Tile, is_float
from devtools.fuzz.rings import Reel
from devtools.fuzz.values import Index, Site, number
from devtools.fuzz.workshop import Block


@dataclass(frozen=True)
class Cell:
    """A buffer and the element of it that an iteration owns; `<i>` … are its indices."""

    of: Tensor | Tile
    place: str

    def at(self, points: list[Index]) -> str:
        text = self.place
        for mark, point in zip("ijk", points, strict=False):
            text = text.replace(f"<{mark}>", point.name)
        return text


class Scenes(Ports):
    """All scenes."""

    def scene(self, kind: str) -> Launch:
        return SCENES[kind](self)

    # ── branches ─────────────────────────────────────────────────────────────────────────────

    def scene_branches(self) -> Launch:
        """Maps that read and, on conditions, write elements that are theirs: of tensors, of
        tiles, under one name or two."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        streamed = r.random() < 0.4
        shape = self.plane(r.choices([1, 2, 3], [1, 6, 1])[0])
        cells = [c for _ in range(r.choice([1, 2, 2, 3, 3])) for c in self.cells(b, body, shape)]
        b.inputs = [
            self.tensor(self.kind_of(), self.plane(2), "B") for _ in range(r.choice([0, 1]))
        ]
        k = self.fresh("k")
        if not streamed:
            maps = [self.branching(b, shape, cells) for _ in range(r.choice([1, 1, 2, 3]))]
            return self.launched(b, [*body, *self.around(b, maps)])
        reel = self.reel(b)
        dtype = self.kind_of()
        stream = self.stream(b, reel, shape if len(shape) < 3 else (shape[0], shape[2]), dtype)
        if len(shape) < 3:
            own = ", ".join(f"<{m}>" for m in "ijk"[: len(shape)])
            cells = [*cells, Cell(stream.tile, own)]
        b.loops.append(Index(k, self.one(), reel.most + 1))
        b.ready.add(stream.tile.name)
        work = [stream.copy(k)]
        work += [self.branching(b, shape, cells) for _ in range(r.choice([1, 1, 2]))]
        if r.random() < 0.7:
            wide = "float32" if is_float(dtype) else "int32"
            total = self.cleared(b, body, stream.tile.shape, wide)
            at = ", ".join(f"<{m}>" for m in "ij"[: len(total.shape)])
            work.append(self.kept(b, total, self.read(stream.tile, at, wide)))
        b.ready.discard(stream.tile.name)
        b.loops.pop()
        body += self.around(b, [self.looped(reel, work, k)])
        return self.launched(b, body)

    def cells(self, b: Block, body: list[Stmt], shape: tuple[str, ...]) -> list[Cell]:
        """A buffer of this shape, perhaps with another name for the same memory."""
        r = self.r
        dtype = self.kind_of()
        own = ", ".join(f"<{m}>" for m in "ijk"[: len(shape)])
        flat = "<i>"
        for mark, size in zip("jk", shape[1:], strict=False):
            flat = f"({flat} * {size} + <{mark}>)"
        total = self.size(1)
        self.sizes[total[1:]] = count = self.count(shape)
        where = self.v.pick(memory=4, shared=2, fragment=2)
        twice = r.random() < 0.45
        block = b.axes[0]
        if where == "memory":
            blocks = self.size(block.most + 1)
            tensor = self.tensor(dtype, (blocks, *shape), "D")
            found = [Cell(tensor, f"{block.name}, {own}")]
            if twice and r.random() < 0.5:
                all_of = self.size((block.most + 1) * count)
                seen = self.seen(b, tensor, (all_of,))
                found.append(Cell(seen, f"{block.name} * {total} + {flat}"))
            elif twice:
                found.append(Cell(self.seen(b, tensor, (blocks, total)), f"{block.name}, {flat}"))
            return found
        tile = self.loaded(b, body, shape, dtype, where)
        found = [Cell(tile, own)]
        if twice and where == "shared":
            found.append(Cell(self.seen(b, tile, (total,)), flat))
        return found

    def count(self, shape: tuple[str, ...]) -> int:
        found = 1
        for size in shape:
            found *= self.v.extent(size)
        return found

    def branching(self, b: Block, shape: tuple[str, ...], cells: list[Cell]) -> Stmt:
        """A map over all elements."""
        points = self.points(shape)
        site = Site(points, b.axes + b.loops, [], list(b.inputs), names=list(b.names))
        count = len(cells) if self.r.random() < 0.5 else self.r.randint(1, len(cells))
        some = self.r.sample(cells, count)
        for cell in some:
            site.same[cell.of.name] = cell.at(points)
            if isinstance(cell.of, Tile):
                site.tiles.append(cell.of)
            else:
                site.tensors.append(cell.of)
        if self.r.random() < 0.6:
            return Stmt(self.flat(points), body=tuple(self.plainly(site, some)))
        return Stmt(self.flat(points), body=tuple(self.branch(site, some, 2)))

    def plainly(self, site: Site, cells: list[Cell]) -> list[Stmt]:
        """Statements that vectors can take: some are taken, some stored, one or two on a
        condition."""
        r = self.r
        if len(cells) > 2 and r.random() < 0.4:
            # one is only read, one only written, and the third, which decides, is written, too
            given, asked, moved = (c.of for c in r.sample(cells, 3))
            found = [self.taken(site, given)]
            value = self.v.cast(site.names[-1], moved.dtype)
            effect = ("store", moved.name, False)
            move = Stmt(f"{moved.name}[{site.same[moved.name]}] = {{0}}", (value,), effect=effect)
            done = Stmt(f"{asked.name}[{site.same[asked.name]}] = {{0}}",
                        (number(r.randint(0, 1), asked.dtype),),
                        effect=("store", asked.name, False))  # fmt: skip
            both = (done, move) if r.random() < 0.7 else (move, done)
            return [*found, Stmt(f"if {self.asked(site, asked)}:", body=both)]
        found = []
        for cell in r.sample(cells, r.randint(0, len(cells))):
            found.append(self.taken(site, cell.of))
        for at in range(r.choice([1, 2, 2])):
            some = r.sample(cells, min(len(cells), 2))
            stores = tuple(self.put(site, c.of, False, cells) for c in some)
            if at or r.random() < 0.6:
                cond = self.asked(site, r.choice([*some, *cells]).of)
                found.append(Stmt(f"if {cond}:", body=stores))
            else:
                found += stores[:1]
        return found

    def taken(self, site: Site, cell: Tensor | Tile) -> Stmt:
        """What the element holds now has a name from here on."""
        name, place = self.fresh("y"), site.same[cell.name]
        value = Ex("read", cell.dtype, f"{cell.name}[{place}]", name=cell.name)
        site.names.append(Ex("read", cell.dtype, name, name=name))
        return Stmt(f"{name} = {{0}}", (value,), effect=("store", name, True))

    def asked(self, site: Site, cell: Tensor | Tile) -> str:
        """A condition on the element, or on where it is."""
        r = self.r
        where = self.v.where(site)
        if not self.exact or r.random() < 0.35:
            return where
        cond = f"{cell.name}[{site.same[cell.name]}] {r.choice(['>', '<', '==', '!=', '>='])} "
        cond += str(r.randint(0, 1))
        return f"{cond} {r.choice(['and', 'or'])} {where}" if r.random() < 0.15 else cond

    def branch(self, site: Site, cells: list[Cell], depth: int) -> list[Stmt]:
        """Statements of an iteration; what they bind holds for those that follow."""
        r = self.r
        site = replace(site, names=list(site.names))
        found: list[Stmt] = []
        for _ in range(r.choice([1, 2, 2, 3])):
            kind = self.favour(store=3, take=2, when=3.5 * bool(depth), loop=0.8 * bool(depth),
                               keep=0.8)  # fmt: skip
            cell = r.choice(cells).of
            match kind:
                case "take":
                    found.append(self.taken(site, cell))
                case "when":
                    cond = self.asked(site, cell)
                    other = self.branch(site, cells, depth - 1) if r.random() < 0.4 else []
                    found.append(Stmt(f"if {cond}:", orelse=tuple(other),
                                      body=tuple(self.branch(site, cells, depth - 1))))  # fmt: skip
                case "loop":
                    n, name = r.choice([0, 1, 2, 3]), self.fresh("q")
                    inner = replace(site, uniform=[*site.uniform, Index(name, str(n), max(n, 1))])
                    word = r.choice(["serial", "serial", "unroll"])
                    turn = tuple(self.branch(inner, cells, depth - 1))
                    params = {"trip": str(n)}
                    found.append(Stmt(f"for {name} in T.{word}({{trip}}):", params=params,
                                      body=turn, effect=("loop", str(n))))  # fmt: skip
                case _:
                    found.append(self.put(site, cell, kind == "keep"))
        if depth == 2 or r.random() < 0.8:
            found.append(self.put(site, r.choice(cells).of, False))
        return found

    def put(
        self, site: Site, cell: Tensor | Tile, keep: bool, cells: list[Cell] | None = None
    ) -> Stmt:
        """A store to the element, often of what was taken before, or of what one of `cells` holds
        now."""
        r = self.r
        place = site.same[cell.name]
        value = self.v.value(cell.dtype, site, 1)
        if cells and r.random() < 0.5:
            other = r.choice(cells).of
            text = f"{other.name}[{site.same[other.name]}]"
            value = self.v.cast(Ex("read", other.dtype, text, name=other.name), cell.dtype)
        elif site.names and r.random() < 0.5:
            value = self.v.cast(r.choice(site.names), cell.dtype)
            if r.random() < 0.4:
                value = Ex("add", cell.dtype, "({0} + {1})", (value, number(1, cell.dtype)))
        if keep:
            old = Ex("read", cell.dtype, f"{cell.name}[{place}]", name=cell.name)
            value = Ex("most", cell.dtype, "T.max({0}, {1})", (old, value))
        return Stmt(f"{cell.name}[{place}] = {{0}}", (value,), effect=("store", cell.name, False))

    # ── one memory, several names ────────────────────────────────────────────────────────────

    def scene_views(self) -> Launch:
        """Tiles and tensors under several shapes, in a loop that streams them."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        reel = self.reel(b)
        k = self.fresh("k")
        b.loops.append(Index(k, self.one(), reel.most + 1))
        dtype = self.kind_of()
        shape = self.ring_shape(dtype, 2) if r.random() < 0.7 else self.plane()
        work, tile, names = self.named(b, body, reel, shape, dtype, k)
        for _ in range(r.choice([1, 2, 2])):
            work += self.through(b, body, reel, names, k)
        if r.random() < 0.3 and dtype in ("float16", "bfloat16"):
            self.multiplied(b, body, work, reel, tile, k)
        b.loops.pop()
        body += self.around(b, [self.looped(reel, work, k)])
        return self.launched(b, body)

    def named(
        self, b: Block, before: list[Stmt], reel: Reel, shape: tuple[str, ...], dtype: str, k: str
    ) -> tuple[list[Stmt], Tile, list[Tile]]:
        """A tile of several names, filled by one of them, from a tensor by one of its."""
        r = self.r
        count = self.count(shape)
        total = self.size(count)
        rows = [f for f in (1, 2, 4, 8, 16, 32) if count % f == 0]
        other = (self.size(n := r.choice(rows)), self.size(count // n))
        tile = self.tile(b, shape, dtype, "shared")
        names = [tile, self.seen(b, tile, (total,)), self.seen(b, tile, other)]
        into = r.choice(names)
        turns = max(reel.most, 1) + 1
        form = self.v.pick(tensor=2, seen=2)
        if form == "tensor":
            tensor = self.tensor(dtype, (self.size(turns), *into.shape), "A")
            source, place = tensor.name, ", ".join([k, *("0" for _ in into.shape)])
        else:
            tensor = self.tensor(dtype, (self.size(turns * count),), "A")
            lead = self.size(turns * self.v.extent(into.shape[0]))
            seen = self.seen(b, tensor, (lead, *into.shape[1:]))
            source = seen.name
            if len(into.shape) == 2 and r.random() < 0.25:  # as wide as a scalar says
                b.tiles.remove(seen)
                wide = self.fresh("x")
                shape_of = f"({tensor.shape[0]} // {wide}, {wide})"
                b.tiles.append(Tile(wide, "var", (), "int32", init="1"))
                before += [
                    Stmt(f"{wide} = {into.shape[1]}", fixed=True),
                    Stmt(f'{source} = T.view({tensor.name}, {shape_of}, "{dtype}")', fixed=True),
                ]
            place = ", ".join([f"{k} * {into.shape[0]}", *("0" for _ in into.shape[1:])])
        copy = Stmt(f"T.copy({source}[{place}], {into.name})",
                    effect=("copy", tensor.name, into.name, True))  # fmt: skip
        return [copy], tile, names

    def through(
        self, b: Block, body: list[Stmt], reel: Reel, names: list[Tile], k: str
    ) -> list[Stmt]:
        """Something that reads or writes the tile by one of its names."""
        r = self.r
        one = r.choice(names)
        wide = "float32" if is_float(one.dtype) else "int32"
        own = ", ".join(f"<{m}>" for m in "ij"[: len(one.shape)])
        kind = self.favour(kept=3, out=2, write=1.5, reduce=1, use=1.5)
        if kind == "out":
            return self.out_and_back(b, one, k)
        if kind == "write":  # by one name, to be read by another
            value = self.small(self.read(one, own), one.dtype)
            map_ = self.each(b, one, "{0}", value)
            cond = r.choice(["", "", f"{k} % 2 == 0"])
            return [Stmt(f"if {cond}:", body=(map_,)) if cond else map_]
        if kind == "reduce" and len(one.shape) == 2:
            dim = r.randrange(2)
            line = self.tile(b, (one.shape[1 - dim],), one.dtype, r.choice(["fragment", "shared"]))
            total = self.cleared(b, body, line.shape, wide)
            word = Stmt(f"T.reduce_max({one.name}, {line.name}, dim={dim})",
                        effect=("most", one.name, line.name, True))  # fmt: skip
            return [word, self.kept(b, total, self.read(line, "<i>", wide))]
        if kind == "use":
            b.ready.add(names[0].name)
            found = self.ring_use(b, reel, one, k, body)
            b.ready.discard(names[0].name)
            return found
        total = self.cleared(b, body, one.shape, wide)
        return [self.kept(b, total, self.read(one, own, wide))]

    def out_and_back(self, b: Block, tile: Tile, k: str) -> list[Stmt]:
        """An output of two names: written by one, read by the other, in one map or in two."""
        r = self.r
        block = b.axes[0]
        blocks = self.size(block.most + 1)
        out = self.tensor(tile.dtype, (blocks, *tile.shape), "O")
        count = self.size(self.count(tile.shape))
        seen = self.seen(b, out, (blocks, count))
        points = self.points(tile.shape)
        at = ", ".join(p.name for p in points)
        flat = points[0].name
        if len(points) == 2:
            flat = f"{points[0].name} * {tile.shape[1]} + {points[1].name}"
        places = {out.name: f"{block.name}, {at}", seen.name: f"{block.name}, {flat}"}
        first, second = r.sample(list(places), 2)
        mine = Ex("read", tile.dtype, f"{tile.name}[{at}]", name=tile.name)
        old = Ex("read", tile.dtype, f"{second}[{places[second]}]", name=out.name)
        total = Ex("cap", tile.dtype, "(({0} * 2 + {1}) % 7)", (old, mine), 7)
        if not self.exact:
            total = Ex("most", tile.dtype, "({0} * 0.5 + {1})", (old, mine))
        store = Stmt(f"{first}[{places[first]}] = {{0}}", (total,),
                     effect=("store", out.name, False))  # fmt: skip
        if r.random() < 0.5:
            return [Stmt(self.flat(points), body=(store,))]
        plain = replace(store, exprs=(mine,))
        again = Ex("read", tile.dtype, f"{second}[{places[second]}]", name=out.name)
        copy = self.tensor(tile.dtype, (blocks, *tile.shape), "O")
        back = Stmt(f"{copy.name}[{block.name}, {at}] = {{0}}", (again,),
                    effect=("store", copy.name, False))  # fmt: skip
        if r.random() < 0.5:
            return [Stmt(self.flat(points), body=(plain, back))]
        return [Stmt(self.flat(points), body=(plain,)), Stmt(self.flat(points), body=(back,))]

    # ── atomics ──────────────────────────────────────────────────────────────────────────────

    def scene_counters(self) -> Launch:
        """Atomics whose order cannot show: sums and extremes of elements and tiles, numbers that
        are drawn and written to the place they name."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        reel = self.reel(b)
        k = self.fresh("k")
        b.loops.append(Index(k, self.one(), reel.most + 1))
        dtype = r.choice(["int32", "float32", "int32", "float16"])
        shape = self.ring_shape(dtype) if r.random() < 0.6 else self.plane(r.choice([1, 2]))
        stream = self.stream(b, reel, shape, dtype)
        b.ready.add(stream.tile.name)
        tile = stream.tile
        work = [stream.copy(k)]
        if r.random() < 0.5:
            tile = self.tile(b, shape, dtype, "fragment")
            work.append(self.moved(stream.tile, tile))
        for _ in range(r.choice([1, 1, 2])):
            work += self.counted(b, body, reel, tile, k)
        b.ready.discard(stream.tile.name)
        b.loops.pop()
        body += self.around(b, [self.looped(reel, work, k)])
        return self.launched(b, body)

    def counted(self, b: Block, body: list[Stmt], reel: Reel, tile: Tile, k: str) -> list[Stmt]:
        r = self.r
        turns = (b.axes[0].most + 1) * 4
        points = self.points(tile.shape)
        at = ", ".join(p.name for p in points)
        mine = Ex("read", tile.dtype, f"{tile.name}[{at}]", name=tile.name)
        bucket = f'(T.cast({tile.name}[{at}], "int32") % 4)'
        op = r.choice(["add", "add", "max", "min"])
        wide = "int32" if tile.dtype == "int32" else "float32"
        kind = self.favour(tile=2, element=2, drawn=3, shared=2, bulk=0.7)
        if kind in ("tile", "bulk") and tile.dtype == wide and self.exact:
            out = self.zeros(wide, tile.shape, "O")
            zeros = ", ".join("0" for _ in tile.shape)
            more = ", use_tma=True" if kind == "bulk" and tile.space == "shared" else ""
            op = "add" if more else op
            effect = ("sum", tile.name, out.name, str(turns), False)
            if op != "add":
                effect = ("most", tile.name, out.name, False)  # type: ignore[assignment]
            return [Stmt(f"T.atomic_{op}({out.name}[{zeros}], {tile.name}{more})", effect=effect)]
        if kind == "drawn" and self.exact:
            # each bucket's numbers are drawn in any order, and all of them are
            per = self.size(self.count(tile.shape) * (reel.most + 1) * turns)
            counter = self.zeros("int32", (self.size(4),))
            out = self.zeros("int32", (self.size(4), per), "O")
            name = self.fresh("y")
            draw = Stmt(f"{name} = T.atomic_add({counter.name}[{bucket}], 1, return_prev=True)",
                        fixed=True)  # fmt: skip
            store = Stmt(f"{out.name}[{bucket}, {name}] = {bucket} + 1", fixed=True)
            inner: tuple[Stmt, ...] = (draw, store)
            if r.random() < 0.4:
                inner = (Stmt(f"if {mine} > 0:", body=inner),)
            return [Stmt(self.flat(points), body=inner)]
        value = self.v.cast(mine, wide)
        if kind == "shared":
            where = self.cleared(b, body, (self.size(4),), wide, "shared")
            times = self.count(tile.shape) * (reel.most + 1) * 3
            grows = ("bump", where.name, times) if op == "add" else ("store", where.name, False)
            store = Stmt(f"T.atomic_{op}({where.name}[{bucket}], {{0}})", (value,), effect=grows)
            if not self.exact:
                return []
            found = [Stmt(self.flat(points), body=(store,))]
            if r.random() < 0.5:  # what has come together so far
                total = self.cleared(b, body, where.shape, wide)
                found.append(self.kept(b, total, self.read(where, "<i>")))
            return found
        if not self.exact:
            return []
        counter = self.zeros(wide, (self.size(5),))
        body_of = Stmt(f"T.atomic_{op}({counter.name}[{bucket}], {{0}})", (value,),
                       effect=("bump", counter.name, self.count(tile.shape) * turns))  # fmt: skip
        if r.random() < 0.4:
            body_of = Stmt(f"if {self.v.where(self.site(b, points))}:", body=(body_of,))
        return [Stmt(self.flat(points), body=(body_of,))]

    # ── tensors that end anywhere ────────────────────────────────────────────────────────────

    def scene_ends(self) -> Launch:
        """Tensors of one row whose sizes, known at launch, are around those of tiles and vectors:
        moved by maps and by copies, under guards that say what their ends do or something else."""
        r = self.r
        b, body = self.setting(), list[Stmt]()
        tile = r.choice([64, 128, 256, 512, 1024, 96])
        ends = [self.ending(tile, b.axes[0].most + 1) for _ in range(r.choice([1, 1, 2]))]
        for _ in range(r.choice([1, 2, 2, 3])):
            body += self.up_to(b, self.size(tile), ends)
        return self.launched(b, body)

    def ending(self, tile: int, blocks: int) -> str:
        """A size known at launch: of a part of a vector, a tile, or all tiles, and about that."""

        def draw() -> int:
            near = self.r.choice([0, 8, tile, tile * blocks, tile * (blocks - 1)])
            return max(1, near + self.r.choice([-9, -1, 0, 0, 1, 3, 7, 8]))

        name = f"m{len(self.dynamic)}"
        self.dynamic[name] = [draw() for _ in range(self.cases)]
        self.sizes[name] = max(self.dynamic[name])
        return f"${name}"

    def up_to(self, b: Block, width: str, ends: list[str]) -> list[Stmt]:
        """A tile of elements from tensors into one."""
        r = self.r
        kind, first = self.kind_of(), f"{b.axes[0].name} * {width}"
        news = [self.tensor(kind, (r.choice(ends),), "A") for _ in range(r.choice([1, 2]))]
        out = self.tensor(r.choice([kind, kind, self.kind_of()]), (r.choice(ends),), "O")
        if r.random() < 0.35:
            held = self.tile(b, (width,), kind, r.choice(["fragment", "fragment", "shared"]))
            load = Stmt(f"T.copy({news[0].name}[{first}], {held.name})",
                        effect=("copy", news[0].name, held.name, True))  # fmt: skip
            store = Stmt(f"T.copy({held.name}, {out.name}[{first}])",
                         effect=("copy", held.name, out.name, False))  # fmt: skip
            return [load, store]
        (point,) = self.points((width,))
        at = f"{first} + {point.name}"
        shift = r.choice(["", "", "", " + 8", " - 8", " - 1", " + 3"])
        kids = [self.read(a, at + r.choice(["", "", shift]), out.dtype) for a in news]
        sums = " + ".join(f"{{{n}}}" for n in range(len(kids)))
        value = Ex("add", out.dtype, f"({sums})", tuple(kids))
        end = out.shape[0]
        asked = r.choice([
            "", "", f"{at} < {end}", f"{at} < {end}", f"{at} <= {end} - 1", f"{at} < {end} - 1",
            f"{at} < {r.choice(ends)}", f"({at} < {end}) & ({self.scalar()} > 1)",
        ])  # fmt: skip
        if asked and r.random() < 0.3:
            value, asked = self.guarded(asked, value), ""
        store = Stmt(f"{out.name}[{at}{r.choice(['', '', shift])}] = {{0}}", (value,),
                     effect=("store", out.name, False))  # fmt: skip
        inner = Stmt(f"if {asked}:", body=(store,)) if asked else store
        return [Stmt(self.flat([point]), body=(inner,))]


SCENES: dict[str, Callable[[Scenes], Launch]] = {
    "branches": Scenes.scene_branches,
    "views": Scenes.scene_views,
    "counters": Scenes.scene_counters,
    "gathers": Scenes.scene_gathers,
    "chains": Scenes.scene_chains,
    "tickets": Scenes.scene_tickets,
    "rows": Scenes.scene_rows,
    "ends": Scenes.scene_ends,
    "ports": Scenes.scene_ports,
}
