"""The different values of an array, without what NumPy's own function costs a fresh process."""

from __future__ import annotations

from typing import Any

import numpy as np


def distinct(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The different values, in order. `np.unique` imports numpy.ma when it is first called, which
    takes as long as the largest pass.

    >>> distinct(np.array([[3, 1], [1, 2]])).tolist()
    [1, 2, 3]
    """
    found = np.sort(values, axis=None)
    new = np.ones(found.shape, np.bool_)
    new[1:] = found[1:] != found[:-1]
    result: np.ndarray[Any, Any] = found[new]
    return result
