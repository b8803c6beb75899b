"""One runnable case of a kernel: inputs, the kernel, the reference, and the same work in NumPy."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Run = Callable[[], Any]


@dataclass(frozen=True)
class Case:
    """`build(target)` gives a call that returns the kernel's result, `reference()` the fp64 truth.

    `numpy()` does the same work the way a NumPy user would write it, for comparison of speed, and
    so do `others`: each gives its call for a target, or None where it is not there. `bars` says
    how many times as fast as each of them the kernel should be on a CPU. `bound` is the error
    allowed, relative to the largest value of the reference.
    """

    name: str
    shape: str
    build: Callable[[str], Callable[[], np.ndarray]]
    reference: Callable[[], np.ndarray]
    numpy: Callable[[], np.ndarray]
    bound: float
    bars: Mapping[str, float] = field(default_factory=dict)
    others: Mapping[str, Callable[[str], Run | None]] = field(default_factory=dict)

    def error(self, got: np.ndarray) -> float:
        """Largest difference from the reference, relative to its largest value."""
        want = self.reference()
        scale = max(float(np.max(np.abs(want))), 1e-30)
        return float(np.max(np.abs(got.astype(np.float64) - want))) / scale


def with_torch(code: Callable[..., Any], *arrays: np.ndarray) -> Callable[[str], Run | None]:
    """`code(torch, *tensors)` as a contender on the CPU, where PyTorch is installed."""

    def build(target: str) -> Run | None:
        try:
            torch = importlib.import_module("torch")
        except ImportError:
            return None
        tensors = [torch.from_numpy(array) for array in arrays]
        return lambda: code(torch, *tensors)

    build.code = code  # type: ignore[attr-defined]
    return build


def normal(*shape: int, dtype: Any = np.float32, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng([seed, *shape])
    return rng.standard_normal(shape, np.float32).astype(dtype)


def within(got: np.ndarray, want: np.ndarray, relative: float, absolute: float = 0.0) -> None:
    """Every element within its bound of the reference; NaN is in none."""
    far = np.abs(got.astype(np.float64) - want)
    bound = relative * np.abs(want) + absolute
    worst = np.unravel_index(np.argmax(np.where(far <= bound, -1.0, far - bound)), far.shape)
    assert (far <= bound).all(), f"{got[worst]} instead of {want[worst]} at {worst}"
