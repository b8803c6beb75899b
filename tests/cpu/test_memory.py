"""What a compilation for the CPU holds on to: nothing once its kernel is dropped."""

import ctypes
import gc
import weakref

import numpy as np
import pytest

import tests.roads  # noqa: F401  (cuda_threads)
import tilewright as tw
import tilewright.language as T

LIBRARY = ctypes.CDLL(None)
FIELDS = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost".split()


class Blocks(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in FIELDS]


def allocated():
    """Bytes that the C library has given out."""
    gc.collect()
    LIBRARY.mallinfo2.restype = Blocks
    found = LIBRARY.mallinfo2()
    return found.uordblks + found.hblkhd


def scaled(factor):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for i in T.Parallel(64):
                A[i] = A[i] * factor

    return main


@pytest.mark.skipif(not hasattr(LIBRARY, "mallinfo2"), reason="needs glibc 2.33")
def test_dropped_kernels_leave_no_native_memory(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    for k in range(6):
        tw.compile(scaled(1000.0 + k), target="cpu")
    before = allocated()
    for k in range(30):
        tw.compile(scaled(2000.0 + k), target="cpu")
    assert (allocated() - before) / 30 < 4000


def test_code_lives_as_long_as_it_can_be_called(monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE", "0")
    kernel = tw.compile(scaled(3.0), target="cpu")
    launch = kernel.executable.launches[0]
    binary = weakref.ref(launch.binary)
    a = np.ones(64, np.float32)
    kernel(a)
    call = kernel.executable.fixed({})
    del kernel, launch
    gc.collect()
    assert binary() is not None
    call(a.ctypes.data.to_bytes(8, "little"))
    assert a[0] == 9
    del call
    gc.collect()
    assert binary() is None


@pytest.mark.parametrize("target", ["interp -sanitize", "cuda_threads", "cuda -arch=sm_90a"])
def test_nothing_waits_for_garbage_to_be_collected(target):
    """Programs, what passes leave and the memory of runs go with the last who holds them."""

    def used():
        kernel = tw.compile(scaled(4.0), target=target)
        if "arch" not in target:
            kernel(np.ones(64, np.float32))

    used()
    gc.collect()
    used()
    assert gc.collect() == 0


def test_kernels_of_jit_stay():
    @tw.jit(target="cpu")
    def factory(factor):
        return scaled(factor)

    binary = weakref.ref(factory(5.0).executable.launches[0].binary)
    gc.collect()
    assert binary() is not None
