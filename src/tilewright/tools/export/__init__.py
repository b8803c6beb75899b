"""Kernels as files that need no Python: machine code, a header and a launcher in C++."""
