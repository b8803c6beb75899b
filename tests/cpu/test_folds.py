"""Reductions that are folded into the map before them, and those that must not be."""

import numpy as np
import pytest

from tests.cpu.common import check, draw
from tests.cpu.test_tiles import program
from tilewright.ir.text import parse_program
from tilewright.passes.canonicalize.rules import expand_copies
from tilewright.targets.cpu.emit_map import Folded, paired

HEAD = """
    alloc x: float32[8, 32] fragment
    alloc s: float32[8] fragment
    alloc t: float32[8] fragment
    copy X -> x
    fill s = 2.0
    fill t = 1.0
"""
TAIL = """
    copy x -> X
    copy s -> S
    copy t -> T
"""
PARAMS = ["X: float32[8, 32]", "S: float32[8]", "T: float32[8]"]
SQUARE = "map (i, j) in (8, 32) { x[i, j] = x[i, j] * x[i, j] + t[i] }"
FOLDED = {
    "sum": SQUARE + "\nreduce sum x -> s dim 1",
    "max": SQUARE + "\nreduce max x -> s dim 1",
    "min, kept": SQUARE + "\nreduce min x -> s dim 1 clear=false",
    "past another": SQUARE + "\nmap i in 8 { s[i] = 9.0 }\nreduce max x -> s dim 1 clear=false",
    "chosen": "map (i, j) in (8, 32) { x[i, j] = x[i, j] if j < 9 else 0.0 }\n"
    "reduce absmax x -> s dim 1",
}
APART = {
    "along the other axis": SQUARE + "\nreduce sum x -> s2 dim 0",
    "reads what is reduced to": "map (i, j) in (8, 32) { x[i, j] = x[i, j] - s[i] }\n"
    "reduce sum x -> s dim 1",
    "changed between": SQUARE + "\nmap j in 32 { x[0, j] = 1.0 }\nreduce sum x -> s dim 1",
    "one between needs it": SQUARE + "\nmap i in 8 { t[i] = x[i, 3] }\nreduce sum x -> s dim 1",
    "one between feeds it": SQUARE + "\nmap i in 8 { t[i] = 5.0 }\nreduce sum x -> s dim 1",
    "under a condition": "map (i, j) in (8, 32) { if j < 7 { x[i, j] = 1.0 } }\n"
    "reduce sum x -> s dim 1",
    "turned": "map (i, j) in (8, 32) { x[i, 31 - j] = t[i] }\nreduce sum x -> s dim 1",
    "in part": SQUARE + "\nreduce sum x[:, 0:+16] -> s dim 1",
}


def text(middle):
    head = HEAD + "alloc s2: float32[32] fragment\n"
    return program(head + middle + TAIL, PARAMS)


def arguments():
    x = draw((8, 32), "int8", low=-4, high=4).astype(np.float32)
    return {"X": x, "S": np.zeros(8, np.float32), "T": np.zeros(8, np.float32)}


def folds(source):
    (kernel,) = expand_copies(parse_program(source), None).kernels
    return [op for op in paired(kernel.body, ()) if isinstance(op, Folded)]


@pytest.mark.parametrize("case", FOLDED)
def test_folded(case):
    assert len(folds(text(FOLDED[case]))) == 1
    check(text(FOLDED[case]), arguments())


@pytest.mark.parametrize("case", APART)
def test_apart(case):
    assert not folds(text(APART[case]))
    check(text(APART[case]), arguments())


@pytest.mark.parametrize("columns", [2, 5, 31, 32, 48, 100])
@pytest.mark.parametrize("kind", ["float16", "float32", "int32"])
def test_rows_of_any_length(columns, kind):
    """Where rows are not whole vectors, or elements lie outside, the reduction follows the map."""
    source = program(
        f"""
        alloc x: {kind}[4, {columns}] fragment
        alloc s: {kind}[4] fragment
        copy X[bx * 4:+4, 0:+{columns}] -> x
        reduce sum x -> s dim 1
        copy s -> S[bx * 4:+4]
        """,
        [f"X: {kind}[10, {columns}]", f"S: {kind}[10]"],
        grid="bx in 3",
    )
    x = draw((10, columns), "int8", low=-4, high=4).astype(kind)
    check(source, {"X": x, "S": np.zeros(10, kind)})


def test_a_view_of_the_tile_keeps_it_apart():
    (kernel,) = parse_program(text(FOLDED["sum"])).kernels
    assert not [op for op in paired(kernel.body, {"x"}) if isinstance(op, Folded)]


@pytest.mark.parametrize("rows", [1, 5, 8, 13, 20])
@pytest.mark.parametrize("more", ["", " reverse=true", " totals=s"])
def test_rows_are_scanned_side_by_side(rows, more):
    source = program(
        f"""
        alloc x: float32[2, {rows}, 9] fragment
        alloc y: float32[2, {rows}, 9] fragment
        alloc s: float32[2, {rows}] fragment
        fill s = 0.0
        copy X -> x
        scan sum x -> y dim 2{more}
        copy y -> Y
        copy s -> S
        """,
        [f"X: float32[2, {rows}, 9]", f"Y: float32[2, {rows}, 9]", f"S: float32[2, {rows}]"],
    ).replace("dim 2", "dim 1" if rows == 1 else "dim 2")
    x = draw((2, rows, 9))
    check(source, {"X": x, "Y": np.zeros_like(x), "S": np.zeros((2, rows), np.float32)})


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "int8"])
def test_rows_that_a_cache_would_not_hold_together(kind):
    """They end with a line that nobody has: what is turned, folded and scanned is where it was."""
    source = program(
        f"""
        alloc x: {kind}[96, 128] shared
        alloc s: {kind}[128] fragment
        copy X -> x
        map (i, j) in (128, 96) {{ Y[i, j] = x[j, i] }}
        scan max x -> x dim 1
        reduce max x -> s dim 0
        copy x -> X
        copy s -> S
        """,
        [f"X: {kind}[96, 128]", f"Y: {kind}[128, 96]", f"S: {kind}[128]"],
    )
    x = draw((96, 128), "int8", low=-60, high=60).astype(kind)
    check(source, {"X": x, "Y": np.zeros((128, 96), kind), "S": np.zeros(128, kind)})


def test_a_large_tile_has_rows_of_its_own_in_products():
    source = program(
        """
        alloc a: float32[256, 128] shared
        alloc c: float32[256, 256] fragment
        map (i, k) in (256, 128) { a[i, k] = X[i, k] * 2.0 }
        gemm a, a -> c transpose_b=true clear=true
        copy c -> Y
        """,
        ["X: float32[256, 128]", "Y: float32[256, 256]"],
    )
    x = draw((256, 128), "int8", low=-4, high=4).astype(np.float32)
    check(source, {"X": x, "Y": np.zeros((256, 256), np.float32)})
