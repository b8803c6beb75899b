"""Two kernels to practise on (docs/debugging.md): one is right, one forgets a barrier.

tilewright check examples/debugging.py
tilewright step examples/debugging.py --kernel mean_of_rows --args m=40
tilewright ir examples/debugging.py --kernel mean_of_rows --changed
"""

import numpy as np

import tilewright as tw
import tilewright.language as T

m = T.dynamic("m")


@T.prim_func
def mean_of_rows(X: T.Tensor((m, 64), "float32"), Y: T.Tensor((m,), "float32")):
    with T.Kernel(T.ceildiv(m, 16), threads=64) as bx:
        row = bx * 16
        tile = T.alloc_shared((16, 64), "float32")
        total = T.alloc_fragment((16,), "float32")
        T.copy(X[row, 0], tile)
        T.reduce_sum(tile, total, dim=1)
        for i in T.Parallel(16):
            total[i] = total[i] / 64
        T.copy(total, Y[row])


@T.prim_func
def turned(X: T.Tensor((m,), "float32"), Y: T.Tensor((m,), "float32")):
    with T.Kernel(T.ceildiv(m, 64), threads=64) as bx:
        t = T.get_thread_binding(0)
        tile = T.alloc_shared((64,), "float32")
        tile[t] = X[bx * 64 + t]
        Y[bx * 64 + t] = tile[63 - t]  # T.sync_threads() is missing above


if __name__ == "__main__":
    x = np.random.default_rng(0).standard_normal((100, 64), np.float32)
    y = np.empty(100, np.float32)
    tw.compile(mean_of_rows)(x, y)
    np.testing.assert_allclose(y, x.mean(1), rtol=1e-5, atol=1e-6)
    print("mean_of_rows is right; now: tilewright check examples/debugging.py")
