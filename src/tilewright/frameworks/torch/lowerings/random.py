"""Random numbers as formulas."""

from __future__ import annotations

from math import prod
from typing import Any

from tilewright.frameworks.torch.lowerings.rows import flat
from tilewright.frameworks.torch.lowerings.table import POINTWISE, lower
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.frameworks.torch.random import MULTIPLIER, WORD, philox


def _word(x: Any) -> Any:
    return tm.astype(x & WORD, "uint32")


def _wide(x: Any) -> Any:
    return tm.astype(x, "uint64")


def _product(a: Any) -> tuple[Any, Any]:
    found = _wide(a) * tm.full((), MULTIPLIER, dtype="uint64")
    return tm.astype(found >> tm.full((), 32, dtype="uint64"), "uint32"), tm.astype(found, "uint32")


def _places(shape: Any) -> Any:
    """The index of each element in the flattened tensor."""
    if all(isinstance(n, int) for n in shape) and prod(shape) < 1 << 31:
        return tm.astype(tm.array(shape, lambda *at: flat(at, shape)), "uint32")
    found: Any = tm.zeros(shape, dtype="uint32")
    for d, n in enumerate(shape):
        size_of_axis = tm.astype(tm.full((), 0, dtype="int64") + n, "uint32")
        found = found * size_of_axis + tm.astype(tm.indices(found, d), "uint32")
    return found


@lower("tilewright.uniform.default", POINTWISE)
def uniform(seed: Any, stream: int, size: Any, *, out: Any) -> Any:
    """Element `i` of the flattened tensor has the counter i."""
    seed = tm.reshape(seed, ())
    key, high = _word(seed), _word(seed >> 32 ^ stream)
    bits = philox(_places(out.shape), key, high, _product)
    return tm.astype(bits >> tm.full((), 8, dtype="uint32"), "float32") * 2.0**-24
