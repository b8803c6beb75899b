"""Looking at what the compiler decided

A kernel does not say which thread holds which element. The compiler decides, and tells:
`explain()` goes through the kernel's lines and says what became of each, and why. No GPU is
needed.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.layout import repeat, spatial


@tw.jit
def column_sums(X, pin=None):
    N = T.const("N")
    X: T.Tensor((64, N), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 64), threads=128) as bx:
        x = T.alloc_fragment((64, 64), "float32")
        s = T.alloc_fragment((64,), "float32")
        if pin is not None:
            T.annotate_layout({x: pin})
        T.copy(X[0, bx * 64], x)
        T.reduce_sum(x, s, dim=0)
        T.copy(s, Y[bx * 64])
    return Y


x = np.random.default_rng(0).integers(-9, 9, (64, 200)).astype(np.float32)
assert (column_sums(x) == x.sum(0)).all()

print(column_sums.on("cuda").compile(N=4096).explain())

# A *fragment* maps thread and register to an element. `spatial(2, 64) * repeat(32, 1)` reads: two
# threads for each of 64 columns, each with 32 rows of it. Pinned, it needs no shuffles across
# lanes of a row, but sums across warps:

mine = spatial(2, 64) * repeat(32, 1)
assert mine.threads == 128 and mine.coord(1, 3) == (3, 1)
assert (column_sums(x, mine) == x.sum(0)).all()  # the same result, whatever the layout
told = column_sums.on("cuda").compile(N=4096, pin=mine).explain()
print(next(line for line in told.splitlines() if "reduce sum" in line))

#     reduce sum x → s: across 2 threads, through shared memory

# **Try** `spatial(64, 2) * repeat(1, 32)`, and read what `explain()` says of the loads.
