"""Timing kernels and anything else. Public names only."""

from tilewright.runtime.bench import Profiler, TensorSupplyType, do_bench, measure

__all__ = ["Profiler", "TensorSupplyType", "do_bench", "measure"]
