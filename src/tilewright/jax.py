"""Kernels and formulas inside `jax.jit`: `tilewright.jax.call(kernel, …)`."""

from __future__ import annotations

from tilewright.frameworks.jax_call import call

__all__ = ["call"]
