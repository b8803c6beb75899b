"""Run a function over arrays through its formula."""

from __future__ import annotations

import numpy as np

from tilewright.formula.front.trace import trace
from tilewright.formula.meaning import evaluate


def run(function, *arrays):
    """What `function` gives for `arrays`: an array, or a tuple of them."""
    inputs = [(f"in{n}", np.shape(x), np.asarray(x).dtype) for n, x in enumerate(arrays)]
    formula = trace(function, inputs)
    found = evaluate(formula, arrays)
    return found[0] if len(found) == 1 else found
