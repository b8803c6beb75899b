"""Timing and checking one kernel, and contenders in turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np

from tilewright.ir.bind import static_value
from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var
from tilewright.runtime.arrays import Array, as_numpy, torch_loaded

if TYPE_CHECKING:
    from tilewright.runtime.kernel import CompiledKernel


class TensorSupplyType(str, Enum):
    """How a profiler fills inputs it makes itself."""

    Auto = "auto"
    Randn = "randn"
    Normal = "normal"
    Uniform = "uniform"
    Integer = "integer"
    Zero = "zero"
    One = "one"


def supply(kind: Any, shape: tuple[int, ...], dtype: DType, rng: np.random.Generator) -> Array:
    """An array of `shape` filled as `kind` says; 'auto' is uniform in [-1, 1] for floats, small
    integers for integers."""
    kind = TensorSupplyType(str(getattr(kind, "value", kind)).lower())
    if kind is TensorSupplyType.Zero:
        return np.zeros(shape, dtype.numpy)
    if kind is TensorSupplyType.One:
        return np.ones(shape, dtype.numpy)
    if dtype.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if kind is TensorSupplyType.Integer or not dtype.is_float:
        low = max(int(dtype.min_value), -2) if dtype.kind != "uint" else 0
        high = min(int(dtype.max_value), 2)
        return rng.integers(low, high, shape, endpoint=True).astype(dtype.numpy)
    if kind is TensorSupplyType.Normal:
        # ported references choose their tolerances for this mean, which keeps sums from cancelling
        return rng.normal(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    if kind in (TensorSupplyType.Uniform, TensorSupplyType.Auto):
        return rng.uniform(-1, 1, shape).astype(np.float32).astype(dtype.numpy)
    return rng.standard_normal(shape, np.float32).astype(dtype.numpy)


class Profiler:
    """Makes inputs for a kernel, checks it against a reference, and times it."""

    def __init__(self, kernel: CompiledKernel, supply_type: Any = "auto", seed: int = 0) -> None:
        self.kernel = kernel
        self.supply_type = supply_type
        self.seed = seed

    @property
    def func(self) -> CompiledKernel:
        """The kernel itself."""
        return self.kernel

    def inputs(self, sizes: Mapping[str, int] | None = None) -> list[Any]:
        """One fresh argument per parameter that is not made by the kernel."""
        rng = np.random.default_rng(self.seed)
        launcher = self.kernel.launcher
        bound: dict[Var, int] = {}
        for dim in self.kernel.program.dims:
            default = dim.multiple_of * max(1, -(-max(dim.min, 128) // dim.multiple_of))
            bound[dim.var] = (sizes or {}).get(dim.var.name, min(default, dim.max or default))
        made: list[Any] = []
        for i in launcher.inputs:
            param = launcher.params[i]
            if isinstance(param, Buffer):
                shape = tuple(static_value(s, bound) for s in param.shape)
                made.append(_in_torch(supply(self.supply_type, shape, param.dtype, rng)))
            else:
                made.append(1)
        return made

    def run_once(self, func: Callable[..., Any] | None = None) -> Any:
        return (func or self.kernel)(*self.inputs())

    def assert_allclose(
        self,
        reference: Callable[..., Any],
        input_tensors: Sequence[Any] | None = None,
        rtol: float = 1e-2,
        atol: float = 1e-2,
        max_mismatched_ratio: float = 0.0,
        **_: Any,
    ) -> None:
        """Run both on the same inputs and compare what comes back (or what was written)."""
        ins = list(input_tensors) if input_tensors is not None else self.inputs()
        got = self.kernel(*ins)
        if got is None:
            launcher = self.kernel.launcher
            names = [launcher.params[i].name for i in launcher.inputs]
            got = [v for n, v in zip(names, ins, strict=True) if n in launcher.written]
            ins = [v for n, v in zip(names, ins, strict=True) if n not in launcher.written]
        want = reference(*ins)
        got, want = _as_list(got), _as_list(want)
        for index, (a, b) in enumerate(zip(got, want, strict=True)):
            x = as_numpy(a, "result").astype(np.float64)
            y = as_numpy(b, "reference").astype(np.float64)
            bad = ~np.isclose(x, y, rtol=rtol, atol=atol, equal_nan=True)
            if bad.mean() > max_mismatched_ratio:
                worst = float(np.nanmax(np.abs(x - y)))
                raise AssertionError(
                    f"{self.kernel.name}: result {index} differs in {int(bad.sum())} of "
                    f"{bad.size} elements, worst by {worst:.3g} (rtol={rtol}, atol={atol})"
                )

    def do_bench(
        self,
        fn: Callable[..., Any] | None = None,
        warmup: float = 25,
        rep: float = 100,
        backend: str = "event",
        input_tensors: Sequence[Any] | None = None,
        **_: Any,
    ) -> float:
        """Median milliseconds of one call; `warmup` and `rep` are budgets in milliseconds."""
        ins = list(input_tensors) if input_tensors is not None else self.inputs()
        run: Callable[[], Any] = (lambda: (fn or self.kernel)(*ins)) if ins or not fn else fn
        return do_bench(run, warmup, rep, backend)


def do_bench(
    fn: Callable[[], Any], warmup: float = 25, rep: float = 100, backend: str = "event", **_: Any
) -> float:
    """Median milliseconds of one call of `fn`; `warmup` and `rep` are budgets in milliseconds.

    >>> do_bench(lambda: kernel(a, b, c))           # doctest: +SKIP
    """
    times = measure({"it": fn}, warmup=warmup / 1e3, budget=rep / 1e3)["it"]
    return statistics.median(times) * 1e3


def measure(
    contenders: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 10,
    warmup: float = 0.05,
    budget: float = 1.0,
    burst: float = 1e-3,
    pause: float = 0.0,
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one entry a round; contenders take turns in every
    round, and a round is a burst of at least `burst` seconds.

    Between bursts there is a `pause`: the threads of a BLAS spin for tens of milliseconds after
    a product, and would take the next contender's cores."""
    repeats: dict[str, int] = {}
    for name, run in contenders.items():
        begin = time.perf_counter()
        run()
        once = max(time.perf_counter() - begin, 1e-7)
        while time.perf_counter() - begin < warmup:
            start = time.perf_counter()
            run()
            once = max(time.perf_counter() - start, 1e-7)
        repeats[name] = max(1, int(burst / once))
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for done in range(10_000):
        if done >= 3 and (done >= rounds or time.perf_counter() - begin > budget):
            break
        for name, run in contenders.items():
            count = repeats[name]
            if pause:
                time.sleep(pause)
            start = time.perf_counter()
            for _ in range(count):
                run()
            taken[name].append((time.perf_counter() - start) / count)
    return taken


def _in_torch(array: Array) -> Any:
    """A PyTorch tensor when the caller works with PyTorch and it has the type."""
    if not torch_loaded():
        return array
    import torch

    name = array.dtype.name
    ours = getattr(torch, name, None)
    if ours is None:
        return array
    try:
        return torch.from_numpy(array)
    except TypeError:
        carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(carrier)).view(ours)


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, (list, tuple)) else [value]
