"""Barriers of a kernel's author: initialised before anybody arrives."""

from __future__ import annotations

import numpy as np

import tilewright.language as T
from tilewright import machine
from tilewright.ir.op import BarrierInit, Fence, Sync
from tilewright.ir.target import Target
from tilewright.passes.canonicalize.rules import announce_barriers
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda")


@T.prim_func
def waits_for_all(X: T.Tensor((128,), "int32"), Y: T.Tensor((128,), "int32")):
    with T.Kernel(1, threads=128):
        t = T.get_thread_binding()
        tile = T.alloc_shared((128,), "int32")
        ready = T.alloc_barrier(128)
        tile[t] = X[t]
        T.mbarrier_arrive(ready)
        T.mbarrier_wait_parity(ready, 0)
        Y[t] = tile[127 - t]


def test_the_block_meets_behind_the_initialisation():
    (kernel,) = waits_for_all.program.kernels
    found = announce_barriers(kernel, CUDA)
    kinds = [type(op) for op in found.body]
    at = kinds.index(BarrierInit)
    assert kinds[at + 1 : at + 3] == [Fence, Sync]
    assert announce_barriers(found, CUDA) is found


def test_as_thread_code():
    x, y = np.arange(128, dtype=np.int32), np.zeros(128, np.int32)
    machine.run_threads(lower(waits_for_all.program, CUDA).result, {"X": x, "Y": y})
    np.testing.assert_array_equal(y, x[::-1])
