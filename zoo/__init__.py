"""Kernels people use, each with its reference, its test and its benchmark."""
