"""Kernels inside other libraries' graphs."""
