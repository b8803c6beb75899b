"""Matrix instructions that follow one another, as one asm statement.

The compiler copies every accumulator into and out of a statement. Of the products of a flash
attention (48 instructions, 64 registers each) these copies took it 400 of 950 ms; the machine code
is the same.
"""

from __future__ import annotations

from dataclasses import replace

from tilewright.ir.expr import const
from tilewright.ir.op import Body, Intrinsic

# in a statement. Of 32, their descriptors no longer fit the uniform registers.
MOST_PRODUCTS = 8


def adjacent(body: Body, index: int) -> list[Intrinsic]:
    """The matrix instructions from `index` on that can be one statement: on one accumulator, which
    the first of them may begin anew. Empty when they are fewer than two."""
    found: list[Intrinsic] = []
    for op in body[index : index + MOST_PRODUCTS]:
        if not (isinstance(op, Intrinsic) and op.name == "wgmma"):
            break
        if found:
            first = found[0]
            if (op.text, op.loc, op.args[0]) != (first.text, first.loc, first.args[0]):
                break
            if op.args[3] is not const(1):
                break
        found.append(op)
    return found if len(found) > 1 else []


def together(ops: list[Intrinsic]) -> Intrinsic:
    """`ops` as one instruction: the accumulator, the other operands in turn, whether to add."""
    into, _, _, adds = ops[0].args
    sides = [arg for op in ops for arg in op.args[1:3]]
    return replace(ops[0], args=(into, *sides, adds), text=f"{ops[0].text} steps={len(ops)}")
