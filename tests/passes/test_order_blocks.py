"""Block orders: every block once, whatever the grid and the panel."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright import interp
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.passes.order_blocks import order_blocks

TEXT = """program p {{
  param N: int32[{rows}, {columns}] global
  param S: int32[{rows}, {columns}] global
  kernel main grid (bx, by) in ({columns}, {rows}) threads tx in 32 {{
    hint swizzle detail=({size}, "{order}")
    if tx == 0 {{ N[by, bx] = N[by, bx] + 1 }}
  }}
}}
"""


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("rows, columns, size", [(1, 1, 4), (7, 5, 3), (8, 8, 4), (3, 9, 10)])
def test_every_block_runs_once(rows: int, columns: int, size: int, order: str):
    before = parse_program(TEXT.format(rows=rows, columns=columns, size=size, order=order))
    after = order_blocks(before, Target.parse("cuda"))
    assert "swizzle" not in print_program(after)
    seen = np.zeros((rows, columns), np.int32)
    interp.run(after, {"N": seen, "S": seen.copy()})
    np.testing.assert_array_equal(seen, 1)


def test_a_panel_is_walked_down_its_rows_first():
    text = TEXT.format(rows=6, columns=4, size=3, order="row")
    text = text.replace("if tx == 0 { N[by, bx] = N[by, bx] + 1 }",
                        "if tx == 0 { N[by, bx] = 0 }")  # fmt: skip
    after = order_blocks(parse_program(text), Target.parse("cuda"))
    raw = after.kernels[0].blocks
    text = print_program(after).replace("= 0\n", f"= {raw[0].name} + {raw[1].name} * 4\n")
    seen = np.zeros((6, 4), np.int32)
    interp.run(parse_program(text), {"N": seen, "S": seen.copy()})
    assert seen[:3, 0].tolist() == [0, 1, 2] and seen[:3, 1].tolist() == [3, 4, 5]
    assert seen[3:, 3].tolist() == [12, 13, 14] and seen[3:, 2].tolist() == [15, 16, 17]
