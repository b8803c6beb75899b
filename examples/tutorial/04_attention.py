"""Causal attention

After this page you can write flash attention: several values carried through one loop, and a
mask.

Attention is `softmax(Q Kᵀ) V`, row by row. The scores need not be kept: walk over tiles of keys
with the largest score so far (`top`) and the sum so far (`total`). When a larger score comes,
what was added up is scaled down to it. That is the online softmax.
"""

import numpy as np

import tilewright as tw
import tilewright.language as T


@tw.jit
def attention(Q, K, V):
    H, S, D = T.const("H, S, D")
    Q: T.Tensor((H, S, D), "float16")
    K: T.Tensor((H, S, D), "float16")
    V: T.Tensor((H, S, D), "float16")
    O = T.empty((H, S, D), "float16")
    for h, i in T.tile(T.each(H), S):
        q = T.load(Q[h, i, :])
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        for j in T.tile(i.stop):
            s = q @ K[h, j, :].T * D**-0.5
            s = T.where(j.index <= i.index[:, None], s, -T.inf)
            new = T.maximum(top, T.max(s, dim=1))
            p, fix = T.exp(s - new[:, None]), T.exp(top - new)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[h, j, :]
            top = new
        O[h, i, :] = acc / total[:, None]
    return O


def reference(q, k, v):
    s = q.astype(np.float64) @ k.astype(np.float64).swapaxes(1, 2) / q.shape[-1] ** 0.5
    s = np.where(np.tril(np.ones(s.shape[1:], bool)), s, -np.inf)
    p = np.exp(s - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v.astype(np.float64)


rng = np.random.default_rng(0)
q, k, v = rng.standard_normal((3, 2, 100, 32), np.float32).astype(np.float16)
np.testing.assert_allclose(attention(q, k, v), reference(q, k, v), atol=2e-3)

# - `T.each(H)` is an axis that is taken one index at a time: `h` is a number, and `Q[h, i, :]` has
#   two dimensions.
# - `i.stop` is where the tile of queries ends. Keys after it are hidden from all of its rows, so
#   the loop over keys ends there.
# - `i.index` and `j.index` are the indices themselves, as int32 values. `j.index <= i.index[:,
#   None]` is the mask.
# - `top`, `total` and `acc` are carried. `top` keeps its old number until it is assigned, as in
#   Python.
#
# 100 rows are not a multiple of any tile here, and the text has nothing to say about it. Other
# tile sizes need no change, either:

small = attention.with_schedule(tiles={"i": 16, "j": 32})
np.testing.assert_allclose(small(q, k, v), reference(q, k, v), atol=2e-3)

# **The trap.** Scores are float32, values float16, and `@` wants one type: it rounds nothing that
# you did not ask it to.


@tw.jit
def mixed(P, V):
    S, D = T.const("S, D")
    P: T.Tensor((S, S), "float32")
    V: T.Tensor((S, D), "float16")
    O = T.empty((S, D), "float32")
    for i in T.tile(S):
        O[i, :] = T.exp(P[i, :]) @ V[:, :]
    return O


try:
    mixed(np.ones((8, 8), np.float32), np.ones((8, 4), np.float16))
except tw.CompileError as error:
    print(error)

#     @: the sides have different types
#       expected: one type
#       got:      float32 @ float16
#       fix:      cast one: T.cast(p, V.dtype)

# **Try** a sliding window: a row sees only the last W keys. Now the first tiles of keys may be
# hidden as a whole, and a `top` that starts at -∞ gives -∞ - -∞, which is NaN. That is why it
# starts at -1e30. Step 9 shows how to find such a line. `zoo/attention/flash.py` is the kernel
# that the README races.
