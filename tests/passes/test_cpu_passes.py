"""The passes of the CPU pipeline: what they make of small programs, and that it means the same."""

from textwrap import dedent

import numpy as np
import pytest

from tilewright.ir.op import Alloc, For, Map, Sync, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.machine.run import run
from tilewright.passes.canonicalize.fuse_maps import absorb_loops, fuse_maps, promote_tiles
from tilewright.passes.canonicalize.rules import expand_copies
from tilewright.passes.lower.split_at_barriers import split_at_barriers
from tilewright.support.errors import CompileError

CPU = Target.parse("cpu")


def on_kernels(step):
    from dataclasses import replace

    return lambda program, target: replace(
        program, kernels=tuple(step(kernel, target) for kernel in program.kernels)
    )


fuse, absorb = on_kernels(fuse_maps), on_kernels(absorb_loops)
forget = on_kernels(promote_tiles)


def program(body, params, threads="tx in 64", grid="bx in 2"):
    lines = "\n".join(f"param {p} global" for p in params)
    text = f"program p {{\n{lines}\nkernel main grid {grid} threads {threads} {{\n{body}\n}}\n}}"
    return parse_program(text)


def body_of(prog):
    """The kernel's body as text, one statement per line, without indentation of the kernel."""
    lines = print_program(prog).splitlines()
    start = next(i for i, line in enumerate(lines) if line.lstrip().startswith("kernel"))
    return dedent("\n".join(lines[start + 1 : -2]))


def keeps_meaning(before, *steps):
    """The program after `steps` leaves what the one before them leaves; returns it."""
    after = before
    for step in steps:
        after = step(after, CPU)
        verify(after, Stage.TILE)
    rng = np.random.default_rng(0)
    args = {
        t.name: rng.integers(-9, 9, t.static_shape).astype(t.dtype.numpy) for t in before.tensors
    }
    results = []
    for each in (before, after):
        mine = {k: v.copy() for k, v in args.items()}
        run(each, mine)
        results.append(mine)
    for name in args:
        np.testing.assert_array_equal(results[0][name], results[1][name])
    return after


# ── expand_copies ────────────────────────────────────────────────────────────────────────────


def test_copies_fills_and_atomics_become_maps():
    before = program(
        """
        alloc t: float16[8, 4] shared
        copy A[bx * 8:+8, 1, 0:+4] -> t
        fill t[0, :] = 2.0
        atomic add C[0:+8, 0:+4] src=t
        """,
        ["A: float32[20, 2, 4]", "C: float32[8, 4]"],
    )
    after = keeps_meaning(before, expand_copies)
    assert body_of(after) == dedent(
        """\
        alloc t: float16[8, 4] shared
        map (c, c_1) in (8, 4) {
          t[c, c_1] = float16(A[bx * 8 + c, 1, c_1])
        }
        map f in 4 {
          t[0, f] = 2.0
        }
        map (c_2, c_3) in (8, 4) {
          atomic add C[c_2, c_3] value=float32(t[c_2, c_3])
        }"""
    )


def test_copies_with_local_buffers_become_loops():
    before = program(
        "alloc l: float32[4] local\ncopy A[tx, 0:+4] -> l\nC[tx] = l[0] + l[3]",
        ["A: float32[64, 4]", "C: float32[64]"],
        grid="bx in 1",
    )
    after = expand_copies(before, CPU)
    assert any(isinstance(op, For) for op in walk_ops(after.kernels[0].body))
    assert not any(isinstance(op, Map) for op in walk_ops(after.kernels[0].body))


def test_copies_on_barriers_are_refused():
    before = program(
        """
        alloc t: float32[8] shared
        alloc b: barrier[1] barrier
        barrier_init b count 1
        copy A[0:+8] -> t barrier=b[0] atom=bulk_load
        """,
        ["A: float32[8]"],
    )
    with pytest.raises(CompileError, match="barrier") as caught:
        expand_copies(before, CPU)
    assert caught.value.loc.line == 8


# ── fuse_maps ────────────────────────────────────────────────────────────────────────────────


def test_maps_that_meet_at_one_place_fuse():
    before = program(
        """
        alloc t: float32[8, 16] fragment
        map (i, j) in (8, 16) { t[i, j] = A[i, j] }
        alloc u: float32[8, 16] fragment
        map (a, b) in (8, 16) { u[a, b] = t[a, b] * 2.0 }
        map (c, d) in (8, 16) { C[c, d] = u[c, d] + t[c, d] }
        """,
        ["A: float32[8, 16]", "C: float32[8, 16]"],
        grid="bx in 1",
    )
    after = keeps_meaning(before, fuse)
    assert body_of(after) == dedent(
        """\
        alloc t: float32[8, 16] fragment
        alloc u: float32[8, 16] fragment
        map (i, j) in (8, 16) {
          t[i, j] = A[i, j]
          u[i, j] = t[i, j] * 2.0
          C[i, j] = u[i, j] + t[i, j]
        }"""
    )


def test_tiles_of_one_map_are_registers():
    before = program(
        """
        alloc t: float16[8, 16] fragment
        map (i, j) in (8, 16) {
          t[i, j] = float16(A[i, j])
          if j < 9 { t[i, j] = t[i, j] + t[i, j] }
          C[i, j] = float32(t[i, j])
        }
        """,
        ["A: float32[8, 16]", "C: float32[8, 16]"],
        grid="bx in 1",
    )
    assert body_of(keeps_meaning(before, forget)) == dedent(
        """\
        map (i, j) in (8, 16) {
          alloc t: float16 local
          t = float16(A[i, j])
          if j < 9 {
            t = t + t
          }
          C[i, j] = float32(t)
        }"""
    )


@pytest.mark.parametrize("body", [
    "map (i, j) in (8, 16) { t[i, j] = A[i, j]\nC[i, j] = t[i, 0] }",  # of another point
    "map (i, j) in (8, 16) { t[i, 0] = A[i, j]\nC[i, j] = A[i, j] }",  # of several
    "map (i, j) in (8, 16) { if i < 4 { t[i, j] = A[i, j] }\nC[i, j] = t[i, j] }",  # from before
    "map (i, j) in (8, 16) { t[i, j] = A[i, j] + t[i, j]\nC[i, j] = t[i, j] }",
    "map (i, j) in (8, 16) { t[i, j] = A[i, j]\nC[i, j] = t[i, j] }\ncopy t -> C",  # for later
    "view v: float32[128] shared of t\nmap (i, j) in (8, 16) { t[i, j] = A[i, j] }\n"
    "map k in 128 { C[k // 16, k % 16] = v[k] }",
    "map (i, j) in (8, 16) { t[i, j] = A[i, j]\natomic add t[i, j] value=1.0\nC[i, j] = t[i, j] }",
])  # fmt: skip
def test_tiles_that_others_see_stay(body):
    before = program(
        f"alloc t: float32[8, 16] shared\n{body}",
        ["A: float32[8, 16]", "C: float32[8, 16]"],
        grid="bx in 1",
    )
    after = forget(expand_copies(before, CPU), CPU)
    assert any(op.buffer.name == "t" and op.buffer.rank for op in walk_ops(after.kernels, Alloc))


@pytest.mark.parametrize("second", [
    "map (a, b) in (8, 16) { C[a, b] = t[a, 15 - b] }",  # reads what another point writes
    "map (a, b) in (8, 16) { C[a, b] = t[a, 0] }",
    "map (a, b) in (16, 8) { C[b, a] = t[b, a] }",  # another box
    "view v: float32[128] shared of t\nmap (a, b) in (8, 16) { C[a, b] = v[a * 16 + b] }",
])  # fmt: skip
def test_maps_that_do_not_meet_stay_apart(second):
    before = program(
        f"alloc t: float32[8, 16] shared\nmap (i, j) in (8, 16) {{ t[i, j] = A[i, j] }}\n{second}",
        ["A: float32[8, 16]", "C: float32[8, 16]"],
        grid="bx in 1",
    )
    after = keeps_meaning(before, fuse)
    assert sum(isinstance(op, Map) for op in walk_ops(after.kernels[0].body)) == 2


# ── absorb_loops ─────────────────────────────────────────────────────────────────────────────


def test_independent_loops_become_axes():
    before = program(
        "map i in 16 { let r = i * 4; for v in 0 .. 4 { C[r + v] = A[r + v] + 1.0 } }",
        ["A: float32[64]", "C: float32[64]"],
        grid="bx in 1",
    )
    after = keeps_meaning(before, absorb)
    assert body_of(after) == dedent(
        """\
        map (i, v) in (16, 4) {
          C[i * 4 + v] = A[i * 4 + v] + 1.0
        }"""
    )


@pytest.mark.parametrize("loop", [
    "for v in 0 .. 4 { C[i] = A[i * 4 + v] }",  # the last turn wins
    "for v in 1 .. 4 { C[i * 4 + v] = C[i * 4 + v - 1] }",  # turns depend on each other
    "for v in 0 .. 3 { C[i * 4 + v + 1] = C[i * 4 + v] }",
    "for v in 0 .. i { C[i * 4 + v % 4] = 1.0 }",
    "for v in 0 .. 4 { let back = v; C[i * 4 + v - back] = A[v] }",  # all turns at one place
])  # fmt: skip
def test_dependent_loops_stay(loop):
    before = program(
        f"map i in 16 {{ {loop} }}", ["A: float32[64]", "C: float32[64]"], grid="bx in 1"
    )
    assert absorb(before, CPU) == before


# ── split_at_barriers ────────────────────────────────────────────────────────────────────────


def test_threads_become_maps_between_barriers():
    before = program(
        """
        alloc s: float32[64] shared
        let x = A[bx * 64 + tx]
        s[tx] = x
        sync block
        C[bx * 64 + tx] = s[63 - tx] + x
        """,
        ["A: float32[128]", "C: float32[128]"],
    )
    after = keeps_meaning(before, expand_copies, split_at_barriers)
    assert body_of(after) == dedent(
        """\
        alloc x_each: float32[64] shared
        alloc s: float32[64] shared
        map tx_1 in 64 {
          let x: float32 = A[bx * 64 + tx_1]
          x_each[tx_1] = x
          s[tx_1] = x
        }
        map tx_2 in 64 {
          let x_1: float32 = x_each[tx_2]
          C[bx * 64 + tx_2] = s[63 - tx_2] + x_1
        }"""
    )


def test_loops_with_barriers_keep_their_locals():
    before = program(
        """
        alloc s: int32[64] shared
        alloc n: int32 local init=1
        alloc m: int32[2] local
        fill m = 3
        for r in 0 .. 3 {
          s[tx] = n + m[r % 2]
          sync block
          if s[63 - tx] > 2 { n = n + s[(tx + r) % 64] }
          m[(tx + r) % 2] = n
          sync block
        }
        C[bx, tx] = n
        """,
        ["C: int32[2, 64]"],
    )
    after = keeps_meaning(before, expand_copies, split_at_barriers)
    assert not any(isinstance(op, Sync) for op in walk_ops(after.kernels[0].body))


def test_shuffles_read_what_every_thread_left():
    before = program(
        """
        let x = A[tx]
        if tx < 32 {
          intrinsic shfl_down (x, 3) result=y: int32
          intrinsic warp_reduce_max (y) result=z: int32
          C[bx, tx] = z - y
        }
        """,
        ["A: int32[64]", "C: int32[2, 64]"],
    )
    keeps_meaning(before, expand_copies, split_at_barriers)


@pytest.mark.parametrize("body, message", [
    ("for i in 0 .. tx { sync block }", "differs between threads"),
    ("for i in 0 .. 4 { if tx == i { break }\nsync block }", "leaves, on its own"),
    ("if tx < 8 { sync block }", "under a guard"),
    ("if tx < 8 { map i in 8 { C[0, i] = 1 } }", "under a guard"),
])  # fmt: skip
def test_divergent_barriers_are_refused_at_their_line(body, message):
    before = program(body, ["C: int32[2, 64]"])
    with pytest.raises(CompileError, match=message) as caught:
        split_at_barriers(before, CPU)
    assert caught.value.loc.line >= 4


def test_axes_of_one_place_go():
    """Copies have none: maps over one row are fused with them, and tiles of it are registers."""
    before = program(
        "alloc x: float32[1, 32] fragment\n"
        "map c in 32 { x[0, c] = A[bx * 32 + c] }\n"
        "map (r, k) in (1, 32) { C[bx * 32 + k] = x[r, k] * 2.0 }",
        ["A: float32[64]", "C: float32[64]"],
    )
    after = keeps_meaning(before, absorb, fuse, forget)
    (found,) = walk_ops(after.kernels, Map)
    assert len(found.vars) == 1 and "[1, 32]" not in body_of(after)


def test_a_map_of_one_place_stays():
    before = program(
        "map (r, k) in (1, 1) { C[bx] = A[bx + r + k] }", ["A: float32[4]", "C: float32[4]"]
    )
    keeps_meaning(before, absorb, fuse, forget)
