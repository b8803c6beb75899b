"""Folds of one axis that use one another, as one pass over it."""
