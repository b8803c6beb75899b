"""Softmax: reductions

A reduction turns a tile of rows into one number per row. `T.reduce_max(x, top, dim=1)` does what
`x.max(axis=1)` does; which threads have to talk to each other is not your concern.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit(out_idx=[-1])
def softmax(M, N, rows=4):
    @T.prim_func
    def main(X: T.Tensor((M, N), "float32"), Y: T.Tensor((M, N), "float32")):
        with T.Kernel(T.ceildiv(M, rows), threads=128) as bx:
            x = T.alloc_fragment((rows, N), "float32")
            top = T.alloc_fragment((rows,), "float32")
            total = T.alloc_fragment((rows,), "float32")
            T.copy(X[bx * rows, 0], x)
            T.reduce_max(x, top, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = T.exp(x[i, j] - top[i])
            T.reduce_sum(x, total, dim=1)
            for i, j in T.Parallel(rows, N):
                x[i, j] = x[i, j] / total[i]
            T.copy(x, Y[bx * rows, 0])

    return main


# This kernel is written the other way: a *factory*, ordinary Python that returns a `prim_func`.
# Its arguments are compile-time values, and calling it gives a compiled kernel; `out_idx=[-1]`
# lets calls make the last parameter and return it.


def reference(x):
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


kernel = softmax(200, 333)
x = np.random.default_rng(0).standard_normal((200, 333), np.float32)
np.testing.assert_allclose(kernel(x), reference(x), rtol=1e-5)

# A profiler checks a kernel against a reference, and times it. Both happen on inputs that you give,
# or else on inputs that it makes where the kernel runs: on a GPU these are PyTorch's tensors, and
# a reference in PyTorch fits them.

profiler = kernel.get_profiler()
profiler.assert_allclose(reference, [x], rtol=1e-5)
print(f"{profiler.do_bench(rep=20):.3f} ms on {kernel.target}")

# **Try** log-softmax: `x - top - log(total)`; or rows of length one, two, 4096.
