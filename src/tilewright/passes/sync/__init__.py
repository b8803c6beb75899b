"""Passes that order accesses: barriers, groups of matrix instructions, fences."""
