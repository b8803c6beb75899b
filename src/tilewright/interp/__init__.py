"""The interpreter: what every op means, in NumPy, sequential and scheduled, and the sanitizer."""

from tilewright.interp.run import RunResult, run, run_threads
from tilewright.interp.step import State, Stepper, Stopped

__all__ = ["RunResult", "State", "Stepper", "Stopped", "run", "run_threads"]
