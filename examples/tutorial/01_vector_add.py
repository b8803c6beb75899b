"""Vector add

A kernel is a Python function that says what one *block* does. Blocks share the work: here each
takes 128 elements, and `bx` says which ones.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def add(A, B):
    N = T.const("N")
    A: T.Tensor((N,), "float32")
    B: T.Tensor((N,), "float32")
    C = T.empty((N,), "float32")
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        for i in T.Parallel(128):
            C[bx * 128 + i] = A[bx * 128 + i] + B[bx * 128 + i]
    return C


# - `T.const` is a size that comes from the arguments, `T.empty` an output that the call makes.
# - `T.Kernel` opens the launch: how many blocks, how many threads in each.
# - `T.Parallel` iterations have no order; the compiler deals them to threads and vectors.
#
# 1000 elements in blocks of 128 leave a tail. It needs no guard: outside a tensor, reads give
# zero and stores do nothing.

a, b = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
assert (add(a, b) == a + b).all()

# The function ran once, to build a program; `ir()` shows it. It is what every target compiles and
# what the interpreter runs.

print(add.compile(a, b).ir())

#     program add {
#       param A: float32[1000] global
#       param B: float32[1000] global
#       param C: float32[1000] global
#       kernel add grid bx in 8 threads tx in 128 {
#         map i in 128 {
#           C[bx * 128 + i] = A[bx * 128 + i] + B[bx * 128 + i]
#         }
#       }
#     }

# **Try** `A[bx * 128 + i] * 2`; another `threads=`; `target="interp"` in `@tw.jit(target=…)`,
# which runs the program's meaning in NumPy.
