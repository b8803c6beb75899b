"""Timing kernels and anything else. Public names only."""

from tilewright.runtime.bench import Profiler, TensorSupplyType, do_bench, rotate
from tilewright.runtime.timing import Race, measure, spread

__all__ = ["Profiler", "Race", "TensorSupplyType", "do_bench", "measure", "rotate", "spread"]
