"""The interpreter under its public name: what `machine` runs."""

from tilewright.machine import State, Stepper, Stopped, run, run_threads

__all__ = ["State", "Stepper", "Stopped", "run", "run_threads"]
