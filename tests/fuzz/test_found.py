"""What the fuzzer found, each as the kernel it printed, by hand made a little nicer."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.targets.cuda.backend import lower
from tilewright.tools.compare import THREADS


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


@pytest.mark.parametrize("size", [63, 62, 61])
def test_a_vector_that_begins_in_a_tensor_may_end_outside(size):
    @T.prim_func
    def main(O: T.Tensor((size,), "float16")):
        with T.Kernel(T.ceildiv(size, 64), threads=32) as bx:
            for i in T.Parallel(64):
                O[bx * 64 + i] = T.cast(3, "float16")

    o = np.zeros(size, np.float16)
    machine.run_threads(lower(main.program, THREADS["threads"]).result, {"O": o})
    np.testing.assert_array_equal(o, np.full(size, 3, np.float16))


def test_one_element_of_a_view_of_a_fragment():
    @T.prim_func
    def main(A: T.Tensor((33, 3), "float32"), O: T.Tensor((1, 1), "float32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((33, 3), "float32")
            v = T.view(f, (99, 1), "float32")
            T.copy(A, f)
            T.copy(v[98:99, 0:1], O)

    a, o = np.arange(99, dtype=np.float32).reshape(33, 3), np.zeros((1, 1), np.float32)
    machine.run_threads(lower(main.program, THREADS["threads"]).result, {"A": a, "O": o})
    assert o[0, 0] == 98


def test_what_threads_read_of_their_own_on_a_condition_is_no_race():
    @T.prim_func
    def main(A: T.Tensor((2, 64), "float32"), O: T.Tensor((2, 64), "float32")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((64,), "float32")
            for k in T.serial(2):
                for j in T.Parallel(64):
                    s[j] = A[k, j]
                for j in T.Parallel(64):
                    if j + k > 63:
                        O[k, j] = s[j]

    trace = lower(main.program, THREADS["threads"])
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    a, o = np.arange(128, dtype=np.float32).reshape(2, 64), np.zeros((2, 64), np.float32)
    machine.run(scheduled, {"A": a, "O": o}, explicit=True)
    assert o[1, 63] == 127 and o.sum() == 127
