"""Folds over windows: each element reads a few places of an array beside its own.

A value with the dimensions of the windows would be read by gathers and folded across threads. They
are written as loops over one place of the window at a time instead, each of which reads a tile that
is shifted: what windows share stays in caches and registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from tilewright.ir.core import *
from tilewright.ir.formula import Array, reads, vars_of

ROLE = "window"
# places of a window, and along one axis; longer ones are read by threads side by side
MOST, LONGEST = 256, 32
MERGE = {
    "sum": "{0} += {1}",
    "prod": "{0} *= {1}",
    "max": "{0} = T.maximum({0}, {1}, keep_nan=True)",
    "min": "{0} = T.minimum({0}, {1}, keep_nan=True)",
}  # fmt: skip


def is_window(f: Array) -> bool:
    """Whether each of the axes that are folded shifts where an array is read along another."""
    if f.monoid not in MERGE or f.scan or not _is_kept(f):
        return False
    places = [variables(i) for read in reads(f) for i in read.indices]
    own, lengths = {*f.vars}, [axis.extent for axis in f.over]
    if not all(isinstance(n, int) and n <= LONGEST for n in lengths) or prod(lengths) > MOST:
        return False
    return all(any(v in place and own & place for place in places) for v in vars_of(f.over))


def _is_kept(f: Array) -> bool:
    """Whether a state of at least 32 bits gives the same as the fold."""
    kind = f.body.dtype
    return kind.is_float and (kind.bits >= 32 or f.monoid in ("max", "min"))


def as_windows(roles: dict[Var, str], arrays: Sequence[Array]) -> dict[Var, str]:
    """`roles`, where the folds over windows that some tile reads are loops over places, along
    which none of the kernel's other `arrays` has elements."""
    found = dict(roles)
    for f in arrays:
        tiled = any(roles.get(v) == "tile" for v in f.vars)
        others = {v for g in arrays if g is not f for v in vars_of(g.domain)}
        if tiled and is_window(f) and others.isdisjoint(vars_of(f.over)):
            found |= dict.fromkeys(vars_of(f.over), ROLE)
    return found
