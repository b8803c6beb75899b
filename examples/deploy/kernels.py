"""Two kernels for a server: one whose rows only calls know, one from a formula.

tilewright export examples/deploy/kernels.py --target cpu --sizes 'x="float32[8, 256]"' -o exported
cmake -S examples/deploy -B build && cmake --build build && build/server
"""

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm

rows = T.dynamic("rows", min=1, max=4096)


@T.prim_func
def add_bias(
    X: T.Tensor((rows, 256), "float32"),
    bias: T.Tensor((256,), "float32"),
    scale: T.float32,
    Y: T.Tensor((rows, 256), "float32"),
):
    with T.Kernel(T.ceildiv(rows, 16), threads=128) as bx:
        for i, j in T.Parallel(16, 256):
            Y[bx * 16 + i, j] = X[bx * 16 + i, j] * scale + bias[j]


@tw.math(dynamic={"x": {0: rows}})
def softmax(x):
    return tm.softmax(x, axis=-1)
