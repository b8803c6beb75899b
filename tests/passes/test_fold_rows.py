"""`fold_rows`: what it makes of folds of columns, that it means the same, and what it leaves."""

import pytest

from tests.passes.test_cpu_passes import CPU, body_of, keeps_meaning, on_kernels, program
from tilewright.ir.op import Alloc, Reduce, Scan, walk_ops
from tilewright.passes.canonicalize.fold_rows import fold_rows

rows = on_kernels(fold_rows)

LOAD = """
alloc x: float32[{n}, 20] fragment
map (r, c) in ({n}, 20) { x[r, c] = X[r, c + bx * 20] * 2.0 }
"""
STORE = "map c_2 in 20 { Y[bx, c_2] = s[c_2] }"
TILES = """
alloc s: float32[20] fragment
alloc y: float32[{n}, 20] fragment
map c_3 in 20 { s[c_3] = 1.0 }
"""
KEEP = "map (r_1, c_1) in ({n}, 20) { Z[r_1, c_1 + bx * 20] = y[r_1, c_1] + s[c_1] }"


def of(n, *parts):
    params = [f"X: float32[{n}, 40]", "Y: float32[2, 20]", f"Z: float32[{n}, 40]"]
    return program("\n".join(parts).replace("{n}", str(n)), params)


def test_a_fold_reads_a_few_rows_at_a_time():
    found = keeps_meaning(of(9, LOAD, TILES, "reduce sum x -> s dim 0", STORE), rows)
    assert not any(walk_ops(found.kernels, Reduce))
    text = body_of(found)
    assert "x: float32[9, 20]" not in text, "the tile is not needed"
    assert "for rows in 0 .. 2" in text


@pytest.mark.parametrize("n", [1, 2, 4, 7, 8, 9, 12, 15])
@pytest.mark.parametrize("fold", ["sum", "max", "absmax", "any"])
@pytest.mark.parametrize("clear", ["", " clear=false"])
def test_folds_mean_the_same(n, fold, clear):
    body = LOAD, TILES, f"reduce {fold} x -> s dim 0{clear}", STORE
    found = keeps_meaning(of(n, *body), rows)
    assert not any(walk_ops(found.kernels, Reduce)) or n == 1


@pytest.mark.parametrize("n", [2, 4, 7, 8, 9, 15])
@pytest.mark.parametrize("more", ["", " reverse=true", " totals=t"])
def test_scans_mean_the_same(n, more):
    tell = "map c_4 in 20 { Y[bx, c_4] = t[c_4] }" if "totals" in more else STORE
    body = LOAD, TILES, "alloc t: float32[20] fragment", f"scan sum x -> y dim 0{more}", KEEP, tell
    found = keeps_meaning(of(n, *body), rows)
    assert not any(walk_ops(found.kernels, Scan))
    tiles = {op.buffer.name for op in walk_ops(found.kernels, Alloc) if op.buffer.is_fragment}
    assert not tiles & {"x", "y"}


def test_a_tile_that_is_read_again_stays():
    again = "map (r_2, c_5) in (9, 20) { Z[r_2, c_5 + bx * 20] = x[8 - r_2, c_5] }"
    found = keeps_meaning(of(9, LOAD, TILES, "reduce sum x -> s dim 0", again, STORE), rows)
    assert "x: float32[9, 20]" in body_of(found)


@pytest.mark.parametrize(
    "body",
    [
        # a total is there when all rows are
        (TILES, LOAD, "scan sum x -> y dim 0 totals=s", KEEP),
        # another row
        (LOAD, TILES, "scan sum x -> y dim 0", KEEP.replace("y[r_1,", "y[8 - r_1,")),
        # what is changed meanwhile
        (
            LOAD,
            TILES,
            "scan sum x -> y dim 0",
            KEEP.removesuffix("}") + "; x[8 - r_1, c_1] = 0.0 }",
        ),
    ],
    ids=["totals", "rows", "source"],
)
def test_what_needs_other_rows_waits(body):
    found = keeps_meaning(of(9, *body), rows)
    text = body_of(found)
    assert "Z[r_1, c_1 + bx * 20]" in text, "the second map stands by itself"


def test_a_tile_keeps_its_values_for_the_next_step():
    """It is written after it is read: there is something from the step before."""
    body = """
    alloc x: float32[9, 20] fragment
    alloc y: float32[9, 20] fragment
    map (r, c) in (9, 20) { x[r, c] = 1.0 }
    for k in 0 .. 3 {
      scan sum x -> y dim 0
      map (r_1, c_1) in (9, 20) { x[r_1, c_1] = y[r_1, c_1] + X[r_1, c_1 + bx * 20] }
    }
    map (r_2, c_2) in (9, 20) { Z[r_2, c_2 + bx * 20] = x[r_2, c_2] }
    """
    keeps_meaning(of(9, body), rows)


def test_rows_themselves_are_left():
    body = LOAD, "alloc s: float32[9] fragment", "reduce sum x -> s dim 1"
    found = keeps_meaning(of(9, *body), rows)
    assert any(walk_ops(found.kernels, Reduce))
    assert rows(found, CPU) is not None


def test_another_name_of_a_tile_is_not_passed():
    """Between a map and a fold stands what reads through a view what the map writes."""
    body = """
alloc u: float32[9, 20] shared
view v: float32[180] shared of u
alloc x: float32[9, 20] fragment
map (r, c) in (9, 20) { x[r, c] = X[r, c + bx * 20]; u[r, c] = x[r, c] }
map c_1 in 20 { Z[bx, c_1] = v[c_1 + 40] }
"""
    keeps_meaning(of(9, body, TILES, "reduce sum x -> s dim 0", STORE), rows)
