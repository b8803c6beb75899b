"""Threads

After this page you can drop to single threads inside a kernel: indices, shuffles, barriers.

Tiles cover most kernels. For the rest there is the level that CUDA starts at.
`T.get_thread_binding()` is the thread's index; from there on, code is that of one thread.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def reverse(X):
    N = T.const("N")
    X: T.Tensor((N,), "int32")
    Y = T.empty((N,), "int32")
    for n in T.tile(N, size=128):
        tile = T.alloc_shared((n,), "int32")
        tile[:] = T.cumsum(X[n], dim=0)  # by all threads
        t = T.get_thread_binding()
        Y[n.start + t] = tile[127 - t]  # by each one
    return Y


x = np.arange(256, dtype=np.int32)
assert (reverse(x).reshape(2, 128) == x.reshape(2, 128).cumsum(1)[:, ::-1]).all()

# Values, tiles and threads mix in one kernel. Between the store to `tile` and the reads of other
# threads there is a barrier: around words of tiles it is derived. Between two statements of
# threads it is yours, as in CUDA. Here shuffles add up a warp, and shared memory brings four warps
# together:


@tw.jit
def block_sums(X, barrier=True):
    N = T.const("N")
    X: T.Tensor((N,), "int32")
    S = T.empty((T.ceildiv(N, 128),), "int32")
    with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
        t = T.get_thread_binding()
        warps = T.alloc_shared((4,), "int32")
        x = T.alloc_var("int32", init=X[bx * 128 + t])
        for step in (16, 8, 4, 2, 1):
            x += T.shfl_xor(x, step)
        if t % 32 == 0:
            warps[t // 32] = x
        if barrier:  # a Python bool: chosen while the kernel is traced
            T.sync_threads()
        if t == 0:
            S[bx] = warps[0] + warps[1] + warps[2] + warps[3]
    return S


assert block_sums(x).tolist() == [x[:128].sum(), x[128:].sum()]

# **The trap.** Without the barrier, thread 0 may read what another warp has not written. On a GPU
# that is a wrong number now and then. Under the sanitizer it is an error, every time:

try:
    block_sums.on("interp -sanitize")(x, barrier=False)
except tw.SanitizerError as error:
    print(error)

#     race: warps[1] is written by one thread and touched by another with no barrier between
#       fix:      put T.sync_threads() between the two

# **Try** `T.sum(X[n], dim=0)` in place of all this, and look at `explain()`: who talks to whom?
# [The reference](../reference/threads.md) has votes, inline PTX and C++.
