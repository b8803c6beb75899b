"""`distinct` is NumPy's `unique`."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.support.distinct import distinct


@pytest.mark.parametrize(
    "values", [[], [5], [[3, -1, 3], [0, -1, 7]], [True, False, True], list(range(100)) * 3]
)
def test_distinct_is_unique(values) -> None:
    found = np.array(values)
    assert np.array_equal(distinct(found), np.unique(found))
