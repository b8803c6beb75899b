import numpy as np
import pytest

from zoo.case import normal
from zoo.elementwise.vector_add import reference, vector_add


@pytest.mark.parametrize("N", [1, 255, 256, 257, 5000])
def test_vector_add(target, N):
    a, b = normal(N, seed=1), normal(N, seed=2)
    c = np.full(N, np.nan, np.float32)
    vector_add.on(target)(N)(a, b, c)
    np.testing.assert_allclose(c, reference(a, b), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int8", "int32", "float16", "float64"])
def test_dtypes(target, dtype):
    a, b = (np.arange(300).astype(dtype) % s for s in (7, 5))
    c = np.zeros(300, dtype)
    vector_add.on(target)(300, dtype=dtype)(a, b, c)
    np.testing.assert_array_equal(c, a + b)
