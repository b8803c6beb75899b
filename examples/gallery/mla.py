"""Multi-head latent attention, decoding: all heads share one latent tile of keys."""

import tilewright as tw
import tilewright.language as T

LOG2E = 1.4426950408889634


@tw.jit
def mla_decode(Q, Q_rope, KV, K_rope):
    """A key is a latent part and a rotary part; the value is the latent part."""
    B, H, L, D, R = T.const("B, H, L, D, R")
    Q: T.Tensor((B, H, D), "bfloat16")
    Q_rope: T.Tensor((B, H, R), "bfloat16")
    KV: T.Tensor((B, L, D), "bfloat16")
    K_rope: T.Tensor((B, L, R), "bfloat16")
    O = T.empty((B, H, D), "bfloat16")
    run = -(-L // (64 * T.chosen("runs", most=64))) * 64  # keys of a block
    runs, scale = -(-L // run), (D + R) ** -0.5 * LOG2E
    part = T.alloc_global((B, runs, H, D), "float32")
    weight = T.alloc_global((B, runs, H), "float32")
    for b, r, h in T.tile(T.each(B), L, H, size=(None, run, None)):  # heads share keys
        q, q_rope = T.load(Q[b, h, :]), T.load(Q_rope[b, h, :])
        top, total, acc = T.full((h,), -1e30), T.zeros((h,)), T.zeros((h, D))
        for j in T.tile((r.start, r.stop)):
            kv = T.load(KV[b, j, :])
            s = q @ kv.T + q_rope @ K_rope[b, j, :].T
            new = T.maximum(top, T.max(s, dim=1))
            p = T.__exp2(s * scale - (new * scale)[:, None])
            fix = T.__exp2((top - new) * scale)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, KV.dtype) @ kv
            top = new
        if runs == 1:
            O[b, h, :] = acc / total[:, None]
        else:
            part[b, r.start // run, h, :] = acc / total[:, None]
            weight[b, r.start // run, h] = top * scale + T.log2(total)
    if runs > 1:
        for b, h in T.tile(T.each(B), T.each(H)):
            w = T.load(weight[b, :, h])
            w = T.exp2(w - T.max(w, dim=0))
            O[b, h, :] = T.sum(part[b, :, h, :] * w[:, None], dim=0) / T.sum(w, dim=0)
    return O
