"""Passes over the grid: the order of tiles, persistent blocks, clusters."""
