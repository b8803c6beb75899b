"""A loop with two products by warpgroups, one of which uses registers that threads compute while
the other may run."""

from __future__ import annotations

import tilewright as tw
import tilewright.language as T

# what the loop does, in order: a product into x or y; threads that compute its operand, or scale
# its accumulator
FORMS = {
    "an operand under another product": ("x", "scale a", "y by registers"),
    "an operand before both": ("scale a", "y by registers", "x"),
    "an accumulator under another product": ("x", "scale y", "y"),
    "an accumulator before both": ("scale y", "y", "x"),
    "two operands": ("shift a", "x by registers", "scale a", "y by registers"),
    "two operands before both": ("shift a", "scale a", "x by registers", "y by registers"),
    "an operand and an accumulator": ("shift a", "x by registers", "scale y", "y"),
}


@tw.jit
def two_products(form, threads=128, steps=4, n=64):
    m, k = 64 * (threads // 128), 64

    @T.prim_func
    def main(
        A: T.Tensor((m, steps * k), "float16"),
        B: T.Tensor((steps * k, n), "float16"),
        C: T.Tensor((steps * k, n), "float16"),
        F: T.Tensor((steps,), "float32"),
        X: T.Tensor((m, n), "float32"),
        Y: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((m, k), "float16")
            b = T.alloc_shared((k, n), "float16")
            c = T.alloc_shared((k, n), "float16")
            shifted = T.alloc_fragment((m, k), "float16")
            scaled = T.alloc_fragment((m, k), "float16")
            x = T.alloc_fragment((m, n), "float32")
            y = T.alloc_fragment((m, n), "float32")
            T.clear(x)
            T.clear(y)
            for s in T.Pipelined(steps, num_stages=3):
                T.copy(A[0, s * k], a)
                T.copy(B[s * k, 0], b)
                T.copy(C[s * k, 0], c)
                for part in FORMS[form]:
                    if part == "shift a":
                        for i, j in T.Parallel(m, k):
                            shifted[i, j] = a[i, j] + F[s]
                    elif part == "scale a":
                        for i, j in T.Parallel(m, k):
                            scaled[i, j] = a[i, j] * F[s]
                    elif part == "scale y":
                        for i, j in T.Parallel(m, n):
                            y[i, j] = y[i, j] * F[s]
                    elif part == "x":
                        T.gemm(a, b, x)
                    elif part == "x by registers":
                        T.gemm(shifted, b, x)
                    elif part == "y":
                        T.gemm(a, c, y)
                    elif part == "y by registers":
                        T.gemm(scaled, c, y)
            T.copy(x, X)
            T.copy(y, Y)

    return main
