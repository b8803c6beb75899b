"""Barriers between the threads of a block: where they stand, and no more of them than needed."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, numbers, program, run
from tilewright.ir.op import Fence, Sync, WaitGroup, walk_ops
from tilewright.ir.rewrite import map_kernels
from tilewright.ir.text import parse_program, print_op
from tilewright.passes.sync.insert_syncs import insert_syncs
from tilewright.support.errors import RunError

HEAD = """program p {
  param X: float32[64, 64] global
  param Y: float32[64, 64] global
  kernel k grid bx in 1 threads tx in 128 {
    alloc s: float32[64, 64] shared
    alloc t: float32[64, 64] shared
    alloc f: float32[64, 64] fragment
    alloc g: float32[64, 64] fragment
"""


def ordered(body: str):
    given = parse_program(HEAD + body + "\n}\n}")
    found = map_kernels(given, lambda kernel: insert_syncs(kernel, HOPPER))
    args = {"X": numbers(64, 64, dtype=np.float32), "Y": np.zeros((64, 64), np.float32)}
    got = run(found, args, explicit=True)
    plain = program(HEAD + body.replace("atom=bulk_store", "") + "\n}\n}")
    assert got["Y"].tobytes() == run(plain, args)["Y"].tobytes()
    return found.kernels[0]


def lines(body: str) -> list[str]:
    """The kernel's ops in order, without allocations."""
    found = [print_op(op).strip().split("\n")[0] for op in walk_ops(ordered(body).body)]
    return [line for line in found if not line.startswith("alloc")]


def count(body: str) -> int:
    return sum(isinstance(op, Sync) for op in walk_ops(ordered(body)))


def test_write_then_read():
    assert lines("copy X -> s\ncopy s -> f\ncopy f -> Y") == [
        "copy X -> s", "sync block", "copy s -> f", "copy f -> Y",
    ]  # fmt: skip


def test_one_serves_all():
    assert lines("copy X -> s\ncopy X -> t\ncopy s -> f\ncopy t -> g\ncopy f -> Y") == [
        "copy X -> s", "copy X -> t", "sync block", "copy s -> f", "copy t -> g", "copy f -> Y",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("body", "syncs"),
    [
        ("copy X -> f\ncopy f -> g\ncopy g -> Y", 0),
        ("copy X[0:+32, :] -> s[0:+32, :]\ncopy X[32:+32, :] -> s[32:+32, :]", 0),
        ("copy X[0:+32, :] -> s[0:+32, :]\ncopy X[16:+32, :] -> s[16:+32, :]", 1),
        ("fill s = 0.0\nfor k in 0 .. 3 { copy s -> f }\ncopy f -> Y", 1),
        ("for k in 0 .. 3 { copy X -> s\ncopy s -> f }\ncopy f -> Y", 2),
        ("for k in 0 .. 3 { copy X -> s\nif k > 0 { copy s -> f } }", 2),
        ("copy X -> s\nif bx == 0 { copy s -> f } else { copy s -> g }", 2),
        ("fill Y = 1.0\ncopy X[0:+32, :] -> Y[0:+32, :]", 1),
        ("for k in 0 .. 4 { fill Y[k * 16:+16, :] = 1.0 }", 0),
        ("for k in 0 .. 4 { fill Y[k * 8:+16, :] = 1.0 }", 1),
        ("s[tx // 64, tx % 64] = 1.0\nsync block\nlet v = s[0, 0]\nY[tx // 64, tx % 64] = v", 1),
        ("s[tx // 64, tx % 64] = 1.0\ncopy s[0:+2, :] -> Y[0:+2, :]", 1),
        ("fill s = 2.0\nif tx < 5 { Y[0, tx] = s[1, tx] }", 1),
    ],
)
def test_how_many(body, syncs):
    assert count(body) == syncs


def test_before_the_loop_that_only_the_reader_is_in():
    found = lines("fill s = 1.0\nfor k in 0 .. 3 { copy s -> f }\ncopy f -> Y")
    assert found[1] == "sync block"


def test_not_under_a_guard_that_differs():
    found = lines("fill s = 2.0\nif tx < 5 { Y[0, tx] = s[1, tx] }")
    assert found[:2] == ["fill s = 2.0", "sync block"]


LAYOUT = 'layout="frag{tile=(64,64) tv=(128,32):(32,1)}"'
ROWS = 'layout="frag{tile=(16,64) tv=(128,8):(8,1)}"'


@pytest.mark.parametrize(
    ("turns", "first", "second", "syncs"),
    [
        (2, "k * 32 + i, j", "k * 32 + 16 + i, 63 - j", 0),
        (3, "k * 16 + i, j", "k * 16 + 16 + i, 63 - j", 1),  # the next turn's, by other threads
        (3, "k * 16 + i, j", "48 - k * 16 + i, j", 1),
    ],
)
@pytest.mark.parametrize("tile", ["s", "Y"])
def test_stores_of_a_map_that_meet_in_another_iteration(tile, turns, first, second, syncs):
    """Each of them comes to other rows in every iteration, but to some where the other was."""
    body = f"""for k in 0 .. {turns} {{
      map (i, j) in (16, 64) {ROWS} {{
        {tile}[{first}] = 1.0
        {tile}[{second}] = 2.0
      }}
    }}"""
    assert count(body) == syncs


def test_same_threads_need_none():
    """Each thread touches what it touched."""
    body = f"""
    fill f = 1.0
    map (i, j) in (64, 64) {LAYOUT} {{ s[i, j] = 1.0 }}
    map (i1, j1) in (64, 64) {LAYOUT} {{ s[i1, j1] = s[i1, j1] + 2.0 }}
    map (i2, j2) in (64, 64) {LAYOUT} {{ Y[i2, j2] = s[j2, i2] }}"""
    assert count(body) == 1


def test_bulk_store():
    body = """for k in 0 .. 3 {
      copy X -> s atom=threads
      copy s -> Y[0:+64, :] atom=bulk_store
    }"""
    kernel = ordered(body)
    found = [print_op(op).strip().split("\n")[0] for op in walk_ops(kernel.body)]
    loop = found[found.index(next(x for x in found if x.startswith("for"))) + 1 :]
    assert loop == [
        "wait_group bulk pending 0 read=true",
        "sync block",
        "copy X -> s atom=threads",
        "wait_group bulk pending 0",
        "fence proxy_async",
        "sync block",
        "copy s -> Y atom=bulk_store",
        "commit bulk",
        "wait_group bulk pending 0 read=true",
    ]


def test_interpreter_finds_what_is_missing():
    given = program(HEAD + "copy X -> s\ncopy s -> f\ncopy f -> Y\n}\n}")
    args = {"X": numbers(64, 64, dtype=np.float32), "Y": np.zeros((64, 64), np.float32)}
    with pytest.raises(RunError, match="race on s") as error:
        run(given, args, explicit=True)
    assert error.value.diagnostic.loc.line == 10


def test_fences_and_waits_of_products():
    body = """copy X -> f atom=threads
    copy f -> s atom=stmatrix
    gemm s, s -> g clear=true atom=wgmma
    copy g -> Y atom=threads"""
    found = map_kernels(
        parse_program(HEAD + body + "\n}\n}"), lambda kernel: insert_syncs(kernel, HOPPER)
    ).kernels[0]
    kinds = [
        (type(op).__name__, getattr(op, "kind", getattr(op, "unit", "")))
        for op in walk_ops(found.body)
        if isinstance(op, (Fence, Sync, WaitGroup))
    ]
    assert kinds == [
        ("Fence", "wgmma"), ("Fence", "proxy_async"), ("Sync", ""), ("WaitGroup", "wgmma"),
    ]  # fmt: skip


def test_tiles_of_a_persistent_loop_do_not_wait_for_each_others_tensors():
    body = """for k in 0 .. 4 kind=persistent {
      copy X[k * 16:+16, :] -> s[0:+16, :] atom=threads
      copy s[0:+16, :] -> Y[k * 3 % 4 * 16:+16, :] atom=bulk_store
    }"""
    assert "wait_group bulk pending 0" not in lines(body)
    assert "wait_group bulk pending 0" in lines(body.replace("kind=persistent", ""))


ROUNDS = """alloc n: int32 local init=0
while n < 3 {{
  {met}
  let up = n
  for k in 0 .. 4 {{
    let back = k * 8
    copy f[0:+16, :] -> Y[{row}, :]
  }}
  n = n + 1
}}
"""


@pytest.mark.parametrize(
    ("met", "row", "syncs"),
    [
        ("sync block", "k * 16:+16", 1),  # the next round may come to the same rows, no step does
        ("sync block", "k * 8:+16", 2),  # steps overlap
        ("sync block", "n * 16:+16", 2),  # every step writes the same rows
        ("sync block", "(k * 16 + n * 16) % 64:+16", 2),
        ("sync block", "k * 16 - back:+16", 2),  # steps overlap by what each of them finds out
        ("sync block", "k * 16 + up:+16", 1),  # what a round finds out is the same in its steps
    ],
)
def test_steps_of_a_round_that_write_other_rows_of_a_tensor(met, row, syncs):
    """What a `while` counts is not known, but that it is the same round is."""
    body = "copy X -> f\n" + ROUNDS.format(met=met, row=row)
    given = parse_program(HEAD + body + "\n}\n}")
    found = map_kernels(given, lambda kernel: insert_syncs(kernel, HOPPER)).kernels[0]
    assert sum(isinstance(op, Sync) for op in walk_ops(found)) == syncs


@pytest.mark.parametrize(
    ("value", "syncs"),
    [("at[0] = 8", 1), ("fill at = 8", 1), ("copy N[0:+1] -> at", 1), ("other[0] = 8", 0)],
)
def test_indices_that_change_between_two_stores(value, syncs):
    """However they do: rows that were behind others may be among them."""
    body = f"""copy X -> f
    alloc at: int32[1] local
    alloc other: int32[1] local
    fill at = 0
    copy f[0:+16, :] -> Y[at[0] + 16:+16, :]
    {value}
    copy f[0:+16, :] -> Y[at[0]:+16, :]"""
    head = HEAD.replace("  kernel", "  param N: int32[1] global\n  kernel", 1)
    given = parse_program(head + body + "\n}\n}")
    found = map_kernels(given, lambda kernel: insert_syncs(kernel, HOPPER)).kernels[0]
    assert sum(isinstance(op, Sync) for op in walk_ops(found)) == syncs


REFILLED = """alloc full: barrier[1] barrier
    barrier_init full count 1
    fence barrier_init
    sync block
    for k in 0 .. 3 {
      arrive full bytes=16384
      copy X -> s barrier=full atom=bulk_load
      wait full phase k % 2
      copy s -> f atom=threads
    }
    copy f -> Y"""


def test_reads_end_before_a_bulk_load_overwrites():
    """Threads meet while their loads are under way; a fence waits for those."""
    found = lines(REFILLED)
    loop = found[next(k for k, line in enumerate(found) if line.startswith("for")) + 1 :]
    assert loop[:3] == ["fence proxy_async", "sync block", "arrive full bytes=16384"]


def test_interpreter_finds_reads_under_way():
    body = REFILLED.replace("arrive full bytes", "sync block\n arrive full bytes")
    given = program(HEAD + body + "\n}\n}")
    args = {"X": numbers(64, 64, dtype=np.float32), "Y": np.zeros((64, 64), np.float32)}
    with pytest.raises(RunError, match="ordinary reads of s may be under way"):
        run(given, args, explicit=True)
