"""Memory handed out in DLPack capsules, taken by NumPy."""

import gc

import numpy as np
import pytest

from tilewright.ir.dtype import dtype
from tilewright.targets import dlpack

CPU = (1, 0)


class Owner:
    def __init__(self, array):
        self.array = array

    def __dlpack_device__(self):
        return CPU

    def __dlpack__(self, **_):
        a = self.array
        return dlpack.export(a.ctypes.data, a.shape, dtype(a.dtype), CPU, self)


@pytest.mark.parametrize("kind", ["float32", "int8", "uint16", "float64", "bool"])
def test_a_consumer_keeps_the_owner(kind):
    before = len(dlpack._exported)
    array = np.arange(12).reshape(3, 4).astype(kind)
    taken = np.from_dlpack(Owner(array))
    gc.collect()
    assert len(dlpack._exported) == before + 1
    np.testing.assert_array_equal(taken, array)
    assert taken.ctypes.data == array.ctypes.data
    del taken
    gc.collect()
    assert len(dlpack._exported) == before


def test_a_capsule_nobody_takes():
    before = len(dlpack._exported)
    capsule = Owner(np.zeros((2, 0, 5), np.float32)).__dlpack__()
    assert dlpack.is_capsule(capsule) and not dlpack.is_capsule(capsule.__class__)
    found = dlpack.read(capsule, "x")
    assert found.shape == (2, 0, 5) and found.dtype == dtype("float32") and found.device == CPU
    del capsule
    assert len(dlpack._exported) == before


def test_scalars_and_capsules_of_others():
    array = np.zeros((), np.int32)
    assert dlpack.read(Owner(array).__dlpack__(), "x").shape == ()
    found = dlpack.read(np.zeros((4, 6))[:, ::2].__dlpack__(), "x")
    assert found.strides == (6, 2) and not found.read_only
