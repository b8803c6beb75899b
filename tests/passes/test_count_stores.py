"""What blocks of a cluster tell each other, counted where it lands."""

from __future__ import annotations

import numpy as np
import pytest

from tests.passes.overlap import HOPPER, numbers, run
from tilewright import machine
from tilewright.ir.expr import const, substitute, variables
from tilewright.ir.op import Arrive, Copy, Fence, For, Sync, Wait, While, walk_ops
from tilewright.ir.rewrite import map_body, map_kernels, rebuild
from tilewright.ir.simplify import simplify
from tilewright.ir.text import parse_program, print_expr
from tilewright.ir.verify import Stage, verify
from tilewright.passes.overlap import count_stores as passes
from tilewright.passes.overlap.count_stores import count_stores
from tilewright.support.errors import RunError
from tilewright.targets.cuda.backend import lower

# every block of a cluster writes the sum of all blocks' rows
HEAD = """program p {
  param X: float32[8, 64] global
  param Y: float32[8, 64] global
  param Z: float32[64] global
  kernel k grid bx in 8 threads tx in 128 cluster=(4) {
    alloc f: float32[64] fragment
    alloc g: float32[64] fragment
    alloc slots: float32[4, 64] shared
    alloc more: float32[4, 64] shared
    copy X[bx, :] -> f
    sync cluster
"""
ZERO = "if bx == 0 { fill Z = 0.0 }\n"
STORES = "\n".join(f"copy f -> slots[bx % 4, :]@{p}" for p in range(4))
READ = """
    fill g = 0.0
    for p in 0 .. 4 {
      map (i) in (64) {
        g[i] = g[i] + slots[p, i]
      }
    }
    copy g -> Y[bx, :]
"""
TAIL = "}\n}"
PEERS = "alloc b: barrier[1] barrier\nbarrier_init b count 1\nfence barrier_init\nsync cluster\n"


def counted(text: str):
    given = parse_program(text)
    verify(given, Stage.TILE)
    found = count_stores(given, HOPPER)
    verify(found, Stage.TILE)
    return given, found


def meetings(program) -> int:
    ops = list(walk_ops(program.kernels[0]))
    return sum(isinstance(op, Sync) and op.scope == "cluster" for op in ops)


def expected_by(e, bx: int) -> int:
    """What a block expects."""
    values = {v: const(bx) for v in variables(e)}
    return int(simplify(substitute(e, values)))


def test_the_second_meeting_becomes_a_wait():
    given, found = counted(HEAD + STORES + "\nsync cluster" + READ + TAIL)
    ops = list(walk_ops(found.kernels[0]))
    assert meetings(given) == 2 and meetings(found) == 1
    assert [op.atom for op in ops if isinstance(op, Copy) and op.dst.cta is not None] == [
        "remote_store"
    ] * 4
    (expected,) = [op for op in ops if isinstance(op, Arrive)]
    assert print_expr(expected.bytes) == str(4 * 64 * 4)  # from each of four blocks
    assert sum(isinstance(op, Wait) for op in ops) == 1


def test_the_same_numbers_in_any_order():
    given, found = counted(HEAD + STORES + "\nsync cluster" + READ + TAIL)
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    want = np.repeat(args["X"].reshape(2, 4, 64).sum(1), 4, 0)
    np.testing.assert_allclose(run(given, args)["Y"], want, rtol=1e-6)
    threads = lower(given, HOPPER).result
    for seed in range(5):
        np.testing.assert_allclose(run(found, args, seed, explicit=True)["Y"], want, rtol=1e-6)
        again = {name: array.copy() for name, array in args.items()}
        machine.run_threads(threads, again, seed=seed)
        np.testing.assert_allclose(again["Y"], want, rtol=1e-6)


def test_only_whom_it_concerns_waits_for_bytes():
    text = HEAD + "copy f -> slots[bx % 4, :]@0\nsync cluster\nif bx % 4 == 0 {" + READ + "}" + TAIL
    given, found = counted(text)
    (expected,) = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Arrive)]
    assert [expected_by(expected.bytes, bx) for bx in range(8)] == [1024, 0, 0, 0] * 2
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    for seed in range(3):
        got = run(found, args, seed, explicit=True)["Y"]
        np.testing.assert_allclose(got[::4], args["X"].reshape(2, 4, 64).sum(1), rtol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        STORES + READ,  # nobody says that it is over
        STORES + "\nsync cluster" + READ + STORES + "\nsync cluster" + READ,  # written again
        "copy f -> slots[0, :]\n" + STORES + "\nsync cluster" + READ,  # written by the block too
        "for r in 0 .. 2 {\n" + STORES + "\nsync cluster" + READ + "sync cluster\n}",  # in a loop
        "copy f -> Y[bx, :]\n" + STORES + "\nsync cluster\ncopy Y[bx, :] -> f" + READ,  # a tensor
        "copy f -> slots[bx % 4, :]@((bx + 1) % 4)\nsync cluster" + READ,  # to whom, at run time
        STORES + "\nsync cluster\n" + STORES.replace("f -> ", "g -> ") + "\nsync cluster" + READ,
        STORES + "\n" + STORES + "\nsync cluster" + READ,  # nothing says which lands last
        STORES.replace("@3", "@4") + "\nsync cluster" + READ,  # to nobody
        "if bx % 4 == 1 { fill Y[bx - 1, :] = 7.0 }\n" + STORES + "\nsync cluster" + READ,
        ZERO + STORES + "\nsync cluster\natomic add Z src=f" + READ,
        "atomic add Z src=f\n" + STORES + "\nsync cluster\ncopy Z -> f" + READ,
        STORES + "\nsync cluster\nview v: float32[256] shared of more\nfill v = 1.0\n"
        "map (i) in (64) { f[i] = v[63 - i] }\nsync cluster\n"
        + STORES.replace("slots", "more")
        + "\nsync cluster"
        + READ.replace("slots", "more"),
        PEERS + "arrive b@1\n" + STORES + "\nsync cluster" + READ,
        PEERS
        + "arrive b bytes=256\ncopy X[0, :] -> more[0, :] barrier=b multicast=3 atom=bulk_load\n"
        "wait b phase 0\n" + STORES + "\nsync cluster" + READ,
    ],
    ids=[
        "no_meeting",
        "twice",
        "own",
        "loop",
        "tensor",
        "rank",
        "both_sides",
        "same_slot",
        "outside",
        "overwritten",
        "zeroed_for_atomics",
        "atomics_read",
        "view",
        "arrival",
        "multicast",
    ],
)
def test_what_else_depends_on_the_meeting_keeps_it(body):
    given, found = counted(HEAD + body + TAIL)
    assert found == given


@pytest.mark.parametrize(
    ("body", "order"),
    [
        ("sync cluster\ncopy f -> Y[bx, :]", "shared"),
        ("atomic add Z src=f\nsync cluster\natomic add Z src=f", "shared"),
        (ZERO + "sync cluster\natomic add Z src=f", "all"),
        ("atomic add Z src=f\nsync cluster\ncopy Z -> f\ncopy f -> Y[bx, :]", "all"),
        ("atomic max Z src=f\nsync cluster\natomic add Z src=f", "all"),
        ("copy f -> Y[0, :]\nsync cluster\nif bx == 0 { copy f -> Y[0, :] }", "all"),
    ],
    ids=["apart", "sums", "zeroed", "read", "mixed", "overwritten"],
)
def test_meetings_order_tensors_where_blocks_share_them(body, order):
    given = parse_program(HEAD + body + TAIL)
    verify(given, Stage.TILE)
    ops = walk_ops(lower(given, HOPPER).result.kernels[0])
    assert {op.order for op in ops if isinstance(op, Sync) and op.scope == "cluster"} == {order}


def test_a_lost_store_is_noticed():
    _, found = counted(HEAD + STORES + "\nsync cluster" + READ + TAIL)
    ops = walk_ops(found.kernels[0])
    stores = [op for op in ops if isinstance(op, Copy) and op.dst.cta is not None]
    less = map_kernels(
        found,
        lambda k: rebuild(k, body=map_body(k.body, lambda op: () if op is stores[0] else None)),
    )
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    with pytest.raises(RunError, match="deadlock|never|wait"):
        run(less, args, explicit=True)


def test_another_fence_does_not_announce_barriers():
    head = HEAD.replace("    sync cluster\n", "    fence proxy_async\n    sync cluster\n")
    _, found = counted(head + STORES + "\nsync cluster" + READ + TAIL)
    kinds = [op.kind for op in walk_ops(found.kernels[0]) if isinstance(op, Fence)]
    assert sorted(kinds) == ["barrier_init", "proxy_async"]


# in every round all blocks of a cluster learn the sum of their rows, and go on with it
AGAIN = READ + "map (i) in (64) { f[i] = g[i] * 0.5 }\n"
ROUND = "sync cluster\n" + STORES + "\nsync cluster" + AGAIN


def rounds(args, count: int):
    rows = args["X"].reshape(2, 4, 64)
    for _ in range(count):
        total = rows.sum(1, keepdims=True)
        rows = np.repeat(total * 0.5, 4, 1)
    return np.repeat(total, 4, 1).reshape(8, 64)


@pytest.fixture
def one_slot(monkeypatch):
    """No tile is small enough for a second slot."""
    monkeypatch.setattr(passes, "TWICE", 0)


@pytest.mark.parametrize("trips", [1, 3])
def test_stores_of_a_loop_are_counted_in_turns(trips, one_slot):
    text = HEAD + f"for r in 4 .. {4 + 3 * trips} step=3 {{\n" + ROUND + "}\n" + TAIL
    given, found = counted(text)
    assert meetings(given) == 3 and meetings(found) == 2  # the one before the loop, and the first
    (wait,) = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Wait)]
    assert print_expr(wait.phase) == "(r - 4) // 3 % 2"
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    want = rounds(args, trips)
    threads = lower(given, HOPPER).result
    for seed in range(2):
        np.testing.assert_allclose(run(found, args, seed, explicit=True)["Y"], want, rtol=1e-6)
        again = {name: array.copy() for name, array in args.items()}
        machine.run_threads(threads, again, seed=seed)
        np.testing.assert_allclose(again["Y"], want, rtol=1e-6)


def test_a_round_of_two_exchanges_meets_once(one_slot):
    other = (
        "\n" + STORES.replace("slots", "more") + "\nsync cluster" + AGAIN.replace("slots", "more")
    )
    given, found = counted(HEAD + "for r in 0 .. 3 {\n" + ROUND + other + "}\n" + TAIL)
    assert meetings(given) == 4 and meetings(found) == 2
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    want = rounds(args, 6)
    for seed in range(4):
        np.testing.assert_allclose(run(found, args, seed, explicit=True)["Y"], want, rtol=1e-6)


@pytest.mark.parametrize(
    "body",
    [
        "for r in 0 .. 2 {\n" + STORES + "\nsync cluster" + AGAIN + "}",  # read while told again
        "for r in 0 .. 2 {\n" + ROUND + "}" + READ,  # read behind the loop, too
        "for r in 0 .. 2 {\nfor s in 0 .. 2 {\n" + ROUND + "}\n}",  # rounds that no variable counts
        "for r in 0 .. 2 {\nif r > 0 {\n" + ROUND + "}\n}",  # not in every round
        "for r in 0 .. 2 {\ncopy slots[0, :] -> f\n" + ROUND + "}",  # read before it is told
        "for r in 0 .. 2 {\nsync cluster\nif bx % 4 == 1 { fill Y[bx - 1, :] = 7.0 }\n"
        + ROUND.removeprefix("sync cluster\n")
        + "}",  # a tensor is written on both sides
    ],
    ids=["no_first_meeting", "behind", "nested", "guarded", "before", "overwritten"],
)
def test_other_loops_keep_their_meetings(body):
    given, found = counted(HEAD + body + TAIL)
    assert found == given


def test_the_first_meeting_of_a_round_is_needed(one_slot):
    _, found = counted(HEAD + "for r in 0 .. 4 {\n" + ROUND + "}\n" + TAIL)
    (loop,) = [op for op in found.kernels[0].body if isinstance(op, For)]
    first = loop.body[0]
    assert isinstance(first, Sync)
    less = map_kernels(
        found, lambda k: rebuild(k, body=map_body(k.body, lambda op: () if op is first else None))
    )
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    with pytest.raises(RunError):
        for seed in range(8):
            run(less, args, seed, explicit=True)


# ── two slots that take turns ────────────────────────────────────────────────────────────────

OTHER = "\n" + STORES.replace("slots", "more") + "\nsync cluster" + AGAIN.replace("slots", "more")
UNMET = HEAD.replace("    sync cluster\n", "")
WHILE = "alloc n: int32 local init={first}\nwhile n < {last} {{\n"
COUNT = "n = n + 1\n"


def check(given, found, count: int):
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    want = rounds(args, count) if count else args["Y"]
    threads = lower(given, HOPPER).result
    for seed in range(4):
        np.testing.assert_allclose(run(found, args, seed, explicit=True)["Y"], want, rtol=1e-6)
    machine.run_threads(threads, args, seed=count)
    np.testing.assert_allclose(args["Y"], want, rtol=1e-6)


def loop_of(program):
    (loop,) = [op for op in program.kernels[0].body if isinstance(op, (For, While))]
    return loop


@pytest.mark.parametrize("head", [HEAD, UNMET], ids=["met", "unmet"])
@pytest.mark.parametrize("trips", [0, 1, 5])
def test_with_two_slots_blocks_meet_once(head, trips):
    """Before the loop, whether the text has them meet there or not."""
    given, found = counted(head + f"for r in 4 .. {4 + 3 * trips} step=3 {{\n{ROUND}}}\n" + TAIL)
    loop = loop_of(found)
    assert meetings(found) == 1 and not any(
        isinstance(op, Sync) and op.scope == "cluster" for op in walk_ops(loop)
    )
    (wait,) = [op for op in walk_ops(loop) if isinstance(op, Wait)]
    assert print_expr(wait.barrier.starts[0]) == "(r - 4) // 3 % 2"
    check(given, found, trips)


@pytest.mark.parametrize("last", [0, 4])
def test_the_rounds_of_a_while_are_counted(last):
    given, found = counted(HEAD + WHILE.format(first=0, last=last) + ROUND + COUNT + "}\n" + TAIL)
    assert meetings(found) == 1
    check(given, found, last)


def test_a_while_with_one_slot_meets_once_a_round(one_slot):
    given, found = counted(HEAD + WHILE.format(first=0, last=5) + ROUND + COUNT + "}\n" + TAIL)
    assert meetings(given) == 3 and meetings(found) == 2
    check(given, found, 5)


def test_two_exchanges_of_a_round_take_turns_together():
    given, found = counted(HEAD + "for r in 0 .. 3 {\n" + ROUND + OTHER + "}\n" + TAIL)
    assert meetings(found) == 1
    check(given, found, 6)


@pytest.mark.parametrize("how", ["continue", "break"])
@pytest.mark.parametrize("where", ["before", "behind"])
def test_rounds_that_are_left_early_are_not_counted_twice(how, where):
    """Every second iteration has none, or the loop ends in the fourth one."""
    early = f"if n % 2 == 1 {{ {how} }}\n" if how == "continue" else "if n == 4 { break }\n"
    count = {"continue": {"before": 3, "behind": 7}, "break": {"before": 3, "behind": 4}}
    body = COUNT + (early + ROUND if where == "before" else ROUND + early)
    given, found = counted(HEAD + WHILE.format(first=0, last=7) + body + "}\n" + TAIL)
    assert meetings(found) == 1
    check(given, found, count[how][where])


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "for r in 0 .. 3 {\n" + ROUND.replace("copy f -> slots[bx % 4, :]@3\n", "") + "}",
        HEAD.replace("[4, 64] shared", "[4, 512] shared")
        + "for r in 0 .. 3 {\n" + ROUND.replace("slots[bx % 4, :]", "slots[bx % 4, 0:+64]") + "}",
        UNMET.replace("    alloc slots: float32[4, 64] shared\n", "")
        + "for r in 0 .. 3 {\nalloc slots: float32[4, 64] shared\n" + ROUND + "}",
    ],
    ids=["not_told_to_all", "large", "allocated_inside"],
)  # fmt: skip
def test_what_keeps_the_first_meeting(text):
    given, found = counted(text + "\n" + TAIL)
    assert any(isinstance(op, Sync) and op.scope == "cluster" for op in walk_ops(loop_of(found)))
    assert all(not op.barrier.starts[0].value for op in walk_ops(found) if isinstance(op, Wait))


def test_rounds_of_a_loop_whose_start_changes_are_counted():
    """The variable's distance from what the start is by now says nothing."""
    text = "alloc n: int32 local init=0\nfor r in n .. 4 {\n" + COUNT + ROUND + "}\n"
    given, found = counted(HEAD + text + TAIL)
    assert meetings(found) == 1
    check(given, found, 4)


def test_a_tile_with_a_view_has_one_slot():
    view = "view v: float32[256] shared of slots\n"
    body = view + ROUND.replace("slots[p, i]", "v[p * 64 + i]")
    given, found = counted(HEAD + "for r in 0 .. 5 {\n" + body + "}\n" + TAIL)
    assert meetings(found) == 2
    check(given, found, 5)


@pytest.mark.parametrize("how", ["continue", "break"])
def test_rounds_that_have_some_of_their_exchanges_keep_their_meetings(how):
    body = COUNT + ROUND + f"if n % 3 == 1 {{ {how} }}\nsync cluster" + OTHER
    given, found = counted(HEAD + WHILE.format(first=0, last=6) + body + "}\n" + TAIL)
    assert found == given


def test_loops_within_an_exchange_may_be_left():
    inner = "\nfor z in 0 .. 3 { if z == 1 { break } }\nsync cluster\n"
    body = COUNT + ROUND.replace("\nsync cluster\n", inner)
    given, found = counted(HEAD + WHILE.format(first=0, last=3) + body + "}\n" + TAIL)
    assert meetings(found) == 1
    check(given, found, 3)


def test_an_exchange_that_is_left_halfway_keeps_its_meetings():
    body = ROUND.replace("\nsync cluster\n", "\nif n > 2 { break }\nsync cluster\n")
    assert body != ROUND
    given, found = counted(HEAD + WHILE.format(first=0, last=3) + COUNT + body + "}\n" + TAIL)
    assert found == given


def fails(program):
    args = {
        "X": numbers(8, 64, dtype=np.float32),
        "Y": np.zeros((8, 64), np.float32),
        "Z": np.zeros(64, np.float32),
    }
    with pytest.raises(RunError):
        for seed in range(12):
            run(program, args, seed, explicit=True)


def test_both_slots_are_needed(monkeypatch):
    """With one of them and no meeting, blocks tell before others have read."""
    slotted = passes.slotted
    monkeypatch.setattr(passes, "slotted", lambda op, slots, _: slotted(op, slots, const(0)))
    _, found = counted(HEAD + "for r in 0 .. 6 {\n" + ROUND + "}\n" + TAIL)
    fails(found)
