"""Give ops that cannot live with a fragment's layout a copy that they can.

Three ways, the cheapest that serves: nothing, when every thread holds what it touches in one
register; a fragment spread as the op needs it, filled or emptied by a `relayout`; a copy in shared
memory, which any index may read, one known only at run time too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from tilewright.ir.buffer import Buffer, Region, Space, whole
from tilewright.ir.expr import Expr, Load, Var, transform
from tilewright.ir.fragment import Fragment, row_of
from tilewright.ir.op import (
    Alloc,
    Body,
    Copy,
    For,
    Gemm,
    Kernel,
    Map,
    Op,
    Reduce,
    Relayout,
    Scan,
    Store,
    marked,
)
from tilewright.ir.rewrite import fresh_name, map_exprs, map_ops, rebuild
from tilewright.ir.target import Target
from tilewright.passes.matrix_tiles import held_operands, split_of
from tilewright.passes.tile_access import Access, accesses, buffer_from_nest, with_units
from tilewright.support.errors import CompileError


def insert_conversions(kernel: Kernel, target: Target, names: set[str]) -> Kernel:
    """`kernel`, every op of which can use its operands where they are."""
    threads = 1
    for count in kernel.threads:
        threads *= count
    return rebuild(kernel, body=_Converter(target, names, threads).body(kernel.body))


@dataclass
class _Converter:
    target: Target
    names: set[str]
    threads: int
    around: dict[Var, range] = field(default_factory=dict)

    def body(self, body: Body) -> Body:
        return tuple(new for op in body for new in self.op(op))

    def op(self, op: Op) -> Iterable[Op]:
        rule = _RULES.get(type(op))
        if rule is not None:
            yield from rule(self, op)
            return
        inner = {f.name: self.inside(op, getattr(op, f.name)) for f in marked(op, "body")}
        yield rebuild(op, **inner) if inner else op

    def inside(self, op: Op, body: Body) -> Body:
        if not (isinstance(op, For) and op.kind == "unroll"):
            return self.body(body)
        around = self.around
        self.around = {**around, op.var: range(int(op.start), int(op.stop), int(op.step))}
        try:
            return self.body(body)
        finally:
            self.around = around

    def like(self, buffer: Buffer, name: str, layout: Fragment | None, space: Space) -> Buffer:
        fresh = fresh_name(name, self.names)
        return replace(buffer, name=fresh, space=space, layout=layout, strides=None)

    def moved(self, buffer: Buffer, layout: Fragment) -> Buffer:
        return self.like(buffer, f"{buffer.name}_moved", layout, Space.FRAGMENT)


def held(buffer: Buffer) -> Fragment:
    assert isinstance(buffer.layout, Fragment), buffer.name
    return buffer.layout


def readable(access: Access, nest: Fragment) -> bool:
    """Whether each thread holds what it reads, in the same register as the others."""
    if access.points is None:
        return False
    return held(access.buffer).registers(access.needed(nest)) is not None


def writable(access: Access, nest: Fragment) -> bool:
    """Whether each thread that holds an element which the nest writes writes it itself."""
    fragment = held(access.buffer)
    if access.points is None or not readable(access, nest):
        return False
    needed = access.needed(nest)
    thread = np.broadcast_to(np.arange(nest.threads)[:, None], needed.shape)
    written = set(zip(thread[needed >= 0].tolist(), needed[needed >= 0].tolist(), strict=True))
    elements = {element for _, element in written}
    table = fragment.table()
    holders = np.broadcast_to(np.arange(fragment.threads)[:, None], table.shape)
    inside = np.isin(table, list(elements)) & (table >= 0)
    pairs = set(zip(holders[inside].tolist(), table[inside].tolist(), strict=True))
    return pairs <= written


def _map(c: _Converter, op: Map) -> Iterable[Op]:
    nest = op.layout
    assert isinstance(nest, Fragment)
    before: list[Op] = []
    after: list[Op] = []
    swaps: dict[tuple[str, tuple[Expr, ...]], Buffer] = {}
    written: dict[str, Buffer] = {}
    found = accesses(op, c.around)
    for access in found:
        buffer = access.buffer
        if not access.writes or buffer.name in written or writable(access, nest):
            continue
        layout = buffer_from_nest(access, nest)
        if layout is None:
            raise CompileError(
                f"{buffer.name} is written in a way that no spread over threads follows",
                loc=access.loc,
                expected="constant indices of a fragment that is written",
                got=f"nest {nest!r}, {buffer.name} {buffer.layout!r}",
                fix="keep it in shared memory (T.alloc_shared)",
            )
        tmp = written[buffer.name] = c.moved(buffer, layout)
        before += [Alloc(tmp, loc=op.loc), Relayout(whole(buffer), whole(tmp), loc=op.loc)]
        after.append(Relayout(whole(tmp), whole(buffer), loc=op.loc))
    copies: dict[tuple[str, Fragment | None], Buffer] = {}
    for access in found:
        buffer = access.buffer
        if access.writes:
            continue
        if buffer.name in written:
            if readable(replace(access, buffer=written[buffer.name]), nest):
                continue
        elif readable(access, nest):
            continue
        layout = buffer_from_nest(access, nest)
        if layout is not None:
            spread = replace(access, buffer=buffer.with_layout(layout))
            layout = layout if readable(spread, nest) else None
        key = (buffer.name, layout)
        if key not in copies:
            if layout is not None:
                tmp = c.moved(buffer, layout)
                before += [Alloc(tmp, loc=op.loc), Relayout(whole(buffer), whole(tmp), loc=op.loc)]
            else:
                tmp = c.like(buffer, f"{buffer.name}_shared", None, Space.SHARED)
                move = Copy(whole(buffer), whole(tmp), atom="threads", loc=op.loc)
                before += [Alloc(tmp, loc=op.loc), move]
            copies[key] = tmp
        swaps[buffer.name, access.indices] = copies[key]
    yield from before
    yield _swap(op, swaps, written)
    yield from after


def _swap(
    op: Map, reads: dict[tuple[str, tuple[Expr, ...]], Buffer], written: dict[str, Buffer]
) -> Map:
    """`op` with its loads and stores sent to other buffers."""
    if not reads and not written:
        return op

    def node(e: Expr) -> Expr | None:
        if isinstance(e, Load):
            indices = tuple(transform(i, node) for i in e.indices)
            buffer = reads.get((e.buffer.name, e.indices)) or written.get(e.buffer.name)
            if buffer is not None:
                return Load(buffer, indices, e.loc)
        return None

    def one(inner: Op) -> Op:
        new = map_exprs(inner, lambda e: transform(e, node))
        if isinstance(new, Store) and new.buffer.name in written:
            new = rebuild(new, buffer=written[new.buffer.name])
        return new

    return map_ops(op, one)


def reduced(source: Fragment, op: Reduce) -> Fragment | None:
    """How the result of `op` is spread when the source is spread like this."""
    keep = len(source.tile) == 1
    return with_units(row_of(source, op.dim, keep), op.dst.buffer.static_shape)


def _reduce(c: _Converter, op: Reduce) -> Iterable[Op]:
    if not all(r.buffer.space is Space.FRAGMENT for r in (op.src, op.dst)):
        yield op
        return
    want = reduced(held(op.src.buffer), op)
    if want is None or want.same(held(op.dst.buffer)):
        yield op
        return
    yield from _through(c, op, "dst", want, keeps=not op.clear)


def _through(
    c: _Converter, op: Op, operand: str, layout: Fragment, *, keeps: bool = True, back: bool = True
) -> Iterable[Op]:
    """`op` on a copy of one operand, which is brought back when the op writes it."""
    region: Region = getattr(op, operand)
    tmp = c.moved(region.buffer, layout)
    yield Alloc(tmp, loc=op.loc)
    if keeps:
        yield Relayout(whole(region.buffer), whole(tmp), loc=op.loc)
    yield rebuild(op, **{operand: replace(region, buffer=tmp)})
    if back:
        yield Relayout(whole(tmp), whole(region.buffer), loc=op.loc)


def _copy(c: _Converter, op: Copy | Scan) -> Iterable[Op]:
    a, b = op.src, op.dst
    if not all(r.buffer.space is Space.FRAGMENT and r.is_whole for r in (a, b)):
        yield op
        return
    source = with_units(held(a.buffer), b.buffer.static_shape)
    if source is None or source.same(held(b.buffer)):
        yield op
        return
    if isinstance(op, Copy) and a.dtype == b.dtype and a.buffer.shape == b.buffer.shape:
        yield Relayout(a, b, loc=op.loc)
        return
    yield from _through(c, op, "dst", source, keeps=False)


def _gemm(c: _Converter, op: Gemm) -> Iterable[Op]:
    split = split_of(op, c.threads, c.target)
    if split is None:
        yield op
        return
    for name, fragment in held_operands(op, split).items():
        buffer: Buffer = getattr(op, name).buffer
        want = with_units(fragment, buffer.static_shape)
        if want is not None and not want.same(held(buffer)):
            for new in _through(c, op, name, want, back=name == "c"):
                if isinstance(new, Gemm):
                    yield from _gemm(c, new)
                else:
                    yield new
            return
    yield op


_RULES: dict[type[Op], Callable[..., Iterable[Op]]] = {
    Map: _map,
    Reduce: _reduce,
    Copy: _copy,
    Scan: _copy,
    Gemm: _gemm,
}
