"""Hypothesis profiles: `ci` gives the same examples on every run, `explore` looks for new ones.
And the end of a run whose GPU hangs."""

import os
import sys

from hypothesis import settings

# what a test does not say must not depend on whether the machine has a GPU
os.environ.setdefault("TILEWRIGHT_TARGET", "cpu")
# several processes share a GPU, and JAX would take three quarters of its memory
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# A first call compiles, later ones do not: a deadline would measure the cache.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_unconfigure():
    roads = sys.modules.get("tests.roads")
    if roads is not None:
        roads.leave_if_lost()
