"""Elements of fragments that the text stores to outside maps, and tiles that it never uses."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine
from tilewright.ir.op import Alloc, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import drop_unused
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


@pytest.mark.parametrize("threads", (32, 128, 256))
def test_single_elements_of_fragments(threads):
    @T.prim_func
    def main(
        X: T.Tensor((64, 32), "float32"),
        S: T.Tensor((4,), "float32"),
        Y: T.Tensor((64, 32), "float32"),
    ):
        with T.Kernel(4, threads=threads) as b:
            x = T.alloc_fragment((16, 32), "float32")
            s = T.alloc_fragment((2,), "float32")
            T.copy(X[b * 16, 0], x)
            s[0] = S[b]
            if b > 1:
                s[1] = s[0] + 1
            else:
                s[1] = 3
            for i, j in T.Parallel(16, 32):
                x[i, j] = x[i, j] * s[0] + s[1]
            x[b, 3] = 7
            T.copy(x, Y[b * 16, 0])

    x, s = numbers(64, 32).astype(np.float32), np.arange(4, dtype=np.float32)
    y = np.zeros_like(x)
    machine.run_threads(lower(main.program, CUDA).result, {"X": x, "S": s, "Y": y})
    scale = s.repeat(16)[:, None]
    want = x * scale + np.where(scale > 1, scale + 1, 3)
    want[[0, 17, 34, 51], 3] = 7
    np.testing.assert_array_equal(y, want)


@pytest.mark.parametrize("how", ["index", "value", "guard"])
def test_stores_that_differ_between_threads_are_refused(how):
    @T.prim_func
    def main(Y: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            tx = T.get_thread_binding()
            own = T.alloc_local((1,), "int32")
            own[0] = tx + 1
            s = T.alloc_fragment((128,), "float32")
            T.clear(s)
            if how == "index":
                s[own[0] - 1] = 5
            elif how == "value":
                s[3] = own[0]
            else:
                if tx == 0:
                    s[3] = 5
            T.copy(s, Y)

    with pytest.raises(CompileError, match="s is a fragment and is stored to outside a tile op"):
        lower(main.program, CUDA)


def product(spare):
    """`spare`: with tiles that the author left behind."""

    @T.prim_func
    def main(
        A: T.Tensor((8192, 512), "float16"),
        B: T.Tensor((512, 8192), "float16"),
        C: T.Tensor((8192, 8192), "float16"),
    ):
        with T.Kernel(32, 64, threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 256), "float16")
            c = T.alloc_fragment((128, 256), "float32")
            if spare:
                out = T.alloc_shared((128, 256), "float16")
                T.annotate_layout({out: T.layout.make_swizzled_layout(out)})
                T.alloc_fragment((128, 256), "float16")
            T.clear(c)
            for k in T.Pipelined(8, num_stages=4):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, bx * 256], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, bx * 256])

    return main.program


def test_unused_tiles_take_nothing():
    kernel = drop_unused(product(True).kernels[0], CUDA)
    assert {op.buffer.name for op in walk_ops(kernel) if isinstance(op, Alloc)} == {"a", "b", "c"}
    with_spare, without = (lower(product(spare), CUDA) for spare in (True, False))
    assert not any(what == "given up" for _, what in with_spare.reasons)
    shared = [
        sum(op.buffer.bytes for op in walk_ops(trace.result.kernels[0]) if isinstance(op, Alloc))
        for trace in (with_spare, without)
    ]
    assert shared[0] == shared[1]


@pytest.mark.parametrize("loop", [T.serial, T.Parallel, T.Pipelined])
def test_loops_over_nothing_do_nothing(loop):
    @T.prim_func
    def main(Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as b:
            for _ in loop(4):
                for _ in T.Parallel(8):
                    pass
            for _ in loop(8):
                T.alloc_var("int32", init=b)
            Y[b] = 1

    y = np.zeros(4, np.int32)
    machine.run_threads(lower(main.program, CUDA).result, {"Y": y})
    assert y.all()


def test_what_variables_begin_with_is_used():
    @T.prim_func
    def main(X: T.Tensor((4,), "int32"), Y: T.Tensor((4,), "int32")):
        with T.Kernel(4, threads=32) as b:
            T.alloc_shared((32,), "int32")
            first = T.alloc_var("int32", init=X[b])
            second = T.alloc_var("int32", init=first + 1)
            sure = T.alloc_var("int32", init=X[b])
            T.assume(sure > 0)
            Y[b] = second

    x, y = np.arange(1, 5, dtype=np.int32), np.zeros(4, np.int32)
    machine.run_threads(lower(main.program, CUDA).result, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x + 1)
