"""A tile is turned round through shared memory, and one barrier is missing."""

import tilewright as tw
import tilewright.language as T


@tw.jit
def turned(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(N // 128, threads=128) as bx:
        t = T.get_thread_binding(0)
        tile = T.alloc_shared((128,), "float32")
        tile[t] = X[bx * 128 + t]
        Y[bx * 128 + t] = tile[127 - t]
    return Y
