"""Reverse mode over formulas."""
