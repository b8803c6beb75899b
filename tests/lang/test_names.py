"""Assignment: what a name stands for, and where it may be rebound."""

from __future__ import annotations

import tilewright.language as T
from tests.lang.common import body, refused, same


def test_reads_are_taken_where_they_stand():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32"), n: T.int32):
        with T.Kernel(1):
            x = A[0]
            k = n * 2 + 1
            A[0] = x + 1
            A[k] = x
            A[0], A[1] = A[1], A[0]
            p = q = A[2]
            A[3] = p + q

    same(
        body(f),
        """
        let x: float32 = A[0]
        A[0] = x + 1.0
        A[n * 2 + 1] = x
        let v: float32 = A[1]
        let v_1: float32 = A[0]
        A[0] = v
        A[1] = v_1
        let v_2: float32 = A[2]
        A[3] = v_2 + v_2
        """,
    )


def test_variables():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            a = T.alloc_var("float32", 1)
            b = T.alloc_var("float32")
            one = T.alloc_local((1,), "int32")
            b = a
            old = a
            a = 2
            a, b = b, a
            a -= 0.5
            a[0] = 3
            b[0] += a[0]
            one[0] = 5
            A[0] = old + a
            c: T.int32 = b
            d = T.alloc_var("int32")
            d += c

    same(
        body(f),
        """
        b = a
        let old: float32 = a
        a = 2.0
        let v: float32 = b
        let v_1: float32 = a
        a = v
        b = v_1
        a = a - 0.5
        a = 3.0
        b = b + a
        one[0] = 5
        A[0] = old + a
        let c = int32(b)
        d = d + c
        """,
    )


def test_unpacking_walrus_and_lists():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(2, 3) as (bx, by):
            first, *rest = (1, 2, 3)
            parts = [T.alloc_var("int32") for _ in rest]
            parts[0] += first
            for part in parts:
                part += 1
            A[0] = (at := bx + by)
            A[at] = at
            A[len(rest)] = sum(rest)

    same(
        body(f),
        """
        parts = parts + 1
        parts = parts + 1
        parts_1 = parts_1 + 1
        A[0] = bx + by
        A[bx + by] = bx + by
        A[2] = 5
        """,
    )


def test_sibling_scopes_reuse_names():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            if n > 1:
                x = A[0]
                A[1] = x
            else:
                x = A[2]
                A[3] = x
            for i in range(4):
                x = A[i]
                A[i] = x + 1
            for i in range(4):
                A[i] = i

    same(
        body(f),
        """
        if n > 1 {
          let x = A[0]
          A[1] = x
        } else {
          let x_1 = A[2]
          A[3] = x_1
        }
        for i in 0 .. 4 {
          let x_2 = A[i]
          A[i] = x_2 + 1
        }
        for i_1 in 0 .. 4 {
          A[i_1] = i_1
        }
        """,
    )


def test_large_expressions_are_named():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            x = n
            for i in tuple(range(1, 20)):
                x = x * i + n
            A[0] = x

    assert "let x = " in body(f)


def test_macros():
    @T.macro
    def scale(buf: T.FragmentBuffer, by, out: T.Ref):
        for i in T.Parallel(buf.shape[0]):
            buf[i] = buf[i] * by
        out = buf[0]

    @T.macro
    def counter(start):
        c = T.alloc_var("int32", init=start)
        return c

    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.alloc_fragment((8,), "float32")
            scale(s, A[0] * 2, A[1])
            n = counter(3)
            n += 1
            m = n
            A[2] = m

    same(
        body(f),
        """
        let v: float32 = A[0] * 2.0
        map i in 8 {
          s[i] = s[i] * v
        }
        A[1] = s[0]
        c = c + 1
        let m = c
        A[2] = float32(m)
        """,
    )


def test_methods_and_attributes():
    class Counter:
        def __init__(self):
            self.value = T.alloc_var("int32", init=0)

        @T.macro
        def step(self, by):
            if by > 1:
                self.value += by
            self.value = self.value + 1

    @T.prim_func
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            c = Counter()
            for _ in range(3):
                c.step(n)
            A[0] = c.value

    same(
        body(f),
        """
        for i in 0 .. 3 {
          if n > 1 {
            c = c + n
          }
          c = c + 1
        }
        A[0] = c
        """,
    )


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


def test_rebinding_in_a_loop():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            x = 0
            for i in range(4):
                x = x + i

    refused(f, "'x' is rebound inside a run-time loop", "T.alloc_var", line="x = x + i")


def test_augmented_rebinding_in_a_branch():
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            x = A[0]
            if n > 2:
                x += 1

    refused(f, "'x' is rebound inside a run-time branch", 'T.alloc_var("int32"', line="x += 1")


def test_parameters_are_names_too():
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            for i in range(4):
                n = i

    refused(f, "'n' is rebound", "a parameter", line="n = i")


def test_names_do_not_outlive_their_scope():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            for i in range(4):
                y = A[i]
            A[0] = y

    refused(f, "'y' was bound inside a run-time loop", "T.alloc_var", line="A[0] = y")


def test_then_names_are_not_seen_in_else():
    def f(A: T.Tensor((8,), "int32"), n: T.int32):
        with T.Kernel(1):
            if n > 1:
                y = A[0]
            else:
                z = y + 1

    refused(f, "'y' was bound inside a run-time branch", line="z = y + 1")


def test_python_containers_do_not_change_at_run_time():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            sums = [0, 0]
            for i in range(4):
                sums[0] = sums[0] + i

    refused(f, "'sums' is a Python list", "alloc_local", line="sums[0] =")


def test_stale_elements_are_refused():
    @T.macro
    def late(x, A):
        A[0] = 1
        A[1] = x

    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            late(A[0], A)

    refused(f, "'x' stands for an element of A, which has been written since")


def test_python_errors_are_located():
    def misspelt(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            block_size = 4
            A[0] = blok_size

    def bad_index(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            A[0] = (1, 2)[5]

    def bad_call(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            T.copy(A)

    refused(misspelt, "NameError", "did you mean 'block_size'?", line="blok_size")
    refused(bad_index, "IndexError", line="(1, 2)[5]")
    refused(bad_call, "T.copy: missing", "dst", line="T.copy(A)")


def test_unknown_words():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            T.allco_shared((8,), "int32")

    refused(f, "T.allco_shared is not a word", "T.alloc_shared", line="allco_shared")
    assert not hasattr(T, "allco_shared")


def test_failed_assertions():
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(1):
            assert A.shape[0] == 9, f"size {A.shape[0]}"

    refused(f, "assertion failed: size 8", line="assert")
