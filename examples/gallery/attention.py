"""Causal attention with an online softmax."""

import tilewright as tw
import tilewright.language as T

LOG2E = 1.4426950408889634


@tw.jit
def attention(Q, K, V, causal=True):
    B, H, G, S, L, D = T.const("B, H, G, S, L, D")
    Q: T.Tensor((B, H, S, D), "bfloat16")
    K: T.Tensor((B, G, L, D), "bfloat16")
    V: T.Tensor((B, G, L, D), "bfloat16")
    O = T.empty((B, H, S, D), "bfloat16")
    for b, h, i in T.tile(T.each(B), T.each(H), S):
        q, g, scale = T.load(Q[b, h, i, :]), h // (H // G), D**-0.5 * LOG2E
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        for j in T.tile(T.min(i.stop + (L - S), L) if causal else L):
            s = q @ K[b, g, j, :].T
            if causal:
                s = T.where(j.index <= i.index[:, None] + (L - S), s, -T.inf)
            new = T.maximum(top, T.max(s, dim=1))
            p = T.__exp2(s * scale - (new * scale)[:, None])
            fix = T.__exp2((top - new) * scale)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[b, g, j, :]
            top = new
        O[b, h, i, :] = acc * (1 / total)[:, None]
    return O
