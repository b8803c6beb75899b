"""The interpreter: what every op means, in NumPy, sequential and scheduled, and the sanitizer."""

from tilewright.interp.run import RunResult, run, run_threads

__all__ = ["RunResult", "run", "run_threads"]
