"""Random operations on whole tiles: copies, fills, products, reductions, scans."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

from devtools.fuzz.maps import Maps
from devtools.fuzz.recipe import Ex, Stmt, Tile, is_float
from devtools.fuzz.values import Index
from devtools.fuzz.workshop import Block


class Tiles(Maps):
    """Statements that move and combine tiles."""

    def region(self, tile: Tile, whole: bool) -> tuple[str, list[str]]:
        """(text, extents) of a tile or a part of it."""
        if whole or self.r.random() < 0.7:
            return tile.name, list(tile.shape)
        parts, extents = [], []
        for s in tile.shape:
            start, count = self.r.choice(
                [("0", s), ("0", s), (f"{s} // 3", f"({s} + 1) // 2"), (f"{s} // 2", "1")]
            )
            parts.append(f"$[{start}] : $[{start} + {count}]" if count != s else ":")
            extents.append(f"$[{count}]" if count != s else s)
        return f"{tile.name}[{', '.join(parts)}]", extents

    def a_copy_in(self, b: Block) -> Stmt | None:
        tile = self.any_tile(b)
        return self.copy_in(b, tile) if tile else None

    def copy_in(self, b: Block, tile: Tile, whole: bool = False) -> Stmt | None:
        r = self.r
        rank = len(tile.shape)
        tensors = [t for t in b.inputs if len(t.shape) >= rank]
        if not self.exact:
            tensors = [t for t in tensors if is_float(t.dtype)]
        if not tensors:
            return None
        tensor = r.choice(tensors)
        text, extents = self.region(tile, whole)
        site = self.site(b, [])
        starts = [self.anywhere_uniform(s, site) for s in tensor.shape]
        if r.random() < 0.7 or text != tile.name:
            place = ", ".join(starts)
        else:
            kept = sorted(r.sample(range(len(starts)), rank))
            parts = list(starts)
            for at, extent in zip(kept, extents, strict=True):
                parts[at] = f"{starts[at]} : {starts[at]} + {extent}"
            place = ", ".join(parts)
        option = r.choice(["", "", "", ', prefer="cp_async"', ', prefer="sync"', ', cache="first"'])
        effect = ("copy", tensor.name, tile.name, whole)
        return Stmt(f"T.copy({tensor.name}[{place}], {text}{option})", effect=effect)

    def a_copy(self, b: Block) -> Stmt | None:
        """Tile to tile, the part that both have."""
        r = self.r
        src, dst = self.any_tile(b), self.any_tile(b)
        if not src or not dst or self.root(b, src) == self.root(b, dst):
            return None
        if len(src.shape) != len(dst.shape) or (not self.exact and src.dtype != dst.dtype):
            return None
        same = src.shape == dst.shape
        texts = []
        for tile in (src, dst):
            parts = []
            for s, t in zip(src.shape, dst.shape, strict=True):
                own = s if tile is src else t
                start = f"{own} - min({s}, {t})" if r.random() < 0.5 else "0"
                parts.append(f"$[{start}] : $[{start} + min({s}, {t})]")
            plain = same and r.random() < 0.8
            texts.append(tile.name if plain else f"{tile.name}[{', '.join(parts)}]")
        effect = ("copy", src.name, dst.name, False)
        return Stmt(f"T.copy({texts[0]}, {texts[1]})", effect=effect)

    def a_copy_out(self, b: Block) -> Stmt | None:
        """A tile to our part of an output that it fits in."""
        r = self.r
        for part in r.sample(b.parts, len(b.parts)):
            for tile in r.sample(self.tiles_of(b), len(self.tiles_of(b))):
                rank = len(part.extents)
                pad = ["1"] * (rank - len(tile.shape))
                if len(tile.shape) > rank or part.tensor.scratch:
                    continue
                room = zip(pad + list(tile.shape), part.extents, strict=True)
                if all(s == "1" or s == e for s, e in room):
                    place = ", ".join(part.origins)
                    effect = ("copy", tile.name, part.tensor.name, False)
                    return Stmt(f"T.copy({tile.name}, {part.tensor.name}[{place}])", effect=effect)
        return None

    def a_copy_back(self, b: Block) -> Stmt | None:
        """What our part of an output holds by now, read again as a tile."""
        parts = [p for p in b.parts if not p.tensor.scratch]
        if not parts:
            return None
        part = self.r.choice(parts)
        if not self.exact and not is_float(part.tensor.dtype):
            return None
        tile = self.tile(b, part.extents, part.tensor.dtype)
        b.ready.add(tile.name)
        effect = ("copy", part.tensor.name, tile.name, True)
        return Stmt(f"T.copy({part.tensor.name}[{', '.join(part.origins)}], {tile.name})",
                    effect=effect)  # fmt: skip

    def a_fill(self, b: Block) -> Stmt | None:
        tile = self.any_tile(b)
        return self.fill(b, tile) if tile else None

    def fill(self, b: Block, tile: Tile, whole: bool = False) -> Stmt:
        text, _ = self.region(tile, whole)
        if self.r.random() < 0.5:
            return Stmt(f"T.clear({text})", effect=("fill", tile.name, 0, text == tile.name))
        value = self.r.randint(0, 1 if tile.dtype == "bool" else 3)
        effect = ("fill", tile.name, value, text == tile.name)
        return Stmt(f"T.fill({text}, {value})", effect=effect)

    def a_transpose(self, b: Block) -> list[Stmt] | None:
        src = self.any_tile(b)
        if not src or len(src.shape) != 2 or 1 in map(self.v.extent, src.shape):
            return None
        dst = self.tile(b, src.shape[::-1], src.dtype)
        b.ready.add(dst.name)
        return [
            Stmt(f"T.transpose({src.name}, {dst.name})", effect=("copy", src.name, dst.name, True))
        ]

    def a_seen_as(self, b: Block) -> list[Stmt] | None:
        """A copy of a tile, under another shape: written or reduced through that."""
        r = self.r
        src = self.any_tile(b)
        if not src or b.depth:
            return None
        total = prod(map(self.v.extent, src.shape))
        space = r.choice(["fragment", "fragment", "shared"])
        base = self.tile(b, src.shape, src.dtype, space)
        effect = ("copy", src.name, base.name, True)
        body = [Stmt(f"T.copy({src.name}, {base.name})", effect=effect)]
        b.ready.add(base.name)
        rows = r.choice([f for f in range(1, total + 1) if total % f == 0])
        shape: tuple[str, ...] = (self.size(rows), self.size(total // rows))
        if r.random() < 0.3:
            shape = (self.size(total),)
        seen = Tile(self.fresh("v"), space, shape, src.dtype, of=base.name)
        b.tiles.append(seen)
        if r.random() < 0.6:
            body.append(self.map(b, seen))
        elif src.dtype != "bool":
            body += self.reduce(b, seen)
        return body

    def a_again(self, b: Block) -> list[Stmt] | None:
        """A row or a column that a reduction leaves, taken back by all of its tile."""
        r = self.r
        src = self.any_tile(b)
        if not src or len(src.shape) != 2 or src.dtype == "bool" or not self.exact:
            return None
        dim = r.randrange(2)
        row = self.tile(b, (src.shape[1 - dim],), src.dtype, r.choice(["fragment", "shared"]))
        op = r.choice(["max", "min", "sum"])
        effect: tuple[Any, ...] = ("most", src.name, row.name, True)
        if op == "sum":
            effect = ("sum", src.name, row.name, src.shape[dim], True)
        b.ready.add(row.name)
        points = self.points(src.shape)
        at = ", ".join(p.name for p in points)
        mine = Ex("read", src.dtype, f"{src.name}[{at}]", name=src.name)
        all_of = Ex("read", src.dtype, f"{row.name}[{points[1 - dim].name}]", name=row.name)
        value = Ex("add", src.dtype, r.choice(["({0} - {1})", "({1} + {0})"]), (mine, all_of))
        store = Stmt(f"{src.name}[{at}] = {{0}}", (value,), effect=("store", src.name, False))
        word = Stmt(f"T.reduce_{op}({src.name}, {row.name}, dim={dim})", effect=effect)
        if r.random() < 0.5 or b.depth:
            return [word, Stmt(self.flat(points), body=(store,))]
        # a sum in memory of what several threads hold: one of them adds it
        sums = self.tile(b, row.shape, src.dtype, r.choice(["shared", "shared", "fragment"]))
        clear = self.fill(b, sums, whole=True)
        b.ready.add(sums.name)
        line = self.points(row.shape)
        spot = line[0].name
        old = Ex("read", src.dtype, f"{sums.name}[{spot}]", name=sums.name)
        new = Ex("read", src.dtype, f"{row.name}[{spot}]", name=row.name)
        more = Ex("cap", src.dtype, "(({0} + {1}) % 7)", (old, new), 7)
        store = Stmt(f"{sums.name}[{spot}] = {{0}}", (more,), effect=("store", sums.name, True))
        return [clear, word, Stmt(self.flat(line), body=(store,))]

    def a_both(self, b: Block) -> list[Stmt] | None:
        """Two tiles, spread differently, that fold into one row or write each other's."""
        r = self.r
        src = self.any_tile(b)
        if not src or len(src.shape) != 2 or src.dtype == "bool" or not self.exact or b.depth:
            return None
        dim = r.randrange(2)
        kept = src.shape[1 - dim]
        row = self.tile(b, (kept,), src.dtype, "fragment")
        first = Stmt(f"T.reduce_max({src.name}, {row.name}, dim={dim})",
                     effect=("most", src.name, row.name, True))  # fmt: skip
        b.ready.add(row.name)
        if r.random() < 0.5:
            across = r.choice([s for s in self.pool if self.v.extent(s) <= 64] or [self.one()])
            shape = (across, kept) if r.random() < 0.5 else (kept, across)
            other = self.tile(b, shape, src.dtype, "fragment")
            fill = self.map(b, other, whole=True)
            b.ready.add(other.name)
            at = 0 if shape[0] == across and shape[1] == kept else 1
            word, effect = "max", ("most", other.name, row.name, False)
            if r.random() < 0.5:
                word, effect = "sum", ("sum", other.name, row.name, across, False)  # type: ignore[assignment]
            more = Stmt(f"T.reduce_{word}({other.name}, {row.name}, dim={at}, clear=False)",
                        effect=effect)  # fmt: skip
            return [first, fill, more]
        beside = self.tile(b, (kept,), src.dtype, "fragment")
        fill = self.map(b, beside, whole=True)
        b.ready.add(beside.name)
        points = self.points((kept,))
        spot = points[0].name
        pair = (beside, row) if r.random() < 0.5 else (row, beside)
        stores = []
        for tile, other in (pair, pair[::-1]):
            mine = Ex("read", tile.dtype, f"{tile.name}[{spot}]", name=tile.name)
            theirs = Ex("read", other.dtype, f"{other.name}[{spot}]", name=other.name)
            value = Ex("cap", tile.dtype, "(({0} + {1}) % 7)", (mine, theirs), 7)
            stores.append(Stmt(f"{tile.name}[{spot}] = {{0}}", (value,),
                               effect=("store", tile.name, True)))  # fmt: skip
        return [first, fill, Stmt(self.flat(points), body=tuple(stores))]

    def a_gemm(self, b: Block) -> Stmt | list[Stmt] | None:
        r = self.r
        a, bb, c, at, bt, k = r.choice(b.products)
        if not (self.ready(b, a) and self.ready(b, bb)):
            return None
        clear = r.random() < 0.3 or not self.ready(b, c)
        words = [f"{a.name}, {bb.name}, {c.name}"]
        words += ["transpose_A=True"] * at + ["transpose_B=True"] * bt
        words += ["clear_accum=True"] * clear
        if r.random() < 0.4:
            policy = r.choice(["Square", "FullRow", "FullCol"])
            words.append(f"policy=T.GemmWarpPolicy.{policy}")
        effect = ("gemm", a.name, bb.name, c.name, k, clear)
        product = Stmt(f"T.gemm({', '.join(words)})", effect=effect)
        b.ready.add(c.name)
        if r.random() < 0.5 or b.depth >= 2:
            return product
        # the shape of every matmul: copies and a product in a pipeline
        loop = self.fresh("k")
        trip, most = self.trip(b)
        index = Index(loop, k, most)
        b.loops.append(index)
        copies = [self.copy_in(b, t, whole=True) for t in (a, bb)]
        b.loops.pop()
        body = [s for s in copies if s is not None]
        if r.random() < 0.2:
            body.append(self.map(b, a))
        body.append(replace(product, head=product.head.replace(", clear_accum=True", "")))
        if clear:
            body[-1] = replace(body[-1], effect=(*effect[:-1], False))
        pipeline = Stmt(
            f"for {loop} in T.Pipelined({{trip}}, num_stages={{stages}}):",
            params={"trip": trip, "stages": r.randint(0, 4)},
            body=tuple(body),
            effect=("loop", trip) if trip.isdigit() else ("loop_most", str(most + 1)),
        )
        start = Stmt(f"T.clear({c.name})", effect=("fill", c.name, 0, True))
        return [start, pipeline] if clear or r.random() < 0.7 else [pipeline]

    def a_reduce(self, b: Block) -> list[Stmt] | None:
        src = self.any_tile(b)
        if not src or src.dtype == "bool":
            return None
        return self.reduce(b, src)

    def reduce(self, b: Block, src: Tile) -> list[Stmt]:
        r = self.r
        rank = len(src.shape)
        dim = r.randrange(rank)
        rest = [s for at, s in enumerate(src.shape) if at != dim]
        if r.random() < 0.25 or not rest:
            rest.insert(dim, self.one())
        shape = tuple(rest)
        ops = ["sum", "sum", "max", "max", "min", "absmax", "abssum"]
        if not is_float(src.dtype):
            ops += ["bitand", "bitor", "bitxor"]
        if src.dtype.startswith("uint") or not self.exact:
            ops = [o for o in ops if not o.startswith("abs")]
        op = r.choice(ops)
        have = [
            t
            for t in b.tiles
            if t.shape == shape and t.dtype == src.dtype and not t.of and t.name != src.name
            and self.root(b, src) != t.name and t.space in ("shared", "fragment")
        ]  # fmt: skip
        dst = r.choice(have) if have and r.random() < 0.6 else self.tile(b, shape, src.dtype)
        before: list[Stmt] = []
        if r.random() < 0.25:  # no zero among them: one that comes in from elsewhere shows
            points = self.points(src.shape)
            at = ", ".join(p.name for p in points)
            low, high = (1, 3) if src.dtype.startswith("uint") else r.choice([(1, 3), (-3, -1)])
            mine = Ex("read", src.dtype, f"{src.name}[{at}]", name=src.name)
            kept = Ex("cap", src.dtype, f"T.clamp({{0}}, {low}, {high})", (mine,), 3)
            store = Stmt(f"{src.name}[{at}] = {{0}}", (kept,), effect=("store", src.name, True))
            before = [Stmt(self.flat(points), body=(store,))]
        if not self.ready(b, dst) and r.random() < 0.3:
            before.append(self.fill(b, dst, whole=True))
            b.ready.add(self.root(b, dst))
        clear = r.random() < 0.4 or not self.ready(b, dst)
        b.ready.add(self.root(b, dst))
        spelled = dim if r.random() < 0.6 else dim - rank
        text = f"T.reduce_{op}({src.name}, {dst.name}, dim={spelled}"
        text += ")" if clear else ", clear=False)"
        if op.endswith("sum"):
            effect: tuple[Any, ...] = ("sum", src.name, dst.name, src.shape[dim], clear)
        elif op.startswith("bit"):
            effect = ("fill", dst.name, 2**62, True)
        else:
            effect = ("most", src.name, dst.name, clear)
        return [*before, Stmt(text, effect=effect)]

    def a_scan(self, b: Block) -> list[Stmt] | None:
        r = self.r
        src = self.any_tile(b)
        if not src or src.dtype == "bool":
            return None
        dim = r.randrange(len(src.shape))
        op = r.choice(["sum", "sum", "max"])
        dst = src if r.random() < 0.4 else self.tile(b, src.shape, src.dtype)
        b.ready.add(self.root(b, dst))
        words = [src.name] + [dst.name] * (dst is not src) + [f"dim={dim}"]
        words += ["reverse=True"] * (r.random() < 0.3)
        if op == "sum":
            effect: tuple[Any, ...] = ("sum", src.name, dst.name, src.shape[dim], True)
        else:
            effect = ("most", src.name, dst.name, True)
        return [Stmt(f"T.cum{op}({', '.join(words)})", effect=effect)]
