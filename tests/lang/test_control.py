"""Control flow: what becomes an op, what Python runs at compile time."""

from __future__ import annotations

import tilewright.language as T
from tests.lang.common import body, refused, same

SIZE = 4


def test_branches_and_loops():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            for k in range(n):
                if k % 2 == 0 and n > 3:
                    A[k] = 1
                elif 2 < k <= 5 or k == 7:
                    break
                else:
                    continue
            for k in range(1, n, 2):
                A[k] += 2
            for k in T.serial(8, 0, -2):
                A[k - 1] = k
            for a, b in T.grid(2, n):
                A[a] = b
            for u in T.unroll(4):
                for v in T.vectorized(2):
                    A[u * 2 + v] = 0

    same(
        body(f),
        """
        for k in 0 .. n {
          if k % 2 == 0 and n > 3 {
            A[k] = 1
          } else if 2 < k and k <= 5 or k == 7 {
            break
          } else {
            continue
          }
        }
        for k_1 in 1 .. n step=2 {
          A[k_1] = A[k_1] + 2
        }
        for k_2 in 0 .. 4 {
          A[8 + k_2 * -2 - 1] = 8 + k_2 * -2
        }
        for a in 0 .. 2 {
          for b in 0 .. n {
            A[a] = b
          }
        }
        for u in 0 .. 4 kind=unroll {
          for v in 0 .. 2 kind=vectorized {
            A[u * 2 + v] = 0
          }
        }
        """,
    )


def test_compile_time_runs_in_python():
    flag, table = True, {"a": 1, "b": 2}

    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            if flag and SIZE == 4:
                A[0] = 1
            else:
                A[0] = undefined_name
            for at, (key, value) in enumerate(sorted(table.items())):
                if key == "b":
                    break
                A[at] = value
            for i in tuple(range(2)):
                if i == 0:
                    continue
                A[i] = len([x for x in (1, 2, 3) if x > 1 and x != 3])
            else:
                A[7] = 7
            n = 0
            while n < 2:
                n += 1
                A[n] = n
            assert SIZE > 3, "never said"

    same(
        body(f),
        """
        A[0] = 1
        A[0] = 1
        A[1] = 1
        A[7] = 7
        A[1] = 1
        A[2] = 2
        """,
    )


def test_while_and_ternary():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            x = T.alloc_var("int32", init=0)
            while x < 10 and not A[x] > 3:
                x += 1
                if x > 5:
                    break
            y = A[0] if x > 3 else A[1] + 1
            A[2] = y if SIZE == 4 else missing
            A[3] = (lambda v: v if v > 2 else -v)(y)
            assert x <= 10, "too far"

    same(
        body(f),
        """
        while x < 10 and not A[x] > 3 {
          x = x + 1
          if x > 5 {
            break
          }
        }
        let y = A[0] if x > 3 else A[1] + 1
        A[2] = y
        A[3] = y if y > 2 else -y
        intrinsic device_assert x <= 10 text="too far"
        """,
    )


def test_builtins_of_run_time_values():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            A[min(n, 7)] = max(A[0], A[1], 0) + abs(A[2]) + round(A[3])
            A[int(A[4])] = float(n) + max(1, 2) + max([3, 4], key=lambda v: -v)

    same(
        body(f),
        """
        A[min(n, 7)] = max(max(A[0], A[1]), 0.0) + abs(A[2]) + round(A[3])
        A[int32(A[4])] = float32(n) + 2.0 + 3.0
        """,
    )


def test_parallel_maps_are_one():
    @T.prim_func
    def f(A: T.Tensor((8, 8), "float32"), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_fragment((8, 8), "float32")
            for i in T.Parallel(8):
                x = A[i, 0]
                for j in T.Parallel(8):
                    s[i, j] = x
            for i in T.Parallel(8):
                s[i, 0] = 1
                for j in T.Parallel(i):
                    s[i, j] = 2

    same(
        body(f),
        """
        map (i, j) in (8, 8) {
          let x: float32 = A[i, 0]
          s[i, j] = x
        }
        map i_1 in 8 {
          s[i_1, 0] = 1.0
          for j_1 in 0 .. i_1 {
            s[i_1, j_1] = 2.0
          }
        }
        """,
    )


def test_loop_bounds_are_read_once():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for k in range(A[0]):
                A[0] = k

    same(
        body(f),
        """
        let v = A[0]
        for k in 0 .. v {
          A[0] = k
        }
        """,
    )


def test_persistent():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "int32")):
        with T.Kernel(4) as block:
            for bx, by in T.Persistent([4, 6], 4, block, group_size=4):
                A[bx, by] = 1

    same(
        body(f),
        """
        for wave in 0 .. (32 - block + 3) // 4 kind=persistent {
          let bx = (wave * 4 + block) // 4 % 4
          let by = (wave * 4 + block) // 4 // 4 * 4 + (wave * 4 + block) % 4
          if by < 6 {
            A[bx, by] = 1
          }
        }
        """,
    )


def test_several_kernels_and_scratch():
    @T.prim_func
    def f(A: T.Tensor((64,), "float32"), B: T.Tensor((64,), "float32")):
        part = T.alloc_global((64,), "float32")
        with T.Kernel(2) as bx:
            part[bx] = A[bx]
        with T.Kernel(4) as bx:
            B[bx] = part[bx]

    assert [k.name for k in f.program.kernels] == ["f", "f_1"]
    assert [b.name for b in f.program.scratch] == ["part"]
    assert [v.name for k in f.program.kernels for v in k.blocks] == ["bx", "bx_1"]


def test_thread_binding_loop():
    @T.prim_func
    def f(A: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            for t in T.thread_binding(64, "threadIdx.x"):
                A[t] = 1

    same(body(f), "A[tx] = 1.0")


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


def test_break_of_unrolled_loop_under_runtime_if():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in (1, 2):
                if A[0] > 3:
                    break

    refused(f, "`break` of an unrolled loop", "range(n)", line="break")


def test_break_in_parallel():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in T.Parallel(8):
                if A[i] > 3:
                    break

    refused(f, "`break` inside T.Parallel", line="break")


def test_return_under_runtime_control():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1) as bx:
            if bx > 0:
                return

    refused(f, "`return` inside a run-time loop or branch", line="return")


def test_else_of_runtime_loop():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in range(4):
                A[i] = 1
            else:
                A[7] = 1

    refused(f, "`else` of a run-time loop")


def test_statements_outside_the_language():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            try:
                A[0] = 1
            finally:
                A[1] = 2

    refused(f, "`try` is not part of the kernel language", line="try:")


def test_plain_helper_that_branches_names_the_macro():
    def helper(x):
        if x > 0:
            return 1
        return 2

    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            A[0] = helper(A[1])

    error = refused(f, "@T.macro", "called from")
    assert error.loc.line == helper.__code__.co_firstlineno + 1
    assert [c.line for c in error.loc.callers] == [f.__code__.co_firstlineno + 2]


def test_loop_words_outside_a_rewritten_body():
    def helper(A):
        for i in T.Parallel(8):
            A[i] = 1

    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            helper(A)

    refused(f, "@T.macro")


def test_while_whose_condition_does_something():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            while T.atomic_add(A[0], 1, return_prev=True) < 3:
                A[1] = 1

    refused(f, "condition of a run-time while", line="while")
