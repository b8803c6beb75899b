"""The interpreter: what every op means, in NumPy, sequential and scheduled, and the sanitizer."""

from tilewright.machine.run import RunResult, run, run_threads
from tilewright.machine.step import State, Stepper, Stopped

__all__ = ["RunResult", "State", "Stepper", "Stopped", "run", "run_threads"]
