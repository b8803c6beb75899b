"""Vectors of a tensor that may end within one.

Elements of a group begin on a vector, but the tensor's size, known at launch only, may be no
multiple of it. One group in the tensor at most is in it by a part:

    if first + 7 < n { load 8 } else { hint rare; each of 8: A[first + e] if first + e < n else 0 }

Groups that are inside or outside as a whole ask once, and are not ragged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from tilewright.ir.analysis.bounds import Ranges, multiple_of
from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Const,
    Expr,
    Load,
    Var,
    binary,
    cast,
    const,
    logical_and,
    select,
    substitute,
    wrap,
)
from tilewright.ir.op import Body, For, Hint, If, Op, Store, is_rare
from tilewright.ir.simplify import simplify
from tilewright.passes.lower.lowering import Lowering
from tilewright.support.errors import Loc

ELEMENT = Var(" element")  # of a group


@dataclass(frozen=True)
class Ragged:
    """A group of `count` elements: whether the `whole` of it is in the tensor, whether `ELEMENT`
    of it is (`inside`), and how many from its first on are `left` there."""

    count: int
    whole: Expr
    inside: Expr
    left: Expr

    def map(self, rule: Callable[[Expr], Expr]) -> Ragged:
        """The same of a group that `rule` puts elsewhere."""
        whole, inside, left = map(rule, (self.whole, self.inside, self.left))
        return replace(self, whole=whole, inside=inside, left=left)

    def move(
        self,
        low: Lowering,
        whole: Body,
        memory: tuple[Buffer, Sequence[Expr]],
        registers: tuple[Buffer, Expr],
        store: bool,
        loc: Loc | None,
        wanted: Expr,
    ) -> Op:
        """`whole` in one piece, as it is where nothing parts it, or one by one what is in the
        tensor and `wanted`; a load reads zeros for what is not."""
        (tensor, start), (held, first) = memory, registers
        e = low.var("e")
        cond = logical_and(wanted, simplify(substitute(self.inside, {ELEMENT: e})))
        place, slot = (*start[:-1], simplify(start[-1] + e)), (simplify(first + e),)
        if store:
            value = cast(Load(held, slot, loc), tensor.dtype)
            each: Op = If(cond, (Store(tensor, place, value, loc=loc),), loc=loc)
        else:
            value = cast(Load(tensor, place, loc), held.dtype)
            each = Store(held, slot, select(cond, value, const(0, held.dtype)), loc=loc)
        loop = For(e, const(0), const(self.count), (each,), kind="unroll", loc=loc)
        return If(self.whole, whole, (Hint("rare", loc=loc), loop), loc=loc)

    def amount(self, wanted: Expr, size: int) -> Expr:
        """The bytes of a `wanted` group that are in the tensor, `size` of an element: what an
        instruction is told that fills up with zeros."""
        first = simplify(substitute(self.inside, {ELEMENT: const(0)}))
        some = binary("min", self.left, const(self.count)) * size
        return select(logical_and(wanted, first), some, const(0))


def ragged(
    low: Lowering, buffer: Buffer, starts: Sequence[Expr], count: int, ranges: Ranges
) -> Ragged | None:
    """How `count` elements of a tensor from `starts` on, a multiple of `count`, may be in it by a
    part; None where they are inside or outside as a whole."""
    size = buffer.shape[-1]
    if multiple_of(size, ranges) % count == 0:
        return None
    before = low.ranges

    def inside(more: Expr) -> Expr:
        return low.within(buffer, (*starts[:-1], simplify(starts[-1] + more, low.ranges)))

    # the last is not negative where the first, a multiple, is not
    low.ranges = ranges.where(ELEMENT, 0, count - 1)
    whole, each = inside(const(count - 1)), inside(ELEMENT)
    low.ranges = before
    if whole is TRUE or each is FALSE:
        return None
    left = simplify(size - starts[-1], ranges)
    return Ragged(count, whole, each, left)


def joined(ops: Iterable[Op]) -> list[Op]:
    """`ops` with one question for neighbours that ask the same, as those of one place in several
    tensors do: the compiler of the code leaves them apart."""
    found: list[Op] = []
    for op in ops:
        last = found[-1] if found else None
        match last, op:
            case If(a, x, rare), If(b, y, (_, *rest) as other) if a is b:
                if is_rare(rare) and is_rare(other):
                    found[-1] = replace(last, then=x + y, orelse=(*rare, *rest))
                    continue
        found.append(op)
    return found


def may_end_within(low: Lowering, buffer: Buffer) -> bool:
    """Whether vectors are for tensors that may end within one. They must begin on a vector then:
    for others there is another form (`-rows=any`) where sizes are known at launch only. Known sizes
    have one form, and take slices that begin anywhere."""
    return not low.anywhere and not isinstance(buffer.shape[-1], Const)


def vectors_in(low: Lowering, buffer: Buffer, count: int) -> bool:
    """Whether each row of a tensor begins on a vector of `count` elements, and may have one."""
    last = buffer.shape[-1]
    rows, step = buffer.shape[-1:] if buffer.rank > 1 else (), wrap(1)
    if buffer.strides is not None:
        rows, step = buffer.strides[:-1], buffer.strides[-1]
    return (
        isinstance(step, Const)
        and step.value == 1
        and not (isinstance(last, Const) and int(last) < count)
        and all(multiple_of(row, low.ranges) % count == 0 for row in rows)
        and low.begins_on(buffer, count * buffer.dtype.bits // 8)
    )
