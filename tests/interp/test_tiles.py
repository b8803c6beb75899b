"""Tile ops against NumPy, sequentially."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from tilewright.ir.text import parse_program
from tilewright.machine import run
from tilewright.support.errors import LaunchError, RunError

rng = np.random.default_rng(0)


def kernel(params: str, body: str, *, grid: str = "bx in 1", threads: int = 64, extra: str = ""):
    lines = "\n".join(f"param {p}" for p in params.split(";"))
    head = f"kernel k grid {grid} threads tx in {threads}"
    return parse_program(f"program p {{\n{lines}\n{extra}\n{head} {{\n{body}\n}}\n}}")


def f32(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


GEMM = """
program gemm {
  dim m
  param A: float16[m, 96] global
  param B: float16[96, 80] global
  param C: float16[m, 80] global
  kernel k grid (bx, by) in (2, (m + 31) // 32) threads tx in 128 {
    alloc As: float16[32, 32] shared
    alloc Bs: float16[32, 64] shared
    alloc acc: float32[32, 64] fragment
    fill acc = 0.0
    for ko in 0 .. 3 kind=pipelined stages=3 {
      copy A[by * 32:+32, ko * 32:+32] -> As
      copy B[ko * 32:+32, bx * 64:+64] -> Bs
      gemm As, Bs -> acc
    }
    map (i, j) in (32, 64) {
      acc[i, j] = max(acc[i, j], 0.0)
    }
    copy acc -> C[by * 32:+32, bx * 64:+64]
  }
}
"""


@pytest.mark.parametrize("m", [1, 31, 64, 77])
@pytest.mark.parametrize("sanitize", [False, True])
def test_gemm_with_ragged_edges(m, sanitize):
    program = parse_program(GEMM)
    a, b = f32(m, 96).astype(np.float16), f32(96, 80).astype(np.float16)
    c = np.full((m, 80), 7, np.float16)
    run(program, {"A": a, "B": b, "C": c}, sanitize=sanitize)
    want = np.maximum(a.astype(np.float32) @ b.astype(np.float32), 0)
    np.testing.assert_allclose(c.astype(np.float32), want, rtol=2e-3, atol=2e-2)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(
    ("ab", "c"),
    [("float16", "float32"), ("int8", "int32"), ("float64", "float64"), ("float16", "float16"),
     ("float8_e4m3fn", "float32"), ("bfloat16", "float32")],
)  # fmt: skip
def test_gemm_types_and_transposes(ta, tb, ab, c):
    shape_a = "16, 8" if ta else "8, 16"
    shape_b = "12, 16" if tb else "16, 12"
    program = kernel(
        f"A: {ab}[{shape_a}] global;B: {ab}[{shape_b}] global;C: {c}[8, 12] global",
        f"""
        alloc As: {ab}[{shape_a}] shared
        alloc Bs: {ab}[{shape_b}] shared
        alloc acc: {c}[8, 12] fragment
        copy A -> As; copy B -> Bs; copy C -> acc
        gemm As, Bs -> acc transpose_a={str(ta).lower()} transpose_b={str(tb).lower()}
        copy acc -> C
        """,
    )
    kind = program.params[0].dtype.numpy
    a = rng.integers(-3, 4, eval(f"({shape_a})")).astype(np.float32).astype(kind)
    b = rng.integers(-3, 4, eval(f"({shape_b})")).astype(np.float32).astype(kind)
    out = rng.integers(-3, 4, (8, 12)).astype(program.params[2].dtype.numpy)
    x, y = a.astype(np.float64), b.astype(np.float64)
    want = out.astype(np.float64) + (x.T if ta else x) @ (y.T if tb else y)
    run(program, {"A": a, "B": b, "C": out})
    np.testing.assert_array_equal(out.astype(np.float64), want)


def test_gemm_clear_and_tf32():
    program = kernel(
        "A: float32[8, 8] global;B: float32[8, 8] global;C: float32[8, 8] global",
        """
        alloc As: float32[8, 8] shared
        alloc Bs: float32[8, 8] shared
        alloc acc: float32[8, 8] fragment
        copy A -> As; copy B -> Bs
        fill acc = 5.0
        gemm As, Bs -> acc clear=bx == 0 precision="tf32"
        copy acc -> C
        """,
    )
    a = np.full((8, 8), 1 + 2.0**-12, np.float32)
    b, c = np.eye(8, dtype=np.float32), np.zeros((8, 8), np.float32)
    run(program, {"A": a, "B": b, "C": c})
    assert (c == 1.0).all()


@pytest.mark.parametrize(
    ("op", "fn"),
    [("sum", lambda x: x.sum(1)), ("max", lambda x: x.max(1)), ("min", lambda x: x.min(1)),
     ("abssum", lambda x: np.abs(x).sum(1)), ("absmax", lambda x: np.abs(x).max(1))],
)  # fmt: skip
@pytest.mark.parametrize("clear", [True, False])
def test_reduce(op, fn, clear):
    program = kernel(
        "A: float32[8, 32] global;B: float32[8] global",
        f"""
        alloc a: float32[8, 32] fragment
        alloc r: float32[8] fragment
        copy A -> a; copy B -> r
        reduce {op} a -> r dim 1 clear={str(clear).lower()}
        copy r -> B
        """,
    )
    a, b = rng.integers(-9, 9, (8, 32)).astype(np.float32), np.full(8, 3, np.float32)
    want = fn(a)
    if not clear:
        fold = {"sum": np.add, "abssum": np.add, "min": np.minimum}.get(op, np.maximum)
        want = fold(want, b)
    run(program, {"A": a, "B": b})
    np.testing.assert_array_equal(b, want)


def test_reduce_keeps_nan_and_unit_dimension():
    program = kernel(
        "A: float32[4, 8] global;B: float32[4, 1] global",
        """
        alloc a: float32[4, 8] fragment
        alloc r: float32[4, 1] fragment
        copy A -> a
        reduce max a -> r dim 1
        copy r -> B
        """,
    )
    a, b = f32(4, 8), np.zeros((4, 1), np.float32)
    a[2, 3] = np.nan
    run(program, {"A": a, "B": b})
    assert np.isnan(b[2, 0])
    np.testing.assert_array_equal(b[[0, 1, 3], 0], a[[0, 1, 3]].max(1))


def test_reduce_bits_and_tests():
    program = kernel(
        "A: int32[4, 8] global;B: int32[4] global;C: bool[4] global",
        """
        alloc a: int32[4, 8] fragment
        alloc r: int32[4] fragment
        alloc t: bool[4] fragment
        copy A -> a
        reduce xor a -> r dim 1
        reduce all a -> t dim 1
        copy r -> B; copy t -> C
        """,
    )
    a = rng.integers(0, 4, (4, 8)).astype(np.int32)
    a[1] = 1
    b, c = np.zeros(4, np.int32), np.zeros(4, np.bool_)
    run(program, {"A": a, "B": b, "C": c})
    np.testing.assert_array_equal(b, np.bitwise_xor.reduce(a, axis=1))
    np.testing.assert_array_equal(c, (a != 0).all(1))


@pytest.mark.parametrize("reverse", [False, True])
def test_scan(reverse):
    program = kernel(
        "A: float32[4, 8] global;B: float32[4, 8] global",
        f"""
        alloc a: float32[4, 8] shared
        copy A -> a
        scan sum a -> a dim 1 reverse={str(reverse).lower()}
        copy a -> B
        """,
    )
    a, b = rng.integers(-9, 9, (4, 8)).astype(np.float32), np.zeros((4, 8), np.float32)
    run(program, {"A": a, "B": b})
    want = np.cumsum(a[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(a, 1)
    np.testing.assert_array_equal(b, want)


def test_copy_casts_slices_and_drops_units():
    program = kernel(
        "A: float32[3, 5, 7] global;B: float8_e4m3fn[4, 6] global",
        """
        alloc t: float16[4, 6] shared
        copy A[1, 2:+4, 3:+6] -> t
        copy t -> B
        """,
    )
    a = f32(3, 5, 7) * 300
    b = np.ones((4, 6), ml_dtypes.float8_e4m3fn)
    run(program, {"A": a, "B": b})
    want = np.zeros((4, 6), np.float32)
    want[:3, :4] = a[1, 2:5, 3:7]
    want = np.clip(want.astype(np.float16).astype(np.float32), -448, 448)
    np.testing.assert_array_equal(
        b.astype(np.float32), want.astype(ml_dtypes.float8_e4m3fn).astype(np.float32)
    )


def test_copy_shape_mismatch_and_out_of_range():
    bad = kernel("A: float32[8] global", "alloc s: float32[4] shared\ncopy A -> s")
    with pytest.raises(RunError, match="shapes of a copy"):
        run(bad, {"A": f32(8)})
    out = kernel("A: float32[8] global", "alloc s: float32[4] shared\ncopy A[0:+2] -> s[bx + 3:+2]")
    with pytest.raises(RunError, match="out-of-range") as e:
        run(out, {"A": f32(8)})
    assert e.value.loc is not None and e.value.loc.line == 6


def test_views_alias():
    program = kernel(
        "A: float32[4, 8] global;B: uint8[128] global",
        """
        alloc s: float32[4, 8] shared
        view flat: float32[32] shared of s
        view raw: uint8[128] shared of s
        view tail: float32[8] shared of s offset=24
        copy A -> s
        map i in 32 { flat[i] = flat[i] + 1.0 }
        map i in 8 { tail[i] = 0.0 }
        copy raw -> B
        """,
    )
    a, b = f32(4, 8), np.zeros(128, np.uint8)
    run(program, {"A": a, "B": b}, sanitize=True)
    want = a + 1
    want[3] = 0
    np.testing.assert_array_equal(b.view(np.float32).reshape(4, 8), want)


def test_packed_views():
    program = kernel(
        "A: uint8[8] global;B: int4[16] global;C: uint8[8] global",
        """
        alloc s: uint8[8] shared
        view q: int4[16] shared of s
        copy A -> s
        copy q -> B
        map i in 16 { q[i] = int4(i % 8) }
        copy s -> C
        """,
    )
    a = rng.integers(0, 256, 8).astype(np.uint8)
    b, c = np.zeros(16, ml_dtypes.int4), np.zeros(8, np.uint8)
    run(program, {"A": a, "B": b, "C": c}, sanitize=True)
    nibbles = np.stack([a & 15, a >> 4], 1).reshape(-1).astype(np.int8)
    want = np.where(nibbles > 7, nibbles - 16, nibbles)
    np.testing.assert_array_equal(b.astype(np.int8), want)
    low, high = np.arange(0, 16, 2) % 8, np.arange(1, 16, 2) % 8
    np.testing.assert_array_equal(c, low | high << 4)


def test_map_control_flow_and_locals():
    program = kernel(
        "A: float32[16, 16] global;B: float32[16, 16] global",
        """
        map (i, j) in (16, 16) {
          alloc acc: float32 local init=0.0
          for k in 0 .. i + 1 {
            if k == j { continue }
            if k > 9 { break }
            acc = acc + A[i, k]
          }
          let x = A[i, j] if i < 15 and A[i + 1, j] > 0.0 else 100.0
          if i > j { B[i, j] = acc } else { B[i, j] = x }
        }
        """,
    )
    a, b = f32(16, 16), np.zeros((16, 16), np.float32)
    for sanitize in (False, True):
        run(program, {"A": a, "B": b}, sanitize=sanitize)
        for i in range(16):
            for j in range(16):
                if i > j:
                    want = np.float32(0)
                    for k in range(min(i + 1, 10)):
                        want = want + a[i, k] * (k != j)
                else:
                    want = a[i, j] if i < 15 and a[i + 1, j] > 0 else 100.0
                np.testing.assert_allclose(b[i, j], want, rtol=1e-6, atol=1e-6)


def test_map_boxes_transpose_offsets_and_edges():
    program = kernel(
        "A: float32[10, 12] global;B: float32[14, 16] global",
        """
        alloc s: float32[2, 12, 10] shared
        map (i, j) in (10, 12) { s[1, j, i] = A[i, j] }
        map (i, j) in (14, 16) { B[i, j] = A[i - 2, j + 1] + s[1, 0, 0] }
        """,
    )
    a, b = f32(10, 12), np.zeros((14, 16), np.float32)
    run(program, {"A": a, "B": b})
    want = np.zeros((14, 16), np.float32)
    want[2:12, :11] = a[:, 1:]
    np.testing.assert_allclose(b, want + a[0, 0])


def test_let_keeps_its_value_after_a_store():
    program = kernel(
        "A: float32[8] global",
        "map i in 8 {\nlet x = A[i]\nA[i] = 0.0\nA[i] = x + 1.0\n}",
    )
    a = f32(8)
    want = a + 1
    run(program, {"A": a})
    np.testing.assert_array_equal(a, want)


def test_a_mask_is_taken_before_the_stores_under_it():
    program = kernel(
        "F: bool[8] global;A: int32[8] global",
        "map i in 8 {\nif F[i] {\nF[i] = false\nA[i] = A[i] + 1\n} else { A[i] = 7 }\n}",
    )
    f = np.arange(8) % 2 == 0
    a = np.zeros(8, np.int32)
    run(program, {"F": f, "A": a})
    np.testing.assert_array_equal(a, [1, 7] * 4)
    assert not f.any()


def test_locals_from_outside_are_private_to_iterations():
    program = kernel(
        "A: float32[8] global;B: float32[8] global",
        """
        alloc t: float32[2] local
        alloc two: float32 local init=2.0
        map i in 8 {
          t[0] = A[i]
          t[1] = t[0] * two
          B[i] = t[0] + t[1]
        }
        """,
    )
    a, b = f32(8), np.zeros(8, np.float32)
    run(program, {"A": a, "B": b}, sanitize=True)
    np.testing.assert_array_equal(b, a + a * 2)


def test_an_endless_loop_is_ended():
    program = kernel("A: int32[8] global", "while A[0] == 0 { continue }")
    from tilewright.machine import flow

    with pytest.MonkeyPatch.context() as m:
        m.setattr(flow, "MANY", 1000)
        with pytest.raises(RunError, match="goes on"):
            run(program, {"A": np.zeros(8, np.int32)})


def test_nested_map_and_empty_map():
    program = kernel(
        "A: float32[4, 8] global;n: int32",
        """
        map i in 4 { map j in 8 { A[i, j] = float32(i * 10 + j) } }
        map i in n { A[i, 0] = -1.0 }
        """,
    )
    a = np.zeros((4, 8), np.float32)
    run(program, {"A": a, "n": 0})
    np.testing.assert_array_equal(a, np.arange(4)[:, None] * 10 + np.arange(8))


def test_uniform_loops_and_variables():
    program = kernel(
        "A: int32[4] global",
        """
        alloc n: int32 local init=10
        alloc c: int32 local init=0
        while n > 1 {
          n = n // 2 if n % 2 == 0 else 3 * n + 1
          c = c + 1
          if c > 100 { break }
        }
        A[0] = c
        for i in 10 .. 0 step=-3 { A[1] = A[1] + i }
        for i in 0 .. 10 { if i % 2 == 0 { continue } ; A[2] = A[2] + i }
        """,
    )
    a = np.zeros(4, np.int32)
    run(program, {"A": a})
    np.testing.assert_array_equal(a, [6, 10 + 7 + 4 + 1, 25, 0])


def test_atomics():
    program = kernel(
        "A: float32[4] global;H: int32[4] global;S: float32[4, 4] global;n: int32",
        """
        map i in 32 { atomic add H[i % 5] value=1 }
        atomic add A[bx] value=float32(n)
        alloc t: float32[4, 4] shared
        fill t = 2.0
        atomic add S src=t
        if tx < 3 { atomic max H[3] value=tx + 100 result=old: int32 ; if old == 101 { H[2] = 55 } }
        """,
        grid="bx in 5",
    )
    a, h, s = np.zeros(4, np.float32), np.zeros(4, np.int32), np.zeros((4, 4), np.float32)
    run(program, {"A": a, "H": h, "S": s, "n": 7})
    np.testing.assert_array_equal(a, [7, 7, 7, 7])
    np.testing.assert_array_equal(s, np.full((4, 4), 10))
    assert h[0] == 35 and h[3] == 102 + 6 * 4 and h[2] == 55 + 6 * 4


def test_scratch_between_kernels():
    program = parse_program(
        """
        program p {
          param A: float32[8] global
          scratch W: float32[8] global
          kernel one grid bx in 8 threads tx in 32 { W[bx] = A[bx] * 2.0 }
          kernel two grid by in 8 threads ty in 32 { A[by] = W[7 - by] }
        }
        """
    )
    a = f32(8)
    want = (a * 2)[::-1].copy()
    run(program, {"A": a}, sanitize=True)
    np.testing.assert_array_equal(a, want)


def test_launch_errors():
    program = parse_program(GEMM)
    with pytest.raises(LaunchError, match="wrong element type"):
        run(program, {"A": f32(4, 96), "B": f32(96, 80), "C": f32(4, 80)})
    half = {
        k: np.zeros(s, np.float16) for k, s in (("A", (4, 96)), ("B", (95, 80)), ("C", (4, 80)))
    }
    with pytest.raises(LaunchError, match="B has the wrong shape"):
        run(program, half)
