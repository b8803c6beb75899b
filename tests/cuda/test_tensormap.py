"""Tensor-map records: what the copy engine allows, and what is said when it does not."""

from dataclasses import replace

import pytest

from tilewright.ir.dtype import INT32, dtype
from tilewright.ir.expr import Var
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.cuda.tensormap import MapCache, TensorMapSpec, resolve

BF16 = dtype("bfloat16")
SPEC = TensorMapSpec("A", BF16, (128, 64), swizzle=128)


def test_axes_are_turned_round_and_strides_are_bytes():
    spec = TensorMapSpec("A", dtype("float32"), (2, 4, 8), swizzle=32)
    found = resolve(spec, 0x1000, (10, 20, 30), (640, 32, 1), {})
    assert found.sizes == (30, 20, 10) and found.strides == (128, 2560)
    assert found.box == (8, 4, 2)
    assert (found.dtype, found.swizzle) == (7, 1)


def test_sizes_of_the_launch_may_give_another_shape():
    n = Var("N", INT32)
    spec = replace(SPEC, shape=("M", n * 2), strides=(lambda s: s["N"] * 4, 1))
    found = resolve(spec, 0x1000, (7,), (1,), {"M": 256, "N": 64})
    assert found.sizes == (128, 256) and found.strides == (512,)
    assert found.address == 0x1000
    contiguous = resolve(replace(spec, strides=None), 0x1000, (7,), (1,), {"M": 256, "N": 64})
    assert contiguous.strides == (256,)


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"box": (1,) * 5 + (64,)}, "rank 6"),
        ({"box": ()}, "rank 0"),
        ({"box": (257, 64)}, "extent of 257"),
        ({"box": (0, 64)}, "extent of 0"),
        ({"box": (128, 128)}, "split the copy into boxes of 64 columns"),
        ({"box": (128, 4)}, "inner box of 8 bytes"),
        ({"swizzle": 96}, "no such swizzle"),
        ({"dtype": dtype("int4")}, "moves no int4"),
        ({"shape": ("M",)}, "another rank"),
        ({"strides": (64, 1)}, "both or neither"),
    ],
)
def test_what_no_launch_could_do_is_refused_at_once(changes, text):
    with pytest.raises(CompileError, match=text):
        replace(SPEC, **changes)


@pytest.mark.parametrize(
    ("address", "shape", "strides", "text"),
    [
        (0x1008, (256, 64), (64, 1), "start is not aligned"),
        (0x1000, (256, 7161), (7161, 1), "stride of 14322 bytes"),
        (0x1000, (256, 64), (1, 256), "innermost dimension is not contiguous"),
        (0x1000, (256, 64), (-64, 1), "stride of -128 bytes"),
        (0x1000, (256, 64), (1 << 40, 1), "stride of"),
        (0x1000, (2, 256, 64), (16384, 64, 1), "rank and its box's differ"),
    ],
)
def test_what_this_launch_cannot_do_is_refused(address, shape, strides, text):
    with pytest.raises(LaunchError, match=text):
        resolve(SPEC, address, shape, strides, {})


def test_strides_along_single_elements_do_not_matter():
    found = resolve(SPEC, 0x1000, (1, 7161), (7161, 1), {})
    assert found.sizes == (7161, 1) and found.strides[0] % 16 == 0


def test_maps_are_kept_by_content_and_address():
    made = []
    cache = MapCache(lambda e: (made.append(e), bytes([len(made)]) * 128)[1], capacity=2)
    first, second = (resolve(SPEC, a, (256, 64), (64, 1), {}) for a in (0x1000, 0x2000))
    assert cache.get(first) == cache.get(resolve(SPEC, 0x1000, (256, 64), (64, 1), {}))
    assert cache.get(second) != cache.get(first) and len(made) == 2
    cache.get(resolve(SPEC, 0x3000, (256, 64), (64, 1), {}))
    assert len(cache) == 1  # full, so it began anew


def test_an_empty_tensor_gets_a_map_that_faults():
    cache = MapCache(lambda e: pytest.fail("the driver refuses empty tensors"))
    assert cache.get(resolve(SPEC, 0, (0, 64), (64, 1), {})) == bytes(128)
