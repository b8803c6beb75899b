"""The registers in which threads hold a region of a fragment."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from tilewright.ir.buffer import Region
from tilewright.ir.expr import Expr, Var, const
from tilewright.ir.layout.fragment import IDLE, Fragment
from tilewright.ir.layout.layout import Indices
from tilewright.ir.op import Op
from tilewright.passes.lower.lowering import Lowering
from tilewright.support.errors import CompileError

_Part = tuple[tuple[int, ...], Indices]


@dataclass
class Held:
    """Registers of `region`, in order: the k-th holds, in each thread, element `table[thread, k]`
    of the region (row-major). Where the region begins may depend on unrolled variables, what is
    in it may not."""

    low: Lowering
    region: Region
    op: Op
    _parts: dict[tuple[int, ...], _Part] = field(default_factory=dict)

    def __post_init__(self) -> None:
        fragment = self.region.buffer.layout
        assert isinstance(fragment, Fragment)
        if fragment.threads != self.low.instance.threads:
            raise CompileError(
                f"{self.region.buffer.name} is spread over {fragment.threads} threads, "
                f"{self.low.instance.threads} run this",
                loc=self.op.loc,
                got=repr(fragment),
            )
        self.fragment = fragment
        self.first(0)

    @property
    def tile(self) -> tuple[int, ...]:
        return self.region.static_tile

    @property
    def table(self) -> Indices:
        return next(iter(self._parts.values()))[1]

    @property
    def values(self) -> int:
        return int(self.table.shape[1])

    def coords(self) -> tuple[Indices, ...]:
        """[thread, k] of every dimension of the tile."""
        return tuple(np.asarray(c) for c in np.unravel_index(self.table, self.tile))

    def first(self, start: int, count: int = 1, var: Var | None = None, step: int = 0) -> Expr:
        """The first of the registers `start` … `start + count - 1`, which are consecutive; `var`
        (unrolled) times `step` further on when given."""

        def index(place: tuple[int, ...]) -> int:
            *corner, times = place
            registers, _ = self._part(tuple(corner))
            at = start + times * step
            found = registers[at : at + count]
            if found != tuple(range(found[0], found[0] + count)):
                raise CompileError(
                    f"{self.region.buffer.name} does not hold consecutive registers for this",
                    loc=self.op.loc,
                    got=repr(self.fragment),
                )
            return found[0]

        starts = (*self.region.starts, const(0) if var is None else var)
        return self.low.register_index(starts, index, self.op.loc)

    def runs(self, count: int) -> bool:
        """Whether each `count` registers in a row are consecutive and begin at a multiple of
        it, or of those that share 32 bits, wherever the region begins."""
        pack = max(32 // self.region.dtype.bits, 1)
        for registers, _ in self._parts.values():
            groups = np.array(registers).reshape(-1, count)
            whole = groups == groups[:, :1] + np.arange(count)
            if not whole.all() or (groups[:, 0] % min(pack, count)).any():
                return False
        return True

    def _part(self, starts: tuple[int, ...]) -> _Part:
        if starts not in self._parts:
            self._parts[starts] = self._find(starts)
            if not np.array_equal(self._parts[starts][1], self.table):
                raise CompileError(
                    f"parts of {self.region.buffer.name} are held in different ways",
                    loc=self.op.loc,
                    got=repr(self.fragment),
                )
        return self._parts[starts]

    def _find(self, starts: tuple[int, ...]) -> _Part:
        found = _part_of(self.fragment, starts, tuple(int(e) for e in self.region.extents))
        if found is None:
            raise CompileError(
                f"threads hold different registers of this part of {self.region.buffer.name}",
                loc=self.op.loc,
                got=repr(self.fragment),
            )
        return found


@lru_cache(maxsize=32)
def _part_of(fragment: Fragment, starts: tuple[int, ...], extents: tuple[int, ...]) -> _Part | None:
    """The registers of a part of a fragment, and what they hold; None where that is not the same
    ones in all threads. Whoever chooses a copy asks, and who lowers it asks again."""
    table = fragment.table()
    coords = np.unravel_index(np.maximum(table, 0), fragment.tile)
    inside = table != IDLE
    index = np.zeros_like(table)
    for c, start, extent in zip(coords, starts, extents, strict=True):
        inside = inside & (c >= start) & (c < start + extent)
        index = index * extent + c - start
    if (inside != inside[:1]).any() or not inside.any():
        return None
    registers = np.flatnonzero(inside[0])
    held = index[:, registers]
    held.flags.writeable = False
    return tuple(registers.tolist()), held
