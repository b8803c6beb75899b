"""Arrays of other libraries, seen through what they tell about themselves."""

import ctypes

import numpy as np
import pytest

from tests.cuda.fake import fake_driver
from tilewright.ir.dtype import dtype
from tilewright.ir.text import parse_program
from tilewright.support.errors import LaunchError
from tilewright.targets.arrays import ArrayView, ProgramCheck, read_arrays, view_of
from tilewright.targets.cuda import driver as driver_module
from tilewright.targets.dlpack import export


class Interface:
    """What CuPy's and Numba's arrays say."""

    def __init__(self, **more):
        self.__cuda_array_interface__ = {
            "shape": (4, 6), "typestr": "<f2", "data": (0x1000, False), "version": 3, **more
        }  # fmt: skip


class OnGpu:
    """A NumPy array that says it is on a GPU."""

    def __init__(self, array, kind=2):
        self.array, self.kind, self.streams = array, kind, []

    def __dlpack_device__(self):
        return self.kind, 0

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        return self.array.__dlpack__()


@pytest.fixture(autouse=True)
def one_gpu(monkeypatch):
    found = fake_driver()[1]
    monkeypatch.setattr(driver_module, "driver", lambda: found)


def test_cuda_array_interface():
    view = view_of(Interface(), "x")
    assert (view.address, view.shape, view.strides) == (0x1000, (4, 6), (6, 1))
    assert view.dtype is dtype("float16") and view.stream is None and view.contiguous
    view = view_of(Interface(strides=(2, 8), stream=5, data=(0x2000, True)), "x")
    assert view.strides == (1, 4) and view.stream == 5 and view.read_only and not view.contiguous


def test_dlpack():
    array = np.arange(24, dtype=np.int16).reshape(4, 6)[::2, 1:]
    given = OnGpu(array)
    view = view_of(given, "x", stream=9)
    assert (view.shape, view.strides) == ((2, 5), (12, 1)) and view.dtype is dtype("int16")
    assert view.address == array.ctypes.data and given.streams == [9]
    assert ctypes.c_int16.from_address(view.address).value == 1
    view_of(given, "x")
    assert given.streams == [9, 1]  # the legacy default stream's name in the protocol


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (np.zeros(3), "host memory"),
        (OnGpu(np.zeros(3), kind=1), "host memory"),
        (OnGpu(np.zeros(3, np.complex64)), "elements Tilewright does not know"),
        (Interface(typestr="<c8"), "elements Tilewright does not know"),
        (3.5, "must be an array in GPU memory"),
    ],
)
def test_what_is_no_gpu_array_is_refused(value, text):
    with pytest.raises(Exception, match=text):
        view_of(value, "x")


@pytest.mark.parametrize(
    ("shape", "strides", "contiguous", "span"),
    [
        ((4, 6), (6, 1), True, (0, 48)),
        ((4, 6), (8, 1), False, (0, 60)),
        ((1, 6), (99, 1), True, (0, 12)),
        ((0, 6), (3, 3), True, (0, 0)),
        ((3,), (-1,), False, (-4, 2)),
        ((), (), True, (0, 2)),
    ],
)
def test_layout_facts(shape, strides, contiguous, span):
    view = ArrayView(1000, shape, strides, dtype("float16"), 0)
    assert view.contiguous is contiguous
    assert view.span == (1000 + span[0], 1000 + span[1])


def test_refusals_are_launch_errors():
    with pytest.raises(LaunchError, match=r"cuda\(\)"):
        view_of(np.zeros(3), "x")


def test_libraries_without_a_stream_are_told_ours():
    given = OnGpu(np.zeros(3, np.int8))
    told = ArrayView(0, (), (), dtype("int8"), 0, stream=0x55)
    views, where = read_arrays({"x": given, "y": told}, None)
    assert where == 0x55 and given.streams == [0x55] and list(views) == ["x", "y"]
    assert read_arrays({"x": given}, 0x66)[1] == 0x66 and given.streams[-1] == 0x66


def test_elements_that_share_bytes_are_seen_as_bytes():
    view = view_of(export(0x1000, (4, 6), dtype("int4"), (2, 0), None), "x")
    assert (view.shape, view.strides, view.dtype) == ((4, 3), (3, 1), dtype("uint8"))
    assert view.span == (0x1000, 0x1000 + 12)
    with pytest.raises(LaunchError, match="x has uint4 elements that do not fill whole bytes"):
        view_of(export(0x1000, (4, 5), dtype("uint4"), (2, 0), None), "x")


def test_packed_tensors_are_given_as_bytes():
    program = parse_program(
        "program p {\nparam A: int4[8, 32] global\nparam B: float32[8, 32] global\n"
        "kernel main grid b in 1 threads t in 32 { map (i, j) in (8, 32) "
        "{ B[i, j] = float32(A[i, j]) } }\n}"
    )
    check = ProgramCheck(program, {"B"}, {"A": 4})
    b = ArrayView(0x2000, (8, 32), (32, 1), dtype("float32"), 0)
    for kind in ("uint8", "int8"):
        assert check({"A": ArrayView(0x1000, (8, 16), (16, 1), dtype(kind), 0), "B": b}) == {}
    with pytest.raises(LaunchError, match="A has the wrong size"):
        check({"A": ArrayView(0x1000, (8, 32), (32, 1), dtype("uint8"), 0), "B": b})
    with pytest.raises(LaunchError, match="A does not start at a multiple of 4 bytes"):
        check({"A": ArrayView(0x1001, (8, 16), (16, 1), dtype("uint8"), 0), "B": b})
