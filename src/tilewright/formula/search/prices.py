"""Prices of kernels: seconds, by what they move and compute.

A closed formula on the plan of a kernel is enough to see what cannot pay; `modelled` asks the
chooser's model about the tile program, for alternatives that are close. `least` is a bound that no
grouping of a formula is below.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, inf, prod
from typing import Any

from tilewright.formula.matrices import Product, product_of
from tilewright.formula.search.rewrites import has_whole_rows
from tilewright.formula.tiles.kernels import KernelPlan
from tilewright.ir.analysis.lines import UNKNOWN
from tilewright.ir.atoms import Feature
from tilewright.ir.chips import Chip
from tilewright.ir.core import *
from tilewright.ir.formula import Extent, Formula, extents, most, reads, vars_of
from tilewright.ir.target import Target
from tilewright.passes.overlap import unit_times as units

ROWS, COLUMNS = 128, 256  # of a tile, for how often what is beside it is computed again
LAUNCH = 1.5e-6  # seconds from one kernel's end to the next one's loads
FEEDS = 5  # times its part of the bandwidth of DRAM is what one multiprocessor can take
LOADS = 2  # instructions for an element that threads load and convert for a product
WEIGHTS = {"exp": units.SPECIAL, "exp2": units.SPECIAL, "log": units.SPECIAL, "erf": 20, "tanh": 12}


@dataclass(frozen=True)
class Price:
    """Seconds of one kernel's units, and bytes that it moves. `extra`: of threads, which make
    operands while the tensor core waits for them."""

    tensor: float = 0.0
    threads: float = 0.0
    extra: float = 0.0
    memory: float = 0.0
    bytes: int = 0
    launches: int = 1

    @property
    def seconds(self) -> float:
        busy = max(self.tensor + self.extra, self.threads, self.memory)
        return busy + LAUNCH * self.launches

    @property
    def limit(self) -> str:
        """The unit that is busy longest."""
        found = {"tensor core": self.tensor, "threads": max(self.threads, self.extra),
                 "DRAM": self.memory}  # fmt: skip
        busiest = max(found, key=lambda unit: found[unit])
        return busiest if found[busiest] > LAUNCH else "launch"


@dataclass(frozen=True)
class Rates:
    """Of all multiprocessors in a second: bytes of DRAM and of the L2 cache, operations of tensor
    cores in 16 bits, and of threads."""

    chip: Chip
    wgmma: bool

    @property
    def cycles(self) -> float:
        return units.CLOCK * self.chip.multiprocessors

    @property
    def bytes(self) -> float:
        return self.cycles * self.chip.dram_bytes

    @property
    def l2(self) -> float:
        return self.cycles * self.chip.l2_bytes

    @property
    def threads(self) -> float:
        return self.cycles * units.LANES

    def products(self, bits: int) -> float:
        """Products of two elements, which are added up."""
        if bits > 16:
            return self.threads
        each = units.PRODUCTS_PER_CYCLE if self.wgmma else self.chip.warp_products
        return self.cycles * each * 16 / max(bits, 8)


def rates_of(target: Target) -> Rates:
    return Rates(target.chip, Feature.WGMMA in target.features)


def price_of(
    kernel: KernelPlan, inputs: Iterable[Buffer], rates: Rates, shared: bool = False
) -> Price:
    """What a kernel takes, each array in memory read or written once. With `shared`, blocks share
    its loop, and a second kernel combines what they leave."""
    found = _Kernel(kernel, rates, shared).price(inputs)
    return replace(found, launches=2) if shared else found


class _Kernel:
    def __init__(self, kernel: KernelPlan, rates: Rates, shared: bool) -> None:
        self.kernel, self.rates, self.shared = kernel, rates, shared
        self.sizes = {v: size_of(n, kernel.sizes) for v, n in kernel.extents.items()}
        self.products = {f.name: p for f in kernel.folds if (p := product_of(f)) is not None}

    def count(self, axes: Iterable[Var]) -> float:
        return prod(float(self.sizes[v]) for v in axes)

    def tiles(self, variables: Collection[Var], tile: int) -> float:
        """How many blocks lie along axes of the grid."""
        found = 1.0
        for axis in self.kernel.grid:
            if axis.var in variables:
                size = self.sizes[axis.var]
                found *= size if self.kernel.roles[axis.var] == "each" else ceil(size / tile)
        return found

    def price(self, inputs: Iterable[Buffer]) -> Price:
        tensor = threads = extra = 0.0
        grid = {*vars_of(self.kernel.grid)}
        for f in self.kernel.folds:
            own = {*vars_of(f.domain)}
            again = self.tiles(grid - own, COLUMNS)
            elements = self.count(own) * again
            product = self.products.get(f.name)
            if product is None:
                threads += elements * weight(f.body) / self.rates.threads
                continue
            bits = bits_of(product)
            tensor += elements / self.rates.products(bits)
            for side in (product.left, product.right):
                extra += self.operand(side, own) * again
        for a in self.kernel.outputs:
            if a.is_pointwise:
                threads += self.count(a.vars) * weight(a.body) / self.rates.threads
        moved = self.moved(inputs)
        # few blocks leave most of the chip idle
        blocks = self.tiles(grid, ROWS if self.products else 1)
        part = min(1.0, blocks / self.rates.chip.multiprocessors)
        part = 1.0 if part >= 0.5 or self.is_shared() else part
        memory = moved / (self.rates.bytes * min(1.0, FEEDS * part))
        return Price(tensor / part, threads / part, extra / part, memory, moved)

    def is_shared(self) -> bool:
        """Whether blocks share a loop, or can share the steps of the only product, as the chooser
        lets them."""
        return self.shared or (len(self.kernel.folds) == 1 and bool(self.products))

    def operand(self, side: Expr, own: Collection[Var]) -> float:
        """Seconds for what threads make of memory, for each tile of what it is multiplied with."""
        inside = {f.name for f in self.kernel.folds}
        reading = list(loads(side))
        inner = side.a if isinstance(side, Cast) else side
        plain = isinstance(inner, Load) and inner.dtype.bits <= 16
        if plain and not all(has_whole_rows(x.buffer) for x in reading):
            plain = False  # no bulk engine copies them
        if plain or any(x.buffer.name in inside & self.products.keys() for x in reading):
            return 0.0
        used = {v for v in variables(side) if v in self.sizes}
        made = self.count(used) * self.tiles(set(own) - used, ROWS)
        wide = [x for x in reading if used == {v for v in variables(x) if v in self.sizes}]
        loaded = sum(x.dtype.bits // 8 for x in dict.fromkeys(wide)) - 2
        instructions = weight(side) + LOADS * len(wide)
        return made * (instructions / self.rates.threads + max(0, loaded) / self.rates.l2)

    def moved(self, inputs: Iterable[Buffer]) -> int:
        own = {a.name for a in (*self.kernel.outputs, *self.kernel.folds)}
        memory = {b.name for b in inputs}
        found = {a.name: a.buffer for a in self.kernel.outputs}
        for a in (*self.kernel.folds, *self.kernel.outputs):
            found |= {r.buffer.name: r.buffer for r in reads(a)
                      if r.buffer.name not in own or r.buffer.name in memory}  # fmt: skip
        return sum(bytes_of(b, self.kernel.sizes) for b in found.values())


def least(formula: Formula, rates: Rates, stored: Iterable[Buffer] = ()) -> float:
    """Seconds that no grouping of the arrays of a formula is below, with what is `stored` written
    and read."""
    tensor = threads = 0.0
    for a in formula.arrays:
        elements = prod(float(size_of(x.extent, formula.sizes)) for x in a.domain)
        product = product_of(a)
        if product is None:
            threads += elements * weight(a.body) / rates.threads
        else:
            tensor += elements / rates.products(bits_of(product))
    moved = sum(bytes_of(b, formula.sizes) for b in dict.fromkeys((*formula.inputs,
                                                                   *formula.outputs)))  # fmt: skip
    kept = [b for b in stored if b not in formula.outputs]
    moved += 2 * sum(bytes_of(b, formula.sizes) for b in kept)
    return max(tensor, threads, moved / rates.bytes) + LAUNCH * (2 if kept else 1)


@lru_cache(maxsize=4096)
def weight(body: Expr) -> float:
    """Instructions for an element; what indices and elements take is not counted."""
    found = 1.0
    seen: set[Expr] = set()
    left = [body]
    while left:
        node = left.pop()
        if node in seen or isinstance(node, (Load, Const, Var)):
            continue
        seen.add(node)
        if isinstance(node, Call):
            found += WEIGHTS.get(node.name, 4)
        elif not isinstance(node, Cast):
            found += 1
        left += node.children
    return found


def bits_of(product: Product) -> int:
    """Of the type in which a product is multiplied: the narrowest float that it reads."""
    reading = [x.dtype for side in (product.left, product.right) for x in loads(side)]
    return min((kind.bits for kind in reading if kind.is_float), default=32)


def size_of(extent: Extent, sizes: tuple[Dim, ...] = ()) -> int:
    """An extent as a number, a large one where only calls know it."""
    found = most(extent, sizes)
    return UNKNOWN if found == inf else int(found)


def bytes_of(b: Buffer, sizes: tuple[Dim, ...] = ()) -> int:
    return b.dtype.storage_bytes(prod(size_of(n, sizes) for n in extents(b)))


def default_target(target: Any) -> Target:
    """That of a function if it is a GPU, otherwise the GPU that is here, or `sm_90a`."""
    from tilewright.runtime.backends import resolve

    told = Target.parse(target) if isinstance(target, str) and target != "auto" else target
    if isinstance(told, Target) and told.kind == "cuda":
        return told if told is target else resolve(str(target))
    return _here()


@lru_cache(maxsize=1)
def _here() -> Target:
    from tilewright.runtime.backends import resolve

    return resolve("cuda")
