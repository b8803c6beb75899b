"""Flash attention

Attention is `softmax(Q Kᵀ) V`, row by row. The scores need not be kept: walk over blocks of keys
with the largest score so far (`top`) and the sum so far (`total`). When a larger score comes,
what was added up is scaled down to it. That is the online softmax, and everything else you know
from the steps before.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit(out_idx=[-1])
def attention(heads, length, dim, causal, block_M=64, block_N=64, threads=128, dtype="float16"):
    scale = 1.4426950408889634 / dim**0.5  # log2(e): exp2 is what the hardware has
    kind = T.Tensor((heads, length, dim), dtype)

    @T.prim_func
    def main(Q: kind, K: kind, V: kind, O: kind):
        with T.Kernel(T.ceildiv(length, block_M), heads, threads=threads) as (bx, h):
            q = T.alloc_shared((block_M, dim), dtype)
            k = T.alloc_shared((block_N, dim), dtype)
            v = T.alloc_shared((block_N, dim), dtype)
            s = T.alloc_fragment((block_M, block_N), "float32")
            p = T.alloc_fragment((block_M, block_N), dtype)
            o = T.alloc_fragment((block_M, dim), "float32")
            top = T.alloc_fragment((block_M,), "float32")  # largest score of a row so far
            total = T.alloc_fragment((block_M,), "float32")  # its sum of exp2(score - top)
            shrink = T.alloc_fragment((block_M,), "float32")
            T.copy(Q[h, bx * block_M, 0], q)
            T.clear(o)
            T.clear(total)
            T.fill(top, -T.infinity("float32"))
            last = (bx + 1) * block_M if causal else length  # keys that this block looks at
            for n in T.Pipelined(T.ceildiv(last, block_N), num_stages=2):
                T.copy(K[h, n * block_N, 0], k)
                T.copy(V[h, n * block_N, 0], v)
                T.gemm(q, k, s, transpose_B=True, clear_accum=True)
                for i, j in T.Parallel(block_M, block_N):
                    row, key = bx * block_M + i, n * block_N + j
                    seen = key <= row if causal else key < length
                    s[i, j] = T.if_then_else(seen, s[i, j] * scale, -T.infinity("float32"))
                T.copy(top, shrink)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(block_M):
                    shrink[i] = T.exp2(shrink[i] - top[i])
                    total[i] = total[i] * shrink[i]
                for i, j in T.Parallel(block_M, block_N):
                    s[i, j] = T.exp2(s[i, j] - top[i])
                T.reduce_sum(s, total, dim=1, clear=False)
                for i, j in T.Parallel(block_M, dim):
                    o[i, j] = o[i, j] * shrink[i]
                T.copy(s, p)
                T.gemm(p, v, o)
            for i, j in T.Parallel(block_M, dim):
                o[i, j] = o[i, j] / total[i]
            T.copy(o, O[h, bx * block_M, 0])

    return main


def reference(q, k, v, causal):
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / q.shape[-1] ** 0.5
    if causal:
        s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v.astype(np.float64)


rng = np.random.default_rng(0)
q, k, v = (rng.standard_normal((2, 150, 64)).astype(np.float16) for _ in range(3))
for causal in (False, True):
    got = attention(2, 150, 64, causal)(q, k, v)
    np.testing.assert_allclose(got, reference(q, k, v, causal), atol=2e-3)

# The same text on Hopper: the mask is asked for once per block of keys, so that only those on the
# diagonal pay for it; products are left open while threads compute. `resources` are those of the
# binary; `pip install -e '.[cuda]'` brings the compiler that counts registers.

kernel = attention.on("cuda")(16, 4096, 128, True, block_M=128, block_N=128, threads=256)
print(kernel.resources)

# **Try** a bias that grows with the distance of row and key. A sliding window is harder than it
# looks: where all keys of a block are hidden, `top` stays -∞, and -∞ - -∞ is not a number
# (`TILEWRIGHT_SANITIZE=1 TILEWRIGHT_SANITIZE_NAN=1` names the line). `zoo/attention/flash.py` has
# grouped heads, too; it is the kernel that is raced in the README.
