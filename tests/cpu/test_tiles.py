"""Tile operations on the CPU against the interpreter: copies, products, reductions, scans."""

import numpy as np
import pytest

from tests.cpu.common import check, compiled, draw
from tilewright.ir.dtype import dtype
from tilewright.support.errors import RunError, TilewrightError


def program(body, params, grid="bx in 1", head="", threads="tx in 128"):
    lines = "\n".join(f"param {p} global" if "[" in p else f"param {p}" for p in params)
    launch = f"kernel main grid {grid} threads {threads}"
    return f"program p {{ {head}\n{lines}\n{launch} {{\n{body}\n}}\n}}"


def cdiv(a, b):
    return -(-a // b)


# ── copies ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("m, n", [(64, 64), (50, 70), (1, 96), (33, 176), (8, 24), (5, 1)])
@pytest.mark.parametrize("source, target", [
    ("float32", "float32"), ("float16", "float32"), ("float32", "bfloat16"), ("int8", "int32"),
])  # fmt: skip
def test_copies_zero_fill_and_drop(m, n, source, target):
    text = program(
        f"""
        alloc t: {target}[16, 32] shared
        copy A[by * 16:+16, bx * 32:+32] -> t
        map (i, j) in (16, 32) {{ S[by, bx, i, j] = t[i, j] }}
        copy t -> C[by * 16:+16, bx * 32:+32]
        """,
        [f"A: {source}[{m}, {n}]", f"C: {target}[{m}, {n}]",
         f"S: {target}[{cdiv(m, 16)}, {cdiv(n, 32)}, 16, 32]"],
        grid=f"(bx, by) in ({cdiv(n, 32)}, {cdiv(m, 16)})",
    )  # fmt: skip
    kind = dtype(target).numpy
    out = check(text, {
        "A": draw((m, n), source), "C": np.zeros((m, n), kind),
        "S": np.ones((cdiv(m, 16), cdiv(n, 32), 16, 32), kind),
    })  # fmt: skip
    assert out["S"].shape[2:] == (16, 32)


def test_copies_with_negative_starts():
    text = program(
        """
        alloc t: float32[16, 16] shared
        copy A[bx * 8 - 4:+16, -3:+16] -> t
        copy t -> C[bx * 16 - 4:+16, -3:+16]
        copy t -> S[bx, :, :]
        """,
        ["A: float32[20, 11]", "C: float32[50, 11]", "S: float32[4, 16, 16]"],
        grid="bx in 4",
    )
    args = {"A": draw((20, 11)), "C": np.zeros((50, 11), np.float32)}
    check(text, args | {"S": np.ones((4, 16, 16), np.float32)})


def test_copies_between_tiles_and_unit_dimensions():
    text = program(
        """
        alloc a: float32[4, 1, 8] shared
        alloc b: float16[4, 8] fragment
        alloc r: float32[8] fragment
        copy A[1, 0:+4, 2, 0:+8] -> a[:, 0, :]
        copy a -> b
        copy a[2, 0, :] -> r
        copy b -> C
        copy r -> R[0, :]
        """,
        ["A: float32[2, 4, 3, 8]", "C: float16[4, 8]", "R: float32[1, 8]"],
    )
    args = {"A": draw((2, 4, 3, 8)), "C": np.zeros((4, 8), np.float16)}
    check(text, args | {"R": np.zeros((1, 8), np.float32)})


def test_interior_copies_have_no_guards():
    text = program(
        """
        alloc t: float32[16, 32] shared
        copy A[by * 16:+16, bx * 32:+32] -> t
        copy t -> C[by * 16:+16, bx * 32:+32]
        """,
        ["A: float32[64, 64]", "C: float32[64, 64]"],
        grid="(bx, by) in (2, 4)",
    )
    assert "@zeros" not in compiled(text).source


@pytest.mark.parametrize("m, n", [(1, 1), (40, 50), (64, 96), (200, 176)])
def test_dynamic_sizes_share_one_binary(m, n):
    kernel = _dynamic()
    a = draw((m, n))
    c = np.zeros((m, n), np.float32)
    kernel({"A": a, "C": c, "scale": 1.5})
    np.testing.assert_array_equal(c, a * np.float32(1.5))


_made = []


def _dynamic():
    if not _made:
        text = program(
            """
            alloc t: float32[32, 64] fragment
            copy A[by * 32:+32, bx * 64:+64] -> t
            map (i, j) in (32, 64) { t[i, j] = t[i, j] * scale }
            copy t -> C[by * 32:+32, bx * 64:+64]
            """,
            ["A: float32[m, n]", "C: float32[m, n]", "scale: float32"],
            grid="(bx, by) in ((n + 63) // 64, (m + 31) // 32)",
            head="dim m\ndim n min=1",
        )
        _made.append(compiled(text))
    return _made[0]


def test_strided_tensors_and_scratch():
    text = """program p {
      param A: float32[16, 8] global strides=[10, 1]
      param C: float32[16, 8] global
      scratch W: float32[16, 8] global
      kernel first grid bx in 1 threads tx in 32 {
        map (i, j) in (16, 8) { W[i, j] = A[i, j] + 1.0 } }
      kernel second grid bx in 2 threads tx in 32 {
        map (i, j) in (8, 8) { C[bx * 8 + i, j] = W[15 - bx * 8 - i, j] } }
    }"""
    base = draw((16, 10))
    a, c = base[:, :8], np.zeros((16, 8), np.float32)
    compiled(text)({"A": a, "C": c})
    np.testing.assert_array_equal(c, (a + 1)[::-1])


# ── products ─────────────────────────────────────────────────────────────────────────────────


def gemm_text(m, n, k, ta, tb, a="float32", c="float32", extra=""):
    sa, sb = (f"{k}, {m}" if ta else f"{m}, {k}"), (f"{n}, {k}" if tb else f"{k}, {n}")
    return program(
        f"""
        alloc As: {a}[{sa}] shared
        alloc Bs: {a}[{sb}] shared
        alloc acc: {c}[{m}, {n}] fragment
        copy A -> As
        copy B -> Bs
        copy C -> acc
        gemm As, Bs -> acc transpose_a={str(ta).lower()} transpose_b={str(tb).lower()} {extra}
        copy acc -> C
        """,
        [f"A: {a}[{sa}]", f"B: {a}[{sb}]", f"C: {c}[{m}, {n}]"],
    )


@pytest.mark.parametrize("m, n, k", [
    (16, 16, 16), (64, 48, 32), (13, 11, 9), (1, 8, 5), (24, 40, 1), (96, 176, 24),
])  # fmt: skip
@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_gemm_shapes_and_transposes(m, n, k, ta, tb):
    a = draw((k, m) if ta else (m, k), "int8").astype(np.float32)
    b = draw((n, k) if tb else (k, n), "int8", seed=1).astype(np.float32)
    out = check(gemm_text(m, n, k, ta, tb), {"A": a, "B": b, "C": np.ones((m, n), np.float32)})
    np.testing.assert_array_equal(out["C"], (a.T if ta else a) @ (b.T if tb else b) + 1)


@pytest.mark.parametrize("a, c", [
    ("float16", "float32"), ("bfloat16", "float32"), ("float8_e4m3fn", "float32"),
    ("float8_e5m2", "float32"), ("int8", "int32"), ("uint8", "int32"), ("float64", "float64"),
    ("float16", "float16"), ("int4", "int32"), ("bfloat16", "bfloat16"), ("int16", "int64"),
])  # fmt: skip
@pytest.mark.parametrize("tb", [False, True])
def test_gemm_types(a, c, tb):
    m, n, k = 20, 24, 18
    low = -7 if dtype(a).kind != "uint" else 0
    x = draw((m, k), "int32", low=low, high=7).astype(dtype(a).numpy)
    y = draw((n, k) if tb else (k, n), "int32", seed=1, low=low, high=7).astype(dtype(a).numpy)
    check(
        gemm_text(m, n, k, False, tb, a, c), {"A": x, "B": y, "C": np.ones((m, n), dtype(c).numpy)}
    )


def test_gemm_clear_and_tf32():
    a, b, c = draw((16, 16)), draw((16, 16), seed=1), np.ones((16, 16), np.float32)
    out = check(
        gemm_text(16, 16, 16, False, False, extra="clear=true"),
        {"A": a, "B": b, "C": c},
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(out["C"], a @ b, rtol=1e-5, atol=1e-5)
    out = check(
        gemm_text(16, 16, 16, False, False, extra="clear=bx == 0"),
        {"A": a, "B": b, "C": c},
        rtol=1e-5,
        atol=1e-6,
    )
    np.testing.assert_allclose(out["C"], a @ b, rtol=1e-5, atol=1e-5)
    check(
        gemm_text(16, 16, 16, False, True, extra="precision=tf32"),
        {"A": a, "B": b, "C": c},
        rtol=1e-5,
        atol=1e-6,
    )


def test_gemm_on_parts_of_tiles():
    text = program(
        """
        alloc As: float32[2, 16, 8] shared
        alloc Bs: float32[2, 8, 24] shared
        alloc acc: float32[16, 24] fragment
        copy A -> As
        copy B -> Bs
        fill acc = 0.0
        for s in 0 .. 2 { gemm As[s, :, :], Bs[s, :, :] -> acc }
        gemm As[0, 0:+8, :], Bs[1, :, 0:+8] -> acc[8:+8, 8:+8]
        copy acc -> C
        """,
        ["A: float32[2, 16, 8]", "B: float32[2, 8, 24]", "C: float32[16, 24]"],
    )
    a, b = draw((2, 16, 8), "int8").astype(np.float32), draw((2, 8, 24), "int8").astype(np.float32)
    check(text, {"A": a, "B": b, "C": np.zeros((16, 24), np.float32)})


@pytest.mark.parametrize("m, n, k, blocks", [
    (96, 176, 104, (32, 64, 32)), (50, 40, 65, (32, 16, 16)), (1, 1, 1, (16, 16, 16)),
])  # fmt: skip
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_whole_gemm(m, n, k, blocks, kind):
    bm, bn, bk = blocks
    text = program(
        f"""
        alloc As: {kind}[{bm}, {bk}] shared
        alloc Bs: {kind}[{bk}, {bn}] shared
        alloc acc: float32[{bm}, {bn}] fragment
        fill acc = 0.0
        for ko in 0 .. {cdiv(k, bk)} kind=pipelined stages=3 {{
          copy A[by * {bm}:+{bm}, ko * {bk}:+{bk}] -> As
          copy B[ko * {bk}:+{bk}, bx * {bn}:+{bn}] -> Bs
          gemm As, Bs -> acc
        }}
        map (i, j) in ({bm}, {bn}) {{ acc[i, j] = max(acc[i, j], 0.0) }}
        copy acc -> C[by * {bm}:+{bm}, bx * {bn}:+{bn}]
        """,
        [f"A: {kind}[{m}, {k}]", f"B: {kind}[{k}, {n}]", f"C: {kind}[{m}, {n}]"],
        grid=f"(bx, by) in ({cdiv(n, bn)}, {cdiv(m, bm)})",
    )
    a = draw((m, k), "int32", low=-3, high=3).astype(kind)
    b = draw((k, n), "int32", seed=1, low=-3, high=3).astype(kind)
    check(text, {"A": a, "B": b, "C": np.full((m, n), 9, kind)})


# ── reductions and scans ─────────────────────────────────────────────────────────────────────

REDUCTIONS = ["sum", "max", "min", "abssum", "absmax", "and", "or", "xor", "any", "all"]


@pytest.mark.parametrize("shape", [(8, 64), (5, 37), (3, 1), (1, 24), (17, 96)])
@pytest.mark.parametrize("dim", [0, 1])
def test_reductions(shape, dim):
    """Every operation, folded and fresh, over one dimension of small integers."""
    left = shape[1 - dim]
    for kind, ops in (
        ("float32", REDUCTIONS[:5]),
        ("int32", REDUCTIONS),
        ("float16", ["sum", "max"]),
    ):
        lines, params, args = [], [f"A: {kind}[{shape[0]}, {shape[1]}]"], {}
        args["A"] = draw(shape, "int8").astype(kind)
        for op in ops:
            for clear in ("true", "false"):
                name = f"{op}_{clear}"
                lines.append(f"alloc r_{name}: {kind}[{left}] fragment\nfill r_{name} = 3")
                lines.append(f"reduce {op} t -> r_{name} dim {dim} clear={clear}")
                lines.append(f"copy r_{name} -> R_{name}")
                params.append(f"R_{name}: {kind}[{left}]")
                args[f"R_{name}"] = np.zeros(left, kind)
        body = f"alloc t: {kind}[{shape[0]}, {shape[1]}] fragment\ncopy A -> t\n" + "\n".join(lines)
        if kind != "int32":
            body = body.replace("= 3", "= 3.0")
        check(program(body, params), args)


def test_reductions_keep_nan_and_other_types():
    text = program(
        """
        alloc t: float32[4, 40] fragment
        alloc r: float32[4] fragment
        alloc k: float32[4, 1] fragment
        alloc w: float64[4] fragment
        alloc h: float16[40] fragment
        copy A -> t
        reduce max t -> r dim 1
        reduce min t -> k dim 1
        reduce sum t -> w dim 1
        reduce sum t -> h dim 0
        copy r -> R
        copy k -> K
        copy w -> W
        copy h -> H
        """,
        [
            "A: float32[4, 40]",
            "R: float32[4]",
            "K: float32[4, 1]",
            "W: float64[4]",
            "H: float16[40]",
        ],
    )
    a = draw((4, 40), "int8").astype(np.float32)
    a[1, 3] = a[2, 39] = np.nan
    check(text, {"A": a, "R": np.zeros(4, np.float32), "K": np.zeros((4, 1), np.float32),
                 "W": np.zeros(4), "H": np.zeros(40, np.float16)})  # fmt: skip


def test_reductions_of_three_dimensions():
    for dim, left in ((0, (4, 24)), (1, (3, 24)), (2, (3, 4))):
        shape = ", ".join(map(str, left))
        text = program(
            f"alloc t: float32[3, 4, 24] fragment\nalloc r: float32[{shape}] fragment\n"
            f"copy A -> t\nreduce sum t -> r dim {dim}\ncopy r -> R",
            ["A: float32[3, 4, 24]", f"R: float32[{shape}]"],
        )
        check(
            text,
            {"A": draw((3, 4, 24), "int8").astype(np.float32), "R": np.zeros(left, np.float32)},
        )


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("reverse", ["false", "true"])
@pytest.mark.parametrize("op", ["sum", "max"])
def test_scans(dim, reverse, op):
    text = program(
        f"alloc t: float32[9, 40] shared\ncopy A -> t\n"
        f"scan {op} t -> t dim {dim} reverse={reverse}\ncopy t -> C",
        ["A: float32[9, 40]", "C: float32[9, 40]"],
    )
    check(text, {"A": draw((9, 40), "int8").astype(np.float32), "C": np.zeros((9, 40), np.float32)})


@pytest.mark.parametrize("dim", [0, 1])
def test_scans_of_one_row(dim):
    """`dim` counts the dimensions that are not 1, or all of them."""
    text = program(
        f"alloc t: float32[9, 40] shared\ncopy A -> t\n"
        f"scan sum t[3:+1, 0:+40] -> t[4:+1, 0:+40] dim {dim}\ncopy t -> C",
        ["A: float32[9, 40]", "C: float32[9, 40]"],
    )
    check(text, {"A": draw((9, 40), "int8").astype(np.float32), "C": np.zeros((9, 40), np.float32)})


# ── maps, control flow, atomics ─────────────────────────────────────────────────────────────


def test_map_with_guards_locals_and_loops():
    text = program(
        """
        map (i, j) in (32, 48) {
          alloc w: float32[3] local
          alloc n: float32 local init=0.0
          for k in 0 .. 3 { w[k] = A[by * 32 + i, bx * 48 + j + k - 1] }
          for k in 0 .. 3 { n = n + w[k] * float32(k + 1) }
          if i >= j { C[by * 32 + i, bx * 48 + j] = n } else { C[by * 32 + i, bx * 48 + j] = -n }
        }
        """,
        ["A: float32[50, 70]", "C: float32[50, 70]"],
        grid="(bx, by) in (2, 2)",
    )
    check(
        text, {"A": draw((50, 70), "int8").astype(np.float32), "C": np.zeros((50, 70), np.float32)}
    )


def test_map_that_gathers_and_permutes():
    text = program(
        """
        alloc t: float32[16, 24] shared
        copy A -> t
        map (i, j) in (24, 16) { C[i, j] = t[j, i] }
        map (i, j) in (16, 24) { D[i, j] = A[I[i], 23 - j] + t[i, (j * 5) % 24] + t[i, j // 2] }
        """,
        ["A: float32[16, 24]", "I: int32[16]", "C: float32[24, 16]", "D: float32[16, 24]"],
    )
    index = draw(16, "int32", low=-3, high=20)
    args = {"A": draw((16, 24)), "I": index, "C": np.zeros((24, 16), np.float32)}
    check(text, args | {"D": np.zeros((16, 24), np.float32)})


def test_conditions_that_vary_in_a_map():
    text = program(
        """
        alloc t: int32[40] shared
        fill t = 5
        map i in 40 {
          let x = A[i]
          if x > 0 { t[i] = x; C[i] = 1 } else if x == 0 { C[i] = x - 7 }
          if i > 3 and i < 30 { D[i] = t[i] if t[i] % 2 == 0 else -t[i] }
        }
        """,
        ["A: int32[40]", "C: int32[40]", "D: int32[40]"],
    )
    check(
        text,
        {
            "A": draw(40, "int32", low=-3, high=3),
            "C": np.zeros(40, np.int32),
            "D": np.zeros(40, np.int32),
        },
    )


def test_block_level_control_flow():
    text = program(
        """
        alloc n: int32 local init=0
        alloc t: int32[8] fragment
        fill t = 0
        for i in 0 .. 20 step=3 {
          if i == 15 { break }
          if i == 6 { continue }
          let x = n + i
          n = x
        }
        while n > 10 { n = n - 7 }
        map j in 8 { t[j] = n + j }
        if n > bx { copy t -> C[bx, :] } else { fill C[bx, :] = 9 }
        """,
        ["C: int32[12, 8]"],
        grid="bx in 12",
    )
    check(text, {"C": np.zeros((12, 8), np.int32)})


def test_views_and_bool_tiles():
    text = program(
        """
        alloc t: float32[8, 16] shared
        copy A -> t
        view flat: float32[128] shared of t
        view bits: int32[4, 16] shared of t offset=64
        alloc mask: bool[8, 16] fragment
        map (i, j) in (8, 16) { mask[i, j] = t[i, j] > 0.0 }
        map i in 128 { C[i] = flat[127 - i] }
        copy bits -> B
        map (i, j) in (8, 16) { M[i, j] = not mask[i, j] }
        """,
        ["A: float32[8, 16]", "C: float32[128]", "B: int32[4, 16]", "M: bool[8, 16]"],
    )
    args = {"A": draw((8, 16)), "C": np.zeros(128, np.float32), "M": np.zeros((8, 16), bool)}
    check(text, args | {"B": np.zeros((4, 16), np.int32)})


@pytest.mark.parametrize(
    "kind", ["float32", "float64", "float16", "bfloat16", "int32", "int8", "uint64"]
)
@pytest.mark.parametrize("op", ["add", "max", "min"])
def test_tile_atomics(kind, op):
    text = program(
        f"""
        alloc t: {kind}[4, 24] fragment
        copy A[bx * 4:+4, :] -> t
        atomic {op} C[0:+4, 0:+24] src=t
        atomic {op} D[bx % 2] value=t[0, 0]
        """,
        [f"A: {kind}[32, 24]", f"C: {kind}[3, 20]", f"D: {kind}[2]"],
        grid="bx in 8",
    )
    low = 0 if dtype(kind).kind == "uint" else -3
    a = draw((32, 24), "int32", low=low, high=3).astype(dtype(kind).numpy)
    check(
        text,
        {"A": a, "C": np.ones((3, 20), dtype(kind).numpy), "D": np.zeros(2, dtype(kind).numpy)},
    )


def test_bitwise_and_exchanging_atomics():
    text = program(
        """
        atomic or C[0] value=1 << bx
        atomic and C[1] value=~(1 << bx)
        atomic xor C[2] value=bx * 5
        atomic exch C[3] value=7 result=old: int32
        atomic load C[4] result=seen: int32
        atomic store C[5] value=seen + 1
        atomic add C[99] value=1 result=none: int32
        D[bx] = none + seen
        """,
        ["C: int32[8]", "D: int32[8]"],
        grid="bx in 8",
    )
    check(text, {"C": np.array([0, -1, 3, 4, 5, 6, 7, 8], np.int32), "D": np.ones(8, np.int32)})


def test_parallel_blocks_add_atomically():
    text = program(
        "map i in 64 { atomic add C[i % 4] value=1.0 }", ["C: float32[4]"], grid="bx in 500"
    )
    c = np.zeros(4, np.float32)
    compiled(text)({"C": c})
    np.testing.assert_array_equal(c, np.full(4, 8000.0))


def test_print_and_device_assert(capfd):
    text = program(
        """
        alloc t: int32[2, 3] fragment
        map (i, j) in (2, 3) { t[i, j] = i * 3 + j }
        intrinsic print (&t, n + 1) text="tile"
        intrinsic device_assert (n < 5) text="n is small"
        """,
        ["C: float32[4]", "n: int32"],
    )
    kernel = compiled(text)
    kernel({"C": np.zeros(4, np.float32), "n": 3})
    shown = capfd.readouterr().out
    assert "tile" in shown and "[3 4 5]" in shown and "4" in shown
    with pytest.raises(RunError, match="n is small"):
        kernel({"C": np.zeros(4, np.float32), "n": 5})


def test_source_and_assembly_are_readable():
    kernel = compiled(program("fill C = 1.0", ["C: float32[64]"]))
    assert "define internal void @tw.main.block(" in kernel.source and "%C" in kernel.source
    assert "main" in kernel.assembly()
    assert kernel.trace


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(TilewrightError, match="shapes"):
        compiled(program("alloc t: float32[8] shared\ncopy C -> t", ["C: float32[64]"]))


@pytest.mark.parametrize("shape", [(1, 4, 4), (4, 1, 4), (4, 4, 1), (1, 3, 3, 1)])
def test_dimensions_of_one_element_do_not_count(shape):
    """`dim` counts the others: both readings would fit the shape of the result here."""
    inner = [n for n in shape if n != 1]
    dims = ", ".join(map(str, shape))
    for dim in range(len(inner)):
        text = program(
            f"""
            alloc a: int32[{dims}] shared
            alloc r: int32[{inner[1 - dim]}] fragment
            copy A -> a
            reduce sum a -> r dim {dim}
            copy r -> R
            scan sum a -> a dim {dim}
            copy a -> S
            """,
            [f"A: int32[{dims}]", f"R: int32[{inner[1 - dim]}]", f"S: int32[{dims}]"],
        )
        a = draw(shape, "int32")
        out = check(text, {"A": a, "R": np.zeros(inner[1 - dim], np.int32), "S": np.zeros_like(a)})
        np.testing.assert_array_equal(out["R"], a.reshape(inner).sum(dim))
        np.testing.assert_array_equal(out["S"].reshape(inner), a.reshape(inner).cumsum(dim))
