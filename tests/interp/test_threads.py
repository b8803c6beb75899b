"""Thread-level code: lanes, masks, shuffles, votes, printing and assertions."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.text import parse_program
from tilewright.machine import run
from tilewright.support.errors import RunError


def kernel(params: str, body: str, threads: str = "tx in 64"):
    lines = "\n".join(f"param {p}" for p in params.split(";"))
    return parse_program(
        f"program p {{\n{lines}\nkernel k grid bx in 1 threads {threads} {{\n{body}\n}}\n}}"
    )


@pytest.mark.parametrize("sanitize", [False, True])
def test_shared_memory_reduction(sanitize):
    program = kernel(
        "A: float32[256] global;B: float32[1] global",
        """
        alloc s: float32[64] shared
        alloc x: float32 local init=0.0
        for i in tx .. 256 step=64 { x = x + A[i] }
        s[tx] = x
        sync block
        alloc w: int32 local init=32
        while w > 0 {
          if tx < w { s[tx] = s[tx] + s[tx + w] }
          sync block
          w = w // 2
        }
        if tx == 0 { B[0] = s[0] }
        """,
    )
    a, b = np.arange(256, dtype=np.float32), np.zeros(1, np.float32)
    run(program, {"A": a, "B": b}, sanitize=sanitize)
    assert b[0] == a.sum()


def test_thread_indices_are_linear():
    program = kernel(
        "A: int32[24] global", "A[tx + ty * 4 + tz * 12] = tx * 100 + ty * 10 + tz",
        "(tx, ty, tz) in (4, 3, 2)",
    )  # fmt: skip
    a = np.zeros(24, np.int32)
    run(program, {"A": a})
    want = [x * 100 + y * 10 + z for z in range(2) for y in range(3) for x in range(4)]
    np.testing.assert_array_equal(a, want)


def test_shuffles_and_votes():
    program = kernel(
        "A: int32[6, 64] global;B: float32[64] global",
        """
        intrinsic shfl_xor (tx, 1) result=a
        intrinsic shfl_up (tx, 2) result=b
        intrinsic shfl_down (tx, 3) result=c
        intrinsic shfl_sync (tx, 5) result=d width=8
        intrinsic ballot (tx % 3 == 0) result=e
        intrinsic any_sync (tx == 40) result=f
        intrinsic warp_reduce_sum (float32(tx)) result=g: float32
        A[0, tx] = a; A[1, tx] = b; A[2, tx] = c; A[3, tx] = d; A[4, tx] = e; A[5, tx] = f
        B[tx] = g
        """,
    )
    a, b = np.zeros((6, 64), np.int32), np.zeros(64, np.float32)
    run(program, {"A": a, "B": b})
    t = np.arange(64)
    lane = t % 32
    np.testing.assert_array_equal(a[0], t ^ 1)
    np.testing.assert_array_equal(a[1], np.where(lane >= 2, t - 2, t))
    np.testing.assert_array_equal(a[2], np.where(lane < 29, t + 3, t))
    np.testing.assert_array_equal(a[3], t // 8 * 8 + 5)
    votes = [sum(1 << i for i in range(32) if (w * 32 + i) % 3 == 0) for w in range(2)]
    np.testing.assert_array_equal(a[4].astype(np.uint32), np.repeat(np.uint32(votes), 32))
    np.testing.assert_array_equal(a[5], t // 32)
    np.testing.assert_array_equal(b, np.repeat([sum(range(32)), sum(range(32, 64))], 32))


def test_masks_break_continue_and_divergent_loops():
    program = kernel(
        "A: int32[64] global",
        """
        alloc n: int32 local init=0
        alloc v: int32[2] local
        v[0] = 0
        v[1] = tx
        for i in 0 .. 100 {
          if i > tx { break }
          if i % 2 == 0 { continue }
          n = n + i
          v[i % 2] = v[i % 2] + 1
        }
        while n > 10 { n = n - 7 }
        A[tx] = n * 1000 + v[0] * 100 + v[1]
        """,
    )
    a = np.zeros(64, np.int32)
    run(program, {"A": a}, sanitize=True)
    want = []
    for t in range(64):
        odd = [i for i in range(min(t, 99) + 1) if i % 2]
        n = sum(odd)
        while n > 10:
            n -= 7
        want.append(n * 1000 + t + len(odd))
    np.testing.assert_array_equal(a, want)


def test_lazy_loads_under_masks():
    program = kernel(
        "A: int32[64] global",
        """
        alloc s: int32[8] shared
        if tx < 8 { s[tx] = tx * tx }
        sync block
        if tx < 8 { A[tx] = s[tx] } else { A[tx] = s[tx - 8] if tx < 16 else 7 }
        if tx < 4 and s[tx] > 3 { A[tx] = -1 }
        """,
    )
    a = np.zeros(64, np.int32)
    run(program, {"A": a}, sanitize=True)
    np.testing.assert_array_equal(
        a[:16], [0, 1, -1, -1, 16, 25, 36, 49, *(i * i for i in range(8))]
    )
    assert (a[16:] == 7).all()


def test_per_thread_local_array_copy_and_fill():
    program = kernel(
        "A: float32[64, 4] global;B: float32[64, 4] global",
        """
        alloc r: float32[4] local
        fill r = float32(tx)
        copy A[tx, 0:+4] -> r
        for i in 0 .. 4 { r[i] = r[i] * 2.0 }
        copy r -> B[tx, 0:+4]
        """,
    )
    a, b = np.random.rand(64, 4).astype(np.float32), np.zeros((64, 4), np.float32)
    run(program, {"A": a, "B": b})
    np.testing.assert_array_equal(b, a * 2)


def test_print(capsys):
    program = kernel(
        "A: int32[2] global",
        """
        intrinsic print (bx + 5) text="block value"
        if tx < 2 { intrinsic print (tx * 3) text="t" }
        alloc s: int32[2] shared
        fill s = 4
        intrinsic print (&s)
        """,
    )
    result = run(program, {"A": np.zeros(2, np.int32)})
    assert result.printed == [
        "block (0,): block value 5",
        "block (0,) thread 0: t 0",
        "block (0,) thread 1: t 3",
        "block (0,): s: int32[2] = [4 4]",
    ]
    assert capsys.readouterr().out.splitlines() == result.printed


def test_device_assert_and_foreign_code():
    program = kernel("A: int32[2] global", 'intrinsic device_assert (tx < 60) text="too far"')
    with pytest.raises(RunError, match=r"device_assert failed .* thread 60: too far") as e:
        run(program, {"A": np.zeros(2, np.int32)})
    assert e.value.loc.line == 4
    program = kernel("A: int32[2] global", 'intrinsic ptx () text="nop;"')
    with pytest.raises(RunError, match="ptx is foreign code"):
        run(program, {"A": np.zeros(2, np.int32)})


def test_collective_op_under_a_thread_guard_is_refused():
    program = kernel(
        "A: float32[8] global", "alloc s: float32[8] shared\nif tx < 3 { copy A -> s }"
    )
    with pytest.raises(RunError, match="guard that differs between threads"):
        run(program, {"A": np.zeros(8, np.float32)})
    program = kernel("A: float32[8] global", "map i in 8 { A[i] = float32(tx) }")
    with pytest.raises(RunError, match="differs between threads"):
        run(program, {"A": np.zeros(8, np.float32)})
