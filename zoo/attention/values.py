"""Attention over tile values: forward, gradients, and decoding over pages.

A causal query i sees keys up to i + L - S. H heads of queries share G heads of keys.
Tiles are left open: `kernel.with_schedule(tiles={"i": 128})` pins them.
"""

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


@tw.jit
def attention_with_sums(Q, K, V, causal=True, window=0):
    """`attention`, where a query may see only `window` keys, those before its place and at it; and
    the logarithm to base 2 of each row's sum of exponentials, for gradients."""
    B, H, G, S, L, D = T.const("B, H, G, S, L, D")
    Q: T.Tensor((B, H, S, D), "bfloat16")
    K: T.Tensor((B, G, L, D), "bfloat16")
    V: T.Tensor((B, G, L, D), "bfloat16")
    O, sums = T.empty((B, H, S, D), "bfloat16"), T.empty((B, H, S), "float32")
    for b, h, i in T.tile(T.each(B), T.each(H), S):
        q, g, scale = T.load(Q[b, h, i, :]), h // (H // G), D**-0.5 * LOG2E
        top, total, acc = T.full((i,), -1e30), T.zeros((i,)), T.zeros((i, D))
        low, at = T.max(i.start + (L - S) - window + 1, 0), i.index[:, None] + (L - S)
        for j in T.tile((low if window else 0, T.min(i.stop + (L - S), L) if causal else L)):
            s = q @ K[b, g, j, :].T
            if causal:
                s = T.where(j.index <= at, s, -T.inf)
            if window:
                s = T.where(j.index > at - window, s, -T.inf)
            new = T.maximum(top, T.max(s, dim=1))
            p = T.__exp2(s * scale - (new * scale)[:, None])
            fix = T.__exp2((top - new) * scale)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[b, g, j, :]
            top = new
        O[b, h, i, :] = acc * (1 / total)[:, None]
        sums[b, h, i] = top * scale + T.log2(total)
    return O, sums


@tw.jit
def attention_gradients(Q, K, V, O, dO, sums, causal=True):
    """dQ, dK, dV. Both products recompute the probabilities:

    P = exp(Q Kᵀ · scale) / sums      dP = dO Vᵀ      dS = P · (dP − rowsum(dO · O))
    dV = Pᵀ dO      dK = dSᵀ Q · scale      dQ = dS K · scale
    """
    B, H, G, S, L, D = T.const("B, H, G, S, L, D")
    Q: T.Tensor((B, H, S, D), "bfloat16")
    K: T.Tensor((B, G, L, D), "bfloat16")
    V: T.Tensor((B, G, L, D), "bfloat16")
    O: T.Tensor((B, H, S, D), "bfloat16")
    dO: T.Tensor((B, H, S, D), "bfloat16")
    sums: T.Tensor((B, H, S), "float32")
    dQ = T.empty((B, H, S, D), "bfloat16")
    dK, dV = T.empty((B, G, L, D), "bfloat16"), T.empty((B, G, L, D), "bfloat16")
    drop, scale, group, past = T.alloc_global((B, H, S), "float32"), D**-0.5, H // G, L - S
    for b, h, r in T.tile(T.each(B), T.each(H), S):
        drop[b, h, r] = T.sum(dO[b, h, r, :] * O[b, h, r, :], dim=1)
    for b, g, n in T.tile(T.each(B), T.each(G), L):
        k, v = T.load(K[b, g, n, :]), T.load(V[b, g, n, :])
        dk, dv = T.zeros((n, D)), T.zeros((n, D))
        for h, m in T.tile(T.each(group), (T.max(n.start - past, 0) if causal else 0, S)):
            q, do = T.load(Q[b, g * group + h, m, :]), T.load(dO[b, g * group + h, m, :])
            top, off = T.load(sums[b, g * group + h, m]), T.load(drop[b, g * group + h, m])
            s, dp = k @ q.T, v @ do.T
            p = T.__exp2(s * (scale * LOG2E) - top)
            if causal:
                p = T.where(n.index[:, None] <= m.index + past, p, 0)
            dv += T.cast(p, q.dtype) @ do
            dk += T.cast(p * (dp - off), q.dtype) @ q
        dV[b, g, n, :] = dv
        dK[b, g, n, :] = dk * scale
    for b, h, i in T.tile(T.each(B), T.each(H), S):
        q, do, dq = T.load(Q[b, h, i, :]), T.load(dO[b, h, i, :]), T.zeros((i, D))
        top, off = T.load(sums[b, h, i])[:, None], T.load(drop[b, h, i])[:, None]
        for j in T.tile(T.min(i.stop + past, L) if causal else L):
            k, v = T.load(K[b, h // group, j, :]), T.load(V[b, h // group, j, :])
            s, dp = q @ k.T, do @ v.T
            p = T.__exp2(s * (scale * LOG2E) - top)
            if causal:
                p = T.where(j.index <= i.index[:, None] + past, p, 0)
            dq += T.cast(p * (dp - off), q.dtype) @ k
        dQ[b, h, i, :] = dq * scale
    return dQ, dK, dV


@T.macro
def combine(part, lse, O):
    """What the blocks of a query have found, weighed by their log-sum-exp."""
    B, G, _, H, _ = part.shape
    for b, g, h in T.tile(T.each(B), T.each(G), T.each(H)):
        w = T.load(lse[b, g, :, h])
        w = T.exp(w - T.max(w, dim=0))
        O[b, g, h, :] = T.sum(part[b, g, :, h, :] * w[:, None], dim=0) / T.sum(w, dim=0)


@tw.jit
def decode(Q, K, V):
    """Attention of one query over keys. Blocks share the keys of a query."""
    B, G, H, D, L = T.const("B, G, H, D, L")
    Q: T.Tensor((B, G, H, D), "bfloat16")
    K: T.Tensor((B, G, L, D), "bfloat16")
    V: T.Tensor((B, G, L, D), "bfloat16")
    O = T.empty((B, G, H, D), "bfloat16")
    splits = T.chosen("splits", most=128)
    part = T.alloc_global((B, G, splits, H, D), "float32")
    lse = T.alloc_global((B, G, splits, H), "float32")
    run = T.ceildiv(L, splits)
    for b, g, s in T.tile(T.each(B), T.each(G), T.each(splits)):
        q = T.load(Q[b, g, :, :])
        top, total, acc = T.full((H,), -1e30), T.zeros((H,)), T.zeros((H, D))
        for j in T.tile((s * run, T.min(s * run + run, L))):
            x = q @ K[b, g, j, :].T * D**-0.5
            new = T.maximum(top, T.max(x, dim=1))
            p, fix = T.exp(x - new[:, None]), T.exp(top - new)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[b, g, j, :]
            top = new
        part[b, g, s, :, :] = T.where(total[:, None] > 0, acc / total[:, None], 0)
        lse[b, g, s, :] = top + T.log(total)
    combine(part, lse, O)
    return O


@tw.jit
def paged_decode(Q, K, V, table, lens):
    """Attention of one query over pages of keys. Blocks share the keys of a query."""
    B, G, H, D = T.const("B, G, H, D")
    pages, P, most = T.const("pages, P, most")
    Q: T.Tensor((B, G, H, D), "bfloat16")
    K: T.Tensor((pages, P, G, D), "bfloat16")
    V: T.Tensor((pages, P, G, D), "bfloat16")
    table: T.Tensor((B, most), "int32")
    lens: T.Tensor((B,), "int32")
    O = T.empty((B, G, H, D), "bfloat16")
    splits = T.chosen("splits", most=128)
    part = T.alloc_global((B, G, splits, H, D), "float32")
    lse = T.alloc_global((B, G, splits, H), "float32")
    for b, g, s in T.tile(T.each(B), T.each(G), T.each(splits)):
        run, q = T.ceildiv(lens[b], splits), T.load(Q[b, g, :, :])
        top, total, acc = T.full((H,), -1e30), T.zeros((H,)), T.zeros((H, D))
        for j in T.tile((s * run, T.min(s * run + run, lens[b]))):
            page, slot = table[b, j.index // P], j.index % P
            x = q @ K[page, slot, g, :].T * D**-0.5
            new = T.maximum(top, T.max(x, dim=1))
            p, fix = T.exp(x - new[:, None]), T.exp(top - new)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, V.dtype) @ V[page, slot, g, :]
            top = new
        part[b, g, s, :, :] = T.where(total[:, None] > 0, acc / total[:, None], 0)
        lse[b, g, s, :] = top + T.log(total)
    combine(part, lse, O)
    return O
