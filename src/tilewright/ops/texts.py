"""Kernels over tile values, for what no formula says: pages, groups of rows, scattering.

`kind` is the type of the arrays, for a text names it.
"""

from __future__ import annotations

import tilewright as tw
import tilewright.language as T


@tw.jit
def groupwise(A, B, A_scale, B_scale, kind, out, group=128):
    """Each group's product begins anew and is scaled in float32 as it is added."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), kind)
    B: T.Tensor((N, K), kind)
    A_scale: T.Tensor((M, -(-K // group)), "float32")
    B_scale: T.Tensor((-(-N // group), -(-K // group)), "float32")
    C = T.empty((M, N), out)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K, size=group):
            g = k.start // group
            acc += A[m, k] @ B[n, k].T * (A_scale[m, g][:, None] * B_scale[n.index // group, g])
        C[m, n] = acc
    return C


@tw.jit
def pack(Experts, number):
    """A block for each expert goes along all entries, and counts its own. Entries of no expert
    have place -1, and rows that nothing is packed to have entry -1."""
    N = T.const("N")
    Experts: T.Tensor((N,), "int32")
    Entry, Place = T.empty((N,), "int32"), T.empty((N,), "int32")
    Offset = T.empty((number + 1,), "int32")
    count = T.alloc_global((number,), "int32")
    for e in T.tile(T.each(number)):
        total = T.full((), 0, "int32")
        for n in T.tile(N):
            total += T.sum(T.cast(Experts[n] == e, "int32"), dim=0)
            if e == 0:
                Entry[n] = -1
                Place[n] = -1
        count[e] = total
    for e in T.tile(T.each(number)):
        total = T.sum(T.where(T.arange(number) < e, count[:], 0), dim=0)
        Offset[e] = total
        for n in T.tile(N):
            own = T.load(Experts[n]) == e
            place = T.cumsum(T.cast(own, "int32"), dim=0) + total - 1
            Entry[T.where(own, place, N)] = n.index  # what lies past the end is not stored
            Place[T.where(own, n.index, N)] = place
            total += T.sum(T.cast(own, "int32"), dim=0)
        if e == number - 1:
            Offset[number] = total
    return Entry, Place, Offset


@tw.jit
def grouped(A, B, offset, kind, most, flipped=False):
    """`flipped`: the matrices of B have a row for each element that is folded."""
    S, E, N, K = T.const("S, E, N, K")
    A: T.Tensor((S, K), kind)
    B: T.Tensor((E, K, N) if flipped else (E, N, K), kind)
    offset: T.Tensor((E + 1,), "int32")
    C = T.empty((S, N), kind, partial=True)
    for e, m, n in T.tile(T.each(E), most, N):
        m = m.within(offset[e], offset[e + 1])
        acc = T.zeros((m, n), "float64" if kind == "float64" else "float32")
        for k in T.tile(K):
            acc += A[m, k] @ (B[e, k, n] if flipped else B[e, n, k].T)
        C[m, n] = acc
    return C


@tw.jit
def grouped_outer(A, B, offset, kind, groups):
    """Of the rows of each group, the product of A and B over them."""
    S, N, K = T.const("S, N, K")
    A: T.Tensor((S, N), kind)
    B: T.Tensor((S, K), kind)
    offset: T.Tensor((groups + 1,), "int32")
    C = T.empty((groups, N, K), kind)
    for e, n, k in T.tile(T.each(groups), N, K):
        acc = T.zeros((n, k), "float64" if kind == "float64" else "float32")
        for m in T.tile((offset[e], offset[e + 1])):
            acc += A[m, n].T @ B[m, k]
        C[e, n, k] = acc
    return C


@tw.jit
def inverse(Place, rows):
    """Which entry has each place; rows that nobody has get -1."""
    N = T.const("N")
    Place: T.Tensor((N,), "int32")
    Entry = T.empty((rows,), "int32")
    for r in T.tile(rows):
        Entry[r] = -1
    for n in T.tile(N):
        place = T.load(Place[n])
        Entry[T.where(place < 0, rows, place)] = n.index
    return Entry


@tw.jit
def paged(Q, K, V, table, lens, kind, scale):
    """Blocks share the keys of a query; a second kernel weighs what they found."""
    B, G, H, D, E = T.const("B, G, H, D, E")
    pages, P, most = T.const("pages, P, most")
    Q: T.Tensor((B, G, H, D), kind)
    K: T.Tensor((pages, P, G, D), kind)
    V: T.Tensor((pages, P, G, E), kind)
    table: T.Tensor((B, most), "int32")
    lens: T.Tensor((B,), "int32")
    O = T.empty((B, G, H, E), kind)
    splits = T.chosen("splits", most=128)
    part = T.alloc_global((B, G, splits, H, E), "float32")
    lse = T.alloc_global((B, G, splits, H), "float32")
    for b, g, s in T.tile(T.each(B), T.each(G), T.each(splits)):
        run, q = T.ceildiv(lens[b], splits), T.load(Q[b, g, :, :])
        top, total, acc = T.full((H,), -1e30), T.zeros((H,)), T.zeros((H, E))
        for j in T.tile((s * run, T.min(s * run + run, lens[b]))):
            page, slot = table[b, j.index // P], j.index % P
            x = q @ K[page, slot, g, :].T * scale
            new = T.maximum(top, T.max(x, dim=1))
            p, fix = T.exp(x - new[:, None]), T.exp(top - new)
            total = total * fix + T.sum(p, dim=1)
            acc = acc * fix[:, None] + T.cast(p, kind) @ V[page, slot, g, :]
            top = new
        part[b, g, s, :, :] = T.where(total[:, None] > 0, acc / total[:, None], 0)
        lse[b, g, s, :] = T.where(total > 0, top + T.log(total), -1e30)
    for b, g, h in T.tile(T.each(B), T.each(G), T.each(H)):
        w = T.load(lse[b, g, :, h])
        w = T.exp(w - T.max(w, dim=0))
        O[b, g, h, :] = T.sum(part[b, g, :, h, :] * w[:, None], dim=0) / T.sum(w, dim=0)
    return O
