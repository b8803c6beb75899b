"""Uneven tiles handed out, to the first block that is free or in waves: lengths and shares."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewright.ir.expr import Const, transform
from tilewright.ir.op import For, Kernel, Let
from tilewright.ir.simplify import simplify
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.passes.grid.order_blocks import (
    ENDS,
    UNEVEN,
    blocks_of,
    handed_out,
    in_waves,
    order_blocks,
    tile_lengths,
)
from tilewright.passes.grid.persist_blocks import ABOUT, persist_blocks
from tilewright.passes.reasons import listening
from zoo.attention.flash import flash_attention

CUDA = Target.parse("cuda")


def attention(batch: int, length: int, causal: bool = True):
    return flash_attention.prim_func(
        batch, 16, 16, length, length, 128, causal, block_M=128, block_N=128, threads=256
    ).program


TEXT = """program p {
  param A: int32[64] global
  kernel main grid (bx, by) in (3, 5) threads tx in 32 {
    alloc turn: int32 local init=0
    BODY
  }
}
"""


def kernel_of(body: str) -> Kernel:
    return parse_program(TEXT.replace("BODY", body)).kernels[0]


@pytest.mark.parametrize(
    "body, length",
    [
        ("for k in 0 .. by + 1 kind=pipelined { turn = k }", lambda x, y: y + 1),
        ("for k in bx .. 7 step=2 kind=pipelined { turn = k }", lambda x, y: -(-(7 - x) // 2)),
        ("for k in 0 .. by - bx kind=pipelined { turn = k }", lambda x, y: max(0, y - x)),
        ("let n = min(by, 2)\nfor k in 0 .. n kind=pipelined { turn = k }", lambda _, y: min(y, 2)),
        (
            "for j in 0 .. 3 { for k in 0 .. bx kind=pipelined { turn = k } }",
            lambda x, y: 3 * x,
        ),
        (
            "if bx > 0 { for k in 0 .. by kind=pipelined { turn = k } }\n"
            "for k in 0 .. 2 kind=pipelined { turn = k }",
            lambda x, y: y + 2,
        ),
        ("for k in 0 .. by { turn = k }", lambda x, y: 0),
        (
            "let top = -inf if bx > 0 else 0.0\nfor k in 0 .. by kind=pipelined { turn = k }",
            lambda x, y: y,
        ),
        (
            "for k in 0 .. 1 - (int32(bx > 0) - int32(by > 1)) kind=pipelined { turn = k }",
            lambda x, y: 1 - (x > 0) + (y > 1),
        ),
        (
            "if bx > 0 { for k in 0 .. 8 // bx kind=pipelined { turn = k } }",
            lambda x, y: 8 // x if x else 0,
        ),
    ],
)  # fmt: skip
def test_iterations_of_tiles(body, length):
    want = [length(x, y) for y in range(5) for x in range(3)]
    assert tile_lengths(kernel_of(body)).tolist() == want


@pytest.mark.parametrize(
    "body",
    [
        "for k in 0 .. A[bx] kind=pipelined { turn = k }",
        "for k in 0 .. turn kind=pipelined { turn = k }",
        "for j in 0 .. 3 { for k in 0 .. j kind=pipelined { turn = k } }",
        "let n = A[by]\n for k in 0 .. n kind=pipelined { turn = k }",
    ],
)
def test_what_only_the_run_will_tell(body):
    assert tile_lengths(kernel_of(body)) is None


def test_sizes_of_the_run_and_many_tiles():
    text = TEXT.replace("BODY", "for k in 0 .. bx kind=pipelined { turn = k }")
    dynamic = text.replace("param A", "dim n min=1\n param A").replace("(3, 5)", "(3, n)")
    assert tile_lengths(parse_program(dynamic).kernels[0]) is None
    many = text.replace("(3, 5)", "(3, 500000)")
    assert tile_lengths(parse_program(many).kernels[0]) is None


@given(st.lists(st.integers(0, 20), min_size=1, max_size=60), st.integers(1, 9))
@settings(max_examples=60, deadline=None)
def test_nobody_is_faster_than_even_shares(lengths, blocks):
    tiles = np.array(lengths)
    even = sum(lengths) / blocks
    assert in_waves(tiles, blocks) >= UNEVEN * even - 1e-9
    greedy = handed_out(tiles, blocks)
    assert even <= greedy <= even + max(lengths) + ENDS * (len(lengths) / blocks + 1)


@pytest.mark.parametrize("batch, length", [(8, 2048), (2, 1024), (3, 777)])
def test_shares_are_those_of_the_blocks(batch, length):
    """What the model says of a block is what the loop that it runs will do."""
    ordered = order_blocks(attention(batch, length), CUDA)
    lengths = tile_lengths(ordered.kernels[0])
    stays = persist_blocks(ordered, CUDA.choosing(persistent=True)).kernels[0]
    (loop,) = (op for op in stays.body if isinstance(op, For))
    blocks = int(stays.grid[0])
    tile = next(op for op in loop.body if isinstance(op, Let))

    def value(e, **known):
        return int(simplify(transform(e, lambda n: known.get(getattr(n, "name", None)))))

    block = stays.blocks[0]
    shares = []
    for b in range(blocks):
        here = {block.name: Const(b, block.dtype)}
        waves = range(value(loop.stop, **here))
        wave = loop.var
        shares.append(
            sum(
                lengths[value(tile.value, **here, **{wave.name: Const(w, wave.dtype)})]
                for w in waves
            )
        )
    assert sum(shares) == lengths.sum()
    assert in_waves(lengths, blocks) == pytest.approx(UNEVEN * max(shares))


def told(batch: int, length: int) -> str:
    with listening() as heard:
        persist_blocks(order_blocks(attention(batch, length), CUDA), CUDA)
    return next(why for (_, about), why in heard.items() if about == ABOUT)


def test_short_tiles_stay_and_long_ones_are_handed_out():
    assert told(8, 2048).startswith("132 persistent blocks")
    assert told(1, 16384).startswith(
        "one block per tile: tiles of 1 to 128 iterations take 1010 iterations if"
    )


def test_sections_make_shares_even():
    kernel = order_blocks(attention(8, 2048), CUDA).kernels[0]
    lengths = tile_lengths(kernel)
    assert in_waves(lengths, blocks_of(kernel, CUDA)) < 1.02 * UNEVEN * lengths.sum() / 132
