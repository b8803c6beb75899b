"""Tiles that only carry factors of products to them go, and only those."""

import numpy as np
import pytest

from tests.cpu.common import check, draw
from tests.cpu.test_tiles import program
from tilewright.ir.op import Alloc, Copy, For, Gemm, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.machine.run import run
from tilewright.passes.canonicalize.fuse_maps import forward_copies, split_edges
from tilewright.passes.reasons import listening

CPU = Target.parse("cpu")
PARAMS = ["A: float32[64, 48]", "B: float32[48, 32]", "C: float32[64, 32]"]


def forwarded(text):
    return forward_copies(parse_program(text), CPU)


def ops(program, kind):
    return [op for kernel in program.kernels for op in walk_ops(kernel) if isinstance(op, kind)]


def arguments(text):
    found = {}
    for i, tensor in enumerate(parse_program(text).tensors):
        shape = tuple(int(n) for n in tensor.shape)
        found[tensor.name] = draw(shape, "int8", seed=i, low=-3, high=3).astype(tensor.dtype.numpy)
    return found


def both(text):
    """The program before and after agree in the interpreter, and both with the CPU target."""
    before, after = parse_program(text), forwarded(text)
    results = []
    for each in (before, after):
        args = arguments(text)
        run(each, args)
        results.append(args)
    for name, value in results[0].items():
        np.testing.assert_array_equal(value, results[1][name])
    check(text, arguments(text))
    return after


LOOP = program(
    """
    alloc a: float32[16, 16] shared
    alloc b: float32[16, 32] shared
    alloc c: float32[16, 32] fragment
    fill c = 0.0
    for k in 0 .. 3 {
      copy A[bx * 16:+16, k * 16:+16] -> a
      copy B[k * 16:+16, :] -> b
      gemm a, b -> c
    }
    copy c -> C[bx * 16:+16, :]
    """,
    PARAMS,
    grid="bx in 4",
)


def test_factors_are_read_from_tensors():
    after = both(LOOP)
    (product,) = ops(after, Gemm)
    assert product.a.buffer.name == "A" and product.b.buffer.name == "B"
    assert [op.buffer.name for op in ops(after, Alloc)] == ["c"]
    assert [op.dst.buffer.name for op in ops(after, Copy)] == ["C"]
    assert print_program(parse_program(print_program(after))) == print_program(after)


def test_it_says_so():
    with listening() as reasons:
        forwarded(LOOP)
    assert reasons["main", "a"] == "no tile: gemms read A in place"


def test_a_tile_may_be_carried_too():
    text = program(
        """
        alloc s: float32[16, 48] fragment
        alloc p: float32[16, 48] fragment
        alloc c: float32[16, 32] fragment
        fill c = 0.0
        copy A[bx * 16:+16, :] -> s
        map (i, j) in (16, 48) { s[i, j] = s[i, j] * 2.0 }
        copy s -> p
        gemm p, B -> c
        copy c -> C[bx * 16:+16, :]
        """,
        PARAMS,
        grid="bx in 4",
    )
    after = both(text)
    (product,) = ops(after, Gemm)
    assert product.a.buffer.name == "s"


HEAD = """
    alloc a: float32[16, 48] shared
    alloc c: float32[16, 32] fragment
    fill c = 0.0
"""
TAIL = "copy c -> C[bx * 16:+16, :]"
KEPT = {
    "may lie outside": "copy A[bx * 16 + 1:+16, :] -> a\ngemm a, B -> c",
    "is read otherwise": "copy A[bx * 16:+16, :] -> a\nmap (i, j) in (16, 32) "
    "{ c[i, j] = a[i, j] }\ngemm a, B -> c",
    "in part": "copy A[bx * 16:+16, :] -> a\ngemm a[:, 16:+32], B[16:+32, :] -> c",
    "is written twice": "copy A[bx * 16:+16, :] -> a\nfill a[0:+1, :] = 1.0\ngemm a, B -> c",
    "before the copy": "fill a = 1.0\ngemm a, B -> c",
    "under a condition": "fill a = 0.0\nif bx < 2 { copy A[bx * 16:+16, :] -> a }\ngemm a, B -> c",
    "filled in a loop": "for k in 0 .. 2 { copy A[bx * 16:+16, :] -> a }\ngemm a, B -> c",
}


@pytest.mark.parametrize("case", KEPT)
def test_kept(case):
    text = program(HEAD + KEPT[case] + "\n" + TAIL, PARAMS, grid="bx in 4")
    after = both(text)
    assert any(op.a.buffer.name == "a" for op in ops(after, Gemm))


def test_a_source_that_changes_meanwhile_is_copied():
    text = program(
        """
        alloc s: float32[16, 48] fragment
        alloc p: float32[16, 48] fragment
        alloc c: float32[16, 32] fragment
        fill c = 0.0
        copy A[bx * 16:+16, :] -> s
        copy s -> p
        for k in 0 .. 2 {
          gemm p, B -> c
          map (i, j) in (16, 48) { s[i, j] = s[i, j] * 2.0 }
        }
        copy c -> C[bx * 16:+16, :]
        """,
        PARAMS,
        grid="bx in 4",
    )
    assert ops(both(text), Gemm)[0].a.buffer.name == "p"


def test_a_tensor_that_the_kernel_writes_is_copied():
    text = program(
        """
        alloc a: float32[32, 32] shared
        alloc b: float32[32, 32] shared
        alloc c: float32[32, 32] fragment
        fill c = 0.0
        copy A -> a
        copy A -> b
        map (i, j) in (32, 32) { A[i, j] = 0.0 }
        gemm a, b -> c
        copy c -> C
        """,
        ["A: float32[32, 32]", "C: float32[32, 32]"],
    )
    assert {r.buffer.name for op in ops(both(text), Gemm) for r in (op.a, op.b)} == {"a", "b"}


def test_casts_stay():
    text = LOOP.replace("A: float32", "A: float16")
    (product,) = ops(both(text), Gemm)
    assert (product.a.buffer.name, product.b.buffer.name) == ("a", "B")


def test_leading_dimensions():
    text = program(
        """
        alloc q: float32[16, 8] shared
        alloc k: float32[16, 8] shared
        alloc s: float32[16, 16] fragment
        copy Q[b, h, bx * 16:+16, :] -> q
        for j in 0 .. 2 {
          copy K[b, j * 16:+16, h, :] -> k
          gemm q, k -> s clear=true transpose_b=true
          copy s -> S[b, h, bx * 16:+16, j * 16:+16]
        }
        """,
        ["Q: float32[2, 3, 32, 8]", "K: float32[2, 32, 3, 8]", "S: float32[2, 3, 32, 32]"],
        grid="(bx, h, b) in (2, 3, 2)",
    )
    (product,) = ops(both(text), Gemm)
    assert (product.a.buffer.name, product.b.buffer.name) == ("Q", "K")


RAGGED = program(
    """
    alloc c: float32[24, 20] fragment
    fill c = 0.0
    for k in 0 .. 4 {
      alloc a: float32[24, 13] shared
      copy A[by * 24:+24, k * 13:+13] -> a
      alloc b: float32[13, 20] shared
      copy B[k * 13:+13, bx * 20:+20] -> b
      gemm a, b -> c
    }
    copy c -> C[by * 24:+24, bx * 20:+20]
    """,
    PARAMS,
    grid="(bx, by) in (2, 3)",
)


def test_ragged_ends_are_texts_of_their_own():
    """All eight products read tensors where they lie; those at ends multiply what there is."""
    split = split_edges(parse_program(RAGGED), CPU)
    text = print_program(split)
    assert text.count("gemm") == 8 and "if by < 2 {" in text and "if bx < 1 {" in text
    args, want = arguments(RAGGED), arguments(RAGGED)
    after = forward_copies(split, CPU)
    sizes = {tuple(int(e) for e in (*op.c.extents, op.a.extents[-1])) for op in ops(after, Gemm)}
    assert sizes == {(m, n, k) for m in (24, 16) for n in (20, 12) for k in (13, 9)}
    assert not any(op.buffer.is_shared for op in ops(after, Alloc))
    run(after, args), run(parse_program(RAGGED), want)
    np.testing.assert_array_equal(args["C"], want["C"])
    check(RAGGED, arguments(RAGGED))


def test_a_product_that_begins_anew_keeps_its_zeros():
    """Rows that lie outside are set to zero, too."""
    text = program(
        """
        alloc a: float32[24, 48] shared
        alloc c: float32[24, 32] fragment
        alloc s: float32[32] fragment
        fill c = 7.0
        copy A[bx * 24:+24, :] -> a
        gemm a, B -> c clear=true
        reduce max c -> s dim 0
        map j in 32 { C[bx, j] = s[j] }
        """,
        PARAMS,
        grid="bx in 3",
    )
    both(text)
    assert any(op.a.buffer.name == "a" for op in ops(forwarded(text), Gemm))


@pytest.mark.parametrize(
    "why, loop",
    {
        "by twos": "for k in 0 .. 4 step=2 { copy A[bx * 16:+16, k * 13:+13] -> a; "
        "copy B[k * 13:+13, :] -> b; gemm a, b -> c }",
        "two indices": "for j in 0 .. 2 { for k in 0 .. 2 { "
        "copy A[bx * 16:+16, j * 26 + k * 13:+13] -> a; "
        "copy B[j * 26 + k * 13:+13, :] -> b; gemm a, b -> c } }",
    }.items(),
)
def test_other_loops_stay_whole(why, loop):
    text = program(
        """
        alloc a: float32[16, 13] shared
        alloc b: float32[13, 32] shared
        alloc c: float32[16, 32] fragment
        fill c = 0.0
        """
        + loop
        + "\ncopy c -> C[bx * 16:+16, :]",
        PARAMS,
        grid="bx in 4",
    )
    assert len(ops(split_edges(parse_program(text), CPU), For)) == loop.count("for ")
    check(text, arguments(text))


def test_ends_of_one_row_or_column_are_copied():
    """What is left is no matrix any more."""
    text = RAGGED.replace("24", "21").replace("13", "47").replace("0 .. 4", "0 .. 2")
    text = text.replace("20", "31").replace("(2, 3)", "(2, 4)")
    args = arguments(text)
    want = args["A"] @ args["B"]
    run(forward_copies(split_edges(parse_program(text), CPU), CPU), args)
    np.testing.assert_array_equal(args["C"], want)
    check(text, arguments(text))
