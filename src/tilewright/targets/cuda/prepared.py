"""A call that was checked, ready to be launched: with scratch wherever that lies, and again with
tensors elsewhere."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any

from tilewright.ir.dtype import DType
from tilewright.support.errors import TilewrightError
from tilewright.targets.arrays import ArrayView, common_device
from tilewright.targets.cuda.launch import KEPT, CudaModule, Step, make_step
from tilewright.targets.cuda.tensormap import SM_COUNT, Sizes, evaluate
from tilewright.targets.dlpack import row_major


class Prepared:
    """A checked call; all is known but where its scratch will lie. `written` names the tensors that
    it writes."""

    def __init__(
        self,
        module: CudaModule,
        views: Mapping[str, ArrayView],
        scalars: Mapping[str, bytes],
        sizes: Sizes,
        stream: int,
        written: Collection[str] = (),
    ) -> None:
        self.module, self.scalars, self.stream = module, scalars, stream
        self.views = {name: replace(view, owner=None) for name, view in views.items()}
        self.given: dict[str, Any] = {n: v.address for n, v in views.items()} | {**scalars}
        pairs = ((a, b) for a in views for b in views if a in written and a != b)
        self.pairs = [(a, b, *views[a].apart(views[b])) for a, b in pairs]
        self._like: tuple[Step, ...] | None = None  # those of the first address
        self.loaded = module.load(common_device(views))
        self.device = self.loaded.device
        self.sizes = {**sizes, **module.integers(scalars), SM_COUNT: self.device.sms}
        self.scratch_bytes = 0
        self.scratch: dict[str, tuple[int, tuple[int, ...], DType]] = {}
        for b in module.scratch:
            shape = tuple(evaluate(s, self.sizes) for s in b.shape)
            self.scratch[b.name] = (self.scratch_bytes, shape, b.dtype)
            unaligned = self.scratch_bytes + b.dtype.storage_bytes(prod(shape))
            self.scratch_bytes = -(-unaligned // _SCRATCH_ALIGN) * _SCRATCH_ALIGN
        self._steps: dict[int, tuple[Step, ...]] = {}  # by where scratch lies

    def moved(self, given: dict[str, Any]) -> Prepared | None:
        """The same call with tensors at other addresses, as aligned as these, and with other
        encoded scalars; None where tensors might overlap, or lie nowhere."""
        if any(low < given[b] - given[a] < high for a, b, low, high in self.pairs):
            return None
        if not all(given[name] for name in self.views):
            return None
        found = copy.copy(self)
        found.given, found._steps = given, {}
        return found

    def steps(self, address: int) -> tuple[Step, ...]:
        """The launches with scratch at `address`."""
        maps = self.module.maps()
        given = {**self.given, **{n: address + first for n, (first, *_) in self.scratch.items()}}
        if self._like is not None:
            return tuple(step.moved(given, maps) for step in self._like)
        ordinal = self.device.ordinal
        views = {name: replace(view, address=given[name]) for name, view in self.views.items()}
        scalars = {name: given[name] for name in self.scalars}
        for name, (_, shape, dtype) in self.scratch.items():
            views[name] = ArrayView(given[name], shape, row_major(shape), dtype, ordinal)
        made = (
            make_step(spec, self.loaded, self.stream, views, scalars, self.sizes, maps)
            for spec in self.module.specs
        )
        self._like = tuple(step for step in made if step is not None)
        return self._like

    def run(self) -> None:
        """Allocate, launch, free: the memory goes to the next call on the stream, which mostly
        gets the same address."""
        if not self.module.scratch:  # called beside a form that has some
            self.module.run(self.kept(0))
            return
        found = self.module.driver
        address = found.allocate(self.device, self.scratch_bytes, self.stream)
        try:
            self.module.run(self.kept(address))
        except BaseException:
            with suppress(TilewrightError):  # a lost context has nothing left to give back
                found.free(self.device, address, self.stream)
            raise
        found.free(self.device, address, self.stream)

    def kept(self, address: int) -> tuple[Step, ...]:
        steps = self._steps.get(address)
        if steps is None:
            if len(self._steps) >= KEPT:
                self._steps.clear()
            steps = self._steps[address] = self.steps(address)
        return steps


_SCRATCH_ALIGN = 1024
