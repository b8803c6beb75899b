"""Copies of regions that are smaller than the tile on the other side."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.roads import on_gpu, on_threads

TARGETS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
each_target = pytest.mark.parametrize("target", TARGETS)
SHAPES = [(8, 32), (5, 9), (16, 1)]


def loaded(space, rows, columns, dtype="float32", stage=None):
    """A tile of 16×32 fives whose corner is loaded from the middle of a tensor."""
    alloc = getattr(T, f"alloc_{space}")
    shape = (16, 32) if stage is None else (2, 16, 32)

    @T.prim_func
    def main(K: T.Tensor((64, 64), dtype), B: T.Tensor((16, 32), dtype)):
        with T.Kernel(1, threads=64):
            s = alloc(shape, dtype)
            T.fill(s, 5)
            if stage is None:
                T.copy(K[3 : 3 + rows, 4 : 4 + columns], s)
                T.copy(s, B)
            else:
                T.copy(K[3 : 3 + rows, 4 : 4 + columns], s[stage, :, :])
                T.copy(s[stage, :, :], B)

    return main


@each_target
@pytest.mark.parametrize("space", ["shared", "fragment"])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_the_rest_of_the_tile_stays(target, space, rows, columns):
    k = np.arange(64 * 64).reshape(64, 64).astype(np.float16) % 251
    b = np.zeros((16, 32), np.float16)
    tw.compile(loaded(space, rows, columns, "float16"), target=target)(k, b)
    want = np.full((16, 32), 5, np.float16)
    want[:rows, :columns] = k[3 : 3 + rows, 4 : 4 + columns]
    np.testing.assert_array_equal(b, want)


@each_target
@pytest.mark.parametrize("space", ["shared", "fragment"])
@pytest.mark.parametrize("rows, columns", SHAPES)
def test_a_store_takes_the_tiles_corner(target, space, rows, columns):
    alloc = getattr(T, f"alloc_{space}")

    @T.prim_func
    def main(K: T.Tensor((16, 32), "float32"), B: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=64):
            s = alloc((16, 32), "float32")
            T.copy(K, s)
            T.copy(s, B[3 : 3 + rows, 4 : 4 + columns])

    k, b = np.arange(512).reshape(16, 32).astype(np.float32), np.zeros((64, 64), np.float32)
    tw.compile(main, target=target)(k, b)
    want = np.zeros((64, 64), np.float32)
    want[3 : 3 + rows, 4 : 4 + columns] = k[:rows, :columns]
    np.testing.assert_array_equal(b, want)


@each_target
@pytest.mark.parametrize("space", ["shared", "fragment"])
def test_a_slice_of_a_tile_with_open_axes_is_a_whole_tile(target, space):
    k, b = np.arange(64 * 64).reshape(64, 64).astype(np.float32), np.zeros((16, 32), np.float32)
    tw.compile(loaded(space, 8, 32, stage=1), target=target)(k, b)
    want = np.full((16, 32), 5, np.float32)
    want[:8] = k[3:11, 4:36]
    np.testing.assert_array_equal(b, want)


@each_target
@pytest.mark.parametrize("frm, to", [("shared", "fragment"), ("fragment", "shared")])
def test_between_tiles(target, frm, to):
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float32"), B: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            a = getattr(T, f"alloc_{frm}")((32, 32), "float32")
            b = getattr(T, f"alloc_{to}")((16, 32), "float32")
            T.copy(A, a)
            T.fill(b, -1)
            T.copy(a[8:16, :], b)
            T.copy(b, B)

    a, b = np.arange(1024).reshape(32, 32).astype(np.float32), np.zeros((16, 32), np.float32)
    tw.compile(main, target=target)(a, b)
    np.testing.assert_array_equal(b, np.vstack([a[8:16], np.full((8, 32), -1)]))


@each_target
@pytest.mark.parametrize("stages", [0, 2, 3])
def test_a_region_loaded_in_a_pipelined_loop_keeps_what_stood_below(target, stages):
    """Slots of a ring would each have a remainder of their own."""

    @T.prim_func
    def main(K: T.Tensor((64, 32), "float32"), B: T.Tensor((8, 16, 32), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "float32")
            T.fill(s, 7)
            for k in T.Pipelined(8, num_stages=stages):
                T.copy(K[k * 8 : k * 8 + 8, :], s)
                T.copy(s, B[k, :, :])

    k, b = np.arange(64 * 32).reshape(64, 32).astype(np.float32), np.zeros((8, 16, 32), np.float32)
    tw.compile(main, target=target)(k, b)
    np.testing.assert_array_equal(b[:, :8], k.reshape(8, 8, 32))
    assert (b[:, 8:] == 7).all()


@each_target
def test_a_region_at_the_end_of_its_tensor_reads_zero(target):
    @T.prim_func
    def main(K: T.Tensor((10, 32), "float32"), B: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), "float32")
            T.fill(s, 7)
            T.copy(K[6:14, :], s)
            T.copy(s, B)

    k, b = np.ones((10, 32), np.float32), np.zeros((16, 32), np.float32)
    tw.compile(main, target=target)(k, b)
    assert (b[:4] == 1).all() and (b[4:8] == 0).all() and (b[8:] == 7).all()


@pytest.mark.parametrize("rows, columns", [(32, 32), (8, 64), (32, 16)])
def test_a_region_larger_than_its_tile_is_refused(rows, columns):
    with pytest.raises(tw.CompileError, match="K and s have different shapes") as caught:
        loaded("shared", rows, columns)
    assert "not larger" in caught.value.diagnostic.fix


def test_two_whole_tiles_of_different_shapes_are_refused():
    def main(B: T.Tensor((16, 32), "float32")):
        with T.Kernel(1, threads=64):
            a = T.alloc_shared((8, 32), "float32")
            b = T.alloc_shared((16, 32), "float32")
            T.copy(a, b)

    with pytest.raises(tw.CompileError, match="a and b have different shapes"):
        T.prim_func(main)
