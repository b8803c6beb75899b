"""Softmax of rows that are longer than one block holds: a cluster of blocks shares each row."""

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
