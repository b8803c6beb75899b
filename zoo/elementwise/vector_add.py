"""Vector add with one thread per element: the thread level, bare."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def vector_add(N, threads=256, dtype="float32"):
    @T.prim_func
    def add(A: T.Tensor((N,), dtype), B: T.Tensor((N,), dtype), C: T.Tensor((N,), dtype)):
        with T.Kernel(T.ceildiv(N, threads), threads=threads) as bx:
            i = bx * threads + T.get_thread_binding(0)
            if i < N:
                C[i] = A[i] + B[i]

    return add


def reference(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return a.astype(np.float64) + b.astype(np.float64)
