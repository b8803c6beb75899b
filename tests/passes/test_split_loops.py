"""Loops over maps in two or three parts: the same results, and no guard in the first iterations."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright import machine
from tilewright.ir.op import For, Hint, If, Program, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.canonicalize.loops import split_loops
from tilewright.passes.canonicalize.unswitch_guards import unswitch_guards
from tilewright.support.errors import VerifyError

CUDA = Target.parse("cuda")
GOLDEN = Path(__file__).parent / "golden" / "split_loops.tw"

TEXT = """program p {{
  param X: int32[64] global
  param O: int32[3, 8] global
  param n: int32
  kernel main grid bx in 3 threads tx in 8 {{
    alloc F: int32[8] fragment
    fill F = 0
    for k in 0 .. 6{how} {{
      alloc x: int32[8] fragment
      copy X[k * 8:+8] -> x atom=threads
      {more}
      map j in 8 {{ if {cond} {{ F[j] = F[j] * 3 + x[j] + k }} }}
    }}
    map j in 8 {{ O[bx, j] = F[j] }}
  }}
}}
"""


def program(cond: str, how: str = "", more: str = "") -> Program:
    found = parse_program(TEXT.format(cond=cond, how=how, more=more))
    verify(found, Stage.TILE)
    return found


def split(before: Program) -> Program:
    after = split_loops(unswitch_guards(before, CUDA), CUDA)
    verify(after, Stage.TILE)
    return after


def results(given: Program, n: int) -> np.ndarray:
    out = np.zeros((3, 8), np.int32)
    machine.run(given, {"X": np.arange(64, dtype=np.int32), "O": out, "n": n})
    return out


def loops(given: Program) -> list[tuple[str, int, bool]]:
    """The bounds of each loop, its iterations at a time, and whether it has guards."""
    return [
        (f"{op.start} .. {op.stop}", op.unroll, any(walk_ops(op, If)))
        for op in walk_ops(given.kernels[0], For)
    ]


CASES = {
    "k * 8 + j < 37": [("0 .. 4", 4, False), ("4 .. 6", 1, True)],
    "k * 8 + j >= 11": [("0 .. 2", 1, True), ("2 .. 6", 4, False)],
    "k * 8 + j >= 3 and k * 8 + j < 46": [
        ("0 .. 1", 1, True),
        ("1 .. 5", 4, False),
        ("5 .. 6", 1, True),
    ],
    "k * 8 + j < 99": [("0 .. 6", 4, False)],
    # the iterations that need no guard are not one after the other
    "(k + bx) % 2 * 8 + j < 9": [("0 .. 6", 4, True)],
}


@pytest.mark.parametrize("cond", CASES)
def test_guards_at_the_ends(cond):
    before = program(cond)
    after = split(before)
    assert loops(after) == CASES[cond]
    np.testing.assert_array_equal(results(after, 0), results(before, 0))


@settings(max_examples=40, deadline=None)
@given(st.integers(-60, 60), st.integers(-60, 60), st.integers(-60, 60))
def test_every_edge(low, high, n):
    """Edges anywhere: before the loop, in it, behind it, in the wrong order, known at run time."""
    before = program(f"k * 8 + j >= {low} and k * 8 + j < n + bx * 5 - {high}")
    np.testing.assert_array_equal(results(split(before), n), results(before, n))


def test_loops_of_a_schedule_stay_whole():
    for how, more in ((" kind=pipelined stages=2", ""), ("", "sync block")):
        found = split(program("k * 8 + j < 37", how, more))
        assert len(loops(found)) == 1


def test_text():
    text = print_program(split(program("k * 8 + j < 37")))
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_registers_stay_for_other_blocks():
    """What is written out may not take the registers of blocks that shared memory has room for."""
    kernel = split(program("k * 8 + j < 37")).kernels[0]
    (hint,) = [op for op in walk_ops(kernel, Hint) if op.name == "min_blocks"]
    assert hint.detail == (CUDA.chip.blocks_per_sm,)


def test_what_is_written_out_is_a_count():
    text = TEXT.format(cond="k < 3", how=" unroll=0", more="")
    with pytest.raises(VerifyError, match="unroll") as caught:
        verify(parse_program(text), Stage.TILE)
    assert caught.value.loc is not None
