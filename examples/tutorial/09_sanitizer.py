"""Bugs that show themselves

The same text runs in an interpreter that checks every access: `"interp -sanitize"`. A race
between threads, a read of what nothing wrote, an index out of range: each is an error with its
line, every time, not a wrong number now and then.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def reverse(N, barrier=True):
    @T.prim_func
    def main(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=N):
            t = T.get_thread_binding()  # from here on, code of single threads
            tile = T.alloc_shared((N,), "int32")
            tile[t] = X[t]
            if barrier:
                T.sync_threads()
            Y[t] = tile[N - 1 - t]

    return main


@tw.jit
def partial_sums(N):
    @T.prim_func
    def main(X: T.Tensor((N,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=32):
            total = T.alloc_fragment((1,), "float32")  # nobody clears it
            x = T.alloc_fragment((N,), "float32")
            T.copy(X, x)
            T.reduce_sum(x, total, dim=0, clear=False)
            T.copy(total, Y)

    return main


x, y = np.arange(64, dtype=np.int32), np.empty(64, np.int32)
reverse.on("interp -sanitize")(64)(x, y)
assert (y == x[::-1]).all()

# Without the barrier a thread may read what its neighbour has not written yet. And an accumulator
# that is not cleared adds to garbage.

found = []
for kernel, args in (
    (reverse.on("interp -sanitize")(64, barrier=False), (x, y)),
    (partial_sums.on("interp -sanitize")(8), (np.ones(8, np.float32), np.empty(1, np.float32))),
):
    try:
        kernel(*args)
    except tw.SanitizerError as error:
        print(error)
        found.append(error.kind)
assert found == ["race", "uninitialized"]

#     race: tile[0] is written by one thread and touched by another with no barrier between
#        24 |             Y[t] = tile[N - 1 - t]
#                                ^^^^^^^^^^^^^^^
#       fix:      put T.sync_threads() between the two

# **Try** `tile[N - t]`; two blocks that write one element; `TILEWRIGHT_SANITIZE=1 python
# your_script.py`, which checks every kernel of a script.
