"""Where values live

After this page you can read what the compiler decided for each line of a kernel, and change it
from outside.

The first four steps named no memory. Values live in registers, spread over the threads of a
block; operands of `@` go through shared memory, where the matrix instruction reads them.
`explain()` goes through a kernel's lines and says what became of each, and why. It needs no GPU.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    for r in T.tile(M):
        x = T.load(X[r, :])
        e = T.exp(x - T.max(x, dim=1, keepdim=True))
        Y[r, :] = e / T.sum(e, dim=1, keepdim=True)
    return Y


told = softmax.on("cuda").compile(M=4096, N=1024).explain()
print(told)

#     fragment x: float32 4×1024, 16384 B, 32 elements in 32 registers of 128 threads
#     reads X      ld.global, 16 bytes a lane, 8 times, 16 sectors a request, all used
#     reduce max x → e: across 32 threads, by shuffles

# The tile of X is a *fragment*: 4 rows of 1024 columns in the registers of 128 threads. A warp has
# a row, and its 32 lanes meet in shuffles. Every load is 16 bytes wide.
#
# Four rows are a default: as many as keep the values of a block within 4096 elements. A schedule
# chooses otherwise. Each field is `auto` until you set it; `tw.Schedule` lists them all.

more = softmax.with_schedule(tiles={"r": 8}, threads=256)

# Results stay the same, whatever is chosen. Only sums may be added up in another order.

x = np.random.default_rng(0).standard_normal((10, 37), np.float32)
np.testing.assert_allclose(more(x), softmax(x), rtol=1e-6)

# **The trap.** A schedule is made of names, and names can be wrong.

try:
    softmax.with_schedule(tiles={"rows": 8})(x)
except tw.CompileError as error:
    print(error)

#     the schedule has a size for 'rows', and no loop over tiles has that variable
#       expected: r
#       fix:      name the variable of a loop over tiles

# A tile that does not fit is an error, too, with its line and its size; step 7 has one.
#
# **Try** `explain()` of `linear` from step 3, for tiles of 128 × 128 × 64. Where does A live?
# Which threads copy it?
