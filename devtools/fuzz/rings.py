"""Random kernels whose copies run ahead: aligned tiles, streamed through pipelined loops.

General programs seldom copy on multiples of 16 bytes, and seldom read a tile that was copied in the
same iteration; these do both. What is read goes into accumulators that remember its order, so that
the tile of another iteration shows.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from devtools.fuzz.recipe import Ex, Launch, Stmt, Tensor, Tile, is_float
from devtools.fuzz.tiles import Tiles
from devtools.fuzz.values import Index
from devtools.fuzz.workshop import BLOCKS, Block

_BYTES = {"float32": 4, "int32": 4, "float16": 2, "bfloat16": 2, "int16": 2, "int8": 1, "uint8": 1,
          "float8_e4m3fn": 1, "float8_e5m2": 1}  # fmt: skip
_DTYPES = {"float16": 5, "bfloat16": 2, "float32": 3, "int32": 2, "int16": 0.5, "int8": 1,
           "uint8": 0.5, "float8_e4m3fn": 1}  # fmt: skip
_PRODUCTS = {
    ("float16", "float32"): 5, ("bfloat16", "float32"): 2, ("float16", "float16"): 0.7,
    ("float32", "float32"): 1, ("int8", "int32"): 1, ("float8_e4m3fn", "float32"): 1,
}  # fmt: skip
_THREADS = {"128": 6, "64": 1, "32": 1.5, "256": 1.5, "96": 0.3}
_ORDERS = ("", "", "", ', prefer="cp_async"', ', prefer="cp_async"', ', prefer="sync"',
           ', cache="first"')  # fmt: skip


@dataclass(frozen=True)
class Stream:
    """A tile that every turn of a loop fills from `place` of a tensor; `{k}` is the turn."""

    tensor: Tensor
    tile: Tile
    place: str
    option: str

    def copy(self, turn: str) -> Stmt:
        place = self.place.replace("{k}", turn)
        return Stmt(f"T.copy({self.tensor.name}[{place}], {self.tile.name}{self.option})",
                    effect=("copy", self.tensor.name, self.tile.name, True))  # fmt: skip


@dataclass
class Reel:
    """What a loop is made of: its turns, how many there are at most, what it streams."""

    trip: str
    most: int
    streams: list[Stream]


class Rings(Tiles):
    """Pipelined kernels."""

    fit = False  # whether everything is such that the bulk engine and warpgroups can be used

    def statement(self, b: Block) -> list[Stmt]:
        """Any statement."""
        raise NotImplementedError

    def ring_launch(self) -> Launch:
        """A kernel of one or two loops that stream tiles."""
        r = self.r
        blocks = r.choice([1, 1, 2, 2, 3])
        self.cases = min(self.cases, 2)
        axis = Index(BLOCKS[0], self.one(), blocks - 1)
        threads = r.choices(list(_THREADS), list(_THREADS.values()))[0]
        b = Block(threads, [axis])
        body: list[Stmt] = []
        reel = self.reel(b)
        if r.random() < 0.3:
            name = self.fresh("x")
            b.tiles.append(Tile(name, "var", (), "int32", init="0"))
            b.names.append(Ex("read", "int32", name, name=name))
        if self.exact and r.random() < 0.15:
            b.counters.append((self.tensor("int32", self.ring_shape("int32", 1), "C"), "add"))
        if r.random() < 0.5:
            work = self.product(b, reel, body)
        else:
            work = []
            for _ in range(r.choice([1, 1, 2, 2, 3])):
                self.stream(b, reel, self.ring_shape(dtype := self.ring_dtype()), dtype)
        for stream in reel.streams:
            b.ready.add(stream.tile.name)
        body += self.loops(b, reel, work, body)
        for tile in [t for t in b.tiles if t.space in ("shared", "fragment")]:
            held = self.ready(b, tile) and all(s.tile is not tile for s in reel.streams)
            if held and r.random() < 0.9:
                twice = tile.space == "fragment" and r.random() < 0.15
                body += [self.whole_out(b, tile, blocks) for _ in range(1 + twice)]
        return Launch((str(blocks),), (axis.name,), threads, tuple(b.tiles), tuple(body))

    # ── what is streamed ─────────────────────────────────────────────────────────────────────

    def reel(self, b: Block) -> Reel:
        r = self.r
        most = r.choice([0, 1, 1, 2, 3, 3, 4, 5, 6, 7])
        kind = self.v.pick(plain=5, scalar=3, least=1, block=0.7)
        if kind == "plain":
            return Reel(str(most), most, [])
        self.cases = 2
        if kind == "scalar":
            return Reel(f"${self.scalar()}", 4, [])
        if kind == "least":
            return Reel(f"T.min(${self.scalar()} + 1, {most})", most, [])
        return Reel(f"{b.axes[0].name} + 1", b.axes[0].most + 1, [])

    def ring_dtype(self) -> str:
        kinds = _DTYPES if self.exact else {"float32": 3, "float16": 3}
        return self.r.choices(list(kinds), list(kinds.values()))[0]

    def ring_shape(self, dtype: str, rank: int | None = None) -> tuple[str, ...]:
        """A tile of whole 128 bytes whose rows are multiples of 16."""
        r = self.r
        rank = rank or r.choices([1, 2], [1, 6])[0]
        if rank == 1:
            return (self.size(r.choice([128, 256, 512])),)
        return (self.size(r.choice([8, 16, 16, 32, 64])), self.size(r.choice([16, 32, 64])))

    def stream(self, b: Block, reel: Reel, shape: tuple[str, ...], dtype: str) -> Stream:
        r = self.r
        tile = self.tile(b, shape, dtype, "shared")
        turns, blocks = max(reel.most, 1), b.axes[0].most + 1
        unit = 16 // _BYTES[dtype]
        extents = [self.v.extent(s) for s in shape]
        block, turn = b.axes[0].name, "{k}"
        # rows that are no multiples of 16 bytes, seldom: threads copy those
        tail = r.choice([0, 0, 0, unit, 2 * unit]) if self.fit or r.random() < 0.93 else 1
        along = self.v.pick(columns=3, rows=2, apart=1.5)
        sizes: list[int]
        if len(shape) == 1:
            sizes, place = [extents[0] * turns + tail], f"{turn} * {shape[0]}"
        elif along == "columns":
            sizes = [extents[0] * blocks + r.choice([0, 0, -1, 3]), extents[1] * turns + tail]
            place = f"{block} * {shape[0]}, {turn} * {shape[1]}"
        elif along == "rows":
            sizes = [extents[0] * turns + r.choice([0, 0, -3, 1]), extents[1] * blocks + tail]
            place = f"{turn} * {shape[0]}, {block} * {shape[1]}"
        else:
            sizes, place = [turns, extents[0], extents[1] + tail], f"{turn}, 0, 0"
        named = tuple(self.size(max(s, 1)) for s in sizes)
        if len(sizes) > 1 and r.random() < 0.25:  # rows that only a launch knows
            name = f"m{len(self.dynamic)}"
            self.dynamic[name] = [max(1, sizes[0] - r.choice([0, 0, 1, 5])) for _ in range(2)]
            self.sizes[name] = max(self.dynamic[name])
            named = (f"${name}", *named[1:])
        tensor = self.tensor(dtype, named, r.choice("ABD"))
        found = Stream(tensor, tile, place, "" if self.fit else r.choice(_ORDERS))
        reel.streams.append(found)
        b.inputs.append(tensor)
        return found

    def product(self, b: Block, reel: Reel, body: list[Stmt]) -> list[Stmt]:
        """Two streams and their product, sometimes one more with what comes of it."""
        r = self.r
        kinds = {k: w for k, w in _PRODUCTS.items() if self.exact or k[0] in ("float16", "float32")}
        kind, sums = r.choices(list(kinds), list(kinds.values()))[0]
        wide = 32 if _BYTES[kind] == 1 else 16
        choices = [16, 32, 64, 64, 128], [16, 32, 64, 64], [wide, 32, 64], [16, 32, 64]
        if kind in ("float32", "float8_e4m3fn") or b.count % 64:
            # perhaps by threads, which takes the interpreter its time
            choices = [16, 32], [16, 16, 32], [wide], [16]
        m, n, k, p = (self.size(r.choice(c)) for c in choices)
        at, bt = r.random() < 0.2, r.random() < 0.4
        left = (k, m) if at else (m, k)
        if r.random() < 0.25:  # one side stays, as a query does
            a = self.tile(b, left, kind, "shared")
            tensor = self.tensor(kind, left, "A")
            body.append(Stmt(f"T.copy({tensor.name}, {a.name})",
                             effect=("copy", tensor.name, a.name, True)))  # fmt: skip
            b.ready.add(a.name)
        else:
            a = self.stream(b, reel, left, kind).tile
        bb = self.stream(b, reel, (n, k) if bt else (k, n), kind).tile
        c = self.tile(b, (m, n), sums, "fragment")
        body.append(Stmt(f"T.clear({c.name})", effect=("fill", c.name, 0, True)))
        b.ready.add(c.name)
        words = [a.name, bb.name, c.name]
        words += ["transpose_A=True"] * at + ["transpose_B=True"] * bt
        if r.random() < 0.3:
            words.append(f"policy=T.GemmWarpPolicy.{r.choice(['Square', 'FullRow', 'FullCol'])}")
        clear = r.random() < 0.35
        words += ["clear_accum=True"] * clear
        gemm = Stmt(f"T.gemm({', '.join(words)})",
                    effect=("gemm", a.name, bb.name, c.name, k, clear))  # fmt: skip
        work = [gemm]
        if clear or r.random() < 0.3:  # somebody looks at each product
            total = self.held(b, (m, n), sums, body)
            work.append(self.remember(b, total, c))
        if r.random() < 0.3 and kind != "float32":
            self.ring_chain(b, reel, work, body, (m, n, p), (kind, sums), c)
        return work

    def ring_chain(
        self,
        b: Block,
        reel: Reel,
        work: list[Stmt],
        body: list[Stmt],
        sizes: tuple[str, str, str],
        kinds: tuple[str, str],
        c: Tile,
    ) -> None:
        """What a product leaves, small again, times one more stream: the shape of attention."""
        m, n, p = sizes
        kind, sums = kinds
        held = self.tile(b, (m, n), kind, self.r.choice(["fragment", "fragment", "shared"]))
        points = self.points((m, n))
        at = ", ".join(i.name for i in points)
        read = Ex("read", sums, f"{c.name}[{at}]", name=c.name)
        small = Ex("cap", sums, "({0} % 3)", (read,), 3)
        if not self.exact:
            small = Ex("cap", sums, "T.tanh({0})", (read,), 1)
        store = Stmt(f"{held.name}[{at}] = {{0}}", (self.v.cast(small, kind),),
                     effect=("store", held.name, True))  # fmt: skip
        other = self.stream(b, reel, (n, p), kind).tile
        out = self.tile(b, (m, p), sums, "fragment")
        body.append(Stmt(f"T.clear({out.name})", effect=("fill", out.name, 0, True)))
        b.ready |= {held.name, out.name}
        body.append(Stmt(f"T.clear({held.name})", effect=("fill", held.name, 0, True)))
        work.append(Stmt(self.flat(points), body=(store,)))
        work.append(Stmt(f"T.gemm({held.name}, {other.name}, {out.name})",
                         effect=("gemm", held.name, other.name, out.name, n, False)))  # fmt: skip

    # ── what is done with it ─────────────────────────────────────────────────────────────────

    def held(self, b: Block, shape: tuple[str, ...], dtype: str, body: list[Stmt]) -> Tile:
        """An accumulator, cleared in front."""
        space = self.r.choice(["fragment", "fragment", "fragment", "shared"])
        tile = self.tile(b, shape, dtype, space)
        body.append(Stmt(f"T.clear({tile.name})", effect=("fill", tile.name, 0, True)))
        b.ready.add(tile.name)
        return tile

    def remember(self, b: Block, total: Tile, tile: Tile, straight: bool = False) -> Stmt:
        """`total` takes in `tile`, and keeps the order in which it did."""
        points = self.points(total.shape)
        at = ", ".join(i.name for i in points)
        site = self.site(b, points)
        place = at
        if not straight and self.r.random() < 0.5:
            place = ", ".join(self.v.inside(s, site) for s in tile.shape)
        old = Ex("read", total.dtype, f"{total.name}[{at}]", name=total.name)
        new = self.v.cast(Ex("read", tile.dtype, f"{tile.name}[{place}]", name=tile.name),
                          total.dtype)  # fmt: skip
        value = Ex("cap", total.dtype, "(({0} * 2 + {1}) % 61)", (old, new), 61)
        if not self.exact:
            value = Ex("most", total.dtype, "({0} * 0.5 + {1})", (old, new))
        store = Stmt(f"{total.name}[{at}] = {{0}}", (value,), effect=("store", total.name, False))
        return Stmt(self.flat(points), body=(store,))

    def wide_of(self, dtype: str) -> str:
        if is_float(dtype):
            return self.r.choice(["float32", "float32", "float32", dtype if dtype != "float8_e4m3fn"
                                  and dtype != "bfloat16" else "float32"])  # fmt: skip
        return "int32"

    def ring_use(self, b: Block, reel: Reel, tile: Tile, turn: str, body: list[Stmt]) -> list[Stmt]:
        """Statements that read a tile which has come."""
        r = self.r
        flat = len(tile.shape) == 1
        kind = self.v.pick(
            remember=4, parity=1.2, other=1.2, out=1.5, shift=0.8 * bool(b.names), reduce=1.5,
            held=1.2, turned=0.7 * (not flat), scan=0.5, loop=0.5, count=1.0 * bool(b.counters),
            any=0.6,
        )  # fmt: skip
        wide = self.wide_of(tile.dtype)
        match kind:
            case "parity":
                total = self.held(b, tile.shape, wide, body)
                cond = r.choice([f"{turn} % 2 == 1", f"{turn} % 2 == 0", f"{turn} > 0",
                                 f"{b.axes[0].name} == 0"])  # fmt: skip
                return [Stmt(f"if {cond}:", body=(self.remember(b, total, tile),))]
            case "other":  # by way of another tile
                total = self.held(b, tile.shape, wide, body)
                beside = self.held(b, tile.shape, tile.dtype, body)
                points = self.points(tile.shape)
                site = self.site(b, points)
                at = ", ".join(i.name for i in points)
                place = ", ".join(self.v.inside(s, site) for s in tile.shape)
                got = Ex("read", tile.dtype, f"{tile.name}[{place}]", name=tile.name)
                store = Stmt(f"{beside.name}[{at}] = {{0}}", (got,),
                             effect=("store", beside.name, True))  # fmt: skip
                return [Stmt(self.flat(points), body=(store,)), self.remember(b, total, beside)]
            case "out":
                return [self.turn_out(b, reel, tile, turn)]
            case "shift":
                total = self.held(b, tile.shape, wide, body)
                name = b.names[0]
                step = Ex("cap", "int32", "(({0} + 1) % 5)", (name,), 5)
                move = Stmt(f"{name.text} = {{0}}", (step,), effect=("store", name.name, True))
                return [move, self.remember(b, total, tile)]
            case "reduce":
                dim = r.randrange(len(tile.shape))
                rest = tuple(s for d, s in enumerate(tile.shape) if d != dim) or (self.one(),)
                row = self.held(b, rest, tile.dtype, body)
                total = self.held(b, rest, wide, body)
                op = r.choice(["sum", "max", "min"])
                effect = ("sum", tile.name, row.name, tile.shape[dim], True)
                if op != "sum":
                    effect = ("most", tile.name, row.name, True)  # type: ignore[assignment]
                word = Stmt(f"T.reduce_{op}({tile.name}, {row.name}, dim={dim})", effect=effect)
                return [word, self.remember(b, total, row)]
            case "held":
                total = self.held(b, tile.shape, wide, body)
                mine = self.tile(b, tile.shape, tile.dtype, "fragment")
                b.ready.add(mine.name)
                body.append(Stmt(f"T.clear({mine.name})", effect=("fill", mine.name, 0, True)))
                copy = Stmt(f"T.copy({tile.name}, {mine.name})",
                            effect=("copy", tile.name, mine.name, True))  # fmt: skip
                return [copy, self.remember(b, total, mine)]
            case "turned":
                total = self.held(b, tile.shape[::-1], wide, body)
                mine = self.held(b, tile.shape[::-1], tile.dtype, body)
                word = Stmt(f"T.transpose({tile.name}, {mine.name})",
                            effect=("copy", tile.name, mine.name, True))  # fmt: skip
                return [word, self.remember(b, total, mine)]
            case "scan":
                total = self.held(b, tile.shape, wide, body)
                mine = self.held(b, tile.shape, tile.dtype, body)
                dim = r.randrange(len(tile.shape))
                reverse = ", reverse=True" if r.random() < 0.4 else ""
                word = Stmt(f"T.cummax({tile.name}, {mine.name}, dim={dim}{reverse})",
                            effect=("most", tile.name, mine.name, True))  # fmt: skip
                return [word, self.remember(b, total, mine)]
            case "loop":
                total = self.held(b, tile.shape, wide, body)
                again = self.fresh("k")
                n = r.choice([1, 2, 3])
                return [Stmt(f"for {again} in T.serial({n}):", effect=("loop", str(n)),
                             body=(self.remember(b, total, tile),))]  # fmt: skip
            case "count" if tile.dtype in ("int32", "int16", "int8", "uint8"):
                found = self.a_count(b)
                return [found] if found else []
            case "any":
                ready, names = set(b.ready), list(b.names)
                b.depth += 1
                found_any = self.statement(b)
                b.depth -= 1
                b.ready, b.names = ready, names  # the loop may have no turn
                return found_any
        total = self.held(b, tile.shape, wide, body)
        return [self.remember(b, total, tile)]

    def turn_out(self, b: Block, reel: Reel, tile: Tile, turn: str) -> Stmt:
        """The tile of every turn to a place of its own."""
        counts = (self.size(b.axes[0].most + 1), self.size(reel.most + 2))
        tensor = self.tensor(tile.dtype, (*counts, *tile.shape), "O")
        zeros = ", ".join("0" for _ in tile.shape)
        return Stmt(f"T.copy({tile.name}, {tensor.name}[{b.axes[0].name}, {turn}, {zeros}])",
                    effect=("copy", tile.name, tensor.name, False))  # fmt: skip

    def whole_out(self, b: Block, tile: Tile, blocks: int) -> Stmt:
        r = self.r
        dtype = tile.dtype
        if self.exact and r.random() < 0.5 and is_float(dtype):
            dtype = "float16"
        tensor = self.tensor(dtype, (self.size(blocks), *tile.shape), "O")
        zeros = ", ".join("0" for _ in tile.shape)
        return Stmt(f"T.copy({tile.name}, {tensor.name}[{b.axes[0].name}, {zeros}])",
                    effect=("copy", tile.name, tensor.name, False))  # fmt: skip

    # ── the loops ────────────────────────────────────────────────────────────────────────────

    def loops(self, b: Block, reel: Reel, work: list[Stmt], before: list[Stmt]) -> list[Stmt]:
        r = self.r
        loop = self.turns(b, reel, work, before)
        form = self.v.pick(alone=5, around=2.5, ahead=0.7, guard=0.8, twice=1.5)
        if form in ("around", "ahead"):
            n, name = r.choice([1, 2, 2, 3]), self.fresh("o")
            head = f"for {name} in T.serial({{trip}}):"
            params: dict[str, object] = {"trip": str(n)}
            if form == "ahead":
                head = f"for {name} in T.Pipelined({{trip}}, num_stages={{stages}}):"
                params["stages"] = r.randint(1, 3)
            return [Stmt(head, params=params, body=(loop,), effect=("loop", str(n)))]
        if form == "guard":
            cond = r.choice([f"{b.axes[0].name} > 0", f"{self.scalar()} > 1",
                             f"{b.axes[0].name} == 0"])  # fmt: skip
            return [Stmt(f"if {cond}:", body=(loop,))]
        if form == "twice":
            other = replace(reel, trip=str(r.choice([0, 1, 2, 3])), most=max(reel.most, 3))
            again = self.turns(b, other if r.random() < 0.5 else reel, [], before)
            return [loop, again]
        return [loop]

    def turns(self, b: Block, reel: Reel, work: list[Stmt], before: list[Stmt]) -> Stmt:
        """One loop over the streams."""
        r = self.r
        name = self.fresh("k")
        kind = self.v.pick(pipelined=8, serial=1.2, unroll=0.4, later=1)
        trip, effect = reel.trip, ("loop_most", str(reel.most))
        if trip.isdigit():
            effect = ("loop", trip)
        head = f"for {name} in T.{kind}({{trip}}):"
        params: dict[str, object] = {"trip": trip}
        most = reel.most
        if kind in ("pipelined", "later"):
            first = "1, 1 + " if kind == "later" else ""
            most += kind == "later"
            head = f"for {name} in T.Pipelined({first}{{trip}}, num_stages={{stages}}):"
            params["stages"] = r.choices([0, 1, 2, 3, 4], [0.5, 2, 4, 3, 2])[0]
        b.loops.append(Index(name, self.one(), most))
        b.depth += 1
        body: list[Stmt] = []
        late: list[Stream] = []
        for stream in reel.streams:
            if work or r.random() < 0.6:
                body.append(stream.copy(name))
            else:
                late.append(stream)
        body += work
        here = [s for s in reel.streams if s not in late]
        for stream in here + late:
            if stream in late:
                body.append(stream.copy(name))
            for _ in range(r.choices([0, 1, 2], [1, 6, 2] if not work else [6, 2, 1])[0]):
                body += self.ring_use(b, reel, stream.tile, name, before)
        if r.random() < 0.15 and here:
            body += self.ring_use(b, reel, r.choice(here).tile, name, before)
        b.depth -= 1
        b.loops.pop()
        return Stmt(head, params=params, body=tuple(body), effect=effect)
