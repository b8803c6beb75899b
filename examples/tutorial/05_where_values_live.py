"""Where values live

After this page you can read what the compiler decided for each line of a kernel, and change it
from outside.

The first four steps named no memory. Values live in registers, spread over the threads of a
block; operands of `@` and long rows lie in shared memory. `explain()` goes through a kernel's
lines and says what became of each, and why. It needs no GPU.
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


print(softmax.on("cuda").compile(M=4096, N=512).explain())

#     fragment x: float32 8×512, 16384 B, 16 elements in 16 registers of 256 threads
#     reads X      ld.global, 16 bytes a lane, 4 times, 16 sectors a request, all used
#     reduce max x → e: across 32 threads, by shuffles

# The tile of X is a *fragment*: 8 rows of 512 columns in the registers of 256 threads. A warp has
# a row, and its 32 lanes meet in shuffles. Every load is 16 bytes wide.
#
# Longer rows need more room. The text stays, and values move:

for columns in (8192, 100_000):
    told = softmax.on("cuda").compile(M=4096, N=columns).explain()
    print(next(line.strip() for line in told.splitlines() if " x: " in line))

#     shared x: float32 1×8192, 32768 B
#     shared x: float32 1×13312, 53248 B

# A row of 8192 lies in shared memory: it is loaded once, and read in pieces for each pass. A row
# of 100,000 is shared by the eight blocks of a *cluster*, and the maximum and the sum cross them.
#
# Formulas of bytes and registers give these sizes. A schedule chooses others, by the names of
# loops. Each field is `auto` until you set it; `tw.Schedule` lists them all.

more = softmax.with_schedule(tiles={"r": 4}, threads=128)

# Results stay the same, whatever is chosen. Only sums may be added up in another order.

x = np.random.default_rng(0).standard_normal((10, 37), np.float32)
np.testing.assert_allclose(more(x), softmax(x), rtol=1e-6)

# **The trap.** A schedule is made of names, and names can be wrong.

try:
    softmax.with_schedule(tiles={"rows": 8})(x)
except tw.CompileError as error:
    print(error)

#     the schedule has a size for 'rows', and no loop over tiles has that variable
#       expected: r or N
#       fix:      name the variable of a loop over tiles

# A tile that does not fit is an error, too, with its line and its size; step 7 has one.
#
# **Try** `explain()` of `linear` from step 3, for tiles of 128 × 128 × 64. Where does A live?
# Which threads copy it?
