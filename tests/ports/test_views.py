"""Views of tiles whose layout is a swizzle: other shapes, other types, operands of products."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)


def seen(dtype, shape, as_dtype, as_shape, layout, word="view"):
    """What a view of a swizzled tile holds; the view is written, too."""

    @T.prim_func
    def main(A: T.Tensor(shape, dtype), B: T.Tensor(as_shape, as_dtype), C: T.Tensor(shape, dtype)):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared(shape, dtype)
            v = T.view(s, as_shape, as_dtype) if word == "view" else T.reshape(s, as_shape)
            T.annotate_layout({s: layout(s)})
            T.copy(A, s)
            T.copy(v, B)
            for i in T.Parallel(as_shape[0]):
                v[i, 0] = v[(i + 1) % as_shape[0], 1]
            T.copy(s, C)

    return main


VIEWS = [
    ("float32", (64, 64), "float16", (64, 128)),
    ("float16", (64, 64), "float32", (64, 32)),
    ("float16", (64, 64), "float64", (64, 16)),
    ("float16", (64, 64), "float16", (32, 128)),
    ("float16", (64, 64), "int16", (64, 64)),
    ("float32", (16, 96), "float16", (32, 96)),
    ("int8", (64, 128), "float32", (64, 32)),
    ("float32", (32, 32), "int8", (32, 128)),
]


@each_target
@pytest.mark.parametrize("dtype, shape, as_dtype, as_shape", VIEWS)
def test_a_view_of_a_swizzled_tile(target, dtype, shape, as_dtype, as_shape):
    a = np.random.default_rng(0).integers(0, 100, shape).astype(dtype)
    b, c = np.zeros(as_shape, as_dtype), np.zeros(shape, dtype)
    program = seen(dtype, shape, as_dtype, as_shape, T.make_swizzled_layout)
    tw.compile(program, target=target)(a, b, c)
    want = a.copy().view(as_dtype).reshape(as_shape)
    np.testing.assert_array_equal(b.view(np.uint8), want.view(np.uint8))
    want[:, 0] = np.roll(want[:, 1], -1)
    np.testing.assert_array_equal(c.view(np.uint8), want.view(dtype).reshape(shape).view(np.uint8))


@each_target
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("policy", ["Square", "FullRow"])
def test_a_view_is_the_operand_of_a_product(target, flat, policy):
    shape = (64 * 64,) if flat else (32, 128)

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"), B: T.Tensor(shape, "float16"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared(shape, "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, T.view(b, (64, 64)), acc, clear_accum=True, policy=T.GemmWarpPolicy[policy])
            T.copy(acc, C)

    rng = np.random.default_rng(0)
    a = rng.integers(-4, 4, (64, 64)).astype(np.float16)
    b = rng.integers(-4, 4, shape).astype(np.float16)
    c = np.zeros((64, 64), np.float32)
    tw.compile(main, target=target)(a, b, c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.reshape(64, 64).astype(np.float32))


@each_target
def test_bytes_loaded_as_words_and_multiplied_as_float8(target):
    """A packed operand: 32-bit words copied, its view read by the product."""

    @T.prim_func
    def main(
        A: T.Tensor((64, 64), "float16"), B: T.Tensor((64, 32), "int32"),
        C: T.Tensor((64, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 32), "int32")
            v = T.view(b, (64, 64), "float16")
            acc = T.alloc_fragment((64, 64), "float32")
            T.annotate_layout({b: T.make_swizzled_layout(b)})
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, v, acc, transpose_B=True, clear_accum=True)
            T.copy(acc, C)

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-4, 4, (64, 64)).astype(np.float16) for _ in range(2))
    c = np.zeros((64, 64), np.float32)
    tw.compile(main, target=target)(a, b.view(np.int32), c)
    np.testing.assert_array_equal(c, a.astype(np.float32) @ b.T.astype(np.float32))


def test_a_layout_that_a_view_cannot_follow_is_left_out_with_a_warning():
    program = seen("float32", (16, 96), "float16", (32, 96), T.make_swizzled_layout)
    with pytest.warns(tw.PerformanceWarning, match="the layout of s is left out") as caught:
        kernel = tw.compile(program, target="cuda")
    assert caught[0].filename == __file__
    assert "slow at line" in kernel.explain()
