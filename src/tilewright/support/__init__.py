"""Errors, settings, caches and keys: imported by every other package."""

from time import time_ns

# of the first import of anything that compiles: sources that change later are not what runs
LOADED_AT = time_ns()
