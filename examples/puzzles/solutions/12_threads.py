"""Thread by thread.

S[b] = the sum of the 128 elements of block b, without tiles: each of 128 threads has one element.
Shuffles add up a warp (32 threads), shared memory brings the four warps together.
"""

import tilewright.language as T


def puzzle(N):
    @T.prim_func
    def main(X: T.Tensor((N,), "int32"), S: T.Tensor((T.ceildiv(N, 128),), "int32")):
        with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
            t = T.get_thread_binding()
            warps = T.alloc_shared((4,), "int32")
            x = T.alloc_var("int32", init=0)
            x = X[bx * 128 + t]
            # ── your part ──
            for step in (16, 8, 4, 2, 1):
                x += T.shfl_xor(x, step)
            if t % 32 == 0:
                warps[t // 32] = x
            T.sync_threads()
            if t == 0:
                S[bx] = warps[0] + warps[1] + warps[2] + warps[3]
            # ── end ──

    return main
