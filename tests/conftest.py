"""Hypothesis profiles: `ci` gives the same examples on every run, `explore` looks for new ones."""

import os

from hypothesis import settings

# A first call compiles, later ones do not: a deadline would measure the cache.
settings.register_profile("ci", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
