"""Lowering of tile ops to thread code."""
