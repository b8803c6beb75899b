"""Block orders: every block once, whatever the grid and the order; what decides among them."""

from __future__ import annotations

from functools import reduce
from math import prod

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright.language as T
from tests.cuda import test_zoo as zoo
from tilewright import machine
from tilewright.ir.expr import Bin, Cast, Cmp, Const, Expr, Select, Var, walk
from tilewright.ir.op import For, Hint, Kernel, Let, walk_ops
from tilewright.ir.rewrite import naming
from tilewright.ir.schedule import WORDS
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.lang.trace import trace_direct
from tilewright.passes.grid.order_blocks import ABOUT, _Orders, most_work, order_blocks
from tilewright.passes.reasons import listening
from tilewright.runtime.backends import compiled_for
from tilewright.targets.cuda.backend import lower
from zoo.attention.flash import flash_attention
from zoo.attention.values import attention

CUDA = Target.parse("cuda")
ORDERS = [order for order in WORDS["order"] if order != "auto"]

TEXT = """program p {{
  param N: int32[{rows}, {columns}] global
  param S: int32[{rows}, {columns}] global
  kernel main grid (bx, by) in ({columns}, {rows}) threads tx in 32 {{
    hint swizzle detail=({size}, "{order}")
    if tx == 0 {{ N[by, bx] = N[by, bx] + 1 }}
  }}
}}
"""

# a loop whose length `trip` says; sizes at launch
LOOP = """program p {{
  dim gx
  dim gy
  dim gz
  dim n
  param A: float16[64, n] global
  param D: int32[gx, gy, gz] global
  kernel main grid {indices} in {grid} threads tx in 32{cluster} {{
    alloc a: float16[64, 64] shared
    let last = {trip}
    for k in 0 .. last kind=pipelined stages=2 {{
      copy A[:, k * 64:+64] -> a
    }}
  }}
}}
"""


def loop(trip: str = "n", axes: int = 3, cluster: str = ""):
    indices, grid = "(bx, by, bz)", "(gx, gy, gz)"
    if axes < 3:
        indices, grid = (("bx", "gx"), ("(bx, by)", "(gx, gy)"))[axes - 1]
    return parse_program(LOOP.format(trip=trip, indices=indices, grid=grid, cluster=cluster))


def asked(order: str) -> Target:
    return CUDA.choosing(order=order)


def told(program, target=CUDA, name="main") -> str:
    with listening() as reasons:
        order_blocks(program, target)
    return reasons[name, ABOUT]


BY = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "//": np.floor_divide, "%": np.remainder,
    "min": np.minimum, "max": np.maximum, "&": np.bitwise_and, "^": np.bitwise_xor,
    ">>": np.right_shift, "and": np.logical_and, "<": np.less, ">": np.greater, ">=":
    np.greater_equal, "==": np.equal, "!=": np.not_equal,
}  # fmt: skip


def value(expr: Expr, values: dict[str, np.ndarray]) -> np.ndarray:
    match expr:
        case Const():
            return np.asarray(expr.value)
        case Var():
            return values[expr.name]
        case Bin() | Cmp():
            return BY[expr.op](value(expr.a, values), value(expr.b, values))
        case Select():
            return np.where(*(value(e, values) for e in expr.children))
        case Cast():
            return value(expr.a, values)
    raise AssertionError(expr)


def places(kernel: Kernel, sizes: dict[str, int]) -> np.ndarray:
    """The indices that the kernel's text sees, a row for each block, in the order of launch."""
    values = {name: np.asarray(size) for name, size in sizes.items()}
    grid = [int(value(extent, values)) for extent in kernel.grid]
    number = np.arange(prod(grid))
    for var, extent in zip(kernel.blocks, grid, strict=True):
        values[var.name], number = number % extent, number // extent
    for op in kernel.body:
        if isinstance(op, Let) and op.var.name != "last":
            values[op.var.name] = value(op.value, values)
        if isinstance(op, Hint) and op.name == "assume":
            assert np.all(value(op.value, values)), op.value
    names = ("bx", "by", "bz")[: len(grid)]
    return np.stack([np.broadcast_to(values[n], prod(grid)) for n in names], axis=1)


def check_once(seen: np.ndarray, grid: list[int]) -> None:
    number = reduce(lambda n, axis: n * grid[axis] + seen[:, axis], reversed(range(len(grid))), 0)
    np.testing.assert_array_equal(np.sort(number), np.arange(prod(grid)))
    for axis, extent in enumerate(grid):
        assert not len(seen) or (seen[:, axis].min() >= 0 and seen[:, axis].max() < extent)


# ── every block once ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("rows, columns, size", [(1, 1, 4), (7, 5, 3), (8, 8, 4), (3, 9, 10)])
def test_every_block_runs_once(rows: int, columns: int, size: int, order: str):
    before = parse_program(TEXT.format(rows=rows, columns=columns, size=size, order=order))
    after = order_blocks(before, CUDA)
    assert "swizzle" not in print_program(after)
    seen = np.zeros((rows, columns), np.int32)
    machine.run(after, {"N": seen, "S": seen.copy()})
    np.testing.assert_array_equal(seen, 1)


@pytest.mark.parametrize("order", ORDERS)
def test_sizes_at_launch(order: str):
    """All small grids, and some that are larger than squares and panels."""
    found = order_blocks(loop("bx + 1", axes=2), asked(order))
    verify(found, Stage.TILE)
    sizes = [(x, y) for x in range(20) for y in range(20)] + [(33, 40), (16, 257), (131, 7)]
    for x, y in sizes:
        check_once(places(found.kernels[0], {"gx": x, "gy": y, "n": 1}), [x, y])


@given(order=st.sampled_from(ORDERS), axes=st.integers(1, 3), trip=st.sampled_from("xyzn"),
       sign=st.sampled_from("+-"), data=st.data())  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_any_grid_and_clusters(order, axes, trip, sign, data):
    trip = f"n {sign} b{trip}" if trip in "xyz"[:axes] else "n"
    cluster = data.draw(
        st.sampled_from([(), (2,), (1, 2), (2, 2), (2, 1, 2)]).map(lambda c: c[:axes])
    )
    text = " cluster=(" + ", ".join(map(str, cluster)) + ("," if len(cluster) == 1 else "") + ")"
    found = order_blocks(loop(trip, axes, text if cluster else ""), asked(order)).kernels[0]
    grid = [data.draw(st.integers(0, 20)) for _ in range(axes)]
    together = (cluster + (1, 1, 1))[:axes]
    grid = [n * c for n, c in zip(grid, together, strict=True)]
    seen = places(found, {"gx": grid[0], "gy": (grid + [1])[1], "gz": (grid + [1, 1])[2], "n": 9})
    check_once(seen, grid)
    # a block keeps its place in its cluster, and clusters stay together
    number, home = np.arange(prod(grid)), []
    for axis, (n, c) in enumerate(zip(grid, together, strict=True)):
        index, number = number % n if n else number, number // n if n else number
        np.testing.assert_array_equal(seen[:, axis] % c, index % c)
        home.append((index // c, seen[:, axis] // c))
    pairs = set(zip(zip(*(h[0] for h in home)), zip(*(h[1] for h in home))))
    assert len(pairs) == prod(n // c for n, c in zip(grid, together, strict=True))


@pytest.mark.parametrize("x, y", [(4, 4), (8, 3), (16, 16), (17, 40), (5, 70), (64, 32)])
@pytest.mark.parametrize("order", ORDERS)
def test_sizes_known_before(order: str, x: int, y: int):
    text = TEXT.format(rows=y, columns=x, size=3, order="row")
    found = order_blocks(parse_program(text), asked(order))
    verify(found, Stage.TILE)
    check_once(places(found.kernels[0], {}), [x, y])


# ── which way they go ────────────────────────────────────────────────────────────────────────


def test_a_panel_is_walked_down_its_rows_first():
    text = TEXT.format(rows=6, columns=4, size=3, order="row")
    seen = places(order_blocks(parse_program(text), CUDA).kernels[0], {}).tolist()
    assert seen[:6] == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    assert seen[12:18] == [[3, 3], [3, 4], [3, 5], [2, 3], [2, 4], [2, 5]]


def test_groups_without_a_hint_are_of_eight():
    seen = places(order_blocks(loop(axes=2), asked("grouped")).kernels[0], {"gx": 3, "gy": 20})
    assert seen[:9].tolist() == [[0, k] for k in range(8)] + [[1, 0]]


@pytest.mark.parametrize("x, y", [(16, 16), (64, 32), (48, 16), (8, 8), (12, 4)])
def test_a_hilbert_curve_goes_from_neighbour_to_neighbour(x: int, y: int):
    text = TEXT.format(rows=y, columns=x, size=3, order="row")
    seen = places(order_blocks(parse_program(text), asked("hilbert")).kernels[0], {})
    steps = np.abs(np.diff(seen, axis=0)).sum(axis=1)
    panels = -(-y // min(16, 1 << (min(x, y).bit_length() - 1)))
    assert (steps > 1).sum() <= panels - 1  # from a panel to the next one
    # what runs together is about square: of 132 tiles in a row, 12 rows and 12 columns would do
    for first in range(0, x * y - 132, 61):
        part = seen[first : first + 132]
        used = len(set(part[:, 0])) + len(set(part[:, 1]))
        assert used <= 40


def test_a_hilbert_curve_is_cheap():
    """Per block; sizes at launch, which cost divisions, included."""
    found = order_blocks(loop(axes=2), asked("hilbert")).kernels[0]
    nodes = {
        id(e): e
        for op in found.body
        if isinstance(op, Let)
        for e in walk(op.value)
        if not isinstance(e, (Const, Var))
    }
    divisions = sum(isinstance(e, Bin) and e.op in ("//", "%") for e in nodes.values())
    assert len(nodes) <= 90 and divisions <= 4


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("trip, up", [("n + {}", 1), ("n - 2 * {}", 0)])
def test_the_longest_first(axis: int, trip: str, up: int):
    sizes = {"gx": 3, "gy": 4, "gz": 5, "n": 9}
    found = order_blocks(loop(trip.format(("bx", "by", "bz")[axis])), asked("longest")).kernels[0]
    seen, grid = places(found, sizes), [3, 4, 5]
    slow = seen[:, axis].tolist()
    assert slow == sorted(slow, reverse=bool(up))
    others = [a for a in range(3) if a != axis]
    number = seen[:, others[0]] + seen[:, others[1]] * grid[others[0]]
    np.testing.assert_array_equal(number, np.tile(np.arange(60 // grid[axis]), grid[axis]))


def test_causal_attention_begins_with_its_last_rows():
    program = flash_attention.on("interp")(3, 2, 2, 256, 256, 64, causal=True).program
    text = print_program(order_blocks(program, CUDA))
    head = """\
  kernel main grid (bx_raw, h_raw, b_raw) in (4, 2, 3) threads tx in 128 {
    let number = bx_raw + h_raw * 4 + b_raw * 8
    let rest = number // 2
    let rest_1 = rest // 3
    let bx = 3 - rest_1
    hint assume value=bx >= 0 and bx < 4
    let h = number % 2
    hint assume value=h >= 0 and h < 2
    let b = rest % 3
    hint assume value=b >= 0 and b < 3
    alloc Q_shared: float16[64, 64] shared
"""
    assert head in text
    (found,) = [op for op in walk_ops(program.kernels[0]) if isinstance(op, For)]
    at = f"at line {found.loc.line}"
    assert told(program) == f"longest first: the trip count of the loop {at} grows with bx"
    assert told(program, asked("plain")) == "plain, as requested"


# ── what decides ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "trip, want",
    [
        ("(min(n, (bx + 1) * 64) + 63) // 64", (0, 1)),
        ("min(n, by * 2) + max(by, 4)", (1, 1)),
        ("n - bz * gx", (2, -1)),
        ("(n - by) // gy", (1, -1)),
        ("bx * 3 - bx * 5", (0, -1)),
        ("(by if n > 3 else by * 2)", (1, 1)),
        ("bx >> 2", (0, 1)),
        ("-4 * bx", (0, -1)),
        ("n", "all blocks run equally many iterations"),
        ("bx + by", "depends on bx, by"),
        ("bx % 3", "neither grows nor shrinks with bx"),
        ("bx * bx", "neither grows nor shrinks with bx"),
        ("bx - min(bx, 3)", "neither grows nor shrinks with bx"),
        ("D[bx, 0, 0]", "is read from memory"),
    ],
)
def test_where_the_work_is(trip: str, want):
    program = loop(trip)
    found = most_work(program.kernels[0], program.dims)
    if isinstance(want, str):
        assert isinstance(found, str) and want in found
        assert told(program, asked("longest")) == f"plain: {found}"
    else:
        assert found[:2] == want


def test_loops_that_go_on_where_others_end():
    """Whole tiles, then those of the diagonal: together they grow."""
    text = LOOP.format(indices="bx", grid="gx", cluster="", trip="bx * 3 // 2")
    more = """
    for j in last .. (bx * 3 + 5) // 2 + 1 kind=pipelined stages=2 {
      copy A[:, j * 64:+64] -> a
    }
  }
}"""
    program = parse_program(text.rstrip()[: -len("}\n}")].rstrip() + more)
    assert most_work(program.kernels[0], program.dims)[:2] == (0, 1)


def test_hints_come_first_and_reasons_say_so():
    program = zoo.program("gemm")
    hint = next(op for op in walk_ops(program.kernels[0]) if isinstance(op, Hint))
    assert told(program) == (
        f"grouped: T.use_swizzle asks for panels of 8 rows at line {hint.loc.line}"
    )
    assert told(program, asked("hilbert")).startswith("hilbert, as requested: curves in squares of")
    assert told(program, asked("longest")) == "plain: all blocks run equally many iterations"
    assert told(zoo.program("softmax"), asked("hilbert")) == (
        "plain: hilbert orders need a grid of two axes or more"
    )
    for order in ("plain", "longest"):
        assert order_blocks(program, asked(order)).kernels[0].blocks == program.kernels[0].blocks


def test_blocks_that_walk_over_tiles_keep_their_order():
    @T.prim_func
    def main(A: T.Tensor((8, 64), "float32"), B: T.Tensor((8, 64), "float32")):
        with T.Kernel(2, threads=32) as block:
            a = T.alloc_shared((1, 64), "float32")
            for t in T.Persistent([8], 2, block):
                for _ in T.Pipelined(t, num_stages=1):
                    T.copy(A[t, 0], a)
                T.copy(a, B[t, 0])

    assert told(main.program) == "plain: its blocks already loop over tiles"


def test_more_blocks_than_numbers_stay_as_they_are():
    text = TEXT.format(rows=60000, columns=60000, size=3, order="row")
    assert told(parse_program(text)) == "plain: the grid is too large to number"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    "name", ["gemm", "gemm_transposed", "flash_causal", "mla_split", "softmax"]
)
def test_the_zoo_computes_the_same(name: str, order: str):
    program = zoo.program(name)
    args = zoo.arguments(program)
    want, got = zoo.copies(args), zoo.copies(args)
    machine.run(program, want)
    machine.run(order_blocks(program, asked(order)), got)
    for key, array in want.items():
        if isinstance(array, np.ndarray):
            assert array.tobytes() == got[key].tobytes(), key


@settings(max_examples=40, deadline=None)
@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5)), st.integers(0, 2),
    st.integers(1, 40), st.sampled_from([1, -1]),
)  # fmt: skip
def test_sections_run_every_block_once(grid, axis, size, direction):
    text = "program p {{ kernel main grid (bx, by, bz) in {} threads tx in 32 {{ }} }}"
    program = parse_program(text.format(grid))
    work = _Orders(program.kernels[0])
    width = prod(grid) // grid[axis]
    with naming(program):
        kernel = work.renamed(work.sections(axis, direction, min(size, width)))
    seen = places(kernel, {})
    check_once(seen, list(grid))
    first = seen[: min(size, width), axis]
    assert (first == (grid[axis] - 1 if direction > 0 else 0)).all()


def test_many_heads_come_in_sections():
    sizes = {"block_M": 128, "block_N": 128, "threads": 256}
    many = flash_attention.prim_func(8, 16, 16, 2048, 2048, 128, True, **sizes).program
    # 16 tiles of 33 heads are four waves of 132 blocks: there and back, all have the same share
    why = "; 33 at a time on the other axes, so that blocks share loads"
    assert told(many).endswith(why)
    few = flash_attention.prim_func(2, 16, 16, 2048, 2048, 128, True, **sizes).program
    assert told(few).endswith("grows with bx")
    # what all heads load stays in the L2 cache
    small = flash_attention.prim_func(8, 16, 1, 2048, 2048, 128, True, **sizes).program
    assert told(small).endswith("grows with bx")


@pytest.mark.parametrize("keys", [128, 96])
def test_sections_where_the_first_tile_is_cut(keys):
    """Tiles of 96 keys are laid from each block's end, and are the same keys nonetheless."""
    given = [np.broadcast_to(np.zeros((), ml_dtypes.bfloat16), (11, 32, 1986, 128))] * 3
    target = Target.parse(f"cuda -arch=sm_90a -threads=256 -tiles=i:128,j:{keys}")
    with compiled_for(target):
        program = trace_direct(attention.fn, (*given, True)).program
    found = told(program, target, "attention")
    assert found.endswith("at a time on the other axes, so that blocks share loads")


def grouped_product(gathered: bool):
    """Rows of several groups, each with a matrix of its own: which one, a table says."""

    @T.prim_func
    def main(
        A: T.Tensor((4096, 512), "float16"),
        B: T.Tensor((8, 512, 2048), "float16"),
        first: T.Tensor((8,), "int32"),
        owner: T.Tensor((40,), "int32"),
        C: T.Tensor((4096, 2048), "float16"),
    ):
        with T.Kernel(40, 16, threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            g = T.alloc_var("int32", init=0)
            if gathered:
                for i in range(8):
                    g = T.if_then_else(bx * 128 >= first[i], i, g)
            else:
                g = owner[bx]
            row = bx * 128 - first[g]
            T.clear(c)
            for k in T.Pipelined(8, num_stages=3):
                T.copy(A[row, k * 64], a)
                T.copy(B[g, k * 64, by * 128], b)
                T.gemm(a, b, c)
            T.copy(c, C[row, by * 128])

    return main.program


@pytest.mark.parametrize("gathered", [False, True])
def test_what_is_looked_up_is_taken_to_be_shared(gathered: bool):
    """Neighbouring rows mostly are of one group; where they are not, no order is better."""
    why = lower(grouped_product(gathered), Target.parse("cuda")).reasons["main", ABOUT]
    assert why == "grouped, panels of 8 rows: rows of blocks share tiles of B, columns of A"
