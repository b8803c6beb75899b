"""Scheduled programs: right under every interleaving, and every way of breaking them is noticed."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.interp import scheduled as S
from tilewright.ir.expr import Const, const
from tilewright.ir.op import Arrive, BarrierInit, Copy, Gemm, Sync, Wait, WaitGroup, walk_ops
from tilewright.ir.text import parse_program
from tilewright.machine import run
from tilewright.support.errors import RunError

PROGRAMS = ["GEMM", "SKEWED", "CP_ASYNC", "CHAINED", "CLUSTER", "PINGPONG", "DSMEM"]


def program(name: str):
    return parse_program(getattr(S, name))


def arguments(p, seed: int = 0):
    rng = np.random.default_rng(seed)
    return {t.name: rng.integers(-3, 4, t.static_shape).astype(t.dtype.numpy) for t in p.tensors}


def expected(name: str, a: dict[str, np.ndarray]) -> np.ndarray:
    wide = {k: v.astype(np.float64) for k, v in a.items()}
    if name == "CP_ASYNC":
        return wide["A"].sum(1)
    if name == "CHAINED":
        return wide["A"] @ wide["A"]
    if name == "PINGPONG":
        return np.stack([wide["C"][0], np.arange(3) + 1.0])
    if name == "DSMEM":
        return wide["A"][[1, 0, 3, 2]]
    return wide["A"] @ wide["B"]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sanitize", [False, True])
def test_right_under_every_interleaving(name, sanitize):
    p = program(name)
    for seed in range(20):
        a = arguments(p, seed)
        want = expected(name, a)
        run(p, a, seed=seed, sanitize=sanitize)
        np.testing.assert_array_equal(a["C"].astype(np.float64), want)


@pytest.mark.parametrize("name", PROGRAMS)
def test_dropping_any_synchronisation_is_noticed(name):
    for what, broken in S.mutants(program(name)):
        for seed in range(4):
            with pytest.raises(RunError):
                run(broken, arguments(broken), seed=seed)
                pytest.fail(f"{name} without {what}, seed {seed}: nothing noticed")


def miscounts(p):
    """Counts, bytes and phases that are off."""
    for op in walk_ops(p.kernels[0]):
        if isinstance(op, Arrive):
            yield op, dataclasses.replace(op, count=const(2))
            if op.bytes is not None:
                for off in (-16, 16, -1024):
                    yield op, dataclasses.replace(op, bytes=op.bytes + off)
        elif isinstance(op, BarrierInit):
            for off in (-1, 1):
                yield op, dataclasses.replace(op, count=op.count + off)
        elif isinstance(op, Wait):
            yield op, dataclasses.replace(op, phase=1 - op.phase)
        elif isinstance(op, WaitGroup) and op.pending == 0:
            yield op, dataclasses.replace(op, pending=1)
        elif isinstance(op, Sync) and op.threads:
            yield op, dataclasses.replace(op, threads=op.threads + 32)
            yield op, dataclasses.replace(op, threads=op.threads - 32)
            if isinstance(op.id, Const):  # an id of its own is as good as another
                yield op, dataclasses.replace(op, id=op.id + 5)


@pytest.mark.parametrize("name", PROGRAMS)
def test_miscounting_is_noticed(name):
    p = program(name)
    for old, new in miscounts(p):
        broken = S.replace_op(p, old, new)
        for seed in range(4):
            with pytest.raises(RunError):
                run(broken, arguments(p), seed=seed)
                pytest.fail(f"{name}: {new} for {old} at {old.loc}, seed {seed}: nothing noticed")


def test_wrong_slots_are_noticed():
    p = program("GEMM")
    for op in walk_ops(p.kernels[0]):
        if isinstance(op, (Wait, Arrive)) and op.barrier.buffer.name == "empty":
            continue  # the other slot is released later: slower, but right
        if isinstance(op, (Wait, Arrive)) and op.barrier.buffer.rank == 1:
            other = dataclasses.replace(op.barrier, starts=(1 - op.barrier.starts[0],))
            broken = S.replace_op(p, op, dataclasses.replace(op, barrier=other))
        elif isinstance(op, Gemm):
            slot, *rest = op.b.starts
            other = dataclasses.replace(op.b, starts=(1 - slot, *rest))
            broken = S.replace_op(p, op, dataclasses.replace(op, b=other))
        elif isinstance(op, Copy) and op.atom == "bulk_load":
            other = dataclasses.replace(op.barrier, starts=(1 - op.barrier.starts[0],))
            broken = S.replace_op(p, op, dataclasses.replace(op, barrier=other))
        else:
            continue
        for seed in range(4):
            with pytest.raises(RunError):
                run(broken, arguments(p), seed=seed)
                pytest.fail(f"{op} at {op.loc}, seed {seed}: nothing noticed")


def test_deadlock_names_who_waits_where():
    p = program("GEMM")
    (arrive,) = [o for o in walk_ops(p.kernels[0]) if isinstance(o, Arrive) and o.bytes is None]
    broken = next(m for what, m in S.mutants(p) if what == f"Arrive at line {arrive.loc.line}")
    with pytest.raises(RunError) as e:
        run(broken, arguments(p))
    text = str(e.value)
    assert "deadlock" in text
    assert "producer of block (0,) stands in Wait at <ir>:19:9" in text
    assert "consumer[0] of block (0,) stands in Wait at <ir>:29:9" in text
    assert "phase 0 of full[0] (1 phases complete; the next lacks 1 of 1 arrivals" in text or (
        "phase 1 of full[0]" in text
    )


def test_race_names_both_ops():
    p = parse_program(
        """
        program p {
          param C: float32[8] global
          kernel k grid bx in 1 threads tx in 64 {
            alloc S: float32[8] shared
            role left warps 0 + 1 { fill S[0:+5] = 1.0 }
            role right warps 1 + 1 { copy S[4:+4] -> C[0:+4] atom=threads }
          }
        }
        """
    )
    with pytest.raises(RunError, match="two roles touch the same memory") as e:
        run(p, arguments(p))
    notes = " ".join(e.value.diagnostic.notes)
    assert "Fill by left of block (0,) at <ir>:6:37, which writes S" in notes
    assert "Copy by right of block (0,) at <ir>:7:38, which reads S" in notes


def test_bytes_may_come_before_they_are_expected():
    text = S.GEMM.splitlines()
    at = next(i for i, line in enumerate(text) if "bytes=3072" in line)
    line = text.pop(at)
    text.insert(at + 2, line)
    p = parse_program("\n".join(text))
    for seed in range(10):
        a = arguments(p, seed)
        want = expected("GEMM", a)
        run(p, a, seed=seed)
        np.testing.assert_array_equal(a["C"].astype(np.float64), want)


def test_overwriting_a_source_in_flight():
    p = parse_program(
        """
        program p {
          param C: float32[8] global
          kernel k grid bx in 1 threads tx in 32 {
            alloc S: float32[8] shared
            alloc f: float32[8] fragment
            fill f = 1.0
            copy f -> S atom=threads
            fence proxy_async
            sync block
            copy S -> C atom=bulk_store
            commit bulk
            fill S = 2.0
            wait_group bulk pending 0
          }
        }
        """
    )
    with pytest.raises(RunError, match="race on S: an asynchronous operation is still in flight"):
        run(p, {"C": np.zeros(8, np.float32)})


def test_threads_with_their_own_elements_need_no_barrier():
    p = parse_program(
        """
        program p {
          param C: int32[64] global
          kernel k grid bx in 1 threads tx in 96 {
            alloc S: int32[64] shared
            role one warps 0 + 2 {
              S[tx] = tx
              let v = S[tx] + 1
              S[tx] = v
              sync named id=1 threads=64
              C[tx] = S[63 - tx]
            }
          }
        }
        """
    )
    c = np.zeros(64, np.int32)
    run(p, {"C": c})
    np.testing.assert_array_equal(c, 64 - np.arange(64))


SAME = """
program p {
  param C: float32[8, 8] global
  kernel k grid bx in 1 threads tx in 32 {
    alloc S: float32[8, 8] shared
    copy C -> S atom=cp_async
    commit cp_async
    wait_group cp_async pending 0
    sync block
    map (i, j) in (8, 8) layout="frag{tile=(8,8) tv=(32,2):(2,1)}" { S[i, j] = S[i, j] + 1.0 }
    map (k, l) in (8, 8) layout="frag{tile=(8,8) tv=(32,2):(2,1)}" { C[k, l] = S[k, l] }
  }
}
"""


def test_maps_of_one_layout_need_no_barrier():
    c = np.zeros((8, 8), np.float32)
    run(parse_program(SAME), {"C": c})
    assert (c == 1).all()
    for broken in (
        SAME.replace("C[k, l] = S[k, l]", "C[l, k] = S[l, k]"),  # other threads
        SAME.replace('tv=(32,2):(2,1)}" { C', 'tv=((8,4),2):((8,2),1)}" { C'),
    ):
        assert broken != SAME
        with pytest.raises(RunError, match="threads of one role"):
            run(parse_program(broken), {"C": c})


def test_unscheduled_atoms_leave_syncs_to_the_compiler():
    text = S.GEMM
    for atom in ("stmatrix", "bulk_load", "bulk_store", "wgmma"):
        assert f"atom={atom}" in text
    text = text.replace(" atom=stmatrix", "")  # one instruction is not chosen yet
    text = text.replace("      fence proxy_async\n", "").replace(
        "      sync named id=wg + 1 threads=128\n", ""
    )
    p = parse_program(text)
    a = arguments(p)
    want = expected("GEMM", a)
    run(p, a)
    np.testing.assert_array_equal(a["C"].astype(np.float64), want)


def test_a_role_of_all_warps_among_others():
    p = parse_program(
        """
        program p {
          param A: float32[8] global
          param C: float32[8] global
          param T: int32[128] global
          kernel k grid bx in 1 threads tx in 128 {
            alloc S: float32[8] shared
            alloc f: float32[8] fragment
            alloc n: int32 local init=3
            alloc v: int32 local
            alloc done: barrier[1] barrier
            barrier_init done count 64
            role all warps 0 + 4 {
              copy A -> f
              n = n + 1
              v = tx
            }
            role left warps 0 + 2 {
              map i in 8 { S[i] = f[i] * float32(n) }
              arrive done[0] count=64
            }
            role right warps 2 + 2 {
              wait done[0] phase 0
              map i in 8 { f[i] = S[i] }
            }
            role all2 warps 0 + 4 {
              copy f -> C
              T[tx] = v + n
            }
          }
        }
        """
    )
    for seed in range(8):
        a, c, t = np.arange(8, dtype=np.float32), np.zeros(8, np.float32), np.zeros(128, np.int32)
        run(p, {"A": a, "C": c, "T": t}, seed=seed, sanitize=seed % 2 == 0)
        np.testing.assert_array_equal(c, a * 4)
        np.testing.assert_array_equal(t, np.arange(128) + 4)


def test_arriving_twice_on_a_named_barrier():
    p = parse_program(
        """
        program p {
          param C: float32[8] global
          kernel k grid bx in 1 threads tx in 64 {
            role one warps 0 + 1 {
              sync named id=1 threads=64 arrive=true
              sync named id=1 threads=64 arrive=true
            }
          }
        }
        """
    )
    with pytest.raises(RunError, match="a second time"):
        run(p, {"C": np.zeros(8, np.float32)})


def test_two_roles_may_not_share_a_barrier_of_their_own_threads():
    """On hardware the warps of both would mix in one phase of 128."""
    p = parse_program(
        """
        program p {
          param C: float32[8] global
          kernel k grid bx in 1 threads tx in 256 {
            role each warps 0 + 8 instances=2 var=wg {
              sync named id=1 threads=128
            }
          }
        }
        """
    )
    with pytest.raises(RunError, match="without knowing that its last phase is over"):
        run(p, {"C": np.zeros(8, np.float32)})
