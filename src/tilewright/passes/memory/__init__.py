"""Passes that place tiles: lifetimes, shared memory, registers."""
