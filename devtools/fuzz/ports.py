"""Random kernels in the spellings of ports: regions smaller than their tile on each axis, views of
swizzled tiles, parts of fragments by turns, branches on the thread index, guards, reducers."""

from __future__ import annotations

from devtools.fuzz.flows import Flows
from devtools.fuzz.recipe import Launch, Stmt, Tile, is_float
from devtools.fuzz.workshop import Block

_SIDES = (16, 24, 32, 48, 64, 128)


class Ports(Flows):
    """What ported kernels lean on beside words."""

    def scene_ports(self) -> Launch:
        """Tiles that are filled from regions, seen under other shapes, and read part by part."""
        b, body = self.setting(), list[Stmt]()
        for _ in range(self.r.choice([1, 1, 2])):
            rows, columns = (self.r.choice(_SIDES) for _ in range(2))
            part = self.r.choice(
                [self.ported_region, self.ported_view, self.ported_turns, self.ported_branch]
            )
            body += part(b, rows, columns, self.kind_of())
        return self.launched(b, body)

    def ported_tile(self, b: Block, rows: int, columns: int, dtype: str, space: str) -> Tile:
        tile = self.tile(b, (self.size(rows), self.size(columns)), dtype, space)
        b.ready.add(tile.name)
        return tile

    def swizzle(self, tile: Tile) -> list[Stmt]:
        if tile.space != "shared" or self.r.random() < 0.4:
            return []
        layout = f"T.make_swizzled_layout({tile.name})"
        return [Stmt(f"T.annotate_layout({{{{{tile.name}: {layout}}}}})", fixed=True)]

    def ported_region(self, b: Block, rows: int, columns: int, dtype: str) -> list[Stmt]:
        """A region that is smaller than its tile, in a loop or not, and its mirror."""
        r, block = self.r, b.axes[0].name
        x = self.ported_tile(b, rows, columns, dtype, r.choice(["shared", "fragment"]))
        high, wide = r.randint(1, rows), r.choice([columns, r.randint(1, columns)])
        a = self.tensor(dtype, (self.size(2 * rows + 3), self.size(columns + 5)), "A")
        at, left = r.randint(0, rows + 9), r.choice([0, 0, r.randint(0, 5)])
        out = self.tensor(dtype, (self.size(rows * (b.axes[0].most + 1)), self.size(columns)), "O")
        fill = Stmt(f"T.fill({x.name}, 1)", effect=("fill", x.name, 1, True))
        k = self.fresh("k")
        start = f"{at} + {k}" if r.random() < 0.5 else str(at)
        load = Stmt(
            f"T.copy({a.name}[{start} : {start} + {high}, {left} : {left + wide}], {x.name})",
            effect=("copy", a.name, x.name, False),
        )
        store = Stmt(
            f"T.copy({x.name}, {out.name}[{block} * {rows} : {block} * {rows} + {high}, 0:{wide}])",
            effect=("copy", x.name, out.name, False),
        )
        trips = r.randint(1, 4)
        kind = r.choice(["range({})", f"T.Pipelined({{}}, num_stages={r.randint(1, 3)})"])
        loop = Stmt(f"for {k} in {kind.format(trips)}:", body=(load, store))
        return [*self.swizzle(x), fill, loop]

    def ported_view(self, b: Block, rows: int, columns: int, dtype: str) -> list[Stmt]:
        """A tile under another shape, and of another type where bits are numbers."""
        r, block = self.r, b.axes[0].name
        seen = r.choice(["int16", "int8", "int32"]) if dtype == "int32" else dtype
        times = {"int16": 2, "int8": 4}.get(seen, 1) if dtype == "int32" else 1
        by = r.choice([n for n in (1, 2, 4, 8) if rows % n == 0])
        shape = (rows // by, columns * by * times)
        x = self.ported_tile(b, rows, columns, dtype, "shared")
        v = self.fresh("v")
        a = self.tensor(dtype, (self.size(rows), self.size(columns)), "A")
        blocks = b.axes[0].most + 1
        out = self.tensor(seen, (self.size(shape[0] * blocks), self.size(shape[1])), "O")
        view = f'{v} = T.view({x.name}, ({shape[0]}, {shape[1]}), "{seen}")'
        return [
            Stmt(view, fixed=True),
            *self.swizzle(x),
            Stmt(f"T.copy({a.name}, {x.name})", effect=("copy", a.name, x.name, True)),
            Stmt(f"T.copy({v}, {out.name}[{block} * {shape[0]}, 0])"),
        ]

    def ported_turns(self, b: Block, rows: int, columns: int, dtype: str) -> list[Stmt]:
        """A fragment that leaves, or is filled, part by part."""
        r, block = self.r, b.axes[0].name
        parts = r.choice([n for n in (2, 4, 8) if rows % n == 0])
        high = rows // parts
        f = self.ported_tile(b, rows, columns, dtype, "fragment")
        half = self.ported_tile(b, high, columns, dtype, "shared")
        a = self.tensor(dtype, (self.size(rows), self.size(columns)), "A")
        out = self.tensor(dtype, (self.size(rows * (b.axes[0].most + 1)), self.size(columns)), "O")
        s, i, j = (self.fresh(n) for n in "sij")
        at = r.choice(
            [f"{i} + {s} * {high}", f"{s} * {high} + {i}", f"{rows - 1} - {s} * {high} - {i}"]
        )
        way = r.choice(["map", "map", "guard", "copy"])
        load = Stmt(f"T.copy({a.name}, {f.name})", effect=("copy", a.name, f.name, True))
        moved = ("copy", f.name, half.name, False)
        if way == "copy":
            part = f"{f.name}[{s} * {high} : {s} * {high} + {high}, :]"
            read = Stmt(f"T.copy({part}, {half.name})", effect=moved)
        elif way == "guard":
            store = Stmt(f"{half.name}[{i}, {j}] = {f.name}[{i} + {s} * {high}, {j}]", effect=moved)
            guard = Stmt(f"if {i} < {high}:", body=(store,))
            read = Stmt(f"for {i}, {j} in T.Parallel({rows}, {columns}):", body=(guard,))
        else:
            store = Stmt(f"{half.name}[{i}, {j}] = {f.name}[{at}, {j}]", effect=moved)
            read = Stmt(f"for {i}, {j} in T.Parallel({high}, {columns}):", body=(store,))
        put = Stmt(
            f"T.copy({half.name}, {out.name}[{block} * {rows} + {s} * {high}, 0])",
            effect=("copy", half.name, out.name, False),
        )
        loop = r.choice([f"range({parts})", f"T.unroll({parts})", f"T.serial({parts})"])
        more: list[Stmt] = []
        if r.random() < 0.3 and (is_float(dtype) or dtype == "int32"):
            more = [Stmt(f"T.fill({half.name}, 2)", effect=("fill", half.name, 2, True))]
        return [load, *more, Stmt(f"for {s} in {loop}:", body=(read, put))]

    def ported_branch(self, b: Block, rows: int, columns: int, dtype: str) -> list[Stmt]:
        """Loops and thread-level statements under a branch on the thread index. Threads write
        elements of `x` that are theirs, and read any of `y`, which only loops write."""
        r, block, count = self.r, b.axes[0].name, b.count
        x, y = (self.ported_tile(b, rows, columns, dtype, "shared").name for _ in range(2))
        a = self.tensor(dtype, (self.size(rows), self.size(columns)), "A").name
        t, i, j = (self.fresh(n) for n in "tij")
        lo = r.choice([0, 32 * r.randrange(count // 32), r.randrange(count)])
        hi = r.choice([count, lo + 1, r.randint(lo + 1, count), min(lo + 32, count)])
        cond = r.choice([f"{lo} <= {t} < {hi}", f"{t} < {hi}", f"{t} >= {lo}", f"{t} // 32 == 0"])
        mine, other = (f"{p} // {columns}, {p} % {columns}" for p in (t, f"({count} - {t})"))
        lane = Stmt(f"{x}[{mine}] = {y}[{other}]", effect=("copy", y, x, False))

        def loop(src: str, dst: str, at: str) -> Stmt:
            store = Stmt(f"{dst}[{i}, {j}] = {src}[{at}]", effect=("copy", src, dst, False))
            return Stmt(f"for {i}, {j} in T.Parallel({rows}, {columns}):", body=(store,))

        loops = [loop(x, y, f"{rows - 1} - {i}, {j}"), loop(y, x, f"{i}, {columns - 1} - {j}")]

        def some(*of: Stmt) -> tuple[Stmt, ...]:
            return tuple(r.choice(of) for _ in range(r.randint(1, 4)))

        then = some(lane, *loops)
        if r.random() < 0.4:
            again = f"for {self.fresh('k')} in T.serial({r.randint(1, 3)}):"
            then = (*then, Stmt(again, body=some(lane, *loops)))
        # threads on both sides of a range do not follow each other
        orelse = some(lane, *(loops if "<=" not in cond else ())) if r.random() < 0.5 else ()
        if not orelse and r.random() < 0.5:
            cond += f" and {block} != 1"
        thread = "T.get_thread_binding(0)"
        if b.threads.startswith("("):
            thread += f" + T.get_thread_binding(1) * {b.threads.strip('(').split(',')[0]}"
        return [
            Stmt(f"{t} = {thread}", fixed=True),
            *(Stmt(f"T.copy({a}, {to})", effect=("copy", a, to, True)) for to in (x, y)),
            Stmt(f"if {cond}:", body=then, orelse=orelse),
        ]
