"""Vector add

After this page you can write a kernel over vectors, run it on a laptop, and read what it became.

A kernel says what happens to one *tile*: a piece of a tensor that fits on the chip. `T.tile`
deals the tiles out, and each becomes a block of the grid.
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
    for n in T.tile(N):
        C[n] = A[n] + B[n]
    return C


a, b = np.arange(1000, dtype=np.float32), np.ones(1000, np.float32)
assert (add(a, b) == a + b).all()

# - `T.const` is a size that comes from the arguments, `T.empty` an output that the call makes.
# - `for n in T.tile(N)` is the grid. How long a tile is, is left open.
# - `n` is a *tile index*. `A[n]` is a *value*: the elements of A in that tile. Arithmetic on
#   values works element by element, and allocates its own result.
# - `C[n] = …` stores.
#
# The call ran on a GPU if there is one, and on the CPU otherwise; the text is the same. `add`
# itself ran once, with stand-ins for the arrays, to build a program. Every target compiles that
# program:

print(add.with_schedule(tiles={"n": 128}).compile(a, b).ir())

#     program add {
#       param A: float32[1000] global
#       param B: float32[1000] global
#       param C: float32[1000] global
#       kernel add grid n in 8 threads tx in 128 {
#         alloc C_tile: float32[128] fragment
#         map n_ in 128 {
#           C_tile[n_] = A[n * 128 + n_] + B[n * 128 + n_]
#         }
#         copy C_tile -> C[n * 128:+128]
#       }
#     }

# Here a *schedule* made the tiles 128 long: 8 blocks, of which the last has 104 elements. The text
# has no mask for it. The last tile is shorter, and no word of the language sees beyond its end.
#
# **The trap.** NumPy defaults to float64, and the kernel declares float32. A launch does not
# convert; it names the argument.

try:
    add(a, np.ones(1000))
except tw.TilewrightError as error:
    print(error)

#     B has the wrong dtype
#       expected: float32
#       got:      float64
#       fix:      convert it to float32, or declare B as float64

# **Try** `C[n] = T.where(A[n] > 500, A[n], B[n])`; then `A[n + 1]`, the tile shifted by one: what
# is in the last element? (Reading outside a tensor gives 0; `T.load(A[n + 1], fill=-1)` gives -1.)
