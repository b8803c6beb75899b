"""Buffers (tensors and tiles), where they live, their elements and regions of them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

from tilewright.ir import arith
from tilewright.ir.arith import Const, Expr, const, wrap
from tilewright.ir.dtype import DType
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.layout.layout import ComposedLayout, Layout
from tilewright.support.errors import CompileError, Loc

AnyLayout: TypeAlias = Layout | ComposedLayout | Fragment


class Space(str, Enum):
    """Where a buffer lives, and who sees it.

    GLOBAL: every block. SHARED: a block (and, by `Region.cta`, its cluster). FRAGMENT: one tile
    spread over the registers of the block's threads, or of the role instance that allocates it.
    LOCAL: private to a thread (or to an iteration inside `Map`); rank 0 for a scalar variable.
    BARRIER: counters in shared memory that `Arrive` and `Wait` use. TMEM: Blackwell's matrix
    memory, reserved.
    """

    GLOBAL = "global"
    SHARED = "shared"
    FRAGMENT = "fragment"
    LOCAL = "local"
    BARRIER = "barrier"
    TMEM = "tmem"


@dataclass(frozen=True)
class Buffer:
    """A tensor or a tile. Names are unique within a program.

    `strides` (in elements, global memory only) defaults to row-major. `layout` is None until
    chosen: shared memory takes a layout from row-major coordinate order to element offset,
    fragments a `Fragment`. Of tensors, `loc` is where they are declared; of outputs, `partial`
    says that some elements stay unwritten on purpose. Neither is part of what a buffer is.
    """

    name: str
    shape: tuple[Expr, ...]
    dtype: DType
    space: Space
    strides: tuple[Expr, ...] | None = None
    layout: AnyLayout | None = None
    loc: Loc | None = field(default=None, compare=False, repr=False)
    partial: bool = field(default=False, compare=False, repr=False)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_global(self) -> bool:
        return self.space is Space.GLOBAL

    @property
    def is_shared(self) -> bool:
        return self.space is Space.SHARED

    @property
    def is_fragment(self) -> bool:
        return self.space is Space.FRAGMENT

    @property
    def is_local(self) -> bool:
        return self.space is Space.LOCAL

    @cached_property
    def static_shape(self) -> tuple[int, ...]:
        """The shape as integers; an error for sizes known only at launch."""
        if not self.is_static:
            raise CompileError(f"{self.name} has sizes that are known only at launch")
        return tuple(int(s.value) for s in self.shape if isinstance(s, Const))

    @property
    def is_static(self) -> bool:
        return all(isinstance(s, Const) for s in self.shape)

    @property
    def bytes(self) -> int:
        return self.dtype.storage_bytes(prod(self.static_shape))

    @property
    def shared_bytes(self) -> int:
        """What it takes in shared memory as it is laid out there; barriers take 8 each."""
        if self.space is Space.BARRIER:
            return 8 * prod(self.static_shape)
        cosize = getattr(self.layout, "cosize", None)
        return self.bytes if cosize is None else self.dtype.storage_bytes(cosize())

    def with_layout(self, layout: AnyLayout | None) -> Buffer:
        return replace(self, layout=layout)

    def __hash__(self) -> int:
        return hash(self.name)


@dataclass(frozen=True, repr=False)
class Load(Expr):
    """One element of a buffer, read when the op that holds it runs.

    Outside a global tensor it reads zero; outside a shared, fragment or local tile it is an
    error. Equal buffer and indices make loads equal, but not the same: a store may lie between.
    """

    buffer: Buffer
    indices: tuple[Expr, ...]
    loc: Loc | None = field(default=None, compare=False)

    def __eq__(self, other: object) -> Any:
        # weak references may still compare when modules have gone
        asked = getattr(arith, "asked", None)
        found = asked("==", self, other) if asked is not None else None
        if found is not None:
            return found
        if not isinstance(other, type(self)):
            return False
        return self.buffer == other.buffer and self.indices == other.indices

    def __hash__(self) -> int:
        return hash((self.buffer, self.indices))

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.buffer.dtype

    @property
    def children(self) -> tuple[Expr, ...]:
        return self.indices

    def rebuild(self, children: tuple[Expr, ...]) -> Expr:
        return Load(self.buffer, children, self.loc)


@dataclass(frozen=True)
class Region:
    """A box of a buffer: per dimension a start and an extent.

    `cta`, for shared memory and barriers in a cluster, is the rank of the block that owns it;
    None means the block itself. Operations that match shapes drop unit extents first.
    """

    buffer: Buffer
    starts: tuple[Expr, ...]
    extents: tuple[Expr, ...]
    cta: Expr | None = None

    def __post_init__(self) -> None:
        if not len(self.starts) == len(self.extents) == self.buffer.rank:
            raise CompileError(
                f"{self.buffer.name} has {self.buffer.rank} dimensions",
                got=f"{len(self.starts)} starts and {len(self.extents)} extents",
            )

    @property
    def tile(self) -> tuple[Expr, ...]:
        """The extents that are not 1: the shape tile operations see."""
        return tuple(self.extents[d] for d in long_dims(self.extents))

    @property
    def static_tile(self) -> tuple[int, ...]:
        return tuple(int(e) for e in self.tile)

    def at(self, coords: Iterable[Expr]) -> tuple[Expr, ...]:
        """Indices of the buffer's element at `coords` of the tile."""
        inner = iter(coords)
        long = long_dims(self.extents)
        return tuple(s + next(inner) if d in long else s for d, s in enumerate(self.starts))

    @property
    def dtype(self) -> DType:
        return self.buffer.dtype

    @property
    def is_whole(self) -> bool:
        """Covers the buffer, in the block's own memory."""
        return (
            self.cta is None
            and all(isinstance(s, Const) and s.value == 0 for s in self.starts)
            and self.extents == self.buffer.shape
        )


def long_dims(extents: tuple[Expr, ...]) -> list[int]:
    """The dimensions that have more than one element, as far as is known."""
    return [d for d, e in enumerate(extents) if not (isinstance(e, Const) and e.value == 1)]


def whole(buffer: Buffer) -> Region:
    """All of `buffer`."""
    return Region(buffer, tuple(const(0) for _ in buffer.shape), buffer.shape)


def along(region: Region, dim: int, start: Expr, extent: int) -> Region:
    """`extent` elements from `start` on along one of the dimensions of a region's tile."""
    long = long_dims(region.extents)
    starts, extents = list(region.starts), list(region.extents)
    starts[long[dim]] = starts[long[dim]] + start
    extents[long[dim]] = const(extent)
    return Region(region.buffer, tuple(starts), tuple(extents), region.cta)


def element(buffer: Buffer, *indices: Expr | int, cta: Expr | None = None) -> Region:
    """One element of `buffer` as a region."""
    return Region(buffer, tuple(wrap(i) for i in indices), tuple(const(1) for _ in indices), cta)
