"""Tuning, by the names that ported scripts import. Public names only."""

from tilewright.tune.configs import AutoTuner, AutotuneResult, autotune, set_autotune_inputs

__all__ = ["AutoTuner", "AutotuneResult", "autotune", "set_autotune_inputs"]
