"""Elements of fragments as scalars: every thread has them. No GPU is needed."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine


def total():
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), B: T.Tensor((4,), "float32")):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((64,), "float32")
            r = T.alloc_fragment((1,), "float32")
            x = T.alloc_var("float32")
            T.copy(A, f)
            T.reduce_sum(f, r, dim=0)
            x = r[0]
            B[0] = x
            y = r[0] * 2
            B[1] = y + x
            if r[0] > 3:
                B[2] = 5
            T.reduce_max(f, r, dim=0)
            x = r[0]
            B[3] = x

    return main


def row_limits():
    """A loop whose end is an element that a reduction has found."""

    @T.prim_func
    def main(A: T.Tensor((4, 8), "int32"), B: T.Tensor((4,), "int32")):
        with T.Kernel(1, threads=64):
            f = T.alloc_fragment((4, 8), "int32")
            m = T.alloc_fragment((4,), "int32")
            count = T.alloc_var("int32", 0)
            T.copy(A, f)
            T.reduce_max(f, m, dim=1)
            for i in T.serial(4):
                for k in T.serial(m[i]):
                    count += k
                B[i] = count

    return main


def run(kernel, target, *arrays):
    if target == "threads":
        code = tw.parse_ir(tw.compile(kernel, target="cuda").ir("lower_threads"))
        machine.run_threads(code, dict(zip("AB", arrays, strict=True)))
    else:
        tw.compile(kernel, target=target)(*arrays)


@pytest.mark.parametrize("target", ["interp", "interp -sanitize", "cpu", "threads"])
def test_sums_as_scalars(target):
    a, b = np.arange(64, dtype=np.float32), np.zeros(4, np.float32)
    run(total(), target, a, b)
    assert list(b) == [2016, 3 * 2016, 5, 63]


@pytest.mark.parametrize("target", ["interp", "cpu", "threads"])
def test_maxima_as_bounds(target):
    a = np.arange(32, dtype=np.int32).reshape(4, 8) % 7
    b = np.zeros(4, np.int32)
    run(row_limits(), target, a, b)
    assert list(b) == list(np.cumsum([sum(range(m)) for m in a.max(axis=1)]))


@pytest.mark.gpu
def test_on_a_gpu():
    import torch

    a, b = torch.arange(64.0, device="cuda"), torch.zeros(4, device="cuda")
    tw.compile(total(), target="cuda")(a, b)
    assert b.tolist() == [2016, 3 * 2016, 5, 63]
