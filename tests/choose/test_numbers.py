"""Numbers that a text leaves open (`T.chosen`)."""

from __future__ import annotations

import re
import warnings
from math import prod

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.choose.model import estimate
from tilewright.ir.target import Target
from zoo.attention.values import decode, paged_decode

H200 = "cuda -arch=sm_90a"


@tw.jit
def total(X):
    N = T.const("N")
    X: T.Tensor((N,), "int32")
    Y = T.empty((1,), "int32")
    parts = T.chosen("parts", most=8)
    sums, run = T.alloc_global((parts,), "int32"), T.ceildiv(N, parts)
    for p in T.tile(T.each(parts)):
        found = T.zeros((), "int32")
        for n in T.tile((p * run, T.min(p * run + run, N))):
            found += T.sum(X[n], dim=0)
        sums[p] = found
    for _ in T.tile(T.each(1)):
        Y[0] = T.sum(sums[:], dim=0)
    return Y


@tw.jit
def columns(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((N,), "float32")
    parts = T.chosen("parts", most=256)
    sums, run = T.alloc_global((parts, N), "float32"), T.ceildiv(M, parts)
    for p, n in T.tile(T.each(parts), N):
        found = T.zeros((n,))
        for m in T.tile((p * run, T.min(p * run + run, M))):
            found += T.sum(X[m, n], dim=0)
        sums[p, n] = found
    for n in T.tile(N):
        Y[n] = T.sum(sums[:, n], dim=0)
    return Y


def zeros(*shape):
    return np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), shape)


def chosen(batch, groups, keys, **tiles):
    """The splits of decoding that the model takes, 1 where it says nothing of them."""
    kernel = decode.on(H200).with_schedule(tiles=tiles) if tiles else decode.on(H200)
    shape = batch, groups, keys, 128
    told = kernel.compile(zeros(batch, groups, 8, 128), zeros(*shape), zeros(*shape)).explain()
    (line,) = re.findall(r"tiles: (.*)", told)
    found = re.match(r"[^;]*splits (\d+)", line)
    return int(found[1]) if found else 1


@pytest.mark.parametrize("parts", [1, 3, 8])
def test_each_number_gives_the_same(parts):
    x = np.arange(1000, dtype=np.int32)
    for target in ("interp", "cpu"):
        assert total.on(target).with_schedule(tiles={"parts": parts})(x) == [x.sum()]


def test_one_where_nothing_says_more():
    program = total.on("interp").compile(np.zeros(100, np.int32)).program
    assert program.scratch[0].static_shape == (1,)


def test_without_products_blocks_fill_the_chip():
    program = total.on(H200).compile(np.broadcast_to(np.int32(0), 1 << 20)).program
    assert program.kernels[0].grid[0].value == program.scratch[0].static_shape[0] == 8
    wide = np.broadcast_to(np.float32(0), (1 << 20, 600))
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # the second kernel's tiles suit how many parts there are
        program = columns.on(H200).compile(wide).program
    assert prod(int(n.value) for n in program.kernels[0].grid) > 200


def test_keys_are_shared_where_requests_are_few():
    few, many = chosen(1, 8, 16384), chosen(64, 16, 16384)
    assert 8 <= few <= 128 and many <= 2
    assert chosen(1, 8, 16384, j=128) >= 8  # of a schedule in part, the rest is chosen


def test_more_than_the_text_allows():
    with pytest.raises(tw.CompileError, match="(?s)has 9 for 'parts'.*at most 8"):
        total.with_schedule(tiles={"parts": 9})(np.zeros(10, np.int32))


def test_not_inside_a_kernel():
    @tw.jit
    def kernel(X):
        N = T.const("N")
        X: T.Tensor((N,), "int32")
        for n in T.tile(N):
            X[n] = T.chosen("parts", most=2)

    with pytest.raises(tw.CompileError, match="T.chosen inside a kernel"):
        kernel(np.zeros(10, np.int32))


def modelled(kernel, *shapes):
    """What the model says of the first kernel."""
    made = kernel.on(H200).compile(*shapes)
    return estimate(made.program.kernels[0], Target.parse(H200)).us


def test_loops_whose_end_is_data_read_what_there_is():
    def paged(keys):
        pages = 4 * keys // 64
        kept = zeros(pages, 64, 8, 128)
        table, lens = (np.broadcast_to(np.int32(0), n) for n in ((4, keys // 64), (4,)))
        return modelled(paged_decode, zeros(4, 8, 8, 128), kept, kept, table, lens)

    assert 10 < paged(65536) / paged(4096) < 20  # 512 MB by 32 MB


def test_triangles_are_not_looked_at_along_their_edge():
    @tw.jit
    def triangle(A, B):
        N = T.const("N")
        A: T.Tensor((N, N), "bfloat16")
        B: T.Tensor((N, N), "bfloat16")
        C = T.empty((N, N), "bfloat16")
        for m, n in T.tile(N, N, size=(128, 128)):
            acc = T.zeros((m, n))
            for k in T.tile((m.start, n.stop), size=64):
                acc += A[m, k] @ B[k, n]
            C[m, n] = acc
        return C

    # a sixth of 4096³ products, at 800 TFLOP/s at most
    assert modelled(triangle, zeros(4096, 4096), zeros(4096, 4096)) > 2 * 4096**3 / 6 / 800e6
