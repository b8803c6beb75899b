"""What the fuzzer found, each as the kernel it printed, by hand made a little nicer."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T


@pytest.fixture(params=("cpu", "interp -sanitize"))
def target(request):
    return request.param


@pytest.mark.parametrize("shape", [(1, 8), (8, 1), (1, 1)])
def test_a_row_is_transposed_to_a_column(target, shape):
    @T.prim_func
    def main(A: T.Tensor(shape, "float32"), O: T.Tensor(shape[::-1], "float16")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared(shape, "float32")
            b = T.alloc_fragment(shape[::-1], "float16")
            T.copy(A, a)
            T.transpose(a, b)
            T.copy(b, O)

    a = np.arange(8, dtype=np.float32)[: shape[0] * shape[1]].reshape(shape)
    o = np.zeros(shape[::-1], np.float16)
    tw.compile(main, target=target)(a, o)
    np.testing.assert_array_equal(o, a.T)
