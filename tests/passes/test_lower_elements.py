"""Maps, fills, reductions and copies of fragments as thread code: run for all threads in NumPy and
compared with what the tile op means."""

import numpy as np
import pytest

from tests.passes.test_lower_threads import lowered
from tests.passes.thread_code import run_code
from tilewright import machine
from tilewright.ir.layout.fragment import Fragment, repeat, row_of, spatial, wgmma_accumulator
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.passes.lower.reduce import find_parts
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

ACC = wgmma_accumulator(64, 48)
ROW = row_of(ACC, 1)
QUAD_ROWS = spatial(32, 4) * repeat(1, 4)  # 32 rows of 16, four lanes each
WIDE = Fragment((8, 256), (repeat(1, 4) * spatial(8, 16) * repeat(1, 4)).layout)


def spread(fragment, tile):
    """Registers [thread, value] that hold `tile`; NaN in idle slots."""
    table = fragment.table()
    return np.where(table < 0, np.nan, tile.reshape(-1)[table])


def gathered(fragment, registers):
    """The tile that registers hold; all copies must agree."""
    tile = np.full(fragment.elements, np.nan)
    table = fragment.table()
    tile[table[table >= 0]] = registers[table >= 0]
    np.testing.assert_array_equal(spread(fragment, tile)[table >= 0], registers[table >= 0])
    return tile.reshape(fragment.tile)


def execute(body, fragments, tiles, **values):
    """Run `body` in a role of four warps with these fragments; their tiles afterwards."""
    allocs = "\n".join(
        f'alloc {name}: {kind}{list(f.tile)} fragment layout="{f}"'
        for name, (f, kind) in fragments.items()
    )
    head = """program p {
      dim m min=1
      param bound: int32
      kernel main grid bx in 4 threads tx in 128 {
    """
    program = lowered(f"role r warps 0 + 4 {{\n{allocs}\n{body}\n}}\n", head)
    held = {n: spread(fragments[n][0], tile) for n, tile in tiles.items()}
    ran = run_code(program, held, **{"bx": 0, "bound": 0, **values})
    return {n: gathered(f, ran.memory[n]) for n, (f, _) in fragments.items()}


def numbers(shape, seed=0):
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(float)


@pytest.mark.parametrize("layout", [f'layout="{ACC}"', ""])
def test_map_reads_rows_and_masks_by_coordinates(layout):
    s, top = numbers((64, 48)), numbers(64, 1)
    found = execute(
        f"""map (i, j) in (64, 48) {layout} {{
          s[i, j] = s[i, j] * 2.0 - top[i] if bound + j <= i * 2 + bx * 3 else -inf
        }}""",
        {"s": (ACC, "float32"), "top": (ROW, "float32")},
        {"s": s, "top": top},
        bound=20,
        bx=2,
    )
    i, j = np.indices((64, 48))
    want = np.where(20 + j <= i * 2 + 6, s * 2 - top[:, None], -np.inf)
    np.testing.assert_array_equal(found["s"], want)


@pytest.mark.parametrize(
    "mask, bound, seen",
    [
        ("bx * 64 + j < bound", -(2**31), False),
        ("bx * 64 + j < bound", 2**31 - 1, True),
        ("j - bound >= bx * 7", 2**31 - 1, False),
        ("bx * 64 + j >= i - bound", 2**31 - 1, True),
    ],
)
def test_masks_of_numbers_that_are_far_apart(mask, bound, seen):
    """Neither side is beyond 32 bits, though their distance is."""
    s = numbers((64, 48))
    found = execute(
        f"""map (i, j) in (64, 48) layout="{ACC}" {{ s[i, j] = s[i, j] if {mask} else -inf }}""",
        {"s": (ACC, "float32")},
        {"s": s},
        bound=bound,
        bx=2,
    )
    np.testing.assert_array_equal(found["s"], s if seen else np.full_like(s, -np.inf))


def test_masks_compare_a_constant_with_one_limit():
    program = lowered(f"""role r warps 0 + 4 {{
      alloc s: float32[64, 48] fragment layout="{ACC}"
      map (i, j) in (64, 48) layout="{ACC}" {{
        s[i, j] = s[i, j] if bx * 48 + j <= i + 5 else -inf
      }}
    }}
""")
    from tilewright.ir.expr import Select, variables
    from tilewright.ir.op import Store, walk_ops

    (store,) = (op for op in walk_ops(program.kernels[0]) if isinstance(op, Store))
    assert isinstance(store.value, Select)
    names = {v.name for v in variables(store.value.cond)}
    assert len(names) == 2 and any(n.startswith("limit") for n in names)


@pytest.mark.parametrize(
    "value, once",
    [
        ("bx * 48 + j - i", True),
        ("j + 100000", True),
        ("bx * 9000000 + j", False),  # more digits than a float has
        ("bound + j", False),  # nobody knows how many
        ("i * j", False),
    ],
)
def test_integers_are_converted_once(value, once):
    """Distances between rows and columns (ALiBi, decay) cost an addition an element."""
    body = f'map (i, j) in (64, 48) layout="{ACC}" {{ s[i, j] = s[i, j] * float32({value}) }}'
    s = numbers((64, 48))
    found = execute(body, {"s": (ACC, "float32")}, {"s": s}, bx=3, bound=7)
    i, j = np.indices((64, 48))
    want = eval(value, {"bx": 3, "bound": 7, "i": i, "j": j}).astype(np.float32)
    np.testing.assert_allclose(found["s"], s * want, rtol=1e-7)

    from tilewright.ir.expr import Cast, variables, walk
    from tilewright.ir.op import Store, walk_ops

    head = "program p {\n param bound: int32\n kernel main grid bx in 4 threads tx in 128 {\n"
    text = f'role r warps 0 + 4 {{ alloc s: float32[64, 48] fragment layout="{ACC}"\n{body}\n}}\n'
    program = lowered(text, head)
    (store,) = (op for op in walk_ops(program.kernels[0]) if isinstance(op, Store))
    casts = [node for node in walk(store.value) if isinstance(node, Cast)]
    assert all(len(variables(node)) == 1 for node in casts) is once


def test_statements_of_a_map_run_in_order():
    a, b = numbers(64), numbers(64, 1)
    found = execute(
        f"""map r in 64 layout="{ROW}" {{
          let old = b[r]
          b[r] = a[r] + 1.0
          a[r] = old * b[r]
        }}""",
        {"a": (ROW, "float32"), "b": (ROW, "float32")},
        {"a": a, "b": b},
    )
    np.testing.assert_array_equal(found["b"], a + 1)
    np.testing.assert_array_equal(found["a"], b * (a + 1))


def test_a_cropped_layout_is_guarded():
    cropped = (spatial(4, 32) * repeat(1, 4)).crop(4, 100)
    x = numbers((4, 100))
    found = execute(
        "map (i, j) in (4, 100) { x[i, j] = x[i, j] + 1.0 }", {"x": (cropped, "float32")}, {"x": x}
    )
    np.testing.assert_array_equal(found["x"], x + 1)


@pytest.mark.parametrize("clear", [True, False])
@pytest.mark.parametrize("word", ["sum", "max", "min", "absmax"])
@pytest.mark.parametrize("source", [ACC, QUAD_ROWS, WIDE, wgmma_accumulator(64, 8)])
def test_reductions_fold_every_element_of_a_row_once(source, word, clear):
    target = row_of(source, 1)
    x, old = numbers(source.tile), numbers(target.tile, 1)
    found = execute(
        f"reduce {word} x -> r dim 1 clear={str(clear).lower()}",
        {"x": (source, "float32"), "r": (target, "float32")},
        {"x": x, "r": old},
    )
    want = {"sum": x.sum(1), "max": x.max(1), "min": x.min(1), "absmax": abs(x).max(1)}[word]
    if not clear:
        want = {"sum": want + old, "min": np.minimum(want, old)}.get(word, np.maximum(want, old))
    np.testing.assert_array_equal(found["r"], want)


def test_reductions_keep_nan():
    x = numbers((64, 48))
    x[3, 7] = np.nan
    found = execute(
        "reduce max x -> r dim 1",
        {"x": (ACC, "float32"), "r": (ROW, "float32")},
        {"x": x, "r": numbers(64)},
    )
    np.testing.assert_array_equal(found["r"], x.max(1))


def parts_of(fragment, dim):
    coords = np.unravel_index(fragment.table(), fragment.tile)
    return find_parts(coords, fragment.table(), dim, fragment.tile)


def test_lanes_of_a_reduction():
    for fragment, lanes in ((ACC, (1, 2)), (WIDE, (1, 2, 4, 8))):
        rows = parts_of(fragment, 1)
        assert (rows.lanes, rows.ranks) == (lanes, 1)
    columns = parts_of(ACC, 0)
    assert (columns.lanes, columns.ranks) == ((4, 8, 16), 4)  # and one part for each warp


def test_fill_and_copies_between_fragments():
    s = numbers((64, 48))
    kinds = {"s": (ACC, "float32"), "p": (ACC, "bfloat16"), "t": (ACC, "float32")}
    found = execute("copy s -> p atom=threads\ncopy s -> t atom=threads\nfill s = 3.0", kinds,
                    {"s": s})  # fmt: skip
    np.testing.assert_array_equal(found["p"], s)
    np.testing.assert_array_equal(found["t"], s)
    assert (found["s"] == 3).all()


REFUSED = {
    "a thread needs an element of top that it does not hold": """
      map (i, j) in (64, 48) layout="{acc}" {{ s[i, j] = top[j] }}""",
    "depends on bx, which is known only at run time": """
      map (i, j) in (64, 48) layout="{acc}" {{ s[i, j] = s[i, bx] }}""",
    "the map and its layout have different shapes": """
      map (i, j) in (64, 40) layout="{acc}" {{ s[i, j] = 0.0 }}""",
    "this map has no layout": """
      map (i, j) in (64, 48) {{ s[i, (j + 1) % 48] = 0.0 }}""",
}


@pytest.mark.parametrize("message", list(REFUSED))
def test_refusals_say_the_line(message):
    with pytest.raises(CompileError, match=message) as error:
        lowered(f"""
    role r warps 0 + 4 {{
      alloc s: float32[64, 48] fragment layout="{ACC}"
      alloc top: float32[64] fragment layout="{ROW}"
      {REFUSED[message].format(acc=ACC)}
    }}
""")
    assert error.value.loc is not None and error.value.loc.line == 9


def test_reductions_across_warps_of_a_role():
    s = numbers((64, 48))
    found = execute(
        "reduce sum s -> columns dim 0\nreduce sum s -> single dim 1",
        {
            "s": (ACC, "float32"),
            "columns": (row_of(ACC, 0), "float32"),
            "single": (spatial(64).replicate(2), "float32"),
        },
        {"s": s},
    )
    np.testing.assert_array_equal(found["columns"], s.sum(0))
    np.testing.assert_array_equal(found["single"], s.sum(1))


def test_registers_by_a_count_of_conditions():
    """Conditions in an index are numbers: two that hold count twice."""
    text = """program p {
      param O: int32[64] global
      kernel main grid bx in 1 threads tx in 64 {
        alloc F: int32[4] fragment
        map (b) in (4) { F[b] = b * 10 + 1 }
        map (i) in (64) {
          O[i] = F[min(int32(i % 4 > 0) + int32(i % 4 > 1) + max(i % 4 - 1, 0), 3)]
        }
      }
    }"""
    out = np.zeros(64, np.int32)
    machine.run_threads(lower(parse_program(text), Target.parse("cuda")).result, {"O": out})
    assert out.tolist() == [1, 11, 31, 31] * 16
