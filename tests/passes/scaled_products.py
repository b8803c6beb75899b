"""Products that begin anew in every iteration, and that threads fold into something else."""

from __future__ import annotations

import numpy as np

import tilewright as tw
import tilewright.language as T
from tests.passes.overlap import numbers
from tilewright import machine

WAYS = (
    "by the map",
    "through shared memory",
    "a column",
    "by the engine",
    "in place",
    "cleared",
    "cleared behind",
)


@tw.jit
def scaled_product(
    steps, way="by the map", block=(128, 64, 64), threads=256, stages=3, tiles=2, known=False
):
    """The sum over k of A[k] · B[k], scaled by rows and as a whole; `way`: how scales get there;
    `known`: how many there are, before a launch."""
    dtype = "float16"
    M, N, K = block
    kinds = (steps, M) if way == "by the engine" else (M, steps)

    @T.prim_func
    def main(
        A: T.Tensor((M, max(steps, 1) * K), dtype),
        B: T.Tensor((tiles, N, max(steps, 1) * K), dtype),
        S: T.Tensor(tuple(max(n, 1) for n in kinds), "float32"),
        t: T.Tensor((tiles, max(steps, 1)), "float32"),
        C: T.Tensor((tiles, M, N), "float32"),
        count: T.int32,
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared((M, K), dtype)
            b = T.alloc_shared((N, K), dtype)
            s = T.alloc_shared((M,), "float32")
            part = T.alloc_fragment((M, N), "float32")
            c = T.alloc_fragment((M, N), "float32")
            for n in T.serial(tiles):
                T.clear(c)
                if way == "cleared behind":
                    T.clear(part)
                for k in T.Pipelined(steps if known else count, num_stages=stages):
                    T.copy(A[0, k * K], a)
                    T.copy(B[n, 0, k * K], b)
                    if way == "by the engine":
                        T.copy(S[k, 0:M], s)
                    if way == "a column":
                        T.copy(S[0:M, k], s)
                    if way == "through shared memory":
                        both = t[n, k]
                        for i in T.Parallel(M):
                            s[i] = S[i, k] * both
                    if way == "cleared":
                        T.clear(part)
                    T.gemm(a, b, part, transpose_B=True, clear_accum="cleared" not in way)
                    if way == "in place":
                        for i, j in T.Parallel(M, N):
                            part[i, j] = T.max(part[i, j], 0) * S[i, k]
                        for i, j in T.Parallel(M, N):
                            c[i, j] = c[i, j] * 0.5 + part[i, j]
                    elif way in ("by the map", "cleared", "cleared behind"):
                        for i, j in T.Parallel(M, N):
                            c[i, j] += part[i, j] * (S[i, k] * t[n, (k * N + j) // N])
                        if way == "cleared behind":
                            T.clear(part)
                    elif way == "through shared memory":
                        for i, j in T.Parallel(M, N):
                            c[i, j] += part[i, j] * s[i]
                    else:
                        for i, j in T.Parallel(M, N):
                            c[i, j] += part[i, j] * (s[i] * t[n, k])
                T.copy(c, C[n, 0, 0])

    return main


def arguments(program, count):
    """Small integers: sums of products of them are exact."""
    found = {}
    for tensor in program.tensors:
        shape = tuple(int(s.value) for s in tensor.shape)
        found[tensor.name] = numbers(*shape, dtype=tensor.dtype.numpy)
    return {**found, "count": count}


def results(program, given, *, threads=False, **kw):
    """What a program leaves in C; with `threads` as thread code."""
    args = {n: a.copy() if isinstance(a, np.ndarray) else a for n, a in given.items()}
    (machine.run_threads if threads else machine.run)(program, args, **kw)
    return args["C"]


def stage(trace, name="order_warpgroups"):
    return next(s.program for s in trace if s.name == name)


def said(trace):
    return " ".join(trace.reasons.values())
