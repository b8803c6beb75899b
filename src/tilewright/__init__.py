"""Tilewright: a Python tile language for GPU kernels, and its compiler."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# where names live; resolved on first use so that `import tilewright` stays light
_HOMES = {
    "formula.plan": "Plan",
    "runtime.jit": "jit compile par_compile PassConfigKey",
    "tune.configs": "autotune AutoTuner set_autotune_inputs",
    "runtime.kernel": "CompiledKernel JITKernel",
    "runtime.backends": "resolve current_target parse_ir",
    "runtime.bench": "TensorSupplyType Profiler",
    "runtime.timing": "measure Race",
    "tools.step": "debug trace_run",
    "ir.schedule": "Numerics Schedule",
    "ir.target": "Target",
    "ir.atoms": "Feature",
    "support.errors": "TilewrightError CompileError LaunchError PerformanceWarning RunError "
    "SanitizerError SanitizerWarning VerifyError",
}
_PUBLIC = {name: home for home, names in _HOMES.items() for name in names.split()}
_MODULES = ("autotuner", "language", "layout", "math", "profiler")

__all__ = [
    "AutoTuner",
    "CompileError",
    "CompiledKernel",
    "Feature",
    "JITKernel",
    "LaunchError",
    "Numerics",
    "PassConfigKey",
    "PerformanceWarning",
    "Plan",
    "Profiler",
    "Race",
    "RunError",
    "SanitizerError",
    "SanitizerWarning",
    "Schedule",
    "Target",
    "TensorSupplyType",
    "TilewrightError",
    "VerifyError",
    "autotune",
    "autotuner",
    "cdiv",
    "compile",
    "current_target",
    "debug",
    "jit",
    "language",
    "layout",
    "math",
    "measure",
    "next_power_of_2",
    "par_compile",
    "parse_ir",
    "profiler",
    "resolve",
    "set_autotune_inputs",
    "trace_run",
]

if TYPE_CHECKING:
    from tilewright import autotuner, language, layout
    from tilewright.formula.function import math
    from tilewright.formula.plan import Plan
    from tilewright.ir.atoms import Feature
    from tilewright.ir.schedule import Numerics, Schedule
    from tilewright.ir.target import Target
    from tilewright.runtime.backends import current_target, parse_ir, resolve
    from tilewright.runtime.bench import Profiler, TensorSupplyType
    from tilewright.runtime.jit import PassConfigKey, compile, jit, par_compile
    from tilewright.runtime.kernel import CompiledKernel, JITKernel
    from tilewright.runtime.timing import Race, measure
    from tilewright.support.errors import (
        CompileError,
        LaunchError,
        PerformanceWarning,
        RunError,
        SanitizerError,
        SanitizerWarning,
        TilewrightError,
        VerifyError,
    )
    from tilewright.tools.step import debug, trace_run
    from tilewright.tune.configs import AutoTuner, autotune, set_autotune_inputs


def cdiv(a: int, b: int) -> int:
    """⌈a / b⌉.

    >>> cdiv(10, 4)
    3
    """
    return -(-a // b)


def next_power_of_2(n: int) -> int:
    """The smallest power of two that is at least `n`.

    >>> next_power_of_2(100)
    128
    """
    return 1 << max(0, n - 1).bit_length()


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"tilewright.{name}")
    if name not in _PUBLIC:
        raise AttributeError(f"module 'tilewright' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"tilewright.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
