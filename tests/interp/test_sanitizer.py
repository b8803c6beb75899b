"""Each kind of report, with its line; and programs that must not be accused."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.text import parse_program
from tilewright.machine import run
from tilewright.support.errors import SanitizerError


def kernel(body: str, *, grid: str = "bx in 1", scratch: str = ""):
    return parse_program(
        f"program p {{\nparam A: float32[64] global\nparam N: int32[64] global\nparam k: int32\n"
        f"{scratch}\nkernel k grid {grid} threads tx in 64 {{\n{body}\n}}\n}}"
    )


def args():
    return {"A": np.ones(64, np.float32), "N": np.arange(64, dtype=np.int32), "k": 70000}


FIRST = 7  # the body's first line

BAD = [
    ("out-of-range", "alloc s: float32[8] shared\nfill s = 0.0\nmap i in 8 { A[i] = s[i + 1] }", 2),
    ("out-of-range", "alloc s: float32[8] shared\ns[N[9]] = 1.0", 1),
    ("out-of-range", "alloc v: int32[4] local\nv[tx // 10] = 1", 1),
    ("uninitialized", "alloc s: int32[8] shared\nmap i in 7 { s[i] = 1 }\ncopy s -> A[0:+8]", 2),
    ("uninitialized", "alloc f: float32[8] fragment\nalloc r: float32 local\nA[0] = r", 2),
    ("uninitialized", "alloc f: int32[4, 4] shared\nscan sum f -> f dim 1", 1),
    ("uninitialized", "alloc r: int32 local\nif tx > 0 { N[tx] = r }", 1),
    ("parallel-conflict", "map i in 8 { A[i // 2] = 1.0 }", 0),
    ("parallel-conflict", "map (i, j) in (8, 8) { A[i] = float32(j) }", 0),
    ("parallel-conflict", "map i in 8 { A[i] = A[i + 1] }", 0),
    ("parallel-conflict", "map i in 8 {\nlet x = A[7 - i]\nA[i] = x\n}", 2),
    ("race", "alloc s: int32[64] shared\ns[tx] = tx\nN[tx] = s[63 - tx]", 2),
    ("race", "alloc s: int32[64] shared\ns[tx] = tx\nsync block\nlet v = s[63 - tx]\ns[tx] = v", 4),
    ("race", "alloc s: int32[64] shared\nif tx == 3 { s[0] = tx }\nN[tx] = s[0]", 2),
    ("race", "alloc s: int32[64] shared\ns[tx // 2] = tx", 1),
    ("race", "alloc s: int32[64] shared\ns[tx] = tx\nsync warp\nN[tx] = s[(tx + 32) % 64]", 3),
    ("race", "alloc s: int32[64] shared\ns[tx] = tx\nif tx < 32 { sync warp }\n"
             "if tx >= 32 { N[tx] = s[tx ^ 1] }", 3),
    ("race", "alloc s: int32[64] shared\ns[0] = tx", 1),
    ("race", "A[0] = A[0] + A[tx]", 0),
    ("parallel-conflict", "map i in 8 {\natomic add N[0] value=1\nA[i] = float32(N[0])\n}", 2),
    ("parallel-conflict", "map i in 8 {\nA[i] = float32(N[0])\natomic add N[0] value=1\n}", 2),
    ("parallel-conflict", "map i in 8 {\natomic add N[i // 2] value=1\nN[i] = 0\n}", 2),
    ("race", "alloc s: int32[4] shared\nfill s = 0\natomic add s[tx % 4] value=1\nN[tx] = s[0]", 3),
    ("race", "alloc s: int32[64] shared\ns[tx] = 0\natomic add s[0] value=tx", 2),
    ("race", "atomic add N[0] value=tx\nif tx == 0 { N[0] = 0 }", 1),
    ("race", "alloc s: int32[64] shared\ns[tx] = tx\natomic add N[tx] value=s[63 - tx]", 2),
    ("shuffle-lane", "if tx < 16 {\nintrinsic shfl_sync (tx, tx + 16) result=x: int32\n}", 1),
    ("shuffle-lane", "if tx % 2 == 0 {\nintrinsic shfl_xor (tx, 1) result=x: int32\n}", 1),
    ("shuffle-lane", "intrinsic shfl_xor (tx, 33) result=x: int32", 0),
    ("shuffle-lane", "intrinsic shfl_down (tx, 0 - 1) result=x: int32", 0),
    ("divergent-barrier", "if tx < 32 {\nsync block\n}", 1),
    ("index-overflow", "A[(k * k) % 64] = 1.0", 0),
    ("index-overflow", "let at = k * k\nif at > 0 { A[at] = 1.0 }", 0),
    ("division-by-zero", "N[0] = k // N[0]", 0),
    ("division-by-zero", "map i in 8 { N[i] = k % (i - 4) }", 0),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "line"), BAD)
def test_reported(kind, body, line):
    program = kernel(body)
    with pytest.raises(SanitizerError) as e:
        run(program, args(), sanitize=True)
    assert e.value.kind == kind, e.value
    assert e.value.loc is not None and e.value.loc.line == FIRST + line


def test_an_element_that_one_access_holds_twice_is_named():
    with pytest.raises(SanitizerError, match=r"^\S+ parallel-conflict: A\[7\] is written"):
        run(kernel("map i in 2 { A[7 - i // 2] = float32(i) }"), args(), sanitize=True)


GOOD = [
    "intrinsic warp_reduce_max (tx) result=m: int32\nif tx < 32 { N[0] = m }",
    "if tx > 100 { N[0] = tx }",
    "alloc s: float32[8] shared\nmap i in 8 { s[i] = 1.0 }\nmap i in 8 { A[i] = s[7 - i] }",
    "map i in 8 { A[i] = A[i] + 1.0\nA[i] = A[i] * 2.0 }",
    "map (i, j) in (8, 8) { if j == i { A[i] = float32(j) } }",
    "map i in 8 { A[i] = A[8 + i // 2] }",
    "map i in 8 { N[i] = k // (i - 4) if i != 4 else 0 }",
    "map i in 32 { atomic add A[i // 2] value=1.0 }",
    "alloc s: int32[64] shared\ns[tx] = tx\ns[tx] = s[tx] + 1\nsync block\nN[tx] = s[63 - tx]",
    "alloc s: int32[64] shared\ns[tx] = tx\nsync warp\nN[tx] = s[tx ^ 1]",
    "alloc s: int32[64] shared\ns[tx] = tx\nsync warp\nlet v = s[tx & 60]\nsync warp\ns[tx] = v",
    "alloc s: int32[64] shared\ns[tx] = tx\nif tx >= 32 { sync warp\nN[tx] = s[tx ^ 1] }",
    "alloc s: int32[64] shared\nif tx < 9 { s[0] = 5 }\nsync block\nN[tx] = s[0]",
    "alloc s: int32[64] shared\ns[tx] = tx\nmap i in 64 { N[i] = s[63 - i] }\ns[tx] = 0",
    "A[tx + 60] = 1.0\nsync block\nlet x = A[tx - 3]\nsync block\nA[tx] = x",
    "alloc s: float32[70] shared\nmap i in 64 { s[i] = 1.0 }\ncopy s -> A[0:+70]",
    "map i in 8 { atomic add N[0] value=1 }\nmap i in 8 { A[i] = float32(N[0]) }",
    "map i in 8 { atomic add N[i] value=1\nA[i] = float32(N[i]) }",
    "map i in 8 { atomic add N[0] value=1\natomic load N[0] result=x: int32\nA[i] = float32(x) }",
    "alloc s: int32[4] shared\nfill s = 0\natomic add s[tx % 4] value=1\nsync block\nN[tx] = s[0]",
    "if tx < 32 { intrinsic shfl_down (tx, 16) result=x: int32 }",
    "if tx % 32 < 16 { intrinsic shfl_down (tx, 8) result=x: int32 width=16 }",
    "intrinsic shfl_up (tx, 1) result=x: int32",
    "intrinsic shfl_sync (tx, tx + 1) result=x: int32",
    "if tx < 16 { intrinsic ballot (tx > 3) result=x: uint32 }",
]  # fmt: skip


@pytest.mark.parametrize("body", GOOD)
def test_not_accused(body):
    run(kernel(body), args(), sanitize=True)


BLOCKS = [
    ("A[0] = float32(bx)", True),
    ("A[bx] = A[bx + 1]", True),
    ("if bx == 0 { A[5] = 1.0 } else { N[bx] = int32(A[5]) }", True),
    ("if bx == 0 { A[5] = 1.0 } else { atomic add A[5] value=1.0 }", True),
    ("atomic add A[5] value=1.0", False),
    ("A[bx] = A[bx] + 1.0", False),
    ("N[bx] = int32(A[0])", False),
]


@pytest.mark.parametrize(("body", "races"), BLOCKS)
@pytest.mark.parametrize("seed", range(3))
def test_block_race(body, races, seed):
    program = kernel(body, grid="bx in 4")
    if not races:
        run(program, args(), sanitize=True, seed=seed)
        return
    with pytest.raises(SanitizerError) as e:
        run(program, args(), sanitize=True, seed=seed)
    assert e.value.kind == "block-race" and e.value.loc.line == FIRST


def test_block_order_is_shuffled_by_the_seed():
    program = kernel("A[0] = float32(bx)", grid="bx in 8")
    seen = set()
    for seed in range(8):
        a = args()
        run(program, a, seed=seed)
        seen.add(float(a["A"][0]))
    assert len(seen) > 1


def test_same_arrays_run_twice_are_clean():
    program, a = kernel("A[63 - tx] = 2.0\nmap i in 8 { N[7 - i] = i }"), args()
    run(program, a, sanitize=True)
    run(program, a, sanitize=True)


def test_nan_is_reported_where_it_is_born():
    program = kernel("map i in 8 { A[i] = log(A[i]) }")
    a = args()
    a["A"][3] = -1
    run(program, {**a, "A": a["A"].copy()}, sanitize=True)
    with pytest.raises(SanitizerError) as e:
        run(program, {**a, "A": a["A"].copy()}, nan=True)
    assert e.value.kind == "nan" and e.value.loc.line == FIRST
    a["A"][3] = np.nan
    run(program, a, nan=True, sanitize=True)
    guarded = kernel("map i in 8 { A[i] = log(A[i]) if A[i] > 0.0 else 0.0 }")
    a["A"][3] = -1
    run(guarded, a, nan=True)


def test_scratch_is_uninitialised():
    program = kernel("A[0] = W[3]", scratch="scratch W: float32[8] global")
    with pytest.raises(SanitizerError) as e:
        run(program, args(), sanitize=True)
    assert e.value.kind == "uninitialized"


def made(body: str, grid: str = "bx in 1"):
    program = kernel(body, grid=grid)
    return run(program, args(), sanitize=True, made=("A",))


@pytest.mark.parametrize(
    "body",
    ["map i in 8 { A[i] = A[i] + 1.0 }", "atomic add A[3] value=1.0", "N[0] = int32(A[5])"],
)
def test_what_a_call_makes_is_uninitialised(body):
    with pytest.raises(SanitizerError) as e:
        made(body)
    assert e.value.kind == "uninitialized" and e.value.loc.line == FIRST


def test_elements_that_nothing_wrote_are_warned_of():
    (found,) = made("map i in 60 { A[i + (4 if i >= 30 else 0)] = 1.0 }").warnings
    assert found.kind == "unwritten"
    assert "4 of 64 elements are never written; the first is A[30]" in str(found)
    assert not made("map i in 16 { A[bx * 16 + i] = 1.0 }", "bx in 4").warnings
    assert not made("atomic store A[tx] value=1.0").warnings


def test_a_report_names_both_lines():
    with pytest.raises(SanitizerError) as e:
        run(kernel("map i in 8 {\natomic add N[0] value=1\nA[i] = float32(N[0])\n}"), args(),
            sanitize=True)  # fmt: skip
    assert f"N is updated atomically at <ir>:{FIRST + 1}" in str(e.value)
