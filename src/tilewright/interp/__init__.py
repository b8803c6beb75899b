"""The interpreter: what every op means, in NumPy, sequential and scheduled, and the sanitizer."""

from tilewright.interp.run import RunResult, run

__all__ = ["RunResult", "run"]
