"""What `hint tensor_map` of thread code says about a tensor that bulk copies move."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from tilewright.ir.core import *


@dataclass(frozen=True)
class MapHint:
    """A map's name, the swizzle in bytes, the box that one copy moves; `sizes` of the shape under
    which the tensor is seen, where that is another than its own, `-1` for what is left."""

    name: str
    swizzle: int
    box: tuple[int, ...]
    sizes: tuple[int, ...] = ()

    @property
    def detail(self) -> tuple[str | int, ...]:
        seen = ("x".join(map(str, self.sizes)),) if self.sizes else ()
        return (self.name, self.swizzle, *self.box, *seen)

    @staticmethod
    def of(op: Hint) -> MapHint:
        name, swizzle, *rest = op.detail
        sizes: tuple[int, ...] = ()
        if rest and isinstance(rest[-1], str):
            sizes = tuple(int(n) for n in rest.pop().split("x"))
        return MapHint(str(name), int(swizzle), tuple(map(int, rest)), sizes)


def seen_sizes(view: Buffer) -> tuple[int, ...]:
    """`MapHint.sizes` of a tensor that is seen as `view`."""
    return tuple(int(e.value) if isinstance(e, Const) else -1 for e in view.shape)


def seen_shape(tensor: Buffer, sizes: tuple[int, ...]) -> tuple[Expr, ...]:
    """The shape that `sizes` give `tensor`."""
    whole: Expr = const(1)
    for size in tensor.shape:
        whole = whole * size
    rest = prod(n for n in sizes if n >= 0)
    return tuple(const(n) if n >= 0 else whole // rest for n in sizes)
