"""Copies between fragments and memory as thread code: every element in its place, as wide as
layouts allow, once where threads hold copies, and nothing outside tensors; order in a cluster."""

import numpy as np
import pytest

from tests.passes.test_lower_elements import gathered, numbers, spread
from tests.passes.test_lower_threads import lowered
from tests.passes.thread_code import run_code
from tilewright import machine
from tilewright.ir.layout.fragment import Fragment, repeat, row_of, spatial, wgmma_accumulator
from tilewright.ir.layout.layout import parse_layout
from tilewright.ir.op import Arrive, Fence, For, Hint, If, Intrinsic, Sync, Wait, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_op, print_program
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower

ACC = wgmma_accumulator(64, 64)
ROW = row_of(ACC, 1)
WIDE = Fragment((8, 256), (repeat(1, 4) * spatial(8, 16) * repeat(1, 4)).layout)
PIECES = Fragment((8, 512), (repeat(1, 4) * spatial(8, 16) * repeat(1, 8)).layout)
SWIZZLED = "S<3,3,3> o 0 o (64,64):(64,1)"

HEAD = """program p {{
  dim m min=1 max=64
  param G: float32[3, 64] global
  param W: bfloat16[40, 512] global
  kernel main grid bx in 4 threads tx in 128 {options} {{
"""


def moved(body, fragments, tiles, shared=(), memory=(), options="", **values):
    """Run `body` in a role of four warps: what it left, and the program."""
    allocs = [f'alloc {n}: {kind}{list(f.tile)} fragment layout="{f}"'
              for n, (f, kind) in fragments.items()]  # fmt: skip
    outer = [f'alloc {n}: {kind} shared layout="{layout}"' for n, kind, layout in shared]
    text = "\n".join([*outer, "role r warps 0 + 4 {", *allocs, body, "}\n"])
    program = lowered(text, HEAD.format(options=options))
    held = {n: spread(fragments[n][0], tile) for n, tile in tiles.items()}
    return run_code(program, {**held, **dict(memory)}, **{"bx": 0, **values}), program


def placed(layout, tile):
    """Shared memory that holds `tile`."""
    found = parse_layout(layout)
    memory = np.full(found.cosize(), np.nan)
    for at in np.ndindex(*tile.shape):
        memory[found(*at)] = tile[at]
    return memory


CASES = {
    "rows of float4": (WIDE, "float32", "float32", "(8,256):(256,1)", 4),
    "bf16 to float32": (PIECES, "float32", "bfloat16", "(8,512):(512,1)", 8),
    "bf16 in registers": (PIECES, "bfloat16", "bfloat16", "(8,512):(512,1)", 8),
    "padded by half a vector": (WIDE, "float32", "float32", "(8,256):(258,1)", 2),
    "an accumulator, swizzled": (ACC, "float32", "bfloat16", SWIZZLED, 2),
    "transposed": (WIDE, "float32", "float32", "(8,256):(1,8)", None),
}


@pytest.mark.parametrize("case", CASES)
def test_every_element_goes_to_its_place_and_comes_back(case):
    fragment, held, kept, layout, vector = CASES[case]
    tile = numbers(fragment.tile)
    shared = [("t", f"{kept}{list(fragment.tile)}", layout)]
    there, _ = moved("copy x -> t atom=threads", {"x": (fragment, held)}, {"x": tile}, shared)
    want = placed(layout, tile)
    np.testing.assert_array_equal(there.memory["t"], want)
    back, _ = moved("copy t -> x atom=threads", {"x": (fragment, held)}, {}, shared, [("t", want)])
    np.testing.assert_array_equal(gathered(fragment, back.memory["x"]), tile)
    for side in (there, back):
        assert side.vectors == ({vector} if vector else set())


def test_swizzle_of_a_stage_known_at_run_time():
    layout = "S<3,3,3> o 0 o (4,64,64):(4096,64,1)"
    tile = numbers((64, 64))
    machine, _ = moved(
        "copy x -> t[bx, :, :] atom=threads",
        {"x": (ACC, "float32")},
        {"x": tile},
        [("t", "bfloat16[4, 64, 64]", layout)],
        bx=2,
    )
    found = parse_layout(layout)
    for i, j in np.ndindex(64, 64):
        assert machine.memory["t"][found(2, i, j)] == tile[i, j]


def test_one_of_the_threads_that_hold_an_element_stores_it():
    row = numbers(64)
    machine, program = moved(
        "copy r -> t[1, :] atom=threads",
        {"r": (ROW, "float32")},
        {"r": row},
        [("t", "float32[2, 64]", "(2,64):(64,1)")],
    )
    (guard,) = (op for op in walk_ops(program.kernels[0]) if isinstance(op, If))
    assert print_op(guard).startswith("if thread % 4 == 0 {")
    np.testing.assert_array_equal(machine.memory["t"][64:], row)
    assert np.isnan(machine.memory["t"][:64]).all()


@pytest.mark.parametrize("bx, rows", [(0, True), (3, False)])
def test_global_rows_outside_the_tensor_are_dropped_and_read_zero(bx, rows):
    row, old = numbers(64), numbers((3, 64), 1)
    body = "copy r -> G[bx, :] atom=threads\nsync block\ncopy G[bx, :] -> s atom=threads"
    kinds = {"r": (ROW, "float32"), "s": (ROW, "float32")}
    machine, _ = moved(body, kinds, {"r": row}, (), [("G", old)], bx=bx)
    if rows:
        old[bx] = row
    np.testing.assert_array_equal(machine.memory["G"], old)
    np.testing.assert_array_equal(gathered(ROW, machine.memory["s"]), row if rows else 0 * row)


def test_global_vectors_are_guarded_and_ask_for_alignment():
    tile = numbers((40, 512))
    machine, program = moved(
        "copy W[bx * 8 + 16:+8, :] -> x atom=threads",
        {"x": (PIECES, "float32")},
        {},
        (),
        [("W", tile)],
        bx=3,
    )
    assert machine.vectors == {8}
    np.testing.assert_array_equal(gathered(PIECES, machine.memory["x"]), 0 * tile[:8])
    hints = [op for op in walk_ops(program.kernels[0]) if getattr(op, "name", "") == "align"]
    assert [(h.buffer.name, h.detail) for h in hints] == [("W", (16,))]


def test_ldmatrix_gives_each_lane_its_elements():
    tile = numbers((64, 64))
    machine, _ = moved(
        "copy t -> a atom=ldmatrix",
        {"a": (ACC, "bfloat16")},
        {},
        [("t", "bfloat16[64, 64]", SWIZZLED)],
        [("t", placed(SWIZZLED, tile))],
    )
    np.testing.assert_array_equal(gathered(ACC, machine.memory["a"]), tile)


# ── clusters ─────────────────────────────────────────────────────────────────────────────────

CLUSTER = "cluster=(2) rank=rank"
SENDING = """
      for peer in 0 .. 2 kind=unroll {
        arrive got[0]@peer bytes=BYTES
        copy r -> slots[rank, :]@peer atom=remote_store barrier=got[0]@peer
      }
      wait got[0] phase 0
      copy slots[1, :] -> r atom=threads
"""


def sending(fragment=ROW, size=64, body=SENDING):
    shared = f"""
    alloc slots: float32[2, {size}] shared layout="(2,{size}):({size},1)"
    alloc got: barrier[1] barrier
    barrier_init got count 2
    fence barrier_init
    sync cluster
    role r warps 0 + 4 {{
      alloc r: float32[{size}] fragment layout="{fragment}"
      {body.replace("BYTES", str(4 * size))}
    }}
"""
    return lowered(shared, HEAD.format(options=CLUSTER))


@pytest.mark.parametrize("fragment, words", [(ROW, 1), (spatial(16).replicate(8) * repeat(4), 4)])
def test_a_remote_store_sends_every_element_once(fragment, words):
    tile = numbers(64)
    program = sending(fragment)
    ran = run_code(program, {"r": spread(fragment, tile)}, blocks=2)
    for block in range(2):  # the bytes are right, or nobody would come past the barrier
        np.testing.assert_array_equal(ran.memory["slots"][block], np.concatenate([tile, tile]))
        np.testing.assert_array_equal(gathered(fragment, ran.memory["r"][block]), tile)
    stores = [
        op for op in walk_ops(program.kernels[0]) if getattr(op, "name", "") == "store_remote"
    ]
    assert [op.text for op in stores] == [f"words={words}"]


def test_order_across_blocks_is_in_the_program():
    ops = list(walk_ops(sending().kernels[0]))
    waits = [op for op in ops if isinstance(op, Wait)]
    acquiring = [op for op in ops if isinstance(op, Intrinsic) and op.name == "wait_cluster"]
    fences = [op for op in ops if isinstance(op, Fence) and op.kind == "cluster_shared"]
    assert (len(waits), len(acquiring), len(fences)) == (0, 1, 1)
    leaders = [op for op in ops if isinstance(op, If) and fences[0] in op.then]
    assert len(leaders) == 1
    assert ops.index(fences[0]) < next(i for i, op in enumerate(ops) if isinstance(op, Arrive))


def test_threads_meet_once_before_an_unrolled_loop():
    body = "copy slots[0, :] -> r atom=threads" + SENDING
    syncs = [op for op in walk_ops(sending(body=body).kernels[0].body[-1]) if isinstance(op, Sync)]
    loops = [op for op in walk_ops(sending(body=body).kernels[0]) if isinstance(op, For)]
    assert len(syncs) == 1
    assert not any(isinstance(op, (Sync, Fence)) for loop in loops for op in walk_ops(loop))


def test_threads_meet_before_the_fence():
    body = """
      for i in 0 .. 4 {
        copy slots[0, :] -> r atom=threads
        arrive got[0]@(rank ^ 1) bytes=256
      }
      copy r -> slots[rank, :]@1 atom=remote_store barrier=got[0]@1
      wait got[0] phase 0
    """
    kinds = [
        op
        for op in walk_ops(sending(body=body).kernels[0])
        if isinstance(op, (Sync, Fence, Arrive))
    ]
    names = [getattr(op, "scope", "") or getattr(op, "kind", "arrive") for op in kinds]
    assert names[-3:] == ["named", "cluster_shared", "arrive"]


@pytest.mark.parametrize(
    "access, kind",
    [
        ("copy r -> G[0, :] atom=threads", "cluster_shared"),  # nobody here reads it
        ("copy r -> G[0, :] atom=threads\ncopy G[1, :] -> r atom=threads", "cluster"),
        ("atomic add G[0, 0] value=1.0", "cluster_shared"),  # atomics order nothing
    ],
)
def test_the_fence_is_as_wide_as_what_peers_may_depend_on(access, kind):
    ops = walk_ops(sending(body=f"\n{access}\n{SENDING}").kernels[0])
    assert [op.kind for op in ops if isinstance(op, Fence)] == ["barrier_init", kind]


# ── scalars ──────────────────────────────────────────────────────────────────────────────────


def scalar(body, warps=1):
    shared = f"""
    alloc slots: int32[2, 8] shared layout="(2,8):(1,2)"
    role r warps 0 + {warps} {{
      alloc it: int32 local init=3
      {body}
    }}
"""
    return lowered(shared, HEAD.format(options=""))


def test_scalars_are_read_where_the_layout_puts_them():
    assert "it = slots[bx % 2 + 6]" in print_program(scalar("it = slots[bx % 2, 3]"))


def test_a_scalar_outside_a_tensor_is_zero_and_stays_unwritten():
    program = scalar("it = int32(G[it, 0])\nG[it, bx] = 1.0")
    text = print_program(program)
    assert "G[it, 0] if it >= 0 and it < 3 else" in text
    assert "if it >= 0 and it < 3 {\n        G[it, bx] = 1.0" in text


def test_one_lane_does_an_atomic_and_all_get_its_result():
    ops = list(walk_ops(scalar("atomic add G[0, 0] value=1.0 result=old: float32").kernels[0]))
    found = [op for op in ops if isinstance(op, Intrinsic) and op.name.startswith("atomic")]
    assert [(op.name, op.text) for op in found] == [("atomic_of_warp", "op=add")]
    ops = list(walk_ops(scalar("atomic add G[0, 0] value=1.0", warps=4).kernels[0]))
    by_leader = [op for op in ops if isinstance(op, If) and "atomic" in print_op(op.then[0])]
    assert len(by_leader) == 1


@pytest.mark.parametrize(
    "body, warps, message",
    [
        ("atomic xor G[0, 0] value=1.0", 1, "no atomic xor of float32"),
        ("atomic add G[it, 0] value=1.0 result=old: float32", 1, "may be outside of it"),
    ],
)
def test_atomics_that_are_refused_say_the_line(body, warps, message):
    with pytest.raises(CompileError, match=message) as error:
        scalar(body, warps)
    assert error.value.loc is not None and error.value.loc.line == 10


REFUSED = {
    "the same block of the cluster": "copy r -> slots[0, :]@1 atom=remote_store barrier=got[0]@0\n"
    "arrive got[0] bytes=256\nwait got[0] phase 0",
    "ldmatrix moves matrices": "copy slots[0, :] -> r atom=ldmatrix",
}


@pytest.mark.parametrize("message", list(REFUSED))
def test_refusals_say_the_line(message):
    body = f"\n{REFUSED[message]}"
    with pytest.raises(CompileError, match=message) as error:
        sending(body=body)
    assert error.value.loc is not None and error.value.loc.line == 15


@pytest.mark.parametrize(
    ("columns", "rows", "boxes", "box"),
    [
        (1024, 1, 1, (1, 4, 256)),  # a row longer than a box, in pieces of 256
        (1024, 3, 1, (3, 4, 256)),  # rows outside the tensor are zeros
        (1600, 2, 1, (2, 8, 200)),  # the largest piece that divides the row
    ],
)
def test_a_row_of_any_length_travels_at_once(columns, rows, boxes, box):
    text = f"""program p {{
      dim m min=1
      param X: bfloat16[m, {columns}] global
      param Y: bfloat16[m, {columns}] global
      kernel k grid bx in (m + {rows - 1}) // {rows} threads tx in 64 {{
        alloc s: bfloat16[{rows}, {columns}] shared
        alloc f: bfloat16[{rows}, {columns}] fragment
        copy X[bx * {rows}:+{rows}, :] -> s
        copy s -> f
        copy f -> Y[bx * {rows}:+{rows}, :]
      }}
    }}"""
    found = lower(parse_program(text), Target.parse("cuda -arch=sm_90a")).result
    ops = list(walk_ops(found.kernels[0]))
    loads = [op for op in ops if isinstance(op, Intrinsic) and op.name == "bulk_load"]
    (spec,) = [op.detail for op in ops if isinstance(op, Hint) and op.name == "tensor_map"]
    assert (len(loads), spec[2:]) == (boxes, box)
    x = np.arange(4 * columns, dtype=np.float32).reshape(4, -1).astype("bfloat16")
    args = {"X": x, "Y": np.zeros_like(x), "m": 4}
    machine.run_threads(found, args)
    assert args["Y"].tobytes() == x.tobytes()
