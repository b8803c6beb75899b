"""Products made in pieces, one after the other in the same registers.

A product that begins anew in every iteration, and that threads then fold into an accumulator, needs
registers twice: for itself and for the accumulator. Tiles that are large enough to keep the tensor
core busy have too few of them. What the nests do with an element has nothing to do with others, so
a part of the columns (or rows) can be multiplied and folded before the next one begins:

    for k { T = A[k]·B[k]; map i, j { C[i, j] += T[i, j] * s[i] } }

    for k { T = A[k]·B[k, left]; map i, j { C[i, j] += T[i, j] * s[i] };
            T = A[k]·B[k, right]; map i, j { C[i, 128 + j] += T[i, j] * s[i] } }

Each piece reads its factor again from shared memory, so there are as few as leave room. While one
warpgroup folds a piece, another one multiplies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tilewright.ir.buffer import Buffer, Region, Space
from tilewright.ir.expr import TRUE, Expr, Load, Var, const, transform
from tilewright.ir.op import (
    Alloc,
    Body,
    For,
    Gemm,
    Hint,
    Kernel,
    Map,
    Op,
    Program,
    Role,
    Store,
    View,
    op_loads,
    touched_within,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_body,
    map_exprs,
    map_kernels,
    program_names,
    rebuild,
    rename_unique,
    substitute_vars,
)
from tilewright.ir.target import Target
from tilewright.passes.overlap.multibuffer import used_outside
from tilewright.passes.overlap.rings import leaves_early
from tilewright.passes.overlap.skew import fragment_room, registers, registers_of
from tilewright.passes.reasons import because

WIDE, NARROW = 128, 64  # columns of a piece: as many as instructions like, as few as they should
ROWS = 64  # that a warpgroup multiplies
GROUP = 128  # threads of one
MOST = 4  # pieces


def split_gemms(program: Program, target: Target) -> Program:
    """Every kernel of `program` with products in pieces where registers would not do."""
    if target.internal.split_gemms is False:
        return program
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if any(isinstance(op, Role) for op in walk_ops(kernel)):
            return kernel
        for loop in [op for op in walk_ops(kernel) if isinstance(op, For)]:
            if loop.kind != "pipelined" or loop.order is not None or leaves_early(loop.body):
                continue
            for at, op in enumerate(loop.body):
                cut = _cut(kernel, loop, at, target.internal.split_gemms is True)
                if cut is not None:
                    assert isinstance(op, Gemm)
                    size = op.c.static_tile[cut.dim]
                    kind = "columns" if cut.dim else "rows"
                    said = (
                        f"{cut.tile.name} in {cut.count} pieces of {size // cut.count} {kind}, "
                        f"one after the other: whole it would leave too few registers"
                    )
                    because(kernel.name, loop, said)
                    return cut.made(kernel, names)
        return kernel

    return map_kernels(program, one)


@dataclass(frozen=True)
class _Cut:
    """The product at `at` of `loop` in `count` pieces along `dim`, with the nests at `users`."""

    loop: For
    at: int
    users: tuple[int, ...]
    dim: int
    count: int

    @property
    def product(self) -> Gemm:
        op = self.loop.body[self.at]
        assert isinstance(op, Gemm)
        return op

    @property
    def tile(self) -> Buffer:
        return self.product.c.buffer

    def made(self, kernel: Kernel, names: set[str]) -> Kernel:
        tile, dim = self.tile, self.dim
        size = tile.static_shape[dim] // self.count
        shape = tuple(const(size) if d == dim else s for d, s in enumerate(tile.shape))
        small = replace(tile, shape=shape)
        body: list[Op] = []
        for k, op in enumerate(self.loop.body):
            body.append(self.piece(op, 0, small, names) if k in (self.at, *self.users) else op)
            if k == self.users[-1]:
                for n in range(1, self.count):
                    for each in (self.at, *self.users):
                        body.append(self.piece(self.loop.body[each], n, small, names))

        def rule(op: Op) -> Op | Body | None:
            if op is self.loop:
                return rebuild(self.loop, body=tuple(body))
            if isinstance(op, Alloc) and op.buffer == tile:
                return rebuild(op, buffer=small)
            return None

        return rebuild(kernel, body=map_body(kernel.body, rule))

    def piece(self, op: Op, n: int, small: Buffer, names: set[str]) -> Op:
        size = small.static_shape[self.dim]
        if isinstance(op, Gemm):
            factor, turned = ("b", op.transpose_b) if self.dim else ("a", op.transpose_a)
            region: Region = getattr(op, factor)
            last = len(region.extents) - 1
            along = last - int(bool(turned) if self.dim else not turned)
            cut = Region(
                region.buffer,
                tuple(s + n * size if d == along else s for d, s in enumerate(region.starts)),
                tuple(const(size) if d == along else e for d, e in enumerate(region.extents)),
                region.cta,
            )
            c = Region(small, op.c.starts, small.shape, op.c.cta)
            return rebuild(op, **{factor: cut, "c": c})
        assert isinstance(op, Map)
        old = op.vars[self.dim]
        own = Var(fresh_name(old.name, names), old.dtype)
        vars = tuple(own if v is old else v for v in op.vars)

        def node(e: Expr) -> Expr | None:
            return (
                Load(small, vars, e.loc) if isinstance(e, Load) and e.buffer == self.tile else None
            )

        def rule(each: Op) -> Op | None:
            each = map_exprs(each, lambda e: transform(e, node))
            if isinstance(each, Store) and each.buffer == self.tile:
                each = rebuild(each, buffer=small, indices=vars)
            return each

        inner = substitute_vars(map_body(op.body, rule), {old: own + n * size})
        extents = tuple(const(size) if d == self.dim else e for d, e in enumerate(op.extents))
        found = rebuild(op, vars=vars, extents=extents, body=inner)
        return found if n == 0 else rename_unique((found,), names)[0]


def _cut(kernel: Kernel, loop: For, at: int, asked: bool) -> _Cut | None:
    """How the product that is statement `at` of a loop is to be cut, if it is."""
    op = loop.body[at]
    if not isinstance(op, Gemm) or op.atom != "wgmma" or op.clear is not TRUE:
        return None
    tile = op.c.buffer
    if tile.space is not Space.FRAGMENT or tile.rank != 2 or not op.c.is_whole:
        return None
    needed, room = registers(kernel), fragment_room(kernel)
    if (needed <= room and not asked) or any(r.buffer == tile for r in (op.a, op.b)):
        return None
    users = _users(kernel, loop, at)
    if not users:
        return None
    own = registers_of(tile, kernel)
    for dim, count in _ways(tile.static_shape, kernel.threads[0] // GROUP):
        if needed - own + -(-own // count) <= room:
            return _Cut(loop, at, tuple(users), dim, count)
    return None


def _ways(shape: tuple[int, ...], groups: int) -> Iterator[tuple[int, int]]:
    """Dimensions and numbers of pieces, the best first."""
    rows, columns = shape
    for least in (WIDE, NARROW):
        for count in range(2, MOST + 1):
            if columns % (count * 8) == 0 and columns // count >= least:
                yield 1, count
            if rows % (count * ROWS * max(groups, 1)) == 0 and columns >= least:
                yield 0, count


def _users(kernel: Kernel, loop: For, at: int) -> list[int]:
    """The nests behind a product that use its result, element by element; none where something
    else has to do with it, or would come between."""
    product = loop.body[at]
    assert isinstance(product, Gemm)
    tile = product.c.buffer
    views = {
        b.name for op in walk_ops(kernel) if isinstance(op, View) for b in (op.buffer, op.source)
    }
    hints = {op.buffer.name for op in walk_ops(kernel) if isinstance(op, Hint) and op.buffer}
    if tile.name in used_outside(kernel.body, loop.var) | views | hints:
        return []
    touched = [dict(_written(op)) for op in loop.body]
    users = [k for k in range(len(loop.body)) if k != at and tile.name in touched[k]]
    if not users or users[0] < at:
        return []
    moved = {at, *users}
    for k in users:
        if not _by_element(loop.body[k], tile):
            return []
    for k in range(at, users[-1] + 1):
        for each in moved - {k}:
            for name in touched[k].keys() & touched[each].keys() - {tile.name}:
                if not (touched[k][name] or touched[each][name]):
                    continue
                both = (loop.body[k], loop.body[each])
                if k not in moved or not all(_by_element(op, tile, name) for op in both):
                    return []
    return users


def _written(op: Op) -> Iterator[tuple[str, bool]]:
    found: dict[str, bool] = {}
    for buffer, writes in touched_within(op):
        found[buffer.name] = found.get(buffer.name, False) or writes
    return iter(found.items())


def _by_element(op: Op, tile: Buffer, name: str | None = None) -> bool:
    """Whether a nest over the tile's box touches a buffer (by default the tile) only at its own
    point."""
    if not isinstance(op, Map) or op.layout is not None or len(op.vars) != len(tile.shape):
        return False
    if any(a is not b for a, b in zip(op.extents, tile.shape, strict=True)):
        return False
    name = tile.name if name is None else name
    places = [x.indices for i in walk_ops(op) for x in op_loads(i) if x.buffer.name == name]
    places += [i.indices for i in walk_ops(op) if isinstance(i, Store) and i.buffer.name == name]
    others = [
        i for i in walk_ops(op.body) if not isinstance(i, Store) and name in dict(_written(i))
    ]
    others = [i for i in others if name not in {x.buffer.name for x in op_loads(i)}]
    return not others and all(place == op.vars for place in places)
