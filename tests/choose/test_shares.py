"""Blocks that have some of the steps of a loop each: of a cluster, or of a larger grid."""

import random

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.choose import pick
from tilewright.choose.candidates import Candidate
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.lang.sizes import choose_sizes
from tilewright.lang.trace import trace_direct
from tilewright.runtime.backends import compiled_for
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.guard import run_guarded

H200 = Target.parse("cuda -arch=sm_90a")


@tw.jit
def product(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.full((m, n), 1.0)
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = T.maximum(acc, 0.0)
    return C


@tw.jit
def row_sums(A, B):
    """Adds up something else besides."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C, S = T.empty((M, N), A.dtype), T.empty((M,), "float32")
    for m in T.tile(M):
        acc, total = T.zeros((m, N)), T.zeros((m,))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, :]
            total += T.sum(A[m, k], dim=1)
        C[m, :] = acc
        S[m] = total
    return C, S


@tw.jit
def stopping(A, B):
    """Leaves the loop where a block would not know that another one has."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            if k.start > 200:
                break
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def of_powers(A, B):
    """What lies behind the end is not zero: 2^0."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += T.cast(T.exp2(A[m, k]), A.dtype) @ T.cast(T.exp2(B[k, n]), B.dtype)
        C[m, n] = acc
    return C


@tw.jit
def inner_rows(A, B):
    """Rows that do not begin with the first: sums would lie outside."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile((4, M), N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def counting(A, B, count):
    """Does something before the loop that must be done once."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    count: T.Tensor((M,), "float32")
    C = T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        T.atomic_add(count[m], T.full((m,), 1.0))
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def in_two(A, B):
    """Two kernels."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    C, D = T.empty((M, N), A.dtype), T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    for m, n in T.tile(M, N):
        D[m, n] = C[m, n] + 1
    return C, D


def given(m, n, k, dtype=ml_dtypes.bfloat16):
    rng = np.random.default_rng(m + n + k)
    return [rng.integers(-2, 3, shape).astype(dtype) for shape in ((m, k), (k, n))]


def traced(kernel, args, chosen):
    with compiled_for(H200):
        found = trace_direct(
            kernel.fn,
            args,
            pick=lambda builder, at: pick.chosen_of(choose_sizes(builder), 0, chosen),
        )
    return found.program


def candidate(blocks, threads=128, **tiles):
    return Candidate(tuple(tiles.items()), threads, 1, (("k", blocks),))


def parts(blocks, threads=128, **tiles):
    return Candidate(tuple(tiles.items()), threads, 1, (), (("k", blocks),))


@pytest.mark.parametrize(
    "chosen",
    [
        candidate(4, m=16, n=32, k=64),
        candidate(2, m=64, n=32, k=64),
        candidate(8, threads=32, m=16, n=32, k=32),
        parts(3, m=16, n=32, k=64),
        parts(4, m=64, n=32, k=32),
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float32], ids=["bfloat16", "float32"])
def test_sums_of_all_blocks(chosen, dtype):
    """As tile code, and of few blocks as thread code; what the sum begins with counts once."""
    a, b = given(11, 32, 256, dtype)
    made = traced(product, (a, b), chosen)
    want = np.maximum(a.astype(float) @ b.astype(float) + 1, 0)
    few = (chosen.shares + chosen.parts)[0][1] <= 4
    for program in (made, lower(made, H200).result) if few else (made,):
        out = np.zeros(want.shape, dtype)
        machine.run(program, {"A": a, "B": b, "C": out})
        assert (out == want.astype(dtype)).all()


@pytest.mark.parametrize("length", [192, 200, 5 * 64, 7 * 64 + 8])
def test_steps_that_blocks_do_not_divide(length):
    """The last block has steps behind the end, also where the last tile is whole."""
    a, b = given(11, 32, length)
    powers = 2.0 ** a.astype(float) @ 2.0 ** b.astype(float)
    cases = (product, np.maximum(a.astype(float) @ b.astype(float) + 1, 0)), (of_powers, powers)
    for kernel, want in cases:
        for made in (
            traced(kernel, (a, b), candidate(4, m=16, n=32, k=64)),
            traced(kernel, (a, b), parts(3, m=16, n=32, k=64)),
        ):
            for program in (made, lower(made, H200).result):
                out = np.zeros(want.shape, a.dtype)
                machine.run(program, {"A": a, "B": b, "C": out})
                assert (out == want.astype(a.dtype)).all()


@pytest.mark.parametrize("seed", range(4))
def test_drawn_sizes_and_choices(seed):
    """Rows, columns and steps that nothing divides, operands that are swapped or not."""
    rng = random.Random(seed)
    m, n, k = rng.randrange(1, 60), 8 * rng.randrange(1, 14), 8 * rng.randrange(8, 24)
    shared = candidate if rng.random() < 0.3 else parts
    blocks = rng.choice((2, 4)) if shared is candidate else rng.randrange(2, 8)
    tiles = {"m": 8 * rng.randrange(1, 14), "n": rng.choice((64, 96, 128)), "k": 64}
    chosen = shared(blocks, rng.choice((128, 256)), **tiles)
    a, b = given(m, n, k)
    try:
        made = traced(product, (a, b), chosen)
        threads = lower(made, H200).result
    except tw.CompileError as error:  # no instruction for it
        assert "multipl" in str(error) or "register" in str(error), (chosen, str(error))
        return
    want = np.maximum(a.astype(float) @ b.astype(float) + 1, 0)
    for program in (made, threads):
        out = np.zeros(want.shape, a.dtype)
        machine.run(program, {"A": a, "B": b, "C": out})
        assert (out == want.astype(a.dtype)).all(), (m, n, k, chosen)


def test_how_it_is_written():
    text = print_program(traced(product, given(11, 200, 512), candidate(4, m=16, n=64, k=64)))
    for line in (
        "cluster=4 rank=cluster_rank {",
        "if cluster_rank != 0 {\n      fill acc = 0.0",
        "copy A[m * 16:+16, (cluster_rank * 2 + k_trip) * 64:+64] -> tile",
        "if cluster_rank % 4 == 2 {\n      copy acc -> acc_slots_1@(cluster_rank - 2)",
    ):
        assert line in text, text
    assert text.rindex("if cluster_rank == 0 {") < text.index("copy C_tile -> C[")


def test_how_parts_are_written():
    """Sums go to memory; what stands behind the loop is a kernel of its own, by small tiles."""
    made = traced(product, given(11, 200, 512), parts(3, m=16, n=64, k=64))
    text = print_program(made)
    for line in (
        "scratch sums_acc: float32[3, 11, 200] global",
        "kernel product grid (n, m, part) in (4, 1, 3)",
        "copy A[m * 16:+16, (part * 3 + k_trip) * 64:+64] -> tile",
        "copy acc -> sums_acc[part, m * 16:+16, n * 64:+64]",
        "kernel product_sum grid (n_1, m_1) in (2, 2)",
        "copy sums_acc[2, m_1 * 8:+8, n_1 * 128:+128] -> part_2",
    ):
        assert line in text, text
    first, second = text.split("kernel product_sum")
    assert " -> C[" not in first and "gemm" not in second


@tw.jit
def scaled(A, B, scale):
    """Two sums, an end that needs more than them, and what is made before the loop."""
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K))
    B: T.Tensor((K, N))
    scale: T.Tensor((M,), "float32")
    C, D = T.empty((M, N), A.dtype), T.empty((M, N), A.dtype)
    for m, n in T.tile(M, N):
        by = scale[m] * 2
        acc, other = T.zeros((m, n)), T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
            other += A[m, k] @ T.cast(B[k, n] * 2, A.dtype)
        C[m, n] = acc * by[:, None]
        D[m, n] = other - acc
    return C, D


def test_several_sums_and_what_stands_before_the_loop():
    a, b = given(20, 72, 200)
    scale = np.arange(20, dtype=np.float32)
    made = traced(scaled, (a, b, scale), parts(3, m=16, n=32, k=32))
    total = a.astype(float) @ b.astype(float)
    for program in (made, lower(made, H200).result):
        out = [np.zeros(total.shape, a.dtype) for _ in "CD"]
        machine.run(program, {"A": a, "B": b, "scale": scale, "C": out[0], "D": out[1]})
        assert (out[0] == (total * 2 * scale[:, None]).astype(a.dtype)).all()
        assert (out[1] == total.astype(a.dtype)).all()


@pytest.mark.parametrize(
    "kernel, chosen, why",
    [
        (product, candidate(3, m=16, n=64, k=64), "3 blocks cannot share the steps of k"),
        (row_sums, candidate(2, m=16, k=64), "does more than to add up products"),
        (stopping, candidate(2, m=16, n=64, k=64), "does more than to add up products"),
        (row_sums, parts(2, m=16, k=64), "does more than to add up products"),
        (inner_rows, parts(2, m=16, n=64, k=64), "have no place in memory"),
        (counting, parts(2, m=16, n=64, k=64), "is done more than once"),
        (in_two, parts(2, m=16, n=64, k=64), "in a text of several kernels"),
    ],
)
def test_what_cannot_be_shared(kernel, chosen, why):
    more = [np.zeros(16, np.float32)] if kernel is counting else []
    with pytest.raises(tw.CompileError, match=why):
        traced(kernel, (*given(16, 64, 512), *more), chosen)


def test_such_choices_are_not_made():
    a, b = given(48, 744, 32376)
    assert "parts" not in why(counting, a, b, np.zeros(48, np.float32))
    assert "parts" not in why(in_two, a, b)


def test_large_tiles_that_a_schedule_pins_are_added_up_one_by_one():
    a, b = given(200, 96, 512)
    with compiled_for(Target.parse("cuda -arch=sm_90a").choosing(tiles={"m": 128, "n": 96})):
        found = trace_direct(
            product.fn,
            (a, b),
            pick=lambda builder, at: pick.chosen_of(choose_sizes(builder), 0, parts(3, 256, k=64)),
        )
    text = print_program(found.program).split("kernel product_sum")[1]
    assert text.count("-> part") == 3 and text.count("alloc part") == 1
    want = np.maximum(a.astype(float) @ b.astype(float) + 1, 0)
    out = np.zeros(want.shape, a.dtype)
    machine.run(found.program, {"A": a, "B": b, "C": out})
    assert (out == want.astype(a.dtype)).all()


def why(kernel, *args):
    direct = kernel.on("cuda -arch=sm_90a").calls
    text, *_ = direct.trace(direct.bind(args, {}, partial=True)).why.values()
    return text.split("; ")[0]


def test_few_tiles_and_many_steps_are_shared():
    for size in ((16, 720, 16384), (48, 744, 32376), (200, 200, 4096)):
        told = why(product, *given(*size))
        assert "parts" in told or "share" in told
    large = why(product, *given(2048, 2048, 512))
    assert "share" not in large and "parts" not in large


def _on_gpu():
    import torch

    for m, n, k, kind in (
        (16, 720, 16384, "bfloat16"),
        (96, 480, 3840, "float16"),
        (24, 200, 4096, "float32"),
        (208, 1648, 8912, "bfloat16"),
        (48, 744, 32376, "float16"),
        (200, 200, 8192, "float32"),
    ):
        a, b = (
            torch.randint(-2, 3, shape, device="cuda").to(getattr(torch, kind))
            for shape in ((m, k), (k, n))
        )
        ready = product.on("cuda").compile(a, b)
        told = str(ready.chosen)
        assert "share k" in told or "parts" in told, (m, n, k, told)
        want = torch.relu(a.double() @ b.double() + 1).to(a.dtype)
        for _ in range(3):
            assert torch.equal(ready(a, b), want), (m, n, k, kind)


@pytest.mark.gpu
def test_on_a_gpu():
    run_guarded(_on_gpu, timeout=120)
