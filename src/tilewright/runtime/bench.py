"""Timing and checking one kernel: inputs made for it, a reference beside it."""

from __future__ import annotations

import importlib.util
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Any, Protocol

import numpy as np

from tilewright.ir.bind import static_value
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.runtime.launch import Launcher
from tilewright.runtime.timing import measure
from tilewright.targets.arrays import Array, ArrayView, library_of, torch_loaded, view_of


class Profiled(Protocol):
    """What a profiler needs of a compiled kernel."""

    program: Program
    target: Target
    launcher: Launcher
    __call__: Callable[..., Any]

    @property
    def name(self) -> str: ...


class TensorSupplyType(str, Enum):
    """How a profiler fills inputs it makes itself.

    >>> @T.prim_func
    ... def double(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             B[i] = A[i] * 2
    >>> kernel = tw.compile(double, target="interp")
    >>> profiler = kernel.get_profiler(tw.TensorSupplyType.One)
    >>> profiler.inputs()[0].tolist()
    [1.0, 1.0, 1.0, 1.0]
    """

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
    """Makes inputs for a kernel, checks it against a reference, and times it.

    >>> @T.prim_func
    ... def double(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             B[i] = A[i] * 2
    >>> profiler = tw.compile(double, out_idx=[-1], target="cpu").get_profiler()
    >>> profiler.assert_allclose(lambda a: a * 2)
    >>> profiler.do_bench(rep=5) > 0  # milliseconds
    True
    """

    def __init__(self, kernel: Profiled, supply_type: Any = "auto", seed: int = 0) -> None:
        self.kernel = kernel
        self.supply_type = supply_type
        self.seed = seed

    @property
    def func(self) -> Profiled:
        """The kernel itself."""
        return self.kernel

    def inputs(self, sizes: Mapping[str, int] | None = None, seed: int | None = None) -> list[Any]:
        """One fresh argument per parameter that is not made by the kernel, on the device that the
        kernel runs on; a scalar is 1."""
        rng = np.random.default_rng(self.seed if seed is None else seed)
        place = _on_gpu() if self.kernel.target.kind == "cuda" else _in_torch
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
                made.append(place(supply(self.supply_type, shape, param.dtype, rng)))
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
            x = _on_host(a, "result").astype(np.float64)
            y = _on_host(b, "reference").astype(np.float64)
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
        """Median milliseconds of one call; `warmup` and `rep` are budgets in milliseconds.

        A kernel for CUDA is timed by events (`backend="event"`) or as one CUDA graph per burst
        (`"graph"`), the inputs made here rotated when they would stay in the L2 cache. A kernel
        for the CPU is timed by the clock."""
        target = fn or self.kernel
        sets = [list(input_tensors) if input_tensors is not None else self.inputs()]
        if self.kernel.target.kind == "cuda" and input_tensors is None:
            taken = sum(map(_bytes_of, sets[0]))
            extra = min(_MOST_SETS, math.ceil(_ROTATED / max(taken, 1))) - 1
            sets += [self.inputs(seed=self.seed + i + 1) for i in range(extra)]
        return do_bench(rotate(*(partial(target, *ins) for ins in sets)), warmup, rep, backend)


# 60 MB is the L2 of an H200: what was read this long ago is no longer in it
_ROTATED = 2 * 60 * 2**20
_MOST_SETS = 32


def rotate(*calls: Callable[[], Any]) -> Callable[[], Any]:
    """A function that makes these calls in turn: the same work on other data each time, so that
    inputs which fit a cache are not found there.

    >>> calls = rotate(lambda: "a", lambda: "b")
    >>> calls(), calls(), calls()
    ('a', 'b', 'a')
    """
    turn = itertools.cycle(calls)
    return lambda: next(turn)()


def do_bench(
    fn: Callable[[], Any], warmup: float = 25, rep: float = 100, backend: str = "event", **_: Any
) -> float:
    """Median milliseconds of one call of `fn`; `warmup` and `rep` are budgets in milliseconds.
    Timed by CUDA events where a GPU is in use, or as a CUDA graph (`backend="graph"`); by the
    clock elsewhere.

    >>> do_bench(lambda: kernel(a, b, c))           # doctest: +SKIP
    """
    times = measure({"it": fn}, warmup=warmup / 1e3, budget=rep / 1e3, backend=backend)["it"]
    return statistics.median(times) * 1e3


def _on_gpu() -> Callable[[Array], Any]:
    """What moves a NumPy array to the GPU: PyTorch, or else CuPy."""
    if importlib.util.find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            return lambda array: torch.as_tensor(_in_torch(array)).cuda()
    if importlib.util.find_spec("cupy") is not None:
        import cupy

        if cupy.cuda.is_available():
            return _in_cupy
    raise LaunchError(
        "making inputs for a CUDA kernel needs PyTorch or CuPy, and a GPU",
        got="neither of them with a GPU",
        fix="pass input_tensors=[...], arrays in GPU memory",
    )


def _in_cupy(array: Array) -> Any:
    import cupy

    if array.dtype.isbuiltin == 1:  # 2: one of ml_dtypes'
        return cupy.asarray(array)
    # CuPy has no such type: its bytes, looked at as what they are
    raw = cupy.asarray(array.view(np.uint8))
    strides = tuple(s // array.itemsize for s in array.strides)
    return ArrayView(
        int(raw.data.ptr), array.shape, strides, dtype(array.dtype), int(raw.device.id), owner=raw
    )


def _on_host(value: Any, name: str) -> Array:
    if library_of(value) == "torch":
        value = value.detach().cpu()
    elif library_of(value) == "cupy":
        value = value.get()
    return view_of(value, name, host=True).numpy()


def _bytes_of(value: Any) -> int:
    size = getattr(value, "nbytes", None)
    if size is None:
        shape = getattr(value, "shape", None)
        return math.prod(shape) * value.dtype.bytes if shape is not None else 0
    return int(size)


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
