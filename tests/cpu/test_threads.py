"""Thread-level code: loops over threads between barriers."""

import re

import numpy as np
import pytest

from tests.cpu.common import both, check, compiled, draw
from tilewright.support.errors import CompileError


def kernel(body, params, threads="tx in 128", grid="bx in 1", extra=""):
    lines = "\n".join(f"param {p} global" for p in params)
    head = f"kernel main grid {grid} threads {threads}"
    return f"program p {{ {extra}\n{lines}\n{head} {{\n{body}\n}}\n}}"


def test_vector_add_one_thread_per_element():
    text = kernel(
        """
        let i = bx * 128 + tx
        if i < 1000 { C[i] = A[i] + B[i] }
        """,
        ["A: float32[1000]", "B: float32[1000]", "C: float32[1000]"],
        grid="bx in 8",
    )
    a, b = draw(1000), draw(1000, seed=1)
    check(text, {"A": a, "B": b, "C": np.zeros(1000, np.float32)})
    widths = [int(n) for n in re.findall(r"load <(\d+) x float>", compiled(text).source)]
    assert max(widths) >= 8


def test_shared_memory_reduction_with_barriers():
    text = kernel(
        """
        alloc s: float32[128] shared
        s[tx] = A[bx * 128 + tx]
        sync block
        for r in 0 .. 7 {
          let half = 64 >> r
          if tx < half { s[tx] = s[tx] + s[tx + half] }
          sync block
        }
        if tx == 0 { C[bx] = s[0] }
        """,
        ["A: float32[1000]", "C: float32[8]"],
        grid="bx in 8",
    )
    check(text, {"A": draw(1000, "int8").astype(np.float32), "C": np.zeros(8, np.float32)})


@pytest.mark.parametrize("kind, by", [("xor", 5), ("up", 3), ("down", 7), ("sync", 9)])
@pytest.mark.parametrize("width", ["", " width=8"])
def test_shuffles(kind, by, width):
    text = kernel(
        f"""
        let x = A[tx]
        intrinsic shfl_{kind} (x * 2.0, {by}) result=y: float32{width}
        C[tx] = y + x
        """,
        ["A: float32[96]", "C: float32[96]"],
        threads="tx in 96",
    )
    check(text, {"A": draw(96), "C": np.zeros(96, np.float32)})


@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.parametrize("threads", [64, 50])
def test_warp_reductions(op, threads):
    text = kernel(
        f"""
        intrinsic warp_reduce_{op} (A[tx]) result=y: float32
        C[tx] = y
        """,
        [f"A: float32[{threads}]", f"C: float32[{threads}]"],
        threads=f"tx in {threads}",
    )
    a = draw(threads, "int8").astype(np.float32)
    check(text, {"A": a, "C": np.zeros(threads, np.float32)})


def test_votes():
    text = kernel(
        """
        intrinsic ballot (A[tx] > 0.0) result=b: uint32
        intrinsic any_sync (A[tx] > 2.0) result=some: bool
        intrinsic all_sync (A[tx] > -2.0) result=every: bool
        B[tx] = b
        C[tx] = some
        D[tx] = every
        """,
        ["A: float32[96]", "B: uint32[96]", "C: bool[96]", "D: bool[96]"],
        threads="tx in 96",
    )
    zero = np.zeros(96, bool)
    check(text, {"A": draw(96), "B": np.zeros(96, np.uint32), "C": zero, "D": zero})


def test_block_sum_through_warps_under_a_guard():
    text = kernel(
        """
        alloc part: float32[4] shared
        let x = A[bx * 128 + tx]
        intrinsic warp_reduce_sum (x) result=w: float32
        if tx % 32 == 0 { part[tx // 32] = w }
        sync block
        if tx < 32 {
          let y = part[tx] if tx < 4 else 0.0
          intrinsic warp_reduce_sum (y) result=total: float32
          if tx == 0 { C[bx] = total }
        }
        """,
        ["A: float32[512]", "C: float32[4]"],
        grid="bx in 4",
    )
    check(text, {"A": draw(512, "int8").astype(np.float32), "C": np.zeros(4, np.float32)})


def test_local_buffers_and_variables_live_across_barriers():
    text = kernel(
        """
        alloc s: int32[64] shared
        alloc mine: int32[4] local
        alloc n: int32 local init=0
        for k in 0 .. 4 { mine[k] = A[tx * 4 + k] }
        for r in 0 .. 3 {
          s[tx] = mine[r] + n
          sync block
          n = n + s[(tx + 1) % 64]
          sync block
        }
        C[tx] = n + mine[3]
        """,
        ["A: int32[256]", "C: int32[64]"],
        threads="tx in 64",
    )
    check(text, {"A": draw(256, "int32"), "C": np.zeros(64, np.int32)})


def test_two_dimensional_threads_transpose():
    text = kernel(
        """
        alloc s: float32[16, 17] shared
        s[ty, tx] = A[by * 16 + ty, bx * 16 + tx]
        sync block
        C[bx * 16 + ty, by * 16 + tx] = s[tx, ty]
        """,
        ["A: float32[40, 33]", "C: float32[33, 40]"],
        threads="(tx, ty) in (16, 16)",
        grid="(bx, by) in (3, 3)",
    )
    a = draw((40, 33))
    out = check(text, {"A": a, "C": np.zeros((33, 40), np.float32)})
    np.testing.assert_array_equal(out["C"], a.T)


def test_per_thread_loops_break_and_continue():
    text = kernel(
        """
        alloc n: int32 local init=0
        for k in 0 .. tx {
          if k == 40 { break }
          if k % 3 == 0 { continue }
          n = n + k
        }
        alloc x: int32 local init=0
        x = tx
        while x > 1 { x = x // 2; n = n + 1 }
        C[tx] = n
        """,
        ["C: int32[64]"],
        threads="tx in 64",
    )
    check(text, {"C": np.zeros(64, np.int32)})


def test_atomics_from_threads():
    text = kernel(
        """
        let x = A[bx * 64 + tx]
        atomic add H[x % 8] value=1 result=old: int32
        atomic add F[0] value=float32(x)
        atomic max M[x % 4] value=x
        """,
        ["A: int32[512]", "H: int32[8]", "F: float32[1]", "M: int32[4]"],
        threads="tx in 64",
        grid="bx in 8",
    )
    zero = np.zeros(8, np.int32)
    args = {"A": draw(512, "int32"), "H": zero, "F": np.zeros(1, np.float32), "M": zero[:4].copy()}
    check(text, args)


def test_uniform_tile_code_beside_threads():
    text = kernel(
        """
        alloc t: float32[64, 8] shared
        copy A[0:+64, 0:+8] -> t
        alloc row: float32[64] fragment
        reduce sum t -> row dim 1
        sync block
        let i = tx
        C[i] = row[i] * 2.0
        """,
        ["A: float32[64, 8]", "C: float32[64]"],
        threads="tx in 64",
    )
    check(text, {"A": draw((64, 8), "int8").astype(np.float32), "C": np.zeros(64, np.float32)})


def test_barrier_under_a_divergent_guard_is_refused():
    text = kernel("if tx < 3 { sync block }\nC[tx] = 1.0", ["C: float32[64]"], threads="tx in 64")
    with pytest.raises(CompileError, match="barrier"):
        compiled(text)


def test_opaque_code_names_the_targets():
    text = kernel('intrinsic ptx () text="nop"', ["C: float32[64]"])
    with pytest.raises(CompileError, match="ptx") as caught:
        compiled(text)
    assert "cuda" in caught.value.diagnostic.fix


def test_roles_are_refused():
    text = kernel("role r warps 0 + 4 { fill C = 0 }", ["C: float32[64]"])
    with pytest.raises(CompileError, match="Role"):
        compiled(text)


@pytest.mark.parametrize("threads", ["tx in 1", "tx in 33", "(tx, ty) in (1, 16)"])
def test_locals_of_a_block_with_an_index_of_one_value(threads):
    text = kernel(
        """
        alloc n: int32 local init=0
        alloc c: int32 local init=7
        if tx < 40 {
          n = A[tx]
          while n > 1 { n = n // 2; c = c + 1 }
          C[tx] = c
        }
        """,
        ["A: int32[64]", "C: int32[64]"],
        threads=threads,
    )
    check(text, {"A": draw(64, "int32", low=0), "C": np.zeros(64, np.int32)})


def test_what_the_block_does_once_in_a_loop_of_its_threads():
    text = kernel(
        """
        alloc u: int32 local init=1
        alloc x: int32 local init=0
        x = A[tx]
        for k in 0 .. 5 {
          x = x + k
          u = u * 2
          N[0] = N[0] + u
          atomic add N[1] value=1
          if u > 3 { x = x * 3 % 100; u = u + 1 }
        }
        C[tx] = x + u
        """,
        ["A: int32[48]", "N: int32[2]", "C: int32[48]"],
        threads="tx in 48",
    )
    args = {"A": draw(48, "int32"), "N": np.zeros(2, np.int32), "C": np.zeros(48, np.int32)}
    assert check(text, args)["N"].tolist() == [2 + 4 + 10 + 22 + 46, 5]


def test_a_shared_counter_of_a_loop_that_threads_leave():
    text = kernel(
        """
        alloc z: int32 local init=0
        alloc x: int32 local init=0
        while z < 6 {
          z = z + 1
          if A[tx] > z { continue }
          x = x + z
        }
        C[tx] = x * 10 + z
        """,
        ["A: int32[48]", "C: int32[48]"],
        threads="tx in 48",
    )
    check(text, {"A": draw(48, "int32", low=0, high=9), "C": np.zeros(48, np.int32)})


def test_a_tile_operation_on_such_a_counter_is_refused():
    text = kernel(
        """
        alloc z: int32 local init=0
        alloc t: int32[8] shared
        while z < 6 { z = z + 1; if A[tx] > z { continue }; C[tx] = z }
        map i in 8 { t[i] = z }
        """,
        ["A: int32[48]", "C: int32[48]"],
        threads="tx in 48",
    )
    with pytest.raises(CompileError, match="uses z, which is written in a loop that threads leave"):
        compiled(text)


@pytest.mark.parametrize("threads", [8, 33, 64])
def test_results_of_atomics_as_places(threads):
    text = kernel(
        """
        if A[tx] > 0 {
          atomic add N[0] value=1 result=p: int32
          C[p] = A[tx]
        }
        """,
        [f"A: int32[{threads}]", "N: int32[1]", f"C: int32[{threads}]"],
        threads=f"tx in {threads}",
    )
    zero = np.zeros(threads, np.int32)
    args = {"A": draw(threads, "int32"), "N": np.zeros(1, np.int32), "C": zero}
    got, want = both(text, args)
    # who comes first is nobody's promise: warps of a GPU run in any order
    assert got["N"] == want["N"] and sorted(got["C"]) == sorted(want["C"])
